"""Our writer of metrics against the client library's own."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from aerobee_broker.exposition import render, to_metric
from aerobee_broker.metric_families import Family, families, take_snapshot
from aerobee_broker.metrics import BrokerCollector
from aerobee_broker.services import Services

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
VALUES = st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False))
ROWS = st.lists(st.tuples(st.tuples(TEXT, TEXT), VALUES), max_size=5)


class Fixed(Collector):
    def __init__(self, *metrics: Metric) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)


def by_the_library(collector: Collector) -> bytes:
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry)


@given(ROWS, TEXT, TEXT)
def test_any_values_are_written_as_the_library_does(
    rows: list[tuple[tuple[str, str], float]], text: str, node_value: str
) -> None:
    node = {"node": node_value}
    written = [
        Family("a_gauge", "gauge", text, ("zone", "area"), rows),
        Family("a_counter", "counter", text, ("zone", "area"), rows),
        Family("bare", "gauge", text, (), [((), 3)]),
    ]
    fixed = Fixed(*(to_metric(family, node) for family in written))
    assert render(written, node) == by_the_library(fixed)


@pytest.mark.parametrize(
    "value", [0, 1, 999_999, 1_000_000, 1_234_567, 1e6 + 0.5, 10**12, 1e21, 0.1, -5e9, 1e-7]
)
def test_numbers(value: float) -> None:
    family = Family("a", "gauge", "", (), [((), value)])
    assert render([family], {}) == by_the_library(Fixed(to_metric(family, {})))


async def test_a_brokers_metrics_are_written_as_the_library_does(services: Services) -> None:
    services.stats.put("T%s", 1, 10_000_000)
    snapshot = take_snapshot(services, {"connections": 1})
    collector = BrokerCollector(services, lambda: {"connections": 1})
    assert render(families(snapshot), snapshot.node) == by_the_library(collector)
