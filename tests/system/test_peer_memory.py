"""Every way in which a client makes the broker keep something: it is counted, refused at the bound of a connection and
at that of all, and given back. And what is counted is weighed: it must not be less than what Python really keeps.

Touches  a broker in this process, real sockets. A new way to keep something for a peer belongs into `WAYS`.
"""

import asyncio
import gc
import json
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_broker.broker import Broker
from aerobee_proto.codes import RequestCode
from aerobee_proto.frames import FLAG_ONEWAY, Command, encode_command
from aerobee_remoting.exchange.connection import BUFFERS
from aerobee_remoting.peers.peer_memory import PEER_LIMIT, TOTAL_LIMIT, PeerMemory
from system.running import Talker, running_broker, talking
from system.test_hostile_peers import connection_of, is_served, limits_logged, name_of, server_of, until

KIB, MIB = 1 << 10, 1 << 20
GROUP, TOPIC = "test-group", "Good"
EMPTY = 1  # a queue that nobody sends to


def memory_of(broker: Broker) -> PeerMemory:
    return broker.memory


# --- ways to make a broker keep something. Each sends one request; the code of a refusal comes back ---------------


def pull(number: int) -> Command:
    return Talker.pull_request(TOPIC, queueId=EMPTY, sysFlag=6, suspendTimeoutMillis=100_000)


def tagged_pull(number: int) -> Command:
    tags = " || ".join(f"{number}-{tag}" for tag in range(100))
    return Talker.pull_request(
        TOPIC, queueId=EMPTY, sysFlag=6, suspendTimeoutMillis=100_000, subscription=tags
    )


def pop(number: int, code: int = RequestCode.POP_MESSAGE, **fields: object) -> Command:
    ext = {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": EMPTY,
        "maxMsgNums": 32,
        "invisibleTime": 60_000,
        "pollTime": 100_000,
        "bornTime": 0,
        "initMode": 1,
        **fields,
    }
    return Command(code, ext_fields={name: str(value) for name, value in ext.items()})


def notification(number: int) -> Command:
    return pop(number, RequestCode.NOTIFICATION)


def heartbeat(client: str, **body: object) -> Command:
    return Command(RequestCode.HEART_BEAT, body=json.dumps({"clientID": client, **body}).encode())


def consumer(group: str, *subscriptions: dict[str, object]) -> dict[str, object]:
    return {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": list(subscriptions),
    }


def member(number: int) -> Command:
    return heartbeat(f"c{number}".ljust(500, "-"), consumerDataSet=[consumer(GROUP)])


def producer(number: int) -> Command:
    return heartbeat(f"p{number}".ljust(500, "-"), producerDataSet=[{"groupName": "makers"}])


def subscriptions(number: int) -> Command:
    expected = [
        {
            "topic": f"{number}-{topic}",
            "subString": "x || y",
            "tagsSet": ["x", "y"],
            "codeSet": [1, 2],
            "subVersion": number,
            "expressionType": "TAG",
        }
        for topic in range(20)
    ]
    return heartbeat(f"s{number}", consumerDataSet=[consumer(f"group-{number % 50}", *expected)])


def alike(number: int) -> Command:
    expected: list[dict[str, object]] = [
        {"topic": f"topic-{topic}", "subString": "*"} for topic in range(100)
    ]
    return heartbeat(f"a{number}".ljust(100, "-"), consumerDataSet=[consumer("alike", *expected)])


WAYS: dict[str, tuple[Callable[[int], Command], str]] = {
    "pulls": (pull, "held pulls"),
    "pulls with filters of their own": (tagged_pull, "filters of held pulls"),
    "pops": (pop, "held pops"),
    "notifications": (notification, "held pops"),
    "members of a group": (member, "members of groups"),
    "members that subscribe alike": (alike, "members of groups"),
    "producers": (producer, "members of producer groups"),
    "subscriptions": (subscriptions, "subscriptions of groups"),
    "what members subscribe to": (subscriptions, "subscriptions of members"),
}
WIDE: dict[str, Any] = {
    "max_held_pulls_per_connection": 10_000_000,
    "max_held_pulls": 10_000_000,
    "max_clients_per_connection": 10_000_000,
    "max_registered_clients": 10_000_000,
    "pop_polling_size": 10_000_000,
    "max_pop_polling_size": 10_000_000,
}


