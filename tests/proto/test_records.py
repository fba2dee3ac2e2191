"""Stored records: worked examples byte for byte, round trips, captured answers, and damaged bytes."""

import gzip
import json
from base64 import b64decode
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict

from aerobee_proto.checksum import check_property_crc, check_record_checksum
from aerobee_proto.errors import RecordError
from aerobee_proto.records import (
    BLANK_MAGIC,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_OVERHEAD_V4,
    SIZE_AND_MAGIC,
    body_crc,
    decode_host,
    decode_record,
    decode_records,
    encode_host,
    encode_record,
    scan_header,
)
from proto.strategies import record_fields
from proto.tables import GOLDEN, golden_table, unbase64

HELLO: dict[str, Any] = {
    "topic": "TopicTest",
    "queue_id": 3,
    "queue_offset": 5,
    "physical_offset": 1073742848,
    "born_timestamp": 1700000000123,
    "born_host": ("192.0.2.10", 51234),
    "store_timestamp": 1700000000456,
    "store_host": ("198.51.100.7", 10911),
    "body": "Hello, 世界".encode(),
    "properties": (
        "KEYS\x01order-1001 user-7\x02UNIQ_KEY\x01C0000204000118B4AAC2000000000001\x02"
        "CLUSTER\x01DefaultCluster\x02TAGS\x01TagA\x02WAIT\x01true\x02"
    ),
}
HELLO_BYTES = bytes.fromhex(
    "000000dd daa320a7 5a7c2ce5 00000003 00000000 0000000000000005 0000000040000400 00000000"
    "0000018bcfe5687b c000020a0000c822 0000018bcfe569c8 c633640700002a9f 00000000 0000000000000000"
    "0000000d 48656c6c6f2c20e4b896e7958c 09 546f70696354657374 006c"
    "4b455953016f726465722d3130303120757365722d3702"
    "554e49515f4b455901 4330303030323034303030313138423441414332303030303030303030303031 02"
    "434c5553544552014465666175 6c74436c757374657202"
    "54414753015461674102"
    "57414954017472756502"
)
HI_BYTES = bytes.fromhex(
    "00000069daa320a758932aac000000030000000000000000000000050000000000 0003e800000000"
    "0000018bcfe568007f0000010000c3500000018bcfe568017f00000100002a9f00000000"
    "0000000000000000000000026869025431000a54414753015461674102"
)


def test_worked_example_encodes_byte_for_byte() -> None:
    assert encode_record(**HELLO) == HELLO_BYTES
    assert len(HELLO_BYTES) == 221


def test_worked_example_decodes() -> None:
    record = decode_record(HELLO_BYTES)
    for name, value in HELLO.items():
        assert getattr(record, name) == value, name
    assert (record.size, record.version, record.body_crc) == (221, 1, 1518087397)
    assert record.tags == "TagA"
    assert record.keys == ("order-1001", "user-7")
    assert record.unique_key == "C0000204000118B4AAC2000000000001"
    assert record.offset_message_id == "C633640700002A9F0000000040000400"
    assert record.property_map["CLUSTER"] == "DefaultCluster"


def test_worked_example_with_the_official_checksum() -> None:
    record = encode_record(**HELLO, property_crc=True)
    assert record[:8] == bytes.fromhex("000000f1daa320a7")
    assert record[111:113] == b"\x00\x80"
    assert record[-20:] == b"__CRC32#\x019162170320\x02"
    assert check_property_crc(record)
    assert decode_record(record).property_map["__CRC32#"] == "9162170320"


def test_short_worked_example() -> None:
    record = decode_record(HI_BYTES)
    assert (record.topic, record.body, record.tags) == ("T1", b"hi", "TagA")
    assert (record.queue_id, record.queue_offset, record.physical_offset) == (3, 5, 1000)
    assert (record.born_host, record.store_host) == (("127.0.0.1", 50000), ("127.0.0.1", 10911))
    assert record.offset_message_id == "7F00000100002A9F00000000000003E8"
    assert encode_record(**encodable(record)) == HI_BYTES


def test_blank_record() -> None:
    assert SIZE_AND_MAGIC.pack(100, BLANK_MAGIC) == bytes.fromhex("00000064cbd43194")
    header = scan_header(b"??" + SIZE_AND_MAGIC.pack(100, BLANK_MAGIC) + b"rest", 2)
    assert header.is_blank
    assert (header.size, header.magic) == (100, BLANK_MAGIC)
    with pytest.raises(RecordError, match="magic"):
        decode_record(SIZE_AND_MAGIC.pack(100, BLANK_MAGIC) + bytes(100))
    for size in (-1, 0, 7):
        with pytest.raises(RecordError, match="blank"):
            scan_header(SIZE_AND_MAGIC.pack(size, BLANK_MAGIC), 0)


