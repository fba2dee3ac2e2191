"""Metrics under RocketMQ 5's names, made of counters that are kept anyway.

Two steps: `take_snapshot` copies what changes, in the event loop; `families` turns it into metric families, in
any thread. Topics and groups without messages have no series; deleted ones vanish with their counters.

Our own metrics start with `aerobee_` and follow Prometheus' conventions (base units, `_total`).
"""

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from aerobee_broker.clients import Member
from aerobee_broker.services import Services
from aerobee_proto import names
from aerobee_proto.bodies import TopicConfig

__all__ = ["MetricsSnapshot", "families", "take_snapshot"]

NODE: Final = ("cluster", "node_type", "node_id")
TOPIC: Final = (*NODE, "topic", "is_retry", "is_system")
GROUP: Final = (*NODE, "topic", "consumer_group", "is_retry", "is_system")
PRODUCER: Final = (*NODE, "language", "version")
CONSUMER: Final = (*NODE, "consumer_group", "language", "version", "consume_mode")

Row = tuple[tuple[str, ...], float]  # label values after those of the node, value


@dataclass(slots=True)
class MetricsSnapshot:
    """Plain values, taken at one moment."""

    node: tuple[str, str, str]
    gauges: dict[str, float]  # metrics without labels of their own
    facts: dict[str, float]  # of the assembly: connections, held pulls, ...
    puts: list[tuple[tuple[str, ...], int, int]]  # (topic labels, messages, bytes)
    gets: list[tuple[tuple[str, ...], int, int]]  # (topic and group labels, messages, bytes)
    lags: list[tuple[tuple[str, ...], int, int, int]]  # (labels, messages, in flight, latency in ms)
    producers: list[Row]
    consumers: list[Row]
    nameservers: list[Row]
    put_failed: int
    flushes: int


def take_snapshot(services: Services, facts: Mapping[str, object]) -> MetricsSnapshot:
    """Copy what the metrics need. In the event loop."""
    identity, stats = services.identity, services.stats
    return MetricsSnapshot(
        node=(identity.cluster_name, "broker", identity.broker_name),
        gauges=_gauges(services),
        facts={name: float(value) for name, value in facts.items() if isinstance(value, (int, float))},
        puts=[
            (_topic_labels(services, topic), held.put_count.value, held.put_bytes.value)
            for topic, held in stats.topics.items()
        ],
        gets=[
            (_group_labels(services, topic, group), held.get_count.value, held.get_bytes.value)
            for (topic, group), held in stats.groups.items()
        ],
        lags=list(_lags(services)),
        producers=_connections(services.producers.all()),
        consumers=_consumer_connections(services),
        nameservers=[((state.addr,), float(state.registered)) for state in services.registrar.states],
        put_failed=stats.put_failed,
        flushes=stats.flush_count,
    )


def _gauges(services: Services) -> dict[str, float]:
    facts = services.store.statistics()
    return {
        "rocketmq_broker_permission": services.config.broker_permission,
        "rocketmq_topic_number": len(services.topics),
        "rocketmq_consumer_group_number": len(services.groups),
        "rocketmq_storage_size": facts["end_offset"] - facts["min_physical_offset"],
        "rocketmq_storage_flush_behind_bytes": facts["end_offset"] - facts["flushed_offset"],
        "rocketmq_storage_dispatch_behind_bytes": facts["dispatch_behind_bytes"],
    }


def _topic_labels(services: Services, topic: str) -> tuple[str, ...]:
    return topic, _flag(names.is_retry_topic(topic)), _flag(services.topics.is_system(topic))


def _group_labels(services: Services, topic: str, group: str) -> tuple[str, ...]:
    name, is_retry, is_system = _topic_labels(services, topic)
    return name, group, is_retry, is_system


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _lags(services: Services) -> Iterator[tuple[tuple[str, ...], int, int, int]]:
    """For each group and topic with offsets: unread messages, pulled but not committed, age of the oldest unread."""
    now_ms = services.clock()
    for group, topics in services.offsets.group_topics().items():
        for topic in topics:
            config = services.topics.get(topic)
            if config is not None:
                lag, in_flight, oldest_ms = _lag(services, group, config)
                age_ms = max(0, now_ms - oldest_ms) if oldest_ms > 0 else 0
                yield _group_labels(services, topic, group), lag, in_flight, age_ms


