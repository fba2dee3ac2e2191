"""Queues of batches: bytes as RocketMQ wrote them, search by offset and time, what recovery keeps."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_store.disk.io import DiskIo
from aerobee_store.queues.batch_queue import (
    BATCH_ENTRY_SIZE,
    BatchEntry,
    BatchQueue,
    batch_entries,
    inner_count,
)
from aerobee_store.queues.consume_queue import QueueOutOfOrder
from store.memory_io import MemoryIo
from store.released import delete

# As an official 5.3.3 broker wrote them: a single message, a batch of three as one record, a batch without a key.
OFFICIAL = [
    BatchEntry(18202, 192, 2598919, 1795334331291, 0, 1),
    BatchEntry(18394, 373, 2598919, 1795334331299, 1, 3),
    BatchEntry(18767, 188, 2598919, 1795334331302, 4, 1),
    BatchEntry(18955, 188, 2598919, 1795334331302, 5, 1),
    BatchEntry(19143, 188, 2598919, 1795334331302, 6, 1),
    BatchEntry(19331, 175, 0, 1795334331306, 7, 1),
]
OFFICIAL_BYTES = (
    "000000000000471a000000c0000000000027a807000001a20243db9b00000000000000000001ffffffff00000000"
    "00000000000047da00000175000000000027a807000001a20243dba300000000000000010003ffffffff00000000"
    "000000000000494f000000bc000000000027a807000001a20243dba600000000000000040001ffffffff00000000"
    "0000000000004a0b000000bc000000000027a807000001a20243dba600000000000000050001ffffffff00000000"
    "0000000000004ac7000000bc000000000027a807000001a20243dba600000000000000060001ffffffff00000000"
    "0000000000004b83000000af0000000000000000000001a20243dbaa00000000000000070001ffffffff00000000"
)
ROOT = Path("/store/batchconsumequeue/T/0")


def queue(io: MemoryIo | None = None, *, per_file: int = 4) -> BatchQueue:
    return BatchQueue("T", 0, ROOT, per_file * BATCH_ENTRY_SIZE, io or MemoryIo())


def put(made: BatchQueue, *entries: BatchEntry) -> None:
    for entry in entries:
        made.put_entries(entry.base, entry.packed())


def filled(io: MemoryIo | None = None) -> BatchQueue:
    made = queue(io)
    put(made, *OFFICIAL)
    return made


def entries(made: BatchQueue) -> list[BatchEntry]:
    found, at = [], made.min_offset
    while (entry := made.batch_entry(at)) is not None:
        found.append(entry)
        at = entry.end
    return found


def test_entries_are_those_of_the_original() -> None:
    assert "".join(entry.packed().hex() for entry in OFFICIAL) == OFFICIAL_BYTES
    assert BATCH_ENTRY_SIZE == 46


def test_an_offset_inside_a_batch_leads_to_the_batch() -> None:
    made = filled()
    found = [made.batch_entry(offset) for offset in range(-1, 9)]
    assert found == [None, *(OFFICIAL[i] for i in (0, 1, 1, 1, 2, 3, 4, 5)), None]
    assert batch_entries(made.read(2, 2)) == OFFICIAL[1:3]
    assert batch_entries(made.read(2, 9)) == OFFICIAL[1:4]  # a read ends with its file
    assert (made.min_offset, made.max_offset, len(made)) == (0, 8, 6)
    assert [made.first_of(offset) for offset in range(8)] == [0, 1, 1, 1, 4, 5, 6, 7]
    assert [made.after(offset) for offset in range(8)] == [1, 4, 4, 4, 5, 6, 7, 8]
    plain = made.entry(3)
    assert plain == OFFICIAL[1][:3]


def test_by_time() -> None:
    made = filled()
    times = (0, 1795334331299, 1795334331300, 1 << 50)
    assert [made.offset_by_time(time, upper=False) for time in times] == [0, 1, 4, 7]
    times = (0, 1795334331299, 1795334331302, 1 << 50)
    assert [made.offset_by_time(time, upper=True) for time in times] == [0, 1, 6, 7]


def test_what_does_not_follow_is_refused() -> None:
    made = filled()
    with pytest.raises(QueueOutOfOrder, match="overlap"):
        put(made, OFFICIAL[2])
    with pytest.raises(QueueOutOfOrder, match="gap"):
        put(made, BatchEntry(30_000, 10, 0, 1, 9, 1))
    with pytest.raises(QueueOutOfOrder, match="overlap"):
        put(made, BatchEntry(19_310, 10, 0, 1, 8, 1))
    apart = BatchEntry(30_000, 10, 0, 1, 8, 2), BatchEntry(30_010, 10, 0, 1, 11, 1)
    with pytest.raises(QueueOutOfOrder, match="gap"):
        made.put_entries(8, b"".join(entry.packed() for entry in apart))
    assert len(made) == 6
    made.check()


def test_it_is_loaded_as_it_was_left() -> None:
    io = MemoryIo()
    filled(io).close()
    again = queue(io)
    again.load()
    assert [(span.start, span.stop) for span in again.file_spans] == [(0, 6), (6, 8)]
    assert again.recover().cut_entries == 0
    assert entries(again) == OFFICIAL
    again.check()


@pytest.mark.parametrize("keep", range(7))
def test_recovery_ends_at_the_first_entry_that_is_not_sound(keep: int) -> None:
    io = MemoryIo()
    filled(io).close()
    again = queue(io)
    again.load()
    bad = OFFICIAL[keep] if keep < 6 else None
    found = again.recover(lambda entry, _: bad is None or entry != bad[:3])
    assert found.cut_entries == 6 - keep
    assert entries(again) == OFFICIAL[:keep]
    again.check()
    put(again, *OFFICIAL[keep:])
    assert again.max_offset == 8
    again.check()


@pytest.mark.parametrize("wrong", range(1, 6))
def test_an_entry_whose_numbers_do_not_follow_ends_the_queue(wrong: int) -> None:
    io = MemoryIo()
    made = queue(io, per_file=8)
    put(made, *OFFICIAL)
    file = made.open_files()[0]
    file.write(wrong * BATCH_ENTRY_SIZE, OFFICIAL[wrong]._replace(base=OFFICIAL[wrong].base + 1).packed())
    made.close()
    again = queue(io, per_file=8)
    again.load()
    again.recover()
    assert entries(again) == OFFICIAL[:wrong]
    again.check()


def test_a_log_that_lost_its_beginning_or_its_end() -> None:
    made = filled()
    made.correct_min_offset(18_400)
    assert (made.min_offset, made.max_offset) == (4, 8)
    made.correct_min_offset(99_999)
    assert (made.min_offset, made.max_offset) == (8, 8)
    made = filled()
    assert made.cut_at_physical(18_767) == 4
    assert (made.min_offset, made.max_offset) == (0, 4)
    made.check()


def test_old_files_go_and_numbers_stay() -> None:
    io = MemoryIo()
    made = filled(io)
    assert delete(made.release_before(19_143), io) == 1
    assert (made.min_offset, made.max_offset) == (6, 8)
    assert delete(made.release_before(99_999), io) == 0
    made.close()
    again = queue(io)
    again.load()
    again.recover()
    assert (again.min_offset, again.max_offset, len(again)) == (6, 8, 2)
    again.check()


def test_an_entry_is_written_again_only_between_its_neighbours() -> None:
    made = queue(per_file=8)
    put(made, *OFFICIAL)
    wrong = OFFICIAL[1]._replace(tag_hash=7)
    made.open_files()[0].write(BATCH_ENTRY_SIZE, wrong.packed())
    assert made.fits_again(1, OFFICIAL[1].packed())
    made.write_again(1, OFFICIAL[1].packed())
    assert entries(made) == OFFICIAL
    for other in (OFFICIAL[1]._replace(message_count=2), OFFICIAL[1]._replace(base=2), OFFICIAL[3]):
        assert not made.fits_again(1, other.packed())
        made.write_again(1, other.packed())
    assert entries(made) == OFFICIAL


def test_numbers_of_lost_records_stay_taken() -> None:
    made = filled()
    holes = made.holes(8, 40_000, 50_000)
    made.put_entries(8, holes)
    assert made.max_offset == 40_008
    assert [entry.message_count for entry in entries(made)[6:]] == [32_767, 7_233]
    made.check()


def test_only_what_is_new_is_synced() -> None:
    made = filled()
    work = made.unflushed()
    assert work is not None
    assert (work.max_offset, len(work.files), made.is_flushed) == (8, 2, False)
    made.flushed(work)
    assert made.is_flushed
    assert made.unflushed() is None
    put(made, BatchEntry(30_000, 10, 0, 1, 8, 3))
    work = made.unflushed()
    assert work is not None
    assert (work.max_offset, len(work.files)) == (11, 1)


@given(st.lists(st.integers(1, 9), max_size=30), st.integers(1, 5), st.integers(0, 30))
def test_against_a_plain_list(counts: list[int], per_file: int, cut: int) -> None:
    io = MemoryIo()
    made, expected = queue(io, per_file=per_file), list[BatchEntry]()
    base = 0
    for number, count in enumerate(counts):
        entry = BatchEntry(number * 100, 100, 0, number, base, count)
        put(made, entry)
        expected += [entry] * count
        base += count
    assert [made.batch_entry(offset) for offset in range(base)] == expected
    made.check()
    made.close()
    again = queue(io, per_file=per_file)
    again.load()
    again.recover()
    assert [again.batch_entry(offset) for offset in range(base)] == expected
    again.cut_at_physical(cut * 100)
    kept = [entry for entry in expected if entry.physical_offset < cut * 100]
    assert [again.batch_entry(offset) for offset in range(base)] == kept + [None] * (base - len(kept))
    again.check()


def test_real_files(tmp_path: Path) -> None:
    made = BatchQueue("T", 0, tmp_path / "0", 3 * BATCH_ENTRY_SIZE, DiskIo())
    put(made, *OFFICIAL)
    made.close()
    assert [path.name for path in sorted((tmp_path / "0").iterdir())] == [f"{n:020d}" for n in (0, 138)]
    assert b"".join(path.read_bytes() for path in sorted((tmp_path / "0").iterdir())) == b"".join(
        entry.packed() for entry in OFFICIAL
    )


@pytest.mark.parametrize(
    ("properties", "count"),
    [
        (b"", 1),
        (b"INNER_NUM\x013\x02", 3),
        (b"INNER_NUM\x0132767\x02", 32767),
        (b"INNER_NUM\x0132768\x02", None),
        (b"INNER_NUM\x010\x02", None),
        (b"INNER_NUM\x01-1\x02", None),
        (b"INNER_NUM\x01three\x02", None),
        (b"INNER_NUM\x01000000000000000003\x02", None),
    ],
)
def test_how_many_messages_a_record_holds(properties: bytes, count: int | None) -> None:
    assert inner_count(properties) == count
