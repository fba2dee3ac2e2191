"""Hosts of a set whose master is elected: what runs there is the loop of the program, one life after the other."""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any, Final

from aerobee_broker.broker import Broker, Life
from aerobee_broker.election.election import Election
from aerobee_broker.lives.role import Role, settings_of
from aerobee_proto.records import StoredRecord
from aerobee_store.replicas.identity import store_identity
from aerobee_store.terms.messages import Arrival
from simulation.cluster import STORE, BrokerHost, BrokerSet, Cluster, first_of
from simulation.disk import SimIo
from simulation.etcd import Etcd, EtcdOf
from simulation.ledger import Broken, Ledger

__all__ = ["ElectedHost", "ElectedSet"]

CALLS_PER_LEASE: Final = 3  # as the program


class ElectedSet(BrokerSet):
    """Whoever looks from outside takes the newest master for the master."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.members = []
        self.hosts: list[ElectedHost] = []  # the same
        # Told of each life of a master that serves, and of each cut of a log.
        self.on_served: Callable[[ElectedHost, int], None] = lambda host, epoch: None
        self.on_cut: Callable[[ElectedHost, int], None] = lambda host, offset: None
        # ... and of what a master confirms: a range of its log.
        self.on_confirmed: Callable[[ElectedHost, int, int], None] = lambda host, begin, end: None
        # ... and of each time that a member has heard how long its lease lasts.
        self.on_leased: Callable[[ElectedHost], None] = lambda host: None
        # Who has been master, by epoch: the process, not the host alone.
        self.masters: dict[int, tuple[str, int]] = {}
        self.confirmed_offset = 0  # physical; nothing that lies behind it has been confirmed by any of them

    def add(self, host: "ElectedHost") -> None:
        self.members.append(host)
        self.hosts.append(host)
        self.broker_name = host.broker_name
        if len(self.members) == 1:
            self.master = host

    def became_master(self, host: "ElectedHost", epoch: int) -> None:
        """A life of a master serves. Broken: there was another one of this epoch."""
        me = host.name, host.starts
        self._watch(host)
        if self.masters.setdefault(epoch, me) != me:
            raise Broken(f"{host.name} and {self.masters[epoch][0]} are both master of epoch {epoch}")
        self.on_served(host, epoch)
        if epoch == max(self.masters):
            # What groups have committed at the old master and this one has not heard of yet is forgotten.
            if self.master is not host:
                self._ledger.forget_commits(self.broker_name, host.tables_at)
            self.master = host

    def _watch(self, host: "ElectedHost") -> None:
        """Know from now on what this master confirms."""
        assert host.serving is not None
        store = host.serving.parts.store
        confirm = store.confirm

        def look() -> None:
            before, self.confirmed_offset = (
                self.confirmed_offset,
                max(self.confirmed_offset, store.confirmed_offset),
            )
            if self.confirmed_offset > before and not store.statistics().damaged_stretches:
                self.on_confirmed(host, before, self.confirmed_offset)

        def watched(offset: int, *, notify: bool = True, begun_max: int = 0) -> list[Arrival]:
            arrivals = confirm(offset, notify=notify, begun_max=begun_max)
            look()
            return arrivals

        store.confirm = watched  # type: ignore[method-assign]
        look()

    def seen(self, host: BrokerHost, record: StoredRecord) -> None:
        """Somebody has read this at a member. Broken: no master has confirmed it. Where the log of a slave is damaged
        nobody knows what it had shown."""
        is_damaged = host.serving is None or bool(host.serving.parts.store.statistics().damaged_stretches)
        if record.physical_offset >= self.confirmed_offset and not is_damaged:
            raise Broken(
                f"{record.body[:80]!r} at {record.physical_offset} was read at {host.name}, and no master has "
                f"confirmed more than {self.confirmed_offset}"
            )


class ElectedHost(BrokerHost):
    """A host that runs a member."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        address: str,
        settings: dict[str, Any],
        etcd: Etcd,
        brokers: ElectedSet,
    ) -> None:
        super().__init__(cluster, name, address, settings)
        self._etcd = etcd
        self._set = brokers
        self.role: Role | None = None
        self.election: Election | None = None
        # Until when its lease lasts by its own clock, as it was told last, in true seconds; of the running process.
        self.leased_until = -inf

    @property
    def is_slave(self) -> bool:
        return self._set.master is not self

    @property
    def number(self) -> int:
        """As the register knows it."""
        number: int = self.settings["broker_id"]
        return number

    def start(self) -> None:
        self.election = None  # the last life's
        super().start()

    @property
    def holds_until(self) -> float:
        """When it ceases to be master by its own clock if it hears nothing more, in true seconds; it is not asked, as
        it would notice."""
        if not self.is_up or self.election is None or self.election.seat.tenure is None:
            return -inf
        tenure = self.election.seat.tenure
        return -inf if tenure.is_over else tenure.until / self.clock_rate

    def _watch_lease(self, election: Election) -> None:
        """Know of each renewal what it says, whatever becomes of it."""
        self.leased_until = -inf
        leased = election.seat.leased

        def watched(lease: int, until: float) -> None:
            self.leased_until = max(self.leased_until, until / self.clock_rate)
            leased(lease, until)
            self._set.on_leased(self)

        election.seat.leased = watched  # type: ignore[method-assign]

    async def _main(self) -> None:
        process, cluster = self.process, self.cluster
        assert process is not None
        config, io = self.config(), SimIo(self.disk, process, cluster.threads)
        register = EtcdOf(self._etcd, self, config.election_lease_millis / 1000 / CALLS_PER_LEASE)
        identity = cluster.world.chance(f"store {self.disk_number} of {self.name}").randbytes(16).hex()
        store = await asyncio.to_thread(store_identity, STORE, io, lambda: identity)
        election = self.election = Election(config, register, store=store, clock=process.monotonic)
        self._watch_lease(election)
        stop = self._stop = asyncio.Event()
        port = 0
        cut_to: int | None = None
        try:
            role = await election.first()
            while not stop.is_set():
                if cut_to is not None:
                    self._set.on_cut(self, cut_to)
                life = Life(role, election, port, None, election, cut_to)
                made = Broker(settings_of(config, role), io=io, clock=process.epoch_ms, life=life)
                broker = await self.begin(made, stop)
                if broker is None:
                    return
                self.role = role
                cluster.world.note(self.name, f"is {'master' if role.is_master else 'slave'} of {role.epoch}")
                if role.is_master:
                    self._set.became_master(self, role.epoch)
                following = asyncio.create_task(election.next(role), name="next role")
                await first_of({following, broker.cut}, stop)
                due = following.result() if following.done() else role
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
                cut_to = broker.cut.result() if due == role and broker.cut.done() else None
                role, config, port = due, broker.settings, broker.port
                await self.end(broker, briefly=not stop.is_set())
                if broker.failed.done():
                    return
        finally:
            await election.close()
