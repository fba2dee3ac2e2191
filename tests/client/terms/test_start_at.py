from datetime import UTC, datetime, timedelta

import pytest

from aerobee.errors import InvalidMessage
from aerobee.terms.start_at import AtOffset, AtTime, QueueEnd, Where, parse_where

NOW = 1_700_000_000_000
MOMENT = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)  # NOW as a time

MEANT: dict[str, tuple[Where, object]] = {
    "earliest": ("earliest", QueueEnd.EARLIEST),
    "latest": ("latest", QueueEnd.LATEST),
    "now": ("now", QueueEnd.LATEST),
    "offset": (17, AtOffset(17)),
    "offset zero": (0, AtOffset(0)),
    "offset as text": ("17", AtOffset(17)),
    "time": (MOMENT, AtTime(NOW)),
    "ISO time": ("2023-11-14T23:13:20+01:00", AtTime(NOW)),
    "span": (timedelta(minutes=-5), AtTime(NOW - 300_000)),
    "ago ms": ("-250ms", AtTime(NOW - 250)),
    "ago s": ("-10s", AtTime(NOW - 10_000)),
    "ago m": ("-2m", AtTime(NOW - 120_000)),
    "ago h": ("-1h", AtTime(NOW - 3_600_000)),
    "ago d": ("-3d", AtTime(NOW - 3 * 86_400_000)),
    "ago w": (" -1w ", AtTime(NOW - 7 * 86_400_000)),
    "already parsed": (AtOffset(4), AtOffset(4)),
}


@pytest.mark.parametrize(("where", "expected"), MEANT.values(), ids=MEANT)
def test_every_form_gives_its_position(where: Where, expected: object) -> None:
    assert parse_where(where, NOW) == expected


@pytest.mark.parametrize("where", ["", "yesterday", "-1y", "1h", -5, True, None, 1.5, "-1h30m"])
def test_what_means_nothing_is_refused_with_the_forms(where: Where) -> None:
    with pytest.raises(InvalidMessage, match=r"offset|negative"):
        parse_where(where, NOW)


@pytest.mark.parametrize("where", [MOMENT.replace(tzinfo=None), "2023-11-14T23:13:20"])
def test_a_time_without_zone_is_refused(where: Where) -> None:
    with pytest.raises(InvalidMessage, match="has no zone"):
        parse_where(where, NOW)
