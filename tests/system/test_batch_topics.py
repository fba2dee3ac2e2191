"""Topics with queues of batches (`queue.type=BatchCQ`): a broker, peers by hand, and our own consumers."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aerobee import DamagedRecord, GroupMessage, RetryLater
from aerobee_broker.broker import Broker
from aerobee_proto.batch import BatchEntry, encode_batch
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import Command
from aerobee_proto.properties import decode_properties
from aerobee_proto.records import StoredRecord, decode_records
from system.running import Talker, running_broker, talking, text_of
from system.test_client import Cluster, cluster

TOPIC = "Batched"
INNER = str(0xC0)
BATCH_KEY = {"UNIQ_KEY": "THE-BATCH", "TAGS": "TagA"}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running_broker(tmp_path) as broker:
        yield broker


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Talker]:
    async with talking(broker) as client:
        assert (await client.make_topic(TOPIC, attributes="+queue.type=BatchCQ")).code == 0
        yield client


def entries(count: int, tag: str = "TagA") -> list[BatchEntry]:
    return [
        BatchEntry(at, b"m%d" % at, text_of({"UNIQ_KEY": f"K{at}", "TAGS": tag if at % 2 == 0 else "TagB"}))
        for at in range(count)
    ]


async def put_batch(client: Talker, count: int, **properties: str) -> Command:
    return await client.put_batch(TOPIC, entries(count), properties=text_of(BATCH_KEY | properties))


# --- the broker ---------------------------------------------------------------------------------------------------


async def test_a_batch_with_a_key_is_one_record_and_takes_a_number_for_each_message(client: Talker) -> None:
    assert (await client.put(TOPIC)).ext["queueOffset"] == "0"
    answer = await put_batch(client, 3, KEYS="of-all")
    assert answer.code == 0, answer.remark
    assert (answer.ext["queueOffset"], answer.ext["batchUniqId"]) == ("1", "THE-BATCH")
    assert "," not in answer.ext["msgId"]
    assert (await client.put(TOPIC)).ext["queueOffset"] == "4"
    records = await client.records(TOPIC)
    assert [record.queue_offset for record in records] == [0, 1, 4]
    batch = records[1]
    assert batch.sys_flag == 0xC0
    assert (batch.property_map["INNER_NUM"], batch.property_map["INNER_BASE"]) == ("3", "1")
    found = await client.ask(
        RequestCode.QUERY_MESSAGE,
        {"topic": TOPIC, "key": "of-all", "maxNum": "8", "beginTimestamp": "0", "endTimestamp": str(1 << 60)},
    )
    assert [record.physical_offset for record in decode_records(found.body)] == [batch.physical_offset]


async def test_a_batch_without_a_key_is_as_many_records(client: Talker) -> None:
    answer = await client.put_batch(TOPIC, entries(3))
    assert answer.ext["msgId"].count(",") == 2
    assert "batchUniqId" not in answer.ext
    assert [record.queue_offset for record in await client.records(TOPIC)] == [0, 1, 2]


async def test_a_plain_topic_keeps_a_batch_with_a_key_as_records(client: Talker) -> None:
    await client.make_topic("Plain")
    answer = await client.put_batch("Plain", entries(2), properties=text_of(BATCH_KEY))
    assert "batchUniqId" not in answer.ext
    assert [record.sys_flag for record in await client.records("Plain")] == [0, 0]


@pytest.mark.parametrize(
    ("properties", "flag", "why"),
    [
        ({"INNER_NUM": "2"}, "0", "its flags do not say that it is a batch"),
        ({"INNER_NUM": "2", "DELAY": "3"}, INNER, "cannot be delayed"),
        ({"INNER_NUM": "2", "TRAN_MSG": "true"}, INNER, "cannot be delayed, nor be part of a transaction"),
        ({"INNER_NUM": "0"}, INNER, "INNER_NUM is '0', not a number from 1 to 32767"),
        ({"INNER_NUM": "32768"}, INNER, "INNER_NUM is '32768', not a number from 1 to 32767"),
        ({"INNER_NUM": "٥"}, INNER, "INNER_NUM is '٥', not a number from 1 to 32767"),
    ],
)
async def test_single_messages_that_cannot_be_a_batch_are_refused(
    client: Talker, properties: dict[str, str], flag: str, why: str
) -> None:
    refused = await client.put(TOPIC, properties=text_of(properties), sysFlag=flag)
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert why in (refused.remark or "")
    assert (await client.put(TOPIC)).ext["queueOffset"] == "0"


@pytest.mark.parametrize("properties", [{"INNER_NUM": "2"}, {}], ids=["number", "flag alone"])
async def test_a_plain_topic_takes_no_record_that_is_a_batch(
    client: Talker, properties: dict[str, str]
) -> None:
    refused = await client.put("Plain", properties=text_of(properties), sysFlag=INNER)
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert "queue.type=BatchCQ" in (refused.remark or "")


async def test_a_delayed_batch_is_refused_whole(client: Talker) -> None:
    refused = await put_batch(client, 2, DELAY="3")
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert await client.records(TOPIC) == []


async def test_the_kind_of_a_topic_is_for_life(client: Talker, broker: Broker) -> None:
    await client.make_topic("Plain")
    for topic, attributes in (
        ("Plain", "+queue.type=BatchCQ"),
        (TOPIC, "+queue.type=SimpleCQ"),
        (TOPIC, "-queue.type"),
    ):
        refused = await client.make_topic(topic, attributes=attributes)
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert "cannot be changed" in (refused.remark or "")
    assert (await client.make_topic(TOPIC, queues=2, attributes="+queue.type=BatchCQ")).code == 0
    await put_batch(client, 2)
    await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
    assert broker.parts.store.topics.batch_names == frozenset()
    assert (await client.make_topic(TOPIC)).code == 0
    await put_batch(client, 2)
    assert [record.queue_offset for record in await client.records(TOPIC)] == [0, 1]


@asynccontextmanager
async def batch_topic_being_made(
    broker: Broker, client: Talker, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[asyncio.Task[Command]]:
    """The client asks for TOPIC, and the store is slow to make its folder: what the block does comes in between. The
    answer is there soon behind the block."""
    store, loop = broker.parts.store, asyncio.get_running_loop()
    begun, go_on = asyncio.Event(), threading.Event()
    prepare = store.topics.prepare_batch

    def slow(topics: Iterable[str]) -> None:
        prepare(topics)
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(60)

    monkeypatch.setattr(store.topics, "prepare_batch", slow)
    asked = asyncio.create_task(client.make_topic(TOPIC, attributes="+queue.type=BatchCQ"))
    try:
        await begun.wait()
        yield asked
    finally:
        go_on.set()


async def test_a_topic_that_a_send_makes_meanwhile_stays_plain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder stayed behind, and the topic, deleted, was there again after a restart, with queues of batches."""
    async with running_broker(tmp_path) as broker, talking(broker) as client, talking(broker) as other:
        async with batch_topic_being_made(broker, client, monkeypatch) as asked:
            assert (await other.put(TOPIC)).code == 0
        refused = await asked
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert "cannot be changed" in (refused.remark or "")
        assert not (tmp_path / "batchconsumequeue" / TOPIC).exists()
        assert (await other.put(TOPIC)).code == 0
        await other.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
    async with running_broker(tmp_path) as broker:
        assert TOPIC not in broker.parts.topics


