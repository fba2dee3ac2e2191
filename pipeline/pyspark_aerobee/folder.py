"""Opening a store folder: on this machine, or behind an fsspec address.

Touches  the files below one root, reading.
"""

from pathlib import Path
from typing import Any

from aerobee_store.offline.file_tree import Entry, FileTree, LocalTree
from aerobee_store.offline.folder import COMMIT_LOG, INDEX, StoreFolder
from aerobee_store.queues.batch_queues import QUEUE_FOLDER
from pyspark_aerobee.errors import OptionError

__all__ = ["FsspecTree", "open_folder", "open_store", "require_log"]


def open_store(address: str) -> StoreFolder:
    """The store at an address, as open_folder() takes it. OptionError when there is none."""
    store = StoreFolder(open_folder(address))
    require_log(store)
    return store


def require_log(store: StoreFolder) -> None:
    """OptionError when this is no store folder."""
    if not store.log_files():
        raise OptionError(
            "path",
            store.tree.address,
            f"there is no log in it; name the folder that has `{COMMIT_LOG}`, `{QUEUE_FOLDER}` and `{INDEX}` "
            "(storePathRootDir)",
        )


class FsspecTree:
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

    def extents(self, path: str, begin: int, end: int) -> list[tuple[int, int]]:
        return [(begin, end)]


def open_folder(address: str, storage_options: dict[str, Any] | None = None) -> FileTree:
    """The folder at a local path, a file:// address, or any other fsspec address."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        return LocalTree(Path(address).expanduser())
    if scheme == "file" and not storage_options:
        return LocalTree(Path("/" + rest.lstrip("/")))
    try:
        import fsspec  # noqa: F401  # only to say how to get it
    except ImportError as missing:
        raise OptionError(
            "path", address, "reading it needs the package fsspec: pip install fsspec"
        ) from missing
    try:
        return FsspecTree(address, storage_options)
    except (ImportError, ValueError) as refused:
        raise OptionError("path", address, f"fsspec cannot open it: {refused}") from refused
