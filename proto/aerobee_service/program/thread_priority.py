"""A thread that goes before the others of the machine, while that is worth it.

Touches  the thread that calls, for the kernel.

A thread that others wait for, and that works for a moment only, may wait for a processor longer than its work takes:
where the event loop has much to do and there is one processor for both, up to a tick of 4 ms (Linux, 250 a second), for
each time that the disk has something for it. Before the others it waits a quarter of that. It is not free: who is
interrupted each time has fewer sends for each sync, so that many equal clients had a sixth less.
"""

import os
import sys
import threading
from typing import Final

__all__ = ["NICE_FIRST", "ThreadPriority"]

NICE_FIRST: Final = -15  # of -20 to 19; usual threads have 0


class ThreadPriority:
    """Of one thread, which alone calls this. Nothing changes where the system does not allow it (to root, with
    CAP_SYS_NICE, or an RLIMIT_NICE of 35), or knows priorities of processes alone (elsewhere than on Linux)."""

    def __init__(self) -> None:
        self._is_first = False
        self._usual = 0
        self._is_possible = sys.platform == "linux"

    def go_first(self, is_first: bool) -> None:
        """Before the others, or like them, from now on."""
        if not self._is_possible or is_first is self._is_first:
            return
        thread = threading.get_native_id()
        try:
            if is_first:
                self._usual = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, NICE_FIRST if is_first else self._usual)
        except OSError:
            self._is_possible = False
        else:
            self._is_first = is_first
