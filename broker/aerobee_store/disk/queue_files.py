"""Files of queues, of which there may be more than a process may open: those in use are open, the others are not.

Touches  the files, through StoreIo. No clock.

A `QueueFile` is a DataFile that opens itself by need; the `OpenQueueFiles` of a store closes the one that was used
least recently when there are too many, or when the process can open no more.

Invariants
- At most `count_max` files are open, besides one that a borrower reads, and at most `maps_max` of them are mapped. A
  map takes a descriptor, too (`DESCRIPTORS_A_FILE`), but none that a file may need: a write to a file that is open and
  not mapped costs a call, one to a file that was closed fifteen times that.
- What was written is durable when the sync that follows says so, also if the file was closed in between. A write that
  fails after the file is closed may be reported to nobody who opens it later. So a file that is closed before its sync
  is on a file system that reports such a failure to a descriptor of ours, held from before the first write on, and that
  is then synced as a whole (`is_blind`); elsewhere it is synced before it is closed.
- Nobody stores through a map that is closed: the owner is told first.

- Of a file that is open and not mapped, the block that was read last is kept, of few files at a time. It is what is in
  the file: whoever writes to it, from whatever thread, drops it.

Threads: one thread does everything, but sync() of the open files and displaced(), which any may call. A thread within
borrowing() may read, and write what it syncs itself: it has a descriptor of its own, as that of an open file may be
closed, and its number given to another file, at any moment.
"""

import errno
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from aerobee_store.disk.file_system import FileSystem
from aerobee_store.disk.io import Buffer, DataFile, FoundFile, StoreIo, Window
from aerobee_store.faults.errors import FILE_NOT_THERE, FILE_REPLACED, FileGone, OutOfResources, file_cut
from aerobee_store.faults.limits import maps_max, open_files_max

__all__ = ["DESCRIPTORS_A_FILE", "OpenQueueFiles", "QueueFile", "QueueFileOwner"]

# Python keeps a second one for a map before 3.13, which can do without.
DESCRIPTORS_A_FILE: Final = 1 if sys.version_info >= (3, 13) else 2
_COUNT_MIN: Final = 8
# What is read at once where less is asked for, and of how many files it is kept (4 MiB). A queue that is recovered is
# read 30 times, most of it in one block; a reader that catches up finds 200 entries in one.
_BLOCK_SIZE: Final = 4096
_BLOCKS_MAX: Final = 1024


class QueueFileOwner(Protocol):
    """The queue whose entries are in a file."""

    max_offset: int

    @property
    def is_flushed(self) -> bool:
        """Whether everything that was put is durable."""
        ...

    def forget_window(self) -> None:
        """The map of the last file must not be used any more."""


