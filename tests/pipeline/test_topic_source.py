"""Topics through a broker as a table: all of it, what is asked for, and what is refused."""

import json
from collections.abc import Callable
from datetime import UTC
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from aerobee import SendResult
from aerobee_pytest import Server
from pyspark_aerobee.errors import OptionError, SourceGone
from pyspark_aerobee.schema import message_schema
from pyspark_aerobee.topic_source import TopicReader

pytestmark = pytest.mark.timeout(300)

Read = Callable[..., DataFrame]
COUNT = 600


class Filled:
    """A topic with messages, and what was stored where."""

    def __init__(self, topic: str, sent: dict[tuple[int, int], tuple[bytes, str | None]]) -> None:
        self.topic = topic
        self.sent = sent

    def ends(self) -> dict[int, int]:
        """One past the last offset of each queue."""
        return {queue: max(o for q, o in self.sent if q == queue) + 1 for queue, _ in self.sent}


@pytest.fixture(scope="module")
def filled(server: Server) -> Filled:
    """COUNT messages of different sizes, most of them in queue 3."""
    topic = server.new_topic("filled")
    sent: dict[tuple[int, int], tuple[bytes, str | None]] = {}
    with server.sync_client() as mq, mq.producer() as producer:
        futures = []
        for number in range(COUNT):
            body = b"body-%d " % number * (number % 30 + 1)
            tag = (None, "red", "blue")[number % 3]
            queue = number % 4 if number < 200 else 3
            options: dict[str, Any] = {"tags": tag, "queue": queue, "properties": {"n": str(number)}}
            if number % 5 == 0:
                options["keys"] = [f"k{number}", "shared"]
            futures.append((body, tag, producer.send_nowait(topic, body, **options)))
        for body, tag, future in futures:
            result: SendResult = future.result()
            sent[result.queue.queue_id, result.queue_offset] = (body, tag)
    assert len(sent) == COUNT
    return Filled(topic, sent)


@pytest.fixture
def read(spark: SparkSession, server: Server) -> Read:
    def read(topic: str | None = None, schema: str | None = None, **options: Any) -> DataFrame:
        reader = spark.read.format("aerobee").option("nameServer", server.nameserver)
        if topic is not None:
            reader = reader.option("subscribe", topic)
        for name, value in options.items():
            reader = reader.option(name, value)
        return (reader.schema(schema) if schema else reader).load()

    return read


