"""Ctrl-C while a program is still loading its modules: there is nothing to end yet, so it ends at once.

Touches  the process: the handler of SIGINT.

Python raises KeyboardInterrupt wherever it happens to be. In the midst of an import that may be a callback where nobody
can catch it (a traceback, and the program goes on), or the set-up of a library, which makes another error of it. So the
process ends there, without a word and with exit code 130. Everywhere else it is a KeyboardInterrupt as ever.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final, NoReturn

__all__ = [
    "INTERRUPTED",
    "end_quietly_while_loading",
    "exit_with",
    "interrupts_as_ever",
    "loading_ends_quietly",
]

INTERRUPTED: Final = 128 + signal.SIGINT


def end_quietly_while_loading() -> None:
    """From now on, until another handler is set. A SIGINT that is ignored stays so, as does somebody else's handler."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGINT, _interrupted)


def exit_with(program: Callable[[], int]) -> NoReturn:
    """Run a program, which loads its modules first, and end the process with its exit code; 130 after a Ctrl-C."""
    end_quietly_while_loading()
    try:
        code = program()
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)


def interrupts_as_ever() -> None:
    """Python's own handler again, which `asyncio.Runner` wants to find before it sets its own."""
    if signal.getsignal(signal.SIGINT) is _interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def loading_ends_quietly() -> Iterator[None]:
    """For as long as the block runs, or until another handler is set."""
    end_quietly_while_loading()
    try:
        yield
    finally:
        interrupts_as_ever()


def _interrupted(number: int, frame: FrameType | None) -> Any:
    at: FrameType | None = frame
    while at is not None:
        if at.f_code.co_filename.startswith("<frozen importlib"):
            _end()
        at = at.f_back
    signal.default_int_handler(number, frame)


def _end() -> NoReturn:
    with suppress(Exception):
        sys.stdout.flush()  # a command may load something when it has printed already
    os._exit(INTERRUPTED)
