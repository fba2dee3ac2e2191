"""Fetching: pulls that run ahead of the consumer, one task a queue, into one bounded buffer.

Touches  brokers through `Pulls`.

Each queue has one pull on its way at a time; when the queue has nothing new the broker holds it until a message
comes. Answers wait undecoded in the buffer; while it holds `buffered_bytes_max` no queue pulls. Records are
decoded and checked when the consumer takes them: one step of the consumer is one batch.

Failures  Transport errors, busy brokers and lost routes are tried again, with a growing pause, for as long as
          the reader lives. Refusals that waiting cannot cure (permission, bad filter) end the queue and are
          raised to the consumer. A damaged record is raised after the records before it were handed out, and
          again at every further step until somebody seeks past it.

Invariants
- What is handed out of one queue is in the order of its offsets, without gaps but for filtered messages.
- `positions[queue]` is the queue offset after the last message handed out.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, NamedTuple

from aerobee.consuming.pulls import Patience, Pulled, Pulls, PullTerms, decoded
from aerobee.errors import ClientClosed, ClientError, InvalidMessage
from aerobee.messages.message import Message, MessageBatch
from aerobee.net.peers import Peers
from aerobee.net.route_table import RouteTable
from aerobee.terms.config import ClientConfig, FetchConfig
from aerobee.terms.filters import Filter
from aerobee.terms.routes import MASTER_ID, MessageQueue
from aerobee.terms.statistics import ReaderStatistics
from aerobee_proto.names import TOOLS_GROUP
from aerobee_proto.records import StoredRecord
from aerobee_service.logs.event_log import event_logger

if TYPE_CHECKING:
    from aerobee.messages.meters import Meters

__all__ = ["Fetcher"]

log = event_logger("aerobee.reader")


class _Fetched(NamedTuple):
    """One answer that waits to be consumed, undecoded."""

    source: "_Source"
    pulled: Pulled


class _Source:
    """Fetching state of one queue."""

    __slots__ = (
        "broken",
        "end",
        "floor",
        "generation",
        "max_offset",
        "next_offset",
        "queue",
        "suggested_id",
        "task",
    )

    def __init__(self, queue: MessageQueue, offset: int, end: int | None, floor: int) -> None:
        self.queue = queue
        # Moved by the task of this queue and by seek().
        self.next_offset = offset
        self.end = end
        self.floor = floor
        self.generation = 0
        self.max_offset = 0  # by the last answer
        self.suggested_id = MASTER_ID
        self.task: asyncio.Task[None] | None = None
        self.broken: ClientError | None = None


class Fetcher:
    """Pulls from several queues of one topic and hands out batches."""

    def __init__(
        self,
        group: str,
        topic: str,
        message_filter: Filter,
        config: FetchConfig,
        *,
        client_config: ClientConfig,
        peers: Peers,
        routes: RouteTable,
        meters: "Meters | None" = None,
    ) -> None:
        # Fixed for life.
        self.group = group
        self._meters = meters
        self._topic = topic
        self.filter = message_filter
        self._config = config
        self._client_config = client_config
        self._pulls = Pulls(
            PullTerms(
                group=group,
                count=config.max_messages,
                max_bytes=config.max_bytes,
                hold_s=config.hold_s,
                timeout_s=config.hold_s + config.answer_margin_s,
            ),
            Patience(config.retry_s, config.retry_max_s, config.give_up_s),
            peers=peers,
            routes=routes,
            log=log,
        )
        # Moved by the queue tasks and next_batch().
        self._sources: dict[MessageQueue, _Source] = {}
        self._buffer: deque[_Fetched] = deque()
        self._buffered_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._arrived = asyncio.Event()
        self._closed = False
        # Moved by next_batch() and seek(); consumers of single messages move it themselves.
        self.positions: dict[MessageQueue, int] = {}
        # Counted by seek(): a batch that was handed out before a seek must not be worked on after it.
        self.seeks = 0
        # For statistics().
        self._read_count = 0

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues being read."""
        return tuple(self._sources)

    @property
    def closed(self) -> bool:
        return self._closed

    def add(self, queue: MessageQueue, offset: int, end: int | None = None, *, floor: int = 0) -> None:
        """Start to read `queue` at `offset`, up to (not including) `end`.

        No message before `floor` is handed out. A broker whose queue ends before `offset` sends readers back to that
        end: one that has lost messages (then new ones must be read), or one whose queue still lags behind its log
        (then they must not, by who asked for this very offset).
        """
        source = _Source(queue, offset, end, floor)
        self._sources[queue] = source
        self.positions[queue] = offset
        self._start(source)

    def seek(self, queue: MessageQueue, offset: int, *, floor: int = 0) -> None:
        """Go on at `offset`, `floor` as for `add`. What was fetched of the queue and not handed out is dropped."""
        source = self._sources.get(queue)
        if source is None:
            known = ", ".join(str(one) for one in self._sources) or "none"
            raise InvalidMessage(f"{queue} is not being read here; queues: {known}")
        if source.task is not None:
            source.task.cancel()
        self.seeks += 1
        source.generation += 1
        source.next_offset = offset
        source.floor = floor
        source.broken = None
        self.positions[queue] = offset
        for fetched in [one for one in self._buffer if one.source is source]:
            self._buffer.remove(fetched)
            self._buffered_bytes -= len(fetched.pulled.body)
        self._gate()
        self._start(source)

    async def next_batch(self) -> MessageBatch | None:
        """The next batch of any queue; None when every queue has been read to its end.

        Raises DamagedRecord, BrokerRefused and what else ended a queue.
        """
        while True:
            if self._closed:
                raise ClientClosed("reader")
            for source in self._sources.values():
                if source.broken is not None:
                    raise source.broken
            while self._buffer:
                batch = self._take(self._buffer.popleft())
                if batch.messages:
                    return batch
                if batch.queue in self._sources and (broken := self._sources[batch.queue].broken):
                    raise broken
            if self._finished():
                return None
            self._arrived.clear()
            await self._arrived.wait()

    def statistics(self) -> ReaderStatistics:
        """What was done so far. May be called from any thread."""
        return ReaderStatistics(
            group=self._own_group,
            topic=self._topic,
            read_count=self._read_count,
            retried_count=self._pulls.retried_count,
            waiting_bytes=self._buffered_bytes,
            lags={
                one.queue: max(0, _last(one) - self.positions.get(one.queue, one.next_offset))
                for one in list(self._sources.values())
            },
        )

    @property
    def _own_group(self) -> str:
        return "" if self.group == TOOLS_GROUP else self.group

    async def messages(self) -> AsyncIterator[Message]:
        """Single messages, `positions` kept with each. Within a batch no step leaves to the event loop."""
        while (batch := await self.next_batch()) is not None:
            for message in self.walk(batch):
                yield message

    def walk(self, batch: MessageBatch) -> Iterator[Message]:
        """The messages of a batch that was just handed out, `positions` kept with each; a seek ends the walk."""
        positions, queue, seeks = self.positions, batch.queue, self.seeks
        for message in batch.messages:
            positions[queue] = message.record.queue_offset + 1
            yield message
            if seeks != self.seeks:
                return
        positions[queue] = batch.next_offset

    async def close(self) -> None:
        """Stop all pulls."""
        self._closed = True
        self._arrived.set()
        tasks = [source.task for source in self._sources.values() if source.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._buffer.clear()

    # --- handing out ------------------------------------------------------------------------------------------

    def _take(self, fetched: _Fetched) -> MessageBatch:
        source, pulled = fetched
        self._buffered_bytes -= len(pulled.body)
        self._gate()
        queue, broker_name = source.queue, source.queue.broker_name
        limit = self._client_config.decompressed_size_max
        records = self._decode(source, pulled)
        next_offset = pulled.next_offset
        if pulled.offset < source.floor:
            records = [record for record in records if record.queue_offset >= source.floor]
            next_offset = max(next_offset, source.floor)
        if source.end is not None and records and records[-1].queue_offset >= source.end:
            records = [record for record in records if record.queue_offset < source.end]
            next_offset = min(next_offset, source.end)
        if (tags := self.filter.tags) is not None:
            records = [record for record in records if record.tags in tags]
        if source.broken is not None:
            next_offset = records[-1].queue_offset + 1 if records else max(pulled.offset, source.floor)
        self.positions[queue] = next_offset
        messages = [Message(record, broker_name, limit) for record in records]
        self._read_count += len(messages)
        if self._meters is not None and messages:
            self._meters.read(self._own_group, self._topic, len(messages))
        return MessageBatch(queue, messages, next_offset, pulled.min_offset, pulled.max_offset or 0)

    def _decode(self, source: _Source, pulled: Pulled) -> list[StoredRecord]:
        """The records of an answer; at a damaged one those before it, and the queue is marked as broken."""
        records, damage = decoded(
            source.queue, pulled.offset, pulled.body, check_crc=self._client_config.check_records
        )
        if damage is not None:
            source.broken = damage
            self._drop_later(source)
        return records

    def _drop_later(self, source: _Source) -> None:
        """A queue is broken: stop pulling it, and forget what lies behind the damage."""
        if source.task is not None:
            source.task.cancel()
        for fetched in [one for one in self._buffer if one.source is source]:
            self._buffer.remove(fetched)
            self._buffered_bytes -= len(fetched.pulled.body)
        self._gate()

    def _finished(self) -> bool:
        return all(
            source.end is not None and source.next_offset >= source.end and source.broken is None
            for source in self._sources.values()
        )

    def _gate(self) -> None:
        if self._buffered_bytes < self._config.buffered_bytes_max:
            self._room.set()
        else:
            self._room.clear()

    # --- pulling ----------------------------------------------------------------------------------------------

    def _start(self, source: _Source) -> None:
        if not self._closed:
            source.task = asyncio.get_running_loop().create_task(
                self._run(source), name=f"pull {source.queue}"
            )

    async def _run(self, source: _Source) -> None:
        """Pull one queue until its end, its failure or the close."""
        try:
            while source.end is None or source.next_offset < source.end:
                await self._room.wait()
                pulled = await self._pulls.next(source, self.filter)
                if pulled is not None and not self._closed:
                    self._keep(source, pulled)
        except ClientError as failed:
            source.broken = failed
        except asyncio.CancelledError:
            raise
        except Exception as failed:
            log.exception("client.pull_broke", queue=str(source.queue))
            source.broken = ClientError(f"pulling {source.queue} broke: {type(failed).__name__}: {failed}")
        self._arrived.set()

    def _keep(self, source: _Source, pulled: Pulled) -> None:
        source.next_offset = pulled.next_offset
        source.max_offset = pulled.max_offset or 0
        if pulled.body or pulled.next_offset != pulled.offset:
            self._buffer.append(_Fetched(source, pulled))
            self._buffered_bytes += len(pulled.body)
            self._gate()
            self._arrived.set()


def _last(source: _Source) -> int:
    return source.max_offset if source.end is None else min(source.max_offset, source.end)
