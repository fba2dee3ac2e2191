"""Every known attack against our broker and nameserver, and what another client notices of each.

    .venv/bin/python bench/attack.py [--seconds 5] [--rounds 1] [--only WORD] [--flush async|sync] [--list]
        [-o table|json]

A nameserver and a broker of their own for each attack, with the bounds of the defaults. Another client, which stays
connected, sends a message every 10 ms (at a nameserver: asks for a route), first alone, then beside the attack, which
comes from another process as fast as it can; then clients come that were not there before, and the time until each has
its first answer is shown. Wanted: its 99 % stays below five times what it is alone; memory of the process grows by less
than the sum of its bounds; no handler is named for holding the loop; and the process lives. What it is alone is that of
all messages that it sent alone, whichever attack followed: of 300 messages, 99 % is the third largest, which is 0.5 ms
one time and 9 another. Of several rounds, the median counts. As if they came from other machines, attacker and client
have one processor for themselves, where the client goes first, and the server has the others. No processor sleeps,
where that is allowed: the host of a virtual machine may take 5 ms to wake one. On a busy machine they wait all the
same: its load is shown.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import re
import selectors
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Literal

import trustme

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import attacks  # noqa: E402  # found by the path above
import ours  # noqa: E402
from attacks import ATTACKS, SECRET, TOPIC, USER, Attack, Target, route, send, signed_send  # noqa: E402
from limits import memory_max  # noqa: E402
from plain_remoting import make_topic  # noqa: E402
from programs import Server, free_port, memory_kib  # noqa: E402
from service.tls.certificates import write_pair  # noqa: E402

EVERY_S = 0.01
TIMES_WANTED = 5.0
WORDS = struct.Struct(">II")
DRIP_S = 0.05
STAYS_S = 1.2  # before the first figure; then the server knows it for a client that stays
COMING = 5
# Bytes of an attack for one call of the kernel, which lets nobody else have the processor before it returns: several
# milliseconds for some MiB, which the client would wait, as if it were the server's doing.
PIECE_SIZE = 1 << 16
FLUSH_TYPES = {"async": "ASYNC_FLUSH", "sync": "SYNC_FLUSH"}
ALL_CPUS = os.sched_getaffinity(0)
ANSWER_PATIENCE_S = 60.0


@dataclass(slots=True)
class Measured:
    """One attack, once."""

    quiet: list[float]  # milliseconds of another client's sends, alone
    took: list[float]  # ... beside the attack
    comes_ms: float  # until a client that connects during it has its first answer: the median of a few
    grown_mib: float  # memory of the process that is attacked, at its most
    held: str  # handlers that were named for holding the loop, and how long
    lives: bool


@dataclass(slots=True)
class Row:
    """One attack, and what came of it."""

    attack: str
    target: str
    quiet_ms: float  # 99 % of another client's sends, alone: of those beside all attacks
    attacked_ms: float  # ... beside the attack
    worst_ms: float
    comes_ms: float  # until a client that connects during it has its first answer: the median of a few
    grown_mib: float  # memory of the process that is attacked, at its most
    held: str  # handlers that were named for holding the loop, and how long
    lives: bool
    reached: bool


def dial(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    peer = socket.create_connection((host, int(port)), ANSWER_PATIENCE_S)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer


# --- the attacker, in a process of its own --------------------------------------------------------------------------


def attack(address: str, name: str, stop: Event) -> None:
    """Do it until it is over. Whatever the server does to a connection, another one follows."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # the client goes first where both are
    one = next(found for found in ATTACKS if found.name == name)
    if one.how == "hold":
        hold(address, one, stop)
        return
    doing = {"pipeline": pipeline, "unread": unread, "churn": churn, "drip": drip}[one.how]
    threads = [
        threading.Thread(target=again, args=(doing, address, one, number, stop), daemon=True)
        for number in range(one.connections)
    ]
    for thread in threads:
        thread.start()
    stop.wait()


def again(
    doing: Callable[[str, Attack, int, Event], None], address: str, one: Attack, number: int, stop: Event
) -> None:
    start = number * 1_000_000
    while not stop.is_set():
        with contextlib.suppress(OSError):
            doing(address, one, start, stop)
        start += 100_000


