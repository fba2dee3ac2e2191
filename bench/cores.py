"""Which core does what: the load and all that a benchmark does beside on one, the broker that is measured on another.

Touches  the affinity of this process's threads and of those it starts (Linux).

A broker with one event loop uses one core and a little; one with many threads uses all that it is given, the
generator's with them, and what a generator loses to it looks like a slow broker. So both have one core, whichever
broker it is. What it is given is less than the machine has: it says how long requests wait, not how many there can be.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Cores", "first_two"]


@dataclass(slots=True, frozen=True)
class Cores:
    """A core for the load, one for the broker."""

    load: int
    broker: int

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """What is started meanwhile runs on the broker's core, and counts one processor; afterwards all threads of
        this process are on the core for the load."""
        os.sched_setaffinity(0, {self.broker})
        try:
            yield
        finally:
            pin(os.getpid(), self.load)


def first_two() -> Cores | None:
    """The first two cores that this process may use; None where it has but one."""
    found = sorted(os.sched_getaffinity(0))
    return Cores(found[-1], found[0]) if len(found) > 1 else None


def pin(pid: int, core: int) -> None:
    """All threads of a process that there are now; those that they start follow them."""
    for task in (Path("/proc") / str(pid) / "task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), {core})
