"""The interpreter of a server: when it looks for garbage, how soon another thread has its turn, where large pieces of
memory come from.

Touches  the process: Python's garbage collector and its switch interval, malloc's threshold; its memory in /proc,
         reading.

Garbage is objects that hold each other in a circle; all others go when nobody holds them, without any search. What
passes through a server or is kept by it (messages, topics, connections) is in no circle that its end leaves behind, so
a search finds nothing, and it holds everybody up: 0.1 to 0.3 us an object, 75 ms with 8,000 queues.

Invariants
- A search by itself looks at objects of the last moment alone, `YOUNG_MAX` at most: what has outlived two is frozen,
  which costs nothing, however much it is. Where they take longer than SEARCH_S (they know many others, or the machine
  is slow) the next search comes after fewer of them.
- All objects are searched only when the process's own memory has grown by half, and by `GROWN_MIN` at least, since they
  were: garbage of old objects takes no more than that. `process.garbage_searched` tells it.
"""

import asyncio
import contextlib
import ctypes
import gc
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import structlog

__all__ = [
    "COLLECT_AFTER",
    "COLLECT_AFTER_MIN",
    "SEARCH_S",
    "SWITCH_INTERVAL_S",
    "YOUNG_MAX",
    "GarbageSearch",
    "collect_after",
    "own_memory",
    "set_up_interpreter",
]

log = structlog.get_logger()

# Objects, searches among the new ones, searches among those that have outlived one. Fewer objects cost 4 % of a
# broker's send rate and find nothing; more cost no less, and a pause: 50,000 young ones took 17 ms, and 1,000,000, what
# a hundred of these portions left, 70 to 300 ms. The oldest are not searched by themselves.
COLLECT_AFTER: Final = 10_000, 1, 1_000_000_000
YOUNG_MAX: Final = 4 * COLLECT_AFTER[0]
COLLECT_AFTER_MIN: Final = 1_000
SEARCH_S: Final = (
    0.001  # of the processor; where topics come all the time 10,000 new objects took 12 to 20 ms
)
# The event loop waits no longer than this for a thread that works, and the flusher for the event loop; not 5 ms. With
# 1 ms synchronous sends waited a quarter longer (p99, measured by turns), at the same processor time.
SWITCH_INTERVAL_S: Final = 0.0002
# Bytes from which on a piece of memory is mapped by itself: it grows without a copy, and the system has it back when
# it is given up. By itself glibc moves this up to 32 MiB with what it sees, and a body of 8 MiB that came in parts was
# copied three times on its way, 4 ms in one call.
MAPPED_SIZE: Final = 1 << 20
M_MMAP_THRESHOLD: Final = -3  # malloc.h of glibc
GROWN_RATIO: Final = 1.5
GROWN_MIN: Final = 256 << 20
LOOK_S: Final = 60.0
STATM: Final = Path("/proc/self/statm")
PAGE_SIZE: Final = 4096


def set_up_interpreter() -> None:
    """Once, when the modules are loaded and before anything is served."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*COLLECT_AFTER)
    if freeze_survivors not in gc.callbacks:
        gc.callbacks.append(freeze_survivors)
    gc.freeze()  # what the modules brought stays
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # glibc's alone
            ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MAPPED_SIZE)


_began_s = 0.0  # the search that is under way, by the processor time of its thread


def freeze_survivors(phase: str, info: Mapping[str, int]) -> None:
    """Called by the collector: whoever has outlived a search among those that had outlived one is not looked at again.

    Says nothing: it may be called from anywhere, also from within a log line.
    """
    global _began_s  # the collector is one for the process, and calls a function
    if phase == "start":
        _began_s = time.thread_time()
        return
    if info["generation"] > 1:
        return
    if info["generation"] == 1:
        gc.freeze()
    after = gc.get_threshold()[0]
    better = collect_after(after, time.thread_time() - _began_s)
    if better != after:
        gc.set_threshold(better, *COLLECT_AFTER[1:])


def collect_after(objects: int, took_s: float) -> int:
    """How many new objects the next search is to wait for, when one that waited for so many took so long."""
    if took_s > SEARCH_S:
        return max(COLLECT_AFTER_MIN, int(objects * SEARCH_S / took_s))
    if took_s < SEARCH_S / 4:
        return min(COLLECT_AFTER[0], 2 * objects)
    return objects


def own_memory() -> int:
    """Bytes that the process has for itself: no pages of files."""
    try:
        _, resident, shared, *_ = STATM.read_text().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * PAGE_SIZE


class GarbageSearch:
    """Searches everything, old objects too, when memory has grown as it would by garbage."""

    def __init__(self, memory: Callable[[], int] = own_memory) -> None:
        self._memory = memory
        self._after_last = memory()

    async def run(self) -> None:
        """Look at the memory now and then, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> bool:
        """Search if it is time to; whether it was."""
        before = self._memory()
        if before - self._after_last < max(GROWN_MIN, self._after_last * (GROWN_RATIO - 1)):
            return False
        began = time.perf_counter()
        gc.unfreeze()
        found = gc.collect()
        gc.freeze()
        took_ms = round((time.perf_counter() - began) * 1000)
        self._after_last = self._memory()
        log.info(
            "process.garbage_searched",
            took_ms=took_ms,
            found=found,
            memory_bytes=before,
            kept=self._after_last,
        )
        return True
