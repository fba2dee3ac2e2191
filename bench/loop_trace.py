"""What a broker did in the moments in which requests were late: a trace of its event loop and of its threads.

    AEROBEE_TRACE=trace.json AEROBEE_COMMAND="python bench/loop_trace.py" python bench/tails.py --trace

This program is `aerobee`, with the same words, but that it writes down every one of STEPS, every job of an executor and
every search for garbage that took NOTED_S or longer: when, how long, how much processor time of its thread, how often
its thread gave the processor up or lost it. Timing costs about 1 us each.

A step of the loop that took longer than its processor time waited: for the interpreter, which another thread had, for
the processor, or for the disk. What another thread did at that time stands beside it. Where nothing took long, requests
were late before they came to the loop: by the generator, the system, or a thread that others had started.

Touches  the file that AEROBEE_TRACE names; asyncio and methods of the broker, by putting others in their place.
"""

from __future__ import annotations

import concurrent.futures.thread
import functools
import gc
import importlib
import json
import os
import resource
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final

__all__ = ["Noted", "read_trace", "what_was_slow"]

NOTED_S: Final = 0.0005
LOOP: Final = "MainThread"
# What the event loop calls (it is written in C, and tells nobody), and work in there or in jobs that is to have a name.
STEPS: Final = (
    ("aerobee_remoting.exchange.connection", "Connection", "data_received"),
    ("aerobee_service.turns.turns", "Turns", "_run"),
    ("aerobee_service.turns.slices", "SliceQueue", "_turn"),
    ("aerobee_broker.messages.visibility", "Visibility", "_call"),
    ("aerobee_broker.messages.flusher", "Flusher", "_synced"),
    ("aerobee_broker.reading.cold_reads", "ColdReads", "_serve"),
    ("aerobee_broker.metrics.metrics", "MetricsServer", "_render"),
    ("aerobee_store.store", "MessageStore", "flush_disk"),
    ("aerobee_store.store", "MessageStore", "flush_queues"),
    ("aerobee_store.store", "MessageStore", "write_checkpoint"),
    ("aerobee_store.store", "MessageStore", "preallocate"),
    ("aerobee_store.store", "MessageStore", "confirm"),
    ("aerobee_store.index.index", "IndexService", "put_many"),
    ("aerobee_store.index.index_file", "IndexFile", "put"),
    ("aerobee_store.index.next_file", "NextFile", "take"),
    ("aerobee_store.log.commit_log", "CommitLog", "roll"),
    ("aerobee_store.log.commit_log", "CommitLog", "write"),
    ("aerobee_store.log.commit_log", "CommitLog", "prepare_next"),
    ("aerobee_store.disk.mapped_files", "MappedFileQueue", "create"),
    ("aerobee_store.disk.io", "DiskIo", "open_file"),
    ("aerobee_store.disk.io", "DiskIo", "sync_all"),
    ("aerobee_store.disk.io", "DiskIo", "replace_bytes"),
    ("aerobee_store.disk.io", "_DiskFile", "sync"),
    ("aerobee_store.disk.io", "_DiskFile", "close"),
    ("aerobee_store.checking.scrubbing", "Scrubbing", "step"),
    ("aerobee_store.cleaning.cleaning", "Cleaner", "delete_released"),
    ("aerobee_store.reading.residency", "Residency", "missing"),
)


@dataclass(slots=True, frozen=True)
class Noted:
    """One thing that took long."""

    at: float  # seconds since the epoch
    took_ms: float
    cpu_ms: float  # of its thread; less than `took_ms`: it waited
    gave: int  # times that the thread slept
    lost: int  # times that the processor was taken from it
    thread: str
    what: str

    @property
    def end(self) -> float:
        return self.at + self.took_ms / 1000


# --- writing ------------------------------------------------------------------------------------------------------


