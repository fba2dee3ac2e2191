"""Where a LogReader gets its bytes from: the maps of an open log, calls that read it, files of a folder anywhere.

Touches  the commit log or the files that it is given, reading.

Through its maps a log is read without a copy, and a bad sector ends the process. By calls a bad sector is an OSError,
and the interpreter's lock is not held while the disk is waited for.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from aerobee_store.disk.mapped_files import MappedFile, file_name
from aerobee_store.log.commit_log import CommitLog

__all__ = ["ALL", "CallSource", "FileSource", "MapSource", "ReadsFiles", "RowFile"]

# As piece_size: a file is asked for whole.
ALL: Final = 1 << 62


class MapSource:
    """A log through its maps."""

    piece_size = ALL

    def __init__(self, log: CommitLog) -> None:
        self._log = log

    def files(self) -> Sequence[MappedFile]:
        """As ByteSource."""
        return self._log.mapped.files

    def read(self, begin: int, end: int) -> memoryview:
        """As ByteSource."""
        file = self._log.mapped.find(begin)
        return memoryview(b"") if file is None else file.view[begin - file.offset : end - file.offset]

    def extents(self, begin: int, end: int) -> Iterable[tuple[int, int]]:
        """As ByteSource."""
        file = self._log.mapped.find(begin)
        if file is None:
            return []
        found = file.data.data_extents(begin - file.offset, end - file.offset)
        return [(file.offset + low, file.offset + high) for low, high in found]

    def path(self, offset: int) -> str:
        """As ByteSource."""
        file = self._log.mapped.find(offset)
        return str(file.data.path if file is not None else self._log.folder / file_name(offset))


class CallSource(MapSource):
    """A log by calls that read `piece_size` bytes at a time. OSError where the disk gives an error."""

    def __init__(self, log: CommitLog, piece_size: int) -> None:
        super().__init__(log)
        self.piece_size = piece_size

    def read(self, begin: int, end: int) -> memoryview:
        """As ByteSource."""
        file = self._log.mapped.find(begin)
        if file is None:
            return memoryview(b"")
        return memoryview(file.data.read(begin - file.offset, min(end, file.end) - begin))


class RowFile(NamedTuple):
    """One file of a row, of the log or of a queue: where its first byte lies in the row and one past its last, in
    bytes, for the log physical offsets; and how it is named."""

    offset: int
    end: int
    path: str

    @property
    def size(self) -> int:
        return self.end - self.offset


class ReadsFiles(Protocol):
    """What reads files by their names."""

    def read(self, path: str, begin: int, end: int) -> memoryview:
        """The bytes [begin, end) of a file, fewer when it is shorter. FileNotFoundError when it is gone."""

    def extents(self, path: str, begin: int, end: int) -> Iterable[tuple[int, int]]:
        """The stretches of [begin, end) of a file that may hold something; the rest reads as zero."""


class FileSource:
    """Files that nobody but the folder knows how to read, `piece_size` bytes at a time."""

    def __init__(self, folder: ReadsFiles, files: Sequence[RowFile], piece_size: int = ALL) -> None:
        """`files`: those of the log, oldest first; they stay the same."""
        self._folder = folder
        self._files = files
        self.piece_size = piece_size

    def files(self) -> Sequence[RowFile]:
        """As ByteSource."""
        return self._files

    def read(self, begin: int, end: int) -> memoryview:
        """As ByteSource."""
        file = self._file_at(begin)
        return self._folder.read(file.path, begin - file.offset, min(end, file.end) - file.offset)

    def extents(self, begin: int, end: int) -> Iterable[tuple[int, int]]:
        """As ByteSource."""
        if begin >= end:
            return
        file = self._file_at(begin)
        for low, high in self._folder.extents(file.path, begin - file.offset, end - file.offset):
            yield file.offset + low, file.offset + high

    def path(self, offset: int) -> str:
        """As ByteSource."""
        file = self._file_at(offset)
        return file.path if offset < file.end else file.path.rpartition("/")[0] + "/" + file_name(offset)

    def _file_at(self, offset: int) -> RowFile:
        """The file that holds an offset, or the one before it."""
        return self._files[max(bisect_right(self._files, offset, key=lambda file: file.offset) - 1, 0)]
