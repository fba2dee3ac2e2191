"""What can be set about a store, as one immutable value; whoever reads config files builds it.

Sizes are in bytes, times in milliseconds, ratios in percent. Defaults are RocketMQ's, but for the flush
mode (an acknowledged message is on disk) and the whole-record checksum.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from aerobee_store.faults.errors import StoreError

__all__ = ["DEFAULT_DELAY_LEVELS_MS", "StoreConfig", "total_memory"]

_SECOND, _MINUTE, _HOUR = 1000, 60_000, 3_600_000

# 1s 5s 10s 30s 1m 2m ... 10m 20m 30m 1h 2h: delay level 1 is the first.
DEFAULT_DELAY_LEVELS_MS: tuple[int, ...] = (
    *(s * _SECOND for s in (1, 5, 10, 30)),
    *(m * _MINUTE for m in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    *(h * _HOUR for h in (1, 2)),
)

_FILE_SIZE_MIN = 1024


def total_memory() -> int:
    """Bytes of physical memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(slots=True, frozen=True, kw_only=True)
class StoreConfig:
    """Settings of one store folder."""

    # Where. `commit_log_folder` None: `<root>/commitlog`.
    root: Path
    commit_log_folder: Path | None = None

    # File shapes: part of the format, must be those the folder was written with.
    commit_log_file_size: int = 1 << 30
    consume_queue_file_size: int = 6_000_000
    batch_queue_file_size: int = 13_800_000
    timer_log_file_size: int = 104_857_600
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000

    # Writing.
    is_copy: bool = False  # of another store's log: append_raw() alone writes
    # Whether a start shows readers no more than they had seen, as that of a copy does anyway, until somebody says that
    # the rest is confirmed, too.
    holds_back: bool = False
    sync_flush: bool = True
    record_checksum: bool = True
    append_property_crc: bool = False
    body_size_max: int = 4 * 1024 * 1024
    long_topics_as_version_2: bool = True
    index_enabled: bool = True
    delay_levels_ms: tuple[int, ...] = DEFAULT_DELAY_LEVELS_MS

    # Milliseconds of a slot of the timer files. None: nobody delivers messages by them here, they stay as they are.
    timer_precision_ms: int | None = None

    # How many descriptors and maps all files together may take; None: what the limits of the process leave.
    descriptors_max: int | None = None
    maps_max: int | None = None

    # Reading.
    scan_size_max: int = 16_000
    memory_transfer_size_max: int = 262_144
    memory_transfer_count_max: int = 32
    disk_transfer_size_max: int = 65_536
    disk_transfer_count_max: int = 8
    memory_ratio_max: int = 40
    read_ahead_size: int = 1 << 20  # for readers that never wait for the disk
    memory_size: int = field(default_factory=total_memory)
    query_count_max: int = 64

    # Recovery.
    verify_property_crc: bool = False
    accept_loss: bool = False
    full_walk_size_max: int = 256 * 1024 * 1024
    # Believe nothing that is said of queues and index: compare all queues with the log, build the index anew.
    rebuild: bool = False

    def __post_init__(self) -> None:
        if self.commit_log_file_size < _FILE_SIZE_MIN:
            raise StoreError(
                f"commit-log file size {self.commit_log_file_size} is under {_FILE_SIZE_MIN} bytes"
            )
        if self.consume_queue_file_size < 20 or self.consume_queue_file_size % 20:
            raise StoreError(
                f"consume-queue file size {self.consume_queue_file_size} is not a multiple of 20 bytes"
            )
        if self.batch_queue_file_size < 46 or self.batch_queue_file_size % 46:
            raise StoreError(
                f"batch-queue file size {self.batch_queue_file_size} is not a multiple of 46 bytes"
            )
        if self.index_slots < 1 or self.index_entries < 2:
            raise StoreError("an index file needs at least 1 slot and 2 entries")

    @property
    def commit_log_path(self) -> Path:
        """Folder of the commit-log files."""
        return self.commit_log_folder or self.root / "commitlog"

    @property
    def consume_queue_path(self) -> Path:
        """Folder of the consume queues, `<topic>/<queue_id>/` below it."""
        return self.root / "consumequeue"

    @property
    def batch_queue_path(self) -> Path:
        """Folder of the queues of batches, `<topic>/<queue_id>/` below it."""
        return self.root / "batchconsumequeue"

    @property
    def index_path(self) -> Path:
        """Folder of the index files."""
        return self.root / "index"

    @property
    def in_memory_distance(self) -> int:
        """Bytes behind the log's end within which records count as being in memory."""
        return self.memory_size * self.memory_ratio_max // 100
