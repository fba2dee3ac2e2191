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

from aerobee_store.disk import file_maps

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

    def __call__(self, place: int, real: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """`place`: which of the arguments is the file."""
        path = _path_of(arguments[place])
        if self._concerns(path):
            self.seen += 1
            if self.seen >= self._first and (self._count is None or self.failed < self._count):
                self.failed += 1
                raise OSError(self._error, os.strerror(self._error), path)
        return real(*arguments, **named)


def _doors_of(call: str) -> list[tuple[ModuleType, str, int]]:
    """Where the call lies: module, name, and which argument is the file. Python opens a file for `read_bytes` and the
    like without asking `os`; some maps are made by a call of the system's library."""
    if call == "mmap":
        is_called = file_maps.DESCRIPTORS_A_FILE > 1 and not file_maps.DESCRIPTORS_A_MAP
        return [(mmap, "mmap", 0), *([(file_maps, "_mmap", 4)] if is_called else [])]
    if call == "lockf":
        return [(fcntl, call, 0)]
    modules = [os, io] if call == "open" else [os] if hasattr(os, call) else [fcntl]
    return [(module, call, 0) for module in modules]


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
        for module, name, place in _doors_of(call):
            stack.enter_context(patch.object(module, name, partial(one, place, getattr(module, name))))
        yield one


@contextmanager
def recorded_calls(names: tuple[str, ...], root: Path) -> Iterator[set[tuple[str, str]]]:
    """Those of the calls `names` that are made about files below `root`, with their paths from there, which begin
    with /."""
    found: set[tuple[str, str]] = set()

    def called(name: str, place: int, real: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        path = _path_of(arguments[place]) if arguments else ""
        if path == str(root) or path.startswith(f"{root}/"):
            found.add((name, path.removeprefix(str(root)) or "/"))
        return real(*arguments, **named)

    with ExitStack() as stack:
        for name in names:
            for module, door, place in _doors_of(name):
                made = partial(called, name, place, getattr(module, door))
                stack.enter_context(patch.object(module, door, made))
        yield found
