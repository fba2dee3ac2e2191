"""Consume queue: one fixed-size entry per message of a queue, in the order of their queue offsets.

Touches  <root>/consumequeue/<topic>/<queue_id>/ and nothing else. No sockets, no asyncio, no clock.
Entry    physical_offset i64 | size i32 | tag_hash i64, big-endian (20 bytes).
Blank    (0, 0x7FFFFFFF, 0): fills the first file of a queue below its first entry; never data.

Invariants
- Entry i lies at byte i * ENTRY_SIZE of the row of files; its queue offset is i.
- Records of a queue do not overlap: an entry's physical offset is not below the end of the one before it.
- min_offset <= max_offset; everything from max_offset to the end of the last file is zero.
- Every file holds at least one entry that is data: a file is created together with its first entry.
- Nothing here that the commit log cannot rebuild: recovery cuts the tail and it is dispatched again.

Threads: one thread calls everything except unflushed() and flushed(), which another may call while entries are put.
"""

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aerobee_store.disk.io import WRITE_CALL_MIN, DataFile, StoreIo, is_zero
from aerobee_store.disk.mapped_files import MappedFile, MappedFileQueue
from aerobee_store.disk.queue_files import OpenQueueFiles, QueueFile
from aerobee_store.faults import failpoints
from aerobee_store.faults.errors import CorruptStore, StoreError, StoreFull
from aerobee_store.queues.append_state import AppendState
from aerobee_store.records.property_columns import Ints
from aerobee_store.records.record_scan import ScannedRecord

__all__ = [
    "BLANK_ENTRY",
    "ENTRY",
    "ENTRY_DTYPE",
    "ENTRY_SIZE",
    "HOLE_SIZE",
    "ConsumeQueue",
    "ConsumeQueueEntry",
    "QueueOutOfOrder",
    "QueueRecovery",
    "Unflushed",
    "tags_of",
]

ENTRY: Final = struct.Struct(">qiq")  # physical_offset, size, tag_hash
ENTRY_SIZE: Final = ENTRY.size
ENTRY_DTYPE: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tag_hash", ">i8")])
BLANK_SIZE: Final = 0x7FFFFFFF
BLANK_ENTRY: Final = ENTRY.pack(0, BLANK_SIZE, 0)

# Size in the entries that keep the numbers of records which cannot be read; no record is so short.
HOLE_SIZE: Final = 1

# Files whose every entry is verified when nothing says how far the queue is known to be durable.
_FILES_VERIFIED_MAX: Final = 3
# Entries looked at by one numpy step of a scan: a short tail is found without paging in the whole file.
_SCAN_STEP: Final = 8192
_FIRST_STEP: Final = 128
# Bytes behind the end of a queue that recovery looks at: in one block with the last entry of nearly all queues.
_NEXT_SIZE: Final = 2760  # whole entries of both kinds
_NOTHING: Final = memoryview(b"")
_NEVER: Final = 1 << 62  # a physical offset that no record reaches

_Entries = NDArray[np.void]


def tags_of(entries: bytes) -> list[int]:
    """The tag fields of packed entries, in order."""
    return [tag for _, _, tag in ENTRY.iter_unpack(entries)]


class ConsumeQueueEntry(NamedTuple):
    """Where a message lies: byte offset and length in the commit log, and the hash of its tag."""

    physical_offset: int
    size: int
    tag_hash: int


Verify = Callable[[ConsumeQueueEntry, int], bool]


class QueueOutOfOrder(StoreError):
    """Entries were offered at another place than the queue's end; nothing was written.

    A larger `offered` is a gap: the queue has to be rebuilt from the log. A smaller one is an overlap:
    the entries are there already. `expected` and `offered` are queue offsets, or physical ones when
    `what` says so.
    """

    def __init__(self, topic: str, queue_id: int, expected: int, offered: int, what: str) -> None:
        super().__init__(topic, queue_id, expected, offered, what)
        self.topic = topic
        self.queue_id = queue_id
        self.expected = expected
        self.offered = offered
        self.what = what

    def __str__(self) -> str:
        kind = "gap" if self.offered > self.expected else "overlap"
        return (
            f"{kind} in queue {self.queue_id} of {self.topic}: {self.what} {self.offered} offered, "
            f"{self.expected} expected; nothing was written"
        )


