"""Maps of files: they are the file, as long as somebody looks at them, and take no descriptor where that is known."""

import gc
import mmap
import os
from pathlib import Path

import pytest

from aerobee_store.disk import file_maps
from aerobee_store.disk.file_maps import DESCRIPTORS_A_FILE, DESCRIPTORS_A_MAP, map_file

SIZE = 3 * mmap.PAGESIZE


def descriptors(path: Path) -> int:
    return sum(
        link.is_symlink() and str(link.readlink()) == str(path) for link in Path("/proc/self/fd").iterdir()
    )


def maps(path: Path) -> list[str]:
    """Rights of each map of it in this process."""
    return [line.split()[1] for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line]


@pytest.mark.parametrize("is_tracked", [True, False])
def test_a_map_is_the_file(tmp_path: Path, is_tracked: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"entry" + bytes(SIZE - 5))
    fd = os.open(path, os.O_RDWR)
    made = map_file(fd, SIZE, writable=True, is_tracked=is_tracked)
    expected = DESCRIPTORS_A_FILE if is_tracked else 1 + DESCRIPTORS_A_MAP
    assert descriptors(path) == expected
    os.close(fd)
    assert maps(path) == ["rw-s"]
    assert made[:6] == b"entry\0"
    made[SIZE - 1 :] = b"!"
    made[4096:4098] = b"of"
    assert path.read_bytes()[4096:4098] == b"of"
    assert path.read_bytes()[-1:] == b"!"
    with pytest.raises(IndexError):
        made[SIZE - 1 :] = b"longer"
    piece = memoryview(made).toreadonly()[:5]
    del made
    gc.collect()
    assert bytes(piece) == b"entry"  # it goes when nobody looks any more
    piece.release()
    del piece
    gc.collect()
    assert maps(path) == []
    assert descriptors(path) == 0


@pytest.mark.parametrize("is_tracked", [True, False])
def test_one_to_be_read_cannot_be_written_to(tmp_path: Path, is_tracked: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(SIZE))
    fd = os.open(path, os.O_RDONLY)
    with map_file(fd, SIZE, writable=False, is_tracked=is_tracked) as made:
        os.close(fd)
        assert maps(path) == ["r--s"]
        with pytest.raises(TypeError):
            made[0:1] = b"x"
        assert memoryview(made).readonly
    assert maps(path) == []


@pytest.mark.parametrize("is_tracked", [True, False])
def test_what_cannot_be_mapped_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_tracked: bool
) -> None:
    monkeypatch.setattr(file_maps, "_lost", [])
    path = tmp_path / "file"
    path.write_bytes(bytes(SIZE))
    fd = os.open(path, os.O_RDONLY)
    with pytest.raises(PermissionError):
        map_file(fd, SIZE, writable=True, is_tracked=is_tracked)
    os.close(fd)
    assert maps(path) == []
