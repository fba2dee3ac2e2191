"""Where groups and queues stand.

    14 QUERY_CONSUMER_OFFSET   15 UPDATE_CONSUMER_OFFSET   29 SEARCH_OFFSET_BY_TIMESTAMP
    30 GET_MAX_OFFSET   31 GET_MIN_OFFSET   32 GET_EARLIEST_MSG_STORETIME
    43 GET_ALL_CONSUMER_OFFSET   45 GET_ALL_DELAY_OFFSET   308 QUERY_CORRECTION_OFFSET

A queue that does not exist has the offsets 0 and no earliest message (-1), as clients expect of a young topic.
"""

from aerobee_broker.catalog.consumer_offsets import ConsumerOffsets
from aerobee_broker.messages.lookup import Lookup
from aerobee_broker.messages.progress import Progress
from aerobee_broker.remoting_api.request_bodies import answer
from aerobee_broker.settings.config_files import ConfigFiles
from aerobee_proto import bodies
from aerobee_proto.bodies import AllDelayOffsets, CorrectionOffsets
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import FormatError, RequestError
from aerobee_proto.headers import (
    CorrectionOffsetHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from aerobee_proto.names import GroupQueue
from aerobee_proto.requests import NoFields
from aerobee_remoting.exchange.answers import answer_in_slices
from aerobee_remoting.exchange.handlers import HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import GET, SUB, UPDATE, on_cluster, on_group, on_groups, on_topic, ours
from aerobee_service.turns.slices import Steps
from aerobee_store.faults.errors import CorruptStore

__all__ = ["OffsetHandlers"]


class OffsetHandlers:
    """Handlers of the codes above."""

    def __init__(
        self,
        progress: Progress,
        lookup: Lookup,
        *,
        offsets: ConsumerOffsets,
        files: ConfigFiles,
    ) -> None:
        self._offsets = offsets
        self._files = files
        self._progress = progress
        self._lookup = lookup

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        add, code = table.register, RequestCode
        of_topic = (on_topic("topic", GET),)
        add(
            code.QUERY_CONSUMER_OFFSET,
            self.query,
            header=QueryConsumerOffsetHeader,
            needs=(on_topic("topic", SUB, GET, of_retry=()), on_group("consumer_group", SUB, GET)),
            overtakes=True,
        )
        add(
            code.UPDATE_CONSUMER_OFFSET,
            self.update,
            header=UpdateConsumerOffsetHeader,
            needs=(on_topic("topic", SUB, UPDATE, of_retry=()), on_group("consumer_group", SUB, UPDATE)),
            overtakes=True,
        )
        add(code.SEARCH_OFFSET_BY_TIMESTAMP, self.search, header=SearchOffsetHeader, needs=of_topic)
        add(code.GET_MAX_OFFSET, self.max_offset, header=QueueHeader, needs=of_topic)
        add(code.GET_MIN_OFFSET, self.min_offset, header=QueueHeader, needs=of_topic)
        add(code.GET_EARLIEST_MSG_STORETIME, self.earliest_time, header=QueueHeader, needs=of_topic)
        add(
            code.QUERY_CORRECTION_OFFSET,
            self.corrections,
            header=CorrectionOffsetHeader,
            needs=(
                on_groups("filter_groups", ",", GET),
                on_group("compare_group", GET),
                on_topic("topic", GET),
            ),
        )
        add(code.GET_ALL_CONSUMER_OFFSET, self.all_consumer_offsets, needs=(ours(on_cluster(GET)),))
        add(code.GET_ALL_DELAY_OFFSET, self.all_delay_offsets, needs=(ours(on_cluster(GET)),))

    # --- of groups --------------------------------------------------------------------------------------------

    def query(self, request: Request[QueryConsumerOffsetHeader]) -> Response:
        """The offset that a group committed, or that it should start with; QUERY_NOT_FOUND without either."""
        header: QueryConsumerOffsetHeader = request.header
        queue = GroupQueue(header.consumer_group, header.topic, header.queue_id)
        offset = self._progress.committed(queue, zero_allowed=header.set_zero_if_not_found)
        return Response(ext={"offset": str(offset)})

    def update(self, request: Request[UpdateConsumerOffsetHeader]) -> Response:
        """Commit a group's offset; ignored while a reset is pending."""
        header: UpdateConsumerOffsetHeader = request.header
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
        self._progress.commit(GroupQueue(group, topic, queue_id), offset)
        return Response()

    def corrections(self, request: Request[CorrectionOffsetHeader]) -> None:
        """How far the slowest group is in each queue; the largest number where that is ahead of compareGroup."""
        answer_in_slices(request, self._corrections(request.header))

    def _corrections(self, header: CorrectionOffsetHeader) -> Steps[CorrectionOffsets]:
        left_out = {name.strip() for name in (header.filter_groups or "").split(",")}
        offsets = yield from self._progress.corrections(
            header.topic, compared_group=header.compare_group, without=left_out
        )
        return CorrectionOffsets(correction_offsets=offsets)

    # --- of queues --------------------------------------------------------------------------------------------

    def search(self, request: Request[SearchOffsetHeader]) -> Response:
        """Queue offset of the first message from a time on, or the last one up to it (UPPER)."""
        header: SearchOffsetHeader = request.header
        boundary = header.boundary_type.upper()
        if boundary not in ("LOWER", "UPPER"):
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, f"boundaryType {boundary[:40]!r} is neither LOWER nor UPPER"
            )
        offset = self._lookup.by_time(
            header.topic, header.queue_id, header.timestamp, upper=boundary == "UPPER"
        )
        return Response(ext={"offset": str(offset)})

    def max_offset(self, request: Request[QueueHeader]) -> Response:
        """One past the last queue offset of a queue."""
        header: QueueHeader = request.header
        _, end = self._lookup.ends(header.topic, header.queue_id)
        return Response(ext={"offset": str(end)})

    def min_offset(self, request: Request[QueueHeader]) -> Response:
        """First readable queue offset of a queue."""
        header: QueueHeader = request.header
        first, _ = self._lookup.ends(header.topic, header.queue_id)
        return Response(ext={"offset": str(first)})

    def earliest_time(self, request: Request[QueueHeader]) -> Response:
        """Store time of a queue's first message, ms; -1 without one."""
        header: QueueHeader = request.header
        time_ms = self._lookup.earliest_time(header.topic, header.queue_id)
        return Response(ext={"timestamp": str(time_ms)})

    # --- whole tables, for replicas ---------------------------------------------------------------------------

    def all_consumer_offsets(self, request: Request[NoFields]) -> None:
        """Every group's offsets."""
        answer_in_slices(request, self._offsets.to_json())

    async def all_delay_offsets(self, _: Request[NoFields]) -> Response:
        """How far each delay level is, from its file; SYSTEM_ERROR when there is none."""
        try:
            content = await self._files.read("delayOffset.json")
            if content is not None:
                return answer(bodies.convert(content, AllDelayOffsets))
        except (CorruptStore, FormatError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"delayOffset.json: {error}") from error
        raise RequestError(ResponseCode.SYSTEM_ERROR, "delayOffset.json does not exist: no delay level moved")
