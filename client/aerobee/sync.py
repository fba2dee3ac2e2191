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

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from aerobee import client as asynchronous
from aerobee.arguments import checked
from aerobee.config import ClientConfig
from aerobee.errors import ClientClosed
from aerobee.message import Message, MessageBatch, SendResult
from aerobee.producer import Producer as AsyncProducer
from aerobee.pull_consumer import PullConsumer as AsyncPullConsumer
from aerobee.reader import Reader as AsyncReader
from aerobee.routes import MessageQueue
from aerobee.start_at import Where
from aerobee.statistics import ClientStatistics, ConsumerStatistics, ProducerStatistics, ReaderStatistics
from aerobee.transactions import Transaction as AsyncTransaction

if TYPE_CHECKING:
    from aerobee.group_consumer import GroupConsumer as AsyncGroupConsumer
    from aerobee.group_message import GroupMessage as AsyncGroupMessage
    from aerobee.trace import TraceRecord

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

T = TypeVar("T")
R = TypeVar("R", AsyncReader, AsyncPullConsumer)


class _LoopThread:
    """An event loop in a thread; `run` hands it work and waits."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="aerobee.sync", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if not self._thread.is_alive():
            work.close()
            raise ClientClosed("client")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # an interrupt leaves nothing behind; of a finished call nothing changes
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Run a plain function in the loop's thread."""

        async def work() -> T:
            return function()

        return self.run(work())

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()  # calls of other threads that came too late end with CancelledError
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


class Client:
    """The blocking `aerobee.Client`."""

    @checked
    def __init__(
        self,
        nameservers: str | Iterable[str] | None = None,
        *,
        config: ClientConfig | None = None,
        **more: Any,
    ) -> None:
        self._client = asynchronous.Client(nameservers, config=config, **more)
        self._thread: _LoopThread | None = None

    @classmethod
    def from_env(cls) -> "Client":
        """A client with settings from environment variables."""
        made = cls.__new__(cls)
        made._client = asynchronous.Client.from_env()
        made._thread = None
        return made

    def __enter__(self) -> Self:
        thread = _LoopThread()
        try:
            thread.run(self._client.__aenter__())
        except BaseException:
            thread.stop()
            raise
        self._thread = thread
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Flush and close every producer, stop every reader, end the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                thread.run(self._client.close())
            finally:
                thread.stop()

    @property
    def admin(self) -> "Admin":
        """Administration calls, blocking."""
        return Admin(self._open(), self._client)

    def producer(self, *args: Any, **settings: Any) -> "Producer":
        """As `aerobee.Client.producer`; to be used as `with`."""
        thread = self._open()
        return Producer(thread, thread.call(lambda: self._client.producer(*args, **settings)))

    @checked
    def reader(self, topic: str, **settings: Any) -> "Reader":
        """As `aerobee.Client.reader`."""
        thread = self._open()
        return Reader(thread, thread.call(lambda: self._client.reader(topic, **settings)))

    @checked
    def pull_consumer(self, group: str, topic: str, **settings: Any) -> "PullConsumer":
        """As `aerobee.Client.pull_consumer`; to be used as `with`."""
        thread = self._open()
        return PullConsumer(thread, thread.call(lambda: self._client.pull_consumer(group, topic, **settings)))

    @checked
    def consumer(self, group: str, topics: Any, **settings: Any) -> "GroupConsumer":
        """As `aerobee.Client.consumer`; to be used as `with`."""
        thread = self._open()
        return GroupConsumer(thread, thread.call(lambda: self._client.consumer(group, topics, **settings)))

    def statistics(self) -> ClientStatistics:
        """As `aerobee.Client.statistics`."""
        return self._open().call(self._client.statistics)

    @checked
    def trace(self, message_id: str) -> "list[TraceRecord]":
        """As `aerobee.Client.trace`."""
        return self._open().run(self._client.trace(message_id))

    @checked
    def query(self, topic: str, *, key: str, **bounds: Any) -> list[Message]:
        """As `aerobee.Client.query`."""
        return self._open().run(self._client.query(topic, key=key, **bounds))

    @checked
    def query_by_id(self, message_id: str, topic: str | None = None) -> Message | None:
        """As `aerobee.Client.query_by_id`."""
        return self._open().run(self._client.query_by_id(message_id, topic))

    @checked
    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """As `aerobee.Client.queues`."""
        return self._open().run(self._client.queues(topic))

    def _open(self) -> _LoopThread:
        if self._thread is None:
            raise ClientClosed("client")
        return self._thread


