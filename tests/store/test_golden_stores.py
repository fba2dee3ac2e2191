"""Stores made by the official program, opened by ours: the same answers, or a reason that has a name."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from structlog.testing import capture_logs

from aerobee_proto.javahash import java_hash
from aerobee_proto.records import StoredRecord, decode_record, scan_header
from aerobee_store.faults.errors import CorruptStore
from aerobee_store.store import MessageStore
from store.golden import DAMAGED, WHOLE, Clock, expect, put_of, record_bytes, store_of, unpack


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module")
def whole(request: pytest.FixtureRequest) -> Iterator[tuple[str, MessageStore]]:
    """An undamaged case, opened; for all tests that only read it."""
    case: str = request.param
    with TemporaryDirectory() as folder:
        store = store_of(case, unpack(case, Path(folder)), Clock())
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
        record = store.reading.message_at(place)
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
    assert [store.reading.message_at(row["phyOffset"]) for row in blanks] == [None] * len(blanks)


@every_whole_case
def test_every_queue_entry_is_the_same(whole: tuple[str, MessageStore]) -> None:
    case, store = whole
    for queue in expect(case)["consumeQueues"]:
        topic, queue_id = queue["topic"], queue["queueId"]
        assert (store.reading.min_offset(topic, queue_id), store.reading.max_offset(topic, queue_id)) == (
            queue["minOffset"],
            queue["maxOffset"],
        )
        offsets = range(queue["minOffset"], queue["maxOffset"])
        found = [store.reading.queue_entry(topic, queue_id, offset) for offset in offsets]
        assert [list(entry) for entry in found if entry is not None] == queue["entries"]


@every_whole_case
def test_time_leads_to_the_same_offsets(whole: tuple[str, MessageStore]) -> None:
    case, store = whole
    for queue in expect(case)["timeLookups"]:
        topic, queue_id = queue["topic"], queue["queueId"]
        assert store.reading.earliest_time(topic, queue_id) == queue["earliestMessageTime"]
        for timestamp, lower, upper in queue["lookups"]:
            assert store.reading.offset_by_time(topic, queue_id, timestamp, False) == lower
            assert store.reading.offset_by_time(topic, queue_id, timestamp, True) == upper


@every_whole_case
def test_keys_lead_to_the_same_messages(whole: tuple[str, MessageStore]) -> None:
    """Every message that has the key and was stored in the range, as a look at every record finds it.

    The official answers differ where a hash is shared by two keys (it returns both), where a message has
    the key twice (it returns it twice), and within a second of the range's ends (its index knows seconds).
    """
    case, store = whole
    log = [decode_record(store.reading.message_at(place) or b"") for place, _, _ in records_of(case)]
    for row in rows(expect(case)["indexQueries"]):
        found = store.keys.query(row["topic"], row["key"], row["maxNum"], row["begin"], row["end"])
        got = [int.from_bytes(record[28:36], "big") for record in found.body]
        carrying = {r.physical_offset for r in log if has_key(r, row["topic"], row["key"])}
        expected = sorted(
            r.physical_offset
            for r in log
            if r.physical_offset in carrying and row["begin"] <= r.store_timestamp <= row["end"]
        )
        assert got == expected[-min(row["maxNum"], 64) :], row
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
    found = store.reading.get_message(
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
        assert store.reading.message_at(row["phyOffset"]) == record_bytes(row)
        back = store.reading.get_message(
            "g", row["topic"], row["queueId"], row["queueOffset"], 32, 1 << 27, None
        )
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
    changed = {name for name in before if before[name] != after.get(name)}
    assert changed <= CHANGED_BY_EVERY_RUN
    assert after.keys() == before.keys()


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


# --- damaged stores -------------------------------------------------------------------------------------

# Ours refuses, naming the file and the way out; the official program does so too for the first two.
REFUSED = {
    "commitlog-wrong-length": "commitlog/00000000000000131072",
    # Queues with entries and no log at all: a wrong path or a disk that is not mounted, far more likely
    # than the wish to start again. The official program destroys the queues.
    "commitlog-deleted": "accept_loss",
    "commitlog-deleted-normal": "accept_loss",
}

# Records that the official program kept and ours does not, by physical offset.
NOT_KEPT = {
    # The stored physical offset must be the place where the record stands.
    "flip-phyoff": {82841},
    # What a record says of itself, and its entry and the rest of the queue do not.
    "flip-qoff": {82841},
    "flip-topic": {82841},
    # Left over from an earlier life of the file: not the record of this place.
    "stale-record-after-end": {101835},
    "stale-record-after-end-normal": {195990},
    # Its last byte was never written, as of a process that was killed while it wrote.
    "torn-zero-last-byte": {101337},
}

# Records with a flipped bit that nothing in an official record covers: served as they are, as officially.
# Our own records carry a checksum over all bytes.
UNDETECTABLE = {
    "flip-props": {82841},
    "flip-storets": {82841},
    "torn-zero-last-byte": {101337},
}

# The official program refuses; ours builds the queue again from the log.
REBUILT = ["cq-file-short"]
# Of the files of a store that nobody writes to.
CHANGED_BY_EVERY_RUN = {"checkpoint", "config/queueEnds.json"}
OPENED = [case for case in DAMAGED if case not in REFUSED and case not in REBUILT]


class Damaged(NamedTuple):
    """A damaged case, opened without leave to lose anything; what it said meanwhile."""

    case: str
    store: MessageStore
    logs: list[Any]


@pytest.fixture(scope="module")
def damaged(request: pytest.FixtureRequest) -> Iterator[Damaged]:
    """For all tests that only read it."""
    case: str = request.param
    with TemporaryDirectory() as folder:
        store = store_of(case, unpack(case, Path(folder)), Clock())
        with capture_logs() as logs:
            store.open()
        yield Damaged(case, store, logs)
        store.close()


every_damaged_case = pytest.mark.parametrize("damaged", OPENED, indirect=True)


def originals(case: str) -> dict[int, str]:
    """Beginning of the SHA-256 of every record as it was before the damage, by physical offset."""
    candidates = [base for base in WHOLE if base in ("clean", "kill9", "propcrc-kill9")]
    for base in candidates:
        before = {place: digest[:16] for place, _, digest in records_of(base)}
        kept = [(place, digest[:16]) for place, _, digest in records_of(case)]
        same = sum(before.get(place) == digest for place, digest in kept)
        if same and same >= len(kept) - 1:
            return before
    raise AssertionError(f"{case} is a copy of none of {candidates}")


@every_damaged_case
def test_every_record_that_was_kept_officially_is_kept(damaged: Damaged) -> None:
    case, store, _ = damaged
    lost = set()
    for place, size, digest in records_of(case):
        record = store.reading.message_at(place)
        if record is None or len(record) != size or not digest_of(record).startswith(digest):
            lost.add(place)
    assert lost == NOT_KEPT.get(case, set())


def digest_of(record: bytes) -> str:
    return hashlib.sha256(record).hexdigest()


@every_damaged_case
def test_nothing_is_served_that_was_not_stored(damaged: Damaged) -> None:
    case, store, _ = damaged
    before = originals(case)
    served = 0
    for topic, queue_id, record in all_served(store):
        place = int.from_bytes(record[28:36], "big")
        if place not in UNDETECTABLE.get(case, ()):
            assert digest_of(record).startswith(before[place]), (topic, queue_id, place)
        served += 1
    assert served


def all_served(store: MessageStore) -> Iterator[tuple[str, int, bytes]]:
    """Every record that a consumer of every queue gets, reading from the first offset to the last."""
    for topic in store.topics.names():
        for queue_id in store.topics.queue_ids(topic):
            offset = store.reading.min_offset(topic, queue_id)
            while offset < store.reading.max_offset(topic, queue_id):
                found = store.reading.get_message("g", topic, queue_id, offset, 32, 1 << 27, None)
                assert found.next_offset > offset
                offset = found.next_offset
                for record in split_records(b"".join(found.body)):
                    yield topic, queue_id, record


@every_damaged_case
def test_every_message_kept_is_read_once_by_consumers(damaged: Damaged) -> None:
    """Also those that the official program keeps in the log and never shows."""
    case, store, _ = damaged
    doubtful = UNDETECTABLE.get(case, set())
    served = [int.from_bytes(record[28:36], "big") for _, _, record in all_served(store)]
    served = [place for place in served if place not in doubtful]
    assert len(served) == len(set(served))
    kept = {place for place, _, _ in records_of(case)} - NOT_KEPT.get(case, set()) - doubtful
    assert set(served) >= kept


@every_damaged_case
def test_queue_numbers_stay_those_of_the_messages(damaged: Damaged) -> None:
    case, store, _ = damaged
    for topic in store.topics.names():
        for queue_id in store.topics.queue_ids(topic):
            for offset in range(
                store.reading.min_offset(topic, queue_id), store.reading.max_offset(topic, queue_id)
            ):
                entry = store.reading.queue_entry(topic, queue_id, offset)
                assert entry is not None
                record = store.reading.message_at(entry.physical_offset)
                if record is None or entry.physical_offset in UNDETECTABLE.get(case, ()):
                    continue
                header = scan_header(record, 0)
                assert (header.topic, header.queue_id, header.queue_offset) == (topic, queue_id, offset)


@pytest.mark.parametrize("case", OPENED)
def test_recovery_leaves_nothing_to_recover(case: str, tmp_path: Path, clock: Clock) -> None:
    root = unpack(case, tmp_path)
    first = store_of(case, root, clock)
    found = first.open()
    first.close()
    before = contents(root)
    second = store_of(case, root, clock)
    report = second.open()
    assert (report.walked_records, report.cut_entries, report.end_offset) == (0, 0, found.end_offset)
    if not found.damage and case not in UNDETECTABLE:
        second.check()
    second.close()
    assert {n for n, raw in contents(root).items() if raw != before.get(n)} <= CHANGED_BY_EVERY_RUN


@every_damaged_case
def test_every_loss_is_named_in_the_log(damaged: Damaged) -> None:
    """A record that is there no more lies in a stretch of damage, or where the log was cut and said so."""
    case, store, logs = damaged
    named = [range(e["physical_offset"], e["end_offset"]) for e in logs if e["event"] == "store.damage_found"]
    cuts = [e["physical_offset"] for e in logs if e["event"] == "store.torn_end_cut"]
    dropped = [e for e in logs if e["event"] == "store.entries_dropped"]
    first = store.min_physical_offset
    for place, digest in originals(case).items():
        record = store.reading.message_at(place)
        if place < first or (record is not None and digest_of(record).startswith(digest)):
            continue
        if place in UNDETECTABLE.get(case, ()):
            continue
        assert (
            any(place in stretch for stretch in named)
            or any(place >= cut for cut in cuts)
            or (dropped and place >= store.end_offset)
        ), f"the record at {place} went without a word"


@pytest.mark.parametrize("case", REBUILT)
def test_a_queue_that_the_official_program_stumbles_over_is_built_again(
    case: str, tmp_path: Path, clock: Clock
) -> None:
    store = store_of(case, unpack(case, tmp_path), clock)
    with capture_logs() as logs:
        store.open()
    (logged,) = [entry for entry in logs if entry["event"] == "store.queue_rebuilt"]
    assert (logged["topic"], logged["queue_id"]) == ("%RETRY%golden_group", 0)
    store.check()
    served = [
        (topic, queue_id, scan_header(record, 0).queue_offset)
        for topic, queue_id, record in all_served(store)
    ]
    assert served == [
        (topic, queue_id, number)
        for topic in store.topics.names()
        for queue_id in store.topics.queue_ids(topic)
        for number in range(
            store.reading.min_offset(topic, queue_id), store.reading.max_offset(topic, queue_id)
        )
    ]
    assert store.reading.max_offset("%RETRY%golden_group", 0) == 46
    store.close()


@pytest.mark.parametrize("case", REFUSED)
def test_what_an_operator_must_decide_is_refused(case: str, tmp_path: Path, clock: Clock) -> None:
    root = unpack(case, tmp_path)
    before = contents(root)
    store = store_of(case, root, clock)
    with pytest.raises(CorruptStore, match=REFUSED[case]):
        store.open()
    after = contents(root)
    assert {n for n in before if before[n] != after.get(n)} == set()
    # The lock is free again.
    with pytest.raises(CorruptStore, match=REFUSED[case]):
        store_of(case, root, clock).open()


@pytest.mark.parametrize("case", ["commitlog-deleted", "commitlog-deleted-normal"])
def test_loss_that_is_accepted_by_name_lets_the_store_start(case: str, tmp_path: Path, clock: Clock) -> None:
    store = store_of(case, unpack(case, tmp_path), clock, accept_loss=True)
    report = store.open()
    assert report.lost
    assert (store.end_offset, store.topics.names()) == (0, [])
    store.close()


@pytest.mark.parametrize("case", ["flip-body", "zero-page", "commitlog-mid-missing"])
def test_damage_in_the_middle_is_named_and_copied_aside(case: str, tmp_path: Path, clock: Clock) -> None:
    root = unpack(case, tmp_path)
    store = store_of(case, root, clock)
    with capture_logs() as logs:
        report = store.open()
    (damage,) = report.damage
    named = [event for event in logs if event["event"] == "store.damage_found"]
    assert [(e["physical_offset"], e["end_offset"]) for e in named] == [(damage.begin, damage.end)]
    copies = {p.name: p.read_bytes() for p in (root / "quarantine").glob("*")}
    if case == "commitlog-mid-missing":
        assert copies == {}
    else:
        at = damage.begin % store_config_size(case)
        raw = Path(damage.path).read_bytes()[at : at + damage.end - damage.begin]
        assert copies == {f"{damage.begin:020d}-{damage.end:020d}": raw}
    store.close()


def store_config_size(case: str) -> int:
    size: int = expect(case)["config"]["mappedFileSizeCommitLog"]
    return size
