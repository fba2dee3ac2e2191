"""The worst that a peer may send under each request code: headers and bodies as large as the code's limits allow.

What is the same for every code (headers full of one text, of many fields, damaged ones) is made from the code's header
struct; bodies have a case each, for only whoever knows the code knows what costs most.
"""

import json
import struct
from base64 import b64encode
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import msgspec

from aerobee_access.admin import ACL_BODY_SIZE_MAX, USER_BODY_SIZE_MAX
from aerobee_broker.remoting_api.set_handlers import NAMES_BODY_SIZE_MAX
from aerobee_proto.bodies import OBJECTS_MAX, VALUES_MAX
from aerobee_proto.javajson import TOLERANT_SIZE_MAX
from aerobee_remoting.exchange.gate import Row
from aerobee_remoting.exchange.handlers import Entry

__all__ = ["BODIES", "TOPIC", "Worst", "many_messages", "ordinary_fields", "ordinary_header", "worst_of"]

TOPIC, GROUP = "worst", "worst-group"
HEADER_SIZE = 1 << 20  # maxHeaderBytes, as it is set at first
ORDINARY = {
    "topic": TOPIC,
    "consumerGroup": GROUP,
    "producerGroup": GROUP,
    "group": GROUP,
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "0",
    "offset": "0",
    "brokerName": "b",
    "brokerAddr": "1.2.3.4:1",
    "clusterName": "c",
    "haServerAddr": "",
    "namespace": "N",
    "key": "k",
    "value": "v",
    "boundaryType": "LOWER",
    "expressionType": "TAG",
    "expType": "TAG",
    "clientAddr": "",
}
LETTERS = dict(
    zip(
        "abcdefghijklmn",
        [
            *("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag"),
            *("bornTimestamp", "flag", "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes"),
            *("batch", "bname"),
        ],
        strict=True,
    )
)
FILLINGS: dict[str, Callable[[int], str]] = {
    "one word": lambda size: "a" * size,
    "separators": lambda size: (";,|| %\x01\x02:" * (size // 6 + 1))[: size // 2],
    "properties": lambda size: "".join(f"k{i}\x01v\x02" for i in range(size // 22)),
    "names": lambda size: ";".join(f"t{i}" for i in range(size // 8)),
    "attributes": lambda size: ",".join(f"+k{i}=v" for i in range(size // 11)),
}


class Worst(NamedTuple):
    """One request: what it is about, its header as bytes after the code, its body."""

    name: str
    header: bytes
    body: bytes


def worst_of(entry: Entry, number: int, only: str | None = None) -> Iterator[Worst]:
    """Every worst request of a code. `number` makes names of things new, so that each try meets them first."""
    if only is None or only.startswith("header"):
        for name, header in _headers(entry):
            if only in (None, f"header: {name}"):
                yield Worst(f"header: {name}", header, b"")
    for name, ext, made in BODIES.get(entry.code, _none)(number):
        if only in (None, f"body: {name}"):
            body = made if isinstance(made, bytes) else made()
            assert len(body) <= entry.body_size_max, (entry.code, name, len(body))
            yield Worst(f"body: {name}", _header(entry, ext), body)


def ordinary_header(entry: Row, ext: dict[str, str]) -> bytes:
    """A header with these fields, as far as the code has them, and ordinary ones."""
    ordinary = ordinary_fields(entry)
    return _header(entry, {name: ext.get(name, value) for name, value in ordinary.items()})


def _header(entry: Row, ext: dict[str, str]) -> bytes:
    members = {"extFields": ext, "flag": 0, "language": "JAVA", "opaque": 7, "version": 401}
    return b'{"code":%d,' % entry.code + msgspec.json.encode(members)[1:]


def ordinary_fields(entry: Row) -> dict[str, str]:
    """A value for each field of a code's header."""
    found = {}
    for field in msgspec.structs.fields(entry.header):
        wire = field.encode_name
        name = LETTERS.get(wire, wire)
        text = field.type is str or field.type == str | None
        found[wire] = ORDINARY.get(name, "" if text else "false" if "bool" in str(field.type) else "0")
    return found


def _headers(entry: Row) -> Iterator[tuple[str, bytes]]:
    ordinary = ordinary_fields(entry)
    many = {f"{i:x}": "" for i in range(HEADER_SIZE // 16)}
    yield "as it should be", _header(entry, ordinary)
    yield "very many fields", _header(entry, {**ordinary, **many})
    yield "very many fields, none that it needs", _header(entry, many)
    for field in msgspec.structs.fields(entry.header):
        if field.type is str or field.type == str | None:
            for name, fill in FILLINGS.items():
                yield (
                    f"{field.encode_name} of {name}",
                    _header(entry, {**ordinary, field.encode_name: fill(HEADER_SIZE - 2000)}),
                )
        else:
            number = {**ordinary, field.encode_name: "9" * (HEADER_SIZE - 2000)}
            yield f"{field.encode_name} of a long number", _header(entry, number)
            yield (
                f"{field.encode_name} at its most",
                _header(entry, {**ordinary, field.encode_name: str(2**31 - 1)}),
            )
    nested = b'{"code":%d,"opaque":7,"x":' % entry.code + b"[" * 500_000 + b"]" * 500_000 + b"}"
    yield "nested", nested
    yield (
        "of empty objects",
        b'{"code":%d,"opaque":7,"x":[' % entry.code + b",".join([b"{}"] * 340_000) + b"]}",
    )
    escapes = b'{"code":%d,"opaque":7,"remark":"' % entry.code + b"\\u0041" * 170_000 + b'"}'
    yield "of escapes", escapes


# --- bodies -------------------------------------------------------------------------------------------------------

Bodies = Iterator[tuple[str, dict[str, str], bytes | Callable[[], bytes]]]
MIB = 1 << 20


def _none(_: int) -> Bodies:
    yield from ()


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _any_json(size: int, ext: dict[str, str] | None = None) -> Bodies:
    """JSON that no form fits, and near-JSON: what it costs to find that out."""
    for name, body in _unfitting(size):
        yield name, ext or {}, body


@cache
def _unfitting(size: int) -> list[tuple[str, bytes]]:
    room = size - 16
    near = min(room, TOLERANT_SIZE_MAX - 16)
    return [
        ("near-JSON of objects", _filled(b"{'a':[", b"{}", near)),
        ("near-JSON of numbers", _filled(b"{'a':[", b"1", near)),
        ("near-JSON of lists", _filled(b"{'a':[", b"[" * 60 + b"]" * 60, near)),
        ("near-JSON of keys", b"{'a':{" + b",".join(b"%d:0" % i for i in range(near // 9)) + b"}}"),
        ("near-JSON of commas", b"{'a':[" + b"," * (near - 8) + b"]}"),
        ("near-JSON too large", _filled(b"{'a':[", b"{}", room)),
        ("objects at the bound", _filled(b'{"a":[', b"{}", min(3 * OBJECTS_MAX - 9, room))),
        ("objects beyond it", _filled(b'{"a":[', b"{}", room)),
        ("numbers at the bound", _filled(b'{"a":[', b"1", min(2 * VALUES_MAX - 9, room))),
        ("numbers beyond it", _filled(b'{"a":[', b"1", room)),
        ("texts at the bound", _filled(b'{"a":[', b'""', min(3 * VALUES_MAX - 9, room))),
        ("brackets", b"[" * room),
        ("references", _filled(b'{"a":[', b'{"$ref":"$.a"}', near)),
    ]


def _filled(start: bytes, one: bytes, size: int) -> bytes:
    return start + b",".join([one] * ((size - 9) // (len(one) + 1))) + b"]}"


def _list_of(one: Callable[[int], Any], wrap: Callable[[list[Any]], Any], size: int) -> Callable[[], bytes]:
    """As many as fit, within the bound of objects."""

    def made() -> bytes:
        large = _json(one(OBJECTS_MAX))
        objects, commas = max(1, large.count(b"{")), large.count(b",") + 1
        count = min(
            (OBJECTS_MAX - 16) // objects, (VALUES_MAX - 16) // commas, (size - 256) // (len(large) + 1)
        )
        return _json(wrap([one(i) for i in range(count)]))

    return made


def _heartbeat(number: int) -> Bodies:
    yield from _any_json(4 * MIB)

    def subscription(i: int) -> dict[str, Any]:
        return {"topic": f"t{i}", "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": number}

    def consumer(i: int) -> dict[str, Any]:
        return {"groupName": f"g{number}-{i}", "subscriptionDataSet": [], "consumeType": "CONSUME_PASSIVELY"}

    def beat(**sets: Any) -> dict[str, Any]:
        return {"clientID": f"c{number}", "consumerDataSet": [], "producerDataSet": [], **sets}

    yield (
        "subscriptions of one group",
        {},
        _list_of(
            subscription,
            lambda all_: beat(consumerDataSet=[{**consumer(0), "subscriptionDataSet": all_}]),
            4 * MIB,
        ),
    )
    yield (
        "subscriptions within the bound",
        {},
        _json(
            beat(
                consumerDataSet=[
                    {**consumer(1), "subscriptionDataSet": [subscription(i) for i in range(1000)]}
                ]
            )
        ),
    )
    yield (
        "as many as a group may have",
        {},
        _json(
            beat(
                consumerDataSet=[
                    {**consumer(1), "subscriptionDataSet": [subscription(i) for i in range(10_000)]}
                ]
            )
        ),
    )
    yield (
        "groups with subscriptions",
        {},
        _list_of(
            lambda i: {**consumer(i), "subscriptionDataSet": [subscription(j) for j in range(20)]},
            lambda all_: beat(consumerDataSet=all_),
            4 * MIB,
        ),
    )
    yield "groups", {}, _list_of(consumer, lambda all_: beat(consumerDataSet=all_), 4 * MIB)
    yield (
        "producers",
        {},
        _list_of(lambda i: {"groupName": f"p{number}-{i}"}, lambda all_: beat(producerDataSet=all_), 4 * MIB),
    )
    tags = [f"t{i}" for i in range(300_000)]
    yield (
        "tags",
        {},
        _json(
            beat(
                consumerDataSet=[
                    {**consumer(2), "subscriptionDataSet": [{**subscription(0), "tagsSet": tags}]}
                ]
            )
        ),
    )
    codes = list(range(500_000))
    yield (
        "codes",
        {},
        _json(
            beat(
                consumerDataSet=[
                    {**consumer(3), "subscriptionDataSet": [{**subscription(0), "codeSet": codes}]}
                ]
            )
        ),
    )
    text = " || ".join(f"t{i}" for i in range(300_000))
    yield (
        "an expression",
        {},
        _json(
            beat(
                consumerDataSet=[
                    {**consumer(4), "subscriptionDataSet": [{**subscription(0), "subString": text}]}
                ]
            )
        ),
    )


def _locks(number: int) -> Bodies:
    yield from _any_json(MIB)

    def queue(i: int) -> dict[str, Any]:
        return {"topic": TOPIC, "brokerName": "test-a", "queueId": i % 8}

    def many(all_: list[Any]) -> dict[str, Any]:
        return {"clientId": "c", "consumerGroup": GROUP, "mqSet": all_}

    yield "queues", {}, _list_of(queue, many, MIB)
    yield "queues of many topics", {}, _list_of(lambda i: {**queue(i), "topic": f"t{i}"}, many, MIB)


def _check_filter(number: int) -> Bodies:
    yield from _any_json(MIB)
    for name, text in (
        ("comparisons", " AND ".join(f"a{i}={i}" for i in range(700))),
        ("numbers", "a IN (" + ",".join(f"'{i}'" for i in range(1000)) + ")"),
        ("signs", "a=" + "-" * 8000 + "1"),
        ("parentheses", "(" * 60 + "a=1" + ")" * 60 + " OR a=1" * 1100),
        ("additions", "a = " + "+".join(["1"] * 4000)),
        ("long", "a" * MIB),
        ("quotes", "a='" + "x''" * 2600 + "'"),
        ("blanks", "a" + " " * 8100 + "=1"),
        ("between", " AND ".join(["a BETWEEN 1 AND 2"] * 380)),
        ("not", "NOT " * 2000 + "a=1"),
    ):
        data = {"topic": TOPIC, "subString": text, "expressionType": "SQL92", "subVersion": number}
        body = {"clientId": "c", "group": GROUP, "subscriptionData": data}
        raw = _json(body)
        yield (
            f"filter of {name}",
            {},
            raw
            if len(raw) <= MIB
            else _json({**body, "subscriptionData": {**data, "subString": text[: MIB - 2000]}}),
        )


def _topics(number: int) -> Bodies:
    yield from _any_json(4 * MIB)

    def topic(i: int) -> dict[str, Any]:
        return {"topicName": f"n{number}-{i}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}

    def many(all_: list[Any]) -> dict[str, Any]:
        return {"topicConfigList": all_}

    yield "new topics", {}, _list_of(topic, many, 4 * MIB)
    yield (
        "topics with fewer queues than they had",
        {},
        _list_of(lambda i: {**topic(i), "perm": 2}, many, 4 * MIB),
    )
    attributes = {f"+k{i}": "v" for i in range(200_000)}
    yield "attributes", {}, _json(many([{**topic(0), "attributes": attributes}]))


def _group(number: int) -> Bodies:
    yield from _any_json(4 * MIB)
    attributes = {f"+k{i}": "v" for i in range(200_000)}
    yield "attributes", {}, _json({"groupName": f"n{number}", "attributes": attributes})


def _groups(number: int) -> Bodies:
    yield from _any_json(4 * MIB)

    def many(all_: list[Any]) -> dict[str, Any]:
        return {"groupConfigList": all_}

    yield "new groups", {}, _list_of(lambda i: {"groupName": f"n{number}-{i}"}, many, 4 * MIB)


def _settings(number: int) -> Bodies:
    yield "lines", {}, b"a=b\n" * (64 * 1024 // 4)
    yield "different lines", {}, b"".join(b"k%d=b\n" % i for i in range(6500))
    yield "one long key", {}, b"a" * 65_000 + b"=1"
    yield "escapes", {}, b"a=" + b"\\u0041" * 10_000
    yield "continued", {}, b"a=" + b"\\\n" * 32_000
    yield "comments", {}, b"#\n" * 32_000
    yield "a number", {}, b"fileReservedTime=" + b"9" * 65_000


def _assignment(_: int) -> Bodies:
    yield from _any_json(64 * 1024)
    yield "long names", {}, _json({"consumerGroup": "g" * 30_000, "topic": "t" * 30_000, "clientId": "c"})


def _acks(number: int) -> Bodies:
    yield from _any_json(256 * 1024)
    bits = b64encode(b"\xff" * 1024).decode()

    def ack(i: int, **more: Any) -> dict[str, Any]:
        return {
            "c": GROUP,
            "t": TOPIC,
            "q": 0,
            "so": i,
            "pt": number + i,
            "it": 60_000,
            "b": "AQ==",
            "rq": 0,
            **more,
        }

    def many(all_: list[Any]) -> dict[str, Any]:
        return {"brokerName": "test-a", "acks": all_}

    size = 256 * 1024
    yield "full bit sets", {}, _list_of(lambda i: ack(i, b=bits), many, size)
    yield "full bit sets of ordered queues", {}, _list_of(lambda i: ack(i, b=bits, rq=999), many, size)
    yield "acknowledgements", {}, _list_of(ack, many, size)
    yield "numbers as bits", {}, _list_of(lambda i: ack(i, b=[255] * 1024), many, size)
    yield "too long bits", {}, _json(many([ack(0, b="/" * 240_000)]))
    now = 1 << 42
    yield "of the future", {}, _list_of(lambda i: ack(i, pt=now + i), many, size)
    soon = {"pt": -1, "it": 259_200_000}
    yield "of before the start", {}, _list_of(lambda i: ack(i, **soon, so=i), many, size)


def _send_fields(names: bool, **more: str) -> dict[str, str]:
    fields = {
        "producerGroup": GROUP, "topic": TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
        "queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": "", "reconsumeTimes": "0",
        "unitMode": "false", "batch": "false", **more,
    }  # fmt: skip
    letters = {name: letter for letter, name in LETTERS.items()}
    return fields if names else {letters[name]: value for name, value in fields.items()}


def _message(names: bool) -> Callable[[int], Bodies]:
    def bodies(number: int) -> Bodies:
        properties = "".join(f"k{i}\x01v\x02" for i in range(3500))
        yield "4 MiB", _send_fields(names), b"x" * (4 * MIB)
        yield "16 MiB", _send_fields(names), b"x" * (16 * MIB - 2 * HEADER_SIZE)
        yield "4 MiB and properties", _send_fields(names, properties=properties), b"x" * (4 * MIB)
        keys = "KEYS\x01" + " ".join(f"k{i}" for i in range(5500)) + "\x02"
        yield "4 MiB and keys", _send_fields(names, properties=keys), b"x" * (4 * MIB)

    return bodies


def _batch(names: bool) -> Callable[[int], Bodies]:
    def bodies(number: int) -> Bodies:
        yield from _message(names)(number)
        for name, message in (
            ("empty messages", _entry(b"")),
            ("small messages", _entry(b"x")),
            ("messages with properties", _entry(b"x", b"KEYS\x01a b\x02TAGS\x01t\x02")),
            (
                "messages of many keys",
                _entry(b"x", b"KEYS\x01" + b" ".join(b"k%d" % i for i in range(5500)) + b"\x02"),
            ),
            ("messages of many properties", _entry(b"x", b"".join(b"k%d\x01v\x02" % i for i in range(3500)))),
        ):
            yield name, _send_fields(names, batch="true"), message * (4 * MIB // len(message))

    return bodies


def _entry(body: bytes, properties: bytes = b"") -> bytes:
    size = 4 + 4 + 4 + 4 + 4 + len(body) + 2 + len(properties)
    return (
        struct.pack(">IIIiI", size, 0, 0, 0, len(body))
        + body
        + struct.pack(">H", len(properties))
        + properties
    )


def many_messages(count: int) -> Worst:
    """A batch that fills the first queue of the topic that the others are about."""
    ext = _send_fields(names=False, batch="true")
    members = {"extFields": ext, "flag": 0, "language": "JAVA", "opaque": 7, "version": 401}
    return Worst("many", b'{"code":320,' + msgspec.json.encode(members)[1:], _entry(b"x") * count)


def _reply(names: bool) -> Callable[[int], Bodies]:
    def bodies(number: int) -> Bodies:
        yield from _message(names)(number)
        client = "REPLY_TO_CLIENT\x01nobody\x02"
        yield "to nobody", _send_fields(names, properties=client), b"x" * (4 * MIB)

    return bodies


def _registration(number: int) -> Bodies:
    ext = {
        "brokerName": f"b{number}",
        "brokerAddr": f"1.2.3.4:{number % 60000}",
        "clusterName": "c",
        "brokerId": "0",
        "haServerAddr": "",
    }
    size = 16 * MIB - 2 * HEADER_SIZE
    yield from _any_json(size, ext)

    def topic(i: int) -> tuple[str, dict[str, Any]]:
        return f"t{i}", {"topicName": f"t{i}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}

    table = dict(topic(i) for i in range(120_000))
    wrapper = {
        "topicConfigTable": table,
        "dataVersion": {"counter": number, "timestamp": number, "stateVersion": 0},
    }
    yield "topics", ext, _json({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})


def _route(_: int) -> Bodies:
    ext = {"topic": "T"}
    yield from _any_json(64 * 1024, ext)

    def data(i: int) -> dict[str, Any]:
        return {"brokerName": f"b{i}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}

    yield "queues", ext, _list_of(data, lambda all_: {"queueDatas": all_}, 64 * 1024)


def _names(_: int) -> Bodies:
    yield from _any_json(NAMES_BODY_SIZE_MAX)
    yield "names", {}, _list_of(lambda i: f"set-{i}", lambda all_: all_, NAMES_BODY_SIZE_MAX)


def _version(_: int) -> Bodies:
    yield from _any_json(1024, {"brokerName": "b", "brokerAddr": "a:1", "clusterName": "c", "brokerId": "0"})


def _user(_: int) -> Bodies:
    yield from _any_json(USER_BODY_SIZE_MAX)
    yield "a long secret", {"username": "worst"}, _json({"password": "p" * (USER_BODY_SIZE_MAX - 20)})


def _acl(number: int) -> Bodies:
    yield from _any_json(ACL_BODY_SIZE_MAX)
    subject = {"subject": "User:worst"}

    def entry(i: int) -> dict[str, Any]:
        return {"actions": ["Pub"], "decision": "Allow", "resource": f"Topic:{number}-{i}*"}

    def acl(entries: list[Any]) -> dict[str, Any]:
        return {"policies": [{"entries": entries}], **subject}

    yield "entries", subject, _list_of(entry, acl, ACL_BODY_SIZE_MAX)
    addresses = [f"10.{i // 250}.{i % 250}.0/24" for i in range(1000)]
    yield "addresses", subject, _json(acl([entry(0) | {"sourceIps": addresses} for _ in range(5)]))
    yield "actions", subject, _json(acl([entry(0) | {"actions": ["Pub"] * 20_000}]))


BODIES: dict[int, Callable[[int], Bodies]] = {
    10: _message(names=True),
    18: _topics,
    25: _settings,
    34: _heartbeat,
    41: _locks,
    42: _locks,
    46: _check_filter,
    103: _registration,
    200: _group,
    217: _route,
    225: _groups,
    310: _message(names=False),
    318: _settings,
    320: _batch(names=False),
    322: _version,
    324: _reply(names=True),
    325: _reply(names=False),
    400: _assignment,
    401: _assignment,
    1006: _names,
    3001: _user,
    3002: _user,
    3006: _acl,
    3007: _acl,
    200151: _acks,
}
"""Code -> the worst of its bodies. A code that takes a body and is not in here fails the test."""