def _lag(services: Services, group: str, config: TopicConfig) -> tuple[int, int, int]:
    """(unread messages, of these pulled, store time of the oldest unread one or 0)."""
    lag = in_flight = oldest_ms = 0
    topic = config.topic_name
    for queue_id, consumed in services.offsets.of_group(group, topic).items():
        behind = services.store.max_offset(topic, queue_id) - consumed
        if behind <= 0:
            continue
        lag += behind
        pulled = services.offsets.pulled(group, topic, queue_id)
        in_flight += max(0, (pulled or 0) - consumed)
        first_ms = services.store.store_time(topic, queue_id, consumed)
        if first_ms > 0 and (not oldest_ms or first_ms < oldest_ms):
            oldest_ms = first_ms
    return lag, in_flight, oldest_ms


def _connections(groups: Iterable[tuple[str, list[Member]]]) -> list[Row]:
    tally = Tally((member.language, str(member.version)) for _, members in groups for member in members)
    return [(labels, float(count)) for labels, count in sorted(tally.items())]


def _consumer_connections(services: Services) -> list[Row]:
    tally = Tally(
        (group.name, member.language, str(member.version), group.consume_type)
        for group in services.consumers.groups()
        for member in group.members.values()
    )
    return [(labels, float(count)) for labels, count in sorted(tally.items())]


def families(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    """All metric families of a snapshot."""
    node = snapshot.node
    for name, value in snapshot.gauges.items():
        yield _gauge(name, "See RocketMQ's metric of that name.", NODE, node, [((), value)])
    for name, value in snapshot.facts.items():
        yield _gauge(f"aerobee_broker_{name}", f"State of the broker: {name}.", NODE, node, [((), value)])
    yield from _counters("rocketmq_messages_in", "rocketmq_throughput_in", TOPIC, node, snapshot.puts)
    yield from _counters("rocketmq_messages_out", "rocketmq_throughput_out", GROUP, node, snapshot.gets)
    yield from _lag_families(snapshot)
    yield _gauge("rocketmq_producer_connections", "Producers online.", PRODUCER, node, snapshot.producers)
    yield _gauge("rocketmq_consumer_connections", "Consumers online.", CONSUMER, node, snapshot.consumers)
    yield _gauge(
        "aerobee_nameserver_registered",
        "1 while the nameserver knows this broker.",
        (*NODE, "nameserver"),
        node,
        snapshot.nameservers,
    )
    failed = CounterMetricFamily("aerobee_puts_failed", "Sends that were refused or failed.", labels=NODE)
    failed.add_metric(node, snapshot.put_failed)
    yield failed
    flushes = CounterMetricFamily("aerobee_flushes", "Times that the log was synced.", labels=NODE)
    flushes.add_metric(node, snapshot.flushes)
    yield flushes


def _gauge(
    name: str, text: str, labels: tuple[str, ...], node: tuple[str, ...], rows: Iterable[Row]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in rows:
        family.add_metric((*node, *values), value)
    return family


def _counters(
    messages: str,
    throughput: str,
    labels: tuple[str, ...],
    node: tuple[str, ...],
    rows: Iterable[tuple[tuple[str, ...], int, int]],
) -> Iterator[CounterMetricFamily]:
    counts = CounterMetricFamily(messages, "Messages.", labels=labels)
    sizes = CounterMetricFamily(throughput, "Bytes of records.", labels=labels)
    for values, count, size in rows:
        counts.add_metric((*node, *values), count)
        sizes.add_metric((*node, *values), size)
    return iter((counts, sizes))


def _lag_families(snapshot: MetricsSnapshot) -> Iterator[GaugeMetricFamily]:
    columns = (
        ("rocketmq_consumer_lag_messages", "Messages that the group has not consumed.", 1),
        ("rocketmq_consumer_inflight_messages", "Messages pulled and not yet committed.", 2),
        ("rocketmq_consumer_lag_latency", "Age of the oldest message not consumed, ms.", 3),
    )
    for name, text, column in columns:
        family = GaugeMetricFamily(name, text, labels=GROUP)
        for row in snapshot.lags:
            labels, value = row[0], (row[1], row[2], row[3])[column - 1]
            family.add_metric((*snapshot.node, *labels), value)
        yield family
