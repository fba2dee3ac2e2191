"""Where groups and queues stand.

    14 QUERY_CONSUMER_OFFSET   15 UPDATE_CONSUMER_OFFSET   29 SEARCH_OFFSET_BY_TIMESTAMP
    30 GET_MAX_OFFSET   31 GET_MIN_OFFSET   32 GET_EARLIEST_MSG_STORETIME
    43 GET_ALL_CONSUMER_OFFSET   45 GET_ALL_DELAY_OFFSET   308 QUERY_CORRECTION_OFFSET

A queue that does not exist has the offsets 0 and no earliest message (-1), as clients expect of a young topic.
"""

from aerobee_broker.consumer_offsets import OFFSET_MAX, starting_offset
from aerobee_broker.refusals import no_such_queue
from aerobee_broker.request_bodies import answer
from aerobee_broker.services import Services
from aerobee_proto import bodies
from aerobee_proto.bodies import AllDelayOffsets, CorrectionOffsets, TopicConfig
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import FormatError, RequestError
from aerobee_proto.headers import (
    CorrectionOffsetHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from aerobee_remoting.answers import answer_in_slices
from aerobee_remoting.handlers import HandlerTable, Permission, Request, Response
from aerobee_remoting.slices import Steps
from aerobee_store.errors import CorruptStore
from aerobee_store.get_message import GetStatus

__all__ = ["OffsetHandlers"]


class OffsetHandlers:
    """Handlers of the codes above."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        add, code = table.register, RequestCode
        subscribe, cluster = Permission.SUBSCRIBE, Permission.CLUSTER
        add(
            code.QUERY_CONSUMER_OFFSET,
            self.query,
            permission=subscribe,
            header=QueryConsumerOffsetHeader,
            overtakes=True,
        )
        add(
            code.UPDATE_CONSUMER_OFFSET,
            self.update,
            permission=subscribe,
            header=UpdateConsumerOffsetHeader,
            overtakes=True,
        )
        add(code.SEARCH_OFFSET_BY_TIMESTAMP, self.search, permission=subscribe, header=SearchOffsetHeader)
        add(code.GET_MAX_OFFSET, self.max_offset, permission=subscribe, header=QueueHeader)
        add(code.GET_MIN_OFFSET, self.min_offset, permission=subscribe, header=QueueHeader)
        add(code.GET_EARLIEST_MSG_STORETIME, self.earliest_time, permission=subscribe, header=QueueHeader)
        add(
            code.QUERY_CORRECTION_OFFSET,
            self.corrections,
            permission=Permission.INSPECT,
            header=CorrectionOffsetHeader,
        )
        add(code.GET_ALL_CONSUMER_OFFSET, self.all_consumer_offsets, permission=cluster)
        add(code.GET_ALL_DELAY_OFFSET, self.all_delay_offsets, permission=cluster)

    # --- of groups --------------------------------------------------------------------------------------------

    def query(self, request: Request) -> Response:
        """The offset that a group committed, or that it should start with; QUERY_NOT_FOUND without either."""
        header: QueryConsumerOffsetHeader = request.header
        services = self._services
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        offset = starting_offset(
            services.offsets.get(group, topic, queue_id),
            zero_allowed=header.set_zero_if_not_found and self._has_queue(topic, queue_id),
            min_offset=services.store.min_offset(topic, queue_id),
            first_is_recent=lambda: self._first_is_recent(group, topic, queue_id),
        )
        if offset is None:
            raise RequestError(
                ResponseCode.QUERY_NOT_FOUND,
                f"group {group[:255]} has no offset in queue {queue_id} of topic {topic[:255]} yet",
            )
        return Response(ext={"offset": str(offset)})

    def _first_is_recent(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether the message at logical offset 0 is there and counts as being in memory."""
        result = self._services.store.get_message(group, topic, queue_id, 0, 1, 1, None)
        return result.status is GetStatus.FOUND and not result.suggest_slave

    def update(self, request: Request) -> Response:
        """Commit a group's offset; ignored while a reset is pending."""
        header: UpdateConsumerOffsetHeader = request.header
        services = self._services
        group, topic, queue_id, offset = (
            header.consumer_group,
            header.topic,
            header.queue_id,
            header.commit_offset,
        )
        if group is None or topic is None or queue_id is None or offset is None:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                "consumerGroup, topic, queueId and commitOffset are all needed",
            )
        services.groups.require_known(group)
        config = services.topics.require(topic)
        queue_count = max(config.read_queue_nums, config.write_queue_nums)
        if not 0 <= queue_id < queue_count:
            raise no_such_queue(topic, queue_id, queue_count)
        if offset < 0:
            raise RequestError(ResponseCode.INVALID_PARAMETER, f"offset {offset} is negative")
        services.offsets.commit(group, topic, queue_id, offset)
        return Response()

    def corrections(self, request: Request) -> None:
        """How far the slowest group is in each queue; the largest number where that is ahead of compareGroup."""
        answer_in_slices(request, self._corrections(request.header))

    def _corrections(self, header: CorrectionOffsetHeader) -> Steps[CorrectionOffsets]:
        offsets = self._services.offsets
        left_out = {name.strip() for name in (header.filter_groups or "").split(",")}
        slowest = yield from offsets.slowest(header.topic, without=left_out)
        for queue_id, compared in offsets.of_group(header.compare_group, header.topic).items():
            if slowest.get(queue_id, OFFSET_MAX) > compared:
                slowest[queue_id] = OFFSET_MAX
        return CorrectionOffsets(correction_offsets=slowest)

    # --- of queues --------------------------------------------------------------------------------------------

    def search(self, request: Request) -> Response:
        """Logical offset of the first message from a time on, or the last one up to it (UPPER)."""
        header: SearchOffsetHeader = request.header
        boundary = header.boundary_type.upper()
        if boundary not in ("LOWER", "UPPER"):
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, f"boundaryType {boundary[:40]!r} is neither LOWER nor UPPER"
            )
        offset = 0
        if self._has_queue(header.topic, header.queue_id):
            offset = self._services.store.offset_by_time(
                header.topic, header.queue_id, header.timestamp, boundary == "UPPER"
            )
        return Response(ext={"offset": str(max(0, offset))})

    def max_offset(self, request: Request) -> Response:
        """One past the last logical offset of a queue."""
        header: QueueHeader = request.header
        return Response(ext={"offset": str(self._services.store.max_offset(header.topic, header.queue_id))})

    def min_offset(self, request: Request) -> Response:
        """First readable logical offset of a queue."""
        header: QueueHeader = request.header
        return Response(ext={"offset": str(self._services.store.min_offset(header.topic, header.queue_id))})

    def earliest_time(self, request: Request) -> Response:
        """Store time of a queue's first message, ms; -1 without one."""
        header: QueueHeader = request.header
        time_ms = self._services.store.earliest_time(header.topic, header.queue_id)
        return Response(ext={"timestamp": str(time_ms)})

    def _has_queue(self, topic: str, queue_id: int) -> bool:
        config: TopicConfig | None = self._services.topics.get(topic)
        return config is not None and 0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums)

    # --- whole tables, for replicas ---------------------------------------------------------------------------

    def all_consumer_offsets(self, request: Request) -> None:
        """Every group's offsets."""
        answer_in_slices(request, self._services.offsets.to_json())

    async def all_delay_offsets(self, _: Request) -> Response:
        """How far each delay level is, from its file; SYSTEM_ERROR when there is none."""
        try:
            content = await self._services.files.read("delayOffset.json")
            if content is not None:
                return answer(bodies.convert(content, AllDelayOffsets))
        except (CorruptStore, FormatError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"delayOffset.json: {error}") from error
        raise RequestError(ResponseCode.SYSTEM_ERROR, "delayOffset.json does not exist: no delay level moved")
