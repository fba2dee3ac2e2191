"""A disk in memory that knows what a power failure may leave of it, and gives each such disk.

Every call of the store becomes the steps that DiskIo takes for it (create, allocate, write, sync, rename, ...), kept
in `CrashIo.steps`, so that a run can be played again up to any step. `Disk` says what is certain then:

    pages       4 KiB; certain when their file was synced after the last write to them. Else what is found may be the
                old page, the new one, one in between, one torn between sectors of 512 bytes or between any two
                bytes, and garbage or another file's bytes in sectors that were nothing but zero before.
    lengths     of a new file; certain after its first sync, until then nothing or everything.
    names       certain when their folder was synced; until then the first few of the changes to a folder may be there.

A sector keeps its old bytes or gets its new ones: no log survives a disk that destroys what lies beside a write.
"""

import errno
import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from mmap import PAGESIZE
from pathlib import Path
from random import Random
from typing import Any

from aerobee_store.disk.io import Buffer, DataFile, FolderEntry, FoundFile, LockHandle
from aerobee_store.faults.errors import CorruptStore, StoreLocked

__all__ = ["PAGE_ANSWERS", "CrashIo", "Disk", "Step", "Survival", "survivals"]

PAGE_SIZE = 4096
SECTOR_SIZE = 512
# Contents of a page since its last sync that are kept, to choose from.
VERSIONS_MAX = 6
ROOT_FOLDER = "/"

# (what, ...); what a step means is in Disk.apply().
Step = tuple[Any, ...]


class _Inode:
    """The bytes of one file: as processes see them, as they are on disk, and in between."""

    __slots__ = ("dirty", "durable", "length_is_durable", "live")

    def __init__(self, content: bytes = b"") -> None:
        self.live = bytearray(content)
        self.durable = bytearray(content)
        self.length_is_durable = False
        # Page number to its contents after each write since the last sync.
        self.dirty: dict[int, list[bytes]] = {}

    def copy(self) -> "_Inode":
        twin = _Inode()
        twin.live, twin.durable = bytearray(self.live), bytearray(self.durable)
        twin.length_is_durable = self.length_is_durable
        twin.dirty = {page: list(versions) for page, versions in self.dirty.items()}
        return twin


class Survival:
    """One choice of what is left: an answer for every question of Disk.questions(), in order.

    0 is what was durable, 1 what was written last; for pages 2.. are the mixtures that `random` makes.
    """

    def __init__(self, answers: tuple[int, ...], random: Random) -> None:
        self.answers = answers
        self.random = random


