"""When a send may be answered: the wait between an append and the promise that the configuration makes.

Touches  one thread that calls the store's `flush_disk`, and connections to answer on.

SYNC_FLUSH   Answers wait in order of their log position. While the disk syncs, everything appended meanwhile
             waits for the next sync (group commit). A sync that takes longer than `sync_flush_timeout_ms()`
             is answered FLUSH_DISK_TIMEOUT: stored, durability not known.
ASYNC_FLUSH  Answers leave at once; the thread syncs every `flush_interval_ms()`.

A failed sync is final: the kernel may have dropped the pages and report success next time. Whatever waits is
refused, `on_failure` is called once, and no further answer leaves.

Invariants
- A SUCCESS answer in sync mode leaves only after `flushed_offset` has passed the end of its record.
- The event loop never waits for the disk.
- No SUCCESS answer leaves after a failure of the disk, also of another file than the log.
- At most one sync runs at a time; `_syncing` is true from the moment it is asked for until its result is here.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from aerobee_remoting.connection import Connection
from aerobee_store.errors import StorePoisoned

__all__ = ["Durability", "Meter", "SyncedLog", "WaitingAnswer"]

log = structlog.get_logger()

TICK_MAX_S: Final = 1.0
CLOCK_STEP_S: Final = 0.001  # a timer of the loop may ring that much early


class SyncedLog(Protocol):
    """The part of the store that this module needs."""

    @property
    def end_offset(self) -> int: ...

    @property
    def flushed_offset(self) -> int: ...

    @property
    def has_failed(self) -> bool:
        """Whether the store has failed, whichever thread met it; `fail` is called soon then."""
        ...

    def flush_disk(self) -> int:
        """Sync what is appended; the new durable offset. Runs in the thread. OSError is final."""
        ...


class Meter(Protocol):
    """Who wants to know how long it took."""

    def put_took(self, took_ms: float, count: int = 1) -> None:
        """`count` sends were answered, the first of them after `took_ms`."""

    def flushed(self, took_ms: float) -> None:
        """One sync is done."""


class WaitingAnswer:
    """Answers to one read of one connection that leave together."""

    __slots__ = ("begun", "connection", "count", "end_offset", "late", "payload")

    def __init__(
        self,
        end_offset: int,
        connection: Connection,
        payload: bytes,
        late: Callable[[int], bytes],
        count: int,
        begun: float,
    ) -> None:
        self.end_offset = end_offset
        self.connection = connection
        self.payload = payload
        self.late = late  # makes the payload with another response code instead
        self.count = count
        self.begun = begun  # by the event loop's clock


class Durability:
    """Owns the flusher thread and the answers that wait for it."""

    def __init__(
        self,
        store: SyncedLog,
        *,
        sync: bool,
        flush_interval_ms: Callable[[], int],
        sync_flush_timeout_ms: Callable[[], int],
        late_code: int,
        failed_code: int,
        on_flushed: Callable[[int], None],
        on_failure: Callable[[Exception], None],
        meter: Meter,
    ) -> None:
        """The two times are asked for at each use: they may be changed in a running broker."""
        # Fixed for life.
        self._store = store
        self._sync = sync
        self._interval_ms = flush_interval_ms
        self._timeout_ms = sync_flush_timeout_ms
        self._late_code = late_code
        self._failed_code = failed_code
        self._on_flushed = on_flushed
        self._on_failure = on_failure
        self._meter = meter
        self._loop = asyncio.get_running_loop()
        # Moved by the event loop only.
        self._waiting: deque[WaitingAnswer] = deque()
        self._settling: deque[tuple[int, asyncio.Future[None]]] = deque()  # end offset, who waits for it
        self._syncing = False
        self._sync_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._flush_asked = self._loop.time()  # last time that the clock asked for a sync
        self._idle = asyncio.Event()
        self._idle.set()
        self.failed: Exception | None = None
        self.flushes = 0
        # Shared with the thread.
        self._wake = threading.Semaphore(0)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._timer = self._loop.call_later(self._tick_s(), self._tick)

    @property
    def waiting_count(self) -> int:
        """Sends that wait for the disk."""
        return sum(answer.count for answer in self._waiting)

    # --- event loop -------------------------------------------------------------------------------------------

    def answer(
        self, connection: Connection, payload: bytes, late: Callable[[int], bytes], count: int
    ) -> None:
        """Send `payload` once everything appended so far is as durable as promised.

        `late(code)` makes the same answers with another response code; `count` is how many they are.
        """
        if self.failed is not None:
            connection.write(late(self._failed_code))
            return
        if not self._sync:
            connection.write(payload)
            return
        self._waiting.append(
            WaitingAnswer(self._store.end_offset, connection, payload, late, count, self._loop.time())
        )
        connection.hold(count)
        self.request_flush()

    async def settled(self) -> None:
        """Return when everything appended so far is as durable as promised. StorePoisoned: it never will be."""
        if self.failed is not None:
            raise StorePoisoned(f"the store has failed: {self.failed}")
        end_offset = self._store.end_offset
        if not self._sync or self._store.flushed_offset >= end_offset:
            return
        done = self._loop.create_future()
        self._settling.append((end_offset, done))
        self.request_flush()
        await done

    def request_flush(self) -> None:
        """Sync soon: after the reads that are ready in this turn of the loop, so that they share the sync."""
        if not self._syncing and not self._sync_scheduled:
            self._sync_scheduled = True
            self._loop.call_soon(self._begin_sync)

    def _begin_sync(self) -> None:
        self._sync_scheduled = False
        if self._syncing or self.failed is not None or self._stopping:
            return
        self._syncing = True
        self._idle.clear()
        self._wake.release()

    def _synced(self, offset: int, took_s: float, failed: Exception | None) -> None:
        """The thread's result, in the event loop."""
        self._syncing = False
        self._idle.set()
        if failed is not None:
            self.fail(failed)
        if self.failed is not None or self._store.has_failed:
            return
        self.flushes += 1
        self._meter.flushed(took_s * 1000)
        waiting = self._waiting
        first, count = (waiting[0] if waiting else None), 0
        while waiting and waiting[0].end_offset <= offset:
            answer = waiting.popleft()
            count += answer.count
            answer.connection.hold(-answer.count)
            answer.connection.write_now(answer.payload)
        if first is not None and count:
            # Once a sync, with the time of the send that waited longest: nothing is measured for each message.
            self._meter.put_took((self._loop.time() - first.begun) * 1000, count)
        while self._settling and self._settling[0][0] <= offset:
            done = self._settling.popleft()[1]
            if not done.done():
                done.set_result(None)
        try:
            self._on_flushed(offset)
        except Exception as broken:  # asyncio would log it and go on, with readers that see nothing new
            if not self._store.has_failed:
                log.exception("broker.task_failed", task="confirm")
            self.fail(broken)
            return
        if self._sync and self._store.end_offset > offset:
            self._begin_sync()

    def fail(self, failed: Exception) -> None:
        """Nothing is promised any more: refuse what waits and whatever comes. Only the first call counts."""
        if self.failed is not None:
            return
        self.failed = failed
        if self._waiting:
            log.warning("broker.sends_abandoned", reason=str(failed), waiting_count=self.waiting_count)
        while self._waiting:
            self._answer_late(self._waiting.popleft(), self._failed_code)
        while self._settling:
            done = self._settling.popleft()[1]
            if not done.done():
                done.set_exception(StorePoisoned(f"the store has failed: {failed}"))
        self._on_failure(failed)

    def _answer_late(self, answer: WaitingAnswer, code: int) -> None:
        answer.connection.hold(-answer.count)
        answer.connection.write(answer.late(code))

    def _tick(self) -> None:
        """Expire waiting answers; in async mode, sync what is not synced."""
        now = self._loop.time()
        too_old = now - self._timeout_ms() / 1000
        while self._waiting and self._waiting[0].begun <= too_old:
            answer = self._waiting.popleft()
            log.warning("store.flush_slow", peer=answer.connection.peer, message_count=answer.count)
            self._answer_late(answer, self._late_code)
        if now - self._flush_asked >= self._interval_ms() / 1000 - CLOCK_STEP_S:
            self._flush_asked = now
            if self._store.end_offset > self._store.flushed_offset:
                self.request_flush()
        self._timer = self._loop.call_later(self._tick_s(), self._tick)

    def _tick_s(self) -> float:
        """Short enough for a change of the two times, and for the time-out of sends, to be followed soon."""
        return min(self._interval_ms() / 1000, TICK_MAX_S)

    async def drain(self) -> None:
        """Sync what is appended and answer what waits for it; nothing is synced by the clock any more."""
        if self._timer is not None:
            self._timer.cancel()
        while self.failed is None and (self._syncing or self._store.end_offset > self._store.flushed_offset):
            self._begin_sync()
            await self._idle.wait()

    async def close(self) -> None:
        """End the thread, after the sync that may be running."""
        if self._timer is not None:
            self._timer.cancel()
        self._stopping = True
        if self._thread.is_alive():
            self._wake.release()
            await self._loop.run_in_executor(None, self._thread.join)

    # --- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._wake.acquire()
            if self._stopping:
                return
            started = time.perf_counter()
            offset, failure = 0, None
            try:
                offset = self._store.flush_disk()
            except Exception as failed:  # whatever it is, it is final
                failure = failed
            try:
                self._loop.call_soon_threadsafe(self._synced, offset, time.perf_counter() - started, failure)
            except RuntimeError:  # the loop is closed: the process is ending
                return
            if failure is not None:
                return
