"""One bit of a record's topic, queue id or number is wrong, and no checksum covers them, as in RocketMQ's stores."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from aerobee_proto.records import decode_records, scan_header
from aerobee_store.disk.io import DiskIo
from aerobee_store.reading.get_message import Selector
from aerobee_store.store import MessageStore
from store.workload import Clock, config, message, open_store

COUNT: Final = 40  # messages, to two queues of two topics in turn
VICTIM: Final = 20  # of "Orders", queue 0, number 5


def message_of(number: int) -> tuple[str, int]:
    return ("Orders", "Bills")[number % 2], number // 2 % 2


def flip_topic(header: Any, record: bytearray) -> None:
    """A topic that is not there: "Orders" becomes "Nrders"."""
    at = record.index(b"\x06Orders") + 1
    record[at] ^= 1


def flip_topic_to_another(header: Any, record: bytearray) -> None:
    at = record.index(b"\x05Bills") + 1
    record[at : at + 5] = b"Tills"


def flip_queue(header: Any, record: bytearray) -> None:
    record[15] ^= 1


def flip_new_queue(header: Any, record: bytearray) -> None:
    record[15] ^= 4


def flip_number_up(header: Any, record: bytearray) -> None:
    record[27] ^= 8


def flip_number_down(header: Any, record: bytearray) -> None:
    record[27] ^= 1


FLIPS: Final = {
    "topic": flip_topic,
    "queue": flip_queue,
    "new queue": flip_new_queue,
    "number up": flip_number_up,
    "number down": flip_number_down,
}


def flipped(
    root: Path, flip: Callable[[Any, bytearray], None], *, crashed: bool, number: int = VICTIM
) -> int:
    """A store as RocketMQ leaves it, without checksums of whole records, and one record that is not what it was; its
    place. `crashed`: the next start has to walk over it."""
    store = open_store(DiskIo(), root=root, record_checksum=False)
    places = []
    for one in range(COUNT):
        topic, queue_id = message_of(one)
        (stored,) = store.append([message(topic, queue_id, b"%d" % one, unique_key=f"u{one}")])
        places.append((stored.physical_offset, stored.size))
    store.flush_disk()
    store.confirm(store.flushed_offset)
    store.keys.build(store.keys.backlog)
    store.close()
    place, size = places[number]
    path = root / "commitlog" / f"{0:020d}"
    content = bytearray(path.read_bytes())
    record = content[place : place + size]
    flip(scan_header(record, 0), record)
    content[place : place + size] = record
    path.write_bytes(content)
    if crashed:
        (root / "checkpoint").unlink()
        (root / "abort").write_bytes(b"1")
    return place


def served(store: MessageStore, *, selector: Selector | None = None) -> Iterator[tuple[str, int, bytes]]:
    for topic in store.topics.names():
        for queue_id in store.topics.queue_ids(topic):
            offset = store.reading.min_offset(topic, queue_id)
            while offset < store.reading.max_offset(topic, queue_id):
                found = store.reading.get_message("g", topic, queue_id, offset, 32, 1 << 20, None, selector)
                for record in decode_records(b"".join(found.body)):
                    assert (record.topic, record.queue_id) == (topic, queue_id)
                    assert offset <= record.queue_offset < found.next_offset
                    yield topic, queue_id, bytes(record.body)
                offset = found.next_offset


def expected(number: int = VICTIM) -> set[tuple[str, int, bytes]]:
    return {(*message_of(one), b"%d" % one) for one in range(COUNT) if one != number}


@pytest.mark.parametrize("flip", FLIPS.values(), ids=FLIPS)
@pytest.mark.parametrize("crashed", [False, True], ids=["proven when read", "walked over"])
@pytest.mark.parametrize("selected", [False, True], ids=["plain", "selected"])
def test_a_record_that_names_another_queue_is_damage_and_not_served(
    tmp_path: Path, flip: Callable[[Any, bytearray], None], crashed: bool, selected: bool
) -> None:
    """The entry of the right queue led to it, and it was served there, with the wrong name in it; after a crash also
    where it said that it was from."""
    place = flipped(tmp_path, flip, crashed=crashed)
    selector = Selector(lambda _: True, 100) if selected else None
    with capture_logs() as logs:
        store = open_store(DiskIo(), root=tmp_path, record_checksum=False)
        assert set(served(store, selector=selector)) == expected()
        assert set(served(store, selector=selector)) == expected()
    logged = [entry for entry in logs if entry["log_level"] == "error"]
    assert [(entry["event"], entry["physical_offset"]) for entry in logged] == [("store.damage_found", place)]
    assert "it says that it is" in logged[0]["reason"]
    assert store.reading.max_offset("Orders", 0) == COUNT // 4
    assert store.topics.names() == ["Bills", "Orders"]
    # What comes next gets the number that it should.
    (after,) = store.append([message("Orders", 0, b"after")])
    assert after.queue_offset == COUNT // 4
    store.close()


@pytest.mark.parametrize("flip", FLIPS.values(), ids=FLIPS)
def test_what_a_walk_found_stays_known(tmp_path: Path, flip: Callable[[Any, bytearray], None]) -> None:
    place = flipped(tmp_path, flip, crashed=True)
    open_store(DiskIo(), root=tmp_path, record_checksum=False).close()
    assert [p.name[:20] for p in (tmp_path / "quarantine").iterdir()] == [f"{place:020d}"]
    store = open_store(DiskIo(), root=tmp_path, record_checksum=False)
    assert set(served(store)) == expected()
    assert store.reading.message_at(place) is None
    store.check()
    store.close()


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("flip", ["topic", "number up", "number down"])
def test_a_key_does_not_find_it_either(tmp_path: Path, flip: str, crashed: bool) -> None:
    flipped(tmp_path, FLIPS[flip], crashed=crashed)
    store = open_store(DiskIo(), root=tmp_path, record_checksum=False)
    for topic in ("Orders", "Nrders"):
        assert store.keys.query(topic, f"u{VICTIM}", 10, 0, 1 << 60).body == []
    assert len(store.keys.query("Orders", f"u{VICTIM + 4}", 10, 0, 1 << 60).body) == 1
    store.close()


@pytest.mark.parametrize("flip", FLIPS.values(), ids=FLIPS)
def test_the_scrub_finds_it(tmp_path: Path, flip: Callable[[Any, bytearray], None]) -> None:
    place = flipped(tmp_path, flip, crashed=False)
    queues = {p: p.read_bytes() for p in (tmp_path / "consumequeue").rglob("0*0") if p.is_file()}
    store = open_store(DiskIo(), root=tmp_path, record_checksum=False)
    with capture_logs() as logs:
        while not store.scrubbing.step().is_round_done:
            pass
    errors = [entry for entry in logs if entry["log_level"] == "error"]
    assert [(entry["event"], entry["physical_offset"]) for entry in errors] == [("store.damage_found", place)]
    assert not [entry for entry in logs if entry["log_level"] == "warning"]
    assert set(served(store)) == expected()
    assert {p: p.read_bytes() for p in queues} == queues
    store.close()


def test_an_entry_that_leads_to_another_queues_message_is_the_wrong_one(tmp_path: Path) -> None:
    """As what comes back of a queue file after a crash: the record is right, its own queue says so."""
    flipped(tmp_path, lambda header, record: None, crashed=False)
    path = tmp_path / "consumequeue" / "Orders" / "0" / f"{0:020d}"
    other = tmp_path / "consumequeue" / "Bills" / "0" / f"{0:020d}"
    content, entries = bytearray(path.read_bytes()), other.read_bytes()
    content[5 * 20 : 6 * 20] = entries[5 * 20 : 6 * 20]
    path.write_bytes(content)
    with capture_logs() as logs:
        store = open_store(DiskIo(), root=tmp_path, record_checksum=False)
        for _ in range(2):
            assert set(served(store)) == expected()
    logged = [entry for entry in logs if entry["log_level"] in ("warning", "error")]
    assert [(e["event"], e["topic"], e["queue_id"], e["logical_offset"]) for e in logged] == [
        ("store.entry_wrong", "Orders", 0, 5)
    ]
    assert "it leads to a message of queue 0 of Bills" in logged[0]["reason"]
    store.close()


def test_a_queue_that_is_shifted_as_a_whole_is_served(tmp_path: Path) -> None:
    """RocketMQ writes on behind a gap; consumers rely on the numbers."""
    flipped(tmp_path, lambda header, record: None, crashed=False)
    folder = tmp_path / "consumequeue" / "Orders" / "0"
    first = folder / f"{0:020d}"
    content = first.read_bytes()
    blank = (0).to_bytes(8, "big") + (0x7FFFFFFF).to_bytes(4, "big") + bytes(8)
    shifted = blank * 2 + content[:200]
    first.write_bytes(shifted.ljust(320, b"\0"))
    for crashed in (False, True):
        copy = tmp_path.with_name(f"{tmp_path.name}-{crashed}")
        shutil.copytree(tmp_path, copy)
        if crashed:
            (copy / "checkpoint").unlink()
            (copy / "abort").write_bytes(b"1")
        with capture_logs() as logs:
            store = MessageStore(config(copy, record_checksum=False), io=DiskIo(), clock=Clock())
            store.open()
            found = store.reading.get_message("g", "Orders", 0, 2, 32, 1 << 20, None)
            assert found.count == COUNT // 4
        assert not [entry for entry in logs if entry["log_level"] == "error"]
        store.close()
