"""A message in the hands of a group: what it says, and how its reader is done with it.

Every message is settled once: acked, sent back for later, or sent to the dead letters. Settling again changes nothing.
"""

from collections.abc import Mapping
from datetime import timedelta
from enum import Enum
from typing import Any, Final, Generic, Protocol, TypeVar

from aerobee.errors import ClientError, InvalidMessage
from aerobee.messages.codecs import Codec
from aerobee.messages.message import Message, SendResult
from aerobee.messages.owned_queue import OwnedQueue
from aerobee.terms.arguments import checked
from aerobee.terms.routes import MessageQueue
from aerobee_proto.properties import ORIGIN_MESSAGE_ID, SHARDING_KEY
from aerobee_proto.records import StoredRecord

__all__ = [
    "DEAD_LETTER_LEVEL",
    "DELAY_LEVELS_S",
    "AnyMessage",
    "DeadLetter",
    "DeliveredMessage",
    "GroupMessage",
    "Outcome",
    "RetryLater",
    "level_for",
]

T = TypeVar("T")

DEAD_LETTER_LEVEL: Final = -1
# The brokers' usual levels, in seconds; level 1 is the first.
DELAY_LEVELS_S: Final = (
    1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200
)  # fmt: skip


class Outcome(Enum):
    """How a message was settled."""

    ACKED = "acked"
    LATER = "later"
    DEAD = "dead"


class RetryLater(ClientError):
    """Raised by a handler: deliver this message again later. Arguments as for `GroupMessage.retry_later`."""

    def __init__(self, delay: timedelta | float | None = None, *, delay_level: int = 0) -> None:
        super().__init__(delay, delay_level)
        self.delay = delay
        self.delay_level = delay_level

    def __str__(self) -> str:
        return "the handler wants this message again later"


class DeadLetter(ClientError):
    """Raised by a handler: never deliver this message again, put it with the dead letters of the group."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the handler gives this message up: {self.reason or 'no reason given'}"


def level_for(delay: timedelta | float | None, delay_level: int) -> int:
    """The delay level for a wish: the level itself, or the first that lasts as long as `delay` (seconds).

    0 leaves the choice to the broker, which takes a longer one with each redelivery.
    """
    if delay is None:
        if not 0 <= delay_level <= len(DELAY_LEVELS_S):
            raise InvalidMessage(
                f"delay_level {delay_level} is not 1..{len(DELAY_LEVELS_S)}, or 0 for the broker's"
            )
        return delay_level
    if delay_level:
        raise InvalidMessage("give a delay or a delay_level, not both")
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
    for level, lasts in enumerate(DELAY_LEVELS_S, 1):
        if seconds <= lasts:
            return level
    raise InvalidMessage(f"a delay of {seconds:g} s is longer than the last level, {DELAY_LEVELS_S[-1]} s")


class DeliveredMessage(Message, Generic[T]):
    """What a message says that was delivered to a consumer group; see `Message` for what it carries."""

    __slots__ = ("codec", "deliveries", "owned")

    def __init__(
        self,
        record: StoredRecord,
        owned: OwnedQueue,
        body_size_max: int,
        codec: Codec[T] | None,
        deliveries: int = 0,
    ) -> None:
        super().__init__(record, owned.queue.broker_name, body_size_max)
        self.owned = owned
        self.deliveries = deliveries
        self.codec = codec

    @property
    def value(self) -> T:
        """The body as the consumer's codec reads it (bytes without a codec). CodecError when it cannot be read."""
        if self.codec is None:
            return self.body  # type: ignore[return-value]  # a consumer without a codec is one of bytes
        return self.codec.decode(self.body)

    @property
    def reconsume_times(self) -> int:
        """How often it was delivered before: by the broker, and to an orderly group by this client."""
        return self.record.reconsume_times + self.deliveries

    @property
    def sharding_key(self) -> str | None:
        """The key that chose its queue."""
        return self.properties.get(SHARDING_KEY)

    @property
    def origin_message_id(self) -> str:
        """Offset id of its first delivery."""
        return self.properties.get(ORIGIN_MESSAGE_ID) or self.offset_message_id

    @property
    def queue(self) -> MessageQueue:
        """The queue it was read from; the group's retry queue for a message that was sent back."""
        return self.owned.queue


class Settler(Protocol):
    """Who is told how a message ended."""

    def acked(self, message: "AnyMessage") -> None: ...

    async def later(self, message: "AnyMessage", level: int) -> None: ...

    async def reply(
        self, message: "AnyMessage", body: bytes | str, properties: Mapping[str, str] | None
    ) -> SendResult: ...


class GroupMessage(DeliveredMessage[T]):
    """One message delivered to a consumer group, and how its reader is done with it."""

    __slots__ = ("generation", "outcome", "settler", "taken_at", "watched")

    def __init__(
        self,
        record: StoredRecord,
        owned: OwnedQueue,
        settler: Settler,
        body_size_max: int,
        codec: Codec[T] | None,
        deliveries: int = 0,
    ) -> None:
        # Not by way of DeliveredMessage: a call less for each message, 1 % of what a group spends on one.
        Message.__init__(self, record, owned.queue.broker_name, body_size_max)
        self.owned = owned
        self.deliveries = deliveries
        self.codec = codec
        self.generation = owned.generation
        self.settler = settler
        self.taken_at = 0.0  # seconds of the event loop's clock
        self.outcome: Outcome | None = None
        self.watched: Any = None  # a watch's own notes, when somebody looks on

    async def ack(self) -> None:
        """This message is done: the group will not see it again once the offset is committed."""
        self.settle_acked()

    def settle_acked(self) -> None:
        """As `ack`, for code that is not asynchronous."""
        if self.outcome is None:
            self.outcome = Outcome.ACKED
            self.settler.acked(self)

    @checked
    async def retry_later(self, delay: timedelta | float | None = None, *, delay_level: int = 0) -> None:
        """Deliver this message again, to any member of the group.

        delay        the shortest time until then, in seconds or as timedelta; it is rounded up to a delay level
        delay_level  the level itself (1 is 1 s .. 18 is 2 h); without both each redelivery takes a longer one

        After `max_reconsume_times` redeliveries the broker puts the message with the dead letters. An orderly group
        waits `suspend_s` instead and delivers it here again, before what is behind it in the queue. A broadcasting
        group never repeats.
        """
        level = level_for(delay, delay_level)
        if self.outcome is None:
            self.outcome = Outcome.LATER
            await self.settler.later(self, level)

    async def dead_letter(self) -> None:
        """Put this message into the group's dead-letter topic (%DLQ%group), where an operator finds it."""
        if self.outcome is None:
            self.outcome = Outcome.DEAD
            await self.settler.later(self, DEAD_LETTER_LEVEL)

    @checked
    async def reply(self, body: bytes | str, *, properties: Mapping[str, str] | None = None) -> SendResult:
        """Answer a request (see `Producer.request`). InvalidMessage when this message is no request.

        Replying does not settle the message.
        """
        return await self.settler.reply(self, body, properties)


AnyMessage = GroupMessage[Any]  # whoever takes it does not look at its value
