"""Consume queue: places of entries, refusals, cuts, recovery, and the official files."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_store.disk.io import DataFile, DiskIo, StoreIo
from aerobee_store.faults.errors import CorruptStore, StoreFull
from aerobee_store.queues.consume_queue import (
    BLANK_ENTRY,
    ENTRY,
    ENTRY_SIZE,
    ConsumeQueue,
    ConsumeQueueEntry,
    QueueOutOfOrder,
)
from store.golden_cases import GoldenLog, expectation, open_queues, unpack
from store.released import delete
from store.torn_io import RememberingFile, RememberingIo, leave_only

PER_FILE = 8
FILE_SIZE = PER_FILE * ENTRY_SIZE
RECORD = 100


def packed(first: int, count: int) -> bytes:
    """`count` entries from queue offset `first` on, of adjacent records of RECORD bytes."""
    return b"".join(ENTRY.pack(n * RECORD, RECORD, n * 7) for n in range(first, first + count))


def open_queue(folder: Path, *, load: bool = False, writable: bool = True) -> ConsumeQueue:
    queue = ConsumeQueue("TopicTest", 3, folder / "TopicTest" / "3", FILE_SIZE, DiskIo(), writable=writable)
    if load:
        queue.load()
    return queue


def filled(folder: Path, count: int, first: int = 0) -> ConsumeQueue:
    queue = open_queue(folder)
    queue.put_entries(first, packed(first, count))
    return queue


def file_of(folder: Path, first_byte: int) -> Path:
    return folder / "TopicTest" / "3" / f"{first_byte:020d}"


def names(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in (folder / "TopicTest" / "3").iterdir())


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def offsets(queue: ConsumeQueue) -> list[int]:
    """Queue offsets that answer with the entry that was put there."""
    return [
        n
        for n in range(queue.min_offset, queue.max_offset)
        if queue.entry(n) == ConsumeQueueEntry(n * RECORD, RECORD, n * 7)
    ]


# --- putting and reading ---------------------------------------------------------------------------------


def test_the_worked_example_byte_for_byte(tmp_path: Path) -> None:
    """Tag TagA, a record of 221 bytes at 1073742848, queue offset 5."""
    queue = ConsumeQueue("TopicTest", 3, tmp_path / "TopicTest" / "3", 300_000 * ENTRY_SIZE, DiskIo())
    queue.put_entries(5, ENTRY.pack(1073742848, 221, 2598919))
    content = file_of(tmp_path, 0).read_bytes()
    assert len(content) == 6_000_000
    assert content[100:120] == bytes.fromhex("0000000040000400000000dd000000000027a807")
    assert content[:100] == BLANK_ENTRY * 5
    assert not any(content[120:])
    assert (queue.min_offset, queue.max_offset, queue.last_physical_end) == (5, 6, 1073743069)
    queue.check()


def test_an_empty_queue_has_no_files(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, load=True)
    assert (queue.min_offset, queue.max_offset, queue.last_physical_end) == (0, 0, -1)
    assert queue.entry(0) is None
    assert len(queue.read(0, 32)) == 0
    queue.check()
    assert list(tmp_path.iterdir()) == []


def test_a_put_spreads_over_as_many_files_as_it_needs(tmp_path: Path) -> None:
    queue = filled(tmp_path, 2 * PER_FILE + 3)
    assert names(tmp_path) == [0, FILE_SIZE, 2 * FILE_SIZE]
    assert offsets(queue) == list(range(2 * PER_FILE + 3))
    queue.check()


def test_a_file_is_made_only_with_its_first_entry(tmp_path: Path) -> None:
    queue = filled(tmp_path, PER_FILE)
    assert names(tmp_path) == [0]
    queue.put_entries(PER_FILE, packed(PER_FILE, 1))
    assert names(tmp_path) == [0, FILE_SIZE]


class SmallDiskIo(DiskIo):
    """A disk that is full after some files."""

    def __init__(self, files_left: int) -> None:
        self.files_left = files_left

    def open_file(
        self, path: Path, size: int, *, create: bool = False, writable: bool = True, room: int | None = None
    ) -> DataFile:
        if create and self.files_left == 0:
            raise StoreFull(path, size)
        self.files_left -= create
        return super().open_file(path, size, create=create, writable=writable, room=room)


def test_a_batch_is_one_write(tmp_path: Path) -> None:
    io = RememberingIo()
    queue = ConsumeQueue("T", 0, tmp_path / "T" / "0", FILE_SIZE, io)
    queue.put_entries(3, packed(3, 2))
    queue.put_entries(5, packed(5, 3))
    queue.put_entries(8, packed(8, 4))
    assert [(at, len(data)) for _, at, data in io.writes] == [(0, 100), (100, 60), (0, 80)]


def test_a_full_disk_leaves_the_queue_as_it_was(tmp_path: Path) -> None:
    io = SmallDiskIo(files_left=2)
    queue = ConsumeQueue("T", 0, tmp_path / "T" / "0", FILE_SIZE, io)
    queue.put_entries(0, packed(0, 5))
    with pytest.raises(StoreFull):
        queue.put_entries(5, packed(5, 2 * PER_FILE))
    assert (queue.max_offset, len(queue.file_spans)) == (5, 1)
    queue.check()
    io.files_left = 2
    queue.put_entries(5, packed(5, 2 * PER_FILE))
    assert offsets(queue) == list(range(5 + 2 * PER_FILE))


def test_a_full_disk_at_the_first_entry_leaves_nothing(tmp_path: Path) -> None:
    queue = ConsumeQueue("T", 0, tmp_path / "T" / "0", FILE_SIZE, io := SmallDiskIo(files_left=1))
    with pytest.raises(StoreFull):
        queue.put_entries(4, packed(4, 2 * PER_FILE))
    assert queue.max_offset == 0
    io.files_left = 3
    queue.put_entries(4, packed(4, 2 * PER_FILE))
    assert offsets(queue) == list(range(4, 4 + 2 * PER_FILE))


@pytest.mark.parametrize(("offered", "kind"), [(6, "gap"), (4, "overlap"), (0, "overlap")])
def test_gaps_and_overlaps_are_refused_and_nothing_is_written(
    tmp_path: Path, offered: int, kind: str
) -> None:
    queue = filled(tmp_path, 5)
    before = file_of(tmp_path, 0).read_bytes()
    with pytest.raises(
        QueueOutOfOrder, match=rf"{kind} in queue 3 of TopicTest.*{offered} offered, 5"
    ) as hit:
        queue.put_entries(offered, packed(offered, 2))
    assert (hit.value.expected, hit.value.offered) == (5, offered)
    assert file_of(tmp_path, 0).read_bytes() == before
    assert queue.max_offset == 5


def test_a_record_before_the_newest_one_is_refused(tmp_path: Path) -> None:
    queue = filled(tmp_path, 5)
    with pytest.raises(QueueOutOfOrder, match="physical offset 499 offered, 500 expected"):
        queue.put_entries(5, ENTRY.pack(499, RECORD, 0))


def test_a_read_ends_with_its_file_and_with_the_queue(tmp_path: Path) -> None:
    queue = filled(tmp_path, PER_FILE + 3, first=2)
    assert bytes(queue.read(2, 100)) == packed(2, PER_FILE - 2)
    assert bytes(queue.read(PER_FILE, 100)) == packed(PER_FILE, 5)
    assert bytes(queue.read(4, 2)) == packed(4, 2)
    assert [len(queue.read(n, 5)) for n in (0, 1, PER_FILE + 5, -1)] == [0, 0, 0, 0]


def test_a_view_outlives_the_queue(tmp_path: Path) -> None:
    queue = filled(tmp_path, 5)
    view = queue.read(1, 2)
    queue.destroy()
    assert bytes(view) == packed(1, 2)


def test_blanks_are_never_data(tmp_path: Path) -> None:
    """RocketMQ took them for entries, which made the newest physical offset 2147483647."""
    filled(tmp_path, 2, first=PER_FILE + 3).close()
    queue = open_queue(tmp_path, load=True)
    queue.recover()
    assert names(tmp_path) == [FILE_SIZE]
    assert queue.entry(PER_FILE + 2) is None
    assert offsets(queue) == [PER_FILE + 3, PER_FILE + 4]
    assert (queue.min_offset, queue.last_physical_end) == (PER_FILE + 3, (PER_FILE + 5) * RECORD)
    queue.correct_min_offset(0)
    assert queue.min_offset == PER_FILE + 3


# --- recovery --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 3, PER_FILE, PER_FILE + 5])
@pytest.mark.parametrize("count", [1, 5, PER_FILE, 4 * PER_FILE, 4 * PER_FILE + 1])
def test_recovery_finds_what_was_put(tmp_path: Path, first: int, count: int) -> None:
    filled(tmp_path, count, first).close()
    queue = open_queue(tmp_path, load=True)
    found = queue.recover()
    assert (found.min_offset, found.max_offset, found.cut_entries) == (first, first + count, 0)
    assert offsets(queue) == list(range(first, first + count))
    queue.check()
    queue.put_entries(first + count, packed(first + count, 3))
    queue.check()


DAMAGE: dict[str, bytes] = {
    "zeros": bytes(ENTRY_SIZE),
    "no size": ENTRY.pack(300, 0, 9),
    "negative size": ENTRY.pack(300, -1, 9),
    "negative offset": ENTRY.pack(-300, 100, 9),
    "overlaps the one before": ENTRY.pack(299, 100, 9),
    "ends behind every number": ENTRY.pack((1 << 63) - 50, 100, 9),
    "a blank": BLANK_ENTRY,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_recovery_cuts_at_a_broken_entry_and_zeroes_the_rest(tmp_path: Path, damage: bytes) -> None:
    filled(tmp_path, PER_FILE + 2).close()
    overwrite(file_of(tmp_path, 0), 3 * ENTRY_SIZE, damage)
    queue = open_queue(tmp_path, load=True)
    found = queue.recover()
    assert found.max_offset == 3
    assert found.cut_entries == (0 if damage == bytes(ENTRY_SIZE) else 5)
    assert names(tmp_path) == [0]
    assert file_of(tmp_path, 0).read_bytes() == packed(0, 3).ljust(FILE_SIZE, b"\0")
    queue.check()


@pytest.mark.parametrize("keep", [PER_FILE, 2 * PER_FILE], ids=["one file", "two files"])
def test_an_empty_last_file_is_removed(tmp_path: Path, keep: int) -> None:
    """An empty last file stops the official broker from starting."""
    filled(tmp_path, keep + 1).close()
    overwrite(file_of(tmp_path, keep * ENTRY_SIZE), 0, bytes(ENTRY_SIZE))
    queue = open_queue(tmp_path, load=True)
    assert queue.recover().max_offset == keep
    assert len(names(tmp_path)) == keep // PER_FILE
    queue.check()


def test_a_first_entry_of_zeros_is_no_entry(tmp_path: Path) -> None:
    """RocketMQ kept an all-zero first entry: the queue's max offset was one too high."""
    filled(tmp_path, 2).close()
    overwrite(file_of(tmp_path, 0), 0, bytes(ENTRY_SIZE))
    queue = open_queue(tmp_path, load=True)
    assert queue.recover().max_offset == 0
    assert not file_of(tmp_path, 0).exists()


