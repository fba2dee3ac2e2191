"""Queues of which there are more than files may be open: closed and opened again by need, and durable all the same."""

import errno
import os
import resource
import threading
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from aerobee_store.disk.file_maps import DESCRIPTORS_A_MAP
from aerobee_store.disk.file_system import FileSystem, file_system_of
from aerobee_store.disk.io import DataFile, DiskIo
from aerobee_store.disk.queue_files import OpenQueueFiles, QueueFile
from aerobee_store.faults.errors import FileGone, OutOfResources
from aerobee_store.queues.consume_queue import ENTRY, ENTRY_SIZE
from aerobee_store.queues.queue_table import QueueTable

RECORD = 10
FILE_SIZE = 300 * ENTRY_SIZE
COUNT_MAX = 8


class CountingIo(DiskIo):
    """Counts what is open, and what was synced by itself."""

    def __init__(self) -> None:
        self.synced: list[Path] = []
        self.opened = 0
        self.paths: list[Path] = []
        self.scarce = 0

    def open_file(
        self, path: Path, size: int, *, create: bool = False, writable: bool = True, room: int | None = None
    ) -> DataFile:
        if self.scarce:
            self.scarce -= 1
            raise OutOfResources(path, errno.EMFILE)
        self.opened += 1
        self.paths.append(path)
        file = super().open_file(path, size, create=create, writable=writable, room=room)
        real = type(file).sync
        io = self

        class Watched(type(file)):  # type: ignore[misc]
            __slots__ = ()

            def sync(self) -> None:
                io.synced.append(self.path)
                real(self)

        file.__class__ = Watched
        return file


def table_of(folder: Path, io: DiskIo | None = None, count_max: int = COUNT_MAX) -> QueueTable:
    table = QueueTable(folder / "consumequeue", FILE_SIZE, io or DiskIo(), open_files_max=count_max)
    table.load()
    return table


def put(table: QueueTable, topic: int, count: int = 1) -> None:
    queue = table.get_or_create(f"T{topic}", 0)
    start = queue.max_offset
    packed = (ENTRY.pack(n * RECORD, RECORD, topic) for n in range(start, start + count))
    queue.put_entries(start, b"".join(packed))


def check(table: QueueTable, held: dict[int, int]) -> None:
    for topic, count in held.items():
        queue = table.get_or_create(f"T{topic}", 0)
        assert queue.max_offset == count
        found = b"".join(bytes(queue.read(at, 300)) for at in range(0, count, 300))
        assert found == b"".join(ENTRY.pack(n * RECORD, RECORD, topic) for n in range(count))


def descriptors(folder: Path) -> list[str]:
    """The files below `folder` that this process has open."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(link.readlink())
    return [str(path) for path in found if path.is_relative_to(folder) and not path.is_dir()]


def maps(folder: Path) -> int:
    return Path("/proc/self/maps").read_text().count(f"{folder}/")


@pytest.fixture(params=["whole", "one by one"])
def trusted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With and without a file system that can be synced as a whole."""
    if request.param == "one by one":
        monkeypatch.setattr("aerobee_store.disk.io.file_system_of", lambda *_: None)
    return bool(request.param == "whole")


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_puts_reads_and_flushes_is_as_if_all_were_open(
    tmp_path: Path, seed: int, trusted: bool
) -> None:
    random = Random(seed)
    table = table_of(tmp_path)
    held = dict.fromkeys(range(40), 0)
    for _ in range(600):
        topic = random.randrange(40) if random.random() < 0.7 else random.randrange(3)
        count = random.choice((1, 1, 1, 2, 30, 290))
        put(table, topic, count)
        held[topic] += count
        if random.random() < 0.02:
            table.flush()
        if random.random() < 0.1:
            some = random.randrange(40)
            check(table, {some: held[some]})
        assert len(table.open_files) <= COUNT_MAX
    assert table.open_files.closed_count > 100
    assert len(set(descriptors(tmp_path))) <= COUNT_MAX
    assert maps(tmp_path) <= COUNT_MAX
    check(table, held)
    table.check()
    table.flush()
    table.close()
    assert (descriptors(tmp_path), maps(tmp_path)) == ([], 0)
    again = table_of(tmp_path)
    for queue in again:
        queue.recover()
    assert len(again.open_files) <= COUNT_MAX
    check(again, {topic: count for topic, count in held.items() if count})
    again.check()
    again.close()


