"""The kernel's table of the files that this process has open: large enough before anybody waits for it to grow.

Touches  a descriptor of the process, for a moment.

The table doubles when it is full (64, 128, 256 ...; the kernel's fs/file.c), and where a process has threads each
growth waits until no processor can still be reading the old one: 12 to 17 ms of an event loop that opened one file
more.
"""

import contextlib
import fcntl
import os
import resource
from typing import Final

__all__ = ["DESCRIPTORS_READY", "widen_descriptor_table"]

# Half a MiB of the kernel's memory; who opens more has waited for that many files already.
DESCRIPTORS_READY: Final = 1 << 16


def widen_descriptor_table() -> None:
    """Make room for DESCRIPTORS_READY open files, or as many as may be open. Best before there are threads."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    last = (DESCRIPTORS_READY if soft == resource.RLIM_INFINITY else min(soft, DESCRIPTORS_READY)) - 1
    with contextlib.suppress(OSError):  # the kernel has no memory for it: it grows as it must
        low = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.close(fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, last))
        finally:
            os.close(low)
