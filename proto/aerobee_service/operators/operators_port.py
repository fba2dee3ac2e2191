"""The HTTP port for operators, of a broker or a nameserver: open where the settings say.

Touches  one listening socket, through `HttpResponder`.

However many ask for a page, it is made `1 / PAGE_EVERY_S` times a second at most, one at a time: to make all metrics
takes a millisecond and more, of the event loop or of the interpreter, and who asks may be anybody.
"""

import asyncio
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
PAGE_EVERY_S: Final = 0.05
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
        self._shared = {make: _SharedPage(make) for make in pages.values()}
        self._responder = HttpResponder({path: self._shared[make].page for path, make in pages.items()}, tls)
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
        for shared in self._shared.values():
            await shared.close()
        self.port = 0


class _SharedPage:
    """A page that is the same for everybody: who comes while one is made has the next one, with all others who have."""

    def __init__(self, make: Callable[[], Awaitable[Page]]) -> None:
        self._make = make
        # Moved by page() and _made().
        self._next: asyncio.Task[Page] | None = None  # not begun: whoever comes may wait for it
        self._current: asyncio.Task[Page] | None = None
        self._began = float("-inf")  # the current one, in seconds of the loop

    async def page(self) -> Page:
        """Made after this was asked."""
        if self._next is None:
            self._next = asyncio.create_task(self._made(), name="page for operators")
            self._next.add_done_callback(_heard)
        return await asyncio.shield(self._next)

    async def _made(self) -> Page:
        if self._current is not None:
            await asyncio.wait([self._current])
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._began + PAGE_EVERY_S - loop.time())
        self._began = loop.time()
        self._current, self._next = self._next, None
        return await self._make()

    async def close(self) -> None:
        """Nobody waits any more."""
        tasks = [task for task in (self._next, self._current) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _heard(task: "asyncio.Task[Page]") -> None:
    if not task.cancelled():
        task.exception()  # whoever waits has it; nobody has to


def health_page(content: Mapping[str, Any], *, ok: bool) -> Page:
    """What a probe reads: 200 or 503, and the reasons as JSON."""
    body = msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
    return Page(body, 200 if ok else 503, "application/json")