def test_warm_queues_stay_open_beside_many_cold_ones(tmp_path: Path) -> None:
    io = CountingIo()
    table = table_of(tmp_path, io, count_max=16)
    for topic in range(100):
        put(table, topic)
    warm = range(4)
    for topic in warm:
        put(table, topic, 2)
    io.paths.clear()
    for cold in range(4, 100):
        for topic in warm:
            put(table, topic)
        put(table, cold)
    opened = [path.parts[-3] for path in io.paths]
    assert not {f"T{topic}" for topic in warm} & set(opened)
    assert len(opened) == len(set(opened))  # each cold one once
    table.close()


def test_in_turn_most_of_too_many_queues_stay_as_they_are(tmp_path: Path) -> None:
    """The one that was used longest ago was closed, which is the next that a message goes to when messages go to one
    after the other: each of them closed a file and opened one, 60 us."""
    table = table_of(tmp_path, count_max=64)
    table.open_files.allow(64, 0)
    held = dict.fromkeys(range(80), 0)
    closed = []
    for _ in range(6):
        before = table.open_files.closed_count
        for topic in held:
            put(table, topic)
            held[topic] += 1
        closed.append(table.open_files.closed_count - before)
    assert closed[1] > 16
    assert closed[-2:] == [17, 17]  # of 80 those that found no room, and whose place they take
    # What was in use gives way when it is not any more.
    others = range(100, 160)
    for _ in range(8):
        for topic in others:
            put(table, topic)
            held[topic] = held.get(topic, 0) + 1
    before = table.open_files.closed_count
    for topic in others:
        put(table, topic)
        held[topic] += 1
    assert table.open_files.closed_count == before
    check(table, held)
    table.check()
    table.close()


def test_with_a_map_a_file_needs_no_descriptor(tmp_path: Path) -> None:
    if DESCRIPTORS_A_MAP:
        pytest.skip("maps take a descriptor on this system")
    io = CountingIo()
    table = table_of(tmp_path, io)
    table.open_files.allow(COUNT_MAX, 1000)
    held = dict.fromkeys(range(40), 0)
    for turn in range(6):
        if turn == 5:
            io.paths.clear()
        for topic in held:
            put(table, topic)
            held[topic] += 1
    assert io.paths == []  # they are mapped by now
    assert maps(tmp_path) == table.open_files.mapped_count == 40
    assert len(set(descriptors(tmp_path))) <= COUNT_MAX
    without = next(topic for topic in held if not _file(table, topic).is_open)
    put(table, without, 30)  # by a call
    held[without] += 30
    assert _file(table, without).is_open
    assert maps(tmp_path) == 40
    for topic in held:  # read, too
        put(table, topic)
        held[topic] += 1
    io.paths.clear()
    check(table, held)
    assert io.paths == []
    table.check()
    table.flush()
    table.close()
    assert (descriptors(tmp_path), maps(tmp_path)) == ([], 0)
    again = table_of(tmp_path)
    for queue in again:
        queue.recover()
    check(again, held)
    again.close()


