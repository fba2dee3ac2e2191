"""What clients say about themselves: heartbeats, good-byes, who else is there, queue locks.

34 HEART_BEAT   35 UNREGISTER_CLIENT   38 GET_CONSUMER_LIST_BY_GROUP   46 CHECK_CLIENT_CONFIG
41 LOCK_BATCH_MQ   42 UNLOCK_BATCH_MQ
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

import structlog

from aerobee_broker.clients import Member
from aerobee_broker.filters import check_type
from aerobee_broker.group_notices import notify_members, notify_of_good_bye
from aerobee_broker.request_bodies import answer, read_body
from aerobee_broker.services import Services
from aerobee_proto import names
from aerobee_proto.bodies import (
    CheckClientConfigBody,
    ConsumerData,
    ConsumerIdList,
    HeartbeatData,
    LockBatchBody,
    LockedQueues,
    MessageQueue,
    ProducerData,
    UnlockBatchBody,
)
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.headers import ConsumerGroupHeader, UnregisterClientHeader
from aerobee_remoting.handlers import HandlerTable, Permission, Request, Response

__all__ = ["ClientHandlers"]

log = structlog.get_logger()

HEARTBEAT_SIZE_MAX: Final = 4 * 1024 * 1024
LOCK_BODY_SIZE_MAX: Final = 1024 * 1024
CLIENT_ID_CHARS_MAX: Final = 512
# Groups and subscriptions of a heartbeat that are taken in one turn; a group at the least.
SLICE_MAX: Final = 512
GROUP_COST: Final = 8  # of a group, in subscriptions


class ClientHandlers:
    """Handlers of the codes above."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        add, code = table.register, RequestCode
        anyone, subscribe = Permission.ANYONE, Permission.SUBSCRIBE
        add(
            code.HEART_BEAT,
            self.heartbeat,
            permission=anyone,
            body_size_max=HEARTBEAT_SIZE_MAX,
            overtakes=True,
        )
        add(
            code.UNREGISTER_CLIENT,
            self.unregister,
            permission=anyone,
            header=UnregisterClientHeader,
            overtakes=True,
        )
        add(
            code.GET_CONSUMER_LIST_BY_GROUP,
            self.members,
            permission=subscribe,
            header=ConsumerGroupHeader,
            overtakes=True,
        )
        add(
            code.CHECK_CLIENT_CONFIG,
            self.check_subscription,
            permission=subscribe,
            body_size_max=LOCK_BODY_SIZE_MAX,
        )
        add(
            code.LOCK_BATCH_MQ,
            self.lock,
            permission=subscribe,
            body_size_max=LOCK_BODY_SIZE_MAX,
            overtakes=True,
        )
        add(
            code.UNLOCK_BATCH_MQ,
            self.unlock,
            permission=subscribe,
            body_size_max=LOCK_BODY_SIZE_MAX,
            overtakes=True,
        )

    # --- heartbeats -------------------------------------------------------------------------------------------

    def heartbeat(self, request: Request) -> Response | None:
        """Take a client's groups. A short one (withoutSub) of a client that is unknown asks for a full one."""
        data = read_body(request, HeartbeatData)
        _check_client_id(data.client_id)
        if (
            sum([_cost(consumer) for consumer in data.consumer_data_set]) + len(data.producer_data_set)
            > SLICE_MAX
        ):
            request.connection.answer_alone(request, lambda: self._heartbeat_in_turns(request, data))
            return None
        known = [self._consumer(request, data, consumer) for consumer in data.consumer_data_set]
        self._producers(request, data, data.producer_data_set)
        return self._heard(data, known)

    async def _heartbeat_in_turns(self, request: Request, data: HeartbeatData) -> Response:
        """As at once, for one of very many groups: others are served in between."""
        known: list[bool] = []
        cost = 0
        for consumer in data.consumer_data_set:
            cost += _cost(consumer)
            if cost > SLICE_MAX and known:
                await asyncio.sleep(0)
                cost = 0
            known.append(self._consumer(request, data, consumer))
        for start in range(0, len(data.producer_data_set), SLICE_MAX):
            await asyncio.sleep(0)
            self._producers(request, data, data.producer_data_set[start : start + SLICE_MAX])
        return self._heard(data, known)

    def _producers(self, request: Request, data: HeartbeatData, producers: Sequence[ProducerData]) -> None:
        for producer in producers:
            if 0 < len(producer.group_name) <= names.GROUP_LENGTH_MAX:
                self._services.producers.register(producer.group_name, self._member(request, data.client_id))

    def _heard(self, data: HeartbeatData, known: Sequence[bool]) -> Response:
        uses_fingerprints = data.heartbeat_fingerprint != 0
        changed = not all(known) if uses_fingerprints else True
        return Response(
            ext={"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true" if changed else "false"}
        )

    def _consumer(self, request: Request, data: HeartbeatData, consumer: ConsumerData) -> bool:
        """Take one group; False when a full heartbeat is needed for it."""
        services = self._services
        group = services.groups.find(consumer.group_name)
        if group is None:
            log.warning(
                "broker.group_refused",
                group=consumer.group_name[:255],
                client_id=data.client_id,
                peer=request.connection.peer,
            )
            return True
        services.topics.for_group(
            names.retry_topic(consumer.group_name),
            queue_count=group.retry_queue_nums,
            unit=consumer.unit_mode,
        )
        changes = services.consumers.register(
            self._member(request, data.client_id),
            consumer,
            notify=services.notifies(consumer.group_name),
            without_subscriptions=data.without_sub and data.heartbeat_fingerprint != 0,
            fingerprint=data.heartbeat_fingerprint,
        )
        if changes.conflict is not None:
            log.warning(
                "broker.subscriptions_conflict",
                group=changes.conflict.group,
                client_id=changes.conflict.client_id,
                other_client_id=changes.conflict.other_client_id,
                topics=changes.conflict.topics,
            )
        if changes.changed:
            log.info(
                "broker.group_changed",
                group=consumer.group_name,
                client_id=data.client_id,
                peer=request.connection.peer,
                notified=notify_members(changes.notify),
            )
        return changes.known

    def _member(self, request: Request, client_id: str) -> Member:
        return Member(
            client_id, request.connection, request.language, request.version, self._services.clock()
        )

    def unregister(self, request: Request) -> Response:
        """A client leaves its groups; the members that stay are told."""
        header: UnregisterClientHeader = request.header
        services = self._services
        if header.producer_group:
            services.producers.unregister(header.producer_group, header.client_id)
        if header.consumer_group:
            group = header.consumer_group
            changes = services.consumers.unregister(group, header.client_id, notify=services.notifies(group))
            if changes.changed:
                log.info("broker.client_left", group=group, client_id=header.client_id)
            notify_of_good_bye(changes.notify)
        return Response()

    # --- looking around ---------------------------------------------------------------------------------------

    def members(self, request: Request) -> Response:
        """Client ids of a group; SYSTEM_ERROR when nobody is online."""
        group = request.header.consumer_group
        ids = self._services.consumers.client_ids(group)
        if not ids:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group[:255]}: nobody is online"
            )
        return answer(ConsumerIdList(consumer_id_list=ids))

    def check_subscription(self, request: Request) -> Response:
        """Whether a filter expression would be understood, before a client starts with it."""
        subscription = read_body(request, CheckClientConfigBody).subscription_data
        services = self._services
        enabled = services.config.enable_property_filter
        if subscription is not None and not check_type(subscription.expression_type, sql_enabled=enabled):
            services.filters.sql(subscription.sub_string)
        return Response()

    # --- queue locks ------------------------------------------------------------------------------------------

    def lock(self, request: Request) -> Response:
        """Take or renew locks for orderly consumption; the answer lists those that are held now.

        The group must be known or may be created, as for a heartbeat: else locks of invented groups would pile up.
        """
        body = read_body(request, LockBatchBody)
        _check_client_id(body.client_id)
        services = self._services
        services.groups.require(body.consumer_group)
        queues = self._existing(body.mq_set)
        held = services.locks.lock(body.consumer_group, body.client_id, queues, services.clock())
        return answer(LockedQueues(locked=held))

    def unlock(self, request: Request) -> Response:
        """Give locks back."""
        body = read_body(request, UnlockBatchBody)
        self._services.locks.unlock(body.consumer_group, body.client_id, body.mq_set)
        return Response()

    def _existing(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Those of the queues that this broker has; others cannot be locked here."""
        found = []
        for queue in queues:
            topic = self._services.topics.get(queue.topic)
            if topic is None or queue.broker_name != self._services.identity.broker_name:
                continue
            if 0 <= queue.queue_id < max(topic.read_queue_nums, topic.write_queue_nums):
                found.append(queue)
        return found


def _cost(consumer: ConsumerData) -> int:
    return GROUP_COST + len(consumer.subscription_data_set)


def _check_client_id(client_id: str) -> None:
    if not 0 < len(client_id) <= CLIENT_ID_CHARS_MAX:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"the client id has {len(client_id)} characters; allowed: 1 to {CLIENT_ID_CHARS_MAX}",
        )
