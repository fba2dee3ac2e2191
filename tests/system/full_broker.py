"""A broker that holds very much, and under each request code the valid request that takes it the most work.

The tables are filled directly, for 10,000 requests would take their time. Clients are real, on sockets of their own
(`Crowd`), or as many as no test could connect (`throng`).
"""

import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from aerobee_access.policies import Acl, PolicyType, entry_of
from aerobee_access.table import Content
from aerobee_access.users import Status, User, UserType
from aerobee_broker.broker import Broker
from aerobee_broker.catalog.groups import GroupFile
from aerobee_broker.members.clients import Member
from aerobee_broker.pop.request_modes import RequestMode
from aerobee_proto.bodies import (
    ConsumerData,
    DataVersion,
    MessageQueue,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
)
from aerobee_proto.codes import RequestCode
from aerobee_remoting.exchange.handlers import Entry
from aerobee_remoting.peers.errors import ConnectionLost
from system.worst_requests import Worst, ordinary_header

__all__ = ["CLIENTS", "POPULAR", "Crowd", "Silent", "fill", "fill_access", "largest_of", "throng"]

TOPICS, CLIENTS, QUEUES = 10_000, 600, 8
WIDE_QUEUES = 16_384  # the most that a topic may have
UNUSED = 40  # topics that have queues and no settings
ALL, CROWD, WIDE, POPULAR = "reads-all", "crowd", "wide", "topic-0"
NAMES = {
    "topic": POPULAR, "group": ALL, "consumerGroup": ALL, "srcGroup": ALL, "destGroup": "clone", "groupName": "group-1",
    "compareGroup": ALL, "producerGroup": CROWD, "clientID": "client-0", "clientId": "client-0",
}  # fmt: skip


def fill(broker: Broker, count: int = TOPICS) -> None:
    """Topics, groups, offsets, statistics, settings of groups, locks: `count` of each."""
    parts = broker.parts
    version = DataVersion(timestamp=1)
    topics = {f"topic-{i}": _topic(f"topic-{i}", QUEUES) for i in range(count)}
    topics |= {
        name: _topic(name, count) for name, count in ((WIDE, WIDE_QUEUES), ("watched", 8), ("popped", 8))
    }
    parts.topics.take((topics, version))
    groups = {f"group-{i}": SubscriptionGroupConfig(group_name=f"group-{i}") for i in range(count)}
    for name in (ALL, CROWD, "clone"):
        groups[name] = SubscriptionGroupConfig(group_name=name)
    parts.groups.take(GroupFile(groups, {}, version))
    for i in range(count):
        topic = f"topic-{i}"
        for queue_id in range(QUEUES):
            parts.offsets.commit(ALL, topic, queue_id, 1)
        parts.offsets.commit(f"group-{i}", POPULAR, 0, 1)
        parts.stats.put(topic, 1, 100)
        parts.stats.got((f"group-{i}", topic), 1, 100)
        parts.timer_counts.add(topic, 1, 1)
        parts.request_modes.set(RequestMode(consumer_group=ALL, topic=topic))
        queues = [MessageQueue(topic, parts.identity.broker_name, queue_id) for queue_id in range(QUEUES)]
        parts.locks.lock(f"group-{i}", "client", queues, parts.clock())
    for queue_id in range(WIDE_QUEUES):
        parts.offsets.commit(ALL, WIDE, queue_id, 1)


def _topic(name: str, queues: int) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)


