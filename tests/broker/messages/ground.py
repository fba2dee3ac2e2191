"""What the use cases stand on, without a broker: a store in memory, and a topic and a group in their tables."""

from pathlib import Path
from typing import Any

from aerobee_broker.catalog.catalog import Catalog
from aerobee_broker.catalog.consumer_offsets import ConsumerOffsets
from aerobee_broker.catalog.groups import SubscriptionGroups
from aerobee_broker.catalog.topics import TopicTable
from aerobee_broker.reading.cold_reads import ColdReads, ColdReadsLimits
from aerobee_broker.settings.config import LiveConfig
from aerobee_proto.bodies import SubscriptionGroupConfig, TopicConfig
from aerobee_remoting.peers.peer_memory import PeerMemory
from aerobee_store.store import MessageStore
from aerobee_store.terms.messages import Arrival
from broker.support import Clock, small_config
from store.memory_io import MemoryIo
from store.workload import message

__all__ = ["G", "Ground", "T"]

G, T = "g", "T"


class Ground:
    """Group G and topic T are there."""

    def __init__(self, store: MessageStore, clock: Clock, **settings: Any) -> None:
        self.live = LiveConfig(small_config(Path("/store"), **settings), now_ms=clock())
        self.store = store
        self.clock = clock
        self.topics = TopicTable(self.live, clock, on_dirty=lambda: None, on_change=lambda _: None)
        self.groups = SubscriptionGroups(self.live, clock, on_dirty=lambda: None)
        self.offsets = ConsumerOffsets(clock)
        self.catalog = Catalog(self.topics, self.groups, self.offsets)
        limits = ColdReadsLimits(threads=0, waiting_max=9, owner_max=9)
        self.cold = ColdReads(store, MemoryIo(), limits, memory=PeerMemory())
        self.topics.update([TopicConfig(topic_name=T)])
        self.groups.update([SubscriptionGroupConfig(group_name=G)])

    def store_all(self, *bodies: bytes, **fields: Any) -> list[Arrival]:
        """Messages that can be read at once; what arrived in which queue."""
        self.store.append([message(T, 0, body, **fields) for body in bodies])
        return self.store.confirm(self.store.end_offset)
