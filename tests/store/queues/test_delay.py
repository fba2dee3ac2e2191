"""What stands in the tag field of queue entries."""

import pytest

from aerobee_proto.names import SCHEDULE_TOPIC
from aerobee_store.queues.delay import entry_tag
from aerobee_store.terms.config import DEFAULT_DELAY_LEVELS_MS as LEVELS


def test_a_tag_is_its_java_hash() -> None:
    assert entry_tag("T", b"KEYS\x01k\x02TAGS\x01TagA\x02", 5, LEVELS) == 2598919
    assert entry_tag("T", b"TAGS\x01polygenelubricants\x02", 5, LEVELS) == -2147483648
    assert entry_tag("T", b"KEYS\x01k\x02", 5, LEVELS) == 0


@pytest.mark.parametrize(
    ("level", "delay_ms"), [(b"1", 1000), (b"5", 60_000), (b"18", 7_200_000), (b"19", 7_200_000)]
)
def test_a_delayed_message_has_the_time_when_it_is_due(level: bytes, delay_ms: int) -> None:
    properties = b"TAGS\x01TagA\x02DELAY\x01" + level + b"\x02"
    assert entry_tag(SCHEDULE_TOPIC, properties, 1_000_000, LEVELS) == 1_000_000 + delay_ms
    assert entry_tag("Other", properties, 1_000_000, LEVELS) == 2598919


@pytest.mark.parametrize("level", [b"0", b"-1", b"soon", b""])
def test_a_level_that_is_none_leaves_the_tag(level: bytes) -> None:
    properties = b"TAGS\x01TagA\x02DELAY\x01" + level + b"\x02"
    assert entry_tag(SCHEDULE_TOPIC, properties, 1_000_000, LEVELS) == 2598919


def test_without_levels_a_message_is_due_in_a_second() -> None:
    assert entry_tag(SCHEDULE_TOPIC, b"DELAY\x013\x02", 1_000, ()) == 2_000