class _Trace:
    """The file. A line is written by whichever thread it is about."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def timed(self, what: Callable[[], str], call: Callable[..., Any], *words: Any, **named: Any) -> Any:
        """Call, and note it when it took long."""
        before = resource.getrusage(resource.RUSAGE_THREAD)
        at, began = time.time(), time.perf_counter()
        try:
            return call(*words, **named)
        finally:
            took_s = time.perf_counter() - began
            if took_s >= NOTED_S:
                self.note(what(), at, took_s, before)

    def note(self, what: str, at: float, took_s: float, before: resource.struct_rusage) -> None:
        now = resource.getrusage(resource.RUSAGE_THREAD)
        cpu_s = now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime
        noted = Noted(
            at,
            round(took_s * 1000, 3),
            round(cpu_s * 1000, 3),
            now.ru_nvcsw - before.ru_nvcsw,
            now.ru_nivcsw - before.ru_nivcsw,
            threading.current_thread().name,
            what,
        )
        self._file.write(json.dumps(asdict(noted)) + "\n")


def name_of(job: object) -> str:
    """What a thread was given to do, as far as it says."""
    if isinstance(job, functools.partial):
        return name_of(job.func)
    return str(getattr(job, "__qualname__", type(job).__name__))


def _install(trace: _Trace) -> None:
    work: Any = concurrent.futures.thread._WorkItem
    job = work.run

    def timed_job(item: Any) -> Any:
        fn = item.fn
        return trace.timed(lambda: f"job {name_of(fn)}", job, item)

    work.run = timed_job
    gc.callbacks.append(_Collections(trace))
    connection: Any = importlib.import_module("aerobee_remoting.exchange.connection").Connection
    charge = connection._charge

    def charged(of: Any, took_s: float) -> None:
        """Steps of tasks for a peer are charged to it when they are over; their processor time is not known."""
        if took_s >= NOTED_S:
            trace.note(
                "step of a task", time.time() - took_s, took_s, resource.getrusage(resource.RUSAGE_THREAD)
            )
        charge(of, took_s)

    connection._charge = charged
    for module, owner_name, method in STEPS:
        owner = getattr(importlib.import_module(module), owner_name)
        setattr(owner, method, _timed_step(trace, f"{owner_name}.{method}", getattr(owner, method)))


def _timed_step(trace: _Trace, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def timed(*words: Any, **named: Any) -> Any:
        return trace.timed(lambda: name, call, *words, **named)

    return timed


class _Collections:
    def __init__(self, trace: _Trace) -> None:
        self._trace = trace
        self._began: dict[int, tuple[float, float, resource.struct_rusage]] = {}

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        thread = threading.get_ident()
        if phase == "start":
            self._began[thread] = (
                time.time(),
                time.perf_counter(),
                resource.getrusage(resource.RUSAGE_THREAD),
            )
        elif (began := self._began.pop(thread, None)) is not None:
            took_s = time.perf_counter() - began[1]
            if took_s >= NOTED_S:
                self._trace.note(f"search for garbage {info['generation']}", began[0], took_s, began[2])


# --- reading ------------------------------------------------------------------------------------------------------


def read_trace(path: Path) -> list[Noted]:
    """All that is noted, in the order of its beginning."""
    lines = path.read_text().splitlines()
    return sorted((Noted(**json.loads(line)) for line in lines if line.endswith("}")), key=lambda one: one.at)


def what_was_slow(noted: Sequence[Noted], moments: Iterable[tuple[float, float, float]]) -> list[str]:
    """Names for moments (begin, end in seconds since the epoch, longest latency in ms) in which requests were late, the
    most frequent first."""
    found: dict[str, list[float]] = defaultdict(list)
    for begin, end, longest_ms in moments:
        inside = [one for one in noted if one.at < end and one.end > begin]
        found[_name(inside, begin, end)].append(longest_ms)
    rows = sorted(found.items(), key=lambda row: -len(row[1]))
    return [f"{len(times)} x, longest {max(times):.1f} ms: {name}" for name, times in rows]


def _name(inside: Sequence[Noted], begin: float, end: float) -> str:
    """The callbacks that took most of it, and what others did if these had to wait."""
    of_loop = [one for one in inside if one.thread == LOOP]
    others = [one for one in inside if one.thread != LOOP]
    words = _longest(of_loop, begin, end)
    waited_ms = sum(max(one.took_ms - one.cpu_ms, 0.0) for one in of_loop[:1])
    if not words or waited_ms > 1.0:
        beside = [f"[{one}]" for one in _longest(others, begin, end)]
        words = [*words, *beside]
    return " < ".join(words) if words else "nothing of ours that took long"


def _longest(noted: Sequence[Noted], begin: float, end: float) -> list[str]:
    """What overlaps most with a moment, and what of it happened inside that, the outermost first."""

    def overlap(one: Noted) -> float:
        return min(one.end, end) - max(one.at, begin)

    if not noted:
        return []
    first = max(noted, key=lambda one: (round(overlap(one), 4), one.took_ms))
    within = [
        one
        for one in noted
        if one.at >= first.at and one.end <= first.end and one.took_ms > first.took_ms / 2
    ]
    names: list[str] = []
    for one in sorted(within, key=lambda one: -one.took_ms):
        if one.what not in names:
            names.append(one.what)
    return names


def main() -> int:
    if sys.argv[1:2] in (["broker"], ["nameserver"]):
        file = Path(os.environ["AEROBEE_TRACE"]).open("a", buffering=1)  # noqa: SIM115  # as long as the process
        _install(_Trace(file))
    from aerobee_console.main import main as aerobee

    return aerobee()


if __name__ == "__main__":
    sys.exit(main())
