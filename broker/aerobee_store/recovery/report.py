"""What recovery works on, and what it says that it found and did.

Touches  nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aerobee_store.disk.io import StoreIo
from aerobee_store.faults.errors import CorruptStore
from aerobee_store.index.index import IndexService
from aerobee_store.log.checkpoint import Checkpoint
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.queues.queue_table import QueueTable
from aerobee_store.queues.tombstones import Tombstones
from aerobee_store.records.record_scan import ScannedRecord
from aerobee_store.terms.config import StoreConfig
from aerobee_store.terms.parts import StorePart
from aerobee_store.walking.log_reader import Damage
from aerobee_store.walking.record_columns import Stretch

__all__ = ["STEPS", "LogCut", "Parts", "RecoveryReport", "StartEarlier", "lose"]

# What recovery goes through the log for, in order.
STEPS: Final = ("log and queues", "index")
_ACCEPT_LOSS: Final = (
    "restore the missing bytes from a copy, or start once with accept_loss to go on without them"
)


@dataclass(slots=True, frozen=True)
class LogCut:
    """What was cut off a log on purpose: the messages in [physical_offset, end_offset)."""

    physical_offset: int
    end_offset: int
    message_count: int


class HeldBack(NamedTuple):
    """What a copy's readers had not seen: records from the physical offset on, which are in no queue and no index."""

    physical_offset: int
    found: list[Stretch | ScannedRecord]

    def at_border(self) -> "HeldBack":
        """The same, from where a record begins or ends. The queues may say otherwise: an entry of which half is on
        disk, as power failed, leads into the middle of a record, where no later walk of the log can begin."""
        first = self.found[0]
        begin = first.physical_offset if isinstance(first, ScannedRecord) else int(first.physical_offsets[0])
        return HeldBack(min(self.physical_offset, begin), self.found)


@dataclass(slots=True)
class RecoveryReport:
    """What recovery found and did; offsets are physical ones, counts are in what their name says."""

    aborted: bool = False
    start_offset: int = 0
    min_offset: int = 0
    end_offset: int = 0
    walked_records: int = 0
    dispatched_records: int = 0
    cut_entries: int = 0
    torn_bytes: int = 0
    duplicate_records: int = 0
    renumbered_records: int = 0
    hole_entries: int = 0
    orphan_entries: int = 0
    indexed_keys: int = 0
    removed_index_files: tuple[str, ...] = ()
    last_store_timestamp: int = 0
    shown_timestamp: int = 0  # of the newest record that readers see
    # (topic, queue id, index - queue offset of the records)
    shifted_queues: list[tuple[str, int, int]] = field(default_factory=list)
    # (topic, queue id, first queue offset, count) of entries that no record stands behind any more
    dropped: list[tuple[str, int, int, int]] = field(default_factory=list)
    # (topic, queue id, file, what was wrong with it) of queues that were built again
    cut_queues: list[tuple[str, int, str, str]] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    # What was cut off the log before, on purpose.
    cut: LogCut | None = None
    # None: readers see everything.
    held_back: HeldBack | None = None


class StartEarlier(Exception):
    """A queue misses records from before the walk; it has all of those that end at or below `offset`."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


@dataclass(slots=True, frozen=True)
class Parts:
    """What recovery works on: everything loaded, nothing recovered."""

    log: CommitLog
    queues: QueueTable
    index: IndexService
    checkpoint: Checkpoint
    config: StoreConfig
    io: StoreIo
    # All files of the store: the log's first, then in the order in which they let go of what the log has lost.
    in_order: tuple[StorePart, ...]
    # Topics that were deleted: their records are in no queue.
    tombstones: Tombstones | None = None
    # Told the name of the step (a value of STEPS) and how many more bytes of the log it is through with.
    advance: Callable[[str, int], None] = lambda _step, _size: None


def lose(parts: Parts, report: RecoveryReport, offset: int, reason: str) -> None:
    """Records that were on disk are missing from the physical `offset` on: CorruptStore, unless the operator accepts it
    by name."""
    if not parts.config.accept_loss:
        raise CorruptStore(parts.log.folder, offset, reason, _ACCEPT_LOSS)
    report.lost.append(reason)
