"""The key index over its files: rolling, offering again, recovery, cleaning, and the official files."""

import struct
from array import array
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aerobee_proto.javahash import index_key_hash
from aerobee_store.disk.io import DataFile, DiskIo
from aerobee_store.faults.errors import CorruptStore, StoreFull
from aerobee_store.index.index import IndexedRecord, IndexService, KeyedBlock, KeyedRecord, key_texts
from aerobee_store.index.index_file import HEADER_SIZE, IndexFile, missing_chains
from engines import made_engine, need_engine
from store.golden_cases import GoldenLog, expectation, open_index, unpack
from store.released import delete
from store.torn_io import RememberingIo, leave_only

SLOTS, LIMIT = 5, 11  # ten entries a file
NOW_MS = 1_700_000_000_123
FOREVER = 2**63 - 1


def open_service(folder: Path, io: DiskIo | None = None, now_ms: int = NOW_MS) -> IndexService:
    index = IndexService(
        folder / "index", io or DiskIo(), lambda: now_ms, slot_count=SLOTS, entry_limit=LIMIT
    )
    index.load()
    return index


def records(count: int, keys: int = 2) -> list[KeyedRecord]:
    """Records of 100 bytes with a unique key and `keys` - 1 other keys, 700 ms apart."""
    return [
        ("T", " ".join(f"k{n % 4}-{i}" for i in range(keys - 1)), f"U{n}", 100 * n, NOW_MS + 700 * n)
        for n in range(count)
    ]


def probe_of(log: list[KeyedRecord]) -> Callable[[int], IndexedRecord | None]:
    table = {r[3]: IndexedRecord(r[4], frozenset(map(index_key_hash, key_texts(*r[:3])))) for r in log}
    return table.get


def contents(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((folder / "index").iterdir())]


def find(index: IndexService, key: str, max_num: int = 64) -> list[int]:
    return index.query("T", key, max_num, 0, FOREVER)


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


# --- keys and putting ------------------------------------------------------------------------------------


def test_texts_of_a_message() -> None:
    assert key_texts("T", "a  b ", "u") == ["T#u", "T#a", "T#b"]
    assert key_texts("T", None, "u") == ["T#u"]
    assert key_texts("T", "a\tb", None) == ["T#a\tb"]
    assert key_texts("T", " ", "") == []


def test_a_record_without_keys_makes_no_file(tmp_path: Path) -> None:
    index = open_service(tmp_path)
    assert index.put_many([("T", None, None, 0, 1), ("T", "  ", "", 10, 1)]) == 0
    assert index.put_many([]) == 0
    assert (index.end_offset, index.updated) == (-1, (0, 0))
    assert list(tmp_path.iterdir()) == []


def test_files_roll_when_full_and_queries_look_into_all(tmp_path: Path) -> None:
    index = open_service(tmp_path)
    assert index.put_many(records(12)) == 24
    assert [file.count for file in index.files] == [10, 10, 4]
    assert find(index, "k1-0") == [900, 500, 100]
    assert find(index, "k1-0", 2) == [900, 500]
    assert [find(index, f"U{n}") for n in range(12)] == [[100 * n] for n in range(12)]
    assert find(index, "U12") == find(index, "k1") == []
    assert index.query("X", "U1", 64, 0, FOREVER) == []
    assert (index.end_offset, index.updated) == (1100, (1100, NOW_MS + 7700))
    index.check()


def test_the_answer_has_an_upper_bound(tmp_path: Path) -> None:
    index = open_service(tmp_path)
    index.put_many([("T", "same", None, n, NOW_MS) for n in range(100)])
    assert find(index, "same", 1000) == list(range(99, 35, -1))


def asked_cold(
    index: IndexService, key: str, begin: int = 0, *, stays: bool = True
) -> tuple[list[int], list[list[Path]], int]:
    """What a query finds when nothing of the index is in memory, which files were read for it at each step, and how
    often it waited."""
    there: set[tuple[Path, int]] = set()
    waits: list[list[Path]] = []
    yields = 0
    steps = index.query_steps(
        "T", key, 64, begin, FOREVER, holds=lambda file, position, _: (file.path, position) in there
    )
    while True:
        try:
            missing = next(steps)
        except StopIteration as end:
            return end.value, waits, yields
        assert missing is not None
        yields += 1
        for needed in chain([missing.needed], missing.further):  # as the thread does it
            waits.append([one.path for one in needed])
            if stays:
                there |= {(one.path, one.position) for one in needed}


