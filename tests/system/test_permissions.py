"""What each request declares that its caller must be allowed to do, against what RocketMQ's access control asks for.

A broker or a nameserver lets everybody do everything as long as there is no access control. These walks keep the
declarations right until there is one, and show that nothing gets past the gate that will read them.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from struct import Struct
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from aerobee_proto import names
from aerobee_proto.bodies import ConsumerData, HeartbeatData, LockBatchBody
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.frames import Command
from aerobee_proto.headers import TopicHeader
from aerobee_proto.message_ids import encode_offset_message_id
from aerobee_proto.requests import AnyIncoming, Incoming, RequestDecoder
from aerobee_remoting.exchange.gate import Gate, Row
from aerobee_remoting.exchange.handlers import AnyRequest, HandlerTable
from aerobee_remoting.exchange.needs import GET, PUB, SUB, UPDATE, Kind, Need, Needs, Open, on_topic
from aerobee_remoting.peers.peer import Peer
from remoting.pair import raw_peer
from system.running import running_broker, send_request, talking
from system.serving import nameserver, rows
from system.worst_requests import ordinary_header

WORDS: Final = Struct(">ii")
GET_OF_CLUSTER, UPDATE_OF_CLUSTER = ("Cluster (its own): Get",), ("Cluster (its own): Update",)
# Asked for whatever the original would do: of brokers and tools of ours.
OUR_CODES = {31990, 31991, 31992, 31993, 31994}
READS = ("Group (consumer_group): Sub", "Topic (topic): Sub")
PULLS = ("Topic (topic): Sub; group of a retry topic: nothing", "Group (consumer_group): Sub")
OF_QUEUES = ("Group (of the body): Sub", "Topic (of the body): Sub; group of a retry topic: nothing")

# Needs -> codes, as an official broker of 5.3.3 was seen to ask.
NEEDS: dict[tuple[str, ...], set[int]] = {
    ("Topic (topic): Pub; group of a retry topic: Sub",): {10, 310, 320},
    ("Topic (topic): Pub",): {37, 370},
    ("Group (group): Sub",): {36},
    PULLS: {11},
    ("Topic (topic): Sub or Get",): {12},
    ("Topic (topic): Get",): {29, 30, 31, 32, 33, 202, 300, 351},
    (
        "Topic (topic): Sub or Get; group of a retry topic: nothing",
        "Group (consumer_group): Sub or Get",
    ): {14},
    (
        "Topic (topic): Sub or Update; group of a retry topic: nothing",
        "Group (consumer_group): Sub or Update",
    ): {15},
    OF_QUEUES: {34, 41, 42},
    ("Group (consumer_group): Sub",): {35},
    ("Group (consumer_group): Sub or Get",): {38},
    READS: {309, 200050, 200051, 200053, 200054},
    READS[::-1]: {200052},
    ("Group (consumer_group): Get", "Topic (topic): Get"): {200055},
    ("Group (consumer_group): Get",): {203, 307},
    ("Group (group): Get",): {343, 352},
    ("Group (group): Get", "Topic (topic): Get"): {345},
    ("Topic (topic): Get", "Group (group): Get"): {223, 303},
    ("Topic (topic): Get", "Group (consumer_group): Get"): {321},
    (
        "Group (consumer_group): Get",
        "Topic (topic): Get",
        "Topic (each of topic_list): Get",
    ): {208},
    (
        "Group (each of filter_groups): Get",
        "Group (compare_group): Get",
        "Topic (topic): Get",
    ): {308},
    ("Topic (topic): Create",): {17},
    ("Topic (topic): Delete",): {215},
    ("Topic (topic): Update",): {323},
    ("Group (group_name): Delete",): {207},
    ("Group (group): Update", "Topic (topic): Update"): {222, 353},
    ("Group (dest_group): Update", "Topic (topic): Update"): {314},
    GET_OF_CLUSTER: {101, 204, 219, 315, 317, 328, 3004, 3005, 3009, 3010},
    UPDATE_OF_CLUSTER: {
        100,
        102,
        205,
        217,
        327,
        905,
        906,
        908,
        3001,
        3002,
        3003,
        3006,
        3007,
        3008,
        *OUR_CODES,
    },
    ("Cluster (cluster_name): Get",): {322, 901},
    ("Cluster (cluster_name): Update",): {103, 104, 216, 904},
    ("Topic (topic): Pub or Sub or Get",): {105},
}
# Codes that it asks nothing or too little for, although they change or tell something: what ours ask besides.
FORGOTTEN: dict[tuple[str, ...], set[int]] = {
    ("Topic (topic): Pub",): {324, 325},
    PULLS: {361},
    OF_QUEUES: {46},
    ("Group (of the body): Sub", "Topic (of the body): Sub"): {400, 200151},
    ("Topic (of the body): Create",): {18},
    ("Group (of the body): Create",): {200, 225},
    ("Group (src_group): Get",): {314},
    GET_OF_CLUSTER: {
        21,
        26,
        28,
        43,
        45,
        52,
        54,
        60,
        61,
        201,
        206,
        304,
        305,
        311,
        312,
        313,
        319,
        402,
        907,
        1005,
        1006,
        1007,
    },
    UPDATE_OF_CLUSTER: {25, 50, 51, 53, 306, 316, 318, 329, 401},
    ("Cluster (cluster): Get",): {224},
}
# Anybody, and with True even who has not said who it is.
OPEN: dict[int, bool] = {
    RequestCode.GET_BROKER_CLUSTER_INFO: False,
    RequestCode.GET_CODECS: True,
}


# Code, header fields, body, and what is needed: kind, name, one of the actions.
ASKED: list[tuple[int, dict[str, str], Any, list[str]]] = [
    (310, {"b": "T"}, None, ["Topic:T Pub"]),
    (310, {"b": "%RETRY%G", "a": "Producers"}, None, ["Group:G Sub"]),
    (11, {"topic": "T", "consumerGroup": "G"}, None, ["Topic:T Sub", "Group:G Sub"]),
    (11, {"topic": "%RETRY%G", "consumerGroup": "G"}, None, ["Group:G Sub"]),
    (361, {"topic": "T", "consumerGroup": "G"}, None, ["Topic:T Sub", "Group:G Sub"]),
    (29, {"topic": "%RETRY%G+T"}, None, ["Group:G Get"]),
    (29, {"topic": "%DLQ%G"}, None, ["Topic:%DLQ%G Get"]),
    (33, {"topic": ""}, None, []),
    (37, {"topic": "T"}, None, ["Topic:T Pub"]),
    (
        208,
        {"consumerGroup": "G", "topic": "", "topicList": "A;%RETRY%H;"},
        None,
        ["Group:G Get", "Topic:A Get", "Group:H Get"],
    ),
    (
        308,
        {"filterGroups": "A,B", "compareGroup": "C", "topic": "T"},
        None,
        ["Group:A Get", "Group:B Get", "Group:C Get", "Topic:T Get"],
    ),
    (
        314,
        {"srcGroup": "A", "destGroup": "B", "topic": "T"},
        None,
        ["Group:B Update", "Topic:T Update", "Group:A Get"],
    ),
    (25, {}, b"a=b", ["Cluster: Update"]),
    (
        18,
        {},
        {"topicConfigList": [{"topicName": "A"}, {"topicName": "B"}]},
        ["Topic:A Create", "Topic:B Create"],
    ),
    (
        34,
        {},
        {
            "clientID": "c",
            "producerDataSet": [{"groupName": "P"}],
            "consumerDataSet": [
                {"groupName": "G", "subscriptionDataSet": [{"topic": "T"}, {"topic": "%RETRY%G"}]}
            ],
        },
        ["Group:G Sub", "Topic:T Sub"],
    ),
    (
        41,
        {},
        {"consumerGroup": "G", "mqSet": [{"topic": "T"}, {"topic": "%RETRY%G"}]},
        ["Group:G Sub", "Topic:T Sub"],
    ),
    (42, {}, {"consumerGroup": "G", "mqSet": [{"topic": "T"}]}, ["Group:G Sub", "Topic:T Sub"]),
    (46, {}, {"group": "G", "subscriptionData": {"topic": "T"}}, ["Group:G Sub", "Topic:T Sub"]),
    (46, {}, {"group": "G"}, ["Group:G Sub"]),
    (200, {}, {"groupName": "G"}, ["Group:G Create"]),
    (225, {}, {"groupConfigList": [{"groupName": "G"}]}, ["Group:G Create"]),
    (400, {}, {"consumerGroup": "G", "topic": "T"}, ["Group:G Sub", "Topic:T Sub"]),
    (200151, {}, {"acks": [{"c": "G", "t": "T"}, {"c": "G", "t": "T"}]}, ["Group:G Sub", "Topic:T Sub"]),
    (200151, {}, None, []),
    (103, {"clusterName": "C"}, None, ["Cluster:C Update"]),
    (104, {"clusterName": ""}, None, ["Cluster: Update"]),
    (105, {"topic": "%RETRY%G"}, None, ["Group:G Pub or Sub or Get"]),
    (106, {}, None, []),
]


class Recording(Gate):
    """Lets in whom it is not told to refuse, and remembers who asked for what."""

    def __init__(
        self, refuses: Callable[[AnyIncoming], bool] = lambda _: False, *, refuses_found: bool = False
    ) -> None:
        self._refuses = refuses
        self._refuses_found = refuses_found
        self.seen: list[AnyIncoming] = []
        self.found: list[Sequence[Need]] = []
        self.asked = asyncio.Event()
        self.asked_found = asyncio.Event()

    def admit(self, caller: Peer, row: Row, request: AnyIncoming) -> None:
        assert caller.peer_host == "127.0.0.1"
        assert row.code == request.envelope.code
        assert isinstance(request.header, row.header)
        self.seen.append(request)
        self.asked.set()
        if self._refuses(request):
            raise RequestError(ResponseCode.NO_PERMISSION, "not you")

    def admit_found(self, caller: Peer, row: Row, request: AnyIncoming, needs: Sequence[Need]) -> None:
        self.found.append(needs)
        self.asked_found.set()
        if self._refuses_found:
            raise RequestError(ResponseCode.NO_PERMISSION, "not that")


def flat(table: dict[tuple[str, ...], set[int]]) -> dict[int, list[str]]:
    named = {code: list(needs) for needs, codes in table.items() for code in codes}
    assert len(named) == sum(len(codes) for codes in table.values()), "a code stands in one row"
    return named


async def test_every_code_declares_what_the_original_asks_for_and_what_it_forgot(tmp_path: Path) -> None:
    """A new code fails here until it stands in one of the tables above."""
    found = await rows(tmp_path)
    assert len(found) == 126
    asked, forgotten, opened = {}, {}, {}
    for code, row in found.items():
        if isinstance(row.needs, Open):
            assert row.needs.reason
            opened[code] = row.needs.unsigned
            continue
        if rules := [str(rule) for rule in row.needs if not rule.ours]:
            asked[code] = rules
        if rules := [str(rule) for rule in row.needs if rule.ours]:
            forgotten[code] = rules
    assert asked == flat(NEEDS)
    assert forgotten == flat(FORGOTTEN)
    assert opened == OPEN


def test_the_page_about_the_wire_lists_the_same_needs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "wire.md").read_text(encoding="utf-8")
    section = page.split("## What a request needs")[1].split("\n## ")[0]
    listed = [
        (needs, {int(code) for code in codes.split(", ")})
        for needs, codes in re.findall(r"^\| (\w+ \(.*) \| ([\d, ]+) \|$", section, re.MULTILINE)
    ]
    assert listed == [
        (in_words(needs), codes) for table in (NEEDS, FORGOTTEN) for needs, codes in table.items()
    ]
    assert all(f" {code} " in section for code in OPEN)


def in_words(needs: Sequence[str]) -> str:
    text = "; and ".join(needs).replace("; group of a retry topic", ". Of a retry topic the group")
    return re.sub(r"_([a-z])", lambda letter: letter[1].upper(), text)


@asynccontextmanager
async def serving(
    where: str, folder: Path, gate: Gate | None = None
) -> AsyncIterator[tuple[HandlerTable, int]]:
    """A broker's or a nameserver's table, and its port."""
    if where == "broker":
        async with running_broker(folder, gate=gate) as broker:
            yield broker.handlers, broker.port
        return
    server = nameserver(gate)
    await server.start()
    try:
        yield server.handlers, server.port
    finally:
        await server.close()


@pytest.mark.parametrize("refuses", [False, True], ids=["open", "shut"])
@pytest.mark.parametrize("where", ["broker", "nameserver"])
async def test_every_code_passes_the_gate_once(tmp_path: Path, where: str, refuses: bool) -> None:
    gate = Recording(lambda _: refuses)
    async with serving(where, tmp_path, gate) as (table, port), raw_peer(port) as peer:
        for code, row in sorted(table.by_code.items()):
            gate.asked.clear()
            header = ordinary_header(row, {})
            peer.writer.write(WORDS.pack(len(header) + 4, len(header)) + header)
            async with asyncio.timeout(10):
                await gate.asked.wait()
            assert gate.seen[-1].raw_header == header
            if refuses:
                answer = await peer.receive()
                assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "not you")
                assert (row.requests, row.refused) == (1, 1), RequestCode(code).name
        assert [request.envelope.code for request in gate.seen] == sorted(table.by_code)


async def test_of_a_batch_each_message_passes_by_itself(tmp_path: Path) -> None:
    gate = Recording(lambda request: request.body == b"no")
    bodies = [b"a", b"no", b"b", b"no", b"c"]
    async with running_broker(tmp_path, gate=gate) as broker, talking(broker) as talker:
        talker.send(*[send_request("T", body, opaque=opaque) for opaque, body in enumerate(bodies)])
        answers = await talker.answers(5)
        assert [request.body for request in gate.seen] == bodies
        assert [answers[opaque].code for opaque in range(5)] == [0, 16, 0, 16, 0]
        assert [record.body for record in await talker.records("T")] == [b"a", b"b", b"c"]
        talker.send(*[send_request("T", body, opaque=9, oneway=True) for body in (b"no", b"d")])
        assert (await talker.put("T", b"e")).code == 0
        assert [record.body for record in await talker.records("T", 3)] == [b"d", b"e"]


async def test_a_gate_that_fails_lets_nobody_in(tmp_path: Path) -> None:
    def broken(_: AnyIncoming) -> bool:
        raise KeyError("lost")

    def keep_place(_: object, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Where it came from goes with the request, once the line is written."""
        line["has_place"] = getattr(line.get("exc_info"), "__traceback__", None) is not None
        return line

    async with running_broker(tmp_path, gate=Recording(broken)) as broker, talking(broker) as talker:
        with capture_logs(processors=[keep_place]) as logs:
            for answer in (await talker.put("T"), await talker.ask(RequestCode.GET_BROKER_CONFIG)):
                assert (answer.code, answer.body) == (ResponseCode.SYSTEM_ERROR, b"")
                assert "lost" not in (answer.remark or "")  # a stranger may have asked
        told = [line for line in logs if line["event"] == "remoting.handler_failed"]
        assert [str(line["exc_info"]) for line in told] == ["'lost'", "'lost'"]
        assert all(line["has_place"] for line in told)
        assert broker.parts.store.end_offset == 0


