"""The parts of a broker, made in one order and joined: whoever needs a part names it, whoever listens is given.

    tables      topics, groups, offsets and the others that have a file; filled before anything else is made, as
                check-points of POP ask how many revive queues there are
    promises    when a send may be answered, when readers see a message
    messages    where they go instead of their topic, and the writer of the broker's own
    waiting     transactions, delay levels and timers, POP
    requests    the handlers of all codes
    by time     cleaning, scrubbing, lost clients, and what operators look at

There is one circle: what the writer appends is shown to readers, among them pops, which append themselves. It is open
until `Visibility.start` names the readers.

Touches  the files of tables, in `load`; everything else is touched by the parts, once they run.
"""

import asyncio
import os
import random
import secrets
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from aerobee_access.control import AccessControl
from aerobee_access.plain_admin import PlainHandlers
from aerobee_broker.catalog.catalog import Catalog
from aerobee_broker.catalog.consumer_offsets import ConsumerOffsets
from aerobee_broker.catalog.groups import SubscriptionGroups
from aerobee_broker.catalog.topics import TopicTable
from aerobee_broker.cluster.registration import NameserverRegistrar, Nameservers
from aerobee_broker.cluster.routes import Routes
from aerobee_broker.lives.role import RoleControl
from aerobee_broker.lives.seating import ElectionStatistics, SetStanding
from aerobee_broker.members.consumers import ConsumerTable
from aerobee_broker.members.filters import Filters
from aerobee_broker.members.group_notices import GroupNotices
from aerobee_broker.members.members import Members
from aerobee_broker.members.producers import ProducerTable
from aerobee_broker.members.queue_locks import QueueLocks
from aerobee_broker.messages.flusher import Flusher
from aerobee_broker.messages.giving_back import GivingBack
from aerobee_broker.messages.intake import Intake
from aerobee_broker.messages.lookup import Lookup
from aerobee_broker.messages.message_writer import MessageWriter
from aerobee_broker.messages.placement import PlacementRules
from aerobee_broker.messages.progress import Progress
from aerobee_broker.messages.promises import Promises
from aerobee_broker.messages.publish import Publisher
from aerobee_broker.messages.publish_batches import BatchPublisher
from aerobee_broker.messages.read import Reading
from aerobee_broker.messages.replying import Replying
from aerobee_broker.messages.retry_topics import RetryTopics
from aerobee_broker.messages.visibility import Visibility
from aerobee_broker.metrics.disk_figures import DiskFigures
from aerobee_broker.metrics.observed import Observed
from aerobee_broker.native.engine import SendEngine, find_engine
from aerobee_broker.pop.acknowledging import Acknowledging
from aerobee_broker.pop.assignment import Assignment
from aerobee_broker.pop.handing_out import HandingOut
from aerobee_broker.pop.ledger import Ledger
from aerobee_broker.pop.orderly import OrderTable
from aerobee_broker.pop.popping import Popping
from aerobee_broker.pop.queue_reader import QueueReader
from aerobee_broker.pop.request_modes import RequestModes
from aerobee_broker.pop.revive import Reviver
from aerobee_broker.pop.service import PopService
from aerobee_broker.process.threads import started_executor
from aerobee_broker.reading.cold_reads import ColdReads, ColdReadsLimits
from aerobee_broker.remoting_api.acks import AckHandlers
from aerobee_broker.remoting_api.assignment import AssignmentHandlers
from aerobee_broker.remoting_api.broker_handlers import BrokerHandlers
from aerobee_broker.remoting_api.client_handlers import ClientHandlers
from aerobee_broker.remoting_api.client_relay import ClientRelay
from aerobee_broker.remoting_api.cold_requests import wait_for_disk
from aerobee_broker.remoting_api.fence import Fence
from aerobee_broker.remoting_api.group_handlers import GroupHandlers
from aerobee_broker.remoting_api.native_pulls import NativePulls
from aerobee_broker.remoting_api.native_queries import NativeQueries
from aerobee_broker.remoting_api.native_sends import NativeSends
from aerobee_broker.remoting_api.offset_handlers import OffsetHandlers
from aerobee_broker.remoting_api.offset_resets import OffsetResets
from aerobee_broker.remoting_api.pop import PopHandlers
from aerobee_broker.remoting_api.pull import PullHandlers
from aerobee_broker.remoting_api.query import QueryHandlers
from aerobee_broker.remoting_api.recalls import Recalls
from aerobee_broker.remoting_api.replication_handlers import ReplicationHandlers
from aerobee_broker.remoting_api.replies import Replies
from aerobee_broker.remoting_api.retries import Retries
from aerobee_broker.remoting_api.role_handlers import OF_ANOTHER_PROGRAM, RoleHandlers
from aerobee_broker.remoting_api.send import SendProcessor
from aerobee_broker.remoting_api.set_handlers import SetHandlers
from aerobee_broker.remoting_api.settings_handlers import SettingsHandlers
from aerobee_broker.remoting_api.slave_gate import SlaveGate
from aerobee_broker.remoting_api.topic_changes import TopicChanges
from aerobee_broker.remoting_api.topic_handlers import TopicHandlers
from aerobee_broker.remoting_api.transaction_handlers import TransactionHandlers
from aerobee_broker.replication.confirmed import ConfirmedByMaster
from aerobee_broker.replication.copied_from import CopiedFrom
from aerobee_broker.replication.followed_topics import FollowedTopics
from aerobee_broker.replication.following import Follower, Meeting
from aerobee_broker.replication.giving_server import GivingServer
from aerobee_broker.replication.greeting import OwnSide
from aerobee_broker.replication.hello import NONCE_SIZE, Member, Span
from aerobee_broker.replication.metadata import LINK_VERSION, FollowedCatalog, MetadataSync
from aerobee_broker.replication.news import TableNews
from aerobee_broker.replication.replicas import Replicas
from aerobee_broker.replication.service import MasterSide, SlaveSide
from aerobee_broker.replication.waiting_mark import WaitingMark
from aerobee_broker.schedule.delay_offsets import DelayOffsets
from aerobee_broker.schedule.delay_rules import DelayRules
from aerobee_broker.schedule.recalling import Recalling
from aerobee_broker.schedule.schedule_delivery import ScheduleDelivery
from aerobee_broker.schedule.schedule_figures import ScheduleFigures
from aerobee_broker.schedule.scheduled_messages import ScheduledMessages
from aerobee_broker.schedule.timer_counts import TimerCounts
from aerobee_broker.schedule.timer_delivery import TimerDelivery
from aerobee_broker.schedule.wakeups import Wakeups
from aerobee_broker.settings.config import BrokerConfig, LiveConfig, unserved_keys, warn_of_unserved
from aerobee_broker.settings.config_files import ConfigFiles
from aerobee_broker.settings.identity import BrokerIdentity
from aerobee_broker.stats import BrokerStats
from aerobee_broker.transactions.ending import Ending
from aerobee_broker.transactions.transaction_checks import TransactionChecks
from aerobee_broker.transactions.transactions import Transactions
from aerobee_broker.upkeep.disk_cleaner import DiskCleaner
from aerobee_broker.upkeep.housekeeping import ClientScan
from aerobee_broker.upkeep.scrubbing import Scrubbing
from aerobee_proto.bodies import TopicConfig
from aerobee_proto.frames import FRAME_SIZE_MAX
from aerobee_proto.ha_hello import VERSION
from aerobee_proto.message_ids import UniqueKeyFactory
from aerobee_remoting.ends.client import RemotingClient, RemotingClientConfig
from aerobee_remoting.ends.server import RemotingServer
from aerobee_remoting.peers.peer_memory import PeerMemory
from aerobee_service.tls.ends import ProgramTls
from aerobee_store.disk.io import StoreIo
from aerobee_store.disk.reserve import Reserve
from aerobee_store.faults.errors import NotMaster
from aerobee_store.store import MessageStore

