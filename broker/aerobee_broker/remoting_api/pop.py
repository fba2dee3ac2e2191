"""POP on the wire, read and answered for by `Popping`.

    200050 POP_MESSAGE   200052 PEEK_MESSAGE   200054 NOTIFICATION   200055 POLLING_INFO

Touches  connections to answer on.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from aerobee_broker.messages.values import Failed
from aerobee_broker.pop.extra_info import message_offsets, order_count, start_offset
from aerobee_broker.pop.popping import Popping
from aerobee_broker.pop.values import (
    ALL_QUEUES,
    Found,
    Nothing,
    Notice,
    NoticeQuery,
    Outcome,
    PopQuery,
    QueuePart,
)
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import LimitReached
from aerobee_proto.headers import (
    NotificationHeader,
    PeekMessageHeader,
    PollingInfoHeader,
    PopMessageHeader,
)
from aerobee_proto.names import GroupQueue
from aerobee_remoting.exchange.handlers import HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import GET, SUB, on_group, on_topic

__all__ = ["POP_CODES", "PopHandlers"]

# With acknowledgements: all that asks for what was handed out by POP, or is to be.
POP_CODES: Final = frozenset(
    {
        RequestCode.POP_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
    }
)
FROM_MIN: Final = 0  # initMode; whatever else is asked for is the last message, as in RocketMQ

PopHeader = PopMessageHeader | PeekMessageHeader | NotificationHeader | PollingInfoHeader
Asked = Request[PopMessageHeader] | Request[NotificationHeader]


class PopHandlers:
    """Handlers of the codes above."""

    def __init__(self, popping: Popping) -> None:
        self._popping = popping

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        add, needs = table.register, (on_group("consumer_group", SUB), on_topic("topic", SUB))
        add(RequestCode.POP_MESSAGE, self.pop, header=PopMessageHeader, needs=needs)
        # In this order RocketMQ names what is refused.
        add(RequestCode.PEEK_MESSAGE, self.peek, header=PeekMessageHeader, needs=needs[::-1])
        add(RequestCode.NOTIFICATION, self.notification, header=NotificationHeader, needs=needs)
        add(
            RequestCode.POLLING_INFO,
            self.polling_info,
            header=PollingInfoHeader,
            needs=(on_group("consumer_group", GET), on_topic("topic", GET)),
        )

    def pop(self, request: Request[PopMessageHeader]) -> Response | None:
        """Hand out messages, or wait for some."""
        header = request.header
        query = PopQuery(
            place=_place(header),
            count=header.max_msg_nums,
            invisible_ms=header.invisible_time,
            born_ms=header.born_time,
            wait_ms=header.poll_time,
            from_first=header.init_mode == FROM_MIN,
            in_order=header.order,
            attempt_id=header.attempt_id,
            expression=header.exp,
            expression_type=header.exp_type,
        )
        outcome = self._popping.pop(query, request.connection, partial(_answer_pop, request))
        if outcome is not None:
            return _encode_pop(request, outcome)
        request.shed()
        header.exp = header.exp_type = None  # the filter is compiled
        return None

    def peek(self, request: Request[PeekMessageHeader]) -> Response:
        """Show the group's next messages without handing them out."""
        header = request.header
        peeked = self._popping.peek(_place(header), header.max_msg_nums)
        code = ResponseCode.SUCCESS if peeked.count else ResponseCode.PULL_NOT_FOUND
        ext = _ext(pop_time=0, invisible_ms=0, revive_queue=0, rest=peeked.rest)
        remark = "FOUND" if peeked.count else "NO_MESSAGE_IN_QUEUE"
        return Response(code, remark, ext=ext, body=b"".join(peeked.records))

    def notification(self, request: Request[NotificationHeader]) -> Response | None:
        """Tell when there are messages for the group."""
        header = request.header
        query = NoticeQuery(
            place=_place(header),
            born_ms=header.born_time,
            wait_ms=header.poll_time,
            in_order=header.order,
            attempt_id=header.attempt_id,
        )
        outcome = self._popping.notice(query, request.connection, partial(_answer_notice, request))
        if outcome is not None:
            return _encode_notice(request, outcome)
        request.shed()
        return None

    def polling_info(self, request: Request[PollingInfoHeader]) -> Response:
        """How many pops wait in a queue."""
        return Response(ext={"pollingNum": str(self._popping.waiting_at(_place(request.header)))})


def _place(header: PopHeader) -> GroupQueue:
    return GroupQueue(header.consumer_group, header.topic, max(header.queue_id, ALL_QUEUES))


# --- answers ------------------------------------------------------------------------------------------------------


def _answer_pop(request: Request[PopMessageHeader], outcome: Outcome) -> None:
    if isinstance(outcome, Failed):
        request.fail(outcome.error)
    elif not isinstance(outcome, Notice):
        request.respond(_encode_pop(request, outcome))


def _answer_notice(request: Request[NotificationHeader], outcome: Outcome) -> None:
    if isinstance(outcome, Failed):
        request.fail(outcome.error)
    elif isinstance(outcome, Notice):
        request.respond(_encode_notice(request, outcome))


def _log_limit(request: Asked, reached: LimitReached | None) -> None:
    if reached is not None:
        request.connection.log_limit(reached.limit, reached.remark)


def _encode_notice(request: Request[NotificationHeader], notice: Notice) -> Response:
    _log_limit(request, notice.limit)
    return Response(
        ext={
            "hasMsg": "true" if notice.has_messages else "false",
            "pollingFull": "true" if notice.is_full else "false",
        }
    )


def _encode_pop(request: Request[PopMessageHeader], outcome: Found | Nothing) -> Response:
    invisible_ms = request.header.invisible_time
    if isinstance(outcome, Nothing):
        _log_limit(request, outcome.limit)
        code = ResponseCode.POLLING_FULL if outcome.is_full else ResponseCode.POLLING_TIMEOUT
        ext = _ext(pop_time=outcome.now_ms, invisible_ms=invisible_ms, revive_queue=0, rest=outcome.rest)
        return Response(code, outcome.reason, ext=ext)
    ext = _ext(
        pop_time=outcome.pop_time,
        invisible_ms=invisible_ms,
        revive_queue=outcome.revive_queue,
        rest=outcome.rest,
    )
    parts = outcome.parts
    ext["startOffsetInfo"] = ";".join(
        [start_offset(part.queue.topic, part.queue.queue_id, part.start_offset) for part in parts]
    )
    ext["msgOffsetInfo"] = ";".join(
        [message_offsets(part.queue.topic, part.queue.queue_id, part.offsets) for part in parts]
    )
    counts = _order_counts(parts)
    if counts:
        ext["orderCountInfo"] = ";".join(counts)
    return Response(ResponseCode.SUCCESS, "FOUND", ext=ext, body=b"".join(outcome.records))


def _ext(*, pop_time: int, invisible_ms: int, revive_queue: int, rest: int) -> dict[str, str]:
    return {
        "popTime": str(pop_time),
        "invisibleTime": str(invisible_ms),
        "reviveQid": str(revive_queue),
        "restNum": str(rest),
    }


def _order_counts(parts: Sequence[QueuePart]) -> list[str]:
    """How often the messages of ordered queues were handed out before: where that is not 0, and the least of each."""
    reported: list[str] = []
    for part in parts:
        if part.counts is None:
            continue
        _, topic, queue_id = part.queue
        reported += [order_count(topic, queue_id, offset, count) for offset, count in part.counts.items()]
        least = min(part.counts.values()) if len(part.counts) == len(part.offsets) else 0
        reported.append(order_count(topic, queue_id, None, least))
    return reported
