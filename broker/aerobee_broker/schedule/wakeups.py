"""Who has to look: told by whoever puts messages into a waiting topic, waited for by whoever delivers them.

Touches  events of the event loop.
"""

import asyncio

__all__ = ["Wakeups"]


class Wakeups:
    """What came for delay levels and for timers since the deliveries looked last. All calls from the event loop."""

    def __init__(self) -> None:
        self.levels: set[int] = set()  # levels to which messages come
        self.level_came = asyncio.Event()
        self.timer_came = asyncio.Event()

    def at_level(self, level: int) -> None:
        """A message of this level is about to be appended."""
        self.levels.add(level)
        self.level_came.set()

    def timed(self) -> None:
        """A timer message is about to be appended."""
        self.timer_came.set()
