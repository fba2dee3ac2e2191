"""`spark.read.format("aerobee").option("nameServer", ...).option("subscribe", "orders")`: topics as a table.

Touches  nameservers and brokers. Options: `pyspark_aerobee.topic_options`, `pyspark_aerobee.cluster`.

A read is of what is there when it is planned: where each queue ends is asked once, and each task reads up to there.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from aerobee import ClientError
from pyspark_aerobee.cluster import Cluster
from pyspark_aerobee.errors import SourceGone
from pyspark_aerobee.pushdown import narrowed
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
