"""The client for programs without an event loop: the same names, blocking.

    from aerobee.sync import Client

    with Client("127.0.0.1:9876") as mq:
        with mq.producer() as producer:
            producer.send("orders", b"17")
        for message in mq.reader("orders", end="now"):
            print(message.body)
        with mq.consumer("billing", "orders") as consumer:
            for message in consumer:
                print(message.text())

Touches  one thread a client, with an event loop of its own.

Everything may be called from any thread. Arguments, results and errors are those of the asynchronous client.
A call that is interrupted (Ctrl-C) is cancelled in the loop too. After a fork make a new client.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from datetime import timedelta
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Self, TypeVar

from aerobee import client as asynchronous
from aerobee.consuming.pull_consumer import PullConsumer as AsyncPullConsumer
from aerobee.consuming.reader import Reader as AsyncReader
from aerobee.errors import ClientClosed
from aerobee.messages.group_message import DeliveredMessage, Outcome
from aerobee.messages.message import Message, MessageBatch, SendResult
from aerobee.producing.producer import Producer as AsyncProducer
from aerobee.producing.transactions import Transaction as AsyncTransaction
from aerobee.session.waiting import LoopThread, Waiter, called, made, waiting
from aerobee.terms.arguments import checked
from aerobee.terms.config import ClientConfig
from aerobee.terms.routes import MessageQueue
from aerobee.terms.start_at import Where
from aerobee.terms.statistics import ConsumerStatistics, ReaderStatistics

if TYPE_CHECKING:
    from aerobee.consuming.group_consumer import AnyConsumer
    from aerobee.messages.codecs import AnyCodec
    from aerobee.messages.group_message import AnyMessage
    from aerobee.messages.subscriptions import Topics
    from aerobee.session.blocking_admin import Admin as Admin

__all__ = [
    "Admin",
    "Client",
    "GroupConsumer",
    "GroupMessage",
    "Producer",
    "PullConsumer",
    "Reader",
    "Transaction",
]

BATCH_COUNT_MAX: Final = 32  # messages that come over from the loop at a time

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R", AsyncReader, AsyncPullConsumer)


class Transaction(Waiter[AsyncTransaction]):
    """The blocking `aerobee.Transaction`."""

    def __enter__(self) -> Self:
        self._thread.run(self._twin.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._twin.__aexit__(kind, error, trace))

    @property
    def result(self) -> SendResult:
        """Where the half message is."""
        return self._twin.result

    @property
    def transaction_id(self) -> str:
        """What to store beside the program's own data."""
        return self._twin.transaction_id

    def rollback(self) -> None:
        """Roll back at the end of the block."""
        self._twin.rollback()


def _started(
    method: Callable[Concatenate[AsyncProducer, P], Coroutine[Any, Any, S]],
) -> "Callable[Concatenate[Producer, P], Future[S]]":
    """`method` begun, once there is room for one message more."""

    @wraps(method)
    def start(self: "Producer", /, *args: P.args, **kwargs: P.kwargs) -> Future[S]:
        return self.begin(lambda: method(self._twin, *args, **kwargs))

    return start


