"""A register in memory: what etcd does, without time of its own, and as one that is asked in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping

from aerobee_broker.election.records import Keys, SetView, decode_view
from aerobee_broker.election.register import (
    ABSENT,
    Change,
    Entry,
    LeaseGone,
    Put,
    RegisterUnreachable,
    View,
)
from aerobee_broker.election.seat import Proposal

KEYS = Keys("/aerobee/", "c", "b")
TTL_S = 3.0


class ModelRegister:
    """A register that does what is asked at once; leases are ended by whoever calls `lapse`."""

    def __init__(self) -> None:
        self.revision = 1
        self.entries: dict[str, Entry] = {}
        self.leases: dict[int, float] = {}  # number: when it may lapse, in true time
        self._numbers = 0

    def grant(self, now: float) -> int:
        self._numbers += 1
        self.leases[self._numbers] = now + TTL_S
        return self._numbers

    def lapse(self, now: float) -> None:
        for lease in [one for one, end in self.leases.items() if end <= now]:
            self.end(lease)

    def end(self, lease: int) -> None:
        self.leases.pop(lease, None)
        gone = [key for key, entry in self.entries.items() if entry.lease == lease]
        if gone:
            self.revision += 1
        for key in gone:
            del self.entries[key]

    def state(self) -> tuple[int, dict[str, Entry], dict[int, float]]:
        """As a backup has it."""
        return self.revision, dict(self.entries), dict(self.leases)

    def restore(self, state: tuple[int, dict[str, Entry], dict[int, float]]) -> None:
        """Become what it was; leases of that time live again."""
        self.revision, self.entries, self.leases = state[0], dict(state[1]), dict(state[2])

    def swap(self, proposal: Proposal) -> int | None:
        for key, revision in proposal.conditions.items():
            entry = self.entries.get(key)
            if (entry.mod_revision if entry else ABSENT) != revision:
                return None
        if any(put.lease and put.lease not in self.leases for put in proposal.puts.values()):
            return None
        self.revision += 1
        for key, put in proposal.puts.items():
            self.entries[key] = Entry(put.value, self.revision, put.lease)
        for key in proposal.deletes:
            self.entries.pop(key, None)
        return self.revision

    def view(self) -> SetView:
        return decode_view(View(self.revision, dict(self.entries)), KEYS)


class AskedRegister:
    """The same as `Register`. `is_away`: nothing is done, and nothing answered."""

    def __init__(self) -> None:
        self.model = ModelRegister()
        self.now = 0.0
        self.is_away = False
        self._changed = asyncio.Event()

    def _reach(self) -> None:
        if self.is_away:
            raise RegisterUnreachable("it is away")

    def changed(self) -> None:
        """Tell those who watch."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def grant(self, ttl_s: float) -> int:
        self._reach()
        return self.model.grant(self.now)

    async def keep_alive(self, lease: int) -> float:
        self._reach()
        if lease not in self.model.leases:
            raise LeaseGone(str(lease))
        self.model.leases[lease] = self.now + TTL_S
        return TTL_S

    async def revoke(self, lease: int) -> None:
        self._reach()
        self.model.end(lease)
        self.changed()

    async def read(self, prefix: str) -> View:
        self._reach()
        entries = {key: entry for key, entry in self.model.entries.items() if key.startswith(prefix)}
        return View(self.model.revision, entries)

    async def swap(
        self, conditions: Mapping[str, int], puts: Mapping[str, Put], deletes: Collection[str] = ()
    ) -> int | None:
        self._reach()
        done = self.model.swap(Proposal("", conditions, puts, tuple(deletes)))
        self.changed()
        return done

    async def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[list[Change], None]:
        while True:
            changed = self._changed
            if self.model.revision > after_revision:
                after_revision = self.model.revision
                yield []
            else:
                await changed.wait()
