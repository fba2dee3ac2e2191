"""Scrubbing at a rate: in the background all that is stored is read again, little by little.

Touches  the store, in the worker thread; one small step at a time, so that syncs of the queues come between.

`scrubBytesPerSecond` bounds what is read (0: nothing is), `scrubInterval` how soon a round follows the one before.
Both may change at any time. Whatever they say, the scrub takes at most SHARE of one processor: where records of a
thousand topics lie side by side a slice costs six times as much, all of it taken from those who send. A round begins
with the oldest message; one that a stop interrupts begins again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Final

import structlog

from aerobee_broker.settings.config import LiveConfig
from aerobee_store.checking.scrub import ScrubStep
from aerobee_store.faults.errors import StoreError
from aerobee_store.store import MessageStore

__all__ = ["FIRST_ROUND_S", "Scrubbing"]

log = structlog.get_logger()

FIRST_ROUND_S: Final = 60.0  # after the start: clients come first
SHARE: Final = 0.02  # of one processor's time
LOOK_S: Final = 10.0  # how long a pause lasts before settings are looked at again


class Scrubbing:
    """The task that scrubs. `run` never returns."""

    def __init__(
        self,
        worker: Executor,
        *,
        live: LiveConfig,
        store: MessageStore,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        uptime: Callable[[], float] | None = None,
        thread_time: Callable[[], float] = time.thread_time,
    ) -> None:
        """`worker` is the thread that deletes files: none may go while it is read. Clocks are in seconds."""
        self._live = live
        self._store = store
        self._worker = worker
        self._sleep = sleep
        self._thread_time = thread_time
        self._uptime = uptime or asyncio.get_running_loop().time

    async def run(self) -> None:
        """Round after round, until cancelled."""
        await self._sleep(FIRST_ROUND_S)
        while True:
            begun = self._uptime()
            await self._round()
            while (left := begun + self._live.value.scrub_interval / 1000 - self._uptime()) > 0:
                await self._sleep(min(left, LOOK_S))

    async def _round(self) -> None:
        loop = asyncio.get_running_loop()
        store = self._store
        while True:
            rate = self._live.value.scrub_bytes_per_second
            if not rate or store.has_failed:
                await self._sleep(LOOK_S)
                continue
            try:
                step, took_s = await loop.run_in_executor(self._worker, self._step)
            except (StoreError, OSError) as failed:
                if not store.has_failed:
                    log.warning("store.scrub_delayed", reason=str(failed))
                await self._sleep(LOOK_S)
                continue
            if step.is_round_done:
                return
            await self._sleep(max(step.size / rate, took_s / SHARE))

    def _step(self) -> tuple[ScrubStep, float]:
        """In the worker: one step, and how much processor time it took."""
        began = self._thread_time()
        return self._store.scrubbing.step(), self._thread_time() - began
