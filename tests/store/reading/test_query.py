"""Finding by key: every candidate is judged by its record."""

import pytest

from aerobee_proto.records import decode_record
from aerobee_proto.steps import finished
from aerobee_store.disk.page_cache import NotInMemory
from aerobee_store.reading.query import QueryResult
from aerobee_store.store import MessageStore
from store.memory_io import MemoryFile, MemoryIo
from store.workload import Clock, message, open_store

EVER = 1 << 62
# Two keys with the same Java hash, also behind any topic.
TWIN, OTHER_TWIN = "Aa", "BB"


def stored(*keys: str | None, io: MemoryIo | None = None) -> MessageStore:
    store = open_store(io or MemoryIo())
    for number, key in enumerate(keys):
        store.append([message(keys=key, unique_key=f"U{number}")])
    store.flush_disk()
    store.confirm(store.flushed_offset)
    return store


def found(result: QueryResult) -> list[str | None]:
    return [decode_record(bytes(record)).unique_key for record in result.body]


def test_messages_come_oldest_first_and_the_newest_count() -> None:
    store = stored("a", "b", "a b", None, "a")
    assert found(store.keys.query("Orders", "a", 10, 0, EVER)) == ["U0", "U2", "U4"]
    assert found(store.keys.query("Orders", "a", 2, 0, EVER)) == ["U2", "U4"]
    assert found(store.keys.query("Orders", "b", 10, 0, EVER)) == ["U1", "U2"]
    assert found(store.keys.query("Orders", "U3", 10, 0, EVER)) == ["U3"]


@pytest.mark.parametrize("max_num", [0, -1])
def test_asking_for_none_gives_none(max_num: int) -> None:
    assert found(stored("a").keys.query("Orders", "a", max_num, 0, EVER)) == []


def test_a_key_with_the_same_hash_is_not_an_answer() -> None:
    """It also must not push the true answer out of a small count, as in the official store."""
    store = stored(TWIN, OTHER_TWIN, OTHER_TWIN)
    assert found(store.keys.query("Orders", TWIN, 1, 0, EVER)) == ["U0"]
    assert found(store.keys.query("Orders", OTHER_TWIN, 9, 0, EVER)) == ["U1", "U2"]


def test_many_messages_with_the_same_hash_do_not_hide_one() -> None:
    clock = Clock()
    store = open_store(MemoryIo(), clock)
    store.append([message(keys=TWIN, unique_key="U")])
    for _ in range(70):
        clock.now_ms += 100
        store.append([message(keys=OTHER_TWIN)])
    store.confirm(store.end_offset)
    assert found(store.keys.query("Orders", TWIN, 1, 0, EVER)) == ["U"]


def test_a_message_that_has_its_key_twice_is_one_answer() -> None:
    assert found(stored("a a  a").keys.query("Orders", "a", 9, 0, EVER)) == ["U0"]


def test_part_of_a_key_and_other_topics_do_not_match() -> None:
    store = stored("abc")
    assert found(store.keys.query("Orders", "ab", 9, 0, EVER)) == []
    assert found(store.keys.query("Bills", "abc", 9, 0, EVER)) == []


def test_the_range_of_time_is_exact_to_the_millisecond() -> None:
    clock = Clock()
    store = open_store(MemoryIo(), clock)
    stamps = []
    for number in range(8):
        clock.now_ms += 333
        stamps.append(store.append([message(keys="a", unique_key=f"U{number}")])[0].store_timestamp)
    store.confirm(store.end_offset)
    for begin in range(8):
        for end in range(begin, 8):
            answer = store.keys.query("Orders", "a", 64, stamps[begin], stamps[end])
            assert found(answer) == [f"U{n}" for n in range(begin, end + 1)]
    assert found(store.keys.query("Orders", "a", 64, stamps[0] + 1, stamps[1] - 1)) == []


def test_the_answer_tells_how_far_the_index_reaches() -> None:
    store = stored("a", "b")
    (newest,) = store.keys.query("Orders", "b", 1, 0, EVER).body
    record = decode_record(bytes(newest))
    answer = store.keys.query("Orders", "none", 1, 0, EVER)
    assert (answer.last_update_timestamp, answer.last_update_physical_offset) == (
        record.store_timestamp,
        record.physical_offset,
    )


def test_an_empty_index_has_no_reach() -> None:
    answer = open_store(MemoryIo()).keys.query("Orders", "a", 9, 0, EVER)
    assert (answer.body, answer.last_update_timestamp, answer.last_update_physical_offset) == ([], 0, 0)


def test_an_index_that_is_not_in_memory_is_brought_there_before_keys_go_into_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each key goes to a page of its own: a round of them read page after page from the disk, and all others waited."""
    store = stored("a")
    assert found(store.keys.query("Orders", "a", 10, 0, EVER)) == ["U0"]
    store.residency.begin(lambda stretches: None)
    asked: list[tuple[int, int]] = []
    is_there = False

    def in_memory(file: MemoryFile, position: int, length: int) -> bool:
        if file.path.parent.name == "index":
            asked.append((position, length))
        return is_there or file.path.parent.name != "index"

    monkeypatch.setattr(MemoryFile, "in_memory", in_memory)
    assert store.keys.missing() is None, "nothing waits to be indexed"
    store.append([message(keys="b", unique_key="U1")])
    store.flush_disk()
    store.confirm(store.flushed_offset)
    missing = store.keys.missing()
    assert missing is not None
    (slots, entry) = missing.needed
    assert (slots.path.parent.name, slots.position) == ("index", 0)
    assert entry.position <= slots.length + 3 * 20 <= entry.position + 4096
    steps = store.keys.query_steps("Orders", "b", 10, 0, EVER)
    first = next(steps)
    assert isinstance(first, NotInMemory)
    assert store.keys.backlog == 1, "before anything is indexed"
    is_there = True
    assert store.keys.missing() is None
    asked.clear()
    assert store.keys.missing() is None
    assert asked == [], "the answer is believed for a moment"
    store.residency.forget()
    assert store.keys.missing() is None
    assert asked
    assert found(finished(steps)) == ["U1"]


def test_what_a_query_reads_is_asked_for_once_in_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two or three questions to the system for each query took as long as all the rest of it."""
    store = stored("a", "b")
    store.keys.query("Orders", "a", 10, 0, EVER)
    store.residency.begin(lambda stretches: None)
    asked: list[str] = []
    gone: set[str] = set()

    def in_memory(file: MemoryFile, position: int, length: int) -> bool:
        asked.append(file.path.parent.name)
        return file.path.parent.name not in gone

    monkeypatch.setattr(MemoryFile, "in_memory", in_memory)

    def query(key: str) -> QueryResult | NotInMemory | None:
        try:
            return next(store.keys.query_steps("Orders", key, 10, 0, EVER))
        except StopIteration as end:
            result: QueryResult = end.value
            return result

    first = query("a")
    assert isinstance(first, QueryResult)
    assert found(first) == ["U0"]
    assert {"index", "commitlog"} <= {*asked}
    asked.clear()
    second = query("b")
    assert isinstance(second, QueryResult)
    assert found(second) == ["U1"]
    assert "commitlog" not in asked
    assert asked.count("index") <= 1  # its slot may be in another block than that of the first
    for folder in ("index", "commitlog"):
        gone = {folder}
        store.residency.forget()
        missing = query("a")
        assert isinstance(missing, NotInMemory), "and it is asked for again"
        assert [one.path.parent.name for one in missing.needed] == [folder]
