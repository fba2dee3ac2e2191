"""Everything that our client offers, with the official nameserver and broker."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee import Client
from client_scenarios import BROKER_SETTINGS, SCENARIOS
from clusters import Cluster, start_cluster

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with start_cluster("official", tmp_path_factory.mktemp("official"), BROKER_SETTINGS) as started:
        yield started


@pytest.mark.parametrize("name", SCENARIOS)
async def test_with_the_official_broker(served: Cluster, tmp_path: Path, name: str) -> None:
    async with Client(served.nameserver.address) as mq:
        await SCENARIOS[name](mq, tmp_path)
