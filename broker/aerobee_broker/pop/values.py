"""What is asked of POP and what is answered: values that say nothing of how they travel.

Touches  nothing.

A pop or a wish for a notice is answered with one `Outcome`, at once or, while it waits, later.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from aerobee_broker.messages.values import Failed
from aerobee_broker.pop.extra_info import PopInfo, retry_mark
from aerobee_proto.errors import LimitReached
from aerobee_proto.names import GroupQueue
from aerobee_store.disk.page_cache import NotInMemory
from aerobee_store.reading.get_message import GetResult

__all__ = [
    "ALL_QUEUES",
    "Done",
    "Found",
    "Nothing",
    "Notice",
    "NoticeQuery",
    "Outcome",
    "Peeked",
    "PopQuery",
    "Popped",
    "QueuePart",
]

ALL_QUEUES: Final = -1


class PopQuery(msgspec.Struct, gc=False, kw_only=True):
    """A group's wish for the next messages of a topic. It belongs to the use case from the call on."""

    place: GroupQueue  # queue id ALL_QUEUES: all queues of the topic
    count: int  # messages at most
    invisible_ms: int  # what is not acknowledged by then comes back
    born_ms: int = 0  # when it was sent; 0: now
    wait_ms: int = 0  # from then on
    from_first: bool = True  # where a new group begins: at the first message, or at the last one
    in_order: bool = False
    attempt_id: str | None = None  # in order: the same one again is handed the same messages
    expression: str | None = None
    expression_type: str | None = None


class NoticeQuery(msgspec.Struct, gc=False, kw_only=True):
    """A wish to know when a group has messages, which takes none."""

    place: GroupQueue
    born_ms: int = 0
    wait_ms: int = 0
    in_order: bool = False
    attempt_id: str | None = None


class QueuePart(msgspec.Struct, gc=False):
    """What was found in one queue of the topic, or of a retry topic of it."""

    queue: GroupQueue
    start_offset: int  # where the read began, and its check-point does
    result: GetResult
    offsets: Sequence[int]  # of its messages
    # Offset -> times handed out before, where that is not 0; None unless popped in order.
    counts: Mapping[int, int] | None = None


class Popped:
    """What one read of a group's queues came to. `rest` messages are left in the queues that it looked at; `missing`
    has to be brought into memory for some of them."""

    __slots__ = ("count", "missing", "parts", "rest")

    def __init__(self) -> None:
        self.parts: list[QueuePart] = []
        self.count = 0
        self.rest = 0
        self.missing: list[NotInMemory] = []

    def take(self, queue: GroupQueue, offset: int, result: GetResult, offsets: Sequence[int]) -> None:
        """Add what was found in one more queue."""
        self.parts.append(QueuePart(queue, offset, result, offsets))
        self.count += result.count


class Found(msgspec.Struct, gc=False):
    """Messages that are the group's now, as records: those of retry topics under the topic's own name."""

    parts: list[QueuePart]
    records: list[bytes | memoryview]
    pop_time: int
    invisible_ms: int
    revive_queue: int  # ORDERED when they were popped in order
    rest: int

    def named(self, part: QueuePart, broker_name: str) -> PopInfo:
        """What an acknowledgement of a message of `part` has to say."""
        return PopInfo(
            part.start_offset,
            self.pop_time,
            self.invisible_ms,
            self.revive_queue,
            retry_mark(part.queue.topic),
            broker_name,
            part.queue.queue_id,
        )


class Nothing(msgspec.Struct, gc=False):
    """No messages, and it does not wait any longer."""

    reason: str
    now_ms: int
    rest: int = 0
    is_full: bool = False  # too many messages are out, or too many wait
    limit: LimitReached | None = None  # the caller's own bound that was reached


class Notice(msgspec.Struct, gc=False):
    """Whether the group has messages now."""

    has_messages: bool
    is_full: bool = False  # too many wait
    limit: LimitReached | None = None


class Peeked(msgspec.Struct, gc=False):
    """The group's next messages, which nobody was handed."""

    records: list[bytes | memoryview]
    count: int
    rest: int


Outcome = Found | Nothing | Notice | Failed
Done = Callable[[Outcome], None]
