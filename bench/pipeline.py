"""How many rows Spark reads, archives and writes per second and per core-second.

    .venv/bin/python bench/pipeline.py [--records 2000000] [--only store|topic]

Core-seconds are the processor time of everything that works for Spark: this process, the JVM, its Python workers. They
say more than wall time on a machine that others use too. Bodies are 256 bytes on average, properties as a client sends
them, every record with its whole-record checksum, which is looked at.

For comparison, on the same bytes: a data source that yields a tuple for each record, and whole files (binaryFile)
parsed by the same code in mapInArrow; the latter needs the package pandas and is left out without it.
"""

import argparse
import importlib.util
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from aerobee_proto.javahash import tag_hash
from aerobee_proto.records import decode_record
from aerobee_store.disk.io import DiskIo
from aerobee_store.offline.folder import StoreFolder
from aerobee_store.store import MessageStore
from aerobee_store.terms.config import StoreConfig
from aerobee_store.terms.messages import NewMessage
from aerobee_store.walking.record_columns import sound_records
from pyspark_aerobee.columns import ColumnBuilder
from pyspark_aerobee.folder import open_folder
from pyspark_aerobee.java import use_java
from pyspark_aerobee.jobs.archive import archive
from pyspark_aerobee.jobs.spans import StoreSpans
from pyspark_aerobee.schema import message_schema

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import ours

QUEUES = 8
HOST = bytes((127, 0, 0, 1)) + (10911).to_bytes(4, "big")
TAGS = [f"tag-{number}" for number in range(10)]
WORDS = [
    "order",
    "customer",
    "amount",
    "currency",
    "EUR",
    "created",
    "shipped",
    "street",
    "city",
    "item",
    "price",
]
STORE_FILE = 128 << 20  # whole files, as binaryFile reads them, have to fit the JVM several times over
ROUNDS = 3


def messages(count: int, chance: random.Random) -> list[NewMessage]:
    """As a broker builds them from what clients send."""
    made = []
    for number in range(count):
        size = chance.randrange(192, 321)
        body = bytearray(b'{"id":%d' % chance.getrandbits(60))
        while len(body) < size:
            body += b',"%s":"%d"' % (chance.choice(WORDS).encode(), chance.randrange(100_000))
        tag = TAGS[number % len(TAGS)]
        unique_key = f"7F00000100002A9F{chance.getrandbits(64):016X}"
        key = f"key-{chance.randrange(1 << 30)}"
        properties = (
            f"UNIQ_KEY\x01{unique_key}\x02KEYS\x01{key}\x02TAGS\x01{tag}\x02"
            f"region\x01eu-{number % 3}\x02WAIT\x01true\x02"
        )
        made.append(
            NewMessage(
                "Orders", number % QUEUES, 0, 0, 1_750_000_000_000, HOST, HOST, 0, 0,
                bytes(body[:size]), properties.encode(), tag_hash(tag), None, unique_key,
            )
        )  # fmt: skip
    return made


def write_store(root: Path, count: int) -> None:
    """A store of `count` messages; no index, as nothing here reads it."""
    now = 1_750_000_000_000
    config = StoreConfig(root=root, commit_log_file_size=STORE_FILE, consume_queue_file_size=20 * 300_000)
    store = MessageStore(config, io=DiskIo(), clock=lambda: now)
    store.open()
    chance = random.Random(1)  # noqa: S311  # the same records every time
    templates = messages(20_000, chance)
    for first in range(0, count, 1000):
        now = 1_750_000_000_000 + first
        at = first % len(templates)
        store.append(templates[at : at + min(1000, count - first)])
        store.confirm(store.end_offset)
    store.flush_disk()
    store.close()


# --- measuring -----------------------------------------------------------------------------------------------

SERVERS: list[int] = []  # process ids of broker and nameserver


def _below(pid: int) -> list[int]:
    return [process.pid for process in psutil.Process(pid).children(recursive=True)]


@dataclass(slots=True)
class Result:
    """Rows per second, wall and core."""

    name: str
    rows: int
    wall_s: float
    core_s: float
    jvm_s: float  # of core_s
    selected: int | None = None  # rows per core-second

    def line(self) -> str:
        per_core = self.rows / self.core_s
        selected = f"   wanted {self.selected:>9,}" if self.selected else ""
        jvm, python = self.jvm_s / self.rows * 1e6, (self.core_s - self.jvm_s) / self.rows * 1e6
        return (
            f"{self.name:40} {self.rows / self.wall_s:>9,.0f} rows/s {per_core:>9,.0f} rows/core-s"
            f"   JVM {jvm:4.2f} + Python {python:4.2f} us a row{selected}"
        )


