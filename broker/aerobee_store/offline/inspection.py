"""A store folder seen from outside: its state, its records, and what is wrong with it.

Touches  the folder, reading: files are mapped read-only, the lock is asked for and never taken. The folder may be
         in use by a broker, ours or RocketMQ's.

Walking the log
- A record is proven by lengths, place, body CRC and, where it has one, its whole-record checksum.
- Bytes that are no record, with a proven record behind them, are damage: the walk goes on behind it.
- Bytes that are no record with nothing proven behind them are the end of the log: clean when they are zero, torn
  otherwise. While a broker writes, a torn end is a record on its way.
"""

import contextlib
import fcntl
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from aerobee_proto.errors import RecordError
from aerobee_proto.names import TIMER_TOPIC
from aerobee_proto.records import StoredRecord, decode_record, scan_header
from aerobee_store.disk.io import DiskIo
from aerobee_store.disk.lock import is_left_by_another
from aerobee_store.disk.mapped_files import file_name
from aerobee_store.faults.errors import CorruptStore, StoreError
from aerobee_store.log.checkpoint import Checkpoint
from aerobee_store.offline.file_tree import Entry, LocalTree
from aerobee_store.offline.folder import COMMIT_LOG, INDEX, QueueFiles, StoreFolder, row_of
from aerobee_store.queues.batch_queues import BATCH_QUEUE_FOLDER, QUEUE_FOLDER, batch_topics
from aerobee_store.queues.tombstones import Tombstones
from aerobee_store.records.record_scan import RecordFault, ScannedRecord, scan_record
from aerobee_store.timer.timer_check import TimerFault, timer_faults
from aerobee_store.walking.log_reader import Damage, LogReader, Proof
from aerobee_store.walking.log_sources import FileSource, RowFile
from aerobee_store.walking.record_columns import Stretch

__all__ = ["MISSING", "Advance", "Finding", "Inspection", "LogEnd", "NotAStore"]

_PARTS: Final = (
    COMMIT_LOG,
    QUEUE_FOLDER,
    BATCH_QUEUE_FOLDER,
    INDEX,
    "config",
    "checkpoint",
    "abort",
    "lock",
    "timerlog",
    "timerwheel",
)
_NEVER: Final = 1 << 63  # a physical offset that no record has
_PROGRESS_STEP: Final = 1 << 20
MISSING: Final = "restore it from a copy; its messages are lost otherwise"
_DAMAGED: Final = (
    "keep a copy of the folder; a start of our broker puts the stretch aside and keeps what follows"
)
# l_type, l_whence, l_start, l_len, l_pid of Linux on 64 bits
_FLOCK: Final = struct.Struct("hhqqi4x")

Advance = Callable[[int], None]


