"""Half messages and marks: what is written is read, and what others wrote may be anything."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_broker.transactions.half_messages import encode_marks, half_in, read_half, read_marks
from aerobee_proto import names
from aerobee_proto.records import StoredRecord, decode_record, encode_record

OWN: dict[str, Any] = {"REAL_TOPIC": "Orders", "REAL_QID": "2", "PGROUP": "g"}


def record_of(topic: str = names.HALF_TOPIC, *, body: bytes = b"x", **properties: Any) -> bytes:
    return encode_record(
        topic=topic,
        queue_id=0,
        queue_offset=7,
        physical_offset=1000,
        born_timestamp=1,
        born_host=("127.0.0.1", 1),
        store_timestamp=2,
        store_host=("127.0.0.1", 2),
        body=body,
        properties="".join(f"{name}\x01{value}\x02" for name, value in properties.items()),
    )


def mark_of(body: bytes, tag: str = "d") -> StoredRecord:
    return decode_record(record_of(names.OP_HALF_TOPIC, body=body, TAGS=tag))


def test_a_half_message_knows_where_it_belongs() -> None:
    half = read_half(record_of(**OWN, TRANSACTION_CHECK_TIMES="3", TRAN_PREPARED_QUEUE_OFFSET="5"))
    assert half is not None
    assert (half.real_topic, half.real_queue_id, half.producer_group) == ("Orders", 2, "g")
    assert (half.offset, half.first_offset, half.checks) == (7, 5, 3)


@pytest.mark.parametrize("first", ["8", "-1", "x", "9" * 30, "٣"])
def test_a_first_offset_that_cannot_be_is_its_own(first: str) -> None:
    half = read_half(record_of(**OWN, TRAN_PREPARED_QUEUE_OFFSET=first))
    assert half is not None
    assert half.first_offset == 7


@pytest.mark.parametrize(
    "changes",
    [
        {"REAL_TOPIC": ""},
        {"REAL_TOPIC": "../../etc"},
        {"REAL_QID": ""},
        {"REAL_QID": "-1"},
        {"REAL_QID": "two"},
        {"PGROUP": ""},
    ],
    ids=str,
)
def test_what_is_no_half_message_is_none(changes: dict[str, Any]) -> None:
    assert read_half(record_of(**(OWN | changes))) is None


def test_a_record_of_another_topic_is_none() -> None:
    data = record_of("Orders", **OWN)
    assert read_half(data) is None
    assert half_in(decode_record(data), "Orders") is not None
    assert read_half(b"") is None
    assert read_half(data[:50]) is None


@given(st.lists(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=2)), st.integers(1, 100))
def test_marks_that_are_written_are_read(groups: list[list[int]], size_max: int) -> None:
    found = []
    for body, offsets in encode_marks(groups, size_max):
        assert read_marks(mark_of(body)) == offsets
        found += offsets
        assert len(body) <= max(size_max, 40)
    assert found == [offset for group in groups for offset in group]


def test_the_places_of_one_transaction_stay_in_one_record() -> None:
    bodies = [body for body, _ in encode_marks([[1, 2], [3, 4], [5, 6]], 5)]
    assert bodies == [b"1,2,", b"3,4,", b"5,6,"]


@given(st.binary())
def test_any_body_gives_numbers_or_nothing(body: bytes) -> None:
    assert all(0 <= offset < 10**19 for offset in read_marks(mark_of(body)))


def test_only_records_with_the_tag_are_marks() -> None:
    assert read_marks(mark_of(b"1,x,2", "d")) == [1, 2]
    assert read_marks(mark_of(b"1,2,", "e")) == []
