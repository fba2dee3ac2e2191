"""Acknowledgements of popped messages on the wire, taken and answered for by `Acknowledging`.

    200051 ACK_MESSAGE   200151 BATCH_ACK_MESSAGE   200053 CHANGE_MESSAGE_INVISIBLETIME

Touches  connections to answer on.
"""

from base64 import b64decode
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec

from aerobee_broker.pop.acknowledging import Acknowledging
from aerobee_broker.pop.checkpoints import Key
from aerobee_broker.pop.extra_info import parse_extra_info, real_topic
from aerobee_proto.bodies import Int, JsonBody, Long
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.headers import AckMessageHeader, ChangeInvisibleTimeHeader
from aerobee_proto.names import GroupQueue
from aerobee_proto.requests import NoFields
from aerobee_remoting.exchange.handlers import AnyRequest, HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import SUB, on_group, on_groups_in, on_topic, on_topics_in, ours

__all__ = ["AckHandlers"]

BATCH_ACKS_MAX: Final = 4096
BATCH_BODY_SIZE_MAX: Final = 256 * 1024
BITS_SIZE_MAX: Final = 1024  # bytes of one bit set
# Acknowledgements that are taken in one turn; a check-point counts as CHECK_POINT_COST.
SLICE_MAX: Final = 2048
CHECK_POINT_COST: Final = 8
DONE: Final = Response()  # one for all: acknowledgements come in thousands
_BITS_OF: Final = tuple(tuple(i for i in range(8) if byte >> i & 1) for byte in range(256))


class _Ack(JsonBody):
    """Acknowledgements of one check-point in a batch; `b` has bit i for the message at so + i."""

    b: str | list[Int] = ""
    c: str = ""
    it: Long = 0
    pt: Long = 0
    q: Int = 0
    r: str = "0"
    rq: Int = 0
    so: Long = 0
    t: str = ""


class _BatchAckBody(JsonBody):
    acks: list[_Ack] = msgspec.field(default_factory=list)
    broker_name: str | None = None


class AckHandlers:
    """Handlers of the codes above."""

    def __init__(self, acknowledging: Acknowledging) -> None:
        self._acknowledging = acknowledging

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        add, needs = table.register, (on_group("consumer_group", SUB), on_topic("topic", SUB))
        add(RequestCode.ACK_MESSAGE, self.ack, header=AckMessageHeader, needs=needs)
        add(
            RequestCode.BATCH_ACK_MESSAGE,
            self.batch_ack,
            needs=(
                ours(on_groups_in(_BatchAckBody, lambda body: {ack.c for ack in body.acks}, SUB)),
                ours(on_topics_in(_BatchAckBody, lambda body: {ack.t for ack in body.acks}, SUB)),
            ),
            body_size_max=BATCH_BODY_SIZE_MAX,
        )
        add(
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
            self.change,
            header=ChangeInvisibleTimeHeader,
            needs=needs,
        )

    def ack(self, request: Request[AckMessageHeader]) -> Response | None:
        """Acknowledge one message."""
        header = request.header
        popped = parse_extra_info(header.extra_info)
        self._acknowledging.ack(_queue_of(header), header.offset, popped)
        self._answer_later(request)
        return None

    def batch_ack(self, request: Request[NoFields]) -> Response | None:
        """Acknowledge many messages, of any topics."""
        body = request.read(_BatchAckBody) if request.body else _BatchAckBody()
        if not body.acks:
            raise RequestError(ResponseCode.NO_MESSAGE, "the batch has no acknowledgements")
        if len(body.acks) > BATCH_ACKS_MAX:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"{len(body.acks)} check-points in one batch, at most {BATCH_ACKS_MAX} are allowed",
            )
        if sum([_cost(ack) for ack in body.acks]) > SLICE_MAX:
            request.connection.run_alone(
                lambda: self._take_in_turns(request, body.acks), request.working_size()
            )
            return None
        refused = self._take_some(body.acks)
        if refused is None:
            self._answer_later(request)
            return None
        return _refusal(refused)  # the others count all the same

    async def change(self, request: Request[ChangeInvisibleTimeHeader]) -> Response:
        """Let a message be visible again at another time, counted from now."""
        header = request.header
        popped = parse_extra_info(header.extra_info)
        changed = await self._acknowledging.change(
            _queue_of(header), header.offset, popped, invisible_ms=header.invisible_time
        )
        return Response(
            ext={
                "popTime": str(changed.pop_time),
                "invisibleTime": str(changed.invisible_ms),
                "reviveQid": str(changed.revive_queue),
            }
        )

    # --- batches ----------------------------------------------------------------------------------------------

    async def _take_in_turns(self, request: AnyRequest, acks: Sequence[_Ack]) -> None:
        """As at once, for very many: each slice is written by itself, and others are served in between."""
        refused: RequestError | None = None
        for some in _slices(acks):
            refused = self._take_some(some) or refused
            await request.connection.another_turn()
        if refused is None:
            self._answer_later(request)
        else:
            request.respond(_refusal(refused))

    def _take_some(self, acks: Iterable[_Ack]) -> RequestError | None:
        """Take the acknowledgements of some check-points; why the last one that was refused was."""
        refused: RequestError | None = None
        for ack in acks:
            try:
                key = Key(ack.c, real_topic(ack.c, ack.t, ack.r), ack.q, ack.so, ack.pt)
                self._acknowledging.ack_many(key, _offsets(ack), revive_queue=ack.rq, invisible_ms=ack.it)
            except RequestError as error:
                refused = error
        return refused

    # --- answers ----------------------------------------------------------------------------------------------

    def _answer_later(self, request: AnyRequest) -> None:
        """Answer when everything that is noted now is durable."""
        request.connection.hold(1)
        request.shed()
        self._acknowledging.when_durable(partial(_answer, request))


