"""The thread that brings the log to the disk, and when it does so.

Touches  one thread that calls the store's `flush_disk`.

SYNC_FLUSH   `prompt`: a sync begins when somebody asks for one. While the disk syncs, everything appended meanwhile
             waits for the next sync, which begins as soon as this one is done (group commit): by the thread itself
             where the event loop has much else to do, else by the event loop, as what comes until then shares it.
ASYNC_FLUSH  Syncs begin by the clock, every `interval_ms()`.

A failed sync is final: the kernel may have dropped the pages and report success next time. `on_failure` is called
once, and nothing is synced any more.

Invariants
- The event loop never waits for the disk.
- At most one sync runs at a time; `_syncing` is true from the moment it is asked for until its result is here.
- `offset` moves in the event loop only, and never after a failure of the disk, also of another file than the log.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from aerobee_proto.codes import ResponseCode
from aerobee_service.program.thread_priority import ThreadPriority

__all__ = ["FlushMeter", "Flusher", "Served", "SyncedLog"]

log = structlog.get_logger()

TICK_MAX_S: Final = 1.0
CLOCK_STEP_S: Final = 0.001  # a timer of the loop may ring that much early


class SyncedLog(Protocol):
    """The part of the store that this module needs."""

    @property
    def end_offset(self) -> int:
        """Physical offset one past the last byte appended."""
        ...

    @property
    def flushed_offset(self) -> int:
        """Physical offset below which everything is on disk."""
        ...

    @property
    def has_failed(self) -> bool:
        """Whether the store has failed, whichever thread met it; whoever ends the broker is told soon then."""
        ...

    def flush_disk(self) -> int:
        """Sync what is appended; the new durable offset. Runs in the thread. OSError is final."""
        ...


class Served(Protocol):
    """What else the event loop does. The thread asks and tells it."""

    @property
    def is_contended(self) -> bool:
        """Whether it has so much to do that results wait for it."""
        ...

    def hurry(self) -> None:
        """It has just been given a result."""


class FlushMeter(Protocol):
    """Who wants to know how long a sync takes."""

    def flushed(self, took_ms: float) -> None:
        """One sync is done."""


class Flusher:
    """Owns the thread. As a source of promises it stands for the disk. All calls from the event loop."""

    late_code: Final[int] = ResponseCode.FLUSH_DISK_TIMEOUT

    def __init__(
        self,
        store: SyncedLog,
        *,
        prompt: bool,
        interval_ms: Callable[[], int],
        timeout_ms: Callable[[], int],
        meter: FlushMeter,
        served: Served,
    ) -> None:
        """`prompt`: what is appended during a sync is synced right after it. `interval_ms` and `timeout_ms`, the
        longest wait of a send, are asked for at each use: they may be changed in a running broker. `served` is what
        else the event loop does."""
        # Fixed for life.
        self._store = store
        self._prompt = prompt
        self._interval_ms = interval_ms
        self.timeout_ms = timeout_ms
        self._meter = meter
        self._served = served
        self._loop = asyncio.get_running_loop()
        # Moved by the event loop only.
        self.offset = 0  # everything below is on disk; from `start` on
        self.flushes = 0
        self._failed = False
        self._syncing = False
        self._sync_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._asked = self._loop.time()  # last time that the clock asked for a sync
        self._idle = asyncio.Event()
        self._idle.set()
        # Shared with the thread.
        # Locked while the thread has nothing to do. A bare lock: a semaphore takes 5 us more for each sync.
        self._wake = threading.Lock()
        self._wake.acquire()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self, on_flushed: Callable[[], None], on_failure: Callable[[Exception], None]) -> None:
        """Begin. The store is open. `on_flushed` is called when `offset` has moved, `on_failure` at most once."""
        self.offset = self._store.flushed_offset
        self._thread = threading.Thread(
            target=self._run, args=(on_flushed, on_failure), name="flusher", daemon=True
        )
        self._thread.start()
        self._timer = self._loop.call_later(self._tick_s(), self._tick)

    def log_late(self, peer: str, message_count: int) -> None:
        """Say that these sends of a peer have waited too long for the disk."""
        log.warning("store.flush_slow", peer=peer, message_count=message_count)

    # --- event loop -------------------------------------------------------------------------------------------

    def request(self) -> None:
        """Sync soon: after the reads that are ready in this turn of the loop, so that they share the sync; at once
        where that would be behind the next slices of those who ask for much."""
        if self._syncing or self._sync_scheduled:
            return
        if self._served.is_contended:
            self._begin_sync()
        else:
            self._sync_scheduled = True
            self._loop.call_soon(self._begin_sync)

    def _begin_sync(self) -> None:
        self._sync_scheduled = False
        if self._syncing or self._is_over or self._stopping:
            return
        self._syncing = True
        self._idle.clear()
        self._wake.release()

    @property
    def _is_over(self) -> bool:
        return self._failed or self._store.has_failed

    def _synced(
        self,
        on_flushed: Callable[[], None],
        on_failure: Callable[[Exception], None],
        offset: int,
        took_s: float,
        failure: Exception | None,
        goes_on: bool,
    ) -> None:
        """The thread's result, in the event loop."""
        if not goes_on:
            self._syncing = False
            self._idle.set()
        if failure is not None and not self._failed:
            self._failed = True
            on_failure(failure)
        if self._is_over:
            return
        self.flushes += 1
        self._meter.flushed(took_s * 1000)
        self.offset = offset
        try:
            on_flushed()
        except Exception as broken:  # asyncio would log it and go on, with readers that see nothing new
            if not self._store.has_failed:
                log.exception("broker.task_failed", task="confirm")
            self._failed = True
            on_failure(broken)
            return
        if self._prompt and not goes_on and self._store.end_offset > offset:
            self._begin_sync()

    def _tick(self) -> None:
        """Sync what nobody has asked to be synced."""
        now = self._loop.time()
        if now - self._asked >= self._interval_ms() / 1000 - CLOCK_STEP_S:
            self._asked = now
            if self._store.end_offset > self._store.flushed_offset:
                self.request()
        self._timer = self._loop.call_later(self._tick_s(), self._tick)

    def _tick_s(self) -> float:
        """Short enough for a change of the interval to be followed soon."""
        return min(self._interval_ms() / 1000, TICK_MAX_S)

    async def drain(self) -> None:
        """Sync what is appended; nothing is synced by the clock any more."""
        if self._timer is not None:
            self._timer.cancel()
        while not self._is_over and (self._syncing or self._store.end_offset > self._store.flushed_offset):
            self._begin_sync()
            await self._idle.wait()

    async def close(self) -> None:
        """End the thread, after the sync that may be running."""
        if self._timer is not None:
            self._timer.cancel()
        self._stopping = True
        if self._thread is not None and self._thread.is_alive():
            if self._wake.locked():  # else it was woken a moment ago
                self._wake.release()
            await self._loop.run_in_executor(None, self._thread.join)

    # --- the thread -------------------------------------------------------------------------------------------

    def _run(self, on_flushed: Callable[[], None], on_failure: Callable[[Exception], None]) -> None:
        priority, goes_on = ThreadPriority(), False
        while True:
            if not goes_on:
                self._wake.acquire()
            if self._stopping:
                return
            priority.go_first(self._served.is_contended)
            started = time.perf_counter()
            offset, failure = 0, None
            try:
                offset = self._store.flush_disk()
            except Exception as failed:  # whatever it is, it is final
                failure = failed
            took_s = time.perf_counter() - started
            goes_on = self._goes_on(offset) and failure is None
            try:
                self._loop.call_soon_threadsafe(
                    self._synced, on_flushed, on_failure, offset, took_s, failure, goes_on
                )
            except RuntimeError:  # the loop is closed: the process is ending
                return
            self._served.hurry()
            if failure is not None:
                return

    def _goes_on(self, offset: int) -> bool:
        """Whether to sync what came meanwhile at once: the event loop would say so late."""
        return self._prompt and self._served.is_contended and self._store.end_offset > offset
