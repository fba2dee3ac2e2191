"""etcd as the register of an election: its API of version 3, as JSON over HTTP.

Touches  the members of one etcd cluster through aiohttp, which comes with the extra `election`.

The member that answered last is asked first; one that is silent, has no leader or cannot be reached is left for the
next. What was sent and not answered may have been done: a transaction is sent again only where it certainly was not.

    lease      POST /v3/lease/grant, /v3/lease/keepalive, /v3/lease/revoke
    keys       POST /v3/kv/range, /v3/kv/txn
    changes    POST /v3/watch: a line of JSON for each revision, without an end
    password   POST /v3/auth/authenticate gives a token for the header Authorization; an old one is replaced once

Numbers of 64 bits are texts in this form, keys and values are base64, and what is zero or empty is left out.

Invariants
- No call takes longer than `timeout_s`, whatever etcd does; a watch that hears nothing for WATCH_SILENCE_S begins anew.
- A watch leaves no revision out: it begins anew behind the last one that it has passed on.
"""

import asyncio
import contextlib
import math
import ssl
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from typing import Final, Generic, NoReturn, TypeVar

import aiohttp
import msgspec

from aerobee_broker.election.register import (
    Change,
    ChangesLost,
    Entry,
    LeaseGone,
    Put,
    RegisterRefused,
    RegisterUnreachable,
    View,
)

__all__ = ["Etcd"]

WATCH_SILENCE_S: Final = 10.0
WATCH_RETRY_S: Final = 0.2
LINE_SIZE_MAX: Final = 4 << 20  # bytes of one answer; the keys of a set have some hundred
TRIES_MIN: Final = 2  # a connection that was kept may be gone
TRIES_MAX: Final = 3  # members that share the time of one call
# Codes of gRPC.
INVALID_ARGUMENT: Final = 3
NOT_FOUND: Final = 5
PERMISSION_DENIED: Final = 7
FAILED_PRECONDITION: Final = 9
UNAUTHENTICATED: Final = 16
FINAL_CODES: Final = frozenset({INVALID_ARGUMENT, PERMISSION_DENIED, FAILED_PRECONDITION})
Number = int | str
T = TypeVar("T")
HTTP_OK: Final = 200


class _Header(msgspec.Struct):
    revision: Number = 0


class _KeyValue(msgspec.Struct):
    key: str = ""
    value: str = ""
    mod_revision: Number = 0
    lease: Number = 0

    def name(self) -> str:
        return b64decode(self.key).decode()

    def entry(self) -> Entry:
        return Entry(b64decode(self.value), int(self.mod_revision), int(self.lease))


class _Granted(msgspec.Struct):
    ID: Number = 0
    TTL: Number = 0


class _Range(msgspec.Struct):
    header: _Header = msgspec.field(default_factory=_Header)
    kvs: list[_KeyValue] = msgspec.field(default_factory=list)


class _Done(msgspec.Struct):
    header: _Header = msgspec.field(default_factory=_Header)
    succeeded: bool = False


class _Token(msgspec.Struct):
    token: str = ""


class _Event(msgspec.Struct):
    kv: _KeyValue
    type: str = "PUT"


class _Watched(msgspec.Struct):
    canceled: bool = False
    compact_revision: Number = 0
    cancel_reason: str = ""
    events: list[_Event] = msgspec.field(default_factory=list)


class _Failure(msgspec.Struct):
    """Of a single answer; within a stream its fields have other names."""

    code: int = 2
    message: str = ""
    grpc_code: int = 0

    @property
    def kind(self) -> int:
        return self.grpc_code or self.code


class _StreamLine(msgspec.Struct, Generic[T]):
    result: T | None = None
    error: _Failure | None = None


class _NotSent(Exception):
    """Nothing has reached this member."""


class _Unanswered(Exception):
    """This member may have done it."""


class _TokenOld(Exception):
    """The token is not taken any more; nothing was done."""


