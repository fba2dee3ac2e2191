"""Old files: which go and why, clocks that lie, stops at any moment, and the same outcome as the official cleaner."""

import datetime as dt
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from aerobee_store.cleaning.cleaning import (
    FILES_PER_ROUND_MAX,
    CleaningPlan,
    CleaningRules,
    DiskUse,
    LogFileFacts,
    Moment,
    SteadyClock,
    may_send,
    plan_cleaning,
)
from aerobee_store.disk.io import DiskIo
from aerobee_store.store import MessageStore
from aerobee_store.terms.messages import PutStatus
from store.golden import Clock as GoldenClock
from store.golden import expect, store_of, unpack
from store.inside import log_of, queues_of
from store.memory_io import MemoryIo, PowerFailure, RandomSurvivors, Survivors
from store.test_golden_stores import READ_COLUMNS, read_of, rows
from store.workload import ROOT, START_MS, Clock, message, open_store

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
FILE_SIZE = 100
NOW_MS = 1_700_000_000_000
HOUR_NOW = dt.datetime.fromtimestamp(NOW_MS // 1000, dt.UTC).astimezone().hour
OTHER_HOUR = (HOUR_NOW + 5) % 24
RULES = CleaningRules(
    reserved_ms=72 * HOUR_MS,
    delete_hours=frozenset({HOUR_NOW}),
    may_force=True,
    clean_level=75,
    force_level=85,
    refuse_level=90,
)
NOT_NOW = CleaningRules(72 * HOUR_MS, frozenset({OTHER_HOUR}), True, 75, 85, 90)


def forget_files(store: MessageStore) -> None:
    """As if its cleaner had not looked at any file yet."""
    store.cleaner.known.clear()


def files(*ages_h: float) -> list[LogFileFacts]:
    """Files whose newest messages are so many hours old at NOW_MS, oldest file first."""
    return [
        LogFileFacts(i * FILE_SIZE, (i + 1) * FILE_SIZE, NOW_MS - int(age * HOUR_MS))
        for i, age in enumerate(ages_h)
    ]


def used(percent: int) -> DiskUse:
    """A disk of ten files, so far in use."""
    return DiskUse(1000, 1000 - 10 * percent)


def planned(
    found: list[LogFileFacts], rules: CleaningRules = RULES, *disks: DiskUse | None, **moment: Any
) -> tuple[int, str]:
    """How many files go, and why."""
    plan = plan_cleaning(found, rules, Moment(**{"now_ms": NOW_MS, "disks": disks or (used(10),), **moment}))
    assert list(plan.files) == found[: len(plan.files)]
    return len(plan.files), plan.reason


# --- which go, and why ---------------------------------------------------------------------------------------


def test_at_the_hour_expired_files_go_up_to_the_first_that_has_not_expired() -> None:
    assert planned(files(100, 80, 10, 90)) == (2, "hour")
    assert planned(files(72, 71.99)) == (1, "hour")
    assert planned(files(10, 100)) == (0, "")
    assert planned([]) == (0, "")


def test_at_another_hour_nothing_goes_while_there_is_room() -> None:
    assert planned(files(100, 80), NOT_NOW, used(75)) == (0, "")


@pytest.mark.parametrize("disk", [used(76), None], ids=["filling up", "unknown"])
def test_expired_files_go_at_any_hour_when_the_disk_fills_up(disk: DiskUse | None) -> None:
    assert planned(files(100, 80, 10), NOT_NOW, disk) == (2, "space")


def test_each_disk_counts() -> None:
    assert planned(files(100, 10), NOT_NOW, used(10), used(80)) == (1, "space")
    assert planned(files(100, 10), NOT_NOW, used(90), used(10)) == (1, "space")
    assert planned(files(10, 10), NOT_NOW, used(10), used(90)) == (1, "forced")


def test_expired_files_go_at_any_hour_when_asked_for() -> None:
    assert planned(files(100, 80, 10), NOT_NOW, asked=True) == (2, "asked")


def test_a_disk_that_is_nearly_full_loses_as_few_young_files_as_make_room() -> None:
    young = files(5, 4, 3, 2, 1)
    assert planned(young, NOT_NOW, used(85)) == (0, "")
    assert planned(young, NOT_NOW, used(86)) == (1, "forced")
    assert planned(young, NOT_NOW, used(95)) == (1, "forced")
    assert planned(young, NOT_NOW, used(96)) == (2, "forced")
    assert planned(young, NOT_NOW, DiskUse(1000, 0)) == (2, "forced")
    assert planned(files(100, 90, 80, 1), NOT_NOW, used(86)) == (3, "space")


def test_young_files_stay_when_the_operator_says_so() -> None:
    strict = CleaningRules(72 * HOUR_MS, frozenset(), False, 75, 85, 90)
    assert planned(files(5, 4, 3), strict, DiskUse(1000, 0)) == (0, "")


def test_a_round_has_an_end() -> None:
    assert planned(files(*[100] * 30)) == (FILES_PER_ROUND_MAX, "hour")
    assert planned(files(*[1] * 30), NOT_NOW, DiskUse(100_000, 0))[0] == FILES_PER_ROUND_MAX


def test_a_time_in_the_future_is_judged_by_the_next_file() -> None:
    """The clock was ahead while that file was written; it must neither stay for ever nor go too early."""
    future = -30 * 24
    assert planned(files(future, 80, 10)) == (2, "hour")
    assert planned(files(future, 10, 100)) == (0, "")
    assert planned(files(future, future)) == (0, "")


def test_a_time_in_the_past_does_not_make_a_file_older_than_the_one_before() -> None:
    ancient = 50 * 365 * 24
    assert planned(files(80, ancient, 10)) == (2, "hour")
    assert planned(files(10, ancient)) == (0, "")


def test_with_a_clock_in_the_past_nothing_has_expired() -> None:
    assert planned(files(100, 80), now_ms=NOW_MS - 3000 * DAY_MS, asked=True) == (0, "")


def test_used_is_rounded_up() -> None:
    assert DiskUse(1000, 250).used_percent == 75
    assert DiskUse(1000, 249).used_percent == 76
    assert DiskUse(0, 0).used_percent == 0


def test_sends_stop_above_one_level_and_go_on_at_another() -> None:
    assert may_send(RULES, [used(90), None], refused=False)
    assert not may_send(RULES, [used(10), used(91)], refused=False)
    assert not may_send(RULES, [used(86)], refused=True)
    assert may_send(RULES, [used(85)], refused=True)


# --- clocks --------------------------------------------------------------------------------------------------


class Clocks:
    """A wall clock and an uptime, each to be moved."""

    def __init__(self) -> None:
        self.wall = NOW_MS
        self.up = 5000
        self.steady = SteadyClock(lambda: self.wall, lambda: self.up)

    def wait(self, ms: int) -> int:
        """Time passes, on both clocks."""
        self.wall += ms
        self.up += ms
        return self.steady.now()


def test_time_passes() -> None:
    clocks = Clocks()
    for _ in range(100):
        assert clocks.wait(10_000) == clocks.wall
    assert clocks.steady.ahead_ms == 0


@pytest.mark.parametrize("jump_ms", [HOUR_MS, 30 * DAY_MS, 9000 * DAY_MS])
def test_a_clock_that_is_set_ahead_ages_nothing(jump_ms: int) -> None:
    clocks = Clocks()
    before = clocks.wait(10_000)
    clocks.wall += jump_ms
    for i in range(1, 1000):
        assert clocks.wait(10_000) == before + i * 10_000
        assert clocks.steady.ahead_ms == jump_ms
    clocks.wall -= jump_ms
    assert clocks.wait(0) == clocks.wall
    assert clocks.steady.ahead_ms == 0


def test_both_clocks_jumping_at_once_age_next_to_nothing() -> None:
    clocks = Clocks()
    assert clocks.wait(30 * DAY_MS) <= NOW_MS + 600_000


def test_a_clock_that_is_set_back_counts_at_once_and_its_return_too() -> None:
    clocks = Clocks()
    clocks.wall -= DAY_MS
    assert clocks.wait(10_000) == clocks.wall
    clocks.wall += DAY_MS
    assert clocks.wait(10_000) == clocks.wall


def test_small_corrections_are_followed() -> None:
    clocks = Clocks()
    for step in (900, -700, 30_000, -45_000):
        clocks.wall += step
        assert clocks.wait(10_000) == clocks.wall
    assert clocks.steady.ahead_ms == 0


def test_an_uptime_that_goes_back_counts_as_nothing() -> None:
    clocks = Clocks()
    clocks.up -= HOUR_MS
    clocks.wall += HOUR_MS
    assert clocks.steady.now() == NOW_MS


# --- doing ---------------------------------------------------------------------------------------------------


def filled(io: MemoryIo | DiskIo, clock: Clock, root: Path = ROOT, count: int = 120) -> MessageStore:
    """A store of several files with two topics, a minute between two messages, all on disk."""
    store = MessageStore(_config(root), io=io, clock=clock)
    store.open()
    for i in range(count):
        clock.now_ms = START_MS + i * 60_000
        topic = "Rare" if i == 3 else "Orders"
        (done,) = store.append([message(topic, i % 2, b"%d" % i * 300, unique_key=f"U{i}", keys="a b c d")])
        assert done.status is PutStatus.PUT_OK
        settle(store)
    return store


def _config(root: Path) -> Any:
    from store.workload import config

    return config(root)


def settle(store: MessageStore) -> None:
    store.flush_disk()
    store.confirm(store.flushed_offset)
    store.keys.build(1000)
    store.flush_queues()
    store.write_checkpoint()


def survey(store: MessageStore) -> list[LogFileFacts]:
    return store.cleaner.survey(min(store.flushed_offset, store.confirmed_offset))


def oldest(store: MessageStore, count: int) -> CleaningPlan:
    return CleaningPlan(tuple(survey(store)[:count]), "asked")


def test_a_file_is_as_old_as_its_newest_message() -> None:
    clock = Clock()
    store = filled(MemoryIo(), clock)
    facts = survey(store)
    assert len(facts) == len(log_of(store).mapped.files) - 1
    for file in facts:
        stamps = [
            log_of(store).scan(entry.physical_offset).store_timestamp  # type: ignore[union-attr]
            for queue in queues_of(store)
            for offset in range(queue.max_offset)
            if (entry := queue.entry(offset)) is not None and file.offset <= entry.physical_offset < file.end
        ]
        assert file.written_ms == max(stamps)
    assert survey(store) == facts


def test_the_last_file_and_unsettled_ones_are_not_even_looked_at() -> None:
    store = filled(MemoryIo(), Clock())
    all_files = [file.offset for file in log_of(store).mapped.files]
    assert [file.offset for file in store.cleaner.survey(store.end_offset)] == all_files[:-1]
    assert [file.offset for file in store.cleaner.survey(3 * 16384 - 1)] == all_files[:2]
    assert [file.offset for file in store.cleaner.survey(0)] == []


def test_damage_at_the_end_of_a_file_leaves_the_newest_message_that_can_be_read() -> None:
    io = MemoryIo()
    store = filled(io, Clock())
    before = survey(store)[0]
    last = max(
        entry.physical_offset
        for queue in queues_of(store)
        for offset in range(queue.max_offset)
        if (entry := queue.entry(offset)) is not None and entry.physical_offset < 16384
    )
    io.flip(ROOT / "commitlog" / f"{0:020d}", last + 20)
    forget_files(store)
    assert survey(store)[0].written_ms == before.written_ms - 60_000


def test_only_a_file_without_any_readable_message_goes_by_its_file_time() -> None:
    io = MemoryIo()
    store = filled(io, Clock())
    path = ROOT / "commitlog" / f"{16384:020d}"
    io.modified[path] = 777
    assert survey(store)[1].written_ms > START_MS
    log_of(store).mapped.files[1].data.write(0, b"\xaa" * 16384)
    forget_files(store)
    assert survey(store)[1].written_ms == 777


def test_deleting_moves_the_beginning_of_everything() -> None:
    io = MemoryIo()
    store = filled(io, Clock())
    before = store.statistics()
    deleted = store.cleaner.clean(oldest(store, 2))
    assert [file.path.name for file in deleted if file.of_log] == [f"{0:020d}", f"{16384:020d}"]
    assert {file.path.parent.parts[2] for file in deleted} == {"commitlog", "consumequeue", "index"}
    assert not {file.path for file in deleted} & set(io.paths())
    assert store.min_physical_offset == 32768
    assert store.end_offset == before.end_offset
    for queue_id in (0, 1):
        low, high = store.reading.min_offset("Orders", queue_id), store.reading.max_offset("Orders", queue_id)
        entry = store.reading.queue_entry("Orders", queue_id, low)
        assert entry is not None
        assert entry.physical_offset >= 32768
        assert store.reading.get_message("g", "Orders", queue_id, 0, 32, 1 << 20, None).next_offset == low
        assert store.reading.get_message("g", "Orders", queue_id, low, 32, 1 << 20, None).count > 0
        assert high in (59, 60)
    store.check()


def test_a_queue_without_messages_keeps_its_numbers() -> None:
    clock = Clock()
    store = filled(MemoryIo(), clock)
    store.cleaner.clean(oldest(store, 2))
    assert (store.reading.min_offset("Rare", 1), store.reading.max_offset("Rare", 1)) == (1, 1)
    (done,) = store.append([message("Rare", 1)])
    assert done.queue_offset == 1


def test_a_second_round_finds_nothing_to_do() -> None:
    io = MemoryIo()
    store = filled(io, Clock())
    assert store.cleaner.clean(oldest(store, 1))
    before = io.operations
    assert store.cleaner.clean(CleaningPlan()) == []
    assert io.operations == before


def test_a_plan_that_is_out_of_date_deletes_nothing() -> None:
    store = filled(MemoryIo(), Clock())
    plan = oldest(store, 2)
    store.cleaner.clean(plan)
    assert store.cleaner.clean(plan) == []
    everything = CleaningPlan(
        tuple(LogFileFacts(f.offset, f.end, 0) for f in log_of(store).mapped.files), "asked"
    )
    store.cleaner.clean(everything)
    assert len(log_of(store).mapped.files) == 1
    store.check()


def test_who_reads_a_deleted_file_reads_on(tmp_path: Path) -> None:
    """On the real disk: the map must stay until the last slice of it goes."""
    store = filled(DiskIo(), Clock(), tmp_path)
    first = store.reading.get_message("g", "Orders", 0, 0, 4, 1 << 20, None)
    entries = queues_of(store).get("Orders", 0)
    assert entries is not None
    packed = entries.read(0, 4)
    before = [bytes(piece) for piece in first.body], bytes(packed)
    store.cleaner.clean(oldest(store, 3))
    assert not (tmp_path / "commitlog" / f"{0:020d}").exists()
    assert ([bytes(piece) for piece in first.body], bytes(packed)) == before
    store.flush_disk()
    store.flush_queues()
    store.close()


def test_the_flusher_may_still_hold_a_file_that_goes(tmp_path: Path) -> None:
    store = filled(DiskIo(), Clock(), tmp_path)
    held = log_of(store).mapped.files
    store.cleaner.clean(oldest(store, 3))
    for file in held:
        file.data.sync()
    store.close()


class StubbornIo(MemoryIo):
    """Refuses to delete one file."""

    stubborn: Path | None = None

    def unlink(self, path: Path) -> None:
        if path == self.stubborn:
            raise PermissionError(1, "Operation not permitted", str(path))
        super().unlink(path)


def test_what_cannot_be_deleted_is_tried_again_and_nothing_younger_goes_before() -> None:
    io = StubbornIo()
    store = filled(io, Clock())
    io.stubborn = ROOT / "commitlog" / f"{16384:020d}"
    store.cleaner.release_log_files(oldest(store, 3))
    with pytest.raises(PermissionError):
        store.cleaner.delete_released(10)
    names = [path.name for path in io.paths() if path.parent.name == "commitlog"]
    assert names[:2] == [f"{16384:020d}", f"{32768:020d}"]
    after_kill = io.kill()
    io.stubborn = None
    store.cleaner.clean(CleaningPlan())
    store.check()
    assert store.min_physical_offset == 3 * 16384
    again = open_store(after_kill)
    assert again.min_physical_offset == 16384
    again.check()


# --- stops at any moment -------------------------------------------------------------------------------------


def kept(store: MessageStore) -> list[tuple[str, int, int, bytes]]:
    """Every message that can be read, by queue and offset."""
    found = []
    for topic in store.topics.names():
        for queue_id in store.topics.queue_ids(topic):
            for offset in range(
                store.reading.min_offset(topic, queue_id), store.reading.max_offset(topic, queue_id)
            ):
                entry = store.reading.queue_entry(topic, queue_id, offset)
                assert entry is not None
                record = store.reading.message_at(entry.physical_offset)
                assert record is not None, (topic, queue_id, offset)
                found.append((topic, queue_id, offset, record))
    return found


def reopened(io: MemoryIo, numbers: dict[tuple[str, int], int]) -> MessageStore:
    """The store after a crash: sound, with all its queues' numbers, and one that goes on."""
    store = open_store(io, Clock())
    store.check()
    assert {q: store.reading.max_offset(*q) for q in numbers} == numbers
    return store


@pytest.mark.parametrize("survivors", ["none", "random"])
@pytest.mark.parametrize("aborted_twice", [False, True])
def test_a_power_failure_at_any_moment_of_cleaning_leaves_a_sound_store(
    survivors: str, aborted_twice: bool
) -> None:
    random = Random(7)
    operation = 0
    while True:
        io = MemoryIo()
        store = filled(io, Clock())
        whole = kept(store)
        numbers = {
            (topic, q): store.reading.max_offset(topic, q)
            for topic in store.topics.names()
            for q in store.topics.queue_ids(topic)
        }
        plan = oldest(store, 3)
        io.stop_after(operation)
        try:
            store.cleaner.clean(plan)
        except PowerFailure:
            pass
        else:
            break
        after = io.crash(RandomSurvivors(random) if survivors == "random" else Survivors())
        if aborted_twice:
            after.stop_after(random.randrange(1, 40))
            with suppress(PowerFailure):
                open_store(after, Clock())
            after = after.crash(RandomSurvivors(random))
        again = reopened(after, numbers)
        left = kept(again)
        assert set(left) <= set(whole)
        assert {row for row in whole if int.from_bytes(row[3][28:36], "big") >= plan.files[-1].end} <= set(
            left
        )
        # The next round finishes what was begun.
        again.cleaner.clean(oldest(again, sum(f.offset < plan.files[-1].end for f in survey(again))))
        assert again.min_physical_offset == plan.files[-1].end
        again.check()
        operation += 1
    assert operation > 15


def test_queue_files_without_their_log_are_cleaned_by_the_next_run() -> None:
    io = MemoryIo()
    store = filled(io, Clock())
    store.close()
    for name in (0, 16384):
        io.unlink(ROOT / "commitlog" / f"{name:020d}")
    again = open_store(io)
    assert again.min_physical_offset == 32768
    first = ROOT / "consumequeue" / "Orders" / "0" / f"{0:020d}"
    assert first in io.paths()
    again.check()
    again.cleaner.clean(CleaningPlan())
    assert first not in io.paths()
    again.check()


def test_a_log_without_its_oldest_queue_files_gets_them_back_or_goes_on() -> None:
    io = MemoryIo()
    store = filled(io, Clock())
    store.close()
    io.unlink(ROOT / "consumequeue" / "Orders" / "0" / f"{0:020d}")
    again = open_store(io)
    assert again.reading.max_offset("Orders", 0) == 60
    again.cleaner.clean(oldest(again, 2))
    again.check()
    low = again.reading.min_offset("Orders", 0)
    assert again.reading.get_message("g", "Orders", 0, low, 32, 1 << 20, None).count > 0


def test_random_work_with_cleaning_in_between_never_breaks_the_store() -> None:
    random = Random(11)
    io, clock = MemoryIo(), Clock()
    store = open_store(io, clock)
    for _ in range(400):
        kind = random.random()
        if kind < 0.6:
            store.append([message("Orders", random.randrange(2), random.randbytes(900)) for _ in range(5)])
            settle(store)
        elif kind < 0.9:
            store.cleaner.clean(oldest(store, random.randrange(3)))
        else:
            io = io.crash(RandomSurvivors(random))
            store = open_store(io, clock)
        store.check()
    assert store.min_physical_offset > 0


# --- as the official cleaner ---------------------------------------------------------------------------------


def files_of(root: Path, folder: str) -> set[tuple[str, int]]:
    return {
        (str(path.relative_to(root)), path.stat().st_size)
        for path in (root / folder).rglob("*")
        if path.is_file()
    }


def named(step: dict[str, Any], folder: str) -> set[tuple[str, int]]:
    return {(name, size) for name, size in step["files"] if name.startswith(folder)}


def ranges(step: dict[str, Any]) -> dict[tuple[str, int], tuple[int, int]]:
    return {(q["topic"], q["queueId"]): (q["minOffset"], q["maxOffset"]) for q in step["queues"]}


def test_step_by_step_the_same_as_the_official_cleaner(tmp_path: Path) -> None:
    """But for minimum offsets before queue files went: the official search looks into the first file only."""
    root = unpack("expire", tmp_path)
    store = store_of("expire", root, GoldenClock())
    store.open()
    compared = 0
    for step in expect("expire")["steps"]:
        operation, _, count = step["op"].partition(":")
        if operation == "deleteOldestCommitLogFiles":
            assert store.cleaner.release_log_files(oldest(store, int(count))) == step["deleted"]
        elif operation == "deleteExpiredConsumeQueueFiles":
            for _ in store.cleaner.release_queue_files():
                pass
        elif operation == "deleteExpiredIndexFiles":
            store.cleaner.release_index_files()
        while store.cleaner.has_released:
            store.cleaner.delete_released()
        assert (store.min_physical_offset, store.end_offset) == (step["minPhyOffset"], step["maxPhyOffset"])
        for folder in ("commitlog", "consumequeue", "index"):
            assert files_of(root, folder) == named(step, folder), (step["op"], folder)
        if operation in ("deleteExpiredIndexFiles", "deleteExpiredConsumeQueueFiles", "cleanExpiredQueues"):
            found = {q: (store.reading.min_offset(*q), store.reading.max_offset(*q)) for q in ranges(step)}
            assert found == ranges(step), step["op"]
            for row in rows(step["getMessage"]):
                assert read_of(store, row) == {name: row[name] for name in READ_COLUMNS}, row
            compared += 1
    assert compared >= 6
    store.check()
    store.close()


def test_a_log_that_is_cut_back_leaves_the_queues_of_the_official_program(tmp_path: Path) -> None:
    root = unpack("truncate", tmp_path)
    store = store_of("truncate", root, GoldenClock())
    store.open()
    for step in expect("truncate")["steps"]:
        log_of(store).recover_to(store.min_physical_offset, step["toOffset"])
        queues_of(store).cut_at_physical(step["toOffset"])
        found = {q: (store.reading.min_offset(*q), store.reading.max_offset(*q)) for q in ranges(step)}
        assert found == ranges(step)
        assert store.end_offset == step["maxPhyOffset"]
        for queue in step["queues"]:
            newest = store.reading.queue_entry(queue["topic"], queue["queueId"], queue["maxOffset"] - 1)
            if newest is not None:
                assert newest.physical_offset + newest.size == queue["maxPhysicOffset"]
    store._release()