log = structlog.get_logger()

__all__ = ["Ground", "Parts", "Tables", "assemble", "followers"]


@dataclass(slots=True, frozen=True)
class Ground:
    """What all parts stand on; there before the first of them."""

    live: LiveConfig
    clock: Callable[[], int]  # epoch ms
    io: StoreIo
    reserve: Reserve
    worker: Executor  # one thread, for what may wait for the disk
    memory: PeerMemory  # the account of what is kept for peers
    identity: BrokerIdentity
    address: str  # the IP address under which this broker stores messages
    tls: ProgramTls  # of its ports, and of what it dials
    access: AccessControl
    on_topic_created: Callable[[TopicConfig], None] = lambda _: None  # by a send, here
    epoch: int = 0  # of the mastership in which this life began
    roles: RoleControl | None = None  # who takes operators' wishes for another role
    set_standing: Callable[[], SetStanding | None] = lambda: None  # what an election knows of the set
    election: Callable[[], ElectionStatistics] | None = None  # its figures; None: there is none
    is_shared: Callable[[str], bool] = lambda _: False  # whether other members have this address, too
    is_seated: Callable[[], bool] | None = None  # of a master by election: whether it is that at this moment
    member: int = 0  # number in the set
    store_identity: str = ""  # which store this is; "" where nobody asks
    # The log has to be cut back to a physical offset, or to begin anew, before its master can be followed.
    on_cut: Callable[[int], None] | None = None
    on_replaced: Callable[[int], None] = lambda epoch: None  # a slave knows of a master of that epoch
    on_missed: Callable[[bool], None] = lambda is_gone: (
        None
    )  # nobody listens where the master did, or somebody again


