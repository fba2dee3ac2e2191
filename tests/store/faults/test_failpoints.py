"""Failpoints: nothing unless armed."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aerobee_store.faults import failpoints


def test_an_armed_point_acts_until_it_is_disarmed() -> None:
    passed: list[str] = []
    failpoints.hit("test.point")
    failpoints.arm("test.point", lambda: passed.append("hit"))
    failpoints.hit("test.point")
    failpoints.hit("test.other")
    failpoints.disarm("test.point")
    failpoints.disarm("test.point")
    failpoints.hit("test.point")
    assert passed == ["hit"]


def test_the_block_disarms_also_after_an_error() -> None:
    def fault() -> None:
        raise OSError("armed")

    with pytest.raises(OSError, match="armed"), failpoints.armed("test.point", fault):
        failpoints.hit("test.point")
    failpoints.hit("test.point")


def test_the_list_of_names_is_what_the_code_passes() -> None:
    folder = Path(failpoints.__file__).parents[1]
    passed = [re.findall(r'failpoints\.hit\("([^"]+)"\)', path.read_text()) for path in folder.rglob("*.py")]
    assert {name for names in passed for name in names} == failpoints.FAILPOINTS


def test_the_list_of_the_services_names_is_what_the_broker_passes() -> None:
    folder = Path(failpoints.__file__).parents[2] / "aerobee_broker"
    passed = [re.findall(r'failpoints\.hit\("([^"]+)"\)', path.read_text()) for path in folder.rglob("*.py")]
    assert {name for names in passed for name in names} == failpoints.SERVICE_FAILPOINTS


def test_a_process_armed_by_text_dies_at_the_pass_that_was_named() -> None:
    code = (
        "from aerobee_store.faults import failpoints\n"
        "print(*failpoints.arm_from_text(' commit_log.rolled=kill@3, io.renamed=exit ,'))\n"
        "for number in range(4):\n"
        "    print(number, flush=True)\n"
        "    failpoints.hit('commit_log.rolled')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["commit_log.rolled io.renamed", "0", "1", "2"]
    assert done.returncode == -signal.SIGKILL
    left = subprocess.run(
        [sys.executable, "-c", code.replace("'commit_log.rolled')", "'io.renamed')")], check=False
    )
    assert left.returncode == 1


@pytest.mark.parametrize(
    "text",
    ["io.nowhere=kill", "io.renamed", "io.renamed=raise", "io.renamed=kill@", "io.renamed=kill@0", "=kill"],
)
def test_a_text_that_is_not_understood_arms_nothing(text: str) -> None:
    with pytest.raises(ValueError, match=r"failpoint|write io"):
        failpoints.arm_from_text(f"io.renamed=kill@1,{text}")
    failpoints.hit("io.renamed")


def test_no_text_arms_nothing() -> None:
    assert failpoints.arm_from_text("") == ()
