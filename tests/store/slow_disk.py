"""A disk in memory that answers when the test says so: what of it is in memory is a matter of what was asked for.

`go_cold()` empties the memory: from then on whatever is read without being asked for is a wait for the disk, which the
real one would make its reader wait. A thread that brings pages waits until `answer()`; `fail()` makes the disk refuse.
"""

import errno
import threading
from pathlib import Path

from aerobee_store.disk.io import Buffer
from store.memory_io import PAGE_SIZE, MemoryFile, MemoryIo

__all__ = ["SlowIo"]


class SlowFile(MemoryFile):
    """A file of a SlowIo."""

    slow: "SlowIo"

    def write(self, position: int, data: Buffer) -> None:
        super().write(position, data)
        self.slow.written(self.path, position, len(data))

    def in_memory(self, position: int, length: int) -> bool:
        return self.slow.has(self.path, position, length)


class SlowIo(MemoryIo):
    """See the module. Pages that were written since the memory was emptied are in it."""

    def __init__(self) -> None:
        super().__init__()
        self._is_cold = False
        self._warm: set[tuple[Path, int]] = set()
        self._answers = threading.Event()
        self._answers.set()
        self._bad: set[tuple[Path, int]] = set()
        # (path, position, length), in order.
        self.asked: list[tuple[Path, int, int]] = []
        self.ahead: list[tuple[Path, int, int]] = []

    def go_cold(self) -> None:
        """Nothing is in memory any more."""
        self._is_cold = True
        self._warm.clear()

    def hang(self) -> None:
        """The disk does not answer until `answer`."""
        self._answers.clear()

    def answer(self) -> None:
        """What was asked for comes, and what will be."""
        self._answers.set()

    def fail(self, path: Path, page: int) -> None:
        """A page that the disk cannot read."""
        self._bad.add((path, page))

    def size(self, path: Path) -> int:
        """Bytes of a file."""
        content = self.read_bytes(path)
        return len(content or b"")

    def written(self, path: Path, position: int, length: int) -> None:
        """These bytes are in memory now, whatever else there is on their pages: a test writes behind what it reads."""
        self._warm.update((path, page) for page in _pages(position, length))

    def has(self, path: Path, position: int, length: int) -> bool:
        return not self._is_cold or all((path, page) in self._warm for page in _pages(position, length))

    def open_file(
        self, path: Path, size: int, *, create: bool = False, writable: bool = True, room: int | None = None
    ) -> MemoryFile:
        file = super().open_file(path, size, create=create, writable=writable, room=room)
        made = SlowFile.__new__(SlowFile)
        made.__dict__.update(file.__dict__)
        made.slow = self
        return made

    def bring(self, path: Path, position: int, length: int) -> None:
        self.asked.append((path, position, length))
        self._answers.wait()
        for page in _pages(position, length):
            if (path, page) in self._bad:
                raise OSError(errno.EIO, "Input/output error", str(path))
            self._warm.add((path, page))

    def read_ahead(self, path: Path, position: int, length: int) -> None:
        self.ahead.append((path, position, length))


def _pages(position: int, length: int) -> range:
    return range(position // PAGE_SIZE, -(-(position + length) // PAGE_SIZE))
