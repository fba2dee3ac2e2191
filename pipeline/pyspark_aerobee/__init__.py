"""Messages as tables and streams of Spark.

    spark = pyspark_aerobee.session()
    spark.read.format("aerobee").load("path/of/store")
    spark.read.format("aerobee").option("nameServer", "mq1:9876").option("subscribe", "orders").load()
    spark.readStream.format("aerobee")...
    frame.write.format("aerobee").option("nameServer", "mq1:9876").option("topic", "orders").mode("append").save()

Spark finds `DefaultSource` here by the package's name, in the Python that it starts: `session()` and `use_python()` see
to it that this is the one that runs the program. `register(spark)` makes the format known where that look-up is off,
and gives the name `rocketmq` too.
"""

from typing import Any

from pyspark_aerobee.source import AerobeeDataSource, RocketMqDataSource
from pyspark_aerobee.start import check_python, session, use_python

__all__ = ["AerobeeDataSource", "DefaultSource", "RocketMqDataSource", "register", "session", "use_python"]


class DefaultSource(AerobeeDataSource):
    """What Spark looks for."""


def register(spark: Any) -> None:
    """Make `format("aerobee")` and `format("rocketmq")` known to a session, whatever its look-up of packages finds.

    PythonMismatch when Spark starts another Python, in which this package is missing.
    """
    check_python(spark)
    spark.dataSource.register(AerobeeDataSource)
    spark.dataSource.register(RocketMqDataSource)
