"""The queues brought to what the log says: compared with its records, entry by entry, and written again from where they
do not agree.

Touches  the queues; the log, reading.
"""

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aerobee_proto.records import RECORD_SIZE_MIN
from aerobee_store.queues.consume_queue import (
    ENTRY,
    ENTRY_DTYPE,
    ENTRY_SIZE,
    HOLE_SIZE,
    ConsumeQueue,
    ConsumeQueueEntry,
)
from aerobee_store.queues.delay import entry_tag
from aerobee_store.records.property_columns import Ints
from aerobee_store.records.record_scan import ScannedRecord
from aerobee_store.recovery.claims import Claims
from aerobee_store.recovery.queue_ends import QueueEnds
from aerobee_store.recovery.report import Parts, RecoveryReport, StartEarlier
from aerobee_store.walking.agreement import Agreement, are_same, compared_size, header_at, is_of
from aerobee_store.walking.log_reader import Damage
from aerobee_store.walking.record_columns import Stretch

__all__ = ["QueueRepair"]

# Bytes of packed entries kept per queue before they are written.
_QUEUE_BATCH_SIZE: Final = 64 << 10
# Records of a queue that are looked at one by one before many at a time are tried again.
_CAREFUL_RUN_MAX: Final = 1024
_COMPARE_WINDOW: Final = 4096
# Bytes of entries that are kept for the walk when the queues are looked at, so that not each has to be opened again.
_KEPT_MAX: Final = 64 << 20


class _Cursor:
    """Where the comparison of one queue with the log stands.

    It begins comparing: entries before `next_offset` agree with the log. From the first disagreement on it writes: the
    queue was cut there, and `pending` goes on where it ends. It never goes back to comparing.
    """

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


