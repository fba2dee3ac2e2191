"""Clients that go: their connection is lost, or they fall silent. And the broker's regular small jobs.

Touches  the tables of `Services`; notifies through members' connections.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from aerobee_broker.group_notices import notify_members
from aerobee_broker.services import Services
from aerobee_broker.stats import SAMPLE_S
from aerobee_remoting.connection import Connection
from aerobee_remoting.slices import in_slices

__all__ = ["SCAN_S", "connection_lost", "run_client_scan", "run_stats", "scan_clients"]

log = structlog.get_logger()

SCAN_S: Final = 10.0


def connection_lost(services: Services, connection: Connection) -> None:
    """Remove the clients behind a connection that is gone, and tell their groups."""
    changes = services.consumers.connection_lost(connection, notifies=services.notifies)
    producers = services.producers.connection_lost(connection)
    told = notify_members(changes.notify)
    if changes.changed or producers:
        log.info("broker.clients_lost", peer=connection.peer, producers=producers, notified=told)


def scan_clients(services: Services) -> int:
    """Remove clients that fell silent, close their connections, drop old locks; how many were closed."""
    now_ms = services.clock()
    since_ms = now_ms - services.config.channel_expired_timeout
    changes = services.consumers.expire(since_ms, notifies=services.notifies)
    silent = {
        connection
        for connection in (*changes.close, *services.producers.expire(since_ms))
        # A proxy's connection carries many clients; it stays while one of them is alive.
        if not services.consumers.has_members(connection) and not services.producers.has_members(connection)
    }
    for connection in silent:
        log.warning(
            "broker.client_expired", peer=connection.peer, silent_ms=services.config.channel_expired_timeout
        )
        connection.close("no heartbeat")
    notify_members((group, member) for group, member in changes.notify if member not in silent)
    services.locks.forget_expired(now_ms)
    return len(silent)


async def run_client_scan(services: Services) -> None:
    """`scan_clients` every 10 s, until cancelled."""
    while True:
        await asyncio.sleep(SCAN_S)
        scan_clients(services)


async def run_stats(services: Services, facts: Callable[[], dict[str, object]]) -> None:
    """Sample the counters every 10 s and write the `broker.stats` line, until cancelled.

    `facts` gives what else belongs into the line: connections, held pulls, what waits to be flushed.
    """
    reported_ms = services.clock()
    while True:
        await asyncio.sleep(SAMPLE_S)
        now_ms = services.clock()
        await in_slices(services.stats.sample_steps(now_ms))
        if now_ms - reported_ms >= services.config.stats_interval_seconds * 1000 or now_ms < reported_ms:
            reported_ms = now_ms
            services.stats.report(now_ms, **facts())
