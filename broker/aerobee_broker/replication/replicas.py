"""The slaves of this master: who they are, how far they are, and what a send may promise because of them.

Touches  nothing.

As a source of promises it stands for the slaves: everything is there that so many of them have as the settings want.

    copies that a send waits for    inSyncReplicas, this master among them; 1: nobody is waited for
    in sync                         connected, and less than haMaxGapNotInSync behind
    enableAutoInSyncReplicas        no more copies than are in sync, but minInSyncReplicas
    minInSyncReplicas               with fewer in sync, sends are refused before they are stored

In a set with an election the members in sync are those that the register names. Each of them is waited for, whichever
others have it, and inSyncReplicas copies at least.

Invariants
- `offset` never falls: what slaves have said they have, they have.
- A slave that has said who it is counts once, and only for what it has acknowledged by its newest connection: an older
  one may be half open, and its disk may have lost since what was acknowledged by it. (RocketMQ's slaves do not say it.)
- With an election: everything below `offset` is at every member that is waited for, also at one that comes later, as
  only who has all of it may be added.
"""

from collections.abc import Callable
from typing import Final

import structlog

from aerobee_broker.replication.giving import GivingLink
from aerobee_broker.settings.config import LiveConfig
from aerobee_proto.bodies import HaConnectionInfo
from aerobee_proto.codes import ResponseCode
from aerobee_store.faults.errors import TooFewCopies

__all__ = ["Replica", "Replicas"]

log = structlog.get_logger()


class Replica:
    """One connected slave. `member` and `store` are what it has said of itself; None and "": it has not.
    `follows_news`: it asks for news of the tables."""

    __slots__ = ("follows_news", "link", "member", "peer", "speed", "store")

    def __init__(
        self,
        link: GivingLink,
        peer: str,
        member: int | None = None,
        store: str = "",
        *,
        follows_news: bool = False,
    ) -> None:
        self.link = link
        self.peer = peer
        self.member = member
        self.store = store
        self.follows_news = follows_news
        self.speed = 0  # bytes a second, over the last second

    @property
    def host(self) -> str:
        """Its address without the port."""
        return self.peer.rpartition(":")[0]


