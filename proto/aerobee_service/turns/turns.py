"""Turns: who is served when more requests have been read than one turn of the event loop should handle.

Touches  the event loop's `call_soon`, a clock.

A read can hold a thousand requests, and every connection can have one ready in the same turn of the loop. Whoever
asks for little then waits for all that the others want. So one connection works for `SLICE_S` at a time, and all
of them together for `TURN_S` in a turn; what is left stands in a queue, and whoever has had a slice goes to its end.

    read, nobody waits, the turn is young     handled at once, for a slice
    read otherwise                            the connection joins the queue
    next turn of the loop                     slices from the queue until the turn is over, then new reads

Small control requests (`Entry.overtakes`) do not stand in the queue: a connection serves them when it joins.

Invariants
- A connection stands in the queue at most once.
- Between two slices of a connection every one that waited when the first ended has one.
- A turn ends with the slice during which its time ran out.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

__all__ = ["AT_ONCE", "LATER", "SLICE_S", "TURN_S", "Turns", "Waiting"]

TURN_S: Final = 0.02
SLICE_S: Final = 0.005
AT_ONCE: Final = float("inf")  # a deadline that never comes
LATER: Final = 0.0  # instead of a deadline: the turn is over, or others wait


class Waiting(Protocol):
    """Who stands in the queue."""

    def go_on(self, deadline: float) -> bool:
        """Work until `deadline` of the clock; whether something is left."""


class Turns:
    """One queue for all connections of a server. All calls from the event loop."""

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        *,
        turn_s: float | None = None,
        slice_s: float | None = None,
    ) -> None:
        # Fixed for life.
        self.clock = clock
        self._turn_s = TURN_S if turn_s is None else turn_s
        self._slice_s = SLICE_S if slice_s is None else slice_s
        self._loop = asyncio.get_running_loop()
        # Moved by enter() and _run().
        self._queue: deque[Waiting] = deque()
        self._began = 0.0  # this turn; holds while `_next` is armed
        self._next = False

    def __len__(self) -> int:
        """How many wait."""
        return len(self._queue)

    def enter(self) -> float:
        """A connection has read something: until when it may work on it, or LATER."""
        now = self.clock()
        if not self._next:
            self._next = True
            self._began = now
            self._loop.call_soon(self._run)
        elif self._queue or now - self._began >= self._turn_s:
            return LATER
        return now + self._slice_s

    def join(self, one: Waiting) -> None:
        """Stand at the end of the queue; who stands there already must not join again."""
        self._queue.append(one)
        if not self._next:
            self._next = True
            self._began = self.clock()
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        """The next turn has begun."""
        queue, clock = self._queue, self.clock
        if not queue:
            self._next = False
            return
        now = self._began = clock()
        self._loop.call_soon(self._run)
        for _ in range(len(queue)):
            one = queue.popleft()
            if one.go_on(now + self._slice_s):
                queue.append(one)
            now = clock()
            if now - self._began >= self._turn_s:
                return
