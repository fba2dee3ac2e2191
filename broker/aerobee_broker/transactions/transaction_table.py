"""Which transactions are open: a picture in memory of the half queue and of the marks in the op queue.

Touches  nothing.

Half queue    progress                      newest
  ... ended |   open  ended  open  copied  |  copy
            ^ everything before it has ended or lives on in a copy behind it

Invariants
- Every half offset before `progress` is over; of those behind it, exactly the ones in `ended` are.
- `newest` has an entry for each open transaction that was copied: first offset -> offset of its newest copy.
- `op_progress` passes a mark record only when `progress` has passed all that it names: whoever starts from the two
  numbers and reads both queues sees what is known here.
"""

from collections import deque
from collections.abc import Iterable

__all__ = ["TransactionTable"]


class TransactionTable:
    """All offsets are of the half queue, but where op is said."""

    def __init__(self, progress: int = 0, op_progress: int = 0) -> None:
        """Everything before the two offsets is over; the rest: `marks_read`, `copy_read`, then `loaded`."""
        self.progress = progress
        self.op_progress = op_progress
        self._ended: set[int] = set()
        self._newest: dict[int, int] = {}
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
                self._newest[first] = chain.pop()
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
        offsets = sorted({offset, self._newest.pop(first, offset)})
        self._ended.update(one for one in offsets if one >= self.progress)
        return offsets

    def copied(self, offset: int, first: int, new_offset: int) -> None:
        """The message at `offset` was appended again, at `new_offset`."""
        self._ended.add(offset)
        self._newest[first] = new_offset

    def gone(self, offset: int) -> None:
        """Nothing that can be read lies at `offset`."""
        if offset >= self.progress:
            self._ended.add(offset)
            self._newest = {first: one for first, one in self._newest.items() if one != offset}

    def marks_written(self, op_offset: int, halves: Iterable[int]) -> None:
        """A mark record lies in the op queue."""
        self._ops.append((op_offset + 1, max(halves, default=-1)))

    def settle(self) -> None:
        """Move both offsets over what is over."""
        while self.progress in self._ended:
            self._ended.discard(self.progress)
            self.progress += 1
        while self._ops and self._ops[0][1] < self.progress:
            self.op_progress = self._ops.popleft()[0]

    def skip_to(self, offset: int) -> None:
        """Messages before `offset` were deleted with their files."""
        if offset <= self.progress:
            return
        self.progress = offset
        self._ended = {one for one in self._ended if one >= offset}
        self._newest = {first: one for first, one in self._newest.items() if one >= offset}

    def check(self) -> None:
        """Walk the table; AssertionError at the first broken invariant."""
        assert all(offset >= self.progress for offset in self._ended)
        assert all(one >= self.progress and one not in self._ended for one in self._newest.values())
        assert all(first < one for first, one in self._newest.items())
        assert [op for op, _ in self._ops] == sorted(op for op, _ in self._ops)
        assert all(op > self.op_progress for op, _ in self._ops)
