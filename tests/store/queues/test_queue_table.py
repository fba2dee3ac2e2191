"""The table of all queues: loading, finding, deleting topics, and what is done to every queue."""

from pathlib import Path

import pytest

from aerobee_store.disk.io import DiskIo
from aerobee_store.faults.errors import CorruptStore, StoreError
from aerobee_store.queues.consume_queue import ENTRY, ENTRY_SIZE
from aerobee_store.queues.queue_table import QueueTable
from store.released import delete

FILE_SIZE = 4 * ENTRY_SIZE
RECORD = 10


def open_table(folder: Path) -> QueueTable:
    table = QueueTable(folder / "consumequeue", FILE_SIZE, DiskIo())
    table.load()
    return table


def put(table: QueueTable, topic: str, queue_id: int, count: int) -> None:
    queue = table.get_or_create(topic, queue_id)
    start = queue.max_offset
    queue.put_entries(start, b"".join(ENTRY.pack(n * RECORD, RECORD, 0) for n in range(start, start + count)))


def filled(folder: Path) -> QueueTable:
    table = open_table(folder)
    put(table, "B", 10, 3)
    put(table, "B", 2, 9)
    put(table, "A", 0, 1)
    return table


def places(table: QueueTable) -> list[tuple[str, int, int]]:
    return [(queue.topic, queue.queue_id, queue.max_offset) for queue in table]


def test_a_table_finds_its_queues_again(tmp_path: Path) -> None:
    table = filled(tmp_path)
    table.flush()
    table.close()
    again = open_table(tmp_path)
    for queue in again:
        queue.recover()
    assert places(again) == [("A", 0, 1), ("B", 2, 9), ("B", 10, 3)]
    assert (again.topics, again.queue_ids("B"), len(again)) == (["A", "B"], [2, 10], 3)
    assert again.last_physical_end == 90
    again.check()


