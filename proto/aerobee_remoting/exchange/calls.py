"""What we ask a peer for: requests of ours on one connection, until their answers are there.

Touches  one timer of the event loop, while something waits.

Invariants
- Every future that `begin` gave is done at the end: with the answer, RequestTimeout or ConnectionLost.
- An opaque comes again after 2^31 others.
"""

import asyncio
from typing import Final

from aerobee_proto.frames import Command
from aerobee_remoting.peers.errors import ConnectionLost, RequestTimeout, TooManyRequests

__all__ = ["Calls"]

TIMEOUT_SCAN_S: Final = 0.05  # how late a request's time-out may be noticed


class Calls:
    """Requests without an answer, by opaque. All calls from the event loop."""

    def __init__(self, waiting_max: int) -> None:
        # Fixed for life.
        self._waiting_max = waiting_max
        self._loop = asyncio.get_running_loop()
        # Moved by begin(), end(), lose() and _expire(): opaque -> (future, deadline, code, timeout, peer).
        self._waiting: dict[int, tuple[asyncio.Future[Command], float, int, float, str]] = {}
        self._next_opaque = 0
        self._scan: asyncio.TimerHandle | None = None

    def begin(self, peer: str, code: int, timeout_s: float) -> tuple[int, asyncio.Future[Command]]:
        """The opaque for a request to `peer`, and the future of its answer. TooManyRequests: so many wait already."""
        if len(self._waiting) >= self._waiting_max:
            raise TooManyRequests(peer, self._waiting_max)
        opaque = self.next_opaque()
        future: asyncio.Future[Command] = self._loop.create_future()
        self._waiting[opaque] = (future, self._loop.time() + timeout_s, code, timeout_s, peer)
        if self._scan is None:
            self._scan = self._loop.call_later(TIMEOUT_SCAN_S, self._expire)
        return opaque, future

    def next_opaque(self) -> int:
        """An opaque that nobody waits with: for a request that gets no answer."""
        opaque = self._next_opaque
        self._next_opaque = (opaque + 1) & 0x7FFFFFFF
        return opaque

    def end(self, answer: Command) -> bool:
        """An answer has come; whether somebody had asked for it."""
        waiting = self._waiting.pop(answer.opaque, None)
        if waiting is None:
            return False
        if not waiting[0].done():
            waiting[0].set_result(answer)
        return True

    def lose(self, reason: str) -> None:
        """The connection is gone: nothing will be answered any more."""
        waiting, self._waiting = self._waiting, {}
        for future, _, _, _, peer in waiting.values():
            if not future.done():
                future.set_exception(ConnectionLost(peer, reason))
        if self._scan is not None:
            self._scan.cancel()

    def _expire(self) -> None:
        """Fail the requests whose time is over; armed only while some wait."""
        self._scan = None
        now = self._loop.time()
        for opaque in [o for o, (_, deadline, _, _, _) in self._waiting.items() if deadline <= now]:
            future, _, code, timeout_s, peer = self._waiting.pop(opaque)
            if not future.done():
                future.set_exception(RequestTimeout(peer, code, timeout_s))
        if self._waiting:
            self._scan = self._loop.call_later(TIMEOUT_SCAN_S, self._expire)
