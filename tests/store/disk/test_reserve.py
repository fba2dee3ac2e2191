"""Room for small files on a full disk."""

import errno
from pathlib import Path

import pytest

from aerobee_store.disk.io import DiskIo
from aerobee_store.disk.reserve import RESERVE_SIZE, Reserve, ReservedIo
from aerobee_store.faults.errors import StoreFull
from store.memory_io import MemoryIo

ROOT = Path("/store")
PATH = ROOT / "reserve"
SMALL = ROOT / "config" / "topics.json"


def disk(capacity: int | None = 100_000, size: int = 10_000) -> tuple[MemoryIo, ReservedIo]:
    io = MemoryIo(capacity)
    return io, ReservedIo(io, Reserve(PATH, io, size))


def fill(io: MemoryIo, left: int = 0) -> None:
    """Leave so many bytes."""
    assert io.capacity is not None
    io.open_file(ROOT / "commitlog" / f"{io.used():020d}", io.capacity - io.used() - left, create=True)


def test_the_reserve_is_made_once() -> None:
    io, reserved = disk()
    assert not reserved.reserve.is_there()
    assert reserved.reserve.refill()
    assert reserved.reserve.is_there()
    before = io.operations
    assert reserved.reserve.refill()
    assert io.operations == before
    assert io.used() == 10_000


def test_a_small_file_gets_the_reserve_and_a_second_one_what_is_left_of_it() -> None:
    io, reserved = disk()
    reserved.reserve.refill()
    fill(io)
    reserved.replace_bytes(SMALL, b"x" * 4000)
    assert not reserved.reserve.is_there()
    reserved.replace_bytes(SMALL, b"y" * 4000)
    assert io.read_bytes(SMALL) == b"y" * 4000
    with pytest.raises(StoreFull):
        reserved.replace_bytes(SMALL, b"z" * 4000)
    assert io.read_bytes(SMALL) == b"y" * 4000


def test_what_does_not_fit_either_fails_as_ever() -> None:
    io, reserved = disk()
    reserved.reserve.refill()
    fill(io)
    with pytest.raises(StoreFull):
        reserved.replace_bytes(SMALL, b"x" * 20_000)
    assert io.read_bytes(SMALL) is None


def test_data_files_never_get_it() -> None:
    io, reserved = disk()
    reserved.reserve.refill()
    fill(io)
    for folder in ("commitlog", "consumequeue/T/0", "index"):
        with pytest.raises(StoreFull):
            reserved.open_file(ROOT / folder / f"{7:020d}", 100, create=True)
    assert reserved.reserve.is_there()
    reserved.open_file(ROOT / "checkpoint", 4096, create=True)
    assert not reserved.reserve.is_there()


def test_it_comes_back_when_there_is_room_for_it_twice() -> None:
    io, reserved = disk()
    reserved.reserve.refill()
    fill(io, left=9000)
    reserved.replace_bytes(SMALL, b"x" * 12_000)
    assert not reserved.reserve.refill()
    io.capacity = 200_000
    assert reserved.reserve.refill()
    assert reserved.reserve.is_there()


def test_one_of_another_size_is_made_anew() -> None:
    """A crash while it was allocated, or another version."""
    io, reserved = disk()
    io.replace_bytes(PATH, b"short")
    assert not reserved.reserve.is_there()
    assert reserved.reserve.refill()
    assert reserved.reserve.is_there()


class PlainErrors(MemoryIo):
    """Says what the kernel says."""

    code = errno.ENOSPC

    def replace_bytes(self, path: Path, data: bytes, *, keep_previous: bool = True) -> None:
        try:
            super().replace_bytes(path, data, keep_previous=keep_previous)
        except StoreFull as full:
            raise OSError(self.code, "no") from full


@pytest.mark.parametrize(
    ("code", "helped"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False), (errno.EROFS, False)]
)
def test_other_errors_are_not_mistaken_for_a_full_disk(code: int, helped: bool) -> None:
    io = PlainErrors(100_000)
    io.code = code
    reserved = ReservedIo(io, Reserve(PATH, io, 10_000))
    reserved.reserve.refill()
    fill(io)
    if helped:
        reserved.replace_bytes(SMALL, b"x")
    else:
        with pytest.raises(OSError, match="no"):
            reserved.replace_bytes(SMALL, b"x")
    assert reserved.reserve.is_there() is not helped


def test_everything_else_goes_through(tmp_path: Path) -> None:
    io = ReservedIo(DiskIo(), Reserve(tmp_path / "reserve", DiskIo(), 4096))
    io.make_folder(tmp_path / "a")
    io.open_file(tmp_path / "a" / "f", 100, create=True).close()
    io.rename(tmp_path / "a" / "f", tmp_path / "a" / "g")
    io.sync_folder(tmp_path / "a")
    assert [entry.name for entry in io.list_names(tmp_path / "a")] == ["g"]
    assert io.modified_ms(tmp_path / "a" / "g") == (tmp_path / "a" / "g").stat().st_mtime_ns // 1_000_000
    assert io.read_bytes(tmp_path / "a" / "g") == bytes(100)
    assert io.open_file(tmp_path / "a" / "g", 100, writable=False).size == 100
    io.unlink(tmp_path / "a" / "g")
    io.remove_folder(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    total, free = io.disk_usage(tmp_path)
    assert 0 < free <= total
    io.lock(tmp_path / "lock").release()


def test_on_a_real_disk_it_holds_its_bytes(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path / "store" / "reserve", DiskIo())
    assert reserve.refill()
    status = (tmp_path / "store" / "reserve").stat()
    assert status.st_size == RESERVE_SIZE
    assert status.st_blocks * 512 >= RESERVE_SIZE
    assert reserve.give_up()
    assert not reserve.give_up()
