"""`aerobee consume`, `tail` and `query` against a broker."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from console.support import Runner, environment, program


@pytest.fixture(scope="module")
def numbers(nameserver: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A topic of 4 queues with the numbers 0 to 99 as bodies, the even ones tagged so, each its own key."""
    topic = "r-numbers"
    assert program("topic", "create", topic, "--queues", "4", "-n", nameserver).code == 0
    folder = tmp_path_factory.mktemp("numbers")
    for tag, first in (("even", 0), ("odd", 1)):
        file = folder / tag
        file.write_text("".join(f"{number}\n" for number in range(first, 100, 2)))
        assert program("send", topic, "--file", str(file), "--tags", tag, "-n", nameserver).code == 0
    return topic


def bodies(text: str) -> list[int]:
    return sorted(int(line) for line in text.splitlines())


def test_consume_prints_what_is_there_and_ends(cluster: Runner, numbers: str) -> None:
    read = cluster("consume", numbers, "-o", "raw")
    assert (read.code, read.err) == (0, "")
    assert bodies(read.out) == list(range(100))


def test_consume_by_tag_count_and_queue(cluster: Runner, numbers: str) -> None:
    assert bodies(cluster("consume", numbers, "--tags", "odd", "-o", "raw").out) == list(range(1, 100, 2))
    assert len(cluster("consume", numbers, "--count", "7").lines) == 7
    assert cluster("consume", numbers, "--count", "0").lines == []
    queues = {
        json.loads(line)["queue_id"]
        for line in cluster("consume", numbers, "--queue", "1", "-o", "json").lines
    }
    assert queues <= {1}


def test_consume_and_tail_by_sql(cluster: Runner) -> None:
    for price in range(2, 8):
        cluster("send", "r-sql", str(price), "--tags", "ab"[price % 2], "--property", f"price={price}")
    chosen = cluster("consume", "r-sql", "--sql", "price BETWEEN 3 AND 6 AND TAGS = 'b'", "-o", "raw")
    assert (chosen.code, chosen.err) == (0, "")
    assert bodies(chosen.out) == [3, 5]
    assert bodies(cluster("tail", "r-sql", "--sql", "price > 4.5", "-o", "raw").out) == [5, 6, 7]
    group = cluster("consume", "r-sql", "--group", "r-sql", "--sql", "price IN ('3', '4')", "-o", "raw")
    assert bodies(group.out) == [3, 4]


def test_consume_from_and_until(cluster: Runner, numbers: str) -> None:
    later = cluster("consume", numbers, "--from", "3", "-o", "json")
    assert {json.loads(line)["queue_offset"] for line in later.lines} & {0, 1, 2} == set()
    assert cluster("consume", numbers, "--until", "-1h").lines == []
    assert cluster("consume", numbers, "--from", "now").lines == []
    assert len(cluster("consume", numbers, "--from", "-1h").lines) == 100


def test_a_group_goes_on_where_it_stopped(cluster: Runner, numbers: str) -> None:
    first = cluster("consume", numbers, "--group", "r-group", "--count", "30", "-o", "raw")
    rest = cluster("consume", numbers, "--group", "r-group", "-o", "raw")
    assert len(first.lines) == 30
    assert bodies(first.out + rest.out) == list(range(100))
    assert cluster("consume", numbers, "--group", "r-group").lines == []
    progress = cluster("group", "describe", "r-group", "-o", "json").json
    assert progress["lag"] == 0
    assert sum(queue["consumer_offset"] for queue in progress["queues"]) == 100


def test_tail_prints_the_newest_of_all_queues_in_order(cluster: Runner, numbers: str) -> None:
    newest = cluster("tail", numbers, "--last", "5", "-o", "raw")
    assert len(newest.lines) == 5
    lines = [json.loads(line) for line in cluster("tail", numbers, "--last", "50", "-o", "json").lines]
    places = [(line["store_timestamp"], line["physical_offset"]) for line in lines]
    assert places == sorted(places)
    assert {line["tags"] for line in lines} == {"odd"}, "they were sent last"
    assert [line["body"] for line in lines[-5:]] == newest.lines


def test_tail_of_more_than_there_is_and_of_nothing(cluster: Runner, numbers: str) -> None:
    assert len(cluster("tail", numbers, "--last", "1000").lines) == 100
    assert cluster("tail", numbers, "--last", "0").lines == []
    cluster("topic", "create", "r-empty")
    assert cluster("tail", "r-empty") == cluster("tail", numbers, "--last", "0")


