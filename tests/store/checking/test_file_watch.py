"""Files that go away under the running store: each kind of file, each way to lose it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from structlog.testing import capture_logs

from aerobee_proto.records import decode_records
from aerobee_store.checking import file_watch
from aerobee_store.cleaning.cleaning import CleaningPlan, LogFileFacts
from aerobee_store.disk.io import DiskIo
from aerobee_store.faults.errors import CorruptStore, FileGone, StoreLocked, StorePoisoned
from aerobee_store.store import MessageStore
from aerobee_store.timer.timer_files import TimerFiles, TimerUnit
from store.workload import Clock, config, message, open_store

TIME_MS: Final = 1_700_000_000_000


def delete(path: Path) -> None:
    path.unlink()


def move(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


def replace(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    copy.replace(path)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def lengthen(path: Path) -> None:
    os.truncate(path, path.stat().st_size + 4096)


WAYS: Final = {"delete": delete, "move": move, "replace": replace, "cut": cut, "lengthen": lengthen}
FILES: Final = {
    "log": ("commit log", "commitlog/00000000000000016384"),
    "old log file": ("commit log", "commitlog/00000000000000000000"),
    "queue": ("consume queue", "consumequeue/Orders/0/*"),
    "index": ("index", "index/*"),
    "checkpoint": ("checkpoint", "checkpoint"),
    "timer log": ("timer log", "timerlog/*"),
    "timer wheel": ("timerwheel", "timerwheel"),
}


def filled_store(
    root: Path, *, count: int = 40, on_failure: Callable[[OSError], None] = lambda error: None
) -> MessageStore:
    """Open, with at least two log files, a file of each kind, and everything on disk."""
    store = open_store(
        DiskIo(), on_failure=on_failure, root=root, timer_precision_ms=1000, timer_log_file_size=52 * 100
    )
    for number in range(count):
        store.append([message(body=bytes(600), keys=f"k{number}")])
        store.flush_disk()
        store.confirm(store.flushed_offset)
    store.keys.build(store.keys.backlog)
    store.flush_queues()
    store.write_checkpoint()
    return store


def with_timers(store: MessageStore) -> TimerFiles:
    timers = store.timers.files
    assert timers is not None
    timers.add(TimerUnit(-1, 0, TIME_MS, TIME_MS + 5000, 0, 100, 0))
    timers.sync(timers.snapshot(0), TIME_MS)
    return timers


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_goes_away_is_final_and_named(tmp_path: Path, kind: str, way: str) -> None:
    """Log files unlinked under the broker took 200 of 200 later messages, acknowledged, and nobody looked."""
    what, pattern = FILES[kind]
    failures: list[OSError] = []
    store = filled_store(tmp_path, on_failure=failures.append)
    timers = with_timers(store)
    store.watch.look()
    assert not store.has_failed
    path = max(tmp_path.glob(pattern))
    WAYS[way](path)
    with capture_logs() as logs:
        store.watch.look()
        store.watch.look()
    (logged,) = logs
    assert (logged["event"], logged["log_level"]) == ("store.file_gone", "error")
    assert (logged["path"], logged["what"]) == (str(path), what)
    assert "under the running broker" in logged["reason"]
    assert [type(failure) for failure in failures] == [FileGone]
    with pytest.raises(StorePoisoned, match="a file of the store is gone"):
        store.append([message()])
    with pytest.raises(StorePoisoned):
        store.flush_disk()
    timers.close()
    store.close()
    assert (tmp_path / "abort").exists()


@pytest.mark.parametrize("way", [delete, replace, cut])
def test_nothing_is_acknowledged_in_a_log_file_that_was_deleted(
    tmp_path: Path, way: Callable[[Path], None]
) -> None:
    """Not even within the half second before somebody looks: the sync sees it."""
    store = filled_store(tmp_path)
    way(max((tmp_path / "commitlog").iterdir()))
    flushed = store.flushed_offset
    # By a call: a store into the map where nothing is left ends the process.
    store.append([message(body=bytes(600))])
    with pytest.raises(FileGone):
        store.flush_disk()
    assert store.flushed_offset == flushed
    assert isinstance(store.health.failure, FileGone)
    store.close()


def test_a_file_that_the_store_deletes_itself_is_not_missed(tmp_path: Path) -> None:
    store = filled_store(tmp_path, count=100)
    store.watch.look()
    first, *_ = store.cleaner.survey(store.settled_offset)
    store.cleaner.clean(CleaningPlan((LogFileFacts(first.offset, first.end, first.written_ms),), "age"))
    assert not (tmp_path / "commitlog" / f"{first.offset:020d}").exists()
    store.topics.delete("Orders")
    store.watch.look()
    assert not store.has_failed
    store.close()
    store.watch.look()


def test_many_queues_are_looked_at_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_watch, "QUEUE_FILES_A_LOOK", 4)
    store = open_store(DiskIo(), root=tmp_path)
    store.append([message(queue_id=number) for number in range(10)])
    store.flush_disk()
    store.confirm(store.flushed_offset)
    for _ in range(7):
        store.watch.look()
    assert not store.has_failed
    delete(next((tmp_path / "consumequeue" / "Orders" / "9").iterdir()))
    for _ in range(4):
        store.watch.look()
    assert isinstance(store.health.failure, FileGone)
    store.close()


# --- lock and abort -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lock", "abort"])
def test_lock_and_abort_are_put_back(tmp_path: Path, name: str) -> None:
    store = filled_store(tmp_path, count=1)
    delete(tmp_path / name)
    with capture_logs() as logs:
        store.watch.look()
        store.watch.look()
    assert [(entry["event"], entry["path"]) for entry in logs] == [
        ("store.file_put_back", str(tmp_path / name))
    ]
    assert (tmp_path / name).exists()
    assert store.health.failure is None
    with pytest.raises(StoreLocked):
        MessageStore(config(tmp_path), io=DiskIo(), clock=Clock()).open()
    store.close()
    assert not (tmp_path / "abort").exists()


def test_a_lock_file_that_another_process_has_locked_is_final(tmp_path: Path) -> None:
    """An official broker asks for the lock file alone: it may have begun on a new one."""
    store = filled_store(tmp_path, count=1)
    delete(tmp_path / "lock")
    with locked_by_another_process(tmp_path / "lock"), capture_logs() as logs:
        store.watch.look()
    assert [(logged["event"], logged["path"]) for logged in logs] == [
        ("store.file_gone", str(tmp_path / "lock"))
    ]
    assert "another process locked it" in logs[0]["reason"]
    store.close()


def test_a_folder_that_is_moved_away_is_final(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store", count=1)
    (tmp_path / "store").rename(tmp_path / "moved")
    store.watch.look()
    assert isinstance(store.health.failure, FileGone)
    with pytest.raises(StoreLocked):
        open_store(DiskIo(), root=tmp_path / "moved")
    store.close()


@contextmanager
def locked_by_another_process(path: Path) -> Iterator[None]:
    """A child that locks a file as official brokers do."""
    lines = (
        "import fcntl, sys; f = open(sys.argv[1], 'w+');"
        "fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0); print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", lines, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"locked\n"
        yield
        child.communicate()


# --- the start afterwards -----------------------------------------------------------------------------------------


def served(store: MessageStore, queue_id: int = 0) -> list[int]:
    """The numbers of all messages of the queue that can be read."""
    found, offset = [], store.reading.min_offset("Orders", queue_id)
    while offset < store.reading.max_offset("Orders", queue_id):
        answer = store.reading.get_message("g", "Orders", queue_id, offset, 32, 1 << 20, None)
        found += [record.queue_offset for record in decode_records(b"".join(answer.body))]
        offset = answer.next_offset
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("which", [min, max], ids=["first", "last"])
def test_a_queue_that_lost_a_file_is_built_again_from_the_log(
    tmp_path: Path, way: str, which: Callable[[Iterable[Path]], Path]
) -> None:
    """The checkpoint said that its entries were on disk, so nobody asked the log."""
    store = filled_store(tmp_path)
    WAYS[way](which((tmp_path / "consumequeue" / "Orders" / "0").iterdir()))
    store.watch.look()
    assert isinstance(store.health.failure, FileGone)
    store.close()
    for stray in (tmp_path / "consumequeue" / "Orders" / "0").glob("elsewhere"):
        stray.unlink()
    again = open_store(DiskIo(), root=tmp_path)
    assert served(again) == list(range(40))
    assert again.reading.next_offset("Orders", 0) == 40
    again.check()
    again.close()


@pytest.mark.parametrize("size", [0, 100])
def test_a_queue_file_that_was_cut_while_nobody_looked_is_built_again(tmp_path: Path, size: int) -> None:
    """The start was refused with the advice to configure another size, though the log has everything."""
    store = filled_store(tmp_path)
    store.append([message(queue_id=1)])
    store.flush_disk()
    store.confirm(store.flushed_offset)
    store.close()
    path = max((tmp_path / "consumequeue" / "Orders" / "0").iterdir())
    os.truncate(path, size)
    with capture_logs() as logs:
        again = open_store(DiskIo(), root=tmp_path)
    assert served(again) == list(range(40))
    logged = [entry for entry in logs if entry["event"] == "store.queue_rebuilt"]
    assert [(entry["topic"], entry["queue_id"]) for entry in logged] == [("Orders", 0)]
    again.check()
    again.close()


def test_queue_files_that_all_have_another_length_are_another_setting(tmp_path: Path) -> None:
    filled_store(tmp_path, count=20).close()
    with pytest.raises(CorruptStore, match="length is 320, must be 640; configure the size"):
        open_store(DiskIo(), root=tmp_path, consume_queue_file_size=640)
    assert len(list((tmp_path / "consumequeue" / "Orders" / "0").iterdir())) == 2


def test_a_log_file_that_was_cut_stops_the_start_with_a_true_sentence(tmp_path: Path) -> None:
    """It said "configure the size the store was written with", and the size was configured."""
    filled_store(tmp_path).close()
    path = max((tmp_path / "commitlog").iterdir())
    content = path.read_bytes()
    os.truncate(path, 8192)
    with pytest.raises(CorruptStore, match="this one was cut or not copied whole") as refused:
        open_store(DiskIo(), root=tmp_path)
    os.truncate(path, 16384)
    assert f"truncate -s 16384 {path}" in str(refused.value)
    with pytest.raises(CorruptStore, match="but it was on disk up to"):
        open_store(DiskIo(), root=tmp_path)
    path.write_bytes(content)
    again = open_store(DiskIo(), root=tmp_path)
    assert served(again) == list(range(40))
    again.close()
