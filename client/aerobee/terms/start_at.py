"""Where reading starts and ends: what a person writes, turned into a value.

    "earliest" | "latest" | "now"   the ends of each queue ("now" is "latest")
    17                              that queue offset in every queue read
    datetime (with a zone)          the first message stored at or after that time
    timedelta(hours=-1) | "-1h"     that long before now; units ms, s, m, h, d, w
    "2026-05-01T12:00:00+02:00"     a time as ISO 8601 text, with a zone

Pure: the clock comes in as epoch milliseconds.
"""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from aerobee.errors import InvalidMessage

__all__ = ["AtOffset", "AtTime", "Position", "QueueEnd", "Where", "floor_of", "parse_where"]


class QueueEnd(Enum):
    """One of the two ends of a queue."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(slots=True, frozen=True)
class AtOffset:
    """A queue offset."""

    offset: int


@dataclass(slots=True, frozen=True)
class AtTime:
    """A store time, epoch milliseconds."""

    timestamp_ms: int


Position = QueueEnd | AtOffset | AtTime
Where = str | int | datetime | timedelta | QueueEnd | AtOffset | AtTime

_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_AGO: Final = re.compile(r"-(\d{1,9})(ms|s|m|h|d|w)")
_FORMS: Final = 'one of "earliest", "latest", an offset, "-1h", a datetime or ISO time with a zone'


def parse_where(where: Where, now_ms: int) -> Position:
    """The position meant by `where`; InvalidMessage when it means none."""
    match where:
        case QueueEnd() | AtOffset() | AtTime():
            return where
        case bool():
            raise InvalidMessage(f"position {where!r} is not {_FORMS}")
        case int():
            return _offset(where)
        case datetime():
            return _time(where, where)
        case timedelta():
            return AtTime(now_ms + round(where.total_seconds() * 1000))
        case str():
            return _parse_text(where.strip(), now_ms)
    raise InvalidMessage(f"position {where!r} is not {_FORMS}")


def floor_of(position: Position) -> int:
    """The offset before which nothing may be handed out: that of who asks for an offset."""
    return position.offset if isinstance(position, AtOffset) else 0


def _offset(offset: int) -> AtOffset:
    if offset < 0:
        raise InvalidMessage(
            f'position {offset} is negative; for "that long ago" write "-{-offset}s" or "-1h"'
        )
    return AtOffset(offset)


def _time(when: datetime, written: object) -> AtTime:
    if when.tzinfo is None:
        raise InvalidMessage(f"time {written!s} has no zone; add one, for example datetime.now(UTC)")
    return AtTime(round(when.timestamp() * 1000))


def _parse_text(text: str, now_ms: int) -> Position:
    if text in ("latest", "now"):
        return QueueEnd.LATEST
    if text == "earliest":
        return QueueEnd.EARLIEST
    if text.isdecimal():
        return AtOffset(int(text))
    if ago := _AGO.fullmatch(text):
        return AtTime(now_ms - int(ago[1]) * _UNIT_MS[ago[2]])
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidMessage(f"position {text!r} is not {_FORMS}") from None
    return _time(when, text)
