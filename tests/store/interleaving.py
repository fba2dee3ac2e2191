"""Two threads of one store, the one stopped at any line of the product while the other does its work.

A thread may lose its turn between any two lines, for as long as the other one needs: a race that a busy machine shows
once in a thousand runs is here the run with one certain number.
"""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import aerobee_store

__all__ = ["interrupted_at"]

_PRODUCT = str(Path(aerobee_store.__file__).parent)
# One that needs a lock which the stopped one holds gets no further than there; it has its turn at the end then.
_PATIENCE_S = 0.03


def interrupted_at(number: int, first: Callable[[], object], other: Callable[[], object]) -> bool:
    """Call `first`, and before the `number`-th line (from 0 on) of the store's code that it comes to, call `other` in a
    thread of its own. Whether it came to so many lines; else `other` was not called."""
    failed: list[BaseException] = []

    def guarded() -> None:
        try:
            other()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=guarded)
    stop = _Stop(number, thread)
    before = sys.gettrace()
    sys.settrace(stop.called)
    try:
        first()
    finally:
        sys.settrace(before)
        if stop.is_over:
            thread.join()
    if failed:
        raise failed[0]
    return stop.is_over


class _Stop:
    """Counts lines, and lets the other thread run at the one."""

    def __init__(self, number: int, thread: threading.Thread) -> None:
        self._left = number
        self._thread = thread
        self._known: dict[CodeType, bool] = {}
        self.is_over = False

    def called(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        ours = self._known.get(code)
        if ours is None:
            ours = self._known[code] = code.co_filename.startswith(_PRODUCT)
        return self._at if ours and not self.is_over else None

    def _at(self, frame: FrameType, event: str, argument: Any) -> Any:
        if self.is_over:
            return None
        if event == "line":
            if not self._left:
                self.is_over = True
                sys.settrace(None)
                self._thread.start()
                self._thread.join(_PATIENCE_S)
                return None
            self._left -= 1
        return self._at
