"""A broker's services over a real store, with its handlers, for every test of this room."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from aerobee_broker.admin import register_admin
from aerobee_broker.housekeeping import connection_lost
from aerobee_broker.services import Services
from aerobee_remoting.connection import Connection
from aerobee_remoting.handlers import HandlerTable
from broker.support import Clock, Peer, make_test_services

__all__ = ["clock", "connect", "peer", "services"]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def services(tmp_path: Path, clock: Clock) -> AsyncIterator[Services]:
    services = make_test_services(tmp_path / "store", clock)
    yield services
    services.store.close()
    await services.files.close()


@pytest.fixture
async def connect(services: Services) -> Callable[[], Peer]:
    """Makes clients, each with a connection of its own."""
    table = HandlerTable()
    register_admin(table, services)
    ports = iter(range(50_000, 60_000))

    def lost(connection: Connection) -> None:
        connection_lost(services, connection)

    return lambda: Peer(table, port=next(ports), on_close=lost)


@pytest.fixture
async def peer(connect: Callable[[], Peer]) -> Peer:
    return connect()
