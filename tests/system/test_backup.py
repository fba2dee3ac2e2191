"""docs/backup.md: a store that was copied and restored as the page says is served with all that it had."""

from pathlib import Path

import ours
from guides import Guide
from programs import Server, free_port


def dev(folder: Path, store: str, port: int) -> Server:
    small = {"mappedFileSizeCommitLog": 1 << 20, "maxHashSlotNum": 1000, "maxIndexNum": 4000}
    return ours.start_dev("--store", store, port=port, settings={**ours.OWN_PORTS, **small}, cwd=folder)


def test_a_copy_of_a_stopped_store_is_a_backup(tmp_path: Path) -> None:
    port = free_port()
    guide = Guide("backup.md", tmp_path, {"127.0.0.1:9876": f"127.0.0.1:{port}"})
    guide.text += "\n    .venv/bin/aerobee send kept hello\n    .venv/bin/aerobee tail kept --last 5\n"
    with dev(tmp_path, "shop-store", port):
        guide.run("send kept")
    assert "sound" in guide.run("store verify shop-store")
    guide.run("tar --sparse")
    guide.run("mkdir restored")
    assert "sound" in guide.run("store verify restored")
    with dev(tmp_path, "restored/shop-store", port):
        assert "hello" in guide.run("tail kept")
    assert guide.left == ["./dev run --store shop-store"]  # the same command as in the tutorial
