"""aerobee_service.program.interpreter: both servers serve with the same garbage collection and switch interval."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from aerobee_service.program.interpreter import COLLECT_AFTER, SWITCH_INTERVAL_S

# The program up to its event loop, and how the interpreter is set by then.
SCRIPT = """
import asyncio, gc, json, sys

def tell(**_):
    print(json.dumps([gc.get_threshold(), sys.getswitchinterval(), gc.get_freeze_count() > 0]), flush=True)
    sys.exit(0)

asyncio.Runner = tell
from {package}.main import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("package", "setting"),
    [("aerobee_broker", "storePathRootDir"), ("aerobee_nameserver", "kvConfigPath")],
)
def test_a_server_is_set_up_before_its_event_loop_begins(tmp_path: Path, package: str, setting: str) -> None:
    """The nameserver had figures of its own, and kept the long pause of the collector that the broker had lost."""
    command = [sys.executable, "-c", SCRIPT.format(package=package), "--set", f"{setting}={tmp_path / 'x'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [list(COLLECT_AFTER), SWITCH_INTERVAL_S, True]
