"""Which queues of a topic are whose. Pure functions, the official clients' own rule.

Every member of a group sorts the same queues and the same member ids and takes its share by its place among the
members; nobody hands anything out. So all members must use one rule: this is the one that official clients use unless
told otherwise ("averagely"): consecutive queues, the first members get one more when it does not come out even.

Invariants
- Over all members of one list the shares are disjoint and cover every queue.
- Sizes differ by one at most; earlier members are never behind later ones.
"""

from collections.abc import Iterable, Sequence

from aerobee.terms.routes import MessageQueue

__all__ = ["sort_members", "take_share"]


def sort_members(members: Iterable[str]) -> list[str]:
    """Client ids in the order that Java gives them: by UTF-16 units, each once."""
    return sorted(set(members), key=lambda member: member.encode("utf-16-be", "surrogatepass"))


def take_share(queues: Iterable[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
    """The queues of one topic that belong to member `me`; none when it is not among the members."""
    ordered, ids = sorted(queues), sort_members(members)
    if me not in ids:
        return []
    index, count, total = ids.index(me), len(ids), len(ordered)
    size, left_over = divmod(total, count)
    first = index * size + min(index, left_over)
    return ordered[first : first + size + (index < left_over)]
