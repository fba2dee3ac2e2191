"""`aerobee topic`, `group` and `cluster` against a broker."""

import os
import pty
import re

import pytest

from aerobee_console.cluster.cluster import readable
from aerobee_console.cluster.topics import confirm
from aerobee_console.terminal.failures import Failure
from console.support import Runner


def test_a_topic_from_its_making_to_its_end(cluster: Runner) -> None:
    made = cluster("topic", "create", "a-topic", "--queues", "2", "--attribute", "message.type=NORMAL")
    assert (made.code, made.out) == (0, "topic a-topic is created on broker-a\n")
    assert "a-topic" in cluster("topic", "list").lines
    assert cluster("topic", "alter", "a-topic", "--queues", "3", "--perm", "r").code == 0
    (config,) = cluster("topic", "describe", "a-topic", "-o", "json").json["configs"]
    assert (config["read_queues"], config["write_queues"], config["permission"]) == (3, 3, "r")
    assert cluster("topic", "delete", "a-topic", "--yes").out == "topic a-topic is deleted on broker-a\n"
    assert "a-topic" not in cluster("topic", "list").lines
    assert cluster("topic", "describe", "a-topic").code == 5


def test_describe_shows_settings_groups_and_queues(cluster: Runner) -> None:
    cluster("topic", "create", "a-described", "--queues", "2")
    cluster("send", "a-described", "x", "--queue", "1")
    cluster("consume", "a-described", "--group", "a-reader")
    shown = cluster("topic", "describe", "a-described").lines
    assert shown[0] == "broker-a: 2 queues to read, 2 to write, permission rw"
    assert shown[1] == "groups: a-reader"
    assert shown[2] == "messages: 1"
    heads, *rows = shown[4:]
    assert heads.split() == [
        "broker",
        "queue",
        "min",
        "offset",
        "max",
        "offset",
        "messages",
        "last",
        "stored",
    ]
    assert [row.split()[:5] for row in rows] == [
        ["broker-a", "0", "0", "0", "0"],
        ["broker-a", "1", "0", "1", "1"],
    ]
    facts = cluster("topic", "describe", "a-described", "-o", "json").json
    assert list(facts) == ["schema_version", "topic", "message_count", "groups", "configs", "queues"]
    assert list(facts["queues"][0]) == [
        "broker_name",
        "queue_id",
        "min_offset",
        "max_offset",
        "message_count",
        "last_stored_ms",
    ]


def test_route_shows_brokers_and_addresses(cluster: Runner) -> None:
    cluster("topic", "create", "a-route", "--queues", "5", "--write-queues", "3")
    (route,) = cluster("topic", "route", "a-route", "-o", "json").json["routes"]
    addr = route.pop("addr")
    assert addr.startswith("127.0.0.1:")
    assert route == {
        "broker_name": "broker-a",
        "cluster_name": "DefaultCluster",
        "broker_id": 0,
        "read_queues": 5,
        "write_queues": 3,
        "permission": "rw",
    }
    assert addr in cluster("topic", "route", "a-route").lines[1]


def test_system_topics_are_listed_on_demand(cluster: Runner) -> None:
    own = cluster("topic", "list", "-o", "json").json["topics"]
    every = cluster("topic", "list", "--all", "-o", "json").json["topics"]
    assert {"topic": "TBW102"} in every
    assert {"topic": "TBW102"} not in own


def test_a_group_from_its_making_to_its_end(cluster: Runner) -> None:
    assert cluster("group", "create", "a-group", "--retries", "3").code == 0
    groups = {one["group"]: one for one in cluster("group", "list", "-o", "json").json["groups"]}
    assert groups["a-group"] == {
        "group": "a-group",
        "members": 0,
        "lag": None,
        "consume_enabled": True,
        "broadcast_enabled": True,
        "retry_max_times": 3,
    }
    shown = cluster("group", "describe", "a-group")
    assert shown.lines == ["lag: 0 messages", "members: nobody is online"]
    assert cluster("group", "delete", "a-group", "-y").code == 0
    gone = cluster("group", "describe", "a-group")
    assert gone.code == 5
    assert "no group 'a-group' on broker-a" in gone.err


def test_a_groups_progress_as_a_table(cluster: Runner) -> None:
    cluster("topic", "create", "a-progress", "--queues", "1")
    for _ in range(3):
        cluster("send", "a-progress", "x")
    cluster("consume", "a-progress", "--group", "a-slow", "--count", "1")
    lines = cluster("group", "describe", "a-slow").lines
    assert lines[0] == "lag: 2 messages"
    heads = "topic broker queue broker offset group offset lag last consumed"
    assert " ".join(lines[-2].split()) == heads
    assert lines[-1].split()[:6] == ["a-progress", "broker-a", "0", "3", "1", "2"]


def test_the_cluster_and_one_brokers_figures_and_settings(cluster: Runner) -> None:
    (broker,) = cluster("cluster", "-o", "json").json["brokers"]
    assert (broker["broker_name"], broker["role"]) == ("broker-a", "master")
    assert broker["addr"] in cluster("cluster").lines[1]
    for name in ("broker-a", broker["addr"]):
        assert (
            cluster("cluster", "status", name, "-o", "json").json["status"]["brokerVersionDesc"] == "V5_3_3"
        )
    config = cluster("cluster", "config", "broker-a", "flushDiskType", "-o", "json").json["config"]
    assert config == {"flushDiskType": "SYNC_FLUSH"}
    assert len(cluster("cluster", "config", "broker-a").lines) > 50


