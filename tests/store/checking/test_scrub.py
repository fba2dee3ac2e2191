"""The scrub: finds rot in a running store, keeps readers away from it, mends queue entries, and accuses nobody."""

import errno
from pathlib import Path
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_store.checking import scrub
from aerobee_store.checking.scrub import SLICE_SIZE
from aerobee_store.reading.get_message import GetStatus
from aerobee_store.store import MessageStore
from store.memory_io import MemoryFile, MemoryIo
from store.workload import ROOT, Clock, Stored, Workload, message

LOG_FILE = ROOT / "commitlog" / f"{0:020d}"


@pytest.fixture(autouse=True, params=["by columns", "one by one"])
def _compared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries of a queue are compared in one of two ways, by how many of them lie in a slice."""
    monkeypatch.setattr(scrub, "_FEW", 0 if request.param == "by columns" else 1 << 30)


def running(seed: int, **changes: Any) -> tuple[MemoryIo, Workload]:
    """A store with some log files that was opened again, so that its reads are careful; all of it settled."""
    io = MemoryIo()
    work = Workload(Random(seed), io, Clock(), **changes)
    work.store.open()
    while work.store.end_offset < 4 * 16384:
        work.append()
    work.store.close()
    work.restart(io).open()
    return io, work


def round_of(store: MessageStore) -> tuple[list[dict[str, Any]], int]:
    """Scrub until a round is done: what was said of it, and how many bytes were read."""
    size = 0
    with capture_logs() as said:
        for _ in range(10_000):
            step = store.scrubbing.step()
            size += step.size
            if step.is_round_done:
                return [dict(one) for one in said], size
    raise AssertionError("the round does not end")


def readable(store: MessageStore, one: Stored) -> bool:
    found = store.reading.get_message("g", *one.key, one.queue_offset, 1, 1 << 20, None)
    if found.status is not GetStatus.FOUND or found.next_offset != one.queue_offset + 1:
        return False
    assert b"".join(bytes(piece) for piece in found.body) == one.record
    return True


@pytest.mark.parametrize("seed", range(5))
def test_a_sound_store_is_read_whole_and_left_alone(seed: int) -> None:
    io, work = running(seed)
    before = io.operations
    said, size = round_of(work.store)
    assert [one["event"] for one in said] == ["store.scrub_finished"]
    assert (said[0]["damage"], said[0]["mended"]) == (0, 0)
    assert size == work.store.end_offset
    assert io.operations == before
    assert work.store.statistics().scrubbed_bytes == size
    assert round_of(work.store)[1] == size
    work.store.close()


@pytest.mark.parametrize("seed", range(20))
def test_rot_is_found_put_aside_and_not_served(seed: int) -> None:
    io, work = running(seed)
    random = Random(seed)
    bad = random.choice(work.stored)
    file = ROOT / "commitlog" / f"{bad.physical_offset // 16384 * 16384:020d}"
    at = bad.physical_offset % 16384 + random.randrange(len(bad.record))
    io.flip(file, at, random.randrange(8))
    said, _ = round_of(work.store)
    (found,) = [one for one in said if one["event"] == "store.damage_found"]
    assert (found["physical_offset"], found["path"]) == (bad.physical_offset, str(file))
    assert bad.end <= found["end_offset"] <= bad.end + 16384
    assert not readable(work.store, bad)
    assert work.store.reading.message_at(bad.physical_offset) is None
    assert all(readable(work.store, one) for one in work.stored if one is not bad)
    kept = io.read_bytes(ROOT / "quarantine" / f"{bad.physical_offset:020d}-{found['end_offset']:020d}")
    assert kept is not None
    assert kept[: len(bad.record)] != bad.record
    assert work.store.statistics().damaged_stretches == 1
    again, _ = round_of(work.store)
    assert [one["event"] for one in again] == ["store.scrub_finished"]
    work.store.check()
    work.store.close()


def test_what_this_run_wrote_is_not_served_either_once_it_is_rotten() -> None:
    io, work = running(3)
    work.append()
    work.flush()
    bad = work.stored[-1]
    work.store.flush_queues()
    assert readable(work.store, bad)
    io.flip(
        ROOT / "commitlog" / f"{bad.physical_offset // 16384 * 16384:020d}", bad.physical_offset % 16384 + 95
    )
    round_of(work.store)
    assert not readable(work.store, bad)


def entry_place(io: MemoryIo, one: Stored) -> tuple[Path, int]:
    position = one.queue_offset * 20
    folder = ROOT / "consumequeue" / one.key[0] / str(one.key[1])
    return folder / f"{position // 320 * 320:020d}", position % 320


@pytest.mark.parametrize("byte", [0, 7, 9, 11, 12, 19])
def test_a_rotten_queue_entry_is_written_again(byte: int) -> None:
    io, work = running(7)
    for one in (work.stored[0], work.stored[len(work.stored) // 2], work.stored[-1]):
        path, at = entry_place(io, one)
        before = io.read_bytes(path)
        io.flip(path, at + byte, 1)
        said, _ = round_of(work.store)
        mended = [event for event in said if event["event"] == "store.entry_mended"]
        assert [(e["topic"], e["queue_id"], e["logical_offset"]) for e in mended] == [
            (*one.key, one.queue_offset)
        ]
        assert io.read_bytes(path) == before
    work.store.check()


def test_a_record_larger_than_a_slice_is_read_in_one_piece() -> None:
    io = MemoryIo()
    work = Workload(Random(1), io, Clock(), commit_log_file_size=1 << 20)
    work.store.open()
    work.store.append([message(body=bytes(SLICE_SIZE + 5)), message(body=b"small")])
    work.store.flush_disk()
    work.store.confirm(work.store.flushed_offset)
    work.store.flush_queues()
    said, size = round_of(work.store)
    assert [one["event"] for one in said] == ["store.scrub_finished"]
    assert size == work.store.end_offset
    io.flip(LOG_FILE, SLICE_SIZE)
    said, _ = round_of(work.store)
    (found,) = [one for one in said if one["event"] == "store.damage_found"]
    assert (found["physical_offset"], found["reason"]) == (0, "body CRC does not match")


def test_a_bad_sector_is_damage_and_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    _, work = running(2)
    whole = MemoryFile.read

    def read(file: MemoryFile, position: int, length: int) -> bytes:
        if file.path == LOG_FILE:
            raise OSError(errno.EIO, "Input/output error")
        return whole(file, position, length)

    monkeypatch.setattr(MemoryFile, "read", read)
    said, _ = round_of(work.store)
    (found,) = [one for one in said if one["event"] == "store.damage_found"]
    assert (found["physical_offset"], found["end_offset"]) == (0, 16384)
    assert found["reason"] == "it cannot be read: Input/output error"
    assert not work.store.has_failed


def test_only_what_is_settled_is_read_and_deleted_topics_are_passed_over() -> None:
    _, work = running(6)
    end = work.store.end_offset
    work.store.topics.delete(work.stored[0].key[0])
    work.store.append([message(body=b"not flushed")])
    said, size = round_of(work.store)
    assert [one["event"] for one in said] == ["store.scrub_finished"]
    assert size == end
