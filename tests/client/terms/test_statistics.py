import asyncio

import pytest

from aerobee import Client, ClientStatistics, GroupMessage, RetryLater, SendFailed
from aerobee.sync import Client as SyncClient
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_remoting.exchange.handlers import Response
from client.fakes import fake_cluster

BUSY = Response(ResponseCode.SYSTEM_BUSY, "busy")
SINGLE, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE


async def test_a_producer_counts_what_was_sent_what_failed_and_what_was_tried_again() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq, mq.producer("p") as producer:
        await asyncio.gather(*(producer.send("T", b"x") for _ in range(5)))
        cluster.broker.script(SINGLE, BUSY, BUSY)
        await producer.send("T", b"y")
        cluster.broker.always(SINGLE, BUSY)
        with pytest.raises(SendFailed):
            await producer.send("T", b"z", timeout_s=1)
        logged = producer.statistics()
        assert (logged.group, logged.sent_count, logged.failed_count) == ("p", 6, 1)
        assert logged.retried_count >= 3
        assert (logged.pending_count, logged.pending_bytes) == (0, 0)
        assert 0 < logged.latency_ms_mean <= logged.latency_ms_max
        assert mq.statistics().producers == (logged,)


async def test_a_message_that_fails_alone_is_not_counted_as_sent() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq, mq.producer("p") as producer:
        await producer.send("T", b"0")
        cluster.broker.always(BATCH, BUSY)
        hurried = producer.send_nowait("T", b"1", timeout_s=0.05)
        patient = producer.send_nowait("T", b"2")
        with pytest.raises(SendFailed):
            await hurried
        cluster.broker.always(BATCH, None)
        await patient
        await producer.flush()
        logged = producer.statistics()
        assert (logged.sent_count, logged.failed_count) == (2, 1)


async def test_a_consumer_counts_what_it_did_and_how_far_it_is_behind() -> None:
    async with fake_cluster(queues=1) as cluster, Client(cluster.nameserver.addr) as mq:
        for number in range(4):
            cluster.broker.append("T", 0, b"%d" % number)
        blocked, done = asyncio.Event(), asyncio.Event()

        async def handler(message: GroupMessage[bytes]) -> None:
            if message.body == b"1":
                raise RetryLater(1)
            if message.body == b"3":
                blocked.set()
                await done.wait()

        async with mq.consumer("g", "T") as consumer:
            running = asyncio.create_task(consumer.run(handler, concurrency=1))
            await blocked.wait()
            logged = consumer.statistics()
            # The one that was sent back is done here as well: it comes again by way of the retry topic.
            assert (logged.group, logged.acked_count + logged.failed_count, logged.waiting_count) == (
                "g",
                3,
                1,
            )
            assert logged.lag == 1
            assert mq.statistics().consumers == (logged,)
            done.set()
            await consumer.close()
            await running


@pytest.mark.parametrize("group", ["", "g"])
async def test_a_reader_and_a_pull_consumer_count_what_they_read_and_how_far_they_are_behind(
    group: str,
) -> None:
    """They had no statistics: a program that read by itself could not be watched."""
    async with fake_cluster(queues=1) as cluster, Client(cluster.nameserver.addr) as mq:
        for number in range(5):
            cluster.broker.append("T", 0, b"%d" % number)
        cluster.broker.script(RequestCode.PULL_MESSAGE, BUSY)
        made = (
            mq.pull_consumer(group, "T", start="earliest", max_messages=2, retry_s=0.01)
            if group
            else mq.reader("T", start="earliest", max_messages=2, retry_s=0.01)
        )
        async with made as reading:
            assert (reading.statistics().read_count, reading.statistics().waiting_bytes) == (0, 0)
            assert await reading.next_batch() is not None
            logged = reading.statistics()
            assert (logged.group, logged.topic, logged.read_count, logged.lag) == (group, "T", 2, 3)
            assert logged.retried_count == 1
            assert [queue.topic for queue in logged.lags] == ["T"]
            for _ in range(2):
                assert await reading.next_batch() is not None
            assert (reading.statistics().read_count, reading.statistics().lag) == (5, 0)
            assert [one.read_count for one in mq.statistics().readers] == [5]
        assert mq.statistics().readers == ()


async def test_what_lies_behind_the_end_of_a_reader_is_not_its_lag() -> None:
    async with fake_cluster(queues=1) as cluster, Client(cluster.nameserver.addr) as mq:
        for number in range(5):
            cluster.broker.append("T", 0, b"%d" % number)
        async with mq.reader("T", start="earliest", end=3, max_messages=1) as reader:
            assert await reader.next_batch() is not None
            assert reader.statistics().lag == 2


async def test_lost_connections_that_are_made_again_are_counted() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq, mq.producer() as producer:
        await producer.send("T", b"x")
        before = mq.statistics()
        for connection in list(cluster.broker.server.connections):
            connection.abort("the test wants it")
        await producer.send("T", b"y")
        assert mq.statistics().reconnect_count == before.reconnect_count + 1
        assert mq.statistics().connection_count == 2


async def test_the_blocking_client_tells_the_same() -> None:
    def program(addr: str) -> ClientStatistics:
        with SyncClient(addr) as mq, mq.producer("p") as producer, mq.consumer("g", "T") as consumer:
            producer.send("T", b"x")
            assert producer.statistics().sent_count == 1
            assert consumer.statistics().group == "g"
            with mq.reader("T", start="latest") as reader:
                assert (reader.statistics().group, reader.statistics().read_count) == ("", 0)
            return mq.statistics()

    async with fake_cluster() as cluster:
        logged = await asyncio.to_thread(program, cluster.nameserver.addr)
    assert [one.sent_count for one in logged.producers] == [1]
    assert [one.group for one in logged.consumers] == ["g"]