def test_what_is_written_without_a_descriptor_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that fails then is told to the file system as a whole alone."""
    table = table_of(tmp_path)
    table.open_files.allow(COUNT_MAX, 1000)
    for _ in range(3):
        for topic in range(20):
            put(table, topic)
    table.flush()
    without = next((topic for topic in range(20) if not _file(table, topic).is_open), None)
    if without is None or DESCRIPTORS_A_MAP or not _has_system(table):
        pytest.fail("the folder of tests must be on a file system of this machine's disk, under Linux")
    wholes = count_wholes(monkeypatch)
    put(table, without)
    assert not _file(table, without).is_open
    assert table.flush() == 1
    assert wholes == [1]
    put(table, without)  # through the map, and then it has a descriptor again before the sync
    put(table, without, 30)
    assert _file(table, without).is_open
    assert table.flush() == 1
    assert wholes == [1, 1]
    put(table, without)
    assert table.flush() == 1
    assert wholes == [1, 1]  # from here on its own descriptor would be told
    table.close()


def test_a_file_without_a_descriptor_that_was_replaced_is_told_as_that(tmp_path: Path) -> None:
    if DESCRIPTORS_A_MAP:
        pytest.skip("maps take a descriptor on this system")
    table = table_of(tmp_path)
    table.open_files.allow(COUNT_MAX, 1000)
    for _ in range(3):
        for topic in range(20):
            put(table, topic)
    topic = next(topic for topic in range(20) if not _file(table, topic).is_open)
    file = _file(table, topic)
    assert file.displaced() is None
    file.path.rename(file.path.with_name("moved"))
    file.path.write_bytes(bytes(FILE_SIZE))
    assert "another file in its place" in (file.displaced() or "")
    before = len(descriptors(tmp_path))
    with pytest.raises(FileGone, match="another file in its place"):
        put(table, topic, 30)
    assert len(descriptors(tmp_path)) <= before
    table.close()
    assert (descriptors(tmp_path), maps(tmp_path)) == ([], 0)


def test_the_map_of_a_closed_file_is_not_stored_into(tmp_path: Path) -> None:
    """A queue keeps the map of its last file to store into; it goes when the file is closed."""
    table = table_of(tmp_path)
    table.open_files.allow(COUNT_MAX, 3)
    for _ in range(5):
        put(table, 0)
    queue = table.get_or_create("T0", 0)
    before = queue._map
    assert before is not None
    for topic in (1, 2, 3, 4):
        for _ in range(6):
            put(table, topic)
    assert before.closed
    assert queue._left == 0
    put(table, 0)
    check(table, {0: 6})
    table.close()


def test_a_file_that_is_closed_before_its_sync_is_synced(
    tmp_path: Path, trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next flush has to know of it, and to hear of a write that failed while nobody had it open."""
    wholes = count_wholes(monkeypatch)
    io = CountingIo()
    table = table_of(tmp_path, io)
    for topic in range(20):
        put(table, topic)
    closed = {f"T{topic}" for topic in range(20) if not _file(table, topic).is_open}
    assert len(closed) == 12
    synced_early = {path.parts[-3] for path in io.synced}
    if trusted:
        assert (synced_early, wholes) == (set(), [])
        assert table.flush() == 20
        assert wholes == [1]
    else:
        assert synced_early == closed  # before they were closed
        table.flush()
        assert {path.parts[-3] for path in io.synced} == {f"T{topic}" for topic in range(20)}
    io.synced.clear()
    wholes.clear()
    assert table.flush() == 0
    put(table, 0)
    table.flush()
    assert ([path.parts[-3] for path in io.synced], wholes) == (["T0"], [])
    table.close()


def count_wholes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Filled by each sync of a file system as a whole."""
    wholes: list[int] = []
    real = FileSystem.sync

    def counted(self: FileSystem) -> bool:
        wholes.append(1)
        return real(self)

    monkeypatch.setattr(FileSystem, "sync", counted)
    return wholes


def _has_system(table: QueueTable) -> bool:
    """Whether its files are synced by their file system as a whole."""
    return table.open_files.system is not None


def _file(table: QueueTable, topic: int) -> QueueFile:
    (file,) = table.get_or_create(f"T{topic}", 0).open_files()
    assert isinstance(file, QueueFile)
    return file


def test_a_failed_write_of_a_closed_file_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened again, the file may know nothing of it; only the whole file system does."""
    table = table_of(tmp_path)
    for topic in range(20):
        put(table, topic)
    if _file(table, 0).is_elsewhere or not _has_system(table):
        assert file_system_of(tmp_path.stat().st_dev, tmp_path) is None
        return  # this one is synced file by file
    monkeypatch.setattr(FileSystem, "sync", lambda self: False)
    with pytest.raises(OSError, match="Errno 5"):
        table.flush()
    table.close()


