"""Rows encoded as columns: the same bytes as one by one, and what is not plain is told."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.messages.outgoing import property_text
from aerobee_proto.batch import decode_batch, encode_batch_entry
from aerobee_proto.properties import PROPERTIES_SIZE_MAX
from pyspark_aerobee.batch_entries import PlainRows, encode_plain

BODY_MAX = 300
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
words = st.one_of(st.none(), texts)
rows_of_columns = st.lists(
    st.tuples(
        st.one_of(st.none(), st.binary(max_size=BODY_MAX + 2)),
        words,
        st.one_of(st.none(), st.lists(words, max_size=4)),
    ),
    min_size=1,
    max_size=20,
)


def encoded(
    body: list[bytes | None],
    tags: list[str | None] | None = None,
    keys: pa.Array | None = None,
    more: list[str] | None = None,
) -> PlainRows:
    return encode_plain(
        pa.array(body, pa.binary()),
        None if tags is None else pa.array(tags, pa.string()),
        keys,
        more,
        [f"ID{number}" for number in range(len(body))],
        body_size_max=BODY_MAX,
    )


def one_by_one(number: int, body: bytes, tags: str | None, keys: list[str | None] | None) -> bytes:
    names = [key for key in keys or () if key]
    text = f"UNIQ_KEY\x01ID{number}\x02" + property_text(tags, names, None, None, 0)
    return encode_batch_entry(body, text)


@given(rows_of_columns)
def test_plain_rows_are_encoded_as_one_by_one(
    rows: list[tuple[bytes | None, str | None, list[str | None] | None]],
) -> None:
    body, tags, keys = map(list, zip(*rows, strict=True))
    found = encoded(body, tags, pa.array(keys, pa.list_(pa.string())))
    odd = found.odd.to_pylist()
    expected = [
        one_by_one(number, row[0] or b"", row[1], row[2])
        for number, row in enumerate(rows)
        if not odd[number]
    ]
    assert found.entries.to_pylist() == expected
    assert found.sizes.tolist() == [len(entry) for entry in expected]
    assert found.body_bytes == sum(len(one.body) for one in decode_batch(b"".join(expected)))
    for is_odd, (one_body, tag, one_keys) in zip(odd, rows, strict=True):
        separated = any(
            c in text for text in (tag or "", *(k or "" for k in one_keys or ())) for c in "\x01\x02"
        )
        bad_body = not one_body or len(one_body) > BODY_MAX
        assert is_odd or not (separated or bad_body)


def test_ordinary_rows_are_plain() -> None:
    keys = pa.array([["a"], None, [], ["b", "c d"]], pa.list_(pa.string()))
    found = encoded([b"1", b"2", b"3", b"4"], ["t", None, "", "ü"], keys)
    assert not any(found.odd.to_pylist())
    entries = decode_batch(b"".join(found.entries.to_pylist()))
    assert [entry.properties for entry in entries] == [
        "UNIQ_KEY\x01ID0\x02TAGS\x01t\x02KEYS\x01a\x02",
        "UNIQ_KEY\x01ID1\x02",
        "UNIQ_KEY\x01ID2\x02",
        "UNIQ_KEY\x01ID3\x02TAGS\x01ü\x02KEYS\x01b c d\x02",
    ]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.field("element", pa.string(), nullable=False)),
        pa.list_(pa.field("element", pa.string())),
        pa.list_(pa.large_string()),
    ],
    ids=str,
)
def test_lists_of_all_kinds_that_spark_has(kind: pa.DataType) -> None:
    found = encoded([b"1", b"2"], None, pa.array([["a", "b"], None], kind))
    entries = decode_batch(b"".join(found.entries.to_pylist()))
    assert [entry.properties for entry in entries] == [
        "UNIQ_KEY\x01ID0\x02KEYS\x01a b\x02",
        "UNIQ_KEY\x01ID1\x02",
    ]


def test_keys_as_one_text_and_more_properties() -> None:
    keys = pa.array(["k1 k2", None], pa.string())
    found = encoded([b"1", b"2"], None, keys, ["once\x01j:0\x02", "once\x01j:1\x02"])
    entries = decode_batch(b"".join(found.entries.to_pylist()))
    assert [entry.properties for entry in entries] == [
        "UNIQ_KEY\x01ID0\x02KEYS\x01k1 k2\x02once\x01j:0\x02",
        "UNIQ_KEY\x01ID1\x02once\x01j:1\x02",
    ]


@pytest.mark.parametrize(
    ("body", "tag", "keys"),
    [
        (None, "t", None),
        (b"", "t", None),
        (b"x" * (BODY_MAX + 1), "t", None),
        (b"x", "a\x01b", None),
        (b"x", "a\x02b", None),
        (b"x", None, ["a", "b\x02"]),
        (b"x", None, ["a", None]),
        (b"x", None, ["", "a"]),
        (b"x", None, ["a", ""]),
        (b"x", None, ["a", "", "b"]),
        (b"x", "t" * PROPERTIES_SIZE_MAX, None),
    ],
)
def test_odd_rows_are_left_to_others(
    body: bytes | None, tag: str | None, keys: list[str | None] | None
) -> None:
    found = encoded([b"plain", body], [None, tag], pa.array([None, keys], pa.list_(pa.string())))
    assert found.odd.to_pylist() == [False, True]
    assert len(found.entries) == len(found.sizes) == 1


def test_no_row_is_plain() -> None:
    found = encoded([None, b""])
    assert found.odd.to_pylist() == [True, True]
    assert len(found.entries) == 0
    assert found.body_bytes == 0
