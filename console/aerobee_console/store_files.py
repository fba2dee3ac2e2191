"""The files of a store, one summary each.

Touches  a store folder through `StoreFolder`, reading.

    path, kind, size   size in bytes
    entries            entries of a queue or index file; None for a log file, whose records are not counted here
    begin, end         physical offsets (log, index) or logical ones (queue), half-open but for the index
    first_stored_ms    store time of the first record
"""

from pathlib import Path
from typing import Any

from aerobee_console.store import (
    BATCH_DTYPE,
    BATCH_ENTRY_SIZE,
    BLANK_SIZE,
    ENTRY_DTYPE,
    ENTRY_SIZE,
    INDEX_HEADER_SIZE,
    DataFile,
    StoreFolder,
)

__all__ = ["summaries"]


def summaries(store: StoreFolder) -> list[dict[str, Any]]:
    """One row a file: log, queues, index, checkpoint, tables."""
    rows = [_log_row(store, file) for file in store.log_files]
    for _, _, files, _ in store.queues():
        rows += [_queue_row(store, file) for file in files]
    for _, _, files, _ in store.queues(batches=True):
        rows += [_batch_row(store, file) for file in files]
    rows += [_index_row(store, path) for path in store.index_files()]
    others = [path for path in (store.root / "checkpoint",) if path.exists()]
    return rows + [_row(store, path, path.parent.name) for path in (*others, *store.config_files())]


def _row(store: StoreFolder, path: Path, kind: str) -> dict[str, Any]:
    kind = path.name if path.name == "checkpoint" else kind
    nothing = {"entries": None, "begin": None, "end": None, "first_stored_ms": None}
    return {"path": store.name_of(path), "file_kind": kind, "size": path.stat().st_size, **nothing}


def _log_row(store: StoreFolder, file: DataFile) -> dict[str, Any]:
    first = store.record_at(file.offset)
    stored_ms = first.store_timestamp if first is not None else None
    span = {"begin": file.offset, "end": file.offset + file.size}
    return _row(store, file.path, "commitlog") | span | {"first_stored_ms": stored_ms}


def _queue_row(store: StoreFolder, file: DataFile) -> dict[str, Any]:
    import numpy as np

    view = file.view()
    entries = np.frombuffer(view[: len(view) // ENTRY_SIZE * ENTRY_SIZE], ENTRY_DTYPE)
    filled = np.flatnonzero((entries["size"] > 0) & (entries["size"] != BLANK_SIZE))
    row = _row(store, file.path, "consumequeue")
    if not len(filled):
        return row | {"entries": 0}
    base = file.offset // ENTRY_SIZE
    first = store.record_at(int(entries["physical_offset"][filled[0]]))
    return row | {
        "entries": len(filled),
        "begin": base + int(filled[0]),
        "end": base + int(filled[-1]) + 1,
        "first_stored_ms": first.store_timestamp if first is not None else None,
    }


def _batch_row(store: StoreFolder, file: DataFile) -> dict[str, Any]:
    """`entries` counts records, `begin` and `end` messages."""
    import numpy as np

    view = file.view()
    entries = np.frombuffer(view[: len(view) // BATCH_ENTRY_SIZE * BATCH_ENTRY_SIZE], BATCH_DTYPE)
    filled = entries[entries["size"] > 0]
    row = _row(store, file.path, "batchconsumequeue")
    if not len(filled):
        return row | {"entries": 0}
    return row | {
        "entries": len(filled),
        "begin": int(filled["base"][0]),
        "end": int(filled["base"][-1]) + int(filled["count"][-1]),
        "first_stored_ms": int(filled["store_timestamp"][0]),
    }


def _index_row(store: StoreFolder, path: Path) -> dict[str, Any]:
    row = _row(store, path, "index")
    with path.open("rb") as file:
        raw = file.read(INDEX_HEADER_SIZE)
    if len(raw) < INDEX_HEADER_SIZE:
        return row
    first_ms, _, begin, end = (int.from_bytes(raw[at : at + 8], "big", signed=True) for at in range(0, 32, 8))
    count = int.from_bytes(raw[36:40], "big", signed=True) - 1
    return row | {"entries": max(count, 0), "begin": begin, "end": end, "first_stored_ms": first_ms or None}
