"""Cutting the log of a store back to where the log of which it is to be a copy goes on otherwise.

Touches  <root>/cut, the names in quarantine/, the checkpoint, the log; runs inside the store's lock, before recovery.

    cut    {"format": 1, "physical_offset": 4096, "end_offset": 9000, "message_count": 12}: a cut is under way

Stages, each durable before the next
0. Files that count deliveries of delayed messages go (`forget_deliveries`), before they are loaded: deliveries behind
   `offset` were none. What was delivered below it is found by the index.
1. `offset` is where a record begins or the log ends, else CutRefused. What lies behind is counted.
2. The file `cut` is there: from here on every start goes on with the cut. The bytes behind `offset` go page by page; a
   start that did not know of it would take what is left of them for messages behind a damaged place.
3. The checkpoint says of nothing behind `offset` that it is on disk; with that the list of queues is void, too.
4. Copies of damaged stretches behind `offset` lose the names that keep readers away: other bytes come there.
5. The log is cut: files behind it are removed, the newest first, and the rest of its file is zero. To begin anew
   (START_OVER) all files of queues and log go.
6. Recovery, the caller's: queues, index and timer files let go of what leads behind the end.
7. The file `cut` is removed, after the checkpoint that recovery ends with.

Invariants
- A crash at any step leaves the whole log, or a cut that the next start ends.
- A file `cut` counts only while the `abort` of the process that wrote it lies beside it: without it another program has
  had the store, and what lies behind `offset` may be its own.
"""

import json
from pathlib import Path
from typing import Final

import structlog

from aerobee_store.disk.io import StoreIo
from aerobee_store.faults import failpoints
from aerobee_store.faults.errors import CorruptStore, CutRefused
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.records.record_scan import ScannedRecord
from aerobee_store.recovery.report import LogCut, Parts
from aerobee_store.terms.cuts import START_OVER
from aerobee_store.walking.log_reader import DamageList, LogReader, Proof
from aerobee_store.walking.log_sources import MapSource
from aerobee_store.walking.quarantine import forget_behind

__all__ = ["CUT_FILE", "begin_cut", "end_cut", "forget_deliveries"]

log = structlog.get_logger()

CUT_FILE: Final = "cut"
_FORMAT: Final = 1
# In <root>/config: how far the timer messages and the delay levels are.
_DELIVERIES: Final = ("timercheck", "delayOffset.json", "delayOffset.json.bak")


def forget_deliveries(root: Path, io: StoreIo) -> None:
    """Stage 0. Harmless where nothing is cut: all that waited is looked at once more."""
    folder = root / "config"
    known = {entry.name for entry in io.list_names(folder)}
    gone = [name for name in _DELIVERIES if name in known]
    for name in gone:
        io.unlink(folder / name)
    if gone:
        io.sync_folder(folder)


def begin_cut(parts: Parts, offset: int | None, *, interrupted: bool) -> LogCut | None:
    """Stages 1 to 5, for the physical `offset`, or for a cut that an earlier start has begun; None: nothing is to go.
    `interrupted`: the last process that had the store was one of ours, and did not close it.

    CutRefused: nothing was changed. The rest of recovery is to be done as after a crash.
    """
    root, io = parts.config.root, parts.io
    begun = _begun(root, io)
    if begun is not None and not interrupted:
        log.warning("store.cut_forgotten", physical_offset=begun.physical_offset)
        end_cut(root, io)
        begun = None
    if offset is None or (begun is not None and begun.physical_offset <= offset):
        planned = begun
    else:
        planned = _measured(parts, offset, begun)
    if planned is None:
        return None
    anew = planned.physical_offset == START_OVER
    if planned != begun:
        content = {
            "format": _FORMAT,
            "physical_offset": planned.physical_offset,
            "end_offset": planned.end_offset,
            "message_count": planned.message_count,
        }
        io.replace_bytes(root / CUT_FILE, json.dumps(content).encode() + b"\n", keep_previous=False)
    failpoints.hit("cutting.announced")
    _lower_marks(parts, max(planned.physical_offset, 0))
    forget_behind(io, root, planned.physical_offset)
    failpoints.hit("cutting.forgotten")
    if anew:
        parts.queues.drop_cut()
        parts.queues.destroy()
        parts.log.mapped.destroy()
    else:
        parts.log.mapped.truncate(planned.physical_offset)
    failpoints.hit("cutting.truncated")
    return planned


