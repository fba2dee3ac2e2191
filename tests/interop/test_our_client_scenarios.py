"""Everything that our client offers, with the official nameserver and broker."""

from collections.abc import Callable
from pathlib import Path

import pytest

from aerobee import Client
from client_scenarios import SCENARIOS
from clusters import Cluster

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("name", SCENARIOS)
async def test_with_the_official_broker(shared: Callable[[str], Cluster], tmp_path: Path, name: str) -> None:
    async with Client(shared("official").nameserver.address) as mq:
        await SCENARIOS[name](mq, tmp_path)
