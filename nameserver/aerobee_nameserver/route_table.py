"""Route table: which brokers live, and which of them serves which topic.

Plain: no sockets, no clock. Time comes in as `now_ms`; a connection is any hashable token that the shell chooses.
Every change either happens as a whole or raises RequestError and leaves the table as it was.

A broker may have 100,000 topics, so what walks all of them is a generator that yields where others may be served
(`Steps`). A large change is made ready aside and takes effect in one step, by
putting another dict of topics into the group: whoever asks sees the old topics of a broker or the new ones. If what it
was made ready for has changed meanwhile, it is made ready again. What is only bookkeeping is left over, and tidied up
afterwards: at once where it is little, else when the shell, told through `on_left`, runs `tidying()`.

State
    groups    broker name -> BrokerGroup: its cluster, its topics and its members, broker id -> LiveBroker (0: master)
    names_of  topic -> names of the brokers that may serve it; whoever looks asks the group whether it does
    indexes   members by address, by connection, and broker names by cluster

Invariants (`check()` walks them)
- A group has at least one member. What a group serves is in `names_of`.
- `names_of` has more than that only while something is left over, or a registration under way.
- One address of a cluster is one member of one group.
- The indexes hold exactly what groups hold.
- What members and topic tables take is in the account of what is kept for peers: a member for its connection, the
  topics of a broker name for the connection of one of its members.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

import msgspec

from aerobee_proto.bodies import BrokerData, ClusterInfo, DataVersion, QueueData, TopicRouteData
from aerobee_proto.codes import Perm, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.javajson import sorted_steps
from aerobee_proto.names import MEMBER_GROUP_TOPIC_PREFIX
from aerobee_remoting.peers.peer_memory import NOBODY, PeerMemory
from aerobee_service.turns.slices import Steps, at_once

__all__ = [
    "MASTER_ID",
    "MemberChange",
    "Registered",
    "Registration",
    "Removal",
    "RouteLimits",
    "RouteStatistics",
    "RouteTable",
    "TopicQueues",
]

MASTER_ID: Final = 0
UNIT_FLAG: Final = 0x1  # bits of topicSysFlag
UNIT_SUBSCRIPTION_FLAG: Final = 0x2
MEMBERS: Final = "registered brokers"  # names in the account, and bytes of one besides its texts
TABLES: Final = "topic tables"
MEMBER_SIZE: Final = 2048
SHARE_SIZE: Final = 512
STEP_TOPICS: Final = 256  # looked at between two yields
IN_PLACE_MAX: Final = 512  # topics that are changed where they are; more: in a new dict
FEW_NAMES: Final = 8  # brokers of a topic, up to which a tuple is the smaller and quicker set
TIDY_AT_ONCE: Final = 8  # steps of what is left over by a change that are done with it
PLANS_MAX: Final = 8  # times that a large change is made ready while others change the same topics


@dataclass(slots=True, frozen=True)
class RouteLimits:
    """How large the table may grow; a registration beyond is refused."""

    topics_max: int = 200_000
    brokers_max: int = 10_000  # addresses, of all clusters together


@dataclass(slots=True, frozen=True)
class RouteStatistics:
    """How many clusters, names of brokers, brokers and topics are known."""

    clusters: int
    broker_names: int
    brokers: int
    topics: int


class TopicQueues(msgspec.Struct, frozen=True, gc=False):
    """How one broker serves one topic; the counts are numbers of queues.

    The garbage collector does not look at these: 200,000 of them made every full collection 30 ms longer.
    """

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

    def gone(self) -> Steps[None]:
        """Its topics are not needed any more, bit by bit: to free 100,000 at once takes long too."""
        if isinstance(self.topics, dict):
            yield from _emptied(self.topics)


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
    left: "Removal | None" = None  # the broker of another name that was known at this address
    master_addr: str | None = None  # for a slave whose master is known
    master_ha_addr: str | None = None
    change: MemberChange | None = None


@dataclass(slots=True, eq=False)
class Removal:
    """A broker that left the table."""

    cluster: str
    broker_name: str
    broker_id: int
    broker_addr: str
    connection: Hashable
    change: MemberChange | None
    topics_removed: int | None = 0  # topics that nobody serves any more; None until they have been counted


@dataclass(slots=True, eq=False)
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

    def is_late(self, now_ms: int) -> bool:
        return now_ms - self.last_update_ms > self.timeout_ms


@dataclass(slots=True, eq=False)
class BrokerGroup:
    """The members that share a broker name: a master and its slaves."""

    cluster: str
    broker_name: str
    members: dict[int, LiveBroker] = field(default_factory=dict)
    ids: list[int] = field(default_factory=list)  # of the members, sorted
    topics: dict[str, TopicQueues] = field(default_factory=dict)
    changes: int = 0  # of the topics
    acting_master: bool = False
    size: int = 0  # bytes of its topics
    bearer: Hashable = None  # the connection that those are counted for

    @property
    def min_id(self) -> int:
        return self.ids[0]

    def addrs(self) -> dict[int, str]:
        """Broker id to address, in order of the ids."""
        return {broker_id: self.members[broker_id].broker_addr for broker_id in self.ids}

    def data(self) -> BrokerData:
        return BrokerData(
            broker_addrs=self.addrs(),
            broker_name=self.broker_name,
            cluster=self.cluster,
            enable_acting_master=self.acting_master,
        )


# Names of a topic's brokers, as they were, and what becomes of them when one comes or goes.
_NewNames: TypeAlias = dict[tuple[str, ...], tuple[str, ...]]


class _Stance(NamedTuple):
    """What a registration is measured against; compared by identity of group and member."""

    group: BrokerGroup | None
    changes: int  # of the group's topics
    held: LiveBroker | None  # who has the broker's id
    speaks: bool  # its topics are the group's
    all_of_them: bool  # not only those that are missing
    read_only: bool


class _Change:
    """What a registration changes in the topics of its group."""

    __slots__ = ("changed", "fresh", "gone", "gone_size", "size", "table", "unknown")

    def __init__(self) -> None:
        self.changed: dict[str, TopicQueues] = {}
        self.fresh: set[str] = set()  # topics that the group does not serve yet
        self.size = 0  # bytes of those
        self.unknown = 0  # how many of those nobody serves
        self.gone: list[str] = []
        self.gone_size = 0
        self.table: dict[str, TopicQueues] | None = None  # all of it, where it is large


class RouteTable:
    """The nameserver's whole memory of brokers and topics."""

    def __init__(
        self,
        *,
        limits: RouteLimits | None = None,
        support_acting_master: bool = False,
        drop_unlisted_topics: bool = False,
        memory: PeerMemory | None = None,
        on_left: Callable[[Callable[[], Steps[None]]], None] = lambda _: None,
    ) -> None:
        """`on_left` is told when something is left over, with what tidies it up."""
        self._memory = memory or PeerMemory()
        self._on_left = on_left
        # Set by the configuration; may change while running.
        self.limits = limits or RouteLimits()
        self.support_acting_master = support_acting_master
        self.drop_unlisted_topics = drop_unlisted_topics
        # Changed by _join() and _leave() only.
        self.groups: dict[str, BrokerGroup] = {}
        self._by_addr: dict[tuple[str, str], LiveBroker] = {}
        self._by_connection: dict[Hashable, set[tuple[str, str]]] = {}
        self._clusters: dict[str, set[str]] = {}
        # Changed by _index() and _unindex() only.
        self._names_of: dict[str, tuple[str, ...] | set[str]] = {}  # few, or many
        # Broker name -> topics that registrations under way are about to serve.
        self.coming: dict[str, list[Collection[str]]] = {}
        # Bookkeeping that is not done yet.
        self.left: deque[Steps[None]] = deque()

    # --- brokers come, stay and go ----------------------------------------------------------------------------

    def register(self, new: Registration, *, now_ms: int, connection: Hashable) -> Registered:
        """`registering` at once."""
        return at_once(self.registering(new, now_ms=now_ms, connection=connection))

    def registering(self, new: Registration, *, now_ms: int, connection: Hashable) -> Steps[Registered]:
        """Take a broker in, or renew what is known of it; nothing of it is seen before the last step.

        Raises RequestError, with nothing changed, when a broker that is not known yet sends a single topic, when
        the name belongs to another cluster, and when a bound would be passed.
        """
        name = new.broker_name
        for _ in range(PLANS_MAX):
            self._refuse_foreign_cluster(new)
            stance = self._stance(new)
            if self._holds_newer_state(stance.held, new):
                self._drop_addr(new.cluster, new.broker_addr)
                self._tidy()
                return Registered(accepted=False)
            self._refuse_unknown(new, stance.held)
            change = yield from self._planned(new, stance)
            if self.left and self._is_beyond(change.unknown):
                yield from self.tidying()  # topics of brokers that have left may still be counted
                continue
            self._refuse_new_topics(change.unknown)
            self._refuse_beyond_memory(new, stance.held, connection, change.size)
            self.coming.setdefault(name, []).append(change.fresh)
            done = None
            try:
                yield from self._index_all(name, change.fresh)
                yield from self._made_ready(change, stance.group)
                if self._stance(new) == stance:
                    self._refuse_unknown(new, stance.held)
                    self._refuse_beyond_memory(new, stance.held, connection, change.size)
                    done = self._admit(new, stance, change, now_ms, connection)
                    return done
            finally:
                coming = self.coming[name]
                coming[:] = [fresh for fresh in coming if fresh is not change.fresh]
                if not coming:
                    del self.coming[name]
                if done is None and change.fresh:
                    self.left.append(self._swept(name, change.fresh, None))
                self._tidy()
        raise _busy(name)

    def _stance(self, new: Registration) -> _Stance:
        group = self.groups.get(new.broker_name)
        held = group.members.get(new.broker_id) if group else None
        before = self._by_addr.get((new.cluster, new.broker_addr))
        ids = group.ids if group else []
        if before is not None and before.broker_name == new.broker_name and ids[0] == before.broker_id:
            ids = ids[1:2]  # it leaves its old id
        is_master = new.broker_id == MASTER_ID
        is_prime_slave = (
            not is_master and new.acting_master is not None and not (ids and ids[0] < new.broker_id)
        )
        return _Stance(
            group=group,
            changes=group.changes if group else 0,
            held=held,
            speaks=is_master or is_prime_slave,
            all_of_them=held is None or before is None or before.data_version != new.data_version,
            read_only=is_prime_slave and bool(new.acting_master),
        )

    def _planned(self, new: Registration, stance: _Stance) -> Steps[_Change]:
        """What is to be changed; nothing is."""
        change = _Change()
        if not stance.speaks:
            return change
        known = stance.group.topics if stance.group else {}
        for number, (topic, queues) in enumerate(new.topics.items(), 1):
            if number % STEP_TOPICS == 0:
                yield
            held = known.get(topic)
            if held is None:
                change.fresh.add(topic)
                change.size += share_size(topic)
                change.unknown += topic not in self._names_of
            elif not stance.all_of_them:
                continue
            shares = _with_perm(queues, queues.perm & ~Perm.WRITE) if stance.read_only else queues
            if held != shares:
                change.changed[topic] = shares
        if self.drop_unlisted_topics:
            for number, topic in enumerate(list(known), 1):
                if number % STEP_TOPICS == 0:
                    yield
                if topic not in new.topics:
                    change.gone.append(topic)
                    change.gone_size += share_size(topic)
        return change

    def _made_ready(self, change: _Change, group: BrokerGroup | None) -> Steps[None]:
        """A large change becomes a new dict of topics."""
        if len(change.changed) + len(change.gone) <= IN_PLACE_MAX:
            return
        known = group.topics if group else {}
        if not known:
            change.table = change.changed
            return
        change.table = table = dict(known)
        for number, topic in enumerate(change.gone, 1):
            table.pop(topic, None)
            if number % STEP_TOPICS == 0:
                yield
        for number, (topic, queues) in enumerate(change.changed.items(), 1):
            table[topic] = queues
            if number % STEP_TOPICS == 0:
                yield

    def _admit(
        self, new: Registration, stance: _Stance, change: _Change, now_ms: int, connection: Hashable
    ) -> Registered:
        """The registration is good, and nothing has changed since it was looked at: change the table."""
        held = stance.held
        old_min_id = stance.group.min_id if stance.group else None
        before = self._by_addr.get((new.cluster, new.broker_addr))
        left = None
        if before is not None and (before.broker_name, before.broker_id) != (new.broker_name, new.broker_id):
            left = self._leave_for_switch(before, new.broker_name)
        group = self._join(new, held, now_ms, connection)
        self._take_topics(group, change)
        min_id_fell = old_min_id is not None and new.broker_id < old_min_id
        master = group.members.get(MASTER_ID) if new.broker_id != MASTER_ID else None
        return Registered(
            first=held is None,
            topics_changed=len(change.changed) + len(change.gone),
            replaced_addr=held.broker_addr if held and held.broker_addr != new.broker_addr else None,
            left=left,
            master_addr=master.broker_addr if master else None,
            master_ha_addr=master.ha_server_addr if master else None,
            change=self._member_change(group, None) if min_id_fell else None,
        )

    def unregister(self, cluster: str, broker_addr: str) -> Removal | None:
        """A broker says goodbye. None when it is not known."""
        removal = self._drop_addr(cluster, broker_addr)
        self._tidy()
        return removal

    def losing(self, connection: Hashable) -> Iterator[Removal]:
        """The connection of a broker is gone, and with it every broker that registered through it last.

        Each is removed when it is asked for: there may be thousands.
        """
        for member in self._leavers(self._by_addr[key] for key in self._by_connection.get(connection, ())):
            if member.connection == connection and self._by_addr.get(member.key) is member:
                yield self._left_alone(member)

    def expiring(self, now_ms: int) -> Iterator[Removal]:
        """Remove every broker that has been silent longer than the time-out it asked for, each when it is asked for."""
        for member in self._leavers(one for one in self._by_addr.values() if one.is_late(now_ms)):
            if member.is_late(now_ms) and self._by_addr.get(member.key) is member:
                yield self._left_alone(member)

    def _leavers(self, members: Iterable[LiveBroker]) -> list[LiveBroker]:
        """In the order in which they leave: of each name the smallest id last, so that one change is told."""
        return sorted(members, key=lambda one: (one.cluster, one.broker_name, -one.broker_id))

    def _left_alone(self, member: LiveBroker) -> Removal:
        removal = self._leave(member)
        self._tidy()
        return removal

    def holder(self, cluster: str, broker_addr: str) -> tuple[str, Hashable] | None:
        """The name under which an address is registered, and the connection that it was registered through last."""
        broker = self._by_addr.get((cluster, broker_addr))
        return None if broker is None else (broker.broker_name, broker.connection)

    def heartbeat(self, cluster: str, broker_addr: str, now_ms: int) -> bool:
        """The broker is alive. False when the broker is not known."""
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

    def setting_writable(self, broker_name: str, writable: bool) -> Steps[int]:
        """Give or take write permission on every topic of a broker name; the number of its topics."""
        for _ in range(PLANS_MAX):
            group = self.groups.get(broker_name)
            if group is None:
                return 0
            changes, table = group.changes, {}
            # Not over a copy: to make one of 100,000 took 20 to 50 ms where memory had been in use for long.
            for number, (topic, queues) in enumerate(group.topics.items(), 1):
                table[topic] = _with_perm(queues, Perm.READ_WRITE if writable else queues.perm & ~Perm.WRITE)
                if number % STEP_TOPICS == 0:
                    yield
                    if self.groups.get(broker_name) is not group or group.changes != changes:
                        break
            if self.groups.get(broker_name) is group and group.changes == changes:
                count = len(table)
                self._swap(group, table)
                self._tidy()
                return count
        raise _busy(broker_name)

    def deleting_topic(self, topic: str, cluster: str | None = None) -> Steps[int]:
        """Forget a topic, everywhere or on the brokers of one cluster; the number of brokers that lost it."""
        count = 0
        for number, name in enumerate(tuple(self._names_of.get(topic, ())), 1):
            group = self.groups.get(name)
            if group is not None and topic in group.topics and (not cluster or group.cluster == cluster):
                del group.topics[topic]
                group.changes += 1
                self._count(group, -share_size(topic))
                self._unindex(topic, name, {})
                count += 1
            if number % STEP_TOPICS == 0:
                yield
        return count

    def register_topic(self, topic: str, queues: Mapping[str, TopicQueues]) -> bool:
        """Add a topic on brokers that are known. False, with nothing changed, when one of them is not."""
        if not queues or not self.groups.keys() >= queues.keys():
            return False
        self._refuse_new_topics(topic not in self._names_of)
        fresh = [name for name in queues if topic not in self.groups[name].topics]
        size = share_size(topic) * len(fresh)
        self._memory.take(NOBODY, TABLES, size)
        self._memory.give(NOBODY, TABLES, size)
        for broker_name, shares in queues.items():
            group = self.groups[broker_name]
            if group.topics.get(topic) == shares:
                continue
            self._index(topic, broker_name, {})
            if topic not in group.topics:
                self._count(group, share_size(topic))
            group.topics[topic] = shares
            group.changes += 1
        return True

    # --- answers ----------------------------------------------------------------------------------------------

    def route(self, topic: str) -> TopicRouteData | None:
        """`routing` at once."""
        return at_once(self.routing(topic))

    def breadth(self, topic: str) -> int:
        """How many brokers a route may have to name, each with its address."""
        groups = self.groups
        return sum([len(groups[name].ids) for name in self._names_of.get(topic, ()) if name in groups])

    def routing(self, topic: str) -> Steps[TopicRouteData | None]:
        """Where a topic lives, or None when nobody serves it."""
        route = TopicRouteData()
        passed = 0
        for name in sorted(self._names_of.get(topic, ())):
            group = self.groups.get(name)
            queues = group.topics.get(topic) if group else None
            if group is None or queues is None:
                continue
            route.broker_datas.append(self._shown_group(group, topic, queues))
            route.filter_server_table |= _filter_servers(group)
            route.queue_datas.append(_queue_data(name, queues))
            passed += len(group.ids)
            if passed >= STEP_TOPICS // 2:
                passed = 0
                yield
        return route if route.queue_datas else None

    def describing(self) -> Steps[ClusterInfo]:
        """All clusters and brokers."""
        info = ClusterInfo()
        for number, name in enumerate(sorted(self.groups), 1):
            group = self.groups.get(name)
            if group is not None:  # it may leave meanwhile
                info.broker_addr_table[name] = group.data()
                info.cluster_addr_table.setdefault(group.cluster, []).append(name)
            if number % STEP_TOPICS == 0:
                yield
        return info

    def member_group(self, broker_name: str) -> dict[int, str]:
        """Broker id to address of a broker name; empty when it is not known."""
        group = self.groups.get(broker_name)
        return group.addrs() if group else {}

    def listing(
        self,
        *,
        cluster: str | None = None,
        unit: bool | None = None,
        unit_subscription: bool | None = None,
    ) -> Steps[list[str]]:
        """Topics that somebody serves, of a cluster or with flags as asked; None means any. The first broker's flags
        count.
        """
        names = list(self._names_of)
        if (
            cluster is None
            and unit is None
            and unit_subscription is None
            and not self.left
            and not self.coming
        ):
            return (yield from sorted_steps(names))
        found, looked_at = [], 0
        for topic in names:
            may_serve = self._names_of.get(topic, ())
            looked_at += len(may_serve)
            if looked_at >= STEP_TOPICS:
                looked_at = 0
                yield
            for name in sorted(may_serve) if len(may_serve) > 1 else may_serve:
                group = self.groups.get(name)
                queues = group.topics.get(topic) if group else None
                if group is None or queues is None or (cluster is not None and group.cluster != cluster):
                    continue
                if _flags_match(queues.topic_sys_flag, unit, unit_subscription):
                    found.append(topic)
                break
        return (yield from sorted_steps(found))

    def system_topics(self) -> tuple[list[str], str | None]:
        """Names of clusters and brokers, which are topics too, and one broker's address to ask for more."""
        names = [
            name for cluster in sorted(self._clusters) for name in (cluster, *sorted(self._clusters[cluster]))
        ]
        first = self.groups[min(self.groups)] if self.groups else None
        return names, first.members[first.min_id].broker_addr if first else None

    def has_connection(self, connection: Hashable) -> bool:
        """Whether a broker that is registered came through this connection."""
        return connection in self._by_connection

    def statistics(self) -> RouteStatistics:
        """How many of what, for metrics and answers."""
        return RouteStatistics(
            clusters=len(self._clusters),
            broker_names=len(self.groups),
            brokers=len(self._by_addr),
            topics=len(self._names_of),
        )

    def check(self) -> None:
        """Walk the invariants; AssertionError at the first that is broken."""
        members = [member for group in self.groups.values() for member in group.members.values()]
        assert all(group.members for group in self.groups.values()), "a group without members"
        assert {member.key: id(member) for member in members} == {
            key: id(member) for key, member in self._by_addr.items()
        }, "the address index differs"
        assert len(members) == len(self._by_addr), "an address stands twice"
        connections: dict[Hashable, set[tuple[str, str]]] = {}
        for member in members:
            connections.setdefault(member.connection, set()).add(member.key)
        assert connections == self._by_connection, "the connection index differs"
        clusters: dict[str, set[str]] = {}
        for name, group in self.groups.items():
            clusters.setdefault(group.cluster, set()).add(name)
        assert clusters == self._clusters, "the cluster index differs"
        served: dict[str, set[str]] = {}
        for name, group in self.groups.items():
            for topic in group.topics:
                served.setdefault(topic, set()).add(name)
            assert group.ids == sorted(group.members), "the list of ids differs"
            assert group.size == sum(map(share_size, group.topics)), "the account differs"
            assert group.bearer in {member.connection for member in group.members.values()}, "a lost bearer"
        may_serve = {topic: set(names) for topic, names in self._names_of.items()}
        assert all(may_serve.get(topic, set()) >= names for topic, names in served.items()), "not indexed"
        if not self.left and not self.coming:
            assert may_serve == served, "the topic index differs"
        assert all(map(self._names_of.get, self._names_of)), "a topic without brokers"
        counted = sum(group.size for group in self.groups.values())
        assert self._memory.kinds[TABLES] == counted, "the account's sum differs"
        assert self._memory.kinds[MEMBERS] == sum(member.size for member in members)

    # --- refusals: nothing is changed in here -----------------------------------------------------------------

    def _refuse_foreign_cluster(self, new: Registration) -> None:
        group = self.groups.get(new.broker_name)
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

    def _refuse_unknown(self, new: Registration, held: LiveBroker | None) -> None:
        if held is None and len(new.topics) == 1:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"register broker failed: {new.broker_name} ({new.broker_addr}) is not known here and sent only "
                "one topic; send all topics first",
            )
        known = (new.cluster, new.broker_addr) in self._by_addr or held is not None
        if not known and len(self._by_addr) >= self.limits.brokers_max:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"register broker failed: {len(self._by_addr)} brokers are registered, maxBrokers is "
                f"{self.limits.brokers_max}",
            )

    def _refuse_beyond_memory(
        self, new: Registration, held: LiveBroker | None, connection: Hashable, size: int
    ) -> None:
        """Whether there is room for the member and those of its topics that are new, which have `size` bytes.

        A member that comes again gives back what it had: however full the account is, who is known stays.
        """
        group = self.groups.get(new.broker_name)
        if group is not None and group.bearer is not connection:
            self._memory.take(connection, TABLES, group.size, of_sum=0)
            self._memory.give(connection, TABLES, group.size, of_sum=0)
        size += _member_size(new)
        given_back = held.size if held is not None else 0
        new_in_sum = size - given_back
        new_here = new_in_sum if held is not None and held.connection is connection else size
        self._memory.take(connection, TABLES, new_here, of_sum=new_in_sum)
        self._memory.give(connection, TABLES, new_here, of_sum=new_in_sum)

    def _is_beyond(self, more: int) -> bool:
        return len(self._names_of) + more > self.limits.topics_max

    def _refuse_new_topics(self, more: int) -> None:
        if self._is_beyond(more):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"register failed: there would be {len(self._names_of) + more} topics, maxTopics is "
                f"{self.limits.topics_max}",
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
        group = self.groups.setdefault(new.broker_name, BrokerGroup(new.cluster, new.broker_name))
        group.acting_master = bool(new.acting_master)
        group.members[new.broker_id] = member
        insort(group.ids, new.broker_id)
        self._bear(group, connection)
        self._by_addr[member.key] = member
        self._by_connection.setdefault(connection, set()).add(member.key)
        self._clusters.setdefault(new.cluster, set()).add(new.broker_name)
        return group

    def _forget_member(self, member: LiveBroker) -> None:
        """Take a member out of its group and the indexes; the group may be left empty."""
        group = self.groups[member.broker_name]
        del group.members[member.broker_id]
        del group.ids[bisect_left(group.ids, member.broker_id)]
        del self._by_addr[member.key]
        self._memory.give(member.connection, MEMBERS, member.size)
        keys = self._by_connection[member.connection]
        keys.discard(member.key)
        if not keys:
            del self._by_connection[member.connection]

    def _leave_for_switch(self, member: LiveBroker, new_name: str) -> Removal | None:
        """An address comes back under another id or name. Inside its group the topics stay."""
        if member.broker_name != new_name:
            return self._leave(member)
        self._forget_member(member)
        return None

    def _drop_addr(self, cluster: str, broker_addr: str) -> Removal | None:
        member = self._by_addr.get((cluster, broker_addr))
        return self._leave(member) if member is not None else None

    def _leave(self, member: LiveBroker) -> Removal:
        """Remove a member, its group when it was the last one, and the topics that nobody serves any more."""
        group = self.groups[member.broker_name]
        was_min = member.broker_id == group.min_id
        removal = Removal(
            cluster=member.cluster,
            broker_name=member.broker_name,
            broker_id=member.broker_id,
            broker_addr=member.broker_addr,
            connection=member.connection,
            change=None,
        )
        self._forget_member(member)
        if not group.members:
            self._remove_group(group, removal)
            return removal
        if group.bearer is member.connection:
            self._bear(group, group.members[group.min_id].connection)
        if group.acting_master and MASTER_ID not in group.members:
            self.left.append(self._closed_to_writes(group))
        if was_min:
            removal.change = self._member_change(group, member.broker_addr)
        return removal

    def _closed_to_writes(self, group: BrokerGroup) -> Steps[None]:
        """A group that has lost its master is read only."""
        if self.groups.get(group.broker_name) is not group or MASTER_ID in group.members:
            return
        try:
            yield from self.setting_writable(group.broker_name, False)
        except RequestError:  # others change the same topics all the time: later
            self.left.append(self._closed_to_writes(group))

    def _bear(self, group: BrokerGroup, connection: Hashable) -> None:
        """From here on the group's topics are counted for this connection."""
        if group.bearer is not connection:
            if group.size:
                self._memory.give(group.bearer, TABLES, group.size, of_sum=0)
                self._memory.note(connection, TABLES, group.size, of_sum=0)
            group.bearer = connection

    def _remove_group(self, group: BrokerGroup, removal: Removal) -> None:
        self._memory.give(group.bearer, TABLES, group.size)
        del self.groups[group.broker_name]
        names = self._clusters[group.cluster]
        names.discard(group.broker_name)
        if not names:
            del self._clusters[group.cluster]
        if group.topics:
            removal.topics_removed = None
            self.left.append(self._swept(group.broker_name, group.topics, removal))

    def _take_topics(self, group: BrokerGroup, change: _Change) -> None:
        """The prepared change takes effect."""
        if change.table is not None:
            self._swap(group, change.table)
        elif change.changed or change.gone:
            for topic in change.gone:
                del group.topics[topic]
            group.topics.update(change.changed)
            group.changes += 1
        self._count(group, change.size - change.gone_size)
        if change.gone:
            self.left.append(self._swept(group.broker_name, set(change.gone), None))

    def _swap(self, group: BrokerGroup, table: dict[str, TopicQueues]) -> None:
        old, group.topics = group.topics, table
        group.changes += 1
        if old:
            self.left.append(_emptied(old))

    def _count(self, group: BrokerGroup, size: int) -> None:
        group.size += size
        self._memory.note(group.bearer, TABLES, size)

    def _index_all(self, broker_name: str, topics: Iterable[str]) -> Steps[None]:
        """Whoever asks for these looks at the broker from here on."""
        longer: _NewNames = {}
        for number, topic in enumerate(topics, 1):
            self._index(topic, broker_name, longer)
            if number % STEP_TOPICS == 0:
                self._refuse_new_topics(0)  # others register too
                yield
        self._refuse_new_topics(0)

    def _index(self, topic: str, broker_name: str, longer: _NewNames) -> None:
        """`longer` has what becomes of a few names with this one: topics of the same brokers share them. 60,000 tuples
        of their own made the collector search for 6 ms, again and again."""
        names = self._names_of.get(topic, ())
        if broker_name in names:
            return
        if isinstance(names, set):
            names.add(broker_name)
        elif len(names) < FEW_NAMES:
            self._names_of[topic] = longer.get(names) or longer.setdefault(names, (*names, broker_name))
        else:
            self._names_of[topic] = {*names, broker_name}

    def _unindex(self, topic: str, broker_name: str, shorter: _NewNames) -> bool:
        """Whether nobody serves the topic any more. Nothing happens when the broker serves it, or is about to.
        `shorter` has what becomes of a few names without this one, to be shared."""
        names = self._names_of.get(topic, ())
        group = self.groups.get(broker_name)
        if broker_name not in names or (group is not None and topic in group.topics):
            return False
        if any(topic in coming for coming in self.coming.get(broker_name, ())):
            return False
        if len(names) == 1:
            del self._names_of[topic]
            return True
        if isinstance(names, set):
            names.discard(broker_name)
        else:
            self._names_of[topic] = shorter.get(names) or shorter.setdefault(
                names, tuple([name for name in names if name != broker_name])
            )
        return False

    # --- what is left over ------------------------------------------------------------------------------------

    def tidying(self) -> Steps[None]:
        """Do what changes have left over."""
        while self.left:
            steps = self.left.popleft()
            for _ in steps:
                self.left.appendleft(steps)  # it is not over
                break
            yield

    def _tidy(self) -> None:
        """Little is done at once."""
        for _ in islice(self.tidying(), TIDY_AT_ONCE):
            pass
        if self.left:
            self._on_left(self.tidying)

    def _swept(
        self, broker_name: str, topics: dict[str, TopicQueues] | set[str], removal: Removal | None
    ) -> Steps[None]:
        """The broker does not serve these any more: take it out of the index."""
        pop = topics.popitem if isinstance(topics, dict) else topics.pop
        count = number = 0
        shorter: _NewNames = {}
        while topics:
            popped = pop()
            topic = popped if isinstance(popped, str) else popped[0]
            count += self._unindex(topic, broker_name, shorter)
            number += 1
            if number % STEP_TOPICS == 0:
                yield
        if removal is not None:
            removal.topics_removed = count

    # --- shaping answers --------------------------------------------------------------------------------------

    def _member_change(self, group: BrokerGroup, offline_addr: str | None) -> MemberChange:
        """Who is told: everybody after a loss; after an arrival everybody but the one that arrived."""
        first = group.members[group.min_id]
        notified = [member.broker_addr for member in group.members.values()]
        if offline_addr is None and len(notified) > 1:
            notified.remove(first.broker_addr)
        return MemberChange(
            group.broker_name,
            first.broker_id,
            first.broker_addr,
            first.ha_server_addr,
            offline_addr,
            tuple(sorted(notified)),
        )

    def _shown_group(self, group: BrokerGroup, topic: str, queues: TopicQueues) -> BrokerData:
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


def _filter_servers(group: BrokerGroup) -> dict[str, list[str]]:
    """Address to filter servers, for the members that announced some (a feature of old brokers)."""
    return {
        member.broker_addr: list(member.filter_servers)
        for member in group.members.values()
        if member.filter_servers
    }


def _emptied(table: dict[str, TopicQueues]) -> Steps[None]:
    """To free 100,000 at once takes long too."""
    number = 0
    while table:
        table.popitem()
        number += 1
        if number % STEP_TOPICS == 0:
            yield


def _with_perm(queues: TopicQueues, perm: int) -> TopicQueues:
    return TopicQueues(queues.read_queue_nums, queues.write_queue_nums, perm, queues.topic_sys_flag)


def _busy(broker_name: str) -> RequestError:
    return RequestError(
        ResponseCode.SYSTEM_BUSY, f"the topics of {broker_name} are being changed by others; try again"
    )


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
