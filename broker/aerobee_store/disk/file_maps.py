"""Maps of files, where possible without a descriptor.

Touches  the memory of this process; files by the descriptors that it is given.

A map needs no descriptor once it is made. Python's `mmap` keeps one all the same before 3.13, a copy that counts
against the limit of the process: with 20,000 files that may be open, of which connections have half, no more than some
thousand queues could be mapped, and each message to another of them was a call. So for files that there are many of the
place is made first, of nothing, and then the file is put there (`mmap(2)` with MAP_FIXED). The object of Python goes on
to be what it was for: it gives the place back when nobody reads it any more.

Where this is not known to work (another system, another processor) a map takes its descriptor.
"""

import ctypes
import mmap
import os
import platform
import sys
from typing import Final

from aerobee_store.disk.page_cache import address_of

__all__ = ["DESCRIPTORS_A_FILE", "DESCRIPTORS_A_MAP", "map_file"]

_MAP_SHARED: Final = 0x01
_MAP_FIXED: Final = 0x10
# Of these processors the two numbers above are known to be what Linux understands.
_MACHINES: Final = frozenset({"x86_64", "aarch64"})
_IS_TRACKED: Final = sys.version_info < (3, 13)


def _find_mmap() -> "ctypes._NamedFuncPointer | None":
    if not _IS_TRACKED or sys.platform != "linux" or platform.machine() not in _MACHINES:
        return None
    try:
        # Of PyDLL: the call keeps the interpreter's lock, as it waits for nothing.
        found = ctypes.PyDLL(None, use_errno=True).mmap
    except (OSError, AttributeError, TypeError):
        return None
    found.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    )
    found.restype = ctypes.c_void_p
    return found


_mmap: Final = _find_mmap()
# Of a file that is open and mapped, made with `is_tracked`.
DESCRIPTORS_A_FILE: Final = 2 if _IS_TRACKED else 1
# Of a map that was made without, besides that of its file, which may be closed then.
DESCRIPTORS_A_MAP: Final = 1 if _IS_TRACKED and _mmap is None else 0
# Places where no file could be put. What became of them the system does not say, so they are never given back.
_lost: Final[list[mmap.mmap]] = []


def map_file(fd: int, size: int, *, writable: bool, is_tracked: bool = True) -> mmap.mmap:
    """All of a file, shared with whoever else maps it; with `is_tracked` off it takes DESCRIPTORS_A_MAP. OSError."""
    if not is_tracked and _mmap is not None:
        return _placed(fd, size, writable=writable)
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, size, access=access, trackfd=False)
    return mmap.mmap(fd, size, access=access)


def _placed(fd: int, size: int, *, writable: bool) -> mmap.mmap:
    assert _mmap is not None
    # PROT_WRITE alone makes a map of Python's that may be written to and not resized; nobody touches it before the file
    # is there.
    place = mmap.mmap(
        -1,
        size,
        flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
        prot=mmap.PROT_WRITE if writable else mmap.PROT_READ,
    )
    address = address_of(memoryview(place))
    rights = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    if _mmap(address, size, rights, _MAP_SHARED | _MAP_FIXED, fd, 0) != address:
        number = ctypes.get_errno()
        _lost.append(place)
        raise OSError(number, os.strerror(number))
    return place
