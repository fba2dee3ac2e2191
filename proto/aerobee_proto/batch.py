"""The body of a batch send: several messages of one topic in one request.

Touches  bytes it is given, nothing else.
Entry    size i32, itself included | magic i32 = 0 | body_crc i32 = 0 | flag i32 | body_length i32 | body
         | properties_length i16 | properties, big-endian; entries follow each other without gaps.

Invariants
- decode_batch(encode_batch(entries)) == entries. Malformed UTF-8 in properties is replaced, never an error.
- The lengths inside an entry add up to its size; nothing is read past the body. magic and body_crc are not looked
  at: official clients leave them 0 and brokers compute their own.
"""

from collections.abc import Iterable
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from aerobee_proto.errors import FormatError
from aerobee_proto.properties import PROPERTIES_SIZE_MAX

__all__ = ["ENTRY_OVERHEAD", "BatchEntry", "decode_batch", "encode_batch", "encode_batch_entry"]

_HEAD: Final = Struct(">iiiii")
_PROPERTIES_LENGTH: Final = Struct(">h")
ENTRY_OVERHEAD: Final = _HEAD.size + _PROPERTIES_LENGTH.size  # bytes of an entry besides body and properties


class BatchEntry(NamedTuple):
    """One message of a batch; `properties` is the property string."""

    flag: int
    body: bytes
    properties: str


def encode_batch_entry(body: bytes, properties: str | bytes, flag: int = 0) -> bytes:
    """One entry; `properties` as text or as UTF-8.

    Raises FormatError when the properties are over 32767 bytes or the flag is not an i32.
    """
    if isinstance(properties, str):
        properties = properties.encode("utf-8", "replace")
    if len(properties) > PROPERTIES_SIZE_MAX:
        raise FormatError(
            f"properties have {len(properties)} bytes; at most {PROPERTIES_SIZE_MAX} fit a batch entry"
        )
    size = ENTRY_OVERHEAD + len(body) + len(properties)
    try:
        head = _HEAD.pack(size, 0, 0, flag, len(body))
    except StructError as error:
        raise FormatError(f"a batch entry of {size} bytes with flag {flag} does not fit: {error}") from error
    return b"".join((head, body, _PROPERTIES_LENGTH.pack(len(properties)), properties))


def encode_batch(entries: Iterable[BatchEntry]) -> bytes:
    """The body of a batch send; FormatError as encode_batch_entry."""
    return b"".join([encode_batch_entry(entry.body, entry.properties, entry.flag) for entry in entries])


def decode_batch(body: bytes | bytearray | memoryview, count_max: int | None = None) -> list[BatchEntry]:
    """The messages of a batch body, none for an empty one; FormatError at the first broken entry, and at the first
    beyond `count_max`.

    There are at most len(body) / 22 of them; bodies and properties are copies.
    """
    raw = bytes(body)
    entries: list[BatchEntry] = []
    position, limit = 0, len(raw)
    while position < limit:
        if len(entries) == count_max:
            raise FormatError(f"it holds more than {count_max} messages: send it in parts")
        if limit - position < ENTRY_OVERHEAD:
            raise FormatError(f"{limit - position} bytes at {position} are too few for a batch entry")
        size, _, _, flag, body_length = _HEAD.unpack_from(raw, position)
        body_at = position + _HEAD.size
        end = position + size
        properties_at = body_at + body_length + _PROPERTIES_LENGTH.size
        if size < ENTRY_OVERHEAD or end > limit:
            raise FormatError(f"batch entry at {position} claims {size} bytes; {limit - position} are there")
        if body_length < 0 or properties_at > end:
            raise FormatError(
                f"body length {body_length} at {position} does not fit a batch entry of {size} bytes"
            )
        (properties_length,) = _PROPERTIES_LENGTH.unpack_from(raw, body_at + body_length)
        if properties_at + properties_length != end:
            raise FormatError(
                f"the parts of the batch entry at {position} do not add up to its {size} bytes"
                f" (properties length {properties_length})"
            )
        properties = raw[properties_at:end].decode("utf-8", "replace")
        entries.append(BatchEntry(flag, raw[body_at : body_at + body_length], properties))
        position = end
    return entries
