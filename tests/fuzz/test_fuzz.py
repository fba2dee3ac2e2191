"""Each target for a moment, beginning from what is known to reach far; hours of it are for ./dev fuzz and --long."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz.engines import close_engines
from fuzz.run import CORPUS, KEPT_SIZE_MAX, LEDGER, corpus_of
from fuzz.targets import TARGETS, seeds_of

RUN = Path(__file__).with_name("run.py")
MOMENT_S = 1  # of each target; the whole takes twice that and some seconds


@pytest.fixture(autouse=True, scope="module")
def closed() -> Iterator[None]:
    yield
    close_engines()


def fuzzed(findings: Path, *words: str) -> dict[str, int]:
    """Target -> runs. AssertionError with what was found."""
    if importlib.util.find_spec("atheris") is None:
        assert os.environ.get("CI") != "true" or sys.platform != "linux", "atheris is not installed"
        pytest.skip(
            "atheris is not installed (it is there for Linux on x86-64): ./dev setup, or pip install atheris"
        )
    done = subprocess.run(
        [sys.executable, str(RUN), "--uncounted", "--findings", str(findings), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {
        name: int(runs.replace(",", ""))
        for name, runs in re.findall(r"^(\w+) +([\d,]+) runs", done.stdout, re.M)
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_found_in_a_moment(tmp_path: Path) -> None:
    ran = fuzzed(tmp_path / "findings", "--seconds", str(MOMENT_S))
    print(f"{sum(ran.values()):,} runs")
    assert ran.keys() == TARGETS.keys()
    assert all(ran.values()), ran


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_nothing_is_found_in_three_million_runs(tmp_path: Path) -> None:
    ran = fuzzed(tmp_path / "findings", "--seconds", "90")
    assert sum(ran.values()) >= 3_000_000, ran


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_kept_and_what_it_begins_with_is_read_or_refused(name: str) -> None:
    inputs = [*corpus_of(name), *seeds_of(name)]
    assert inputs
    for data in inputs[:60]:
        TARGETS[name](data)


def test_the_corpus_is_small_and_of_targets_that_there_are() -> None:
    kept = list(CORPUS.iterdir())
    assert {path.stem for path in kept} <= TARGETS.keys()
    assert max(path.stat().st_size for path in kept) <= KEPT_SIZE_MAX


def test_the_ledger_counts_every_target() -> None:
    ledger = json.loads(LEDGER.read_text())
    assert ledger.keys() == TARGETS.keys()
    assert sum(entry["runs"] for entry in ledger.values()) > 1_000_000
