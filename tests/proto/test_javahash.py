"""Java's string hash against the official tables and against a plain reading of its definition."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aerobee_proto.javahash import (
    index_key_hash,
    index_key_hash_many,
    index_key_hash_of,
    java_hash,
    java_hash_many,
    tag_hash,
)
from proto.tables import golden_table

ANY_TEXT = st.text(st.characters())  # unpaired surrogates included


def hash_by_definition(text: str) -> int:
    raw = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for i in range(0, len(raw), 2):
        value = 31 * value + int.from_bytes(raw[i : i + 2], "big")
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def test_official_table_of_hashes() -> None:
    rows = golden_table("stringHash")["rows"]
    assert len(rows) > 20
    for text, hash_code, tags_code, key_hash in rows:
        assert java_hash(text) == hash_code
        assert tag_hash(text) == tags_code
        assert index_key_hash(text) == key_hash
    texts = [row[0] for row in rows]
    assert java_hash_many(texts).tolist() == [row[1] for row in rows]
    assert index_key_hash_many(texts).tolist() == [row[3] for row in rows]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("d", 100),
        ("ck", 3176),
        ("ack", 96393),
        ("bAck", 2985159),
        ("TagA", 2598919),
        ("order-created", -392709271),
        ("polygenelubricants", -2147483648),
        ("\U0001f600", 1772899),
        ("TopicTest#C0000204000118B4AAC2000000000001", -1491647713),
        ("TopicTest#order-1001", 1043804929),
        ("TopicTest#user-7", -1964477641),
    ],
)
def test_known_hashes(text: str, expected: int) -> None:
    assert java_hash(text) == expected
    assert java_hash_many([text]).tolist() == [expected]


def test_the_smallest_integer_has_key_hash_zero() -> None:
    assert index_key_hash("polygenelubricants") == 0
    assert index_key_hash_many(["polygenelubricants", "TopicTest#user-7"]).tolist() == [0, 1964477641]


@given(ANY_TEXT, ANY_TEXT)
@example("polygenelubricant", "s")
def test_the_hash_of_topic_and_key_is_that_of_their_text(topic: str, key: str) -> None:
    assert index_key_hash_of(topic, key) == index_key_hash(f"{topic}#{key}")


def test_no_tag_has_hash_zero() -> None:
    assert tag_hash(None) == 0
    assert tag_hash("") == 0


@given(ANY_TEXT)
@example("\ud800")
@example("a\udfff\ud800b")
def test_hash_is_its_definition(text: str) -> None:
    assert java_hash(text) == hash_by_definition(text)


@given(st.lists(ANY_TEXT, max_size=20))
@example([])
@example(["", "", "a", ""])
def test_many_hashes_equal_single_ones(texts: list[str]) -> None:
    hashes = java_hash_many(texts)
    assert hashes.dtype == np.int32
    assert hashes.tolist() == [java_hash(text) for text in texts]
    assert index_key_hash_many(texts).tolist() == [index_key_hash(text) for text in texts]


def test_texts_that_fill_and_exceed_a_pass() -> None:
    texts = ["x" * 65535, "y", "\u00e9", "z" * 65536, "w" * 65537, "", "\U0001f600" * 40000, "end"]
    assert java_hash_many(texts).tolist() == [java_hash(text) for text in texts]
