"""Taking connections at a listening socket, whatever they are for.

Touches  one listening socket of the event loop, which must not block; a clock.

    async for accepted, address in accepting(listener, failed):
        ...                                     soon done: others wait in the backlog meanwhile
    transport = await handed_over(accepted, Protocol, tls, seconds)

Where descriptors are used up, or whatever else the system lacks, nobody is accepted for a while, and who dials waits:
whoever has a descriptor may give it back. How many connections there may be is the affair of each server.
"""

import asyncio
import select
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

from aerobee_proto.errors import forget_frames

__all__ = ["PAUSE_S", "accepting", "handed_over", "has_hung_up"]

PAUSE_S: Final = 0.1
GONE: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


async def accepting(
    listener: socket.socket, failed: Callable[[OSError], object], *, pause_s: float = PAUSE_S
) -> AsyncIterator[tuple[socket.socket, Any]]:
    """Each connection and the address that it comes from, for ever. `failed` is told of each that could not be had."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            taken = await loop.sock_accept(listener)
        except OSError as lacking:
            failed(lacking)
            await asyncio.sleep(pause_s)
        else:
            yield taken


def has_hung_up(accepted: socket.socket) -> bool:
    """Whether the other end has closed it, also behind bytes that nobody has read yet."""
    poll = select.poll()
    poll.register(accepted, GONE)
    return bool(poll.poll(0))


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def _handshake_turn(loop: asyncio.AbstractEventLoop, accepted: socket.socket) -> None:
    """A handshake is a millisecond of the event loop that cannot be cut: one begins in a turn, whatever the port, and
    none for who is gone by then, which is an OSError."""
    async with _turns.setdefault(loop, asyncio.Lock()):
        await asyncio.sleep(0)
    if has_hung_up(accepted):
        raise ConnectionResetError("it hung up while it waited for its handshake")


async def handed_over(
    accepted: socket.socket,
    protocol: Callable[[], asyncio.BaseProtocol],
    tls: ssl.SSLContext | None,
    handshake_s: float,
) -> asyncio.Transport:
    """The transport of an accepted connection; its protocol is made behind the handshake, if there is one. OSError,
    TimeoutError: there is none, and the socket is closed, as it is when this is cancelled."""
    loop = asyncio.get_running_loop()
    try:
        if tls is not None:
            await _handshake_turn(loop, accepted)
        transport, _ = await loop.connect_accepted_socket(
            protocol, accepted, ssl=tls, ssl_handshake_timeout=handshake_s if tls is not None else None
        )
    except BaseException as failed:
        accepted.close()
        forget_frames(failed)  # what asyncio waits with keeps the failure, and the failure what waits
        raise
    return transport
