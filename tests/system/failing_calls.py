"""System calls that fail to order, in this process: by name, by the file they are about, from the n-th on."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

__all__ = ["FailingCall", "failing"]


class FailingCall:
    """`count` calls fail from the `first` on (None: all), of those whose file `concerns` says yes to."""

    def __init__(
        self, call: str, error: int, concerns: Callable[[str], bool], *, first: int = 1, count: int | None = 1
    ) -> None:
        self.call = call
        self._real = getattr(_module_of(call), call)
        self._error = error
        self._concerns = concerns
        self._first = first
        self._count = count
        self.seen = 0  # calls about such a file
        self.failed = 0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        path = _path_of(arguments[0])
        if self._concerns(path):
            self.seen += 1
            if self.seen >= self._first and (self._count is None or self.failed < self._count):
                self.failed += 1
                raise OSError(self._error, os.strerror(self._error), path)
        return self._real(*arguments, **named)


def _module_of(call: str) -> ModuleType:
    return os if hasattr(os, call) and call != "lockf" else fcntl


def _path_of(file: Any) -> str:
    if isinstance(file, int):
        return str(Path(f"/proc/self/fd/{file}").readlink())
    return str(os.fspath(file))


@contextmanager
def failing(
    call: str, error: int, concerns: Callable[[str], bool], *, first: int = 1, count: int | None = 1
) -> Iterator[FailingCall]:
    """While the block runs, `os.<call>`, or `fcntl.<call>` for locks, fails so."""
    one = FailingCall(call, error, concerns, first=first, count=count)
    with patch.object(_module_of(call), call, one):
        yield one
