"""What a process that the kernel kills for a bad page says as its last words.

Touches  standard error, when it happens; a thread that does nothing.

A read through a map ends the process with SIGBUS when the file was cut or its disk cannot read the sector, and Python
says nothing then. Nothing of Python may run in such a moment, but `faulthandler` writes the frames of all threads, in
C, and a frame shows the name of its file. So a thread waits in a function whose file name is the sentence.
"""

import faulthandler
import sys
import threading
from pathlib import Path
from types import FunctionType
from typing import Final

__all__ = ["explain_crashes"]

SENTENCE: Final = (
    "'Bus error' above means: a file of the store {root} was cut by another program, or the disk cannot read it. "
    "See dmesg and the other thread's lines; the next start looks at every file and says what is missing"
)
_LENGTH_MAX: Final = 480  # of a name that faulthandler writes whole


def explain_crashes(root: Path) -> None:
    """From now on a fatal signal is told on standard error: the frames of all threads, and what SIGBUS means."""
    try:
        faulthandler.enable(sys.stderr, all_threads=True)
    except (AttributeError, ValueError, OSError):
        return  # standard error is closed, or no file
    sentence = SENTENCE.format(root=root)[:_LENGTH_MAX]
    code = _wait.__code__.replace(co_filename=sentence, co_name="crash_note")
    waiting = FunctionType(code, {"threading": threading})
    threading.Thread(target=waiting, name="crash note", daemon=True).start()


def _wait() -> None:
    threading.Event().wait()
