"""Bad input over sockets: each kind gets its answer or its end, the broker lives, good clients notice nothing.

Touches  a broker in this process, real sockets.
"""

import asyncio
import json
import os
import random
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from aerobee_broker.broker import Broker
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import FLAG_RESPONSE, Command, encode_command, encode_frame
from plain_remoting import topic_fields
from system.running import Talker, running_broker, send_request, talking, text_of

V2 = RequestCode.SEND_MESSAGE_V2


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running_broker(tmp_path / "store") as broker:
        yield broker


@pytest.fixture
async def good(broker: Broker) -> AsyncIterator[Talker]:
    """A client that was there before, and must be served afterwards over the same connection."""
    async with talking(broker) as client:
        assert (await client.put("Good", b"before")).code == 0
        yield client
        assert (await client.put("Good", b"after")).code == 0
        bodies = [one.body for one in await client.records("Good")]
        assert (bodies[0], bodies[-1]) == (b"before", b"after")
        broker.parts.store.check()


@contextmanager
def opened_paths() -> Iterator[set[str]]:
    """Every path that this process opens, makes, renames or removes meanwhile, as the interpreter reports it."""
    seen: set[str] = set()
    watching = True

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if watching and event in (
            "open",
            "os.mkdir",
            "os.rename",
            "os.remove",
            "os.rmdir",
            "os.listdir",
            "os.scandir",
        ):
            seen.update(os.fspath(arg) for arg in args if isinstance(arg, str | os.PathLike))

    sys.addaudithook(hook)
    try:
        yield seen
    finally:
        watching = False


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# --- names that could be paths ------------------------------------------------------------------------------------

EVIL_NAMES = [
    "..",
    ".",
    "../../escape",
    "/etc/escape",
    "a/b",
    "a\\b",
    "a\0b",
    "%2e%2e/escape",
    "~",
    "C:escape",
    "escape\n",
    " escape",
    "escape.tmp",
    "ｅscape",
    "esc\u202eape",
    "x" * 256,
    "x" * 100_000,
    "",
]
TOPIC_REQUESTS = {
    "send": (V2, {"a": "g", "b": "NAME", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}),
    "send after a template": (V2, {"a": "g", "b": "New", "c": "NAME", "e": "0", "f": "0", "g": "1", "h": "0"}),
    "pull": (
        RequestCode.PULL_MESSAGE,
        {
            "consumerGroup": "g",
            "topic": "NAME",
            "queueId": "0",
            "queueOffset": "0",
            "maxMsgNums": "1",
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subVersion": "0",
        },
    ),
    "query": (
        RequestCode.QUERY_MESSAGE,
        {"topic": "NAME", "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1"},
    ),
    "max offset": (RequestCode.GET_MAX_OFFSET, {"topic": "NAME", "queueId": "0"}),
    "min offset": (RequestCode.GET_MIN_OFFSET, {"topic": "NAME", "queueId": "0"}),
    "earliest time": (RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": "NAME", "queueId": "0"}),
    "search by time": (
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        {"topic": "NAME", "queueId": "0", "timestamp": "1"},
    ),
    "commit of a topic": (
        RequestCode.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": "g", "topic": "NAME", "queueId": "0", "commitOffset": "1"},
    ),
    "commit of a group": (
        RequestCode.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": "NAME", "topic": "Good", "queueId": "0", "commitOffset": "1"},
    ),
    "update of a topic": (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("NAME", 1)),
    "deletion of a topic": (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "NAME"}),
}  # fmt: skip


@pytest.mark.parametrize(("code", "fields"), TOPIC_REQUESTS.values(), ids=TOPIC_REQUESTS)
async def test_no_name_leads_out_of_the_store(
    tmp_path: Path, broker: Broker, good: Talker, code: int, fields: dict[str, str]
) -> None:
    before = names_in(tmp_path.parent)
    topics = broker.parts.topics.all().keys()
    with opened_paths() as opened:
        for name in EVIL_NAMES:
            named = {key: name if value == "NAME" else value for key, value in fields.items()}
            answer = await good.ask(code, named, b"body" if code == V2 else b"")
            assert len(answer.remark or "") < 1000
            if code in (V2, RequestCode.UPDATE_AND_CREATE_TOPIC):
                assert answer.code in (ResponseCode.INVALID_PARAMETER, ResponseCode.TOPIC_NOT_EXIST)
    assert broker.parts.topics.all().keys() == topics
    assert names_in(tmp_path.parent) == before
    assert names_in(tmp_path) == {"store"}
    assert names_in(tmp_path / "store" / "consumequeue") <= {"Good"}
    assert [path for path in opened if "escape" in path or ".." in path] == []


