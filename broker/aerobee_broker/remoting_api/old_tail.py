"""The first moments of a master by election, while its log ends with messages that other members in sync may not have.

Touches  the store and the table of handlers.

    readers                     see the tail when every member in sync has it, as all that comes later (`Visibility`)
    sends                       are taken behind it, and answered after it
    deliveries, checks, POP     begin then: what is outstanding is read from queues, which lead to the tail no sooner
    requests that ask for them  SERVICE_NOT_AVAILABLE until then; half messages, too

Who does not get the tail leaves the members in sync after a while, so that nobody waits longer than a send would. While
there would be too few of them without it the tail waits as long as it takes, and nothing is answered with success.

Invariants
- Settled is settled: it does not come back.
"""

import asyncio
from typing import Final

import structlog

from aerobee_broker.remoting_api.pop import POP_CODES
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_remoting.exchange.handlers import HandlerTable
from aerobee_store.store import MessageStore

__all__ = ["OldTail"]

log = structlog.get_logger()

_CODES: Final = RequestCode
REFUSED_CODES: Final = frozenset(
    {
        *POP_CODES,
        _CODES.END_TRANSACTION,
        _CODES.RESUME_CHECK_HALF_MESSAGE,
        _CODES.RECALL_MESSAGE,
        _CODES.INVOKE_BROKER_TO_RESET_OFFSET,
    }
)
_REASON: Final = (
    "this broker has just become the master, and members in sync have not yet all that it has; try again"
)
WAIT_LOG_S: Final = 10.0


class OldTail:
    """Of one life. All calls from the event loop."""

    def __init__(self, store: MessageStore, handlers: HandlerTable) -> None:
        """The tail is what the store has now."""
        self._store = store
        self._handlers = handlers
        self._end = store.end_offset
        self._done = asyncio.Event()

    @property
    def is_settled(self) -> bool:
        """Whether readers see all of it, and queues have it: a full disk may hold these up."""
        return self._store.confirmed_offset >= self._end and not self._store.full_until

    def look(self) -> None:
        """Something was confirmed."""
        if self.is_settled:
            self._done.set()

    async def settled(self) -> None:
        """Return when readers see all of it; until then what needs it is refused."""
        loop = asyncio.get_running_loop()
        began, held_back = loop.time(), self._end - self._store.confirmed_offset
        refusal = RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, _REASON)
        serve = self._handlers.refuse(REFUSED_CODES, refusal)
        self.look()
        try:
            async with asyncio.timeout(
                WAIT_LOG_S
            ):  # wait_for of 3.11 forgets to be cancelled when both come at once
                await self._done.wait()
        except TimeoutError:
            log.warning("replication.tail_waits", size=held_back, physical_offset=self._end)
            await self._done.wait()
        serve()
        took_ms = round((loop.time() - began) * 1000)
        log.info("replication.tail_confirmed", size=held_back, physical_offset=self._end, took_ms=took_ms)
