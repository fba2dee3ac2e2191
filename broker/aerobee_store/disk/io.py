"""The store's one door to the disk: two protocols and the real implementation.

Touches  the file system, nothing else. Every other module of the store goes through a `StoreIo`, so that
tests can put a recording, failing or crashing one in its place.

Invariants
- A data file has its full length from the moment it exists under its name, and space is allocated before it is
  written to, as a rule when the file is made: a full disk is an error of a call, never a SIGBUS at a later store
  into the map.
- A mapped file is never truncated or grown.
- A failed sync is reported once by the kernel; whoever gets the OSError must treat it as final.
- What fails for want of descriptors, maps or memory is OutOfResources, never an OSError, whichever call it was; only
  the sync of a file is not asked for its reason.
- `replace_bytes` leaves the old or the new content, never a mixture, and the old one as `<name>.bak`.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, Protocol, TypeVar

import numpy as np

from aerobee_service.file_rights import give_rights
from aerobee_store.disk.disk_space import disk_use
from aerobee_store.disk.extents import data_extents
from aerobee_store.disk.file_maps import DESCRIPTORS_A_MAP, map_file
from aerobee_store.disk.file_system import FileSystem, file_system_of
from aerobee_store.disk.page_cache import (
    address_of,
    bring_file,
    is_file_resident,
    is_resident,
    read_file_ahead,
    resident_pages,
)
from aerobee_store.faults import failpoints
from aerobee_store.faults.errors import (
    FILE_NOT_THERE,
    FILE_REPLACED,
    NO_ROOM_ERRORS,
    RESOURCE_ERRORS,
    CorruptStore,
    FileGone,
    NamesNotSynced,
    OutOfResources,
    StoreFull,
    StoreLocked,
    file_cut,
)

__all__ = [
    "SYNC_WHOLE_MIN",
    "WRITE_CALL_MIN",
    "Buffer",
    "DataFile",
    "DiskIo",
    "FolderEntry",
    "FoundFile",
    "LockHandle",
    "StoreIo",
    "Window",
    "is_zero",
]

Buffer = bytes | bytearray | memoryview

_ZERO_CHUNK = 1 << 20
_SPACE_STEP = 1 << 12  # bytes that a file opened with `room` is given at least; then as much again as it has
SYNC_WHOLE_MIN = 256  # files of a file system from which it is synced as a whole
_PAGE = mmap.PAGESIZE
_CLOSED, _SHED = -1, -2  # in place of a descriptor: none for good, and none while there is the map
WRITE_CALL_MIN = 400  # bytes from which writes are calls; two records are longer (see _DiskFile.write)
_DELETED = "somebody deleted it, or put another file in its place, under the running broker"
_WRONG_LENGTH = "configure the file size that the store was written with, or move the file away"


def is_zero(buffer: Buffer) -> bool:
    """Whether all bytes are zero: 25 GB/s in memory, 20 times what comparing with zeros makes."""
    return not np.frombuffer(buffer, np.uint8).any()


class FolderEntry(NamedTuple):
    """One name in a folder; `size` is in bytes and 0 for folders."""

    name: str
    size: int
    is_dir: bool


class FoundFile(NamedTuple):
    """What lies under the name of a file; `size` is in bytes, `inode` 0 where files have no number."""

    size: int
    inode: int


class Window(NamedTuple):
    """A part of a file's map where storing fewer than WRITE_CALL_MIN bytes does what `write` would do.

    It stays so until the file is closed. Pages of a file that was opened without `room` are best brought into memory
    first. `begin` and `end` are positions in `map`, which is the whole file.
    """

    map: mmap.mmap
    begin: int
    end: int


class DataFile(Protocol):
    """A file of fixed length, readable and writeable by position.

    `view` stays valid after `close()` only through slices taken before; slices are read-only and show
    later writes to the same bytes.
    """

    size: int

    @property
    def path(self) -> Path:
        """Where it lies."""
        ...

    @property
    def view(self) -> memoryview:
        """All of it, mapped."""
        ...

    def write(self, position: int, data: Buffer) -> None:
        """Store `data` at `position`; visible in `view` at once, durable after `sync()`.

        Front to back: what a kill of the process leaves is a beginning of `data`, unless it is one small record.
        StoreFull, and nothing is stored, when a file that was opened with `room` finds none.
        """

    def window(self) -> Window | None:
        """Where the owner of a growing file may store by itself; None: `write` has to do it. A file that was opened
        with `room` is mapped for this, when it is asked for the second time."""

    def zero(self, position: int, length: int) -> bool:
        """Make `length` bytes from `position` zero; whether any was not. Those that are zero are not touched."""

    def read(self, position: int, length: int) -> bytes:
        """A copy of these bytes. Unlike `view`, which ends the process at a bad sector, it raises OSError there,
        and other threads run while the disk is waited for."""

    def read_ahead(self, *, is_useful: bool) -> None:
        """Whether a read through `view` may bring what lies behind it into memory, too; it may until this is called.
        Not useful where the file is being written: what lies behind is nothing, and to fill it in costs more than the
        reads."""

    def data_extents(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Stretches of [begin, end) that may hold something; the rest reads as zero."""

    def in_memory(self, position: int, length: int) -> bool:
        """Whether reading these bytes would not wait for the disk, as far as the system can tell."""

    def pages_in_memory(self, position: int, length: int) -> bytes:
        """The same of each page that holds some of these bytes: 1, or 0 where it would."""

    def sync(self) -> None:
        """Return when every earlier write is durable. OSError is final for the whole store: FileGone when what was
        written is in no folder any more, or no longer all of it."""

    def displaced(self) -> str | None:
        """What somebody else has done to the file: deleted, moved, replaced or cut it; None: it is in its place.

        Costs one call. Says nothing about a file that its owner closes and deletes meanwhile.
        """

    def close(self) -> None:
        """Let go of the file, after a sync that is under way. Slices of `view` that are still held stay readable."""


