"""What goes wrong in a set of brokers beside what goes wrong with each of them, and what its operator does about it.

The operator makes a slave the master when the master is lost: of all slaves the one with the longest log, as
docs/replication.md says. The old master comes back as a slave, with an empty disk.
"""

from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any, Final

from simulation.cluster import BrokerHost, BrokerSet, Cluster
from simulation.copies import Copies
from simulation.faults import FAULTS, Faults
from simulation.ledger import Ledger

__all__ = ["SET_FAULTS", "SetFaults"]

STEP_S: Final = 0.1  # between two looks of the operator
# How old what a slave asked its master for may be when it says that it has it, in seconds.
TABLES_LAG_S: Final = 0.5


class SetFaults(Faults):
    """All faults of a simulation of one set."""

    turned = (
        *Faults.turned,
        "haSendHeartbeatInterval=300",
        "haSendHeartbeatInterval=1000",
        "haHousekeepingInterval=3000",
        "haTransferBatchSize=1024",
        "haTransferBatchSize=32768",
        "haFlowControlEnable=true",
        "haFlowControlEnable=false",
        "maxHaTransferByteInSecond=20000",
    )

    def __init__(
        self, cluster: Cluster, ledger: Ledger, chance: Random, brokers: BrokerSet, copies: Copies
    ) -> None:
        super().__init__(cluster, ledger, chance)
        self._set = brokers
        self._copies = copies
        self._is_changing = False  # the operator is at work

    @property
    def table(self) -> Mapping[str, Callable[[Any], None]]:
        left_out: set[str] = set()
        is_lazy = any(host.settings.get("flush_disk_type") == "ASYNC_FLUSH" for host in self._set.members)
        if is_lazy:
            # Its log may have holes behind its checkpoint then. Without epochs nobody knows which of two logs that part
            # is the right one, so the slave says so and waits for its operator.
            left_out |= {"power", "power inside", "failing syncs and power later"}
        if self._copies.promised < 2 or is_lazy:
            left_out |= {"promotion"}  # what was acknowledged may be with the lost master alone
        return {name: fault for name, fault in SET_FAULTS.items() if name not in left_out}

    # --- between members --------------------------------------------------------------------------------------

    def _two(self) -> tuple[BrokerHost, BrokerHost]:
        one, other = self._chance.sample(self._set.members, 2)
        return one, other

    def cut_link(self) -> None:
        one, other = self._two()
        self.note(f"connections of {one.name} and {other.name} are cut")
        self.cluster.network.cut_between(one.address, other.address)

    def close_way_between(self) -> None:
        """Members do not hear each other; or only one of them does not. Clients reach both."""
        network, (one, other) = self.cluster.network, self._two()
        is_one_way = self._chance.random() < 0.5
        self.note(f"no way from {one.name} to {other.name}{'' if is_one_way else ', or back'}")
        network.close_way(one.address, other.address)
        if not is_one_way:
            network.close_way(other.address, one.address)
        self.for_a_while(8.0, network.open_ways)

    # --- the operator -----------------------------------------------------------------------------------------

    def promote(self) -> None:
        """The master is lost for long: a slave becomes the master."""
        self._change(self._promoting())

    def renew_slave(self) -> None:
        """A slave gets a new disk."""
        self._change(self._renewing(self._chance.choice(self._set.slaves)))

    def _change(self, steps: Iterator[bool]) -> None:
        """Go through these steps, one change at a time; each yields whether it is done, or is to be tried later."""
        if self._is_changing:
            return
        self._is_changing = True
        self.under_way += 1
        self._go_on(steps)

    def _go_on(self, steps: Iterator[bool]) -> None:
        if self.cluster.is_closing or next(steps, None) is None:
            self._is_changing = False
            self.under_way -= 1
        else:
            self._world.at(self._world.now + STEP_S, None, self._go_on, steps)

    def _promoting(self) -> Iterator[bool]:
        brokers, chance = self._set, self._chance
        old, slaves = brokers.master, brokers.slaves
        has_all = all(host.serving is not None and not _begin_of(host) for host in slaves)
        end = chance.choice((old.kill, old.fail_power if has_all else old.kill, old.stop))
        self.note(f"{old.name} is lost: {end.__name__}")
        # What it was started with it shows, though slaves may not have it yet: no operator takes one that lacks it.
        shown = old.serving.parts.store.confirmed_offset if old.serving is not None else 0
        old.is_held = True
        end()
        # What the old master sent last may be on its way: until slaves have noticed, nobody knows which has most.
        while old.is_up or not all(host.is_serving and not _is_linked(host) for host in slaves):
            yield True
        new = max(slaves, key=lambda host: (_end_of(host), _tables_read_at(host)))
        if _begin_of(new) > 0 or _end_of(new) < shown:
            self.note(f"{new.name} has not all of the log, {old.name} is needed")
            yield from self._returning(old)
            return
        self._ledger.forget_commits(brokers.broker_name, _tables_read_at(new) - TABLES_LAG_S)
        self.note(f"{new.name}, which has {_end_of(new)}, becomes the master")
        new.is_held = True
        new.stop()
        while new.is_up:
            yield True
        roles = ("broker_role", "in_sync_replicas", "min_in_sync_replicas", "enable_auto_in_sync_replicas")
        new.settings |= {key: old.settings[key] for key in roles if key in old.settings} | {"broker_id": 0}
        for key in roles[1:]:
            old.settings.pop(key, None)
        old.settings |= {"broker_role": "SLAVE", "broker_id": 1 + brokers.members.index(old)}
        brokers.master = new
        yield from self._returning(new)
        while not new.is_serving:
            yield True
        for slave in slaves:
            while slave is not new and not slave.is_serving:
                yield True
            if slave is not new and _end_of(slave) > _end_of(new):
                yield from self._renewing(slave)
        yield from self._renewing(old)

    def _renewing(self, slave: BrokerHost) -> Iterator[bool]:
        self.note(f"{slave.name} gets a new disk")
        slave.is_held = True
        slave.kill()
        while slave.is_up:
            yield True
        slave.empty_disk()
        self._copies.emptied_at = self._world.now
        yield from self._returning(slave)
        while not slave.is_serving or _end_of(slave) < _end_of(self._set.master):
            yield True

    def _returning(self, host: BrokerHost) -> Iterator[bool]:
        """Start a host that was held down."""
        yield True
        host.is_held = False
        if not host.is_up:
            self.note(f"{host.name} starts")
            self.supervise(host, host.start)


def _end_of(host: BrokerHost) -> int:
    return host.serving.parts.store.end_offset if host.serving is not None else -1


def _is_linked(host: BrokerHost) -> bool:
    side: Any = host.serving.parts.replication if host.serving is not None else None
    return side is not None and bool(side.is_linked)


def _begin_of(host: BrokerHost) -> int:
    return host.serving.parts.store.min_physical_offset if host.serving is not None else 0


def _tables_read_at(host: BrokerHost) -> float:
    """When a slave had its master's tables last."""
    assert host.serving is not None
    side: Any = host.serving.parts.replication
    synced_at: float = side.metadata.synced_at
    return synced_at / host.clock_rate


SET_FAULTS: Final[dict[str, Callable[[Any], None]]] = {
    **FAULTS,
    "cut link": SetFaults.cut_link,
    "closed way between members": SetFaults.close_way_between,
    "promotion": SetFaults.promote,
    "new disk of a slave": SetFaults.renew_slave,
}
