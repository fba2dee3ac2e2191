"""The listening side: accepts connections, bounds them, sweeps the silent ones.

TLS is told from plain by the first byte of a connection, as the official servers do: a TLS handshake starts
with 0x16, a frame with the high byte of a length below 16 MiB, so 0x00 or 0x01.

A proxy that is named (`ServerConfig.proxies`) has to say ahead of that whom each connection comes from (PROXY
protocol); bounds, access control and events then know that address. Nobody else is believed: for them a header is bad
bytes.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import structlog

from aerobee_proto.codes import RequestCode
from aerobee_proto.proxy_protocol import (
    UNNAMED,
    ProxyHeaderDecoder,
    ProxyHeaderError,
    Source,
    is_proxy_header,
)
from aerobee_proto.requests import NoFields
from aerobee_remoting.ends.first_bytes import look_at_first, take_proxy_header
from aerobee_remoting.exchange.connection import Connection
from aerobee_remoting.exchange.handlers import HandlerTable, Request, Response
from aerobee_remoting.exchange.limits import Common, ConnectionLimits, format_addr
from aerobee_remoting.exchange.loop_watch import LoopWatch
from aerobee_remoting.exchange.needs import Open
from aerobee_remoting.peers.networks import NOWHERE, Networks
from aerobee_remoting.peers.peer_memory import TOTAL_LIMIT, PeerMemory
from aerobee_remoting.peers.tls import TlsContext, context_of
from aerobee_service.neighbours import neighbours_of
from aerobee_service.program.accepting import accepting, handed_over
from aerobee_service.program.start_failures import CannotListen
from aerobee_service.turns.turns import Turns
from aerobee_service.turns.wakefulness import LOOK_S

__all__ = ["RemotingServer", "ServerConfig", "TlsMode", "listening_socket"]

log = structlog.get_logger()

SWEEP_S: Final = 1.0
GOODBYE_S: Final = 3.0
LAST_ANSWERS_S: Final = 0.05  # for requests that know how they have ended
FIRST_BYTE_S: Final = 10.0  # for a proxy's header, again for the first byte, and again for a TLS handshake
HANDSHAKE_S: Final = 0.001  # that one is counted for, before it is known
TLS_HANDSHAKE: Final = b"\x16"
SOCKET_BACKLOG: Final = 1024
ACCEPTED_MAX: Final = 16  # connections that are accepted in one turn of the event loop, at each address
WAITING_PART: Final = (
    16  # requests that wait for their turn may be such a part of the memory for peers on top of it
)
BROKEN_OFF: Final = ("frame", "handshake", "plain", "proxy_header")  # reasons


class TlsMode(Enum):
    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


@dataclass(slots=True, frozen=True)
class ServerConfig:
    """How a server listens. `tls` is needed for every mode but DISABLED."""

    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    connections_max: int = 10_000
    connections_per_host_max: int = 10_000
    buffered_max: int = 1 << 30  # bytes of half frames and unsent answers of all connections
    loop_held_s: float = 0.1  # of one turn of the event loop, before the log and the metrics say who took it
    memory: PeerMemory = field(default_factory=PeerMemory)  # those, and all else that is kept for peers
    tls_mode: TlsMode = TlsMode.DISABLED
    tls: TlsContext | None = None
    proxies: Networks = NOWHERE  # who says, and has to say, whom a connection comes from


CODECS_ARE_OPEN: Final = Open("what a peer asks first, to know how to ask at all", unsigned=True)


class RemotingServer:
    """Serves a handler table on one or more addresses."""

    def __init__(
        self,
        handlers: HandlerTable,
        *,
        config: ServerConfig | None = None,
        on_connect: Callable[[Connection], None] | None = None,
        on_disconnect: Callable[[Connection], None] | None = None,
    ) -> None:
        self._config = config or ServerConfig()
        if self._config.tls_mode is not TlsMode.DISABLED and self._config.tls is None:
            raise ValueError(f"TLS mode {self._config.tls_mode.value} needs a certificate")
        self.handlers = handlers
        if RequestCode.GET_CODECS not in handlers.by_code:
            handlers.register(
                RequestCode.GET_CODECS, self.answer_codecs, needs=CODECS_ARE_OPEN, overtakes=True
            )
        self._on_connect = on_connect
        self._on_disconnect = on_disconnect
        self.connections: dict[Connection, None] = {}  # in the order in which they came
        self.watch = LoopWatch(self._config.loop_held_s, log=log)
        self.refused_connections = 0  # beyond the bounds
        self.broken_off: Counter[str] = (
            Counter()
        )  # connections whose first or later bytes were refused, by reason
        self._refused_untold = -1  # since the last line about them; -1: there was none since the last sweep
        self.per_host: Counter[str] = (
            Counter()
        )  # connections of each host, by what it is counted as; no host with none
        # The same of sockets that have not said yet what they speak.
        self.welcoming: Counter[str] = Counter()
        self._bound: list[socket.socket] = []  # taken, not yet served
        self._servers: list[asyncio.Server] = []
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._closing = False
        self._turns: Turns | None = None  # made when there is a loop
        self._excess_logged = False  # in this turn of the loop

    def answer_codecs(self, request: Request[NoFields]) -> Response:
        """GET_CODECS: the header codecs that this server knows, and what its gate tells who begins; official servers do
        not know the question."""
        return Response(ext={"codecs": "0,1,2", **self.handlers.gate.greeting(request.connection)})

    async def start(self, host: str, port: int) -> int:
        """`bind` and `serve` in one; the port."""
        bound = self.bind(host, port)
        await self.serve()
        return bound

    def bind(self, host: str, port: int) -> int:
        """Take the address `host:port` (0 picks a free port) and return the port. Nothing is accepted yet.

        May be called for several addresses. OSError when one cannot be taken; its text names the address.
        """
        listener = _listen(host, port)
        self._bound.append(listener)
        taken: int = listener.getsockname()[1]
        return taken

    async def serve(self) -> None:
        """Accept connections on every bound address."""
        loop = asyncio.get_running_loop()
        self._turns = self._turns or Turns(look_s=LOOK_S)
        bound, self._bound = self._bound, []
        # The event loop accepts one connection of a socket in a turn. Where a turn is long, because much is asked for,
        # those that come would wait for as many turns as there are others before them, whoever these belong to.
        bound += [listener.dup() for listener in bound for _ in range(ACCEPTED_MAX - 1)]
        for listener in bound:
            if self._config.tls_mode is TlsMode.DISABLED and not self._config.proxies:
                server = await loop.create_server(self.new_connection, sock=listener, backlog=SOCKET_BACKLOG)
                self._servers.append(server)
            else:
                listener.listen(SOCKET_BACKLOG)
                self._listeners.append(listener)
                self._spawn(self._accept(listener), f"accept on {format_addr(listener.getsockname())}")
        if self._sweeper is None:
            self.watch.start()
            self._sweeper = loop.call_later(SWEEP_S, self._sweep)

    def quiesce(self) -> None:
        """Accept nobody and read nothing any more; what was read can still be answered until `close`."""
        self._closing = True
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        for connection in self.connections:
            connection.stop_reading()

    async def close(self, goodbye_s: float = GOODBYE_S) -> None:
        """Stop listening, close every connection and wait until they are gone: `goodbye_s` for last answers to leave,
        then whatever is left of them. Requests that are about to be answered still are."""
        self.quiesce()
        at_work = [task for connection in self.connections for task in connection.at_work]
        if at_work and goodbye_s:
            await asyncio.wait(at_work, timeout=min(goodbye_s, LAST_ANSWERS_S))
        self.watch.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listener in (*self._bound, *self._listeners):
            listener.close()
        connections = list(self.connections)
        for connection in connections:
            connection.close("the server is stopping")
        if connections:
            _, stuck = await asyncio.wait([c.closed for c in connections], timeout=goodbye_s)
            for connection in connections:
                if connection.closed in stuck:
                    connection.abort("the server is stopping")
        for server in self._servers:
            await server.wait_closed()

    def new_connection(self) -> Connection:
        """A connection of this server, to be given its transport, whatever that is."""
        return Connection(
            self.handlers,
            common=self._common(),
            on_open=self._opened,
            on_close=self._closed,
        )

    @property
    def is_contended(self) -> bool:
        """See `Turns`. Any thread may ask."""
        return self._turns is not None and self._turns.is_contended

    def hurry(self) -> None:
        """See `Turns`. Any thread may call this."""
        if self._turns is not None:
            self._turns.hurry()

    def _common(self) -> Common:
        return Common(
            self._config.limits,
            self._config.memory,
            self.watch,
            self._turns,
            log,
            on_excess=self._excess,
            broken_off=self.broken_off,
        )

    def _opened(self, connection: Connection) -> None:
        host = connection.neighbours
        if self._closing or self._is_full(host):
            self._refuse(connection.peer, host)
            connection.abort("too many connections")
            return
        self.connections[connection] = None
        self.per_host[host] += 1
        log.debug("remoting.connected", peer=connection.peer)
        if self._on_connect is not None:
            self._on_connect(connection)

    def refused(self) -> dict[str, int]:
        """Connections since the start that were turned away, or broken off because of their bytes, by reason."""
        return {"limit": self.refused_connections, **{one: self.broken_off[one] for one in BROKEN_OFF}}

    def _is_full(self, host: str | None) -> bool:
        """Whether one more of this host would be too many, or in all; those that have said nothing yet count too."""
        config = self._config
        if len(self.connections) + self.welcoming.total() >= config.connections_max:
            return True
        return (
            host is not None and self.per_host[host] + self.welcoming[host] >= config.connections_per_host_max
        )

    def _refuse(self, peer: str, host: str) -> None:
        """Too many: a line for the first, `sweep` tells how many more."""
        self.refused_connections += 1
        self._refused_untold += 1
        if not self._refused_untold:
            log.warning(
                "remoting.connection_refused",
                peer=peer,
                connections=len(self.connections) + self.welcoming.total(),
                connections_max=self._config.connections_max,
                from_this_host=self.per_host[host] + self.welcoming[host],
                per_host_max=self._config.connections_per_host_max,
            )

    def _closed(self, connection: Connection) -> None:
        if connection not in self.connections:
            return
        del self.connections[connection]
        _leave(self.per_host, connection.neighbours)
        log.debug("remoting.disconnected", peer=connection.peer)
        if self._on_disconnect is not None:
            self._on_disconnect(connection)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self.sweep(loop.time())
        self._sweeper = loop.call_later(SWEEP_S, self._sweep)

    def sweep(self, now: float) -> None:
        """Close connections whose time bounds are over at `now` (the loop's clock), and the greediest ones while
        all together take more memory than they may."""
        buffered = 0
        for connection in list(self.connections):
            reason = connection.sweep(now)
            if reason is not None:
                log.info("remoting.connection_dropped", peer=connection.peer, reason=reason)
            connection.count_buffers()
            buffered += connection.buffered_size
        config = self._config
        if buffered > config.buffered_max:
            self._relieve("maxBufferedBytes", config.buffered_max, buffered - config.buffered_max)
        self._relieve_memory()
        if self._refused_untold > 0:
            log.warning("remoting.connections_refused", count=self._refused_untold)
        self._refused_untold = -1

    def _excess(self) -> None:
        if not self._excess_logged:
            self._excess_logged = True
            asyncio.get_running_loop().call_soon(self._relieve_memory)

    def _relieve_memory(self) -> None:
        """Cut off whom most is buffered for, when all that is kept for peers is too much."""
        self._excess_logged = False
        memory = self._config.memory
        for connection in self.connections:
            if not connection.closed.done():
                connection.recount()  # since they were counted last some of it was handled
        excess = memory.total - memory.total_max
        if excess <= 0:
            return
        # Requests that only wait for their turn may be about to be refused, as what is full is.
        waiting = sum(one.waiting_size for one in self.connections)
        if excess > min(waiting, memory.total_max // WAITING_PART):
            self._relieve(TOTAL_LIMIT, memory.total_max, excess)

    def _relieve(self, limit: str, size_max: int, excess: int) -> None:
        for connection in sorted(self.connections, key=lambda one: one.buffered_size, reverse=True):
            if excess <= 0 or not connection.buffered_size:
                return
            excess -= connection.buffered_size
            reason = f"all connections hold more than {size_max} bytes, this one {connection.buffered_size}"
            connection.log_limit(limit, reason)
            connection.abort(reason)

    # --- a proxy's header, then TLS or plain, by the first byte --------------------------------------------------

    def _spawn(self, work: "asyncio._CoroutineLike[None]", name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        async for accepted, address in accepting(listener, _accept_failed):
            peer, host = format_addr(address), str(address[0])
            # All that a proxy passes on come from its address; whose they are is known, and bounded, a moment later.
            counted_as = neighbours_of(host)
            if self._is_full(None if host in self._config.proxies else counted_as):
                self._refuse(peer, counted_as)
                accepted.close()
                continue
            self.welcoming[counted_as] += 1
            self._spawn(self._welcome(accepted, peer, host), f"first byte of {peer}")

    async def _welcome(self, accepted: socket.socket, peer: str, host: str) -> None:
        """Take a proxy's header off, decide by the first byte, which stays in the socket, and hand the socket over."""
        loop = asyncio.get_running_loop()
        accepted.setblocking(False)
        waits = True

        def passed() -> None:
            nonlocal waits
            if waits:
                waits = False
                _leave(self.welcoming, neighbours_of(host))

        def opened(connection: Connection) -> None:
            passed()  # from here on it counts as a connection
            self._opened(connection)

        source: Source | None = None
        try:
            if host in self._config.proxies:
                header = await self._proxy_header(loop, accepted)
                if header is None:
                    log.debug("remoting.hung_up", peer=peer)
                    accepted.close()
                    return
                if (source := header.source) is not None:
                    peer = format_addr(source)
            is_tls = await self._speaks_tls(loop, accepted, peer)
            if is_tls is None:
                accepted.close()
                return
            if is_tls:
                await self._handshake_turn(neighbours_of(host))
            await handed_over(
                accepted,
                lambda: Connection(
                    self.handlers,
                    common=self._common(),
                    on_open=opened,
                    on_close=self._closed,
                    source=source,
                ),
                context_of(self._config.tls) if is_tls else None,
                FIRST_BYTE_S,
            )
        except ProxyHeaderError as refused:
            self.broken_off["proxy_header"] += 1
            log.warning("remoting.proxy_header_refused", peer=peer, reason=str(refused))
            accepted.close()
        except (OSError, TimeoutError) as failed:
            self.broken_off["handshake"] += 1
            log.info("remoting.handshake_failed", peer=peer, reason=str(failed) or type(failed).__name__)
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise
        finally:
            passed()

    async def _handshake_turn(self, host: str) -> None:
        """One handshake begins in a turn of the event loop, first of the host that has had least."""
        turns = self._turns
        if turns is None:
            return
        account = turns.open(host)
        try:
            await turns.pause(account)
            turns.charge(account, HANDSHAKE_S)
        finally:
            turns.close(account)

    async def _proxy_header(
        self, loop: asyncio.AbstractEventLoop, accepted: socket.socket
    ) -> ProxyHeaderDecoder | None:
        """The header of a proxy that is named; None when it hung up instead."""
        try:
            async with asyncio.timeout(FIRST_BYTE_S):
                return await take_proxy_header(loop, accepted)
        except TimeoutError:
            raise ProxyHeaderError(f"no whole PROXY header within {FIRST_BYTE_S:g} s") from None

    async def _speaks_tls(
        self, loop: asyncio.AbstractEventLoop, accepted: socket.socket, peer: str
    ) -> bool | None:
        """Whether the connection is to be TLS; None when it is not wanted, which is told."""
        mode = self._config.tls_mode
        if mode is TlsMode.DISABLED:
            return False
        async with asyncio.timeout(FIRST_BYTE_S):
            first = await look_at_first(loop, accepted)
        if first.startswith(TLS_HANDSHAKE):
            return True
        if not first:
            log.info("remoting.hung_up", peer=peer)
        elif mode is TlsMode.PERMISSIVE:
            return False
        elif is_proxy_header(first):
            raise ProxyHeaderError(UNNAMED)
        else:
            self.broken_off["plain"] += 1
            log.info("remoting.plain_refused", peer=peer)
        return None


def _accept_failed(failed: OSError) -> None:
    log.warning("remoting.accept_failed", reason=str(failed))


def _leave(counts: Counter[str], host: str) -> None:
    counts[host] -= 1
    if not counts[host]:
        del counts[host]


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that has taken the address; nothing is accepted yet. CannotListen names the address."""
    return _listen(host, port)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind((host, port))
    except OSError as failed:
        listener.close()
        raise CannotListen(failed, host, port) from failed
    return listener
