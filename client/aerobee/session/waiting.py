"""Blocking twins of asynchronous classes: what a call gives is waited for in the caller's thread. See `aerobee.sync`.

    class Producer(Waiter[AsyncProducer]):
        flush = waiting(AsyncProducer.flush)

Names, arguments, documentation and types of a twin's calls are those of the asynchronous method.

Touches  one thread a client, with an event loop of its own.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from aerobee.errors import ClientClosed
from aerobee.terms.arguments import checked

__all__ = ["LoopThread", "Waiter", "called", "made", "waiting"]

A = TypeVar("A")
C = TypeVar("C", bound=Callable[..., object])
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class LoopThread:
    """An event loop in a thread; `run` hands it work and waits."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="aerobee.sync", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin the work; ClientClosed when the thread has ended."""
        if not self._thread.is_alive():
            work.close()
            raise ClientClosed("client")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work gives. It is cancelled when the waiting is interrupted."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # an interrupt leaves nothing behind; of a finished call nothing changes
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Run a plain function in the loop's thread."""

        async def work() -> T:
            return function()

        return self.run(work())

    def stop(self) -> None:
        """End the loop and wait for the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()  # calls of other threads that came too late end with CancelledError
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


class Waiter(Generic[A]):
    """The twin of one asynchronous object, which lives in the loop of that thread."""

    def __init__(self, thread: LoopThread, twin: A) -> None:
        self._loop_thread: LoopThread | None = thread
        self._twin = twin

    @property
    def _thread(self) -> LoopThread:
        if self._loop_thread is None:
            raise ClientClosed("client")
        return self._loop_thread


def waiting(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Waiter[A], P], R]:
    """The asynchronous `method`, waited for."""

    @wraps(method)
    def wait(self: Waiter[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._thread.run(method(self._twin, *args, **kwargs))

    return _as_checked(method, wait)


def called(method: Callable[Concatenate[A, P], R]) -> Callable[Concatenate[Waiter[A], P], R]:
    """The plain `method`, called in the thread of its object."""

    @wraps(method)
    def call(self: Waiter[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._thread.call(lambda: method(self._twin, *args, **kwargs))

    return _as_checked(method, call)


def made(
    kind: Callable[[LoopThread, R], T], method: Callable[Concatenate[A, P], R]
) -> Callable[Concatenate[Waiter[A], P], T]:
    """What the plain `method` makes, as its blocking twin."""

    @wraps(method)
    def make(self: Waiter[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        thread = self._thread
        return kind(thread, thread.call(lambda: method(self._twin, *args, **kwargs)))

    return _as_checked(method, make)


def _as_checked(method: object, twin: C) -> C:
    """A call whose arguments are looked at before it is made is so in its twin, too."""
    return checked(twin) if hasattr(method, "__wrapped__") else twin
