"""The part that a broker plays in its set, and where that comes from.

Touches  nothing.

A set is the brokers that share a name; a member is one of them. A process has one life after the other: each is a
broker with one role, which ends when another role is wanted.

    epoch    number of a mastership, one more with each change of the master; 0: a set without an election
    member   the number within the set: brokerId. A master registers as 0 all the same, as clients know masters by that

Invariants
- A role never changes: another role is another life.
"""

from typing import NamedTuple, Protocol

__all__ = ["Role", "RoleSource"]


class Role(NamedTuple):
    """What one life is. `settings` are those that come with the role, by their outside names, over those in use."""

    is_master: bool
    epoch: int = 0
    member: int = 0
    # Of a slave: where its master answers requests and gives its log, as far as that is known already; "" is not.
    master_addr: str = ""
    master_ha_addr: str = ""
    settings: tuple[tuple[str, str], ...] = ()


class RoleSource(Protocol):
    """Who decides about roles: the settings and their operator, or an election. It outlives lives."""

    async def first(self) -> Role:
        """The role of the first life."""
        ...

    async def next(self, role: Role) -> Role:
        """Return when a life with this role has to end, with the role of the next one. May be cancelled."""
        ...
