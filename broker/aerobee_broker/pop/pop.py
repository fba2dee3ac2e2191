"""Handing out messages: check, read, note what was handed out, answer or hold.

    200050 POP_MESSAGE   200052 PEEK_MESSAGE   200054 NOTIFICATION   200055 POLLING_INFO

A pop reads the group's next messages of one queue, or of all queues of the topic from a random one on; in one of
five pops the group's retry topics come first (popFromRetryProbability), otherwise last. What it found is invisible
to the group until the invisible time is over. The answer does not wait for the disk: messages whose check-point a
crash takes back were not moved past either, and are handed out again.

In a queue that is popped in order, the group's offset stays until messages are acknowledged, and nothing more is
handed out while any is invisible.

Invariants
- A check-point is in the log before its messages leave.
- One that is held is answered once: with messages, or when its time is over.
"""

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from struct import Struct
from typing import Any, Final

from aerobee_broker.each_turn import EachTurn
from aerobee_broker.filters import EVERYTHING, Filter, check_type
from aerobee_broker.pop.acks import INVISIBLE_MS_MAX
from aerobee_broker.pop.checkpoints import COUNT_MAX, CheckPoint, Key, PopQueue
from aerobee_broker.pop.extra_info import (
    ORDERED,
    PopInfo,
    extra_info,
    message_offsets,
    order_count,
    pop_retry_topic,
    retry_mark,
    start_offset,
)
from aerobee_broker.pop.held_pops import ALL_QUEUES, HeldPop, HeldPops
from aerobee_broker.pop.ledger import Ledger
from aerobee_broker.pop.orderly import OrderTable
from aerobee_broker.refusals import no_such_queue
from aerobee_broker.services import Services
from aerobee_proto import properties
from aerobee_proto.bodies import TopicConfig
from aerobee_proto.codes import Perm, RequestCode, ResponseCode
from aerobee_proto.errors import LimitReached, RequestError
from aerobee_proto.headers import (
    NotificationHeader,
    PeekMessageHeader,
    PollingInfoHeader,
    PopMessageHeader,
)
from aerobee_proto.names import INTERNAL_TOPIC_LENGTH_MAX, RETRY_PREFIX
from aerobee_proto.records import decode_records, encode_record
from aerobee_remoting.connection import Connection
from aerobee_remoting.handlers import HandlerTable, Permission, Request, Response
from aerobee_store.consume_queue import tags_of
from aerobee_store.errors import StoreError
from aerobee_store.get_message import GetResult, GetStatus

__all__ = ["PopHandlers"]

# A request that is so much older than its poll time is not worth an answer with messages.
LATE_MS: Final = 500
HOLD_MS_MAX: Final = 120_000
BODY_SIZE_MAX: Final = 4 << 20
SCANS_MAX: Final = 16  # reads of one queue that found nothing but filtered messages, in one pop
SERVED_MAX: Final = 64  # groups that are served in one turn of the event loop; a pop takes 150 us
MISSES_MAX: Final = 4  # of a group that were woken for nothing, then nobody else of it is
ATTEMPT_ID_CHARS_MAX: Final = 512
FROM_MIN: Final = 0  # initMode; whatever else is asked for is the last message, as in RocketMQ
QUEUE_OFFSET: Final = Struct(">i16xq")  # size and queue offset of a record
MISPLACED: Final = frozenset(
    {GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_FOUND_NULL}
)
PASSED_OVER: Final = MISPLACED | {GetStatus.NO_MATCHED_MESSAGE, GetStatus.MESSAGE_WAS_REMOVING}
CHECKSUMS: Final = ("__CRC32C", "__CRC32#")


class _Part:
    """What one pop found in one queue."""

    __slots__ = ("offset", "offsets", "queue", "result")

    def __init__(self, queue: PopQueue, offset: int, result: GetResult) -> None:
        self.queue = queue
        self.offset = offset  # where the read began
        self.result = result
        self.offsets = _offsets_of(result, offset)


