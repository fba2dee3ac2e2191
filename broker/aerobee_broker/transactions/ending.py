"""Ends of transactions, as producers and operators ask for them: which half message is meant, and may it end so?

Touches  nothing but what `Transactions` touches, and the store through the writer.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from aerobee_broker.messages.message_writer import MessageWriter
from aerobee_broker.messages.refusals import own_put_refusal, store_refusal
from aerobee_broker.settings.config import LiveConfig
from aerobee_broker.transactions.half_messages import HalfMessage, half_in
from aerobee_broker.transactions.transactions import Done, Transactions
from aerobee_proto import names, properties
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import FormatError, RequestError
from aerobee_proto.message_ids import decode_offset_message_id
from aerobee_proto.records import decode_record
from aerobee_store.faults.errors import StoreError
from aerobee_store.store import MessageStore
from aerobee_store.terms.messages import PutStatus

__all__ = ["EndOfTransaction", "Ending", "Resumed"]

NOT_FOUND: Final = "Find prepared transaction message failed"


class EndOfTransaction(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Which transaction is to end: its half message, by its place and its producers."""

    producer_group: str
    physical_offset: int  # of the half message in the commit log
    half_offset: int  # of the same in the queue of half messages
    answers_check: bool  # the producer was asked


class Resumed(msgspec.Struct, frozen=True, gc=False):
    """A message that was given up and is a half message again."""

    topic: str  # its own
    physical_offset: int


class Ending:
    """Ends transactions, and opens those again that were given up. All calls from the event loop.

    A message is named by its place, its topic not or wrongly: `admit` is asked with the topic that it really has, and
    raises RequestError for a caller who may not act on that one.
    """

    def __init__(
        self,
        *,
        live: LiveConfig,
        clock: Callable[[], int],
        store: MessageStore,
        writer: MessageWriter,
        transactions: Transactions,
    ) -> None:
        self._live = live
        self._clock = clock
        self._store = store
        self._writer = writer
        self._transactions = transactions

    # --- the end of a transaction -----------------------------------------------------------------------------

    def commit(self, end: EndOfTransaction, done: Done, *, admit: Callable[[str], None]) -> None:
        """Store the message in its topic. `done` is told once, when that is durable or failed.

        RequestError: refused now, and `done` is not told.
        """
        half = self._half(end)
        admit(half.real_topic)
        self._transactions.commit(half, done)

    def roll_back(self, end: EndOfTransaction, *, admit: Callable[[str], None]) -> None:
        """Forget the message. RequestError when there is none such, or it is committed."""
        half = self._half(end)
        admit(half.real_topic)
        self._transactions.roll_back(half)

    def _half(self, end: EndOfTransaction) -> HalfMessage:
        """The half message that is meant. RequestError when there is none, or it is another's."""
        half = self._transactions.half_at(end.physical_offset)
        if half is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, NOT_FOUND)
        if not end.answers_check:
            self._check_immunity(half)
        if half.producer_group != end.producer_group:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if half.offset != end.half_offset:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        return half

    def _check_immunity(self, half: HalfMessage) -> None:
        """After the time that the producer itself has set, only answers to checks count."""
        immunity_ms, chosen = half.immunity_ms(self._live.value.transaction_time_out)
        if chosen and self._clock() - half.record.born_timestamp > immunity_ms:
            raise RequestError(
                ResponseCode.ILLEGAL_OPERATION,
                f"the message is older than its {properties.CHECK_IMMUNITY_TIME_IN_SECONDS}: the broker asks now",
            )

    # --- messages that were given up --------------------------------------------------------------------------

    async def resume(self, message_id: str, *, admit: Callable[[str], None]) -> Resumed:
        """Make a half message again of one that was given up; its checks are counted from the beginning.

        Returns when that is durable. RequestError: it was not given up, or could not be stored.
        """
        half = self._given_up(message_id)
        admit(half.real_topic)
        own = half.final_properties() | {properties.TRANSACTION_CHECK_TIMES: "0"}
        message = self._writer.copy(half.record, names.HALF_TOPIC, 0, own)
        try:
            (done,) = await self._writer.put([message])
        except StoreError as refused:
            raise store_refusal(refused, code=ResponseCode.SYSTEM_ERROR) from refused
        if done.status is not PutStatus.PUT_OK:
            raise own_put_refusal(done, "it could not be stored: ")
        return Resumed(half.real_topic, done.physical_offset)

    def _given_up(self, message_id: str) -> HalfMessage:
        try:
            place = decode_offset_message_id(message_id)
        except FormatError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"msgId: {error}") from error
        data = self._store.reading.message_at(place.physical_offset)
        half = None if data is None else half_in(decode_record(data), names.CHECK_MAX_TIME_TOPIC)
        if half is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"{message_id} is no message of {names.CHECK_MAX_TIME_TOPIC}"
            )
        return half
