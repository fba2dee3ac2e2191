"""The checkpoint file: how far log, queues and index are known to be on disk.

Touches  <root>/checkpoint, 4096 bytes.

     0  i64 x 3   store times of the newest flushed message: log, queues, index
    24  i64 x 2   flushed offset told by the master; confirmed physical offset
  2048  128 bytes watermark copy of even generations
  3072  128 bytes watermark copy of odd generations

    Copy: magic 8s | generation i64 | log_end i64 | queue_end i64 | index_end i64 | index_last i64
          | checksum_from i64 | the 40 bytes above | zeros | CRC-32C u32 of the 124 bytes before it

Bytes 0..39 are RocketMQ's. Official brokers leave the rest alone, so a watermark whose copy of the stamps
is not what stands in bytes 0..39 is from before an official broker ran, and says nothing any more. One that was killed
in its first second has not written its stamps yet: then `abort` tells (disk/lock.py), and `distrust()` is called.

Invariants
- Every watermark was durable before it was written: records below log_end, queue entries of records below
  queue_end, index entries of records below index_end, of which the newest is at index_last (-1: none).
- Every record from checksum_from on was written with the whole-record checksum, so that one without it is
  torn; -1: no such promise.
- Written as: new copy, sync, stamps, sync. A crash in between leaves the new copy beside the old stamps,
  which are then those of the copy one generation older.
"""

import struct
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from aerobee_store.disk.io import DataFile, StoreIo
from aerobee_store.faults import failpoints
from aerobee_store.faults.errors import CorruptStore

__all__ = ["Checkpoint", "Stamps", "Watermark"]

CHECKPOINT_SIZE = 4096
_STAMPS = struct.Struct(">5q")
_COPY = struct.Struct(">8s6q40s28x")
_CRC = struct.Struct(">I")
_MAGIC = b"AEROBEE1"
_COPY_AT = (2048, 3072)
_STAMP_MARGIN_MS = 3000


class Stamps(NamedTuple):
    """RocketMQ's part; times in ms since the epoch, 0 when unknown."""

    log_timestamp: int = 0
    queue_timestamp: int = 0
    index_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0

    @property
    def start_timestamp(self) -> int:
        """Messages stored before this time are on disk, in log and queues."""
        return max(0, min(self.log_timestamp, self.queue_timestamp) - _STAMP_MARGIN_MS)


class Watermark(NamedTuple):
    """Physical offsets below which everything is on disk, and from which on all records are sealed."""

    log_end: int
    queue_end: int
    index_end: int
    index_last: int = -1
    checksum_from: int = -1

    @property
    def all_end(self) -> int:
        """Below this everything is on disk: log, queues and index."""
        return min(self.log_end, self.queue_end, self.index_end)


class _Copy(NamedTuple):
    generation: int
    watermark: Watermark
    stamps: bytes


class Checkpoint:
    """The loaded checkpoint, and the way to write the next one; a part of a store."""

    title = "checkpoint"

    def __init__(self, path: Path, io: StoreIo) -> None:
        self._path = path
        self._io = io
        self._file: DataFile | None = None
        # Of the newest copy; one more with each write().
        self.generation = 0
        # What was last loaded or written. `mark` is None when there is none that counts.
        self.stamps = Stamps()
        self.mark: Watermark | None = None

    def load(self) -> None:
        """Read the file if it is there and has its length; else everything stays unknown."""
        raw = self._io.read_bytes(self._path)
        if raw is None or len(raw) != CHECKPOINT_SIZE:
            return
        self.stamps = Stamps._make(_STAMPS.unpack_from(raw))
        copies = sorted((c for at in _COPY_AT if (c := _read_copy(raw, at))), reverse=True)
        if not copies:
            return
        self.generation = copies[0].generation
        present = raw[: _STAMPS.size]
        newest = copies[0]
        interrupted = (
            len(copies) > 1 and copies[1].generation == newest.generation - 1 and copies[1].stamps == present
        )
        if newest.stamps == present or interrupted:
            self.mark = newest.watermark

    def distrust(self) -> None:
        """The watermark says nothing any more: another program has written since. The stamps stay."""
        self.mark = None

    def write(self, stamps: Stamps, watermark: Watermark) -> None:
        """Make both durable. OSError is final for the store."""
        file = self._file or self._open()
        raw_stamps = _STAMPS.pack(*stamps)
        generation = self.generation + 1
        copy = _COPY.pack(_MAGIC, generation, *watermark, raw_stamps)
        file.write(_COPY_AT[generation % 2], copy + _CRC.pack(crc32c(copy)))
        file.sync()
        failpoints.hit("checkpoint.copy_written")
        file.write(0, raw_stamps)
        failpoints.hit("checkpoint.stamps_written")
        file.sync()
        self.generation = generation
        self.stamps = stamps
        self.mark = watermark

    def recover_to(self, begin: int, end: int) -> None:
        """As StorePart: it is written anew when all others are."""

    def flush(self) -> int:
        """As StorePart: it is on disk since it was written."""
        return 0

    @property
    def watermark(self) -> int:
        """As StorePart."""
        return self.mark.log_end if self.mark is not None else 0

    def check(self) -> None:
        """As StorePart: nothing may be on disk of what is not in the log."""
        mark = self.mark
        if mark is not None and max(mark.queue_end, mark.index_end) > mark.log_end:
            raise CorruptStore(self._path, None, f"it says that more is on disk than the log: {mark}")

    def _open(self) -> DataFile:
        names = {e.name: e.size for e in self._io.list_names(self._path.parent) if not e.is_dir}
        size = names.get(self._path.name)
        if size is not None and size != CHECKPOINT_SIZE:
            self._io.unlink(self._path)
            size = None
        self._file = self._io.open_file(self._path, CHECKPOINT_SIZE, create=size is None)
        return self._file

    def open_files(self) -> list[DataFile]:
        """The file, once it is open. For any thread."""
        file = self._file
        return [] if file is None else [file]

    def close(self) -> None:
        """Close the file; nothing is written."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _read_copy(raw: bytes, at: int) -> _Copy | None:
    """The watermark copy at `at`, None if there is none or it is torn."""
    body = raw[at : at + _COPY.size]
    (crc,) = _CRC.unpack_from(raw, at + _COPY.size)
    magic, generation, *offsets, stamps = _COPY.unpack(body)
    if magic != _MAGIC or crc != crc32c(body):
        return None
    return _Copy(generation, Watermark(*offsets), stamps)