def test_official_body_crcs() -> None:
    rows = golden_table("bodyCrc32")["rows"]
    assert len(rows) > 10
    for body, crc in rows:
        assert body_crc(unbase64(body)) == crc
    assert body_crc(b"") == 0


def encodable(record: Any) -> dict[str, Any]:
    fields = asdict(record)
    for name in ("size", "body_crc", "version", "_property_map"):
        del fields[name]
    return fields


@given(record_fields())
def test_encode_then_decode_is_identity(fields: dict[str, Any]) -> None:
    raw = encode_record(**fields)
    record = decode_record(raw)
    expected_flag = fields["sys_flag"] & ~0x30
    expected_flag |= 0x10 if ":" in fields["born_host"][0] else 0
    expected_flag |= 0x20 if ":" in fields["store_host"][0] else 0
    assert encodable(record) == {**fields, "sys_flag": expected_flag}
    assert record.size == len(raw)
    assert record.version == (2 if len(fields["topic"]) > 127 else 1)
    assert encode_record(**encodable(record)) == raw


@given(st.lists(record_fields(), max_size=5), st.booleans())
def test_records_in_a_row_decode_in_order(many: list[dict[str, Any]], as_view: bool) -> None:
    raw = b"".join(encode_record(**fields, checksum=True) for fields in many)
    records = decode_records(memoryview(raw) if as_view else raw)
    assert [record.body for record in records] == [fields["body"] for fields in many]
    assert sum(record.size for record in records) == len(raw)
    assert all(isinstance(record.body, bytes) for record in records)


@given(record_fields(), st.integers(0, 9), st.binary(max_size=9))
def test_scan_tells_what_decode_tells(fields: dict[str, Any], before: int, after: bytes) -> None:
    raw = encode_record(**fields)
    buffer = memoryview(bytes(before) + raw + after)
    header = scan_header(buffer, before)
    record = decode_record(buffer, before)
    assert not header.is_blank
    for name in (
        "size",
        "queue_id",
        "queue_offset",
        "physical_offset",
        "sys_flag",
        "store_timestamp",
        "body_crc",
    ):
        assert getattr(header, name) == getattr(record, name), name
    assert (header.topic, header.tags, header.unique_key) == (record.topic, record.tags, record.unique_key)
    assert header.keys == record.property_map.get("KEYS")
    assert header.properties.decode() == record.properties
    assert header.prepared_transaction_offset == record.prepared_transaction_offset
    assert header.magic == (MAGIC_V1 if record.version == 1 else MAGIC_V2)
    assert header.body_is_intact()
    assert bytes(header.record) == raw


@given(record_fields(), st.data())
def test_a_cut_record_is_refused(fields: dict[str, Any], data: st.DataObject) -> None:
    raw = encode_record(**fields)
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(RecordError):
        decode_record(raw[:cut])
    with pytest.raises(RecordError):
        decode_record(memoryview(raw + raw)[:cut])
    if cut:
        with pytest.raises(RecordError):
            decode_records(raw + raw[:cut])


@given(record_fields(), st.data())
@settings(max_examples=300)
def test_mutated_bytes_raise_only_record_errors(fields: dict[str, Any], data: st.DataObject) -> None:
    raw = bytearray(encode_record(**fields, checksum=data.draw(st.booleans())))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    for check_crc in (True, False):
        try:
            record = decode_record(raw, check_crc=check_crc)
        except RecordError:
            continue
        assert record.size <= len(raw)
    try:
        header = scan_header(raw, 0)
    except RecordError:
        return
    assert header.is_blank or header.size <= len(raw)
    assert isinstance(header.topic, str)
    assert header.tags is None or isinstance(header.tags, str)


@given(st.binary(max_size=300), st.integers(-5, 310))
def test_any_bytes_raise_only_record_errors(raw: bytes, position: int) -> None:
    for read in (decode_record, scan_header):
        with suppress(RecordError):
            read(raw, position)


@given(record_fields(), st.data())
def test_any_flipped_bit_is_seen_with_the_checksum(fields: dict[str, Any], data: st.DataObject) -> None:
    """Outside the checksum property itself and the offset that it repeats, no single flip goes unnoticed."""
    raw = bytearray(encode_record(**fields, checksum=True))
    at = data.draw(st.integers(0, len(raw) - 35).filter(lambda i: not 28 <= i < 36))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(RecordError):
        decode_record(raw)


