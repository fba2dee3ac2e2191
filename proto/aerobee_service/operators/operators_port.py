"""The HTTP port for operators, of a broker or a nameserver: open where the settings say.

Touches  one listening socket, through `HttpResponder`.
"""

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

import msgspec
import structlog

from aerobee_service.operators.http_responder import Guard, HttpResponder, Page, TlsOfPort
from aerobee_service.program.start_failures import CannotListen, explain

__all__ = ["OperatorsPort", "PortGuard", "TlsOfPort", "health_page"]

log = structlog.get_logger()

METRICS_PORT: Final = "metricsPromExporterPort"
TOKEN_PATH: Final = "metricsPromExporterTokenPath"  # noqa: S105  # a setting's name


class PortGuard(Guard, Protocol):
    """A guard that knows when it is needed."""

    @abstractmethod
    def is_needed(self, *, of_this_machine: bool) -> bool:
        """Whether visitors of a port are looked at, which only this machine can dial, or others too."""

    @property
    @abstractmethod
    def lets_nobody_in(self) -> bool:
        """Whether there is nothing that a visitor could show."""


class OperatorsPort:
    """Pages by path, served over HTTP. `start` once, `close` once."""

    def __init__(
        self,
        pages: Mapping[str, Callable[[], Awaitable[Page]]],
        tls: "TlsOfPort" = None,
        guard: PortGuard | None = None,
    ) -> None:
        """With `tls`, which gives the context for each connection, the port speaks HTTPS and nothing else. Without a
        guard everybody who can dial it may see everything."""
        self._responder = HttpResponder(pages, tls)
        self._guard = guard
        self.port = 0  # 0 while it does not listen

    async def listen(self, host: str, port: int, *, is_set: bool) -> None:
        """Listen there.

        Where somebody has set the port (`is_set`), it is scraped or asked for health: CannotListen when it cannot be
        taken. A default must not keep the second server on a machine from starting: it is told and served without.
        """
        try:
            self.port = await self._responder.start(host, port)
        except OSError as error:
            failed = CannotListen(error, host, port, METRICS_PORT)
            if is_set:
                raise failed from error
            reason, way_out = explain(failed)
            log.warning(
                "metrics.not_served", host=host, port=port, reason=reason, way_out=f"{way_out}, or to 0"
            )
            return
        guard = self._guard
        if guard is not None and guard.is_needed(of_this_machine=self._responder.is_of_this_machine):
            self._responder.guard = guard  # in the same turn in which it began to listen
            if guard.lets_nobody_in:
                log.warning("metrics.closed", host=host, port=self.port, way_out=f"set {TOKEN_PATH}")
        log.info("metrics.served", host=host, port=self.port)

    async def close(self) -> None:
        """Stop listening."""
        await self._responder.close()
        self.port = 0


def health_page(content: Mapping[str, Any], *, ok: bool) -> Page:
    """What a probe reads: 200 or 503, and the reasons as JSON."""
    body = msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
    return Page(body, 200 if ok else 503, "application/json")
