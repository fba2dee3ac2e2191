"""What the Go client (v2, version 317) writes otherwise than the Java client, byte by byte, and what it can read.

Its frames are written here as its JSON library writes them: fields in the order of its structs, `GO` as language,
no word of the codec, no oneway bit, codes of 16 bits. Where it reads answers with a parser of its own, that parser's
way is followed here too.
"""

from __future__ import annotations

import asyncio
import json
import struct
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.broker import Broker
from aerobee_nameserver.config import load_config
from aerobee_nameserver.server import NameServer
from aerobee_proto.batch import BatchEntry, encode_batch
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import Command
from aerobee_proto.records import decode_records
from engines import BOTH_ENGINES
from system.running import Talker, running_broker, text_of

pytestmark = BOTH_ENGINES

VERSION = 317
GO = 9
GROUP, PRODUCERS, TOPIC = "go-group", "go-producers", "GoTopic"
CLIENT_ID = "192.168.1.7@4711"
SUSPEND, COMMIT_OFFSET = 2, 1  # bits of a pull's sysFlag


class GoClient(Talker):
    """Frames as the Go client writes them; answers are read by their opaque."""

    def frame(self, code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> bytes:
        """One request; `opaque` moves on."""
        self.opaque += 1
        head: dict[str, Any] = {"code": code, "language": "GO", "version": VERSION, "opaque": self.opaque}
        head |= {"flag": 0, "remark": ""}
        if fields:
            head["extFields"] = fields
        text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
        return struct.pack(">II", 4 + len(text) + len(body), len(text)) + text + body

    def binary_frame(self, code: int, fields: dict[str, str], body: bytes = b"") -> bytes:
        """The same with the binary header."""
        self.opaque += 1
        ext = b"".join(
            struct.pack(f">h{len(name)}si{len(value)}s", len(name), name, len(value), value)
            for name, value in ((a.encode(), b.encode()) for a, b in fields.items())
        )
        start = struct.pack(">hbhii", code, GO, VERSION, self.opaque, 0)
        head = start + struct.pack(">ii", 0, len(ext)) + ext
        return struct.pack(">II", 4 + len(head) + len(body), 1 << 24 | len(head)) + head + body

    async def go(self, code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> Command:
        """One request and its answer, whose code the Go client keeps in 16 bits."""
        self.writer.write(self.frame(code, fields, body))
        answer = await self.answer_to(self.opaque)
        assert -(1 << 15) <= answer.code < 1 << 15
        return answer

    async def beat(self, *, tags: str = "*", consume_type: str = "CONSUME_PASSIVELY") -> Command:
        """Its heartbeat: hashes as strings, nanoseconds as version."""
        names = [] if tags == "*" else tags.split(" || ")
        subscription = {
            "classFilterMode": False,
            "topic": TOPIC,
            "subString": tags,
            "tagsSet": names,
            "codeSet": [str(java_hash(name)) for name in names],
            "subVersion": time.time_ns(),
            "expressionType": "TAG",
        }
        consumer = {
            "groupName": GROUP,
            "consumeType": consume_type,
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [subscription],
            "unitMode": False,
        }
        body = {
            "clientID": CLIENT_ID,
            "producerDataSet": [{"groupName": PRODUCERS}],
            "consumerDataSet": [consumer],
        }
        return await self.go(RequestCode.HEART_BEAT, None, json.dumps(body, separators=(",", ":")).encode())

    async def send_one(self, body: bytes, *, queue_id: int = 0, **changed: str) -> Command:
        return await self.go(RequestCode.SEND_MESSAGE, send_fields(queue_id=queue_id, **changed), body)


def send_fields(*, queue_id: int = 0, **changed: str) -> dict[str, str]:
    """Header of a single message: long names, every field present."""
    return {
        "producerGroup": PRODUCERS,
        "topic": TOPIC,
        "queueId": str(queue_id),
        "sysFlag": "0",
        "bornTimestamp": str(time.time_ns() // 1_000_000),
        "flag": "0",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "maxReconsumeTimes": "0",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "batch": "false",
        "properties": text_of({"UNIQ_KEY": "C0A80107126700000000000000000001", "TAGS": "TagA"}),
        **changed,
    }


def pull_fields(**changed: str) -> dict[str, str]:
    """Header of a pull: the subscription is the broker's, its version is not told."""
    return {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": str(SUSPEND),
        "commitOffset": "0",
        "suspendTimeoutMillis": "20000",
        "subscription": "TagA",
        "subVersion": "0",
        "expressionType": "TAG",
        **changed,
    }


@asynccontextmanager
async def going(port: int) -> AsyncIterator[GoClient]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield GoClient(reader, writer)
    finally:
        writer.transport.abort()


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    # The old way of a reset leads through the clients: only so a Go client gets request 220.
    async with running_broker(tmp_path, use_server_side_reset_offset=False) as started:
        yield started


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[GoClient]:
    async with going(broker.port) as connected:
        yield connected


async def test_a_single_message_of_code_10_is_stored_as_it_was_sent(client: GoClient) -> None:
    sent = await client.send_one("Grüße 消息".encode(), flag="7")
    assert (sent.code, sent.ext["queueId"], sent.ext["queueOffset"]) == (0, "0", "0")
    assert len(sent.ext["msgId"]) == 32
    [record] = await client.records(TOPIC)
    assert (record.body, record.flag, record.born_timestamp > 0) == ("Grüße 消息".encode(), 7, True)
    assert record.property_map["UNIQ_KEY"] == "C0A80107126700000000000000000001"
    assert record.reconsume_times == 0


async def test_a_batch_of_code_320_has_letters_and_its_own_flag(client: GoClient) -> None:
    entries = [BatchEntry(0, f"m{i}".encode(), text_of({"UNIQ_KEY": f"K{i}"})) for i in range(3)]
    letters = dict(zip("abcdefghijklm", ordered(send_fields(batch="true", properties="")), strict=True))
    sent = await client.go(RequestCode.SEND_BATCH_MESSAGE, letters, encode_batch(entries))
    assert sent.code == 0, sent.remark
    assert len(sent.ext["msgId"].split(",")) == 3
    assert [record.body for record in await client.records(TOPIC)] == [b"m0", b"m1", b"m2"]


async def test_a_body_compressed_with_the_old_flag_alone_comes_back_untouched(client: GoClient) -> None:
    packed = zlib.compress(b"row " * 2000)
    await client.send_one(packed, sysFlag="1")
    [record] = await client.records(TOPIC)
    assert (record.body, record.sys_flag & 0x701) == (packed, 1)


async def test_what_it_sends_oneway_carries_no_such_bit_and_is_answered(client: GoClient) -> None:
    """It ignores the answer by its opaque; the next answer is that of the next request."""
    client.writer.write(client.frame(RequestCode.SEND_MESSAGE, send_fields(), b"oneway"))
    oneway = client.opaque
    client.writer.write(client.frame(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"}))
    answers = await client.answers(2)
    assert sorted(answers) == [oneway, client.opaque]
    assert {answer.code for answer in answers.values()} == {0}


async def test_an_offset_is_kept_by_a_request_that_looks_like_any_other(client: GoClient) -> None:
    await client.send_one(b"first")
    await client.beat()
    queue = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0"}
    assert (await client.go(RequestCode.UPDATE_CONSUMER_OFFSET, {**queue, "commitOffset": "1"})).code == 0
    kept = await client.go(RequestCode.QUERY_CONSUMER_OFFSET, queue)
    assert (kept.code, kept.ext["offset"]) == (0, "1")


@pytest.mark.parametrize("consume_type", ["CONSUME_PASSIVELY", "PUSH"], ids=["now", "in early releases"])
async def test_its_heartbeat_makes_it_a_member_and_its_pull_needs_no_version(
    client: GoClient, consume_type: str
) -> None:
    await client.send_one(b"wanted")
    await client.send_one(b"other", properties=text_of({"TAGS": "TagB"}))
    assert (await client.beat(tags="TagA || TagC", consume_type=consume_type)).code == 0
    members = await client.go(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP})
    assert json.loads(members.body)["consumerIdList"] == [CLIENT_ID]
    pulled = await client.go(RequestCode.PULL_MESSAGE, pull_fields(subscription="", sysFlag=str(SUSPEND)))
    assert (pulled.code, pulled.ext["nextBeginOffset"]) == (0, "2")
    assert [record.body for record in decode_records(pulled.body)] == [b"wanted"]


async def test_a_later_heartbeat_changes_the_subscription_by_its_nanoseconds(client: GoClient) -> None:
    await client.send_one(b"a")
    await client.send_one(b"b", properties=text_of({"TAGS": "TagB"}))
    await client.beat(tags="TagA")
    await client.beat(tags="TagB")
    pulled = await client.go(RequestCode.PULL_MESSAGE, pull_fields(subscription=""))
    assert [record.body for record in decode_records(pulled.body)] == [b"b"]


async def test_operators_see_its_language_and_version(client: GoClient) -> None:
    await client.beat()
    answer = await client.go(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": GROUP})
    logged = json.loads(answer.body)
    [connection] = logged["connectionSet"]
    assert (logged["consumeType"], logged["consumeFromWhere"]) == (
        "CONSUME_PASSIVELY",
        "CONSUME_FROM_FIRST_OFFSET",
    )
    assert (connection["language"], connection["version"]) == ("GO", VERSION)
    assert connection["clientId"] == CLIENT_ID


@pytest.mark.parametrize("suspend", ["20000", "20000000000"], ids=["milliseconds", "nanoseconds"])
async def test_a_held_pull_is_answered_by_the_next_message(
    broker: Broker, client: GoClient, suspend: str
) -> None:
    """Some releases write the time to hold in nanoseconds."""
    await client.send_one(b"old")
    await client.beat()
    client.writer.write(
        client.frame(RequestCode.PULL_MESSAGE, pull_fields(queueOffset="1", suspendTimeoutMillis=suspend))
    )
    pulled = client.opaque
    async with going(broker.port) as other:
        await other.send_one(b"new")
    answer = await client.answer_to(pulled)
    assert [record.body for record in decode_records(answer.body)] == [b"new"]


async def test_a_pull_commits_when_its_flag_says_so(client: GoClient) -> None:
    await client.send_one(b"one")
    await client.beat()
    await client.go(
        RequestCode.PULL_MESSAGE, pull_fields(sysFlag=str(SUSPEND | COMMIT_OFFSET), commitOffset="1")
    )
    queue = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0"}
    assert (await client.go(RequestCode.QUERY_CONSUMER_OFFSET, queue)).ext["offset"] == "1"


@pytest.mark.parametrize(("decision", "visible"), [(8, 1), (12, 0)], ids=["commit", "rollback"])
async def test_the_end_of_a_transaction_is_answered(client: GoClient, decision: int, visible: int) -> None:
    assert (await client.go(RequestCode.END_TRANSACTION, await half(client, decision))).code == 0
    assert len(await client.records(TOPIC)) == visible


async def test_an_undecided_end_is_not_answered_and_the_connection_goes_on(client: GoClient) -> None:
    client.writer.write(client.frame(RequestCode.END_TRANSACTION, await half(client, 0)))
    client.writer.write(client.frame(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"}))
    answer = await client.receive()
    assert (answer.opaque, answer.ext["offset"]) == (client.opaque, "0")


async def test_a_message_is_sent_back_with_the_fields_it_has(client: GoClient) -> None:
    await client.send_one(b"again")
    await client.beat()
    [record] = await client.records(TOPIC)
    fields = {
        "group": GROUP,
        "offset": str(record.physical_offset),
        "delayLevel": "-1",
        "originMsgId": "C0A80107126700000000000000000001",
        "originTopic": TOPIC,
        "unitMode": "false",
        "maxReconsumeTimes": "16",
    }
    assert (await client.go(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0
    [dead] = await client.records(f"%DLQ%{GROUP}")
    assert (dead.body, dead.reconsume_times, dead.property_map["RETRY_TOPIC"]) == (b"again", 1, TOPIC)


async def test_a_reset_is_told_in_the_one_form_that_it_reads(broker: Broker, client: GoClient) -> None:
    for queue in range(2):
        await client.send_one(b"x", queue_id=queue)
    await client.beat()
    route = {"consumerGroup": GROUP, "topic": TOPIC}
    for queue in range(4):
        kept = {**route, "queueId": str(queue), "commitOffset": "1" if queue < 2 else "0"}
        await client.go(RequestCode.UPDATE_CONSUMER_OFFSET, kept)
    ask = {"topic": TOPIC, "group": GROUP, "timestamp": "0", "isForce": "true", "queueId": "-1"}
    async with going(broker.port) as operator:
        assert (await operator.go(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ask)).code == 0
    while (logged := await client.receive()).code != RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
        pass
    assert not logged.is_response
    assert (logged.ext["topic"], logged.ext["group"]) == (TOPIC, GROUP)
    assert go_offsets(logged.body.decode()) == dict.fromkeys(range(4), 0)


async def test_binary_headers_carry_codes_of_16_bits(client: GoClient) -> None:
    client.writer.write(client.binary_frame(RequestCode.SEND_MESSAGE, send_fields(), b"binary"))
    sent = await client.answer_to(client.opaque)
    assert (sent.code, sent.codec, sent.ext["queueOffset"]) == (0, 1, "0")
    client.writer.write(client.binary_frame(RequestCode.POP_MESSAGE & 0xFFFF, {"topic": TOPIC}))
    refused = await client.answer_to(client.opaque)
    assert refused.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_its_start_finds_the_route_by_its_own_splitter(tmp_path: Path) -> None:
    """A topic nobody knows, the template's route, the first message, then the topic's own route."""
    nameserver = NameServer(
        load_config(overrides={"listenPort": "0", "bindAddress": "127.0.0.1"}, environ={})
    )
    port = await nameserver.start()
    try:
        async with (
            running_broker(tmp_path, namesrv_addr=f"127.0.0.1:{port}") as broker,
            going(port) as names,
            going(broker.port) as client,
        ):
            await found(names, "TBW102")
            unknown = await names.go(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
            assert unknown.code == ResponseCode.TOPIC_NOT_EXIST
            await client.send_one(b"makes the topic")
            route = (await found(names, TOPIC)).body.decode()
            assert go_addresses(route) == {0: f"127.0.0.1:{broker.port}"}
            [queues] = json.loads(route[route.index('"queueDatas":') + len('"queueDatas":') : -1])
            assert (queues["brokerName"], queues["perm"], queues["writeQueueNums"]) == ("test-a", 6, 4)
    finally:
        await nameserver.close()


async def found(names: GoClient, topic: str) -> Command:
    """The route of a topic, as soon as its broker has registered it."""
    async with asyncio.timeout(10):
        while True:
            answer = await names.go(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
            if answer.code == 0:
                return answer


async def half(client: GoClient, decision: int) -> dict[str, str]:
    """Send a half message; the header that ends it."""
    key = "C0A80107126700000000000000000002"
    properties = text_of({"UNIQ_KEY": key, "TRAN_MSG": "true", "PGROUP": PRODUCERS})
    sent = await client.send_one(b"half", sysFlag="4", properties=properties)
    assert sent.code == 0, sent.remark
    return {
        "producerGroup": PRODUCERS,
        "tranStateTableOffset": sent.ext["queueOffset"],
        "commitLogOffset": str(int(sent.ext["msgId"][16:], 16)),
        "commitOrRollback": str(decision),
        "fromTransactionCheck": "false",
        "msgId": key,
        "transactionId": sent.ext["transactionId"],
    }


def ordered(fields: dict[str, str]) -> list[str]:
    """The values of a send in the order of the letters."""
    names = (
        "producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag properties"
    )
    names += " reconsumeTimes unitMode maxReconsumeTimes batch"
    return [fields[name] for name in names.split()]


def java_hash(text: str) -> int:
    total = 0
    for letter in text:
        total = (31 * total + ord(letter)) & 0xFFFFFFFF
    return total - (1 << 32) if total >> 31 else total


def go_addresses(route: str) -> dict[int, str]:
    """brokerAddrs as the Go client takes it apart: at every comma and colon, without looking at blanks."""
    start = route.index('"brokerAddrs":{') + len('"brokerAddrs":{')
    found = {}
    for piece in route[start : route.index("}", start)].split(","):
        broker_id, host, port = piece.split(":")
        found[int(broker_id.replace('"', ""))] = f"{host}:{port}".replace('"', "")
    return found


def go_offsets(body: str) -> dict[int, int]:
    """offsetTable of a 220 as the Go client takes it apart: at `,{` and `}:`; offset by queue id."""
    assert body.startswith('{"offsetTable":{{')
    assert body.endswith("}}")
    offsets = {}
    for piece in body.removeprefix('{"offsetTable":{{').removesuffix("}}").split(",{"):
        queue, offset = piece.split("}:")
        parsed = json.loads("{" + queue + "}")
        assert (parsed["topic"], parsed["brokerName"]) == (TOPIC, "test-a")
        offsets[parsed["queueId"]] = int(offset)
    return offsets
