"""A master with a slave beside the official pair: what a copy costs, how fast a new slave has everything.

    .venv/bin/python bench/replication.py [--rounds 3] [--seconds 5] [--sides both|ours|official] [--mib 512]

Pairs are started one after the other, with asynchronous flush on all four brokers, and each figure is measured at

    alone        a master without a slave
    async        a slave that follows; sends wait for the master alone (ASYNC_MASTER)
    two copies   sends wait for the slave, too (SYNC_MASTER, inSyncReplicas=2)

The median of the rounds counts. About six minutes; `--rounds 1 --seconds 2 --mib 64` takes two.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bench import loadgen  # noqa: E402

import official  # noqa: E402  # found by the path above
import ours  # noqa: E402
from plain_remoting import call, wait_until  # noqa: E402
from programs import Server, free_port  # noqa: E402

HA_STATUS = 907
MIB = 1 << 20
LINK_TIMEOUT_S = 60.0
LOADS = {"1 x 64": {"conns": 1, "window": 64}, "8 x 32": {"conns": 8, "window": 32}}
MODES: dict[str, dict[str, object]] = {
    "alone": {},
    "async": {"brokerRole": "ASYNC_MASTER"},
    "two copies": {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "totalReplicas": 2},
}
COMMON: dict[str, object] = {
    "flushDiskType": "ASYNC_FLUSH",
    "mappedFileSizeCommitLog": 1024 * MIB,
    "brokerIP2": "127.0.0.1",
    "slaveReadEnable": "true",
}


@dataclass
class Pair:
    """A master, and its slave where there is one."""

    master: Server
    slave: Server | None = None


@contextlib.contextmanager
def running(maker: str, mode: str, folder: Path) -> Iterator[Pair]:
    """Nameserver, master and slave of one maker, linked."""
    make = ours if maker == "ours" else official
    with contextlib.ExitStack() as stack:
        names = ours.start_nameserver() if maker == "ours" else official.start_nameserver(folder)
        at = stack.enter_context(names).address
        port = free_port(-2, 1)
        config = {**COMMON, **MODES[mode], "haListenPort": port + 1}
        pair = Pair(stack.enter_context(make.start_broker(folder / "master", at, port=port, config=config)))
        if mode != "alone":
            pair.slave = stack.enter_context(start_slave(maker, folder, at))
            wait_until(lambda: in_sync(pair.master), "the slave is linked", LINK_TIMEOUT_S)
        yield pair


def start_slave(maker: str, folder: Path, nameserver: str) -> Server:
    make = ours if maker == "ours" else official
    config = {**COMMON, "brokerRole": "SLAVE", "brokerId": 1}
    started: Server = make.start_broker(folder / "slave", nameserver, config=config)
    return started


def status(broker: Server) -> dict[str, object]:
    _, body = call(broker.address, HA_STATUS)
    found: dict[str, object] = json.loads(body)
    return found


def behind_bytes(master: Server) -> int | None:
    """What the slave has not acknowledged; None without one."""
    lines = status(master)["haConnectionInfo"]
    assert isinstance(lines, list)
    return int(lines[0]["diff"]) if lines else None


def in_sync(master: Server) -> bool:
    return behind_bytes(master) is not None


def cpu_s(broker: Server | None) -> float:
    """Processor time of the process so far."""
    if broker is None:
        return 0.0
    fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(maker: str, options: argparse.Namespace, folder: Path) -> list[tuple[str, str, str]]:
    """(figure, value, detail) of one maker."""
    rows: list[tuple[str, str, str]] = []
    alone: dict[str, float] = {}
    for mode in MODES:
        with running(maker, mode, folder / mode.replace(" ", "-")) as pair:
            loadgen.run("send", pair.master.address, 2.0, **LOADS["1 x 64"])
            for load, shape in LOADS.items():
                runs = []
                before, began = (cpu_s(pair.master), cpu_s(pair.slave)), 0
                for _ in range(options.rounds):
                    runs.append(loadgen.run("send", pair.master.address, options.seconds, **shape))
                    began += int(runs[-1].messages_per_s * options.seconds)
                rate = statistics.median(one.messages_per_s for one in runs)
                p99 = statistics.median(one.p99_us for one in runs)
                alone.setdefault(load, rate)
                spent = (cpu_s(pair.master) - before[0], cpu_s(pair.slave) - before[1])
                cpu = f"cpu master {spent[0] / began * 1e6:.1f} us/msg"
                cpu += f", slave {spent[1] / began * 1e6:.1f}" if pair.slave else ""
                part = f", {rate / alone[load]:.2f} of alone" if mode != "alone" else ""
                rows.append((f"{mode}, {load}", f"{rate:,.0f}/s", f"p99 {p99 / 1000:.1f} ms{part}; {cpu}"))
    rows.append(catch_up(maker, options.mib, folder / "catch-up"))
    return rows


def catch_up(maker: str, mib: int, folder: Path) -> tuple[str, str, str]:
    """A new slave of a master that has so much in its one log file."""
    with contextlib.ExitStack() as stack:
        names = ours.start_nameserver() if maker == "ours" else official.start_nameserver(folder)
        at = stack.enter_context(names).address
        make, port = (ours if maker == "ours" else official), free_port(-2, 1)
        config = {**COMMON, "brokerRole": "ASYNC_MASTER", "haListenPort": port + 1}
        master = stack.enter_context(make.start_broker(folder / "master", at, port=port, config=config))
        while (end := log_end(master)) < mib * MIB:
            loadgen.run("send", master.address, 1.0, size=1024, **LOADS["8 x 32"])
        stack.enter_context(start_slave(maker, folder, at))
        wait_until(lambda: in_sync(master), "the slave is linked", LINK_TIMEOUT_S)
        began, first = time.monotonic(), behind_bytes(master) or 0
        while (left := behind_bytes(master) or 0) > 0:
            time.sleep(0.01)
        took = time.monotonic() - began
        assert left == 0
        detail = f"{first / MIB:.0f} of {end / MIB:.0f} MiB in {took:.2f} s after it was first seen"
        return "catching up", f"{first / MIB / max(took, 0.001):,.0f} MiB/s", detail


def log_end(master: Server) -> int:
    return int(str(status(master)["masterCommitLogMaxOffset"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="times that each figure is measured (3)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one measurement (5)")
    parser.add_argument("--mib", type=int, default=512, help="what a new slave has to copy, below 1024 (512)")
    parser.add_argument("--sides", choices=["both", "ours", "official"], default="both", help="(both)")
    options = parser.parse_args()
    if reason := loadgen.missing():
        raise SystemExit(reason)
    loadgen.build()
    makers = {"both": ["ours", "official"]}.get(options.sides, [options.sides])
    if "official" in makers and (reason := official.get_ready()):
        raise SystemExit(reason)
    with tempfile.TemporaryDirectory(prefix="aerobee-bench-") as folder:
        for maker in makers:
            for figure, value, detail in measure(maker, options, Path(folder) / maker):
                print(f"{maker:9} {figure:20} {value:>14}   {detail}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
