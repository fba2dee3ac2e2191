"""Topics with queues of batches in a store: numbers, reads, recovery, rot, cleaning, deletion."""

import json
from pathlib import Path
from typing import Any

import pytest

from aerobee_proto.properties import find_property
from aerobee_proto.records import StoredRecord, decode_records
from aerobee_store.checking.scrub import ScrubStep
from aerobee_store.cleaning.cleaning import CleaningPlan
from aerobee_store.disk.io import DiskIo
from aerobee_store.faults.errors import CorruptStore, FileGone, StoreError
from aerobee_store.queues.batch_queue import BatchEntry, BatchQueue
from aerobee_store.queues.batch_queues import batch_topics
from aerobee_store.reading.get_message import GetStatus, Selector
from aerobee_store.store import MessageStore
from aerobee_store.terms.messages import Appended, PutStatus
from store.inside import log_of, queues_of
from store.memory_io import MemoryIo
from store.workload import ROOT, Clock, config, message, open_store

INNER = 0xC0  # a batch that is one record, to be unwrapped by who reads it
SMALL: dict[str, Any] = {"batch_queue_file_size": 46 * 8, "commit_log_file_size": 1 << 20}


def batched(io: Any, topic: str = "B", **changes: Any) -> MessageStore:
    if isinstance(io, MemoryIo):  # it knows no folders
        table = {topic: {"attributes": {"queue.type": "BatchCQ"}}}
        io.replace_bytes(ROOT / "config/topics.json", json.dumps({"topicConfigTable": table}).encode())
    store = open_store(io, **{**SMALL, **changes})
    store.topics.make_batch(topic)
    return store


def put(store: MessageStore, *counts: int, topic: str = "B", tag: str | None = None) -> list[Appended]:
    """A record for each count, readable; those with 1 are ordinary messages."""
    made = []
    for count in counts:
        extra = {"INNER_NUM": str(count)} if count > 1 else None
        flag = INNER if count > 1 else 0
        made.append(
            message(topic, 0, b"x" * count, sys_flag=flag, extra=extra, tag=tag, unique_key=f"U{count}")
        )
    answers = store.append(made)
    store.flush_disk()
    store.confirm(store.flushed_offset)
    return answers


def read(store: MessageStore, offset: int, *, count: int = 32, topic: str = "B") -> list[StoredRecord]:
    found = store.reading.get_message("g", topic, 0, offset, count, 1 << 20, None)
    return decode_records(b"".join(found.body))


def everything(store: MessageStore) -> list[int]:
    """The base of every record that a consumer gets."""
    found, offset = list[int](), store.reading.min_offset("B", 0)
    while offset < store.reading.max_offset("B", 0):
        answer = store.reading.get_message("g", "B", 0, offset, 32, 1 << 20, None)
        found += [record.queue_offset for record in decode_records(b"".join(answer.body))]
        assert answer.next_offset > offset
        offset = answer.next_offset
    return found


def bases(store: MessageStore, topic: str = "B") -> list[tuple[int, int]]:
    """(base, count) of every record, read from the first number on."""
    queue = queues_of(store).get(topic, 0)
    assert isinstance(queue, BatchQueue)
    found, at = [], queue.min_offset
    while (entry := queue.batch_entry(at)) is not None:
        found.append((entry.base, entry.message_count))
        at = entry.end
    return found


# --- numbers ----------------------------------------------------------------------------------------------


def test_a_batch_takes_as_many_numbers_as_it_has_messages() -> None:
    store = batched(MemoryIo())
    answers = put(store, 1, 3, 2, 1)
    assert [answer.queue_offset for answer in answers] == [0, 1, 4, 6]
    assert (
        store.reading.min_offset("B", 0),
        store.reading.max_offset("B", 0),
        store.reading.next_offset("B", 0),
    ) == (0, 7, 7)
    assert bases(store) == [(0, 1), (1, 3), (4, 2), (6, 1)]
    records = read(store, 0)
    assert [record.queue_offset for record in records] == [0, 1, 4, 6]
    stamped = [find_property(record.properties.encode(), b"INNER_BASE") for record in records]
    assert stamped == [None, b"1", b"4", None]
    store.check()


