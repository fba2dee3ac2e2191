"""Clients that go: their connection is lost, or they fall silent.

Touches  the tables of members; notifies through members' connections.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from aerobee_broker.members.members import Members
from aerobee_broker.settings.config import LiveConfig
from aerobee_remoting.peers.peer import Peer
from aerobee_service.turns.slices import Steps, at_once, in_slices, let_go

__all__ = ["SCAN_S", "ClientScan"]

log = structlog.get_logger()

SCAN_S: Final = 10.0


class ClientScan:
    """Removes clients that go. All calls from the event loop."""

    def __init__(
        self,
        live: LiveConfig,
        clock: Callable[[], int],
        members: Members,
        *,
        notifies: Callable[[str], bool],
    ) -> None:
        """`notifies`: whether the members of a group are told when it changes."""
        self._live = live
        self._clock = clock
        self._members = members
        self._notifies = notifies

    def connection_lost(self, connection: Peer) -> None:
        """Remove the clients behind a connection that is gone, and tell their groups."""
        changes = self._members.consumers.connection_lost(connection, notifies=self._notifies)
        producers = self._members.producers.connection_lost(connection)
        let_go(changes.left)
        notified_count = self._members.notices.notify(changes.notify)
        if changes.changed or producers:
            log.info(
                "broker.clients_lost", peer=connection.peer, producers=producers, notified=notified_count
            )

    def scan(self) -> int:
        """Remove clients that fell silent, close their connections, drop old locks; how many were closed."""
        return at_once(self.scan_steps())

    def scan_steps(self) -> Steps[int]:
        """As `scan`, in steps: there may be hundreds of thousands."""
        now_ms, silent_ms = self._clock(), self._live.value.channel_expired_timeout
        consumers, producers = self._members.consumers, self._members.producers
        changes = yield from consumers.expiry(now_ms - silent_ms, notifies=self._notifies)
        let_go(changes.left)
        without_producers = yield from producers.expiry(now_ms - silent_ms)
        silent = {*changes.close, *without_producers}
        for connection in silent:
            yield
            # A proxy's connection carries many clients; it stays while one of them is alive.
            if consumers.has_members(connection) or producers.has_members(connection):
                continue
            log.warning("broker.client_expired", peer=connection.peer, silent_ms=silent_ms)
            connection.close("no heartbeat")
        closed = {connection for connection in silent if connection.is_closed}
        self._members.notices.notify(
            (group, member) for group, member in changes.notify if member not in closed
        )
        yield from self._members.locks.expiry(now_ms)
        return len(closed)

    async def run(self) -> None:
        """`scan` every 10 s, until cancelled."""
        while True:
            await asyncio.sleep(SCAN_S)
            await in_slices(self.scan_steps())