def test_tail_follows_without_a_gap_and_without_a_double(nameserver: str) -> None:
    topic = "r-follow"
    assert program("topic", "create", topic, "--queues", "3", "-n", nameserver).code == 0
    for body in ("one", "two"):
        assert program("send", topic, body, "-n", nameserver).code == 0
    follower = subprocess.Popen(
        [sys.executable, "-m", "aerobee_console", "tail", topic, "--follow", "-o", "raw", "-n", nameserver],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert follower.stdout is not None
    with follower, follower.stdout as lines:
        assert [lines.readline() for _ in range(2)] == ["one\n", "two\n"]
        assert program("send", topic, "three", "-n", nameserver).code == 0
        assert lines.readline() == "three\n"
        follower.send_signal(2)
        assert follower.wait(30) == 130
        assert lines.read() == ""


def test_what_consume_prints_raw_is_what_send_takes(nameserver: str, numbers: str, tmp_path: Path) -> None:
    copied = program("consume", numbers, "-o", "raw", "-n", nameserver)
    assert program("send", "r-copy", "--file", "-", "-n", nameserver, stdin=copied.out).code == 0
    assert bodies(program("consume", "r-copy", "-o", "raw", "-n", nameserver).out) == list(range(100))


def test_a_reader_that_has_seen_enough_ends_the_output(nameserver: str, numbers: str) -> None:
    started = subprocess.Popen(
        [sys.executable, "-m", "aerobee_console", "consume", numbers, "--follow", "-n", nameserver],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert started.stdout is not None
    assert started.stderr is not None
    started.stdout.close()
    with started, started.stderr as errors:
        assert errors.read() == b""
        assert started.wait(30) == 141


def test_query_by_key_and_by_both_ids(cluster: Runner) -> None:
    (sent,) = cluster("send", "r-query", "find me", "--keys", "r-key", "-o", "json").json["sent"]
    by_key = cluster("query", "r-query", "r-key")
    assert by_key.code == 0
    assert by_key.lines[0].split() == [
        "stored",
        "broker",
        "queue",
        "offset",
        "tags",
        "keys",
        "message",
        "id",
        "body",
    ]
    assert by_key.lines[1].endswith("find me")
    assert cluster("query", "r-query", "--key", "r-key").out == by_key.out
    for message_id in (sent["message_id"], sent["offset_message_id"]):
        (found,) = cluster("query", "r-query", "--id", message_id, "-o", "json").json["messages"]
        assert (found["body"], found["message_id"]) == ("find me", sent["message_id"])
    shown = cluster("query", "r-query", "--id", sent["message_id"]).out
    assert "message_id" in shown
    assert "find me" in shown


def test_query_bounds_by_time(cluster: Runner) -> None:
    cluster("send", "r-time", "now", "--keys", "k")
    assert cluster("query", "r-time", "k", "--begin", "-1h").code == 0
    assert cluster("query", "r-time", "k", "--end", "-1h").code == 5


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["query", "r-numbers", "nothing"], 5, "topic 'r-numbers' has no message with key 'nothing'"),
        (["query", "r-numbers"], 2, "give a key, or --id"),
        (["query", "r-numbers", "k", "--id", "x"], 2, "give a key, or --id"),
        (["tail", "r-number"], 5, "similar topics: r-numbers"),
        (["consume", "r-numbers", "--from", "yesterday"], 2, "position 'yesterday' is not one of"),
        (["consume", "r-numbers", "--from", "2026-05-01T12:00:00"], 2, "has no zone"),
        (["consume", "r-numbers", "--until", "5"], 2, "--until takes a time"),
        (["consume", "r-numbers", "--tags", "a || *"], 2, "'*' stands for all"),
        (["consume", "r-numbers", "--group", "bad group"], 2, "bad group"),
        (["consume", "r-numbers", "--sql", "KEYS > > 3"], 2, "'> 3' stands where"),
        (["tail", "r-numbers", "--sql", "KEYS LIKE '3%'"], 2, "brokers would ignore"),
        (["tail", "r-numbers", "--sql", "KEYS > 3", "--tags", "odd"], 2, "give --tags or --sql"),
    ],
)
@pytest.mark.usefixtures("numbers")
def test_what_cannot_be_read_is_told_with_the_cause(
    words: list[str], code: int, said: str, cluster: Runner
) -> None:
    refused = cluster(*words)
    assert said in refused.err
    assert (refused.code, refused.out) == (code, "")
    assert refused.err.startswith("aerobee: ")
    assert "Traceback" not in refused.err


@pytest.mark.parametrize("words", [["tail", "t"], ["send", "t", "b"], ["topic", "list"], ["cluster"]])
def test_no_nameserver_is_told_with_the_next_step(words: list[str], aerobee: Runner) -> None:
    refused = aerobee(*words, "-n", "127.0.0.1:1")
    assert refused.code == 3
    assert "nameserver 127.0.0.1:1: cannot connect" in refused.err
    assert "aerobee doctor" in refused.err


def test_the_nameserver_comes_from_the_environment_unless_it_is_given(nameserver: str) -> None:
    assert program("cluster", NAMESRV_ADDR=nameserver).code == 0
    assert program("cluster", AEROBEE_NAMESERVERS=nameserver, NAMESRV_ADDR="127.0.0.1:1").code == 0
    assert program("cluster", "-n", nameserver, NAMESRV_ADDR="127.0.0.1:1").code == 0
    assert program("cluster", "-n", "not an address at all:x").code == 2
