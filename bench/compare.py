"""Our broker beside the official one: same machine, same run, same load generator, one table.

    .venv/bin/python bench/compare.py [--rounds 3] [--seconds 4] [--group sends|batches|pulls|queries|clients ...]
                                      [--only TEXT] [--sides both|ours|official]
                                      [--engine auto|python|native|both] [-o table|json]

Each figure is measured on every side in turn, in several rounds; the median counts. `--engine` says which engine takes
our sends: both means two brokers of ours. Without Java and Maven ours is measured alone; without cargo the figures
of the load generator are left out. Takes about ten minutes; one group two to five; with `--rounds 1 --seconds 2` the
whole about four.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from aerobee_service.program.interpreter_build import interpreter_build

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bench import loadgen  # noqa: E402
from bench.figures import (  # noqa: E402
    FIGURES,
    GROUPS,
    LARGE,
    LARGE_TOPIC,
    PULL_TOPIC,
    QUERY_TOPIC,
    SEND_TOPICS,
    Figure,
    Measured,
)
from bench.free_memory import find_memory  # noqa: E402
from bench.report import Rates, show_cpu, speed_rows, state_rows, table  # noqa: E402
from bench.sides import Engine, Side, start_side  # noqa: E402

import official  # noqa: E402  # found by the path above
from plain_remoting import make_topic  # noqa: E402

WARM_S = {"official async": 20.0, "official sync": 8.0}
WARM_OURS_S = 3.0
PULL_MESSAGES = 600_000
LARGE_MESSAGES = 50_000  # 200 MiB
LARGE_MAX_S = 20.0
PRELOADS_MAX = 12
TOPICS = (*SEND_TOPICS, PULL_TOPIC, LARGE_TOPIC, QUERY_TOPIC)
READING = {"pull", "query", "client:reader"}
QUERY_KEYS_MAX = 100_000
CLIENT_MESSAGES = 400_000
CLIENT_JVM = ["-Xms1g", "-Xmx1g"]
CLIENT_WARM_S = 8
CLIENT_TIMEOUT_S = 120.0


def main() -> int:
    options = parse_args()
    no_java, no_rload = official.get_ready(), loadgen.missing()
    for reason in filter(None, (no_java, no_rload)):
        say(f"note: {reason}")
    makers = {"both": ["ours", "official"]}.get(options.sides, [options.sides])
    if no_java:
        makers = ["ours"]
    labels = {"auto": ["ours"], "both": ["native", "python"]}.get(options.engine, [options.engine])
    figures = [
        figure.between(labels)
        for figure in chosen_figures(options.only, options.group, with_rload=no_rload is None)
    ]
    if no_rload is None:
        loadgen.build()
    say(f"our side runs on {interpreter_build().text}")
    if (load := os.getloadavg()[0]) > 1.0:
        say(f"note: other programs are busy here (load {load:.1f}): figures will be low and uneven")
    with tempfile.TemporaryDirectory(prefix="aerobee-bench-") as folder, contextlib.ExitStack() as stack:
        sides = start_sides(stack, figures, Path(folder), makers)
        prepare(sides, figures)
        rates = measure(sides, figures, options.rounds, options.seconds)
        engines = {name: side.engine for name, side in sides.items()}
        rows = [*speed_rows(figures, rates, engines), *state_rows(sides)]
        print(json.dumps(rows, indent=1) if options.output == "json" else table(rows))
    return 0


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="times that each figure is measured (3)")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one measurement (4)")
    parser.add_argument("--group", action="append", choices=GROUPS, help="only figures of this group (all)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only figures whose title holds TEXT")
    parser.add_argument("--sides", choices=["both", "ours", "official"], default="both", help="(both)")
    parser.add_argument(
        "--engine",
        choices=["auto", "python", "native", "both"],
        default="auto",
        help="which takes our sends (auto)",
    )
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    return parser.parse_args()


def chosen_figures(text: str, groups: list[str] | None, *, with_rload: bool) -> list[Figure]:
    """Figures of the groups whose title holds the text; SystemExit that lists them all when there are none."""
    chosen = [figure for figure in FIGURES if text in figure.title and figure.group in (groups or GROUPS)]
    if not chosen:
        raise SystemExit(f"no figure holds {text!r}; there are:\n" + "\n".join(one.title for one in FIGURES))
    without_rload = {
        "client:send",
        "client:nowait",
        "client:batch",
        "client:bulk",
    }  # the others read what the generator has stored
    return [figure for figure in chosen if with_rload or figure.command in without_rload]


def start_sides(
    stack: contextlib.ExitStack, figures: list[Figure], folder: Path, makers: list[str]
) -> dict[str, Side]:
    """Start every side that a figure needs, one after the other."""
    sides: dict[str, Side] = {}
    for name in dict.fromkeys(name for figure in figures for name in figure.sides):
        label, flush = name.split()
        maker = "official" if label == "official" else "ours"
        if maker in makers:
            say(f"starting {name}")
            engine: Engine = label if label in ("python", "native") else "auto"  # type: ignore[assignment]
            at = folder / name.replace(" ", "-")
            side = stack.enter_context(start_side(maker, flush, at, engine, label))  # type: ignore[arg-type]
            sides[name] = side
            if side.engine:
                say(f"{name}: the {side.engine} engine takes sends")
    return sides


def prepare(sides: dict[str, Side], figures: list[Figure]) -> None:
    """Make topics, warm up, and store what pulls, queries and consumers will read."""
    read = {figure.options.get("topic", PULL_TOPIC) for figure in figures if figure.command in READING}
    for side in sides.values():
        say(f"warming up {side.name}")
        with side.measured():
            for topic in TOPICS:
                make_topic(side.nameserver.address, side.broker.address, topic)
            if loadgen.missing() is None:
                warm(side, read if side.flush == "async" else set())


def warm(side: Side, read: set[object]) -> None:
    """Send for the warm-up time, and on until there is enough to read in the topics `read`."""
    pulls = PULL_TOPIC in read
    address, warm_s, sent, done_s = side.broker.address, WARM_S.get(side.name, WARM_OURS_S), 0.0, 0.0
    with side.storing(PULL_TOPIC):
        for _ in range(PRELOADS_MAX):
            if done_s >= warm_s and (sent >= PULL_MESSAGES or not pulls):
                break
            done_s += 5.0
            sent += 5.0 * loadgen.run("send", address, 5.0, topic=PULL_TOPIC).messages_per_s
    side.pull_messages = int(sent)
    if LARGE_TOPIC in read:
        done_s, large = 0.0, 0
        with side.storing(LARGE_TOPIC):
            while large < LARGE_MESSAGES and done_s < LARGE_MAX_S:
                found = loadgen.run("send", address, 2.0, topic=LARGE_TOPIC, size=LARGE)
                large += int(2.0 * found.messages_per_s)
                done_s += 2.0
    if QUERY_TOPIC in read:
        with side.storing(QUERY_TOPIC):
            filled = loadgen.run("send", address, 6.0, topic=QUERY_TOPIC, keys=1).messages_per_s * 5
        side.query_keys = min(QUERY_KEYS_MAX, int(filled))


def measure(sides: dict[str, Side], figures: list[Figure], rounds: int, seconds: float) -> Rates:
    """Every figure on every side, in turn, `rounds` times."""
    rates: Rates = defaultdict(list)
    keys = min((side.query_keys for side in sides.values() if side.query_keys), default=QUERY_KEYS_MAX)
    for turn in range(rounds):
        for figure in figures:
            for name in figure.sides:
                if name in sides:
                    found = measure_once(sides[name], figure, seconds, keys)
                    rates[figure.title, name].append(found)
                    cpu = show_cpu(found.cpu_us)
                    say(f"round {turn + 1}: {figure.title:36} {name:15} {found.rate:12,.0f} /s  {cpu}")
    return rates


def measure_once(side: Side, figure: Figure, seconds: float, keys: int) -> Measured:
    """Run the figure while the other sides are frozen."""
    if figure.command in READING:
        side.warm_store(str(figure.options.get("topic", PULL_TOPIC)))
    else:
        find_memory()
    with side.measured():
        requests_before = side.requests()
        cpu_before_s, begin_s = side.cpu_s(), time.monotonic()
        if figure.is_client:
            found = run_client(side, figure.command.removeprefix("client:"), seconds)
        else:
            rate = run_figure(side, figure, seconds, keys)
            busy = (side.cpu_s() - cpu_before_s) / (time.monotonic() - begin_s)
            found = Measured(rate, 1e6 * busy / rate if rate else None)
        requests = side.requests() - requests_before
    share = requests["native"] / requests.total() if requests else None
    return Measured(found.rate, found.cpu_us, share)


def run_figure(side: Side, figure: Figure, seconds: float, keys: int) -> float:
    """Messages (of a query: answers) per second."""
    options = {**figure.options, **({"nkeys": keys} if figure.command == "query" else {})}
    found = loadgen.run(figure.command, side.broker.address, seconds, **options)
    if found.errors:
        say(f"note: {figure.title} on {side.name}: {found.errors} requests were refused and do not count")
    return found.messages_per_s


def run_client(side: Side, mode: str, seconds: float) -> Measured:
    """The client library that belongs to the side: Java for the official broker, Python for ours."""
    at = side.nameserver.address
    count = min(CLIENT_MESSAGES, side.pull_messages * 10 // 11)  # a tenth more is read before it counts
    if side.maker == "ours":
        topic, amount = (PULL_TOPIC, count) if mode == "reader" else ("BenchClient", seconds)
        found = python_client(mode, at, topic, str(amount))
    elif mode == "reader":
        found = official.judge(
            "bench-consume",
            jvm=CLIENT_JVM,
            namesrv=at,
            topic=PULL_TOPIC,
            group=f"bench-{os.urandom(4).hex()}",
            count=count,
            warm=count // 10,
        )
    else:
        found = official.judge(
            "bench-produce",
            jvm=CLIENT_JVM,
            namesrv=at,
            topic="BenchClient",
            mode={"send": "sync", "nowait": "async"}[mode],
            warm=CLIENT_WARM_S,
            secs=max(1, round(seconds)),
        )
    if found.get("failed"):
        say(f"note: {found['failed']} sends of the client on {side.name} failed and do not count")
    return Measured(float(found["perSecond"]), found.get("cpuUs"))


def python_client(mode: str, nameserver: str, topic: str, amount: str) -> dict[str, Any]:
    command = [sys.executable, str(ROOT / "bench" / "clients.py"), mode, nameserver, topic, amount]
    done = subprocess.run(  # our own program
        command, capture_output=True, text=True, timeout=CLIENT_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"bench/clients.py {mode} failed:\n{done.stdout}{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def say(text: str) -> None:
    """Progress and notes go to stderr: stdout holds the result alone."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