def refuse(*bad: int) -> Callable[[ConsumeQueueEntry, int], bool]:
    def verify(entry: ConsumeQueueEntry, offset: int) -> bool:
        assert entry == (offset * RECORD, RECORD, offset * 7)
        return offset not in bad

    return verify


@pytest.mark.parametrize("bad", [0, 1, PER_FILE - 1, PER_FILE, 3 * PER_FILE - 1])
def test_recovery_asks_the_log_about_every_entry(tmp_path: Path, bad: int) -> None:
    filled(tmp_path, 3 * PER_FILE).close()
    queue = open_queue(tmp_path, load=True)
    assert queue.recover(refuse(bad)).max_offset == bad
    assert offsets(queue) == list(range(bad))
    queue.check()


def test_records_that_the_log_has_lost_are_not_asked_about(tmp_path: Path) -> None:
    filled(tmp_path, 10).close()
    queue = open_queue(tmp_path, load=True)
    assert queue.recover(refuse(0, 3), log_min=4 * RECORD).max_offset == 10


@pytest.mark.parametrize("proven", [1, 5, PER_FILE, 4 * PER_FILE + 3, 5 * PER_FILE, 9 * PER_FILE])
def test_only_what_is_not_proven_is_verified_whole(tmp_path: Path, proven: int) -> None:
    """Above the watermark each entry, the one before it, and the edges of older files."""
    count = 5 * PER_FILE
    filled(tmp_path, count).close()
    asked: list[int] = []

    def verify(_: ConsumeQueueEntry, offset: int) -> bool:
        asked.append(offset)
        return True

    queue = open_queue(tmp_path, load=True)
    assert queue.recover(verify, proven_offset=proven * RECORD).max_offset == count
    begin = min(proven, count) - 1
    edges = {n for n in range(begin) if n % PER_FILE in (0, PER_FILE - 1)}
    border = begin // PER_FILE * PER_FILE
    edges |= {border, begin - 1} if border < begin else set()
    assert sorted(asked) == sorted(edges | set(range(begin, count)))


