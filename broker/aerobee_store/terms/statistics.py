"""What a store says of itself at a moment.

Touches  nothing. The names of the fields are those of the status line and of the metrics: operators search for them.
"""

from dataclasses import dataclass

__all__ = ["StoreStatistics"]


@dataclass(slots=True, frozen=True, kw_only=True)
class StoreStatistics:
    """Physical offsets, sizes in bytes of the log, and counts."""

    min_physical_offset: int
    end_offset: int
    flushed_offset: int
    confirmed_offset: int
    # What is in the log and in no queue yet.
    dispatch_behind_bytes: int
    # Messages whose keys are not indexed yet.
    index_backlog: int
    commit_log_files: int
    queues: int
    open_queue_files: int
    # Of queues, closed since the start to make room for others.
    closed_queue_files: int
    index_files: int
    damaged_stretches: int
    # Since the start.
    scrubbed_bytes: int
