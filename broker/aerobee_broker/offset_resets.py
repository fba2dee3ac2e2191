"""Sending a group to other offsets, while it consumes or while nobody of it is online.

222 INVOKE_BROKER_TO_RESET_OFFSET   (to clients: 220 RESET_CONSUMER_CLIENT_OFFSET)

Two ways, chosen by `useServerSideResetOffset`:

here (the default)  The offsets change here. The next pull of each queue is answered with PULL_OFFSET_MOVED and
                    where to go on; what members commit before that is ignored. Works while nobody is online.
in the clients      Members are told the offsets, move, and commit them. Nobody online is an error.

Touches  the offsets of `Services`; members' connections.
"""

from itertools import islice
from typing import Final

import structlog

from aerobee_broker.refusals import no_such_queue
from aerobee_broker.services import Services
from aerobee_proto import javajson
from aerobee_proto.bodies import MessageQueue, QueueOffset, ResetOffsetBody, ResetOffsetListBody, TopicConfig
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.headers import ResetClientOffsetHeader, ResetOffsetHeader
from aerobee_remoting.answers import answer_in_slices
from aerobee_remoting.errors import RemotingError
from aerobee_remoting.handlers import HandlerTable, Permission, Request
from aerobee_remoting.slices import Steps

__all__ = ["OffsetResets"]

log = structlog.get_logger()

_Targets = dict[MessageQueue, int]

QUEUES_TOLD_MAX: Final = 64  # in the line of the log
NO_OFFSET = -1  # a header may carry it for "none"


class OffsetResets:
    """Handler of the code above."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def register(self, table: HandlerTable) -> None:
        """Add the handler to a table."""
        table.register(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            self.reset,
            permission=Permission.ADMIN,
            header=ResetOffsetHeader,
        )

    def reset(self, request: Request) -> None:
        """Move a group in all queues of a topic, or in one; the answer lists where each queue goes on."""
        answer_in_slices(request, self._reset(request))

    def _reset(self, request: Request) -> Steps[ResetOffsetBody]:
        header: ResetOffsetHeader = request.header
        services = self._services
        config = services.topics.require(header.topic)
        if services.config.use_server_side_reset_offset:
            targets = yield from self._reset_here(header, config)
        else:
            targets = yield from self._reset_clients(header, config)
        log.info(
            "broker.offsets_reset",
            group=header.group,
            topic=header.topic,
            queues={queue.queue_id: offset for queue, offset in islice(targets.items(), QUEUES_TOLD_MAX)},
            queue_count=len(targets),
            peer=request.connection.peer,
        )
        return ResetOffsetBody(offset_table=targets)

    # --- here -------------------------------------------------------------------------------------------------

    def _reset_here(self, header: ResetOffsetHeader, config: TopicConfig) -> Steps[_Targets]:
        services = self._services
        services.groups.require_known(header.group)
        targets = yield from self._targets(header, config)
        for queue, offset in targets.items():
            services.offsets.assign_reset(header.group, header.topic, queue.queue_id, offset)
            yield
        return targets

    def _targets(self, header: ResetOffsetHeader, config: TopicConfig) -> Steps[_Targets]:
        """Queue -> offset, for the one queue that is named or for all that can be read."""
        if header.queue_id < 0:
            targets: _Targets = {}
            for queue_id in range(config.read_queue_nums):
                offset = self._offset_at(header.topic, queue_id, header.timestamp)
                targets[self._queue(config, queue_id)] = offset
                yield
            return targets
        if header.queue_id >= config.read_queue_nums:
            raise no_such_queue(
                header.topic, header.queue_id, config.read_queue_nums, code=ResponseCode.SYSTEM_ERROR
            )
        return {self._queue(config, header.queue_id): self._offset_of(header)}

    def _offset_of(self, header: ResetOffsetHeader) -> int:
        """The offset that is named, if it lies in its queue; else the one at the time that is named."""
        if header.offset is None or header.offset == NO_OFFSET:
            return self._offset_at(header.topic, header.queue_id, header.timestamp)
        first = self._services.store.min_offset(header.topic, header.queue_id)
        end = self._services.store.max_offset(header.topic, header.queue_id)
        if not first <= header.offset <= end:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"offset {header.offset} lies outside queue {header.queue_id} of topic {header.topic},"
                f" which goes from {first} to {end}",
            )
        return header.offset

    def _offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """First offset stored at or after a time; the end of the queue for a time before 1970."""
        store = self._services.store
        if timestamp_ms < 0:
            return max(0, store.max_offset(topic, queue_id))
        return max(0, store.offset_by_time(topic, queue_id, timestamp_ms, False))

    def _queue(self, config: TopicConfig, queue_id: int) -> MessageQueue:
        return MessageQueue(config.topic_name, self._services.identity.broker_name, queue_id)

    # --- in the clients ---------------------------------------------------------------------------------------

    def _reset_clients(self, header: ResetOffsetHeader, config: TopicConfig) -> Steps[_Targets]:
        """Tell the members where to go on. Without isForce nobody moves forward."""
        targets = yield from self._targets(header, config)
        for queue, wanted in targets.items():
            consumed = self._services.offsets.get(header.group, header.topic, queue.queue_id)
            if consumed is None:
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR,
                    f"the consumer group <{header.group[:255]}> not exist:"
                    f" it has no offset in queue {queue.queue_id} of topic {header.topic}",
                )
            targets[queue] = wanted if header.is_force else min(wanted, consumed)
        yield from self._tell_members(header, targets)
        return targets

    def _tell_members(self, header: ResetOffsetHeader, targets: _Targets) -> Steps[None]:
        group = self._services.consumers.get(header.group)
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
