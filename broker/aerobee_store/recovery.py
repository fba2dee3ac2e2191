"""Bringing log, queues and index back to one truth after any kind of stop.

Touches  everything in the store folder but config/; runs once, inside the store's lock, before any reader.

The log is the truth. It is walked from a place below which log, queues and index are known to be on disk
(the watermark of the checkpoint; without one, as in a folder that an official broker wrote, the whole log
when it is small, else a file chosen by the checkpoint's times) and every record on the way is proven.

- A bad place with proven records behind it is damage: it is copied to quarantine/, named in the report and
  stepped over; what follows stays. A bad place with nothing proven behind it is the torn end: it is cut and
  zeroed, durable, so that it cannot come back behind later writes.
- An end of the log below what was known to be on disk is loss: recovery refuses, unless the operator accepts
  it by name.
- Each queue is compared, entry by entry, with the records on the way. From the first entry that does not
  agree on, the queue is cut and dispatched again; a queue that misses records from before the walk makes the
  walk start one file earlier.
- A queue that was there when the store was closed in good order, and of which files are missing, is built again from
  the log, and gives out no number twice, also where the log has none of its messages any more.
- A record that names another queue or number than the entry that leads to it is damaged, if no entry there confirms
  it: RocketMQ has no checksum over its name.
- The index keeps what its own recovery proves, and is given all records behind that.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from aerobee_proto.javahash import index_key_hash
from aerobee_proto.properties import find_property
from aerobee_proto.records import RECORD_SIZE_MIN, RecordHeader
from aerobee_store import failpoints
from aerobee_store.agreement import Agreement, header_at
from aerobee_store.checkpoint import Checkpoint, Watermark
from aerobee_store.claims import Claims
from aerobee_store.commit_log import CommitLog
from aerobee_store.config import StoreConfig
from aerobee_store.consume_queue import (
    ENTRY,
    ENTRY_DTYPE,
    ENTRY_SIZE,
    HOLE_SIZE,
    ConsumeQueue,
    ConsumeQueueEntry,
)
from aerobee_store.delay import SCHEDULE_TOPIC, entry_tag
from aerobee_store.errors import CorruptStore
from aerobee_store.index import (
    HashedKeys,
    IndexedRecord,
    IndexService,
    KeyedRecord,
    hashed_keys,
    joined_keys,
    key_texts,
)
from aerobee_store.io import StoreIo
from aerobee_store.log_walk import Damage, LogWalker
from aerobee_store.property_columns import Ints
from aerobee_store.queue_list import ListedQueue, QueueList
from aerobee_store.queue_table import QueueTable
from aerobee_store.record_columns import Stretch
from aerobee_store.record_scan import ScannedRecord
from aerobee_store.tombstones import Tombstones

__all__ = ["REBUILD_MARKER", "STEPS", "Damage", "RecoveryReport", "put_aside", "recover"]

_TRANSACTION = 0xC
_PREPARED, _ROLLBACK = 0x4, 0xC
# Bytes of packed entries kept per queue before they are written, and keys offered to the index at once.
_QUEUE_BATCH_SIZE = 64 << 10
_PLACE_SIZE = 12  # bytes of an entry that say where the record is and how long
_INDEX_BATCH = 1 << 17
# Records of a queue that are looked at one by one before many at a time are tried again.
_CAREFUL_RUN_MAX = 1024
# Bytes of the log whose keys may have to be indexed again when a recovery is interrupted.
_SAVE_STEP = 1 << 30
_COMPARE_WINDOW = 4096
# Bytes of entries that are kept for the walk when the queues are looked at, so that not each has to be opened again.
_KEPT_MAX = 64 << 20
# Below the store's root: copies of damaged stretches, named <first offset>-<one past the last>.
QUARANTINE = "quarantine"
# Below the store's root while a rebuild is under way; whoever completes a recovery removes it.
REBUILD_MARKER = "rebuild"
# What recovery goes through the log for, in order.
STEPS = ("log and queues", "index")
ACCEPT_LOSS = "restore the missing bytes from a copy, or start once with accept_loss to go on without them"


@dataclass(slots=True)
class RecoveryReport:
    """What recovery found and did; offsets are physical ones, counts are in what their name says."""

    aborted: bool = False
    start_offset: int = 0
    min_offset: int = 0
    end_offset: int = 0
    walked_records: int = 0
    dispatched_records: int = 0
    cut_entries: int = 0
    torn_bytes: int = 0
    duplicate_records: int = 0
    renumbered_records: int = 0
    hole_entries: int = 0
    orphan_entries: int = 0
    indexed_keys: int = 0
    removed_index_files: tuple[str, ...] = ()
    last_store_timestamp: int = 0
    # (topic, queue id, index - queue offset of the records)
    shifted_queues: list[tuple[str, int, int]] = field(default_factory=list)
    # (topic, queue id, first logical offset, count) of entries that no record stands behind any more
    dropped: list[tuple[str, int, int, int]] = field(default_factory=list)
    # (topic, queue id, file, what was wrong with it) of queues that were built again
    cut_queues: list[tuple[str, int, str, str]] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


class _StartEarlier(Exception):
    """A queue misses records from before the walk; it has all of those that end at or below `offset`."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


