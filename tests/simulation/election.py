"""A set whose master is elected, with etcd, under faults of both."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from aerobee.admin.hand_over import HandOver
from aerobee.client import Client
from aerobee.errors import ClientError
from aerobee_broker.election.records import SetView
from simulation.cluster import BrokerHost, Host
from simulation.copies import LOOK_S, Copies
from simulation.elected import ElectedHost, ElectedSet
from simulation.etcd import ETCD_ADDRESS, Etcd
from simulation.ledger import Broken, Sent
from simulation.pair import PairSimulation
from simulation.scenario import HEALED_WITHIN_S, Simulation
from simulation.seats import Seats
from simulation.set_faults import SET_FAULTS, TABLES_LAG_S, SetFaults
from simulation.world import Process

__all__ = ["ElectionSimulation"]

SET: Final = "set"
ADMINISTERED: Final = 0.3  # of the seeds
OPERATES_S: Final = 8.0  # that an operator tries at most
FAILS_OVER_S: Final = 3.0  # that another master takes at most, if nothing is in its way


class ElectionFaults(SetFaults):
    """All faults of a simulation of one set with an election."""

    etcd: Etcd
    seats: Seats
    _set: ElectedSet
    operators = 0

    @property
    def table(self) -> Mapping[str, Callable[[Any], None]]:
        return ELECTION_FAULTS

    def _etcd_for_a_while(self, what: str, longest_s: float, **changes: Any) -> None:
        self.note(f"etcd {what}")
        before = {name: getattr(self.etcd, name) for name in changes}
        for name, value in changes.items():
            setattr(self.etcd, name, value)

        def over() -> None:
            for name, value in before.items():
                setattr(self.etcd, name, value)

        self.for_a_while(longest_s, over)

    def restart_etcd(self) -> None:
        if self.etcd.is_up:
            self.note("etcd is stopped for a while")
            self.etcd.stop()
            self.for_a_while(self._chance.choice((0.5, 3.0, 8.0)), self.etcd.start)

    def slow_etcd(self) -> None:
        if self.etcd.delay_s < 0.01:
            self._etcd_for_a_while("is slow for a while", 6.0, delay_s=self._chance.choice((0.05, 0.4, 1.0)))

    def lose_answers(self) -> None:
        if not self.etcd.lost:
            self._etcd_for_a_while("does what it is asked for and says nothing, now and then", 6.0, lost=0.4)

    def compact_etcd(self) -> None:
        self.note("etcd forgets old changes")
        self.etcd.compact()

    def cut_off_from_etcd(self) -> None:
        """A member does not reach etcd, or is not answered; what is under way to it waits."""
        network, host = self.cluster.network, self._broker()
        kind = self._chance.choice(("both", "to", "from"))
        self.note(f"no way {kind} etcd of {host.name}")
        if kind != "from":
            network.close_way(host.address, ETCD_ADDRESS)
        if kind != "to":
            network.close_way(ETCD_ADDRESS, host.address)
        self.for_a_while(8.0, network.open_ways)

    def lose_master(self) -> None:
        """The master, in one of the ways in which masters are lost."""
        kinds = ("kill", "power", "suspend", "doze", "island", "stop")
        host, kind = self._set.master, self._chance.choice(kinds)
        process = host.process
        if process is None or not process.is_alive:
            return
        self.note(f"the master {host.name} is lost: {kind}")
        if kind == "kill":
            host.kill()
        elif kind == "power":
            host.fail_power()
        elif kind == "stop":
            host.stop()
        elif kind == "suspend":
            process.stop()
            self.for_a_while(10.0, process.go_on)
        elif kind == "doze":
            self._doze(host, process)
        else:
            self._isolate(host)

    def _doze(self, host: BrokerHost, process: Process) -> None:
        """It is stopped, and goes on about when its lease is over."""
        lease_s = host.settings["election_lease_millis"] / 1000
        process.stop()
        self.under_way += 1

        def over() -> None:
            self.under_way -= 1
            process.go_on()

        self._world.at(self._world.now + lease_s * self._chance.uniform(0.6, 1.5), None, over)

    def _isolate(self, host: BrokerHost) -> None:
        """Its peers and etcd are out of reach; clients reach it all the same."""
        network = self.cluster.network
        for address in (ETCD_ADDRESS, *(one.address for one in self._set.slaves)):
            network.close_way(address, host.address)
            network.close_way(host.address, address)
        self.for_a_while(10.0, network.open_ways)

    # --- the operator -----------------------------------------------------------------------------------------

    def _operate(self, work: Callable[[HandOver], Awaitable[Any]]) -> Host:
        """Somebody does this with the tools of the product; it may be refused."""
        cluster = self.cluster
        self.operators += 1
        host = Host(cluster, "operator", f"10.0.5.{self.operators}")

        async def main() -> None:
            async with Client(";".join(cluster.nameserver_addrs)) as client:
                lead = HandOver(client.admin.sets, self.note, asyncio.get_running_loop().time)
                try:
                    await work(lead)
                except ClientError as failed:
                    self.note(f"refused: {failed}")

        host.run(main)
        assert host.process is not None
        self.under_way += 1

        def over() -> None:
            self.under_way -= 1

        host.process.at_end.append(over)
        self._world.at(self._world.now + OPERATES_S, None, host.process.kill)
        return host

    def hand_over(self) -> None:
        """The seat goes to another member, while all work."""
        to = self._chance.choice(self._set.slaves)
        self.note(f"{to.name} is to become the master")
        self._operate(lambda lead: lead.switch(SET, to.broker_addr))

    def older_etcd(self) -> None:
        """A backup of etcd comes back, of some moments ago, or nothing."""
        if self.etcd.is_up and self.etcd.backups:
            self._change(self._going_back())

    def _going_back(self) -> Iterator[bool]:
        """As docs/replication.md says: etcd is stopped for longer than a lease, all members run, and have heard of
        all that is lost; otherwise it keeps what it has."""
        etcd, chance, members = self.etcd, self._chance, self._set.hosts
        newest = self.seats.newest
        assert newest is not None
        if newest.epoch == 1 and chance.random() < 0.8:
            self.note(f"the master {self._set.master.name} is killed")
            self._set.master.kill()
            until = self._world.now + FAILS_OVER_S
            while self._world.now < until and (
                self.seats.newest is newest or not all(_knows(host, etcd.backups[-1][0]) for host in members)
            ):
                yield True
            newest = self.seats.newest
        if not etcd.is_up:
            return
        self.note("etcd is stopped for a backup")
        etcd.stop()
        lease_s = members[0].settings["election_lease_millis"] / 1000
        until = self._world.now + lease_s * 1.1
        while self._world.now < until:
            yield True
        if not all(_knows(host, etcd.backups[-1][0]) for host in members):
            self.note("etcd goes on with what it had")
            etcd.start()
            return
        count = len(etcd.backups)
        left = 0 if count == 1 or chance.random() < 0.2 else chance.randrange(max(1, count - 4), count)
        self.note(f"etcd goes back to {left} of {count} backups")
        for host in members:
            host.is_held = left > 0
        etcd.go_back(left)
        if not left:
            self.seats.let_in = frozenset(host.number for host in members)  # whose log is the longest
        operator: Host | None = None
        looks_at = self._world.now + chance.uniform(0.1, 3.0)
        while self.seats.newest is newest:
            yield True
            if self._is_told():
                # Whoever starts now hears of it. Before, it might take the seat.
                for host in members:
                    if host.is_held:
                        yield from self._returning(host)
            if left and self._world.now > looks_at and (operator is None or not operator.is_up):
                operator, looks_at = self._force(), self._world.now + 1.0
        for host in members:
            if host.is_held:
                yield from self._returning(host)

    def _is_told(self) -> bool:
        """Whether a member says in etcd that it has gone back."""
        views = [view for host in self._set.hosts if (view := _view(host)) is not None]
        return any(
            view.set is not None and any(one.epoch > view.set.epoch for one in view.members.values())
            for view in views
            if view.revision == self.etcd.revision
        )

    def _force(self) -> Host | None:
        """The newest and longest log becomes the master, once everybody says that etcd has gone back."""
        members = self._set.hosts
        problems = [_problem(host) for host in members]
        if problems != ["went_back"] * len(members):
            return None
        best = max(members, key=_last_of)
        self.note(f"{best.name} is to become the master by force")
        self.seats.let_in = frozenset({best.number})
        return self._operate(lambda lead: lead.promote(best.broker_addr, force=True))


def _view(host: ElectedHost) -> SetView | None:
    is_there = host.is_serving and host.election is not None
    return host.election.seat.view if is_there and host.election is not None else None


def _knows(host: ElectedHost, set_revision: int) -> bool:
    """Whether it has read this revision of the set."""
    view = _view(host)
    return view is not None and view.set_revision == set_revision


def _problem(host: ElectedHost) -> str:
    if not host.is_serving or host.election is None or host.process is None:
        return "down"
    problem = host.election.seat.problem(host.process.monotonic())
    return problem.kind if problem is not None else ""


def _last_of(host: ElectedHost) -> tuple[int, int]:
    """How new its log is."""
    assert host.serving is not None
    store = host.serving.parts.store
    return store.epochs.last_epoch, store.end_offset


ELECTION_FAULTS: Final[dict[str, Callable[[Any], None]]] = {
    **{name: fault for name, fault in SET_FAULTS.items() if name not in ("promotion", "new disk of a slave")},
    "lost master": ElectionFaults.lose_master,
    "no way to etcd": ElectionFaults.cut_off_from_etcd,
    "etcd restarts": ElectionFaults.restart_etcd,
    "slow etcd": ElectionFaults.slow_etcd,
    "lost answers of etcd": ElectionFaults.lose_answers,
    "compaction of etcd": ElectionFaults.compact_etcd,
    "hand-over": ElectionFaults.hand_over,
    "older etcd": ElectionFaults.older_etcd,
}
# Faults that come once, beside others, in this share of the seeds.
BESIDE: Final = {"hand-over": 0.1, "older etcd": 0.06}


THEMES: Final[dict[str, tuple[str, ...]]] = {
    "masters that are lost": ("lost master",),
    "masters that are cut off": ("lost master", "no way to etcd", "closed way between members", "cut link"),
    "ways to etcd": ("no way to etcd",),
    "clocks": ("clock", "lost master", "no way to etcd", "closed way between members"),
    "disks": ("lost master", "power", "power inside", "slow syncs", "failing syncs and power later"),
    "who is in sync": (
        "kill",
        "cut link",
        "closed way between members",
        "slow syncs",
        "slow etcd",
        "lost answers of etcd",
        "etcd restarts",
    ),
}


class ElectionSimulation(PairSimulation):
    """One run of one seed."""

    set: ElectedSet
    themes = THEMES
    beside = BESIDE

    def make_brokers(self, settings: dict[str, Any]) -> None:
        chance, cluster = self.chance, self.cluster
        count = chance.choice((2, 3, 3))
        least = chance.randint(1, 2)
        common = {
            **settings,
            **self.link_settings(),
            "election_endpoints": f"{ETCD_ADDRESS}:2379",
            "election_lease_millis": chance.choice((2000, 3000)),
            "total_replicas": count,
            "in_sync_replicas": least,
            "min_in_sync_replicas": least,
        }
        self.etcd = Etcd(self.world, cluster.network)
        self.set = self.target = ElectedSet(self.ledger)
        hosts: list[ElectedHost] = []
        for number in range(count):
            made = ElectedHost(
                cluster,
                f"{SET}-{number}",
                f"10.0.0.{number + 1}",
                {**common, "broker_id": number + 1},
                self.etcd,
                self.set,
            )
            made.set_clock(0, chance.choice((0.97, 1.0, 1.0, 1.03)))
            self.set.add(made)
            hosts.append(made)
            cluster.brokers.append(made)
        self.copies = Copies(self.world, self.set, settings["mapped_file_size_commit_log"])
        self.copies.promised = least
        seats = Seats(self.world, hosts, self.copies)

        def witness(sent: Sent, stored_as: str) -> None:
            self.copies.witness(sent, stored_as)
            seats.witness(sent, stored_as)

        self.ledger.witness = witness
        self.etcd.on_written = seats.written
        self.set.on_served, self.set.on_cut = seats.serves, seats.cuts
        self.set.on_confirmed, self.set.on_leased = seats.confirms, seats.leased
        self.faults = ElectionFaults(cluster, self.ledger, self.world.chance("faults"), self.set, self.copies)
        self.faults.etcd, self.faults.seats = self.etcd, seats
        for host in self.set.members:
            self.faults.supervise(host, host.start)
        self._look()
        seats.look()

    def _look(self) -> None:
        """Remember how old the tables of slaves are."""
        for host in self.set.members:
            side: Any = host.serving.parts.replication if host.is_serving and host.serving else None
            synced_at = side.metadata.synced_at if side is not None and hasattr(side, "metadata") else 0.0
            if synced_at:
                host.tables_at = synced_at / host.clock_rate - TABLES_LAG_S
        self.world.at(self.world.now + LOOK_S, None, self._look)

    def start_clients(self) -> None:
        """Some of them read at each member, whatever it is at the moment, or send to one alone."""
        Simulation.start_clients(self)
        if self.chance.random() < 0.5:
            self.work.start_plain_sender(self.chance.choice(self.set.members), 9)
        for host in self.set.members:
            saw = partial(self.set.seen, host)
            self.work.start_plain_reader(host, f"reader of {host.name}", commits=False, member=host, saw=saw)

        # What an administrator was told to be there: topics, and how many queues they have.
        self.made: dict[str, int] = {}
        if self.world.chance("administrator").random() < ADMINISTERED:
            self.work.start_administrator(self.made)

    def serves(self) -> bool:
        """Whether there is one master that serves, and all others follow it."""
        return all(host.is_serving for host in self.set.members) and bool(self.set.masters)

    def check_brokers(self) -> None:
        self.until(self._is_whole, HEALED_WITHIN_S, self._standing)
        super().check_brokers()
        for name, queues in self.made.items():
            for host in self.set.members:
                assert host.serving is not None
                topic = host.serving.parts.topics.get(name)
                found = topic.read_queue_nums if topic is not None else 0
                if found != queues:
                    raise Broken(
                        f"{host.name} has {found} queues of {name}; it was answered that there are {queues}"
                    )

    def _roles(self) -> list[tuple[bool, int]]:
        roles = [getattr(host, "role", None) for host in self.set.members if host.is_serving]
        return [(role.is_master, role.epoch) for role in roles if role is not None]

    def _is_whole(self) -> bool:
        election = getattr(self.master, "election", None)
        roles = self._roles()
        epochs = {epoch for _, epoch in roles}
        return (
            election is not None
            and len(roles) == len(self.set.members)
            and epochs == {max(self.set.masters)}
            and sum(is_master for is_master, _ in roles) == 1
            and len(election.seat.in_sync) == len(self.set.members)
        )

    def _standing(self) -> str:
        election = getattr(self.master, "election", None)
        in_sync = election.seat.in_sync if election is not None else None
        return f"all members are in sync: roles and epochs are {self._roles()}, in sync are {in_sync}"
