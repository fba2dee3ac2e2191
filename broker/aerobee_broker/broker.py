"""The broker: its parts put together, started and stopped in order.

Start   lock and recover the store, take the port, load the tables, serve, register. Nothing is answered before
        recovery is done.
Stop    unregister, stop accepting, answer what waits for the disk, write the tables, close the store.

Touches  everything below it; sockets through remoting, files through the store.

Invariants
- The store is called by the event loop's thread, but for syncing (the thread of `Flusher`) and the
  upkeep of queues, index, checkpoint and spare files (one worker thread); one more looks after the files.
- After a failed sync, or with a file gone, nothing is answered with success and `failed` is set: the process has
  to end.
"""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from aerobee_access.control import AccessControl
from aerobee_access.port_guard import OperatorsGuard
from aerobee_access.table import ACCESS_FILE
from aerobee_broker.assembly import Ground, Parts, Tables, assemble
from aerobee_broker.in_process.adapter import InProcess
from aerobee_broker.in_process.caller import Admission, LocalCaller
from aerobee_broker.lives.role import Role, RoleControl
from aerobee_broker.lives.seating import Seating, Served, SyncRules
from aerobee_broker.metrics.metrics import MetricsServer
from aerobee_broker.metrics.stats_line import run_stats
from aerobee_broker.process.descriptors import descriptors_of_process
from aerobee_broker.remoting_api.old_tail import OldTail
from aerobee_broker.replication.service import MasterSide
from aerobee_broker.schedule.timer_delivery import TimerDelivery
from aerobee_broker.settings.config import BrokerConfig, LiveConfig, plain_acl_of, to_store_config
from aerobee_broker.settings.config_files import ConfigFiles
from aerobee_broker.settings.identity import address_of, identity_of, identity_of_store
from aerobee_broker.upkeep.file_watching import FileWatching
from aerobee_broker.workers.link import WorkerLink
from aerobee_remoting.ends.server import RemotingServer, ServerConfig, TlsMode, listening_socket
from aerobee_remoting.exchange.connection import Connection
from aerobee_remoting.exchange.gate import Gate
from aerobee_remoting.exchange.handlers import HandlerTable
from aerobee_remoting.exchange.limits import ConnectionLimits
from aerobee_remoting.peers.networks import Networks
from aerobee_remoting.peers.peer_memory import PeerMemory
from aerobee_service.clock import epoch_ms
from aerobee_service.giving_way import Sparing
from aerobee_service.program.release import VERSION_OF_AEROBEE
from aerobee_service.tls.ends import ProgramTls
from aerobee_store.disk.io import DiskIo, StoreIo
from aerobee_store.disk.reserve import Reserve, ReservedIo
from aerobee_store.faults.errors import CorruptStore, FileGone, NotMaster, StoreError
from aerobee_store.replicas.identity import IDENTITY_FILE
from aerobee_store.store import MessageStore

__all__ = ["Broker", "Life"]

log = structlog.get_logger()

DRAIN_S: Final = 1.0  # for slaves to get the last bytes
GOODBYE_S: Final = 3.0  # for connections to take their last answers
BRIEF_S: Final = 0.05  # the same, when another life follows
SYNC_PAUSE_TIMES: Final = 10  # what a round of syncs took, before the next one
# A store into a page that was just synced costs about 10 us; half a percent of the time may go there.
SYNC_PAUSE_OF_FILE_S: Final = 0.002
SYNC_PAUSE_MAX_S: Final = 60.0


@dataclass(slots=True, frozen=True)
class Life:
    """One life of a process: a broker has one."""

    role: Role  # of which the settings are made: `settings_of`
    roles: RoleControl | None = None  # who takes operators' wishes for another role; None: nobody
    port: int = 0  # of the life before; 0: as the settings say
    link: WorkerLink | None = None  # joins it to the other workers of its service
    seating: Seating | None = None  # the election that gave the role; None: it is that of the settings
    cut_to: int | None = None  # physical offset at which its log has to end, or START_OVER; None: as it is


