"""OpenTelemetry metrics of the client, through the API package alone: the program says where they go.

    messaging.client.sent.messages        counter      messages, by topic; failed ones have error.type
    messaging.client.operation.duration   histogram    seconds from the call to the answer, for each batch sent
    messaging.client.consumed.messages    counter      messages that a consumer is done with, by topic, group, outcome;
                                                       of readers and pull consumers those handed out (`receive`)
    messaging.process.duration            histogram    seconds in the handler, or in the loop
    aerobee.producer.retries              counter      tries to send that failed
    aerobee.producer.pending              gauge        messages that wait for their answer
    aerobee.consumer.lag                  gauge        messages behind, by group and topic
    aerobee.reader.lag                    gauge        the same of readers and pull consumers
    aerobee.client.reconnects             counter      connections that were lost and made again

Those named aerobee are read from `statistics()` when the program collects, and end with their client.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, Final, Protocol
from weakref import WeakSet

from aerobee.errors import InvalidMessage
from aerobee.terms.statistics import ClientStatistics

__all__ = ["Meters"]

COMMON: Final = {"messaging.system": "rocketmq"}


class Measured(Protocol):
    """A session, as far as its meters look at it."""

    client_id: str

    def statistics(self) -> ClientStatistics:
        """What it has done so far."""


_sessions: WeakSet[Measured] = WeakSet()


class Meters:
    """Counts for one session. InvalidMessage when the API package is not installed."""

    def __init__(self, session: Measured) -> None:
        try:
            self._sent, self._sending, self._consumed, self._processing = _instruments()
        except ImportError as missing:
            raise InvalidMessage(
                "metrics are switched on and opentelemetry-api is not installed: pip install 'aerobee[otel]'"
            ) from missing
        _sessions.add(session)

    @staticmethod
    def close(session: Measured) -> None:
        """Observe this session no more."""
        _sessions.discard(session)

    def sent(
        self, topic: str, count: int, failed_count: int, error: BaseException | None, took_s: float
    ) -> None:
        """A batch has ended, with so many messages stored and so many not."""
        facts = {**COMMON, "messaging.destination.name": topic, "messaging.operation.name": "send"}
        failed = {**facts, "error.type": type(error).__name__ if error is not None else "_OTHER"}
        if count:
            self._sent.add(count, facts)
        if failed_count:
            self._sent.add(failed_count, failed)
        self._sending.record(took_s, failed if failed_count else facts)

    def read(self, group: str, topic: str, count: int) -> None:
        """A reader, or a pull consumer with its group, has handed out so many messages."""
        facts = {**COMMON, "messaging.destination.name": topic, "messaging.operation.name": "receive"}
        self._consumed.add(count, facts | {"messaging.consumer.group.name": group} if group else facts)

    def processed(self, group: str, topic: str, outcome: str, took_s: float) -> None:
        """A consumer has settled a message, or will hand it out again."""
        facts = {
            **COMMON,
            "messaging.destination.name": topic,
            "messaging.consumer.group.name": group,
            "messaging.operation.name": "process",
            "aerobee.outcome": outcome,
        }
        self._consumed.add(1, facts)
        self._processing.record(took_s, facts)


@lru_cache(maxsize=1)
def _instruments() -> tuple[Any, Any, Any, Any]:
    """Instruments are made once a process; a provider that is set later gets them too."""
    from opentelemetry import metrics

    meter = metrics.get_meter("aerobee")

    def observed(read: Callable[[ClientStatistics], Iterable[tuple[int, dict[str, str]]]]) -> list[Any]:
        def callback(_: Any) -> Iterator[Any]:
            for session in list(_sessions):
                for value, facts in read(session.statistics()):
                    yield metrics.Observation(
                        value, {**COMMON, "messaging.client.id": session.client_id, **facts}
                    )

        return [callback]

    meter.create_observable_counter("aerobee.client.reconnects", observed(_reconnects), "{connection}")
    meter.create_observable_counter("aerobee.producer.retries", observed(_retries), "{try}")
    meter.create_observable_gauge("aerobee.producer.pending", observed(_pending), "{message}")
    meter.create_observable_gauge("aerobee.consumer.lag", observed(_lags), "{message}")
    meter.create_observable_gauge("aerobee.reader.lag", observed(_reader_lags), "{message}")
    return (
        meter.create_counter("messaging.client.sent.messages", "{message}"),
        meter.create_histogram("messaging.client.operation.duration", "s"),
        meter.create_counter("messaging.client.consumed.messages", "{message}"),
        meter.create_histogram("messaging.process.duration", "s"),
    )


def _reconnects(found: ClientStatistics) -> Iterable[tuple[int, dict[str, str]]]:
    return [(found.reconnect_count, {})]


def _retries(found: ClientStatistics) -> Iterable[tuple[int, dict[str, str]]]:
    return _by_group((one.group, one.retried_count) for one in found.producers)


def _pending(found: ClientStatistics) -> Iterable[tuple[int, dict[str, str]]]:
    return _by_group((one.group, one.pending_count) for one in found.producers)


def _by_group(counts: Iterable[tuple[str, int]]) -> Iterable[tuple[int, dict[str, str]]]:
    """Producers of one group are one series."""
    total: Counter[str] = Counter()
    for group, count in counts:
        total[group] += count
    return [(count, {"messaging.rocketmq.client_group": group}) for group, count in total.items()]


def _reader_lags(found: ClientStatistics) -> Iterable[tuple[int, dict[str, str]]]:
    """Readers of one topic are one series, as are pull consumers of one group and topic."""
    total: Counter[tuple[str, str]] = Counter()
    for one in found.readers:
        total[one.group, one.topic] += one.lag
    for (group, topic), lag in total.items():
        facts = {"messaging.destination.name": topic}
        yield lag, facts | {"messaging.consumer.group.name": group} if group else facts


def _lags(found: ClientStatistics) -> Iterable[tuple[int, dict[str, str]]]:
    for one in found.consumers:
        total: Counter[str] = Counter()
        for queue, lag in one.lags.items():
            total[queue.topic] += lag
        for topic, lag in total.items():
            yield lag, {"messaging.consumer.group.name": one.group, "messaging.destination.name": topic}
