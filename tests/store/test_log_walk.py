"""Walking through the log: both ways find the same records, damage and end."""

from random import Random

import pytest

from aerobee_store.log_walk import Damage, FastSteps, LogWalker
from aerobee_store.record_scan import ScannedRecord
from store.memory_io import MemoryIo
from store.workload import Clock, Workload

LOG = "commitlog"


def filled(random: Random, **changes: object) -> tuple[MemoryIo, Workload]:
    """A closed store with a few log files of random messages."""
    io = MemoryIo()
    work = Workload(random, io, Clock(), **changes)
    work.store.open()
    while work.store.end_offset < 3 * 16384:
        work.append()
    work.store.close()
    return io, work


def both_ways(
    io: MemoryIo, work: Workload, *, sealed_from: int | None, proven: bool
) -> list[tuple[list[ScannedRecord], list[Damage], int]]:
    found = []
    for fast in (False, True):
        log = work.restart(io)._log
        log.load()
        log.checksum_from = sealed_from
        damage: list[Damage] = []
        walker = LogWalker(log, damage, proven=proven)
        records: list[ScannedRecord] = []
        for step in walker.stretches(log.mapped.min_offset) if fast else walker.walk(log.mapped.min_offset):
            if isinstance(step, ScannedRecord):
                records.append(step)
            else:
                records += [step.record(index) for index in range(step.count)]
        found.append((records, damage, walker.end))
    return found


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("sealed", [True, False])
def test_both_ways_agree_on_sound_and_damaged_logs(seed: int, sealed: bool) -> None:
    random = Random(seed)
    io, work = filled(random)
    files = [path for path in io.paths() if path.parent.name == LOG]
    for _ in range(seed % 5):
        io.flip(random.choice(files), random.randrange(16384), random.randrange(8))
    if seed % 7 == 6:
        io.unlink(random.choice(files[:-1]))
    careful, fast = both_ways(io, work, sealed_from=0 if sealed else None, proven=False)
    assert fast == careful
    if seed % 5 == 0 and seed % 7 != 6:
        assert [one.physical_offset for one in fast[0]] == [one.physical_offset for one in work.stored]
        assert fast[1:] == ([], work.stored[-1].end)
    careful, fast = both_ways(io, work, sealed_from=None, proven=True)
    assert fast == careful


def test_nothing_is_looked_at_from_the_stop_on() -> None:
    io, work = filled(Random(8))
    for last in (0, 5, len(work.stored) // 2, len(work.stored) - 1):
        log = work.restart(io)._log
        log.load()
        walker = LogWalker(log, [])
        found = list(walker.stretches(0, work.stored[last].end))
        assert sum(1 if isinstance(one, ScannedRecord) else one.count for one in found) == last + 1
        assert walker.end == work.stored[last].end


def test_the_fast_way_rests_longer_each_time_it_is_of_no_use() -> None:
    steps = FastSteps()
    rests = []
    for _ in range(12):
        assert steps.try_now()
        steps.tried(0)
        rest = 0
        while not steps.try_now():
            rest += 1
        rests.append(rest)
    assert rests == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024]
    steps.tried(1000)
    assert steps.try_now()
