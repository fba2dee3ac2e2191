"""Frames and their headers: the byte stream of a connection, cut and read.

Touches  bytes only: no sockets, no clock, no logging.
Frame    i32 length | u8 codec, u24 header length | header | body        all big-endian
         length counts what follows it: 4 + header length + body length. The whole frame, the length word
         included, is at most `FRAME_SIZE_MAX`.
Codecs   0 JSON     one object; every value in extFields is a string
         1 ROCKETMQ i16 code, u8 language, i16 version, i32 opaque, i32 flag, i32 + remark, i32 + entries
                    (i16 + key, i32 + value); code is 16 bits wide, so larger request codes do not survive
         2 msgpack  ours alone: array [code, flag, opaque, version, language, remark, ext]; used only with a
                    peer that has shown that it knows it (`RequestCode.GET_CODECS`)

Invariants
- Nothing is allocated from an announced length: bytes are kept as they arrive, up to one frame.
- Any bytes give frames or FrameError, nothing else. After FrameError a decoder stays broken: the stream has
  lost its boundaries and must be closed.
"""

import sys
from collections.abc import Callable
from io import BytesIO
from struct import Struct
from struct import error as struct_error
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from aerobee_proto.codes import VERSION, LanguageCode
from aerobee_proto.errors import FrameError
from aerobee_proto.proxy_protocol import UNNAMED, ProxyHeaderError, is_proxy_header

__all__ = [
    "CODEC_JSON",
    "CODEC_MSGPACK",
    "CODEC_NAMES",
    "CODEC_ROCKETMQ",
    "FLAG_ONEWAY",
    "FLAG_RESPONSE",
    "FRAME_SIZE_MAX",
    "Command",
    "Frame",
    "FrameDecoder",
    "decode_command",
    "decode_outline",
    "encode_command",
    "encode_frame",
    "language_name",
]

SMALL: Final = 512  # bytes of a piece of a frame that is kept together with others
# Bytes of a frame that is put together while it comes: to join its pieces at the end and to cut them again takes 2 ms
# for each MiB, in one go.
LARGE: Final = 256 * 1024
FRAME_SIZE_MAX: Final = 16_777_216  # bytes, length word included; the official default on both sides
CODEC_JSON: Final = 0
CODEC_ROCKETMQ: Final = 1
CODEC_MSGPACK: Final = 2
CODEC_NAMES: Final = {CODEC_JSON: "JSON", CODEC_ROCKETMQ: "ROCKETMQ", CODEC_MSGPACK: "MSGPACK"}
FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2

I32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]

Frame: TypeAlias = tuple[int, bytes, bytes]  # codec, header, body; a plain tuple: one is made per message

_WORDS = Struct(">ii")
_BINARY_FIXED = Struct(">hBhii")
_I16 = Struct(">h")
_I32 = Struct(">i")
# Characters that need no escape in JSON and that the official encoder escapes all the same.
_OFFICIAL_ESCAPES: Final = (
    (b"\x7f", rb"\u007F"),
    ("\u2028".encode(), rb"\u2028"),
    ("\u2029".encode(), rb"\u2029"),
)
_LANGUAGE_NAMES: Final = {int(language): language.name for language in LanguageCode}
_LANGUAGE_CODES: Final = {language.name: int(language) for language in LanguageCode}


def language_name(language: str | int | None) -> str:
    """Name of a peer's language, whichever way its header carries it; "OTHER" when it is not a known one."""
    if isinstance(language, int):
        return _LANGUAGE_NAMES.get(language, "OTHER")
    return language if language in _LANGUAGE_CODES else "OTHER"


class _LargeFrame:
    """One that comes in many pieces. `BytesIO` gives away what it was given without a copy, if that was written in
    order."""

    __slots__ = ("_body", "_body_left", "_codec", "_header", "_header_left")

    def __init__(self, codec: int, header_size: int, body_size: int) -> None:
        self._codec = codec
        self._header = BytesIO()
        self._header_left = header_size
        self._body = BytesIO()
        self._body_left = body_size

    def take(self, data: memoryview) -> int:
        """How many of these bytes belong to it."""
        header_size = min(self._header_left, len(data))
        if header_size:
            self._header.write(data[:header_size])
            self._header_left -= header_size
        body_size = min(self._body_left, len(data) - header_size)
        if body_size:
            self._body.write(data[header_size : header_size + body_size])
            self._body_left -= body_size
        return header_size + body_size

    @property
    def is_whole(self) -> bool:
        return not (self._header_left or self._body_left)

    def frame(self) -> Frame:
        """To be asked for once."""
        return self._codec, self._header.getvalue(), self._body.getvalue()


