"""The official admin client and mqadmin against our nameserver and broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import official
from admin_shell import AdminShell
from clusters import Cluster
from plain_remoting import wait_route

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

BODIES = [f"body {i}" for i in range(10)]


@pytest.mark.parametrize("codec", ["JSON", "ROCKETMQ"])
def test_the_admin_client_makes_topics_and_groups_and_finds_messages(cluster: Cluster, codec: str) -> None:
    address = cluster.nameserver.address
    found = official.judge(
        "admin", codec=codec, namesrv=address, topic=f"Admin{codec}", group=f"group-{codec}"
    )
    assert found.pop("version")
    assert found == {
        "clusters": {"DefaultCluster": ["broker-a"]},
        "routeQueues": [6, 6, 6],
        "routeBroker": {"0": cluster.broker.address},
        "listed": True,
        "kept": [6, 6, 6],
        "groupRetries": 7,
        "groupListed": True,
        "groupListedAfterDelete": False,
        "byShared": 10,
        "byKey": BODIES,
        "byId": BODIES,
        "byUniqueKey": BODIES,
        "byOtherTime": 0,
        "byUnknownKey": 0,
        "queues": 6,
        "messages": 10,
        "messagesByTime": 10,
        "topicKeptAfterDelete": False,
    }


@pytest.fixture(scope="module")
def mqadmin(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminShell]:
    with AdminShell(cluster.nameserver.address, tmp_path_factory.mktemp("mqadmin")) as shell:
        yield shell


def test_mqadmin_makes_and_lists_topics(cluster: Cluster, mqadmin: AdminShell) -> None:
    made = mqadmin.run("updateTopic", "-c", "DefaultCluster", "-t", "ByMqadmin", "-r", "3", "-w", "3")
    assert "success" in made
    wait_route(cluster.nameserver.address, "ByMqadmin", "broker-a")
    listed = mqadmin.run("topicList").split()
    assert {"ByMqadmin", "TBW102", "DefaultCluster", "broker-a"} <= set(listed)
    route = "".join(mqadmin.run("topicRoute", "-t", "ByMqadmin").split())
    assert '"readQueueNums":3' in route
    assert f'0:"{cluster.broker.address}"' in route
    status = mqadmin.run("topicStatus", "-t", "ByMqadmin")
    rows = [line.split()[:4] for line in status.splitlines() if line.startswith("broker-a")]
    assert rows == [["broker-a", str(queue), "0", "0"] for queue in range(3)]


def test_mqadmin_shows_the_cluster_and_the_broker(cluster: Cluster, mqadmin: AdminShell) -> None:
    listed = mqadmin.run("clusterList")
    rows = [line.split()[:4] for line in listed.splitlines() if not line.startswith("#")]
    assert ["DefaultCluster", "broker-a", "0", cluster.broker.address] in rows
    status = mqadmin.run("brokerStatus", "-b", cluster.broker.address)
    assert "putTps" in status
    assert "commitLogMaxOffset" in status
