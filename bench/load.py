"""Many of everything on our broker: idle consumers, topics, groups; each beside the same without them.

    .venv/bin/python bench/load.py [--rounds 3] [--seconds 3] [--only idle|topics|groups] [-o table|json]

idle    2,000 connected consumers with a held pull each: memory of one, and what is left of the send rate of others
topics  sends to 1,000 topics with 8 queues in turn, beside sends to one topic with 8 queues
groups  100 groups that each read all of one topic, beside one group over as many connections

The two sides of a line are two brokers of one run, measured in turn; the one that is not measured is frozen. The
median of the rounds counts. The processor time of a message depends less on what else the machine does than the rate.
Needs cargo, or bench/rload built before. About four minutes, and 2 GiB of disk, which it frees again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aerobee_service.program.interpreter_build import interpreter_build

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bench import loadgen  # noqa: E402
from bench.sides import Side  # noqa: E402

import ours  # noqa: E402  # found by the path above
from plain_remoting import make_topic  # noqa: E402
from programs import memory_kib  # noqa: E402

CONSUMERS, MEMBERS_PER_GROUP = 2_000, 20
TOPICS, QUEUES = 1_000, 8
GROUPS = 100
SYNC_TIMES = 6  # as long are sends to many queues measured: one round of syncs, and the pause behind it
HELD_MS = 600_000
PRELOAD_S = 3.0
WORDS = struct.Struct(">II")
HEART_BEAT, PULL = 34, 11


@dataclass(slots=True)
class Row:
    """One line of the table; `value` is what `selected` speaks of."""

    figure: str
    loaded: float
    plain: float | None
    unit: str
    value: float
    selected: str
    reached: bool


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="times that each side is measured (3)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one measurement (3)")
    parser.add_argument("--only", choices=list(LOADS), help="one kind of load")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    options = parser.parse_args()
    if reason := loadgen.missing():
        parser.error(reason)
    loadgen.build()
    say(f"our broker runs on {interpreter_build().text}")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    rows: list[Row] = []
    for name in [options.only] if options.only else LOADS:
        with tempfile.TemporaryDirectory(prefix="aerobee-load-") as folder, contextlib.ExitStack() as stack:
            rows += LOADS[name](stack, Path(folder), options.rounds, options.seconds)
    print(json.dumps([asdict(row) for row in rows], indent=1) if options.output == "json" else table(rows))
    return 0


# --- the loads ------------------------------------------------------------------------------------------------------


def idle(stack: contextlib.ExitStack, folder: Path, rounds: int, seconds: float) -> list[Row]:
    """Held pulls of idle consumers: what one costs, and what they cost others."""
    plain, loaded = start(stack, folder / "plain"), start(stack, folder / "loaded")
    for side in (plain, loaded):
        with side.measured():
            make_topic(side.nameserver.address, side.broker.address, "Idle", queues=QUEUES)
            make_topic(side.nameserver.address, side.broker.address, "Bench", queues=4)
            loadgen.run("send", side.broker.address, 1.0)
    loaded.thaw()
    before = memory_kib(loaded.broker.pid)["own"]
    consumers = stack.enter_context(idle_consumers(loaded.broker.address, CONSUMERS))
    each = (memory_kib(loaded.broker.pid)["own"] - before) / consumers

    def send(side: Side) -> loadgen.Figure:
        return loadgen.run("send", side.broker.address, seconds)

    rows = [
        Row(f"memory of one of {consumers:,} idle consumers", each, None, "KiB", each, "< 16 KiB", each < 16)
    ]
    return rows + compare("sends beside them", plain, loaded, rounds, send, send, 0.80)


@contextlib.contextmanager
def idle_consumers(address: str, count: int, first: int = 0) -> Iterator[int]:
    """Connections of consumers that have said hello and wait for messages that never come; numbers begin at `first`."""
    host, port = address.rsplit(":", 1)
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(count)]
        for number, peer in enumerate(peers, first):
            group = f"idle-{number // MEMBERS_PER_GROUP}"
            peer.sendall(heartbeat(group, number))
            with peer.makefile("rb") as stream:
                while answer_opaque(stream) != number:
                    pass  # the broker tells members of new ones
            peer.sendall(held_pull(group, number))
        # What was read before this answer came: the pulls are held.
        peers[-1].sendall(heartbeat(group, first + count + 1))
        with peers[-1].makefile("rb") as stream:
            while answer_opaque(stream) != first + count + 1:
                pass
        yield count


def answer_opaque(stream: Any) -> int:
    """The opaque of the next frame when it is an answer, -1 for a request of the broker."""
    total, marked = WORDS.unpack(stream.read(8))
    header = json.loads(stream.read(marked & 0xFFFFFF))
    stream.read(total - 4 - (marked & 0xFFFFFF))
    return int(header["opaque"]) if header["flag"] & 1 else -1


def heartbeat(group: str, number: int) -> bytes:
    subscription = {"topic": "Idle", "subString": "*", "expressionType": "TAG", "subVersion": 1}
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [subscription],
    }
    body = {"clientID": f"10.0.0.1@{number}", "consumerDataSet": [consumer], "producerDataSet": []}
    return frame(HEART_BEAT, number, {}, json.dumps(body).encode())


def held_pull(group: str, number: int) -> bytes:
    fields = {
        "consumerGroup": group,
        "topic": "Idle",
        "queueId": str(number % QUEUES),
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "6",
        "commitOffset": "0",
        "suspendTimeoutMillis": str(HELD_MS),
        "subscription": "*",
        "subVersion": "1",
        "expressionType": "TAG",
    }
    return frame(PULL, number, fields)


def frame(code: int, opaque: int, fields: dict[str, str], body: bytes = b"") -> bytes:
    head = {
        "code": code,
        "extFields": fields,
        "flag": 0,
        "language": "JAVA",
        "opaque": opaque,
        "version": 475,
    }
    header = json.dumps(head, separators=(",", ":")).encode()
    return WORDS.pack(4 + len(header) + len(body), len(header)) + header + body


def topics(stack: contextlib.ExitStack, folder: Path, rounds: int, seconds: float) -> list[Row]:
    """Sends that go to another queue each time, beside sends to the queues of one topic.

    Measured for longer than the others, both sides alike: with thousands of queues rounds of syncs are a quarter of a
    minute apart, and a frozen broker begins one when it wakes.
    """
    plain, loaded = start(stack, folder / "plain"), start(stack, folder / "loaded")
    with plain.measured():
        make_topic(plain.nameserver.address, plain.broker.address, "Bench", queues=QUEUES)
        loadgen.run("send", plain.broker.address, 1.0, queues=QUEUES)
    with loaded.measured():
        began = time.monotonic()
        created = make_all_queues(loaded.broker.address)
        took = time.monotonic() - began
        memory = memory_kib(loaded.broker.pid)["own"] / 1024
        say(f"{created:,} queues made in {took:.1f} s; {memory:.0f} MiB of memory besides files")
        loadgen.run("send", loaded.broker.address, 1.0, topics=TOPICS, queues=QUEUES)

    def one(side: Side) -> loadgen.Figure:
        return loadgen.run("send", side.broker.address, seconds * SYNC_TIMES, queues=QUEUES)

    def many(side: Side) -> loadgen.Figure:
        return loadgen.run("send", side.broker.address, seconds * SYNC_TIMES, topics=TOPICS, queues=QUEUES)

    rows = [
        Row(
            "first message of a queue",
            took * 1000 / created,
            None,
            "ms",
            took * 1000 / created,
            "< 2 ms",
            took * 1000 < created * 2,
        )
    ]
    return rows + compare(f"sends to {TOPICS:,} x {QUEUES} queues", plain, loaded, rounds, one, many, 0.85)


def make_all_queues(address: str, topic_count: int = TOPICS) -> int:
    """One message to every queue of so many topics."""
    count = topic_count * QUEUES
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as peer, peer.makefile("rb") as stream:
        for first in range(0, count, 50):
            numbers = range(first, min(first + 50, count))
            peer.sendall(b"".join([first_message(number, topic_count) for number in numbers]))
            for _ in numbers:
                answer_opaque(stream)
    return count


def first_message(number: int, topic_count: int) -> bytes:
    topic, queue_id = f"Bench-{number % topic_count}", number // topic_count
    fields = {
        "a": "bench", "b": topic, "c": "TBW102", "d": str(QUEUES), "e": str(queue_id),
        "f": "0", "g": "1763700000000", "h": "0", "i": "", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    return frame(310, number, fields, b"x" * 128)


def groups(stack: contextlib.ExitStack, folder: Path, rounds: int, seconds: float) -> list[Row]:
    """Everything to everybody: pulls of many groups from one topic."""
    side = start(stack, folder / "one")
    with side.measured():
        make_topic(side.nameserver.address, side.broker.address, "Bench", queues=QUEUES)
        loadgen.run("send", side.broker.address, PRELOAD_S, queues=QUEUES)

    def pull(at: Side, count: int) -> loadgen.Figure:
        return loadgen.run(
            "pull", at.broker.address, seconds, conns=GROUPS, groups=count, queues=QUEUES, topic="Bench"
        )

    with side.measured():
        pull(side, GROUPS)  # the groups are there before it counts
    title = f"messages out to {GROUPS} groups"
    return compare(title, side, side, rounds, lambda at: pull(at, 1), lambda at: pull(at, GROUPS), 0.85)


LOADS = {"idle": idle, "topics": topics, "groups": groups}


# --- measuring ------------------------------------------------------------------------------------------------------

Load = Callable[[Side], loadgen.Figure]


def start(stack: contextlib.ExitStack, folder: Path) -> Side:
    """A nameserver and a broker, frozen until they are measured."""
    folder.mkdir()
    nameserver = stack.enter_context(ours.start_nameserver(forked=False))
    config = {
        "flushDiskType": "ASYNC_FLUSH",
        "maxTopicsAutoCreated": 100_000,
        "maxConnectionsPerHost": 20_000,
        "serverChannelMaxIdleTimeSeconds": 3_600,  # a frozen broker hears nobody
    }
    broker = stack.enter_context(ours.start_broker(folder, nameserver.address, config=config, forked=False))
    side = Side("ours", "async", nameserver, broker, folder)
    stack.callback(side.thaw)
    side.freeze()
    return side


def compare(
    title: str, plain: Side, loaded: Side, rounds: int, plain_load: Load, loaded_load: Load, selected: float
) -> list[Row]:
    """The rate, and the broker's processor time of a message, of both sides in turn."""
    rates: dict[str, list[tuple[float, float]]] = {"plain": [], "loaded": []}
    for turn in range(rounds):
        for name, side, load in (("plain", plain, plain_load), ("loaded", loaded, loaded_load)):
            rates[name].append(measure(side, load))
            rate, cpu_us = rates[name][-1]
            say(f"round {turn + 1}: {title:32} {name:7} {rate:12,.0f} /s  {cpu_us:.1f} us")
    (plain_rate, plain_us), (rate, cpu_us) = (
        [statistics.median(column) for column in zip(*rates[name], strict=True)]
        for name in ("plain", "loaded")
    )
    return [
        Row(
            title,
            rate,
            plain_rate,
            "1/s",
            rate / plain_rate,
            f">= {selected:g} x",
            rate >= selected * plain_rate,
        ),
        Row(
            "  processor time of a message",
            cpu_us,
            plain_us,
            "us",
            plain_us / cpu_us,
            f">= {selected:g} x",
            plain_us >= selected * cpu_us,
        ),
    ]


def measure(side: Side, load: Load) -> tuple[float, float]:
    """Messages per second, and microseconds of the broker's processor time a message."""
    with side.measured():
        before_s, began = side.cpu_s(), time.monotonic()
        found = load(side)
        busy = (side.cpu_s() - before_s) / (time.monotonic() - began)
    if found.errors:
        say(f"note: {found.errors} requests were refused and do not count")
    return found.messages_per_s, 1e6 * busy / found.messages_per_s


def table(rows: list[Row]) -> str:
    """The rows for people."""
    lines = [("figure", "with", "without", "ratio", "wanted", "")]
    for row in rows:
        plain = "-" if row.plain is None else show(row.plain, row.unit)
        ratio = "-" if row.plain is None else f"{row.value:.2f}"
        logged = "reached" if row.reached else "missed"
        lines.append((row.figure, show(row.loaded, row.unit), plain, ratio, row.selected, logged))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place in {1, 2, 3} else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def show(value: float, unit: str) -> str:
    return f"{value:,.0f} /s" if unit == "1/s" else f"{value:.1f} {unit}"


def say(text: str) -> None:
    """Progress and notes go to stderr: stdout holds the result alone."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
