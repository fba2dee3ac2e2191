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
- At most IN_FLIGHT_MAX batches of a task are unconfirmed, and nothing is when it waits for Spark's next rows.
- Rows bound to a queue (queueId, shardingKey) reach it in their order.
"""

import asyncio
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
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

from aerobee import (
    BrokerRefused,
    Client,
    ClientError,
    InvalidMessage,
    MessageQueue,
    ProducerConfig,
    SendResult,
)
from aerobee.messages.outgoing import RESERVED_PROPERTIES
from aerobee_proto.codes import ResponseCode
from aerobee_proto.javahash import java_hash
from aerobee_proto.properties import KEYS, SHARDING_KEY, TAGS
from pyspark_aerobee.batch_entries import encode_plain
from pyspark_aerobee.cluster import Cluster, ClusterSettings
from pyspark_aerobee.errors import OptionError, WriteFailed
from pyspark_aerobee.names import nearest
from pyspark_aerobee.option_names import WRITE_OPTIONS
from pyspark_aerobee.options import Options
from pyspark_aerobee.schema import COLUMNS, KAFKA_COLUMNS
from pyspark_aerobee.worker import keep_modules

__all__ = ["StreamTopicWriter", "TopicWriter", "WriteSettings", "WriteTask", "Written"]

IN_FLIGHT_MAX: Final = 8
BATCH_BYTES: Final = 512 << 10
BATCH_COUNT: Final = 1024
ATTEMPTS_MAX: Final = 10
PRODUCER_GROUP: Final = "AEROBEE_SPARK"
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
_PLAIN: Final = frozenset({"body", "tags", "keys"})  # rows of nothing else are encoded as columns
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
    keep_modules()
    with Cluster(settings.cluster) as cluster:
        task = WriteTask(settings, dedup_prefix)
        try:
            cluster.run(task.open(cluster.client))
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
class _Batch:
    """Messages that leave together: of one topic, and one queue when they are bound to it."""

    topic: str
    queue: MessageQueue | None
    entries: list[bytes] = field(default_factory=list)
    size: int = 0


@dataclass
class WriteTask:
    """The messages of one task on their way."""

    settings: WriteSettings
    dedup_prefix: str
    sent: int = 0
    failed: int = 0
    body_bytes: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    _number: int = 0

    async def open(self, client: Client) -> None:
        """Before the first batch."""
        settings = self.settings
        group = settings.group or PRODUCER_GROUP
        config = ProducerConfig(send_timeout_s=settings.timeout_s, attempts_max=ATTEMPTS_MAX)
        self._bulk = client.bulk_sender(group, config=config)
        # For what cannot share a request: delayed messages, and bodies worth compressing.
        self._singly = client.producer(group, config=config)
        self._compress_over = config.compress_over or 0
        self._is_plain = settings.topic is not None and settings.columns.keys() <= _PLAIN
        self._queues: dict[str, tuple[MessageQueue, ...]] = {}
        await self._singly.__aenter__()

    async def close(self) -> None:
        """After the last batch, or a failure."""
        if hasattr(self, "_singly"):
            await self._singly.close()

    async def send(self, rows: pa.RecordBatch) -> None:
        """Send the rows; wait until each has been confirmed or has failed."""
        self._slots = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._open: dict[tuple[str, MessageQueue | None], _Batch] = {}
        self._last: dict[MessageQueue, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            if self._is_plain:
                rows = await self._send_plain(rows)
            for row in _rows(rows, self.settings):
                try:
                    await self._take(row)
                except InvalidMessage as refused:
                    self._fail(1, refused)
                except ClientError as failed:  # nobody knows the topic, or nobody answers
                    self._fail(1, failed)
                    break
            for batch in list(self._open.values()):
                await self._let_go(batch)

    async def _send_plain(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Send the rows that can be encoded as columns; those that are left."""
        settings = self.settings
        found = {name: rows.column(index) for name, index in settings.columns.items()}
        first, self._number = self._number, self._number + rows.num_rows
        more = None
        if settings.dedup_property is not None:
            head = f"{settings.dedup_property}\x01{self.dedup_prefix}:"
            more = [f"{head}{number}\x02" for number in range(first, self._number)]
        plain = encode_plain(
            found["body"],
            found.get("tags"),
            found.get("keys"),
            more,
            self._bulk.unique_keys(rows.num_rows),
            body_size_max=min(self._compress_over, self._bulk.body_size_max),
        )
        self.body_bytes += plain.body_bytes
        ends = np.cumsum(plain.sizes)
        begin = 0
        while begin < len(ends):
            sent = int(ends[begin - 1]) if begin else 0
            end = min(int(np.searchsorted(ends, sent + BATCH_BYTES, "right")), begin + BATCH_COUNT)
            entries = plain.entries.slice(begin, max(end, begin + 1) - begin).to_pylist()
            await self._start(_Batch(settings.topic or "", None, entries))
            begin += len(entries)
        return rows.filter(plain.odd)

    async def _take(self, row: "_Row") -> None:
        topic, body, tags, keys, own, queue_id, sharding_key, delay_level, deliver_at = row
        self.body_bytes += len(body)
        number, self._number = self._number, self._number + 1
        if self.settings.dedup_property is not None:
            own = {**(own or {}), self.settings.dedup_property: f"{self.dedup_prefix}:{number}"}
        queue = None
        if queue_id is not None or sharding_key:
            queue = await self._queue(topic, queue_id, sharding_key)
        if delay_level or deliver_at is not None or len(body) > self._compress_over:
            await self._send_singly(
                topic,
                body,
                tags=tags,
                keys=keys,
                properties=own,
                queue=queue,
                sharding_key=sharding_key,
                delay_level=delay_level or 0,
                deliver_at=deliver_at,
            )
            return
        entry = self._bulk.entry(body, tags=tags, keys=keys, properties=own, sharding_key=sharding_key)
        batch = self._open.get((topic, queue))
        if batch is None:
            batch = self._open[topic, queue] = _Batch(topic, queue)
        batch.entries.append(entry)
        batch.size += len(entry)
        if batch.size >= BATCH_BYTES or len(batch.entries) >= BATCH_COUNT:
            await self._let_go(batch)

    async def _queue(self, topic: str, queue_id: int | None, sharding_key: str | None) -> MessageQueue:
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = await self._singly.queues(topic)
        if queue_id is None:
            # As clients of all kinds spread keys over queues.
            return queues[abs(java_hash(sharding_key or "")) % len(queues)]
        fitting = [queue for queue in queues if queue.queue_id == queue_id]
        if not fitting:
            last = max(queue.queue_id for queue in queues)
            raise InvalidMessage(f"topic {topic!r} has no queue {queue_id}: it has the queues 0 to {last}")
        return fitting[queue_id % len(fitting)]

    # --- on their way -----------------------------------------------------------------------------------------

    async def _let_go(self, batch: _Batch) -> None:
        """Start a batch; behind the one before it where order counts. Waits while as many as may be are out."""
        del self._open[batch.topic, batch.queue]
        await self._start(batch)

    async def _start(self, batch: _Batch) -> None:
        await self._slots.acquire()
        before = None if batch.queue is None else self._last.get(batch.queue)
        task = self._tasks.create_task(self._deliver(batch, before))
        if batch.queue is not None:
            self._last[batch.queue] = task

    async def _deliver(self, batch: _Batch, before: "asyncio.Task[None] | None") -> None:
        try:
            if before is not None:
                await before
            await self._bulk.send(batch.topic, batch.entries, batch.queue)
            self.sent += len(batch.entries)
        except BrokerRefused as refused:
            if refused.code == ResponseCode.MESSAGE_ILLEGAL and len(batch.entries) > 1:
                await self._deliver_singly(batch)
            else:
                self._fail(len(batch.entries), refused)
        except ClientError as failed:
            self._fail(len(batch.entries), failed)
        finally:
            self._slots.release()

    async def _deliver_singly(self, batch: _Batch) -> None:
        """A batch that was refused for what is in it: only the guilty are to fail."""
        for entry in batch.entries:
            try:
                await self._bulk.send(batch.topic, [entry], batch.queue)
                self.sent += 1
            except ClientError as failed:
                self._fail(1, failed)

    async def _send_singly(self, topic: str, body: bytes, **options: Any) -> None:
        queue = options["queue"]
        if queue is not None and (waiting := self._open.get((topic, queue))) is not None:
            await self._let_go(waiting)
        if queue is not None and queue in self._last:
            await self._last[queue]
        await self._singly.ready()
        future = self._singly.send_nowait(topic, body, **options)
        task = self._tasks.create_task(self._settle(future))
        if queue is not None:
            self._last[queue] = task

    async def _settle(self, future: "asyncio.Future[SendResult]") -> None:
        try:
            await future
            self.sent += 1
        except ClientError as failed:
            self._fail(1, failed)

    def _fail(self, count: int, reason: BaseException) -> None:
        self.failed += count
        self.reasons[str(reason)] += count


