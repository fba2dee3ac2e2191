"""Signatures as official clients make them and the official server takes them."""

import gzip
import hmac
import json
from base64 import b64decode, b64encode
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from aerobee_access.signature import fields_of, sign, signature_of, signed_content, signed_with
from aerobee_proto.frames import CODEC_JSON, Command, FrameDecoder, decode_command, encode_command

GOLDEN = Path(__file__).parents[1] / "golden" / "access"


def is_signed_with(secret: bytes, fields: dict[str, str], version: int, body: bytes) -> bool:
    return signed_with(secret, fields, version, body) is not None


@cache
def vectors() -> list[dict[str, Any]]:
    read = json.loads(gzip.decompress((GOLDEN / "signature.json.gz").read_bytes()))
    found: list[dict[str, Any]] = read if isinstance(read, list) else next(iter(read.values()))
    return found


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 200])
def test_keys_of_any_length_sign_as_hmac_does(size: int) -> None:
    """Also when the same key signs again: its hashes begin where they began."""
    secret = bytes(range(256))[-size:] if size else b""
    for content in (b"", b"content", bytes(1000), b"content"):
        assert signature_of(content, secret) == b64encode(hmac.digest(secret, content, "sha1"))


def test_what_is_signed_and_the_signature_are_the_official_client_s() -> None:
    assert len(vectors()) == 160
    for vector in vectors():
        fields, body = vector["extFields"], b64decode(vector.get("bodyB64") or "")
        content = signed_content(fields, 479) + body
        assert content == b64decode(vector["signedContentB64"]), vector
        assert signature_of(content, vector["secretKey"].encode()).decode() == fields["Signature"]


@pytest.mark.parametrize("codec", ["JSON", "ROCKETMQ"])
def test_whole_frames_are_taken_when_the_official_server_takes_them(codec: str) -> None:
    taken = 0
    for vector in vectors():
        seen = vector[codec] if codec in vector else vector["codecs"][codec]
        (frame,) = FrameDecoder().feed(b64decode(seen["frameB64"]))
        version = decode_command(frame).version
        fields = fields_of(frame)
        assert fields is not None
        accepts = is_signed_with(vector["secretKey"].encode(), fields, version, frame[2])
        assert accepts is seen["serverAccepts"], vector
        content = signed_content(fields, version) + frame[2]
        assert content == b64decode(seen["serverContentB64"])
        taken += accepts
    assert taken == (156 if codec == "JSON" else 144)


def test_our_signatures_are_those_of_the_official_client() -> None:
    for vector in vectors():
        added = {"AccessKey", "Signature", "SecurityToken"}
        fields = {name: value for name, value in vector["extFields"].items() if name not in added}
        body = b64decode(vector.get("bodyB64") or "")
        token = vector.get("securityToken")
        signed = sign(fields, body, vector["accessKey"], vector["secretKey"], token)
        assert signed == vector["extFields"]


def test_one_bit_more_or_less_is_noticed() -> None:
    signed = sign({"topic": "T", "queueId": "3"}, b"body", "me", "secret")
    assert is_signed_with(b"secret", signed, 479, b"body")
    for wrong in (
        {**signed, "topic": "U"},
        {**signed, "extra": "x"},
        {**signed, "Signature": signed["Signature"].rstrip("=")},
        {**signed, "Signature": "ä"},
        {name: value for name, value in signed.items() if name != "Signature"},
    ):
        assert not is_signed_with(b"secret", wrong, 479, b"body")
    assert not is_signed_with(b"secret", signed, 479, b"bodY")
    assert not is_signed_with(b"Secret", signed, 479, b"body")


def test_fields_that_are_numbers_count_as_their_text() -> None:
    header = b'{"code":11,"extFields":{"queueId":3,"topic":"T","on":true,"none":null},"opaque":1}'
    assert fields_of((CODEC_JSON, header, b"")) == {"queueId": "3", "topic": "T", "on": "true"}


def test_a_request_without_fields_has_none() -> None:
    (frame,) = FrameDecoder().feed(encode_command(Command(105)))
    assert fields_of(frame) is None
