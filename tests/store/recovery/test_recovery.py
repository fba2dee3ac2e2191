"""Crashes at any moment: what was promised is there, what is there was stored, twice recovered is once."""

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from aerobee_store.disk.file_system import file_system_of
from aerobee_store.disk.io import DiskIo
from aerobee_store.faults.errors import CorruptStore, StorePoisoned
from aerobee_store.log.checkpoint import Checkpoint
from aerobee_store.recovery.recovery import RecoveryReport
from aerobee_store.store import MessageStore
from aerobee_store.terms.messages import PutStatus
from simulation.machine import Machine
from store.inside import log_of
from store.memory_io import MemoryIo, PowerFailure, RandomSurvivors, Survivors
from store.workload import ROOT, Clock, Workload, another_on, message, open_store

LOG = ROOT / "commitlog" / f"{0:020d}"


def verify(work: Workload, report: RecoveryReport) -> None:
    """Everything promised is there and readable; nothing is there that was not stored."""
    store = work.store
    surviving = []
    for stored in work.stored:
        found = store.reading.message_at(stored.physical_offset)
        if stored.end <= work.durable_end:
            assert found == stored.record, f"a promised message at {stored.physical_offset} is gone"
        if found is not None:
            assert found == stored.record
            surviving.append(stored)
    assert store.end_offset >= work.durable_end
    for stored in surviving:
        entry = store.reading.queue_entry(*stored.key, stored.queue_offset)
        assert entry is not None
        assert (entry.physical_offset, entry.size) == (stored.physical_offset, len(stored.record))
        for key in {stored.message.unique_key or "", *(stored.message.keys or "").split()} - {""}:
            # More than 64 messages share the common keys; a query gives the newest of those in its range.
            time = stored.store_timestamp
            found_keys = store.keys.query(stored.message.topic, key, 64, time, time).body
            assert stored.record in {bytes(r) for r in found_keys}
    store.check()
    # What was not promised and is gone is forgotten; its places are given out again.
    work.stored = surviving
    work.durable_end = store.end_offset


def run_until_crash(work: Workload, io: MemoryIo, operations: int) -> None:
    """Open the store and work until the power fails, after so many operations of the disk."""
    io.stop_after(operations)
    with suppress(PowerFailure):
        report = work.store.open()
        verify_during_open(work, report)
        work_for_ever(work)


def work_for_ever(work: Workload) -> None:
    while True:
        work.step()


def verify_during_open(work: Workload, report: RecoveryReport) -> None:
    """What can be said without reading everything, as the disk may stop at the next write."""
    assert work.store.end_offset == report.end_offset
    assert report.end_offset >= work.durable_end


@pytest.mark.parametrize("seed", range(60))
def test_after_a_crash_everything_promised_is_there(seed: int) -> None:
    random = Random(seed)
    io = MemoryIo()
    work = Workload(random, io, Clock())
    for _ in range(3):
        run_until_crash(work, io, random.randrange(1, 250))
        io = io.crash(RandomSurvivors(random))
        # A crash during recovery, at most twice, and then one that comes through.
        for _ in range(random.randrange(3)):
            stopped = work.restart(io)
            io.stop_after(random.randrange(1, 30))
            with suppress(PowerFailure):
                stopped.open()
            io = io.crash(RandomSurvivors(random))
        report = work.restart(io).open()
        verify(work, report)
        io = io.kill()
        work.restart(io)


@pytest.mark.parametrize("seed", range(20))
def test_after_a_kill_everything_written_is_there(seed: int) -> None:
    random = Random(1000 + seed)
    io = MemoryIo()
    work = Workload(random, io, Clock())
    work.store.open()
    for _ in range(random.randrange(5, 80)):
        work.step()
    end = work.store.end_offset
    report = work.restart(io.kill()).open()
    assert report.aborted
    assert (report.end_offset, report.damage) == (end, [])
    verify(work, report)


@pytest.mark.parametrize("seed", range(20))
def test_recovering_twice_is_recovering_once(seed: int) -> None:
    random = Random(2000 + seed)
    io = MemoryIo()
    work = Workload(random, io, Clock())
    run_until_crash(work, io, random.randrange(20, 250))
    io = io.crash(RandomSurvivors(random))
    once = io.kill()
    work.restart(once).open()
    twice = once.crash()
    work.restart(twice).open()
    for path in once.paths():
        if path.name not in ("checkpoint", "lock", "abort"):
            assert twice.read_bytes(path) == once.read_bytes(path), path


class OnlyTheLog(Survivors):
    """Everything in the log survives, nothing else that was not synced."""

    def page(self, path: Path, page: int, before: bytes, after: bytes) -> bytes:
        return after if path.parent.name == "commitlog" else before


