"""What is known of sends that nobody reads as requests, and what is said of each of them.

Touches  nothing.

Sends of one kind (request code, AccessKey, topic and group) of one connection have one judgement, made by the rules of
the gate. The signature of each of them is checked, and whether it was seen before, as for all other requests.

Invariants
- A yes is what `Gate.admit` says, too. What is no yes leaves no trace.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from aerobee_access.freshness import Freshness, NotFresh, Numbers
from aerobee_access.signature import is_signature
from aerobee_remoting.exchange.gate import Asked, Judging

__all__ = ["JUDGEMENTS_MAX", "Judgement", "judging_by"]

JUDGEMENTS_MAX: Final = 4_096  # kept for one connection; at the bound they are made anew


class Judgement(NamedTuple):
    """What is to be said of sends of one kind."""

    user: str
    key: bytes | None  # of their signatures; None: they need none
    is_let_in: bool  # those that are signed with it


def judging_by(
    kept: dict[Asked, Judgement],
    find: Callable[[Asked], Judgement | None],
    freshness: Freshness | None,
    numbers: Numbers | None,
) -> Judging:
    """For the sends of one read. `kept` has the judgements of its connection, `find` makes others; None: `admit` has
    more to do for such a send than to look up. `numbers` are those of the connection, where they are looked at."""

    def judge(asked: Asked, signature: bytes | None, content: bytes, body: bytes) -> bool:
        found = kept.get(asked)
        if found is None:
            try:
                found = find(asked)
            except Exception:  # `admit` meets it as well, and it is told there
                return False
            if found is None:
                return False
            if len(kept) >= JUDGEMENTS_MAX:
                kept.clear()
            kept[asked] = found
        user, key, is_let_in = found
        if key is None:
            return is_let_in
        # First, and for a user that is not there as well: how long it takes says nothing.
        is_signed = is_signature(signature or b"", content + body, key)
        if not (is_signed and is_let_in):
            return False
        if freshness is not None and numbers is not None:
            try:
                freshness.check(numbers, user, asked[0], content)
            except NotFresh:
                return False
        return True

    if numbers is None:
        return Judging(judge, _nothing)
    mark = numbers.mark()
    return Judging(judge, lambda: numbers.go_back(mark))


def _nothing() -> None:
    return
