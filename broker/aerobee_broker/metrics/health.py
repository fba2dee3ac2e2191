"""Whether the broker is well, and if not, why: for probes and for people.

Touches  nothing; the disk's figures come in.
"""

from dataclasses import dataclass

from aerobee_broker.metrics.observed import Observed
from aerobee_store.disk.disk_space import DiskUse

__all__ = ["Check", "Health", "health_of"]


@dataclass(slots=True, frozen=True)
class Check:
    """One aspect. `live`: when it fails only a restart helps."""

    name: str
    ok: bool
    reason: str
    live: bool = False


@dataclass(slots=True, frozen=True)
class Health:
    """All checks of one moment."""

    checks: tuple[Check, ...]

    @property
    def is_live(self) -> bool:
        """False: the process has to be restarted."""
        return all(check.ok for check in self.checks if check.live)

    @property
    def is_ready(self) -> bool:
        """Whether clients are served as promised."""
        return all(check.ok for check in self.checks)

    def to_json(self, *, ok: bool) -> dict[str, object]:
        """What the HTTP port answers."""
        return {
            "status": "ok" if ok else "failing",
            "checks": {check.name: {"ok": check.ok, "reason": check.reason} for check in self.checks},
        }


def health_of(observed: Observed, disk: tuple[int, int]) -> Health:
    """The broker's health. `disk`: (total, free) bytes of the store's file system."""
    return Health((_store(observed), _disk(observed, disk), _nameservers(observed), _flush(observed)))


def _store(observed: Observed) -> Check:
    """A store that refuses writes stays so until a restart, unless the disk is only full."""
    reason = observed.store.not_writeable_reason
    if reason is None:
        return Check("store", True, "takes messages", live=True)
    return Check("store", False, f"takes no messages: {reason}", live="full" not in reason)


def _disk(observed: Observed, disk: tuple[int, int]) -> Check:
    total, free = disk
    used = DiskUse(total, free).used_percent
    limit = observed.live.value.disk_space_warning_level_ratio
    text = f"{used} % used, {free >> 20} MiB free (limit {limit} %)"
    return Check("disk", used <= limit, text)


def _nameservers(observed: Observed) -> Check:
    states = observed.nameservers()
    if not states:
        return Check("nameservers", True, "none configured (namesrvAddr): clients must know this broker")
    missing = [f"{state.addr}: {state.reason}" for state in states if not state.registered]
    count = len(states) - len(missing)
    text = "; ".join([f"registered at {count} of {len(states)}", *missing])
    return Check("nameservers", count > 0 or all(state.left_to_master for state in states), text)


def _flush(observed: Observed) -> Check:
    behind = observed.store.end_offset - observed.store.flushed_offset
    return Check("flush", True, f"{behind} bytes wait for the disk ({observed.live.value.flush_disk_type})")
