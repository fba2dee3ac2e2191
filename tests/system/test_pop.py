"""A broker that is killed while a group pops: what was acknowledged in time never comes back, the rest always does.

The moments follow from a seed, which is in the test's name.
"""

import asyncio
import random
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from aerobee_proto.codes import ResponseCode
from aerobee_proto.frames import Command
from aerobee_proto.records import decode_records
from system.kills import CONNECTION_LOST, start
from system.popping import Popper, extra_infos, popping

KILLS: Final = 6
INVISIBLE_MS: Final = 1500
QUEUES: Final = 2
SETTINGS: Final = {"defaultTopicQueueNums": QUEUES, "flushConsumerOffsetInterval": 700}


@dataclass(slots=True)
class Books:
    """What was sent, what was acknowledged in time, and how often each message was seen."""

    rng: random.Random
    count: int = 0
    sent: set[int] = field(default_factory=set)  # stored for certain
    settled: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)  # acknowledgements that may have arrived
    seen: dict[int, int] = field(default_factory=dict)
    ordered: bool = False  # in order: a message is seen first after all before it in its queue
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def saw(self, numbers: list[int], asked: set[int]) -> None:
        """Messages came that were not among those settled when they were asked for."""
        again = asked & set(numbers)
        assert not again, f"acknowledged, and here again: {sorted(again)}"
        for number in numbers:
            if self.ordered and number not in self.seen:
                later = [n for n in self.seen if n > number and n % QUEUES == number % QUEUES]
                assert not later, f"message {number} after {sorted(later)}"
            self.seen[number] = self.seen.get(number, 0) + 1

    def settle(self, numbers: list[int]) -> None:
        self.settled.update(numbers)
        self.changed.set()

    async def until_settled(self, count: int) -> None:
        while len(self.settled) < count:
            self.changed.clear()
            await self.changed.wait()


async def send(client: Popper, books: Books) -> None:
    """Messages with a number as their body, one after the other."""
    while True:
        number = books.count
        books.count += 1
        answer = await client.put("T", b"%d" % number, queue_id=number % QUEUES)
        if answer.code == 0:
            books.sent.add(number)


async def consume(client: Popper, books: Books, *, lazy: bool) -> None:
    """Pop and acknowledge, in all ways; `lazy`: some messages are left alone at first."""
    while True:
        await consume_once(client, books, lazy=lazy, poll_ms=300)


async def consume_once(client: Popper, books: Books, *, lazy: bool, poll_ms: int) -> bool:
    """One pop and what becomes of it; False when there was nothing."""
    asked, requested_ms = set(books.settled), now_ms()
    wishes: dict[str, object] = {
        "order": str(books.ordered).lower(),
        "maxMsgNums": 8 if books.ordered else 32,
    }
    answer = await client.pop(
        "T", queueId=-1, invisibleTime=INVISIBLE_MS, pollTime=poll_ms, bornTime=requested_ms, **wishes
    )
    if answer.code == ResponseCode.POLLING_TIMEOUT:
        return False
    assert answer.code == 0, answer.remark
    numbers = [int(record.body) for record in decode_records(answer.body)]
    books.saw(numbers, asked)
    names = dict(zip(numbers, extra_infos(answer, "T"), strict=True))
    if lazy and books.ordered:
        names = dict(list(names.items())[: books.rng.randrange(len(names) + 1)])
    elif lazy:
        names = {number: name for number, name in names.items() if books.rng.random() < 0.8}
    may_wait = lazy and not books.ordered
    longer = {number: name for number, name in names.items() if may_wait and books.rng.random() < 0.1}
    for number, name in longer.items():
        changed = await client.change("T", name, INVISIBLE_MS)
        fields = name.split()
        logged = [changed.ext[key] for key in ("popTime", "invisibleTime", "reviveQid")]
        names[number] = " ".join([fields[7], *logged, *fields[4:]])
    await acknowledge(client, books, names, in_time_ms=requested_ms + INVISIBLE_MS)
    return True


async def acknowledge(client: Popper, books: Books, names: dict[int, str], *, in_time_ms: int) -> None:
    """Acknowledge all in one write; those that are answered while they are invisible are settled."""
    books.asked.update(names)
    sent = {client.send_ack("T", name): number for number, name in names.items()}
    answers: dict[int, Command] = {}
    while len(answers) < len(sent):
        answer = await client.receive()
        answers[answer.opaque] = answer
        assert answer.code == 0, answer.remark
        if now_ms() < in_time_ms:
            books.settle([sent[answer.opaque]])


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def until_killed(work: Coroutine[Any, Any, None]) -> None:
    with suppress(*CONNECTION_LOST):
        await work


async def live_through(store: Path, books: Books, kills: int) -> None:
    """Load, and kills at random moments of it."""
    for _ in range(kills):
        broker = await start(store, SETTINGS)
        try:
            async with (
                popping(broker.port) as one,
                popping(broker.port) as two,
                popping(broker.port) as three,
            ):
                loads = [
                    asyncio.create_task(until_killed(send(one, books)), name="sender"),
                    asyncio.create_task(until_killed(consume(two, books, lazy=True)), name="lazy consumer"),
                    asyncio.create_task(until_killed(consume(three, books, lazy=False)), name="consumer"),
                ]
                expected = len(books.settled) + books.rng.randrange(20, 80 if books.ordered else 400)
                moment = asyncio.create_task(books.until_settled(expected), name="moment")
                async with asyncio.timeout(60):
                    await asyncio.wait([moment, *loads], return_when=asyncio.FIRST_COMPLETED)
                broker.program.process.kill()
                await asyncio.gather(*loads)  # what they found wrong
                assert moment.done()
        finally:
            broker.program.kill()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, 2])
async def test_what_was_acknowledged_stays_so_and_the_rest_comes(tmp_path: Path, seed: int) -> None:
    books = Books(random.Random(seed))
    await live_through(tmp_path / "store", books, KILLS)
    await see_the_rest(tmp_path / "store", books)
    assert len(books.sent) > 20 * KILLS


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_in_order_nothing_is_overtaken_and_what_was_acknowledged_stays_so(tmp_path: Path) -> None:
    books = Books(random.Random(3), ordered=True)
    await live_through(tmp_path / "store", books, KILLS // 2)
    await see_the_rest(tmp_path / "store", books)


async def see_the_rest(store: Path, books: Books) -> None:
    """Pop until there is nothing more, and compare the books."""
    broker = await start(store, SETTINGS)
    try:
        async with popping(broker.port) as client, asyncio.timeout(60):
            while await consume_once(client, books, lazy=False, poll_ms=3 * INVISIBLE_MS):
                pass
        assert books.sent <= set(books.seen)
        assert books.sent - books.settled <= books.asked
        broker.program.process.terminate()
        assert await broker.ended() == 0
    finally:
        broker.program.kill()
