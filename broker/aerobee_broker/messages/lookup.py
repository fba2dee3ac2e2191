"""Single messages: by key, by unique key, by position. And queues by time.

Touches  the store.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Final
from weakref import WeakSet

from aerobee_broker.catalog.topics import TopicTable
from aerobee_broker.reading.cold_reads import ColdReads, Owner
from aerobee_broker.settings.config import LiveConfig
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_store.disk.page_cache import NotInMemory
from aerobee_store.reading.query import QueryResult
from aerobee_store.reading.stored_messages import StoredMessages
from aerobee_store.store import MessageStore

__all__ = ["Lookup"]

KEY_SIZE_MAX: Final = 16_384

_Steps = Generator[NotInMemory | None, None, QueryResult]


class Lookup:
    """Finds messages that nobody has to have read up to. All calls from the event loop."""

    def __init__(
        self,
        *,
        live: LiveConfig,
        store: MessageStore,
        topics: TopicTable,
        messages: StoredMessages,
        cold: ColdReads,
    ) -> None:
        """`messages` are `store.reading`, or `store.asking` for callers that know of NotInMemory."""
        self._live = live
        self._store = store
        self._messages = messages
        self._cold = cold
        self._topics = topics
        self._one_at_a_time = asyncio.Lock()
        # The steps of those that did not come to an end at once, or were not begun for that reason; none that waits for
        # the disk.
        self._unfinished: WeakSet[_Steps] = WeakSet()

    def by_key(
        self,
        topic: str,
        key: str,
        *,
        count: int,
        begin_ms: int,
        end_ms: int,
        is_unique: bool,
        caller: Owner | None = None,
    ) -> QueryResult | Callable[[], Awaitable[QueryResult]]:
        """Messages of a topic that carry a key and were stored in that time, the newest `count` of them: at once where
        little work finds them in memory, else what finds them in later turns.

        One after the other, and a turn of the event loop between the steps of each: a key that a million messages share
        takes long. One that waits for the disk lets the others go on; it waits on behalf of `caller`.
        RequestError INVALID_PARAMETER for a key that is too long, or for no messages.
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
        steps = self._store.keys.query_steps(topic, key, count, begin_ms, end_ms)
        missing = None
        if not self._unfinished:
            try:
                missing = next(steps)
            except StopIteration as end:
                found: QueryResult = end.value
                return found
        self._unfinished.add(steps)
        return partial(self._rest_of, steps, missing, caller)

    async def _rest_of(
        self,
        steps: _Steps,
        missing: NotInMemory | None,
        caller: Owner | None,
    ) -> QueryResult:
        """What the steps come to, from one on that needs what is missing."""
        try:
            while True:
                if missing is not None:
                    self._unfinished.discard(steps)  # meanwhile others are answered at once
                    try:
                        await self._cold.brought(missing, caller)
                    finally:
                        self._unfinished.add(steps)
                async with self._one_at_a_time:
                    found = await _in_turns(steps)
                if isinstance(found, QueryResult):
                    return found
                missing = found
        finally:
            self._unfinished.discard(steps)

    def at(self, physical_offset: int) -> bytes:
        """The record that starts at a position of the commit log. RequestError SYSTEM_ERROR when none does."""
        record = self._messages.message_at(physical_offset)
        if record is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {physical_offset}"
            )
        return record

    def by_time(self, topic: str, queue_id: int, time_ms: int, *, upper: bool) -> int:
        """Offset of a queue's first message from a time on, or (`upper`) of the last up to it; 0 without a queue."""
        if not self._topics.has_queue(topic, queue_id):
            return 0
        return max(0, self._messages.offset_by_time(topic, queue_id, time_ms, upper))

    def ends(self, topic: str, queue_id: int) -> tuple[int, int]:
        """The first readable offset of a queue and the one past its last; 0 and 0 without a queue."""
        return self._messages.min_offset(topic, queue_id), self._messages.max_offset(topic, queue_id)

    def earliest_time(self, topic: str, queue_id: int) -> int:
        """Store time of a queue's first message, ms since the epoch; -1 without one."""
        return self._messages.earliest_time(topic, queue_id)


async def _in_turns(steps: _Steps) -> QueryResult | NotInMemory:
    """What the steps come to, each in a turn of its own, or what has to be brought before the next one."""
    while True:
        try:
            missing = next(steps)
        except StopIteration as end:
            found: QueryResult = end.value
            return found
        if missing is not None:
            return missing
        await asyncio.sleep(0)
