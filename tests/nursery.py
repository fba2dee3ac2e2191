"""Programs of ours without their imports: one process has imported them all, and each start is a fork of it.

Starting a broker takes half a second of a core, nearly all of it imports, and the tests start hundreds. A fork runs the
same `main` in a process of its own, with its own session, environment, folder and output, and is killed and waited for
like any other; it leaves out syncs. That real commands start is proven elsewhere (tests/broker/test_main.py,
tests/console/servers/test_daemons.py and the pages of docs/ that are walked).

Touches  one process that imports, one that waits for each program, and the programs; Unix sockets between them.

Invariants
- A program that has ended keeps its process id until its exit code was taken, as children do.
- When the tests end, however they do, so does everything here (Linux).
"""

from __future__ import annotations

import array
import atexit
import ctypes
import functools
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

__all__ = ["NETNS_VARIABLE", "Forked", "Nursery", "forking", "processor_s", "sync_nothing"]

# Where each program's main() is, which takes no arguments but sys.argv and returns the exit code.
PROGRAMS: Final = {
    "aerobee": "aerobee_console.main",
    "aerobee_broker": "aerobee_broker.main",
}
# What the console imports when it starts one of these.
ALSO: Final = ("aerobee_broker.main", "aerobee_nameserver.main", "aerobee_console.servers.daemons")
REQUEST_MAX: Final = 1 << 20
PR_SET_PDEATHSIG: Final = 1
CLONE_NEWNET: Final = 0x40000000
NETNS_VARIABLE: Final = (
    "AEROBEE_TESTS_NETNS"  # the network namespace that a program is to be in (Linux, root)
)


# Seconds of processors of the programs that have ended: they are nobody's children, so the kernel does not add them up.
_used: list[float] = []


def processor_s() -> float:
    """What all programs that have ended have used of processors, in seconds."""
    return sum(_used)


