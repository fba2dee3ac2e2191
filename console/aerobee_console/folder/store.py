"""Store folders, for the command line: the only module here that knows the store. What is decided, the store decides.

Touches  the folder, reading. Only rebuild() opens the store itself, under its lock.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from aerobee_console.terminal.failures import FAULT, USAGE, Failure
from aerobee_service.clock import epoch_ms
from aerobee_store.disk.disk_space import disk_use
from aerobee_store.disk.io import DiskIo
from aerobee_store.faults.errors import CorruptStore, StoreLocked
from aerobee_store.index.index_file import index_file_size
from aerobee_store.offline.inspection import Advance, Finding, Inspection, NotAStore
from aerobee_store.offline.resume import NotAResume, Resume
from aerobee_store.offline.summaries import summaries
from aerobee_store.offline.verify import Verdict, Verified, verify
from aerobee_store.records.record_scan import ScannedRecord
from aerobee_store.recovery.recovery import RecoveryReport
from aerobee_store.terms.config import StoreConfig

__all__ = [
    "Finding",
    "Inspection",
    "RecoveryReport",
    "ScannedRecord",
    "StoreSettings",
    "Verdict",
    "Verified",
    "disk_use",
    "index_file_size",
    "inspect",
    "locked",
    "look_at",
    "rebuild",
    "resume_of",
    "summaries",
]

StoreSettings = StoreConfig


def inspect(root: Path, commit_log: Path | None = None, *, property_crc: bool = False) -> Inspection:
    """The store folder. Failure (exit code 2) when it is none, OSError when it may not be read."""
    try:
        return Inspection(root, commit_log, property_crc=property_crc)
    except NotAStore as none:
        raise Failure(str(none), USAGE) from none


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """The folder, while nobody else has it. Failure (exit code 2) when it is no store, or a broker runs on it."""
    inspect(root)
    try:
        held = DiskIo().lock(root / "lock")
    except StoreLocked as busy:
        raise Failure(f"{busy}; stop the broker first", USAGE) from busy
    try:
        yield
    finally:
        held.release()


def resume_of(path: Path, root: Path) -> Resume:
    """The file in which a look at the store notes where it is. Failure when it lies in the store."""
    try:
        return Resume(path, root)
    except NotAResume as wrong:
        raise Failure(str(wrong), USAGE) from wrong


def look_at(store: Inspection, advance: Advance, resume: Resume | None = None) -> Verified:
    """Everything in the store, compared. Failure when `resume` is a file of something else."""
    try:
        return verify(store, advance, resume)
    except NotAResume as wrong:
        raise Failure(str(wrong), USAGE) from wrong


def rebuild(
    settings: StoreSettings, on_progress: Callable[[str, int], None], *, accept_loss: bool
) -> RecoveryReport:
    """Let the store recover believing nothing but its log; what it found and did.

    `on_progress` is told the step and how many more bytes of the log are behind it. Raises Failure when a broker
    has the store (exit code 2) or somebody must decide first (1).
    """
    from aerobee_store.store import MessageStore

    # Timer files stay as they are: the next start of a broker mends them.
    chosen = replace(settings, rebuild=True, accept_loss=accept_loss, timer_precision_ms=None)
    store = MessageStore(chosen, io=DiskIo(), clock=epoch_ms, on_progress=on_progress)
    try:
        report = store.open()
    except StoreLocked as locked:
        raise Failure(str(locked), USAGE) from locked
    except CorruptStore as broken:
        raise Failure(
            str(broken).replace("start once with accept_loss", "give --accept-loss"), FAULT
        ) from broken
    store.close()
    return report
