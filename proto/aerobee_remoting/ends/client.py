"""The dialling side: one connection an address, made when it is needed and again when it was lost."""

import asyncio
import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakKeyDictionary

from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import CODEC_JSON, CODEC_MSGPACK, CODEC_ROCKETMQ, Command
from aerobee_proto.headers import RequestHeader
from aerobee_remoting.exchange.connection import Connection
from aerobee_remoting.exchange.handlers import HandlerTable
from aerobee_remoting.exchange.limits import Common, ConnectionLimits
from aerobee_remoting.peers.errors import ClosedHere, ConnectFailed, ConnectionLost, RemotingError
from aerobee_remoting.peers.tls import TlsContext, context_of
from aerobee_service.logs.event_log import event_logger
from aerobee_service.turns.tasks import look_at

__all__ = ["Header", "RemotingClient", "RemotingClientConfig", "Sign", "Signer", "split_addr"]

log = event_logger("aerobee.remoting")

Header = RequestHeader | dict[str, str] | None
# Code, header and body of a request of one connection -> the fields with which it is sent.
Sign = Callable[[int, Header, bytes], dict[str, str]]
# What a server said when a connection began (fields of its answer to GET_CODECS) -> who signs what it is asked there.
Signer = Callable[[Mapping[str, str]], Sign]

SWEEP_S: Final = 1.0
CODECS: Final = {"json": CODEC_JSON, "rocketmq": CODEC_ROCKETMQ}


@dataclass(slots=True, frozen=True)
class RemotingClientConfig:
    """How a client dials. `codec` is "auto" (msgpack where the server shows that it knows it), "json" or
    "rocketmq"."""

    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    connect_timeout_s: float = 3.0
    codec: str = "auto"
    tls: TlsContext | None = None
    tls_server_name: str | None = None


