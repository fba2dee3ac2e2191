"""Work in slices: who is served when. The clock is a counter."""

import asyncio
import gc
from itertools import count
from weakref import ref

import pytest

from aerobee_service.turns import slices
from aerobee_service.turns.slices import SliceQueue, Steps, at_once, begin_slices, in_slices, let_go

STEP_S = 1 / 1024  # powers of two: their sums are exact


class Desk:
    """A queue with a clock that each step moves, and what was done in which turn of the loop."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turn = 0
        self.done: list[tuple[int, str]] = []
        self.queue = SliceQueue(lambda: self.now, slice_s=4 * STEP_S)
        self.closed: list[str] = []

    def work(self, name: str, count: int) -> Steps[str]:
        try:
            for number in range(count):
                self.now += STEP_S
                self.done.append((self.turn, name))
                if number < count - 1:
                    yield
            return name
        finally:
            self.closed.append(name)

    def start(self, name: str, count: int) -> "asyncio.Task[str]":
        return asyncio.create_task(self.queue.run(self.work(name, count)))

    async def turns(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)
            self.turn += 1

    def in_turn(self, turn: int) -> str:
        return "".join(name for when, name in self.done if when == turn)


@pytest.fixture
async def desk() -> Desk:
    return Desk()


async def test_short_work_is_done_at_once(desk: Desk) -> None:
    assert await desk.queue.run(desk.work("a", 2)) == "a"
    assert desk.in_turn(0) == "aa"


async def test_long_work_has_one_slice_of_each_turn(desk: Desk) -> None:
    task = desk.start("a", 10)
    await desk.turns(4)
    assert [desk.in_turn(turn) for turn in range(4)] == ["aaaa", "aaaa", "aa", ""]
    assert await task == "a"


async def test_however_much_there_is_a_turn_has_one_slice_of_it(desk: Desk) -> None:
    """Each long answer by itself took a slice of every turn: eight of them 40 ms."""
    tasks = [desk.start(name, 8) for name in "abcdefgh"]
    await desk.turns(20)
    assert [len(desk.in_turn(turn)) for turn in range(16)] == [4] * 16
    assert [desk.in_turn(turn)[0] for turn in range(16)] == list("aabcdefghbcdefgh")
    assert [await task for task in tasks] == list("abcdefgh")


async def test_small_pieces_share_a_slice(desk: Desk) -> None:
    tasks = [desk.start(name, 1) for name in "abcdef"]
    await desk.turns(3)
    assert [desk.in_turn(turn) for turn in range(2)] == ["abcd", "ef"]
    assert [await task for task in tasks] == list("abcdef")


async def test_cancelled_work_is_closed_and_the_others_go_on(desk: Desk) -> None:
    first, second, third = desk.start("a", 100), desk.start("b", 8), desk.start("c", 100)
    await desk.turns(2)
    first.cancel()
    third.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    with pytest.raises(asyncio.CancelledError):
        await third
    assert "a" in desk.closed
    assert await second == "b"
    assert len(desk.queue) == 0


async def test_work_that_fails_tells_its_waiter(desk: Desk) -> None:
    def fails() -> Steps[None]:
        yield
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await desk.queue.run(fails())
    assert await desk.queue.run(desk.work("a", 1)) == "a"


async def test_a_step_waits_for_a_future_and_the_others_go_on(desk: Desk) -> None:
    reading: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def reads() -> Steps[str]:
        yield
        yield reading
        yield
        return reading.result()

    waiting = asyncio.create_task(desk.queue.run(reads()))
    other = desk.start("a", 8)
    await desk.turns(20)
    assert await other == "a"
    assert not waiting.done()
    assert len(desk.queue) == 0
    reading.set_result("read")
    assert await waiting == "read"


async def test_what_a_future_fails_with_is_raised_in_the_step_that_asks(desk: Desk) -> None:
    def reads(reading: "asyncio.Future[str]") -> Steps[str]:
        yield reading
        try:
            return reading.result()
        except OSError:
            return "nothing"

    for failure in (OSError("no"), ValueError("no")):
        reading: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        waiting = asyncio.create_task(desk.queue.run(reads(reading)))
        await desk.turns(3)
        reading.set_exception(failure)
        if isinstance(failure, OSError):
            assert await waiting == "nothing"
        else:
            with pytest.raises(ValueError, match="no"):
                await waiting


@pytest.mark.parametrize("who", ["the waiter", "the future"])
async def test_work_that_waits_ends_when_it_or_what_it_waits_for_is_cancelled(desk: Desk, who: str) -> None:
    reading: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    ended: list[str] = []

    def reads() -> Steps[str]:
        try:
            yield reading
            return reading.result()
        finally:
            ended.append("closed")

    waiting = asyncio.create_task(desk.queue.run(reads()))
    await desk.turns(3)
    (waiting if who == "the waiter" else reading).cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert reading.cancelled()
    assert ended == ["closed"]
    assert len(desk.queue) == 0


async def test_each_loop_has_a_queue_of_its_own() -> None:
    def numbers() -> Steps[int]:
        yield
        return 7

    def elsewhere() -> int:
        return asyncio.run(in_slices(numbers()))

    assert await in_slices(numbers()) == 7
    assert await asyncio.to_thread(elsewhere) == 7
    assert at_once(numbers()) == 7
    assert asyncio.get_running_loop() in slices.QUEUES


async def test_work_for_nobody_goes_on_by_itself_and_its_failure_is_told_to_the_loop() -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))

    def failing() -> Steps[None]:
        yield
        raise failure

    failure = ValueError("no")
    begin_slices(failing())
    while not told:  # noqa: ASYNC110  # the turns of the loop are what is waited for
        await asyncio.sleep(0)
    assert told == [failure]


async def test_few_objects_are_let_go_of_at_once_and_many_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    times = count()
    queue = SliceQueue(lambda: next(times), slice_s=2)  # a step a turn
    monkeypatch.setitem(slices.QUEUES, asyncio.get_running_loop(), queue)
    few, many = [object()] * slices.LET_GO_A_STEP, [object()] * (3 * slices.LET_GO_A_STEP)
    let_go(few)
    assert few == []
    let_go(many)
    left = []
    while many:
        left.append(len(many))
        await asyncio.sleep(0)
    assert left == [2 * slices.LET_GO_A_STEP, slices.LET_GO_A_STEP]


def test_a_loop_that_is_over_is_not_kept_by_its_queue() -> None:
    async def main() -> "ref[asyncio.AbstractEventLoop]":
        begin_slices(Desk().work("a", 3))
        return ref(asyncio.get_running_loop())

    gone = asyncio.run(main())
    gc.collect()
    assert gone() is None