class Admin:
    """Every call of `aerobee.Admin`, blocking, by the same name with the same arguments."""

    def __init__(self, thread: _LoopThread, client: asynchronous.Client) -> None:
        self._thread = thread
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._client.admin, name)

        def blocking(*args: Any, **options: Any) -> Any:
            return self._thread.run(call(*args, **options))

        return blocking


class Producer:
    """The blocking `aerobee.Producer`."""

    def __init__(self, thread: _LoopThread, producer: AsyncProducer) -> None:
        self._thread = thread
        self._producer = producer
        # As many messages as the producer holds may be on their way; the next caller waits.
        self._slots = threading.BoundedSemaphore(producer.config.pending_count_max)

    def __enter__(self) -> Self:
        self._thread.run(self._producer.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, topic: str, body: Any, **options: Any) -> SendResult:
        """Send one message and wait until it is stored. Options as in `aerobee.Producer.send`."""
        return self._thread.run(self._producer.send(topic, body, **options))

    def send_nowait(self, topic: str, body: Any, **options: Any) -> Future[SendResult]:
        """Send one message; the future gives its result. Waits for room while the producer's buffer is full."""
        self._slots.acquire()
        try:
            future = self._thread.start(self._producer.send(topic, body, **options))
        except BaseException:
            self._slots.release()
            raise
        future.add_done_callback(lambda _: self._slots.release())
        return future

    @checked
    def send_batch(self, topic: str, messages: Sequence[Any], **options: Any) -> list[SendResult]:
        """Send messages to one queue, in order."""
        return self._thread.run(self._producer.send_batch(topic, messages, **options))

    def send_oneway(self, topic: str, body: Any, **options: Any) -> str:
        """Send one message without asking whether it arrived; returns its message_id."""
        return self._thread.run(self._producer.send_oneway(topic, body, **options))

    def transaction(self, topic: str, body: Any, **options: Any) -> "Transaction":
        """As `aerobee.Producer.transaction`; to be used as `with`."""
        return Transaction(
            self._thread, self._thread.call(lambda: self._producer.transaction(topic, body, **options))
        )

    def request(self, topic: str, body: Any, **options: Any) -> Message:
        """Send a message and wait for its reply; options as in `aerobee.Producer.request`."""
        return self._thread.run(self._producer.request(topic, body, **options))

    @checked
    def cancel(self, sent: SendResult | str) -> str:
        """Take back a message with a delivery time."""
        return self._thread.run(self._producer.cancel(sent))

    @checked
    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues one can send to."""
        return self._thread.run(self._producer.queues(topic))

    def statistics(self) -> ProducerStatistics:
        """As `aerobee.Producer.statistics`."""
        return self._thread.call(self._producer.statistics)

    def flush(self) -> None:
        """Wait until every accepted message has its result."""
        self._thread.run(self._producer.flush())

    def close(self) -> None:
        """Flush, then accept nothing more."""
        self._thread.run(self._producer.close())


class _Reading(Generic[R]):
    """What reader and consumer share: batches come over from the loop, messages are walked here."""

    def __init__(self, thread: _LoopThread, reading: R) -> None:
        self._thread = thread
        self._reading: R = reading

    def __enter__(self) -> Self:
        self._thread.run(self._reading.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Message]:
        """Single messages; the event loop's thread is asked once a batch."""
        for batch in self.batches():
            yield from self._reading.walk(batch)

    def batches(self) -> Iterator[MessageBatch]:
        """Batches, each from one queue."""
        while (batch := self.next_batch()) is not None:
            yield batch

    def next_batch(self) -> MessageBatch | None:
        """One batch; None at the end."""
        return self._thread.run(self._reading.next_batch())

    @property
    def positions(self) -> dict[MessageQueue, int]:
        """For each queue the logical offset after the last message handed out."""
        return self._reading.positions

    def statistics(self) -> ReaderStatistics:
        """As of the same class of `aerobee`."""
        return self._thread.call(self._reading.statistics)

    def close(self) -> None:
        """Stop reading."""
        self._thread.run(self._reading.close())


