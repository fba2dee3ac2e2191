"""Which queue entries lead into the part of the log that recovery walks: the witnesses against a record's own word.

Touches  queues and log, reading, before recovery changes them.

A record of which one bit is wrong in topic, queue id or number looks sound where no checksum covers them, and would be
given an entry in a queue that it is not of. The entry that it had says so: it is found here by the record's place.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aerobee_proto.records import RECORD_SIZE_MIN
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.queues.consume_queue import ConsumeQueue
from aerobee_store.queues.queue_table import QueueTable
from aerobee_store.records.property_columns import Ints
from aerobee_store.walking.agreement import Agreement, header_at, names_queue

__all__ = ["Claims"]

_READ_STEP = 65536
# Entries behind a claim of which one must lead to a record of the queue: a stale tail of a queue file claims too.
_LOOK_AHEAD = 8


class _Claim(NamedTuple):
    queue: ConsumeQueue
    offset: int


class Claims:
    """The entries of all queues from where the walk begins, by the places that they lead to."""

    def __init__(
        self, log: CommitLog, queues: QueueTable, first_walked: Iterable[tuple[ConsumeQueue, int]]
    ) -> None:
        """`first_walked`: each queue with the number of its first entry that leads into the walk."""
        self._log = log
        self._agreement = Agreement(log, queues)
        self._owners: list[ConsumeQueue] = []
        self._numbers: dict[tuple[str, int], int] = {}
        pieces: list[tuple[Ints, Ints, Ints, Ints]] = []
        for queue, first in first_walked:
            if first < queue.max_offset:
                self._numbers[queue.topic, queue.queue_id] = len(self._owners)
                pieces += _entries_of(queue, first, len(self._owners))
                self._owners.append(queue)
        columns = [np.concatenate(column) for column in zip(*pieces, strict=True)] if pieces else [_NONE] * 4
        order = np.argsort(columns[0], kind="stable")
        self._places, self._sizes, self._offsets, self._of = (column[order] for column in columns)

    def __len__(self) -> int:
        return len(self._places)

    def doubtful(
        self, topic: str, queue_id: int, records: Ints, sizes: Ints, offsets: Ints
    ) -> NDArray[np.bool_]:
        """Which of these records, that name this queue, have an entry, and another one than they say."""
        at = np.searchsorted(self._places, records)
        at[at == len(self._places)] = 0
        claimed = (self._places[at] == records) & (self._sizes[at] == sizes)
        own = (self._of[at] == self._numbers.get((topic, queue_id), -1)) & (self._offsets[at] == offsets)
        doubtful: NDArray[np.bool_] = claimed & ~own
        return doubtful

    def misnamed(
        self, topic: str, queue_id: int, record: int, size: int, offset: int, *, fits: bool
    ) -> str | None:
        """Why the record at this place is not what it says; None: it is, or nothing can be said.

        `fits`: its queue goes on with just its number. Then a claim counts only where the claiming queue goes on too.
        """
        claims = self._claims_of(record, size)
        if any((c.queue.topic, c.queue.queue_id, c.offset) == (topic, queue_id, offset) for c in claims):
            return None
        header = header_at(self._log, record)
        for claim in claims:
            found = (
                self._agreement.of_entry(claim.queue, claim.offset, header) if header is not None else None
            )
            if found is not None and found.of_record and (not fits or self._goes_on(claim)):
                return found.reason
        return None

    def _claims_of(self, place: int, size: int) -> list[_Claim]:
        begin, end = np.searchsorted(self._places, [place, place + 1])
        return [
            _Claim(self._owners[int(self._of[at])], int(self._offsets[at]))
            for at in range(int(begin), int(end))
            if int(self._sizes[at]) == size
        ]

    def _goes_on(self, claim: _Claim) -> bool:
        queue = claim.queue
        offset = claim.offset
        for _ in range(_LOOK_AHEAD):
            offset = queue.after(offset)
            if offset >= queue.max_offset:
                return False
            entry = queue.entry(offset)
            header = header_at(self._log, entry.physical_offset) if entry is not None else None
            if header is not None and names_queue(header, queue):
                return True
        return False


_NONE = np.zeros(0, np.int64)


def _entries_of(queue: ConsumeQueue, first: int, number: int) -> list[tuple[Ints, Ints, Ints, Ints]]:
    """Places, sizes, numbers of the entries from `first` on, and the queue's own number, in arrays of one length."""
    pieces = []
    at = first
    while at < queue.max_offset and (raw := queue.read(at, _READ_STEP)):
        entries = np.frombuffer(raw, queue.dtype)
        numbers = queue.numbers(entries, at)
        sizes = entries["size"].astype(np.int64)
        real = np.flatnonzero(sizes >= RECORD_SIZE_MIN)
        places = entries["physical_offset"].astype(np.int64)[real]
        pieces.append((places, sizes[real], numbers[real], np.full(len(real), number, np.int64)))
        at = queue.after(int(numbers[-1]))
    return pieces