def test_damage_in_an_old_file_is_found_at_its_edges(tmp_path: Path) -> None:
    """RocketMQ looks at the last three files only."""
    filled(tmp_path, 6 * PER_FILE).close()
    overwrite(file_of(tmp_path, FILE_SIZE), (PER_FILE - 1) * ENTRY_SIZE, b"\xff" * ENTRY_SIZE)
    queue = open_queue(tmp_path, load=True)
    assert queue.recover(refuse()).max_offset == 2 * PER_FILE - 1
    assert names(tmp_path) == [0, FILE_SIZE]
    queue.check()


def test_an_old_file_whose_last_entry_ends_behind_every_number_is_cut_there(tmp_path: Path) -> None:
    """Fuzzing: what comes behind it was compared with an end that is no 64-bit number, and recovery ended."""
    filled(tmp_path, 2 * PER_FILE).close()
    overwrite(file_of(tmp_path, 0), (PER_FILE - 1) * ENTRY_SIZE, ENTRY.pack((1 << 63) - 50, 100, 9))
    for proven in (0, 2 * PER_FILE * RECORD):
        queue = open_queue(tmp_path, load=True)
        assert queue.recover(proven_offset=proven).max_offset == PER_FILE - 1
        queue.close()


def test_a_hole_inside_an_old_file_is_found_when_nothing_is_proven(tmp_path: Path) -> None:
    """A lost page leaves zeros between whole entries; first, last and newest entries all look right."""
    filled(tmp_path, 6 * PER_FILE).close()
    overwrite(file_of(tmp_path, FILE_SIZE), 3 * ENTRY_SIZE, bytes(2 * ENTRY_SIZE))
    queue = open_queue(tmp_path, load=True)
    assert queue.recover(refuse()).max_offset == PER_FILE + 3
    queue.check()


