"""aerobee_service.program.interpreter: both servers serve with the same garbage collection and switch interval."""

import gc
import json
import mmap
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from aerobee_service.program.interpreter import (
    COLLECT_AFTER,
    COLLECT_AFTER_MIN,
    GROWN_MIN,
    SEARCH_S,
    SWITCH_INTERVAL_S,
    YOUNG_MAX,
    GarbageSearch,
    collect_after,
    own_memory,
)

# The program up to its event loop, and how the interpreter is set by then.
SCRIPT = """
import asyncio, gc, json, sys

def tell(**_):
    print(json.dumps([gc.get_threshold(), sys.getswitchinterval(), gc.get_freeze_count() > 0]), flush=True)
    sys.exit(0)

asyncio.Runner = tell
from {package}.main import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("package", "setting"),
    [("aerobee_broker", "storePathRootDir"), ("aerobee_nameserver", "kvConfigPath")],
)
def test_a_server_is_set_up_before_its_event_loop_begins(tmp_path: Path, package: str, setting: str) -> None:
    """The nameserver had figures of its own, and kept the long pause of the collector that the broker had lost."""
    command = [sys.executable, "-c", SCRIPT.format(package=package), "--set", f"{setting}={tmp_path / 'x'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout, done.stderr
    interval = pytest.approx(SWITCH_INTERVAL_S)  # kept as a number of microseconds
    (objects, *others), *rest = json.loads(done.stdout.splitlines()[-1])
    assert COLLECT_AFTER_MIN <= objects <= COLLECT_AFTER[0]
    assert (others, rest) == (list(COLLECT_AFTER[1:]), [interval, True])


def test_searches_that_take_long_come_after_fewer_objects_and_quick_ones_after_more() -> None:
    most, _, _ = COLLECT_AFTER
    assert collect_after(most, SEARCH_S) == most
    assert collect_after(most, 4 * SEARCH_S) == most // 4
    assert collect_after(most // 4, SEARCH_S / 5) == most // 2
    assert collect_after(most // 2, SEARCH_S / 2) == most // 2
    assert collect_after(most, SEARCH_S / 100) == most
    assert collect_after(most, 1000 * SEARCH_S) == COLLECT_AFTER_MIN


# Keeps more and more for good, as a broker whose topics and clients come, and says how many objects a search met.
GROWING = """
import gc, json
from aerobee_service.program.interpreter import set_up_interpreter

met = []

def count(phase, info):
    if phase == "start":
        met.append((info["generation"], sum(len(gc.get_objects(one)) for one in range(info["generation"] + 1))))

set_up_interpreter()
gc.callbacks.append(count)
kept = [[] for _ in range(300_000)]
print(json.dumps([met, gc.get_freeze_count()]))
"""


def test_a_search_looks_at_the_newest_objects_alone_however_many_there_are() -> None:
    """Each hundredth looked at up to a million objects, and held everybody up for 80 ms."""
    done = subprocess.run(
        [sys.executable, "-c", GROWING], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    met, frozen = json.loads(done.stdout)
    assert len(met) >= 25
    assert {generation for generation, _ in met} == {0, 1}
    assert max(count for _, count in met) <= YOUNG_MAX
    assert frozen > 250_000


class Circle:
    """What only a search finds."""

    def __init__(self) -> None:
        self.me = self


def test_everything_is_searched_when_memory_has_grown_by_half() -> None:
    memory = 300 << 20
    search = GarbageSearch(lambda: memory)
    old = [Circle() for _ in range(100)]
    alive = weakref.ref(old[0])
    gc.freeze()  # as all that is old
    try:
        del old
        gc.collect()
        assert alive() is not None
        memory += GROWN_MIN - 1
        assert not search.look()
        memory += 1
        with capture_logs() as logs:
            assert search.look()
        assert alive() is None
        assert [(entry["event"], entry["found"] >= 100) for entry in logs] == [
            ("process.garbage_searched", True)
        ]
        memory += memory // 2 - 1  # more than the least, less than half
        assert not search.look()
    finally:
        gc.unfreeze()


def test_memory_of_files_is_not_counted() -> None:
    before = own_memory()
    assert before > 1 << 20
    with mmap.mmap(-1, 64 << 20, flags=mmap.MAP_SHARED) as shared:
        shared.write(b"x" * (64 << 20))
        assert own_memory() - before < 32 << 20
