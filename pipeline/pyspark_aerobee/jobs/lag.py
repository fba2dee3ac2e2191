"""Lag and latency: how far groups are behind, by their committed offsets, and how long messages take, by their traces.

Touches  nameservers and brokers, reading.

    report = lag_report(spark, {"nameServer": "mq1:9876"}, now_ms=...)
    python -m pyspark_aerobee.jobs.lag --name-server mq1:9876 --html lag.html

Traces are what clients with tracing on write to RMQ_SYS_TRACE_TOPIC: who sent a message and how long that took; when a
consumer got it, how long it worked and how that ended. Without any there is no latency in the report.

    send       from the call until the broker's answer                              by topic
    delivery   from the send until a consumer has the message, by the clocks of both machines; first deliveries alone
    handling   how long consumers worked on a message                               by group
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from aerobee import Client
from aerobee.admin.group_admin import TopicLag
from aerobee.session.trace import parse_trace
from aerobee_proto.names import TRACE_TOPIC
from aerobee_service.clock import epoch_ms
from pyspark_aerobee.cluster import ClusterSettings, gather
from pyspark_aerobee.jobs.launch import add_option_argument, further_options, main_of, session, with_cluster
from pyspark_aerobee.option_names import CLUSTER_OPTIONS
from pyspark_aerobee.options import Options
from pyspark_aerobee.topic_source import TopicReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["lag_report", "trace_records"]

_PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
TRACE_SCHEMA: Final = StructType(
    [
        StructField("kind", StringType()),
        StructField("messageId", StringType()),
        StructField("timestampMs", LongType()),
        StructField("group", StringType()),
        StructField("topic", StringType()),
        StructField("tookMs", LongType()),
        StructField("ok", BooleanType()),
        StructField("requestId", StringType()),
        StructField("reconsumeTimes", IntegerType()),
    ]
)


def lag_report(
    spark: "SparkSession",
    cluster: Mapping[str, str],
    *,
    now_ms: int,
    groups: Sequence[str] = (),
    begin: str = "-1h",
    trace_topic: str = TRACE_TOPIC,
) -> dict[str, Any]:
    """Lag of these groups, or of all, now; latency by the traces that were stored since `begin`."""
    settings = ClusterSettings.of(Options(cluster, CLUSTER_OPTIONS))
    lags = with_cluster(settings, lambda opened: opened.run(_lags(opened.client, groups)))
    return {
        "cluster": ";".join(settings.nameservers),
        "at_ms": now_ms,
        "groups": [
            {
                "group": one.group,
                "topic": one.topic,
                "lag": one.lag,
                "in_flight": one.in_flight,
                "delay_ms": one.delay_ms,
            }
            for one in sorted(lags, key=lambda one: (-one.lag, one.group, one.topic))
        ],
        "latency": _latency(spark, cluster, begin, trace_topic),
    }


async def _lags(client: Client, groups: Sequence[str]) -> list[TopicLag]:
    """With delays where there is lag; the others have none."""
    known = await client.admin.group_lags()
    if groups:
        known = [one for one in known if one.group in groups]
    late = sorted({one.group for one in known if one.lag})
    measured = [
        one for part in await gather([client.admin.group_lag(group) for group in late]) for one in part
    ]
    return [*(one for one in known if one.group not in late), *measured]


# --- traces --------------------------------------------------------------------------------------------------


class TraceDataSource(DataSource):
    """Trace records as a table: `format("aerobee_traces")` with the options of a read of topics."""

    @classmethod
    def name(cls) -> str:
        return "aerobee_traces"

    def schema(self) -> StructType:
        return TRACE_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return _TraceReader(dict(self.options), epoch_ms())


class _TraceReader(DataSourceReader):
    """Plans as a read of the trace topic does; each message becomes the records in it."""

    def __init__(self, given: Mapping[str, str], now_ms: int) -> None:
        self._bodies = TopicReader(given, StructType([StructField("body", BinaryType())]), now_ms)

    def partitions(self) -> Sequence[InputPartition]:
        return self._bodies.partitions()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for batch in self._bodies.read(partition):
            yield _parsed(batch.column(0).to_pylist())


def _parsed(bodies: Sequence[bytes]) -> pa.RecordBatch:
    from pyspark.sql.pandas.types import to_arrow_schema

    found = [record for body in bodies for record in parse_trace(body.decode("utf-8", "replace"))]
    columns = [
        [one.kind for one in found],
        [one.message_id for one in found],
        [one.timestamp_ms for one in found],
        [one.group for one in found],
        [one.topic for one in found],
        [one.took_ms for one in found],
        [one.ok for one in found],
        [one.request_id for one in found],
        [one.reconsume_times for one in found],
    ]
    schema = to_arrow_schema(TRACE_SCHEMA, timezone="UTC")
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def trace_records(
    spark: "SparkSession", cluster: Mapping[str, str], begin: str = "-1h", trace_topic: str = TRACE_TOPIC
) -> "DataFrame":
    """The trace records that were stored since `begin`, one row each."""
    spark.dataSource.register(TraceDataSource)
    reader = spark.read.format("aerobee_traces")
    given = {**cluster, "subscribe": trace_topic, "startingTimestamp": begin}
    for name, value in given.items():
        reader = reader.option(name, value)
    return reader.load()


def _latency(
    spark: "SparkSession", cluster: Mapping[str, str], begin: str, trace_topic: str
) -> dict[str, Any]:
    from pyspark.sql import functions as f

    try:
        records = trace_records(spark, cluster, begin, trace_topic).persist()
        count = records.count()
    except Exception as failed:
        if "there is no such topic" in str(failed):  # nobody has ever traced
            return {"records": 0, "send": [], "delivery": [], "handling": []}
        raise
    try:
        sent = records.where("kind = 'Pub'")
        received = records.where("kind = 'SubBefore' AND reconsumeTimes = 0")
        ended = records.where("kind = 'SubAfter'").select("requestId", "tookMs", "ok")
        delivered = received.select("messageId", f.col("timestampMs").alias("receivedMs"), "`group`").join(
            sent.select("messageId", "timestampMs", "topic").dropDuplicates(["messageId"]), "messageId"
        )
        delivered = delivered.select(
            "topic", "`group`", f.greatest(f.col("receivedMs") - f.col("timestampMs"), f.lit(0)).alias("tookMs"),
            f.lit(True).alias("ok"),
        )  # fmt: skip
        handled = records.where("kind = 'SubBefore'").select("requestId", "`group`").join(ended, "requestId")
        return {
            "records": count,
            "send": _percentiles(sent, "topic"),
            "delivery": _percentiles(delivered, "topic", "group"),
            "handling": _percentiles(handled, "group"),
        }
    finally:
        records.unpersist()


def _percentiles(frame: "DataFrame", *names: str) -> list[dict[str, Any]]:
    from pyspark.sql import functions as f

    quoted = [f.col(f"`{name}`") for name in names]
    grouped = frame.groupBy(*quoted).agg(
        f.count("*").alias("count"),
        f.sum(f.when(f.col("ok"), 0).otherwise(1)).alias("failed"),
        f.percentile_approx("tookMs", list(_PERCENTILES.values())).alias("percentiles"),
        f.max("tookMs").alias("max"),
    )
    return [
        {
            **{name: row[name] for name in names},
            "count": row["count"],
            "failed": row["failed"],
            **{f"{name}_ms": value for name, value in zip(_PERCENTILES, row["percentiles"], strict=True)},
            "max_ms": row["max"],
        }
        for row in grouped.orderBy(*quoted).collect()
    ]


def lag_page(report: Mapping[str, Any]) -> str:
    """The report as one HTML file."""
    from pyspark_aerobee.jobs.pages import bars, figures, page, table, time_text

    groups = report["groups"]
    latency = report["latency"]
    behind = [(f"{one['group']}: {one['topic']}", one["lag"]) for one in groups if one["lag"]][:40]
    late = sorted(
        ((f"{one['group']}: {one['topic']}", one["delay_ms"]) for one in groups if one["delay_ms"]),
        key=lambda pair: -pair[1],
    )[:40]
    return page(
        f"Lag and latency of {report['cluster']}",
        f"At {time_text(report['at_ms'])} UTC.",
        [
            figures(
                {
                    "groups": len({one["group"] for one in groups}),
                    "messages behind": sum(one["lag"] for one in groups),
                    "trace records": latency["records"],
                }
            ),
            bars("Messages behind", behind),
            bars("Age of the oldest message not consumed, ms", late),
            table("Groups", groups),
            table("Sending", latency["send"]),
            table(
                "Delivery",
                latency["delivery"],
                "By the clocks of two machines; first deliveries of messages.",
            ),
            table("Handling", latency["handling"]),
        ],
    )


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="lag", description="How far groups are behind, how long messages take."
    )
    parser.add_argument("--name-server", required=True, help="nameservers, host:port;host:port")
    parser.add_argument("--groups", default="", help="comma-separated; all when not given")
    parser.add_argument("--begin", default="-1h", help="traces since then: -1h, ISO 8601, or ms")
    parser.add_argument("--trace-topic", default=TRACE_TOPIC)
    parser.add_argument("--html", type=Path, help="write a page with plots to this file")
    add_option_argument(parser)

    def work(arguments: argparse.Namespace) -> Mapping[str, Any]:
        with session("lag", arguments.master) as spark:
            report = lag_report(
                spark,
                {"nameServer": arguments.name_server} | further_options(arguments),
                now_ms=epoch_ms(),
                groups=[group for group in arguments.groups.split(",") if group],
                begin=arguments.begin,
                trace_topic=arguments.trace_topic,
            )
        if arguments.html is not None:
            arguments.html.write_text(lag_page(report), encoding="utf-8")
        return report

    return main_of(work, parser)


if __name__ == "__main__":
    sys.exit(main())
