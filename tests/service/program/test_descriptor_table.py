"""Room for open files: there before they are opened."""

import errno
import fcntl
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from aerobee_service.program.descriptor_table import DESCRIPTORS_READY, widen_descriptor_table

STATUS = Path("/proc/self/status")
SHOW = """
import os, re, resource, sys
from pathlib import Path
from aerobee_service.program.descriptor_table import widen_descriptor_table

def size():
    return int(re.search(r"^FDSize:\\s+(\\d+)$", Path("/proc/self/status").read_text(), re.M)[1])

limit = int(sys.argv[1]) * size()  # it inherits a table that is as large as its parent's
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
before = os.listdir("/proc/self/fd")
widen_descriptor_table()
assert os.listdir("/proc/self/fd") == before
print(limit, size())
"""


@pytest.mark.skipif(not STATUS.exists(), reason="no /proc that tells how large the table is")
@pytest.mark.parametrize("times", [2, 3])
def test_there_is_room_for_as_many_as_may_be_open(times: int) -> None:
    told = subprocess.run(
        [sys.executable, "-c", SHOW, str(times)], capture_output=True, text=True, check=False
    )
    if "maximum limit" in told.stderr:  # of setrlimit
        pytest.skip("no more files may be open here than the table has room for already")
    assert told.returncode == 0, told.stderr
    limit, size = map(int, told.stdout.split())
    assert size >= limit


def test_no_more_is_asked_for_than_is_ready_and_a_refusal_is_none_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def refuse(_: int, command: int, number: int) -> int:
        assert command == fcntl.F_DUPFD_CLOEXEC
        asked.append(number)
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    for limit in (1 << 20, resource.RLIM_INFINITY):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        widen_descriptor_table()
    assert asked == [DESCRIPTORS_READY - 1] * 2
