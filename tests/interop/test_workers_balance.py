"""Official producers and consumers with a service of workers: every worker gets its share, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import official
import ours
from plain_remoting import max_offset, wait_route
from programs import Server, free_port
from traffic import by_tag

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

WORKERS = ("balanced-1", "balanced-2")
EACH = 400
QUEUES = 4  # what an official producer asks for


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """Address of a nameserver with both workers, and the port of the first."""
    port = free_port(-2, 1, 8, 10, 11)
    with ours.start_nameserver() as nameserver:
        settings = {
            "brokerName": "balanced",
            "brokerIP1": "127.0.0.1",
            "listenPort": port,
            "haListenPort": port + 1,
            "metricsPromExporterPort": 0,
            "namesrvAddr": nameserver.address,
            "storePathRootDir": tmp_path_factory.mktemp("balanced"),
            "mappedFileSizeCommitLog": 16 << 20,
            "maxHashSlotNum": 1000,
            "maxIndexNum": 4000,
        }
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        command = [*ours.command(), "broker", "--workers", "2", *words]
        with Server("service", command, f"127.0.0.1:{port}", r'"workers\.ready"'):
            for worker in WORKERS:
                wait_route(nameserver.address, "TBW102", worker)
            yield nameserver.address, port


def test_a_producer_that_makes_its_topic_sends_to_every_worker(service: tuple[str, int]) -> None:
    """With brokers that know nothing of each other the topic is on the one that got the first message, and the route
    that producers have from then on names no other."""
    nameserver, port = service
    where: dict[str, Any] = {"namesrv": nameserver, "topic": "Balanced"}
    first = official.judge("send", **where, modes="sync", each=1, run="first")
    assert first["failed"] == 0
    for worker in WORKERS:
        wait_route(nameserver, "Balanced", worker)
    # One-way messages first: what is answered behind them on the same connections says that they are stored.
    report = official.judge("send", **where, modes="oneway,sync,async", each=EACH, run="then")
    assert (report["failed"], report.get("firstFailure")) == (0, None)
    stored = [
        sum(max_offset(f"127.0.0.1:{port + shift}", "Balanced", queue) for queue in range(QUEUES))
        for shift in (0, 10)
    ]
    assert sum(stored) == 3 * EACH + 1
    assert min(stored) > 0.4 * sum(stored)  # in turn over the queues of all
    received = official.judge(
        "push", **where, group="balanced-readers", filter="*", expect=3 * EACH + 1, seconds=60
    )
    assert (received["duplicates"], received["complete"]) == (0, True)
    assert sum(count for count, _ in by_tag(received).values()) == 3 * EACH + 1
