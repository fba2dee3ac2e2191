"""Ctrl-C in the midst of loading modules, at an import that is chosen: nothing here waits for the right moment."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee_service.program.interrupts import (
    INTERRUPTED,
    end_quietly_while_loading,
    exit_with,
    interrupts_as_ever,
    loading_ends_quietly,
)

# Python loads `sitecustomize` first of all. This one sends SIGINT when a module is asked for: either where a
# KeyboardInterrupt would get out, or in a callback like those of Python's own locks of modules, where it would not.
INTERRUPTING = """
import os, signal, sys, weakref

class Thing:
    pass

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPT_AT"]:
            if os.environ["INTERRUPT_IN"] == "a callback":
                thing = Thing()
                reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGINT))
                del thing
            else:
                os.kill(os.getpid(), signal.SIGINT)
        return None

sys.meta_path.insert(0, Interrupting())
"""
PROGRAMS = {
    "aerobee broker": (["-m", "aerobee", "broker"], ["cyclopts", "aerobee_broker.broker", "uvloop"]),
    "aerobee nameserver": (["-m", "aerobee", "nameserver"], ["cyclopts", "aerobee_nameserver.main"]),
    "aerobee dev": (["-m", "aerobee", "dev"], ["aerobee_console.servers.dev", "uvloop"]),
    "aerobee send": (
        ["-m", "aerobee", "send", "T", "x"],
        ["aerobee_console.traffic.sending", "aerobee.client"],
    ),
    "aerobee topic list": (["-m", "aerobee", "topic", "list"], ["aerobee_console.cluster.topics", "uvloop"]),
    "aerobee_console": (["-m", "aerobee_console", "--help"], ["cyclopts"]),
    "aerobee_broker": (["-m", "aerobee_broker"], ["aerobee_broker.main", "aerobee_store.store"]),
    "aerobee_nameserver": (["-m", "aerobee_nameserver"], ["aerobee_nameserver.main", "asyncio"]),
}


@pytest.fixture(autouse=True)
def python_s_own_handler() -> Iterator[None]:
    """Whatever ran in this process before: Spark leaves a handler of its own."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("way", ["the open", "a callback"])
@pytest.mark.parametrize(
    ("words", "module"),
    [
        pytest.param(words, module, id=f"{name}-{module}")
        for name, (words, modules) in PROGRAMS.items()
        for module in modules
    ],
)
def test_a_ctrl_c_while_modules_are_loading_ends_the_program_without_a_word(
    tmp_path: Path, words: list[str], module: str, way: str
) -> None:
    """Half a second after the start it printed "Exception ignored in _get_module_lock", or a traceback."""
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTING)
    home = tmp_path / "home"
    home.mkdir()
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AEROBEE")},
        "PYTHONPATH": str(tmp_path),
        "HOME": str(home),
        "INTERRUPT_AT": module,
        "INTERRUPT_IN": way,
    }
    done = subprocess.run(
        [sys.executable, *words],
        env=environ,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "")
    assert not list(home.iterdir())


def test_a_ctrl_c_elsewhere_is_a_keyboard_interrupt() -> None:
    with loading_ends_quietly(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("other", [signal.SIG_IGN, lambda *_: None], ids=["ignored", "somebody else's"])
def test_what_is_set_already_stays(other: signal.Handlers) -> None:
    before = signal.signal(signal.SIGINT, other)
    try:
        end_quietly_while_loading()
        assert signal.getsignal(signal.SIGINT) is other
        interrupts_as_ever()
        assert signal.getsignal(signal.SIGINT) is other
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_program_ends_with_its_exit_code_and_after_a_ctrl_c_with_130() -> None:
    def interrupted() -> int:
        signal.raise_signal(signal.SIGINT)
        return 0

    try:
        for program, code in ((lambda: 3, 3), (interrupted, INTERRUPTED)):
            with pytest.raises(SystemExit) as ended:
                exit_with(program)
            assert ended.value.code == code
    finally:
        interrupts_as_ever()
