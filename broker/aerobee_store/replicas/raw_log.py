"""Bytes of the log as they lie there, given to a replica and taken from one that has them.

Touches  the commit log and the queue table it is given.

A replica's log is the same byte for byte, blank ends of files included; its queues and its index are made here, from
the records that come, as recovery makes them from those that lie there.

Invariants
- With sync_flush nothing is given that this disk could still lose: a replica is never ahead of what its source has
  after a crash. Without it, everything: nobody is promised a disk.
- Only whole records are written, each of them proven. What comes of one that is not complete waits in memory.
- Pieces never cross the end of a file; a file's blank end comes with its last piece.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from aerobee_proto.records import BLANK_MAGIC, RECORD_SIZE_MIN, SIZE_AND_MAGIC
from aerobee_store.disk.mapped_files import file_name
from aerobee_store.faults.errors import CorruptStore, NotInLog
from aerobee_store.index.index import KeyedBlock, KeyedRecord, key_blocks
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.queues.consume_queue import ENTRY, ConsumeQueue
from aerobee_store.queues.delay import entry_tag
from aerobee_store.queues.tombstones import Tombstones
from aerobee_store.records.property_columns import Ints
from aerobee_store.records.record_scan import RecordFault, ScannedRecord, scan_record
from aerobee_store.terms.config import StoreConfig
from aerobee_store.terms.messages import RECORD_EXTRA_MAX
from aerobee_store.walking.keys import keyed_record
from aerobee_store.walking.record_columns import Stretch, sound_records
from aerobee_store.writing.appender import Appender, PendingBatch, Touched

__all__ = ["RawLog", "WalkedRecords", "WalkedRun", "Walker"]

_RECORD_OVERHEAD_MAX: Final = RECORD_EXTRA_MAX + 4096  # topic, properties and head of the largest record
# Records as large as the first for which the array operations of a stretch, 0.3 ms, are cheaper than one by one.
_MANY: Final = 32


class WalkedRun(NamedTuple):
    """Queue entries whose queue offsets follow each other."""

    topic: bytes
    queue_id: int
    first: int  # queue offset
    entry_count: int
    entries: bytes
    begin: int  # physical offset of the first record
    end: int  # physical offset behind the last one


# Sound records that follow each other: the position behind them, their newest store time (ms), `WalkedRun`s, the fields
# of `KeyedBlock`s.
WalkedRecords = tuple[
    int,
    int,
    list[tuple[bytes, int, int, int, bytes, int, int]],
    list[tuple[int, bytes, bytes, int, int]],
]
# Walks over the records from a position of some bytes on, whose first one has a physical offset; whether their keys are
# wanted. None when there is none that it knows.
Walker = Callable[[bytes, int, int, bool], WalkedRecords | None]


class _Walked(NamedTuple):
    """What a walker found."""

    newest: int
    runs: list[WalkedRun]
    keys: list[KeyedBlock]


_Found = Stretch | ScannedRecord | _Walked


class RawLog:
    """The log of a store as bytes."""

    def __init__(
        self, log: CommitLog, appender: Appender, tombstones: Tombstones, config: StoreConfig
    ) -> None:
        # Fixed for life.
        self._log = log
        self._appender = appender
        self._tombstones = tombstones
        self._config = config
        # The beginning of a record of which the rest is to come, and where it lies: at the log's end, or it is stale.
        self._begun = (0, b"")
        self._newest = 0  # store time, ms
        # Asked first, where somebody is quick at it.
        self.walker: Walker | None = None

    # --- giving ----------------------------------------------------------------------------------------

    @property
    def given_offset(self) -> int:
        """Physical offset below which `read` gives."""
        return self._log.flushed_offset if self._config.sync_flush else self._log.end_offset

    def read(self, offset: int, size: int) -> memoryview:
        """At most `size` bytes from the physical `offset` on, up to the end of its file and `given_offset`; none at
        the end of that. They stay readable as long as the slice is held. NotInLog for an offset that was cleaned away
        or lies beyond what is given."""
        begin, end = self._log.min_offset, self.given_offset
        if not begin <= offset <= end:
            raise NotInLog(offset, begin, end)
        file = self._log.mapped.find(offset) if offset < end else None
        if file is None:
            return memoryview(b"")
        stop = min(offset + size, end, file.end)
        return file.view[offset - file.offset : stop - file.offset]

    # --- taking ----------------------------------------------------------------------------------------

    @property
    def next_offset(self) -> int:
        """Physical offset of the first byte that is still to come."""
        at, begun = self._kept()
        return at + len(begun)

    def _kept(self) -> tuple[int, bytes]:
        """Where the log ends, and what there is of the record that begins there."""
        at, end = self._begun[0], self._log.end_offset
        return self._begun if at == end or not self._log.mapped.files else (end, b"")

    def append(self, offset: int, *pieces: bytes | memoryview) -> int | None:
        """Take the bytes that lie at `offset` in the log of which this is a copy, in pieces that follow each other; the
        store time (ms) of the newest record that became complete, None when none did.

        `offset` is `next_offset`, or the log's end when the source begins anew there; an empty log may begin with any
        file. Else NotInLog. CorruptStore when what became complete is no record of that place, or its number does not
        follow in its queue; StoreFull: no room for the next file. Nothing is taken then.
        """
        log = self._log
        base, begun = self._kept()
        is_empty = not log.mapped.files
        if offset == base or (is_empty and offset % log.file_size == 0):
            base, begun = offset, b""
        elif offset != base + len(begun):
            raise NotInLog(offset, base, base + len(begun))
        # Copied here, and nowhere else: the reader of the link has one room for all it reads.
        content = b"".join((begun, *pieces))
        file_end = base - base % log.file_size + log.file_size
        if base + len(content) > file_end:
            raise self._wrong(base, f"{len(content)} bytes go beyond the end of the file at {file_end}")
        walked = None if self.walker is None else self.walker(content, 0, base, self._config.index_enabled)
        if walked is not None and (goes_on := self._going_on(walked, content, base, file_end)) is not None:
            return self._append_walked(walked, goes_on, content, base)
        found, size = self._whole(memoryview(content), base, file_end, content, walked)
        if size:
            work = self._planned(found, content, base)
            if is_empty:
                log.begin_at(base)
            if not log.room():
                log.roll()
            is_last = base + size == file_end
            if is_last:
                log.prepare_next()  # as a start takes a file's end for the log's when no other follows; may be full
            log.write(memoryview(content)[:size])
            if is_last:
                log.roll()
            self._enter(work, found)
        self._begun = (base + size, content[size:])
        return max(map(_newest, found), default=None)

    def _going_on(
        self, walked: WalkedRecords, content: bytes, base: int, file_end: int
    ) -> dict[ConsumeQueue, tuple[int, int, bytes]] | None:
        """What nearly all pieces are: whole records, of which the walker knows each, perhaps the beginning of one more,
        and each queue goes on where it ended. Of each queue the first number, the number behind, and the entries; None:
        anything is different."""
        end, _, runs, _ = walked
        left = len(content) - end
        if base + len(content) == file_end or not self._log.room() or self._tombstones.topics:
            return None
        if left >= SIZE_AND_MAGIC.size:
            size, magic = SIZE_AND_MAGIC.unpack_from(content, end)
            if magic == BLANK_MAGIC or not max(left + 1, RECORD_SIZE_MIN) <= size <= self._record_size_max:
                return None
        queue_of = self._appender.queue_of
        found: dict[ConsumeQueue, tuple[int, int, bytes]] = {}
        for topic, queue_id, first, count, entries, _, _ in runs:
            queue = queue_of(topic.decode(), queue_id)
            if (
                queue is None
                or queue.is_batch
                or first != queue.next_offset
                or first < queue.max_offset
                or queue in found
            ):
                return None
            found[queue] = first, first + count, entries
        return found

    def _append_walked(
        self,
        walked: WalkedRecords,
        goes_on: dict[ConsumeQueue, tuple[int, int, bytes]],
        content: bytes,
        base: int,
    ) -> int:
        """Write these records; their newest store time."""
        log = self._log
        size, newest, _, keys = walked
        log.write(content if size == len(content) else memoryview(content)[:size])
        touched: list[Touched] = []
        for queue, (first, behind, entries) in goes_on.items():
            queue.next_offset = behind
            touched.append((queue, first, entries))
        self._newest = newest
        blocks = list(map(KeyedBlock._make, keys))
        count = sum([block.record_count for block in blocks])
        self._appender.pending.append(PendingBatch(base + size, newest, touched, blocks, count))
        self._begun = base + size, content[size:]
        return newest

    def _wrong(self, physical_offset: int, reason: str) -> CorruptStore:
        path = self._log.folder / file_name(physical_offset - physical_offset % self._log.file_size)
        return CorruptStore(path, physical_offset, reason, "compare the log of the source with this one")

    def _whole(
        self,
        content: memoryview,
        base: int,
        file_end: int,
        raw: bytes | None = None,
        walked: WalkedRecords | None = None,
    ) -> tuple[list[_Found], int]:
        """The complete records at the beginning, each proven, and how many bytes they and the file's end have. `raw`:
        the same bytes for the walker; `walked`: what it has found at their beginning."""
        found: list[_Found] = []
        at = 0
        while len(content) - at >= SIZE_AND_MAGIC.size:
            size, magic = SIZE_AND_MAGIC.unpack_from(content, at)
            if magic == BLANK_MAGIC and base + at + size != file_end:
                raise self._wrong(base + at, f"blank of {size} where {file_end - base - at} are left")
            if magic != BLANK_MAGIC and not RECORD_SIZE_MIN <= size <= self._record_size_max:
                raise self._wrong(base + at, f"a record of {size} bytes")
            if at + size > len(content):
                break
            if magic == BLANK_MAGIC:
                return found, at + size
            if raw is not None and self.walker is not None:
                known = self.walker(raw, at, base, self._config.index_enabled) if at else walked
                if known is not None:
                    at, newest, runs, keys = known
                    found.append(
                        _Walked(newest, list(map(WalkedRun._make, runs)), list(map(KeyedBlock._make, keys)))
                    )
                    continue
            step: Stretch | RecordFault | object = None
            if size * _MANY < len(content) - at:
                step = sound_records(content, at, base, stop=len(content))
            if step is None:
                step = scan_record(content, at, base + at, room=file_end - base - at)
            if isinstance(step, Stretch):
                at = step.end
            elif isinstance(step, ScannedRecord):
                at += step.size
            else:
                raise self._wrong(base + at, getattr(step, "reason", "no record"))
            found.append(step)
        return found, at

    @property
    def _record_size_max(self) -> int:
        return max(self._config.body_size_max + _RECORD_OVERHEAD_MAX, self._config.commit_log_file_size)

    def plan_again(self, topic: str, begin: int) -> None:
        """Give a topic that has no queues those that its records from the physical offset `begin` on make. CorruptStore
        when what lies there is no log. It holds the caller up: it is for what came a moment ago."""
        runs: dict[ConsumeQueue, _Run] = {}
        at, end = max(begin, self._log.min_offset), self._log.end_offset
        while at < end and (file := self._log.mapped.find(at)) is not None:
            content = file.view[at - file.offset : min(end, file.end) - file.offset]
            found, size = self._whole(content, at, file.end)
            if not size:
                raise self._wrong(at, "no whole record")
            self._newest = max(self._newest, *map(_newest, found), 0)
            for record in _records(found):
                if record.topic == topic and record.is_queued:
                    run = self._run_of(runs, topic, record.queue_id, record.physical_offset)
                    self._plan_one(run, record)
            at += size
        self._enter(runs, [])

    def hold_back(self, found: Sequence[Stretch | ScannedRecord]) -> None:
        """Leave these records, with which the log ends, to dispatch: recovery has put them into no queue. CorruptStore
        when they cannot be the next of their queues."""
        for step in found:
            end = step.physical_offset + step.size if isinstance(step, ScannedRecord) else step.end_offset
            self._enter(self._planned([step], b"", 0), [step], end)

    # --- queues and index ------------------------------------------------------------------------------

    def _planned(self, found: list[_Found], content: bytes, base: int) -> dict[ConsumeQueue, "_Run"]:
        """The entries of these records, queue by queue; nothing is changed yet. They are in `content`, whose first byte
        lies at `base`."""
        runs: dict[ConsumeQueue, _Run] = {}
        levels = self._config.delay_levels_ms
        for step in found:
            if isinstance(step, ScannedRecord):
                if step.is_queued and not self._tombstones.covers(step.topic, step.physical_offset):
                    self._plan_one(self._run_of(runs, step.topic, step.queue_id, step.physical_offset), step)
                continue
            if isinstance(step, _Walked):
                for one in step.runs:
                    self._plan_walked(runs, one, content, base)
                continue
            packed = step.entries(levels)
            for topic, queue_id, members in step.queues():
                alive = members[step.physical_offsets[members] >= self._tombstones.end_of(topic)]
                if not len(alive):
                    continue
                run = self._run_of(runs, topic, queue_id, int(step.physical_offsets[alive[0]]))
                if run.queue.is_batch or not run.follows(step.queue_offsets[alive]):
                    for member in alive.tolist():
                        self._plan_one(run, step.record(member))
                    continue
                last = int(alive[-1])
                run.add(
                    packed[alive].tobytes(),
                    len(alive),
                    int(step.physical_offsets[last] + step.sizes[last]),
                )
        return runs

    def _plan_walked(
        self, runs: dict[ConsumeQueue, "_Run"], walked: WalkedRun, content: bytes, base: int
    ) -> None:
        topic = walked.topic.decode()
        deleted_to = self._tombstones.end_of(topic)
        if walked.end <= deleted_to:
            return
        run = self._run_of(runs, topic, walked.queue_id, walked.begin)
        if walked.begin >= deleted_to and walked.first == run.next_offset and not run.queue.is_batch:
            run.add(walked.entries, walked.entry_count, walked.end)
            return
        view = memoryview(content)
        for place, _, _ in ENTRY.iter_unpack(walked.entries):
            if place >= deleted_to:
                record = scan_record(view, place - base, place, proven=True, room=len(view) - (place - base))
                assert isinstance(record, ScannedRecord)
                self._plan_one(run, record)

    def _run_of(
        self, runs: dict[ConsumeQueue, "_Run"], topic: str, queue_id: int, physical_offset: int
    ) -> "_Run":
        queue = self._appender.queue_of(topic, queue_id)
        if queue is None:
            raise self._wrong(physical_offset, f"there can be no queue {queue_id} of topic {topic!r}")
        run = runs.get(queue)
        if run is None:
            run = runs[queue] = _Run(queue, self._appender.next_offset(queue))
        return run

    def _plan_one(self, run: "_Run", record: ScannedRecord) -> None:
        """As recovery does it with what it finds: a number that comes twice is the first one's, numbers that are left
        out stay taken."""
        queue, number = run.queue, record.queue_offset
        if number < run.next_offset:
            return
        if number > run.next_offset and not run.is_begun:
            run.begin(number)
        elif number > run.next_offset:
            count = number - run.next_offset
            if not queue.may_hold(count, record.physical_offset - run.end, RECORD_SIZE_MIN):
                reason = f"message {number} of queue {record.queue_id} of {record.topic} follows {run.next_offset - 1}"
                raise self._wrong(record.physical_offset, reason)
            run.add(queue.holes(run.next_offset, count, record.physical_offset), count, run.end)
        levels = self._config.delay_levels_ms
        tag = entry_tag(record.topic, record.properties, record.store_timestamp, levels)
        entry = queue.packed(record, tag, number)
        run.add(entry, queue.count_in(entry), record.physical_offset + record.size)

    def _enter(self, runs: dict[ConsumeQueue, "_Run"], found: list[_Found], end: int | None = None) -> None:
        """Leave to dispatch what it has to do; `end` is where the last of these records ends, if that is not the
        log's."""
        touched: list[Touched] = []
        for queue, run in runs.items():
            if run.entries:
                queue.next_offset = run.next_offset
                touched.append((queue, run.first, bytes(run.entries)))
        keyed: list[KeyedRecord | KeyedBlock] = []
        for step in found if self._config.index_enabled else ():
            if isinstance(step, ScannedRecord):
                one = keyed_record(step)
                keyed += () if one is None else (one,)
            else:
                keyed += step.keys if isinstance(step, _Walked) else key_blocks(step.keys())
        count = sum(one.record_count if isinstance(one, KeyedBlock) else 1 for one in keyed)
        self._newest = max(map(_newest, found), default=self._newest)
        end = self._log.end_offset if end is None else end
        self._appender.pending.append(PendingBatch(end, self._newest, touched, keyed, count))


