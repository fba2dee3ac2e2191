"""docs/client.md: every example, run in order as it stands there against a fresh `aerobee dev`, prints what it says."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

from console.support import environment

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "client.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)
FRAME = re.findall(r"^```\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)[0]
NAMESERVER = "127.0.0.1:9876"  # as the guide writes it


def test_every_example_runs_in_order_and_prints_what_it_says(nameserver: str, tmp_path: Path) -> None:
    """They ran only with topics and settings that the test made, and that no page named."""
    assert len(EXAMPLES) == 14
    assert FRAME.count("        ...\n") == 1
    assert NAMESERVER in FRAME
    for example in EXAMPLES:
        program = FRAME.replace("        ...\n", textwrap.indent(example, " " * 8))
        expected = re.findall(r"# -> (.*)", example)
        assert printed_by(program.replace(NAMESERVER, nameserver), nameserver, tmp_path) == expected, example


def printed_by(program: str, nameserver: str, folder: Path) -> list[str]:
    """Its lines, without those of logs."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(AEROBEE_NAMESERVERS=nameserver),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{program}\n{done.stdout}{done.stderr}"
    return [line for line in done.stdout.splitlines() if not re.match(r"\d{4}-\d\d-\d\d ", line)]