# What lies at the place that a request names: code, where it lies, header fields, what is needed.
FOUND: list[tuple[int, str, dict[str, str], Need]] = [
    (33, "Secret", {"topic": "Public"}, Need(Kind.TOPIC, "Secret", (GET,))),
    (36, "Secret", {"group": "G", "delayLevel": "0"}, Need(Kind.TOPIC, "Secret", (SUB,))),
    (36, "%RETRY%H", {"group": "G", "delayLevel": "0"}, Need(Kind.GROUP, "H", (SUB,))),
    (
        37,
        names.HALF_TOPIC,
        {"producerGroup": "P", "tranStateTableOffset": "0", "commitOrRollback": "8"},
        Need(Kind.TOPIC, "Secret", (PUB,)),
    ),
    (
        37,
        names.HALF_TOPIC,
        {"topic": "Public", "producerGroup": "P", "tranStateTableOffset": "0", "commitOrRollback": "12"},
        Need(Kind.TOPIC, "Secret", (PUB,)),
    ),
    (
        309,
        "Secret",
        {"topic": "Public", "consumerGroup": "G", "clientId": "c"},
        Need(Kind.TOPIC, "Secret", (SUB,)),
    ),
    (323, names.CHECK_MAX_TIME_TOPIC, {"topic": "Public"}, Need(Kind.TOPIC, "Secret", (UPDATE,))),
]


