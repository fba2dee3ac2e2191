"""The port that operators look through: /metrics for Prometheus, health for probes.

    /metrics           all metrics
    /health /readyz    200 when routes are answered, else 503; JSON with the reason
    /startupz /livez   200

Touches  one listening socket, as `operators_port` says.
"""

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from aerobee_nameserver.server import NameServer
from aerobee_remoting.http_responder import Page
from aerobee_remoting.loop_watch import LoopWatch
from aerobee_remoting.operators_port import OperatorsPort, health_page
from aerobee_remoting.release import VERSION_OF_AEROBEE

__all__ = ["MetricsServer"]

GAUGES: Final = {
    "aerobee_nameserver_clusters": "Clusters that have a broker.",
    "aerobee_nameserver_broker_names": "Names of brokers, each of a master and its slaves.",
    "aerobee_nameserver_brokers": "Brokers that are registered.",
    "aerobee_nameserver_topics": "Topics that have a route.",
    "aerobee_nameserver_connections": "Open connections.",
}


class _Facts(Collector):
    """What the nameserver knows of itself, now."""

    def __init__(self, server: NameServer) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily(
            "aerobee_build_info", "1; the label says which version of Aerobee this is.", labels=["version"]
        )
        build.add_metric([VERSION_OF_AEROBEE], 1)
        yield build
        facts = self._server.statistics()
        for name, text in GAUGES.items():
            yield GaugeMetricFamily(name, text, value=facts[name.removeprefix("aerobee_nameserver_")])
        yield CounterMetricFamily(
            "aerobee_nameserver_connections_refused",
            "Connections beyond the bounds.",
            value=facts["connections_refused"],
        )
        yield from _of_loop(self._server.watch)


def _of_loop(watch: LoopWatch) -> Iterator[Metric]:
    held = CounterMetricFamily(
        "aerobee_loop_held",
        "Turns of the event loop that took loopHeldMillis or longer, by who took them.",
        labels=["code", "handler"],
    )
    for (code, name), count in watch.held.items():
        held.add_metric([str(code), name], count)
    yield held
    looks = CounterMetricFamily(
        "aerobee_loop_looks",
        "Looks at the event loop, ten a second, by how late they came at most (seconds).",
        labels=["le"],
    )
    for bound, count in watch.looks():
        looks.add_metric([bound], count)
    yield looks
    yield CounterMetricFamily(
        "aerobee_loop_late_seconds", "How late all looks came together.", value=watch.lag_sum_s
    )


class MetricsServer(OperatorsPort):
    """Metrics and health over HTTP. `start` once, `close` once."""

    def __init__(self, server: NameServer) -> None:
        super().__init__(
            {
                "/metrics": self._metrics,
                "/health": self._ready,
                "/readyz": self._ready,
                "/startupz": self._live,
                "/livez": self._live,
            }
        )
        self._server = server
        self._registry = CollectorRegistry()
        self._registry.register(_Facts(server))
        ProcessCollector(registry=self._registry)

    async def start(self) -> None:
        """Listen where the settings say. CannotListen when a port that somebody has set cannot be taken."""
        config = self._server.config
        await self.listen(
            config.metrics_prom_exporter_host or config.bind_address,
            config.metrics_prom_exporter_port,
            is_set="metrics_prom_exporter_port" in config.model_fields_set,
        )

    async def _metrics(self) -> Page:
        return Page(generate_latest(self._registry), content_type=CONTENT_TYPE_LATEST)

    async def _ready(self) -> Page:
        waits = self._server.is_waiting
        facts = self._server.statistics()
        known = f"{facts['brokers']} brokers, {facts['topics']} topics"
        return _page("no routes are answered yet (needWaitForService)" if waits else known, ok=not waits)

    async def _live(self) -> Page:
        return _page("requests are answered", ok=True)


def _page(reason: str, *, ok: bool) -> Page:
    content = {"status": "ok" if ok else "failing", "checks": {"routes": {"ok": ok, "reason": reason}}}
    return health_page(content, ok=ok)
