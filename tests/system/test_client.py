"""The client against a real nameserver and real brokers, all in this process."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aerobee import (
    AlreadyExists,
    BrokerRefused,
    Client,
    DamagedRecord,
    HidesMessages,
    InvalidMessage,
    MessageQueue,
    NoRoute,
    NotFound,
    OutgoingMessage,
)
from aerobee_broker.broker import Broker
from aerobee_nameserver.config import NameserverConfig
from aerobee_nameserver.server import NameServer
from aerobee_proto.properties import RECORD_CHECKSUM
from client.inside import session_of
from system.running import running_broker


class Cluster:
    """A nameserver, brokers, and a client that is connected to them."""

    def __init__(self, nameserver: NameServer, brokers: list[Broker], mq: Client) -> None:
        self.nameserver = nameserver
        self.brokers = brokers
        self.mq = mq


@asynccontextmanager
async def cluster(root: Path, broker_count: int = 1, **settings: Any) -> AsyncIterator[Cluster]:
    """Everything running, every broker registered."""
    async with AsyncExitStack() as stack:
        nameserver = NameServer(NameserverConfig(listen_port=0, bind_address="127.0.0.1"), keep_kv=False)
        port = await nameserver.start()
        stack.push_async_callback(nameserver.close)
        brokers = [
            await stack.enter_async_context(
                running_broker(
                    root / letter,
                    broker_name=f"test-{letter}",
                    namesrv_addr=f"127.0.0.1:{port}",
                    **settings,
                )
            )
            for letter in "abc"[:broker_count]
        ]
        mq = await stack.enter_async_context(Client(f"127.0.0.1:{port}"))
        while len(await mq.admin.brokers()) < broker_count:
            pass  # each question is a round trip
        yield Cluster(nameserver, brokers, mq)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path) as running:
        yield running


async def read(mq: Client, topic: str, **span: Any) -> list[bytes]:
    return [message.body async for message in mq.reader(topic, **({"end": "now"} | span))]


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_many_messages_arrive_once_and_unchanged(tmp_path: Path, flush: str) -> None:
    async with cluster(tmp_path, 2, flush_disk_type=flush) as served:
        await served.mq.admin.create_topic("T", queues=4)
        sent = Counter[bytes]()
        async with served.mq.producer() as producer:
            futures = []
            for number in range(3000):
                body = hashlib.sha256(b"%d" % number).digest() * (1 + number % 40)
                sent[body] += 1
                if number % 500 == 0:
                    await producer.ready()
                futures.append(
                    producer.send_nowait("T", body, keys=f"k{number}", tags="odd" if number % 2 else "even")
                )
            results = await asyncio.gather(*futures)
        assert len({(result.queue, result.queue_offset) for result in results}) == 3000
        assert {result.queue.broker_name for result in results} == {"test-a", "test-b"}
        assert Counter(await read(served.mq, "T")) == sent
        assert len(await read(served.mq, "T", tags="odd")) == 1500
        assert len(await read(served.mq, "T", tags=["odd", "even"])) == 3000


async def test_every_field_comes_back(served: Cluster) -> None:
    async with served.mq.producer() as producer:
        result = await producer.send(
            "Fields",
            "grüße",
            tags="new",
            keys=["a", "b"],
            properties={"shop": "süd"},
            flag=7,
            sharding_key="x",
        )
    (message,) = [message async for message in served.mq.reader("Fields", end="now")]
    assert (message.text(), message.tags, message.keys, message.flag) == ("grüße", "new", ("a", "b"), 7)
    assert message.properties["shop"] == "süd"
    assert RECORD_CHECKSUM in message.properties
    assert (message.message_id, message.offset_message_id) == (result.message_id, result.offset_message_id)
    assert (message.queue, message.queue_offset) == (result.queue, 0)
    assert message.born_host[0] == "127.0.0.1"
    assert abs(message.store_timestamp_ms - message.born_timestamp_ms) < 60_000


async def test_a_first_send_creates_the_topic(served: Cluster) -> None:
    async with served.mq.producer() as producer:
        assert len(await producer.queues("Fresh")) == 4
        await asyncio.gather(*(producer.send("Fresh", b"%d" % number) for number in range(20)))
    while "Fresh" not in await served.mq.admin.topics():
        pass  # a broker tells the nameserver after its answer
    assert len(await read(served.mq, "Fresh")) == 20


async def test_no_route_when_topics_are_not_created(tmp_path: Path) -> None:
    async with cluster(tmp_path, auto_create_topic_enable=False) as served:
        await served.mq.admin.create_topic("orders")
        async with served.mq.producer() as producer:
            with pytest.raises(NoRoute, match="similar topics: orders") as caught:
                await producer.send("oders", b"x")
        assert "no broker here creates topics on the first send" in str(caught.value)


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
async def test_compressed_bodies_come_back_whole(served: Cluster, kind: str) -> None:
    body = b"aerobee " * 5000
    async with served.mq.producer(compression=kind) as producer:
        await producer.send("Packed", body)
    (message,) = [message async for message in served.mq.reader("Packed", end="now")]
    assert len(message.record.body) < 2000
    assert message.body == body


async def test_order_of_a_key_holds(served: Cluster) -> None:
    async with served.mq.producer(batch_count=7) as producer:
        futures = [
            producer.send_nowait("Ordered", b"%s%04d" % (key.encode(), number), sharding_key=key)
            for number in range(200)
            for key in "abc"
        ]
        await asyncio.gather(*futures)
    bodies = await read(served.mq, "Ordered")
    for key in (b"a", b"b", b"c"):
        assert [body for body in bodies if body.startswith(key)] == [b"%s%04d" % (key, n) for n in range(200)]


async def test_a_batch_lies_side_by_side(served: Cluster) -> None:
    async with served.mq.producer() as producer:
        results = await producer.send_batch(
            "Batch", [OutgoingMessage(b"%d" % number, keys=f"k{number}") for number in range(50)]
        )
    assert [result.queue_offset for result in results] == list(range(50))
    assert [message.body for message in await served.mq.query("Batch", key="k17")] == [b"17"]


async def test_oneway_arrives(served: Cluster) -> None:
    await served.mq.admin.create_topic("Oneway", queues=1)
    async with served.mq.producer() as producer, served.mq.reader("Oneway") as reader:
        message_id = await producer.send_oneway("Oneway", b"x")
        batch = await reader.next_batch()
        assert batch is not None
        assert batch[0].message_id == message_id


async def test_a_waiting_reader_is_woken_by_the_send(served: Cluster) -> None:
    await served.mq.admin.create_topic("Woken", queues=3)
    async with served.mq.reader("Woken", tags="new") as reader, served.mq.producer() as producer:
        messages = aiter(reader)
        for number in range(5):
            await producer.send("Woken", b"old", tags="old")
            waiting = asyncio.ensure_future(anext(messages))
            await producer.send("Woken", b"%d" % number, tags="new")
            assert (await waiting).body == b"%d" % number


async def test_a_group_goes_on_where_it_committed(served: Cluster) -> None:
    async with served.mq.producer() as producer:
        await producer.send_batch("Grouped", [b"%d" % number for number in range(100)])
    seen = []
    async with served.mq.pull_consumer("g", "Grouped", end="now") as consumer:
        async for message in consumer:
            seen.append(message.body)
            if len(seen) == 40:
                await consumer.commit()
                break
    async with served.mq.pull_consumer("g", "Grouped", end="now") as consumer:
        seen += [message.body async for message in consumer]
        await consumer.commit()
        progress = await served.mq.admin.group_progress("g")
        members = await served.mq.admin.group_connections("g")
    assert seen == [b"%d" % number for number in range(100)]
    assert progress.lag == 0
    assert sum(queue.consumer_offset for queue in progress.queues) == 100
    assert members is not None
    assert [member.client_id for member in members.connection_set] == [served.mq.client_id]
    assert await served.mq.admin.group_connections("g") is None


async def test_reading_by_time_and_offset(served: Cluster) -> None:
    await served.mq.admin.create_topic("Timed", queues=1)
    async with served.mq.producer() as producer:
        for number in range(10):
            await producer.send("Timed", b"%d" % number)
    (queue,) = await served.mq.queues("Timed")
    everything = [message async for message in served.mq.reader("Timed", end="now")]
    middle = everything[5].store_time
    later = [message.body for message in everything if message.store_time >= middle]
    assert await read(served.mq, "Timed", start=middle) == later
    assert await read(served.mq, "Timed", start="-1h") == [b"%d" % number for number in range(10)]
    assert await read(served.mq, "Timed", start=3, end=5, queues=[queue]) == [b"3", b"4"]
    assert await served.mq.admin.min_offset(queue) == 0
    assert await served.mq.admin.max_offset(queue) == 10
    assert await served.mq.admin.offset_by_time(queue, 0) == 0
    assert await served.mq.admin.earliest_store_time(queue) == everything[0].store_timestamp_ms


async def test_queries_find_by_key_and_both_ids(served: Cluster) -> None:
    async with served.mq.producer() as producer:
        results = [await producer.send("Asked", b"%d" % n, keys=["all", f"k{n}"]) for n in range(5)]
    assert [message.body for message in await served.mq.query("Asked", key="all")] == [
        b"0",
        b"1",
        b"2",
        b"3",
        b"4",
    ]
    assert [message.body for message in await served.mq.query("Asked", key="k3")] == [b"3"]
    assert len(await served.mq.query("Asked", key="all", max_messages=2)) == 2
    assert await served.mq.query("Asked", key="all", begin="2001-01-01T00:00:00+00:00", end="-1h") == []
    for message in (
        await served.mq.query_by_id(results[2].message_id, "Asked"),
        await served.mq.query_by_id(results[2].offset_message_id),
    ):
        assert message is not None
        assert message.body == b"2"


async def test_topics_are_made_described_changed_and_deleted(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as served:
        admin = served.mq.admin
        assert await admin.create_topic("Made", queues=3, attributes={"message.type": "NORMAL"}) == [
            "test-a",
            "test-b",
        ]
        async with served.mq.producer() as producer:
            await asyncio.gather(*(producer.send("Made", b"x", queue=number % 6) for number in range(12)))
        described = await admin.describe_topic("Made")
        assert sorted(described.configs) == ["test-a", "test-b"]
        assert described.configs["test-a"].attributes == {"message.type": "NORMAL"}
        assert [ends.max_offset for ends in described.queues] == [2] * 6
        assert described.message_count == 12
        assert all(ends.last_update_ms is not None for ends in described.queues)
        assert await admin.update_topic("Made", queues=5, permission="r") == ["test-a", "test-b"]
        changed = (await admin.describe_topic("Made")).configs["test-b"]
        assert (changed.read_queue_nums, changed.write_queue_nums, changed.perm) == (5, 5, 4)
        assert await admin.create_topic("OnlyA", brokers=["test-a"]) == ["test-a"]
        assert await admin.topics() == ["Made", "OnlyA"]
        assert "TBW102" in await admin.topics(system=True)
        await admin.delete_topic("Made")
        assert await admin.topics() == ["OnlyA"]
        with pytest.raises(NoRoute):
            await admin.route("Made")


async def test_groups_are_made_listed_and_deleted(served: Cluster) -> None:
    admin = served.mq.admin
    await admin.create_group("made", retry_max_times=3)
    found = {group.group_name: group for group in await admin.groups()}
    assert found["made"].retry_max_times == 3
    await admin.create_topic("T", queues=1)
    (queue,) = await served.mq.queues("T")
    assert await admin.group_offset("made", queue) is None
    await admin.set_group_offset("made", queue, 5)
    assert await admin.group_offset("made", queue) == 5
    await admin.delete_group("made")
    assert "made" not in {group.group_name for group in await admin.groups()}


async def test_what_is_not_there_is_not_changed_and_not_well(served: Cluster) -> None:
    """A misspelt group had lag 0, and deleting or changing it was "done"; a change even made it."""
    admin = served.mq.admin
    await admin.create_group("orders-readers")
    await admin.create_topic("Orders", queues=1)
    for call in (
        admin.delete_group("order-readers"),
        admin.update_group("order-readers", retry_max_times=2),
        admin.clone_group("order-readers", "g6"),
        admin.reset_group("order-readers", "Orders", "latest"),
        admin.group_progress("order-readers"),
        admin.group_progress("order-readers", "Orders"),
        admin.group_lag("order-readers"),
        admin.find_group("order-readers"),
    ):
        with pytest.raises(NotFound, match=r"no group 'order-readers' on test-a\n  similar: orders-readers"):
            await call
    with pytest.raises(NoRoute, match="similar topics: Orders"):
        await admin.delete_topic("Order")
    with pytest.raises(NoRoute):
        await admin.group_progress("orders-readers", "Order")
    with pytest.raises(NotFound, match="no offset of group 'orders-readers' in any topic"):
        await admin.clone_group("orders-readers", "g6")
    with pytest.raises(NotFound, match="no cluster 'nope'\n  there are: TestCluster"):
        await admin.create_topic("New", cluster="nope")
    with pytest.raises(NotFound, match="no broker 'test-b'\n  similar: test-a\n  there are: test-a"):
        await admin.broker_config("test-b")
    assert await admin.delete_group("order-readers", missing_ok=True) == []
    assert await admin.delete_topic("Order", missing_ok=True) == []
    assert {"order-readers", "g6"}.isdisjoint(one.group_name for one in await admin.groups())


async def test_what_exists_is_not_made_again_with_other_settings(served: Cluster) -> None:
    admin = served.mq.admin
    await admin.create_topic("Twice", queues=4)
    await admin.create_group("twice", retry_max_times=3)
    with pytest.raises(AlreadyExists, match="exists on test-a with 4 queues"):
        await admin.create_topic("Twice", queues=2)
    with pytest.raises(AlreadyExists, match="exists on test-a with 3 retries"):
        await admin.create_group("twice")
    assert await admin.create_topic("Twice", queues=2, exist_ok=True) == ["test-a"]
    assert await admin.create_group("twice", exist_ok=True) == ["test-a"]
    assert (await admin.topic_configs("Twice"))["test-a"].read_queue_nums == 4
    assert [one.retry_max_times for one in await admin.groups() if one.group_name == "twice"] == [3]


async def test_a_value_with_a_line_end_changes_no_other_setting(served: Cluster) -> None:
    """The lines of the request were the texts as given: one value could change any other hot setting."""
    admin = served.mq.admin
    with pytest.raises(BrokerRefused, match="traceOn"):
        await admin.update_broker_config("test-a", {"traceOn": "true\nautoCreateTopicEnable=false"})
    with pytest.raises(BrokerRefused):
        await admin.update_broker_config("test-a", {"traceOn=true\nautoCreateTopicEnable": "false"})
    assert (await admin.broker_config("test-a"))["autoCreateTopicEnable"] == "true"
    await admin.update_broker_config("test-a", {"autoCreateTopicEnable": "false", "traceOn": "false"})
    settings = await admin.broker_config("test-a")
    assert (settings["autoCreateTopicEnable"], settings["traceOn"]) == ("false", "false")


@pytest.mark.parametrize(
    ("queue", "said"),
    [
        (MessageQueue("Other", "test-a", 0), "queue Other/test-a/0 is not one of topic 'Stays'"),
        (
            MessageQueue("Stays", "test-a", -1),
            "topic 'Stays' has queues 0 to 1 on test-a; -1 is none of them",
        ),
    ],
)
async def test_a_reset_of_a_queue_that_is_none_of_the_topic_changes_nothing(
    served: Cluster, queue: MessageQueue, said: str
) -> None:
    """Queue -1 stood for all queues of the topic, one of another topic for the queue with that number."""
    admin = served.mq.admin
    await admin.create_topic("Stays", queues=2)
    await admin.create_group("stays")
    async with served.mq.producer() as producer:
        await producer.send("Stays", b"x", queue=0)
    kept = MessageQueue("Stays", "test-a", 0)
    await admin.set_group_offset("stays", kept, 1)
    with pytest.raises(InvalidMessage, match=said):
        await admin.reset_group("stays", "Stays", "earliest", queue=queue)
    assert await admin.group_offset("stays", kept) == 1


async def test_a_change_that_hides_messages_is_asked_for_by_name(served: Cluster) -> None:
    admin = served.mq.admin
    await admin.create_topic("Wide", queues=3)
    async with served.mq.producer() as producer:
        await producer.send("Wide", b"x", queue=2)
    with pytest.raises(HidesMessages) as hides:
        await admin.update_topic("Wide", queues=1)
    assert hides.value.counts == {("test-a", 2): 1}
    assert (await admin.topic_configs("Wide"))["test-a"].read_queue_nums == 3
    await admin.update_topic("Wide", queues=1, hide_messages=True)
    assert (await admin.topic_configs("Wide"))["test-a"].read_queue_nums == 1
    with pytest.raises(InvalidMessage, match="nobody would get the messages in queue 1"):
        await admin.update_topic("Wide", write_queues=2)


async def test_brokers_tell_about_themselves(served: Cluster) -> None:
    admin = served.mq.admin
    (node,) = await admin.brokers()
    assert (node.broker_name, node.broker_id, node.cluster_name) == ("test-a", 0, "TestCluster")
    assert node.addr == served.brokers[0].address
    info = await admin.broker_runtime_info("test-a")
    assert info["brokerActive"] == "true"
    assert info.keys() == (await admin.broker_runtime_info(node.addr)).keys()
    config = await admin.broker_config("test-a")
    assert config["brokerName"] == "test-a"
    with pytest.raises(BrokerRefused):
        await admin.update_broker_config("test-a", {"noSuchKey": "1"})


async def test_illegal_names_do_not_reach_the_broker(served: Cluster) -> None:
    with pytest.raises(InvalidMessage, match="character 1"):
        await served.mq.admin.create_topic("../etc")
    with pytest.raises(InvalidMessage):
        await served.mq.admin.create_group("")


async def test_a_restarted_broker_is_found_again(tmp_path: Path) -> None:
    async with cluster(tmp_path) as served, served.mq.producer() as producer:
        await producer.send("Again", b"before")
        await served.brokers[0].close()
        port = served.brokers[0].port
        async with running_broker(
            tmp_path / "a",
            broker_name="test-a",
            listen_port=port,
            namesrv_addr=served.nameserver.address,
        ):
            while not await served.mq.admin.brokers():
                pass
            await producer.send("Again", b"after")
            assert sorted(await read(served.mq, "Again")) == [b"after", b"before"]


async def test_damage_on_the_way_out_is_noticed(tmp_path: Path) -> None:
    """A byte of a record's head flips in the file; no body CRC covers it, the whole-record checksum does."""
    async with cluster(tmp_path) as served:
        await served.mq.admin.create_topic("Hurt", queues=1)
        async with served.mq.producer() as producer:
            for number in range(3):
                await producer.send("Hurt", b"%d" % number, queue=0)
        (found,) = [message async for message in served.mq.reader("Hurt", start=1, end=2)]
        log = next((tmp_path / "a" / "commitlog").iterdir())
        with log.open("r+b") as file:
            file.seek(found.record.physical_offset + 40)  # born timestamp
            file.write(b"\xff")
        async with served.mq.reader("Hurt", end="now") as reader:
            messages = aiter(reader)
            assert (await anext(messages)).body == b"0"
            with pytest.raises(DamagedRecord, match="offset 1"):
                await anext(messages)
            reader.seek(MessageQueue("Hurt", "test-a", 0), 2)
            assert [message.body async for message in reader] == [b"2"]


async def test_our_codec_is_used_after_the_first_round_trips(served: Cluster) -> None:
    async with served.mq.producer() as producer:
        await producer.send("Codec", b"x")
        connection = session_of(served.mq).remoting.connected(served.brokers[0].address)
        assert connection is not None
        while connection.codec != 2:
            await producer.send("Codec", b"x")
