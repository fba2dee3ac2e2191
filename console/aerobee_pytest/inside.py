"""Into and out of a test's broker without a producer or a consumer: through its in-process adapter.

Touches  the broker, in its event loop: all calls from there.

No connection is made and no group is: what a test puts there or looks at leaves no trace but the messages that it put.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from aerobee import Message, MessageQueue, SendResult
from aerobee.errors import BrokerRefused
from aerobee.messages.outgoing import body_bytes, checked_topic, property_text
from aerobee_broker.in_process.adapter import InProcess
from aerobee_broker.in_process.values import ANY_QUEUE, Sent
from aerobee_broker.in_process.values import Message as ToSend
from aerobee_broker.messages.values import ReadKind
from aerobee_proto.errors import RequestError
from aerobee_proto.names import TOOLS_GROUP, GroupQueue
from aerobee_proto.properties import decode_properties
from aerobee_proto.records import StoredRecord

__all__ = ["Inside"]

READ_COUNT: Final = 256  # messages of one read
BODY_SIZE_MAX: Final = 256 << 20  # bytes that a compressed body may grow to


class Inside:
    """The broker of one server. Refusals are BrokerRefused, wrong arguments InvalidMessage, as of the client."""

    def __init__(self, access: InProcess, broker_name: str, broker_addr: str) -> None:
        self._access = access
        self._broker_name = broker_name
        self._broker_addr = broker_addr

    async def put(
        self,
        topic: str,
        bodies: Sequence[bytes | str],
        *,
        tags: str | None,
        keys: str | Iterable[str] | None,
        properties: Mapping[str, str] | None,
        queue: int | None,
    ) -> list[SendResult]:
        """Store messages that differ in their bodies alone; where each of them lies."""
        checked_topic(topic)
        mapping = decode_properties(property_text(tags, keys, properties, None, 0))
        queue_id = ANY_QUEUE if queue is None else queue
        outcomes = await self._access.send_all(
            [ToSend(topic, body_bytes(body), queue_id, mapping) for body in bodies]
        )
        return [self._result(topic, outcome) for outcome in outcomes]

    def _result(self, topic: str, outcome: Sent | RequestError) -> SendResult:
        if isinstance(outcome, RequestError):
            raise self._refused(f"put into topic {topic}", outcome) from outcome
        stored = self._message(self._access.at(outcome.physical_offset))
        return SendResult(
            message_id=outcome.unique_key,
            queue=MessageQueue(topic, self._broker_name, outcome.queue_id),
            queue_offset=outcome.queue_offset,
            offset_message_id=stored.offset_message_id,
        )

    def _message(self, record: StoredRecord) -> Message:
        return Message(record, self._broker_name, BODY_SIZE_MAX)

    async def messages(self, topic: str, *, at_least: int, timeout_s: float) -> list[Message]:
        """What is in a topic, in the order in which it was stored; waits while it is less than `at_least`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        try:
            queue_count = self._access.topic(topic).read_queue_nums
            found: list[Message] = []
            offsets = dict.fromkeys(range(queue_count), 0)
            while True:
                for queue_id in offsets:
                    found += await self._rest(topic, queue_id, offsets)
                left_s = deadline - loop.time()
                if len(found) >= at_least or left_s <= 0:
                    break
                await self._arrival(topic, offsets, left_s)
        except RequestError as refused:
            raise self._refused(f"look into topic {topic}", refused) from refused
        return sorted(found, key=lambda message: message.record.physical_offset)

    async def _rest(self, topic: str, queue_id: int, offsets: dict[int, int]) -> list[Message]:
        """The messages of a queue from its offset on, which moves behind them."""
        found: list[Message] = []
        queue = GroupQueue(TOOLS_GROUP, topic, queue_id)
        while True:
            read = await self._access.read(queue, offsets[queue_id], count=READ_COUNT)
            offsets[queue_id] = read.next_offset
            if read.kind is ReadKind.NOTHING_YET:
                return found
            found += [self._message(record) for record in read.messages]

    async def _arrival(self, topic: str, offsets: Mapping[int, int], timeout_s: float) -> None:
        """Return when one of the queues has more than before, or the time is over."""
        reads = [
            asyncio.create_task(
                self._access.read(GroupQueue(TOOLS_GROUP, topic, queue_id), offset, count=1, wait_s=timeout_s)
            )
            for queue_id, offset in offsets.items()
        ]
        try:
            await asyncio.wait(reads, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for read in reads:
                read.cancel()
            await asyncio.gather(*reads, return_exceptions=True)

    async def committed(self, group: str, topic: str) -> dict[int, int]:
        """The offset that a group reads on from, of each queue of a topic; 0 where it has committed none."""
        try:
            queue_count = self._access.topic(topic).read_queue_nums
            return {
                queue_id: self._access.committed(GroupQueue(group, topic, queue_id)) or 0
                for queue_id in range(queue_count)
            }
        except RequestError as refused:
            raise self._refused(f"offsets of group {group} in topic {topic}", refused) from refused

    def _refused(self, what: str, refused: RequestError) -> BrokerRefused:
        return BrokerRefused(what, self._broker_addr, refused.code, refused.remark)
