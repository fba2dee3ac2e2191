"""Properties as columns: what is found among the bytes is what the careful way finds in each string."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from aerobee_proto.properties import find_property
from aerobee_store.records.property_columns import FieldReader, PropertyColumns, Texts, within

WORD = 8
NAMES = ("TAGS", "KEYS", "UNIQ_KEY", "XTAGS", "MY_KEYS", "A", "")
entries = st.tuples(st.sampled_from(NAMES), st.sampled_from(("", "v", "longer value", "schlüssel", "TAGS")))
# Well-formed strings, and any bytes that separate and names in between.
well_formed = st.lists(entries, max_size=6).map(
    lambda found: "".join(f"{name}\x01{value}\x02" for name, value in found).encode()
)
odd = st.lists(st.sampled_from((b"\x01", b"\x02", b"TAGS", b"KEYS", b"UNIQ_KEY", b"v")), max_size=9).map(
    b"".join
)


def columns_of(strings: list[bytes]) -> tuple[PropertyColumns, bytes]:
    """The strings side by side, and the bytes that they lie in."""
    content = b"".join(strings).ljust(WORD)
    ends = np.cumsum([len(one) for one in strings], dtype=np.int64)
    begins = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    return PropertyColumns(FieldReader(memoryview(content)), begins, ends), content


def by_record(found: Texts, content: bytes) -> dict[int, bytes]:
    return {
        record: content[begin : begin + length]
        for record, begin, length in zip(
            found.records.tolist(), found.begins.tolist(), found.lengths.tolist(), strict=True
        )
    }


@given(st.lists(st.one_of(well_formed, odd), min_size=1, max_size=20))
@example([b"TAGS\x01a\x02TAGS\x01\x02", b"XTAGS\x01b\x02", b"TAGS\x01no end"])
@example([b"", b"", b"TAGS\x01a\x02"])
@example([b"A\x01B\x02"])
def test_values_are_those_of_each_string(strings: list[bytes]) -> None:
    columns, content = columns_of(strings)
    for name in (b"TAGS", b"KEYS", b"UNIQ_KEY"):
        expected = {number: find_property(one, name) for number, one in enumerate(strings)}
        found = by_record(columns.values(name), content)
        assert found == {number: value for number, value in expected.items() if value}


def test_no_strings_at_all() -> None:
    nothing = np.zeros(0, np.int64)
    columns = PropertyColumns(FieldReader(memoryview(bytes(WORD))), nothing, nothing)
    assert by_record(columns.values(b"TAGS"), b"") == {}


@given(
    cuts=st.lists(st.integers(0, 60), max_size=12, unique=True),
    positions=st.sets(st.integers(0, 60), max_size=40),
)
def test_positions_within_ranges(cuts: list[int], positions: set[int]) -> None:
    cuts = sorted(cuts)[: len(cuts) // 2 * 2]
    begins, ends = np.array(cuts[0::2], np.int64), np.array(cuts[1::2], np.int64)
    inside, ranges = within(np.array(sorted(positions), np.int64), begins, ends)
    expected = [
        (position, number)
        for number, (begin, end) in enumerate(zip(begins, ends, strict=True))
        for position in sorted(positions)
        if begin <= position < end
    ]
    assert list(zip(inside.tolist(), ranges.tolist(), strict=True)) == expected


def test_as_many_positions_as_ranges_but_not_one_in_each() -> None:
    begins, ends = np.array([0, 10]), np.array([10, 20])
    inside, ranges = within(np.array([1, 2]), begins, ends)
    assert inside.tolist() == [1, 2]
    assert ranges.tolist() == [0, 0]


@given(
    text=st.binary(min_size=1, max_size=30),
    others=st.lists(st.binary(min_size=1, max_size=30), max_size=4),
)
def test_whether_texts_are_one(text: bytes, others: list[bytes]) -> None:
    for texts in ([text, *others], [text] * (len(others) + 1), [text, text[:-1] + b"\xff"]):
        content = b"".join(texts).ljust(WORD)
        lengths = np.array([len(one) for one in texts])
        begins = np.cumsum(lengths) - lengths
        assert FieldReader(memoryview(content)).is_same(begins, lengths) == (len(set(texts)) == 1)


def test_no_text_is_not_one_text() -> None:
    assert not FieldReader(memoryview(bytes(WORD))).is_same(np.array([0, 0]), np.array([0, 0]))
