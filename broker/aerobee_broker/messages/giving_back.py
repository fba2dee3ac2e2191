"""Giving back: a message that a group could not consume comes to it once more, later, or ends in its dead letters.

Clients may also send to `%RETRY%<group>` themselves, by the same rules (`retry_topics`).

Touches  the tables of topics and groups, the store through the writer.

A message that comes back lies in `%RETRY%<group>` (after its delay level, 3 + the number of times it came back
already unless the consumer names one) with RETRY_TOPIC, its own topic, ORIGIN_MESSAGE_ID, the offset id of its first
record, and one more in reconsume_times. A dead letter lies in queue 0 of `%DLQ%<group>`.
"""

import random
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from aerobee_broker.catalog.groups import SubscriptionGroups, unknown_group
from aerobee_broker.messages.message_writer import MessageWriter
from aerobee_broker.messages.placement import PlacementRules
from aerobee_broker.messages.refusals import (
    check_broker_writable,
    check_writable,
    own_put_refusal,
    store_refusal,
)
from aerobee_broker.messages.retry_topics import RetryTopics, reconsume_limit
from aerobee_broker.settings.config import LiveConfig
from aerobee_broker.stats import BrokerStats
from aerobee_proto import properties
from aerobee_proto.bodies import TopicConfig
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import FormatError, RequestError
from aerobee_proto.records import StoredRecord, decode_record
from aerobee_store.faults.errors import StoreError
from aerobee_store.store import MessageStore
from aerobee_store.terms.messages import NewMessage, PutStatus

__all__ = ["GivenBack", "GivingBack"]

log = structlog.get_logger()

FIRST_LEVEL: Final = 3
RECONSUME_TIMES_MAX: Final = 2**31 - 2


class GivenBack(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A message that a member of a group gives back."""

    group: str
    physical_offset: int  # of its record in the commit log
    delay_level: int = 0  # 0: as often as it came back already; below 0: a dead letter at once
    limit: int | None = None  # how often it may come back; None: as often as the group says
    is_unit: bool = False  # the retry topic, if it has to be made, is one of a unit


class GivingBack:
    """Takes messages back. All calls from the event loop."""

    def __init__(
        self,
        retry_topics: RetryTopics,
        *,
        live: LiveConfig,
        store: MessageStore,
        groups: SubscriptionGroups,
        stats: BrokerStats,
        placement: PlacementRules,
        writer: MessageWriter,
    ) -> None:
        self._retry_topics = retry_topics
        self._live = live
        self._store = store
        self._groups = groups
        self._stats = stats
        self._placement = placement
        self._writer = writer

    async def give_back(self, given: GivenBack, *, admit: Callable[[str], None]) -> None:
        """Store a message once more for a group, later; return when it is as durable as a send.

        Only the place of the message is named, and whoever reads one topic could take a message of any other: `admit`
        is asked with the topic that lies there, and raises RequestError for a caller who may not have it.

        NotInMemory: nothing was done, the message has to be brought into memory.
        Nothing happens for a group without retry queues. RequestError: it could not be stored, or is not there.
        """
        group = self._groups.find(given.group)
        if group is None:
            raise unknown_group(given.group)
        check_broker_writable(self._live.value)
        if group.retry_queue_nums <= 0:
            return
        target = self._retry_topics.retry_topic(group, unit=given.is_unit)
        check_writable(target)
        record = self._record_at(given.physical_offset)
        admit(record.topic)
        message = self._again(record, given, target, reconsume_limit(group, given.limit))
        await self._put(message)
        topic = record.property_map.get(properties.RETRY_TOPIC, record.topic)
        self._stats.sent_back(given.group, topic)

    def _record_at(self, physical_offset: int) -> StoredRecord:
        raw = self._store.asking.message_at(physical_offset) if physical_offset >= 0 else None
        if raw is not None:
            try:
                return decode_record(raw)
            except FormatError as broken:
                log.warning("broker.record_unreadable", physical_offset=physical_offset, reason=str(broken))
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"look message by offset failed: no message at {physical_offset} here"
        )

    def _again(self, record: StoredRecord, given: GivenBack, target: TopicConfig, limit: int) -> NewMessage:
        """The message as its group sees it next, scheduled for its delay."""
        mapping = dict(record.property_map)
        mapping.setdefault(properties.RETRY_TOPIC, record.topic)
        mapping.setdefault(properties.ORIGIN_MESSAGE_ID, record.offset_message_id)
        dead = record.reconsume_times >= limit or given.delay_level < 0
        if dead:
            target = self._retry_topics.dead_letter_topic(given.group)
            mapping[properties.DELAY] = "0"
            log.debug(
                "broker.dead_lettered",
                group=given.group,
                topic=mapping[properties.RETRY_TOPIC],
                unique_key=record.unique_key,
                reconsume_times=record.reconsume_times,
            )
        else:
            mapping[properties.DELAY] = str(given.delay_level or FIRST_LEVEL + record.reconsume_times)
        message = self._writer.copy(
            record,
            target.topic_name,
            random.randrange(target.write_queue_nums),  # noqa: S311  # spread, not secrecy
            mapping,
            reconsume_times=min(record.reconsume_times, RECONSUME_TIMES_MAX) + 1,
            prepared_transaction_offset=0,
        )
        return self._placement.place(message, mapping)

    async def _put(self, message: NewMessage) -> None:
        try:
            (done,) = await self._writer.put([message])
        except StoreError as refused:
            raise store_refusal(refused) from refused
        if done.status is not PutStatus.PUT_OK:
            raise own_put_refusal(done)
        self._stats.put(message.topic, 1, done.size)