class QueueRepair:
    """Compares the queues with the records of a walk, and rewrites what does not agree.

    The stages, in this order:

    1. prepare(): of each queue, where it ends, and the first entry whose record the walk will see: a cursor there.
       What leads to records before the walk must hold by itself; where it does not, the walk starts earlier.
    2. see(), see_many(): each record against the entry at its queue's cursor. While they agree the cursor moves on; at
       the first that does not the queue is cut, and from there on written from the records.
    3. finish(): entries that no record stood behind go.
    """

    def __init__(
        self,
        parts: Parts,
        report: RecoveryReport,
        start: int,
        ends: QueueEnds,
        *,
        may_start_earlier: bool,
    ) -> None:
        self._ends = ends
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
            # Entries behind a missing file cannot be reached by number: what is left of the queue ends in front of it.
            if recovery.gaps:
                queue.cut_at(recovery.gaps[0][0])
            if self._is_dead(queue):
                queue.cut_at(0)
            # The walk mends only what it sees: what is wrong before it asks for an earlier start, while there is one.
            elif (doubts or recovery.gaps) and self._may_start_earlier:
                raise StartEarlier(max(queue.last_physical_end, 0))
            # All entries that are there may hold and some be gone. The last one is not believed then, either.
            elif self._ends.is_short(queue, is_broken=recovery.is_broken, is_walked=False):
                sure = self._before_last(queue)
                queue.cut_at(queue.first_of(queue.max_offset - 1))
                self._see_from(sure)
            cursor = self._cursors[queue.topic, queue.queue_id] = self._cursor(queue)
            room -= cursor.keep(room)
            if self._report.aborted:
                queue.write_unflushed_again()  # while its file is open
            yield queue, cursor.next_offset

    def _before_last(self, queue: ConsumeQueue) -> int:
        """Where the record before that of the last entry begins; of a damaged queue, where the last entry itself may be
        what is damaged, though it looks sound."""
        before = queue.entry(queue.first_of(queue.max_offset - 1) - 1)
        return before.physical_offset if before is not None else 0

    def _see_from(self, physical_offset: int) -> None:
        """The walk has to see the records from there on."""
        if self._may_start_earlier and physical_offset < self._start:
            raise StartEarlier(physical_offset)

    def _is_dead(self, queue: ConsumeQueue) -> bool:
        """Whether all of it was deleted with its topic, and only the files came back."""
        if self._tombstones is None or not self._tombstones.end_of(queue.topic):
            return False
        # Not the newest entry: that may be what a lost page held before.
        known = queue.entry(self._first_walked(queue) - 1) or queue.entry(queue.min_offset)
        return known is not None and self._tombstones.covers(queue.topic, known.physical_offset)

    def _verify(self, queue: ConsumeQueue, doubts: list[int]) -> Callable[[ConsumeQueueEntry, int], bool]:
        """Entries of records before the walk must hold now.

        `doubts` gets the queue offsets of those that do not.
        """

        def verify(entry: ConsumeQueueEntry, offset: int) -> bool:
            place = entry.physical_offset
            if entry.size == HOLE_SIZE:
                return True
            header = header_at(self._log, place)
            if (
                header is not None
                and is_of(header, queue, entry)
                and self._agreement.of_entry(queue, offset, header) is None
            ):
                return True
            if self._log.is_damaged(place) or self._log.mapped.find(place) is None:
                return True
            doubts.append(offset)
            return False

        return verify

    def _first_walked(self, queue: ConsumeQueue) -> int:
        """Queue offset of the first entry whose record the walk will see."""
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
        assert low <= queue.max_offset
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
        if entry is None or header is None or not is_of(header, queue, entry):
            return None
        return queue.first_of(offset) - header.queue_offset

    # --- during the walk -------------------------------------------------------------------------------

    def see(self, record: ScannedRecord) -> None:
        """The next record of the log."""
        assert record.physical_offset >= self._start
        if not record.is_queued:
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
                self._report.damage.append(Damage(place, place + size, str(file.data.path), reason))
        return rightly

    def _cursor_of(self, topic: str, queue_id: int) -> _Cursor:
        cursor = self._cursors.get((topic, queue_id))
        if cursor is None:
            queue = self._queues.get_or_create(topic, queue_id)
            cursor = self._cursors[topic, queue_id] = _Cursor(queue, 0)
        return cursor

    def see_many(self, stretch: Stretch) -> None:
        """As see() for each of the next records of the log, but queue after queue."""
        assert int(stretch.physical_offsets[0]) >= self._start
        # First, for all queues, which of the records are damaged by the word of an entry: the queue that has this entry
        # passes over it only when it knows.
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
        for topic, queue_id, members in groups:
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
        count = _leading_true(are_same(cursor.queue.topic, present, packed[: len(present)]))
        cursor.next_offset += count
        return count

    def _see(self, cursor: _Cursor, record: ScannedRecord) -> None:
        tag = entry_tag(record.topic, record.properties, record.store_timestamp, self._levels)
        queue = cursor.queue
        packed = queue.packed(record, tag, record.queue_offset + cursor.shift)
        if not cursor.writing:
            # First what lies before the record and has no sound one behind it, then the entry that should be its own.
            self._skip_damaged(cursor, record.physical_offset)
            self._skip_orphans(cursor, record, packed)
            compared = compared_size(record.topic, queue.entry_size)
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
        expected = record.queue_offset + cursor.shift
        if expected > cursor.next_offset and cursor.queue.read(expected, 1) == packed:
            self._report.orphan_entries += expected - cursor.next_offset
            cursor.next_offset = expected

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

    def _has_false_front(self, cursor: _Cursor, expected: int) -> bool:
        """Whether the entry `expected`, which is a kept record's, leads to one that was cleaned away long ago."""
        entry = cursor.queue.entry(expected) if expected < cursor.next_offset else None
        return entry is not None and entry.physical_offset < self._log.mapped.min_offset

    def _begin_anew(self, cursor: _Cursor, expected: int) -> None:
        """Nothing of the queue's files is true: another queue's, or what a lost page held before."""
        if self._may_start_earlier:
            raise StartEarlier(0)
        cursor.queue.cut_at(0)
        cursor.pending.clear()
        cursor.next_offset = cursor.pending_first = expected

    def _write(self, cursor: _Cursor, record: ScannedRecord, tag: int) -> None:
        expected = record.queue_offset + cursor.shift
        if self._has_false_front(cursor, expected):
            self._begin_anew(cursor, expected)
        if expected != cursor.next_offset:
            empty = cursor.queue.max_offset == 0 and not cursor.pending
            if empty and (expected == 0 or not self._may_start_earlier):
                cursor.next_offset = cursor.pending_first = expected
            elif expected < cursor.next_offset:
                self._report.duplicate_records += 1
                return
            elif self._may_start_earlier:
                raise StartEarlier(cursor.last_physical_end())
            else:
                self._fill_hole(cursor, record, expected)
        self._append(cursor, cursor.queue.packed(record, tag, cursor.next_offset))

    def _append(self, cursor: _Cursor, packed: bytes) -> None:
        """Entries that go on where the queue ends."""
        assert cursor.writing
        cursor.pending += packed
        cursor.next_offset += cursor.queue.count_in(packed)
        self._report.dispatched_records += len(packed) // cursor.queue.entry_size
        if len(cursor.pending) >= _QUEUE_BATCH_SIZE:
            self._flush(cursor)

    def _fill_hole(self, cursor: _Cursor, record: ScannedRecord, expected: int) -> None:
        """Numbers of records that cannot be read stay taken, by entries that lead to no record.

        They point between the records on both sides. Without room there for as many records it is this
        record's number that is wrong: it gets the next.
        """
        low = cursor.last_physical_end()
        count = expected - cursor.next_offset
        if not cursor.queue.may_hold(count, record.physical_offset - low, RECORD_SIZE_MIN):
            self._report.renumbered_records += 1
            return
        cursor.pending += cursor.queue.holes(cursor.next_offset, count, record.physical_offset)
        self._report.hole_entries += count
        cursor.next_offset = expected

    def _flush(self, cursor: _Cursor) -> None:
        if cursor.pending:
            entries = bytes(cursor.pending)
            assert cursor.pending_first + cursor.queue.count_in(entries) == cursor.next_offset
            cursor.queue.put_entries(cursor.pending_first, entries)
            cursor.pending_first += cursor.queue.count_in(entries)
            cursor.pending.clear()

    def finish(self, end: int) -> None:
        """The walk is over, the log ends at `end`: entries that no record stands behind go."""
        assert end >= self._start
        for cursor in self._cursors.values():
            self._flush(cursor)
            queue, is_broken = cursor.queue, False
            assert cursor.next_offset == queue.max_offset or not cursor.writing
            if not cursor.writing:
                self._skip_damaged(cursor, end)
                is_broken = queue.goes_on(cursor.next_offset, self._start)
                queue.cut_at(cursor.next_offset)
            assert queue.max_offset <= cursor.next_offset
            if self._may_start_earlier and self._ends.is_short(queue, is_broken=is_broken, is_walked=True):
                self._see_from(self._before_last(queue))
            dropped = cursor.found_max - queue.max_offset
            if dropped > 0:
                self._report.cut_entries += dropped
                self._report.dropped.append((queue.topic, queue.queue_id, queue.max_offset, dropped))


def _leading_true(flags: NDArray[np.bool_]) -> int:
    """Number of true values before the first false one."""
    return len(flags) if flags.all() else int(np.argmin(flags))
