"""The facade: what goes in comes out, against a plain model; states, limits, full disks, two owners."""

import contextlib
import errno
import itertools
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from structlog.testing import capture_logs

from aerobee_proto.records import StoredRecord, decode_record, decode_records
from aerobee_store.disk.io import DiskIo
from aerobee_store.faults.errors import (
    CorruptStore,
    OutOfResources,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreNotWriteable,
)
from aerobee_store.queues.consume_queue import tags_of
from aerobee_store.reading.get_message import GetStatus
from aerobee_store.store import MessageStore
from aerobee_store.terms.messages import PutStatus
from store.inside import log_of
from store.memory_io import MemoryFile, MemoryIo
from store.workload import HOST_V6, ROOT, START_MS, TOPICS, Clock, Workload, config, message, open_store

PREPARED, COMMIT, ROLLBACK = 0x4, 0x8, 0xC


@pytest.fixture
def store() -> Iterator[MessageStore]:
    opened = open_store(MemoryIo())
    yield opened
    opened.close()


def settle(store: MessageStore) -> None:
    """Make everything durable and readable."""
    store.flush_disk()
    store.confirm(store.flushed_offset)


def read(
    store: MessageStore, topic: str = "Orders", queue_id: int = 0, offset: int = 0
) -> list[StoredRecord]:
    found = store.reading.get_message("g", topic, queue_id, offset, 32, 1 << 20, None)
    return decode_records(b"".join(found.body))


# --- against a model ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_a_store_holds_what_a_list_holds(seed: int) -> None:
    random = Random(seed)
    io = MemoryIo()
    work = Workload(random, io, Clock())
    work.store.open()
    for _ in range(6):
        for _ in range(12):
            work.step()
        work.flush()
        compare(work)
        if random.random() < 0.5:
            work.store.close()
            report = work.restart(io).open()
            assert (report.aborted, report.walked_records) == (False, 0)
            compare(work)
    work.store.check()


def compare(work: Workload) -> None:
    """Reads, numbers, times and keys against the list of everything stored."""
    store, random = work.store, work.random
    for topic in TOPICS:
        for queue_id in range(3):
            held = [s for s in work.stored if s.key == (topic, queue_id)]
            assert (
                store.reading.max_offset(topic, queue_id)
                == store.reading.next_offset(topic, queue_id)
                == len(held)
            )
            assert [s.queue_offset for s in held] == list(range(len(held)))
            if not held:
                continue
            offset = random.randrange(len(held))
            found = store.reading.get_message("g", topic, queue_id, offset, 8, 1 << 20, None)
            assert b"".join(found.body) == b"".join(s.record for s in held[offset : found.next_offset])
            time = held[offset].store_timestamp
            at_or_after = [s.queue_offset for s in held if s.store_timestamp >= time]
            # Queues of several files are searched file by file, so only times of one file are compared.
            if len(held) <= 16:
                assert store.reading.offset_by_time(topic, queue_id, time, upper=False) == at_or_after[0]
    key = f"k{random.randrange(20)}"
    for topic in TOPICS:
        carrying = [s.record for s in work.stored if carries(s.message.keys, key) and s.key[0] == topic]
        answer = store.keys.query(topic, key, 64, 0, 1 << 62)
        assert [bytes(r) for r in answer.body] == carrying[-64:]


def carries(keys: str | None, key: str) -> bool:
    return keys is not None and key in keys.split(" ")


# --- one message ----------------------------------------------------------------------------------------


def test_a_message_is_stored_with_all_its_fields(store: MessageStore) -> None:
    new = message(body=b"hello", tag="TagA", keys="a b", unique_key="U1", host=HOST_V6)
    new.flag, new.reconsume_times, new.prepared_transaction_offset = -7, 3, 99
    (answer,) = store.append([new])
    settle(store)
    (record,) = read(store)
    assert (record.topic, record.queue_id, record.queue_offset) == ("Orders", 0, 0)
    assert (record.flag, record.reconsume_times, record.prepared_transaction_offset) == (-7, 3, 99)
    assert (record.body, record.tags, record.keys, record.unique_key) == (b"hello", "TagA", ("a", "b"), "U1")
    assert record.born_host == record.store_host == ("1:203:405:607:809:a0b:c0d:e0f", 10911)
    assert (record.physical_offset, record.size) == (answer.physical_offset, answer.size)
    assert record.store_timestamp == answer.store_timestamp == START_MS + 1
    assert "__CRC32C" in record.property_map


