"""The load generator `rload` (Rust, bench/rload): build it once, run one figure, read its line.

Touches  bench/rload/target (git-ignored), subprocesses.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Figure", "build", "missing", "run"]

CRATE = Path(__file__).resolve().parent / "rload"
BINARY = CRATE / "target" / "release" / "rload"
BUILD_TIMEOUT_S = 300.0
GRACE_S = 40.0  # beyond the asked seconds: connecting, and waiting for the last answers

LINE = re.compile(
    r"(?P<command>\w+) .*: (?P<requests>\d+) req/s (?P<messages>\d+) msg/s (?P<megabytes>[\d.]+) MB/s "
    r"err=(?P<errors>\d+) .*p50=(?P<p50>\d+)us p99=(?P<p99>\d+)us"
)


@dataclass(slots=True, frozen=True)
class Figure:
    """What one run of the generator measured: rates per second, latencies in microseconds."""

    requests_per_s: int
    messages_per_s: int
    errors: int
    p50_us: int
    p99_us: int


def missing() -> str | None:
    """Why the generator cannot be built here, or None when it is there or can be."""
    if BINARY.exists() or shutil.which("cargo"):
        return None
    return "`cargo` is not on PATH: install Rust to build the load generator bench/rload"


def build() -> None:
    """Compile the generator (nothing to do when it is up to date); RuntimeError with cargo's output on failure."""
    if shutil.which("cargo") is None:
        return
    done = subprocess.run(
        ["cargo", "build", "--release", "--quiet"],
        cwd=CRATE,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"cargo build failed in {CRATE}:\n{done.stderr}")


def run(command: str, address: str, seconds: float, **options: object) -> Figure:
    """Run `rload send|pull|query` against a broker; options are its own (conns, window, size, topic, ...)."""
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    done = subprocess.run(
        [str(BINARY), command, "--addr", address, "--secs", f"{seconds:g}", *words],
        capture_output=True,
        text=True,
        timeout=seconds + GRACE_S,
        check=False,
    )
    found = LINE.search(done.stdout)
    if done.returncode or not found:
        raise RuntimeError(f"rload {command} against {address} failed:\n{done.stdout}{done.stderr}")
    return Figure(
        int(found["requests"]),
        int(found["messages"]),
        int(found["errors"]),
        int(found["p50"]),
        int(found["p99"]),
    )
