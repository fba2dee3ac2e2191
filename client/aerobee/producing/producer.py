"""The producer: messages in, batches out, results back.

Touches  brokers through `Delivery`, time through the event loop's clock.

Way of a message: send() -> checked and encoded -> lane of its topic (or of its queue) -> batch -> one request
-> results to the waiting futures. Several messages travel as one SEND_BATCH, a single one as SEND_MESSAGE_V2.
While a request is out, messages gather in the lane: the busier the broker, the bigger the batches.

Order     Messages sent with `queue` or `sharding_key` go one batch after the other, so their order on the queue
          is the order of the calls, retries included. Others may overtake each other.

Invariants
- Every accepted message ends its future exactly once: a result or a ClientError.
- pending_count and pending_bytes count accepted messages whose future is not ended, and are back at 0 after
  flush().
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, cast

from aerobee.errors import BufferFull, ClientClosed, ClientError, InvalidMessage, NoReply, SendFailed
from aerobee.messages.delays import parse_recall_handle, timer_text
from aerobee.messages.message import Message, OutgoingMessage, SendResult
from aerobee.messages.outgoing import Draft, Encoder, Outgoing, checked_span, checked_topic, key_text
from aerobee.messages.watching import MessageKind, Watch
from aerobee.net.peers import Peers
from aerobee.net.route_table import RouteTable
from aerobee.producing.batching import Batch, Lane
from aerobee.producing.delivery import Delivery, QueueChoice, pick_queue
from aerobee.producing.replies import PendingReplies
from aerobee.producing.transactions import Checker, Transaction, Transactions
from aerobee.terms.arguments import checked, explain
from aerobee.terms.config import ProducerConfig
from aerobee.terms.routes import MessageQueue
from aerobee.terms.statistics import ProducerStatistics
from aerobee_proto.codes import RequestCode, SysFlag
from aerobee_proto.errors import AerobeeError
from aerobee_proto.properties import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    CORRELATION_ID,
    PRODUCER_GROUP,
    REPLY_TO_CLIENT,
    TRANSACTION_PREPARED,
    TTL,
    encode_properties,
)
from aerobee_service.logs.event_log import event_logger

if TYPE_CHECKING:
    from aerobee.messages.codecs import AnyCodec
    from aerobee.messages.meters import Meters

__all__ = ["Producer", "ProducerParts"]

log = event_logger("aerobee.producer")

# Messages that cannot share a request (compressed, delayed) are small loads: so many may be out for one batch.
ALONE_SHARE: Final = 16


@dataclass(slots=True, frozen=True)
class ProducerParts:
    """What a producer works with besides its own batches; made by `Client.producer()`."""

    client_id: str
    delivery: Delivery
    encoder: Encoder
    routes: RouteTable
    peers: Peers
    transactions: Transactions | None  # None: the group is shared with strangers, so it has no transactions
    checker: Checker | None
    replies: PendingReplies
    new_id: Callable[[], str]
    greet: Callable[[str], Awaitable[None]]  # have the brokers of a topic know this client
    codec: "AnyCodec | None"
    watch: Watch | None
    meters: "Meters | None"


class _Topic:
    """Lanes of one topic: one for free messages, one for each queue with bound ones.

    `unrouted` holds bound messages whose queue is not known before the route is; `routing` tells that a task is at it.
    `timer` is the next look at
    the lanes, at `timer_due` (0: at the end of this turn of the loop).
    """

    __slots__ = ("bound", "free", "name", "routing", "timer", "timer_due", "unrouted")

    def __init__(self, name: str, free: Lane[Outgoing]) -> None:
        self.name = name
        self.free = free
        self.bound: dict[MessageQueue, Lane[Outgoing]] = {}
        self.unrouted: list[tuple[Outgoing, MessageQueue | int | str]] = []
        self.routing = False
        self.timer: asyncio.Handle | None = None
        self.timer_due = 0.0


class Producer:
    """Sends messages. Made by `Client.producer()`; use it as `async with`."""

    def __init__(
        self,
        group: str,
        config: ProducerConfig,
        *,
        parts: ProducerParts,
        on_open: Callable[["Producer"], None],
        on_close: Callable[["Producer"], None],
    ) -> None:
        # Fixed for life.
        self.group = group
        self.config = config
        self.parts = parts
        self._delivery = parts.delivery
        self._encoder = parts.encoder
        self.routes = parts.routes
        self._codec = parts.codec
        self._watch = parts.watch
        self._on_open = on_open
        self._on_close = on_close
        self._count_max = config.pending_count_max
        self._bytes_max = config.pending_bytes_max
        self._loop = asyncio.get_running_loop()
        # Moved by the calls below.
        self._topics: dict[str, _Topic] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._flushing = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._opened = False
        self._full = False
        self.pending_count = 0
        self.pending_bytes = 0
        # Since the start; failed ones of a batch that went on are counted by `Delivery`.
        self._ended_count = 0
        self._failed_count = 0
        self._batch_count = 0
        self._latency_sum_s = 0.0
        self._latency_max_s = 0.0

    async def __aenter__(self) -> Self:
        self._opened = True
        self._on_open(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- sending ----------------------------------------------------------------------------------------------
    # `send` and `send_nowait` have every option in their signatures: editors and type checkers show them. Their
    # bodies are written out twice, too: a call between them would be one more for each message. What they call
    # gets the Draft alone.

    async def send(
        self,
        topic: str,
        body: object,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        queue: QueueChoice = None,
        sharding_key: str | None = None,
        delay_level: int = 0,
        deliver_at: datetime | int | None = None,
        deliver_after: timedelta | float | None = None,
        flag: int = 0,
        codec: "AnyCodec | None" = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send one message and wait until the broker has stored it.

        body          bytes or text; with a codec (of the producer, or `codec` here) a value that it writes
        tags          label that consumers filter by
        keys          look-up words: one, or several; a word has no blanks
        properties    texts of your own
        queue         send to this queue: a `MessageQueue`, or a position in `queues(topic)`
        sharding_key  messages with equal keys go to the same queue, in order
        delay_level   1..18: deliver after 1 s, 5 s, 10 s, 30 s, 1..10 min, 20 min, 30 min, 1 h, 2 h
        deliver_at    deliver at that time: a datetime with a zone, or epoch milliseconds
        deliver_after deliver after that time: a timedelta, or seconds
        flag          a number of your own, stored with the message

        Concurrent sends share requests. While the producer's buffer is full this waits for room, and while the
        broker is away for the broker: at most `send_timeout_s` in all (or `timeout_s`). Raises InvalidMessage (nothing
        sent), NoRoute, BrokerRefused, SendFailed. Cancelling the call does not call the message back.
        """
        try:
            if self._full:
                timeout_s = await self._wait_for_room(topic, timeout_s)
            found = self._topics.get(topic) or self._topic(topic)
            draft = Draft(
                topic, body, tags, keys, properties, sharding_key, flag, timeout_s, delay_level, deliver_at,
                deliver_after, codec,
            )  # fmt: skip
            item = self._make(draft)
            self._accept(found, item, sharding_key if queue is None else _checked_queue(queue))
        except (TypeError, AttributeError, ValueError):
            explain(Producer.send, locals())
            raise
        return await item.future

    def send_nowait(
        self,
        topic: str,
        body: object,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        queue: QueueChoice = None,
        sharding_key: str | None = None,
        delay_level: int = 0,
        deliver_at: datetime | int | None = None,
        deliver_after: timedelta | float | None = None,
        flag: int = 0,
        codec: "AnyCodec | None" = None,
        timeout_s: float | None = None,
    ) -> asyncio.Future[SendResult]:
        """Accept one message and return at once; await the future for its result or error.

        Raises BufferFull when `pending_count_max` or `pending_bytes_max` is reached: `await ready()` first.
        A future that is dropped without being looked at logs its error, if it had one.
        """
        if self._full:
            raise BufferFull(self.pending_count, self.pending_bytes)
        try:
            found = self._topics.get(topic) or self._topic(topic)
            draft = Draft(
                topic, body, tags, keys, properties, sharding_key, flag, timeout_s, delay_level, deliver_at,
                deliver_after, codec,
            )  # fmt: skip
            item = self._make(draft)
            self._accept(found, item, sharding_key if queue is None else _checked_queue(queue))
        except (TypeError, AttributeError, ValueError):
            explain(Producer.send, locals())
            raise
        return item.future

    @checked
    async def send_batch(
        self,
        topic: str,
        messages: Sequence[object],
        *,
        queue: QueueChoice = None,
        sharding_key: str | None = None,
        timeout_s: float | None = None,
    ) -> list[SendResult]:
        """Send messages to one queue, in order and next to each other where they fit one batch.

        Each is an `OutgoingMessage` or a body alone.

        More than `batch_count` messages or `batch_bytes` bytes take several batches, one after the other; when
        one fails the rest is still sent, and the first error is raised when all have ended.
        """
        if not messages:
            return []
        self._check_open()
        chosen = queue if queue is not None else sharding_key
        target = await self._delivery.choose(checked_topic(topic), chosen, self._deadline(timeout_s))
        items = self._encode_list(topic, messages, sharding_key, timeout_s)
        left = items
        while left:
            if self._full:
                await self.ready()
            left = self._accept_list(self._topic(topic), left, target)
        return await _results_of(items)

    @checked
    async def send_oneway(
        self,
        topic: str,
        body: object,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        queue: QueueChoice = None,
        sharding_key: str | None = None,
        flag: int = 0,
    ) -> str:
        """Send one message without asking whether it arrived; returns its message_id.

        No batching, no answer: a broker that refuses stays silent, and what was on its way to one that ended is lost.
        Tried until a connection has taken it. Raises InvalidMessage, NoRoute and SendFailed.
        """
        self._check_open()
        draft = Draft(checked_topic(topic), body, tags, keys, properties, sharding_key, flag)
        item = self._encoder.encode(self._written(draft))
        pick = queue if queue is not None else sharding_key
        bound = None if pick is None else await self._delivery.choose(topic, pick, item.deadline)
        await self._delivery.send_oneway(topic, item, bound)
        return item.message_id

    # --- more than sending ------------------------------------------------------------------------------------

    @checked
    def transaction(
        self,
        topic: str,
        body: object,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        queue: QueueChoice = None,
        sharding_key: str | None = None,
        flag: int = 0,
        codec: "AnyCodec | None" = None,
        check_after_s: int | None = None,
    ) -> Transaction:
        """A message that consumers see when the block of code succeeds, and never when it raises.

            async with producer.transaction("orders", b"17") as tx:
                await database.store(order, tx.transaction_id)

        check_after_s  seconds before the broker asks for the end of the transaction; None leaves it to the broker

        The producer needs a group of its own name, and should have a `check` that tells a broker how a transaction
        ended whose end it has not heard. The block raises TransactionUnresolved when the commit is not confirmed.
        """
        self._check_open()
        if self.parts.transactions is None:
            raise InvalidMessage(
                f"a transaction needs a producer group of its own, not {self.group!r}: brokers ask any producer of the"
                ' group how a transaction ended; write client.producer("my-service", check=...)'
            )
        more = {TRANSACTION_PREPARED: "true", PRODUCER_GROUP: self.group}
        if check_after_s is not None:
            more[CHECK_IMMUNITY_TIME_IN_SECONDS] = str(int(check_after_s))

        words = key_text(keys) if keys else None

        async def send_half() -> SendResult:
            await self.parts.greet(topic)  # or no broker would know whom to ask
            draft = Draft(topic, body, tags, words and words.split(" "), properties, sharding_key, flag)
            draft.codec, draft.more = codec, encode_properties(more)
            draft.sys_flag = SysFlag.TRANSACTION_PREPARED
            item = self._special(draft)
            self._accept(self._topic(topic), item, queue if queue is not None else sharding_key)
            return await item.future

        def on_end(result: SendResult, committed: bool) -> None:
            if self._watch is not None:
                self._watch.transaction_ended(topic, result, tags, words, committed)

        return Transaction(checked_topic(topic), send_half, self.parts.transactions, on_end)

    @checked
    async def request(
        self,
        topic: str,
        body: object,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        queue: QueueChoice = None,
        sharding_key: str | None = None,
        flag: int = 0,
        codec: "AnyCodec | None" = None,
        timeout_s: float = 3.0,
    ) -> Message:
        """Send a message and wait for the reply of whoever consumes it (`GroupMessage.reply`).

        NoReply when there is none within `timeout_s`, the time for sending included.
        """
        self._check_open()
        await self.parts.greet(topic)  # or the broker would not know whom to hand the reply to
        correlation_id = self.parts.new_id()
        more = {
            CORRELATION_ID: correlation_id,
            REPLY_TO_CLIENT: self.parts.client_id,
            TTL: str(round(timeout_s * 1000)),
        }
        draft = Draft(topic, body, tags, keys, properties, sharding_key, flag, timeout_s)
        draft.codec, draft.more = codec, encode_properties(more)
        item = self._special(draft)
        reply = self.parts.replies.expect(correlation_id)
        try:
            async with asyncio.timeout(timeout_s):
                self._accept(self._topic(topic), item, queue if queue is not None else sharding_key)
                await item.future
                return await reply
        except TimeoutError:
            raise NoReply(topic, item.message_id, timeout_s) from None
        finally:
            reply.cancel()

    @checked
    async def cancel(self, sent: SendResult | str) -> str:
        """Take back a message with a delivery time before it is delivered; returns its message_id.

        `sent` is what `send` returned for it, or the recall handle in it. Brokers must be set up for this
        (recallMessageEnable). BrokerRefused when it is too late or not allowed.
        """
        self._check_open()
        handle = sent if isinstance(sent, str) else sent.recall_handle
        if handle is None:
            raise InvalidMessage(
                "this message has no delivery time, or its broker does not take messages back"
            )
        parsed = parse_recall_handle(handle)
        await self.routes.for_publish(parsed.topic)
        answer = await self.parts.peers.call(
            f"cancel message {parsed.message_id}",
            self.routes.master_addr(parsed.topic, parsed.broker_name),
            RequestCode.RECALL_MESSAGE,
            {
                "producerGroup": self.group,
                "topic": parsed.topic,
                "recallHandle": handle,
                "bname": parsed.broker_name,
            },
        )
        return answer.ext.get("msgId", parsed.message_id)

    @checked
    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues one can send to, ordered by broker and queue id."""
        return (await self.routes.for_publish(checked_topic(topic))).publish

    def statistics(self) -> ProducerStatistics:
        """What this producer has done since it was made."""
        failed = self._failed_count + self._delivery.failed_count
        return ProducerStatistics(
            group=self.group,
            sent_count=self._ended_count - failed,
            failed_count=failed,
            retried_count=self._delivery.retried_count,
            pending_count=self.pending_count,
            pending_bytes=self.pending_bytes,
            latency_ms_mean=self._latency_sum_s * 1000 / max(self._batch_count, 1),
            latency_ms_max=self._latency_max_s * 1000,
        )

    async def ready(self) -> None:
        """Wait until send_nowait has room. Waiters are served in the order they came."""
        while self._full:
            self._check_open()
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                self._wake(1)  # pass the turn on: it may have been given to this call already
                raise

    async def _wait_for_room(self, topic: str, timeout_s: float | None) -> float:
        """Wait as `ready`, in the time of one message; what is left of it. SendFailed when it is over."""
        started = self._loop.time()
        limit_s = self.config.send_timeout_s if timeout_s is None else checked_span(timeout_s)
        try:
            async with asyncio.timeout_at(started + limit_s):
                await self.ready()
        except TimeoutError:
            raise SendFailed(
                topic,
                (),
                f"the producer's buffer was full for {limit_s:g} s: the brokers are slower than the calls",
            ) from None
        return max(0.0, started + limit_s - self._loop.time())

    def _deadline(self, timeout_s: float | None) -> float:
        """When the time of a message is over that is sent now, by the loop's clock."""
        return self._loop.time() + (self.config.send_timeout_s if timeout_s is None else timeout_s)

    async def flush(self) -> None:
        """Send what waits in batches, and wait until every accepted message has its result. Never raises for them."""
        self._flushing += 1
        try:
            for topic in self._topics.values():
                self._pump(topic)
            await self._idle.wait()
        finally:
            self._flushing -= 1

    async def close(self) -> None:
        """Flush, then accept nothing more. Bounded by the messages' own time-outs (`send_timeout_s`)."""
        if not self._opened:
            return
        self._opened = False
        try:
            await self.flush()
        finally:
            self._on_close(self)
            self._abandon()
            if self.parts.checker is not None:
                await self.parts.checker.close()

    # --- making -----------------------------------------------------------------------------------------------

    def _make(self, draft: Draft) -> Outgoing:
        """An ordinary message, perhaps with a delivery time."""
        if draft.deliver_at is not None or draft.deliver_after is not None:
            draft.more = timer_text(draft.deliver_at, draft.deliver_after, draft.delay_level)
            draft.alone = True
        if draft.codec is not None or self._codec is not None:
            self._written(draft)
        return self._encoder.encode(draft) if self._watch is None else self._watched(self._watch, draft)

    def _encode_list(
        self, topic: str, messages: Sequence[object], sharding_key: str | None, timeout_s: float | None
    ) -> list[Outgoing]:
        ids = self._encoder.new_ids(len(messages))
        if self._codec is None and {*map(type, messages)} == {bytes}:
            draft = Draft(topic, None, sharding_key=sharding_key, timeout_s=timeout_s)
            return self._encoder.encode_bodies(draft, cast("Sequence[bytes]", messages), ids)
        return [
            self._encode_one(_drafted(topic, message, sharding_key, timeout_s), message_id)
            for message, message_id in zip(messages, ids, strict=True)
        ]

    def _encode_one(self, draft: Draft, message_id: str) -> Outgoing:
        """A message of a list."""
        try:
            return self._encoder.encode(self._written(draft), message_id)
        except (TypeError, AttributeError):
            explain(OutgoingMessage, {name: getattr(draft, name) for name in OutgoingMessage.__slots__})
            raise

    def _written(self, draft: Draft) -> Draft:
        """The same, its body written by the codec of the call or of the producer."""
        chosen = draft.codec or self._codec
        if chosen is not None:
            draft.body = chosen.encode(draft.body)
        return draft

    def _special(self, draft: Draft) -> Outgoing:
        """A message with a part in the protocol, which travels alone."""
        draft.alone = True
        self._written(draft)
        return self._encoder.encode(draft) if self._watch is None else self._watched(self._watch, draft)

    def _watched(self, watch: Watch, draft: Draft) -> Outgoing:
        """A message whose way is watched."""
        words = key_text(draft.keys) if draft.keys else None
        token, added = watch.sending(draft.topic, draft.properties or {})
        kind = MessageKind.NORMAL
        if draft.sys_flag & SysFlag.TRANSACTION_PREPARED:
            kind = MessageKind.HALF
        elif draft.delay_level or draft.deliver_at is not None or draft.deliver_after is not None:
            kind = MessageKind.DELAY
        elif draft.sharding_key:
            kind = MessageKind.ORDER
        draft.keys = words and words.split(" ")
        draft.more += added
        item = self._encoder.encode(draft)
        watch.accepted(token, draft.topic, item, draft.tags, words, kind)
        return item

    # --- accepting --------------------------------------------------------------------------------------------

    def _count(self, messages: int, size: int) -> None:
        """Messages came in or, as negative numbers, ended."""
        was_idle = not self.pending_count
        self.pending_count += messages
        self.pending_bytes += size
        self._full = self.pending_count >= self._count_max or self.pending_bytes >= self._bytes_max
        if was_idle:
            self._idle.clear()
        elif not self.pending_count:
            self._idle.set()

    def _check_open(self) -> None:
        if not self._opened:
            raise ClientClosed("producer")

    def _topic(self, name: str) -> _Topic:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _Topic(checked_topic(name), self._lane(bound=False))
        return topic

    def _accept(self, topic: _Topic, item: Outgoing, pick: MessageQueue | int | str | None) -> None:
        """Take a message in; from here on its future will end."""
        if not self._opened:
            raise ClientClosed("producer")
        self._count(1, item.size)
        if pick is not None:
            self._accept_bound(topic, item, pick)
        else:
            self._add(topic, topic.free, item)

    def _accept_list(self, topic: _Topic, items: list[Outgoing], queue: MessageQueue) -> list[Outgoing]:
        """Take in as many messages of a list as there is room for; those for which there is none."""
        if not self._opened:
            raise ClientClosed("producer")
        room, size_room = self._count_max - self.pending_count, self._bytes_max - self.pending_bytes
        now, left, size = items, items[:0], sum([item.size for item in items])
        if len(items) > room or size >= size_room:
            count, size = 0, 0
            for item in items:
                if count >= room or size >= size_room:
                    break
                count += 1
                size += item.size
            now, left = items[:count], items[count:]
        self._count(len(now), size)
        if topic.unrouted or self.routes.cached_publish(topic.name) is None:
            for item in now:
                self._accept_bound(topic, item, queue)
        else:
            self._added(topic, may_leave=_add_list(self._lane_of(topic, queue), now, size))
        return left

    def _lane_of(self, topic: _Topic, queue: MessageQueue) -> Lane[Outgoing]:
        lane = topic.bound.get(queue)
        if lane is None:
            lane = topic.bound[queue] = self._lane(bound=True)
        return lane

    def _accept_bound(self, topic: _Topic, item: Outgoing, pick: MessageQueue | int | str) -> None:
        route = self.routes.cached_publish(topic.name)
        if route is None or topic.unrouted:
            topic.unrouted.append((item, pick))
            if not topic.routing:
                topic.routing = True
                self._spawn(self._route_bound(topic), f"route for {topic.name}")
            return
        try:
            queue = pick_queue(route, pick)
        except ClientError as refused:
            self._end([item], item.size, refused)
            return
        self._add(topic, self._lane_of(topic, queue), item)

    def _add(self, topic: _Topic, lane: Lane[Outgoing], item: Outgoing) -> None:
        self._added(
            topic,
            may_leave=lane.add(item, item.size, item.accepted_at, item.deadline, alone=item.alone),
        )

    def _added(self, topic: _Topic, *, may_leave: bool) -> None:
        """Have the lanes of the topic looked at when it is time."""
        if may_leave:
            self._pump_soon(topic)
        elif topic.timer is None and self.config.linger_s > 0:
            self._pump_when_due(topic)

    async def _route_bound(self, topic: _Topic) -> None:
        """Look the route up, then put the waiting messages into the lanes of their queues, in order.

        Without a route those fail whose time is over, or all when there is no hope; the others wait on.
        """
        try:
            while topic.unrouted:
                deadline = min([item.deadline for item, _ in topic.unrouted])
                failed = await self._find_route(topic.name, deadline)
                now = self._loop.time()
                waiting, topic.unrouted = topic.unrouted, []
                for item, pick in waiting:
                    if failed is None:
                        self._accept_bound(topic, item, pick)
                    elif now < deadline or item.deadline <= now:
                        self._end([item], item.size, failed)
                    else:
                        topic.unrouted.append((item, pick))
        finally:
            topic.routing = False

    async def _find_route(self, topic: str, deadline: float) -> ClientError | None:
        """Have the route known; why it is not."""
        try:
            await self._delivery.route(topic, deadline)
        except ClientError as no_route:
            return no_route
        except AerobeeError as failed:
            return SendFailed(topic, (), str(failed))
        return None

    def _lane(self, *, bound: bool) -> Lane[Outgoing]:
        config = self.config
        return Lane(
            linger_s=config.linger_s,
            batch_bytes=config.batch_bytes,
            batch_count=config.batch_count,
            in_flight_max=1 if bound else config.in_flight_max,
            alone_share=1 if bound else ALONE_SHARE,
        )

    # --- letting batches go -----------------------------------------------------------------------------------

    def _pump_soon(self, topic: _Topic) -> None:
        """Look at the lanes at the end of this turn of the loop, so that everything sent in it goes together."""
        if topic.timer is not None:
            if topic.timer_due == 0.0:
                return
            topic.timer.cancel()
        topic.timer_due = 0.0
        topic.timer = self._loop.call_soon(self._pump, topic)

    def _pump_when_due(self, topic: _Topic) -> None:
        """Look at the lanes when the first open batch has lingered enough."""
        dues = [lane.next_due() for lane in (topic.free, *topic.bound.values())]
        due = min((one for one in dues if one is not None), default=None)
        if due is None or (topic.timer is not None and topic.timer_due <= due):
            return
        if topic.timer is not None:
            topic.timer.cancel()
        topic.timer_due = due
        topic.timer = self._loop.call_at(due, self._pump, topic)

    def _pump(self, topic: _Topic) -> None:
        if topic.timer is not None:
            topic.timer.cancel()
            topic.timer = None
        now, flush = self._loop.time(), self._flushing > 0
        while (batch := topic.free.take(now, flush=flush)) is not None:
            self._spawn(self._deliver(topic, topic.free, batch, None), f"send to {topic.name}")
        for queue, lane in topic.bound.items():
            while (batch := lane.take(now, flush=flush)) is not None:
                self._spawn(self._deliver(topic, lane, batch, queue), f"send to {queue}")
        self._pump_when_due(topic)

    def _spawn(self, work: "asyncio._CoroutineLike[None]", name: str) -> None:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(
        self, topic: _Topic, lane: Lane[Outgoing], batch: Batch[Outgoing], bound: MessageQueue | None
    ) -> None:
        """Bring one batch to an end, whatever happens, and let the next one go."""
        error: ClientError | None = None
        failed_before = self._failed_count + self._delivery.failed_count
        try:
            await self._delivery.send(topic.name, batch.items, bound, batch.deadline)
        except ClientError as failed:
            error = failed
        except AerobeeError as failed:
            error = SendFailed(topic.name, (), str(failed))
        except asyncio.CancelledError:
            error = ClientClosed("producer")
            raise
        except Exception as failed:
            log.exception("client.send_broke", topic=topic.name)
            error = SendFailed(topic.name, (), f"{type(failed).__name__}: {failed}")
        finally:
            lane.done(batch)
            self._end(batch.items, batch.size, error)
            took_s = self._loop.time() - batch.opened_at
            self._batch_count += 1
            self._latency_sum_s += took_s
            self._latency_max_s = max(self._latency_max_s, took_s)
            if self.parts.meters is not None:
                failed_count = self._failed_count + self._delivery.failed_count - failed_before
                failed_count = min(failed_count, len(batch.items))
                self.parts.meters.sent(
                    topic.name, len(batch.items) - failed_count, failed_count, error, took_s
                )
            if self._opened or self._flushing:
                self._pump(topic)

    # --- ending -----------------------------------------------------------------------------------------------

    def _end(self, items: Sequence[Outgoing], size: int, error: ClientError | None) -> None:
        """Count messages as ended; those without a result get `error`."""
        if error is not None:
            for item in items:
                if not item.future.done():
                    self._failed_count += 1
                    item.future.set_exception(error)
        self._ended_count += len(items)
        self._count(-len(items), -size)
        if self._waiters:
            self._wake(len(items))

    def _wake(self, count: int) -> None:
        waiters = self._waiters
        while count > 0 and waiters:
            waiter = waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    def _abandon(self) -> None:
        """After close: nothing may stay behind."""
        for task in self._tasks:
            task.cancel()
        for topic in self._topics.values():
            if topic.timer is not None:
                topic.timer.cancel()
            left = [item for lane in (topic.free, *topic.bound.values()) for item in lane.drop_all()]
            for item in (*left, *(item for item, _ in topic.unrouted)):
                if not item.future.done():
                    item.future.set_exception(ClientClosed("producer"))
        self._wake(len(self._waiters))