def test_an_unknown_queue_is_none_until_it_is_made(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    assert table.get("A", 0) is None
    assert table.queue_ids("A") == []
    assert table.last_physical_end == -1
    queue = table.get_or_create("A", 0)
    assert table.get_or_create("A", 0) is queue
    assert table.get("A", 0) is queue
    assert table.get("A", 1) is None
    assert list(tmp_path.iterdir()) == []


def test_folders_that_are_no_queues_are_left_alone(tmp_path: Path) -> None:
    filled(tmp_path).close()
    root = tmp_path / "consumequeue"
    for foreign in ("A/notes", "A/-1", "A/007", "A/²"):
        (root / foreign).mkdir()
    (root / "readme").write_text("hello")
    (root / "A" / "5").write_text("a file")
    assert [queue[:2] for queue in places(open_table(tmp_path))] == [("A", 0), ("B", 2), ("B", 10)]
    assert (root / "A" / "notes").is_dir()


def test_a_queue_file_of_a_wrong_length_leaves_its_queue_out(tmp_path: Path) -> None:
    """The log has what was in it: recovery builds the queue again."""
    filled(tmp_path).close()
    path = tmp_path / "consumequeue" / "B" / "2" / f"{0:020d}"
    path.write_bytes(path.read_bytes()[:-1])
    table = open_table(tmp_path)
    assert [(queue.topic, queue.queue_id) for queue in table] == [("A", 0), ("B", 10)]
    ((queue, wrong),) = table.cut
    assert (queue.topic, queue.queue_id, wrong.path) == ("B", 2, path)
    table.drop_cut()
    assert not path.exists()
    assert table.cut == []


def test_queue_files_that_all_have_one_wrong_length_stop_the_load(tmp_path: Path) -> None:
    filled(tmp_path).close()
    for path in (tmp_path / "consumequeue").rglob("0*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptStore, match="length is 79, must be 80"):
        open_table(tmp_path)


def test_deleting_a_topic_takes_its_folders(tmp_path: Path) -> None:
    table = filled(tmp_path)
    assert table.delete_topic("B") == 2
    assert places(table) == [("A", 0, 1)]
    assert [path.name for path in (tmp_path / "consumequeue").iterdir()] == ["A"]
    assert table.delete_topic("B") == 0
    put(table, "B", 2, 1)
    assert places(open_table(tmp_path))[1][:2] == ("B", 2)


def test_a_topic_that_is_deleted_in_steps_has_no_queue_from_the_start(tmp_path: Path) -> None:
    """All its files went in one call, which held whoever called for seconds: a topic may have 16,384 queues."""
    table = filled(tmp_path)
    steps = table.deletion("B")
    assert places(table) == [("A", 0, 1)]
    next(steps)
    assert len(list((tmp_path / "consumequeue" / "B").iterdir())) == 1
    next(steps)
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value == 2
    assert not (tmp_path / "consumequeue" / "B").exists()


@pytest.mark.parametrize("taken", [0, 1, 2])
@pytest.mark.parametrize("how", ["made again", "deleted again", "made for batches", "closed"])
def test_a_deletion_in_steps_is_finished_by_whoever_comes_across_it(
    tmp_path: Path, taken: int, how: str
) -> None:
    """Also when nobody takes the other steps: the broker stops, or the one who asked has gone."""
    table = filled(tmp_path)
    steps = table.deletion("B")
    for _ in range(taken):
        next(steps)
    steps.close()
    if how == "made again":
        put(table, "B", 2, 1)
        assert places(table) == [("A", 0, 1), ("B", 2, 1)]
        assert [path.name for path in (tmp_path / "consumequeue" / "B").iterdir()] == ["2"]
    elif how == "deleted again":
        assert table.delete_topic("B") == 0
    elif how == "made for batches":
        table.make_batch_topic("B")
        assert table.get_or_create("B", 2).max_offset == 0
    else:
        table.close()
    if how != "made again":
        assert not (tmp_path / "consumequeue" / "B").exists()


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_a_batch_topic_that_is_being_deleted_may_be_made_again_as_a_plain_one(
    tmp_path: Path, taken: int
) -> None:
    table = open_table(tmp_path)
    table.make_batch_topic("B")
    for queue_id in (0, 1):
        table.get_or_create("B", queue_id)
    steps = table.deletion("B")
    for _ in range(taken):
        next(steps)
    assert "B" not in table.batch_topics
    assert not table.get_or_create("B", 0).is_batch
    assert not (tmp_path / "batchconsumequeue" / "B").exists()
    assert list(steps) == []


def test_destroying_leaves_an_empty_table(tmp_path: Path) -> None:
    table = filled(tmp_path)
    table.destroy()
    assert (len(table), list((tmp_path / "consumequeue").iterdir())) == (0, [])


def test_cutting_and_cleaning_reach_every_queue(tmp_path: Path) -> None:
    table = filled(tmp_path)
    assert table.cut_at_physical(8 * RECORD) == 1
    assert sum(delete(q.release_before(5 * RECORD), DiskIo()) for q in table) == 1
    assert [(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in table] == [
        ("A", 0, 1, 1),
        ("B", 2, 5, 8),
        ("B", 10, 3, 3),
    ]
    table.correct_min_offsets(6 * RECORD)
    queue = table.get("B", 2)
    assert queue is not None
    assert queue.min_offset == 6
    table.check()


def test_the_table_may_grow_while_it_is_walked(tmp_path: Path) -> None:
    table = filled(tmp_path)
    seen = []
    for queue in table:
        seen.append((queue.topic, queue.queue_id))
        table.get_or_create("C", len(seen))
        table.get_or_create("B", 11)
    assert seen == [("A", 0), ("B", 2), ("B", 10), ("B", 11)]


@pytest.mark.parametrize(
    ("topic", "queue_id"),
    [("", 0), (".", 0), ("..", 0), ("../../etc", 0), ("a/b", 0), ("a\0b", 0), ("a", -1)],
)
def test_a_name_that_leaves_the_store_is_refused(tmp_path: Path, topic: str, queue_id: int) -> None:
    with pytest.raises(StoreError, match="cannot be a folder"):
        open_table(tmp_path).get_or_create(topic, queue_id)


class SyncsOf(DiskIo):
    """Remembers which folders were synced."""

    def __init__(self) -> None:
        self.folders: list[str] = []

    def sync_folder(self, path: Path) -> None:
        self.folders.append(path.name)
        super().sync_folder(path)


def test_a_queue_is_made_without_waiting_for_the_disk(tmp_path: Path) -> None:
    """The thread that serves clients makes it; the flush, in another thread, makes its name durable."""
    io = SyncsOf()
    table = QueueTable(tmp_path / "store" / "consumequeue", 100, io)
    for queue_id in range(3):
        table.get_or_create("T", queue_id).put_entries(0, ENTRY.pack(queue_id * 100, 100, 0))
    assert io.folders == []
    table.flush()
    assert sorted(io.folders) == ["0", "1", "2", "T", "consumequeue", "store"]
    table.flush()
    assert len(io.folders) == 6
    table.close()