@pytest.mark.parametrize(
    ("at", "value", "fault"),
    [
        (84, b"\x7f\xff\xff\xff", "body length"),
        (84, b"\xff\xff\xff\xff", "body length"),
        (101, b"\x80", "negative"),
        (101, b"\x7f", "topic length"),
        (111, b"\xff\xff", "properties length -1"),
        (111, b"\x00\x6b", "add up"),
        (111, b"\x00\x6d", "add up"),
        (0, b"\x00\x00\x00\xdc", "add up"),
        (0, b"\x7f\xff\xff\xff", "claims 2147483647"),
        (0, b"\xff\xff\xff\xff", "claims -1"),
        (4, b"\x00\x00\x00\x00", "magic"),
        (36, b"\x00\x00\x00\x30", "length"),
        (90, b"\x00", "CRC"),
    ],
)
def test_what_is_wrong_is_named(at: int, value: bytes, fault: str) -> None:
    raw = bytearray(HELLO_BYTES)
    raw[at : at + len(value)] = value
    with pytest.raises(RecordError, match=fault):
        decode_record(raw)


def test_a_wrong_body_passes_only_without_the_check() -> None:
    raw = bytearray(HELLO_BYTES)
    raw[88] ^= 0x20
    assert decode_record(raw, check_crc=False).body.startswith(b"hello")
    assert not scan_header(raw, 0).body_is_intact()


def test_a_record_is_the_same_whether_its_properties_were_parsed() -> None:
    raw = encode_record(**HELLO)
    one, other = decode_record(raw), decode_record(raw)
    assert one.tags == "TagA"
    assert one == other
    other.queue_id += 1
    assert one != other
    assert one != raw


def test_malformed_text_is_replaced() -> None:
    fields = {**HELLO, "topic": b"T\xff", "properties": b"TAGS\x01\xfe\x02"}
    record = decode_record(encode_record(**fields))
    assert (record.topic, record.tags) == ("T\ufffd", "\ufffd")


def test_version_2_is_for_topics_over_127_bytes() -> None:
    assert decode_record(encode_record(**{**HELLO, "topic": "t" * 127})).version == 1
    long = decode_record(encode_record(**{**HELLO, "topic": "t" * 128}))
    assert (long.version, long.topic) == (2, "t" * 128)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic", "t" * 32768),
        ("properties", b"p" * 32768),
        ("queue_id", 1 << 31),
        ("physical_offset", 1 << 63),
        ("born_host", ("localhost", 1)),
        ("store_host", ("1.2.3.4", 1 << 31)),
        ("store_host", ("::zz", 1)),
    ],
)
def test_what_does_not_fit_is_refused(name: str, value: Any) -> None:
    with pytest.raises(RecordError):
        encode_record(**{**HELLO, name: value})


def test_properties_may_fill_the_limit_with_the_checksum_and_no_more() -> None:
    fields = {**HELLO, "properties": b"a\x01" + b"v" * (32767 - 34 - 3) + b"\x02"}
    assert check_record_checksum(encode_record(**fields, checksum=True)) == "ok"
    with pytest.raises(RecordError, match="32768"):
        encode_record(**{**fields, "properties": b"b" + fields["properties"]}, checksum=True)


def test_hosts_pack_and_unpack() -> None:
    assert encode_host("192.0.2.10", 51234) == bytes.fromhex("c000020a0000c822")
    assert encode_host("fe80::1%eth0", 1) == encode_host("fe80::1", 1)
    assert decode_host(encode_host("2001:db8::7", 10911)) == ("2001:db8::7", 10911)
    with pytest.raises(RecordError, match="8 or 20"):
        decode_host(b"123")


def test_overhead_of_the_smallest_record() -> None:
    empty = encode_record(**{**HELLO, "topic": "", "body": b"", "properties": b""})
    assert len(empty) == RECORD_OVERHEAD_V4 == 91
    assert decode_record(empty).body == b""


@pytest.mark.parametrize("codec", ["JSON", "ROCKETMQ"])
def test_captured_answers_decode_and_encode_again(codec: str) -> None:
    seen = 0
    for path in sorted((GOLDEN / "wire" / codec).glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                if row.get("body_kind") != "messages" or row.get("request_code") not in (11, 12, 33, 361):
                    continue
                body = b64decode(row["frame_b64"])[-row["body_len"] :]
                records = decode_records(body)
                assert b"".join(encode_record(**encodable(record)) for record in records) == body
                seen += len(records)
    assert seen > 50
