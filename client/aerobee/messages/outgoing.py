"""Outgoing messages: arguments checked, encoded as they travel.

Touches  the id factory, the event loop's clock.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import repeat
from typing import TYPE_CHECKING, Final

import msgspec

from aerobee.errors import InvalidMessage
from aerobee.messages.message import SendResult
from aerobee.terms.arguments import is_span
from aerobee.terms.config import ProducerConfig
from aerobee_proto import properties as property_names
from aerobee_proto.batch import ENTRY_OVERHEAD
from aerobee_proto.compression import compress_body
from aerobee_proto.errors import RequestError
from aerobee_proto.message_ids import UniqueKeyFactory
from aerobee_proto.names import check_group, check_topic

if TYPE_CHECKING:
    from aerobee.messages.codecs import AnyCodec

__all__ = [
    "Draft",
    "Encoder",
    "Outgoing",
    "body_bytes",
    "checked_group",
    "checked_topic",
    "id_property",
    "key_text",
    "property_text",
    "user_properties",
]

# What the protocol itself keeps in properties; this client writes those it needs from arguments.
RESERVED_PROPERTIES: Final = frozenset(
    value
    for name, value in vars(property_names).items()
    if name.isupper() and isinstance(value, str) and not name.endswith("SEPARATOR")
)
FLAG_BOUND: Final = 2**31
ID_FORM: Final = f"{property_names.UNIQ_KEY}\x01%s\x02"
DELAY_LEVELS: Final = 18


class Draft(msgspec.Struct, eq=False):
    """A message as a caller gave it, unchecked: what `OutgoingMessage` has, and what belongs to one call.

    `body` is a value where a codec is to write it. `more` are properties of the protocol in property form, `sys_flag`
    bits of the protocol; with `alone` the message does not travel in a batch.
    """

    topic: str
    body: object
    tags: str | None = None
    keys: str | Iterable[str] | None = None
    properties: Mapping[str, str] | None = None
    sharding_key: str | None = None
    flag: int = 0
    timeout_s: float | None = None
    delay_level: int = 0
    deliver_at: datetime | int | None = None
    deliver_after: timedelta | float | None = None
    codec: "AnyCodec | None" = None
    more: str = ""
    sys_flag: int = 0
    alone: bool = False


class Outgoing(msgspec.Struct, eq=False):
    """One accepted message: encoded, waiting for its result.

    `size` is its share of a batch in bytes. `alone` keeps it out of batches, which can carry neither compressed
    nor delayed messages. `accepted_at` and `deadline` are in seconds of the event loop's clock.
    """

    body: bytes
    properties: str
    flag: int
    sys_flag: int
    message_id: str
    alone: bool
    accepted_at: float
    deadline: float
    future: "asyncio.Future[SendResult]"
    size: int


class Encoder:
    """Makes outgoing messages of one producer."""

    def __init__(self, config: ProducerConfig, keys: UniqueKeyFactory, body_size_max: int) -> None:
        loop = asyncio.get_running_loop()
        self._now = loop.time
        self._new_future: Callable[[], asyncio.Future[SendResult]] = loop.create_future
        self._timeout_s = config.send_timeout_s
        self._config = config
        self._next_key = keys.next_key
        self._new_ids = keys.next_keys
        self._body_size_max = body_size_max

    def new_ids(self, count: int) -> list[str]:
        """Ids for that many messages that are encoded now: one look at the clock for all of them."""
        return self._new_ids(count)

    def encode(self, draft: Draft, message_id: str | None = None) -> Outgoing:
        """The message as it travels; InvalidMessage says what no broker would take. `message_id` is a new one."""
        body = draft.body
        data = body if type(body) is bytes else body_bytes(body)
        if not data or len(data) > self._body_size_max:
            raise InvalidMessage(_body_fault(draft.topic, len(data), self._body_size_max))
        flag = draft.flag
        if type(flag) is not int and (not isinstance(flag, int) or isinstance(flag, bool)):
            raise TypeError("flag")  # a fraction passes all that follows, and breaks on the wire
        if not -FLAG_BOUND <= flag < FLAG_BOUND:
            raise InvalidMessage(f"flag {flag} does not fit a signed 32-bit integer")
        if message_id is None:
            message_id = self._next_key()
        text = ID_FORM % message_id
        tags, keys, properties, sharding_key = draft.tags, draft.keys, draft.properties, draft.sharding_key
        delay_level, more, sys_flag = draft.delay_level, draft.more, draft.sys_flag
        if tags or keys or properties or sharding_key or delay_level or more:
            text += property_text(tags, keys, properties, sharding_key, delay_level) + more
            if len(text) > property_names.PROPERTIES_SIZE_MAX or not text.isascii():
                _check_size(text)
        limit = self._config.compress_over
        if limit is not None and len(data) > limit:
            packed, packed_flag = compress_body(
                data, self._config.compression, self._config.compression_level
            )
            if len(packed) < len(data):
                data, sys_flag = packed, sys_flag | packed_flag
        alone = draft.alone or sys_flag != 0 or delay_level != 0
        now, timeout_s = self._now(), draft.timeout_s
        deadline = now + (self._timeout_s if timeout_s is None else checked_span(timeout_s))
        size = len(data) + len(text) + ENTRY_OVERHEAD
        return Outgoing(
            data, text, flag, sys_flag, message_id, alone, now, deadline, self._new_future(), size
        )

    def encode_bodies(
        self, draft: Draft, bodies: Sequence[bytes], message_ids: Sequence[str]
    ) -> list[Outgoing]:
        """As `encode` of this draft with each of these bodies, as many as there are ids, but what they have in common
        is looked at once: 0.8 us less for each."""
        common, rest = self._encode_body(draft, bodies[0], message_ids[0]), bodies[1:]
        limit = self._config.compress_over
        size_max = self._body_size_max if limit is None else min(limit, self._body_size_max)
        if rest and not 0 < len(min(rest, key=len)) <= len(max(rest, key=len)) <= size_max:
            return [common, *map(self._encode_body, repeat(draft), rest, message_ids[1:])]
        more = common.properties.removeprefix(ID_FORM % message_ids[0])
        flag, sys_flag = draft.flag, draft.sys_flag
        alone = draft.alone or sys_flag != 0 or draft.delay_level != 0
        now, deadline, new_future = common.accepted_at, common.deadline, self._new_future
        overhead = ENTRY_OVERHEAD + len(common.properties)
        items = [
            Outgoing(
                body, ID_FORM % message_id + more, flag, sys_flag, message_id, alone, now, deadline, new_future(),
                overhead + len(body),
            )
            for body, message_id in zip(rest, message_ids[1:], strict=True)
        ]  # fmt: skip
        return [common, *items]

    def _encode_body(self, draft: Draft, body: bytes, message_id: str) -> Outgoing:
        draft.body = body
        return self.encode(draft, message_id)


def id_property(message_id: str) -> str:
    """The id that a sender gives its message, in property form."""
    return ID_FORM % message_id


def checked_span(timeout_s: float) -> float:
    """`timeout_s`, when it can be waited for; ValueError otherwise, which the call explains."""
    if isinstance(timeout_s, bool) or not is_span(timeout_s):
        raise ValueError("timeout_s")
    return timeout_s


def checked_topic(topic: str) -> str:
    """`topic`, when it is a legal name; InvalidMessage otherwise."""
    try:
        check_topic(topic, internal=True)
    except RequestError as refused:
        raise InvalidMessage(refused.remark) from refused
    return topic


def checked_group(group: str) -> str:
    """`group`, when it is a legal name; InvalidMessage otherwise."""
    try:
        check_group(group)
    except RequestError as refused:
        raise InvalidMessage(refused.remark) from refused
    return group


def body_bytes(body: object) -> bytes:
    """A body as bytes; text is UTF-8. InvalidMessage for anything else."""
    if isinstance(body, str):
        try:
            return body.encode()
        except UnicodeEncodeError as broken:
            raise InvalidMessage(f"the body is not valid Unicode: {broken}") from broken
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise InvalidMessage(f"a body is bytes or text, not {type(body).__name__}")


def _body_fault(topic: str, size: int, size_max: int) -> str:
    if size == 0:
        return f"message for topic {topic!r} has an empty body; brokers refuse those"
    return f"message for topic {topic!r} has a body of {size} bytes; at most {size_max} may be sent"


def property_text(
    tags: str | None,
    keys: str | Iterable[str] | None,
    properties: Mapping[str, str] | None,
    sharding_key: str | None,
    delay_level: int,
) -> str:
    """The properties of a message besides its id, checked, in property form."""
    text = user_properties(properties)
    if tags:
        text += _entry(property_names.TAGS, tags)
    if keys:
        text += _entry(property_names.KEYS, key_text(keys))
    if sharding_key:
        text += _entry(property_names.SHARDING_KEY, sharding_key)
    if delay_level:
        if not isinstance(delay_level, int) or isinstance(delay_level, bool):
            raise TypeError("delay_level")
        if not 0 < delay_level <= DELAY_LEVELS:
            raise InvalidMessage(f"delay_level {delay_level} is not 1..{DELAY_LEVELS}")
        text += f"{property_names.DELAY}\x01{delay_level}\x02"
    return text


def key_text(keys: str | Iterable[str]) -> str:
    """One key, or several as they are stored: with blanks between them. InvalidMessage for a key that has one."""
    if not isinstance(keys, str):
        keys = list(keys)
        for key in keys:
            if not key or " " in key:
                raise InvalidMessage(_key_fault(key))
        return " ".join(keys)
    if " " in keys:
        raise InvalidMessage(_key_fault(keys))
    return keys


def _key_fault(key: str) -> str:
    if not key:
        return "keys holds an empty text; nothing would find it"
    return (
        f"key {key!r} has a blank, and brokers take a blank as the end of a key; several keys are a list:"
        f" keys={key.split()!r}"
    )


def user_properties(properties: Mapping[str, str] | None) -> str:
    """A caller's own properties in property form; InvalidMessage for names of the protocol and empty ones."""
    return "".join([_user_entry(name, value) for name, value in properties.items()]) if properties else ""


def _check_size(text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as broken:
        raise InvalidMessage(f"tags, keys or properties are not valid Unicode: {broken}") from broken
    if size > property_names.PROPERTIES_SIZE_MAX:
        raise InvalidMessage(
            f"the properties have {size} bytes; at most {property_names.PROPERTIES_SIZE_MAX} may be sent"
        )


def _user_entry(name: str, value: str) -> str:
    if name in RESERVED_PROPERTIES or name.startswith(property_names.TRANSIENT_PREFIX):
        raise InvalidMessage(f"property {name!r} belongs to the protocol; choose another name")
    if not name or not value:
        raise InvalidMessage(f"property {name!r} with value {value!r}: readers drop empty names and values")
    return _entry(name, value)


def _entry(name: str, value: str) -> str:
    if "\x01" in value or "\x02" in value or "\x01" in name or "\x02" in name:
        raise InvalidMessage(
            f"property {name!r} with value {value!r} holds U+0001 or U+0002, which separate properties"
        )
    return f"{name}\x01{value}\x02"
