"""A store folder seen from outside: files, records, what is damaged. The only module here that knows the store.

Touches  the folder, reading: files are mapped read-only, the lock is asked for and never taken. The folder may be
         in use by a broker, ours or RocketMQ's. Only rebuild() opens the store itself, under its lock.

Walking the log
- A record is proven by lengths, place, body CRC and, where it has one, its whole-record checksum.
- Bytes that are no record, with a proven record behind them, are damage: the walk goes on behind it.
- Bytes that are no record with nothing proven behind them are the end of the log: clean when they are zero, torn
  otherwise. While a broker writes, a torn end is a record on its way.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from aerobee_console.failures import FAULT, USAGE, Failure
from aerobee_proto.errors import RecordError
from aerobee_proto.names import TIMER_TOPIC
from aerobee_proto.records import StoredRecord, decode_record, scan_header
from aerobee_store.batch_queue import BATCH_DTYPE, BATCH_ENTRY_SIZE
from aerobee_store.batch_queues import BATCH_QUEUE_FOLDER, QUEUE_FOLDER, batch_topics
from aerobee_store.checkpoint import CHECKPOINT_SIZE, Checkpoint
from aerobee_store.config import StoreConfig
from aerobee_store.consume_queue import BLANK_SIZE, ENTRY_DTYPE, ENTRY_SIZE
from aerobee_store.delay import SCHEDULE_TOPIC, entry_tag
from aerobee_store.disk_space import disk_use
from aerobee_store.errors import CorruptStore, StoreLocked
from aerobee_store.index_file import HEADER_SIZE as INDEX_HEADER_SIZE
from aerobee_store.io import DiskIo
from aerobee_store.log_walk import FastSteps
from aerobee_store.record_columns import Stretch, sound_records
from aerobee_store.record_scan import Blank, RecordFault, ScannedRecord, record_places, scan_record
from aerobee_store.timer_check import TimerFault, timer_faults
from aerobee_store.tombstones import Tombstones

__all__ = [
    "BATCH_DTYPE",
    "BATCH_ENTRY_SIZE",
    "BLANK_SIZE",
    "CHECKPOINT_SIZE",
    "ENTRY_DTYPE",
    "ENTRY_SIZE",
    "INDEX_HEADER_SIZE",
    "MISSING",
    "SCHEDULE_TOPIC",
    "DataFile",
    "Finding",
    "LogEnd",
    "ScannedRecord",
    "StoreFolder",
    "StoreSettings",
    "Stretch",
    "disk_use",
    "entry_tag",
    "rebuild",
]

PARTS: Final = (
    "commitlog",
    "consumequeue",
    "batchconsumequeue",
    "index",
    "config",
    "checkpoint",
    "abort",
    "lock",
    "timerlog",
    "timerwheel",
)
NAME_DIGITS: Final = 20
SEARCH_STEP: Final = 4 << 20
NEVER: Final = 1 << 63  # a physical offset that no record has
PROGRESS_STEP: Final = 1 << 20
MISSING: Final = "restore it from a copy; its messages are lost otherwise"
DAMAGED: Final = (
    "keep a copy of the folder; a start of our broker puts the stretch aside and keeps what follows"
)
# l_type, l_whence, l_start, l_len, l_pid of Linux on 64 bits
FLOCK: Final = struct.Struct("hhqqi4x")

Advance = Callable[[int], None]
StoreSettings = StoreConfig


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
class DataFile:
    """A file of a row (log or queue): `offset` is the name's number."""

    path: Path
    offset: int
    size: int

    def view(self) -> memoryview:
        """Its bytes, mapped read-only for as long as the view lives."""
        if self.size == 0:
            return memoryview(b"")
        with self.path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ))


@dataclass(slots=True, frozen=True)
class LogEnd:
    """Where the log ends: `offset` is one past the last proven record, `is_torn` when other bytes follow."""

    offset: int
    is_torn: bool


