"""Who consumes: members of groups and what each group subscribes to, from heartbeats.

Touches  nothing. Every call returns what the shell has to do: whom to notify, which connections to close.

    event                                   what changes                          whom to notify
    heartbeat, new member or topics         member added, subscriptions replaced  all members, the new one too
    heartbeat, only a newer subscription    subscription replaced                 nobody
    client leaves, connection lost, silent  member removed                        the members that are left

Invariants
- A group without members does not exist.
- Nobody is notified of changes in a group that broadcasts, or that turned notifications off.
- What members and subscriptions take in memory is counted for the connection that brought them; what members of a group
  subscribe to alike is kept once.
- A group's subscriptions are those of its last full heartbeat: members that disagree take turns, and that is
  reported as a conflict.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final, NamedTuple, TypeVar

from aerobee_broker.members.clients import Member, MemberCount, member_size
from aerobee_broker.members.filters import EVERYTHING, TAG, Filter
from aerobee_proto.bodies import ConsumerData, SubscriptionData
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import LimitReached
from aerobee_proto.javajson import sorted_steps
from aerobee_remoting.peers.peer import Peer
from aerobee_remoting.peers.peer_memory import PeerMemory, Shared
from aerobee_service.turns.slices import Steps, at_once

__all__ = ["Changes", "ConsumerGroup", "ConsumerTable", "Subscription"]

BROADCASTING: Final = "BROADCASTING"
# Names in the account, and bytes that a fixed part takes (`tests/broker/test_peer_bounds.py` weighs them).
MEMBERS: Final = "members of groups"
SUBSCRIPTIONS: Final = "subscriptions of groups"
MEMBERS_SUBSCRIPTIONS: Final = "subscriptions of members"
SUBSCRIPTION_SIZE: Final = 1536
TAG_SIZE: Final = 128
CODE_SIZE: Final = 64
CONTENT_SIZE: Final = 512
CONTENT_ENTRY_SIZE: Final = 384
DIGEST_SIZE: Final = 32  # bytes: nobody finds two contents of one digest
GROUPS_A_STEP: Final = 1024  # that are looked at in one step
MEMBERS_A_STEP: Final = 64  # that are removed in one step; one takes some 3 us
SUBSCRIPTIONS_A_STEP: Final = 64  # that are made ready in one step; one takes some 2 us
PLANS: Final = 8  # times that subscriptions are made ready while others change the group's
CONFLICT_TOPICS_MAX: Final = 100  # topics that are told of a conflict

K = TypeVar("K")
ContentKey = tuple[str, bytes]  # group; digest of topics, types and expressions: to compare 10,000 took 4 ms


class Subscription:
    """One topic of a group, ready for the filter."""

    __slots__ = ("compiled_version", "data", "expression_type", "size", "tag_filter", "version")

    def __init__(self, data: SubscriptionData) -> None:
        self.data = data
        self.size = subscription_size(data)
        self.expression_type = data.expression_type or TAG
        self.version = data.sub_version
        # Everything, unless it names tags. What an SQL92 expression wants is not known here.
        self.tag_filter = EVERYTHING
        if self.expression_type == TAG and not data.class_filter_mode and data.sub_string not in ("", "*"):
            self.tag_filter = Filter(data.code_set)
        # Set by whoever compiles: version of the newest SQL92 expression of this group and topic that compiled.
        self.compiled_version: int | None = None


class ConsumerGroup:
    """One group with at least one member. `bearer` is the connection that its subscriptions are counted for."""

    __slots__ = (
        "bearer",
        "changes",
        "conflict_reported",
        "connections",
        "consume_from_where",
        "consume_type",
        "contents",
        "ids",
        "members",
        "message_model",
        "name",
        "size",
        "subscriptions",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.consume_type = ""
        self.message_model = ""
        self.consume_from_where = ""
        self.members: dict[str, Member] = {}  # by client id
        # Of the members, so that nobody walks them all: how many are on a connection, how many subscribe to the same.
        self.connections: dict[Peer, int] = {}
        self.contents: dict[Hashable, int] = {}  # what somebody subscribes to, as members have it
        self.changes = 0  # how often somebody came or went
        self.ids: list[str] | None = None  # client ids, sorted; None: to be sorted
        self.subscriptions: dict[str, Subscription] = {}  # by topic
        self.conflict_reported = False
        self.size = 0  # bytes of the subscriptions
        self.bearer: Peer | None = None

    @property
    def is_broadcasting(self) -> bool:
        return self.message_model == BROADCASTING


@dataclass(slots=True)
class Changes:
    """What the shell has to do after a change."""

    notify: list[tuple[str, Peer]] = field(default_factory=list)  # (group, member to notify)
    close: list[Peer] = field(default_factory=list)
    changed: bool = False  # members or topics of the group
    known: bool = True  # False: a short heartbeat of a client whose full one is not known here
    conflict: "Conflict | None" = None
    # What nobody subscribes to any more, in parts. Thousands of them are to be let go of in steps.
    left: list[object] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class Conflict:
    """Two members of a group that subscribe differently."""

    group: str
    client_id: str
    other_client_id: str
    topics: tuple[str, ...]  # those in which they differ, as far as they are told


class _Plan(NamedTuple):
    """What a group subscribes to from a heartbeat on, where it has `known` on record."""

    known: Mapping[str, Subscription] | None  # None: there is no such group
    table: dict[str, Subscription]
    size: int  # bytes
    is_of_other_topics: bool
    is_new: bool  # something in it is not what is on record


class _Offer:
    """The subscriptions of one group of a heartbeat, made ready; `key` is what they are shared under."""

    __slots__ = ("content", "content_size", "key", "made", "newest")

    def __init__(self) -> None:
        self.content: dict[str, tuple[str, str]] = {}  # by topic: type, expression
        self.content_size = CONTENT_SIZE
        self.newest: dict[str, SubscriptionData] = {}  # by topic
        self.made: dict[str, Subscription] = {}  # of those that were new when it was looked
        self.key: Hashable = None

    def planned(self, known: Mapping[str, Subscription] | None) -> Steps[_Plan]:
        """What the group subscribes to from here on, where these are what it has on record; nothing is changed."""
        table: dict[str, Subscription] = {}
        old = known or {}
        size = same = kept = 0
        for number, (topic, data) in enumerate(self.newest.items(), 1):
            before = old.get(topic)
            same += before is not None
            if before is not None and data.sub_version <= before.version:
                one = before
                kept += 1
            else:
                one = self.made.get(topic) or Subscription(data)
                if before is not None:
                    one.compiled_version = before.compiled_version
            table[topic] = one
            size += one.size
            if number % SUBSCRIPTIONS_A_STEP == 0:
                yield
        is_of_other_topics = not same == len(old) == len(table)
        return _Plan(known, table, size, is_of_other_topics, is_new=is_of_other_topics or kept < len(table))

    def digest(self) -> Steps[bytes]:
        """Of the content, whatever its order."""
        content = self.content
        topics = yield from sorted_steps(content)
        digest = hashlib.blake2b(digest_size=DIGEST_SIZE)
        for start in range(0, len(topics), SUBSCRIPTIONS_A_STEP):
            some = topics[start : start + SUBSCRIPTIONS_A_STEP]
            digest.update(repr([(topic, content[topic]) for topic in some]).encode())
            yield
        return digest.digest()


class ConsumerTable:
    """All consumer groups. All calls from the event loop."""

    def __init__(
        self,
        *,
        members_max: int,
        members_per_connection_max: int,
        topics_per_group_max: int,
        memory: PeerMemory | None = None,
    ) -> None:
        self._memory = memory or PeerMemory()
        # What members subscribe to, by group and content.
        self._contents = Shared[dict[str, tuple[str, str]]](self._memory, MEMBERS_SUBSCRIPTIONS)
        self._groups: dict[str, ConsumerGroup] = {}
        # How often it changed which groups there are, how one consumes, or what it subscribes to. Moved by registering
        # and _remove.
        self.changes = 0
        self._by_connection: dict[Peer, set[tuple[str, str]]] = {}  # (group, client id)
        self._count = MemberCount(members_max)
        self._per_connection_max = members_per_connection_max
        self._topics_max = topics_per_group_max

    # --- looking up -------------------------------------------------------------------------------------------

    def get(self, group: str) -> ConsumerGroup | None:
        return self._groups.get(group)

    def groups(self) -> Iterable[ConsumerGroup]:
        """All groups; not to be kept over a change."""
        return self._groups.values()

    @property
    def member_count(self) -> int:
        return self._count.value

    def client_ids(self, group: str) -> list[str]:
        """Members of a group, sorted; empty when nobody is online."""
        return list(at_once(self.sorted_ids(group)))

    def sorted_ids(self, group: str) -> Steps[Sequence[str]]:
        """As `client_ids`, in steps; sorted once for all who ask until somebody comes or goes."""
        found = self._groups.get(group)
        if found is None:
            return ()
        if found.ids is not None:
            return found.ids
        changes = found.changes
        ids = yield from sorted_steps(found.members)
        if found.changes == changes:
            found.ids = ids
        return ids

    def member(self, group: str, client_id: str) -> Member | None:
        found = self._groups.get(group)
        return found.members.get(client_id) if found else None

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """What the group wants of a topic; None when nobody is online or the topic is not subscribed."""
        found = self._groups.get(group)
        return found.subscriptions.get(topic) if found else None

    def has_members(self, connection: Peer) -> bool:
        """Whether any member is reached over this connection."""
        return connection in self._by_connection

    def groups_of(self, topic: str) -> list[str]:
        """Groups online that subscribe to the topic, sorted."""
        return sorted(at_once(self.groups_steps(topic)))

    def groups_steps(self, topic: str) -> Steps[list[str]]:
        """As `groups_of`, in steps, and as they come."""
        found = []
        for number, group in enumerate(list(self._groups.values())):
            if number % GROUPS_A_STEP == 0:
                yield
            if topic in group.subscriptions:
                found.append(group.name)
        return found

    # --- changes ----------------------------------------------------------------------------------------------

    def register(
        self,
        member: Member,
        data: ConsumerData,
        *,
        notify: bool,
        without_subscriptions: bool = False,
        fingerprint: int = 0,
    ) -> Changes:
        """`registering` at once."""
        return at_once(
            self.registering(
                member,
                data,
                notify=notify,
                without_subscriptions=without_subscriptions,
                fingerprint=fingerprint,
            )
        )

    def registering(
        self,
        member: Member,
        data: ConsumerData,
        *,
        notify: bool,
        without_subscriptions: bool = False,
        fingerprint: int = 0,
    ) -> Steps[Changes]:
        """Take one group of a heartbeat, in steps; nothing of it is seen before the last one.

        `member` is how the client is seen now.

        RequestError SYSTEM_BUSY or INVALID_PARAMETER: a bound would be passed; nothing was changed.
        """
        self._check_bounds(member, data)
        offer = plan = None
        if not without_subscriptions:
            offer = yield from self._offer(data)
            plan = yield from self._planned(offer, data.group_name)
        self._check_bounds(member, data)  # others may have come meanwhile
        group = self._groups.get(data.group_name) or ConsumerGroup(data.group_name)
        is_new = not group.members or group.message_model != data.message_model
        changes = Changes()
        self._account(group, member, offer, plan, changes.left)
        self._groups[data.group_name] = group
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        self.changes += is_new or (plan is not None and plan.is_new)
        known = self._seat(group, member)
        changes.changed = known is None
        seated = known or member
        if plan is None:
            changes.known = known is not None and fingerprint == known.fingerprint
        else:
            seated.fingerprint = fingerprint
            changes.changed |= plan.is_of_other_topics
            changes.left += group.subscriptions.values()
            group.subscriptions = plan.table
            changes.conflict = _new_conflict(group, seated)
        if changes.changed:
            changes.notify = _to_notify(group, notify=notify)
        return changes

    def _offer(self, data: ConsumerData) -> Steps[_Offer]:
        """All that can be made ready before the group is looked at."""
        offer = _Offer()
        for number, one in enumerate(data.subscription_data_set, 1):
            offer.content[one.topic] = (one.expression_type or TAG, one.sub_string)
            newest = offer.newest.get(one.topic)
            if newest is None or one.sub_version > newest.sub_version:
                offer.newest[one.topic] = one
            if number % SUBSCRIPTIONS_A_STEP == 0:
                yield
        for number, (topic, one) in enumerate(offer.newest.items(), 1):
            offer.content_size += CONTENT_ENTRY_SIZE + 2 * (len(topic) + len(offer.content[topic][1]))
            known = self.subscription(data.group_name, topic)
            if known is None or one.sub_version > known.version:
                offer.made[topic] = Subscription(one)
            if number % SUBSCRIPTIONS_A_STEP == 0:
                yield
        key: ContentKey = (data.group_name, (yield from offer.digest()))
        # The one key that all have in common: keys that are equal would be kept beside each other.
        offer.key = self._contents.key_of(key)
        return offer

    def _planned(self, offer: _Offer, group_name: str) -> Steps[_Plan]:
        """What the group subscribes to with this; true when it is returned."""
        for _ in range(PLANS):
            plan = yield from offer.planned(self._on_record(group_name))
            if self._on_record(group_name) is plan.known:
                return plan
        return at_once(offer.planned(self._on_record(group_name)))

    def _on_record(self, group_name: str) -> Mapping[str, Subscription] | None:
        group = self._groups.get(group_name)
        return None if group is None else group.subscriptions

    def unregister(self, group_name: str, client_id: str, *, notify: bool) -> Changes:
        """Remove a client that says good-bye; no change when it was not there."""
        group = self._groups.get(group_name)
        member = group.members.get(client_id) if group else None
        if group is None or member is None:
            return Changes()
        return self._remove(group, [member], notify=notify)

    def connection_lost(self, connection: Peer, *, notifies: Callable[[str], bool]) -> Changes:
        """Remove the members behind a connection. `notifies` says which groups want to hear of changes."""
        changes = Changes()
        seats: dict[str, list[str]] = {}
        for group_name, client_id in sorted(self._by_connection.get(connection, ())):
            seats.setdefault(group_name, []).append(client_id)
        # A group at a time: those who stay hear of all who go together.
        for group_name, client_ids in seats.items():
            group = self._groups[group_name]
            gone = [group.members[client_id] for client_id in client_ids]
            more = self._remove(group, gone, notify=notifies(group_name))
            changes.notify += more.notify
            changes.changed |= more.changed
            changes.left += more.left
        return changes

    def expire(self, silent_since_ms: int, *, notifies: Callable[[str], bool]) -> Changes:
        """Remove members whose last heartbeat is older, and name their connections to be closed."""
        return at_once(self.expiry(silent_since_ms, notifies=notifies))

    def expiry(self, silent_since_ms: int, *, notifies: Callable[[str], bool]) -> Steps[Changes]:
        """As `expire`, in steps. Who is heard of meanwhile stays."""
        changes = Changes()
        for group in list(self._groups.values()):
            silent = [member for member in group.members.values() if member.last_seen_ms < silent_since_ms]
            removed = False
            yield
            for start in range(0, len(silent), MEMBERS_A_STEP):
                gone = [
                    member
                    for member in silent[start : start + MEMBERS_A_STEP]
                    if member.last_seen_ms < silent_since_ms and group.members.get(member.client_id) is member
                ]
                more = self._remove(group, gone, notify=False)
                removed |= more.changed
                changes.left += more.left
                changes.close += [member.connection for member in gone]
                yield
            if removed:
                changes.changed = True
                changes.notify += _to_notify(group, notify=notifies(group.name))
        return changes

    def _check_bounds(self, member: Member, data: ConsumerData) -> None:
        if len(data.subscription_data_set) > self._topics_max:
            raise LimitReached(
                ResponseCode.INVALID_PARAMETER,
                f"group {data.group_name} subscribes to {len(data.subscription_data_set)} topics,"
                f" at most {self._topics_max} are allowed",
                "maxSubscriptionsPerGroup",
            )
        group = self._groups.get(data.group_name)
        if group is not None and member.client_id in group.members:
            return
        if self._count.is_full:
            raise LimitReached(
                ResponseCode.SYSTEM_BUSY,
                f"{self._count.limit} clients are registered already",
                "maxRegisteredClients",
            )
        if len(self._by_connection.get(member.connection, ())) >= self._per_connection_max:
            raise LimitReached(
                ResponseCode.SYSTEM_BUSY,
                f"{self._per_connection_max} clients are registered over this connection already",
                "maxClientsPerConnection",
            )

    # --- memory -----------------------------------------------------------------------------------------------

    def _account(
        self,
        group: ConsumerGroup,
        member: Member,
        offer: _Offer | None,
        plan: _Plan | None,
        left: list[object],
    ) -> None:
        """Count what a heartbeat brings; `member` is the seat to be, or stands for the one that is there, `plan` what
        the group subscribes to then. What nobody else has of what it had before goes to `left`.

        LimitReached: there is no memory for it; nothing was changed.
        """
        seat = group.members.get(member.client_id)
        before = None if seat is None else (seat.connection, seat.subscribed)
        subscribed: Hashable = None if seat is None else seat.subscribed
        topics: Mapping[str, tuple[str, str]] = {} if seat is None else seat.topics
        connection, memory = member.connection, self._memory
        with ExitStack() as undo:
            if before is None or before[0] is not connection:
                memory.take(connection, MEMBERS, member_size(member.client_id))
                undo.callback(memory.give, connection, MEMBERS, member_size(member.client_id))
            if offer is not None and plan is not None:
                now, content = offer.key, offer.content
                if before != (connection, now):
                    topics = self._contents.hold(now, connection, offer.content_size, lambda: content)
                    undo.callback(self._contents.drop, now, connection)
                    subscribed = self._contents.key_of(now)  # somebody else's, maybe, since it was made ready
                size = plan.size
                own = group.size if group.bearer is connection else 0
                memory.take(connection, SUBSCRIPTIONS, size - own, of_sum=size - group.size)
                if group.bearer is not connection and group.bearer is not None:
                    memory.give(group.bearer, SUBSCRIPTIONS, group.size, of_sum=0)
                group.size, group.bearer = size, connection
            elif before is not None and before[0] is not connection and subscribed is not None:
                self._contents.hold(subscribed, connection, 0, dict)
            undo.pop_all()
        if before is not None:
            if before[0] is not connection:
                memory.give(before[0], MEMBERS, member_size(member.client_id))
            if before[1] is not None and before != (connection, subscribed):
                self._drop_content(before[1], before[0], left)
        seated = seat or member
        if seat is not None:
            _count_content(group, seat, -1)
        seated.subscribed, seated.topics = subscribed, topics
        _count_content(group, seated, 1)

    def _drop_content(self, subscribed: Hashable, connection: Peer, left: list[object]) -> None:
        content = self._contents.drop(subscribed, connection)
        if content is not None:
            left += content.values()

    def _unaccount(self, group: ConsumerGroup, member: Member, left: list[object]) -> None:
        """A member has left the group."""
        self._memory.give(member.connection, MEMBERS, member_size(member.client_id))
        if member.subscribed is not None:
            self._drop_content(member.subscribed, member.connection, left)
        if group.bearer is member.connection:
            # Whoever stays bears what the group has on record, until a heartbeat says it anew.
            heir = next((other.connection for other in group.members.values()), None)
            self._memory.give(group.bearer, SUBSCRIPTIONS, group.size, of_sum=0 if heir else None)
            if heir is not None:
                self._memory.note(heir, SUBSCRIPTIONS, group.size, of_sum=0)
            group.bearer = heir

    def _seat(self, group: ConsumerGroup, member: Member) -> Member | None:
        """Add the member, or bring the seat that its client id has up to date and return that."""
        seat = group.members.get(member.client_id)
        if seat is None:
            group.members[member.client_id] = member
            _add(group.connections, member.connection, 1)
            _came_or_went(group)
            self._count.value += 1
            self._by_connection.setdefault(member.connection, set()).add((group.name, member.client_id))
            return None
        if seat.connection is not member.connection:
            self._unlink(seat.connection, group.name, seat.client_id)
            self._by_connection.setdefault(member.connection, set()).add((group.name, member.client_id))
            _add(group.connections, seat.connection, -1)
            _add(group.connections, member.connection, 1)
            seat.connection = member.connection
        seat.language, seat.version = member.language, member.version
        seat.last_seen_ms = member.last_seen_ms
        return seat

    def _remove(self, group: ConsumerGroup, members: Sequence[Member], *, notify: bool) -> Changes:
        if not members:
            return Changes()
        changes = Changes(changed=True)
        for member in members:
            del group.members[member.client_id]
            _add(group.connections, member.connection, -1)
            _count_content(group, member, -1)
        _came_or_went(group)
        for member in members:
            self._count.value -= 1
            self._unlink(member.connection, group.name, member.client_id)
            self._unaccount(group, member, changes.left)
        if not group.members:
            self.changes += 1
            del self._groups[group.name]
            changes.left += group.subscriptions.values()
        changes.notify = _to_notify(group, notify=notify)
        return changes

    def _unlink(self, connection: Peer, group_name: str, client_id: str) -> None:
        seats = self._by_connection.get(connection)
        if seats is not None:
            seats.discard((group_name, client_id))
            if not seats:
                del self._by_connection[connection]

    def check(self) -> None:
        """Walk the table; AssertionError at the first broken invariant."""
        seats = {
            (group.name, member.client_id, member.connection)
            for group in self._groups.values()
            for member in group.members.values()
        }
        links = {
            (name, client, conn) for conn, pairs in self._by_connection.items() for name, client in pairs
        }
        assert seats == links
        assert len(seats) == self._count.value
        assert all(group.members for group in self._groups.values())
        for group in self._groups.values():
            assert group.size == sum(one.size for one in group.subscriptions.values())
            assert group.bearer is not None or not group.size
            assert group.connections == Counter(member.connection for member in group.members.values())
            contents = Counter(member.subscribed for member in group.members.values() if member.topics)
            assert group.contents == contents
            assert {id(one) for one in contents} == {id(one) for one in group.contents}
        self._memory.check()


def _to_notify(group: ConsumerGroup, *, notify: bool) -> list[tuple[str, Peer]]:
    """Connections of the members; one that has several of them is told once, as by RocketMQ."""
    if not notify or group.is_broadcasting:
        return []
    return [(group.name, connection) for connection in group.connections]


def _came_or_went(group: ConsumerGroup) -> None:
    group.changes += 1
    group.ids = None


def _count_content(group: ConsumerGroup, member: Member, change: int) -> None:
    """A member subscribes to what it has now, or no more; who subscribes to nothing does not count."""
    if member.topics:
        _add(group.contents, member.subscribed, change)


def _add(counts: dict[K, int], key: K, change: int) -> None:
    count = counts.get(key, 0) + change
    if count:
        counts[key] = count
    else:
        del counts[key]


def subscription_size(data: SubscriptionData) -> int:
    """Bytes that a subscription of a group takes."""
    texts = len(data.topic) + len(data.sub_string) + len(data.expression_type or "")
    tags = sum([TAG_SIZE + 2 * len(tag) for tag in data.tags_set])
    return SUBSCRIPTION_SIZE + 2 * texts + tags + 3 * CODE_SIZE * len(data.code_set)


def _new_conflict(group: ConsumerGroup, member: Member) -> Conflict | None:
    """A member that subscribes otherwise than this one, once until they agree again."""
    if len(group.contents) == (member.subscribed in group.contents):
        group.conflict_reported = False
        return None
    if group.conflict_reported:
        return None
    group.conflict_reported = True
    other = next(
        other
        for other in group.members.values()
        if other.topics and other.subscribed is not member.subscribed
    )
    mine, theirs = member.topics, other.topics
    differ = (topic for topic in mine if mine[topic] != theirs.get(topic))
    missing = (topic for topic in theirs if topic not in mine)
    topics = sorted(islice(chain(differ, missing), CONFLICT_TOPICS_MAX))
    return Conflict(group.name, member.client_id, other.client_id, tuple(topics))
