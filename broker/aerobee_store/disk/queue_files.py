"""Files of queues, of which there may be more than a process may open: those in use are open, the others are not.

Touches  the files, through StoreIo. No clock.

A `QueueFile` is a DataFile that opens itself by need; the `OpenQueueFiles` of a store closes the one that was used
least recently when there are too many, or when the process can open no more.

Invariants
- At most `count_max` descriptors are held, besides those of borrowers, and at most `maps_max` files are mapped. A file
  that is mapped can do without its descriptor: a small write goes through the map, what needs a call opens it again.
  So where descriptors are short, files with a map give theirs back first, and then those are closed that have none: a
  write to a file that is not mapped costs a call, one to a file that was closed fifteen times that.
- Who was not used longest gives way, but only to one that was away for a shorter time than that: where messages go to
  one queue after the other, and there are too many, it is just the next one that was not used longest. Who finds
  nobody is served as a guest, and gives way to the next guest.
- What was written is durable when the sync that follows says so, also if the file was closed in between. A write that
  fails after the file is closed may be reported to nobody who opens it later. So a file that is closed before its sync,
  or that does without a descriptor, is on a file system that reports such a failure to a descriptor of ours, held from
  before the first write on, and is then synced as a whole (`is_blind`); elsewhere it is synced before it is closed.
- Nobody stores through a map that is closed: the owner is told first.

- Of a file that is open and not mapped, the block that was read last is kept, of few files at a time. It is what is in
  the file: whoever writes to it, from whatever thread, drops it.

Threads: one thread does everything, but sync() of the open files and displaced(), which any may call. A thread within
borrowing() may read, and write what it syncs itself: it has a descriptor of its own, as that of an open file may be
closed, and its number given to another file, at any moment.
"""

import errno
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from aerobee_store.disk.borrowing import BorrowedFiles
from aerobee_store.disk.file_maps import DESCRIPTORS_A_MAP
from aerobee_store.disk.file_system import FileSystem
from aerobee_store.disk.io import Buffer, DataFile, FoundFile, StoreIo, Window
from aerobee_store.faults.errors import FILE_NOT_THERE, FILE_REPLACED, FileGone, OutOfResources, file_cut
from aerobee_store.faults.limits import maps_max, open_files_max

__all__ = ["OpenQueueFiles", "QueueFile", "QueueFileOwner"]

_LOOKS_MAX: Final = 4  # at files in use, for one that was in use before
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
        "_name",
        "_owner",
        "_view",
        "_without",
        "_writable",
        "asked_at",
        "closed",
        "is_blind",
        "is_elsewhere",
        "is_mapped",
        "is_written",
        "seen_at",
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
        # Not None: mapped, and without a descriptor.
        self._without: DataFile | None = None
        # Counted among those that are mapped.
        self.is_mapped = False
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
        # When it was opened or found in use last, and when it asked for a map last; 0: never. In the time of
        # OpenQueueFiles.
        self.seen_at = self.asked_at = 0

    def _opened(self) -> DataFile:
        self.was_used = True
        return self._file if self._file is not None else self._files.open(self)

    def _readable(self) -> DataFile:
        """Open, or mapped without a descriptor."""
        self.was_used = True
        return self._opened() if self._without is None else self._without

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self._folder / self._name

    @property
    def view(self) -> memoryview:
        """Maps the whole file: for tests and small files."""
        return self._readable().view

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
        file = self._file if self._without is None else self._without
        if file is None or self.is_mapped or not hasattr(file, "is_mapped"):
            return None if file is None else file.window()
        if not file.is_mapped:
            asked_before = self.asked_at
            if not self._files.may_map(self):
                return None
            if asked_before:
                file.window()  # it may have been closed in between, and is used more than once all the same
        window = file.window()
        if file.is_mapped:
            self._files.mapped(self)
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
        return self._readable().in_memory(position, length)

    def pages_in_memory(self, position: int, length: int) -> bytes:
        return self._readable().pages_in_memory(position, length)

    def piece(self, position: int, length: int) -> memoryview:
        """As read(), without a copy where the file is mapped anyway, as those are that messages go to, and where it
        was just read."""
        if self._view is not None and not self._files.borrowers:
            self.was_used = True
            return self._view[position : position + length]
        if self._files.is_borrower:
            return memoryview(self.read(position, length))
        file = self._readable()
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

    def read_ahead(self, *, is_useful: bool) -> None:
        """Never, of files that there are many of."""

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

    def take(self, file: DataFile, now: int) -> None:
        """It is open now."""
        self.seen_offset, self.seen_at = self._owner.max_offset, now
        known, self._without = self._without, None
        if known is not None:
            self.is_blind = not self._owner.is_flushed
            try:
                known.resume(file)  # type: ignore[attr-defined]
            except FileGone:
                self._without = known
                raise
            self._file = known
            return
        self.is_blind = self.is_blind and not self._owner.is_flushed
        self.is_written = False
        if not self._inode:
            # Only so that displaced() sees more; files in memory have none.
            self._inode = getattr(file, "inode", 0)
        self._file = file

    def shed(self) -> bool:
        """Do without a descriptor; False where there is no map that does."""
        file = self._file
        if file is None or not self.is_mapped or not file.shed():  # type: ignore[attr-defined]
            return False
        self._file, self._without = None, file
        return True

    def look(self, now: int, *, by_map: bool) -> bool:
        """Whether it was used since the last look, with `by_map` also by stores through its map."""
        offset = self._owner.max_offset
        if not self.was_used and (not by_map or offset == self.seen_offset):
            return False
        self.was_used, self.seen_offset, self.seen_at = False, offset, now
        return True

    def give_up(self) -> DataFile | None:
        """It is not open any more, and not mapped; the caller closes what it was."""
        self._owner.forget_window()
        file = self._file if self._without is None else self._without
        self._file, self._without, self._block, self._view = None, None, None, None
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


