"""The proof that simulations find faults: those that are planted are found."""

import re

import pytest

from simulation.command import simulate
from simulation.planted import FOUND_BY, PLANTED
from simulation.planted_sets import OF_SETS, RARE

# Faults that take few seeds: these are looked for in every run.
QUICK = (
    "a failed sync counts",
    "a number given twice",
    "acknowledged before the sync",
    "cut at the checkpoint",
    "queues trusted without a sync",
    "stored twice now and then",
    "success after a failure",
)
# A seed is another run after each change of the product, so which one finds it is chance: most do within 40.
SEEDS_MAX = 150
SEARCHED_MAX = 2000
FEW_SEEDS = 60  # most faults in sets show in fewer


def test_it_is_known_of_each_where_it_shows() -> None:
    assert {*FOUND_BY} == {*PLANTED}
    assert {*OF_SETS} > RARE


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_planted_fault_is_found(name: str) -> None:
    done = simulate(f"1-{SEEDS_MAX}", "--planted", name, "--scenario", "broker", "--size", "whole")
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr
    failed = re.search("seed ([0-9]+):", done.stdout)
    assert failed is not None
    assert f"again with: ./dev simulate {failed[1]} --planted '{name}'" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", ["pair", "election"])
def test_each_fault_planted_into_a_set_is_found(scenario: str) -> None:
    """By the seed that has found it first, or by others: any change of the product makes other runs of all seeds. The
    rare ones took a quarter of the time of all tests; the long run searches them."""
    how = ("--scenario", scenario, "--size", "whole")
    done = simulate("known", f"1-{FEW_SEEDS}", "--planted", "each", *how)
    found = {line.partition(":")[0] for line in done.stdout.splitlines() if ": seed " in line}
    wanted = {name for name in OF_SETS if FOUND_BY[name][0] == scenario and name not in RARE}
    assert found <= wanted
    for name in wanted - found:
        more = simulate(f"{FEW_SEEDS + 1}-{SEARCHED_MAX}", "--planted", name, *how)
        assert more.returncode == 1, f"{name} is not found: {more.stdout[-2000:]}{more.stderr}"


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_searched_for(name: str) -> None:
    """From seed 1 on, whatever seed has found it before."""
    scenario = FOUND_BY[name][0]
    done = simulate(f"1-{SEARCHED_MAX}", "--planted", name, "--scenario", scenario)
    assert done.returncode == 1, f"{name} is not found: {done.stdout[-2000:]}{done.stderr}"
    assert f"--planted '{name}' --scenario {scenario}" in done.stdout
