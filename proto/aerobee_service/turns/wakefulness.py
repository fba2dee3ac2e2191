"""Whether the event loop looks for the next read at once, or sleeps until it comes.

Touches  nothing; who asks says what time it is.

A thread that sleeps takes 20 us and more to wake where its processor has gone to sleep with it, on virtual machines
above all; who has one request under way waits for that each time. A thread that looks again and again is there at once,
and takes processor time from whoever else needs it. Which is better is measured, by how soon the next read is there:

    ROUND reads    the first TRIED of them are slept for, the next TRIED looked for, the others as was better

Bounds   Nothing is looked for longer than `limit_s`. Where reads are rarer than that, TRIED of ROUND are looked for in
         vain.
"""

from typing import Final

__all__ = ["LOOK_S", "ROUND", "TRIED", "Wakefulness"]

LOOK_S: Final = 0.0001  # who has one request under way asks again 30 to 60 us after its answer
ROUND: Final = 512
TRIED: Final = 9
GAIN_S: Final = 0.000008  # by which reads have to be there earlier


class Wakefulness:
    """Of one event loop."""

    __slots__ = ("_done", "_gaps", "_limit_s", "_number", "_pays")

    def __init__(self, limit_s: float) -> None:
        """`limit_s` is 0 where the loop always sleeps."""
        # Fixed for life.
        self._limit_s = limit_s
        # Moved by served().
        self._done = 0.0
        self._number = 0  # of the next read in its round
        self._pays = False
        # From what was done to the next read, of those that were tried in this round.
        self._gaps: list[float] = []

    def served(self, came: float, done: float) -> None:
        """A read has come, and what it asked for is done."""
        number = self._number
        if number < 2 * TRIED:
            gaps = self._gaps
            gaps.append(min(came - self._done, self._limit_s))
            if number == 2 * TRIED - 1:
                self._pays = _middle(gaps[TRIED:]) + GAIN_S <= _middle(gaps[:TRIED])
                gaps.clear()
        self._number = number + 1 if number < ROUND - 1 else 0
        self._done = done

    def looks(self, now: float) -> bool:
        """Whether to look for the next read now; else the loop may sleep."""
        number = self._number
        is_looked_for = self._pays if number >= 2 * TRIED else number >= TRIED
        return is_looked_for and now - self._done < self._limit_s


def _middle(gaps: list[float]) -> float:
    return sorted(gaps)[len(gaps) // 2]
