"""What of a real file is in memory, as the system tells it, and bringing there what is not."""

import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee_store.disk import page_cache
from aerobee_store.disk.io import DataFile, DiskIo
from aerobee_store.disk.page_cache import bring_file, is_resident, read_file_ahead, resident_pages

SIZE = 64 * mmap.PAGESIZE
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def io() -> DiskIo:
    return DiskIo()


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """On the disk of the checkout: the usual folder for tests is in memory as a whole."""
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        yield Path(folder)


def cold_file(io: DiskIo, path: Path, *, room: int | None = None) -> DataFile:
    """A file of which nothing is in memory."""
    file = io.open_file(path, SIZE, create=True, room=room)
    file.write(0, os.urandom(SIZE))
    file.sync()
    drop(path)
    if file.in_memory(0, SIZE):
        pytest.skip("the file system of this folder keeps its files in memory")
    return file


def drop(path: Path) -> None:
    if not hasattr(os, "posix_fadvise"):
        pytest.skip("this system does not take pages out of memory when it is told to")
    fd = os.open(path, os.O_RDWR)
    with mmap.mmap(fd, 0) as whole:
        whole.flush()  # as tests sync nothing otherwise (nursery.py)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


@pytest.mark.parametrize("room", [pytest.param(None, id="mapped"), pytest.param(SIZE, id="not mapped")])
def test_what_is_brought_is_in_memory_and_nothing_else(io: DiskIo, tmp_path: Path, room: int | None) -> None:
    path = tmp_path / "f"
    file = cold_file(io, path, room=room)
    io.bring(path, SIZE // 2 + 100, 5000)
    assert file.in_memory(SIZE // 2 + 100, 5000)
    assert file.in_memory(SIZE // 2, 2 * mmap.PAGESIZE)
    if file.view:  # a map that is read stays in memory, so what is not read says what the system has
        whole = file.pages_in_memory(0, SIZE)
        assert (len(whole), whole[0], whole[32:34]) == (64, 0, b"\1\1")
        assert file.pages_in_memory(SIZE // 2 - 1, 2) == b"\0\1"
    io.bring(path, 0, SIZE)
    assert file.in_memory(0, SIZE)
    file.close()
    assert file.in_memory(0, SIZE)  # nobody waits for it any more


def test_what_lies_near_a_few_bytes_comes_with_them(io: DiskIo, tmp_path: Path) -> None:
    path = tmp_path / "f"
    file = cold_file(io, path)
    begin, size = SIZE // 4, 64 << 10
    io.bring(path, begin + 9000, 20)
    assert file.in_memory(begin + 9000, 20)
    while not file.in_memory(begin, size):  # the system reads; the bound is the test's timeout
        pass
    assert 1 not in file.pages_in_memory(0, begin)
    assert 1 not in file.pages_in_memory(begin + size, SIZE - begin - size)
    file.close()


def test_reading_ahead_brings_the_pages_some_time(io: DiskIo, tmp_path: Path) -> None:
    path = tmp_path / "f"
    file = cold_file(io, path)
    io.read_ahead(path, 0, SIZE)
    while not file.in_memory(0, SIZE):  # the system reads; the bound is the test's timeout
        pass
    file.close()


def test_a_file_that_is_gone_is_brought_by_nobody(io: DiskIo, tmp_path: Path) -> None:
    bring_file(tmp_path / "gone", 0, SIZE)
    read_file_ahead(tmp_path / "gone", 0, SIZE)
    (tmp_path / "short").write_bytes(b"1")
    bring_file(tmp_path / "short", 0, SIZE)


def test_an_error_names_the_file(io: DiskIo, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=str(tmp_path)):
        io.bring(tmp_path, 0, 1)


def test_where_nothing_can_be_asked_everything_is_in_memory(
    io: DiskIo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = cold_file(io, tmp_path / "f")
    monkeypatch.setattr(page_cache, "_mincore", None)
    assert file.in_memory(0, SIZE)
    assert file.pages_in_memory(100, SIZE - 100) == b"\1" * 64
    file.close()


def test_an_address_without_a_map_waits_for_nothing() -> None:
    assert is_resident(mmap.PAGESIZE, mmap.PAGESIZE)
    assert resident_pages(mmap.PAGESIZE, mmap.PAGESIZE) == b"\1"
