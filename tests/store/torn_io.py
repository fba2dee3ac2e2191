"""A disk that remembers every write, to replay what a power failure may leave of them."""

from pathlib import Path

from aerobee_store.disk.io import DataFile, DiskIo


class RememberingFile:
    """A data file whose writes go into a list that all files of a disk share."""

    def __init__(self, file: DataFile, writes: list[tuple[Path, int, bytes]]) -> None:
        self._file = file
        self._writes = writes
        self.path, self.size, self.view = file.path, file.size, file.view
        self.sync, self.zero, self.close = file.sync, file.zero, file.close
        self.data_extents, self.read, self.displaced = file.data_extents, file.read, file.displaced
        self.in_memory, self.pages_in_memory = file.in_memory, file.pages_in_memory
        self.read_ahead = file.read_ahead

    def window(self) -> None:
        """Every write is seen."""

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        self._writes.append((self.path, position, bytes(data)))
        self._file.write(position, data)


class RememberingIo(DiskIo):
    """A disk whose files remember their writes in `writes`, in order."""

    def __init__(self) -> None:
        self.writes: list[tuple[Path, int, bytes]] = []

    def open_file(
        self, path: Path, size: int, *, create: bool = False, writable: bool = True, room: int | None = None
    ) -> DataFile:
        return RememberingFile(
            super().open_file(path, size, create=create, writable=writable, room=room), self.writes
        )


def leave_only(folder: Path, writes: list[tuple[Path, int, bytes]], survived: list[bool]) -> None:
    """Make every file below `folder` zero, then write again what survived; missing flags count as true."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.write_bytes(bytes(path.stat().st_size))
    flags = survived + [True] * (len(writes) - len(survived))
    for (path, position, data), kept in zip(writes, flags, strict=False):
        if kept:
            with path.open("r+b") as file:
                file.seek(position)
                file.write(data)
