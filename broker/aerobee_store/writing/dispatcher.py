"""From appended batches to what readers see: queue entries and index keys, without reading the log again.

Touches  queues and index it is given.

Invariants
- confirmed_offset is the end of the last batch whose queue entries are written; readers see nothing beyond.
- Entries of a queue are written in order, one write a queue and call.
- What is stuck for want of room is in `_stuck` before confirmed_offset moves past it.
- Keys wait in `index_backlog` in log order until build_index() or a query takes them.

Threads: one thread calls everything; a worker may read confirmed_offset, confirmed_timestamp, indexed_offset
and is_stuck, in this order, to learn what a flush that it begins afterwards will cover.
"""

from collections import deque
from contextlib import suppress
from typing import Protocol

from aerobee_store.faults.errors import StoreFull
from aerobee_store.index.index import IndexService, KeyedBlock, KeyedRecord
from aerobee_store.queues.batch_queue import plain_entries
from aerobee_store.queues.consume_queue import ConsumeQueue
from aerobee_store.terms.messages import Arrival
from aerobee_store.writing.appender import PendingBatch, Touched

__all__ = ["INDEX_BACKLOG_MAX", "Dispatcher", "Showing"]

# Records waiting for the index beyond which confirm() indexes them itself.
INDEX_BACKLOG_MAX = 200_000
# (first queue offset, packed entries)
_Work = tuple[int, bytes]


class Showing(Protocol):
    """How far queue entries are written."""

    @property
    def begun_count(self) -> int:
        """Queues that were given their first entry since the store was opened."""
        ...

    def is_behind(self, offset: int) -> bool:
        """Whether confirm() has left batches that end at or below `offset`."""
        ...

    def keeps(self, offset: int) -> None:
        """Nothing takes back what ends at or below `offset`: it may be shown."""
        ...


class Dispatcher:
    """Turns pending batches into queue entries, and keys into index entries."""

    def __init__(self, pending: deque[PendingBatch], index: IndexService | None) -> None:
        self._pending = pending
        self._index = index
        # Physical offset below which messages may be shown, as confirm() and keeps() were told. Who knows the place of
        # one finds it there; in its queue it is once `confirmed_offset` is beyond it.
        self.kept_offset = 0
        # Moved by confirm().
        self.confirmed_offset = 0
        self.confirmed_timestamp = 0
        # Queues that were given their first entry, and with it a folder and a file.
        self.begun_count = 0
        # Entries that found no room on the disk; tried again before anything else.
        self._stuck: dict[ConsumeQueue, _Work] = {}
        # Why: what the first of them met.
        self.stuck_by: StoreFull | None = None
        self._index_backlog: deque[KeyedRecord | KeyedBlock] = deque()
        # Records in there.
        self.index_backlog: int = 0
        # Whether queue entries, or too many keys, wait for room on the disk. Kept by `_note_stuck`, as every send asks.
        self.is_stuck: bool = False

    def _note_stuck(self) -> None:
        self.is_stuck = bool(self._stuck) or self.index_backlog > INDEX_BACKLOG_MAX

    def _note_keys(self, batch: PendingBatch) -> None:
        """Have these indexed later."""
        self._index_backlog.extend(batch.index_items)
        self.index_backlog += batch.keyed_count

    def confirm(self, offset: int, *, notify: bool = True, begun_max: int = 0) -> list[Arrival]:
        """Write the queue entries of every batch that ends at or below `offset`; what arrived, if it is to be told.

        Entries for which the disk has no room are kept and tried again by the next call. It ends where more than
        `begun_max` batches begin queues, which takes long (0: it does not): `is_behind` says whether there is more.
        """
        self.keeps(offset)
        pending = self._pending
        if not self._stuck and (not pending or pending[0].end_offset > offset):
            return []
        last: PendingBatch | None = None
        if not self._stuck and (len(pending) == 1 or pending[1].end_offset > offset):
            last = pending.popleft()
            self._note_keys(last)
            arrivals = self._write(last.touched, notify)
        else:
            work = {queue: (first, [entries]) for queue, (first, entries) in self._stuck.items()}
            begun = 0
            while pending and pending[0].end_offset <= offset:
                begins = bool(begun_max) and any(
                    self._begins(queue) and queue not in work for queue, *_ in pending[0].touched
                )
                if begins and begun >= begun_max:
                    break
                begun += begins
                last = pending.popleft()
                for queue, first, entries in last.touched:
                    work.setdefault(queue, (first, []))[1].append(entries)
                self._note_keys(last)
            arrivals = self._write(
                [(queue, first, b"".join(parts)) for queue, (first, parts) in work.items()], notify
            )
        if last is not None:
            # In this order, and after the entries: the worker reads them the other way round.
            self.confirmed_timestamp = last.store_timestamp
            self.confirmed_offset = last.end_offset
        if self.index_backlog > INDEX_BACKLOG_MAX:
            with suppress(StoreFull):
                self.build_index(INDEX_BACKLOG_MAX)
            self._note_stuck()
        return arrivals

    def keeps(self, offset: int) -> None:
        """See Showing."""
        if offset > self.kept_offset:
            self.kept_offset = offset

    def is_behind(self, offset: int) -> bool:
        """See Showing."""
        return bool(self._pending) and self._pending[0].end_offset <= offset

    @staticmethod
    def _begins(queue: ConsumeQueue) -> bool:
        """Whether its next entry is the first, for which a file is made. Of a queue that was deleted none is."""
        return not queue.max_offset and not queue.deleted

    def _write(self, work: list[Touched], notify: bool) -> list[Arrival]:
        arrivals: list[Arrival] = []
        stuck: dict[ConsumeQueue, _Work] = {}
        self.stuck_by = None
        for queue, first, entries in work:
            if queue.deleted:
                continue
            begins = self._begins(queue)
            try:
                queue.put_entries(first, entries, rising=True)
            except StoreFull as error:
                stuck[queue] = (first, entries)
                self.stuck_by = self.stuck_by or error
                continue
            if begins:
                self.begun_count += 1
            if queue.max_offset == queue.next_offset:
                # One number, not two that both have to come from memory next time.
                queue.max_offset = queue.next_offset
            if notify:
                if queue.is_batch:
                    entries = plain_entries(entries)
                arrivals.append((queue.topic, queue.queue_id, queue.max_offset, entries))
        if stuck or self.is_stuck:
            self._stuck = stuck
            self._note_stuck()
        return arrivals

    # --- index -----------------------------------------------------------------------------------------

    @property
    def indexed_offset(self) -> int:
        """All keys of records below this physical offset are in the index."""
        confirmed = self.confirmed_offset
        try:
            return self._index_backlog[0][3]
        except IndexError:  # empty, maybe only just
            return confirmed

    def build_index(self, limit: int) -> int:
        """Index the keys of `limit` records, or of all that wait; how many keys. What came hashed together is indexed
        together, so it may be some more. StoreFull keeps them waiting."""
        backlog = self._index_backlog
        if not backlog or self._index is None:
            return 0
        if limit >= self.index_backlog:
            batch, count = list(backlog), self.index_backlog
        else:
            batch, count = [], 0
            for item in backlog:
                batch.append(item)
                count += item.record_count if isinstance(item, KeyedBlock) else 1
                if count >= limit:
                    break
        keys = self._index.put_many(batch)
        self.index_backlog -= count
        if len(batch) == len(backlog):
            backlog.clear()
        else:
            for _ in batch:
                backlog.popleft()
        self._note_stuck()
        return keys
