"""What lies in a store folder: log files, queues, where a key or a time is. Nothing is changed, no broker is needed.

Touches  files below the folder, through a `FileTree`.

The folder may belong to a running broker, or be a copy of one that was running: queues and index may lag behind the
log, and the newest file of each has room that is not written yet.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aerobee_proto.errors import RecordError
from aerobee_proto.javahash import index_key_hash
from aerobee_proto.records import RecordHeader, scan_header
from aerobee_store.faults.errors import StoreError
from aerobee_store.index import index_file
from aerobee_store.index.next_file import PREPARED_NAME
from aerobee_store.offline.file_tree import Entry, FileTree
from aerobee_store.queues.batch_queue import BATCH_DTYPE
from aerobee_store.queues.batch_queues import BATCH_QUEUE_FOLDER, QUEUE_FOLDER
from aerobee_store.queues.consume_queue import ENTRY_DTYPE
from aerobee_store.walking.log_sources import RowFile

__all__ = [
    "COMMIT_LOG",
    "INDEX",
    "INDEX_SLOTS",
    "QueueFiles",
    "RowFile",
    "StoreFolder",
    "WrongIndexSlots",
    "row_of",
]

COMMIT_LOG: Final = "commitlog"
INDEX: Final = "index"
INDEX_SLOTS: Final = 5_000_000
_RECORD_HEAD_MAX: Final = 256  # covers every field in front of the body
_DIGITS: Final = 20

Entries = NDArray[np.void]


class QueueFiles(NamedTuple):
    """The files of one queue, in their order, and the folder in which they lie. Of a queue of batches entries are
    counted here, not messages."""

    topic: str
    queue_id: int
    folder: str
    files: tuple[RowFile, ...]
    is_batch: bool = False

    def spans(self) -> Iterator[tuple[int, int, str]]:
        """Number of its first entry, entry count and path of each file."""
        size = self.entry_size
        for file in self.files:
            yield file.offset // size, file.size // size, file.path

    @property
    def entry_size(self) -> int:
        """In bytes."""
        return self.dtype.itemsize

    @property
    def dtype(self) -> "np.dtype[np.void]":
        """Of its entries; both kinds begin with `physical_offset` and `size`."""
        return BATCH_DTYPE if self.is_batch else ENTRY_DTYPE


class WrongIndexSlots(StoreError):
    """The index files are not of that many slots."""

    def __init__(self, slots: int, path: str) -> None:
        super().__init__(slots, path)
        self.slots = slots
        self.path = path

    def __str__(self) -> str:
        return f"{self.path} is too small for {self.slots} slots"


def row_of(folder: str, entries: Iterable[Entry]) -> Iterator[RowFile]:
    """Of what lies in a folder the files of a row: those whose names are numbers of 20 digits."""
    for entry in entries:
        if (
            not entry.is_dir
            and len(entry.name) == _DIGITS
            and entry.name.isascii()
            and entry.name.isdecimal()
        ):
            yield RowFile(int(entry.name), int(entry.name) + entry.size, f"{folder}/{entry.name}")


class StoreFolder:
    """Looks into one store. What it has of files is as it was when it was first asked for."""

    def __init__(
        self,
        tree: FileTree,
        *,
        log_tree: FileTree | None = None,
        log_folder: str = COMMIT_LOG,
        index_slots: int = INDEX_SLOTS,
    ) -> None:
        """`log_tree`, `log_folder`: where the log is when it is not below the others. `index_slots`: maxHashSlotNum of
        the broker that wrote the store."""
        self.tree = tree
        self.log_tree = log_tree or tree
        self.log_folder = log_folder
        self._index_slots = index_slots
        self._log_files: tuple[RowFile, ...] | None = None
        self._queues: dict[str, list[QueueFiles]] = {}
        self._batch_queues: list[QueueFiles] | None = None
        self._ranges: dict[tuple[str, int, bool], tuple[int, int]] = {}

    # --- the log ----------------------------------------------------------------------------------------------

    def log_files(self) -> tuple[RowFile, ...]:
        """The files of the log, oldest first; empty where there is no store."""
        if self._log_files is None:
            found = row_of(self.log_folder, self.log_tree.entries(self.log_folder))
            self._log_files = tuple(file for file in found if file.size)
        return self._log_files

    def log_file_at(self, offset: int) -> RowFile | None:
        """The file in which a physical offset lies."""
        for file in self.log_files():
            if file.offset <= offset < file.end:
                return file
        return None

    def read_log(self, file: RowFile, begin: int, end: int) -> memoryview:
        """Bytes by physical offset, within one file."""
        return self.log_tree.read(file.path, begin - file.offset, min(end, file.end) - file.offset)

    def header_at(self, offset: int) -> RecordHeader | None:
        """Head of the record at a physical offset; None when none stands there. Its body may not be there."""
        file = self.log_file_at(offset)
        if file is None:
            return None
        piece = self.read_log(file, offset, offset + _RECORD_HEAD_MAX)
        size = int.from_bytes(piece[:4], "big", signed=True)
        if size > len(piece):
            piece = self.read_log(file, offset, offset + size)
        try:
            found = scan_header(piece, 0)
        except RecordError:
            return None
        return None if found.is_blank or found.physical_offset != offset else found

    def first_store_time(self, file: RowFile) -> int | None:
        """When the first record of a file was stored, ms; None for a file that has none."""
        found = self.header_at(file.offset)
        return None if found is None else found.store_timestamp

    # --- queues -----------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Names of all topics that have a queue folder."""
        return [entry.name for entry in self.tree.entries(QUEUE_FOLDER) if entry.is_dir]

    def batch_topics(self) -> list[str]:
        """Topics with queues of batches, by which no messages are chosen."""
        return [entry.name for entry in self.tree.entries(BATCH_QUEUE_FOLDER) if entry.is_dir]

    def queues(self, topic: str) -> list[QueueFiles]:
        """The queues of a topic, by queue id; empty for a topic that is not here."""
        found = self._queues.get(topic)
        if found is None:
            found = self._queues[topic] = self._find_queues(topic, is_batch=False)
        return found

    def all_queues(self) -> list[QueueFiles]:
        """Every queue of the store, those of batches too: who asks where records lie must leave none out."""
        return [queue for topic in self.topics() for queue in self.queues(topic)] + self.batch_queues()

    def batch_queues(self) -> list[QueueFiles]:
        """The queues of batches, by topic and queue id."""
        if self._batch_queues is None:
            self._batch_queues = [
                queue for topic in self.batch_topics() for queue in self._find_queues(topic, is_batch=True)
            ]
        return self._batch_queues

    def _find_queues(self, topic: str, *, is_batch: bool) -> list[QueueFiles]:
        base = f"{BATCH_QUEUE_FOLDER if is_batch else QUEUE_FOLDER}/{topic}"
        there = [one.name for one in self.tree.entries(base) if one.is_dir and one.name.isdecimal()]
        found = []
        for name in sorted(there, key=lambda one: (int(one), one)):
            folder = f"{base}/{name}"
            files = tuple(row_of(folder, self.tree.entries(folder)))
            found.append(QueueFiles(topic, int(name), folder, files, is_batch))
        return found

    def queue_range(self, queue: QueueFiles) -> tuple[int, int]:
        """Numbers of the first entry that points into the log and one past the last; equal when there is none.

        As it was when it was first asked for, so that a plan is of one moment.
        """
        key = (queue.topic, queue.queue_id, queue.is_batch)
        if key not in self._ranges:
            self._ranges[key] = self._queue_range(queue)
        return self._ranges[key]

    def _queue_range(self, queue: QueueFiles) -> tuple[int, int]:
        if not queue.files:
            return 0, 0
        end = 0
        for first, count, path in reversed(tuple(queue.spans())):
            filled = self._filled(queue, path, count)
            end = first + filled
            if filled:
                break
        begin = next(queue.spans())[0]
        log_begin = self.log_files()[0].offset
        return min(self._first_from(queue, begin, end, log_begin), end), end

    def _filled(self, queue: QueueFiles, path: str, count: int) -> int:
        """How many entries of a file are written: they are those in front of the first without a size."""
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if self._size_in(queue, path, middle) > 0:
                low = middle + 1
            else:
                high = middle
        return low

    def _first_from(self, queue: QueueFiles, begin: int, end: int, physical_offset: int) -> int:
        """Number of the first entry in [begin, end) that points at or behind a physical offset."""
        while begin < end:
            middle = (begin + end) // 2
            if int(self.entries(queue, middle, middle + 1)["physical_offset"][0]) < physical_offset:
                begin = middle + 1
            else:
                end = middle
        return begin

    def first_entry_from(self, queue: QueueFiles, physical_offset: int) -> int | None:
        """Physical offset of the queue's first record at or behind one; None when there is none."""
        begin, end = self.queue_range(queue)
        number = self._first_from(queue, begin, end, physical_offset)
        if number >= end:
            return None
        return int(self.entries(queue, number, number + 1)["physical_offset"][0])

    def _size_in(self, queue: QueueFiles, path: str, index: int) -> int:
        size = queue.entry_size
        raw = np.frombuffer(self.tree.read(path, index * size, (index + 1) * size), queue.dtype)
        return int(raw["size"][0]) if len(raw) else 0

    def entries(self, queue: QueueFiles, begin: int, end: int) -> Entries:
        """The entries with the numbers [begin, end); fewer when files are missing."""
        parts = []
        size = queue.entry_size
        for first, count, path in queue.spans():
            low, high = max(begin, first), min(end, first + count)
            if low < high:
                raw = self.tree.read(path, (low - first) * size, (high - first) * size)
                parts.append(np.frombuffer(raw[: len(raw) // size * size], queue.dtype))
        if not parts:
            return np.empty(0, queue.dtype)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def offset_by_time(self, queue: QueueFiles, timestamp_ms: int) -> int:
        """Number of the queue's first message that was stored at or after a time; one past the last when none was."""
        begin, end = self.queue_range(queue)
        while begin < end:
            middle = (begin + end) // 2
            found = self.header_at(int(self.entries(queue, middle, middle + 1)["physical_offset"][0]))
            # What cannot be read is taken for old: the next one decides.
            if found is None or found.store_timestamp < timestamp_ms:
                begin = middle + 1
            else:
                end = middle
        return begin

    # --- the index --------------------------------------------------------------------------------------------

    def index_files(self) -> list[Entry]:
        """The files of the index, oldest first."""
        return [e for e in self.tree.entries(INDEX) if not e.is_dir and e.name != PREPARED_NAME]

    def offsets_of_key(self, topic: str, key: str) -> list[int]:
        """Physical offsets of the records that the index has under `topic#key`, ascending; some may be others'.

        WrongIndexSlots when its files cannot have that many.
        """
        key_hash = index_key_hash(f"{topic}#{key}")
        found: set[int] = set()
        for entry in self.index_files():
            if entry.name.isdecimal():
                found.update(self._chain(f"{INDEX}/{entry.name}", entry.size, key_hash))
        return sorted(found)

    def _chain(self, path: str, size: int, key_hash: int) -> Iterator[int]:
        """Entries of one index file with a hash, newest first."""
        header = self.tree.read(path, 0, index_file.HEADER_SIZE)
        if len(header) < index_file.HEADER_SIZE:
            return
        count = index_file.HEADER.unpack(header)[5]
        slot_at = index_file.HEADER_SIZE + key_hash % self._index_slots * index_file.SLOT.size
        entries_at = index_file.HEADER_SIZE + self._index_slots * index_file.SLOT.size
        if entries_at > size:
            raise WrongIndexSlots(self._index_slots, path)
        (number,) = index_file.SLOT.unpack(self.tree.read(path, slot_at, slot_at + index_file.SLOT.size))
        while 0 < number < count:
            at = entries_at + number * index_file.ENTRY.size
            raw = self.tree.read(path, at, at + index_file.ENTRY.size)
            if len(raw) < index_file.ENTRY.size:
                return
            found_hash, physical_offset, _, previous = index_file.ENTRY.unpack(raw)
            if found_hash == key_hash:
                yield physical_offset
            if previous >= number:
                return
            number = previous