class Reader(_Reading[AsyncReader]):
    """The blocking `aerobee.Reader`."""

    @checked
    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on with `queue` at `offset`."""
        self._thread.call(lambda: self._reading.seek(queue, offset))


class PullConsumer(_Reading[AsyncPullConsumer]):
    """The blocking `aerobee.PullConsumer`."""

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues being read."""
        return self._reading.queues

    @checked
    def commit(self, batch: MessageBatch | None = None) -> dict[MessageQueue, int]:
        """Store the positions that have moved, or only the end of `batch`."""
        return self._thread.run(self._reading.commit(batch))

    @checked
    def committed(self, queue: MessageQueue) -> int | None:
        """The group's stored offset of a queue."""
        return self._thread.run(self._reading.committed(queue))

    @checked
    def seek(self, where: Where, queue: MessageQueue | None = None) -> None:
        """Go on at `where` in one queue or in all."""
        self._thread.run(self._reading.seek(where, queue))


class Transaction:
    """The blocking `aerobee.Transaction`."""

    def __init__(self, thread: _LoopThread, transaction: AsyncTransaction) -> None:
        self._thread = thread
        self._transaction = transaction

    def __enter__(self) -> Self:
        self._thread.run(self._transaction.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._transaction.__aexit__(kind, error, trace))

    @property
    def result(self) -> SendResult:
        """Where the half message is."""
        return self._transaction.result

    @property
    def transaction_id(self) -> str:
        """What to store beside the program's own data."""
        return self._transaction.transaction_id

    def rollback(self) -> None:
        """Roll back at the end of the block."""
        self._transaction.rollback()


class GroupMessage:
    """The blocking `aerobee.GroupMessage`: all it says by the same names, and settling that waits."""

    def __init__(self, thread: _LoopThread, message: "AsyncGroupMessage[Any]") -> None:
        self._thread = thread
        self._message = message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)

    def __repr__(self) -> str:
        return repr(self._message)

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

    def __init__(self, thread: _LoopThread, consumer: "AsyncGroupConsumer[Any]") -> None:
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
        done: list[AsyncGroupMessage[Any]] = []
        waiting: deque[AsyncGroupMessage[Any]] = deque()
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

    async def _next(self, done: "list[AsyncGroupMessage[Any]]") -> "list[AsyncGroupMessage[Any]]":
        """What is there, after settling what is done; empty when the consumer is closed."""
        self._settle(done)
        first = await self._consumer.next_message()
        if first is None:
            return []
        batch = [first]
        while len(batch) < BATCH_COUNT_MAX and (message := self._consumer.take()) is not None:
            batch.append(message)
        return batch

    def _settle(self, done: "Iterable[AsyncGroupMessage[Any]]") -> None:
        if self._consumer.config.auto_ack:
            for message in done:
                message.settle_acked()

    def _leave(self, done: "list[AsyncGroupMessage[Any]]", waiting: "deque[AsyncGroupMessage[Any]]") -> None:
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

        def call(message: "AsyncGroupMessage[Any]") -> object:
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