def test_a_base_that_a_sender_sent_is_replaced() -> None:
    store = batched(MemoryIo())
    put(store, 2)
    stale = {"INNER_NUM": "2", "INNER_BASE": "77"}
    assert store.append([message("B", 0, b"x", sys_flag=INNER, extra=stale)])[0].queue_offset == 2
    put(store, 1)
    assert find_property(read(store, 2)[0].properties.encode(), b"INNER_BASE") == b"2"
    assert bases(store) == [(0, 2), (2, 2), (4, 1)]


@pytest.mark.parametrize(
    ("flag", "extra"),
    [
        (0, {"INNER_NUM": "2"}),
        (INNER, {"INNER_NUM": "0"}),
        (INNER, {"INNER_NUM": "32768"}),
        (INNER, {"INNER_NUM": "two"}),
    ],
)
def test_what_cannot_be_a_batch_takes_no_number(flag: int, extra: dict[str, str]) -> None:
    store = batched(MemoryIo())
    refused, taken = store.append(
        [message("B", 0, b"x", sys_flag=flag, extra=extra), message("B", 0, b"y", sys_flag=INNER)]
    )
    assert refused.status is PutStatus.MESSAGE_ILLEGAL
    assert (taken.status, taken.queue_offset) == (PutStatus.PUT_OK, 0)
    put(store)
    assert bases(store) == [(0, 1)]


def test_plain_topics_beside_it_count_as_ever() -> None:
    store = batched(MemoryIo())
    mixed = [message("B", 0, b"x", sys_flag=INNER, extra={"INNER_NUM": "5"}), message("Orders", 0, b"y")] * 3
    assert [answer.queue_offset for answer in store.append(mixed)] == [0, 0, 5, 1, 10, 2]
    put(store)
    assert store.reading.max_offset("Orders", 0) == 3
    assert bases(store) == [(0, 5), (5, 5), (10, 5)]
    store.check()


def test_a_topic_with_plain_queues_cannot_become_one() -> None:
    store = open_store(MemoryIo())
    store.append([message("Orders", 0, b"x")])
    with pytest.raises(StoreError, match="plain queues"):
        store.topics.make_batch("Orders")
    assert not store.topics.is_batch("Orders")


# --- reading ----------------------------------------------------------------------------------------------


def test_a_read_within_a_batch_gives_the_whole_and_goes_on_behind_it() -> None:
    store = batched(MemoryIo())
    put(store, 1, 3, 1)
    found = store.reading.get_message("g", "B", 0, 2, 1, 1 << 20, None)
    assert (found.status, found.next_offset, found.count) == (GetStatus.FOUND, 4, 3)
    assert [record.queue_offset for record in decode_records(b"".join(found.body))] == [1]
    assert [record.queue_offset for record in read(store, 0, count=3)] == [0]  # 1 + 3 are more than 3
    assert [record.queue_offset for record in read(store, 0, count=4)] == [0, 1]
    assert store.reading.get_message("g", "B", 0, 5, 9, 1 << 20, None).status is GetStatus.OFFSET_OVERFLOW_ONE
    assert store.reading.get_message("g", "B", 0, 9, 9, 1 << 20, None).next_offset == 5


def test_filters_choose_records() -> None:
    store = batched(MemoryIo())
    put(store, 2, tag="A")
    put(store, 3, tag="B")
    found = store.reading.get_message("g", "B", 0, 0, 32, 1 << 20, frozenset({ord("B")}))
    assert (found.count, found.next_offset, len(found.body)) == (3, 5, 1)
    selector = Selector(lambda raw: b"TAGS\x01A" in raw, 100)
    found = store.reading.get_message("g", "B", 0, 0, 32, 1 << 20, None, selector)
    assert (found.count, found.next_offset, len(found.body)) == (2, 5, 1)
    found = store.reading.get_message("g", "B", 0, 0, 32, 1 << 20, frozenset({99}))
    assert (found.status, found.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 5)


