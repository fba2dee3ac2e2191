"""`spark.read.format("aerobee").option("nameServer", ...).option("subscribe", "orders")`: topics as a table.

Touches  nameservers and brokers. Options: `pyspark_aerobee.topic_options`, `pyspark_aerobee.cluster`.

A read is of what is there when it is planned: where each queue ends is asked once, and each task reads up to there.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from aerobee import ClientError
from pyspark_aerobee.cluster import Cluster
from pyspark_aerobee.errors import SourceGone
from pyspark_aerobee.topic_options import TopicOptions, read_topic_options
from pyspark_aerobee.topic_plan import Narrowing, TopicPartition, TopicPlanner
from pyspark_aerobee.topic_read import ReadSettings, read_ranges

__all__ = ["PushingTopicReader", "TopicReader", "read_settings"]


def read_settings(options: TopicOptions, schema: StructType) -> ReadSettings:
    """What tasks of a read with these options and columns need to know."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return ReadSettings(
        cluster=options.cluster,
        schema=to_arrow_schema(schema, timezone="UTC"),
        filter=options.filter,
        key=options.key,
        fail_on_data_loss=options.fail_on_data_loss,
    )


class TopicReader(DataSourceReader):
    """Plans on the driver, reads on executors."""

    def __init__(self, given: Mapping[str, str], schema: StructType, now_ms: int) -> None:
        self._options = read_topic_options(given, now_ms=now_ms)
        self._settings = read_settings(self._options, schema)
        self._narrowing = Narrowing()

    def partitions(self) -> Sequence[InputPartition]:
        try:
            with Cluster(self._options.cluster) as cluster:
                planner = TopicPlanner(cluster.client, self._options)
                return list(cluster.run(planner.batch(self._narrowing)))
        except ClientError as failed:
            raise SourceGone(str(failed)) from failed

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, TopicPartition):  # Spark's stand-in for an empty plan
            return
        settings = replace(self._settings, filter=self._narrowing.filter(self._settings.filter))
        yield from read_ranges(settings, partition.ranges)


class PushingTopicReader(TopicReader):
    """As TopicReader, with Spark's own filters as far as brokers can answer them faster than Spark."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what narrows the plan; all of it is given back too, as the plan is not exact to the row."""
        for one in filters:
            self._narrowing = narrowed(self._narrowing, one)
        return filters


def narrowed(known: Narrowing, one: Filter) -> Narrowing:
    """What is known with one more filter; unchanged when it says nothing that brokers know."""
    if not isinstance(one, EqualTo | In | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return known
    column = one.attribute[0] if len(one.attribute) == 1 else ""
    if isinstance(one, EqualTo | In):
        values = frozenset(one.value if isinstance(one, In) else (one.value,)) - {None}
        return _among(known, column, values)
    is_lower = isinstance(one, GreaterThan | GreaterThanOrEqual)
    is_inclusive = isinstance(one, GreaterThanOrEqual | LessThanOrEqual)
    if column in ("queueOffset", "offset"):
        begin, end = (one.value, one.value + 1) if is_inclusive else (one.value + 1, one.value)
        return _with_offsets(known, begin if is_lower else None, None if is_lower else end)
    if column in ("storeTimestamp", "timestamp"):
        # Times in Spark are finer than the broker's: one ms more on either side loses nothing.
        at_ms = int(one.value.timestamp() * 1000)
        return _with_times(known, at_ms - 1 if is_lower else None, None if is_lower else at_ms + 2)
    return known


def _among(known: Narrowing, column: str, values: frozenset[Any]) -> Narrowing:
    match column:
        case "topic":
            return replace(known, topics=_both(known.topics, values))
        case "brokerName":
            return replace(known, broker_names=_both(known.broker_names, values))
        case "queueId" | "partition":
            return replace(known, queue_ids=_both(known.queue_ids, values))
        case "tags":
            return replace(known, tags=_both(known.tags, values))
        case "queueOffset" | "offset" if values:
            return _with_offsets(known, min(values), max(values) + 1)
    return known


def _both(known: frozenset[Any] | None, values: frozenset[Any]) -> frozenset[Any]:
    return values if known is None else known & values


def _with_offsets(known: Narrowing, begin: int | None, end: int | None) -> Narrowing:
    return replace(
        known, begin_offset=_larger(known.begin_offset, begin), end_offset=_smaller(known.end_offset, end)
    )


def _with_times(known: Narrowing, begin: int | None, end: int | None) -> Narrowing:
    return replace(known, begin_ms=_larger(known.begin_ms, begin), end_ms=_smaller(known.end_ms, end))


def _larger(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)


def _smaller(one: int | None, other: int | None) -> int | None:
    return min((value for value in (one, other) if value is not None), default=None)
