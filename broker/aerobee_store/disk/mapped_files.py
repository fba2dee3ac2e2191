"""A log as a row of mapped files of one fixed size, each named by its first byte's offset.

Touches  one folder; files named by 20 decimal digits. No sockets, no asyncio.

Invariants
- Names are multiples of the file size, in growing order; neighbours are one file size apart, unless
  files in the middle are missing, which `gaps` names.
- Every file has exactly the configured size.
- What lies in the files, and how far they are written, is the owner's business (commit log, consume queue).

Threads: one thread changes the row. Another may iterate over `files`, a tuple that is replaced and never
changed, and sync files out of it.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from aerobee_store.disk.io import DataFile, FolderEntry, StoreIo
from aerobee_store.disk.queue_files import OpenQueueFiles, QueueFile, QueueFileOwner
from aerobee_store.faults.errors import CorruptStore, WrongLength

__all__ = ["MappedFile", "MappedFileQueue", "file_name"]

_NAME_DIGITS = 20
_FOLDERS_ABOVE = 3  # of a queue: topic, consumequeue, store; each may have been made for it


def file_name(offset: int) -> str:
    """Name of the file whose first byte has `offset`."""
    return f"{offset:020d}"


class MappedFile:
    """One file of the row.

    `offset` is the offset of its first byte in the log, `end` one past its last byte; `view` its readable
    bytes, mapped whole; `data` the file itself. Files of queues may not be open: they have no `view` to keep.
    """

    __slots__ = ("data", "end", "offset", "view")

    def __init__(self, offset: int, data: DataFile) -> None:
        self.offset = offset
        self.end = offset + data.size
        self.data = data
        if not isinstance(data, QueueFile):
            self.view = data.view

    def __getattr__(self, name: str) -> memoryview:
        if name == "view":
            return self.data.view
        raise AttributeError(name)


class MappedFileQueue:
    """The row of files of one log: loading, finding, adding, cutting and deleting them."""

    def __init__(
        self,
        folder: Path,
        file_size: int,
        io: StoreIo,
        *,
        writable: bool = True,
        queue: tuple[QueueFileOwner, OpenQueueFiles] | None = None,
    ) -> None:
        """The row of a `queue`: files are opened by need and take their space as they grow, and a new one is durable
        only when its owner has synced it and what `new_names` returns."""
        # Fixed for life.
        self.folder = folder
        self.file_size = file_size
        self._io = io
        self._writable = writable
        self._queue = queue
        # Whether load() removed an empty file.
        self.dropped_empty = False
        # Replaced, never changed in place.
        self.files: tuple[MappedFile, ...] = ()
        # How many files were made whose names are not durable; counted up by create(), down by names_durable().
        self._new_made = 0
        self._new_durable = 0

    # --- loading ---------------------------------------------------------------------------------------

    def load(self) -> None:
        """Open every file of the folder.

        An empty file that is the last one is removed (a crash between creation and allocation leaves
        it). Raises CorruptStore for a name that is not an offset or a length that is not the configured
        one: both need an operator, and nothing has been changed yet.
        """
        entries = [e for e in self._io.list_names(self.folder) if not e.is_dir]
        if entries and entries[-1].size == 0 and self._writable:
            self._io.unlink(self.folder / entries.pop().name)
            self.dropped_empty = True
        offsets = [self._checked_offset(e.name, e.size, entries) for e in entries]
        opened = [
            MappedFile(offset, self._open(entry.name)) for offset, entry in zip(offsets, entries, strict=True)
        ]
        self.files = tuple(opened)

    def _checked_offset(self, name: str, size: int, entries: Sequence[FolderEntry]) -> int:
        if not (len(name) == _NAME_DIGITS and name.isascii() and name.isdecimal()):
            raise CorruptStore(
                self.folder / name, None, "foreign file in a data folder", "move it out of the store"
            )
        if size != self.file_size:
            path = self.folder / name
            alone = not any(entry.size == self.file_size for entry in entries)
            raise WrongLength(
                path, size, self.file_size, _way_out(path, self.file_size, alone), is_alone=alone
            )
        if int(name) % self.file_size:
            reason = f"name is not a multiple of the file size {self.file_size}"
            raise CorruptStore(
                self.folder / name, None, reason, "configure the size the store was written with"
            )
        return int(name)

    def _open(self, name: str) -> DataFile:
        if self._queue is not None:
            return self._queue_file(name, *self._queue)
        return self._io.open_file(self.folder / name, self.file_size, writable=self._writable)

    def _queue_file(self, name: str, owner: QueueFileOwner, files: OpenQueueFiles) -> QueueFile:
        return QueueFile(self.folder, name, self.file_size, owner, files, writable=self._writable)

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """Missing stretches between files as (first offset, one past the last)."""
        files = self.files
        return [(a.end, b.offset) for a, b in pairwise(files) if a.end != b.offset]

    # --- finding ---------------------------------------------------------------------------------------

    @property
    def min_offset(self) -> int:
        """Offset of the first byte of the first file; 0 when there is none."""
        return self.files[0].offset if self.files else 0

    @property
    def end_offset(self) -> int:
        """One past the last byte of the last file; 0 when there is none."""
        return self.files[-1].end if self.files else 0

    def find(self, offset: int) -> MappedFile | None:
        """The file that covers `offset`: a computed guess, and a scan when files are missing."""
        files = self.files
        if not files:
            return None
        guess = (offset - files[0].offset) // self.file_size
        if 0 <= guess < len(files):
            file = files[guess]
            if file.offset <= offset < file.end:
                return file
        if not files[0].offset <= offset < files[-1].end:
            return None
        for file in files:
            if file.offset <= offset < file.end:
                return file
        return None

    def of_all(self, offsets: Sequence[int]) -> list[MappedFile] | None:
        """The files that cover these offsets, which ascend, each once; None where one of them is in no file."""
        found: list[MappedFile] = []
        end = -1
        for offset in offsets:
            if offset >= end:
                file = self.find(offset)
                if file is None:
                    return None
                found.append(file)
                end = file.end
        return found

    # --- changing --------------------------------------------------------------------------------------

    def create(self, offset: int, room: int = 0) -> MappedFile:
        """Add the file that starts at `offset`, after all others. StoreFull when there is no room.

        Of a queue, `room` is how much of it is going to be written at once.
        """
        if self._queue is None:
            return self.adopt(self.prepare(offset), offset)
        if self.files and self._new_made != self._new_durable:
            # A crash must not leave it without its length before another file. As a rule it was synced long ago: to do
            # it again took 3 to 12 ms of the event loop, once in 300,000 messages.
            self.files[-1].data.sync()
        made = self._queue_file(file_name(offset), *self._queue)
        self._queue[1].create(made, room)
        file = self.adopt(made, offset)
        self._new_made += 1  # last: who counts it finds it in `files`
        return file

    def prepare(self, offset: int) -> DataFile:
        """Create the file for `offset` of a log without adding it; may run in another thread."""
        assert offset % self.file_size == 0
        return self._io.open_file(self.folder / file_name(offset), self.file_size, create=True)

    def new_names(self) -> tuple[list[Path], int]:
        """The folders whose sync makes the names of new files durable, none when they are, and what to tell
        names_durable() then. To be synced after the files."""
        made = self._new_made
        if made == self._new_durable:
            return [], made
        return [self.folder, *list(self.folder.parents)[:_FOLDERS_ABOVE]], made

    def names_durable(self, made: int) -> None:
        """The folders that new_names() gave have been synced; `made` is what it gave with them."""
        self._new_durable = made

    def adopt(self, data: DataFile, offset: int) -> MappedFile:
        """Add a file made by `prepare(offset)`."""
        assert not self.files or offset >= self.files[-1].end
        file = MappedFile(offset, data)
        self.files = (*self.files, file)
        return file

    def truncate(self, offset: int) -> None:
        """Forget everything from `offset` on: later files go, the rest of the file it lies in becomes zero.

        Zeroed bytes are durable on return, so that what was cut cannot come back behind later writes. Where nothing
        had to be zeroed in a file of a queue, nothing is synced: an earlier run may have zeroed it, and whoever cuts
        the queues of such a run syncs them all, at once.
        """
        kept = tuple(f for f in self.files if f.offset <= offset)
        dropped = self.files[len(kept) :]
        self.files = kept
        for file in reversed(dropped):
            self._remove(file)
        if kept and kept[-1].end > offset:
            last = kept[-1]
            if last.data.zero(offset - last.offset, last.end - offset) or self._queue is None:
                last.data.sync()
        if dropped:
            self._io.sync_folder(self.folder)

    def drop_last(self) -> None:
        """Delete the last file."""
        *kept, last = self.files
        self.files = tuple(kept)
        self._remove(last)
        self._io.sync_folder(self.folder)

    def release_first(self) -> MappedFile:
        """Take the first file out of the row; closing and deleting it is the caller's business."""
        first, *kept = self.files
        self.files = tuple(kept)
        return first

    def destroy(self) -> None:
        """Delete every file, and the folder if nothing else is in it."""
        files, self.files = self.files, ()
        self._new_durable = self._new_made
        for file in reversed(files):
            self._remove(file)
        self._io.remove_folder(self.folder)

    def _remove(self, file: MappedFile) -> None:
        file.data.close()
        self._io.unlink(file.data.path)

    def sync(self) -> None:
        """Make all files durable. OSError is final for the store."""
        for file in self.files:
            file.data.sync()

    def close(self) -> None:
        """Close every file; held slices stay readable."""
        files, self.files = self.files, ()
        for file in files:
            file.data.close()


def _way_out(path: Path, file_size: int, is_alone: bool) -> str:
    """For a file of another length. One that stands alone may be right, and the settings wrong; among others of the
    right length it is the file."""
    mend = (
        f"bring it back from a copy; without one `truncate -s {file_size} {path}` gives it its length, and the next "
        "start says what is missing"
    )
    if not is_alone:
        return f"the other files have the length that is configured, so this one was cut or not copied whole: {mend}"
    return f"configure the size the store was written with; if it is configured, the file was cut: {mend}"