@dataclass(slots=True, frozen=True)
class Parts:
    """What recovery works on: everything loaded, nothing recovered."""

    log: CommitLog
    queues: QueueTable
    index: IndexService
    checkpoint: Checkpoint
    config: StoreConfig
    io: StoreIo
    # Topics that were deleted: their records are in no queue.
    tombstones: Tombstones | None = None
    # Told the name of the step (a value of STEPS) and how many more bytes of the log it is through with.
    advance: Callable[[str, int], None] = lambda _step, _size: None


def recover(parts: Parts, *, aborted: bool) -> RecoveryReport:
    """Make log, queues and index agree; everything that is left is durable on return.

    Raises CorruptStore, with nothing changed but queue and index files that the log can rebuild, when
    records are missing that were known to be on disk and the config does not accept the loss.
    """
    if parts.config.rebuild:
        _start_over(parts)
    return _Recovery(parts, aborted).run()


def _start_over(parts: Parts) -> None:
    """Forget what is known of queues and index, unless an earlier run did and was interrupted behind that."""
    marker = parts.config.root / REBUILD_MARKER
    if parts.io.read_bytes(marker) is not None:
        return
    checkpoint = parts.checkpoint
    known = checkpoint.watermark or Watermark(0, 0, 0)
    checkpoint.write(checkpoint.stamps, known._replace(queue_end=0, index_end=0, index_last=-1))
    parts.index.destroy()
    parts.io.replace_bytes(marker, b"aerobee store repair\n", keep_previous=False)


