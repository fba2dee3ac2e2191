"""Records made by the native engine are those that Python makes; what is broken is left to Python, which names it."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee_proto import records
from aerobee_proto.errors import RecordError
from aerobee_proto.native_records import INTERFACE, MODULE, NativeRecords, find_decoder
from aerobee_proto.records import StoredRecord, decode_host, decode_records, encode_record, iterate_records
from engines import need_engine
from proto.strategies import record_fields

BODY = encode_record(
    topic="T",
    queue_id=1,
    queue_offset=2,
    physical_offset=300,
    born_timestamp=4,
    born_host=("127.0.0.1", 5),
    store_timestamp=6,
    store_host=("127.0.0.1", 7),
    body=b"hello",
    properties="TAGS\x01a\x02",
    checksum=True,
)


@pytest.fixture
def asks_anew(monkeypatch: pytest.MonkeyPatch) -> NativeRecords:
    """As before the first call."""
    anew = NativeRecords()
    monkeypatch.setattr(records, "native", anew)
    return anew


def natively(raw: bytes, *, check_crc: bool) -> list[StoredRecord] | None:
    decoder = find_decoder()
    assert decoder is not None
    return decoder(raw, StoredRecord, decode_host, _text, check_crc)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def in_python(raw: bytes, *, check_crc: bool) -> list[StoredRecord] | None:
    """None for what is broken."""
    try:
        return list(iterate_records(raw, check_crc=check_crc))
    except RecordError:
        return None


def is_usual(fields: dict[str, Any]) -> bool:
    return ":" not in fields["born_host"][0] and ":" not in fields["store_host"][0]


@st.composite
def encoded(draw: st.DrawFn) -> tuple[bytes, bool]:
    """Some records in a row, and whether the engine makes them."""
    many = draw(st.lists(record_fields(), max_size=4))
    raw = b"".join(
        encode_record(**fields, checksum=draw(st.booleans()), property_crc=draw(st.booleans()))
        for fields in many
    )
    return raw, all(map(is_usual, many))


@given(encoded(), st.booleans())
@settings(max_examples=200)
def test_usual_records_are_made_as_python_makes_them(drawn: tuple[bytes, bool], check_crc: bool) -> None:
    need_engine("native")
    raw, is_usual = drawn
    made = natively(raw, check_crc=check_crc)
    if made is not None:
        assert made == in_python(raw, check_crc=check_crc)
        assert {type(value) for record in made for value in (record.body, record.topic)} <= {bytes, str}
    # Python's checksum as the last property but one is looked at in Python.
    assert made is not None or not is_usual or b"__CRC32#" in raw


@given(encoded(), st.booleans(), st.data())
@settings(max_examples=300)
def test_what_is_broken_is_made_by_nobody(
    drawn: tuple[bytes, bool], check_crc: bool, data: st.DataObject
) -> None:
    need_engine("native")
    raw = bytearray(drawn[0])
    if raw:
        for _ in range(data.draw(st.integers(1, 3))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        raw = raw[: data.draw(st.integers(0, len(raw)))] if data.draw(st.booleans()) else raw
    made = natively(bytes(raw), check_crc=check_crc)
    assert made is None or made == in_python(bytes(raw), check_crc=check_crc)


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_no_fault_of_the_engine(raw: bytes, check_crc: bool) -> None:
    need_engine("native")
    made = natively(raw, check_crc=check_crc)
    assert made is None or made == in_python(raw, check_crc=check_crc)


@pytest.mark.parametrize("at", range(len(BODY)))
def test_each_byte_of_a_record_with_a_checksum_counts(at: int) -> None:
    """But for those of the checksum's name: without it there is none."""
    need_engine("native")
    raw = bytearray(BODY)
    raw[at] ^= 0x20
    made = natively(bytes(raw), check_crc=True)
    assert made is None or made == in_python(bytes(raw), check_crc=True)
    name_at = BODY.index(b"__CRC32C")
    assert (made is None) or name_at <= at < name_at + 9


@pytest.mark.usefixtures("asks_anew")
def test_without_the_engine_python_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, MODULE, None)
    assert [record.body for record in decode_records(BODY)] == [b"hello"]


@pytest.mark.usefixtures("asks_anew")
def test_an_engine_of_another_release_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules, MODULE, SimpleNamespace(RECORDS_INTERFACE=INTERFACE + 1, stored_records=None)
    )
    assert [record.body for record in decode_records(BODY)] == [b"hello"]


@pytest.mark.usefixtures("asks_anew")
def test_after_a_fault_python_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def faulty(raw: bytes, *_: object) -> None:
        asked.append(raw)
        raise RuntimeError("a fault")

    monkeypatch.setitem(
        sys.modules, MODULE, SimpleNamespace(RECORDS_INTERFACE=INTERFACE, stored_records=faulty)
    )
    for _ in range(2):
        assert [record.body for record in decode_records(BODY)] == [b"hello"]
    assert asked == [BODY]


def test_the_engine_is_asked_where_it_is_there(asks_anew: NativeRecords) -> None:
    """Else all of this would compare Python with itself."""
    need_engine("native")
    assert [record.body for record in decode_records(BODY * 2)] == [b"hello"] * 2
    assert asks_anew.decoder is not None
