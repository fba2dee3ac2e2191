"""Whether a queue entry and the record that it leads to say the same: topic, queue id and number.

Touches  the log and the queues, reading.

RocketMQ's body CRC covers neither of the three, and its records have no checksum of the whole: a flipped bit in them
leaves a record that looks sound, of another queue. What the queue says of it is the only witness then.

The rule, for every place where an entry leads to a record (reads, recovery, scrub, queries)
- Topic, queue id and number agree: fine.
- The queue that the record names has an entry of that number for it: the record is right, the entry is wrong.
- Else the entry is right, and the record is damaged: what it says of itself, no queue confirms.
- But a queue that arrived shifted from RocketMQ, all numbers off by the same count, is kept: the number of a record is
  right when that of a neighbour is off by as much.
"""

from bisect import bisect_left
from typing import NamedTuple

from aerobee_proto.errors import RecordError
from aerobee_proto.records import RecordHeader, scan_header
from aerobee_store.commit_log import CommitLog
from aerobee_store.consume_queue import ConsumeQueue
from aerobee_store.queue_table import QueueTable

__all__ = ["Agreement", "Disagreement", "header_at", "place_in"]


class Disagreement(NamedTuple):
    """What is wrong, and with which of the two."""

    reason: str
    of_record: bool


def header_at(log: CommitLog, physical_offset: int) -> RecordHeader | None:
    """The head of what looks like a record of this place; no checksum is looked at."""
    file = log.mapped.find(physical_offset)
    if file is None:
        return None
    try:
        header = scan_header(file.view, physical_offset - file.offset)
    except RecordError:
        return None
    return None if header.is_blank or header.physical_offset != physical_offset else header


class Agreement:
    """The rule, over one log and its queues."""

    def __init__(self, log: CommitLog, queues: QueueTable) -> None:
        self._log = log
        self._queues = queues

    def of_entry(self, queue: ConsumeQueue, offset: int, header: RecordHeader) -> Disagreement | None:
        """What is wrong between the entry `offset` of `queue` and the record that it leads to; None: nothing."""
        named = (header.topic, header.queue_id)
        if named == (queue.topic, queue.queue_id):
            if header.queue_offset == offset or self._is_shifted(queue, offset, header.queue_offset - offset):
                return None
            if self._has_entry(queue, header):
                return Disagreement(f"it leads to message {header.queue_offset} of the queue", False)
            return Disagreement(f"it says that it is message {header.queue_offset}, and is {offset}", True)
        other = self._queues.get(*named)
        if other is not None and self._has_entry(other, header):
            return Disagreement(f"it leads to a message of queue {named[1]} of {named[0]}", False)
        where = f"queue {queue.queue_id} of {queue.topic}"
        return Disagreement(f"it says that it is of queue {named[1]} of {named[0]}, and is of {where}", True)

    def of_record(self, header: RecordHeader) -> str | None:
        """What is wrong with a record that was found in another way than through its queue; None: nothing, or
        nobody knows, as of a topic that was deleted."""
        queue = self._queues.get(header.topic, header.queue_id)
        if queue is None or self._has_entry(queue, header):
            return None
        offset = place_in(queue, header.physical_offset)
        if offset is None or self._is_shifted(queue, offset, header.queue_offset - offset):
            return None
        return f"it says that it is message {header.queue_offset}, and is {offset}"

    def _has_entry(self, queue: ConsumeQueue, header: RecordHeader) -> bool:
        """Whether the entry with the record's own number leads to it."""
        entry = queue.entry(header.queue_offset)
        return entry is not None and entry[:2] == (header.physical_offset, header.size)

    def _is_shifted(self, queue: ConsumeQueue, offset: int, shift: int) -> bool:
        """Whether a neighbour of the entry says that all numbers here are off by `shift`."""
        for neighbour in (queue.first_of(offset - 1), queue.after(offset)):
            entry = queue.entry(neighbour)
            header = header_at(self._log, entry.physical_offset) if entry is not None else None
            if (
                header is not None
                and (header.topic, header.queue_id) == (queue.topic, queue.queue_id)
                and header.queue_offset - neighbour == shift
            ):
                return True
        return False


def place_in(queue: ConsumeQueue, physical_offset: int) -> int | None:
    """The number of the entry that leads to the record at `physical_offset`; None without one."""
    numbers = range(queue.min_offset, queue.max_offset)
    at = bisect_left(numbers, physical_offset, key=lambda offset: _place(queue, offset))
    if at == len(numbers) or _place(queue, numbers[at]) != physical_offset:
        return None
    return numbers[at]


def _place(queue: ConsumeQueue, offset: int) -> int:
    entry = queue.entry(offset)
    return entry.physical_offset if entry is not None else -1
