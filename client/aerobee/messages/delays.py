"""When a message is to be delivered: what a person writes, turned into the properties that brokers act upon.

    delay_level   1..18, the brokers' fixed levels
    deliver_at    a time: datetime with a zone, or epoch milliseconds
    deliver_after a span: timedelta, or seconds

Brokers keep times to 1 s or better, and refuse those further away than they are set up for (usually 3 days).
"""

import base64
import binascii
from datetime import datetime, timedelta
from typing import NamedTuple

from aerobee.errors import InvalidMessage
from aerobee_proto.properties import TIMER_DELAY_MS, TIMER_DELIVER_MS

__all__ = ["RecallHandle", "parse_recall_handle", "timer_text"]

HANDLE_VERSION = "v1"


def timer_text(
    deliver_at: datetime | int | None, deliver_after: timedelta | float | None, delay_level: int
) -> str:
    """The timer property of a message in property form. InvalidMessage when the wishes contradict each other."""
    given = (deliver_at is not None) + (deliver_after is not None) + (delay_level != 0)
    if given > 1:
        raise InvalidMessage("give one of delay_level, deliver_at and deliver_after")
    if deliver_at is not None:
        return f"{TIMER_DELIVER_MS}\x01{_time_ms(deliver_at)}\x02"
    if deliver_after is not None:
        return f"{TIMER_DELAY_MS}\x01{_span_ms(deliver_after)}\x02"
    return ""


def _time_ms(when: datetime | int) -> int:
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise InvalidMessage(f"time {when!s} has no zone; add one, for example datetime.now(UTC)")
        return round(when.timestamp() * 1000)
    if isinstance(when, bool) or not isinstance(when, int) or when < 0:
        raise InvalidMessage(f"deliver_at {when!r} is neither a datetime nor epoch milliseconds")
    return when


def _span_ms(span: timedelta | float) -> int:
    if isinstance(span, bool) or not isinstance(span, timedelta | int | float):
        raise TypeError("deliver_after")
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if not 0 <= seconds < 1e9:
        raise InvalidMessage(f"deliver_after {span!r} is not a span of time from now on")
    return round(seconds * 1000)


class RecallHandle(NamedTuple):
    """What the handle of a timed message says."""

    topic: str
    broker_name: str
    deliver_ms: int
    message_id: str


def parse_recall_handle(handle: str) -> RecallHandle:
    """The parts of a handle; InvalidMessage for a text that is none."""
    try:
        text = base64.urlsafe_b64decode(handle.encode() + b"=" * (-len(handle) % 4)).decode()
        version, topic, broker_name, deliver_ms, message_id = text.split(" ")
        if version == HANDLE_VERSION:
            return RecallHandle(topic, broker_name, int(deliver_ms), message_id)
    except (binascii.Error, ValueError):
        pass
    raise InvalidMessage(f"{handle[:80]!r} is not the recall handle of a message with a delivery time")
