"""The first bytes of a connection, read from its socket before anything else has it: what the peer speaks, and what a
proxy says of whom it speaks for.

Touches  the sockets that it is given. What is only looked at stays in the socket; of a header no byte more is taken.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from aerobee_proto.proxy_protocol import HEADER_SIZE_MAX, ProxyHeaderDecoder, ProxyHeaderError

__all__ = ["look_at_first", "take_proxy_header"]

SIGN_SIZE: Final = 4  # tells what the peer speaks


async def look_at_first(loop: asyncio.AbstractEventLoop, accepted: socket.socket) -> bytes:
    """The first bytes of a socket, four at most, as soon as there is one; none when the peer hung up instead."""
    async with _readable(loop, accepted) as more:
        while True:
            with suppress(BlockingIOError):
                return accepted.recv(SIGN_SIZE, socket.MSG_PEEK)
            await _next(more)


async def take_proxy_header(
    loop: asyncio.AbstractEventLoop, accepted: socket.socket
) -> ProxyHeaderDecoder | None:
    """Take the header off; it is whole. None when the peer hung up without a word, as probes of proxies do.

    ProxyHeaderError when there is something else, or a broken one.
    """
    decoder = ProxyHeaderDecoder()
    async with _readable(loop, accepted) as more:
        while not decoder.is_whole:
            try:
                data = accepted.recv(HEADER_SIZE_MAX, socket.MSG_PEEK)
            except BlockingIOError:
                await _next(more)
                continue
            if not data and decoder.size:
                raise ProxyHeaderError(f"the PROXY header ends early, after {decoder.size} bytes")
            if not data:
                return None
            _drop(accepted, decoder.feed(data))
    return decoder


def _drop(accepted: socket.socket, size: int) -> None:
    """Read bytes that have been looked at."""
    while size:
        size -= len(accepted.recv(size))


@asynccontextmanager
async def _readable(loop: asyncio.AbstractEventLoop, accepted: socket.socket) -> AsyncIterator[asyncio.Event]:
    """An event that is set while there is something to read."""
    more = asyncio.Event()
    loop.add_reader(accepted.fileno(), more.set)
    try:
        yield more
    finally:
        loop.remove_reader(accepted.fileno())


async def _next(more: asyncio.Event) -> None:
    more.clear()
    await more.wait()
