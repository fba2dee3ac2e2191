"""Messages as tables and streams of Spark.

    spark.read.format("aerobee").load("path/of/store")
    spark.read.format("aerobee").option("nameServer", "mq1:9876").option("subscribe", "orders").load()
    spark.readStream.format("aerobee")...
    frame.write.format("aerobee").option("nameServer", "mq1:9876").option("topic", "orders").mode("append").save()

Spark finds `DefaultSource` here by the package's name; `register(spark)` does the same where that look-up is off, and
gives the name `rocketmq` too.
"""

from typing import Any

from pyspark_aerobee.source import AerobeeDataSource, RocketMqDataSource

__all__ = ["AerobeeDataSource", "DefaultSource", "RocketMqDataSource", "register"]


class DefaultSource(AerobeeDataSource):
    """What Spark looks for."""


def register(spark: Any) -> None:
    """Make `format("aerobee")` and `format("rocketmq")` known to a session, whatever its look-up of packages finds."""
    spark.dataSource.register(AerobeeDataSource)
    spark.dataSource.register(RocketMqDataSource)
