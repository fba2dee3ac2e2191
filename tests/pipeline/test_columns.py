"""Columns against records decoded one by one."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from aerobee_proto.compression import CompressionKind, compress_body
from aerobee_proto.properties import decode_properties
from aerobee_proto.records import StoredRecord, decode_records, encode_record
from aerobee_store.walking.record_columns import sound_records
from pyspark_aerobee.columns import ColumnBuilder
from pyspark_aerobee.schema import message_schema

SCHEMA = to_arrow_schema(message_schema(), timezone="UTC")
KAFKA = to_arrow_schema(message_schema(kafka=True, include_headers=True), timezone="UTC")
HOSTS = (("127.0.0.1", 10911), ("2001:db8::1", 10911))


def encoded(position: int, **fields: Any) -> bytes:
    given: dict[str, Any] = {
        "topic": "T",
        "queue_id": 1,
        "flag": 0,
        "queue_offset": 7,
        "physical_offset": position,
        "sys_flag": 0,
        "born_timestamp": 1_700_000_000_123,
        "born_host": HOSTS[0],
        "store_timestamp": 1_700_000_000_456,
        "store_host": HOSTS[0],
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
        "body": b"hello",
        "properties": "",
    }
    return encode_record(**(given | fields))


def rows(content: bytes, schema: pa.Schema = SCHEMA) -> list[dict[str, Any]]:
    view = memoryview(content)
    stretch = sound_records(view, 0, None, stop=len(view))
    assert stretch is not None
    assert stretch.end == len(view)
    found: list[dict[str, Any]] = ColumnBuilder(schema, "broker-a").batch(stretch, view).to_pylist()
    return found


def expected(record: StoredRecord) -> dict[str, Any]:
    properties = {k: v for k, v in decode_properties(record.properties).items() if k != "__CRC32C"}
    return {
        "topic": record.topic,
        "brokerName": "broker-a",
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "storeTimestamp": datetime.fromtimestamp(record.store_timestamp / 1000, UTC),
        "bornTimestamp": datetime.fromtimestamp(record.born_timestamp / 1000, UTC),
        "msgId": record.unique_key or record.offset_message_id,
        "tags": record.tags,
        "keys": list(record.keys),
        "properties": properties,
        "body": record.body,
        "commitLogOffset": record.physical_offset,
    }


WORDS = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=12
)
RECORDS = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(("T", "Another-topic", "%RETRY%group")),
        "queue_id": st.integers(0, 9),
        "queue_offset": st.integers(0, 1 << 40),
        "born_host": st.sampled_from(HOSTS),
        "store_host": st.sampled_from(HOSTS),
        "body": st.binary(min_size=0, max_size=60),
        "properties": st.dictionaries(
            st.one_of(st.sampled_from(("TAGS", "KEYS", "UNIQ_KEY", "A")), WORDS), WORDS, max_size=5
        ),
    }
)


@given(st.lists(RECORDS, min_size=1, max_size=12), st.booleans(), st.booleans())
def test_columns_say_what_the_records_say(made: list[dict[str, Any]], closed: bool, checksum: bool) -> None:
    content = b""
    for fields in made:
        text = "\x02".join(f"{name}\x01{value}" for name, value in fields["properties"].items())
        text += "\x02" if closed and text else ""
        content += encoded(len(content), **(fields | {"properties": text, "checksum": checksum}))
    found = rows(content)
    for row in found:
        row["properties"] = dict(row["properties"])
    assert found == [expected(record) for record in decode_records(content)]


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_compressed_bodies_come_out_as_they_were_sent(kind: CompressionKind) -> None:
    body, flag = compress_body(b"x" * 5000, kind)
    content = encoded(0) + encoded(len(encoded(0)), body=body, sys_flag=flag)
    assert [row["body"] for row in rows(content)] == [b"hello", b"x" * 5000]


def test_a_body_that_cannot_be_inflated_is_given_as_it_is_stored() -> None:
    assert [row["body"] for row in rows(encoded(0, body=b"no zlib", sys_flag=1))] == [b"no zlib"]


@pytest.mark.parametrize(
    "text", ["A\x01", "\x01b\x02", "lonely\x02A\x01b\x02", "A\x01b\x01c\x02", "A\x01b\x02\x02"]
)
def test_malformed_properties_are_read_as_clients_read_them(text: str) -> None:
    content = encoded(0, properties=text) + encoded(len(encoded(0, properties=text)), properties="K\x01v\x02")
    assert [dict(row["properties"]) for row in rows(content)] == [decode_properties(text), {"K": "v"}]


def test_text_that_is_not_utf8_does_not_end_the_job() -> None:
    content = bytearray(encoded(0, properties="TAGS\x01xx\x02"))
    at = content.index(b"xx")
    content[at : at + 2] = b"\xff\xfe"
    assert rows(bytes(content))[0]["tags"] == "\ufffd\ufffd"


def test_kafka_columns() -> None:
    (row,) = rows(encoded(0, properties="KEYS\x01k1 k2\x02A\x01b\x02"), KAFKA)
    assert row == {
        "key": b"k1",
        "value": b"hello",
        "topic": "T",
        "partition": 1,
        "offset": 7,
        "timestamp": datetime.fromtimestamp(1_700_000_000.456, UTC),
        "timestampType": 1,
        "headers": [{"key": "KEYS", "value": b"k1 k2"}, {"key": "A", "value": b"b"}],
    }


def test_without_columns_there_are_still_rows() -> None:
    view = memoryview(encoded(0) + encoded(len(encoded(0))))
    stretch = sound_records(view, 0, None, stop=len(view))
    assert stretch is not None
    assert ColumnBuilder(pa.schema([]), None).batch(stretch, view).num_rows == 2
