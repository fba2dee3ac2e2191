"""A whole broker without sockets and without a disk, and clients on connections in memory: for tests of handlers.

Everything of it runs, as `system.running` runs it, but that it does not listen and that its files are in memory. What
one side writes the other side gets in the next turn of the event loop, whole.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from aerobee_broker.broker import Broker
from aerobee_service.clock import epoch_ms
from store.memory_io import MemoryIo
from system.popping import Popper
from system.running import Talker, broker_config

__all__ = ["broker_in_memory", "popping_in_memory", "talking_in_memory"]

HOST = "127.0.0.1"
PORTS = count(50_000)  # of clients


@asynccontextmanager
async def broker_in_memory(
    *, io: MemoryIo | None = None, clock: Callable[[], int] = epoch_ms, **settings: Any
) -> AsyncIterator[Broker]:
    """A broker that runs; stopped in order afterwards."""
    config = broker_config(Path("/store"), **settings)
    broker = Broker(config, io=io or MemoryIo(), clock=clock, listens=False)
    try:
        await broker.start()
        yield broker
    finally:
        await broker.close()


@asynccontextmanager
async def talking_in_memory(broker: Broker) -> AsyncIterator[Talker]:
    """A client of the broker, cut off afterwards."""
    loop = asyncio.get_running_loop()
    client_at, broker_at = (HOST, next(PORTS)), (HOST, broker.port)
    reader = asyncio.StreamReader(loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    near, far = _End(client_at, broker_at, protocol), _End(broker_at, client_at, _connection(broker))
    near.other, far.other = far, near
    far.protocol.connection_made(far)
    near.protocol.connection_made(near)
    try:
        yield Talker(reader, asyncio.StreamWriter(near, protocol, reader, loop))
    finally:
        near.abort()
        await asyncio.sleep(0)  # the broker hears of it


@asynccontextmanager
async def popping_in_memory(broker: Broker) -> AsyncIterator[Popper]:
    """The same for one who pops."""
    async with talking_in_memory(broker) as talker:
        yield Popper(talker.reader, talker.writer)


def _connection(broker: Broker) -> asyncio.Protocol:
    return broker.parts.server.new_connection()


class _End(asyncio.Transport):
    """One end of a connection in memory."""

    other: "_End"

    def __init__(self, here: tuple[str, int], there: tuple[str, int], protocol: asyncio.Protocol) -> None:
        super().__init__({"sockname": here, "peername": there})
        self.protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._incoming = bytearray()
        self._hung_up = False  # the other end
        self._paused = False
        self._closing = False
        self._scheduled = False

    # --- out ----------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self.other._incoming += data
            self.other._schedule()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.other._hung_up = True
        self.other._schedule()

    # --- in -----------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._scheduled and not self._paused:
            self._scheduled = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        if self._paused or self._closing:
            return
        if self._incoming:
            data = bytes(self._incoming)
            self._incoming.clear()
            self.protocol.data_received(data)
        if self._hung_up and not self._incoming and not self.protocol.eof_received():
            self.close()

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        if self._incoming or self._hung_up:
            self._schedule()

    # --- the end ------------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self.protocol.connection_lost, None)
            self.other._hung_up = True
            self.other._schedule()

    def abort(self) -> None:
        self.close()
