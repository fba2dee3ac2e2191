"""The property string: official tables, round trips, and any text at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_proto.errors import FormatError
from aerobee_proto.properties import (
    decode_properties,
    encode_properties,
    find_property,
    remove_property,
    split_keys,
)
from proto.strategies import PROPERTIES, PROPERTY_TEXT
from proto.tables import golden_table

MESSY = st.text(st.sampled_from("ab\x01\x02"), max_size=30)


def test_official_strings_encode_and_decode() -> None:
    rows = golden_table("properties")
    assert len(rows) == 60
    for row in rows:
        assert decode_properties(row["string"]) == row["back"]
        if not any("\x01" in text or "\x02" in text for pair in row["properties"].items() for text in pair):
            # The official map is unordered: same pairs, in any order.
            assert sorted(encode_properties(row["properties"]).split("\x02")) == sorted(
                row["string"].split("\x02")
            )
            in_order = dict(piece.split("\x01") for piece in row["string"].split("\x02")[:-1])
            assert encode_properties(in_order) == row["string"]


def test_official_odd_strings_decode() -> None:
    rows = golden_table("propertiesDecode")
    assert len(rows) == 16
    for row in rows:
        assert decode_properties(row["string"]) == row["properties"]


@given(PROPERTIES)
def test_encode_then_decode_is_identity(properties: dict[str, str]) -> None:
    text = encode_properties(properties)
    assert decode_properties(text) == properties
    assert decode_properties(text.removesuffix("\x02")) == properties


@pytest.mark.parametrize("properties", [{"a\x01": "b"}, {"a": "b\x02"}, {"a": "\x01"}, {"\x02": "b"}])
def test_separators_in_names_and_values_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(FormatError, match="U\\+0001"):
        encode_properties(properties)


@given(st.text())
def test_any_text_decodes(text: str) -> None:
    for name, value in decode_properties(text).items():
        assert name
        assert value


@given(MESSY, st.sampled_from(["a", "b", "ab", "ba", "aa"]))
def test_find_agrees_with_decode(text: str, name: str) -> None:
    found = find_property(text.encode(), name.encode())
    assert (found.decode() if found is not None else None) == decode_properties(text).get(name)


@given(MESSY, st.sampled_from(["a", "b", "ab", "ba"]))
def test_removal_takes_one_name_and_keeps_the_others(text: str, name: str) -> None:
    expected = decode_properties(text)
    expected.pop(name, None)
    assert decode_properties(remove_property(text.encode(), name.encode()).decode()) == expected


def test_removal_of_an_absent_name_copies_nothing() -> None:
    raw = b"KEYS\x01k\x02"
    assert remove_property(raw, b"TAGS") is raw


@given(st.lists(PROPERTY_TEXT.filter(lambda key: " " not in key)), st.integers(1, 3))
def test_keys_split_at_blanks(keys: list[str], blanks: int) -> None:
    assert split_keys((" " * blanks).join(["", *keys, ""])) == keys
