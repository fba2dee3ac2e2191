"""Who produces: clients per producer group, from heartbeats. Needed to reach them: check-backs and replies.

Touches  nothing.

Invariants
- A group without members does not exist.
- A client id is found under every group it is in; a newer connection of it takes the older one's place.
"""

from collections.abc import Iterable
from typing import Final

from aerobee_broker.members.clients import Member, MemberCount, member_size
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import LimitReached
from aerobee_remoting.peers.peer import Peer
from aerobee_remoting.peers.peer_memory import PeerMemory

__all__ = ["ProducerTable"]

PRODUCERS: Final = "members of producer groups"


class ProducerTable:
    """All producer groups. All calls from the event loop."""

    def __init__(
        self, *, members_max: int, members_per_connection_max: int, memory: PeerMemory | None = None
    ) -> None:
        self._memory = memory or PeerMemory()
        self._groups: dict[str, dict[str, Member]] = {}  # group -> client id -> member
        self._by_connection: dict[Peer, set[tuple[str, str]]] = {}  # (group, client id)
        self._groups_of_client: dict[str, set[str]] = {}
        self._turns: dict[str, int] = {}  # group -> how often it was asked for a connection
        self._count = MemberCount(members_max)
        self._per_connection_max = members_per_connection_max

    @property
    def member_count(self) -> int:
        return self._count.value

    def groups(self) -> list[str]:
        """Names of the groups that have members."""
        return list(self._groups)

    def members(self, group: str) -> list[Member]:
        """Members of a group; empty when nobody is online."""
        return list(self._groups.get(group, {}).values())

    def has_members(self, connection: Peer) -> bool:
        """Whether any member is reached over this connection."""
        return connection in self._by_connection

    def by_client_id(self, client_id: str) -> Peer | None:
        """A connection to the client, whatever its groups; None when it is not online."""
        for group in self._groups_of_client.get(client_id, ()):
            return self._groups[group][client_id].connection
        return None

    def next_connection(self, group: str) -> Peer | None:
        """A live connection of the group, another one each time; None when nobody is online."""
        members = [member for member in self.members(group) if not member.connection.is_closed]
        if not members:
            return None
        turn = self._turns.get(group, -1) + 1
        self._turns[group] = turn
        return members[turn % len(members)].connection

    def next_reader(self, group: str) -> Peer | None:
        """As `next_connection`, of those that read what they are sent."""
        for _ in self.members(group):
            connection = self.next_connection(group)
            if connection is not None and not connection.is_congested:
                return connection
        return None

    def register(self, group: str, member: Member) -> bool:
        """Take one group of a heartbeat; whether the client is new. RequestError SYSTEM_BUSY at a bound."""
        members = self._groups.get(group, {})
        seat = members.get(member.client_id)
        if seat is None:
            self._check_bounds(member.connection)
            self._memory.take(member.connection, PRODUCERS, member_size(member.client_id))
            self._groups.setdefault(group, {})[member.client_id] = member
            self._groups_of_client.setdefault(member.client_id, set()).add(group)
            self._count.value += 1
        else:
            if seat.connection is not member.connection:
                size = member_size(seat.client_id)
                self._memory.take(member.connection, PRODUCERS, size, of_sum=0)
                self._memory.give(seat.connection, PRODUCERS, size, of_sum=0)
                self._unlink(seat.connection, group, seat.client_id)
            seat.connection = member.connection
            seat.language, seat.version = member.language, member.version
            seat.last_seen_ms = member.last_seen_ms
        self._by_connection.setdefault(member.connection, set()).add((group, member.client_id))
        return seat is None

    def unregister(self, group: str, client_id: str) -> bool:
        """Remove a client that says good-bye; False when it was not there."""
        member = self._groups.get(group, {}).get(client_id)
        if member is None:
            return False
        self._remove(group, member)
        return True

    def connection_lost(self, connection: Peer) -> int:
        """Remove the members behind a connection; how many there were."""
        seats = sorted(self._by_connection.get(connection, ()))
        for group, client_id in seats:
            self._remove(group, self._groups[group][client_id])
        return len(seats)

    def expire(self, silent_since_ms: int) -> list[Peer]:
        """Remove members whose last heartbeat is older; their connections, to be closed."""
        silent = [
            (group, member)
            for group, members in self._groups.items()
            for member in members.values()
            if member.last_seen_ms < silent_since_ms
        ]
        for group, member in silent:
            self._remove(group, member)
        return [member.connection for _, member in silent]

    def all(self) -> Iterable[tuple[str, list[Member]]]:
        """Every group with its members, sorted by name."""
        return [(group, list(self._groups[group].values())) for group in sorted(self._groups)]

    def _check_bounds(self, connection: Peer) -> None:
        if self._count.is_full:
            raise LimitReached(
                ResponseCode.SYSTEM_BUSY,
                f"{self._count.limit} producers are registered already",
                "maxRegisteredClients",
            )
        if len(self._by_connection.get(connection, ())) >= self._per_connection_max:
            raise LimitReached(
                ResponseCode.SYSTEM_BUSY,
                f"{self._per_connection_max} producers are registered over this connection already",
                "maxClientsPerConnection",
            )

    def _remove(self, group: str, member: Member) -> None:
        members = self._groups[group]
        del members[member.client_id]
        if not members:
            del self._groups[group]
            self._turns.pop(group, None)
        groups = self._groups_of_client[member.client_id]
        groups.discard(group)
        if not groups:
            del self._groups_of_client[member.client_id]
        self._count.value -= 1
        self._memory.give(member.connection, PRODUCERS, member_size(member.client_id))
        self._unlink(member.connection, group, member.client_id)

    def _unlink(self, connection: Peer, group: str, client_id: str) -> None:
        seats = self._by_connection.get(connection)
        if seats is not None:
            seats.discard((group, client_id))
            if not seats:
                del self._by_connection[connection]

    def check(self) -> None:
        """Walk the table; AssertionError at the first broken invariant."""
        seats = {
            (group, client_id, member.connection)
            for group, members in self._groups.items()
            for client_id, member in members.items()
        }
        links = {
            (name, client, conn) for conn, pairs in self._by_connection.items() for name, client in pairs
        }
        assert seats == links
        assert len(seats) == self._count.value
        assert all(self._groups.values())
        assert {(c, g) for g, c, _ in seats} == {
            (c, g) for c, gs in self._groups_of_client.items() for g in gs
        }