class Tables:
    """The tables that have a file. `load` before they are used, `files.close` at the end."""

    def __init__(self, ground: Ground) -> None:
        """Tables as of a broker that is new."""
        live, clock = ground.live, ground.clock
        changed = asyncio.Event()  # a table whose file is to follow at once
        self.moved = asyncio.Event()  # one of them, for slaves

        def dirty() -> None:
            changed.set()
            self.moved.set()

        self.nameservers = Nameservers()
        self.topics = TopicTable(
            live,
            clock,
            on_dirty=dirty,
            on_change=self.nameservers.topics_changed,
            on_created=ground.on_topic_created,
        )
        self.groups = SubscriptionGroups(live, clock, on_dirty=dirty)
        self.offsets = ConsumerOffsets(clock)
        self.catalog = Catalog(self.topics, self.groups, self.offsets)
        if live.value.is_slave:
            self.topics.is_copy = True
            self.groups.become_copy()
        self._is_copy = live.value.is_slave
        self.request_modes = RequestModes(on_dirty=dirty)
        self.orders = OrderTable(clock)
        self.delay_offsets = DelayOffsets(clock)
        self.timer_counts = TimerCounts(clock)
        self.waiting_mark = WaitingMark()
        self.copied_from = CopiedFrom()
        access = (ground.access.table,) if ground.access.is_on and ground.access.file is None else ()
        self.files = ConfigFiles(
            live.value.store_path_root_dir / "config",
            ground.io,
            started_executor(1, "config-files"),
            prompt=(self.topics, self.groups, self.request_modes),
            periodic=(self.offsets, self.orders, self.waiting_mark, self.copied_from),
            changed=changed,
            pause=lambda: live.pause(lambda config: config.flush_consumer_offset_interval),
            owned=(self.delay_offsets, self.timer_counts, *access),
        )

    def load(self, store: MessageStore) -> None:
        """Fill the tables from their files and make them agree with what is stored. CorruptStore names the file when
        neither it nor its backup can be read."""
        self.files.load()
        if not (self._is_copy and self.offsets.was_copy):
            self.copied_from.forget()
        if self._is_copy:
            self.offsets.become_copy()
        self.offsets.clamp(store.reading.stored_range)
        self.topics.restore(
            {
                topic: max(store.topics.queue_ids(topic), default=0) + 1
                for topic in (*store.topics.names(), *store.topics.batch_names)
            },
            store.topics.batch_names,
        )


@dataclass(slots=True, frozen=True)
class BrokerStatistics:
    """The state of a broker beside that of its store and of its pops, in the words of the `broker.stats` line."""

    disk_used_percent: int
    connections: int
    held_pulls: int
    cold_reads: int
    cold_reads_done: int
    cold_reads_failed: int
    peer_memory_bytes: int
    loop_held_times: int
    loop_held_ms_max: int
    sends_waiting: int
    nameservers: int


@dataclass(slots=True, frozen=True)
class Figures:
    """State for the `broker.stats` line and for metrics, by name; asked for by calling it."""

    store: MessageStore
    memory: PeerMemory
    server: RemotingServer
    registrar: NameserverRegistrar
    promises: Promises
    pulls: Reading
    cold: ColdReads
    pop: PopService
    cleaner: DiskCleaner
    replication: MasterSide | SlaveSide
    election: Callable[[], ElectionStatistics] | None

    def __call__(self) -> dict[str, object]:
        own = BrokerStatistics(
            disk_used_percent=self.cleaner.used_percent,
            connections=len(self.server.connections),
            held_pulls=len(self.pulls.held),
            cold_reads=len(self.cold),
            cold_reads_done=self.cold.count,
            cold_reads_failed=self.cold.failed_count,
            peer_memory_bytes=self.memory.total,
            loop_held_times=self.server.watch.held_count,
            loop_held_ms_max=round(self.server.watch.longest_ms),
            sends_waiting=self.promises.waiting_count,
            nameservers=self.registrar.registered_count,
        )
        parts = (self.pop.statistics(), self.replication.statistics(), self.store.statistics())
        figures = asdict(own) | {name: value for part in parts for name, value in asdict(part).items()}
        return figures if self.election is None else figures | asdict(self.election())


