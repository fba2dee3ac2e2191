"""Official producers and consumers move messages through our nameserver and broker: none lost, none altered.

Sender and receiver each report counts and order-free sums over everything that a message carries (topic, tag,
key, properties, flag, body); Traffic.java defines them.
"""

from __future__ import annotations

from typing import Any

import pytest

import official
from clusters import Cluster
from plain_remoting import consumer_offset, make_topic, max_offset
from traffic import ByTag, add_up, by_tag

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC, QUEUES = "Traffic", 4
MODES = "sync,async,oneway,batch"
EACH = 2_500  # 4 modes x 2 header codecs x 2,500 = 20,000 messages
CODECS = ["JSON", "ROCKETMQ"]


@pytest.fixture(scope="module")
def sent(cluster: Cluster) -> ByTag:
    """All 20,000 messages sent, while a push consumer with a filter was waiting for them."""
    make_topic(cluster.nameserver.address, cluster.broker.address, TOPIC, queues=QUEUES)
    expect = expected("TagA")
    with official.start_judge("push", **reader(cluster, "push-filter", "TagA || TagC", expect)) as push:
        push.wait_line(r"^READY", 60)
        reports = [
            official.judge("send", codec=codec, **where(cluster), modes=MODES, each=EACH, run=f"run-{codec}")
            for codec in CODECS
        ]
        received = official.result_of(push)
    total: ByTag = {}
    for report in reports:
        assert (report["failed"], report.get("firstFailure")) == (0, None)
        assert report["distinct"] == 4 * EACH
        total = add_up(total, by_tag(report))
    check(received, {"TagA": total["TagA"]})
    return total


def test_each_way_of_sending_stores_every_message_once(cluster: Cluster, sent: ByTag) -> None:
    assert {tag: count for tag, (count, _) in sent.items()} == {
        "TagA": expected("TagA"),
        "TagB": expected("TagB"),
    }
    offsets = [max_offset(cluster.broker.address, TOPIC, queue) for queue in range(QUEUES)]
    assert sum(offsets) == 2 * 4 * EACH


@pytest.mark.parametrize("codec", CODECS)
def test_lite_pull_with_a_filter_gets_exactly_the_tag(cluster: Cluster, sent: ByTag, codec: str) -> None:
    args = reader(cluster, f"lite-filter-{codec}", "TagB", expected("TagB"))
    check(official.judge("lite", codec=codec, **args), {"TagB": sent["TagB"]})


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("command", ["push", "lite"])
def test_a_consumer_of_everything_gets_everything_and_leaves_its_offset(
    cluster: Cluster, sent: ByTag, command: str, codec: str
) -> None:
    group = f"{command}-all-{codec}"
    check(official.judge(command, codec=codec, **reader(cluster, group, "*", 8 * EACH)), sent)
    address = cluster.broker.address
    kept = [consumer_offset(address, group, TOPIC, queue) for queue in range(QUEUES)]
    assert kept == [max_offset(address, TOPIC, queue) for queue in range(QUEUES)]


def test_a_topic_is_made_by_its_first_message(cluster: Cluster) -> None:
    """Nobody created the topic: the client takes the route of TBW102, the broker makes it on the first send."""
    report = official.judge("send", **where(cluster, "MadeBySending"), modes="sync", each=100, run="auto")
    assert (report["failed"], report.get("firstFailure")) == (0, None)
    args = reader(cluster, "auto", "*", 100, topic="MadeBySending")
    check(official.judge("lite", **args), by_tag(report))


def where(cluster: Cluster, topic: str = TOPIC) -> dict[str, Any]:
    return {"namesrv": cluster.nameserver.address, "topic": topic}


def reader(cluster: Cluster, group: str, expression: str, expect: int, topic: str = TOPIC) -> dict[str, Any]:
    return {**where(cluster, topic), "group": group, "filter": expression, "expect": expect, "seconds": 60}


def expected(tag: str) -> int:
    """How many of the 20,000 messages have the tag: each third of a mode's messages is TagB."""
    third = len(range(0, EACH, 3))
    return 8 * (third if tag == "TagB" else EACH - third)


def check(received: dict[str, Any], sent: ByTag) -> None:
    """What a consumer reports is what was sent: same counts, same sums, each message once and at its own place."""
    assert by_tag(received) == sent
    assert (received["duplicates"], received["placesReused"], received["complete"]) == (0, 0, True)
