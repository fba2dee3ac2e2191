"""How long a broker needs until it serves again, ours beside the official one on the same kind of store.

    .venv/bin/python bench/restart.py [--mib 1024] [--sides both|ours|official] [--folder DIR] [-o table|json]

A log of 128-byte messages, written through our store and ended by SIGKILL with 60 MiB of it not flushed, is started
by each broker: once as it was left, once after an orderly stop. Then the queues and the index of ours are
built again from the log (`aerobee store repair`), and a log of 1 KiB messages is verified (`aerobee store verify`).
Times are from the start of the process to its ready line. One store is on the disk at a time, about 2.5 GiB; it is
removed at the end. Takes about two minutes; without Java and Maven ours is measured alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bench.report import Row, table  # noqa: E402
from bench.sides import OFFICIAL_JVM, heap_gib  # noqa: E402

import official  # noqa: E402  # found by the path above
import ours  # noqa: E402

MIB = 1 << 20
UNFLUSHED_MIB = 60
VERIFY_MIB = 512
BATCH = 256
FLUSH_STEP = 48 * MIB
RESTARTS = 3
FILL_TIMEOUT_S = 600
SETTINGS: dict[str, object] = {"mappedFileSizeCommitLog": 1 << 30, "flushDiskType": "SYNC_FLUSH"}
Maker = Literal["ours", "official"]


def main() -> int:
    options = parse_args()
    if options.fill is not None:
        fill(options.fill, options.mib * MIB, options.body, kill=options.kill)
        return 0
    makers: list[Maker] = ["ours", "official"] if options.sides == "both" else [options.sides]
    if "official" in makers and (reason := official.get_ready()):
        say(f"note: {reason}")
        makers.remove("official")
    if (load := os.getloadavg()[0]) > 1.0:
        say(f"note: other programs are busy here (load {load:.1f}): times will be long and uneven")
    found: dict[Maker, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="aerobee-restart-", dir=options.folder) as folder:
        for maker in makers:
            found[maker] = restarts(maker, Path(folder) / maker, options.mib)
            shutil.rmtree(Path(folder) / maker)
        if "ours" in makers:
            found["ours"] |= verify_rate(Path(folder) / "verify")
    rows = rows_of(found)
    print(json.dumps(rows, indent=1) if options.output == "json" else table(rows))
    return 0


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mib", type=int, default=1024, help="size of the log (1024)")
    parser.add_argument("--sides", choices=["both", "ours", "official"], default="both", help="(both)")
    parser.add_argument("--folder", type=Path, help="where the stores are made for a while (the system's)")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    # For the process that writes a store and is killed.
    parser.add_argument("--fill", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--body", type=int, default=128, help=argparse.SUPPRESS)
    parser.add_argument("--kill", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- stores --------------------------------------------------------------------------------------------------


def fill(root: Path, size: int, body: int, *, kill: bool) -> None:
    """Write messages up to `size` bytes of log. With `kill` the last UNFLUSHED_MIB are not flushed, and the process
    ends itself as a crash would."""
    from bench.micro_store import messages

    from aerobee_service.clock import epoch_ms
    from aerobee_store.disk.io import DiskIo
    from aerobee_store.store import MessageStore
    from aerobee_store.terms.config import StoreConfig

    store = MessageStore(StoreConfig(root=root), io=DiskIo(), clock=epoch_ms)
    store.open()
    last_flush = size - UNFLUSHED_MIB * MIB
    number = flushed = 0
    while store.end_offset < size:
        batch = messages(BATCH, number)
        for message in batch:
            message.body = message.body[:1] * body
        store.append(batch)
        store.confirm(store.end_offset)
        number += BATCH
        if store.keys.backlog >= 64 * BATCH:
            store.keys.build(store.keys.backlog)
        if flushed + FLUSH_STEP <= store.end_offset < last_flush or flushed < last_flush <= store.end_offset:
            store.flush_disk()
            store.flush_queues()
            store.write_checkpoint()
            flushed = store.end_offset
    if kill:
        os.kill(os.getpid(), signal.SIGKILL)
    store.close()


def make_store(root: Path, mib: int, body: int, *, kill: bool) -> None:
    words = [sys.executable, __file__, "--fill", str(root), "--mib", str(mib), "--body", str(body)]
    done = subprocess.run(
        [*words, "--kill"] if kill else words,
        stdout=subprocess.DEVNULL,
        timeout=FILL_TIMEOUT_S,
        check=False,
    )
    if done.returncode != (-signal.SIGKILL if kill else 0):
        raise SystemExit(f"the store could not be written (exit code {done.returncode})")


# --- measuring -----------------------------------------------------------------------------------------------


def restarts(maker: Maker, folder: Path, mib: int) -> dict[str, float]:
    """Seconds to ready after SIGKILL and after an orderly stop; for ours also messages a second of a rebuild."""
    say(f"{maker}: a log of {mib} MiB, killed with {UNFLUSHED_MIB} MiB that are not flushed")
    make_store(folder / "store", mib, 128, kill=True)
    found = {}
    nameserver = ours.start_nameserver(forked=False) if maker == "ours" else official.start_nameserver(folder)
    with nameserver:
        found["killed"] = start_once(maker, folder, nameserver.address)
        found["stopped"] = min(start_once(maker, folder, nameserver.address) for _ in range(RESTARTS))
    if maker == "ours":
        found["rebuild"] = rebuild_rate(folder / "store")
    return found


def start_once(maker: Maker, folder: Path, nameserver: str) -> float:
    """Seconds from the start of the process to its ready line; it is stopped in order again."""
    if maker == "ours":
        broker = ours.start_broker(folder, nameserver, config=SETTINGS, forked=False)
    else:
        heap = [f"-Xms{heap_gib()}g", f"-Xmx{heap_gib()}g", *OFFICIAL_JVM]
        broker = official.start_broker(folder, nameserver, config=SETTINGS, heap=heap, patient=False)
    if broker.stop(60.0) not in (0, 143):
        raise SystemExit(f"{broker.name} did not stop in order")
    return broker.ready_after_s


def rebuild_rate(store: Path) -> float:
    """Messages a second when all queues and the index are built from the log; the whole command counts."""
    for name in ("consumequeue", "index"):
        shutil.rmtree(store / name)
    (store / "checkpoint").unlink()
    os.sync()
    took_s, _, said = timed("store", "repair", str(store), "-o", "json")
    count = next(int(line.split()[1]) for line in json.loads(said)["did"] if line.startswith("read "))
    return count / took_s


def verify_rate(folder: Path) -> dict[str, float]:
    """MB a second of processor time for a look at every record of 1 KiB messages; the whole command counts."""
    say(f"ours: verify {VERIFY_MIB} MiB of 1 KiB messages")
    make_store(folder, VERIFY_MIB, 1024, kill=False)
    _, cpu_s, _ = min(timed("store", "verify", str(folder)) for _ in range(RESTARTS))
    shutil.rmtree(folder)
    return {"verify": VERIFY_MIB * MIB / 1e6 / cpu_s}


def timed(*words: str) -> tuple[float, float, str]:
    """Seconds by the clock, seconds of processor time, standard output of an `aerobee` command."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([*ours.command(), *words], capture_output=True, text=True, check=False)
    took_s, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise SystemExit(
            f"aerobee {' '.join(words)} ended with {done.returncode}: {done.stdout}{done.stderr}"
        )
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took_s, cpu_s, done.stdout


