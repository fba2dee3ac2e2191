"""Who holds the event loop: the time that each handler takes of one turn, and how late the loop is.

Touches  the event loop's clock and the log.

A server has one event loop: while a handler runs, nobody else is answered. Every handler is bounded by design; this
says when a bound does not hold on this machine, and which. Handlers are timed one by one; a timer shows what else
makes the loop late (the process was stopped, the machine is busy, a thread holds the interpreter).
"""

import asyncio
from bisect import bisect_left
from collections import Counter
from itertools import accumulate
from time import perf_counter
from types import coroutine
from typing import TYPE_CHECKING, Any, Final

from aerobee_service.logs.event_log import EventLog, event_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from aerobee_remoting.exchange.gate import Row

__all__ = ["LAG_BOUNDS_S", "LoopWatch", "in_timed_steps"]

LOOK_S: Final = 0.1  # between two looks at how late the loop is
LOG_INTERVAL_S: Final = 1.0  # between two lines about the same handler
LAG_BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
NO_HANDLER: Final = "none"

log = event_logger("aerobee.remoting")


class LoopWatch:
    """Counts turns of the loop that took `held_s` or longer, and says who held it."""

    def __init__(self, held_s: float = 0.1, *, log: EventLog = log) -> None:
        self.held_s = held_s
        self._log = log
        # (code, handler) -> times; code 0: no handler of ours.
        self.held: Counter[tuple[int, str]] = Counter()
        self.longest_ms = 0.0
        self.lags = [0] * (len(LAG_BOUNDS_S) + 1)  # looks by how late they came
        self.lag_sum_s = 0.0
        self._logged_at: dict[tuple[int, str], float] = {}
        self._blamed = False  # a handler was held to account since the last look
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def held_count(self) -> int:
        return self.held.total()

    def looks(self) -> list[tuple[str, int]]:
        """Looks that came at most so late: bounds in seconds as text, the last one is +Inf."""
        return list(zip([*map(str, LAG_BOUNDS_S), "+Inf"], accumulate(self.lags), strict=True))

    def start(self) -> None:
        """Look at the loop from now on."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + LOOK_S
        self._timer = loop.call_at(self._due, self._look)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self.saw(loop.time() - self._due)
        self.start()

    def saw(self, late_s: float) -> None:
        """One look at the loop, which came so late."""
        self.lags[bisect_left(LAG_BOUNDS_S, late_s)] += 1
        self.lag_sum_s += late_s
        if late_s >= self.held_s and not self._blamed:
            self._log_held((0, NO_HANDLER), late_s, None)
        self._blamed = False

    def took(self, entry: "Row", took_s: float, peer: str) -> None:
        """A handler took `held_s` or longer of one turn."""
        self._blamed = True
        self._log_held((entry.code, entry.name), took_s, peer)

    def _log_held(self, who: tuple[int, str], took_s: float, peer: str | None) -> None:
        self.held[who] += 1
        self.longest_ms = max(self.longest_ms, took_s * 1000)
        now = perf_counter()
        if now - self._logged_at.get(who, -LOG_INTERVAL_S) >= LOG_INTERVAL_S:
            self._logged_at[who] = now
            self._log.warning(
                "remoting.loop_held", code=who[0], handler=who[1], took_ms=round(took_s * 1000), peer=peer
            )


@coroutine
def in_timed_steps(
    work: "Awaitable[Any]", held_s: float, took: "Callable[[float], None]"
) -> "Generator[Any, Any, Any]":
    """Await `work`, and tell every step of it that takes `held_s` or longer."""
    steps = work.__await__()
    step, given = steps.send, None
    while True:
        began = perf_counter()
        try:
            waits_for = step(given)
        except StopIteration as end:
            return end.value
        finally:
            given = None  # what was thrown knows this frame: neither is to keep the other
            took_s = perf_counter() - began
            if took_s >= held_s:
                took(took_s)
        try:
            given = yield waits_for
            step = steps.send
        except GeneratorExit:
            steps.close()
            raise
        except BaseException as thrown:  # passed on to the work as it is
            step, given = steps.throw, thrown
        waits_for = None  # a future that failed knows its error, which knows this frame