def test_keys_and_times_lead_to_records() -> None:
    clock = Clock()
    store = open_store(MemoryIo(), clock, **SMALL)
    store.topics.make_batch("B")
    times = []
    for count in (2, 3, 1):
        times.append(put(store, count)[0].store_timestamp)
        clock.now_ms += 1000
    assert len(store.keys.query("B", "U3", 32, 0, 1 << 62).body) == 1
    lower = [
        store.reading.offset_by_time("B", 0, time, upper=False) for time in (0, *times, times[1] + 1, 1 << 50)
    ]
    assert lower == [0, 0, 2, 5, 5, 5]
    assert [store.reading.offset_by_time("B", 0, time, upper=True) for time in (0, *times, 1 << 50)] == [
        0,
        0,
        2,
        5,
        5,
    ]
    assert [entry.physical_offset for entry in store.reading.queue_entries("B", 0, 0, 9)] == [
        record.physical_offset for record in read(store, 0)
    ]
    assert store.reading.store_time("B", 0, 4) == times[1]


def test_held_reads_hear_of_arrivals_as_of_plain_ones() -> None:
    store = batched(MemoryIo())
    store.append([message("B", 0, b"x", sys_flag=INNER, extra={"INNER_NUM": "3"}, tag="A")] * 2)
    ((topic, queue_id, max_offset, entries),) = store.confirm(store.flush_disk())
    assert (topic, queue_id, max_offset, len(entries)) == ("B", 0, 6, 40)
    assert int.from_bytes(entries[12:20], "big") == ord("A")


# --- stops ------------------------------------------------------------------------------------------------


def test_a_closed_store_opens_as_it_was() -> None:
    io = MemoryIo()
    store = batched(io)
    put(store, *range(1, 20))
    before = bases(store)
    store.close()
    again = MessageStore(config(**SMALL), io=io, clock=Clock())
    report = again.open()
    assert (report.walked_records, report.cut_entries, again.topics.is_batch("B")) == (0, 0, True)
    assert bases(again) == before
    again.check()
    assert put(again, 2)[0].queue_offset == sum(range(1, 20))


def killed(io: MemoryIo) -> MessageStore:
    """Opened after its process was killed: the queues hold what was written, the mark of the run is there."""
    again = MessageStore(config(**SMALL), io=io.kill(), clock=Clock())
    again.open()
    return again


@pytest.mark.parametrize(
    "lost", ["nothing", "files", "first file", "tail", "middle", "garbage", "checkpoint"]
)
def test_queues_are_built_from_the_log(lost: str) -> None:
    io = MemoryIo()
    store = batched(io)
    put(store, *(count % 5 + 1 for count in range(30)))
    before = bases(store)
    queue = queues_of(store).get("B", 0)
    assert isinstance(queue, BatchQueue)
    files = queue.open_files()
    assert len(files) == 4
    if lost == "tail":
        files[-1].write(0, bytes(46 * 3))
    elif lost == "middle":
        files[1].write(46 * 3, bytes(46))
    elif lost == "garbage":
        files[-1].write(46 * 6, BatchEntry(1 << 40, 100, 0, 1, 1 << 30, 1).packed())
    elif lost == "checkpoint":
        io.unlink(ROOT / "checkpoint")
    elif lost != "nothing":
        for file in files[: 1 if lost == "first file" else 4]:
            io.unlink(file.path)
    again = killed(io)
    assert bases(again) == before
    again.check()
    assert everything(again) == [base for base, _ in before]
    assert put(again, 3)[0].queue_offset == sum(count for _, count in before)


def test_a_rebuild_gives_the_same_queues() -> None:
    io = MemoryIo()
    store = batched(io)
    put(store, 4, 1, 2)
    store.close()
    again = MessageStore(config(**SMALL, rebuild=True), io=io, clock=Clock())
    again.open()
    assert bases(again) == [(0, 4), (4, 1), (5, 2)]
    again.check()


def test_a_damaged_record_keeps_its_numbers() -> None:
    io = MemoryIo()
    store = batched(io)
    answers = put(store, 2, 3, 4)
    damage(store, answers[1])
    io.unlink(ROOT / "checkpoint")
    again = killed(io)
    assert bases(again) == [(0, 2), (2, 3), (5, 4)]
    assert [record.queue_offset for record in read(again, 0)] == [0, 5]
    again.check()