def test_recovery_of_a_read_only_queue_changes_nothing(tmp_path: Path) -> None:
    filled(tmp_path, PER_FILE + 3).close()
    overwrite(file_of(tmp_path, 0), 5 * ENTRY_SIZE, b"\xff" * ENTRY_SIZE)
    before = {path.name: path.read_bytes() for path in file_of(tmp_path, 0).parent.iterdir()}
    queue = open_queue(tmp_path, load=True, writable=False)
    assert queue.recover().max_offset == 5
    assert offsets(queue) == list(range(5))
    assert queue.last_physical_end == 5 * RECORD
    assert {path.name: path.read_bytes() for path in file_of(tmp_path, 0).parent.iterdir()} == before


def test_a_missing_middle_file_is_named_and_the_rest_kept(tmp_path: Path) -> None:
    filled(tmp_path, 3 * PER_FILE).close()
    file_of(tmp_path, FILE_SIZE).unlink()
    queue = open_queue(tmp_path, load=True)
    found = queue.recover()
    assert (found.max_offset, found.gaps) == (3 * PER_FILE, ((PER_FILE, 2 * PER_FILE),))
    assert queue.entry(PER_FILE) is None
    assert len(queue.read(PER_FILE, 4)) == 0
    assert queue.entry(2 * PER_FILE) == (2 * PER_FILE * RECORD, RECORD, 2 * PER_FILE * 7)
    with pytest.raises(CorruptStore, match="files are missing"):
        queue.check()
    queue.cut_at(PER_FILE)
    assert queue.max_offset == PER_FILE
    queue.check()


