"""What clients say about themselves: heartbeats, good-byes, who else is there, queue locks.

34 HEART_BEAT   35 UNREGISTER_CLIENT   38 GET_CONSUMER_LIST_BY_GROUP   46 CHECK_CLIENT_CONFIG
41 LOCK_BATCH_MQ   42 UNLOCK_BATCH_MQ
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import structlog

from aerobee_broker.catalog.catalog import Catalog
from aerobee_broker.members.clients import Member
from aerobee_broker.members.filters import Filters, check_type
from aerobee_broker.members.members import Members
from aerobee_broker.remoting_api.request_bodies import answer
from aerobee_broker.settings.config import LiveConfig
from aerobee_broker.settings.identity import BrokerIdentity
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
from aerobee_proto.requests import NoFields
from aerobee_remoting.exchange.answers import answer_in_slices, written
from aerobee_remoting.exchange.handlers import AnyRequest, HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import GET, SUB, Rule, on_group, on_groups_in, on_topics_in, ours
from aerobee_service.turns.slices import Steps, at_once, let_go

__all__ = ["ClientHandlers"]

log = structlog.get_logger()

HEARTBEAT_SIZE_MAX: Final = 4 * 1024 * 1024
LOCK_BODY_SIZE_MAX: Final = 1024 * 1024
CLIENT_ID_CHARS_MAX: Final = 512
READ_AT_ONCE_MAX: Final = 16 * 1024  # bytes of a body that is read in one turn
# Groups and subscriptions of a heartbeat that are taken in one turn.
SLICE_MAX: Final = 512
PRODUCERS_A_STEP: Final = 64
QUEUES_A_STEP: Final = 256  # to lock or unlock
GROUP_COST: Final = 8  # of a group, in subscriptions


class ClientHandlers:
    """Handlers of the codes above."""

    def __init__(
        self,
        *,
        live: LiveConfig,
        clock: Callable[[], int],
        identity: BrokerIdentity,
        catalog: Catalog,
        members: Members,
        filters: Filters,
    ) -> None:
        self._live = live
        self._clock = clock
        self._identity = identity
        self._topics = catalog.topics
        self._groups = catalog.groups
        self._consumers = members.consumers
        self._producers = members.producers
        self._locks = members.locks
        self._notices = members.notices
        self._filters = filters

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        add, code = table.register, RequestCode
        add(
            code.HEART_BEAT,
            self.heartbeat,
            # Producers are not looked at: what may be sent is seen when it is sent.
            needs=(
                on_groups_in(
                    HeartbeatData, lambda body: [one.group_name for one in body.consumer_data_set], SUB
                ),
                on_topics_in(HeartbeatData, _subscribed_topics, SUB, of_retry=()),
            ),
            body_size_max=HEARTBEAT_SIZE_MAX,
            overtakes=True,
        )
        add(
            code.UNREGISTER_CLIENT,
            self.unregister,
            header=UnregisterClientHeader,
            needs=(on_group("consumer_group", SUB),),
            overtakes=True,
        )
        add(
            code.GET_CONSUMER_LIST_BY_GROUP,
            self.members,
            header=ConsumerGroupHeader,
            needs=(on_group("consumer_group", SUB, GET),),
            overtakes=True,
        )
        add(
            code.CHECK_CLIENT_CONFIG,
            self.check_subscription,
            needs=(
                ours(on_groups_in(CheckClientConfigBody, lambda body: [body.group], SUB)),
                ours(on_topics_in(CheckClientConfigBody, _checked_topic, SUB, of_retry=())),
            ),
            body_size_max=LOCK_BODY_SIZE_MAX,
        )
        add(
            code.LOCK_BATCH_MQ,
            self.lock,
            needs=_of_queues(LockBatchBody),
            body_size_max=LOCK_BODY_SIZE_MAX,
            overtakes=True,
        )
        add(
            code.UNLOCK_BATCH_MQ,
            self.unlock,
            needs=_of_queues(UnlockBatchBody),
            body_size_max=LOCK_BODY_SIZE_MAX,
            overtakes=True,
        )

    # --- heartbeats -------------------------------------------------------------------------------------------

    def heartbeat(self, request: Request[NoFields]) -> Response | None:
        """Take a client's groups. A short one (withoutSub) of a client that is unknown asks for a full one."""
        if len(request.body) <= READ_AT_ONCE_MAX and _cost(request.read(HeartbeatData)) <= SLICE_MAX:
            return at_once(self._heartbeat(request))
        _answer_in_turns(request, self._heartbeat)
        return None

    def _heartbeat(self, request: AnyRequest) -> Steps[Response]:
        data = yield from request.reading(HeartbeatData)
        _check_client_id(data.client_id)
        known: list[bool] = []
        for consumer in data.consumer_data_set:
            is_known = yield from self._consumer(request, data, consumer)
            known.append(is_known)
            yield
        for start in range(0, len(data.producer_data_set), PRODUCERS_A_STEP):
            self._register_producers(request, data, data.producer_data_set[start : start + PRODUCERS_A_STEP])
            yield
        return self._on_heartbeat(data, known)

    def _register_producers(
        self, request: AnyRequest, data: HeartbeatData, producers: Sequence[ProducerData]
    ) -> None:
        for producer in producers:
            if 0 < len(producer.group_name) <= names.GROUP_LENGTH_MAX:
                self._producers.register(producer.group_name, self._member(request, data.client_id))

    def _on_heartbeat(self, data: HeartbeatData, known: Sequence[bool]) -> Response:
        uses_fingerprints = data.heartbeat_fingerprint != 0
        changed = not all(known) if uses_fingerprints else True
        return Response(
            ext={"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true" if changed else "false"}
        )

    def _consumer(self, request: AnyRequest, data: HeartbeatData, consumer: ConsumerData) -> Steps[bool]:
        """Take one group; False when a full heartbeat is needed for it."""
        group = self._groups.find(consumer.group_name)
        if group is None:
            log.warning(
                "broker.group_refused",
                group=consumer.group_name[:255],
                client_id=data.client_id,
                peer=request.connection.peer,
            )
            return True
        self._topics.for_group(
            names.retry_topic(consumer.group_name),
            queue_count=group.retry_queue_nums,
            unit=consumer.unit_mode,
        )
        changes = yield from self._consumers.registering(
            self._member(request, data.client_id),
            consumer,
            notify=self._groups.notifies(consumer.group_name),
            without_subscriptions=data.without_sub and data.heartbeat_fingerprint != 0,
            fingerprint=data.heartbeat_fingerprint,
        )
        let_go(changes.left)
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
                notified=self._notices.notify(changes.notify),
            )
        return changes.known

    def _member(self, request: AnyRequest, client_id: str) -> Member:
        return Member(client_id, request.connection, request.language, request.version, self._clock())

    def unregister(self, request: Request[UnregisterClientHeader]) -> Response:
        """A client leaves its groups; the members that stay are told."""
        header: UnregisterClientHeader = request.header
        if header.producer_group:
            self._producers.unregister(header.producer_group, header.client_id)
        if header.consumer_group:
            group = header.consumer_group
            changes = self._consumers.unregister(group, header.client_id, notify=self._groups.notifies(group))
            let_go(changes.left)
            if changes.changed:
                log.info("broker.client_left", group=group, client_id=header.client_id)
            self._notices.notify_of_good_bye(changes.notify)
        return Response()

    # --- looking around ---------------------------------------------------------------------------------------

    def members(self, request: Request[ConsumerGroupHeader]) -> Response | None:
        """Client ids of a group; SYSTEM_ERROR when nobody is online."""
        group = request.header.consumer_group
        found = self._consumers.get(group)
        if found is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group[:255]}: nobody is online"
            )
        if len(found.members) <= SLICE_MAX:
            return answer(ConsumerIdList(consumer_id_list=self._consumers.client_ids(group)))
        answer_in_slices(request, self._ids(group))
        return None

    def _ids(self, group: str) -> Steps[ConsumerIdList]:
        return ConsumerIdList(consumer_id_list=list((yield from self._consumers.sorted_ids(group))))

    def check_subscription(self, request: Request[NoFields]) -> Response:
        """Whether a filter expression would be understood, before a client starts with it."""
        subscription = request.read(CheckClientConfigBody).subscription_data
        enabled = self._live.value.enable_property_filter
        if subscription is not None and not check_type(subscription.expression_type, sql_enabled=enabled):
            self._filters.sql(subscription.sub_string)
        return Response()

    # --- queue locks ------------------------------------------------------------------------------------------

    def lock(self, request: Request[NoFields]) -> Response | None:
        """Take or renew locks for orderly consumption; the answer lists those that are held now.

        The group must be known or may be created, as for a heartbeat: else locks of invented groups would pile up.
        """
        return _answer_by_size(request, self._lock)

    def unlock(self, request: Request[NoFields]) -> Response | None:
        """Give locks back."""
        return _answer_by_size(request, self._unlock)

    def _lock(self, request: AnyRequest) -> Steps[Response]:
        body = yield from request.reading(LockBatchBody)
        _check_client_id(body.client_id)
        self._groups.require(body.consumer_group)
        held: list[MessageQueue] = []
        for start in range(0, len(body.mq_set), QUEUES_A_STEP):
            queues = self._existing(body.mq_set[start : start + QUEUES_A_STEP])
            held += self._locks.lock(body.consumer_group, body.client_id, queues, self._clock())
            yield
        return Response(body=(yield from written(LockedQueues(locked=held))))

    def _unlock(self, request: AnyRequest) -> Steps[Response]:
        body = yield from request.reading(UnlockBatchBody)
        for start in range(0, len(body.mq_set), QUEUES_A_STEP):
            queues = body.mq_set[start : start + QUEUES_A_STEP]
            self._locks.unlock(body.consumer_group, body.client_id, queues)
            yield
        return Response()

    def _existing(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Those of the queues that this broker has; others cannot be locked here."""
        found = []
        for queue in queues:
            topic = self._topics.get(queue.topic)
            if topic is None or queue.broker_name != self._identity.broker_name:
                continue
            if 0 <= queue.queue_id < max(topic.read_queue_nums, topic.write_queue_nums):
                found.append(queue)
        return found


def _answer_by_size(request: AnyRequest, work: Callable[[AnyRequest], Steps[Response]]) -> Response | None:
    if len(request.body) <= READ_AT_ONCE_MAX:
        return at_once(work(request))
    _answer_in_turns(request, work)
    return None


def _answer_in_turns(request: AnyRequest, work: Callable[[AnyRequest], Steps[Response]]) -> None:
    """As at once, for a request of very many parts: others are served in between."""

    async def answered() -> Response:
        await request.connection.another_turn()
        return await request.connection.in_turns(work(request))

    request.connection.answer_alone(request, answered)


def _subscribed_topics(data: HeartbeatData) -> Iterator[str]:
    for consumer in data.consumer_data_set:
        for subscription in consumer.subscription_data_set:
            yield subscription.topic


def _checked_topic(body: CheckClientConfigBody) -> list[str]:
    return [body.subscription_data.topic] if body.subscription_data is not None else []


def _of_queues(form: type[LockBatchBody]) -> tuple[Rule, ...]:
    """What locks of queues need: to read there, in that group."""
    return (
        on_groups_in(form, lambda body: [body.consumer_group], SUB),
        on_topics_in(form, lambda body: [queue.topic for queue in body.mq_set], SUB, of_retry=()),
    )


def _cost(data: HeartbeatData) -> int:
    groups = data.consumer_data_set
    subscriptions = sum([len(group.subscription_data_set) for group in groups])
    return GROUP_COST * len(groups) + subscriptions + len(data.producer_data_set)


def _check_client_id(client_id: str) -> None:
    if not 0 < len(client_id) <= CLIENT_ID_CHARS_MAX:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"the client id has {len(client_id)} characters; allowed: 1 to {CLIENT_ID_CHARS_MAX}",
        )
