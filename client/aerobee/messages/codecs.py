"""Bodies as values: what turns one into the other.

A codec is any object with `encode(value) -> bytes` and `decode(body) -> value`. Those here:

    JsonCodec(Order)     JSON through msgspec: dataclasses, msgspec structs, TypedDicts, builtin types
    MsgpackCodec(Order)  the same as msgpack
    PydanticCodec(Order) a pydantic model as JSON; pydantic itself comes from your program
    TextCodec()          str as UTF-8
"""

from typing import Any, Final, Generic, Protocol, Self, TypeVar

import msgspec

from aerobee.errors import ClientError

__all__ = ["AnyCodec", "Codec", "CodecError", "JsonCodec", "MsgpackCodec", "PydanticCodec", "TextCodec"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
SHOWN_MAX: Final = 80  # bytes of a body in an error text


class Codec(Protocol[T]):
    """Turns values of one type into bodies and back."""

    def encode(self, value: T) -> bytes:
        """The body of a value; CodecError when it cannot be one."""
        ...

    def decode(self, body: bytes) -> T:
        """The value of a body; CodecError when it is none."""
        ...


AnyCodec = Codec[Any]  # of values that whoever holds it does not look at


class CodecError(ClientError, ValueError):
    """A body is not what the codec expects, or a value cannot be written."""

    def __init__(self, type_name: str, reason: str, body: bytes | None = None) -> None:
        super().__init__(type_name, reason)
        self.type_name = type_name
        self.reason = reason
        self.body = body

    def __str__(self) -> str:
        if self.body is None:
            return f"the value cannot be written as {self.type_name}: {self.reason}"
        shown = self.body[:SHOWN_MAX]
        return f"the body is not a {self.type_name}: {self.reason} (it starts {shown!r})"


class _Encoder(Protocol):
    def encode(self, value: object, /) -> bytes: ...


class _Decoder(Protocol[T_co]):
    def decode(self, body: bytes, /) -> T_co: ...


class _MsgspecCodec(Generic[T]):
    """What the two msgspec formats share."""

    def __init__(self, type_: type[T], encoder: _Encoder, decoder: _Decoder[T]) -> None:
        self.type = type_
        self._encode = encoder.encode
        self._decode = decoder.decode

    def encode(self, value: T) -> bytes:
        try:
            return self._encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as fault:
            raise CodecError(_name(self.type), str(fault)) from fault

    def decode(self, body: bytes) -> T:
        try:
            value = self._decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as fault:
            raise CodecError(_name(self.type), str(fault), body) from fault
        return value


class JsonCodec(_MsgspecCodec[T]):
    """JSON. Unknown members are ignored, missing or wrong ones are CodecError."""

    def __init__(self, type_: type[T]) -> None:
        super().__init__(type_, msgspec.json.Encoder(), msgspec.json.Decoder(type_))


class MsgpackCodec(_MsgspecCodec[T]):
    """msgpack, smaller and faster than JSON."""

    def __init__(self, type_: type[T]) -> None:
        super().__init__(type_, msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(type_))


class _PydanticModel(Protocol):
    """What is used of a pydantic model."""

    def model_dump_json(self) -> str: ...

    @classmethod
    def model_validate_json(cls, json_data: bytes) -> Self: ...


P = TypeVar("P", bound=_PydanticModel)


class PydanticCodec(Generic[P]):
    """A pydantic model (version 2) as JSON."""

    def __init__(self, model: type[P]) -> None:
        self.type = model

    def encode(self, value: P) -> bytes:
        try:
            return value.model_dump_json().encode()
        except ValueError as fault:
            raise CodecError(_name(self.type), str(fault)) from fault

    def decode(self, body: bytes) -> P:
        try:
            value = self.type.model_validate_json(body)
        except ValueError as fault:  # pydantic's ValidationError is one
            raise CodecError(_name(self.type), str(fault), body) from fault
        return value


class TextCodec:
    """Text as UTF-8."""

    def encode(self, value: str) -> bytes:
        return value.encode()

    def decode(self, body: bytes) -> str:
        try:
            return body.decode()
        except UnicodeDecodeError as fault:
            raise CodecError("UTF-8 text", str(fault), body) from fault


def _name(type_: object) -> str:
    return getattr(type_, "__name__", str(type_))
