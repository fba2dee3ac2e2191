"""Deleting old files: which ones, when and why, and doing it so that a stop at any moment leaves a sound store.

Touches  the first files of the log, the queues and the index it is given. No clock: the time comes in.

Deciding is `plan_cleaning`, a plain function over facts. A log file has expired when its newest message was
stored `reserved_ms` ago, by the time in the record and not by that of the file, which copying and recovery
change. Expired files go at the hours of `delete_hours`, and at any hour when the disk is filling up or somebody
asked. On a disk that is nearly full the oldest files go before their time, as few as make room.

Doing is `Cleaner`, in an order that any stop may cut: log files, oldest first, each durably gone before the next;
then the queue files that only led there; then the index files. What a stop leaves is the rest of the row, and
queue and index files that lead nowhere, which the next round deletes.

Invariants
- The last log file never goes, nor one with messages that are not flushed or not dispatched yet.
- A queue keeps its last file, and so its numbers, even when all of its messages are gone.
- Readers that hold a slice of a deleted file go on reading it: the file's map goes with its last slice.
- A wall clock that jumps ahead does not age anything: see SteadyClock.

Threads: survey() and delete_released() belong to a worker, the others to the thread that appends. Files are first
taken out of their row by that thread and then closed and deleted by the worker, which may take its time.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

from aerobee_store.disk.disk_space import DiskUse
from aerobee_store.disk.io import StoreIo
from aerobee_store.disk.mapped_files import MappedFile
from aerobee_store.index.index import IndexService
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.queues.queue_table import QueueTable
from aerobee_store.records.record_scan import ScannedRecord, record_places
from aerobee_store.timer.timer_part import TimerPart

__all__ = [
    "FILES_PER_ROUND_MAX",
    "Cleaner",
    "CleaningPlan",
    "CleaningRules",
    "Deleted",
    "DiskUse",
    "LogFileFacts",
    "Moment",
    "SteadyClock",
    "may_send",
    "plan_cleaning",
]

FILES_PER_ROUND_MAX: Final = 10
# Files looked at in a round: more than can go, so that a file with an impossible time can be judged by later ones.
_FILES_SURVEYED_MAX: Final = 64
_CLOCK_SKEW_MAX_MS: Final = 24 * 3_600_000
_SEARCH_STEP: Final = 1 << 20
_MAGIC_SIZE: Final = 4


# --- deciding ----------------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class LogFileFacts:
    """A log file that may go: its offsets, and when its newest message was stored (ms since the epoch)."""

    offset: int
    end: int
    written_ms: int


@dataclass(slots=True, frozen=True)
class CleaningRules:
    """What the operator wants. Levels are percent of a disk in use; `delete_hours` local hours of the day."""

    reserved_ms: int
    delete_hours: frozenset[int]
    may_force: bool
    clean_level: int  # above: expired files go at any hour
    force_level: int  # above: files go before their time
    refuse_level: int  # above: no sends, until force_level is reached again


@dataclass(slots=True, frozen=True)
class Moment:
    """When a round happens, and what it finds. `disks` has an entry for each file system; None: unknown."""

    now_ms: int
    disks: tuple[DiskUse | None, ...] = ()
    asked: bool = False

    @property
    def hour(self) -> int:
        """The local hour of the day."""
        return datetime.fromtimestamp(self.now_ms // 1000, UTC).astimezone().hour


@dataclass(slots=True, frozen=True)
class CleaningPlan:
    """The files that go, oldest first, and why: `hour`, `space`, `asked` (expired ones) or `forced`; empty: none."""

    files: tuple[LogFileFacts, ...] = ()
    reason: str = ""


def plan_cleaning(files: Sequence[LogFileFacts], rules: CleaningRules, moment: Moment) -> CleaningPlan:
    """Which of `files`, oldest first, go in this round. They are all that may go at all."""
    occasion = _occasion(rules, moment)
    expired = _expired_count(files, rules, moment.now_ms) if occasion else 0
    forced = _forced_count(files, rules, moment)
    count = min(max(expired, forced), FILES_PER_ROUND_MAX)
    reason = "forced" if forced > expired else occasion
    return CleaningPlan(tuple(files[:count]), reason) if count else CleaningPlan()


def _occasion(rules: CleaningRules, moment: Moment) -> str:
    """Why expired files go now; empty when they do not."""
    if moment.asked:
        return "asked"
    if any(disk is None or disk.used_percent > rules.clean_level for disk in moment.disks):
        return "space"
    return "hour" if moment.hour in rules.delete_hours else ""


def _expired_count(files: Sequence[LogFileFacts], rules: CleaningRules, now_ms: int) -> int:
    """How many files, from the oldest on, are past their time."""
    possible_ms = now_ms + _CLOCK_SKEW_MAX_MS
    written_ms = 0
    for index in range(len(files)):
        # Written while the clock was ahead: it is not younger than the files that follow it.
        believed = next((f.written_ms for f in files[index:] if f.written_ms <= possible_ms), None)
        if believed is None:
            return index
        # Written while the clock was behind: it is not older than the files before it.
        written_ms = max(written_ms, believed)
        if written_ms + rules.reserved_ms > now_ms:
            return index
    return len(files)


def _forced_count(files: Sequence[LogFileFacts], rules: CleaningRules, moment: Moment) -> int:
    """How many files have to go for room, whatever their age."""
    if not rules.may_force:
        return 0
    known = [disk for disk in moment.disks if disk is not None]
    excess = max((disk.bytes_above(rules.force_level) for disk in known), default=0)
    count = 0
    while excess > 0 and count < len(files):
        excess -= files[count].end - files[count].offset
        count += 1
    return count


def may_send(rules: CleaningRules, disks: Sequence[DiskUse | None], *, refused: bool) -> bool:
    """Whether there is room for messages; `refused` says that there was none when it was last looked at."""
    level = rules.force_level if refused else rules.refuse_level
    return not any(disk is not None and disk.used_percent > level for disk in disks)


class SteadyClock:
    """The wall clock, but never further than the uptime since the first look allows.

    A clock that is set ahead while the broker runs would make every file look old. Here it only counts as far as
    an independent count of the uptime confirms it: `now` stays behind until a restart. A clock that is set back
    counts at once, which deletes later and never earlier. At the start the clock is believed.
    """

    _SMALL_STEP_MS: Final = 60_000  # what time servers correct without anybody noticing
    _LOOK_MAX_MS: Final = 600_000  # the most that counts between two looks: both clocks may jump at once

    def __init__(self, clock: Callable[[], int], uptime: Callable[[], int]) -> None:
        """`clock` gives ms since the epoch, `uptime` ms since any fixed moment; it must never be set."""
        self._clock = clock
        self._uptime = uptime
        self._seen_uptime = uptime()
        self._confirmed = clock()
        # By how much the wall clock is ahead of what the uptime confirms, ms; 0 for small differences.
        self.ahead_ms = 0

    def now(self) -> int:
        """The time by which files are judged, ms since the epoch."""
        wall, uptime = self._clock(), self._uptime()
        self._confirmed += min(max(uptime - self._seen_uptime, 0), self._LOOK_MAX_MS)
        self._seen_uptime = uptime
        if abs(wall - self._confirmed) <= self._SMALL_STEP_MS:
            self._confirmed = wall
        self.ahead_ms = max(0, wall - self._confirmed)
        return min(wall, self._confirmed)


# --- doing -------------------------------------------------------------------------------------------------


class _Released(Protocol):
    """An open file that is in no row any more."""

    @property
    def path(self) -> Path: ...

    def close(self) -> None: ...


@dataclass(slots=True, frozen=True)
class Deleted:
    """A file that is gone for good, and whether it was one of the log's."""

    path: Path
    of_log: bool