class OpenQueueFiles(BorrowedFiles):
    """Those files of the queues of one store that are open now."""

    def __init__(self, io: StoreIo, count_max: int | None = None) -> None:
        """`count_max` None: half of what the limits of this process allow."""
        super().__init__(io)
        self._io = io
        # Replaced by allow().
        self.count_max = max(count_max if count_max is not None else _default_count(), _COUNT_MIN)
        self.maps_max = self.count_max
        # With a descriptor; with a map, most of them in both. Used or looked at least recently first.
        self._open: OrderedDict[QueueFile, None] = OrderedDict()
        self._mapped: OrderedDict[QueueFile, None] = OrderedDict()
        # Who has the descriptor for those that found nobody to give way.
        self._guest: QueueFile | None = None
        # How often somebody wanted a descriptor or a map so far.
        self._now = 0
        # Held from before the first write to a file on it, so that no failed write goes unheard.
        self.system: FileSystem | None = None
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
        self.count_max = max(descriptors, _COUNT_MIN)
        self.maps_max = max(maps, 0)

    @property
    def mapped_count(self) -> int:
        """How many files are mapped."""
        return len(self._mapped)

    @property
    def descriptors(self) -> int:
        """How many are taken."""
        return len(self._open) + DESCRIPTORS_A_MAP * len(self._mapped)

    def may_map(self, requested: QueueFile) -> bool:
        """Whether one of the open files may be mapped now."""
        self._now += 1
        asked_at, requested.asked_at = requested.asked_at, self._now
        # The last eighth is for files alone: one that is mapped now would close another one a moment later.
        if DESCRIPTORS_A_MAP and self.descriptors + DESCRIPTORS_A_MAP > self.count_max * 7 // 8:
            return False
        if len(self._mapped) < self.maps_max:
            return True
        found = self._giving_way(self._mapped, self._now - asked_at) if asked_at else None
        if found is None:
            return False
        self._close_safely(found, requested)
        return True

    def mapped(self, file: QueueFile) -> None:
        """It is mapped now."""
        file.is_mapped = True
        self._mapped[file] = None

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
        self._now += 1
        is_guest = False
        while self.descriptors >= self.count_max and self._open:
            is_guest = self._make_room(requested)
        while len(self._mapped) > self.maps_max:
            self._close_safely(self._oldest(self._mapped), requested)
        try:
            file = make()
        except OutOfResources:
            # What is used up may be used up by others; an eighth of ours is more than they take at once.
            if not self._open:
                raise
            for _ in range(len(self._open) // 8 + 1):
                self._free(self._oldest(self._open), requested)
            file = make()
        system = getattr(file, "file_system", None)
        if self.system is None:
            self.system = system
        requested.is_elsewhere = system is not self.system
        requested.take(file, self._now)
        self._open[requested] = None
        if is_guest:
            self._guest = requested
        taken = requested.open_file
        assert taken is not None
        return taken

    def _make_room(self, requested: QueueFile) -> bool:
        """Free a descriptor; whether it is that of guests."""
        found = None
        if requested.seen_at and self.descriptors <= self.count_max:
            found = self._giving_way(self._open, self._now - requested.seen_at)
            if found is None:
                guest = self._guest
                if guest is None or guest not in self._open:
                    guest = self._oldest(self._open)
                self._free(guest, requested)
                return True
        self._free(found or self._oldest(self._open), requested)
        return False

    def _giving_way(self, row: "_Row", away: int) -> QueueFile | None:
        """Who has what another one needs that was away for so long; None: nobody gives way to it."""
        for _ in range(min(_LOOKS_MAX, len(row))):
            first = next(iter(row))
            if not self._is_in_use(first, row):
                is_cheap = row is self._open and self._can_shed(first)
                return first if is_cheap or self._now - first.seen_at > away else None
            row.move_to_end(first)
        return None

    def _oldest(self, row: "_Row") -> QueueFile:
        """Who was not used longest."""
        for _ in range(len(row)):
            first = next(iter(row))
            if not self._is_in_use(first, row):
                return first
            row.move_to_end(first)
        return next(iter(row))

    def _is_in_use(self, file: QueueFile, row: "_Row") -> bool:
        """Whether it has used what the row is of since it was looked at last."""
        return file.look(self._now, by_map=row is self._mapped or not self._can_shed(file))

    def _can_shed(self, file: QueueFile) -> bool:
        """Whether it can do without its descriptor, and what is written then is heard of all the same."""
        return file.is_mapped and not DESCRIPTORS_A_MAP and self.system is not None and not file.is_elsewhere

    def _free(self, file: QueueFile, requested: QueueFile) -> None:
        """Have one descriptor less."""
        if self._can_shed(file) and file.shed():
            del self._open[file]
        else:
            self._close_safely(file, requested)

    def _close_safely(self, file: QueueFile, requested: QueueFile) -> None:
        # A put into several files of a queue is under way: the queue does not count yet what is in the first of them.
        is_changed = file.is_written or file.is_mapped
        unsettled = is_changed and (file.owner is requested.owner or not file.owner.is_flushed)
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
        self._mapped.pop(file, None)
        file.is_mapped = False
        inner = file.give_up()
        if inner is not None:
            inner.close()

    # --- for other threads -----------------------------------------------------------------------------

    def sync(
        self, files: Sequence[QueueFile], folders: Sequence[Path], *, gently: Callable[[], bool] | None = None
    ) -> None:
        """Make all that was written to the files, and made in the folders, before this call durable; `gently` as of
        StoreIo.sync_all().

        For any thread. OSError is final for the store.
        """
        if self._failure is not None:
            raise self._failure
        inner = [file.open_file for file in files]
        whole = self.system is not None and any(_is_unseen(file) for file in files)
        if whole:
            for file in files:
                file.is_blind = False  # unless it is closed again before its sync
            self._sync_whole(files[0].path)
            pairs = [(file, one) for file, one in zip(files, inner, strict=True) if file.is_elsewhere]
            folders = [folder for folder in folders if not self._covers(folder)]
        else:
            pairs = list(zip(files, inner, strict=True))
        for file, one in pairs:
            if one is None and not file.closed:
                self._sync_closed(file)
        self._io.sync_all([one for _, one in pairs if one is not None], folders, gently=gently)
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
    return min(open_files_max() // (2 * (1 + DESCRIPTORS_A_MAP)), maps_max() // 2)


_Row = OrderedDict[QueueFile, None]


class _Make(Protocol):
    def __call__(self) -> DataFile: ...
