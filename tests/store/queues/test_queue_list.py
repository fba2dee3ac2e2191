"""Queues that go away while no broker runs: noticed by the next start, and built again from the log."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from aerobee_store.cleaning.cleaning import CleaningPlan
from aerobee_store.disk.io import DiskIo
from aerobee_store.faults import failpoints
from aerobee_store.faults.errors import StoreFull
from aerobee_store.log.checkpoint import Checkpoint
from aerobee_store.queues.queue_list import ListedQueue, QueueList
from aerobee_store.store import MessageStore
from store.checking.test_file_watch import served
from store.workload import config, message, open_store

COUNT = 40  # of messages in each queue: three files of 16 entries


def closed_store(root: Path, *, count: int = COUNT) -> None:
    """Two queues of a topic and one of another, closed in good order."""
    store = open_store(DiskIo(), root=root)
    fill(store, count)
    store.close()


def fill(store: MessageStore, count: int) -> None:
    for number in range(count):
        body = b"%d" % number + bytes(200)
        store.append([message(body=body), message(queue_id=1, body=body), message("Bills", body=body)])
    store.flush_disk()
    store.confirm(store.flushed_offset)


def first(folder: Path) -> Path:
    return min(folder.iterdir())


def last(folder: Path) -> Path:
    return max(folder.iterdir())


def middle(folder: Path) -> Path:
    return sorted(folder.iterdir())[1]


def whole(folder: Path) -> Path:
    return folder


def with_topic(folder: Path) -> Path:
    return folder.parent


@pytest.mark.parametrize("which", [first, middle, last, whole])
def test_files_of_a_queue_that_go_away_between_two_runs_are_built_again(
    tmp_path: Path, which: Callable[[Path], Path]
) -> None:
    """The watermark said that all queues are on disk, so a queue that was gone began at 0 again, and gave out numbers
    that messages had."""
    closed_store(tmp_path)
    path = which(tmp_path / "consumequeue" / "Orders" / "1")
    shutil.move(path, tmp_path / "elsewhere")
    with capture_logs() as logs:
        store = open_store(DiskIo(), root=tmp_path)
    logged = [entry for entry in logs if entry["event"] == "store.queue_rebuilt"]
    assert [(entry["topic"], entry["queue_id"]) for entry in logged] == [("Orders", 1)]
    assert logged[0]["path"] == str(tmp_path / "consumequeue" / "Orders" / "1")
    assert store.reading.next_offset("Orders", 1) == COUNT
    assert served(store, 1) == served(store, 0) == list(range(COUNT))
    fill(store, 1)
    assert served(store, 1)[-1] == COUNT
    store.check()
    store.close()


def test_a_topic_folder_or_all_of_them_may_go_away(tmp_path: Path) -> None:
    closed_store(tmp_path)
    for folder in (tmp_path / "consumequeue" / "Orders", tmp_path / "consumequeue"):
        shutil.rmtree(folder)
        store = open_store(DiskIo(), root=tmp_path)
        assert served(store, 0) == served(store, 1) == list(range(COUNT))
        assert store.reading.next_offset("Bills", 0) == COUNT
        store.check()
        store.close()


def test_a_queue_whose_messages_are_all_cleaned_away_keeps_its_numbers(tmp_path: Path) -> None:
    """Without its files nothing in the store has them."""
    store = open_store(DiskIo(), root=tmp_path)
    store.append([message("Old", body=bytes(100)) for _ in range(20)])
    fill(store, 80)
    store.flush_queues()
    store.cleaner.clean(CleaningPlan(tuple(store.cleaner.survey(store.settled_offset)[:1]), "asked"))
    assert store.reading.min_offset("Old", 0) == store.reading.max_offset("Old", 0) == 20
    store.close()
    shutil.rmtree(tmp_path / "consumequeue" / "Old")
    store = open_store(DiskIo(), root=tmp_path)
    assert store.reading.next_offset("Old", 0) == 20
    assert store.reading.get_message("g", "Old", 0, 0, 32, 1 << 20, None).body == []
    assert store.append([message("Old")])[0].queue_offset == 20
    store.flush_disk()
    store.confirm(store.flushed_offset)
    found = store.reading.get_message("g", "Old", 0, 19, 32, 1 << 20, None)
    assert (len(found.body), found.next_offset) == (1, 21)
    store.check()
    store.close()
    store = open_store(DiskIo(), root=tmp_path)
    assert store.reading.next_offset("Old", 0) == 21
    store.close()


def test_a_start_that_is_interrupted_leaves_it_to_the_next(tmp_path: Path) -> None:
    closed_store(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue" / "Orders" / "1")

    class Killed(Exception):
        pass

    def kill() -> None:
        raise Killed

    with pytest.raises(Killed), failpoints.armed("recovery.prepared", kill):
        open_store(DiskIo(), root=tmp_path)
    with capture_logs() as logs:
        store = open_store(DiskIo(), root=tmp_path)
    assert [entry["queue_id"] for entry in logs if entry["event"] == "store.queue_rebuilt"] == [1]
    assert served(store, 1) == list(range(COUNT))
    store.close()


def test_a_topic_that_was_deleted_is_not_missed(tmp_path: Path) -> None:
    store = open_store(DiskIo(), root=tmp_path)
    fill(store, COUNT)
    store.topics.delete("Orders")
    store.close()
    with capture_logs() as logs:
        store = open_store(DiskIo(), root=tmp_path)
    assert not [entry for entry in logs if entry["event"] == "store.queue_rebuilt"]
    assert store.topics.names() == ["Bills"]
    store.close()


def test_nothing_is_walked_when_everything_is_there(tmp_path: Path) -> None:
    closed_store(tmp_path)
    store = MessageStore(config(tmp_path), io=DiskIo(), clock=lambda: 1)
    report = store.open()
    assert report.walked_records == 0
    assert report.cut_queues == []
    store.close()


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"format": 2}', b"\xff", b'{"format":1,"checksum":""}']
)
def test_garbage_is_told_and_believed_nothing(tmp_path: Path, content: bytes) -> None:
    closed_store(tmp_path)
    (tmp_path / "config" / "queueEnds.json").write_bytes(content)
    with capture_logs() as logs:
        store = open_store(DiskIo(), root=tmp_path)
    assert [entry["event"] for entry in logs].count("store.queue_list_unreadable") == 1
    assert served(store) == list(range(COUNT))
    store.close()


def test_a_list_of_another_checkpoint_says_nothing(tmp_path: Path) -> None:
    """An older list, as a copy of config/ from another day has it."""
    queues = QueueList(tmp_path, DiskIo())
    queues.save([ListedQueue("T", 0, 0, 5)], 7, 4096)
    assert queues.load(7, 4096) == [ListedQueue("T", 0, 0, 5)]
    assert queues.load(8, 4096) == []
    assert queues.load(7, 8192) == []


def test_a_list_that_was_changed_is_not_believed(tmp_path: Path) -> None:
    queues = QueueList(tmp_path, DiskIo())
    queues.save([ListedQueue("T", 0, 0, 5)], 7, 4096)
    path = tmp_path / "config" / "queueEnds.json"
    content = json.loads(path.read_bytes())
    content["topics"]["T"]["0"][1] = 6
    path.write_text(json.dumps(content))
    with capture_logs() as logs:
        assert queues.load(7, 4096) == []
    assert "checksum" in logs[0]["reason"]


def test_a_close_that_finds_no_room_for_the_list_is_in_good_order(tmp_path: Path) -> None:
    class Full(DiskIo):
        def replace_bytes(self, path: Path, data: bytes, *, keep_previous: bool = True) -> None:
            if path.name == "queueEnds.json":
                raise StoreFull(path, len(data))
            super().replace_bytes(path, data, keep_previous=keep_previous)

    store = open_store(Full(), root=tmp_path)
    fill(store, COUNT)
    with capture_logs() as logs:
        store.close()
    assert "store.queue_list_not_saved" in [entry["event"] for entry in logs]
    assert not (tmp_path / "abort").exists()
    assert served(open_store(DiskIo(), root=tmp_path)) == list(range(COUNT))


def test_the_list_names_the_checkpoint_of_the_close(tmp_path: Path) -> None:
    closed_store(tmp_path)
    checkpoint = Checkpoint(tmp_path / "checkpoint", DiskIo())
    checkpoint.load()
    assert checkpoint.mark is not None
    found = QueueList(tmp_path, DiskIo()).load(checkpoint.generation, checkpoint.mark.log_end)
    assert sorted(found) == [
        ListedQueue("Bills", 0, 0, COUNT),
        ListedQueue("Orders", 0, 0, COUNT),
        ListedQueue("Orders", 1, 0, COUNT),
    ]


def killed_store(root: Path) -> Path:
    """A store as a kill leaves it behind a checkpoint; message COUNT of each queue came after that."""
    store = open_store(DiskIo(), root=root / "live")
    fill(store, COUNT)
    store.flush_queues()
    store.write_checkpoint()
    fill(store, 1)
    shutil.copytree(root / "live", root / "killed")
    store.close()
    return root / "killed"


def test_a_queue_that_goes_away_after_a_crash_is_built_again_if_it_has_a_message_behind_the_watermark(
    tmp_path: Path,
) -> None:
    root = killed_store(tmp_path)
    shutil.rmtree(root / "consumequeue" / "Orders" / "1")
    store = open_store(DiskIo(), root=root)
    assert served(store, 1) == list(range(COUNT + 1))
    store.check()
    store.close()


def test_a_queue_that_went_away_after_a_crash_comes_back_with_a_repair(tmp_path: Path) -> None:
    """Nothing says that it was there but its messages, which a start does not read again."""
    store = open_store(DiskIo(), root=tmp_path / "live")
    fill(store, COUNT)
    store.flush_queues()
    store.write_checkpoint()
    shutil.copytree(tmp_path / "live", tmp_path / "killed")
    store.close()
    shutil.rmtree(tmp_path / "killed" / "consumequeue" / "Orders" / "1")
    store = open_store(DiskIo(), root=tmp_path / "killed", rebuild=True)
    assert served(store, 1) == list(range(COUNT))
    assert store.reading.next_offset("Orders", 1) == COUNT
    store.check()
    store.close()
