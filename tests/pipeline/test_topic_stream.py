"""Topics as a stream: what is planned, batch by batch, and whole queries with their checkpoints."""

import json
import queue as queues
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from aerobee import MessageQueue
from aerobee_pytest import Server
from pipeline.streams import Stream, counted, fill
from pyspark_aerobee.errors import DataLoss, OptionError, PipelineError, SourceGone
from pyspark_aerobee.topic_stream import from_json, limited, to_json

pytestmark = pytest.mark.timeout(300)


def test_offsets_are_texts_in_one_order() -> None:
    offsets = {MessageQueue("b", "x", 10): 5, MessageQueue("a", "y", 0): 1, MessageQueue("b", "x", 2): 7}
    text = json.dumps(to_json(offsets))
    assert text == json.dumps(to_json(dict(reversed(offsets.items()))))
    assert from_json(json.loads(text)) == offsets
    with pytest.raises(PipelineError, match="not one of this source"):
        from_json({"orders": 5})


@pytest.mark.parametrize("limit", [1, 7, 100, 999])
def test_limits_are_shared_out(limit: int) -> None:
    sizes = {MessageQueue("t", "b", n): n * 100 for n in range(5)}
    shares = limited(sizes, limit)
    assert sum(shares.values()) == limit
    assert all(shares.get(queue, 0) <= size for queue, size in sizes.items())


def test_batches_are_bounded_and_nothing_is_read_twice(server: Server) -> None:
    topic = server.new_topic("bounded")
    fill(server.nameserver, topic, range(250))
    with Stream(server.nameserver, topic, maxOffsetsPerTrigger=100) as stream:
        at, seen, sizes = stream.start(), [], []
        while (end := stream.next(at)) != at:
            bodies = stream.bodies(at, end)
            assert bodies == stream.bodies(at, end)  # a batch that is repeated
            seen += bodies
            sizes.append(len(bodies))
            at = end
        assert sizes == [100, 100, 50]
        assert sorted(seen) == list(range(250))
        assert stream.reader.reportLatestOffset() == at
        assert stream.reader.latestOffset(at, ReadAllAvailable()) == at


def test_batches_are_bounded_by_bytes(server: Server) -> None:
    topic = server.new_topic("bytes")
    fill(server.nameserver, topic, range(80), size=2000)
    with Stream(server.nameserver, topic, maxBytesPerTrigger="50k") as stream:
        at, sizes = stream.start(), []
        while (end := stream.next(at)) != at:
            sizes.append(counted(end) - counted(at))
            at = end
    assert sum(sizes) == 80
    assert all(10 <= size <= 30 for size in sizes[:-1])


def test_few_messages_wait_for_company_but_not_for_ever(server: Server) -> None:
    topic = server.new_topic("company")
    fill(server.nameserver, topic, range(4))
    with Stream(server.nameserver, topic, minOffsetsPerTrigger=20, maxTriggerDelay="1h") as stream:
        at = stream.next(stream.start())
        assert counted(at) == 4  # the first batch does not wait
        fill(server.nameserver, topic, range(4, 10))
        assert stream.next(at) == at
        fill(server.nameserver, topic, range(10, 30))
        assert counted(stream.next(at)) == 30
    with Stream(server.nameserver, topic, minOffsetsPerTrigger=1000, maxTriggerDelay="1ms") as stream:
        at = stream.next(stream.start())
        fill(server.nameserver, topic, range(30, 35))
        assert counted(stream.next(at)) == 35


def test_available_now_ends_where_it_began(server: Server) -> None:
    topic = server.new_topic("now")
    fill(server.nameserver, topic, range(10))
    with Stream(server.nameserver, topic, maxOffsetsPerTrigger=6) as stream:
        at = stream.start()
        stream.reader.prepareForTriggerAvailableNow()
        fill(server.nameserver, topic, range(10, 30))
        at = stream.next(at)
        assert counted(at) == 6
        at = stream.next(at)
        assert counted(at) == 10
        assert stream.next(at) == at


def test_queues_that_appear_are_read_from_their_beginning(server: Server) -> None:
    topic = server.new_topic("growing", queues=4)
    fill(server.nameserver, topic, range(8))
    with Stream(server.nameserver, topic, startingOffsets="latest") as stream:
        at = stream.start()
        assert counted(at) == 8
        with server.sync_client() as mq:
            mq.admin.update_topic(topic, queues=6)
        fill(server.nameserver, topic, range(100, 110), queue=5)
        end = stream.next(at)
        assert stream.bodies(at, end) == list(range(100, 110))
        assert set(end[topic]["broker-a"]) == {"0", "1", "2", "3", "5"}
        assert stream.next(end) == end