def test_without_its_entry_too_the_numbers_of_a_damaged_record_stay_taken() -> None:
    io = MemoryIo()
    store = batched(io)
    answers = put(store, 2, 3, 4)
    damage(store, answers[1])
    for file in list(queues_of(store).get_or_create("B", 0).open_files()):
        io.unlink(file.path)
    io.unlink(ROOT / "checkpoint")
    again = killed(io)
    assert bases(again) == [(0, 2), (2, 3), (5, 4)]
    assert [record.queue_offset for record in read(again, 0)] == [0, 5]
    assert put(again, 1)[0].queue_offset == 9


def damage(store: MessageStore, answer: Appended) -> None:
    file = log_of(store).mapped.files[0]
    file.data.write(answer.physical_offset + answer.size - 60, b"\xff" * 8)


def test_files_that_went_away_after_a_stop_are_built_again() -> None:
    io = MemoryIo()
    store = batched(io)
    put(store, 2, 3)
    paths = [file.path for file in queues_of(store).get_or_create("B", 0).open_files()]
    store.close()
    for path in paths:
        io.unlink(path)
    again = killed(io)
    assert bases(again) == [(0, 2), (2, 3)]


# --- while it runs ----------------------------------------------------------------------------------------


def whole_round(store: MessageStore) -> list[ScrubStep]:
    steps = [store.scrubbing.step()]
    while not steps[-1].is_round_done:
        steps.append(store.scrubbing.step())
    return steps


def test_a_wrong_entry_is_mended_and_a_damaged_record_put_aside() -> None:
    store = batched(MemoryIo())
    answers = put(store, 2, 3, 4)
    store.flush_queues()
    (file,) = queues_of(store).get_or_create("B", 0).open_files()
    good = file.read(46, 46)
    file.write(46 + 12, b"\x55")  # its tag
    steps = whole_round(store)
    assert [mended for step in steps for mended in step.mended] == [("B", 0, 2)]
    assert file.read(46, 46) == good
    damage(store, answers[1])
    assert [found.begin for step in whole_round(store) for found in step.damage] == [
        answers[1].physical_offset
    ]
    assert [record.queue_offset for record in read(store, 0)] == [0, 5]
    store.check()


def test_a_number_that_was_changed_is_written_again() -> None:
    store = batched(MemoryIo())
    put(store, 2, 3, 4)
    store.flush_queues()
    (file,) = queues_of(store).get_or_create("B", 0).open_files()
    file.write(46 + 36, (4).to_bytes(2, "big"))  # it claims one message more
    steps = whole_round(store)
    assert [step.mended for step in steps if step.mended] == [[("B", 0, 2)]]
    assert bases(store) == [(0, 2), (2, 3), (5, 4)]


def test_old_log_files_take_old_queue_files_with_them() -> None:
    io = MemoryIo()
    store = batched(io, commit_log_file_size=4096)
    for _ in range(80):
        put(store, 3)
    store.flush_queues()
    files = store.cleaner.survey(store.settled_offset)
    deleted = store.cleaner.clean(CleaningPlan(tuple(files[:2]), "asked"))
    assert [found.of_log for found in deleted][:3] == [True, True, False]
    low = store.reading.min_offset("B", 0)
    assert low > 0
    assert low % 3 == 0
    assert store.reading.max_offset("B", 0) == 240
    assert store.reading.get_message("g", "B", 0, 0, 9, 1 << 20, None).next_offset == low
    assert read(store, low)[0].queue_offset == low
    store.check()
    store.close()
    again = MessageStore(config(**{**SMALL, "commit_log_file_size": 4096}), io=io, clock=Clock())
    again.open()
    assert (again.reading.min_offset("B", 0), again.reading.max_offset("B", 0)) == (low, 240)
    again.check()


def test_a_file_that_is_taken_away_is_noticed(tmp_path: Path) -> None:
    store = batched(DiskIo(), root=tmp_path)
    put(store, 2)
    (tmp_path / "batchconsumequeue" / "B" / "0" / f"{0:020d}").unlink()
    store.watch.look()
    assert isinstance(store.health.failure, FileGone)
    store.close()
    again = MessageStore(config(root=tmp_path, **SMALL), io=DiskIo(), clock=Clock())
    again.open()
    assert bases(again) == [(0, 2)]
    again.close()


