"""A log that is cut back is as if what lay behind had never been stored, whenever the power goes."""

import contextlib
import json
from pathlib import Path
from random import Random

import pytest
import structlog

from aerobee_store.disk.io import DiskIo
from aerobee_store.faults.errors import CorruptStore, CutRefused
from aerobee_store.recovery.cutting import CUT_FILE
from aerobee_store.replicas.epochs import Epoch
from aerobee_store.store import MessageStore
from aerobee_store.walking.quarantine import QUARANTINE, quarantined
from store.inside import log_of, queues_of
from store.memory_io import MemoryIo, PowerFailure, RandomSurvivors
from store.workload import ROOT, Clock, Workload, config, message, open_store

FILE_SIZE = 16384


def filled(seed: int, *, files: float = 2.5, **changes: object) -> tuple[MemoryIo, Workload]:
    """A closed store with some log files, after random work."""
    io = MemoryIo()
    work = Workload(Random(seed), io, Clock(), **changes)
    work.store.open()
    while work.store.end_offset < files * FILE_SIZE:
        work.step()
    work.store.close()
    return io, work


def borders(work: Workload) -> list[int]:
    return [one.physical_offset for one in work.stored]


def check_cut(store: MessageStore, work: Workload, offset: int) -> None:
    """Everything below `offset` is there, and nothing leads behind it."""
    assert store.end_offset == store.confirmed_offset == store.flushed_offset == offset
    left = [one for one in work.stored if one.physical_offset < offset]
    for one in left:
        found = store.reading.message_at(one.physical_offset)
        assert found is not None
        assert found == one.record
    for key in {one.key for one in work.stored}:
        of_queue = [one for one in left if one.key == key]
        entries = [entry.physical_offset for entry in store.reading.queue_entries(*key, 0, 100_000)]
        assert entries == [one.physical_offset for one in of_queue]
        expected = of_queue[-1].queue_offset + 1 if of_queue else 0
        assert store.reading.next_offset(*key) == expected
    for one in work.stored[:: max(len(work.stored) // 25, 1)]:
        assert one.message.unique_key is not None
        found_keys = store.keys.query(one.message.topic, one.message.unique_key, 1, 0, 1 << 60).body
        assert bool(found_keys) == (one.physical_offset < offset)
    log = log_of(store)
    for file in log.mapped.files:
        assert not any(file.view[max(offset - file.offset, 0) :])
    store.check()


@pytest.mark.parametrize("seed", range(4))
def test_what_lies_behind_goes_and_all_else_stays(seed: int) -> None:
    io, work = filled(seed, record_checksum=seed % 2 == 0)
    random = Random(seed)
    end = work.stored[-1].end
    for _ in range(3):
        offset = random.choice([at for at in borders(work) if at <= end])
        store = work.restart(io)
        with structlog.testing.capture_logs() as said:
            report = store.open(offset)
        if offset < end:
            assert report.cut is not None
            count = sum(offset <= one.physical_offset < end for one in work.stored)
            assert (report.cut.physical_offset, report.cut.message_count) == (offset, count)
            (event,) = [one for one in said if one["event"] == "store.log_cut"]
            assert event["size"] == report.cut.end_offset - offset
        check_cut(store, work, offset)
        if random.random() < 0.5:
            store.close()
        else:
            io = io.crash(RandomSurvivors(random))
        end = offset
    again = work.restart(io)
    again.open()
    check_cut(again, work, end)
    assert io.read_bytes(ROOT / CUT_FILE) is None


@pytest.mark.parametrize("seed", range(2))
def test_a_cut_store_goes_on_as_one_that_never_had_more(seed: int) -> None:
    """What is written behind the cut has other sizes: nothing of what lay there shines through, also after a crash."""
    io, work = filled(seed)
    random = Random(seed)
    offset = random.choice(borders(work)[1:])
    store = work.restart(io)
    store.open(offset)
    work.stored = [one for one in work.stored if one.physical_offset < offset]
    numbers = {one.key: one.queue_offset + 1 for one in work.stored}
    for _ in range(30):
        before = len(work.stored)
        work.append()
        for one in work.stored[before:]:
            assert one.queue_offset == numbers.get(one.key, 0)
            numbers[one.key] = one.queue_offset + 1
        if random.random() < 0.3:
            work.flush()
    promised = work.durable_end
    store = work.restart(io.crash(RandomSurvivors(random)))
    report = store.open()
    assert not report.damage or report.damage[0].begin >= promised
    assert store.end_offset >= promised
    for one in work.stored:
        if one.end <= promised:
            found = store.reading.message_at(one.physical_offset)
            assert found is not None
            assert found == one.record
    store.check()


def test_at_the_ends_of_files() -> None:
    io, work = filled(3)
    last = max(one.end for one in work.stored if one.end <= 2 * FILE_SIZE)
    store = work.restart(io)
    store.open(2 * FILE_SIZE)
    assert store.end_offset == 2 * FILE_SIZE
    store.check()
    store.close()
    store = work.restart(io)
    store.open(last)
    check_cut(store, work, last)
    store.close()
    store = work.restart(io)
    store.open(0)
    assert (store.min_physical_offset, store.end_offset) == (0, 0)
    (answer,) = store.append([message()])
    assert (answer.physical_offset, answer.queue_offset) == (0, 0)
    store.check()


def test_nothing_is_cut_where_no_message_begins_or_ends() -> None:
    io, work = filled(4)
    first, second = work.stored[0], work.stored[1]
    end = work.stored[-1].end
    for wrong in (
        1,
        first.end - 1,
        first.end + 8,
        second.end - 4,
        end + 1,
        10 * FILE_SIZE,
        -5,
        2 * FILE_SIZE - 3,
    ):
        store = work.restart(io)
        with pytest.raises(CutRefused, match=f"cut back to {wrong}"):
            store.open(wrong)
        assert io.read_bytes(ROOT / "abort") is None
        assert io.read_bytes(ROOT / CUT_FILE) is None
    store = work.restart(io)
    report = store.open(end)
    assert report.cut is None
    check_cut(store, work, end)


def test_the_oldest_that_is_kept_is_the_furthest_a_log_can_be_cut() -> None:
    io, work = filled(5)
    io.unlink(ROOT / "commitlog" / f"{0:020d}")
    with pytest.raises(CutRefused, match=f"from {FILE_SIZE} to"):
        work.restart(io).open(0)
    store = work.restart(io)
    store.open(FILE_SIZE)
    assert (store.min_physical_offset, store.end_offset) == (FILE_SIZE, FILE_SIZE)
    store.check()


@pytest.mark.parametrize("seed", range(2))
def test_a_power_cut_at_any_step_leaves_all_or_a_cut_that_the_next_start_ends(seed: int) -> None:
    random = Random(seed)
    disk, work = filled(seed, files=1.2)
    offset, end = random.choice(borders(work)[1:]), work.stored[-1].end
    found: set[int] = set()
    for steps in range(0, 4000, 5 + 2 * seed):
        io = disk.kill()
        io.stop_after(steps)
        try:
            work.restart(io).open(offset)
        except PowerFailure:
            pass
        else:
            break
        survivors = RandomSurvivors(random) if random.random() < 0.6 else None
        io = io.kill() if random.random() < 0.3 else io.crash(survivors)
        store = work.restart(io)
        report = store.open()
        assert store.end_offset in (offset, end)
        assert not report.damage
        assert report.cut is None or report.cut.message_count == sum(at >= offset for at in borders(work))
        check_cut(store, work, store.end_offset)
        found.add(store.end_offset)
        store.close()
        again = work.restart(io)
        again.open(offset)
        check_cut(again, work, offset)
    assert found == {offset, end}


def test_a_second_power_cut_while_the_cut_is_ended_does_no_harm() -> None:
    disk, work = filled(11, files=1.2)
    offset = borders(work)[5]
    for steps in range(0, 100, 17):
        io = disk.kill()
        _stopped(work.restart(io), io, 40, offset)
        io = io.crash(RandomSurvivors(Random(steps)))
        begun = io.read_bytes(ROOT / CUT_FILE) is not None
        _stopped(work.restart(io), io, steps, None)
        io = io.crash(RandomSurvivors(Random(steps)))
        store = work.restart(io)
        store.open()
        check_cut(store, work, offset if begun else work.stored[-1].end)


def _stopped(store: MessageStore, io: MemoryIo, steps: int, offset: int | None) -> None:
    io.stop_after(steps)
    with contextlib.suppress(PowerFailure):
        store.open(offset)


def test_a_deeper_cut_may_follow_one_that_was_interrupted() -> None:
    io, work = filled(12)
    high, low = borders(work)[-3], borders(work)[4]
    for steps in range(1, 200):
        _stopped(work.restart(io), io, steps, high)
        io = io.kill()
        if io.read_bytes(ROOT / CUT_FILE) is not None:
            break
    store = work.restart(io)
    report = store.open(low)
    assert report.cut is not None
    assert report.cut.message_count == len(work.stored) - 4
    check_cut(store, work, low)


def test_a_cut_that_another_program_came_after_is_forgotten() -> None:
    io, work = filled(13)
    content = {"format": 1, "physical_offset": 0, "end_offset": 9, "message_count": 1}
    io.replace_bytes(ROOT / CUT_FILE, json.dumps(content).encode())
    for abort in (None, b"4711"):
        if abort is not None:
            io.replace_bytes(ROOT / CUT_FILE, json.dumps(content).encode())
            io.replace_bytes(ROOT / "abort", abort)
        store = work.restart(io)
        with structlog.testing.capture_logs() as said:
            store.open()
        assert "store.cut_forgotten" in [one["event"] for one in said]
        check_cut(store, work, work.stored[-1].end)
        store.close()
        assert io.read_bytes(ROOT / CUT_FILE) is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"format": 2}', b'{"format": 1, "physical_offset": "x"}']
)
def test_a_damaged_word_about_a_cut_is_an_error_by_name(content: bytes) -> None:
    io, work = filled(14)
    io.replace_bytes(ROOT / CUT_FILE, content)
    io.replace_bytes(ROOT / "abort", b"1\naerobee\n")
    with pytest.raises(CorruptStore, match="copied anew"):
        work.restart(io).open()


