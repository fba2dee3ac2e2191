"""The producer: messages in, batches out, results back.

Touches  brokers through `Peers`, time through the event loop's clock.

Way of a message: send() -> checked and encoded -> lane of its topic (or of its queue) -> batch -> one request
-> results to the waiting futures. Several messages travel as one SEND_BATCH, a single one as SEND_MESSAGE_V2.
While a request is out, messages gather in the lane: the busier the broker, the bigger the batches.

Order     Messages sent with `queue` or `sharding_key` go one batch after the other, so their order on the queue
          is the order of the calls, retries included. Others may overtake each other.
Retries   On another broker where there is one, at most `attempts_max` tries inside `send_timeout_s`. A try that
          timed out may have been stored: then the message is there twice, with one and the same message_id.

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
from aerobee.errors import (
    Attempt,
    BrokerRefused,
    BrokerUnreachable,
    BufferFull,
    ClientClosed,
    ClientError,
    InvalidMessage,
    NoBroker,
    RequestTimeout,
    SendFailed,
    code_name,
)
from aerobee.message import OutgoingMessage, SendResult, SendStatus
from aerobee.peers import Peers
from aerobee.queue_choice import LowestLatency, QueueChooser, RoundRobin
from aerobee.route_table import RouteTable
from aerobee.routes import TEMPLATE_TOPIC, MessageQueue, Route
from aerobee_proto import properties as property_names
from aerobee_proto.batch import ENTRY_OVERHEAD, encode_batch_entry
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.compression import compress_body
from aerobee_proto.errors import AerobeeError
from aerobee_proto.frames import Command
from aerobee_proto.javahash import java_hash
from aerobee_proto.message_ids import UniqueKeyFactory
from aerobee_proto.names import check_topic

__all__ = ["Producer"]

log = structlog.get_logger()

QueueChoice = MessageQueue | int | None

# Another broker may do better; everything else is the caller's to solve.
RETRYABLE_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    }
)
STATUS_BY_CODE: Final = {status.value: status for status in SendStatus}
# What the protocol itself keeps in properties; this client writes those it needs from arguments.
RESERVED_PROPERTIES: Final = frozenset(
    value
    for name, value in vars(property_names).items()
    if name.isupper() and isinstance(value, str) and not name.endswith("SEPARATOR")
)
MESSAGE_ILLEGAL: Final = int(ResponseCode.MESSAGE_ILLEGAL)
# Pause before the same broker is tried again; another broker is tried at once.
RETRY_PAUSE_S: Final = 0.05
TEMPLATE_QUEUES: Final = "4"
FLAG_BOUND: Final = 2**31


class _Pending:
    """One accepted message: encoded, waiting for its result."""

    __slots__ = ("body", "flag", "future", "message_id", "properties", "sys_flag")

    def __init__(
        self,
        body: bytes,
        properties: str,
        flag: int,
        sys_flag: int,
        message_id: str,
        future: asyncio.Future[SendResult],
    ) -> None:
        self.body = body
        self.properties = properties
        self.flag = flag
        self.sys_flag = sys_flag
        self.message_id = message_id
        self.future = future


class _BoundMessage:
    """A message that must go to the queue of its key, while the route is not known yet."""

    __slots__ = ("alone", "deadline", "item", "pick", "size")

    def __init__(self, item: _Pending, size: int, deadline: float, alone: bool, pick: int | str) -> None:
        self.item = item
        self.size = size
        self.deadline = deadline
        self.alone = alone
        self.pick = pick


class _Topic:
    """Lanes of one topic: one for free messages, one for each queue with bound ones."""

    __slots__ = ("bound", "free", "name", "timer", "timer_due", "unrouted")

    def __init__(self, name: str, free: Lane[_Pending]) -> None:
        self.name = name
        self.free = free
        self.bound: dict[MessageQueue, Lane[_Pending]] = {}
        self.unrouted: list[_BoundMessage] = []
        self.timer: asyncio.Handle | None = None
        self.timer_due = 0.0


class Producer:
    """Sends messages. Made by `Client.producer()`; use it as `async with`."""

    def __init__(
        self,
        group: str,
        config: ProducerConfig,
        *,
        peers: Peers,
        routes: RouteTable,
        keys: UniqueKeyFactory,
        clock_ms: Callable[[], int],
        body_size_max: int,
        rotation_start: int,
        on_open: Callable[["Producer"], None],
        on_close: Callable[["Producer"], None],
    ) -> None:
        # Fixed for life.
        self.group = group
        self.config = config
        self._peers = peers
        self._routes = routes
        self._keys = keys
        self._clock_ms = clock_ms
        self._body_size_max = body_size_max
        self._on_open = on_open
        self._on_close = on_close
        self._chooser: QueueChooser = (
            LowestLatency(rotation_start) if config.queue_choice == "latency" else RoundRobin(rotation_start)
        )
        # Moved by the calls below.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._topics: dict[str, _Topic] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._flushing = 0
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()
        self._closed = False
        self.pending_count = 0
        self.pending_bytes = 0

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
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
        if not self._has_room():
            await self.ready()
        return await self._submit(
            topic, body, tags, keys, properties, queue, sharding_key, delay_level, flag, timeout_s
        )

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
        if not self._has_room():
            raise BufferFull(self.pending_count, self.pending_bytes)
        return self._submit(
            topic, body, tags, keys, properties, queue, sharding_key, delay_level, flag, timeout_s
        )

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
        target = queue
        if queue is None and sharding_key is None:
            route = await self._routes.for_publish(_checked_topic(topic))
            target = self._chooser.choose(route.publish, (), self._now())
        futures = []
        for message in messages:
            one = message if isinstance(message, OutgoingMessage) else OutgoingMessage(message)
            if not self._has_room():
                await self.ready()
            futures.append(
                self._submit(
                    topic,
                    one.body,
                    one.tags,
                    one.keys,
                    one.properties,
                    target,
                    sharding_key,
                    0,
                    one.flag,
                    timeout_s,
                )
            )
        results = await asyncio.gather(*futures, return_exceptions=True)
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
        item, alone = self._encode(_checked_topic(topic), body, tags, keys, properties, sharding_key, 0, flag)
        del alone
        route = await self._routes.for_publish(topic)
        pick = queue if queue is not None else sharding_key
        target = (
            self._chooser.choose(route.publish, (), self._now()) if pick is None else pick_queue(route, pick)
        )
        addr = self._routes.master_addr(topic, target.broker_name)
        header = self._header(target, item.sys_flag, item.flag, item.properties, batch=False)
        await self._peers.oneway(
            f"send to topic {topic!r}", addr, RequestCode.SEND_MESSAGE_V2, header, item.body
        )
        return item.message_id

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues one can send to, ordered by broker and queue id."""
        return (await self._routes.for_publish(_checked_topic(topic))).publish

    async def ready(self) -> None:
        """Wait until send_nowait has room. Waiters are served in the order they came."""
        while not self._has_room():
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
        if self._closed:
            return
        self._closed = True
        try:
            await self.flush()
        finally:
            self._on_close(self)
            self._abandon()

    # --- accepting --------------------------------------------------------------------------------------------

    def _has_room(self) -> bool:
        config = self.config
        return self.pending_count < config.pending_count_max and self.pending_bytes < config.pending_bytes_max

    def _check_open(self) -> None:
        if self._closed or self._loop is None:
            raise ClientClosed("producer")

    def _now(self) -> float:
        assert self._loop is not None
        return self._loop.time()

    def _submit(
        self,
        topic_name: str,
        body: bytes | str,
        tags: str | None,
        keys: str | Iterable[str] | None,
        properties: Mapping[str, str] | None,
        queue: QueueChoice,
        sharding_key: str | None,
        delay_level: int,
        flag: int,
        timeout_s: float | None,
    ) -> asyncio.Future[SendResult]:
        if self._closed or self._loop is None:
            raise ClientClosed("producer")
        topic = self._topics.get(topic_name)
        if topic is None:
            topic = self._topics[_checked_topic(topic_name)] = _Topic(topic_name, self._lane(bound=False))
        item, alone = self._encode(topic_name, body, tags, keys, properties, sharding_key, delay_level, flag)
        size = len(item.body) + len(item.properties) + ENTRY_OVERHEAD
        now = self._loop.time()
        deadline = now + (self.config.send_timeout_s if timeout_s is None else timeout_s)
        self.pending_count += 1
        self.pending_bytes += size
        self._idle.clear()
        if queue is None and sharding_key is None:
            if topic.free.add(item, size, now, deadline, alone=alone):
                self._pump_soon(topic)
            elif topic.timer is None:
                self._pump_when_due(topic)
        else:
            pick = queue if queue is not None else sharding_key
            assert pick is not None
            self._add_bound(topic, item, size, now, deadline, alone, pick)
        return item.future

    def _encode(
        self,
        topic: str,
        body: bytes | str,
        tags: str | None,
        keys: str | Iterable[str] | None,
        properties: Mapping[str, str] | None,
        sharding_key: str | None,
        delay_level: int,
        flag: int,
    ) -> tuple[_Pending, bool]:
        """The message as it travels, and whether it must travel alone."""
        assert self._loop is not None
        data = body.encode() if isinstance(body, str) else bytes(body)
        if not data or len(data) > self._body_size_max:
            raise InvalidMessage(_body_fault(topic, len(data), self._body_size_max))
        message_id = self._keys.next_key()
        text = f"UNIQ_KEY\x01{message_id}\x02"
        if tags or keys or properties or sharding_key or delay_level:
            text += _property_text(tags, keys, properties, sharding_key, delay_level)
            if len(text) > property_names.PROPERTIES_SIZE_MAX or not text.isascii():
                _check_size(text)
        if not -FLAG_BOUND <= flag < FLAG_BOUND:
            raise InvalidMessage(f"flag {flag} does not fit a signed 32-bit integer")
        sys_flag = 0
        limit = self.config.compress_over
        if limit is not None and len(data) > limit:
            packed, packed_flag = compress_body(data, self.config.compression, self.config.compression_level)
            if len(packed) < len(data):
                data, sys_flag = packed, packed_flag
        future = self._loop.create_future()
        return _Pending(data, text, flag, sys_flag, message_id, future), bool(sys_flag or delay_level)

    def _add_bound(
        self,
        topic: _Topic,
        item: _Pending,
        size: int,
        now: float,
        deadline: float,
        alone: bool,
        pick: MessageQueue | int | str,
    ) -> None:
        if not isinstance(pick, MessageQueue):
            route = self._routes.cached(topic.name)
            if route is None or not route.publish or topic.unrouted:
                topic.unrouted.append(_BoundMessage(item, size, deadline, alone, pick))
                if len(topic.unrouted) == 1:
                    self._spawn(self._route_bound(topic), f"route for {topic.name}")
                return
            try:
                pick = pick_queue(route, pick)
            except ClientError as refused:
                self._end([item], size, refused)
                return
        lane = topic.bound.get(pick)
        if lane is None:
            lane = topic.bound[pick] = self._lane(bound=True)
        if lane.add(item, size, now, deadline, alone=alone):
            self._pump_soon(topic)
        else:
            self._pump_when_due(topic)

    async def _route_bound(self, topic: _Topic) -> None:
        """Look the route up, then put the waiting messages into the lanes of their queues, in order."""
        failed: ClientError | None = None
        try:
            await self._routes.for_publish(topic.name)
        except ClientError as no_route:
            failed = no_route
        waiting, topic.unrouted = topic.unrouted, []
        now = self._now()
        for one in waiting:
            if failed is not None:
                self._end([one.item], one.size, failed)
            else:
                self._add_bound(topic, one.item, one.size, now, one.deadline, one.alone, one.pick)

    def _lane(self, *, bound: bool) -> Lane[_Pending]:
        config = self.config
        return Lane(
            linger_s=config.linger_s,
            batch_bytes=config.batch_bytes,
            batch_count=config.batch_count,
            in_flight_max=1 if bound else config.in_flight_max,
        )

    # --- letting batches go -----------------------------------------------------------------------------------

    def _pump_soon(self, topic: _Topic) -> None:
        """Look at the lanes at the end of this turn of the loop, so that everything sent in it goes together."""
        if topic.timer is not None:
            if topic.timer_due == 0.0:
                return
            topic.timer.cancel()
        assert self._loop is not None
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
        assert self._loop is not None
        topic.timer_due = due
        topic.timer = self._loop.call_at(due, self._pump, topic)

    def _pump(self, topic: _Topic) -> None:
        if topic.timer is not None:
            topic.timer.cancel()
            topic.timer = None
        now, flush = self._now(), self._flushing > 0
        while (batch := topic.free.take(now, flush=flush)) is not None:
            self._spawn(self._deliver(topic, topic.free, batch, None), f"send to {topic.name}")
        for queue, lane in topic.bound.items():
            while (batch := lane.take(now, flush=flush)) is not None:
                self._spawn(self._deliver(topic, lane, batch, queue), f"send to {queue}")
        self._pump_when_due(topic)

    def _spawn(self, work: "asyncio._CoroutineLike[None]", name: str) -> None:
        assert self._loop is not None
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(
        self, topic: _Topic, lane: Lane[_Pending], batch: Batch[_Pending], bound: MessageQueue | None
    ) -> None:
        """Bring one batch to an end, whatever happens, and let the next one go."""
        error: ClientError | None = None
        try:
            await self._send(topic.name, batch.items, bound, batch.deadline)
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
            if not self._closed or self._flushing:
                self._pump(topic)

    async def _send(
        self, topic: str, items: list[_Pending], bound: MessageQueue | None, deadline: float
    ) -> None:
        """Try until stored. A batch refused for one of its messages is sent again message by message."""
        try:
            queue, answer = await self._try_brokers(topic, items, bound, deadline)
        except BrokerRefused as refused:
            if refused.code != MESSAGE_ILLEGAL or len(items) == 1:
                raise
            for item in items:
                await self._send_alone(topic, item, bound, deadline)
            return
        self._store_results(items, queue, answer)

    async def _send_alone(
        self, topic: str, item: _Pending, bound: MessageQueue | None, deadline: float
    ) -> None:
        try:
            await self._send(topic, [item], bound, deadline)
        except ClientError as failed:
            if not item.future.done():
                item.future.set_exception(failed)

    async def _try_brokers(
        self, topic: str, items: list[_Pending], bound: MessageQueue | None, deadline: float
    ) -> tuple[MessageQueue, Command]:
        """One try after the other: the queue written and the broker's answer."""
        attempts: list[Attempt] = []
        avoid: set[str] = set()
        body = (
            items[0].body
            if len(items) == 1
            else b"".join(
                [encode_batch_entry(item.body, item.properties.encode(), item.flag) for item in items]
            )
        )
        while len(attempts) < self.config.attempts_max:
            route = await self._routes.for_publish(topic)
            started = self._now()
            if deadline <= started:
                break
            queue = bound or self._chooser.choose(route.publish, avoid, started)
            tries_left = self.config.attempts_max - len(attempts)
            others = bound is None and any(
                other.broker_name not in {queue.broker_name, *avoid} for other in route.publish
            )
            limit = (deadline - started) / (tries_left if others else 1)
            outcome = await self._try_once(route, queue, items, body, limit)
            took_s = self._now() - started
            if isinstance(outcome, Command):
                self._chooser.record(queue.broker_name, took_s * 1000, started + took_s)
                if outcome.code in STATUS_BY_CODE:
                    return queue, outcome
            await self._note_failure(topic, queue, outcome, took_s, attempts)
            avoid.add(queue.broker_name)
            if not others and len(attempts) < self.config.attempts_max:
                await asyncio.sleep(min(RETRY_PAUSE_S * len(attempts), max(0.0, deadline - self._now())))
        raise SendFailed(topic, attempts, self._why_given_up(attempts))

    async def _try_once(
        self, route: Route, queue: MessageQueue, items: list[_Pending], body: bytes, limit_s: float
    ) -> Command | ClientError:
        """One request: the broker's answer, or why there is none."""
        what = f"send to topic {queue.topic!r}"
        single = len(items) == 1
        first = items[0]
        try:
            addr = self._routes.master_addr(queue.topic, queue.broker_name)
            if single:
                header = self._header(queue, first.sys_flag, first.flag, first.properties, batch=False)
                code = RequestCode.SEND_MESSAGE_V2
            else:
                header = self._header(queue, 0, 0, "", batch=True)
                code = RequestCode.SEND_BATCH_MESSAGE
            return await self._peers.request(what, addr, code, header, body, limit_s)
        except (RequestTimeout, BrokerUnreachable, NoBroker) as failed:
            return failed

    async def _note_failure(
        self,
        topic: str,
        queue: MessageQueue,
        outcome: Command | ClientError,
        took_s: float,
        attempts: list[Attempt],
    ) -> None:
        """Remember a failed try; BrokerRefused when no other broker could do better."""
        addr = self._addr_or_unknown(queue)
        if isinstance(outcome, Command):
            if outcome.code not in RETRYABLE_CODES:
                raise BrokerRefused(f"send to topic {topic!r}", addr, outcome.code, outcome.remark)
            text = f"code {outcome.code} {code_name(outcome.code)}: {outcome.remark or 'no remark'}"
        else:
            text = str(outcome)
        reachable = isinstance(outcome, (Command, RequestTimeout))
        self._chooser.record_error(queue.broker_name, self._now(), reachable=reachable)
        attempts.append(Attempt(queue.broker_name, addr, text, round(took_s * 1000)))
        log.debug("client.send_retried", topic=topic, broker_name=queue.broker_name, addr=addr, outcome=text)
        if not reachable or (isinstance(outcome, Command) and outcome.code == ResponseCode.TOPIC_NOT_EXIST):
            await self._routes.refresh(topic)

    def _addr_or_unknown(self, queue: MessageQueue) -> str:
        try:
            return self._routes.master_addr(queue.topic, queue.broker_name)
        except NoBroker:
            return "an unknown address"

    def _why_given_up(self, attempts: list[Attempt]) -> str:
        if len(attempts) >= self.config.attempts_max:
            return f"{len(attempts)} attempts failed"
        if not attempts:
            return "its time was over before it could be tried: the brokers are slower than the calls"
        return f"time was over after {len(attempts)} attempts"

    def _header(
        self, queue: MessageQueue, sys_flag: int, flag: int, properties: str, *, batch: bool
    ) -> dict[str, str]:
        """Header of SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE: `SendMessageV2Header` written out, it is hot."""
        return {
            "a": self.group,
            "b": queue.topic,
            "c": TEMPLATE_TOPIC,
            "d": TEMPLATE_QUEUES,
            "e": str(queue.queue_id),
            "f": str(sys_flag),
            "g": str(self._clock_ms()),
            "h": str(flag),
            "i": properties,
            "j": "0",
            "k": "false",
            "m": "true" if batch else "false",
            "n": queue.broker_name,
        }

    # --- ending -----------------------------------------------------------------------------------------------

    def _store_results(self, items: list[_Pending], queue: MessageQueue, answer: Command) -> None:
        ext = answer.ext
        ids = ext.get("msgId", "").split(",")
        first = int(ext.get("queueOffset", "-1"))
        queue_id = int(ext.get("queueId", queue.queue_id))
        if queue_id != queue.queue_id:
            queue = queue._replace(queue_id=queue_id)
        status = STATUS_BY_CODE[answer.code]
        last_id = len(ids) - 1
        for index, item in enumerate(items):
            if not item.future.done():
                offset_id = ids[index if index < last_id else last_id]
                item.future.set_result(SendResult(item.message_id, queue, first + index, offset_id, status))
        route = self._routes.cached(queue.topic)
        if route is not None and route.from_template:
            self._spawn(self._learn_route(queue.topic), f"route of {queue.topic}")

    async def _learn_route(self, topic: str) -> None:
        await self._routes.refresh(topic)

    def _end(self, items: Sequence[_Pending], size: int, error: ClientError | None) -> None:
        """Count messages as ended; those without a result get `error`."""
        if error is not None:
            for item in items:
                if not item.future.done():
                    item.future.set_exception(error)
        self.pending_count -= len(items)
        self.pending_bytes -= size
        if self.pending_count == 0:
            self._idle.set()
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


