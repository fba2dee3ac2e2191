"""Deleted topics stay deleted, whatever recovery finds of them in the log."""

import json
from pathlib import Path

import pytest

from aerobee_store.cleaning.cleaning import CleaningPlan
from aerobee_store.disk.io import DiskIo
from aerobee_store.faults.errors import CorruptStore
from aerobee_store.queues.tombstones import FILE_NAME, Tombstones
from aerobee_store.store import MessageStore
from store.memory_io import MemoryIo, PowerFailure
from store.workload import ROOT, Clock, message, open_store

PATH = ROOT / "config" / FILE_NAME


def loaded(io: MemoryIo) -> Tombstones:
    tombstones = Tombstones(ROOT, io)
    tombstones.load()
    return tombstones


# --- the list ------------------------------------------------------------------------------------------------


def test_without_a_file_nothing_was_deleted() -> None:
    tombstones = loaded(MemoryIo())
    assert tombstones.topics == {}
    assert not tombstones.covers("T", 0)


def test_what_was_saved_comes_back() -> None:
    io = MemoryIo()
    tombstones = loaded(io)
    tombstones.add("T", 1000)
    tombstones.add("%RETRY%g", 50)
    tombstones.save()
    again = loaded(io)
    assert again.topics == {"T": 1000, "%RETRY%g": 50}
    assert again.covers("T", 999)
    assert not again.covers("T", 1000)
    assert not again.covers("U", 0)
    content = json.loads(io.read_bytes(PATH) or b"")
    assert {**content, "checksum": ""} == {"format": 1, "topics": {"%RETRY%g": 50, "T": 1000}, "checksum": ""}
    assert io.read_bytes(PATH.with_name(FILE_NAME + ".bak")) == io.read_bytes(PATH)


def test_deleting_a_topic_again_counts() -> None:
    io = MemoryIo()
    tombstones = loaded(io)
    for end in (10, 20):
        tombstones.add("T", end)
        tombstones.save()
    assert loaded(io).end_of("T") == 20


def test_nothing_new_is_not_written() -> None:
    io = MemoryIo()
    tombstones = loaded(io)
    tombstones.save()
    assert io.paths() == []
    tombstones.add("T", 10)
    tombstones.save()
    before = io.operations
    tombstones.save()
    tombstones.prune(5)
    tombstones.save()
    assert io.operations == before


def test_an_entry_goes_with_the_last_message_that_it_is_about() -> None:
    io = MemoryIo()
    tombstones = loaded(io)
    tombstones.add("T", 1000)
    tombstones.add("U", 2000)
    tombstones.prune(999)
    assert tombstones.topics == {"T": 1000, "U": 2000}
    tombstones.prune(1000)
    assert tombstones.topics == {"U": 2000}
    tombstones.save()
    assert loaded(io).topics == {"U": 2000}


