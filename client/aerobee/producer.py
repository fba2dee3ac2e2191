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
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

import structlog

from aerobee.batching import Batch, Lane
from aerobee.config import ProducerConfig
from aerobee.delivery import Delivery, QueueChoice, pick_queue
from aerobee.errors import BufferFull, ClientClosed, ClientError, SendFailed
from aerobee.message import OutgoingMessage, SendResult
from aerobee.outgoing import Encoder, Outgoing, checked_topic
from aerobee.route_table import RouteTable
from aerobee.routes import MessageQueue
from aerobee_proto.errors import AerobeeError

__all__ = ["Producer"]

log = structlog.get_logger()

# Messages that cannot share a request (compressed, delayed) are small loads: so many may be out for one batch.
ALONE_SHARE: Final = 16


class _Topic:
    """Lanes of one topic: one for free messages, one for each queue with bound ones.

    `unrouted` holds bound messages whose queue is not known before the route is; `timer` is the next look at
    the lanes, at `timer_due` (0: at the end of this turn of the loop).
    """

    __slots__ = ("bound", "free", "name", "timer", "timer_due", "unrouted")

    def __init__(self, name: str, free: Lane[Outgoing]) -> None:
        self.name = name
        self.free = free
        self.bound: dict[MessageQueue, Lane[Outgoing]] = {}
        self.unrouted: list[tuple[Outgoing, MessageQueue | int | str]] = []
        self.timer: asyncio.Handle | None = None
        self.timer_due = 0.0


