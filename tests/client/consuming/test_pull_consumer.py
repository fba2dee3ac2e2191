from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aerobee import BrokerRefused, Client, ClientClosed, InvalidMessage, MessageQueue, PullConsumer
from aerobee_proto.bodies import HeartbeatData
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_remoting.exchange.handlers import Response
from client.fakes import FakeCluster, fake_cluster

COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET
Q0, Q1 = (MessageQueue("T", "b-a", queue_id) for queue_id in (0, 1))


@asynccontextmanager
async def consuming(
    group: str = "g", committed: int | None = None, **settings: Any
) -> AsyncIterator[tuple[FakeCluster, PullConsumer]]:
    """A consumer of T, whose queue 0 holds the messages 0 to 9."""
    async with fake_cluster(queues=1) as cluster, Client(cluster.nameserver.addr) as mq:
        for number in range(10):
            cluster.broker.append("T", 0, b"%d" % number)
        if committed is not None:
            cluster.broker.offsets["g", "T", 0] = committed
        async with mq.pull_consumer(group, "T", **settings) as consumer:
            yield cluster, consumer


async def test_a_new_group_starts_where_it_is_told() -> None:
    async with consuming(end="now") as (_, consumer):
        assert [message.body async for message in consumer][:2] == [b"0", b"1"]
    async with consuming(start=8, end="now") as (_, consumer):
        assert [message.body async for message in consumer] == [b"8", b"9"]


async def test_a_known_group_goes_on_where_it_committed() -> None:
    async with consuming(committed=7, start="earliest", end="now") as (_, consumer):
        assert [message.body async for message in consumer] == [b"7", b"8", b"9"]


async def test_commit_covers_the_message_in_hand() -> None:
    async with consuming(end="now") as (cluster, consumer):
        async for message in consumer:
            if message.body == b"4":
                assert await consumer.commit() == {Q0: 5}
                break
        assert cluster.broker.offsets == {("g", "T", 0): 5}
        assert await consumer.committed(Q0) == 5


async def test_commit_covers_the_batch_in_hand_and_is_sent_once() -> None:
    async with consuming(end="now") as (cluster, consumer):
        async for batch in consumer.batches():
            assert await consumer.commit(batch) == {Q0: batch.next_offset}
        assert await consumer.commit() == {}
        assert cluster.broker.offsets == {("g", "T", 0): 10}
        assert len(cluster.broker.asked(COMMIT)) == 1


async def test_leaving_commits_nothing() -> None:
    async with consuming(end="now") as (cluster, consumer):
        assert len([message async for message in consumer]) == 10
    assert cluster.broker.offsets == {}


async def test_a_refused_commit_is_raised_and_tried_again_by_the_next() -> None:
    async with consuming(end="now") as (cluster, consumer):
        await consumer.next_batch()
        cluster.broker.script(COMMIT, Response(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "no such group"))
        with pytest.raises(BrokerRefused, match=r"commit offset 10 of group 'g' in T/b-a/0.*no such group"):
            await consumer.commit()
        assert await consumer.commit() == {Q0: 10}


async def test_seek_by_every_kind_of_place() -> None:
    async with consuming() as (_, consumer):
        for where, first in ((3, b"3"), ("earliest", b"0"), ("2023-11-14T22:13:20.005+00:00", b"5")):
            await consumer.seek(where)
            batch = await consumer.next_batch()
            assert batch is not None
            assert batch[0].body == first
        await consumer.seek(9, Q0)
        assert consumer.positions == {Q0: 9}
        with pytest.raises(InvalidMessage, match="is not being read here"):
            await consumer.seek(0, Q1)


async def test_the_group_is_registered_before_it_reads_and_unregistered_after() -> None:
    async with consuming(tags="new || old") as (cluster, consumer):
        beats = [body for code, _, body in cluster.broker.requests if code == RequestCode.HEART_BEAT]
        data = HeartbeatData.from_bytes(beats[0])
        (group,) = data.consumer_data_set
        assert (group.group_name, group.consume_type) == ("g", "CONSUME_ACTIVELY")
        (subscription,) = group.subscription_data_set
        assert (subscription.topic, subscription.tags_set) == ("T", frozenset({"new", "old"}))
        assert consumer.queues == (Q0,)
        codes = [code for code, _, _ in cluster.broker.requests]
        pulls = codes.index(RequestCode.PULL_MESSAGE) if RequestCode.PULL_MESSAGE in codes else len(codes)
        assert codes.index(RequestCode.HEART_BEAT) < pulls
    (goodbye,) = await cluster.broker.wait_asked(RequestCode.UNREGISTER_CLIENT)
    assert (goodbye["clientID"], goodbye["consumerGroup"]) == (data.client_id, "g")


async def test_a_consumer_outside_its_block_says_so() -> None:
    async with consuming() as (_, consumer):
        pass
    with pytest.raises(ClientClosed):
        await consumer.next_batch()
    with pytest.raises(ClientClosed):
        await consumer.commit()
    with pytest.raises(ClientClosed):
        await consumer.__aenter__()


async def test_an_illegal_group_is_refused() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        with pytest.raises(InvalidMessage, match="group name"):
            mq.pull_consumer("a b", "T")
