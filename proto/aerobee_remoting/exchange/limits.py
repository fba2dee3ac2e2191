"""What bounds a connection, and what the connections of one end share.

Touches  nothing.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from aerobee_remoting.exchange.loop_watch import LoopWatch
from aerobee_remoting.peers.peer_memory import PeerMemory
from aerobee_service.logs.event_log import EventLog, event_logger
from aerobee_service.turns.turns import Turns

__all__ = ["Common", "ConnectionLimits", "format_addr"]

log = event_logger("aerobee.remoting")


@dataclass(slots=True, frozen=True)
class ConnectionLimits:
    """Bounds of one connection."""

    frame_size_max: int = 16_777_216  # bytes
    header_size_max: int = 1_048_576
    in_flight_max: int = 4096  # requests of the peer without an answer, before reading stops
    waiting_max: int = 65_536  # our own requests without an answer
    write_high: int = 1_048_576  # bytes waiting to be sent, before reading stops
    write_low: int = 262_144
    unsent_max: int = 67_108_864  # more than the largest answers to one read
    write_stalled_s: float = 30.0
    frame_s: float = 60.0
    idle_s: float = 120.0


@dataclass(slots=True, frozen=True)
class Common:
    """What all connections of one end share."""

    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    memory: PeerMemory = field(default_factory=PeerMemory)
    watch: LoopWatch = field(default_factory=LoopWatch)
    turns: Turns | None = None  # None: nobody else is to be let in between
    log: EventLog = log  # a server's own, or the one of libraries
    # Called when more is kept for all peers than may be; somebody has to go.
    on_excess: Callable[[], None] = lambda: None
    broken_off: Counter[str] = field(
        default_factory=Counter
    )  # connections whose bytes were refused, by reason


def format_addr(address: object) -> str:
    """`host:port` of a socket address, the host of IPv6 in brackets as it must be written to be dialled."""
    if isinstance(address, tuple) and len(address) >= 2:
        host = str(address[0])
        return f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"
    return str(address) or "unknown"
