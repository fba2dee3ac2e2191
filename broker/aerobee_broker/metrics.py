"""The port that operators look through: /metrics for Prometheus, health for probes.

    /metrics           all metrics (names in `metric_families`)
    /health /readyz    200 when clients are served as promised, else 503; JSON with the reasons
    /startupz          the same
    /livez             200 unless only a restart helps

Touches  one listening socket, as `operators_port` says. Making the text of many series takes time, so that happens in a
         thread; only the copying of the counters stays in the event loop.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from aerobee_broker.exposition import render, to_metric
from aerobee_broker.health import Health, health_of
from aerobee_broker.metric_families import MetricsSnapshot, families, snapshot_steps, take_snapshot
from aerobee_broker.services import Services
from aerobee_remoting.http_responder import Page
from aerobee_remoting.operators_port import OperatorsPort, health_page
from aerobee_remoting.slices import in_slices

__all__ = ["BrokerCollector", "MetricsServer"]


class BrokerCollector(Collector):
    """The broker's metrics for a Prometheus registry of somebody else's program."""

    def __init__(self, services: Services, facts: Callable[[], Mapping[str, object]]) -> None:
        self._services = services
        self._facts = facts

    def collect(self) -> Iterator[Metric]:
        """All families now. In the event loop's thread."""
        snapshot = take_snapshot(self._services, self._facts())
        return (to_metric(family, snapshot.node) for family in families(snapshot))


class MetricsServer(OperatorsPort):
    """Metrics and health over HTTP. `facts` gives numbers that only the assembly knows, by name."""

    def __init__(self, services: Services, *, facts: Callable[[], Mapping[str, object]]) -> None:
        super().__init__(
            {
                "/metrics": self._metrics,
                "/health": self._ready,
                "/readyz": self._ready,
                "/startupz": self._ready,
                "/livez": self._live,
            }
        )
        self._services = services
        self._facts = facts
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)

    async def start(self) -> None:
        """Listen where the settings say. CannotListen when a port that somebody has set cannot be taken."""
        config = self._services.config
        await self.listen(
            config.metrics_prom_exporter_host or config.bind_address,
            config.metrics_prom_exporter_port,
            is_set="metrics_prom_exporter_port" in config.model_fields_set,
        )

    async def _metrics(self) -> Page:
        snapshot = await in_slices(snapshot_steps(self._services, self._facts()))
        body = await asyncio.to_thread(self._render, snapshot)
        return Page(body, content_type=CONTENT_TYPE_LATEST)

    def _render(self, snapshot: MetricsSnapshot) -> bytes:
        return render(families(snapshot), snapshot.node) + generate_latest(self._process)

    async def _ready(self) -> Page:
        health = await self._health()
        return health_page(health.to_json(ok=health.is_ready), ok=health.is_ready)

    async def _live(self) -> Page:
        health = await self._health()
        return health_page(health.to_json(ok=health.is_live), ok=health.is_live)

    async def _health(self) -> Health:
        return health_of(self._services, await self._services.disk.now())
