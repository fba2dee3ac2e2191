"""What a log says of itself to be compared with another one."""

from hashlib import blake2b
from random import Random

from aerobee_store.replicas.comparing import NOT_THERE
from store.memory_io import MemoryIo
from store.workload import Clock, Workload, open_store

FILE_SIZE = 16384


def filled() -> Workload:
    work = Workload(Random(3), MemoryIo(), Clock())
    work.store.open()
    while work.store.end_offset < 2.5 * FILE_SIZE:
        work.append()
    return work


def test_digests_are_those_of_the_bytes_over_the_ends_of_files() -> None:
    work = filled()
    end = work.store.end_offset
    whole = b"".join(work.raw(at, min(FILE_SIZE, end - at)) for at in range(0, end, FILE_SIZE))
    ranges = [(0, end), (100, 100), (FILE_SIZE - 10, FILE_SIZE + 10), (5, 2 * FILE_SIZE), (end, end)]
    expected = [blake2b(whole[begin:stop], digest_size=16).digest() for begin, stop in ranges]
    assert work.store.comparison.digests(ranges) == expected
    assert work.store.comparison.digests([(0, end + 1), (-1, 5), (9, 3)]) == [NOT_THERE] * 3


def test_borders_are_where_messages_begin_and_end() -> None:
    work = filled()
    borders = {one.physical_offset for one in work.stored} | {one.end for one in work.stored}
    borders |= {0, FILE_SIZE, 2 * FILE_SIZE}
    compare = work.store.comparison
    for begin, end in (
        (0, work.store.end_offset),
        (1, 5000),
        (FILE_SIZE - 600, FILE_SIZE + 700),
        (20_000, 20_001),
    ):
        found = compare.borders(begin, end)
        inside = sorted(at for at in borders if begin <= at <= end)
        before = [] if begin in borders else [max(at for at in borders if at < begin)]
        assert found == before + inside
    assert compare.borders(work.store.end_offset, work.store.end_offset)[-1] == work.store.end_offset


def test_a_log_without_files_is_empty() -> None:
    store = open_store(MemoryIo())
    assert store.comparison.is_empty
    assert store.comparison.borders(0, 0) == [0]
    assert not filled().store.comparison.is_empty
