"""Slow and hostile peers against a real broker with small bounds: the bound holds, the log names the peer, and a
client that was there before sends and pulls as if nothing happened.

Touches  a broker in this process, real sockets. No test waits for a time bound: the sweep is given its clock.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_broker.broker import Broker
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import FLAG_ONEWAY, Command, encode_command
from aerobee_remoting.ends.server import RemotingServer
from aerobee_remoting.exchange.connection import Connection
from system.running import Talker, running_broker, send_request, talking

TOPIC = "Good"
MIB = 1 << 20


def server_of(broker: Broker) -> RemotingServer:
    return broker.parts.server


def connection_of(broker: Broker, peer: Talker) -> Connection:
    """The broker's end of a connection."""
    address = peer.writer.get_extra_info("sockname")
    return next(one for one in server_of(broker).connections if one.peer == f"{address[0]}:{address[1]}")


async def until(condition: Any) -> None:
    """Let the loop turn until it holds: the broker is in this process."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # the broker sets no event for it
            await asyncio.sleep(0)


async def is_served(good: Talker) -> None:
    """A send and a pull of somebody else, each answered at once."""
    async with asyncio.timeout(5):
        sent = await good.put(TOPIC, b"still here")
        assert sent.code == 0
        pulled = await good.pull(TOPIC, int(sent.ext["queueOffset"]))
        assert (pulled.code, b"still here" in pulled.body) == (0, True)


def limits_logged(logs: list[Any]) -> list[tuple[str, str]]:
    return [(one["limit"], one["peer"]) for one in logs if one["event"] == "remoting.limit_reached"]


@asynccontextmanager
async def attacked(root: Path, **bounds: Any) -> AsyncIterator[tuple[Broker, Talker, Talker, list[Any]]]:
    """A broker with small bounds, a good client, a hostile one, and the log. The good one is served at the end."""
    with capture_logs() as logs:
        async with running_broker(root / "store", **bounds) as broker:
            async with talking(broker) as good, talking(broker) as hostile:
                await is_served(good)
                yield broker, good, hostile, logs
                await is_served(good)
            broker.parts.store.check()


def name_of(peer: Talker) -> str:
    host, port = peer.writer.get_extra_info("sockname")
    return f"{host}:{port}"


# --- peers that do not read ---------------------------------------------------------------------------------------


async def fill(good: Talker, count: int, size: int) -> None:
    for _ in range(count):
        assert (await good.put("Large", b"x" * size)).code == 0


async def test_answers_to_one_read_are_made_as_they_are_read(tmp_path: Path) -> None:
    """A read of 64 KiB holds 200 pulls, and each may ask for 256 KiB: 50 MiB for one read, if all were answered."""
    async with attacked(tmp_path, max_write_buffer_bytes=65536) as (broker, good, hostile, _):
        await fill(good, 4, 60_000)
        pull = Talker.pull_request("Large")
        connection = connection_of(broker, hostile)
        hostile.writer.transport.pause_reading()  # type: ignore[attr-defined]
        hostile.send(*[pull] * 400)
        await until(lambda: connection.is_congested)
        assert connection.buffered_size < 2 * MIB
        await is_served(good)
        assert connection.buffered_size < 2 * MIB
        hostile.writer.transport.resume_reading()  # type: ignore[attr-defined]
        answers = [await hostile.receive() for _ in range(400)]
        assert {answer.code for answer in answers} == {0}  # nobody lost one by being slow


async def test_a_consumer_that_never_reads_is_cut_off(tmp_path: Path) -> None:
    async with attacked(tmp_path, max_write_buffer_bytes=65536) as (broker, good, hostile, logs):
        await fill(good, 4, 60_000)
        connection = connection_of(broker, hostile)
        hostile.writer.transport.pause_reading()  # type: ignore[attr-defined]
        hostile.send(*[Talker.pull_request("Large")] * 200)
        await until(lambda: connection.is_congested)
        await is_served(good)
        loop = asyncio.get_running_loop()
        server_of(broker).sweep(loop.time() + 29)
        assert not connection.is_closed
        connection_of(broker, good).last_active = loop.time() + 31
        server_of(broker).sweep(loop.time() + 31)
        await until(lambda: connection.is_closed)
        dropped = [one for one in logs if one["event"] == "remoting.connection_dropped"]
        assert [(one["peer"], "did not read" in one["reason"]) for one in dropped] == [
            (name_of(hostile), True)
        ]


async def test_held_pulls_of_a_peer_that_does_not_read_pile_up_nothing(tmp_path: Path) -> None:
    """One message wakes every pull that waits for it, and each would get a copy."""
    async with attacked(tmp_path, max_write_buffer_bytes=65536) as (broker, good, hostile, _):
        await fill(good, 1, 1)
        hostile.send(*[Talker.pull_request("Large", 1, sysFlag=6)] * 1000)
        pulls = broker.parts.pulls
        await until(lambda: len(pulls.held) == 1000)
        connection = connection_of(broker, hostile)
        hostile.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await fill(good, 1, 60_000)
        await until(lambda: len(pulls.held) == 0)
        assert connection.buffered_size < 4 * MIB  # of 60 MB
        await is_served(good)


async def test_what_is_pushed_to_a_peer_that_does_not_read_is_bounded(tmp_path: Path) -> None:
    bounds = {"max_write_buffer_bytes": 65536, "max_unsent_bytes": 100_000}
    async with attacked(tmp_path, **bounds) as (broker, good, hostile, logs):
        connection = connection_of(broker, hostile)
        hostile.writer.transport.pause_reading()  # type: ignore[attr-defined]
        while not connection.is_closed:
            connection.send_oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g" * 200})
            assert connection.buffered_size < 200_000
            await asyncio.sleep(0)
        assert limits_logged(logs) == [("maxUnsentBytes", name_of(hostile))]
        await is_served(good)


async def test_many_connections_share_one_bound_of_memory(tmp_path: Path) -> None:
    async with (
        attacked(tmp_path, max_buffered_bytes=4 * MIB) as (broker, good, _, logs),
        AsyncExitStack() as stack,
    ):
        half = encode_command(Command(RequestCode.SEND_MESSAGE, body=b"x" * MIB))[:-1]
        peers = [await stack.enter_async_context(talking(broker)) for _ in range(6)]
        for peer in peers:
            peer.writer.write(half)
        server = server_of(broker)
        await until(lambda: sum(one.buffered_size for one in server.connections) > 6 * MIB)
        server.sweep(asyncio.get_running_loop().time())
        await is_served(good)
        await until(lambda: sum(one.buffered_size for one in server.connections) <= 4 * MIB)
        cut = {peer for limit, peer in limits_logged(logs) if limit == "maxBufferedBytes"}
        assert len(cut) in (2, 3)
        assert cut <= {name_of(peer) for peer in peers}


# --- peers that send slowly, or too much --------------------------------------------------------------------------


async def test_one_byte_in_ten_seconds_ends_after_the_time_for_a_frame(tmp_path: Path) -> None:
    async with attacked(tmp_path, frame_timeout_seconds=60) as (broker, good, hostile, logs):
        connection = connection_of(broker, hostile)
        server = server_of(broker)
        began = asyncio.get_running_loop().time()
        for number, byte in enumerate(encode_command(send_request(TOPIC))[:6]):
            hostile.writer.write(bytes([byte]))
            await until(lambda seen=number: connection.buffered_size == seen + 1)
            server.sweep(began + 10 * number)
            assert not connection.is_closed
        await is_served(good)
        server.sweep(began + 61.5)
        await until(lambda: connection.is_closed)
        (dropped,) = [one for one in logs if one["event"] == "remoting.connection_dropped"]
        assert dropped["peer"] == name_of(hostile)
        assert "whole within 60 s" in dropped["reason"]


@pytest.mark.parametrize("waiting", [True, False], ids=["for the disk", "for nothing"])
async def test_endless_pipelined_requests_leave_room_for_others(tmp_path: Path, waiting: bool) -> None:
    """The others are answered while the flood goes on, and no more of it is in hand than the bound."""
    async with attacked(tmp_path, max_in_flight_per_connection=64) as (broker, good, hostile, _):
        request = send_request("Flood", b"x" * 10) if waiting else Command(RequestCode.GET_CODECS)
        piece = encode_command(request) * 1000
        flooding = True
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while flooding:
                hostile.writer.write(piece)
                sent += 1000
                await hostile.writer.drain()

        async def read() -> None:
            while await hostile.reader.read(1 << 18):
                pass

        tasks = [asyncio.create_task(flood(), name="flood"), asyncio.create_task(read(), name="read")]
        connection = connection_of(broker, hostile)
        try:
            for _ in range(20):
                before = sent
                await is_served(good)
                assert connection.in_flight <= 64 + piece.count(b"opaque")
                assert connection.buffered_size < 8 * MIB
                await until(lambda before=before: sent > before)  # it is a flood still
        finally:
            flooding = False
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert sent >= 20_000


async def test_a_giant_header_ends_the_connection_before_it_is_there(tmp_path: Path) -> None:
    async with attacked(tmp_path, max_header_bytes=256 * 1024) as (broker, good, hostile, logs):
        connection = connection_of(broker, hostile)
        hostile.writer.write(pack(">II", 15 * MIB, 14 * MIB) + b"{" * 1000)
        assert await hostile.is_closed_by_the_server()
        assert connection.is_closed
        (refused,) = [one for one in logs if one["event"] == "remoting.frame_refused"]
        assert refused["peer"] == name_of(hostile)
        assert "header of 14680064 bytes is over the limit of 262144" in refused["reason"]
        await is_served(good)


async def test_connections_of_one_host_are_bounded(tmp_path: Path) -> None:
    async with attacked(tmp_path, max_connections_per_host=6) as (broker, good, _, logs):
        async with AsyncExitStack() as stack:
            for _ in range(4):
                await stack.enter_async_context(talking(broker))
            server = server_of(broker)
            await until(lambda: len(server.connections) == 6)
            for _ in range(5):
                peer = await stack.enter_async_context(talking(broker))
                assert await peer.is_closed_by_the_server()
            assert len(server.connections) == 6
            await is_served(good)
            server.sweep(asyncio.get_running_loop().time())
        logged = [one for one in logs if one["event"].startswith("remoting.connection")]
        assert [one["event"] for one in logged] == [
            "remoting.connection_refused",
            "remoting.connections_refused",
        ]
        assert (
            logged[0]["peer"].startswith("127.0.0.1:"),
            logged[0]["per_host_max"],
            logged[1]["count"],
        ) == (
            True,
            6,
            4,
        )
        await until(lambda: len(server.connections) == 2)
        async with talking(broker) as again:  # there is room again
            await is_served(again)


# --- peers that make the broker's tables grow ---------------------------------------------------------------------


async def test_sends_make_no_more_topics_than_the_bound(tmp_path: Path) -> None:
    async with attacked(tmp_path, max_topics_auto_created=5) as (_, good, hostile, logs):
        codes = [(await hostile.put(f"New{number}")).code for number in range(50)]
        assert codes.count(0) <= 5
        assert set(codes[5:]) == {ResponseCode.TOPIC_NOT_EXIST}
        assert limits_logged(logs) == [("maxTopicsAutoCreated", name_of(hostile))]
        await is_served(good)


async def test_topics_in_all_are_bounded_whoever_makes_them(tmp_path: Path) -> None:
    async with attacked(tmp_path, max_topics=30) as (broker, good, hostile, logs):
        for number in range(60):
            answer = await hostile.make_topic(f"Admin{number}")
            retry = await hostile.put(f"%RETRY%g{number}")
        assert answer.code == retry.code == ResponseCode.TOPIC_NOT_EXIST
        assert "maxTopics" in (answer.remark or "")
        assert len(broker.parts.topics) == 30
        assert limits_logged(logs) == [("maxTopics", name_of(hostile))]
        await is_served(good)


async def test_groups_are_bounded_whoever_makes_them(tmp_path: Path) -> None:
    async with attacked(tmp_path, max_groups=20, max_groups_auto_created=5) as (broker, good, hostile, logs):
        for number in range(40):
            by_use = await hostile.pull(TOPIC, consumerGroup=f"used-{number}")
        assert by_use.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        for number in range(40):
            body = json.dumps({"groupName": f"made-{number}"}).encode()
            made = await hostile.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        assert made.code != 0
        assert len(broker.parts.groups) == 20
        assert limits_logged(logs) == [
            ("maxGroupsAutoCreated", name_of(hostile)),
            ("maxGroups", name_of(hostile)),
        ]
        await is_served(good)


async def test_client_ids_of_a_connection_are_bounded(tmp_path: Path) -> None:
    async with attacked(tmp_path, max_clients_per_connection=10) as (broker, good, hostile, logs):
        consumer = {"groupName": "crowd", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"}
        for number in range(30):
            body = {"clientID": f"c{number}", "consumerDataSet": [consumer], "producerDataSet": []}
            answer = await hostile.ask(RequestCode.HEART_BEAT, body=json.dumps(body).encode())
        assert answer.code == ResponseCode.SYSTEM_BUSY
        for number in range(30):
            body = {"clientID": f"p{number}", "producerDataSet": [{"groupName": "crowd"}]}
            answer = await hostile.ask(RequestCode.HEART_BEAT, body=json.dumps(body).encode())
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert broker.parts.consumers.member_count == 10
        assert broker.parts.producers.member_count == 10
        assert limits_logged(logs) == [("maxClientsPerConnection", name_of(hostile))]
        await is_served(good)


async def test_held_pulls_of_one_peer_leave_room_for_others(tmp_path: Path) -> None:
    bounds = {"max_held_pulls": 100, "max_held_pulls_per_connection": 20}
    async with attacked(tmp_path, **bounds) as (broker, good, hostile, logs):
        end = int((await good.put(TOPIC)).ext["queueOffset"]) + 1
        hostile.send(*[Talker.pull_request(TOPIC, end, sysFlag=6)] * 500)
        refused = [await hostile.receive() for _ in range(480)]
        assert {answer.code for answer in refused} == {ResponseCode.SYSTEM_BUSY}
        pulls = broker.parts.pulls
        assert len(pulls.held) == 20
        assert limits_logged(logs) == [("maxHeldPullsPerConnection", name_of(hostile))]
        # Somebody else's pull is held, and woken.
        waiting = asyncio.create_task(good.pull(TOPIC, end, sysFlag=6))
        await until(lambda: len(pulls.held) == 21)
        async with talking(broker) as sender:
            assert (await sender.put(TOPIC, b"wakes")).code == 0
        assert b"wakes" in (await waiting).body


async def test_locks_need_a_group_that_is_there(tmp_path: Path) -> None:
    """Else every made-up group would be kept for a minute."""
    async with attacked(tmp_path, max_groups_auto_created=5) as (broker, _, hostile, __):
        for number in range(50):
            queue = {"topic": TOPIC, "brokerName": "test-a", "queueId": 0}
            body = {"consumerGroup": f"g{number}", "clientId": "me", "mqSet": [queue]}
            await hostile.ask(RequestCode.LOCK_BATCH_MQ, body=json.dumps(body).encode())
        assert len(broker.parts.locks) <= 5


async def test_a_hundred_connections_at_once_that_say_nonsense(tmp_path: Path) -> None:
    async with attacked(tmp_path, max_connections=200) as (broker, good, _, __):
        peers = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(100)]
        oneway = encode_command(Command(9999, flag=FLAG_ONEWAY))
        for number, peer in enumerate(peers):
            peer.sendall((b"GET / HTTP/1.1\r\n\r\n", oneway * 100, b"\xff" * 50, oneway[:7])[number % 4])
        await is_served(good)
        for peer in peers:
            peer.close()
        await until(lambda: len(server_of(broker).connections) == 2)
