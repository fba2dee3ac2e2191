"""How long a message of a master's log takes into its slave's: the files of both are looked at, step by step.

Touches  the commit log files of both, to read them; one thread.

A step reads what is new in the master's log, then what is new in the slave's, with `pread`: both logs have the same
records, so the nth new one here is the nth new one there. A record is there when its first bytes are. Nobody is asked,
so nothing is in the way of what is measured but a few per cent of a processor.

Invariants
- A record is seen up to one step after it came, at either end, so a lag is right but for one step.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["Lag", "LagWatch", "log_files_under"]

STEP_S = 0.0005
READ_SIZE = 256 << 10
SIZE_AND_MAGIC = struct.Struct(">iI")
BLANK_MAGIC = 0xCBD43194
NAME_DIGITS = 20


@dataclass(slots=True, frozen=True)
class Lag:
    """Times in ms. `step_p99` is how far two steps were apart: the error of the others."""

    messages: int
    p50: float
    p99: float
    longest: float
    step_p99: float


class LogTail:
    """The records of a log from its end on, as they come."""

    def __init__(self, folder: Path, end_offset: int, file_size: int) -> None:
        self._folder = folder
        self._file_size = file_size
        self._at = end_offset
        self._file: tuple[int, int] = (-1, -1)  # first offset, descriptor
        self.count = 0

    def look(self) -> int:
        """How many records have come since the beginning."""
        while True:
            begin = self._at - self._at % self._file_size
            data = os.pread(self._open(begin), READ_SIZE, self._at - begin)
            at, end = 0, len(data) - SIZE_AND_MAGIC.size
            while at <= end:
                size, magic = SIZE_AND_MAGIC.unpack_from(data, at)
                if size <= 0 or not magic:
                    break
                at += size
                if magic != BLANK_MAGIC:
                    self.count += 1
            self._at += at
            if at <= end or not at:
                return self.count

    def _open(self, begin: int) -> int:
        if self._file[0] != begin:
            self.close()
            path = self._folder / f"{begin:0{NAME_DIGITS}d}"
            self._file = begin, os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return self._file[1]

    def close(self) -> None:
        """Let go of the file."""
        if self._file[1] >= 0:
            os.close(self._file[1])
        self._file = (-1, -1)


class LagWatch:
    """Watches while the `with` block runs; both logs are level when it begins, and when it ends."""

    def __init__(self, master: Path, slave: Path, end_offset: int, file_size: int) -> None:
        """`master` and `slave` are the folders of the logs, which end at the same place."""
        self._tails = LogTail(master, end_offset, file_size), LogTail(slave, end_offset, file_size)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lag")
        self._seen: tuple[list[tuple[float, int]], list[tuple[float, int]]] = ([(0.0, 0)], [(0.0, 0)])
        self._steps: list[float] = []
        self._failed: OSError | None = None

    def __enter__(self) -> LagWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        for tail in self._tails:
            tail.close()

    def _watch(self) -> None:
        before = time.perf_counter()
        try:
            is_over = False
            while not is_over:
                is_over = self._done.is_set()  # what came before that is still to be seen
                for tail, seen in zip(self._tails, self._seen, strict=True):
                    if tail.look() != seen[-1][1]:
                        seen.append((time.perf_counter(), tail.count))
                time.sleep(STEP_S)
                now = time.perf_counter()
                self._steps.append(now - before)
                before = now
        except OSError as failed:
            self._failed = failed

    def lag(self) -> Lag:
        """Of all messages that came; to be asked when it has ended."""
        if self._failed is not None:
            raise self._failed
        there, here = map(_times, self._seen)
        if len(there) != len(here) or not len(there):
            raise RuntimeError(
                f"{len(there)} messages came to the master, and {len(here)} of them to the slave"
            )
        p50, p99, longest = np.percentile((here - there) * 1000, [50, 99, 100]).tolist()
        return Lag(len(there), p50, p99, longest, float(np.percentile(self._steps, 99)) * 1000)


def _times(seen: list[tuple[float, int]]) -> np.ndarray:
    """When each message was seen."""
    times, counts = np.array([at for at, _ in seen]), np.array([count for _, count in seen])
    return np.repeat(times[1:], np.diff(counts))


def log_files_under(folder: Path) -> Path:
    """Where the commit log of the store in `folder` lies."""
    return folder / "store" / "commitlog"
