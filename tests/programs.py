"""Server programs as subprocesses for system tests and benchmarks: start, wait for an event, stop.

Touches  subprocesses and their output, local TCP ports. Nothing here knows RocketMQ.

Invariants
- Readiness is a line that the program writes, never a guess at how long it takes.
- A program is gone when stop() or kill() returns; leaving the `with` block stops it.
- Output is kept up to OUTPUT_LINES_MAX lines, so a failed wait can say what the program said.
"""

from __future__ import annotations

import collections
import fcntl
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol, Self

__all__ = ["Process", "Program", "ProgramError", "Server", "Spawn", "free_port", "memory_kib"]

OUTPUT_LINES_MAX = 2_000
PORT_FIRST, PORT_LAST = 20_000, 32_000  # below the ephemeral range, so no outgoing connection takes one
PORTS_FILE = "aerobee-tests-ports"


class ProgramError(Exception):
    """A program ended early, said nothing in time, or answered with failure; the text holds its last output."""


class Process(Protocol):
    """What is asked of a `subprocess.Popen`, and of what stands for one."""

    pid: int
    stdout: IO[str] | None

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended."""

    def send_signal(self, number: int, /) -> None:
        """Send a signal, unless it has ended."""

    def terminate(self) -> None:
        """SIGTERM."""

    def kill(self) -> None:
        """SIGKILL."""


Spawn = Callable[[list[str], Mapping[str, str], Path | None], Process]


def _popen(command: list[str], environ: Mapping[str, str], folder: Path | None) -> Process:
    return subprocess.Popen(
        [*_dying_with_parent(), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environ,
        cwd=folder,
        text=True,
        errors="replace",
        start_new_session=True,
    )


class Program:
    """One subprocess whose output (both streams) is read by a thread and can be waited for."""

    def __init__(
        self,
        name: str,
        command: list[str],
        *,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        spawn: Spawn = _popen,
        on_line: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`spawn` starts the process, of which the output is read: by its command, or in a way of its own. `on_line` is
        called with each line, by the thread that reads."""
        # Fixed for life.
        self.name = name
        self._on_line = on_line
        self.started_at = time.monotonic()
        self.process = spawn(command, {**os.environ, **(env or {})}, cwd)
        # Guarded by _changed; moved by the reader thread only.
        self._changed = threading.Condition()
        self._lines: collections.deque[str] = collections.deque(maxlen=OUTPUT_LINES_MAX)
        self._line_count = 0
        self._ended = False
        self._reader = threading.Thread(target=self._read, name=f"output of {name}", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def output(self) -> str:
        """What the program has written so far, all of it once it has ended; at most the last OUTPUT_LINES_MAX lines."""
        if not self.running:
            self._reader.join(5)  # its last lines may still be on the way here
        with self._changed:
            return "\n".join(self._lines)

    def wait_line(self, pattern: str, timeout_s: float) -> str:
        """Return the first line so far or from now on that holds `pattern` (a regular expression).

        Raises ProgramError when the program ends or `timeout_s` passes without such a line.
        """
        expected, deadline, seen = re.compile(pattern), time.monotonic() + timeout_s, 0
        with self._changed:
            while True:
                fresh = min(self._line_count - seen, len(self._lines))
                for line in list(self._lines)[len(self._lines) - fresh :]:
                    if expected.search(line):
                        return line
                seen = self._line_count
                left_s = deadline - time.monotonic()
                if self._ended or left_s <= 0:
                    why = "ended" if self._ended else f"said nothing like it within {timeout_s:g} s"
                    raise ProgramError(f"{self.name} {why} (waited for {pattern!r}):\n" + self._tail())
                self._changed.wait(left_s)

    def stop(self, timeout_s: float = 30.0) -> int:
        """Ask for an orderly stop (SIGTERM), kill after `timeout_s`; returns the exit code."""
        if self.running:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return self.kill()
        self._close()
        return code

    def kill(self) -> int:
        """End it now (SIGKILL), as a crash would; returns the exit code."""
        self.process.kill()
        code = self.process.wait()
        self._close()
        return code

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._on_line(line)
            with self._changed:
                self._lines.append(line.rstrip("\n"))
                self._line_count += 1
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _close(self) -> None:
        self._reader.join(5)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _tail(self) -> str:
        return "\n".join(list(self._lines)[-40:])


class Server(Program):
    """A server program and the address ("host:port") at which clients reach it."""

    def __init__(
        self,
        name: str,
        command: list[str],
        address: str,
        ready: str,
        *,
        timeout_s: float = 60.0,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        spawn: Spawn = _popen,
    ) -> None:
        """Start it and wait for the line `ready` (a regular expression); kills it and raises ProgramError else."""
        super().__init__(name, command, env=env, cwd=cwd, spawn=spawn)
        self.address = address
        try:
            self.wait_line(ready, timeout_s)
        except BaseException:
            self.kill()
            raise
        self.ready_after_s = time.monotonic() - self.started_at


def free_port(*around: int) -> int:
    """A TCP port that is free on all addresses, as are its neighbours at the distances `around`.

    No other process of tests on this machine is given one of them while this one lives: a server binds its port only
    some time after it was chosen.
    """
    for _ in range(200):
        port = random.randint(PORT_FIRST, PORT_LAST)
        expected = [port + distance for distance in (0, *around)]
        with _ports.lock:
            if _ports.reserve(expected) and all(map(_is_free, expected)):
                return port
    raise ProgramError(f"no free port with free neighbours {around} found in {PORT_FIRST}-{PORT_LAST}")


class _Ports:
    """Which ports this process has given out: a lock on the byte of its number in a file that all processes share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        # Guarded by lock. To close the file, anywhere in this process, would let all of it go.
        self._file: IO[bytes] | None = None
        self._own: set[int] = set()

    def reserve(self, ports: Iterable[int]) -> bool:
        """Whether nobody has one of them; then they are ours."""
        if self._file is None:
            path = Path(tempfile.gettempdir()) / PORTS_FILE
            self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
        for port in ports:
            if port in self._own:
                return False
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            except OSError:
                return False
            self._own.add(port)
        return True


_ports = _Ports()


def memory_kib(pid: int) -> dict[str, int]:
    """Resident memory of a process in KiB: `rss` all of it, `mapped` shared file pages, `own` the rest."""
    total = own = 0
    shared_file = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            shared_file = words[1][3] == "s" and len(words) > 5 and words[5].startswith("/")
        elif words[0] == "Rss:":
            total += int(words[1])
            own += 0 if shared_file else int(words[1])
    return {"rss": total, "mapped": total - own, "own": own}


def _dying_with_parent() -> list[str]:
    """Words before a command that end it when the tests are killed and cannot stop it (Linux)."""
    tool = shutil.which("setpriv")
    return [tool, "--pdeathsig", "KILL", "--"] if tool else []


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
        return True
