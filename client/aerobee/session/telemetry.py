"""OpenTelemetry spans of sends and deliveries, through the API package alone: the program says where they go.

    <topic> send      kind PRODUCER, from the call to the broker's answer; its context travels with the message
    <topic> process   kind CONSUMER, around the handler (or from hand-out to settling in a loop), linked to the send

The context travels in properties: those of the program's propagator (traceparent, tracestate), and traceparent also in
TRACE_CONTEXT, where RocketMQ's proxy looks for it. Properties that the sender has set itself are left alone.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from aerobee.errors import InvalidMessage
from aerobee.messages.message import SendResult
from aerobee.messages.watching import MessageKind
from aerobee_proto.properties import TRACE_CONTEXT

if TYPE_CHECKING:
    from aerobee.messages.group_message import AnyMessage
    from aerobee.messages.outgoing import Outgoing

__all__ = ["TelemetryWatch"]

SYSTEM: Final = "rocketmq"
INSTRUMENTATION: Final = "aerobee"


class TelemetryWatch:
    """Makes the spans of one producer or consumer. InvalidMessage when the API package is not installed."""

    def __init__(self, group: str, client_id: str) -> None:
        try:
            from opentelemetry import context, propagate, trace
        except ImportError as missing:
            raise InvalidMessage(
                "telemetry is switched on and opentelemetry-api is not installed: pip install 'aerobee[otel]'"
            ) from missing
        self._context = context
        self._propagate = propagate
        self._trace = trace
        self._tracer = trace.get_tracer(INSTRUMENTATION)
        self._group = group
        self._common = {
            "messaging.system": SYSTEM,
            "messaging.client.id": client_id,
            "messaging.rocketmq.client_group": group,
        }

    def sending(self, topic: str, properties: Mapping[str, str]) -> tuple[object, str]:
        span = self._tracer.start_span(
            f"{topic} send",
            kind=self._trace.SpanKind.PRODUCER,
            attributes={
                **self._common,
                "messaging.destination.name": topic,
                "messaging.operation.name": "send",
                "messaging.operation.type": "send",
            },
        )
        carrier: dict[str, str] = {}
        self._propagate.inject(carrier, context=self._trace.set_span_in_context(span))
        if "traceparent" in carrier:
            carrier[TRACE_CONTEXT] = carrier["traceparent"]
        added = "".join(
            [f"{name}\x01{value}\x02" for name, value in carrier.items() if value and name not in properties]
        )
        return span, added

    def accepted(
        self,
        token: object,
        topic: str,
        item: "Outgoing",
        tags: str | None,
        keys: str | None,
        kind: MessageKind,
    ) -> None:
        span: Any = token
        span.set_attribute("messaging.message.id", item.message_id)
        span.set_attribute("messaging.message.body.size", len(item.body))
        if tags:
            span.set_attribute("messaging.rocketmq.message.tag", tags)
        if keys:
            span.set_attribute("messaging.rocketmq.message.keys", keys.split(" "))

        def ended(future: "asyncio.Future[Any]") -> None:
            failed = None if future.cancelled() else future.exception()
            if failed is not None:
                self._note_failure(span, failed)
            elif not future.cancelled():
                span.set_attribute("messaging.destination.partition.id", str(future.result().queue.queue_id))
            span.end()

        item.future.add_done_callback(ended)

    def transaction_ended(
        self, topic: str, result: SendResult, tags: str | None, keys: str | None, committed: bool
    ) -> None:
        """Part of the program's own span around the block."""

    def delivered(self, message: "AnyMessage") -> None:
        properties = dict(message.properties)
        if "traceparent" not in properties and TRACE_CONTEXT in properties:
            properties["traceparent"] = properties[TRACE_CONTEXT]
        sender = self._trace.get_current_span(self._propagate.extract(properties)).get_span_context()
        message.watched[self] = self._tracer.start_span(
            f"{message.topic} process",
            kind=self._trace.SpanKind.CONSUMER,
            links=[self._trace.Link(sender)] if sender.is_valid else [],
            attributes={
                **self._common,
                "messaging.consumer.group.name": self._group,
                "messaging.destination.name": message.topic,
                "messaging.destination.partition.id": str(message.queue_id),
                "messaging.message.id": message.message_id,
                "messaging.message.body.size": len(message.record.body),
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
            },
        )

    def handling(self, message: "AnyMessage") -> AbstractContextManager[None]:
        return self._handling(message)

    @contextlib.contextmanager
    def _handling(self, message: "AnyMessage") -> Iterator[None]:
        """The span is the current one while the handler works, so that its own spans are children."""
        span = message.watched.get(self)
        if span is None:
            yield
            return
        token = self._context.attach(self._trace.set_span_in_context(span))
        try:
            yield
        except Exception as failed:
            self._note_failure(span, failed)
            raise
        finally:
            self._context.detach(token)

    def settled(self, message: "AnyMessage") -> None:
        span = message.watched.pop(self, None)
        if span is not None:
            if message.outcome is not None:
                span.set_attribute("aerobee.outcome", message.outcome.value)
            span.end()

    def _note_failure(self, span: Any, failed: BaseException) -> None:
        span.record_exception(failed)
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, str(failed)))
        span.set_attribute("error.type", type(failed).__qualname__)
