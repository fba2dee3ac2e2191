"""A model of etcd, and the way of each process to it: what `Register` promises, and all that may go wrong below that.

A request takes its time there and back, and may wait on the way for as long as it is closed: one whose asker has given
up is done all the same when the way is open again. An answer may be lost. Leases lapse by the model's clock, some time
after they were granted for, and begin anew when it is started again. Old changes are forgotten by compaction. A backup
may come back: with it no lease does, and what was asked before is not done any more.
"""

from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from random import Random
from typing import Any, Final, TypeVar

from aerobee_broker.election.register import (
    ABSENT,
    NO_LEASE,
    Change,
    ChangesLost,
    Entry,
    LeaseGone,
    Put,
    RegisterUnreachable,
    View,
)
from simulation.cluster import Host
from simulation.network import Network
from simulation.world import Process, World

__all__ = ["ETCD_ADDRESS", "Etcd", "EtcdOf"]

T = TypeVar("T")
ETCD_ADDRESS: Final = "10.0.4.1"
WAY_RETRY_S: Final = 0.1  # between two tries to bring a request through
GIVEN_UP_S: Final = 10.0  # a request that is on its way for so long is lost
LAPSE_LATE_S: Final = 0.5  # that a lease lapses late at most


class _Lease:
    def __init__(self, number: int, ttl_s: float) -> None:
        self.number = number
        self.ttl_s = ttl_s
        self.renewals = 0  # a lapse that was planned before the last of them does not happen


