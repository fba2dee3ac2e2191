"""The HTTP port for operators: /metrics for Prometheus, health for probes.

    /metrics           all metrics
    /health /readyz    200 when routes are answered, else 503; JSON with the reason
    /startupz /livez   200

Touches  one listening socket, as `operators_port` says.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from aerobee_nameserver.server import NameServer, NameserverStatistics
from aerobee_remoting.exchange.loop_watch import LoopWatch
from aerobee_service.operators.http_responder import Page
from aerobee_service.operators.operators_port import OperatorsPort, health_page
from aerobee_service.program.release import VERSION_OF_AEROBEE

__all__ = ["MetricsServer"]


class _Figures(Collector):
    """What the nameserver knows of itself, now."""

    def __init__(self, server: NameServer) -> None:
        self.server = server

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily(
            "aerobee_build_info", "1; the label says which version of Aerobee this is.", labels=["version"]
        )
        build.add_metric([VERSION_OF_AEROBEE], 1)
        yield build
        found = self.server.statistics()
        for name, text, value in (
            ("clusters", "Clusters that have a broker.", found.routes.clusters),
            (
                "broker_names",
                "Names of brokers, each of a master and its slaves.",
                found.routes.broker_names,
            ),
            ("brokers", "Brokers that are registered.", found.routes.brokers),
            ("topics", "Topics that have a route.", found.routes.topics),
            ("connections", "Open connections.", found.connections),
        ):
            yield GaugeMetricFamily(f"aerobee_nameserver_{name}", text, value=value)
        yield CounterMetricFamily(
            "aerobee_nameserver_connections_refused",
            "Connections beyond the bounds.",
            value=found.connections_refused,
        )
        yield from _of_refusals(found)
        yield from _of_loop(self.server.watch)
        expires = GaugeMetricFamily(
            "aerobee_tls_certificate_expires_seconds",
            "When the certificate in use expires, in seconds since the epoch.",
            labels=["end"],
        )
        for end, at_s in self.server.tls.expiries():
            expires.add_metric([end], at_s)
        yield expires


def _of_refusals(found: NameserverStatistics) -> Iterator[Metric]:
    turned_away = CounterMetricFamily(
        "aerobee_connections_refused",
        "Connections beyond the bounds, or broken off because of their bytes.",
        labels=["reason"],
    )
    for reason, count in found.turned_away.items():
        turned_away.add_metric([reason], count)
    yield turned_away
    refused = CounterMetricFamily("aerobee_access_refused", "Refusals of access control.", labels=["reason"])
    for reason, count in found.access.refused.items():
        refused.add_metric([reason], count)
    yield refused
    yield CounterMetricFamily(
        "aerobee_access_delayed", "Refusals whose answer had to wait.", value=found.access.delayed
    )
    yield CounterMetricFamily(
        "aerobee_access_audit_lines_lost",
        "Lines that the audit log lacks.",
        value=found.access.audit_lines_lost,
    )


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
        """TokenUnusable when the file of the token cannot be used."""
        super().__init__(
            {
                "/metrics": self.metrics_page,
                "/health": self.ready_page,
                "/readyz": self.ready_page,
                "/startupz": self._live,
                "/livez": self._live,
            },
            server.tls.operators,
            server.access.port_guard(takes_certificates=server.tls.asks_operators),
        )
        self.server = server
        self._registry = CollectorRegistry()
        self._registry.register(_Figures(server))
        ProcessCollector(registry=self._registry)

    async def start(self) -> None:
        """Listen where the settings say. CannotListen when a port that somebody has set cannot be taken."""
        config = self.server.config
        await self.listen(
            config.metrics_prom_exporter_host or config.bind_address,
            config.metrics_prom_exporter_port,
            is_set="metrics_prom_exporter_port" in config.model_fields_set,
        )

    async def metrics_page(self) -> Page:
        """The figures as Prometheus reads them."""
        return Page(generate_latest(self._registry), content_type=CONTENT_TYPE_LATEST)

    async def ready_page(self) -> Page:
        """Whether the nameserver serves, for those who route to it."""
        waits = self.server.is_waiting
        routes = self.server.statistics().routes
        known = f"{routes.brokers} brokers, {routes.topics} topics"
        return _page("no routes are answered yet (needWaitForService)" if waits else known, ok=not waits)

    async def _live(self) -> Page:
        return _page("requests are answered", ok=True)


def _page(reason: str, *, ok: bool) -> Page:
    content = {"status": "ok" if ok else "failing", "checks": {"routes": {"ok": ok, "reason": reason}}}
    return health_page(content, ok=ok)
