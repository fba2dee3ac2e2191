"""Captured traffic played again: our answers are the official nameserver's, byte for byte."""

import json
from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aerobee_nameserver.config import NameserverConfig
from aerobee_nameserver.route_table import RouteStatistics, TopicQueues
from aerobee_nameserver.server import NameServer
from aerobee_proto.codes import RequestCode
from nameserver.captures import WIRE, Exchange, Peers, exchanges

# Two sets whose order is that of a Java hash table.
TOPIC_LISTS = {RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, RequestCode.GET_TOPICS_BY_CLUSTER}
# They count every topic, and some were registered between the captures.
COUNTS = {RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.ADD_WRITE_PERM_OF_BROKER}
BROKER_SESSION = ("broker-start", "producer", "slave-start", "ha-replication")
ADMIN_SESSION = (
    "mqadmin-topicList",
    "mqadmin-updateTopic",
    "mqadmin-updateTopicCluster",
    "mqadmin-updateOrderConf",
    "mqadmin-updateKvConfig",
    "mqadmin-deleteKvConfig",
    "mqadmin-topicClusterList",
    "mqadmin-topicRouteMissing",
)


@pytest.fixture
async def server() -> AsyncIterator[NameServer]:
    server = NameServer(NameserverConfig(listen_port=0, bind_address="127.0.0.1"), keep_kv=False)
    await server.start()
    yield server
    await server.close()


@pytest.fixture
async def peers(server: NameServer) -> AsyncIterator[Peers]:
    peers = Peers(server.port)
    yield peers
    await peers.close()


def answer(body: bytes, code: int) -> Any:
    return sorted(json.loads(body)["topicList"]) if code in TOPIC_LISTS else body


def official_ext(exchange: Exchange) -> dict[str, str]:
    """The recording proxy had put a port of its own into the HA address."""
    return {key: value.replace(":22912", ":12912") for key, value in exchange.answer.ext.items()}


async def play(peers: Peers, exchange: Exchange) -> None:
    got = await peers.ask(exchange.connection, exchange.request)
    want = exchange.answer
    assert (got.code, got.opaque, got.codec) == (want.code, want.opaque, want.codec)
    assert got.ext == official_ext(exchange)
    assert answer(got.body, exchange.code) == answer(want.body, exchange.code)
    assert (got.remark or "").splitlines()[:1] == (want.remark or "").splitlines()[:1]


@pytest.mark.parametrize("codec", ["JSON", "ROCKETMQ"])
async def test_a_broker_its_slave_and_clients_get_the_official_answers(
    server: NameServer, peers: Peers, codec: str
) -> None:
    (start,) = exchanges(codec, "broker-start")
    await play(peers, start)
    # Topics that the broker told of between the captures.
    for topic in ("GdBasic", "GdsHa"):
        server.routes.register_topic(topic, {"golden-a": TopicQueues(2, 2, 6)})
    played = 0
    for scenario in BROKER_SESSION[1:]:
        for exchange in exchanges(codec, scenario):
            await play(peers, exchange)
            server.routes.check()
            played += 1
    assert played > 40
    assert server.routes.member_group("golden-a") == {0: "127.0.0.2:12911", 1: "127.0.0.2:12921"}


@pytest.mark.parametrize("codec", ["JSON", "ROCKETMQ"])
async def test_goodbyes_empty_the_table(server: NameServer, peers: Peers, codec: str) -> None:
    for scenario in ("broker-start", "slave-start"):
        for exchange in exchanges(codec, scenario):
            await play(peers, exchange)
    for exchange in exchanges(codec, "slave-stop"):
        if exchange.code == RequestCode.UNREGISTER_BROKER:
            await play(peers, exchange)
    assert server.routes.member_group("golden-a") == {0: "127.0.0.2:12911"}
    for exchange in exchanges(codec, "broker-stop"):
        await play(peers, exchange)
    assert server.routes.statistics() == RouteStatistics(clusters=0, broker_names=0, brokers=0, topics=0)


async def test_the_admin_tool_gets_the_official_answers(server: NameServer, peers: Peers) -> None:
    registered = False
    for scenario in ADMIN_SESSION:
        for exchange in exchanges("JSON", scenario):
            registered = registered or len(exchange.request) > 2_000
            if registered:
                await play(peers, exchange)
    assert registered
    for scenario in ("mqadmin-wipeWritePerm", "mqadmin-addWritePerm"):
        for exchange in exchanges("JSON", scenario):
            got = await peers.ask(exchange.connection, exchange.request)
            ((key, count),) = got.ext.items()
            assert [key] == list(exchange.answer.ext)
            assert int(count) == server.routes.statistics().topics


def odd_requests(codec: str) -> list[dict[str, Any]]:
    rows = json.loads((WIRE / f"malformed-{codec}.json").read_text(encoding="utf-8"))
    return [row for row in rows if row["to"] == "nameserver" and row["name"] != SILENT]


# A header without a code reads as code 0, which asks for nothing: neither gets an answer here.
DIFFERENT = {"request code 0"}
# Says nothing for a minute before it is hung up on; the connection's own tests move the clock for that.
SILENT = "half a frame then silence"


@pytest.mark.parametrize("codec", ["JSON", "ROCKETMQ"])
async def test_odd_requests_end_as_at_the_official_server(
    server: NameServer, peers: Peers, codec: str
) -> None:
    for scenario in ("broker-start", "slave-start"):
        for exchange in exchanges(codec, scenario):
            await peers.ask(exchange.connection, exchange.request)
    server.routes.register_topic("GdBasic", {"golden-a": TopicQueues(2, 2, 6)})
    found = {}
    rows = odd_requests(codec)
    assert len(rows) > 30
    for row in rows:
        found[row["name"]] = await ends_the_same(server.port, row)
        server.routes.check()
    assert {name for name, same in found.items() if not same} == DIFFERENT


async def ends_the_same(port: int, row: dict[str, Any]) -> bool:
    """Whether one odd request, on a connection of its own, has the official outcome."""
    request = b64decode(row["send_b64"])
    peers = Peers(port)
    try:
        if row["name"] in DIFFERENT:
            return not await peers.survives(0, request)
        if row["answers"]:
            got = await peers.ask(0, request)
            want = row["answers"][0]["header"]
            return (got.code, got.ext) == (want["code"], want.get("extFields") or {})
        if row["closed"]:
            return await peers.is_closed_by(0, request)
        return await peers.survives(0, request)
    except EOFError:
        return False
    finally:
        await peers.close()
