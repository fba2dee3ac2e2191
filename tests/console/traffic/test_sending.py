"""`aerobee send` against a broker."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Self

import pytest

from aerobee_console.traffic.sending import send
from console.support import Runner, environment, program


def test_one_message_says_where_it_is(cluster: Runner) -> None:
    sent = cluster(
        "send", "s-one", "hello", "--tags", "new", "--key", "k1", "--key", "k2", "--property", "a=b=c"
    )
    assert sent.code == 0
    head, row = sent.lines
    assert head.split() == ["message", "id", "broker", "queue", "offset", "status"]
    assert row.split()[1] == "broker-a"
    found = cluster("query", "s-one", "k2", "-o", "json").json["messages"]
    assert [(one["body"], one["tags"], one["keys"], one["properties"]["a"]) for one in found] == [
        ("hello", "new", ["k1", "k2"], "b=c")
    ]


def test_the_result_as_json(cluster: Runner) -> None:
    (sent,) = cluster("send", "s-json", '{"a": 1}', "-o", "json").json["sent"]
    assert list(sent) == [
        "message_id",
        "offset_message_id",
        "topic",
        "broker_name",
        "queue_id",
        "queue_offset",
        "status",
    ]
    assert (sent["topic"], sent["status"]) == ("s-json", "OK")


def test_queue_and_sharding_key_choose_the_queue(cluster: Runner) -> None:
    cluster("topic", "create", "s-queue", "--queues", "4")
    (sent,) = cluster("send", "s-queue", "x", "--queue", "2", "-o", "json").json["sent"]
    assert sent["queue_id"] == 2
    sharded = {
        cluster("send", "s-queue", "x", "--sharding-key", "k", "-o", "json").json["sent"][0]["queue_id"]
        for _ in range(3)
    }
    assert len(sharded) == 1


def test_a_file_is_sent_a_message_a_line(cluster: Runner, tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(5_000)]
    file = tmp_path / "lines"
    file.write_text("\n".join([*lines, "", "from another system\r", "the last one has no end"]))
    sent = cluster("send", "s-lines", "--file", str(file))
    assert sent.code == 0
    assert sent.out.startswith("sent 5002 messages in ")
    assert sent.out.endswith("1 empty lines skipped\n")
    assert sent.err == "", "no bar where nobody looks"
    read = cluster("consume", "s-lines", "-o", "raw")
    assert sorted(read.lines) == sorted([*lines, "from another system", "the last one has no end"])


def test_the_tally_of_a_file_as_json(cluster: Runner, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("a\nb\n")
    tally = cluster("send", "s-tally", "-f", str(file), "-o", "json").json
    assert (tally["sent"], tally["failed"], tally["skipped"]) == (2, 0, 0)


def test_a_body_from_standard_input(nameserver: str) -> None:
    sent = program("send", "s-stdin", "-n", nameserver, stdin="from a pipe")
    assert sent.code == 0
    assert program("tail", "s-stdin", "-n", nameserver).out.endswith("  from a pipe\n")


def test_a_slow_pipe_is_sent_as_it_comes(nameserver: str) -> None:
    """A whole line arrives while the pipe is still open."""
    assert program("topic", "create", "s-slow", "-n", nameserver).code == 0
    sender = subprocess.Popen(
        [sys.executable, "-m", "aerobee_console", "send", "s-slow", "--file", "-", "-n", nameserver],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert sender.stdin is not None
    with sender:
        sender.stdin.write("first\nhalf a li")
        sender.stdin.flush()
        read = program("consume", "s-slow", "--follow", "--count", "1", "-o", "raw", "-n", nameserver)
        assert read.out == "first\n"
        out, _ = sender.communicate("ne\n")
    assert out.startswith("sent 2 messages")


def test_an_interrupt_ends_the_wait_for_a_pipe(nameserver: str) -> None:
    assert program("topic", "create", "s-stop", "-n", nameserver).code == 0
    sender = subprocess.Popen(
        [sys.executable, "-m", "aerobee_console", "send", "s-stop", "--file", "-", "-n", nameserver],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert sender.stdin is not None
    assert sender.stderr is not None
    with sender, sender.stderr as errors:
        sender.stdin.write("sent before the interrupt\n")
        sender.stdin.flush()
        program("consume", "s-stop", "--follow", "--count", "1", "-n", nameserver)
        sender.send_signal(2)
        assert sender.wait(30) == 130
        assert errors.read() == ""


class AnsweredAtTheEnd:
    """A client and its producer: the answers come as the producer ends, and nobody has to be waited for."""

    config = SimpleNamespace(request_timeout_s=1.0)

    def __init__(self) -> None:
        self._accepted: list[asyncio.Future[object]] = []

    def producer(self, **_: object) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for accepted in self._accepted:
            accepted.set_result(None)

    async def ready(self) -> None:
        pass

    def send_nowait(self, *_: object, **__: object) -> "asyncio.Future[object]":
        self._accepted.append(asyncio.get_running_loop().create_future())
        return self._accepted[-1]


def test_messages_that_are_answered_as_the_producer_ends_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The results are there, but the event loop has not told anybody yet."""

    def run(_: object, work: Callable[[object], Coroutine[object, object, int]]) -> int:
        return asyncio.run(work(AnsweredAtTheEnd()))

    monkeypatch.setattr("aerobee_console.traffic.sending.run", run)
    lines = tmp_path / "lines"
    lines.write_text("a\nb\n")
    assert send("t", file=lines) == 0
    assert capsys.readouterr().out.startswith("sent 2 messages")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["send", "t", "b", "--property", "a"], 2, "--property a: write name=value"),
        (["send", "t", "b", "--delay", "soon"], 2, "--delay soon: a level from 1 to 18, a span like 500ms"),
        (["send", "t", "b", "--delay", "19"], 2, "a level from 1 to 18"),
        (["send", "t", "b", "--delay", "1000000000s"], 2, "no broker waits that long"),
        (["send", "t", "b", "--file", "f"], 2, "not both"),
        (["send", "bad topic", "b"], 2, "the topic name 'bad topic' has ' '"),
        (["send", "t", ""], 2, "empty body"),
        (["send", "t", "--file", "/nowhere/lines"], 2, "/nowhere/lines: No such file"),
        (["send", "t", "b", "--queue", "99"], 5, "99"),
    ],
)
def test_what_cannot_be_sent_is_told_with_the_cause(
    words: list[str], code: int, said: str, cluster: Runner
) -> None:
    refused = cluster(*words)
    assert said in refused.err
    assert (refused.code, refused.out) == (code, "")
    assert "Traceback" not in refused.err


