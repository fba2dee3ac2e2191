"""The nameserver's shell: sockets, the scan for silent brokers, an orderly stop.

Touches  the event loop, one listening address, the KV config file at its start.

    server = NameServer(config)
    port = await server.start()
    ...
    await server.close()

It runs inside a program of its own (`main.run`) or beside a broker in one process.

Invariants
- A broker whose connection is gone is unregistered in the same turn of the loop; of very many over one connection the
  others in the turns that follow.
- After `close()` no task of the nameserver is left.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from aerobee_access.control import AccessControl
from aerobee_access.file import AccessFile
from aerobee_access.refusals import AccessFigures
from aerobee_access.table import ACCESS_FILE
from aerobee_nameserver.config import NameserverConfig
from aerobee_nameserver.handlers import Handlers
from aerobee_nameserver.kv_config import KvConfig
from aerobee_nameserver.removals import LOST, SILENT, Removals
from aerobee_nameserver.route_table import MemberChange, Removal, RouteStatistics, RouteTable
from aerobee_proto.codes import RequestCode
from aerobee_remoting.ends.client import RemotingClient, RemotingClientConfig
from aerobee_remoting.ends.server import RemotingServer, ServerConfig, TlsMode
from aerobee_remoting.exchange.connection import Connection
from aerobee_remoting.exchange.gate import Gate
from aerobee_remoting.exchange.limits import ConnectionLimits, format_addr
from aerobee_remoting.exchange.loop_watch import LoopWatch
from aerobee_remoting.peers.errors import RemotingError
from aerobee_remoting.peers.networks import Networks
from aerobee_remoting.peers.peer_memory import PeerMemory
from aerobee_service.clock import epoch_ms
from aerobee_service.program.release import VERSION_OF_AEROBEE
from aerobee_service.tls.ends import ProgramTls

__all__ = ["NameServer", "NameserverStatistics"]

ANNOUNCEMENTS_MAX: Final = 1_000  # told at once; a storm beyond it is dropped, brokers ask by themselves too

log = structlog.get_logger()


@dataclass(slots=True, frozen=True)
class NameserverStatistics:
    """How many routes of what kind, open connections, and since the start: connections beyond the bounds, those that
    were refused by reason, what access control refused."""

    routes: RouteStatistics
    connections: int
    connections_refused: int
    turned_away: Mapping[str, int]
    access: AccessFigures


class NameServer:
    """One nameserver. `now_ms` is the wall clock unless a test brings its own; `gate` lets in who asks, without one
    everybody.

    Raises TlsUnusable when the certificate or key of TLS cannot be used.
    """

    def __init__(
        self,
        config: NameserverConfig | None = None,
        *,
        keep_kv: bool = True,
        now_ms: Callable[[], int] = epoch_ms,
        gate: Gate | None = None,
    ) -> None:
        config = config or NameserverConfig()
        # Fixed for life. `keep_kv` False: the KV config lives in memory only.
        self.now_ms = now_ms
        self.tls = ProgramTls(config)
        self.memory = PeerMemory(config.max_peer_memory_bytes, config.max_peer_memory_bytes_per_connection)
        self.kv = KvConfig(
            config.kv_config_path if keep_kv else None,
            entries_max=config.max_kv_entries,
            size_max=config.max_kv_bytes,
            memory=self.memory,
        )
        self.removals = Removals(self._announce)
        self.routes = RouteTable(memory=self.memory, on_left=self.removals.tidy)
        self._handlers = Handlers(
            config,
            routes=self.routes,
            kv=self.kv,
            now_ms=now_ms,
            announce=self._announce,
            removals=self.removals,
        )
        written = config.access_file_path
        path = Path(written) if written else config.kv_config_path.with_name(ACCESS_FILE)
        self.access = AccessControl(
            config,
            cluster_name=config.access_cluster_name,
            folder=path.parent,
            now_ms=now_ms,
            keeps_log=keep_kv,
        )
        self._access_file = AccessFile(path if keep_kv else None, self.access.table)
        self.handlers = self._handlers.table(gate or self.access.gate)
        self.access.handlers(self._access_file.save).register(self.handlers)
        self.access.check_white_lists(self.handlers.by_code)
        self._server = RemotingServer(
            self.handlers,
            config=_server_config(config, self.memory, self.tls),
            on_connect=self._handlers.connected,
            on_disconnect=self.on_disconnect,
        )
        self._client = RemotingClient(
            config=RemotingClientConfig(tls=self.tls.client), signer=self.access.signer
        )
        # Moved by start() and close() only.
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False
        self.port = 0
        # Announcements under way.
        self._announcements: set[asyncio.Task[None]] = set()

    @property
    def config(self) -> NameserverConfig:
        """The settings in use; an admin request may replace them."""
        return self._handlers.config

    @property
    def address(self) -> str:
        """host:port as it listens; valid after start()."""
        return format_addr((self.config.bind_address, self.port))

    @property
    def is_waiting(self) -> bool:
        """Whether no routes are answered yet (`needWaitForService`)."""
        return self._handlers.is_waiting

    @property
    def watch(self) -> LoopWatch:
        """Who holds the event loop, and how late it is."""
        return self._server.watch

    def statistics(self) -> NameserverStatistics:
        """How many of what, for metrics and health."""
        return NameserverStatistics(
            routes=self.routes.statistics(),
            connections=len(self._server.connections),
            connections_refused=self._server.refused_connections,
            turned_away=self._server.refused(),
            access=self.access.figures(),
        )

    async def start(self) -> int:
        """Load the KV config, listen, and return the port.

        Raises KvConfigDamaged, AccessFileDamaged, KeyFileError, or OSError when the address cannot be taken.
        """
        await asyncio.to_thread(self.kv.load)
        shared = self.access.file
        if shared is not None:
            async with shared.changing():
                self.access.bootstrap()
        elif self.access.is_on:
            await asyncio.to_thread(self._access_file.load)
            if self.access.bootstrap():
                await self._access_file.save()
        self.port = await self._server.start(self.config.bind_address, self.config.listen_port)
        self._tasks = [
            asyncio.create_task(self._scan(), name="nameserver scan"),
            asyncio.create_task(self.tls.follow(), name="tls files"),
        ]
        if shared is not None:
            self._tasks.append(asyncio.create_task(shared.run(), name="users and policies"))
        log.info("nameserver.ready", version=VERSION_OF_AEROBEE, address=self.address)
        return self.port

    async def close(self) -> None:
        """Stop listening, close every connection, end every task. A second call does nothing."""
        if self._closing:
            return
        self._closing = True
        tasks = [*self._announcements, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.close()
        await self.removals.close()
        await self._client.close()
        self._handlers.close()
        await asyncio.to_thread(self.access.close)
        log.info("nameserver.stopped", address=self.address)

    def expire_silent(self) -> None:
        """Remove the brokers that have been silent for too long; the scan calls this."""
        silent = self.routes.expiring(self.now_ms())
        self.removals.follow(silent, SILENT, self._close_unless_used)

    def _close_unless_used(self, removal: Removal) -> None:
        connection = removal.connection
        if isinstance(connection, Connection) and not self.routes.has_connection(connection):
            connection.close("its broker has been silent for too long")

    async def _scan(self) -> None:
        while True:
            await self._handlers.settings_changed.pause(
                lambda: self.config.scan_not_active_broker_interval / 1000
            )
            try:
                self.expire_silent()
            except Exception:
                log.exception("nameserver.scan_failed")

    def on_disconnect(self, connection: Connection) -> None:
        if self._closing:
            return
        lost = self.routes.losing(connection)
        self.removals.follow(lost, LOST)

    def _announce(self, change: MemberChange) -> None:
        """Tell the members of a broker name which of them has the smallest id now, if that is wanted."""
        if not self.config.notify_min_broker_id_changed:
            return
        header = {
            "minBrokerId": str(change.min_broker_id),
            "brokerName": change.broker_name,
            "minBrokerAddr": change.min_broker_addr,
        }
        if change.offline_broker_addr is not None:
            header["offlineBrokerAddr"] = change.offline_broker_addr
        elif change.ha_server_addr:
            header["haBrokerAddr"] = change.ha_server_addr
        for addr in change.notified_addrs:
            if len(self._announcements) >= ANNOUNCEMENTS_MAX:
                log.warning("nameserver.announcement_dropped", broker_addr=addr)
                continue
            task = asyncio.create_task(self._announce_to(addr, header), name=f"announcement to {addr}")
            self._announcements.add(task)
            task.add_done_callback(self._announcements.discard)

    async def _announce_to(self, addr: str, header: dict[str, str]) -> None:
        try:
            await self._client.oneway(addr, RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, header)
        except RemotingError as failed:
            log.warning("nameserver.announcement_failed", broker_addr=addr, reason=str(failed))


def _server_config(config: NameserverConfig, memory: PeerMemory, tls: ProgramTls) -> ServerConfig:
    return ServerConfig(
        limits=ConnectionLimits(idle_s=float(config.server_channel_max_idle_time_seconds)),
        connections_max=config.max_connections,
        loop_held_s=config.loop_held_millis / 1000,
        connections_per_host_max=config.max_connections_per_host,
        buffered_max=config.max_peer_memory_bytes,
        memory=memory,
        tls_mode=TlsMode(config.tls_server_mode),
        tls=tls.server,
        proxies=Networks(config.proxy_protocol_from),
    )