@dataclass(slots=True, frozen=True)
class QueueRecovery:
    """What recover() found: the range that is left, and how many entries behind it were given up.

    `cut_entries` counts up to the first entry that is all zero. `gaps` are missing files as half-open
    ranges of queue offsets; they were left as they are. `is_broken`: entries close behind the end lead to records
    below `proven_offset`, so it ended further on when it was on disk.
    """

    min_offset: int
    max_offset: int
    cut_entries: int
    gaps: tuple[tuple[int, int], ...]
    is_broken: bool


class ConsumeQueue(AppendState):
    """The entries of one queue of one topic.

    Its many public methods read, append, flush, cut and check one row of entries: all of them work on the same few
    positions, which a second class would have to be told of at each change.
    """

    # What the queue of another kind (batch_queue) has otherwise.
    is_batch: ClassVar[bool] = False
    entry_size: ClassVar[int] = ENTRY_SIZE
    dtype: ClassVar[np.dtype[np.void]] = ENTRY_DTYPE

    __slots__ = (
        "_file_entries",
        "_files",
        "_first_data",
        "_first_place",
        "_flushed_offset",
        "_last_end",
        "_left",
        "_map",
        "_map_base",
        "_open_files",
        "_writable",
        "hot_from",
        "hot_until",
        "max_offset",
        "min_offset",
        "queue_id",
        "topic",
    )

    # As last_physical_end says; None when the newest entry has to be asked.
    _last_end: int | None

    def __init__(
        self,
        topic: str,
        queue_id: int,
        folder: Path,
        file_size: int,
        io: StoreIo,
        *,
        writable: bool = True,
        open_files: OpenQueueFiles | None = None,
    ) -> None:
        """`file_size` in bytes, a multiple of ENTRY_SIZE. Touches no file before load() or put_entries(). `open_files`
        is shared by the queues of a store; None: it has its own.

        Opened with `writable` false, recover() and the cuts leave the files as they are and only end the
        queue where they would.
        """
        super().__init__()
        assert file_size > 0
        assert file_size % self.entry_size == 0
        # Fixed for life.
        self.topic = topic
        self.queue_id = queue_id
        self._open_files = OpenQueueFiles(io) if open_files is None else open_files
        self._files = MappedFileQueue(
            folder, file_size, io, writable=writable, queue=(self, self._open_files)
        )
        self._file_entries = file_size // self.entry_size
        self._writable = writable
        # The map of the last file, the byte of the row where it begins, and how many entries may be stored in it at
        # once, at the end of the queue; set by _see_window(), ended (0) by whatever moves that end in another way.
        self._map: mmap | None = None
        self._map_base = 0
        self._left = 0
        self._start_again()

    # --- loading and recovery --------------------------------------------------------------------------

    def load(self) -> bool:
        """See which files there are; whether an empty one was removed, as a crash may leave it, and nothing else.

        Until recover() has run, the queue claims every entry the files have room for.

        Raises CorruptStore for a foreign name or a file of a wrong length.
        """
        self._files.load()
        self.max_offset = self._files.end_offset // ENTRY_SIZE
        self.min_offset = self._first_data = self._files.min_offset // ENTRY_SIZE
        return self._files.dropped_empty

    def recover(
        self,
        verify: Verify | None = None,
        *,
        log_min: int = 0,
        proven_offset: int = 0,
        walked_from: int = _NEVER,
    ) -> QueueRecovery:
        """Find the end of the valid entries, drop what is behind it, and zero it on disk.

        `verify(entry, queue_offset)` compares an entry with its record; it is not asked about records
        below the physical offset `log_min`, which are gone, nor about those from `walked_from` on, which the
        caller is going to compare. Entries of records below `proven_offset` are
        known to be durable: only the last of them is verified, and of the files before it the first and
        last entry. Without that knowledge (0) every entry must be sound by itself and behind the one
        before it (about 13 ms a million), and the entries of the last three files are all verified.

        A store may have many more queues than files may be open: everything that is asked of all queues at a start is
        read now, while this one's are.
        """
        self.min_offset = self._first_data = self._find_first_data()
        end = self._valid_end(_Check(verify, log_min, proven_offset, walked_from))
        behind = self._behind(end * ENTRY_SIZE)
        cut_entries = self._count_until_zero(end) if any(behind[:ENTRY_SIZE]) else 0
        is_broken = self._leads_below(behind, proven_offset)
        self._cut(end)
        self._flushed_offset = 0
        if self.max_offset:
            self._first_place = self._entry_at(self._first_data).physical_offset
            assert self.last_physical_end >= 0
        return QueueRecovery(self.min_offset, self.max_offset, cut_entries, self.gaps, is_broken)

    def goes_on(self, offset: int, proven_offset: int) -> bool:
        """Whether an entry close behind the queue offset `offset` leads to a record below the physical
        `proven_offset`."""
        is_inside = offset < self.max_offset
        return is_inside and self._leads_below(self._behind(offset * ENTRY_SIZE), proven_offset)

    def _behind(self, position: int) -> bytes:
        """The next entries from byte `position` of the row on, as they lie in its file."""
        file = self._files.find(position)
        if file is None:
            return b""
        size = min(_NEXT_SIZE, file.end - position)
        return bytes(_piece(file, position - file.offset, size))

    def _leads_below(self, raw: bytes, proven_offset: int) -> bool:
        """Whether one of these entries leads to a record below the physical `proven_offset`."""
        entries = np.frombuffer(raw, self.dtype)
        places, sizes = entries["physical_offset"], entries["size"]
        proven = (places >= 0) & (places < proven_offset)
        return bool((proven & (sizes > HOLE_SIZE) & (sizes < BLANK_SIZE)).any())

    @property
    def folder(self) -> Path:
        """Where its files lie."""
        return self._files.folder

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """Half-open ranges of queue offsets whose files are missing."""
        return tuple((a // ENTRY_SIZE, b // ENTRY_SIZE) for a, b in self._files.gaps)

    @property
    def file_spans(self) -> list[range]:
        """Per file, oldest first, the queue offsets of its entries that are written, blanks included."""
        ends = [min(f.end // ENTRY_SIZE, self.max_offset) for f in self._files.files]
        return [range(f.offset // ENTRY_SIZE, end) for f, end in zip(self._files.files, ends, strict=True)]

    def _find_first_data(self) -> int:
        """First queue offset of the first file that is not a blank; the file's end when all are."""
        if not self._files.files:
            return 0
        file = self._files.files[0]
        if _piece(file, 0, ENTRY_SIZE) != BLANK_ENTRY:
            return file.offset // ENTRY_SIZE  # as of nearly all
        for start, entries in _steps(file, 0):
            blank = (entries["physical_offset"] == 0) & (entries["size"] == BLANK_SIZE)
            blank &= entries["tag_hash"] == 0
            count = _leading_true(blank)
            if count < len(entries):
                return file.offset // ENTRY_SIZE + start + count
        return file.end // ENTRY_SIZE

    def _valid_end(self, check: "_Check") -> int:
        """One past the last valid entry, as a queue offset."""
        files = self._files.files
        scan_from = self._scan_from(check)
        previous_end = 0
        end = self._first_data
        for file in files:
            base = file.offset // ENTRY_SIZE
            start = max(self._first_data - base, 0)
            if start >= self._file_entries:
                continue
            deep_from = min(max(scan_from - base, start), self._file_entries)
            good = check.good_entries(file, base, start, deep_from, previous_end)
            end = base + good
            if good < self._file_entries:
                break
            last = _fields(file, good - 1)
            previous_end = last[0] + last[1]
        return end

    def _scan_from(self, check: "_Check") -> int:
        """Queue offset from which every entry is verified."""
        files = self._files.files
        if not files:
            return 0
        if check.proven_offset <= 0:
            return files[-_FILES_VERIFIED_MAX:][0].offset // ENTRY_SIZE
        proven = check.proven_offset
        return max(self._first_not(lambda e: e.size > 0 and e.physical_offset + e.size <= proven) - 1, 0)

    def _first_not(self, holds: Callable[[ConsumeQueueEntry], bool]) -> int:
        """First queue offset of data for which `holds` is false; it must be true up to there only.

        Bisects over all files: the file first, then the entry in it. max_offset when it always holds.
        """
        spans = [range(max(s.start, self._first_data), s.stop) for s in self.file_spans]
        spans = [span for span in spans if span]
        index = bisect_left(spans, True, key=lambda span: not holds(self._entry_at(span.start)))
        if index == 0:
            return spans[0].start if spans else self.max_offset
        span = spans[index - 1]
        # Most queues are short and the files have room for many: ever further from the beginning first.
        low, high = 0, 1
        while high < len(span) and holds(self._entry_at(span[high])):
            low, high = high, 2 * high
        found = bisect_left(
            span, True, low, min(high, len(span)), key=lambda offset: not holds(self._entry_at(offset))
        )
        if found < len(span):
            return span[found]
        return spans[index].start if index < len(spans) else self.max_offset

    def _count_until_zero(self, offset: int) -> int:
        """Entries from `offset` on, within its file, until one that is all zero."""
        file = self._files.find(offset * ENTRY_SIZE)
        if file is None:
            return 0
        count = 0
        for _, entries in _steps(file, offset - file.offset // ENTRY_SIZE):
            filled = (entries["physical_offset"] != 0) | (entries["size"] != 0) | (entries["tag_hash"] != 0)
            run = _leading_true(filled)
            count += run
            if run < len(entries):
                break
        return count

    # --- cutting ---------------------------------------------------------------------------------------

    def cut_at_physical(self, physical_offset: int) -> int:
        """Drop the entries of all records that do not end at or below `physical_offset`; how many went.

        What is cut is zero on disk when this returns. OSError is final for the store.
        """
        if self.last_physical_end <= physical_offset:
            return 0
        end = self._first_not(lambda e: e.physical_offset + e.size <= physical_offset)
        dropped = self.max_offset - end
        self._cut(end)
        return dropped

    def cut_at(self, offset: int) -> None:
        """Drop every entry from the queue offset `offset` on; zero on disk when this returns."""
        if offset < self.max_offset:
            self._cut(max(offset, self._first_data))

    def _cut(self, end: int) -> None:
        """Make `end` the max_offset; files without data go. Without any data the queue starts again at 0."""
        files = self._files
        self.forget_window()
        if end <= self._first_data:
            if self._writable:
                files.destroy()
            self._start_again()
            return
        if self._writable:
            files.truncate(end * ENTRY_SIZE)
            while files.files[-1].offset >= end * ENTRY_SIZE:
                files.drop_last()
        # A cut that begins in a gap ends the queue at the file before it.
        self.max_offset = min(
            end, max(f.end for f in files.files if f.offset < end * ENTRY_SIZE) // ENTRY_SIZE
        )
        self.min_offset = min(self.min_offset, self.max_offset)
        self._flushed_offset = min(self._flushed_offset, self.max_offset)
        self._last_end = None

    def _start_again(self) -> None:
        """As a queue is that has no entries; the numbers that entries move begin here, those of another kind too."""
        # Queue offsets. min_offset is moved by correct_min_offset() and by what cuts or cleans;
        # _first_data is the first entry in the files that is not a blank.
        self.min_offset = self.max_offset = self._first_data = 0
        # Where the record of that entry begins, once recover() has seen it; -1: unknown.
        self._first_place = -1
        self._last_end = -1
        # Moved by flushed() only, and back by a cut.
        self._flushed_offset = 0
        # Reads that begin at one of these queue offsets, and take no more than the usual count, find their entries in
        # memory; set and taken back by whoever asks the system for it.
        self.hot_from = self.hot_until = 0

    @property
    def last_physical_end(self) -> int:
        """One past the last byte of the newest record; -1 without one."""
        if self._last_end is None:
            newest = self._entry_at(self.max_offset - 1)
            self._last_end = newest.physical_offset + newest.size
        return self._last_end

    # --- writing ---------------------------------------------------------------------------------------

    def put_entries(self, first_offset: int, entries: bytes, *, rising: bool = False) -> None:
        """Append n packed entries (n * ENTRY_SIZE bytes) whose first has the queue offset `first_offset`.

        An empty queue may start anywhere; otherwise `first_offset` must be max_offset and the first
        record must not begin before the end of the newest one, else QueueOutOfOrder and nothing is
        written. StoreFull when a new file finds no room; nothing is written then either. `rising`: the caller
        knows that the records lie behind all others of the queue.
        """
        size = len(entries)
        assert size
        assert not size % ENTRY_SIZE
        # With a thousand topics this is called for each message, and every object touched has to be brought from
        # memory: one that is spared is 0.1 us (bench/load.py --only topics).
        if failpoints.active:
            failpoints.hit("consume_queue.before_write")
        position = first_offset * ENTRY_SIZE
        count = size // ENTRY_SIZE
        if first_offset != self.max_offset and self._files.files:
            raise self._out_of_order(self.max_offset, first_offset, "queue offset")
        if not rising and (oldest := ENTRY.unpack_from(entries)[0]) < self.last_physical_end:
            raise self._out_of_order(self.last_physical_end, oldest, "physical offset")
        if count <= self._left and size < WRITE_CALL_MIN and self._map is not None:
            position -= self._map_base
            self._map[position : position + size] = entries
            self._left -= count
        else:
            if self._files.files:
                self._write(position, entries)
            else:
                self._put_first(first_offset, entries)
            self._see_window(position + size)
        if failpoints.active:
            failpoints.hit("consume_queue.after_write")
        self.max_offset = first_offset + count
        if self._last_end is not None:
            self._last_end = None

    def _see_window(self, end: int) -> None:
        """The queue ends at byte `end` of the row: what may be stored behind it."""
        last = self._files.files[-1]
        window = last.data.window()
        if window is None:
            self.forget_window()
            return
        # As a number of entries, a small one as long as windows are pages: Python has only one object for each.
        self._left = max(last.offset + window.end - end, 0) // ENTRY_SIZE
        self._map, self._map_base = window.map, last.offset

    def forget_window(self) -> None:
        """Nothing may be stored through the map any more."""
        self._map, self._map_base, self._left = None, 0, 0

    def write_again(self, offset: int, entry: bytes) -> None:
        """Put a packed entry in place of the one at the queue offset `offset`, which holds something else; durable on
        return. Nothing happens outside the queue's data. For any thread."""
        file = self._files.find(offset * ENTRY_SIZE)
        if file is not None and self._first_data <= offset < self.max_offset:
            self._first_place = -1
            file.data.write(offset * ENTRY_SIZE - file.offset, entry)
            file.data.sync()

    def _out_of_order(self, expected: int, offered: int, what: str) -> QueueOutOfOrder:
        return QueueOutOfOrder(self.topic, self.queue_id, expected, offered, what)

    def _put_first(self, first_offset: int, entries: bytes) -> None:
        """Begin the queue at `first_offset`; entries of the same file before it become blanks."""
        blanks = first_offset % self._file_entries
        self._write((first_offset - blanks) * ENTRY_SIZE, BLANK_ENTRY * blanks + entries)
        self._first_data = self.min_offset = self._flushed_offset = first_offset
        self._first_place = -1

    def _write(self, position: int, data: bytes) -> None:
        """Write at the end of the row, where byte `position` is; one write a file, files created first."""
        files = self._files
        end = position + len(data)
        last = files.files[-1] if files.files else None
        if last is not None and end <= last.end:
            last.data.write(position - last.offset, data)
            return
        room_end = last.end if last is not None else position
        count = len(files.files)
        try:
            while room_end < end:
                room_end = files.create(room_end, min(end - room_end, files.file_size)).end
            self._write_pieces(position, memoryview(data))
        except (StoreError, OSError):
            while len(files.files) > count:
                files.drop_last()
            raise

    def _write_pieces(self, position: int, rest: memoryview) -> None:
        """One write a file. The first may find no room; the others, new ones, have what they need."""
        for file in self._files.files:
            if file.end <= position or not rest:
                continue
            piece = rest[: file.end - position]
            file.data.write(position - file.offset, piece)
            position += len(piece)
            rest = rest[len(piece) :]

    def open_files(self) -> list[DataFile]:
        """The files as they are open now. For any thread."""
        return [file.data for file in self._files.files]

    def write_unflushed_again(self) -> None:
        """Write every entry that is not known to be durable once more, so that the next flush brings it to the disk:
        a sync that failed in an earlier run has left it in memory alone, and a page that nobody writes to is clean.
        What finds no room for that stays as it is."""
        self._write_again_from(self._flushed_offset * ENTRY_SIZE, self.max_offset * ENTRY_SIZE)

    def _write_again_from(self, position: int, end: int) -> None:
        """The bytes of the row from `position` to `end`."""
        for file in self._files.files:
            begin, stop = max(position, file.offset) - file.offset, min(end, file.end) - file.offset
            if begin < stop and isinstance(file.data, QueueFile):
                with suppress(StoreFull):
                    file.data.write_again(begin, stop - begin)

    def unflushed(self) -> "Unflushed | None":
        """What has to be synced to make every entry put before this call durable; None when nothing has."""
        target = self.max_offset
        flushed = self._flushed_offset * ENTRY_SIZE
        if flushed >= target * ENTRY_SIZE:
            return None
        return self._unflushed_from(flushed, target)

    def _unflushed_from(self, position: int, max_offset: int) -> "Unflushed":
        """What lies behind byte `position` of the row."""
        failpoints.hit("consume_queue.before_sync")
        folders, new = self._files.new_names()
        rows = self._files.files
        files = [file.data for file in rows if file.end > position and isinstance(file.data, QueueFile)]
        return Unflushed(self, max_offset, files, folders, new)

    @property
    def is_flushed(self) -> bool:
        """Whether every entry is durable."""
        return self._flushed_offset >= self.max_offset

    def flushed(self, unflushed: "Unflushed") -> None:
        """It has been synced."""
        failpoints.hit("consume_queue.after_sync")
        self._files.names_durable(unflushed.new)
        self._flushed_offset = min(unflushed.max_offset, self.max_offset)

    # --- reading ---------------------------------------------------------------------------------------

    def read(self, offset: int, max_entries: int) -> memoryview:
        """Packed entries from the queue offset `offset` on: at most `max_entries`, and none beyond its file.

        The view is read-only and stays valid; it is empty outside the data of the queue.
        """
        end = min(offset + max_entries, self.max_offset)
        if not self._first_data <= offset < end:
            return _NOTHING
        begin = offset * ENTRY_SIZE
        files = self._files.files
        file = files[-1] if files and begin >= files[-1].offset else self._files.find(begin)
        if file is None:
            return _NOTHING
        return _piece(file, begin - file.offset, min(end * ENTRY_SIZE, file.end) - begin)

    def file_of(self, offset: int) -> MappedFile | None:
        """The file that the entry of a queue offset lies in."""
        return self._files.find(offset * ENTRY_SIZE) if self._first_data <= offset < self.max_offset else None

    def entry(self, offset: int) -> ConsumeQueueEntry | None:
        """The entry at the queue offset `offset`; None where the queue has no data."""
        if not self._first_data <= offset < self.max_offset:
            return None
        file = self._files.find(offset * ENTRY_SIZE)
        if file is None:
            return None
        raw = _piece(file, offset * ENTRY_SIZE - file.offset, ENTRY_SIZE)
        return ConsumeQueueEntry._make(ENTRY.unpack(raw)) if raw else None

    def _entry_at(self, offset: int) -> ConsumeQueueEntry:
        found = self.entry(offset)
        assert found is not None
        return found

    def first_of(self, offset: int) -> int:
        """The number of the record that the message `offset` is in: the first of its messages'."""
        return offset

    def after(self, offset: int) -> int:
        """The number of the record behind the one that the message `offset` is in."""
        return offset + 1

    # --- entries that are not in the files yet -------------------------------------------------------------

    def packed(self, record: ScannedRecord, tag_hash: int, offset: int) -> bytes:
        """The packed entry of a record that gets the number `offset`."""
        return ENTRY.pack(record.physical_offset, record.size, tag_hash)

    def count_in(self, entries: bytes) -> int:
        """How many numbers packed entries take."""
        return len(entries) // ENTRY_SIZE

    def numbers(self, entries: NDArray[np.void], first: int) -> Ints:
        """The number of each of these entries, that read(first, ...) gave."""
        return np.arange(first, first + len(entries))

    def holes(self, first: int, count: int, end: int) -> bytes:
        """Packed entries that lead to no record and keep `count` numbers from `first` on taken; the last leads to the
        byte before the physical offset `end`."""
        return b"".join([ENTRY.pack(place, HOLE_SIZE, 0) for place in range(end - count, end)])

    def may_hold(self, count: int, room: int, record_size_min: int) -> bool:
        """Whether `room` bytes of the log may hold records with so many numbers."""
        return room >= count * record_size_min

    def fits_again(self, offset: int, entry: bytes) -> bool:
        """Whether write_again() would put the entry between its neighbours."""
        place, size, _ = ENTRY.unpack_from(entry)
        before, behind = self.entry(offset - 1), self.entry(offset + 1)
        fits_before = before is None or before.physical_offset + before.size <= place
        fits_behind = behind is None or place + size <= behind.physical_offset
        return offset >= self.min_offset and fits_before and fits_behind

    # --- the lower end ---------------------------------------------------------------------------------

    def correct_min_offset(self, log_min: int) -> None:
        """Move min_offset to the first entry whose record begins at or above `log_min`, in whatever file.

        When all records are gone, min_offset is max_offset: the queue's numbers go on.
        """
        if log_min <= self._first_place:
            self.min_offset = self._first_data
        elif log_min >= self.last_physical_end:
            self.min_offset = self.max_offset
        else:
            self.min_offset = self._first_not(lambda entry: entry.physical_offset < log_min)

    def release_before(self, log_min: int) -> list[MappedFile]:
        """Take the oldest files out whose every record lies below `log_min`, never the last. They are closed; deleting
        them, oldest first, is the caller's business."""
        released = []
        while self._is_first_stale(log_min):
            released.append(self._files.release_first())
            released[-1].data.close()  # by this thread, as it is open in this thread; it may be closed again
            self._see_first_file()
        first = self.entry(self.min_offset)
        if first is None or first.physical_offset < log_min:
            self.correct_min_offset(log_min)
        return released

    def _see_first_file(self) -> None:
        """The first file is another one now: the queue begins in it."""
        self._first_data, self._first_place = self._files.min_offset // ENTRY_SIZE, -1

    def _is_first_stale(self, log_min: int) -> bool:
        """Whether there is a file that may go: every record of it lies below `log_min`, and it is not the last."""
        if len(self._files.files) < 2:
            return False
        first = self._files.files[0]
        return _fields(first, (first.end - first.offset) // ENTRY_SIZE - 1)[0] < log_min

    def destroy(self) -> None:
        """Delete all files and the folder; the queue is empty afterwards and may be used again."""
        self.forget_window()
        self._files.destroy()
        self._start_again()

    def close(self) -> None:
        """Close the files; views handed out stay readable. Nothing is flushed."""
        self.forget_window()
        self._files.close()

    # --- invariants ------------------------------------------------------------------------------------

    def check(self) -> None:
        """Walk every entry and the space behind the last; raise CorruptStore at the first broken invariant."""
        for data in self.open_files():
            if isinstance(data, QueueFile):
                data.forget_block()  # what is in the file is asked
        if not self._files.files:
            self._require(self.max_offset == 0, None, "entries without files")
            return
        self._require(not self._files.gaps, None, f"files are missing: {self.gaps}")
        self._require(self._first_data <= self.min_offset <= self.max_offset, None, "offsets out of order")
        self._require(self._first_data == self._find_first_data(), None, "first entry is not where it was")
        previous_end = 0
        for file, span in zip(self._files.files, self.file_spans, strict=True):
            previous_end = self._check_file(file, span, previous_end)
        self._require(previous_end == self.last_physical_end, None, "the newest record ends elsewhere")

    def _check_file(self, file: MappedFile, span: range, previous_end: int) -> int:
        base = span.start
        start = max(self._first_data - base, 0)
        self._require(start < len(span), file, "file without entries")
        check = _Check(None, 0, 0, _NEVER)
        good = check.good_entries(file, base, start, start, previous_end)
        self._require(good >= len(span), file, f"broken entry {base + good}", good * ENTRY_SIZE)
        self._require(
            _is_zero_from(file, len(span) * ENTRY_SIZE),
            file,
            "bytes behind the last entry are not zero",
            len(span) * ENTRY_SIZE,
        )
        last = self._entry_at(span[-1])
        return last.physical_offset + last.size

    def _require(
        self, holds: bool, file: MappedFile | None, reason: str, position: int | None = None
    ) -> None:
        if not holds:
            path = self._files.folder if file is None else file.data.path
            raise CorruptStore(path, position, reason, "cut the queue and dispatch it again from the log")


class Unflushed(NamedTuple):
    """Files, and folders if a file is new, to be synced before the queue is on disk up to `max_offset`.

    Until flushed() is told, the next unflushed() names them again.
    """

    queue: ConsumeQueue
    max_offset: int
    files: list[QueueFile]
    folders: list[Path]
    new: int


@dataclass(slots=True, frozen=True)
class _Check:
    """How recovery judges the entries of a file."""

    verify: Verify | None
    log_min: int
    proven_offset: int
    walked_from: int

    def good_entries(self, file: MappedFile, base: int, start: int, deep_from: int, previous_end: int) -> int:
        """One past the last valid entry of `file`, counted in the file; all arguments but the last are too.

        Entries below `start` are blanks; those from `deep_from` on are all verified. Of the others the
        first and last are, and all are looked at when nothing is proven. `previous_end` is where the
        record before `start` ends.
        """
        if deep_from > start:
            if not self._older_holds(file, base, start, deep_from, previous_end):
                return self._good_run(file, base, start, previous_end)
            physical_offset, size, _ = _fields(file, deep_from - 1)
            previous_end = physical_offset + size
        return self._good_run(file, base, deep_from, previous_end)

    def _older_holds(self, file: MappedFile, base: int, start: int, stop: int, previous_end: int) -> bool:
        """Whether entries [start, stop) of an older file look right, without asking the log about each."""
        if self.proven_offset <= 0 and not self._all_sound(file, start, stop, previous_end):
            return False
        for index in sorted({start, stop - 1}):
            entry = ConsumeQueueEntry._make(_fields(file, index))
            if not self._edge_holds(entry, base + index, previous_end):
                return False
            previous_end = entry.physical_offset + entry.size
        return True

    def _all_sound(self, file: MappedFile, start: int, stop: int, previous_end: int) -> bool:
        for _, entries in _steps(file, start, stop):
            if self._sound(entries, previous_end) < len(entries):
                return False
            previous_end = int(entries["physical_offset"][-1]) + int(entries["size"][-1])
        return True

    def _edge_holds(self, entry: ConsumeQueueEntry, offset: int, previous_end: int) -> bool:
        sound = previous_end <= entry.physical_offset < _NEVER and 0 < entry.size < BLANK_SIZE
        return sound and self._verified(entry, offset)

    def _verified(self, entry: ConsumeQueueEntry, offset: int) -> bool:
        if entry.physical_offset < self.log_min:
            return entry.physical_offset + entry.size <= self.log_min  # records do not span files
        if self.verify is None or entry.physical_offset >= self.walked_from:
            return True
        return self.verify(entry, offset)

    def _good_run(self, file: MappedFile, base: int, start: int, previous_end: int) -> int:
        """One past the last of the valid entries that follow each other from `start`."""
        for first, entries in _steps(file, start):
            good = self._sound(entries, previous_end)
            if self.verify is not None:
                good = self._first_unverified(entries[:good], base + first)
            if good < len(entries):
                return first + good
            previous_end = int(entries["physical_offset"][-1]) + int(entries["size"][-1])
        return (file.end - file.offset) // ENTRY_SIZE

    def _sound(self, entries: _Entries, previous_end: int) -> int:
        """Leading entries that may be true judged by themselves: sized, and each behind the one before."""
        begins = entries["physical_offset"].astype(np.int64)
        sizes = entries["size"].astype(np.int64)
        bounds = np.empty_like(begins)
        bounds[0] = previous_end
        np.add(begins[:-1], sizes[:-1], out=bounds[1:])
        return _leading_true((sizes > 0) & (sizes < BLANK_SIZE) & (begins >= bounds) & (begins < _NEVER))

    def _first_unverified(self, entries: _Entries, base: int) -> int:
        """Leading entries that agree with their records."""
        begins = entries["physical_offset"]
        asked = np.flatnonzero((begins + entries["size"] > self.log_min) & (begins < self.walked_from))
        for index, fields in zip(asked.tolist(), entries[asked].tolist(), strict=True):
            if not self._verified(ConsumeQueueEntry._make(fields), base + index):
                return index
        return len(entries)


def _steps(file: MappedFile, start: int, stop: int | None = None) -> Iterator[tuple[int, _Entries]]:
    """The entries [start, stop) of `file`, or all from `start` on, in arrays of at most _SCAN_STEP, small ones first,
    as most queues are short; numbers count in the file."""
    count = (file.end - file.offset) // ENTRY_SIZE if stop is None else stop
    first, step = start, _FIRST_STEP
    while first < count:
        stop = min(first + step, count)
        yield (
            first,
            np.frombuffer(_piece(file, first * ENTRY_SIZE, (stop - first) * ENTRY_SIZE), ENTRY_DTYPE),
        )
        first, step = stop, min(step * 4, _SCAN_STEP)


def _piece(file: MappedFile, position: int, length: int) -> memoryview:
    data = file.data
    assert isinstance(data, QueueFile)
    return data.piece(position, length)


def _fields(file: MappedFile, index: int) -> tuple[int, int, int]:
    """The entry number `index` of `file`."""
    return ENTRY.unpack(_piece(file, index * ENTRY_SIZE, ENTRY_SIZE))


def _is_zero_from(file: MappedFile, position: int) -> bool:
    """Whether everything in `file` from `position` on is zero."""
    return all(
        is_zero(file.data.read(at, min(_SCAN_STEP * ENTRY_SIZE, stop - at)))
        for begin, stop in file.data.data_extents(position, file.data.size)
        for at in range(begin, stop, _SCAN_STEP * ENTRY_SIZE)
    )


def _leading_true(flags: NDArray[Any]) -> int:
    """Number of true values before the first false one."""
    return len(flags) if flags.all() else int(np.argmin(flags))
