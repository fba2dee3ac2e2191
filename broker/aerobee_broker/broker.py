"""The broker: its parts put together, started and stopped in order.

Start   lock and recover the store, take the port, load the tables, serve, register. Nothing is answered before
        recovery is done.
Stop    unregister, stop accepting, answer what waits for the disk, write the tables, close the store.

Touches  everything below it; sockets through remoting, files through the store.

Invariants
- The store is called by the event loop's thread, but for syncing (the flusher thread of `Durability`) and the
  upkeep of queues, index, checkpoint and spare files (one worker thread); one more looks after the files.
- After a failed sync, or with a file gone, nothing is answered with success and `failed` is set: the process has
  to end.
"""

import asyncio
import os
import secrets
import ssl
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import structlog

from aerobee_broker.admin import register_admin
from aerobee_broker.config import BrokerConfig, LiveConfig, to_store_config
from aerobee_broker.descriptors import descriptors_of_process
from aerobee_broker.disk_keeper import DiskKeeper
from aerobee_broker.durability import Durability
from aerobee_broker.file_watching import FileWatching
from aerobee_broker.housekeeping import connection_lost, run_client_scan, run_stats
from aerobee_broker.identity import BrokerIdentity, address_of, identity_of
from aerobee_broker.metrics import MetricsServer
from aerobee_broker.parked_messages import ParkedMessages
from aerobee_broker.pop.service import PopService
from aerobee_broker.pull import PullProcessor
from aerobee_broker.query import QueryProcessor
from aerobee_broker.retries import Retries
from aerobee_broker.schedule_delivery import ScheduleDelivery
from aerobee_broker.scrubbing import Scrubbing
from aerobee_broker.send import SendProcessor
from aerobee_broker.services import Services, make_services
from aerobee_broker.timer_delivery import TimerDelivery
from aerobee_broker.transaction_checks import TransactionChecks
from aerobee_proto.codes import ResponseCode
from aerobee_proto.message_ids import UniqueKeyFactory
from aerobee_remoting.connection import Connection, ConnectionLimits
from aerobee_remoting.handlers import HandlerTable
from aerobee_remoting.peer_memory import PeerMemory
from aerobee_remoting.release import VERSION_OF_AEROBEE
from aerobee_remoting.server import RemotingServer, ServerConfig, TlsMode
from aerobee_store.errors import FileGone, OutOfResources, StoreError, StoreFull
from aerobee_store.io import DiskIo, StoreIo
from aerobee_store.reserve import Reserve, ReservedIo
from aerobee_store.store import MessageStore
from aerobee_store.timer_files import TimerFiles

__all__ = ["Broker"]

log = structlog.get_logger()

HELD_PULL_SWEEP_S: Final = 0.1
RESOURCES_RETRY_S: Final = 1.0  # until work that found no descriptor or memory is done again
DISPATCH_RETRY_S: Final = 1.0  # while the disk is full
SYNC_PAUSE_TIMES: Final = 10  # what a round of syncs took, before the next one
# A store into a page that was just synced costs about 10 us; half a percent of the time may go there.
SYNC_PAUSE_OF_FILE_S: Final = 0.002
SYNC_PAUSE_MAX_S: Final = 60.0
INDEX_PAUSE_S: Final = 0.01  # between two rounds of index work
INDEX_ROUND: Final = 2048  # messages indexed in one go: about 3 ms of the loop


def epoch_ms() -> int:
    """The wall clock in milliseconds."""
    return time.time_ns() // 1_000_000


