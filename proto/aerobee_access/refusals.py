"""What was refused and why, how often each address for who it says to be, and how long its next answer has to wait.

Touches  nothing; the clock comes in.

Who guesses secrets is slowed down, not shut out: others may speak from the same address, and they are never held up, as
only refusals wait. The first few in a row are answered at once (a program with an old secret is no attack). After those
all refusals of an address stand in one line, so it gets one answer a step however many connections it has.

An address is what `neighbours_of` makes of it: of IPv6 a network, as who has one has all of it.

Bounds   ADDRESSES_MAX addresses are kept; the one that was refused longest ago gives way.
         An answer waits DELAY_MAX_S at most.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from aerobee_service.neighbours import neighbours_of

__all__ = ["REASONS", "AccessFigures", "Refusals"]

# Why somebody was refused: it names no user; one that is not there; one that is disabled; the signature is made with
# another secret, or of other bytes; it was seen before, or does not say when it was made; the user may not do this;
# what the request needs cannot be told; it has asked for metrics, and shown nothing that lets it see them.
REASONS: Final = ("unsigned", "unknown", "disabled", "signature", "replay", "rights", "request", "metrics")

FREE: Final = 10  # refusals in a row that are answered at once
STEP_S: Final = 0.2
DELAY_MAX_S: Final = 10.0
FORGOTTEN_S: Final = 60.0  # without a refusal
ADDRESSES_MAX: Final = 10_000


@dataclass(slots=True, frozen=True)
class AccessFigures:
    """Since the start: refusals by reason, those that had to wait for their answer, lines that the audit log lacks."""

    refused: Mapping[str, int]
    delayed: int
    audit_lines_lost: int


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
        # Since the start.
        self.by_reason = Counter(dict.fromkeys(REASONS, 0))
        self.delayed = 0

    def __len__(self) -> int:
        return len(self._addresses)

    @property
    def total(self) -> int:
        """Refusals for whatever reason."""
        return self.by_reason.total()

    def count(self, reason: str) -> None:
        """One more, of somebody who is known, or whom nobody needs to hold up."""
        self.by_reason[reason] += 1

    def refused(self, address: str, reason: str) -> float:
        """One more, of somebody who could be guessing; how many seconds its answer has to wait."""
        self.count(reason)
        address = neighbours_of(address)
        now = self._now_s()
        known = self._addresses.pop(address, None)
        if known is None or now - known.last_s > FORGOTTEN_S:
            known = _Address()
        self._addresses[address] = known
        if len(self._addresses) > ADDRESSES_MAX:
            del self._addresses[next(iter(self._addresses))]
        known.count += 1
        known.last_s = now
        if known.count <= FREE:
            return 0.0
        self.delayed += 1
        known.next_s = min(max(known.next_s, now) + STEP_S, now + DELAY_MAX_S)
        return known.next_s - now
