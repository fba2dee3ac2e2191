"""Figures of the disk for answers that must not wait for it."""

import asyncio
import threading
from pathlib import Path

import pytest

from aerobee_broker.metrics.disk_figures import FRESH_S, STALE_S, DiskFigures, Figures


class Disk:
    """A file system that answers when it is let, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked = 0
        self.free = 100
        self.answers = threading.Event()
        self.answers.set()
        self.figures = DiskFigures(lambda: Path("/store"), clock=lambda: self.now, look=self.look)

    def look(self, folder: Path) -> Figures:
        assert folder == Path("/store")
        self.asked += 1
        assert self.answers.wait(30)
        if self.free < 0:
            raise OSError(5, "Input/output error")
        return Figures(1000, self.free)

    async def settled(self) -> None:
        """Until nobody asks any more."""
        while (asking := self.figures.asking) is not None:
            await asyncio.wait([asking])
            await asyncio.sleep(0)


@pytest.fixture
async def disk() -> Disk:
    return Disk()


async def test_the_first_answer_asks_and_young_figures_are_shown_again(disk: Disk) -> None:
    assert await disk.figures.now() == (1000, 100)
    disk.free, disk.now = 50, FRESH_S / 2
    assert await disk.figures.now() == (1000, 100)
    assert disk.asked == 1


async def test_an_answer_does_not_wait_for_the_disk(disk: Disk) -> None:
    """Each question for the broker's status waited for a thread: beside eight busy connections 25 ms, at worst 180."""
    await disk.figures.now()
    disk.answers.clear()
    disk.free, disk.now = 50, FRESH_S
    assert [await disk.figures.now() for _ in range(3)] == [(1000, 100)] * 3
    disk.answers.set()
    await disk.settled()
    assert disk.asked == 2
    assert await disk.figures.now() == (1000, 50)


async def test_figures_that_are_too_old_are_not_shown(disk: Disk) -> None:
    await disk.figures.now()
    disk.answers.clear()
    disk.free, disk.now = 50, STALE_S
    waiting = [asyncio.create_task(disk.figures.now()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    disk.answers.set()
    assert await asyncio.gather(*waiting) == [(1000, 50)] * 3
    assert disk.asked == 2


async def test_a_disk_that_fails_is_told_when_nothing_younger_is_known(disk: Disk) -> None:
    await disk.figures.now()
    disk.free, disk.now = -1, FRESH_S
    assert await disk.figures.now() == (1000, 100)
    await disk.settled()
    disk.now = STALE_S
    with pytest.raises(OSError, match="Input/output"):
        await disk.figures.now()
    await disk.settled()
    disk.free = 7
    assert await disk.figures.now() == (1000, 7)
