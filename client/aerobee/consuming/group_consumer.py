"""The group consumer: messages of a group, shared out among its members, handed to a loop or to a handler.

    async with client.consumer("billing", {"orders": "new || paid"}) as consumer:
        async for message in consumer:
            ...

Delivery  At least once. A message is committed when it and everything before it in its queue is settled. What was
          handed out and not settled when the program ends, or when its queue goes to another member, comes again.
Loop      A message counts as acked when the next one is asked for, unless it was settled otherwise or `auto_ack` is
          off. Leaving the loop by `break` or an exception settles nothing: the message in hand goes back.
Handler   `run(handler)` acks what the handler returned from, sends back what it raised from, and puts bodies that the
          codec cannot read with the dead letters.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from aerobee.consuming.group_member import GroupMember
from aerobee.consuming.key_runner import KeyRunner
from aerobee.consuming.send_back import SendBack
from aerobee.errors import ClientClosed, ClientError, InvalidMessage
from aerobee.messages.codecs import Codec, CodecError
from aerobee.messages.group_message import (
    DEAD_LETTER_LEVEL,
    AnyMessage,
    DeadLetter,
    GroupMessage,
    Outcome,
    RetryLater,
    level_for,
)
from aerobee.messages.message import SendResult
from aerobee.messages.owned_queue import OwnedQueue
from aerobee.messages.watching import Watch
from aerobee.net.offsets import Offsets
from aerobee.producing.replies import Replier
from aerobee.terms.arguments import checked
from aerobee.terms.config import ConsumerConfig
from aerobee.terms.rates import Rates
from aerobee.terms.routes import MessageQueue
from aerobee.terms.start_at import Where, parse_where
from aerobee.terms.statistics import ConsumerStatistics
from aerobee_proto.names import is_retry_topic
from aerobee_service.logs.event_log import event_logger

if TYPE_CHECKING:
    from aerobee.messages.meters import Meters

__all__ = ["AnyConsumer", "ConsumerParts", "GroupConsumer", "Handler", "by_sharding_key"]

log = event_logger("aerobee.consumer")

T = TypeVar("T")
Handler = Callable[[GroupMessage[T]], Awaitable[object] | object]
BATCH_COUNT_MAX: Final = 512


def by_sharding_key(message: AnyMessage) -> Hashable | None:
    """Messages of one queue with equal sharding keys stay in order; those without one are handled in any order."""
    key = message.sharding_key
    return None if key is None else (message.owned.queue, key)


@dataclass(slots=True, frozen=True)
class ConsumerParts:
    """What a group consumer works with besides its queues; made by `Client.consumer()`."""

    make_member: Callable[
        [Callable[[OwnedQueue], None]], GroupMember
    ]  # with who is told of records that came
    send_back: SendBack
    replier: Replier
    offsets: Offsets
    clock_ms: Callable[[], int]
    watch: Watch | None
    meters: "Meters | None"


class GroupConsumer(Generic[T]):
    """One member of a consumer group. Made by `Client.consumer()`; use it as `async with`."""

    def __init__(
        self,
        config: ConsumerConfig,
        codec: Codec[T] | None,
        *,
        body_size_max: int,
        parts: ConsumerParts,
        on_open: Callable[["AnyConsumer"], Awaitable[None]],
        on_close: Callable[["AnyConsumer"], None],
    ) -> None:
        # Fixed for life.
        self.member: Final = parts.make_member(self._on_records)
        self.config = config
        self._body_size_max = body_size_max
        self.codec = codec
        self._send_back = parts.send_back
        self._replier = parts.replier
        self._offsets = parts.offsets
        self.clock_ms = parts.clock_ms
        self._watch = parts.watch
        self._meters = parts.meters
        self._acked_count = 0  # since the start
        self._failed_count = 0
        self._on_open = on_open
        self._on_close = on_close
        # Moved by the calls below. A queue is in `_ready` once (its in_ready) while it may have something to hand out.
        self._ready: deque[OwnedQueue] = deque()
        self._arrived = asyncio.Event()
        self._loop_time = asyncio.get_running_loop().time
        self._runner: KeyRunner[GroupMessage[T]] | None = None
        self._handler: Handler[T] | None = None
        self._threads: ThreadPoolExecutor | None = None  # for a handler that is a plain function
        # Messages that come again, and when.
        self._resting: dict[asyncio.TimerHandle, Callable[[], None]] = {}
        self._rates: dict[str, Rates] = {}
        self.concurrency = 1  # messages in hand at a time; run() says how many
        self.started_ms = 0  # epoch milliseconds
        self._opened = False
        self._closed = False

    async def __aenter__(self) -> Self:
        if self._closed or self._opened:
            raise ClientClosed("consumer")
        await self.member.prepare()
        self._opened = True
        self.started_ms = self.clock_ms()
        try:
            await self._on_open(self)
            await self.member.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def group(self) -> str:
        """The group's name."""
        return self.member.settings.group

    @property
    def orderly(self) -> bool:
        """Whether queues are locked and handled strictly in order."""
        return self.member.settings.orderly

    # --- a loop over messages ---------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[GroupMessage[T]]:
        """Single messages, until the consumer is closed. Raises what ended a queue (DamagedRecord, a bad filter)."""
        self._check_open()
        return _Messages(self)

    @checked
    def batches(self, max_count: int = BATCH_COUNT_MAX) -> AsyncIterator[list[GroupMessage[T]]]:
        """What is there, at least one message and at most `max_count`, from any queues.

        All messages of a batch count as acked when the next batch is asked for, as in the loop over messages.
        """
        self._check_open()
        return _Batches(self, max_count)

    # --- a handler --------------------------------------------------------------------------------------------

    @checked
    async def run(
        self,
        handler: Handler[T],
        *,
        concurrency: int = 16,
        order_key: Callable[[GroupMessage[T]], Hashable | None] | None = by_sharding_key,
    ) -> None:
        """Call `handler` with every message until the consumer is closed.

        handler      a coroutine function, or a plain one, which is run in a thread
        concurrency  so many messages are in the handler at a time; of an orderly group one of each queue at most
        order_key    messages with equal keys are handled one after the other; None handles any two at once

        The handler returns: acked. It raises RetryLater or DeadLetter: that. It raises CodecError: dead letter, for
        the body will never be readable. It raises anything else: logged, and delivered again later.
        """
        if self._closed and self._opened:
            return  # a task that was to run this was overtaken by close()
        self._check_open()
        if self._runner is not None and self._runner.is_working:
            raise InvalidMessage(
                "run() is on its way already; raise `concurrency` instead of calling it twice"
            )
        if concurrency < 1:
            raise InvalidMessage(f"concurrency {concurrency} is not a number of messages at a time")
        self._handler = handler
        self.concurrency = concurrency
        if not inspect.iscoroutinefunction(handler) and self._threads is None:
            self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix=f"{self.group} handler")
        self._runner = KeyRunner(self.next_message, self._process, order_key or _no_key, concurrency)
        await self._runner.run()

    async def _process(self, message: GroupMessage[T]) -> None:
        """One message through the handler; it is settled afterwards, unless this is cancelled."""
        assert self._handler is not None
        watch = self._watch
        try:
            if watch is None:
                await self._call(self._handler, message)
            else:
                with watch.handling(message):
                    await self._call(self._handler, message)
        except RetryLater as earlier_start:
            await self._settle_later(message, level_for(earlier_start.delay, earlier_start.delay_level))
        except (DeadLetter, CodecError) as hopeless:
            log.warning("client.message_given_up", message_id=message.message_id, reason=str(hopeless))
            await self._settle_later(message, DEAD_LETTER_LEVEL)
        except Exception:
            log.exception(
                "client.handler_failed",
                group=self.group,
                topic=message.topic,
                message_id=message.message_id,
                reconsume_times=message.reconsume_times,
            )
            await self._settle_later(message, 0)
        else:
            message.settle_acked()

    async def _call(self, handler: Handler[T], message: GroupMessage[T]) -> None:
        """Call a handler of either kind; a plain function runs in a thread, with the context of this task."""
        if self._threads is None:
            result = handler(message)
        else:
            work = partial(copy_context().run, handler, message)
            result = await asyncio.get_running_loop().run_in_executor(self._threads, work)
        if inspect.isawaitable(result):
            await result

    @staticmethod
    async def _settle_later(message: GroupMessage[T], level: int) -> None:
        if level == DEAD_LETTER_LEVEL:
            await message.dead_letter()
        else:
            await message.retry_later(delay_level=level)

    async def consume_directly(self, message: GroupMessage[T]) -> None:
        """Handle one message that an operator sent here; raises what the handler raised.

        InvalidMessage when no handler is running.
        """
        if self._handler is None:
            raise InvalidMessage("this consumer has no handler: its program reads messages in a loop")
        await self._call(self._handler, message)

    # --- offsets ----------------------------------------------------------------------------------------------

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues that are this member's now, those of the retry topic included."""
        return tuple(sorted(self.member.owned))

    @property
    def positions(self) -> dict[MessageQueue, int]:
        """For each own queue the offset that would be committed now."""
        return self.member.committable()

    async def commit(self) -> None:
        """Commit now what is settled, instead of within `commit_s`."""
        self._check_open()
        await self.member.commit()

    @checked
    async def seek(self, where: Where, queue: MessageQueue | None = None) -> None:
        """Go on at `where` (as `start` of `Client.consumer`) in one own queue, or in all but the retry queues.

        What was pulled is dropped and the new offset committed, so that the group stays there.
        """
        self._check_open()
        position = parse_where(where, self.clock_ms())
        chosen = [queue] if queue is not None else [one for one in self.queues if not _is_retry(one)]
        for one in chosen:
            if one not in self.member.owned:
                raise InvalidMessage(f"{one} is not one of this member's queues")
        found = await asyncio.gather(*(self._offsets.resolve(one, position) for one in chosen))
        await self.member.reset(dict(zip(chosen, found, strict=True)))

    @checked
    def pause(self, *queues: MessageQueue) -> None:
        """Hand out nothing of these queues (without any: of all own ones) until `resume`."""
        self.member.pause(queues or self.queues)

    @checked
    def resume(self, *queues: MessageQueue) -> None:
        """Hand out again what `pause` held back."""
        for owned in self.member.resume(queues or self.queues):
            self._on_records(owned)

    def statistics(self) -> ConsumerStatistics:
        """What this member has done since it was made, and how far behind it is."""
        owned = list(self.member.owned.values())
        return ConsumerStatistics(
            group=self.group,
            acked_count=self._acked_count,
            failed_count=self._failed_count,
            waiting_count=sum([one.count for one in owned]),
            lags={one.queue: max(0, one.max_offset - one.tracker.committable) for one in owned},
        )

    def rates(self) -> dict[str, tuple[float, float, float, int]]:
        """By topic, of about the last minute: acked and failed messages a second, mean milliseconds of one; failures
        since the start."""
        now = self._loop_time()
        return {topic: (*rates.read(now), rates.failed_count) for topic, rates in self._rates.items()}

    # --- ending -----------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Take no more messages, let handlers finish within `close_timeout_s`, commit, leave the group."""
        if self._closed:
            return
        self._closed = True
        self.member.stop()
        self._arrived.set()
        for timer, wake in list(self._resting.items()):
            timer.cancel()
            wake()
        if self._runner is not None:
            self._runner.stop()
            late = await self._runner.drain(self.config.close_timeout_s)
            if late:
                log.warning(
                    "client.handlers_cancelled",
                    group=self.group,
                    handler_count=late,
                    timeout_s=self.config.close_timeout_s,
                )
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        await self.member.close()
        if self._opened:
            self._on_close(self)

    def _check_open(self) -> None:
        if self._closed or not self._opened:
            raise ClientClosed("consumer")

    # --- handing out ------------------------------------------------------------------------------------------

    def _on_records(self, owned: OwnedQueue) -> None:
        """A queue may have something to hand out, or is broken."""
        if not owned.in_ready:
            owned.in_ready = True
            self._ready.append(owned)
        self._arrived.set()

    def take(self) -> GroupMessage[T] | None:
        """The next message that is here, from the queues in turn; None when there is none now."""
        ready = self._ready
        if not ready or self._closed:
            return None
        now = self._loop_time()
        while ready:
            owned = ready.popleft()
            if owned.can_hand_out(now):
                ready.append(owned)
                record, deliveries = owned.take()
                owned.last_taken_at = now
                message = GroupMessage(record, owned, self, self._body_size_max, self.codec, deliveries)
                message.taken_at = now
                if self._watch is not None:
                    message.watched = {}
                    self._watch.delivered(message)
                return message
            if owned.broken is not None and not owned.dropped and not owned.waiting_count:
                ready.append(owned)
                raise owned.broken
            owned.in_ready = False
        return None

    async def next_message(self) -> GroupMessage[T] | None:
        """The next message, to be acked by the caller; None when the consumer is closed."""
        return self.take() or await self._wait_for_one()

    async def _wait_for_one(self) -> GroupMessage[T] | None:
        """Wait for a message; None when the consumer is closed."""
        while not self._closed:
            self._arrived.clear()
            if (message := self.take()) is not None:
                self._arrived.set()  # somebody else may wait, and there may be more
                return message
            await self._arrived.wait()
        return None

    # --- settling ---------------------------------------------------------------------------------------------

    def acked(self, message: AnyMessage) -> None:
        """A message is done. Called by the message."""
        owned = message.owned
        owned.settle(message.record, message.generation)
        if owned.serial:
            self._on_records(owned)
        self._count(message)

    async def later(self, message: AnyMessage, level: int) -> None:
        """A message is to come again, or to go to the dead letters. Called by the message."""
        if self.member.settings.broadcasting:
            log.warning(
                "client.broadcast_dropped",
                group=self.group,
                topic=message.topic,
                message_id=message.message_id,
            )
            self.acked(message)
        elif self.orderly and level != DEAD_LETTER_LEVEL and not self._is_worn_out(message):
            self._rest(message, self.config.suspend_s)
        else:
            await self._send(message, level)

    def _is_worn_out(self, message: AnyMessage) -> bool:
        limit = self.config.max_reconsume_times
        return limit is not None and message.reconsume_times >= limit

    async def _send(self, message: AnyMessage, level: int) -> None:
        try:
            if self.orderly and level != DEAD_LETTER_LEVEL:
                await self._send_back.publish(message, level)
            else:
                await self._send_back.send(message, level)
        except ClientError as failed:
            pause_s = self.config.resend_s
            log.warning(
                "client.resend_failed", group=self.group, message_id=message.message_id, reason=str(failed)
            )
            self._rest(message, pause_s)
        else:
            self.acked(message)

    def _rest(self, message: AnyMessage, pause_s: float) -> None:
        """Hand the message out again after a pause. An orderly queue hands out nothing meanwhile."""
        owned = message.owned
        loop = asyncio.get_running_loop()

        def wake() -> None:
            del self._resting[timer]
            owned.put_back(message.record, message.generation, message.deliveries + 1)
            self._on_records(owned)

        timer = loop.call_later(pause_s, wake)
        self._resting[timer] = wake
        self._count(message)

    def put_back(self, message: GroupMessage[T]) -> None:
        """A loop was left with this message in hand: it is handed out again, unless it is settled."""
        if message.outcome is None:
            message.owned.put_back(message.record, message.generation, message.deliveries)
            self._on_records(message.owned)

    def _count(self, message: AnyMessage) -> None:
        """A message is settled, or is to be handed out again after a pause."""
        now = self._loop_time()
        topic = message.owned.queue.topic
        rates = self._rates.get(topic)
        if rates is None:
            rates = self._rates[topic] = Rates(message.taken_at)
        rates.add(now - message.taken_at, now, ok=message.outcome is Outcome.ACKED)
        acked = message.outcome is Outcome.ACKED
        if acked:
            self._acked_count += 1
        else:
            self._failed_count += 1
        if self._meters is not None:
            outcome = message.outcome.value if message.outcome is not None else "rests"
            self._meters.processed(self.group, topic, outcome, now - message.taken_at)
        if self._watch is not None:
            self._watch.settled(message)

    async def reply(
        self, message: AnyMessage, body: bytes | str, properties: Mapping[str, str] | None
    ) -> SendResult:
        """Answer a request. Called by the message."""
        return await self._replier.reply(message, body, properties)