@dataclass(slots=True, frozen=True, kw_only=True)
class Parts:
    """All parts of one broker, for those who start and stop them; no part knows the others through it."""

    live: LiveConfig
    clock: Callable[[], int]
    identity: BrokerIdentity
    memory: PeerMemory
    store: MessageStore
    server: RemotingServer
    topics: TopicTable
    groups: SubscriptionGroups
    offsets: ConsumerOffsets
    request_modes: RequestModes
    timer_counts: TimerCounts
    delay_offsets: DelayOffsets
    waiting_mark: WaitingMark
    files: ConfigFiles
    stats: BrokerStats
    flusher: Flusher
    promises: Promises
    visibility: Visibility
    consumers: ConsumerTable
    producers: ProducerTable
    locks: QueueLocks
    filters: Filters
    placement: PlacementRules
    writer: MessageWriter
    publisher: Publisher
    batches: BatchPublisher
    giving_back: GivingBack
    replying: Replying
    recalling: Recalling
    ending: Ending
    transactions: Transactions
    checks: TransactionChecks
    wakeups: Wakeups
    delays: ScheduleDelivery
    timers: TimerDelivery | None  # None: they are turned off
    pop: PopService
    pulls: Reading
    cold: ColdReads
    progress: Progress
    lookup: Lookup
    resets: OffsetResets
    routes: Routes
    tls: ProgramTls
    registrar: NameserverRegistrar
    replication: MasterSide | SlaveSide
    cleaner: DiskCleaner
    scrubbing: Scrubbing
    clients: ClientScan
    figures: Figures
    observed: Observed
    fence: Fence

    @property
    def config(self) -> BrokerConfig:
        """The settings in use now; do not keep them over an await."""
        return self.live.value


