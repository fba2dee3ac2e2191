"""Threads of simulated processes: one of them runs at a time, and where it stops is drawn, not left to a scheduler.

A simulated thread is a greenlet: it runs only while the world has handed over to it, and hands back where it waits: for
a lock, for an event, for the disk. Modules of the product are given `SimThreading` where they say `threading`.

The one thread of a process's event loop may wait for a lock, too: then all else goes on, but for that loop.
"""

import threading
from asyncio.events import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import Callable
from typing import Any, Self

from greenlet import getcurrent, greenlet

from simulation.world import Process, ProcessDead, World

__all__ = ["Fiber", "SimThreading", "Threads"]


class Fiber:
    """One simulated thread."""

    def __init__(self, threads: "Threads", process: Process, work: Callable[[], object]) -> None:
        self._threads = threads
        self.process = process
        self._work = work
        self._greenlet = greenlet(self._run)
        self.is_done = False
        self._killed = False

    def _run(self) -> None:
        try:
            if not self._killed:
                self._work()
        except ProcessDead:
            pass
        except BaseException as failure:  # shown by whoever runs the simulation
            self._threads.broken.append(failure)
        self.is_done = True
        self._threads.fibers.remove(self)

    def step(self) -> None:
        """Let it run until it waits or ends."""
        if self.is_done:
            return
        threads = self._threads
        before, threads.current = threads.current, self
        loop = _get_running_loop()
        _set_running_loop(None)
        self._greenlet.parent = getcurrent()
        try:
            self._greenlet.switch()
        finally:
            threads.current = before
            _set_running_loop(loop)

    step.of_a_thread = True  # type: ignore[attr-defined]

    def park(self) -> None:
        """Wait until somebody calls `step`. By the thread itself."""
        if not self._killed:
            parent = self._greenlet.parent
            assert parent is not None
            parent.switch()
        if self._killed:
            raise ProcessDead

    def sleep(self, seconds: float) -> None:
        self.process.after(seconds, self.step)
        self.park()

    def wake(self) -> None:
        """Let it go on, in a turn of its own."""
        self.process.after(0.0, self.step)

    def kill(self) -> None:
        self._killed = True
        self.step()


class Threads:
    """All simulated threads of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.current: Fiber | None = None
        self.fibers: list[Fiber] = []
        # What ended a thread that nobody waits for.
        self.broken: list[BaseException] = []

    def start(self, process: Process, work: Callable[[], object], delay_s: float = 0.0) -> Fiber:
        fiber = Fiber(self, process, work)
        self.fibers.append(fiber)
        process.after(delay_s, fiber.step)
        return fiber

    def end_of(self, process: Process) -> None:
        """The process was killed. Threads that are not in hand end where they stand."""
        for fiber in [one for one in self.fibers if one.process is process and one is not self.current]:
            fiber.kill()

    def process(self) -> Process:
        """Whose code runs now."""
        if self.current is not None:
            return self.current.process
        assert self.world.current is not None
        return self.world.current

    def wait(self, holds: Callable[[], bool], waiters: "deque[Fiber]") -> None:
        """Whoever runs now waits until that holds; who makes it hold wakes the first of `waiters`."""
        fiber = self.current
        if fiber is not None:
            while not holds():
                waiters.append(fiber)
                fiber.park()
            return
        process = self.process()
        self.world.run(lambda: holds() or not process.is_alive, process)
        if not process.is_alive:
            raise ProcessDead


class _SimLock:
    """As threading.Lock and threading.RLock."""

    is_reentrant = False

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._owner: object = None
        self._depth = 0
        self._waiters: deque[Fiber] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me: object = self._threads.current or self._threads.process()
        if self.is_reentrant and self._owner is me:
            self._depth += 1
            return True
        if self._owner is not None:
            if not blocking:
                return False
            assert timeout < 0, "not simulated"
            self._threads.wait(lambda: self._owner is None, self._waiters)
        self._owner, self._depth = me, 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if self._depth:
            return
        self._owner = None
        if self._waiters:
            self._waiters.popleft().wake()

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class _SimRLock(_SimLock):
    is_reentrant = True


class _SimEvent:
    """As threading.Event, for simulated threads."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._is_set = False
        self._waiters: list[Fiber] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiters, self._waiters = self._waiters, []
        for fiber in waiters:
            fiber.wake()

    def wait(self, timeout: float | None = None) -> bool:
        fiber = self._threads.current
        assert fiber is not None, "an event loop does not wait"
        if not self._is_set:
            self._waiters.append(fiber)
            if timeout is not None:
                fiber.process.after(timeout, self._over, fiber)
            fiber.park()
        return self._is_set

    def _over(self, fiber: Fiber) -> None:
        if fiber in self._waiters:
            self._waiters.remove(fiber)
            fiber.step()

    _over.of_a_thread = True  # type: ignore[attr-defined]


class _SimThread:
    """As threading.Thread."""

    def __init__(
        self,
        threads: Threads,
        target: Callable[..., object],
        args: tuple[Any, ...] = (),
        name: str = "",
        daemon: bool = False,
    ) -> None:
        self._threads = threads
        self._target = target
        self._args = args
        self.name = name
        self._fiber: Fiber | None = None
        self._joining: deque[Fiber] = deque()

    def start(self) -> None:
        self._fiber = self._threads.start(self._threads.process(), self._work)

    def _work(self) -> None:
        self._target(*self._args)

    def is_alive(self) -> bool:
        return self._fiber is not None and not self._fiber.is_done

    def join(self, timeout: float | None = None) -> None:
        fiber = self._threads.current
        assert fiber is not None, "an event loop does not wait"
        while self.is_alive():
            fiber.sleep(0.0001)


class SimThreading:
    """What a module of the product finds where it says `threading`. The world it is of may be changed."""

    def __init__(self) -> None:
        self.threads: Threads | None = None

    def _of(self) -> Threads:
        assert self.threads is not None
        return self.threads

    def Lock(self) -> Any:
        return threading.Lock() if self.threads is None else _SimLock(self.threads)

    def RLock(self) -> Any:
        return threading.RLock() if self.threads is None else _SimRLock(self.threads)

    def Event(self) -> Any:
        return _SimEvent(self._of())

    def Thread(self, *, target: Callable[..., object], **how: Any) -> Any:
        return _SimThread(self._of(), target, **how)

    def get_native_id(self) -> int:
        """Of no thread that the system knows, so none goes before others."""
        return 0x7FFF_FFFF

    def get_ident(self) -> int:
        threads = self.threads
        if threads is None:
            return threading.get_ident()
        return id(threads.current)
