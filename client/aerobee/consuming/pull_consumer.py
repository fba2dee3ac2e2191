"""The pull consumer: a group's reader. Offsets live on the broker; the caller decides when to commit.

The consumer reads all queues of the topic, or those it is given: nothing is shared out between members of a
group here, so two consumers of one group must be given different queues.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from aerobee.consuming.fetching import Fetcher
from aerobee.errors import ClientClosed, InvalidMessage
from aerobee.messages.message import Message, MessageBatch
from aerobee.net.offsets import Offsets
from aerobee.terms.arguments import checked
from aerobee.terms.filters import Filter
from aerobee.terms.routes import MessageQueue
from aerobee.terms.start_at import Where, floor_of, parse_where
from aerobee.terms.statistics import ReaderStatistics

__all__ = ["PullConsumer", "PullSettings"]


@dataclass(slots=True, frozen=True)
class PullSettings:
    """What a pull consumer reads, and for whom."""

    group: str
    topic: str
    filter: Filter


class PullConsumer:
    """Reads messages for a group. Made by `Client.pull_consumer()`; use it as `async with`.

    `async for message in consumer` or `async for batch in consumer.batches()`, then `await consumer.commit()`:
    it stores the positions of everything handed out so far. Leaving the block commits nothing.
    """

    def __init__(
        self,
        settings: PullSettings,
        fetcher: Fetcher,
        offsets: Offsets,
        *,
        open_queues: Callable[[Fetcher], Awaitable[None]],
        clock_ms: Callable[[], int],
        on_open: Callable[["PullConsumer"], Awaitable[None]],
        on_close: Callable[["PullConsumer"], None],
    ) -> None:
        # Fixed for life.
        self.group = settings.group
        self.topic = settings.topic
        self.filter = settings.filter
        self._fetcher = fetcher
        self._offsets = offsets
        self._open_queues = open_queues
        self._clock_ms = clock_ms
        self._on_open = on_open
        self._on_close = on_close
        # Moved by the calls below.
        self._committed: dict[MessageQueue, int] = {}
        self._opened = False
        self._closed = False

    async def __aenter__(self) -> Self:
        if self._closed:
            raise ClientClosed("consumer")
        await self._on_open(self)
        await self._open_queues(self._fetcher)
        self._committed = dict(self._fetcher.positions)
        self._opened = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Message]:
        """Single messages. commit() inside the loop covers the message in hand."""
        self._check_open()
        return self._fetcher.messages()  # one generator for a message, not two

    async def batches(self) -> AsyncIterator[MessageBatch]:
        """Batches, each from one queue. commit() inside the loop covers the batch in hand."""
        self._check_open()
        while (batch := await self._fetcher.next_batch()) is not None:
            yield batch

    async def next_batch(self) -> MessageBatch | None:
        """One batch; None at the end, which only a consumer with an `end` reaches."""
        self._check_open()
        return await self._fetcher.next_batch()

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues being read."""
        return self._fetcher.queues

    def walk(self, batch: MessageBatch) -> Iterator[Message]:
        """Single messages of a batch from next_batch(), with `positions` kept as the loop over messages does."""
        return self._fetcher.walk(batch)

    def statistics(self) -> ReaderStatistics:
        """What this consumer has read since it was made, and how far behind it is."""
        return self._fetcher.statistics()

    @property
    def positions(self) -> dict[MessageQueue, int]:
        """For each queue the queue offset after the last message handed out: what commit() would store."""
        return dict(self._fetcher.positions)

    @checked
    async def commit(self, batch: MessageBatch | None = None) -> dict[MessageQueue, int]:
        """Store the positions that have moved, or only the end of `batch`; returns what was stored.

        Raises what the first refused queue raised; the other queues are stored all the same.
        """
        self._check_open()
        to_commit = self._fetcher.positions if batch is None else {batch.queue: batch.next_offset}
        moved = {queue: offset for queue, offset in to_commit.items() if self._committed.get(queue) != offset}
        results = await asyncio.gather(
            *(self._offsets.commit(self.group, queue, offset) for queue, offset in moved.items()),
            return_exceptions=True,
        )
        stored: dict[MessageQueue, int] = {}
        failed: BaseException | None = None
        for (queue, offset), result in zip(moved.items(), results, strict=True):
            if isinstance(result, BaseException):
                failed = failed or result
            else:
                stored[queue] = self._committed[queue] = offset
        if failed is not None:
            raise failed
        return stored

    @checked
    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's stored offset of a queue, asked from the broker; None when there is none."""
        return await self._offsets.committed(self.group, queue)

    @checked
    async def seek(self, where: Where, queue: MessageQueue | None = None) -> None:
        """Go on at `where` (see `Client.reader`) in one queue or in all; what was fetched ahead is dropped.

        Nothing is committed: the next commit() stores where reading went on from there.
        """
        self._check_open()
        position = parse_where(where, self._clock_ms())
        chosen = self._fetcher.queues if queue is None else (queue,)
        unknown = [one for one in chosen if one not in self._fetcher.queues]
        if unknown:
            raise InvalidMessage(f"{unknown[0]} is not being read here")
        found = await asyncio.gather(*(self._offsets.resolve(one, position) for one in chosen))
        for one, offset in zip(chosen, found, strict=True):
            self._fetcher.seek(one, offset, floor=floor_of(position))

    async def close(self) -> None:
        """Stop reading and leave the group."""
        if not self._closed:
            self._closed = True
            self._on_close(self)
            await self._fetcher.close()

    def _check_open(self) -> None:
        if self._closed or not self._opened:
            raise ClientClosed("consumer")