class _Recovery:
    def __init__(self, parts: Parts, aborted: bool) -> None:
        self._parts = parts
        self._log = parts.log
        self._config = parts.config
        self._report = RecoveryReport(aborted=aborted)
        self._watermark = parts.checkpoint.watermark
        if self._watermark is not None and self._watermark.checksum_from >= 0:
            self._log.checksum_from = self._watermark.checksum_from
        # What earlier starts have put aside already.
        self._log.damaged = quarantined(parts.io, parts.config.root / QUARANTINE)
        # The queues there were when the store was closed in good order, if that is known; those of which files or
        # entries went away since then.
        self._listed: dict[tuple[str, int], ListedQueue] = {}
        self._missing: dict[tuple[str, int], ListedQueue] = {}
        self._queue_list = QueueList(parts.config.root, parts.io)

    def run(self) -> RecoveryReport:
        report = self._report
        if not self._log.mapped.files:
            self._recover_empty()
            return report
        emptied = [] if self._report.aborted else self._parts.queues.emptied
        self._see_what_is_missing()
        if self._parts.queues.cut or emptied or self._missing:
            self._report.cut_queues += [
                (queue.topic, queue.queue_id, "", "its last file was empty") for queue in emptied
            ]
            self._give_up_cut_queues()
            self._keep_list()
            start = self._log.min_offset
        else:
            start = self._start()
        while True:
            try:
                end = self._recover_from(start)
                break
            except _StartEarlier as wish:
                start = self._earlier(start, wish.offset)
                self._distrust(start)
                self._keep_list()
        failpoints.hit("recovery.walked")
        self._quarantine()
        self._report.torn_bytes = self._log.set_end(end)
        failpoints.hit("recovery.cut")
        report.start_offset, report.end_offset = start, end
        report.min_offset = self._log.min_offset
        self._parts.queues.cut_at_physical(end)
        self._keep_all_numbers(end)
        self._parts.queues.correct_min_offsets(self._log.min_offset)
        self._recover_index(start, end)
        failpoints.hit("recovery.indexed")
        self._make_durable()
        failpoints.hit("recovery.durable")
        return report

    def _give_up_cut_queues(self) -> None:
        """What queues of which somebody cut a file had is asked of the log, from its beginning."""
        for queue, wrong in self._parts.queues.cut:
            self._report.cut_queues.append((queue.topic, queue.queue_id, str(wrong.path), wrong.reason))
        self._distrust(0)
        self._parts.queues.drop_cut()

    def _see_what_is_missing(self) -> None:
        """Compare the queues with those there were when the store was closed, if these are known."""
        parts, mark = self._parts, self._watermark
        if mark is None or parts.config.rebuild:
            return
        there_were = self._queue_list.load(parts.checkpoint.generation, mark.log_end)
        self._listed = {(listed.topic, listed.queue_id): listed for listed in there_were}
        told = {(queue.topic, queue.queue_id) for queue, _ in parts.queues.cut}
        told |= {(queue.topic, queue.queue_id) for queue in parts.queues.emptied}
        for key, listed in self._listed.items():
            wrong = listed.wrong(parts.queues.get(*key))
            if wrong is None:
                continue
            self._missing[key] = listed
            if key not in told:
                self._tell_cut(*key, wrong)

    def _tell_cut(self, topic: str, queue_id: int, wrong: str) -> None:
        folder = self._parts.queues.folder_of(topic) / str(queue_id)
        self._report.cut_queues.append((topic, queue_id, str(folder), wrong))

    def _keep_list(self) -> None:
        """What there was is known to the next start too, if this one is interrupted: a checkpoint made it void."""
        if self._missing and self._watermark is not None:
            generation = self._parts.checkpoint.generation
            self._queue_list.save(self._listed.values(), generation, self._watermark.log_end)

    def _is_short(self, queue: ConsumeQueue, *, is_broken: bool, is_walked: bool) -> bool:
        """Whether a queue does not end where it ended when all of it was on disk, or before that, after the walk.

        Only what was damaged on the disk can do that. `is_broken` is what can be seen of it without a list.
        """
        key = queue.topic, queue.queue_id
        listed = self._listed.get(key)
        if listed is None:
            if is_broken:
                self._tell_cut(*key, f"its entries from {queue.max_offset} on are damaged")
            return is_broken
        if queue.max_offset == listed.end or (is_walked and queue.max_offset > listed.end):
            return False
        if key not in self._missing:
            self._missing[key] = listed
            ended = f"it had entries up to {listed.end} when the store was closed"
            self._tell_cut(*key, f"{ended}, and they are damaged: what is left ends at {queue.max_offset}")
        return True

    def _keep_all_numbers(self, end: int) -> None:
        if not self._missing:
            return
        for listed in self._missing.values():
            self._keep_numbers(listed, end)
        # The next checkpoint, which may be the index's, makes the list void.
        self._parts.queues.flush()

    def _keep_numbers(self, listed: ListedQueue, end: int) -> None:
        """The queue goes on where it ended, also when the log, which ends at `end`, has less of it: numbers of messages
        that were cleaned away, or cannot be read, stay taken by entries that lead to no record."""
        queue = self._parts.queues.get_or_create(listed.topic, listed.queue_id)
        count = listed.end - queue.max_offset
        if count <= 0:
            return
        if queue.max_offset == 0:
            count = 1
        if end - max(queue.last_physical_end, 0) < count:
            self._lose(
                end,
                f"queue {listed.queue_id} of {listed.topic} had entries up to {listed.end} when the store was closed;"
                f" its files are not there, and the log has its messages up to {queue.max_offset}",
            )
            return
        queue.put_entries(listed.end - count, queue.holes(listed.end - count, count, end))
        self._report.hole_entries += count

    # --- an empty log ----------------------------------------------------------------------------------

    def _recover_empty(self) -> None:
        """Without a log nothing in queues and index points anywhere: both start again.

        That is right for a folder that never had a message, and else the loss of all of them: most often
        a disk that is not mounted or a wrong path.
        """
        known = self._watermark.log_end if self._watermark is not None else 0
        filled = sum(1 for queue in self._parts.queues if queue.file_spans) + len(self._parts.queues.cut)
        if known > 0 or filled > 0:
            self._lose(
                0, f"there is no log file, but {filled} queues have entries ({known} bytes were flushed)"
            )
        self._log.set_end(0)
        self._parts.queues.drop_cut()
        self._parts.queues.destroy()
        self._parts.index.destroy()

    def _lose(self, offset: int, reason: str) -> None:
        if not self._config.accept_loss:
            raise CorruptStore(self._log.folder, offset, reason, ACCEPT_LOSS)
        self._report.lost.append(reason)

    # --- where to start --------------------------------------------------------------------------------

    def _start(self) -> int:
        mapped = self._log.mapped
        mark = self._watermark
        if mark is not None and mark.log_end <= mapped.end_offset:
            return max(mark.all_end, mapped.min_offset)
        if mapped.end_offset - mapped.min_offset <= self._config.full_walk_size_max:
            return mapped.min_offset
        if not self._report.aborted:
            file = mapped.find(max(self._parts.queues.last_physical_end, 0))
            return file.offset if file is not None else mapped.min_offset
        return self._start_by_time()

    def _start_by_time(self) -> int:
        """The newest file that begins with a record that was on disk at the checkpoint, else the oldest."""
        limit = self._parts.checkpoint.stamps.start_timestamp
        for file in reversed(self._log.mapped.files):
            first = self._log.scan_file(file, 0)
            if isinstance(first, ScannedRecord) and first.store_timestamp <= limit:
                return file.offset
        return self._log.mapped.min_offset

    def _distrust(self, start: int) -> None:
        """The watermark was wrong about the queues; a crash from here on must not make it right again."""
        mark = self._watermark
        if mark is not None:
            checkpoint = self._parts.checkpoint
            checkpoint.write(checkpoint.stamps, mark._replace(queue_end=min(mark.queue_end, start)))

    def _earlier(self, start: int, offset: int) -> int:
        """Where a file begins, before `start` and not behind `offset` if the log reaches back so far."""
        earlier = [f.offset for f in self._log.mapped.files if f.offset < start]
        assert earlier, "asked for an earlier start at the beginning of the log"
        return max((at for at in earlier if at <= offset), default=earlier[0])

    # --- the walk --------------------------------------------------------------------------------------

    def _recover_from(self, start: int) -> int:
        """Prove the log from `start`, bring the queues to its state; where the log ends."""
        report = self._report
        report.damage, report.dropped, report.shifted_queues = [], [], []
        report.walked_records = report.dispatched_records = report.duplicate_records = 0
        report.renumbered_records = report.hole_entries = report.orphan_entries = 0
        walker = LogWalker(self._log, report.damage, property_crc=self._config.verify_property_crc)
        first = self._log.mapped.min_offset
        repair = _QueueRepair(self._parts, report, start, self._is_short, may_start_earlier=start > first)
        repair.prepare()
        failpoints.hit("recovery.prepared")
        for found in walker.stretches(start):
            if isinstance(found, ScannedRecord):
                report.walked_records += 1
                newest, size = found.store_timestamp, found.size
                repair.see(found)
            else:
                report.walked_records += found.count
                newest = int(found.store_timestamps.max())
                size = found.end_offset - int(found.physical_offsets[0])
                repair.see_many(found)
            self._parts.advance(STEPS[0], size)
            report.last_store_timestamp = max(report.last_store_timestamp, newest)
        # Before entries go whose records may come back from a copy.
        self._check_loss(walker.end)
        repair.finish(walker.end)
        return walker.end

    def _check_loss(self, end: int) -> None:
        mark = self._watermark
        if mark is not None and end < mark.log_end:
            self._lose(end, f"the log ends here, but it was on disk up to {mark.log_end}")

    def _quarantine(self) -> None:
        """Keep a copy of what could not be read; its name keeps the place from being served, also later."""
        folder = self._config.root / QUARANTINE
        for damage in self._report.damage:
            piece = self._log.mapped.find(damage.begin)
            if piece is not None:
                begin = damage.begin - piece.offset
                content = bytes(piece.view[begin : damage.end - piece.offset])
                put_aside(self._parts.io, self._config.root, damage, content)
        self._log.damaged = quarantined(self._parts.io, folder)

    # --- index -----------------------------------------------------------------------------------------

    def _recover_index(self, start: int, end: int) -> None:
        if not self._config.index_enabled:
            return
        index = self._parts.index
        mark = self._watermark if self._watermark is not None and self._watermark.log_end <= end else None
        proven = mark.index_end if mark is not None else 0
        # Between the newest entry that was on disk and the watermark there is none, whatever a torn page says.
        known = min(mark.index_last + 1, proven) if mark is not None else 0
        found = index.recover(
            # Behind a watermark it is quicker to index again than to prove each entry by its record.
            known if mark is not None else end,
            log_min=self._log.min_offset,
            proven_offset=known,
            probe=record_probe(self._log),
            settled=not self._report.aborted,
        )
        self._report.removed_index_files = found.removed_files
        begin = found.end_offset
        if begin < self._log.min_offset:
            small = end - self._log.min_offset <= self._config.full_walk_size_max
            begin = self._log.min_offset if small else start
        if mark is not None and (found.cut_entries or found.end_offset < mark.index_last):
            self._distrust_index(found.end_offset)
        if mark is not None and found.end_offset >= mark.index_last:
            # Nothing of what was on disk is missing, but maybe keys of the newest record, when an earlier recovery
            # was interrupted. Records from there up to what was on disk have no keys.
            newest = self._log.scan(begin)
            self._index_from(begin, begin + newest.size if newest is not None else begin)
            begin = max(begin, proven)
        self._index_from(begin, end)

    def _distrust_index(self, end_offset: int) -> None:
        """Entries from `end_offset` on are written again: until that is done they are not known to be on disk."""
        checkpoint = self._parts.checkpoint
        mark = checkpoint.watermark
        assert mark is not None
        known = min(mark.index_end, max(end_offset, 0))
        checkpoint.write(checkpoint.stamps, mark._replace(index_end=known, index_last=known - 1))

    def _index_from(self, begin: int, end: int) -> None:
        """Offer every record in [begin, end); what is indexed already is passed over."""
        batch: list[HashedKeys] = []
        count = 0
        at = saved_at = begin
        walker = LogWalker(self._log, [], proven=True)
        for found in walker.stretches(begin, end):
            keys = self._keys_of(found)
            count += len(keys.hashes)
            batch.append(keys)
            if count >= _INDEX_BATCH:
                self._put_keys(batch)
                batch, count = [], 0
                if walker.end - saved_at >= _SAVE_STEP:
                    saved_at = walker.end
                    self._save(saved_at, end)
            self._parts.advance(STEPS[1], walker.end - at)
            at = walker.end
        if count:
            self._put_keys(batch)

    def _put_keys(self, batch: list[HashedKeys]) -> None:
        self._report.indexed_keys += self._parts.index.put_hashed(joined_keys(batch))

    def _save(self, index_end: int, end: int) -> None:
        """A recovery that is interrupted from here on goes on here: everything but the rest of the index is done."""
        self._make_durable()
        sealed_from = -1 if self._log.checksum_from is None else self._log.checksum_from
        mark = Watermark(end, end, index_end, self._parts.index.end_offset, sealed_from)
        self._parts.checkpoint.write(self._parts.checkpoint.stamps, mark)

    def _keys_of(self, found: Stretch | ScannedRecord) -> HashedKeys:
        if isinstance(found, ScannedRecord):
            keyed = keyed_record(found)
            is_kept = keyed is not None and not self._log.is_damaged(found.physical_offset)
            return hashed_keys([keyed] if keyed is not None and is_kept else [])
        begin, end = int(found.physical_offsets[0]), found.end_offset
        near = [(low, high) for low, high in self._log.damaged if low < end and high > begin]
        if not near:
            return found.keys()
        kept = np.ones(found.count, np.bool_)
        for low, high in near:
            kept &= (found.physical_offsets < low) | (found.physical_offsets >= high)
        return found.keys(kept)

    def _make_durable(self) -> None:
        """What was found in the page cache may never have reached the disk."""
        start = self._report.start_offset
        for file in self._log.mapped.files:
            if file.end > start:
                file.data.sync()
        self._parts.queues.flush()
        self._parts.index.flush()


