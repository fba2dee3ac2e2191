"""The native engine proves records as Python does: it says yes to what Python finds sound, and to the usual of that."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.native.engine import SendEngine
from aerobee_proto.checksum import seal_record
from aerobee_proto.records import decode_records, encode_record
from aerobee_store.disk.io import DiskIo
from aerobee_store.records.record_scan import ScannedRecord, scan_record
from aerobee_store.store import MessageStore
from engines import made_engine, need_engine
from store.inside import log_of
from store.workload import message, open_store

PLACE, BEFORE = 123_456_789, 40
V4, V6 = ("10.1.2.3", 4567), ("2001:db8::7", 4567)
LONG = "t" * 200
RUN_COUNT = 20_000


@pytest.fixture
def engine() -> Any:
    need_engine("native")
    return made_engine()


def record(topic: str = "T", *, place: int = PLACE, **changes: Any) -> bytes:
    usual: dict[str, Any] = {
        "queue_id": 3,
        "queue_offset": 17,
        "physical_offset": place,
        "born_timestamp": 1_700_000_000_000,
        "born_host": V4,
        "store_timestamp": 1_700_000_000_001,
        "store_host": V4,
        "body": b"body" * 20,
        "properties": "TAGS\x01a\x02KEYS\x01k\x02",
        "checksum": True,
    }
    return encode_record(topic=topic, **usual | changes)


FORMS: list[dict[str, Any]] = [
    {"born_host": born, "store_host": stored, "checksum": checksum, "property_crc": crc, "body": body}
    for born in (V4, V6)
    for stored in (V4, V6)
    for checksum in (True, False)
    for crc in (True, False)
    for body in (b"", b"x" * 300)
]


def shown(raw: bytes) -> tuple[memoryview, tuple[int, int]]:
    """A record in the midst of a file."""
    return memoryview(bytes(BEFORE) + raw + b"behind" * 20), (BEFORE, len(raw))


def is_sound_in_python(raw: bytes, topic: str, *, is_sealed: bool) -> bool:
    view, (at, size) = shown(raw)
    found = scan_record(view, at, PLACE, sealed=is_sealed)
    return isinstance(found, ScannedRecord) and (found.size, found.topic) == (size, topic)


@pytest.mark.parametrize("topic", ["T", "t" * 127, LONG])
def test_sound_records_of_all_forms_are_known(engine: Any, topic: str) -> None:
    for form in FORMS:
        raw = record(topic, **form)
        view, place = shown(raw)
        for is_sealed in (False, True):
            expected = is_sound_in_python(raw, topic, is_sealed=is_sealed)
            assert engine.is_sound(view, place, PLACE, topic.encode(), is_sealed) is expected, form
            assert expected or not form["checksum"]
        assert not engine.is_sound(view, place, PLACE + 1, topic.encode(), False)
        assert not engine.is_sound(view, place, PLACE, b"U", False)
        assert not engine.is_sound(view, (BEFORE, len(raw) - 1), PLACE, topic.encode(), False)
        assert not engine.is_sound(view, (BEFORE - 1, len(raw)), PLACE, topic.encode(), False)


def test_what_was_copied_from_another_place_is_left_to_python(engine: Any) -> None:
    """Python takes it where no checksum has to be there; nobody takes it where one has."""
    stale = record(properties=record(place=7)[-34:] + b"A\x01b\x02", checksum=False)
    inside = record(properties=b"__CRC32C\x01nothing\x02A\x01b\x02", checksum=False)
    for raw in (stale, inside):
        view, place = shown(raw)
        assert is_sound_in_python(raw, "T", is_sealed=False)
        assert not engine.is_sound(view, place, PLACE, b"T", False)
        assert not engine.is_sound(view, place, PLACE, b"T", True)


def changed(rng: random.Random, base: Sequence[bytes]) -> bytes:
    """A record with some bytes changed, sealed anew at times, so that more than its checksum is asked for."""
    raw = bytearray(rng.choice(base))
    for _ in range(rng.choice((1, 1, 2, 4))):
        raw[rng.randrange(len(raw))] = rng.choice((rng.getrandbits(8), 0, 0xFF, 0x80))
    if rng.randrange(2) and raw[-34:-25] == b"__CRC32C\x01":
        seal_record(raw)
    return bytes(raw)


def test_changed_records_are_none_that_python_does_not_know(engine: Any) -> None:
    rng, base = random.Random(5), [record(**form) for form in FORMS] + [record(LONG)]
    yes = 0
    for _ in range(RUN_COUNT):
        raw = changed(rng, base)
        view, place = shown(raw)
        is_sealed = bool(rng.randrange(2))
        if engine.is_sound(view, place, PLACE, b"T", is_sealed):
            assert is_sound_in_python(raw, "T", is_sealed=is_sealed)
            yes += 1
    assert yes > RUN_COUNT / 100


# --- in a store ---------------------------------------------------------------------------------------------------


def old_store(tmp_path: Path) -> MessageStore:
    """Twenty messages of an earlier run."""
    shape: dict[str, Any] = {
        "root": tmp_path,
        "consume_queue_file_size": 20_000,
        "commit_log_file_size": 1 << 20,
    }
    store = open_store(DiskIo(), **shape)
    store.append([message(body=b"%d" % number * 50) for number in range(20)])
    store.flush_disk()
    store.confirm(store.flushed_offset)
    store.close()
    return open_store(DiskIo(), **shape)


def read(store: MessageStore) -> list[int]:
    found = store.reading.get_message("group", "Orders", 0, 0, 32, 1 << 20, None)
    return [record.queue_offset for record in decode_records(b"".join(found.body), check_crc=False)]


def test_old_records_are_proven_natively_and_damage_is_found_in_python(engine: Any, tmp_path: Path) -> None:
    store = old_store(tmp_path)
    log = log_of(store)
    proven = log.prove
    in_python: list[int] = []

    def prove(physical_offset: int, size: int) -> ScannedRecord | None:
        in_python.append(physical_offset)
        return proven(physical_offset, size)

    log.prove = prove  # type: ignore[method-assign]
    assert read(store) == list(range(20))
    assert len(in_python) == 20
    in_python.clear()
    store.reading.use_prover(SendEngine(engine))
    assert read(store) == list(range(20))
    assert in_python == []
    file = log.mapped.files[0]
    at = file.view.tobytes().index(b"7" * 50)
    file.data.write(at, b"8")
    assert read(store) == [number for number in range(20) if number != 7]
    assert len(in_python) == 1
    assert log.is_damaged(in_python[0])
    store.close()


def test_old_records_of_one_read_are_proven_together(engine: Any, tmp_path: Path) -> None:
    """Where what is in memory is known: one by one they took most of the time of whoever reads from the disk."""
    store = old_store(tmp_path)
    prover = SendEngine(engine)
    asked: list[str] = []

    class Counted:
        def is_sound(self, *what: Any) -> bool:
            asked.append("one")
            return prover.is_sound(*what)

        def are_sound(self, *what: Any) -> bool:
            asked.append("all")
            return prover.are_sound(*what)

    def read(offset: int = 0, count: int = 32) -> list[int]:
        asked.clear()
        found = store.asking.get_message("group", "Orders", 0, offset, count, 1 << 20, None)
        return [record.queue_offset for record in decode_records(b"".join(found.body), check_crc=False)]

    store.reading.use_prover(Counted())
    assert read() == list(range(20))
    assert asked == ["all"]
    assert read(3, 5) == [3, 4, 5, 6, 7]
    assert asked == ["all"]
    log = log_of(store)
    file = log.mapped.files[0]
    at = file.view.tobytes().index(b"7" * 50)
    file.data.write(at, b"8")
    assert read(3, 4) == [3, 4, 5, 6]
    assert asked == ["all"], "what is not asked for is not proven"
    assert read() == [number for number in range(20) if number != 7]
    assert asked == ["all", *["one"] * 20]
    assert len(log.damaged) == 1
    assert read(8) == list(range(8, 20))
    assert asked == ["one"] * 12, "with damage about, each is looked at"
    store.close()


def test_a_prover_with_a_fault_is_asked_no_more(tmp_path: Path) -> None:
    class Faulty:
        asked = 0

        def is_sound(self, *_: object) -> bool:
            self.asked += 1
            raise RuntimeError("a fault")

        are_sound = is_sound

    store, faulty = old_store(tmp_path), Faulty()
    engine = SendEngine(faulty)  # type: ignore[arg-type]  # as far as it is used
    store.reading.use_prover(engine)
    assert read(store) == list(range(20))
    assert (faulty.asked, engine.kind) == (1, "python")
    store.close()
