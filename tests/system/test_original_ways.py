"""What programs written for the original do to a broker, and what they rely on afterwards."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.broker import Broker
from aerobee_nameserver.config import load_config
from aerobee_nameserver.server import NameServer
from aerobee_proto.bodies import TopicConfig, TopicRouteData
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import Command
from aerobee_proto.records import decode_records
from broker.support import Clock
from system.popping import Popper, extra_infos, popping
from system.running import Talker, running_broker, talking

MIB = 1 << 20
MINUTE_MS = 60_000


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def broker(tmp_path: Path, clock: Clock) -> AsyncIterator[Broker]:
    settings: dict[str, Any] = {"mapped_file_size_commit_log": 16 * MIB, "pop_from_retry_probability": 0}
    async with running_broker(tmp_path, clock=clock, **settings) as broker:
        yield broker


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Popper]:
    async with popping(broker) as client:
        await ignored_settings(client)
        yield client


async def ignored_settings(client: Talker) -> None:
    """What the original's own tests set before they pop."""
    text = b"enablePopBufferMerge=true\npopConsumerKVServiceEnable=true\nenableSplitRegistration=true\n"
    answer = await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text)
    assert answer.code == 0, answer.remark


def bodies(answer: Command) -> list[bytes]:
    return [record.body for record in decode_records(answer.body)] if answer.code == 0 else []


def with_topic(broker: Broker, topic: str = "T", queues: int = 1) -> None:
    broker.parts.topics.update(
        [TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)]
    )


async def reset(client: Talker, **fields: str) -> None:
    ext = {"topic": "T", "group": "test-group", "isForce": "true", "timestamp": "0", **fields}
    answer = await client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)
    assert answer.code == 0, answer.remark


async def sweep(broker: Broker) -> None:
    """What the broker does ten times a second."""
    broker.parts.pop.sweep()
    await broker.parts.pop.ledger.settle()


# --- POP of large messages ----------------------------------------------------------------------------------------


async def test_messages_of_the_largest_size_are_popped_acknowledged_and_come_back(
    broker: Broker, client: Popper, clock: Clock
) -> None:
    with_topic(broker)
    sent = [bytes([65 + i]) * (4 * MIB) for i in range(3)]
    for body in sent:
        assert (await client.put("T", body)).code == 0
    got: list[bytes] = []
    for _ in sent:
        answer = await client.pop("T")
        got += bodies(answer)
        if len(got) > 1:
            assert await client.ack_all(answer) == [0]
    assert got == sent
    assert (await client.pop("T")).code == ResponseCode.POLLING_TIMEOUT
    clock.now_ms += MINUTE_MS
    await sweep(broker)
    again = await client.pop("T")
    assert bodies(again) == sent[:1]  # the one that was not acknowledged, and it alone
    assert (await client.pop("T")).code == ResponseCode.POLLING_TIMEOUT


# --- resets while messages are out --------------------------------------------------------------------------------

WAYS = {
    "to the first message": ({"timestamp": "0"}, 0),
    "to the end": ({"timestamp": "-1"}, 6),
    "to an offset": ({"queueId": "0", "offset": "2"}, 2),
    "forward to an offset": ({"queueId": "0", "offset": "5"}, 5),
}


@pytest.mark.parametrize("order", ["false", "true"], ids=["in any order", "in order"])
@pytest.mark.parametrize(("fields", "first"), WAYS.values(), ids=WAYS)
async def test_a_group_is_sent_elsewhere_while_it_has_messages(
    broker: Broker, client: Popper, clock: Clock, order: str, fields: dict[str, str], first: int
) -> None:
    with_topic(broker)
    sent = [b"%d" % i for i in range(6)]
    for body in sent:
        await client.put("T", body)
    out = await client.pop("T", maxMsgNums=4, order=order)
    assert bodies(out) == sent[:4]
    await reset(client, **fields)
    popped = await client.pop("T", order=order)
    assert bodies(popped) == sent[first:]
    # What was handed out before is no reason to hold anything back, nor to go anywhere when it is acknowledged.
    await client.ack_all(out, order=order)
    if popped.code == 0:
        assert set(await client.ack_all(popped)) == {0}
    await client.put("T", b"next")
    rest = bodies(await client.pop("T", order=order))
    assert rest[-1:] == [b"next"]
    assert set(rest) <= {b"next"}


@pytest.mark.parametrize("order", ["false", "true"], ids=["in any order", "in order"])
async def test_all_queues_of_a_topic_are_reset_at_once(broker: Broker, client: Popper, order: str) -> None:
    with_topic(broker, queues=3)
    for queue_id in range(3):
        for i in range(2):
            await client.put("T", b"%d-%d" % (queue_id, i), queue_id=queue_id)
    first = [bodies(await client.pop("T", queueId=queue_id, order=order)) for queue_id in range(3)]
    assert [len(popped) for popped in first] == [2, 2, 2]
    await reset(client)
    again = [bodies(await client.pop("T", queueId=queue_id, order=order)) for queue_id in range(3)]
    assert again == first


async def test_what_comes_back_after_a_reset_is_not_lost(
    broker: Broker, client: Popper, clock: Clock
) -> None:
    """Messages that were out when the group was sent to the end are given again when their time is over."""
    with_topic(broker)
    await client.put("T", b"out")
    out = await client.pop("T")
    await reset(client, timestamp="-1")
    assert bodies(await client.pop("T")) == []
    assert len(extra_infos(out, "T")) == 1
    clock.now_ms += MINUTE_MS
    await sweep(broker)
    assert bodies(await client.pop("T")) == [b"out"]


# --- topics on several brokers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "drops", ["false", "true"], ids=["", "by a nameserver that drops what is not listed"]
)
async def test_a_topic_made_on_three_brokers_is_in_the_route_of_all_when_the_last_answers(
    tmp_path: Path, drops: str
) -> None:
    """A nameserver with deleteTopicWithBrokerRegistration forgot all other topics of a broker with each new one:
    enableSingleTopicRegister, which is there for that, was ignored.
    """
    addresses = {"listenPort": "0", "bindAddress": "127.0.0.1", "deleteTopicWithBrokerRegistration": drops}
    nameserver = NameServer(load_config(overrides=addresses, environ={}), keep_kv=False)
    await nameserver.start()
    names = ["b-1", "b-2", "b-3"]
    try:
        async with AsyncExitStack() as stack:
            address = f"127.0.0.1:{nameserver.port}"
            clients = []
            for name in names:
                started = running_broker(tmp_path / name, broker_name=name, namesrv_addr=address)
                clients.append(
                    await stack.enter_async_context(talking(await stack.enter_async_context(started)))
                )
            asked = await stack.enter_async_context(talking(nameserver.port))
            for client in clients:
                for text in (b"enableSingleTopicRegistration=true\n", b"enableSingleTopicRegister=true\n"):
                    assert (await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text)).code == 0
            topics = [f"T{number}" for number in range(20)]
            for topic in topics:
                made = await asyncio.gather(*(client.make_topic(topic, 8) for client in clients))
                assert [answer.code for answer in made] == [0, 0, 0]
            for topic in [*topics, "TBW102"]:
                fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
                route = await asked.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
                found = TopicRouteData.from_bytes(route.body)
                assert sorted(data.broker_name for data in found.queue_datas) == names
                assert sorted(data.broker_name for data in found.broker_datas) == names
    finally:
        await nameserver.close()
