"""A process that the kernel ends for a page that is not there says why."""

import signal
import subprocess
import sys
from pathlib import Path

CUT_UNDER_A_MAP = """
import os, sys
from pathlib import Path
from aerobee_broker.process.crash_notes import explain_crashes
from aerobee_store.disk.io import DiskIo
root = Path(sys.argv[1])
explain_crashes(root)
file = DiskIo().open_file(root / "index", 1 << 20, create=True)
os.truncate(root / "index", 0)
print("before", flush=True)
bytes(file.view[5000:5010])
print("after", flush=True)
"""


def test_a_read_of_a_file_that_was_cut_ends_with_a_sentence(tmp_path: Path) -> None:
    """An index file cut by another program: exit -7, and not one word."""
    ran = subprocess.run(
        [sys.executable, "-c", CUT_UNDER_A_MAP, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.stdout == "before\n"
    assert ran.returncode == -signal.SIGBUS
    assert "Bus error" in ran.stderr
    assert (
        f"a file of the store {tmp_path} was cut by another program, or the disk cannot read it" in ran.stderr
    )
    assert "next start" in ran.stderr