@given(
    first=st.integers(0, PER_FILE + 2),
    batches=st.lists(st.integers(1, PER_FILE + 2), min_size=1, max_size=8),
    survived=st.lists(st.booleans(), max_size=12),
    proven=st.integers(0, 3),
)
def test_whatever_writes_a_power_failure_leaves_recovery_keeps_a_true_prefix(
    tmp_path_factory: pytest.TempPathFactory,
    first: int,
    batches: list[int],
    survived: list[bool],
    proven: int,
) -> None:
    """Any part of the writes may be missing behind what was flushed; putting the rest again restores all."""
    folder = tmp_path_factory.mktemp("queue")
    io = RememberingIo()
    queue = ConsumeQueue("TopicTest", 3, folder / "TopicTest" / "3", FILE_SIZE, io)
    ends, writes_at = [first], [0]
    for size in batches:
        queue.put_entries(ends[-1], packed(ends[-1], size))
        ends.append(queue.max_offset)
        writes_at.append(len(io.writes))
    queue.close()
    durable = min(proven, len(batches))
    flags = [True] * writes_at[durable] + survived
    leave_only(folder, io.writes, flags)
    watermark = ends[durable] * RECORD if durable else 0
    queue = open_queue(folder, load=True)
    queue.recover(refuse(), proven_offset=watermark)
    queue.check()
    assert offsets(queue) == list(range(first if queue.max_offset else 0, queue.max_offset))
    assert queue.max_offset >= ends[durable] or not durable
    start = queue.max_offset or first
    if start < ends[-1]:
        queue.put_entries(start, packed(start, ends[-1] - start))
    assert offsets(queue) == list(range(first, ends[-1]))
    queue.check()
    queue.destroy()


# --- cutting ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("end", [0, 3, 4, PER_FILE, PER_FILE + 1, 2 * PER_FILE, 20, 21])
def test_a_cut_leaves_the_records_that_end_in_time(tmp_path: Path, first: int, end: int) -> None:
    queue = filled(tmp_path, 20 - first, first)
    dropped = queue.cut_at_physical(end * RECORD + RECORD - 1)
    kept = list(range(first, min(end, 20)))
    assert dropped == 20 - first - len(kept)
    assert offsets(queue) == kept
    queue.check()
    start = queue.max_offset
    queue.put_entries(start, packed(start, 12))
    queue.check()


def test_what_was_cut_does_not_come_back(tmp_path: Path) -> None:
    """Without zeroing, entries behind a cut were accepted again after the next crash."""
    queue = filled(tmp_path, 7)
    queue.cut_at_physical(3 * RECORD)
    queue.put_entries(3, packed(3, 1))
    queue.close()
    again = open_queue(tmp_path, load=True)
    assert again.recover().max_offset == 4


