"""Frames of sends as clients write them, usual ones and odd ones: what both engines for sends are compared with."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final

from aerobee_access.signature import ACCESS_KEY, FRESHNESS, SIGNATURE, sign
from aerobee_proto.batch import BatchEntry, encode_batch
from aerobee_proto.codes import RequestCode
from aerobee_proto.frames import Command, encode_command
from aerobee_proto.headers import SendMessageHeader, SendMessageV2Header

__all__ = [
    "BATCH",
    "V1",
    "V2",
    "Spec",
    "bases",
    "batch_of",
    "fields_of",
    "frame_of",
    "framed",
    "frames",
    "joined",
    "mutated",
    "usual",
]  # fmt: skip

V2, V1, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_MESSAGE, RequestCode.SEND_BATCH_MESSAGE
WORDS: Final = Struct(">ii")
LETTERS: Final = dict(
    zip(SendMessageHeader.__struct_encode_fields__, SendMessageV2Header.__struct_encode_fields__, strict=True)
)


@dataclass
class Spec:
    """One request, before it is bytes."""

    code: int = V2
    codec: int = 0
    flag: int = 0
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b"hello"
    style: str = "java"  # how the header is written
    damage: tuple[int, int] | None = None  # a byte of the header, and what is done to it
    user: tuple[str, str] | None = None  # AccessKey and secret of who signs it
    freshness: str | None = None  # what is signed with it, as `aerobee_access.freshness` has it


def fields_of(*, topic: str, queue: str, properties: str, **more: str) -> dict[str, str]:
    return {
        "producerGroup": "group",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": queue,
        "sysFlag": "0",
        "bornTimestamp": "1700000000123",
        "flag": "0",
        "properties": properties,
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
        **more,
    }


def joined(pairs: Sequence[tuple[str, str]]) -> str:
    return "".join([f"{name}\x01{value}\x02" for name, value in pairs])


def frame_of(spec: Spec, opaque: int) -> bytes:
    """The request as bytes, in its style."""
    named = (
        spec.fields
        if spec.code == V1
        else {LETTERS.get(name, name): text for name, text in spec.fields.items()}
    )
    if spec.user is not None:
        named = _signed(spec, named)
    if spec.codec != 0:
        command = Command(
            spec.code, opaque=opaque, flag=spec.flag, ext_fields=named, body=spec.body, codec=spec.codec
        )
        if spec.style == "go":
            command.remark = "remark"
        raw = encode_command(command)
        header = raw[8 : len(raw) - len(spec.body)]
    else:
        header = _json_header(spec, named, opaque)
    return framed(spec.codec, header, spec.body, spec.damage)


def _signed(spec: Spec, named: dict[str, str]) -> dict[str, str]:
    """With the fields of a signature, as a client has them that knows what the server reads in this codec."""
    assert spec.user is not None
    read = {name: text or "null" for name, text in named.items()} if spec.codec == 1 else named
    made = sign(read, spec.body, *spec.user, freshness=spec.freshness)
    return named | {name: made[name] for name in (ACCESS_KEY, SIGNATURE, FRESHNESS) if name in made}


def framed(codec: int, header: bytes, body: bytes, damage: tuple[int, int] | None = None) -> bytes:
    """Header and body as one frame, with lengths that are true. `damage`: where the header has which byte instead."""
    if damage is not None:
        at, byte = damage
        changed = bytearray(header)
        changed[at % len(changed)] = byte
        header = bytes(changed)
    return WORDS.pack(4 + len(header) + len(body), codec << 24 | len(header)) + header + body


def _json_header(spec: Spec, named: dict[str, str], opaque: int) -> bytes:
    style = spec.style
    ext: dict[str, Any] = dict(named)
    if style == "bare":
        ext = {name: int(text) if text.isascii() and text.isdigit() else text for name, text in named.items()}
    if style == "null":
        ext |= dict.fromkeys(["l", "maxReconsumeTimes", "n"])
    if style == "more":
        ext["Signature"] = "abc"
    if style == "shuffled":
        ext = dict(sorted(ext.items(), key=lambda pair: hash((pair[0], opaque)) % 97))
    whole: dict[str, Any] = {"code": spec.code, "extFields": ext, "flag": spec.flag, "language": "JAVA"}
    whole |= {"opaque": opaque, "serializeTypeCurrentRPC": "JSON", "version": 475}
    if style == "go":
        whole = {"code": spec.code, "language": "GO", "version": 317, "opaque": opaque, "flag": spec.flag}
        whole |= {"remark": "", "extFields": ext}
    # An unpaired surrogate can be written as an escape alone.
    text = json.dumps(
        whole, ensure_ascii=opaque % 3 == 0, separators=None if style == "spaced" else (",", ":")
    )
    if style == "twice":
        text = text[:-1] + f',"opaque":{opaque},"flag":{spec.flag}}}'
    return text.encode("utf-8", "surrogatepass")


def usual(number: int, **changes: Any) -> Spec:
    text = joined([("UNIQ_KEY", f"7F000001{number:024X}"), ("WAIT", "true"), ("TAGS", "TagA")])
    fields = fields_of(topic="Topic-A", queue=str(number % 4), properties=text[:-1])
    return Spec(
        fields=fields | changes, codec=number % 3, code=(V2, V1)[number % 2], body=b"x" * (number % 300 + 1)
    )


def batch_of(number: int, *, topic: str = "Topic-A", properties: str = "WAIT\x01true\x02") -> Spec:
    """Three messages; `properties` are those that they have in common."""
    texts = [joined([("UNIQ_KEY", f"{number:08X}{at:08X}")]) for at in range(3)]
    entries = [BatchEntry(1, b"abc", text) for text in texts]
    fields = fields_of(topic=topic, queue="1", properties=properties) | {"batch": "true"}
    return Spec(code=BATCH, codec=number % 3, fields=fields, body=encode_batch(entries))


def frames(specs: Sequence[Spec]) -> list[bytes]:
    return [frame_of(spec, number) for number, spec in enumerate(specs)]


KINDS: Final = (b"0123456789", b"abcdefghijklmn", b"ABCDEFxyz_-", bytes(range(5)))


def _alike(byte: int) -> bytes:
    """Bytes that often may stand where this one does."""
    return next((kind for kind in KINDS if byte in kind), b"x y\x02\x01\xc3\xa9")


def mutated(rng: random.Random, base: Sequence[bytes]) -> bytes:
    """One of these frames with some bytes changed, cut, doubled, or taken from another."""
    frame = bytearray(rng.choice(base))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at, kind = rng.randrange(len(frame)), rng.randrange(16)
        if kind < 4:
            frame[at] = rng.getrandbits(8)
        elif kind >= 8:  # often a header that is still a usual one
            frame[at] = rng.choice(_alike(frame[at]))
        elif kind == 4:
            frame[at] = rng.choice(b'"\\{}:,0-\x00\x01\x02\x7f\x80\xff')
        elif kind == 5:
            del frame[at : at + rng.randrange(1, 9)]
        elif kind == 6:
            frame[at:at] = frame[max(at - 8, 0) : at]
        else:
            other = rng.choice(base)
            frame[at:] = other[at:]
        if not frame:
            break
    if len(frame) >= 8 and rng.randrange(20):  # else lengths that are wrong end most connections at once
        header_size = min(int.from_bytes(frame[5:8], "big"), len(frame) - 8)
        frame[:4] = (len(frame) - 4).to_bytes(4, "big")
        frame[5:8] = header_size.to_bytes(3, "big")
    return bytes(frame)


def bases() -> list[bytes]:
    """Usual sends and batches, in all codecs, and some that are signed."""
    signed = [usual(number) for number in range(3)]
    for number, spec in enumerate(signed):
        spec.user, spec.freshness = ("user", "secret"), f"aerobee1:1:-:{number}:310;"
    return frames([*map(usual, range(6)), *signed, *(batch_of(number) for number in range(3))])