class Disk:
    """Files, names, and what of them is certain."""

    def __init__(self) -> None:
        self._inodes: dict[int, _Inode] = {}
        self.names: dict[str, int] = {}
        self._durable_names: dict[str, int] = {}
        self.folders: set[str] = {ROOT_FOLDER}
        self._durable_folders: set[str] = {ROOT_FOLDER}
        # Changes of names since the sync of their folder, per folder, in order.
        self._pending: dict[str, list[Step]] = {}
        self._next = 0

    @classmethod
    def holding(cls, files: dict[str, bytes]) -> "Disk":
        """A disk with these files, all certain."""
        disk = cls()
        for number, (path, content) in enumerate(sorted(files.items()), 1):
            disk._inodes[number] = inode = _Inode(content)
            inode.length_is_durable = True
            disk.names[path] = number
            folder = _parent(path)
            while folder not in disk.folders:
                disk.folders.add(folder)
                folder = _parent(folder)
        disk._durable_names, disk._durable_folders = dict(disk.names), set(disk.folders)
        disk._next = len(files)
        return disk

    # --- reading ---------------------------------------------------------------------------------------

    def content(self, path: str) -> bytearray | None:
        """The bytes of a file as processes see them; None if there is no such file."""
        number = self.names.get(path)
        return None if number is None else self._inodes[number].live

    def live_of(self, number: int) -> bytearray:
        """The bytes of a file by its number."""
        return self._inodes[number].live

    def path_of(self, number: int) -> str:
        """The name of a file by its number; empty when it has none."""
        return next((path for path, named in self.names.items() if named == number), "")

    def files(self) -> dict[str, bytes]:
        """Every file there is, as processes see it."""
        return {path: bytes(self._inodes[number].live) for path, number in sorted(self.names.items())}

    def new_number(self) -> int:
        """A number for a new file."""
        self._next += 1
        return self._next

    def digest(self) -> bytes:
        """Equal for equal disks; what is not certain counts too."""
        found = hashlib.blake2b(digest_size=12)
        for path, number in sorted(self.names.items()):
            inode = self._inodes[number]
            found.update(b"%s\0%d\0" % (path.encode(), len(inode.live)))
            found.update(inode.live)
            if inode.dirty:
                found.update(inode.durable)
        found.update(repr((sorted(self.folders), self._pending)).encode())
        return found.digest()

    # --- steps -----------------------------------------------------------------------------------------

    def apply(self, step: Step) -> None:
        """Take one step, as it was taken when it was recorded."""
        match step:
            case ("write", int(number), int(position), bytes(data)):
                self._write(number, position, data)
            case ("sync", int(number)):
                self._sync(number)
            case ("allocate", int(number), int(size)):
                inode = self._inodes[number]
                inode.live, inode.durable = bytearray(size), bytearray(size)
            case ("sync folder", str(folder)):
                for change in self._pending.pop(folder, ()):
                    _change_names(self._durable_names, self._durable_folders, change)
            case (_, str(path), *_):
                if step[0] == "create":
                    number = int(step[2])
                    self._inodes[number] = _Inode()
                    self._next = max(self._next, number)
                _change_names(self.names, self.folders, step)
                self._pending.setdefault(_parent(path), []).append(step)

    def _write(self, number: int, position: int, data: bytes) -> None:
        inode = self._inodes[number]
        end = position + len(data)
        inode.live[position:end] = data
        for page in range(position // PAGE_SIZE, -(-end // PAGE_SIZE)):
            versions = inode.dirty.setdefault(page, [])
            if len(versions) == VERSIONS_MAX:
                del versions[VERSIONS_MAX // 2]
            versions.append(bytes(inode.live[page * PAGE_SIZE : (page + 1) * PAGE_SIZE]))

    def _sync(self, number: int) -> None:
        inode = self._inodes[number]
        for page, versions in inode.dirty.items():
            inode.durable[page * PAGE_SIZE : (page + 1) * PAGE_SIZE] = versions[-1]
        inode.dirty = {}
        inode.length_is_durable = True

    # --- what a failure leaves -------------------------------------------------------------------------

    def kill(self) -> "Disk":
        """The disk after the process was killed: everything written is there, and is no more certain."""
        twin = Disk()
        twin._inodes = {number: inode.copy() for number, inode in self._inodes.items()}
        twin.names, twin._durable_names = dict(self.names), dict(self._durable_names)
        twin.folders, twin._durable_folders = set(self.folders), set(self._durable_folders)
        twin._pending = {folder: list(changes) for folder, changes in self._pending.items()}
        twin._next = self._next
        return twin

    def questions(self) -> list[int]:
        """How many plain answers there are for everything that is not certain: names, lengths, pages."""
        found = [len(self._pending[folder]) + 1 for folder in sorted(self._pending)]
        for _, inode in self._doubtful():
            found += [2] * (not inode.length_is_durable) + [2] * len(inode.dirty)
        return found

    def _doubtful(self) -> Iterator[tuple[int, _Inode]]:
        for number, inode in sorted(self._inodes.items()):
            if inode.dirty or not inode.length_is_durable:
                yield number, inode

    def crash(self, survival: Survival) -> "Disk":
        """The disk after a power failure that leaves this."""
        answers = iter(survival.answers)
        left = Disk()
        left.names, left.folders = dict(self._durable_names), set(self._durable_folders)
        for folder in sorted(self._pending):
            changes = self._pending[folder]
            for change in changes[: min(next(answers), len(changes))]:
                _change_names(left.names, left.folders, change)
        contents = {}
        for number, inode in self._doubtful():
            length_is_there = inode.length_is_durable or next(answers) > 0
            content = bytearray(inode.durable)
            for page, versions in sorted(inode.dirty.items()):
                at = slice(page * PAGE_SIZE, (page + 1) * PAGE_SIZE)
                content[at] = self._page(bytes(content[at]), versions, next(answers), survival.random)
            contents[number] = bytes(content) if length_is_there else b""
        left._keep(self._inodes, contents)
        return left

    def _keep(self, inodes: dict[int, _Inode], contents: dict[int, bytes]) -> None:
        """Everything that has a name and a folder is certain now."""
        self.folders = {folder for folder in self.folders if _is_reachable(folder, self.folders)}
        self.names = {path: n for path, n in self.names.items() if _parent(path) in self.folders}
        for number in self.names.values():
            content = contents.get(number)
            inode = _Inode(bytes(inodes[number].durable) if content is None else content)
            inode.length_is_durable = True
            self._inodes[number] = inode
        self._durable_names, self._durable_folders = dict(self.names), set(self.folders)
        self._next = max(self.names.values(), default=0)

    def _page(self, old: bytes, versions: list[bytes], answer: int, random: Random) -> bytes:
        if answer < 2:
            return (old, versions[-1])[answer]
        states = [old, *versions]
        if answer == 2:
            return random.choice(states)
        if answer == 3:
            at = random.randrange(len(states) - 1)
            cut = random.randrange(len(old) + 1)
            return states[at + 1][:cut] + states[at][cut:]
        sectors = [slice(at, at + SECTOR_SIZE) for at in range(0, len(old), SECTOR_SIZE)]
        mixed = [random.choice(states)[sector] for sector in sectors]
        if answer > 4:
            foreign = self._foreign(len(old), random) if answer == 5 else random.randbytes(len(old))
            for at, sector in enumerate(sectors):
                untouched = not any(old[sector])
                if untouched and any(versions[-1][sector]) and random.random() < 0.5:
                    mixed[at] = foreign[sector]
        return b"".join(mixed)

    def _foreign(self, size: int, random: Random) -> bytes:
        """A page's worth of what some file holds or held."""
        source = bytes(self._inodes[random.choice(sorted(self._inodes))].durable)
        pages = max(1, len(source) // PAGE_SIZE)
        at = random.randrange(pages) * PAGE_SIZE
        return source[at : at + size].ljust(size, b"\0")


# Old, new, in between, torn between bytes, torn between sectors, another file's bytes, garbage.
PAGE_ANSWERS = 7


def survivals(disk: Disk, random: Random, *, few: int, samples: int) -> Iterator[Survival]:
    """All plain choices when there are at most `few`; and `samples` random ones, mixtures included."""
    questions = disk.questions()
    count = 1
    for options in questions:
        count *= options
    if count <= few:
        for answers in product(*(range(options) for options in questions)):
            yield Survival(answers, random)
        if count == 1:
            return
    for _ in range(samples):
        plain = random.random() < 0.3
        yield Survival(tuple(_answer(options, plain, random) for options in questions), random)


def _answer(options: int, plain: bool, random: Random) -> int:
    if options != 2 or plain:
        return random.randrange(options)
    return random.choice((0, 0, 1, 1, 2, 3, 4, 5, 6))


def _change_names(names: dict[str, int], folders: set[str], step: Step) -> None:
    match step:
        case ("create", str(path), int(number)):
            names[path] = number
        case ("unlink", str(path)):
            names.pop(path, None)
        case ("rename", str(path), str(target)):
            if path in names:
                names[target] = names.pop(path)
        case ("make folder", str(path)):
            folders.add(path)
        case ("remove folder", str(path)):
            folders.discard(path)
        case _:
            raise AssertionError(step)


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or ROOT_FOLDER


def _is_reachable(folder: str, folders: set[str]) -> bool:
    while folder != ROOT_FOLDER:
        if folder not in folders:
            return False
        folder = _parent(folder)
    return True


class CrashFile:
    """A data file of a CrashIo."""

    def __init__(self, io: "CrashIo", path: Path, number: int) -> None:
        self.path = path
        self.view = memoryview(io.disk.live_of(number)).toreadonly()
        self.size = len(self.view)
        self._io = io
        self._number = number

    def write(self, position: int, data: Buffer) -> None:
        assert 0 <= position <= position + len(data) <= self.size
        self._io.take(("write", self._number, position, bytes(data)))

    def zero(self, position: int, length: int) -> bool:
        changed = any(self.view[position : position + length])
        if changed:
            self.write(position, bytes(length))
        return changed

    def read(self, position: int, length: int) -> bytes:
        return bytes(self.view[position : position + length])

    def window(self) -> None:
        return None

    def data_extents(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Pages that hold something, as a file system with holes tells it."""
        found = []
        for at in range(begin - begin % PAGE_SIZE, end, PAGE_SIZE):
            if any(self.view[at : at + PAGE_SIZE]):
                found.append((max(at, begin), min(at + PAGE_SIZE, end)))
        return found

    def in_memory(self, position: int, length: int) -> bool:
        return True

    def pages_in_memory(self, position: int, length: int) -> bytes:
        return b"\1" * -(-(position % PAGESIZE + length) // PAGESIZE)

    def read_ahead(self, *, is_useful: bool) -> None:
        return

    def displaced(self) -> str | None:
        return None

    def sync(self) -> None:
        self._io.take(("sync", self._number))

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


class CrashIo:
    """A StoreIo on a Disk that takes the steps of DiskIo, and keeps them in `steps`."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.steps: list[Step] = []
        # Called before each step with its number; for tests that stop a run.
        self.before_step: Callable[[int], None] | None = None
        self._locked: set[str] = set()

    def take(self, step: Step) -> None:
        """One step on the disk."""
        if self.before_step is not None:
            self.before_step(len(self.steps))
        self.steps.append(step)
        self.disk.apply(step)

    def open_file(
        self, path: Path, size: int, *, create: bool = False, writable: bool = True, room: int | None = None
    ) -> CrashFile:
        name = str(path)
        if create:
            self._create(path, name, size, lasting=room is None)
        number = self.disk.names.get(name)
        if number is None:
            raise FileNotFoundError(errno.ENOENT, "No such file", name)
        found = len(self.disk.live_of(number))
        if found != size:
            raise CorruptStore(path, None, f"length is {found}, must be {size}", "restore the file")
        return CrashFile(self, path, number)

    def _create(self, path: Path, name: str, size: int, *, lasting: bool) -> None:
        if name in self.disk.names:
            raise FileExistsError(errno.EEXIST, "File exists", name)
        self._make_folder(path.parent, lasting=lasting)
        number = self.disk.new_number()
        self.take(("create", name, number))
        self.take(("allocate", number, size))
        if lasting:
            self.take(("sync", number))
            self.sync_folder(path.parent)

    def read_bytes(self, path: Path) -> bytes | None:
        content = self.disk.content(str(path))
        return None if content is None else bytes(content)

    def replace_bytes(self, path: Path, data: bytes, *, keep_previous: bool = True) -> None:
        self.make_folder(path.parent)
        if path.name == "abort":
            # The process id would make runs differ; what stands behind it says whose store it is.
            data = b"4711" + data.lstrip(b"0123456789")
        before = self.read_bytes(path)
        if keep_previous and before is not None:
            self._write_beside(path.with_name(path.name + ".bak"), before)
        self._write_beside(path, data)
        self.sync_folder(path.parent)

    def _write_beside(self, path: Path, data: bytes) -> None:
        name = str(path)
        number = self.disk.new_number()
        # O_TRUNC of one that is left over: its old bytes may be gone or not, nobody looks at them.
        self.take(("create", name + ".tmp", number))
        self.take(("allocate", number, len(data)))
        if data:
            self.take(("write", number, 0, data))
        self.take(("sync", number))
        self.take(("rename", name + ".tmp", name))

    def list_names(self, folder: Path) -> list[FolderEntry]:
        prefix = str(folder) + "/"
        start = len(prefix)
        found = [
            FolderEntry(path[start:], len(self.disk.live_of(number)), False)
            for path, number in self.disk.names.items()
            if path.startswith(prefix) and "/" not in path[start:]
        ]
        found += [
            FolderEntry(path[start:], 0, True)
            for path in self.disk.folders
            if path.startswith(prefix) and "/" not in path[start:]
        ]
        return sorted(found)

    def unlink(self, path: Path) -> None:
        if str(path) in self.disk.names:
            self.take(("unlink", str(path)))

    def remove_folder(self, path: Path) -> None:
        name = str(path)
        if name in self.disk.folders and not self.list_names(path):
            self.take(("remove folder", name))

    def make_folder(self, path: Path) -> None:
        self._make_folder(path, lasting=True)

    def _make_folder(self, path: Path, *, lasting: bool) -> None:
        name = str(path)
        if name in self.disk.folders:
            return
        self._make_folder(path.parent, lasting=lasting)
        self.take(("make folder", name))
        if lasting:
            self.sync_folder(path.parent)

    def rename(self, source: Path, target: Path, *, lasting: bool = True) -> None:
        self.take(("rename", str(source), str(target)))
        if lasting:
            self.sync_folder(target.parent)

    def sync_folder(self, path: Path) -> None:
        self.take(("sync folder", str(path)))

    def sync_all(
        self, files: Sequence[DataFile], folders: Sequence[Path], *, gently: Callable[[], bool] | None = None
    ) -> None:
        for file in files:
            file.sync()
        for folder in folders:
            self.sync_folder(folder)

    def lock(self, path: Path) -> LockHandle:
        name = str(path)
        self.make_folder(path.parent)
        if name in self._locked:
            raise StoreLocked(path)
        if name not in self.disk.names:
            number = self.disk.new_number()
            self.take(("create", name, number))
            self.take(("allocate", number, 4))
        number = self.disk.names[name]
        if len(self.disk.live_of(number)) < 4:
            self.take(("allocate", number, 4))
        self.take(("write", number, 0, b"lock"))
        self.take(("sync", number))
        return _Lock(self._locked, name)

    def disk_usage(self, path: Path) -> tuple[int, int]:
        return 1 << 40, 1 << 39

    def bring(self, path: Path, position: int, length: int) -> None:
        pass

    def read_ahead(self, path: Path, position: int, length: int) -> None:
        pass

    def modified_ms(self, path: Path) -> int:
        if str(path) not in self.disk.names:
            raise FileNotFoundError(errno.ENOENT, "No such file", str(path))
        return 0

    def find(self, path: Path) -> FoundFile | None:
        number = self.disk.names.get(str(path))
        return None if number is None else FoundFile(len(self.disk.live_of(number)), 0)