class QueueFile:
    """One file of a queue; see DataFile."""

    __slots__ = (
        "_block",
        "_file",
        "_files",
        "_folder",
        "_inode",
        "_is_mapped",
        "_name",
        "_owner",
        "_view",
        "_writable",
        "closed",
        "is_blind",
        "is_elsewhere",
        "is_written",
        "seen_offset",
        "size",
        "was_used",
    )

    def __init__(
        self,
        folder: Path,
        name: str,
        size: int,
        owner: QueueFileOwner,
        files: "OpenQueueFiles",
        *,
        writable: bool,
    ) -> None:
        # Put together by need: paths are large, and there are many.
        self._folder = folder
        self._name = name
        self.size = size
        self._owner = owner
        self._files = files
        self._writable = writable
        self.closed = False
        # Of the file that is here, once it was open.
        self._inode = 0
        # Not None: open.
        self._file: DataFile | None = None
        # Counted among those that are mapped.
        self._is_mapped = False
        # Where the block begins that was read last, and its bytes. Never of a file that is closed.
        self._block: tuple[int, bytes] | None = None
        # Of all of it, once it was asked for while the file is open and mapped.
        self._view: memoryview | None = None
        # Something may have been stored since the last sync() or opening.
        self.is_written = False
        # It was closed before its sync.
        self.is_blind = False
        # Not on the file system of the others.
        self.is_elsewhere = False
        # Whether it was used since OpenQueueFiles looked last: by a call, or by its owner through the map.
        self.was_used = False
        self.seen_offset = 0

    def _opened(self) -> DataFile:
        self.was_used = True
        return self._file if self._file is not None else self._files.open(self)

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self._folder / self._name

    @property
    def view(self) -> memoryview:
        """Maps the whole file: for tests and small files."""
        return self._opened().view

    def write(self, position: int, data: Buffer) -> None:
        if self._files.is_borrower:
            borrowed = self._files.borrow(self)
            if borrowed is not None:
                borrowed.write(position, data)
                self._files.rewrites += 1
                self._block = None
            return
        file = self._opened()
        self.is_written = True
        self._block = None
        file.write(position, data)

    def write_again(self, position: int, length: int) -> None:
        """Write what is there once more, so that the next sync brings it to the disk."""
        data = bytes(self.piece(position, length))
        block = self._block
        self.write(position, data)
        self._block = block  # nothing has changed

    def window(self) -> Window | None:
        file = self._file
        if file is None or self._is_mapped or not hasattr(file, "is_mapped"):
            return None if file is None else file.window()
        if not file.is_mapped and not self._files.may_map():
            return None
        window = file.window()
        if file.is_mapped:
            self._is_mapped = True
            self._files.mapped_count += 1
        return window

    def zero(self, position: int, length: int) -> bool:
        file = self._opened()
        block, self._block = self._block, None
        changed = file.zero(position, length)
        if not changed:
            self._block = block
        self.is_written = self.is_written or changed
        return changed

    def read(self, position: int, length: int) -> bytes:
        """As of any DataFile. Empty for a borrower that comes too late: the queue, or this file of it, is deleted."""
        if self._files.is_borrower:
            borrowed = self._files.borrow(self)
            return b"" if borrowed is None else borrowed.read(position, length)
        return self._opened().read(position, length)

    def data_extents(self, begin: int, end: int) -> list[tuple[int, int]]:
        return self._opened().data_extents(begin, end)

    def in_memory(self, position: int, length: int) -> bool:
        known = self._block
        if known is not None and known[0] <= position and position + length <= known[0] + _BLOCK_SIZE:
            return True
        return self._opened().in_memory(position, length)

    def piece(self, position: int, length: int) -> memoryview:
        """As read(), without a copy where the file is mapped anyway, as those are that messages go to, and where it
        was just read."""
        if self._view is not None and not self._files.borrowers:
            self.was_used = True
            return self._view[position : position + length]
        if self._files.is_borrower:
            return memoryview(self.read(position, length))
        file = self._opened()
        if getattr(file, "is_mapped", True):
            self._view = file.view
            return self._view[position : position + length]
        known = self._block
        if known is None or position < known[0] or position + length > known[0] + _BLOCK_SIZE:
            if length > _BLOCK_SIZE:
                return memoryview(file.read(position, length))
            known = self._read_block(file, position, length)
        at = position - known[0]
        return memoryview(known[1])[at : at + length]

    def _read_block(self, file: DataFile, position: int, length: int) -> tuple[int, bytes]:
        """The block that holds this, which is kept; it begins there when it would end before it otherwise."""
        begin = position - position % _BLOCK_SIZE
        if position + length > begin + _BLOCK_SIZE:
            begin = position
        rewrites = self._files.rewrites
        block = begin, file.read(begin, min(_BLOCK_SIZE, self.size - begin))
        self._files.keep_block(self)
        self._block = block
        if self._files.rewrites != rewrites:
            self._block = None  # it may have been read before another thread wrote
        return block

    def sync(self) -> None:
        if self._files.is_borrower:
            borrowed = self._files.borrow(self)
            if borrowed is not None:
                borrowed.sync()
        elif not self.closed:
            self.is_written = False
            self._files.sync([self], [])

    def displaced(self) -> str | None:
        file = self._file
        if file is not None and self._inode and getattr(file, "inode", 0) == self._inode:
            return file.displaced()  # it asks for more, by one call
        found = self._files.find(self)
        if found is None:
            return FILE_NOT_THERE
        if self._inode and found.inode != self._inode:
            return FILE_REPLACED
        if file is not None:
            return file.displaced()
        return file_cut(found.size, self.size) if found.size != self.size else None

    def close(self) -> None:
        self.closed = True
        self._files.close(self)

    # --- for OpenQueueFiles ----------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether a descriptor is held."""
        return self._file is not None

    @property
    def open_file(self) -> DataFile | None:
        """The file itself, while it is open."""
        return self._file

    @property
    def owner(self) -> QueueFileOwner:
        """The queue it belongs to."""
        return self._owner

    def take(self, file: DataFile) -> None:
        """It is open now."""
        self.is_blind = self.is_blind and not self._owner.is_flushed
        self.is_written = False
        self.seen_offset = self._owner.max_offset
        if not self._inode:
            # Only so that displaced() sees more; files in memory have none.
            self._inode = getattr(file, "inode", 0)
        self._file = file

    def give_up(self) -> DataFile | None:
        """It is not open any more; the caller closes what it was."""
        self._owner.forget_window()
        if self._is_mapped:
            self._is_mapped = False
            self._files.mapped_count -= 1
        file, self._file, self._block, self._view = self._file, None, None, None
        return file

    def forget_block(self) -> None:
        """What was read last is not kept any longer."""
        self._block = None

    def reopen(self, io: StoreIo) -> DataFile:
        """Another descriptor of it."""
        try:
            file = io.open_file(self.path, self.size, writable=self._writable, room=0)
        except FileNotFoundError as gone:
            raise FileGone(self.path, FILE_NOT_THERE) from gone
        return file


