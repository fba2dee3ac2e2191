"""One cluster for the tests that need one, and the command in this process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import ours
from console.support import Runner

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A command that hangs inside its event loop is ended by a thread: no signal handler of Python's gets in there."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.timeout(90, method="thread"))


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NAMESRV_ADDR", "AEROBEE_NAMESERVERS", "AEROBEE_TLS", "AEROBEE_DEBUG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def aerobee(capsys: pytest.CaptureFixture[str]) -> Runner:
    """The command, without a cluster."""
    return Runner(capsys)


@pytest.fixture(scope="package")
def nameserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a nameserver with one broker, as programs of their own."""
    config = {
        "metricsPromExporterPort": 0,
        "maxHashSlotNum": 1000,
        "maxIndexNum": 4000,
        "enablePropertyFilter": "true",
        "traceTopicEnable": "true",
    }
    with (
        ours.start_nameserver() as started,
        ours.start_broker(tmp_path_factory.mktemp("broker"), started.address, config=config),
    ):
        yield started.address


@pytest.fixture
def cluster(capsys: pytest.CaptureFixture[str], nameserver: str) -> Runner:
    """The command, asking the cluster."""
    return Runner(capsys, nameserver)
