"""What RocketMQ writes into its files becomes standard JSON; anything else is refused, not steered round."""

import contextlib
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_proto.errors import FormatError
from aerobee_proto.written_json import read_written, standard_form

CASES = {
    b'{"offsetTable":{"T@g":{0:5,1:7}}}': b'{"offsetTable":{"T@g":{"0":5,"1":7}}}',
    b'{\n\t-1:{2:[3,{4:"5"}]}}': b'{\n\t"-1":{"2":[3,{"4":"5"}]}}',
    b'{"a":[1,2.5,-3e4,true,null],"b{0:1":"\\"{1:"}': b'{"a":[1,2.5,-3e4,true,null],"b{0:1":"\\"{1:"}',
}


@pytest.mark.parametrize("raw", [b'{"a":"\xff"}', b'{"\xc3(":{0:1}}', b"\xff"])
def test_text_that_is_no_utf_8_is_refused_with_its_place(raw: bytes) -> None:
    with pytest.raises(FormatError, match="byte"):
        read_written(raw)


@pytest.mark.parametrize("raw", CASES)
def test_bare_numbers_get_their_quotes(raw: bytes) -> None:
    assert standard_form(raw) == CASES[raw]


@pytest.mark.parametrize(
    "raw",
    [
        b"{'a':1}",
        b"{a:1}",
        b'{"a":1}//',
        b'{"a":1,}',
        b'{"a":1 "b":2}',
        b'{"a":01}',
        b'{"a":1L}',
        b"{1.5:1}",
        b'{"a":"\x00"}',
        b'{"a":"\x1f"}',
        b'{"a":"\\x41"}',
        b'{"a":\xff}',
        b'{"a":"\xff"}',
        b'{{"topic":"T"}:1}',
        b'{"a":undefined}',
        b'{"a":1}}',
        b"[1,,2]",
        b"",
    ],
)
def test_what_only_a_tolerant_reader_takes_is_refused(raw: bytes) -> None:
    with pytest.raises((FormatError, msgspec.DecodeError)):
        msgspec.json.decode(standard_form(raw))


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 60), 1 << 60) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(values, st.booleans())
def test_standard_json_stays_as_it_is(value: object, plain: bool) -> None:
    raw = json.dumps(value, ensure_ascii=plain, indent=1).encode("utf-8", "surrogatepass")
    try:
        raw.decode()
    except UnicodeDecodeError:
        return
    assert standard_form(raw) == raw


@given(st.binary(max_size=60))
def test_any_bytes_give_a_text_or_a_format_error(raw: bytes) -> None:
    with contextlib.suppress(FormatError):
        assert isinstance(standard_form(raw), bytes)
