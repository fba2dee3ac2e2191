"""How full a file system is."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from aerobee_store.disk.disk_space import DiskUse, disk_use


def test_blocks_that_are_kept_for_root_are_neither_used_nor_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They counted as used: a disk looked fuller by what root keeps for itself."""
    figures = SimpleNamespace(f_frsize=4096, f_blocks=1000, f_bfree=750, f_bavail=500)
    monkeypatch.setattr("os.statvfs", lambda _: figures)
    assert disk_use(tmp_path) == DiskUse(total=750 * 4096, free=500 * 4096)
    assert disk_use(tmp_path).used_percent == 34


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        disk_use(tmp_path / "absent")
