"""A broker that may open few files: more queues than that are served, over restarts, whatever connections there are.

Touches  broker processes whose limit of open files is lowered, a store folder, local TCP ports.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from aerobee_proto.codes import ResponseCode
from system.kills import CONNECTION_LOST, BrokerProcess, start
from system.running import Talker, send_request, talking

WINDOW = 256
START_TIMEOUT_S = 900  # a start opens each queue


class Size(NamedTuple):
    """How many files the broker may open, and what it is given to do."""

    files: int
    topics: int
    queues: int
    connections: int

    @property
    def places(self) -> list[tuple[str, int]]:
        """Every queue."""
        return [(f"T{topic}", queue) for topic in range(self.topics) for queue in range(self.queues)]


SMALL = Size(files=300, topics=300, queues=8, connections=220)
LARGE = Size(files=4096, topics=12_500, queues=8, connections=20_000)
SIZES = [
    pytest.param(SMALL, marks=pytest.mark.slow, id="2,400 queues by 300 files"),
    pytest.param(
        LARGE,
        marks=[pytest.mark.long, pytest.mark.alone, pytest.mark.timeout(0)],
        id="100,000 queues by 4,096 files",
    ),
]


@asynccontextmanager
async def limited(store: Path, size: Size) -> AsyncIterator[BrokerProcess]:
    settings = {
        "maxConnections": size.connections,
        "maxConnectionsPerHost": size.connections,
        "maxTopicsAutoCreated": size.topics + 10,
        "mappedFileSizeCommitLog": 1 << 26,
        "mappedFileSizeConsumeQueue": 6_000_000,
        "defaultTopicQueueNums": size.queues,
        "flushIntervalConsumeQueue": 1000,
    }
    prefix = ["sh", "-c", f'ulimit -n {size.files}; exec "$@"', "sh"]
    process = await start(store, settings, prefix=prefix, timeout_s=START_TIMEOUT_S)
    try:
        yield process
    finally:
        process.program.kill()


async def put_everywhere(talker: Talker, size: Size, body: bytes) -> None:
    """One message to each queue, many under way."""
    places = size.places
    for begin in range(0, len(places), WINDOW):
        some = places[begin : begin + WINDOW]
        requests = [
            send_request(topic, body, queue_id=queue, opaque=number, defaultTopicQueueNums=str(size.queues))
            for number, (topic, queue) in enumerate(some)
        ]
        talker.send(*requests)
        answers = await talker.answers(len(some))
        assert {(answer.code, answer.remark) for answer in answers.values()} == {(0, None)}


async def check_everywhere(talker: Talker, size: Size, bodies: Sequence[bytes], step: int = 1) -> None:
    for topic, queue in size.places[::step]:
        found = await talker.records(topic, queueId=queue)
        assert [record.body for record in found] == list(bodies)


def descriptors(process: BrokerProcess) -> int:
    return sum(1 for _ in Path(f"/proc/{process.program.pid}/fd").iterdir())


def maps(process: BrokerProcess) -> int:
    return len(Path(f"/proc/{process.program.pid}/maps").read_text().splitlines())


def warnings(process: BrokerProcess) -> list[dict[str, Any]]:
    """What it complains of, but for turns that took long: on a busy machine any turn may."""
    logged = [event for event in process.events() if event["level"] in ("warning", "error")]
    return [event for event in logged if event["event"] != "remoting.loop_held"]


@pytest.mark.parametrize("size", SIZES)
async def test_more_queues_than_files_may_be_open_are_served_over_restarts(
    tmp_path: Path, size: Size
) -> None:
    """With 200 queues and 300 files the broker ended as if its disk had failed, with exit code 74."""
    assert len(size.places) > 5 * size.files
    sample = len(size.places) // 2000 + 1
    async with limited(tmp_path, size) as process:
        assert [one["event"] for one in warnings(process)] == ["broker.connections_limited"]
        async with talking(process.port) as talker:
            await put_everywhere(talker, size, b"one")
            await check_everywhere(talker, size, [b"one"], sample)
        assert descriptors(process) <= size.files
        assert maps(process) < 60_000
        # Of very many lines the first are not kept; on a busy machine anything may hold the loop.
        logged = {one["event"] for one in warnings(process)}
        assert logged <= {"broker.connections_limited", "remoting.loop_held"}
        process.program.process.send_signal(signal.SIGKILL)
        await process.ended()
    async with limited(tmp_path, size) as process:
        async with talking(process.port) as talker:
            await check_everywhere(talker, size, [b"one"], sample)
            await put_everywhere(talker, size, b"two")
        process.program.process.send_signal(signal.SIGTERM)
        assert await process.ended() == 0
    async with limited(tmp_path, size) as process:
        async with talking(process.port) as talker:
            await check_everywhere(talker, size, [b"one", b"two"], sample)
        assert descriptors(process) <= size.files
        process.program.process.send_signal(signal.SIGTERM)
        assert await process.ended() == 0


@pytest.mark.slow
async def test_connections_do_not_take_what_the_store_needs(tmp_path: Path) -> None:
    """300 idle connections, then ordinary traffic: refusals, files that could not be saved, and in most runs the end
    of the broker."""
    async with limited(tmp_path, SMALL) as process, AsyncExitStack() as stack:
        good = await stack.enter_async_context(talking(process.port))
        assert (await good.put("T0")).code == 0
        for _ in range(300):
            await stack.enter_async_context(talking(process.port))
        for topic in range(60):
            for queue in range(4):
                answer = await good.put(f"T{topic}", queue_id=queue)
                assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
        assert descriptors(process) <= SMALL.files
        logged = {one["event"] for one in warnings(process)}
        assert logged - {"remoting.connections_refused"} == {
            "broker.connections_limited",
            "remoting.connection_refused",
        }
        process.program.process.send_signal(signal.SIGTERM)
        assert await process.ended() == 0
    async with limited(tmp_path, SMALL) as process:
        (logged_once,) = warnings(process)
        assert (logged_once["wanted"], logged_once["connections"], logged_once["open_files_limit"]) == (
            220,
            150,
            300,
        )
        async with talking(process.port) as again:
            for topic in range(0, 60, 7):
                assert len(await again.records(f"T{topic}", queueId=3)) == 1


@pytest.mark.slow
async def test_a_connection_too_many_is_closed_and_one_that_leaves_makes_room(tmp_path: Path) -> None:
    async with limited(tmp_path, SMALL) as process, AsyncExitStack() as stack:
        held = [await stack.enter_async_context(talking(process.port)) for _ in range(150)]
        assert (await held[-1].put("T0")).code == 0
        async with talking(process.port) as refused:
            with pytest.raises(CONNECTION_LOST):
                await refused.put("T0")
        held[0].writer.transport.abort()
        async with asyncio.timeout(20):
            while True:
                async with talking(process.port) as next_one:
                    try:
                        assert (await next_one.put("T0")).code == 0
                        break
                    except CONNECTION_LOST:
                        continue