def places(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted((row.queueId, row.queueOffset) for row in frame.select("queueId", "queueOffset").collect())


def test_the_whole_topic(read: Read, filled: Filled) -> None:
    rows = read(filled.topic).collect()
    assert {(row.queueId, row.queueOffset): (bytes(row.body), row.tags) for row in rows} == filled.sent
    assert len(rows) == COUNT
    row = next(row for row in rows if row.properties["n"] == "5")
    assert (row.topic, row.brokerName, row.keys) == (filled.topic, "broker-a", ["k5", "shared"])
    assert row.msgId == row.properties["UNIQ_KEY"]


def test_skewed_queues_are_split_and_small_ones_joined(read: Read, filled: Filled) -> None:
    assert read(filled.topic).rdd.getNumPartitions() == 1
    cut = read(filled.topic, minPartitions=7)
    assert cut.rdd.getNumPartitions() >= 7
    assert places(cut) == sorted(filled.sent)
    small = read(filled.topic, maxRecordsPerPartition=100)
    assert small.rdd.getNumPartitions() == COUNT // 100
    assert places(small) == sorted(filled.sent)
    sizes = read(filled.topic, maxPartitionBytes="40k").rdd.glom().map(len).collect()
    assert len(sizes) >= 5
    assert sum(sizes) == COUNT


def test_a_schema_and_options_choose_columns(read: Read, filled: Filled) -> None:
    frame = read(filled.topic, schema="tags string, queueId int")
    assert frame.where("tags = 'red'").count() == sum(tag == "red" for _, tag in filled.sent.values())
    assert "body" not in read(filled.topic, includeBody="false", includeProperties="false").columns
    kafka = (
        read(filled.topic, schemaMode="kafka", includeHeaders="true").orderBy("partition", "offset").collect()
    )
    assert [(row.partition, row.offset, bytes(row.value)) for row in kafka] == [
        (*place, body) for place, (body, _) in sorted(filled.sent.items())
    ]
    assert {h.key for h in kafka[0].headers} >= {"n", "UNIQ_KEY"}


def test_offsets_bound_a_read(read: Read, filled: Filled) -> None:
    ends = filled.ends()
    starts = {str(queue): 3 if queue else -2 for queue in ends}
    stops = {str(queue): 9 if queue == 1 else -1 for queue in ends}
    frame = read(
        filled.topic,
        startingOffsets=json.dumps({filled.topic: {"broker-a": starts}}),
        endingOffsets=json.dumps({filled.topic: {"broker-a": stops}}),
    )
    assert places(frame) == sorted((q, o) for q, o in filled.sent if (o >= 3 or not q) and (o < 9 or q != 1))


def test_one_queue_by_assign_and_by_option(read: Read, filled: Filled) -> None:
    expected = sorted(place for place in filled.sent if place[0] in (0, 2))
    assign = json.dumps({filled.topic: {"broker-a": [0, 2]}})
    assert places(read(assign=assign)) == expected
    assert places(read(filled.topic, queueId="0,2", brokerName="broker-a")) == expected


def test_a_pattern_chooses_topics(read: Read, filled: Filled) -> None:
    assert read(subscribePattern="fil{1,2}ed-.*").count() == COUNT
    assert read(subscribePattern="nothing-.*").count() == 0


def test_times_bound_a_read(read: Read, filled: Filled, server: Server) -> None:
    times = {(r.queueId, r.queueOffset): r.storeTimestamp for r in read(filled.topic).collect()}
    middle = sorted(times.values())[COUNT // 2]
    at_ms = round(middle.replace(tzinfo=UTC).timestamp() * 1000)
    later = sorted(place for place, time in times.items() if time >= middle)
    assert places(read(filled.topic, startingTimestamp=at_ms)) == later
    assert places(read(filled.topic, endingTimestamp=middle.isoformat())) == sorted(set(times) - set(later))
    assert read(filled.topic, startingTimestamp="-1h").count() == COUNT
    by_queue = {str(queue): at_ms for queue in filled.ends()}
    logged = json.dumps({filled.topic: {"broker-a": by_queue}})
    assert places(read(filled.topic, startingOffsetsByTimestamp=logged)) == later
    future = str(at_ms + 86_400_000)
    assert read(filled.topic, startingTimestamp=future).count() == 0
    with pytest.raises(Exception, match="has no message of that time or later"):
        read(filled.topic, startingTimestamp=future, startingOffsetsByTimestampStrategy="error").count()


def test_a_groups_offsets_bound_a_read(read: Read, filled: Filled, server: Server) -> None:
    with server.sync_client() as mq:
        mq.admin.create_group("half-way")
        queue = mq.queues(filled.topic)[3]
        mq.admin.set_group_offset("half-way", queue, 100)
    frame = read(filled.topic, group="half-way", startingOffsets="group")
    assert places(frame) == sorted((q, o) for q, o in filled.sent if q != 3 or o >= 100)


def test_brokers_filter(read: Read, filled: Filled) -> None:
    red = sorted(place for place, (_, tag) in filled.sent.items() if tag == "red")
    assert places(read(filled.topic, subExpression="red || green")) == red
    assert places(read(filled.topic, tags="red", minPartitions=3)) == red
    sql = read(filled.topic, filterType="sql92", subExpression="TAGS = 'red' AND n < 100")
    assert sql.count() == 33


def test_a_key_is_found(read: Read, filled: Filled) -> None:
    assert [row.properties["n"] for row in read(filled.topic, key="k25").collect()] == ["25"]
    assert read(filled.topic, key="shared").count() == COUNT // 5
    assert read(filled.topic, key="nobody").count() == 0


def test_filters_of_spark_narrow_the_plan(spark: SparkSession, read: Read, filled: Filled) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:

        def kept(condition: str) -> list[tuple[int, int]]:
            return places(read(filled.topic, pushdown="true").where(condition))

        assert kept("queueId = 3 AND queueOffset >= 5 AND queueOffset < 8") == [(3, 5), (3, 6), (3, 7)]
        assert kept("brokerName = 'broker-z'") == []
        assert kept("tags IN ('red')") == sorted(p for p, (_, tag) in filled.sent.items() if tag == "red")
        first = read(filled.topic).agg({"storeTimestamp": "min"}).collect()[0][0]
        assert len(kept(f"storeTimestamp > TIMESTAMP '{first}'")) < COUNT
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_sql_and_the_other_name(spark: SparkSession, filled: Filled, server: Server) -> None:
    import pyspark_aerobee

    pyspark_aerobee.register(spark)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW t USING rocketmq OPTIONS "
        f"(namesrvAddr '{server.nameserver}', topic '{filled.topic}')"
    )
    found = spark.sql("SELECT queueId, count(*) FROM t GROUP BY queueId ORDER BY queueId").collect()
    assert dict(map(tuple, found)) == filled.ends()


def plan(server: Server, **options: str) -> None:
    """What Spark would have the reader do on the driver."""
    TopicReader({"nameServer": server.nameserver, **options}, message_schema(), 0).partitions()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "fille"}, "there is no such topic(.|\n)*similar topics: filled"),
        ({"subscribe": "TOPIC", "queueId": "9"}, "it chooses no queue"),
        ({"assign": '{"TOPIC": {"broker-b": [0]}}'}, "it has no queue 0 of broker broker-b"),
        ({"subscribe": "TOPIC", "startingOffsets": '{"TOPIC": {"broker-a": {"0": 1}}}'}, "name every queue"),
        ({"subscribe": "TOPIC", "startingOffsets": '{"TOPIC": {"broker-a": {"7": 1}}}'}, "no such queue"),
        ({"subscribe": "TOPIC", "filterType": "sql92", "subExpression": "a NOT LIKE 5"}, "SQL92 filter"),
    ],
)
def test_what_the_cluster_does_not_have_is_refused(
    server: Server, filled: Filled, options: dict[str, str], said: str
) -> None:
    given = {name: value.replace("TOPIC", filled.topic) for name, value in options.items()}
    with pytest.raises(OptionError, match=said):
        plan(server, **given)


