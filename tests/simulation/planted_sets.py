"""Faults put into what sets of brokers do together, to prove that simulations of sets find such ones.

As in `planted`, a part of the product is replaced while a simulation runs.
"""

import time
from collections.abc import Callable
from typing import Any, Final

from aerobee_broker.broker import Broker
from aerobee_broker.catalog.consumer_offsets import ConsumerOffsets
from aerobee_broker.election import election, in_sync
from aerobee_broker.election.election import Election
from aerobee_broker.election.seat import Seat, Tenure
from aerobee_broker.replication.confirmed import ConfirmedByMaster
from aerobee_broker.replication.giving import GivingLink
from aerobee_broker.replication.news import TableNews
from aerobee_broker.replication.replicas import Replicas
from aerobee_broker.replication.taking import TakingLink
from aerobee_proto.ha import OFFSET_MAX, encode_confirmed
from aerobee_store.recovery.recovery import _Recovery
from aerobee_store.replicas.epochs import EpochFile
from aerobee_store.terms.cuts import START_OVER
from simulation.world import EPOCH_MS

__all__ = ["OF_SETS", "RARE", "SETS_FOUND_BY"]

# What is replaced: its owner, the name there, and what takes its place.
Change = tuple[Any, str, Any]


def _acknowledged_before_slaves() -> list[Change]:
    def reached(self: Any) -> int:
        end: int = self._end_offset()
        return end

    return [(Replicas, "_reached_by_count", reached), (Replicas, "_reached_by_members", reached)]


def _reported_before_the_disk() -> list[Change]:
    """A slave says that it has what is in its memory."""

    def report(self: Any, now: float) -> bytes:
        end = self._log.end_offset
        said: bytes = self._report(end, now) if end > self._reported else b""
        return said

    return [(TakingLink, "report", report)]


def _sent_counts_as_confirmed() -> list[Change]:
    """What has left for a slave counts as what the slave has."""

    def reached(self: Any) -> int:
        offsets: list[int] = [self._end_offset()]
        for member in self._waited_for or ():
            replica = self.of_member(member)
            offsets.append(0 if replica is None else replica.link.next_offset)
        return min(offsets)

    return [
        (Replicas, "_reached_by_count", lambda self: self._end_offset()),
        (Replicas, "_reached_by_members", reached),
    ]


def _one_in_sync_is_enough() -> list[Change]:
    """The first member that has it, not the last."""

    def end_of(self: Any) -> int:
        end: int = self._end_offset()
        return end

    def reached(self: Any) -> int:
        found = [self.of_member(member) for member in self._waited_for or ()]
        offsets: list[int] = [one.link.acked_offset for one in found if one is not None]
        return max(offsets, default=0) if found else end_of(self)

    return [(Replicas, "_reached_by_members", reached)]


def _shown_by_slaves_before_it_is_confirmed() -> list[Change]:
    """A slave shows what it has, whatever its master says of its readers."""

    def began(self: Any, *, says_confirmed: bool) -> None:
        self.offset = OFFSET_MAX
        self._on_moved()

    return [(ConfirmedByMaster, "link_began", began), (ConfirmedByMaster, "said", lambda self, offset: None)]


def _old_tail_shown_at_once() -> list[Change]:
    """A new master shows all that its log has when it begins."""
    held_back = getattr(_Recovery, "_held_back")  # noqa: B009
    return [
        (_Recovery, "_held_back", lambda self: held_back(self) if self._config.is_copy else None),
    ]


def _too_much_told_as_confirmed() -> list[Change]:
    """A master tells its slaves that readers may see all of its log."""

    def news(self: Any) -> bytes:
        end = self._log.end_offset
        if not self.says_confirmed or end <= self._said:
            return b""
        self._said = end
        return encode_confirmed(end)

    return [(GivingLink, "_news", news)]


def _offsets_merged_backwards() -> list[Change]:
    """A slave takes its master's offsets, also where groups are further on here."""
    following = ConsumerOffsets.following

    def backwards(self: Any, theirs: Any) -> Any:
        if self._own:
            self._own.clear()
        return following(self, theirs)

    return [(ConsumerOffsets, "following", backwards)]