async def test_a_topic_that_another_makes_meanwhile_keeps_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both were told that it was done, and the later one had changed what cannot be changed."""
    async with running_broker(tmp_path) as broker, talking(broker) as client, talking(broker) as other:
        async with batch_topic_being_made(broker, client, monkeypatch) as asked:
            assert (await other.make_topic(TOPIC)).code == 0
        assert (await asked).code == ResponseCode.INVALID_PARAMETER
        assert broker.parts.topics.require(TOPIC).attributes == {}
        assert broker.parts.store.topics.batch_names == frozenset()


async def test_a_topic_that_finds_no_room_meanwhile_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store took it for one of batches, the table did not have it; made by a send later, its settings and its files
    said different things, and the broker did not start again."""
    async with running_broker(tmp_path) as broker, talking(broker) as client, talking(broker) as other:
        parts = broker.parts
        limit = len(parts.topics) + 1
        settings = f"maxTopics={limit}".encode()
        assert (await other.ask(RequestCode.UPDATE_BROKER_CONFIG, body=settings)).code == 0
        async with batch_topic_being_made(broker, client, monkeypatch) as asked:
            assert (await other.make_topic("Other")).code == 0
        refused = await asked
        assert refused.code != 0
        assert "maxTopics" in (refused.remark or "")
        assert parts.store.topics.batch_names == frozenset()
        await other.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Other"})
        assert (await other.put(TOPIC)).code == 0
    async with running_broker(tmp_path) as broker:
        assert broker.parts.topics.require(TOPIC).attributes == {}


