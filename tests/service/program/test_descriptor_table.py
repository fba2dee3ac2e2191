"""Room for open files: there before they are opened."""

import errno
import fcntl
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from aerobee_service.program.descriptor_table import DESCRIPTORS_READY, widen_descriptor_table

STATUS = Path("/proc/self/status")
SHOW = """
import os, resource, sys
from pathlib import Path
from aerobee_service.program.descriptor_table import widen_descriptor_table
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
before = os.listdir("/proc/self/fd")
status = Path("/proc/self/status").read_text()
assert int(status.partition("FDSize:")[2].split()[0]) < 4096, "a table as large as that would prove nothing"
widen_descriptor_table()
assert os.listdir("/proc/self/fd") == before
print(Path("/proc/self/status").read_text())
"""


@pytest.mark.skipif(not STATUS.exists(), reason="no /proc that tells how large the table is")
@pytest.mark.parametrize("limit", [4096, 10_000])
def test_there_is_room_for_as_many_as_may_be_open(limit: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < limit:
        pytest.skip(f"no more than {hard} files may be open here")
    told = subprocess.run(
        [sys.executable, "-c", SHOW, str(limit)], capture_output=True, text=True, check=True
    )
    size = re.search(r"^FDSize:\s+(\d+)$", told.stdout, re.M)
    assert size is not None
    assert int(size[1]) >= limit


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
