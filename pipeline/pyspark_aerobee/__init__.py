"""Messages as tables and streams of Spark.

    spark.read.format("aerobee").load("path/of/store")

Spark finds `DefaultSource` here by the package's name; `register(spark)` does the same where that look-up is off.
"""

from typing import Any

from pyspark_aerobee.source import AerobeeDataSource

__all__ = ["AerobeeDataSource", "DefaultSource", "register"]


class DefaultSource(AerobeeDataSource):
    """What Spark looks for."""


def register(spark: Any) -> None:
    """Make `format("aerobee")` known to a session, whatever its look-up of packages finds."""
    spark.dataSource.register(AerobeeDataSource)
