"""Power failures and kills at every step of random work: nothing promised is lost, nothing comes back, twice is once.

CI looks at the same states each time; `./dev test --long` at others, as long as AEROBEE_CRASH_MINUTES says (30), and
prints the seed of a scenario that fails. Such a seed goes into REGRESSIONS.
"""

import multiprocessing
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count, islice

import pytest

from store.crash_explorer import Explored, explore

PROCESSES = 2
# Distinct states, each recovered and checked; some 1500 come of a seed.
STATES_IN_CI = int(os.environ.get("AEROBEE_CRASH_STATES", "100000"))  # about six minutes on two cores
FIRST_SEED = 1000
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


def total(results: Iterable[Explored], *, states: int, until: float = float("inf")) -> dict[str, float]:
    """Sums over the results until there are so many distinct states, or it is `until` (time.monotonic())."""
    began = time.monotonic()
    digests: set[bytes] = set()
    recovered = scenarios = 0
    for found in results:
        digests |= found.digests
        recovered += found.states
        scenarios += 1
        if len(digests) >= states or time.monotonic() > until:
            break
    took = time.monotonic() - began
    return {"scenarios": scenarios, "distinct": len(digests), "recovered": recovered, "took_s": took}


def tell(capsys: pytest.CaptureFixture[str], sums: dict[str, float]) -> None:
    with capsys.disabled():
        print(
            f"\ncrash explorer: {sums['distinct']:.0f} distinct crash states recovered and checked, "
            f"{sums['recovered']:.0f} recoveries checked in {sums['scenarios']:.0f} scenarios, "
            f"{sums['took_s']:.0f} s, {sums['recovered'] / sums['took_s']:.0f} a second"
        )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_scenarios_that_failed_once_hold(capsys: pytest.CaptureFixture[str]) -> None:
    sums = total(explored(REGRESSIONS), states=10**9)
    tell(capsys, sums)
    assert sums["scenarios"] == len(REGRESSIONS)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_crash_leaves_what_was_promised(capsys: pytest.CaptureFixture[str]) -> None:
    sums = total(explored(count(FIRST_SEED)), states=STATES_IN_CI)
    tell(capsys, sums)
    assert sums["distinct"] >= STATES_IN_CI


@pytest.mark.long
@pytest.mark.timeout(0)
def test_fresh_scenarios_hold_too(capsys: pytest.CaptureFixture[str]) -> None:
    minutes = float(os.environ.get("AEROBEE_CRASH_MINUTES", "30"))
    first = secrets.randbelow(1 << 40)
    with capsys.disabled():
        print(f"\ncrash explorer: seeds from {first} on, for {minutes:g} minutes")
    sums = total(explored(count(first)), states=10**9, until=time.monotonic() + 60 * minutes)
    tell(capsys, sums)
    assert sums["distinct"] > 1000


def test_a_scenario_is_the_same_each_time() -> None:
    """Else a failing seed could not be tried again."""
    once, again = explored((7, 7))
    assert (once.states, once.digests) == (again.states, again.digests)
    assert once.deepest == 3
