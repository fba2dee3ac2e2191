"""Reading a partition of a store: where damage is told from a record that was being written."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aerobee_store.disk.io import DiskIo
from aerobee_store.offline.file_tree import LocalTree
from aerobee_store.offline.folder import StoreFolder
from aerobee_store.store import MessageStore
from aerobee_store.terms.config import StoreConfig
from aerobee_store.terms.messages import Appended
from pyspark_aerobee.store_plan import StoreQuery, plan
from pyspark_aerobee.store_read import Damage, read_partition
from store.workload import message

BATCH = {"INNER_NUM": "3"}


@contextmanager
def opened(root: Path) -> Iterator[MessageStore]:
    """A store whose topic B has queues of batches."""
    sizes: dict[str, Any] = {
        "commit_log_file_size": 64 << 10,
        "consume_queue_file_size": 2000,
        "batch_queue_file_size": 46 * 4,
    }
    store = MessageStore(
        StoreConfig(root=root, index_slots=97, index_entries=300, **sizes),
        io=DiskIo(),
        clock=lambda: 1_800_000_000_000,
    )
    store.open()
    try:
        store.topics.make_batch("B")
        yield store
    finally:
        store.close()


def put(store: MessageStore, topic: str, *, dispatched: bool = True) -> Appended:
    extra, flag = (BATCH, 0xC0) if topic == "B" else (None, 0)
    (done,) = store.append([message(topic, 0, b"x" * 200, extra=extra, sys_flag=flag)])
    if dispatched:
        store.confirm(store.end_offset)
    return done


def damage_from(root: Path, begin: int) -> None:
    path = root / "commitlog" / f"{0:020}"
    content = bytearray(path.read_bytes())
    content[begin + 20 : begin + 90] = b"\xa5" * 70
    path.write_bytes(content)


def read(root: Path, *, parts: int = 1) -> tuple[int, list[tuple[int, int]]]:
    """How many records can be proven, and where damage begins and ends."""
    store, query = StoreFolder(LocalTree(root)), StoreQuery()
    found = [
        piece
        for part in plan(store, query, min_partitions=parts).partitions
        for piece in read_partition(StoreFolder(LocalTree(root)), part, query)
    ]
    damage = [(piece.begin, piece.end) for piece in found if isinstance(piece, Damage)]
    return sum(piece.stretch.count for piece in found if not isinstance(piece, Damage)), damage


@pytest.mark.parametrize("topic", ["Orders", "B"])
@pytest.mark.parametrize("count", [1, 4, 6])
def test_damage_at_the_end_of_the_log_is_told_whatever_queue_names_the_record(
    tmp_path: Path, topic: str, count: int
) -> None:
    """Damage of the last record was taken for a record that was being written, and not told, though a queue names it:
    the end of the partition was compared with the queues' ends and not the place of the damage, and queues of batches
    were not asked."""
    with opened(tmp_path) as store:
        put(store, "Orders")
        last = [put(store, topic) for _ in range(count)][-1]
    damage_from(tmp_path, last.physical_offset)
    assert read(tmp_path) == (count, [(last.physical_offset, last.physical_offset + last.size)])


@pytest.mark.parametrize("topic", ["Orders", "B"])
def test_damage_in_front_of_a_torn_end_is_told_without_it(tmp_path: Path, topic: str) -> None:
    with opened(tmp_path) as store:
        put(store, "Orders")
        named = put(store, topic)
        torn = put(store, topic, dispatched=False)
        damage_from(tmp_path, named.physical_offset)
        damage_from(tmp_path, torn.physical_offset)
        assert read(tmp_path) == (1, [(named.physical_offset, torn.physical_offset)])


@pytest.mark.parametrize("topic", ["Orders", "B"])
def test_a_record_that_no_queue_has_yet_is_no_damage(tmp_path: Path, topic: str) -> None:
    with opened(tmp_path) as store:
        put(store, "B")
        put(store, "Orders")
        last = put(store, topic, dispatched=False)
        damage_from(tmp_path, last.physical_offset)
        assert read(tmp_path) == (2, [])


def test_a_log_of_batches_alone_is_cut_into_partitions(tmp_path: Path) -> None:
    """Borders were looked for in plain queues only, so that one task read it all."""
    with opened(tmp_path) as store:
        for _ in range(40):
            put(store, "B")
    partitions = plan(StoreFolder(LocalTree(tmp_path)), StoreQuery(), min_partitions=4).partitions
    assert len(partitions) >= 4
    assert read(tmp_path, parts=4) == (40, [])
