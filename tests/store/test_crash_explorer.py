"""Power failures and kills at every step of random work: nothing promised is lost, nothing comes back, twice is once.

CI looks at the same states each time; `./dev test --long` at others, as long as AEROBEE_CRASH_MINUTES says (30), and
prints the seed of a scenario that fails. Such a seed goes into REGRESSIONS.

Every state is recovered and checked. That a second recovery changes nothing is looked at after each recovery of the
regressions and of the long run, and in CI after one of TWICE_EACH.
"""

import multiprocessing
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count, islice

import pytest

from store.crash_explorer import Explored, explore

pytestmark = pytest.mark.spread

PROCESSES = 2
# Distinct states, each recovered and checked; some 1500 come of a seed.
STATES_IN_CI = int(os.environ.get("AEROBEE_CRASH_STATES", "100000"))
PIECES = 25  # each a test of its own, with seeds of its own, so that workers share them
TWICE_EACH = 8
FIRST_SEED = 1000
SEEDS_PER_PIECE = 1000  # more than are ever needed
# Scenarios that have failed once: deletions that a crash took back (0, 3), queue numbers given out again after
# cleaning (4), names that a killed process had made (2), a queue that held another one's entries (5), zeros in the
# index (10, 19), keys lost when a recovery was interrupted (13), a torn index entry (20), a rename that was believed
# before it was certain (43), a deleted queue that came back with garbage at its end (1001).
REGRESSIONS = (0, 2, 3, 4, 5, 10, 13, 19, 20, 43, 1001)


def explored(seeds: Iterable[int]) -> Iterator[Explored]:
    """Scenarios in any order, as they are done, by several processes; CrashFailure at the first that fails."""
    queue = iter(seeds)
    # Processes of their own, not copies of this one: it has threads.
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:
        running: set[Future[Explored]] = {pool.submit(explore, seed) for seed in islice(queue, PROCESSES)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
                running |= {pool.submit(explore, seed) for seed in islice(queue, 1)}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", REGRESSIONS)
def test_a_scenario_that_failed_once_holds(seed: int, record_property: Callable[[str, object], None]) -> None:
    found = explore(seed)
    record_property("crash states recovered and checked", found.states)
    assert found.states >= len(found.digests) > 100


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("piece", range(PIECES))
def test_every_crash_leaves_what_was_promised(
    piece: int, record_property: Callable[[str, object], None]
) -> None:
    states = STATES_IN_CI // PIECES
    digests: set[bytes] = set()
    recovered = 0
    for seed in count(FIRST_SEED + piece * SEEDS_PER_PIECE):
        # A few states are those of another seed as well: an empty disk, a first file.
        found = explore(seed, distinct_max=states - len(digests), known=digests, twice_each=TWICE_EACH)
        digests |= found.digests
        recovered += found.states
        if len(digests) >= states:
            break
    record_property("crash states recovered and checked", recovered)
    record_property("crash states in CI, distinct within their piece", len(digests))
    assert len(digests) == states


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
    once, again = explored((7, 7))
    assert (once.states, once.digests) == (again.states, again.digests)
    assert once.deepest == 3


def test_the_beginning_of_a_scenario_is_that_of_the_whole() -> None:
    """What CI looks at less often changes nothing of what it looks at."""
    whole, begun = explore(7), explore(7, distinct_max=100, twice_each=TWICE_EACH)
    assert len(begun.digests) == 100
    assert begun.digests < whole.digests
    rest = explore(7, distinct_max=1, known=begun.digests, twice_each=TWICE_EACH)
    assert len(rest.digests - begun.digests) == 1  # else a piece would look at beginnings for ever