def test_a_setting_is_changed_while_the_broker_runs(cluster: Runner) -> None:
    """There was no command for it, and nothing said which settings can be changed without a restart."""
    shown = cluster("cluster", "config", "broker-a", "fileReservedTime", "listenPort").lines
    assert shown[0].split("  ")[-1] == "a change needs"
    assert [line.split()[0] for line in shown if line.endswith("nothing more")] == ["fileReservedTime"]
    assert [line.split()[0] for line in shown if line.endswith("a restart")] == ["listenPort"]
    done = cluster("cluster", "config", "broker-a", "--set", "fileReservedTime=71")
    assert (done.code, done.out) == (0, "fileReservedTime: 72 -> 71, in effect now\n")
    again = cluster("cluster", "config", "broker-a", "--set", "fileReservedTime=72", "-o", "json").json
    assert again["changed"] == {"fileReservedTime": {"before": "71", "after": "72"}}
    assert "fileReservedTime" in cluster("cluster", "config", "broker-a", "-o", "json").json["hot"]


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (
            ["--set", "listenPort=1"],
            4,
            "listenPort of broker broker-a: read at start only; nothing was changed",
        ),
        (["--set", "fileReservedTim=1"], 5, "did you mean fileReservedTime"),
        (["--set", "fileReservedTime=abc"], 4, "fileReservedTime"),
        (["--set", "fileReservedTime=71", "--set", "listenPort=1"], 4, "nothing was changed"),
        (["--set", "fileReservedTime"], 2, "write KEY=VALUE"),
        (["listenPort", "--set", "fileReservedTime=71"], 2, "not both"),
    ],
)
def test_a_setting_that_cannot_be_changed_is_told(
    more: list[str], code: int, said: str, cluster: Runner
) -> None:
    refused = cluster("cluster", "config", "broker-a", *more)
    assert (refused.code, refused.out) == (code, "")
    assert said in refused.err
    assert cluster("cluster", "config", "broker-a", "fileReservedTime").lines[1].split()[1] == "72"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["topic", "create", "bad topic"], 2, "'bad topic' has ' '"),
        (["topic", "create", "t", "--queues", "0"], 2, "--queues. Must be >= 1"),
        (["topic", "create", "t", "--attribute", "x"], 2, "--attribute x: write name=value"),
        (["topic", "create", "t", "--broker", "nobody"], 5, "nobody"),
        (["topic", "alter", "t"], 2, "nothing to change"),
        (["topic", "alter", "nowhere", "--queues", "2"], 5, "no route for topic 'nowhere'"),
        (["topic", "delete", "broker-a"], 2, "Nobody is here to answer: add --yes"),
        (["topic", "delete", "t"], 5, "no route for topic 't'"),
        (["group", "delete", "g"], 5, "no group 'g' on broker-a"),
        (["cluster", "status", "nobody"], 5, "nobody"),
        (["cluster", "config", "broker-a", "noSuchKey"], 5, "noSuchKey"),
    ],
)
def test_what_cannot_be_done_is_told_with_the_cause(
    words: list[str], code: int, said: str, cluster: Runner
) -> None:
    refused = cluster(*words)
    assert said in refused.err
    assert (refused.code, refused.out) == (code, "")
    assert "Traceback" not in refused.err


@pytest.mark.parametrize(
    ("answer", "goes_on"), [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False)]
)
def test_a_person_is_asked(
    answer: str, goes_on: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = pty.openpty()
    try:
        with os.fdopen(theirs) as terminal:
            monkeypatch.setattr("sys.stdin", terminal)
            os.write(ours, answer.encode())
            if goes_on:
                confirm("Sure?", yes=False)
            else:
                with pytest.raises(Failure, match="nothing was changed"):
                    confirm("Sure?", yes=False)
    finally:
        os.close(ours)
    assert capsys.readouterr().err == "Sure? [y/N] "


def test_figures_of_a_broker_are_for_people_in_a_table_and_as_sent_in_json(cluster: Runner) -> None:
    """Rates had 17 decimals, times were milliseconds, and half of the list were thread pools of another program."""
    sent = cluster("cluster", "status", "broker-a", "-o", "json").json["status"]
    shown = dict(line.split(maxsplit=1) for line in cluster("cluster", "status", "broker-a").lines[1:])
    assert sent["sendThreadPoolQueueSize"] == "0"
    assert not any("ThreadPool" in name for name in shown)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}", shown["bootTimestamp"])
    assert re.fullmatch(r"(\d+\.\d\d ?){3}", shown["putTps"])
    busy = readable({"sendThreadPoolQueueSize": "3", "sendThreadPoolQueueCapacity": "10", "aTimestamp": "0"})
    assert busy == {
        "sendThreadPoolQueueSize": "3",
        "sendThreadPoolQueueCapacity": "10",
        "aTimestamp": "never",
    }


def test_a_message_found_by_its_place_names_its_broker_and_its_body(cluster: Runner) -> None:
    """The table said `shown` for the body, and the broker's address for its name."""
    (sent,) = cluster("send", "a-placed", "hello", "-o", "json").json["sent"]
    facts = dict(
        line.split(maxsplit=1)
        for line in cluster("query", "a-placed", "--id", sent["offset_message_id"]).lines
        if len(line.split()) > 1
    )
    assert (facts["broker_name"], facts["body"]) == ("broker-a", "hello")
    assert "shown" not in facts
