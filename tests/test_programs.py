"""Ports for servers of tests."""

import sys
from pathlib import Path

import pytest

import programs
from programs import Program, ProgramError, free_port

HOLD = "import threading; from programs import free_port; print(free_port(), flush=True); threading.Event().wait()"


def test_a_port_is_given_to_one_process_of_tests_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers were told the same port now and then, when tests ran side by side: it is bound after it is chosen."""
    tests = {"PYTHONPATH": str(Path(__file__).parent)}
    with Program("another run", [sys.executable, "-c", HOLD], env=tests) as other:
        port = int(other.wait_line(r"^\d+$", 60))
        monkeypatch.setattr(programs, "PORT_FIRST", port)
        monkeypatch.setattr(programs, "PORT_LAST", port)
        with pytest.raises(ProgramError, match="no free port"):
            free_port()
        other.kill()
        assert free_port() == port
    with pytest.raises(ProgramError, match="no free port"):  # nor twice to one
        free_port()