# --- queues ------------------------------------------------------------------------------------------------


class _Cursor:
    """Where the comparison of one queue with the log stands."""

    __slots__ = (
        "found_max",
        "next_offset",
        "pending",
        "pending_first",
        "queue",
        "shift",
        "view",
        "view_first",
        "writing",
    )

    def __init__(self, queue: ConsumeQueue, next_offset: int) -> None:
        self.queue = queue
        # Where the queue ended before recovery changed it.
        self.found_max = queue.max_offset
        # Entries before it agree with the log.
        self.next_offset = next_offset
        # index - queue offset of the record, in a queue that arrived shifted; else 0.
        self.shift = 0
        # True from the first disagreement on: the queue was cut at next_offset and is written again.
        self.writing = next_offset >= queue.max_offset
        self.pending = bytearray()  # packed entries from pending_first on
        self.pending_first = next_offset
        # Packed entries from view_first on, for comparing.
        self.view: memoryview = memoryview(b"")
        self.view_first = next_offset

    def last_physical_end(self) -> int:
        """Where the record before next_offset ends, for a queue that is being written."""
        if self.pending:
            physical_offset, size, _ = ENTRY.unpack_from(
                self.pending, len(self.pending) - self.queue.entry_size
            )
            return int(physical_offset + size)
        return max(self.queue.last_physical_end, 0)

    def present(self) -> memoryview:
        """The packed entry at next_offset, empty if there is none."""
        return self.presents(1)

    def presents(self, count: int) -> memoryview:
        """Packed entries from next_offset on, at most `count`; empty if there are none."""
        if self.queue.is_batch:
            return self.queue.read(self.next_offset, count)
        at = (self.next_offset - self.view_first) * ENTRY_SIZE
        if not 0 <= at < len(self.view):
            self.view = self.queue.read(self.next_offset, _COMPARE_WINDOW)
            self.view_first = self.next_offset
            at = 0
        return self.view[at : at + count * ENTRY_SIZE]

    def keep(self, room: int) -> int:
        """Read what presents() is going to be asked for, if it fits into `room` bytes; how many it took."""
        found = self.queue.read(self.next_offset, _COMPARE_WINDOW) if not self.queue.is_batch else b""
        if len(found) > room:
            return 0
        self.view, self.view_first = memoryview(bytes(found)), self.next_offset
        return len(found)