def assemble(
    ground: Ground,
    store: MessageStore,
    tables: Tables,
    server: RemotingServer,
    *,
    on_task_failure: Callable[[str, Exception], None],
    on_first_slave: Callable[[], None] = lambda: None,
    settings_file: Path | None = None,
) -> Parts:
    """Make and join all parts of a broker, its handlers in the table of `server`.

    The store is open and the tables are loaded. `on_task_failure` is told which work of a timer broke, and why, where
    the exception is handled; `on_first_slave` that a slave has come; `settings_file` is where hot changes are written
    too.
    """
    live, clock, identity, catalog = ground.live, ground.clock, ground.identity, tables.catalog
    topics, groups, offsets = tables.topics, tables.groups, tables.offsets
    handlers = server.handlers
    warn_of_unserved(live.value, unserved_keys())

    # --- promises ---------------------------------------------------------------------------------------------
    stats = BrokerStats(identity.cluster_name, clock())
    sync = live.value.flush_disk_type == "SYNC_FLUSH"
    flusher = Flusher(
        store,
        prompt=sync,
        interval_ms=lambda: live.value.flush_interval_commit_log,
        timeout_ms=lambda: live.value.sync_flush_timeout,
        meter=stats,
        served=server,
    )
    replicas = Replicas(live, lambda: store.end_offset, is_elected=ground.is_seated is not None)
    waits = live.value.waits_for_replicas and live.value.in_sync_replicas > 1
    waited_for = (replicas,) if waits or ground.is_seated is not None else ()
    promises = Promises(
        ((flusher,) if sync else ()) + waited_for, store, meter=stats, may_answer=ground.is_seated
    )
    limits = ColdReadsLimits(
        threads=live.value.cold_read_threads,
        waiting_max=live.value.max_cold_reads,
        owner_max=live.value.max_cold_reads_per_connection,
    )
    cold = ColdReads(store, ground.io, limits, memory=ground.memory)
    visibility = Visibility(
        store, promises, bring=cold.bring_first, worker=ground.worker, on_failure=on_task_failure
    )
    replication: MasterSide | SlaveSide
    _warn_of_roles(live.value)
    if live.value.is_slave:
        handlers.gate = SlaveGate(handlers.gate, live)
        replication = _slave_side(ground, store, tables, promises, visibility)
    else:
        if waited_for:
            store.readers_limit = lambda: replicas.offset
        store.condition = _condition(replicas, live.value, promises if ground.is_seated is not None else None)
        giving = GivingServer(
            live,
            store,
            replicas,
            on_acknowledged=visibility.advanced if waited_for else None,
            on_first=on_first_slave,
            own=_own_side(ground, store, tables),
        )
        news = _news(ground, store, tables, replicas, lambda: 0 if timers is None else timers.done_below())
        news.register(handlers)
        replication = MasterSide(replicas, giving, lambda: store.end_offset, news)

    # --- messages ---------------------------------------------------------------------------------------------
    members = _members(live.value, ground.memory)
    consumers, producers, locks = members.consumers, members.producers, members.locks
    filters = Filters(ground.memory)
    host = (ground.address, identity.port)
    writer = MessageWriter(
        store, host=host, clock=clock, appended=visibility.appended, durable=promises.settled
    )

    # --- waiting ----------------------------------------------------------------------------------------------
    wakeups = Wakeups()
    delay_rules = DelayRules(live, clock, wakeups)
    transactions = Transactions(
        live=live,
        store=store,
        writer=writer,
        # A committed message may still have to wait for its time; it opens no transaction any more.
        placement=PlacementRules(store.topics.is_batch, (delay_rules.place,)),
        offsets=offsets,
        topics=topics,
        on_stored=stats.put,
        cold=cold,
    )
    # Transactions before delays: those of a half message begin with its commit.
    placement = PlacementRules(store.topics.is_batch, (transactions.to_half, delay_rules.place))
    scheduled = ScheduledMessages(store, topics, writer, stats, cold)
    delays = ScheduleDelivery(
        scheduled,
        live=live,
        clock=clock,
        store=store,
        writer=writer,
        delay_offsets=tables.delay_offsets,
        wakeups=wakeups,
    )
    timers = _timers(ground, store, tables, writer, scheduled, wakeups)
    ledger = Ledger(clock=clock, identity=identity, store=store, catalog=catalog, writer=writer)
    reviver = Reviver(
        ledger, live=live, clock=clock, store=store, topics=topics, groups=groups, writer=writer
    )
    registrar = NameserverRegistrar(
        live,
        topics,
        clock,
        identity,
        tables.nameservers,
        tls=ground.tls.client,
        signer=ground.access.signer,
        is_masters_address=lambda: live.value.is_slave and ground.is_shared(identity.broker_addr),
    )
    if isinstance(replication, SlaveSide):
        replication.follower.look_for_master = registrar.register_all

    async def save_groups() -> None:
        await tables.files.save(groups, offsets)
        await replication.taken(offsets=True)

    async def save_modes() -> None:
        await tables.files.save(tables.request_modes)
        await replication.taken()

    async def save_access() -> None:
        await tables.files.save(ground.access.table)
        tables.moved.set()
        await replication.taken()

    async def spread(timeout_s: float) -> bool:
        is_registered, _ = await asyncio.gather(registrar.settled(timeout_s), replication.taken())
        return is_registered

    # --- use cases --------------------------------------------------------------------------------------------
    retry_topics = RetryTopics(groups, topics, is_ordered=lambda group: locks.is_locked(group, clock()))
    intake = Intake(
        live,
        topics,
        retry_topics,
        stats,
        is_batch_topic=store.topics.is_batch,
        unique_keys=UniqueKeyFactory(ground.address, os.getpid(), secrets.randbits(32), clock),
    )
    publisher = Publisher(intake, store, placement, stats, visibility, writer.host)
    batches = BatchPublisher(intake, store, placement, stats, visibility, writer.host)

    pops = Popping(
        QueueReader(
            ledger,
            tables.orders,
            live=live,
            store=store,
            catalog=catalog,
            random_below=random.randrange,
        ),
        HandingOut(ledger, tables.orders, live=live, clock=clock, offsets=offsets, meter=stats),
        tables.orders,
        live=live,
        clock=clock,
        filters=filters,
        memory=ground.memory,
        cold=cold,
    )
    acks = Acknowledging(
        ledger,
        tables.orders,
        clock=clock,
        store=store,
        topics=topics,
        offsets=offsets,
        writer=writer,
        on_release=pops.released,
    )
    pop = PopService(
        clock=clock,
        store=store,
        catalog=catalog,
        ledger=ledger,
        orders=tables.orders,
        pops=pops,
        acks=acks,
        reviver=reviver,
    )
    routes = Routes(live=live, clock=clock, identity=identity, topics=topics, tls=ground.tls.client)
    assignment = Assignment(
        queues_of=routes.queues,
        live=live,
        topics=topics,
        groups=groups,
        consumers=consumers,
        request_modes=tables.request_modes,
        save=save_modes,
    )

    # --- requests ---------------------------------------------------------------------------------------------
    giving_back = GivingBack(
        retry_topics,
        live=live,
        store=store,
        groups=groups,
        stats=stats,
        placement=placement,
        writer=writer,
    )
    Retries(giving_back).register(handlers)
    SendProcessor(publisher, batches, promises, live, writer.host, registrar.when_settled).register(handlers)
    pulls = Reading(
        live=live,
        clock=clock,
        cold=cold,
        catalog=catalog,
        consumers=consumers,
        filters=filters,
        stats=stats,
        master=replication if live.value.is_slave else None,
    )
    PullHandlers(pulls).register(handlers)
    engine = _engine(live.value, store, writer.host)
    if engine.native is not None:
        sends = NativeSends(engine, engine.native, intake, store.packing, visibility, promises, stats)
        queries = NativeQueries(engine, engine.native, live, store.keys)
        NativePulls(engine, engine.native, pulls, sends, queries, visibility).serve(handlers)
    PopHandlers(pops).register(handlers)
    AckHandlers(acks).register(handlers)
    AssignmentHandlers(assignment, tables.request_modes).register(handlers)
    # Callers in this process are answered in the same turn, whatever they have to wait for.
    lookup, own_lookup = (
        Lookup(live=live, store=store, topics=topics, messages=messages, cold=cold)
        for messages in (store.asking, store.reading)
    )
    QueryHandlers(lookup).register(handlers)
    ClientHandlers(
        live=live, clock=clock, identity=identity, catalog=catalog, members=members, filters=filters
    ).register(handlers)
    ClientRelay(identity=identity, store=store, topics=topics, groups=groups, consumers=consumers).register(
        handlers
    )
    progress, own_progress = (
        Progress(store=store, catalog=catalog, messages=messages)
        for messages in (store.asking, store.reading)
    )
    OffsetHandlers(progress, lookup, offsets=offsets, files=tables.files).register(handlers)
    resets = OffsetResets(
        cold=cold,
        live=live,
        identity=identity,
        store=store,
        catalog=catalog,
        consumers=consumers,
        on_reset=(pulls.group_reset, pop.was_reset),
    )
    resets.register(handlers)
    TopicHandlers(
        cold=cold,
        clock=clock,
        identity=identity,
        store=store,
        topics=topics,
        offsets=offsets,
        consumers=consumers,
        stats=stats,
    ).register(handlers)
    TopicChanges(
        live=live,
        store=store,
        catalog=catalog,
        files=tables.files,
        consumers=consumers,
        spread=spread,
        stats=stats,
        timer_counts=tables.timer_counts,
    ).register(handlers)
    GroupHandlers(
        cold=cold,
        identity=identity,
        store=store,
        catalog=catalog,
        save=save_groups,
        consumers=consumers,
        producers=producers,
        stats=stats,
    ).register(handlers)
    SettingsHandlers(
        live=live,
        clock=clock,
        topics=topics,
        followers=followers(registrar, transactions),
        settings_file=settings_file,
    ).register(handlers)
    recalling = Recalling(live=live, clock=clock, topics=topics, placement=placement, writer=writer)
    Recalls(recalling, live=live, timer_counts=tables.timer_counts, timers=timers).register(handlers)
    ending = Ending(live=live, clock=clock, store=store, writer=writer, transactions=transactions)
    TransactionHandlers(ending).register(handlers)
    replying = Replying(
        live=live,
        clock=clock,
        topics=topics,
        groups=groups,
        producers=producers,
        stats=stats,
        writer=writer,
    )
    Replies(replying, writer.host).register(handlers)
    ground.access.handlers(
        save_access,
        replication.metadata.ask_master if isinstance(replication, SlaveSide) else None,
    ).register(handlers)
    ground.access.giver.register(handlers)
    PlainHandlers(
        ground.access.plain,
        cluster_name=identity.cluster_name,
        broker_name=identity.broker_name,
        address=identity.broker_addr,
    ).register(handlers)

    ground.access.check_white_lists(handlers.by_code)

    # --- by time ----------------------------------------------------------------------------------------------
    cleaner = DiskCleaner(ground.worker, ground.io, ground.reserve, live=live, clock=clock, store=store)
    figures = Figures(
        store,
        ground.memory,
        server,
        registrar,
        promises,
        pulls,
        cold,
        pop,
        cleaner,
        replication,
        ground.election,
    )
    observed = Observed(
        cold=cold,
        live=live,
        clock=clock,
        identity=identity,
        store=store,
        stats=stats,
        catalog=catalog,
        clients=members,
        nameservers=lambda: registrar.states,
        transactions=transactions.statistics,
        schedule=ScheduleFigures(store, tables.delay_offsets, tables.timer_counts, timers),
        loop=server.watch,
        certificates=ground.tls.expiries,
        disk=DiskFigures(lambda: live.value.store_path_root_dir),
        access=ground.access.figures,
        turned_away=server.refused,
        popped=ledger.table.in_flight,
        engine=lambda: engine.kind,
        requests=handlers.counts,
        facts=figures,
    )
    BrokerHandlers(
        store=store,
        topics=topics,
        offsets=offsets,
        stats=stats,
        observed=observed,
        clean=cleaner.request,
    ).register(handlers)
    ReplicationHandlers(
        replication.status,
        identity=identity,
        store=store,
        look_for_master=registrar.register_all,
        facts=lambda: {
            "brokerRole": live.value.broker_role,
            "brokerId": str(live.value.broker_id),
            "epoch": str(max(ground.epoch, store.epochs.last_epoch)),
            LINK_VERSION: str(VERSION),
            "endOffset": str(store.end_offset),
            "roleFixedBy": OF_ANOTHER_PROGRAM if ground.roles is None else ground.roles.refusal,
            "elected": "true" if live.value.election_endpoints else "false",
            "newestMessageMillis": str(store.newest_timestamp),
            **replication.standing,
            **_in_sync_members(ground.set_standing()),
        },
    ).register(handlers)
    SetHandlers(
        identity, ground.set_standing, lambda: store.epochs.entries, lambda: store.end_offset
    ).register(handlers)
    fence = Fence(store, handlers)
    RoleHandlers(
        ground.roles,
        fence,
        live=live,
        identity=identity,
        store=store,
        promises=promises,
        is_linked=lambda: replication.is_linked,
        level=replication.level,
    ).register(handlers)
    wait_for_disk(handlers, cold)
    return Parts(
        live=live,
        clock=clock,
        identity=identity,
        memory=ground.memory,
        store=store,
        server=server,
        topics=topics,
        groups=groups,
        offsets=offsets,
        request_modes=tables.request_modes,
        timer_counts=tables.timer_counts,
        delay_offsets=tables.delay_offsets,
        waiting_mark=tables.waiting_mark,
        files=tables.files,
        stats=stats,
        flusher=flusher,
        promises=promises,
        visibility=visibility,
        consumers=consumers,
        producers=producers,
        locks=locks,
        filters=filters,
        placement=placement,
        writer=writer,
        publisher=publisher,
        batches=batches,
        giving_back=giving_back,
        replying=replying,
        recalling=recalling,
        ending=ending,
        transactions=transactions,
        checks=TransactionChecks(
            live=live,
            clock=clock,
            identity=identity,
            store=store,
            topics=topics,
            next_producer=producers.next_reader,
            writer=writer,
            transactions=transactions,
        ),
        wakeups=wakeups,
        delays=delays,
        timers=timers,
        pop=pop,
        pulls=pulls,
        cold=cold,
        progress=own_progress,
        lookup=own_lookup,
        resets=resets,
        routes=routes,
        tls=ground.tls,
        registrar=registrar,
        replication=replication,
        cleaner=cleaner,
        scrubbing=Scrubbing(ground.worker, live=live, store=store),
        clients=ClientScan(live, clock, members, notifies=groups.notifies),
        figures=figures,
        observed=observed,
        fence=fence,
    )