class FrameDecoder:
    """Cut a byte stream into frames, whatever the cut of the input.

    `feed` returns every whole frame, in order, or so many as it is asked for; then `has_more` is set, and the next call
    goes on with the rest, also when it brings nothing. When the stream breaks the agreed form, the frames before the
    break are still returned and `error` is set; a further `feed` raises it.
    """

    __slots__ = (
        "_chunks",
        "_header_size_max",
        "_large",
        "_need",
        "_size_max",
        "error",
        "has_more",
        "pending_size",
    )

    def __init__(self, size_max: int = FRAME_SIZE_MAX, header_size_max: int = FRAME_SIZE_MAX) -> None:
        self._size_max = size_max
        self._header_size_max = header_size_max
        # Bytes of a frame that is not whole yet. Small pieces are put together: each object has 40 bytes of its own.
        self._chunks: list[bytes | bytearray] = []
        # Bytes held of a frame that is not whole yet, or was not asked for. Moved here only; asked for after each read,
        # so no property.
        self.pending_size = 0
        self._need = 4  # how many bytes make the next step possible
        self._large: _LargeFrame | None = None  # that is coming; then there are no chunks
        self.error: FrameError | None = None
        self.has_more = False  # whether whole frames may be held that were not asked for

    def feed(
        self,
        data: bytes,
        front: Callable[[bytes], tuple[int, int]] | None = None,
        *,
        count_max: int = sys.maxsize,
    ) -> list[Frame]:
        """The next bytes, for at most so many frames. `front` is shown what begins with a whole frame, or may, and says
        how many bytes it has taken for itself (whole frames, none of which is given back), and how many frames behind
        those are asked for, instead of `count_max`: 0 leaves the rest as it is."""
        if self.error is not None:
            raise self.error
        if self._large is not None:
            return self._feed_large(self._large, data, count_max)
        if self.pending_size:
            if len(data) >= SMALL:
                self._chunks.append(data)
            elif type(self._chunks[-1]) is bytearray:
                self._chunks[-1] += data
            else:
                self._chunks.append(bytearray(data))
            self.pending_size += len(data)
            if self.pending_size < self._need:
                return []
            data = b"".join(self._chunks)
            self._chunks.clear()
        self.has_more = False
        position = 0
        if front is not None:
            position, count_max = front(data)
            if position == len(data):
                self.pending_size, self._need = 0, 4
                return []
        frames, position, need = self._cut(data, position, count_max)
        rest = len(data) - position
        self.pending_size = rest
        self._need = need
        if rest and self.error is None:
            if need > LARGE and rest >= 8:
                length, word = _WORDS.unpack_from(data, position)
                header_size = word & 0xFFFFFF
                self._large = _LargeFrame(word >> 24 & 0xFF, header_size, length - 4 - header_size)
                self._large.take(memoryview(data)[position + 8 :])
            else:
                self._chunks.append(data[position:] if position else data)
        return frames

    def _feed_large(self, large: _LargeFrame, data: bytes, count_max: int) -> list[Frame]:
        """The next bytes, of which the first belong to this frame. What follows it is given back behind it: no front is
        to be faster."""
        taken = large.take(memoryview(data))
        if not large.is_whole:
            self.pending_size += taken
            return []
        self._large = None
        self.pending_size, self._need = 0, 4
        frames = [large.frame()]
        if taken < len(data):
            frames += self.feed(data[taken:], count_max=max(count_max - 1, 0))
        return frames

    def _cut(self, data: bytes, position: int, count_max: int) -> tuple[list[Frame], int, int]:
        """Cut whole frames off, from `position` on: they, the position after them, bytes needed from there on."""
        frames: list[Frame] = []
        left = count_max
        end = len(data)
        unpack = _WORDS.unpack_from
        while end - position >= 8:
            if not left:
                self.has_more = True
                return frames, position, 0
            left -= 1
            length, word = unpack(data, position)
            header_size = word & 0xFFFFFF
            if length < 4 + header_size or length > self._size_max - 4:
                self.error = _bad_lengths(data, position, header_size, self._size_max)
                return frames, end, 4
            stop = position + 4 + length
            if stop > end:
                # Only here: a header that is too large does not arrive whole in one read.
                if header_size > self._header_size_max:
                    self.error = FrameError(
                        f"header of {header_size} bytes is over the limit of {self._header_size_max} bytes"
                    )
                    return frames, end, 4
                return frames, position, 4 + length
            body_start = position + 8 + header_size
            frames.append((word >> 24 & 0xFF, data[position + 8 : body_start], data[body_start:stop]))
            position = stop
        if end - position >= 4:
            (length,) = _I32.unpack_from(data, position)
            if not 4 <= length <= self._size_max - 4:
                self.error = _bad_lengths(data, position, 0, self._size_max)
                return frames, end, 4
            return frames, position, 8
        return frames, position, 4


