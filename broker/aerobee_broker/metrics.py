"""The port that operators look through: /metrics for Prometheus, health for probes.

    /metrics           all metrics (names in `metric_families`)
    /health /readyz    200 when clients are served as promised, else 503; JSON with the reasons
    /startupz          the same
    /livez             200 unless only a restart helps

Touches  one listening socket. Making the text of many series takes time, so that happens in a thread; only the
         copying of the counters stays in the event loop.

A port that is taken is a warning: the broker serves messages without it.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import structlog
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from aerobee_broker.exposition import render, to_metric
from aerobee_broker.health import Health, health_of
from aerobee_broker.metric_families import MetricsSnapshot, families, take_snapshot
from aerobee_broker.runtime_info import disk_use
from aerobee_broker.services import Services
from aerobee_remoting.http_responder import HttpResponder, Page

__all__ = ["BrokerCollector", "MetricsServer"]

log = structlog.get_logger()


class BrokerCollector(Collector):
    """The broker's metrics for a Prometheus registry of somebody else's program."""

    def __init__(self, services: Services, facts: Callable[[], Mapping[str, object]]) -> None:
        self._services = services
        self._facts = facts

    def collect(self) -> Iterator[Metric]:
        """All families now. In the event loop's thread."""
        snapshot = take_snapshot(self._services, self._facts())
        return (to_metric(family, snapshot.node) for family in families(snapshot))


class MetricsServer:
    """Metrics and health over HTTP. `facts` gives numbers that only the assembly knows, by name."""

    def __init__(self, services: Services, *, facts: Callable[[], Mapping[str, object]]) -> None:
        self._services = services
        self._facts = facts
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        self._responder = HttpResponder(
            {
                "/metrics": self._metrics,
                "/health": self._ready,
                "/readyz": self._ready,
                "/startupz": self._ready,
                "/livez": self._live,
            }
        )
        self.port = 0  # 0 while it does not listen

    async def start(self) -> None:
        """Listen where the settings say; a port that cannot be taken is a warning."""
        config = self._services.config
        host = config.metrics_prom_exporter_host or config.bind_address
        try:
            self.port = await self._responder.start(host, config.metrics_prom_exporter_port)
        except OSError as error:
            log.warning(
                "metrics.not_served",
                host=host,
                port=config.metrics_prom_exporter_port,
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
        snapshot = take_snapshot(self._services, self._facts())
        body = await asyncio.to_thread(self._render, snapshot)
        return Page(body, content_type=CONTENT_TYPE_LATEST)

    def _render(self, snapshot: MetricsSnapshot) -> bytes:
        return render(families(snapshot), snapshot.node) + generate_latest(self._process)

    async def _ready(self) -> Page:
        health = await self._health()
        return _health_page(health, ok=health.is_ready)

    async def _live(self) -> Page:
        health = await self._health()
        return _health_page(health, ok=health.is_live)

    async def _health(self) -> Health:
        folder: Path = self._services.config.store_path_root_dir
        disk = await asyncio.to_thread(disk_use, folder)
        return health_of(self._services, disk)


def _health_page(health: Health, *, ok: bool) -> Page:
    body = msgspec.json.format(msgspec.json.encode(health.to_json(ok=ok)), indent=2) + b"\n"
    return Page(body, 200 if ok else 503, "application/json")