@pytest.mark.parametrize("seed", range(20))
def test_queues_and_index_are_built_from_the_log(seed: int) -> None:
    random = Random(3000 + seed)
    io = MemoryIo()
    work = Workload(random, io, Clock())
    work.store.open()
    for _ in range(60):
        work.step()
    end = work.store.end_offset
    report = work.restart(io.crash(OnlyTheLog())).open()
    assert report.end_offset == end
    verify(work, report)


# --- what is cut stays cut ------------------------------------------------------------------------------


def store_with(count: int, io: MemoryIo) -> MessageStore:
    store = open_store(io)
    for number in range(count):
        (answer,) = store.append([message(body=b"%04d" % number)])
        assert answer.status is PutStatus.PUT_OK
        store.flush_disk()
        store.confirm(store.flushed_offset)
    return store


def test_a_torn_tail_is_cut_and_zeroed() -> None:
    """Left bytes would be taken for records again once new ones end where they begin."""
    io = MemoryIo()
    store = store_with(3, io)
    (last,) = store.append([message(body=b"x" * 200)])
    killed = io.kill()
    killed.flip(LOG, last.physical_offset + 120)
    report = another_on(killed, store).open()
    assert report.end_offset == last.physical_offset
    assert report.damage == []
    raw = killed.crash().read_bytes(LOG)
    assert raw is not None
    assert not any(raw[last.physical_offset :])


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("left", [b"", b"4711"])
def test_what_another_program_wrote_before_it_was_killed_stays(left: bytes, *, closed: bool) -> None:
    """An official broker that was killed in its first second had not written its times into the checkpoint: the next
    start held its records, which carry no checksum over everything, for torn ones of ours, and cut 90 acknowledged
    messages."""
    io = MemoryIo()
    ours = store_with(3, io)
    if closed:
        ours.close()
    else:
        io = io.kill()
    checkpoint = io.read_bytes(ROOT / "checkpoint")
    assert checkpoint is not None
    theirs = open_store(io, record_checksum=False)
    for number in range(2):
        theirs.append([message(body=b"theirs %d" % number)])
    killed = io.kill()
    killed.replace_bytes(ROOT / "checkpoint", checkpoint)
    killed.replace_bytes(ROOT / "abort", left)
    again = another_on(killed, ours)
    assert again.open().torn_bytes == 0
    (answer,) = again.append([message(body=b"ours")])
    assert answer.queue_offset == 5
    again.flush_disk()
    # And the next crash is one of ours again.
    killed = killed.crash()
    abort = killed.read_bytes(ROOT / "abort")
    assert abort is not None
    assert abort.endswith(b"aerobee\n")
    assert another_on(killed, ours).open().walked_records == 1


def test_a_record_of_another_place_is_not_taken_for_one() -> None:
    """A whole old record behind the end, from an earlier life of the file."""
    io = MemoryIo()
    store = store_with(3, io)
    end = store.end_offset
    old = store.reading.message_at(0)
    assert old is not None
    log_of(store).mapped.find(end).data.write(end, old)  # type: ignore[union-attr]
    report = another_on(io.kill(), store).open()
    assert report.end_offset == end


# --- damage in the middle -------------------------------------------------------------------------------


def test_damage_in_the_middle_costs_only_the_damaged_record() -> None:
    """Cutting at the first bad record would drop every acknowledged message behind it."""
    io = MemoryIo()
    store = store_with(40, io)
    entry = store.reading.queue_entry("Orders", 0, 20)
    assert entry is not None
    killed = io.kill()
    # The watermarks would say that there is nothing to look at.
    killed.unlink(ROOT / "checkpoint")
    killed.flip(LOG, entry.physical_offset + 95)
    again = another_on(killed, store)
    report = again.open()
    assert [(d.begin, d.end) for d in report.damage] == [
        (entry.physical_offset, entry.physical_offset + entry.size)
    ]
    offset, bodies = 0, []
    while offset < again.reading.max_offset("Orders", 0):
        found = again.reading.get_message("g", "Orders", 0, offset, 32, 1 << 20, None)
        bodies += [bytes(r) for r in found.body]
        offset = found.next_offset
    read = b"".join(bodies)
    assert [b"%04d" % n in read for n in range(40)] == [n != 20 for n in range(40)]


def test_damage_stays_named_and_hidden_after_the_next_start() -> None:
    io = MemoryIo()
    store = store_with(10, io)
    entry = store.reading.queue_entry("Orders", 0, 5)
    assert entry is not None
    killed = io.kill()
    killed.unlink(ROOT / "checkpoint")
    killed.flip(LOG, entry.physical_offset + 95)
    first = another_on(killed, store)
    first.open()
    first.close()
    second = another_on(killed, store)
    second.open()
    found = second.reading.get_message("g", "Orders", 0, 5, 1, 1 << 20, None)
    assert (found.count, found.next_offset) == (1, 7)
    assert second.reading.message_at(entry.physical_offset) is None


