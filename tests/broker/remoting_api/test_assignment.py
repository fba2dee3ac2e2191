"""Which queues a consumer gets from the broker, how it reads them, and that the choice is kept."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.broker import Broker
from aerobee_broker.settings.config_files import decode_config
from aerobee_proto.bodies import TopicConfig
from aerobee_proto.codes import RequestCode, ResponseCode
from broker.in_memory import broker_in_memory, popping_in_memory
from store.memory_io import MemoryIo
from system.popping import Popper


@pytest.fixture
async def broker(disk: MemoryIo) -> AsyncIterator[Broker]:
    async with broker_in_memory(io=disk) as broker:
        broker.parts.topics.update([TopicConfig(topic_name="T", read_queue_nums=3, write_queue_nums=3)])
        yield broker


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Popper]:
    async with popping_in_memory(broker) as client:
        yield client


async def heartbeat(client: Popper, client_id: str) -> None:
    body = {
        "clientID": client_id,
        "consumerDataSet": [
            {
                "groupName": "g",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "subscriptionDataSet": [],
            }
        ],
        "producerDataSet": [],
    }
    assert (await client.ask(RequestCode.HEART_BEAT, body=json.dumps(body).encode())).code == 0


async def ask(client: Popper, client_id: str = "me", **fields: object) -> Any:
    query = {
        "clientId": client_id,
        "consumerGroup": "g",
        "messageModel": "CLUSTERING",
        "strategyName": "AVG",
        "topic": "T",
        **fields,
    }
    answer = await client.ask(RequestCode.QUERY_ASSIGNMENT, body=json.dumps(query).encode())
    assert answer.code == 0
    return json.loads(answer.body)


async def set_mode(client: Popper, **fields: object) -> int:
    mode = {"consumerGroup": "g", "mode": "POP", "popShareQueueNum": 0, "topic": "T", **fields}
    return (await client.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(mode).encode())).code


def shares(found: Any) -> list[tuple[str, int, str]]:
    return [
        (one["messageQueue"]["brokerName"], one["messageQueue"]["queueId"], one["mode"])
        for one in found["messageQueueAssignments"]
    ]


async def test_members_are_told_their_queues(broker: Broker, client: Popper) -> None:
    assert await ask(client) == {}  # nobody is registered: it keeps what it has
    await heartbeat(client, "me")
    assert shares(await ask(client)) == [("test-a", i, "PULL") for i in range(3)]
    async with popping_in_memory(broker) as other:
        await heartbeat(other, "other")
        assert shares(await ask(client)) == [("test-a", 0, "PULL"), ("test-a", 1, "PULL")]
        assert shares(await ask(other, "other", strategyName="AVG_BY_CIRCLE")) == [("test-a", 1, "PULL")]
    assert await ask(client, strategyName="CONSISTENT_HASH") == {}
    assert await ask(client, topic="unknown") == {}
    assert len(shares(await ask(client, "stranger", messageModel="BROADCASTING"))) == 3


async def test_a_mode_is_kept(disk: MemoryIo, broker: Broker, client: Popper) -> None:
    await heartbeat(client, "me")
    assert await set_mode(client) == 0
    assert shares(await ask(client)) == [("test-a", -1, "POP")]
    kept = {"consumerGroup": "g", "mode": "POP", "popShareQueueNum": 0, "topic": "T"}
    written = decode_config(disk.read_bytes(Path("/store/config/messageRequestMode.json")) or b"")
    assert written == {"messageRequestModeMap": {"T": {"g": kept}}}
    logged = await client.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    assert json.loads(logged.body) == written
    modes = broker.parts.request_modes
    modes.take(modes.parse(written))
    assert shares(await ask(client)) == [("test-a", -1, "POP")]
    assert await set_mode(client, mode="PULL") == 0
    assert len(shares(await ask(client))) == 3


async def test_a_default_mode_is_for_all_but_retry_topics() -> None:
    async with (
        broker_in_memory(default_message_request_mode="POP") as broker,
        popping_in_memory(broker) as client,
    ):
        for name in ("T", "%RETRY%g"):
            broker.parts.topics.update([TopicConfig(topic_name=name)])
        await heartbeat(client, "me")
        assert shares(await ask(client)) == [("test-a", -1, "POP")]
        assert {mode for _, _, mode in shares(await ask(client, topic="%RETRY%g"))} == {"PULL"}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "%RETRY%g"}, ResponseCode.NO_PERMISSION),
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"consumerGroup": "no/group"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"mode": "PUSH"}, ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_bad_modes_are_refused(client: Popper, fields: dict[str, object], code: int) -> None:
    assert await set_mode(client, **fields) == code
