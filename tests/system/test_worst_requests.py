"""No request keeps the event loop longer than a turn may take, whatever its code and its bytes."""

import asyncio
import gc
import itertools
import socket
import struct
from pathlib import Path

from aerobee_nameserver.config import load_config
from aerobee_nameserver.server import NameServer
from aerobee_proto.codes import RequestCode
from aerobee_remoting.handlers import Entry, HandlerTable
from system.running import running_broker
from system.worst_requests import BODIES, TOPIC, Worst, many_messages, worst_of
from turns import TURN_MAX, Turns

TRIES = 8
PATIENCE_S = 60
SILENT = {RequestCode.END_TRANSACTION}  # is never answered: the request behind it is
PING = b'{"code":%d,"flag":0,"opaque":8}' % RequestCode.GET_CODECS
KNOWN = {
    (
        RequestCode.REGISTER_BROKER,
        "body: topics",
    ): "read in a thread, but 120,000 new topics enter the table in one turn"
}
MESSAGES = 9000  # in the queue that bit sets of acknowledgements are about: more than one bit set has bits


class _Calm:
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

    def ask(self, code: int, worst: Worst) -> None:
        """Send the request; return when it is answered, or when the connection is closed."""
        header = worst.header
        size = 4 + len(header) + len(worst.body)
        frame = struct.pack(">II", size, len(header)) + header + worst.body
        try:
            if self._socket is None:
                self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE_S)
            self._socket.sendall(frame)
            if code in SILENT:
                self._socket.sendall(struct.pack(">II", 4 + len(PING), len(PING)) + PING)
            self._answer(self._socket)
        except (EOFError, ConnectionError):
            self.close()

    def _answer(self, connection: socket.socket) -> None:
        (size,) = struct.unpack(">I", _exactly(connection, 4))
        _exactly(connection, size)

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
    """Sends the worst requests of a table and keeps the longest turn of each, in units of `turns.reference`."""

    def __init__(self, port: int) -> None:
        self._sender = Sender(port)
        self._number = itertools.count(1)
        self.found: dict[tuple[int, str], float] = {}

    async def over(self, table: HandlerTable) -> None:
        """Every request of every code, those last that make the tables large or delete what others ask for."""
        missing = {
            code for code, entry in table.by_code.items() if entry.body_size_max and code not in BODIES
        }
        assert not missing, "codes that take a body have no worst body yet"
        try:
            for entry in sorted(table.by_code.values(), key=_order):
                await self.of_one(entry)
        finally:
            self._sender.close()

    async def ask(self, code: int, worst: Worst) -> None:
        """One request, not measured."""
        await asyncio.to_thread(self._sender.ask, code, worst)

    async def of_one(self, entry: Entry) -> None:
        """Every request once; those that took long again, for a busy machine makes work look longer than it is."""
        turns = Turns()
        took: dict[str, float] = {}
        with turns.watched():
            for worst in worst_of(entry, next(self._number)):
                turns.begin()
                await asyncio.to_thread(self._sender.ask, entry.code, worst)
                took[worst.name] = turns.longest_ms
        for name, ms in took.items():
            self.found[entry.code, name] = ms / turns.unit_ms
        for name in [name for name in took if (entry.code, name) in self.too_long]:
            for _ in range(TRIES):
                (again,) = worst_of(entry, next(self._number), name)
                gc.collect()
                with turns.watched():
                    turns.begin()
                    await asyncio.to_thread(self._sender.ask, entry.code, again)
                    ms = turns.longest_ms
                self.found[entry.code, name] = min(self.found[entry.code, name], ms / turns.unit_ms)
                if self.found[entry.code, name] <= TURN_MAX:
                    break

    @property
    def too_long(self) -> dict[tuple[int, str], float]:
        """What took longer than a turn may, and is not known to."""
        return {
            what: round(took, 1) for what, took in self.found.items() if took > TURN_MAX and what not in KNOWN
        }


def _order(entry: Entry) -> tuple[bool, int, int]:
    return entry.code == RequestCode.DELETE_TOPIC_IN_BROKER, entry.body_size_max, entry.code


async def test_no_request_to_a_broker_takes_longer_than_a_turn_may(tmp_path: Path) -> None:
    """Bit sets of acknowledgements took 170 ms, groups of a heartbeat 400 ms, a list of topics 200 ms, a batch of
    messages with very many properties 140 ms, and each change of a large table as long as writing all of it.
    """
    async with running_broker(tmp_path, mapped_file_size_commit_log=64 << 20) as broker:
        walk = Walk(broker.port)
        await walk.ask(RequestCode.SEND_BATCH_MESSAGE, many_messages(MESSAGES))
        assert broker.services.store.max_offset(TOPIC, 0) == MESSAGES, (
            "bit sets are about messages that are there"
        )
        with _Calm():
            await walk.over(broker.handlers)
    assert walk.too_long == {}


async def test_no_request_to_a_nameserver_takes_longer_than_a_turn_may() -> None:
    config = load_config(overrides={"listenPort": "0", "bindAddress": "127.0.0.1"}, environ={})
    server = NameServer(config, keep_kv=False)
    await server.start()
    try:
        walk = Walk(server.port)
        with _Calm():
            await walk.over(server._handlers.table())
    finally:
        await server.close()
    assert walk.too_long == {}