def followers(registrar: NameserverRegistrar, transactions: Transactions) -> dict[str, Callable[[], None]]:
    """Hot keys, with what has to be done when they change; all other keys are looked up at each use."""
    return {
        "namesrvAddr": registrar.apply_config,
        # The pauses that are under way are as long as they were.
        "registerNameServerPeriod": registrar.register_all,
        "transactionOpBatchInterval": transactions.write_marks_in_time,
    }


def _in_sync_members(standing: SetStanding | None) -> dict[str, str]:
    """What 907 tells of them besides, where an election knows it."""
    return {} if standing is None else {"inSyncMembers": ",".join(map(str, sorted(standing.in_sync)))}


def _engine(config: BrokerConfig, store: MessageStore, store_host: bytes) -> SendEngine:
    """What takes usual sends and pulls. EngineMissing where it has to be the native one, and that is not there."""
    make = find_engine(config.send_engine)
    if make is None:
        return SendEngine(None)
    form = store.packing.form
    engine = SendEngine(
        make(
            store_host=store_host,
            record_checksum=form.checksum,
            property_crc=form.property_crc,
            is_indexed=form.is_indexed,
            frame_size_max=FRAME_SIZE_MAX,
            record_size_max=form.size_max,
        )
    )
    store.reading.use_prover(engine)
    store.raw.walker = engine.walk
    store.keys.use_chainer(engine.chain_keys)
    return engine


