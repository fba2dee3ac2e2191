import base64
from datetime import UTC, datetime, timedelta

import pytest

from aerobee.errors import InvalidMessage
from aerobee.messages.delays import RecallHandle, parse_recall_handle, timer_text
from aerobee.messages.group_message import level_for

AT = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("at", "after", "text"),
    [
        (AT, None, "TIMER_DELIVER_MS\x011777636800000\x02"),
        (1_777_636_800_000, None, "TIMER_DELIVER_MS\x011777636800000\x02"),
        (None, timedelta(minutes=1), "TIMER_DELAY_MS\x0160000\x02"),
        (None, 0.5, "TIMER_DELAY_MS\x01500\x02"),
        (None, None, ""),
    ],
)
def test_wishes_become_properties(
    at: datetime | int | None, after: timedelta | float | None, text: str
) -> None:
    assert timer_text(at, after, 0) == text


@pytest.mark.parametrize(
    ("at", "after", "level", "fault"),
    [
        (AT.replace(tzinfo=None), None, 0, "has no zone"),
        (-1, None, 0, "neither a datetime nor"),
        (True, None, 0, "neither a datetime nor"),
        (None, -1.0, 0, "not a span of time"),
        (None, float("nan"), 0, "not a span of time"),
        (AT, 1.0, 0, "give one of"),
        (None, 1.0, 3, "give one of"),
    ],
)
def test_wishes_that_make_no_sense_are_refused(
    at: datetime | int | None, after: float | None, level: int, fault: str
) -> None:
    with pytest.raises(InvalidMessage, match=fault):
        timer_text(at, after, level)


def test_a_recall_handle_is_read() -> None:
    handle = base64.urlsafe_b64encode(b"v1 T broker-a 1700000000001 0A0B").decode()
    assert parse_recall_handle(handle) == RecallHandle("T", "broker-a", 1700000000001, "0A0B")
    assert parse_recall_handle(handle.rstrip("=")) == parse_recall_handle(handle)


@pytest.mark.parametrize("text", [b"v2 T b 1 0A", b"v1 T b x 0A", b"v1 T b 1", b"\xff\xfe"])
def test_other_texts_are_no_handles(text: bytes) -> None:
    with pytest.raises(InvalidMessage, match="not the recall handle"):
        parse_recall_handle(base64.urlsafe_b64encode(text).decode())
    with pytest.raises(InvalidMessage):
        parse_recall_handle("§$%")


def test_spans_become_the_level_that_lasts_as_long() -> None:
    spans = (0, 1, 1.5, timedelta(seconds=30), 31, 7200)
    assert [level_for(span, 0) for span in spans] == [1, 1, 2, 4, 5, 18]
    assert (level_for(None, 0), level_for(None, 7)) == (0, 7)
    for delay, level in ((7201, 0), (None, 19), (None, -1), (1, 1)):
        with pytest.raises(InvalidMessage):
            level_for(delay, level)
