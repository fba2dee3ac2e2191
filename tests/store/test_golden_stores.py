"""Stores made by the official program, opened by ours: the same answers, or a reason that has a name."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee_proto.javahash import java_hash
from aerobee_proto.records import StoredRecord, decode_record
from aerobee_store.store import MessageStore
from store.golden import WHOLE, Clock, expect, put_of, record_bytes, store_of, unpack


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def whole(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[tuple[str, MessageStore]]:
    """An undamaged case, opened."""
    case: str = request.param
    store = store_of(case, unpack(case, tmp_path), clock)
    report = store.open()
    assert not report.damage
    assert not report.cut_entries
    yield case, store
    store.close()


every_whole_case = pytest.mark.parametrize("whole", WHOLE, indirect=True)


def rows(table: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for row in table["rows"]:
        yield dict(zip(table["columns"], row, strict=True))


def tag_filter(expression: str | None) -> frozenset[int] | None:
    """What a broker makes of a subscription expression."""
    if expression is None or expression.strip() in ("", "*"):
        return None
    return frozenset(java_hash(tag.strip()) for tag in expression.split("||") if tag.strip())


# --- whole stores ---------------------------------------------------------------------------------------


@every_whole_case
def test_every_invariant_holds(whole: tuple[str, MessageStore]) -> None:
    whole[1].check()


@every_whole_case
def test_the_log_has_its_limits(whole: tuple[str, MessageStore]) -> None:
    case, store = whole
    load = expect(case)["load"]
    assert store.end_offset == load["maxPhyOffset"]
    # -1 is the official way to say that there is no file.
    assert store.min_physical_offset == max(load["minPhyOffset"], 0)


@every_whole_case
def test_every_record_is_the_same(whole: tuple[str, MessageStore]) -> None:
    case, store = whole
    for place, size, digest in records_of(case):
        record = store.message_at(place)
        assert record is not None
        assert len(record) == size
        assert hashlib.sha256(record).hexdigest().startswith(digest)


def records_of(case: str) -> Iterator[tuple[int, int, str]]:
    """Physical offset, size and beginning of the SHA-256 of every record that the official store read."""
    for row in expect(case)["records"]:
        if isinstance(row, list):
            yield row[0], row[1], row[2]
        elif "rawSha256" in row:
            yield row["phyOffset"], row["size"], row["rawSha256"]


@every_whole_case
def test_the_end_of_a_file_is_no_message(whole: tuple[str, MessageStore]) -> None:
    case, store = whole
    blanks = [row for row in expect(case)["records"] if isinstance(row, dict) and "blank" in row]
    assert [store.message_at(row["phyOffset"]) for row in blanks] == [None] * len(blanks)


@every_whole_case
def test_every_queue_entry_is_the_same(whole: tuple[str, MessageStore]) -> None:
    case, store = whole
    for queue in expect(case)["consumeQueues"]:
        topic, queue_id = queue["topic"], queue["queueId"]
        assert (store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)) == (
            queue["minOffset"],
            queue["maxOffset"],
        )
        offsets = range(queue["minOffset"], queue["maxOffset"])
        found = [store.queue_entry(topic, queue_id, offset) for offset in offsets]
        assert [list(entry) for entry in found if entry is not None] == queue["entries"]


@every_whole_case
def test_time_leads_to_the_same_offsets(whole: tuple[str, MessageStore]) -> None:
    case, store = whole
    for queue in expect(case)["timeLookups"]:
        topic, queue_id = queue["topic"], queue["queueId"]
        assert store.earliest_time(topic, queue_id) == queue["earliestMessageTime"]
        for timestamp, lower, upper in queue["lookups"]:
            assert store.offset_by_time(topic, queue_id, timestamp, False) == lower
            assert store.offset_by_time(topic, queue_id, timestamp, True) == upper


@every_whole_case
def test_keys_lead_to_the_same_messages(whole: tuple[str, MessageStore]) -> None:
    """Every message that has the key and was stored in the range, as a look at every record finds it.

    The official answers differ where a hash is shared by two keys (it returns both), where a message has
    the key twice (it returns it twice), and within a second of the range's ends (its index knows seconds).
    """
    case, store = whole
    log = [decode_record(store.message_at(place) or b"") for place, _, _ in records_of(case)]
    for row in rows(expect(case)["indexQueries"]):
        found = store.query(row["topic"], row["key"], row["maxNum"], row["begin"], row["end"])
        got = [int.from_bytes(record[28:36], "big") for record in found.body]
        carrying = {r.physical_offset for r in log if has_key(r, row["topic"], row["key"])}
        wanted = sorted(
            r.physical_offset
            for r in log
            if r.physical_offset in carrying and row["begin"] <= r.store_timestamp <= row["end"]
        )
        assert got == wanted[-min(row["maxNum"], 64) :], row
        official = {place for place, _ in row["messages"]} & carrying
        assert official - set(got) <= near_the_ends(log, row), row


def has_key(record: StoredRecord, topic: str, key: str) -> bool:
    rolled_back = record.sys_flag & 0xC == 0xC
    return not rolled_back and record.topic == topic and key in (record.unique_key, *record.keys)


def near_the_ends(log: list[StoredRecord], row: dict[str, Any]) -> set[int]:
    """Records outside of the range of a query, but by less than the index's resolution."""
    begin, end = row["begin"], row["end"]
    return {
        r.physical_offset
        for r in log
        if begin - 1000 < r.store_timestamp < begin or end < r.store_timestamp < end + 1000
    }


