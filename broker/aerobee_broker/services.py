"""The parts of a broker that its handlers share; made by the assembly, handed to every handler."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from aerobee_broker.config import BrokerConfig, LiveConfig, unserved_keys, warn_of_unserved
from aerobee_broker.config_files import ConfigFiles
from aerobee_broker.consumer_offsets import ConsumerOffsets
from aerobee_broker.consumers import ConsumerTable
from aerobee_broker.delay_offsets import DelayOffsets
from aerobee_broker.delay_rules import DelayRules
from aerobee_broker.disk_figures import DiskFigures
from aerobee_broker.filters import Filters
from aerobee_broker.groups import SubscriptionGroups
from aerobee_broker.identity import BrokerIdentity
from aerobee_broker.message_writer import MessageWriter
from aerobee_broker.parking import ParkingRules
from aerobee_broker.pop.orderly import OrderTable
from aerobee_broker.pop.request_modes import RequestModes
from aerobee_broker.producers import ProducerTable
from aerobee_broker.queue_locks import QueueLocks
from aerobee_broker.registration import NameserverRegistrar
from aerobee_broker.stats import BrokerStats
from aerobee_broker.timer_counts import TimerCounts
from aerobee_broker.topics import TopicTable
from aerobee_broker.transactions import Transactions
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_remoting.loop_watch import LoopWatch
from aerobee_remoting.peer_memory import PeerMemory
from aerobee_remoting.slices import in_slices
from aerobee_store.errors import StoreError
from aerobee_store.io import StoreIo
from aerobee_store.store import MessageStore

if TYPE_CHECKING:
    from aerobee_broker.timer_delivery import TimerDelivery

__all__ = ["Services", "delete_queues", "make_services", "save_deletions"]


async def at_once() -> None:
    """For a broker that promises no more than the append."""


@dataclass(slots=True)
class Services:
    """Everything that handlers work with."""

    live: LiveConfig
    identity: BrokerIdentity
    store: MessageStore
    topics: TopicTable
    groups: SubscriptionGroups
    offsets: ConsumerOffsets
    files: ConfigFiles
    consumers: ConsumerTable
    producers: ProducerTable
    locks: QueueLocks
    registrar: NameserverRegistrar
    stats: BrokerStats
    parking: ParkingRules
    writer: MessageWriter
    transactions: Transactions
    delay_rules: DelayRules
    delay_offsets: DelayOffsets
    timer_counts: TimerCounts
    orders: OrderTable
    request_modes: RequestModes
    clock: Callable[[], int]  # epoch ms
    memory: PeerMemory  # the account of what is kept for peers
    filters: Filters
    disk: DiskFigures  # of the store's folder
    watch: LoopWatch = field(default_factory=LoopWatch)  # who holds the event loop; the server's own
    settings_file: Path | None = None  # where hot changes are written too
    # Set by the assembly: messages were appended without a send request; see that they are flushed and read.
    appended: Callable[[], None] = lambda: None
    # Set by the assembly: return when what was appended is as durable as a send's answer promises.
    durable: Callable[[], Awaitable[None]] = at_once
    # Set by the assembly, unless timer messages are turned off.
    timers: "TimerDelivery | None" = None
    # Set by the assembly: (topic, group, queue id) -> messages popped and not acknowledged.
    popped: Callable[[tuple[str, str, int]], int] = lambda queue: 0
    # Set by the assembly: delete the expired files soon.
    clean: Callable[[], None] = lambda: None

    @property
    def config(self) -> BrokerConfig:
        """The settings in use now; do not keep them over an await."""
        return self.live.value

    def notifies(self, group: str) -> bool:
        """Whether members of the group are told when it changes."""
        found = self.groups.get(group)
        wanted = found is None or found.notify_consumer_ids_changed_enable
        return wanted and self.live.value.notify_consumer_ids_changed_enable


def make_services(
    live: LiveConfig,
    *,
    identity: BrokerIdentity,
    store: MessageStore,
    io: StoreIo,
    clock: Callable[[], int],
    registrar: NameserverRegistrar | None = None,
    settings_file: Path | None = None,
    address: str = "127.0.0.1",
    memory: PeerMemory | None = None,
) -> Services:
    """Make the tables with empty content and join them; `files.load()` fills them.

    `address` is the IP address under which this broker stores messages.
    """
    config = live.value
    memory = memory or PeerMemory(config.max_peer_memory_bytes, config.max_peer_memory_bytes_per_connection)
    warn_of_unserved(config, unserved_keys())
    topics = TopicTable(live, clock)
    groups = SubscriptionGroups(live, clock)
    offsets = ConsumerOffsets(clock)
    parking, stats = ParkingRules(store.is_batch_topic), BrokerStats(config.broker_cluster_name, clock())
    writer = MessageWriter(
        store,
        host=(address, identity.port),
        clock=clock,
        appended=lambda: services.appended(),
        durable=lambda: services.durable(),
    )
    transactions = Transactions(
        live=live, store=store, writer=writer, parking=parking, offsets=offsets, topics=topics, stats=stats
    )
    parking.add(transactions.park)  # before delays: those of a half message begin with its commit
    orders, request_modes = OrderTable(clock), RequestModes()
    delay_rules, delay_offsets = DelayRules(live, clock), DelayOffsets(clock)
    timer_counts = TimerCounts(clock)
    services = Services(
        live=live,
        identity=identity,
        store=store,
        topics=topics,
        groups=groups,
        offsets=offsets,
        files=ConfigFiles(
            config.store_path_root_dir / "config",
            io,
            prompt=(topics, groups, request_modes),
            periodic=(offsets, orders),
            pause=lambda: live.pause(lambda config: config.flush_consumer_offset_interval),
            owned=(delay_offsets, timer_counts),
        ),
        consumers=ConsumerTable(
            members_max=config.max_registered_clients,
            members_per_connection_max=config.max_clients_per_connection,
            topics_per_group_max=config.max_subscriptions_per_group,
            memory=memory,
        ),
        producers=ProducerTable(
            members_max=config.max_registered_clients,
            members_per_connection_max=config.max_clients_per_connection,
            memory=memory,
        ),
        locks=QueueLocks(),
        registrar=registrar or NameserverRegistrar(live, topics, clock, identity),
        stats=stats,
        parking=parking,
        writer=writer,
        transactions=transactions,
        delay_rules=delay_rules,
        delay_offsets=delay_offsets,
        timer_counts=timer_counts,
        orders=orders,
        request_modes=request_modes,
        clock=clock,
        memory=memory,
        filters=Filters(memory),
        disk=DiskFigures(lambda: live.value.store_path_root_dir),
        settings_file=settings_file,
    )
    services.parking.add(delay_rules.place)
    return services


async def delete_queues(services: Services, topic: str) -> int:
    """Delete the queues of a topic; how many there were. RequestError when the disk refuses, which ends the broker."""
    try:
        return await in_slices(services.store.topic_deletion(topic))
    except StoreError as failed:
        raise RequestError(ResponseCode.SYSTEM_ERROR, str(failed)) from failed


async def save_deletions(services: Services) -> None:
    """Return when it is on disk which topics were deleted. RequestError: they are, but a crash may bring them back."""
    try:
        await asyncio.to_thread(services.store.save_deletions)
    except (OSError, StoreError) as error:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"the topic is deleted, but that could not be written down, and a crash may bring it back: {error}",
        ) from error
