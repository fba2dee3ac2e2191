"""Metrics and health of all workers as one, over HTTP where a broker alone has its own.

    /metrics             the series of all workers, each with the label `worker`, and how many of them there are
    /readyz, /startupz   200 while one worker serves at least: clients find those that do
    /health              200 while all do
    /livez               200: a worker that needs a new start gets it from here

Touches  one listening socket; the workers' own ports on 127.0.0.1.

Invariants
- A worker that does not answer within `ASK_S` is shown as such and holds up nobody longer.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import structlog

from aerobee_access.port_guard import TokenFile
from aerobee_broker.settings.config import BrokerConfig
from aerobee_broker.workers.supervisor import Worker
from aerobee_service.operators.http_responder import Page
from aerobee_service.operators.operators_port import OperatorsPort, PortGuard, TlsOfPort, health_page

__all__ = ["ServicePort", "merged"]

log = structlog.get_logger()

ASK_S: Final = 5.0
PAGE_SIZE_MAX: Final = 64 << 20
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
UP: Final = "aerobee_worker_up"
STARTS: Final = "aerobee_worker_starts"


class ServicePort(OperatorsPort):
    """Metrics and health of a service of workers."""

    def __init__(
        self,
        workers: Sequence[Worker],
        tls: TlsOfPort = None,
        guard: PortGuard | None = None,
        token: TokenFile | None = None,
    ) -> None:
        """`token` is what workers show their pages to; without one they show them to this machine."""
        super().__init__(
            {
                "/metrics": self._metrics,
                "/health": self._all_ready,
                "/readyz": self._one_ready,
                "/startupz": self._one_ready,
                "/livez": self._live,
            },
            tls,
            guard,
        )
        self._workers = workers
        self._token = token

    async def start(self, config: BrokerConfig) -> None:
        """Listen where the settings of the service say. CannotListen when a port that somebody has set is taken."""
        await self.listen(
            config.metrics_prom_exporter_host or config.bind_address,
            config.metrics_prom_exporter_port,
            is_set="metrics_prom_exporter_port" in config.model_fields_set,
        )

    async def _metrics(self) -> Page:
        pages = await self._ask_all("/metrics")
        found = {name: page for name, (status, page) in pages.items() if status == 200}
        body = await asyncio.to_thread(merged, found)
        return Page(self._own() + body, content_type=CONTENT_TYPE)

    def _own(self) -> bytes:
        lines = [f"# HELP {UP} 1 while the worker serves\n# TYPE {UP} gauge\n"]
        lines += [f'{UP}{{worker="{one.name}"}} {float(one.is_ready)}\n' for one in self._workers]
        lines.append(
            f"# HELP {STARTS}_total times that the worker was started\n# TYPE {STARTS}_total counter\n"
        )
        lines += [f'{STARTS}_total{{worker="{one.name}"}} {float(one.starts)}\n' for one in self._workers]
        return "".join(lines).encode()

    async def _all_ready(self) -> Page:
        return await self._health(all)

    async def _one_ready(self) -> Page:
        return await self._health(any)

    async def _live(self) -> Page:
        facts = {one.name: {"ready": one.is_ready, "status": one.status} for one in self._workers}
        return health_page({"status": "ok", "workers": facts}, ok=True)

    async def _health(self, enough: Callable[[Iterable[bool]], bool]) -> Page:
        pages = await self._ask_all("/readyz")
        ready = {one.name: pages.get(one.name, (0, b""))[0] == 200 for one in self._workers}
        is_ok = enough(ready.values())
        facts = {
            one.name: {
                "ready": ready[one.name],
                "status": one.status,
                **_checks(pages.get(one.name, (0, b""))[1]),
            }
            for one in self._workers
        }
        return health_page({"status": "ok" if is_ok else "failing", "workers": facts}, ok=is_ok)

    async def _ask_all(self, path: str) -> dict[str, tuple[int, bytes]]:
        """Name -> status and body of those that answer."""
        up = [one for one in self._workers if one.is_ready]
        token = "" if self._token is None else await asyncio.to_thread(self._token.token)
        pages = await asyncio.gather(*(_ask(one.plan.config, path, token) for one in up))
        return {one.name: page for one, page in zip(up, pages, strict=True) if page is not None}


async def _ask(config: BrokerConfig, path: str, token: str) -> tuple[int, bytes] | None:
    """What a worker answers; None when it does not."""
    host, port = config.metrics_prom_exporter_host, config.metrics_prom_exporter_port
    try:
        async with asyncio.timeout(ASK_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                shown = f"Authorization: Bearer {token}\r\n" if token else ""
                writer.write(
                    f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{shown}Connection: close\r\n\r\n".encode()
                )
                answer = await _read_all(reader)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    if answer is None:
        log.warning("worker.page_too_large", worker=config.broker_name, path=path, size_max=PAGE_SIZE_MAX)
        return None
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    return (int(words[1]), body) if len(words) > 1 and words[1].isdigit() else None


async def _read_all(reader: asyncio.StreamReader) -> bytes | None:
    """What comes until the other end closes; None when it is too much."""
    pieces, size = [], 0
    while piece := await reader.read(1 << 18):
        size += len(piece)
        if size > PAGE_SIZE_MAX:
            return None
        pieces.append(piece)
    return b"".join(pieces)


def _checks(body: bytes) -> dict[str, object]:
    """The checks that a worker's page of health has."""
    try:
        content = json.loads(body)
    except ValueError:
        return {}
    return {"checks": content["checks"]} if isinstance(content, dict) and "checks" in content else {}


# --- several pages of metrics as one ------------------------------------------------------------------------------


def merged(pages: Mapping[str, bytes]) -> bytes:
    """Pages in Prometheus' text form, by worker, as one: a family once, its series of all workers with their name."""
    families: dict[str, list[bytes]] = {}
    for worker, page in pages.items():
        label = f'worker="{worker}"'.encode()
        for name, head, series in _families(page):
            families.setdefault(name, [head]).append(b"".join(_labelled(line, label) for line in series))
    return b"".join(part for parts in families.values() for part in parts)


def _families(page: bytes) -> Iterator[tuple[str, bytes, list[bytes]]]:
    """Name, lines of comment, and lines of series of each family of a page."""
    name, head, series = "", b"", list[bytes]()
    for line in page.splitlines(keepends=True):
        if line.startswith(b"#"):
            words = line.split(b" ", 3)
            if len(words) < 3:
                continue  # a comment of somebody else
            if series:
                yield name, head, series
                head, series = b"", []
            head += line
            name = words[2].decode("utf-8", "replace")
        elif line.strip():
            series.append(line)
    if series:
        yield name, head, series


def _labelled(line: bytes, label: bytes) -> bytes:
    """A series with one more label. Values and names hold neither braces nor blanks; values of labels may."""
    name, brace, rest = line.partition(b"{")
    if brace and b" " not in name:
        return b"%b{%b,%b" % (name, label, rest)
    name, _, value = line.partition(b" ")
    return b"%b{%b} %b" % (name, label, value)