class Etcd:
    """The keys, the leases, and the changes that watches may still hear of."""

    def __init__(self, world: World, network: Network) -> None:
        self.world = world
        self.network = network
        self._chance: Random = world.chance("etcd")
        self.revision = 1
        self._entries: dict[str, Entry] = {}
        self._leases: dict[int, _Lease] = {}
        self._numbers = 0
        self._changes: list[tuple[int, list[Change]]] = []
        self._compacted = 0  # changes up to this revision are forgotten
        self._waiting: list[Callable[[], None]] = []
        # All as it was after each write of a key that has no lease: its revision, and what was there.
        self.backups: list[tuple[int, dict[str, Entry]]] = []
        self.lives = 0  # that began with a backup
        # Told of each key that is written; None: it is gone.
        self.on_written: Callable[[str, bytes | None], None] = lambda key, value: None
        # --- faults; who sets them takes them back
        self.is_up = True
        self.delay_s = 0.001  # on average, each way
        self.lost = 0.0  # how likely an answer is lost

    # --- what it does ---------------------------------------------------------------------------------------------

    def grant(self, ttl_s: float) -> int:
        self._numbers += 1
        lease = self._leases[self._numbers] = _Lease(self._numbers, float(-(-ttl_s // 1)))
        self._begin(lease)
        return lease.number

    def _begin(self, lease: _Lease) -> None:
        lease.renewals += 1
        lapse = self.world.now + lease.ttl_s + self._chance.random() ** 3 * LAPSE_LATE_S
        self.world.at(lapse, None, self._lapse, lease, lease.renewals)

    def _lapse(self, lease: _Lease, renewals: int) -> None:
        if lease.renewals == renewals and self.is_up and lease.number in self._leases:
            self.world.note("etcd", f"lease {lease.number} lapses")
            self.revoke(lease.number)

    def keep_alive(self, number: int) -> float:
        lease = self._leases.get(number)
        if lease is None:
            raise LeaseGone(f"lease {number} has ended")
        self._begin(lease)
        return lease.ttl_s

    def revoke(self, number: int) -> None:
        if self._leases.pop(number, None) is not None:
            self._write({}, [key for key, entry in self._entries.items() if entry.lease == number])

    def read(self, prefix: str) -> View:
        found = {key: entry for key, entry in sorted(self._entries.items()) if key.startswith(prefix)}
        return View(self.revision, found)

    def swap(
        self, conditions: Mapping[str, int], puts: Mapping[str, Put], deletes: Collection[str]
    ) -> int | None:
        for key, wanted in conditions.items():
            entry = self._entries.get(key)
            if (ABSENT if entry is None else entry.mod_revision) != wanted:
                return None
        for put in puts.values():
            if put.lease != NO_LEASE and put.lease not in self._leases:
                raise LeaseGone(f"lease {put.lease} has ended")
        return self._write(puts, [key for key in deletes if key in self._entries])

    def _write(self, puts: Mapping[str, Put], deletes: list[str]) -> int:
        if not puts and not deletes:
            return self.revision
        self.revision += 1
        changes: list[Change] = []
        for key, put in puts.items():
            entry = self._entries[key] = Entry(put.value, self.revision, put.lease)
            changes.append(Change(key, entry))
            self.world.note("etcd", f"{self.revision}: {key} = {put.value.decode()}")
            self.on_written(key, put.value)
        for key in deletes:
            del self._entries[key]
            changes.append(Change(key, None))
            self.world.note("etcd", f"{self.revision}: {key} is gone")
            self.on_written(key, None)
        self._changes.append((self.revision, changes))
        if any(put.lease == NO_LEASE for put in puts.values()):
            self.backups.append((self.revision, dict(self._entries)))
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()
        return self.revision

    def changes_after(self, revision: int, prefix: str) -> list[tuple[int, list[Change]]]:
        """ChangesLost when some of them are forgotten."""
        if revision < self._compacted:
            raise ChangesLost(f"changes up to revision {self._compacted} are not kept any more")
        found = [
            (at, [change for change in changes if change.key.startswith(prefix)])
            for at, changes in self._changes
            if at > revision
        ]
        return [one for one in found if one[1]]

    def on_change(self, wake: Callable[[], None]) -> None:
        """Call once, at the next change."""
        self._waiting.append(wake)

    # --- faults -----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        self.is_up = False

    def start(self) -> None:
        """With all that it had; leases begin anew."""
        self.is_up = True
        for lease in self._leases.values():
            self._begin(lease)

    def go_back(self, backups_left: int) -> None:
        """Start with what it had after the last of so many backups; 0: with nothing. Leases are gone."""
        assert not self.is_up
        del self.backups[backups_left:]
        self.revision, entries = self.backups[-1] if self.backups else (1, {})
        self._entries = dict(entries)
        self._changes = [one for one in self._changes if one[0] <= self.revision]
        self._compacted = min(self._compacted, self.revision)
        self._leases.clear()
        self.lives += 1
        self.is_up = True
        self._write({}, [key for key, entry in self._entries.items() if entry.lease != NO_LEASE])

    def compact(self) -> None:
        self._compacted = self.revision
        self._changes.clear()

    # --- the way there ----------------------------------------------------------------------------------------

    def delay(self) -> float:
        return self._chance.expovariate(1 / self.delay_s)

    def loses(self) -> bool:
        return self._chance.random() < self.lost

    def hears(self, process: Process) -> bool:
        return self.is_up and not self.network.is_closed(process.host, ETCD_ADDRESS)

    def is_heard_by(self, process: Process) -> bool:
        return not self.network.is_closed(ETCD_ADDRESS, process.host)


class EtcdOf:
    """The register as one process has it. As `Register` says."""

    def __init__(self, etcd: Etcd, host: Host, timeout_s: float) -> None:
        assert host.process is not None
        assert host.loop is not None
        self._etcd = etcd
        self._process = host.process
        self._loop = host.loop
        self._timeout_s = timeout_s

    async def grant(self, ttl_s: float) -> int:
        return await self._ask(lambda: self._etcd.grant(ttl_s))

    async def keep_alive(self, lease: int) -> float:
        return await self._ask(lambda: self._etcd.keep_alive(lease))

    async def revoke(self, lease: int) -> None:
        await self._ask(lambda: self._etcd.revoke(lease))

    async def read(self, prefix: str) -> View:
        return await self._ask(lambda: self._etcd.read(prefix))

    async def swap(
        self, conditions: Mapping[str, int], puts: Mapping[str, Put], deletes: Collection[str] = ()
    ) -> int | None:
        asked = dict(conditions), dict(puts), list(deletes)
        return await self._ask(lambda: self._etcd.swap(*asked))

    async def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[list[Change], None]:
        etcd, seen = self._etcd, after_revision
        life = etcd.lives
        while True:
            if etcd.lives != life:
                raise RegisterUnreachable("the simulated etcd has been started anew")
            changed = self._loop.create_future()
            etcd.on_change(lambda changed=changed: self._wake(changed))  # type: ignore[misc]
            if etcd.hears(self._process) and etcd.is_heard_by(self._process):
                for at, changes in etcd.changes_after(seen, prefix):
                    seen = at
                    yield changes
            self._process.after(1.0, _settle, changed, None, None)  # ways may be open by then
            await changed

    def _wake(self, changed: Any) -> None:
        self._process.after(self._etcd.delay(), _settle, changed, None, None)

    async def _ask(self, do: Callable[[], T]) -> T:
        world, etcd = self._etcd.world, self._etcd
        answered = self._loop.create_future()
        sent, life = world.now, etcd.lives

        def arrive() -> None:
            if etcd.lives != life:
                return
            if not etcd.hears(self._process):
                if world.now < sent + GIVEN_UP_S:
                    world.at(world.now + WAY_RETRY_S, None, arrive)
                return
            try:
                result, failure = do(), None
            except LeaseGone as gone:
                result, failure = None, gone
            if not etcd.loses():
                world.at(world.now + etcd.delay(), None, answer, result, failure)

        def answer(result: Any, failure: Exception | None) -> None:
            if not etcd.is_heard_by(self._process):
                if world.now < sent + GIVEN_UP_S:
                    world.at(world.now + WAY_RETRY_S, None, answer, result, failure)
                return
            self._process.after(0.0, _settle, answered, result, failure)

        world.at(world.now + etcd.delay(), None, arrive)
        late = RegisterUnreachable("no answer of the simulated etcd")
        self._process.after(self._timeout_s, _settle, answered, None, late)
        result: T = await answered
        return result


def _settle(waiter: Any, result: Any, failure: Exception | None) -> None:
    if waiter.done():
        return
    if failure is not None:
        waiter.set_exception(failure)
    else:
        waiter.set_result(result)
