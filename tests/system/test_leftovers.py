"""Requests leave nothing in memory but what they store, however many of them there are, with either engine.

A reference that a native call forgets to give back shows nowhere else: pulls left two numbers each.
"""

import gc
import sys
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from aerobee_broker.broker import Broker
from aerobee_proto.batch import BatchEntry
from aerobee_proto.codes import RequestCode
from broker.in_memory import broker_in_memory, popping_in_memory
from engines import BOTH_ENGINES
from system.popping import Popper, extra_infos
from system.running import text_of

pytestmark = BOTH_ENGINES

SETTLING: Final = 150  # requests, until everything has been seen once
COUNT: Final = 400
# Blocks of memory that may be more afterwards: tables grow now and then, by all that is new in them.
KEPT_MAX: Final = COUNT // 4
STORED: Final = 60


async def pull(client: Popper, number: int) -> None:
    answer = await client.pull("T", number % 20)
    assert answer.body


async def pull_with_tags(client: Popper, number: int) -> None:
    answer = await client.pull("T", number % 20, subscription="TagA || TagB")
    assert answer.body


async def pull_of_nothing(client: Popper, number: int) -> None:
    answer = await client.pull("T", 1_000_000, sysFlag=4)
    assert not answer.body


async def query(client: Popper, number: int) -> None:
    fields = {"topic": "T", "key": f"key{number % 5}", "maxNum": "32", "beginTimestamp": "0"}
    answer = await client.ask(RequestCode.QUERY_MESSAGE, {**fields, "endTimestamp": str(1 << 62)})
    assert answer.body


async def query_by_unique_key(client: Popper, number: int) -> None:
    fields = {"topic": "T", "key": f"{number % 5:032X}", "maxNum": "1", "beginTimestamp": "0"}
    fields["_UNIQUE_KEY_QUERY"] = "true"
    answer = await client.ask(RequestCode.QUERY_MESSAGE, {**fields, "endTimestamp": str(1 << 62)})
    assert answer.body


async def offsets(client: Popper, number: int) -> None:
    fields = {"topic": "T", "queueId": "0", "consumerGroup": "test-group"}
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**fields, "commitOffset": str(number % 50)})
    for code in (RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET):
        assert (await client.ask(code, fields)).code == 0


async def send(client: Popper, number: int) -> None:
    properties = text_of({"UNIQ_KEY": f"{number:032X}", "TAGS": "TagA"})
    assert (await client.put("S", bytes(200), properties=properties)).code == 0


async def send_batch(client: Popper, number: int) -> None:
    entries = [BatchEntry(0, bytes(50), text_of({"TAGS": "TagA"})) for _ in range(3)]
    assert (await client.put_batch("S", entries)).code == 0


async def pop(client: Popper, number: int) -> None:
    answer = await client.pop("P", maxMsgNums=1)
    if answer.code == 0:
        assert await client.ack_all(answer, "P") == [0] * len(extra_infos(answer, "P"))


async def bad_request(client: Popper, number: int) -> None:
    assert (await client.pull("nobody has made it")).code != 0
    assert (await client.ask(9_999)).code != 0


KINDS: Final[list[Callable[[Popper, int], Awaitable[None]]]] = [
    pull,
    pull_with_tags,
    pull_of_nothing,
    query,
    query_by_unique_key,
    offsets,
    send,
    send_batch,
    pop,
    bad_request,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_a_request_leaves_nothing(kind: Callable[[Popper, int], Awaitable[None]]) -> None:
    async with (
        broker_in_memory(flush_disk_type="ASYNC_FLUSH") as broker,
        popping_in_memory(broker) as client,
    ):
        for number in range(STORED):
            named = {
                "UNIQ_KEY": f"{number:032X}",
                "TAGS": ("TagA", "TagC", "TagB")[number % 3],
                "KEYS": f"key{number % 5}",
            }
            await client.put("T", bytes(300), properties=text_of(named))
        for number in range(SETTLING):
            await kind(client, number)
        before = _blocks(broker)
        for number in range(COUNT):
            await kind(client, number)
        kept = _blocks(broker) - before
    assert kept <= KEPT_MAX, f"{COUNT} requests have left {kept} blocks of memory"


def _blocks(broker: Broker) -> int:
    """Blocks of memory in use, when nothing waits for the index any more."""
    keys = broker.parts.store.keys
    while keys.backlog:
        keys.build(1024)
    gc.collect()
    return sys.getallocatedblocks()
