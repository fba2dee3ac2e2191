"""What has to be brought for records: those that lie side by side together, and nothing that entries make up."""

from mmap import PAGESIZE
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from aerobee_store.disk.io import DataFile
from aerobee_store.disk.page_cache import Stretch
from aerobee_store.index.index_file import ENTRY_SIZE, HEADER_SIZE, IndexFile, index_file_size
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.reading.residency import STRETCHES_MAX, Places, Residency
from store.memory_io import MemoryIo
from store.slow_disk import SlowIo

FILE = MIB = 1 << 20
GAP = 32 << 10
FIRST, SECOND = (Path(f"/log/{offset:020}") for offset in (0, FILE))


@pytest.fixture
def log() -> CommitLog:
    """Two files; the second is full but for its last 1,000 bytes."""
    log = CommitLog(Path("/log"), FILE, MemoryIo())
    for _ in range(2):
        log.roll()
    log.end_offset = 2 * FILE - 1000
    return log


def places(*found: tuple[int, int]) -> Places:
    return Places(*(np.array(column, np.int64) for column in zip(*found, strict=True)))


def test_neighbours_are_brought_together(log: CommitLog) -> None:
    asked = places((0, 100), (100, 50), (150 + GAP, 10), (161 + 2 * GAP, 5), (FILE - 20, 20), (FILE, 30))
    found = Residency(log, count_max=10).missing(asked, 10, FILE)
    assert found.needed == [
        Stretch(FIRST, 0, 160 + GAP),
        Stretch(FIRST, 161 + 2 * GAP, 5),
        Stretch(FIRST, FILE - 20, 20),
        Stretch(SECOND, 0, 30),
    ]
    assert found.ahead == []


@pytest.mark.parametrize(
    ("count", "size_max", "now"),
    [(3, FILE, 3), (1, 1, 1), (0, FILE, 1), (9, 250, 3), (9, 300, 3), (9, FILE, 9)],
)
def test_what_one_read_gives_is_brought_now_and_the_rest_ahead(
    log: CommitLog, count: int, size_max: int, now: int
) -> None:
    asked = places(*((at * 100, 100) for at in range(20)))
    found = Residency(log, count_max=10, ahead_size=1500).missing(asked, count, size_max)
    assert found.needed == [Stretch(FIRST, 0, now * 100)]
    assert found.ahead == [Stretch(FIRST, now * 100, (15 - now) * 100)]
    found = Residency(log, count_max=10, ahead_size=0).missing(asked, count, size_max)
    assert (found.needed, found.ahead) == ([Stretch(FIRST, 0, now * 100)], [])


def test_entries_that_lead_to_no_record_bring_little(log: CommitLog) -> None:
    wrong = [(-5, 10), (2 * FILE, 10), (1 << 62, 1 << 30), (300, 0), (FILE - 10, 1 << 30)]
    found = Residency(log, count_max=10).missing(places((0, 100), *wrong, (200, 10)), 10, 1 << 40)
    assert found.needed == [
        Stretch(FIRST, 0, 100),
        Stretch(FIRST, 300, 1),
        Stretch(FIRST, FILE - 10, 10),
        Stretch(FIRST, 200, 10),
    ]
    assert Residency(log, count_max=10).missing(places((-5, 10)), 1, 1).needed == []


def test_no_more_stretches_than_that_are_asked_for(log: CommitLog) -> None:
    asked = places(*((at * 2000 % FILE, 10) for at in range(0, 20_000, 97)))
    found = Residency(log, count_max=10).missing(asked, 500, FILE)
    assert STRETCHES_MAX <= len(found.needed) <= STRETCHES_MAX + 1


def test_half_of_what_is_read_ahead_is_always_on_its_way(tmp_path: Path) -> None:
    """The next part was asked for when its first block was needed, so each of them was waited for."""
    block, size = 1 << 18, 1 << 24
    disk = SlowIo()
    log = CommitLog(tmp_path, size, disk)
    log.roll()
    log.end_offset = size - 100
    (file,) = log.mapped.files
    asked: list[Stretch] = []
    residency = Residency(log, count_max=10, ahead_size=4 * block)
    residency.begin(asked.extend)
    disk.go_cold()
    came = 0
    for number in range(size // block - 1):
        path, begin = file.data.path, number * block
        if number < 2:  # one that nobody has read ahead yet is waited for
            disk.written(path, begin, block)
            came = begin + block
        assert residency.holds(file, begin, begin + block)
        assert asked or number == 0
        for stretch in asked[-1:]:
            assert stretch.position <= came or stretch.position + stretch.length == came
            disk.written(*stretch)
            came = stretch.position + stretch.length
            assert came >= min(begin + 3 * block, log.end_offset)
    assert len(asked) <= size // (4 * block) + 1  # and no part twice
    assert sum(stretch.length for stretch in asked) <= size


def test_what_is_known_of_the_index_are_pages_which_are_asked_for_by_the_mib(log: CommitLog) -> None:
    slots, limit = 40_000, 200_000
    size = index_file_size(slots, limit)
    asked: list[tuple[int, int]] = []
    gone = {1, 300, 600}  # pages

    class Data:
        """The file, as the system has it."""

        def __init__(self) -> None:
            self.size, self.view = size, memoryview(bytes(size))

        def pages_in_memory(self, position: int, length: int) -> bytes:
            asked.append((position, length))
            pages = range(position // PAGESIZE, -(-(position + length) // PAGESIZE))
            return bytes(page not in gone for page in pages)

    file = IndexFile(cast("DataFile", Data()), slots, limit)
    residency = Residency(log, count_max=10)
    residency.begin(lambda stretches: None)

    def holds(position: int, length: int = ENTRY_SIZE) -> tuple[bool, list[tuple[int, int]]]:
        asked.clear()
        return residency.holds_index(file, position, length), list(asked)

    # Slots and entries of one MiB are asked for once, whatever of it is not there.
    assert holds(HEADER_SIZE, 4) == (True, [(0, MIB)])
    assert holds(MIB - ENTRY_SIZE) == (True, [])
    # What was not there is asked for again, and is there when it has come.
    assert holds(PAGESIZE + 8) == (False, [(0, MIB)])
    gone.remove(1)
    assert holds(PAGESIZE + 8) == (True, [(0, MIB)])
    assert holds(PAGESIZE + 8) == (True, [])
    # An entry may lie on two pages, and in two blocks.
    assert holds(300 * PAGESIZE - 10) == (False, [(MIB, MIB)] * 2)
    assert holds(299 * PAGESIZE) == (True, [])
    assert holds(2 * MIB - 10) == (True, [(2 * MIB, MIB)])
    # The last block is shorter.
    assert holds(size - ENTRY_SIZE) == (True, [(size - size % MIB, size % MIB)])
    assert holds(size) == (True, []), "nothing is read there"
    known = residency.index_pages(file)
    assert known is not None
    assert {block: pages.index(0) if 0 in pages else None for block, pages in known.items()} == {
        0: None,
        1: 300 - 256,
        2: 600 - 512,
        size // MIB: -(-(size % MIB) // PAGESIZE),
    }
    residency.forget()
    assert residency.index_pages(file) == {}
