"""What the two ends of a replication link of ours say to each other before the master gives its log.

    frame    magic i64, negative | size i32 | `size` bytes of JSON

RocketMQ's slaves begin with the physical offset at which their log ends, which is never negative: a master knows by
the first byte who has come. The last frame is a JOINED; behind it the link is RocketMQ's (ha).

Both say which version they speak, the master the smaller one of the two: that one holds.

    1    the handshake
    2    behind it the master says, too, what its readers see: CONFIRMED
    3    the slave asks for news of the master's tables (WATCH_TABLES), and says by that what it has of them

    slave      HELLO                                         JOIN
    master             CHALLENGE                                   JOINED
    slave                         PROOF         COMPARE ...
    master                               FACTS           DIGESTS ...

Either end may say REFUSAL instead, and hangs up.

Invariants
- Any bytes give frames or one FormatError; after it the link has lost its boundaries.
- Nothing is allocated from a size that the peer announced: FRAME_SIZE_MAX bounds it.
"""

import struct
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from aerobee_proto.errors import FormatError
from aerobee_proto.ha import OFFSET_MAX

__all__ = [
    "CONFIRMED_SINCE",
    "DIGEST_SIZE",
    "EPOCHS_MAX",
    "FRAME_SIZE_MAX",
    "NEWS_SINCE",
    "RANGES_MAX",
    "VERSION",
    "Challenge",
    "Compare",
    "Digests",
    "Facts",
    "Hello",
    "HelloDecoder",
    "Join",
    "Joined",
    "Message",
    "Proof",
    "Refusal",
    "encode_message",
    "is_hello",
]

VERSION: Final = 3
CONFIRMED_SINCE: Final = 2  # the version
NEWS_SINCE: Final = 3
MAGIC: Final = int.from_bytes(b"\xc1EROBEE\x01", "big", signed=True)
_HEAD: Final = struct.Struct(">qi")
_NEGATIVE: Final = 0x80
FRAME_SIZE_MAX: Final = 256 << 10  # bytes; the largest is a list of EPOCHS_MAX epochs
EPOCHS_MAX: Final = 4096
RANGES_MAX: Final = 64
DIGEST_SIZE: Final = 16
TEXT_MAX: Final = 1024

Number = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Offset = Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
Text = Annotated[str, Meta(max_length=TEXT_MAX)]
Nonce = Annotated[bytes, Meta(min_length=16, max_length=64)]
Secret = Annotated[bytes, Meta(max_length=64)]
EpochList = Annotated[list[tuple[Number, Offset]], Meta(max_length=EPOCHS_MAX)]


class Hello(Struct, frozen=True, tag_field="is", tag="hello", rename="camel"):
    """Who the slave is. `store` names its store: another one of the same member is another copy."""

    version: Number
    cluster: Text
    broker_name: Text
    member: Offset
    store: Text
    epoch: Number  # the newest that it knows
    file_size: Offset
    nonce: Nonce


class Challenge(Struct, frozen=True, tag_field="is", tag="challenge", rename="camel"):
    """Who the master is; `proof` that it knows the secret, "" when it has none."""

    version: Number
    member: Offset
    epoch: Number
    file_size: Offset
    nonce: Nonce
    proof: Secret = b""


class Proof(Struct, frozen=True, tag_field="is", tag="proof"):
    """That the slave knows the secret."""

    proof: Secret = b""


class Facts(Struct, frozen=True, tag_field="is", tag="facts"):
    """The master's log: the physical offsets [begin, end), its epochs with their first offsets, and which store it is
    in; "" from a master that does not say."""

    begin: Offset
    end: Offset
    epochs: EpochList
    store: Text = ""


class Compare(Struct, frozen=True, tag_field="is", tag="compare"):
    """The slave wants to know what the master has in these ranges [begin, end)."""

    ranges: Annotated[list[tuple[Offset, Offset]], Meta(max_length=RANGES_MAX)]


class Digests(Struct, frozen=True, tag_field="is", tag="digests"):
    """A digest for each range; "" where the master does not have it."""

    digests: Annotated[list[Annotated[bytes, Meta(max_length=DIGEST_SIZE)]], Meta(max_length=RANGES_MAX)]


class Join(Struct, frozen=True, tag_field="is", tag="join"):
    """The slave's log ends at `offset`, and is the master's up to there: here is the digest of [begin, offset)."""

    begin: Offset
    offset: Offset
    digest: Annotated[bytes, Meta(max_length=DIGEST_SIZE)]


class Joined(Struct, frozen=True, tag_field="is", tag="joined"):
    """So it is. What follows is RocketMQ's link, and CONFIRMED from CONFIRMED_SINCE on."""

    epoch: Number
    epochs: EpochList


class Refusal(Struct, frozen=True, tag_field="is", tag="refusal", rename="camel"):
    """Why the link ends; `epoch` is the newest that is known here."""

    kind: Text
    reason: Text
    way_out: Text = ""
    epoch: Number = 0


Message = Hello | Challenge | Proof | Facts | Compare | Digests | Join | Joined | Refusal
_encoder: Final = msgspec.json.Encoder()
_decoder: Final[msgspec.json.Decoder[Message]] = msgspec.json.Decoder(Message)


def is_hello(first: bytes) -> bool:
    """Whether a slave that begins with these bytes, one at least, is one of ours."""
    return first[0] & _NEGATIVE != 0


def encode_message(message: Message) -> bytes:
    """The frame of a message."""
    body = _encoder.encode(message)
    assert len(body) <= FRAME_SIZE_MAX
    return _HEAD.pack(MAGIC, len(body)) + body


class HelloDecoder:
    """Finds messages in what the other end sends."""

    __slots__ = ("rest",)

    def __init__(self) -> None:
        # What came and was not taken: of the next frame, or behind the last one.
        self.rest = bytearray()

    def feed(self, data: bytes) -> None:
        """More has come."""
        self.rest += data

    def next(self) -> Message | None:
        """The next message; None when it is not complete. FormatError for what is none."""
        if len(self.rest) < _HEAD.size:
            return None
        magic, size = _HEAD.unpack_from(self.rest)
        if magic != MAGIC or not 0 <= size <= FRAME_SIZE_MAX:
            raise FormatError("the other end of the link says something else than a handshake")
        end = _HEAD.size + size
        if len(self.rest) < end:
            return None
        body = bytes(self.rest[_HEAD.size : end])
        del self.rest[:end]
        try:
            return _decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
            raise FormatError(f"a message of the handshake cannot be read: {wrong}") from wrong