def core_seconds() -> tuple[float, float]:
    """Processor time of this process and all that it has started, ended ones too, but for servers; the JVM's alone."""
    total = jvm = 0.0
    here = psutil.Process()
    servers = {pid for server in SERVERS for pid in (server, *_below(server))}
    for process in [here, *here.children(recursive=True)]:
        if process.pid in servers:
            continue
        try:
            times = process.cpu_times()
            total += sum(times[:4])
            if process.name() == "java":
                jvm += times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return total, jvm


def measure(name: str, rows: int, work: Callable[[], object], selected: int | None = None) -> Result:
    """The median of some rounds, by core-seconds, after as many that warm up: the JVM compiles while they run."""
    for _ in range(ROUNDS):
        work()
    results = []
    for _ in range(ROUNDS):
        (cores, jvm), wall = core_seconds(), time.perf_counter()
        work()
        took_s = time.perf_counter() - wall
        cores_after, jvm_after = core_seconds()
        results.append(Result(name, rows, took_s, cores_after - cores, jvm_after - jvm, selected))
    middle = sorted(results, key=lambda one: one.core_s)[ROUNDS // 2]
    print(middle.line(), flush=True)
    return middle


def to_nowhere(frame: DataFrame) -> None:
    """Compute all rows and drop them."""
    frame.write.format("noop").mode("overwrite").save()


# --- the store reader and what it is compared with ----------------------------------------------------------------


class TupleSource(DataSource):
    """A data source as one writes it first: one log file a partition, a tuple for each record."""

    @classmethod
    def name(cls) -> str:
        return "tuples"

    def schema(self) -> StructType:
        return message_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return TupleReader(self.options["path"], int(self.options["files"]))


class TupleReader(DataSourceReader):
    """Reads the first `files` log files."""

    def __init__(self, root: str, files: int) -> None:
        self._paths = sorted(str(path) for path in (Path(root) / "commitlog").iterdir())[:files]

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(path) for path in self._paths]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        from datetime import UTC, datetime

        content, at = Path(partition.value).read_bytes(), 0
        while content[at + 4 : at + 8] in (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab"):
            one = decode_record(content, at)
            at += one.size
            yield (
                one.topic, None, one.queue_id, one.queue_offset,
                datetime.fromtimestamp(one.store_timestamp / 1000, UTC),
                datetime.fromtimestamp(one.born_timestamp / 1000, UTC),
                one.unique_key, one.tags, list(one.keys), dict(one.property_map), one.body, one.physical_offset,
            )  # fmt: skip


def parse_whole_files(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What mapInArrow does with the rows of binaryFile."""
    from pyspark.sql.pandas.types import to_arrow_schema

    builder = ColumnBuilder(to_arrow_schema(message_schema(), timezone="UTC"), None)
    for batch in batches:
        for content in batch.column(0):
            view, at = memoryview(content.as_buffer()), 0
            base = int.from_bytes(view[28:36], "big")
            while (found := sound_records(view, at, base, stop=at + (2 << 20))) is not None:
                yield builder.batch(found, view)
                at = found.end


def store_figures(spark: SparkSession, root: Path, count: int, scratch: Path) -> list[Result]:
    """Everything that needs no broker."""
    path = str(root)

    def read(schema: str | None = None) -> DataFrame:
        reader = spark.read.format("aerobee")
        return (reader.schema(schema) if schema else reader).load(path)

    unchecked = spark.read.format("aerobee").option("verifyChecksums", "false")
    narrow = unchecked.schema("topic string, tags string").load(path)
    by_queue = spark.read.format("aerobee").option("topic", "Orders").load(path)
    results = [
        measure("store, all columns", count, lambda: to_nowhere(read()), 300_000),
        measure(
            "store, topic and tags", count, lambda: to_nowhere(read("topic string, tags string")), 1_000_000
        ),
        measure("store, topic and tags, no checksums", count, lambda: to_nowhere(narrow)),
        measure("store, by queues, all columns", count, lambda: to_nowhere(by_queue)),
        measure(
            "store, count by tag",
            count,
            lambda: read("topic string, tags string").groupBy("topic", "tags").count().collect(),
        ),
    ]
    spark.dataSource.register(TupleSource)
    some = StoreFolder(open_folder(path)).log_files()[0]
    rows = spark.read.format("tuples").option("path", path).option("files", 1).load().count()
    tuples = spark.read.format("tuples").option("path", path).option("files", 1).load()
    results.append(
        measure(f"tuples, {(some.end - some.offset) >> 20} MiB of it", rows, lambda: to_nowhere(tuples))
    )
    if importlib.util.find_spec("pandas") is not None:
        files = spark.read.format("binaryFile").load(f"{path}/commitlog").select("content")
        parsed = files.mapInArrow(parse_whole_files, message_schema())
        results.append(measure("binaryFile and mapInArrow, all columns", count, lambda: to_nowhere(parsed)))
    results.append(_archive_figure(spark, path, count, scratch))
    results.append(
        measure(
            "Spark's own Parquet writer",
            count,
            lambda: (
                read().write.option("compression", "zstd").mode("overwrite").parquet(str(scratch / "own"))
            ),
        )
    )
    return results


def _archive_figure(spark: SparkSession, path: str, count: int, scratch: Path) -> Result:
    target = scratch / "archive"

    def run() -> None:
        shutil.rmtree(target, ignore_errors=True)
        source = StoreSpans(path, ("Orders",), task_size=64 << 20)
        assert archive(spark, source, str(target)).rows == count

    return measure("archive to Parquet (zstd)", count, run, 250_000)


# --- topics --------------------------------------------------------------------------------------------------


def topic_figures(spark: SparkSession, root: Path, count: int, scratch: Path) -> None:
    """A broker on the same two cores; rates by wall time."""
    with ExitStack() as stack:
        nameserver = stack.enter_context(ours.start_nameserver(forked=False))
        config = {"mappedFileSizeCommitLog": STORE_FILE, "mappedFileSizeConsumeQueue": 20 * 300_000}
        broker = stack.enter_context(
            ours.start_broker(scratch / "broker", nameserver.address, config=config, forked=False)
        )
        SERVERS[:] = [nameserver.pid, broker.pid]
        _create_topic(nameserver.address)
        stored_rows = spark.read.format("aerobee").schema("body binary, tags string, keys array<string>")
        rows = stored_rows.option("minPartitions", 2).load(str(root)).limit(count).repartition(2).persist()
        rows.count()

        def write() -> None:
            frame = rows.write.format("aerobee").option("nameServer", nameserver.address)
            frame.option("topic", "Bench").mode("append").save()

        measure("topic writer", count, write, 60_000)
        reader = spark.read.format("aerobee").option("nameServer", nameserver.address)
        topic = reader.option("subscribe", "Bench")
        stored = topic.schema("queueId int").load().count()
        measure(
            "topic reader, all columns",
            stored,
            lambda: to_nowhere(topic.schema(message_schema()).load()),
            150_000,
        )
        _latency(spark, nameserver.address, scratch)
        SERVERS.clear()


def _create_topic(nameserver: str) -> None:
    from aerobee.sync import Client

    with Client(nameserver) as mq:
        for topic in ("Bench", "Ticks"):
            mq.admin.create_topic(topic, queues=4)


def _latency(spark: SparkSession, nameserver: str, scratch: Path) -> None:
    """From the send of a message to the end of the micro-batch that has it."""
    from aerobee.sync import Client

    ends: list[tuple[float, float]] = []

    def batch(frame: DataFrame, _: int) -> None:
        newest = frame.agg({"body": "max"}).collect()[0][0]
        if newest is not None:
            ends.append((time.time(), float(bytes(newest))))

    stream = (
        spark.readStream.format("aerobee").option("nameServer", nameserver).option("subscribe", "Ticks")
        .option("startingOffsets", "earliest").schema("body binary").load()
        .writeStream.option("checkpointLocation", str(scratch / "checkpoint")).foreachBatch(batch)
        .trigger(processingTime="0 seconds").start()
    )  # fmt: skip
    took: list[float] = []
    try:
        with Client(nameserver) as mq, mq.producer() as producer:
            for number in range(100):
                sent = time.time()
                producer.send("Ticks", f"{sent:.6f}")
                while not any(newest >= sent - 1e-5 for _, newest in ends):
                    time.sleep(0.002)
                if number >= 20:  # the first batches warm up
                    took.append(ends[-1][0] - sent)
    finally:
        stream.stop()
    took.sort()
    middle, most = took[len(took) // 2] * 1000, took[int(len(took) * 0.95)] * 1000
    print(
        f"micro-batch, send to end of batch: p50 {middle:.0f} ms, p95 {most:.0f} ms   wanted p50 500",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--only", choices=["store", "topic"])
    parser.add_argument("--json", type=Path, help="write the figures of the store there")
    arguments = parser.parse_args()
    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    scratch = Path(tempfile.mkdtemp(prefix="aerobee-bench-"))
    builder = SparkSession.builder.master("local[2]").appName("bench")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "4g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "ERROR",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        root = scratch / "store"
        write_store(root, arguments.records)
        if arguments.only != "topic":
            results = store_figures(spark, root, arguments.records, scratch)
            if arguments.json is not None:
                arguments.json.write_text(json.dumps([asdict(result) for result in results], indent=2))
        if arguments.only != "store":
            topic_figures(spark, root, min(arguments.records, 300_000), scratch)
    finally:
        spark.stop()
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