class NotAStore(StoreError):
    """There is no store in the folder that was named."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.root = root

    def __str__(self) -> str:
        what = "holds no store" if self.root.is_dir() else "is no folder"
        return f"{self.root} {what}: give the folder with commitlog and consumequeue in it"


@dataclass(slots=True, frozen=True)
class Finding:
    """One thing that is wrong: where, what, and what to do.

    `begin` and `end` are physical offsets for the log, positions in the file else; None: the file as a whole.
    """

    path: str
    reason: str
    advice: str
    begin: int | None = None
    end: int | None = None
    topic: str | None = None

    def __str__(self) -> str:
        place = "" if self.begin is None else f" at {self.begin}"
        size = "" if self.begin is None or self.end is None else f" ({self.end - self.begin} bytes)"
        return f"{self.path}{place}{size}: {self.reason}"


@dataclass(slots=True, frozen=True)
class LogEnd:
    """Where the log ends: `offset` is one past the last proven record, `is_torn` when other bytes follow."""

    offset: int
    is_torn: bool


class Inspection:
    """One store folder of this machine, and what is found wrong with it. NotAStore when it is none, OSError when it may
    not be read."""

    def __init__(self, root: Path, commit_log: Path | None = None, *, property_crc: bool = False) -> None:
        """`commit_log`: the log's folder when it is not below `root`. `property_crc`: RocketMQ's own whole-record
        checksum must be there and match, as brokers with forceVerifyPropCRC demand."""
        names = {path.name for path in root.iterdir()} if root.is_dir() else set()
        if not names.intersection(_PARTS):
            raise NotAStore(root)
        self.root = root
        self.log_folder = commit_log or root / COMMIT_LOG
        self.folder = _folder_of(root, self.log_folder)
        self._property_crc = property_crc
        self.owner_pid = _lock_owner(root / "lock")
        self.was_aborted = (root / "abort").exists()
        # What the walk of the log has met; complete when `log_end` is set.
        self.findings: list[Finding] = []
        log_entries = self.folder.log_tree.entries(self.folder.log_folder)
        self.log_files, self.log_file_size = self._sound_row(self.folder.log_folder, log_entries)
        self.log_end: LogEnd | None = None
        # Up to where the log is known to have been on disk; from where on every record carries its checksum.
        self.known_durable, self._sealed_from = self._read_watermark()

    @property
    def state(self) -> str:
        """Who has it, or how it was left."""
        if self.owner_pid is not None:
            return f"in use by process {self.owner_pid}"
        return "not closed in order (abort is there)" if self.was_aborted else "closed in order"

    @property
    def is_changing(self) -> bool:
        return self.owner_pid is not None

    @property
    def log_begin(self) -> int:
        """Physical offset of the first byte kept."""
        return self.log_files[0].offset if self.log_files else 0

    def batch_topics(self) -> frozenset[str]:
        """Topics whose queues are of batches; what contradicts itself there becomes a finding."""
        try:
            return batch_topics(self.root, DiskIo())
        except CorruptStore as refused:
            self._find(self.name_of(refused.path), refused.reason, refused.way_out)
            return frozenset(queue.topic for queue, _ in self.queues(batches=True))

    def deleted_topics(self) -> Tombstones:
        """Topics that were deleted while the log still has messages of them. None that can be known when the list
        is damaged: the check of the tables names it."""
        tombstones = Tombstones(self.root, DiskIo())
        with contextlib.suppress(CorruptStore):
            tombstones.load()
        return tombstones

    def name_of(self, path: Path) -> str:
        """A path as findings show it: below the root, or whole. Files of rows are named so already."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)

    # --- files -------------------------------------------------------------------------------------------------

    def view(self, file: RowFile) -> memoryview:
        """The bytes of a file of the log or of a queue, valid for as long as somebody has them."""
        is_log = file.path.startswith(f"{self.folder.log_folder}/")
        return (self.folder.log_tree if is_log else self.folder.tree).read(file.path, 0, file.size)

    def _sound_row(self, folder: str, entries: list[Entry]) -> tuple[list[RowFile], int]:
        """The sound files of a row, in their order, and their size; the others and the gaps become findings."""
        files = list(row_of(folder, entries))
        named = {file.path for file in files}
        for entry in entries:
            if not entry.is_dir and (path := f"{folder}/{entry.name}") not in named:
                self._find(path, "foreign file in a data folder", "move it out of the store")
        if files and files[-1].size == 0:
            files.pop()  # a file whose making was cut short; every start removes it
        if not files:
            return [], 0
        size = Counter(file.size for file in files).most_common(1)[0][0]
        sound = [file for file in files if self._fits(file, size)]
        for before, after in pairwise(sound):
            if before.end != after.offset:
                missing = f"{folder}/{file_name(before.end)}"
                self._find(missing, "the file is missing", MISSING, before.end, after.offset)
        return sound, size

    def _fits(self, file: RowFile, size: int) -> bool:
        if file.size != size:
            self._find(file.path, f"length is {file.size}, the others have {size}", "restore it from a copy")
        elif size and file.offset % size:
            self._find(file.path, f"its name is no multiple of its length {size}", "restore it from a copy")
        else:
            return True
        return False

    def queues(self, *, batches: bool = False) -> Iterator[tuple[QueueFiles, int]]:
        """Each plain queue, or each of batches, with the files of it that are sound, and their size."""
        folder = self.folder
        plain = (queue for topic in folder.topics() for queue in folder.queues(topic))
        for queue in folder.batch_queues() if batches else plain:
            files, size = self._sound_row(queue.folder, folder.tree.entries(queue.folder))
            yield queue._replace(files=tuple(files)), size

    def index_files(self) -> list[tuple[str, int]]:
        """Path and size of the files of the index, oldest first."""
        return [(f"{INDEX}/{entry.name}", entry.size) for entry in self.folder.index_files()]

    def config_files(self) -> list[str]:
        """Paths of the tables of topics, groups and offsets."""
        found = self.folder.tree.entries("config")
        return [
            f"config/{entry.name}" for entry in found if not entry.is_dir and entry.name.endswith(".json")
        ]

    def timer_faults(self) -> list[TimerFault]:
        """What is wrong with the timer files; after a walk of the log. In a store that is in use by themselves only."""
        assert self.log_end is not None
        end = _NEVER if self.is_changing else self.log_end.offset
        ask = None if self.is_changing else self._is_timer_message
        return timer_faults(self.root, DiskIo(), log_min=self.log_begin, log_end=end, is_message=ask)

    def _is_timer_message(self, physical_offset: int, size: int) -> bool:
        for file in self.log_files:
            if file.offset <= physical_offset < file.end:
                view = self.view(file)
                found = scan_record(view, physical_offset - file.offset, physical_offset, proven=True)
                named = (found.size, found.topic) if isinstance(found, ScannedRecord) else (0, "")
                return named == (size, TIMER_TOPIC)
        return False

    def _read_watermark(self) -> tuple[int, int]:
        """What a checkpoint of our own says: (0, past every record) where there is none."""
        checkpoint = Checkpoint(self.root / "checkpoint", DiskIo())
        checkpoint.load()
        mark = checkpoint.mark
        if mark is None or is_left_by_another(self.root, DiskIo()):
            return 0, _NEVER
        return mark.log_end, mark.checksum_from if mark.checksum_from >= 0 else _NEVER

    # --- records -----------------------------------------------------------------------------------------------

    def walk(self, advance: Advance) -> Iterator[ScannedRecord]:
        """Every proven record of the log, oldest first; damage goes to `findings`, the end to `log_end`.

        `advance` is told how many bytes are behind the walk.
        """
        for found in self._walk(advance, self.log_begin, fast=False):
            assert isinstance(found, ScannedRecord)
            yield found

    def stretches(self, advance: Advance, start: int) -> Iterator[Stretch | ScannedRecord]:
        """As walk(), from the physical offset `start`, where a record begins, and many records at a time."""
        return self._walk(advance, start, fast=not self._property_crc)

    def _walk(self, advance: Advance, start: int, *, fast: bool) -> Iterator[Stretch | ScannedRecord]:
        sealed_from = self._sealed_from if self._sealed_from < _NEVER else None
        proof = Proof(property_crc=self._property_crc, sealed_from=sealed_from)
        reader = LogReader(FileSource(self.folder.log_tree, self.log_files), self, proof)
        reported = start
        for found in reader.stretches(start) if fast else reader.walk(start):
            is_next_file = reader.end // self.log_file_size != reported // self.log_file_size
            if is_next_file or reader.end - reported >= _PROGRESS_STEP:
                advance(reader.end - reported)
                reported = reader.end
            yield found
        advance(max(self._log_files_end - reported, 0))
        self.log_end = self._end(reader)

    @property
    def _log_files_end(self) -> int:
        return self.log_files[-1].end if self.log_files else 0

    def damage(self, found: Damage) -> None:
        """A finding of it; for the reader."""
        file = self.log_file_of(found.begin)
        if file is None:
            return  # a missing file is a finding already
        is_zero = _is_zero(self.view(file), found.begin - file.offset)
        text = "zeros where a record must be" if is_zero else found.reason
        self._find(file.path, text, _DAMAGED, found.begin, found.end, self._topic_at(file, found.begin))

    def _topic_at(self, file: RowFile, physical_offset: int) -> str | None:
        """The topic that a damaged record claims, when its lengths still agree."""
        try:
            header = scan_header(self.view(file), physical_offset - file.offset)
        except RecordError:
            return None
        return None if header.is_blank else header.topic

    def _end(self, reader: LogReader) -> LogEnd:
        if not isinstance(reader.rest, RecordFault):
            return LogEnd(self._log_files_end, is_torn=False)
        file = self.log_file_of(reader.end)
        if file is None or _is_zero(self.view(file), reader.end - file.offset):
            return LogEnd(reader.end, is_torn=False)
        if not self.is_changing:
            advice = "the next start cuts it off; after a crash that is right, it was never acknowledged"
            text = f"the log ends with bytes that are no record: {reader.rest.reason}"
            self._find(file.path, text, advice, reader.end, None, self._topic_at(file, reader.end))
        return LogEnd(reader.end, is_torn=True)

    def record_at(self, physical_offset: int) -> StoredRecord | None:
        """The record that begins there, decoded; None when none does."""
        file = self.log_file_of(physical_offset)
        if file is None:
            return None
        try:
            return decode_record(self.view(file), physical_offset - file.offset, check_crc=False)
        except RecordError:
            return None

    def log_file_of(self, physical_offset: int) -> RowFile | None:
        """The log file that holds an offset."""
        covers = (file for file in self.log_files if file.offset <= physical_offset < file.end)
        return next(covers, None)

    def _find(
        self,
        path: str,
        reason: str,
        advice: str,
        begin: int | None = None,
        end: int | None = None,
        topic: str | None = None,
    ) -> None:
        self.findings.append(Finding(path, reason, advice, begin, end, topic))


def _folder_of(root: Path, log_folder: Path) -> StoreFolder:
    """The folder, in which files have the names that findings show."""
    tree = LocalTree(root)
    if log_folder.is_relative_to(root):
        return StoreFolder(tree, log_folder=str(log_folder.relative_to(root)))
    return StoreFolder(tree, log_tree=LocalTree(Path()), log_folder=str(log_folder))


def _is_zero(view: memoryview, position: int) -> bool:
    return not any(view[position : position + 8])


def _lock_owner(path: Path) -> int | None:
    """The process that holds the store's lock; None when nobody does. The lock is not taken."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    finally:
        os.close(descriptor)
    return pid if kind != fcntl.F_UNLCK else None
