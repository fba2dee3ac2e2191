import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from aerobee import Client, ClientConfig, GroupMessage, SendFailed
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.properties import decode_properties
from aerobee_proto.records import decode_record
from aerobee_remoting.exchange.handlers import Response
from client.fakes import FakeCluster, fake_cluster

CONFIG = ClientConfig(telemetry=True)
EXPORTER = InMemorySpanExporter()


@pytest.fixture(autouse=True, scope="module")
def _provider() -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(provider)


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    EXPORTER.clear()
    yield EXPORTER
    EXPORTER.clear()


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def properties_of(cluster: FakeCluster, at: int) -> dict[str, str]:
    return decode_properties(decode_record(cluster.broker.queues["T", 0][at]).properties)


async def test_the_context_travels_with_the_message_and_links_handling_to_sending(
    spans: InMemorySpanExporter,
) -> None:
    inner: list[int] = []

    async def handler(message: GroupMessage[bytes]) -> None:
        inner.append(trace.get_current_span().get_span_context().span_id)
        if message.body == b"bad":
            raise ValueError("no good")

    async with (
        fake_cluster(queues=1) as cluster,
        Client(cluster.nameserver.addr, config=CONFIG) as mq,
        mq.producer("p") as producer,
        mq.consumer("g", "T") as consumer,
    ):
        working = asyncio.create_task(consumer.run(handler, concurrency=1))
        await producer.send("T", b"good", tags="t", keys=["a", "b"])
        await producer.send("T", b"bad", properties={"traceparent": "my own"})
        await cluster.broker.wait_asked(RequestCode.CONSUMER_SEND_MSG_BACK)
        await consumer.close()
        await working
        first, second = properties_of(cluster, 0), properties_of(cluster, 1)
    sent, processed = named(spans, "T send"), named(spans, "T process")
    assert [span.kind for span in (*sent, *processed)] == [SpanKind.PRODUCER] * 2 + [SpanKind.CONSUMER] * 2
    assert first["traceparent"].split("-")[2] == f"{sent[0].context.span_id:016x}"
    assert first["TRACE_CONTEXT"] == first["traceparent"]
    assert second["traceparent"] == "my own"
    (link,) = processed[0].links
    assert link.context.span_id == sent[0].context.span_id
    assert inner == [span.context.span_id for span in processed]
    assert processed[0].attributes is not None
    assert processed[0].attributes["messaging.consumer.group.name"] == "g"
    assert [span.status.status_code for span in processed] == [StatusCode.UNSET, StatusCode.ERROR]
    assert [span.attributes["aerobee.outcome"] for span in processed if span.attributes] == ["acked", "later"]


async def test_a_send_that_fails_ends_its_span_with_the_error(spans: InMemorySpanExporter) -> None:
    async with (
        fake_cluster(queues=1) as cluster,
        Client(cluster.nameserver.addr, config=CONFIG) as mq,
        mq.producer("p", send_timeout_s=2) as producer,
    ):
        cluster.broker.always(RequestCode.SEND_MESSAGE_V2, Response(ResponseCode.SYSTEM_BUSY, "full"))
        with pytest.raises(SendFailed):
            await producer.send("T", b"x")
    (span,) = named(spans, "T send")
    assert span.attributes is not None
    assert (span.status.status_code, span.attributes["error.type"]) == (StatusCode.ERROR, "SendFailed")


async def test_batches_are_still_made(spans: InMemorySpanExporter) -> None:
    async with (
        fake_cluster(queues=1) as cluster,
        Client(cluster.nameserver.addr, config=CONFIG) as mq,
        mq.producer("p", linger_s=0.01) as producer,
    ):
        await asyncio.gather(*(producer.send("T", b"%d" % number) for number in range(10)))
        assert len(cluster.broker.asked(RequestCode.SEND_BATCH_MESSAGE)) >= 1
    assert len(named(spans, "T send")) == 10


def test_without_the_package_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from aerobee.session.telemetry import TelemetryWatch\n"
        "try: TelemetryWatch('g', 'c')\n"
        "except ValueError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'aerobee[otel]'" in done.stdout
