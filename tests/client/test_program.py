"""`python -m aerobee`."""

import subprocess
import sys

from console.support import environment


def test_the_package_runs_as_the_command_of_its_name() -> None:
    """There was no such module, and .venv/bin is not on everybody's PATH."""
    command = [sys.executable, "-m", "aerobee"]
    shown = subprocess.run(
        [*command, "--help"], env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("Usage: aerobee COMMAND")
    refused = subprocess.run(
        [*command, "sned"], env=environment(), capture_output=True, timeout=60, check=False
    )
    assert refused.returncode == 2
