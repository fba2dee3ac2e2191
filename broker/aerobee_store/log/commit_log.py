"""Commit log: all messages of all topics, one after the other, in files of one size.

Touches  the commit-log folder and nothing else. No sockets, no asyncio, no clock.
Record   drawn in aerobee_proto.records. A record never spans files: when the next one does not fit with 8
         bytes to spare, a blank record (size i32, magic 0xCBD43194) fills the file and the next file starts.

Invariants
- flushed_offset <= end_offset; both lie in the last file or at its end, and only grow while running.
- The record at physical offset p carries p in its header.
- Bytes from end_offset to the end of its file are zero.

Threads: one thread appends and reads. `flush()` may run in another one; they share `end_offset` (written by
the appender once per write, after the bytes), the `files` tuple (replaced, never changed) and
`flushed_offset` (written by the flusher alone after recovery). `prepare_next()` may run in a third; it hands
the new file over under a lock, for which `roll()` waits as long as the allocation takes at most.
"""

import threading
from pathlib import Path
from typing import Final, Protocol

from aerobee_proto.records import BLANK_MAGIC, SIZE_AND_MAGIC
from aerobee_store.disk.io import DataFile, StoreIo, is_zero
from aerobee_store.disk.mapped_files import MappedFile, MappedFileQueue, file_name
from aerobee_store.faults import failpoints
from aerobee_store.faults.errors import CorruptStore
from aerobee_store.records.record_scan import Blank, RecordFault, ScannedRecord, scan_record

__all__ = ["BLANK_SIZE_MIN", "CommitLog", "OldRecords", "Prover", "Trust"]

_NEVER: Final = 1 << 62

Trust = tuple[
    int,  # physical offset from which on records need no proof
    int,  # and from which on each has to have the whole-record checksum
]
OldRecords = tuple[
    bytes,  # their topic
    int,  # queue id
    int,  # queue offset of the first of them
    Trust,
]


class Prover(Protocol):
    """Proves records quickly. A no says nothing."""

    def is_sound(
        self, view: memoryview, place: tuple[int, int], physical_offset: int, topic: bytes, is_sealed: bool
    ) -> bool:
        """Whether the record in the view of a file, at a position and of a size, is whole and sound, of this topic, and
        was written at this physical offset. `is_sealed`: it has to have the whole-record checksum."""

    def are_sound(self, entries: memoryview, file: tuple[memoryview, int, int], old: OldRecords) -> bool:
        """Whether all these packed entries of a queue lead to records of a file that are sound, and those that the
        entries say. The file: its view, the physical offset of its first byte, and of that behind what is written."""


# A record fits only if this much stays free behind it for the blank record that closes the file.
BLANK_SIZE_MIN = 8

_LOOK_STEP = 1 << 20  # bytes looked at together


