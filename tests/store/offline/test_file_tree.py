"""A tree of files on this machine, which may change while it is read."""

from pathlib import Path

import pytest

from aerobee_store.offline import file_tree
from aerobee_store.offline.file_tree import Entry, LocalTree


def test_what_lies_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "folder" / "b").write_bytes(b"12345")
    (tmp_path / "folder" / "a").write_bytes(b"")
    tree = LocalTree(tmp_path)
    assert tree.address == str(tmp_path)
    assert tree.entries("folder") == [Entry("a", 0, False), Entry("b", 5, False), Entry("inner", 0, True)]
    assert tree.entries("folder/b") == tree.entries("nowhere") == []


def test_a_link_to_nothing_is_a_name_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    assert LocalTree(tmp_path).entries("") == [Entry("link", 0, False)]


def test_a_range_of_a_file_that_grows(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123")
    tree = LocalTree(tmp_path)
    before = tree.read("file", 1, 3)
    assert bytes(before) == b"12"
    assert bytes(tree.read("file", 2, 9)) == b"23"
    with path.open("ab") as file:
        file.write(b"456789")
    assert bytes(tree.read("file", 2, 9)) == b"2345678"
    assert bytes(before) == b"12"


def test_an_empty_file_and_one_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    tree = LocalTree(tmp_path)
    assert bytes(tree.read("empty", 0, 10)) == b""
    with pytest.raises(FileNotFoundError):
        tree.read("gone", 0, 1)


def test_no_more_maps_are_kept_than_the_bound_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may have some 65,000 maps, and a store may have more queue files."""
    monkeypatch.setattr(file_tree, "_MAPS_MAX", 3)
    tree = LocalTree(tmp_path)
    for number in range(10):
        (tmp_path / str(number)).write_bytes(b"x" * 8192)
    first = tree.read("0", 0, 8192)
    for number in range(1, 10):
        assert bytes(tree.read(str(number), 0, 1)) == b"x"
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if f" {tmp_path}/" in line]
    assert len(mapped) == 3 + 1  # and what somebody still has
    assert bytes(first) == b"x" * 8192


def test_holes_are_not_offered(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("w+b") as file:
        file.truncate(8 << 20)
        file.seek(4 << 20)
        file.write(b"x")
    found = list(LocalTree(tmp_path).extents("sparse", 0, 8 << 20))
    assert any(begin <= 4 << 20 < end for begin, end in found)
    assert all(0 <= begin < end <= 8 << 20 for begin, end in found)
