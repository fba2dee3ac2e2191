"""Long work in a thread, beside the event loop, on a machine that may have one processor for both.

Touches  the calling thread, which sleeps; a clock.

A thread that does not sleep keeps its processor for 4 ms and more, also from an event loop that has been woken: a
system shares time out in portions, and by who has had less of it, which a busy event loop has not. Lower priority does
not help: a thread that holds the interpreter and gets no time holds everybody up. So what is long is done in pieces,
and between two of them the thread sleeps for a moment, without the interpreter.

A loop that is busy gives the interpreter away at each call of the system, and has to wait for a whole piece each time.
Whoever comes back late from a rest has met such a loop: its next rest is twice as long, up to REST_MAX_S, and half as
long when nobody was there.

A disk that others wait for is left to them in the same way, in proportion: whoever has kept it busy for a while rests
for some times as long (`Sparing`).
"""

import time
from typing import Final

__all__ = [
    "LATE_S",
    "PIECE_S",
    "REST_MAX_S",
    "REST_S",
    "SPARING_MAX_S",
    "SPARING_TIMES",
    "GivingWay",
    "Sparing",
]

PIECE_S: Final = 0.00025  # of work between two rests
REST_S: Final = 0.000001  # that is asked for; the system makes 0.05 to 0.1 ms of it
REST_MAX_S: Final = 0.001  # a fifth of the time is left for the work then
LATE_S: Final = 0.00015  # that a rest takes too long at least, where somebody else has the interpreter
_LONGER_S: Final = 0.000125  # the first step up: what the system makes of REST_S anyway
SPARING_TIMES: Final = 3.0  # as long as a part of the work took, before the next one
SPARING_MAX_S: Final = 0.005  # one part may have waited for others itself


class GivingWay:
    """Of one piece of long work: called after each small part of it, and rests when it is time."""

    __slots__ = ("_rest_s", "_until")

    def __init__(self) -> None:
        self._rest_s = REST_S
        self._until = time.perf_counter() + PIECE_S

    def __call__(self) -> None:
        began = time.perf_counter()
        if began < self._until:
            return
        rest_s = self._rest_s
        time.sleep(rest_s)
        ended = time.perf_counter()
        if ended - began - rest_s > LATE_S:
            self._rest_s = min(max(2 * rest_s, _LONGER_S), REST_MAX_S)
        else:
            self._rest_s = rest_s / 2 if rest_s > _LONGER_S else REST_S
        self._until = ended + PIECE_S


class Sparing:
    """Of one piece of work with what others wait for, such as a disk: called between its parts, and rests each time."""

    __slots__ = ("_since", "is_hurried", "rested_s")

    def __init__(self) -> None:
        self.rested_s = 0.0  # in all
        self.is_hurried = False  # somebody waits for this work: no more rests; any thread may say so
        self._since = time.perf_counter()

    def __call__(self) -> None:
        if self.is_hurried:
            return
        began = time.perf_counter()
        time.sleep(min(SPARING_TIMES * (began - self._since), SPARING_MAX_S))
        self._since = time.perf_counter()
        self.rested_s += self._since - began
