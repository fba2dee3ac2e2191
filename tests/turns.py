"""Work of one turn, measured so that a busy or a slow machine does not matter.

The unit is a piece of plain Python that takes about one millisecond of processor time on the machine kind that the
bound of 50 ms is meant for (two shared cores). It is measured in the same run, next to the work in question.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

TURN_MAX = 50.0  # in units of `reference`: milliseconds of the machine kind


def reference() -> int:
    """About one millisecond of plain Python: dict, list and text work, as handlers do it."""
    table: dict[str, list[int]] = {}
    for number in range(9000):
        table.setdefault(str(number & 255), []).append(number)
    return len(table)


def cpu_ms(work: Callable[[], object]) -> float:
    """Processor time of this thread for `work`, in milliseconds."""
    began = time.thread_time()
    work()
    return (time.thread_time() - began) * 1000


def turn_of(work: Callable[[], object], tries: int = 8) -> float:
    """What `work` costs in units of `reference`; the best of some tries, each beside its own reference."""
    best = float("inf")
    for _ in range(tries):
        before = min(cpu_ms(reference) for _ in range(5))
        cost = cpu_ms(work)
        unit = max(before, min(cpu_ms(reference) for _ in range(5)))
        best = min(best, cost / unit)
        if best <= TURN_MAX / 4:
            break
    return best


class Turns:
    """The longest turn of the event loop while `watched`, in units of `reference`: one callback, one step of a task."""

    def __init__(self) -> None:
        self._longest_ms = 0.0
        self._unit_ms = 1.0

    @property
    def longest(self) -> float:
        return self._longest_ms / self._unit_ms

    def begin(self) -> None:
        """Forget the turns so far: what comes now is another piece of work."""
        self._longest_ms = 0.0

    @property
    def longest_ms(self) -> float:
        """The longest turn since `begin`, in milliseconds of this machine at this moment."""
        return self._longest_ms

    @property
    def unit_ms(self) -> float:
        """What one unit of `reference` took around the last watch."""
        return self._unit_ms

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Measure every turn of asyncio's own loop (uvloop does not ask Python to run a callback)."""
        run = asyncio.Handle._run

        def measured(handle: asyncio.Handle) -> None:
            began = time.thread_time()
            run(handle)
            if watching:  # still: the turn in which the test goes on is its own
                self._longest_ms = max(self._longest_ms, (time.thread_time() - began) * 1000)

        before = min(cpu_ms(reference) for _ in range(5))
        watching = True
        with patch.object(asyncio.Handle, "_run", measured):
            yield
            watching = False
        self._unit_ms = max(before, min(cpu_ms(reference) for _ in range(5)))
