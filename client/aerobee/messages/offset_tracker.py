"""What of one queue is done, and which offset may be committed for it.

Invariants
- `committable` is the smallest offset that was added and is not done; without one, the end of what was read.
- It never goes back, except through reset().
"""

from collections import deque

__all__ = ["OffsetTracker"]


class OffsetTracker:
    """Offsets are added in ascending order and done in any."""

    __slots__ = ("_done", "_open", "end")

    def __init__(self, offset: int) -> None:
        self._open: deque[int] = deque()
        # Done offsets behind one that is open still.
        self._done: set[int] = set()
        self.end = offset  # one past the last offset that was read, filtered messages included

    def add(self, offset: int) -> None:
        """A message was read; it is open until done() is called with its offset."""
        assert offset >= self.end
        self._open.append(offset)
        self.end = offset + 1

    def read_to(self, end: int) -> None:
        """Everything before `end` was read; what was not added needs no work."""
        self.end = max(self.end, end)

    def done(self, offset: int) -> None:
        """A message has been dealt with. Offsets that are not open change nothing."""
        waiting = self._open
        if not waiting or offset < waiting[0]:
            return
        self._done.add(offset)
        while waiting and waiting[0] in self._done:
            self._done.remove(waiting.popleft())

    def reset(self, offset: int) -> None:
        """Go on at `offset`; what was open is forgotten."""
        self._open.clear()
        self._done.clear()
        self.end = offset

    @property
    def committable(self) -> int:
        """The offset to commit: where the group would go on."""
        return self._open[0] if self._open else self.end

    @property
    def open_count(self) -> int:
        """Offsets that wait to be done, and those done behind one of them."""
        return len(self._open)

    @property
    def span(self) -> int:
        """How far reading is ahead of what is done, in offsets."""
        return self.end - self.committable
