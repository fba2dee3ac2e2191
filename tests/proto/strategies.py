"""Hypothesis strategies for the values of the protocol, for every test that needs them."""

from typing import Any

from hypothesis import strategies as st

I16 = st.integers(-(1 << 15), (1 << 15) - 1)
I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
COUNTS = st.integers(0, (1 << 31) - 1)
OFFSETS = st.integers(0, (1 << 63) - 1)

NAME_CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-%|"
TOPICS = st.text(NAME_CHARACTERS, min_size=1, max_size=127)
RETRY_TOPICS = st.text(NAME_CHARACTERS, min_size=1, max_size=248).map("%RETRY%".__add__)

TEXT_CHARACTERS = st.characters(exclude_categories=["Cs"])
# Text that survives UTF-8, without the two property separators.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), max_size=30)
PROPERTY_TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=20
)
PROPERTIES = st.dictionaries(PROPERTY_TEXT, PROPERTY_TEXT, max_size=6)

IPV4_HOSTS = st.tuples(st.ip_addresses(v=4).map(str), st.integers(0, 65535))
IPV6_HOSTS = st.tuples(st.ip_addresses(v=6).map(str), st.integers(0, 65535))
HOSTS = st.one_of(IPV4_HOSTS, IPV6_HOSTS)
BODIES = st.binary(max_size=300)


@st.composite
def record_fields(draw: st.DrawFn) -> dict[str, Any]:
    """Keyword arguments for records.encode_record, without its checksum switches."""
    properties = draw(PROPERTIES)
    properties.update(
        draw(st.fixed_dictionaries({}, optional={"KEYS": PROPERTY_TEXT, "TAGS": PROPERTY_TEXT}))
    )
    return {
        "topic": draw(st.one_of(TOPICS, RETRY_TOPICS)),
        "queue_id": draw(COUNTS),
        "queue_offset": draw(OFFSETS),
        "physical_offset": draw(OFFSETS),
        "born_timestamp": draw(I64),
        "born_host": draw(HOSTS),
        "store_timestamp": draw(I64),
        "store_host": draw(HOSTS),
        "body": draw(BODIES),
        "properties": "".join(f"{name}\x01{value}\x02" for name, value in properties.items()),
        "flag": draw(I32),
        "sys_flag": draw(st.integers(0, 0x7FF)),
        "reconsume_times": draw(I32),
        "prepared_transaction_offset": draw(OFFSETS),
    }


def json_values(max_leaves: int = 20) -> st.SearchStrategy[Any]:
    """Values that JSON can carry, without null members and without the name `$ref`."""
    leaves = st.one_of(
        st.booleans(),
        I64,
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(TEXT_CHARACTERS, max_size=20),
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.dictionaries(
                st.text(TEXT_CHARACTERS, max_size=8).filter(lambda key: key != "$ref"), inner, max_size=4
            ),
        ),
        max_leaves=max_leaves,
    )
