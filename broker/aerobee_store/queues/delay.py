"""The tag field of queue entries: a tag hash everywhere, a delivery time in the schedule topic.

Touches  nothing.
"""

from aerobee_proto.javahash import tag_hash
from aerobee_proto.names import SCHEDULE_TOPIC
from aerobee_proto.properties import DELAY, TAGS, find_property

__all__ = ["entry_tag"]

_UNKNOWN_LEVEL_MS = 1000
_DELAY = DELAY.encode()
_TAGS = TAGS.encode()


def entry_tag(topic: str, properties: bytes, store_timestamp: int, delay_levels_ms: tuple[int, ...]) -> int:
    """What belongs in the tag field of the queue entry of a message with these raw `properties`.

    In the schedule topic, with a DELAY level over 0: the time in ms at which the message is due; a level
    beyond the table counts as its last. Else the Java hash of TAGS, 0 without any.
    """
    if topic == SCHEDULE_TOPIC:
        level = _delay_level(properties)
        if level > 0:
            return store_timestamp + _delay(level, delay_levels_ms)
    tags = find_property(properties, _TAGS)
    return tag_hash(tags.decode("utf-8", "replace")) if tags else 0


def _delay_level(properties: bytes) -> int:
    text = find_property(properties, _DELAY)
    try:
        return int(text) if text else 0
    except ValueError:
        return 0


def _delay(level: int, delay_levels_ms: tuple[int, ...]) -> int:
    if not delay_levels_ms:
        return _UNKNOWN_LEVEL_MS
    return delay_levels_ms[min(level, len(delay_levels_ms)) - 1]
