"""How often each address was refused for who it says to be, and how long its next answer has to wait.

Touches  nothing; the clock comes in.

Who guesses secrets is slowed down, not shut out: others may speak from the same address, and they are never held up, as
only refusals wait. The first few in a row are answered at once (a program with an old secret is no attack). After those
all refusals of an address stand in one line, so it gets one answer a step however many connections it has.

Bounds   ADDRESSES_MAX addresses are kept; the one that was refused longest ago gives way.
         An answer waits DELAY_MAX_S at most.
"""

from collections.abc import Callable
from typing import Final

__all__ = ["Refusals"]

FREE: Final = 10  # refusals in a row that are answered at once
STEP_S: Final = 0.2
DELAY_MAX_S: Final = 10.0
FORGOTTEN_S: Final = 60.0  # without a refusal
ADDRESSES_MAX: Final = 10_000


class _Address:
    __slots__ = ("count", "last_s", "next_s")

    def __init__(self) -> None:
        self.count = 0  # refusals in a row
        self.last_s = 0.0
        self.next_s = 0.0  # before it no refusal is answered


class Refusals:
    """Address -> what it has tried. All calls from the event loop."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """`now_s` never goes back."""
        self._now_s = now_s
        self._addresses: dict[str, _Address] = {}  # the longest quiet first
        self.total = 0

    def __len__(self) -> int:
        return len(self._addresses)

    def refused(self, address: str) -> float:
        """Count one more; how many seconds its answer has to wait."""
        now = self._now_s()
        known = self._addresses.pop(address, None)
        if known is None or now - known.last_s > FORGOTTEN_S:
            known = _Address()
        self._addresses[address] = known
        if len(self._addresses) > ADDRESSES_MAX:
            del self._addresses[next(iter(self._addresses))]
        self.total += 1
        known.count += 1
        known.last_s = now
        if known.count <= FREE:
            return 0.0
        known.next_s = min(max(known.next_s, now) + STEP_S, now + DELAY_MAX_S)
        return known.next_s - now
