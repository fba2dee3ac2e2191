"""The port that operators look through: /metrics for Prometheus, health for probes.

    /metrics           all metrics (names in `metric_families`)
    /health /readyz    200 when clients are served as promised, else 503; JSON with the reasons
    /startupz          the same
    /livez             200 unless only a restart helps

Touches  one listening socket, as `operators_port` says. Making the text of many series takes time, so that happens in a
         thread; only the copying of the counters stays in the event loop.
"""

import asyncio

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from aerobee_broker.metrics.exposition import render
from aerobee_broker.metrics.health import Health, health_of
from aerobee_broker.metrics.metric_families import MetricsSnapshot, families, snapshot_steps
from aerobee_broker.metrics.observed import Observed
from aerobee_service.operators.http_responder import Page
from aerobee_service.operators.operators_port import OperatorsPort, PortGuard, TlsOfPort, health_page
from aerobee_service.turns.slices import in_slices

__all__ = ["MetricsServer"]


class MetricsServer(OperatorsPort):
    """Metrics and health over HTTP."""

    def __init__(self, observed: Observed, tls: TlsOfPort = None, guard: PortGuard | None = None) -> None:
        super().__init__(
            {
                "/metrics": self.metrics_page,
                "/health": self.ready_page,
                "/readyz": self.ready_page,
                "/startupz": self.ready_page,
                "/livez": self._live,
            },
            tls,
            guard,
        )
        self._observed = observed
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)

    async def start(self) -> None:
        """Listen where the settings say. CannotListen when a port that somebody has set cannot be taken."""
        config = self._observed.live.value
        await self.listen(
            config.metrics_prom_exporter_host or config.bind_address,
            config.metrics_prom_exporter_port,
            is_set="metrics_prom_exporter_port" in config.model_fields_set,
        )

    async def metrics_page(self) -> Page:
        """The figures as Prometheus reads them."""
        snapshot = await in_slices(snapshot_steps(self._observed))
        body = await asyncio.to_thread(self._render, snapshot)
        return Page(body, content_type=CONTENT_TYPE_LATEST)

    def _render(self, snapshot: MetricsSnapshot) -> bytes:
        return render(families(snapshot), snapshot.node) + generate_latest(self._process)

    async def ready_page(self) -> Page:
        """Whether the broker serves, for those who route to it."""
        health = await self._health()
        return health_page(health.to_json(ok=health.is_ready), ok=health.is_ready)

    async def _live(self) -> Page:
        health = await self._health()
        return health_page(health.to_json(ok=health.is_live), ok=health.is_live)

    async def _health(self) -> Health:
        return health_of(self._observed, await self._observed.disk.now())
