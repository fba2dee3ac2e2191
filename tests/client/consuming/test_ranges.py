"""Ranges of queues: every record of them once and in order, whatever brokers do meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aerobee import BrokerRefused, Client, InvalidMessage, MessageQueue, NoRoute, TagFilter
from aerobee.consuming.ranges import Piece, QueueRange, RangeConfig, Ranges
from aerobee_proto.bodies import ConsumeQueueData, QueryConsumeQueueBody
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.properties import encode_properties
from aerobee_proto.records import decode_records
from aerobee_remoting.exchange.handlers import Response
from client.fakes import FakeCluster, fake_cluster, hang_up

PULL = RequestCode.PULL_MESSAGE
Q0, Q1 = MessageQueue("T", "b-a", 0), MessageQueue("T", "b-a", 1)


@asynccontextmanager
async def filled(count: int = 500, **config: Any) -> AsyncIterator[tuple[FakeCluster, Ranges]]:
    """A cluster with `count` messages in queue 0 and ten in queue 1."""
    async with fake_cluster(queues=2) as cluster:
        for number in range(count):
            cluster.broker.append("T", 0, b"%d" % number, encode_properties({"TAGS": "ab"[number % 2]}))
        for number in range(10):
            cluster.broker.append("T", 1, b"other %d" % number)
        async with Client(cluster.nameserver.addr) as mq:
            yield cluster, mq.ranges(RangeConfig(**{"retry_s": 0.001, "give_up_s": 0.05, **config}))


async def read(
    ranges: Ranges, *expected: QueueRange, size: int = 1000, filter: TagFilter | None = None
) -> list[Piece]:
    reader = ranges.reader(expected, filter)
    found = []
    try:
        while pieces := await reader.next(size):
            found += pieces
    finally:
        await reader.close()
    return found


def bodies(pieces: list[Piece]) -> list[bytes]:
    return [record.body for piece in pieces for record in decode_records(bytes(piece.body))]


@pytest.mark.parametrize("window", [1, 8])
@pytest.mark.parametrize("stripe_bytes", [1, 3000, 1 << 20])
async def test_every_message_once_in_order(window: int, stripe_bytes: int) -> None:
    async with filled(window=window, stripe_bytes=stripe_bytes) as (_, ranges):
        pieces = await read(ranges, QueueRange(Q0, 3, 470), QueueRange(Q1, 0, 10), QueueRange(Q0, 490, 491))
    expected = [b"%d" % n for n in range(3, 470)] + [b"other %d" % n for n in range(10)] + [b"490"]
    assert bodies(pieces) == expected
    ends = {Q0: 3, Q1: 0}
    for piece in pieces:
        assert piece.begin == ends[piece.queue] or piece.begin == 490
        ends[piece.queue] = piece.end


async def test_several_pulls_are_on_their_way() -> None:
    async with filled(2000, window=4) as (cluster, ranges):
        hold = cluster.broker.hold(PULL)
        reader = ranges.reader([QueueRange(Q0, 0, 2000)])
        task = asyncio.create_task(reader.next(1))
        await hold.wait_for(4)
        assert [ext["queueOffset"] for ext in cluster.broker.asked(PULL)] == ["0", "256", "512", "768"]
        cluster.broker.always(PULL, None)
        hold.let_go()
        assert bodies(await task)[:32] == [b"%d" % n for n in range(32)]
        await reader.close()


async def test_a_filter_ends_at_the_end_of_the_range() -> None:
    """The broker looks past the end for enough messages that pass; those belong to nobody here."""
    async with filled() as (cluster, ranges):
        record = cluster.broker.queues["T", 0]
        answer = Response(
            ext={"nextBeginOffset": "40", "minOffset": "0", "maxOffset": "500"},
            body=b"".join(record[10:40:2]),
        )
        cluster.broker.script(PULL, answer)
        (piece,) = await read(ranges, QueueRange(Q0, 10, 21), filter=TagFilter("a"))
    assert bodies([piece]) == [b"%d" % n for n in range(10, 21, 2)]
    assert (piece.begin, piece.end, piece.lost) == (10, 21, False)


@pytest.mark.parametrize(
    "trouble", [hang_up, Response(ResponseCode.SYSTEM_BUSY, "busy"), Response(ResponseCode.PULL_NOT_FOUND)]
)
async def test_what_passes_is_waited_for(trouble: Any) -> None:
    async with filled(100, give_up_s=30) as (cluster, ranges):
        cluster.broker.script(PULL, trouble, trouble)
        assert bodies(await read(ranges, QueueRange(Q0, 0, 100))) == [b"%d" % n for n in range(100)]


async def test_what_does_not_pass_is_raised_behind_what_was_read() -> None:
    async with filled(100) as (_, ranges):
        reader = ranges.reader([QueueRange(Q0, 0, 100), QueueRange(Q1, 0, 50)])
        assert len(bodies(await reader.next(1))) == 100
        with pytest.raises(BrokerRefused, match=r"the queue ends at 10"):
            await reader.next(1)
        await reader.close()


async def test_a_refusal_is_raised_at_once() -> None:
    async with filled(give_up_s=60) as (cluster, ranges):
        cluster.broker.always(PULL, Response(ResponseCode.NO_PERMISSION, "not for you"))
        with pytest.raises(BrokerRefused, match="not for you"):
            await read(ranges, QueueRange(Q0, 0, 10))


async def test_what_a_broker_has_deleted_is_told() -> None:
    moved = Response(
        ResponseCode.PULL_OFFSET_MOVED, ext={"nextBeginOffset": "60", "minOffset": "60", "maxOffset": "500"}
    )
    async with filled() as (cluster, ranges):
        cluster.broker.script(PULL, moved)
        pieces = await read(ranges, QueueRange(Q0, 0, 100))
    assert [(piece.begin, piece.end) for piece in pieces if piece.lost] == [(0, 60)]
    assert bodies(pieces) == [b"%d" % n for n in range(60, 100)]


async def test_looking_at_queues() -> None:
    async with filled() as (cluster, ranges):
        assert await ranges.queues("T") == (Q0, Q1)
        assert await ranges.bounds(Q0) == (0, 500)
        assert await ranges.max_offset(Q1) == 10
        assert ranges.has_master(Q0)
        entries = [ConsumeQueueData(physic_offset=0, physic_size=size, tags_code=0) for size in (100, 230)]
        body = QueryConsumeQueueBody(queue_data=entries).to_bytes()
        cluster.broker.serve(RequestCode.QUERY_CONSUME_QUEUE, lambda _: Response(body=body))
        assert await ranges.sizes(Q0, 5, 2) == [100, 230]
        assert await ranges.committed("g", Q0) is None
        await ranges.commit("g", Q0, 17)
        assert await ranges.committed("g", Q0) == 17


async def test_a_topic_that_has_gone_is_noticed() -> None:
    async with filled() as (cluster, ranges):
        assert await ranges.queues("T") == (Q0, Q1)
        del cluster.nameserver.routes["T"]
        with pytest.raises(NoRoute, match="does not know the topic"):
            await ranges.queues("T")


async def test_a_range_that_is_none() -> None:
    async with filled(1) as (_, ranges):
        assert await read(ranges, QueueRange(Q0, 1, 1)) == []
        with pytest.raises(InvalidMessage, match="has no range 5 to 3"):
            ranges.reader([QueueRange(Q0, 5, 3)])
