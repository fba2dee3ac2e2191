"""The product under simulated faults, seed by seed; and the proof that simulations find faults.

A simulation replaces clocks and threads of its process, so it has one of its own.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from engines import need_engine
from simulation.edges import HASH_SEED
from simulation.scenario import ENGINES, engine_of
from simulation.seeds import SCENARIOS
from simulation.world import World

ROOT = Path(__file__).resolve().parents[2]
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
# One of each scenario.
SEEDS = ("1", "2", "5")
# A seed is another run after each change of the product, so which one finds it is chance: most do within 40.
SEEDS_MAX = 150


def simulate(*words: str, timeout_s: float = 110.0) -> subprocess.CompletedProcess[str]:
    """`./dev simulate` with these words."""
    environ = {**os.environ, "PYTHONHASHSEED": HASH_SEED, "PYTHONPATH": "tests"}
    return subprocess.run(
        [sys.executable, "-m", "simulation", *words],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@pytest.mark.slow
def test_nothing_that_was_promised_is_broken() -> None:
    """The same seeds on every machine; `--long` goes on."""
    done = simulate("1-60", "--keep-going")
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_nothing_that_was_promised_is_broken_in_many_seeds() -> None:
    done = simulate("1-2000", "--keep-going", timeout_s=3600)
    assert done.returncode == 0, done.stdout[-100_000:] + done.stderr


@pytest.mark.parametrize("engine", ["python", "native"])
def test_a_seed_is_the_same_run_each_time(engine: str) -> None:
    """Another process has other addresses in memory, and whatever is walked in their order would be another run."""
    words = (*SEEDS, "--history", "--engine", need_engine(engine))
    histories = [simulate(*words).stdout.splitlines() for _ in range(2)]
    first, second = ([line for line in one if "processor time" not in line] for one in histories)
    assert len([line for line in first if re.search("digest [0-9a-f]{16}-", line)]) == len(SEEDS)
    assert {re.sub("seed [0-9]+, ([a-z]+):.*", r"\1", line) for line in first if "digest" in line} == {
        *SCENARIOS
    }
    assert first == second
    assert f"sends are taken by the {engine} engine" in "\n".join(first)


def test_half_of_the_seeds_have_each_engine() -> None:
    need_engine("native")
    drawn = [engine_of(World(seed)) for seed in range(1000)]
    assert 400 < drawn.count("python") < 600
    assert {*drawn} == {*ENGINES}


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_planted_fault_is_found(name: str) -> None:
    done = simulate(f"1-{SEEDS_MAX}", "--planted", name, "--scenario", "broker")
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr
    failed = re.search("seed ([0-9]+):", done.stdout)
    assert failed is not None
    assert f"again with: ./dev simulate {failed[1]} --planted '{name}'" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "scenario", "seed"),
    [
        ("acknowledged before slaves", "pair", 3),
        ("reported before the disk", "pair", 3),
        ("sent counts as confirmed", "election", 1),
        ("one in sync is enough", "election", 1),
        ("epoch in memory", "election", 1),
        ("shown by slaves before it is confirmed", "election", 1),
        ("no truncation", "election", 2),
        ("shrunk before confirmed", "election", 2),
        ("lease without a clock", "election", 6),
        ("stale lease", "election", 13),
        ("truncation too far", "election", 14),
        ("promoted out of sync", "election", 26),
    ],
)
def test_a_fault_planted_into_a_set_is_found(name: str, scenario: str, seed: int) -> None:
    """By the seed that has found it last, or by one of others."""
    done = simulate(str(seed), "1-60", "--planted", name, "--scenario", scenario)
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr
    assert f"--planted '{name}' --scenario {scenario}" in done.stdout
