"""Rows of files named by their first offset."""

from pathlib import Path

import pytest

from aerobee_store.disk.io import DiskIo
from aerobee_store.disk.mapped_files import MappedFileQueue, file_name
from aerobee_store.faults.errors import CorruptStore
from store.released import delete

SIZE = 4096


def row(folder: Path, *offsets: int, writable: bool = True) -> MappedFileQueue:
    """A row that is made of these files and loaded."""
    folder.mkdir(exist_ok=True)
    for offset in offsets:
        (folder / file_name(offset)).write_bytes(bytes([offset // SIZE + 1]) * SIZE)
    files = MappedFileQueue(folder, SIZE, DiskIo(), writable=writable)
    files.load()
    return files


def offsets(files: MappedFileQueue) -> list[int]:
    return [file.offset for file in files.files]


def test_names_have_twenty_digits() -> None:
    assert file_name(1073741824) == "00000000001073741824"


def test_a_missing_folder_is_an_empty_row(tmp_path: Path) -> None:
    files = row(tmp_path / "log")
    assert (offsets(files), files.min_offset, files.end_offset, files.find(0)) == ([], 0, 0, None)


def test_files_are_found_by_any_offset_in_them(tmp_path: Path) -> None:
    files = row(tmp_path / "log", 2 * SIZE, 3 * SIZE, 4 * SIZE)
    for offset in (2 * SIZE, 3 * SIZE - 1, 3 * SIZE, 5 * SIZE - 1):
        found = files.find(offset)
        assert found is not None
        assert found.offset <= offset < found.end
        assert found.view[0] == found.offset // SIZE + 1
    assert [files.find(offset) for offset in (0, 2 * SIZE - 1, 5 * SIZE)] == [None] * 3


def test_a_gap_is_named_and_searched_around(tmp_path: Path) -> None:
    files = row(tmp_path / "log", 0, 3 * SIZE, 4 * SIZE)
    assert files.gaps == [(SIZE, 3 * SIZE)]
    found = files.find(4 * SIZE + 5)
    assert found is not None
    assert found.offset == 4 * SIZE
    assert files.find(2 * SIZE) is None


def test_the_files_of_many_offsets_are_found_each_once(tmp_path: Path) -> None:
    files = row(tmp_path / "log", 2 * SIZE, 3 * SIZE, 4 * SIZE, 7 * SIZE)

    def found(*found: int) -> list[int] | None:
        all_ = files.of_all(found)
        return None if all_ is None else [file.offset // SIZE for file in all_]

    assert found() == []
    assert found(2 * SIZE, 2 * SIZE + 5) == [2]
    assert found(3 * SIZE - 1, 3 * SIZE, 4 * SIZE - 1, 8 * SIZE - 1) == [2, 3, 7]
    assert found(2 * SIZE - 1, 3 * SIZE) is found(2 * SIZE, 6 * SIZE) is found(2 * SIZE, 8 * SIZE) is None


@pytest.mark.parametrize(
    ("name", "size", "reason"),
    [
        ("notes.txt", SIZE, "foreign file"),
        ("0000000000000004096", SIZE, "foreign file"),
        ("00000000000000004096", SIZE - 1, "length is 4095, must be 4096"),
        ("00000000000000004097", SIZE, "not a multiple"),
    ],
)
def test_what_does_not_belong_is_refused_by_name(tmp_path: Path, name: str, size: int, reason: str) -> None:
    (tmp_path / file_name(0)).write_bytes(bytes(SIZE))
    (tmp_path / name).write_bytes(bytes(size))
    with pytest.raises(CorruptStore, match=reason) as refused:
        row(tmp_path)
    assert refused.value.path == tmp_path / name
    assert refused.value.way_out
    assert (tmp_path / name).stat().st_size == size


def test_folders_among_the_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    assert offsets(row(tmp_path, 0)) == [0]


def test_an_empty_last_file_is_removed(tmp_path: Path) -> None:
    (tmp_path / file_name(SIZE)).touch()
    assert offsets(row(tmp_path, 0)) == [0]
    assert not (tmp_path / file_name(SIZE)).exists()


def test_reading_only_changes_nothing(tmp_path: Path) -> None:
    files = row(tmp_path, 0, writable=False)
    with pytest.raises(OSError, match="Bad file descriptor"):
        files.files[0].data.write(0, b"x")


def test_an_empty_file_in_the_middle_is_refused(tmp_path: Path) -> None:
    (tmp_path / file_name(0)).touch()
    with pytest.raises(CorruptStore, match="length is 0"):
        row(tmp_path, SIZE)


def test_files_are_added_at_the_end(tmp_path: Path) -> None:
    files = row(tmp_path)
    files.create(2 * SIZE)
    made = files.prepare(3 * SIZE)
    assert offsets(files) == [2 * SIZE]
    files.adopt(made, 3 * SIZE)
    assert offsets(files) == [2 * SIZE, 3 * SIZE]
    assert [p.stat().st_size for p in tmp_path.iterdir()] == [SIZE, SIZE]


@pytest.mark.parametrize("cut", [0, 1, SIZE - 1, SIZE, SIZE + 7, 3 * SIZE])
def test_a_cut_removes_later_files_and_zeroes_the_rest(tmp_path: Path, cut: int) -> None:
    files = row(tmp_path, 0, SIZE, 2 * SIZE)
    before = b"".join(bytes(file.view) for file in files.files)
    files.truncate(cut)
    after = b"".join(p.read_bytes() for p in sorted(tmp_path.iterdir()))
    assert after == before[:cut] + bytes(len(after) - cut)
    assert len(after) == min(cut - cut % SIZE + SIZE, 3 * SIZE)


def test_ends_are_dropped_one_by_one(tmp_path: Path) -> None:
    files = row(tmp_path, 0, SIZE, 2 * SIZE)
    held = files.files[0].view[:4]
    delete([files.release_first()], DiskIo())
    files.drop_last()
    assert offsets(files) == [SIZE]
    assert [p.name for p in tmp_path.iterdir()] == [file_name(SIZE)]
    assert bytes(held) == b"\x01" * 4


def test_destroying_leaves_foreign_things(tmp_path: Path) -> None:
    files = row(tmp_path / "q", 0, SIZE)
    files.destroy()
    assert not (tmp_path / "q").exists()
    other = row(tmp_path / "r", 0)
    (tmp_path / "r" / "sub").mkdir()
    other.destroy()
    assert [p.name for p in (tmp_path / "r").iterdir()] == ["sub"]