def test_a_line_that_the_broker_would_refuse_stops_the_file_and_is_named(
    cluster: Runner, tmp_path: Path
) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"good\n" + os.urandom(5 << 20).replace(b"\n", b"x") + b"\nnever read\n")
    refused = cluster("send", "s-large", "--file", str(file))
    assert refused.code == 2
    assert "sent 1 messages" in refused.out
    assert "line 2 was not sent" in refused.err


def test_devices_that_cannot_be_waited_for_are_read(cluster: Runner) -> None:
    assert "sent 0 messages" in cluster("send", "s-null", "--file", "/dev/null").out


@pytest.mark.parametrize(
    ("delay", "wait_ms"),
    [("1", 1000), ("300ms", 300), ("1s", 1000), ("at", 1500)],
    ids=["level", "short span", "span", "time"],
)
def test_a_delayed_message_comes_when_it_is_due(cluster: Runner, delay: str, wait_ms: int) -> None:
    topic = f"s-delay-{wait_ms}-{delay}"
    cluster("topic", "create", topic, "--queues", "1")
    begun = datetime.now(UTC)
    begun = begun.replace(microsecond=begun.microsecond // 1000 * 1000)  # brokers know milliseconds
    when = (begun + timedelta(milliseconds=wait_ms)).isoformat()
    assert cluster("send", topic, "later", "--delay", when if delay == "at" else delay).code == 0
    while not (lines := cluster("consume", topic, "-o", "json").lines):
        assert datetime.now(UTC) < begun + timedelta(seconds=30)
    (message,) = [json.loads(line) for line in lines]
    assert message["body"] == "later"
    stored = datetime.fromtimestamp(message["store_timestamp"] / 1000, UTC)
    assert timedelta(milliseconds=wait_ms) <= stored - begun < timedelta(milliseconds=wait_ms + 5000)


def test_a_topic_that_may_not_be_written_is_told_with_the_way_out(cluster: Runner, tmp_path: Path) -> None:
    """It was "not found", without a word about what to do."""
    cluster("topic", "create", "s-closed", "--queues", "1", "--perm", "r")
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    for words in (["x"], ["--file", str(lines)]):
        refused = cluster("send", "s-closed", *words)
        assert refused.code == 4
        assert "topic 's-closed' has no queue that may be written" in refused.err
        assert "aerobee topic alter s-closed --perm rw" in refused.err
    assert cluster("topic", "alter", "s-closed", "--perm", "rw").code == 0
    assert cluster("send", "s-closed", "x").code == 0


def test_a_topic_of_the_broker_itself_is_refused_not_unanswered(cluster: Runner) -> None:
    refused = cluster("send", "SCHEDULE_TOPIC_XXXX", "x")
    assert refused.code == 4
    assert "is kept for the broker itself" in refused.err


@pytest.mark.parametrize("words", [[], [""]])
def test_an_empty_body_is_told_with_the_ways_to_give_one(words: list[str], nameserver: str) -> None:
    refused = program("send", "s-empty", *words, "-n", nameserver)
    assert (refused.code, refused.out) == (2, "")
    assert "give BODY, or --file" in refused.err