def test_a_cold_query_waits_for_all_files_together_link_by_link(tmp_path: Path) -> None:
    """It waited for each slot and each entry by itself, 15 times in an index of three usual files."""
    index = open_service(tmp_path)
    index.put_many(records(12))
    assert len(index.files) == 3
    keys = [index_key_hash(text) for r in records(12) for text in key_texts(*r[:3])]
    for key in ("k1-0", "U3", "U11", "not there"):
        found, waits, yields = asked_cold(index, key)
        assert found == find(index, key)
        slot = index_key_hash(f"T#{key}") % SLOTS
        links = [sum(one % SLOTS == slot for one in keys[at : at + 10]) for at in (0, 10, 20)]
        expected = [sum(count > link for count in links) for link in range(max(links))]
        assert ([len(one) for one in waits], yields) == ([3, *expected], 1)


def test_a_cold_query_for_a_time_leaves_older_links_alone(tmp_path: Path) -> None:
    index = open_service(tmp_path)
    index.put_many(records(12))
    begin = NOW_MS + 700 * 5 + 1000
    found, waits, yields = asked_cold(index, "k1-0", begin)
    assert (found, yields) == (index.query("T", "k1-0", 64, begin, FOREVER), 1)
    assert index.files[0].path not in {path for wait in waits for path in wait}


def test_a_cold_query_comes_to_its_end_where_nothing_stays_in_memory_or_much_is_to_be_read(
    tmp_path: Path,
) -> None:
    index = IndexService(tmp_path / "index", DiskIo(), lambda: NOW_MS, slot_count=1, entry_limit=101)
    index.put_many([("T", f"k{n}", None, n, NOW_MS) for n in range(1900)])
    assert len(index.files) == 19
    for stays in (True, False):
        found, waits, yields = asked_cold(index, "k0", stays=stays)
        assert found == [0]
        assert max(len(one) for one in waits) == 16
        assert yields >= 2 + (100 - 16) * 19
    index.close()


def test_a_file_that_is_closed_while_it_is_read_ends_its_chain_alone(tmp_path: Path) -> None:
    index = open_service(tmp_path)
    index.put_many(records(12))
    oldest, newest = index.files[0], index.files[-1]
    missing = missing_chains([newest, oldest], index_key_hash("T#U11"), 0, set())
    further = iter(missing.further)
    oldest.close()
    assert {one.path for needed in further for one in needed} == {newest.path}


def test_a_query_stops_at_the_file_that_begins_before_it(tmp_path: Path) -> None:
    index = open_service(tmp_path)
    index.put_many(records(12))
    begin = NOW_MS + 700 * 5 + 1000
    assert index.query("T", "k1-0", 64, begin, FOREVER) == [900]
    assert index.query("T", "k1-0", 64, 0, NOW_MS + 700 * 6) == [500, 100]


@given(
    cuts=st.lists(st.integers(0, 40), max_size=6),
    shapes=st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 3)), max_size=40),
)
def test_any_batches_give_the_same_files(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], shapes: list[tuple[int, bool, int]]
) -> None:
    log: list[KeyedRecord] = []
    for n, (words, unique, gap) in enumerate(shapes):
        keys = " ".join(f"k{(n + i) % 5}" for i in range(words)) or None
        log.append(("T", keys, f"U{n}" if unique else None, 10 * n, NOW_MS + 900 * gap * n))
    one_by_one, batched = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("batched")
    single, many = open_service(one_by_one), open_service(batched)
    for record in log:
        single.put_many([record])
    borders = sorted({0, len(log), *(cut for cut in cuts if cut < len(log))})
    for start, stop in pairwise(borders):
        many.put_many(log[start:stop])
    if many.files:
        assert contents(batched) == contents(one_by_one)
    many.check()
    for key in [f"k{n}" for n in range(6)]:
        expected = [r[3] for r in reversed(log) if r[1] and key in r[1].split(" ")]
        assert find(many, key) == expected[:64]


