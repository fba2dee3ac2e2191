"""The shell: real sockets, several clients, restarts."""

import asyncio
import json
import ssl
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme
from structlog.testing import capture_logs

from aerobee_nameserver import handlers
from aerobee_nameserver.config import NameserverConfig, load_config
from aerobee_nameserver.handlers import ANSWERED_AT_ONCE_MAX
from aerobee_nameserver.kv_config import KvConfigDamaged
from aerobee_nameserver.registration import AT_ONCE_SIZE_MAX, reading_registration
from aerobee_nameserver.route_table import Registration, RouteStatistics
from aerobee_nameserver.server import NameServer
from aerobee_proto.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigWrapper,
    TopicList,
    TopicRouteData,
)
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import FRAME_SIZE_MAX, Command
from aerobee_proto.steps import CallSteps
from aerobee_remoting.ends.client import RemotingClient, RemotingClientConfig
from aerobee_remoting.ends.server import RemotingServer
from aerobee_remoting.exchange.answers import ANSWER_SIZE_MAX
from aerobee_remoting.exchange.handlers import HandlerTable, Request
from aerobee_remoting.exchange.needs import Open
from aerobee_remoting.peers.errors import ConnectionLost, RequestTimeout
from aerobee_service.turns.slices import Steps, at_once
from turns import TURN_MAX, Turns


