"""Messages whose time is over without an acknowledgement: back to the group, or to its dead letters.

Touches  the store and the topics, through `Services`.

A message comes back as a copy in the group's retry topic of the topic, counted once more. When it came back
`retryMaxTimes` times (16), it goes to `%DLQ%<group>`: RocketMQ leaves that to its proxy and clients, which do the
same one hand-out later.

Invariants
- The copies and the acknowledgement of what they are copies of are appended together, in this order: a crash in
  between repeats a message, it loses none, and one that was repeated is not repeated again by every start.
"""

from typing import Final

import structlog

from aerobee_broker.pop.checkpoints import CheckPoint
from aerobee_broker.pop.extra_info import normal_topic, pop_retry_topic
from aerobee_broker.pop.ledger import Ledger
from aerobee_broker.services import Services
from aerobee_proto import names, properties
from aerobee_proto.errors import RecordError, RequestError
from aerobee_proto.records import StoredRecord, decode_record
from aerobee_store.get_message import GetStatus
from aerobee_store.messages import NewMessage

__all__ = ["Reviver"]

log = structlog.get_logger()

STEP_COUNT: Final = 16  # check-points of one step: up to 512 messages, about 5 ms
RETRY_MS: Final = 1000  # pause before messages that could not be written are tried again
TELL_MS: Final = 60_000  # between two lines about that, however many messages wait
READ_SIZE: Final = 64 << 20
PROPERTIES_SIZE: Final = properties.PROPERTIES_SIZE_MAX - 256  # less what the store adds


class Reviver:
    """Brings back what is due. `revived` and `dead` count messages since the start."""

    def __init__(self, services: Services, ledger: Ledger) -> None:
        self._services = services
        self._ledger = ledger
        # When a refusal is told again, and how many there were since the last line.
        self._tell_at_ms = 0
        self._untold = 0
        self.revived = 0
        self.dead = 0

    def step(self) -> bool:
        """Bring back some of what is due; whether there may be more."""
        now_ms = self._services.clock()
        points = self._ledger.table.due(now_ms, STEP_COUNT)
        for point in points:
            try:
                self._revive(point, now_ms)
            except RequestError as refused:
                self._tell(point, refused, now_ms)
                self._ledger.table.postpone(point, now_ms + RETRY_MS)
        return len(points) == STEP_COUNT

    def _tell(self, point: CheckPoint, refused: RequestError, now_ms: int) -> None:
        self._untold += 1
        if now_ms >= self._tell_at_ms:
            log.warning(
                "broker.pop_revive_delayed",
                group=point.key.group,
                reason=refused.remark,
                times=self._untold,
            )
            self._tell_at_ms = now_ms + TELL_MS
            self._untold = 0

    def _revive(self, point: CheckPoint, now_ms: int) -> None:
        """All missing messages of a check-point at once. RequestError: the store takes nothing now."""
        ledger, key = self._ledger, point.key
        messages: list[NewMessage] = []
        dead = 0
        if self._is_wanted(point):
            for offset in point.missing():
                record = self._read(point, offset)
                if record is not None:
                    message, is_dead = self._copy(point, record)
                    messages.append(message)
                    dead += is_dead
        acks = ledger.log.acks(
            key,
            point.missing(),
            revive_queue=point.revive_queue,
            deliver_ms=key.pop_time + point.invisible_ms,
            now_ms=now_ms,
        )
        offsets = ledger.log.append([*messages, acks])
        for message, offset in zip(messages, offsets, strict=False):
            if offset < 0:
                log.error("broker.pop_message_refused", topic=message.topic, group=key.group)
        ledger.table.settle(point)
        refused = sum(offset < 0 for offset in offsets[: len(messages)])
        self.revived += len(messages) - dead - refused
        self.dead += dead

    def _is_wanted(self, point: CheckPoint) -> bool:
        topic, group = point.key.topic, point.key.group
        services = self._services
        return group in services.groups and normal_topic(topic, group) in services.topics

    def _read(self, point: CheckPoint, offset: int) -> StoredRecord | None:
        """The message that was handed out; None when it is there no more."""
        key = point.key
        result = self._services.store.get_message(
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
        services, group = self._services, point.key.group
        mapping = dict(record.property_map)
        settings = services.groups.get(group)
        tries_max = settings.retry_max_times if settings is not None else 0
        is_dead = record.reconsume_times >= tries_max >= 0
        if is_dead:
            target = names.dlq_topic(group)
            mapping.setdefault(properties.RETRY_TOPIC, normal_topic(point.key.topic, group))
            mapping.setdefault(properties.ORIGIN_MESSAGE_ID, record.offset_message_id)
        else:
            target = self._retry_topic(point)
            mapping.setdefault(properties.FIRST_POP_TIME, str(point.key.pop_time))
        services.topics.for_group(target, queue_count=1)
        times = record.reconsume_times + 1
        copied = services.writer.copy(record, target, 0, mapping, reconsume_times=times)
        if len(copied.properties) > PROPERTIES_SIZE:  # better without what was added than not at all
            copied = services.writer.copy(record, target, 0, record.property_map, reconsume_times=times)
        return copied, is_dead

    def _retry_topic(self, point: CheckPoint) -> str:
        topic, group = point.key.topic, point.key.group
        if names.is_retry_topic(topic):
            return topic
        return pop_retry_topic(topic, group, v2=self._services.config.enable_retry_topic_v2)
