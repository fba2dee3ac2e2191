"""Whether a queue entry and the record that it leads to say the same: the one place where that is decided.

Touches  the log and the queues, reading.

An entry says where its record is and how long, and its tag field: `are_same()` and `compared_size()` are what of this
has to be as the record has it. Where it lies says of which queue the record is and which number it has:


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
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from aerobee_proto.errors import RecordError
from aerobee_proto.names import SCHEDULE_TOPIC
from aerobee_proto.records import RecordHeader, scan_header
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.queues.consume_queue import ConsumeQueue, ConsumeQueueEntry
from aerobee_store.queues.queue_table import QueueTable
from aerobee_store.records.property_columns import Flags

__all__ = [
    "Agreement",
    "Disagreement",
    "Named",
    "are_same",
    "compared_size",
    "header_at",
    "is_message",
    "is_of",
    "names_queue",
    "place_in",
]

_PLACE_SIZE: Final = 12  # bytes of an entry that say where the record is and how long


class Disagreement(NamedTuple):
    """What is wrong, and with which of the two."""

    reason: str
    of_record: bool


class Named(Protocol):
    """What a record says of itself."""

    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def queue_offset(self) -> int: ...


# --- the entry as its record has it -----------------------------------------------------------------------------


def compared_size(topic: str, entry_size: int) -> int:
    """How many bytes at the beginning of an entry have to be those that its record asks for.

    In the schedule topic the tag field is left out: due times stay as they were given, whatever the delay levels are
    now, and those are not in the store.
    """
    return _PLACE_SIZE if topic == SCHEDULE_TOPIC else entry_size


def are_same(topic: str, present: NDArray[np.void], expected: NDArray[np.void]) -> Flags:
    """Which of the entries that a topic's queue has are those that the records ask for, one by one; as by
    compared_size()."""
    assert len(present) == len(expected)
    same: Flags = present["physical_offset"] == expected["physical_offset"]
    same &= present["size"] == expected["size"]
    if topic != SCHEDULE_TOPIC:
        same &= present["tag_hash"] == expected["tag_hash"]
    return same


# --- the record as its entry has it -----------------------------------------------------------------------------


def is_message(record: Named, topic: str, queue_id: int, queue_offset: int) -> bool:
    """Whether the record says that it is this message."""
    return (record.topic, record.queue_id, record.queue_offset) == (topic, queue_id, queue_offset)


def names_queue(record: Named, queue: ConsumeQueue) -> bool:
    """Whether the record says that it is of this queue."""
    return record.queue_id == queue.queue_id and record.topic == queue.topic


def is_of(header: RecordHeader, queue: ConsumeQueue, entry: ConsumeQueueEntry) -> bool:
    """Whether the record with this head, which the entry of the queue leads to, has the entry's size and names the
    queue."""
    return header.size == entry.size and names_queue(header, queue)


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
        if names_queue(header, queue):
            if header.queue_offset == offset or self._is_shifted(queue, offset, header.queue_offset - offset):
                return None
            if self._has_entry(queue, header):
                return Disagreement(f"it leads to message {header.queue_offset} of the queue", False)
            return Disagreement(f"it says that it is message {header.queue_offset}, and is {offset}", True)
        other = self._queues.get(header.topic, header.queue_id)
        named = f"queue {header.queue_id} of {header.topic}"
        if other is not None and self._has_entry(other, header):
            return Disagreement(f"it leads to a message of {named}", False)
        where = f"queue {queue.queue_id} of {queue.topic}"
        return Disagreement(f"it says that it is of {named}, and is of {where}", True)

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

    def is_plain(self, topic: str, queue_id: int, queue_offset: int, place: tuple[int, int]) -> bool:
        """Whether nothing is wrong with a record that says this of itself and lies there, physical offset and size, at
        the first look. A no says nothing."""
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return True
        entry = queue.entry(queue_offset)
        return entry is not None and entry[:2] == place

    def _has_entry(self, queue: ConsumeQueue, header: RecordHeader) -> bool:
        """Whether the entry with the record's own number leads to it."""
        entry = queue.entry(header.queue_offset)
        return entry is not None and entry[:2] == (header.physical_offset, header.size)

    def _is_shifted(self, queue: ConsumeQueue, offset: int, shift: int) -> bool:
        """Whether a neighbour of the entry says that all numbers here are off by `shift`."""
        for neighbour in (queue.first_of(offset - 1), queue.after(offset)):
            entry = queue.entry(neighbour)
            header = header_at(self._log, entry.physical_offset) if entry is not None else None
            if header is not None and names_queue(header, queue) and header.queue_offset - neighbour == shift:
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
