"""Stored properties: what the broker adds and takes out, and that the quick way gives what the general one does."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aerobee_broker.messages.stored_properties import StoredProperties
from aerobee_proto.properties import decode_properties
from system.running import text_of

ADDED = {"MSG_REGION": "here", "TRACE_ON": "true", "CLUSTER": "c1"}
MADE_KEY = "MADE"


def make(*, trace_on: bool = True) -> StoredProperties:
    return StoredProperties(region="here", trace_on=trace_on, cluster="c1", new_unique_key=lambda: MADE_KEY)


def stored(text: str) -> dict[str, str]:
    """The properties that reach the disk."""
    raw, _ = make().prepare(text)
    return decode_properties(raw.decode())


KEPT = {"UNIQ_KEY": "K"}

RULES = {
    "what a client sends stays": ({"TAGS": "a", "KEYS": "k1 k2", **KEPT}, {"TAGS": "a", "KEYS": "k1 k2", **KEPT}),
    "a unique key is added where there is none": ({"TAGS": "a"}, {"TAGS": "a", "UNIQ_KEY": MADE_KEY}),
    "none at all": ({}, {"UNIQ_KEY": MADE_KEY}),
    "WAIT=true stays": ({"A": "1", "WAIT": "true", **KEPT}, {"A": "1", "WAIT": "true", **KEPT}),
    "WAIT=false stays": ({"WAIT": "false", **KEPT}, {"WAIT": "false", **KEPT}),
    "WAIT alone stays": ({"WAIT": "true"}, {"WAIT": "true", "UNIQ_KEY": MADE_KEY}),
    "POP_CK goes": ({"POP_CK": "0 1 2", **KEPT}, KEPT),
    "a record checksum goes": ({"__CRC32C": "0" * 24, **KEPT}, KEPT),
    "the official checksum goes": ({"__CRC32#": "123456789", **KEPT}, KEPT),
    "region, trace switch and cluster are the broker's": (
        {"MSG_REGION": "there", "TRACE_ON": "false", "CLUSTER": "c9", **KEPT},
        KEPT,
    ),
    "text of any language stays": ({"städte": "Zürich 東京 😀", **KEPT}, {"städte": "Zürich 東京 😀", **KEPT}),
}  # fmt: skip


@pytest.mark.parametrize(("sent", "kept"), RULES.values(), ids=RULES)
@pytest.mark.parametrize("last", ["\x02", ""], ids=["last separator", "no last separator"])
def test_the_rules(sent: dict[str, str], kept: dict[str, str], last: str) -> None:
    text = text_of(sent).removesuffix("\x02") + (last if sent else "")
    raw, mapping = make().prepare(text)
    assert decode_properties(raw.decode()) == kept | ADDED
    assert raw.endswith(b"\x02")
    assert mapping.items() >= kept.items()


MALFORMED = {
    "a name without a value": "A\x02UNIQ_KEY\x01K\x02",
    "an empty value": "A\x01\x02UNIQ_KEY\x01K\x02",
    "an empty name": "\x01v\x02UNIQ_KEY\x01K\x02",
    "separators alone": "\x02\x02\x01\x02UNIQ_KEY\x01K\x02",
    "the pair separator twice": "UNIQ_KEY\x01K\x02\x02",
    "a separator in front": "\x02UNIQ_KEY\x01K",
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
def test_broken_pieces_are_not_stored(text: str) -> None:
    assert stored(text) == KEPT | ADDED


def test_the_last_of_equal_names_wins_and_is_stored_once() -> None:
    raw, mapping = make().prepare("A\x011\x02UNIQ_KEY\x01K\x02A\x012\x02")
    assert mapping["A"] == "2"
    assert raw.count(b"A\x01") == 1
    assert decode_properties(raw.decode()) == {"A": "2"} | KEPT | ADDED


def test_a_value_keeps_a_name_separator_inside_it() -> None:
    assert stored("A\x01b\x01c\x02UNIQ_KEY\x01K\x02") == {"A": "b\x01c"} | KEPT | ADDED


def test_each_added_property_is_stored_once() -> None:
    raw, _ = make().prepare(text_of({"CLUSTER": "other", "UNIQ_KEY": "K"}))
    assert raw.count(b"CLUSTER\x01") == 1


def test_the_trace_switch_is_the_broker_s() -> None:
    raw, _ = make(trace_on=False).prepare(text_of({"TRACE_ON": "true", "UNIQ_KEY": "K"}))
    assert decode_properties(raw.decode())["TRACE_ON"] == "false"


names = st.sampled_from(
    ["A", "TAGS", "KEYS", "UNIQ_KEY", "WAIT", "WAITER", "POP_CK", "CLUSTER", "MSG_REGION", "__CRC32C", ""]
) | st.text(max_size=4)
values = st.sampled_from(["true", "false", "K", ""]) | st.text(max_size=6)
pairs = st.tuples(names, values).map(lambda pair: f"{pair[0]}\x01{pair[1]}\x02")
texts = st.builds(
    lambda pieces, key, cut: ("".join(pieces) + key)[: -1 if cut else None],
    st.lists(pairs | st.text("\x01\x02AW", max_size=3), max_size=6),
    st.sampled_from(["", "UNIQ_KEY\x01K\x02"]),
    st.booleans(),
)


@given(texts)
@example("WAIT\x01true\x02UNIQ_KEY\x01K\x02WAIT\x01false\x02")
@example("UNIQ_KEY\x01\x02UNIQ_KEY\x01K")
def test_the_quick_way_stores_what_the_general_way_does(text: str) -> None:
    properties = make()
    raw, mapping = properties.prepare(text)
    general_raw, general_mapping = properties.prepare_any(text)
    assert raw == general_raw
    assert mapping | ADDED == general_mapping


@given(texts)
def test_mapping_and_bytes_say_the_same(text: str) -> None:
    raw, mapping = make().prepare(text)
    removed = {"POP_CK", "__CRC32C", "__CRC32#"}
    visible = {name: value for name, value in (mapping | ADDED).items() if name not in removed}
    assert decode_properties(raw.decode()) == visible
    assert raw.endswith(b"\x02")
    assert mapping["UNIQ_KEY"]
