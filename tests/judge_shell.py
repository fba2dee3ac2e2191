"""Many judges in one JVM: the Java classes of tests/interop/java, each run to its end.

Touches  one subprocess, and a local TCP connection a judge.

Invariants
- Judges of several threads run beside each other; whoever asks first starts the JVM.
- A JVM that is gone, or whose judge did not end in time, is replaced by the next who asks.
"""

from __future__ import annotations

import atexit
import json
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

from programs import Program, ProgramError

__all__ = ["JudgeShell"]

START_TIMEOUT_S: Final = 60.0
RESULT: Final = "RESULT "


class JudgeShell:
    """The JVM that runs judges; started by the first, it ends with this process."""

    def __init__(self, start: Callable[[], Program]) -> None:
        """`start` starts `interop.JudgeShell`."""
        # Fixed for life.
        self._start = start
        # Guarded by _starting.
        self._starting = threading.Lock()
        self._program: Program | None = None
        self._port = 0

    def judge(self, words: list[str], timeout_s: float) -> dict[str, Any]:
        """Run one judge and return what it found; ProgramError with its output when it failed."""
        program, port = self._running()
        try:
            said = _ask(port, words, timeout_s)
        except TimeoutError:
            program.kill()
            raise ProgramError(f"{words[0]} did not end within {timeout_s:g} s:\n{program.output}") from None
        if not said.startswith(RESULT):
            raise ProgramError(f"{words[0]} failed:\n{said}\n{program.output}")
        found: dict[str, Any] = json.loads(said.removeprefix(RESULT))
        return found

    def _running(self) -> tuple[Program, int]:
        with self._starting:
            if self._program is None or not self._program.running:
                self._program = program = self._start()
                atexit.register(program.kill)
                self._port = int(program.wait_line(r"^READY \d+$", START_TIMEOUT_S).split()[1])
            return self._program, self._port


def _ask(port: int, words: list[str], timeout_s: float) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout_s) as peer:
        peer.sendall(json.dumps(words).encode() + b"\n")
        with peer.makefile("rb") as stream:
            return stream.read().decode()