def test_a_queue_that_lost_everything_starts_anywhere(tmp_path: Path) -> None:
    queue = filled(tmp_path, 7)
    queue.cut_at_physical(0)
    assert (queue.min_offset, queue.max_offset, queue.last_physical_end) == (0, 0, -1)
    queue.put_entries(9, packed(9, 1))
    assert offsets(queue) == [9]


# --- the lower end ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("log_min", range(0, 25, 3))
def test_the_minimum_is_searched_in_all_files(tmp_path: Path, first: int, log_min: int) -> None:
    """RocketMQ searches the first file only, so its minimum stays too low until old files go."""
    queue = filled(tmp_path, 20 - first, first)
    queue.correct_min_offset(log_min * RECORD - 1)
    assert queue.min_offset == min(max(log_min, first), 20)
    assert queue.max_offset == 20


@pytest.mark.parametrize(
    ("log_min", "left"),
    [(0, [0, 1, 2]), (PER_FILE - 1, [0, 1, 2]), (PER_FILE, [1, 2]), (2 * PER_FILE, [2]), (99, [2])],
)
def test_cleaning_takes_files_without_living_records(tmp_path: Path, log_min: int, left: list[int]) -> None:
    queue = filled(tmp_path, 20)
    assert delete(queue.release_before(log_min * RECORD), DiskIo()) == 3 - len(left)
    assert names(tmp_path) == [n * FILE_SIZE for n in left]
    assert (queue.min_offset, queue.max_offset) == (min(log_min, 20), 20)
    queue.check()


def test_a_queue_without_living_records_keeps_its_numbers(tmp_path: Path) -> None:
    queue = filled(tmp_path, 20)
    delete(queue.release_before(10**9), DiskIo())
    queue.close()
    again = open_queue(tmp_path, load=True)
    again.recover(refuse(*range(20)), log_min=10**9)
    again.correct_min_offset(10**9)
    assert (again.min_offset, again.max_offset) == (20, 20)
    again.put_entries(20, ENTRY.pack(10**9, 5, 0))
    assert again.entry(20) == (10**9, 5, 0)


def test_destroy_removes_files_and_folder(tmp_path: Path) -> None:
    queue = filled(tmp_path, 20)
    queue.destroy()
    assert not (tmp_path / "TopicTest" / "3").exists()
    assert (queue.min_offset, queue.max_offset, queue.last_physical_end) == (0, 0, -1)


# --- flushing --------------------------------------------------------------------------------------------


class SyncCountingIo(DiskIo):
    """A disk that remembers which files were synced, and may refuse."""

    def __init__(self) -> None:
        self.synced: list[str] = []
        self.broken = False

    def open_file(
        self, path: Path, size: int, *, create: bool = False, writable: bool = True, room: int | None = None
    ) -> DataFile:
        file = RememberingFile(super().open_file(path, size, create=create, writable=writable, room=room), [])
        really = file.sync

        def sync() -> None:
            if self.broken:
                raise OSError(errno.EIO, "injected")
            self.synced.append(path.name)
            really()

        file.sync = sync
        return file


def flush(queue: ConsumeQueue, io: StoreIo) -> None:
    """What the queue table does with all its queues."""
    if unflushed := queue.unflushed():
        io.sync_all(unflushed.files, unflushed.folders)
        queue.flushed(unflushed)


def test_flush_syncs_the_files_that_grew(tmp_path: Path) -> None:
    queue = ConsumeQueue("T", 0, tmp_path / "T" / "0", FILE_SIZE, io := SyncCountingIo())
    queue.put_entries(0, packed(0, 3))
    flush(queue, io)
    flush(queue, io)
    assert [int(name) for name in io.synced] == [0]
    queue.put_entries(3, packed(3, PER_FILE))
    assert [int(name) for name in io.synced] == [0]  # the event loop does not wait for what was done
    flush(queue, io)
    assert [int(name) for name in io.synced] == [0, 0, FILE_SIZE]
    queue.put_entries(3 + PER_FILE, packed(3 + PER_FILE, 1))
    flush(queue, io)
    assert [int(name) for name in io.synced] == [0, 0, FILE_SIZE, FILE_SIZE]