def pipeline(address: str, one: Attack, start: int, stop: Event) -> None:
    with dial(address) as peer:
        threading.Thread(target=drain, args=(peer,), daemon=True).start()
        while not stop.is_set():
            give(peer, one.make(start))
            start += 1


def give(peer: socket.socket, data: bytes) -> None:
    """All of it, in pieces."""
    with memoryview(data) as view:
        for at in range(0, len(view), PIECE_SIZE):
            peer.sendall(view[at : at + PIECE_SIZE])


def drain(peer: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while peer.recv(1 << 18):
            pass


def unread(address: str, one: Attack, start: int, stop: Event) -> None:
    with dial(address) as peer:
        peer.settimeout(1)
        while not stop.is_set():
            try:
                give(peer, one.make(start))
            except TimeoutError:
                stop.wait(1)
            start += 1


def churn(address: str, one: Attack, start: int, stop: Event) -> None:
    while not stop.is_set():
        with dial(address) as peer:
            give(peer, one.make(start))
            if one.target == "metrics":
                drain(peer)
        start += 1


def drip(address: str, one: Attack, start: int, stop: Event) -> None:
    with dial(address) as peer:
        for byte in one.make(start):
            peer.sendall(bytes([byte]))
            if stop.wait(DRIP_S):
                return


def hold(address: str, one: Attack, stop: Event) -> None:
    """All connections at once, each with its request; those that the server closes are opened again."""
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
        number = 0
        while not stop.is_set():
            while len(selector.get_map()) < one.connections and not stop.is_set():
                try:
                    peer = stack.enter_context(dial(address))
                    give(peer, one.make(number))
                except OSError:
                    stop.wait(0.05)
                    continue
                peer.setblocking(False)
                selector.register(peer, selectors.EVENT_READ)
                number += 1
            for key, _ in selector.select(0.2):
                peer = key.fileobj  # type: ignore[assignment]
                with contextlib.suppress(BlockingIOError):
                    try:
                        gone = not peer.recv(1 << 16)
                    except ConnectionError:
                        gone = True
                    if gone:
                        selector.unregister(peer)
                        peer.close()


# --- the other client -----------------------------------------------------------------------------------------------


def measured(peer: socket.socket, make: Callable[[int], bytes], seconds: float) -> list[float]:
    """Milliseconds until each answer: one request every EVERY_S, those that are late are asked all the same."""
    took: list[float] = []
    with peer.makefile("rb", 1 << 16) as stream:
        end, due, number = time.perf_counter() + seconds, time.perf_counter(), 0
        while (now := time.perf_counter()) < end:
            if now < due:
                time.sleep(due - now)
                # Where it wakes up late, that is its own machine's doing: nobody has asked yet.
                due = time.perf_counter()
            number += 1
            peer.sendall(make(number))
            read_answer(stream, number)
            # From when it was due: a wait of a second is a hundred requests that waited, not one.
            answered = time.perf_counter()
            while due < answered:
                took.append((answered - due) * 1000)
                due += EVERY_S
    return took


def read_answer(stream: io.IOBase, number: int) -> None:
    """Until there is the one to this request."""
    while True:
        total, marked = WORDS.unpack(stream.read(8))
        header = json.loads(stream.read(marked & 0xFFFFFF))
        stream.read(total - 4 - (marked & 0xFFFFFF))
        if header["flag"] & 1 and header["opaque"] == number:
            return


def coming(address: str, make: Callable[[int], bytes]) -> float:
    """Milliseconds that a client needs to connect and to have its first answer: the median of COMING."""
    took = []
    for number in range(1, COMING + 1):
        began = time.perf_counter()
        with dial(address) as peer, peer.makefile("rb", 1 << 16) as stream:
            peer.sendall(make(number))
            read_answer(stream, number)
        took.append((time.perf_counter() - began) * 1000)
    return sorted(took)[COMING // 2]


def p99(took: list[float]) -> float:
    ordered = sorted(took)
    return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]


# --- who runs where ---------------------------------------------------------------------------------------------------


def apart(server: int) -> None:
    """The server's threads on all processors but the last one, client and attacker on that one, as if they came from
    another machine: what is measured is what the server does to the client, not who had the processor."""
    last = max(ALL_CPUS)
    os.sched_setaffinity(0, {last})
    for thread in Path(f"/proc/{server}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), (ALL_CPUS - {last}) or ALL_CPUS)


def goes_first() -> None:
    """This process before all others of its processor, where that is allowed: whoever waits for its turn there measures
    the attacker, which would be on another machine."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))


# --- one attack -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def awake() -> Iterator[None]:
    """No processor sleeps, where that is allowed: who keeps this file open says how long it may take to wake one."""
    try:
        latency = os.open("/dev/cpu_dma_latency", os.O_WRONLY)
    except OSError:
        yield
        return
    try:
        os.write(latency, struct.pack("=i", 0))
        yield
    finally:
        os.close(latency)


def settings_of(target: Target, folder: Path, flush: str) -> dict[str, object]:
    """Of a broker that is attacked there."""
    config: dict[str, object] = {
        "flushDiskType": FLUSH_TYPES[flush],
        "metricsPromExporterPort": free_port(),
        "haListenPort": free_port(),
        "enablePropertyFilter": "true",
    }
    if target == "access":
        root = json.dumps({"username": USER, "password": SECRET})
        config |= {"authenticationEnabled": "true", "initAuthenticationUser": root}
    elif target == "tls":
        certificate, key = write_pair(trustme.CA(), folder, "127.0.0.1")
        config |= {
            "tlsServerMode": "permissive",
            "tlsServerCertPath": certificate,
            "tlsServerKeyPath": key,
        }
    return config


@contextlib.contextmanager
def servers(folder: Path, target: Target, flush: str) -> Iterator[tuple[Server, Server, str]]:
    """A nameserver, a broker, and the address that is attacked."""
    config = settings_of(target, folder, flush)
    with contextlib.ExitStack() as stack:
        names = stack.enter_context(ours.start_nameserver(forked=False))
        if target == "access":  # there strangers make no topic
            with ours.start_broker(folder, names.address, forked=False) as before:
                make_topic(names.address, before.address, TOPIC, queues=4)
        broker = stack.enter_context(ours.start_broker(folder, names.address, config=config, forked=False))
        if target != "access":
            make_topic(names.address, broker.address, TOPIC, queues=4)
        ports = {"metrics": config["metricsPromExporterPort"], "replicas": config["haListenPort"]}
        own = names.address if target == "nameserver" else broker.address
        yield names, broker, f"127.0.0.1:{ports[target]}" if target in ports else own


def run(one: Attack, seconds: float, flush: str = "async") -> Measured:
    with (
        tempfile.TemporaryDirectory(prefix="aerobee-attack-") as folder,
        servers(Path(folder), one.target, flush) as (names, broker, address),
        contextlib.ExitStack() as stack,
    ):
        target = names if one.target == "nameserver" else broker
        asks: dict[str, Callable[[int], bytes]] = {"nameserver": route, "access": signed_send}
        make = asks.get(one.target, send)
        apart(target.pid)
        goes_first()
        client = stack.enter_context(dial(target.address))
        measured(client, make, STAYS_S)
        quiet = measured(client, make, seconds)
        before = memory_kib(target.pid)["own"]
        stop = multiprocessing.Event()
        attacker = multiprocessing.Process(target=attack, args=(address, one.name, stop), daemon=True)
        attacker.start()
        most = Most(target.pid)
        try:
            time.sleep(0.5)
            took = measured(client, make, seconds)
            comes_ms = coming(target.address, make)
        except (OSError, struct.error):
            took, comes_ms = [ANSWER_PATIENCE_S * 1000], ANSWER_PATIENCE_S * 1000
        finally:
            stop.set()
            attacker.join(5)
            attacker.kill()
            attacker.join()
        grown = (most.stop() - before) / 1024
        return Measured(quiet, took, comes_ms, grown, held_by(target.output), target.running)


def rows_of(measured: dict[str, list[Measured]]) -> list[Row]:
    """All that was measured, by the names of the attacks."""
    made = [one for one in attacks.ATTACKS if one.name in measured]
    quiet = defaultdict[str, list[float]](list)  # by the server that the client asks
    for one in made:
        for found in measured[one.name]:
            quiet[server_of(one)] += found.quiet
    return [judged(one, p99(quiet[server_of(one)]), measured[one.name]) for one in made]


def server_of(one: Attack) -> Literal["nameserver", "broker"]:
    return "nameserver" if one.target == "nameserver" else "broker"


def judged(one: Attack, alone: float, rounds: list[Measured]) -> Row:
    beside = statistics.median(p99(measured.took) for measured in rounds)
    grown_mib = max(measured.grown_mib for measured in rounds)
    held = ", ".join(measured.held for measured in rounds if measured.held)
    lives = all(measured.lives for measured in rounds)
    calm = beside < TIMES_WANTED * alone
    fits = grown_mib < memory_max(server_of(one)) / (1 << 20)
    return Row(
        one.name,
        one.target,
        alone,
        beside,
        max(max(measured.took) for measured in rounds),
        statistics.median(measured.comes_ms for measured in rounds),
        grown_mib,
        held,
        lives,
        calm and fits and lives and not held,
    )


def held_by(output: str) -> str:
    """Handlers that were told of in the log, each with its longest turn in ms."""
    longest: dict[str, int] = {}
    for line in output.splitlines():
        if "remoting.loop_held" in line:
            handler = re.search(r'"?handler"?[=:]\s*"?([\w.<>]+)', line)
            took_ms = re.search(r'"?took_ms"?[=:]\s*(\d+)', line)
            if handler and took_ms and handler[1] != "none":
                longest[handler[1]] = max(longest.get(handler[1], 0), int(took_ms[1]))
    return ", ".join(f"{name} {ms}" for name, ms in longest.items())


class Most:
    """The most memory that a process has of its own, looked at in a thread."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._kib = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.2):
            with contextlib.suppress(OSError):
                self._kib = max(self._kib, memory_kib(self._pid)["own"])

    def stop(self) -> int:
        """KiB."""
        self._over.set()
        self._thread.join()
        return self._kib


def heading() -> str:
    """The first two lines of the table."""
    head = (
        "attack",
        "at",
        "99 % alone",
        "99 % beside it",
        "worst",
        "who comes",
        "memory",
        "held the loop",
        "lives",
        "wanted",
    )
    return "| " + " | ".join(head) + " |\n" + "|" + " --- |" * len(head)


def line(row: Row) -> str:
    """A row of the table."""
    times = (f"{row.quiet_ms:.1f}", f"{row.attacked_ms:.1f}", f"{row.worst_ms:.0f}", f"{row.comes_ms:.0f}")
    figures = f"{' ms | '.join(times)} ms | {row.grown_mib:+.0f} MiB"
    ends = f"{row.held or '-'} | {'yes' if row.lives else 'NO'} | {'yes' if row.reached else 'NO'}"
    return f"| {row.attack} | {row.target} | {figures} | {ends} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement (5)")
    parser.add_argument("--rounds", type=int, default=1, help="times that each attack is made (1)")
    parser.add_argument("--only", default="", help="attacks whose names have this in them")
    parser.add_argument("--flush", choices=list(FLUSH_TYPES), default="async", help="of the broker (async)")
    parser.add_argument("--list", action="store_true", help="name the attacks, and do nothing")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    options = parser.parse_args()
    chosen = [one for one in attacks.ATTACKS if options.only in one.name]
    if options.list:
        print("\n".join(f"{one.target:10} {one.name}" for one in chosen))
        return 0
    measured: dict[str, list[Measured]] = {one.name: [] for one in chosen}
    for turn in range(options.rounds):
        for one in chosen:
            with awake():
                found = run(one, options.seconds, options.flush)
            measured[one.name].append(found)
            times = f"{p99(found.quiet):.1f} ms alone, {p99(found.took):.1f} ms beside it"
            print(f"round {turn + 1}: {one.name}: 99 % {times}", file=sys.stderr, flush=True)
    rows = rows_of(measured)
    if options.output == "table":
        print("\n".join([heading(), *map(line, rows)]))
    else:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    print(f"load of the machine, of itself too: {os.getloadavg()[0]:.1f}", file=sys.stderr)
    return 0 if all(row.reached for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