class LockHandle(Protocol):
    """A held lock file, and its folder, which is locked with it: nobody can delete a folder with files in it."""

    def keep(self) -> bool:
        """Put the lock file back if somebody has taken it away or put another in its place; whether that was so.

        StoreLocked when another process has locked the one that is there now, OSError when there can be none.
        """

    def release(self) -> None:
        """Give the lock back; calling it again does nothing."""


class StoreIo(Protocol):
    """Everything that the store may ask of a file system.

    Every method raises OutOfResources when there is no descriptor, map or memory for it; it may be called again.
    """

    def open_file(
        self, path: Path, size: int, *, create: bool = False, writable: bool = True, room: int | None = None
    ) -> DataFile:
        """Open `path`, or create it with `size` zero bytes and make its name durable.

        With `room` this is done little by little, for files of which there are many: a new one gets `room` bytes
        of space now, the rest when it is written to, and what is missing in an old one is not filled up. Neither
        length nor name of a new one are durable before its sync() and sync_folder() of its folder and of those
        above that were missing. Until then a crash leaves it with all of its length, with none, or not at all.

        Raises FileNotFoundError or FileExistsError, CorruptStore when the length is not `size`, and
        StoreFull when there is no room (nothing is left behind then).
        """

    def read_bytes(self, path: Path) -> bytes | None:
        """Whole content of a small file; None when there is none."""

    def replace_bytes(self, path: Path, data: bytes, *, keep_previous: bool = True) -> None:
        """Put `data` in place of the content of `path`, all or nothing and durable.

        With `keep_previous` the content before is afterwards found in `<name>.bak`.
        """

    def list_names(self, folder: Path) -> list[FolderEntry]:
        """Entries of `folder` sorted by name; empty when the folder does not exist."""

    def unlink(self, path: Path) -> None:
        """Remove a file; a missing one is fine."""

    def remove_folder(self, path: Path) -> None:
        """Remove a folder if it is empty; a missing or filled one is left alone."""

    def make_folder(self, path: Path) -> None:
        """Create `path` and its parents as needed, durable."""

    def rename(self, source: Path, target: Path, *, lasting: bool = True) -> None:
        """Rename over `target`, in one folder; durable, or with `lasting` off once the folder is synced. StoreFull when
        there is no room for the name."""

    def sync_folder(self, path: Path) -> None:
        """Make creations and removals inside `path` durable. NamesNotSynced is as final as what sync() of a file
        raises."""

    def sync_all(
        self, files: Sequence[DataFile], folders: Sequence[Path], *, gently: Callable[[], bool] | None = None
    ) -> None:
        """As sync() of every file and then sync_folder() of every folder, for any number of them. One after the other
        as long as `gently`, which is asked before each, says that others who wait for the same disk are to be spared.

        Files that are closed and folders that are removed meanwhile are passed over. OSError names one that failed.
        """

    def lock(self, path: Path) -> LockHandle:
        """Take the exclusive lock on `path` and on its folder without waiting; StoreLocked when another holds one."""

    def disk_usage(self, path: Path) -> tuple[int, int]:
        """(total, free) bytes of the file system that holds `path`, as far as this process may use them."""

    def modified_ms(self, path: Path) -> int:
        """When a file was last written to, by the file system's clock, in ms since the epoch. OSError."""

    def find(self, path: Path) -> FoundFile | None:
        """What lies at a path now; None when nothing does. Any thread may ask. OSError: nobody can tell now."""

    def bring(self, path: Path, position: int, length: int) -> None:
        """Return when these bytes of a file are in memory, or the file is gone. From any thread; OSError when the disk
        refuses."""

    def read_ahead(self, path: Path, position: int, length: int) -> None:
        """Have these bytes of a file read some time, without waiting for them. From any thread."""