def _drafted(topic: str, message: object, sharding_key: str | None, timeout_s: float | None) -> Draft:
    """A message of `send_batch`: all there is to say, or a body alone."""
    if isinstance(message, OutgoingMessage):
        return Draft(
            topic, message.body, message.tags, message.keys, message.properties, sharding_key, message.flag,
            timeout_s,
        )  # fmt: skip
    return Draft(topic, message, sharding_key=sharding_key, timeout_s=timeout_s)


def _add_list(lane: Lane[Outgoing], items: list[Outgoing], size: int) -> bool:
    """Have messages of a list, of `size` bytes together, in the lane; whether a batch may leave now."""
    if lane.has_room_for(len(items), size) and True not in [item.alone for item in items]:
        deadline = min([item.deadline for item in items])
        return lane.add_together(items, size, items[0].accepted_at, deadline)
    may_leave = False
    for item in items:
        may_leave |= lane.add(item, item.size, item.accepted_at, item.deadline, alone=item.alone)
    return may_leave


async def _results_of(items: Sequence[Outgoing]) -> list[SendResult]:
    """The results of accepted messages; when all have ended, the first error is raised.

    One after the other: nearly all are there when the first one is, while a callback for each costs 0.5 us a message.
    """
    results: list[SendResult] = []
    failed: ClientError | None = None
    try:
        for item in items:
            try:
                results.append(await item.future)
            except ClientError as error:
                failed = failed or error
    except asyncio.CancelledError:
        for item in items:
            item.future.cancel()  # nobody is going to look at it
        raise
    if failed is not None:
        raise failed
    return results


def _checked_queue(queue: MessageQueue | int) -> MessageQueue | int:
    """What may stand for a queue: a text would pass for a sharding key. TypeError otherwise."""
    if not isinstance(queue, MessageQueue | int) or isinstance(queue, bool):
        raise TypeError(f"queue is {queue!r}")
    return queue
