"""Requests leave nothing in memory but what they store, however many of them there are, with either engine.

A reference that a native call forgets to give back shows nowhere else: pulls left two numbers each.
"""

import gc
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, NamedTuple

import pytest

from aerobee_broker.broker import Broker
from aerobee_proto.batch import BatchEntry
from aerobee_proto.codes import RequestCode
from aerobee_proto.records import decode_records
from broker.in_memory import broker_in_memory, popping_in_memory
from broker.remoting_api.test_client_handlers import heartbeat
from engines import BOTH_ENGINES
from system.popping import Popper, extra_infos
from system.running import text_of

pytestmark = BOTH_ENGINES


class Scene(NamedTuple):
    """A broker and two connections to it."""

    broker: Broker
    client: Popper
    other: Popper


Kind = Callable[[Scene, int], Awaitable[None]]

SETTLING: Final = 60  # requests, until everything has been seen once
WINDOWS: Final = 3  # what is bounded grows in some of them, what is not in each
COUNT: Final = 100
# Blocks of memory that may be more afterwards. Tables grow now and then by all that is new in them, and tasks that run
# beside take theirs; what leaks leaves at least one with each request.
KEPT_MAX: Final = COUNT - 1
STORED: Final = 60


async def pull(at: Scene, number: int) -> None:
    answer = await at.client.pull("T", number % 20)
    assert answer.body


async def pull_with_tags(at: Scene, number: int) -> None:
    answer = await at.client.pull("T", number % 20, subscription="TagA || TagB")
    assert answer.body


async def pull_of_nothing(at: Scene, number: int) -> None:
    answer = await at.client.pull("T", 1_000_000, sysFlag=4)
    assert not answer.body


async def query(at: Scene, number: int) -> None:
    fields = {"topic": "T", "key": f"key{number % 5}", "maxNum": "32", "beginTimestamp": "0"}
    answer = await at.client.ask(RequestCode.QUERY_MESSAGE, {**fields, "endTimestamp": str(1 << 62)})
    assert answer.body


async def query_by_unique_key(at: Scene, number: int) -> None:
    fields = {"topic": "T", "key": f"{number % 5:032X}", "maxNum": "1", "beginTimestamp": "0"}
    fields["_UNIQUE_KEY_QUERY"] = "true"
    answer = await at.client.ask(RequestCode.QUERY_MESSAGE, {**fields, "endTimestamp": str(1 << 62)})
    assert answer.body


async def offsets(at: Scene, number: int) -> None:
    fields = {"topic": "T", "queueId": "0", "consumerGroup": "test-group"}
    await at.client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**fields, "commitOffset": str(number % 50)})
    for code in (RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET):
        assert (await at.client.ask(code, fields)).code == 0


async def send(at: Scene, number: int) -> None:
    properties = text_of({"UNIQ_KEY": f"{number:032X}", "TAGS": "TagA"})
    assert (await at.client.put("S", bytes(200), properties=properties)).code == 0


async def send_batch(at: Scene, number: int) -> None:
    entries = [BatchEntry(0, bytes(50), text_of({"TAGS": "TagA"})) for _ in range(3)]
    assert (await at.client.put_batch("S", entries)).code == 0


async def pop(at: Scene, number: int) -> None:
    assert (await at.other.put("P")).code == 0
    answer = await at.client.pop("P", maxMsgNums=1)
    assert len(extra_infos(answer, "P")) == 1
    assert await at.client.ack_all(answer, "P") == [0]


async def member(at: Scene, number: int) -> None:
    """It comes and goes."""
    name = f"client-{number}"
    assert (
        await at.client.ask(RequestCode.HEART_BEAT, body=heartbeat(name, "test-group", producer="producers"))
    ).code == 0
    fields = {"clientID": name, "consumerGroup": "test-group", "producerGroup": "producers"}
    assert (await at.client.ask(RequestCode.UNREGISTER_CLIENT, fields)).code == 0


async def connection(at: Scene, number: int) -> None:
    """It joins a group, asks, and hangs up."""
    async with popping_in_memory(at.broker) as another:
        answer = await another.ask(RequestCode.HEART_BEAT, body=heartbeat("another", "test-group"))
        assert answer.code == 0
        assert (await another.pull("T", number % 20)).body


