"""A program in the broker's process, as the gate and whoever keeps something for it see it.

Touches  nothing.
"""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from aerobee_proto.codes import VERSION, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.frames import CODEC_JSON, Command
from aerobee_proto.headers import RequestHeader
from aerobee_proto.requests import AnyIncoming, Envelope, Incoming
from aerobee_remoting.exchange.gate import Gate, Row
from aerobee_remoting.exchange.needs import GET, need_of_topic
from aerobee_remoting.peers.errors import RemotingError

__all__ = ["Admission", "LocalCaller", "closed"]


class LocalCaller:
    """A `Peer` that takes no requests, and a `Caller` that is never slow; its address is the loopback's."""

    peer_host = "127.0.0.1"
    subject = ""
    peer = f"{peer_host}:0"
    is_congested = False
    was_overtaken = False

    def __init__(self, name: str) -> None:
        """`name` is what a gate knows it by."""
        self.name = name
        self.is_closed = False

    def send_oneway(
        self, code: int, header: RequestHeader | dict[str, str] | None = None, body: bytes = b""
    ) -> None:
        raise self._refusal(code)

    async def request(
        self,
        code: int,
        header: RequestHeader | dict[str, str] | None = None,
        body: bytes = b"",
        timeout: float = 3.0,  # noqa: ASYNC109  # as of Peer
    ) -> Command:
        raise self._refusal(code)

    def _refusal(self, code: int) -> RemotingError:
        return RemotingError(
            self.peer, f"{self.peer} is in the broker's process and takes no requests, so not {code}"
        )

    def close(self, reason: str = "closed here") -> None:
        self.is_closed = True

    def abort(self, reason: str = "aborted here") -> None:
        self.close(reason)


H = TypeVar("H", bound=msgspec.Struct)


class Admission:
    """The gate for one such caller.

    It is asked as for any request: with the row of the request's code, and with the header that a client would send.
    There are no raw bytes of it, as nothing was sent: a gate knows such a caller by its name.
    """

    def __init__(self, caller: LocalCaller, gate: Gate, rows: Mapping[int, Row]) -> None:
        """`rows` are what is declared of each request code."""
        self.caller = caller
        self._gate = gate
        self._rows = rows

    def admit(self, code: int, header: H, body: bytes = b"") -> Incoming[H]:
        """Ask for what this call needs; the request as it was shown. RequestError: refused, or the caller is gone."""
        if self.caller.is_closed:
            raise closed()
        request = Incoming(Envelope(code, header, version=VERSION), (CODEC_JSON, b"", body), header, body)
        self._gate.admit(self.caller, self._rows[code], request)
        return request

    def admit_found(self, request: AnyIncoming, topic: str) -> None:
        """Ask for this topic, too, which the call came upon. RequestError: nothing of it must be told."""
        row, needs = self._rows[request.envelope.code], (need_of_topic(topic, GET),)
        self._gate.admit_found(self.caller, row, request, needs)


def closed() -> RequestError:
    """What a call meets after the end."""
    return RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker in this process is closed")
