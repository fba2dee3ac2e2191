"""`frame.write.format("aerobee")` and `frame.writeStream.format("aerobee")`: rows become messages.

Touches  brokers; on executors.

Columns  (all but body and topic may be missing; a null is as if the column were)
    topic                  string; or the option topic for all rows
    body, value            binary or string
    tags                   string
    keys, key              array of strings, or a string or binary (one key, or several with blanks between)
    properties, headers    map of strings, or Kafka's array of (key, value). Names that the protocol keeps for itself
                           are left out, so that a table that was read can be written; TAGS, KEYS and the sharding key
                           in it count where the table has no column for them
    queueId, partition     int: to that queue; of a topic on several brokers, to one of those that have it
    shardingKey            string: rows with equal keys go to one queue, in the order of the rows
    delayLevel             int 1..18
    deliverAt              timestamp, or ms since the epoch as long
  Other columns of a read (queueOffset, storeTimestamp, msgId ...) are passed over; any other name is an error.

Options  topic, sendTimeoutMs, dedupProperty, group (the producer's), and those of the cluster
    dedupProperty     name of a property in which each message carries a key that is the same when a task or a batch
                      of a stream is repeated: consumers can tell repetitions by it

At least once: a task that fails is repeated by Spark, and what it had sent before is sent again. A task ends when
brokers have confirmed all of its messages; it fails when any could not be sent, with the number and the brokers'
reasons.

Invariants
- At most PENDING_MAX messages of a task are unconfirmed.
"""

import asyncio
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from aerobee import ClientError, InvalidMessage, MessageQueue, Producer, SendResult
from aerobee.outgoing import RESERVED_PROPERTIES
from pyspark_aerobee.cluster import CLUSTER_OPTIONS, Cluster, ClusterSettings
from pyspark_aerobee.errors import OptionError, WriteFailed
from pyspark_aerobee.names import nearest
from pyspark_aerobee.options import Options
from pyspark_aerobee.schema import COLUMNS, KAFKA_COLUMNS

__all__ = ["WRITE_OPTIONS", "StreamTopicWriter", "TopicWriter", "Written"]

# The last two are Spark's own, which hands them over with the others.
WRITE_OPTIONS: Final = (
    *CLUSTER_OPTIONS,
    "topic",
    "sendTimeoutMs",
    "dedupProperty",
    "group",
    "checkpointLocation",
    "queryName",
)
PENDING_MAX: Final = 10_000
SEND_TIMEOUT_MS: Final = 30_000
REASONS_MAX: Final = 3
_INTS: Final = (ByteType, ShortType, IntegerType, LongType)
_TEXTS: Final = (StringType, BinaryType)
_ALIASES: Final = {"value": "body", "key": "keys", "headers": "properties", "partition": "queueId"}
_KINDS: Final[dict[str, tuple[type[DataType], ...]]] = {
    "topic": (StringType,),
    "body": _TEXTS,
    "tags": (StringType,),
    "keys": (ArrayType, *_TEXTS),
    "properties": (MapType, ArrayType),
    "queueId": _INTS,
    "shardingKey": (StringType,),
    "delayLevel": _INTS,
    "deliverAt": (TimestampType, LongType),
}
_PASSED_OVER: Final = (frozenset(COLUMNS) | frozenset(KAFKA_COLUMNS)) - set(_KINDS) - set(_ALIASES)


@dataclass
class Written(WriterCommitMessage):
    """What a task has done: messages confirmed, and bytes of their bodies."""

    messages: int
    body_bytes: int