def _processor_s_of(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # another system, or whoever kept it is gone
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _is_readable(control: socket.socket, timeout_s: float | None) -> bool:
    """Whether there is something to read, by then. `select.select` takes no descriptor above 1,023."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else 1000 * timeout_s))


class Forked:
    """A program that was forked, with as much of `subprocess.Popen` as the tests use."""

    def __init__(self, pid: int, control: socket.socket, stdout: IO[str]) -> None:
        # Fixed for life.
        self.pid = pid
        self.stdout: IO[str] | None = stdout
        self._control = control  # has the exit code, once; until it is taken the process id stays taken
        # Guarded by _lock.
        self._lock = threading.Lock()
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        with self._lock:
            if self.returncode is None and _is_readable(self._control, 0):
                data = self._control.recv(4)
                _used.append(_processor_s_of(self.pid))  # it is there until the exit code was taken
                # Without an answer whoever waited for it is gone, and it with him.
                self.returncode = struct.unpack("!i", data)[0] if data else -signal.SIGKILL
                self._control.close()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended; subprocess.TimeoutExpired when it has not by then."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise subprocess.TimeoutExpired([f"process {self.pid}"], timeout or 0.0)
            try:
                _is_readable(self._control, left_s)
            except (OSError, ValueError):  # another thread has just taken the exit code
                continue
        return code

    def send_signal(self, number: int) -> None:
        """As `os.kill`, but for a program that has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process that has imported our programs; started by the first who asks, it ends with this one."""

    def __init__(self) -> None:
        # Guarded by _lock.
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._door: socket.socket | None = None

    def start(
        self, program: str, words: Sequence[str], environ: Mapping[str, str], folder: Path | None
    ) -> Forked:
        """Fork `program` (a key of PROGRAMS) with these words behind its name; its output is in `stdout`."""
        request = {"program": program, "words": list(words), "environ": dict(environ)}
        request["folder"] = str(folder or Path.cwd())
        ours, theirs = socket.socketpair()
        outlet, inlet = os.pipe()
        try:
            with self._lock:
                rights = array.array("i", [inlet, theirs.fileno()])
                self._open_door().sendmsg(
                    [json.dumps(request).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
                )
        finally:
            os.close(inlet)
            theirs.close()
        data = ours.recv(4)
        stdout = os.fdopen(outlet, "r", encoding="utf-8", errors="replace")
        if not data:
            stdout.close()
            ours.close()
            raise RuntimeError(f"the nursery did not start {program}")
        return Forked(struct.unpack("!i", data)[0], ours, stdout)

    def _open_door(self) -> socket.socket:
        if self._process is None or self._door is None or self._process.poll() is not None:
            # One request is one message.
            self._door, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._door.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_MAX)
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(inside.fileno())],
                pass_fds=[inside.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # Nothing that it forks may have more threads than one: the library would start some when imported.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,
            )
            inside.close()
            atexit.register(_end, self._process, self._door)
        return self._door

    def close(self) -> None:
        """End it, and with it what it has started."""
        with self._lock:
            if self._process is not None and self._door is not None:
                _end(self._process, self._door)


_nursery = Nursery()


def forking(program: str) -> Callable[[list[str], Mapping[str, str], Path | None], Forked]:
    """How `programs.Program` is to start a command whose words are for this program of ours, in the nursery of all."""
    return functools.partial(_nursery.start, program)


def _end(process: subprocess.Popen[bytes], door: socket.socket) -> None:
    door.close()
    process.kill()
    process.wait()


# --- in the other process -----------------------------------------------------------------------------------------


def sync_nothing() -> None:
    """From now on this process waits for no disk: who is killed loses nothing that was written, synced or not."""
    os.fsync = os.fdatasync = _synced


def _synced(fd: object) -> None:
    return


def main(door: socket.socket) -> int:
    """Fork what is asked for until nobody asks any more. Comes back in each program, too, with its exit code."""
    for module in (*PROGRAMS.values(), *ALSO):
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait
    sync_nothing()
    while True:
        data, rights, _, _ = socket.recv_fds(door, REQUEST_MAX, 2)
        if not data:
            return 0
        inlet, control = rights[0], socket.socket(fileno=rights[1])
        if os.fork() == 0:
            door.close()
            return _keep(json.loads(data), inlet, control)
        os.close(inlet)
        control.close()


def _keep(request: dict[str, object], inlet: int, control: socket.socket) -> int:
    """Fork the program, tell its process id and in the end its exit code. Returns in the program only."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    die_with_parent()
    child = os.fork()
    if child == 0:
        control.close()
        return _become(request, inlet)
    os.close(inlet)
    control.sendall(struct.pack("!i", child))
    found = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert found is not None
    status = found.si_status
    control.sendall(struct.pack("!i", status if found.si_code == os.CLD_EXITED else -status))
    control.recv(1)  # until it is taken
    os.waitpid(child, 0)
    os._exit(0)


def _become(request: dict[str, object], inlet: int) -> int:
    """Be the program; its exit code."""
    os.setsid()
    die_with_parent()
    os.dup2(inlet, 1)
    os.dup2(inlet, 2)
    os.close(inlet)
    os.environ.clear()
    os.environ.update(request["environ"])  # type: ignore[call-overload]
    time.tzset()
    os.chdir(str(request["folder"]))
    if NETNS_VARIABLE in os.environ:
        _enter(os.environ[NETNS_VARIABLE])
    program, words = request["program"], request["words"]
    assert isinstance(program, str)
    assert isinstance(words, list)
    sys.argv = [program, *words]
    code = importlib.import_module(PROGRAMS[program]).main()
    assert isinstance(code, int)
    return code


def _enter(name: str) -> None:
    """Be in a network namespace that `ip netns add` has made. OSError."""
    space = os.open(f"/run/netns/{name}", os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(space, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"network namespace {name}: not entered")
    finally:
        os.close(space)


def die_with_parent() -> None:
    """SIGKILL when the process that forked this one is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of the tests
    sys.exit(main(socket.socket(fileno=int(sys.argv[1]))))
