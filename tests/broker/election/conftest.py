"""One etcd for the tests of its client."""

from collections.abc import AsyncIterator, Iterator

import pytest

from aerobee_broker.election.etcd import Etcd
from etcd import EtcdServer

TIMEOUT_S = 5.0


@pytest.fixture(scope="module")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    server = EtcdServer(tmp_path_factory.mktemp("etcd"))
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
async def register(etcd_server: EtcdServer) -> AsyncIterator[Etcd]:
    register = Etcd([etcd_server.address], timeout_s=TIMEOUT_S)
    yield register
    await register.close()