def _warn_of_roles(config: BrokerConfig) -> None:
    """Settings that are taken, and mean less than they seem to."""
    if config.election_endpoints:
        return
    if config.waits_for_replicas and config.in_sync_replicas == 1:
        log.warning("replication.nobody_waited_for", way_out="set inSyncReplicas=2, or more")
    if config.broker_id != config.registered_id:
        log.warning("replication.broker_id_ignored", broker_id=config.broker_id, registered_id=0)


def _condition(
    replicas: Replicas, config: BrokerConfig, promises: Promises | None
) -> Callable[[], None] | None:
    """What has to hold for anything to be taken; `promises` are those of a master by election."""
    if promises is None:
        return replicas.check_enough if config.min_in_sync_replicas > 1 else None

    def check() -> None:
        if promises.is_over:
            raise NotMaster
        replicas.check_enough()

    return check


def _news(
    ground: Ground, store: MessageStore, tables: Tables, replicas: Replicas, done_below: Callable[[], int]
) -> TableNews:
    prompt = (tables.topics, tables.groups, tables.request_modes, ground.access.table)
    return TableNews(
        lambda: sum(table.revision for table in prompt),
        tables.offsets,
        lambda: store.end_offset,
        moved=tables.moved,
        keepers=replicas.keepers,
        may_answer=ground.is_seated,
        done_below=done_below,
        store_of=lambda member: "" if (replica := replicas.of_member(member)) is None else replica.store,
    )


