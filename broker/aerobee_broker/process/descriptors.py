"""Who may have how many of the descriptors that this process may open: connections, and the files of the store.

Touches  the process's limit of open files.

Invariants
- Connections never take what the store needs: at most half of all, and what they may have is settled at the start.
- The store closes files of queues that are not in use before it takes more than its share.
"""

import resource
from contextlib import suppress
from typing import Final, NamedTuple

import structlog

from aerobee_store.faults.limits import maps_max, open_files_max

__all__ = ["DescriptorPlan", "descriptors_of_process", "plan_descriptors", "raise_open_files_limit"]

log = structlog.get_logger()

# Standard streams, event loop, listeners, nameservers, metrics, config files while they are written, libraries.
OTHERS: Final = 96
STORE_MIN: Final = 32
MAPS_OF_OTHERS: Final = 4096  # libraries, stacks of threads, pieces of memory


class DescriptorPlan(NamedTuple):
    """How many connections there may be, and how many descriptors and maps the store may use."""

    connections: int
    store_files: int
    store_maps: int


def plan_descriptors(files: int, maps: int, connections_expected: int) -> DescriptorPlan:
    """Share out `files` descriptors and `maps` maps."""
    connections = max(min(connections_expected, files // 2), 1)
    return DescriptorPlan(
        connections,
        max(files - connections - OTHERS, STORE_MIN),
        max(maps - MAPS_OF_OTHERS, maps // 2),
    )


def descriptors_of_process(connections_expected: int, *, was_asked_for: bool) -> DescriptorPlan:
    """The plan for this process as its limits are now; tells when there may be fewer connections than wanted.

    `was_asked_for`: somebody has set that number; it is not the default.
    """
    files = open_files_max()
    plan = plan_descriptors(files, maps_max(), connections_expected)
    if plan.connections < connections_expected:
        facts = {
            "wanted": connections_expected,
            "connections": plan.connections,
            "open_files_limit": files,
            "way_out": "raise the limit of open files (LimitNOFILE of systemd, ulimit -n) to twice what is wanted",
        }
        if was_asked_for:
            log.warning("broker.connections_limited", **facts)
        else:
            log.info("broker.connections_limited", **facts)
    return plan


def raise_open_files_limit() -> None:
    """Every file of the store and every connection takes a descriptor: use all that may be had, as the JVM does."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # more than the system allows to anybody
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
