"""What hangs on the version that a client says it has.

Touches  nothing.
"""

from typing import Final

from aerobee_proto.headers import SendHeader
from aerobee_proto.requests import Incoming

__all__ = ["reconsume_limit_asked", "reconsume_limit_of"]

VERSION_WITH_LIMIT: Final = 121  # 3.4.9: clients from there on say how often a message may come back


def reconsume_limit_asked(limit: int | None, version: int) -> int | None:
    """How often a client of this version asks that a message may come back; None: it does not ask."""
    return limit if version >= VERSION_WITH_LIMIT else None


def reconsume_limit_of(item: Incoming[SendHeader]) -> int | None:
    """As `reconsume_limit_asked`, of a send."""
    return reconsume_limit_asked(item.header.max_reconsume_times, item.envelope.version)
