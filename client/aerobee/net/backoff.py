"""Pauses between tries: they double up to a bound and are scattered, so that many clients do not come back at once.

Pure: randomness comes in, seconds go out.
"""

from collections.abc import Callable, Iterator
from random import SystemRandom
from typing import Final

__all__ = ["RETRY_MAX_S", "RETRY_S", "pauses"]

RETRY_S: Final = 0.05
RETRY_MAX_S: Final = 1.0

_random: Final = SystemRandom().random


def pauses(
    first_s: float = RETRY_S, max_s: float = RETRY_MAX_S, random: Callable[[], float] = _random
) -> Iterator[float]:
    """Seconds to wait before each next try, without end: from half to all of `first_s`, then of twice as much ...

    `random` gives numbers from 0 to 1.
    """
    pause_s = min(first_s, max_s)
    while True:
        yield pause_s * (1 + random()) / 2
        pause_s = min(pause_s * 2, max_s)
