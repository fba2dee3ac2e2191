"""Workers that run a handler over messages: so many at a time, those with one key one after the other.

A message whose key is being worked on waits behind it; the worker that is at the key goes on with it. So a slow
key holds up its own messages alone. How many wait is bounded by the bounds of the queues.

Invariants
- Of one key at most one message is in the handler, in the order in which they were taken.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from aerobee_service.turns.tasks import look_at

__all__ = ["KeyRunner"]

M = TypeVar("M")


class KeyRunner(Generic[M]):
    """Takes messages with `take` (None: the end), handles each with `process`, which deals with its own errors.

    `key_of` gives what must stay in order; None for a message that may be handled beside any other.
    """

    def __init__(
        self,
        take: Callable[[], Awaitable[M | None]],
        process: Callable[[M], Awaitable[None]],
        key_of: Callable[[M], Hashable | None],
        concurrency: int,
    ) -> None:
        self._take = take
        self._process = process
        self._key_of = key_of
        self._concurrency = concurrency
        self._waiting: dict[Hashable, deque[M]] = {}
        self._workers: list[asyncio.Task[None]] = []
        self._idle: set[asyncio.Task[None]] = set()  # workers without a message
        self._stopping = False

    @property
    def is_working(self) -> bool:
        """Whether a worker is left."""
        return any(not worker.done() for worker in self._workers)

    async def run(self) -> None:
        """Work until there is nothing to take any more; raises what taking raised."""
        loop = asyncio.get_running_loop()
        self._workers = [
            loop.create_task(self._work(), name=f"handler {number}") for number in range(self._concurrency)
        ]
        try:
            # Shielded: who waits for run() may give up, but messages in hand are finished or ended by drain().
            everybody = asyncio.gather(*self._workers)
            everybody.add_done_callback(look_at)  # who gives up waiting does not ask how it ended
            await asyncio.shield(everybody)
        except BaseException:
            self._stopping = True
            for worker in self._idle:
                worker.cancel()
            raise

    def stop(self) -> None:
        """Begin with no further message, not even with those that wait for their key."""
        self._stopping = True

    async def drain(self, timeout_s: float) -> int:
        """After stop(): wait for the handlers; those that take longer are cancelled. How many were."""
        workers = [worker for worker in self._workers if not worker.done()]
        if not workers:
            return 0
        _, late = await asyncio.wait(workers, timeout=timeout_s)
        for worker in late:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        return len(late)

    async def _work(self) -> None:
        me = asyncio.current_task()
        assert me is not None
        while not self._stopping:
            self._idle.add(me)
            try:
                message = await self._take()
            finally:
                self._idle.discard(me)
            if message is None:
                return
            key = self._key_of(message)
            if key is None:
                await self._process(message)
            elif key in self._waiting:
                self._waiting[key].append(message)
            else:
                await self._work_on_key(key, message)

    async def _work_on_key(self, key: Hashable, message: M) -> None:
        waiting = self._waiting[key] = deque()
        try:
            await self._process(message)
            while waiting and not self._stopping:
                await self._process(waiting.popleft())
        finally:
            del self._waiting[key]
