"""An official broker with messages of the official Java producer, zlib-compressed ones too, through Spark."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import official
from clusters import Cluster, start_cluster
from plain_remoting import make_topic
from traffic import LARGE_EACH, Ledger, Piece, by_tag

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(600)]

EACH = 600
MODES = "sync,async,batch"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := official.get_ready():
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with start_cluster(
        "official", tmp_path_factory.mktemp("official"), {"enablePropertyFilter": "true"}
    ) as started:
        yield started


def ledger_of(frame: DataFrame, topic: str) -> Ledger:
    ledger = Ledger(topic)
    for row in frame.collect():
        own: dict[str, str] = row.properties
        ledger.add(Piece(row.tags, row.keys[0], own, int(own["index"]), bytes(row.body)))
    return ledger


def test_java_messages_through_an_official_broker(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    nameserver = cluster.nameserver.address
    for topic in ("FromJava", "Copied"):
        make_topic(nameserver, cluster.broker.address, topic)
    report = official.judge("send", namesrv=nameserver, topic="FromJava", modes=MODES, each=EACH, run="s")
    assert report["failed"] == 0

    def read(**options: Any) -> DataFrame:
        reader = spark.read.format("aerobee").option("nameServer", nameserver)
        for name, value in {"subscribe": "FromJava", **options}.items():
            reader = reader.option(name, value)
        return reader.load()

    # All of it, compressed bodies inflated; and the same in many partitions.
    everything = ledger_of(read(), "FromJava")
    assert (everything.totals, everything.duplicates) == (by_tag(report), 0)
    assert read().where("length(body) = 20000").count() == 2 * -(-EACH // LARGE_EACH)
    cut = read(minPartitions=9)
    assert cut.rdd.getNumPartitions() >= 9
    assert ledger_of(cut, "FromJava").totals == by_tag(report)
    # What the broker filters.
    tagged = by_tag(report)["TagB"]
    assert ledger_of(read(subExpression="TagB"), "FromJava").totals == {"TagB": tagged}
    assert read(filterType="sql92", subExpression="index BETWEEN 10 AND 19").count() == 10 * len(
        MODES.split(",")
    )
    assert read(key="s-sync-7").count() == 1
    # As a stream that copies the topic and reports its progress to the broker.
    stream = spark.readStream.format("aerobee").option("nameServer", nameserver)
    for name, value in {"subscribe": "FromJava", "startingOffsets": "earliest", "group": "copying"}.items():
        stream = stream.option(name, value)
    frame = stream.option("maxOffsetsPerTrigger", 1000).load().select("body", "properties")
    writer = frame.writeStream.format("aerobee").option("nameServer", nameserver).option("topic", "Copied")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    query.awaitTermination()
    copied = ledger_of(read(subscribe="Copied"), "FromJava")
    assert (copied.totals, copied.duplicates) == (by_tag(report), 0)
    progress = read(startingOffsets="group", group="copying")
    assert progress.count() == len(MODES.split(",")) * EACH - 1000
