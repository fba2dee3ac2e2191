"""Sending a group to other offsets, while it consumes or while nobody of it is online.

222 INVOKE_BROKER_TO_RESET_OFFSET   (to clients: 220 RESET_CONSUMER_CLIENT_OFFSET)

Two ways, chosen by `useServerSideResetOffset`:

here (the default)  The offsets change here. The next pull of each queue is answered with PULL_OFFSET_MOVED and
                    where to go on; what members commit before that is ignored. Works while nobody is online.
in the clients      Members are told the offsets, move, and commit them. Nobody online is an error.

Touches  the offsets of groups; members' connections.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Final

import structlog

from aerobee_broker.catalog.catalog import Catalog
from aerobee_broker.members.consumers import ConsumerTable
from aerobee_broker.messages.refusals import check_queue
from aerobee_broker.reading.cold_reads import ColdReads, Owner
from aerobee_broker.settings.config import LiveConfig
from aerobee_broker.settings.identity import BrokerIdentity
from aerobee_proto import javajson
from aerobee_proto.bodies import MessageQueue, QueueOffset, ResetOffsetBody, ResetOffsetListBody, TopicConfig
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.headers import ResetClientOffsetHeader, ResetOffsetHeader
from aerobee_remoting.exchange.answers import answer_in_slices
from aerobee_remoting.exchange.handlers import HandlerTable, Request
from aerobee_remoting.exchange.needs import UPDATE, on_group, on_topic
from aerobee_remoting.peers.errors import RemotingError
from aerobee_service.turns.slices import Steps
from aerobee_store.store import MessageStore

__all__ = ["OffsetResets"]

log = structlog.get_logger()

_Targets = dict[MessageQueue, int]

QUEUES_NAMED_MAX: Final = 64  # in the line of the log
NO_OFFSET = -1  # a header may carry it for "none"


class OffsetResets:
    """Handler of the code above."""

    def __init__(
        self,
        *,
        live: LiveConfig,
        identity: BrokerIdentity,
        store: MessageStore,
        catalog: Catalog,
        consumers: ConsumerTable,
        cold: ColdReads,
        on_reset: Sequence[Callable[[str, str, int], None]],
    ) -> None:
        """`on_reset` are told of each queue (group, topic, queue id) in which a group was sent elsewhere."""
        self._live = live
        self._cold = cold
        self._identity = identity
        self._store = store
        self._topics = catalog.topics
        self._groups = catalog.groups
        self._offsets = catalog.offsets
        self._consumers = consumers
        self._on_reset = tuple(on_reset)

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        table.register(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            self.reset,
            header=ResetOffsetHeader,
            needs=(on_group("group", UPDATE), on_topic("topic", UPDATE)),
        )

    def reset(self, request: Request[ResetOffsetHeader]) -> None:
        """Move a group in all queues of a topic, or in one; the answer lists where each queue goes on."""
        answer_in_slices(request, self._reset(request))

    def _reset(self, request: Request[ResetOffsetHeader]) -> Steps[ResetOffsetBody]:
        header: ResetOffsetHeader = request.header
        config = self._topics.require(header.topic)
        if self._live.value.use_server_side_reset_offset:
            targets = yield from self._reset_here(header, config, request.connection)
        else:
            targets = yield from self._reset_clients(header, config, request.connection)
        log.info(
            "broker.offsets_reset",
            group=header.group,
            topic=header.topic,
            queues={queue.queue_id: offset for queue, offset in islice(targets.items(), QUEUES_NAMED_MAX)},
            queue_count=len(targets),
            peer=request.connection.peer,
        )
        return ResetOffsetBody(offset_table=targets)

    # --- here -------------------------------------------------------------------------------------------------

    def _reset_here(self, header: ResetOffsetHeader, config: TopicConfig, caller: Owner) -> Steps[_Targets]:
        self._groups.require_known(header.group)
        targets = yield from self._targets(header, config, caller)
        for queue, offset in targets.items():
            self.assign(header.group, header.topic, queue.queue_id, offset)
            yield
        return targets

    def assign(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Send a group to an offset, and tell who keeps requests or messages of it."""
        self._offsets.assign_reset(group, topic, queue_id, offset)
        for listener in self._on_reset:
            listener(group, topic, queue_id)

    def _targets(self, header: ResetOffsetHeader, config: TopicConfig, caller: Owner) -> Steps[_Targets]:
        """Queue -> offset, for the one queue that is named or for all that can be read."""
        if header.queue_id < 0:
            targets: _Targets = {}
            for queue_id in range(config.read_queue_nums):
                offset = yield from self._offset_at(header.topic, queue_id, header.timestamp, caller)
                targets[self._queue(config, queue_id)] = offset
                yield
            return targets
        check_queue(header.topic, header.queue_id, config.read_queue_nums, code=ResponseCode.SYSTEM_ERROR)
        return {self._queue(config, header.queue_id): (yield from self._offset_of(header, caller))}

    def _offset_of(self, header: ResetOffsetHeader, caller: Owner) -> Steps[int]:
        """The offset that is named, if it lies in its queue; else the one at the time that is named."""
        if header.offset is None or header.offset == NO_OFFSET:
            return (yield from self._offset_at(header.topic, header.queue_id, header.timestamp, caller))
        first = self._store.reading.min_offset(header.topic, header.queue_id)
        end = self._store.reading.max_offset(header.topic, header.queue_id)
        if not first <= header.offset <= end:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"offset {header.offset} lies outside queue {header.queue_id} of topic {header.topic},"
                f" which goes from {first} to {end}",
            )
        return header.offset

    def _offset_at(self, topic: str, queue_id: int, timestamp_ms: int, caller: Owner) -> Steps[int]:
        """First offset stored at or after a time; the end of the queue for a time before 1970."""
        store = self._store
        if timestamp_ms < 0:
            return max(0, store.reading.max_offset(topic, queue_id))
        search = partial(store.asking.offset_by_time, topic, queue_id, timestamp_ms, False)
        return max(0, (yield from self._cold.in_steps(search, caller)))

    def _queue(self, config: TopicConfig, queue_id: int) -> MessageQueue:
        return MessageQueue(config.topic_name, self._identity.broker_name, queue_id)

    # --- in the clients ---------------------------------------------------------------------------------------

    def _reset_clients(
        self, header: ResetOffsetHeader, config: TopicConfig, caller: Owner
    ) -> Steps[_Targets]:
        """Tell the members where to go on. Without isForce nobody moves forward."""
        targets = yield from self._targets(header, config, caller)
        for queue, target in targets.items():
            consumed = self._offsets.get(header.group, header.topic, queue.queue_id)
            if consumed is None:
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR,
                    f"the consumer group <{header.group[:255]}> not exist:"
                    f" it has no offset in queue {queue.queue_id} of topic {header.topic}",
                )
            targets[queue] = target if header.is_force else min(target, consumed)
        yield from self._notify_members(header, targets)
        return targets

    def _notify_members(self, header: ResetOffsetHeader, targets: _Targets) -> Steps[None]:
        group = self._consumers.get(header.group)
        if group is None:
            raise RequestError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group[:255]}",
            )
        order = ResetClientOffsetHeader(
            topic=header.topic, group=header.group, timestamp=header.timestamp, is_force=header.is_force
        )
        body = yield from javajson.dumps_steps(ResetOffsetBody(offset_table=targets))
        as_list = b""
        for member in list(group.members.values()):
            yield
            if member.language == "CPP" and not as_list:
                as_list = yield from javajson.dumps_steps(_as_list(targets))
            form = as_list if member.language == "CPP" else body
            try:
                member.connection.send_oneway(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, order, form)
            except RemotingError as gone:
                # It leaves the group with its connection; who takes its queues starts at what is committed.
                log.warning(
                    "broker.reset_not_delivered",
                    group=header.group,
                    client_id=member.client_id,
                    reason=str(gone),
                )


def _as_list(targets: _Targets) -> ResetOffsetListBody:
    """The form for clients in C++, whose JSON has no objects as keys."""
    entries = [
        QueueOffset(broker_name=queue.broker_name, offset=offset, queue_id=queue.queue_id, topic=queue.topic)
        for queue, offset in targets.items()
    ]
    return ResetOffsetListBody(offset_table=entries)
