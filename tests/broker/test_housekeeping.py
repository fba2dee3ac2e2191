"""Clients that go, and the regular jobs: sampled, reported, scanned."""

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from aerobee_broker import housekeeping
from aerobee_broker.clients import Member
from aerobee_broker.housekeeping import connection_lost, run_client_scan, run_stats
from aerobee_broker.services import Services
from aerobee_proto.bodies import ConsumerData, MessageQueue
from broker.support import Clock, Peer, notifications

Connect = Callable[[], Peer]


async def test_a_lost_connection_takes_producers_and_consumers_along(
    services: Services, connect: Connect
) -> None:
    lost, stays = connect(), connect()
    for peer, client in ((lost, "a"), (stays, "b")):
        member = Member(client, peer.connection, "JAVA", 479, services.clock())
        services.consumers.register(member, ConsumerData(group_name="g"), notify=False)
    services.producers.register("p", Member("a", lost.connection, "JAVA", 479, services.clock()))
    with capture_logs() as logs:
        connection_lost(services, lost.connection)
    assert services.consumers.client_ids("g") == ["b"]
    assert services.producers.groups() == []
    assert notifications(stays) == ["g"]
    assert [line["event"] for line in logs] == ["broker.clients_lost"]


async def test_a_connection_without_clients_is_no_news(services: Services, peer: Peer) -> None:
    with capture_logs() as logs:
        connection_lost(services, peer.connection)
    assert logs == []


async def test_the_scan_runs_until_it_is_cancelled(
    services: Services, clock: Clock, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "SCAN_S", 0)
    services.producers.register("p", Member("a", peer.connection, "JAVA", 479, clock()))
    services.locks.lock("g", "a", [MessageQueue("T", "b", 0)], clock())
    clock.now_ms += 120_001
    scan = asyncio.create_task(run_client_scan(services))
    async with asyncio.timeout(10):
        await asyncio.shield(peer.connection.closed)
    assert len(services.locks) == 0
    scan.cancel()
    await asyncio.gather(scan, return_exceptions=True)
    assert scan.cancelled()


async def test_the_stats_line_comes_at_its_interval(
    services: Services, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "SAMPLE_S", 0)
    reported = asyncio.Event()

    def facts() -> dict[str, object]:
        reported.set()
        return {"connections": 7}

    with capture_logs() as logs:
        run = asyncio.create_task(run_stats(services, facts))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not reported.is_set()
        clock.now_ms += 60_000
        async with asyncio.timeout(10):
            await reported.wait()
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
    (line,) = [line for line in logs if line["event"] == "broker.stats"]
    assert (line["connections"], line["interval_s"]) == (7, 60.0)