@dataclass(frozen=True, slots=True)
class WriteSettings:
    """What a task needs to know; pickled with it."""

    cluster: ClusterSettings
    columns: Mapping[str, int]  # our name -> index in the rows
    topic: str | None
    group: str | None
    timeout_s: float
    dedup_property: str | None
    job_id: str  # of a batch write; the same in every attempt

    @classmethod
    def of(cls, given: Mapping[str, str], schema: StructType) -> "WriteSettings":
        """OptionError names an option or column that cannot be used."""
        options = Options(given, WRITE_OPTIONS)
        columns = _columns(schema)
        topic = options.text("topic")
        if topic is None and "topic" not in columns:
            raise OptionError("topic", "", "give it, or a column topic: where are the messages to go?")
        dedup = options.text("dedupProperty")
        if dedup is not None and (not dedup or dedup in RESERVED_PROPERTIES):
            raise OptionError("dedupProperty", dedup, "choose a name that the protocol does not use itself")
        return cls(
            cluster=ClusterSettings.of(options),
            columns=columns,
            topic=topic,
            group=options.text("group"),
            timeout_s=(options.duration_ms("sendTimeoutMs", SEND_TIMEOUT_MS) or SEND_TIMEOUT_MS) / 1000,
            dedup_property=dedup,
            job_id=uuid.uuid4().hex,
        )


def _columns(schema: StructType) -> dict[str, int]:
    found: dict[str, int] = {}
    for index, one in enumerate(schema):
        name = _ALIASES.get(one.name, one.name)
        if name in _PASSED_OVER:
            continue
        kinds = _KINDS.get(name)
        if kinds is None:
            hint = nearest(one.name, [*_KINDS, *_ALIASES])
            raise OptionError("column", one.name, f"messages have nothing of that name{hint}")
        if name in found:
            raise OptionError("column", one.name, f"it means the same as {schema[found[name]].name}")
        if not isinstance(one.dataType, kinds):
            allowed = " or ".join(kind.typeName() for kind in kinds)
            raise OptionError("column", f"{one.name} {one.dataType.simpleString()}", f"it must be {allowed}")
        found[name] = index
    if "body" not in found:
        raise OptionError("column", "body", "the rows have none; messages need a body (or value)")
    return found


