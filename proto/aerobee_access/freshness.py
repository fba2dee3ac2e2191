"""Requests that count once: what a client adds to its signature, and what a server remembers of a connection.

Touches  nothing; the clock comes in.

    AccessFreshness = aerobee1:<ms>:<challenge>:<number>:<code>;

    ms         when it was signed, by the client's clock, since the epoch
    challenge  16 hex digits that the server gave this connection, in its answer to GET_CODECS; "-" where it gave none
    number     1, 2, 3, ... of the requests of this connection
    code       the request code, which RocketMQ's signature leaves out

RocketMQ signs values without names, in the order of their names. This one comes first, so what is signed begins with
it, and it is read from there: who moves it into another field has not got rid of it. Servers that do not know it
check it like any field that they do not know.

Invariants
- Of one connection each number is let in once; on another one, and after a restart of the server, none is.
- A number that is refused for another reason (its time, its code) has not been used up.
"""

import re
import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import count
from typing import Final
from weakref import WeakKeyDictionary

from aerobee_access.signature import FRESHNESS, sign
from aerobee_proto.headers import RequestHeader, ext_of
from aerobee_remoting.peers.peer import Peer
from aerobee_service.clock import epoch_ms

__all__ = ["CHALLENGE", "Freshness", "NotFresh", "Numbers", "Signing"]

CHALLENGE: Final = "challenge"  # field of the answer to GET_CODECS
NO_CHALLENGE: Final = "-"
# A connection's requests may overtake each other by as many as its server holds back (READ_AHEAD and one read).
BEHIND_MAX: Final = 8_192
PREFIX: Final = b"aerobee1:"
_FORM: Final = re.compile(rb"aerobee1:([0-9]{1,15}):([0-9a-f]{16}|-):([0-9]{1,15}):([0-9]{1,9});")
_CHALLENGE: Final = re.compile(r"[0-9a-f]{16}")
_BEHIND: Final = (1 << BEHIND_MAX) - 1


class NotFresh(Exception):  # a refusal, no fault
    """Signed by who it says, and not to be acted on; the text says why."""


class Numbers:
    """What one connection was given, and which of its numbers have come."""

    __slots__ = ("_missing", "challenge", "highest")

    def __init__(self, challenge: str) -> None:
        self.challenge = challenge.encode()
        self.highest = 0
        # Bit i: highest - 1 - i has not come yet. Nearly always 0, as requests seldom overtake.
        self._missing = 0

    def mark(self) -> tuple[int, int]:
        """For `go_back`."""
        return self.highest, self._missing

    def go_back(self, mark: tuple[int, int]) -> None:
        """Those that were taken since have not come."""
        self.highest, self._missing = mark

    def take(self, number: int) -> bool:
        """Whether this one has not come before; from now on it has. So far behind the highest that nobody knows: no."""
        ahead = number - self.highest
        if ahead == 1:
            if self._missing:
                self._missing = self._missing << 1 & _BEHIND
        elif ahead > 1:
            passed = min(ahead - 1, BEHIND_MAX)
            kept = self._missing << ahead if ahead < BEHIND_MAX else 0
            self._missing = (kept | (1 << passed) - 1) & _BEHIND
        else:
            bit = 1 << -ahead - 1 if 0 < -ahead <= BEHIND_MAX else 0
            if not self._missing & bit:
                return False
            self._missing ^= bit
            return True
        self.highest = number
        return True


class Freshness:
    """Tells requests that were seen before, or are late, from others. All calls from the event loop."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        *,
        window_ms: int,
        is_required_of: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`window_ms` may lie between the clocks of client and server, and a request's way. `is_required_of` says for
        which users a signature without a time is not enough."""
        self._now_ms = now_ms
        self._window_ms = window_ms
        self._is_required_of = is_required_of
        self._numbers: WeakKeyDictionary[Peer, Numbers] = WeakKeyDictionary()

    def of(self, caller: Peer) -> Numbers:
        """Those of a connection, as long as it is there."""
        found = self._numbers.get(caller)
        if found is None:
            found = self._numbers[caller] = Numbers(secrets.token_hex(8))
        return found

    def greeting(self, caller: Peer) -> Mapping[str, str]:
        """What a connection is told when it begins: its challenge."""
        return {CHALLENGE: self.of(caller).challenge.decode()}

    def check(self, numbers: Numbers, user: str, code: int, content: bytes) -> None:
        """NotFresh unless a request that `user` has signed (`content`, which may end before the body) counts now."""
        if not content.startswith(PREFIX):
            if self._is_required_of(user):
                raise NotFresh(
                    f"User:{user} has to sign the time, as clients of Aerobee do (authReplayProtection)."
                )
            return
        match = _FORM.match(content)
        if match is None:
            raise NotFresh(f"{FRESHNESS} cannot be read.")
        at, challenge, number, signed_code = match.groups()
        if challenge != numbers.challenge:
            raise NotFresh(
                "signed for another connection: it was sent before, or its client did not ask first."
            )
        if int(signed_code) != code:
            raise NotFresh(f"signed as request code {int(signed_code)}, and sent as {code}.")
        signed_ms, now_ms = int(at), self._now_ms()
        if not -self._window_ms <= now_ms - signed_ms <= self._window_ms:
            raise NotFresh(
                f"signed at {_time(signed_ms)}, and here it is {_time(now_ms)}: {abs(now_ms - signed_ms)} ms apart, "
                f"at most {self._window_ms} are allowed (authReplayWindowMillis). Are both clocks right?"
            )
        if not numbers.take(int(number)):
            raise NotFresh(f"request {int(number)} of this connection was seen before.")


class Signing:
    """Signs what a client asks: called with what a server said when a connection began, it gives the one that signs
    the requests of that connection."""

    def __init__(
        self,
        access_key: str,
        secret: str,
        security_token: str | None = None,
        *,
        now_ms: Callable[[], int] = epoch_ms,
    ) -> None:
        self._access_key = access_key
        self._secret = secret
        self._security_token = security_token
        self._now_ms = now_ms

    def __call__(
        self, greeting: Mapping[str, str]
    ) -> Callable[[int, RequestHeader | dict[str, str] | None, bytes], dict[str, str]]:
        given = greeting.get(CHALLENGE, "")
        # Anything else might make this sign what a server has thought up.
        challenge = given if _CHALLENGE.fullmatch(given) else NO_CHALLENGE
        numbers = count(1)

        def signed(code: int, header: RequestHeader | dict[str, str] | None, body: bytes) -> dict[str, str]:
            fields = header if isinstance(header, dict) else {} if header is None else ext_of(header)
            fresh = f"aerobee1:{self._now_ms()}:{challenge}:{next(numbers)}:{int(code)};"
            return sign(fields, body, self._access_key, self._secret, self._security_token, fresh)

        return signed


def _time(ms: int) -> str:
    """For people, and as the number that it is."""
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec='milliseconds')} ({ms})"
    except (ValueError, OverflowError, OSError):
        return str(ms)
