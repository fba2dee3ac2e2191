import asyncio
from collections import defaultdict
from collections.abc import Hashable

import pytest

from aerobee.consuming.key_runner import KeyRunner


class Work:
    """Numbers to handle; each waits until the test lets it go."""

    def __init__(self, numbers: list[int], key_of_number: dict[int, Hashable | None] | None = None) -> None:
        self._queue: asyncio.Queue[int | None] = asyncio.Queue()
        for number in numbers:
            self._queue.put_nowait(number)
        self._keys = key_of_number or {}
        self._gates: dict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self.begun: list[int] = []
        self.ended: list[int] = []
        self._changed = asyncio.Event()

    async def take(self) -> int | None:
        return await self._queue.get()

    def end(self, workers: int) -> None:
        for _ in range(workers):
            self._queue.put_nowait(None)

    def key_of(self, number: int) -> Hashable | None:
        return self._keys.get(number)

    async def process(self, number: int) -> None:
        self.begun.append(number)
        self._changed.set()
        await self._gates[number].wait()
        self.ended.append(number)

    def let_go(self, *numbers: int) -> None:
        for number in numbers:
            self._gates[number].set()

    async def wait_begun(self, count: int) -> None:
        while len(self.begun) < count:
            self._changed.clear()
            await self._changed.wait()


async def test_so_many_at_a_time() -> None:
    work = Work([1, 2, 3, 4])
    runner = KeyRunner(work.take, work.process, work.key_of, 3)
    running = asyncio.create_task(runner.run())
    await work.wait_begun(3)
    assert work.begun == [1, 2, 3]
    work.let_go(2)
    await work.wait_begun(4)
    work.let_go(1, 3, 4)
    work.end(3)
    await running
    assert sorted(work.ended) == [1, 2, 3, 4]


async def test_equal_keys_stay_in_order_and_do_not_hold_up_others() -> None:
    work = Work([1, 2, 3, 4, 5], {1: "a", 2: "a", 3: "a", 4: "b"})
    runner = KeyRunner(work.take, work.process, work.key_of, 3)
    running = asyncio.create_task(runner.run())
    await work.wait_begun(3)
    assert work.begun == [1, 4, 5], "2 and 3 wait for 1, but hold no worker"
    work.let_go(1)
    await work.wait_begun(4)
    assert work.begun[-1] == 2
    work.let_go(2, 3, 4, 5)
    work.end(3)
    await running
    assert [number for number in work.ended if number <= 3] == [1, 2, 3]


async def test_who_gives_up_waiting_leaves_messages_in_hand_to_be_finished() -> None:
    work = Work([1])
    runner = KeyRunner(work.take, work.process, work.key_of, 1)
    running = asyncio.create_task(runner.run())
    await work.wait_begun(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    work.let_go(1)
    assert await runner.drain(5) == 0
    assert work.ended == [1]


async def test_handlers_that_take_too_long_are_ended() -> None:
    work = Work([1])
    runner = KeyRunner(work.take, work.process, work.key_of, 1)
    running = asyncio.create_task(runner.run())
    await work.wait_begun(1)
    runner.stop()
    assert await runner.drain(0.01) == 1
    with pytest.raises(asyncio.CancelledError):
        await running
    assert work.ended == []


async def test_when_taking_fails_nobody_takes_more_but_what_is_in_hand_is_finished() -> None:
    work = Work([1])
    failing = asyncio.Event()
    taken = 0

    async def take() -> int | None:
        nonlocal taken
        taken += 1
        if taken == 3:
            await failing.wait()
            raise ValueError("the queue is broken")
        return await work.take()

    runner = KeyRunner(take, work.process, work.key_of, 3)
    running = asyncio.create_task(runner.run())
    await work.wait_begun(1)
    failing.set()
    with pytest.raises(ValueError, match="broken"):
        await running
    work.let_go(1)
    assert await runner.drain(5) == 0
    assert (work.ended, taken, runner.is_working) == ([1], 3, False)