async def test_group_names_in_heartbeats_make_no_paths(tmp_path: Path, broker: Broker, good: Talker) -> None:
    for name in EVIL_NAMES:
        group = {"groupName": name, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"}
        body = {"clientID": "me", "consumerDataSet": [group], "producerDataSet": [{"groupName": name}]}
        answer = await good.ask(RequestCode.HEART_BEAT, body=json.dumps(body).encode())
        assert answer.is_response
        assert name not in broker.parts.groups
    assert names_in(tmp_path) == {"store"}
    assert names_in(tmp_path / "store" / "consumequeue") == {"Good"}
    assert not any(name.startswith("%RETRY%") for name in broker.parts.topics.all())


# --- bytes that are no frames -------------------------------------------------------------------------------------

HEADER = encode_command(Command(RequestCode.GET_MAX_OFFSET, ext_fields={"topic": "T", "queueId": "0"}))[8:]
NO_FRAMES = {
    "a length of 0": pack(">i", 0) + b"rest",
    "a length of 3": pack(">i", 3) + b"rest",
    "a negative length": pack(">i", -1) + b"rest",
    "the largest length": pack(">i", 2**31 - 1) + b"rest",
    "one byte over 16 MiB": pack(">ii", 16_777_216 - 3, 10) + b"rest",
    "a header longer than its frame": pack(">ii", 20, 17) + bytes(16),
    "the largest header": pack(">ii", 20, 0xFFFFFF) + bytes(16),
    "a codec that does not exist": pack(">ii", 4 + len(HEADER), 7 << 24 | len(HEADER)) + HEADER,
    "a header that is no JSON": encode_frame(0, b"{hello}", b""),
    "a header that is a list": encode_frame(0, b"[1, 2]", b""),
    "a header cut short": encode_frame(0, HEADER[:-5], b""),
    "no UTF-8": encode_frame(0, b'{"code":11,"remark":"\xff\xfe"}', b""),
    "a code that is a float": encode_frame(0, b'{"code":1.5}', b""),
    "deep nesting": encode_frame(0, b'{"code":11,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b""),
    "a binary header of 3 bytes": encode_frame(1, b"abc", b""),
    "a binary header whose remark never ends": encode_frame(1, bytes(13) + b"\x7f\xff\xff\xff", b""),
    "a msgpack header that is a map": encode_frame(2, b"\x81\xa1a\x01", b""),
    "a msgpack header that announces much": encode_frame(2, b"\xdd\x7f\xff\xff\xff", b""),
    "HTTP": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(100),
}


@pytest.mark.parametrize("data", NO_FRAMES.values(), ids=NO_FRAMES)
async def test_bytes_that_are_no_frames_end_their_connection_only(
    broker: Broker, good: Talker, data: bytes
) -> None:
    async with talking(broker) as bad:
        bad.writer.write(data)
        assert await bad.is_closed_by_the_server()


async def test_what_came_before_broken_bytes_is_answered(broker: Broker, good: Talker) -> None:
    async with talking(broker) as bad:
        bad.send(
            send_request("T", b"whole", opaque=1),
            Command(RequestCode.GET_MAX_OFFSET, opaque=2, ext_fields={}),
        )
        bad.writer.write(pack(">i", -5))
        answers = []
        while True:
            try:
                answers.append(await bad.receive())
            except (EOFError, ConnectionError):
                break
        assert 2 in {answer.opaque for answer in answers}
    assert (await good.put("T", b"next")).code == 0  # its sync is that of the message before, too
    assert [one.body for one in await good.records("T")] == [b"whole", b"next"]


async def test_random_bytes_never_harm(broker: Broker, good: Talker) -> None:
    rng = random.Random(5)
    frame = encode_command(send_request("T", b"x" * 50, properties=text_of({"TAGS": "a"})))
    for i in range(150):
        damaged = bytearray(frame)
        for _ in range(rng.randint(1, 6)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        async with talking(broker) as bad:
            bad.writer.write(bytes(damaged) if i % 3 else rng.randbytes(200))
            bad.writer.write_eof()
            while True:
                try:
                    await bad.receive()
                except (EOFError, ConnectionError):
                    break


@pytest.mark.parametrize("cut", [1, 3, 4, 7, 8, 20, -1])
async def test_a_send_that_is_cut_anywhere_stores_nothing(broker: Broker, good: Talker, cut: int) -> None:
    frame = encode_command(send_request("Good", b"torn"))
    async with talking(broker) as bad:
        bad.writer.write(frame[:cut])
        bad.writer.write_eof()
        assert await bad.is_closed_by_the_server()
    assert len(await good.records("Good")) == 1


# --- requests that nobody serves ----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [-1, 1, 99_999, 32_768, 2**31 - 1, -(2**31), 105, 103])
async def test_unknown_codes_are_told_and_the_connection_lives(good: Talker, code: int) -> None:
    answer = await good.ask(code, {"topic": "T"})
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == f" request type {code} not supported"


async def test_answers_that_nobody_asked_for_are_passed_over(good: Talker) -> None:
    good.send(
        Command(V2, opaque=3, flag=FLAG_RESPONSE, ext_fields={"b": "T"}, body=b"x"),
        Command(0, opaque=4, flag=FLAG_RESPONSE),
    )
    answer = await good.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    assert answer.ext["offset"] == "0"


@pytest.mark.parametrize("queue_id", [-1, -(2**31), 4, 2**31 - 1])
async def test_queues_that_do_not_exist_are_empty(broker: Broker, good: Talker, queue_id: int) -> None:
    fields = {"topic": "Good", "queueId": str(queue_id)}
    queues = broker.parts.store.topics.queue_ids("Good")
    for code, name, value in (
        (RequestCode.GET_MAX_OFFSET, "offset", "0"),
        (RequestCode.GET_MIN_OFFSET, "offset", "0"),
        (RequestCode.GET_EARLIEST_MSG_STORETIME, "timestamp", "-1"),
    ):
        answer = await good.ask(code, fields)
        assert (answer.code, answer.ext[name]) == (0, value)
    assert broker.parts.store.topics.queue_ids("Good") == queues


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (RequestCode.HEART_BEAT, b""),
        (RequestCode.HEART_BEAT, b"{"),
        (RequestCode.HEART_BEAT, b"[]"),
        (RequestCode.HEART_BEAT, b'{"clientID":5}'),
        (RequestCode.HEART_BEAT, b'{"clientID":"x","consumerDataSet":[{"groupName":7}]}'),
        (RequestCode.HEART_BEAT, b"[" * 200_000),
        (RequestCode.LOCK_BATCH_MQ, b""),
        (RequestCode.LOCK_BATCH_MQ, b'{"mqSet":7}'),
        (RequestCode.CHECK_CLIENT_CONFIG, b"\xff\xfe"),
    ],
)
async def test_bodies_that_are_not_what_they_should_be_are_told(good: Talker, code: int, body: bytes) -> None:
    answer = await good.ask(code, {}, body)
    assert answer.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER)
    assert len(answer.remark or "") < 1000


