"""The asynchronous client for tests that pytest-asyncio runs, in its auto and its strict mode.

Touches  nothing before the fixture is asked for. Loaded only where pytest-asyncio is.
"""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest_asyncio

if TYPE_CHECKING:
    from aerobee import Client
    from aerobee_pytest.server import Server

__all__ = ["aerobee_client"]


@pytest_asyncio.fixture
async def aerobee_client(aerobee_server: "Server") -> "AsyncIterator[Client]":
    """An open `aerobee.Client` of the session's server, in the test's event loop; closed after the test."""
    async with aerobee_server.client() as client:
        yield client
