"""What a program in the broker's process gives and gets.

Touches  nothing. What was read comes as `StoredRecord`, a copy that lives on.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from aerobee_broker.messages.values import ReadKind
from aerobee_proto.records import StoredRecord

__all__ = ["ANY_QUEUE", "Message", "ReadResult", "Sent"]

ANY_QUEUE: Final = -1
NO_PROPERTIES: Final[Mapping[str, str]] = {}


class Message(NamedTuple):
    """A message to be sent. `properties` are RocketMQ's: tag and keys are TAGS and KEYS of them."""

    topic: str
    body: bytes
    queue_id: int = ANY_QUEUE
    properties: Mapping[str, str] = NO_PROPERTIES
    flag: int = 0  # the program's own


class Sent(NamedTuple):
    """Where a message lies. A message that waits for its time has the place where it waits."""

    unique_key: str
    queue_id: int
    queue_offset: int
    physical_offset: int  # what `at` finds it by
    recall_handle: str | None  # of a message with a delivery time


class ReadResult(NamedTuple):
    """What was read of a queue. Without messages `kind` says why, and the next read begins at `next_offset`."""

    kind: ReadKind
    messages: list[StoredRecord]
    next_offset: int
    min_offset: int
    max_offset: int
