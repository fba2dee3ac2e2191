"""What a slave's store has to know of its master's topics: which were deleted, and which have queues of batches.

Touches  the table of topics; the store.

A topic that was deleted and made again counts its messages from 0 anew. Our master tells with its topics where its log
ended when it deleted one; of RocketMQ's it is known that a topic is not there any more, and where the log ended after.

    the table of round n has not got a topic that was there    its log's end E is asked behind that
    the table of round n + 1 has not got it either             what lies below E is of nobody

Invariants
- Nothing is deleted that the master's table has, but for what lies below the place that the master has told.
- Deletions are durable before the log goes on (`MessageStore.append_raw`).
"""

import asyncio
from collections.abc import Callable, Mapping

import structlog

from aerobee_broker.catalog.topics import TopicTable, has_batch_queues
from aerobee_proto import bodies
from aerobee_proto.bodies import Long
from aerobee_store.faults.errors import StoreError
from aerobee_store.writing.stored_topics import StoredTopics

__all__ = ["FollowedTopics"]

log = structlog.get_logger()


class FollowedTopics:
    """The topics of a slave, in its table and in its store. All calls from the event loop."""

    def __init__(self, topics: TopicTable, stored: StoredTopics, *, on_planned: Callable[[], None]) -> None:
        """`on_planned` is called when queues have got entries that are to be shown."""
        self.table = self._topics = topics
        self._stored = stored
        self._on_planned = on_planned
        self._gone: dict[
            str, int | None
        ] = {}  # topic -> the log's end that was asked for since; None: not yet
        self._was_refused = False

    @property
    def is_settled(self) -> bool:
        """Whether the last answer that was followed has left nothing to be done."""
        return not self._gone and not self._was_refused

    async def follow(self, content: Mapping[str, object]) -> bool:
        """Take the master's answer to 21; whether the table has changed. FormatError: it is no table of topics."""
        theirs = await asyncio.to_thread(self._topics.parse, content)
        self._was_refused = False
        deleted = bodies.convert(content.get("deletedTopics", {}), dict[str, Long])
        before = self._topics.all()
        has_changed = self._topics.follow(theirs)
        now = self._topics.all()
        self._gone |= dict.fromkeys(before.keys() - now.keys() - deleted.keys())
        for topic in [one for one in self._gone if one in now or one in deleted]:
            del self._gone[topic]
        known = [(topic, end) for topic, end in self._gone.items() if end is not None]
        for topic, end in (*known, *deleted.items()):
            if self._try(topic, lambda topic=topic, end=end: self._stored.follow_deletion(topic, end)):  # type: ignore[misc]
                log.info("replication.topic_deleted", topic=topic, physical_offset=end)
            self._gone.pop(topic, None)
        for topic, config in now.items():
            if has_batch_queues(config):
                self._try(topic, lambda topic=topic: self._stored.become_batch(topic))  # type: ignore[misc]
        return has_changed

    def ends_at(self, log_end: int) -> None:
        """The master's log ended there, asked after its topics."""
        for topic, end in self._gone.items():
            if end is None:
                self._gone[topic] = log_end

    def _try(self, topic: str, change: Callable[[], bool]) -> bool:
        """What the disk does not take now is tried again by the next round."""
        try:
            is_done = change()
        except (StoreError, OSError) as refused:
            log.warning("replication.topic_not_followed", topic=topic, reason=str(refused))
            self._was_refused = True
            return False
        if is_done:
            self._on_planned()
        return is_done
