"""The TLS of a whole program: of its port, of what it dials, of its port for operators.

Touches  the files that the settings name, reading.
"""

import ssl
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from aerobee_service.tls.contexts import TlsSettings, load_client, load_server
from aerobee_service.tls.live_context import LiveContext, follow

__all__ = ["ProgramTls", "ProgramTlsSettings", "check_tls"]


class ProgramTlsSettings(TlsSettings, Protocol):
    """Which ends of a program speak TLS."""

    @property
    def tls_server_mode(self) -> str: ...
    @property
    def use_tls(self) -> bool: ...
    @property
    def metrics_prom_exporter_tls(self) -> bool: ...


def check_tls(settings: ProgramTlsSettings) -> None:
    """ValueError when the settings ask for TLS and do not say with what."""
    asks = ""
    if settings.tls_server_mode != "disabled":
        asks = f"tlsServerMode={settings.tls_server_mode}"
    elif settings.metrics_prom_exporter_tls:
        asks = "metricsPromExporterTls=true"
    if (
        asks
        and not settings.tls_config_path
        and not (settings.tls_server_cert_path and settings.tls_server_key_path)
    ):
        raise ValueError(f"{asks} needs tlsServerCertPath and tlsServerKeyPath")


class ProgramTls:
    """The ends that speak TLS by the settings; None for those that do not. Keep `follow` running."""

    def __init__(self, settings: ProgramTlsSettings) -> None:
        """Raises TlsUnusable."""
        self._server = (
            LiveContext("server", partial(load_server, settings))
            if settings.tls_server_mode != "disabled"
            else None
        )
        self._client = LiveContext("client", partial(load_client, settings)) if settings.use_tls else None
        # Those who look after a server may have no certificates: probes, and most that scrape.
        self._operators = (
            LiveContext("metrics", partial(load_server, settings, insists=False))
            if settings.metrics_prom_exporter_tls
            else None
        )

    @property
    def server(self) -> Callable[[], ssl.SSLContext] | None:
        """The context for whoever comes to the port."""
        return None if self._server is None else self._server.context

    @property
    def client(self) -> Callable[[], ssl.SSLContext] | None:
        """The context for whomever this program dials."""
        return None if self._client is None else self._client.context

    @property
    def operators(self) -> Callable[[], ssl.SSLContext] | None:
        """The context for whoever comes to the port of metrics and health."""
        return None if self._operators is None else self._operators.context

    @property
    def asks_operators(self) -> bool:
        """Whether who comes to that port may show a certificate."""
        return self._operators is not None and self._operators.context().verify_mode is not ssl.CERT_NONE

    def expiries(self) -> Iterator[tuple[str, float]]:
        """Which end shows a certificate, and when that expires (seconds since the epoch)."""
        for live in self._ends():
            if live.not_after_s is not None:
                yield live.end, live.not_after_s

    async def follow(self) -> None:
        """Follow all files, until cancelled."""
        await follow(list(self._ends()))

    def _ends(self) -> Iterator[LiveContext]:
        yield from (live for live in (self._server, self._client, self._operators) if live is not None)
