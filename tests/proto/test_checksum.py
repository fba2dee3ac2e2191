"""Checksum properties of a record: sealed, verified, stale after a copy, removed."""

from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from aerobee_proto.checksum import (
    check_property_crc,
    check_record_checksum,
    property_crc_entry,
    record_checksum_entry,
    remove_checksums,
    seal_record,
)
from aerobee_proto.errors import RecordError
from aerobee_proto.properties import decode_properties
from aerobee_proto.records import decode_record, encode_record
from proto.strategies import record_fields

PLAIN: dict[str, Any] = {
    "topic": "T1",
    "queue_id": 0,
    "queue_offset": 7,
    "physical_offset": 0x1234,
    "born_timestamp": 1,
    "born_host": ("10.0.0.1", 1),
    "store_timestamp": 2,
    "store_host": ("10.0.0.2", 2),
    "body": b"body",
    "properties": "TAGS\x01a\x02",
}


def test_entries_have_their_fixed_form() -> None:
    assert record_checksum_entry(0x1234, 0xAB) == b"__CRC32C\x010000000000001234000000AB\x02"
    assert property_crc_entry(230712619) == b"__CRC32#\x019162170320\x02"
    assert property_crc_entry(5) == b"__CRC32#\x015000000000\x02"


def test_our_checksum_is_last_and_covers_everything_before_it() -> None:
    record = encode_record(**PLAIN, checksum=True)
    assert record[-34:] == record_checksum_entry(0x1234, crc32c(record[:-34]))
    assert len(record) == len(encode_record(**PLAIN)) + 34
    assert decode_record(record).tags == "a"


def test_the_official_checksum_comes_after_ours() -> None:
    record = encode_record(**PLAIN, checksum=True, property_crc=True)
    assert record[-54:-20] == record_checksum_entry(0x1234, crc32c(record[:-54]))
    assert record[-20:].startswith(b"__CRC32#\x01")
    assert check_record_checksum(record) == "ok"
    assert check_property_crc(record)
    assert decode_record(record).property_map.keys() == {"TAGS", "__CRC32C", "__CRC32#"}


@pytest.mark.parametrize("property_crc", [False, True])
def test_a_separator_is_put_before_checksums_where_the_last_pair_lacks_it(property_crc: bool) -> None:
    fields = {**PLAIN, "properties": "TAGS\x01a"}
    record = encode_record(**fields, checksum=True, property_crc=property_crc)
    assert decode_record(record).tags == "a"
    assert check_record_checksum(record) == "ok"


@given(record_fields(), st.booleans())
def test_a_sealed_record_is_ok(fields: dict[str, Any], property_crc: bool) -> None:
    record = encode_record(**fields, checksum=True, property_crc=property_crc)
    assert check_record_checksum(record) == "ok"
    assert check_record_checksum(memoryview(record)) == "ok"
    assert check_property_crc(record) == property_crc


@given(record_fields())
def test_a_record_without_is_absent(fields: dict[str, Any]) -> None:
    assert check_record_checksum(encode_record(**fields)) == "absent"


def test_a_copied_checksum_is_stale_and_ignored() -> None:
    properties = decode_record(encode_record(**PLAIN, checksum=True)).properties
    copied = encode_record(**{**PLAIN, "physical_offset": 0x9999, "properties": properties})
    assert check_record_checksum(copied) == "stale"
    assert decode_record(copied).physical_offset == 0x9999


def test_a_copied_checksum_at_the_same_offset_must_match() -> None:
    properties = decode_record(encode_record(**PLAIN, checksum=True)).properties
    other = encode_record(**{**PLAIN, "queue_id": 1, "properties": properties})
    assert check_record_checksum(other) == "bad"
    with pytest.raises(RecordError, match="checksum"):
        decode_record(other)


def test_a_checksum_in_front_of_other_properties_says_nothing() -> None:
    properties = decode_record(encode_record(**PLAIN, checksum=True)).properties
    assert (
        check_record_checksum(encode_record(**{**PLAIN, "properties": properties + "Z\x01z\x02"})) == "absent"
    )


@given(record_fields(), st.booleans(), st.data())
def test_damage_in_a_sealed_record_is_seen(fields: dict[str, Any], both: bool, data: st.DataObject) -> None:
    record = bytearray(encode_record(**fields, checksum=True, property_crc=both))
    at = data.draw(st.integers(0, len(record) - (55 if both else 35)).filter(lambda i: not 28 <= i < 36))
    record[at] ^= data.draw(st.integers(1, 255))
    assert check_record_checksum(record) == "bad"
    if both:
        assert not check_property_crc(record)


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_give_an_answer(raw: bytes, with_name: bool) -> None:
    record = raw + (b"__CRC32C\x01" + raw[:25] if with_name else b"")
    assert check_record_checksum(record) in ("absent", "stale", "bad", "ok")
    assert check_property_crc(record) in (False, True)


def test_sealing_again_after_a_change_makes_it_good_again() -> None:
    record = bytearray(encode_record(**PLAIN, checksum=True))
    record[12] = 9
    assert check_record_checksum(record) == "bad"
    seal_record(record)
    assert check_record_checksum(record) == "ok"


def test_removal_leaves_the_other_properties() -> None:
    record = decode_record(encode_record(**PLAIN, checksum=True, property_crc=True))
    assert remove_checksums(record.properties.encode()) == b"TAGS\x01a\x02"
    assert decode_properties(remove_checksums(b"A\x01b\x02__CRC32C\x01x").decode()) == {"A": "b"}
    raw = b"TAGS\x01a\x02"
    assert remove_checksums(raw) is raw
