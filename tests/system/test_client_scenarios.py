"""Everything that our client offers, with our nameserver and broker in this process."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aerobee import Client
from client_scenarios import SCENARIOS
from system.test_client import cluster


@pytest.fixture
async def mq(tmp_path: Path) -> AsyncIterator[Client]:
    settings = {
        "recall_message_enable": True,
        "enable_property_filter": True,
        "trace_topic_enable": True,
        "transaction_time_out": 1000,
        "transaction_check_interval": 500,
    }
    async with cluster(tmp_path / "store", **settings) as running:
        yield running.mq


@pytest.mark.parametrize("name", SCENARIOS)
async def test_with_our_broker(mq: Client, tmp_path: Path, name: str) -> None:
    await SCENARIOS[name](mq, tmp_path)
