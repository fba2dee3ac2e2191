"""The index file that is made ahead: what becomes of it, and what a crash leaves of it."""

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from aerobee_proto.javahash import index_key_hash
from aerobee_store.disk.io import DataFile, DiskIo, StoreIo
from aerobee_store.faults.errors import FileGone, OutOfResources, StoreFull
from aerobee_store.index.index import IndexedRecord, IndexService, KeyedRecord, key_texts
from aerobee_store.index.next_file import PREPARED_NAME
from aerobee_store.store import MessageStore
from store.crash_disk import CrashIo, Disk, survivals
from store.memory_io import MemoryIo
from store.workload import message, open_store

SLOTS, LIMIT = 5, 11  # ten entries a file: the next one is made when there is room for two
NOW_MS = 1_700_000_000_123
ROOT = Path("/store")


def open_service(io: StoreIo, root: Path = ROOT) -> IndexService:
    index = IndexService(root / "index", io, lambda: NOW_MS, slot_count=SLOTS, entry_limit=LIMIT)
    index.load()
    return index


def records(begin: int, end: int) -> list[KeyedRecord]:
    """Records of 100 bytes with two keys each."""
    return [("T", f"k{n % 4}", f"U{n}", 100 * n, NOW_MS + 700 * n) for n in range(begin, end)]


def probe_of(log: list[KeyedRecord]) -> Callable[[int], IndexedRecord | None]:
    table = {r[3]: IndexedRecord(r[4], frozenset(map(index_key_hash, key_texts(*r[:3])))) for r in log}
    return table.get


def names(io: StoreIo, root: Path = ROOT) -> list[str]:
    return [entry.name for entry in io.list_names(root / "index")]


def nearly_full(io: StoreIo, root: Path = ROOT) -> IndexService:
    """With a file made ahead, and room for one more record in the newest."""
    index = open_service(io, root)
    index.put_many(records(0, 4))
    index.flush()
    assert index.prepare_next()
    return index


def finds_all(index: IndexService, count: int) -> bool:
    return all(index.query("T", f"U{n}", 9, 0, 1 << 62) == [100 * n] for n in range(count))


def test_the_file_made_ahead_is_taken_without_a_sync() -> None:
    io = CrashIo(Disk())
    index = nearly_full(io)
    (first, *_) = names(io)
    before = len(io.steps)
    index.put_many(records(4, 6))
    assert {step[0] for step in io.steps[before:]} == {"rename", "write"}
    assert names(io) == [first, str(int(first) + 1)]
    assert [file.count for file in index.files] == [10, 2]
    assert finds_all(index, 6)
    index.flush()
    index.check()


def test_its_name_is_made_durable_once_by_the_next_flush() -> None:
    io = CrashIo(Disk())
    index = nearly_full(io)
    index.put_many(records(4, 6))
    for syncs in (1, 0):
        before = len(io.steps)
        index.flush()
        assert [step[0] for step in io.steps[before:]].count("sync folder") == syncs


def test_none_is_made_before_the_newest_is_nearly_full() -> None:
    io = MemoryIo()
    index = open_service(io)
    assert not index.prepare_next()
    index.put_many(records(0, 3))
    assert not index.prepare_next()
    index.put_many(records(3, 4))
    assert index.prepare_next()
    assert not index.prepare_next()
    assert PREPARED_NAME in names(io)


@pytest.mark.parametrize("end", [IndexService.close, IndexService.destroy])
def test_one_that_is_not_used_is_removed_at_the_end(end: Callable[[IndexService], None]) -> None:
    io = MemoryIo()
    end(nearly_full(io))
    assert PREPARED_NAME not in names(io)


@pytest.mark.parametrize("size", [None, 0])
def test_one_that_a_killed_run_has_left_goes_at_the_start(tmp_path: Path, size: int | None) -> None:
    """Of whatever length: a crash may leave a new file without any."""
    nearly_full(DiskIo(), tmp_path)
    path = tmp_path / "index" / PREPARED_NAME
    if size is not None:
        path.write_bytes(bytes(size))
    index = open_service(DiskIo(), tmp_path)
    assert index.foreign_names == ()
    assert index.recover(400, probe=probe_of(records(0, 4))).kept_entries == 8
    assert not path.exists()
    assert index.prepare_next()


def test_one_that_somebody_has_deleted_is_made_when_it_is_needed(tmp_path: Path) -> None:
    index = nearly_full(DiskIo(), tmp_path)
    (tmp_path / "index" / PREPARED_NAME).unlink()
    index.put_many(records(4, 9))
    assert index.prepare_next()
    index.put_many(records(9, 12))
    assert [file.count for file in index.files] == [10, 10, 4]
    assert finds_all(index, 12)


def test_one_that_somebody_has_cut_is_named(tmp_path: Path) -> None:
    index = nearly_full(DiskIo(), tmp_path)
    (tmp_path / "index" / PREPARED_NAME).write_bytes(b"short")
    with pytest.raises(FileGone, match="length is 5"):
        index.put_many(records(4, 6))


class ScarceIo(DiskIo):
    """A disk on which so many calls for a file that is there find no descriptor."""

    def __init__(self) -> None:
        self.refused = 0

    def open_file(
        self, path: Path, size: int, *, create: bool = False, writable: bool = True, room: int | None = None
    ) -> DataFile:
        if not create and self.refused:
            self.refused -= 1
            raise OutOfResources(path, errno.EMFILE)
        return super().open_file(path, size, create=create, writable=writable, room=room)


