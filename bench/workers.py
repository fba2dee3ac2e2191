"""Workers of one service, each pinned to a core of its own with its own load: what a second core brings, and many.

    .venv/bin/python bench/workers.py [--rounds 5] [--seconds 5] [--cores 0,1] [--only TEXT] [-o table|json]

A worker and the generator that loads it share one core (`sched_setaffinity`), so the generator's share of a core is the
same with one worker and with several; what differs is what workers take from each other: memory, disk, kernel. One
worker on the first core, the others idle, is measured in turn with one on each. Needs as many free cores as are named,
and cargo. Takes about three minutes.

What more cores would bring is worked out from what was measured, between two bounds:

    at most    each worker keeps what it has beside one other: the measured ratio, n / 2 times.
    at least   all that a second worker costs the first is waiting in one queue, as for a disk: each message takes p
               of a worker's own time and s in that queue. s is what makes mean value analysis of this closed network
               say the measured ratio for two (2 or more: s = 0), and for n workers it says the bound. The same
               network as a simulation, message by message with exponential times, shows that the formula was not
               bent to the result.

The figure for 16 cores gives a quarter of them to clients' connections, the kernel and the disk, as docs/sizing.md
says: 12 workers. It is a model, not a measurement, and as good as the ratio: a busy machine makes it worse than it is.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aerobee_service.program.interpreter_build import interpreter_build

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bench import loadgen  # noqa: E402

import ours  # noqa: E402  # found by the path above
from plain_remoting import make_topic, wait_route  # noqa: E402
from programs import Server, free_port  # noqa: E402

STRIDE = 10
TOPIC = "BenchWorkers"
WARM_S = 3.0
MANY = (2, 4, 8, 16)
RESERVED = 0.25  # of many cores, for what is not a worker
MODEL_MESSAGES = 200_000
HEADS = ("figure", "one", "all", "ratio", "rounds", "worker", "generator", "shared")
HEADS_OF_MANY = ("16 workers", "simulated", "16 cores")

FIGURES: dict[str, tuple[str, dict[str, Any]]] = {
    "send 128 B, 64 in flight": ("send", {"conns": 1, "window": 64}),
    "send 128 B, 8 x 32 in flight": ("send", {"conns": 8, "window": 32}),
    "send 4 KiB, 4 x 32 in flight": ("send", {"conns": 4, "window": 32, "size": 4096}),
    "pull of 32": ("pull", {"conns": 2}),
}


@dataclass(slots=True, frozen=True)
class Worker:
    """A worker of the service: its core, its process, where clients reach it."""

    core: int
    pid: int
    address: str

    def cpu_s(self) -> float:
        """Processor time so far, user and system."""
        words = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True, frozen=True)
class Row:
    """One figure: messages a second of one worker and of all, medians of the rounds, and what follows."""

    figure: str
    one: float
    all: float
    workers: int
    ratio: float
    rounds: list[float]  # the ratio of each
    worker_us: float  # processor time of a worker for a message, with all at work
    generator_share: float  # of the core that it shares with a worker, in processor time
    shared: float  # part of a message's time in one queue for all, if that is what a second worker costs
    at_least: dict[int, float]  # workers -> times one worker, by mean value analysis
    simulated: dict[int, float]  # the same by simulation
    at_most: dict[int, float]
    sixteen_cores: tuple[
        float, float
    ]  # messages a second, at least and at most, with a quarter of them kept free


def main() -> int:
    options = parse_args()
    if reason := loadgen.missing():
        raise SystemExit(reason)
    loadgen.build()
    say(f"workers run on {interpreter_build().text}")
    if (load := os.getloadavg()[0]) > 1.0:
        say(f"note: other programs are busy here (load {load:.1f}): the ratio will be low and uneven")
    figures = {title: FIGURES[title] for title in FIGURES if options.only in title}
    with (
        tempfile.TemporaryDirectory(prefix="aerobee-bench-") as folder,
        started(Path(folder), options.cores) as workers,
    ):
        rows = [measured(title, *figures[title], workers, options) for title in figures]
    print(json.dumps([asdict(row) for row in rows], indent=1) if options.output == "json" else table(rows))
    return 0


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="times that each figure is measured (5)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one measurement (5)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only figures whose title holds TEXT")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    parser.add_argument(
        "--cores",
        type=lambda text: [int(word) for word in text.split(",")],
        default=sorted(os.sched_getaffinity(0))[:2],
        help="cores to use, a worker on each (the first two)",
    )
    return parser.parse_args()


# --- the service --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def started(folder: Path, cores: Sequence[int]) -> Iterator[list[Worker]]:
    """A service with one worker for each core, pinned there, with asynchronous flush, warm, with something to pull."""
    others = {shift + STRIDE * place for place in range(len(cores)) for shift in (0, 1)} - {0}
    port = free_port(*sorted(others))
    with ours.start_nameserver(forked=False) as nameserver:
        settings = {
            "workers": len(cores),
            "brokerName": "bench",
            "brokerIP1": "127.0.0.1",
            "listenPort": port,
            "haListenPort": port + 1,
            "metricsPromExporterPort": 0,
            "namesrvAddr": nameserver.address,
            "storePathRootDir": folder / "store",
            "flushDiskType": "ASYNC_FLUSH",
        }
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        command = [*ours.command(), "broker", *words]
        with Server("service", command, f"127.0.0.1:{port}", r'"?workers\.ready') as server:
            pids = {
                found["worker"]: int(found["pid"])
                for found in map(json.loads, server.output.splitlines())
                if found["event"] == "worker.started"
            }
            workers = []
            for place, core in enumerate(cores):
                name, address = f"bench-{place + 1}", f"127.0.0.1:{port + STRIDE * place}"
                wait_route(nameserver.address, "TBW102", name)
                make_topic(nameserver.address, address, TOPIC, broker_name=name)
                make_topic(nameserver.address, address, f"{TOPIC}Pull", broker_name=name)
                pin(pids[name], core)
                workers.append(Worker(core, pids[name], address))
            say("warming up")
            for topic in (TOPIC, f"{TOPIC}Pull"):
                loaded(workers, "send", WARM_S, {"topic": topic, "conns": 1, "window": 64})
            yield workers


def pin(pid: int, core: int) -> None:
    """All threads of a process, and those they will make."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), {core})


