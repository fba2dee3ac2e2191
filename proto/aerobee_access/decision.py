"""The decision: may this user do this with that resource, from there?

Touches  nothing.

Of the custom entries those count that match (`matching`); only where none does, the default ones. Of several one
decides. Ours is the most precise: a literal before the longest prefix, that before all of a kind, that before
everything, and of equals a Deny. RocketMQ 5.3.3 sorts them by a comparison that is no order, so what wins there depends
on which entry was created first, and a precise Deny may lose to a wider Allow: `first_of_official` does just that, for
those who move a running installation and change nothing else at the same time.
"""

from collections.abc import Sequence
from enum import Enum

from aerobee_access.policies import Acl, Action, Decision, Entry, Kind, Pattern, PolicyType

__all__ = ["Verdict", "decide", "first_of_official", "most_precise"]


class Verdict(Enum):
    """What is decided; the values are RocketMQ's words."""

    ALLOWED = ""
    UNMATCHED = "no matched policies."
    DENIED = "the decision is deny."


def decide(
    acl: Acl | None,
    kind: str,
    name: str,
    actions: frozenset[Action],
    address: str,
    *,
    as_official: bool = False,
) -> Verdict:
    """Whether one of `actions` on this resource (`kind` as in `Topic`) is allowed to a client of this address."""
    if acl is None:
        return Verdict.UNMATCHED
    for policy in (PolicyType.CUSTOM, PolicyType.DEFAULT):
        matched = [
            entry
            for entry in acl.policies.get(policy, ())
            if entry.resource.matches(kind, name)
            and (Action.ALL in entry.actions or not actions.isdisjoint(entry.actions))
            and entry.is_from(address)
        ]
        if matched:
            entry = first_of_official(matched) if as_official else most_precise(matched)
            return Verdict.ALLOWED if entry.decision is Decision.ALLOW else Verdict.DENIED
    return Verdict.UNMATCHED


def most_precise(entries: Sequence[Entry]) -> Entry:
    """The entry that decides."""
    return min(entries, key=_rank)


def _rank(entry: Entry) -> tuple[int, int, bool]:
    resource = entry.resource
    if resource.kind is Kind.ANY:
        width = 3
    else:
        width = {Pattern.LITERAL: 0, Pattern.PREFIXED: 1, Pattern.ANY: 2}[resource.pattern]
    return width, -len(resource.name), entry.decision is Decision.ALLOW


def first_of_official(entries: Sequence[Entry]) -> Entry:
    """The entry that decides in RocketMQ 5.3.3: what its comparison and Java's sort of short lists put first.

    A run at the front that rises, or falls strictly and is turned round, then each of the others by halving.
    """
    found = list(entries)
    run = 1
    if len(found) > 1:
        falls = _compare(found[1], found[0]) < 0
        run = 2
        while run < len(found) and (_compare(found[run], found[run - 1]) < 0) is falls:
            run += 1
        if falls:
            found[:run] = reversed(found[:run])
    for at in range(run, len(found)):
        pivot, low, high = found[at], 0, at
        while low < high:
            middle = (low + high) // 2
            if _compare(pivot, found[middle]) < 0:
                high = middle
            else:
                low = middle + 1
        found.insert(low, found.pop(at))
    return found[0]


def _compare(x: Entry, y: Entry) -> int:
    """Negative: x before y, as 5.3.3 says when it is asked in this order."""
    one, other = x.resource, y.resource
    if (one.kind is Kind.ANY) is not (other.kind is Kind.ANY):
        return 1 if one.kind is Kind.ANY else -1
    if one.pattern is other.pattern:
        if one.pattern is Pattern.PREFIXED and len(one.name) != len(other.name):
            return len(one.name) - len(other.name)
    elif one.pattern in (Pattern.LITERAL, Pattern.PREFIXED):
        return -1
    if x.decision is Decision.DENY:
        return 1
    return -1 if y.decision is Decision.DENY else 0
