"""What can be asked about the messages of a store: which there are in a queue, when they came, and what they are.

Touches  queues and commit log, reading. No clock.

Offsets are queue offsets, numbers of messages in their queue, where nothing else is said. An unknown queue answers
as an empty one. Called by the thread that appends, as all of the store but what names another.
"""

import struct
from collections.abc import Callable

from aerobee_proto.records import RECORD_SIZE_MIN, scan_header
from aerobee_store.log.commit_log import CommitLog, Prover
from aerobee_store.log.damage_events import log_new_damage
from aerobee_store.queues.batch_queue import BatchQueue
from aerobee_store.queues.consume_queue import ConsumeQueue, ConsumeQueueEntry
from aerobee_store.queues.offset_by_time import offset_by_time
from aerobee_store.queues.queue_table import QueueTable
from aerobee_store.reading.get_message import GetResult, MessageReader, Selector
from aerobee_store.reading.residency import Residency
from aerobee_store.terms.config import StoreConfig
from aerobee_store.writing.appender import Appender

__all__ = ["StoredMessages"]

# physical offset, sys flag; then store time, behind a born host of 8 or 20 bytes
_PLACE_AND_FLAG = struct.Struct(">28xqi")
_STORE_TIME_AT = (56, 68)
_TIME = struct.Struct(">q")
_BORN_V6 = 0x10


