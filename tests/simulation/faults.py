"""What goes wrong in a simulation, and when.

A plan is drawn from the seed before anything runs: so many faults at so many moments. Each begins, lasts, and is over;
when the last one is over, everything works again as far as people bring it about: programs that have ended are started,
disks have room, ways are open. What is left to do then the product has to do by itself.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Any, Final

from aerobee_proto.codes import RequestCode
from aerobee_remoting.ends.client import RemotingClient
from aerobee_remoting.peers.errors import RemotingError
from simulation.cluster import BrokerHost, Cluster, Host
from simulation.disk import CAPACITY, SYNC_S
from simulation.ledger import Ledger
from simulation.world import Process

__all__ = ["FAULTS", "Faults"]

LATE: Final = (0.3, 1.0)  # how many pieces of bytes, and by how many seconds at most
STEPS_MAX: Final = 400  # of a disk, in the middle of which a process may be ended
FIRST_S: Final = 0.5  # when faults begin, as a rule: something has been sent by then


class Faults:
    """All faults of one simulation, and the supervisor that starts again what has ended."""

    # Settings that are changed while a broker runs.
    turned: tuple[str, ...] = (
        "flushIntervalConsumeQueue=50",
        "flushIntervalConsumeQueue=1000",
        "longPollingEnable=false",
        "longPollingEnable=true",
        "flushConsumerOffsetInterval=500",
        "brokerPermission=6",
    )

    def __init__(self, cluster: Cluster, ledger: Ledger, chance: Random) -> None:
        self.cluster = cluster
        self._world = cluster.world
        self._ledger = ledger
        self._chance = chance
        self.are_over = False
        self.under_way = 0
        self.made: list[str] = []
        # Of the time that a fault may last; seconds before what has ended is started again.
        self.share = 1.0
        self.restarts_s: tuple[float, ...] = ()

    # --- the plan ---------------------------------------------------------------------------------------------

    def plan(self, names: list[str], count: int, until_s: float) -> None:
        """Draw so many faults of these kinds, that begin before `until_s`."""
        chance = self._chance
        begin_s = FIRST_S if until_s > FIRST_S else self._world.now
        for when in sorted(chance.uniform(begin_s, until_s) for _ in range(count)):
            self._world.at(when, None, self._begin, chance.choice(names))

    def _begin(self, name: str) -> None:
        self.made.append(name)
        self.table[name](self)

    @property
    def table(self) -> Mapping[str, Callable[[Any], None]]:
        """All that can go wrong, by name."""
        return FAULTS

    def note(self, what: str) -> None:
        self._world.note("-", what)

    def for_a_while(self, longest_s: float, end: Callable[[], None]) -> None:
        self.under_way += 1

        def over() -> None:
            end()
            self.under_way -= 1

        self._world.at(self._world.now + self._chance.uniform(0.05, longest_s * self.share), None, over)

    def _broker(self) -> BrokerHost:
        return self._chance.choice(self.cluster.brokers)

    # --- the supervisor ---------------------------------------------------------------------------------------

    def supervise(self, host: Host, start: Callable[[], None]) -> None:
        """Start a host's program, and again some time after it ended."""
        start()
        process = host.process
        assert process is not None
        process.at_end.append(lambda: self._ended(host, process, start))

    def _ended(self, host: Host, process: Process, start: Callable[[], None]) -> None:
        if isinstance(host, BrokerHost) and not host.is_slave:
            self._ledger.crashed(host.broker_name)
        if self.cluster.is_closing:
            return
        self.note(f"{host.name} has ended")
        self.under_way += 1
        pause_s = self._chance.choice(self.restarts_s)

        def again() -> None:
            self.under_way -= 1
            if not host.is_up and not host.is_held and not self.cluster.is_closing:
                self.note(f"{host.name} starts")
                self.supervise(host, start)

        self._world.at(self._world.now + pause_s, None, again)

    # --- processes --------------------------------------------------------------------------------------------

    def kill(self) -> None:
        host = self._broker()
        self.note(f"{host.name} is killed")
        host.kill()

    def kill_inside(self) -> None:
        """Between two steps of whatever it does with its disk."""
        host = self._broker()
        self._at_step(host, "is killed at its disk", host.kill)

    def fail_power(self) -> None:
        host = self._broker()
        self.note(f"{host.name} has no power")
        host.fail_power()

    def fail_power_inside(self) -> None:
        host = self._broker()
        self._at_step(host, "has no power, at its disk", host.fail_power)

    def _at_step(self, host: BrokerHost, what: str, end: Callable[[], None]) -> None:
        def happens() -> None:
            self.note(f"{host.name} {what}")
            end()

        host.disk.steps_left, host.disk.on_last_step = self._chance.randrange(STEPS_MAX), happens
        self.for_a_while(5.0, lambda: setattr(host.disk, "steps_left", None))

    def stop(self) -> None:
        host = self._broker()
        self.note(f"{host.name} is told to stop")
        host.stop()

    def suspend(self) -> None:
        """SIGSTOP."""
        host = self._chance.choice([*self.cluster.brokers, *self.cluster.nameservers, *self.cluster.clients])
        process = host.process
        if process is None or not process.is_alive:
            return
        self.note(f"{host.name} is stopped for a while")
        process.stop()
        self.for_a_while(8.0, process.go_on)

    def slow_down(self) -> None:
        host = self._chance.choice([*self.cluster.brokers, *self.cluster.nameservers])
        process = host.process
        if process is None:
            return
        self.note(f"{host.name} is slow for a while")
        process.slowness_s = self._chance.choice((0.0005, 0.005))
        self.for_a_while(4.0, lambda: setattr(process, "slowness_s", 0.0))

    def kill_nameserver(self) -> None:
        host = self._chance.choice(self.cluster.nameservers)
        self.note(f"{host.name} is killed")
        host.kill()

    # --- disks ------------------------------------------------------------------------------------------------

    def fail_syncs(self) -> None:
        host = self._broker()
        self.note(f"syncs of {host.name} will fail")
        host.disk.syncs_left = self._chance.choice((0, 1, 3, 10, 30))
        self.for_a_while(3.0, lambda: setattr(host.disk, "syncs_left", None))

    def fail_syncs_then_power(self) -> None:
        """What a failed sync has left in memory alone is gone later, when another start has trusted it."""
        self.fail_syncs()
        self.under_way += 1

        def later() -> None:
            self.under_way -= 1
            self.fail_power()

        self._world.at(self._world.now + self._chance.uniform(1.0, 6.0), None, later)

    def slow_syncs(self) -> None:
        host = self._broker()
        self.note(f"the disk of {host.name} is slow for a while")
        host.disk.sync_s = self._chance.choice((0.02, 0.2))
        self.for_a_while(5.0, lambda: setattr(host.disk, "sync_s", SYNC_S))

    def fill_disk(self) -> None:
        host = self._broker()
        self.note(f"the disk of {host.name} is full for a while")
        host.disk.capacity = host.disk.used + self._chance.choice((0, 100, 5000, 100_000))
        self.for_a_while(6.0, lambda: setattr(host.disk, "capacity", CAPACITY))

    # --- network ----------------------------------------------------------------------------------------------

    def cut_connections(self) -> None:
        self.note("connections are cut")
        for _ in range(self._chance.choice((1, 1, 3, 10))):
            self.cluster.network.cut(self._chance)

    def close_ways(self) -> None:
        """Between some hosts nothing comes through, in one direction or both."""
        chance, cluster = self._chance, self.cluster
        hosts = [*cluster.brokers, *cluster.nameservers, *cluster.clients]
        one = chance.choice([*cluster.brokers, *cluster.nameservers])
        others = [host for host in hosts if host is not one]
        chosen = others if chance.random() < 0.3 else chance.sample(others, min(2, len(others)))
        kind = chance.choice(("both", "to", "from"))
        self.note(f"no way {kind} {one.name}: {', '.join(host.name for host in chosen)}")
        for other in chosen:
            if kind != "from":
                cluster.network.close_way(other.address, one.address)
            if kind != "to":
                cluster.network.close_way(one.address, other.address)
        self.for_a_while(10.0, cluster.network.open_ways)

    def delay_much(self) -> None:
        network = self.cluster.network
        self.note("the network is slow for a while")
        network.late, network.late_s = LATE
        self.for_a_while(4.0, network.calm)

    # --- clocks and operators ---------------------------------------------------------------------------------

    def move_clock(self) -> None:
        chance = self._chance
        host = chance.choice([*self.cluster.brokers, *self.cluster.nameservers])
        ahead_ms = chance.choice((-3_600_000, -5000, -200, 300, 4000))
        self.note(f"the clock of {host.name} jumps to {ahead_ms} ms ahead")
        host.set_clock(ahead_ms, host.clock_rate)
        self.for_a_while(8.0, lambda: host.set_clock(0, host.clock_rate))

    def change_settings(self) -> None:
        """An operator turns a knob."""
        host, setting = self._broker(), self._chance.choice(self.turned)
        self.note(f"somebody sets {setting} at {host.name}")

        async def main() -> None:
            remote = RemotingClient()
            with suppress(RemotingError):
                await remote.request(
                    host.broker_addr, RequestCode.UPDATE_BROKER_CONFIG, {}, setting.encode(), timeout=2.0
                )
            await remote.close()

        Host(self.cluster, "operator", f"10.0.3.{len(self.made)}").run(main)


FAULTS: Final[dict[str, Callable[[Faults], None]]] = {
    "kill": Faults.kill,
    "kill inside": Faults.kill_inside,
    "power": Faults.fail_power,
    "power inside": Faults.fail_power_inside,
    "stop": Faults.stop,
    "suspend": Faults.suspend,
    "slow process": Faults.slow_down,
    "kill nameserver": Faults.kill_nameserver,
    "failing syncs": Faults.fail_syncs,
    "failing syncs and power later": Faults.fail_syncs_then_power,
    "slow syncs": Faults.slow_syncs,
    "full disk": Faults.fill_disk,
    "cut connections": Faults.cut_connections,
    "closed ways": Faults.close_ways,
    "slow network": Faults.delay_much,
    "clock": Faults.move_clock,
    "settings": Faults.change_settings,
}
