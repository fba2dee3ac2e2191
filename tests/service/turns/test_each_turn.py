"""aerobee_service.turns.each_turn: how many in which turn of the event loop."""

import asyncio

import pytest

from aerobee_service.turns.each_turn import EachTurn


class Worker:
    """What was done, a list for each turn."""

    def __init__(self, count_max: int = 3) -> None:
        self.each = EachTurn(self.do, count_max)
        self.turns: list[list[int]] = [[]]
        self.fails_at: int | None = None

    def do(self, number: int) -> None:
        if number == self.fails_at:
            raise ValueError(number)
        self.turns[-1].append(number)

    async def next_turns(self, count: int) -> None:
        for _ in range(count):
            self.turns.append([])
            await asyncio.sleep(0)


async def test_so_many_at_once_and_the_others_in_the_next_turns() -> None:
    worker = Worker()
    worker.each.add(range(8))
    await worker.next_turns(3)
    assert worker.turns == [[0, 1, 2], [3, 4, 5], [6, 7], []]


async def test_whoever_brings_them_a_turn_has_so_many() -> None:
    """Each queue with a new message had a count of its own: eight of them in a turn ran eight times as many pulls."""
    worker = Worker()
    for first in range(0, 8, 2):
        worker.each.add([first, first + 1])
    await worker.next_turns(3)
    assert worker.turns == [[0, 1, 2], [3, 4, 5], [6, 7], []]


async def test_in_a_later_turn_there_is_room_again_and_order_is_kept() -> None:
    worker = Worker()
    worker.each.add(range(2))
    await worker.next_turns(1)
    worker.each.add(range(2, 7))
    worker.each.add([7])
    await worker.next_turns(2)
    assert worker.turns == [[0, 1], [2, 3, 4], [5, 6, 7], []]


async def test_what_is_added_meanwhile_is_behind_the_others() -> None:
    worker = Worker()

    def do(number: int) -> None:
        worker.do(number)
        if number < 3:
            each.add([number + 10])

    each = EachTurn(do, 3)
    each.add([0, 1, 2])
    await worker.next_turns(2)
    assert worker.turns == [[0, 1, 2], [10, 11, 12], []]


async def test_one_that_fails_is_told_and_the_others_go_on() -> None:
    worker = Worker()
    worker.fails_at = 1
    with pytest.raises(ValueError, match="1"):
        worker.each.add(range(5))
    logged: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context["exception"]))
    worker.fails_at = 3
    await worker.next_turns(3)
    assert worker.turns == [[0], [2], [4], []]
    assert [repr(one) for one in logged] == ["ValueError(3)"]
