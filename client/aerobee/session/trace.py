"""Message traces in RocketMQ's own form: who sent a message, who consumed it, how it went, how long it took.

Touches  the trace topic, through a producer of its own; the event loop's clock.

A trace record is one line of fields between U+0001, ended by U+0002; a trace message holds many, and has the ids and
keys of the traced messages as its keys, so that a query by id finds it.

    Pub             time region group topic id tags keys store_host body_size took_ms kind offset_id ok
    SubBefore       time region group request_id id reconsume_times keys
    SubAfter        request_id id took_ms ok keys outcome time
    EndTransaction  time region group topic id tags keys store_host kind transaction_id state from_check

`request_id` joins the two halves of a delivery. Absent texts are written "null", as Java does.

Invariants
- Writing traces never fails or delays a message: records wait in a bounded buffer, and are dropped when it is full.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aerobee.errors import ClientError
from aerobee.messages.message import SendResult
from aerobee.messages.watching import MessageKind
from aerobee_proto.errors import FormatError
from aerobee_proto.message_ids import decode_offset_message_id
from aerobee_proto.properties import MSG_REGION, TRACE_ON
from aerobee_service.logs.event_log import event_logger

if TYPE_CHECKING:
    from aerobee.messages.group_message import AnyMessage
    from aerobee.messages.outgoing import Outgoing
    from aerobee.producing.producer import Producer

__all__ = ["TraceRecord", "TraceWatch", "TraceWriter", "parse_trace"]

log = event_logger("aerobee.trace")

FIELD: Final = "\x01"
RECORD: Final = "\x02"
DEFAULT_REGION: Final = "DefaultRegion"
NULL: Final = "null"
BUFFER_MAX: Final = 10_000  # records that wait to be written
MESSAGE_RECORDS_MAX: Final = 100
LINGER_S: Final = 0.5
KEYS_SIZE_MAX: Final = 16_000  # characters; a record's properties hold 32,767 bytes
# How a delivery ended, RocketMQ's numbers.
OUTCOME_OK, OUTCOME_EXCEPTION, OUTCOME_FAILED = 0, 2, 4


@dataclass(slots=True, frozen=True, kw_only=True)
class TraceRecord:
    """One thing that happened to a message.

    kind           "Pub" sent, "SubBefore" handed to a consumer, "SubAfter" settled by it, "EndTransaction"
    timestamp_ms   when it began ("SubAfter" of old clients has none: 0)
    took_ms        how long the send or the handling took
    message_kind   a `MessageKind` value: 0 normal, 1 half, 2 commit, 3 delayed, 4 ordered
    outcome        of SubAfter: 0 acked, 1 timed out, 2 raised, 3 returned nothing, 4 sent back
    """

    kind: str
    message_id: str
    timestamp_ms: int = 0
    region: str = DEFAULT_REGION
    group: str = ""
    topic: str = ""
    tags: str | None = None
    keys: str | None = None
    store_host: str = ""
    client_host: str | None = None
    body_size: int = 0
    took_ms: int = 0
    message_kind: int = 0
    offset_message_id: str | None = None
    ok: bool = True
    request_id: str = ""
    reconsume_times: int = 0
    outcome: int | None = None
    transaction_id: str | None = None
    transaction_state: str | None = None
    from_check: bool = False

    def encode(self) -> str:
        """The record as it is written."""
        if self.kind == "Pub":
            fields = [
                self.timestamp_ms, self.region, self.group, self.topic, self.message_id, self.tags, self.keys,
                self.store_host, self.body_size, self.took_ms, self.message_kind, self.offset_message_id, self.ok,
            ]  # fmt: skip
        elif self.kind == "SubBefore":
            fields = [
                self.timestamp_ms, self.region, self.group, self.request_id, self.message_id, self.reconsume_times,
                self.keys,
            ]  # fmt: skip
        elif self.kind == "SubAfter":
            fields = [
                self.request_id, self.message_id, self.took_ms, self.ok, self.keys, self.outcome, self.timestamp_ms,
            ]  # fmt: skip
        else:
            fields = [
                self.timestamp_ms, self.region, self.group, self.topic, self.message_id, self.tags, self.keys,
                self.store_host, self.message_kind, self.transaction_id, self.transaction_state, self.from_check,
            ]  # fmt: skip
        return FIELD.join([self.kind, *map(_text, fields)]) + RECORD


def parse_trace(text: str) -> list[TraceRecord]:
    """The records of a trace message; pieces that are none of the known kinds, or broken, are left out."""
    found = []
    for piece in text.split(RECORD):
        kind, *fields = piece.split(FIELD)
        read = READERS.get(kind)
        if read is None:
            continue
        try:
            found.append(read(fields))
        except (ValueError, IndexError):
            log.debug("client.trace_unreadable", record=piece[:200])
    return found


def _read_pub(f: list[str]) -> TraceRecord:
    # 12 fields before 4.x had the offset id, 14 and more with the client's host.
    with_id = len(f) >= 13
    return TraceRecord(
        kind="Pub",
        timestamp_ms=int(f[0]),
        region=f[1],
        group=f[2],
        topic=f[3],
        message_id=f[4],
        tags=_none(f[5]),
        keys=_none(f[6]),
        store_host=f[7],
        body_size=int(f[8]),
        took_ms=int(f[9]),
        message_kind=int(f[10]),
        offset_message_id=_none(f[11]) if with_id else None,
        ok=f[12 if with_id else 11] == "true",
        client_host=_none(f[13]) if len(f) >= 14 else None,
    )


def _read_before(f: list[str]) -> TraceRecord:
    return TraceRecord(
        kind="SubBefore",
        timestamp_ms=int(f[0]),
        region=f[1],
        group=f[2],
        request_id=f[3],
        message_id=f[4],
        reconsume_times=int(f[5]),
        keys=_none(f[6]),
    )


def _read_after(f: list[str]) -> TraceRecord:
    return TraceRecord(
        kind="SubAfter",
        request_id=f[0],
        message_id=f[1],
        took_ms=int(f[2]),
        ok=f[3] == "true",
        keys=_none(f[4]),
        outcome=int(f[5]) if len(f) >= 6 else None,
        timestamp_ms=int(f[6]) if len(f) >= 7 else 0,
    )


def _read_end(f: list[str]) -> TraceRecord:
    return TraceRecord(
        kind="EndTransaction",
        timestamp_ms=int(f[0]),
        region=f[1],
        group=f[2],
        topic=f[3],
        message_id=f[4],
        tags=_none(f[5]),
        keys=_none(f[6]),
        store_host=f[7],
        message_kind=int(f[8]),
        transaction_id=_none(f[9]),
        transaction_state=f[10],
        from_check=f[11] == "true",
    )


READERS: Final[dict[str, Callable[[list[str]], TraceRecord]]] = {
    "Pub": _read_pub,
    "SubBefore": _read_before,
    "SubAfter": _read_after,
    "EndTransaction": _read_end,
}


def _text(value: object) -> str:
    if value is None or value == "":
        return NULL  # an empty last field would be lost to Java's split
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _none(text: str) -> str | None:
    return None if text in (NULL, "") else text


def _host_of(result: SendResult) -> str:
    """Address of the broker that stored a message: its id tells."""
    try:
        place = decode_offset_message_id(result.offset_message_id)
    except FormatError:
        return result.queue.broker_name
    return f"{place.host}:{place.port}"


class TraceWriter:
    """Collects the records of one client and writes them to the trace topic."""

    def __init__(
        self,
        open_producer: Callable[[], "Producer"],
        *,
        topic: str,
        clock_ms: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self.topic = topic
        self.clock_ms = clock_ms
        self.new_id = new_id
        self._open_producer = open_producer
        self._records: list[TraceRecord] = []
        self._dropped = 0
        self._arrived = asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, record: TraceRecord) -> None:
        """Take one record; dropped when too many wait."""
        if len(self._records) >= BUFFER_MAX:
            self._dropped += 1
            return
        self._records.append(record)
        self._arrived.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="client.trace")

    async def close(self) -> None:
        """Write what waits."""
        self._closing.set()
        self._arrived.set()
        if self._task is not None:
            await self._task
            self._task = None

    async def _run(self) -> None:
        async with self._open_producer() as producer:
            while not self._closing.is_set() or self._records:
                await self._arrived.wait()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LINGER_S):
                        await self._closing.wait()
                self._arrived.clear()
                while self._records:
                    await self._write(producer)
                if self._closing.is_set():
                    return

    async def _write(self, producer: "Producer") -> None:
        batch, keys = self._take_some()
        try:
            await producer.send(self.topic, "".join([one.encode() for one in batch]), keys=keys)
        except ClientError as failed:
            log.warning(
                "client.trace_lost",
                record_count=len(batch) + self._dropped,
                topic=self.topic,
                reason=str(failed),
            )
            self._dropped = 0

    def _take_some(self) -> tuple[list[TraceRecord], list[str]]:
        """Records for one message, and the keys to find it by."""
        keys: dict[str, None] = {}
        size = count = 0
        for record in self._records[:MESSAGE_RECORDS_MAX]:
            new = [
                key for key in (record.message_id, *(record.keys or "").split(" ")) if key and key not in keys
            ]
            if count and size + sum(map(len, new)) + len(new) > KEYS_SIZE_MAX:
                break
            keys |= dict.fromkeys(new)
            size += sum(map(len, new)) + len(new)
            count += 1
        batch, self._records = self._records[:count], self._records[count:]
        return batch, list(keys)


class TraceWatch:
    """Writes the traces of one producer or consumer."""

    def __init__(self, group: str, writer: TraceWriter) -> None:
        self._group = group
        self._writer = writer

    def sending(self, topic: str, properties: Mapping[str, str]) -> tuple[object, str]:
        return self._writer.clock_ms(), ""

    def accepted(
        self,
        token: object,
        topic: str,
        item: "Outgoing",
        tags: str | None,
        keys: str | None,
        kind: MessageKind,
    ) -> None:
        assert isinstance(token, int)

        def ended(future: "asyncio.Future[Any]") -> None:
            result = None if future.cancelled() or future.exception() is not None else future.result()
            self._writer.add(
                TraceRecord(
                    kind="Pub",
                    timestamp_ms=token,
                    group=self._group,
                    topic=topic,
                    message_id=item.message_id,
                    tags=tags,
                    keys=keys,
                    store_host=_host_of(result) if result else "",
                    body_size=len(item.body),
                    took_ms=self._writer.clock_ms() - token,
                    message_kind=kind.value,
                    offset_message_id=result.offset_message_id if result else None,
                    ok=result is not None,
                )
            )

        item.future.add_done_callback(ended)

    def transaction_ended(
        self, topic: str, result: SendResult, tags: str | None, keys: str | None, committed: bool
    ) -> None:
        self._writer.add(
            TraceRecord(
                kind="EndTransaction",
                timestamp_ms=self._writer.clock_ms(),
                group=self._group,
                topic=topic,
                message_id=result.message_id,
                tags=tags,
                keys=keys,
                store_host=_host_of(result),
                message_kind=MessageKind.COMMIT.value,
                transaction_id=result.message_id,
                transaction_state="COMMIT_MESSAGE" if committed else "ROLLBACK_MESSAGE",
            )
        )

    def delivered(self, message: "AnyMessage") -> None:
        properties = message.properties
        if properties.get(TRACE_ON) == "false":
            return
        began_ms, request_id = self._writer.clock_ms(), self._writer.new_id()
        message.watched[self] = (request_id, began_ms)
        self._writer.add(
            TraceRecord(
                kind="SubBefore",
                timestamp_ms=began_ms,
                region=properties.get(MSG_REGION, DEFAULT_REGION),
                group=self._group,
                request_id=request_id,
                message_id=message.message_id,
                reconsume_times=message.reconsume_times,
                keys=" ".join(message.keys) or None,
            )
        )

    def handling(self, message: "AnyMessage") -> AbstractContextManager[None]:
        return self._handling(message)

    @contextlib.contextmanager
    def _handling(self, message: "AnyMessage") -> Iterator[None]:
        try:
            yield
        except Exception:
            message.watched[self, "failed"] = True
            raise

    def settled(self, message: "AnyMessage") -> None:
        begun = message.watched.pop(self, None)
        if begun is None:
            return
        request_id, began_ms = begun
        ok = message.outcome is not None and message.outcome.value == "acked"
        failed = OUTCOME_EXCEPTION if message.watched.get((self, "failed")) else OUTCOME_FAILED
        now_ms = self._writer.clock_ms()
        self._writer.add(
            TraceRecord(
                kind="SubAfter",
                request_id=request_id,
                message_id=message.message_id,
                took_ms=now_ms - began_ms,
                ok=ok,
                keys=" ".join(message.keys) or None,
                outcome=OUTCOME_OK if ok else failed,
                timestamp_ms=now_ms,
            )
        )
