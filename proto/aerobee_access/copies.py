"""Users and policies of a master, for the slaves of its set.

Touches  nothing by itself: the tables of both; the slave's file, through `changing`.

    slave     nonce, proof, and what it has already, by the name that the master gave it
    master    that name; unless the slave has it a nonce of its own, and users and policies as the sealed body

Both know the secret key of innerClientAuthenticationCredentials, as on the replication link. The proof is an
HMAC-SHA256 of the slave's nonce. The body is AES-256-GCM with a key that is made of the secret and both nonces, so it
opens as the answer to this question alone. It has the secrets of users as they are: each broker seals them on its own
disk with a key of its own (`sealing`).

Invariants
- Nobody gets anything who does not prove that it knows the secret, whatever else it may do.
- A slave takes users and policies whole, or not at all.
"""

import asyncio
import hmac
import os
import secrets
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

from aerobee_access.admin import Changing
from aerobee_access.ciphers import Cipher, NotSealedSo
from aerobee_access.table import AccessTable, Content
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import FormatError, RequestError
from aerobee_proto.headers import RequestHeader
from aerobee_remoting.exchange.handlers import HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import UPDATE, on_cluster

__all__ = ["AccessCopy", "AccessGiver", "CopyHeader"]

NONCE_SIZE: Final = 32
SEAL_NONCE: Final = bytes(12)  # each key is used once
_ASKED: Final = b"aerobee users and policies: the slave asks"
_SEALED: Final = b"aerobee users and policies: the master answers"


class CopyHeader(RequestHeader, kw_only=True):
    """GET_ALL_ACCESS: `nonce` and `proof` as hex digits, `known` is the `revision` of an answer that was taken."""

    nonce: str = ""
    proof: str = ""
    known: str = ""


class AccessGiver:
    """A master's end: the handler of GET_ALL_ACCESS."""

    def __init__(self, table: AccessTable, secret: bytes | None, *, is_on: bool) -> None:
        """`secret` is what the brokers of a set know; without one, and unless access control `is_on`, nothing is
        given."""
        self._table = table
        self._secret = secret
        self._is_on = is_on
        self.has_given = False  # there are slaves
        self._life = secrets.token_hex(8)  # revisions count from 0 in each

    def register(self, table: HandlerTable) -> None:
        """Add the handler to a table."""
        table.register(RequestCode.GET_ALL_ACCESS, self.give, header=CopyHeader, needs=(on_cluster(UPDATE),))

    async def give(self, request: Request[CopyHeader]) -> Response:
        """Users and policies as they are, sealed; no body for a slave that has them."""
        header, secret = request.header, self._secret
        if not self._is_on:
            raise _refused("access control is off here: there are no users and policies to be given")
        if secret is None:
            raise _refused(
                "users and policies are given to slaves that know the same innerClientAuthenticationCredentials, and "
                "this broker has none"
            )
        nonce = _bytes_of(header.nonce)
        if len(nonce) != NONCE_SIZE or not hmac.compare_digest(
            _proof(secret, nonce), _bytes_of(header.proof)
        ):
            raise _refused("both brokers have to know the same innerClientAuthenticationCredentials")
        self.has_given = True
        revision = f"{self._life}-{self._table.revision}"
        if header.known == revision:
            return Response(ext={"revision": revision})
        own, copied = os.urandom(NONCE_SIZE), self._table.to_copy()
        body = await asyncio.to_thread(
            lambda: _cipher(secret, nonce, own).seal(SEAL_NONCE, copied(), revision.encode())
        )
        return Response(ext={"revision": revision, "nonce": own.hex()}, body=body)


class AccessCopy:
    """A slave's end: its table becomes what the master's is. One question, then its answer, at a time."""

    def __init__(self, table: AccessTable, secret: bytes, changing: Changing) -> None:
        """`changing` is what a change of the table is made in."""
        self._table = table
        self._secret = secret
        self._changing = changing
        self._nonce = b""
        self._known = ""  # what was taken last, as the master calls it
        self._own_revision = -1  # of this table, when it was taken
        self._is_kept = True  # what was taken is in the file

    def question(self) -> CopyHeader:
        """What to ask the master."""
        self._nonce = os.urandom(NONCE_SIZE)
        known = self._known if self._own_revision == self._table.revision else ""
        return CopyHeader(nonce=self._nonce.hex(), proof=_proof(self._secret, self._nonce).hex(), known=known)

    async def take(self, fields: Mapping[str, str], body: bytes) -> bool:
        """Become what the master has answered; whether anything has changed. FormatError when it is no answer to the
        question; KeyFileError, AccessFileDamaged, OSError when it cannot be kept here."""
        revision = fields.get("revision", "")
        if not body:
            if not revision or revision != self._known:
                raise FormatError("the master gives no users and policies")
            return False
        content = await asyncio.to_thread(self._opened, _bytes_of(fields.get("nonce", "")), revision, body)
        is_new = not await self._has(content)
        if is_new or not self._is_kept:
            self._known, self._is_kept = "", False  # what cannot be written is asked for again
            async with self._changing():
                if not await self._has(content):
                    self._table.take(content)
            self._is_kept = True
        self._known, self._own_revision = revision, self._table.revision
        return is_new

    async def _has(self, content: Content) -> bool:
        return await asyncio.to_thread(self._table.comparing(content))

    def _opened(self, nonce: bytes, revision: str, body: bytes) -> Content:
        try:
            raw = _cipher(self._secret, self._nonce, nonce).open(SEAL_NONCE, body, revision.encode())
        except NotSealedSo:
            raise FormatError(
                "what the master gives for its users and policies does not open with the secret of this broker's "
                "innerClientAuthenticationCredentials"
            ) from None
        return self._table.parse_copy(raw)


def _proof(secret: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret, _ASKED + nonce, sha256)


def _cipher(secret: bytes, asked: bytes, answered: bytes) -> Cipher:
    return Cipher(hmac.digest(secret, _SEALED + asked + answered, sha256))


def _bytes_of(digits: str) -> bytes:
    """b"" for what are no hex digits."""
    try:
        return bytes.fromhex(digits)
    except ValueError:
        return b""


def _refused(remark: str) -> RequestError:
    return RequestError(ResponseCode.NO_PERMISSION, remark)