class CommitLog:
    """The row of commit-log files with its write position and durable position; a part of a store."""

    title = "commit log"

    def __init__(self, folder: Path, file_size: int, io: StoreIo, *, writable: bool = True) -> None:
        # Fixed for life.
        self.folder = folder
        self.file_size = file_size
        self.mapped = MappedFileQueue(folder, file_size, io, writable=writable)
        self._io = io
        # Moved by the appender (and recovery) only.
        self.end_offset = 0
        self._last: MappedFile | None = None
        # Stretches [begin, end) that recovery or a scrub found to hold no proven record.
        self.damaged: tuple[tuple[int, int], ...] = ()
        # Why, of those that a reader found, by their first byte.
        self.damage_reasons: dict[int, str] = {}
        self._adding_damaged = threading.Lock()  # readers and the scrub find damage in threads of their own
        # Recovery has proven every record from here on, or it was written since; those below it never looked at.
        self.proven_from = 0
        # Every record from here on was written with the whole-record checksum; None: nothing is known.
        self.checksum_from: int | None = None
        # Asked before a record is proven; None: nobody is.
        self.prover: Prover | None = None
        # Moved by flush() (and recovery) only.
        self.flushed_offset = 0
        # Bytes that recover_to() found behind the end and removed: the torn part.
        self.torn_size = 0
        # (offset, file) made ahead by prepare_next(), taken by roll(); both under the lock.
        self._prepared: tuple[int, DataFile] | None = None
        self._preparing = threading.Lock()

    # --- start and end ---------------------------------------------------------------------------------

    def load(self) -> None:
        """Open the files; where the log ends is for recovery to find (`recover_to`)."""
        self.mapped.load()

    def recover_to(self, begin: int, end: int) -> None:
        """As StorePart: everything behind `end` is removed and zeroed, durable. `begin` it knows itself."""
        assert begin in (self.mapped.min_offset, end)
        self.torn_size = self._written_end(end) - end
        self.mapped.truncate(end)
        self.end_offset = self.flushed_offset = end
        self._last = self.mapped.find(end)
        if self._last is not None:
            self._last.data.read_ahead(is_useful=False)

    def _written_end(self, offset: int) -> int:
        """One past the last byte behind `offset` that is not zero; `offset` when all are."""
        for file in reversed(self.mapped.files):
            for begin, end in reversed(file.data.data_extents(max(offset - file.offset, 0), len(file.view))):
                for stop in range(end, begin, -_LOOK_STEP):
                    start = max(stop - _LOOK_STEP, begin)
                    piece = file.data.read(start, stop - start)
                    if not is_zero(piece):  # 40 times as fast as looking for the last byte that is not
                        return file.offset + start + len(piece.rstrip(b"\0"))
            if file.offset <= offset:
                break
        return offset

    def begin_at(self, offset: int) -> None:
        """An empty log begins with the file of this offset: the one of a replica, which need not have what its source
        has cleaned away."""
        assert not self.mapped.files
        assert offset % self.file_size == 0
        self.end_offset = self.flushed_offset = offset

    def close(self) -> None:
        """Close the files and remove the one made ahead and not used."""
        with self._preparing:
            self._discard_prepared()
        self._last = None
        self.mapped.close()

    def open_files(self) -> list[DataFile]:
        """The files as they are open now, the one made ahead with them. For any thread."""
        prepared = self._prepared
        return [file.data for file in self.mapped.files] + ([] if prepared is None else [prepared[1]])

    @property
    def min_offset(self) -> int:
        """Offset of the first byte that is still kept."""
        return self.mapped.min_offset if self.mapped.files else self.end_offset

    # --- writing ---------------------------------------------------------------------------------------

    def room(self) -> int:
        """Bytes left in the current file, 0 when there is none or it is full."""
        return self._last.end - self.end_offset if self._last is not None else 0

    def write(self, data: bytes | memoryview) -> None:
        """Append whole records; the caller has made sure that they fit in `room()`."""
        last = self._last
        assert last is not None
        if failpoints.active:
            failpoints.hit("commit_log.before_write")
        last.data.write(self.end_offset - last.offset, data)
        if failpoints.active:
            failpoints.hit("commit_log.after_write")
        self.end_offset += len(data)

    def roll(self) -> None:
        """Go on in a new file; the current one is closed with a blank record.

        StoreFull leaves everything as it was.
        """
        last = self._last
        start = last.end if last is not None else self.end_offset
        with self._preparing:
            file = self._take_prepared(start) or self.mapped.create(start)
        failpoints.hit("commit_log.before_roll")
        if last is not None and self.end_offset < last.end:
            left = last.end - self.end_offset
            last.data.write(self.end_offset - last.offset, SIZE_AND_MAGIC.pack(left, BLANK_MAGIC))
        file.data.read_ahead(is_useful=False)
        if last is not None:
            last.data.read_ahead(is_useful=True)
        self._last = file
        self.end_offset = start
        failpoints.hit("commit_log.rolled")

    def _take_prepared(self, offset: int) -> MappedFile | None:
        if self._prepared is None:
            return None
        if self._prepared[0] != offset:
            self._discard_prepared()
            return None
        data = self._prepared[1]
        self._prepared = None
        return self.mapped.adopt(data, offset)

    def _discard_prepared(self) -> None:
        if self._prepared is not None:
            data = self._prepared[1]
            self._prepared = None
            data.close()
            self._io.unlink(data.path)

    def prepare_next(self) -> bool:
        """Create the file after the current one, or the first one, ahead of its use; True if one was made.

        For a worker thread: allocating may take long. StoreFull when there is no room.
        """
        with self._preparing:
            last = self._last
            start = last.end if last is not None else self.end_offset
            if self._prepared is not None or self.mapped.find(start) is not None:
                return False
            self._prepared = (start, self.mapped.prepare(start))
            return True

    # --- durability ------------------------------------------------------------------------------------

    def write_again(self, begin: int, end: int) -> None:
        """Write what lies in [begin, end) once more, so that the next sync brings it to the disk: a sync that failed in
        an earlier run has left it in memory alone, and a page that nobody writes to is clean."""
        for file in self.mapped.files:
            for at in range(max(begin, file.offset), min(end, file.end), _LOOK_STEP):
                size = min(_LOOK_STEP, end - at, file.end - at)
                file.data.write(at - file.offset, file.data.read(at - file.offset, size))

    def flush(self) -> int:
        """As StorePart: up to what was the end when it was called.

        OSError: the disk refused; nothing may be assumed about what is on it, so it is final.
        """
        end = self.end_offset
        begin = self.flushed_offset
        count = 0
        failpoints.hit("commit_log.before_sync")
        for file in self.mapped.files if begin < end else ():  # nothing new: not the newest once more either
            if file.end > begin and file.offset < end:
                file.data.sync()
                count += 1
        failpoints.hit("commit_log.after_sync")
        self.flushed_offset = end
        return count

    @property
    def watermark(self) -> int:
        """As StorePart."""
        return self.flushed_offset

    # --- reading ---------------------------------------------------------------------------------------

    def read(self, physical_offset: int, size: int) -> memoryview | None:
        """`size` bytes from `physical_offset`; None if they are not all in the log, in one file.

        The slice stays readable as long as it is held, also after cleaning.
        """
        if size <= 0 or physical_offset + size > self.end_offset:
            return None
        file = self.mapped.find(physical_offset)
        if file is None or physical_offset + size > file.end:
            return None
        at = physical_offset - file.offset
        return file.view[at : at + size]

    def bring(self, physical_offset: int, size: int) -> None:
        """Return when these bytes are in memory, as far as they are kept. From any thread; OSError when the disk
        refuses."""
        end = min(physical_offset + size, self.end_offset)
        for file in self.mapped.files:
            begin, stop = max(physical_offset, file.offset), min(end, file.end)
            if begin < stop:
                self._io.bring(file.data.path, begin - file.offset, stop - begin)

    def scan(self, physical_offset: int, *, property_crc: bool = False) -> ScannedRecord | None:
        """The proven record that begins at `physical_offset`, None if none does."""
        file = self.mapped.find(physical_offset) if physical_offset < self.end_offset else None
        if file is None:
            return None
        found = self.scan_file(file, physical_offset - file.offset, property_crc=property_crc)
        return found if isinstance(found, ScannedRecord) else None

    def scan_file(
        self, file: MappedFile, position: int, *, property_crc: bool = False, proven: bool = False
    ) -> ScannedRecord | RecordFault | Blank:
        """What stands at `position` of `file`, wherever the log is believed to end; see scan_record()."""
        physical_offset = file.offset + position
        sealed = self._is_sealed(physical_offset)
        return scan_record(
            file.view, position, physical_offset, property_crc=property_crc, sealed=sealed, proven=proven
        )

    def has_proven(self, view: memoryview, at: int, size: int, physical_offset: int, topic: str) -> bool:
        """Whether the prover says of a record in the view of its file, at a position, that it is sound and of a topic.

        Of 4 KiB it takes 4 us, where `prove` takes 25, of 128 bytes 0.5 us. After a no it is for `prove`.
        """
        prover = self.prover
        if prover is None or not topic.isascii():
            return False
        is_sealed = self._is_sealed(physical_offset)
        return prover.is_sound(view, (at, size), physical_offset, topic.encode(), is_sealed)

    def has_proven_all(self, entries: memoryview, file: tuple[memoryview, int, int], old: OldRecords) -> bool:
        """As `Prover.are_sound`; no when there is none."""
        return self.prover is not None and self.prover.are_sound(entries, file, old)

    @property
    def trust(self) -> Trust:
        """Which records have to be proven before they are read."""
        return self.proven_from, _NEVER if self.checksum_from is None else self.checksum_from

    def _is_sealed(self, physical_offset: int) -> bool:
        """Whether the record that begins there has to have the whole-record checksum."""
        return self.checksum_from is not None and physical_offset >= self.checksum_from

    def prove(self, physical_offset: int, size: int) -> ScannedRecord | None:
        """As scan(); a record of `size` bytes that does not hold is known to be damaged from now on."""
        found = self.scan(physical_offset)
        if found is None:
            reason = "a record read from the disk does not match its checksum"
            self.add_damaged(physical_offset, physical_offset + size, reason)
        return found

    def add_damaged(self, begin: int, end: int, reason: str = "") -> None:
        """Keep readers away from a stretch from now on. From whichever thread found it."""
        with self._adding_damaged:
            self.damage_reasons[begin] = reason
            self.damaged = (*self.damaged, (begin, end))

    def is_damaged(self, physical_offset: int) -> bool:
        """Whether the record that begins there is known to be damaged and must not be served."""
        return bool(self.damaged) and any(begin <= physical_offset < end for begin, end in self.damaged)

    def check(self) -> None:
        """Invariants as code; CorruptStore at the first that is broken."""
        assert self.flushed_offset <= self.end_offset
        last = self._last
        if last is None:
            return
        tail = self.end_offset - last.offset
        if any(last.view[tail:].tobytes()):
            path = self.folder / file_name(last.offset)
            raise CorruptStore(path, self.end_offset, "bytes behind the end of the log are not zero")
