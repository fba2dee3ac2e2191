"""A tree of files that is only read, wherever it lies; on this machine it is mapped, so that reading copies nothing.

Touches  the files below one root.
"""

import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from aerobee_store.disk.extents import data_extents

__all__ = ["Entry", "FileTree", "LocalTree"]

# Maps that are kept; a process may have some 65,000, and a view keeps its own.
_MAPS_MAX: Final = 1024


class Entry(NamedTuple):
    """One name in a folder; `size` in bytes, 0 for folders."""

    name: str
    size: int
    is_dir: bool


class FileTree(Protocol):
    """What the readers need. Paths are relative to the root, with `/` between names."""

    @property
    def address(self) -> str:
        """The root as the user wrote it."""
        ...

    def entries(self, path: str) -> list[Entry]:
        """What lies in a folder, by name; empty when it is not there."""
        ...

    def read(self, path: str, begin: int, end: int) -> memoryview:
        """The bytes [begin, end) of a file, fewer when it is shorter. FileNotFoundError when it is gone."""
        ...

    def extents(self, path: str, begin: int, end: int) -> Iterable[tuple[int, int]]:
        """The stretches of [begin, end) of a file that may hold something; the rest reads as zero."""
        ...


class LocalTree:
    """A folder of this machine. What was read stays valid for as long as somebody has it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._maps: dict[str, memoryview] = {}  # at most _MAPS_MAX, oldest first

    @property
    def address(self) -> str:
        """As FileTree."""
        return str(self._root)

    def entries(self, path: str) -> list[Entry]:
        """As FileTree."""
        folder = self._root / path
        if not folder.is_dir():
            return []
        with os.scandir(folder) as children:
            found = [_entry(child) for child in children]
        return sorted(entry for entry in found if entry is not None)

    def read(self, path: str, begin: int, end: int) -> memoryview:
        """As FileTree."""
        view = self._maps.get(path)
        if view is None or end > len(view):
            self._maps.pop(path, None)
            while len(self._maps) >= _MAPS_MAX:
                del self._maps[next(iter(self._maps))]
            view = self._maps[path] = _mapped(self._root / path)
        return view[begin:end]

    def extents(self, path: str, begin: int, end: int) -> Iterable[tuple[int, int]]:
        """As FileTree."""
        with (self._root / path).open("rb") as file:
            return data_extents(file.fileno(), begin, end)


def _entry(child: "os.DirEntry[str]") -> Entry | None:
    """None for a file that went away since its name was read."""
    is_dir = child.is_dir()
    try:
        return Entry(child.name, 0 if is_dir else child.stat().st_size, is_dir)
    except FileNotFoundError:
        return Entry(child.name, 0, is_dir) if child.is_symlink() else None


def _mapped(path: Path) -> memoryview:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
