"""Signatures of requests: who has signed a request, and how to sign one.

Touches  nothing.

The signature is Base64 of HMAC-SHA1 with the secret as its key, over the values of all header fields in the order of
their names (by UTF-16 units), then the body. Names, code, version and flag are not signed. The access key and a
security token are header fields like the others; the signature is not. So is what says that a request is sent for the
first time (`freshness`), which comes first.
"""

import hmac
from binascii import b2a_base64
from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import sha1
from operator import itemgetter
from typing import Final, Protocol

import msgspec

from aerobee_proto.frames import CODEC_JSON, CODEC_ROCKETMQ, Frame, decode_command

__all__ = [
    "ACCESS_KEY",
    "FRESHNESS",
    "SIGNATURE",
    "fields_of",
    "is_signature",
    "sign",
    "signature_of",
    "signed_content",
    "signed_with",
]

ACCESS_KEY: Final = "AccessKey"
FRESHNESS: Final = "AccessFreshness"  # its name sorts before all others that are sent
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105  # a field's name
SIGNATURE: Final = "Signature"
# Up to this version clients and servers leave the value of this field out of what is signed.
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
UNIQUE_KEY_VERSION: Final = 399


class _Sha1(Protocol):
    """What `hashlib` gives."""

    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...

    def copy(self) -> "_Sha1": ...


class _Fields(msgspec.Struct):
    ext_fields: dict[str, str] | None = msgspec.field(default=None, name="extFields")


_read = msgspec.json.Decoder(_Fields).decode


def fields_of(frame: Frame) -> dict[str, str] | None:
    """Every header field of a frame that was read before, as text; None when it carries none at all."""
    if frame[0] == CODEC_JSON:
        try:
            return _read(frame[1]).ext_fields
        except msgspec.ValidationError:
            pass  # numbers instead of texts: read below
    fields = decode_command(frame).ext_fields
    if fields and frame[0] == CODEC_ROCKETMQ and "" in fields.values():
        # The official server reads an empty value of this codec as none, and signs the word for it.
        return {name: value or "null" for name, value in fields.items()}
    return fields


# The names of a request, as it has them -> its values in the order in which they are signed. Those of one code are the
# same in every request: sorting them anew took a third of a signature's time (bench/profile_send.py --signed).
_orders: dict[tuple[str, ...], Callable[[Mapping[str, str]], tuple[str, ...]]] = {}
ORDERS_MAX: Final = 1_024
ORDER_NAMES_MAX: Final = 64  # of a request whose order is kept


def signed_content(fields: Mapping[str, str], version: int) -> bytes:
    """What is signed of the header fields; the body follows."""
    names = tuple(fields)
    if version <= UNIQUE_KEY_VERSION and UNIQUE_KEY_QUERY in fields:
        return "".join([fields[name] for name in _sorted(names) if name != UNIQUE_KEY_QUERY]).encode()
    values = _orders.get(names)
    if values is None:
        order = _sorted(names)
        if not 1 < len(order) <= ORDER_NAMES_MAX:
            return "".join([fields[name] for name in order]).encode()
        if len(_orders) >= ORDERS_MAX:
            _orders.clear()
        values = _orders[names] = itemgetter(*order)
    return "".join(values(fields)).encode()


def _sorted(names: tuple[str, ...]) -> list[str]:
    """Those that are signed, in the order of their UTF-16 units."""
    order = sorted(name for name in names if name != SIGNATURE)
    if not "".join(order).isascii():
        order.sort(key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    return order


KEYS_MAX: Final = 1_024  # secrets of which the begun hashes are kept
_BLOCK_SIZE: Final = 64  # bytes that SHA-1 takes at a time


@lru_cache(maxsize=KEYS_MAX)
def _begun(secret: bytes) -> tuple["_Sha1", "_Sha1"]:
    """The two hashes of HMAC, which begin with the key."""
    key = (secret if len(secret) <= _BLOCK_SIZE else sha1(secret).digest()).ljust(_BLOCK_SIZE, b"\0")  # noqa: S324
    inner, outer = (bytes([byte ^ mask for byte in key]) for mask in (0x36, 0x5C))
    return sha1(inner), sha1(outer)  # noqa: S324  # RocketMQ's


def signature_of(content: bytes, secret: bytes) -> bytes:
    """Base64 of the signature. With the hashes begun before it takes 0.8 us, with `hmac.digest` 1.7."""
    inner, outer = _begun(secret)
    inner, outer = inner.copy(), outer.copy()
    inner.update(content)
    outer.update(inner.digest())
    return b2a_base64(outer.digest(), newline=False)


def signed_with(secret: bytes, fields: Mapping[str, str], version: int, body: bytes) -> bytes | None:
    """What was signed, without the body, if the fields carry the signature that this secret makes; in the same time
    whatever they carry."""
    content = signed_content(fields, version)
    signature = fields.get(SIGNATURE, "").encode("utf-8", "replace")
    return content if is_signature(signature, content + body if body else content, secret) else None


def is_signature(signature: bytes, content: bytes, secret: bytes) -> bool:
    """Whether this is what the secret makes of that; in the same time whatever it is."""
    return hmac.compare_digest(signature_of(content, secret), signature)


def sign(
    fields: Mapping[str, str],
    body: bytes,
    access_key: str,
    secret: str,
    security_token: str | None = None,
    freshness: str | None = None,
) -> dict[str, str]:
    """The header fields with who asks and the signature; `freshness` as `aerobee_access.freshness` makes it."""
    signed = {**fields, ACCESS_KEY: access_key}
    if freshness is not None:
        signed[FRESHNESS] = freshness
    if security_token is not None:
        signed[SECURITY_TOKEN] = security_token
    signed.pop(SIGNATURE, None)
    content = signed_content(signed, UNIQUE_KEY_VERSION + 1) + body
    signed[SIGNATURE] = signature_of(content, secret.encode()).decode()
    return signed
