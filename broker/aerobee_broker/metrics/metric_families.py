"""Metrics under RocketMQ 5's names, made of counters that are kept anyway.

Two steps: `take_snapshot` (or `snapshot_steps`, for many series) copies what changes, in the event loop; `families`
turns it into metric families, in any thread. Topics and groups without messages have no series; deleted ones vanish
with their counters.

Our own metrics start with `aerobee_` and follow Prometheus' conventions (base units, `_total`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from aerobee_access.refusals import AccessFigures
from aerobee_broker.metrics.observed import Observed
from aerobee_broker.metrics.runtime_info import VERSION_TEXT
from aerobee_broker.stats import Histogram
from aerobee_proto import names
from aerobee_proto.bodies import TopicConfig
from aerobee_proto.javajson import sorted_steps
from aerobee_proto.names import GroupQueue
from aerobee_service.program.release import VERSION_OF_AEROBEE
from aerobee_service.turns.slices import Steps, at_once

__all__ = ["Family", "MetricsSnapshot", "families", "snapshot_steps", "take_snapshot"]

TOPIC: Final = ("topic", "is_retry", "is_system")
GROUP: Final = ("topic", "consumer_group", "is_retry", "is_system")
PRODUCER: Final = ("language", "version")
CONSUMER: Final = ("consumer_group", "language", "version", "consume_mode")

ROWS_A_STEP: Final = 256

Row = tuple[tuple[str, ...], float]  # label values, value; a scrape makes 100,000 of them


@dataclass(slots=True, frozen=True)
class Family:
    """One metric with all its series; the labels of the node come on top of these."""

    name: str  # a counter's without its _total
    kind: Literal["gauge", "counter", "histogram"]
    text: str
    labels: tuple[str, ...]
    rows: Sequence[Row]
    histogram: Histogram | None = None  # of that kind; it has no labels of its own and no rows


@dataclass(slots=True)
class MetricsSnapshot:
    """Plain values, taken at one moment."""

    node: dict[str, str]  # labels that every series has
    engine: str  # native or python
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
    open_transactions: int
    committed: list[Row]  # by topic
    rolled_back: list[Row]
    transaction_checks: int
    transactions_given_up: int
    requests: list[Row]  # by code, handler and engine
    loop_held: list[Row]  # by code and handler
    loop_lags: list[Row]  # looks at the loop that were at most so late, s
    loop_lag_sum_s: float
    turned_away: list[Row]  # connections, by reason
    access: AccessFigures
    certificates: list[Row]  # by end of TLS: when what it shows expires, epoch s
    put_took: Histogram
    flush_took: Histogram
    dead_letters: list[Row]  # by group and topic
    timing: list[Row]  # by topic


def take_snapshot(observed: Observed) -> MetricsSnapshot:
    """Copy what the metrics need. In the event loop."""
    return at_once(snapshot_steps(observed))


def snapshot_steps(observed: Observed) -> Steps[MetricsSnapshot]:
    """As `take_snapshot`, in steps: there may be a series for each topic and group."""
    identity, stats = observed.identity, observed.stats
    puts = []
    for topic, counted in list(stats.topics.items()):
        labels = _topic_labels(observed, topic)
        puts.append((labels, counted.put_count.value, counted.put_bytes.value))
        yield
    gets = []
    for (group, topic), got in list(stats.groups.items()):
        gets.append((_group_labels(observed, group, topic), got.get_count.value, got.get_bytes.value))
        yield
    lags: list[tuple[tuple[str, ...], int, int, int]] = []
    for group in observed.catalog.offsets.group_topics():
        for topic in (yield from observed.catalog.offsets.topics_steps(group)):
            yield from _add_lags(lags, observed, group, topic)
            yield
    dead_letters = []
    for name, config in observed.catalog.topics.all().items():
        if name.startswith(names.DLQ_PREFIX):
            dead_letters.append(_dead_letters(observed, name, config))
        yield
    producers = yield from _connections((yield from observed.clients.producers_online()))
    consumers = yield from _connections((yield from observed.clients.consumers_online()))
    transactions = observed.transactions()
    return MetricsSnapshot(
        node={
            "cluster": identity.cluster_name,
            "node_type": "broker",
            "node_id": identity.broker_name,
        },
        engine=observed.engine(),
        gauges=_gauges(observed),
        facts={
            name: float(value) for name, value in observed.facts().items() if isinstance(value, (int, float))
        },
        puts=puts,
        gets=gets,
        lags=lags,
        producers=producers,
        consumers=consumers,
        nameservers=[((state.addr,), float(state.registered)) for state in observed.nameservers()],
        put_failed=stats.put_failed,
        flushes=stats.flush_count,
        open_transactions=transactions.open_count,
        committed=_by_topic(observed, transactions.committed),
        rolled_back=_by_topic(observed, transactions.rolled_back),
        transaction_checks=transactions.asked,
        transactions_given_up=transactions.given_up,
        requests=_requests(observed),
        loop_held=[((str(code), name), float(n)) for (code, name), n in observed.loop.held.items()],
        loop_lags=[((bound,), float(n)) for bound, n in observed.loop.looks()],
        loop_lag_sum_s=observed.loop.lag_sum_s,
        turned_away=[((reason,), float(n)) for reason, n in observed.turned_away().items()],
        access=observed.access(),
        certificates=[((end,), expires_s) for end, expires_s in observed.certificates()],
        put_took=stats.put_histogram(),
        flush_took=stats.flush_histogram(),
        dead_letters=dead_letters,
        timing=[((topic,), float(count)) for topic, count in observed.schedule.waiting()],
    )


def _requests(observed: Observed) -> list[Row]:
    """Of codes that were asked for, and of the engines that answered them."""
    rows: list[Row] = []
    for code, name, requests, by_engine in observed.requests():
        counts = {"python": requests - by_engine, "native": by_engine}
        rows += [((str(code), name, engine), float(count)) for engine, count in counts.items() if count]
    return rows


def _dead_letters(observed: Observed, name: str, config: TopicConfig) -> Row:
    """How many dead letters a group has ever had: its topic for them is numbered without gaps."""
    ends = [observed.store.reading.max_offset(name, queue_id) for queue_id in range(config.write_queue_nums)]
    return (name.removeprefix(names.DLQ_PREFIX), name, "false"), float(sum(ends))


def _by_topic(observed: Observed, counts: Mapping[str, int]) -> list[Row]:
    return [((topic,), float(count)) for topic, count in counts.items() if topic in observed.catalog.topics]


def _gauges(observed: Observed) -> dict[str, float]:
    facts = observed.store.statistics()
    return {
        "rocketmq_broker_permission": observed.live.value.broker_permission,
        "rocketmq_topic_number": len(observed.catalog.topics),
        "rocketmq_consumer_group_number": len(observed.catalog.groups),
        "rocketmq_storage_size": facts.end_offset - facts.min_physical_offset,
        "rocketmq_storage_flush_behind_bytes": facts.end_offset - facts.flushed_offset,
        "rocketmq_storage_dispatch_behind_bytes": facts.dispatch_behind_bytes,
        "rocketmq_storage_message_reserve_time": _reserve_time(observed),
    }


def _reserve_time(observed: Observed) -> int:
    """Age of the oldest message that is kept, ms; 0 without one."""
    oldest_ms = observed.store.reading.oldest_time()
    return max(0, observed.clock() - oldest_ms) if oldest_ms > 0 else 0


def _topic_labels(observed: Observed, topic: str) -> tuple[str, ...]:
    return topic, _flag(names.is_retry_topic(topic)), _flag(observed.catalog.topics.is_system(topic))


def _group_labels(observed: Observed, group: str, topic: str) -> tuple[str, ...]:
    name, is_retry, is_system = _topic_labels(observed, topic)
    return name, group, is_retry, is_system


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _add_lags(
    lags: list[tuple[tuple[str, ...], int, int, int]], observed: Observed, group: str, topic: str
) -> Steps[None]:
    """Of a group and a topic that exists: unread messages, pulled but not committed, age of the oldest unread."""
    config = observed.catalog.topics.get(topic)
    if config is not None:
        lag, in_flight, oldest_ms = yield from _lag(observed, group, config)
        age_ms = max(0, observed.clock() - oldest_ms) if oldest_ms > 0 else 0
        lags.append((_group_labels(observed, group, topic), lag, in_flight, age_ms))


def _lag(observed: Observed, group: str, config: TopicConfig) -> Steps[tuple[int, int, int]]:
    """(unread messages, those pulled and not committed or popped and not acknowledged, store time of the oldest
    unread one or 0)."""
    lag = in_flight = oldest_ms = 0
    topic = config.topic_name
    for queue_id, consumed in list(observed.catalog.offsets.of_group(group, topic).items()):
        in_flight += observed.popped(GroupQueue(group, topic, queue_id))
        behind = observed.store.reading.max_offset(topic, queue_id) - consumed
        if behind <= 0:
            continue
        lag += behind
        pulled = observed.catalog.offsets.pulled(group, topic, queue_id)
        in_flight += max(0, (pulled or 0) - consumed)
        asked = partial(observed.store.asking.store_time, topic, queue_id, consumed)
        try:
            first_ms = yield from observed.cold.in_steps(asked)
        except OSError:
            continue  # the disk refuses; who reads is told, and the other figures are right
        if first_ms > 0 and (not oldest_ms or first_ms < oldest_ms):
            oldest_ms = first_ms
    return lag, in_flight, oldest_ms


def _connections(counts: Mapping[tuple[str, ...], int]) -> Steps[list[Row]]:
    rows: list[Row] = []
    for number, labels in enumerate((yield from sorted_steps(counts))):
        if number % ROWS_A_STEP == 0:
            yield
        rows.append((labels, float(counts[labels])))
    return rows


def families(snapshot: MetricsSnapshot) -> Iterator[Family]:
    """All metric families of a snapshot."""
    yield Family(
        "aerobee_build_info",
        "gauge",
        "1; the labels say which version of Aerobee this is, and which RocketMQ it speaks as.",
        ("version", "protocol_version"),
        [((VERSION_OF_AEROBEE, VERSION_TEXT), 1.0)],
    )
    yield Family(
        "aerobee_send_engine",
        "gauge",
        "1; the label says which engine takes usual sends and pulls.",
        ("engine",),
        [((snapshot.engine,), 1.0)],
    )
    for name, value in snapshot.gauges.items():
        yield Family(name, "gauge", "See RocketMQ's metric of that name.", (), [((), value)])
    for name, value in snapshot.facts.items():
        yield Family(f"aerobee_broker_{name}", "gauge", f"State of the broker: {name}.", (), [((), value)])
    yield from _counters("rocketmq_messages_in", "rocketmq_throughput_in", TOPIC, snapshot.puts)
    yield from _counters("rocketmq_messages_out", "rocketmq_throughput_out", GROUP, snapshot.gets)
    yield from _lag_families(snapshot)
    yield Family("rocketmq_producer_connections", "gauge", "Producers online.", PRODUCER, snapshot.producers)
    yield Family("rocketmq_consumer_connections", "gauge", "Consumers online.", CONSUMER, snapshot.consumers)
    yield Family(
        "aerobee_nameserver_registered",
        "gauge",
        "1 while the nameserver knows this broker.",
        ("nameserver",),
        snapshot.nameservers,
    )
    failed = [((), float(snapshot.put_failed))]
    yield Family("aerobee_puts_failed", "counter", "Sends that were refused or failed.", (), failed)
    flushes = [((), float(snapshot.flushes))]
    yield Family("aerobee_flushes", "counter", "Times that the log was synced.", (), flushes)
    yield Family(
        "aerobee_put_seconds", "histogram", "Time that sends waited for the disk.", (), (), snapshot.put_took
    )
    yield Family(
        "aerobee_flush_seconds", "histogram", "Time that syncs of the log took.", (), (), snapshot.flush_took
    )
    yield Family(
        "rocketmq_send_to_dlq_messages",
        "counter",
        "Dead letters.",
        ("consumer_group", "topic", "is_system"),
        snapshot.dead_letters,
    )
    yield Family(
        "rocketmq_timing_messages", "gauge", "Timer messages that wait.", ("topic",), snapshot.timing
    )
    yield from _transaction_families(snapshot)
    yield from _loop_families(snapshot)
    yield from _refusal_families(snapshot)
    yield Family(
        "aerobee_tls_certificate_expires_seconds",
        "gauge",
        "When the certificate in use expires, in seconds since the epoch.",
        ("end",),
        snapshot.certificates,
    )


def _loop_families(snapshot: MetricsSnapshot) -> Iterator[Family]:
    yield Family(
        "aerobee_requests",
        "counter",
        "Requests, by what serves them and by which engine did.",
        ("code", "handler", "engine"),
        snapshot.requests,
    )
    yield Family(
        "aerobee_loop_held",
        "counter",
        "Turns of the event loop that took loopHeldMillis or longer, by who took them.",
        ("code", "handler"),
        snapshot.loop_held,
    )
    yield Family(
        "aerobee_loop_looks",
        "counter",
        "Looks at the event loop, ten a second, by how late they came at most (seconds).",
        ("le",),
        snapshot.loop_lags,
    )
    late = [((), snapshot.loop_lag_sum_s)]
    yield Family("aerobee_loop_late_seconds", "counter", "How late all looks came together.", (), late)


def _refusal_families(snapshot: MetricsSnapshot) -> Iterator[Family]:
    yield Family(
        "aerobee_connections_refused",
        "counter",
        "Connections beyond the bounds, or broken off because of their bytes.",
        ("reason",),
        snapshot.turned_away,
    )
    access = snapshot.access
    refused = [((reason,), float(count)) for reason, count in access.refused.items()]
    yield Family("aerobee_access_refused", "counter", "Refusals of access control.", ("reason",), refused)
    delayed = [((), float(access.delayed))]
    yield Family("aerobee_access_delayed", "counter", "Refusals whose answer had to wait.", (), delayed)
    lost = [((), float(access.audit_lines_lost))]
    yield Family("aerobee_access_audit_lines_lost", "counter", "Lines that the audit log lacks.", (), lost)


def _transaction_families(snapshot: MetricsSnapshot) -> Iterator[Family]:
    opened = [((), float(snapshot.open_transactions))]
    yield Family("rocketmq_half_messages", "gauge", "Transactions that are open.", (), opened)
    topic = ("topic",)
    yield Family("rocketmq_commit_messages", "counter", "Transactions committed.", topic, snapshot.committed)
    yield Family(
        "rocketmq_rollback_messages", "counter", "Transactions rolled back.", topic, snapshot.rolled_back
    )
    checks = [((), float(snapshot.transaction_checks))]
    yield Family("aerobee_transaction_checks", "counter", "Questions to producers.", (), checks)
    given_up = [((), float(snapshot.transactions_given_up))]
    yield Family(
        "aerobee_transactions_given_up", "counter", "Half messages that were given up.", (), given_up
    )


def _counters(
    messages: str, throughput: str, labels: tuple[str, ...], rows: Sequence[tuple[tuple[str, ...], int, int]]
) -> Iterator[Family]:
    yield Family(messages, "counter", "Messages.", labels, [(values, count) for values, count, _ in rows])
    yield Family(
        throughput, "counter", "Bytes of records.", labels, [(values, size) for values, _, size in rows]
    )


def _lag_families(snapshot: MetricsSnapshot) -> Iterator[Family]:
    lags = snapshot.lags
    yield Family(
        "rocketmq_consumer_lag_messages",
        "gauge",
        "Messages that the group has not consumed.",
        GROUP,
        [(labels, lag) for labels, lag, _, _ in lags],
    )
    yield Family(
        "rocketmq_consumer_inflight_messages",
        "gauge",
        "Messages pulled and not yet committed.",
        GROUP,
        [(labels, in_flight) for labels, _, in_flight, _ in lags],
    )
    yield Family(
        "rocketmq_consumer_lag_latency",
        "gauge",
        "Age of the oldest message not consumed, ms.",
        GROUP,
        [(labels, age_ms) for labels, _, _, age_ms in lags],
    )
