"""Messages that a group could not consume: they come back later, or end in the group's dead-letter topic.

36 CONSUMER_SEND_MSG_BACK, and the rules for sends to `%RETRY%<group>` by which clients do the same themselves.

Touches  the tables of topics and groups, the store through the writer.

A message that comes back lies in `%RETRY%<group>` (after its delay level, 3 + the number of times it came back
already unless the consumer names one) with RETRY_TOPIC, its own topic, ORIGIN_MESSAGE_ID, the offset id of its first
record, and one more in reconsume_times. A dead letter lies in queue 0 of `%DLQ%<group>`.
"""

import random
from typing import Final

import structlog

from aerobee_broker.groups import unknown_group
from aerobee_broker.refusals import check_takes_messages
from aerobee_broker.services import Services
from aerobee_proto import names, properties
from aerobee_proto.bodies import SubscriptionGroupConfig, TopicConfig
from aerobee_proto.codes import Perm, RequestCode, ResponseCode
from aerobee_proto.errors import FormatError, RequestError
from aerobee_proto.headers import ConsumerSendMsgBackHeader
from aerobee_proto.records import StoredRecord, decode_record
from aerobee_remoting.handlers import HandlerTable, Permission, Request, Response
from aerobee_store.errors import StoreError
from aerobee_store.messages import NewMessage, PutStatus

__all__ = ["Retries", "reconsume_limit"]

log = structlog.get_logger()

DLQ_QUEUES: Final = 1
FIRST_LEVEL: Final = 3
VERSION_WITH_LIMIT: Final = 121  # 3.4.9: clients from there on say how often they want to see a message
RECONSUME_TIMES_MAX: Final = 2**31 - 2


def reconsume_limit(group: SubscriptionGroupConfig, wanted: int | None, version: int) -> int:
    """How often a message comes back to a group before it is a dead letter."""
    return group.retry_max_times if wanted is None or version < VERSION_WITH_LIMIT else wanted


class Retries:
    """The handler of 36, and what `SendProcessor` asks about sends to retry topics."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def register(self, table: HandlerTable) -> None:
        """Add the handler to a table."""
        table.register(
            RequestCode.CONSUMER_SEND_MSG_BACK,
            self.send_back,
            permission=Permission.SUBSCRIBE,
            header=ConsumerSendMsgBackHeader,
        )

    # --- sends to retry topics --------------------------------------------------------------------------------

    def group_of(self, retry_topic: str) -> SubscriptionGroupConfig:
        """The group that a retry topic belongs to; SUBSCRIPTION_GROUP_NOT_EXIST when there is none."""
        return self._services.groups.require(retry_topic.removeprefix(names.RETRY_PREFIX))

    def is_dead_letter(self, retry_topic: str, times: int, wanted: int | None, version: int) -> bool:
        """Whether a message sent to a retry topic goes to the dead letters: too often, or consumed in order."""
        group = self.group_of(retry_topic)
        if self._services.locks.is_locked(group.group_name, self._services.clock()):
            return True
        return times > reconsume_limit(group, wanted, version)

    def dead_letter_topic(self, group: str) -> TopicConfig:
        """The group's topic for dead letters, made on demand. SYSTEM_ERROR when it cannot be."""
        return self._group_topic(names.dlq_topic(group), DLQ_QUEUES)

    def _group_topic(self, topic: str, queue_count: int, *, unit: bool = False) -> TopicConfig:
        found = self._services.topics.for_group(topic, queue_count=queue_count, unit=unit)
        if found is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"topic {topic} does not exist and could not be made"
            )
        return found

    # --- 36 ---------------------------------------------------------------------------------------------------

    async def send_back(self, request: Request) -> Response:
        """Store a message once more for a group, later; answered when it is as durable as a send."""
        header: ConsumerSendMsgBackHeader = request.header
        services = self._services
        group = services.groups.find(header.group)
        if group is None:
            raise unknown_group(header.group)
        check_takes_messages(services.config)
        if group.retry_queue_nums <= 0:
            return Response()
        target = self._retry_topic(group, unit=header.unit_mode)
        record = self._record_at(header.offset)
        limit = reconsume_limit(group, header.max_reconsume_times, request.version)
        message = self._again(record, header, target, limit)
        await self._put(message)
        topic = record.property_map.get(properties.RETRY_TOPIC, record.topic)
        services.stats.sent_back(topic, header.group)
        return Response()

    def _retry_topic(self, group: SubscriptionGroupConfig, *, unit: bool) -> TopicConfig:
        target = self._group_topic(names.retry_topic(group.group_name), group.retry_queue_nums, unit=unit)
        if not target.perm & Perm.WRITE:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"topic {target.topic_name} may not be written to: its permission is {target.perm}",
            )
        return target

    def _record_at(self, physical_offset: int) -> StoredRecord:
        raw = self._services.store.message_at(physical_offset) if physical_offset >= 0 else None
        if raw is not None:
            try:
                return decode_record(raw)
            except FormatError as broken:
                log.warning("broker.record_unreadable", physical_offset=physical_offset, reason=str(broken))
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"look message by offset failed: no message at {physical_offset} here"
        )

    def _again(
        self, record: StoredRecord, header: ConsumerSendMsgBackHeader, target: TopicConfig, limit: int
    ) -> NewMessage:
        """The message as its group sees it next, parked for its delay."""
        services = self._services
        mapping = dict(record.property_map)
        mapping.setdefault(properties.RETRY_TOPIC, record.topic)
        mapping.setdefault(properties.ORIGIN_MESSAGE_ID, record.offset_message_id)
        dead = record.reconsume_times >= limit or header.delay_level < 0
        if dead:
            target = self.dead_letter_topic(header.group)
            mapping[properties.DELAY] = "0"
            log.debug(
                "broker.dead_lettered",
                group=header.group,
                topic=mapping[properties.RETRY_TOPIC],
                unique_key=record.unique_key,
                reconsume_times=record.reconsume_times,
            )
        else:
            mapping[properties.DELAY] = str(header.delay_level or FIRST_LEVEL + record.reconsume_times)
        message = services.writer.copy(
            record,
            target.topic_name,
            random.randrange(target.write_queue_nums),  # noqa: S311  # spread, not secrecy
            mapping,
            reconsume_times=min(record.reconsume_times, RECONSUME_TIMES_MAX) + 1,
            prepared_transaction_offset=0,
        )
        return services.parking.place(message, mapping)

    async def _put(self, message: NewMessage) -> None:
        try:
            (done,) = await self._services.writer.put([message])
        except StoreError as refused:
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, str(refused)) from refused
        if done.status is not PutStatus.PUT_OK:
            raise RequestError(ResponseCode.SYSTEM_ERROR, done.status.name)
        self._services.stats.put(message.topic, 1, done.size)
