"""Reading from a queue: every status, where to go on, and when a batch is full."""

import os
from pathlib import Path
from typing import Any

import pytest

from aerobee_proto.javahash import java_hash
from aerobee_proto.properties import find_property
from aerobee_proto.records import decode_records
from aerobee_store.disk.io import DiskIo
from aerobee_store.disk.page_cache import NotInMemory
from aerobee_store.queues.consume_queue import ENTRY, ConsumeQueue
from aerobee_store.reading.get_message import Followed, GetResult, GetStatus, MessageReader, Nearby, Selector
from aerobee_store.store import MessageStore
from store.inside import log_of, queues_of, settings_of
from store.memory_io import MemoryIo
from store.slow_disk import SlowIo
from store.workload import ROOT, message, open_store

ALL = 1 << 27


def filled(count: int, io: MemoryIo | None = None, size: int = 10, **changes: Any) -> MessageStore:
    """A store with so many messages in queue 0, tags by turns."""
    store = open_store(io or MemoryIo(), **{"consume_queue_file_size": 20_000, **changes})
    for number in range(count):
        store.append([message(body=b"%d" % number + bytes(size), tag=("TagA", "TagB", None)[number % 3])])
    store.flush_disk()
    store.confirm(store.flushed_offset)
    return store


def opened_again(store: MessageStore, io: MemoryIo) -> MessageStore:
    """The same messages, now written by an earlier run: their entries are checked against the records."""
    store.close()
    return open_store(io, consume_queue_file_size=20_000)


def get(
    store: MessageStore,
    offset: int,
    count: int = 32,
    size: int = ALL,
    tags: frozenset[int] | None = None,
    queue_id: int = 0,
) -> GetResult:
    return store.reading.get_message("group", "Orders", queue_id, offset, count, size, tags)


def numbers(found: GetResult) -> list[int]:
    return [record.queue_offset for record in decode_records(b"".join(found.body))]