AnyConsumer = GroupConsumer[Any]  # of messages whose values nobody looks at here


class _InHand(Generic[T]):
    """What the two loops share: the messages that were handed out last.

    A loop that is left gives them back at once: nothing refers to its iterator any more.
    """

    __slots__ = ("_auto_ack", "_consumer", "_in_hand")

    def __init__(self, consumer: GroupConsumer[T]) -> None:
        self._consumer = consumer
        self._auto_ack = consumer.config.auto_ack
        self._in_hand: list[GroupMessage[T]] = []

    def __del__(self) -> None:
        if self._auto_ack:
            for message in self._in_hand:
                self._consumer.put_back(message)

    def _settle(self) -> None:
        """The messages in hand are done."""
        in_hand, self._in_hand = self._in_hand, []
        if self._auto_ack:
            for message in in_hand:
                message.settle_acked()


class _Messages(_InHand[T]):
    """The loop over messages."""

    __slots__ = ()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> GroupMessage[T]:
        self._settle()
        found = self._consumer.take() or await self._consumer.next_message()
        if found is None:
            raise StopAsyncIteration
        self._in_hand.append(found)
        return found


class _Batches(_InHand[T]):
    """The loop over batches."""

    __slots__ = ("_max_count",)

    def __init__(self, consumer: GroupConsumer[T], max_count: int) -> None:
        super().__init__(consumer)
        self._max_count = max_count

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[GroupMessage[T]]:
        self._settle()
        found = await self._consumer.next_message()
        if found is None:
            raise StopAsyncIteration
        self._in_hand.append(found)
        while len(self._in_hand) < self._max_count and (message := self._consumer.take()) is not None:
            self._in_hand.append(message)
        return list(self._in_hand)


def _no_key(_: AnyMessage) -> None:
    return None


def _is_retry(queue: MessageQueue) -> bool:
    return is_retry_topic(queue.topic)
