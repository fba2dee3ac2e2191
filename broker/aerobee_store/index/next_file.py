"""The index file after the newest, made ahead: to make it when it is needed held all sends up for three syncs.

Touches  <root>/index/next, and the name that it gets. No sockets, no asyncio.

RocketMQ names an index file by the time at which its first key came, which is not known before; and it passes a file
over whose name is no number. So the file lies under a name that is none until its first key comes.

Invariants
- What lies under PREPARED_NAME holds no entry that anybody relies on: a start removes it.
- The name that a file got counts as durable after a sync_names() that was begun later, as its keys do after a sync.

Threads: one thread takes the file, another may make it; a lock is between them, so that take() waits as long as making
takes at most. A third may call sync_names().
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aerobee_store.disk.io import StoreIo
from aerobee_store.faults import failpoints
from aerobee_store.faults.errors import CorruptStore, FileGone
from aerobee_store.index.index_file import IndexFile

__all__ = ["PREPARED_NAME", "NextFile"]

PREPARED_NAME: Final = "next"
_READ_SIZE: Final = 1 << 20


class NextFile:
    """At most one file that waits for its first key."""

    def __init__(
        self,
        folder: Path,
        io: StoreIo,
        size: int,
        scattered: int,
        *,
        new_name: Callable[[], str],
        opened: Callable[[str], IndexFile],
    ) -> None:
        """Of its `size` bytes keys may go to any of the first `scattered`. `new_name` gives a name behind all others,
        `opened` opens the file of a name; both are called by take()."""
        # Fixed for life.
        self._folder = folder
        self._io = io
        self._size = size
        self._scattered = scattered
        self._new_name = new_name
        self._opened = opened
        # Under which name the file lies; under the lock.
        self._name: str | None = None
        self._preparing = threading.Lock()
        # Whether a file of an earlier run lies there; set by whoever lists the folder.
        self.is_left_over = False
        # Names given, counted before somebody puts a key into the file; and how many of these are durable, which is
        # moved by sync_names() alone.
        self._named = 0
        self._named_durable = 0

    def remove_left_over(self) -> None:
        """Delete what an earlier run made ahead. A crash may bring it back, and the next start deletes it again."""
        if self.is_left_over:
            self._io.unlink(self._folder / PREPARED_NAME)
            self.is_left_over = False

    def prepare(self) -> bool:
        """Make it, durable, with what any key may go to in memory: else whoever puts the first keys has 20 MB of
        nothing read. False when it is there. For a worker thread: it takes three syncs.

        StoreFull when there is no room, OSError as when any file is made.
        """
        with self._preparing:
            if self._name is not None:
                return False
            file = self._io.open_file(self._folder / PREPARED_NAME, self._size, create=True)
            try:
                for position in range(0, self._scattered, _READ_SIZE):
                    file.read(position, min(_READ_SIZE, self._scattered - position))
            finally:
                file.close()
            self._name = PREPARED_NAME
            failpoints.hit("next_file.prepared")
            return True

    @property
    def is_made(self) -> bool:
        """Whether take() will find one."""
        return self._name is not None

    def take(self) -> IndexFile | None:
        """The file under a name of its own, open and empty; None when there is none.

        StoreFull when there is no room for the name, or nothing to open it with: it can be taken later. OSError is
        final for the store.
        """
        with self._preparing:
            if self._name == PREPARED_NAME:
                name = self._new_name()
                try:
                    self._io.rename(self._folder / PREPARED_NAME, self._folder / name, lasting=False)
                except FileNotFoundError:
                    self._name = None  # somebody has deleted it; nothing was in it
                    return None
                self._name = name
                self._named += 1
                failpoints.hit("next_file.named")
            if self._name is None:
                return None
            try:
                file = self._opened(self._name)
            except CorruptStore as wrong:
                raise FileGone(wrong.path, wrong.reason) from wrong
            self._name = None
            return file

    def sync_names(self) -> None:
        """Make every name that was given before this call durable. OSError is final for the store."""
        named = self._named
        if named != self._named_durable:
            self._io.sync_folder(self._folder)
            self._named_durable = named

    def discard(self) -> None:
        """Delete the file, if there is one."""
        with self._preparing:
            if self._name is not None:
                self._io.unlink(self._folder / self._name)
                self._name = None
