"""`aerobee topic`: no change hides messages without a word."""

import pytest

from console.support import Runner


def _bodies(cluster: Runner, topic: str) -> list[str]:
    return cluster("consume", topic, "-o", "raw").lines


def test_a_topic_that_exists_is_not_made_again_with_other_numbers(cluster: Runner) -> None:
    """`topic create t --queues 2` of a topic with four said "is created", and what lay in queue 3 was gone."""
    cluster("topic", "create", "n-again", "--queues", "4")
    cluster("send", "n-again", "kept", "--queue", "3")
    refused = cluster("topic", "create", "n-again", "--queues", "2")
    assert (refused.code, refused.out) == (4, "")
    assert "topic 'n-again' exists on broker-a with 4 queues, permission rw" in refused.err
    assert "aerobee topic alter n-again" in refused.err
    assert cluster("topic", "describe", "n-again", "-o", "json").json["message_count"] == 1
    assert _bodies(cluster, "n-again") == ["kept"]


@pytest.mark.parametrize("more", [["--perm", "r"], ["--order"], ["--attribute", "message.type=FIFO"]])
def test_a_topic_that_exists_is_not_made_again_with_other_settings(more: list[str], cluster: Runner) -> None:
    cluster("topic", "create", "n-settings", "--queues", "1")
    refused = cluster("topic", "create", "n-settings", "--queues", "1", *more)
    assert refused.code == 4
    assert "exists on broker-a with 1 queue, permission rw" in refused.err
    (config,) = cluster("topic", "describe", "n-settings", "-o", "json").json["configs"]
    assert (config["permission"], config["order"], config["attributes"]) == ("rw", False, {})


def test_a_topic_may_be_made_twice_with_the_same_settings(cluster: Runner) -> None:
    words = ("topic", "create", "n-twice", "--queues", "2", "--attribute", "+message.type=FIFO")
    assert cluster(*words).code == 0
    assert cluster(*words).code == 0


def test_fewer_queues_say_what_they_hide_and_ask(cluster: Runner) -> None:
    """`topic alter --queues 2` put the messages of queues 2 and 3 out of reach without a word."""
    cluster("topic", "create", "n-fewer", "--queues", "4")
    for queue in ("2", "3", "3"):
        cluster("send", "n-fewer", f"in {queue}", "--queue", queue)
    asked = cluster("topic", "alter", "n-fewer", "--queues", "2")
    assert (asked.code, asked.out) == (2, "")
    assert "this hides 3 stored messages of topic 'n-fewer' from every reader" in asked.err
    assert "broker-a:2 has 1, broker-a:3 has 2" in asked.err
    assert "--yes" in asked.err
    assert len(_bodies(cluster, "n-fewer")) == 3
    done = cluster("topic", "alter", "n-fewer", "--queues", "2", "--yes")
    assert (done.code, done.out) == (0, "topic n-fewer is altered on broker-a\n")
    assert "hides 3 stored messages" in done.err
    assert _bodies(cluster, "n-fewer") == []
    assert cluster("topic", "alter", "n-fewer", "--queues", "4").code == 0
    assert sorted(_bodies(cluster, "n-fewer")) == ["in 2", "in 3", "in 3"]


def test_no_permission_to_read_hides_what_is_stored(cluster: Runner) -> None:
    cluster("topic", "create", "n-writeonly", "--queues", "2")
    cluster("send", "n-writeonly", "x", "--queue", "1")
    asked = cluster("topic", "alter", "n-writeonly", "--perm", "w")
    assert asked.code == 2
    assert "this hides 1 stored message of topic 'n-writeonly'" in asked.err
    assert cluster("topic", "alter", "n-writeonly", "--perm", "w", "--yes").code == 0


def test_nothing_is_asked_where_nothing_is_hidden(cluster: Runner) -> None:
    cluster("topic", "create", "n-empty", "--queues", "4")
    cluster("send", "n-empty", "x", "--queue", "0")
    assert cluster("topic", "alter", "n-empty", "--write-queues", "1").code == 0
    done = cluster("topic", "alter", "n-empty", "--queues", "1")
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize("verb", ["create", "alter"])
def test_queues_that_are_written_and_not_read_are_refused(verb: str, cluster: Runner) -> None:
    """With one queue to read and four to write, half of what was sent was never read by anybody."""
    if verb == "alter":
        cluster("topic", "create", "n-unread-alter", "--queues", "1")
    refused = cluster("topic", verb, f"n-unread-{verb}", "--queues", "1", "--write-queues", "4")
    assert (refused.code, refused.out) == (2, "")
    assert "4 queues to write and 1 to read: nobody would get the messages in queues 1 to 3" in refused.err


def test_deleting_a_topic_asks_with_what_is_lost(cluster: Runner) -> None:
    cluster("topic", "create", "n-delete", "--queues", "1")
    cluster("send", "n-delete", "x")
    cluster("consume", "n-delete", "--group", "n-delete-group")
    asked = cluster("topic", "delete", "n-delete")
    assert asked.code == 2
    assert "Delete topic n-delete with its 1 message and the offsets of n-delete-group?" in asked.err


def test_describe_shows_order_and_attributes(cluster: Runner) -> None:
    """A FIFO topic and an ordered one looked like any other."""
    cluster("topic", "create", "n-fifo", "--queues", "1", "--order", "--attribute", "message.type=FIFO")
    shown = cluster("topic", "describe", "n-fifo").lines[0]
    assert shown == "broker-a: 1 queue to read, 1 to write, permission rw, ordered, message.type=FIFO"
