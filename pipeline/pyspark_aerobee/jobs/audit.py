"""Audit: what a store folder or topics hold, and what is wrong with it, as JSON and as a page with plots.

Touches  the source, reading; the report files.

    report = audit_store(spark, "/data/store")
    report = audit_topics(spark, {"nameServer": "mq1:9876", "subscribe": "orders"}, now_ms=...)
    python -m pyspark_aerobee.jobs.audit --path /data/store --html audit.html

Findings, each a fault or a reason to look:
    damage       stretches of the log that should hold records and hold none that can be proven (folders only)
    gaps         numbers of a queue that no message has, between others (a compacted topic has such gaps)
    duplicates   messages of one topic with one unique id: sent twice, as a producer does that did not hear an answer
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aerobee import MessageQueue
from aerobee_proto.names import RETRY_PREFIX
from aerobee_service.clock import epoch_ms
from aerobee_store.offline.folder import StoreFolder
from pyspark_aerobee.columns import ColumnBuilder
from pyspark_aerobee.folder import open_folder, open_store
from pyspark_aerobee.jobs.launch import (
    Advance,
    add_source_arguments,
    main_of,
    run_tasks,
    session,
    source_options,
)
from pyspark_aerobee.jobs.spans import Intervals, Span, Task, TopicSpans
from pyspark_aerobee.schema import message_schema
from pyspark_aerobee.store_plan import PARTITION_SIZE, StorePartition, StoreQuery, plan
from pyspark_aerobee.store_read import Damage, chosen_records, damage_facts, read_partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["audit_store", "audit_topics"]

# Different keys or tags that a task counts; then the rarest of them are forgotten.
COUNTED_MAX: Final = 50_000
COUNTED_KEPT: Final = 10_000
LISTED_MAX: Final = 1000  # findings of a kind that a report names; the numbers are of all
TOP: Final = 20
_MS_PER_HOUR: Final = 3_600_000
_COLUMNS: Final = ("topic", "brokerName", "queueId", "queueOffset", "storeTimestamp", "tags", "keys", "body")


@dataclass(slots=True)
class Tally:
    """What tasks count; tallies are added up."""

    messages: int = 0
    body_bytes: int = 0
    system_messages: int = 0
    begin_ms: int = 1 << 62
    end_ms: int = 0
    topics: Counter[str] = field(default_factory=Counter)
    topic_bytes: Counter[str] = field(default_factory=Counter)
    sizes: Counter[int] = field(default_factory=Counter)  # by the number of bits of the body's length
    hours: Counter[int] = field(default_factory=Counter)  # since the epoch
    tags: Counter[tuple[str, str]] = field(default_factory=Counter)  # (topic, tag)
    keys: Counter[tuple[str, str]] = field(default_factory=Counter)
    spans: list[Span] = field(default_factory=list)  # numbers seen, ascending in each queue
    damage: list[Damage] = field(default_factory=list)
    is_exact: bool = True  # False when rare keys or tags were forgotten

    def count(self, batch: pa.RecordBatch) -> None:
        """Add messages of one topic or several."""
        if not batch.num_rows:
            return
        sizes = pc.binary_length(batch.column("body")).to_numpy().astype(np.int64)
        hours = batch.column("storeTimestamp").cast(pa.int64()).to_numpy() // 1000
        self.messages += batch.num_rows
        self.body_bytes += int(sizes.sum())
        self.begin_ms = min(self.begin_ms, int(hours.min()))
        self.end_ms = max(self.end_ms, int(hours.max()))
        self._add(self.hours, *np.unique(hours // _MS_PER_HOUR, return_counts=True))
        bits = np.ceil(np.log2(sizes + 1)).astype(np.int64)
        self._add(self.sizes, *np.unique(bits, return_counts=True))
        self._count_topics(batch, sizes)

    @staticmethod
    def _add(counter: Counter[int], values: Any, counts: Any) -> None:
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            counter[value] += count

    def _count_topics(self, batch: pa.RecordBatch, sizes: Any) -> None:
        encoded = batch.column("topic").dictionary_encode()
        ids = encoded.indices.to_numpy()
        for number, topic in enumerate(encoded.dictionary.to_pylist()):
            mine = ids == number
            part = batch if mine.all() else batch.filter(pa.array(mine))
            self.topics[topic] += part.num_rows
            self.topic_bytes[topic] += int(sizes[mine].sum())
            self._count_words(self.tags, topic, part.column("tags").drop_null())
            self._count_words(self.keys, topic, part.column("keys").flatten())
            self._count_numbers(topic, part)

    def _count_words(self, counter: Counter[tuple[str, str]], topic: str, words: pa.Array) -> None:
        for one in words.value_counts().to_pylist():
            counter[topic, one["values"]] += one["counts"]
        if len(counter) > COUNTED_MAX:
            self.is_exact = False
            kept = counter.most_common(COUNTED_KEPT)
            counter.clear()
            counter.update(dict(kept))

    def _count_numbers(self, topic: str, part: pa.RecordBatch) -> None:
        broker_name = part.column("brokerName")[0].as_py() or ""
        queues = part.column("queueId").to_numpy()
        offsets = part.column("queueOffset").to_numpy()
        for queue_id in np.unique(queues).tolist():
            mine = np.sort(offsets[queues == queue_id])
            cuts = np.flatnonzero(np.diff(mine) > 1) + 1
            queue = MessageQueue(topic, broker_name, queue_id)
            for run in np.split(mine, cuts):
                self._see(Span(queue, int(run[0]), int(run[-1]) + 1))

    def _see(self, span: Span) -> None:
        """Remember a run of numbers; it mostly follows on one of those before it."""
        for at in range(len(self.spans) - 1, max(len(self.spans) - 64, -1), -1):
            if self.spans[at].queue == span.queue:
                if self.spans[at].end == span.begin:
                    self.spans[at] = Span(span.queue, self.spans[at].begin, span.end)
                    return
                break
        self.spans.append(span)

    def add(self, other: "Tally") -> None:
        """Add what another task counted."""
        for name in ("messages", "body_bytes", "system_messages"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.begin_ms, self.end_ms = min(self.begin_ms, other.begin_ms), max(self.end_ms, other.end_ms)
        for name in ("topics", "topic_bytes", "sizes", "hours", "tags", "keys"):
            getattr(self, name).update(getattr(other, name))
        self.spans += other.spans
        self.damage += other.damage
        self.is_exact = self.is_exact and other.is_exact


# --- reading -------------------------------------------------------------------------------------------------


def audit_store(
    spark: "SparkSession",
    address: str,
    *,
    broker_name: str = "",
    partition_size: int = PARTITION_SIZE,
    advance: Advance | None = None,
) -> dict[str, Any]:
    """The report on a store folder; every byte of its log is read. `advance` is told bytes of the log."""
    store = open_store(address)
    found = plan(store, StoreQuery(system_topics=True), partition_size=partition_size)
    work = _StoreWork(address, broker_name, _schema())
    parts = run_tasks(spark, work, list(found.partitions), lambda result: result[1], advance)
    reader = spark.read.format("aerobee").schema("topic string, msgId string, queueId int, queueOffset long")
    return _report(f"store {address}", [tally for tally, _ in parts], reader.load(address))


def audit_topics(
    spark: "SparkSession", given: Mapping[str, str], *, now_ms: int, advance: Advance | None = None
) -> dict[str, Any]:
    """The report on topics of a cluster. `advance` is told numbers of messages."""
    source = TopicSpans(given, now_ms=now_ms)
    work = _TopicWork(source, _schema())
    tallies = run_tasks(spark, work, source.plan(Intervals()).tasks, lambda tally: tally.messages, advance)
    reader = spark.read.format("aerobee").schema("topic string, msgId string, queueId int, queueOffset long")
    for name, value in given.items():
        reader = reader.option(name, value)
    return _report(source.what, tallies, reader.load())


def _schema() -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    selected = [field for field in message_schema().fields if field.name in _COLUMNS]
    return to_arrow_schema(StructType(selected), timezone="UTC")


class _StoreWork:
    """One partition of a log, counted; also how many bytes of the log it was."""

    def __init__(self, address: str, broker_name: str, schema: pa.Schema) -> None:
        self._address = address
        self._broker_name = broker_name
        self._schema = schema

    def __call__(self, partition: StorePartition) -> tuple[Tally, int]:
        tally, size = Tally(), 0
        builder = ColumnBuilder(self._schema, self._broker_name or None)
        store = StoreFolder(open_folder(self._address))
        for found in read_partition(store, partition, StoreQuery(system_topics=True)):
            if isinstance(found, Damage):
                tally.damage.append(found)
                size += found.end - found.begin
                continue
            size += int(found.stretch.sizes.sum())
            chosen = chosen_records(found.stretch, StoreQuery())
            if chosen is not None:
                tally.system_messages += int((~chosen).sum())
            tally.count(builder.batch(found.stretch, found.view, chosen))
        return tally, size


class _TopicWork:
    """Spans of topics, counted."""

    def __init__(self, source: TopicSpans, schema: pa.Schema) -> None:
        self._source = source
        self._schema = schema

    def __call__(self, task: Task) -> Tally:
        tally = Tally()
        for _, found in self._source.read(task, self._schema):
            if not isinstance(found, Damage):
                tally.count(found)
        return tally


# --- the report ----------------------------------------------------------------------------------------------


def _report(what: str, tallies: Sequence[Tally], ids: "DataFrame") -> dict[str, Any]:
    total = Tally()
    for tally in tallies:
        total.add(tally)
    gaps = list(_gaps(total.spans))
    duplicates = _duplicates(ids)
    damage = sorted(total.damage, key=lambda one: one.begin)
    return {
        "source": what,
        "messages": total.messages,
        "body_bytes": total.body_bytes,
        "system_messages": total.system_messages,
        "begin_ms": total.begin_ms if total.messages else None,
        "end_ms": total.end_ms if total.messages else None,
        "topics": [
            {"topic": topic, "messages": count, "body_bytes": total.topic_bytes[topic]}
            for topic, count in total.topics.most_common()
        ],
        "body_sizes": [
            {"below": 1 << bits, "messages": count} for bits, count in sorted(total.sizes.items())
        ],
        "hours": [
            {"begin_ms": hour * _MS_PER_HOUR, "messages": count}
            for hour, count in sorted(total.hours.items())
        ],
        "top_tags": _top(total.tags),
        "top_keys": _top(total.keys),
        "top_is_exact": total.is_exact,
        "findings": {
            "damaged_stretches": len(damage),
            "damaged_bytes": sum(one.end - one.begin for one in damage),
            "gaps": len(gaps),
            "missing_numbers": sum(gap.messages for gap in gaps),
            "duplicated_ids": duplicates["ids"],
            "duplicated_messages": duplicates["messages"],
        },
        "damage": [damage_facts(one) for one in damage[:LISTED_MAX]],
        "gaps": [
            {**gap.queue._asdict(), "begin": gap.begin, "end": gap.end} for gap in gaps[:LISTED_MAX]
        ],
        "duplicates": duplicates["listed"],
    }  # fmt: skip


def _top(counter: Counter[tuple[str, str]]) -> list[dict[str, Any]]:
    return [
        {"topic": topic, "text": text, "messages": count}
        for (topic, text), count in sorted(counter.items(), key=lambda one: (-one[1], one[0]))[:TOP]
    ]


def _gaps(spans: Sequence[Span]) -> Iterator[Span]:
    """Numbers between others of a queue that no message has."""
    before: Span | None = None
    for span in Intervals(sorted(spans)).spans():
        if before is not None and before.queue == span.queue:
            yield Span(span.queue, before.end, span.begin)
        before = span


def _duplicates(ids: "DataFrame") -> dict[str, Any]:
    """Ids that several messages of a topic have. A message that is retried keeps its id: retry topics are left out."""
    from pyspark.sql import functions as f

    several = (
        ids.where(~f.col("topic").startswith(RETRY_PREFIX))
        .groupBy("topic", "msgId")
        .agg(
            f.count("*").alias("messages"),
            f.min(f.struct("queueId", "queueOffset")).alias("first"),
            f.max(f.struct("queueId", "queueOffset")).alias("last"),
        )
        .where("messages > 1")
        .persist()
    )
    try:
        totals = several.agg(f.count("*").alias("ids"), f.sum("messages").alias("messages")).first()
        rows = several.orderBy(f.desc("messages"), "topic", "msgId").limit(LISTED_MAX).collect()
    finally:
        several.unpersist()
    assert totals is not None
    listed = [
        {
            "topic": row.topic,
            "message_id": row.msgId,
            "messages": row.messages,
            "first": row["first"].asDict(),
            "last": row["last"].asDict(),
        }
        for row in rows
    ]
    return {"ids": totals.ids, "messages": totals.messages or 0, "listed": listed}


def is_sound(report: Mapping[str, Any]) -> bool:
    """Whether an audit found nothing."""
    return not any(report["findings"].values())


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="audit", description="What a store or topics hold, and what is wrong."
    )
    add_source_arguments(parser)
    parser.add_argument("--html", type=Path, help="write a page with plots to this file")

    def work(arguments: argparse.Namespace) -> Mapping[str, Any]:
        with session("audit", arguments.master) as spark:
            if arguments.path:
                report = audit_store(spark, arguments.path)
            else:
                report = audit_topics(spark, source_options(arguments), now_ms=epoch_ms())
        if arguments.html is not None:
            from pyspark_aerobee.jobs.audit_page import audit_page

            arguments.html.write_text(audit_page(report), encoding="utf-8")
        return report

    return main_of(work, parser)


if __name__ == "__main__":
    sys.exit(main())
