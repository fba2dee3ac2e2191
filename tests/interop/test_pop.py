"""POP judged by the official client: the push consumer that lets the broker assign, and the calls of the proxy."""

from __future__ import annotations

import time
from typing import Any

import pytest

import official
from clusters import Cluster
from plain_remoting import call, make_topic

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

QUEUES = 4
SEND_MESSAGE = 10


def where(cluster: Cluster, topic: str, group: str) -> dict[str, Any]:
    return {
        "namesrv": cluster.nameserver.address,
        "broker": cluster.broker.address,
        "topic": topic,
        "group": group,
    }


def filled(cluster: Cluster, topic: str, count: int) -> None:
    """A topic with `count` messages, spread over its queues."""
    make_topic(cluster.nameserver.address, cluster.broker.address, topic, queues=QUEUES)
    for i in range(count):
        fields = {
            "producerGroup": "p",
            "topic": topic,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": str(i % QUEUES),
            "sysFlag": "0",
            "bornTimestamp": str(time.time_ns() // 1_000_000),
            "flag": "0",
        }
        answer, _ = call(cluster.broker.address, SEND_MESSAGE, fields, b"%d" % i)
        assert answer["code"] == 0


def test_a_push_consumer_that_pops_gets_everything_and_again_what_it_gave_back(cluster: Cluster) -> None:
    filled(cluster, "Pushed", 200)
    found = official.judge("pop-push", **where(cluster, "Pushed", "poppers"), expect=200, failing=20)
    assert (found["complete"], found["distinct"], found["popped"]) == (True, 200, True)
    given_back = found["deliveries"] - 200
    assert 0 < given_back < 40
    assert found["brought"] == ["Pushed 1"]


def test_the_calls_of_the_proxy(cluster: Cluster) -> None:
    filled(cluster, "Proxied", 40)
    found = official.judge("pop-api", **where(cluster, "Proxied", "proxied"), expect=40)
    assert (found["first"], found["again"]) == (40, 10)
    assert found["statuses"] == ["OK"]
    assert found["times"] == ["Proxied 1"]
    assert found["rest"] == "POLLING_NOT_FOUND"
    assert found["notified"] is False


def test_in_order_as_the_proxy_asks_for_it(cluster: Cluster) -> None:
    filled(cluster, "Ordered", 80)
    found = official.judge("pop-ordered", **where(cluster, "Ordered", "ordered"), expect=80)
    assert (found["received"], found["rising"], found["blocked"]) == (80, True, True)
    assert set(found["times"]) == {0, 1}
