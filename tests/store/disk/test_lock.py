"""Lock and abort: who may open, and whether the last one closed."""

import errno
import fcntl
from pathlib import Path

import pytest

from aerobee_store.disk.io import DiskIo
from aerobee_store.disk.lock import StoreGuard
from aerobee_store.faults.errors import StoreLocked


def test_the_first_visit_was_not_aborted(tmp_path: Path) -> None:
    guard = StoreGuard(tmp_path, DiskIo())
    guard.enter()
    assert not guard.was_aborted
    guard.leave()


def test_a_run_that_did_not_end_in_order_is_seen(tmp_path: Path) -> None:
    first = StoreGuard(tmp_path, DiskIo())
    first.enter()
    first.announce_changes(4711)
    assert (tmp_path / "abort").read_text() == "4711\naerobee\n"
    first.leave()
    second = StoreGuard(tmp_path, DiskIo())
    second.enter()
    assert second.was_aborted
    second.all_changes_durable()
    second.leave()
    third = StoreGuard(tmp_path, DiskIo())
    third.enter()
    assert not third.was_aborted
    third.leave()


@pytest.mark.parametrize(
    ("left", "by_another"),
    [(None, False), (b"", True), (b"4711", True), (b"4711\n", True), (b"4711\naerobee\n", False)],
)
def test_what_another_program_left_is_told_apart(
    tmp_path: Path, left: bytes | None, by_another: bool
) -> None:
    if left is not None:
        (tmp_path / "abort").write_bytes(left)
    guard = StoreGuard(tmp_path, DiskIo())
    guard.enter()
    assert guard.was_aborted == (left is not None)
    assert guard.was_left_by_another == by_another
    guard.announce_changes(1)
    guard.leave()
    guard.enter()
    assert not guard.was_left_by_another
    guard.leave()


def test_a_second_one_stays_outside(tmp_path: Path) -> None:
    first = StoreGuard(tmp_path, DiskIo())
    first.enter()
    with pytest.raises(StoreLocked):
        StoreGuard(tmp_path, DiskIo()).enter()
    first.leave()
    first.leave()


def test_an_abort_backup_of_the_official_program_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "abort.bak").touch()
    guard = StoreGuard(tmp_path, DiskIo())
    guard.enter()
    assert not guard.was_aborted
    guard.leave()


def test_a_lock_file_that_is_deleted_lets_nobody_in(tmp_path: Path) -> None:
    """A second broker began on a live store after `rm lock`, and half of what both acknowledged was lost."""
    first = StoreGuard(tmp_path, DiskIo())
    first.enter()
    (tmp_path / "lock").unlink()
    with pytest.raises(StoreLocked, match="locked by another running broker"):
        StoreGuard(tmp_path, DiskIo()).enter()
    assert not (tmp_path / "lock").exists()
    first.leave()
    second = StoreGuard(tmp_path, DiskIo())
    second.enter()
    second.leave()


@pytest.mark.parametrize("error", [errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_folders_cannot_be_locked_the_file_does_it(
    tmp_path: Path, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(error, "no such locks here")

    monkeypatch.setattr(fcntl, "flock", flock)
    first = StoreGuard(tmp_path, DiskIo())
    first.enter()
    with pytest.raises(StoreLocked):
        StoreGuard(tmp_path, DiskIo()).enter()
    first.leave()


def test_what_was_taken_away_is_put_back(tmp_path: Path) -> None:
    guard = StoreGuard(tmp_path, DiskIo())
    guard.enter()
    guard.announce_changes(1)
    assert guard.keep(1) == []
    (tmp_path / "lock").unlink()
    (tmp_path / "abort").unlink()
    assert guard.keep(1) == [tmp_path / "lock", tmp_path / "abort"]
    assert guard.keep(1) == []
    with pytest.raises(StoreLocked):
        StoreGuard(tmp_path, DiskIo()).enter()
    guard.leave()