# What else comes to a port that expects frames, by its first bytes. None of them is a length that is allowed.
_TLS: Final = b"\x16\x03"
_HTTP_REQUESTS: Final = (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"PATC", b"CONN", b"TRAC")
_HTTP_2: Final = b"PRI "
_HTTP_ANSWER: Final = b"HTTP"
_SSH: Final = b"SSH-"


def _foreign_protocol(data: bytes, position: int) -> str | None:
    """What the peer speaks instead, in words; None when that cannot be told."""
    first = data[position : position + 4]
    if first.startswith(_TLS):
        return "a TLS hello, not a frame: the peer speaks TLS and this connection does not (tlsServerMode)"
    if first in _HTTP_REQUESTS:
        return "an HTTP request, not a frame: metrics and health have a port of their own"
    if first == _HTTP_2:
        return "an HTTP/2 or gRPC preface, not a frame: gRPC clients need a proxy"
    if first == _HTTP_ANSWER:
        return "an HTTP answer, not a frame: the peer is a web server"
    return "an SSH greeting, not a frame" if first == _SSH else None


def _bad_lengths(data: bytes, position: int, header_size: int, size_max: int) -> FrameError:
    if is_proxy_header(data[position : position + 4]):
        return ProxyHeaderError(UNNAMED)
    foreign = _foreign_protocol(data, position)
    if foreign is not None:
        return FrameError(foreign)
    (length,) = _I32.unpack_from(data, position)
    if length > size_max - 4:
        return FrameError(f"frame of {length + 4} bytes is over the limit of {size_max} bytes")
    return FrameError(f"frame length {length} cannot hold a header of {header_size} bytes")


class Command:
    """One command, its header fields as plain text: what tools, tests and rare requests use.

    Servers read frequent requests into typed headers instead (`aerobee_proto.headers`).
    """

    __slots__ = ("body", "code", "codec", "ext_fields", "flag", "language", "opaque", "remark", "version")

    def __init__(
        self,
        code: int,
        *,
        opaque: int = 0,
        flag: int = 0,
        version: int = VERSION,
        language: str = "PYTHON",
        remark: str | None = None,
        ext_fields: dict[str, str] | None = None,
        body: bytes = b"",
        codec: int = CODEC_JSON,
    ) -> None:
        self.code = code
        self.opaque = opaque
        self.flag = flag
        self.version = version
        self.language = language
        self.remark = remark
        self.ext_fields = ext_fields
        self.body = body
        self.codec = codec

    @property
    def is_response(self) -> bool:
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & FLAG_ONEWAY != 0

    @property
    def ext(self) -> dict[str, str]:
        """The header fields; empty when the command carries none."""
        return self.ext_fields or {}

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        return (
            f"Command({kind} code={self.code} opaque={self.opaque} codec={CODEC_NAMES.get(self.codec)} "
            f"remark={self.remark!r} ext={self.ext_fields} body={len(self.body)} bytes)"
        )


class _Outline(msgspec.Struct):
    """Of a JSON header, what an answer needs; the rest is passed over."""

    code: I32 = 0
    flag: I32 = 0
    opaque: I32 = 0
    version: I32 = 0