class Clock:
    """A wall clock that a test moves."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms


@asynccontextmanager
async def running(
    config: NameserverConfig | None = None, *, keep_kv: bool = False, clock: Clock | None = None, **keys: str
) -> AsyncIterator[NameServer]:
    base = config or load_config(
        overrides={"listenPort": "0", "bindAddress": "127.0.0.1", **keys}, environ={}
    )
    server = NameServer(base, keep_kv=keep_kv, now_ms=clock or Clock())
    await server.start()
    try:
        yield server
    finally:
        await server.close()


class Peer:
    """A broker or a client of one nameserver, on a connection of its own."""

    def __init__(self, server: NameServer, *, tls: ssl.SSLContext | None = None) -> None:
        self._addr = f"127.0.0.1:{server.port}"
        self._client = RemotingClient(config=RemotingClientConfig(tls=tls))

    async def ask(self, code: int, body: bytes = b"", /, **fields: str) -> Command:
        return await self._client.request(self._addr, code, fields, body)

    async def register(self, body: bytes | None = None, **fields: str) -> Command:
        identity = {**IDENTITY, "haServerAddr": "10.0.0.7:10912", "compressed": "false"}
        return await self.ask(
            RequestCode.REGISTER_BROKER, plain_body() if body is None else body, **identity | fields
        )

    async def close(self) -> None:
        await self._client.close()


IDENTITY = {"brokerName": "b-a", "brokerAddr": "10.0.0.7:10911", "clusterName": "c1", "brokerId": "0"}


def register_body(*topics: str, counter: int = 1) -> RegisterBrokerBody:
    table = {name: TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4) for name in topics}
    wrapper = TopicConfigWrapper(data_version=DataVersion(counter=counter), topic_config_table=table)
    return RegisterBrokerBody(topic_config_serialize_wrapper=wrapper)


def plain_body(*topics: str) -> bytes:
    return register_body(*(topics or ("T1", "T2"))).to_bytes()


@pytest.fixture
async def server() -> AsyncIterator[NameServer]:
    async with running() as server:
        yield server


@pytest.fixture
async def peer(server: NameServer) -> AsyncIterator[Peer]:
    peer = Peer(server)
    yield peer
    await peer.close()


async def topics(peer: Peer) -> list[str]:
    answer = await peer.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    listed: list[str] = json.loads(answer.body)["topicList"]
    return listed


@pytest.mark.parametrize("topic_count", [0, ANSWERED_AT_ONCE_MAX + 1])
async def test_an_answer_that_no_frame_could_carry_is_refused_by_name(
    server: NameServer, peer: Peer, monkeypatch: pytest.MonkeyPatch, topic_count: int
) -> None:
    """The bound had no room for the frame's header: an answer just below it was sent, and the client, which cannot read
    such a frame, lost its connection instead."""
    size = ANSWER_SIZE_MAX

    def listing() -> Steps[list[str]]:
        yield
        return ["x" * (size - len(TopicList(topic_list=[""]).to_bytes()))]

    monkeypatch.setattr(server.routes, "listing", listing)
    counted = replace(server.routes.statistics(), topics=topic_count)
    monkeypatch.setattr(server.routes, "statistics", lambda: counted)
    answer = await peer.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert (answer.code, len(answer.body)) == (ResponseCode.SUCCESS, size)
    for size in (ANSWER_SIZE_MAX + 1, FRAME_SIZE_MAX):  # noqa: B007  # the listing has it
        answer = await peer.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark is not None
        assert f"the value takes more than {ANSWER_SIZE_MAX} bytes" in answer.remark


# --- registration bodies ----------------------------------------------------------------------------------------

BODIES: dict[str, tuple[bytes, dict[str, str]]] = {
    "plain": (plain_body(), {}),
    "compressed": (register_body("T1", "T2").to_compressed(with_mapping=True), {"compressed": "true"}),
    "compressed, without mappings": (
        register_body("T1", "T2").to_compressed(with_mapping=False),
        {"compressed": "true"},
    ),
    "with its checksum": (plain_body(), {"bodyCrc32": str(zlib.crc32(plain_body()) & 0x7FFFFFFF)}),
}


@pytest.mark.parametrize(("body", "fields"), BODIES.values(), ids=BODIES)
async def test_every_form_of_the_body_registers(peer: Peer, body: bytes, fields: dict[str, str]) -> None:
    assert (await peer.register(body, **fields)).code == ResponseCode.SUCCESS
    assert await topics(peer) == ["T1", "T2"]


async def test_a_broker_without_a_body_is_known_and_serves_nothing(peer: Peer) -> None:
    assert (await peer.register(b"")).code == ResponseCode.SUCCESS
    answer = await peer.ask(RequestCode.GET_BROKER_MEMBER_GROUP, brokerName="b-a", clusterName="c1")
    assert answer.body == (
        b'{"brokerMemberGroup":{"brokerAddrs":{0:"10.0.0.7:10911"},"brokerName":"b-a","cluster":"c1"}}'
    )
    assert await topics(peer) == []


def topic_json(**changes: Any) -> bytes:
    topic = {"topicName": "T1", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, **changes}
    table = {"T1": topic, "T2": topic}
    return json.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": table}}).encode()


def named(topic: str) -> bytes:
    return register_body("T1", topic).to_bytes()


HOSTILE: dict[str, tuple[bytes, dict[str, str], int]] = {
    "no JSON": (b"\x00\xff\xfe", {}, ResponseCode.SYSTEM_ERROR),
    "cut": (plain_body()[:-7], {}, ResponseCode.SYSTEM_ERROR),
    "a list": (b"[1,2]", {}, ResponseCode.SYSTEM_ERROR),
    "too deep": (b'{"a":' * 5_000, {}, ResponseCode.SYSTEM_ERROR),
    "topics as a number": (b'{"topicConfigSerializeWrapper":{"topicConfigTable":5}}', {}, 1),
    "wrong checksum": (plain_body(), {"bodyCrc32": "12345"}, ResponseCode.SYSTEM_ERROR),
    "not compressed": (plain_body(), {"compressed": "true"}, ResponseCode.SYSTEM_ERROR),
    "huge count inside": (
        zlib.compress(b"\x00\x00\x00\x02{}\x7f\xff\xff\xff"),
        {"compressed": "true"},
        ResponseCode.SYSTEM_ERROR,
    ),
    "a bomb": (zlib.compress(bytes(70 << 20)), {"compressed": "true"}, ResponseCode.SYSTEM_ERROR),
    "queues beyond count": (topic_json(writeQueueNums=2**31 - 1), {}, ResponseCode.INVALID_PARAMETER),
    "fewer than no queues": (topic_json(readQueueNums=-1), {}, ResponseCode.INVALID_PARAMETER),
    "permission": (topic_json(perm=-1), {}, ResponseCode.INVALID_PARAMETER),
    "a path as a topic": (named("../../etc/passwd"), {}, ResponseCode.INVALID_PARAMETER),
    "an empty topic": (named(""), {}, ResponseCode.INVALID_PARAMETER),
    "a control character": (named("a\x00b"), {}, ResponseCode.INVALID_PARAMETER),
    "a long topic": (named("t" * 256), {}, ResponseCode.INVALID_PARAMETER),
    "a path as a broker name": (plain_body(), {"brokerName": "../b"}, ResponseCode.INVALID_PARAMETER),
    "a path as a cluster": (plain_body(), {"clusterName": ".."}, ResponseCode.INVALID_PARAMETER),
    "an address without a port": (plain_body(), {"brokerAddr": "10.0.0.7"}, ResponseCode.INVALID_PARAMETER),
    "a port beyond range": (plain_body(), {"brokerAddr": "a:65536"}, ResponseCode.INVALID_PARAMETER),
    "JSON as an address": (plain_body(), {"brokerAddr": 'a","x:1'}, ResponseCode.INVALID_PARAMETER),
    "a negative id": (plain_body(), {"brokerId": "-1"}, ResponseCode.INVALID_PARAMETER),
    "an id that is no number": (plain_body(), {"brokerId": "x"}, ResponseCode.SYSTEM_ERROR),
    "no time-out": (plain_body(), {"heartbeatTimeoutMillis": "0"}, ResponseCode.INVALID_PARAMETER),
    "one topic from a stranger": (plain_body("T1"), {}, ResponseCode.SYSTEM_ERROR),
}


@pytest.mark.parametrize(("body", "fields", "code"), HOSTILE.values(), ids=HOSTILE)
async def test_a_bad_registration_is_refused_and_changes_nothing(
    server: NameServer, peer: Peer, body: bytes, fields: dict[str, str], code: int
) -> None:
    await peer.register(plain_body("A", "B"), brokerName="b-z", brokerAddr="10.0.0.1:10911")
    before = at_once(server.routes.describing()).to_bytes(), at_once(server.routes.listing())
    answer = await peer.register(body, **fields)
    assert answer.code == code
    assert answer.remark
    assert len(answer.remark) < 1_000
    server.routes.check()
    assert (at_once(server.routes.describing()).to_bytes(), at_once(server.routes.listing())) == before
    assert (await peer.register()).code == ResponseCode.SUCCESS


async def test_a_missing_field_is_named(peer: Peer) -> None:
    answer = await peer.ask(RequestCode.REGISTER_BROKER, plain_body(), brokerName="b-a")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "brokerAddr" in (answer.remark or "")
    answer = await peer.ask(RequestCode.UNREGISTER_BROKER, brokerName="b-a", clusterName="c1")
    assert "brokerAddr" in (answer.remark or "")


# --- life and death ---------------------------------------------------------------------------------------------


async def test_a_slave_learns_its_master(server: NameServer, peer: Peer) -> None:
    await peer.register()
    slave = Peer(server)
    answer = await slave.register(brokerId="1", brokerAddr="10.0.0.8:10911")
    assert answer.ext == {"haServerAddr": "10.0.0.7:10912", "masterAddr": "10.0.0.7:10911"}
    await slave.close()


def called(monkeypatch: pytest.MonkeyPatch, server: NameServer, method: str) -> asyncio.Event:
    """An event that is set once the shell has called this method of the route table and it changed something."""
    happened = asyncio.Event()
    real = getattr(server.routes, method)

    def watched(*arguments: Any) -> Any:
        for removal in real(*arguments):
            happened.set()
            yield removal

    monkeypatch.setattr(server.routes, method, watched)
    return happened


async def test_a_lost_connection_takes_the_broker_out_at_once(
    server: NameServer, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = called(monkeypatch, server, "losing")
    broker = Peer(server)
    await broker.register()
    assert await topics(peer) == ["T1", "T2"]
    with capture_logs() as events:
        await broker.close()
        async with asyncio.timeout(5):
            await lost.wait()
    assert await topics(peer) == []
    (event,) = [event for event in events if event["event"] == "nameserver.broker_unregistered"]
    assert (event["broker_addr"], event["reason"], event["topics_removed"]) == (
        "10.0.0.7:10911",
        "connection lost",
        2,
    )


async def test_a_goodbye_is_logged_and_empties_the_route(peer: Peer) -> None:
    await peer.register()
    with capture_logs() as events:
        assert (await peer.ask(RequestCode.UNREGISTER_BROKER, **IDENTITY)).code == 0
        assert (await peer.ask(RequestCode.UNREGISTER_BROKER, **IDENTITY)).code == 0
    assert [e["event"] for e in events if e["event"].startswith("nameserver.")] == [
        "nameserver.broker_unregistered"
    ]
    assert (
        await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T1")
    ).code == ResponseCode.TOPIC_NOT_EXIST


async def test_two_brokers_with_one_address_are_named(server: NameServer, peer: Peer) -> None:
    """They took each other out of the routes at each registration, every 30 seconds, and no line said so."""
    other = Peer(server)
    await peer.register()
    with capture_logs() as events:
        await other.register(brokerName="b-b")
        await peer.register()
    logged = [(one["broker_name"], one["replaced_name"]) for one in events if "replaced_name" in one]
    assert logged == [("b-b", "b-a"), ("b-a", "b-b")]
    assert {one["log_level"] for one in events if one["event"] == "nameserver.broker_replaced"} == {"warning"}
    await other.close()


async def test_last_words_of_an_earlier_life_are_not_taken_for_its_next_one(server: NameServer) -> None:
    """They came behind the first ones of the life that is a master now: that was out of the routes until it registered
    once more, 10 to 30 seconds later."""
    before, since = Peer(server), Peer(server)
    await before.register(brokerId="1")
    await since.register(brokerId="0")
    master = {0: "10.0.0.7:10911"}
    assert server.routes.member_group("b-a") == master
    with capture_logs() as events:
        late = await before.register(brokerId="1")
    assert (late.code, "through a later connection" in (late.remark or "")) == (
        ResponseCode.SYSTEM_ERROR,
        True,
    )
    assert [one["event"] for one in events] == ["nameserver.registration_refused"]
    assert (await before.ask(RequestCode.UNREGISTER_BROKER, **IDENTITY)).code == 0
    await before.close()
    assert server.routes.member_group("b-a") == master
    assert (await since.register(brokerId="0")).code == 0
    assert (await since.ask(RequestCode.UNREGISTER_BROKER, **IDENTITY)).code == 0
    assert server.routes.member_group("b-a") == {}
    await since.close()


async def test_a_silent_broker_expires_and_loses_its_connection() -> None:
    clock = Clock()
    async with running(clock=clock) as server:
        broker, client = Peer(server), Peer(server)
        await broker.register(heartbeatTimeoutMillis="1000")
        clock.ms += 1_000
        await broker.ask(RequestCode.QUERY_DATA_VERSION, b"{}", **IDENTITY)
        clock.ms += 1_000
        server.expire_silent()
        assert await topics(client) == ["T1", "T2"]
        clock.ms += 1
        with capture_logs() as events:
            server.expire_silent()
        assert await topics(client) == []
        assert [event["event"] for event in events] == ["nameserver.broker_expired"]
        assert (await broker.register()).code == ResponseCode.SUCCESS
        await broker.close()
        await client.close()


async def test_the_scan_runs_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    async with running(clock=clock, scanNotActiveBrokerInterval="100") as server:
        expired = called(monkeypatch, server, "expiring")
        broker = Peer(server)
        await broker.register(heartbeatTimeoutMillis="1")
        clock.ms += 2
        async with asyncio.timeout(5):
            await expired.wait()
        assert server.routes.member_group("b-a") == {}
        await broker.close()


async def test_members_are_told_of_a_new_smallest_id() -> None:
    logged: asyncio.Queue[dict[str, str]] = asyncio.Queue()

    def take(request: Request[Any]) -> None:
        logged.put_nowait(request.ext)

    handlers = HandlerTable()
    handlers.register(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, take, needs=Open("a test"))
    member = RemotingServer(handlers)
    slave_addr = f"127.0.0.1:{await member.start('127.0.0.1', 0)}"
    async with running(notifyMinBrokerIdChanged="true") as server:
        broker, slave = Peer(server), Peer(server)
        await slave.register(brokerId="1", brokerAddr=slave_addr)
        await broker.register()
        async with asyncio.timeout(5):
            arrived = await logged.get()
            await broker.ask(RequestCode.UNREGISTER_BROKER, **IDENTITY)
            left = await logged.get()
        await broker.close()
        await slave.close()
    await member.close()
    assert arrived == {
        "minBrokerId": "0",
        "brokerName": "b-a",
        "minBrokerAddr": "10.0.0.7:10911",
        "haBrokerAddr": "10.0.0.7:10912",
    }
    assert left == {
        "minBrokerId": "1",
        "brokerName": "b-a",
        "minBrokerAddr": slave_addr,
        "offlineBrokerAddr": "10.0.0.7:10911",
    }


async def test_version_query_answers_with_the_stored_version(peer: Peer) -> None:
    await peer.register()
    same = await peer.ask(RequestCode.QUERY_DATA_VERSION, DataVersion(counter=1).to_bytes(), **IDENTITY)
    assert (same.ext, same.body) == (
        {"changed": "false"},
        b'{"counter":1,"stateVersion":0,"timestamp":0}',
    )
    other = await peer.ask(RequestCode.QUERY_DATA_VERSION, b'{"counter":2}', **IDENTITY)
    assert other.ext == {"changed": "true"}
    broken = await peer.ask(RequestCode.QUERY_DATA_VERSION, b"{", **IDENTITY)
    assert broken.code == ResponseCode.SYSTEM_ERROR
    assert (await peer.ask(RequestCode.BROKER_HEARTBEAT, **IDENTITY)).code == 0


# --- answers ----------------------------------------------------------------------------------------------------


async def test_many_clients_see_the_same_route(server: NameServer, peer: Peer) -> None:
    await peer.register()
    clients = [Peer(server) for _ in range(20)]
    answers = await asyncio.gather(
        *(client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T1") for client in clients)
    )
    assert len({answer.body for answer in answers}) == 1
    route = TopicRouteData.from_bytes(answers[0].body)
    assert route.broker_datas[0].broker_addrs == {0: "10.0.0.7:10911"}
    for client in clients:
        await client.close()


async def test_lists_can_be_switched_off() -> None:
    async with running(enableTopicList="false", enableAllTopicList="false") as server:
        peer = Peer(server)
        for code, fields in (
            (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}),
            (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "c1"}),
            (RequestCode.GET_UNIT_TOPIC_LIST, {}),
            (RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, {}),
            (RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, {}),
        ):
            answer = await peer.ask(code, **fields)
            assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "disable")
        await peer.close()


async def test_lists_of_topics(peer: Peer) -> None:
    await peer.register()
    cluster = await peer.ask(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="c1")
    assert cluster.body == b'{"topicList":["T1","T2"]}'
    system = await peer.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    assert system.body == b'{"brokerAddr":"10.0.0.7:10911","topicList":["c1","b-a"]}'
    for code in (311, 312, 313):
        assert (await peer.ask(code)).body == b'{"topicList":[]}'


async def test_routes_wait_until_brokers_had_time_to_register() -> None:
    clock = Clock()
    async with running(clock=clock, needWaitForService="true") as server:
        peer = Peer(server)
        await peer.register()
        early = await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T1")
        assert (early.code, early.remark) == (ResponseCode.SYSTEM_ERROR, "name server not ready")
        clock.ms += 45_000
        assert (await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T1")).code == 0
        await peer.close()


async def test_a_topic_is_registered_and_deleted_by_request(peer: Peer) -> None:
    await peer.register()
    route = b'{"brokerDatas":[],"queueDatas":[{"brokerName":"b-a","perm":6,"readQueueNums":1,"writeQueueNums":1}]}'
    assert (await peer.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, route, topic="N")).code == 0
    assert await topics(peer) == ["N", "T1", "T2"]
    unknown = route.replace(b"b-a", b"b-x")
    assert (await peer.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, unknown, topic="M")).code == 0
    assert (await peer.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, b"{", topic="M")).code == 1
    assert (await peer.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, route, topic="a/b")).code == 29
    assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T1", clusterName="other")).code == 0
    assert await topics(peer) == ["N", "T1", "T2"]
    assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T1")).code == 0
    assert await topics(peer) == ["N", "T2"]


async def test_a_topic_is_deleted_everywhere_although_who_asked_has_left(
    server: NameServer, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await peer.register()
    begun, gate = asyncio.Event(), asyncio.get_running_loop().create_future()
    deleting = server.routes.deleting_topic

    def slowly(topic: str, cluster: str | None = None) -> Steps[int]:
        begun.set()
        yield gate
        return (yield from deleting(topic, cluster))

    monkeypatch.setattr(server.routes, "deleting_topic", slowly)
    asking = Peer(server)
    asked = asyncio.create_task(asking.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T1"))
    await begun.wait()
    await asking.close()
    with pytest.raises(ConnectionLost):
        await asked
    async with asyncio.timeout(10):
        assert await topics(peer) == ["T1", "T2"]
        gate.set_result(None)
        while await topics(peer) != ["T2"]:
            pass


# --- KV config and settings -------------------------------------------------------------------------------------


async def put_kv(peer: Peer, namespace: str, key: str, value: str) -> Command:
    return await peer.ask(RequestCode.PUT_KV_CONFIG, namespace=namespace, key=key, value=value)


async def test_kv_config_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "kv" / "kvConfig.json"
    async with running(keep_kv=True, kvConfigPath=str(path)) as server:
        peer = Peer(server)
        results = await asyncio.gather(*(put_kv(peer, "NS", f"k{n}", str(n)) for n in range(20)))
        assert {answer.code for answer in results} == {0}
        assert (await peer.ask(RequestCode.DELETE_KV_CONFIG, namespace="NS", key="k0")).code == 0
        assert (await peer.ask(RequestCode.DELETE_KV_CONFIG, namespace="NS", key="k0")).code == 0
        await peer.close()
    async with running(keep_kv=True, kvConfigPath=str(path)) as server:
        peer = Peer(server)
        table = json.loads((await peer.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="NS")).body)
        assert table == {"table": {f"k{n}": str(n) for n in range(1, 20)}}
        got = await peer.ask(RequestCode.GET_KV_CONFIG, namespace="NS", key="k7")
        assert got.ext == {"value": "7"}
        await peer.close()


async def test_kv_config_that_cannot_be_stored_is_refused_and_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "file" / "kvConfig.json"
    async with running(keep_kv=True, kvConfigPath=str(path)) as server:
        peer = Peer(server)
        (tmp_path / "file").write_text("in the way")
        answer = await put_kv(peer, "NS", "k", "v")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "cannot be stored" in (answer.remark or "")
        missing = await peer.ask(RequestCode.GET_KV_CONFIG, namespace="NS", key="k")
        assert (missing.code, missing.remark) == (22, "No config item, Namespace: NS Key: k")
        await peer.close()


async def test_a_damaged_kv_config_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_bytes(b"{")
    with pytest.raises(KvConfigDamaged):
        async with running(keep_kv=True, kvConfigPath=str(path)):
            pass


async def test_ordered_topics_go_to_brokers_and_to_clients_when_asked_for() -> None:
    async with running(orderMessageEnable="true") as server:
        peer = Peer(server)
        assert (await peer.register()).body == b""
        await put_kv(peer, "ORDER_TOPIC_CONFIG", "T1", "b-a:4")
        assert (await peer.register()).body == b'{"table":{"T1":"b-a:4"}}'
        route = TopicRouteData.from_bytes((await peer.ask(105, topic="T1")).body)
        assert route.order_topic_conf == "b-a:4"
        await peer.close()


async def test_settings_are_shown_and_changed_and_written_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("# ours\nlistenPort=0\nbindAddress=127.0.0.1\n")
    async with running(load_config(file, environ={})) as server:
        peer = Peer(server)
        shown = (await peer.ask(RequestCode.GET_NAMESRV_CONFIG)).body.decode().splitlines()
        assert "enableAllTopicList=true" in shown
        assert shown == sorted(shown)
        answer = await peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"enableAllTopicList=false\n")
        assert answer.code == ResponseCode.SUCCESS
        assert (await peer.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).remark == "disable"
        await peer.close()
    assert file.read_text() == "# ours\nlistenPort=0\nbindAddress=127.0.0.1\nenableAllTopicList=false\n"


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"kvConfigPath=/tmp/x", ResponseCode.NO_PERMISSION, "black list: kvConfigPath"),
        (b"kv_config_path=/tmp/x", ResponseCode.NO_PERMISSION, "black list: kvConfigPath"),
        (b"configBlackList=", ResponseCode.NO_PERMISSION, "black list"),
        (b"enableTopicLst=true", ResponseCode.INVALID_PARAMETER, "did you mean enableTopicList?"),
        (b"listenPort=x", ResponseCode.INVALID_PARAMETER, "an integer from 0 to 65535"),
        (b"", ResponseCode.INVALID_PARAMETER, "names no setting"),
        (b"\xff", ResponseCode.SYSTEM_ERROR, "not properties text"),
    ],
)
async def test_a_wrong_change_of_settings_is_refused(
    server: NameServer, peer: Peer, body: bytes, code: int, words: str
) -> None:
    before = server.config
    answer = await peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body)
    assert answer.code == code
    assert words in (answer.remark or "")
    assert server.config is before


async def test_a_change_that_needs_a_new_start_says_so(peer: Peer) -> None:
    answer = await peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"maxConnections=5\nenableTopicList=true")
    assert (answer.code, answer.remark) == (0, "used from the next start on: maxConnections")


async def test_bounds_can_be_changed_while_running(peer: Peer) -> None:
    await peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"maxTopics=1")
    assert "maxTopics is 1" in ((await peer.register()).remark or "")


# --- the shell itself -------------------------------------------------------------------------------------------


async def test_a_taken_port_is_an_error_that_names_the_address(server: NameServer) -> None:
    second = NameServer(
        load_config(overrides={"listenPort": str(server.port), "bindAddress": "127.0.0.1"}, environ={}),
        keep_kv=False,
    )
    with pytest.raises(OSError, match=f"127.0.0.1:{server.port}"):
        await second.start()
    await second.close()


async def test_ready_and_stopped_are_logged_with_the_address() -> None:
    with capture_logs() as events:
        async with running() as server:
            address = server.address
    logged = [
        (event["event"], event["address"]) for event in events if event["event"].startswith("nameserver.")
    ]
    assert logged == [("nameserver.ready", address), ("nameserver.stopped", address)]


@pytest.mark.parametrize(("mode", "plain_answers"), [("permissive", True), ("enforcing", False)])
async def test_tls_is_taken_and_plain_as_the_mode_says(
    tmp_path: Path, mode: str, plain_answers: bool
) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "chain.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    async with running(
        tlsServerMode=mode,
        tlsServerCertPath=str(tmp_path / "chain.pem"),
        tlsServerKeyPath=str(tmp_path / "key.pem"),
    ) as server:
        peer = Peer(server)
        if plain_answers:
            assert await topics(peer) == []
        else:
            with pytest.raises(ConnectionLost):
                await topics(peer)
        await peer.close()
        secret = Peer(server, tls=trusting)
        assert await topics(secret) == []
        await secret.close()


async def test_an_ipv6_address_is_told_as_it_must_be_dialled() -> None:
    config = load_config(overrides={"listenPort": "0", "bindAddress": "::1"}, environ={})
    async with running(config) as server:
        assert server.address == f"[::1]:{server.port}"
        client = RemotingClient()
        answer = await client.request(server.address, RequestCode.GET_BROKER_CLUSTER_INFO)
        assert answer.body == b'{"brokerAddrTable":{},"clusterAddrTable":{}}'
        await client.close()


async def test_closing_leaves_no_task(peer: Peer, server: NameServer) -> None:
    await peer.register()
    await peer.close()
    await server.close()
    await server.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_scan_of_brokers_follows_its_interval_within_the_pause_that_is_under_way() -> None:
    """A change of scanNotActiveBrokerInterval was answered with success and counted only after the old pause."""
    async with running(scanNotActiveBrokerInterval="600000") as server:
        peer, scanned = Peer(server), asyncio.Event()
        server.expire_silent = scanned.set  # type: ignore[method-assign]
        changed = await peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"scanNotActiveBrokerInterval=100\n")
        assert changed.code == ResponseCode.SUCCESS
        async with asyncio.timeout(30):
            await scanned.wait()
        await peer.close()


async def test_every_setting_that_is_followed_at_once_is_looked_at_when_it_is_used() -> None:
    """Those that the route table keeps are handed to it; the others are asked for each time."""
    async with running() as server:
        peer = Peer(server)
        values = {"maxTopics": "3", "maxBrokers": "4", "supportActingMaster": "true"}
        values |= {"deleteTopicWithBrokerRegistration": "true"}
        body = "".join(f"{key}={value}\n" for key, value in values.items())
        assert (await peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body.encode())).code == ResponseCode.SUCCESS
        assert (server.routes.limits.topics_max, server.routes.limits.brokers_max) == (3, 4)
        assert server.routes.support_acting_master
        assert server.routes.drop_unlisted_topics
        await peer.close()


# --- large and hostile registrations ---------------------------------------------------------------------------------


async def test_a_registration_of_many_topics_is_taken_in_order_with_a_small_one_behind_it() -> None:
    """Large bodies are read in a thread; what the same broker sends next waits for it."""
    large = large_body()
    assert len(large) > AT_ONCE_SIZE_MAX
    wrapper = TopicConfigWrapper(
        data_version=DataVersion(counter=2), topic_config_table={"T7": TopicConfig(topic_name="T7", perm=4)}
    )
    small = RegisterBrokerBody(topic_config_serialize_wrapper=wrapper).to_bytes()
    async with running() as server:
        peer = Peer(server)
        first, second = await asyncio.gather(peer.register(large), peer.register(small))
        assert (first.code, second.code) == (0, 0)
        route = server.routes.route("T7")
        assert route is not None
        assert route.queue_datas[0].perm == 4
        assert server.routes.statistics().topics == 5_000
        await peer.close()


def large_body(count: int = 5_000, counter: int = 1) -> bytes:
    return register_body(*(f"T{number}" for number in range(count)), counter=counter).to_bytes()


async def test_a_goodbye_waits_for_the_registration_before_it() -> None:
    """It overtook one that was being read in the thread: the broker stayed, though it had said that it goes."""
    async with running() as server:
        peer = Peer(server)
        first, second = await asyncio.gather(
            peer.register(large_body()), peer.ask(RequestCode.UNREGISTER_BROKER, **IDENTITY)
        )
        assert (first.code, second.code) == (0, 0)
        assert server.routes.statistics().brokers == 0
        await peer.close()


async def test_registrations_of_a_broker_over_two_connections_are_taken_in_the_order_of_arrival(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A small one overtook the large one of before, which then took its place."""
    async with running() as server:
        old, new = Peer(server), Peer(server)
        await old.ask(RequestCode.GET_NAMESRV_CONFIG)
        await new.ask(RequestCode.GET_NAMESRV_CONFIG)
        handlers = server._handlers
        arrived, read = asyncio.Event(), handlers._register

        def arriving(request: Request[Any]) -> Any:
            arrived.set()
            return read(request)

        monkeypatch.setattr(handlers, "_register", arriving)
        reads = asyncio.create_task(old.register(large_body(counter=1)))
        await arrived.wait()
        await new.register(plain_body("T1", "T2"), brokerAddr="10.0.0.8:10911")
        await reads
        assert server.routes.member_group("b-a") == {0: "10.0.0.8:10911"}
        assert handlers.of_names.locks == {}
        await old.close()
        await new.close()


