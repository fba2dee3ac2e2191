"""The data source that Spark knows by the name `aerobee`.

Touches  Spark's data source interface, on the driver.

With a path it is a store folder; without one, topics of a running cluster.

What reads and writes is imported when it is needed: Spark starts Python workers that only ask for the name, or for
the columns, and the readers take half a second to load.
"""

from collections.abc import Mapping
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from aerobee_service.clock import epoch_ms
from pyspark_aerobee.errors import OptionError
from pyspark_aerobee.option_names import TOPIC_OPTIONS
from pyspark_aerobee.options import Options
from pyspark_aerobee.schema import check_schema, message_schema

__all__ = ["AerobeeDataSource", "RocketMqDataSource"]

_HELP = (
    "say what to read: a store folder with .load(path), or topics of a cluster with the options nameServer "
    "(host:port) and subscribe"
)


class AerobeeDataSource(DataSource):
    """What `format("aerobee")` means, of reads, writes and streams."""

    @classmethod
    def name(cls) -> str:
        return "aerobee"

    @property
    def _given(self) -> Mapping[str, str]:
        return dict(self.options)

    @property
    def _is_store(self) -> bool:
        """Whether the options mean a store folder. OptionError when they mean nothing."""
        given = {name.lower() for name in self.options}
        if "path" in given:
            return True
        if not given & {"nameserver", "namesrvaddr"}:
            # A name that is almost right is what is wrong then.
            Options(self._given, {"path", *TOPIC_OPTIONS})
            raise OptionError("path", "", _HELP)
        return False

    def schema(self) -> StructType:
        if self._is_store:
            from pyspark_aerobee.store_source import store_schema

            return store_schema(self._given)
        options = Options(self._given, TOPIC_OPTIONS)
        return message_schema(
            kafka=options.choice("schemaMode", ("rocketmq", "kafka"), "rocketmq") == "kafka",
            include_properties=options.flag("includeProperties", True),
            include_body=options.flag("includeBody", True),
            include_headers=options.flag("includeHeaders", False),
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        check_schema(schema, self.schema())
        kind: Any
        if self._is_store:
            from pyspark_aerobee.store_source import PushingStoreReader, StoreReader, read_options

            kind = PushingStoreReader if read_options(self._given).flag("pushdown", False) else StoreReader
        else:
            from pyspark_aerobee.topic_source import PushingTopicReader, TopicReader

            pushes = Options(self._given, TOPIC_OPTIONS).flag("pushdown", False)
            kind = PushingTopicReader if pushes else TopicReader
        reader: DataSourceReader = kind(self._given, schema, _now_ms())
        return reader

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from pyspark_aerobee.topic_stream import TopicStreamReader

        if self._is_store:
            raise OptionError(
                "path",
                str(self.options.get("path")),
                "a store folder can be read (spark.read) but does not grow as a stream; "
                "stream the topics of its cluster: options nameServer and subscribe",
            )
        check_schema(schema, self.schema())
        return TopicStreamReader(self._given, schema, _now_ms())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_aerobee.topic_write import TopicWriter

        self._check_write(overwrite)
        return TopicWriter(self._given, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from pyspark_aerobee.topic_write import StreamTopicWriter

        self._check_write(overwrite)
        return StreamTopicWriter(self._given, schema)

    def _check_write(self, overwrite: bool) -> None:
        if "path" in {name.lower() for name in self.options}:
            raise OptionError(
                "path",
                str(self.options.get("path")),
                "store folders are only read; name a cluster and a topic: options nameServer and topic",
            )
        if overwrite:
            raise OptionError("mode", "overwrite", 'messages cannot be replaced; write with .mode("append")')


class RocketMqDataSource(AerobeeDataSource):
    """The same under the name `rocketmq`."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"


def _now_ms() -> int:
    return epoch_ms()
