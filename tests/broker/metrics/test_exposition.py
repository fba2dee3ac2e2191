"""Our writer of metrics against the client library's own."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from aerobee_broker.assembly import Parts
from aerobee_broker.metrics.exposition import render
from aerobee_broker.metrics.metric_families import Family, families, take_snapshot
from aerobee_broker.stats import Histogram

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
VALUES = st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False))
ROWS = st.lists(st.tuples(st.tuples(TEXT, TEXT), VALUES), max_size=5)


def to_metric(family: Family, node: Mapping[str, str]) -> Metric:
    """A family as the client library knows it."""
    labels = (*node, *family.labels)
    metric: CounterMetricFamily | GaugeMetricFamily
    if family.histogram is not None:
        measured = HistogramMetricFamily(family.name, family.text, labels=tuple(node))
        measured.add_metric(
            tuple(node.values()), buckets=buckets(family.histogram), sum_value=family.histogram.sum_ms / 1000
        )
        return measured
    if family.kind == "counter":
        metric = CounterMetricFamily(family.name, family.text, labels=labels)
    else:
        metric = GaugeMetricFamily(family.name, family.text, labels=labels)
    for values, value in family.rows:
        metric.add_metric((*node.values(), *values), value)
    return metric


def buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """As the library takes them: bounds in seconds, with the observations up to each."""
    bounds = [repr(bound / 1000) for bound in histogram.bounds_ms]
    return list(zip((*bounds, "+Inf"), accumulate(histogram.counts), strict=True))


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


async def test_a_brokers_metrics_are_written_as_the_library_does(parts: Parts) -> None:
    parts.stats.put("T%s", 1, 10_000_000)
    snapshot = take_snapshot(replace(parts.observed, facts=lambda: {"connections": 1}))
    written = list(families(snapshot))
    fixed = Fixed(*(to_metric(family, snapshot.node) for family in written))
    assert render(written, snapshot.node) == by_the_library(fixed)