def test_address_bits_follow_the_hosts_and_not_the_sender(store: MessageStore) -> None:
    """Else a sender could make a record that nobody can read."""
    store.append([message(sys_flag=0x30), message(sys_flag=0, host=HOST_V6)])
    settle(store)
    assert [r.sys_flag & 0x30 for r in read(store)] == [0, 0x30]


def test_checksums_that_a_sender_sent_are_replaced(store: MessageStore) -> None:
    sent = {"__CRC32C": "0" * 24, "__CRC32#": "0123456789", "kept": "yes"}
    store.append([message(extra=sent)])
    settle(store)
    (record,) = read(store)
    assert record.property_map["kept"] == "yes"
    assert record.property_map["__CRC32C"] != "0" * 24
    assert "__CRC32#" not in record.property_map


def test_both_checksums_together() -> None:
    io = MemoryIo()
    opened = open_store(io, append_property_crc=True, verify_property_crc=True)
    opened.append([message(body=b"%d" % n) for n in range(100)])
    settle(opened)
    opened.check()
    raw = opened.reading.message_at(0)
    assert raw is not None
    assert raw[-20:].startswith(b"__CRC32#\x01")
    io = io.kill()
    io.unlink(ROOT / "checkpoint")
    again = open_store(io, append_property_crc=True, verify_property_crc=True)
    assert again.end_offset == opened.end_offset


def test_without_checksums_records_are_the_official_ones() -> None:
    opened = open_store(MemoryIo(), record_checksum=False)
    opened.append([message(tag="TagA")])
    settle(opened)
    (record,) = read(opened)
    assert record.properties == "TAGS\x01TagA\x02"


# --- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "status"),
    [
        ({"body": bytes(5000)}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": "t" * 256}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": ""}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": "../up"}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": ".."}, PutStatus.MESSAGE_ILLEGAL),
        ({"queue_id": -1}, PutStatus.MESSAGE_ILLEGAL),
        ({"queue_id": 1 << 31}, PutStatus.MESSAGE_ILLEGAL),
        ({"extra": {"p": "x" * 32767}}, PutStatus.PROPERTIES_SIZE_EXCEEDED),
    ],
    ids=["body", "long topic", "no topic", "path", "dots", "queue", "big queue", "properties"],
)
def test_a_refused_message_takes_no_number_and_harms_no_other(bad: dict, status: PutStatus) -> None:  # type: ignore[type-arg]
    opened = open_store(MemoryIo(), body_size_max=4000, commit_log_file_size=1 << 17)
    answers = opened.append([message(body=b"1"), message(**bad), message(body=b"2")])
    assert [a.status for a in answers] == [PutStatus.PUT_OK, status, PutStatus.PUT_OK]
    assert (answers[1].physical_offset, answers[1].queue_offset) == (-1, -1)
    assert [a.queue_offset for a in answers if a.status is PutStatus.PUT_OK] == [0, 1]
    group = opened.append_group([message(body=b"3"), message(**bad)])
    assert [a.status for a in group] == [status, status]
    settle(opened)
    opened.check()
    assert [r.body for r in read(opened)] == [b"1", b"2"]


def test_numbers_that_fit_no_field_are_refused(store: MessageStore) -> None:
    wrong = message()
    wrong.flag = 1 << 40
    answers = store.append([message(), wrong, message()])
    assert [a.status.name for a in answers] == ["PUT_OK", "MESSAGE_ILLEGAL", "PUT_OK"]
    assert [a.status.name for a in store.append_group([message(), wrong])] == ["MESSAGE_ILLEGAL"] * 2
    settle(store)
    store.check()


def test_a_message_longer_than_a_log_file_is_refused() -> None:
    """The official store answers PUT_OK, stores nothing and leaves a whole file blank."""
    opened = open_store(MemoryIo(), commit_log_file_size=4096)
    (empty,) = opened.append([message(body=b"")])
    longest = 4096 - 8 - empty.size
    answers = [opened.append([message(body=bytes(longest + extra))])[0] for extra in (0, 1)]
    assert [a.status.name for a in answers] == ["PUT_OK", "MESSAGE_ILLEGAL"]
    assert (answers[0].physical_offset, answers[0].size) == (4096, 4088)
    settle(opened)
    opened.check()


