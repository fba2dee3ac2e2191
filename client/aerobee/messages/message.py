"""What goes in and what comes out: outgoing messages, send results, received messages.

A received message holds the stored record: text and properties are decoded when they are asked
for, a compressed body is inflated at the first look and kept.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from aerobee.errors import DamagedRecord
from aerobee.terms.routes import MessageQueue
from aerobee_proto.codes import SysFlag
from aerobee_proto.compression import decompress_body
from aerobee_proto.errors import FormatError
from aerobee_proto.message_ids import encode_offset_message_id
from aerobee_proto.names import RETRY_PREFIX
from aerobee_proto.properties import RETRY_TOPIC
from aerobee_proto.records import StoredRecord

if TYPE_CHECKING:
    from aerobee.messages.codecs import Codec

__all__ = ["Message", "MessageBatch", "OutgoingMessage", "SendResult", "SendStatus"]


T = TypeVar("T")


class SendStatus(Enum):
    """How safely a message is stored. All of them mean stored; the last three with a weaker guarantee."""

    OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


class SendResult(NamedTuple):
    """Where a message was stored.

    message_id         unique id given by this client; `query_by_id` finds the message by it
    queue, queue_offset  its queue and queue offset (of the waiting queue for delayed messages)
    offset_message_id  id made of the broker's address and the position in its commit log
    recall_handle      of a message with a delivery time: what `Producer.cancel` takes
    """

    message_id: str
    queue: MessageQueue
    queue_offset: int
    offset_message_id: str
    status: SendStatus = SendStatus.OK
    recall_handle: str | None = None


@dataclass(slots=True)
class OutgoingMessage:
    """One message of `send_batch`. Text bodies are sent as UTF-8; several keys are a list."""

    body: bytes | str
    tags: str | None = None
    keys: str | Iterable[str] | None = None
    properties: Mapping[str, str] | None = None
    flag: int = 0


class Message:
    """One received message.

    `body` inflates a compressed body at the first look; DamagedRecord when that fails or gets too large.
    """

    __slots__ = ("_body", "body_size_max", "broker_name", "record")

    def __init__(self, record: StoredRecord, broker_name: str, body_size_max: int) -> None:
        self.record = record
        self.broker_name = broker_name
        self.body_size_max = body_size_max
        self._body: bytes | None = None

    @property
    def body(self) -> bytes:
        """The body as it was sent."""
        body = self._body
        if body is None:
            record = self.record
            body = self._inflate() if record.sys_flag & SysFlag.COMPRESSED else record.body
            self._body = body
        return body

    def decode(self, codec: "Codec[T]") -> T:
        """The body as a value, read by a codec (`aerobee.JsonCodec(Order)`). CodecError when it is none."""
        return codec.decode(self.body)

    def text(self, encoding: str = "utf-8") -> str:
        """The body as text."""
        return self.body.decode(encoding)

    @property
    def topic(self) -> str:
        """The topic it was sent to; for a redelivered message the first one, not the retry topic."""
        topic = self.record.topic
        return self.properties.get(RETRY_TOPIC, topic) if topic.startswith(RETRY_PREFIX) else topic

    @property
    def queue(self) -> MessageQueue:
        """The queue it was read from."""
        return MessageQueue(self.record.topic, self.broker_name, self.record.queue_id)

    @property
    def queue_id(self) -> int:
        return self.record.queue_id

    @property
    def queue_offset(self) -> int:
        """Queue offset in its queue."""
        return self.record.queue_offset

    @property
    def tags(self) -> str | None:
        return self.record.tags

    @property
    def keys(self) -> tuple[str, ...]:
        return self.record.keys

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, those of the protocol included; not to be changed."""
        return self.record.property_map

    @property
    def message_id(self) -> str:
        """The unique id that the sender gave it; without one the offset form."""
        return self.record.unique_key or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """Id made of the broker's address and the position in its commit log."""
        host, port = self.record.store_host
        return encode_offset_message_id(host, port, self.record.physical_offset)

    @property
    def flag(self) -> int:
        """The sender's own number; the broker does not look at it."""
        return self.record.flag

    @property
    def born_timestamp_ms(self) -> int:
        """When the sender made it, by the sender's clock; epoch milliseconds."""
        return self.record.born_timestamp

    @property
    def store_timestamp_ms(self) -> int:
        """When the broker stored it, by the broker's clock; epoch milliseconds."""
        return self.record.store_timestamp

    @property
    def born_time(self) -> datetime:
        return datetime.fromtimestamp(self.record.born_timestamp / 1000, UTC)

    @property
    def store_time(self) -> datetime:
        return datetime.fromtimestamp(self.record.store_timestamp / 1000, UTC)

    @property
    def born_host(self) -> tuple[str, int]:
        """Address and port of the sender, as the broker saw it."""
        return self.record.born_host

    @property
    def reconsume_times(self) -> int:
        """How often it was delivered again."""
        return self.record.reconsume_times

    def __repr__(self) -> str:
        record = self.record
        return (
            f"<Message {self.message_id} topic={self.topic!r} queue={self.broker_name}/{record.queue_id}"
            f" offset={record.queue_offset} body={len(record.body)} bytes>"
        )

    def _inflate(self) -> bytes:
        record = self.record
        try:
            return decompress_body(record.body, record.sys_flag, self.body_size_max)
        except FormatError as broken:
            raise DamagedRecord(
                record.topic, self.broker_name, record.queue_id, record.queue_offset, str(broken)
            ) from broken


class MessageBatch(Sequence[Message]):
    """Messages of one queue that came with one pull, oldest first.

    next_offset              queue offset after the batch: what to commit when all of it is done
    min_offset, max_offset   ends of the queue when the broker answered; max_offset - next_offset is the lag
    """

    __slots__ = ("max_offset", "messages", "min_offset", "next_offset", "queue")

    def __init__(
        self, queue: MessageQueue, messages: list[Message], next_offset: int, min_offset: int, max_offset: int
    ) -> None:
        self.queue = queue
        self.messages = messages
        self.next_offset = next_offset
        self.min_offset = min_offset
        self.max_offset = max_offset

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # as list's
        return self.messages[index]

    def __repr__(self) -> str:
        return f"<MessageBatch {self.queue} {len(self.messages)} messages, next offset {self.next_offset}>"
