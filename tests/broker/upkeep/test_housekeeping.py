"""Clients that go."""

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from aerobee_broker.assembly import Parts
from aerobee_broker.members.clients import Member
from aerobee_broker.upkeep import housekeeping
from aerobee_proto.bodies import ConsumerData, MessageQueue
from broker.support import Clock, Peer, notifications

Connect = Callable[[], Peer]


async def test_a_lost_connection_takes_producers_and_consumers_along(parts: Parts, connect: Connect) -> None:
    lost, stays = connect(), connect()
    for peer, client in ((lost, "a"), (stays, "b")):
        member = Member(client, peer.connection, "JAVA", 479, parts.clock())
        parts.consumers.register(member, ConsumerData(group_name="g"), notify=False)
    parts.producers.register("p", Member("a", lost.connection, "JAVA", 479, parts.clock()))
    with capture_logs() as logs:
        parts.clients.connection_lost(lost.connection)
    assert parts.consumers.client_ids("g") == ["b"]
    assert parts.producers.groups() == []
    assert notifications(stays) == ["g"]
    assert [line["event"] for line in logs] == ["broker.clients_lost"]


async def test_a_connection_without_clients_is_no_news(parts: Parts, peer: Peer) -> None:
    with capture_logs() as logs:
        parts.clients.connection_lost(peer.connection)
    assert logs == []


async def test_the_scan_runs_until_it_is_cancelled(
    parts: Parts, clock: Clock, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "SCAN_S", 0)
    parts.producers.register("p", Member("a", peer.connection, "JAVA", 479, clock()))
    parts.locks.lock("g", "a", [MessageQueue("T", "b", 0)], clock())
    clock.now_ms += 120_001
    scan = asyncio.create_task(parts.clients.run())
    async with asyncio.timeout(10):
        await asyncio.shield(peer.connection.closed)
    assert len(parts.locks) == 0
    scan.cancel()
    await asyncio.gather(scan, return_exceptions=True)
    assert scan.cancelled()