class Etcd:
    """One etcd cluster. `close` at the end. To be made, and used, in the event loop."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        timeout_s: float,
        user: str = "",
        password: str = "",
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """`endpoints` are `host:port`, at least one; `tls` gives the context for each new connection."""
        self._endpoints = list(endpoints)  # the first is asked first
        self._timeout_s = timeout_s
        self._user = user
        self._password = password
        self._tls = tls
        self._token = ""
        self._session: aiohttp.ClientSession | None = None
        self.reached = ""  # the endpoint that answered last

    async def close(self) -> None:
        """End all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    # --- as Register ------------------------------------------------------------------------------------------

    async def grant(self, ttl_s: float) -> int:
        """As `Register`."""
        answer = await self._call("lease/grant", {"TTL": math.ceil(ttl_s)}, _Granted)
        return int(answer.ID)

    async def keep_alive(self, lease: int) -> float:
        """As `Register`."""
        line = await self._call("lease/keepalive", {"ID": str(lease)}, _StreamLine[_Granted])
        if line.result is None:
            raise RegisterUnreachable(f"etcd: {line.error.message if line.error else 'an empty answer'}")
        if int(line.result.TTL) <= 0:
            raise LeaseGone(f"lease {lease} has ended")
        return float(line.result.TTL)

    async def revoke(self, lease: int) -> None:
        """As `Register`."""
        try:
            await self._call("lease/revoke", {"ID": str(lease)}, _Done)
        except LeaseGone:
            return

    async def read(self, prefix: str) -> View:
        """As `Register`."""
        answer = await self._call("kv/range", _range(prefix), _Range)
        return View(int(answer.header.revision), {found.name(): found.entry() for found in answer.kvs})

    async def swap(
        self, conditions: Mapping[str, int], puts: Mapping[str, Put], deletes: Collection[str] = ()
    ) -> int | None:
        """As `Register`."""
        body = {
            "compare": [
                {"key": _text(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}
                for key, revision in conditions.items()
            ],
            "success": [
                *(
                    {
                        "request_put": {
                            "key": _text(key),
                            "value": b64encode(put.value).decode(),
                            "lease": str(put.lease),
                        }
                    }
                    for key, put in puts.items()
                ),
                *({"request_delete_range": {"key": _text(key)}} for key in deletes),
            ],
        }
        answer = await self._call("kv/txn", body, _Done, again=False)
        return int(answer.header.revision) if answer.succeeded else None

    async def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[list[Change], None]:
        """As `Register`."""
        last = after_revision
        while True:
            try:
                async with contextlib.aclosing(self._watched(prefix, last + 1)) as stream:
                    async for watched in stream:
                        if watched.events:
                            last = max(int(event.kv.mod_revision) for event in watched.events)
                            yield [_change(event) for event in watched.events]
            except RegisterUnreachable:
                await asyncio.sleep(WATCH_RETRY_S)

    # --- one call ---------------------------------------------------------------------------------------------

    async def _call(self, path: str, body: object, answer: type[T], *, again: bool = True) -> T:
        """Ask the members in turn. `again`: also those behind one that may have done it."""
        reason = "no answer in time"
        one_s = self._timeout_s / min(len(self._endpoints), TRIES_MAX)
        try:
            async with asyncio.timeout(self._timeout_s):
                for _ in range(max(len(self._endpoints), TRIES_MIN)):
                    try:
                        async with asyncio.timeout(one_s):
                            return await self._ask_signed_in(path, body, answer)
                    except _NotSent as failed:
                        reason = str(failed)
                        self._leave()
                    except (_Unanswered, TimeoutError) as failed:
                        reason = str(failed) or reason
                        self._leave()
                        if not again:
                            break
        except TimeoutError:
            self._leave()
        raise RegisterUnreachable(f"etcd at {', '.join(sorted(self._endpoints))}: {reason}")

    def _leave(self) -> None:
        """Ask another member first from now on."""
        self._endpoints.append(self._endpoints.pop(0))
        self._token = ""

    async def _ask_signed_in(self, path: str, body: object, answer: type[T]) -> T:
        """One member, with a token where one is wanted."""
        try:
            await self._sign_in()
            return await self._ask(path, body, answer)
        except _TokenOld:
            self._token = ""
        await self._sign_in()
        try:
            return await self._ask(path, body, answer)
        except _TokenOld as refused:
            raise RegisterRefused(f"etcd at {self._endpoints[0]}: {refused}") from refused

    async def _sign_in(self) -> None:
        if self._user and not self._token:
            named = {"name": self._user, "password": self._password}
            self._token = (await self._ask("auth/authenticate", named, _Token)).token

    async def _ask(self, path: str, body: object, answer: type[T]) -> T:
        endpoint = self._endpoints[0]
        try:
            async with self._post(endpoint, path, body) as response:
                data = await response.content.read(LINE_SIZE_MAX)
                while (more := await response.content.read(LINE_SIZE_MAX)) and len(data) < LINE_SIZE_MAX:
                    data += more
        except aiohttp.ClientConnectorError as failed:
            raise _NotSent(f"{endpoint}: {failed}") from failed
        except (aiohttp.ClientError, OSError) as failed:
            raise _Unanswered(f"{endpoint}: {str(failed) or type(failed).__name__}") from failed
        if response.status != HTTP_OK:
            self._refuse(endpoint, response.status, data)
        try:
            decoded = msgspec.json.decode(data, type=answer)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as failed:
            raise _Unanswered(f"{endpoint}: an answer that is not etcd's: {failed}") from failed
        self.reached = endpoint
        return decoded

    def _post(
        self, endpoint: str, path: str, body: object
    ) -> "contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]":
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None), read_bufsize=LINE_SIZE_MAX
            )
        return self._session.post(
            f"{'https' if self._tls else 'http'}://{endpoint}/v3/{path}",
            data=msgspec.json.encode(body),
            headers={"Authorization": self._token} if self._token else {},
            ssl=self._tls() if self._tls else True,
            allow_redirects=False,
        )

    def _refuse(self, endpoint: str, status: int, data: bytes) -> NoReturn:
        """Say what an answer means that is not a success."""
        try:
            failure = msgspec.json.decode(data, type=_Failure)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise _Unanswered(f"{endpoint}: HTTP status {status}, not an answer of etcd's API 3") from None
        _raise(failure, endpoint)

    # --- watching ---------------------------------------------------------------------------------------------

    async def _watched(self, prefix: str, from_revision: int) -> AsyncGenerator[_Watched, None]:
        """One stream of one member, until it ends. ChangesLost, RegisterUnreachable."""
        body = {"create_request": _range(prefix) | {"start_revision": str(from_revision)}}
        endpoint = self._endpoints[0]
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._sign_in()
            async with self._post(endpoint, "watch", body) as response:
                if response.status != HTTP_OK:
                    self._refuse(endpoint, response.status, await response.content.read(LINE_SIZE_MAX))
                while True:
                    async with asyncio.timeout(WATCH_SILENCE_S):
                        line = await response.content.readline()
                    if not line:
                        raise RegisterUnreachable(f"{endpoint}: the watch has ended")
                    yield _step(msgspec.json.decode(line, type=_StreamLine[_Watched]), endpoint)
        except TimeoutError as silent:
            raise RegisterUnreachable(f"{endpoint}: silent for {WATCH_SILENCE_S:.0f} s") from silent
        except _TokenOld as refused:
            self._token = ""
            raise RegisterUnreachable(str(refused)) from refused
        except (_NotSent, _Unanswered, aiohttp.ClientError, OSError, ValueError) as failed:
            if endpoint == self._endpoints[0]:
                self._leave()
            raise RegisterUnreachable(f"{endpoint}: {failed}") from failed


