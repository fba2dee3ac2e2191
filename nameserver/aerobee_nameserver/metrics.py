"""The port that operators look through: /metrics for Prometheus, health for probes.

    /metrics           all metrics
    /health /readyz    200 when routes are answered, else 503; JSON with the reason
    /startupz /livez   200

Touches  one listening socket. A port that is taken is a warning: the nameserver answers routes without it.
"""

from collections.abc import Iterator
from importlib.metadata import version
from typing import Final

import msgspec
import structlog
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from aerobee_nameserver.server import NameServer
from aerobee_remoting.http_responder import HttpResponder, Page

__all__ = ["MetricsServer"]

log = structlog.get_logger()

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
        build.add_metric([version("aerobee")], 1)
        yield build
        facts = self._server.statistics()
        for name, text in GAUGES.items():
            yield GaugeMetricFamily(name, text, value=facts[name.removeprefix("aerobee_nameserver_")])
        yield CounterMetricFamily(
            "aerobee_nameserver_connections_refused",
            "Connections beyond the bounds.",
            value=facts["connections_refused"],
        )


class MetricsServer:
    """Metrics and health over HTTP. `start` once, `close` once."""

    def __init__(self, server: NameServer) -> None:
        self._server = server
        self._registry = CollectorRegistry()
        self._registry.register(_Facts(server))
        ProcessCollector(registry=self._registry)
        self._responder = HttpResponder(
            {
                "/metrics": self._metrics,
                "/health": self._ready,
                "/readyz": self._ready,
                "/startupz": self._live,
                "/livez": self._live,
            }
        )
        self.port = 0  # 0 while it does not listen

    async def start(self) -> None:
        """Listen where the settings say; a port that cannot be taken is a warning."""
        config = self._server.config
        host, port = (
            config.metrics_prom_exporter_host or config.bind_address,
            config.metrics_prom_exporter_port,
        )
        try:
            self.port = await self._responder.start(host, port)
        except OSError as error:
            log.warning(
                "metrics.not_served",
                host=host,
                port=port,
                reason=error.strerror or str(error),
                way_out="set metricsPromExporterPort to a free port, or to 0",
            )
        else:
            log.info("metrics.served", host=host, port=self.port)

    async def close(self) -> None:
        """Stop listening."""
        await self._responder.close()
        self.port = 0

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
    body = msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
    return Page(body, 200 if ok else 503, "application/json")