def test_what_cannot_be_opened_now_is_taken_later(tmp_path: Path) -> None:
    io = ScarceIo()
    index = nearly_full(io, tmp_path)
    io.refused = 2
    for _ in range(2):
        with pytest.raises(OutOfResources):
            index.put_many(records(0, 6))
    assert not index.prepare_next()  # it is there, under its own name
    index.put_many(records(0, 6))
    assert len(names(io, tmp_path)) == len(index.files) == 2
    assert finds_all(index, 6)


def test_what_cannot_be_opened_until_the_end_is_no_part_of_the_index(tmp_path: Path) -> None:
    io = ScarceIo()
    index = nearly_full(io, tmp_path)
    io.refused = 1
    with pytest.raises(OutOfResources):
        index.put_many(records(4, 6))
    index.close()
    assert len(names(io, tmp_path)) == 1


def test_no_room_for_the_name_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = nearly_full(DiskIo(), tmp_path)

    def rename(path: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as broken:
        broken.setattr(Path, "rename", rename)
        with pytest.raises(StoreFull):
            index.put_many(records(4, 6))
    index.put_many(records(4, 6))
    assert finds_all(index, 6)


def test_a_store_makes_the_next_files_of_log_and_index_ahead(tmp_path: Path) -> None:
    store = open_store(DiskIo(), root=tmp_path, index_entries=LIMIT)
    store.append([message(unique_key=f"U{n}") for n in range(9)])
    store.confirm(store.flush_disk())
    store.keys.build(9)
    assert store.preallocate()
    assert not store.preallocate()
    assert [len(names(DiskIo(), tmp_path)), len(list((tmp_path / "commitlog").iterdir()))] == [2, 2]
    assert (tmp_path / "index" / PREPARED_NAME).exists()
    store.close()
    assert [len(names(DiskIo(), tmp_path)), len(list((tmp_path / "commitlog").iterdir()))] == [1, 1]


def lacks_file(store: MessageStore) -> bool:
    return store.keys.lacks_file


def test_a_new_store_makes_its_first_files_before_they_are_needed(tmp_path: Path) -> None:
    store = open_store(DiskIo(), root=tmp_path, index_entries=LIMIT)
    assert store.preallocate()  # of the log alone: there may never be a key
    assert not lacks_file(store)
    store.append([message(unique_key="U1")])
    store.confirm(store.flush_disk())
    assert lacks_file(store)
    store.keys.make_file()
    assert not lacks_file(store)
    assert names(DiskIo(), tmp_path) == [PREPARED_NAME]
    store.keys.build(9)
    assert not lacks_file(store)
    assert PREPARED_NAME not in names(DiskIo(), tmp_path)
    assert (store.keys.backlog, store.statistics().index_files) == (0, 1)
    store.close()


def test_a_new_store_that_is_not_used_leaves_no_file_of_messages(tmp_path: Path) -> None:
    store = open_store(DiskIo(), root=tmp_path, index_entries=LIMIT)
    assert store.preallocate()
    store.close()
    assert not list((tmp_path / "commitlog").iterdir())


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_name_that_cannot_be_given_is_given_later_or_final(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    store = open_store(DiskIo(), root=tmp_path, index_entries=LIMIT)
    store.append([message(unique_key=f"U{n}") for n in range(9)])
    store.confirm(store.flush_disk())
    store.keys.build(9)
    assert store.preallocate()

    def rename(path: Path, target: Path) -> Path:
        raise OSError(error, "refused", str(path))

    store.append([message(unique_key=f"U{n}") for n in range(9, 12)])
    store.confirm(store.flush_disk())
    with monkeypatch.context() as broken:
        broken.setattr(Path, "rename", rename)
        if error == errno.ENOSPC:
            with pytest.raises(StoreFull):
                store.keys.build(9)
        else:
            assert store.keys.build(9) == 0
    assert store.has_failed is (error == errno.EIO)
    if error == errno.ENOSPC:
        assert store.keys.build(9) == 2  # the first of the three had room in the file before
    store.close()


def test_it_may_be_made_in_another_thread_while_keys_are_put() -> None:
    io = MemoryIo()
    index = open_service(io)
    stop = threading.Event()

    def worker() -> None:
        while not stop.is_set():
            index.prepare_next()
            index.flush()

    helper = threading.Thread(target=worker)
    helper.start()
    try:
        for n in range(300):
            index.put_many(records(n, n + 1))
    finally:
        stop.set()
        helper.join()
    assert [file.count for file in index.files] == [10] * 60
    assert finds_all(index, 300)
    index.check()


def test_whatever_a_crash_leaves_every_durable_key_is_there_and_none_twice() -> None:
    """Files are made ahead, named and filled; a power failure or a kill comes after each step of the disk."""
    io = CrashIo(Disk())
    index = open_service(io)
    durable = [(0, 0)]  # (steps taken, records whose keys are durable from then on)
    for end in range(1, 14):
        index.put_many(records(end - 1, end))
        index.prepare_next()
        if end % 3 == 0:
            index.flush()
            durable.append((len(io.steps), end))
    assert len(index.files) == 3
    assert [step[0] for step in io.steps].count("rename") == 2
    log, random, disk, known = records(0, 13), Random(7), Disk(), 0
    for count, step in enumerate([*io.steps, None]):
        known = max(end for steps, end in durable if steps <= count)
        left = [disk.kill(), *(disk.crash(one) for one in survivals(disk, random, few=8, samples=4))]
        for found in left:
            again = open_service(CrashIo(found))
            kept = again.recover(1300, proven_offset=100 * (known - 1) + 1, probe=probe_of(log))
            assert kept.end_offset >= 100 * (known - 1)
            again.put_many([record for record in log if record[3] >= kept.end_offset])
            assert finds_all(again, 13)
            assert PREPARED_NAME not in names(CrashIo(found))
            again.check()
        if step is not None:
            disk.apply(step)
