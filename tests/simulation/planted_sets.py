"""Faults put into what sets of brokers do together, to prove that simulations of sets find such ones.

As in `planted`, a part of the product is replaced while a simulation runs.
"""

from collections.abc import Callable
from typing import Any, Final

from aerobee_broker.broker import Broker
from aerobee_broker.election.seat import Seat, Tenure
from aerobee_broker.replication.confirmed import ConfirmedByMaster
from aerobee_broker.replication.replicas import Replicas
from aerobee_broker.replication.taking import TakingLink
from aerobee_proto.ha import OFFSET_MAX
from aerobee_store.replicas.epochs import EpochFile
from aerobee_store.terms.cuts import START_OVER

__all__ = ["OF_SETS"]

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


def _lease_without_a_clock() -> list[Change]:
    """A mastership ends when the register says so, and not before: not for one who slept through its lease."""
    return [(Tenure, "holds", lambda self, now: not self.is_over)]


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


OF_SETS: Final[dict[str, Callable[[], list[Change]]]] = {
    "acknowledged before slaves": _acknowledged_before_slaves,
    "reported before the disk": _reported_before_the_disk,
    "sent counts as confirmed": _sent_counts_as_confirmed,
    "one in sync is enough": _one_in_sync_is_enough,
    "shown by slaves before it is confirmed": _shown_by_slaves_before_it_is_confirmed,
    "no truncation": _no_truncation,
    "truncation too far": _truncation_too_far,
    "stale lease": _stale_lease,
    "lease without a clock": _lease_without_a_clock,
    "shrunk before confirmed": _shrunk_before_confirmed,
    "promoted out of sync": _promoted_out_of_sync,
    "epoch in memory": _epoch_in_memory,
}
