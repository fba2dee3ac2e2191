"""Faults put into what sets of brokers do together, to prove that simulations of sets find such ones.

As in `planted`, a part of the product is replaced while a simulation runs.
"""

from collections.abc import Callable
from typing import Any, Final

from aerobee_broker.broker import Broker
from aerobee_broker.replication.replicas import Replicas
from aerobee_broker.replication.taking import TakingLink

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


def _no_truncation() -> list[Change]:
    """A log that has parted from its master's stays as it is."""
    return [(Broker, "_cut_asked", lambda self, offset: None)]


OF_SETS: Final[dict[str, Callable[[], list[Change]]]] = {
    "acknowledged before slaves": _acknowledged_before_slaves,
    "reported before the disk": _reported_before_the_disk,
    "no truncation": _no_truncation,
}
