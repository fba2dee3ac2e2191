"""The fence of a master that hands over: for a moment nothing is written, and who wants to write is told to come again.

Touches  the store and the table of handlers.

    requests that write    SERVICE_NOT_AVAILABLE: clients try again, and ask for the route meanwhile
    offsets of groups      the same: they would be gone with this master's tables
    users and policies     the same
    the broker itself      its deliveries, checks and notes wait, as they do while the disk is full

Invariants
- From the moment it is raised the log does not grow.
- It falls by itself: whoever raised it may have died.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from aerobee_broker.remoting_api.slave_gate import SLAVE_REFUSES
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_remoting.exchange.handlers import HandlerTable
from aerobee_store.faults.errors import StoreNotWriteable
from aerobee_store.store import MessageStore

__all__ = ["Fence"]

log = structlog.get_logger()

FENCED_CODES: Final = frozenset(SLAVE_REFUSES) | {
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.AUTH_CREATE_USER,
    RequestCode.AUTH_UPDATE_USER,
    RequestCode.AUTH_DELETE_USER,
    RequestCode.AUTH_CREATE_ACL,
    RequestCode.AUTH_UPDATE_ACL,
    RequestCode.AUTH_DELETE_ACL,
}
_REASON: Final = "this broker is handing over to another one of its set; try again"


class Fence:
    """Down at first. All calls from the event loop."""

    def __init__(self, store: MessageStore, handlers: HandlerTable) -> None:
        self._store = store
        self._handlers = handlers
        self._loop = asyncio.get_running_loop()
        self._condition: Callable[[], None] | None = None  # the store's own
        self._serve_again: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_up(self) -> bool:
        return self._serve_again is not None

    def up(self, seconds: float) -> None:
        """Let nothing be written from here on, for so long at most."""
        if self._serve_again is None:
            self._condition = self._store.condition
            self._store.condition = _refuse
            refusal = RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, _REASON)
            self._serve_again = self._handlers.refuse(FENCED_CODES, refusal)
            log.info("broker.writes_fenced", for_s=seconds, physical_offset=self._store.end_offset)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self.down)

    def down(self) -> None:
        """Let everything be written again. Not up: nothing."""
        if self._serve_again is None:
            return
        self._serve_again()
        self._serve_again = None
        self._store.condition = self._condition
        log.info("broker.writes_unfenced", physical_offset=self._store.end_offset)

    def close(self) -> None:
        """The broker ends, the fence as it is."""
        if self._timer is not None:
            self._timer.cancel()


def _refuse() -> None:
    raise StoreNotWriteable(_REASON)