class Producer(Waiter[AsyncProducer]):
    """The blocking `aerobee.Producer`. `send_nowait` waits for room while the producer's buffer is full."""

    def __init__(self, thread: LoopThread, producer: AsyncProducer) -> None:
        super().__init__(thread, producer)
        # As many messages as the producer holds may be on their way; the next caller waits.
        self._slots = threading.BoundedSemaphore(producer.config.pending_count_max)

    def __enter__(self) -> Self:
        self._thread.run(self._twin.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def begin(self, send: Callable[[], Coroutine[Any, Any, S]]) -> Future[S]:
        """Start to send one message when there is room for it."""
        self._slots.acquire()
        try:
            future = self._thread.start(send())
        except BaseException:
            self._slots.release()
            raise
        future.add_done_callback(lambda _: self._slots.release())
        return future

    send = waiting(AsyncProducer.send)
    send_nowait = _started(AsyncProducer.send)
    send_batch = waiting(AsyncProducer.send_batch)
    send_oneway = waiting(AsyncProducer.send_oneway)
    transaction = made(Transaction, AsyncProducer.transaction)
    request = waiting(AsyncProducer.request)
    cancel = waiting(AsyncProducer.cancel)
    queues = waiting(AsyncProducer.queues)
    statistics = called(AsyncProducer.statistics)
    flush = waiting(AsyncProducer.flush)
    close = waiting(AsyncProducer.close)


class _Reading(Waiter[R]):
    """What reader and consumer share: batches come over from the loop, messages are walked here."""

    def __enter__(self) -> Self:
        self._thread.run(self._twin.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Message]:
        """Single messages; the event loop's thread is asked once a batch."""
        for batch in self.batches():
            yield from self._twin.walk(batch)

    def batches(self) -> Iterator[MessageBatch]:
        """Batches, each from one queue."""
        while (batch := self.next_batch()) is not None:
            yield batch

    def next_batch(self) -> MessageBatch | None:
        """One batch; None at the end."""
        return self._thread.run(self._twin.next_batch())

    @property
    def positions(self) -> dict[MessageQueue, int]:
        """For each queue the queue offset after the last message handed out."""
        return self._twin.positions

    def statistics(self) -> ReaderStatistics:
        """As of the same class of `aerobee`."""
        return self._thread.call(self._twin.statistics)

    def close(self) -> None:
        """Stop reading."""
        self._thread.run(self._twin.close())


class Reader(_Reading[AsyncReader]):
    """The blocking `aerobee.Reader`."""

    seek = called(AsyncReader.seek)


class PullConsumer(_Reading[AsyncPullConsumer]):
    """The blocking `aerobee.PullConsumer`."""

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues being read."""
        return self._twin.queues

    commit = waiting(AsyncPullConsumer.commit)
    committed = waiting(AsyncPullConsumer.committed)
    seek = waiting(AsyncPullConsumer.seek)


class GroupMessage(DeliveredMessage[Any]):
    """The blocking `aerobee.GroupMessage`: all it says by the same names, and settling that waits."""

    __slots__ = ("_message", "_thread")

    def __init__(self, thread: LoopThread, message: "AnyMessage") -> None:
        super().__init__(
            message.record, message.owned, message.body_size_max, message.codec, message.deliveries
        )
        self._thread = thread
        self._message = message

    @property
    def outcome(self) -> Outcome | None:
        """How it was settled; None before that."""
        return self._message.outcome

    def ack(self) -> None:
        """This message is done."""
        self._thread.run(self._message.ack())

    @checked
    def retry_later(self, delay: timedelta | float | None = None, *, delay_level: int = 0) -> None:
        """Deliver this message again later."""
        self._thread.run(self._message.retry_later(delay, delay_level=delay_level))

    def dead_letter(self) -> None:
        """Put this message with the group's dead letters."""
        self._thread.run(self._message.dead_letter())

    @checked
    def reply(self, body: bytes | str, *, properties: Mapping[str, str] | None = None) -> SendResult:
        """Answer a request."""
        return self._thread.run(self._message.reply(body, properties=properties))


class GroupConsumer:
    """The blocking `aerobee.GroupConsumer`."""

    def __init__(self, thread: LoopThread, consumer: "AnyConsumer") -> None:
        self._thread = thread
        self._consumer = consumer

    def __enter__(self) -> Self:
        self._thread.run(self._consumer.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[GroupMessage]:
        """Single messages, until the consumer is closed; each counts as acked when the next one is asked for."""
        done: list[AnyMessage] = []
        waiting: deque[AnyMessage] = deque()
        try:
            while batch := self._thread.run(self._next(done)):
                done.clear()
                waiting.extend(batch)
                while waiting:
                    yield GroupMessage(self._thread, waiting[0])
                    done.append(waiting.popleft())
        finally:
            if done or waiting:
                with contextlib.suppress(ClientClosed):  # then the group gets it again
                    self._thread.call(lambda: self._leave(done, waiting))

    async def _next(self, done: "list[AnyMessage]") -> "list[AnyMessage]":
        """What is there, after settling what is done; empty when the consumer is closed."""
        self._settle(done)
        first = await self._consumer.next_message()
        if first is None:
            return []
        batch = [first]
        while len(batch) < BATCH_COUNT_MAX and (message := self._consumer.take()) is not None:
            batch.append(message)
        return batch

    def _settle(self, done: "Iterable[AnyMessage]") -> None:
        if self._consumer.config.auto_ack:
            for message in done:
                message.settle_acked()

    def _leave(self, done: "list[AnyMessage]", waiting: "deque[AnyMessage]") -> None:
        """The loop was left: what was not worked on is handed out again."""
        self._settle(done)
        # One that the program settles, or has settled, stays with it.
        in_hand = [] if self._consumer.config.auto_ack else list(waiting)[:1]
        for message in waiting:
            if message not in in_hand:
                self._consumer.put_back(message)

    @checked
    def run(
        self, handler: Callable[[GroupMessage], object], *, concurrency: int = 16, **options: Any
    ) -> None:
        """Call `handler` with every message, in `concurrency` threads, until the consumer is closed.

        What the handler returns or raises means what it means to `aerobee.GroupConsumer.run`.
        """
        thread = self._thread

        def call(message: "AnyMessage") -> object:
            return handler(GroupMessage(thread, message))

        thread.run(self._consumer.run(call, concurrency=concurrency, **options))

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues that are this member's now."""
        return self._thread.call(lambda: self._consumer.queues)

    @property
    def positions(self) -> dict[MessageQueue, int]:
        """For each own queue the offset that would be committed now."""
        return self._thread.call(lambda: self._consumer.positions)

    def statistics(self) -> ConsumerStatistics:
        """As `aerobee.GroupConsumer.statistics`."""
        return self._thread.call(self._consumer.statistics)

    def commit(self) -> None:
        """Commit now what is settled."""
        self._thread.run(self._consumer.commit())

    @checked
    def seek(self, where: Where, queue: MessageQueue | None = None) -> None:
        """Go on at `where` in one own queue, or in all."""
        self._thread.run(self._consumer.seek(where, queue))

    @checked
    def pause(self, *queues: MessageQueue) -> None:
        """Hand out nothing of these queues until `resume`."""
        self._thread.call(lambda: self._consumer.pause(*queues))

    @checked
    def resume(self, *queues: MessageQueue) -> None:
        """Hand out again what `pause` held back."""
        self._thread.call(lambda: self._consumer.resume(*queues))

    def close(self) -> None:
        """Let handlers finish, commit, leave the group."""
        self._thread.run(self._consumer.close())


class Client(Waiter[asynchronous.Client]):
    """The blocking `aerobee.Client`."""

    @checked
    def __init__(
        self,
        nameservers: str | Iterable[str] | None = None,
        *,
        config: ClientConfig | None = None,
        **more: object,
    ) -> None:
        self._twin = asynchronous.Client(nameservers, config=config, **more)
        self._loop_thread = None

    @classmethod
    def from_env(cls) -> "Client":
        """A client with settings from environment variables."""
        found = cls.__new__(cls)
        found._twin = asynchronous.Client.from_env()
        found._loop_thread = None
        return found

    def __enter__(self) -> Self:
        thread = LoopThread()
        try:
            thread.run(self._twin.__aenter__())
        except BaseException:
            thread.stop()
            raise
        self._loop_thread = thread
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Flush and close every producer, stop every reader, end the thread."""
        thread, self._loop_thread = self._loop_thread, None
        if thread is not None:
            try:
                thread.run(self._twin.close())
            finally:
                thread.stop()

    @property
    def admin(self) -> "Admin":
        """Administration calls, blocking."""
        from aerobee.session.blocking_admin import Admin

        return Admin(self._thread, self._twin.admin)

    producer = made(Producer, asynchronous.Client.producer)
    reader = made(Reader, asynchronous.Client.reader)
    pull_consumer = made(PullConsumer, asynchronous.Client.pull_consumer)

    @checked
    def consumer(
        self, group: str, topics: "Topics", *, codec: "AnyCodec | None" = None, **settings: Any
    ) -> GroupConsumer:
        """As `aerobee.Client.consumer`; to be used as `with`."""
        thread = self._thread
        return GroupConsumer(
            thread, thread.call(lambda: self._twin.consumer(group, topics, codec=codec, **settings))
        )

    statistics = called(asynchronous.Client.statistics)
    trace = waiting(asynchronous.Client.trace)
    query = waiting(asynchronous.Client.query)
    query_by_id = waiting(asynchronous.Client.query_by_id)
    queues = waiting(asynchronous.Client.queues)


def __getattr__(name: str) -> type:
    if name == "Admin":
        from aerobee.session.blocking_admin import Admin

        return Admin
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
