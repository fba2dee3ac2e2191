"""Recovery that believes nothing but the log, and can be stopped anywhere."""

from random import Random

import pytest

from aerobee_store.faults.errors import CorruptStore
from aerobee_store.recovery import index_repair
from aerobee_store.recovery.recovery import REBUILD_MARKER, STEPS
from store.memory_io import MemoryIo, PowerFailure, RandomSurvivors
from store.workload import ROOT, Clock, Workload


def spoiled(seed: int) -> tuple[MemoryIo, Workload]:
    """A store that was closed in order, with rot in an old queue entry and an old index entry."""
    io = MemoryIo()
    work = Workload(Random(seed), io, Clock(), index_entries=2000)
    work.store.open()
    while work.store.end_offset < 3 * 16384:
        work.append()
    work.store.close()
    topic, queue_id = work.stored[0].key
    io.flip(ROOT / "consumequeue" / topic / str(queue_id) / f"{0:020d}", 25, 3)
    index = next(path for path in io.paths() if path.parent.name == "index")
    io.flip(index, 40 + 50 * 4 + 5 * 20, 2)
    return io, work


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small log is saved in the middle of the index too."""
    monkeypatch.setattr(index_repair, "_SAVE_STEP", 4096)
    monkeypatch.setattr(index_repair, "_INDEX_BATCH", 8)


def found_by_key(work: Workload) -> int:
    """How many messages the index leads to; each must be the right one."""
    count = 0
    for one in work.stored:
        if one.message.unique_key:
            topic, key = one.message.topic, one.message.unique_key
            found = work.store.keys.query(topic, key, 64, 0, 1 << 62).body
            assert one.record in [bytes(record) for record in found]
            count += 1
    return count


def test_rot_where_no_start_looks_is_mended() -> None:
    io, work = spoiled(1)
    work.restart(io).open()
    with pytest.raises(CorruptStore, match="entry"):
        work.store.check()
    work.store.close()
    work.changes["rebuild"] = True
    logged: dict[str, int] = {}
    store = work.restart(io, lambda step, size: logged.update({step: logged.get(step, 0) + size}))
    report = store.open()
    store.check()
    assert found_by_key(work) > 50
    assert report.walked_records == len(work.stored)
    assert report.indexed_keys >= len(work.stored) // 2
    assert set(logged) == set(STEPS)
    assert {step: round(size / store.end_offset, 1) for step, size in logged.items()} == dict.fromkeys(
        STEPS, 1.0
    )
    assert io.read_bytes(ROOT / REBUILD_MARKER) is None
    store.close()


def interrupted(io: MemoryIo, work: Workload, operations: int) -> bool:
    """Rebuild with so many operations; whether it was cut short."""
    work.changes["rebuild"] = True
    io.stop_after(operations)
    try:
        work.restart(io).open()
    except PowerFailure:
        return True
    return False


@pytest.mark.parametrize("go_on_with", ["repair", "start"])
@pytest.mark.parametrize("seed", range(3))
def test_a_rebuild_that_is_stopped_anywhere_is_gone_on_with(seed: int, go_on_with: str) -> None:
    random = Random(seed)
    operations = 1
    while True:
        io, work = spoiled(seed)
        if not interrupted(io, work, operations):
            break
        io = io.crash(RandomSurvivors(random)) if random.random() < 0.7 else io.kill()
        if random.random() < 0.5 and interrupted(io, work, random.randrange(1, 30)):
            io = io.crash(RandomSurvivors(random))
        begun = io.read_bytes(ROOT / REBUILD_MARKER) is not None
        work.changes["rebuild"] = go_on_with == "repair"
        store = work.restart(io)
        store.open()
        if begun or go_on_with == "repair":
            store.check()
            found_by_key(work)
        assert io.read_bytes(ROOT / REBUILD_MARKER) is None
        store.close()
        operations += random.randrange(1, 9)
    assert operations > 60


def test_what_was_done_before_an_interruption_is_not_done_again() -> None:
    starts = []
    for operations in range(20, 400, 7):
        io, work = spoiled(4)
        if not interrupted(io, work, operations):
            break
        work.changes["rebuild"] = False
        starts.append(work.restart(io.kill()).open().start_offset)
        assert found_by_key(work) > 50
        work.store.check()
    assert starts[0] == 0
    assert len(set(starts)) > 3
    assert starts == sorted(starts)
