"""A server and a raw peer for tests: real sockets, no clients of ours in between."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aerobee_proto.frames import Command, FrameDecoder, decode_command, encode_command
from aerobee_remoting.ends.server import RemotingServer, ServerConfig
from aerobee_remoting.exchange.handlers import HandlerTable

__all__ = ["RawPeer", "raw_peer", "serving"]


@asynccontextmanager
async def serving(
    handlers: HandlerTable, config: ServerConfig | None = None
) -> AsyncIterator[tuple[RemotingServer, int]]:
    """The server and its port; everything is closed afterwards."""
    server = RemotingServer(handlers, config=config)
    port = await server.start("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.close()


class RawPeer:
    """Writes any bytes, reads whole commands."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._decoder = FrameDecoder()
        self._read: list[Command] = []

    def send(self, *commands: Command) -> None:
        self.writer.write(b"".join(encode_command(command) for command in commands))

    async def receive(self) -> Command:
        """The next command; EOFError when the server closed the connection."""
        async with asyncio.timeout(10):
            while not self._read:
                data = await self.reader.read(65536)
                if not data:
                    raise EOFError
                self._read += [decode_command(frame) for frame in self._decoder.feed(data)]
        return self._read.pop(0)

    async def is_closed_by_the_server(self) -> bool:
        async with asyncio.timeout(10):
            try:
                return await self.reader.read() == b""
            except ConnectionError:
                return True


@asynccontextmanager
async def raw_peer(port: int) -> AsyncIterator[RawPeer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield RawPeer(reader, writer)
    finally:
        writer.transport.abort()