class Broker:
    """One broker. `start` once, `close` once; `failed` is set when it cannot go on."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        settings_file: Path | None = None,
        io: StoreIo | None = None,
        clock: Callable[[], int] = epoch_ms,
        on_recovery: Callable[[str, int], None] = lambda step, size: None,
        gate: Gate | None = None,
        listens: bool = True,
        life: "Life | None" = None,
    ) -> None:
        """`life` is which one of its process it is; without one it is a broker of another program. `settings_file` is
        where changes of settings by request are kept; without it they last for this run. `gate` lets in who asks;
        without one everybody may do everything. `on_recovery` is notified, in a thread, of which step of a recovery is
        how many bytes of the log further. Where it does not listen, no port is taken and no nameserver hears of it: it
        is there for `in_process` alone."""
        self._config = config
        self._settings_file = settings_file
        self.life = life or Life(Role(not config.is_slave, member=config.broker_id))
        disk = io or DiskIo(secret_files=(ACCESS_FILE,))
        self._reserve = Reserve(config.store_path_root_dir / "reserve", disk)
        self._io: StoreIo = ReservedIo(disk, self._reserve)
        self._clock = clock
        self._listens = listens
        self._on_recovery = on_recovery
        self.access = AccessControl(
            config,
            cluster_name=config.broker_cluster_name,
            folder=config.store_path_root_dir,
            now_ms=clock,
            plain_acl=plain_acl_of(config) if config.acl_enable else None,
            imports=plain_acl_of(config) if config.migrate_auth_from_v1_enabled else None,
            trusts=lambda caller: isinstance(caller, LocalCaller),
        )
        self.handlers = HandlerTable(gate or self.access.gate)
        self.memory = PeerMemory(config.max_peer_memory_bytes, config.max_peer_memory_bytes_per_connection)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store-upkeep")
        self._sparing = Sparing()  # of that thread
        self._tasks: list[asyncio.Task[None]] = []
        self._ends = AsyncExitStack()  # of what was made or begun
        self._store: MessageStore | None = None
        self._parts: Parts | None = None
        self._ha_listener: socket.socket | None = None
        self._is_brief = False  # the end: another life follows
        self.failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        # Done when the log has to be cut back, by another life: to this physical offset, or START_OVER.
        self.cut: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.port = 0

    @property
    def parts(self) -> Parts:
        """What this broker is made of. RuntimeError before `start`."""
        if self._parts is None:
            raise RuntimeError("the broker has not been started")
        return self._parts

    @property
    def address(self) -> str:
        """The address that clients use, `host:port`; there after `start`."""
        return self.parts.identity.broker_addr

    @property
    def settings(self) -> BrokerConfig:
        """Those in use now; what is hot may have changed since the start."""
        return self._config if self._parts is None else self._parts.config

    def in_process(self, name: str) -> InProcess:
        """What a program in this process may ask, in the event loop of the broker, after `start` and until `close`.
        `name` is what a gate knows it by."""
        parts = self.parts
        made = InProcess(
            Admission(LocalCaller(name), self.handlers.gate, self.handlers.by_code),
            parts.publisher,
            parts.promises,
            parts.writer,
            parts.pulls,
            parts.progress,
            parts.lookup,
            parts.topics,
        )
        self._ends.callback(made.close)
        return made

    # --- start ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover the store and serve. Raises StoreError, OSError or ValueError with the way out; call
        `close` then too."""
        started, config = time.perf_counter(), self._config
        plan = descriptors_of_process(
            config.max_connections, was_asked_for="max_connections" in config.model_fields_set
        )
        store = self._store = MessageStore(
            replace(to_store_config(config), descriptors_max=plan.store_files, maps_max=plan.store_maps),
            io=self._io,
            clock=self._clock,
            on_failure=self._on_disk_failure,
            on_progress=self._on_recovery,
            rest=self._sparing,
        )
        self._ends.callback(self._close_store, store)
        self._ends.push_async_callback(self._end_worker)
        recovered = await asyncio.get_running_loop().run_in_executor(
            self._worker, store.open, self.life.cut_to
        )
        if not store.statistics().commit_log_files:
            # The first file of a new log, before somebody waits for it.
            await asyncio.get_running_loop().run_in_executor(self._worker, _upkeep, store, False)
        if self.life.role.is_master and self.life.role.epoch:
            await self._begin_epoch(store, self.life.role.epoch)
        tls = await asyncio.to_thread(ProgramTls, config)
        server = RemotingServer(
            self.handlers,
            config=_server_config(config, self.memory, plan.connections, tls),
            on_disconnect=self._disconnected,
        )
        self._ends.push_async_callback(server.close)
        if self._listens:
            self.port = server.bind(config.bind_address, self.life.port or config.listen_port)
            self._ha_listener = self._bind_for_slaves()
        parts = self._parts = await self._make(store, server, tls)
        await self._begin(parts, crashed=recovered.aborted)
        log.info(
            "broker.ready",
            version=VERSION_OF_AEROBEE,
            address=parts.identity.broker_addr,
            broker_name=parts.identity.broker_name,
            cluster=parts.identity.cluster_name,
            store=str(config.store_path_root_dir),
            flush=config.flush_disk_type,
            engine=parts.observed.engine(),
            topics=len(parts.topics),
            took_ms=round((time.perf_counter() - started) * 1000),
        )

    def _bind_for_slaves(self) -> socket.socket | None:
        """The port at which slaves fetch the log; None when there is none.

        OSError when it is taken and somebody counts on it; one that was not asked for is done without.
        """
        config = self._config
        if config.is_slave or config.duplication_enable:
            return None
        asked_for = config.ha_listen_port or (config.waits_for_replicas and config.in_sync_replicas > 1)
        closes = config.acl_enable or config.authentication_enabled
        if not asked_for and closes and self.access.shared_secret is None:
            # There the log is given to whoever connects: not where others have to say who they are.
            return None
        port = config.ha_listen_port or (self.port + 1 if config.listen_port else 0)
        try:
            listener = listening_socket(config.bind_address, port)
        except (OSError, OverflowError) as taken:
            if asked_for:
                raise
            log.warning("replication.not_served", port=port, reason=str(taken))
            return None
        self._ends.callback(listener.close)
        return listener

    async def _store_identity(self) -> str:
        """Which store this is; "" where no slave asks, or it cannot be read or written."""
        if self.life.seating is not None:
            return self.life.seating.store
        if self._ha_listener is None:
            return ""
        root = self._config.store_path_root_dir
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._worker, identity_of_store, root, self._io
            )
        except (CorruptStore, OSError) as failed:
            log.warning("replication.store_unnamed", file=str(root / IDENTITY_FILE), reason=str(failed))
            return ""

    def _open_second_port(self) -> None:
        """A slave has come: RocketMQ's ask for some tables at the port two below, where its own brokers listen, too."""
        config = self._config
        if not config.listen_port:
            return
        try:
            self.parts.server.bind(config.bind_address, self.port - 2)
        except (OSError, OverflowError) as taken:
            log.warning("replication.second_port_missing", port=self.port - 2, reason=str(taken))
            return
        serving = asyncio.create_task(self.parts.server.serve(), name="second port")
        self._tasks.append(serving)

    async def _begin_epoch(self, store: MessageStore, epoch: int) -> None:
        """Before anything is appended: who cuts its log back later has to know where this mastership began."""
        begin = partial(store.epochs.append, epoch, store.end_offset)
        await asyncio.get_running_loop().run_in_executor(self._worker, begin)

    def _cut_asked(self, offset: int) -> None:
        if not self.cut.done():
            self.cut.set_result(offset)

    async def _make(self, store: MessageStore, server: RemotingServer, tls: ProgramTls) -> Parts:
        """All parts, joined, with their tables loaded; none of them runs yet."""
        link = self.life.link
        ha_port = 0 if self._ha_listener is None else self._ha_listener.getsockname()[1]
        identity = replace(
            identity_of(self._config, self.port, link.text if link is not None else "", ha_port),
            epoch=self.life.role.epoch,
        )
        ground = Ground(
            live=LiveConfig(self._config, now_ms=self._clock()),
            clock=self._clock,
            io=self._io,
            reserve=self._reserve,
            worker=self._worker,
            memory=self.memory,
            identity=identity,
            address=await address_of(identity.host),
            tls=tls,
            on_topic_created=link.topic_created if link is not None else lambda _: None,
            access=self.access,
            roles=self.life.roles,
            epoch=self.life.role.epoch,
            is_seated=self._is_seated,
            set_standing=self.life.seating.standing if self.life.seating is not None else lambda: None,
            election=self.life.seating.statistics if self.life.seating is not None else None,
            is_shared=self.life.seating.is_shared if self.life.seating is not None else lambda _: False,
            member=self.life.role.member,
            store_identity=await self._store_identity(),
            on_cut=self._cut_asked,
            on_replaced=lambda epoch: (
                None if self.life.seating is None else self.life.seating.heard_of(epoch)
            ),
            on_missed=lambda is_gone: (
                None
                if self.life.seating is None
                else self.life.seating.missed(self.life.role.epoch, is_gone=is_gone)
            ),
        )
        tables = Tables(ground)
        self._ends.push_async_callback(self._close_tables, tables.files)
        tables.load(store)
        if self.life.role.is_master and not self.life.role.epoch and tables.offsets.was_copy:
            # A slave that an operator has made the master.
            await self._begin_epoch(store, store.epochs.last_epoch + 1)
        if self.access.plain is not None:
            await asyncio.to_thread(self.access.plain.load)
        if (file := self.access.file) is not None:
            async with file.changing():
                self.access.bootstrap()
        elif self.access.is_on and self.access.bootstrap():
            await tables.files.save(self.access.table)
        return assemble(
            ground,
            store,
            tables,
            server,
            on_task_failure=self._task_failed,
            on_first_slave=self._open_second_port,
            settings_file=self._settings_file,
        )

    async def _begin(self, parts: Parts, *, crashed: bool) -> None:
        """Read what is outstanding, in this order, then run and serve. `crashed`: the last run ended without close."""
        metrics, watching = (
            MetricsServer(parts.observed, parts.tls.operators, await self._port_guard(parts.tls)),
            FileWatching(parts.store, self._fail),
        )
        master_ends, late_master_ends = AsyncExitStack(), AsyncExitStack()
        self._ends.pop_all()  # from here on all of it
        self._end_in_order(
            lambda: parts.registrar.stop(stays=self._is_brief),
            _awaited(parts.visibility.close),
            _awaited(parts.fence.close),
            self._end_tasks,
            _awaited(parts.server.quiesce),  # while sends keep coming, there is always something to sync
            _awaited(parts.promises.close),
            parts.flusher.drain,
            lambda: parts.replication.drain(0.0 if self._is_brief else DRAIN_S),
            _awaited(parts.promises.give_up),
            _awaited(self._leave_seat),
            lambda: parts.replication.close(),
            metrics.close,
            lambda: parts.server.close(BRIEF_S if self._is_brief else GOODBYE_S),
            parts.flusher.close,
            master_ends.aclose,
            parts.routes.close,
            parts.cold.close,
            _awaited(watching.stop),
            self._end_worker,
            late_master_ends.aclose,
            lambda: self._close_tables(parts.files),
            _awaited(lambda: self._close_store(parts.store)),
        )
        old_tail = OldTail(parts.store, self.handlers)

        def take_up() -> None:
            parts.transactions.load()
            parts.pop.load(crashed=crashed or parts.offsets.was_copy)
            parts.delays.begin()
            master_ends.push_async_callback(parts.pop.close)
            if parts.timers is not None:
                done_below = parts.waiting_mark.done_below(parts.store.comparison.digests)
                parts.timers.begin(parts.topics.all(), done_below=done_below)
                late_master_ends.push_async_callback(self._close_timers, parts, parts.timers)
            late_master_ends.callback(parts.delays.settle)
            late_master_ends.push_async_callback(parts.transactions.close)
            self._start_masters_tasks(parts)

        async def take_up_later() -> None:
            await old_tail.settled()
            parts.visibility.start(readers, replicas)
            take_up()

        readers, replicas = (parts.pulls, parts.pop.pops), (parts.replication.grew,)
        is_late = not parts.config.is_slave and not old_tail.is_settled
        parts.visibility.start(readers, (*replicas, old_tail.look) if is_late else replicas)
        parts.promises.start()
        parts.flusher.start(parts.visibility.advanced, self._disk_failed)
        if is_late:
            parts.transactions.is_unknown = True
            self._run("old tail", take_up_later)
        elif not parts.config.is_slave:
            take_up()
        parts.cold.start()
        self._start_tasks(parts)
        watching.start()
        if self._has_metrics:
            await metrics.start()
        if self.life.seating is not None:
            self.life.seating.began(self._served(parts))
        await parts.server.serve()
        if self.life.link is not None:
            self.life.link.take_topics(parts.topics.adopt)
        if self._ha_listener is not None and isinstance(parts.replication, MasterSide):
            enforced = parts.config.tls_server_mode == "enforcing" and parts.tls.server is not None
            await parts.replication.server.serve(self._ha_listener, parts.tls.server if enforced else None)
        if self._listens:
            # An election knows the master before nameservers do: they may name one that stands still.
            asks_nameservers = parts.config.is_slave and self.life.seating is None
            parts.registrar.start(parts.replication.master_found if asks_nameservers else None)
            role = self.life.role
            if role.master_addr:
                parts.replication.master_found(role.master_ha_addr, role.master_addr)

    @property
    def _is_seated(self) -> Callable[[], bool] | None:
        """Whether this broker is master at the moment of the call; None where no election decides that."""
        seating, role = self.life.seating, self.life.role
        if seating is None or not role.is_master:
            return None
        return lambda: seating.holds(role.epoch)

    def _served(self, parts: Parts) -> Served:
        """What the election has to know of this life."""
        store, live, replication = parts.store, parts.live, parts.replication
        master = replication if isinstance(replication, MasterSide) else None

        def rules(away_s: float) -> SyncRules:
            config = live.value
            catch_up_s = config.ha_max_time_slave_not_catchup / 1000
            return SyncRules(config.ha_max_gap_not_in_sync, catch_up_s, away_s, config.min_in_sync_replicas)

        return Served(
            parts.identity.broker_addr,
            parts.identity.ha_addr,
            lambda: store.end_offset,
            store.epochs.last_epoch,
            epoch=self.life.role.epoch,
            replicas=None if master is None else master.replicas,
            advanced=lambda: None if master is None else master.server.acknowledged(),
            tables=lambda member: (0, 0) if master is None else master.tables_of(member),
            rules=rules,
        )

    async def _port_guard(self, tls: ProgramTls) -> OperatorsGuard | None:
        """Who looks at the visitors of the port for metrics; None where there is no such port. TokenUnusable."""
        if not self._has_metrics:
            return None
        return await asyncio.to_thread(self.access.port_guard, takes_certificates=tls.asks_operators)

    @property
    def _has_metrics(self) -> bool:
        config = self._config
        is_served = config.metrics_exporter_type == "PROM" and config.metrics_prom_exporter_port != 0
        return self._listens and is_served

    def _end_in_order(self, *ends: Callable[[], Awaitable[None]]) -> None:
        """What `close` does, the first first. The order is what kill tests prove."""
        for end in reversed(ends):
            self._ends.push_async_callback(end)

    def _start_tasks(self, parts: Parts) -> None:
        self._run("disk cleaner", parts.cleaner.run)
        if self.access.plain is not None:
            self._run("accounts", self.access.plain.run)
        if self.access.file is not None:
            self._run("users and policies", self.access.file.run)
        self._run("config files", parts.files.run)
        self._run("client scan", parts.clients.run)
        self._run("stats", lambda: run_stats(parts.live, parts.clock, parts.stats, parts.figures))
        self._run("held pulls", parts.pulls.run)
        self._run("cold reads", parts.cold.run)
        self._run("store upkeep", lambda: self._run_upkeep(parts))
        self._run("store scrub", parts.scrubbing.run)
        self._run("tls files", parts.tls.follow)
        for name, work in parts.replication.work.items():
            self._run(name, work)

    def _start_masters_tasks(self, parts: Parts) -> None:
        """What appends to the log by itself: a slave has it from its master."""
        self._run("delay levels", parts.delays.run)
        self._run("delay offsets", lambda: parts.delays.run_saving(parts.files))
        self._run("transaction checks", parts.checks.run)
        self._run("pop", parts.pop.run)
        timers = parts.timers
        if timers is not None:
            self._run("timers", timers.run)
            self._run("timer checkpoint", lambda: timers.run_saving(parts.files))

    def _run(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(self._watched(name, work), name=name))

    async def _watched(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """A background task that ends by itself is a fault of ours: the broker must not limp on without it."""
        try:
            await work()
        except asyncio.CancelledError:
            raise
        except Exception as failed:
            self._task_failed(name, failed)

    def _task_failed(self, name: str, failed: Exception) -> None:
        """Called where the exception is handled. An OSError that ends a task is of a file: as a failed sync."""
        if (
            isinstance(failed, OSError)
            and not isinstance(failed, ConnectionError | TimeoutError)
            and self._store is not None
        ):
            self._store.health.fail(name, failed)
        if isinstance(failed, NotMaster):
            return  # the election ends this life
        if not self.store_has_failed:
            log.exception("broker.task_failed", task=name)
        self._fail(failed)

    # --- what happens while it runs -----------------------------------------------------------------------------

    def _disconnected(self, connection: Connection) -> None:
        if self._parts is not None:
            self._parts.pulls.drop_owner(connection)
            self._parts.pop.pops.drop_owner(connection)
            self._parts.clients.connection_lost(connection)

    async def _run_upkeep(self, parts: Parts) -> None:
        """Bring queues, index and checkpoint to the disk, and make the next log file ahead of its use.

        With thousands of queues a round takes its time where they have to be synced one by one, and after each sync the
        next send to its queue waits for the file system, which notes that the page is written to again. So rounds are
        rare then; what is not on the disk is read from the log again after a crash.
        """
        loop = asyncio.get_running_loop()
        next_sync = loop.time()
        while True:
            await parts.live.pause(lambda config: config.flush_interval_consume_queue)
            began = loop.time()
            sync = began >= next_sync
            rested_s = self._sparing.rested_s
            synced = await loop.run_in_executor(self._worker, _upkeep, parts.store, sync)
            if sync:
                now = loop.time()
                took_s = now - began - (self._sparing.rested_s - rested_s)
                next_sync = now + sync_pause_s(took_s, synced)

    def _on_disk_failure(self, failed: OSError) -> None:
        """From whichever thread met the failure."""
        self.failed.get_loop().call_soon_threadsafe(self._disk_failed, failed)

    def _disk_failed(self, failed: Exception) -> None:
        """The store has said what failed, and where; here nothing is promised any more."""
        if self._parts is not None:
            self._parts.promises.fail(failed)
        self._fail(failed)

    def _fail(self, failed: Exception) -> None:
        if self.failed.done():
            return
        write = log.warning if self.store_has_failed else log.error
        write("broker.failed", reason=str(failed) or type(failed).__name__)
        self.failed.set_result(failed)

    @property
    def store_has_failed(self) -> bool:
        """Whether the disk refused a sync or a file, or a file is gone; what is there is known after the next start."""
        return self._store is not None and self._store.has_failed

    @property
    def file_is_gone(self) -> bool:
        """Whether that was because somebody took a file of the store away."""
        return self._store is not None and isinstance(self._store.health.failure, FileGone)

    # --- stop -------------------------------------------------------------------------------------------------

    async def close(self, *, briefly: bool = False) -> None:
        """Stop in order; also after a failed or partial start. `briefly`: another life of this process follows, so no
        peer is waited for, and nameservers hear from that one."""
        self._is_brief = briefly
        if self.life.seating is not None:
            self.life.seating.ended()
        await self._ends.aclose()
        await asyncio.to_thread(self.access.close)
        log.info("broker.stopped", failed=self.failed.done())

    def _leave_seat(self) -> None:
        """Where a master has given its log nobody will listen any more, and others take its seat by that."""
        if self.life.seating is not None and not self._is_brief:
            self.life.seating.left()

    async def _end_tasks(self) -> None:
        self._sparing.is_hurried = True  # the worker's round is waited for
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _end_worker(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._worker.shutdown)

    async def _close_timers(self, parts: Parts, timers: TimerDelivery) -> None:
        if self.store_has_failed:
            return
        try:
            await timers.close()
        except OSError as failed:
            parts.store.health.fail("timer files", failed)

    async def _close_tables(self, files: ConfigFiles) -> None:
        try:
            await files.close()
        except OSError as failed:
            write = log.warning if self.store_has_failed else log.error
            write("broker.config_not_saved", reason=str(failed))

    def _close_store(self, store: MessageStore) -> None:
        try:
            store.close()
        except OSError as failed:
            self._fail(failed)


def _awaited(call: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    """A plain function as one that is awaited."""

    async def called() -> None:
        call()

    return called


def _upkeep(store: MessageStore, sync: bool) -> int:
    """One round; how many files of queues were synced."""
    synced = 0
    if store.has_failed:
        return synced
    try:
        if sync:
            synced = store.flush_queues()
            store.write_checkpoint()
        store.preallocate()
    except StoreError as refused:
        log.warning("store.upkeep_skipped", reason=str(refused))
    return synced


def sync_pause_s(took_s: float, file_count: int) -> float:
    """How long to wait after a round of syncs that took so long and brought so many files to the disk."""
    return min(max(took_s * SYNC_PAUSE_TIMES, file_count * SYNC_PAUSE_OF_FILE_S), SYNC_PAUSE_MAX_S)


def _server_config(
    config: BrokerConfig, memory: PeerMemory, connections: int, tls: ProgramTls
) -> ServerConfig:
    return ServerConfig(
        limits=ConnectionLimits(
            header_size_max=config.max_header_bytes,
            in_flight_max=config.max_in_flight_per_connection,
            write_high=config.max_write_buffer_bytes,
            write_low=config.max_write_buffer_bytes // 4,
            unsent_max=config.max_unsent_bytes,
            write_stalled_s=config.write_timeout_seconds,
            frame_s=config.frame_timeout_seconds,
            idle_s=config.server_channel_max_idle_time_seconds,
        ),
        connections_max=connections,
        connections_per_host_max=config.max_connections_per_host,
        buffered_max=config.max_buffered_bytes,
        memory=memory,
        loop_held_s=config.loop_held_millis / 1000,
        tls_mode=TlsMode(config.tls_server_mode),
        tls=tls.server,
        proxies=Networks(config.proxy_protocol_from),
    )