class _Run:
    """Entries of one queue that follow each other."""

    __slots__ = ("_end", "entries", "first", "is_begun", "next_offset", "queue")

    def __init__(self, queue: ConsumeQueue, next_offset: int) -> None:
        self.queue = queue
        self.first = self.next_offset = next_offset
        # Whether the queue has entries: one that has none may begin anywhere.
        self.is_begun = next_offset > 0
        self.entries = bytearray()
        self._end: int | None = None

    @property
    def end(self) -> int:
        """Physical offset behind the last record."""
        return max(self.queue.last_physical_end, 0) if self._end is None else self._end

    def begin(self, number: int) -> None:
        """The first entry of the queue gets this number."""
        self.first = self.next_offset = number

    def follows(self, numbers: Ints) -> bool:
        """Whether these are the next numbers, none of them missing."""
        first, last = int(numbers[0]), int(numbers[-1])
        if first != self.next_offset or last - first != len(numbers) - 1:
            return False
        return bool((numbers[1:] > numbers[:-1]).all())

    def add(self, entries: bytes, count: int, end: int) -> None:
        """Go on with entries of `count` numbers, whose last record ends at `end`."""
        self.entries += entries
        self.next_offset += count
        self.is_begun = True
        self._end = end


def _newest(found: _Found) -> int:
    """The newest store time."""
    if isinstance(found, ScannedRecord):
        return found.store_timestamp
    return found.newest if isinstance(found, _Walked) else int(found.store_timestamps.max())


def _records(found: list[_Found]) -> Iterator[ScannedRecord]:
    for step in found:
        if isinstance(step, ScannedRecord):
            yield step
        elif isinstance(step, Stretch):
            yield from (step.record(index) for index in range(step.count))
