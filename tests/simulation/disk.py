"""A host's disk: what its processes see of their files, and what is really on it.

Pages of 4 KiB are certain when a sync that began after they were written has ended. Until then a power failure leaves
the old page, the new one, one in between, or one torn at a byte or between sectors; lengths of new files and names are
certain in the same way. A sync takes its time, and may fail: then the kernel holds the pages for clean, shows what was
written for as long as it runs, and no later sync brings them to the disk.

`SimIo` is the door that the product is given: it takes the steps of `DiskIo`, each of which may be the one at which the
process or the power ends.
"""

import errno
from collections.abc import Callable, Sequence
from mmap import PAGESIZE, mmap
from pathlib import Path
from random import Random
from typing import Final

from aerobee_store.disk.io import Buffer, DataFile, FolderEntry, FoundFile, LockHandle
from aerobee_store.faults.errors import CorruptStore, NamesNotSynced, StoreFull, StoreLocked
from simulation.threads import Threads
from simulation.world import Process, ProcessDead

__all__ = ["CAPACITY", "SYNC_S", "Inode", "SimDisk", "SimIo"]

SYNC_S: Final = 0.0005
CAPACITY: Final = 1 << 30
PAGE: Final = 4096
LARGE: Final = 1 << 20
SECTOR: Final = 512
ROOT: Final = "/"

# A change of names: (what, path, file or other path)
Change = tuple[str, str, "Inode | str | None"]


