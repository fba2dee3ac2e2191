"""Which queues a consumer gets from the broker, how it reads them, and that the choice is kept."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.broker import Broker
from aerobee_broker.config_files import decode_config
from aerobee_broker.pop.assignment import Routes, averagely, by_circle, for_pop
from aerobee_proto.bodies import BrokerData, QueueData, TopicConfig, TopicRouteData
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_remoting.handlers import HandlerTable, Permission, Request, Response
from broker.support import Clock, make_test_services
from remoting.pair import serving
from system.popping import Popper, popping
from system.running import running_broker

QUEUES = [("T", "a", 0), ("T", "a", 1), ("T", "a", 2), ("T", "b", 0), ("T", "b", 1)]
MEMBERS = ["x", "y", "z"]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running_broker(tmp_path) as broker:
        broker.services.topics.update([TopicConfig(topic_name="T", read_queue_nums=3, write_queue_nums=3)])
        yield broker


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Popper]:
    async with popping(broker) as client:
        yield client


# --- shares


@pytest.mark.parametrize("strategy", [averagely, by_circle])
def test_every_queue_goes_to_one_member(strategy: Any) -> None:
    for count in range(1, 8):
        members = [str(i) for i in range(count)]
        shares = [strategy(QUEUES, members, me) for me in members]
        assert sorted(queue for share in shares for queue in share) == QUEUES
        sizes = [len(share) for share in shares]
        assert max(sizes) - min(sizes) <= 1
    assert strategy(QUEUES, MEMBERS, "stranger") == []


def test_shares_are_those_of_official_clients() -> None:
    assert averagely(QUEUES, MEMBERS, "x") == QUEUES[:2]
    assert averagely(QUEUES, MEMBERS, "z") == QUEUES[4:]
    assert by_circle(QUEUES, MEMBERS, "y") == [QUEUES[1], QUEUES[4]]


def test_popping_members_get_all_queues_of_a_broker_at_once() -> None:
    assert for_pop(averagely, QUEUES, MEMBERS, "y", 0) == [("T", "a", -1), ("T", "b", -1)]
    assert for_pop(averagely, QUEUES, MEMBERS, "y", 2) == [("T", "a", -1), ("T", "b", -1)]


def test_popping_members_share_with_those_behind_them() -> None:
    assert for_pop(averagely, QUEUES, MEMBERS, "z", 1) == [QUEUES[4], *QUEUES[:2]]
    many = [str(i) for i in range(7)]
    assert for_pop(averagely, QUEUES, many, "6", 1) == [QUEUES[1]]
    assert for_pop(averagely, QUEUES, MEMBERS, "stranger", 1) == []


# --- requests


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
    async with popping(broker) as other:
        await heartbeat(other, "other")
        assert shares(await ask(client)) == [("test-a", 0, "PULL"), ("test-a", 1, "PULL")]
        assert shares(await ask(other, "other", strategyName="AVG_BY_CIRCLE")) == [("test-a", 1, "PULL")]
    assert await ask(client, strategyName="CONSISTENT_HASH") == {}
    assert await ask(client, topic="unknown") == {}
    assert len(shares(await ask(client, "stranger", messageModel="BROADCASTING"))) == 3


async def test_a_mode_is_kept(broker: Broker, client: Popper) -> None:
    await heartbeat(client, "me")
    assert await set_mode(client) == 0
    assert shares(await ask(client)) == [("test-a", -1, "POP")]
    kept = {"consumerGroup": "g", "mode": "POP", "popShareQueueNum": 0, "topic": "T"}
    path = broker.services.config.store_path_root_dir / "config" / "messageRequestMode.json"
    written = decode_config(path.read_bytes())
    assert written == {"messageRequestModeMap": {"T": {"g": kept}}}
    told = await client.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    assert json.loads(told.body) == written
    modes = broker.services.request_modes
    modes.take(modes.parse(written))
    assert shares(await ask(client)) == [("test-a", -1, "POP")]
    assert await set_mode(client, mode="PULL") == 0
    assert len(shares(await ask(client))) == 3


async def test_a_default_mode_is_for_all_but_retry_topics(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, default_message_request_mode="POP") as broker,
        popping(broker) as client,
    ):
        for name in ("T", "%RETRY%g"):
            broker.services.topics.update([TopicConfig(topic_name=name)])
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


# --- other brokers


async def test_queues_of_other_brokers_come_from_the_nameservers(tmp_path: Path) -> None:
    asked: list[str] = []

    def route(request: Request) -> Response:
        asked.append(request.ext["topic"])
        if request.ext["topic"] != "T":
            return Response(ResponseCode.TOPIC_NOT_EXIST)
        queues = [
            QueueData(broker_name="other", read_queue_nums=2, write_queue_nums=2, perm=6),
            QueueData(broker_name="golden-a", read_queue_nums=9, write_queue_nums=9, perm=6),
            QueueData(broker_name="closed", read_queue_nums=2, write_queue_nums=2, perm=2),
        ]
        brokers = [
            BrokerData(cluster="c", broker_name=name, broker_addrs={0: "127.0.0.1:1"})
            for name in ("other", "golden-a", "closed")
        ]
        return Response(body=TopicRouteData(queue_datas=queues, broker_datas=brokers).to_standard())

    table, clock = HandlerTable(), Clock()
    table.register(RequestCode.GET_ROUTEINFO_BY_TOPIC, route, permission=Permission.ANYONE)
    async with serving(table) as (_, port):
        services = make_test_services(tmp_path / "store", clock, namesrv_addr=f"127.0.0.1:1;127.0.0.1:{port}")
        services.topics.update([TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1)])
        routes = Routes(services)
        try:
            expected = [("T", "golden-a", 0), ("T", "other", 0), ("T", "other", 1)]
            assert await routes.queues("T") == expected
            assert await routes.queues("T") == expected
            assert await routes.queues("U") == []
            assert asked == ["T", "U"]
            clock.now_ms += 30_000
            assert await routes.queues("T") == expected
            assert asked == ["T", "U", "T"]
        finally:
            await routes.close()
            services.store.close()
            await services.files.close()
