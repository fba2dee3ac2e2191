"""A very small HTTP/1.1 server for probes and scrapes: GET and HEAD, one answer a connection.

    request   at most 8 KiB of head, within 5 s; bodies are not read
    answers   200, 400 (not HTTP), 401, 404, 405, 408, 431, 500, 503 (what the page says)

Touches  one listening socket.

Invariants
- A peer costs at most one task, 8 KiB and 5 s before it has said what it wants; with TLS as much again for its
  handshake.
- Who comes is let in. Above `PER_HOST_MAX` connections of its host, or `CONNECTIONS_MAX` in all, another goes: the one
  that has been silent longest, or when all have asked, the one that has taken longest. That is decided a moment later,
  when whoever came with a request has been heard, so a probe is always answered. There are never more than `CROWD_MAX`.
- Pages are made by coroutines; a page that fails is a 500 and a log line, the server lives.
- With a guard, a stranger learns at the paths of `PROBES` whether the program lives, by the status alone, and nothing
  anywhere else.
"""

import asyncio
import socket
import ssl
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address
from typing import Final, Protocol, cast

import structlog

from aerobee_service.neighbours import neighbours_of
from aerobee_service.program.accepting import accepting, handed_over

__all__ = ["PROBES", "Guard", "HttpResponder", "Page", "Standing", "TlsOfPort", "Visitor"]

log = structlog.get_logger()

# What gives the TLS context for each new connection; None: HTTP without TLS.
TlsOfPort = Callable[[], ssl.SSLContext] | None

HEAD_SIZE_MAX: Final = 8192
HEAD_TIMEOUT_S: Final = 5.0
WRITE_TIMEOUT_S: Final = 10.0
CHALLENGE: Final = 'WWW-Authenticate: Bearer realm="metrics"\r\nWWW-Authenticate: Basic realm="metrics"\r\n'
CONNECTIONS_MAX: Final = 64
PER_HOST_MAX: Final = 24
CROWD_MAX: Final = 512
HEARD_AFTER_S: Final = 0.02
BACKLOG: Final = 100
# What probes ask for: whoever asks there is told how the program is, and why only who may know.
PROBES: Final = frozenset({"/health", "/readyz", "/startupz", "/livez"})
REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(slots=True, frozen=True)
class Page:
    """An answer."""

    body: bytes
    status: int = 200
    content_type: str = "text/plain; charset=utf-8"


@dataclass(slots=True, frozen=True)
class Visitor:
    """Who asks: its address, what it gave to show who it is (the header `Authorization`, empty without one), and its
    end of the connection, which may have shown a certificate."""

    host: str
    peer: str  # host:port
    authorization: str
    transport: asyncio.BaseTransport


class Standing(Enum):
    """What a guard thinks of a visitor."""

    KNOWN = "may see everything"
    STRANGER = "has not said who it is"
    REFUSED = "has said it, and is not believed"


class Guard(Protocol):
    """Who decides what a visitor may see."""

    @abstractmethod
    async def standing(self, visitor: Visitor) -> Standing:
        """What it may see."""

    @abstractmethod
    async def refuse(self, visitor: Visitor, path: str) -> None:
        """It is about to be refused: write that down, and return when its answer may leave."""


class _Visit:
    """One connection."""

    __slots__ = ("host", "is_silent", "peer", "socket", "task")

    def __init__(self, host: str, port: int, accepted: socket.socket) -> None:
        self.host = host
        self.peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.socket: socket.socket | None = accepted  # until it has streams
        self.is_silent = True  # it has not asked yet
        self.task: asyncio.Task[None]


