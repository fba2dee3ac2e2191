"""The timer files go through a store's life with its other files: recovered with the log, cleaned with the log."""

from pathlib import Path

from aerobee_proto.names import TIMER_TOPIC
from aerobee_proto.properties import TIMER_OUT_MS
from aerobee_store.cleaning.cleaning import CleaningPlan
from aerobee_store.disk.io import DiskIo, StoreIo
from aerobee_store.store import MessageStore
from aerobee_store.terms.messages import Appended
from aerobee_store.timer.timer_files import UNIT, TimerFiles, TimerUnit
from store.memory_io import MemoryIo
from store.workload import ROOT, Clock, config, message

NOW_MS = 1_700_000_000_000
TIMERS = {"timer_precision_ms": 1000, "timer_log_file_size": UNIT.size * 20}
OUT_MS = {TIMER_OUT_MS: str(NOW_MS + 60_000)}


def opened(root: Path, io: StoreIo) -> MessageStore:
    store = MessageStore(config(root, **TIMERS), io=io, clock=Clock())
    store.open()
    return store


def files_of(store: MessageStore) -> TimerFiles:
    files = store.timers.files
    assert files is not None
    return files


def wait(store: MessageStore, body: bytes = b"") -> Appended:
    """A message that waits for its time; its unit is in the timer log, neither is on disk."""
    (one,) = store.append([message(TIMER_TOPIC, 0, body, extra=OUT_MS)])
    files_of(store).add(TimerUnit(-1, 1, NOW_MS, NOW_MS + 60_000, one.physical_offset, one.size, 7))
    return one


def test_recovery_cuts_the_units_of_messages_that_the_log_lost() -> None:
    """A unit may reach the disk before its message does."""
    io = MemoryIo()
    store = opened(ROOT, io)
    kept = wait(store)
    store.flush_disk()
    end = store.end_offset
    wait(store, b"lost")
    files_of(store).flush()
    assert files_of(store).log_end == 2 * UNIT.size
    again = opened(ROOT, io.crash())
    assert again.end_offset == end
    assert files_of(again).log_end == UNIT.size
    newest = files_of(again).newest_unit()
    assert newest is not None
    assert newest.physical_offset == kept.physical_offset
    again.check()


def test_an_end_in_good_order_leaves_the_units_on_disk() -> None:
    """They are no business of the flushes at intervals: whoever delivers flushes them, and else the store's end."""
    io = MemoryIo()
    store = opened(ROOT, io)
    wait(store)
    store.close()
    again = opened(ROOT, io.crash())
    assert files_of(again).log_end == UNIT.size
    again.check()


def test_cleaning_deletes_the_timer_files_of_messages_that_are_gone(tmp_path: Path) -> None:
    store = opened(tmp_path, DiskIo())
    while store.statistics().commit_log_files < 3:
        wait(store, b"x" * 400)
    store.flush_disk()
    store.confirm(store.flushed_offset)
    store.flush_queues()
    files = files_of(store)
    files.sync(files.snapshot(store.flushed_offset), NOW_MS)
    before = sorted((tmp_path / "timerlog").iterdir())
    deleted = store.cleaner.clean(CleaningPlan(tuple(store.cleaner.survey(store.settled_offset)), "asked"))
    gone = [one.path for one in deleted if one.path.parent.name == "timerlog"]
    assert gone
    assert sorted((tmp_path / "timerlog").iterdir()) == before[len(gone) :]
    store.check()
    store.close()
