"""Walking through the log: both ways find the same records, damage and end."""

from random import Random

import pytest

from aerobee_store.records.record_scan import ScannedRecord
from aerobee_store.walking.log_reader import Damage, DamageList, FastSteps, LogReader, Proof
from aerobee_store.walking.log_sources import CallSource, MapSource
from store.inside import log_of
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
    io: MemoryIo, work: Workload, *, sealed_from: int | None, proven: bool, piece: int | None = None
) -> list[tuple[list[ScannedRecord], list[Damage], int]]:
    found = []
    for fast in (False, True):
        log = log_of(work.restart(io))
        log.load()
        log.checksum_from = sealed_from
        report = DamageList()
        source = CallSource(log, piece) if piece else MapSource(log)
        reader = LogReader(source, report, Proof(sealed_from=sealed_from, proven=proven))
        records: list[ScannedRecord] = []
        start = log.mapped.min_offset
        for step in reader.stretches(start) if fast else reader.walk(start):
            if isinstance(step, ScannedRecord):
                records.append(step)
            else:
                records += [step.record(index) for index in range(step.count)]
        found.append((records, report.found, reader.end))
    return found


def places(damage: list[Damage]) -> list[tuple[int, int, str]]:
    """Without the reasons, which name positions in what was read."""
    return [(one.begin, one.end, one.path) for one in damage]


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
    for piece in (700, 5000):
        for by_calls in both_ways(io, work, sealed_from=0 if sealed else None, proven=False, piece=piece):
            assert (by_calls[0], by_calls[2]) == (careful[0], careful[2])
            assert places(by_calls[1]) == places(careful[1])
    careful, fast = both_ways(io, work, sealed_from=None, proven=True)
    assert fast == careful


@pytest.mark.parametrize("seed", range(10))
def test_step_by_step_finds_what_a_walk_finds_and_damage_up_to_the_known_end(seed: int) -> None:
    random = Random(seed)
    io, work = filled(random)
    last = work.stored[-1]
    files = [path for path in io.paths() if path.parent.name == LOG]
    io.flip(files[-1], (last.end - 1) % 16384, seed % 8)
    if seed % 2:
        io.flip(files[0], random.randrange(16384), 0)
    (records, damage, end), _ = both_ways(io, work, sealed_from=0, proven=False)
    assert end < last.end
    log = log_of(work.restart(io))
    log.load()
    report = DamageList()
    reader = LogReader(CallSource(log, 4096), report, Proof(sealed_from=0))
    at, found = 0, []
    while at < last.end:
        one, at = reader.step(at, last.end)
        if isinstance(one, ScannedRecord):
            found.append(one)
        elif one is not None:
            found += [one.record(index) for index in range(one.count)]
    assert at == last.end
    assert found == records
    assert places(report.found[:-1]) == places(damage)
    assert (report.found[-1].begin, report.found[-1].end) == (end, last.end)


def test_nothing_is_looked_at_from_the_stop_on() -> None:
    io, work = filled(Random(8))
    for last in (0, 5, len(work.stored) // 2, len(work.stored) - 1):
        log = log_of(work.restart(io))
        log.load()
        reader = LogReader(MapSource(log), DamageList())
        found = list(reader.stretches(0, work.stored[last].end))
        assert sum(1 if isinstance(one, ScannedRecord) else one.count for one in found) == last + 1
        assert reader.end == work.stored[last].end


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