class HttpResponder:
    """Serves pages by path. `start`, then `close`."""

    def __init__(
        self,
        pages: Mapping[str, Callable[[], Awaitable[Page]]],
        tls: TlsOfPort = None,
        guard: Guard | None = None,
    ) -> None:
        """Without a guard everybody may see everything."""
        self._pages = pages
        self._tls = tls
        self.guard = guard
        self._listeners: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._visits: dict[_Visit, None] = {}  # in the order in which they came
        self._leaving: set[asyncio.Task[None]] = set()
        self._room: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; the port that was taken. OSError when it cannot be."""
        self._listeners = await asyncio.to_thread(_listening, host, port)
        loop = asyncio.get_running_loop()
        self._accepting = [
            loop.create_task(self._accept(one), name="metrics connections") for one in self._listeners
        ]
        return int(self._listeners[0].getsockname()[1])

    @property
    def is_of_this_machine(self) -> bool:
        """Whether nobody else can dial it: it listens at addresses of loopback alone."""
        return all(ip_address(one.getsockname()[0].partition("%")[0]).is_loopback for one in self._listeners)

    async def close(self) -> None:
        """Stop listening and end what is running."""
        if self._room is not None:
            self._room.cancel()
        tasks = [*self._accepting, *(visit.task for visit in self._visits), *self._leaving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()

    async def _accept(self, listener: socket.socket) -> None:
        async for accepted, address in accepting(listener, _accept_failed):
            self._accepted(accepted, str(address[0]), int(address[1]))

    def _accepted(self, accepted: socket.socket, host: str, port: int) -> None:
        visit = _Visit(host, port, accepted)
        if len(self._visits) >= CROWD_MAX:
            self._send_away(self._visits)
        self._visits[visit] = None
        if self._room is None and len(self._visits) > PER_HOST_MAX:
            self._room = asyncio.get_running_loop().call_later(HEARD_AFTER_S, self._make_room)
        visit.task = asyncio.get_running_loop().create_task(self._serve(visit), name="metrics connection")
        visit.task.add_done_callback(lambda _: self._ended(visit))

    def _ended(self, visit: "_Visit") -> None:
        self._visits.pop(visit, None)
        if visit.socket is not None:  # it was sent away before it was looked at
            visit.socket.close()

    def _make_room(self) -> None:
        """Send away whoever is too many of a host, or in all."""
        self._room = None
        of_hosts: dict[str, list[_Visit]] = {}
        for visit in self._visits:
            of_hosts.setdefault(neighbours_of(visit.host), []).append(visit)
        for visits in of_hosts.values():
            while len(visits) > PER_HOST_MAX:
                visits.remove(self._send_away(visits))
        while len(self._visits) > CONNECTIONS_MAX:
            self._send_away(self._visits)

    def _send_away(self, visits: "Collection[_Visit]") -> "_Visit":
        """The oldest silent one goes, or the oldest; which it was."""
        leaver = next((visit for visit in visits if visit.is_silent), next(iter(visits)))
        del self._visits[leaver]
        self._leaving.add(leaver.task)
        leaver.task.add_done_callback(self._leaving.discard)
        leaver.task.cancel()
        return leaver

    async def _open(self, visit: "_Visit") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Its streams, with TLS where the port speaks it: from the first byte, which may be there by now."""
        loop = asyncio.get_running_loop()
        accepted, visit.socket = visit.socket, None
        reader = asyncio.StreamReader(limit=HEAD_SIZE_MAX, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        tls = self._tls
        transport = await handed_over(
            cast("socket.socket", accepted), lambda: protocol, tls() if tls else None, HEAD_TIMEOUT_S
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _serve(self, visit: "_Visit") -> None:
        try:
            reader, writer = await self._open(visit)
        except (OSError, TimeoutError) as error:
            log.debug("metrics.peer_lost", reason=str(error))
            return
        try:
            method, page = await self._answer(visit, reader, writer.transport)
            writer.write(_encode(page, with_body=method != "HEAD"))
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await writer.drain()
        except (OSError, TimeoutError) as error:
            log.debug("metrics.peer_lost", reason=str(error))
        except asyncio.CancelledError:
            writer.transport.abort()  # what it does not take must not stay either
            raise
        finally:
            writer.close()

    async def _answer(
        self, visit: "_Visit", reader: asyncio.StreamReader, transport: asyncio.BaseTransport
    ) -> tuple[str, Page]:
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            visit.is_silent = False
        except TimeoutError:
            return "GET", _error(408, f"no request within {HEAD_TIMEOUT_S:g} s")
        except asyncio.LimitOverrunError:
            return "GET", _error(431, f"more than {HEAD_SIZE_MAX} bytes of request")
        except asyncio.IncompleteReadError:
            return "GET", _error(400, "the request ended early")
        first, *fields = head.decode("latin-1").split("\r\n")
        parts = first.split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            return "GET", _error(400, "not an HTTP/1.x request")
        method, path = parts[0], parts[1].partition("?")[0]
        if self.guard is None:
            return method, await self._page(method, path)
        visitor = Visitor(visit.host, visit.peer, _field(fields, "authorization"), transport)
        return method, await self._guarded(self.guard, visitor, method, path)

    async def _guarded(self, guard: Guard, visitor: Visitor, method: str, path: str) -> Page:
        standing = await guard.standing(visitor)
        if standing is Standing.KNOWN:
            return await self._page(method, path)
        if standing is Standing.STRANGER and path in PROBES and method in ("GET", "HEAD"):
            page = await self._page(method, path)
            return Page(b"ok\n" if page.status == 200 else b"failing\n", page.status)
        await guard.refuse(visitor, path)
        return _error(401, "this needs credentials")

    async def _page(self, method: str, path: str) -> Page:
        make = self._pages.get(path)
        if make is None:
            return _error(404, "there are: " + " ".join(self._pages))
        if method not in ("GET", "HEAD"):
            return _error(405, "only GET and HEAD")
        try:
            return await make()
        except Exception as error:
            log.exception("metrics.page_failed", path=path)
            return _error(500, f"{type(error).__name__}: {error}")


def _accept_failed(failed: OSError) -> None:
    log.warning("metrics.accept_failed", reason=str(failed))


def _listening(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen at every address of the host. OSError when one of them cannot."""
    listeners: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            listener = socket.socket(family, kind, protocol)
            listeners.append(listener)
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _field(fields: Collection[str], name: str) -> str:
    """The value of a field of the head, empty without it. One that is there twice is as good as wrong."""
    values = [
        value.strip() for key, _, value in (one.partition(":") for one in fields) if key.lower() == name
    ]
    return ", ".join(values)


def _error(status: int, text: str) -> Page:
    return Page(f"{text}\n".encode(), status)


def _encode(page: Page, *, with_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {page.status} {REASONS[page.status]}\r\n"
        f"Content-Type: {page.content_type}\r\n"
        f"Content-Length: {len(page.body)}\r\n"
        "Cache-Control: no-store\r\n"
        f"{CHALLENGE if page.status == 401 else ''}"
        "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (page.body if with_body else b"")