def test_progress_is_reported_under_the_group(server: Server) -> None:
    topic = server.new_topic("reported")
    fill(server.nameserver, topic, range(12))
    with Stream(server.nameserver, topic, group="spark-job") as stream:
        at = stream.next(stream.start())
        stream.reader.commit(at)
    with server.sync_client() as mq:
        found = [mq.admin.group_offset("spark-job", queue) for queue in mq.queues(topic)]
        assert found == [3, 3, 3, 3]
        fill(server.nameserver, topic, range(5))
        assert sum(one.lag for one in mq.admin.group_progress("spark-job", topic).queues) == 5


def test_a_checkpoint_of_another_topic_is_refused(server: Server) -> None:
    one, other = server.new_topic("mine"), server.new_topic("yours")
    fill(server.nameserver, one, range(4))
    with Stream(server.nameserver, one) as stream:
        at = stream.next(stream.start())
    with Stream(server.nameserver, other) as stream:
        with pytest.raises(OptionError, match=f"read topic {one}.*checkpointLocation of its own"):
            stream.next(at)
        with pytest.raises(OptionError, match="checkpointLocation"):
            stream.reader.partitions(at, at)


def test_a_topic_that_vanishes_or_is_made_anew(server: Server) -> None:
    topic = server.new_topic("fleeting")
    fill(server.nameserver, topic, range(8))
    with (
        Stream(server.nameserver, topic) as strict,
        Stream(server.nameserver, topic, failOnDataLoss="false") as lenient,
    ):
        at = strict.next(strict.start())
        assert lenient.next(at) == at
        with server.sync_client() as mq:
            mq.admin.delete_topic(topic)
            with pytest.raises(SourceGone, match=f"{topic}, and it is not there any more"):
                strict.next(at)
            assert lenient.next(at) == at
            mq.admin.create_topic(topic, queues=4)
        fill(server.nameserver, topic, range(50, 54))
        with pytest.raises(DataLoss, match="made anew"):
            strict.next(at)
        end = lenient.next(at)
        assert lenient.bodies(at, end) == [50, 51, 52, 53]


def test_what_is_for_batches_is_refused(server: Server) -> None:
    with pytest.raises(OptionError, match="a stream has no such bound"):
        Stream(server.nameserver, "t", endingOffsets="latest")
    with (
        Stream(server.nameserver, "nothing-of-that-name") as stream,
        pytest.raises(OptionError, match="no such topic"),
    ):
        stream.start()


def test_the_limit_that_spark_is_told(server: Server) -> None:
    assert Stream(server.nameserver, "t", maxOffsetsPerTrigger=5).reader.getDefaultReadLimit() == ReadMaxRows(
        5
    )
    assert Stream(server.nameserver, "t").reader.getDefaultReadLimit() == ReadAllAvailable()


# --- whole queries -------------------------------------------------------------------------------------------


def stream_frame(spark: SparkSession, server: Server, topic: str, **options: Any) -> DataFrame:
    reader = spark.readStream.format("aerobee").option("nameServer", server.nameserver)
    for name, value in {"subscribe": topic, "startingOffsets": "earliest", **options}.items():
        reader = reader.option(name, value)
    return reader.load()


def test_a_query_goes_on_from_its_checkpoint(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    source, target = server.new_topic("from"), server.new_topic("to")

    def run() -> list[int]:
        frame = stream_frame(spark, server, source, maxOffsetsPerTrigger=120, group="copying")
        writer = frame.selectExpr("body", "array(cast(body AS string)) AS keys").writeStream.format("aerobee")
        query = (
            writer.option("nameServer", server.nameserver)
            .option("topic", target)
            .option("dedupProperty", "once")
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]

    def copied() -> list[tuple[int, str]]:
        with server.sync_client() as mq, mq.reader(target, end="now") as reader:
            return sorted((int(message.body), message.properties["once"]) for message in reader)

    fill(server.nameserver, source, range(300))
    assert run() == [120, 120, 60]
    fill(server.nameserver, source, range(300, 340))
    assert run() == [40]
    assert [number for number, _ in copied()] == list(range(340))
    assert len({once for _, once in copied()}) == 340
    with server.sync_client() as mq:
        offsets = [mq.admin.group_offset("copying", queue) for queue in mq.queues(source)]
        assert sum(offset or 0 for offset in offsets) == 300


def test_a_running_query_takes_what_comes(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    topic = server.new_topic("coming")
    came: queues.Queue[list[int]] = queues.Queue()
    frame = stream_frame(spark, server, topic).select("body")
    query = (
        frame.writeStream.foreachBatch(lambda rows, _: came.put([int(row.body) for row in rows.collect()]))
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        for begin in (0, 5, 10):
            fill(server.nameserver, topic, range(begin, begin + 5))
            found: list[int] = []
            while len(found) < 5:
                found += came.get(timeout=120)
            assert sorted(found) == list(range(begin, begin + 5))
    finally:
        query.stop()