class OpenQueueFiles:
    """Those files of the queues of one store that are open now."""

    def __init__(self, io: StoreIo, count_max: int | None = None) -> None:
        """`count_max` None: half of what the limits of this process allow."""
        self._io = io
        # Replaced by allow().
        self.count_max = max(count_max if count_max is not None else _default_count(), _COUNT_MIN)
        self.maps_max = self.count_max
        self._descriptors_max = self._map_until = self.count_max * DESCRIPTORS_A_FILE
        # Of those that are open.
        self.mapped_count = 0
        # Used least recently first, but for those that get a second chance.
        self._open: dict[QueueFile, None] = {}
        # Held from before the first write to a file on it, so that no failed write goes unheard.
        self.system: FileSystem | None = None
        # Threads within borrowing().
        self.borrowers: set[int] = set()
        self._borrowed: dict[int, tuple[QueueFile, DataFile]] = {}
        # The first sync of a file that was to be closed and failed: final, and told by the next sync() too.
        self._failure: OSError | None = None
        # Of which files a block is kept; some are in it more than once, some not any more.
        self._blocks: deque[QueueFile] = deque()
        # Counts what borrowers have written.
        self.rewrites = 0
        # How many were closed to make room.
        self.closed_count = 0

    def find(self, file: QueueFile) -> FoundFile | None:
        """What lies under the name of a file now; None when nothing does. For any thread."""
        return self._io.find(file.path)

    def allow(self, descriptors: int, maps: int) -> None:
        """Let so many descriptors and maps be taken from now on; files that are too many go when the next is opened.
        For any thread."""
        self.count_max = self._descriptors_max = max(descriptors, _COUNT_MIN)
        # The last eighth is for files alone: one that is mapped now would close another one a moment later.
        self._map_until = self._descriptors_max * 7 // 8
        self.maps_max = max(maps, 0)

    @property
    def _descriptors(self) -> int:
        """How many are taken."""
        return len(self._open) + (DESCRIPTORS_A_FILE - 1) * self.mapped_count

    def may_map(self) -> bool:
        """Whether one more of the open files may be mapped."""
        return (
            self.mapped_count < self.maps_max
            and self._descriptors + DESCRIPTORS_A_FILE - 1 <= self._map_until
        )

    def __len__(self) -> int:
        return len(self._open)

    def open(self, requested: QueueFile) -> DataFile:
        """Open a file that is there. FileGone when it is not; OutOfResources when nothing helps."""
        return self._add(requested, lambda: requested.reopen(self._io))

    def create(self, requested: QueueFile, room: int) -> None:
        """Make a new file, with `room` bytes of space. Errors as of StoreIo.open_file()."""
        self._add(
            requested, lambda: self._io.open_file(requested.path, requested.size, create=True, room=room)
        )

    def _add(self, requested: QueueFile, make: "_Make") -> DataFile:
        while (
            len(self._open) >= self.count_max or self._descriptors >= self._descriptors_max
        ) and self._close_one(requested):
            pass
        try:
            file = make()
        except OutOfResources:
            # What is used up may be used up by others; an eighth of ours is more than they take at once.
            spare = len(self._open) // 8 + 1
            if not sum(self._close_one(requested) for _ in range(spare)):
                raise
            file = make()
        if self.system is None:
            self.system = getattr(file, "file_system", None)
        requested.is_elsewhere = getattr(file, "file_system", None) is not self.system
        requested.take(file)
        self._open[requested] = None
        return file

    def _close_one(self, requested: QueueFile) -> bool:
        """Close the file that was used least recently; False if none is open."""
        for _ in range(2 * len(self._open)):
            oldest = next(iter(self._open))
            moved = oldest.owner.max_offset != oldest.seen_offset
            if oldest.was_used or moved:
                oldest.was_used, oldest.seen_offset = False, oldest.owner.max_offset
                del self._open[oldest]
                self._open[oldest] = None
                continue
            self._close_safely(oldest, requested)
            return True
        return False

    def _close_safely(self, file: QueueFile, requested: QueueFile) -> None:
        # A put into several files of a queue is under way: the queue does not count yet what is in the first of them.
        unsettled = file.is_written and (file.owner is requested.owner or not file.owner.is_flushed)
        if unsettled:
            if self.system is None or file.is_elsewhere:
                try:
                    file.sync()
                except OSError as error:
                    self._failure = error
                    raise
            else:
                file.is_blind = True
        self.closed_count += 1
        self.close(file)

    def keep_block(self, file: QueueFile) -> None:
        """A block of it is kept from now on, and maybe one of another file not any more."""
        if len(self._blocks) >= _BLOCKS_MAX:
            self._blocks.popleft().forget_block()
        self._blocks.append(file)

    def close(self, file: QueueFile) -> None:
        """Let go of a file, whatever state it is in."""
        self._open.pop(file, None)
        inner = file.give_up()
        if inner is not None:
            inner.close()

    # --- for other threads -----------------------------------------------------------------------------

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

    def borrow(self, file: QueueFile) -> DataFile | None:
        """The borrower's own descriptor of the file; None if its owner has deleted it."""
        me = threading.get_ident()
        known = self._borrowed.get(me)
        if known is not None and known[0] is file:
            return known[1]
        if known is not None:
            del self._borrowed[me]
            known[1].close()
        try:
            mine = file.reopen(self._io)
        except FileGone:
            if file.closed:
                return None
            raise
        self._borrowed[me] = (file, mine)
        return mine

    def sync(self, files: Sequence[QueueFile], folders: Sequence[Path]) -> None:
        """Make all that was written to the files, and made in the folders, before this call durable.

        For any thread. OSError is final for the store.
        """
        if self._failure is not None:
            raise self._failure
        inner = [file.open_file for file in files]
        whole = self.system is not None and any(_is_unseen(file) for file in files)
        if whole:
            self._sync_whole(files[0].path)
            pairs = [(file, one) for file, one in zip(files, inner, strict=True) if file.is_elsewhere]
            folders = [folder for folder in folders if not self._covers(folder)]
        else:
            pairs = list(zip(files, inner, strict=True))
        for file, one in pairs:
            if one is None and not file.closed:
                self._sync_closed(file)
        self._io.sync_all([one for _, one in pairs if one is not None], folders)
        if not whole and self.system is not None and any(_is_unseen(file) for file in files):
            self._sync_whole(files[0].path)  # closed meanwhile

    def _sync_closed(self, file: QueueFile) -> None:
        """It was synced before it was closed, but for what an earlier run has written."""
        try:
            mine = file.reopen(self._io)
        except FileGone:
            if file.closed:
                return  # its owner has deleted it
            raise
        try:
            mine.sync()
        finally:
            mine.close()

    def _covers(self, folder: Path) -> bool:
        assert self.system is not None
        try:
            return folder.stat().st_dev == self.system.device
        except FileNotFoundError:
            return True

    def _sync_whole(self, path: Path) -> None:
        assert self.system is not None
        if not self.system.sync():
            # Some file on it could not be written. It may be another program's; which one nobody can tell.
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))


def _is_unseen(file: QueueFile) -> bool:
    """Whether a failed write to it may have no descriptor that it is reported to."""
    return not file.closed and not file.is_elsewhere and (file.is_blind or not file.is_open)


def _default_count() -> int:
    return min(open_files_max() // (2 * DESCRIPTORS_A_FILE), maps_max() // 2)


class _Make(Protocol):
    def __call__(self) -> DataFile: ...
