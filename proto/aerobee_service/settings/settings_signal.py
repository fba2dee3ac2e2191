"""Waits whose length is a setting: a change of the settings counts in the wait that is under way, too.

Touches  the event loop's clock.

A task that sleeps for as long as a setting says would follow a change only after the sleep that it is in, and that may
be a day. Whoever changes settings calls `notify`; whoever waits calls `pause` and gives the length as a question.
"""

import asyncio
import contextlib
from collections.abc import Callable

__all__ = ["SettingsSignal"]


class SettingsSignal:
    """Joins who changes settings with those who wait by them. All calls from the event loop's thread."""

    __slots__ = ("_changed",)

    def __init__(self) -> None:
        self._changed = asyncio.Event()  # set once, then replaced: who waits keeps the one it began with

    def notify(self) -> None:
        """The settings are other ones now."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def pause(self, length_s: Callable[[], float]) -> None:
        """Return when `length_s()` seconds have passed since the call; asked again after each change."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while (left_s := begun + length_s() - loop.time()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._changed.wait()
