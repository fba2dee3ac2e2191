"""The product under simulated faults, seed by seed.

A simulation replaces clocks and threads of its process, so it has one of its own.
"""

import re
import shlex

import pytest

from engines import need_engine
from simulation.command import simulate
from simulation.scenario import ENGINES, SIZES, engine_of, size_of
from simulation.seeds import SCENARIOS
from simulation.world import World

# One of each scenario.
SEEDS = ("1", "2", "5")


# The same seeds on every machine, a part for each worker that is free; `--long` goes on.
SEEDS_COUNT = 2000
PARTS = 20


@pytest.mark.slow
@pytest.mark.spread
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_that_was_promised_is_broken(part: int) -> None:
    each = SEEDS_COUNT // PARTS
    done = simulate(f"{part * each + 1}-{(part + 1) * each}", "--keep-going")
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_nothing_that_was_promised_is_broken_in_many_seeds() -> None:
    done = simulate("1-2000", "--keep-going", "--size", "whole")
    assert done.returncode == 0, done.stdout[-100_000:] + done.stderr


@pytest.mark.parametrize("engine", ["python", "native"])
def test_a_seed_is_the_same_run_each_time(engine: str) -> None:
    """Another process has other addresses in memory, and whatever is walked in their order would be another run."""
    words = (*SEEDS, "--history", "--engine", need_engine(engine), "--size", "whole")
    histories = [simulate(*words).stdout.splitlines() for _ in range(2)]
    first, second = ([line for line in one if "processor time" not in line] for one in histories)
    assert len([line for line in first if re.search("digest [0-9a-f]{16}-", line)]) == len(SEEDS)
    assert {re.sub("seed [0-9]+, ([a-z]+):.*", r"\1", line) for line in first if "digest" in line} == {
        *SCENARIOS
    }
    assert first == second
    assert f"sends are taken by the {engine} engine" in "\n".join(first)


def test_the_line_that_a_failing_seed_prints_runs_it_again() -> None:
    """Behind others or alone, it fails in the same way."""
    done = simulate("2-200", "--planted", "cut at the checkpoint")
    line = re.search("again with: ./dev simulate (.*)", done.stdout)
    assert line is not None, done.stdout + done.stderr
    again = simulate(*shlex.split(line[1]))
    failure = re.compile("seed [0-9]+: .*")
    assert failure.findall(again.stdout) == failure.findall(done.stdout)


def test_most_of_the_seeds_are_brief() -> None:
    drawn = [size_of(World(seed)) for seed in range(1000)]
    assert 920 < drawn.count("brief") < 980
    assert {*drawn} == {*SIZES}


def test_half_of_the_seeds_have_each_engine() -> None:
    need_engine("native")
    drawn = [engine_of(World(seed)) for seed in range(1000)]
    assert 400 < drawn.count("python") < 600
    assert {*drawn} == {*ENGINES}
