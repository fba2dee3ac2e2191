"""Single messages: by key, by unique key, by position. And queues by time.

Touches  the store.
"""

import asyncio
from collections.abc import Generator
from typing import Final

from aerobee_broker.catalog.topics import TopicTable
from aerobee_broker.settings.config import LiveConfig
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_store.reading.query import QueryResult
from aerobee_store.store import MessageStore

__all__ = ["Lookup"]

KEY_SIZE_MAX: Final = 16_384


class Lookup:
    """Finds messages that nobody has to have read up to. All calls from the event loop."""

    def __init__(self, *, live: LiveConfig, store: MessageStore, topics: TopicTable) -> None:
        self._live = live
        self._store = store
        self._topics = topics
        self._one_at_a_time = asyncio.Lock()

    async def by_key(
        self, topic: str, key: str, *, count: int, begin_ms: int, end_ms: int, is_unique: bool
    ) -> QueryResult:
        """Messages of a topic that carry a key and were stored in that time, the newest `count` of them.

        One after the other, and a turn of the event loop between the steps of each: a key that a million messages share
        takes long. RequestError INVALID_PARAMETER for a key that is too long, or for no messages.
        """
        if len(key) > KEY_SIZE_MAX:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"key of {len(key)} characters, at most {KEY_SIZE_MAX} are allowed",
            )
        if is_unique:  # it names one message; the official broker then looks at a fixed number of entries
            count = self._live.value.default_query_max_num
        if count < 1:
            raise RequestError(ResponseCode.INVALID_PARAMETER, f"maxNum {count} is not positive")
        async with self._one_at_a_time:
            return await _in_turns(self._store.keys.query_steps(topic, key, count, begin_ms, end_ms))

    def at(self, physical_offset: int) -> bytes:
        """The record that starts at a position of the commit log. RequestError SYSTEM_ERROR when none does."""
        record = self._store.reading.message_at(physical_offset)
        if record is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {physical_offset}"
            )
        return record

    def by_time(self, topic: str, queue_id: int, time_ms: int, *, upper: bool) -> int:
        """Offset of a queue's first message from a time on, or (`upper`) of the last up to it; 0 without a queue."""
        if not self._topics.has_queue(topic, queue_id):
            return 0
        return max(0, self._store.reading.offset_by_time(topic, queue_id, time_ms, upper))

    def ends(self, topic: str, queue_id: int) -> tuple[int, int]:
        """The first readable offset of a queue and the one past its last; 0 and 0 without a queue."""
        return self._store.reading.min_offset(topic, queue_id), self._store.reading.max_offset(
            topic, queue_id
        )

    def earliest_time(self, topic: str, queue_id: int) -> int:
        """Store time of a queue's first message, ms since the epoch; -1 without one."""
        return self._store.reading.earliest_time(topic, queue_id)


async def _in_turns(steps: Generator[None, None, QueryResult]) -> QueryResult:
    """What the steps come to, each in a turn of its own."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: QueryResult = end.value
            return found
        await asyncio.sleep(0)
