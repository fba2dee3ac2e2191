"""Which bytes of a store folder a query needs, cut into partitions of about equal size.

Touches  the folder, reading; on the driver.

Two ways through a store:
- by log: every message, in the order in which they were stored. Cut at the beginnings of records that queues name, so
  that a body that looks like a record is never taken for one.
- by queue: the messages of chosen topics and queues, by the entries of their queues; cut by the sizes that the entries
  tell, so that one large queue becomes many partitions. Also for single records, found through the key index.

Invariants
- Every message of the folder lies in exactly one partition of a plan.
- A partition holds whole records; it needs nothing but itself and the folder to be read.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from pyspark.sql.datasource import InputPartition

from aerobee_proto.javahash import tag_hash
from aerobee_store.offline.folder import QueueFiles, RowFile, StoreFolder, WrongIndexSlots
from pyspark_aerobee.errors import OptionError
from pyspark_aerobee.pushdown import Selection

__all__ = [
    "EntriesPartition",
    "LogPartition",
    "RecordsPartition",
    "StorePartition",
    "StorePlan",
    "StoreQuery",
    "plan",
    "queue_pieces",
]

PARTITION_SIZE: Final = 128 << 20
_ENTRY_STEP: Final = 1 << 18  # queue entries looked at together


@dataclass(frozen=True, slots=True)
class StoreQuery(Selection):
    """What is wanted of a store."""

    key: str | None = None
    system_topics: bool = False
    checksums: bool = True  # False: records are proven by their lengths, places and marks alone

    @property
    def needs_queues(self) -> bool:
        """Whether reading by queue is the shorter way."""
        return self.topics is not None

    @property
    def tag_hashes(self) -> frozenset[int] | None:
        return None if self.tags is None else frozenset(tag_hash(tag) for tag in self.tags)


class LogPartition(InputPartition):
    """The records that begin in [begin, end) of one log file. `begin` is where a record begins."""

    def __init__(self, file: RowFile, begin: int, end: int) -> None:
        super().__init__((file.offset, begin, end))
        self.file = file
        self.begin = begin
        self.end = end


class EntriesPartition(InputPartition):
    """The messages of one queue with numbers in [begin, end)."""

    def __init__(self, queue: QueueFiles, begin: int, end: int) -> None:
        super().__init__((queue.topic, queue.queue_id, begin, end))
        self.queue = queue
        self.begin = begin
        self.end = end


class RecordsPartition(InputPartition):
    """Single records, by their physical offsets."""

    def __init__(self, topic: str, offsets: tuple[int, ...]) -> None:
        super().__init__((topic, offsets))
        self.topic = topic
        self.offsets = offsets


StorePartition = LogPartition | EntriesPartition | RecordsPartition


@dataclass(frozen=True, slots=True)
class StorePlan:
    """Partitions, and how many bytes of records they hold together (an estimate for logs)."""

    partitions: tuple[StorePartition, ...]
    size: int


def plan(
    store: StoreFolder, query: StoreQuery, *, min_partitions: int = 1, partition_size: int = PARTITION_SIZE
) -> StorePlan:
    """The partitions for a query. At least `min_partitions` of them where there are that many records."""
    if query.key is not None and query.topics is not None:
        found = _places_of_key(store, query.key, query.topics)
        return StorePlan(
            tuple(RecordsPartition(topic, tuple(places)) for topic, places in found if places), 0
        )
    if query.needs_queues:
        return _by_queue(store, query, min_partitions, partition_size)
    return _by_log(store, query, min_partitions, partition_size)


def _places_of_key(store: StoreFolder, key: str, topics: Iterable[str]) -> list[tuple[str, list[int]]]:
    try:
        return [(topic, store.offsets_of_key(topic, key)) for topic in topics]
    except WrongIndexSlots as wrong:
        reason = f"{wrong.path} is too small for it; give the broker's maxHashSlotNum"
        raise OptionError("indexSlots", str(wrong.slots), reason) from wrong


# --- by log --------------------------------------------------------------------------------------------------


def _by_log(store: StoreFolder, query: StoreQuery, min_partitions: int, partition_size: int) -> StorePlan:
    files = list(_files_in_time(store, query))
    ends = {file: _written_end(store, file) for file in files}
    size = sum(end - file.offset for file, end in ends.items())
    step = max(min(partition_size, -(-size // max(min_partitions, 1))), 1)
    queues = store.all_queues()
    partitions: list[StorePartition] = []
    for file in files:
        borders = _borders(store, queues, file, ends[file], step)
        partitions += [LogPartition(file, begin, end) for begin, end in pairwise(borders)]
    return StorePlan(tuple(partitions), size)


def _files_in_time(store: StoreFolder, query: StoreQuery) -> Iterator[RowFile]:
    """Files that may hold records of the wanted time: those that do not end before it or begin behind it."""
    files = store.log_files()
    for file, following in zip(files, [*files[1:], None], strict=True):
        if query.end_ms is not None:
            begin_ms = store.first_store_time(file)
            # Clocks may step back a little: a file that begins just behind the bound is read too.
            if begin_ms is not None and begin_ms >= query.end_ms + _CLOCK_SLACK_MS:
                continue
        if query.begin_ms is not None and following is not None:
            next_ms = store.first_store_time(following)
            if next_ms is not None and next_ms < query.begin_ms - _CLOCK_SLACK_MS:
                continue
        yield file


_CLOCK_SLACK_MS: Final = 3000
_LOOK_STEP: Final = 4096


def _written_end(store: StoreFolder, file: RowFile) -> int:
    """One past the last byte of a file that is not zero, to the next page; files but the last are written whole."""
    if file != store.log_files()[-1]:
        return file.end
    low, high = 0, -(-(file.end - file.offset) // _LOOK_STEP)
    while low < high:
        middle = (low + high) // 2
        begin = file.offset + middle * _LOOK_STEP
        if np.frombuffer(store.read_log(file, begin, begin + _LOOK_STEP), np.uint8).any():
            low = middle + 1
        else:
            high = middle
    return min(file.offset + low * _LOOK_STEP, file.end)


def _borders(
    store: StoreFolder, queues: Iterable[QueueFiles], file: RowFile, end: int, step: int
) -> list[int]:
    """Beginning of the file, beginnings of records about `step` bytes apart, end."""
    borders = [file.offset]
    for target in range(file.offset + step, end, step):
        found = [
            at for queue in queues if (at := store.first_entry_from(queue, target)) is not None and at < end
        ]
        border = min(found, default=None)
        if border is not None and border > borders[-1]:
            borders.append(border)
    if end > borders[-1]:
        borders.append(end)
    return borders


# --- by queue ------------------------------------------------------------------------------------------------


def _by_queue(store: StoreFolder, query: StoreQuery, min_partitions: int, partition_size: int) -> StorePlan:
    ranges = [
        (queue, *found)
        for topic in query.topics or ()
        for queue in store.queues(topic)
        if query.queue_ids is None or queue.queue_id in query.queue_ids
        if (found := _selected_range(store, queue, query)) is not None
    ]
    sizes = [_range_size(store, queue, begin, end) for queue, begin, end in ranges]
    total = sum(sizes)
    step = max(min(partition_size, -(-total // max(min_partitions, 1))), 1)
    partitions: list[StorePartition] = []
    for (queue, begin, end), size in zip(ranges, sizes, strict=True):
        partitions += _split_range(store, queue, begin, end, size, step)
    return StorePlan(tuple(partitions), total)


def _selected_range(store: StoreFolder, queue: QueueFiles, query: StoreQuery) -> tuple[int, int] | None:
    begin, end = store.queue_range(queue)
    if query.begin_offset is not None:
        begin = max(begin, query.begin_offset)
    if query.end_offset is not None:
        end = min(end, query.end_offset)
    if query.begin_ms is not None and begin < end:
        begin = max(begin, store.offset_by_time(queue, query.begin_ms - _CLOCK_SLACK_MS))
    if query.end_ms is not None and begin < end:
        end = min(end, store.offset_by_time(queue, query.end_ms + _CLOCK_SLACK_MS))
    return (begin, end) if begin < end else None


def queue_pieces(
    store: StoreFolder, queue: QueueFiles, begin: int, end: int, step: int = PARTITION_SIZE
) -> list[tuple[EntriesPartition, int]]:
    """The messages of a queue with numbers in [begin, end) in pieces of about `step` bytes, and each one's bytes."""
    size = _range_size(store, queue, begin, end)
    pieces = _split_range(store, queue, begin, end, size, step)
    return [(piece, size * (piece.end - piece.begin) // (end - begin)) for piece in pieces]


def _range_size(store: StoreFolder, queue: QueueFiles, begin: int, end: int) -> int:
    return sum(
        int(store.entries(queue, low, min(low + _ENTRY_STEP, end))["size"].astype(np.int64).sum())
        for low in range(begin, end, _ENTRY_STEP)
    )


def _split_range(
    store: StoreFolder, queue: QueueFiles, begin: int, end: int, size: int, step: int
) -> list[EntriesPartition]:
    """Pieces of about `step` bytes of records."""
    if size <= step + step // 4:
        return [EntriesPartition(queue, begin, end)]
    pieces: list[EntriesPartition] = []
    first, filled = begin, 0
    for low in range(begin, end, _ENTRY_STEP):
        sizes = store.entries(queue, low, min(low + _ENTRY_STEP, end))["size"].astype(np.int64)
        sums = np.cumsum(sizes) + filled
        while len(sums) and sums[-1] >= step:
            cut = int(np.searchsorted(sums, step)) + 1
            pieces.append(EntriesPartition(queue, first, low + cut))
            sums = sums[cut:] - sums[cut - 1]
            low += cut
            first = low
        filled = int(sums[-1]) if len(sums) else 0
    if first < end:
        pieces.append(EntriesPartition(queue, first, end))
    return pieces
