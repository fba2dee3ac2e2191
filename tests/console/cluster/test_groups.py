"""`aerobee group reset`, `clone`, `lag`, `alter`, and what it asks of members, against a broker."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from aerobee.sync import Client as SyncClient
from aerobee_pytest import Server
from console.support import Runner, program
from programs import Program

TOPIC = "g-topic"


@pytest.fixture
def consumed(cluster: Runner) -> Runner:
    """Three messages in one queue, of which g-reader has consumed two."""
    if cluster("topic", "describe", TOPIC).code != 0:
        cluster("topic", "create", TOPIC, "--queues", "1")
        for number in range(3):
            cluster("send", TOPIC, f"body {number}", "--keys", f"key-{number}")
    cluster("group", "delete", "g-reader", "--yes")
    assert cluster("consume", TOPIC, "--group", "g-reader", "--count", "2").code == 0
    return cluster


# A member that cannot consume what holds a 1. A program of its own: its log is no command's output.
MEMBER = """
import asyncio
import sys

from aerobee import Client


def handle(message):
    if b"1" in message.body:
        raise ValueError("a body with a 1")


async def consume(nameserver, topic, group, expression):
    async with Client(nameserver) as client, client.consumer(group, {topic: expression}) as consumer:
        print("READY", flush=True)
        await consumer.run(handle)


asyncio.run(consume(*sys.argv[1:]))
"""


@contextmanager
def online(nameserver: str, topic: str, group: str, expression: str = "*") -> Iterator[None]:
    """A member of the group, registered and with its share of the queues."""
    words = [sys.executable, "-c", MEMBER, nameserver, topic, group, expression]
    with Program("member", words) as member:
        member.wait_line("^READY", 30)
        yield


def after(cluster: Runner, *words: str) -> list[tuple[int | None, int]]:
    """(before, after) of each queue that a reset moved."""
    done = cluster("group", "reset", "g-reader", "g-topic", "--yes", "-o", "json", *words)
    assert done.code == 0, done.err
    return [(row["before"], row["after"]) for row in done.json["queues"]]


def test_a_group_is_sent_to_ends_times_and_offsets(consumed: Runner) -> None:
    assert after(consumed, "--to", "earliest") == [(2, 0)]
    assert after(consumed, "--to", "latest") == [(0, 3)]
    assert after(consumed, "--to=-1h") == [(3, 0)]
    assert after(consumed, "--to", "1", "--queue", "broker-a:0") == [(0, 1)]
    read = consumed("consume", "g-topic", "--group", "g-reader", "-o", "raw")
    assert read.lines == ["body 1", "body 2"]


def test_a_reset_as_a_table(consumed: Runner) -> None:
    lines = consumed("group", "reset", "g-reader", "g-topic", "--to", "earliest", "--yes").lines
    assert [line.split() for line in lines] == [
        ["topic", "broker", "queue", "before", "after"],
        ["g-topic", "broker-a", "0", "2", "0"],
    ]


def test_a_group_is_reset_where_resets_are_left_to_members_and_none_is_online(
    consumed: Runner, nameserver: str
) -> None:
    with SyncClient(nameserver) as client:
        client.admin.update_broker_config("broker-a", {"useServerSideResetOffset": "false"})
        try:
            assert after(consumed, "--to", "earliest") == [(2, 0)]
            assert consumed("group", "describe", "g-reader").lines[0] == "lag: 3 messages"
            consumed("topic", "alter", TOPIC, "--queues", "2")
            assert after(consumed, "--to", "1", "--queue", "broker-a:0") == [(0, 1)]
        finally:
            consumed("topic", "alter", TOPIC, "--queues", "1")
            client.admin.update_broker_config("broker-a", {"useServerSideResetOffset": "true"})


def test_a_group_starts_where_another_is(consumed: Runner) -> None:
    assert consumed("group", "create", "g-copy").code == 0
    done = consumed("group", "clone", "g-reader", "g-copy", "--yes")
    assert done.out == "group g-copy is where g-reader is on broker-a\n"
    assert consumed("group", "describe", "g-copy").lines[0] == "lag: 1 messages"


def test_how_far_groups_are_behind(consumed: Runner) -> None:
    every = consumed("group", "lag", "-o", "json").json["lags"]
    (mine,) = [row for row in every if row["group"] == "g-reader" and row["topic"] == "g-topic"]
    assert (mine["lag"], mine["delay_ms"]) == (1, None)
    (row,) = [one for one in consumed("group", "lag", "g-reader", "-o", "json").json["lags"] if one["lag"]]
    assert (row["topic"], row["lag"], row["in_flight"]) == ("g-topic", 1, 1), "the third was pulled"
    assert row["delay_ms"] >= 0
    heads, *rows = consumed("group", "lag", "g-reader").lines
    assert heads.split() == ["group", "topic", "lag", "in", "flight", "late", "by"]
    assert any(line.split()[:4] == ["g-reader", "g-topic", "1", "1"] for line in rows)


def test_groups_are_listed_with_members_and_lag_and_without_those_of_the_system(
    consumed: Runner, nameserver: str
) -> None:
    """The list was RocketMQ's own groups for the most part, and said of the others neither who nor how far."""
    with online(nameserver, TOPIC, "g-listed"):
        rows = {one["group"]: one for one in consumed("group", "list", "-o", "json").json["groups"]}
        every = {one["group"] for one in consumed("group", "list", "-a", "-o", "json").json["groups"]}
    assert (rows["g-listed"]["members"], rows["g-reader"]["members"], rows["g-reader"]["lag"]) == (1, 0, 1)
    assert "CID_RMQ_SYS_TRANS" not in rows
    assert every - rows.keys() >= {"CID_RMQ_SYS_TRANS", "TOOLS_CONSUMER"}