def _of_a_new_master(forget: Callable[[Any], None]) -> list[Change]:
    """What is done to the parts of a slave that becomes the master, before they run."""
    start = getattr(Broker, "_start_masters_tasks")  # noqa: B009

    def forgetful(self: Any, parts: Any) -> None:
        if parts.offsets.was_copy:
            forget(parts)
        start(self, parts)

    return [(Broker, "_start_masters_tasks", forgetful)]


def _delays_forgotten() -> list[Change]:
    """A new master takes what waits in delay levels for delivered."""

    def forget(parts: Any) -> None:
        for level in getattr(parts.delays, "_levels").values():  # noqa: B009
            level.offset = getattr(parts.delays, "_range")(level)[1]  # noqa: B009

    return _of_a_new_master(forget)


def _timers_forgotten() -> list[Change]:
    """A new master takes timer messages that it has not looked at for delivered."""

    def forget(parts: Any) -> None:
        if parts.timers is not None:
            parts.timers.files.queue_offset = getattr(parts.timers, "_range")()[1]  # noqa: B009

    return _of_a_new_master(forget)


def _no_truncation() -> list[Change]:
    """A log that has parted from its master's stays as it is."""
    return [(Broker, "_cut_asked", lambda self, offset: None)]


def _truncation_too_far() -> list[Change]:
    """A log that has parted from its master's begins anew."""
    ask = getattr(Broker, "_cut_asked")  # noqa: B009
    return [(Broker, "_cut_asked", lambda self, offset: ask(self, START_OVER))]


def _stale_lease() -> list[Change]:
    """A lease is counted on for some time after it may have lapsed."""
    leased = Seat.leased
    return [(Seat, "leased", lambda self, lease, until: leased(self, lease, until + 1.0))]


def _lease_without_drift() -> list[Change]:
    """A lease is counted on to its last moment, as if all clocks went alike."""
    return [(election, "DRIFT", 0.0)]


def _lease_by_the_wall_clock() -> list[Change]:
    """A lease is counted by the clock that people set."""
    init = Election.__init__

    def wall_clock() -> float:
        return time.time() - EPOCH_MS / 1000

    return [
        (
            Election,
            "__init__",
            lambda self, *rest, **named: init(self, *rest, **{**named, "clock": wall_clock}),
        )
    ]


def _lost_fence() -> list[Change]:
    """An answer says that this was the master when its life began."""
    seated = getattr(Broker, "_is_seated").fget  # noqa: B009
    return [(Broker, "_is_seated", property(lambda self: None if seated(self) is None else lambda: True))]


def _lost_fence_and_role() -> list[Change]:
    """The same, and a master stays one until it is stopped."""
    role = getattr(Election, "_role")  # noqa: B009
    return [
        *_lost_fence(),
        (Election, "_role", lambda self, before: before if before.is_master else role(self, before)),
    ]


def _lease_without_a_clock() -> list[Change]:
    """A mastership ends when the register says so, and not before: not for one who slept through its lease."""
    return [(Tenure, "holds", lambda self, now: not self.is_over)]


def _taken_without_conditions() -> list[Change]:
    """Whoever finds the seat empty takes it, whoever has taken it since."""
    seated = getattr(Seat, "_seated")  # noqa: B009

    def careless(self: Any, *arguments: Any) -> Any:
        return seated(self, *arguments)._replace(conditions={})

    return [(Seat, "_seated", careless)]


def _epoch_not_raised() -> list[Change]:
    """A new master goes on with the epoch of the old one."""
    seated = getattr(Seat, "_seated")  # noqa: B009

    def same(self: Any, kind: str, view: Any, epoch: int, *rest: Any) -> Any:
        return seated(self, kind, view, epoch - (kind == "take"), *rest)

    return [(Seat, "_seated", same)]


def _shrunk_before_confirmed() -> list[Change]:
    """Who is to leave is not waited for any more, whatever the register says."""

    def waited_for(self: Any) -> frozenset[int]:
        confirmed = frozenset(self.view.set.in_sync) if self.view and self.view.set else frozenset()
        newest: frozenset[int] = self._open[-1].in_sync if self._open else confirmed
        return newest - {self._me}

    return [(Seat, "waited_for", property(waited_for))]


def _promoted_out_of_sync() -> list[Change]:
    """Whoever runs takes an empty seat."""

    def take(self: Any, view: Any, facts: Any, now: float) -> Any:
        if view.set is None or view.master is not None:
            return None
        return self._seated("take", view, view.set.epoch + 1, {self._me: facts.store}, {})

    return [(Seat, "_take", take)]


