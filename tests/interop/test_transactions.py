"""Open transactions change hands: half messages that one broker stored are committed, rolled back and asked about by
the other on the same folder, ours after the official one and the other way round.

What official producers see of transactions is in test_scenarios.py; here a producer by hand decides every moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest

import official
import ours
from clusters import FILE_SIZES
from plain_remoting import UPDATE_BROKER_CONFIG, call, consumer_offset, make_topic, max_offset, wait_until
from programs import Server
from system.running import Talker, talking
from system.transacting import (
    COMMIT,
    HALF_TOPIC,
    OP_TOPIC,
    ROLLBACK,
    Half,
    end,
    end_request,
    join_group,
    next_question,
    send_half,
)

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.spread, pytest.mark.timeout(240)]

TOPIC = "HandedOver"
QUIET: dict[str, object] = {"transactionCheckInterval": 600_000}
ASKED_AFTER_MS = 500
ASKING: dict[str, object] = {
    "transactionCheckInterval": 500,
    "transactionTimeOut": ASKED_AFTER_MS,
    "transactionCheckMax": 1000,
}
SETTINGS: dict[str, object] = {**FILE_SIZES, "transactionOpBatchInterval": 100}
DECISIONS = {"open-1": COMMIT, "open-2": ROLLBACK, "open-3": COMMIT, "late": COMMIT}
DIRECTIONS = {"official to ours": ("official", "ours"), "ours to official": ("ours", "official")}


@contextlib.contextmanager
def serving(
    kind: str, folder: Path, nameserver: str, settings: Mapping[str, object], *, is_last: bool = False
) -> Iterator[Server]:
    """A broker of the kind on folder/store, stopped in order afterwards, for the next one to take the store."""
    start = ours.start_broker if kind == "ours" else official.start_broker
    broker = start(folder, nameserver, config={**SETTINGS, **settings})
    try:
        yield broker
        if not is_last:
            broker.stop(60.0)
    finally:
        broker.kill()


@contextlib.asynccontextmanager
async def producing(broker: Server) -> AsyncIterator[Talker]:
    """A producer of the group."""
    async with talking(int(broker.address.rpartition(":")[2])) as talker:
        await join_group(talker)
        yield talker


async def open_and_end(talker: Talker) -> dict[str, Half]:
    """Half messages: one is committed, one is rolled back, the others stay open. Returns when both marks are stored."""
    halves = {}
    for key in ("committed", "open-1", "rolled-back", "open-2", "open-3", "late"):
        born = str(time.time_ns() // 1_000_000)
        halves[key] = await send_half(talker, TOPIC, key.encode(), key=key, born=born, TAGS="TagA")
    for key, how in (("committed", COMMIT), ("rolled-back", ROLLBACK)):
        assert (await end(talker, halves[key], how)).code == 0
    marked = ""
    while marked.count(",") < 2:
        marks = await talker.records(OP_TOPIC, sysFlag=6, suspendTimeoutMillis=1_000)
        marked = "".join(bytes(mark.body).decode() for mark in marks)
    return halves


async def answer(talker: Talker, answered: Counter[str]) -> None:
    """Answer questions as decided, and count them."""
    while True:
        half, _, record = await next_question(talker)
        assert bytes(record.body).decode() == half.key
        assert (record.topic, record.tags) == (TOPIC, "TagA")
        answered[half.key] += 1
        talker.send(end_request(half, DECISIONS[half.key], check=True, oneway=True))


def all_have_ended(address: str) -> bool:
    return consumer_offset(address, "CID_RMQ_SYS_TRANS", HALF_TOPIC, 0) == max_offset(address, HALF_TOPIC, 0)


async def finish(broker: Server, late: Half | None) -> tuple[Counter[str], Counter[str]]:
    """End what is open, `late` by the place that its producer was told.

    How often each message is seen then, and how often each was asked about and answered.
    """
    answered: Counter[str] = Counter()
    async with producing(broker) as producer, talking(int(broker.address.rpartition(":")[2])) as reader:
        if late is not None:
            assert (await end(reader, late, COMMIT)).code == 0
        answering = asyncio.create_task(answer(producer, answered))
        await asyncio.to_thread(
            wait_until, lambda: all_have_ended(broker.address), "all transactions to end", timeout_s=60
        )
        answering.cancel()
        seen = Counter(bytes(record.body).decode() for record in await reader.records(TOPIC))
        return seen, answered


def check_seen(kind: str, seen: Counter[str], answered: Counter[str]) -> None:
    """What was committed is seen, once; what was rolled back never.

    The official broker asks about a new copy at each of its rounds until it has stored the mark of an end, and stores
    the message anew for each copy that is answered: as often as it has asked, on a busy machine more than once.
    """
    assert answered.keys() <= DECISIONS.keys(), "asked about what had ended before"
    most = dict.fromkeys(("committed", "open-1", "open-3", "late"), 1)
    if kind == "official":
        most |= {key: count for key, count in answered.items() if key in most}
    assert seen.keys() == most.keys()
    assert {key: count for key, count in seen.items() if count > most[key]} == {}


@pytest.mark.parametrize(("first", "second"), DIRECTIONS.values(), ids=DIRECTIONS)
async def test_open_transactions_are_ended_by_the_next_broker(
    tmp_path: Path, first: str, second: str
) -> None:
    with ours.start_nameserver() as nameserver:
        with serving(first, tmp_path, nameserver.address, QUIET) as broker:
            make_topic(nameserver.address, broker.address, TOPIC, queues=1)
            async with producing(broker) as producer:
                halves = await open_and_end(producer)
        with serving(second, tmp_path, nameserver.address, ASKING, is_last=True) as broker:
            # The official broker stores a message twice that is committed while it asks about a copy.
            seen, answered = await finish(broker, halves["late"] if second == "ours" else None)
    check_seen(second, seen, answered)


@pytest.mark.parametrize(("first", "second"), DIRECTIONS.values(), ids=DIRECTIONS)
async def test_copies_that_checks_have_made_are_known_to_the_next_broker(
    tmp_path: Path, first: str, second: str
) -> None:
    """The first broker has asked, in vain: its copies carry the count, and the next broker goes on with them.

    It asks about nothing before two are ended: the official broker would keep its copies of them open.
    """
    asking_later = ASKING | {"transactionTimeOut": 600_000}
    with ours.start_nameserver() as nameserver:
        with serving(first, tmp_path, nameserver.address, asking_later) as broker:
            make_topic(nameserver.address, broker.address, TOPIC, queues=1)
            async with producing(broker) as producer:
                await open_and_end(producer)
                change = b"transactionTimeOut=%d\n" % ASKED_AFTER_MS
                assert call(broker.address, UPDATE_BROKER_CONFIG, body=change)[0]["code"] == 0
                asked: dict[str, int] = {}
                while len(asked) < len(DECISIONS) or min(asked.values()) < 2:
                    half, _, record = await next_question(producer)
                    times = int(record.property_map["TRANSACTION_CHECK_TIMES"])
                    assert times == asked.get(half.key, times - 1) + 1
                    asked[half.key] = times
        with serving(second, tmp_path, nameserver.address, ASKING, is_last=True) as broker:
            seen, answered = await finish(broker, None)
    check_seen(second, seen, answered)
