"""`spark.read.format("aerobee").load("path/of/store")`: a store folder as a table, without a broker.

Touches  the folder, reading.

Options  (names as in the topic source where they mean the same)
    path                     the folder that has commitlog, consumequeue, index; or an fsspec address
    table                    messages (default) or damage: stretches of the log that hold no provable record
    topic, subscribe         comma-separated topics; read by their queues then
    queueId                  comma-separated queue ids
    startingQueueOffset, endingQueueOffset    bounds of queue offsets, the second one is not read
    startingTimestamp, endingTimestamp        bounds of store times: ms, ISO 8601, or -1h
    tags                     comma-separated tags;  key: one key (needs topic), through the index
    includeProperties, includeBody, includeHeaders, schemaMode    which columns there are
    includeSystemTopics      also delayed messages, transaction halves and the broker's own (false)
    brokerName               what the column brokerName shows; a folder does not tell
    verifyChecksums          (true) false: believe records whose lengths and places are right; for a quick look
    indexSlots               maxHashSlotNum of the broker that wrote it
    minPartitions, maxPartitionBytes          how finely to cut
    pushdown                 let Spark hand its filters over (needs spark.sql.python.filterPushdown.enabled)
    storage.<name>           handed to fsspec
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from aerobee_store.offline.folder import INDEX_SLOTS, StoreFolder
from pyspark_aerobee.columns import ColumnBuilder
from pyspark_aerobee.errors import OptionError
from pyspark_aerobee.folder import open_folder, require_log
from pyspark_aerobee.names import nearest
from pyspark_aerobee.options import Options, parse_time_ms
from pyspark_aerobee.pushdown import narrowed
from pyspark_aerobee.schema import DAMAGE_SCHEMA, message_schema
from pyspark_aerobee.store_plan import PARTITION_SIZE, StoreQuery, plan
from pyspark_aerobee.store_read import Damage, chosen_records, read_partition
from pyspark_aerobee.worker import keep_modules

__all__ = ["STORE_OPTIONS", "PushingStoreReader", "StoreReader", "store_schema"]

STORAGE_PREFIX: Final = "storage."
STORE_OPTIONS: Final = (
    "path",
    "table",
    "topic",
    "subscribe",
    "queueId",
    "startingQueueOffset",
    "endingQueueOffset",
    "startingTimestamp",
    "endingTimestamp",
    "tags",
    "key",
    "includeProperties",
    "includeBody",
    "includeHeaders",
    "includeSystemTopics",
    "schemaMode",
    "brokerName",
    "verifyChecksums",
    "indexSlots",
    "minPartitions",
    "maxPartitionBytes",
    "pushdown",
)


def read_options(given: Mapping[str, str]) -> Options:
    """The options of a store read, checked."""
    return Options(
        {name: value for name, value in given.items() if not name.lower().startswith(STORAGE_PREFIX)},
        STORE_OPTIONS,
    )


def store_schema(given: Mapping[str, str]) -> StructType:
    """The columns of a store read with these options."""
    options = read_options(given)
    if options.choice("table", ("messages", "damage"), "messages") == "damage":
        return DAMAGE_SCHEMA
    return message_schema(
        kafka=options.choice("schemaMode", ("rocketmq", "kafka"), "rocketmq") == "kafka",
        include_properties=options.flag("includeProperties", True),
        include_body=options.flag("includeBody", True),
        include_headers=options.flag("includeHeaders", False),
    )


class StoreReader(DataSourceReader):
    """Plans on the driver, reads on executors."""

    def __init__(self, given: Mapping[str, str], schema: StructType, now_ms: int) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        options = read_options(given)
        self._address = options.required("path", 'name the store folder: .load("path/of/store")')
        self._storage = {
            name[len(STORAGE_PREFIX) :]: value
            for name, value in given.items()
            if name.lower().startswith(STORAGE_PREFIX)
        }
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._reads_damage = schema == DAMAGE_SCHEMA
        self._broker_name = options.text("brokerName")
        self._index_slots = options.count("indexSlots", INDEX_SLOTS) or INDEX_SLOTS
        self._min_partitions = options.count("minPartitions", 1) or 1
        self._partition_size = options.size("maxPartitionBytes", PARTITION_SIZE) or PARTITION_SIZE
        self._query = query_of(options, now_ms)
        self._named_topics = self._query.topics or ()  # by the user: they have to be there

    def _store(self) -> StoreFolder:
        return StoreFolder(open_folder(self._address, self._storage or None), index_slots=self._index_slots)

    def partitions(self) -> Sequence[InputPartition]:
        store = self._store()
        require_log(store)
        self._check_topics(store)
        found = plan(
            store, self._query, min_partitions=self._min_partitions, partition_size=self._partition_size
        )
        return list(found.partitions)

    def _check_topics(self, store: StoreFolder) -> None:
        known = store.topics()
        for topic in self._named_topics:
            if topic in store.batch_topics():
                raise OptionError(
                    "topic",
                    topic,
                    "it has queues of batches (queue.type=BatchCQ), by which nothing can be chosen",
                )
            if topic not in known:
                raise OptionError("topic", topic, f"the store has no queue of it{nearest(topic, known)}")

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if partition.value is None:  # Spark's stand-in for an empty plan
            return
        keep_modules()
        builder = None if self._reads_damage else ColumnBuilder(self._schema, self._broker_name)
        for found in read_partition(self._store(), partition, self._query):  # type: ignore[arg-type]
            if isinstance(found, Damage):
                if builder is None:
                    yield pa.RecordBatch.from_pylist([_damage_row(found)], schema=self._schema)
                continue
            if builder is None:
                continue
            chosen = chosen_records(found.stretch, self._query)
            if chosen is None or chosen.any():
                yield builder.batch(found.stretch, found.view, chosen)


def _damage_row(damage: Damage) -> dict[str, Any]:
    return {
        "file": damage.path,
        "beginOffset": damage.begin,
        "endOffset": damage.end,
        "reason": damage.reason,
    }


def query_of(options: Options, now_ms: int) -> StoreQuery:
    """What the options ask for."""
    name = options.only_one_of("topic", "subscribe")
    topics = options.words(name) if name else ()
    key = options.text("key")
    if key is not None and not topics:
        raise OptionError("key", key, "the index knows keys by topic: give the option topic too")
    begin, end = options.text("startingTimestamp"), options.text("endingTimestamp")
    queue_ids = options.words("queueId")
    if not all(word.isdecimal() for word in queue_ids):
        raise OptionError(
            "queueId", options.text("queueId") or "", "it must be queue ids with commas between"
        )
    return StoreQuery(
        topics=topics or None,
        queue_ids=frozenset(int(word) for word in queue_ids) or None,
        begin_offset=options.count("startingQueueOffset", least=0),
        end_offset=options.count("endingQueueOffset", least=0),
        begin_ms=None if begin is None else parse_time_ms("startingTimestamp", begin, now_ms),
        end_ms=None if end is None else parse_time_ms("endingTimestamp", end, now_ms),
        key=key,
        tags=frozenset(options.words("tags")) or None,
        system_topics=options.flag("includeSystemTopics", False),
        checksums=options.flag("verifyChecksums", True),
    )


class PushingStoreReader(StoreReader):
    """As StoreReader, with Spark's own filters as far as the folder can answer them faster than Spark."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what narrows the plan; all of it is given back too, as the plan is not exact to the row."""
        for one in filters:
            self._query = narrowed(self._query, one)
        return filters
