"""Messages whose time is over without an acknowledgement: back to the group, or to its dead letters.

Touches  the store and the topics.

A message comes back as a copy in the group's retry topic of the topic, counted once more. When it came back
`retryMaxTimes` times (16), it goes to `%DLQ%<group>`: RocketMQ leaves that to its proxy and clients, which do the
same one hand-out later.

Invariants
- The copies and the acknowledgement of what they are copies of are appended together, in this order: a crash in
  between repeats a message, it loses none, and one that was repeated is not repeated again by every start.
"""

from collections.abc import Callable
from typing import Final

import structlog

from aerobee_broker.catalog.groups import SubscriptionGroups
from aerobee_broker.catalog.topics import TopicTable
from aerobee_broker.messages.message_writer import MessageWriter
from aerobee_broker.pop.checkpoints import CheckPoint
from aerobee_broker.pop.extra_info import normal_topic, pop_retry_topic
from aerobee_broker.pop.ledger import Ledger
from aerobee_broker.settings.config import LiveConfig
from aerobee_proto import names, properties
from aerobee_proto.errors import RecordError, RequestError
from aerobee_proto.records import StoredRecord, decode_record
from aerobee_store.disk.page_cache import NotInMemory, Stretch
from aerobee_store.reading.get_message import GetStatus
from aerobee_store.store import MessageStore
from aerobee_store.terms.messages import NewMessage

__all__ = ["Reviver"]

log = structlog.get_logger()

STEP_COUNT: Final = 16  # check-points of one step: up to 512 messages, about 5 ms
RETRY_MS: Final = 1000  # pause before messages that could not be written are tried again
LOG_INTERVAL_MS: Final = 60_000  # between two lines about that, however many messages wait
READ_SIZE: Final = 64 << 20
PROPERTIES_SIZE: Final = properties.PROPERTIES_SIZE_MAX - 256  # less what the store adds


class Reviver:
    """Brings back what is due. `revived` and `dead` count messages since the start."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        live: LiveConfig,
        clock: Callable[[], int],
        store: MessageStore,
        topics: TopicTable,
        groups: SubscriptionGroups,
        writer: MessageWriter,
    ) -> None:
        self._live = live
        self._clock = clock
        self._store = store
        self._topics = topics
        self._groups = groups
        self._writer = writer
        self._ledger = ledger
        # When a refusal is told again, and how many there were since the last line.
        self._next_log_ms = 0
        self._untold = 0
        self.revived = 0
        self.dead = 0

    def step(self) -> bool:
        """Bring back some of what is due; whether there may be more. NotInMemory: for the rest messages have to be
        brought into memory."""
        now_ms = self._clock()
        points = self._ledger.table.due(now_ms, STEP_COUNT)
        needed: list[Stretch] = []
        for point in points:
            try:
                self._revive(point, now_ms)
            except NotInMemory as missing:
                needed += missing.needed
                self._ledger.table.postpone(point, now_ms)
            except RequestError as refused:
                self._log_refused(point, refused, now_ms)
                self._ledger.table.postpone(point, now_ms + RETRY_MS)
        if needed:
            raise NotInMemory(needed[:STEP_COUNT])
        return len(points) == STEP_COUNT

    def _log_refused(self, point: CheckPoint, refused: RequestError, now_ms: int) -> None:
        self._untold += 1
        if now_ms >= self._next_log_ms:
            log.warning(
                "broker.pop_revive_delayed",
                group=point.key.group,
                reason=refused.remark,
                times=self._untold,
            )
            self._next_log_ms = now_ms + LOG_INTERVAL_MS
            self._untold = 0

    def _revive(self, point: CheckPoint, now_ms: int) -> None:
        """All missing messages of a check-point at once. RequestError: the store takes nothing now."""
        ledger, key = self._ledger, point.key
        messages: list[NewMessage] = []
        dead = 0

        # Copies of what is still there and still wanted. What is not is acknowledged without one, or it would be due
        # for ever.
        if self._is_selected(point):
            for offset in point.missing():
                record = self._read(point, offset)
                if record is not None:
                    message, is_dead = self._copy(point, record)
                    messages.append(message)
                    dead += is_dead

        # Copies first, their acknowledgement last, in one append: what a crash leaves of it repeats messages at worst.
        acks = ledger.log.acks(
            key,
            point.missing(),
            revive_queue=point.revive_queue,
            deliver_ms=key.pop_time + point.invisible_ms,
            now_ms=now_ms,
        )
        offsets = ledger.log.append([*messages, acks])

        # A copy that the store refuses for what it is would be refused again: it is told, and the check-point is over.
        for message, offset in zip(messages, offsets, strict=False):
            if offset < 0:
                log.error("broker.pop_message_refused", topic=message.topic, group=key.group)
        ledger.table.settle(point)
        refused = sum(offset < 0 for offset in offsets[: len(messages)])
        self.revived += len(messages) - dead - refused
        self.dead += dead

    def _is_selected(self, point: CheckPoint) -> bool:
        group, topic = point.key.group, point.key.topic
        return group in self._groups and normal_topic(group, topic) in self._topics

    def _read(self, point: CheckPoint, offset: int) -> StoredRecord | None:
        """The message that was handed out; None when it is there no more."""
        key = point.key
        result = self._store.asking.get_message(
            key.group, key.topic, key.queue_id, offset, 1, READ_SIZE, None
        )
        if result.status is not GetStatus.FOUND:
            return None
        try:
            record = decode_record(result.body[0], check_crc=False)
        except RecordError:
            return None
        return record if record.queue_offset == offset else None

    def _copy(self, point: CheckPoint, record: StoredRecord) -> tuple[NewMessage, bool]:
        """The message as it comes back, and whether that is among the dead letters."""
        group = point.key.group
        mapping = dict(record.property_map)
        settings = self._groups.get(group)
        tries_max = settings.retry_max_times if settings is not None else 0
        is_dead = record.reconsume_times >= tries_max >= 0
        if is_dead:
            target = names.dlq_topic(group)
            mapping.setdefault(properties.RETRY_TOPIC, normal_topic(group, point.key.topic))
            mapping.setdefault(properties.ORIGIN_MESSAGE_ID, record.offset_message_id)
        else:
            target = self._retry_topic(point)
            mapping.setdefault(properties.FIRST_POP_TIME, str(point.key.pop_time))
        self._topics.for_group(target, queue_count=1)
        times = record.reconsume_times + 1
        copied = self._writer.copy(record, target, 0, mapping, reconsume_times=times)
        if len(copied.properties) > PROPERTIES_SIZE:  # better without what was added than not at all
            copied = self._writer.copy(record, target, 0, record.property_map, reconsume_times=times)
        return copied, is_dead

    def _retry_topic(self, point: CheckPoint) -> str:
        group, topic = point.key.group, point.key.topic
        if names.is_retry_topic(topic):
            return topic
        return pop_retry_topic(group, topic, v2=self._live.value.enable_retry_topic_v2)