@asynccontextmanager
async def bounded(root: Path, **bounds: Any) -> AsyncIterator[tuple[Broker, Talker, list[Any]]]:
    """A broker, a good client that is served before and after, and the log."""
    with capture_logs() as logs:
        async with running_broker(root / "store", **(WIDE | bounds)) as broker, talking(broker) as good:
            await is_served(good)
            yield broker, good, logs
            await is_served(good)


async def keep(peer: Talker, make: Callable[[int], Command], numbers: range) -> None:
    """Send these requests and wait until all of them were handled."""
    for begin in range(0, len(numbers), 10):  # little at once: what is read ahead counts too
        await keep_some(peer, [make(number) for number in numbers[begin : begin + 10]])


async def keep_some(peer: Talker, commands: list[Command]) -> None:
    for number, command in enumerate(commands):
        command.opaque = 10_000_000 + number
    peer.send(*commands)
    peer.opaque += 1
    # Answered in order: nobody serves it, so it overtakes nothing.
    peer.send(Command(9999, opaque=peer.opaque))
    await peer.answer_to(peer.opaque)


@pytest.mark.parametrize(("make", "kind"), WAYS.values(), ids=WAYS)
async def test_one_connection_fills_its_share_and_no_more(
    make: Callable[[int], Command], kind: str, tmp_path: Path
) -> None:
    """Held requests, subscriptions and filters were bounded by count, so bounds multiplied to terabytes."""
    share = 256 * KIB
    async with bounded(tmp_path, max_peer_memory_bytes_per_connection=share) as (broker, _, logs):
        memory = memory_of(broker)
        before = kept_in(memory)
        async with talking(broker) as hostile, talking(broker) as other:
            for begin in range(0, 2000, 100):
                await keep(hostile, make, range(begin, begin + 100))
                assert memory.of(connection_of(broker, hostile)) - waiting(broker) <= share
            assert memory.of(connection_of(broker, hostile)) > share * 0.8
            assert memory.kinds[kind] > before.get(kind, 0)
            assert limits_logged(logs) == [(PEER_LIMIT, name_of(hostile))]
            await keep(other, make, range(10_000, 10_002))  # its own share is untouched
            assert limits_logged(logs) == [(PEER_LIMIT, name_of(hostile))]
        await until(lambda: len(server_of(broker).connections) == 1)
        assert kept_in(memory) == before
        memory.check()
        broker.parts.consumers.check()


