"""Work that is too long for one turn of the event loop: done in slices, one slice a turn, whoever asked for it.

Touches  the event loop's `call_soon`, a clock.

Long work is a generator that yields wherever it may be interrupted, once a fraction of a millisecond or so:

    def listed(names: Iterable[str]) -> Steps[bytes]:
        for number, name in enumerate(names):
            ...
            if number % 256 == 0:
                yield
        return answer

    body = await in_slices(listed(names))      others are served in between
    body = at_once(listed(names))              where nobody waits: small work, programs without a loop, tests
    begin_slices(forgotten(names))             where nobody waits, and it may be long

A step that needs something which takes its time yields a future, and goes on when that is done; the others go on
meanwhile:

    yield reading
    found = reading.result()

All such work of one event loop stands in one queue and has `SLICES_S` of each turn together, however much there is.

Invariants
- Work goes on in the order in which it began, a slice each, round robin.
- Work whose waiter is cancelled is closed where it stands, before the waiter goes on.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

__all__ = ["SLICES_S", "Steps", "at_once", "begin_slices", "in_slices", "let_go"]

# Half of what a connection has: whoever asks for little waits for a slice of both.
SLICES_S: Final = 0.0005
LET_GO_A_STEP: Final = 256  # objects

T = TypeVar("T")
Steps = Generator[Any, None, T]  # yields nothing, or a future


def at_once(steps: Steps[T]) -> T:
    """Run the work to its end; what it returns. It must not be such that waits for a future."""
    while True:
        try:
            awaited = next(steps)
            assert awaited is None
        except StopIteration as end:
            result: T = end.value
            return result


async def in_slices(steps: Steps[T]) -> T:
    """Run the work in slices; what it returns. Work that is shorter than a slice is done at once when nobody waits."""
    return await _queue().run(steps)


def begin_slices(steps: Steps[object]) -> None:
    """Run the work in slices, for nobody: what fails is told to the event loop."""
    _queue().begin(steps).done.add_done_callback(_tell)


def let_go(objects: list[T]) -> None:
    """Empty the list. Where nobody else has what is in it, many go in slices: an object of some parts takes a us."""
    if len(objects) <= LET_GO_A_STEP:
        objects.clear()
    else:
        begin_slices(_letting_go(objects))


def _letting_go(objects: list[T]) -> Steps[None]:
    while objects:
        del objects[-LET_GO_A_STEP:]
        yield


def _tell(done: "asyncio.Future[object]") -> None:
    if not done.cancelled():
        done.result()


class _Work:
    __slots__ = ("awaited", "done", "steps")

    def __init__(self, steps: Steps[object], done: "asyncio.Future[Any]") -> None:
        self.steps = steps
        self.done = done
        # What the next step waits for; such work is not in the queue.
        self.awaited: asyncio.Future[object] | None = None


class SliceQueue:
    """The queue of one event loop, which it does not keep alive. The arguments are for tests."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter, slice_s: float = SLICES_S) -> None:
        # Fixed for life.
        self._clock = clock
        self._slice_s = slice_s
        # Moved by begin(), run() and _turn().
        self._queue: deque[_Work] = deque()
        self._armed = False  # _turn comes with the next turn
        self._until = 0.0  # the end of this turn's slice, while _turn is armed

    def __len__(self) -> int:
        """How much work waits."""
        return len(self._queue)

    async def run(self, steps: Steps[T]) -> T:
        """See `in_slices`."""
        work = self.begin(steps)
        done: asyncio.Future[T] = work.done
        try:
            return await done
        except asyncio.CancelledError:
            if work in self._queue:
                self._queue.remove(work)
            if work.awaited is not None:
                work.awaited.cancel()
            steps.close()
            raise

    def begin(self, steps: Steps[object]) -> _Work:
        """Work that is done by now where it is short and nobody waits."""
        work = _Work(steps, asyncio.get_running_loop().create_future())
        if not self._armed:
            self._arm()
        if self._queue or self._clock() >= self._until:
            self._queue.append(work)
        else:
            self._go_on(work)
        return work

    def _arm(self) -> None:
        self._armed = True
        self._until = self._clock() + self._slice_s
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._armed = False
        if self._queue:
            self._arm()
        while self._queue and self._clock() < self._until:
            self._go_on(self._queue.popleft())

    def _go_on(self, work: _Work) -> None:
        """Work for what is left of the slice, a step at least; what is left then goes to the end of the queue."""
        if work.done.cancelled():
            return  # its waiter closes it
        try:
            awaited = next(work.steps)
            while awaited is None and self._clock() < self._until:
                awaited = next(work.steps)
            if awaited is None:
                self._queue.append(work)
            else:
                work.awaited = awaited
                awaited.add_done_callback(lambda _: self._go_back(work))
        except StopIteration as end:
            work.done.set_result(end.value)
        except asyncio.CancelledError:
            work.done.cancel()  # what it waited for will never come
        except Exception as failed:
            work.done.set_exception(failed)

    def _go_back(self, work: _Work) -> None:
        """What it waited for is there."""
        work.awaited = None
        if not work.done.done():
            self._queue.append(work)
            if not self._armed:
                self._arm()


QUEUES: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, SliceQueue]] = WeakKeyDictionary()


def _queue() -> SliceQueue:
    loop = asyncio.get_running_loop()
    queue = QUEUES.get(loop)
    if queue is None:
        queue = QUEUES[loop] = SliceQueue()
    return queue