def fill_access(broker: Broker, users: int, policies: int) -> None:
    """Users, and policies of one entry; access control is off, but the tables are there."""
    table = broker.access.table
    entry = entry_of("Topic:a*", ["Pub"], ["10.0.0.0/8"], "Allow")
    names = [f"user-{i}" for i in range(users)]
    acl = {name: Acl({PolicyType.CUSTOM: (entry,) * (policies // users)}) for name in names}
    made = {name: User(name, "secret", UserType.NORMAL, Status.ENABLE, "sealed") for name in names}
    table.take(Content(made, acl))


class Silent:
    """One end of a connection that takes everything, and never says anything."""

    subject, is_congested, was_overtaken = "", False, False

    def __init__(self, number: int) -> None:
        self.peer_host = f"10.0.{number >> 8 & 255}.{number & 255}"
        self.peer = f"{self.peer_host}:{number & 65_535}"
        self.is_closed = False

    def send_oneway(self, code: int, header: object = None, body: bytes = b"") -> None:
        if self.is_closed:
            raise ConnectionLost(self.peer)

    async def request(self, code: int, header: object = None, body: bytes = b"", timeout: float = 0) -> Any:  # noqa: ASYNC109
        raise ConnectionLost(self.peer)

    def close(self, reason: str = "") -> None:
        self.is_closed = True

    abort = close


def throng(broker: Broker, count: int, connections: int) -> list[Silent]:
    """So many members of one consumer group and of one producer group, as many on each connection."""
    parts, now_ms = broker.parts, broker.parts.clock()
    peers = [Silent(number) for number in range(connections)]
    data = ConsumerData(
        group_name=CROWD,
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        subscription_data_set=[SubscriptionData(topic=POPULAR)],
    )
    for number in range(count):
        one = Member(f"client-{number * 7919 % count}", peers[number % connections], "JAVA", 479, now_ms)
        parts.consumers.register(one, data, notify=False)
        parts.producers.register(CROWD, one)
    return peers


class Crowd:
    """Clients that are all in one consumer group and in one producer group, and each in a group of its own."""

    def __init__(self, port: int) -> None:
        self._sockets: list[socket.socket] = []
        for number in range(CLIENTS):
            self._sockets.append(_Client(port, number).join())

    def close(self) -> None:
        for one in self._sockets:
            one.close()


class _Client:
    def __init__(self, port: int, number: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._number = number

    def join(self) -> socket.socket:
        number = self._number
        own = {**_consumer(f"group-{number}", [_everything("watched"), _everything("popped")])}
        topics = [_everything(f"topic-{i}") for i in range(9_000)] if number == 0 else [_everything(POPULAR)]
        body = _heartbeat(f"client-{number}", [own, _consumer(CROWD if number else ALL, topics)])
        self._send(RequestCode.HEART_BEAT, {}, body)
        self._read()
        pull = {
            "consumerGroup": f"group-{number}", "topic": "watched", "queueId": "0", "queueOffset": "0",
            "maxMsgNums": "32", "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "100000",
            "subVersion": "0", "subscription": f"a > {number} AND b IS NOT NULL", "expressionType": "SQL92",
        }  # fmt: skip
        self._send(RequestCode.PULL_MESSAGE, pull, b"")
        pop = {
            "consumerGroup": f"group-{number}", "topic": "popped", "queueId": "-1", "maxMsgNums": "1",
            "invisibleTime": "60000", "pollTime": "100000", "initMode": "0",
        }  # fmt: skip
        self._send(RequestCode.POP_MESSAGE, pop, b"")
        return self._socket

    def _send(self, code: int, ext: dict[str, str], body: bytes) -> None:
        header = msgspec.json.encode({"code": code, "flag": 0, "opaque": 1, "extFields": ext, "version": 401})
        frame = struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body
        self._socket.sendall(frame)

    def _read(self) -> None:
        (size,) = struct.unpack(">I", self._socket.recv(4, socket.MSG_WAITALL))
        self._socket.recv(size, socket.MSG_WAITALL)


def _everything(topic: str) -> dict[str, Any]:
    return {"topic": topic, "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 1}


def _consumer(group: str, subscriptions: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": subscriptions,
    }  # fmt: skip


def _heartbeat(client_id: str, consumers: list[dict[str, Any]]) -> bytes:
    return msgspec.json.encode(
        {"clientID": client_id, "consumerDataSet": consumers, "producerDataSet": [{"groupName": CROWD}]}
    )


# --- requests -----------------------------------------------------------------------------------------------------

Selection = Iterator[tuple[str, dict[str, str], bytes]]


def largest_of(entry: Entry, number: int, only: str | None = None) -> Iterator[Worst]:
    """Every request of a code that takes the broker much work. `number` makes names new where a try uses them up."""
    for name, ext, body in _LARGEST.get(entry.code, _plain)(number):
        if only in (None, name):
            yield Worst(name, ordinary_header(entry, {**NAMES, **ext}), body)


def _plain(_: int) -> Selection:
    yield "of much", {}, b""


def _of(**names: dict[str, str]) -> Callable[[int], Selection]:
    def expected(_: int) -> Selection:
        for name, ext in names.items():
            yield name.replace("_", " "), ext, b""

    return expected


def _body(value: Callable[[int], Any]) -> Callable[[int], Selection]:
    def expected(number: int) -> Selection:
        made = value(number)
        yield "of much", {}, made if isinstance(made, bytes) else msgspec.json.encode(made)

    return expected


def _sends(letters: bool) -> Callable[[int], Selection]:
    def expected(number: int) -> Selection:
        properties = f"a\x01{number}\x02"
        for name in ("topic-7", "watched", "popped"):
            ext = (
                {"b": name, "e": "0", "i": properties}
                if letters
                else {"topic": name, "properties": properties}
            )
            yield f"to {name}", ext, b"x"

    return expected


def _newcomer(number: int) -> Selection:
    """It joins a group of very many: all of them are told."""
    yield "into a crowd", {}, _heartbeat(f"new-{number}", [_consumer(CROWD, [_everything(POPULAR)])])


def _leaver(number: int) -> Selection:
    yield "from a crowd", {"clientID": f"client-{number + 1}", "consumerGroup": CROWD}, b""


def _deleted_group(number: int) -> Selection:
    yield "that reads all", {"groupName": ALL if number % 2 else CROWD, "cleanOffset": "true"}, b""


def _deleted_topic(number: int) -> Selection:
    yield "that all read", {"topic": POPULAR}, b""
    yield "one of many", {"topic": f"topic-{number}"}, b""


def _assignments(_: int) -> Selection:
    asked = {"topic": WIDE, "consumerGroup": CROWD, "clientId": "client-1"}
    yield "one of a crowd", {}, msgspec.json.encode(asked)
    yield "all queues", {}, msgspec.json.encode({**asked, "messageModel": "BROADCASTING"})


def _of_nobody(_: int) -> Selection:
    """Whoever is asked may take its time; how many there are does not matter."""
    yield (
        "of nobody",
        {"clientAddr": "nobody", "clientId": "nobody", "consumerGroup": CROWD, "group": CROWD},
        b"",
    )


_LARGEST: dict[int, Callable[[int], Selection]] = {
    10: _sends(letters=False),
    310: _sends(letters=True),
    34: _newcomer,
    35: _leaver,
    38: _of(of_a_crowd={"consumerGroup": CROWD}),
    41: _body(lambda _: {"clientId": "c", "consumerGroup": "group-1", "mqSet": []}),
    202: _of(wide={"topic": WIDE}),
    203: _of(crowd={"consumerGroup": CROWD}, all_topics={"consumerGroup": ALL}),
    204: _of(crowd={"producerGroup": CROWD}),
    343: _of(all_topics={"group": ALL}),
    207: _deleted_group,
    208: _of(all_topics={"topic": ""}, wide={"topic": WIDE}),
    215: _deleted_topic,
    222: _of(wide={"topic": WIDE, "timestamp": "-1", "queueId": "-1"}),
    223: _of_nobody,
    300: _of(popular={}),
    303: _of(wide={"topic": WIDE}),
    307: _of_nobody,
    314: _of(all_topics={"topic": "", "offline": "true"}),
    400: _assignments,
}
