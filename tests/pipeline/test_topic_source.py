"""Topics through a broker as a table: all of it, what is asked for, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from aerobee import SendResult
from aerobee_pytest import Server

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
def filled(aerobee_server: Server) -> Filled:
    """COUNT messages of different sizes, most of them in queue 3."""
    topic = aerobee_server.new_topic("filled")
    sent: dict[tuple[int, int], tuple[bytes, str | None]] = {}
    with aerobee_server.sync_client() as mq, mq.producer() as producer:
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
def read(spark: SparkSession, aerobee_server: Server) -> Read:
    def read(topic: str | None = None, schema: str | None = None, **options: Any) -> DataFrame:
        reader = spark.read.format("aerobee").option("nameServer", aerobee_server.nameserver)
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