# --- the table -----------------------------------------------------------------------------------------------

# name -> figure, unit, what is wanted, whether more is better
FIGURES = {
    "killed": ("ready after SIGKILL", "s", 1.5, False),
    "stopped": ("ready after an orderly stop", "s", 1.0, False),
    "rebuild": ("rebuild of queues and index", "1/s", 300_000.0, True),
    "verify": ("verify, 1 KiB, per core", "MB/s", 250.0, True),
}


def rows_of(found: dict[Maker, dict[str, float]]) -> list[Row]:
    rows: list[Row] = []
    for name, (figure, unit, selected, more) in FIGURES.items():
        mine, other = (found.get(maker, {}).get(name) for maker in ("ours", "official"))
        if mine is None and other is None:
            continue
        better = None if mine is None or other is None else (mine / other if more else other / mine)
        rows.append(
            {
                "figure": figure,
                "unit": unit,
                "ours": _side("ours", mine),
                "official": _side("official", other),
                "ratio": better,
                "wanted": f"{'>=' if more else '<='} {selected:,g} {unit}",
                "reached": None if mine is None else (mine >= selected if more else mine <= selected),
            }
        )
    return rows


def _side(side: str, value: float | None) -> dict[str, Any]:
    return {"side": side, "value": value, "cpu_us": None, "rounds": []}


if __name__ == "__main__":
    sys.exit(main())