@pytest.mark.parametrize("refuses", [False, True], ids=["open", "shut"])
@pytest.mark.parametrize(
    ("code", "topic", "fields", "need"), FOUND, ids=[f"{row[0]} {row[1]}" for row in FOUND]
)
async def test_a_message_that_is_named_by_its_place_is_judged_by_its_own_topic(
    tmp_path: Path, code: int, topic: str, fields: dict[str, str], need: Need, refuses: bool
) -> None:
    """Whoever may read one topic could read all of them with 33 otherwise: the topic in the request is only said.

    The others handed foreign messages to a group or a consumer, or ended foreign transactions.
    """
    gate = Recording(refuses_found=refuses)
    async with running_broker(tmp_path, gate=gate) as broker, talking(broker) as talker:
        heartbeat = HeartbeatData(client_id="c", consumer_data_set=[ConsumerData(group_name="G")])
        assert (await talker.ask(RequestCode.HEART_BEAT, body=heartbeat.to_bytes())).code == 0
        own = {"REAL_TOPIC": "Secret", "REAL_QID": "0", "PGROUP": "P"}
        writer = broker.parts.writer
        await writer.put([writer.new(topic, 0, b"x", own)])
        end_offset = broker.parts.store.end_offset
        place = {
            "offset": "0",
            "commitLogOffset": "0",
            "msgId": encode_offset_message_id("127.0.0.1", broker.port, 0),
        }
        ask = asyncio.create_task(talker.exchange(Command(code, ext_fields=place | fields)))
        if refuses:
            answer = await ask
            assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "not that")
            assert broker.parts.store.end_offset == end_offset
        else:
            async with asyncio.timeout(10):
                await gate.asked_found.wait()
            ask.cancel()
        assert gate.found == [(need,)]


