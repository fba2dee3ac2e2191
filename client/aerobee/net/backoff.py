"""Pauses between tries: they double up to a bound and are scattered, so that many clients do not come back at once.

Pure: randomness comes in, seconds go out.
"""

from collections.abc import Callable, Iterator
from random import SystemRandom
from typing import Final

__all__ = ["RETRY_MAX_S", "RETRY_S", "pauses"]

RETRY_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
# A seat that is handed over, or taken from a master that is gone, is served again within a second: until then nobody
# pauses for long.
HURRY_S: Final = 1.0
HURRY_MAX_S: Final = 0.2

_random: Final = SystemRandom().random


def pauses(
    first_s: float = RETRY_S, max_s: float = RETRY_MAX_S, random: Callable[[], float] = _random
) -> Iterator[float]:
    """Seconds to wait before each next try, without end: from half to all of `first_s`, then of twice as much ...
    For the first HURRY_S no more than HURRY_MAX_S, where that is not less than `first_s`.

    `random` gives numbers from 0 to 1.
    """
    pause_s = min(first_s, max_s)
    paused_s = 0.0
    while True:
        yield pause_s * (1 + random()) / 2
        paused_s += pause_s
        bound_s = max(first_s, HURRY_MAX_S) if paused_s < HURRY_S else max_s
        pause_s = min(pause_s * 2, bound_s, max_s)