def test_offsets_out_of_range_are_named(server: Server, filled: Filled) -> None:
    def logged(offset: int) -> str:
        starts = {str(queue): offset if queue == 1 else -2 for queue in filled.ends()}
        return json.dumps({filled.topic: {"broker-a": starts}})

    with pytest.raises(
        OptionError, match=f"10000.*{filled.topic}, broker broker-a, queue 1 has the offsets 0 to"
    ):
        plan(server, subscribe=filled.topic, startingOffsets=logged(10_000))
    with pytest.raises(OptionError, match="endingOffsets, value '10000'"):
        plan(server, subscribe=filled.topic, endingOffsets=logged(10_000))
    with pytest.raises(OptionError, match="is to be read from 30 on"):
        plan(server, subscribe=filled.topic, startingOffsets=logged(30), endingOffsets=logged(5))
    plan(server, subscribe=filled.topic, startingOffsets=logged(10_000), failOnDataLoss="false")


def test_a_cluster_that_does_not_answer(filled: Filled) -> None:
    with pytest.raises(SourceGone, match=r"nameserver 127\.0\.0\.1:1"):
        TopicReader({"nameServer": "127.0.0.1:1", "topic": "a"}, message_schema(), 0).partitions()


def test_neither_path_nor_nameserver(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="say what to read"):
        spark.read.format("aerobee").load()
    with pytest.raises(Exception, match="did you mean nameServer"):
        spark.read.format("aerobee").option("nameSever", "a").load()
    with pytest.raises(Exception, match="did you mean subscribe"):
        spark.read.format("aerobee").option("nameServer", "a").option("subscrib", "a").load()
