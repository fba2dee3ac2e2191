"""Room kept back for small files, so that settings, offsets and the checkpoint can be written on a full disk.

Touches  <root>/reserve, a file of zeros that RocketMQ does not look at.

`ReservedIo` stands before the real disk. When a small file finds no room it gives the reserve up and tries again;
`Reserve.refill` makes it anew once there is room again. Log, queue and index files never get at it.

Invariants
- The reserve is allocated when it is there: giving it up gives its bytes back.
- What does not fit into the reserve either fails as it would without one.

Threads: everything may be called by any thread.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from aerobee_store.disk.io import DataFile, FolderEntry, FoundFile, LockHandle, StoreIo
from aerobee_store.faults.errors import NO_ROOM_ERRORS, OutOfResources, StoreFull

__all__ = ["RESERVE_SIZE", "Reserve", "ReservedIo"]

RESERVE_SIZE: Final = 4 << 20  # bytes; the tables of some 10,000 topics and groups, twice

T = TypeVar("T")


class Reserve:
    """The file that is there to be given up."""

    def __init__(self, path: Path, io: StoreIo, size: int = RESERVE_SIZE) -> None:
        self._path = path
        self._io = io
        self._size = size
        self._changing = threading.Lock()

    @property
    def folder(self) -> Path:
        """Where it lies: the store folder."""
        return self._path.parent

    def is_there(self) -> bool:
        """Whether there is a whole reserve."""
        names = self._io.list_names(self._path.parent)
        return any(entry.name == self._path.name and entry.size == self._size for entry in names)

    def give_up(self) -> bool:
        """Delete the reserve; False when there was none, so that trying again is of no use."""
        with self._changing:
            there = any(e.name == self._path.name for e in self._io.list_names(self._path.parent))
            if there:
                self._io.unlink(self._path)
            return there

    def refill(self) -> bool:
        """Make the reserve if it is not there; False when there is no room for it and as much again."""
        with self._changing:
            if self.is_there():
                return True
            try:
                self._io.make_folder(self._path.parent)
                _, free = self._io.disk_usage(self._path.parent)
                if free < 2 * self._size:
                    return False
                self._io.unlink(self._path)
                self._io.open_file(self._path, self._size, create=True).close()
            except OutOfResources:
                raise
            except StoreFull:
                return False
            return True


class ReservedIo:
    """A StoreIo that lets small files have the reserve."""

    def __init__(self, io: StoreIo, reserve: Reserve) -> None:
        self._io = io
        self.reserve = reserve

    def _insist(self, write: Callable[[], T]) -> T:
        try:
            return write()
        except (StoreFull, OSError) as error:
            if isinstance(error, OutOfResources):
                raise  # room on the disk is not what is missing
            if isinstance(error, OSError) and error.errno not in NO_ROOM_ERRORS:
                raise
            if not self.reserve.give_up():
                raise
        return write()

    def open_file(
        self, path: Path, size: int, *, create: bool = False, writable: bool = True, room: int | None = None
    ) -> DataFile:
        """As the disk's own; what lies beside the reserve, as the checkpoint does, may have it."""
        if not create or path.parent != self.reserve.folder:
            return self._io.open_file(path, size, create=create, writable=writable, room=room)
        return self._insist(lambda: self._io.open_file(path, size, create=True, writable=writable, room=room))

    def read_bytes(self, path: Path) -> bytes | None:
        """As the disk's own."""
        return self._io.read_bytes(path)

    def replace_bytes(self, path: Path, data: bytes, *, keep_previous: bool = True) -> None:
        """As the disk's own, with the reserve."""
        self._insist(lambda: self._io.replace_bytes(path, data, keep_previous=keep_previous))

    def list_names(self, folder: Path) -> list[FolderEntry]:
        """As the disk's own."""
        return self._io.list_names(folder)

    def unlink(self, path: Path) -> None:
        """As the disk's own."""
        self._io.unlink(path)

    def remove_folder(self, path: Path) -> None:
        """As the disk's own."""
        self._io.remove_folder(path)

    def make_folder(self, path: Path) -> None:
        """As the disk's own."""
        self._io.make_folder(path)

    def rename(self, source: Path, target: Path, *, lasting: bool = True) -> None:
        """As the disk's own."""
        self._io.rename(source, target, lasting=lasting)

    def sync_folder(self, path: Path) -> None:
        """As the disk's own."""
        self._io.sync_folder(path)

    def sync_all(
        self, files: Sequence[DataFile], folders: Sequence[Path], *, gently: Callable[[], bool] | None = None
    ) -> None:
        """As the disk's own."""
        self._io.sync_all(files, folders, gently=gently)

    def lock(self, path: Path) -> LockHandle:
        """As the disk's own, with the reserve."""
        return self._insist(lambda: self._io.lock(path))

    def disk_usage(self, path: Path) -> tuple[int, int]:
        """As the disk's own."""
        return self._io.disk_usage(path)

    def bring(self, path: Path, position: int, length: int) -> None:
        self._io.bring(path, position, length)

    def read_ahead(self, path: Path, position: int, length: int) -> None:
        self._io.read_ahead(path, position, length)

    def modified_ms(self, path: Path) -> int:
        """As the disk's own."""
        return self._io.modified_ms(path)

    def find(self, path: Path) -> FoundFile | None:
        """As the disk's own."""
        return self._io.find(path)