class _DiskFile:
    __slots__ = (
        "_address",
        "_closing",
        "_fd",
        "_identity",
        "_is_growing",
        "_map",
        "_room",
        "_space",
        "_windows_asked",
        "_writable",
        "file_system",
        "is_mapped",
        "path",
        "size",
        "view",
    )

    def __init__(
        self,
        path: Path,
        fd: int,
        size: int,
        found: os.stat_result,
        *,
        writable: bool,
        space: int | None = None,
    ) -> None:
        """`found` is what fstat says of it. `space` bytes from the beginning are allocated, and pages come one by one;
        None: all of the file."""
        self.path = path
        self.size = size
        self._fd = fd
        self._identity = _identity(found)
        # [begin, end), replaced whole, because threads may write to one file: where stores through the map are
        # fine, as their pages were made by calls, and what is certain to be allocated. The second holds the first.
        self._room = (0, 0)
        self._space = (0, size if space is None else space)
        # Of files that there are many of, where it can be synced as a whole. Held as long as the file is open.
        self.file_system: FileSystem | None = None
        if space is not None:
            self.file_system = file_system_of(found.st_dev, path.parent)
        # A sync in another thread and a close must not meet: the descriptor's number is used again.
        self._closing = threading.Lock()
        self._writable = writable
        # Those that there are many of are mapped by need: most of them are read or written to once, then closed.
        self._is_growing = space is not None
        self.is_mapped = False
        self._address = 0  # of the map, once somebody has asked what of it is in memory
        self._windows_asked = 0
        if space is None:
            self._make_map()

    def __getattr__(self, name: str) -> Any:
        """`_map` and `view`, which are not there before the file is mapped."""
        if name not in ("_map", "view"):
            raise AttributeError(name)
        self._make_map()
        return getattr(self, name)

    def _make_map(self) -> None:
        try:
            made = map_file(self._fd, self.size, writable=self._writable, is_tracked=not self._is_growing)
        except OSError as error:
            raise _named(self.path, error) from error
        if self._is_growing:
            _advise(made)
        self._map = made
        self.view = memoryview(made).toreadonly()
        self.is_mapped = True

    def write(self, position: int, data: Buffer) -> None:
        size = len(data)
        begin, end = self._room
        if position + size > end or position < begin:
            self._write_new_pages(position, data)
            return
        if size < WRITE_CALL_MIN and self.is_mapped:
            # Slice assignment on a map raises IndexError when lengths differ, so it cannot write past the end.
            self._map[position : position + size] = data
            return
        self._write_by_call(position, data)

    def window(self) -> Window | None:
        begin, end = self._room if self._is_growing else (0, self.size)
        if begin >= end:
            return None
        if not self.is_mapped:
            self._windows_asked += 1
            if self._windows_asked < 2:
                return None
            try:
                self._make_map()
            except OutOfResources:
                return None  # every write is a call then
        return Window(self._map, begin, end)

    def _write_by_call(self, position: int, data: Buffer) -> None:
        # The kernel copies front to back, whole pages between looks for a signal, so that SIGKILL leaves a beginning
        # of what was to be written. A copy through the map may begin with its end: one kill in twenty under load left
        # whole records behind a hole, which recovery must take for damage. It costs nothing for 8 messages and more
        # at once, 1.4 us for one (bench/micro_store.py), and whole pages need not be zeroed first: 20 % less
        # processor time for sends with 4 KiB bodies (`bench/compare.py --only "4 KiB"`).
        if position + len(data) > self.size:
            raise IndexError(f"{len(data)} bytes at {position} are past the end of {self.path}")
        left = memoryview(data)
        while left:
            try:
                written = os.pwrite(self._fd, left, position)
            except OSError as error:
                raise _named(self.path, error) from error
            left = left[written:]
            position += written

    def _write_new_pages(self, position: int, data: Buffer) -> None:
        """A write beyond what the map may be used for: take space, and let a call make the pages.

        The first store through the map into a stretch of a file brings large pieces of nothing into memory, as much as
        the disk is set to read ahead: 17 ms and megabytes for each of thousands of queues, against 0.02 ms
        (bench/load.py --only topics), and in the log 20 ms of the event loop twice a second (bench/tails.py).
        """
        end = position + len(data)
        if end > self.size or position < 0:
            raise IndexError(f"{len(data)} bytes at {position} are past the end of {self.path}")
        page_end = min(-(-end // _PAGE) * _PAGE, self.size)
        self._take_space(position, page_end)
        self._write_by_call(position, data)
        begin, known_end = self._room
        if begin >= known_end:
            self._room = (position, page_end)
        elif begin <= position <= known_end:
            self._room = (begin, page_end)

    def _take_space(self, position: int, end: int) -> None:
        """Allocate [position, end), and as much again as the file has got so far: few calls, little in vain."""
        begin, known_end = self._space
        if begin <= position and end <= known_end:
            return
        if begin < known_end and not begin <= position <= known_end:
            self._allocate(position, end)  # somewhere else, once
            return
        start = known_end if begin < known_end else position // _PAGE * _PAGE
        reach = start + max(known_end - begin, _SPACE_STEP)
        stop = min(max(end, -(-reach // _PAGE) * _PAGE), self.size)
        self._allocate(start, stop)
        self._space = (begin if begin < known_end else start, stop)

    def _allocate(self, begin: int, end: int) -> None:
        try:
            os.posix_fallocate(self._fd, begin, end - begin)
        except OSError as error:
            if error.errno in NO_ROOM_ERRORS:
                raise StoreFull(self.path, end - begin, error.strerror or "") from error
            raise _named(self.path, error) from error

    def read(self, position: int, length: int) -> bytes:
        pieces = []
        try:
            while length and (piece := os.pread(self._fd, length, position)):
                pieces.append(piece)
                position += len(piece)
                length -= len(piece)
        except OSError as error:
            raise _named(self.path, error) from error
        return b"".join(pieces)

    def zero(self, position: int, length: int) -> bool:
        changed = False
        end = position + length
        assert 0 <= position <= end <= self.size
        for begin, stop in self.data_extents(position, end):
            for at in range(begin, stop, _ZERO_CHUNK):
                count = min(_ZERO_CHUNK, stop - at)
                if is_zero(self.view[at : at + count] if self.is_mapped else self.read(at, count)):
                    continue
                changed = True
                if self.is_mapped:
                    self._map[at : at + count] = bytes(count)
                else:
                    self._write_by_call(at, bytes(count))
        return changed

    def read_ahead(self, *, is_useful: bool) -> None:
        if self.is_mapped:
            _advise(self._map, reads_ahead=is_useful)

    def data_extents(self, begin: int, end: int) -> list[tuple[int, int]]:
        return data_extents(self._fd, begin, end)

    def in_memory(self, position: int, length: int) -> bool:
        if self._fd == _CLOSED:
            return True
        if not self.is_mapped:
            return is_file_resident(self._fd, self.size, position, length)
        if not self._address:
            self._address = address_of(self.view)
        return is_resident(self._address + position, min(length, self.size - position))

    def pages_in_memory(self, position: int, length: int) -> bytes:
        length = min(length, self.size - position)
        if self._fd == _CLOSED or not self.is_mapped:
            # One answer for all: what is asked for by pages is mapped as long as it is open.
            count = -(-(position % _PAGE + length) // _PAGE)
            return bytes((self.in_memory(position, length),)) * count
        if not self._address:
            self._address = address_of(self.view)
        return resident_pages(self._address + position, length)

    def sync(self) -> None:
        with self._closing:
            if self._fd >= 0:
                try:
                    os.fdatasync(self._fd)
                    found = os.fstat(self._fd)
                except OSError as error:
                    raise _at(self.path, error) from error
                # 1 us, and nothing is acknowledged that nobody will find again.
                if not found.st_nlink:
                    raise FileGone(self.path, _DELETED)
                if found.st_size != self.size:
                    raise FileGone(self.path, file_cut(found.st_size, self.size))

    @property
    def inode(self) -> int:
        """Its number in the file system."""
        return self._identity[1]

    def displaced(self) -> str | None:
        try:
            found = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return FILE_NOT_THERE
        if _identity(found) != self._identity:
            return FILE_REPLACED
        return file_cut(found.st_size, self.size) if found.st_size != self.size else None

    def shed(self) -> bool:
        """Give the descriptor back and keep the map, for stores through the window and reads of `view`; whether it was
        so. Everything else has to wait for resume(), syncs are the caller's business."""
        if (
            self._fd < 0
            or not self.is_mapped
            or DESCRIPTORS_A_MAP
            or not self._closing.acquire(blocking=False)
        ):
            return False
        fd, self._fd = self._fd, _SHED
        self._closing.release()
        try:
            os.close(fd)
        except OSError as error:
            raise _at(self.path, error) from error
        return True

    def resume(self, other: "_DiskFile") -> None:
        """Take the descriptor of another that has just opened the same path, and is used no further. FileGone when
        that is another file by now."""
        fd, other._fd = other._fd, _CLOSED
        if other._identity != self._identity:
            os.close(fd)
            raise FileGone(self.path, FILE_REPLACED)
        self._fd = fd

    def close(self) -> None:
        if self._fd == _CLOSED:
            return
        # Held slices and arrays keep the map alive; it goes when the last of them does.
        if self.is_mapped:
            with contextlib.suppress(BufferError):
                self.view.release()
                self._map.close()
        with self._closing:
            # Also when the call fails the number is free, and may be another file's at once.
            fd, self._fd = self._fd, _CLOSED
            self.file_system = None
            try:
                if fd >= 0:
                    os.close(fd)
            except OSError as error:
                raise _at(self.path, error) from error


# Files locked by this process, by (device, inode): record locks do not hold against their own process.
locked_here: set[tuple[int, int]] = set()
# Of file systems that lock no folders, as some that come over the network: the lock file alone has to do there.
_NO_FOLDER_LOCKS: Final = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})


class _DiskLock:
    """A POSIX record lock, as official brokers take it, and a lock on the folder.

    The first goes when *any* descriptor of the file closes, so nobody may open it again.
    """

    __slots__ = ("_fd", "_folder_fd", "_identity", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        # First, so that whoever does not get in leaves no file behind.
        self._folder_fd = _lock_folder(path.parent)
        try:
            self._fd, self._identity = _lock_file(path)
        except BaseException:
            os.close(self._folder_fd)
            raise

    def keep(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            if _identity(self._path.stat()) == self._identity:
                return False
        fd, identity = _lock_file(self._path)
        self._let_go_of_file()
        self._fd, self._identity = fd, identity
        return True

    def release(self) -> None:
        if self._fd >= 0:
            self._let_go_of_file()
            os.close(self._folder_fd)

    def _let_go_of_file(self) -> None:
        os.close(self._fd)
        self._fd = -1
        locked_here.discard(self._identity)


def _lock_file(path: Path) -> tuple[int, tuple[int, int]]:
    """Descriptor and identity of the lock file, locked."""
    found = _status(path)
    if found is not None and _identity(found) in locked_here:
        raise StoreLocked(path)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        os.pwrite(fd, b"lock", 0)
        os.fsync(fd)
        identity = _identity(os.fstat(fd))
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise StoreLocked(path) from error
        raise OSError(error.errno, error.strerror, str(path)) from error
    locked_here.add(identity)
    return fd, identity


def _lock_folder(folder: Path) -> int:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_FOLDER_LOCKS:
            os.close(fd)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise StoreLocked(folder) from error
            raise OSError(error.errno, error.strerror, str(folder)) from error
    return fd


P = ParamSpec("P")
T = TypeVar("T")


def _with_path(
    call: Callable[Concatenate["DiskIo", Path, P], T],
) -> Callable[Concatenate["DiskIo", Path, P], T]:
    """A method of DiskIo whose errors are the declared ones, and name the path that it was called with."""

    @wraps(call)
    def called(self: "DiskIo", path: Path, /, *arguments: P.args, **named: P.kwargs) -> T:
        try:
            return call(self, path, *arguments, **named)
        except OSError as error:
            raise _named(path, error) from error

    return called


class DiskIo:
    """The real disk."""

    def __init__(self, *, secret_files: Collection[str] = ()) -> None:
        """`secret_files`: names of files that are replaced, and that their owner alone may read."""
        self._secret_files = frozenset(secret_files)

    @_with_path
    def open_file(
        self, path: Path, size: int, *, create: bool = False, writable: bool = True, room: int | None = None
    ) -> DataFile:
        try:
            return self._open_file(path, size, create=create, writable=writable, room=room)
        except OSError as error:
            if error.errno in NO_ROOM_ERRORS:
                raise StoreFull(path, size, error.strerror or "") from error
            raise

    def _open_file(
        self, path: Path, size: int, *, create: bool, writable: bool, room: int | None
    ) -> DataFile:
        taken = size if room is None else min(max(room, _SPACE_STEP), size)
        if create:
            fd, found = self._create(path, size, taken, lasting=room is None)
        else:
            fd, found = self._open(path, size, writable=writable, fill=writable and room is None)
        space = None if room is None else taken if create else 0
        try:
            return _DiskFile(path, fd, size, found, writable=writable, space=space)
        except BaseException:
            os.close(fd)
            if create:
                path.unlink()
            raise

    def _create(self, path: Path, size: int, taken: int, *, lasting: bool) -> tuple[int, os.stat_result]:
        self._make_folder(path.parent, lasting=lasting)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            failpoints.hit("io.file_created")
            self._check_room(fd, taken)
            # The length first: a crash leaves all of it or nothing, never a part.
            if taken < size:
                os.ftruncate(fd, size)
            os.posix_fallocate(fd, 0, taken)
            failpoints.hit("io.file_allocated")
            if lasting:
                os.fsync(fd)
                self.sync_folder(path.parent)
            found = os.fstat(fd)
        except BaseException:
            os.close(fd)
            path.unlink()
            raise
        return fd, found

    def _check_room(self, fd: int, size: int) -> None:
        """An allocation that fails may take all that is left before it gives it back, and others fail meanwhile."""
        facts = os.fstatvfs(fd)
        if facts.f_blocks and facts.f_bavail * facts.f_frsize < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _open(self, path: Path, size: int, *, writable: bool, fill: bool) -> tuple[int, os.stat_result]:
        fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            _check_length(path, found.st_size, size)
            if fill and found.st_blocks * 512 < size:
                # Official brokers leave holes; a store into one could meet a full disk as SIGBUS.
                os.posix_fallocate(fd, 0, size)
        except BaseException:
            os.close(fd)
            raise
        return fd, found

    @_with_path
    def read_bytes(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    @_with_path
    def replace_bytes(self, path: Path, data: bytes, *, keep_previous: bool = True) -> None:
        self.make_folder(path.parent)
        before = _status(path)
        if keep_previous and before is not None:
            previous = path.with_name(path.name + ".bak")
            self._write_beside(previous, path.read_bytes(), before)
            failpoints.hit("io.previous_kept")
        self._write_beside(path, data, before)
        self.sync_folder(path.parent)

    def _write_beside(self, path: Path, data: bytes, before: os.stat_result | None) -> None:
        """Write a temporary neighbour, sync it, rename it to `path`. It has the rights of the file `before`, unless it
        is its owner's alone."""
        beside = path.with_name(path.name + ".tmp")
        is_secret = path.name.removesuffix(".bak") in self._secret_files
        mode = 0o644 if before is None and not is_secret else 0o600
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        try:
            with os.fdopen(fd, "wb") as out:
                if before is not None:
                    give_rights(fd, before)
                if is_secret:
                    os.fchmod(fd, 0o600)
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
            failpoints.hit("io.before_rename")
            beside.rename(path)
            failpoints.hit("io.renamed")
        except OSError as error:
            beside.unlink(missing_ok=True)
            if error.errno in NO_ROOM_ERRORS:
                raise StoreFull(path, len(data)) from error
            raise

    @_with_path
    def list_names(self, folder: Path) -> list[FolderEntry]:
        try:
            with os.scandir(folder) as entries:
                found = [entry for e in entries if (entry := folder_entry(e)) is not None]
        except FileNotFoundError:
            return []
        return sorted(found)

    @_with_path
    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_folder(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError, OSError):
            path.rmdir()

    @_with_path
    def make_folder(self, path: Path) -> None:
        self._make_folder(path, lasting=True)

    def _make_folder(self, path: Path, *, lasting: bool) -> None:
        found = _status(path)
        if found is not None and stat.S_ISDIR(found.st_mode):
            return
        self._make_folder(path.parent, lasting=lasting)
        path.mkdir(exist_ok=True)
        if lasting:
            try:
                self.sync_folder(path.parent)
            except OutOfResources:
                self.remove_folder(path)  # else the next try finds it there, and takes its name for durable
                raise

    @_with_path
    def rename(self, source: Path, target: Path, *, lasting: bool = True) -> None:
        try:
            source.rename(target)
        except OSError as error:
            if error.errno in NO_ROOM_ERRORS:
                raise StoreFull(target, 0, error.strerror or "") from error
            raise
        if lasting:
            self.sync_folder(target.parent)

    @_with_path
    def sync_folder(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _sync_names(path, fd)
        finally:
            os.close(fd)

    def sync_all(
        self, files: Sequence[DataFile], folders: Sequence[Path], *, gently: Callable[[], bool] | None = None
    ) -> None:
        if gently is not None:
            files, folders = self._sync_some(files, folders, gently)
        together = defaultdict[FileSystem, int](int)
        for file in files:
            if isinstance(file, _DiskFile) and (system := file.file_system) is not None:
                together[system] += 1
        devices = {folder: device for folder in folders if (device := self._device_of(folder)) is not None}
        if len(devices) >= SYNC_WHOLE_MIN:
            for device, count in Counter(devices.values()).items():
                folder = next(folder for folder, own in devices.items() if own == device)
                if (system := file_system_of(device, folder)) is not None:
                    together[system] += count
        durable = {system for system, count in together.items() if count >= SYNC_WHOLE_MIN and system.sync()}
        for file in files:
            if not isinstance(file, _DiskFile) or file.file_system not in durable:
                file.sync()
        done = {system.device for system in durable}
        for folder, device in devices.items():
            if device not in done:
                with contextlib.suppress(FileNotFoundError):
                    self.sync_folder(folder)

    def _sync_some(
        self, files: Sequence[DataFile], folders: Sequence[Path], goes_on: Callable[[], bool]
    ) -> tuple[Sequence[DataFile], Sequence[Path]]:
        """Sync one after the other, as long as that goes on; what is left then."""
        for place, file in enumerate(files):
            if not goes_on():
                return files[place:], folders
            file.sync()
        for place, folder in enumerate(folders):
            if not goes_on():
                return (), folders[place:]
            with contextlib.suppress(FileNotFoundError):
                self.sync_folder(folder)
        return (), ()

    @_with_path
    def _device_of(self, folder: Path) -> int | None:
        """Where it lies; None when it is gone."""
        try:
            return folder.stat().st_dev
        except FileNotFoundError:
            return None

    @_with_path
    def lock(self, path: Path) -> LockHandle:
        self.make_folder(path.parent)
        return _DiskLock(path)

    @_with_path
    def disk_usage(self, path: Path) -> tuple[int, int]:
        disk = disk_use(path)
        return disk.total, disk.free

    @_with_path
    def modified_ms(self, path: Path) -> int:
        return path.stat().st_mtime_ns // 1_000_000

    @_with_path
    def find(self, path: Path) -> FoundFile | None:
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FoundFile(found.st_size, found.st_ino)

    @_with_path
    def bring(self, path: Path, position: int, length: int) -> None:
        bring_file(path, position, length)

    @_with_path
    def read_ahead(self, path: Path, position: int, length: int) -> None:
        read_file_ahead(path, position, length)


def folder_entry(found: os.DirEntry[str]) -> FolderEntry | None:
    """None when it is gone again: the others are there all the same."""
    try:
        return FolderEntry(found.name, 0 if found.is_dir() else found.stat().st_size, found.is_dir())
    except FileNotFoundError:
        return None


def _sync_names(folder: Path, fd: int) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        raise NamesNotSynced(error.errno, error.strerror, str(folder)) from error


def _check_length(path: Path, found: int, expected: int) -> None:
    if found != expected:
        raise CorruptStore(path, None, f"length is {found}, must be {expected}", _WRONG_LENGTH)


def _advise(made: mmap.mmap, *, reads_ahead: bool = False) -> None:
    """No reading ahead, as a rule: where a disk is set to 8 MiB of it, Linux may fill the whole file with nothing at
    the first store into a page that is there already, 2 ms for each of thousands of queues; and at reads behind a
    writer it fills what is not yet written, over and over: a sixth of the processor time of sends, once a slave or a
    consumer reads them. Advice: when it is not taken (memory is short), everything is as right, and slower."""
    if hasattr(mmap, "MADV_RANDOM"):
        with contextlib.suppress(OSError):
            made.madvise(mmap.MADV_NORMAL if reads_ahead else mmap.MADV_RANDOM)


def _at(path: Path, error: OSError) -> OSError:
    """The same error, with the path of the file for which the system gave none."""
    return error if error.filename else OSError(error.errno, error.strerror, str(path))


def _named(path: Path, error: OSError) -> OSError | OutOfResources:
    """What is raised to whoever uses this module: with the path, and want of resources by its own name."""
    return OutOfResources(path, error.errno) if error.errno in RESOURCE_ERRORS else _at(path, error)


def _status(path: Path) -> os.stat_result | None:
    """None when it is not there; every other error is one, which `Path.exists` hides in some versions of Python."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
