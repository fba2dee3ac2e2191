"""The official mqadmin, command by command, against our nameserver and broker: each works and prints what is so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import official
from admin_shell import AdminShell
from clusters import KINDS, Cluster, start_cluster
from plain_remoting import call, consumer_offset, make_topic, max_offset, wait_route, wait_until
from programs import Program

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

CLUSTER, BROKER, TOPIC, GROUP = "DefaultCluster", "broker-a", "Orders", "readers"
QUEUES, EACH = 2, 5
GET_CONSUMER_STATUS = 223
BODIES = [f"body {number}" for number in range(QUEUES * EACH)]
FAILURE = re.compile(r"^(org|java)\.[\w.]+Exception\b", re.MULTILINE)  # commands print what they could not do


@dataclass(slots=True)
class Scene:
    """A cluster with ten messages in two queues, which the group has consumed and whose member is online."""

    cluster: Cluster
    shell: AdminShell
    member: Program
    ids: list[str] = field(default_factory=list)  # unique keys of the messages, in the order of BODIES

    @property
    def broker(self) -> str:
        return self.cluster.broker.address

    def run(self, *words: str) -> str:
        """A command that must not fail."""
        said = self.shell.run(*words)
        assert not FAILURE.search(said), said
        return said

    def rows(self, *words: str) -> list[list[str]]:
        lines = self.run(*words).splitlines()
        return [line.split() for line in lines if line.strip() and not line.startswith("#")]

    def client_id(self) -> str:
        return next(row[0] for row in self.rows("consumerConnection", "-g", GROUP) if "@" in row[0])

    def committed(self, group: str = GROUP, topic: str = TOPIC) -> list[int | None]:
        return [consumer_offset(self.broker, group, topic, queue_id) for queue_id in range(QUEUES)]


@pytest.fixture(scope="module", params=KINDS)
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp(request.param)
    with start_cluster(request.param, folder, {"traceTopicEnable": "true"}) as cluster:
        nameserver = cluster.nameserver.address
        make_topic(nameserver, cluster.broker.address, TOPIC, queues=QUEUES)
        with AdminShell(nameserver, folder) as shell, start_member(cluster, GROUP) as member:
            scene = Scene(cluster, shell, member)
            for number, body in enumerate(BODIES):
                scene.ids.append(send(scene, body, number % QUEUES))
            member.wait_line(r"^READY", 60)
            wait_until(lambda: scene.committed() == [EACH] * QUEUES, "the group has consumed everything")
            yield scene


def start_member(cluster: Cluster, group: str, expect: int = 1_000_000) -> Program:
    """An official push consumer of everything in the topic; it ends after `expect` different messages."""
    return official.start_judge(
        "push",
        namesrv=cluster.nameserver.address,
        topic=TOPIC,
        group=group,
        filter="*",
        expect=expect,
        seconds=240,
    )


def send(scene: Scene, body: str, queue_id: int) -> str:
    """Send one message with the key `key-<first free number>` and the tag of its queue; its unique key."""
    where = ["-t", TOPIC, "-b", BROKER, "-i", str(queue_id)]
    (row,) = scene.rows(
        "sendMessage", *where, "-p", body, "-k", f"key-{len(scene.ids)}", "-c", f"tag-{queue_id}"
    )
    assert row[:3] == [BROKER, str(queue_id), "SEND_OK"]
    return row[3]


# --- the cluster ------------------------------------------------------------------------------------------------


def test_the_cluster_and_the_brokers_figures(scene: Scene) -> None:
    (row,) = scene.rows("clusterList")
    assert row[:5] == [CLUSTER, BROKER, "0", scene.broker, "V5_3_3"]
    assert row[-1] == "true", "the broker is active"
    (row,) = scene.rows("clusterList", "-m")
    assert row[:2] == [CLUSTER, BROKER]
    assert int(row[4]) >= len(BODIES)
    figures = properties(scene.run("brokerStatus", "-b", scene.broker), ":")
    assert int(figures["putMessageTimesTotal"]) >= len(BODIES)
    assert int(figures["commitLogMaxOffset"]) > 1_000
    for rates in (figures["putTps"], figures["getTransferredTps"]):
        assert all(float(rate) >= 0 for rate in rates.split())
    if scene.cluster.kind == "ours":  # the official broker forgets them at each report
        took = re.findall(r"\[([^]]+)\]:(\d+)", figures["putMessageDistributeTime"])
        assert sum(int(count) for _, count in took) >= len(BODIES)
    assert "commitLogMaxOffset" in scene.run("brokerStatus", "-c", CLUSTER)
    status = scene.run("haStatus", "-b", scene.broker)
    assert f"#MasterAddr\t{scene.broker}" in status
    assert "#InSyncSlaveNum\t0" in status
    assert "#SlaveNum\t0" in scene.run("haStatus", "-c", CLUSTER)
    assert "success" in scene.run("resetMasterFlushOffset", "-b", scene.broker, "-o", "1")


def properties(text: str, sign: str) -> dict[str, str]:
    pairs = (line.partition(sign) for line in text.splitlines() if sign in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def test_settings_are_shown_and_changed(scene: Scene) -> None:
    def setting(key: str) -> str:
        return properties(scene.run("getBrokerConfig", "-b", scene.broker), "=")[key]

    def change(where: str, value: str) -> str:
        target = scene.broker if where == "-b" else CLUSTER
        return scene.run("updateBrokerConfig", where, target, "-k", "fileReservedTime", "-v", value)

    before = setting("fileReservedTime")
    assert "success" in change("-b", "48")
    assert setting("fileReservedTime") == "48"
    assert "success" in change("-c", before)
    assert before in scene.run("getBrokerConfig", "-c", CLUSTER)


def test_settings_that_only_a_start_can_change_are_refused(scene: Scene) -> None:
    if scene.cluster.kind == "official":
        pytest.skip("the official broker says that it has changed what it cannot change")
    for key in ("listenPort", "noSuchKey"):
        said = scene.shell.run("updateBrokerConfig", "-b", scene.broker, "-k", key, "-v", "48")
        assert "CODE: 16" in said
        assert key in said


def test_cleaning(scene: Scene) -> None:
    for command in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
        assert "success" in scene.run(command, "-b", scene.broker)
        assert "success" in scene.run(command, "-c", CLUSTER)
    assert max_offset(scene.broker, TOPIC, 0) >= EACH, "nothing was due"


def test_exports(scene: Scene, tmp_path: Path) -> None:
    folder = str(tmp_path)
    for command in ("exportMetadata", "exportConfigs", "exportMetrics"):
        assert "success" in scene.run(command, "-c", CLUSTER, "-f", folder)
    metadata = json.loads((tmp_path / "metadata.json").read_text())
    assert metadata["topicConfigTable"][TOPIC]["writeQueueNums"] == QUEUES
    assert metadata["subscriptionGroupTable"][GROUP]["retryMaxTimes"] == 16
    configs = json.loads((tmp_path / "configs.json").read_text())
    assert configs["brokerConfigs"][BROKER]["brokerClusterName"] == CLUSTER
    metrics = json.loads((tmp_path / "metrics.json").read_text())["evaluateReport"][BROKER]
    assert "JAVA%V5_3_3" in metrics["runtimeVersion"]["clientInfo"]
    scene.run("exportMetadata", "-b", scene.broker, "-f", folder, "-t")
    assert TOPIC in json.loads((tmp_path / "topic.json").read_text())["topicConfigTable"]


# --- the nameserver ---------------------------------------------------------------------------------------------


def test_write_permission_is_wiped_and_given_back(scene: Scene) -> None:
    def permission() -> str:
        row = next(row for row in scene.rows("topicRoute", "-t", TOPIC, "-l") if BROKER in row)
        return row[-1]

    assert "OK" in scene.run("wipeWritePerm", "-b", BROKER)
    assert permission() == "4"
    assert "OK" in scene.run("addWritePerm", "-b", BROKER)
    assert permission() == "6"


def test_the_nameservers_settings_and_keys(scene: Scene) -> None:
    assert "listenPort" in scene.run("getNamesrvConfig")
    scene.run("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
    assert re.search(r"orderMessageEnable +=  true", scene.run("getNamesrvConfig"))
    assert "success" in scene.run("updateKvConfig", "-s", "SPACE", "-k", "name", "-v", "value")
    assert "success" in scene.run("deleteKvConfig", "-s", "SPACE", "-k", "name")
    scene.run("updateOrderConf", "-t", TOPIC, "-v", f"{BROKER}:2", "-m", "put")
    assert f"[{BROKER}:2]" in scene.run("updateOrderConf", "-t", TOPIC, "-m", "get")
    scene.run("updateOrderConf", "-t", TOPIC, "-m", "delete")


# --- topics -----------------------------------------------------------------------------------------------------


def test_a_topics_life(scene: Scene) -> None:
    where = ["-c", CLUSTER, "-t", "Life"]
    assert "success" in scene.run("updateTopic", *where, "-r", "3", "-w", "3")
    wait_route(scene.cluster.nameserver.address, "Life", BROKER)
    assert ["Life"] in scene.rows("topicList")
    assert "success" in scene.run("updateTopicPerm", *where, "-p", "4")
    row = next(row for row in scene.rows("topicRoute", "-t", "Life", "-l") if BROKER in row)
    assert row[-3:] == ["3", "3", "4"]
    assert "success" in scene.run("deleteTopic", *where)
    assert ["Life"] not in scene.rows("topicList")
    assert "CODE: 17" in scene.shell.run("topicStatus", "-t", "Life")


def test_an_ordered_topic_and_a_list_of_topics(scene: Scene, tmp_path: Path) -> None:
    """The first order configuration makes the tool print that there was none yet, with all its calls."""
    said = scene.shell.run(
        "updateTopic", "-b", scene.broker, "-t", "InOrder", "-o", "true", "-r", "2", "-w", "2"
    )
    assert f"orderConf=[{BROKER}:2]" in said
    assert "create topic to" in said
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps([{"topicName": f"Listed{n}", "readQueueNums": n} for n in (1, 2)]))
    assert "success" in scene.run("updateTopicList", "-b", scene.broker, "-f", str(topics))
    wait_route(scene.cluster.nameserver.address, "Listed2", BROKER)
    assert ["Listed1"] in scene.rows("topicList")


def test_what_there_is_of_a_topic(scene: Scene) -> None:
    ends = [row[:4] for row in scene.rows("topicStatus", "-t", TOPIC) if row[0] == BROKER]
    assert ends == [[BROKER, str(q), "0", str(max_offset(scene.broker, TOPIC, q))] for q in range(QUEUES)]
    assert [CLUSTER, TOPIC, GROUP] in scene.rows("topicList", "-c")
    assert scene.rows("topicClusterList", "-t", TOPIC) == [[CLUSTER]]
    route = scene.run("topicRoute", "-t", TOPIC)
    assert f'0:"{scene.broker}"' in "".join(route.split())
    shared = json.loads(scene.run("allocateMQ", "-t", TOPIC, "-i", "10.0.0.1,10.0.0.2"))["result"]
    assert sorted(queue["queueId"] for queues in shared.values() for queue in queues) == [0, 1]


def test_traffic_of_topics_and_groups(scene: Scene) -> None:
    """The figures come from samples that the broker takes each ten seconds."""

    def row() -> list[str]:
        return next(row for row in scene.rows("statsAll", "-t", TOPIC) if row[:2] == [TOPIC, GROUP])

    wait_until(lambda: "0" not in row()[-2:], "statsAll tells of messages")
    if scene.cluster.kind == "ours":  # the official broker begins to count a moment later
        assert all(int(figure) >= len(BODIES) for figure in row()[-2:])
    assert scene.rows("statsAll", "-t", TOPIC, "-a") != []
    assert any(found[0] == "TBW102" for found in scene.rows("statsAll"))


# --- groups -----------------------------------------------------------------------------------------------------


def test_a_groups_life(scene: Scene, tmp_path: Path) -> None:
    assert "success" in scene.run("updateSubGroup", "-c", CLUSTER, "-g", "life", "-r", "5")
    settings = properties(scene.run("getConsumerConfig", "-g", "life"), "=")
    assert (settings["groupName"], settings["retryMaxTimes"]) == ("life", "5")
    assert "success" in scene.run("deleteSubGroup", "-c", CLUSTER, "-g", "life", "-r", "true")
    assert "retryMaxTimes" not in scene.run("getConsumerConfig", "-g", "life")
    groups = tmp_path / "groups.json"
    groups.write_text(json.dumps([{"groupName": "listed1"}, {"groupName": "listed2", "retryMaxTimes": 3}]))
    assert "success" in scene.run("updateSubGroupList", "-b", scene.broker, "-f", str(groups))
    settings = properties(scene.run("getConsumerConfig", "-g", "listed2"), "=")
    assert settings["retryMaxTimes"] == "3"


def test_how_far_a_group_is(scene: Scene) -> None:
    said = scene.run("consumerProgress", "-g", GROUP)
    rows = [line.split() for line in said.splitlines() if line.startswith(TOPIC)]
    assert [(row[1], row[2], row[5]) for row in rows] == [(BROKER, "0", "0"), (BROKER, "1", "0")]
    assert all(row[3] == row[4] for row in rows)
    assert "Consume Diff Total: 0" in said
    address = scene.client_id().partition("@")[0]
    rows = [row for row in scene.rows("consumerProgress", "-g", GROUP, "-s", "true") if row[0] == TOPIC]
    assert [row[5] for row in rows] == [address] * QUEUES
    row = next(row for row in scene.rows("consumerProgress") if row[0] == GROUP)
    assert row[1:5] == ["1", "V5_3_3", "PUSH", "CLUSTERING"]
    row = next(
        row for row in scene.rows("brokerConsumeStats", "-b", scene.broker) if row[:2] == [TOPIC, GROUP]
    )
    assert row[2] == BROKER
    assert row[4] == row[5]


def test_who_is_online(scene: Scene) -> None:
    said = scene.run("consumerConnection", "-g", GROUP)
    assert re.search(rf"^{TOPIC} +\*$", said, re.MULTILINE)
    assert re.search(rf"^%RETRY%{GROUP} +\*$", said, re.MULTILINE)
    assert "ConsumeType: CONSUME_PASSIVELY" in said
    assert "MessageModel: CLUSTERING" in said
    client_id = scene.client_id()
    assert client_id in scene.run("producerConnection", "-g", "CLIENT_INNER_PRODUCER", "-t", TOPIC)
    assert f"clientId={client_id}" in scene.run("producer", "-b", scene.broker)
    assert "CODE: 17" in scene.shell.run("consumerConnection", "-g", "nobody")


def test_what_a_consumer_tells_of_itself(scene: Scene) -> None:
    client_id = scene.client_id()
    said = scene.run("consumerStatus", "-g", GROUP)
    assert client_id in said
    assert "Same subscription in the same group of consumer" in said
    assert "Rebalance OK" in said
    said = scene.run("consumerStatus", "-g", GROUP, "-i", client_id, "-s")
    assert re.search(r"PROP_CONSUME_TYPE +: CONSUME_PASSIVELY", said)
    assert re.search(rf"{TOPIC} +{BROKER} +0 ", said)
    assert "java.lang.Thread.run" in said, "its threads are shown too"
    assert "not online" in scene.shell.run("consumerStatus", "-g", GROUP, "-i", "nobody")


def test_a_group_is_told_to_pop(scene: Scene) -> None:
    scene.run("updateSubGroup", "-c", CLUSTER, "-g", "poppers")
    words = ["-t", TOPIC, "-g", "poppers", "-q", "2"]
    for mode in ("POP", "PULL"):
        assert "success" in scene.run("setConsumeMode", "-c", CLUSTER, *words, "-m", mode)
        assert "success" in scene.run("setConsumeMode", "-b", scene.broker, *words, "-m", mode)


def test_where_each_member_stands(scene: Scene) -> None:
    """mqadmin has no command for it any more; the admin library and older tools ask so."""
    asked = {"topic": TOPIC, "group": GROUP}
    answer, body = call(scene.broker, GET_CONSUMER_STATUS, asked)
    assert answer["code"] == 0, answer
    for queue_id in range(QUEUES):
        offset = max_offset(scene.broker, TOPIC, queue_id)
        queue = f'{{"brokerName":"{BROKER}","queueId":{queue_id},"topic":"{TOPIC}"}}:{offset}'
        assert queue.encode() in body
    assert scene.client_id().encode() in body
    answer, _ = call(scene.broker, GET_CONSUMER_STATUS, asked | {"group": "nobody"})
    assert answer["code"] != 0


# --- messages ---------------------------------------------------------------------------------------------------


def test_a_message_is_found_by_key_and_ids_and_place(scene: Scene) -> None:
    unique_key = scene.ids[3]
    assert scene.rows("queryMsgByKey", "-t", TOPIC, "-k", "key-3") == [[unique_key, "1", "1"]]
    for command in ("queryMsgByUniqueKey", "queryMsgById"):
        found = properties(scene.run(command, "-t", TOPIC, "-i", unique_key), ":")
        assert (found["Queue ID"], found["Queue Offset"], found["Keys"]) == ("1", "1", "[key-3]")
        assert found["Store Host"] == scene.broker
        assert Path(found["Message Body Path"]).read_text() == BODIES[3]
    said = scene.run("queryMsgByOffset", "-t", TOPIC, "-b", BROKER, "-i", "1", "-o", "1")
    found = properties(said, ":")
    assert found["Keys"] == "[key-3]"
    assert f"consumerGroup={GROUP}, trackType=CONSUMED" in said
    again = properties(scene.run("queryMsgById", "-t", TOPIC, "-i", found["OffsetID"]), ":")
    assert again["Keys"] == "[key-3]"


def test_a_message_is_handed_to_a_consumer(scene: Scene) -> None:
    words = ["-t", TOPIC, "-i", scene.ids[2], "-g", GROUP, "-d", scene.client_id()]
    for command in ("queryMsgByUniqueKey", "queryMsgById"):
        assert "consumeResult=CR_SUCCESS" in scene.run(command, *words)
    words[-1] = "nobody"
    assert "failed" in scene.shell.run("queryMsgByUniqueKey", *words)


def test_messages_are_printed(scene: Scene) -> None:
    def bodies(said: str) -> list[str]:
        return sorted(re.findall(r"BODY: (body \d)$", said, re.MULTILINE))

    assert bodies(scene.run("printMsg", "-t", TOPIC, "-d", "true")) == BODIES
    queue = ["-t", TOPIC, "-a", BROKER, "-i", "0", "-p", "true", "-d", "true"]
    assert bodies(scene.run("printMsgByQueue", *queue)) == BODIES[::2]
    assert bodies(scene.run("printMsg", "-t", TOPIC, "-d", "true", "-s", "tag-1")) == BODIES[1::2]
    assert bodies(
        scene.run("consumeMessage", "-t", TOPIC, "-b", BROKER, "-i", "0", "-o", "1", "-c", "2")
    ) == [
        "body 2",
        "body 4",
    ]
    said = scene.run("queryCq", "-t", TOPIC, "-q", "0", "-i", "0", "-c", "2", "-b", scene.broker, "-g", GROUP)
    assert '"subString":"*"' in said
    assert len(re.findall("physicSize=[1-9]", said)) == 2


def test_ways_to_send(scene: Scene) -> None:
    assert scene.run("sendMsgStatus", "-b", BROKER, "-s", "100", "-c", "3").count("SEND_OK") == 3
    make_topic(scene.cluster.nameserver.address, scene.broker, "Timed", queues=1)
    said = scene.run("checkMsgSendRT", "-t", "Timed", "-a", "3", "-s", "100")
    assert said.count("true") == 3
    assert "Avg RT" in said
    said = scene.shell.run("clusterRT", "-a", "2", "-s", "64", "-c", CLUSTER, "-i", "1", seconds=2)
    assert re.search(rf"^{CLUSTER} +{BROKER} +[\d.]+ +2 +0", said, re.MULTILINE)


def test_the_trace_of_a_message(scene: Scene) -> None:
    """The command ends its client at once, which drops a trace that is not sent within half a second."""
    make_topic(scene.cluster.nameserver.address, scene.broker, "Traced", queues=1)
    said = ""
    for _ in range(15):
        (row,) = scene.rows("sendMessage", "-t", "Traced", "-p", "x", "-m", "true")
        asked = (scene.shell.run("queryMsgTraceById", "-i", row[3]) for _ in range(5))
        said = next((answer for answer in asked if "success" in answer), "")
        if said:
            break
    assert re.search(r"^Pub .*success", said, re.MULTILINE)


# --- offsets ----------------------------------------------------------------------------------------------------


def test_offsets_are_cloned(scene: Scene) -> None:
    scene.run("updateSubGroup", "-c", CLUSTER, "-g", "copy")
    scene.run("cloneGroupOffset", "-s", GROUP, "-d", "copy", "-t", TOPIC)
    assert scene.committed("copy") == scene.committed()


def test_offsets_are_reset_while_nobody_is_online(scene: Scene) -> None:
    scene.run("updateSubGroup", "-c", CLUSTER, "-g", "sleepers")

    def reset(*words: str) -> list[tuple[str, str]]:
        rows = scene.rows("resetOffsetByTime", "-g", "sleepers", "-t", TOPIC, *words)
        return sorted((row[1], row[2]) for row in rows if row[0] == BROKER)

    ends = [max_offset(scene.broker, TOPIC, queue_id) for queue_id in range(QUEUES)]
    assert reset("-s", "0") == [("0", "0"), ("1", "0")]
    assert scene.committed("sleepers") == [0, 0]
    assert reset("-s", "now") == [("0", str(ends[0])), ("1", str(ends[1]))]
    scene.run(
        "resetOffsetByTime",
        "-g",
        "sleepers",
        "-t",
        TOPIC,
        "-s",
        "0",
        "-b",
        scene.broker,
        "-q",
        "1",
        "-o",
        "3",
    )
    assert scene.committed("sleepers") == [ends[0], 3]
    said = scene.rows("skipAccumulatedMessage", "-g", "sleepers", "-t", TOPIC)
    assert sorted((row[1], row[2]) for row in said) == [("0", str(ends[0])), ("1", str(ends[1]))]
    assert scene.committed("sleepers") == ends
    if scene.cluster.kind == "ours":
        assert "CODE: 26" in scene.shell.run("resetOffsetByTime", "-g", "unknown", "-t", TOPIC, "-s", "0")


def test_a_consumer_goes_where_its_group_is_sent_both_ways(scene: Scene) -> None:
    """Twice it reads everything again: sent by the broker, and told by the broker to send itself."""
    count = sum(max_offset(scene.broker, TOPIC, queue_id) for queue_id in range(QUEUES))

    def consumed() -> bool:
        ends = [max_offset(scene.broker, TOPIC, queue_id) for queue_id in range(QUEUES)]
        return scene.committed("sent-back") == ends

    def send_back(server_side: str) -> None:
        wait_until(consumed, "the group has consumed everything")
        words = ["-k", "useServerSideResetOffset", "-v", server_side]
        scene.run("updateBrokerConfig", "-b", scene.broker, *words)
        rows = scene.rows("resetOffsetByTime", "-g", "sent-back", "-t", TOPIC, "-s", "0")
        assert sorted(row[1:3] for row in rows if row[0] == BROKER) == [["0", "0"], ["1", "0"]]

    with start_member(scene.cluster, "sent-back", count + 1) as member:
        member.wait_line(r"^READY", 60)
        send_back("true")
        send_back("false")
        wait_until(lambda: not consumed(), "the group went back")
        wait_until(consumed, "the group has consumed everything again")
        scene.run("updateBrokerConfig", "-b", scene.broker, "-k", "useServerSideResetOffset", "-v", "true")
        send(scene, "the last", 0)
        report = official.result_of(member)
    assert (report["complete"], report["distinct"], report["duplicates"]) == (True, count + 1, 2 * count)
