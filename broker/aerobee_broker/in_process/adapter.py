"""The broker for a program in its own process: the use cases behind the gate, and nothing of a connection.

Touches  what the use cases touch. No sockets, no frames.

    one = broker.in_process("a test")
    sent = await one.send(Message("orders", b"17", properties={"KEYS": "order-17"}))
    read = await one.read(GroupQueue(TOOLS_GROUP, "orders", sent.queue_id), sent.queue_offset)

Refusals are RequestError, of the gate as of the use cases, with the codes and remarks that clients get.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from aerobee_broker.catalog.topics import TopicTable
from aerobee_broker.in_process.caller import Admission, LocalCaller, closed
from aerobee_broker.in_process.values import Message, ReadResult, Sent
from aerobee_broker.messages.lookup import Lookup
from aerobee_broker.messages.message_writer import MessageWriter
from aerobee_broker.messages.progress import Progress
from aerobee_broker.messages.promises import Promises
from aerobee_broker.messages.publish import Published, Publisher
from aerobee_broker.messages.publish_batches import TURN_COUNT_MAX
from aerobee_broker.messages.read import Reading
from aerobee_broker.messages.values import Failed, Moved, Outcome, Query, Read, ReadKind
from aerobee_proto.bodies import TopicConfig
from aerobee_proto.codes import PullFlag, RequestCode, ResponseCode
from aerobee_proto.errors import FormatError, RequestError
from aerobee_proto.headers import (
    PullMessageHeader,
    QueryConsumerOffsetHeader,
    QueryMessageHeader,
    QueueHeader,
    SearchOffsetHeader,
    SendMessageHeader,
    TopicHeader,
    UpdateConsumerOffsetHeader,
    ViewMessageHeader,
)
from aerobee_proto.names import GroupQueue
from aerobee_proto.properties import encode_properties
from aerobee_proto.records import StoredRecord, decode_record, decode_records
from aerobee_proto.requests import Incoming, NoFields
from aerobee_store.reading.query import QueryResult

__all__ = ["InProcess"]

TIME_MAX_MS: Final = 2**63 - 1
PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"  # of senders that are in no group


class InProcess:
    """One program's face of a broker. All calls from the broker's event loop, until `close`."""

    def __init__(
        self,
        admission: Admission,
        publisher: Publisher,
        promises: Promises,
        writer: MessageWriter,
        reading: Reading,
        progress: Progress,
        lookup: Lookup,
        topics: TopicTable,
    ) -> None:
        self._admit = admission.admit
        self._admission = admission
        self._publisher = publisher
        self._promises = promises
        self._clock = writer.clock
        self._reading = reading
        self._progress = progress
        self._lookup = lookup
        self._topics = topics
        self._waiting: set[asyncio.Future[Outcome]] = set()  # reads

    def close(self) -> None:
        """Take nothing any more: this call and reads that wait end with RequestError SERVICE_NOT_AVAILABLE."""
        self._admission.caller.close()
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(closed())

    # --- sending ----------------------------------------------------------------------------------------------

    async def send(self, message: Message) -> Sent:
        """Store one message and return when it is as durable as a send's answer promises.

        RequestError: refused, nothing is stored. StorePoisoned: the disk has failed; it may be stored or not.
        """
        (outcome,) = await self.send_all([message])
        if isinstance(outcome, RequestError):
            raise outcome
        return outcome

    async def send_all(self, messages: Sequence[Message]) -> list[Sent | RequestError]:
        """Store messages, and return what became of each when they are as durable as promised. Errors as of `send`,
        but for refusals, which disturb no other message."""
        outcomes: list[Sent | RequestError] = []
        for begin in range(0, len(messages), TURN_COUNT_MAX):
            if begin:
                await asyncio.sleep(0)  # others are served, as between batches
            outcomes += self._store(messages[begin : begin + TURN_COUNT_MAX])
        if any(isinstance(outcome, Sent) for outcome in outcomes):
            await self._promises.settled()
        return outcomes

    def _store(self, messages: Sequence[Message]) -> list[Sent | RequestError]:
        """Store those that may be, in one append; in their order what became of each."""
        refusals: dict[int, RequestError] = {}
        admitted: list[Incoming[SendMessageHeader]] = []
        for number, message in enumerate(messages):
            try:
                request = self._admit(RequestCode.SEND_MESSAGE, self._header(message), message.body)
            except RequestError as refused:
                refusals[number] = refused
                continue
            admitted.append(request)
        published = self._publisher.publish(admitted, self._admission.caller)
        stored = iter(range(len(admitted)))
        return [
            refusals[number] if number in refusals else _outcome(published, next(stored))
            for number in range(len(messages))
        ]

    def _header(self, message: Message) -> SendMessageHeader:
        try:
            properties = encode_properties(message.properties)
        except FormatError as broken:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, str(broken)) from broken
        return SendMessageHeader(
            producer_group=PRODUCER_GROUP,
            topic=message.topic,
            queue_id=message.queue_id,
            sys_flag=0,
            born_timestamp=self._clock(),
            flag=message.flag,
            properties=properties,
        )

    # --- reading ----------------------------------------------------------------------------------------------

    async def read(
        self, queue: GroupQueue, offset: int, *, count: int = 32, wait_s: float = 0.0, expression: str = "*"
    ) -> ReadResult:
        """At most `count` messages of a queue from an offset on, whose tag is among those of `expression` (`a || b`).

        Without messages it waits up to `wait_s` for one. Nothing is committed. RequestError: refused.
        """
        group, topic, queue_id = queue
        wait_ms = round(wait_s * 1000)
        query = Query(
            group=group,
            topic=topic,
            queue_id=queue_id,
            offset=offset,
            count=count,
            wait_ms=wait_ms or None,
            has_filter=True,
            expression=expression,
        )
        self._admit(
            RequestCode.PULL_MESSAGE,
            PullMessageHeader(
                consumer_group=group,
                topic=topic,
                queue_id=queue_id,
                queue_offset=offset,
                max_msg_nums=count,
                sys_flag=PullFlag.SUBSCRIPTION | (PullFlag.SUSPEND if wait_ms else 0),
                commit_offset=0,
                suspend_timeout_millis=wait_ms,
                subscription=expression,
            ),
        )
        # One of its own for each read: with it goes what is kept while it waits.
        reader = LocalCaller(self._admission.caller.name)
        waiting: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        outcome: Outcome | None = self._reading.read(query, reader, _resolve, waiting)
        if outcome is None:
            self._waiting.add(waiting)
            try:
                outcome = await waiting
            finally:
                self._waiting.discard(waiting)
                reader.close()
                self._reading.drop_owner(reader)
        return _read_result(outcome)

    # --- how far groups are -----------------------------------------------------------------------------------

    def committed(self, queue: GroupQueue) -> int | None:
        """The offset that a group reads on from: the one that it committed, or 0 in a queue whose first message is
        there and recent; else None."""
        group, topic, queue_id = queue
        self._admit(
            RequestCode.QUERY_CONSUMER_OFFSET,
            QueryConsumerOffsetHeader(consumer_group=group, topic=topic, queue_id=queue_id),
        )
        try:
            return self._progress.committed(queue, zero_allowed=True)
        except RequestError as refused:
            if refused.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise

    def commit(self, queue: GroupQueue, offset: int) -> None:
        """The group reads on from `offset`. RequestError for a group, topic or queue that is not there."""
        group, topic, queue_id = queue
        self._admit(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            UpdateConsumerOffsetHeader(
                consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset
            ),
        )
        self._progress.commit(queue, offset)

    # --- looking up -------------------------------------------------------------------------------------------

    def at(self, physical_offset: int) -> StoredRecord:
        """The message at a position of the log. RequestError SYSTEM_ERROR when none starts there."""
        request = self._admit(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset=physical_offset))
        record = decode_record(self._lookup.at(physical_offset))
        self._admission.admit_found(request, record.topic)
        return record

    async def by_key(
        self,
        topic: str,
        key: str,
        *,
        count: int = 32,
        begin_ms: int = 0,
        end_ms: int = TIME_MAX_MS,
        is_unique: bool = False,
    ) -> list[StoredRecord]:
        """The newest `count` messages of a topic with a key that were stored in that time, the oldest of them first.

        `is_unique`: the key is the one that a message has for itself. Keys are indexed a little after the send.
        """
        self._admit(
            RequestCode.QUERY_MESSAGE,
            QueryMessageHeader(
                topic=topic,
                key=key,
                max_num=count,
                begin_timestamp=begin_ms,
                end_timestamp=end_ms,
                unique_key_query=is_unique,
            ),
        )
        found = self._lookup.by_key(
            topic, key, count=count, begin_ms=begin_ms, end_ms=end_ms, is_unique=is_unique
        )
        if not isinstance(found, QueryResult):
            found = await found()
        return decode_records(b"".join(found.body))

    def by_time(self, topic: str, queue_id: int, time_ms: int, *, upper: bool = False) -> int:
        """Offset of a queue's first message from a time on, or (`upper`) of the last up to it; 0 without a queue."""
        header = SearchOffsetHeader(
            topic=topic, queue_id=queue_id, timestamp=time_ms, boundary_type="UPPER" if upper else "LOWER"
        )
        self._admit(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        return self._lookup.by_time(topic, queue_id, time_ms, upper=upper)

    def ends(self, topic: str, queue_id: int) -> tuple[int, int]:
        """The first readable offset of a queue and the one past its last."""
        header = QueueHeader(topic=topic, queue_id=queue_id)
        self._admit(RequestCode.GET_MIN_OFFSET, header)
        self._admit(RequestCode.GET_MAX_OFFSET, header)
        return self._lookup.ends(topic, queue_id)

    # --- topics -----------------------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicConfig:
        """Settings of a topic, to be looked at only. RequestError TOPIC_NOT_EXIST without it."""
        self._admit(RequestCode.GET_TOPIC_CONFIG, TopicHeader(topic=name))
        return self._topics.require(name)

    def topics(self) -> list[str]:
        """The names of all topics, those of the broker itself among them."""
        self._admit(RequestCode.GET_ALL_TOPIC_CONFIG, NoFields())
        return sorted(self._topics.all())


def _outcome(published: Published, number: int) -> Sent | RequestError:
    refused = published.refused.get(number)
    if refused is not None:
        return refused
    place = published.places[number]
    return Sent(
        published.unique_keys[number],
        published.queue_ids[number],
        place.queue_offset,
        place.physical_offset,
        published.recall_handles.get(number),
    )


def _resolve(waiting: "asyncio.Future[Outcome]", outcome: Outcome) -> None:
    if not waiting.done():
        waiting.set_result(outcome)


def _read_result(outcome: Outcome) -> ReadResult:
    if isinstance(outcome, Read):
        result = outcome.result
        messages = decode_records(b"".join(result.body))
        return ReadResult(outcome.kind, messages, result.next_offset, result.min_offset, result.max_offset)
    if isinstance(outcome, Moved):
        return ReadResult(ReadKind.MOVED, [], outcome.offset, outcome.min_offset, outcome.max_offset)
    if isinstance(outcome, Failed):
        raise outcome.error
    raise AssertionError(f"{outcome}: no reader in this process is congested")