@given(
    batches=st.lists(
        st.lists(
            st.tuples(
                st.lists(st.sampled_from([0, 1, 5, 6, 2**31 - 1, 2**31 - 2, 2**20]), max_size=4),
                st.integers(-3000, 5000),
            ),
            max_size=5,
        ),
        max_size=8,
    ),
    start_ms=st.sampled_from([NOW_MS, 0, -5]),
)
def test_either_engine_makes_the_same_files(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[tuple[list[int], int]]], start_ms: int
) -> None:
    need_engine("native")
    folders = tmp_path_factory.mktemp("python"), tmp_path_factory.mktemp("native")
    python, native = map(open_service, folders)
    chained = 0

    def chain(*asked: Any) -> Any:
        nonlocal chained
        found = engine.chain_keys(*asked)
        chained += found is not None
        return found

    engine, native.chainer = made_engine(), chain
    at, now_ms = 0, start_ms
    for batch in batches:
        blocks: list[KeyedRecord | KeyedBlock] = []
        for hashes, later_ms in batch:
            now_ms += later_ms
            places = [at + 10 * number for number in range(len(hashes))]
            at += 10 * len(hashes)
            if hashes:
                hashed, placed = array("q", hashes).tobytes(), array("q", places).tobytes()
                blocks.append(KeyedBlock(len(hashes), hashed, placed, places[0], now_ms))
        before = native.files[-1].room if native.files else 0
        count, chained = sum(len(block[1]) // 8 for block in blocks if isinstance(block, KeyedBlock)), 0
        assert python.put_many(blocks) == native.put_many(blocks) == count
        assert chained == (0 < count <= before)
        assert contents(folders[0]) == contents(folders[1]) if python.files else not native.files
    for one in (python, native):
        one.check()
        one.close()


def test_what_is_no_hash_and_what_has_no_room_is_left_to_python(tmp_path: Path) -> None:
    need_engine("native")
    index, engine = open_service(tmp_path), made_engine()
    index.put_many(records(1))
    (file,) = index.files

    def chain(hashes: list[int], places: list[int], **changes: int) -> Any:
        hashed, placed = array("q", hashes).tobytes(), array("q", places).tobytes()
        known = {"slots": SLOTS, "next": file.next_entry, "limit": LIMIT, "begin": NOW_MS} | changes
        return engine.chain_keys((file.view, *known.values()), [KeyedBlock(1, hashed, placed, 0, NOW_MS)])

    assert chain([7], [100]) is not None
    assert chain([7] * 8, [100] * 8)[0] == 8
    for hashes, places in [([7] * 9, [100] * 9), ([], []), ([-1], [1]), ([2**31], [1]), ([1, 2], [1])]:
        assert chain(hashes, places) is None
    assert chain([7], [100], slots=0) is None
    assert chain([7], [100], limit=0) is None
    with pytest.raises(BufferError):
        chain([2**31 - 1], [100], slots=2**31)
    index.close()


@pytest.mark.parametrize("keys", [1, 3, 7, 25])
@pytest.mark.parametrize("done", range(1, 8))
def test_records_offered_again_are_indexed_once(tmp_path: Path, keys: int, done: int) -> None:
    """RocketMQ indexes the record at the border twice after each recovery."""
    log = records(7, keys)
    whole, again = open_service(tmp_path / "a"), open_service(tmp_path / "b")
    whole.put_many(log)
    again.put_many(log[:done])
    assert again.put_many(log) == keys * (7 - done)
    assert again.put_many(log) == 0
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.parametrize("entries", range(1, 25))
def test_a_record_indexed_in_part_is_completed(tmp_path: Path, entries: int) -> None:
    """A crash, or a full disk, may stop between two keys of a record, also where a new file begins."""
    log: list[KeyedRecord] = [("T", "a b a", f"U{n}", 100 * n, NOW_MS) for n in range(6)]
    whole, torn = open_service(tmp_path / "a"), open_service(tmp_path / "b")
    whole.put_many(log)
    torn.put_many(log)
    position = 0
    for file in list(torn.files):
        left = min(max(entries - position, 0), file.count)
        position += file.count
        if left:
            file.cut(left, probe_of(log))
        else:
            file.close()
            file.path.unlink()
    reopened = open_service(tmp_path / "b")
    assert reopened.put_many(log) == 24 - entries
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


# --- names and foreign files -----------------------------------------------------------------------------


def test_a_file_is_named_by_local_time(tmp_path: Path) -> None:
    index = open_service(tmp_path)
    index.put_many(records(1))
    local = datetime.fromtimestamp(NOW_MS // 1000, UTC).astimezone()
    assert index.files[0].path.name == f"{local:%Y%m%d%H%M%S}123"


def test_a_clock_that_stands_or_steps_back_does_not_disorder_the_files(tmp_path: Path) -> None:
    index = open_service(tmp_path)
    index.put_many(records(11))
    index.close()
    index = open_service(tmp_path, now_ms=NOW_MS - 86_400_000)
    index.put_many(records(30))
    names = [file.path.name for file in index.files]
    assert len(names) == 6
    assert names == [str(int(names[0]) + n) for n in range(6)]
    index.close()
    assert find(open_service(tmp_path), "k1-0") == [2900, 2500, 2100, 1700, 1300, 900, 500, 100]


def test_foreign_files_are_named_and_left_alone(tmp_path: Path) -> None:
    """RocketMQ grows them to the size of an index file and takes the last one for its newest file."""
    index = open_service(tmp_path)
    index.put_many(records(3))
    index.close()
    folder = tmp_path / "index"
    foreign = {"README": b"hello", "20991231235959999": b"short", "123": index_bytes(folder)}
    for name, content in foreign.items():
        (folder / name).write_bytes(content)
    (folder / "20991231235959998").mkdir()
    index = open_service(tmp_path)
    assert set(index.foreign_names) == {*foreign, "20991231235959998"}
    assert find(index, "U2") == [200]
    index.put_many(records(12))
    assert index.files[-1].path.name > "20991231235959999"
    assert index.recover(10**9).removed_files == ()
    index.destroy()
    assert {path.name for path in folder.iterdir()} == {*foreign, "20991231235959998"}
    assert all((folder / name).read_bytes() == content for name, content in foreign.items())


def test_a_file_whose_making_was_cut_short_goes_with_the_next_start(tmp_path: Path) -> None:
    """It has a name and no byte, and was told of as foreign at each start."""
    index = open_service(tmp_path)
    index.put_many(records(3))
    index.close()
    unmade = tmp_path / "index" / "20991231235959999"
    unmade.touch()
    index = open_service(tmp_path)
    assert index.foreign_names == ()
    assert unmade.exists(), "who only looks removes nothing"
    index.recover(10**9)
    assert not unmade.exists()
    assert find(index, "U2") == [200]


def index_bytes(folder: Path) -> bytes:
    return next(folder.iterdir()).read_bytes()


def test_the_official_case_of_a_foreign_file(tmp_path: Path) -> None:
    root = unpack("index-foreign-file", tmp_path)
    index = open_index("index-foreign-file", root / "index")
    assert index.foreign_names == ("README",)
    index.recover(10**9)
    assert (root / "index" / "README").stat().st_size == 5


# --- a full disk and flushing ----------------------------------------------------------------------------


class SmallDiskIo(DiskIo):
    """A disk with room for so many files."""

    def __init__(self, files_left: int = 1000) -> None:
        self.files_left = files_left

    def open_file(
        self, path: Path, size: int, *, create: bool = False, writable: bool = True, room: int | None = None
    ) -> DataFile:
        if create and self.files_left == 0:
            raise StoreFull(path, size)
        self.files_left -= create
        return super().open_file(path, size, create=create, writable=writable, room=room)


def test_after_a_full_disk_the_same_call_goes_on(tmp_path: Path) -> None:
    io = SmallDiskIo(files_left=1)
    index = open_service(tmp_path / "a", io)
    with pytest.raises(StoreFull):
        index.put_many(records(12, 3))
    index.check()
    assert (index.end_offset, index.files[0].room) == (300, 0)
    io.files_left = 9
    assert index.put_many(records(12, 3)) == 26
    whole = open_service(tmp_path / "b")
    whole.put_many(records(12, 3))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_flush_makes_full_files_count_for_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    really = IndexFile.sync

    def sync(file: IndexFile) -> None:
        synced.append(file.path.name)
        really(file)

    monkeypatch.setattr(IndexFile, "sync", sync)
    index = open_service(tmp_path)
    index.put_many(records(12))
    assert index.full_timestamp == 0
    index.flush()
    index.flush()
    names = [file.path.name for file in index.files]
    assert synced == names
    assert index.full_timestamp == index.files[1].end_timestamp == NOW_MS + 700 * 9
    index.put_many(records(13))
    index.flush()
    assert synced == [*names, names[-1]]


# --- recovery --------------------------------------------------------------------------------------------


def filled(folder: Path, count: int = 17) -> list[Path]:
    index = open_service(folder)
    index.put_many(records(count))
    index.close()
    return sorted((folder / "index").iterdir())


def test_recovery_of_a_sound_index_changes_nothing(tmp_path: Path) -> None:
    filled(tmp_path)
    before = contents(tmp_path)
    found = open_service(tmp_path).recover(1700, probe=probe_of(records(17)))
    assert (found.end_offset, found.kept_entries, found.cut_entries) == (1600, 34, 0)
    assert found.removed_files == found.repaired_files == ()
    assert contents(tmp_path) == before


@pytest.mark.parametrize("log_records", [0, 1, 5, 6, 12, 17])
def test_an_index_ahead_of_the_log_is_cut_to_it(tmp_path: Path, log_records: int) -> None:
    filled(tmp_path / "a")
    index = open_service(tmp_path / "a")
    found = index.recover(100 * log_records, probe=probe_of(records(log_records)))
    assert found.end_offset == 100 * (log_records - 1) if log_records else found.end_offset == -1
    assert (found.kept_entries, found.cut_entries) == (2 * log_records, 34 - 2 * log_records)
    index.put_many(records(17))
    filled(tmp_path / "b")
    assert [file.end_physical for file in index.files] == [400, 900, 1400, 1600]
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.parametrize("entry", [1, 2, 7, 10])
@pytest.mark.parametrize("at", [0, 1, 3])
def test_damage_is_cut_and_comes_back_when_offered_again(tmp_path: Path, at: int, entry: int) -> None:
    """RocketMQ deletes every file newer than the last full one and indexes the tail of the log only."""
    paths = filled(tmp_path / "a")
    entry = min(entry, 4) if at == 3 else entry
    overwrite(paths[at], HEADER_SIZE + 4 * SLOTS + 20 * entry, b"\xff" * 20)
    index = open_service(tmp_path / "a")
    found = index.recover(1700, probe=probe_of(records(17)))
    assert found.kept_entries == 10 * at + entry - 1
    assert found.removed_files == tuple(p.name for p in paths[at + (entry > 1) :])
    assert found.repaired_files == ((paths[at].name,) if entry > 1 else ())
    index.check()
    index.put_many([record for record in records(17) if record[3] >= found.end_offset])
    filled(tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.parametrize("at", [0, 2])
def test_a_durable_file_is_tested_at_header_and_edges(tmp_path: Path, at: int) -> None:
    paths = filled(tmp_path)
    asked: list[int] = []

    def probe(offset: int) -> IndexedRecord | None:
        asked.append(offset)
        return probe_of(records(17))(offset)

    found = open_service(tmp_path).recover(1700, proven_offset=1500, probe=probe)
    assert (found.kept_entries, found.cut_entries) == (34, 0)
    assert set(asked) == {1500, 1600}
    overwrite(paths[at], HEADER_SIZE + 4 * SLOTS + 20 * 10, b"\xff" * 20)
    found = open_service(tmp_path).recover(1700, proven_offset=1500, probe=probe)
    assert found.kept_entries == 10 * at + 9


def test_records_that_the_log_has_lost_are_not_asked_about(tmp_path: Path) -> None:
    filled(tmp_path)
    found = open_service(tmp_path).recover(1700, log_min=800, probe=probe_of(records(17)[8:]))
    assert (found.kept_entries, found.removed_files) == (34, ())


def test_a_file_without_entries_goes(tmp_path: Path) -> None:
    """An all-zero newest file makes the official broker find nothing in any file."""
    paths = filled(tmp_path, 15)
    overwrite(paths[-1], 0, bytes(paths[-1].stat().st_size))
    index = open_service(tmp_path)
    assert index.recover(1700).removed_files == (paths[-1].name,)
    assert not paths[-1].exists()
    assert index.query("T", "U3", 64, 1, FOREVER) == [300]


def test_files_behind_a_shortened_one_go(tmp_path: Path) -> None:
    """Only the newest file may have room; otherwise keys between two files are missing."""
    filled(tmp_path)
    index = open_service(tmp_path)
    index.files[1].cut(4, None)
    found = index.recover(1700)
    assert (found.end_offset, found.kept_entries, len(found.removed_files)) == (600, 14, 2)


@example(batches=[2, 1], survived=[True, False, False, False, True, True], log_records=1)
@given(
    batches=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    survived=st.lists(st.booleans(), max_size=60),
    log_records=st.integers(0, 20),
)
def test_whatever_writes_a_power_failure_leaves_no_key_is_lost_or_doubled(
    tmp_path_factory: pytest.TempPathFactory, batches: list[int], survived: list[bool], log_records: int
) -> None:
    """Any part of the writes may be missing, in any order, and the log may have lost its end."""
    torn, whole = tmp_path_factory.mktemp("torn"), tmp_path_factory.mktemp("whole")
    io = RememberingIo()
    index, start = open_service(torn, io), 0
    for size in batches:
        index.put_many(records(20)[start : start + size])
        start += size
    index.close()
    leave_only(torn, io.writes, survived)
    log = records(log_records)
    index = open_service(torn)
    found = index.recover(100 * log_records, probe=probe_of(log))
    index.put_many([record for record in log if record[3] >= found.end_offset])
    index.check()
    model = open_service(whole)
    model.put_many(log)
    assert [file.path.read_bytes() for file in index.files] == [f.path.read_bytes() for f in model.files]


# --- the lower end ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("log_min", "left"), [(0, 4), (400, 4), (401, 3), (1400, 2), (10**9, 1)])
def test_cleaning_takes_files_whose_records_are_gone(tmp_path: Path, log_min: int, left: int) -> None:
    paths = filled(tmp_path)
    index = open_service(tmp_path)
    assert delete(index.release_before(log_min), DiskIo()) == 4 - left
    assert sorted((tmp_path / "index").iterdir()) == paths[-left:]
    assert find(index, "U16") == [1600]
    index.check()


def test_destroy_removes_the_folder(tmp_path: Path) -> None:
    filled(tmp_path)
    index = open_service(tmp_path)
    index.destroy()
    assert not (tmp_path / "index").exists()
    assert index.end_offset == -1


def test_check_finds_files_out_of_order(tmp_path: Path) -> None:
    first, second, *_ = filled(tmp_path)
    swap = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(swap)
    with pytest.raises(CorruptStore, match="begins below 900"):
        open_service(tmp_path).check()


# --- official files --------------------------------------------------------------------------------------

WHOLE = ("clean", "features", "expire", "propcrc", "propcrc-features", "broker-traffic-json", "index-ahead")


def raw_contents(index: IndexService) -> list[dict[str, Any]]:
    """Every file as `expect.json` shows it, taken from the bytes on disk."""
    shown = []
    for file in index.files:
        content = file.path.read_bytes()
        names = (
            "beginTimestamp",
            "endTimestamp",
            "beginPhyOffset",
            "endPhyOffset",
            "hashSlotCount",
            "indexCount",
        )
        entries_at = HEADER_SIZE + 4 * file.slot_count
        slots = struct.unpack_from(f">{file.slot_count}i", content, HEADER_SIZE)
        numbers = range(1, file.next_entry)
        shown.append(
            dict(zip(names, struct.unpack_from(">qqqqii", content), strict=True))
            | {
                "slots": [[slot, number] for slot, number in enumerate(slots) if number],
                "entries": [list(struct.unpack_from(">iqii", content, entries_at + 20 * n)) for n in numbers],
            }
        )
    return shown


def official_contents(case: str) -> list[dict[str, Any]]:
    return [
        {
            name: value
            for name, value in file.items()
            if "InMemory" not in name and name not in ("file", "size")
        }
        for file in expectation(case)["index"]
    ]


def with_first_difference_meant(files: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The files with the first entry's time difference as we write it: 0."""
    return [
        file | {"entries": [[h, p, 0 if n == 0 else t, q] for n, (h, p, t, q) in enumerate(file["entries"])]}
        for file in files
    ]


@pytest.mark.parametrize("case", WHOLE)
def test_official_files_are_read_as_they_are(case: str, tmp_path: Path) -> None:
    index = open_index(case, unpack(case, tmp_path) / "index")
    assert raw_contents(index) == official_contents(case)
    index.check()


@pytest.mark.parametrize("case", WHOLE)
@pytest.mark.parametrize("batch", [1, 3, 64, 100_000])
def test_indexing_the_log_again_gives_the_official_files(case: str, batch: int, tmp_path: Path) -> None:
    log = GoldenLog.read(unpack(case, tmp_path)).keyed()
    index = open_index(case, tmp_path / "again")
    for start in range(0, len(log), batch):
        index.put_many(log[start : start + batch])
    assert raw_contents(index) == with_first_difference_meant(official_contents(case))


def test_the_official_files_do_show_the_odd_first_difference() -> None:
    official = official_contents("clean")
    odd = [file["entries"][0][2] for file in official]
    assert odd[0] == 0
    assert any(odd[1:])


@pytest.mark.parametrize("case", [*WHOLE, "kill9", "index-zeroed"])
def test_queries_find_what_the_official_index_finds(case: str, tmp_path: Path) -> None:
    """Given the official files after its recovery; a record that it names twice is named once here."""
    index = IndexService(
        tmp_path / "index",
        DiskIo(),
        lambda: NOW_MS,
        slot_count=expectation(case)["config"]["maxHashSlotNum"],
        entry_limit=expectation(case)["config"]["maxIndexNum"],
    )
    write_official(case, tmp_path / "index")
    index.load()
    table = expectation(case)["indexQueries"]
    for row in table["rows"]:
        asked = dict(zip(table["columns"], row, strict=True))
        if "rawOffsets" not in asked:
            continue
        found = index.query(asked["topic"], asked["key"], asked["maxNum"], asked["begin"], asked["end"])
        official = list(dict.fromkeys(asked["rawOffsets"]))
        assert found[: len(official)] == official
        if len(asked["rawOffsets"]) < min(asked["maxNum"], 64):
            assert found == official


def write_official(case: str, folder: Path) -> None:
    """The index files of `expect.json`, written out plainly."""
    folder.mkdir()
    config = expectation(case)["config"]
    slots_size = 4 * config["maxHashSlotNum"]
    for file in expectation(case)["index"]:
        content = bytearray(file["size"])
        header = [file[name] for name in ("beginTimestamp", "endTimestamp", "beginPhyOffset", "endPhyOffset")]
        struct.pack_into(">qqqqii", content, 0, *header, file["hashSlotCount"], file["indexCount"])
        for slot, number in file["slots"]:
            struct.pack_into(">i", content, HEADER_SIZE + 4 * slot, number)
        for number, entry in enumerate(file["entries"], 1):
            struct.pack_into(">iqii", content, HEADER_SIZE + slots_size + 20 * number, *entry)
        (folder / file["file"]).write_bytes(content)


@pytest.mark.parametrize(
    "case", ["kill9", "index-kept", "index-missing", "index-last-missing", "index-zeroed", "index-garbage"]
)
def test_a_damaged_official_index_becomes_the_whole_one(case: str, tmp_path: Path) -> None:
    """Recovery keeps what it can prove; offering the log again restores every key, none twice."""
    root = unpack(case, tmp_path)
    log = GoldenLog.read(root)
    index = open_index(case, root / "index")
    found = index.recover(log.end, probe=probe_of(log.keyed()))
    index.put_many([record for record in log.keyed() if record[3] >= found.end_offset])
    index.check()
    whole = open_index(case, tmp_path / "whole")
    whole.put_many(log.keyed())
    assert with_first_difference_meant(raw_contents(index)) == raw_contents(whole)
