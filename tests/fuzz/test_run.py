"""Three million runs of all targets together, in parts of which each may go to another worker."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.targets import PARTS, TARGETS, parts

pytestmark = pytest.mark.spread

RUN = Path(__file__).with_name("run.py")
SEED = 20261123  # the day on which it was chosen


def fuzzed(findings: Path, *words: str) -> dict[str, int]:
    """Target -> runs, as the fuzzer counted them. AssertionError with what was found."""
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
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    return {
        name: int(runs.replace(",", ""))
        for name, runs in re.findall(r"^(\w+) +([\d,]+) runs", done.stdout, re.M)
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_found_in_its_part_of_three_million_runs(part: int, tmp_path: Path) -> None:
    """The same inputs each time, as long as the code is the same: a change must not fail for a fault that was there
    before it. `./dev fuzz` makes up others each time."""
    names = parts()[part]
    ran = fuzzed(tmp_path / "findings", "--ci", "--seed", str(SEED), *names)
    assert ran.keys() == set(names)
    assert {name: runs for name, runs in ran.items() if runs < TARGETS[name].runs} == {}
