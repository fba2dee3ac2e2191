"""Reading what a running store has, a little at a time, so that rot is found before somebody needs the bytes.

Touches  the commit log and the queues it is given, and quarantine/ below the store's root.

A round goes from the first byte kept to where the log was durable and readable when the round began. Each record is
proven as recovery proves it, and its queue entry compared with it.

- A stretch without a proven record is put aside as recovery does it: a copy in quarantine/, whose name keeps readers
  away from the place, now and after every start.
- An entry that does not lead to its record, between two that lead to the records before and behind, is written again.

The log is read by calls and not through its map: a bad sector is an error here, where through a map it ends the
process, and the interpreter's lock is not held while the disk is waited for.

Threads: step() belongs to the worker that also deletes files, so that none is closed while it is read. What it shares
with the appending thread: offsets that only grow, tuples that are replaced, single entries written under the
interpreter's lock.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aerobee_store.disk.io import StoreIo
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.queues.consume_queue import ENTRY_DTYPE, ENTRY_SIZE, ConsumeQueue
from aerobee_store.queues.delay import entry_tag
from aerobee_store.queues.queue_table import QueueTable
from aerobee_store.queues.tombstones import Tombstones
from aerobee_store.records.property_columns import Ints
from aerobee_store.records.record_scan import ScannedRecord
from aerobee_store.terms.config import StoreConfig
from aerobee_store.terms.messages import RECORD_EXTRA_MAX
from aerobee_store.walking.agreement import Agreement, are_same, compared_size, header_at, place_in
from aerobee_store.walking.log_reader import FILE_MISSING, Damage, LogReader, Proof
from aerobee_store.walking.log_sources import CallSource
from aerobee_store.walking.quarantine import put_aside
from aerobee_store.walking.record_columns import Stretch

__all__ = ["SLICE_SIZE", "ScrubParts", "ScrubStep", "Scrubber"]

# Bytes read by one step: about a millisecond of processor time.
SLICE_SIZE: Final = 256 << 10
_RECORD_OVERHEAD_MAX: Final = RECORD_EXTRA_MAX + 4096  # topic, properties and head of the largest record
_FEW: Final = 16  # entries that are compared sooner one by one than by columns

# Searches through all queues in one step, for the entry of a record that its own queue does not have; remembered are
# at most so many that nobody has.
_SEARCHES_MAX = 4
_UNCLAIMED_MAX = 10_000


@dataclass(slots=True, frozen=True)
class ScrubParts:
    """What is read. `settled` gives the physical offset below which everything is durable and in its queue."""

    log: CommitLog
    queues: QueueTable
    config: StoreConfig
    io: StoreIo
    tombstones: Tombstones
    settled: Callable[[], int]
    # Queues whose numbers are known to differ from those of their records.
    shifted: frozenset[tuple[str, int]] = frozenset()


@dataclass(slots=True)
class ScrubStep:
    """What one step did: bytes behind it, whether the round is through, and what was wrong.

    `mended` and `unmended` are (topic, queue id, queue offset) of entries that did not lead to their records.
    """

    size: int = 0
    is_round_done: bool = False
    damage: list[Damage] = field(default_factory=list)
    mended: list[tuple[str, int, int]] = field(default_factory=list)
    unmended: list[tuple[str, int, int]] = field(default_factory=list)


class Scrubber:
    """One round after the other over a store."""

    def __init__(self, parts: ScrubParts) -> None:
        self._parts = parts
        self._log = parts.log
        # Where the next step reads, and where the round ends; equal: the next step begins a round.
        self._at = self._end = 0
        self._agreement = Agreement(parts.log, parts.queues)
        # Places of records that no queue claims, so that each is looked for once; and how many more this step may.
        self._unclaimed: set[int] = set()
        self._searches_left = 0
        # What the step under way has done.
        self._step = ScrubStep()

    def step(self) -> ScrubStep:
        """Read the next few records, at most about SLICE_SIZE bytes of them, or one that is larger."""
        step = self._step = ScrubStep()
        if self._at >= self._end:
            self._at, self._end = self._log.min_offset, self._parts.settled()
        begin = self._at = max(self._at, self._log.min_offset)
        self._searches_left = _SEARCHES_MAX
        if begin < self._end:
            self._at = self._through(begin)
        step.size = self._at - begin
        step.is_round_done = self._at >= self._end
        return step

    def _through(self, at: int) -> int:
        """Look at what begins at `at`; where to go on."""
        file = self._log.mapped.find(at)
        if file is None:
            following = [one.offset for one in self._log.mapped.files if one.offset > at]
            return min(following, default=self._end)
        known = [end for begin, end in self._log.damaged if begin <= at < end]
        if known:
            return max(known)
        try:
            found, following_at = self._reader().step(at, self._end)
        except OSError as failed:
            # The slice counts as damage, and the next step looks behind it.
            end = min(at + SLICE_SIZE, file.end, self._end)
            self.damage(
                Damage(at, end, str(file.data.path), f"it cannot be read: {failed.strerror or failed}")
            )
            return end
        if isinstance(found, Stretch):
            self._compare(found)
        elif found is not None:
            self._compare_record(found)
        return following_at

    def _reader(self) -> LogReader:
        largest = self._parts.config.body_size_max + _RECORD_OVERHEAD_MAX
        proof = Proof(sealed_from=self._log.checksum_from, record_size_max=largest)
        return LogReader(CallSource(self._log, SLICE_SIZE), self, proof, columns_only=True)

    # --- damage ----------------------------------------------------------------------------------------

    def damage(self, found: Damage) -> None:
        """Put aside what no proven record is in; for the reader."""
        if found.reason == FILE_MISSING:
            return  # recovery has named it, and there is nothing to put aside
        self._log.add_damaged(found.begin, found.end)
        self._step.damage.append(found)
        try:
            content = self._read_all(found)
        except OSError:
            content = b""
        put_aside(self._parts.io, self._parts.config.root, found, content)

    def _read_all(self, damage: Damage) -> bytes:
        file = self._log.mapped.find(damage.begin)
        return b"" if file is None else file.data.read(damage.begin - file.offset, damage.end - damage.begin)

    # --- queues ----------------------------------------------------------------------------------------

    def _compare(self, stretch: Stretch) -> None:
        """Look whether the entries of these records lead to them."""
        packed = stretch.entries(self._parts.config.delay_levels_ms)
        raw = packed.tobytes()
        places, offsets = stretch.physical_offsets.tolist(), stretch.queue_offsets.tolist()
        for topic, queue_id, members in stretch.queues():
            queue = self._parts.queues.get(topic, queue_id)
            if (topic, queue_id) in self._parts.shifted:
                continue
            alive_from = self._parts.tombstones.end_of(topic)
            if queue is None:
                for at in members.tolist():
                    if places[at] >= alive_from:
                        self._is_misnamed(places[at])
                continue
            if queue.is_batch:
                for at in members.tolist():
                    if places[at] >= alive_from:
                        expected = queue.packed(stretch.record(at), int(packed["tag_hash"][at]), offsets[at])
                        self._compare_one(queue, offsets[at], expected)
                continue
            if len(members) <= _FEW:
                for at in members.tolist():
                    if places[at] >= alive_from:
                        entry = raw[at * ENTRY_SIZE : (at + 1) * ENTRY_SIZE]
                        self._compare_one(queue, offsets[at], entry)
                continue
            chosen = members[stretch.physical_offsets[members] >= alive_from]
            self._compare_queue(queue, stretch.queue_offsets[chosen], packed[chosen])

    def _compare_record(self, record: ScannedRecord) -> None:
        """As _compare(), for one."""
        queue = self._parts.queues.get(record.topic, record.queue_id)
        if (
            not record.is_queued
            or (record.topic, record.queue_id) in self._parts.shifted
            or self._parts.tombstones.covers(record.topic, record.physical_offset)
        ):
            return
        if queue is None:
            self._is_misnamed(record.physical_offset)
            return
        levels = self._parts.config.delay_levels_ms
        tag = entry_tag(record.topic, record.properties, record.store_timestamp, levels)
        self._compare_one(queue, record.queue_offset, queue.packed(record, tag, record.queue_offset))

    def _compare_one(self, queue: ConsumeQueue, offset: int, expected: bytes) -> None:
        """With a thousand topics no queue has many records in one slice."""
        size = compared_size(queue.topic, queue.entry_size)
        present = queue.read(offset, 1)
        if len(present) and present[:size] != expected[:size]:
            self._mend(queue, offset, expected)
        elif not len(present) and offset >= queue.max_offset:
            self._is_misnamed(int.from_bytes(expected[:8], "big"))

    def _compare_queue(self, queue: ConsumeQueue, offsets: Ints, expected: NDArray[np.void]) -> None:
        at = 0
        while at < len(offsets):
            first = int(offsets[at])
            present = np.frombuffer(queue.read(first, len(offsets) - at), ENTRY_DTYPE)
            count = min(len(present), _leading_run(offsets[at:]))
            if not count:
                if first >= queue.max_offset:
                    self._is_misnamed(int(expected["physical_offset"][at]))
                at += 1  # else cleaned away meanwhile
                continue
            same = are_same(queue.topic, present[:count], expected[at : at + count])
            for index in np.flatnonzero(~same).tolist():
                self._mend(queue, first + index, expected[at + index].tobytes())
            at += count

    def _is_misnamed(self, place: int) -> bool:
        """Whether a record that its queue has no entry for is another queue's, by an entry there: then it is the
        record that is damaged."""
        header = header_at(self._log, place) if place not in self._unclaimed else None
        file = self._log.mapped.find(place)
        if header is None or file is None or self._searches_left <= 0:
            return False
        self._searches_left -= 1
        for queue in self._parts.queues:
            offset = place_in(queue, place)
            entry = queue.entry(offset) if offset is not None else None
            if offset is None or entry is None or entry.size != header.size:
                continue
            found = self._agreement.of_entry(queue, offset, header)
            if found is not None and found.of_record:
                self.damage(Damage(place, place + header.size, str(file.data.path), found.reason))
                return True
        if len(self._unclaimed) < _UNCLAIMED_MAX:
            self._unclaimed.add(place)
        return False

    def _mend(self, queue: ConsumeQueue, offset: int, packed: bytes) -> None:
        place = int.from_bytes(packed[:8], "big")
        if self._is_misnamed(place):
            return
        mended = queue.fits_again(offset, packed)
        if mended:
            assert len(packed) == queue.entry_size
            queue.write_again(offset, packed)
        (self._step.mended if mended else self._step.unmended).append((queue.topic, queue.queue_id, offset))


def _leading_run(offsets: Ints) -> int:
    """How many of the offsets follow each other without a gap from the first on."""
    following = np.flatnonzero(np.diff(offsets) != 1)
    return int(following[0]) + 1 if len(following) else len(offsets)
