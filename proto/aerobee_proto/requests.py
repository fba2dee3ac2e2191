"""Requests with typed headers: one pass from header bytes to checked values.

Touches  bytes only.

    Envelope   the header with its fields typed
    Incoming   one whole request: its envelope, and the frame that it was read from

A `RequestDecoder` is made per request code and reads any codec into an `Envelope` whose `ext` is the header
struct of that code. `request_code_key` finds the code of a header without reading it: the official clients
write it first, so a table look-up picks the decoder and the header is read once. Measured on one send header
of 300 bytes: 1.1 us typed, 2.4 us when the code must be read first.
"""

from collections.abc import Generator
from typing import Any, Final, Generic, TypeVar

import msgspec

from aerobee_proto.bodies import JsonBody
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import FormatError, RequestError
from aerobee_proto.frames import (
    CODEC_JSON,
    CODEC_MSGPACK,
    FLAG_ONEWAY,
    I32,
    Command,
    Frame,
    decode_command,
)

__all__ = [
    "UNREADABLE",
    "AnyIncoming",
    "Envelope",
    "Incoming",
    "NoFields",
    "RequestDecoder",
    "code_keys",
    "request_code_key",
]

# What msgspec raises for bytes that it cannot read.
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

H = TypeVar("H", bound=msgspec.Struct)
H_co = TypeVar("H_co", bound=msgspec.Struct, covariant=True)
B = TypeVar("B", bound=JsonBody)


class Envelope(msgspec.Struct, Generic[H], gc=False):
    """A request's header with its fields typed."""

    code: I32 = 0
    ext: H | None = msgspec.field(default=None, name="extFields")
    flag: I32 = 0
    language: str | int | None = "JAVA"
    opaque: I32 = 0
    remark: str | None = None
    version: I32 = 0


class _ArrayEnvelope(msgspec.Struct, Generic[H], array_like=True, gc=False):
    code: I32
    flag: I32
    opaque: I32
    version: I32
    language: int
    remark: str | None
    ext: H | None


class NoFields(msgspec.Struct, gc=False):
    """Header of a request that has no fields of its own."""


class Incoming(msgspec.Struct, Generic[H_co], eq=False, gc=False):
    """One request as it came: its header both typed and raw, and its body.

    What whoever lets requests in has to see: a signature is over the fields and the body that were sent.
    """

    envelope: Envelope[H_co]
    frame: Frame
    header: H_co  # the typed header fields: those of the envelope
    body: bytes  # that of the frame
    # The body, once it has been read: who is asked whether it may be done sees what is then done.
    content: JsonBody | None = None

    @property
    def codec(self) -> int:
        """The codec of the raw header, and of the answer."""
        return self.frame[0]

    @property
    def raw_header(self) -> bytes:
        return self.frame[1]

    @property
    def oneway(self) -> bool:
        """Whether the peer wants no answer."""
        return self.envelope.flag & FLAG_ONEWAY != 0

    def read(self, form: type[B]) -> B:
        """The body as JSON of this form, read once. RequestError SYSTEM_ERROR when it is missing or broken, as
        RocketMQ answers."""
        known = self.content
        if type(known) is form:
            return known
        self._require_body(form)
        try:
            read = self.content = form.from_stranger(self.body)
        except FormatError as error:
            raise self._unreadable(error) from error
        return read

    def reading(self, form: type[B]) -> Generator[None, None, B]:
        """As `read`, in steps: for a form that may be large, and says how it is read so."""
        known = self.content
        if type(known) is form:
            return known
        self._require_body(form)
        try:
            read = self.content = yield from form.reading(self.body)
        except FormatError as error:
            raise self._unreadable(error) from error
        return read

    def _require_body(self, form: type[B]) -> None:
        if not self.body:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"request {self.envelope.code} needs a {form.__name__} body"
            )

    def _unreadable(self, error: FormatError) -> RequestError:
        return RequestError(ResponseCode.SYSTEM_ERROR, f"body of request {self.envelope.code}: {error}")


AnyIncoming = Incoming[msgspec.Struct]
"""One whose header fields do not matter."""


class RequestDecoder(Generic[H]):
    """Reads headers of one request code. `header` is None for a request without fields of its own."""

    __slots__ = ("_empty", "_msgpack", "header", "json")

    def __init__(self, header: type[H] | None) -> None:
        self.header: type[Any] = header or NoFields
        self.json = msgspec.json.Decoder(Envelope[self.header], strict=False)  # type: ignore[name-defined]
        self._msgpack = msgspec.msgpack.Decoder(
            _ArrayEnvelope[self.header],  # type: ignore[name-defined]
            strict=False,
        )
        try:
            self._empty: msgspec.Struct | None = self.header()
        except TypeError:
            self._empty = None  # the header has required fields

    def decode(self, frame: Frame) -> Envelope[H]:
        """The header of `frame`, typed.

        FrameError: not a header at all; the connection must be closed. RequestError(SYSTEM_ERROR): a header
        whose fields are missing or of the wrong type; the peer is told which.
        """
        codec, header, _ = frame
        try:
            if codec == CODEC_JSON:
                envelope: Envelope[H] = self.json.decode(header)
            elif codec == CODEC_MSGPACK:
                envelope = self._from_array(header)
            else:
                return self.convert(decode_command(frame))
        except UNREADABLE:
            return self.convert(decode_command(frame))  # names what is wrong, or closes
        if envelope.ext is None:
            if self._empty is None:
                return self.convert(decode_command(frame))
            envelope.ext = self._empty  # type: ignore[assignment]
        return envelope

    def _from_array(self, header: bytes) -> Envelope[H]:
        read = self._msgpack.decode(header)
        return Envelope(read.code, read.ext, read.flag, read.language, read.opaque, read.remark, read.version)

    def convert(self, command: Command) -> Envelope[H]:
        """The same from a command whose fields are text. RequestError as for `decode`."""
        try:
            ext = msgspec.convert(command.ext, self.header, strict=False)
        except msgspec.ValidationError as wrong:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"header of request {command.code}: {wrong}"
            ) from wrong
        return Envelope(
            command.code,
            ext,
            command.flag,
            command.language,
            command.opaque,
            command.remark,
            command.version,
        )


_MSGPACK_CODE_SIZES = {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xD0: 2, 0xD1: 3, 0xD2: 5}


def request_code_key(codec: int, header: bytes) -> bytes:
    """The bytes that stand for the code in a header, as `code_keys` lists them; anything when it is not first."""
    if codec == CODEC_JSON:
        return header[: header.find(b",", 8, 24)]
    if codec == CODEC_MSGPACK:
        return header[1 : 1 + _MSGPACK_CODE_SIZES.get(header[1], 1)] if len(header) > 1 else b""
    return header[:2]


def code_keys(code: int) -> list[tuple[int, bytes]]:
    """Every (codec, key) under which `request_code_key` can meet this code."""
    keys = [(CODEC_JSON, b'{"code":%d' % code), (CODEC_MSGPACK, msgspec.msgpack.encode(code))]
    if -0x8000 <= code < 0x8000:
        keys.append((1, code.to_bytes(2, "big", signed=True)))
    return keys
