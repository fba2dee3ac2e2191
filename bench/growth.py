"""What a message costs our broker when there is more and more of everything: topics, connections, groups, stored bytes.

    .venv/bin/python bench/growth.py [--only topics|connections|groups|store ...] [--upto N] [--rounds 3] [--seconds 3]
                                     [--folder DIR] [--svg FILE] [-o table|json]

topics       sends to N topics with 8 queues each in turn, beside sends to one topic with 8 queues
connections  sends over one connection beside N consumers that wait, beside sends to a broker without them
groups       N groups that each read all of one topic over connections of their own, beside one group over as many
store        sends to a broker whose log has N GiB already, beside sends to an empty one; and how long each takes to be
             ready after an orderly stop and after SIGKILL

Both sides of a point are measured in turn, the one that is not measured is frozen. `cost` is the broker's processor
time of a message, user, system and all threads, over that of the other side: the median of the rounds' ratios. `step`
is how much it has grown since the point before; one above 25 % is marked. A store of N GiB is made of messages of 4 MiB
zeros whose bytes are then given back to the file system (holes read as zeros, so every record stays whole): 500 GiB
take less than 1 GiB of disk and about fifteen minutes. Needs cargo, or bench/rload built before. About fifteen minutes
up to the sizes that are measured without --upto.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from aerobee_service.program.interpreter_build import interpreter_build

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bench import loadgen  # noqa: E402
from bench.load import QUEUES, Load, idle_consumers, make_all_queues, measure, say, start  # noqa: E402
from bench.plot import Series, lines  # noqa: E402
from bench.sides import Side  # noqa: E402

import ours  # noqa: E402  # found by the path above
from plain_remoting import make_topic  # noqa: E402
from programs import ProgramError, memory_kib  # noqa: E402

SIZES = {
    "topics": (1, 10, 100, 1_000, 10_000),
    "connections": (1, 10, 100, 1_000, 10_000),
    "groups": (1, 10, 100, 1_000),
    "store": (1, 5, 20, 100, 500),
}
UPTO = {"topics": 10_000, "connections": 10_000, "groups": 1_000, "store": 100}
STEP_MAX = 1.25
SPARE_FILES = 500  # descriptors that neither side uses for consumers
SETTLE_TIMES = 3  # as long is a broker at work, after it has grown, before it is measured
PRELOAD_S = 3.0
TURN_MAX_S = 20.0  # for a message to each queue
GIB = 1 << 30
BODY = (4 << 20) - 4096
PAGE = 4096
PUNCH_HOLE, KEEP_SIZE = 0x02, 0x01
FILL_TIMEOUT_S = 3600.0
SETTINGS: dict[str, object] = {"mappedFileSizeCommitLog": GIB, "flushDiskType": "ASYNC_FLUSH"}


@dataclass(slots=True)
class Point:
    """One size: the loaded side, beside the other one where there is one."""

    series: str
    size: int
    rate: float  # messages a second
    cpu_us: float  # of a message
    cost: float  # over that of the other side
    memory_mib: float  # of the broker, without files
    step: float = 1.0  # cost over that of the point before
    ready_s: float | None = None  # after an orderly stop
    ready_after_kill_s: float | None = None

    @property
    def is_steep(self) -> bool:
        return self.step > STEP_MAX


def main() -> int:
    options = parse_args()
    if options.fill is not None:
        fill(options.fill, options.upto)
        return 0
    if reason := loadgen.missing():
        raise SystemExit(reason)
    loadgen.build()
    say(f"our broker runs on {interpreter_build().text}")
    if (load := os.getloadavg()[0]) > 1.0:
        say(f"note: other programs are busy here (load {load:.1f}): figures will be uneven")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    points: list[Point] = []
    is_whole = True
    for series in options.only or SIZES:
        upto = UPTO[series] if options.upto is None else options.upto
        sizes = [size for size in SIZES[series] if size <= upto]
        try:
            with tempfile.TemporaryDirectory(prefix="aerobee-growth-", dir=options.folder) as folder:
                for point in WAYS[series](Path(folder), sizes, options.rounds, options.seconds):
                    before = points[-1] if points and points[-1].series == series else None
                    point.step = point.cost / before.cost if before else 1.0
                    points.append(point)
                    say("  ".join(cells(point)))
        except (ProgramError, subprocess.SubprocessError) as failed:
            # What was measured is shown all the same.
            say(f"{series}: measured no further: {failed}")
            is_whole = False
    if options.svg:
        options.svg.write_text(plot(points))
    print(
        json.dumps([asdict(point) for point in points], indent=1)
        if options.output == "json"
        else table(points)
    )
    return 0 if is_whole else 1


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--only", action="append", choices=list(SIZES), help="one series; may be given several times"
    )
    parser.add_argument("--upto", type=int, help="the largest size (of a store in GiB: 100)")
    parser.add_argument("--rounds", type=int, default=3, help="times that each side is measured (3)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one measurement (3)")
    parser.add_argument("--folder", type=Path, help="where the stores are made for a while (the system's)")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the costs into this file")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    parser.add_argument("--fill", type=Path, help=argparse.SUPPRESS)  # for the process that writes a store
    return parser.parse_args()


# --- the series -----------------------------------------------------------------------------------------------------


def topics(folder: Path, sizes: list[int], rounds: int, seconds: float) -> Iterator[Point]:
    """Another queue for each message."""
    with contextlib.ExitStack() as stack:
        plain, loaded = start(stack, folder / "plain"), start(stack, folder / "loaded")
        with plain.measured():
            make_all_queues(plain.broker.address, 1)
        one = sending(seconds, topic="Bench-0", queues=QUEUES)
        for size in sizes:
            load = {"topic": "Bench" if size > 1 else "Bench-0", "topics": size, "queues": QUEUES}
            with loaded.measured():
                make_all_queues(loaded.broker.address, size)
                first = loadgen.run("send", loaded.broker.address, seconds, **load)
            # Each run begins with the first queue again: a shorter one would leave out the last of them.
            turn_s = min(size * QUEUES / max(first.messages_per_s, 1), TURN_MAX_S)
            settle(loaded, sending(max(seconds, 2 * turn_s), **load))
            many = sending(max(seconds, turn_s), **load)
            yield compared("topics", size, plain, loaded, rounds, one, many)


def connections(folder: Path, sizes: list[int], rounds: int, seconds: float) -> Iterator[Point]:
    """Consumers that wait, and one connection that sends."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2 - SPARE_FILES
    with contextlib.ExitStack() as stack:
        plain, loaded = start(stack, folder / "plain"), start(stack, folder / "loaded")
        for side in (plain, loaded):
            with side.measured():
                for topic in ("Idle", "Bench"):
                    make_topic(side.nameserver.address, side.broker.address, topic, queues=QUEUES)
        load = sending(seconds, queues=QUEUES)
        waiting = 0
        for size in sizes:
            if size > most:
                say(
                    f"note: {most:,} connections instead of {size:,}: no more files may be open here (ulimit -n)"
                )
                size = most
            if size == waiting:
                return
            with loaded.measured():
                stack.enter_context(idle_consumers(loaded.broker.address, size - waiting, first=waiting))
            waiting = size
            settle(loaded, load)
            yield compared("connections", size, plain, loaded, rounds, load, load)