# --- files and batches ----------------------------------------------------------------------------------


def test_a_batch_that_does_not_fit_is_split_between_messages() -> None:
    opened = open_store(MemoryIo(), commit_log_file_size=4096)
    answers = opened.append([message(body=bytes(1000)) for _ in range(10)])
    files = [a.physical_offset // 4096 for a in answers]
    assert files == sorted(files)
    assert len(set(files)) == 4
    settle(opened)
    opened.check()
    assert opened.reading.max_offset("Orders", 0) == 10


def test_a_group_is_not_split() -> None:
    opened = open_store(MemoryIo(), commit_log_file_size=4096)
    opened.append([message(body=bytes(2000))])
    answers = opened.append_group([message(queue_id=1, body=bytes(1000)) for _ in range(3)])
    assert answers[0].physical_offset == 4096
    assert {a.physical_offset // 4096 for a in answers} == {1}
    assert [a.queue_offset for a in answers] == [0, 1, 2]
    too_much = opened.append_group([message(body=bytes(1000)) for _ in range(5)])
    assert {a.status for a in too_much} == {PutStatus.MESSAGE_ILLEGAL}
    settle(opened)
    opened.check()


def test_what_a_transaction_prepares_or_rolls_back_is_in_no_queue(store: MessageStore) -> None:
    flags = (0, PREPARED, ROLLBACK, COMMIT)
    answers = store.append([message(sys_flag=flag, unique_key=f"U{flag}") for flag in flags])
    assert [a.queue_offset for a in answers] == [0, 0, 0, 1]
    settle(store)
    assert [r.sys_flag for r in read(store)] == [0, COMMIT]
    found = [len(store.keys.query("Orders", f"U{flag}", 10, 0, 1 << 62).body) for flag in flags]
    assert found == [1, 1, 0, 1]
    store.check()


# --- who sees what when ---------------------------------------------------------------------------------


def test_readers_see_a_message_when_it_is_confirmed(store: MessageStore) -> None:
    (answer,) = store.append([message(tag="TagA", unique_key="U1")])
    assert store.end_offset == answer.size
    assert (store.flushed_offset, store.confirmed_offset) == (0, 0)
    assert store.reading.message_at(0) is None
    assert (
        store.reading.get_message("g", "Orders", 0, 0, 1, 1000, None).status is GetStatus.NO_MESSAGE_IN_QUEUE
    )
    assert (store.reading.max_offset("Orders", 0), store.reading.next_offset("Orders", 0)) == (0, 1)
    assert store.confirm(store.flushed_offset) == []
    assert store.flush_disk() == store.end_offset
    arrivals = store.confirm(store.flushed_offset)
    assert [(*place, tags_of(entries)) for *place, entries in arrivals] == [("Orders", 0, 1, [2598919])]
    assert store.reading.message_at(0) is not None
    assert store.confirm(store.flushed_offset) == []


def test_what_is_kept_is_found_by_its_place_before_its_queue_has_begun(store: MessageStore) -> None:
    first, second = [store.append([message(queue_id=queue)])[0] for queue in range(2)]
    store.confirm(store.end_offset, begun_max=1)
    assert store.confirmed_offset == second.physical_offset
    assert (store.reading.max_offset("Orders", 1), store.reading.message_at(first.size) is None) == (0, False)
    (third,) = store.append([message(queue_id=2)])
    assert store.reading.message_at(third.physical_offset) is None
    store.showing.keeps(store.end_offset)
    assert store.reading.message_at(third.physical_offset) is not None
    store.showing.keeps(0)  # nothing is taken back
    assert store.reading.message_at(third.physical_offset) is not None


def test_several_batches_are_confirmed_by_one_write_a_queue(store: MessageStore) -> None:
    for _ in range(5):
        store.append([message(queue_id=0, tag="TagA"), message(queue_id=1)])
    arrivals = store.confirm(store.end_offset)
    assert [(*place, tags_of(entries)) for *place, entries in arrivals] == [
        ("Orders", 0, 5, [2598919] * 5),
        ("Orders", 1, 5, [0] * 5),
    ]


def test_keys_are_found_also_before_the_index_is_built(store: MessageStore) -> None:
    store.append([message(keys=f"k{n}", unique_key=f"U{n}") for n in range(10)])
    settle(store)
    assert store.keys.backlog == 10
    assert store.keys.build(4) == 8
    assert store.keys.backlog == 6
    found = store.keys.query("Orders", "k9", 10, 0, 1 << 62)
    assert [decode_record(bytes(r)).unique_key for r in found.body] == ["U9"]
    assert store.keys.backlog == 0
    assert found.last_update_physical_offset == decode_record(bytes(found.body[0])).physical_offset


def test_without_an_index_nothing_is_found_and_nothing_waits() -> None:
    io = MemoryIo()
    opened = open_store(io, index_enabled=False)
    opened.append([message(keys="k", unique_key="U")])
    settle(opened)
    assert (opened.keys.backlog, opened.keys.query("Orders", "k", 9, 0, 1 << 62).body) == (0, [])
    opened.close()
    assert not [path for path in io.paths() if path.parent.name == "index"]


def test_times_and_limits_of_unknown_queues_are_plain_values(store: MessageStore) -> None:
    assert (
        store.reading.min_offset("None", 0),
        store.reading.max_offset("None", 0),
        store.reading.next_offset("None", 0),
    ) == (
        0,
        0,
        0,
    )
    assert (store.reading.earliest_time("None", 0), store.reading.store_time("None", 0, 5)) == (-1, -1)
    assert store.reading.offset_by_time("None", 0, START_MS, upper=False) == 0
    assert (store.topics.queue_ids("None"), store.topics.names()) == ([], [])
    assert store.reading.message_at(12345) is None
    assert store.reading.message_at(-1) is None


def test_times_lead_to_offsets(store: MessageStore) -> None:
    stamps = [store.append([message()])[0].store_timestamp for _ in range(5)]
    settle(store)
    assert store.reading.earliest_time("Orders", 0) == stamps[0]
    assert [store.reading.store_time("Orders", 0, n) for n in range(6)] == [*stamps, -1]
    assert [store.reading.offset_by_time("Orders", 0, s, upper=False) for s in stamps] == [0, 1, 2, 3, 4]
    assert store.reading.offset_by_time("Orders", 0, stamps[-1] + 1, upper=False) == 5
    assert store.reading.offset_by_time("Orders", 0, stamps[2], upper=True) == 2


# --- topics ---------------------------------------------------------------------------------------------


def test_a_deleted_topic_starts_again_at_zero(store: MessageStore) -> None:
    store.append([message(queue_id=n % 2) for n in range(6)] + [message("Bills")])
    settle(store)
    assert store.topics.queue_ids("Orders") == [0, 1]
    assert store.topics.delete("Orders") == 2
    assert (store.topics.names(), store.topics.queue_ids("Orders")) == (["Bills"], [])
    (answer,) = store.append([message()])
    assert answer.queue_offset == 0
    settle(store)
    assert len(read(store)) == 1


def test_queues_with_large_numbers_are_like_others(store: MessageStore) -> None:
    far = 1_000_000
    appended = [store.append([message(queue_id=queue_id)])[0] for queue_id in (far, 3, far, 3, far)]
    assert [one.queue_offset for one in appended] == [0, 0, 1, 1, 2]
    store.confirm(store.end_offset)
    assert [store.reading.max_offset("Orders", queue_id) for queue_id in (far, 3)] == [3, 2]
    assert store.topics.delete("Orders") == 2
    assert [store.append([message(queue_id=queue_id)])[0].queue_offset for queue_id in (far, 3)] == [0, 0]


def test_messages_on_their_way_when_their_topic_is_deleted_are_dropped(store: MessageStore) -> None:
    store.append([message(), message("Bills")])
    store.topics.delete("Orders")
    arrivals = store.confirm(store.end_offset)
    assert [topic for topic, *_ in arrivals] == ["Bills"]
    assert store.reading.max_offset("Orders", 0) == 0


def test_figures_for_a_status_line(store: MessageStore) -> None:
    store.append([message()])
    found = store.statistics()
    assert found.end_offset == found.dispatch_behind_bytes > 0
    assert (found.commit_log_files, found.queues, found.index_backlog) == (1, 1, 0)


# --- start and end --------------------------------------------------------------------------------------


def test_a_store_that_is_not_open_takes_nothing() -> None:
    closed = MessageStore(config(), io=MemoryIo(), clock=Clock())
    with pytest.raises(StoreNotWriteable, match="not open"):
        closed.append([message()])
    assert closed.not_writeable_reason == "it is not open"
    closed.close()
    closed.open()
    with pytest.raises(StoreError, match="open already"):
        closed.open()
    closed.close()
    closed.close()
    with pytest.raises(StoreNotWriteable):
        closed.append([message()])


def test_a_clean_stop_leaves_a_folder_that_the_official_program_takes(tmp_path: Path) -> None:
    opened = open_store(DiskIo(), root=tmp_path / "store")
    opened.append([message(unique_key=f"U{n}") for n in range(30)])
    assert (tmp_path / "store" / "abort").exists()
    opened.preallocate()
    opened.close()
    names = sorted(p.name for p in (tmp_path / "store").iterdir())
    assert names == ["checkpoint", "commitlog", "config", "consumequeue", "index", "lock"]
    for folder, size in (("commitlog", 16384), ("consumequeue/Orders/0", 320)):
        found = [p.stat().st_size for p in (tmp_path / "store" / folder).iterdir()]
        assert found
        assert set(found) == {size}
    assert len(list((tmp_path / "store" / "commitlog").iterdir())) == 1


def test_a_second_broker_on_the_same_folder_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    first = open_store(DiskIo(), root=tmp_path)
    first.append([message()])
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    second = MessageStore(config(tmp_path), io=DiskIo(), clock=Clock())
    with pytest.raises(StoreLocked):
        second.open()
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    settle(first)
    first.check()
    first.close()
    second.open()
    second.close()


@pytest.mark.parametrize("folder", ["commitlog", "consumequeue/Orders/0"])
def test_foreign_files_are_refused_by_name_and_nothing_changes(tmp_path: Path, folder: str) -> None:
    first = open_store(DiskIo(), root=tmp_path)
    first.append([message()])
    first.close()
    (tmp_path / folder / "notes.txt").write_text("mine")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    for _ in range(2):
        with pytest.raises(CorruptStore, match=r"notes\.txt: foreign file.*move it") as refused:
            open_store(DiskIo(), root=tmp_path)
        assert refused.value.path == tmp_path / folder / "notes.txt"
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_foreign_files_of_the_index_are_named_and_left(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "notes.txt").write_text("mine")
    with capture_logs() as logs:
        open_store(DiskIo(), root=tmp_path).close()
    named = [e["path"] for e in logs if e["event"] == "store.foreign_file_found"]
    assert named == [str(tmp_path / "index" / "notes.txt")]
    assert (tmp_path / "index" / "notes.txt").read_text() == "mine"


def test_one_line_tells_the_recovery() -> None:
    with capture_logs() as logs:
        open_store(MemoryIo())
    (line,) = [e for e in logs if e["event"] == "store.recovered"]
    assert (line["log_level"], line["aborted"], line["damage"], line["end_offset"]) == ("info", False, 0, 0)


def test_other_file_sizes_than_those_it_was_written_with_are_refused(tmp_path: Path) -> None:
    first = open_store(DiskIo(), root=tmp_path)
    first.append([message()])
    first.close()
    with pytest.raises(CorruptStore, match=r"length is 16384, must be 8192.*configure the size"):
        open_store(DiskIo(), root=tmp_path, commit_log_file_size=8192)


# --- no room --------------------------------------------------------------------------------------------


def fill(store: MessageStore) -> int:
    """Send until the disk is full; how many messages were taken."""
    for sent in range(100):
        try:
            store.append([message(body=bytes(1000))])
        except StoreFull:
            return sent
    raise AssertionError("the disk was never full")


def test_a_full_disk_refuses_sends_and_reads_go_on() -> None:
    io, clock = MemoryIo(), Clock()
    opened = open_store(io, clock)
    opened.append([message(body=bytes(1000)) for _ in range(5)])
    settle(opened)
    io.capacity = io.used()
    sent = 5 + fill(opened)
    assert "disk is full" in (opened.not_writeable_reason or "")
    settle(opened)
    assert opened.reading.max_offset("Orders", 0) == sent
    assert len(read(opened)) > 0
    with pytest.raises(StoreFull):
        opened.append([message()])
    io.capacity = None
    clock.now_ms += 1000
    (answer,) = opened.append([message(body=bytes(1000))])
    assert (answer.status, answer.queue_offset) == (PutStatus.PUT_OK, sent)
    assert opened.not_writeable_reason is None
    settle(opened)
    opened.check()


def test_a_batch_is_answered_as_far_as_it_found_room() -> None:
    io = MemoryIo()
    opened = open_store(io)
    opened.append([message()])
    io.capacity = io.used()
    answers = opened.append([message(body=bytes(1500)) for _ in range(20)])
    names = [a.status.name for a in answers]
    stored = names.count("PUT_OK")
    assert 0 < stored < 20
    assert names == ["PUT_OK"] * stored + ["CREATE_MAPPED_FILE_FAILED"] * (20 - stored)
    io.capacity = None
    settle(opened)
    opened.check()
    assert opened.reading.max_offset("Orders", 0) == 1 + stored


def test_entries_that_find_no_room_are_written_when_there_is_some() -> None:
    io, clock = MemoryIo(), Clock()
    opened = open_store(io, clock)
    opened.append([message()])
    settle(opened)
    io.capacity = io.used()
    opened.append([message(queue_id=1), message(queue_id=0)])
    arrivals = opened.confirm(opened.end_offset)
    assert [a[:3] for a in arrivals] == [("Orders", 0, 2)]
    assert opened.reading.max_offset("Orders", 1) == 0
    with pytest.raises(StoreFull):
        opened.append([message()])
    io.capacity = None
    assert [a[:3] for a in opened.confirm(opened.end_offset)] == [("Orders", 1, 1)]
    clock.now_ms += 1000
    opened.append([message()])
    settle(opened)
    opened.check()


class _FailingMakes(MemoryIo):
    """Files that are made are synced, too, and so is the name of each."""

    def open_file(
        self, path: Path, size: int, *, create: bool = False, writable: bool = True, room: int | None = None
    ) -> MemoryFile:
        if create and room is None:
            self.count_sync(path.parent)
        return super().open_file(path, size, create=create, writable=writable, room=room)


def test_a_disk_that_fails_while_a_store_is_closed_is_told_as_that() -> None:
    """Where it failed at the keys that were left, who puts them raises nothing, and the broker ended by a fault of its
    own."""
    failed: list[str] = []
    for number in itertools.count(1):
        io = _FailingMakes()
        opened = open_store(io)
        for at in range(60):  # keys for several files of the index, all of which are still to be put
            opened.append([message(keys=f"a{at} b{at} c{at}", unique_key=f"U{at}")])
        opened.flush_disk()
        opened.confirm(opened.end_offset)
        io.fail_sync(number)
        with contextlib.suppress(OSError):
            opened.close()
        assert not opened.is_open
        if not opened.has_failed:
            break
        failed.append(str(opened.health.failure))
        again = open_store(io.crash())
        assert len(decode_records(b"".join(again.keys.query("Orders", "U59", 9, 0, 2**62).body))) == 1
        again.close()
    assert any("index" in one for one in failed)
    assert any("consumequeue" in one for one in failed)


class ScarceIo(MemoryIo):
    """While `number` is set, what needs a descriptor is refused with it."""

    number: int | None = None
    folders: list[Path]

    def open_file(
        self, path: Path, size: int, *, create: bool = False, writable: bool = True, room: int | None = None
    ) -> MemoryFile:
        self._refuse(path)
        return super().open_file(path, size, create=create, writable=writable, room=room)

    def sync_folder(self, path: Path) -> None:
        self._refuse(path)
        self.folders = [*getattr(self, "folders", []), path]

    def replace_bytes(self, path: Path, data: bytes, *, keep_previous: bool = True) -> None:
        self._refuse(path)
        super().replace_bytes(path, data, keep_previous=keep_previous)

    def _refuse(self, path: Path) -> None:
        if self.number is not None:
            raise OutOfResources(path, self.number)


@pytest.mark.parametrize(
    ("number", "limit"),
    [(errno.EMFILE, "LimitNOFILE"), (errno.ENFILE, "fs.file-max"), (errno.ENOMEM, "vm.max_map_count")],
)
def test_used_up_descriptors_are_waited_out_and_named(number: int, limit: str) -> None:
    """They ended the broker as "disk failed"; or every send was told of "no room for 67108864 bytes"."""
    io, clock = ScarceIo(), Clock()
    opened = open_store(io, clock)
    opened.append([message()])
    settle(opened)
    io.number = number
    with capture_logs() as logs:
        opened.append([message(queue_id=1)])
        assert opened.confirm(opened.end_offset) == []
        for _ in range(2):
            with pytest.raises(OutOfResources, match=limit) as refused:
                opened.append([message()])
            assert "no room" not in str(refused.value)
        assert limit in (opened.not_writeable_reason or "")
    assert [(entry["event"], limit in entry.get("way_out", "")) for entry in logs] == [
        ("store.resources_used_up", True)
    ]
    assert not opened.has_failed
    io.number = None
    clock.now_ms += 1000
    assert [a[:3] for a in opened.confirm(opened.end_offset)] == [("Orders", 1, 1)]
    assert opened.append([message()])[0].status is PutStatus.PUT_OK
    settle(opened)
    opened.check()
    opened.close()


def test_names_that_could_not_be_made_durable_are_made_so_by_the_next_round() -> None:
    """The folders were forgotten by the round that failed: it was the last thing that the store did."""
    io = ScarceIo()
    opened = open_store(io)
    opened.append([message()])
    settle(opened)
    io.number = errno.EMFILE
    with pytest.raises(OutOfResources):
        opened.flush_queues()
    assert not opened.has_failed
    io.number, io.folders = None, []
    opened.flush_queues()
    assert ROOT / "consumequeue" / "Orders" / "0" in io.folders
    io.folders = []
    opened.flush_queues()
    assert io.folders == []
    opened.close()


def test_a_stop_without_descriptors_leaves_the_rest_to_the_next_start() -> None:
    """Taking the mark of an unfinished run away was not expected to fail for want of a descriptor."""
    io = ScarceIo()
    opened = open_store(io)
    opened.append([message()])
    settle(opened)
    opened.flush_queues()
    io.number = errno.EMFILE
    with capture_logs() as logs:
        opened.close()
    events = [entry["event"] for entry in logs]
    assert events == ["store.queue_list_not_saved", "store.closed_with_backlog", "store.closed"]
    io.number = None
    again = open_store(io)
    assert [record.body for record in read(again)] == [message().body]
    again.close()


@pytest.mark.parametrize("room_for", [0, 1, 2])
def test_what_a_refused_write_would_have_stored_takes_no_offsets(
    room_for: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that fails for want of memory is refused; the numbers that its messages had are given out again."""
    opened = open_store(MemoryIo())
    written = log_of(opened).write
    writes = []

    def scarce(data: bytes) -> None:
        writes.append(1)
        if len(writes) > room_for:
            raise OutOfResources(ROOT, errno.ENOMEM)
        written(data)

    batch = [message(queue_id=n % 2, body=bytes([n]) * 3500, unique_key=f"U{n}") for n in range(12)]
    with monkeypatch.context() as patched:
        patched.setattr(log_of(opened), "write", scarce)
        if room_for == 0:
            with pytest.raises(OutOfResources):
                opened.append(batch)
            taken = 0
        else:
            names = [answer.status.name for answer in opened.append(batch)]
            taken = names.count("PUT_OK")
            assert 0 < taken < 12
            assert names == ["PUT_OK"] * taken + ["CREATE_MAPPED_FILE_FAILED"] * (12 - taken)
    opened.full_until = 0
    assert {answer.status for answer in opened.append(batch[taken:])} == {PutStatus.PUT_OK}
    settle(opened)
    opened.keys.build(100)
    for queue_id in range(2):
        bodies = [record.body[0] for record in read(opened, queue_id=queue_id)]
        assert bodies == list(range(queue_id, 12, 2))
    opened.check()
    opened.close()


def test_a_stop_on_a_full_disk_leaves_the_rest_to_the_next_start() -> None:
    io = MemoryIo()
    opened = open_store(io)
    opened.append([message()])
    settle(opened)
    io.capacity = io.used()
    opened.append([message(queue_id=1, unique_key="U")])
    opened.close()
    assert io.read_bytes(ROOT / "abort") is not None
    io.capacity = None
    again = open_store(io)
    assert again.reading.max_offset("Orders", 1) == 1
    assert len(again.keys.query("Orders", "U", 1, 0, 1 << 62).body) == 1
    again.check()
