"""System calls that fail to order, in this process: by name, by the file they are about, from the n-th on."""

import fcntl
import io
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

__all__ = ["FailingCall", "failing", "recorded_calls"]


class FailingCall:
    """`count` calls fail from the `first` on (None: all), of those whose file `concerns` says yes to."""

    def __init__(
        self, error: int, concerns: Callable[[str], bool], *, first: int = 1, count: int | None = 1
    ) -> None:
        self._error = error
        self._concerns = concerns
        self._first = first
        self._count = count
        self.seen = 0  # calls about such a file
        self.failed = 0

    def __call__(self, real: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        path = _path_of(arguments[0])
        if self._concerns(path):
            self.seen += 1
            if self.seen >= self._first and (self._count is None or self.failed < self._count):
                self.failed += 1
                raise OSError(self._error, os.strerror(self._error), path)
        return real(*arguments, **named)


def _modules_of(call: str) -> list[ModuleType]:
    """Where the call lies. Python opens a file for `read_bytes` and the like without asking `os`."""
    if call == "mmap":
        return [mmap]
    if call == "lockf":
        return [fcntl]
    return [os, io] if call == "open" else [os] if hasattr(os, call) else [fcntl]


def _path_of(file: Any) -> str:
    if isinstance(file, int):
        try:
            return str(Path(f"/proc/self/fd/{file}").readlink())
        except FileNotFoundError:  # nothing is open under that number
            return ""
    return str(os.fspath(file))


@contextmanager
def failing(
    call: str, error: int, concerns: Callable[[str], bool], *, first: int = 1, count: int | None = 1
) -> Iterator[FailingCall]:
    """While the block runs, `os.<call>`, or that of `fcntl` for locks and of `mmap` for maps, fails so."""
    one = FailingCall(error, concerns, first=first, count=count)
    with ExitStack() as stack:
        for module in _modules_of(call):
            stack.enter_context(patch.object(module, call, partial(one, getattr(module, call))))
        yield one


@contextmanager
def recorded_calls(names: tuple[str, ...], root: Path) -> Iterator[set[tuple[str, str]]]:
    """Those of the calls `names` that are made about files below `root`, with their paths from there, which begin
    with /."""
    found: set[tuple[str, str]] = set()

    def called(name: str, real: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        path = _path_of(arguments[0]) if arguments else ""
        if path == str(root) or path.startswith(f"{root}/"):
            found.add((name, path.removeprefix(str(root)) or "/"))
        return real(*arguments, **named)

    with ExitStack() as stack:
        for name in names:
            for module in _modules_of(name):
                stack.enter_context(patch.object(module, name, partial(called, name, getattr(module, name))))
        yield found
