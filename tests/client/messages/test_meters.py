"""Metrics, as a program that has set a provider of OpenTelemetry reads them."""

import asyncio
from typing import Any

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from aerobee import Client, GroupMessage, SendFailed
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_remoting.exchange.handlers import Response
from client.fakes import fake_cluster

READER = InMemoryMetricReader()


@pytest.fixture(autouse=True, scope="module")
def _provider() -> None:
    metrics.set_meter_provider(MeterProvider(metric_readers=[READER]))


def points(name: str) -> list[Any]:
    data = READER.get_metrics_data()
    return [
        point
        for resource in (data.resource_metrics if data is not None else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in metric.data.data_points
    ]


def total(name: str, **facts: str) -> float:
    expected = {key.replace("__", "."): value for key, value in facts.items()}
    return sum(
        getattr(point, "count", getattr(point, "value", 0))
        for point in points(name)
        if expected.items() <= dict(point.attributes).items()
    )


async def test_sends_deliveries_lag_and_reconnects_are_measured() -> None:
    async with (
        fake_cluster(queues=1) as cluster,
        Client(cluster.nameserver.addr, metrics=True) as mq,
        mq.producer("p") as producer,
        mq.consumer("g", "T") as consumer,
    ):
        handled = asyncio.Event()

        async def handler(message: GroupMessage[bytes]) -> None:
            if message.body == b"last":
                handled.set()

        running = asyncio.create_task(consumer.run(handler))
        for connection in list(cluster.broker.server.connections):
            connection.abort("the test wants it")
        for body in (b"1", b"2", b"last"):
            await producer.send("T", body)
        await handled.wait()
        cluster.broker.always(RequestCode.SEND_MESSAGE_V2, Response(ResponseCode.SYSTEM_BUSY, "busy"))
        with pytest.raises(SendFailed):
            await producer.send("T", b"x", timeout_s=1)
        mine = {"messaging__client__id": mq.client_id}
        assert total("aerobee.client.reconnects", **mine) >= 1
        assert total("aerobee.producer.retries", **mine, messaging__rocketmq__client_group="p") >= 1
        assert points("aerobee.consumer.lag")
        await consumer.close()
        await running
    sent = "messaging.client.sent.messages"
    assert total(sent, messaging__destination__name="T") == 4
    assert total(sent, error__type="SendFailed") == 1
    assert total("messaging.client.operation.duration", messaging__operation__name="send") == 4
    assert total("messaging.client.consumed.messages", messaging__consumer__group__name="g") == 3
    assert total("messaging.process.duration", aerobee__outcome="acked") == 3
    assert not [one for one in points("aerobee.client.reconnects") if mq.client_id in one.attributes.values()]


async def test_what_readers_and_pull_consumers_read_is_measured() -> None:
    async with fake_cluster(queues=1) as cluster, Client(cluster.nameserver.addr, metrics=True) as mq:
        for number in range(5):
            cluster.broker.append("T", 0, b"%d" % number)
        async with (
            mq.reader("T", start="earliest", max_messages=2) as reader,
            mq.pull_consumer("pulling", "T", start="earliest", max_messages=5) as consumer,
        ):
            assert await reader.next_batch() is not None
            assert await consumer.next_batch() is not None
            mine = {"messaging__client__id": mq.client_id, "messaging__destination__name": "T"}
            lag = "aerobee.reader.lag"
            assert total(lag, **mine) == 3
            assert total(lag, **mine, messaging__consumer__group__name="pulling") == 0
    read = {"messaging__operation__name": "receive", "messaging__destination__name": "T"}
    consumed = "messaging.client.consumed.messages"
    assert total(consumed, **read) == 7
    assert total(consumed, **read, messaging__consumer__group__name="pulling") == 5
