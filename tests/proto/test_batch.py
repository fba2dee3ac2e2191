"""Batch bodies: the official table, round trips, damaged bytes."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_proto.batch import (
    ENTRIES_A_STEP,
    ENTRY_OVERHEAD,
    BatchEntry,
    decode_batch,
    decode_batch_steps,
    encode_batch,
    encode_batch_entry,
)
from aerobee_proto.errors import FormatError
from aerobee_proto.properties import decode_properties
from proto.strategies import BODIES, I32, TEXT
from proto.tables import golden_table, unbase64

ENTRIES = st.lists(st.builds(BatchEntry, I32, BODIES, TEXT), max_size=6)


def test_official_batches_decode_and_encode_again() -> None:
    rows = golden_table("batchBody")
    assert len(rows) == 8
    for row in rows:
        body = unbase64(row["bodyB64"])
        entries = decode_batch(body)
        assert len(entries) == len(row["messages"]) > 0
        for entry, message in zip(entries, row["messages"], strict=True):
            assert entry.flag == message["flag"]
            assert entry.body == unbase64(message["bodyB64"])
            assert entry.properties == message["propertiesString"]
            filled = {name: value for name, value in message["properties"].items() if value}
            assert decode_properties(entry.properties) == filled
        assert encode_batch(entries) == body


@given(ENTRIES, st.booleans())
def test_encode_then_decode_is_identity(entries: list[BatchEntry], as_view: bool) -> None:
    body = encode_batch(entries)
    assert len(body) == sum(
        ENTRY_OVERHEAD + len(entry.body) + len(entry.properties.encode()) for entry in entries
    )
    assert decode_batch(memoryview(body) if as_view else body) == entries


@given(ENTRIES.filter(bool), st.data())
def test_a_cut_batch_is_refused_unless_cut_between_entries(
    entries: list[BatchEntry], data: st.DataObject
) -> None:
    body = encode_batch(entries)
    cut = data.draw(st.integers(0, len(body) - 1))
    ends = [len(encode_batch(entries[:count])) for count in range(len(entries))]
    if cut in ends:
        assert decode_batch(body[:cut]) == entries[: ends.index(cut)]
    else:
        with pytest.raises(FormatError):
            decode_batch(body[:cut])


@given(ENTRIES.filter(bool), st.data())
def test_mutated_bytes_raise_only_format_errors(entries: list[BatchEntry], data: st.DataObject) -> None:
    body = bytearray(encode_batch(entries))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with suppress(FormatError):
        decode_batch(body)


@given(st.binary(max_size=200))
def test_any_bytes_raise_only_format_errors(body: bytes) -> None:
    with suppress(FormatError):
        decode_batch(body)


@pytest.mark.parametrize(
    ("at", "value", "fault"),
    [
        (0, b"\x00\x00\x00\x15", "claims 21"),
        (0, b"\xff\xff\xff\xff", "claims -1"),
        (0, b"\x7f\xff\xff\xff", "claims 2147483647"),
        (16, b"\xff\xff\xff\xff", "body length -1"),
        (16, b"\x00\x00\x01\x00", "body length 256"),
        (24, b"\xff\xff", "properties length -1"),
        (24, b"\x00\x00", "add up"),
    ],
)
def test_what_is_wrong_is_named(at: int, value: bytes, fault: str) -> None:
    body = bytearray(encode_batch_entry(b"body", b"K\x01v\x02"))
    body[at : at + len(value)] = value
    with pytest.raises(FormatError, match=fault):
        decode_batch(body)


def test_malformed_text_is_replaced() -> None:
    (entry,) = decode_batch(encode_batch_entry(b"body", b"K\x01\xff\x02"))
    assert entry.properties == "K\x01\ufffd\x02"


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(FormatError, match="32768"):
        encode_batch_entry(b"", b"p" * 32768)
    with pytest.raises(FormatError, match="flag 2147483648"):
        encode_batch_entry(b"", b"", 1 << 31)
    with pytest.raises(FormatError, match="32768"):
        encode_batch([BatchEntry(0, b"x", ""), BatchEntry(0, b"", "p" * 32768)])
    with pytest.raises(FormatError, match="flag 2147483648"):
        encode_batch([BatchEntry(0, b"x", ""), BatchEntry(1 << 31, b"", "")])


@pytest.mark.parametrize("more", [0, 1, ENTRIES_A_STEP, 3 * ENTRIES_A_STEP + 1])
def test_a_long_batch_is_read_in_steps(more: int) -> None:
    """16,384 messages were one step of 20 ms, before a batch of more than that was refused."""
    body = encode_batch([BatchEntry(0, b"x", "")]) * (ENTRIES_A_STEP + more)
    pauses = len(list(decode_batch_steps(body)))
    assert pauses == -(-more // ENTRIES_A_STEP)
    assert len(decode_batch(body)) == len(decode_batch(body, ENTRIES_A_STEP + more)) == ENTRIES_A_STEP + more
    with pytest.raises(FormatError, match="it holds more than"):
        decode_batch(body, ENTRIES_A_STEP + more - 1)
