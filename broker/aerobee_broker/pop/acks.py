"""Acknowledgements of popped messages, and more time for them.

    200051 ACK_MESSAGE   200151 BATCH_ACK_MESSAGE   200053 CHANGE_MESSAGE_INVISIBLETIME

An answer of success means that the acknowledgement is as durable as a send: the message does not come back. All
acknowledgements that arrive in one turn of the event loop share one append and one wait for the disk, and those of
the same check-point share a record.

    acknowledgement of                                             answer
    a message that is waited for                                   0, when it is durable
    one acknowledged before, or given back to the group already    0
    an offset outside the queue                                    208 NO_MESSAGE
    a queue read in order, not of its last pop                     13 MESSAGE_ILLEGAL

Invariants
- Nothing is written for acknowledgements that change nothing.
"""

import asyncio
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from aerobee_broker.pop.checkpoints import CheckPoint, Key, PopQueue
from aerobee_broker.pop.extra_info import ORDERED, PopInfo, parse_extra_info, real_topic
from aerobee_broker.pop.ledger import Ledger
from aerobee_broker.pop.orderly import OrderTable
from aerobee_broker.pop.revive_log import Position
from aerobee_broker.refusals import no_such_queue
from aerobee_broker.request_bodies import read_body
from aerobee_broker.services import Services
from aerobee_proto.bodies import Int, JsonBody, Long
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.headers import AckMessageHeader, ChangeInvisibleTimeHeader
from aerobee_remoting.handlers import HandlerTable, Permission, Request, Response
from aerobee_store.errors import StoreError
from aerobee_store.messages import NewMessage

__all__ = ["INVISIBLE_MS_MAX", "AckHandlers"]

INVISIBLE_MS_MAX: Final = 259_200_000  # three days, as far as RocketMQ's timer goes
BATCH_ACKS_MAX: Final = 4096
BATCH_BODY_SIZE_MAX: Final = 256 * 1024
BITS_SIZE_MAX: Final = 1024  # bytes of one bit set
# Acknowledgements that are taken in one turn; a check-point counts as CHECK_POINT_COST.
SLICE_MAX: Final = 2048
CHECK_POINT_COST: Final = 8
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


class _Pending:
    """Acknowledgements of one check-point that wait to be written."""

    __slots__ = ("deliver_ms", "offsets", "revive_queue")

    def __init__(self, revive_queue: int, deliver_ms: int) -> None:
        self.revive_queue = revive_queue
        self.deliver_ms = deliver_ms
        self.offsets: list[int] = []


