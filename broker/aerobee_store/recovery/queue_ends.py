"""Where queues ended when all of them was on disk, and which of them end elsewhere now: what damage has taken.

Touches  the queues, and the list of them below config/.

A crash takes no entries that were on disk, and recovery writes again what was not. So a queue that ends before where
it is known to have ended has lost files or entries to something else, and is built again from the log; numbers that
the log has no messages for any more stay taken.
"""

from aerobee_store.log.checkpoint import Watermark
from aerobee_store.queues.consume_queue import ConsumeQueue
from aerobee_store.queues.queue_list import ListedQueue, QueueList
from aerobee_store.recovery.report import Parts, RecoveryReport, lose

__all__ = ["QueueEnds"]


class QueueEnds:
    """The queues as they were when the store was closed in good order, if that is known, against what there is."""

    def __init__(self, parts: Parts, report: RecoveryReport, mark: Watermark | None) -> None:
        """`mark`: what was known to be on disk when recovery began; the list counts only together with it."""
        self._parts = parts
        self._report = report
        self._mark = mark
        self._queue_list = QueueList(parts.config.root, parts.io)
        self._listed: dict[tuple[str, int], ListedQueue] = {}
        # Those of which files or entries went away since then.
        self._missing: dict[tuple[str, int], ListedQueue] = {}

    @property
    def are_short(self) -> bool:
        """Whether any queue is known to have had more than it has."""
        return bool(self._missing)

    def load(self) -> None:
        """Compare the queues with those there were when the store was closed, if these are known."""
        parts, mark = self._parts, self._mark
        if mark is None or parts.config.rebuild:
            return
        there_were = self._queue_list.load(parts.checkpoint.generation, mark.log_end)
        self._listed = {(listed.topic, listed.queue_id): listed for listed in there_were}
        reported = {(queue.topic, queue.queue_id) for queue, _ in parts.queues.cut}
        reported |= {(queue.topic, queue.queue_id) for queue in parts.queues.emptied}
        for key, listed in self._listed.items():
            wrong = listed.wrong(parts.queues.get(*key))
            if wrong is None:
                continue
            self._missing[key] = listed
            if key not in reported:
                self._report_cut(*key, wrong)

    def _report_cut(self, topic: str, queue_id: int, wrong: str) -> None:
        folder = self._parts.queues.folder_of(topic) / str(queue_id)
        self._report.cut_queues.append((topic, queue_id, str(folder), wrong))

    def keep_list(self) -> None:
        """What there was is known to the next start too, if this one is interrupted: a checkpoint made it void."""
        if self._missing and self._mark is not None:
            generation = self._parts.checkpoint.generation
            self._queue_list.save(self._listed.values(), generation, self._mark.log_end)

    def is_short(self, queue: ConsumeQueue, *, is_broken: bool, is_walked: bool) -> bool:
        """Whether a queue does not end where it ended when all of it was on disk, or before that, after the walk.

        Only what was damaged on the disk can do that. `is_broken` is what can be seen of it without a list.
        """
        key = queue.topic, queue.queue_id
        listed = self._listed.get(key)
        if listed is None:
            if is_broken:
                self._report_cut(*key, f"its entries from {queue.max_offset} on are damaged")
            return is_broken
        if queue.max_offset == listed.end or (is_walked and queue.max_offset > listed.end):
            return False
        if key not in self._missing:
            self._missing[key] = listed
            ended = f"it had entries up to {listed.end} when the store was closed"
            self._report_cut(*key, f"{ended}, and they are damaged: what is left ends at {queue.max_offset}")
        return True

    def keep_numbers(self, end: int) -> None:
        """After the walk: queues that lost entries give out no number twice, in a log that ends at `end`."""
        for listed in self._missing.values():
            self._keep_numbers_of(listed, end)
        # The next checkpoint, which may be the index's, makes the list void.
        self._parts.queues.flush()

    def _keep_numbers_of(self, listed: ListedQueue, end: int) -> None:
        """The queue goes on where it ended, also when the log, which ends at `end`, has less of it: numbers of messages
        that were cleaned away, or cannot be read, stay taken by entries that lead to no record."""
        queue = self._parts.queues.get_or_create(listed.topic, listed.queue_id)
        count = listed.end - queue.max_offset
        if count <= 0:
            return
        if queue.max_offset == 0:
            count = 1
        if end - max(queue.last_physical_end, 0) < count:
            lose(
                self._parts,
                self._report,
                end,
                f"queue {listed.queue_id} of {listed.topic} had entries up to {listed.end} when the store was closed;"
                f" its files are not there, and the log has its messages up to {queue.max_offset}",
            )
            return
        queue.put_entries(listed.end - count, queue.holes(listed.end - count, count, end))
        assert queue.max_offset == listed.end
        self._report.hole_entries += count
