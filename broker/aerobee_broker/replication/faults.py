"""Why a replication link ends."""

from aerobee_proto.errors import AerobeeError

__all__ = ["LinkFault"]


class LinkFault(AerobeeError):
    """What the other side does or wants cannot be: the link is closed.

    `kind` is one word for the log and for metrics; `way_out` says what an operator does when it does not end by itself.
    `epoch` is the newest one that the other side knows, where that is the reason.
    """

    def __init__(self, kind: str, reason: str, way_out: str = "", epoch: int = 0) -> None:
        super().__init__(reason)
        self.epoch = epoch
        self.kind = kind
        self.reason = reason
        self.way_out = way_out