def test_a_file_that_is_closed_while_the_flusher_syncs_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(tmp_path)
    put(table, 0)
    if not _has_system(table):
        pytest.fail("the folder of tests must be on a file system of this machine's disk")
    wholes = count_wholes(monkeypatch)
    synced = DiskIo.sync_all

    def meanwhile(self: DiskIo, *given: object, **named: object) -> None:
        for topic in range(1, 40):
            put(table, topic)
        assert not _file(table, 0).is_open
        synced(self, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(DiskIo, "sync_all", meanwhile)
    table.flush()
    assert wholes == [1]
    table.close()


def test_when_no_descriptor_is_left_others_are_closed_first(tmp_path: Path) -> None:
    """Connections, or whatever else, may have taken what was meant for queues."""
    io = CountingIo()
    table = table_of(tmp_path, io)
    for topic in range(COUNT_MAX):
        put(table, topic)
    put(table, 0)
    io.scarce = 1
    put(table, 50)
    check(table, {50: 1, 1: 1})
    io.scarce = 2
    with pytest.raises(OutOfResources):
        put(table, 51)
    put(table, 51)
    check(table, {51: 1})
    table.check()
    table.close()


def test_a_borrower_reads_by_a_descriptor_of_its_own(tmp_path: Path) -> None:
    """The number of a closed descriptor is given out again: the scrub would have read another queue's entries."""
    table = table_of(tmp_path)
    for topic in range(30):
        put(table, topic, topic + 1)
    open_before = [_file(table, topic).is_open for topic in range(30)]
    failed: list[object] = []

    def scrub() -> None:
        with table.open_files.borrowing():
            for _ in range(20):
                for topic in range(30):
                    entry = table.get_or_create(f"T{topic}", 0).entry(topic)
                    if entry != (topic * RECORD, RECORD, topic):
                        failed.append((topic, entry))

    thread = threading.Thread(target=scrub)
    thread.start()
    while thread.is_alive():
        for topic in range(30, 60):
            put(table, topic)
    thread.join()
    assert failed == []
    assert len(set(descriptors(tmp_path))) <= COUNT_MAX
    assert any(open_before)
    table.close()


def test_a_block_of_a_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry that was asked for was a call; a search in a queue asks for many."""
    table = table_of(tmp_path)
    put(table, 0, 290)
    file = _file(table, 0)
    reads = 0
    real = os.pread

    def counting(*arguments: int) -> bytes:
        nonlocal reads
        reads += 1
        return real(*arguments)

    monkeypatch.setattr(os, "pread", counting)
    queue = table.get_or_create("T0", 0)
    for offset in (0, 150, 199, 7):
        assert queue.entry(offset) == (offset * RECORD, RECORD, 0)
    assert reads == 1
    assert bytes(queue.read(190, 30)) == b"".join(ENTRY.pack(n * RECORD, RECORD, 0) for n in range(190, 220))
    assert reads == 2
    assert len(queue.read(0, 290)) == 290 * ENTRY_SIZE
    assert file.is_open
    table.close()


def test_a_block_is_not_kept_when_the_file_changes(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    put(table, 0, 290)
    queue, file = table.get_or_create("T0", 0), _file(table, 0)
    old, new = ENTRY.pack(10 * RECORD, RECORD, 0), ENTRY.pack(10 * RECORD, RECORD, 5)

    def scrub() -> None:
        with table.open_files.borrowing():
            queue.write_again(10, new)

    assert queue.read(10, 1) == old
    thread = threading.Thread(target=scrub)
    thread.start()
    thread.join()
    assert queue.read(10, 1) == new
    file.write(10 * ENTRY_SIZE, old)
    assert queue.read(10, 1) == old
    assert file.zero(10 * ENTRY_SIZE, ENTRY_SIZE)
    assert queue.read(10, 1) == bytes(ENTRY_SIZE)
    table.open_files.close(file)
    with file.path.open("r+b") as elsewhere:
        elsewhere.seek(10 * ENTRY_SIZE)
        elsewhere.write(new)
    assert queue.read(10, 1) == new
    table.close()


def test_a_block_that_was_read_before_another_thread_wrote_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(tmp_path)
    put(table, 0, 290)
    queue = table.get_or_create("T0", 0)
    new = ENTRY.pack(10 * RECORD, RECORD, 5)
    real = os.pread

    def scrub() -> None:
        with table.open_files.borrowing():
            queue.write_again(10, new)

    def slow(*arguments: int) -> bytes:
        found = real(*arguments)
        monkeypatch.setattr(os, "pread", real)
        thread = threading.Thread(target=scrub)
        thread.start()
        thread.join()
        return found

    monkeypatch.setattr(os, "pread", slow)
    queue.read(10, 1)
    assert queue.read(10, 1) == new
    table.close()


def test_blocks_of_few_files_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aerobee_store.disk.queue_files._BLOCKS_MAX", 3)
    table = table_of(tmp_path)
    for topic in range(6):
        put(table, topic)
        table.get_or_create(f"T{topic}", 0).entry(0)
    assert [topic for topic in range(6) if _file(table, topic)._block is not None] == [3, 4, 5]
    table.close()


def test_a_cold_file_that_was_taken_away_is_told_as_that(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    for topic in range(20):
        put(table, topic)
    cold = next(topic for topic in range(20) if not _file(table, topic).is_open)
    file = _file(table, cold)
    assert file.displaced() is None
    moved = file.path.rename(file.path.with_name("moved"))
    assert "deleted it or moved it away" in (file.displaced() or "")
    with pytest.raises(FileGone, match="moved it away"):
        put(table, cold)
    file.path.write_bytes(bytes(FILE_SIZE))
    assert "another file in its place" in (file.displaced() or "")
    file.path.unlink()
    moved.rename(file.path)
    with file.path.open("r+b") as opened:
        opened.truncate(100)
    assert "changed its length" in (file.displaced() or "")
    table.close()


def test_a_small_queue_takes_a_page(tmp_path: Path) -> None:
    """Each took 64 KiB and more; now what it has, and as much again."""
    table = QueueTable(tmp_path / "consumequeue", 300_000 * ENTRY_SIZE, DiskIo(), open_files_max=8)
    put(table, 0)
    path = _file(table, 0).path
    taken = [path.stat().st_blocks * 512]
    for _ in range(2000):
        put(table, 0)
        taken.append(path.stat().st_blocks * 512)
    assert taken[0] == 4096
    assert all(size <= max(4096, 4 * number * ENTRY_SIZE) for number, size in enumerate(taken, 1))
    assert len(set(taken)) < 8
    assert path.stat().st_size == 300_000 * ENTRY_SIZE
    for topic in range(1, 30):  # closed and opened again it takes no more either
        put(table, topic)
    put(table, 0)
    assert path.stat().st_blocks * 512 <= max(taken) + 4096
    table.close()


@pytest.mark.parametrize("of_a_map", [DESCRIPTORS_A_MAP, 1])
def test_files_are_open_rather_than_mapped_where_descriptors_are_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_a_map: int
) -> None:
    """A descriptor for the map of each was kept back: sends to 1,000 topics of 8 queues in turn closed and opened a
    file each, where 20,000 could be open."""
    for module in ("io", "queue_files"):
        monkeypatch.setattr(f"aerobee_store.disk.{module}.DESCRIPTORS_A_MAP", of_a_map)
    table = table_of(tmp_path, count_max=64)
    table.open_files.allow(40, 1000)
    held: dict[int, int] = dict.fromkeys(range(32), 0)
    closed = []
    for _ in range(12):
        for topic in held:
            put(table, topic)
            held[topic] += 1
        closed.append(table.open_files.closed_count)
        assert table.open_files.descriptors <= 40
    assert closed[-1] == closed[len(closed) // 2]  # none any more
    assert len(table.open_files) == 32
    assert table.open_files.mapped_count
    check(table, held)
    table.open_files.allow(16, 4)  # fewer, when the next is opened
    for topic in held:
        put(table, topic)
        held[topic] += 1
    put(table, 99)
    assert len(table.open_files) <= 16
    check(table, held)
    table.close()
    assert table.open_files.mapped_count == 0


def test_no_more_files_are_mapped_than_there_may_be_maps(tmp_path: Path) -> None:
    table = table_of(tmp_path, count_max=64)
    table.open_files.allow(1000, 3)
    held = dict.fromkeys(range(10), 0)
    for _ in range(4):
        for topic in held:
            put(table, topic)
            held[topic] += 1
    assert table.open_files.mapped_count == 3
    assert table.open_files.closed_count == 0
    check(table, held)
    table.close()


def test_the_number_of_open_files_follows_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4096, 4096))
    monkeypatch.setattr("aerobee_store.disk.queue_files.maps_max", lambda: 60_000)
    assert 1000 <= OpenQueueFiles(DiskIo()).count_max <= 2048
    monkeypatch.setattr("aerobee_store.disk.queue_files.maps_max", lambda: 1000)
    assert OpenQueueFiles(DiskIo()).count_max == 500
    monkeypatch.setattr(resource, "getrlimit", lambda _: (10, 10))
    assert OpenQueueFiles(DiskIo()).count_max == 8