async def test_pops_are_refused_by_name(client: Talker) -> None:
    await put_batch(client, 2)
    header = {
        "consumerGroup": "test-group",
        "topic": TOPIC,
        "queueId": "0",
        "maxMsgNums": "8",
        "invisibleTime": "60000",
    }
    rest = {"pollTime": "0", "bornTime": "0", "initMode": "0", "expType": "TAG", "exp": "*", "order": "false"}
    refused = await client.ask(RequestCode.POP_MESSAGE, header | rest)
    assert refused.code == ResponseCode.NO_PERMISSION
    assert "queue.type=BatchCQ" in (refused.remark or "")


async def test_a_restart_finds_everything_again(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talking(broker) as client:
        await client.make_topic(TOPIC, attributes="+queue.type=BatchCQ")
        await put_batch(client, 3)
    # A crash came between the first message and the settings.
    (tmp_path / "config" / "topics.json").unlink()
    (tmp_path / "config" / "topics.json.bak").unlink(missing_ok=True)
    async with running_broker(tmp_path) as broker, talking(broker) as client:
        assert broker.parts.topics.require(TOPIC).attributes == {"queue.type": "BatchCQ"}
        assert (await put_batch(client, 2)).ext["queueOffset"] == "3"
        assert [record.queue_offset for record in await client.records(TOPIC)] == [0, 3]
        broker.parts.store.check()


async def test_a_held_pull_is_answered_by_a_batch(client: Talker, broker: Broker) -> None:
    waiting = client.pull_request(TOPIC, 0, subscription="TagA", sysFlag=6)
    waiting.opaque = 77
    client.send(waiting)
    while not len(broker.parts.pulls.held):
        await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)  # a round trip
    async with talking(broker) as other:
        await other.put_batch(TOPIC, entries(2), properties=text_of(BATCH_KEY))
        answer = await client.answer_to(77)
        assert answer.ext["nextBeginOffset"] == "2"


# --- our consumers ------------------------------------------------------------------------------------------------


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path) as running:
        await running.mq.admin.create_topic(TOPIC, queues=1, attributes={"queue.type": "BatchCQ"})
        async with talking(running.brokers[0]) as client:
            await client.put(TOPIC, b"alone", properties=text_of({"UNIQ_KEY": "S", "TAGS": "TagA"}))
            await put_batch(client, 4)
        yield running


async def test_a_reader_gets_each_message_with_its_own_number_and_id(served: Cluster) -> None:
    found = [message async for message in served.mq.reader(TOPIC, end="now")]
    assert [message.body for message in found] == [b"alone", b"m0", b"m1", b"m2", b"m3"]
    assert [message.record.queue_offset for message in found] == [0, 1, 2, 3, 4]
    assert [message.message_id for message in found] == ["S", "K0", "K1", "K2", "K3"]
    assert [message.record.flag for message in found[1:]] == [0, 1, 2, 3]
    assert len({message.record.physical_offset for message in found}) == 2