class TopicWriter(DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._settings = WriteSettings.of(given, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        return _write(self._settings, iterator, f"{self._settings.job_id}:{partition}")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing is left to do: the brokers have confirmed every message."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing can be taken back: readers may have seen the messages."""


class StreamTopicWriter(DataSourceStreamArrowWriter):
    """A write of each batch of a stream."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._settings = WriteSettings.of(given, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None, "Spark runs it in a task"
        query_id = context.getLocalProperty("sql.streaming.queryId")
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        return _write(self._settings, iterator, f"{query_id}:{batch_id}:{context.partitionId()}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is left to do: the brokers have confirmed every message."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing can be taken back; the batch is repeated as a whole."""


# --- a task --------------------------------------------------------------------------------------------------


def _write(settings: WriteSettings, batches: Iterator[pa.RecordBatch], dedup_prefix: str) -> Written:
    """Send all rows. WriteFailed tells how many messages could not be sent, and why."""
    with Cluster(settings.cluster) as cluster:
        task = _Task(settings, dedup_prefix)
        try:
            cluster.run(task.open(cluster))
            for batch in batches:
                cluster.run(task.send(batch))
                if task.failed:
                    break  # the rest would be sent again anyway
        except ClientError as failed:
            raise WriteFailed(task.sent, 1, [str(failed)]) from failed
        finally:
            cluster.run(task.close())
    if task.failed:
        reasons = [text for text, _ in task.reasons.most_common(REASONS_MAX)]
        raise WriteFailed(task.sent, task.failed, reasons)
    return Written(task.sent, task.body_bytes)


@dataclass
class _Task:
    """The messages of one task on their way."""

    settings: WriteSettings
    dedup_prefix: str
    sent: int = 0
    failed: int = 0
    body_bytes: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    _number: int = 0
    _producer: Producer | None = None
    _queues: dict[str, tuple[MessageQueue, ...]] = field(default_factory=dict)

    async def open(self, cluster: Cluster) -> None:
        settings = self.settings
        named: dict[str, Any] = {} if settings.group is None else {"group": settings.group}
        self._producer = cluster.client.producer(
            **named,
            send_timeout_s=settings.timeout_s,
            batch_bytes=1 << 20,
            batch_count=1024,
            pending_count_max=PENDING_MAX,
            attempts_max=10,
        )
        await self._producer.__aenter__()

    async def close(self) -> None:
        if self._producer is not None:
            await self._producer.close()

    async def send(self, batch: pa.RecordBatch) -> None:
        """Accept the rows of a batch, as the brokers have room; wait until all of them have ended."""
        producer = self._producer
        assert producer is not None
        futures: list[asyncio.Future[SendResult]] = []
        for topic, body, options in _rows(batch, self.settings):
            if self.settings.dedup_property is not None:
                properties = options.setdefault("properties", {})
                properties[self.settings.dedup_property] = f"{self.dedup_prefix}:{self._number}"
            self._number += 1
            queue_id = options.pop("queue_id", None)
            try:
                if queue_id is not None:
                    options["queue"] = await self._queue(producer, topic, queue_id)
                await producer.ready()
                futures.append(producer.send_nowait(topic, body, **options))
            except InvalidMessage as refused:
                self._fail(refused)
            self.body_bytes += len(body)
        for result in await asyncio.gather(*futures, return_exceptions=True):
            if isinstance(result, BaseException):
                self._fail(result)
            else:
                self.sent += 1

    def _fail(self, reason: BaseException) -> None:
        self.failed += 1
        self.reasons[str(reason)] += 1

    async def _queue(self, producer: Producer, topic: str, queue_id: int) -> MessageQueue:
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = await producer.queues(topic)
        fitting = [queue for queue in queues if queue.queue_id == queue_id]
        if not fitting:
            last = max(queue.queue_id for queue in queues)
            raise InvalidMessage(f"topic {topic!r} has no queue {queue_id}: it has the queues 0 to {last}")
        return fitting[queue_id % len(fitting)]


# --- rows ----------------------------------------------------------------------------------------------------


def _rows(batch: pa.RecordBatch, settings: WriteSettings) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    """Topic, body and what else `Producer.send` takes, of each row; `queue_id` in place of a queue."""
    columns = {name: _values(name, batch.column(index)) for name, index in settings.columns.items()}
    count = batch.num_rows
    topics = columns.pop("topic", None) or [None] * count
    bodies = columns.pop("body")
    properties = columns.pop("properties", None)
    names = [_ARGUMENTS[name] for name in columns]
    rest = zip(*columns.values(), strict=True) if columns else iter([()] * count)
    for index, values in enumerate(rest):
        options = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        if properties is not None and properties[index]:
            _take_properties(properties[index], options)
        yield topics[index] or settings.topic or "", bodies[index] or b"", options


_ARGUMENTS: Final = {
    "tags": "tags",
    "keys": "keys",
    "queueId": "queue_id",
    "shardingKey": "sharding_key",
    "delayLevel": "delay_level",
    "deliverAt": "deliver_at",
}
_FROM_PROPERTIES: Final = {"TAGS": "tags", "KEYS": "keys", "__SHARDINGKEY": "sharding_key"}


def _take_properties(pairs: Sequence[tuple[str, str]], options: dict[str, Any]) -> None:
    own = {}
    for name, value in pairs:
        if name in _FROM_PROPERTIES:
            options.setdefault(_FROM_PROPERTIES[name], value)
        elif value and name not in RESERVED_PROPERTIES and not name.startswith("__"):
            own[name] = value
    if own:
        options["properties"] = own


def _values(name: str, column: pa.Array) -> list[Any]:
    """A column as plain values that the producer takes."""
    kind = column.type
    if name == "body":
        return list(column.cast(pa.binary()).to_pylist())
    if name == "keys" and not pa.types.is_list(kind):
        return list(column.cast(pa.string()).to_pylist())
    if name == "keys":
        return [[key for key in keys if key] if keys else None for keys in column.to_pylist()]
    if name == "properties" and pa.types.is_list(kind):
        return [
            [(one["key"], bytes(one["value"] or b"").decode("utf-8", "replace")) for one in row]
            if row
            else None
            for row in column.to_pylist()
        ]
    if name == "deliverAt" and pa.types.is_timestamp(kind):
        return list(column.cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64()).to_pylist())
    return list(column.to_pylist())
