"""Three million runs of all targets together, in parts of which each may go to another worker."""

import importlib.util
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fuzz.targets import PARTS, TARGETS, parts

pytestmark = pytest.mark.spread

RUN = Path(__file__).with_name("run.py")


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
    """Other inputs each day, the same ones on one day: the seed is the date, and a finding says it."""
    names = parts()[part]
    seed = f"{datetime.now(UTC):%Y%m%d}"
    ran = fuzzed(tmp_path / "findings", "--ci", "--seed", seed, *names)
    assert ran.keys() == set(names)
    assert {name: runs for name, runs in ran.items() if runs < TARGETS[name].runs} == {}