def test_a_reset_while_nobody_is_online_leaves_nothing_in_flight(consumed: Runner) -> None:
    """What was pulled before the reset stayed "in flight" with nobody there to finish it."""
    assert consumed("group", "reset", "g-reader", TOPIC, "--to", "-1h", "--yes").code == 0
    (row,) = consumed("group", "lag", "g-reader", "-o", "json").json["lags"]
    assert (row["lag"], row["in_flight"]) == (3, 0)


def test_a_group_is_altered(consumed: Runner) -> None:
    assert consumed("group", "alter", "g-reader", "--retries", "5", "--no-consume").code == 0
    (group,) = [
        one for one in consumed("group", "list", "-o", "json").json["groups"] if one["group"] == "g-reader"
    ]
    assert (group["retry_max_times"], group["consume_enabled"], group["broadcast_enabled"]) == (
        5,
        False,
        True,
    )
    assert consumed("group", "alter", "g-reader", "--consume").code == 0


def test_members_and_how_they_do(consumed: Runner, nameserver: str) -> None:
    ids = {}
    for number in range(2):
        (found,) = consumed("query", TOPIC, "--key", f"key-{number}", "-o", "json").json["messages"]
        ids[number] = found["offset_message_id"]
    with online(nameserver, TOPIC, "g-online"):
        facts = consumed("group", "members", "g-online", "-o", "json").json
        assert (facts["message_model"], facts["consume_type"]) == ("CLUSTERING", "CONSUME_PASSIVELY")
        (member,) = facts["members"]
        assert member["language"] == "PYTHON"
        expressions = {one["topic"]: one["expression"] for one in facts["subscriptions"]}
        assert expressions[TOPIC] == "*"
        shown = consumed("group", "members", "g-online").out
        assert member["client_id"] in shown
        assert "clustering, CONSUME_PASSIVELY" in shown

        info = consumed("group", "running-info", "g-online", member["client_id"], "-o", "json").json
        assert (info["group"], info["threads"]) == ("g-online", None)
        assert any((queue["topic"], queue["queue_id"]) == (TOPIC, 0) for queue in info["queues"])
        assert info["properties"]["PROP_CONSUMEORDERLY"] == "false"
        shown = consumed("group", "running-info", "g-online", member["client_id"], "--threads").out
        assert "PROP_CONSUMEORDERLY" in shown
        assert "\nthreads\n" in shown

        tried = consumed("group", "try", "g-online", member["client_id"], TOPIC, ids[0])
        assert (tried.code, tried.out.split()[0]) == (0, "CR_SUCCESS")
        tried = consumed("group", "try", "g-online", member["client_id"], TOPIC, ids[1], "-o", "json")
        assert (tried.code, tried.json["result"]) == (1, "CR_THROW_EXCEPTION")
        assert "a body with a 1" in tried.json["remark"]


def test_members_that_subscribe_differently_are_named(consumed: Runner, nameserver: str) -> None:
    """Messages of tag a that one of them gets are nobody's, if the broker filters by what the other one wants."""
    consumed("topic", "create", "g-wide", "--queues", "2")
    with online(nameserver, "g-wide", "g-odd", "a"):
        same = consumed("group", "members", "g-odd", "--check")
        assert (same.code, same.lines[-1]) == (0, "all members subscribe to the same")
        with online(nameserver, "g-wide", "g-odd", "a || b"):
            differ = consumed("group", "members", "g-odd", "--check", "-o", "json")
            assert differ.code == 1
            found = [(row["topic"], row["subscription"]) for row in differ.json["conflicts"]]
            assert sorted(found) == [("g-wide", "TAG a"), ("g-wide", "TAG a || b")]
            shown = consumed("group", "members", "g-odd", "--check")
            assert "members differ" in shown.out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["reset", "g-reader", "g-topic", "--to", "17", "--yes"], 2, "add --queue"),
        (["reset", "g-reader", "g-topic", "--to", "soon", "--yes"], 2, "soon"),
        (["reset", "g-reader", "g-topic", "--to", "9", "--queue", "broker-a:0", "--yes"], 4, "outside queue"),
        (["reset", "g-reader", "g-topic", "--to", "1", "--queue", "0", "--yes"], 2, "BROKER:NUMBER"),
        (["reset", "g-reader", "g-topic", "--to", "1", "--queue", "other:0", "--yes"], 5, "'other'"),
        (["reset", "g-reader", "nowhere", "--to", "latest", "--yes"], 5, "nowhere"),
        (["reset", "g-nobody", "g-topic", "--to", "latest", "--yes"], 5, "g-nobody"),
        (["reset", "g-reader", "g-topic", "--to", "latest"], 2, "add --yes"),
        (["clone", "g-reader", "g-other"], 2, "add --yes"),
        (["alter", "g-reader"], 2, "nothing to change"),
        (["members", "g-reader"], 5, "nobody of group 'g-reader' is online"),
        (["running-info", "g-reader", "someone"], 5, "no member 'someone' online"),
        (["try", "g-reader", "someone", "g-topic", "no-id"], 2, "does not say where the message is"),
    ],
)
def test_what_cannot_be_done_is_told_with_the_cause(
    words: list[str], code: int, said: str, consumed: Runner
) -> None:
    refused = consumed("group", *words)
    assert said in refused.err
    assert (refused.code, refused.out) == (code, "")
    assert "Traceback" not in refused.err


def test_a_cluster_in_which_nobody_has_consumed_says_so(aerobee_own_server: Server) -> None:
    """It said "no group has consumed nothing yet"."""
    lags = program("group", "lag", "-n", aerobee_own_server.nameserver)
    assert (lags.code, lags.err) == (0, "no group has consumed anything yet\n")
