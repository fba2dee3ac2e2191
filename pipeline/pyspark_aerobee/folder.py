"""A folder tree that is only read: on this machine, or behind an fsspec address.

Touches  the files below one root. Local files are mapped, so that reading a range copies nothing.
"""

import mmap
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pyspark_aerobee.errors import OptionError

__all__ = ["Entry", "Folder", "FsspecFolder", "LocalFolder", "open_folder"]


class Entry(NamedTuple):
    """One name in a folder; `size` in bytes, 0 for folders."""

    name: str
    size: int
    is_dir: bool


class Folder(Protocol):
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


class LocalFolder:
    """A folder of this machine. Maps are kept until the object goes."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._maps: dict[str, memoryview] = {}

    @property
    def address(self) -> str:
        return str(self._root)

    def entries(self, path: str) -> list[Entry]:
        folder = self._root / path
        if not folder.is_dir():
            return []
        found = []
        for child in folder.iterdir():
            is_dir = child.is_dir()
            found.append(Entry(child.name, 0 if is_dir else child.stat().st_size, is_dir))
        return sorted(found)

    def read(self, path: str, begin: int, end: int) -> memoryview:
        view = self._maps.get(path)
        if view is None or end > len(view):
            view = self._maps[path] = _mapped(self._root / path)
        return view[begin:end]


def _mapped(path: Path) -> memoryview:
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


class FsspecFolder:
    """A folder behind any address that fsspec knows: s3://, gs://, hdfs://, memory:// ..."""

    def __init__(self, address: str, storage_options: dict[str, Any] | None = None) -> None:
        import fsspec

        self._address = address
        self._fs, self._root = fsspec.core.url_to_fs(address, **(storage_options or {}))
        self._root = self._root.rstrip("/")

    @property
    def address(self) -> str:
        return self._address

    def entries(self, path: str) -> list[Entry]:
        try:
            listed = self._fs.ls(f"{self._root}/{path}".rstrip("/"), detail=True, refresh=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = []
        for one in listed:
            is_dir = one["type"] == "directory"
            name = one["name"].rstrip("/").rpartition("/")[2]
            found.append(Entry(name, 0 if is_dir else int(one["size"]), is_dir))
        return sorted(found)

    def read(self, path: str, begin: int, end: int) -> memoryview:
        return memoryview(self._fs.cat_file(f"{self._root}/{path}", start=begin, end=end))


def open_folder(address: str, storage_options: dict[str, Any] | None = None) -> Folder:
    """The folder at a local path, a file:// address, or any other fsspec address."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        return LocalFolder(Path(address).expanduser())
    if scheme == "file" and not storage_options:
        return LocalFolder(Path("/" + rest.lstrip("/")))
    try:
        import fsspec  # noqa: F401  # only to say how to get it
    except ImportError as missing:
        raise OptionError(
            "path", address, "reading it needs the package fsspec: pip install fsspec"
        ) from missing
    try:
        return FsspecFolder(address, storage_options)
    except (ImportError, ValueError) as refused:
        raise OptionError("path", address, f"fsspec cannot open it: {refused}") from refused
