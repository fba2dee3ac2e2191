"""Lock and abort: who may open, and whether the last one closed."""

from pathlib import Path

import pytest

from aerobee_store.errors import StoreLocked
from aerobee_store.io import DiskIo
from aerobee_store.lock import StoreGuard


def test_the_first_visit_was_not_aborted(tmp_path: Path) -> None:
    guard = StoreGuard(tmp_path, DiskIo())
    guard.enter()
    assert not guard.was_aborted
    guard.leave()


def test_a_run_that_did_not_end_in_order_is_seen(tmp_path: Path) -> None:
    first = StoreGuard(tmp_path, DiskIo())
    first.enter()
    first.announce_changes(4711)
    assert (tmp_path / "abort").read_text() == "4711"
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