class Producer:
    """Sends messages. Made by `Client.producer()`; use it as `async with`."""

    def __init__(
        self,
        group: str,
        config: ProducerConfig,
        *,
        delivery: Delivery,
        encoder: Encoder,
        routes: RouteTable,
        on_open: Callable[["Producer"], None],
        on_close: Callable[["Producer"], None],
    ) -> None:
        # Fixed for life.
        self.group = group
        self.config = config
        self._delivery = delivery
        self._encoder = encoder
        self._routes = routes
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

    async def __aenter__(self) -> Self:
        self._opened = True
        self._on_open(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- sending ----------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        body: bytes | str,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        queue: QueueChoice = None,
        sharding_key: str | None = None,
        delay_level: int = 0,
        flag: int = 0,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send one message and wait until the broker has stored it.

        tags          label that consumers filter by
        keys          look-up words; one text (blanks separate words) or several
        properties    texts of your own
        queue         send to this queue: a `MessageQueue`, or a position in `queues(topic)`
        sharding_key  messages with equal keys go to the same queue, in order
        delay_level   1..18: deliver after 1 s, 5 s, 10 s, 30 s, 1..10 min, 20 min, 30 min, 1 h, 2 h
        flag          a number of your own, stored with the message

        Concurrent sends share requests. While the producer's buffer is full this waits for room. Raises
        InvalidMessage (nothing sent), NoRoute, BrokerRefused, SendFailed. Cancelling the call does not
        call the message back.
        """
        if self._full:
            await self.ready()
        found = self._topics.get(topic) or self._topic(topic)
        item = self._encoder.encode(
            topic, body, tags, keys, properties, sharding_key, delay_level, flag, timeout_s
        )
        self._accept(found, item, queue if queue is not None else sharding_key)
        return await item.future

    def send_nowait(
        self,
        topic: str,
        body: bytes | str,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        queue: QueueChoice = None,
        sharding_key: str | None = None,
        delay_level: int = 0,
        flag: int = 0,
        timeout_s: float | None = None,
    ) -> asyncio.Future[SendResult]:
        """Accept one message and return at once; await the future for its result or error.

        Raises BufferFull when `pending_count_max` or `pending_bytes_max` is reached: `await ready()` first.
        A future that is dropped without being looked at logs its error, if it had one.
        """
        if self._full:
            raise BufferFull(self.pending_count, self.pending_bytes)
        found = self._topics.get(topic) or self._topic(topic)
        item = self._encoder.encode(
            topic, body, tags, keys, properties, sharding_key, delay_level, flag, timeout_s
        )
        self._accept(found, item, queue if queue is not None else sharding_key)
        return item.future

    async def send_batch(
        self,
        topic: str,
        messages: Sequence[OutgoingMessage | bytes | str],
        *,
        queue: QueueChoice = None,
        sharding_key: str | None = None,
        timeout_s: float | None = None,
    ) -> list[SendResult]:
        """Send messages to one queue, in order and next to each other where they fit one batch.

        More than `batch_count` messages or `batch_bytes` bytes take several batches, one after the other; when
        one fails the rest is still sent, and the first error is raised when all have ended.
        """
        if not messages:
            return []
        self._check_open()
        chosen = queue if queue is not None else sharding_key
        target = await self._delivery.choose(checked_topic(topic), chosen)
        items = [
            self._encoder.encode(
                topic,
                one.body,
                one.tags,
                one.keys,
                one.properties,
                sharding_key,
                0,
                one.flag,
                timeout_s,
            )
            for one in (
                message if isinstance(message, OutgoingMessage) else OutgoingMessage(message)
                for message in messages
            )
        ]
        for item in items:
            if self._full:
                await self.ready()
            self._accept(self._topic(topic), item, target)
        results = await asyncio.gather(*(item.future for item in items), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if isinstance(result, SendResult)]

    async def send_oneway(
        self,
        topic: str,
        body: bytes | str,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        queue: QueueChoice = None,
        sharding_key: str | None = None,
        flag: int = 0,
    ) -> str:
        """Send one message without asking whether it arrived; returns its message_id.

        One try, no batching, no answer: a broker that refuses stays silent. Raises InvalidMessage, NoRoute and
        BrokerUnreachable.
        """
        self._check_open()
        item = self._encoder.encode(
            checked_topic(topic), body, tags, keys, properties, sharding_key, 0, flag, None
        )
        target = await self._delivery.choose(topic, queue if queue is not None else sharding_key)
        await self._delivery.send_oneway(target, item)
        return item.message_id

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues one can send to, ordered by broker and queue id."""
        return (await self._routes.for_publish(checked_topic(topic))).publish

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

    async def flush(self) -> None:
        """Send what lingers and wait until every accepted message has its result. Never raises for them."""
        self._flushing += 1
        try:
            for topic in self._topics.values():
                self._pump(topic)
            await self._idle.wait()
        finally:
            self._flushing -= 1

    async def close(self) -> None:
        """Flush, then accept nothing more. Bounded by the messages' own time-outs."""
        if not self._opened:
            return
        self._opened = False
        try:
            await self.flush()
        finally:
            self._on_close(self)
            self._abandon()

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

    def _accept_bound(self, topic: _Topic, item: Outgoing, pick: MessageQueue | int | str) -> None:
        route = self._routes.cached_publish(topic.name)
        if route is None or topic.unrouted:
            topic.unrouted.append((item, pick))
            if len(topic.unrouted) == 1:
                self._spawn(self._route_bound(topic), f"route for {topic.name}")
            return
        try:
            queue = pick_queue(route, pick)
        except ClientError as refused:
            self._end([item], item.size, refused)
            return
        lane = topic.bound.get(queue)
        if lane is None:
            lane = topic.bound[queue] = self._lane(bound=True)
        self._add(topic, lane, item)

    def _add(self, topic: _Topic, lane: Lane[Outgoing], item: Outgoing) -> None:
        if lane.add(item, item.size, item.accepted_at, item.deadline, alone=item.alone):
            self._pump_soon(topic)
        elif topic.timer is None and self.config.linger_s > 0:
            self._pump_when_due(topic)

    async def _route_bound(self, topic: _Topic) -> None:
        """Look the route up, then put the waiting messages into the lanes of their queues, in order."""
        failed: ClientError | None = None
        try:
            await self._routes.for_publish(topic.name)
        except ClientError as no_route:
            failed = no_route
        waiting, topic.unrouted = topic.unrouted, []
        for item, pick in waiting:
            if failed is not None:
                self._end([item], item.size, failed)
            else:
                self._accept_bound(topic, item, pick)

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
            if self._opened or self._flushing:
                self._pump(topic)

    # --- ending -----------------------------------------------------------------------------------------------

    def _end(self, items: Sequence[Outgoing], size: int, error: ClientError | None) -> None:
        """Count messages as ended; those without a result get `error`."""
        if error is not None:
            for item in items:
                if not item.future.done():
                    item.future.set_exception(error)
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
            for lane in (topic.free, *topic.bound.values()):
                for item in lane.drop_all():
                    if not item.future.done():
                        item.future.set_exception(ClientClosed("producer"))
        self._wake(len(self._waiters))
