"""Who produces: clients per producer group, from heartbeats. Needed to reach them: check-backs and replies.

Touches  nothing.

Invariants
- A group without members does not exist.
- A client id is found under every group it is in; a newer connection of it takes the older one's place.
"""

from collections.abc import Callable
from typing import Final

from aerobee_broker.members.clients import Member, MemberCount, member_size
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import LimitReached
from aerobee_remoting.peers.peer import Peer
from aerobee_remoting.peers.peer_memory import PeerMemory
from aerobee_service.turns.slices import Steps, at_once

__all__ = ["ProducerTable"]

PRODUCERS: Final = "members of producer groups"
TRIED_MAX: Final = 64  # members who are looked at for one who can be asked
MEMBERS_A_STEP: Final = 64  # that are removed in one step; one takes some 3 us


class ProducerTable:
    """All producer groups. All calls from the event loop."""

    def __init__(
        self, *, members_max: int, members_per_connection_max: int, memory: PeerMemory | None = None
    ) -> None:
        self._memory = memory or PeerMemory()
        self._groups: dict[str, dict[str, Member]] = {}  # group -> client id -> member
        self._by_connection: dict[Peer, set[tuple[str, str]]] = {}  # (group, client id)
        self._groups_of_client: dict[str, set[str]] = {}
        # Group -> its members in a row, until one comes or goes, and the one who was chosen last.
        self._rows: dict[str, list[Member]] = {}
        self._turns: dict[str, int] = {}
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
        return self._choose(group, lambda connection: not connection.is_closed)

    def next_reader(self, group: str) -> Peer | None:
        """As `next_connection`, of those that read what they are sent."""
        return self._choose(
            group, lambda connection: not connection.is_closed and not connection.is_congested
        )

    def _choose(self, group: str, fits: Callable[[Peer], bool]) -> Peer | None:
        """The next one who fits, of TRIED_MAX: each open transaction asks, and a group may be large."""
        row = self._rows.get(group)
        if row is None:
            members = self._groups.get(group)
            if members is None:
                return None
            row = self._rows[group] = list(members.values())
        turn = self._turns.get(group, -1)
        for _ in range(min(len(row), TRIED_MAX)):
            turn = (turn + 1) % len(row)
            if fits(row[turn].connection):
                self._turns[group] = turn
                return row[turn].connection
        self._turns[group] = turn
        return None

    def register(self, group: str, member: Member) -> bool:
        """Take one group of a heartbeat; whether the client is new. RequestError SYSTEM_BUSY at a bound."""
        members = self._groups.get(group, {})
        seat = members.get(member.client_id)
        if seat is None:
            self._check_bounds(member.connection)
            self._memory.take(member.connection, PRODUCERS, member_size(member.client_id))
            self._groups.setdefault(group, {})[member.client_id] = member
            self._rows.pop(group, None)
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
        return at_once(self.expiry(silent_since_ms))

    def expiry(self, silent_since_ms: int) -> Steps[list[Peer]]:
        """As `expire`, in steps. Who is heard of meanwhile stays."""
        gone: list[Peer] = []
        for group in self.groups():
            silent = [member for member in self.members(group) if member.last_seen_ms < silent_since_ms]
            yield
            for number, member in enumerate(silent, 1):
                seat = self._groups.get(group, {}).get(member.client_id)
                if seat is member and member.last_seen_ms < silent_since_ms:
                    self._remove(group, member)
                    gone.append(member.connection)
                if number % MEMBERS_A_STEP == 0:
                    yield
        return gone

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
        self._rows.pop(group, None)
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
        assert all(row == self.members(group) for group, row in self._rows.items())
        assert {(c, g) for g, c, _ in seats} == {
            (c, g) for c, gs in self._groups_of_client.items() for g in gs
        }