def pick_queue(route: Route, pick: MessageQueue | int | str) -> MessageQueue:
    """The queue meant by a queue, a position in the publish queues, or a sharding key.

    Keys are spread by Java's string hash, as the official clients do: both sides agree on the queue.
    """
    queues = route.publish
    if isinstance(pick, MessageQueue):
        return pick
    if isinstance(pick, str):
        # Java's % keeps the sign of the hash, so the absolute value of the hash decides.
        return queues[abs(java_hash(pick)) % len(queues)]
    if not 0 <= pick < len(queues):
        raise InvalidMessage(
            f"topic {route.topic!r} has queues 0 to {len(queues) - 1} to send to; {pick} is none of them"
        )
    return queues[pick]


def _checked_topic(topic: str) -> str:
    try:
        check_topic(topic)
    except AerobeeError as refused:
        raise InvalidMessage(getattr(refused, "remark", str(refused))) from refused
    return topic


def _body_fault(topic: str, size: int, size_max: int) -> str:
    if size == 0:
        return f"message for topic {topic!r} has an empty body; brokers refuse those"
    return f"message for topic {topic!r} has a body of {size} bytes; at most {size_max} may be sent"


def _property_text(
    tags: str | None,
    keys: str | Iterable[str] | None,
    properties: Mapping[str, str] | None,
    sharding_key: str | None,
    delay_level: int,
) -> str:
    """The properties of a message besides its id, checked, in property form."""
    text = "".join([_user_entry(name, value) for name, value in properties.items()]) if properties else ""
    if tags:
        text += _entry("TAGS", tags)
    if keys:
        text += _entry("KEYS", keys if isinstance(keys, str) else " ".join(keys))
    if sharding_key:
        text += _entry("__SHARDINGKEY", sharding_key)
    if delay_level:
        if not 0 < delay_level <= 18:
            raise InvalidMessage(f"delay_level {delay_level} is not 1..18")
        text += f"DELAY\x01{delay_level}\x02"
    return text


def _check_size(text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as broken:
        raise InvalidMessage(f"tags, keys or properties are not valid Unicode: {broken}") from broken
    if size > property_names.PROPERTIES_SIZE_MAX:
        raise InvalidMessage(
            f"the properties have {size} bytes; at most {property_names.PROPERTIES_SIZE_MAX} may be sent"
        )


def _user_entry(name: str, value: str) -> str:
    if name in RESERVED_PROPERTIES or name.startswith(property_names.TRANSIENT_PREFIX):
        raise InvalidMessage(f"property {name!r} belongs to the protocol; choose another name")
    if not name or not value:
        raise InvalidMessage(f"property {name!r} with value {value!r}: readers drop empty names and values")
    return _entry(name, value)


def _entry(name: str, value: str) -> str:
    if "\x01" in value or "\x02" in value or "\x01" in name or "\x02" in name:
        raise InvalidMessage(
            f"property {name!r} with value {value!r} holds U+0001 or U+0002, which separate properties"
        )
    return f"{name}\x01{value}\x02"
