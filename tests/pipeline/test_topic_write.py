"""Rows become messages."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import MapType, StringType, StructType

from aerobee import Client, Message
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.properties import decode_properties
from aerobee_proto.records import decode_record
from aerobee_pytest import Server
from aerobee_remoting.exchange.handlers import Response
from client.fakes import FakeCluster, fake_cluster
from pyspark_aerobee.errors import OptionError
from pyspark_aerobee.topic_write import TopicWriter, WriteSettings, WriteTask

pytestmark = pytest.mark.timeout(300)

Write = Callable[..., None]
BATCH = RequestCode.SEND_BATCH_MESSAGE


@pytest.fixture
def write(server: Server) -> Write:
    def write(frame: DataFrame, **options: Any) -> None:
        writer = frame.write.format("aerobee").option("nameServer", server.nameserver).mode("append")
        for name, value in options.items():
            writer = writer.option(name, value)
        writer.save()

    return write


def messages(server: Server, topic: str) -> list[Message]:
    with server.sync_client() as mq, mq.reader(topic, end="now") as reader:
        return list(reader)


def test_every_row_is_a_message(spark: SparkSession, write: Write, server: Server) -> None:
    topic = server.new_topic("written")
    frame = spark.range(2500).selectExpr(
        "concat('body-', id) AS body",
        "if(id % 2 = 0, 'even', NULL) AS tags",
        "array(concat('k', id), 'all') AS keys",
        "map('n', cast(id AS string)) AS properties",
        "'not for messages' AS msgId",
    )
    write(frame.repartition(3), topic=topic, dedupProperty="once")
    found = messages(server, topic)
    assert sorted(int(m.properties["n"]) for m in found) == list(range(2500))
    assert len({m.properties["once"] for m in found}) == 2500
    one = next(m for m in found if m.properties["n"] == "42")
    assert (one.text(), one.tags, list(one.keys)) == ("body-42", "even", ["k42", "all"])


def test_topics_queues_and_order(spark: SparkSession, write: Write, server: Server) -> None:
    first, second = server.new_topic("first"), server.new_topic("second")
    frame = (
        spark.range(400)
        .coalesce(1)
        .selectExpr(
            f"if(id < 200, '{first}', '{second}') AS topic",
            "cast(cast(id AS string) AS binary) AS value",
            "if(id < 200, cast(id % 3 AS int), NULL) AS queueId",
            "if(id >= 200, concat('key', id % 5), NULL) AS shardingKey",
        )
    )
    write(frame)
    bound = messages(server, first)
    assert len(bound) == 200
    for queue in range(3):
        numbers = [int(m.body) for m in bound if m.queue_id == queue]
        assert numbers == [number for number in range(200) if number % 3 == queue]
    sharded = messages(server, second)
    for key in range(5):
        mine = [m for m in sharded if int(m.body) % 5 == key]
        assert [int(m.body) for m in mine] == [n for n in range(200, 400) if n % 5 == key]
        assert len({m.queue_id for m in mine}) == 1


def test_a_table_that_was_read_can_be_written(spark: SparkSession, write: Write, server: Server) -> None:
    source, target = server.new_topic("source"), server.new_topic("target")
    with server.sync_client() as mq, mq.producer() as producer:
        for number in range(50):
            producer.send(source, b"%d" % number, tags="t", keys=f"k{number}", properties={"a": "b"})
    reader = spark.read.format("aerobee").option("nameServer", server.nameserver)
    write(reader.option("topic", source).load().drop("topic", "tags"), topic=target)
    found = sorted(messages(server, target), key=lambda m: int(m.body))
    assert [(m.text(), m.tags, list(m.keys), m.properties["a"]) for m in found] == [
        (str(number), "t", [f"k{number}"], "b") for number in range(50)
    ]
    with server.sync_client() as mq:
        assert len(mq.query(target, key="k7")) == 1


def test_delayed_messages_come_later(spark: SparkSession, write: Write, server: Server) -> None:
    topic = server.new_topic("later")
    frame = spark.sql("SELECT 'a' AS body, 1 AS delayLevel UNION ALL SELECT 'b', NULL")
    write(frame, topic=topic)
    with server.sync_client() as mq, mq.reader(topic) as reader:
        found = iter(reader)
        assert {next(found).text(), next(found).text()} == {"a", "b"}


def test_what_brokers_refuse_fails_the_task(spark: SparkSession, write: Write, server: Server) -> None:
    frame = spark.sql("SELECT 'a' AS body UNION ALL SELECT '' UNION ALL SELECT 'c'").coalesce(1)
    with pytest.raises(Exception, match=r"1 messages could not be sent.*empty body"):
        write(frame, topic="written-somewhere")
    with pytest.raises(Exception, match=r"could not be sent"):
        write(frame.where("body != ''").selectExpr("body", "99 AS queueId"), topic="TBW102")
    with server.sync_client() as mq:
        mq.admin.create_topic("read-only", permission="r")
    with pytest.raises(Exception, match=r"2 messages could not be sent.*queue that may be written"):
        write(frame.where("body != ''"), topic="read-only")


@pytest.mark.parametrize(
    "keys",
    [
        "array(concat('k', id), 'all')",
        "array(if(id < 0, 'k', NULL), concat('k', id), 'all')",
        "concat('k', id, ' all')",
    ],
    ids=["not null", "with null", "text"],
)
def test_rows_of_bodies_tags_and_keys(spark: SparkSession, write: Write, server: Server, keys: str) -> None:
    topic = server.new_topic("plain")
    frame = spark.range(2500).selectExpr("concat('body-', id) AS body", "'t' AS tags", f"{keys} AS keys")
    write(frame.repartition(3), topic=topic)
    found = messages(server, topic)
    assert sorted((m.text(), m.tags, *m.keys) for m in found) == sorted(
        (f"body-{number}", "t", f"k{number}", "all") for number in range(2500)
    )
    assert len({m.message_id for m in found}) == 2500


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ({"body": "string"}, {}, "where are the messages to go"),
        ({"bodi": "string"}, {"topic": "t"}, "did you mean body"),
        ({"tags": "string"}, {"topic": "t"}, "messages need a body"),
        ({"body": "string", "value": "string"}, {"topic": "t"}, "it means the same as body"),
        ({"body": "integer"}, {"topic": "t"}, "it must be string or binary"),
        ({"body": "string"}, {"topik": "t"}, "did you mean topic"),
        ({"body": "string"}, {"topic": "t", "dedupProperty": "KEYS"}, "choose a name"),
    ],
)
def test_what_cannot_be_written_is_refused(
    columns: dict[str, str], options: dict[str, str], said: str
) -> None:
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    with pytest.raises(OptionError, match=said):
        TopicWriter({"nameServer": "mq:9876", **options}, schema)


def test_messages_cannot_be_replaced(spark: SparkSession, server: Server) -> None:
    writer = spark.sql("SELECT 'a' AS body").write.format("aerobee").option("topic", "t")
    with pytest.raises(Exception, match="messages cannot be replaced"):
        writer.option("nameServer", server.nameserver).mode("overwrite").save()
    with pytest.raises(Exception, match="store folders are only read"):
        writer.mode("append").save("/some/store")


# --- one task, before brokers that do as the test says --------------------------------------------------------


@asynccontextmanager
async def task_of(
    columns: dict[str, str], queues: int = 2, **options: str
) -> AsyncIterator[tuple[FakeCluster, WriteTask]]:
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    async with fake_cluster(queues=queues) as cluster, Client(cluster.nameserver.addr) as mq:
        given = {"nameServer": cluster.nameserver.addr, "topic": "T", **options}
        task = WriteTask(WriteSettings.of(given, schema), "job:0")
        await task.open(mq)
        try:
            yield cluster, task
        finally:
            await task.close()


async def test_only_the_guilty_of_a_refused_batch_fail() -> None:
    async with task_of({"body": "string"}) as (cluster, task):
        illegal = Response(ResponseCode.MESSAGE_ILLEGAL, "not such a message")
        usual = cluster.broker.send_batch
        cluster.broker.script(BATCH, illegal, usual, illegal, usual, usual, usual)
        await task.send(pa.record_batch([pa.array(["a", "b", "c", "d", "e"])], names=["body"]))
        assert (task.sent, task.failed) == (4, 1)
        assert sorted(cluster.broker.bodies("T")) == [b"a", b"c", b"d", b"e"]
        assert "not such a message" in next(iter(task.reasons))


async def test_rows_of_one_queue_wait_for_those_before_them() -> None:
    async with task_of({"body": "string", "shardingKey": "string"}) as (cluster, task):
        hold = cluster.broker.hold(BATCH)
        bodies = [f"{n:04d}" for n in range(3000)]
        rows = pa.record_batch([pa.array(bodies), pa.array(["k"] * 3000)], names=["body", "shardingKey"])
        sending = asyncio.create_task(task.send(rows))
        await hold.wait_for(1)
        assert len(cluster.broker.asked(BATCH)) == 1  # three batches, one of them out
        cluster.broker.always(BATCH, None)
        hold.let_go()
        await sending
        assert cluster.broker.bodies("T") == [body.encode() for body in bodies]


async def test_free_batches_are_out_together() -> None:
    async with task_of({"body": "string"}) as (cluster, task):
        hold = cluster.broker.hold(BATCH)
        sending = asyncio.create_task(task.send(pa.record_batch([pa.array(["x"] * 10_000)], names=["body"])))
        await hold.wait_for(8)
        cluster.broker.always(BATCH, None)
        hold.let_go()
        await sending
        assert (task.sent, len(cluster.broker.bodies("T"))) == (10_000, 10_000)


async def test_large_bodies_are_compressed_and_keys_of_repeats_equal() -> None:
    schema = StructType().add("body", "binary").add("properties", MapType(StringType(), StringType()))
    async with fake_cluster(queues=1) as cluster, Client(cluster.nameserver.addr) as mq:
        given = {"nameServer": cluster.nameserver.addr, "topic": "T", "dedupProperty": "once"}
        settings = WriteSettings.of(given, schema)
        rows = pa.record_batch(
            [
                pa.array([b"small", b"large " * 2000]),
                pa.array([[("a", "b")], None], pa.map_(pa.string(), pa.string())),
            ],
            names=["body", "properties"],
        )
        for _ in range(2):  # a task that is repeated
            task = WriteTask(settings, "job:0")
            await task.open(mq)
            await task.send(rows)
            await task.close()
        records = [decode_record(one) for one in cluster.broker.queues["T", 0]]
    found = sorted((decode_properties(one.properties)["once"], one.sys_flag & 1) for one in records)
    assert found == [("job:0:0", 0), ("job:0:0", 0), ("job:0:1", 1), ("job:0:1", 1)]