class Cleaner:
    """Carries plans out."""

    def __init__(
        self, log: CommitLog, queues: QueueTable, index: IndexService, timers: TimerPart, io: StoreIo
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._timers = timers
        self._io = io
        # Store times of whole log files by offset; they never change. Used by survey() only.
        self.known: dict[int, int] = {}
        # Files out of their rows, oldest first; filled by one thread, emptied by the other.
        self._released: deque[tuple[_Released, bool]] = deque()
        # The log's beginning when the queues were last cleaned; -1: files of an earlier run may be left.
        self._cleaned_to = -1

    def survey(self, settled_offset: int) -> list[LogFileFacts]:
        """The oldest files that may go, all below `settled_offset`. For the worker: it reads in the files."""
        files = [file for file in self._log.mapped.files[:-1] if file.end <= settled_offset]
        oldest = files[:_FILES_SURVEYED_MAX]
        self.known = {file.offset: self._written_ms(file) for file in oldest}
        return [LogFileFacts(file.offset, file.end, self.known[file.offset]) for file in oldest]

    def _written_ms(self, file: MappedFile) -> int:
        known = self.known.get(file.offset)
        if known is not None:
            return known
        stamps = [stamp for at in (self._first, self._last) if (stamp := at(file)) is not None]
        return max(stamps) if stamps else self._io.modified_ms(file.data.path)

    def _first(self, file: MappedFile) -> int | None:
        found = self._log.scan_file(file, 0)
        return found.store_timestamp if isinstance(found, ScannedRecord) else None

    def _last(self, file: MappedFile) -> int | None:
        """Store time of the last record that can be read."""
        for position in self._places_from_the_end(file):
            found = self._log.scan_file(file, position)
            if isinstance(found, ScannedRecord):
                return found.store_timestamp
        return None

    def _places_from_the_end(self, file: MappedFile) -> Iterator[int]:
        """Where records may begin, backwards."""
        for stop in range(len(file.view), 0, -_SEARCH_STEP):
            begin = max(stop - _SEARCH_STEP - _MAGIC_SIZE + 1, 0)
            yield from reversed(list(record_places(file.view, begin, stop)))

    def release_log_files(self, plan: CleaningPlan) -> int:
        """Take the planned files out of the log; how many. Readers find them no more."""
        mapped = self._log.mapped
        for count, planned in enumerate(plan.files):
            if len(mapped.files) < 2 or mapped.files[0].offset != planned.offset:
                return count
            self._released.append((mapped.release_first().data, True))
        return len(plan.files)

    @property
    def has_released(self) -> bool:
        """Whether files wait to be deleted."""
        return bool(self._released)

    def release_queue_files(self) -> Iterator[int]:
        """Let the queues follow the log, one at a time; yields how many files each one gave up.

        Nothing to do while the log begins where it did the last time. To be run to its end: a queue that was not
        reached keeps a minimum below the log's until the next round.
        """
        log_min = self._log.min_offset
        if log_min == self._cleaned_to:
            return
        for queue in self._queues:
            files = queue.release_before(log_min)
            self._released.extend((file.data, False) for file in files)
            yield len(files)
        self._cleaned_to = log_min

    def release_index_files(self) -> int:
        """Take the index files out that lead below the log's beginning; how many."""
        files = self._index.release_before(self._log.min_offset)
        self._released.extend((file, False) for file in files)
        return len(files)

    def release_timer_files(self) -> int:
        """Take the timer files out whose messages lie below the log's beginning; how many."""
        files = self._timers.release_before(self._log.min_offset)
        self._released.extend((file.data, False) for file in files)
        return len(files)

    def delete_released(self, count_max: int = 1) -> list[Deleted]:
        """Close and delete at most so many of the released files, for good on return. For the worker.

        OSError when one cannot be deleted: it stays the first to go, and none that is younger goes before it.
        """
        deleted = []
        for file, of_log in list(islice(self._released, count_max)):
            file.close()
            self._io.unlink(file.path)
            self._io.sync_folder(file.path.parent)
            self._released.popleft()
            deleted.append(Deleted(file.path, of_log))
        return deleted

    def clean(self, plan: CleaningPlan) -> list[Deleted]:
        """All of the above at once, for callers with one thread."""
        self.release_log_files(plan)
        deleted = self._delete_all()
        for _ in self.release_queue_files():
            deleted += self._delete_all()
        self.release_index_files()
        self.release_timer_files()
        return deleted + self._delete_all()

    def _delete_all(self) -> list[Deleted]:
        deleted = []
        while self._released:
            deleted += self.delete_released()
        return deleted
