"""Users: who may be asked for a signature, and what kind of user they are.

Touches  nothing.

The name of a user is the AccessKey of a client, its secret the key of the client's signatures: it cannot be kept as a
hash, so it is kept sealed (`sealing`) and never shown by accident.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

__all__ = ["NAME_CHARS_MAX", "SECRET_CHARS_MAX", "Status", "User", "UserType", "named"]

NAME_CHARS_MAX = 255
SECRET_CHARS_MAX = 1024


class UserType(Enum):
    """A super user is not asked for policies. The values are RocketMQ's, on disk."""

    SUPER = 1
    NORMAL = 2


class Status(Enum):
    """Whether a user may speak at all."""

    ENABLE = 1
    DISABLE = 2


E = TypeVar("E", bound=Enum)


def named(kind: type[E], name: str | None) -> E | None:
    """The member of that name, in any case; None for a name that is not known, which counts as absent."""
    return kind.__members__.get(name.upper()) if name else None


@dataclass(slots=True, frozen=True)
class User:
    """One user. `key` is the secret as bytes, `sealed` as it lies on disk."""

    name: str
    secret: str = field(repr=False)
    type: UserType = UserType.NORMAL
    status: Status = Status.ENABLE
    sealed: str = field(default="", repr=False)

    @property
    def is_super(self) -> bool:
        return self.type is UserType.SUPER

    @property
    def is_enabled(self) -> bool:
        return self.status is Status.ENABLE
