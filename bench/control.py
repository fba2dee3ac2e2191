"""How soon small control requests are answered while eight connections send and pull as fast as they can.

    .venv/bin/python bench/control.py [--seconds 5] [--sides ours,official] [-o table|json]

Four connections send with 64 requests in flight, four pull 32 messages at a time with 16 in flight: each in a process
of its own, over plain sockets. Meanwhile heartbeats, offset commits and questions for the broker's state go out every
20 ms, first over a connection of their own, then over one that has 64 sends in flight itself; the broker's metrics port
is asked for its health (`aerobee` has one), and the nameserver beside it takes registrations and is asked for routes.
Wanted: all of them within 200 ms. What the machine does besides counts: its load is shown.
The official side needs Java and Maven.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bench.load import frame, heartbeat  # noqa: E402
from bench.sides import Maker, start_side  # noqa: E402

from plain_remoting import make_topic  # noqa: E402

TOPIC, QUEUES, BODY = "Control", 4, b"x" * 128
SENDS_IN_FLIGHT, PULLS_IN_FLIGHT = 64, 16
EVERY_S = 0.02
WANTED_MS = 200
WORDS = struct.Struct(">II")
SEND_V2, PULL, UPDATE_OFFSET, HEART_BEAT, RUNTIME_INFO, REGISTER, ROUTE = 310, 11, 15, 34, 28, 103, 105
PROBES = ("heartbeat", "offset commit", "broker status")
NAMESERVER_PROBES = ("registration", "route")
REGISTERED_TOPICS = 50


@dataclass(slots=True)
class Row:
    """One line of the table."""

    side: str
    request: str
    connection: str  # "own" or "busy"
    median_ms: float
    p99_ms: float
    worst_ms: float
    reached: bool


def send(number: int) -> bytes:
    fields = {
        "a": "bench",
        "b": TOPIC,
        "c": "TBW102",
        "d": str(QUEUES),
        "e": str(number % QUEUES),
        "f": "0",
        "g": "1763700000000",
        "h": "0",
        "i": "",
        "j": "0",
        "k": "false",
        "m": "false",
    }
    return frame(SEND_V2, number, fields, BODY)


def pull(number: int) -> bytes:
    fields = {
        "consumerGroup": "control",
        "topic": TOPIC,
        "queueId": str(number % QUEUES),
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "1",
        "expressionType": "TAG",
    }
    return frame(PULL, number, fields)


def probe(kind: str, number: int) -> bytes:
    if kind == "heartbeat":
        return heartbeat("control", number)
    if kind == "broker status":
        return frame(RUNTIME_INFO, number, {})
    if kind == "route":
        return frame(ROUTE, number, {"topic": TOPIC})
    if kind == "registration":
        return registration(number)
    fields = {"consumerGroup": "control", "topic": TOPIC, "queueId": "0", "commitOffset": "1"}
    return frame(UPDATE_OFFSET, number, fields)


def registration(number: int) -> bytes:
    """Of a broker beside the one that is measured, with a change each time."""
    names = [f"Registered{topic}" for topic in range(REGISTERED_TOPICS)]
    table = {name: {"topicName": name, "perm": 6, "readQueueNums": number % 8 + 1} for name in names}
    version = {"counter": number, "stateVersion": 0, "timestamp": number}
    wrapper = {"topicConfigTable": table, "dataVersion": version}
    body = {"filterServerList": [], "topicConfigSerializeWrapper": wrapper}
    fields = {
        "brokerName": "beside",
        "brokerAddr": "127.0.0.1:1",
        "clusterName": "Beside",
        "brokerId": "0",
        "haServerAddr": "127.0.0.1:2",
        "compressed": "false",
        "bodyCrc32": "0",
    }
    return frame(REGISTER, number, fields, json.dumps(body).encode())


def dial(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    peer = socket.create_connection((host, int(port)), 30)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as every client does
    return peer


def health(address: str, seconds: float) -> list[float]:
    """Milliseconds until each page of health, each over a connection of its own as probes do it."""
    took: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        asked = time.perf_counter()
        with dial(address) as peer:
            peer.sendall(b"GET /health HTTP/1.1\r\n\r\n")
            page = b"".join(iter(lambda: peer.recv(1 << 16), b""))
        took.append((time.perf_counter() - asked) * 1000)
        if not page.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"no health: {page[:200]!r}")
        time.sleep(max(0.0, asked + EVERY_S - time.perf_counter()))
    return took


def answers(peer: socket.socket) -> Iterator[int]:
    """Opaques of answers as they come; requests of the broker are passed over."""
    with peer.makefile("rb", 1 << 18) as stream:
        while True:
            total, marked = WORDS.unpack(stream.read(8))
            header = json.loads(stream.read(marked & 0xFFFFFF))
            stream.read(total - 4 - (marked & 0xFFFFFF))
            if header["flag"] & 1:
                yield int(header["opaque"])


def flood(address: str, make: Callable[[int], bytes], in_flight: int, stop: Event) -> None:
    """Keep so many requests in flight until it is over."""
    with dial(address) as peer:
        ready = [make(number) for number in range(in_flight)]
        peer.sendall(b"".join(ready))
        for opaque in answers(peer):
            if stop.is_set():
                return
            peer.sendall(ready[opaque])


def measured(address: str, kind: str, seconds: float, background: int) -> list[float]:
    """Milliseconds until each answer, over a connection with so many sends in flight."""
    took: list[float] = []
    with dial(address) as peer:
        sends = [send(number) for number in range(background)]
        peer.sendall(b"".join(sends))
        replies = answers(peer)
        end = time.perf_counter() + seconds
        asked, due, number = 0.0, time.perf_counter(), 0
        while time.perf_counter() < end:
            if not asked and time.perf_counter() >= due:
                number += 1
                asked = time.perf_counter()
                due = asked + EVERY_S
                peer.sendall(probe(kind, 1_000_000 + number))
            if not asked and not background:
                time.sleep(max(0.0, due - time.perf_counter()))
                continue
            opaque = next(replies)
            if opaque == 1_000_000 + number and asked:
                took.append((time.perf_counter() - asked) * 1000)
                asked = 0.0
            elif opaque < background:
                peer.sendall(sends[opaque])
    return took


def side(maker: Maker, seconds: float, folder: Path) -> Iterator[Row]:
    """Every request over both kinds of connection, beside the flood."""
    with start_side(maker, "async", folder) as one:
        one.thaw()
        address = one.broker.address
        make_topic(one.nameserver.address, address, TOPIC, queues=QUEUES)
        stop = multiprocessing.Event()
        work = [(send, SENDS_IN_FLIGHT), (pull, PULLS_IN_FLIGHT)] * 4
        floods = [
            multiprocessing.Process(target=flood, args=(address, make, count, stop), daemon=True)
            for make, count in work
        ]
        for process in floods:
            process.start()
        try:
            measured(address, "heartbeat", 1.0, 0)  # the group is there, the flood is under way
            for connection, background in (("own", 0), ("busy", SENDS_IN_FLIGHT)):
                for kind in PROBES:
                    yield row(maker, kind, connection, measured(address, kind, seconds, background))
            if maker == "ours":
                yield row(maker, "health", "new", health(one.metrics_address, seconds))
            for kind in NAMESERVER_PROBES:
                yield row(maker, kind, "own", measured(one.nameserver.address, kind, seconds, 0))
        finally:
            stop.set()
            for process in floods:
                process.join(5)
                if process.is_alive():
                    process.kill()


def row(maker: str, kind: str, connection: str, took: list[float]) -> Row:
    took = sorted(took)
    p99 = took[min(len(took) - 1, len(took) * 99 // 100)]
    return Row(maker, kind, connection, statistics.median(took), p99, took[-1], took[-1] <= WANTED_MS)


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| side | request | connection | median | 99 % | worst | wanted |", "|" + " --- |" * 7]
    for row in rows:
        times = " | ".join(f"{row[name]:.1f} ms" for name in ("median_ms", "p99_ms", "worst_ms"))
        verdict = f"< {WANTED_MS} ms: {'yes' if row['reached'] else 'NO'}"
        lines.append(f"| {row['side']} | {row['request']} | {row['connection']} | {times} | {verdict} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one measurement (5)")
    parser.add_argument("--sides", default="ours", help="ours, official, or both with a comma (ours)")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for maker in options.sides.split(","):
        if maker not in ("ours", "official"):
            parser.error(f"--sides {maker!r}: there are ours and official")
        with tempfile.TemporaryDirectory(prefix="aerobee-control-") as folder:
            rows += [asdict(row) for row in side(maker, options.seconds, Path(folder) / maker)]
    print(json.dumps(rows, indent=1) if options.output == "json" else table(rows))
    print(f"load of the machine, of itself too: {os.getloadavg()[0]:.1f}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