def _answer(request: AnyRequest, refused: RequestError | None) -> None:
    request.connection.hold(-1)
    request.respond(DONE if refused is None else _refusal(refused))


def _refusal(refused: RequestError) -> Response:
    return Response(refused.code, refused.remark)


def _queue_of(header: AckMessageHeader | ChangeInvisibleTimeHeader) -> GroupQueue:
    return GroupQueue(header.consumer_group, header.topic, header.queue_id)


def _cost(ack: _Ack) -> int:
    """How much work one check-point of a batch can be: its bits, and what it takes by itself."""
    bits = len(ack.b) * (6 if isinstance(ack.b, str) else 8)
    return CHECK_POINT_COST + min(bits, 8 * BITS_SIZE_MAX)


def _slices(acks: Sequence[_Ack]) -> Iterator[list[_Ack]]:
    """The check-points of a batch, as many at once as one turn may take; always one."""
    some: list[_Ack] = []
    cost = 0
    for ack in acks:
        more = _cost(ack)
        if some and cost + more > SLICE_MAX:
            yield some
            some, cost = [], 0
        some.append(ack)
        cost += more
    yield some


def _offsets(ack: _Ack) -> Iterator[int]:
    """The offsets whose bits are set. RequestError, when they are looked at: the bit set is none."""
    start = ack.so
    for at, byte in enumerate(_bits(ack.b)):
        for i in _BITS_OF[byte]:
            yield start + 8 * at + i


def _bits(value: str | list[int]) -> bytes:
    """A bit set, lowest byte first, as fastjson writes bytes: base64, or numbers. RequestError: it is none."""
    try:
        raw = b64decode(value, validate=True) if isinstance(value, str) else bytes(b & 0xFF for b in value)
    except ValueError as error:
        raise RequestError(ResponseCode.INVALID_PARAMETER, f"bit set of acknowledgements: {error}") from error
    if len(raw) > BITS_SIZE_MAX:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"bit set of {len(raw)} bytes, at most {BITS_SIZE_MAX} are allowed",
        )
    return raw