def groups(folder: Path, sizes: list[int], rounds: int, seconds: float) -> Iterator[Point]:
    """Everything to everybody."""
    with contextlib.ExitStack() as stack:
        side = start(stack, folder / "one")
        with side.measured():
            make_topic(side.nameserver.address, side.broker.address, "Bench", queues=QUEUES)
            loadgen.run("send", side.broker.address, PRELOAD_S, queues=QUEUES)
        for size in sizes:
            one, many = pulling(seconds, size, 1), pulling(seconds, size, size)
            settle(side, many)
            yield compared("groups", size, side, side, rounds, one, many)


def store(folder: Path, sizes: list[int], rounds: int, seconds: float) -> Iterator[Point]:
    """A log that is there already."""
    with contextlib.ExitStack() as stack:
        plain = start(stack, folder / "plain")
        nameserver = stack.enter_context(ours.start_nameserver(forked=False))
        load = sending(seconds, queues=QUEUES)
        with plain.measured():
            make_topic(plain.nameserver.address, plain.broker.address, "Bench", queues=QUEUES)
        at = folder / "loaded"
        for size in sizes:
            filler = [sys.executable, __file__, "--fill", str(at / "store"), "--upto", str(size)]
            subprocess.run(filler, check=True, timeout=FILL_TIMEOUT_S, stdout=subprocess.DEVNULL)
            with ours.start_broker(at, nameserver.address, config=SETTINGS, forked=False) as broker:
                ready_s = broker.ready_after_s
                make_topic(nameserver.address, broker.address, "Bench", queues=QUEUES)
                loaded = Side("ours", "async", nameserver, broker, at)
                loaded.freeze()
                settle(loaded, load)
                point = compared("store", size, plain, loaded, rounds, load, load)
                loaded.thaw()
                os.kill(broker.pid, signal.SIGKILL)
            with ours.start_broker(at, nameserver.address, config=SETTINGS, forked=False) as broker:
                point.ready_s, point.ready_after_kill_s = ready_s, broker.ready_after_s
                broker.stop(60.0)
            yield point


