"""The topics of a store: which have queues, of which kind these are, and what becomes of a topic that is deleted.

Touches  the folders of queues and the list of deleted topics, through the queue table and the tombstones.

A deleted topic's records stay in the log until they are cleaned away; tombstones keep recovery from giving them queues
again. They are durable before anything new is stored, or a crash could take the deletion back from under it.
"""

import contextlib
from collections.abc import Callable, Generator, Iterable

from aerobee_store.faults.errors import StoreError, StoreFull
from aerobee_store.faults.health import StoreHealth
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.queues.consume_queue import ENTRY
from aerobee_store.queues.queue_table import QueueTable
from aerobee_store.queues.tombstones import Tombstones
from aerobee_store.writing.appender import Appender

__all__ = ["StoredTopics"]


class StoredTopics:
    """Topics that have, or had, queues in one store."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        appender: Appender,
        tombstones: Tombstones,
        health: StoreHealth,
        *,
        plan_again: Callable[[str, int], None],
        is_open: Callable[[], bool],
    ) -> None:
        """`plan_again` gives a topic the queues that its records from a physical offset on make. `is_open`: whether the
        store is; deletions are saved only then."""
        self._log = log
        self._queues = queues
        self._appender = appender
        self._tombstones = tombstones
        self._plan_again = plan_again
        self._health = health
        self._is_open = is_open

    def names(self) -> list[str]:
        """Topics that have a queue, sorted."""
        return self._queues.topics

    @property
    def count(self) -> int:
        """How many topics have a queue."""
        return self._queues.topic_count

    def queue_ids(self, topic: str) -> list[int]:
        """Ids of the topic's queues that hold or held messages, sorted."""
        found = ((i, self._queues.get(topic, i)) for i in self._queues.queue_ids(topic))
        return [i for i, q in found if q is not None and self._appender.next_offset(q) > 0]

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Whether this queue was made: it has a folder, or will have one with the messages that are in the log."""
        return self._queues.get(topic, queue_id) is not None

    def queue_count(self, topic: str) -> int:
        """How many queues of the topic were made, see has_queue()."""
        return self._queues.queue_count(topic)

    # --- topics of batches -----------------------------------------------------------------------------

    def is_batch(self, topic: str) -> bool:
        """Whether the topic has queues of batches: a record may hold several messages."""
        return topic in self._queues.batch_topics

    @property
    def batch_names(self) -> frozenset[str]:
        """All topics with queues of batches."""
        return frozenset(self._queues.batch_topics)

    def prepare_batch(self, topics: Iterable[str]) -> None:
        """Do what takes time of make_batch(), for any thread. OSError or StoreFull: the disk does not take it."""
        for topic in topics:
            self._queues.prepare_batch_topic(topic)

    def forget_prepared(self, topics: Iterable[str]) -> None:
        """Take prepare_batch() back for those that have not become such a topic. What it leaves after a failure is
        without harm: a folder without files, see batch_queues."""
        with contextlib.suppress(OSError):
            self._queues.forget_prepared(topics)

    def make_batch(self, topic: str) -> None:
        """Give a new topic queues of batches; durable on return. StoreError when it cannot have them, as it has plain
        ones or the disk does not take the folder; it has none then."""
        try:
            self._queues.make_batch_topic(topic)
        except OSError as failed:
            raise StoreError(f"topic {topic} cannot have queues of batches: {failed}") from failed

    # --- deletion --------------------------------------------------------------------------------------

    def delete(self, topic: str) -> int:
        """Delete the topic's queues; how many there were. Its records stay in the log until cleaned.

        That is on disk already, unless save_deletions() says why it cannot be; then a crash may bring them back.
        StorePoisoned when their files cannot be deleted.
        """
        count = len(self._queues.queue_ids(topic))
        for _ in self.deletion(topic):
            pass
        return count

    def deletion(self, topic: str) -> Generator[None, None, int]:
        """As delete(), in steps of a queue each. The topic has no queue from this call on, and may have new ones
        before the last step."""
        return self._deletion(topic, self._log.end_offset)

    def _deletion(self, topic: str, log_end: int) -> Generator[None, None, int]:
        self._appender.forget_topic(topic)
        self._tombstones.add(topic, log_end)
        # First, as queues that are gone without a reason are built again under numbers that were given out anew.
        with contextlib.suppress(OSError, StoreFull):
            self._tombstones.save()
        try:
            steps = self._queues.deletion(topic)
        except OSError as error:
            raise self._health.fail(self._queues.title, error) from error
        return self._steps(steps)

    def _steps(self, steps: Generator[None, None, int]) -> Generator[None, None, int]:
        try:
            return (yield from steps)
        except OSError as error:
            raise self._health.fail(self._queues.title, error) from error

    # --- of a replica ----------------------------------------------------------------------------------

    @property
    def deletions(self) -> dict[str, int]:
        """Topics that were deleted, each with the physical offset below which its messages are dead."""
        return self._tombstones.topics

    def follow_deletion(self, topic: str, log_end: int) -> bool:
        """The source of this replica has deleted the topic when its log ended at `log_end`, which may lie before this
        one's end, or behind it: what came since is of a topic that was made anew, and gets its queues again. Whether
        anything was to be done. Errors as delete(), and CorruptStore when the log cannot be read."""
        if self._tombstones.end_of(topic) >= log_end or log_end <= self._log.min_offset:
            return False
        is_batch = self.is_batch(topic)
        for _ in self._deletion(topic, log_end):
            pass
        if log_end < self._log.end_offset:
            if is_batch:
                self.make_batch(topic)
            self._plan_again(topic, log_end)
        return True

    def become_batch(self, topic: str) -> bool:
        """The source of this replica says that the topic has queues of batches; plain ones that it has are made again.
        Whether anything was to be done; errors as follow_deletion()."""
        if self.is_batch(topic):
            return False
        begin = self._begin_of(topic)
        if begin is not None:
            self._appender.forget_topic(topic)
            for _ in self._steps(self._queues.deletion(topic)):
                pass
        self.make_batch(topic)
        if begin is not None:
            self._plan_again(topic, begin)
        return True

    def _begin_of(self, topic: str) -> int | None:
        """Physical offset of the first record of the topic that has a place in a queue, or will have one; None without
        one."""
        found = [
            ENTRY.unpack_from(entries)[0]
            for batch in self._appender.pending
            for queue, _, entries in batch.touched
            if queue.topic == topic
        ]
        for queue_id in self._queues.queue_ids(topic):
            queue = self._queues.get(topic, queue_id)
            entry = queue.entry(queue.min_offset) if queue is not None else None
            if entry is not None:
                found.append(entry.physical_offset)
        return min(found, default=None)

    def is_dead(self, topic: str, physical_offset: int) -> bool:
        """Whether a message of `topic` that came at `physical_offset` died with the topic, which was deleted later."""
        return self._tombstones.covers(topic, physical_offset)

    def save_deletions(self) -> None:
        """Make it durable which topics were deleted before this call; for any thread.

        OSError or StoreFull when that is not possible now; it is not final, and may be tried again.
        """
        if self._is_open() and self._health.reason is None:
            self._tombstones.prune(self._log.min_offset)
            self._tombstones.save()

    def settle_deletions(self) -> None:
        """Before something is stored: no message may follow a deletion that a crash takes back, as it could be of the
        same topic. StoreFull; StorePoisoned when the disk fails."""
        if not self._tombstones.is_dirty:
            return
        try:
            self._tombstones.save()
        except OSError as error:
            raise self._health.fail("list of deleted topics", error) from error