def test_a_file_has_its_length_before_there_is_another(tmp_path: Path) -> None:
    queue = ConsumeQueue("T", 0, tmp_path / "T" / "0", FILE_SIZE, io := SyncCountingIo())
    queue.put_entries(0, packed(0, PER_FILE))
    queue.put_entries(PER_FILE, packed(PER_FILE, PER_FILE))
    assert [int(name) for name in io.synced] == [0]
    flush(queue, io)
    queue.put_entries(2 * PER_FILE, packed(2 * PER_FILE, PER_FILE))
    assert [int(name) for name in io.synced] == [0, 0, FILE_SIZE]
    queue.put_entries(3 * PER_FILE, packed(3 * PER_FILE, 1))
    assert [int(name) for name in io.synced] == [0, 0, FILE_SIZE, 2 * FILE_SIZE]


def test_a_failed_sync_is_reported(tmp_path: Path) -> None:
    queue = ConsumeQueue("T", 0, tmp_path / "T" / "0", FILE_SIZE, io := SyncCountingIo())
    queue.put_entries(0, packed(0, 3))
    io.broken = True
    with pytest.raises(OSError, match="injected"):
        flush(queue, io)


# --- check -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("position", "data", "reason"),
    [
        (2 * ENTRY_SIZE, b"\xff" * 8, "broken entry 2"),
        (7 * ENTRY_SIZE + 3, b"x", "not zero"),
        (4 * ENTRY_SIZE, ENTRY.pack(400, 101, 0), "newest record ends elsewhere"),
        (0, BLANK_ENTRY, "first entry is not where it was"),
    ],
)
def test_check_finds_broken_invariants(tmp_path: Path, position: int, data: bytes, reason: str) -> None:
    queue = filled(tmp_path, 5)
    queue.check()
    overwrite(file_of(tmp_path, 0), position, data)
    with pytest.raises(CorruptStore, match=reason):
        queue.check()


# --- a model ---------------------------------------------------------------------------------------------

STEPS = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 2 * PER_FILE + 1)),
    st.tuples(st.just("cut"), st.integers(0, 60)),
    st.tuples(st.just("clean"), st.integers(0, 60)),
    st.tuples(st.just("reopen"), st.integers(0, 60)),
)