class StoredMessages:
    """The messages of one store, as readers see them."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        appender: Appender,
        reader: MessageReader,
        config: StoreConfig,
        *,
        kept_offset: Callable[[], int],
        residency: Residency | None = None,
    ) -> None:
        """`kept_offset` is the physical offset below which messages may be shown. With `residency`, which `reader` has
        too, nothing waits for the disk: what would do so raises NotInMemory."""
        self._log = log
        self._queues = queues
        self._appender = appender
        self._reader = reader
        self._config = config
        self._kept_offset = kept_offset
        self._residency = residency
        # The first byte that was kept when oldest_time() was asked last, and what it said.
        self._oldest = (-1, -1)
        # What a usual read is gathered from; see MessageReader.
        self.nearby = reader.nearby

    def get_message(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int,
        tag_filter: frozenset[int] | None,
        selector: Selector | None = None,
    ) -> GetResult:
        """Records of a queue from `offset` on, as stored; see MessageReader.get()."""
        known = self._log.damaged
        found = self._reader.get(topic, queue_id, offset, max_count, max_bytes, tag_filter, selector)
        if self._log.damaged is not known:
            log_new_damage(self._log, known)
        return found

    # --- the range of a queue --------------------------------------------------------------------------

    def use_prover(self, prover: Prover) -> None:
        """Ask this first of each record that has to be proven before it is read, by whichever reader of the store."""
        self._log.prover = prover

    def min_offset(self, topic: str, queue_id: int) -> int:
        """First readable offset; 0 for an unknown queue."""
        queue = self._queues.get(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """One past the last readable offset; 0 for an unknown queue."""
        queue = self._queues.get(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def readable_range(self, topic: str, queue_id: int) -> tuple[int, int] | None:
        """(min_offset, max_offset) of a queue; None when it never held a message, or is unknown."""
        queue = self._queues.get(topic, queue_id)
        return None if queue is None or queue.max_offset == 0 else (queue.min_offset, queue.max_offset)

    def stored_range(self, topic: str, queue_id: int) -> tuple[int, int] | None:
        """As readable_range(), with what is stored and may not be read yet."""
        queue = self._queues.get(topic, queue_id)
        end = 0 if queue is None else self._appender.next_offset(queue)
        return None if queue is None or end == 0 else (queue.min_offset, end)

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The offset that the next message of the queue will get; max_offset() or above it."""
        queue = self._queues.get(topic, queue_id)
        return self._appender.next_offset(queue) if queue is not None else 0

    # --- time ------------------------------------------------------------------------------------------

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int, upper: bool) -> int:
        """Offset of the first message stored at or after `timestamp` (ms); with `upper` of the last one stored at or
        before it. Within [min_offset, max_offset]; 0 for an unknown queue."""
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return 0
        if isinstance(queue, BatchQueue):
            return queue.offset_by_time(timestamp, upper=upper)
        entries = queue if self._residency is None else _Asked(queue, self._residency)
        return offset_by_time(entries, timestamp, upper, self._store_time_at, log_min=self._log.min_offset)

    def earliest_time(self, topic: str, queue_id: int) -> int:
        """Store time (ms) of the queue's first readable message, -1 without one."""
        return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))

    def oldest_time(self) -> int:
        """Store time (ms) of the oldest record that is kept, -1 without one. It is read once: scrapes ask for it, and
        nothing is longer out of memory."""
        first, known = self._log.min_offset, self._oldest
        if known[0] != first or known[1] < 0:
            record = self.message_at(first)
            self._oldest = known = (first, -1 if record is None else scan_header(record, 0).store_timestamp)
        return known[1]

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time (ms) of the message at an offset, -1 without one."""
        entry = self.queue_entry(topic, queue_id, offset)
        return self._store_time_at(entry.physical_offset, entry.size) if entry is not None else -1

    def _store_time_at(self, physical_offset: int, size: int) -> int:
        """Only what a search by time needs, read where it lies: it asks for many records."""
        record = self._log.read(physical_offset, size) if physical_offset >= self._log.min_offset else None
        if record is None or size < RECORD_SIZE_MIN:
            return -1
        if self._residency is not None:
            self._residency.require(physical_offset, RECORD_SIZE_MIN)
        found_offset, sys_flag = _PLACE_AND_FLAG.unpack_from(record)
        if found_offset != physical_offset:
            return -1
        time: int = _TIME.unpack_from(record, _STORE_TIME_AT[bool(sys_flag & _BORN_V6)])[0]
        return time

    # --- places ----------------------------------------------------------------------------------------

    def queue_entry(self, topic: str, queue_id: int, offset: int) -> ConsumeQueueEntry | None:
        """Where the message at an offset lies; None outside the queue's data."""
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return None
        if self._residency is not None:
            self._residency.require_entries(queue, offset, 1)
        return queue.entry(offset)

    def queue_entries(self, topic: str, queue_id: int, offset: int, count: int) -> list[ConsumeQueueEntry]:
        """At most `count` entries of a queue from `offset` on; empty for an unknown queue."""
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return []
        if self._residency is not None:
            self._residency.require_entries(queue, offset, count)
        found: list[ConsumeQueueEntry] = []
        at = offset
        for _ in range(count):
            entry = queue.entry(at) if at < queue.max_offset else None
            if entry is not None:
                found.append(entry)
            at = queue.after(at)
        return found

    def message_at(self, physical_offset: int) -> bytes | None:
        """The record that begins at `physical_offset`; None if none does or readers may not see it yet.

        One that may be shown is there, also when its queue has yet to be begun: who was given the place acts on it at
        once.
        """
        if physical_offset >= self._kept_offset():
            return None
        if self._residency is not None:
            self._residency.require_record(physical_offset)
        record = self._log.scan(physical_offset, property_crc=self._config.verify_property_crc)
        if record is None or self._log.is_damaged(physical_offset):
            return None
        data = self._log.read(physical_offset, record.size)
        return bytes(data) if data is not None else None


class _Asked:
    """The entries of a queue for a search: NotInMemory instead of a wait."""

    def __init__(self, queue: ConsumeQueue, residency: Residency) -> None:
        self._queue = queue
        self._residency = residency
        self.min_offset, self.max_offset = queue.min_offset, queue.max_offset
        self.file_spans = queue.file_spans

    def entry(self, offset: int, /) -> ConsumeQueueEntry | None:
        self._residency.require_entries(self._queue, offset, 1)
        return self._queue.entry(offset)