class _Popped:
    """What one pop found in all: `rest` messages are left in the queues that it looked at."""

    __slots__ = ("count", "parts", "rest")

    def __init__(self) -> None:
        self.parts: list[_Part] = []
        self.count = 0
        self.rest = 0


class PopHandlers:
    """Handlers of the codes above, and the pops that are held."""

    def __init__(
        self,
        services: Services,
        ledger: Ledger,
        orders: OrderTable,
        *,
        dice: Callable[[int], int] = random.randrange,
    ) -> None:
        """`dice(n)` gives a number below n."""
        self._services = services
        self._ledger = ledger
        self._orders = orders
        self._dice = dice
        self._again: dict[HeldPop, None] = {}  # they found more to look at than one pop may
        self._is_noting = False
        # Tags that have come, for each group that waits for them.
        self._to_serve: dict[PopQueue, set[int]] = {}
        self._serving = EachTurn(self._serve_group, SERVED_MAX)
        self._ending = EachTurn(self._end, SERVED_MAX)
        self.held = HeldPops(
            count_max=lambda: services.config.max_pop_polling_size,
            place_max=lambda: services.config.pop_polling_size,
            is_gone=lambda owner: isinstance(owner, Connection) and owner.is_closed,
            memory=services.memory,
        )

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        add, subscribe = table.register, Permission.SUBSCRIBE
        add(RequestCode.POP_MESSAGE, self.pop, permission=subscribe, header=PopMessageHeader)
        add(RequestCode.PEEK_MESSAGE, self.peek, permission=subscribe, header=PeekMessageHeader)
        add(RequestCode.NOTIFICATION, self.notification, permission=subscribe, header=NotificationHeader)
        add(RequestCode.POLLING_INFO, self.polling_info, permission=subscribe, header=PollingInfoHeader)

    # --- requests ---------------------------------------------------------------------------------------------

    def pop(self, request: Request) -> Response | None:
        """Hand out messages, or wait for some."""
        header: PopMessageHeader = request.header
        now_ms = self._services.clock()
        born_ms = header.born_time or now_ms
        if now_ms > born_ms + header.poll_time + LATE_MS:
            return self._nothing(header, ResponseCode.POLLING_TIMEOUT, "the request came too late")
        self._check_pop(header)
        wanted = self._filter(header)
        if self._is_full():
            return self._nothing(
                header,
                ResponseCode.POLLING_FULL,
                f"{len(self._ledger.table)} check-points are outstanding (popCkMaxBufferSize)",
            )
        popped = self._pop(header, wanted)
        if popped.count:
            return self._found(header, popped)
        deadline_ms = min(born_ms, now_ms) + min(header.poll_time, HOLD_MS_MAX)
        if deadline_ms <= now_ms:
            return self._nothing(header, ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE", popped.rest)
        request.shed()
        header.exp = header.exp_type = None  # the filter is compiled
        held = HeldPop(request, _place(header), deadline_ms, wanted, is_notification=False)
        if not self._hold(held):
            return self._nothing(header, ResponseCode.POLLING_FULL, "too many pops are held", popped.rest)
        if popped.rest and not header.order:
            self._again[held] = None
        return None

    def _hold(self, held: HeldPop) -> bool:
        """Keep it waiting; False when there is no room, or no memory."""
        try:
            return self.held.hold(held)
        except LimitReached as full:
            held.request.connection.tell_limit(full.limit, full.remark)
            return False

    def peek(self, request: Request) -> Response:
        """Show the group's next messages without handing them out."""
        header: PeekMessageHeader = request.header
        self._check_count(header.max_msg_nums)
        topic = self._check(header)
        popped = _Popped()
        for queue in [*self._queues(topic, header), *self._retry_queues(header)]:
            offset = self._ledger.position(queue)
            if offset is None:
                offset = self._services.store.min_offset(queue[0], queue[2])
            result = self._read(queue, offset, header.max_msg_nums - popped.count, EVERYTHING)
            if result is not None and result.status in MISPLACED:
                result = self._read(queue, result.next_offset, header.max_msg_nums - popped.count, EVERYTHING)
            if result is not None:
                popped.rest += max(0, result.max_offset - result.next_offset)
                if result.count:
                    popped.parts.append(_Part(queue, offset, result))
                    popped.count += result.count
            if popped.count >= header.max_msg_nums:
                break
        self._count(header, popped)
        code = ResponseCode.SUCCESS if popped.count else ResponseCode.PULL_NOT_FOUND
        body = b"".join(piece for part in popped.parts for piece in part.result.body)
        ext = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": str(popped.rest)}
        return Response(code, "FOUND" if popped.count else "NO_MESSAGE_IN_QUEUE", ext=ext, body=body)

    def notification(self, request: Request) -> Response | None:
        """Tell when there are messages for the group."""
        header: NotificationHeader = request.header
        _check_attempt(header.attempt_id)
        self._check(header)
        if self._has_messages(header):
            return _notice(has_messages=True)
        now_ms = self._services.clock()
        deadline_ms = min(header.born_time or now_ms, now_ms) + min(header.poll_time, HOLD_MS_MAX)
        if deadline_ms <= now_ms:
            return _notice(has_messages=False)
        request.shed()
        held = HeldPop(request, _place(header), deadline_ms, EVERYTHING, is_notification=True)
        if self._hold(held):
            return None
        return _notice(has_messages=False, is_full=True)

    def polling_info(self, request: Request) -> Response:
        """How many pops wait in a queue."""
        header: PollingInfoHeader = request.header
        self._check(header)
        return Response(ext={"pollingNum": str(self.held.count_at(_place(header)))})

    # --- checks -----------------------------------------------------------------------------------------------

    def _check(self, header: Any) -> TopicConfig:
        """What all these requests have in common; the topic's settings. RequestError otherwise."""
        services = self._services
        if not services.config.broker_permission & Perm.READ:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"broker {services.config.broker_name} may not be read from"
            )
        topic = services.topics.require(header.topic)
        if not topic.perm & Perm.READ:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"topic {header.topic} may not be read from: its permission is {topic.perm}",
            )
        if header.queue_id >= topic.read_queue_nums:
            raise no_such_queue(header.topic, header.queue_id, topic.read_queue_nums)
        if services.store.is_batch_topic(header.topic):
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"topic {header.topic} has queues of batches (queue.type=BatchCQ), which are not popped: a batch could"
                " be acknowledged as a whole only, and not come back; pull it, or consume it with a push consumer",
            )
        group = services.groups.require(header.consumer_group)
        if not group.consume_enable:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"group {header.consumer_group} may not consume: consumeEnable is false",
            )
        return topic

    def _check_pop(self, header: PopMessageHeader) -> None:
        self._check_count(header.max_msg_nums)
        _check_attempt(header.attempt_id)
        if not 0 <= header.invisible_time <= INVISIBLE_MS_MAX:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime {header.invisible_time} is not within 0 to {INVISIBLE_MS_MAX} ms",
            )
        self._check(header)
        size = len(RETRY_PREFIX) + len(header.consumer_group) + 1 + len(header.topic)
        if size > INTERNAL_TOPIC_LENGTH_MAX:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"the names of the group and of topic {header.topic} are too long together: their retry topic"
                f" would have {size} characters, at most {INTERNAL_TOPIC_LENGTH_MAX} are allowed",
            )

    @staticmethod
    def _check_count(count: int) -> None:
        if not 1 <= count <= COUNT_MAX:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, f"maxMsgNums {count} is not within 1 to {COUNT_MAX}"
            )

    def _filter(self, header: PopMessageHeader) -> Filter:
        filters = self._services.filters
        if check_type(header.exp_type, sql_enabled=self._services.config.enable_property_filter):
            return filters.tags(header.exp)
        return filters.sql(header.exp)

    def _is_full(self) -> bool:
        return len(self._ledger.table) >= self._services.config.pop_ck_max_buffer_size

    # --- reading ----------------------------------------------------------------------------------------------

    def _pop(self, header: PopMessageHeader, wanted: Filter) -> _Popped:
        """Read, note and move; what was found is the group's now."""
        popped = _Popped()
        topic = self._services.topics.require(header.topic)
        retry_first = not header.order and self._dice(100) < self._services.config.pop_from_retry_probability
        if retry_first:
            self._pop_queues(header, self._retry_queues(header), wanted, popped)
        self._pop_queues(header, self._queues(topic, header), wanted, popped)
        if not retry_first and not header.order and popped.count < header.max_msg_nums:
            self._pop_queues(header, self._retry_queues(header), wanted, popped)
        return popped

    def _queues(self, topic: TopicConfig, header: Any) -> list[PopQueue]:
        group = header.consumer_group
        if header.queue_id >= 0:
            return [(header.topic, group, header.queue_id)]
        count = topic.read_queue_nums
        first = self._dice(count)
        return [(header.topic, group, (first + i) % count) for i in range(count)]

    def _retry_queues(self, header: Any) -> list[PopQueue]:
        """Queues of the retry topics that the group has for this topic."""
        services, group = self._services, header.consumer_group
        v2 = services.config.enable_retry_topic_v2
        wanted = [v2] + ([False] if v2 and services.config.retrieve_message_from_pop_retry_topic_v1 else [])
        found: list[PopQueue] = []
        for version in wanted:
            name = pop_retry_topic(header.topic, group, v2=version)
            topic = services.topics.get(name)
            if topic is not None:
                found += [(name, group, queue_id) for queue_id in range(topic.read_queue_nums)]
        return found

    def _pop_queues(
        self, header: PopMessageHeader, queues: Iterable[PopQueue], wanted: Filter, popped: _Popped
    ) -> None:
        for queue in queues:
            left = header.max_msg_nums - popped.count
            if left > 0:
                self._pop_queue(header, queue, left, wanted, popped)
            else:
                popped.rest += self._rest(queue)

    def _rest(self, queue: PopQueue) -> int:
        position = self._ledger.position(queue)
        end = self._services.store.max_offset(queue[0], queue[2])
        return max(0, end - position) if position is not None else 0

    def _pop_queue(
        self, header: PopMessageHeader, queue: PopQueue, left: int, wanted: Filter, popped: _Popped
    ) -> None:
        offset = self._position(queue, header.init_mode)
        if header.order and self._orders.is_blocked(queue, header.attempt_id):
            return
        if self._has_too_many(queue):
            popped.rest += self._rest(queue)
            return
        result = self._read(queue, offset, left, wanted)
        for _ in range(SCANS_MAX):
            if (
                result is None
                or result.count
                or result.status not in PASSED_OVER
                or result.next_offset == offset
            ):
                break
            offset = result.next_offset
            self._move(queue, offset, ordered=header.order)
            result = self._read(queue, offset, left, wanted)
        if result is None:
            return
        popped.rest += max(0, result.max_offset - result.next_offset)
        if result.count:
            popped.parts.append(_Part(queue, offset, result))
            popped.count += result.count

    def _read(self, queue: PopQueue, offset: int, left: int, wanted: Filter) -> GetResult | None:
        """The next messages of a queue; None when there are none."""
        topic, group, queue_id = queue
        store = self._services.store
        if store.max_offset(topic, queue_id) == offset:
            return None
        return store.get_message(
            group, topic, queue_id, offset, left, BODY_SIZE_MAX, wanted.tag_hashes, wanted.selector
        )

    def _has_too_many(self, queue: PopQueue) -> bool:
        config = self._services.config
        return (
            config.enable_pop_message_threshold
            and self._ledger.table.in_flight(queue) > config.pop_inflight_message_threshold
        )

    def _position(self, queue: PopQueue, init_mode: int) -> int:
        """Where the group goes on; where it begins, when it is new."""
        reset = self._ledger.take_reset(queue)
        if reset is not None:
            self._orders.clear(queue)
            return reset
        known = self._ledger.position(queue)
        if known is not None:
            return known
        topic, group, queue_id = queue
        first = self._first_offset(topic, queue_id, init_mode)
        self._services.offsets.commit(group, topic, queue_id, first)
        return first

    def _first_offset(self, topic: str, queue_id: int, init_mode: int) -> int:
        """The first offset of the queue, or (initMode other than 0) its last message, unless the queue is young."""
        store = self._services.store
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        if init_mode == FROM_MIN or topic.startswith(RETRY_PREFIX):
            return low
        if low <= 0 and self._services.config.init_pop_offset_by_check_msg_in_mem:
            result = store.get_message("", topic, queue_id, 0, 1, 1, None)
            if result.status is GetStatus.FOUND and not result.suggest_slave:
                return 0
        return max(0, high - 1)

    def _move(self, queue: PopQueue, offset: int, *, ordered: bool) -> None:
        if ordered:
            topic, group, queue_id = queue
            self._services.offsets.commit(group, topic, queue_id, offset)
        else:
            self._ledger.move(queue, offset)

    # --- answers ----------------------------------------------------------------------------------------------

    def _found(self, header: PopMessageHeader, popped: _Popped) -> Response:
        """Note what is handed out, and hand it out. RequestError: it could not be noted."""
        pop_time = self._services.clock()
        counts = ""
        if header.order:
            revive_queue = ORDERED
            counts = self._note_ordered(header, popped.parts, pop_time)
        else:
            revive_queue = self._ledger.log.take_queue()
            pop_time = self._note(header, popped.parts, pop_time, revive_queue)
        self._count(header, popped)
        ext = self._ext(header, pop_time, revive_queue, popped.rest)
        ext["startOffsetInfo"] = ";".join(
            [start_offset(part.queue[0], part.queue[2], part.offset) for part in popped.parts]
        )
        ext["msgOffsetInfo"] = ";".join(
            [message_offsets(part.queue[0], part.queue[2], part.offsets) for part in popped.parts]
        )
        if counts:
            ext["orderCountInfo"] = counts
        body: list[bytes | memoryview] = []
        for part in popped.parts:
            if part.queue[0] == header.topic:
                body += part.result.body
            else:
                body += self._as_of_topic(header, part, pop_time, revive_queue)
        return Response(ResponseCode.SUCCESS, "FOUND", ext=ext, body=b"".join(body))

    def _note(
        self, header: PopMessageHeader, parts: Sequence[_Part], pop_time: int, revive_queue: int
    ) -> int:
        """Append a check-point for each queue; the time of the pop, which no other check-point has."""
        ledger = self._ledger
        while any(Key(*part.queue, part.offset, pop_time) in ledger.table for part in parts):
            pop_time += 1
        points = [
            CheckPoint(
                Key(*part.queue, part.offset, pop_time),
                part.offsets,
                invisible_ms=header.invisible_time,
                revive_queue=revive_queue,
                revive_offset=0,
            )
            for part in parts
        ]
        self._is_noting = True
        try:
            places = ledger.log.append([ledger.log.check_point(point, pop_time) for point in points])
        finally:
            self._is_noting = False
        for point, place, part in zip(points, places, parts, strict=True):
            point.revive_offset = place
            ledger.table.add(point)
            ledger.move(part.queue, part.result.next_offset)
        return pop_time

    def _note_ordered(self, header: PopMessageHeader, parts: Sequence[_Part], pop_time: int) -> str:
        """Block the queues; what orderCountInfo says of the messages."""
        told: list[str] = []
        for part in parts:
            topic, group, queue_id = part.queue
            counts = self._orders.popped(
                part.queue,
                part.offsets,
                pop_time=pop_time,
                invisible_ms=header.invisible_time,
                attempt_id=header.attempt_id,
            )
            self._services.offsets.commit(group, topic, queue_id, part.offset)
            told += [order_count(topic, queue_id, offset, count) for offset, count in counts.items()]
            least = min(counts.values()) if len(counts) == len(part.offsets) else 0
            told.append(order_count(topic, queue_id, None, least))
        return ";".join(told)

    def _as_of_topic(
        self, header: PopMessageHeader, part: _Part, pop_time: int, revive_queue: int
    ) -> list[bytes]:
        """Messages of a retry topic as clients want them: under the topic's own name, with what to acknowledge."""
        info = PopInfo(
            part.offset,
            pop_time,
            header.invisible_time,
            revive_queue,
            retry_mark(part.queue[0]),
            self._services.identity.broker_name,
            part.queue[2],
        )
        made: list[bytes] = []
        for record in decode_records(b"".join(part.result.body), check_crc=False):
            mapping = {name: value for name, value in record.property_map.items() if name not in CHECKSUMS}
            mapping[properties.POP_CK] = extra_info(info, record.queue_offset)
            made.append(
                encode_record(
                    topic=header.topic,
                    queue_id=record.queue_id,
                    queue_offset=record.queue_offset,
                    physical_offset=record.physical_offset,
                    born_timestamp=record.born_timestamp,
                    born_host=record.born_host,
                    store_timestamp=record.store_timestamp,
                    store_host=record.store_host,
                    body=record.body,
                    properties="".join(f"{name}\x01{value}\x02" for name, value in mapping.items()),
                    flag=record.flag,
                    sys_flag=record.sys_flag,
                    reconsume_times=record.reconsume_times,
                    prepared_transaction_offset=record.prepared_transaction_offset,
                )
            )
        return made

    def _nothing(self, header: PopMessageHeader, code: int, remark: str, rest: int = 0) -> Response:
        return Response(code, remark, ext=self._ext(header, self._services.clock(), 0, rest))

    @staticmethod
    def _ext(header: PopMessageHeader, pop_time: int, revive_queue: int, rest: int) -> dict[str, str]:
        return {
            "popTime": str(pop_time),
            "invisibleTime": str(header.invisible_time),
            "reviveQid": str(revive_queue),
            "restNum": str(rest),
        }

    def _count(self, header: Any, popped: _Popped) -> None:
        stats = self._services.stats
        for part in popped.parts:
            stats.got(part.queue[0], header.consumer_group, part.result.count, part.result.size)
        if not popped.parts:
            stats.missed()

    # --- waiting ----------------------------------------------------------------------------------------------

    def arrived(self, topic: str, queue_id: int, entries: bytes) -> None:
        """New messages can be read: wake those that wait for them, one after the other while there are any."""
        candidates = self.held.candidates(topic, queue_id)
        tag_hashes = tags_of(entries) if candidates else []
        if self._is_noting:  # the pop that is going on has not moved its group yet
            self._again.update(dict.fromkeys(chain.from_iterable(candidates)))
            return
        new = []
        for held in filter(None, candidates):
            name, group, _ = held[0].place
            place = (name, group, queue_id if name == topic else ALL_QUEUES)
            if place not in self._to_serve:
                self._to_serve[place] = set()
                new.append(place)
            self._to_serve[place].update(tag_hashes)
        self._serving.add(new)

    def _serve_group(self, place: PopQueue) -> None:
        """Serve a group that a message has come for."""
        tag_hashes = self._to_serve.pop(place)
        self._serve(self.held.of_group(*place), tag_hashes)

    def released(self, queue: PopQueue) -> None:
        """A queue may be popped again: the messages that a group had in order are done with, or given up."""
        self._serve(self.held.of_group(queue[0], queue[1], queue[2]), [])

    def was_reset(self, queue: PopQueue) -> None:
        """A group was sent to another offset."""
        self._orders.clear(queue)
        self._serve(self.held.of_group(queue[0], queue[1], queue[2]), [])

    def look_again(self) -> None:
        """Run those once more that had to stop before they had seen everything."""
        again, self._again = self._again, {}
        for held in again:
            if held.waiting:
                self._serve([held], [])

    def expire(self, now_ms: int) -> None:
        """Answer those whose time is over."""
        self._ending.add(self.held.expired(now_ms))

    def _end(self, held: HeldPop) -> None:
        if held.request.connection.is_closed:
            return  # nothing is handed out to it
        answer = self._try(held)
        if answer is None and held.is_notification:
            answer = _notice(has_messages=False)
        elif answer is None:
            answer = self._nothing(held.request.header, ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
        held.request.respond(answer)

    def _serve(self, waiting: Iterable[HeldPop], tag_hashes: Collection[int]) -> None:
        misses = 0
        for held in waiting:
            if misses >= MISSES_MAX:
                break
            if not held.waiting or not held.wants(tag_hashes):
                continue
            answer = self._try(held)
            if answer is None:
                misses += 1
                continue
            self.held.leave(held)
            held.request.respond(answer)

    def _try(self, held: HeldPop) -> Response | None:
        """What one that waits would be answered now; None: it has to wait on."""
        header = held.request.header
        try:
            if held.is_notification:
                return _notice(has_messages=True) if self._has_messages(header) else None
            self._check_pop(header)
            if self._is_full():
                return None
            popped = self._pop(header, held.filter)
            if popped.count:
                return self._found(header, popped)
        except RequestError as refused:
            return Response(refused.code, refused.remark)
        except (OSError, StoreError) as failed:  # of these queues alone: nobody else is to suffer
            return held.request.connection.failure(held.request.code, failed)
        if popped.rest and held.waiting and not header.order:
            self._again[held] = None
        return None

    def _has_messages(self, header: NotificationHeader) -> bool:
        topic = self._services.topics.get(header.topic)
        if topic is None:
            return False
        queues = self._queues(topic, header)
        if header.order:
            queues = [queue for queue in queues if not self._orders.is_blocked(queue, header.attempt_id)]
        return any(self._has_some(queue) for queue in [*queues, *self._retry_queues(header)])

    def _has_some(self, queue: PopQueue) -> bool:
        store = self._services.store
        offset = self._ledger.position(queue)
        if offset is None:
            offset = store.min_offset(queue[0], queue[2])
        return store.max_offset(queue[0], queue[2]) > offset


def _check_attempt(attempt_id: str | None) -> None:
    """It is kept with the queue, and on disk."""
    if attempt_id is not None and len(attempt_id) > ATTEMPT_ID_CHARS_MAX:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"attemptId has {len(attempt_id)} characters, at most {ATTEMPT_ID_CHARS_MAX} are allowed",
        )


def _place(header: Any) -> PopQueue:
    return (header.topic, header.consumer_group, max(header.queue_id, ALL_QUEUES))


def _notice(*, has_messages: bool, is_full: bool = False) -> Response:
    return Response(
        ext={
            "hasMsg": "true" if has_messages else "false",
            "pollingFull": "true" if is_full else "false",
        }
    )


def _offsets_of(result: GetResult, offset: int) -> Sequence[int]:
    """The queue offsets of the records of a read that began at `offset`."""
    if result.next_offset - offset == result.count:
        return range(offset, result.next_offset)
    found = []
    for piece in result.body:
        at = 0
        while at < len(piece):
            size, queue_offset = QUEUE_OFFSET.unpack_from(piece, at)
            found.append(queue_offset)
            at += size
    return found
