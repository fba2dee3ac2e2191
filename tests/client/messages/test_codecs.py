from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

from aerobee.messages.codecs import Codec, CodecError, JsonCodec, MsgpackCodec, PydanticCodec, TextCodec


class Struct(msgspec.Struct):
    number: int
    items: list[str]


@dataclass
class Data:
    number: int
    items: list[str]


class Model(pydantic.BaseModel):
    number: int
    items: list[str]


CODECS: dict[str, tuple[Codec[Any], Any]] = {
    "struct as JSON": (JsonCodec(Struct), Struct(1, ["ä"])),
    "dataclass as JSON": (JsonCodec(Data), Data(1, ["ä"])),
    "dict as JSON": (JsonCodec(dict), {"number": 1}),
    "struct as msgpack": (MsgpackCodec(Struct), Struct(1, ["ä"])),
    "pydantic": (PydanticCodec(Model), Model(number=1, items=["ä"])),
    "text": (TextCodec(), "grüße"),
}
BROKEN = b"\xc1\xff{"  # neither JSON, nor msgpack, nor UTF-8


@pytest.mark.parametrize(("codec", "value"), CODECS.values(), ids=CODECS)
def test_what_is_written_is_read(codec: Codec[Any], value: Any) -> None:
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize("codec", [codec for codec, _ in CODECS.values()], ids=CODECS)
def test_what_cannot_be_read_says_so(codec: Codec[Any]) -> None:
    with pytest.raises(CodecError, match="the body is not a") as caught:
        codec.decode(BROKEN)
    assert caught.value.body == BROKEN


def test_wrong_members_are_named() -> None:
    with pytest.raises(CodecError, match=r"not a Struct: Expected `int`, got `str` - at `\$.number`"):
        JsonCodec(Struct).decode(b'{"number":"x","items":[]}')
    with pytest.raises(CodecError, match="not a Model: 1 validation error"):
        PydanticCodec(Model).decode(b'{"number":1}')


def test_values_that_cannot_be_written_say_so() -> None:
    with pytest.raises(CodecError, match="cannot be written as dict"):
        JsonCodec(dict).encode({"a": object()})
