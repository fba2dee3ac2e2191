"""A real disk with faults to order: syncs that fail, and no room for new files."""

import threading
from pathlib import Path

from aerobee_store.disk.io import Buffer, DataFile, DiskIo
from aerobee_store.faults.errors import StoreFull

__all__ = ["FaultyDisk"]


class _FaultyFile:
    """A data file whose syncs fail while its disk says so."""

    def __init__(self, file: DataFile, disk: "FaultyDisk") -> None:
        self._file = file
        self._disk = disk
        self.path, self.size, self.view = file.path, file.size, file.view
        self.write, self.window, self.zero, self.close = file.write, file.window, file.zero, file.close
        self.data_extents, self.read, self.displaced = file.data_extents, file.read, file.displaced
        self.in_memory, self.pages_in_memory = file.in_memory, file.pages_in_memory
        self.read_ahead = file.read_ahead

    def sync(self) -> None:
        self._disk.syncs += 1
        assert self._disk.may_sync.wait(timeout=60), "the test forgot to let the disk go on"
        if self._disk.sync_error is not None:
            raise self._disk.sync_error
        self._file.sync()


class FaultyDisk(DiskIo):
    """`sync_error` is raised by every sync while it is set; while `is_full` nothing new can be created.

    Syncs wait for `may_sync`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sync_error: OSError | None = None
        self.is_full = False
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.syncs = 0

    def open_file(
        self, path: Path, size: int, *, create: bool = False, writable: bool = True, room: int | None = None
    ) -> DataFile:
        if create and self.is_full:
            raise StoreFull(path, size)
        return _FaultyFile(super().open_file(path, size, create=create, writable=writable, room=room), self)

    def replace_bytes(self, path: Path, data: Buffer, *, keep_previous: bool = True) -> None:
        if self.is_full:
            raise StoreFull(path, len(data))
        super().replace_bytes(path, bytes(data), keep_previous=keep_previous)
