"""Two threads of one store, the one stopped at any line of the product while the other does its work.

A thread may lose its turn between any two lines, for as long as the other one needs: a race that a busy machine shows
once in a thousand runs is here the run with one certain number. No clock is in it: the one that was stopped goes on
when the other is done, or has to wait for a lock that the stopped one holds.
"""

import inspect
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import CodeType, FrameType
from typing import Any

import pytest

import aerobee_store

__all__ = ["interrupted_at", "note_locks"]

_PRODUCT = str(Path(aerobee_store.__file__).parent)
# Of each thread that has the turn: where it says that it is done, or waits.
_turns: dict[threading.Thread, "SimpleQueue[None]"] = {}


def note_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks that the product makes from now on tell who has to wait for them."""
    for kind in ("Lock", "RLock"):
        monkeypatch.setattr(threading, kind, partial(_made, getattr(threading, kind)))


def _made(make: Callable[[], Any]) -> Any:
    frame = inspect.currentframe()
    caller = None if frame is None else frame.f_back
    is_ours = caller is not None and caller.f_code.co_filename.startswith(_PRODUCT)
    return _NotedLock(make()) if is_ours else make()


class _NotedLock:
    """A lock, or one that its holder may take again."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._lock.acquire(blocking=False):
            return True
        turn = _turns.get(threading.current_thread())
        if blocking and turn is not None:
            turn.put(None)
        return bool(blocking and self._lock.acquire(timeout=timeout))

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def interrupted_at(number: int, first: Callable[[], object], other: Callable[[], object]) -> bool:
    """Call `first`, and before the `number`-th line (from 0 on) of the store's code that it comes to, call `other` in a
    thread of its own. Whether it came to so many lines; else `other` was not called.

    What `other` has to wait for has to be a lock that was made after note_locks().
    """
    failed: list[BaseException] = []
    turn: SimpleQueue[None] = SimpleQueue()

    def guarded() -> None:
        try:
            other()
        except BaseException as error:
            failed.append(error)
        finally:
            turn.put(None)

    thread = threading.Thread(target=guarded)

    def give_turn() -> None:
        _turns[thread] = turn
        thread.start()
        turn.get()

    stop = _Stop(number, give_turn)
    before = sys.gettrace()
    sys.settrace(stop.called)
    try:
        first()
    finally:
        sys.settrace(before)
        if stop.is_over:
            thread.join()
            del _turns[thread]
    if failed:
        raise failed[0]
    return stop.is_over


class _Stop:
    """Counts lines, and calls something before the one."""

    def __init__(self, number: int, reached: Callable[[], object]) -> None:
        self._left = number
        self._reached = reached
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
                self._reached()
                return None
            self._left -= 1
        return self._at
