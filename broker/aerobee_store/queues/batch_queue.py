"""Batch queue: one fixed-size entry per record of a queue whose records may be whole batches.

Touches  <root>/batchconsumequeue/<topic>/<queue_id>/ and nothing else. No sockets, no asyncio, no clock.
Entry    physical_offset i64 | size i32 | tag_hash i64 | store_timestamp i64 | base i64 | count i16 | compacted i32 (-1)
         | 0 i32, big-endian (46 bytes). A record holds the messages with the queue offsets base to base + count.

It is a consume queue to everybody but for its bytes. What is not the same:
- An entry begins as one of a plain queue does; where entries are taken or given packed, they are of `entry_size`.
- An offset inside a batch leads to the whole batch: readers get its record, and count on themselves.

Invariants
- Entries lie next to each other from the first byte of the first file on; none is blank.
- Bases grow, and each entry begins where the one before it ends: base == base + count of its predecessor.
- Records do not overlap: an entry's physical offset is not below the end of the one before it.
- min_offset <= max_offset; everything behind the last entry is zero.
- Every file holds at least one entry; nothing here that the commit log cannot rebuild.

Threads: as of a consume queue.
"""

import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aerobee_proto import properties
from aerobee_proto.inner_batch import COUNT_MAX, declared_count
from aerobee_proto.properties import find_property
from aerobee_store.disk.io import is_zero
from aerobee_store.faults import failpoints
from aerobee_store.queues.consume_queue import (
    ENTRY_SIZE,
    HOLE_SIZE,
    ConsumeQueue,
    ConsumeQueueEntry,
    QueueRecovery,
    Unflushed,
    Verify,
)
from aerobee_store.records.property_columns import Ints
from aerobee_store.records.record_scan import ScannedRecord

__all__ = [
    "BATCH_DTYPE",
    "BATCH_ENTRY",
    "BATCH_ENTRY_SIZE",
    "INNER_BASE",
    "INNER_NUM",
    "BatchEntry",
    "BatchQueue",
    "batch_entries",
    "inner_count",
    "plain_entries",
]

BATCH_ENTRY: Final = struct.Struct(">qiqqqhii")
BATCH_ENTRY_SIZE: Final = BATCH_ENTRY.size
BATCH_DTYPE: Final = np.dtype(
    [
        ("physical_offset", ">i8"),
        ("size", ">i4"),
        ("tag_hash", ">i8"),
        ("store_timestamp", ">i8"),
        ("base", ">i8"),
        ("count", ">i2"),
        ("compacted", ">i4"),
        ("reserved", ">i4"),
    ]
)
NOT_COMPACTED: Final = -1
_SIZE_MAX: Final = 0x7FFFFFFF
# How many messages a record holds, and the number of the first: properties of the record.
INNER_NUM: Final = properties.INNER_NUM.encode()
INNER_BASE: Final = properties.INNER_BASE.encode()
# Entries looked at by one step of a scan.
_SCAN_STEP: Final = 8192
_NOTHING: Final = memoryview(b"")
_NEVER: Final = 1 << 62


class BatchEntry(NamedTuple):
    """Where a record lies, when it was stored, and which queue offsets its messages have."""

    physical_offset: int
    size: int
    tag_hash: int
    store_timestamp: int
    base: int
    message_count: int

    @property
    def end(self) -> int:
        """One past the last queue offset of the record."""
        return self.base + self.message_count

    def packed(self) -> bytes:
        """As it lies in a file. struct.error when a number does not fit."""
        return BATCH_ENTRY.pack(*self, NOT_COMPACTED, 0)


def inner_count(properties: bytes) -> int | None:
    """How many messages a record says that it holds; None when it says something that no record can."""
    value = find_property(properties, INNER_NUM)
    return 1 if value is None else declared_count(value)


def batch_entries(packed: bytes | memoryview) -> list[BatchEntry]:
    """Packed entries, one after the other."""
    return [BatchEntry(*fields[:6]) for fields in BATCH_ENTRY.iter_unpack(packed)]


def plain_entries(entries: bytes) -> bytes:
    """As entries of a plain queue, one for each record."""
    size = len(entries) // BATCH_ENTRY_SIZE
    return b"".join([entries[at * BATCH_ENTRY_SIZE :][:ENTRY_SIZE] for at in range(size)])


