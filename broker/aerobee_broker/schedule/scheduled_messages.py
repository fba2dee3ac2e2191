"""Messages that lie in a waiting topic: read back, and made into what their readers get.

Touches  the store, reading; the table of topics, when a topic's settings were lost.

A delivered message carries the physical offset of the record that waited in the field that a committed transaction
uses for its half record (`prepared_transaction_offset`): clients do nothing with it, and it tells after a crash
which messages were delivered already. RocketMQ writes 0 there.

Invariants
- A message is held back from its readers only when its topic was deleted after it came, or its record is damaged.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from aerobee_broker.catalog.topics import TopicTable
from aerobee_broker.messages.message_writer import MessageWriter
from aerobee_broker.messages.stored_properties import whole_number
from aerobee_broker.reading.cold_reads import ColdReads
from aerobee_broker.stats import BrokerStats
from aerobee_proto import properties
from aerobee_proto.errors import FormatError
from aerobee_proto.names import HALF_TOPIC, TIMER_TOPIC
from aerobee_proto.records import StoredRecord, decode_record
from aerobee_store.store import MessageStore
from aerobee_store.terms.messages import NewMessage

__all__ = ["ScheduledMessages", "wait_for_due"]

log = structlog.get_logger()

CLOCK_CHECK_S: Final = 1.0  # how often the wall clock is looked at while messages wait
FOREVER_MS: Final = 2**62
SAME_KEY_MAX: Final = 32  # records of one topic with one unique key: a message and its retries
QUEUE_ID_MAX: Final = 2**31 - 1


class ScheduledMessages:
    """Reads the records that wait and makes their deliveries. All calls from the event loop."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
        writer: MessageWriter,
        stats: BrokerStats,
        cold: ColdReads,
    ) -> None:
        self.cold = cold  # for work that meets NotInMemory
        self._store = store
        self._topics = topics
        self._writer = writer
        self._stats = stats

    def read(self, topic: str, physical_offset: int, *, asks: bool = True) -> StoredRecord | None:
        """The record of the waiting `topic` at a place; None when it is gone or damaged, which is told. NotInMemory:
        it has to be brought; not when nobody `asks`."""
        raw = (self._store.asking if asks else self._store.reading).message_at(physical_offset)
        if raw is None:
            cleaned = physical_offset < self._store.min_physical_offset
            write = log.warning if cleaned else log.error
            reason = "its log file was deleted by age" if cleaned else "its record is damaged"
            write("broker.delayed_lost", topic=topic, physical_offset=physical_offset, reason=reason)
            return None
        try:
            record = decode_record(raw)
        except FormatError as broken:
            log.error(  # noqa: TRY400  # the record is at fault, not this code
                "broker.delayed_lost", topic=topic, physical_offset=physical_offset, reason=str(broken)
            )
            return None
        return record if record.topic == topic else None

    def delivery(self, record: StoredRecord, added: Mapping[str, str] | None = None) -> NewMessage | None:
        """The message for its own topic and queue, with `added` properties; None when nobody may get it."""
        mapping = record.property_map
        topic = mapping.get(properties.REAL_TOPIC, "")
        queue_id = self._queue_of(topic, mapping.get(properties.REAL_QUEUE_ID, ""))
        if not topic or topic == HALF_TOPIC or queue_id is None:
            log.error(
                "broker.delayed_lost", physical_offset=record.physical_offset, reason="it has no target"
            )
            return None
        if self._store.topics.is_dead(topic, record.physical_offset):
            log.debug("broker.delayed_dropped", topic=topic, physical_offset=record.physical_offset)
            return None
        return self._writer.copy(
            record,
            topic,
            queue_id,
            {**mapping, **added} if added else mapping,
            prepared_transaction_offset=record.physical_offset,
        )

    def delivered(self, message: NewMessage, size: int) -> None:
        """Count a delivery that is in the log, as a record of `size` bytes."""
        self._stats.put(message.topic, 1, size)

    def _queue_of(self, topic: str, text: str) -> int | None:
        """The queue to deliver to: the one asked for, or one that is read where the topic has fewer now."""
        if not text.isascii() or not text.isdigit() or len(text) > 10:
            return None
        queue_id = int(text)
        if queue_id > QUEUE_ID_MAX:
            return None
        found = self._topics.get(topic)
        if found is None:
            self._topics.restore({topic: queue_id + 1})
        elif queue_id >= max(found.read_queue_nums, found.write_queue_nums):
            return queue_id % found.read_queue_nums if found.read_queue_nums else queue_id
        return queue_id

    def was_delivered(self, record: StoredRecord) -> bool:
        """Whether this broker has delivered the record before, as far as the index of keys knows."""
        key, topic = record.unique_key, record.property_map.get(properties.REAL_TOPIC)
        if key is None or topic is None:
            return False
        found = self._store.keys.query(topic, key, SAME_KEY_MAX, 0, FOREVER_MS)
        return any(
            decode_record(bytes(raw)).prepared_transaction_offset == record.physical_offset
            for raw in found.body
        )

    def rolled_copy(self, record: StoredRecord) -> StoredRecord | None:
        """The record as which a timer message was written anew on its way to a time far away; None when it was not, as
        far as the index of keys knows."""
        key = record.unique_key
        if key is None:
            return None
        stops, recalls = _roll_times(record), properties.TIMER_DEL_UNIQKEY in record.property_map
        for raw in self._store.keys.query(TIMER_TOPIC, key, SAME_KEY_MAX, 0, FOREVER_MS).body:
            other = decode_record(bytes(raw))
            if (
                other.physical_offset > record.physical_offset
                and _roll_times(other) > stops
                and other.born_timestamp == record.born_timestamp  # a client may send one message twice
                and (properties.TIMER_DEL_UNIQKEY in other.property_map) is recalls  # it has the other's key
            ):
                return other
        return None


def _roll_times(record: StoredRecord) -> int:
    return whole_number(record.property_map.get(properties.TIMER_ROLL_TIMES, "")) or 0


async def wait_for_due(due_ms: int | None, changed: asyncio.Event, clock: Callable[[], int]) -> None:
    """Wait for `due_ms` of the wall clock (None: for nothing), for a change, or until the clock is to be looked at."""
    timeout_s = None if due_ms is None else min(CLOCK_CHECK_S, max(0, due_ms - clock()) / 1000)
    try:
        async with asyncio.timeout(timeout_s):
            await changed.wait()
    except TimeoutError:
        return
