"""Confirming: entries by batch, in order, and what a worker may read meanwhile."""

import pytest

from aerobee_store.store import MessageStore
from aerobee_store.writing import dispatcher as module
from store.inside import queues_of
from store.memory_io import MemoryIo
from store.workload import ROOT, message, open_store


def confirmed(store: MessageStore) -> int:
    return store.confirmed_offset


def test_batches_are_confirmed_whole() -> None:
    store = open_store(MemoryIo())
    ends = []
    for size in (1, 3, 2):
        store.append([message() for _ in range(size)])
        ends.append(store.end_offset)
    for offset, seen in ((ends[0] - 1, 0), (ends[0], 1), (ends[1] - 1, 1), (ends[2], 6)):
        store.confirm(offset)
        assert store.reading.max_offset("Orders", 0) == seen
    assert confirmed(store) == ends[2]


def test_a_step_begins_a_few_queues() -> None:
    store = open_store(MemoryIo())
    ends = []
    for queue_ids in ((0,), (0, 0), (1, 2), (1,), (3,)):
        store.append([message(queue_id=queue_id) for queue_id in queue_ids])
        ends.append(store.end_offset)
    seen = []
    while store.showing.is_behind(store.end_offset):
        store.confirm(store.end_offset, begun_max=1)
        seen.append((confirmed(store), store.showing.begun_count))
    assert seen == [(ends[1], 1), (ends[3], 3), (ends[4], 4)]
    store.append([message(queue_id=0)])
    store.append([message(queue_id=4)])
    store.append([message(queue_id=5)])
    store.confirm(store.end_offset)
    assert (store.showing.is_behind(store.end_offset), store.showing.begun_count) == (False, 6)


def test_queues_of_deleted_topics_do_not_count_for_a_step() -> None:
    """Nothing begins for them, so nobody would have come back for what a step had left behind them."""
    store = open_store(MemoryIo())
    for topic in ("Gone", "Away", "Orders"):
        store.append([message(topic)])
    for topic in ("Gone", "Away"):
        store.topics.delete(topic)
    store.confirm(store.end_offset, begun_max=1)
    assert (store.showing.is_behind(store.end_offset), store.showing.begun_count) == (False, 1)
    assert store.reading.max_offset("Orders", 0) == 1


def test_the_offset_moves_after_the_entries_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that sees the offset before would call queue entries durable that are not there yet."""
    store = open_store(MemoryIo())
    store.append([message()])
    queue = queues_of(store).get("Orders", 0)
    assert queue is not None
    seen = []
    put = type(queue).put_entries

    def spy(self: object, first: int, entries: bytes, **how: bool) -> None:
        seen.append(confirmed(store))
        put(queue, first, entries, **how)

    monkeypatch.setattr(type(queue), "put_entries", spy)
    store.confirm(store.end_offset)
    assert seen == [0]
    assert confirmed(store) == store.end_offset


def test_entries_without_room_are_not_called_durable() -> None:
    io = MemoryIo()
    store = open_store(io)
    store.append([message()])
    store.flush_disk()
    store.confirm(store.flushed_offset)
    io.capacity = io.used()
    store.append([message(queue_id=1)])
    store.flush_disk()
    store.confirm(store.flushed_offset)
    store.flush_queues()
    store.write_checkpoint()
    after = io.crash()
    after.capacity = None
    again = open_store(after)
    assert again.reading.max_offset("Orders", 1) == 1
    again.check()


def test_too_many_waiting_keys_are_indexed_by_the_confirm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INDEX_BACKLOG_MAX", 20)
    store = open_store(MemoryIo())
    for number in range(50):
        store.append([message(unique_key=f"U{number}")])
        store.confirm(store.end_offset)
        assert store.keys.backlog <= 20
    assert len(store.keys.query("Orders", "U0", 1, 0, 1 << 62).body) == 1


def test_too_many_waiting_keys_without_room_stop_the_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INDEX_BACKLOG_MAX", 5)
    io = MemoryIo()
    store = open_store(io)
    store.append([message()])
    store.confirm(store.end_offset)
    io.capacity = io.used()
    store.append([message(unique_key=f"U{n}") for n in range(10)])
    assert [a[:3] for a in store.confirm(store.end_offset)] == [("Orders", 0, 11)]
    assert store.not_writeable_reason is not None
    assert not [path for path in io.paths() if path.parent == ROOT / "index"]
    io.capacity = None
    assert store.keys.build(100) == 10
