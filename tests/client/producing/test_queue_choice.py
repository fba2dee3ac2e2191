from collections import Counter

import pytest

from aerobee.producing.queue_choice import (
    BACK_OFF_S,
    LATENCY_LIMITS_MS,
    LowestLatency,
    QueueChooser,
    RoundRobin,
)
from aerobee.terms.routes import MessageQueue

A, B, C = ([MessageQueue("T", name, queue_id) for queue_id in range(2)] for name in ("a", "b", "c"))
QUEUES = [*A, *B, *C]


def chosen(chooser: QueueChooser, count: int, now: float, *avoid: str) -> list[MessageQueue]:
    return [chooser.choose(QUEUES, avoid, now) for _ in range(count)]


def brokers(chooser: QueueChooser, now: float, *avoid: str) -> set[str]:
    return {queue.broker_name for queue in chosen(chooser, 2 * len(QUEUES), now, *avoid)}


@pytest.mark.parametrize("make", [RoundRobin, LowestLatency])
def test_equal_brokers_share_evenly_in_turn(make: type[RoundRobin]) -> None:
    assert chosen(make(), 12, 0.0) == QUEUES * 2


@pytest.mark.parametrize("make", [RoundRobin, LowestLatency])
def test_the_start_position_spreads_clients(make: type[RoundRobin]) -> None:
    assert make(start=4).choose(QUEUES, (), 0.0) == QUEUES[4]


@pytest.mark.parametrize("make", [RoundRobin, LowestLatency])
def test_topics_have_positions_of_their_own(make: type[RoundRobin]) -> None:
    chooser = make()
    other = [queue._replace(topic="U") for queue in QUEUES]
    assert chooser.choose(QUEUES, (), 0.0) == QUEUES[0]
    assert chooser.choose(other, (), 0.0) == other[0]
    assert chooser.choose(QUEUES, (), 0.0) == QUEUES[1]


@pytest.mark.parametrize("make", [RoundRobin, LowestLatency])
def test_avoided_brokers_are_left_out_while_there_is_another(make: type[RoundRobin]) -> None:
    assert brokers(make(), 0.0, "a") == {"b", "c"}
    assert brokers(make(), 0.0, "a", "c") == {"b"}
    assert brokers(make(), 0.0, "a", "b", "c") == {"a", "b", "c"}


@pytest.mark.parametrize("make", [RoundRobin, LowestLatency])
def test_a_shrunken_route_keeps_the_rotation_inside(make: type[RoundRobin]) -> None:
    chooser = make(start=5)
    chosen(chooser, 1, 0.0)
    assert chooser.choose(A, (), 0.0) in A


@pytest.mark.parametrize(("limit", "back_off"), list(zip(LATENCY_LIMITS_MS, BACK_OFF_S, strict=True)))
def test_back_off_follows_the_table(limit: int, back_off: float) -> None:
    chooser = LowestLatency()
    chooser.record("a", limit, 100.0)
    chooser.record("b", limit - 1, 100.0)
    only_a = [A[0]]
    assert chooser.choose(only_a, (), 100.0) == A[0], "a broker without alternative is always used"
    assert not chooser.available({"a"}, 100.0) ^ {"a"}
    both_after = chooser.available({"a", "c"}, 100.0 + back_off)
    assert both_after == {"a", "c"}
    if back_off:
        assert chooser.available({"a", "c"}, 100.0 + back_off - 0.01) == {"c"}


def test_the_fastest_class_gets_the_traffic_and_shares_it() -> None:
    chooser = LowestLatency()
    chooser.record("a", 3, 0.0)
    chooser.record("b", 49, 0.0)
    chooser.record("c", 60, 0.0)
    assert brokers(chooser, 1.0) == {"a", "b"}
    assert Counter(queue.broker_name for queue in chosen(chooser, 8, 1.0)) == {"a": 4, "b": 4}


def test_an_old_measurement_is_forgotten() -> None:
    chooser = LowestLatency()
    for name, took_ms in (("a", 3), ("b", 3), ("c", 60)):
        chooser.record(name, took_ms, 0.0)
    assert "c" not in brokers(chooser, 30.0)
    assert "c" in brokers(chooser, 30.1)


def test_an_error_keeps_the_broker_out_for_ten_seconds() -> None:
    chooser = LowestLatency()
    chooser.record_error("a", 0.0, reachable=False)
    assert brokers(chooser, 9.9) == {"b", "c"}
    chooser.record("a", 1, 10.0)
    assert brokers(chooser, 10.0) == {"a", "b", "c"}


def test_when_all_back_off_reachable_ones_come_first() -> None:
    chooser = LowestLatency()
    chooser.record_error("a", 0.0, reachable=False)
    chooser.record_error("b", 0.0, reachable=True)
    chooser.record_error("c", 0.0, reachable=False)
    assert brokers(chooser, 1.0) == {"b"}
    chooser.record_error("b", 1.0, reachable=False)
    assert brokers(chooser, 2.0) == {"a", "b", "c"}