WAYS: dict[str, Callable[[Path, list[int], int, float], Iterator[Point]]] = {
    "topics": topics,
    "connections": connections,
    "groups": groups,
    "store": store,
}


# --- measuring ------------------------------------------------------------------------------------------------------


def sending(seconds: float, **options: object) -> Load:
    return lambda side: loadgen.run("send", side.broker.address, seconds, **options)


def pulling(seconds: float, connection_count: int, group_count: int) -> Load:
    return lambda side: loadgen.run(
        "pull",
        side.broker.address,
        seconds,
        conns=connection_count,
        groups=group_count,
        queues=QUEUES,
        topic="Bench",
    )


def settle(side: Side, load: Load) -> None:
    """What is made for the first messages, and the syncs of what was made before, belong to no message."""
    with side.measured():
        for _ in range(SETTLE_TIMES):
            load(side)


def compared(
    series: str, size: int, plain: Side, loaded: Side, rounds: int, plain_load: Load, load: Load
) -> Point:
    """Both sides in turn; the median of the ratios of the rounds."""
    found: list[tuple[float, float, float]] = []
    for _ in range(rounds):
        _, plain_us = measure(plain, plain_load)
        rate, cpu_us = measure(loaded, load)
        found.append((rate, cpu_us, cpu_us / plain_us))
    rate, cpu_us, cost = (statistics.median(column) for column in zip(*found, strict=True))
    return Point(series, size, rate, cpu_us, cost, memory_kib(loaded.broker.pid)["own"] / 1024)


def fill(root: Path, gib: int) -> None:
    """Have the log of a store hold so many GiB; what it holds already stays."""
    from bench.micro_store import messages

    from aerobee_service.clock import epoch_ms
    from aerobee_store.disk.io import DiskIo
    from aerobee_store.store import MessageStore
    from aerobee_store.terms.config import StoreConfig

    made = MessageStore(StoreConfig(root=root), io=DiskIo(), clock=epoch_ms)
    made.open()
    body = bytes(BODY)
    with contextlib.ExitStack() as stack:
        file, name = -1, Path()
        while made.end_offset < gib * GIB:
            (message,) = messages(1, made.end_offset)
            message.body = body
            (done,) = made.append([message])
            made.confirm(made.end_offset)
            first = done.physical_offset // GIB * GIB
            if (path := root / "commitlog" / f"{first:020}") != name:
                stack.close()
                file, name = os.open(path, os.O_RDWR), path
                stack.callback(os.close, file)
                made.flush_disk()
            give_back(file, done.physical_offset - first, done.size)
    made.close()


def give_back(file: int, position: int, size: int) -> None:
    """The pages in the middle of a record, which are zeros, become a hole."""
    begin, end = (position // PAGE + 2) * PAGE, ((position + size) // PAGE - 1) * PAGE
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (
        ctypes.c_int(file),
        PUNCH_HOLE | KEEP_SIZE,
        ctypes.c_int64(begin),
        ctypes.c_int64(end - begin),
    )
    if libc.fallocate(*arguments):
        raise OSError(
            ctypes.get_errno(), "no holes can be made in files of this file system: choose another --folder"
        )


# --- the result -----------------------------------------------------------------------------------------------------

HEADS = ("series", "size", "rate", "cpu", "cost", "step", "memory", "ready", "ready after SIGKILL", "")


def cells(point: Point) -> tuple[str, ...]:
    def seconds(value: float | None) -> str:
        return "" if value is None else f"{value:.2f} s"

    return (
        point.series,
        f"{point.size:,}" + (" GiB" if point.series == "store" else ""),
        f"{point.rate:,.0f} /s",
        f"{point.cpu_us:.1f} us",
        f"{point.cost:.2f}",
        f"{point.step:.2f}",
        f"{point.memory_mib:,.0f} MiB",
        seconds(point.ready_s),
        seconds(point.ready_after_kill_s),
        "steep" if point.is_steep else "",
    )


def table(points: list[Point]) -> str:
    """The points for people."""
    rows = [HEADS, *map(cells, points)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place in {0, len(HEADS) - 1} else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def plot(points: list[Point]) -> str:
    """Cost against size, one line a series, as SVG."""
    names = list(dict.fromkeys(point.series for point in points))
    series = [
        Series(name, [(float(one.size), one.cost) for one in points if one.series == name]) for name in names
    ]
    return lines("Processor time of a message, 1 = with one of it", series)


if __name__ == "__main__":
    sys.exit(main())
