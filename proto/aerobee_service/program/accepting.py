"""Taking connections at a listening socket, whatever they are for.

Touches  one listening socket of the event loop, which must not block; a clock.

    async for accepted, address in accepting(listener, failed):
        ...                                     soon done: others wait in the backlog meanwhile

Where descriptors are used up, or whatever else the system lacks, nobody is accepted for a while, and who dials waits:
whoever has a descriptor may give it back. How many connections there may be is the affair of each server.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

__all__ = ["PAUSE_S", "accepting"]

PAUSE_S: Final = 0.1


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
