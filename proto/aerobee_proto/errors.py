"""The error family's base and the two kinds that every room shares.

    AerobeeError
      FormatError      FrameError, RecordError: bytes break the agreed form, on the wire or on disk
      RequestError     understood and refused: becomes a response (code, remark); the connection lives

Whoever owns the bytes says what a FormatError means: remoting closes the connection, the store raises its
own CorruptStore from it. The other members of the family live beside what raises them.
"""

__all__ = [
    "AerobeeError",
    "FormatError",
    "FrameError",
    "LimitReached",
    "RecordError",
    "RequestError",
    "forget_frames",
]


class AerobeeError(Exception):
    """Base of everything that this project raises on purpose."""


class FormatError(AerobeeError):
    """Bytes break the agreed form."""


class FrameError(FormatError):
    """A frame on the wire is broken; the stream has lost its boundaries and must be closed."""


class RecordError(FormatError):
    """A stored record is broken."""


class RequestError(AerobeeError):
    """A request that was understood and is refused.

    `code` is a `ResponseCode`; `remark` tells the peer what was wrong, where, and what to do.
    """

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(code, remark)
        self.code = code
        self.remark = remark

    def __str__(self) -> str:
        return f"{self.remark} (code {int(self.code)})"


class LimitReached(RequestError):
    """Refused, because a peer would make something grow beyond its bound; `limit` is the setting's name."""

    def __init__(self, code: int, remark: str, limit: str) -> None:
        super().__init__(code, f"{remark} ({limit})")
        self.limit = limit


def forget_frames(error: BaseException) -> None:
    """Cut an exception that has been dealt with, and those that led to it, off from the calls that they came through.

    Where one of those calls still knows the exception (as a value, or by the future that brought it), they hold each
    other: all that the calls had in hand, the request first of all, stays until somebody searches for garbage.
    """
    rest: list[BaseException | None] = [error]
    while rest:
        one = rest.pop()
        if one is not None and one.__traceback__ is not None:
            one.__traceback__ = None
            rest += (one.__cause__, one.__context__)
