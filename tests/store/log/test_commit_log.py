"""The commit log alone: writing, rolling, allocating ahead, reading, flushing."""

import threading
from pathlib import Path

import pytest

from aerobee_store.faults.errors import CorruptStore, StoreFull
from aerobee_store.log.commit_log import CommitLog
from store.memory_io import MemoryIo

FOLDER = Path("/store/commitlog")
SIZE = 4096


def empty(io: MemoryIo | None = None) -> CommitLog:
    log = CommitLog(FOLDER, SIZE, io or MemoryIo())
    log.load()
    log.recover_to(0, 0)
    return log


def test_an_empty_log_has_no_room_and_no_file() -> None:
    log = empty()
    assert (log.room(), log.min_offset, log.end_offset, log.mapped.files) == (0, 0, 0, ())


def test_a_roll_closes_the_file_with_a_blank_record() -> None:
    log = empty()
    log.roll()
    log.write(b"x" * 4000)
    log.roll()
    assert (log.end_offset, log.room()) == (SIZE, SIZE)
    assert bytes(log.mapped.files[0].view[4000:4008]) == (96).to_bytes(4, "big") + bytes.fromhex("cbd43194")


def test_a_roll_without_room_on_the_disk_changes_nothing() -> None:
    log = empty(MemoryIo(capacity=SIZE))
    log.roll()
    log.write(b"x" * 100)
    with pytest.raises(StoreFull):
        log.roll()
    assert (log.end_offset, log.room()) == (100, SIZE - 100)
    assert not any(log.mapped.files[0].view[100:])
    log.write(b"y" * 100)


def test_a_file_made_ahead_is_taken_by_the_roll() -> None:
    io = MemoryIo()
    log = empty(io)
    assert log.prepare_next()  # the first one, too
    assert not log.mapped.files
    log.roll()
    assert len(io.paths()) == len(log.mapped.files) == 1
    assert log.prepare_next()
    assert not log.prepare_next()
    assert len(log.mapped.files) == 1
    assert len(io.paths()) == 2
    log.roll()
    assert len(io.paths()) == len(log.mapped.files) == 2


def test_a_file_made_ahead_and_not_used_is_removed_at_the_end() -> None:
    io = MemoryIo()
    log = empty(io)
    log.roll()
    log.prepare_next()
    log.close()
    assert [path.name for path in io.paths()] == [f"{0:020d}"]


def test_files_may_be_made_ahead_in_another_thread_while_the_log_rolls() -> None:
    log = empty()
    log.roll()
    stop = threading.Event()

    def worker() -> None:
        while not stop.is_set():
            log.prepare_next()

    helper = threading.Thread(target=worker)
    helper.start()
    try:
        for _ in range(300):
            log.write(b"x" * 100)
            log.roll()
    finally:
        stop.set()
        helper.join()
    assert [file.offset for file in log.mapped.files] == [n * SIZE for n in range(301)]


def test_reads_stay_in_the_log_and_in_one_file() -> None:
    log = empty()
    log.roll()
    log.write(b"abc")
    assert bytes(log.read(0, 3) or b"") == b"abc"
    assert [log.read(*place) for place in ((0, 4), (1, 3), (3, 1), (0, 0), (0, -1), (-1, 2))] == [None] * 6
    log.roll()
    log.write(b"def")
    assert log.read(SIZE - 1, 2) is None
    assert bytes(log.read(SIZE, 3) or b"") == b"def"


def test_a_flush_covers_what_was_written_before_it() -> None:
    io = MemoryIo()
    log = empty(io)
    log.roll()
    log.write(b"x" * 4000)
    log.roll()
    log.write(b"y" * 10)
    assert log.flushed_offset == 0
    assert log.flush() == 2
    assert log.watermark == log.flushed_offset == SIZE + 10
    left = io.crash()
    assert left.read_bytes(FOLDER / f"{0:020d}") == bytes(log.mapped.files[0].view)
    syncs = io.syncs
    log.write(b"z")
    log.flush()
    assert io.syncs == syncs + 1
    assert log.flush() == 0  # nothing was appended
    assert io.syncs == syncs + 1


def test_a_failed_flush_does_not_move_the_flushed_offset() -> None:
    io = MemoryIo()
    log = empty(io)
    log.roll()
    log.write(b"x")
    io.fail_sync(1)
    with pytest.raises(OSError, match="Input/output"):
        log.flush()
    assert log.flushed_offset == 0


def test_bytes_behind_the_end_break_an_invariant() -> None:
    log = empty()
    log.roll()
    log.write(b"x" * 50)
    log.check()
    log.mapped.files[0].data.write(60, b"!")
    with pytest.raises(CorruptStore, match="not zero") as broken:
        log.check()
    assert broken.value.physical_offset == 50
