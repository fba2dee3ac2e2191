"""Official push consumers of one group join and leave under load: none is missed, orderly ones stay in order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import official
from clusters import Cluster
from plain_remoting import make_topic
from programs import Program

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(180)]

QUEUES = 8
# From two consumers to four, and back to two; most queues change hands several times.
STEPS = "+ + - + - - + -"
PAUSE_MS = 1_500


def rebalancing(cluster: Cluster, topic: str, *, orderly: bool) -> Program:
    """A group at work; it reports when all has been said."""
    make_topic(cluster.nameserver.address, cluster.broker.address, topic, queues=QUEUES)
    settings = {
        "namesrv": cluster.nameserver.address,
        "topic": topic,
        "group": f"{topic}-group",
        "orderly": "true" if orderly else "false",
        "steps": STEPS,
        "pause": str(PAUSE_MS),
        "queues": str(QUEUES),
        "seconds": "30",
    }
    words = [word for name, value in settings.items() for word in (f"--{name}", value)]
    quiet = f"-Drmq.logback.configurationFile={official.JAVA_PROJECT / 'quiet-logback.xml'}"
    options = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", quiet]
    line = ["java", *options, "-cp", official.classpath(), "interop.Rebalance", *words]
    return Program("java rebalance", line)


@pytest.fixture(scope="module")
def groups(cluster: Cluster) -> Iterator[dict[str, Program]]:
    """Both groups at once, by their topics: between one step and the next there is little to do."""
    with (
        rebalancing(cluster, "Changing", orderly=False) as changing,
        rebalancing(cluster, "InOrder", orderly=True) as in_order,
    ):
        yield {"Changing": changing, "InOrder": in_order}


def test_every_message_reaches_a_group_that_changes(groups: dict[str, Program]) -> None:
    """At least once: what a leaving consumer had not committed comes again, to another one."""
    report = official.result_of(groups["Changing"])
    assert report["sent"] > 1_000
    assert report["seen"] == report["sent"]
    assert report["again"] < report["sent"] / 2


def test_an_orderly_group_that_changes_stays_in_order(groups: dict[str, Program]) -> None:
    """One consumer a queue at any time, and no number before the one below it."""
    report = official.result_of(groups["InOrder"])
    assert report["sent"] > 1_000
    assert report["seen"] == report["sent"]
    assert (report["skipped"], report["overlaps"]) == (0, 0)
