"""What can go wrong between two peers, each with the address and the next step for a person."""

from aerobee_proto.errors import AerobeeError

__all__ = [
    "ClosedHere",
    "ConnectFailed",
    "ConnectionLost",
    "RemotingError",
    "RequestTimeout",
    "TooManyRequests",
]


class RemotingError(AerobeeError):
    """Base of this room's errors. `addr` is the peer, `host:port`."""

    def __init__(self, addr: str, text: str) -> None:
        super().__init__(text)
        self.addr = addr


class ConnectFailed(RemotingError):
    """No connection could be made; nothing was sent."""

    def __init__(self, addr: str, reason: str) -> None:
        super().__init__(addr, f"cannot connect to {addr}: {reason}")
        self.reason = reason


class ClosedHere(ConnectFailed):
    """The client itself was closed; nothing was sent."""

    def __init__(self, addr: str) -> None:
        super().__init__(addr, "this client is closed")


class ConnectionLost(RemotingError):
    """The connection ended before the answer came: the request may or may not have been carried out."""

    def __init__(self, addr: str, reason: str = "closed by the peer") -> None:
        super().__init__(addr, f"connection to {addr} was lost: {reason}")
        self.reason = reason


class RequestTimeout(RemotingError):
    """No answer in time: the request may or may not have been carried out."""

    def __init__(self, addr: str, code: int, timeout_s: float) -> None:
        super().__init__(addr, f"no answer from {addr} to request {int(code)} within {timeout_s:g} s")
        self.code = code
        self.timeout_s = timeout_s


class TooManyRequests(RemotingError):
    """More requests wait for an answer on one connection than the bound allows; nothing was sent."""

    def __init__(self, addr: str, limit: int) -> None:
        super().__init__(
            addr, f"{limit} requests to {addr} already wait for an answer; wait for some of them"
        )
        self.limit = limit