def test_a_deleted_topic_leaves_nothing_and_may_be_of_the_other_kind(tmp_path: Path) -> None:
    store = batched(DiskIo(), root=tmp_path)
    put(store, 2)
    assert store.topics.delete("B") == 1
    assert not store.topics.is_batch("B")
    assert not (tmp_path / "batchconsumequeue" / "B").exists()
    assert store.append([message("B", 0, b"x")])[0].queue_offset == 0
    put(store)
    assert (tmp_path / "consumequeue" / "B" / "0").exists()
    store.close()
    again = MessageStore(config(root=tmp_path, **SMALL), io=DiskIo(), clock=Clock())
    again.open()
    assert not again.topics.is_batch("B")
    assert again.reading.max_offset("B", 0) == 1
    again.check()
    again.close()


# --- which topics -----------------------------------------------------------------------------------------


def settings(root: Path, **kinds: str | None) -> None:
    table = {name: {"attributes": {"queue.type": kind} if kind else {}} for name, kind in kinds.items()}
    (root / "config").mkdir(parents=True, exist_ok=True)
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))


def queue_file(root: Path, folder: str, topic: str) -> None:
    place = root / folder / topic / "0"
    place.mkdir(parents=True)
    (place / f"{0:020d}").write_bytes(bytes(46 * 10))


def test_settings_and_folders_say_which_topics_have_them(tmp_path: Path) -> None:
    settings(tmp_path, InSettings="BatchCQ", Plain=None, Simple="SimpleCQ")
    (tmp_path / "batchconsumequeue" / "InFolder").mkdir(parents=True)
    (tmp_path / "batchconsumequeue" / "Plain" / "0").mkdir(parents=True)  # without a file it says nothing
    assert batch_topics(tmp_path, DiskIo()) == {"InSettings", "InFolder"}


def test_a_folder_that_was_left_over_does_not_hide_a_plain_topic(tmp_path: Path) -> None:
    """A crash while the folder is made for a topic that a send makes meanwhile, before its settings are on disk: its
    messages were not there after the start."""
    settings(tmp_path)
    (tmp_path / "batchconsumequeue" / "T").mkdir(parents=True)
    assert batch_topics(tmp_path, DiskIo()) == {"T"}
    queue_file(tmp_path, "consumequeue", "T")
    assert batch_topics(tmp_path, DiskIo()) == set()


@pytest.mark.parametrize("content", ["{", "[]", '{"topicConfigTable": 3}', '{"topicConfigTable": {"B": 1}}'])
def test_settings_that_cannot_be_read_leave_it_to_the_folders(tmp_path: Path, content: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text(content)
    queue_file(tmp_path, "batchconsumequeue", "Batched")
    assert batch_topics(tmp_path, DiskIo()) == {"Batched"}


@pytest.mark.parametrize(
    ("kind", "folder", "reason"),
    [
        ("BatchCQ", "consumequeue", "says queue.type=BatchCQ of T, and there are plain queues"),
        (None, "batchconsumequeue", "says no queue.type=BatchCQ of T, and there are queues of batches"),
    ],
)
def test_settings_that_contradict_the_files_are_refused(
    tmp_path: Path, kind: str | None, folder: str, reason: str
) -> None:
    """RocketMQ does not start on such a folder either; numbers would be given out twice."""
    settings(tmp_path, T=kind)
    queue_file(tmp_path, folder, "T")
    store = MessageStore(config(tmp_path), io=DiskIo(), clock=lambda: 1)
    before = sorted(path for path in tmp_path.rglob("*") if path.name != "lock")
    with pytest.raises(CorruptStore, match=reason):
        store.open()
    assert sorted(path for path in tmp_path.rglob("*") if path.name != "lock") == before
    assert not store.is_open


def test_a_log_without_any_queue_file_is_numbered_by_the_settings(tmp_path: Path) -> None:
    store = batched(DiskIo(), root=tmp_path)
    put(store, 2, 3)
    store.close()
    for path in sorted((tmp_path / "batchconsumequeue").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    settings(tmp_path, B="BatchCQ")
    again = MessageStore(config(root=tmp_path, **SMALL), io=DiskIo(), clock=Clock())
    again.open()
    assert bases(again) == [(0, 2), (2, 3)]
    again.close()