# --- clients that take too much -----------------------------------------------------------------------------------


async def test_a_client_that_never_reads_stops_only_itself(broker: Broker, good: Talker) -> None:
    frame = encode_command(Talker.pull_request("Good"))
    await good.put("Good", bytes(100_000))
    async with talking(broker) as greedy:
        greedy.writer.transport.set_write_buffer_limits(high=0)
        sent = 0
        for _ in range(2000):
            greedy.writer.write(frame * 50)
            sent += 50
            try:
                await asyncio.wait_for(greedy.writer.drain(), 0.25)
            except TimeoutError:
                break
        else:
            pytest.fail("the broker read on without end")
        (connection,) = [c for c in server_connections(broker) if c.reading_paused]
        assert connection.transport.get_write_buffer_size() < 64 << 20
        assert (await good.put("Good", b"served")).code == 0
        assert sent <= 100_000


async def test_a_hundred_thousand_sends_in_a_row_are_all_answered(tmp_path: Path) -> None:
    count = 100_000
    async with (
        running_broker(tmp_path, mapped_file_size_commit_log=32 << 20) as broker,
        talking(broker) as eager,
        talking(broker) as good,
    ):
        data = b"".join(
            encode_command(send_request("T", b"x", opaque=i, queue_id=i % 4)) for i in range(1000)
        )
        answered = 0
        in_flight_max = 0
        writing = asyncio.create_task(pour(eager, data, count // 1000))
        while answered < count:
            await eager.receive()
            answered += 1
            if answered % 1000 == 0:
                in_flight_max = max(in_flight_max, *(c.in_flight for c in server_connections(broker)))
                if answered % 20_000 == 0:
                    assert (await good.put("Good")).code == 0
        await writing
        # The bound, and what one more read may bring.
        assert in_flight_max <= 4096 + 2000
        ends = [broker.parts.store.reading.max_offset("T", queue_id) for queue_id in range(4)]
        assert ends == [count // 4] * 4


async def pour(client: Talker, data: bytes, times: int) -> None:
    for _ in range(times):
        client.writer.write(data)
        await client.writer.drain()


def server_connections(broker: Broker) -> list[Any]:
    return list(broker.parts.server.connections)


async def test_a_client_that_sends_byte_by_byte_is_served_and_holds_nobody_up(
    broker: Broker, good: Talker
) -> None:
    frame = encode_command(send_request("Slow", b"patience", opaque=9))
    async with talking(broker) as slow:
        for i, byte in enumerate(frame):
            slow.writer.write(bytes((byte,)))
            await slow.writer.drain()
            if i % 20 == 0:
                assert (await good.put("Good", b"quick")).code == 0
        assert (await slow.receive()).code == 0
    assert [one.body for one in await good.records("Slow")] == [b"patience"]


async def test_many_idle_and_half_spoken_connections_hold_nobody_up(broker: Broker, good: Talker) -> None:
    frame = encode_command(send_request("T", b"x"))
    peers = []
    for i in range(200):
        _, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        writer.write(frame[: i % len(frame)])
        peers.append(writer)
    assert (await good.put("Good", b"served")).code == 0
    for writer in peers:
        writer.transport.abort()


async def test_more_connections_than_allowed_are_turned_away(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, max_connections=2) as broker,
        talking(broker) as one,
        talking(broker) as two,
    ):
        assert (await one.put("T")).code == 0
        assert (await two.put("T")).code == 0
        async with talking(broker) as three:
            assert await three.is_closed_by_the_server()
        assert (await one.put("T")).code == 0