# --- rows ----------------------------------------------------------------------------------------------------

# Topic, body, tags, keys, own properties, queue id, sharding key, delay level, time of delivery in ms.
_Row = tuple[
    str,
    bytes,
    str | None,
    str | list[str] | None,
    dict[str, str] | None,
    int | None,
    str | None,
    int | None,
    int | None,
]
_IN_ORDER: Final = ("tags", "keys", "queueId", "shardingKey", "delayLevel", "deliverAt")


def _rows(batch: pa.RecordBatch, settings: WriteSettings) -> Iterator[_Row]:
    """What is to be sent of each row."""
    columns = {name: _values(name, batch.column(index)) for name, index in settings.columns.items()}
    nothing = [None] * batch.num_rows
    rest = zip(*(columns.get(name, nothing) for name in _IN_ORDER), strict=True)
    default = settings.topic or ""
    parts = zip(
        columns.get("topic", nothing),
        columns["body"],
        columns.get("properties", nothing),
        rest,
        strict=True,
    )
    for topic, body, pairs, (tags, keys, queue_id, sharding_key, delay_level, deliver_at) in parts:
        own = None
        if pairs:
            own, known = _own_properties(pairs)
            tags = known.get(TAGS) if tags is None else tags
            keys = known.get(KEYS) if keys is None else keys
            sharding_key = known.get(SHARDING_KEY) if sharding_key is None else sharding_key
        words = _words(keys) if keys else None
        yield (
            topic or default, body or b"", tags, words, own, queue_id, sharding_key, delay_level, deliver_at,
        )  # fmt: skip


def _words(keys: str | Sequence[str]) -> list[str]:
    """Keys one by one: where a blank is in one, brokers take it for several."""
    return " ".join([keys] if isinstance(keys, str) else keys).split()


def _own_properties(pairs: Sequence[tuple[str, str]]) -> tuple[dict[str, str], dict[str, str]]:
    """The sender's own properties, and those of the protocol."""
    own, known = {}, {}
    for name, value in pairs:
        if name in RESERVED_PROPERTIES or name.startswith("__"):
            known[name] = value
        elif value:
            own[name] = value
    return own, known


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