class StoreFolder:
    """One store folder. Raises Failure (exit code 2) when it is none, OSError when it may not be read."""

    def __init__(self, root: Path, commit_log: Path | None = None, *, property_crc: bool = False) -> None:
        """`commit_log`: the log's folder when it is not below `root`. `property_crc`: RocketMQ's own whole-record
        checksum must be there and match, as brokers with forceVerifyPropCRC demand."""
        names = {path.name for path in root.iterdir()} if root.is_dir() else set()
        if not names.intersection(PARTS):
            what = "holds no store" if root.is_dir() else "is no folder"
            raise Failure(f"{root} {what}: give the folder with commitlog and consumequeue in it", USAGE)
        self.root = root
        self._property_crc = property_crc
        self.log_folder = commit_log or root / "commitlog"
        self.owner_pid = _lock_owner(root / "lock")
        self.was_aborted = (root / "abort").exists()
        # What the walk of the log has met; complete when `log_end` is set.
        self.findings: list[Finding] = []
        self.log_files, self.log_file_size = self._row(self.log_folder)
        self.log_end: LogEnd | None = None
        # Up to where the log is known to have been on disk; from where on every record carries its checksum.
        self.known_durable, self._sealed_from = self._read_watermark()
        self._views: dict[Path, memoryview] = {}  # of log files; maps cost address space alone

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
            self._find(refused.path, refused.reason, refused.way_out)
            return frozenset(topic for topic, _, _, _ in self.queues(batches=True))

    def deleted_topics(self) -> Tombstones:
        """Topics that were deleted while the log still has messages of them. None that can be known when the list
        is damaged: the check of the tables names it."""
        tombstones = Tombstones(self.root, DiskIo())
        with contextlib.suppress(CorruptStore):
            tombstones.load()
        return tombstones

    def name_of(self, path: Path) -> str:
        """A path as findings show it: below the root, or whole."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)

    # --- files -------------------------------------------------------------------------------------------------

    def _row(self, folder: Path) -> tuple[list[DataFile], int]:
        """The sound files of a row, by offset, and their size; the others and the gaps become findings."""
        files: list[DataFile] = []
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.is_dir():
                continue
            if len(path.name) == NAME_DIGITS and path.name.isascii() and path.name.isdecimal():
                files.append(DataFile(path, int(path.name), path.stat().st_size))
            else:
                self._find(path, "foreign file in a data folder", "move it out of the store")
        if files and files[-1].size == 0:
            files.pop()  # a file whose making was cut short; every start removes it
        if not files:
            return [], 0
        size = Counter(file.size for file in files).most_common(1)[0][0]
        sound = [file for file in files if self._fits(file, size)]
        for before, after in pairwise(sound):
            if before.offset + size != after.offset:
                missing = folder / f"{before.offset + size:0{NAME_DIGITS}d}"
                self._find(missing, "the file is missing", MISSING, before.offset + size, after.offset)
        return sound, size

    def _fits(self, file: DataFile, size: int) -> bool:
        if file.size != size:
            self._find(file.path, f"length is {file.size}, the others have {size}", "restore it from a copy")
        elif size and file.offset % size:
            self._find(file.path, f"its name is no multiple of its length {size}", "restore it from a copy")
        else:
            return True
        return False

    def queues(self, *, batches: bool = False) -> Iterator[tuple[str, int, list[DataFile], int]]:
        """Topic, queue id, files and file size of each plain queue, or of each of batches."""
        folder = self.root / (BATCH_QUEUE_FOLDER if batches else QUEUE_FOLDER)
        for topic in sorted(folder.iterdir()) if folder.is_dir() else ():
            for queue in sorted(topic.iterdir(), key=_number_of) if topic.is_dir() else ():
                if queue.is_dir() and queue.name.isdecimal():
                    files, size = self._row(queue)
                    yield topic.name, int(queue.name), files, size

    def index_files(self) -> list[Path]:
        """Files of the index, oldest first."""
        folder = self.root / "index"
        return sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []

    def config_files(self) -> list[Path]:
        """Tables of topics, groups and offsets."""
        return sorted((self.root / "config").glob("*.json"))

    def timer_faults(self) -> list[TimerFault]:
        """What is wrong with the timer files; after a walk of the log. In a store that is in use by themselves only."""
        assert self.log_end is not None
        end = NEVER if self.is_changing else self.log_end.offset
        ask = None if self.is_changing else self._is_timer_message
        return timer_faults(self.root, DiskIo(), log_min=self.log_begin, log_end=end, is_message=ask)

    def _is_timer_message(self, physical_offset: int, size: int) -> bool:
        for file in self.log_files:
            if file.offset <= physical_offset < file.offset + file.size:
                view = self._view(file)
                found = scan_record(view, physical_offset - file.offset, physical_offset, proven=True)
                named = (found.size, found.topic) if isinstance(found, ScannedRecord) else (0, "")
                return named == (size, TIMER_TOPIC)
        return False

    def _read_watermark(self) -> tuple[int, int]:
        """What a checkpoint of our own says: (0, past every record) where there is none."""
        checkpoint = Checkpoint(self.root / "checkpoint", DiskIo())
        checkpoint.load()
        mark = checkpoint.watermark
        if mark is None:
            return 0, NEVER
        return mark.log_end, mark.checksum_from if mark.checksum_from >= 0 else NEVER

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
        end = start
        pending: tuple[int, str] | None = None  # bytes that are no record, nothing proven behind them so far
        for file in self.log_files:
            if file.offset + file.size <= start:
                continue
            for found in self._walk_file(file, max(start - file.offset, 0), advance, fast=fast):
                if isinstance(found, ScannedRecord | Stretch):
                    if pending is not None:
                        self._damage(pending[0], _place_of(found), pending[1])
                        pending = None
                    end = _end_of(found)
                    yield found
                elif found is None:
                    end = file.offset + file.size
                elif pending is None:
                    pending = found
        self.log_end = self._end(end, pending)

    def _walk_file(
        self, file: DataFile, position: int, advance: Advance, *, fast: bool
    ) -> Iterator[Stretch | ScannedRecord | tuple[int, str] | None]:
        """Records; (physical offset, reason) where there is none; None for the blank record that closes the file."""
        view = self._view(file)
        steps = FastSteps()
        told = position
        while position < file.size:
            found = self._step(view, file, position, steps if fast else None)
            if isinstance(found, ScannedRecord | Stretch):
                position = position + found.size if isinstance(found, ScannedRecord) else found.end
                if position - told >= PROGRESS_STEP:
                    advance(position - told)
                    told = position
                yield found
                continue
            if not isinstance(found, RecordFault):
                yield None
                break
            yield file.offset + position, "" if _is_zero(view, position) else found.reason
            behind = self._next_proven(view, file, position + 1)
            if behind is None:
                break
            position = behind
        advance(file.size - told)

    def _step(
        self, view: memoryview, file: DataFile, position: int, steps: FastSteps | None
    ) -> Stretch | ScannedRecord | RecordFault | Blank:
        if steps is not None and steps.try_now():
            sealed_from = self._sealed_from if self._sealed_from < NEVER else None
            stretch = sound_records(view, position, file.offset, sealed_from=sealed_from)
            steps.tried(stretch.count if stretch is not None else 0)
            if stretch is not None:
                return stretch
        return self._scan(view, file, position)

    def _scan(self, view: memoryview, file: DataFile, position: int) -> ScannedRecord | RecordFault | Blank:
        physical_offset = file.offset + position
        sealed = physical_offset >= self._sealed_from
        return scan_record(view, position, physical_offset, property_crc=self._property_crc, sealed=sealed)

    def _next_proven(self, view: memoryview, file: DataFile, begin: int) -> int | None:
        """Position of the first proven record at or behind `begin`; holes of the file are not looked at."""
        with file.path.open("rb") as opened:
            for start, stop in _extents(opened.fileno(), begin, file.size):
                for at in range(start, stop, SEARCH_STEP):
                    for position in record_places(view, at, min(at + SEARCH_STEP + 8, file.size)):
                        if position >= begin and isinstance(self._scan(view, file, position), ScannedRecord):
                            return position
        return None

    def _damage(self, begin: int, end: int, reason: str) -> None:
        file = max((one for one in self.log_files if one.offset <= begin), key=lambda one: one.offset)
        text = reason or "zeros where a record must be"
        self._find(file.path, text, DAMAGED, begin, end, self._topic_at(file, begin))

    def _topic_at(self, file: DataFile, physical_offset: int) -> str | None:
        """The topic that a damaged record claims, when its lengths still agree."""
        try:
            header = scan_header(self._view(file), physical_offset - file.offset)
        except RecordError:
            return None
        return None if header.is_blank else header.topic

    def _end(self, end: int, pending: tuple[int, str] | None) -> LogEnd:
        torn = pending is not None and bool(pending[1])
        if pending is not None and torn and not self.is_changing:
            begin, reason = pending
            file = max((one for one in self.log_files if one.offset <= begin), key=lambda one: one.offset)
            advice = "the next start cuts it off; after a crash that is right, it was never acknowledged"
            text = f"the log ends with bytes that are no record: {reason}"
            self._find(file.path, text, advice, begin, None, self._topic_at(file, begin))
        return LogEnd(pending[0] if pending is not None else end, torn)

    def record_at(self, physical_offset: int) -> StoredRecord | None:
        """The record that begins there, decoded; None when none does."""
        file = self.log_file_of(physical_offset)
        if file is None:
            return None
        try:
            return decode_record(self._view(file), physical_offset - file.offset, check_crc=False)
        except RecordError:
            return None

    def _view(self, file: DataFile) -> memoryview:
        if file.path not in self._views:
            self._views[file.path] = file.view()
        return self._views[file.path]

    def log_file_of(self, physical_offset: int) -> DataFile | None:
        """The log file that holds an offset."""
        covers = (file for file in self.log_files if file.offset <= physical_offset < file.offset + file.size)
        return next(covers, None)

    def _find(
        self,
        path: Path,
        reason: str,
        advice: str,
        begin: int | None = None,
        end: int | None = None,
        topic: str | None = None,
    ) -> None:
        self.findings.append(Finding(self.name_of(path), reason, advice, begin, end, topic))


def rebuild(
    settings: StoreSettings, on_progress: Callable[[str, int], None], *, accept_loss: bool
) -> dict[str, Any]:
    """Let the store recover believing nothing but its log; what it found and did, by the names of its report.

    `on_progress` is told the step and how many more bytes of the log are behind it. Raises Failure when a broker
    has the store (exit code 2) or somebody must decide first (1).
    """
    from aerobee_store.store import MessageStore

    chosen = replace(settings, rebuild=True, accept_loss=accept_loss)
    store = MessageStore(chosen, io=DiskIo(), clock=lambda: time.time_ns() // 1_000_000)
    store.on_progress = on_progress
    try:
        report = store.open()
    except StoreLocked as locked:
        raise Failure(str(locked), USAGE) from locked
    except CorruptStore as broken:
        raise Failure(
            str(broken).replace("start once with accept_loss", "give --accept-loss"), FAULT
        ) from broken
    store.close()
    return asdict(report)


def _place_of(found: Stretch | ScannedRecord) -> int:
    """Where the first of the records begins."""
    return found.physical_offset if isinstance(found, ScannedRecord) else int(found.physical_offsets[0])


def _end_of(found: Stretch | ScannedRecord) -> int:
    """One past the last of the records."""
    return found.physical_offset + found.size if isinstance(found, ScannedRecord) else found.end_offset


def _number_of(path: Path) -> tuple[int, str]:
    return (int(path.name) if path.name.isdecimal() else -1, path.name)


def _is_zero(view: memoryview, position: int) -> bool:
    return not any(view[position : position + 8])


def _extents(descriptor: int, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Stretches of [begin, end) that may hold something; the rest reads as zero."""
    at = begin
    while at < end:
        try:
            start = os.lseek(descriptor, at, os.SEEK_DATA)
            stop = os.lseek(descriptor, start, os.SEEK_HOLE)
        except OSError as failed:
            if failed.errno == errno.ENXIO:  # nothing but a hole up to the end
                return
            start, stop = at, end
        if start < end:
            yield start, min(stop, end)
        at = stop


def _lock_owner(path: Path) -> int | None:
    """The process that holds the store's lock; None when nobody does. The lock is not taken."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, _, _, _, pid = FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    finally:
        os.close(descriptor)
    return pid if kind != fcntl.F_UNLCK else None