def split_addr(addr: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`. ValueError with what was wrong otherwise."""
    host, colon, port = addr.strip().rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{addr!r} is not an address: host:port is wanted, for example 127.0.0.1:9876")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _reason(failed: OSError | ValueError, *, tls: bool) -> str:
    """Why a dial failed, without the address, which is told beside it: "Connection refused".

    The system has no words where the other side just went away: in the middle of a TLS handshake that is the answer
    of a server that does not speak it.
    """
    if isinstance(failed, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {failed.verify_message}"
    if isinstance(failed, ssl.SSLError) or (tls and isinstance(failed, ConnectionError) and not failed.errno):
        said = f" ({failed.reason})" if isinstance(failed, ssl.SSLError) and failed.reason else ""
        return f"the TLS handshake failed{said}; does the server speak TLS (tlsServerMode)?"
    if isinstance(failed, OSError) and failed.errno is not None and failed.errno > 0:
        return os.strerror(failed.errno)  # asyncio's own text repeats the address
    return str(failed) or type(failed).__name__


class RemotingClient:
    """Requests to any address. Requests of the servers go to `handlers`."""

    def __init__(
        self,
        handlers: HandlerTable | None = None,
        config: RemotingClientConfig | None = None,
        *,
        on_connect: Callable[[str, Connection], None] | None = None,
        on_disconnect: Callable[[str, Connection], None] | None = None,
        signer: Signer | None = None,
    ) -> None:
        """With a `signer` all requests are signed, and a connection is not used before its server has been asked what
        one has to know for that."""
        self._signer = signer
        self._signs: WeakKeyDictionary[Connection, Sign] = WeakKeyDictionary()
        self._handlers = handlers
        self._config = config or RemotingClientConfig()
        if self._config.codec not in ("auto", *CODECS):
            raise ValueError(f"codec {self._config.codec!r} is not one of auto, json, rocketmq")
        self._on_connect = on_connect
        self._on_disconnect = on_disconnect
        self._connections: dict[str, Connection] = {}
        self.dialling: dict[str, asyncio.Task[Connection]] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    async def request(
        self,
        addr: str,
        code: int,
        header: Header = None,
        body: bytes = b"",
        timeout: float = 3.0,  # noqa: ASYNC109  # the wire's own time-out
    ) -> Command:
        """Send a request to `addr` and wait for the answer, whatever its code; `timeout` is for all of it.

        ConnectFailed: nothing was sent. ConnectionLost, RequestTimeout: the outcome is not known.
        """
        connection = self._connections.get(addr)
        if connection is None or connection.is_closed:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + timeout
            try:
                async with asyncio.timeout_at(deadline):
                    connection = await self.connect(addr)
            except TimeoutError:
                raise ConnectFailed(addr, f"no connection within {timeout:.3g} s") from None
            timeout = deadline - loop.time()
        if self._signer is not None:
            header = self._signs[connection](code, header, body)
        return await connection.send_request(code, header, body, timeout)

    async def oneway(
        self,
        addr: str,
        code: int,
        header: Header = None,
        body: bytes = b"",
    ) -> None:
        """Send a request that gets no answer. ConnectFailed or ConnectionLost when it cannot be sent."""
        self._send_oneway(await self.connect(addr), code, header, body)

    def oneway_if_connected(self, addr: str, code: int, header: dict[str, str]) -> None:
        """As `oneway`, if there is a connection; it is not made for this."""
        connection = self.connected(addr)
        if connection is not None:
            self._send_oneway(connection, code, header, b"")

    def _send_oneway(self, connection: Connection, code: int, header: Header, body: bytes) -> None:
        if self._signer is not None:
            header = self._signs[connection](code, header, body)
        connection.send_oneway(code, header, body)

    @property
    def connection_count(self) -> int:
        """Connections that are open."""
        return len(self._connections)

    def connected(self, addr: str) -> Connection | None:
        """The live connection to `addr`, if there is one."""
        connection = self._connections.get(addr)
        return None if connection is None or connection.is_closed else connection

    async def connect(self, addr: str) -> Connection:
        """The connection to `addr`; concurrent callers share one dial. ConnectFailed when there is none."""
        connection = self.connected(addr)
        if connection is not None:
            return connection
        if self._closed:
            raise ClosedHere(addr)
        dial = self.dialling.get(addr)
        if dial is None:
            dial = asyncio.get_running_loop().create_task(self._dial(addr), name=f"connect {addr}")
            self.dialling[addr] = dial
            dial.add_done_callback(lambda _: self.dialling.pop(addr, None))
            dial.add_done_callback(look_at)  # who waited may have given up before it failed
        return await asyncio.shield(dial)

    async def _dial(self, addr: str) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            host, port = split_addr(addr)
            tls = context_of(self._config.tls)
            async with asyncio.timeout(self._config.connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(
                        self._handlers,
                        common=Common(self._config.limits),
                        on_close=lambda lost: self._lost(addr, lost),
                    ),
                    host,
                    port,
                    ssl=tls,
                    server_hostname=(self._config.tls_server_name or host) if tls else None,
                )
        except TimeoutError:
            raise ConnectFailed(addr, f"no connection within {self._config.connect_timeout_s:g} s") from None
        except (OSError, ValueError) as failed:
            raise ConnectFailed(addr, _reason(failed, tls=self._config.tls is not None)) from failed
        if self._closed:
            connection.abort("this client is closed")
            raise ClosedHere(addr)
        connection.codec = CODECS.get(self._config.codec, CODEC_JSON)
        if self._signer is not None:
            self._signs[connection] = self._signer(await self._greet(addr, connection))
        self._connections[addr] = connection
        if self._sweeper is None:
            self._sweeper = loop.call_later(SWEEP_S, self._sweep)
        if self._config.codec == "auto" and self._signer is None:
            self._spawn(self._learn_codec(addr, connection))
        if self._on_connect is not None:
            self._on_connect(addr, connection)
        return connection

    async def _learn_codec(self, addr: str, connection: Connection) -> None:
        """Ask once a connection. Until the answer is here, and wherever it is "not supported", JSON is used."""
        try:
            answer = await connection.request(RequestCode.GET_CODECS)
        except RemotingError as failed:
            log.debug("remoting.codecs_unknown", addr=addr, reason=str(failed))
            return
        _take_codec(connection, answer)

    async def _greet(self, addr: str, connection: Connection) -> Mapping[str, str]:
        """What the server says before it is asked for anything, nothing where it does not know the question.
        ConnectFailed when it says nothing."""
        limit_s = self._config.connect_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                answer = await connection.request(RequestCode.GET_CODECS)
        except TimeoutError:
            connection.abort("no answer to the first question")
            raise ConnectFailed(addr, f"connected, and no answer within {limit_s:g} s") from None
        except ConnectionLost as lost:
            raise ConnectFailed(addr, lost.reason) from lost
        except BaseException:
            connection.abort("given up")
            raise
        if self._closed:
            connection.abort("this client is closed")
            raise ClosedHere(addr)
        if connection.is_closed:
            raise ConnectFailed(addr, "closed by the peer")
        if self._config.codec == "auto":
            _take_codec(connection, answer)
        return answer.ext if answer.code == ResponseCode.SUCCESS else {}

    def _lost(self, addr: str, connection: Connection) -> None:
        if self._connections.get(addr) is connection:
            del self._connections[addr]
            if self._on_disconnect is not None:
                self._on_disconnect(addr, connection)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        for connection in list(self._connections.values()):
            connection.sweep(loop.time())
        self._sweeper = loop.call_later(SWEEP_S, self._sweep) if self._connections else None

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def close(self) -> None:
        """Close every connection and wait until they are gone."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        dialling = list(self.dialling.values())
        for task in (*dialling, *self.tasks):
            task.cancel()
        await asyncio.gather(*dialling, *self.tasks, return_exceptions=True)
        connections = list(self._connections.values())
        for connection in connections:
            connection.close("this client is closed")
        if connections:
            await asyncio.wait([c.closed for c in connections], timeout=3.0)


def _take_codec(connection: Connection, answer: Command) -> None:
    """Use the codec that the server shows to know."""
    if answer.code == ResponseCode.SUCCESS and "2" in answer.ext.get("codecs", "").split(","):
        connection.codec = CODEC_MSGPACK
