"""The rows of every code that a broker or a nameserver serves, made once."""

import asyncio
from pathlib import Path

import pytest

from aerobee_remoting.exchange.gate import Row
from system.serving import rows


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Row]:
    folder: Path = tmp_path_factory.mktemp("rows")
    return asyncio.run(rows(folder))
