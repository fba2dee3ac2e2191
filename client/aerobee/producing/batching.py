"""Collecting messages into batches, and deciding when a batch may leave. Sans-IO: time comes in.

A lane is one stream of messages whose batches look alike: the free messages of a topic, or those bound to
one queue. Messages go into the open batch; the batch closes when it is full or has lingered long enough;
closed batches leave in order, at most `in_flight_max` of them unanswered. While that many are out, messages
gather: a slow broker gets bigger batches without anybody waiting for a timer.

States of a batch: open -> closed -> taken (in flight) -> gone (done() was called).

Invariants
- A batch is never empty, never above `batch_count`, and above `batch_bytes` only with a single message.
- Batches leave in the order their messages came; with in_flight_max 1 that is also the order on the broker.
- pending_count and pending_bytes cover every message from add() to done().
"""

from collections import deque
from typing import Generic, TypeVar

__all__ = ["Batch", "Lane"]

Item = TypeVar("Item")


class Batch(Generic[Item]):
    """Messages that travel together. `deadline` is the earliest of its messages' deadlines."""

    __slots__ = ("alone", "deadline", "items", "opened_at", "size")

    def __init__(self, opened_at: float, deadline: float, *, alone: bool) -> None:
        self.items: list[Item] = []
        self.size = 0
        self.opened_at = opened_at
        self.deadline = deadline
        self.alone = alone


class Lane(Generic[Item]):
    """One ordered stream of batches.

    linger_s      how long an open batch may wait for more messages (0: it may leave at once)
    batch_bytes   a batch is full at this size
    batch_count   or with this many messages
    in_flight_max batches taken and not yet done
    alone_share   so many messages that travel alone count as one batch; 1 keeps the order of in_flight_max 1
    """

    __slots__ = (
        "_batch_bytes",
        "_batch_count",
        "_batch_weight",
        "_capacity",
        "_closed",
        "_linger_s",
        "_load",
        "_open",
        "in_flight",
        "pending_bytes",
        "pending_count",
    )

    def __init__(
        self,
        *,
        linger_s: float,
        batch_bytes: int,
        batch_count: int,
        in_flight_max: int,
        alone_share: int = 1,
    ) -> None:
        # Fixed for life.
        self._linger_s = linger_s
        self._batch_bytes = batch_bytes
        self._batch_count = batch_count
        self._capacity = in_flight_max * alone_share  # in messages that travel alone
        self._batch_weight = alone_share
        # Moved by add() and take().
        self._open: Batch[Item] | None = None
        self._closed: deque[Batch[Item]] = deque()
        # Moved by add(), take() and done().
        self._load = 0  # weight of what is in flight; at most _capacity
        self.in_flight = 0
        self.pending_count = 0
        self.pending_bytes = 0

    def add(self, item: Item, size: int, now: float, deadline: float, *, alone: bool = False) -> bool:
        """Take a message in; True when a batch may leave now, so that take() is worth a call.

        With `alone` the message has a batch to itself, in its place in the order.
        """
        self.pending_count += 1
        self.pending_bytes += size
        batch = self._open
        if batch is not None and (alone or batch.size + size > self._batch_bytes):
            self._close_open()
            batch = None
        if batch is None:
            batch = self._open = Batch(now, deadline, alone=alone)
        elif deadline < batch.deadline:
            batch.deadline = deadline
        batch.items.append(item)
        batch.size += size
        if alone or batch.size >= self._batch_bytes or len(batch.items) >= self._batch_count:
            self._close_open()
        return self._load < self._capacity and (bool(self._closed) or self._linger_s <= 0)

    def has_room_for(self, count: int, size: int) -> bool:
        """Whether so many messages of so many bytes together fit the open batch, or a new one."""
        batch = self._open
        if batch is not None:
            count, size = count + len(batch.items), size + batch.size
        return count <= self._batch_count and size <= self._batch_bytes

    def add_together(self, items: list[Item], size: int, now: float, deadline: float) -> bool:
        """As `add` for each of these, which have `size` bytes together and fit (`has_room_for`); none goes alone."""
        self.pending_count += len(items)
        self.pending_bytes += size
        batch = self._open
        if batch is None:
            batch = self._open = Batch(now, deadline, alone=False)
        elif deadline < batch.deadline:
            batch.deadline = deadline
        batch.items += items
        batch.size += size
        if batch.size >= self._batch_bytes or len(batch.items) >= self._batch_count:
            self._close_open()
        return self._load < self._capacity and (bool(self._closed) or self._linger_s <= 0)

    def take(self, now: float, *, flush: bool = False) -> Batch[Item] | None:
        """The next batch that may leave, or None. With `flush` an open batch need not linger."""
        if not self._closed:
            batch = self._open
            if batch is None or not self._has_room(batch):
                return None
            if not flush and now < batch.opened_at + self._linger_s:
                return None
            self._close_open()
        batch = self._closed[0]
        if not self._has_room(batch):
            return None
        self._load += self._weight(batch)
        self.in_flight += 1
        return self._closed.popleft()

    def done(self, batch: Batch[Item]) -> None:
        """A taken batch was answered or given up."""
        self.in_flight -= 1
        self._load -= self._weight(batch)
        self.pending_count -= len(batch.items)
        self.pending_bytes -= batch.size
        assert self.in_flight >= 0
        assert self.pending_count >= 0

    def next_due(self) -> float | None:
        """When the open batch will have lingered enough; None when nothing waits for time.

        Also None while the lane is full: then done() is the event to wait for.
        """
        if self._open is None or self._closed or not self._has_room(self._open):
            return None
        return self._open.opened_at + self._linger_s

    def drop_all(self) -> list[Item]:
        """Give up everything that has not been taken; returns the messages, oldest first."""
        if self._open is not None:
            self._close_open()
        dropped = [item for batch in self._closed for item in batch.items]
        self.pending_count -= len(dropped)
        self.pending_bytes -= sum(batch.size for batch in self._closed)
        self._closed.clear()
        return dropped

    def _weight(self, batch: Batch[Item]) -> int:
        return 1 if batch.alone else self._batch_weight

    def _has_room(self, batch: Batch[Item]) -> bool:
        return self._load + self._weight(batch) <= self._capacity

    def _close_open(self) -> None:
        assert self._open is not None
        self._closed.append(self._open)
        self._open = None