class _JsonHeader(msgspec.Struct):
    """The JSON header as peers write it. Unknown keys are ignored; numbers may come as text."""

    code: I32 = 0
    ext_fields: dict[str, Any] | None = msgspec.field(default=None, name="extFields")
    flag: I32 = 0
    language: str | int | None = "JAVA"
    opaque: I32 = 0
    remark: str | None = None
    version: I32 = 0


class _MsgpackHeader(msgspec.Struct, array_like=True):
    code: I32
    flag: I32
    opaque: I32
    version: I32
    language: int
    remark: str | None
    ext_fields: dict[str, str | int | bool | None] | None


_json_decoder = msgspec.json.Decoder(_JsonHeader, strict=False)
_outline_decoder = msgspec.json.Decoder(_Outline, strict=False)
_msgpack_decoder = msgspec.msgpack.Decoder(_MsgpackHeader)
_json_encoder = msgspec.json.Encoder()
_msgpack_encoder = msgspec.msgpack.Encoder()


def _text(value: object) -> str:
    """An extFields value as text: peers may write bare numbers and booleans."""
    if isinstance(value, str):
        return value
    return _json_encoder.encode(value).decode()


_ONLY_TEXT: Final = {str}


def _text_fields(fields: dict[str, Any] | None) -> dict[str, str] | None:
    """Of a header that was just read. As usual it holds nothing but text: of 65,000 fields a look takes 2 ms, to make
    each anew 20."""
    if fields is None or {*map(type, fields.values())} <= _ONLY_TEXT:
        return fields
    return {key: _text(value) for key, value in fields.items() if value is not None}


def decode_command(frame: Frame) -> Command:
    """Read one frame's header. FrameError when it is not a header of the codec that the frame names."""
    codec, header, body = frame
    if codec == CODEC_JSON:
        return _decode_json(header, body)
    if codec == CODEC_ROCKETMQ:
        return _decode_binary(header, body)
    if codec == CODEC_MSGPACK:
        return _decode_msgpack(header, body)
    raise FrameError(f"codec {codec} is not known; known are 0 JSON, 1 ROCKETMQ and 2 msgpack")