class _IsShort(Protocol):
    def __call__(self, queue: ConsumeQueue, *, is_broken: bool, is_walked: bool) -> bool: ...


class _QueueRepair:
    """Compares the queues with the records of a walk, and rewrites what does not agree."""

    def __init__(
        self,
        parts: Parts,
        report: RecoveryReport,
        start: int,
        is_short: "_IsShort",
        *,
        may_start_earlier: bool,
    ) -> None:
        self._is_short = is_short
        self._queues = parts.queues
        self._log = parts.log
        self._report = report
        self._start = start
        self._may_start_earlier = may_start_earlier
        self._levels = parts.config.delay_levels_ms
        self._tombstones = parts.tombstones
        self._agreement = Agreement(parts.log, parts.queues)
        self._claims: Claims | None = None  # made by prepare()
        self._cursors: dict[tuple[str, int], _Cursor] = {}

    def prepare(self) -> None:
        """Find the end of every queue and the entry from which the walk will judge it.

        Queue after queue, as there may be many more than files may be open: all that is read of one is read at once.
        """
        claims = Claims(self._log, self._queues, self._prepared())
        self._claims = claims if len(claims) else None

    def _prepared(self) -> Iterator[tuple[ConsumeQueue, int]]:
        room = _KEPT_MAX
        for queue in self._queues:
            doubts: list[int] = []
            recovery = queue.recover(
                self._verify(queue, doubts),
                log_min=self._log.mapped.min_offset,
                proven_offset=self._start,
                walked_from=self._start,
            )
            self._report.cut_entries += recovery.cut_entries
            if recovery.gaps:
                queue.cut_at(recovery.gaps[0][0])
            if self._is_dead(queue):
                queue.cut_at(0)
            elif (doubts or recovery.gaps) and self._may_start_earlier:
                raise _StartEarlier(max(queue.last_physical_end, 0))
            elif self._is_short(queue, is_broken=recovery.is_broken, is_walked=False):
                sure = self._before_last(queue)
                queue.cut_at(queue.first_of(queue.max_offset - 1))
                self._see_from(sure)
            cursor = self._cursors[queue.topic, queue.queue_id] = self._cursor(queue)
            room -= cursor.keep(room)
            yield queue, cursor.next_offset

    def _before_last(self, queue: ConsumeQueue) -> int:
        """Where the record before that of the last entry begins; of a damaged queue, where the last entry itself may be
        what is damaged, though it looks sound."""
        before = queue.entry(queue.first_of(queue.max_offset - 1) - 1)
        return before.physical_offset if before is not None else 0

    def _see_from(self, physical_offset: int) -> None:
        """The walk has to see the records from there on."""
        if self._may_start_earlier and physical_offset < self._start:
            raise _StartEarlier(physical_offset)

    def _is_dead(self, queue: ConsumeQueue) -> bool:
        """Whether all of it was deleted with its topic, and only the files came back."""
        if self._tombstones is None or not self._tombstones.end_of(queue.topic):
            return False
        # Not the newest entry: that may be what a lost page held before.
        known = queue.entry(self._first_walked(queue) - 1) or queue.entry(queue.min_offset)
        return known is not None and self._tombstones.covers(queue.topic, known.physical_offset)

    def _verify(self, queue: ConsumeQueue, doubts: list[int]) -> Callable[[ConsumeQueueEntry, int], bool]:
        """Entries of records before the walk must hold now.

        `doubts` gets the logical offsets of those that do not.
        """

        def verify(entry: ConsumeQueueEntry, offset: int) -> bool:
            place = entry.physical_offset
            if entry.size == HOLE_SIZE:
                return True
            header = header_at(self._log, place)
            if (
                header is not None
                and _is_of(header, queue, entry)
                and self._agreement.of_entry(queue, offset, header) is None
            ):
                return True
            if self._log.is_damaged(place) or self._log.mapped.find(place) is None:
                return True
            doubts.append(offset)
            return False

        return verify

    def _first_walked(self, queue: ConsumeQueue) -> int:
        """Logical offset of the first entry whose record the walk will see."""
        low, high = (queue.file_spans[0].start, queue.max_offset) if queue.file_spans else (0, 0)
        low = max(low, queue.min_offset)
        while low < high:
            middle = (low + high) // 2
            entry = queue.entry(middle)
            if entry is not None and entry.physical_offset < self._start:
                low = middle + 1
            else:
                high = middle
        return low

    def _cursor(self, queue: ConsumeQueue) -> _Cursor:
        low = self._first_walked(queue)
        cursor = _Cursor(queue, low)
        cursor.shift = self._shift(queue, low)
        if cursor.shift:
            self._report.shifted_queues.append((queue.topic, queue.queue_id, cursor.shift))
        return cursor

    def _shift(self, queue: ConsumeQueue, offset: int) -> int:
        """By how much the queue's numbers differ from its records', if two neighbours say the same.

        The numbers of a batch queue are in its entries: they cannot move all together, only be damaged.
        """
        if queue.is_batch:
            return 0
        asked = {offset - 1, offset - 2, queue.max_offset - 1, queue.max_offset - 2}
        found = {self._shift_at(queue, at) for at in asked}
        found.discard(None)
        return found.pop() or 0 if len(found) == 1 else 0

    def _shift_at(self, queue: ConsumeQueue, offset: int) -> int | None:
        entry = queue.entry(offset)
        header = header_at(self._log, entry.physical_offset) if entry is not None else None
        if entry is None or header is None or not _is_of(header, queue, entry):
            return None
        return queue.first_of(offset) - header.queue_offset

    # --- during the walk -------------------------------------------------------------------------------

    def see(self, record: ScannedRecord) -> None:
        """The next record of the log."""
        if record.sys_flag & _TRANSACTION in (_PREPARED, _ROLLBACK):
            return
        if self._tombstones is not None and self._tombstones.covers(record.topic, record.physical_offset):
            return
        place = np.array([record.physical_offset]), np.array([record.size]), np.array([record.queue_offset])
        if not self._named_rightly(record.topic, record.queue_id, *place).all():
            return
        self._see(self._cursor_of(record.topic, record.queue_id), record)

    def _named_rightly(
        self, topic: str, queue_id: int, places: Ints, sizes: Ints, offsets: Ints
    ) -> NDArray[np.bool_]:
        """Which of these records, in their order, are what they say; the others are damaged from now on."""
        rightly = np.ones(len(places), np.bool_)
        cursor = self._cursors.get((topic, queue_id))
        if self._claims is None:
            return rightly
        shift, following = (cursor.shift, cursor.next_offset) if cursor is not None else (0, 0)
        doubtful = self._claims.doubtful(topic, queue_id, places, sizes, offsets + shift)
        for at in np.flatnonzero(doubtful).tolist():
            place, size, offset = int(places[at]), int(sizes[at]), int(offsets[at]) + shift
            fits = offset == following + int(rightly[:at].sum())
            reason = self._claims.misnamed(topic, queue_id, place, size, offset, fits=fits)
            file = self._log.mapped.find(place)
            if reason is not None and file is not None:
                rightly[at] = False
                self._report.damage.append(Damage(place, place + size, file.data.path, reason))
        return rightly

    def _cursor_of(self, topic: str, queue_id: int) -> _Cursor:
        cursor = self._cursors.get((topic, queue_id))
        if cursor is None:
            queue = self._queues.get_or_create(topic, queue_id)
            cursor = self._cursors[topic, queue_id] = _Cursor(queue, 0)
        return cursor

    def see_many(self, stretch: Stretch) -> None:
        """As see() for each of the next records of the log, but queue after queue."""
        packed = stretch.entries(self._levels)
        groups: list[tuple[str, int, Ints]] = []
        for topic, queue_id, members in stretch.queues():
            if self._tombstones is not None and (dead_end := self._tombstones.end_of(topic)):
                members = members[stretch.physical_offsets[members] >= dead_end]
            if self._claims is not None:
                places, sizes = stretch.physical_offsets[members], stretch.sizes[members]
                members = members[
                    self._named_rightly(topic, queue_id, places, sizes, stretch.queue_offsets[members])
                ]
            if len(members):
                groups.append((topic, queue_id, members))
        for topic, queue_id, members in groups:  # all damage of the stretch is known
            self._see_run(self._cursor_of(topic, queue_id), stretch, packed, members)

    def _see_run(self, cursor: _Cursor, stretch: Stretch, packed: NDArray[np.void], members: Ints) -> None:
        """Records of one queue: many at a time while they follow each other, one by one where they do not."""
        careful = 1
        while len(members):
            step = 0
            if not cursor.queue.is_batch:
                step = self._many(cursor, stretch.queue_offsets[members], packed[members])
            if step:
                careful = 1
            else:
                step = min(careful, len(members))
                for member in members[:step].tolist():
                    self._see(cursor, stretch.record(member))
                careful = min(2 * careful, _CAREFUL_RUN_MAX)
            members = members[step:]

    def _many(self, cursor: _Cursor, offsets: Ints, packed: NDArray[np.void]) -> int:
        """How many of the next records are as they should be: their entries are there, or written now."""
        following = np.arange(cursor.next_offset, cursor.next_offset + len(offsets))
        count = _leading_true(offsets + cursor.shift == following)
        if cursor.writing or not count:
            if count:
                self._append(cursor, packed[:count].tobytes())
            return count
        present = np.frombuffer(cursor.presents(count), ENTRY_DTYPE)
        packed = packed[: len(present)]
        same = (present["physical_offset"] == packed["physical_offset"]) & (present["size"] == packed["size"])
        # Due times of delayed messages stay as they were given, whatever the delay levels are now.
        if cursor.queue.topic != SCHEDULE_TOPIC:
            same &= present["tag_hash"] == packed["tag_hash"]
        count = _leading_true(same)
        cursor.next_offset += count
        return count

    def _see(self, cursor: _Cursor, record: ScannedRecord) -> None:
        tag = entry_tag(record.topic, record.properties, record.store_timestamp, self._levels)
        queue = cursor.queue
        packed = queue.packed(record, tag, record.queue_offset + cursor.shift)
        if not cursor.writing:
            self._skip_damaged(cursor, record.physical_offset)
            self._skip_orphans(cursor, record, packed)
            # Due times of delayed messages stay as they were given, whatever the delay levels are now.
            compared = _PLACE_SIZE if record.topic == SCHEDULE_TOPIC else queue.entry_size
            if cursor.present()[:compared] == packed[:compared]:
                cursor.next_offset += queue.count_in(packed)
                return
            self._disagree(cursor, record)
        self._write(cursor, record, tag)

    def _skip_damaged(self, cursor: _Cursor, physical_offset: int) -> None:
        """Entries of records that were damaged keep their numbers; readers pass over them."""
        while self._report.damage:
            present = cursor.present()
            if len(present) == 0:
                return
            at = ENTRY.unpack_from(present)[0]
            if at >= physical_offset or not self._is_damaged(at):
                return
            cursor.next_offset = cursor.queue.after(cursor.next_offset)

    def _skip_orphans(self, cursor: _Cursor, record: ScannedRecord, packed: bytes) -> None:
        """Entries whose records now say that they belong elsewhere keep their numbers, if the queue goes on
        behind them exactly as the log does: it is those records that are damaged, not the queue."""
        wanted = record.queue_offset + cursor.shift
        if wanted > cursor.next_offset and cursor.queue.read(wanted, 1) == packed:
            self._report.orphan_entries += wanted - cursor.next_offset
            cursor.next_offset = wanted

    def _is_damaged(self, physical_offset: int) -> bool:
        return any(d.begin <= physical_offset < d.end for d in self._report.damage)

    def _disagree(self, cursor: _Cursor, record: ScannedRecord) -> None:
        """From here on the queue is written again."""
        queue = cursor.queue
        if record.queue_offset + cursor.shift < cursor.next_offset and self._is_first_lost(cursor, record):
            # The front of the queue is missing while its records are there.
            cursor.next_offset = 0
        # Numbers that an unfinished recovery had set aside are counted again with those that follow.
        while (before := queue.entry(cursor.next_offset - 1)) is not None and before.size == HOLE_SIZE:
            cursor.next_offset = queue.first_of(cursor.next_offset - 1)
        queue.cut_at(cursor.next_offset)
        cursor.next_offset = cursor.pending_first = queue.max_offset
        cursor.writing = True

    def _is_first_lost(self, cursor: _Cursor, record: ScannedRecord) -> bool:
        spans = cursor.queue.file_spans
        return (
            not self._may_start_earlier
            and bool(spans)
            and cursor.next_offset <= max(cursor.queue.min_offset, spans[0].start)
            and record.queue_offset + cursor.shift < cursor.queue.min_offset
        )

    def _has_false_front(self, cursor: _Cursor, wanted: int) -> bool:
        """Whether the entry `wanted`, which is a kept record's, leads to one that was cleaned away long ago."""
        entry = cursor.queue.entry(wanted) if wanted < cursor.next_offset else None
        return entry is not None and entry.physical_offset < self._log.mapped.min_offset

    def _begin_anew(self, cursor: _Cursor, wanted: int) -> None:
        """Nothing of the queue's files is true: another queue's, or what a lost page held before."""
        if self._may_start_earlier:
            raise _StartEarlier(0)
        cursor.queue.cut_at(0)
        cursor.pending.clear()
        cursor.next_offset = cursor.pending_first = wanted

    def _write(self, cursor: _Cursor, record: ScannedRecord, tag: int) -> None:
        wanted = record.queue_offset + cursor.shift
        if self._has_false_front(cursor, wanted):
            self._begin_anew(cursor, wanted)
        if wanted != cursor.next_offset:
            empty = cursor.queue.max_offset == 0 and not cursor.pending
            if empty and (wanted == 0 or not self._may_start_earlier):
                cursor.next_offset = cursor.pending_first = wanted
            elif wanted < cursor.next_offset:
                self._report.duplicate_records += 1
                return
            elif self._may_start_earlier:
                raise _StartEarlier(cursor.last_physical_end())
            else:
                self._fill_hole(cursor, record, wanted)
        self._append(cursor, cursor.queue.packed(record, tag, cursor.next_offset))

    def _append(self, cursor: _Cursor, packed: bytes) -> None:
        """Entries that go on where the queue ends."""
        cursor.pending += packed
        cursor.next_offset += cursor.queue.count_in(packed)
        self._report.dispatched_records += len(packed) // cursor.queue.entry_size
        if len(cursor.pending) >= _QUEUE_BATCH_SIZE:
            self._flush(cursor)

    def _fill_hole(self, cursor: _Cursor, record: ScannedRecord, wanted: int) -> None:
        """Numbers of records that cannot be read stay taken, by entries that lead to no record.

        They point between the records on both sides. Without room there for as many records it is this
        record's number that is wrong: it gets the next.
        """
        low = cursor.last_physical_end()
        count = wanted - cursor.next_offset
        if not cursor.queue.may_hold(count, record.physical_offset - low, RECORD_SIZE_MIN):
            self._report.renumbered_records += 1
            return
        cursor.pending += cursor.queue.holes(cursor.next_offset, count, record.physical_offset)
        self._report.hole_entries += count
        cursor.next_offset = wanted

    def _flush(self, cursor: _Cursor) -> None:
        if cursor.pending:
            entries = bytes(cursor.pending)
            cursor.queue.put_entries(cursor.pending_first, entries)
            cursor.pending_first += cursor.queue.count_in(entries)
            cursor.pending.clear()

    def finish(self, end: int) -> None:
        """The walk is over: entries that no record stands behind go."""
        for cursor in self._cursors.values():
            self._flush(cursor)
            queue, is_broken = cursor.queue, False
            if not cursor.writing:
                self._skip_damaged(cursor, end)
                is_broken = queue.goes_on(cursor.next_offset, self._start)
                queue.cut_at(cursor.next_offset)
            if self._may_start_earlier and self._is_short(queue, is_broken=is_broken, is_walked=True):
                self._see_from(self._before_last(queue))
            dropped = cursor.found_max - queue.max_offset
            if dropped > 0:
                self._report.cut_entries += dropped
                self._report.dropped.append((queue.topic, queue.queue_id, queue.max_offset, dropped))


