"""The fixtures, and what pytest needs to find them.

Touches  nothing before a fixture is asked for: every import of ours is inside one.

    aerobee_broker_config   session    settings of the broker, to be overridden
    aerobee_server          session    nameserver and broker
    aerobee_own_server      function   the same for one test alone
    aerobee_own_pair        function   nameserver, master and slave for one test, with a failover
    aerobee_topic_factory   function   makes topics of names that nobody else has
    aerobee_topic           function   one such topic
    aerobee_client          function   `aerobee.Client`, open; by pytest-asyncio (auto and strict) or anyio
    aerobee_sync_client     function   `aerobee.sync.Client`, open
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from aerobee import Client
    from aerobee.sync import Client as SyncClient
    from aerobee_pytest.server import Pair, Server

__all__ = [
    "AnyLoop",
    "aerobee_broker_config",
    "aerobee_own_pair",
    "aerobee_own_server",
    "aerobee_server",
    "aerobee_sync_client",
    "aerobee_topic",
    "aerobee_topic_factory",
    "pytest_configure",
]


def pytest_configure(config: pytest.Config) -> None:
    """Offer the asynchronous client by the plug-in that runs asynchronous tests here."""
    if config.pluginmanager.hasplugin("asyncio"):
        from aerobee_pytest import asyncio_client

        config.pluginmanager.register(asyncio_client, "aerobee_asyncio_client")
    else:
        config.pluginmanager.register(AnyLoop(), "aerobee_any_loop")


class AnyLoop:
    """The asynchronous client where pytest-asyncio is not: a fixture that anyio's plug-in runs."""

    @pytest.fixture
    async def aerobee_client(self, aerobee_server: "Server") -> "AsyncIterator[Client]":
        """An open `aerobee.Client` of the session's server, closed after the test."""
        async with aerobee_server.client() as client:
            yield client


@pytest.fixture(scope="session")
def aerobee_broker_config() -> Mapping[str, object]:
    """Settings for the broker under RocketMQ's names; override it in your conftest.py."""
    return {}


@pytest.fixture(scope="session")
def aerobee_server(aerobee_broker_config: Mapping[str, object]) -> "Iterator[Server]":
    """A nameserver and a broker for all tests of the run (of the worker, under xdist)."""
    from aerobee_pytest.server import Server

    with Server(aerobee_broker_config) as server:
        yield server


@pytest.fixture
def aerobee_own_server(aerobee_broker_config: Mapping[str, object]) -> "Iterator[Server]":
    """A nameserver and a broker with an empty store for this test alone."""
    from aerobee_pytest.server import Server

    with Server(aerobee_broker_config) as server:
        yield server


@pytest.fixture
def aerobee_own_pair(aerobee_broker_config: Mapping[str, object]) -> "Iterator[Pair]":
    """A nameserver, a master and its slave with empty stores for this test alone."""
    from aerobee_pytest.server import Pair

    with Pair(aerobee_broker_config) as pair:
        yield pair


@pytest.fixture
def aerobee_topic_factory(aerobee_server: "Server") -> "Callable[..., str]":
    """`factory(prefix="test", queues=4)`: the name of a new topic of the session's server."""
    return aerobee_server.new_topic


@pytest.fixture
def aerobee_topic(aerobee_server: "Server", request: pytest.FixtureRequest) -> str:
    """A topic that no other test has, named after this test."""
    return aerobee_server.new_topic(request.node.name)


@pytest.fixture
def aerobee_sync_client(aerobee_server: "Server") -> "Iterator[SyncClient]":
    """An open `aerobee.sync.Client` of the session's server, closed after the test."""
    with aerobee_server.sync_client() as client:
        yield client
