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
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aerobee_proto.records import BLANK_MAGIC, SIZE_AND_MAGIC
from aerobee_store.agreement import Agreement, header_at, place_in
from aerobee_store.commit_log import CommitLog
from aerobee_store.config import StoreConfig
from aerobee_store.consume_queue import ENTRY_DTYPE, ENTRY_SIZE, ConsumeQueue
from aerobee_store.delay import SCHEDULE_TOPIC
from aerobee_store.io import StoreIo
from aerobee_store.log_walk import Damage
from aerobee_store.mapped_files import MappedFile
from aerobee_store.messages import RECORD_EXTRA_MAX
from aerobee_store.property_columns import Ints
from aerobee_store.queue_table import QueueTable
from aerobee_store.record_columns import Stretch, sound_records
from aerobee_store.record_scan import ScannedRecord, record_places, scan_record
from aerobee_store.recovery import put_aside
from aerobee_store.tombstones import Tombstones

__all__ = ["SLICE_SIZE", "ScrubParts", "ScrubStep", "Scrubber"]

# Bytes read by one step: about a millisecond of processor time.
SLICE_SIZE: Final = 256 << 10
_RECORD_OVERHEAD_MAX: Final = RECORD_EXTRA_MAX + 4096  # topic, properties and head of the largest record
_PLACE_FIELDS: Final = ("physical_offset", "size")
_PLACE_SIZE: Final = 12  # bytes of them, at the beginning of an entry
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

    `mended` and `unmended` are (topic, queue id, logical offset) of entries that did not lead to their records.
    """

    size: int = 0
    is_round_done: bool = False
    damage: list[Damage] = field(default_factory=list)
    mended: list[tuple[str, int, int]] = field(default_factory=list)
    unmended: list[tuple[str, int, int]] = field(default_factory=list)


class _Piece(NamedTuple):
    """Bytes of a log file, read at `begin` (a physical offset)."""

    file: MappedFile
    begin: int
    content: memoryview


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

    def step(self) -> ScrubStep:
        """Read the next few records, at most about SLICE_SIZE bytes of them, or one that is larger."""
        step = ScrubStep()
        if self._at >= self._end:
            self._at, self._end = self._log.min_offset, self._parts.settled()
        begin = self._at = max(self._at, self._log.min_offset)
        self._searches_left = _SEARCHES_MAX
        if begin < self._end:
            self._at = self._through(begin, step)
        step.size = self._at - begin
        step.is_round_done = self._at >= self._end
        return step

    def _through(self, at: int, step: ScrubStep) -> int:
        """Look at what begins at `at`; where to go on."""
        file = self._log.mapped.find(at)
        if file is None:
            following = [one.offset for one in self._log.mapped.files if one.offset > at]
            return min(following, default=self._end)
        known = [end for begin, end in self._log.damaged if begin <= at < end]
        if known:
            return max(known)
        try:
            piece = self._read(file, at, SLICE_SIZE)
            found = self._look(piece)
        except OSError as failed:
            return self._unreadable(file, at, step, f"it cannot be read: {failed.strerror or failed}")
        if isinstance(found, Stretch):
            self._compare(found, step)
            return found.end_offset
        if found == file.end:
            return found
        return self._damaged(piece, step)

    def _read(self, file: MappedFile, at: int, size: int) -> _Piece:
        end = min(at + size, file.end)
        return _Piece(file, at, memoryview(file.data.read(at - file.offset, end - at)))

    def _look(self, piece: _Piece) -> Stretch | int | None:
        """The sound records at the beginning; the file's end when a blank record leads there; None: neither."""
        found = self._sound(piece)
        if found is not None:
            return found
        if len(piece.content) < SIZE_AND_MAGIC.size:
            return None
        size, magic = SIZE_AND_MAGIC.unpack_from(piece.content)
        if magic == BLANK_MAGIC and piece.begin + size == piece.file.end:
            return piece.file.end
        largest = self._parts.config.body_size_max + _RECORD_OVERHEAD_MAX
        if len(piece.content) < size <= largest and piece.begin + size <= piece.file.end:
            return self._sound(self._read(piece.file, piece.begin, size))
        return None

    def _sound(self, piece: _Piece) -> Stretch | None:
        stop = min(self._end - piece.begin, len(piece.content))
        sealed_from = self._log.checksum_from
        return sound_records(piece.content, 0, piece.begin, stop=stop, sealed_from=sealed_from)

    # --- damage ----------------------------------------------------------------------------------------

    def _damaged(self, piece: _Piece, step: ScrubStep) -> int:
        """Put aside what begins where `piece` does; where the next proven record begins."""
        reason = self._reason(piece)
        end = self._next_record(piece)
        self._put_aside(Damage(piece.begin, end, piece.file.data.path, reason), step)
        return end

    def _reason(self, piece: _Piece) -> str:
        largest = self._parts.config.body_size_max + _RECORD_OVERHEAD_MAX
        whole = self._read(piece.file, piece.begin, largest)
        found = scan_record(whole.content, 0, piece.begin)
        return getattr(found, "reason", "whole-record checksum is missing")

    def _next_record(self, piece: _Piece) -> int:
        """Where the next proven record of the file begins; without one its end, or the round's."""
        limit = min(piece.file.end, self._end)
        at = piece.begin + 1
        while at < limit:
            window = self._read(piece.file, at, SLICE_SIZE)
            for position in record_places(window.content, 0, len(window.content)):
                if self._is_record(piece.file, at + position):
                    return min(at + position, limit)
            # A record's magic may begin in one window and end in the next; it lies 4 bytes into the record.
            at += max(len(window.content) - 8, 1) if at + len(window.content) < limit else limit
        return limit

    def _is_record(self, file: MappedFile, at: int) -> bool:
        head = self._read(file, at, SIZE_AND_MAGIC.size)
        size = SIZE_AND_MAGIC.unpack_from(head.content)[0] if len(head.content) == SIZE_AND_MAGIC.size else 0
        largest = self._parts.config.body_size_max + _RECORD_OVERHEAD_MAX
        if not 0 < size <= largest:
            return False
        sealed = self._log.checksum_from is not None and at >= self._log.checksum_from
        found = scan_record(self._read(file, at, size).content, 0, at, sealed=sealed)
        return isinstance(found, ScannedRecord)

    def _unreadable(self, file: MappedFile, at: int, step: ScrubStep, reason: str) -> int:
        """The disk gives an error: the slice counts as damage, and the next step looks behind it."""
        end = min(at + SLICE_SIZE, file.end, self._end)
        self._put_aside(Damage(at, end, file.data.path, reason), step)
        return end

    def _put_aside(self, damage: Damage, step: ScrubStep) -> None:
        self._log.add_damaged(damage.begin, damage.end)
        step.damage.append(damage)
        try:
            content = self._read_all(damage)
        except OSError:
            content = b""
        put_aside(self._parts.io, self._parts.config.root, damage, content)

    def _read_all(self, damage: Damage) -> bytes:
        file = self._log.mapped.find(damage.begin)
        return b"" if file is None else file.data.read(damage.begin - file.offset, damage.end - damage.begin)

    # --- queues ----------------------------------------------------------------------------------------

    def _compare(self, stretch: Stretch, step: ScrubStep) -> None:
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
                        self._is_misnamed(places[at], step)
                continue
            if queue.is_batch:
                for at in members.tolist():
                    if places[at] >= alive_from:
                        wanted = queue.packed(stretch.record(at), int(packed["tag_hash"][at]), offsets[at])
                        self._compare_one(queue, offsets[at], wanted, step)
                continue
            if len(members) <= _FEW:
                for at in members.tolist():
                    if places[at] >= alive_from:
                        entry = raw[at * ENTRY_SIZE : (at + 1) * ENTRY_SIZE]
                        self._compare_one(queue, offsets[at], entry, step)
                continue
            chosen = members[stretch.physical_offsets[members] >= alive_from]
            self._compare_queue(queue, stretch.queue_offsets[chosen], packed[chosen], step)

    def _compare_one(self, queue: ConsumeQueue, offset: int, wanted: bytes, step: ScrubStep) -> None:
        """With a thousand topics no queue has many records in one slice."""
        size = _PLACE_SIZE if queue.topic == SCHEDULE_TOPIC else queue.entry_size
        present = queue.read(offset, 1)
        if len(present) and present[:size] != wanted[:size]:
            self._mend(queue, offset, wanted, step)
        elif not len(present) and offset >= queue.max_offset:
            self._is_misnamed(int.from_bytes(wanted[:8], "big"), step)

    def _compare_queue(
        self, queue: ConsumeQueue, offsets: Ints, wanted: NDArray[np.void], step: ScrubStep
    ) -> None:
        at = 0
        while at < len(offsets):
            first = int(offsets[at])
            present = np.frombuffer(queue.read(first, len(offsets) - at), ENTRY_DTYPE)
            count = min(len(present), _leading_run(offsets[at:]))
            if not count:
                if first >= queue.max_offset:
                    self._is_misnamed(int(wanted["physical_offset"][at]), step)
                at += 1  # else cleaned away meanwhile
                continue
            same = np.ones(count, np.bool_)
            names = _PLACE_FIELDS if queue.topic == SCHEDULE_TOPIC else (*_PLACE_FIELDS, "tag_hash")
            for name in names:
                same &= present[name][:count] == wanted[name][at : at + count]
            for index in np.flatnonzero(~same).tolist():
                self._mend(queue, first + index, wanted[at + index].tobytes(), step)
            at += count

    def _is_misnamed(self, place: int, step: ScrubStep) -> bool:
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
                damage = Damage(place, place + header.size, file.data.path, found.reason)
                self._put_aside(damage, step)
                return True
        if len(self._unclaimed) < _UNCLAIMED_MAX:
            self._unclaimed.add(place)
        return False

    def _mend(self, queue: ConsumeQueue, offset: int, packed: bytes, step: ScrubStep) -> None:
        place = int.from_bytes(packed[:8], "big")
        if self._is_misnamed(place, step):
            return
        mended = queue.fits_again(offset, packed)
        if mended:
            assert len(packed) == queue.entry_size
            queue.write_again(offset, packed)
        (step.mended if mended else step.unmended).append((queue.topic, queue.queue_id, offset))


def _leading_run(offsets: Ints) -> int:
    """How many of the offsets follow each other without a gap from the first on."""
    following = np.flatnonzero(np.diff(offsets) != 1)
    return int(following[0]) + 1 if len(following) else len(offsets)