def _slave_side(
    ground: Ground, store: MessageStore, tables: Tables, promises: Promises, visibility: Visibility
) -> SlaveSide:
    linked = asyncio.Event()

    topic_count = store.topics.count
    confirmed = ConfirmedByMaster(visibility.soon)
    visibility.limit = store.readers_limit = lambda: confirmed.offset

    def appended() -> None:
        nonlocal topic_count
        promises.hurry()
        visibility.soon()
        if store.topics.count > topic_count:
            metadata.soon()
        topic_count = store.topics.count

    metadata = MetadataSync(
        FollowedCatalog(
            FollowedTopics(tables.topics, store.topics, on_planned=appended),
            tables.groups,
            tables.request_modes,
            tables.offsets,
            ground.access.copy(lambda: tables.files.save(ground.access.table)),
            lambda done_below, end: tables.waiting_mark.follow(done_below, end, store.comparison.digests),
        ),
        tables.delay_offsets,
        tables.files,
        own_log=store,
        safe=promises,
        linked=linked,
        client=RemotingClient(
            config=RemotingClientConfig(tls=ground.tls.client), signer=ground.access.signer
        ),
        member=_number(ground),
    )

    async def check_master() -> bool:
        is_ours = await metadata.check_master()
        return is_ours or bool(ground.live.value.election_endpoints) or ground.epoch > 0

    follower = Follower(
        ground.live,
        store,
        promises,
        clock=ground.clock,
        on_appended=appended,
        meeting=Meeting(check_master, confirmed, _own_side(ground, store, tables), ground.on_missed),
        linked=linked,
        tls=ground.tls.client,
    )
    # Members of a set with an election may all be announced by one stable address; where the master is they know.
    own_addr = ground.identity.broker_addr if ground.election is None else ""
    return SlaveSide(follower, metadata, own_addr)


def _number(ground: Ground) -> int:
    """This broker's in its set, as it says in handshakes."""
    # A master that is none by election has number 0, whatever its settings say, and its slaves may have that.
    return ground.member if ground.live.value.is_slave or ground.epoch else 0


def _own_side(ground: Ground, store: MessageStore, tables: Tables) -> OwnSide:
    """This broker's end of the handshake on the replication link."""
    identity, config = ground.identity, ground.live.value
    number = _number(ground)

    def member() -> Member:
        return Member(
            identity.cluster_name,
            identity.broker_name,
            number,
            ground.store_identity,
            max(ground.epoch, store.epochs.last_epoch),
            config.mapped_file_size_commit_log,
            ground.access.shared_secret,
        )

    def is_counted_on() -> bool:
        if ground.election is None:
            return False
        standing = ground.set_standing()
        return standing is None or number in standing.in_sync

    def span() -> Span:
        epochs, is_empty = store.epochs.entries, store.comparison.is_empty
        begin, end = store.min_physical_offset, store.end_offset
        of_store = tables.copied_from.store if config.is_slave else ground.store_identity
        damaged, is_elected = store.comparison.damaged, ground.election is not None
        return Span(begin, end, epochs, is_empty, damaged, is_counted_on(), of_store, is_elected)

    return OwnSide(
        member,
        span,
        store.comparison,
        nonce=lambda: secrets.token_bytes(NONCE_SIZE),
        replaced=ground.on_replaced,
        follow_epochs=store.epochs.follow,
        copies=tables.copied_from.follow,
        on_cut=ground.on_cut,
    )


def _members(config: BrokerConfig, memory: PeerMemory) -> Members:
    return Members(
        ConsumerTable(
            members_max=config.max_registered_clients,
            members_per_connection_max=config.max_clients_per_connection,
            topics_per_group_max=config.max_subscriptions_per_group,
            memory=memory,
        ),
        ProducerTable(
            members_max=config.max_registered_clients,
            members_per_connection_max=config.max_clients_per_connection,
            memory=memory,
        ),
        QueueLocks(),
        GroupNotices(),
    )


def _timers(
    ground: Ground,
    store: MessageStore,
    tables: Tables,
    writer: MessageWriter,
    scheduled: ScheduledMessages,
    wakeups: Wakeups,
) -> TimerDelivery | None:
    files = store.timers.files
    if files is None:
        return None
    return TimerDelivery(
        scheduled,
        files,
        live=ground.live,
        clock=ground.clock,
        store=store,
        writer=writer,
        timer_counts=tables.timer_counts,
        wakeups=wakeups,
    )