def _step(line: _StreamLine[_Watched], endpoint: str) -> _Watched:
    if line.error is not None:
        _raise(line.error, endpoint)
    watched = line.result or _Watched()
    if int(watched.compact_revision):
        raise ChangesLost(f"etcd keeps changes from revision {watched.compact_revision} on only")
    if watched.canceled:
        raise RegisterUnreachable(f"{endpoint}: the watch was cancelled: {watched.cancel_reason}")
    return watched


def _raise(failure: _Failure, endpoint: str) -> NoReturn:
    said = f"{endpoint}: {failure.message}"
    if failure.kind == NOT_FOUND and "lease" in failure.message:
        raise LeaseGone(failure.message)
    # Which number a wrong token has depends on the version of etcd.
    if failure.kind == UNAUTHENTICATED or "auth token" in failure.message:
        raise _TokenOld(said)
    if failure.kind in FINAL_CODES:
        raise RegisterRefused(f"etcd at {said}")
    raise _Unanswered(said)


def _change(event: _Event) -> Change:
    return Change(event.kv.name(), None if event.type == "DELETE" else event.kv.entry())


def _text(key: str) -> str:
    return b64encode(key.encode()).decode()


def _range(prefix: str) -> dict[str, str]:
    """All keys that begin so: up to the first that does not, which ends with the next higher byte."""
    begin = prefix.encode()
    end = begin[:-1] + bytes([begin[-1] + 1])
    return {"key": b64encode(begin).decode(), "range_end": b64encode(end).decode()}