def _leading_true(flags: NDArray[np.bool_]) -> int:
    """Number of true values before the first false one."""
    return len(flags) if flags.all() else int(np.argmin(flags))


def put_aside(io: StoreIo, root: Path, damage: Damage, content: bytes) -> None:
    """Keep a copy of a damaged stretch under the name that keeps readers away from it; one that is there stays."""
    path = root / QUARANTINE / f"{damage.begin:020d}-{damage.end:020d}"
    if io.read_bytes(path) is None:
        io.replace_bytes(path, content, keep_previous=False)


def quarantined(io: StoreIo, folder: Path) -> tuple[tuple[int, int], ...]:
    """The damaged stretches that the names in the quarantine folder tell."""
    found = []
    for entry in io.list_names(folder):
        begin, _, end = entry.name.partition("-")
        if begin.isdecimal() and end.isdecimal():
            found.append((int(begin), int(end)))
    return tuple(found)


# --- records as queues and index see them --------------------------------------------------------------------


def _is_of(header: RecordHeader, queue: ConsumeQueue, entry: ConsumeQueueEntry) -> bool:
    """Whether the record with this head, which the entry leads to, belongs to the queue."""
    return header.size == entry.size and header.topic == queue.topic and header.queue_id == queue.queue_id


def keyed_record(record: ScannedRecord) -> KeyedRecord | None:
    """The record as the index takes it; None if it is not indexed."""
    if record.sys_flag & _TRANSACTION == _ROLLBACK:
        return None
    keys = _text(record.properties, b"KEYS")
    unique_key = _text(record.properties, b"UNIQ_KEY")
    if not keys and not unique_key:
        return None
    return record.topic, keys, unique_key, record.physical_offset, record.store_timestamp


def _text(properties: bytes, name: bytes) -> str | None:
    value = find_property(properties, name)
    return None if value is None else value.decode("utf-8", "replace")


def record_probe(log: CommitLog) -> Callable[[int], IndexedRecord | None]:
    """What the index asks to prove its entries."""

    def probe(physical_offset: int) -> IndexedRecord | None:
        record = log.scan(physical_offset)
        if record is None:
            return None
        keyed = keyed_record(record)
        texts = key_texts(keyed[0], keyed[1], keyed[2]) if keyed is not None else []
        return IndexedRecord(record.store_timestamp, frozenset(map(index_key_hash, texts)))

    return probe
