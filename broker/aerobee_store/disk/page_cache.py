"""What of a file is in memory, asked of the system; and bringing there what is not.

Touches  the page cache, through `mincore` and plain reads. No sockets, no asyncio.

A thread that reads a page through a map waits for the disk when the page is not in memory, and nothing tells it so
before. `is_resident` asks, by `mincore`: 2.0 us for 8 pages, 6.0 for 64, 19 for 256. A read with RWF_NOWAIT into a
buffer takes 1.3, 7.5 and 32 (`bench/cold.py --only asking`). `mincore` was taken because it starts no read of the disk
by itself, works on every file system (RWF_NOWAIT is refused by tmpfs and overlayfs) and on macOS, and says of all pages
of a stretch whether they are there without copying them.

Where nothing can be asked (no `mincore` in the C library, or a sandbox that calls every page resident), everything
counts as being in memory: reads wait where they are made, as they would without this module.
"""

import ctypes
import mmap
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

__all__ = [
    "NotInMemory",
    "Stretch",
    "address_of",
    "bring_file",
    "is_file_resident",
    "is_resident",
    "read_file_ahead",
    "resident_pages",
]

_PAGE: Final = mmap.PAGESIZE
_HERE: Final = b"\1"
_PAGES_MAX: Final = 4096  # asked for at once
_BUFFER_SIZE: Final = 1 << 18  # what a thread that brings pages reads at a time
# What is asked for by one call: Linux reads no more for it than the disk takes as one request, and leaves out the rest.
_ADVICE_SIZE: Final = 1 << 19
# What is asked for around a few bytes: a disk reads so much in little more time than a page, and whoever asks for one
# key or message asks for others. Page by page, an index file of 420 MB takes 105,000 reads. Linux does it for a map.
_AROUND_SIZE: Final = 1 << 16
# The lowest bit of each answer says whether the page is there; other systems than Linux use the others too.
_LOWEST_BIT: Final = bytes(value & 1 for value in range(256))


class Stretch(NamedTuple):
    """Bytes of a file, which may be gone by now."""

    path: Path
    position: int
    length: int


class NotInMemory(Exception):
    """What was asked for would have to wait for the disk; nothing was done. Raised only to those who ask for it.

    `needed` has to be brought into memory before it is asked for again, `ahead` is what will probably be asked for
    then. Neither is long (see `aerobee_store.reading.residency`). `further` says step by step what is needed besides,
    which is known only when all before it is in memory: for the thread that brings these.
    """

    def __init__(
        self,
        needed: Sequence[Stretch],
        ahead: Sequence[Stretch] = (),
        *,
        further: Iterable[Sequence[Stretch]] = (),
    ) -> None:
        super().__init__("not in memory")
        self.needed = needed
        self.ahead = ahead
        self.further = further


def _find_mincore() -> "ctypes._NamedFuncPointer | None":
    try:
        # Of PyDLL: the call keeps the interpreter's lock, as it waits for nothing and takes less than giving it back.
        found = ctypes.PyDLL(None).mincore
    except (OSError, AttributeError, TypeError):
        return None
    found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    found.restype = ctypes.c_int
    return found


_mincore: Final = _find_mincore()


def address_of(view: memoryview) -> int:
    """Where a map begins in this process. It stays there until the map is closed."""
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def is_resident(address: int, length: int) -> bool:
    """Whether all pages of a part of a map are in memory. True where nobody can tell."""
    begin = address - address % _PAGE
    end = address + length
    while begin < end:
        size = min(end - begin, _PAGES_MAX * _PAGE)
        if 0 in resident_pages(begin, size):
            return False
        begin += size
    return True


def resident_pages(address: int, length: int) -> bytes:
    """Which pages of a part of a map are in memory: a byte for each, 1 or 0. All where nobody can tell, and where there
    is no map (any more): a read of it waits for nothing."""
    begin = address - address % _PAGE
    count = -(-(address + length - begin) // _PAGE)
    answers = ctypes.create_string_buffer(max(count, 1))
    if _mincore is None or _mincore(begin, count * _PAGE, answers):
        return _HERE * count
    return answers.raw[:count].translate(_LOWEST_BIT)


def is_file_resident(fd: int, size: int, position: int, length: int) -> bool:
    """As is_resident(), of a file that is not mapped: it is for the moment, at 10 us more."""
    begin = position - position % mmap.ALLOCATIONGRANULARITY
    end = min(position + length, size)
    if _mincore is None or begin >= end:
        return True
    try:
        with mmap.mmap(fd, end - begin, access=mmap.ACCESS_READ, offset=begin) as made:
            return is_resident(address_of(memoryview(made)), end - begin)
    except (OSError, ValueError, BufferError):
        return True


def bring_file(path: Path, position: int, length: int) -> None:
    """As StoreIo.bring(). By a descriptor of its own: that of an open file may be closed at any moment, and its number
    given to another file. OSError has no path yet."""
    with suppress(FileNotFoundError), path.open("rb", buffering=0) as file:
        # All of it is on its way before the first piece is waited for; of little, what lies near it, too.
        begin = position if length >= _AROUND_SIZE else position - position % _AROUND_SIZE
        _advise(file.fileno(), begin, max(position + length - begin, _AROUND_SIZE))
        buffer = memoryview(bytearray(min(length, _BUFFER_SIZE)))
        file.seek(position)
        while length > 0:
            count = file.readinto(buffer[: min(length, len(buffer))])
            if not count:
                break
            length -= count


def read_file_ahead(path: Path, position: int, length: int) -> None:
    """As StoreIo.read_ahead()."""
    with suppress(OSError), path.open("rb", buffering=0) as file:
        _advise(file.fileno(), position, length)


def _advise(fd: int, position: int, length: int) -> None:
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            for at in range(position, position + length, _ADVICE_SIZE):
                size = min(_ADVICE_SIZE, position + length - at)
                os.posix_fadvise(fd, at, size, os.POSIX_FADV_WILLNEED)
