"""Bulk sending: ready-made batches, one result for each, for programs that write very many messages.

    bulk = client.bulk_sender("loader")
    entry = bulk.entry(b"17", tags="new", keys=["o-17"])       # bytes, as they travel
    result = await bulk.send("orders", [entry, ...])            # one request; all entries go to one queue, in order

Touches  brokers through `Delivery`.

A producer keeps an account of every message: its future, its place in a buffer, its time. Here the caller does that for
a batch as a whole, which takes a third of the processor time a message. What cannot travel in a batch (delayed and
transactional messages) is the producer's; bodies travel as they are, uncompressed.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from aerobee.errors import InvalidMessage
from aerobee.messages.outgoing import checked_topic, id_property, property_text
from aerobee.producing.delivery import Delivery, QueueChoice
from aerobee.terms.arguments import checked, explain
from aerobee.terms.routes import MessageQueue
from aerobee_proto.batch import encode_batch_entry
from aerobee_proto.errors import FormatError
from aerobee_proto.message_ids import UniqueKeyFactory

__all__ = ["BulkResult", "BulkSender"]


class BulkResult(NamedTuple):
    """Where a batch was stored: its queue, queue offset of its first message, and how many there are."""

    queue: MessageQueue
    queue_offset: int
    message_count: int


class BulkSender:
    """Encodes and sends batches. Made by `Client.bulk_sender()`."""

    def __init__(
        self, delivery: Delivery, keys: UniqueKeyFactory, *, body_size_max: int, timeout_s: float
    ) -> None:
        self._delivery = delivery
        self._keys = keys
        self.body_size_max = body_size_max  # of one message, in bytes
        self._timeout_s = timeout_s

    def entry(
        self,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        flag: int = 0,
    ) -> bytes:
        """One message as it travels; InvalidMessage says what no broker would take. Arguments as of a producer's."""
        try:
            return self._entry(body, tags, keys, properties, sharding_key, flag)
        except (TypeError, AttributeError):
            explain(BulkSender.entry, locals())
            raise

    def _entry(
        self,
        body: bytes,
        tags: str | None,
        keys: str | Iterable[str] | None,
        properties: Mapping[str, str] | None,
        sharding_key: str | None,
        flag: int,
    ) -> bytes:
        if not body or len(body) > self.body_size_max:
            what = (
                f"a body of {len(body)} bytes; at most {self.body_size_max} may be sent"
                if body
                else "an empty body; brokers refuse those"
            )
            raise InvalidMessage(f"message with {what}")
        text = id_property(self._keys.next_key())
        if tags or keys or properties or sharding_key:
            text += property_text(tags, keys, properties, sharding_key, 0)
        try:
            return encode_batch_entry(body, text.encode(), flag)
        except (FormatError, UnicodeEncodeError) as refused:
            raise InvalidMessage(str(refused)) from refused

    def unique_keys(self, count: int) -> list[str]:
        """Ids for that many messages, for callers that encode entries themselves (aerobee_proto.batch)."""
        return self._keys.next_keys(count)

    @checked
    async def send(self, topic: str, entries: Sequence[bytes], queue: QueueChoice = None) -> BulkResult:
        """Store a batch: in one queue, in order, all of it or nothing. At least one entry.

        `queue` is as of a producer; without it each batch goes to the next queue, and where a broker fails to another.
        A batch of which a time-out leaves open whether it was stored is sent again. Raises NoRoute, BrokerRefused,
        SendFailed.
        """
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        bound = None if queue is None else await self._delivery.choose(checked_topic(topic), queue, deadline)
        found, offset = await self._delivery.send_encoded(topic, b"".join(entries), bound, deadline)
        return BulkResult(found, offset, len(entries))
