"""Rows become messages."""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from aerobee import Message
from aerobee_pytest import Server
from pyspark_aerobee.errors import OptionError
from pyspark_aerobee.topic_write import TopicWriter

pytestmark = pytest.mark.timeout(300)

Write = Callable[..., None]


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


def test_what_brokers_refuse_fails_the_task(spark: SparkSession, write: Write) -> None:
    frame = spark.sql("SELECT 'a' AS body UNION ALL SELECT '' UNION ALL SELECT 'c'").coalesce(1)
    with pytest.raises(Exception, match=r"1 messages could not be sent.*empty body"):
        write(frame, topic="written-somewhere")
    with pytest.raises(Exception, match=r"could not be sent"):
        write(frame.where("body != ''").selectExpr("body", "99 AS queueId"), topic="TBW102")


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
