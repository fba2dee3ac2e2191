"""So many of a kind in each turn of the event loop, the others in the next ones, whoever brings them.

Touches  the event loop's `call_soon`.

What waits for a message (held pulls, held pops, filters that have to look at it) may wait in thousands, in one queue or
in many of which each has a message in the same turn.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

__all__ = ["EachTurn"]

T = TypeVar("T")


class EachTurn(Generic[T]):
    """Calls `do` for everything that is added, in that order: at once, as long as fewer than `count_max` were called
    for in this turn. One that fails tells whoever added it, or the event loop; the others go on in the next turn.
    """

    def __init__(self, do: Callable[[T], object], count_max: int) -> None:
        # Fixed for life, but by tests.
        self.count_max = count_max
        self._do = do
        # Moved by add() and _next_turn().
        self._waiting: deque[T] = deque()
        self._armed = False  # _next_turn comes
        self._left = 0  # in this turn; holds while armed

    def add(self, items: Iterable[T]) -> None:
        """All of them, behind those that wait."""
        waiting = self._waiting
        waiting.extend(items)
        if waiting and not self._armed:
            self._armed = True
            self._left = self.count_max
            asyncio.get_running_loop().call_soon(self._next_turn)
        while waiting and self._left:
            self._left -= 1
            self._do(waiting.popleft())

    def _next_turn(self) -> None:
        self._armed = False
        self.add(())
