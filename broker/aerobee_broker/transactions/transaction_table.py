"""Which transactions are open: a picture in memory of the half queue and of the marks in the op queue.

Touches  nothing.

Half queue    progress                      newest
  ... ended |   open  ended  open  copied  |  copy
            ^ everything before it has ended or lives on in a copy behind it

Invariants
- Every half offset before `progress` is over; of those behind it, exactly the ones in `ended` are.
- `newest` has an entry for each open transaction that was copied: first offset -> offset of its newest copy; `first_of`
  has the same the other way round.
- `op_progress` passes a mark record only when `progress` has passed all that it names: whoever starts from the two
  numbers and reads both queues sees what is known here.
"""

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final

from aerobee_service.turns.slices import Steps, at_once

__all__ = ["SETTLED_MAX", "TransactionTable"]

SETTLED_MAX: Final = 50_000  # entries that one turn of the event loop may move over; one takes 0.1 us
FORGOTTEN_A_STEP: Final = 4_096


class TransactionTable:
    """All offsets are of the half queue, but where op is said."""

    def __init__(self, progress: int = 0, op_progress: int = 0) -> None:
        """Everything before the two offsets is over; the rest: `marks_read`, `copy_read`, then `loaded`."""
        self.progress = progress
        self.op_progress = op_progress
        self._ended: set[int] = set()
        self._newest: dict[int, int] = {}
        self._first_of: dict[int, int] = {}
        # (op offset behind the record, largest half offset in it).
        self._ops: deque[tuple[int, int]] = deque()
        # While it is filled: first offset -> its copies in order.
        self._copies: dict[int, list[int]] = {}

    # --- filling it -------------------------------------------------------------------------------------------

    def marks_read(self, op_offset: int, halves: Iterable[int], max_offset: int) -> None:
        """A mark record was found in the op queue; `max_offset` is one past the half queue's last message."""
        named = [half for half in halves if half < max_offset]
        self._ended.update(named)
        self.marks_written(op_offset, named)

    def copy_read(self, first: int, offset: int) -> None:
        """A copy of the message at `first` was found; in order of their offsets."""
        self._copies.setdefault(first, []).append(offset)

    def loaded(self) -> None:
        """Both queues were read: settle which copies are open."""
        for first, copies in self._copies.items():
            chain = [first, *copies]
            if self._ended.isdisjoint(chain):
                self._stands_for(first, chain.pop())
            self._ended.update(chain)
        self._copies.clear()
        self._ended = {offset for offset in self._ended if offset >= self.progress}
        self.settle()

    # --- looking ----------------------------------------------------------------------------------------------

    def is_over(self, offset: int) -> bool:
        """Whether the message at `offset` has ended or lives on in a copy."""
        return offset < self.progress or offset in self._ended

    def is_open(self, offset: int, first: int) -> bool:
        """Whether the transaction is open whose message at `offset` is, or is a copy of, the one at `first`."""
        return first in self._newest or not self.is_over(offset)

    @property
    def held_back_count(self) -> int:
        """Ended ones that wait for an open one before them."""
        return len(self._ended)

    def open_count(self, next_offset: int) -> int:
        """Open transactions, in a half queue that ends at `next_offset`."""
        return max(0, next_offset - self.progress - len(self._ended))

    # --- moving -----------------------------------------------------------------------------------------------

    def end(self, offset: int, first: int) -> list[int]:
        """An open transaction ends, named by any of its messages; the offsets to be marked."""
        newest = self._newest.pop(first, offset)
        self._first_of.pop(newest, None)
        offsets = sorted({offset, newest})
        self._ended.update(one for one in offsets if one >= self.progress)
        return offsets

    def copied(self, offset: int, first: int, new_offset: int) -> None:
        """The message at `offset` was appended again, at `new_offset`."""
        self._ended.add(offset)
        self._stands_for(first, new_offset)

    def _stands_for(self, first: int, newest: int) -> None:
        """The copy at `newest` is the one that counts from here on."""
        self._first_of.pop(self._newest.get(first, -1), None)
        self._newest[first] = newest
        self._first_of[newest] = first

    def gone(self, offset: int) -> None:
        """Nothing that can be read lies at `offset`."""
        if offset >= self.progress:
            self._ended.add(offset)
            first = self._first_of.pop(offset, None)
            if first is not None:
                del self._newest[first]

    def marks_written(self, op_offset: int, halves: Iterable[int]) -> None:
        """A mark record lies in the op queue."""
        self._ops.append((op_offset + 1, max(halves, default=-1)))

    def settle(self, count_max: int | None = None) -> None:
        """Move both offsets over what is over; over `count_max` messages at the most, the rest with the next call."""
        end = None if count_max is None else self.progress + count_max
        while self.progress in self._ended and self.progress != end:
            self._ended.discard(self.progress)
            self.progress += 1
        for _ in range(len(self._ops) if count_max is None else min(count_max, len(self._ops))):
            if self._ops[0][1] >= self.progress:
                break
            self.op_progress = self._ops.popleft()[0]

    def skip_to(self, offset: int) -> None:
        """Messages before `offset` were deleted with their files."""
        at_once(self.skipping_to(offset))

    def skipping_to(self, offset: int) -> Steps[None]:
        """As `skip_to`, in steps: there may be a million of them. What is over is known from the first step on; until
        the last one, more are counted than there are."""
        if offset <= self.progress:
            return
        self.progress = offset
        ended = iter(tuple(self._ended))
        yield
        while some := list(islice(ended, FORGOTTEN_A_STEP)):
            self._ended.difference_update([one for one in some if one < offset])
            yield
        copies = iter(tuple(self._first_of))
        yield
        while some := list(islice(copies, FORGOTTEN_A_STEP)):
            for one in some:
                if one < offset and one in self._first_of:
                    del self._newest[self._first_of.pop(one)]
            yield

    def check(self) -> None:
        """Walk the table; AssertionError at the first broken invariant."""
        assert all(offset >= self.progress for offset in self._ended)
        assert all(one >= self.progress and one not in self._ended for one in self._newest.values())
        assert all(first < one for first, one in self._newest.items())
        assert {one: first for first, one in self._newest.items()} == self._first_of
        assert [op for op, _ in self._ops] == sorted(op for op, _ in self._ops)
        assert all(op > self.op_progress for op, _ in self._ops)
