"""The register of an election: a few keys outside the set, which all members see alike. etcd is one.

Touches  nothing: this is what an election needs of a register, whichever it is.

    revision        number of the register's state, +1 with each change of anything in it
    mod_revision    revision of a key's last change: who knows it can say "unless somebody has changed it since"
    lease           a promise to be heard of again in time; keys that are attached to it go when it lapses

What a register has to hold
- `read` shows at least everything that was done before it was called (it is linearizable), and all keys as of one
  revision.
- `swap` is done wholly or not at all, at one revision, and only while all its conditions hold.
- A lease lapses no earlier than it was granted for, counted from when the register answered; it may lapse much later.
- A call that raises RegisterUnreachable may have been done, or be done later. Nothing else raises it.
"""

from collections.abc import AsyncGenerator, Collection, Mapping
from typing import Final, NamedTuple, Protocol

from aerobee_proto.errors import AerobeeError

__all__ = [
    "ABSENT",
    "NO_LEASE",
    "Change",
    "ChangesLost",
    "Entry",
    "LeaseGone",
    "Put",
    "Register",
    "RegisterError",
    "RegisterRefused",
    "RegisterUnreachable",
    "View",
]

ABSENT: Final = 0  # the mod_revision of a key that is not there
NO_LEASE: Final = 0


class RegisterError(AerobeeError):
    """Base of what a register raises."""


class RegisterUnreachable(RegisterError):
    """No answer: what was asked for may have been done all the same, or may still be done."""


class RegisterRefused(RegisterError):
    """Understood and not done: a wrong password, a right that is missing. Asking again does not help."""


class LeaseGone(RegisterError):
    """There is no such lease any more; the keys that were attached to it are gone, too."""


class ChangesLost(RegisterError):
    """Changes that a watch should have told of are not kept any more: read again, and watch from there."""


class Entry(NamedTuple):
    """A key's value."""

    value: bytes
    mod_revision: int
    lease: int  # NO_LEASE: it stays


class View(NamedTuple):
    """Keys as of one revision."""

    revision: int
    entries: dict[str, Entry]


class Put(NamedTuple):
    """A value to be written."""

    value: bytes
    lease: int = NO_LEASE


class Change(NamedTuple):
    """A key has another value, or none."""

    key: str
    entry: Entry | None


class Register(Protocol):
    """A register. Keys are whole: none of them is relative to anything."""

    async def grant(self, ttl_s: float) -> int:
        """A new lease that lapses after `ttl_s`, which is rounded up to what the register can count. Its number.

        Raises RegisterUnreachable.
        """
        ...

    async def keep_alive(self, lease: int) -> float:
        """Begin the time of a lease anew; for how many seconds.

        Raises LeaseGone, RegisterUnreachable.
        """
        ...

    async def revoke(self, lease: int) -> None:
        """End a lease, with its keys, now. One that has ended is left alone. Raises RegisterUnreachable."""
        ...

    async def read(self, prefix: str) -> View:
        """All keys that begin so. Raises RegisterUnreachable."""
        ...

    async def swap(
        self, conditions: Mapping[str, int], puts: Mapping[str, Put], deletes: Collection[str] = ()
    ) -> int | None:
        """Write and delete, if each key of `conditions` has the mod_revision that is named there (ABSENT: is not
        there). The revision of it; None when a condition did not hold, and nothing was done.

        Raises LeaseGone for a put to a lease that has ended, RegisterUnreachable.
        """
        ...

    def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[list[Change], None]:
        """Every change of keys that begin so, after this revision, in order; those of one revision come together.

        It goes on for ever, whatever happens to the way to the register. Raises ChangesLost.
        """
        ...
