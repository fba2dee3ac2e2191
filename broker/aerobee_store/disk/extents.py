"""Where a file may hold something, by what the file system knows of its holes.

Touches  the file that it is given, without reading it.
"""

import errno
import os

__all__ = ["data_extents"]


def data_extents(descriptor: int, begin: int, end: int) -> list[tuple[int, int]]:
    """The stretches of [begin, end) that may hold something, in order; the rest reads as zero. Where the file system
    does not tell, all of it."""
    # All at once: reading through a map brings pages behind into the cache, which then count as data.
    found: list[tuple[int, int]] = []
    at = begin
    while at < end:
        try:
            start = os.lseek(descriptor, at, os.SEEK_DATA)
            stop = os.lseek(descriptor, start, os.SEEK_HOLE)
        except OSError as failed:
            if failed.errno == errno.ENXIO:  # nothing but a hole up to the end
                break
            start, stop = at, end
        if start >= end:
            break
        found.append((start, min(stop, end)))
        at = stop
    return found
