"""Stores with queues of batches: found, named, and left as they are."""

from pathlib import Path

import pytest

from aerobee_store.batch_queues import batch_topics
from aerobee_store.errors import CorruptStore
from aerobee_store.io import DiskIo
from aerobee_store.store import MessageStore
from store.workload import config, message


def with_batch_queue(root: Path, *topics: str) -> None:
    """What RocketMQ leaves of such topics."""
    for topic in topics:
        folder = root / "batchconsumequeue" / topic / "0"
        folder.mkdir(parents=True)
        (folder / f"{0:020d}").write_bytes(bytes(46 * 10))


def test_a_store_with_queues_of_batches_is_refused_as_it_is(tmp_path: Path) -> None:
    """It was taken: its messages were numbered anew as if each record were one, numbers were given out twice, and
    RocketMQ could not start on it any more.
    """
    with_batch_queue(tmp_path, "Batched")
    store = MessageStore(config(tmp_path), io=DiskIo(), clock=lambda: 1)
    before = sorted(path for path in tmp_path.rglob("*") if path.name != "lock")
    with pytest.raises(
        CorruptStore, match=r"queues of batches \(Batched\); topics with queue.type=BatchCQ are not"
    ):
        store.open()
    assert sorted(path for path in tmp_path.rglob("*") if path.name != "lock") == before
    assert not store.is_open


def test_folders_without_files_are_none(tmp_path: Path) -> None:
    (tmp_path / "batchconsumequeue" / "Gone" / "0").mkdir(parents=True)
    (tmp_path / "batchconsumequeue" / "Other").mkdir()
    assert batch_topics(tmp_path, DiskIo()) == []
    store = MessageStore(config(tmp_path), io=DiskIo(), clock=lambda: 1)
    store.open()
    assert store.append([message("T", 0, b"x")])
    store.close()


def test_only_some_of_many_topics_are_named(tmp_path: Path) -> None:
    with_batch_queue(tmp_path, *(f"T{number}" for number in range(9)))
    store = MessageStore(config(tmp_path), io=DiskIo(), clock=lambda: 1)
    with pytest.raises(CorruptStore, match=r"\(T0, T1, T2, T3, T4 and 4 others\)"):
        store.open()
