"""A nameserver that is as full as it may be: no request, lost connection or scan holds its event loop for long."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from aerobee_nameserver.config import load_config
from aerobee_nameserver.kv_config import ORDER_TOPIC_CONFIG, KvChange
from aerobee_nameserver.metrics import MetricsServer
from aerobee_nameserver.route_table import Registration, RouteStatistics, TopicQueues
from aerobee_nameserver.server import NameServer
from aerobee_proto.bodies import DataVersion
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_service.turns.slices import at_once
from plain_remoting import call
from system.walking import Calm, longest_turn
from turns import TURN_MAX

# Topics of one broker; brokers with one topic; members of one name.
TOPICS, CROWD, SLAVES = 100_000, 7_000, 2_900
KV_ENTRIES = 25_000
FULL = RouteStatistics(clusters=1, broker_names=CROWD + 3, brokers=CROWD + SLAVES + 2, topics=2 * TOPICS)
BIG = {"brokerName": "big", "brokerAddr": "10.0.0.1:1", "clusterName": "c", "brokerId": "0"}
PATIENCE_S = 120.0
Work = Callable[[], Awaitable[object]]


def table(prefix: str, count: int, perm: int = 6) -> dict[str, TopicQueues]:
    return {f"{prefix}{number:06}": TopicQueues(8, 8, perm, number & 3) for number in range(count)}


def body(count: int, counter: int, perm: int = 6, prefix: str = "t") -> bytes:
    one = '"%s":{"perm":%d,"readQueueNums":8,"topicName":"%s","writeQueueNums":8}'
    names = [f"{prefix}{number:06}" for number in range(count)]
    topics = ",".join([one % (name, perm, name) for name in names])
    start = '{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":'
    return f'{start}{counter}}},"topicConfigTable":{{{topics}}}}}}}'.encode()


class Full:
    """The nameserver, and what fills it again."""

    def __init__(self, server: NameServer) -> None:
        self.server = server
        self.tables = {"big": table("t", TOPICS), "other": table("u", TOPICS - 1)}
        self.counter = 0

    def fill(self) -> None:
        if self.server.routes.statistics() == FULL:
            return
        self._broker("big", "10.0.0.1:1", 0, self.tables["big"], "of big")
        self._broker("other", "10.0.0.2:1", 0, self.tables["other"], "of other")
        for number in range(CROWD):
            wide = {"wide": TopicQueues(1, 1, 6), "t000000": TopicQueues(1, 1, 6)}
            self._broker(f"b{number:05}", f"10.1.0.0:{number + 1}", 0, wide, "crowd")
        for number in range(SLAVES):
            self._broker("many", f"10.2.0.0:{number + 1}", number, {}, "slaves")
        wide = {name: TopicQueues(1, 1, 6) for name in ("big", *(f"b{number:05}" for number in range(CROWD)))}
        assert self.server.routes.register_topic("t000000", wide)
        assert self.server.routes.statistics() == FULL

    def _broker(
        self, name: str, addr: str, broker_id: int, topics: dict[str, TopicQueues], connection: str
    ) -> None:
        if self.server.routes.member_group(name).get(broker_id) != addr:
            new = Registration("c", name, broker_id, addr, "", DataVersion(), topics, timeout_ms=60_000)
            self.server.routes.register(new, now_ms=0, connection=connection)

    def ask(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        content: bytes = b"",
        expected: int = ResponseCode.SUCCESS,
    ) -> Work:
        """A request that is sent from another thread; the answer must be what is expected."""

        async def answered() -> None:
            answer, _ = await asyncio.to_thread(
                call, self.server.address, code, fields, content, timeout_s=PATIENCE_S
            )
            assert answer["code"] == expected, answer
            await self.settled()

        def work() -> Awaitable[object]:
            self.fill()
            return answered()

        return work

    async def settled(self) -> None:
        """Until nothing is left over, whatever the request or the end of its connection changed."""
        while tasks := self.server.removals.tasks:
            await asyncio.wait(tasks)
        assert not self.server.routes.left

    def register(self, content: Callable[[int], bytes]) -> Work:
        def work() -> Awaitable[object]:
            self.counter += 1
            return self.ask(RequestCode.REGISTER_BROKER, BIG, content(self.counter))()

        return work

    def happen(self, change: Callable[[], object]) -> Work:
        """Something that is not a request."""

        async def done() -> None:
            change()
            await self.settled()

        def work() -> Awaitable[object]:
            self.fill()
            return asyncio.create_task(done())

        return work


@pytest.fixture
async def full() -> AsyncIterator[Full]:
    keys = {"listenPort": "0", "bindAddress": "127.0.0.1", "scanNotActiveBrokerInterval": "600000"}
    server = NameServer(load_config(overrides=keys, environ={}), keep_kv=False, now_ms=lambda: 1000)
    entries = {f"t{n:06}": "big:8" for n in range(KV_ENTRIES)}
    server.kv.adopt(KvChange({ORDER_TOPIC_CONFIG: entries}, more=0))
    await server.start()
    full = Full(server)
    full.fill()
    with Calm():
        yield full
    await server.close()


def requests(full: Full) -> dict[RequestCode, dict[str, Work]]:
    """Those with the largest answers, or the largest changes, of every code."""
    code, ask, register = RequestCode, full.ask, full.register
    cluster = {"cluster": "c"}
    kv = {"namespace": ORDER_TOPIC_CONFIG, "key": "t000001"}
    route = json.dumps({"queueDatas": [{"brokerName": f"b{n:05}", "perm": 6} for n in range(1000)]}).encode()
    return {
        code.REGISTER_BROKER: {
            "the same": register(partial(body, TOPICS)),
            "other permissions": register(partial(body, TOPICS, perm=4)),
            "other topics, too many": ask(
                code.REGISTER_BROKER,
                BIG,
                body(TOPICS, 1, prefix="v"),
                ResponseCode.SYSTEM_ERROR,
            ),
            "fewer topics": register(partial(body, 10)),
        },
        code.UNREGISTER_BROKER: {"of many topics": ask(code.UNREGISTER_BROKER, BIG)},
        code.BROKER_HEARTBEAT: {"": ask(code.BROKER_HEARTBEAT, BIG)},
        code.QUERY_DATA_VERSION: {"": ask(code.QUERY_DATA_VERSION, BIG, b"{}")},
        code.GET_BROKER_MEMBER_GROUP: {"": ask(code.GET_BROKER_MEMBER_GROUP, {"brokerName": "many"})},
        code.GET_ROUTEINFO_BY_TOPIC: {
            "of many brokers": ask(code.GET_ROUTEINFO_BY_TOPIC, {"topic": "wide"}),
            "strict": ask(code.GET_ROUTEINFO_BY_TOPIC, {"topic": "wide", "acceptStandardJsonOnly": "true"}),
        },
        code.GET_BROKER_CLUSTER_INFO: {"": ask(code.GET_BROKER_CLUSTER_INFO)},
        code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: {"": ask(code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)},
        code.GET_TOPICS_BY_CLUSTER: {"": ask(code.GET_TOPICS_BY_CLUSTER, cluster)},
        code.GET_SYSTEM_TOPIC_LIST_FROM_NS: {"": ask(code.GET_SYSTEM_TOPIC_LIST_FROM_NS)},
        code.GET_UNIT_TOPIC_LIST: {"": ask(code.GET_UNIT_TOPIC_LIST)},
        code.GET_HAS_UNIT_SUB_TOPIC_LIST: {"": ask(code.GET_HAS_UNIT_SUB_TOPIC_LIST)},
        code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: {"": ask(code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST)},
        code.WIPE_WRITE_PERM_OF_BROKER: {"": ask(code.WIPE_WRITE_PERM_OF_BROKER, BIG)},
        code.ADD_WRITE_PERM_OF_BROKER: {"": ask(code.ADD_WRITE_PERM_OF_BROKER, BIG)},
        code.DELETE_TOPIC_IN_NAMESRV: {
            "of many brokers": ask(code.DELETE_TOPIC_IN_NAMESRV, {"topic": "t000000"})
        },
        code.REGISTER_TOPIC_IN_NAMESRV: {
            "on many brokers": ask(code.REGISTER_TOPIC_IN_NAMESRV, {"topic": "t000001"}, route)
        },
        code.PUT_KV_CONFIG: {"": ask(code.PUT_KV_CONFIG, kv | {"value": "x" * 1000})},
        code.GET_KV_CONFIG: {"": ask(code.GET_KV_CONFIG, kv)},
        code.DELETE_KV_CONFIG: {"": ask(code.DELETE_KV_CONFIG, kv | {"key": "t000002"})},
        code.GET_KVLIST_BY_NAMESPACE: {
            "": ask(code.GET_KVLIST_BY_NAMESPACE, {"namespace": ORDER_TOPIC_CONFIG})
        },
        code.UPDATE_NAMESRV_CONFIG: {
            "": ask(code.UPDATE_NAMESRV_CONFIG, None, b"waitSecondsForService=46\n")
        },
        code.GET_NAMESRV_CONFIG: {"": ask(code.GET_NAMESRV_CONFIG)},
        code.GET_CODECS: {"": ask(code.GET_CODECS)},
    } | {
        # Access control is off: nothing is changed, and there is nothing to show.
        RequestCode(number): {
            "": ask(
                RequestCode(number),
                {"username": "u", "subject": "User:u"},
                expected=ResponseCode.SUCCESS if number in (3004, 3005, 3010) else ResponseCode.NO_PERMISSION,
            )
        }
        for number in range(RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_LIST_ACL + 1)
    }


async def over(works: dict[Any, Work]) -> dict[Any, float]:
    """What takes longer than a turn may, in units of `turns.reference`."""
    took = {what: await longest_turn(work) for what, work in works.items()}
    print({what: round(turn, 1) for what, turn in took.items()})  # shown when it fails
    return {what: round(turn, 1) for what, turn in took.items() if turn > TURN_MAX}


@pytest.mark.timeout(600)
async def test_no_request_to_a_full_nameserver_takes_longer_than_a_turn_may(full: Full) -> None:
    """A registration of 100,000 topics took 190 ms, a list by flags 230 ms, giving write permission 250 ms, a route of
    7,000 brokers 60 ms.
    """
    requested = requests(full)
    assert requested.keys() == full.server.handlers.by_code.keys()
    works = {(code, name): work for code, named in requested.items() for name, work in named.items()}
    assert await over(works) == {}
    full.server.routes.check()


@pytest.mark.timeout(300)
async def test_what_is_not_a_request_does_not_either(full: Full) -> None:
    """The loss of a broker of 100,000 topics took 155 ms, of 2,900 members of one name 110 ms."""
    server, page = full.server, MetricsServer(full.server)
    lose: Callable[[str], None] = server.on_disconnect  # type: ignore[assignment]
    works: dict[str, Work] = {
        "a lost connection of many topics": full.happen(lambda: lose("of big")),
        "a lost connection of many brokers": full.happen(lambda: lose("crowd")),
        "a lost connection of many members": full.happen(lambda: lose("slaves")),
        "a scan that finds nothing": full.happen(server.expire_silent),
        "the page of metrics": lambda: asyncio.create_task(page.metrics_page()),
        "the page of health": lambda: asyncio.create_task(page.ready_page()),
    }
    assert await over(works) == {}
    server.now_ms = lambda: 100_000
    assert await over({"a scan that finds all of them": full.happen(server.expire_silent)}) == {}
    assert server.routes.statistics().brokers == 0


async def test_the_collector_of_garbage_passes_over_what_brokers_serve(full: Full) -> None:
    """Each topic was two objects that every full collection looked at: 66 ms for 200,000 topics, now 11."""
    gc.unfreeze()
    assert len(at_once(full.server.routes.listing())) == 2 * TOPICS
    assert not any(isinstance(one, TopicQueues) for one in gc.get_objects())
    tables = [group.topics for group in full.server.routes.groups.values() if len(group.topics) > 2]
    assert [len(table) for table in tables] == [TOPICS, TOPICS - 1]
    assert not any(map(gc.is_tracked, tables))
