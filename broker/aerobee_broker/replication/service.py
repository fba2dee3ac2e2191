"""Replication of one broker: a master that gives its log, or a slave that follows one.

Touches  nothing but through its parts.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from aerobee_broker.replication.following import Follower
from aerobee_broker.replication.giving_server import GivingServer
from aerobee_broker.replication.metadata import MetadataSync
from aerobee_broker.replication.news import TableNews
from aerobee_broker.replication.replicas import Replicas
from aerobee_proto.bodies import HaStatus

__all__ = ["MasterSide", "ReplicationStatistics", "SlaveSide"]


@dataclass(slots=True, frozen=True)
class ReplicationStatistics:
    """How copies stand, named as in the `broker.stats` line."""

    slaves: int  # of a master, connected
    slaves_in_sync: int
    slave_behind_bytes: int  # of the one that is furthest behind
    master_linked: int  # of a slave: 1 while it follows its master; a master has 1
    master_ahead_bytes: int  # of a slave: what it has still to get, as far as it knows


class MasterSide:
    """What a master does for its slaves."""

    is_linked = True

    def __init__(
        self, replicas: Replicas, server: GivingServer, end_offset: Callable[[], int], news: TableNews
    ) -> None:
        self.replicas = replicas
        self.news = news
        self.server = server
        self._end_offset = end_offset

    @property
    def work(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What runs while the broker does, by name."""
        return {}

    def grew(self) -> None:
        """The log has grown, or is safer than before."""
        self.server.grew()

    def master_found(self, ha_addr: str, addr: str) -> None:
        """A master has none."""

    async def level(self, end_offset: int) -> None:
        """A master follows nobody."""

    def tables_of(self, member: int) -> tuple[int, int]:
        """Numbers of the last change of the tables that a slave has, and that there was; the same of one that does not
        ask for news."""
        replica = self.replicas.of_member(member)
        return (0, 0) if replica is not None and not replica.follows_news else self.news.tables_of(member)

    async def taken(self, *, offsets: bool = False) -> None:
        """Return when the slaves that sends wait for have the tables as they are now. RequestError as TableNews."""
        await self.news.taken(offsets=offsets)

    @property
    def standing(self) -> Mapping[str, str]:
        """What operators see of a master besides: who is in sync, if all slaves have said who they are."""
        numbers = [one.member for one in self.replicas.connected if self.replicas.is_in_sync(one)]
        known = [number for number in numbers if number is not None]
        return {"inSyncMembers": ",".join(map(str, sorted(known)))} if len(known) == len(numbers) else {}

    def status(self) -> HaStatus:
        """What 907 shows."""
        return HaStatus(
            ha_connection_info=self.replicas.status(),
            in_sync_slave_nums=self.replicas.in_sync_count,
            master=True,
            master_commit_log_max_offset=self._end_offset(),
        )

    def statistics(self) -> ReplicationStatistics:
        """For figures and metrics."""
        connected = self.replicas.connected
        behind = max((one.link.behind_bytes for one in connected), default=0)
        return ReplicationStatistics(len(connected), self.replicas.in_sync_count, behind, 1, 0)

    async def drain(self, seconds: float) -> None:
        """Let the slaves have the last bytes, for so long at most."""
        self.news.close()
        if seconds:
            await self.server.drain(seconds)

    async def close(self) -> None:
        """Hang up."""
        await self.server.close()


class SlaveSide:
    """What a slave does to have what its master has."""

    def __init__(self, follower: Follower, metadata: MetadataSync, own_addr: str) -> None:
        self.follower = follower
        self.metadata = metadata
        self._own_addr = own_addr

    @property
    def is_linked(self) -> bool:
        """Whether the master is there."""
        return self.follower.is_linked

    @property
    def work(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What runs while the broker does, by name."""
        return {"replication": self.follower.run, "replication tables": self.metadata.run}

    def grew(self) -> None:
        """The log has grown, or is safer than before."""
        self.follower.advanced()

    def master_found(self, ha_addr: str, addr: str) -> None:
        """A nameserver knows the master. One that names this broker has not noticed yet that it is a slave."""
        if addr == self._own_addr:
            return
        self.metadata.master_found(addr)
        self.follower.master_found(ha_addr)

    async def taken(self, *, offsets: bool = False) -> None:
        """Nobody waits for a slave's tables."""

    async def level(self, end_offset: int) -> None:
        """Return when this slave has the master's log up to there, and its tables. RemotingError, FormatError."""
        await self.metadata.level(end_offset)

    def status(self) -> HaStatus:
        """What 907 shows."""
        return HaStatus(ha_client_runtime_info=self.follower.status(), master=False)

    @property
    def standing(self) -> Mapping[str, str]:
        """What operators see of a slave: its master, and how far behind it is as far as it knows."""
        return {
            "linked": "true" if self.is_linked else "false",
            "masterAddr": self.metadata.master_addr,
            "masterEndOffset": str(self.metadata.master_end_offset),
        }

    def statistics(self) -> ReplicationStatistics:
        """For figures and metrics."""
        status = self.follower.status()
        ahead = max(0, self.metadata.master_end_offset - status.max_offset)
        return ReplicationStatistics(0, 0, 0, int(self.is_linked), ahead)

    async def drain(self, seconds: float) -> None:
        """A slave gives nothing."""

    async def close(self) -> None:
        """Hang up."""
        await self.metadata.close()
