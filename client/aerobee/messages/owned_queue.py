"""One queue that a member of a group owns: what was pulled, what is handed out, what is done. No I/O.

Way of a record: offer() -> waiting -> take() -> out -> settle() or put_back().

Invariants
- count and size cover every record from offer() to settle(); room is refused above the bounds of the configuration.
- Records leave take() in the order of their offsets, those put back first; with `serial` one is out at a time.
- A message of an older generation changes nothing: reset() starts a new one.
"""

import asyncio
from collections import deque
from collections.abc import Iterable

from aerobee.errors import ClientError
from aerobee.messages.offset_tracker import OffsetTracker
from aerobee.terms.config import ConsumerConfig
from aerobee.terms.routes import MASTER_ID, MessageQueue
from aerobee_proto.records import StoredRecord

__all__ = ["OwnedQueue"]


class OwnedQueue:
    """See the module. `now` values are seconds of the event loop's clock, `_ms` are epoch milliseconds."""

    def __init__(
        self, queue: MessageQueue, offset: int, config: ConsumerConfig, *, serial: bool, joined_ms: int
    ) -> None:
        # Fixed for life.
        self.queue = queue
        self.serial = serial
        self.joined_ms = joined_ms
        self._config = config
        # Moved by offer(), take(), settle(), put_back(), reset().
        self.tracker = OffsetTracker(offset)
        self._waiting: deque[tuple[StoredRecord, int]] = deque()  # record, deliveries here before
        self.count = 0
        self.size = 0
        self.out = 0
        self.generation = 0
        self._room = asyncio.Event()
        self._room.set()
        # Moved by the member.
        self.dropped = False
        self.paused = False
        self.lock_until: float | None = None  # None: needs no lock
        self.committed: int | None = offset
        self.in_ready = False
        self.idle: asyncio.Event = asyncio.Event()
        self.idle.set()
        # Moved by the pulls.
        self.suggested_id = MASTER_ID
        self.pull_task: asyncio.Task[None] | None = None
        self.broken: ClientError | None = None
        self.max_offset = offset
        self.last_pull_ms = 0
        self.last_taken_at: float | None = None  # seconds of the event loop's clock

    def offer(self, records: Iterable[StoredRecord], next_offset: int) -> None:
        """Records that a pull brought, ascending; `next_offset` is where the next pull goes on."""
        for record in records:
            self.tracker.add(record.queue_offset)
            self._waiting.append((record, 0))
            self.count += 1
            self.size += record.size
        self.tracker.read_to(next_offset)
        self._gate()

    def can_hand_out(self, now: float) -> bool:
        """Whether take() would give a record."""
        if not self._waiting or self.dropped or self.paused:
            return False
        if self.serial and self.out:
            return False
        return self.is_locked(now)

    def is_locked(self, now: float) -> bool:
        """Whether this member may work on the queue: no lock is needed, or it is held."""
        return self.lock_until is None or now < self.lock_until

    def take(self) -> tuple[StoredRecord, int]:
        """The next record and how often it was delivered here before. Only after can_hand_out()."""
        self.out += 1
        self.idle.clear()
        return self._waiting.popleft()

    def settle(self, record: StoredRecord, generation: int) -> bool:
        """A record that was out is done; False when it belongs to a generation that is over."""
        self.out -= 1
        if not self.out:
            self.idle.set()
        if generation != self.generation:
            return False
        self.count -= 1
        self.size -= record.size
        self.tracker.done(record.queue_offset)
        if not self._room.is_set():
            self._gate()
        return True

    def put_back(self, record: StoredRecord, generation: int, deliveries: int) -> bool:
        """A record that was out is to be handed out again, before the others."""
        self.out -= 1
        if not self.out:
            self.idle.set()
        if generation != self.generation:
            return False
        at = 0
        while at < len(self._waiting) and self._waiting[at][0].queue_offset < record.queue_offset:
            at += 1
        self._waiting.insert(at, (record, deliveries))
        return True

    def reset(self, offset: int) -> None:
        """Go on at `offset`; everything pulled is forgotten, what is out counts no more."""
        self.generation += 1
        self._waiting.clear()
        self.count = self.size = 0
        self.broken = None
        self.tracker.reset(offset)
        self._gate()

    async def room(self) -> None:
        """Wait until a pull may bring more."""
        await self._room.wait()

    @property
    def next_offset(self) -> int:
        """Where the next pull begins."""
        return self.tracker.end

    @property
    def waiting_count(self) -> int:
        """Records pulled and not handed out."""
        return len(self._waiting)

    def _gate(self) -> None:
        config = self._config
        if (
            self.count < config.queue_count_max
            and self.size < config.queue_bytes_max
            and (self.serial or self.tracker.span < config.queue_span_max)
        ):
            self._room.set()
        else:
            self._room.clear()