async def test_a_connection_that_is_lost_while_its_registration_is_made_ready_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as server:
        registering, slices = asyncio.Event(), server.routes.registering

        def watched(*arguments: Any, **more: Any) -> Any:
            steps = slices(*arguments, **more)
            next(steps)
            registering.set()
            yield
            while not lost.is_set():
                yield
            yield from steps

        monkeypatch.setattr(server.routes, "registering", watched)
        lost = asyncio.Event()
        real = server.routes.losing

        def losing(connection: Any) -> Any:
            lost.set()
            return real(connection)

        monkeypatch.setattr(server.routes, "losing", losing)
        peer = Peer(server)
        asked = asyncio.create_task(peer.register(large_body()))
        async with asyncio.timeout(30):
            await registering.wait()
            await peer.close()
            with pytest.raises(ConnectionLost):
                await asked
            await lost.wait()
        assert server.routes.statistics() == RouteStatistics(clusters=0, broker_names=0, brokers=0, topics=0)
        server.routes.check()


async def test_only_one_large_registration_of_a_connection_is_read_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each may take a moment of a thread; a thousand in one read must not. What comes behind waits, and is not read."""
    large = plain_body() + b" " * AT_ONCE_SIZE_MAX
    at_a_time: list[int] = []
    async with running() as server:

        def watched(*arguments: Any) -> CallSteps[Registration]:
            at_a_time.append(server.memory.total)
            return reading_registration(*arguments)

        monkeypatch.setattr(handlers, "reading_registration", watched)
        peer = Peer(server)
        answers = await asyncio.gather(*[peer.register(large) for _ in range(200)])
        assert {answer.code for answer in answers} == {0}
        assert len(at_a_time) == 200
        assert max(at_a_time) < 100 * len(large)
        await peer.close()


HELD_LONG = {
    "near-JSON": b"{'filterServerList':[" + b"{}," * 2_000_000 + b"]}",
    "near-JSON, read whole": b"{'filterServerList':[],'a':[" + b"{}," * 60_000 + b"]}",
    "near-JSON, small": b"{'filterServerList':[],'a':[" + b"{}," * 5_000 + b"]}",
    "many members": b'{"filterServerList":[],"a":[' + b"{}," * 2_000_000 + b"{}]}",
    "many servers": b'{"filterServerList":[' + b'"",' * 2_000_000 + b'""]}',
    "slow topics": b'{"topicConfigSerializeWrapper":{"topicConfigTable":{'
    + b'"a":{"b":1},' * 60_000
    + b"\"a\":{'b':[%s1]}," % (b"1," * 1000) * 400
    + b'"a":{}}}}',
    "null topics": b'{"topicConfigSerializeWrapper":{"topicConfigTable":{'
    + b'"a":{"perm":null},' * 500_000
    + b'"a":{}}}}',
}


@pytest.mark.parametrize("body", HELD_LONG.values(), ids=HELD_LONG)
@pytest.mark.parametrize("compressed", [False, True])
async def test_no_registration_holds_the_event_loop(body: bytes, compressed: bool) -> None:
    """8 MiB of near-JSON held it for 10 s, 10 KB of it compressed for 6 s."""
    if compressed:
        body = zlib.compress(b"\0\0\0\2{}\0\0\0\0" + len(body).to_bytes(4, "big") + body)
    async with running() as server:
        peer = Peer(server)
        await peer.ask(RequestCode.GET_NAMESRV_CONFIG)
        turns = Turns()
        with turns.watched():
            async with asyncio.timeout(60):
                with suppress(RequestTimeout):  # on a busy machine
                    await peer.register(body, compressed=str(compressed).lower())
                await peer.ask(RequestCode.GET_NAMESRV_CONFIG)
        assert turns.longest < TURN_MAX
        await peer.close()


async def test_a_key_that_means_nothing_here_is_ignored_in_an_update_too(tmp_path: Path) -> None:
    """With a settings file it was answered with an error of ours, KeyError, after the others had been taken."""
    path = tmp_path / "namesrv.conf"
    async with running(configStorePath=str(path)) as server:
        peer = Peer(server)
        text = b"serverWorkerThreads=8\nenableControllerInNamesrv=false\norderMessageEnable=true\n"
        answer = await peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, text)
        assert answer.code == ResponseCode.SUCCESS
        assert "ignored: serverWorkerThreads" in (answer.remark or "")
        assert "next start" not in (answer.remark or "")
        assert path.read_text() == "orderMessageEnable=true\n"
        refused = await peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"enableControllerInNamesrv=true\n")
        assert refused.code == ResponseCode.INVALID_PARAMETER
        await peer.close()
