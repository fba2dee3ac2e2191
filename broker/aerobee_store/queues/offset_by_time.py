"""Find the queue offset that belongs to a store time.

Touches  nothing: it reads entries through a queue and store times through a function.

The search is RocketMQ's, step by step, because its answers are what clients of `resetOffsetByTime` and
`searchOffset` have been getting: choose one file of the queue by the store times of its first and last
record, then bisect in it. Store times need not grow (clocks step back); the steps below then still give
the same answer, if not a meaningful one.
"""

from collections.abc import Callable
from typing import Protocol

from aerobee_store.queues.consume_queue import ConsumeQueueEntry

__all__ = ["QueueEntries", "StoreTime", "offset_by_time"]

# (physical_offset, size) -> store time in ms, or -1 when the log has no such record.
StoreTime = Callable[[int, int], int]


class QueueEntries(Protocol):
    """The part of a ConsumeQueue that the search needs."""

    min_offset: int
    max_offset: int

    @property
    def file_spans(self) -> list[range]:
        """Per file, oldest first, its queue offsets."""

    def entry(self, offset: int, /) -> ConsumeQueueEntry | None:
        """The entry at a queue offset."""


def offset_by_time(
    queue: QueueEntries, timestamp: int, upper: bool, store_time: StoreTime, *, log_min: int = 0
) -> int:
    """Queue offset of the first message stored at or after `timestamp` (ms), or with `upper` of the last
    one stored at or before it, within [min_offset, max_offset].

    Without such a message: max_offset, or with `upper` min_offset. `log_min` is the first physical offset
    that the log still has; entries below it are skipped.
    """
    search = _Search(queue, timestamp, upper, store_time, log_min)
    return min(max(search.run(), queue.min_offset), queue.max_offset)


class _Search:
    __slots__ = ("_log_min", "_queue", "_store_time", "_timestamp", "_upper")

    def __init__(
        self, queue: QueueEntries, timestamp: int, upper: bool, store_time: StoreTime, log_min: int
    ) -> None:
        self._queue = queue
        self._timestamp = timestamp
        self._upper = upper
        self._store_time = store_time
        self._log_min = log_min

    def run(self) -> int:
        spans = [span for span in self._queue.file_spans if span]
        span = self._choose_upper(spans) if self._upper else self._choose_lower(spans)
        return 0 if span is None else self._search_file(span)

    def _time(self, offset: int) -> int:
        entry = self._queue.entry(offset)
        return -1 if entry is None else self._store_time(entry.physical_offset, entry.size)

    def _choose_lower(self, spans: list[range]) -> range | None:
        """The first file that ends at or after the time, else the last."""
        for span in spans[:-1]:
            if self._time(span[-1]) >= self._timestamp:
                return span
        return spans[-1] if spans else None

    def _choose_upper(self, spans: list[range]) -> range | None:
        """The newest file that begins at or before the time."""
        for span in reversed(spans):
            if self._time(span[0]) <= self._timestamp:
                return span
        return None

    def _search_file(self, span: range) -> int:
        floor = max(span.start, self._queue.min_offset)
        ceiling = span[-1]
        if self._time(ceiling) < self._timestamp:
            return ceiling if self._upper else ceiling + 1
        if self._time(floor) > self._timestamp:
            return 0 if self._upper else span.start
        return self._bisect(floor, ceiling)

    def _bisect(self, floor: int, ceiling: int) -> int:
        low, high = floor, ceiling
        left, right = floor, ceiling + 1
        while high >= low:
            middle = (low + high) // 2
            if self._is_gone(middle):
                low, left = middle + 1, middle
                continue
            time = self._time(middle)
            if time < 0:
                return 0
            if time == self._timestamp:
                return self._last_equal(middle, ceiling) if self._upper else self._first_equal(middle, floor)
            if time > self._timestamp:
                high, right = middle - 1, middle
            else:
                low, left = middle + 1, middle
        return left if self._upper else right

    def _is_gone(self, offset: int) -> bool:
        entry = self._queue.entry(offset)
        return entry is not None and entry.physical_offset < self._log_min

    def _first_equal(self, offset: int, floor: int) -> int:
        while offset > floor and self._time(offset - 1) == self._timestamp:
            offset -= 1
        return offset

    def _last_equal(self, offset: int, ceiling: int) -> int:
        while offset < ceiling and self._time(offset + 1) == self._timestamp:
            offset += 1
        return offset
