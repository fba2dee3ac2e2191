"""Room on the disk: old files go, sends stop before it is full, small files keep a reserve.

Touches  the store, through its `cleaner` and `refuse_sends`; looks at the file systems of the store's folders.

Every `cleanResourceInterval` one round: look at the disks; refuse sends above `diskSpaceWarningLevelRatio`, take them
again at or below `diskSpaceCleanForciblyRatio`; from a minute after the start on, delete what `plan_cleaning` says.
Whatever may wait for the disk happens in the worker thread, one file at a time, so that syncs of the queues come
between. Levels are looked at from the start on: a broker that starts on a full disk takes no messages.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, TypeVar, TypeVarTuple, Unpack

import structlog

from aerobee_broker.settings.config import BrokerConfig, LiveConfig
from aerobee_store.cleaning.cleaning import (
    CleaningPlan,
    CleaningRules,
    Deleted,
    DiskUse,
    LogFileFacts,
    Moment,
    SteadyClock,
    may_send,
    plan_cleaning,
)
from aerobee_store.disk.io import StoreIo
from aerobee_store.disk.reserve import Reserve
from aerobee_store.faults.errors import NamesNotSynced, StoreError
from aerobee_store.store import MessageStore

__all__ = ["FIRST_CLEANING_MS", "DiskCleaner", "cleaning_rules", "uptime_ms"]

log = structlog.get_logger()

FIRST_CLEANING_MS: Final = 60_000  # after the start: consumers may want to read on first
ROUNDS_ASKED: Final = 20  # that one request may start
QUEUES_PER_TURN: Final = 16  # looked at without letting others run
HOUR_MS: Final = 3_600_000

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def uptime_ms() -> int:
    """A clock that nobody can set, in ms; it goes on while the machine sleeps, where there is one that does."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1_000_000


def cleaning_rules(config: BrokerConfig) -> CleaningRules:
    """What the settings say about old files."""
    return CleaningRules(
        reserved_ms=config.file_reserved_time * HOUR_MS,
        delete_hours=frozenset(int(hour) for hour in config.delete_when.split(";")),
        may_force=config.clean_file_forcibly_enable,
        clean_level=config.disk_max_used_space_ratio,
        force_level=config.disk_space_clean_forcibly_ratio,
        refuse_level=config.disk_space_warning_level_ratio,
    )