async def held_pull(at: Scene, number: int) -> None:
    """A message wakes it."""
    held = at.client.pull_request("H", number, sysFlag=6)
    held.opaque = at.client.opaque = at.client.opaque + 1
    at.client.send(held)
    assert (await at.other.put("H", b"x")).code == 0
    assert (await at.client.answer_to(held.opaque)).code == 0


async def sent_back(at: Scene, number: int) -> None:
    fields = {
        "offset": str(first_place(at.broker)),
        "group": "test-group",
        "delayLevel": "-1",
        "originTopic": "T",
    }
    answer = await at.client.ask(
        RequestCode.CONSUMER_SEND_MSG_BACK, {**fields, "originMsgId": "", "unitMode": "false"}
    )
    assert answer.code == 0, answer.remark


def first_place(broker: Broker) -> int:
    """Physical offset of the first message that was put into T."""
    found = broker.parts.store.reading.get_message("group", "T", 0, 0, 1, 1 << 20, None)
    return decode_records(b"".join(found.body))[0].physical_offset


async def operator(at: Scene, number: int) -> None:
    """What the tools ask."""
    of_group = {"consumerGroup": "test-group", "topic": "T"}
    for code, fields in (
        (RequestCode.GET_ALL_TOPIC_CONFIG, {}),
        (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}),
        (RequestCode.GET_BROKER_CONFIG, {}),
        (RequestCode.GET_BROKER_RUNTIME_INFO, {}),
        (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}),
        (RequestCode.GET_CONSUME_STATS, of_group),
        (RequestCode.GET_ALL_CONSUMER_OFFSET, {}),
    ):
        answer = await at.client.ask(code, fields)
        assert answer.code == 0, f"{code}: {answer.remark}"


async def topic(at: Scene, number: int) -> None:
    """It is made, used and deleted."""
    name = f"topic-{number % 3}"
    assert (await at.client.make_topic(name)).code == 0
    assert (await at.client.put(name)).code == 0
    assert (await at.client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name})).code == 0


async def bad_request(at: Scene, number: int) -> None:
    assert (await at.client.pull("nobody has made it")).code != 0
    assert (await at.client.ask(9_999)).code != 0


KINDS: Final[list[Kind]] = [
    pull,
    pull_with_tags,
    pull_of_nothing,
    query,
    query_by_unique_key,
    offsets,
    send,
    send_batch,
    pop,
    member,
    connection,
    held_pull,
    sent_back,
    operator,
    topic,
    bad_request,
]


@pytest.fixture
def quick_search() -> Iterator[None]:
    """Searches for garbage leave out what other tests have made: with all of it one takes a third of a second."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("quick_search")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_a_request_leaves_nothing(kind: Kind) -> None:
    async with (
        broker_in_memory(flush_disk_type="ASYNC_FLUSH") as broker,
        popping_in_memory(broker) as client,
        popping_in_memory(broker) as other,
    ):
        at = Scene(broker, client, other)
        for number in range(STORED):
            tag = ("TagA", "TagC", "TagB")[number % 3]
            named = {"UNIQ_KEY": f"{number:032X}", "TAGS": tag, "KEYS": f"key{number % 5}"}
            await client.put("T", bytes(300), properties=text_of(named))
        assert (await client.make_topic("H")).code == 0
        for number in range(SETTLING):
            await kind(at, number)
        kept, number = list[int](), SETTLING
        for _ in range(WINDOWS):
            before = _blocks(broker)
            for _ in range(COUNT):
                await kind(at, number)
                number += 1
            kept.append(_blocks(broker) - before)
    assert min(kept) <= KEPT_MAX, f"{COUNT} requests have left {kept} blocks of memory"


def _blocks(broker: Broker) -> int:
    """Blocks of memory in use, when nothing waits for the index any more."""
    keys = broker.parts.store.keys
    while keys.backlog:
        keys.build(1024)
    gc.collect()
    return sys.getallocatedblocks()