@given(first=st.integers(0, 3 * PER_FILE), steps=st.lists(STEPS, max_size=12))
def test_any_history_leaves_what_a_list_would_hold(
    tmp_path_factory: pytest.TempPathFactory, first: int, steps: list[tuple[str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("queue")
    queue = filled(folder, 1, first)
    model, log_min = [first], 0
    for action, number in steps:
        if action == "put":
            start = queue.max_offset
            queue.put_entries(start, packed(start, number))
            model += range(start, start + number)
        elif action == "cut":
            queue.cut_at_physical(number * RECORD)
            model = [n for n in model if n < number]
        elif action == "clean":
            log_min = max(log_min, number)
            delete(queue.release_before(log_min * RECORD), DiskIo())
        else:
            queue.close()
            queue = open_queue(folder, load=True)
            queue.recover(refuse(), log_min=log_min * RECORD, proven_offset=number * RECORD)
        queue.correct_min_offset(log_min * RECORD)
        assert offsets(queue) == [n for n in model if n >= log_min]
        queue.check()
    queue.destroy()


# --- official files --------------------------------------------------------------------------------------

READABLE = ("clean", "features", "kill9", "kill9-busy", "propcrc", "cq-first-file-missing-normal", "expire")


@pytest.mark.parametrize("case", READABLE)
def test_official_queues_read_as_the_official_broker_reads_them(case: str, tmp_path: Path) -> None:
    root = unpack(case, tmp_path)
    log = GoldenLog.read(root)
    table = open_queues(case, root)

    def verify(entry: ConsumeQueueEntry, _: int) -> bool:
        record = log.records.get(entry.physical_offset)
        return record is not None and record.size == entry.size

    for queue in table:
        queue.recover(verify)
        queue.correct_min_offset(log.begin)
        queue.check()
    for requested in expectation(case)["consumeQueues"]:
        found = table.get(requested["topic"], requested["queueId"])
        if found is None:
            assert requested["maxOffset"] == 0
            continue
        assert (found.min_offset, found.max_offset) == (requested["minOffset"], requested["maxOffset"])
        entries = [found.entry(n) for n in range(found.min_offset, found.max_offset)]
        assert entries == [tuple(entry) for entry in requested["entries"]]


@pytest.mark.parametrize("case", ["cq-ahead", "cq-ahead-normal", "cq-garbage-high"])
def test_official_queues_ahead_of_the_log_are_cut_to_it(case: str, tmp_path: Path) -> None:
    table = open_queues(case, unpack(case, tmp_path))
    for queue in table:
        queue.recover()
    table.cut_at_physical(expectation(case)["load"]["maxPhyOffset"])
    for requested in expectation(case)["consumeQueues"]:
        found = table.get(requested["topic"], requested["queueId"])
        assert (found.max_offset if found else 0) == requested["maxOffset"]
    table.check()


def test_cutting_follows_the_official_broker_step_by_step(tmp_path: Path) -> None:
    table = open_queues("truncate", unpack("truncate", tmp_path))
    for queue in table:
        queue.recover()
    cuts = [step for step in expectation("truncate")["steps"] if step["op"].startswith("truncate")]
    assert cuts
    for step in cuts:
        table.cut_at_physical(step["toOffset"])
        table.check()
        for requested in step["queues"]:
            found = table.get(requested["topic"], requested["queueId"])
            assert (found.max_offset if found else 0) == requested["maxOffset"]


@pytest.mark.parametrize("case", ["commitlog-oldest-deleted", "commitlog-only-last-kept"])
def test_the_minimum_after_the_log_lost_files_is_the_first_living_record(case: str, tmp_path: Path) -> None:
    """The official broker still answers the old minimum here: it searches the first queue file only."""
    root = unpack(case, tmp_path)
    log = GoldenLog.read(root)
    table = open_queues(case, root)
    moved = 0
    for queue in table:
        queue.recover()
        queue.correct_min_offset(log.begin)
        living = [
            r.queue_offset
            for r in log.records.values()
            if (r.topic, r.queue_id) == (queue.topic, queue.queue_id)
        ]
        assert queue.min_offset == min(living, default=queue.max_offset)
        moved += queue.min_offset > 0
    assert moved


@given(steps=st.lists(st.one_of(st.integers(1, 30), st.integers(-300, -1)), max_size=40))
def test_entries_stored_through_the_window_are_those_of_the_files(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int]
) -> None:
    """Files of several pages: positive steps put so many entries, negative ones cut so many off the end."""
    folder = tmp_path_factory.mktemp("window")

    def opened() -> ConsumeQueue:
        return ConsumeQueue("TopicTest", 3, folder / "TopicTest" / "3", 500 * ENTRY_SIZE, DiskIo())

    queue, end = opened(), 0
    for step in steps:
        if step < 0:
            end = max(end + step, 0)
            queue.cut_at(end)
        else:
            # Few at a time, as messages come: large writes do not go through the window.
            for _ in range(step):
                queue.put_entries(end, packed(end, 7))
                end += 7
    queue.check()
    queue.close()
    again = opened()
    again.load()
    again.recover()
    found = b"".join(bytes(again.read(at, 1)) for at in range(end))
    assert (again.max_offset, found) == (end, packed(0, end))
    again.close()
