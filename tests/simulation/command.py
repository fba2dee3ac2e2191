"""Simulations in a process of their own, as `./dev simulate` starts them: they replace its clocks and threads."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from simulation.edges import HASH_SEED

__all__ = ["simulate"]

ROOT: Final = Path(__file__).resolve().parents[2]


def simulate(*words: str) -> subprocess.CompletedProcess[str]:
    """`./dev simulate` with these words; it is ended when the test's own time is over."""
    environ = {**os.environ, "PYTHONHASHSEED": HASH_SEED, "PYTHONPATH": "tests"}
    return subprocess.run(
        [sys.executable, "-m", "simulation", *words],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
