"""The reader: a topic read from one place to another, without a group and without commits."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import TracebackType
from typing import Self

from aerobee.consuming.fetching import Fetcher
from aerobee.errors import ClientClosed
from aerobee.messages.message import Message, MessageBatch
from aerobee.terms.arguments import checked
from aerobee.terms.routes import MessageQueue
from aerobee.terms.statistics import ReaderStatistics

__all__ = ["Reader"]


class Reader:
    """Reads messages. Made by `Client.reader()`.

    `async for message in reader` or `async for batch in reader.batches()`. It opens at the first step; use it as
    `async with` to close it before its client is closed. It ends when each queue has been read to its `end`;
    without an `end` it goes on and waits for new messages.
    """

    def __init__(self, fetcher: Fetcher, open_queues: Callable[[Fetcher], Awaitable[None]]) -> None:
        self._fetcher = fetcher
        self._open_queues = open_queues
        self._opened = False
        self._closed = False

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Single messages. Within a batch no step leaves to the event loop."""
        await self._open()
        fetcher = self._fetcher
        while (batch := await fetcher.next_batch()) is not None:
            for message in fetcher.walk(batch):
                yield message

    async def batches(self) -> AsyncIterator[MessageBatch]:
        """Batches as they were pulled, each from one queue."""
        await self._open()
        while (batch := await self._fetcher.next_batch()) is not None:
            yield batch

    async def next_batch(self) -> MessageBatch | None:
        """One batch; None at the end."""
        await self._open()
        return await self._fetcher.next_batch()

    def walk(self, batch: MessageBatch) -> Iterator[Message]:
        """Single messages of a batch from next_batch(), with `positions` kept as the loop over messages does."""
        return self._fetcher.walk(batch)

    def statistics(self) -> ReaderStatistics:
        """What this reader has read since it was made, and how far behind it is."""
        return self._fetcher.statistics()

    @property
    def positions(self) -> dict[MessageQueue, int]:
        """For each queue the queue offset after the last message handed out."""
        return dict(self._fetcher.positions)

    @checked
    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on with `queue` at `offset`, with nothing before it; messages fetched ahead are dropped."""
        self._fetcher.seek(queue, offset, floor=offset)

    async def close(self) -> None:
        """Stop reading."""
        if not self._closed:
            self._closed = True
            await self._fetcher.close()

    async def _open(self) -> None:
        if self._closed:
            raise ClientClosed("reader")
        if not self._opened:
            self._opened = True
            await self._open_queues(self._fetcher)
