"""What producers and consumers have in common as members of groups: a client id on a connection.

A member is known by its client id. A client that reconnects before the loss of its old connection was noticed
takes its place; the loss of the old connection then removes nothing.
"""

from collections.abc import Hashable, Iterable, Mapping
from functools import lru_cache
from typing import Final

from aerobee_proto.bodies import ClientConnection
from aerobee_proto.javajson import sorted_steps
from aerobee_proto.records import encode_host
from aerobee_remoting.peers.peer import Peer
from aerobee_service.turns.slices import Steps

__all__ = ["Member", "MemberCount", "born_host", "connection_body", "member_size"]

ADDRESSES_MAX: Final = 16_384  # of senders, packed
MEMBERS_A_STEP: Final = 256  # that are listed in one step
MEMBER_SIZE: Final = 1024  # bytes of one membership with its places in the tables, besides its client id


def member_size(client_id: str) -> int:
    """Bytes that a membership takes."""
    return MEMBER_SIZE + 4 * len(client_id)


class Member:
    """One client in one group."""

    __slots__ = (
        "client_id",
        "connection",
        "fingerprint",
        "language",
        "last_seen_ms",
        "subscribed",
        "topics",
        "version",
    )

    def __init__(self, client_id: str, connection: Peer, language: str, version: int, now_ms: int) -> None:
        self.client_id = client_id
        self.connection = connection
        self.language = language
        self.version = version
        self.last_seen_ms = now_ms
        self.fingerprint = 0  # of the last full heartbeat; 0: the client does not use them
        # What this member itself subscribes to: type, expression. Members that say the same share it.
        self.topics: Mapping[str, tuple[str, str]] = {}
        self.subscribed: Hashable = None  # under which it is shared; None: it has told nothing yet


class MemberCount:
    """How many memberships there are, against their bound."""

    __slots__ = ("limit", "value")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.value = 0

    @property
    def is_full(self) -> bool:
        return self.value >= self.limit


def connection_body(members: Iterable[Member]) -> Steps[list[ClientConnection]]:
    """Members as the admin answers list them, sorted by client id, in steps."""
    listed = []
    for number, member in enumerate((yield from sorted_steps(members, key=lambda member: member.client_id))):
        if number % MEMBERS_A_STEP == 0:
            yield
        listed.append(
            ClientConnection(
                client_addr=member.connection.peer,
                client_id=member.client_id,
                language=member.language,
                version=member.version,
            )
        )
    return listed


@lru_cache(ADDRESSES_MAX)
def born_host(address: str) -> bytes:
    """A peer's address (host:port) as messages carry it, 8 or 20 bytes. Each read of sends asks for it."""
    host, _, port = address.rpartition(":")
    return encode_host(host.strip("[]"), int(port))
