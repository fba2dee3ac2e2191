"""The checkpoint: RocketMQ's stamps, our watermarks, and when to believe them."""

import struct
from pathlib import Path

import pytest

from aerobee_store.log.checkpoint import Checkpoint, Stamps, Watermark
from store.memory_io import MemoryIo, PowerFailure

PATH = Path("/store/checkpoint")


def written(io: MemoryIo, *pairs: tuple[Stamps, Watermark]) -> None:
    checkpoint = Checkpoint(PATH, io)
    checkpoint.load()
    for stamps, watermark in pairs:
        checkpoint.write(stamps, watermark)
    checkpoint.close()


def loaded(io: MemoryIo) -> Checkpoint:
    checkpoint = Checkpoint(PATH, io)
    checkpoint.load()
    return checkpoint


ONE = (Stamps(10_000, 20_000, 30_000, 4, 5), Watermark(100, 90, 80, 70, 0))
TWO = (Stamps(11_000, 21_000, 31_000, 4, 5), Watermark(200, 190, 180, 170, 0))
THREE = (Stamps(12_000, 22_000, 32_000, 4, 5), Watermark(300, 290, 280, 270, 0))


def test_without_a_file_nothing_is_known() -> None:
    checkpoint = loaded(MemoryIo())
    assert (checkpoint.stamps, checkpoint.mark) == (Stamps(), None)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_was_written_last_is_loaded(count: int) -> None:
    io = MemoryIo()
    pairs = (ONE, TWO, THREE)[:count]
    written(io, *pairs)
    checkpoint = loaded(io)
    assert (checkpoint.stamps, checkpoint.mark) == pairs[-1]


def test_stamps_stand_where_the_official_program_reads_them() -> None:
    io = MemoryIo()
    written(io, ONE)
    raw = io.read_bytes(PATH)
    assert raw is not None
    assert len(raw) == 4096
    assert struct.unpack_from(">5q", raw) == tuple(ONE[0])
    assert not any(raw[40:2048])


def test_recovery_by_time_starts_three_seconds_before_the_older_stamp() -> None:
    assert Stamps(10_000, 20_000).start_timestamp == 7_000
    assert Stamps(20_000, 10_000).start_timestamp == 7_000
    assert Stamps(1_000, 10_000).start_timestamp == 0


def test_after_an_official_run_the_watermark_says_nothing() -> None:
    io = MemoryIo()
    written(io, ONE, TWO)
    file = io.open_file(PATH, 4096)
    file.write(0, struct.pack(">q", 99_000))
    checkpoint = loaded(io)
    assert (checkpoint.stamps.log_timestamp, checkpoint.mark) == (99_000, None)


def test_a_torn_copy_counts_for_nothing() -> None:
    """The older copy then has other stamps than those that stand there, so it does not count either."""
    io = MemoryIo()
    written(io, ONE, TWO)
    io.flip(PATH, 2048 + 20)
    assert loaded(io).mark is None


def test_rot_in_the_older_copy_does_no_harm() -> None:
    io = MemoryIo()
    written(io, ONE, TWO)
    io.flip(PATH, 3072 + 20)
    assert loaded(io).mark == TWO[1]


@pytest.mark.parametrize("operation", range(5))
def test_a_crash_while_writing_leaves_an_old_or_new_watermark(operation: int) -> None:
    io = MemoryIo()
    written(io, ONE, TWO)
    checkpoint = loaded(io)
    io.stop_after(operation)
    try:
        checkpoint.write(*THREE)
    except PowerFailure:
        assert operation < 4
    for left in (io.crash(), io.kill()):
        found = loaded(left)
        assert found.mark in (TWO[1], THREE[1])
        assert found.stamps in (TWO[0], THREE[0])


@pytest.mark.parametrize("size", [0, 100, 4097])
def test_a_file_of_another_length_is_ignored_and_replaced(size: int) -> None:
    io = MemoryIo()
    io.replace_bytes(PATH, b"\x01" * size)
    assert loaded(io).stamps == Stamps()
    written(io, ONE)
    assert loaded(io).mark == ONE[1]


def test_everything_is_on_disk_below_the_lowest_mark() -> None:
    assert Watermark(100, 90, 80, 70).all_end == 80
    assert Watermark(50, 90, 80, 70).all_end == 50
