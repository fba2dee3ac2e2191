"""Latency at half load, with everything going on that a broker does beside messages: how long the unlucky wait.

    .venv/bin/python bench/tails.py [--seconds 60] [--only send|pull] [--flush async|sync] [--sides both|ours|official]
                                    [--rate N] [--trace] [--unpinned] [-o table|json]

Requests leave at fixed times, whatever was answered, and latency counts from the time at which each was due: a pause of
a second is a thousand late requests, not one (`rload open-send`, `open-pull`). Half load is half of what the same
generator gets in a closed loop just before, or `--rate` of requests a second. All sides run from the start, those
that are not measured are frozen.

While it is measured: sends have keys (index rounds), log files of 64 MiB are begun and, with sends, the oldest are
deleted, the checkpoint is written each second, the store is read again in search of rot, a topic is created each
second, metrics are scraped every five (of the official broker, the table of its state is asked for).

Broker and load have a core each (see `cores`), whichever broker it is, unless `--unpinned`: the half load is found
with the same cores. The official broker has many threads, which share that core.

    late    by how much the generator itself was late, p99 and at its worst: what is not above it may be the machine's
    pauses  stretches of time with latencies of 25 ms or more, and the longest
    held    what our broker says held its event loop for 25 ms or longer: handler, or none (the machine, or a thread)

`--trace` says what our broker did in each moment with latencies of 2 ms or more (see `loop_trace`); it costs, so the
figures beside it are no figures.

Run it on a quiet machine: two cores hold broker and generator. About ten minutes for all sides.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aerobee_service.program.interpreter_build import interpreter_build

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bench import loadgen  # noqa: E402
from bench.cores import Cores, first_two, pin  # noqa: E402
from bench.loop_trace import read_trace, what_was_slow  # noqa: E402
from bench.sides import Flush, Maker, Side, start_side  # noqa: E402

import official  # noqa: E402  # found by the path above
from plain_remoting import call, make_topic, topic_fields  # noqa: E402

SEND_TOPIC, PULL_TOPIC = "TailSend", "TailPull"
QUEUES = 4
FILE_SIZE = 64 << 20
PAUSE_MS = 25
SLOW_MS = 2  # from which on a trace says why
CLOSED_S = 5.0
FILL_S = 6.0
WARM_S = {"ours": 5.0, "official": 25.0}
UPDATE_TOPIC, UPDATE_CONFIG, RUNTIME_INFO = 17, 25, 28
TOPIC_EVERY_S, SCRAPE_EVERY_S = 1.0, 5.0
# Files go whatever room there is, and all is read again at once.
BUSY = {"diskSpaceCleanForciblyRatio": 1, "cleanResourceInterval": 2000, "loopHeldMillis": PAUSE_MS}
SHAPES: dict[str, dict[str, Any]] = {
    "send": {"conns": 4, "window": 8, "keys": 1},
    "pull": {"conns": 4},
}
GRACE_S = 60.0
SLOW_SHOWN = 12  # names of slow moments, the most frequent ones


@dataclass(slots=True, frozen=True)
class Row:
    """One figure of one side; times in ms."""

    figure: str
    side: str
    rate: float  # requests per second
    p50: float
    p99: float
    p999: float
    longest: float
    late_p99: float  # the generator's own
    late: float  # at its worst
    pauses: int
    errors: int
    pauses_ms: list[list[float]] = field(default_factory=list)  # begin, length, longest latency
    begin_epoch: float = 0.0
    slow: list[str] = field(default_factory=list)  # of a trace: what was done in moments of SLOW_MS or more
    held: list[str] = field(default_factory=list)


def main() -> int:
    options = parse_args()
    if reason := loadgen.missing():
        raise SystemExit(reason)
    loadgen.build()
    makers: list[Maker] = {"both": ["ours", "official"]}.get(options.sides, [options.sides])
    if "official" in makers and (no_java := official.get_ready()):
        say(f"note: {no_java}")
        makers.remove("official")
    say(f"our side runs on {interpreter_build().text}")
    if (load := os.getloadavg()[0]) > 1.0:
        say(f"note: other programs are busy here (load {load:.1f}): tails are those of the machine")
    figures = [name for name in SHAPES if options.only in name]
    rows: list[Row] = []
    cores = None if options.unpinned else first_two()
    if cores is None:
        say(
            "note: broker and load share all processors: what one takes from the other looks like a slow broker"
        )
    with tempfile.TemporaryDirectory(prefix="aerobee-bench-") as folder, contextlib.ExitStack() as stack:
        if options.trace:
            trace_in(Path(folder))
        sides = [
            stack.enter_context(started(maker, flush, Path(folder) / f"{maker}-{flush}", cores))
            for flush in ("async", "sync")
            for maker in makers
            if options.flush in ("", flush)
        ]
        for side in sides:
            prepare(side)
        for figure in figures:
            for side in sides:
                if figure == "pull" and side.flush == "sync":
                    continue  # reading waits for no disk
                rows.append(measured(side, figure, options.seconds, options.rate))
                say(line_of(rows[-1]))
    print(json.dumps([asdict(row) for row in rows], indent=1) if options.output == "json" else table(rows))
    return 0


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="length of one measurement (60)")
    parser.add_argument("--only", default="", choices=["", *SHAPES], help="one figure")
    parser.add_argument("--flush", default="", choices=["", "async", "sync"], help="one flush mode")
    parser.add_argument("--sides", choices=["both", "ours", "official"], default="both", help="(both)")
    parser.add_argument("--rate", type=float, help="requests per second, in place of half load")
    parser.add_argument("--trace", action="store_true", help="say what our broker did in slow moments")
    parser.add_argument("--unpinned", action="store_true", help="broker and load share all processors")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    return parser.parse_args()


@contextlib.contextmanager
def started(maker: Maker, flush: Flush, folder: Path, cores: Cores | None) -> Iterator[Side]:
    """One side on its core."""
    with contextlib.ExitStack() as stack:
        with contextlib.nullcontext() if cores is None else cores.starting():
            side = stack.enter_context(start_side(maker, flush, folder, config=settings_of(maker)))
        if cores is not None:
            pin(side.nameserver.pid, cores.load)
        yield side


def trace_in(folder: Path) -> None:
    """Have our brokers write down what takes long; the newest of them writes to the file that is read."""
    os.environ["AEROBEE_TRACE"] = str(folder / "trace")
    os.environ["AEROBEE_COMMAND"] = f"{sys.executable} {Path(__file__).parent / 'loop_trace.py'}"


def settings_of(maker: str) -> dict[str, object]:
    """What is set beside the flush mode: small log files; ours reads its store again and tells who holds its loop."""
    small: dict[str, object] = {"mappedFileSizeCommitLog": FILE_SIZE}
    return {**small, **BUSY, "scrubInterval": 1000} if maker == "ours" else small


def prepare(side: Side) -> None:
    """Make the topics, warm up, and store what pulls will read."""
    say(f"warming up {side.name}")
    with side.measured():
        for topic in (SEND_TOPIC, PULL_TOPIC):
            make_topic(side.nameserver.address, side.broker.address, topic, queues=QUEUES)
        loadgen.run(
            "send", side.broker.address, WARM_S[side.maker], topic=SEND_TOPIC, queues=QUEUES, **SHAPES["send"]
        )


def measured(side: Side, figure: str, seconds: float, rate: float | None) -> Row:
    """Half load for so long, with everything else going on."""
    with side.measured():
        shape = {**SHAPES[figure], "topic": SEND_TOPIC if figure == "send" else PULL_TOPIC, "queues": QUEUES}
        depth = 0
        if figure == "pull":
            if side.maker == "ours":
                change_settings(side, diskSpaceCleanForciblyRatio=85)  # what is read must stay
            stored = loadgen.run(
                "send", side.broker.address, FILL_S, topic=PULL_TOPIC, queues=QUEUES, conns=4, window=32
            )
            depth = int(stored.messages_per_s * FILL_S * 0.9) // QUEUES
        if rate is None:
            closed = loadgen.run(figure, side.broker.address, CLOSED_S, **shape)
            rate = closed.requests_per_s / 2
        said_before = len(side.broker.output)
        trace = (
            Path(os.environ["AEROBEE_TRACE"])
            if side.maker == "ours" and "AEROBEE_TRACE" in os.environ
            else None
        )
        with everything_else(side):
            pause_ms = SLOW_MS
            found = open_loop(
                side, figure, seconds, rate, {**shape, "depth": depth, "pause-us": pause_ms * 1000}
            )
        held = held_lines(side.broker.output[said_before:]) if side.maker == "ours" else []
    slow: list[str] = []
    if trace is not None:
        slow = what_was_slow(read_trace(trace), moments(found))
        trace.write_text("")
    return Row(
        figure=figure,
        side=side.name,
        rate=rate,
        p50=found["p50_us"] / 1000,
        p99=found["p99_us"] / 1000,
        p999=found["p999_us"] / 1000,
        longest=found["max_us"] / 1000,
        late_p99=found["late_p99_us"] / 1000,
        late=found["late_max_us"] / 1000,
        pauses=sum(longest >= PAUSE_MS * 1000 for _, _, longest in found["pauses_us"]),
        errors=found["errors"],
        pauses_ms=[[part / 1000 for part in pause] for pause in found["pauses_us"]],
        slow=slow,
        begin_epoch=found["begin_epoch_us"] / 1e6,
        held=held,
    )


def moments(found: dict[str, Any]) -> Iterator[tuple[float, float, float]]:
    """When requests were late, by the clock of the broker: begin, end, longest latency in ms."""
    for begin_us, length_us, longest_us in found["pauses_us"]:
        begin = (found["begin_epoch_us"] + begin_us) / 1e6
        yield begin, begin + max(length_us, longest_us) / 1e6, longest_us / 1000


def open_loop(
    side: Side, figure: str, seconds: float, rate: float, options: dict[str, Any]
) -> dict[str, Any]:
    """Run the generator at a fixed rate; what it measured."""
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    done = subprocess.run(
        [
            str(loadgen.BINARY),
            f"open-{figure}",
            *("--addr", side.broker.address, "--secs", f"{seconds:g}", "--rate", f"{rate:g}"),
            *words,
        ],
        capture_output=True,
        text=True,
        timeout=seconds + GRACE_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"rload open-{figure} against {side.name} failed:\n{done.stdout}{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# --- what goes on beside ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def everything_else(side: Side) -> Iterator[None]:
    """Topics are made and figures are asked for while it is measured."""
    done = threading.Event()
    threads = [
        threading.Thread(target=make_topics, args=(side, done), name="topics"),
        threading.Thread(target=scrape, args=(side, done), name="scrapes"),
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


def make_topics(side: Side, done: threading.Event) -> None:
    number = 0
    while not done.wait(TOPIC_EVERY_S):
        number += 1
        call(side.broker.address, UPDATE_TOPIC, topic_fields(f"Tail{os.urandom(3).hex()}{number}", QUEUES))


def scrape(side: Side, done: threading.Event) -> None:
    while not done.wait(SCRAPE_EVERY_S):
        if side.metrics_address:
            with urllib.request.urlopen(f"http://{side.metrics_address}/metrics", timeout=30) as answer:
                answer.read()
        else:
            call(side.broker.address, RUNTIME_INFO, {})


def change_settings(side: Side, **settings: object) -> None:
    body = "".join(f"{key}={value}\n" for key, value in settings.items()).encode()
    answer, _ = call(side.broker.address, UPDATE_CONFIG, {}, body)
    assert answer["code"] == 0, answer


def held_lines(output: str) -> list[str]:
    """Who held our event loop, from its log."""
    lines = [json.loads(line) for line in output.splitlines() if '"remoting.loop_held"' in line]
    return [f"{line['handler']} {line['took_ms']} ms" for line in lines]


# --- what is shown ------------------------------------------------------------------------------------------------

HEADS = ("figure", "side", "rate", "p50", "p99", "p99.9", "longest", "late p99", "late", "pauses", "errors")


def table(rows: Sequence[Row]) -> str:
    """The rows for people, and who held our loop."""
    lines = [HEADS, *map(cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = [
        "  ".join(
            cell.rjust(width) if place > 1 else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    held = [f"{row.figure}, {row.side}: held by {', '.join(row.held[:20])}" for row in rows if row.held]
    slow = [f"{row.figure}, {row.side}: {name}" for row in rows for name in row.slow[:SLOW_SHOWN]]
    return "\n".join([*shown, *held, *slow])


def cells(row: Row) -> tuple[str, ...]:
    """The columns of one row as text."""
    times = (row.p50, row.p99, row.p999, row.longest, row.late_p99, row.late)
    return (
        row.figure,
        row.side,
        f"{row.rate:,.0f} /s",
        *(f"{time_ms:.1f} ms" for time_ms in times),
        str(row.pauses),
        str(row.errors),
    )


def line_of(row: Row) -> str:
    return "  ".join(cells(row))


def say(text: str) -> None:
    """Progress and notes go to stderr: stdout holds the result alone."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
