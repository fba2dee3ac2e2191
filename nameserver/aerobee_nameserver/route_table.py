"""Route table: which brokers live, and which of them serves which topic.

Plain and synchronous: no sockets, no clock. Time comes in as `now_ms`; a connection is any hashable token that
the shell chooses. Every change goes through one method, which either happens as a whole or raises RequestError
and leaves the table as it was.

State
    groups    broker name -> BrokerGroup: its cluster and its members, broker id -> LiveBroker (0 is the master)
    topics    topic -> broker name -> TopicQueues
    indexes   the same facts by address, by connection, by cluster and by broker name

Invariants (`check()` walks them)
- A group has at least one member; a topic has at least one broker; every broker name in a topic is a group.
- One address of a cluster is one member of one group.
- The indexes hold exactly what groups and topics hold.
- What members and topic tables take is in the account of what is kept for peers: a member for its connection, the
  topics of a broker name for the connection of one of its members.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from aerobee_proto.bodies import BrokerData, ClusterInfo, DataVersion, QueueData, TopicRouteData
from aerobee_proto.codes import Perm, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_remoting.peer_memory import NOBODY, PeerMemory

__all__ = [
    "MASTER_ID",
    "MemberChange",
    "Registered",
    "Registration",
    "Removal",
    "RouteLimits",
    "RouteTable",
    "TopicQueues",
]

MASTER_ID: Final = 0
UNIT_FLAG: Final = 0x1  # bits of topicSysFlag
UNIT_SUBSCRIPTION_FLAG: Final = 0x2
# Brokers find their group through the topic with this prefix: its route must never show a slave as master.
MEMBER_GROUP_TOPIC_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"


MEMBERS: Final = "registered brokers"  # names in the account, and bytes of one besides its texts
TABLES: Final = "topic tables"
MEMBER_SIZE: Final = 2048
SHARE_SIZE: Final = 512


@dataclass(slots=True, frozen=True)
class RouteLimits:
    """How large the table may grow; a registration beyond is refused."""

    topics_max: int = 200_000
    brokers_max: int = 10_000  # addresses, of all clusters together


@dataclass(slots=True, frozen=True)
class TopicQueues:
    """How one broker serves one topic; the counts are numbers of queues."""

    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


@dataclass(slots=True, frozen=True)
class Registration:
    """What a broker says about itself, decoded and checked.

    `acting_master` is None for brokers that do not know the idea. `topics` is all of the broker's topics, or one
    topic that has just changed.
    """

    cluster: str
    broker_name: str
    broker_id: int
    broker_addr: str
    ha_server_addr: str
    data_version: DataVersion
    topics: Mapping[str, TopicQueues]
    acting_master: bool | None = None
    timeout_ms: int = 120_000
    filter_servers: tuple[str, ...] = ()


@dataclass(slots=True, frozen=True)
class MemberChange:
    """The smallest id of a group has changed; these members want to know."""

    broker_name: str
    min_broker_id: int
    min_broker_addr: str
    ha_server_addr: str
    offline_broker_addr: str | None
    notified_addrs: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class Registered:
    """What a registration did. `accepted` is False when an address with a newer state keeps the place."""

    accepted: bool = True
    first: bool = False
    topics_changed: int = 0
    replaced_addr: str | None = None
    master_addr: str | None = None  # for a slave whose master is known
    master_ha_addr: str | None = None
    change: MemberChange | None = None


@dataclass(slots=True, frozen=True)
class Removal:
    """A broker that left the table."""

    cluster: str
    broker_name: str
    broker_id: int
    broker_addr: str
    connection: Hashable
    topics_removed: int  # topics that nobody serves any more
    change: MemberChange | None


@dataclass(slots=True)
class LiveBroker:
    """One member of a group, as it registered last."""

    cluster: str
    broker_name: str
    broker_id: int
    broker_addr: str
    ha_server_addr: str
    data_version: DataVersion
    last_update_ms: int
    timeout_ms: int
    connection: Hashable
    filter_servers: tuple[str, ...]
    size: int  # bytes in the account

    @property
    def key(self) -> tuple[str, str]:
        return self.cluster, self.broker_addr


@dataclass(slots=True)
class BrokerGroup:
    """The members that share a broker name: a master and its slaves."""

    cluster: str
    broker_name: str
    members: dict[int, LiveBroker]
    acting_master: bool = False
    size: int = 0  # bytes of its topics
    bearer: Hashable = None  # the connection that those are counted for

    @property
    def min_id(self) -> int:
        return min(self.members)

    def addrs(self) -> dict[int, str]:
        """Broker id to address, in order of the ids."""
        return {broker_id: self.members[broker_id].broker_addr for broker_id in sorted(self.members)}

    def data(self) -> BrokerData:
        return BrokerData(
            broker_addrs=self.addrs(),
            broker_name=self.broker_name,
            cluster=self.cluster,
            enable_acting_master=self.acting_master,
        )


class RouteTable:
    """The nameserver's whole memory of brokers and topics."""

    def __init__(
        self,
        *,
        limits: RouteLimits | None = None,
        support_acting_master: bool = False,
        drop_unlisted_topics: bool = False,
        memory: PeerMemory | None = None,
    ) -> None:
        self._memory = memory or PeerMemory()
        # Set by the configuration; may change while running.
        self.limits = limits or RouteLimits()
        self.support_acting_master = support_acting_master
        self.drop_unlisted_topics = drop_unlisted_topics
        # Changed by _join() and _leave() only.
        self._groups: dict[str, BrokerGroup] = {}
        self._by_addr: dict[tuple[str, str], LiveBroker] = {}
        self._by_connection: dict[Hashable, set[tuple[str, str]]] = {}
        self._clusters: dict[str, set[str]] = {}
        # Changed by _put_queues() and _drop_queues() only.
        self._topics: dict[str, dict[str, TopicQueues]] = {}
        self._topics_of: dict[str, set[str]] = {}

    # --- brokers come, stay and go ----------------------------------------------------------------------------

    def register(self, new: Registration, *, now_ms: int, connection: Hashable) -> Registered:
        """Take a broker in, or renew what is known of it.

        Raises RequestError, with nothing changed, when a broker that is not known yet sends a single topic, when
        the name belongs to another cluster, and when a bound would be passed.
        """
        self._refuse_foreign_cluster(new)
        group = self._groups.get(new.broker_name)
        members = group.members if group else {}
        held = members.get(new.broker_id)
        if self._holds_newer_state(held, new):
            self._drop_addr(new.cluster, new.broker_addr)
            return Registered(accepted=False)
        if held is None and len(new.topics) == 1:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"register broker failed: {new.broker_name} ({new.broker_addr}) is not known here and sent only "
                "one topic; send all topics first",
            )
        self._refuse_beyond_limits(new, held)
        self._refuse_beyond_memory(new, connection)
        return self._admit(new, held, now_ms, connection)

    def _admit(
        self, new: Registration, held: LiveBroker | None, now_ms: int, connection: Hashable
    ) -> Registered:
        """The registration is good: change the table."""
        known = self._groups.get(new.broker_name)
        old_min_id = known.min_id if known else None
        before = self._by_addr.get((new.cluster, new.broker_addr))
        if before is not None and (before.broker_name, before.broker_id) != (new.broker_name, new.broker_id):
            self._leave_for_switch(before, new.broker_name)
        version_changed = before is None or before.data_version != new.data_version
        group = self._join(new, held, now_ms, connection)
        changed = self._take_topics(group, new, all_of_them=held is None or version_changed)
        min_id_fell = old_min_id is not None and new.broker_id < old_min_id
        master = group.members.get(MASTER_ID) if new.broker_id != MASTER_ID else None
        return Registered(
            first=held is None,
            topics_changed=changed,
            replaced_addr=held.broker_addr if held and held.broker_addr != new.broker_addr else None,
            master_addr=master.broker_addr if master else None,
            master_ha_addr=master.ha_server_addr if master else None,
            change=self._member_change(group, None) if min_id_fell else None,
        )

    def unregister(self, cluster: str, broker_addr: str) -> Removal | None:
        """A broker says goodbye. None when it is not known."""
        return self._drop_addr(cluster, broker_addr)

    def connection_lost(self, connection: Hashable) -> list[Removal]:
        """The connection of a broker is gone, and with it every broker that registered through it last."""
        keys = sorted(self._by_connection.get(connection, ()))
        return [removal for key in keys if (removal := self._drop_addr(*key))]

    def expire(self, now_ms: int) -> list[Removal]:
        """Remove every broker that has been silent longer than the time-out it asked for."""
        late = [
            broker.key
            for broker in self._by_addr.values()
            if now_ms - broker.last_update_ms > broker.timeout_ms
        ]
        return [removal for key in late if (removal := self._drop_addr(*key))]

    def heartbeat(self, cluster: str, broker_addr: str, now_ms: int) -> bool:
        """A sign of life. False when the broker is not known."""
        broker = self._by_addr.get((cluster, broker_addr))
        if broker is None:
            return False
        broker.last_update_ms = now_ms
        return True

    def query_data_version(
        self, cluster: str, broker_addr: str, version: DataVersion, now_ms: int
    ) -> tuple[bool, DataVersion | None]:
        """Whether the broker's version differs from the one stored, and the stored one; counts as a sign of life."""
        broker = self._by_addr.get((cluster, broker_addr))
        if broker is None:
            return True, None
        broker.last_update_ms = now_ms
        return broker.data_version != version, broker.data_version

    # --- topics -----------------------------------------------------------------------------------------------

    def set_writable(self, broker_name: str, writable: bool) -> int:
        """Give or take write permission on every topic of a broker name; the number of its topics."""
        topics = self._topics_of.get(broker_name, set())
        for topic in topics:
            queues = self._topics[topic][broker_name]
            perm = Perm.READ_WRITE if writable else queues.perm & ~Perm.WRITE
            self._topics[topic][broker_name] = replace(queues, perm=perm)
        return len(topics)

    def delete_topic(self, topic: str, cluster: str | None = None) -> int:
        """Forget a topic, everywhere or on the brokers of one cluster; the number of brokers that lost it."""
        names = set(self._topics.get(topic, ()))
        if cluster:
            names &= self._clusters.get(cluster, set())
        for name in names:
            self._drop_queues(topic, name)
        return len(names)

    def register_topic(self, topic: str, queues: Mapping[str, TopicQueues]) -> bool:
        """Add a topic on brokers that are known. False, with nothing changed, when one of them is not."""
        if not queues or not self._groups.keys() >= queues.keys():
            return False
        self._refuse_new_topics({topic})
        known = self._topics.get(topic, {})
        size = share_size(topic) * len(queues.keys() - known.keys())
        self._memory.take(NOBODY, TABLES, size)
        self._memory.give(NOBODY, TABLES, size)
        for broker_name, shares in queues.items():
            self._put_queues(topic, broker_name, shares)
        return True

    # --- answers ----------------------------------------------------------------------------------------------

    def route(self, topic: str) -> TopicRouteData | None:
        """Where a topic lives, or None when nobody serves it."""
        queues = self._topics.get(topic)
        if not queues:
            return None
        names = sorted(queues)
        return TopicRouteData(
            broker_datas=[self._shown_group(topic, self._groups[name], queues[name]) for name in names],
            filter_server_table=self._filter_servers(names),
            queue_datas=[_queue_data(name, queues[name]) for name in names],
        )

    def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(
            broker_addr_table={name: self._groups[name].data() for name in sorted(self._groups)},
            cluster_addr_table={name: sorted(self._clusters[name]) for name in sorted(self._clusters)},
        )

    def member_group(self, broker_name: str) -> dict[int, str]:
        """Broker id to address of a broker name; empty when it is not known."""
        group = self._groups.get(broker_name)
        return group.addrs() if group else {}

    def topics(self) -> list[str]:
        return sorted(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        names = self._clusters.get(cluster, set())
        return sorted(set().union(*(self._topics_of.get(name, set()) for name in names)))

    def topics_by_flag(self, *, unit: bool | None = None, unit_subscription: bool | None = None) -> list[str]:
        """Topics whose flags are as asked; None means either. The first broker's flags count."""
        return [
            topic
            for topic, queues in sorted(self._topics.items())
            if _flags_match(queues[min(queues)].topic_sys_flag, unit, unit_subscription)
        ]

    def system_topics(self) -> tuple[list[str], str | None]:
        """Names of clusters and brokers, which are topics too, and one broker's address to ask for more."""
        names = [
            name for cluster in sorted(self._clusters) for name in (cluster, *sorted(self._clusters[cluster]))
        ]
        first = self._groups[min(self._groups)] if self._groups else None
        return names, first.members[first.min_id].broker_addr if first else None

    def has_connection(self, connection: Hashable) -> bool:
        """Whether a broker that is registered came through this connection."""
        return connection in self._by_connection

    def statistics(self) -> dict[str, int]:
        """How many of what, for the log and for metrics."""
        return {
            "clusters": len(self._clusters),
            "broker_names": len(self._groups),
            "brokers": len(self._by_addr),
            "topics": len(self._topics),
        }

    def check(self) -> None:
        """Walk the invariants; AssertionError at the first that is broken."""
        members = [member for group in self._groups.values() for member in group.members.values()]
        assert all(group.members for group in self._groups.values()), "a group without members"
        assert {member.key: id(member) for member in members} == {
            key: id(member) for key, member in self._by_addr.items()
        }, "the address index differs"
        assert len(members) == len(self._by_addr), "an address stands twice"
        connections: dict[Hashable, set[tuple[str, str]]] = {}
        for member in members:
            connections.setdefault(member.connection, set()).add(member.key)
        assert connections == self._by_connection, "the connection index differs"
        clusters: dict[str, set[str]] = {}
        for name, group in self._groups.items():
            clusters.setdefault(group.cluster, set()).add(name)
        assert clusters == self._clusters, "the cluster index differs"
        topics_of: dict[str, set[str]] = {}
        for topic, queues in self._topics.items():
            assert queues, f"topic {topic} without brokers"
            for name in queues:
                topics_of.setdefault(name, set()).add(topic)
        assert topics_of == self._topics_of, "the topic index differs"
        for name, group in self._groups.items():
            assert group.size == sum(map(share_size, topics_of.get(name, ()))), "the account differs"
            assert group.bearer in {member.connection for member in group.members.values()}, "a lost bearer"
        counted = sum(group.size for group in self._groups.values())
        assert self._memory.kinds[TABLES] == counted, "the account's sum differs"
        assert self._memory.kinds[MEMBERS] == sum(member.size for member in members)
        assert topics_of.keys() <= self._groups.keys(), "a topic of a broker that is not known"

    # --- refusals: nothing is changed in here -----------------------------------------------------------------

    def _refuse_foreign_cluster(self, new: Registration) -> None:
        group = self._groups.get(new.broker_name)
        if group is None or group.cluster == new.cluster:
            return
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"broker name {new.broker_name} belongs to cluster {group.cluster} "
            f"({', '.join(group.addrs().values())}); {new.broker_addr} of cluster {new.cluster} needs another "
            "brokerName",
        )

    def _holds_newer_state(self, held: LiveBroker | None, new: Registration) -> bool:
        if held is None or held.broker_addr == new.broker_addr:
            return False
        return held.data_version.state_version > new.data_version.state_version

    def _refuse_beyond_limits(self, new: Registration, held: LiveBroker | None) -> None:
        known = (new.cluster, new.broker_addr) in self._by_addr or held is not None
        if not known and len(self._by_addr) >= self.limits.brokers_max:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"register broker failed: {len(self._by_addr)} brokers are registered, maxBrokers is "
                f"{self.limits.brokers_max}",
            )
        self._refuse_new_topics(new.topics.keys())

    def _refuse_beyond_memory(self, new: Registration, connection: Hashable) -> None:
        """Whether there is room for the member and those of its topics that are new."""
        known = self._topics_of.get(new.broker_name, set())
        size = sum([share_size(topic) for topic in new.topics if topic not in known])
        group = self._groups.get(new.broker_name)
        if group is not None and group.bearer is not connection:
            self._memory.take(connection, TABLES, group.size, of_sum=0)
            self._memory.give(connection, TABLES, group.size, of_sum=0)
        size += _member_size(new)
        self._memory.take(connection, TABLES, size)
        self._memory.give(connection, TABLES, size)

    def _refuse_new_topics(self, topics: Iterable[str]) -> None:
        count = len(self._topics) + sum(topic not in self._topics for topic in topics)
        if count > self.limits.topics_max:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"register failed: there would be {count} topics, maxTopics is {self.limits.topics_max}",
            )

    # --- changes ----------------------------------------------------------------------------------------------

    def _join(
        self, new: Registration, held: LiveBroker | None, now_ms: int, connection: Hashable
    ) -> BrokerGroup:
        """Store the member, in place of whoever held its id."""
        if held is not None:
            self._forget_member(held)
        member = LiveBroker(
            cluster=new.cluster,
            broker_name=new.broker_name,
            broker_id=new.broker_id,
            broker_addr=new.broker_addr,
            ha_server_addr=new.ha_server_addr,
            data_version=new.data_version,
            last_update_ms=now_ms,
            timeout_ms=new.timeout_ms,
            connection=connection,
            filter_servers=new.filter_servers,
            size=_member_size(new),
        )
        self._memory.note(connection, MEMBERS, member.size)
        group = self._groups.setdefault(new.broker_name, BrokerGroup(new.cluster, new.broker_name, {}))
        group.acting_master = bool(new.acting_master)
        group.members[new.broker_id] = member
        self._bear(group, connection)
        self._by_addr[member.key] = member
        self._by_connection.setdefault(connection, set()).add(member.key)
        self._clusters.setdefault(new.cluster, set()).add(new.broker_name)
        return group

    def _forget_member(self, member: LiveBroker) -> None:
        """Take a member out of its group and the indexes; the group may be left empty."""
        del self._groups[member.broker_name].members[member.broker_id]
        del self._by_addr[member.key]
        self._memory.give(member.connection, MEMBERS, member.size)
        keys = self._by_connection[member.connection]
        keys.discard(member.key)
        if not keys:
            del self._by_connection[member.connection]

    def _leave_for_switch(self, member: LiveBroker, new_name: str) -> None:
        """An address comes back under another id or name. Inside its group the topics stay."""
        if member.broker_name == new_name:
            self._forget_member(member)
        else:
            self._leave(member)

    def _drop_addr(self, cluster: str, broker_addr: str) -> Removal | None:
        member = self._by_addr.get((cluster, broker_addr))
        return self._leave(member) if member is not None else None

    def _leave(self, member: LiveBroker) -> Removal:
        """Remove a member, its group when it was the last one, and the topics that nobody serves any more."""
        group = self._groups[member.broker_name]
        was_min = member.broker_id == group.min_id
        topics_before = len(self._topics)
        self._forget_member(member)
        if not group.members:
            self._remove_group(group)
        else:
            if group.bearer is member.connection:
                self._bear(group, group.members[group.min_id].connection)
            if group.acting_master and MASTER_ID not in group.members:
                self.set_writable(group.broker_name, False)
        return Removal(
            cluster=member.cluster,
            broker_name=member.broker_name,
            broker_id=member.broker_id,
            broker_addr=member.broker_addr,
            connection=member.connection,
            topics_removed=topics_before - len(self._topics),
            change=self._member_change(group, member.broker_addr) if was_min and group.members else None,
        )

    def _bear(self, group: BrokerGroup, connection: Hashable) -> None:
        """From here on the group's topics are counted for this connection."""
        if group.bearer is not connection:
            if group.size:
                self._memory.give(group.bearer, TABLES, group.size, of_sum=0)
                self._memory.note(connection, TABLES, group.size, of_sum=0)
            group.bearer = connection

    def _remove_group(self, group: BrokerGroup) -> None:
        self._memory.give(group.bearer, TABLES, group.size)
        group.size = 0
        del self._groups[group.broker_name]
        names = self._clusters[group.cluster]
        names.discard(group.broker_name)
        if not names:
            del self._clusters[group.cluster]
        for topic in list(self._topics_of.get(group.broker_name, ())):
            self._drop_queues(topic, group.broker_name)

    def _take_topics(self, group: BrokerGroup, new: Registration, *, all_of_them: bool) -> int:
        """Store the topics of a member that speaks for its group; the number of shares that changed."""
        is_master = new.broker_id == MASTER_ID
        is_prime_slave = not is_master and new.acting_master is not None and new.broker_id == group.min_id
        if not is_master and not is_prime_slave:
            return 0
        known = self._topics_of.get(new.broker_name, set())
        changed = 0
        if self.drop_unlisted_topics:
            gone = known - new.topics.keys()
            for topic in gone:
                self._drop_queues(topic, new.broker_name)
            changed = len(gone)
        read_only = is_prime_slave and group.acting_master
        for topic, queues in new.topics.items():
            if not all_of_them and topic in known:
                continue
            shares = replace(queues, perm=queues.perm & ~Perm.WRITE) if read_only else queues
            changed += self._put_queues(topic, new.broker_name, shares)
        return changed

    def _put_queues(self, topic: str, broker_name: str, queues: TopicQueues) -> bool:
        by_broker = self._topics.setdefault(topic, {})
        if by_broker.get(broker_name) == queues:
            return False
        if broker_name not in by_broker:
            self._count(broker_name, share_size(topic))
        by_broker[broker_name] = queues
        self._topics_of.setdefault(broker_name, set()).add(topic)
        return True

    def _count(self, broker_name: str, size: int) -> None:
        group = self._groups.get(broker_name)
        if group is not None:  # else it is being removed, and has been given back as a whole
            group.size += size
            self._memory.note(group.bearer, TABLES, size)

    def _drop_queues(self, topic: str, broker_name: str) -> None:
        self._count(broker_name, -share_size(topic))
        del self._topics[topic][broker_name]
        if not self._topics[topic]:
            del self._topics[topic]
        self._topics_of[broker_name].discard(topic)
        if not self._topics_of[broker_name]:
            del self._topics_of[broker_name]

    # --- shaping answers --------------------------------------------------------------------------------------

    def _member_change(self, group: BrokerGroup, offline_addr: str | None) -> MemberChange:
        """Who is told: everybody after a loss; after an arrival everybody but the one that arrived."""
        first = group.members[group.min_id]
        told = [member.broker_addr for member in group.members.values()]
        if offline_addr is None and len(told) > 1:
            told.remove(first.broker_addr)
        return MemberChange(
            group.broker_name,
            first.broker_id,
            first.broker_addr,
            first.ha_server_addr,
            offline_addr,
            tuple(sorted(told)),
        )

    def _shown_group(self, topic: str, group: BrokerGroup, queues: TopicQueues) -> BrokerData:
        """The group as clients see it: a read-only topic without a master shows its smallest slave as one."""
        data = group.data()
        promote = (
            self.support_acting_master
            and group.acting_master
            and MASTER_ID not in group.members
            and not queues.perm & Perm.WRITE
            and not topic.startswith(MEMBER_GROUP_TOPIC_PREFIX)
        )
        if promote:
            addrs = group.addrs()
            acting = addrs.pop(group.min_id)
            data.broker_addrs = {MASTER_ID: acting, **addrs}
        return data

    def _filter_servers(self, broker_names: Iterable[str]) -> dict[str, list[str]]:
        """Address to filter servers, for the members that announced some (a feature of old brokers)."""
        return {
            member.broker_addr: list(member.filter_servers)
            for name in broker_names
            for member in self._groups[name].members.values()
            if member.filter_servers
        }


def share_size(topic: str) -> int:
    """Bytes that a topic of one broker takes; a character takes up to four."""
    return SHARE_SIZE + (len(topic) if topic.isascii() else 4 * len(topic))


def _member_size(new: Registration) -> int:
    texts = (new.cluster, new.broker_name, new.broker_addr, new.ha_server_addr, *new.filter_servers)
    return MEMBER_SIZE + sum([64 + 4 * len(text) for text in texts])


def _queue_data(broker_name: str, queues: TopicQueues) -> QueueData:
    return QueueData(
        broker_name=broker_name,
        perm=queues.perm,
        read_queue_nums=queues.read_queue_nums,
        topic_sys_flag=queues.topic_sys_flag,
        write_queue_nums=queues.write_queue_nums,
    )


def _flags_match(flags: int, unit: bool | None, unit_subscription: bool | None) -> bool:
    if unit is not None and bool(flags & UNIT_FLAG) != unit:
        return False
    return unit_subscription is None or bool(flags & UNIT_SUBSCRIPTION_FLAG) == unit_subscription