def test_a_pull_from_a_cold_queue_reads_no_more_than_it_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each copied 16,000 bytes of entries to give 32 messages."""
    store = open_store(DiskIo(), root=tmp_path, consume_queue_file_size=20_000, commit_log_file_size=1 << 20)
    store.append([message(body=b"%d" % number) for number in range(900)])
    store.flush_disk()
    store.confirm(store.flushed_offset)
    asked: list[int] = []
    real = os.pread

    def pread(fd: int, size: int, position: int) -> bytes:
        asked.append(size)
        return real(fd, size, position)

    monkeypatch.setattr(os, "pread", pread)
    at = 0
    while at < 900:
        found = get(store, at)
        assert numbers(found) == list(range(at, min(at + 32, 900)))
        at = found.next_offset
    assert sum(asked) <= 900 * 20 * 2
    assert max(asked) <= 4096
    store.close()


# --- statuses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "status", "following"),
    [
        (0, GetStatus.FOUND, 10),
        (9, GetStatus.FOUND, 10),
        (10, GetStatus.OFFSET_OVERFLOW_ONE, 10),
        (11, GetStatus.OFFSET_OVERFLOW_BADLY, 10),
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
    ],
)
def test_the_place_asked_for_decides(offset: int, status: GetStatus, following: int) -> None:
    found = get(filled(10), offset)
    assert (found.status, found.next_offset, found.min_offset, found.max_offset) == (status, following, 0, 10)


def test_a_queue_without_messages() -> None:
    store = filled(1)
    assert get(store, 0, queue_id=7).status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert get(store, 5, queue_id=7).next_offset == 0
    assert get(store, 0, queue_id=-1).status is GetStatus.NO_MATCHED_LOGIC_QUEUE


def test_a_missing_queue_file_leads_to_the_next_one() -> None:
    store = filled(40, consume_queue_file_size=200)
    files = queues_of(store).get("Orders", 0)._files  # type: ignore[union-attr]
    files.files = files.files[:1] + files.files[2:]
    found = get(store, 15)
    assert (found.status, found.next_offset) == (GetStatus.OFFSET_FOUND_NULL, 20)


def test_entries_whose_records_are_gone_are_passed_over() -> None:
    store = filled(30, size=1000)
    log_of(store).mapped.release_first()
    oldest = store.min_physical_offset
    found = get(store, 0)
    places = [record.physical_offset for record in decode_records(b"".join(found.body))]
    assert (found.status, places[0]) == (GetStatus.FOUND, oldest)
    assert numbers(found) == list(range(30 - len(places), 30))


def test_entries_that_lead_nowhere_serve_nothing() -> None:
    """The entry is checked against its record: wrong size, wrong place, no record at all."""
    io = MemoryIo()
    store = opened_again(filled(5, io), io)
    path = ROOT / "consumequeue" / "Orders" / "0" / f"{0:020d}"
    for number, position in ((1, 20 + 11), (2, 40 + 7)):
        io.flip(path, position, 3)
        found = get(store, number, count=1)
        assert found.status is GetStatus.FOUND
        assert numbers(found) == [number + 1]
        io.flip(path, position, 3)


def test_a_read_of_removed_records_alone_says_so() -> None:
    io = MemoryIo()
    store = opened_again(filled(3, io), io)
    log = ROOT / "commitlog" / f"{0:020d}"
    for number in range(3):
        entry = store.reading.queue_entry("Orders", 0, number)
        assert entry is not None
        io.flip(log, entry.physical_offset + 30)
    found = get(store, 0)
    assert (found.status, found.next_offset, found.body) == (GetStatus.MESSAGE_WAS_REMOVING, 3, [])


@pytest.mark.parametrize("file_size", [20_000, 3_000])
def test_the_quick_way_and_the_careful_way_find_the_same(file_size: int) -> None:
    """Messages of this run are read without a look at each; every limit and every border must hold all the same."""
    store = open_store(MemoryIo(), consume_queue_file_size=400, commit_log_file_size=file_size)
    for number in range(90):
        sizes = [(number * 37) % 200 + part for part in range(number % 4 + 1)]
        store.append([message(body=bytes(size), queue_id=part % 2) for part, size in enumerate(sizes)])
    store.flush_disk()
    store.confirm(store.flushed_offset)
    quick, careful = (MessageReader(log_of(store), queues_of(store), settings_of(store)) for _ in range(2))
    quick.written_from = 0
    for queue_id in (0, 1):
        for offset in range(store.reading.max_offset("Orders", queue_id)):
            for count, size in ((1, ALL), (7, ALL), (32, ALL), (1000, ALL), (32, 700), (32, 100)):
                asked = ("Orders", queue_id, offset, count, size, None)
                found, expected = quick.get(*asked), careful.get(*asked)
                assert b"".join(found.body) == b"".join(expected.body)
                for name in ("status", "next_offset", "min_offset", "max_offset", "count", "size"):
                    assert getattr(found, name) == getattr(expected, name), (name, asked)


# --- how much -------------------------------------------------------------------------------------------


def test_adjacent_records_leave_as_one_slice() -> None:
    store = filled(20)
    found = get(store, 3, count=10)
    assert (len(found.body), found.count, found.size) == (1, 10, len(found.body[0]))
    assert numbers(found) == list(range(3, 13))


def test_slices_stay_readable_after_the_store_is_closed() -> None:
    store = filled(5)
    found = get(store, 0)
    store.close()
    assert numbers(found) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("count", [1, 5, 32, 100])
def test_no_more_than_asked_for_and_no_more_than_32(count: int) -> None:
    found = get(filled(60), 0, count=count)
    assert found.count == min(count, 32)
    assert found.next_offset == found.count


def test_the_first_record_is_served_whatever_its_size() -> None:
    store = filled(3, size=2000)
    assert get(store, 0, size=100).count == 1


def test_no_more_bytes_than_asked_for() -> None:
    store = filled(20, size=100)
    three = get(store, 0, count=3).size
    assert get(store, 0, size=three).count == 3
    assert get(store, 0, size=three - 1).count == 2


def test_the_limits_in_memory_and_on_disk_are_settings() -> None:
    limits: dict[str, Any] = {"memory_transfer_count_max": 9, "disk_transfer_count_max": 4}
    assert get(filled(20, **limits), 0).count == 9
    far = filled(20, memory_size=100, **limits)
    assert get(far, 0).count == 4
    small = filled(20, memory_transfer_size_max=600)
    assert get(small, 0).size <= 600
    assert get(filled(20, memory_size=100, disk_transfer_size_max=400), 0).size <= 400


@pytest.mark.parametrize("tags", [None, frozenset({java_hash("TagA")})])
@pytest.mark.parametrize("again", [False, True])
def test_the_limits_on_disk_are_for_what_is_not_in_memory(again: bool, tags: frozenset[int] | None) -> None:
    """Everything that lay far behind the log's end was given by eights, in memory or not: a reader who was that far
    behind had a fifth of the rate."""
    disk = SlowIo()
    limits: dict[str, Any] = {"memory_transfer_count_max": 9, "disk_transfer_count_max": 4}
    settings = {"consume_queue_file_size": 20_000, "memory_size": 100, "read_ahead_size": 0, **limits}
    store = filled(60, disk, size=6000, commit_log_file_size=1 << 19, **settings)
    if again:
        store.close()
        store = open_store(disk, commit_log_file_size=1 << 19, **settings)
    asking, log, step = store.asking.get_message, log_of(store), 1 if tags is None else 3
    assert len(log.mapped.files) == 1
    # Who cannot tell goes by the distance.
    assert asking("group", "Orders", 0, 0, 32, ALL, tags).count == 4
    store.residency.begin(lambda stretches: None)
    found = asking("group", "Orders", 0, 0, 32, ALL, tags)
    assert numbers(found) == list(range(0, 9 * step, step))
    assert found.suggest_slave
    # Of what is not there no more is brought than the disk is to give at once.
    disk.go_cold()
    store.residency.forget()
    path = log.mapped.files[0].data.path
    queue = queues_of(store).get("Orders", 0)
    assert queue is not None
    entries = queue.file_of(0)
    assert entries is not None
    disk.written(entries.data.path, 0, entries.data.size)
    with pytest.raises(NotInMemory) as missing:
        asking("group", "Orders", 0, 0, 32, ALL, tags)
    brought = sum(stretch.length for stretch in missing.value.needed)
    record = log.end_offset // 60
    assert 3 * record < brought < 5 * record * step
    for stretch in missing.value.needed:
        disk.written(*stretch)
    found = asking("group", "Orders", 0, 0, 32, ALL, tags)
    assert 4 <= found.count < 9
    # ... and of what follows what is there, when enough was found.
    disk.written(path, 0, record * 8 * step)
    assert 8 <= asking("group", "Orders", 0, 0, 32, ALL, tags).count <= 9


def test_records_far_behind_the_end_are_better_read_from_a_slave() -> None:
    store = filled(100, memory_size=10_000)
    assert get(store, 0).suggest_slave
    assert not get(store, 98).suggest_slave


# --- filter ---------------------------------------------------------------------------------------------


def test_only_wanted_tags_are_served() -> None:
    found = get(filled(30), 0, tags=frozenset({java_hash("TagB")}))
    assert numbers(found) == list(range(1, 30, 3))
    assert found.next_offset == 30


def test_without_a_match_the_next_offset_moves_on() -> None:
    found = get(filled(30), 4, tags=frozenset({java_hash("none")}))
    assert (found.status, found.next_offset, found.count) == (GetStatus.NO_MATCHED_MESSAGE, 30, 0)


def test_one_call_looks_at_no_more_than_800_entries() -> None:
    found = get(filled(900), 0, tags=frozenset({java_hash("none")}))
    assert (found.status, found.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 800)
    assert get(filled(300, scan_size_max=2000), 0, tags=frozenset({1})).next_offset == 100


def test_a_match_far_down_is_found_by_either_way_of_looking() -> None:
    store = filled(200)
    store.append([message(tag="Rare")])
    store.confirm(store.end_offset)
    for offset in (0, 150, 199, 200):
        assert numbers(get(store, offset, tags=frozenset({java_hash("Rare")}))) == [200]


# --- choice by properties -------------------------------------------------------------------------------


def selected(store: MessageStore, offset: int, selector: Selector, **limits: int) -> GetResult:
    return store.reading.get_message(
        "group", "Orders", 0, offset, limits.get("count", 32), limits.get("size", ALL), None, selector
    )


def by_tag(tag: bytes | None, scan_max: int = 1000) -> Selector:
    return Selector(lambda properties: find_property(properties, b"TAGS") == tag, scan_max)


@pytest.mark.parametrize("again", [False, True], ids=["written by this run", "written by an earlier run"])
@pytest.mark.parametrize("limits", [{}, {"count": 5}, {"size": 700}, {"size": 100}], ids=str)
def test_properties_choose_as_tags_do(again: bool, limits: dict[str, int]) -> None:
    """Same limits, same way on; only that every record is looked into."""
    io = MemoryIo()
    store = filled(90, io, memory_size=20_000)
    if again:
        store = opened_again(store, io)
    for offset in range(90):
        for tag in (b"TagA", b"TagB", b"none"):
            found = selected(store, offset, by_tag(tag), **limits)
            expected = get(store, offset, tags=frozenset({java_hash(tag.decode())}), **limits)
            assert b"".join(found.body) == b"".join(expected.body)
            for name in (
                "status",
                "next_offset",
                "min_offset",
                "max_offset",
                "count",
                "size",
                "suggest_slave",
            ):
                assert getattr(found, name) == getattr(expected, name), (name, offset, tag)


def test_a_selector_bounds_how_much_one_call_looks_at() -> None:
    store = filled(100)
    found = selected(store, 10, by_tag(b"none", scan_max=25))
    assert (found.status, found.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 35)
    assert numbers(selected(store, 10, by_tag(b"TagB", scan_max=3))) == [10]


def test_large_properties_end_a_call_earlier() -> None:
    store = open_store(MemoryIo(), consume_queue_file_size=20_000, commit_log_file_size=1 << 20)
    for _ in range(40):
        store.append([message(extra={"large": "x" * 30_000})])
    store.confirm(store.end_offset)
    found = selected(store, 0, by_tag(b"none"))
    assert found.status is GetStatus.NO_MATCHED_MESSAGE
    assert 8 <= found.next_offset <= 10


def test_what_the_log_does_not_hold_is_not_shown_to_a_selector() -> None:
    io = MemoryIo()
    store = opened_again(filled(6, io), io)
    entries = [store.reading.queue_entry("Orders", 0, number) for number in range(6)]
    log, queue = ROOT / "commitlog" / f"{0:020d}", ROOT / "consumequeue" / "Orders" / "0" / f"{0:020d}"
    assert entries[1] is not None
    io.flip(log, entries[1].physical_offset + 30)  # its physical offset
    io.flip(queue, 2 * 20 + 11, 3)  # the size in its entry
    io.flip(queue, 3 * 20 + 7, 3)  # the place in its entry
    anything = Selector(lambda properties: True, 100)
    assert numbers(selected(store, 0, anything)) == [0, 4, 5]
    only = selected(store, 1, Selector(lambda properties: True, 3))
    assert (only.status, only.next_offset, only.count) == (GetStatus.MESSAGE_WAS_REMOVING, 4, 0)


def test_entries_whose_records_are_gone_are_passed_over_by_a_selector() -> None:
    store = filled(30, size=1000)
    log_of(store).mapped.release_first()
    found = selected(store, 0, Selector(lambda properties: True, 100))
    assert b"".join(found.body) == b"".join(get(store, 0).body)
    assert found.next_offset == 30


def test_a_call_ends_with_its_queue_file() -> None:
    store = filled(30, consume_queue_file_size=200)
    assert [get(store, offset).next_offset for offset in (0, 3, 10, 29)] == [10, 10, 20, 30]


def test_every_file_of_the_log_is_read_from() -> None:
    store = filled(40, size=1500)
    assert len(log_of(store).mapped.files) > 3
    offset, seen = 0, []
    while offset < 40:
        found = get(store, offset, count=8)
        seen += numbers(found)
        offset = found.next_offset
    assert seen == list(range(40))


# --- what is nearby -------------------------------------------------------------------------------------------------


def followed(count: int = 32, *, has_tags: bool = False) -> Followed:
    return Followed("Orders", 0, count, has_tags=has_tags, may_be_far=True)


def places_of(found: Nearby | None) -> list[int]:
    """Physical offsets of the records that a usual read is gathered from; none where it has to look carefully."""
    return [] if found is None else [place for place, _, _ in ENTRY.iter_unpack(found[0])]


def test_all_who_read_one_queue_read_what_is_nearby_wherever_they_are() -> None:
    """Of four readers of a queue only those in one row of its blocks did, once a second had gone by."""
    disk = SlowIo()
    store = filled(0, disk, consume_queue_file_size=200_000, commit_log_file_size=1 << 22)
    store.append([message(body=b"%d" % number) for number in range(9_900)])
    store.flush_disk()
    store.confirm(store.flushed_offset)
    store.residency.begin(lambda stretches: None)
    nearby = store.asking.nearby
    whole = [place for place, _, _ in ENTRY.iter_unpack(entries_of(store).read(0, 9_900))]
    readers = {at: followed() for at in (0, 3_300, 6_600, 9_800)}  # each in a block of its own
    for _ in range(3):
        store.residency.forget()
        for _ in range(2):
            for at, reader in readers.items():
                assert places_of(nearby(reader, at)) == whole[at : at + 32]
    # What is not in memory is left to who can wait for it.
    disk.go_cold()
    store.residency.forget()
    assert {at: places_of(nearby(reader, at)) for at, reader in readers.items()} == {at: [] for at in readers}


def entries_of(store: MessageStore) -> ConsumeQueue:
    queue = queues_of(store).get("Orders", 0)
    assert queue is not None
    return queue


def test_who_follows_a_queue_sees_it_come_and_go_and_come_again() -> None:
    store = filled(0)
    nearby, reader, counted = store.asking.nearby, followed(), followed(2)
    assert nearby(reader, 0) is None
    for _ in range(2):
        begin = log_of(store).end_offset
        store.append([message(body=b"%d" % number) for number in range(5)])
        store.flush_disk()
        store.confirm(store.flushed_offset)
        found = nearby(reader, 0)
        assert found is not None
        assert (len(places_of(found)), found[4], found[6:8]) == (5, 32, (0, 5))
        assert places_of(found)[0] == begin
        assert len(places_of(nearby(counted, 0))) == 2
        assert nearby(reader, 5) is None
        assert nearby(reader, -1) is None
        store.topics.delete("Orders")
        assert nearby(reader, 0) is None


def test_who_follows_a_queue_goes_on_in_the_next_file_of_the_log() -> None:
    store = filled(60, size=6000, commit_log_file_size=1 << 17)
    files, reader = log_of(store).mapped.files, followed(3)
    assert len(files) > 2
    seen = set()
    for at in range(57):
        found = store.asking.nearby(reader, at)
        places = [place for place, _, _ in ENTRY.iter_unpack(entries_of(store).read(at, 3))]
        (file,) = (file for file in files if file.offset <= places[0] < file.end)
        if found is not None:  # else it lies in two files, which is for `get`
            seen.add(found[2])
            assert (places_of(found), found[2], found[3]) == (
                places,
                file.offset,
                min(file.end, log_of(store).end_offset),
            )
    assert len(seen) == len(files)