def decode_outline(frame: Frame) -> Command:
    """As decode_command for a frame that has been read, but without fields and body: what an answer needs."""
    codec, header, _ = frame
    if codec != CODEC_JSON:
        return decode_command(frame)
    try:
        read = _outline_decoder.decode(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return decode_command(frame)  # names what is wrong
    return Command(read.code, opaque=read.opaque, flag=read.flag, version=read.version, codec=CODEC_JSON)


def _decode_json(header: bytes, body: bytes) -> Command:
    try:
        return _command_of(_json_decoder.decode(header), body, CODEC_JSON)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as broken:
        raise FrameError(f"JSON header of {len(header)} bytes is not readable: {broken}") from broken


def _decode_msgpack(header: bytes, body: bytes) -> Command:
    try:
        return _command_of(_msgpack_decoder.decode(header), body, CODEC_MSGPACK)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as broken:
        raise FrameError(f"msgpack header of {len(header)} bytes is not readable: {broken}") from broken


def _command_of(read: _JsonHeader | _MsgpackHeader, body: bytes, codec: int) -> Command:
    return Command(
        read.code,
        opaque=read.opaque,
        flag=read.flag,
        version=read.version,
        language=language_name(read.language),
        remark=read.remark,
        ext_fields=_text_fields(read.ext_fields),
        body=body,
        codec=codec,
    )


def _decode_binary(header: bytes, body: bytes) -> Command:
    try:
        code, language, version, opaque, flag = _BINARY_FIXED.unpack_from(header)
        remark, position = _take(header, 13, _I32)
        (ext_size,) = _I32.unpack_from(header, position)
    except struct_error as broken:
        raise FrameError(f"ROCKETMQ header of {len(header)} bytes is cut short") from broken
    ext_fields = _decode_entries(header, position + 4, ext_size) if ext_size > 0 else None
    return Command(
        code,
        opaque=opaque,
        flag=flag,
        version=version,
        language=language_name(language),
        remark=_utf8(remark) if remark else None,
        ext_fields=ext_fields,
        body=body,
        codec=CODEC_ROCKETMQ,
    )


def _decode_entries(header: bytes, position: int, size: int) -> dict[str, str]:
    end = position + size
    if end > len(header):
        raise FrameError(
            f"ROCKETMQ header announces {size} bytes of fields, {len(header) - position} are there"
        )
    fields: dict[str, str] = {}
    key_size_at, value_size_at = _I16.unpack_from, _I32.unpack_from
    try:
        while position < end:
            (key_size,) = key_size_at(header, position)
            key_end = position + 2 + key_size
            (value_size,) = value_size_at(header, key_end)
            value_start = key_end + 4
            value_end = value_start + value_size
            if key_size < 0 or value_size < 0 or value_end > end:
                raise FrameError(f"ROCKETMQ header field of {key_size} + {value_size} bytes does not fit")
            key = str(header[position + 2 : key_end], "utf-8", "replace")
            fields[key] = str(header[value_start:value_end], "utf-8", "replace")
            position = value_end
    except struct_error as broken:
        raise FrameError("ROCKETMQ header field is cut short") from broken
    return fields


def _take(data: bytes, position: int, width: Struct) -> tuple[bytes, int]:
    """A length of `width` and as many bytes: they and the position after them."""
    (size,) = width.unpack_from(data, position)
    start = position + width.size
    if size < 0 or start + size > len(data):
        raise FrameError(
            f"ROCKETMQ header field of {size} bytes does not fit in the {len(data) - start} left"
        )
    return data[start : start + size], start + size


def _utf8(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def encode_frame(codec: int, header: bytes, *body: bytes | memoryview) -> bytes:
    """Put the two length words before a header and a body, which may be in pieces: they are copied once."""
    size = len(header)
    return b"".join((_WORDS.pack(4 + size + sum(map(len, body)), codec << 24 | size), header, *body))


def encode_command(command: Command) -> bytes:
    """The command as one frame in the codec it names."""
    codec = command.codec
    if codec == CODEC_JSON:
        header = _encode_json(command)
    elif codec == CODEC_ROCKETMQ:
        header = _encode_binary(command)
    elif codec == CODEC_MSGPACK:
        header = _encode_msgpack(command)
    else:
        raise FrameError(f"codec {codec} is not known")
    return encode_frame(codec, header, command.body)


def _encode_json(command: Command) -> bytes:
    fields: dict[str, object] = {"code": command.code}  # the official encoder's order: alphabetical
    if command.ext_fields is not None:
        fields["extFields"] = command.ext_fields
    fields["flag"] = command.flag
    fields["language"] = command.language
    fields["opaque"] = command.opaque
    if command.remark is not None:
        fields["remark"] = command.remark
    fields["serializeTypeCurrentRPC"] = "JSON"
    fields["version"] = command.version
    try:
        header = _json_encoder.encode(fields)
    except UnicodeEncodeError as broken:
        raise FrameError(f"a header field is not valid Unicode: {broken}") from broken
    for raw, escaped in _OFFICIAL_ESCAPES:
        if raw in header:
            header = header.replace(raw, escaped)
    return header


def _encode_msgpack(command: Command) -> bytes:
    return _msgpack_encoder.encode(
        (
            command.code,
            command.flag,
            command.opaque,
            command.version,
            _LANGUAGE_CODES.get(command.language, int(LanguageCode.OTHER)),
            command.remark,
            command.ext_fields,
        )
    )


def _encode_binary(command: Command) -> bytes:
    remark = (command.remark or "").encode()
    entries = b"".join(
        _I16.pack(len(key)) + key + _I32.pack(len(value)) + value
        for key, value in _entry_bytes(command.ext_fields or {})
    )
    code = (command.code + 0x8000 & 0xFFFF) - 0x8000  # 16 bits on this wire; larger codes wrap, as officially
    language = _LANGUAGE_CODES.get(command.language, int(LanguageCode.OTHER))
    return b"".join(
        (
            _BINARY_FIXED.pack(code, language, command.version, command.opaque, command.flag),
            _I32.pack(len(remark)),
            remark,
            _I32.pack(len(entries)),
            entries,
        )
    )


def _entry_bytes(fields: dict[str, str]) -> list[tuple[bytes, bytes]]:
    pairs = [(key.encode(), value.encode()) for key, value in fields.items()]
    for key, _ in pairs:
        if len(key) > 0x7FFF:
            raise FrameError(f"header field name of {len(key)} bytes is over 32,767")
    return pairs