@pytest.mark.parametrize(("make", "kind"), WAYS.values(), ids=WAYS)
async def test_all_connections_fill_the_sum_and_no_more(
    make: Callable[[int], Command], kind: str, tmp_path: Path
) -> None:
    async with bounded(tmp_path, max_peer_memory_bytes=MIB) as (broker, _, logs):
        memory = memory_of(broker)
        before = kept_in(memory)
        async with AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(talking(broker)) for _ in range(4)]
            for begin in range(0, 1600, 100):
                await keep(peers[begin // 100 % 4], make, range(begin, begin + 100))
                assert memory.total - waiting(broker) <= MIB
            assert memory.kinds[kind] > before.get(kind, 0)
            assert {limit for limit, _ in limits_logged(logs)} == {TOTAL_LIMIT}
        await until(lambda: len(server_of(broker).connections) == 1)
        assert kept_in(memory) == before
        memory.check()


def waiting(broker: Broker) -> int:
    """Bytes of buffers: requests that wait for their turn may come on top of a share that is full."""
    return memory_of(broker).kinds[BUFFERS]


def kept_in(memory: PeerMemory) -> dict[str, int]:
    """What is kept, apart from the buffers of the moment and the cache of filters."""
    passing = ("filters", BUFFERS)
    return {kind: size for kind, size in memory.kinds.items() if size and kind not in passing}


@pytest.mark.parametrize(("make", "kind"), WAYS.values(), ids=WAYS)
async def test_what_is_counted_is_not_less_than_what_is_kept(
    make: Callable[[int], Command], kind: str, tmp_path: Path
) -> None:
    async with bounded(tmp_path) as (broker, _, __), talking(broker) as peer:
        memory = memory_of(broker)
        await keep(peer, make, range(5000, 5010))
        gc.collect()
        counted = memory.total
        tracemalloc.start()
        try:
            real = tracemalloc.get_traced_memory()[0]
            await keep(peer, make, range(200))
            gc.collect()
            real = tracemalloc.get_traced_memory()[0] - real
        finally:
            tracemalloc.stop()
        counted = memory.total - counted
        assert real / 1.1 < counted, f"{real // 200} bytes each, counted are {counted // 200}"
        assert counted < 8 * real + 100 * KIB, f"{real // 200} bytes each, counted are {counted // 200}"


# --- buffers ------------------------------------------------------------------------------------------------------


async def test_half_a_frame_is_counted_and_given_back(tmp_path: Path) -> None:
    async with bounded(tmp_path) as (broker, _, __), talking(broker) as peer:
        memory = memory_of(broker)
        frame = encode_command(Command(RequestCode.HEART_BEAT, body=b"x" * MIB))
        peer.writer.write(frame[:-1])
        await until(lambda: memory.kinds["buffers of connections"] == len(frame) - 1)
        peer.writer.write(frame[-1:])
        await until(lambda: memory.kinds["buffers of connections"] == 0)
        peer.writer.write(frame[:-1])
        await until(lambda: memory.kinds["buffers of connections"] == len(frame) - 1)
        peer.writer.transport.abort()
        await until(lambda: memory.kinds["buffers of connections"] == 0)


async def test_a_connection_whose_buffers_pass_its_share_is_cut_off(tmp_path: Path) -> None:
    async with bounded(tmp_path, max_peer_memory_bytes_per_connection=256 * KIB) as (broker, good, logs):
        async with talking(broker) as half, talking(broker) as deaf:
            half.writer.write(encode_command(Command(RequestCode.SEND_MESSAGE, body=b"x" * MIB))[:-1])
            assert await half.is_closed_by_the_server()
            await good.put("Large", b"x" * 60_000)
            deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
            connection = connection_of(broker, deaf)
            requests = b"".join(encode_command(Talker.pull_request("Large")) for _ in range(400))
            deaf.writer.write(requests)
            await until(lambda: connection.is_closed)
            assert limits_logged(logs) == [(PEER_LIMIT, name_of(half)), (PEER_LIMIT, name_of(deaf))]
        await until(lambda: len(server_of(broker).connections) == 1)
        assert memory_of(broker).kinds["buffers of connections"] == 0


async def test_buffers_of_all_make_room_at_once_for_the_sum(tmp_path: Path) -> None:
    async with bounded(tmp_path, max_peer_memory_bytes=4 * MIB) as (broker, _, logs):
        async with AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(talking(broker)) for _ in range(6)]
            for peer in peers:
                peer.writer.write(encode_command(Command(RequestCode.SEND_MESSAGE, body=b"x" * MIB))[:-1])
            await until(lambda: len(limits_logged(logs)) >= 2)  # no sweep was needed
            await until(lambda: memory_of(broker).total <= 5 * MIB)
            assert {limit for limit, _ in limits_logged(logs)} == {TOTAL_LIMIT}
        await until(lambda: len(server_of(broker).connections) == 1)


async def test_nobody_is_cut_off_for_buffers_that_are_empty_by_now(tmp_path: Path) -> None:
    """They are counted now and then: what was handled since counted against whoever had sent it."""
    async with (
        bounded(tmp_path, max_peer_memory_bytes=4 * MIB) as (broker, good, logs),
        talking(broker) as peer,
    ):
        memory, connection = memory_of(broker), connection_of(broker, peer)
        frame = encode_command(Command(RequestCode.HEART_BEAT, body=b"x" * MIB))
        peer.writer.write(frame[:-1])
        await until(lambda: memory.kinds[BUFFERS] == len(frame) - 1)
        memory.take(connection, "held pulls", memory.total_max - memory.total)
        # It is handled, has left something, and the next one comes.
        connection.decoder.feed(frame[-1:] + frame[:100])
        memory.note(connection, "held pulls", 1000)
        connection_of(broker, good).count_buffers()  # and finds that the sum is passed
        await asyncio.sleep(0)
        assert not connection.is_closed
        assert limits_logged(logs) == []
        memory.give(connection, "held pulls", memory.kinds["held pulls"])


# --- what is not kept ---------------------------------------------------------------------------------------------

FILLER = "x" * 200_000


@pytest.mark.parametrize("make", [pull, pop, notification])
async def test_what_waits_keeps_its_typed_header_alone(
    make: Callable[[int], Command], tmp_path: Path
) -> None:
    """A held pull kept its whole frame: 60 requests of 8 MiB took 497 MB, and 100,000 are allowed."""

    def large(number: int) -> Command:
        command = make(number)
        command.ext_fields = (command.ext_fields or {}) | {"filler": FILLER}
        command.remark, command.language = FILLER, FILLER
        return command

    def larger(number: int) -> Command:
        command = make(number)
        command.ext_fields = (command.ext_fields or {}) | {"proxyFrowardClientId": FILLER, "bname": FILLER}
        return command

    async with bounded(tmp_path) as (broker, _, __), talking(broker) as peer:
        await keep(peer, make, range(5))
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            await keep(peer, large, range(20))
            await keep(peer, larger, range(20))
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] - before < len(FILLER)  # of 24 MB
        finally:
            tracemalloc.stop()
        assert len(broker.parts.pulls.held) + len(broker.parts.pop.pops.held) == 45


