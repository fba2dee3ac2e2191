"""Message ids: the official table, round trips, months, and any text at all."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_proto.errors import FormatError
from aerobee_proto.message_ids import (
    OffsetMessageId,
    UniqueKeyFactory,
    decode_offset_message_id,
    decode_unique_key,
    encode_offset_message_id,
)
from proto.strategies import HOSTS, OFFSETS
from proto.tables import golden_table


def ms(*parts: int) -> int:
    return int(datetime(*parts, tzinfo=UTC).timestamp() * 1000)  # type: ignore[arg-type,misc]


def made_at(key: str, now_ms: int, utc_offset_s: int = 0) -> int:
    """When a key was made, ms since the epoch: it holds no month, so the latest whose time is not after now."""
    zone = timezone(timedelta(seconds=utc_offset_s))
    start = datetime.fromtimestamp(0, zone) + timedelta(milliseconds=now_ms)
    start = start.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    into = timedelta(milliseconds=decode_unique_key(key).month_ms)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    found = (start + into - epoch) // timedelta(milliseconds=1)
    if found > now_ms:
        before = (start - timedelta(days=1)).replace(day=1)
        found = (before + into - epoch) // timedelta(milliseconds=1)
    return found


def test_official_table_of_offset_ids() -> None:
    rows = golden_table("offsetMessageId")
    assert len(rows) == 40
    for row in rows:
        assert encode_offset_message_id(row["host"], row["port"], row["offset"]) == row["msgId"]
        decoded = decode_offset_message_id(row["msgId"])
        host, port, offset = row["decoded"]
        assert ip_address(decoded.host) == ip_address(host)
        assert (decoded.port, decoded.physical_offset) == (port, offset)


def test_worked_examples() -> None:
    assert encode_offset_message_id("198.51.100.7", 10911, 1073742848) == "C633640700002A9F0000000040000400"
    assert decode_offset_message_id("7f00000100002a9f00000000000003e8") == OffsetMessageId(
        "127.0.0.1", 10911, 1000
    )


@given(HOSTS, OFFSETS)
def test_encode_then_decode_is_identity(host: tuple[str, int], offset: int) -> None:
    assert decode_offset_message_id(encode_offset_message_id(*host, offset)) == OffsetMessageId(*host, offset)


@given(st.one_of(st.text(max_size=60), st.text("0123456789abcdefABCDEF -_", min_size=30, max_size=58)))
def test_any_text_raises_only_format_errors(text: str) -> None:
    for decode in (decode_offset_message_id, decode_unique_key):
        with suppress(FormatError):
            decode(text)


@pytest.mark.parametrize("text", ["", "0" * 31, "0" * 57, "G" * 32, "0 " * 16, "-" + "0" * 31, "\uff10" * 32])
def test_what_is_not_an_id_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="32 or 56"):
        decode_offset_message_id(text)
    with pytest.raises(FormatError, match="32 or 56"):
        decode_unique_key(text)


def test_a_key_holds_what_it_was_made_of() -> None:
    now = ms(2024, 2, 29, 12)
    factory = UniqueKeyFactory("192.0.2.4", 0x12345, 0x18B4AAC2, lambda: now)
    key = factory.next_key()
    assert len(key) == 32
    assert key.startswith("C0000204234518B4AAC2")
    parts = decode_unique_key(key)
    assert (parts.ip, parts.pid, parts.salt) == ("192.0.2.4", 0x2345, 0x18B4AAC2)
    assert parts.month_ms == now - ms(2024, 2, 1)
    assert made_at(key, now) == now
    assert made_at(key, ms(2024, 3, 10)) == now


def test_ipv6_keys_are_longer() -> None:
    key = UniqueKeyFactory("2001:db8::1", 1, 2, lambda: ms(2024, 1, 1)).next_key()
    assert len(key) == 56
    assert decode_unique_key(key).ip == "2001:db8::1"


def test_keys_of_one_millisecond_differ() -> None:
    factory = UniqueKeyFactory("10.0.0.1", 1, 2, lambda: ms(2024, 1, 1, 5))
    assert len({factory.next_key() for _ in range(65536)}) == 65536


def test_several_keys_are_what_one_by_one_gives() -> None:
    together, single = (UniqueKeyFactory("10.0.0.1", 1, 2, lambda: ms(2024, 1, 1, 5)) for _ in range(2))
    assert together.next_keys(3) == [single.next_key() for _ in range(3)]
    assert together.next_keys(0) == []
    assert together.next_key() == single.next_key()


def test_the_month_is_followed_in_both_directions() -> None:
    times = [
        ms(2023, 12, 31, 23, 59),
        ms(2023, 12, 31, 23, 59),
        ms(2024, 1, 1),
        ms(2023, 12, 31),
        ms(2024, 3, 1),
    ]
    remaining = iter(times)
    factory = UniqueKeyFactory("10.0.0.1", 1, 2, lambda: next(remaining))
    for now in times[1:3]:
        assert made_at(factory.next_key(), now) == now
    for now in times[3:]:
        assert made_at(factory.next_keys(1)[0], now) == now


@given(st.integers(0, ms(9000, 1, 1)), st.integers(-12 * 3600, 14 * 3600))
def test_the_time_of_a_fresh_key_is_now(now: int, utc_offset_s: int) -> None:
    key = UniqueKeyFactory("10.0.0.1", 1, 2, lambda: now, utc_offset_s).next_key()
    assert made_at(key, now, utc_offset_s) == now


def test_a_time_outside_the_calendar_is_refused() -> None:
    with pytest.raises(FormatError, match="calendar"):
        UniqueKeyFactory("10.0.0.1", 1, 2, lambda: 1 << 62)