class Replicas:
    """All connected slaves. All calls from the event loop."""

    late_code: Final[int] = ResponseCode.FLUSH_SLAVE_TIMEOUT

    def __init__(self, live: LiveConfig, end_offset: Callable[[], int], *, is_elected: bool = False) -> None:
        """`end_offset` is where the log ends. With `is_elected` an election says who is waited for; until it has said
        so nothing is where it has to be."""
        self._live = live
        self._is_elected = is_elected
        self._end_offset = end_offset
        self._connected: list[Replica] = []
        self._offset = 0
        # Of a set with an election: members that a send waits for, and those of them that the register names.
        self._waited_for: frozenset[int] | None = None
        self._in_sync: frozenset[int] = frozenset()
        self._is_alone = False  # nobody is waited for: whatever is appended is kept

    # --- who is there -----------------------------------------------------------------------------------------

    def joined(self, replica: Replica) -> list[Replica]:
        """A slave has connected. What it was before, by older connections, does not count any more, and is to go."""
        before = [one for one in self._connected if self._is_same(one, replica)]
        for one in before:
            self._connected.remove(one)
        self._connected.append(replica)
        return before

    def _is_same(self, one: Replica, other: Replica) -> bool:
        """Whether both are connections of one slave. Numbers are given once in a set with an election; elsewhere two
        slaves may have been given the same by mistake, and those of two hosts count both."""
        if one.member is None or one.member != other.member:
            return False
        return self._is_elected or (one.store, one.host) == (other.store, other.host)

    def left(self, replica: Replica) -> None:
        """Its connection is gone."""
        if replica in self._connected:
            self._connected.remove(replica)

    @property
    def connected(self) -> tuple[Replica, ...]:
        return tuple(self._connected)

    def of_member(self, member: int) -> Replica | None:
        """The connection of a member; of several that have been given one number that which has most."""
        found = [one for one in self._connected if one.member == member]
        return max(found, key=lambda one: one.link.acked_offset, default=None)

    def wait_for(self, waited_for: frozenset[int], in_sync: frozenset[int]) -> bool:
        """From now on each of these members has to have a send; `in_sync` are those that the register names. Without
        this master, both. Whoever is new here has everything below `offset`. Whether anything is new by it."""
        before, self._offset = (self._waited_for, self._in_sync), self.offset
        self._waited_for, self._in_sync = waited_for, in_sync
        self._is_alone = not waited_for and not self.needed
        return before != (waited_for, in_sync)

    def is_in_sync(self, replica: Replica) -> bool:
        """Whether it is near enough to count; with an election, whether the register names it."""
        link = replica.link
        if self._waited_for is not None:
            return link.has_begun and replica.member in self._in_sync
        return link.has_begun and link.behind_bytes < self._live.value.ha_max_gap_not_in_sync

    @property
    def in_sync_count(self) -> int:
        """Slaves in sync, without this master."""
        if self._waited_for is not None:
            return len(self._in_sync)
        return sum(map(self.is_in_sync, self._connected))

    def keepers(self) -> frozenset[int] | None:
        """Members that have to have a change of the tables before it is answered, if sends wait for slaves: those in
        sync that ask for news. None: an election has yet to say who is."""
        if self._waited_for is not None:
            return frozenset(member for member in self._waited_for if self._follows_news(member))
        if self._is_elected:
            return None
        if not self.needed:
            return frozenset()
        in_sync = [one for one in self._connected if one.follows_news and self.is_in_sync(one)]
        return frozenset(one.member for one in in_sync if one.member is not None)

    def _follows_news(self, member: int) -> bool:
        """Whether it asks for news; of one that is away nobody knows."""
        replica = self.of_member(member)
        return replica is None or replica.follows_news

    # --- promises ---------------------------------------------------------------------------------------------

    @property
    def needed(self) -> int:
        """Slaves that have to have a message before its sender is told so; with an election, how many at least."""
        config = self._live.value
        if not config.waits_for_replicas:
            return 0
        required = config.in_sync_replicas - 1
        if config.enable_auto_in_sync_replicas:
            return min(required, max(self.in_sync_count, config.min_in_sync_replicas - 1))
        return required

    def log_late(self, peer: str, message_count: int) -> None:
        """Say that these sends of a peer have waited too long for slaves."""
        log.warning(
            "replication.slaves_slow",
            peer=peer,
            message_count=message_count,
            connected=len(self._connected),
            needed=self.needed,
        )

    def timeout_ms(self) -> int:
        """Longest wait of a send for them."""
        return self._live.value.slave_timeout

    def request(self) -> None:
        """Nothing to do: what is appended is sent at once."""

    @property
    def offset(self) -> int:
        """Physical offset below which everything is where it has to be."""
        if self._is_alone:
            self._offset = self._end_offset()
        return self._offset

    def advanced(self) -> bool:
        """A slave has said something, or has left, or settings have changed; whether `offset` has moved by it."""
        reached = min(self._reached_by_count(), self._reached_by_members())
        if reached <= self._offset:
            return False
        self._offset = reached
        return True

    def _reached_by_count(self) -> int:
        needed = self.needed
        if not needed:
            return self._end_offset()
        if needed > len(self._connected):
            return 0
        return sorted((one.link.acked_offset for one in self._connected), reverse=True)[needed - 1]

    def _reached_by_members(self) -> int:
        if self._waited_for is None and self._is_elected:
            return 0
        reached = self._end_offset()
        for member in self._waited_for or ():
            replica = self.of_member(member)
            if replica is None:
                return 0
            reached = min(reached, replica.link.acked_offset)
        return reached

    def check_enough(self) -> None:
        """TooFewCopies when too few are in sync for anything to be taken."""
        least = self._live.value.min_in_sync_replicas
        if least > 1 and self.in_sync_count + 1 < least:
            raise TooFewCopies(self.in_sync_count + 1, least)

    # --- what operators see -----------------------------------------------------------------------------------

    def status(self) -> list[HaConnectionInfo]:
        """One line for each slave."""
        return [
            HaConnectionInfo(
                addr=replica.peer,
                diff=replica.link.behind_bytes,
                in_sync=self.is_in_sync(replica),
                slave_ack_offset=replica.link.acked_offset,
                transfer_from_where=replica.link.next_offset,
                transferred_byte_in_second=replica.speed,
            )
            for replica in self._connected
        ]