def test_places_of_damage_behind_the_cut_hold_messages_again() -> None:
    io, work = filled(15)
    damaged, later = work.stored[20], work.stored[-1]
    io.flip(ROOT / "commitlog" / f"{0:020d}", damaged.physical_offset + 60)
    io.unlink(ROOT / "checkpoint")
    store = work.restart(io)
    assert store.open().damage
    store.close()
    assert quarantined(io, ROOT)
    offset = borders(work)[10]
    store = work.restart(io)
    store.open(offset)
    assert quarantined(io, ROOT) == ()
    assert all(entry.name.endswith(".cut") for entry in io.list_names(ROOT / QUARANTINE))
    work.stored = [one for one in work.stored if one.physical_offset < offset]
    while store.end_offset < later.end:
        work.append()
    work.flush()
    for one in work.stored:
        assert store.reading.message_at(one.physical_offset) is not None
    store.check()


def test_epochs_that_wrote_nothing_of_what_is_left_are_forgotten() -> None:
    io, work = filled(16)
    places = borders(work)
    store = work.restart(io)
    store.open()
    store.epochs.follow([Epoch(1, 0), Epoch(2, places[10]), Epoch(3, places[20])])
    store.close()
    store = work.restart(io)
    store.open(places[20])
    assert store.epochs.entries == (Epoch(1, 0), Epoch(2, places[10]))
    store.close()
    store = work.restart(io)
    store.open()
    assert store.epochs.last_epoch == 2


def test_a_deleted_topic_stays_deleted_and_the_log_may_be_cut_below_its_end() -> None:
    io, work = filled(17)
    store = work.restart(io)
    store.open()
    store.topics.delete("Orders")
    store.close()
    offset = borders(work)[30]
    store = work.restart(io)
    store.open(offset)
    assert not [queue for queue in queues_of(store) if queue.topic == "Orders"]
    (answer,) = store.append([message("Orders")])
    store.flush_disk()
    store.confirm(store.end_offset)
    assert answer.queue_offset == 0
    assert store.reading.max_offset("Orders", 0) == 1
    store.check()


def test_on_a_real_disk(tmp_path: Path) -> None:
    store = open_store(DiskIo(), root=tmp_path)
    answers = [store.append([message(body=b"x" * 700)])[0] for _ in range(60)]
    store.close()
    for keep in (50, 23, 22, 0):
        store = MessageStore(config(root=tmp_path), io=DiskIo(), clock=Clock())
        report = store.open(answers[keep].physical_offset)
        assert report.cut is not None
        assert store.end_offset == answers[keep].physical_offset
        assert store.reading.max_offset("Orders", 0) == keep
        store.check()
        store.close()
