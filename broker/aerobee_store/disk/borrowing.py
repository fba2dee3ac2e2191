"""Reading files of queues from other threads, by descriptors of their own.

Touches  the files, through StoreIo.

The descriptor of an open file may be closed at any moment, and its number given to another file, by the thread that
everything else is done by.

Threads: any; each of them borrows for itself.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from aerobee_store.disk.io import DataFile, StoreIo
from aerobee_store.faults.errors import FileGone

__all__ = ["BorrowedFiles", "Lent"]


class Lent(Protocol):
    """A file that may be borrowed."""

    closed: bool

    def reopen(self, io: StoreIo) -> DataFile:
        """Another descriptor of it."""
        ...


class BorrowedFiles:
    """Which threads borrow, and what."""

    def __init__(self, io: StoreIo) -> None:
        self._lending_io = io
        # Threads within borrowing().
        self.borrowers: set[int] = set()
        self._borrowed: dict[int, tuple[Lent, DataFile]] = {}

    @contextmanager
    def borrowing(self) -> Iterator[None]:
        """What this thread reads meanwhile it reads by descriptors of its own, one at a time."""
        me = threading.get_ident()
        self.borrowers.add(me)
        try:
            yield
        finally:
            self.borrowers.discard(me)
            known = self._borrowed.pop(me, None)
            if known is not None:
                known[1].close()

    @property
    def is_borrower(self) -> bool:
        """Whether this thread is within borrowing()."""
        return bool(self.borrowers) and threading.get_ident() in self.borrowers

    def borrow(self, file: Lent) -> DataFile | None:
        """The borrower's own descriptor of the file; None if its owner has deleted it."""
        me = threading.get_ident()
        known = self._borrowed.get(me)
        if known is not None and known[0] is file:
            return known[1]
        if known is not None:
            del self._borrowed[me]
            known[1].close()
        try:
            mine = file.reopen(self._lending_io)
        except FileGone:
            if file.closed:
                return None
            raise
        self._borrowed[me] = (file, mine)
        return mine
