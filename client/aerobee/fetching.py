"""Fetching: pulls that run ahead of the consumer, one task a queue, into one bounded buffer.

Touches  brokers through `Peers`.

Each queue has one pull on its way at a time; when the queue has nothing new the broker holds it until a message
comes. Answers wait undecoded in the buffer; while it holds `buffered_bytes_max` no queue pulls. Records are
decoded and checked when the consumer takes them: one step of the consumer is one batch.

Failures  Transport errors, busy brokers and lost routes are tried again, with a growing pause, for as long as
          the reader lives. Refusals that waiting cannot cure (permission, bad filter) end the queue and are
          raised to the consumer. A damaged record is raised after the records before it were handed out, and
          again at every further step until somebody seeks past it.

Invariants
- What is handed out of one queue is in the order of its offsets, without gaps but for filtered messages.
- `positions[queue]` is the logical offset after the last message handed out.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Final

from aerobee.config import ClientConfig, FetchConfig
from aerobee.errors import (
    BrokerRefused,
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    DamagedRecord,
    InvalidMessage,
    NoBroker,
    RequestTimeout,
)
from aerobee.filters import Filter
from aerobee.message import Message, MessageBatch
from aerobee.peers import Peers
from aerobee.route_table import RouteTable
from aerobee.routes import MASTER_ID, MessageQueue, pull_addr
from aerobee.statistics import ReaderStatistics
from aerobee_proto.codes import PullFlag, RequestCode, ResponseCode
from aerobee_proto.errors import RecordError
from aerobee_proto.frames import Command
from aerobee_proto.inner_batch import unwrapped_from
from aerobee_proto.records import StoredRecord, decode_record, decode_records, scan_header
from aerobee_remoting.event_log import event_logger

if TYPE_CHECKING:
    from aerobee.meters import Meters

__all__ = ["READER_GROUP", "Fetcher"]

log = event_logger("aerobee.reader")

# Waiting may cure these; every other refusal is raised.
PASSING_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.GO_AWAY,
    }
)
READER_GROUP: Final = "TOOLS_CONSUMER"  # RocketMQ's own group for tools, known to every broker
NO_PROGRESS_CODES: Final = frozenset({ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY})
LITE_FLAGS: Final = PullFlag.SUSPEND | PullFlag.SUBSCRIPTION


class _Fetched:
    """One answer that waits to be consumed."""

    __slots__ = ("body", "generation", "max_offset", "min_offset", "next_offset", "offset", "source")

    def __init__(
        self, source: "_Source", offset: int, body: bytes, next_offset: int, min_offset: int, max_offset: int
    ) -> None:
        self.source = source
        self.generation = source.generation
        self.offset = offset
        self.body = body
        self.next_offset = next_offset
        self.min_offset = min_offset
        self.max_offset = max_offset


class _Source:
    """Fetching state of one queue."""

    __slots__ = (
        "broken",
        "end",
        "floor",
        "generation",
        "max_offset",
        "offset",
        "queue",
        "suggested_id",
        "task",
    )

    def __init__(self, queue: MessageQueue, offset: int, end: int | None, floor: int) -> None:
        self.queue = queue
        # Moved by the task of this queue and by seek().
        self.offset = offset
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
        wanted: Filter,
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
        self.filter = wanted
        self._config = config
        self._client_config = client_config
        self._peers = peers
        self._routes = routes
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
        self._retried_count = 0

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
        source.offset = offset
        source.floor = floor
        source.broken = None
        self.positions[queue] = offset
        for fetched in [one for one in self._buffer if one.source is source]:
            self._buffer.remove(fetched)
            self._buffered_bytes -= len(fetched.body)
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
            retried_count=self._retried_count,
            waiting_bytes=self._buffered_bytes,
            lags={
                one.queue: max(0, _last(one) - self.positions.get(one.queue, one.offset))
                for one in list(self._sources.values())
            },
        )

    @property
    def _own_group(self) -> str:
        return "" if self.group == READER_GROUP else self.group

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
        self._buffered_bytes -= len(fetched.body)
        self._gate()
        source = fetched.source
        queue, broker_name = source.queue, source.queue.broker_name
        limit = self._client_config.decompressed_size_max
        records = self._decode(fetched)
        next_offset = fetched.next_offset
        if fetched.offset < source.floor:
            records = [record for record in records if record.queue_offset >= source.floor]
            next_offset = max(next_offset, source.floor)
        if source.end is not None and records and records[-1].queue_offset >= source.end:
            records = [record for record in records if record.queue_offset < source.end]
            next_offset = min(next_offset, source.end)
        if (tags := self.filter.tags) is not None:
            records = [record for record in records if record.tags in tags]
        if source.broken is not None:
            next_offset = records[-1].queue_offset + 1 if records else max(fetched.offset, source.floor)
        self.positions[queue] = next_offset
        messages = [Message(record, broker_name, limit) for record in records]
        self._read_count += len(messages)
        if self._meters is not None and messages:
            self._meters.read(self._own_group, self._topic, len(messages))
        return MessageBatch(queue, messages, next_offset, fetched.min_offset, fetched.max_offset)

    def _decode(self, fetched: _Fetched) -> list[StoredRecord]:
        """The records of an answer; at a broken one those before it, and the queue is marked as broken."""
        check = self._client_config.check_records
        try:
            return unwrapped_from(decode_records(fetched.body, check_crc=check), fetched.offset)
        except RecordError:
            return self._decode_singly(fetched, check)

    def _decode_singly(self, fetched: _Fetched, check: bool) -> list[StoredRecord]:
        body, position = fetched.body, 0
        records: list[StoredRecord] = []
        source = fetched.source
        while position < len(body):
            try:
                record = decode_record(body, position, check_crc=check)
                records += unwrapped_from([record], fetched.offset)
            except RecordError as broken:
                offset = _offset_at(body, position, records, fetched.offset)
                queue = source.queue
                source.broken = DamagedRecord(
                    queue.topic, queue.broker_name, queue.queue_id, offset, str(broken)
                )
                self._drop_later(source)
                break
            position += record.size
        return records

    def _drop_later(self, source: _Source) -> None:
        """A queue is broken: stop pulling it, and forget what lies behind the damage."""
        if source.task is not None:
            source.task.cancel()
        for fetched in [one for one in self._buffer if one.source is source]:
            self._buffer.remove(fetched)
            self._buffered_bytes -= len(fetched.body)
        self._gate()

    def _finished(self) -> bool:
        return all(
            source.end is not None and source.offset >= source.end and source.broken is None
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
            while source.end is None or source.offset < source.end:
                await self._room.wait()
                await self._pull_until_answered(source)
        except ClientError as failed:
            source.broken = failed
        except asyncio.CancelledError:
            raise
        except Exception as failed:
            log.exception("client.pull_broke", queue=str(source.queue))
            source.broken = ClientError(f"pulling {source.queue} broke: {type(failed).__name__}: {failed}")
        self._arrived.set()

    async def _pull_until_answered(self, source: _Source) -> None:
        """One answer, after as many tries as `give_up_s` allows."""
        config, now = self._config, asyncio.get_running_loop().time
        pause, started = config.retry_s, now()
        while True:
            try:
                await self._pull(source)
            except (RequestTimeout, BrokerUnreachable, NoBroker, BrokerRefused) as failed:
                if isinstance(failed, BrokerRefused) and failed.code not in PASSING_CODES:
                    raise
                if config.give_up_s is not None and now() - started >= config.give_up_s:
                    raise
                self._retried_count += 1
                log.warning("client.pull_failed", queue=str(source.queue), reason=str(failed), pause_s=pause)
            else:
                return
            source.suggested_id = MASTER_ID
            await asyncio.sleep(pause)
            pause = min(pause * 2, config.retry_max_s)
            await self._routes.refresh(self._topic)

    async def _pull(self, source: _Source) -> None:
        queue = source.queue
        route = self._routes.cached(queue.topic)
        addr = pull_addr(route.brokers.get(queue.broker_name, {}), source.suggested_id) if route else None
        if addr is None:
            raise NoBroker(
                queue.topic, f"broker {queue.broker_name} to pull from", list(route.brokers) if route else []
            )
        config, offset, generation = self._config, source.offset, source.generation
        answer = await self._peers.request(
            f"pull {queue}",
            addr,
            RequestCode.PULL_MESSAGE,
            self._header(queue, offset),
            timeout_s=config.hold_s + config.answer_margin_s,
        )
        if source.generation == generation and not self._closed:
            self._on_answer(source, addr, offset, answer)

    def _header(self, queue: MessageQueue, offset: int) -> dict[str, str]:
        """`PullMessageHeader` written out."""
        config = self._config
        return {
            "consumerGroup": self.group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": str(config.max_messages),
            "sysFlag": str(LITE_FLAGS),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(round(config.hold_s * 1000)),
            "subscription": self.filter.text,
            "subVersion": "0",
            "expressionType": self.filter.expression_type,
            "maxMsgBytes": str(config.max_bytes),
            "bname": queue.broker_name,
        }

    def _on_answer(self, source: _Source, addr: str, offset: int, answer: Command) -> None:
        code = answer.code
        if (
            code != ResponseCode.SUCCESS
            and code not in NO_PROGRESS_CODES
            and code != ResponseCode.PULL_OFFSET_MOVED
        ):
            raise BrokerRefused(f"pull {source.queue}", addr, code, answer.remark)
        ext = answer.ext
        next_offset = int(ext.get("nextBeginOffset", offset))
        source.suggested_id = int(ext.get("suggestWhichBrokerId", MASTER_ID))
        min_offset, max_offset = int(ext.get("minOffset", 0)), int(ext.get("maxOffset", 0))
        if code == ResponseCode.PULL_OFFSET_MOVED:
            log.warning(
                "client.offset_moved",
                queue=str(source.queue),
                asked_offset=offset,
                next_offset=next_offset,
                min_offset=min_offset,
                max_offset=max_offset,
            )
        body = bytes(answer.body) if code == ResponseCode.SUCCESS else b""
        source.offset = next_offset
        source.max_offset = max_offset
        if body or next_offset != offset:
            self._buffer.append(_Fetched(source, offset, body, next_offset, min_offset, max_offset))
            self._buffered_bytes += len(body)
            self._gate()
            self._arrived.set()


def _last(source: _Source) -> int:
    return source.max_offset if source.end is None else min(source.max_offset, source.end)


def _offset_at(body: bytes, position: int, before: list[StoredRecord], pulled_from: int) -> int:
    """Logical offset of the broken record at `position`, as far as it can be told."""
    if before:
        return before[-1].queue_offset + 1
    try:
        claimed = scan_header(body, position).queue_offset
    except RecordError:
        return pulled_from
    return claimed if claimed >= pulled_from else pulled_from