async def test_a_pop_with_an_endless_attempt_is_refused(tmp_path: Path) -> None:
    """The attempt is kept with its queue, in memory and on disk."""
    async with bounded(tmp_path) as (_, __, ___), talking(_) as peer:
        for command in (pop(1, attemptId=FILLER), pop(1, RequestCode.NOTIFICATION, attemptId=FILLER)):
            assert "attemptId has 200000 characters" in ((await peer.exchange(command)).remark or "")


async def test_members_that_subscribe_alike_keep_it_once(tmp_path: Path) -> None:
    """150 heartbeats with the same 10,000 subscriptions took 529 MB."""
    expected: list[dict[str, object]] = [
        {"topic": f"topic-{number}", "subString": "*"} for number in range(500)
    ]
    async with bounded(tmp_path) as (broker, _, __), AsyncExitStack() as stack:
        memory = memory_of(broker)
        peers = [await stack.enter_async_context(talking(broker)) for _ in range(5)]
        sizes: list[int] = []
        for peer in peers:
            beat = heartbeat(f"client-{len(sizes)}", consumerDataSet=[consumer(GROUP, *expected)])
            assert (await peer.exchange(beat)).code == 0
            sizes.append(memory.kinds["subscriptions of members"])
        assert len(set(sizes)) == 1
        assert [memory.of(connection_of(broker, peer)) > sizes[0] for peer in peers] == [True] * 5
        table = broker.parts.consumers
        group = table.get(GROUP)
        assert group is not None
        assert len({id(one.topics) for one in group.members.values()}) == 1
        table.check()
        # The one whose heartbeat the group's subscriptions are from goes: another one bears them.
        peers[-1].writer.transport.abort()
        await until(lambda: table.member_count == 4)
        table.check()
        assert memory.kinds["subscriptions of groups"] == group.size > 0
        for peer in peers[:4]:
            peer.writer.transport.abort()
        await until(lambda: table.member_count == 0)
        assert kept_in(memory) == {}


async def test_a_refused_heartbeat_changes_nothing(tmp_path: Path) -> None:
    share = 256 * KIB
    async with (
        bounded(tmp_path, max_peer_memory_bytes_per_connection=share) as (broker, _, __),
        talking(broker) as peer,
    ):
        small = consumer(GROUP, {"topic": "T", "subString": "*"})
        await peer.exchange(heartbeat("me", consumerDataSet=[small]))
        kept = kept_in(memory_of(broker))
        many: list[dict[str, object]] = [{"topic": f"t{number}", "subString": "*"} for number in range(300)]
        refused = await peer.exchange(heartbeat("me", consumerDataSet=[consumer(GROUP, *many)]))
        assert PEER_LIMIT in (refused.remark or "")
        refused = await peer.exchange(heartbeat("new", consumerDataSet=[consumer("other", *many)]))
        assert PEER_LIMIT in (refused.remark or "")
        assert kept_in(memory_of(broker)) == kept
        table = broker.parts.consumers
        table.check()
        assert table.get("other") is None
        group = table.get(GROUP)
        assert group is not None
        assert list(group.subscriptions) == ["T"]


async def test_oneway_requests_that_wait_are_counted_too(tmp_path: Path) -> None:
    async with bounded(tmp_path) as (broker, _, __), talking(broker) as peer:
        held = pull(1)
        held.flag = FLAG_ONEWAY
        peer.send(held)
        await until(lambda: memory_of(broker).kinds["held pulls"] > 0)
        peer.writer.transport.abort()
        await until(lambda: memory_of(broker).kinds["held pulls"] == 0)
        await asyncio.sleep(0)
