"""The data source that Spark knows by the name `aerobee`.

Touches  Spark's data source interface, on the driver.

With a path it is a store folder; without one, topics of a running cluster.
"""

import time
from collections.abc import Mapping
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from pyspark_aerobee.schema import check_schema
from pyspark_aerobee.store_source import PushingStoreReader, StoreReader, read_options, store_schema

__all__ = ["AerobeeDataSource"]


class AerobeeDataSource(DataSource):
    """`spark.read.format("aerobee")` and its relatives."""

    @classmethod
    def name(cls) -> str:
        return "aerobee"

    @property
    def _given(self) -> Mapping[str, str]:
        return dict(self.options)

    def schema(self) -> StructType:
        return store_schema(self._given)

    def reader(self, schema: StructType) -> DataSourceReader:
        check_schema(schema, self.schema())
        now_ms = time.time_ns() // 1_000_000
        kind: Any = PushingStoreReader if read_options(self._given).flag("pushdown", False) else StoreReader
        reader: DataSourceReader = kind(self._given, schema, now_ms)
        return reader