def end_cut(root: Path, io: StoreIo) -> None:
    """Stage 7."""
    io.unlink(root / CUT_FILE)
    io.sync_folder(root)


def _begun(root: Path, io: StoreIo) -> LogCut | None:
    """The cut that an earlier start has begun."""
    raw = io.read_bytes(root / CUT_FILE)
    if raw is None:
        return None
    try:
        content = json.loads(raw)
        format_, *said = (
            content[key] for key in ("format", "physical_offset", "end_offset", "message_count")
        )
        cut = LogCut(*map(int, said))
    except (ValueError, TypeError, KeyError, RecursionError) as failed:
        wrong: Exception | None = failed
    else:
        wrong = None if format_ == _FORMAT else ValueError("it is of another format")
    if wrong is not None:
        raise CorruptStore(
            root / CUT_FILE,
            None,
            f"it does not say where the log is to be cut: {wrong}",
            "let the log be copied anew from the other members of the set, into an empty folder",
        ) from wrong
    return cut


def _measured(parts: Parts, offset: int, begun: LogCut | None) -> LogCut | None:
    """What is to go behind `offset`, with what is going already; None when nothing lies there."""
    start = offset
    if offset == START_OVER:
        start = parts.log.mapped.min_offset
    else:
        _check_border(parts.log, offset)
    reader = LogReader(MapSource(parts.log), DamageList(), _proof(parts.log))
    count = 0
    for found in reader.stretches(start, None if begun is None else begun.physical_offset):
        count += 1 if isinstance(found, ScannedRecord) else found.count
    if begun is not None:
        return LogCut(offset, begun.end_offset, count + begun.message_count)
    if offset == START_OVER:
        return LogCut(offset, reader.end, count) if parts.log.mapped.files else None
    return LogCut(offset, reader.end, count) if reader.end > offset else None


def _proof(commit_log: CommitLog) -> Proof:
    return Proof(sealed_from=commit_log.checksum_from)


def _check_border(commit_log: CommitLog, offset: int) -> None:
    """CutRefused unless a record begins at `offset`, or ends there."""
    mapped = commit_log.mapped
    if not mapped.files or not mapped.min_offset <= offset <= mapped.end_offset:
        raise CutRefused(offset, f"the log has the bytes from {mapped.min_offset} to {mapped.end_offset}")
    file = mapped.find(offset)
    if file is None and offset != mapped.end_offset:
        raise CutRefused(offset, "the file with that place is missing")
    if file is None or file.offset == offset:
        return
    damage = DamageList()
    reader = LogReader(MapSource(commit_log), damage, _proof(commit_log))
    for _ in reader.stretches(file.offset, offset):
        pass
    if reader.end != offset or any(one.end >= offset for one in damage.found):
        raise CutRefused(offset, "no message begins there, and none ends there")


def _lower_marks(parts: Parts, offset: int) -> None:
    """Nothing behind `offset` is known to be on disk from now on."""
    checkpoint, newest = parts.checkpoint, _newest_before(parts.log, offset)
    stamps, mark = checkpoint.stamps, checkpoint.mark
    stamps = stamps._replace(
        log_timestamp=min(stamps.log_timestamp, newest),
        queue_timestamp=min(stamps.queue_timestamp, newest),
        index_timestamp=min(stamps.index_timestamp, newest),
        master_flushed_offset=min(stamps.master_flushed_offset, offset),
        confirm_offset=min(stamps.confirm_offset, offset),
    )
    if mark is not None:
        mark = mark._replace(
            log_end=min(mark.log_end, offset),
            queue_end=min(mark.queue_end, offset),
            index_end=min(mark.index_end, offset),
            index_last=min(mark.index_last, offset - 1),
        )
        checkpoint.write(stamps, mark)


def _newest_before(commit_log: CommitLog, offset: int) -> int:
    """Store time (ms) of the newest message below `offset`, of the file in which it lies; 0 when it is not known."""
    file = commit_log.mapped.find(offset - 1)
    if file is None:
        return 0
    newest = 0
    for found in LogReader(MapSource(commit_log), DamageList(), Proof(proven=True)).stretches(
        file.offset, offset
    ):
        own = found.store_timestamp if isinstance(found, ScannedRecord) else int(found.store_timestamps.max())
        newest = max(newest, own)
    return newest