def loaded(
    workers: Sequence[Worker], command: str, seconds: float, options: dict[str, Any]
) -> list[loadgen.Figure]:
    """What a generator on each worker's own core measured, all at the same time."""
    found: dict[int, loadgen.Figure] = {}

    def load(worker: Worker) -> None:
        os.sched_setaffinity(0, {worker.core})  # of this thread, and of the program that it starts
        found[worker.core] = loadgen.run(command, worker.address, seconds, **options)

    threads = [threading.Thread(target=load, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(found) != len(workers):
        raise RuntimeError("a generator failed; its error is above")
    return [found[worker.core] for worker in workers]


def measured(
    title: str, command: str, options: dict[str, Any], workers: Sequence[Worker], asked: argparse.Namespace
) -> Row:
    """One worker and all of them, in turn."""
    topic = {"topic": TOPIC if command == "send" else f"{TOPIC}Pull"}
    alone, together, worker_us, generator = [], [], [], []
    for turn in range(asked.rounds):
        subprocess.run(["sync"], check=True)
        (one,) = loaded(workers[:1], command, asked.seconds, {**options, **topic})
        subprocess.run(["sync"], check=True)
        before, used_before = [worker.cpu_s() for worker in workers], children_s()
        all_of_them = loaded(workers, command, asked.seconds, {**options, **topic})
        busy = sum(worker.cpu_s() - was for worker, was in zip(workers, before, strict=True))
        total = sum(figure.messages_per_s for figure in all_of_them)
        alone.append(float(one.messages_per_s))
        together.append(float(total))
        worker_us.append(1e6 * busy / (total * asked.seconds))
        generator.append((children_s() - used_before) / (asked.seconds * len(workers)))
        say(
            f"round {turn + 1}: {title}: {one.messages_per_s:,} -> {total:,} /s, {total / one.messages_per_s:.2f} x"
        )
    ratios = [many / single for many, single in zip(together, alone, strict=True)]
    ratio = statistics.median(ratios)
    shared = shared_part(ratio, len(workers))
    one_rate = statistics.median(alone)
    usable = round(16 * (1 - RESERVED))
    kept = min(1.0, ratio / len(workers))
    return Row(
        figure=title,
        one=one_rate,
        all=statistics.median(together),
        workers=len(workers),
        ratio=ratio,
        rounds=[round(value, 2) for value in ratios],
        worker_us=statistics.median(worker_us),
        generator_share=statistics.median(generator),
        shared=shared,
        at_least={count: speed_up(count, shared) for count in MANY},
        simulated={count: simulated(count, shared) for count in MANY},
        at_most={count: count * kept for count in MANY},
        sixteen_cores=(one_rate * speed_up(usable, shared), one_rate * usable * kept),
    )


def children_s() -> float:
    """Processor time of the programs that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# --- many cores ---------------------------------------------------------------------------------------------------


def speed_up(workers: int, shared: float) -> float:
    """Times the rate of one worker, where `shared` of a message's time is spent in one queue for all.

    Exact mean value analysis of a closed network: a station without waiting (1 - shared) and one with a queue (shared).
    """
    waiting, rate = 0.0, 0.0
    for customers in range(1, workers + 1):
        in_queue = shared * (1 + waiting)
        rate = customers / (1 - shared + in_queue)
        waiting = rate * in_queue
    return rate


def shared_part(ratio: float, workers: int) -> float:
    """The `shared` for which speed_up() gives the measured ratio; 0 where workers do not hinder each other."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if speed_up(workers, middle) > ratio:
            low = middle
        else:
            high = middle
    return low


def simulated(workers: int, shared: float, *, seed: int = 1) -> float:
    """The same network, message by message."""
    chance = random.Random(seed)  # noqa: S311  # a model

    def drawn(mean: float) -> float:
        return chance.expovariate(1 / mean) if mean > 0 else 0.0

    arrivals = [drawn(1 - shared) for _ in range(workers)]
    heapq.heapify(arrivals)
    free_at = now = 0.0
    for _ in range(MODEL_MESSAGES):
        now = heapq.heappop(arrivals)
        free_at = max(now, free_at) + drawn(shared)
        heapq.heappush(arrivals, free_at + drawn(1 - shared))
    return MODEL_MESSAGES / now


# --- what is shown ------------------------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> str:
    """The rows for people."""
    lines = [(*HEADS, *HEADS_OF_MANY), *map(cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def cells(row: Row) -> tuple[str, ...]:
    """The columns of one row as text."""
    return (
        row.figure,
        f"{row.one:,.0f} /s",
        f"{row.all:,.0f} /s",
        f"{row.ratio:.2f}",
        f"{min(row.rounds):.2f}-{max(row.rounds):.2f}",
        f"{row.worker_us:.1f} us",
        f"{row.generator_share:.0%}",
        f"{row.shared:.1%}",
        f"{row.at_least[16]:.1f}-{row.at_most[16]:.1f} x",
        f"{row.simulated[16]:.1f} x",
        "{:,.0f}-{:,.0f} /s".format(*row.sixteen_cores),
    )


def say(text: str) -> None:
    """Progress and notes go to stderr: stdout holds the result alone."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