def test_no_code_is_served_without_needs_that_can_be_worked_out() -> None:
    """A typing error in a field's name would leave a code open."""
    table = HandlerTable()

    def handler(_: AnyRequest) -> None:
        pass

    cases: list[tuple[Needs, str]] = [
        ((), "declares what its caller needs"),
        (Open(""), "says why"),
        ((on_topic("topics", GET),), "has no field topics"),
        ((on_topic("topic"),), "without an action"),
    ]
    for needs, fault in cases:
        with pytest.raises(ValueError, match=fault):
            table.register(1, handler, header=TopicHeader, needs=needs)
    assert not table.by_code


async def test_needs_are_worked_out_of_what_was_asked(tmp_path: Path) -> None:
    found = await rows(tmp_path)
    for code, fields, body, needed in ASKED:
        row = found[code]
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        envelope = RequestDecoder(row.header).decode((0, ordinary_header(row, fields), b""))
        request = Incoming(envelope, (0, b"", data), envelope.ext, data)  # type: ignore[misc]
        texts = [
            f"{need.kind.value}:{need.name} {' or '.join(action.value for action in need.actions)}"
            for need in row.needed(request)
        ]
        assert texts == needed, (code, fields)


async def test_what_is_judged_is_what_the_handler_reads(tmp_path: Path) -> None:
    """The body is read once: two readings of it could see two things."""
    row = (await rows(tmp_path))[RequestCode.LOCK_BATCH_MQ]
    envelope = RequestDecoder(row.header).decode((0, ordinary_header(row, {}), b""))
    data = b'{"consumerGroup":"G"}'
    request = Incoming(envelope, (0, b"", data), envelope.ext, data)  # type: ignore[misc]
    assert list(row.needed(request)) == [Need(Kind.GROUP, "G", (SUB,))]
    assert request.content is request.read(LockBatchBody)
    data = b'{"consumerGroup":'
    broken = Incoming(envelope, (0, b"", data), envelope.ext, data)  # type: ignore[misc]
    with pytest.raises(RequestError, match="body of request 41"):
        list(row.needed(broken))
