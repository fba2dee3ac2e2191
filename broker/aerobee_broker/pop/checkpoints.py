"""The messages that are handed out and not acknowledged: an index in memory of what the revive topic says.

Touches  nothing; time comes in as an argument.

A check-point stands for the messages that one pop took from one queue. It ends when all of them are acknowledged
or, after its time, handed out again. Acknowledgements of a check-point that is not known yet are kept for a while:
another broker that had this store may have put the check-point into its timer.

Invariants
- `offsets` rise.
- `bits` has a bit for each acknowledged message, never one above `all_bits`; a check-point is in the table as long
  as they differ.
- `unacknowledged` is the number of bits that are missing in all check-points together.
- No record of the revive topic at or behind `first_needed(queue)` may be forgotten.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, NamedTuple

from aerobee_proto.names import GroupQueue

__all__ = ["CheckPoint", "CheckPointTable", "Key"]

COUNT_MAX: Final = 32  # messages of one check-point: the acknowledgements are an int of 32 bits on disk
SLACK: Final = 64


class Key(NamedTuple):
    """What names a check-point in acknowledgements."""

    group: str
    topic: str
    queue_id: int
    start_offset: int
    pop_time: int

    @property
    def queue(self) -> GroupQueue:
        """The queue whose messages it is about."""
        return GroupQueue(self.group, self.topic, self.queue_id)


class CheckPoint:
    """Messages of one queue that are invisible until `due_ms`."""

    __slots__ = (
        "all_bits",
        "bits",
        "came_late",
        "due_ms",
        "invisible_ms",
        "key",
        "moves",
        "offsets",
        "revive_offset",
        "revive_queue",
    )

    def __init__(
        self,
        key: Key,
        offsets: Sequence[int],
        *,
        invisible_ms: int,
        revive_queue: int,
        revive_offset: int,
        bits: int = 0,
        moves: int = 0,
        came_late: bool = False,
    ) -> None:
        # Fixed for life.
        self.key = key
        self.offsets = offsets
        self.invisible_ms = invisible_ms
        self.revive_queue = revive_queue
        self.all_bits = (1 << len(offsets)) - 1
        self.came_late = came_late  # out of another broker's timer
        # Moved by the table.
        self.bits = bits & self.all_bits
        self.due_ms = key.pop_time + invisible_ms
        # Where its newest record lies, and how often it was written again.
        self.revive_offset = revive_offset
        self.moves = moves

    @property
    def queue(self) -> GroupQueue:
        return self.key.queue

    @property
    def is_settled(self) -> bool:
        return self.bits == self.all_bits

    def missing(self) -> list[int]:
        """Offsets of the messages that are not acknowledged."""
        bits = self.bits
        return [offset for i, offset in enumerate(self.offsets) if not bits >> i & 1]

    def bits_of(self, offsets: Iterable[int]) -> int:
        """The bits of these messages; those that the check-point does not have count for nothing."""
        mine, bits = self.offsets, 0
        for offset in offsets:
            i = offset - mine[0]  # mostly there are no gaps: 0.2 us instead of 2 us for a look at all of them
            if not 0 <= i < len(mine) or mine[i] != offset:
                i = bisect_left(mine, offset)
                if i == len(mine) or mine[i] != offset:
                    continue
            bits |= 1 << i
        return bits


class _EarlyAcks:
    """Acknowledgements that came before their check-point."""

    __slots__ = ("expires_ms", "offsets", "revive_offset", "revive_queue")

    def __init__(self, revive_queue: int, revive_offset: int, expires_ms: int) -> None:
        self.offsets: set[int] = set()
        self.revive_queue = revive_queue
        self.revive_offset = revive_offset
        self.expires_ms = expires_ms


class CheckPointTable:
    """All outstanding check-points, by name, by time, by place in the revive topic."""

    def __init__(self, *, early_max: int = 10_000) -> None:
        self._early_max = early_max
        self._by_key: dict[Key, CheckPoint] = {}
        self._early: dict[Key, _EarlyAcks] = {}
        self._in_flight: dict[GroupQueue, int] = {}
        # Entries of settled or moved check-points stay in both until they come to the top, or are too many.
        self._by_time: list[tuple[int, int, CheckPoint]] = []
        self._by_place: dict[int, list[tuple[int, int, CheckPoint]]] = {}
        self._ticket = count()
        self.unacknowledged = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: Key) -> bool:
        return key in self._by_key

    def get(self, key: Key) -> CheckPoint | None:
        return self._by_key.get(key)

    def all(self) -> Iterator[CheckPoint]:
        """Every outstanding check-point; the table must not change meanwhile."""
        return iter(self._by_key.values())

    def in_flight(self, queue: GroupQueue) -> int:
        """Messages of a queue that the group has and has not acknowledged."""
        return self._in_flight.get(queue, 0)

    # --- changes ----------------------------------------------------------------------------------------------

    def add(self, point: CheckPoint) -> None:
        """Take in a check-point; the record of one that is there already stands for both from now on."""
        # Acknowledgements that came before it, out of another broker's timer.
        early = self._early.pop(point.key, None)
        if early is not None:
            point.bits |= point.bits_of(early.offsets)

        # The older record of the same check-point: what it knows is taken over, and it counts for nothing any more. The
        # heaps still have it; all bits set, it is passed over there.
        known = self._by_key.pop(point.key, None)
        if known is not None:
            self._count(known, -(known.all_bits & ~known.bits).bit_count())
            if list(known.offsets) == list(point.offsets):
                point.bits |= known.bits
            known.bits = known.all_bits

        # Nothing is left to wait for when everything was acknowledged by then.
        if point.is_settled:
            return
        self._by_key[point.key] = point
        self._count(point, (point.all_bits & ~point.bits).bit_count())
        heappush(self._by_time, (point.due_ms, next(self._ticket), point))
        self._place(point)

    def ack(self, key: Key, offsets: Sequence[int]) -> list[int] | None:
        """Acknowledge; the offsets for which that was news. None: the check-point is not known."""
        point = self._by_key.get(key)
        if point is None:
            return None
        news = self.news(point, offsets)
        if news:
            point.bits |= point.bits_of(news)
            self._count(point, -len(news))
            if point.is_settled:
                self._leave(point)
        return news

    @staticmethod
    def news(point: CheckPoint, offsets: Sequence[int]) -> list[int]:
        """Which of these messages the check-point has and still waits for."""
        return [offset for offset in dict.fromkeys(offsets) if point.bits_of((offset,)) & ~point.bits]

    def remember(
        self, key: Key, offsets: Sequence[int], *, revive_queue: int, revive_offset: int, expires_ms: int
    ) -> None:
        """Keep acknowledgements of a check-point that is not known; they must have been `may_remember`ed."""
        early = self._early.get(key)
        if early is None:
            if len(self._early) >= self._early_max:
                return
            early = self._early[key] = _EarlyAcks(revive_queue, revive_offset, expires_ms)
        early.offsets.update(offsets[:COUNT_MAX])

    def may_remember(self, key: Key) -> bool:
        """Whether there is room for acknowledgements of an unknown check-point."""
        return key in self._early or len(self._early) < self._early_max

    def settle(self, point: CheckPoint) -> None:
        """Nothing is owed for these messages any more."""
        if self._by_key.get(point.key) is point:
            self._count(point, -(point.all_bits & ~point.bits).bit_count())
            point.bits = point.all_bits
            self._leave(point)

    def move(self, point: CheckPoint, revive_offset: int) -> None:
        """The check-point was written again, at `revive_offset` of its revive queue."""
        point.revive_offset = revive_offset
        point.moves += 1
        self._place(point)

    def postpone(self, point: CheckPoint, due_ms: int) -> None:
        """Come back to a check-point that `due` has returned."""
        point.due_ms = due_ms
        heappush(self._by_time, (due_ms, next(self._ticket), point))

    # --- questions --------------------------------------------------------------------------------------------

    def due(self, now_ms: int, count_max: int) -> list[CheckPoint]:
        """At most `count_max` check-points whose time is over; settle or postpone each."""
        heap = self._by_time
        found: list[CheckPoint] = []
        while heap and heap[0][0] <= now_ms and len(found) < count_max:
            due_ms, _, point = heappop(heap)
            if not point.is_settled and point.due_ms == due_ms:
                found.append(point)
        return found

    def first(self, revive_queue: int) -> CheckPoint | None:
        """The outstanding check-point whose record is the first of its revive queue."""
        heap = self._by_place.get(revive_queue)
        while heap:
            offset, _, point = heap[0]
            if not point.is_settled and point.revive_offset == offset:
                return point
            heappop(heap)
        return None

    def first_needed(self, revive_queue: int, end_offset: int) -> int:
        """The first record of a revive queue that is still needed; `end_offset` when none is."""
        point = self.first(revive_queue)
        needed = end_offset if point is None else min(end_offset, point.revive_offset)
        if self._early:
            places = [e.revive_offset for e in self._early.values() if e.revive_queue == revive_queue]
            needed = min([needed, *places])
        return needed

    def expire(self, now_ms: int) -> None:
        """Forget acknowledgements whose check-point will not come any more."""
        if self._early:
            for key in [key for key, early in self._early.items() if early.expires_ms <= now_ms]:
                del self._early[key]

    # --- inside -----------------------------------------------------------------------------------------------

    def _count(self, point: CheckPoint, change: int) -> None:
        self.unacknowledged += change
        queue = point.queue
        left = self._in_flight.get(queue, 0) + change
        if left:
            self._in_flight[queue] = left
        else:
            self._in_flight.pop(queue, None)

    def _place(self, point: CheckPoint) -> None:
        heap = self._by_place.setdefault(point.revive_queue, [])
        heappush(heap, (point.revive_offset, next(self._ticket), point))
        if len(heap) > 2 * len(self._by_key) + SLACK:
            heap[:] = [
                entry for entry in heap if not entry[2].is_settled and entry[2].revive_offset == entry[0]
            ]
            heapify(heap)

    def _leave(self, point: CheckPoint) -> None:
        del self._by_key[point.key]
        if len(self._by_time) > 2 * len(self._by_key) + SLACK:
            self._by_time = [e for e in self._by_time if not e[2].is_settled and e[2].due_ms == e[0]]
            heapify(self._by_time)

    def check(self) -> None:
        """Assert the invariants."""
        waiting = 0
        flights: dict[GroupQueue, int] = {}
        for key, point in self._by_key.items():
            assert key == point.key
            assert not point.bits & ~point.all_bits
            missing = len(point.missing())
            assert missing > 0
            waiting += missing
            flights[point.queue] = flights.get(point.queue, 0) + missing
        assert waiting == self.unacknowledged
        assert flights == self._in_flight
        timed = {id(entry[2]) for entry in self._by_time if entry[2].due_ms == entry[0]}
        assert all(id(point) in timed for point in self._by_key.values())
