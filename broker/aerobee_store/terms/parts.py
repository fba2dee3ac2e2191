"""What the files of a store have in common, whatever they hold: the log, queues, index, checkpoint, timer files.

Touches  nothing. The store goes through its parts in one order; each knows its own folder and nothing of the others.

What leads from the log to another part is nobody's of them: recovery brings them to agree, dispatch keeps them so.
"""

from typing import Protocol

__all__ = ["StorePart"]


class StorePart(Protocol):
    """One kind of files. load(), recover_to() once, then flush() as often as one likes, close(); check() in between."""

    @property
    def title(self) -> str:
        """What it is, for people."""

    def load(self) -> None:
        """Open what is there; nothing is changed yet. CorruptStore for what an operator has to look at."""

    def recover_to(self, begin: int, end: int) -> None:
        """The log is known to have the physical offsets [begin, end): let go of what leads elsewhere, and be ready to
        go on there. StoreFull and OSError."""

    def flush(self) -> int:
        """Make all durable that was written before the call; how many files were synced. OSError is final."""

    @property
    def watermark(self) -> int:
        """Physical offset below which all that the part has of the log is on disk; 0 when nothing is known."""

    def check(self) -> None:
        """Walk through it; CorruptStore at the first broken invariant. Slow."""

    def close(self) -> None:
        """Let go of the files; nothing is flushed."""
