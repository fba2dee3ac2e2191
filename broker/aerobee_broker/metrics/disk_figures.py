"""How full the disk was a moment ago: for answers that must not wait for it.

Touches  the file system of one folder, from a worker thread; the event loop.

Asking a file system may block, so it takes a thread, and a thread of a busy broker waits for the interpreter: that made
health and the broker's status the slowest of all small answers. So they show the last figure while it is young, and
whoever finds it older than `FRESH_S` has it asked for.

Invariants
- No figure is older than `STALE_S` when it is shown: rather than that, the answer waits.
- The file system is asked by one thread at a time, however many want to know.
"""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from aerobee_store.disk import disk_space

__all__ = ["DiskFigures", "Figures", "disk_use"]

FRESH_S: Final = 0.5
STALE_S: Final = 10.0


class Figures(NamedTuple):
    """Bytes of a file system."""

    total: int
    free: int


def disk_use(path: Path) -> Figures:
    """Of a folder, or of its nearest parent that exists."""
    while not os.path.exists(path) and path != path.parent:  # noqa: PTH110  # Path.exists raises where it may not look
        path = path.parent
    disk = disk_space.disk_use(path)
    return Figures(disk.total, disk.free)


class DiskFigures:
    """Of the file system of a folder. `clock` and `look` are for tests."""

    def __init__(
        self,
        folder: Callable[[], Path],
        *,
        clock: Callable[[], float] = time.monotonic,
        look: Callable[[Path], Figures] = disk_use,
    ) -> None:
        # Fixed for life.
        self._folder = folder
        self._clock = clock
        self._look = look
        # Moved by _ask().
        self._known: tuple[Figures, float] | None = None  # with when they were asked for
        self.asking: asyncio.Task[Figures] | None = None

    def known(self) -> Figures | None:
        """What the disk said, at most `STALE_S` old; None when there are none."""
        known = self._known
        age = self._clock() - known[1] if known else STALE_S
        if age >= FRESH_S and self.asking is None:
            self.asking = asyncio.create_task(self._ask(), name="disk figures")
            self.asking.add_done_callback(self._asked)
        return known[0] if known is not None and age < STALE_S else None

    async def now(self) -> Figures:
        """As `known`, or what the disk says. OSError when it had to be asked, and failed."""
        figures = self.known()
        if figures is not None:
            return figures
        assert self.asking is not None, "there are young figures, or they are being asked for"
        return await asyncio.shield(self.asking)

    async def _ask(self) -> Figures:
        began = self._clock()
        figures = await asyncio.to_thread(self._look, self._folder())
        self._known = figures, began
        return figures

    def _asked(self, task: "asyncio.Task[Figures]") -> None:
        self.asking = None
        if not task.cancelled():
            task.exception()  # whoever waits has it; nobody has to
