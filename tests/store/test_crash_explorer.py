"""Power failures and kills at every step of random work: nothing promised is lost, nothing comes back, twice is once.

CI looks at a sample of each scenario, the same each time: at all states that come of a crash during recovery, and at
one in so many of the others. Of a scenario that has failed once it looks at the first state of each kind as well (what
the store was doing, which step was the last, about which kind of file, what is left of it); of the others at the first
of each place (a kind without what is left). `./dev test --long` looks at all states of the same scenarios, and of
some more, recovers each a second time, which must change nothing (CI does so with one of TWICE_EACH), and then goes
on with scenarios that nobody has seen, as long as AEROBEE_CRASH_MINUTES says (30). The seed of a scenario that fails
goes into REGRESSIONS.
"""

import multiprocessing
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from itertools import count, islice

import pytest

from store.crash_disk import PAGE_ANSWERS
from store.crash_explorer import DEPTH_MAX, KILLED, WHOLE, WORKS, Explored, Kind, Sample, explore

pytestmark = pytest.mark.spread

PROCESSES = 2
LONG = bool(os.environ.get("AEROBEE_LONG"))
PIECES = 15 if LONG else 5  # each a test of its own, with seeds of its own, so that workers share them
SEEDS_PER_PIECE = 5
FIRST_SEED, NEXT_PIECE = 1000, 1000
SAMPLE = WHOLE if LONG else Sample(50)
OF_REGRESSIONS = WHOLE if LONG else Sample(100, each_kind=True)
TWICE_EACH = 1 if LONG else 8
STATES_MIN = 5000 if LONG else 600  # of a piece, distinct; some 1500 come of a whole scenario
STEPS = {
    "none",
    "create",
    "allocate",
    "write",
    "sync",
    "sync folder",
    "rename",
    "unlink",
    "make folder",
    "remove folder",
}
# Scenarios that have failed once: deletions that a crash took back (0, 3), queue numbers given out again after
# cleaning (4), names that a killed process had made (2), a queue that held another one's entries (5), zeros in the
# index (10, 19), keys lost when a recovery was interrupted (13), a torn index entry (20), a rename that was believed
# before it was certain (43), a deleted queue that came back with garbage at its end (1001).
REGRESSIONS = (0, 2, 3, 4, 5, 10, 13, 19, 20, 43, 1001)


def explored(seeds: Iterable[int], look: Callable[[int], Explored] = explore) -> Iterator[Explored]:
    """Scenarios in any order, as they are done, by several processes; CrashFailure at the first that fails."""
    queue = iter(seeds)
    # Processes of their own, not copies of this one: it has threads.
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:
        running: set[Future[Explored]] = {pool.submit(look, seed) for seed in islice(queue, PROCESSES)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
                running |= {pool.submit(look, seed) for seed in islice(queue, 1)}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", REGRESSIONS)
def test_a_scenario_that_failed_once_holds(seed: int, record_property: Callable[[str, object], None]) -> None:
    found = explore(seed, OF_REGRESSIONS, twice_each=TWICE_EACH)
    record_property("crash states recovered and checked", found.states)
    assert found.states >= len(found.digests) > 100


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("piece", range(PIECES))
def test_every_crash_leaves_what_was_promised(
    piece: int, record_property: Callable[[str, object], None]
) -> None:
    digests: set[bytes] = set()
    kinds: set[Kind] = set()
    deepest = 0
    for seed in islice(count(FIRST_SEED + piece * NEXT_PIECE), SEEDS_PER_PIECE):
        found = explore(seed, SAMPLE, twice_each=TWICE_EACH)
        record_property("crash states recovered and checked", found.states)
        digests |= found.digests
        kinds |= found.kinds.keys()
        deepest = max(deepest, found.deepest)
    record_property("crash states, distinct within their piece", len(digests))
    # Else a seed is to be chosen that has what is missing.
    assert {kind.work for kind in kinds} == WORKS
    assert {kind.step for kind in kinds} == STEPS
    assert {kind.left for kind in kinds} == {KILLED, *range(PAGE_ANSWERS)}
    assert deepest == DEPTH_MAX
    assert len(digests) >= STATES_MIN


@pytest.mark.long
@pytest.mark.timeout(0)
def test_fresh_scenarios_hold_too(capsys: pytest.CaptureFixture[str]) -> None:
    minutes = float(os.environ.get("AEROBEE_CRASH_MINUTES", "30"))
    until = time.monotonic() + 60 * minutes
    first = secrets.randbelow(1 << 40)
    with capsys.disabled():
        print(f"\ncrash explorer: seeds from {first} on, for {minutes:g} minutes")
    digests: set[bytes] = set()
    for found in explored(count(first)):
        digests |= found.digests
        if time.monotonic() > until:
            break
    with capsys.disabled():
        print(f"\ncrash explorer: {len(digests)} distinct crash states recovered and checked")
    assert len(digests) > 1000


def test_a_scenario_is_the_same_each_time() -> None:
    """Else a failing seed could not be tried again."""
    sample = partial(explore, sample=Sample(10))
    once, again = explored((7, 7), sample)
    assert (once.states, once.digests, once.kinds) == (again.states, again.digests, again.kinds)
    assert once.deepest == DEPTH_MAX
