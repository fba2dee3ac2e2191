"""The port that operators look through, of a broker or a nameserver: open where the settings say, or a warning.

Touches  one listening socket, through `HttpResponder`. A port that is taken is a warning: the process serves clients
         without it.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import structlog

from aerobee_remoting.http_responder import HttpResponder, Page

__all__ = ["OperatorsPort", "health_page"]

log = structlog.get_logger()


class OperatorsPort:
    """Pages by path, served over HTTP. `start` once, `close` once."""

    def __init__(self, pages: Mapping[str, Callable[[], Awaitable[Page]]]) -> None:
        self._responder = HttpResponder(pages)
        self.port = 0  # 0 while it does not listen

    async def listen(self, host: str, port: int) -> None:
        """Listen there; a port that cannot be taken is a warning."""
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


def health_page(content: Mapping[str, Any], *, ok: bool) -> Page:
    """What a probe reads: 200 or 503, and the reasons as JSON."""
    body = msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
    return Page(body, 200 if ok else 503, "application/json")