class BatchQueue(ConsumeQueue):
    """The entries of one queue of one topic of batches; its public methods are those of any queue, for its entries."""

    __slots__ = ("_begin", "_end", "_flushed_end", "_flushing_end", "_hint")

    is_batch = True
    entry_size = BATCH_ENTRY_SIZE
    dtype = BATCH_DTYPE

    # Positions count entries from the first byte of file 0 on: of the first file, and one past the last entry.
    _begin: int
    _end: int
    # Below it entries are durable; what the sync that is under way makes of it. Moved as _flushed_offset.
    _flushed_end: int
    _flushing_end: int
    # Where an offset was found last.
    _hint: int

    # --- loading and recovery ----------------------------------------------------------------------------

    def load(self) -> bool:
        self._files.load()
        self._see_first_file()
        self._hint = self._flushed_end = self._flushing_end = self._begin
        self._end = self._find_end()
        self._see_ends()
        return self._files.dropped_empty

    def _find_end(self) -> int:
        """The first position behind which there is nothing, if what is there has no holes."""
        low, high = self._begin, self._files.end_offset // BATCH_ENTRY_SIZE
        while low < high:
            middle = (low + high) // 2
            raw = self._raw(middle)
            if raw and any(raw):
                low = middle + 1
            else:
                high = middle
        return low

    def recover(
        self,
        verify: Verify | None = None,
        *,
        log_min: int = 0,
        proven_offset: int = 0,
        walked_from: int = _NEVER,
    ) -> QueueRecovery:
        gaps = self.gaps
        end, stop = self._sound_end(_Check(verify, log_min, proven_offset, walked_from)), self._last_filled()
        is_broken = self._leads_below(self._behind(end * BATCH_ENTRY_SIZE), proven_offset)
        self._cut_at_position(end)
        self._flushed_end = self._flushing_end = self._begin
        self._flushed_offset = 0
        return QueueRecovery(self.min_offset, self.max_offset, max(stop - end, 0), gaps, is_broken)

    def goes_on(self, offset: int, proven_offset: int) -> bool:
        position = self._position_of(offset)
        return position >= 0 and self._leads_below(self._behind(position * BATCH_ENTRY_SIZE), proven_offset)

    def _last_filled(self) -> int:
        """One past the last position that is not all zero, counted on from the first that is."""
        return max(self._end, self._find_end())

    def _sound_end(self, check: "_Check") -> int:
        """The position of the first entry that is not sound: by itself, after the one before it, or by its record."""
        last: BatchEntry | None = None
        for file in self._files.files:
            base = file.offset // BATCH_ENTRY_SIZE
            count = (file.end - file.offset) // BATCH_ENTRY_SIZE
            for first in range(0, count, _SCAN_STEP):
                step = min(_SCAN_STEP, count - first)
                raw = file.data.read(first * BATCH_ENTRY_SIZE, step * BATCH_ENTRY_SIZE)
                entries = np.frombuffer(raw, BATCH_DTYPE)
                good = _sound(last, entries)
                asked = check.asked(entries[:good], is_first=last is None)
                for at in asked:
                    if not check.holds(_entry_of(raw, at)):
                        return base + first + at
                if good:
                    last = _entry_of(raw, good - 1)
                if good < step:
                    return base + first + good
        return self._files.end_offset // BATCH_ENTRY_SIZE

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        found = []
        for before, behind in pairwise(self._files.files):
            if before.end != behind.offset:
                last = self._read(before.end // BATCH_ENTRY_SIZE - 1)
                first = self._read(behind.offset // BATCH_ENTRY_SIZE)
                end = last.end if last is not None else 0
                found.append((end, first.base if first is not None else end))
        return tuple(found)

    @property
    def file_spans(self) -> list[range]:
        spans = []
        for file in self._files.files:
            first = self._read(file.offset // BATCH_ENTRY_SIZE)
            last = self._read(min(file.end // BATCH_ENTRY_SIZE, self._end) - 1)
            if first is not None and last is not None:
                spans.append(range(first.base, last.end))
        return spans

    def _see_ends(self) -> None:
        """Learn the numbers from the first and the last entry."""
        self.forget_window()
        first, last = self._read(self._begin), self._newest()
        if first is None or last is None:
            self.min_offset = self.max_offset = 0
            self._last_end = -1
            return
        self.min_offset = first.base
        self.max_offset = last.end
        self._last_end = last.physical_offset + last.size

    # --- cutting -----------------------------------------------------------------------------------------

    def cut_at_physical(self, physical_offset: int) -> int:
        if self.last_physical_end <= physical_offset:
            return 0
        before = self.max_offset
        self._cut_at_position(self._first(lambda entry: entry.physical_offset + entry.size > physical_offset))
        return before - self.max_offset

    def cut_at(self, offset: int) -> None:
        if offset < self.max_offset:
            self._cut_at_position(self._first(lambda entry: entry.end > offset))

    def _cut_at_position(self, end: int) -> None:
        """Make `end` the position of the end; files without data go. Without any the queue starts again at 0."""
        files, low = self._files, self.min_offset
        if end <= self._begin:
            if self._writable:
                files.destroy()
            self._start_again()
            return
        if self._writable:
            files.truncate(end * BATCH_ENTRY_SIZE)
            while files.files[-1].offset >= end * BATCH_ENTRY_SIZE:
                files.drop_last()
        # A cut that begins in a gap ends the queue at the file before it.
        last = max(file.end for file in files.files if file.offset < end * BATCH_ENTRY_SIZE)
        self._end = min(end, last // BATCH_ENTRY_SIZE)
        self._see_ends()
        self.min_offset = min(max(low, self.min_offset), self.max_offset)
        self._flushed_offset = min(self._flushed_offset, self.max_offset)
        self._flushed_end = min(self._flushed_end, self._end)

    def _start_again(self) -> None:
        super()._start_again()
        self._begin = self._end = self._hint = self._flushed_end = self._flushing_end = 0

    # --- writing -----------------------------------------------------------------------------------------

    def put_entries(self, first_offset: int, entries: bytes, *, rising: bool = False) -> None:
        assert entries
        assert not len(entries) % BATCH_ENTRY_SIZE
        failpoints.hit("consume_queue.before_write")
        self._check_order(first_offset, entries, rising=rising)
        begin = self._end * BATCH_ENTRY_SIZE
        is_first = not self._files.files
        self._write(begin, entries)
        failpoints.hit("consume_queue.after_write")
        if is_first:
            self.min_offset = self._flushed_offset = first_offset
        newest = _entry_of(entries, len(entries) // BATCH_ENTRY_SIZE - 1)
        self._end += len(entries) // BATCH_ENTRY_SIZE
        self.max_offset = newest.end
        self._last_end = newest.physical_offset + newest.size

    def _check_order(self, first_offset: int, entries: bytes, *, rising: bool) -> None:
        following = first_offset
        for at in range(len(entries) // BATCH_ENTRY_SIZE):
            entry = _entry_of(entries, at)
            if entry.base != following or entry.message_count <= 0:
                raise self._out_of_order(following, entry.base, "queue offset")
            following = entry.end
        if self._files.files and first_offset != self.max_offset:
            raise self._out_of_order(self.max_offset, first_offset, "queue offset")
        oldest = _entry_of(entries, 0).physical_offset
        if not rising and oldest < self.last_physical_end:
            raise self._out_of_order(self.last_physical_end, oldest, "physical offset")

    def write_again(self, offset: int, entry: bytes) -> None:
        expected = _entry_of(entry, 0)
        position = self._first(lambda found: found.end > offset)
        file = self._files.find(position * BATCH_ENTRY_SIZE)
        if file is None or not self._fits(position, expected):
            return
        file.data.write(position * BATCH_ENTRY_SIZE - file.offset, entry)
        file.data.sync()

    def fits_again(self, offset: int, entry: bytes) -> bool:
        return self._fits(self._first(lambda found: found.end > offset), _entry_of(entry, 0))

    def _fits(self, position: int, entry: BatchEntry) -> bool:
        """Whether the numbers of an entry go on from those before it, and those behind it from its own."""
        if not self._begin <= position < self._end or entry.base < self.min_offset:
            return False
        before, behind = self._read(position - 1), self._read(position + 1)
        if position > self._begin and (
            before is None
            or before.end != entry.base
            or before.physical_offset + before.size > entry.physical_offset
        ):
            return False
        if position + 1 == self._end:
            return entry.end == self.max_offset
        return (
            behind is not None
            and behind.base == entry.end
            and entry.physical_offset + entry.size <= behind.physical_offset
        )

    def write_unflushed_again(self) -> None:
        self._write_again_from(self._flushed_end * BATCH_ENTRY_SIZE, self._end * BATCH_ENTRY_SIZE)

    def unflushed(self) -> Unflushed | None:
        target, end = self.max_offset, self._end
        if self._flushed_end >= end:
            return None
        self._flushing_end = end
        return self._unflushed_from(self._flushed_end * BATCH_ENTRY_SIZE, target)

    def flushed(self, unflushed: Unflushed) -> None:
        super().flushed(unflushed)
        self._flushed_end = min(self._flushing_end, self._end)

    @property
    def is_flushed(self) -> bool:
        return self._flushed_end >= self._end

    # --- reading -----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many records there are, those included that the log has no more."""
        return self._end - self._begin

    def read(self, offset: int, max_entries: int) -> memoryview:
        position = self._position_of(offset)
        file = self._files.find(position * BATCH_ENTRY_SIZE) if position >= 0 else None
        if file is None:
            return _NOTHING
        end = min((position + max_entries) * BATCH_ENTRY_SIZE, self._end * BATCH_ENTRY_SIZE, file.end)
        begin = position * BATCH_ENTRY_SIZE
        return memoryview(file.data.read(begin - file.offset, max(end - begin, 0)))

    def entry(self, offset: int) -> ConsumeQueueEntry | None:
        found = self.batch_entry(offset)
        return ConsumeQueueEntry(*found[:3]) if found is not None else None

    def batch_entry(self, offset: int) -> BatchEntry | None:
        """The record that the message with a queue offset is in; None outside of the queue."""
        position = self._position_of(offset)
        return self._read(position) if position >= 0 else None

    def first_of(self, offset: int) -> int:
        found = self.batch_entry(offset)
        return found.base if found is not None else offset

    def after(self, offset: int) -> int:
        found = self.batch_entry(offset)
        return found.end if found is not None else offset + 1

    def offset_by_time(self, timestamp: int, *, upper: bool) -> int:
        """First queue offset of the first record stored at or after `timestamp` (ms); with `upper` of the last one
        stored at or before it. min_offset or the last record's where there is none."""
        if self._end <= self._begin:
            return 0
        position = self._first(lambda entry: entry.store_timestamp >= timestamp + (1 if upper else 0))
        position = max(self._begin, position - 1) if upper else min(position, self._end - 1)
        found = self._read(position)
        return min(max(found.base if found is not None else 0, self.min_offset), self.max_offset)

    def _newest(self) -> BatchEntry | None:
        return self._read(self._end - 1) if self._end > self._begin else None

    def _position_of(self, offset: int) -> int:
        """The position of the entry that a queue offset is in; -1 outside the data of the queue."""
        if offset >= self.max_offset or self._end <= self._begin:
            return -1
        # Nearly always it is that of the last call or the one behind it.
        for position in (self._hint, self._hint + 1):
            if self._begin <= position < self._end:
                found = self._read(position)
                if found is not None and found.base <= offset < found.end:
                    self._hint = position
                    return position
        position = self._first(lambda entry: entry.end > offset)
        found = self._read(position) if position < self._end else None
        if found is None or found.base > offset:
            return -1
        self._hint = position
        return position

    def _first(self, holds: Callable[[BatchEntry], bool]) -> int:
        """The position of the first entry for which it holds, the end when for none; it holds for all behind it."""
        low, high = self._begin, self._end
        while low < high:
            middle = (low + high) // 2
            entry = self._read(middle)
            if entry is None or holds(entry):
                high = middle
            else:
                low = middle + 1
        return low

    def _raw(self, position: int) -> bytes:
        file = self._files.find(position * BATCH_ENTRY_SIZE) if position >= 0 else None
        if file is None:
            return b""
        return file.data.read(position * BATCH_ENTRY_SIZE - file.offset, BATCH_ENTRY_SIZE)

    def _read(self, position: int) -> BatchEntry | None:
        """The entry at a position; None where there is no file, or nothing in it."""
        raw = self._raw(position)
        entry = _entry_of(raw, 0) if raw else None
        return entry if entry is not None and entry.size > 0 and entry.message_count > 0 else None

    # --- entries that are not in the files yet -----------------------------------------------------------

    def packed(self, record: ScannedRecord, tag_hash: int, offset: int) -> bytes:
        count = 1
        # As the original does it when it reads the log: the flag is not looked at.
        if find_property(record.properties, INNER_BASE) is not None:
            count = inner_count(record.properties) or 1
        place, size, stamp = record.physical_offset, record.size, record.store_timestamp
        return BatchEntry(place, size, tag_hash, stamp, offset, count).packed()

    def count_in(self, entries: bytes) -> int:
        return sum([fields[5] for fields in BATCH_ENTRY.iter_unpack(entries)])

    def numbers(self, entries: NDArray[np.void], first: int) -> Ints:
        return entries["base"].astype(np.int64)

    def holes(self, first: int, count: int, end: int) -> bytes:
        newest = self._newest()
        stamp = newest.store_timestamp if newest is not None else 0
        bases = range(first, first + count, COUNT_MAX)
        return b"".join(
            BatchEntry(
                end - len(bases) + at, HOLE_SIZE, 0, stamp, base, min(COUNT_MAX, first + count - base)
            ).packed()
            for at, base in enumerate(bases)
        )

    def may_hold(self, count: int, room: int, record_size_min: int) -> bool:
        return room >= record_size_min

    # --- the lower end -----------------------------------------------------------------------------------

    def correct_min_offset(self, log_min: int) -> None:
        begin = self._first(lambda entry: entry.physical_offset >= log_min)
        found = self._read(begin) if begin < self._end else None
        self.min_offset = found.base if found is not None else self.max_offset

    def _see_first_file(self) -> None:
        self._begin = self._files.min_offset // BATCH_ENTRY_SIZE

    def _is_first_stale(self, log_min: int) -> bool:
        if len(self._files.files) < 2:
            return False
        newest = self._read(self._files.files[0].end // BATCH_ENTRY_SIZE - 1)
        return newest is not None and newest.physical_offset < log_min

    # --- invariants --------------------------------------------------------------------------------------

    def check(self) -> None:
        if not self._files.files:
            self._require(self.max_offset == 0, None, "entries without files")
            return
        self._require(not self._files.gaps, None, "files are missing")
        self._require(self._sound_end(_Check(None, 0, 0, 0)) == self._end, None, "an entry is broken")
        self._require(self.min_offset <= self.max_offset, None, "offsets out of order")
        newest = self._newest()
        self._require(newest is not None and newest.end == self.max_offset, None, "the last number differs")
        last = self._files.files[-1]
        self._require(self._end * BATCH_ENTRY_SIZE > last.offset, last, "file without entries")
        behind = self._end * BATCH_ENTRY_SIZE - last.offset
        for begin, stop in last.data.data_extents(behind, last.data.size):
            for at in range(begin, stop, _SCAN_STEP * BATCH_ENTRY_SIZE):
                piece = last.data.read(at, min(_SCAN_STEP * BATCH_ENTRY_SIZE, stop - at))
                self._require(is_zero(piece), last, "bytes behind the last entry are not zero", behind)


class _Check(NamedTuple):
    """How recovery judges the entries; see ConsumeQueue.recover()."""

    verify: Verify | None
    log_min: int
    proven_offset: int
    walked_from: int

    def asked(self, entries: NDArray[np.void], *, is_first: bool) -> list[int]:
        """Which of these sound entries are compared with their records: the first of the queue, the last of what is
        known to be durable, and all behind that."""
        if not len(entries) or self.verify is None:
            return []
        ends = entries["physical_offset"].astype(np.int64) + entries["size"]
        known = int(np.searchsorted(ends, self.proven_offset, side="right"))
        asked = [0] if is_first and known > 1 else []
        return asked + list(range(max(known - 1, 0), len(entries)))

    def holds(self, entry: BatchEntry) -> bool:
        """Whether it agrees with its record, where there is one and nobody else is going to compare it."""
        if entry.physical_offset < self.log_min:
            return entry.physical_offset + entry.size <= self.log_min  # records do not span files
        if self.verify is None or entry.physical_offset >= self.walked_from:
            return True
        return self.verify(ConsumeQueueEntry(*entry[:3]), entry.base)


def _entry_of(raw: bytes | memoryview, index: int) -> BatchEntry:
    fields: tuple[Any, ...] = BATCH_ENTRY.unpack_from(raw, index * BATCH_ENTRY_SIZE)
    return BatchEntry(*fields[:6])


def _sound(last: BatchEntry | None, entries: NDArray[np.void]) -> int:
    """Leading entries that may be true judged by themselves and by the one before."""
    places, sizes = entries["physical_offset"].astype(np.int64), entries["size"].astype(np.int64)
    bases, counts = entries["base"].astype(np.int64), entries["count"].astype(np.int64)
    good = (sizes > 0) & (sizes < _SIZE_MAX) & (counts > 0) & (places >= 0) & (bases >= 0)
    good[1:] &= (places[1:] >= places[:-1] + sizes[:-1]) & (bases[1:] == bases[:-1] + counts[:-1])
    if last is not None and len(entries):
        good[0] &= places[0] >= last.physical_offset + last.size and bases[0] == last.end
    return len(good) if good.all() else int(np.argmin(good))
