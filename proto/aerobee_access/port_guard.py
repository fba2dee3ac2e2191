"""The guard of the HTTP port for operators: who may see metrics, and why a server is not well.

    Authorization: Bearer TOKEN             the token of the file that `metricsPromExporterTokenPath` names
    Authorization: Basic BASE64(any:TOKEN)  the same, for programs that know nothing else
    a certificate                           of the authorities that clients are checked against, where the port speaks
                                            TLS and asks for one; with access control of a user that may see the server

Touches  the file of the token, reading: when it has changed, it is read again at the next visit.

It is needed where there is a token; without one, where others than this machine can dial the port of a server with
access control. A server without access control tells everybody as much at its other port.

Invariants
- A token is compared in a time that says nothing of it; who is refused waits as others do who guess (`Refusals`).
- A file that cannot be used changes nothing while the server runs, and is told once; at the start it is refused.
"""

import asyncio
import base64
import binascii
import hmac
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aerobee_proto.errors import AerobeeError
from aerobee_remoting.peers.tls import subject_of
from aerobee_service.logs.event_log import event_logger
from aerobee_service.operators.http_responder import Standing, Visitor
from aerobee_service.operators.operators_port import PortGuard

__all__ = ["OperatorsGuard", "TokenFile", "TokenUnusable"]

log = event_logger("aerobee.access")

FILE_SIZE_MAX: Final = 4096
TOKEN_CHARS_MIN: Final = 16

_State = tuple[int, int, int]


class TokenUnusable(AerobeeError):
    """The file of the token cannot be used; the text names it, what is wrong and what to do, and shows no token."""


class TokenFile:
    """A token in a file of its own, for its owner alone (0600): one word of 16 letters or more."""

    def __init__(self, path: Path) -> None:
        """TokenUnusable."""
        self.path = path
        self._token, self._seen = _read(path)

    def token(self) -> str:
        """What the file holds now; what it held before, when it cannot be used. Waits for the disk."""
        try:
            state = _state_of(os.stat(self.path))  # noqa: PTH116
        except OSError:
            state = (0, 0, 0)
        if state != self._seen:
            self._seen = state
            try:
                self._token, self._seen = _read(self.path)
            except TokenUnusable as unusable:
                log.error("metrics.token_unusable", reason=str(unusable))  # noqa: TRY400  # it says it all
            else:
                log.info("metrics.token_changed", path=str(self.path))
        return self._token


def _state_of(found: os.stat_result) -> _State:
    return found.st_ino, found.st_size, found.st_mtime_ns


def _read(path: Path) -> tuple[str, _State]:
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            raw = file.read(FILE_SIZE_MAX)
    except OSError as failed:
        raise TokenUnusable(f"{path} (metricsPromExporterTokenPath): {failed.strerror or failed}") from failed
    if stat.S_IMODE(found.st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
        raise TokenUnusable(f"{path} (metricsPromExporterTokenPath) may be read by others: chmod 600 {path}")
    words = raw.split()
    if (
        len(words) != 1
        or len(words[0]) < TOKEN_CHARS_MIN
        or not all(0x21 <= byte < 0x7F for byte in words[0])
    ):
        raise TokenUnusable(
            f"{path} (metricsPromExporterTokenPath): one word of {TOKEN_CHARS_MIN} letters or more of ASCII is wanted; "
            f"openssl rand -hex 32 > {path} makes one"
        )
    return words[0].decode("ascii"), _state_of(found)


class OperatorsGuard(PortGuard):
    """See the module."""

    def __init__(
        self,
        token: TokenFile | None,
        *,
        has_access_control: bool,
        takes_certificates: bool,
        may_look: Callable[[str, str], bool],
        refused: Callable[[Visitor, str, str], float],
    ) -> None:
        """`may_look` says of an address and the user that a verified certificate names whether it may see the server.
        `refused` is told of visitor, path and reason, and says how many seconds the answer has to wait."""
        self._token = token
        self._has_access_control = has_access_control
        self._takes_certificates = takes_certificates
        self._may_look = may_look
        self._refused = refused

    def is_needed(self, *, of_this_machine: bool) -> bool:
        return self._token is not None or (self._has_access_control and not of_this_machine)

    @property
    def lets_nobody_in(self) -> bool:
        return self._token is None and not self._takes_certificates

    async def standing(self, visitor: Visitor) -> Standing:
        if visitor.authorization:
            given = _token_of(visitor.authorization)
            token = "" if self._token is None else await asyncio.to_thread(self._token.token)
            is_right = hmac.compare_digest(given.encode(), token.encode()) and token != ""
            return Standing.KNOWN if is_right else Standing.REFUSED
        subject = subject_of(visitor.transport) if self._takes_certificates else ""
        if not subject:
            return Standing.STRANGER
        return Standing.KNOWN if self._may_look(visitor.host, subject) else Standing.STRANGER

    async def refuse(self, visitor: Visitor, path: str) -> None:
        reason = "the credentials are not right" if visitor.authorization else "no credentials"
        await asyncio.sleep(self._refused(visitor, path, reason))


def _token_of(authorization: str) -> str:
    """What somebody gives as the token; empty when it is in no form that is known."""
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(rest.strip(), validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""
