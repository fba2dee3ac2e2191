"""A store folder as a table: everything in it, what is asked for, and what is damaged."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from aerobee_proto.records import StoredRecord, decode_record
from aerobee_store.disk.io import DiskIo
from aerobee_store.store import MessageStore
from aerobee_store.terms.config import StoreConfig
from pipeline.conftest import TOPICS

Read = Callable[..., DataFrame]


@pytest.fixture
def read(spark: SparkSession, store_folder: Path) -> Read:
    def read(path: Path = store_folder, schema: str | None = None, **options: Any) -> DataFrame:
        reader = spark.read.format("aerobee").option("indexSlots", 97)
        for name, value in options.items():
            reader = reader.option(name, value)
        return (reader.schema(schema) if schema else reader).load(str(path))

    return read


@pytest.fixture(scope="session")
def records(store_folder: Path) -> list[StoredRecord]:
    """All records of the store, read one by one, in the order of the log."""
    found = []
    for path in sorted((store_folder / "commitlog").iterdir()):
        content, at = path.read_bytes(), 0
        while int.from_bytes(content[at + 4 : at + 8], "big") in (0xDAA320A7, 0xDAA320AB):
            found.append(decode_record(content, at))
            at += found[-1].size
    assert len(found) == 400
    return found


def places(frame: DataFrame) -> list[int]:
    return sorted(row.commitLogOffset for row in frame.select("commitLogOffset").collect())


def test_the_whole_store(read: Read, records: list[StoredRecord]) -> None:
    rows = read(minPartitions=5).collect()
    found = {row.commitLogOffset: row for row in rows}
    assert len(rows) == len(found) == len(records)
    for record in records:
        row = found[record.physical_offset]
        assert (row.topic, row.queueId, row.queueOffset) == (
            record.topic,
            record.queue_id,
            record.queue_offset,
        )
        assert (bytes(row.body), row.tags, row.keys) == (record.body, record.tags, list(record.keys))
        assert row.msgId == (record.unique_key or record.offset_message_id)
        assert row.properties == {k: v for k, v in record.property_map.items() if k != "__CRC32C"}
        assert row.storeTimestamp.timestamp() * 1000 == record.store_timestamp


def test_it_is_cut_into_partitions(read: Read) -> None:
    assert read(minPartitions=1).rdd.getNumPartitions() >= 1
    assert read(minPartitions=6).rdd.getNumPartitions() >= 6
    assert read(topic="Orders", maxPartitionBytes="4k").rdd.getNumPartitions() > 4


@pytest.mark.parametrize("size", ["700", "3k", "1m"])
def test_every_message_of_a_topic_once_however_it_is_cut(
    read: Read, records: list[StoredRecord], size: str
) -> None:
    expected = sorted(r.physical_offset for r in records if r.topic in TOPICS[:2])
    assert places(read(topic="Orders, Payments", maxPartitionBytes=size)) == expected
    assert places(read(maxPartitionBytes=size)) == sorted(r.physical_offset for r in records)


def test_options_choose(read: Read, records: list[StoredRecord]) -> None:
    middle = records[200].store_timestamp

    def expected(test: Callable[[StoredRecord], bool]) -> list[int]:
        return sorted(r.physical_offset for r in records if test(r))

    assert places(read(topic="Orders", queueId="0,2")) == expected(
        lambda r: r.topic == "Orders" and r.queue_id in (0, 2)
    )
    assert places(read(topic="Orders", startingQueueOffset=5, endingQueueOffset=9)) == expected(
        lambda r: r.topic == "Orders" and 5 <= r.queue_offset < 9
    )
    assert places(read(startingTimestamp=middle)) == expected(lambda r: r.store_timestamp >= middle)
    assert places(read(topic="Payments", endingTimestamp=middle)) == expected(
        lambda r: r.topic == "Payments" and r.store_timestamp < middle
    )
    assert places(read(topic="Orders", tags="red,grün")) == expected(
        lambda r: r.topic == "Orders" and r.tags in ("red", "grün")
    )
    assert places(read(tags="blue")) == expected(lambda r: r.tags == "blue")


def test_a_key_is_found_through_the_index(read: Read, records: list[StoredRecord]) -> None:
    one = next(r for r in records if r.topic == "Payments" and "shared" not in r.keys and r.keys)
    assert places(read(topic="Payments", key=one.keys[0])) == [one.physical_offset]
    shared = sorted(r.physical_offset for r in records if "shared" in r.keys)
    assert places(read(topic=",".join(TOPICS), key="shared")) == shared
    assert places(read(topic="Orders", key="nobody")) == []


def test_a_schema_chooses_columns(read: Read) -> None:
    frame = read(schema="tags string, topic string")
    assert frame.columns == ["tags", "topic"]
    assert frame.where("tags = 'red'").count() == 100
    assert set(read(includeBody="false", includeProperties="false").columns).isdisjoint(
        {"body", "properties"}
    )
    kafka = read(schemaMode="kafka", topic="Orders")
    assert kafka.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert kafka.count() == 134


def test_sql_over_a_view(spark: SparkSession, store_folder: Path) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW m USING aerobee OPTIONS (path '{store_folder}', indexSlots '97')"
    )
    found = spark.sql("SELECT topic, count(*) AS n FROM m GROUP BY topic ORDER BY topic").collect()
    assert [tuple(row) for row in found] == [("%RETRY%g", 133), ("Orders", 134), ("Payments", 133)]


def test_filters_of_spark_narrow_the_plan(spark: SparkSession, read: Read) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read(pushdown="true").where("topic = 'Orders' AND queueOffset >= 3 AND queueOffset < 5")
        assert frame.rdd.getNumPartitions() == len({row.queueId for row in frame.collect()})
        assert {row.queueOffset for row in frame.collect()} == {3, 4}
        assert read(pushdown="true").where("tags = 'blue' OR tags = 'red'").count() == 200
        assert read(pushdown="true").where("topic = 'Nothing'").count() == 0
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_damage_costs_its_record_and_is_told(
    read: Read, store_folder: Path, tmp_path: Path, records: list[StoredRecord]
) -> None:
    copy = tmp_path / "store"
    shutil.copytree(store_folder, copy)
    hurt = [records[17], records[230]]
    for record in hurt:
        path = next(
            p
            for p in sorted((copy / "commitlog").iterdir(), reverse=True)
            if int(p.name) <= record.physical_offset
        )
        content = bytearray(path.read_bytes())
        content[record.physical_offset - int(path.name) + 95] ^= 4
        path.write_bytes(content)
    left = sorted(r.physical_offset for r in records if r not in hurt)
    assert places(read(copy, minPartitions=3)) == left
    assert places(read(copy, topic=",".join(TOPICS))) == left
    for options in ({}, {"topic": ",".join(TOPICS)}):
        logged = read(copy, table="damage", **options).collect()
        assert sorted((row.beginOffset, row.endOffset) for row in logged) == [
            (r.physical_offset, r.physical_offset + r.size) for r in hurt
        ]
        assert all("commitlog/" in row.file and row.reason for row in logged)


def test_a_store_that_is_being_written(read: Read, tmp_path: Path) -> None:
    from pipeline.conftest import write_store
    from store.workload import message

    root = tmp_path / "store"
    write_store(root, count=50)
    config = StoreConfig(
        root=root,
        commit_log_file_size=64 << 10,
        consume_queue_file_size=2000,
        index_slots=97,
        index_entries=300,
    )
    store = MessageStore(config, io=DiskIo(), clock=lambda: 1_800_000_000_000)
    store.open()
    try:
        store.append([message("Orders", 0, b"late")])  # in the log, not in its queue yet
        assert read(root).count() == 51
        assert read(root, topic="Orders").count() == 17
        store.confirm(store.end_offset)
        assert read(root, topic="Orders").count() == 18
        assert read(root, table="damage").count() == 0
    finally:
        store.close()


def test_a_distant_folder(read: Read, store_folder: Path, records: list[StoredRecord]) -> None:
    address = f"local://{store_folder}"
    assert read(address, topic="Orders", maxPartitionBytes="3k").count() == 134
    assert read(address, minPartitions=4).count() == len(records)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topik": "Orders"}, "did you mean topic"),
        ({"topic": "Order"}, "did you mean Orders"),
        ({"queueId": "one"}, "queue ids"),
        ({"minPartitions": "0"}, "at least 1"),
        ({"startingTimestamp": "yesterday"}, "ISO 8601"),
        ({"key": "k1"}, "give the option topic"),
        ({"topic": "a", "subscribe": "b"}, "cannot be combined"),
        ({"table": "messages!"}, "one of: messages, damage"),
        ({"includeBody": "maybe"}, "true or false"),
        ({"maxPartitionBytes": "much"}, "number of bytes"),
    ],
)
def test_what_cannot_be_meant_is_refused(read: Read, options: dict[str, str], said: str) -> None:
    with pytest.raises(Exception, match=said):
        read(**options).count()


def test_a_folder_that_is_no_store(read: Read, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="there is no log in it"):
        read(tmp_path).count()


def test_a_column_that_does_not_exist(read: Read) -> None:
    with pytest.raises(AnalysisException, match="did you mean tags"):
        read(schema="tag string").count()


def test_checksums_can_be_left_out(read: Read, store_folder: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(store_folder, tmp_path / "store"))
    with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(90)  # in the body of the first record
        file.write(b"\xff")
    for options in ({}, {"topic": ",".join(TOPICS)}):
        assert read(root, **options).count() == 399
        assert read(root, verifyChecksums="false", **options).count() == 400