@every_whole_case
def test_reads_give_the_same(whole: tuple[str, MessageStore]) -> None:
    case, store = whole
    for row in rows(expect(case)["getMessage"]):
        assert read_of(store, row) == {name: row[name] for name in READ_COLUMNS}, row


READ_COLUMNS = (
    "status",
    "nextBeginOffset",
    "minOffset",
    "maxOffset",
    "messageCount",
    "bufferTotalSize",
    "suggestPullingFromSlave",
    "queueOffsets",
    "phyOffsets",
)


def read_of(store: MessageStore, row: dict[str, Any]) -> dict[str, Any]:
    """The columns of a getMessage row as our store answers it."""
    found = store.get_message(
        "group",
        row["topic"],
        row["queueId"],
        row["offset"],
        row["maxNums"],
        row["maxTotalSize"],
        tag_filter(row["filter"]),
    )
    body = b"".join(found.body)
    records = list(split_records(body))
    return {
        "status": found.status.name,
        "nextBeginOffset": found.next_offset,
        "minOffset": found.min_offset,
        "maxOffset": found.max_offset,
        "messageCount": found.count,
        "bufferTotalSize": found.size,
        "suggestPullingFromSlave": found.suggest_slave,
        "queueOffsets": [int.from_bytes(r[20:28], "big") for r in records],
        "phyOffsets": [int.from_bytes(r[28:36], "big") for r in records],
    }


def split_records(body: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        yield body[at : at + size]
        at += size


# The official program cut its running store back before it appended; ours has nothing that does so.
APPENDING = [case for case in WHOLE if case != "truncate" and expect(case)["appendAfter"]]


@pytest.mark.parametrize("case", APPENDING)
def test_new_messages_get_the_same_bytes_and_places(case: str, tmp_path: Path, clock: Clock) -> None:
    root = unpack(case, tmp_path)
    store = store_of(case, root, clock)
    store.open()
    for row in expect(case)["appendAfter"]:
        clock.now_ms = row["storeTimestamp"]
        (appended,) = store.append([put_of(row)])
        assert (appended.status.name, appended.physical_offset, appended.queue_offset, appended.size) == (
            row["status"],
            row["phyOffset"],
            row["queueOffset"],
            row["size"],
        )
        store.flush_disk()
        store.confirm(store.flushed_offset)
        assert store.message_at(row["phyOffset"]) == record_bytes(row)
        back = store.get_message("g", row["topic"], row["queueId"], row["queueOffset"], 32, 1 << 27, None)
        assert b"".join(back.body) == record_bytes(row)
        assert back.next_offset == row["readBack"]["nextBeginOffset"]
    store.check()
    store.close()
    assert not (root / "abort").exists()
    again = store_of(case, root, clock)
    assert again.open().walked_records == 0
    again.check()
    again.close()


@pytest.mark.parametrize("case", WHOLE)
def test_a_second_start_finds_nothing_to_do(case: str, tmp_path: Path, clock: Clock) -> None:
    root = unpack(case, tmp_path)
    first = store_of(case, root, clock)
    first.open()
    first.close()
    before = contents(root)
    second = store_of(case, root, clock)
    report = second.open()
    assert (report.walked_records, report.dispatched_records, report.aborted) == (0, 0, False)
    second.close()
    after = contents(root)
    assert {name for name in before if before[name] != after.get(name)} <= {"checkpoint"}
    assert after.keys() == before.keys()


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}
