"""Records that somebody else makes whole: where they go, what they look like, and their way into the log.

Touches  the appender and the commit log that it is given; no clock, no I/O of its own.

Whoever makes them asks for the place, makes them for it, and hands them over in the same turn of the event loop.
"""

from collections.abc import Callable
from typing import Protocol

from aerobee_store.log.commit_log import BLANK_SIZE_MIN, CommitLog
from aerobee_store.writing.appender import Appender, PackedRecords, QueueBook, RecordForm

__all__ = ["Packing"]


class Writing(Protocol):
    """What a store does around a write: failures are noted, a full disk is waited for."""

    def __call__(
        self, write: Callable[[PackedRecords, int], None], what: PackedRecords, now_ms: int, /
    ) -> None: ...


class Packing:
    """The door of one store for records that are ready."""

    def __init__(
        self,
        log: CommitLog,
        appender: Appender,
        clock: Callable[[], int],
        *,
        is_ready: Callable[[], bool],
        write: Writing,
    ) -> None:
        """`is_ready`: whether nothing is to be done before a write."""
        self._log = log
        self._appender = appender
        self._clock = clock
        self._is_ready = is_ready
        self._write = write

    @property
    def form(self) -> RecordForm:
        """How the records of this store are made."""
        return self._appender.form

    def keep_book(self, book: QueueBook | None) -> None:
        """Tell this one from now on which queues there are."""
        self._appender.keep_book(book)

    def place(self) -> tuple[int, int, int] | None:
        """Where the next record goes, the place behind the last byte that one in this file may take, and the time (ms).
        None when `MessageStore.append` would have more to do than to write."""
        if not self._is_ready():
            return None
        log = self._log
        end_offset = log.end_offset
        return end_offset, end_offset + log.room() - BLANK_SIZE_MIN, self._clock()

    def append(self, packed: PackedRecords, now_ms: int) -> None:
        """Store these, made for `place`. Errors as `MessageStore.append`, with nothing stored."""
        self._write(self._appender.append_packed, packed, now_ms)
