"""A master with a slave beside the official pair: what a copy costs, how far behind it is, how fast a new slave has
everything.

    .venv/bin/python bench/replication.py [--rounds 3] [--seconds 5] [--sides both|ours|official] [--mib 512]
                                          [--only loads|lag|catch-up] [--together]

All brokers have asynchronous flush, and each figure is measured at

    alone        a master without a slave
    async        a slave that follows; sends wait for the master alone (ASYNC_MASTER)
    two copies   sends wait for the slave, too (SYNC_MASTER, inSyncReplicas=2)

    loads        sends as fast as they are answered, and the processor time of each broker for one
    lag          a paced load of so many messages a second: how long a message that is in the master's log takes into
                 the slave's (`log_lag` says how that is seen)
    catch-up     a new slave of a master whose log has so much in it

Each broker has a processor of its own, as if it had a machine: the first is the master's, which it shares with the
load and the nameserver, the second the slave's. A master alone has the first, too. With `--together` they take what
they get.

All three of a maker run from the start, and those that are not measured are frozen: a round measures one after the
other, and the median of the rounds counts, also of the parts of a master alone. About ten minutes;
`--rounds 1 --seconds 2 --mib 256` takes three.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bench import loadgen  # noqa: E402
from bench.free_memory import find_memory  # noqa: E402
from bench.log_lag import LagWatch, log_files_under  # noqa: E402
from bench.raw_limits import raw_limits  # noqa: E402
from bench.sides import OFFICIAL_JVM  # noqa: E402

import official  # noqa: E402  # found by the path above
import ours  # noqa: E402
from plain_remoting import call, wait_until  # noqa: E402
from programs import Server, free_port  # noqa: E402

HA_STATUS = 907
MIB = 1 << 20
FILE_SIZE = 1024 * MIB
LINK_TIMEOUT_S = 60.0
GRACE_S = 40.0
LOADS = {"1 x 64": {"conns": 1, "window": 64}, "8 x 32": {"conns": 8, "window": 32}}
MODES: dict[str, dict[str, object]] = {
    "alone": {},
    "async": {"brokerRole": "ASYNC_MASTER"},
    "two copies": {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "totalReplicas": 2},
}
COMMON: dict[str, object] = {
    "flushDiskType": "ASYNC_FLUSH",
    "mappedFileSizeCommitLog": FILE_SIZE,
    "brokerIP2": "127.0.0.1",
    "slaveReadEnable": "true",
    "haHousekeepingInterval": 600_000,  # a link outlives its ends' being frozen
}
WARM_S = {"ours": 2.0, "official": 10.0}
OFFICIAL_HEAP = ["-Xms2g", "-Xmx2g"]
BODY_SIZES = {"128 B": 128, "1 KiB": 1024, "4 KiB": 4096}
PACED_CONNS = 1
Row = tuple[str, str, str]  # figure, value, detail


@dataclass(slots=True, frozen=True)
class Cores:
    """The processors of the master and of the slave."""

    master: frozenset[int]
    slave: frozenset[int]

    @contextlib.contextmanager
    def of(self, end: str) -> Iterator[None]:
        """Programs that are started meanwhile have those of this end, for good."""
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.slave if end == "slave" else self.master)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)


@dataclass
class Pair:
    """A master, and its slave where there is one."""

    folder: Path
    master: Server
    slave: Server | None = None

    def signal(self, number: int) -> None:
        """To both."""
        for broker in (self.master, self.slave):
            if broker is not None:
                os.kill(broker.pid, number)

    @contextlib.contextmanager
    def thawed(self) -> Iterator[None]:
        """They run meanwhile."""
        self.signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.signal(signal.SIGSTOP)

    def log_of(self, end: str) -> Path:
        """The folder of its commit log."""
        return log_files_under(self.folder / end)


@dataclass(slots=True, frozen=True)
class Run:
    """One load: messages per second, how long sends took, processor time of master and slave for a message."""

    rate: float
    p99_us: float
    cpu_us: tuple[float, float]


class Bench:
    """The figures of one maker."""

    def __init__(self, maker: str, options: argparse.Namespace, cores: Cores) -> None:
        self._maker = maker
        self._options = options
        self._cores = cores

    # --- brokers --------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def running(self, mode: str, folder: Path) -> Iterator[Pair]:
        """Nameserver, master and slave, linked."""
        with self.master(mode, folder) as (master, at), contextlib.ExitStack() as stack:
            pair = Pair(folder, master)
            if mode != "alone":
                pair.slave = stack.enter_context(self.slave(folder, at))
                wait_until(lambda: behind_bytes(master) is not None, "the slave is linked", LINK_TIMEOUT_S)
            yield pair

    @contextlib.contextmanager
    def master(self, mode: str, folder: Path) -> Iterator[tuple[Server, str]]:
        """A master, and where its nameserver is."""
        with self._cores.of("master"), contextlib.ExitStack() as stack:
            is_ours = self._maker == "ours"
            names = ours.start_nameserver(forked=False) if is_ours else official.start_nameserver(folder)
            at = stack.enter_context(names).address
            port = free_port(-2, 1)
            config = {**COMMON, **MODES[mode], "haListenPort": port + 1}
            yield stack.enter_context(self._broker(folder / "master", at, config, port)), at

    def slave(self, folder: Path, nameserver: str) -> Server:
        """One that is empty."""
        with self._cores.of("slave"):
            return self._broker(
                folder / "slave", nameserver, {**COMMON, "brokerRole": "SLAVE", "brokerId": 1}
            )

    def _broker(self, folder: Path, at: str, config: dict[str, object], port: int | None = None) -> Server:
        if self._maker == "ours":
            return ours.start_broker(folder, at, port=port, config=config, forked=False)
        heap = [*OFFICIAL_HEAP, *OFFICIAL_JVM]
        return official.start_broker(folder, at, port=port, config=config, heap=heap)

    def load(self, pair: Pair, seconds: float, **shape: object) -> loadgen.Figure:
        """Sends as fast as they are answered."""
        with self._cores.of("master"):
            return loadgen.run("send", pair.master.address, seconds, **shape)

    # --- figures --------------------------------------------------------------------------------------------

    def rows(self, folder: Path) -> Iterator[Row]:
        """All that are wanted."""
        only = self._options.only
        if only in ("", "loads", "lag"):
            with contextlib.ExitStack() as stack:
                pairs: dict[str, Pair] = {}
                for mode in MODES if only != "lag" else (one for one in MODES if one != "alone"):
                    pair = stack.enter_context(self.running(mode, folder / mode.replace(" ", "-")))
                    self.load(pair, WARM_S[self._maker], **LOADS["1 x 64"])
                    pair.signal(signal.SIGSTOP)
                    stack.callback(pair.signal, signal.SIGCONT)
                    pairs[mode] = pair
                if only != "lag":
                    yield from self.loads(pairs)
                for mode in (one for one in pairs if one != "alone" and only != "loads"):
                    with pairs[mode].thawed():
                        yield self.lag(mode, pairs[mode])
        for name in BODY_SIZES if only in ("", "catch-up") else ():
            yield self.catch_up(name, folder / f"catch-up-{BODY_SIZES[name]}")

    def loads(self, pairs: dict[str, Pair]) -> Iterator[Row]:
        """Of both shapes, in turn."""
        runs: dict[tuple[str, str], list[Run]] = {(load, mode): [] for load in LOADS for mode in pairs}
        for _ in range(self._options.rounds):
            for (load, mode), done in runs.items():
                with pairs[mode].thawed():
                    done.append(self.run(pairs[mode], LOADS[load]))
        for (load, mode), done in runs.items():
            parts = [one.rate / alone.rate for one, alone in zip(done, runs[load, "alone"], strict=True)]
            part = f", {statistics.median(parts):.2f} of alone" if mode != "alone" else ""
            cpu = [statistics.median(one.cpu_us[end] for one in done) for end in (0, 1)]
            detail = (
                f"p99 {statistics.median(one.p99_us for one in done) / 1000:.1f} ms{part}; {cpu_text(*cpu)}"
            )
            yield f"{mode}, {load}", f"{statistics.median(one.rate for one in done):,.0f}/s", detail

    def run(self, pair: Pair, shape: dict[str, int]) -> Run:
        """One load."""
        find_memory()
        before = cpu_s(pair.master), cpu_s(pair.slave)
        found = self.load(pair, self._options.seconds, **shape)
        if pair.slave is not None:
            wait_level(pair.master)
        count = found.messages_per_s * self._options.seconds
        return Run(found.messages_per_s, found.p99_us, cpu_us(pair, before, count))

    def lag(self, mode: str, pair: Pair) -> Row:
        """Of a paced load, as much of it as the pair takes."""
        options, slave = self._options, pair.slave
        assert slave is not None
        wait_level(pair.master)
        before = cpu_s(pair.master), cpu_s(slave)
        watch = LagWatch(pair.log_of("master"), pair.log_of("slave"), log_end(pair.master), FILE_SIZE)
        with watch:
            took, found = self._paced(pair.master.address)
            wait_level(pair.master)
        lag = watch.lag()
        detail = (
            f"p50 {lag.p50:.2f} ms, longest {lag.longest:.1f} ms, seen within {lag.step_p99:.1f} ms; "
            f"{lag.messages / took:,.0f} of {options.pace:,}/s, sends' p99 {found['p99_us'] / 1000:.1f} ms; "
            + cpu_text(*cpu_us(pair, before, lag.messages))
        )
        return f"lag, {mode}", f"p99 {lag.p99:.2f} ms", detail

    def _paced(self, address: str) -> tuple[float, dict[str, Any]]:
        """How long it took, and what the generator measured."""
        options = self._options
        words = ["--addr", address, "--secs", f"{options.seconds:g}", "--rate", str(options.pace)]
        began = time.monotonic()
        with self._cores.of("master"):
            done = subprocess.run(
                [str(loadgen.BINARY), "open-send", *words, "--conns", str(PACED_CONNS)],
                capture_output=True,
                text=True,
                timeout=options.seconds + GRACE_S,
                check=False,
            )
        if done.returncode:
            raise RuntimeError(f"rload open-send failed:\n{done.stdout}{done.stderr}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return time.monotonic() - began, found

    def catch_up(self, name: str, folder: Path) -> Row:
        """A new slave of a master that has so much in its one log file."""
        wanted = self._options.mib * MIB
        with self.master("async", folder) as (master, at), contextlib.ExitStack() as stack:
            pair = Pair(folder, master)
            while (end := log_end(master)) < wanted:
                self.load(pair, 0.5, size=BODY_SIZES[name], **LOADS["8 x 32"])
            os.sync()
            find_memory()
            pair.slave = stack.enter_context(self.slave(folder, at))
            wait_until(lambda: behind_bytes(master) is not None, "the slave is linked", LINK_TIMEOUT_S)
            began, first = time.monotonic(), behind_bytes(master) or 0
            before = cpu_s(master), cpu_s(pair.slave)
            wait_level(master)
            took = max(time.monotonic() - began, 0.001)
            spent = cpu_s(master) - before[0], cpu_s(pair.slave) - before[1]
            detail = (
                f"{first / MIB:.0f} of {end / MIB:.0f} MiB in {took:.2f} s after it was first seen; "
                f"cpu master {spent[0] / first * MIB * 1000:.2f} ms/MiB, slave {spent[1] / first * MIB * 1000:.2f}"
            )
            return f"catching up, {name}", f"{first / MIB / took:,.0f} MiB/s", detail


def status(broker: Server) -> dict[str, object]:
    _, body = call(broker.address, HA_STATUS)
    found: dict[str, object] = json.loads(body)
    return found


def behind_bytes(master: Server) -> int | None:
    """What the slave has not acknowledged; None without one."""
    lines = status(master)["haConnectionInfo"]
    assert isinstance(lines, list)
    return int(lines[0]["diff"]) if lines else None


def wait_level(master: Server) -> None:
    """Return when the slave has acknowledged everything."""
    wait_until(lambda: behind_bytes(master) == 0, "the slave has everything", LINK_TIMEOUT_S)


def log_end(master: Server) -> int:
    return int(str(status(master)["masterCommitLogMaxOffset"]))


def cpu_s(broker: Server | None) -> float:
    """Processor time of the process so far."""
    if broker is None:
        return 0.0
    fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_us(pair: Pair, before: tuple[float, float], count: float) -> tuple[float, float]:
    """What both have taken since then, for each of so many messages."""
    after = cpu_s(pair.master), cpu_s(pair.slave)
    return (after[0] - before[0]) / count * 1e6, (after[1] - before[1]) / count * 1e6


def cpu_text(master: float, slave: float) -> str:
    """What they have taken for each message, in us."""
    return f"cpu master {master:.1f} us/msg" + (f", slave {slave:.1f}" if slave else "")


def find_cores(*, together: bool) -> Cores:
    """Two processors, or what there is."""
    every = sorted(os.sched_getaffinity(0))
    if together or len(every) < 2:
        return Cores(frozenset(every), frozenset(every))
    return Cores(frozenset(every[:1]), frozenset(every[1:2]))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="times that each load is measured (3)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one measurement (5)")
    parser.add_argument("--mib", type=int, default=512, help="what a new slave has to copy, below 1024 (512)")
    parser.add_argument(
        "--pace", type=int, default=30_000, help="messages per second of the paced load (30000)"
    )
    parser.add_argument("--sides", choices=["both", "ours", "official"], default="both", help="(both)")
    parser.add_argument("--only", choices=["", "loads", "lag", "catch-up"], default="", help="some figures")
    parser.add_argument("--together", action="store_true", help="no broker has a processor of its own")
    return parser.parse_args()


def main() -> int:
    options = parse_args()
    if reason := loadgen.missing():
        raise SystemExit(reason)
    loadgen.build()
    makers = {"both": ["ours", "official"]}.get(options.sides, [options.sides])
    if "official" in makers and (reason := official.get_ready()):
        raise SystemExit(reason)
    cores = find_cores(together=options.together)
    with tempfile.TemporaryDirectory(prefix="aerobee-bench-") as folder:
        if options.only in ("", "catch-up"):
            print(f"this machine: {raw_limits(Path(folder), options.mib * MIB)}", flush=True)
        for maker in makers:
            for figure, value, detail in Bench(maker, options, cores).rows(Path(folder) / maker):
                print(f"{maker:9} {figure:20} {value:>14}   {detail}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