GARBAGE = {
    "empty": b"",
    "half": b'{"format": 1, "topics": {"T":',
    "zeros": b"\0" * 100,
    "a list": b"[]",
    "no table": b'{"format": 1}',
    "another number": b'{"format": 1, "topics": {"T": 5}, "checksum": "00000000"}',
    "another key": b'{"format": 1, "topics": {"T": 5}, "checksun": "00000000"}',
    "another format": b'{"format": 2, "topics": {}}',
    "text for an offset": b'{"format": 1, "topics": {"T": "5"}}',
    "true for an offset": b'{"format": 1, "topics": {"T": true}}',
    "a negative offset": b'{"format": 1, "topics": {"T": -5}}',
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_gives_way_to_the_backup_and_without_one_is_named(garbage: bytes) -> None:
    io = MemoryIo()
    io.replace_bytes(PATH, garbage)
    with pytest.raises(CorruptStore, match=r"deletedTopics\.json: not readable"):
        loaded(io)
    io.replace_bytes(PATH.with_name(FILE_NAME + ".bak"), b'{"format": 1, "topics": {"T": 7}}')
    assert loaded(io).topics == {"T": 7}


# --- in a store ----------------------------------------------------------------------------------------------


def put(store: MessageStore, topic: str, count: int = 5, *, size: int = 100) -> None:
    for _ in range(count):
        store.append([message(topic, 0, b"x" * size, unique_key="U")])
    store.flush_disk()
    store.confirm(store.flushed_offset)


def without_a_checkpoint(io: MemoryIo) -> MemoryIo:
    """As a power failure leaves it, and so that the whole log is walked."""
    after = io.crash()
    after.unlink(ROOT / "checkpoint")
    return after


def test_recovery_does_not_bring_a_deleted_topic_back() -> None:
    """It did: the walk found the messages and made the queues anew, and groups got them all again."""
    io = MemoryIo()
    store = open_store(io)
    put(store, "Gone")
    put(store, "Stays")
    assert store.topics.delete("Gone") == 1
    store.topics.save_deletions()
    store.check()
    put(store, "Stays")
    again = open_store(without_a_checkpoint(io))
    assert again.topics.names() == ["Stays"]
    assert (again.reading.min_offset("Stays", 0), again.reading.max_offset("Stays", 0)) == (0, 10)
    assert again.reading.readable_range("Gone", 0) is None
    again.check()


def test_a_topic_that_was_made_again_has_its_new_messages_only() -> None:
    io = MemoryIo()
    store = open_store(io)
    put(store, "T", 7)
    store.topics.delete("T")
    put(store, "T", 3, size=10)
    store.topics.save_deletions()
    store.check()
    again = open_store(without_a_checkpoint(io))
    found = again.reading.get_message("g", "T", 0, 0, 32, 1 << 20, None)
    assert (found.count, found.max_offset) == (3, 3)
    again.check()
    put(again, "T", 1)
    assert again.reading.max_offset("T", 0) == 4


def test_messages_that_wait_for_the_disk_go_with_their_topic() -> None:
    io = MemoryIo()
    store = open_store(io)
    store.append([message("T")])
    store.topics.delete("T")
    store.topics.save_deletions()
    store.flush_disk()
    assert store.confirm(store.flushed_offset) == []
    again = open_store(without_a_checkpoint(io))
    assert again.topics.names() == []


def test_an_orderly_stop_saves_what_was_deleted() -> None:
    io = MemoryIo()
    store = open_store(io)
    put(store, "T")
    store.topics.delete("T")
    store.close()
    io.unlink(ROOT / "checkpoint")
    assert open_store(io).topics.names() == []


def test_the_list_shrinks_with_the_log() -> None:
    io = MemoryIo()
    store = open_store(io)
    put(store, "T", 10, size=1500)
    store.topics.delete("T")
    store.topics.save_deletions()
    put(store, "U", 40, size=1500)
    assert PATH in io.paths()
    facts = store.cleaner.survey(store.flushed_offset)
    store.cleaner.clean(CleaningPlan(tuple(facts[:2]), "asked"))
    store.topics.save_deletions()
    assert loaded(io).topics == {}


@pytest.mark.parametrize("operation", range(12))
def test_a_crash_while_deleting_leaves_the_topic_or_not_but_never_half_of_it(operation: int) -> None:
    io = MemoryIo()
    store = open_store(io)
    put(store, "T", 40)
    put(store, "U", 3)
    io.stop_after(operation)
    done = False
    try:
        store.topics.delete("T")
        store.topics.save_deletions()
        done = True
    except PowerFailure:
        pass
    again = open_store(without_a_checkpoint(io))
    again.check()
    assert again.reading.max_offset("U", 0) == 3
    assert again.reading.max_offset("T", 0) in ((0,) if done else (0, 40))


def test_garbage_stops_the_start_by_name_and_leaves_the_store_as_it_was() -> None:
    io = MemoryIo()
    open_store(io).close()
    io.replace_bytes(PATH, b"garbage")
    with pytest.raises(CorruptStore, match="deletedTopics") as refused:
        open_store(io)
    assert "move both away" in refused.value.way_out
    assert ROOT / "abort" not in io.paths()
    io.unlink(PATH)
    open_store(io).check()


def test_official_brokers_may_run_in_between(tmp_path: Path) -> None:
    """The list lies where they do not look, under a name they do not use."""
    store = open_store(DiskIo(), Clock(), root=tmp_path)
    put(store, "T")
    store.topics.delete("T")
    store.topics.save_deletions()
    store.close()
    assert [path.name for path in (tmp_path / "config").iterdir()] == [FILE_NAME, FILE_NAME + ".bak"]
    assert not (tmp_path / "consumequeue" / "T").exists()