def _epoch_in_memory() -> list[Change]:
    """Epochs are not written to the disk."""
    return [(EpochFile, "_save", lambda self, entries: setattr(self, "entries", entries))]


def _older_etcd_trusted() -> list[Change]:
    """Whatever etcd says counts, whatever it has said before."""
    return [
        (Seat, "_went_back", lambda self, view: False),
        (Seat, "_forgot", lambda self, view: False),
    ]


def _tables_answered_before_slaves() -> list[Change]:
    """A change of topics or groups is answered as soon as it is in the master's own file."""

    async def taken(_self: Any, *, offsets: bool = False) -> None:
        del offsets

    return [(TableNews, "taken", taken)]


def _in_sync_without_tables() -> list[Change]:
    """A member that has all of the log is in sync, whatever it has of topics and groups."""
    return [(in_sync, "TABLES_S", 0.0)]


def _slave_counted_twice() -> list[Change]:
    """By the connection that it has, and by one that is half open."""
    return [(Replicas, "_is_same", lambda self, one, other: False)]


OF_SETS: Final[dict[str, Callable[[], list[Change]]]] = {
    "acknowledged before slaves": _acknowledged_before_slaves,
    "reported before the disk": _reported_before_the_disk,
    "sent counts as confirmed": _sent_counts_as_confirmed,
    "one in sync is enough": _one_in_sync_is_enough,
    "shown by slaves before it is confirmed": _shown_by_slaves_before_it_is_confirmed,
    "old tail shown at once": _old_tail_shown_at_once,
    "too much told as confirmed": _too_much_told_as_confirmed,
    "offsets merged backwards": _offsets_merged_backwards,
    "delays forgotten": _delays_forgotten,
    "timers forgotten": _timers_forgotten,
    "no truncation": _no_truncation,
    "truncation too far": _truncation_too_far,
    "stale lease": _stale_lease,
    "lease without drift": _lease_without_drift,
    "lease by the wall clock": _lease_by_the_wall_clock,
    "lease without a clock": _lease_without_a_clock,
    "lost fence": _lost_fence,
    "lost fence and role": _lost_fence_and_role,
    "taken without conditions": _taken_without_conditions,
    "epoch not raised": _epoch_not_raised,
    "shrunk before confirmed": _shrunk_before_confirmed,
    "promoted out of sync": _promoted_out_of_sync,
    "epoch in memory": _epoch_in_memory,
    "older etcd trusted": _older_etcd_trusted,
    "slave counted twice": _slave_counted_twice,
    "tables answered before slaves": _tables_answered_before_slaves,
    "in sync without tables": _in_sync_without_tables,
}

# These show in one of a hundred seeds or more: who looks for each fault leaves them out, and they are searched by name.
RARE: Final = frozenset({"lost fence", "older etcd trusted", "slave counted twice", "in sync without tables"})

# The scenario in which each of them shows, and the seed that found it first when it was looked for last: a seed is
# another run after each change of the product.
SETS_FOUND_BY: Final[dict[str, tuple[str, int]]] = {
    "acknowledged before slaves": ("pair", 3),
    "reported before the disk": ("pair", 3),
    "offsets merged backwards": ("pair", 1),
    "delays forgotten": ("pair", 19),
    "timers forgotten": ("election", 14),
    "sent counts as confirmed": ("election", 1),
    "one in sync is enough": ("election", 1),
    "shown by slaves before it is confirmed": ("election", 4),
    "old tail shown at once": ("election", 16),
    "too much told as confirmed": ("election", 4),
    "no truncation": ("election", 10),
    "truncation too far": ("election", 10),
    "stale lease": ("election", 5),
    "lease without drift": ("election", 38),
    "lease by the wall clock": ("election", 28),
    "lease without a clock": ("election", 5),
    "lost fence": ("election", 145),
    "lost fence and role": ("election", 4),
    "taken without conditions": ("election", 4),
    "epoch not raised": ("election", 13),
    "shrunk before confirmed": ("election", 2),
    "promoted out of sync": ("election", 30),
    "epoch in memory": ("election", 1),
    "older etcd trusted": ("election", 151),
    "slave counted twice": ("pair", 549),
    "tables answered before slaves": ("election", 35),
    "in sync without tables": ("election", 527),
}
