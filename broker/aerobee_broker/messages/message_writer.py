"""Messages that the broker writes itself: deliveries, retries, dead letters, transactions, replies.

Touches  the store, and whoever waits for its syncs, through the callables it is given.

Invariants
- `put` returns a PUT_OK place only when the message is as durable as the configuration promises for a send.
- The order of `append` calls is the order in the log.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from aerobee_broker.messages.stored_properties import stored_form
from aerobee_proto.records import StoredRecord, encode_host
from aerobee_store.store import MessageStore
from aerobee_store.terms.messages import Appended, NewMessage, PutStatus

__all__ = ["MessageWriter"]


class Durable(Protocol):
    """See MessageWriter."""

    async def __call__(self, *, in_time: bool = False) -> None: ...


class MessageWriter:
    """Makes and appends the broker's own messages. All calls from the event loop."""

    def __init__(
        self,
        store: MessageStore,
        *,
        host: tuple[str, int],
        clock: Callable[[], int],
        appended: Callable[[], None],
        durable: Durable,
    ) -> None:
        """`host` is this broker as clients reach it. `appended` tells that messages are in the log; `durable`
        returns when all of them are as durable as promised, and raises StoreError when they never will be, or with
        `in_time` when a send would not be waited for any longer."""
        self._store = store
        self.clock = clock
        self._appended = appended
        self._durable = durable
        self.host = encode_host(*host)

    # --- making -----------------------------------------------------------------------------------------------

    def new(self, topic: str, queue_id: int, body: bytes, mapping: Mapping[str, str]) -> NewMessage:
        """A message born here and now."""
        return NewMessage(
            topic,
            queue_id,
            0,
            0,
            self.clock(),
            self.host,
            self.host,
            0,
            0,
            body,
            *stored_form(mapping),
        )

    def copy(
        self,
        record: StoredRecord,
        topic: str,
        queue_id: int,
        mapping: Mapping[str, str],
        *,
        sys_flag: int | None = None,
        reconsume_times: int | None = None,
        prepared_transaction_offset: int | None = None,
    ) -> NewMessage:
        """A stored message again for another queue: body, flags, birth as they were; stored by this broker."""
        return NewMessage(
            topic,
            queue_id,
            record.flag,
            record.sys_flag if sys_flag is None else sys_flag,
            record.born_timestamp,
            encode_host(*record.born_host),
            self.host,
            record.reconsume_times if reconsume_times is None else reconsume_times,
            record.prepared_transaction_offset
            if prepared_transaction_offset is None
            else prepared_transaction_offset,
            bytes(record.body),
            *stored_form(mapping),
        )

    # --- writing ----------------------------------------------------------------------------------------------

    def append(self, messages: Sequence[NewMessage]) -> list[Appended]:
        """Store now, durable later. StoreError: nothing was stored; single refusals are in the answers."""
        done = self._store.append(messages)
        self._appended()
        return done

    async def durable(self, *, in_time: bool = False) -> None:
        """Return when everything appended so far is as durable as a send's answer promises. StoreError: never, or, with
        `in_time`, not while a send would be waited for."""
        await self._durable(in_time=in_time)

    async def put(self, messages: Sequence[NewMessage]) -> list[Appended]:
        """Store and wait until it may be counted on. StoreError as for `append` and `durable`."""
        done = self.append(messages)
        if any(one.status is PutStatus.PUT_OK for one in done):
            await self._durable(in_time=True)
        return done
