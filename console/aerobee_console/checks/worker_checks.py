"""Checks of services of workers: all of them are there, and have the same topics.

Touches  brokers through the client, reading.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from aerobee_console.checks.checkup import Checkup
from aerobee_console.cluster.workers import Place, place_of
from aerobee_proto import names

if TYPE_CHECKING:
    from aerobee import ClientConfig

__all__ = ["check_workers"]

WRITE: Final = 2  # the bit of a topic's permission
NAMED_MAX: Final = 20


async def check_workers(
    checkup: Checkup, figures: Mapping[str, Mapping[str, str]], config: "ClientConfig"
) -> None:
    """`figures`: of each broker that answered, by name."""
    services: dict[str, dict[str, Place]] = {}
    for broker, table in figures.items():
        if (place := place_of(table)) is not None:
            services.setdefault(place.service, {})[broker] = place
    for service, workers in sorted(services.items()):
        if not _all_are_there(checkup, service, workers):
            continue
        await _check_topics(checkup, service, workers, config)


def _all_are_there(checkup: Checkup, service: str, workers: Mapping[str, Place]) -> bool:
    name, count = f"workers of {service}", max(place.of for place in workers.values())
    missing = sorted(set(range(1, count + 1)) - {place.number for place in workers.values()})
    if not missing:
        checkup.ok(name, f"all {count} are registered")
        return True
    shown = ", ".join(f"{service}-{number}" for number in missing[:NAMED_MAX])
    checkup.fault(
        name,
        f"{len(workers)} of {count} are registered; {shown} is missing",
        "the log of the service says why: `worker.left_down`, `worker.ended`, or the last lines of that worker",
    )
    return False


async def _check_topics(
    checkup: Checkup, service: str, workers: Mapping[str, Place], config: "ClientConfig"
) -> None:
    """A topic that a worker lacks is not balanced over all of them."""
    from aerobee import Client, ClientError

    try:
        async with Client(config=config) as client:
            tables = {worker: await client.admin.broker_topics(worker) for worker in workers}
    except ClientError as failed:
        checkup.fault(f"workers of {service}", str(failed), "the log of the service says more")
        return
    own = set(workers) | {service}
    shared = sorted(
        {
            topic
            for table in tables.values()
            for topic, settings in table.items()
            if settings.perm & WRITE and not _is_of_one(topic, own)
        }
    )
    lacking = {topic: [worker for worker in workers if topic not in tables[worker]] for topic in shared}
    found = {topic: missing for topic, missing in lacking.items() if missing}
    for topic, missing in list(found.items())[:NAMED_MAX]:
        checkup.note(
            f"topic {topic}",
            f"{', '.join(missing)} of service {service} lacks it: its messages go to the other workers alone",
            f"to have it on all: aerobee topic create {topic}",
        )
    if (more := len(found) - NAMED_MAX) > 0:
        checkup.note(f"workers of {service}", f"{more} more topics are not on all of them", "as above")


def _is_of_one(topic: str, brokers: set[str]) -> bool:
    """A topic that each broker has for itself, or that is there where a group has needed it."""
    return topic in brokers or names.is_internal_topic(topic) or names.is_system_topic(topic)