class Broker:
    """One broker. `start` once, `close` once; `failed` is set when it cannot go on."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        settings_file: Path | None = None,
        io: StoreIo | None = None,
        clock: Callable[[], int] = epoch_ms,
        on_recovery: Callable[[str, int], None] | None = None,
    ) -> None:
        """`settings_file` is where changes of settings by request are kept; without it they last for this run.
        `on_recovery` is told, in a thread, which step of a recovery is how many bytes of the log further."""
        self._config = config
        self._settings_file = settings_file
        disk = io or DiskIo()
        self._reserve = Reserve(config.store_path_root_dir / "reserve", disk)
        self._io: StoreIo = ReservedIo(disk, self._reserve)
        self._clock = clock
        self._on_recovery = on_recovery
        self.handlers = HandlerTable()
        self._memory = PeerMemory(config.max_peer_memory_bytes, config.max_peer_memory_bytes_per_connection)
        self._tasks: list[asyncio.Task[None]] = []
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._upkeep = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store-upkeep")
        self._store: MessageStore | None = None
        self._server: RemotingServer | None = None
        self._services: Services | None = None
        self._durability: Durability | None = None
        self._pulls: PullProcessor | None = None
        self._pop: PopService | None = None
        self._keeper: DiskKeeper | None = None
        self._metrics: MetricsServer | None = None
        self._delays: ScheduleDelivery | None = None
        self._watching: FileWatching | None = None
        self._sync = config.flush_disk_type == "SYNC_FLUSH"
        self.failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self.port = 0

    @property
    def services(self) -> Services:
        """The parts that handlers share; there after `start`."""
        assert self._services is not None
        return self._services

    @property
    def address(self) -> str:
        """The address that clients use, `host:port`; there after `start`."""
        return self.services.identity.broker_addr

    # --- start ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover the store and serve. Raises StoreError, OSError or ValueError with the way out; call
        `close` then too."""
        started = time.perf_counter()
        loop = asyncio.get_running_loop()
        plan = descriptors_of_process(
            self._config.max_connections, was_asked_for="max_connections" in self._config.model_fields_set
        )
        store_config = replace(
            to_store_config(self._config), descriptors_max=plan.store_files, maps_max=plan.store_maps
        )
        store = MessageStore(store_config, io=self._io, clock=self._clock)
        store.on_failure = self._on_disk_failure
        if self._on_recovery is not None:
            store.on_progress = self._on_recovery
        self._store = store
        recovered = await loop.run_in_executor(self._upkeep, store.open)
        self._server = RemotingServer(
            self.handlers,
            config=_server_config(self._config, self._memory, plan.connections),
            on_disconnect=self._disconnected,
        )
        self.port = self._server.bind(self._config.bind_address, self._config.listen_port)
        identity = identity_of(self._config, self.port)
        address = await address_of(identity.host)
        services = self._make_services(store, identity, address)
        services.watch = self._server.watch
        self._register_handlers(services, address)
        assert self._pop is not None
        self._pop.load(crashed=recovered.aborted)
        assert self._durability is not None
        self._durability.start()
        self._start_tasks(services)
        self._watching = FileWatching(store, self._fail)
        self._watching.start()
        if self._config.metrics_exporter_type == "PROM" and self._config.metrics_prom_exporter_port:
            self._metrics = MetricsServer(services, facts=self._facts)
            await self._metrics.start()
        await self._server.serve()
        services.registrar.start()
        log.info(
            "broker.ready",
            version=VERSION_OF_AEROBEE,
            address=services.identity.broker_addr,
            broker_name=services.identity.broker_name,
            cluster=services.identity.cluster_name,
            store=str(self._config.store_path_root_dir),
            flush=self._config.flush_disk_type,
            topics=len(services.topics),
            took_ms=round((time.perf_counter() - started) * 1000),
        )

    def _make_services(self, store: MessageStore, identity: BrokerIdentity, address: str) -> Services:
        live = LiveConfig(self._config, now_ms=self._clock())
        services = make_services(
            live,
            identity=identity,
            store=store,
            io=self._io,
            clock=self._clock,
            settings_file=self._settings_file,
            address=address,
            memory=self._memory,
        )
        self._services = services
        services.files.load()
        services.offsets.clamp(store.readable_range)
        services.topics.restore(
            {
                topic: max(store.queue_ids(topic), default=0) + 1
                for topic in (*store.topics(), *store.batch_topics)
            },
            store.batch_topics,
        )
        services.appended = self._appended
        return services

    def _register_handlers(self, services: Services, address: str) -> None:
        self._durability = Durability(
            services.store,
            sync=self._sync,
            flush_interval_ms=lambda: services.config.flush_interval_commit_log,
            sync_flush_timeout_ms=lambda: services.config.sync_flush_timeout,
            late_code=ResponseCode.FLUSH_DISK_TIMEOUT,
            failed_code=ResponseCode.SERVICE_NOT_AVAILABLE,
            on_flushed=self._flushed,
            on_failure=self._fail,
            meter=services.stats,
        )
        services.durable = self._durability.settled
        identity = services.identity
        keys = UniqueKeyFactory(address, os.getpid(), secrets.randbits(32), self._clock)
        retries = Retries(services)
        retries.register(self.handlers)
        send = SendProcessor(
            services,
            self._durability,
            store_host=(address, identity.port),
            unique_keys=keys,
            retries=retries,
        )
        send.register(self.handlers)
        self._pulls = PullProcessor(services)
        self._pulls.register(self.handlers)
        self._pop = PopService(services)
        self._pop.register(self.handlers)
        QueryProcessor(services).register(self.handlers)
        register_admin(self.handlers, services)
        services.transactions.load()

    def _begin_delays(self, services: Services) -> ScheduleDelivery:
        """Take up the deliveries of delayed messages where the last run ended."""
        parked = ParkedMessages(services.store, services.topics, services.writer)
        delays = self._delays = ScheduleDelivery(services, parked)
        delays.begin()
        services.delay_rules.level_parked = delays.parked
        if services.config.timer_wheel_enable:
            files = TimerFiles(
                services.config.store_path_root_dir,
                self._io,
                precision_ms=services.config.timer_precision_ms,
                log_file_size=services.config.mapped_file_size_timer_log,
            )
            timers = TimerDelivery(services, parked, files)
            timers.begin()
            services.timers = timers
            services.store.watched.append(files.open_files)
            services.delay_rules.timer_parked = timers.parked
        return delays

    def _start_tasks(self, services: Services) -> None:
        delays = self._begin_delays(services)
        assert self._pop is not None
        self._keeper = DiskKeeper(services, self._upkeep, self._io, self._reserve)
        services.clean = self._keeper.request
        for name, work in (
            ("disk keeper", self._keeper.run()),
            ("config files", services.files.run()),
            ("client scan", run_client_scan(services)),
            ("stats", run_stats(services, self._facts)),
            ("delay levels", delays.run()),
            ("delay offsets", delays.run_saving()),
            ("transaction checks", TransactionChecks(services).run()),
            ("pop", self._pop.run()),
            ("store upkeep", self._run_upkeep(services)),
            ("store scrub", Scrubbing(services, self._upkeep).run()),
        ):
            self._run(name, work)
        if services.timers is not None:
            self._run("timers", services.timers.run())
            self._run("timer checkpoint", services.timers.run_saving())
        self._sweep_held_pulls()

    def _run(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(self._watched(name, work), name=name))

    async def _watched(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """A background task that ends by itself is a fault of ours: the broker must not limp on without it."""
        try:
            await work
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
            self._store.fail(name, failed)
        if not self.store_has_failed:
            log.exception("broker.task_failed", task=name)
        self._fail(failed)

    # --- what happens while it runs -----------------------------------------------------------------------------

    def _appended(self) -> None:
        """Messages are in the log. In async mode they may be read at once; in sync mode after their sync."""
        if not self._sync:
            self._confirm(self.services.store.end_offset)

    def _flushed(self, offset: int) -> None:
        if self._sync:
            self._confirm(offset)

    def _confirm(self, offset: int) -> None:
        store = self.services.store
        assert self._pulls is not None
        assert self._pop is not None
        pulls, pops = self._pulls, self._pop.pops
        arrivals = store.confirm(offset, tell=len(pulls.held) > 0 or len(pops.held) > 0)
        if len(pulls.held):
            for topic, queue_id, max_offset, entries in arrivals:
                pulls.wake(topic, queue_id, max_offset, entries)
        if len(pops.held):
            for topic, queue_id, _, entries in arrivals:
                pops.arrived(topic, queue_id, entries)
        if store.not_writeable_reason is not None and "dispatch" not in self._timers:
            self._later("dispatch", DISPATCH_RETRY_S, self._confirm_again)
        if "index" not in self._timers and store.index_backlog:
            self._later("index", INDEX_PAUSE_S, self._build_index)

    def _confirm_again(self) -> None:
        """Queue entries that found no room are tried again: while they wait no send, so no sync, does it."""
        del self._timers["dispatch"]
        store = self.services.store
        if not self.failed.done():
            self._confirm(store.flushed_offset if self._sync else store.end_offset)

    def _build_index(self) -> None:
        del self._timers["index"]
        store = self.services.store
        try:
            store.build_index(INDEX_ROUND)
        except StoreFull as full:
            log.warning("store.index_behind", reason=str(full), backlog=store.index_backlog)
            self._later("index", 1.0, self._build_index)
            return
        if store.index_backlog:
            self._later("index", INDEX_PAUSE_S, self._build_index)

    def _sweep_held_pulls(self) -> None:
        assert self._pulls is not None
        self._pulls.expire()
        self._later("held pulls", HELD_PULL_SWEEP_S, self._sweep_held_pulls)

    def _later(self, name: str, delay_s: float, call: Callable[[], None]) -> None:
        self._timers[name] = asyncio.get_running_loop().call_later(delay_s, self._call, name, call)

    def _call(self, name: str, call: Callable[[], None]) -> None:
        """Work of a timer, watched like a task: asyncio would log what breaks it, and nobody would do it again.

        Where descriptors or memory are missing it is done a little later.
        """
        try:
            call()
        except OutOfResources as scarce:
            log.warning("broker.task_delayed", task=name, reason=str(scarce))
            self._later(name, RESOURCES_RETRY_S, call)
        except Exception as failed:
            self._task_failed(name, failed)

    def _disconnected(self, connection: Connection) -> None:
        if self._pulls is not None:
            self._pulls.held.drop_owner(connection)
        if self._pop is not None:
            self._pop.pops.held.drop_owner(connection)
        if self._services is not None:
            connection_lost(self._services, connection)

    async def _run_upkeep(self, services: Services) -> None:
        """Bring queues, index and checkpoint to the disk, and make the next log file ahead of its use.

        With thousands of queues a round takes its time where they have to be synced one by one, and after each sync the
        next send to its queue waits for the file system, which notes that the page is written to again. So rounds are
        rare then; what is not on the disk is read from the log again after a crash.
        """
        loop = asyncio.get_running_loop()
        next_sync = loop.time()
        while True:
            await services.live.pause(lambda config: config.flush_interval_consume_queue)
            began = loop.time()
            sync = began >= next_sync
            synced = await loop.run_in_executor(self._upkeep, _upkeep, services.store, sync)
            if sync:
                now = loop.time()
                next_sync = now + sync_pause_s(now - began, synced)

    def _on_disk_failure(self, failed: OSError) -> None:
        """From whichever thread met the failure."""
        self.failed.get_loop().call_soon_threadsafe(self._disk_failed, failed)

    def _disk_failed(self, failed: OSError) -> None:
        """The store has said what failed, and where; here nothing is promised any more."""
        if self._durability is not None:
            self._durability.fail(failed)
        self._fail(failed)

    def _fail(self, failed: Exception) -> None:
        if self.failed.done():
            return
        tell = log.warning if self.store_has_failed else log.error
        tell("broker.failed", reason=str(failed) or type(failed).__name__)
        self.failed.set_result(failed)

    @property
    def store_has_failed(self) -> bool:
        """Whether the disk refused a sync or a file, or a file is gone; what is there is known after the next start."""
        return self._store is not None and self._store.has_failed

    @property
    def file_is_gone(self) -> bool:
        """Whether that was because somebody took a file of the store away."""
        return self._store is not None and isinstance(self._store.failure, FileGone)

    def _facts(self) -> dict[str, object]:
        """State for the `broker.stats` line and for metrics."""
        assert self._server is not None
        assert self._pulls is not None
        assert self._durability is not None
        assert self._keeper is not None
        facts: dict[str, object] = {
            "disk_used_percent": self._keeper.used_percent,
            "connections": len(self._server.connections),
            "held_pulls": len(self._pulls.held),
            "peer_memory_bytes": self._memory.total,
            "loop_held_times": self._server.watch.held_count,
            "loop_held_ms_max": round(self._server.watch.longest_ms),
            "sends_waiting": self._durability.waiting_count,
            "nameservers": self.services.registrar.registered_count,
        }
        assert self._pop is not None
        return facts | self._pop.facts() | self.services.store.statistics()

    # --- stop -------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop in order; also after a failed or partial start."""
        if self._services is not None:
            await self._services.registrar.stop()
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            self._server.quiesce()  # while sends keep coming, there is always something to sync
        if self._durability is not None:
            await self._durability.drain()
        if self._metrics is not None:
            await self._metrics.close()
        if self._server is not None:
            await self._server.close()
        if self._durability is not None:
            await self._durability.close()
        for timer in self._timers.values():
            timer.cancel()
        if self._pop is not None:
            await self._pop.close()
        if self._watching is not None:
            self._watching.stop()
        await asyncio.get_running_loop().run_in_executor(None, self._upkeep.shutdown)
        await self._close_files()
        log.info("broker.stopped", failed=self.failed.done())

    async def _close_timers(self, timers: TimerDelivery) -> None:
        try:
            await timers.close()
        except OSError as failed:
            assert self._store is not None
            self._store.fail("timer files", failed)

    async def _close_files(self) -> None:
        """Tables first, the store and its lock last."""
        if self._services is not None:
            await self._services.transactions.close()
        try:
            if self._delays is not None:
                self._delays.settle()
            if self._services is not None and self._services.timers is not None and not self.store_has_failed:
                await self._close_timers(self._services.timers)
            if self._services is not None:
                await self._services.files.close()
        except OSError as failed:
            tell = log.warning if self.store_has_failed else log.error
            tell("broker.config_not_saved", reason=str(failed))
        if self._store is not None:
            try:
                self._store.close()
            except OSError as failed:
                self._fail(failed)


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


def _server_config(config: BrokerConfig, memory: PeerMemory, connections: int) -> ServerConfig:
    mode = TlsMode(config.tls_server_mode)
    tls = None
    if mode is not TlsMode.DISABLED:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(config.tls_server_cert_path, config.tls_server_key_path)
        if config.tls_server_trust_cert_path:
            tls.load_verify_locations(config.tls_server_trust_cert_path)
            tls.verify_mode = ssl.CERT_REQUIRED
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
        tls_mode=mode,
        tls=tls,
    )
