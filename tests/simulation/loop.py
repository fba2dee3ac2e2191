"""An event loop of asyncio for each simulated process: its time is the world's, its sockets the network's.

It keeps what asyncio promises: `call_soon` in order, timers by their time, tasks and futures of asyncio itself. Work
for executors runs in simulated threads, one at a time for an executor of the product, several for the loop's own.
"""

import asyncio
import contextvars
import socket
from asyncio.events import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor, Future
from contextvars import copy_context
from itertools import count
from math import inf, nextafter
from typing import Any, Protocol, TypeVar

from simulation.threads import Threads
from simulation.world import Call, Process, ProcessDead

__all__ = ["NodeLoop", "Sockets"]

T = TypeVar("T")
_numbers = count()  # what objects hash by: their addresses are others in each run


class _Task(asyncio.Task[T]):
    """Hashes by its number."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.number = next(_numbers)
        super().__init__(*arguments, **named)

    def __hash__(self) -> int:
        return self.number


class _Future(asyncio.Future[T]):
    def __init__(self, *, loop: asyncio.AbstractEventLoop) -> None:
        self.number = next(_numbers)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class Sockets(Protocol):
    """What a loop needs of the network."""

    async def connect(
        self, process: Process, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]: ...

    def serve(
        self, process: Process, factory: Callable[[], asyncio.BaseProtocol], sock: Any
    ) -> asyncio.AbstractServer: ...


class _Handle(Call):
    """A call of an event loop, as who asks for it sees it: what asyncio.TimerHandle is."""

    __slots__ = ()

    def cancelled(self) -> bool:
        return self.call is None


class _Line:
    """The work of one executor: so many at a time, the others wait."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.running = 0
        self.waiting: deque[Callable[[], None]] = deque()


class NodeLoop(asyncio.AbstractEventLoop):
    """The event loop of one process."""

    def __init__(self, process: Process, threads: Threads, sockets: Sockets) -> None:
        self.process = process
        self._world = process.world
        self._threads = threads
        self._sockets = sockets
        self._lines: dict[object, _Line] = {}
        self._chance = process.world.chance(f"threads of {process.name} {process.world.now}")
        # Errors that nobody has handled.
        self.unhandled: list[dict[str, Any]] = []
        self.tasks: list[asyncio.Task[Any]] = []

    # --- time and calls ---------------------------------------------------------------------------------------

    def time(self) -> float:
        return self.process.monotonic()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        world = self._world
        made = _Handle(world.now, self.process, self._run, (context or copy_context(), callback, args))
        if self.process.is_alive:
            world.again(made, world.now)
        return made  # type: ignore[return-value]

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        world = self._world
        rate = self.process.clock_rate
        true = max(when / rate, world.now)
        while true * rate < when:  # rounded: it would ring before its time, by the clock of who asked
            true = nextafter(true, inf)
        made = _Handle(true, self.process, self._run, (context or copy_context(), callback, args))
        world.again(made, true)
        return made  # type: ignore[return-value]

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Asyncio tells; the call is taken back already."""

    def _run(
        self, context: contextvars.Context, callback: Callable[..., object], arguments: tuple[object, ...]
    ) -> None:
        process = self.process
        before = _get_running_loop()
        _set_running_loop(self)
        try:
            context.run(callback, *arguments)
        except Exception as failed:
            said = {"message": f"Exception in callback {callback}", "exception": failed}
            self.call_exception_handler(said)
        except ProcessDead:
            pass
        finally:
            _set_running_loop(before)
        if process.slowness_s:
            process.busy_until = self._world.now + self._chance.expovariate(1 / process.slowness_s)

    def inside(self, call: Callable[..., T], *arguments: Any) -> T:
        """Make a call now, as from a callback of this loop."""
        before, current = _get_running_loop(), self._world.current
        _set_running_loop(self)
        self._world.current = self.process
        try:
            return call(*arguments)
        finally:
            _set_running_loop(before)
            self._world.current = current

    # --- tasks and futures ------------------------------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        made: asyncio.Task[T] = _Task(coro, loop=self, name=name, context=context)
        self.tasks.append(made)  # those of a process that was killed go when the simulation is over
        if len(self.tasks) > 500:
            self.tasks = [task for task in self.tasks if not task.done()]
        return made

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        line = self._lines.get(executor)
        if line is None:
            line = self._lines[executor] = _Line(4 if executor is None else 1)
        done: asyncio.Future[T] = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except ProcessDead:
                raise
            except BaseException as failure:
                self.call_soon_threadsafe(_fail, done, failure)
            else:
                self.call_soon_threadsafe(_finish, done, result)
            line.running -= 1
            if line.waiting:
                begin()

        def begin() -> None:
            line.running += 1
            run = line.waiting.popleft()
            self._threads.start(self.process, run, self._chance.expovariate(1 / 0.0002))

        line.waiting.append(work)
        if line.running < line.width:
            begin()
        return done

    # --- sockets ----------------------------------------------------------------------------------------------

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **how: Any
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        assert not how.get("ssl"), "not simulated"
        return await self._sockets.connect(self.process, protocol_factory, host, port)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], *, sock: Any, **how: Any
    ) -> asyncio.AbstractServer:
        return self._sockets.serve(self.process, protocol_factory, sock)

    async def getaddrinfo(self, host: Any, port: Any, **how: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (str(host), port or 0))]

    # --- what asyncio asks of a loop --------------------------------------------------------------------------

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self.process.is_alive

    def is_closed(self) -> bool:
        return not self.process.is_alive

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.process.is_alive and not isinstance(context.get("exception"), ProcessDead):
            self.unhandled.append(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    async def shutdown_asyncgens(self) -> None:
        """Nothing is kept of them."""

    async def shutdown_default_executor(self) -> None:
        """Its threads end by themselves."""


def _finish(done: asyncio.Future[T], result: T) -> None:
    if not done.cancelled():
        done.set_result(result)


def _fail(done: asyncio.Future[Any], failure: BaseException) -> None:
    if not done.cancelled():
        done.set_exception(failure)


class SimExecutor(Executor):
    """What stands for an executor of the product; whatever it is given goes through `NodeLoop.run_in_executor`."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        raise AssertionError("executors are used by event loops alone")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing waits."""