class AckHandlers:
    """Handlers of the codes above. `on_release` is told of queues that may be popped again, in order."""

    def __init__(self, services: Services, ledger: Ledger, orders: OrderTable) -> None:
        self._services = services
        self._ledger = ledger
        self._orders = orders
        self._pending: dict[Key, _Pending] = {}
        self._positions: dict[PopQueue, int] = {}
        self._waiting: list[Request] = []
        self._is_scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.on_release: Callable[[PopQueue], None] = lambda queue: None
        self.acknowledged = 0

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        add, subscribe = table.register, Permission.SUBSCRIBE
        add(RequestCode.ACK_MESSAGE, self.ack, permission=subscribe, header=AckMessageHeader)
        add(
            RequestCode.BATCH_ACK_MESSAGE,
            self.batch_ack,
            permission=subscribe,
            body_size_max=BATCH_BODY_SIZE_MAX,
        )
        add(
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
            self.change,
            permission=subscribe,
            header=ChangeInvisibleTimeHeader,
        )

    # --- acknowledging ----------------------------------------------------------------------------------------

    def ack(self, request: Request) -> Response | None:
        """Acknowledge one message."""
        header: AckMessageHeader = request.header
        topic, queue_id = header.topic, header.queue_id
        info = parse_extra_info(header.extra_info)
        self._check_message(topic, queue_id, header.offset, last_allowed=1)
        queue = (topic, header.consumer_group, queue_id)
        if info.revive_queue == ORDERED:
            self._ack_ordered(queue, header.offset, info.pop_time)
        else:
            key = Key(*queue, info.start_offset, info.pop_time)
            self._take(key, [header.offset], info.revive_queue, info.invisible_ms)
        self._answer_later(request)
        return None

    def batch_ack(self, request: Request) -> Response | None:
        """Acknowledge many messages, of any topics."""
        body = read_body(request, _BatchAckBody) if request.body else _BatchAckBody()
        if not body.acks:
            raise RequestError(ResponseCode.NO_MESSAGE, "the batch has no acknowledgements")
        if len(body.acks) > BATCH_ACKS_MAX:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"{len(body.acks)} check-points in one batch, at most {BATCH_ACKS_MAX} are allowed",
            )
        if sum([_cost(ack) for ack in body.acks]) > SLICE_MAX:
            request.connection.run_alone(lambda: self._take_in_turns(request, body.acks))
            return None
        refused = self._take_some(body.acks)
        if refused is None:
            self._answer_later(request)
            return None
        self._write_soon()  # the others count all the same
        return Response(refused.code, refused.remark)

    async def _take_in_turns(self, request: Request, acks: Sequence[_Ack]) -> None:
        """As at once, for very many: each slice is written by itself, and others are served in between."""
        refused: RequestError | None = None
        for some in _slices(acks):
            refused = self._take_some(some) or refused
            self._write_soon()
            await asyncio.sleep(0)
        if refused is None:
            self._answer_later(request)
        else:
            request.respond(Response(refused.code, refused.remark))

    def _take_some(self, acks: Iterable[_Ack]) -> RequestError | None:
        """Take the acknowledgements of some check-points; why the last one that was refused was."""
        refused: RequestError | None = None
        for ack in acks:
            try:
                self._take_many(ack)
            except RequestError as error:
                refused = error
        return refused

    def _take_many(self, ack: _Ack) -> None:
        topic = real_topic(ack.t, ack.c, ack.r)
        found = self._services.store.readable_range(topic, ack.q)
        if found is None:
            return
        low, high = found
        offsets = [offset for offset in _offsets(ack.so, _bits(ack.b)) if low <= offset <= high]
        queue = (topic, ack.c, ack.q)
        if ack.rq == ORDERED:
            for offset in offsets:
                self._ack_ordered(queue, offset, ack.pt)
        elif offsets:
            self._take(Key(*queue, ack.so, ack.pt), offsets, ack.rq, ack.it)

    def _take(self, key: Key, offsets: list[int], revive_queue: int, invisible_ms: int) -> None:
        """Note what has to be written for acknowledgements."""
        table = self._ledger.table
        point = table.get(key)
        deliver_ms = key.pop_time + invisible_ms
        if point is not None:
            offsets = table.news(point, offsets)
            revive_queue, deliver_ms = point.revive_queue, key.pop_time + point.invisible_ms
        elif not self._may_be_early(key, revive_queue, invisible_ms):
            return  # it is done with, or the messages went back to the group
        if not offsets:
            return
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = _Pending(revive_queue, deliver_ms)
        pending.offsets += offsets

    def _may_be_early(self, key: Key, revive_queue: int, invisible_ms: int) -> bool:
        """Whether an unknown check-point may still come out of another broker's timer.

        RequestError: there cannot be one like that, or there is no room for more acknowledgements of such.
        """
        if not (0 <= revive_queue < self._ledger.log.queue_count and 0 <= invisible_ms <= INVISIBLE_MS_MAX):
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"no check-point of this broker has revive queue {revive_queue} and {invisible_ms} ms",
            )
        ended = key.pop_time + invisible_ms <= self._services.clock()
        if ended or key.pop_time >= self._ledger.started_ms:
            return False
        if not self._ledger.table.may_remember(key):
            raise RequestError(ResponseCode.SYSTEM_BUSY, "too many acknowledgements of unknown check-points")
        return True

    def _ack_ordered(self, queue: PopQueue, offset: int, pop_time: int) -> None:
        """Acknowledge a message of a queue that is read in order. RequestError: it is not of the last pop."""
        topic, group, queue_id = queue
        stored = self._services.offsets.get(group, topic, queue_id)
        if stored is not None and offset < stored:
            return
        try:
            following = self._orders.ack(queue, offset, pop_time)
        except LookupError as error:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL, f"queue {queue_id} of {topic}: {error}"
            ) from error
        if following is None:
            return
        if following != stored and self._services.offsets.commit(group, topic, queue_id, following):
            self._positions[queue] = following
        if not self._orders.is_blocked(queue, None):
            self.on_release(queue)

    # --- writing ----------------------------------------------------------------------------------------------

    def _answer_later(self, request: Request) -> None:
        """Answer when everything that is noted now is durable."""
        self._write_soon()
        request.connection.hold(1)
        request.shed()
        self._waiting.append(request)

    def _write_soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        """Append what was noted in this turn, and answer once it is durable."""
        self._is_scheduled = False
        waiting, self._waiting = self._waiting, []
        pending, self._pending = self._pending, {}
        positions, self._positions = self._positions, {}
        try:
            if pending or positions:
                self._append(pending, positions)
        except RequestError as refused:
            self._respond(waiting, Response(refused.code, refused.remark))
            return
        if not waiting:
            return
        task = asyncio.create_task(self._settle(waiting), name="acknowledgements")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _append(self, pending: dict[Key, _Pending], positions: dict[PopQueue, int]) -> None:
        ledger, now_ms = self._ledger, self._services.clock()
        messages = [
            ledger.log.acks(
                key, one.offsets, revive_queue=one.revive_queue, deliver_ms=one.deliver_ms, now_ms=now_ms
            )
            for key, one in pending.items()
        ]
        messages += [
            ledger.log.position(Position(*queue, offset, is_forced=False), now_ms)
            for queue, offset in positions.items()
        ]
        places = ledger.log.append(messages)
        for (key, one), place in zip(pending.items(), places, strict=False):
            if ledger.table.ack(key, one.offsets) is None:
                ledger.remember(key, one.offsets, one.revive_queue, place, one.deliver_ms)
            self.acknowledged += len(one.offsets)

    async def _settle(self, waiting: list[Request]) -> None:
        answer = Response()
        try:
            await self._services.writer.durable()
        except StoreError as failed:
            answer = Response(ResponseCode.SERVICE_NOT_AVAILABLE, str(failed))
        self._respond(waiting, answer)

    @staticmethod
    def _respond(waiting: list[Request], answer: Response) -> None:
        for request in waiting:
            request.connection.hold(-1)
            request.respond(answer)

    async def close(self) -> None:
        """Wait for the answers that are on their way."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- more time --------------------------------------------------------------------------------------------

    async def change(self, request: Request) -> Response:
        """Let a message be visible again at another time, counted from now."""
        header: ChangeInvisibleTimeHeader = request.header
        info = parse_extra_info(header.extra_info)
        self._check_message(header.topic, header.queue_id, header.offset, last_allowed=0)
        if not 0 <= header.invisible_time <= INVISIBLE_MS_MAX:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime {header.invisible_time} is not within 0 to {INVISIBLE_MS_MAX} ms",
            )
        if info.revive_queue == ORDERED:
            return self._change_ordered(header, info)
        pop_time = self._replace(header, info)
        await self._services.writer.durable()
        return _changed(pop_time, header.invisible_time, info.revive_queue)

    def _change_ordered(self, header: ChangeInvisibleTimeHeader, info: PopInfo) -> Response:
        queue = (header.topic, header.consumer_group, header.queue_id)
        visible_ms = self._services.clock() + header.invisible_time
        self._orders.change_visibility(queue, header.offset, info.pop_time, visible_ms)
        if not self._orders.is_blocked(queue, None):
            self.on_release(queue)
        return _changed(info.pop_time, visible_ms - info.pop_time, ORDERED)

    def _replace(self, header: ChangeInvisibleTimeHeader, info: PopInfo) -> int:
        """A check-point of its own for the message, and an acknowledgement in its old one; the new pop time."""
        ledger, table, now_ms = self._ledger, self._ledger.table, self._services.clock()
        queue = (header.topic, header.consumer_group, header.queue_id)
        old = Key(*queue, info.start_offset, info.pop_time)
        point = table.get(old)
        revive_queue, deliver_ms = info.revive_queue, info.pop_time + info.invisible_ms
        if point is not None:
            revive_queue = point.revive_queue
            owed = bool(table.news(point, [header.offset]))
        else:
            owed = self._may_be_early(old, revive_queue, info.invisible_ms)
        if not owed:
            raise RequestError(
                ResponseCode.NO_MESSAGE,
                f"message {header.offset} of queue {header.queue_id} of topic {header.topic}"
                " is acknowledged, or its time is over",
            )
        new = Key(*queue, header.offset, now_ms)
        while new in table or new == old:
            new = new._replace(pop_time=new.pop_time + 1)
        made = CheckPoint(
            new,
            [header.offset],
            invisible_ms=header.invisible_time,
            revive_queue=revive_queue,
            revive_offset=0,
        )
        messages: list[NewMessage] = [
            ledger.log.check_point(made, now_ms),
            ledger.log.acks(
                old, [header.offset], revive_queue=revive_queue, deliver_ms=deliver_ms, now_ms=now_ms
            ),
        ]
        made.revive_offset, place = ledger.log.append(messages)
        table.add(made)
        if table.ack(old, [header.offset]) is None:
            ledger.remember(old, [header.offset], revive_queue, place, deliver_ms)
        return new.pop_time

    def _check_message(self, topic: str, queue_id: int, offset: int, *, last_allowed: int) -> None:
        """RequestError unless the topic has the queue and this offset lies in it."""
        services = self._services
        settings = services.topics.require(topic)
        if not 0 <= queue_id < settings.read_queue_nums:
            raise no_such_queue(topic, queue_id, settings.read_queue_nums, code=ResponseCode.MESSAGE_ILLEGAL)
        low, high = services.store.min_offset(topic, queue_id), services.store.max_offset(topic, queue_id)
        if not low <= offset < high + last_allowed:
            raise RequestError(
                ResponseCode.NO_MESSAGE,
                f"offset {offset} is not in queue {queue_id} of topic {topic}, which has {low} to {high - 1}",
            )


def _changed(pop_time: int, invisible_ms: int, revive_queue: int) -> Response:
    return Response(
        ext={
            "popTime": str(pop_time),
            "invisibleTime": str(invisible_ms),
            "reviveQid": str(revive_queue),
        }
    )


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


def _offsets(start: int, bits: bytes) -> list[int]:
    """The offsets whose bits are set, from `start` on."""
    return [start + 8 * at + i for at, byte in enumerate(bits) if byte for i in _BITS_OF[byte]]


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