async def test_a_reader_that_begins_within_a_batch_gets_no_message_before(served: Cluster) -> None:
    found = [message.body async for message in served.mq.reader(TOPIC, start=3, end="now")]
    assert found == [b"m2", b"m3"]
    found = [message.body async for message in served.mq.reader(TOPIC, tags="TagA", end="now")]
    assert found == [b"alone", b"m0", b"m2"]


async def test_a_damaged_batch_is_an_error_at_its_place(served: Cluster) -> None:
    async with talking(served.brokers[0]) as client:
        extra = text_of({"UNIQ_KEY": "X", "INNER_NUM": "2"})
        assert (await client.put(TOPIC, b"no batch", properties=extra, sysFlag=INNER)).ext[
            "queueOffset"
        ] == "5"
    seen: list[bytes] = []

    async def read() -> None:
        async for message in served.mq.reader(TOPIC, end="now"):
            seen.append(message.body)

    with pytest.raises(DamagedRecord, match="the batch in the record at"):
        await read()
    assert seen == [b"alone", b"m0", b"m1", b"m2", b"m3"]


@pytest.mark.parametrize("said", ["2", "9", None])
async def test_a_batch_of_another_count_than_its_numbers_is_an_error_at_its_place(
    served: Cluster, said: str | None
) -> None:
    """What it held more came with the numbers of the messages behind it: two messages of a queue with one number."""
    async with talking(served.brokers[0]) as client:
        number = {} if said is None else {"INNER_NUM": said}
        lie = await client.put(TOPIC, encode_batch(entries(4)), properties=text_of(number), sysFlag=INNER)
        for _ in range(3):
            assert (await client.put(TOPIC, b"after")).code == 0
    seen: list[tuple[int, bytes]] = []

    async def read(start: int) -> None:
        async for message in served.mq.reader(TOPIC, start=start, end="now"):
            seen.append((message.queue_offset, message.body))

    with pytest.raises(DamagedRecord, match=r"says that it holds .*, and holds 4"):
        await read(5)
    assert seen == []
    behind = int(lie.ext["queueOffset"]) + int(said or 1)
    await read(behind)
    assert seen == [(behind + at, b"after") for at in range(3)]


async def test_a_group_consumes_each_and_what_it_gives_back_comes_alone(served: Cluster) -> None:
    seen = Counter[tuple[bytes, int]]()
    done = asyncio.Event()

    async def handle(message: GroupMessage[bytes]) -> None:
        seen[message.body, message.reconsume_times] += 1
        if message.body == b"m2" and not message.reconsume_times:
            raise RetryLater(1)
        if message.reconsume_times:
            done.set()

    async with served.mq.consumer("g", TOPIC) as consumer:
        working = asyncio.create_task(consumer.run(handle))
        await asyncio.wait_for(done.wait(), 60)
        await consumer.close()
        await working
    assert seen == Counter(
        {(b"alone", 0): 1, (b"m0", 0): 1, (b"m1", 0): 1, (b"m2", 0): 1, (b"m3", 0): 1, (b"m2", 1): 1}
    )
    (broker,) = served.brokers
    assert broker.parts.offsets.get("g", TOPIC, 0) == 5
    retried = broker.parts.store.reading.get_message("", "%RETRY%g", 0, 0, 8, 1 << 20, None)
    (record,) = decode_records(b"".join(retried.body))
    assert (record.body, record.sys_flag & 0xC0) == (b"m2", 0)
    assert "INNER_NUM" not in decode_properties(record.properties)


async def test_the_broker_gives_no_batch_back(served: Cluster) -> None:
    """It would come as one message whose body is the whole batch; clients then publish the one message themselves."""
    (broker,) = served.brokers
    records: list[StoredRecord] = []
    async with talking(broker) as client:
        records = await client.records(TOPIC)
        header = {
            "offset": str(records[1].physical_offset),
            "group": "g",
            "delayLevel": "0",
            "originTopic": TOPIC,
        }
        await served.mq.admin.create_group("g")
        refused = await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header | {"unitMode": "false"})
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
