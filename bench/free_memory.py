"""Free memory that is there: on a virtual machine whose host takes free memory away and gives it back at the first
touch, that touch is most of what a broker takes to store a large message, and who stores the most meets the most of it.

Touches  nothing that lasts: memory is taken, written to and let go.

Measured on such a machine (Linux with free page reporting): files of 1 GiB written one after the other, 0.6 us a page
of 4 KiB while there is memory that was used a moment ago, 9 us from then on. Memory that was touched and let go stays
quick for some 20 s.
"""

import mmap
from pathlib import Path
from typing import Final

__all__ = ["find_memory"]

FOUND_SIZE: Final = 3 << 30  # bytes: what the quickest of all loads stores in a measurement
SHARE: Final = 2  # of what is free; what is in use as a cache of files stays there


def find_memory(size: int = FOUND_SIZE) -> None:
    """Touch so much memory and let it go, as far as so much is free: the next to ask gets memory that is there."""
    wanted = min(size, _free_size() // SHARE) // mmap.PAGESIZE
    if wanted:
        with mmap.mmap(-1, wanted * mmap.PAGESIZE) as memory:
            memory[:: mmap.PAGESIZE] = b"\1" * wanted


def _free_size() -> int:
    """Bytes of memory in no use at all; 0 where nobody tells."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    found = dict(line.split(":") for line in lines)
    return int(found["MemFree"].split()[0]) << 10