def test_numbers_of_damaged_records_stay_taken_when_queues_are_lost() -> None:
    io = MemoryIo()
    store = store_with(10, io)
    entry = store.reading.queue_entry("Orders", 0, 5)
    assert entry is not None
    killed = io.kill()
    killed.unlink(ROOT / "checkpoint")
    killed.unlink(ROOT / "consumequeue" / "Orders" / "0" / f"{0:020d}")
    killed.flip(LOG, entry.physical_offset + 95)
    again = another_on(killed, store)
    report = again.open()
    assert report.hole_entries == 1
    assert again.reading.max_offset("Orders", 0) == 10
    assert b"0006" in bytes(again.reading.get_message("g", "Orders", 0, 6, 1, 1 << 20, None).body[0])
    missed = again.reading.get_message("g", "Orders", 0, 5, 1, 1 << 20, None)
    assert b"0006" in bytes(missed.body[0])


# --- promised bytes that are gone -----------------------------------------------------------------------


def test_a_log_that_ends_before_its_watermark_is_refused() -> None:
    io = MemoryIo()
    store = store_with(200, io)
    store.flush_queues()
    store.write_checkpoint()
    files = [path for path in io.paths() if path.parent.name == "commitlog"]
    assert len(files) > 1
    lost = io.kill()
    lost.unlink(files[-1])
    before = {path: lost.read_bytes(path) for path in lost.paths() if "consumequeue" in path.parts}
    with pytest.raises(CorruptStore, match="accept_loss") as refused:
        another_on(lost, store).open()
    assert "was on disk up to" in refused.value.reason
    assert {path: lost.read_bytes(path) for path in before} == before


def test_such_a_log_opens_when_the_loss_is_accepted() -> None:
    io = MemoryIo()
    store = store_with(200, io)
    store.flush_queues()
    store.write_checkpoint()
    lost = io.kill()
    lost.unlink([path for path in io.paths() if path.parent.name == "commitlog"][-1])
    again = open_store(lost, accept_loss=True)
    assert 0 < again.end_offset < store.end_offset
    again.check()


def test_a_restart_walks_only_what_lies_behind_the_watermark() -> None:
    io = MemoryIo()
    store = store_with(100, io)
    store.keys.build(1000)
    store.flush_queues()
    store.write_checkpoint()
    for number in range(5):
        store.append([message(body=b"tail %d" % number)])
    report = another_on(io.kill(), store).open()
    assert report.walked_records == 5


def test_a_lost_queue_is_rebuilt_although_its_records_lie_below_the_watermark() -> None:
    """One more message of the queue behind the watermark shows that those before it are missing."""
    io = MemoryIo()
    store = store_with(100, io)
    store.flush_queues()
    store.write_checkpoint()
    store.append([message(body=b"one more")])
    killed = io.kill()
    for path in killed.paths():
        if "consumequeue" in path.parts:
            killed.unlink(path)
    again = another_on(killed, store)
    report = again.open()
    assert report.start_offset == 0
    assert (again.reading.min_offset("Orders", 0), again.reading.max_offset("Orders", 0)) == (0, 101)
    again.check()


# --- failed syncs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(1, 60))
def test_a_failed_sync_is_final_and_loses_nothing_promised(number: int) -> None:
    random = Random(number)
    io = MemoryIo()
    work = Workload(random, io, Clock())
    work.store.open()
    io.fail_sync(number)
    # A failure while queue entries are dispatched has no caller: the next call is refused for its reason.
    with pytest.raises((OSError, StorePoisoned), match="Input/output error"):
        work_for_ever(work)
    assert [one.errno for one in work.failures] == [errno.EIO]
    assert work.store.not_writeable_reason is not None
    syncs = io.syncs
    with pytest.raises(StorePoisoned):
        work.store.append([message()])
    with pytest.raises(StorePoisoned):
        work.store.flush_disk()
    work.store.close()
    assert io.syncs == syncs
    assert io.read_bytes(ROOT / "abort") is not None
    after = io.crash()
    report = work.restart(after).open()
    assert report.aborted
    verify(work, report)


# --- very many queues -----------------------------------------------------------------------------------

TOPICS, QUEUES = 75, 8


def many_queues(root: Path, *, killed: bool) -> Path:
    """A store with 600 queues of a few messages each, closed in order, or as it is found after a kill."""
    store = open_store(DiskIo(), root=root / "store", commit_log_file_size=1 << 20)
    for _ in range(3):
        for topic in range(TOPICS):
            store.append([message(f"T{topic}", queue) for queue in range(QUEUES)])
    store.flush_disk()
    store.confirm(store.flushed_offset)
    if killed:
        shutil.copytree(root / "store", root / "copy")
    store.close()
    return root / ("copy" if killed else "store")