class Inode:
    """One file."""

    __slots__ = ("dirty", "has_length", "live", "lost", "syncs")

    def __init__(self, size: int) -> None:
        self.live: bytearray | mmap = _zeros(size)
        # What is on the disk of pages that were written since; by page.
        self.dirty: dict[int, bytes] = {}
        # The same of those that syncs under way have taken, the oldest sync first.
        self.syncs: list[dict[int, bytes]] = []
        # The same of those whose sync failed: they count as clean.
        self.lost: dict[int, bytes] = {}
        self.has_length = False

    def write(self, position: int, data: Buffer) -> None:
        end = position + len(data)
        live, dirty = self.live, self.dirty
        for page in range(position // PAGE, (end - 1) // PAGE + 1):
            if page not in dirty:
                dirty[page] = bytes(live[page * PAGE : (page + 1) * PAGE])
                lost = self.lost.pop(page, None)
                if lost is not None:
                    dirty[page] = lost
        live[position:end] = data

    def begin_sync(self) -> dict[int, bytes]:
        taken, self.dirty = self.dirty, {}
        self.syncs.append(taken)
        return taken

    def end_sync(self, taken: dict[int, bytes]) -> None:
        self.syncs = [one for one in self.syncs if one is not taken]
        self.has_length = True

    def fail_sync(self, taken: dict[int, bytes], chance: Random) -> None:
        self.syncs = [one for one in self.syncs if one is not taken]
        for page, old in taken.items():
            if chance.random() < 0.3:
                continue  # this one was written
            if page in self.dirty:
                self.dirty[page] = old
            else:
                self.lost.setdefault(page, old)

    def after_power_failure(self, chance: Random) -> None:
        """Become what is found afterwards."""
        live = self.live
        pages = {page for one in (*self.syncs, self.dirty) for page in one}
        for page in sorted(pages):
            at = slice(page * PAGE, (page + 1) * PAGE)
            states = [one[page] for one in (*self.syncs, self.dirty) if page in one]
            states.append(bytes(live[at]))
            live[at] = _left(states, chance)
        for page, old in self.lost.items():
            live[page * PAGE : (page + 1) * PAGE] = old
        self.dirty, self.syncs, self.lost = {}, [], {}

    def is_safe(self, position: int, data: bytes) -> bool:
        """Whether these bytes are there whatever becomes of the power."""
        end = position + len(data)
        if self.live[position:end] != data or not self.has_length:
            return False
        for page in range(position // PAGE, (end - 1) // PAGE + 1):
            begin = page * PAGE
            here = slice(max(position, begin), min(end, begin + PAGE))
            wanted = data[here.start - position : here.stop - position]
            for states in (*self.syncs, self.dirty, self.lost):
                state = states.get(page)
                if state is not None and state[here.start - begin : here.stop - begin] != wanted:
                    return False
        return True


def _zeros(size: int) -> bytearray | mmap:
    """Of a large file, such as the wheel of the timer, most is never looked at: no memory is filled for that."""
    return bytearray(size) if size < LARGE else mmap(-1, size)


def _left(states: list[bytes], chance: Random) -> bytes:
    """One of the contents that a page had, or a mixture of two that followed each other."""
    kind = chance.random()
    if kind < 0.35:
        return states[0]
    if kind < 0.7:
        return states[-1]
    at = chance.randrange(len(states) - 1)
    old, new = states[at], states[at + 1]
    if kind < 0.85:
        cut = chance.randrange(len(new) + 1)
        return new[:cut] + old[cut:]
    return b"".join(chance.choice((old, new))[begin : begin + SECTOR] for begin in range(0, len(new), SECTOR))


class SimDisk:
    """All files of one host. It outlives the processes."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.names: dict[str, Inode] = {}
        self.folders: set[str] = {ROOT}
        self._sure_names: dict[str, Inode] = {}
        self._sure_folders: set[str] = {ROOT}
        self._pending: dict[str, list[Change]] = {}
        self.locked: set[str] = set()
        self.used = 0
        # --- faults; who sets them takes them back
        self.capacity = CAPACITY
        # So many more syncs succeed; None: all.
        self.syncs_left: int | None = None
        # So many more steps, then `on_last_step` is called; None: no end.
        self.steps_left: int | None = None
        self.on_last_step: Callable[[], None] | None = None
        # Seconds that a sync takes, drawn from an exponential distribution.
        self.sync_s = SYNC_S
        # --- what became of it, for the history
        self.failed_syncs = 0

    # --- names ------------------------------------------------------------------------------------------------

    def change(self, what: str, path: str, other: "Inode | str | None" = None) -> None:
        _apply(self.names, self.folders, (what, path, other))
        self._pending.setdefault(_parent(path), []).append((what, path, other))

    def names_are_sure(self, folder: str, changes: list[Change]) -> None:
        """These changes in a folder, the first of those that are not, are on the disk."""
        pending = self._pending.get(folder, [])
        while changes and pending and pending[0] is not changes[0]:
            del changes[0]  # another sync was done earlier
        for change in changes:
            _apply(self._sure_names, self._sure_folders, change)
        del pending[: len(changes)]
        if not pending:
            self._pending.pop(folder, None)

    def pending(self, folder: str) -> list[Change]:
        """Changes in a folder that a power failure may take back."""
        return list(self._pending.get(folder, ()))

    # --- failures ---------------------------------------------------------------------------------------------

    def process_ended(self) -> None:
        """The kernel goes on, with all that it has in memory; nobody waits for its syncs, which end well."""
        self.locked.clear()
        for inode in self.names.values():
            inode.syncs = []

    def power_failed(self) -> None:
        chance = self.chance
        self.locked.clear()
        names, folders = dict(self._sure_names), set(self._sure_folders)
        for folder in sorted(self._pending):
            changes = self._pending[folder]
            for change in changes[: chance.randrange(len(changes) + 1)]:
                _apply(names, folders, change)
        self._pending = {}
        folders = {folder for folder in folders if _is_reachable(folder, folders)}
        names = {path: inode for path, inode in names.items() if _parent(path) in folders}
        for path in sorted(names):
            inode = names[path]
            if not inode.has_length and chance.random() < 0.5:
                names[path] = inode = Inode(0)
            inode.after_power_failure(chance)
            inode.has_length = True
        self.names, self.folders = names, folders
        self._sure_names, self._sure_folders = dict(names), set(folders)
        self.used = sum(len(inode.live) for inode in names.values())

    def is_safe(self, path: str, position: int, data: bytes) -> bool:
        """Whether a file has these bytes, and still has them after a failure of the power."""
        inode = self._sure_names.get(path)
        return inode is not None and inode is self.names.get(path) and inode.is_safe(position, data)

    def files(self) -> dict[str, bytes]:
        """All files as they are seen now."""
        return {path: bytes(inode.live) for path, inode in sorted(self.names.items())}


def _apply(names: dict[str, Inode], folders: set[str], change: Change) -> None:
    what, path, other = change
    if what == "create":
        assert isinstance(other, Inode)
        names[path] = other
    elif what == "unlink":
        names.pop(path, None)
    elif what == "rename":
        if path in names:
            names[str(other)] = names.pop(path)
    elif what == "make folder":
        folders.add(path)
    else:
        assert what == "remove folder"
        folders.discard(path)


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or ROOT


def _is_reachable(folder: str, folders: set[str]) -> bool:
    while folder != ROOT:
        if folder not in folders:
            return False
        folder = _parent(folder)
    return True


class _SimFile:
    """A data file, opened by one process."""

    __slots__ = ("_inode", "_io", "path", "size", "view")

    def __init__(self, io: "SimIo", path: Path, inode: Inode) -> None:
        self.path = path
        self._io = io
        self._inode = inode
        self.view = memoryview(inode.live).toreadonly()
        self.size = len(inode.live)

    def write(self, position: int, data: Buffer) -> None:
        if position < 0 or position + len(data) > self.size:
            raise IndexError(f"{len(data)} bytes at {position} are past the end of {self.path}")
        self._io.step(lambda chance: self._tear(position, data, chance))
        if len(data):
            self._inode.write(position, data)

    def _tear(self, position: int, data: Buffer, chance: Random) -> None:
        """Whoever writes is killed at any byte of it."""
        done = chance.randrange(len(data) + 1)
        if done:
            self._inode.write(position, data[:done])

    def window(self) -> None:
        return None

    def zero(self, position: int, length: int) -> bool:
        if any(self.view[position : position + length]):
            self.write(position, bytes(length))
            return True
        return False

    def read(self, position: int, length: int) -> bytes:
        self._io.alive()
        return bytes(self.view[position : position + length])

    def data_extents(self, begin: int, end: int) -> list[tuple[int, int]]:
        return [(begin, end)] if begin < end else []

    def sync(self) -> None:
        self._io.sync(self._inode, str(self.path))

    def in_memory(self, position: int, length: int) -> bool:
        return True

    def pages_in_memory(self, position: int, length: int) -> bytes:
        return b"\1" * -(-(position % PAGESIZE + length) // PAGESIZE)

    def read_ahead(self, *, is_useful: bool) -> None:
        return

    def displaced(self) -> str | None:
        return None

    def close(self) -> None:
        """Nothing is lost by it."""


class _Lock:
    def __init__(self, locked: set[str], path: str) -> None:
        self._locked = locked
        self._path = path
        locked.add(path)

    def keep(self) -> bool:
        return False

    def release(self) -> None:
        self._locked.discard(self._path)


class SimIo:
    """The StoreIo of one process on its host's disk."""

    def __init__(self, disk: SimDisk, process: Process, threads: Threads) -> None:
        self.disk = disk
        self._process = process
        self._threads = threads

    # --- steps ------------------------------------------------------------------------------------------------

    def alive(self) -> None:
        if not self._process.is_alive:
            raise ProcessDead

    def step(self, tear: Callable[[Random], None] = lambda chance: None) -> None:
        """Before anything is changed; `tear` does a part of that, when it is the last step."""
        self.alive()
        disk = self.disk
        if disk.steps_left is not None:
            disk.steps_left -= 1
            if disk.steps_left < 0:
                disk.steps_left, end = None, disk.on_last_step
                assert end is not None
                tear(disk.chance)
                end()
                self.alive()

    def _take_time(self, seconds: float) -> None:
        fiber = self._threads.current
        if fiber is not None:
            fiber.sleep(seconds)
        else:
            process = self._process
            process.busy_until = max(process.busy_until, process.world.now) + seconds
        self.alive()

    def sync(self, inode: Inode, path: str) -> None:
        self.step()
        disk = self.disk
        taken = inode.begin_sync()
        if taken or not inode.has_length:
            self._take_time(disk.chance.expovariate(1 / disk.sync_s))
        if disk.syncs_left is not None and taken:
            disk.syncs_left -= 1
            if disk.syncs_left < 0:
                disk.failed_syncs += 1
                inode.fail_sync(taken, disk.chance)
                raise OSError(errno.EIO, "Input/output error", path)
        inode.end_sync(taken)

    # --- files ------------------------------------------------------------------------------------------------

    def open_file(
        self, path: Path, size: int, *, create: bool = False, writable: bool = True, room: int | None = None
    ) -> DataFile:
        self.alive()
        name = str(path)
        if create:
            self._create(path, name, size, lasting=room is None)
        inode = self.disk.names.get(name)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "No such file", name)
        if len(inode.live) != size:
            raise CorruptStore(path, None, f"length is {len(inode.live)}, must be {size}", "restore the file")
        return _SimFile(self, path, inode)

    def _create(self, path: Path, name: str, size: int, *, lasting: bool) -> None:
        if name in self.disk.names:
            raise FileExistsError(errno.EEXIST, "File exists", name)
        self._make_folder(path.parent, lasting=lasting)
        self._take_room(path, size)
        self.step()
        inode = Inode(0)
        self.disk.change("create", name, inode)
        self.step()
        inode.live = _zeros(size)
        if lasting:
            self.sync(inode, name)
            self.sync_folder(path.parent)

    def _take_room(self, path: Path, size: int) -> None:
        if self.disk.used + size > self.disk.capacity:
            raise StoreFull(path, size)
        self.disk.used += size

    def read_bytes(self, path: Path) -> bytes | None:
        self.alive()
        inode = self.disk.names.get(str(path))
        return None if inode is None else bytes(inode.live)

    def replace_bytes(self, path: Path, data: bytes, *, keep_previous: bool = True) -> None:
        self.make_folder(path.parent)
        before = self.read_bytes(path)
        if keep_previous and before is not None:
            self._write_beside(path.with_name(path.name + ".bak"), before)
        self._write_beside(path, data)
        self.sync_folder(path.parent)

    def _write_beside(self, path: Path, data: bytes) -> None:
        name = str(path)
        replaced = self.disk.names.get(name)
        self._take_room(path, len(data))
        self.step()
        inode = Inode(len(data))
        self.disk.change("create", name + ".tmp", inode)
        inode.write(0, data)
        try:
            self.sync(inode, name)
        except OSError:
            self.disk.used -= len(data)
            self.disk.change("unlink", name + ".tmp")
            raise
        self.step()
        self.disk.change("rename", name + ".tmp", name)
        if replaced is not None:
            self.disk.used -= len(replaced.live)

    def unlink(self, path: Path) -> None:
        inode = self.disk.names.get(str(path))
        if inode is not None:
            self.step()
            self.disk.used -= len(inode.live)
            self.disk.change("unlink", str(path))

    def rename(self, source: Path, target: Path, *, lasting: bool = True) -> None:
        self.step()
        self.disk.change("rename", str(source), str(target))
        if lasting:
            self.sync_folder(target.parent)

    # --- folders ----------------------------------------------------------------------------------------------

    def list_names(self, folder: Path) -> list[FolderEntry]:
        self.alive()
        prefix = str(folder) + "/"
        start = len(prefix)
        disk = self.disk
        found = [
            FolderEntry(path[start:], len(inode.live), False)
            for path, inode in disk.names.items()
            if path.startswith(prefix) and "/" not in path[start:]
        ]
        found += [
            FolderEntry(path[start:], 0, True)
            for path in disk.folders
            if path.startswith(prefix) and "/" not in path[start:]
        ]
        return sorted(found)

    def remove_folder(self, path: Path) -> None:
        if str(path) in self.disk.folders and not self.list_names(path):
            self.step()
            self.disk.change("remove folder", str(path))

    def make_folder(self, path: Path) -> None:
        self._make_folder(path, lasting=True)

    def _make_folder(self, path: Path, *, lasting: bool) -> None:
        name = str(path)
        if name in self.disk.folders:
            return
        self._make_folder(path.parent, lasting=lasting)
        self.step()
        self.disk.change("make folder", name)
        if lasting:
            self.sync_folder(path.parent)

    def sync_folder(self, path: Path) -> None:
        self.step()
        disk, name = self.disk, str(path)
        changes = disk.pending(name)
        if changes:
            self._take_time(disk.chance.expovariate(1 / disk.sync_s))
            if disk.syncs_left is not None:
                disk.syncs_left -= 1
                if disk.syncs_left < 0:
                    disk.failed_syncs += 1
                    raise NamesNotSynced(errno.EIO, "Input/output error", name)
        disk.names_are_sure(name, changes)

    def sync_all(
        self, files: Sequence[DataFile], folders: Sequence[Path], *, gently: Callable[[], bool] | None = None
    ) -> None:
        for file in files:
            file.sync()
        for folder in folders:
            if str(folder) in self.disk.folders:
                self.sync_folder(folder)

    # --- the rest ---------------------------------------------------------------------------------------------

    def lock(self, path: Path) -> LockHandle:
        self.make_folder(path.parent)
        name = str(path)
        if name in self.disk.locked:
            raise StoreLocked(path)
        inode = self.disk.names.get(name)
        if inode is None:
            self.step()
            inode = Inode(4)
            self.disk.change("create", name, inode)
        if len(inode.live) < 4:
            inode.live = bytearray(4)
        self.step()
        inode.write(0, b"lock")
        self.sync(inode, name)
        return _Lock(self.disk.locked, name)

    def disk_usage(self, path: Path) -> tuple[int, int]:
        self.alive()
        return self.disk.capacity, max(self.disk.capacity - self.disk.used, 0)

    def bring(self, path: Path, position: int, length: int) -> None:
        self.alive()

    def read_ahead(self, path: Path, position: int, length: int) -> None:
        self.alive()

    def modified_ms(self, path: Path) -> int:
        if str(path) not in self.disk.names:
            raise FileNotFoundError(errno.ENOENT, "No such file", str(path))
        return self._process.epoch_ms()

    def find(self, path: Path) -> FoundFile | None:
        self.alive()
        inode = self.disk.names.get(str(path))
        return None if inode is None else FoundFile(len(inode.live), 0)
