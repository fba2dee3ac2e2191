"""What hangs on the version that a client says it has.

Touches  nothing.
"""

from typing import Final

import msgspec

from aerobee_proto.headers import SendHeader
from aerobee_proto.requests import Incoming

__all__ = ["VERSION_WITH_LIMIT", "reconsume_limit_asked", "without_reconsume_limit"]

VERSION_WITH_LIMIT: Final = 121  # 3.4.9: clients from there on say how often a message may come back


def reconsume_limit_asked(limit: int | None, version: int) -> int | None:
    """How often a client of this version asks that a message may come back; None: it does not ask."""
    return limit if version >= VERSION_WITH_LIMIT else None


def without_reconsume_limit(item: Incoming[SendHeader]) -> Incoming[SendHeader]:
    """A send as it is meant: a client that is too old for a limit has asked for none. What came stays as it is."""
    if item.envelope.version >= VERSION_WITH_LIMIT:
        return item
    header = msgspec.structs.replace(item.header, max_reconsume_times=None)
    envelope = msgspec.structs.replace(item.envelope, ext=header)
    return msgspec.structs.replace(item, envelope=envelope, header=header)
