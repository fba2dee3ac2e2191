"""What an inspection says of a folder before a record of it is read."""

import os
from pathlib import Path

import pytest

from aerobee_store.offline.inspection import Inspection, NotAStore
from aerobee_store.offline.verify import verify
from store.offline.test_resume import damaged_store


@pytest.mark.parametrize("where", ["below", "beside", "relative"])
def test_a_log_may_lie_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    root = damaged_store(tmp_path / "store")
    (logged,) = {
        one.path for one in verify(Inspection(root), lambda _: None).findings if "commitlog" in one.path
    }
    elsewhere = root / "log" if where == "below" else tmp_path / "log"
    (root / "commitlog").rename(elsewhere)
    monkeypatch.chdir(tmp_path)
    folder = Inspection(root, Path("log") if where == "relative" else elsewhere)
    found = verify(folder, lambda _: None)
    assert found.record_count > 0
    named = {"below": "log", "beside": str(elsewhere), "relative": "log"}[where]
    assert logged.replace("commitlog", named) in {one.path for one in found.findings}


def test_a_folder_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAStore, match="holds no store: give the folder with commitlog"):
        Inspection(tmp_path)
    with pytest.raises(NotAStore, match="is no folder"):
        Inspection(tmp_path / "nowhere")


def test_files_that_do_not_belong_there_are_findings(tmp_path: Path) -> None:
    root = damaged_store(tmp_path / "store")
    log = root / "commitlog"
    (log / "notes").touch()
    first, second, *_ = sorted(one for one in log.iterdir() if one.name.isdecimal())
    os.truncate(first, 100)
    second.unlink()
    reasons = {one.path: one.reason for one in Inspection(root).findings}
    assert reasons["commitlog/notes"] == "foreign file in a data folder"
    assert reasons[f"commitlog/{first.name}"] == "length is 100, the others have 16384"
