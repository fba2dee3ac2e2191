"""A broker's parts with its handlers, over files in memory, for every test of this room; and a store in memory."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from aerobee_broker.assembly import Parts
from aerobee_store.store import MessageStore
from broker.scene import Scene
from broker.support import Clock, Peer, make_test_parts
from store.memory_io import MemoryIo
from store.workload import open_store

__all__ = ["clock", "connect", "disk", "parts", "peer", "scene", "store"]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> Iterator[MessageStore]:
    """In memory: for use cases that know nothing of a disk."""
    opened = open_store(MemoryIo(), sync_flush=False)
    yield opened
    opened.close()


@pytest.fixture
def disk() -> MemoryIo:
    """Where `parts` have their files."""
    return MemoryIo()


@pytest.fixture
async def parts(disk: MemoryIo, clock: Clock) -> AsyncIterator[Parts]:
    parts = make_test_parts(Path("/store"), clock, io=disk)
    yield parts
    parts.store.close()
    await parts.files.close()


@pytest.fixture
async def connect(parts: Parts) -> Callable[[], Peer]:
    """Makes clients, each with a connection of its own."""
    ports = iter(range(50_000, 60_000))

    table, lost = parts.server.handlers, parts.clients.connection_lost
    return lambda: Peer(table, port=next(ports), on_close=lost)


@pytest.fixture
async def peer(connect: Callable[[], Peer]) -> Peer:
    return connect()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    yield made
    made.close()
