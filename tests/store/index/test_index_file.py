"""One index file: the worked example, the chains, queries, and what recovery proves, cuts and repairs."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_proto.javahash import index_key_hash
from aerobee_store.disk.io import DiskIo
from aerobee_store.faults.errors import CorruptStore
from aerobee_store.index.index_file import CHAIN_STEPS, HEADER_SIZE, IndexedRecord, IndexFile, index_file_size
from turns import TURN_MAX, turn_of

SLOTS = 7
LIMIT = 20
SIZE = index_file_size(SLOTS, LIMIT)
ENTRIES_AT = HEADER_SIZE + 4 * SLOTS
FOREVER = (0, 2**63 - 1)

Keyed = tuple[int, int, int]  # key hash, physical offset, store time


def open_file(path: Path, *, slots: int = SLOTS, limit: int = LIMIT) -> IndexFile:
    data = DiskIo().open_file(path, index_file_size(slots, limit), create=not path.exists())
    return IndexFile(data, slots, limit)


def put(file: IndexFile, keys: list[Keyed]) -> None:
    columns = np.array(keys, np.int64).reshape(-1, 3)
    file.put(columns[:, 0], columns[:, 1], columns[:, 2])


def plain_file(keys: list[Keyed]) -> bytes:
    """The bytes of a file with these keys, put one by one as the format describes it."""
    content = bytearray(SIZE)
    begin_time = end_time = begin_at = end_at = used = 0
    number = 1
    for key_hash, offset, timestamp in keys:
        slot_at = HEADER_SIZE + 4 * (key_hash % SLOTS)
        previous = int.from_bytes(content[slot_at : slot_at + 4], "big")
        if number == 1:
            begin_time, begin_at = timestamp, offset
        seconds = min(max((timestamp - begin_time) // 1000, 0), 2**31 - 1) if begin_time > 0 else 0
        struct.pack_into(">iqii", content, ENTRIES_AT + 20 * number, key_hash, offset, seconds, previous)
        struct.pack_into(">i", content, slot_at, number)
        used += previous == 0
        number += 1
        end_time, end_at = timestamp, offset
    struct.pack_into(
        ">qqqqii", content, 0, begin_time, end_time, begin_at, end_at, used, number if keys else 0
    )
    return bytes(content)


def sample(count: int) -> list[Keyed]:
    return [(n * n % 31, 100 * (n // 2), 1_700_000_000_000 + 700 * n) for n in range(count)]


def probe_of(keys: list[Keyed]) -> Callable[[int], IndexedRecord | None]:
    """What a log with the records of these keys answers."""

    def probe(offset: int) -> IndexedRecord | None:
        own = [key for key in keys if key[1] == offset]
        return IndexedRecord(own[0][2], frozenset(key[0] for key in own)) if own else None

    return probe


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def test_the_worked_example_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "index"
    file = open_file(path, slots=5_000_000, limit=1000)
    texts = ["TopicTest#C0000204000118B4AAC2000000000001", "TopicTest#order-1001", "TopicTest#user-7"]
    put(file, [(index_key_hash(text), 1073742848, 1700000000456) for text in texts])
    content = path.read_bytes()
    assert content[:40] == bytes.fromhex(
        "0000018bcfe569c80000018bcfe569c8000000004000040000000000400004000000000300000004"
    )
    assert [content[at : at + 4].hex() for at in (6590892, 15219756, 17910604)] == [
        "00000001",
        "00000002",
        "00000003",
    ]
    assert content[20000060:20000120].hex() == (
        "58e8bce1000000004000040000000000000000003e373301000000004000040000000000000000007517"
        "8cc9000000004000040000000000" + "00000000"
    )
    assert not any(content[40:6590892])
    assert not any(content[20000120:])
    file.check()


def test_the_official_size() -> None:
    assert index_file_size(5_000_000, 20_000_000) == 420_000_040


@given(
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=6),
    hashes=st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 9), min_size=LIMIT, max_size=LIMIT),
    times=st.lists(st.integers(-5000, 2**44), min_size=LIMIT, max_size=LIMIT),
    growth=st.lists(st.integers(0, 3), min_size=LIMIT, max_size=LIMIT),
)
def test_any_batches_give_the_bytes_of_one_by_one(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    hashes: list[int],
    times: list[int],
    growth: list[int],
) -> None:
    path = tmp_path_factory.mktemp("index") / "index"
    keys = list(zip(hashes, np.cumsum(growth).tolist(), times, strict=True))[: min(sum(sizes), LIMIT - 1)]
    file = open_file(path)
    start = 0
    for size in sizes:
        if batch := keys[start : start + size]:
            put(file, batch)
        start += size
    assert path.read_bytes() == plain_file(keys)
    file.check()
    assert file.room == LIMIT - 1 - len(keys)
    again = open_file(path)
    assert (again.count, again.end_physical, again.used_slots) == (
        file.count,
        file.end_physical,
        file.used_slots,
    )


def test_a_file_holds_one_entry_less_than_its_limit(tmp_path: Path) -> None:
    file = open_file(tmp_path / "index")
    put(file, sample(LIMIT - 1))
    assert (file.room, file.count) == (0, LIMIT - 1)
    with pytest.raises(AssertionError):
        put(file, [(1, 10_000, 1)])


def test_a_slot_that_names_an_entry_beyond_the_end_is_empty(tmp_path: Path) -> None:
    """A crash between slots and header leaves this; the official code would chain an entry to itself."""
    path = tmp_path / "index"
    open_file(path).close()
    overwrite(path, HEADER_SIZE + 4 * 3, struct.pack(">i", 1))
    overwrite(path, HEADER_SIZE + 4 * 4, struct.pack(">i", -9))
    file = open_file(path)
    put(file, [(3, 0, 5), (4, 0, 5)])
    assert path.read_bytes() == plain_file([(3, 0, 5), (4, 0, 5)])


# --- queries ---------------------------------------------------------------------------------------------


def ask(file: IndexFile, key_hash: int, begin: int = 0, end: int = 2**63 - 1, max_num: int = 99) -> list[int]:
    found: list[int] = []
    assert not any(file.collect(key_hash, begin, end, max_num, found))
    return found


def test_a_query_finds_its_hash_newest_first(tmp_path: Path) -> None:
    file = open_file(tmp_path / "index")
    put(file, [(3, 0, 1000), (10, 10, 1000), (3, 20, 1000), (17, 30, 1000), (3, 40, 1000)])
    assert ask(file, 3) == [40, 20, 0]
    assert ask(file, 10) == [10]
    assert ask(file, 24) == ask(file, 1) == []
    assert ask(file, 3, max_num=2) == [40, 20]


def test_a_record_with_the_key_twice_is_found_once(tmp_path: Path) -> None:
    file = open_file(tmp_path / "index")
    put(file, [(3, 0, 1000), (3, 0, 1000), (3, 20, 1000), (10, 20, 1000), (3, 20, 1000)])
    assert ask(file, 3) == [20, 0]


def test_a_query_keeps_to_its_times(tmp_path: Path) -> None:
    file = open_file(tmp_path / "index")
    put(file, [(3, n, 10_000 + 1000 * n) for n in range(5)])
    assert ask(file, 3, 11_000, 13_000) == [3, 2, 1]
    assert ask(file, 3, 12_000, 12_000) == [2]
    assert ask(file, 3, 15_000) == []


@pytest.mark.parametrize(
    ("begin", "end", "matches"),
    [(0, 9, False), (0, 10, True), (15, 16, True), (20, 30, True), (21, 30, False), (9, 21, True)],
)
def test_a_file_is_asked_when_its_times_meet_the_query(
    tmp_path: Path, begin: int, end: int, matches: bool
) -> None:
    file = open_file(tmp_path / "index")
    put(file, [(3, 0, 10), (3, 1, 20)])
    assert file.time_matches(begin, end) is matches


def test_the_first_entry_has_the_time_of_the_file_whatever_it_says(tmp_path: Path) -> None:
    """RocketMQ writes there the distance to the file before, and misses the entry for it."""
    path = tmp_path / "index"
    file = open_file(path)
    put(file, [(3, 0, 10_000)])
    file.close()
    overwrite(path, ENTRIES_AT + 20 + 12, struct.pack(">i", 86_400))
    assert ask(open_file(path), 3, 9_000, 11_000) == [0]


@pytest.mark.parametrize("previous", [2, 5, 2**31 - 1, -1])
def test_a_chain_that_leads_forward_ends(tmp_path: Path, previous: int) -> None:
    path = tmp_path / "index"
    file = open_file(path)
    put(file, [(3, 0, 1000), (3, 10, 1000)])
    file.close()
    overwrite(path, ENTRIES_AT + 2 * 20 + 16, struct.pack(">i", previous))
    assert ask(open_file(path), 3) == [10]


def test_a_long_chain_is_followed_to_its_bound_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = open_file(tmp_path / "index")
    put(file, [(3, 10 * n, 1000) for n in range(12)])
    monkeypatch.setattr("aerobee_store.index.index_file.CHAIN_STEPS", 2)
    monkeypatch.setattr("aerobee_store.index.index_file.CHAIN_STEPS_MAX", 4)
    assert ask(file, 3) == [110, 100, 90, 80]


# --- recovery --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("log_end", [0, 1, 100, 101, 350, 10_000])
def test_entries_of_records_beyond_the_log_are_not_proven(tmp_path: Path, log_end: int) -> None:
    file = open_file(tmp_path / "index")
    put(file, sample(15))
    assert file.proven_count(log_end, 0, 0, None) == sum(key[1] < log_end for key in sample(15))


BROKEN: dict[str, tuple[int, bytes]] = {
    "hash below zero": (0, struct.pack(">i", -1)),
    "hash of another slot than its chain": (0, struct.pack(">i", 6)),
    "offset below the one before": (4, struct.pack(">q", 0)),
    "time below zero": (12, struct.pack(">i", -1)),
    "chained to itself": (16, struct.pack(">i", 9)),
    "chained forward": (16, struct.pack(">i", 10)),
    "chained below zero": (16, struct.pack(">i", -1)),
    "all ones": (0, b"\xff" * 20),
    "all zeros": (0, bytes(20)),
}


@pytest.mark.parametrize("damage", BROKEN.values(), ids=BROKEN)
def test_recovery_keeps_the_entries_before_a_broken_one(tmp_path: Path, damage: tuple[int, bytes]) -> None:
    path = tmp_path / "index"
    keys = [(10 * (n % 2), 100 * (1 + n), 1_700_000_000_000 + 700 * n) for n in range(15)]
    put(open_file(path), keys)
    overwrite(path, ENTRIES_AT + 9 * 20 + damage[0], damage[1])
    file = open_file(path)
    with pytest.raises(CorruptStore, match="entry 9 is broken"):
        file.check()
    assert file.proven_count(10**9, 0, 0, probe_of(keys)) == 8
    assert file.cut(8, probe_of(keys))
    assert path.read_bytes() == plain_file(keys[:8])
    assert not file.cut(8, probe_of(keys))
    put(file, keys[8:])
    assert path.read_bytes() == plain_file(keys)


def test_recovery_asks_the_log_from_the_watermark_on(tmp_path: Path) -> None:
    file = open_file(tmp_path / "index")
    keys = sample(15)
    put(file, keys)
    asked: list[int] = []

    def probe(offset: int) -> IndexedRecord | None:
        asked.append(offset)
        return probe_of(keys)(offset)

    assert file.proven_count(10**9, 0, 400, probe) == 15
    # And about the entry with hash 0 at offset 0, which is what zeros look like.
    assert list(dict.fromkeys(asked)) == [0, 400, 500, 600, 700]


def test_an_entry_that_its_record_does_not_carry_is_not_proven(tmp_path: Path) -> None:
    file = open_file(tmp_path / "index")
    keys = sample(15)
    put(file, keys)
    assert file.proven_count(10**9, 0, 0, probe_of(keys[:9])) == 9
    wrong = [*keys[:4], (30, *keys[4][1:]), *keys[5:]]
    assert file.proven_count(10**9, 0, 0, probe_of(wrong)) == 4


def test_without_the_log_the_end_time_is_never_too_early(tmp_path: Path) -> None:
    file = open_file(tmp_path / "index")
    put(file, sample(15))
    file.cut(8, None)
    assert sample(15)[7][2] <= file.end_timestamp <= sample(15)[7][2] + 999
    file.cut(1, None)
    assert file.end_timestamp == file.begin_timestamp == sample(1)[0][2]


@pytest.mark.parametrize("slot", range(SLOTS))
def test_recovery_repairs_a_slot_that_names_another_entry(tmp_path: Path, slot: int) -> None:
    path = tmp_path / "index"
    put(open_file(path), sample(15))
    good = path.read_bytes()
    overwrite(path, HEADER_SIZE + 4 * slot, struct.pack(">i", 16))
    file = open_file(path)
    with pytest.raises(CorruptStore, match=f"slot {slot} does not name its newest entry"):
        file.check()
    assert file.cut(file.count, None)
    assert path.read_bytes() == good
    file.check()


@pytest.mark.parametrize("position", [16, 24, 32, 36])
def test_the_cheap_test_sees_a_header_that_does_not_fit(tmp_path: Path, position: int) -> None:
    path = tmp_path / "index"
    put(open_file(path), sample(15))
    assert open_file(path).looks_sound(0)
    assert not open_file(path).looks_sound(1)
    overwrite(path, position, b"\x00\x00\x00\x00")
    if position == 16:
        overwrite(path, position, b"\x01")
    overwrite(path, 28, b"\x00\x00\x00\x05") if position == 24 else None
    assert not open_file(path).looks_sound(0)


@pytest.mark.parametrize(
    ("position", "data", "reason"),
    [
        (36, struct.pack(">i", 1), "no entries"),
        (23, b"\x01", "wrong first physical offset"),
        (31, b"\x01", "wrong last physical offset"),
        (35, b"\x01", "wrong number of used slots"),
    ],
)
def test_check_finds_a_wrong_header(tmp_path: Path, position: int, data: bytes, reason: str) -> None:
    path = tmp_path / "index"
    put(open_file(path), sample(15))
    overwrite(path, position, data)
    with pytest.raises(CorruptStore, match=reason):
        open_file(path).check()


def test_a_long_chain_is_walked_in_steps(tmp_path: Path) -> None:
    """A query for a time before most of a popular key's messages held the event loop of a broker for half a second."""
    count = 3 * CHAIN_STEPS + 10
    file = open_file(tmp_path / "index", slots=1, limit=count + 2)
    put(file, [(5, number, 1_000_000 + number) for number in range(1, count + 1)])
    found: list[int] = []
    walk = file.collect(5, 0, 1_000_999, 10, found)
    costs = [turn_of(lambda: next(walk, None), tries=1) for _ in range(4)]
    assert max(costs) < TURN_MAX / 4
    assert found == list(range(1000, 990, -1))
    assert len(list(file.collect(5, 0, 1_000_000, 10, []))) == 3


def test_a_file_that_is_closed_in_the_middle_of_a_walk_ends_it(tmp_path: Path) -> None:
    file = open_file(tmp_path / "index", slots=1, limit=2 * CHAIN_STEPS)
    put(file, [(5, number, 1_000_000) for number in range(1, CHAIN_STEPS + 10)])
    walk = file.collect(5, 0, 10, 10, [])
    next(walk)
    file.close()
    assert list(walk) == []
