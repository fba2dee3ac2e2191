"""Who is at the other end of a connection, as far as those need to know it who talk to clients of their own accord.

Touches  nothing.

A remoting connection is one. Whoever serves clients by another protocol gives the rest of the broker such peers, too.
"""

from typing import Protocol

from aerobee_proto.frames import Command
from aerobee_proto.headers import RequestHeader

__all__ = ["Peer"]


class Peer(Protocol):
    """One end that can be talked to. It is equal to itself alone."""

    @property
    def peer(self) -> str:
        """Its address, host:port."""

    @property
    def peer_host(self) -> str:
        """Its address without the port."""

    @property
    def subject(self) -> str:
        """The common name of the certificate that it has shown, verified; "" where it has shown none."""

    @property
    def is_closed(self) -> bool:
        """Whether it is gone, or about to be."""

    @property
    def is_congested(self) -> bool:
        """Whether it reads so slowly that nothing large, and nothing unasked, should be sent to it."""

    def send_oneway(
        self, code: int, header: RequestHeader | dict[str, str] | None = None, body: bytes = b""
    ) -> None:
        """Send a request that gets no answer. RemotingError when the peer is gone."""

    async def request(
        self,
        code: int,
        header: RequestHeader | dict[str, str] | None = None,
        body: bytes = b"",
        timeout: float = 3.0,  # noqa: ASYNC109  # seconds that the peer has
    ) -> Command:
        """Send a request and wait for its answer, whatever its code. RemotingError when there is none in time."""

    def close(self, reason: str = "closed here") -> None:
        """Send what is waiting, then close."""

    def abort(self, reason: str = "aborted here") -> None:
        """Close at once; what waits to be sent is dropped."""

    def __hash__(self) -> int: ...