@pytest.mark.parametrize("killed", [False, True], ids=["closed in order", "killed"])
def test_a_start_makes_few_calls_for_each_of_very_many_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """With more queues than may be open, each was opened five times and read 37 times, and after a kill each folder was
    synced by itself: 80,000 queues took 107 s."""
    root = many_queues(tmp_path, killed=killed)
    counts = Counter[str]()

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **named: Any) -> Any:
            counts[name] += 1
            return call(*arguments, **named)

        return counting

    with monkeypatch.context() as patch:
        for name in ("open", "pread", "scandir", "lseek", "fstat", "stat", "fsync", "fdatasync"):
            patch.setattr(os, name, counted(name, getattr(os, name)))
        # Few files may be open: each queue's is closed before the next pass over all queues.
        store = open_store(DiskIo(), root=root, commit_log_file_size=1 << 20, descriptors_max=64, maps_max=64)
    queues = TOPICS * QUEUES
    others = 60  # log, index, checkpoint and so on, whatever the number of queues
    assert counts["open"] <= queues + others
    assert counts["pread"] <= 2 * queues + others
    assert counts["scandir"] <= queues + TOPICS + others
    assert counts["fstat"] <= queues + others
    assert counts["lseek"] <= 3 * queues + others
    assert counts["stat"] <= killed * (queues + TOPICS) + others
    if file_system_of(root.stat().st_dev, root) is not None:
        assert counts["fsync"] + counts["fdatasync"] <= others
    assert store.statistics().open_queue_files < 64
    assert [store.reading.max_offset("T7", queue) for queue in range(QUEUES)] == [3] * QUEUES
    store.check()
    store.close()


@pytest.mark.parametrize("seed", range(6))
def test_what_a_failed_sync_has_left_in_memory_alone_is_written_again(seed: int) -> None:
    """Found by a simulation: the start after a failed sync trusted what it saw, and synced it; but the kernel held the
    pages for clean, and the next power cut took them away, with acknowledged messages behind them."""
    machine = Machine(seed)
    store = machine.start()
    sent = [message("Orders", 0, b"%d " % number * 250) for number in range(18)]
    places = [answer.physical_offset for answer in store.append(sent[:4])]
    store.confirm(store.flush_disk())
    store.flush_queues()
    store.write_checkpoint()
    places += [answer.physical_offset for answer in store.append(sent[4:8])]
    store.confirm(store.end_offset)
    machine.disk.syncs_left = 0
    with pytest.raises(OSError, match="Input/output"):
        store.flush_queues()
    machine.disk.syncs_left = None
    store = machine.kill_and_start()
    machine.disk.syncs_left = 0
    places += [answer.physical_offset for answer in store.append(sent[8:17])]
    with pytest.raises(OSError, match="Input/output"):
        store.flush_disk()
    machine.disk.syncs_left = None
    store = machine.kill_and_start()
    assert store.reading.max_offset("Orders", 0) == 17
    places += [answer.physical_offset for answer in store.append(sent[17:])]
    store.confirm(store.flush_disk())
    store.flush_queues()
    store.write_checkpoint()
    machine.disk.power_failed()
    store = machine.kill_and_start()
    for number, place in enumerate(places):
        found = store.reading.message_at(place)
        assert found is not None, f"message {number} of {len(places)} is gone"
        assert sent[number].body in bytes(found)
        entry = store.reading.queue_entry("Orders", 0, number)
        assert entry is not None
        assert entry.physical_offset == place
    store.check()


@pytest.mark.parametrize("last", [-1, 0])
def test_keys_are_not_given_up_for_an_untrue_word_about_the_index(last: int) -> None:
    """A checkpoint could say so that was written while the first key was put into a file of the index."""
    disk = MemoryIo()
    store = open_store(disk, index_entries=8)
    for number in range(9):
        store.append([message(unique_key=f"U{number}")])
    store.confirm(store.flush_disk())
    store.keys.build(store.keys.backlog)
    store.flush_queues()
    store.write_checkpoint()
    checkpoint = Checkpoint(ROOT / "checkpoint", disk)
    checkpoint.load()
    assert checkpoint.mark is not None
    assert checkpoint.mark.index_last > 0
    checkpoint.write(checkpoint.stamps, checkpoint.mark._replace(index_last=last))
    again = open_store(disk.kill(), index_entries=8)
    for number in range(9):
        assert len(again.keys.query("Orders", f"U{number}", 1, 0, 1 << 62).body) == 1, number
    again.check()
