"""Long work in a thread, beside the event loop, on a machine that may have one processor for both.

Touches  the calling thread, which sleeps; a clock.

A thread that does not sleep keeps its processor for 4 ms and more, also from an event loop that has been woken: a
system shares time out in portions, and by who has had less of it, which a busy event loop has not. Lower priority does
not help: a thread that holds the interpreter and gets no time holds everybody up. So what is long is done in pieces,
and between two of them the thread sleeps for a moment, without the interpreter.
"""

import time
from typing import Final

__all__ = ["PIECE_S", "REST_S", "GivingWay"]

PIECE_S: Final = 0.00025  # of work between two rests
REST_S: Final = 0.000001  # that is asked for; the system makes 0.05 to 0.1 ms of it


class GivingWay:
    """Of one piece of long work: called after each small part of it, and rests when it is time."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until = time.perf_counter() + PIECE_S

    def __call__(self) -> None:
        if time.perf_counter() >= self._until:
            time.sleep(REST_S)
            self._until = time.perf_counter() + PIECE_S
