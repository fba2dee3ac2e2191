"""A disk in memory that records what was written and synced, and can be crashed.

What a power failure leaves of it is a choice (`Survivors`): synced bytes always; of pages (4 KiB) that were
written and not synced each survives, is lost, or is torn; a file that was removed may be back if its
folder was not synced. `crash()` gives the disk as the next start finds it. Faults: `fail_sync(n)` makes the
n-th sync from now fail, `capacity` bounds the bytes that can be allocated, `stop_after(n)` is a power failure
in the middle of things.
"""

import errno
import threading
from collections.abc import Callable, Sequence
from mmap import PAGESIZE
from pathlib import Path
from random import Random

from aerobee_store.disk.io import Buffer, DataFile, FolderEntry, FoundFile, LockHandle
from aerobee_store.faults.errors import CorruptStore, StoreFull, StoreLocked

PAGE_SIZE = 4096


class PowerFailure(BaseException):
    """The machine is off: nothing may handle this."""


class _Content:
    """The bytes of one file: as processes see them, and as the disk has them."""

    def __init__(self, size: int) -> None:
        self.live = bytearray(size)
        self.durable = bytearray(size)
        self.dirty: set[int] = set()  # page numbers written since the last sync


class MemoryFile:
    """A data file of a MemoryIo."""

    def __init__(self, disk: "MemoryIo", path: Path, content: _Content) -> None:
        self.path = path
        self.size = len(content.live)
        self.view = memoryview(content.live).toreadonly()
        self._disk = disk
        self._content = content
        self.closed = False

    def write(self, position: int, data: Buffer) -> None:
        with self._disk.changing:
            end = position + len(data)
            assert not self.closed
            assert 0 <= position <= end <= self.size
            self._disk.count()
            self._content.live[position:end] = data
            self._content.dirty.update(range(position // PAGE_SIZE, -(-end // PAGE_SIZE)))

    def zero(self, position: int, length: int) -> bool:
        changed = any(self._content.live[position : position + length])
        if changed:
            self.write(position, bytes(length))
        return changed

    def read(self, position: int, length: int) -> bytes:
        return bytes(self.view[position : position + length])

    def window(self) -> None:
        return None

    def data_extents(self, begin: int, end: int) -> list[tuple[int, int]]:
        return [(begin, end)] if begin < end else []

    def in_memory(self, position: int, length: int) -> bool:
        return True

    def pages_in_memory(self, position: int, length: int) -> bytes:
        pages = range(position // PAGESIZE, -(-(position + length) // PAGESIZE))
        return bytes(self.in_memory(page * PAGESIZE, PAGESIZE) for page in pages)

    def read_ahead(self, *, is_useful: bool) -> None:
        return

    def displaced(self) -> str | None:
        return None

    def sync(self) -> None:
        with self._disk.changing:
            if self.closed:
                return
            self._disk.count_sync(self.path)
            content = self._content
            for page in content.dirty:
                at = slice(page * PAGE_SIZE, (page + 1) * PAGE_SIZE)
                content.durable[at] = content.live[at]
            content.dirty.clear()

    def close(self) -> None:
        self.closed = True


class _Lock:
    def __init__(self, held: set[Path], path: Path) -> None:
        self._held = held
        self._path = path
        held.add(path)

    def keep(self) -> bool:
        return False

    def release(self) -> None:
        self._held.discard(self._path)


class Survivors:
    """Which unsynced pages and names a power failure leaves; by default none at all."""

    def page(self, path: Path, page: int, before: bytes, after: bytes) -> bytes:
        """What is found of a page that was `before` on disk and was to become `after`."""
        return before

    def removed(self, path: Path) -> bool:
        """Whether a file stays removed whose folder was not synced since."""
        return True


class RandomSurvivors(Survivors):
    """Each page survives, is lost or is torn in the middle; each removal holds or not."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def page(self, path: Path, page: int, before: bytes, after: bytes) -> bytes:
        kind = self._random.random()
        if kind < 0.4:
            return after
        if kind < 0.8:
            return before
        cut = self._random.randrange(len(after) + 1)
        return after[:cut] + before[cut:]

    def removed(self, path: Path) -> bool:
        return self._random.random() < 0.5


class MemoryIo:
    """A StoreIo whose files live in memory."""

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        # Around each change, and what looks at all of it: several threads may work for a store.
        self.changing = threading.RLock()
        # Counted up by every write, so that a test can stop at any of them.
        self.operations = 0
        self.syncs = 0
        # File times in ms since the epoch, for tests that want them.
        self.modified: dict[Path, int] = {}
        self._files: dict[Path, _Content] = {}
        self._removed: dict[Path, _Content] = {}  # since the last sync of their folder
        self._locked: set[Path] = set()
        self._failing_sync: int | None = None
        self._last_operation: int | None = None

    # --- faults ----------------------------------------------------------------------------------------

    def fail_sync(self, number: int) -> None:
        """Let the `number`-th sync from now on (1 is the next) and every one after it fail."""
        self._failing_sync = self.syncs + number

    def stop_after(self, count: int) -> None:
        """Let `count` more operations happen; the one after them is a PowerFailure."""
        self._last_operation = self.operations + count

    def count(self) -> None:
        """One more operation is about to happen."""
        if self._last_operation is not None and self.operations >= self._last_operation:
            raise PowerFailure
        self.operations += 1

    def count_sync(self, path: Path) -> None:
        """One more sync; OSError if this one is to fail."""
        self.count()
        self.syncs += 1
        if self._failing_sync is not None and self.syncs >= self._failing_sync:
            raise OSError(errno.EIO, "Input/output error", str(path))

    def crash(self, survivors: Survivors | None = None) -> "MemoryIo":
        """The disk after a power failure now."""
        with self.changing:
            chosen = survivors or Survivors()
            after = MemoryIo(self.capacity)
            back = {path: c for path, c in self._removed.items() if not chosen.removed(path)}
            for path, content in {**back, **self._files}.items():
                left = _Content(len(content.live))
                left.durable[:] = content.durable
                for page in sorted(content.dirty):
                    at = slice(page * PAGE_SIZE, (page + 1) * PAGE_SIZE)
                    left.durable[at] = chosen.page(
                        path, page, bytes(content.durable[at]), bytes(content.live[at])
                    )
                left.live[:] = left.durable
                after._files[path] = left
            return after

    def kill(self) -> "MemoryIo":
        """The disk after the process was killed: everything written is there."""
        with self.changing:
            after = MemoryIo(self.capacity)
            for path, content in self._files.items():
                kept = _Content(len(content.live))
                kept.live[:], kept.durable[:] = content.live, content.durable
                kept.dirty = set(content.dirty)
                after._files[path] = kept
            return after

    def used(self) -> int:
        """Bytes allocated."""
        return sum(len(content.live) for content in self._files.values())

    def paths(self) -> list[Path]:
        """Every file there is."""
        return sorted(self._files)

    def flip(self, path: Path, position: int, bit: int = 0) -> None:
        """Rot: change one bit, on disk and in memory."""
        content = self._files[path]
        content.live[position] ^= 1 << bit
        content.durable[position] ^= 1 << bit

    # --- StoreIo ---------------------------------------------------------------------------------------

    def open_file(
        self, path: Path, size: int, *, create: bool = False, writable: bool = True, room: int | None = None
    ) -> MemoryFile:
        with self.changing:
            if create:
                if path in self._files:
                    raise FileExistsError(errno.EEXIST, "File exists", str(path))
                if self.capacity is not None and self.used() + size > self.capacity:
                    raise StoreFull(path, size)
                self.count()
                self._files[path] = _Content(size)
            content = self._files.get(path)
            if content is None:
                raise FileNotFoundError(errno.ENOENT, "No such file", str(path))
            if len(content.live) != size:
                raise CorruptStore(path, None, f"length is {len(content.live)}, must be {size}")
            return MemoryFile(self, path, content)

    def read_bytes(self, path: Path) -> bytes | None:
        content = self._files.get(path)
        return None if content is None else bytes(content.live)

    def replace_bytes(self, path: Path, data: bytes, *, keep_previous: bool = True) -> None:
        with self.changing:
            if self.capacity is not None and self.used() + len(data) > self.capacity:
                raise StoreFull(path, len(data))
            before = self._files.get(path)
            if keep_previous and before is not None:
                self._files[path.with_name(path.name + ".bak")] = before
            self.count_sync(path)
            fresh = _Content(len(data))
            fresh.live[:] = fresh.durable[:] = data
            self._files[path] = fresh

    def list_names(self, folder: Path) -> list[FolderEntry]:
        found: dict[str, FolderEntry] = {}
        for path, content in list(self._files.items()):
            if folder not in path.parents:
                continue
            name = path.relative_to(folder).parts[0]
            is_file = path.parent == folder
            found[name] = FolderEntry(name, len(content.live) if is_file else 0, not is_file)
        return sorted(found.values())

    def unlink(self, path: Path) -> None:
        with self.changing:
            if path in self._files:
                self.count()
                self._removed[path] = self._files.pop(path)

    def remove_folder(self, path: Path) -> None:
        """Folders are there as long as files are in them."""

    def make_folder(self, path: Path) -> None:
        """Folders are there as soon as files are in them."""

    def rename(self, source: Path, target: Path, *, lasting: bool = True) -> None:
        with self.changing:
            self.count()
            if source not in self._files:
                raise FileNotFoundError(errno.ENOENT, "No such file", str(source))
            self._files[target] = self._files.pop(source)

    def sync_folder(self, path: Path) -> None:
        with self.changing:
            self.count_sync(path)
            for gone in [p for p in self._removed if p.parent == path]:
                del self._removed[gone]

    def sync_all(
        self, files: Sequence[DataFile], folders: Sequence[Path], *, gently: Callable[[], bool] | None = None
    ) -> None:
        for file in files:
            file.sync()
        for folder in folders:
            self.sync_folder(folder)

    def lock(self, path: Path) -> LockHandle:
        if path in self._locked:
            raise StoreLocked(path)
        self._files.setdefault(path, _Content(4))
        return _Lock(self._locked, path)

    def disk_usage(self, path: Path) -> tuple[int, int]:
        total = self.capacity if self.capacity is not None else 1 << 40
        return total, total - self.used()

    def bring(self, path: Path, position: int, length: int) -> None:
        pass

    def read_ahead(self, path: Path, position: int, length: int) -> None:
        pass

    def modified_ms(self, path: Path) -> int:
        if path not in self._files:
            raise FileNotFoundError(errno.ENOENT, "No such file", str(path))
        return self.modified.get(path, 0)

    def find(self, path: Path) -> FoundFile | None:
        content = self._files.get(path)
        return None if content is None else FoundFile(len(content.live), 0)