class DiskCleaner:
    """Does the rounds. One task calls run(); everything else belongs to the event loop's thread too."""

    def __init__(
        self,
        worker: Executor,
        io: StoreIo,
        reserve: Reserve,
        *,
        live: LiveConfig,
        clock: Callable[[], int],
        store: MessageStore,
        uptime: Callable[[], int] = uptime_ms,
    ) -> None:
        """`worker` is the thread that also syncs the queues: never two of them at a time."""
        self._live = live
        self._store = store
        self._worker = worker
        self._io = io
        self._reserve = reserve
        self._uptime = uptime
        self.started_ms = uptime()
        self._clock = SteadyClock(clock, uptime)
        self._clock_logged = False
        self._wake = asyncio.Event()
        self._one_round = asyncio.Lock()
        self._asked = False
        self._refused = False
        # The worker's: folders of which it is told that nobody can say how full their disk is.
        self._unknown: set[Path] = set()
        # As found by the last look; None where it could not be found out.
        self.disks: tuple[DiskUse | None, ...] = ()

    @property
    def used_percent(self) -> int:
        """Of the fullest disk that the store uses; 0 while unknown."""
        return max((disk.used_percent for disk in self.disks if disk is not None), default=0)

    def request(self) -> None:
        """Delete the expired files now, whatever the hour."""
        self._asked = True
        self._wake.set()

    async def run(self) -> None:
        """A round at every interval and after every request, until cancelled."""
        while True:
            await self.round()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._live.value.clean_resource_interval / 1000):
                    await self._wake.wait()
            self._wake.clear()

    async def round(self) -> None:
        """Look at the disks, then clean. What goes wrong is told and tried again by the next round."""
        async with self._one_round:
            await self._round()

    async def _round(self) -> None:
        asked, self._asked = self._asked, False
        if self._store.has_failed:
            return
        try:
            await self.look()
            if asked or self._uptime() - self.started_ms >= FIRST_CLEANING_MS:
                for _ in range(ROUNDS_ASKED if asked else 1):
                    if not await self._clean(asked=asked):
                        break
                    await self.look()
            await self._in_worker(self._keep_small_files)
        except (OSError, StoreError) as failed:
            if not self._store.has_failed:
                log.warning("store.cleaning_failed", reason=str(failed))

    # --- levels -----------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Find out how full the disks are; refuse sends or take them again."""
        self.disks = await self._in_worker(self._disk_uses)
        rules = cleaning_rules(self._live.value)
        refuse = not may_send(rules, self.disks, refused=self._refused)
        if refuse is self._refused:
            return
        self._refused = refuse
        if refuse:
            reason = f"the disk is nearly full: {self.used_percent} % used, above {rules.refuse_level} %"
            log.error("store.sends_refused", used_percent=self.used_percent, resumes_at=rules.force_level)
            self._store.refuse_sends(reason)
        else:
            self._store.refuse_sends(None)
            log.info("store.sends_resumed", used_percent=self.used_percent)

    def _disk_uses(self) -> tuple[DiskUse | None, ...]:
        config = self._live.value
        folders = [config.store_path_root_dir]
        if config.store_path_commit_log:
            folders.append(Path(config.store_path_commit_log))
        return tuple(self._disk_use(folder) for folder in folders)

    def _disk_use(self, folder: Path) -> DiskUse | None:
        try:
            use = DiskUse(*self._io.disk_usage(folder))
        except (OSError, StoreError) as failed:
            if folder not in self._unknown:
                self._unknown.add(folder)
                log.warning("store.disk_use_unknown", path=str(folder), reason=str(failed))
            return None
        if folder in self._unknown:
            self._unknown.discard(folder)
            log.info("store.disk_use_known", path=str(folder), used_percent=use.used_percent)
        return use

    def _keep_small_files(self) -> None:
        if not self._refused and not self._unknown:
            self._reserve.refill()
        self._store.topics.save_deletions()

    # --- cleaning ---------------------------------------------------------------------------------------------

    async def _clean(self, *, asked: bool) -> bool:
        """One plan, carried out; whether log files went."""
        store = self._store
        files = await self._in_worker(_survey, store)
        moment = Moment(self._now(), self.disks, asked)
        plan = plan_cleaning(files, cleaning_rules(self._live.value), moment)
        store.cleaner.release_log_files(plan)
        deleted = await self._delete_released()
        for number, count in enumerate(store.cleaner.release_queue_files(), 1):
            if count:
                deleted += await self._delete_released()
            elif number % QUEUES_PER_TURN == 0:
                await asyncio.sleep(0)
        store.cleaner.release_index_files()
        store.cleaner.release_timer_files()
        deleted += await self._delete_released()
        if deleted:
            _log_deleted(plan, deleted)
        return bool(plan.files)

    def _now(self) -> int:
        now_ms = self._clock.now()
        ahead_ms = self._clock.ahead_ms
        if ahead_ms and not self._clock_logged:
            log.warning("store.clock_jumped", ahead_ms=ahead_ms, way_out="set the clock right, or restart")
        self._clock_logged = ahead_ms > 0
        return now_ms

    async def _delete_released(self) -> list[Deleted]:
        deleted: list[Deleted] = []
        cleaner = self._store.cleaner
        while cleaner.has_released:
            try:
                deleted += await self._in_worker(cleaner.delete_released)
            except NamesNotSynced as failed:
                # What is deleted next rests on this: a row of log files must not come back with a hole in it.
                self._store.health.fail("deletion of old files", failed)
                raise
        return deleted

    async def _in_worker(self, call: Callable[[Unpack[Ts]], T], *arguments: *Ts) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, call, *arguments)


def _survey(store: MessageStore) -> list[LogFileFacts]:
    """The oldest log files that may go: their queue entries are brought to the disk first."""
    store.flush_queues()
    return store.cleaner.survey(store.settled_offset)


def _log_deleted(plan: CleaningPlan, deleted: list[Deleted]) -> None:
    """Name what is gone: a stretch of the log, of all topics."""
    of_log = [file for file in deleted if file.of_log]
    facts: dict[str, object] = {}
    if plan.files:
        facts = {
            "reason": plan.reason,
            "begin_offset": plan.files[0].offset,
            "end_offset": plan.files[-1].end,
            "newest_message_ms": max(file.written_ms for file in plan.files),
        }
    log.info("store.files_deleted", log_files=len(of_log), other_files=len(deleted) - len(of_log), **facts)
