"""The files of a store, one summary each.

Touches  a store folder through `Inspection`, reading.

    path, kind, size   size in bytes
    entries            entries of a queue or index file; None for a log file, whose records are not counted here
    begin, end         physical offsets (log, index) or queue offsets (queue), half-open but for the index
    first_stored_ms    store time of the first record
"""

from dataclasses import dataclass, replace

import numpy as np

from aerobee_store.index.index_file import HEADER, HEADER_SIZE
from aerobee_store.offline.inspection import Inspection
from aerobee_store.queues.batch_queue import BATCH_DTYPE, BATCH_ENTRY_SIZE
from aerobee_store.queues.consume_queue import BLANK_SIZE, ENTRY_DTYPE, ENTRY_SIZE
from aerobee_store.walking.log_sources import RowFile

__all__ = ["FileSummary", "summaries"]


@dataclass(slots=True, frozen=True)
class FileSummary:
    """One file; see above. None where a kind of file has no such thing."""

    path: str
    file_kind: str
    size: int
    entries: int | None = None
    begin: int | None = None
    end: int | None = None
    first_stored_ms: int | None = None


def summaries(store: Inspection) -> list[FileSummary]:
    """One row a file: log, queues, index, checkpoint, tables."""
    rows = [_log_row(store, file) for file in store.log_files]
    for queue, _ in store.queues():
        rows += [_queue_row(store, file) for file in queue.files]
    for queue, _ in store.queues(batches=True):
        rows += [_batch_row(store, file) for file in queue.files]
    rows += [_index_row(store, path, size) for path, size in store.index_files()]
    if (store.root / "checkpoint").exists():
        rows.append(_other_row(store, "checkpoint", "checkpoint"))
    return rows + [_other_row(store, path, "config") for path in store.config_files()]


def _other_row(store: Inspection, path: str, kind: str) -> FileSummary:
    return FileSummary(path, kind, (store.root / path).stat().st_size)


def _log_row(store: Inspection, file: RowFile) -> FileSummary:
    first = store.record_at(file.offset)
    stored_ms = first.store_timestamp if first is not None else None
    return FileSummary(
        file.path, "commitlog", file.size, begin=file.offset, end=file.end, first_stored_ms=stored_ms
    )


def _queue_row(store: Inspection, file: RowFile) -> FileSummary:
    view = store.view(file)
    entries = np.frombuffer(view[: len(view) // ENTRY_SIZE * ENTRY_SIZE], ENTRY_DTYPE)
    filled = np.flatnonzero((entries["size"] > 0) & (entries["size"] != BLANK_SIZE))
    row = FileSummary(file.path, "consumequeue", file.size)
    if not len(filled):
        return replace(row, entries=0)
    base = file.offset // ENTRY_SIZE
    first = store.record_at(int(entries["physical_offset"][filled[0]]))
    return replace(
        row,
        entries=len(filled),
        begin=base + int(filled[0]),
        end=base + int(filled[-1]) + 1,
        first_stored_ms=first.store_timestamp if first is not None else None,
    )


def _batch_row(store: Inspection, file: RowFile) -> FileSummary:
    """`entries` counts records, `begin` and `end` messages."""
    view = store.view(file)
    entries = np.frombuffer(view[: len(view) // BATCH_ENTRY_SIZE * BATCH_ENTRY_SIZE], BATCH_DTYPE)
    filled = entries[entries["size"] > 0]
    row = FileSummary(file.path, "batchconsumequeue", file.size)
    if not len(filled):
        return replace(row, entries=0)
    return replace(
        row,
        entries=len(filled),
        begin=int(filled["base"][0]),
        end=int(filled["base"][-1]) + int(filled["count"][-1]),
        first_stored_ms=int(filled["store_timestamp"][0]),
    )


def _index_row(store: Inspection, path: str, size: int) -> FileSummary:
    row = FileSummary(path, "index", size)
    raw = store.folder.tree.read(path, 0, HEADER_SIZE)
    if len(raw) < HEADER_SIZE:
        return row
    first_ms, _, begin, end, _, following = HEADER.unpack(raw)
    return replace(row, entries=max(following - 1, 0), begin=begin, end=end, first_stored_ms=first_ms or None)
