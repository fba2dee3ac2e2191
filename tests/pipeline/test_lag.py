"""Lag by offsets, latency by traces of real clients."""

from typing import Any

from pyspark.sql import SparkSession

from aerobee import Client, ClientConfig
from aerobee_pytest import Server
from pyspark_aerobee.jobs.lag import lag_page, lag_report

NOW_MS = 1_800_000_000_000


async def _traffic(server: Server, topic: str, group: str) -> None:
    """20 messages sent, 12 of them consumed, all of it traced."""
    async with Client(config=ClientConfig(nameservers=(server.nameserver,), trace=True)) as mq:
        async with mq.producer() as producer:
            for number in range(20):
                await producer.send(topic, b"%d" % number)
        consumed = 0
        async with mq.consumer(group, topic, start="earliest") as consumer:
            async for message in consumer:
                await message.ack()
                consumed += 1
                if consumed == 12:
                    break


def named(rows: list[dict[str, Any]], **names: str) -> list[dict[str, Any]]:
    return [row for row in rows if all(row[name] == value for name, value in names.items())]


async def test_what_was_sent_and_consumed_is_in_the_report(spark: SparkSession, server: Server) -> None:
    topic, group = server.new_topic("lagging"), "lagging-group"
    cluster = {"nameServer": server.nameserver}
    async with Client(server.nameserver) as mq:
        await mq.admin.create_group(group)
    await _traffic(server, topic, group)
    report = lag_report(spark, cluster, now_ms=NOW_MS)
    (lag,) = named(report["groups"], group=group, topic=topic)
    assert lag["lag"] == 8
    assert lag["delay_ms"] > 0
    latency = report["latency"]
    (send,) = named(latency["send"], topic=topic)
    assert (send["count"], send["failed"]) == (20, 0)
    assert 0 <= send["p50_ms"] <= send["p95_ms"] <= send["max_ms"]
    (delivery,) = named(latency["delivery"], topic=topic, group=group)
    assert 12 <= delivery["count"] <= 20
    (handling,) = named(latency["handling"], group=group)
    assert handling["count"] >= 12
    text = lag_page(report)
    assert topic in text
    assert text.count("<svg") == 2


def test_without_traces_there_is_lag_alone(spark: SparkSession, server: Server) -> None:
    report = lag_report(
        spark, {"nameServer": server.nameserver}, now_ms=NOW_MS, groups=["nobody"], trace_topic="never-traced"
    )
    assert report["groups"] == []
    assert report["latency"] == {"records": 0, "send": [], "delivery": [], "handling": []}
