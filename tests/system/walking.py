"""Requests sent one after the other to a server in this process, and how long each of them held its event loop.

A request is known by its code and a name. What took long is asked again, for a busy machine makes work look longer than
it is; so whoever makes the requests makes one of a name anew.
"""

import asyncio
import gc
import itertools
import socket
import struct
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator

import msgspec

from aerobee_proto.codes import RequestCode
from aerobee_proto.frames import FLAG_RESPONSE
from aerobee_remoting.exchange.handlers import Entry
from system.worst_requests import Worst
from turns import TURN_MAX, Turns

__all__ = ["Calm", "Sender", "Walk", "longest_turn"]

TRIES = 8
PATIENCE_S = 60  # for one answer
SILENT = {RequestCode.END_TRANSACTION}  # is never answered: the request behind it is
OPAQUE, PING_OPAQUE = 7, 8
CLOSED = -1  # instead of a code: the connection was
PING = b'{"code":%d,"flag":0,"opaque":%d}' % (RequestCode.GET_CODECS, PING_OPAQUE)

Requests = Callable[[Entry, int, str | None], Iterator[Worst]]
"""Every request of a code, or the one of a name. The number makes names of things new, so each try meets them first."""


class Calm:
    """No sweep over all that pytest keeps, as the servers' own heap is small beside it."""

    def __enter__(self) -> None:
        gc.collect()
        gc.freeze()

    def __exit__(self, *_: object) -> None:
        gc.unfreeze()


class Sender:
    """A plain socket in another thread: what the peer itself works is not measured."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None
        self.code = CLOSED  # of the last answer

    def ask(self, code: int, worst: Worst) -> None:
        """Send the request; return when it is answered, or when the connection is closed."""
        self.code = CLOSED
        header = worst.header
        size = 4 + len(header) + len(worst.body)
        frame = struct.pack(">II", size, len(header)) + header + worst.body
        try:
            if self._socket is None:
                self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE_S)
            self._socket.sendall(frame)
            if code in SILENT:
                self._socket.sendall(struct.pack(">II", 4 + len(PING), len(PING)) + PING)
            while (answer := self._answer(self._socket))[0] != (PING_OPAQUE if code in SILENT else OPAQUE):
                pass  # of a silent one that was refused
            self.code = answer[1]
        except (EOFError, ConnectionError):
            self.close()

    def _answer(self, connection: socket.socket) -> tuple[int, int]:
        """(opaque, code) of the next answer."""
        (size,) = struct.unpack(">I", _exactly(connection, 4))
        answer = _exactly(connection, size)
        (length,) = struct.unpack_from(">I", answer)
        header = msgspec.json.decode(answer[4 : 4 + length])
        if not header["flag"] & FLAG_RESPONSE:
            return -1, 0  # a request of the server: a notice, numbered by itself
        return header["opaque"], header["code"]

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None


def _exactly(connection: socket.socket, size: int) -> bytes:
    read = bytearray()
    while len(read) < size:
        data = connection.recv(min(1 << 20, size - len(read)))
        if not data:
            raise EOFError
        read += data
    return bytes(read)


class Walk:
    """Sends the requests of a table and keeps the longest turn of each, in units of `turns.reference`."""

    def __init__(self, port: int, requests: Requests, *, known: Container[tuple[int, str]] = ()) -> None:
        """`known`: what may take longer than a turn may, by code and name."""
        self._sender = Sender(port)
        self._requests = requests
        self._known = known
        self._number = itertools.count(1)
        self.found: dict[tuple[int, str], float] = {}
        self.answered: dict[tuple[int, str], int] = {}  # with which code

    async def over(self, entries: Iterable[Entry]) -> None:
        """Every request of every code, in this order."""
        try:
            for entry in entries:
                await self.of_one(entry)
        finally:
            self._sender.close()

    async def ask(self, code: int, worst: Worst) -> None:
        """One request, not measured."""
        await asyncio.to_thread(self._sender.ask, code, worst)

    async def of_one(self, entry: Entry) -> None:
        """Every request once; those that took long again."""
        turns = Turns()
        took: dict[str, float] = {}
        with turns.watched():
            for worst in self._requests(entry, next(self._number), None):
                await asyncio.sleep(0)  # the turn in which it was made is ours
                turns.begin()
                await asyncio.to_thread(self._sender.ask, entry.code, worst)
                took[worst.name] = turns.longest_ms
                self.answered[entry.code, worst.name] = self._sender.code
        for name, ms in took.items():
            self.found[entry.code, name] = ms / turns.unit_ms
        for name in took:
            if (entry.code, name) in self.too_long:
                await self._again(entry, name)

    async def _again(self, entry: Entry, name: str) -> None:
        def ask() -> Awaitable[None]:
            (worst,) = self._requests(entry, next(self._number), name)
            return asyncio.to_thread(self._sender.ask, entry.code, worst)

        self.found[entry.code, name] = min(self.found[entry.code, name], await longest_turn(ask))

    @property
    def too_long(self) -> dict[tuple[int, str], float]:
        """What took longer than a turn may, and is not known to."""
        return {
            what: round(took, 1)
            for what, took in self.found.items()
            if took > TURN_MAX and what not in self._known
        }


async def longest_turn(work: Callable[[], Awaitable[object]]) -> float:
    """The longest turn of the loop during `work`, in units of `turns.reference`; the best of some tries."""
    best = float("inf")
    for _ in range(TRIES):
        gc.collect()
        turns = Turns()
        awaited = work()
        with turns.watched():
            turns.begin()
            await asyncio.ensure_future(awaited)  # in turns of its own: this one began before it was watched
            ms = turns.longest_ms
        best = min(best, ms / turns.unit_ms)
        if best <= TURN_MAX:
            break
    return best
