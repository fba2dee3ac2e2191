"""Hosts with nameservers, brokers and clients: how they start, serve and end."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from aerobee_broker.broker import Broker, Life
from aerobee_broker.lives.role import Role
from aerobee_broker.settings.config import BrokerConfig
from aerobee_nameserver.config import NameserverConfig
from aerobee_nameserver.server import NameServer
from aerobee_proto.errors import AerobeeError
from simulation.disk import SimDisk, SimIo
from simulation.edges import edges
from simulation.loop import NodeLoop
from simulation.network import Network
from simulation.threads import Threads
from simulation.world import Process, World

__all__ = [
    "BROKER_PORT",
    "NAMESERVER_PORT",
    "STORE",
    "BrokerHost",
    "BrokerSet",
    "Cluster",
    "Host",
    "Target",
    "first_of",
]

BROKER_PORT: Final = 10911
NAMESERVER_PORT: Final = 9876
STORE: Final = Path("/store")
STOP_AFTER_FAILURE_S: Final = 0.7  # as the program
# Of log events, what goes into the history; the rest is in figures and takes its room.
FACTS_MAX: Final = 200


class Host:
    """A machine: its disk stays, its processes come and go."""

    def __init__(self, cluster: "Cluster", name: str, address: str) -> None:
        self.cluster = cluster
        self.name = name
        self.address = address
        self.disk = SimDisk(cluster.world.chance(f"disk of {name}"))
        self.disk_number = 0
        self.process: Process | None = None
        self.is_held = False  # whoever runs it wants it to stay down
        self.loop: NodeLoop | None = None
        self.clock_ahead_ms = 0
        self.clock_rate = 1.0
        self.starts = 0

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.is_alive

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        """Start a process; it ends when `main` does."""
        assert not self.is_up
        cluster = self.cluster
        cluster.network.dark.discard(self.address)
        self.starts += 1
        process = self.process = Process(cluster.world, self.name, self.address)
        process.clock_ahead_ms, process.clock_rate = self.clock_ahead_ms, self.clock_rate
        loop = self.loop = NodeLoop(process, cluster.threads, cluster.network)  # type: ignore[abstract]
        cluster.loops.append(loop)
        process.at_end.append(lambda: cluster.threads.end_of(process))
        process.at_end.append(self.disk.process_ended)
        cluster.network.join(loop)

        async def whole() -> None:
            try:
                await main()
            except Exception as failed:
                loop.call_exception_handler({"message": "the program ended", "exception": failed})
            process.kill()

        loop.call_soon(lambda: loop.create_task(whole(), name=self.name))

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()

    def fail_power(self) -> None:
        """The machine is off, at once."""
        self.cluster.network.dark.add(self.address)
        self.kill()
        self.disk.power_failed()

    def empty_disk(self) -> None:
        """A new disk, while nothing runs."""
        assert not self.is_up
        self.disk_number += 1
        self.disk = SimDisk(self.cluster.world.chance(f"disk {self.disk_number} of {self.name}"))

    def set_clock(self, ahead_ms: int, rate: float) -> None:
        self.clock_ahead_ms, self.clock_rate = ahead_ms, rate
        if self.process is not None:
            self.process.clock_ahead_ms = ahead_ms


class Target(Protocol):
    """Whom clients of plain requests ask: one broker, or whoever is the master of a set."""

    @property
    def broker_name(self) -> str:
        """As nameservers know it."""
        ...

    @property
    def broker_addr(self) -> str: ...

    @property
    def process(self) -> Process | None: ...


class BrokerHost(Host):
    """A host that runs a broker."""

    def __init__(self, cluster: "Cluster", name: str, address: str, settings: dict[str, Any]) -> None:
        super().__init__(cluster, name, address)
        self.settings = settings  # for the next start
        self.serving: Broker | None = None
        # Why the last start was refused.
        self.refused: Exception | None = None
        self._stop: asyncio.Event | None = None
        # When it had its master's tables last, in true seconds; of a slave.
        self.tables_at = 0.0

    @property
    def broker_addr(self) -> str:
        return f"{self.address}:{BROKER_PORT}"

    @property
    def is_serving(self) -> bool:
        return self.is_up and self.serving is not None

    @property
    def broker_name(self) -> str:
        name: str = self.settings.get("broker_name", self.name)
        return name

    @property
    def is_slave(self) -> bool:
        return self.settings.get("broker_role") == "SLAVE"

    def start(self) -> None:
        self.serving = None
        self.run(self._main)

    def stop(self) -> None:
        """As SIGTERM."""
        if self.is_up and self._stop is not None and self.loop is not None:
            self.loop.call_soon_threadsafe(self._stop.set)

    def config(self) -> BrokerConfig:
        """Its settings, as the next start reads them."""
        return BrokerConfig(
            **{
                "store_path_root_dir": STORE,
                "broker_ip1": self.address,
                "bind_address": self.address,
                "listen_port": BROKER_PORT,
                "namesrv_addr": ";".join(self.cluster.nameserver_addrs),
                "metrics_exporter_type": "DISABLE",
                "cold_read_threads": 0,  # all of a simulated disk is in memory
                "broker_cluster_name": "Sim",
                "broker_name": self.name,
                **self.settings,
            }
        )

    async def _main(self) -> None:
        process = self.process
        assert process is not None
        io = SimIo(self.disk, process, self.cluster.threads)
        stop = self._stop = asyncio.Event()
        cut_to: int | None = None
        while not stop.is_set():
            config = self.config()
            life = Life(Role(not config.is_slave, member=config.broker_id), cut_to=cut_to)
            broker = await self.begin(Broker(config, io=io, clock=process.epoch_ms, life=life), stop)
            if broker is None:
                return
            await first_of({broker.cut}, stop)
            cut_to = broker.cut.result() if broker.cut.done() else None
            await self.end(broker, briefly=cut_to is not None and not stop.is_set())
            if broker.failed.done():
                return

    async def begin(self, broker: Broker, stop: asyncio.Event) -> Broker | None:
        """Start a broker; None when it does not start. `stop` is set when it fails."""
        broker.failed.add_done_callback(lambda _: stop.set())
        try:
            await broker.start()
        except (AerobeeError, OSError, ValueError) as failed:
            self.refused = failed
            self.cluster.world.note(self.name, f"does not start: {failed}")
            await broker.close()
            return None
        self.refused = None
        self.serving = broker
        return broker

    async def end(self, broker: Broker, *, briefly: bool = False) -> None:
        """Stop a broker as the program does."""
        assert self.process is not None
        self.serving = None
        if broker.failed.done():
            asyncio.get_running_loop().call_later(STOP_AFTER_FAILURE_S, self.process.kill)
        await broker.close(briefly=briefly)


async def first_of(ends: "set[asyncio.Future[Any]]", stop: asyncio.Event) -> None:
    """Return when one of these has come, or `stop`."""
    stopped = asyncio.create_task(stop.wait(), name="stop")
    try:
        await asyncio.wait({*ends, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        await asyncio.gather(stopped, return_exceptions=True)


class BrokerSet:
    """Brokers that share a name."""

    def __init__(self, members: list[BrokerHost]) -> None:
        self.broker_name = members[0].broker_name
        self.members = members
        self.master = members[0]  # as far as whoever runs them knows

    @property
    def slaves(self) -> list[BrokerHost]:
        """All but the master."""
        return [host for host in self.members if host is not self.master]

    @property
    def broker_addr(self) -> str:
        return self.master.broker_addr

    @property
    def process(self) -> Process | None:
        return self.master.process


class Cluster:
    """Everything that is simulated at one time."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.threads = Threads(self.world)
        self.network = Network(self.world)
        self.loops: list[NodeLoop] = []
        self.nameservers: list[Host] = []
        self.brokers: list[BrokerHost] = []
        self.clients: list[Host] = []
        self.is_closing = False  # what ends now is not started again

    @property
    def nameserver_addrs(self) -> list[str]:
        return [f"{host.address}:{NAMESERVER_PORT}" for host in self.nameservers]

    def add_nameserver(self) -> Host:
        number = len(self.nameservers)
        host = Host(self, f"nameserver-{number}", f"10.0.1.{number + 1}")
        self.nameservers.append(host)
        return host

    def start_nameserver(self, host: Host) -> None:
        async def main() -> None:
            process = host.process
            assert process is not None
            config = NameserverConfig(bind_address=host.address, listen_port=NAMESERVER_PORT)
            server = NameServer(config, keep_kv=False, now_ms=process.epoch_ms)
            await server.start()
            await asyncio.get_running_loop().create_future()

        host.run(main)

    def add_broker(self, name: str = "", **settings: Any) -> BrokerHost:
        number = len(self.brokers)
        host = BrokerHost(self, name or f"broker-{chr(97 + number)}", f"10.0.0.{number + 1}", settings)
        self.brokers.append(host)
        return host

    def start_client(self, name: str, main: Callable[[], Awaitable[None]]) -> Host:
        host = Host(self, name, f"10.0.2.{len(self.clients) + 1}")
        self.clients.append(host)
        host.run(main)
        return host

    def unhandled(self) -> list[str]:
        """Errors that nobody has handled, of all processes."""
        found = [
            f"{loop.process.name}: {context.get('message')}: {context.get('exception')!r}"
            for loop in self.loops
            for context in loop.unhandled
        ]
        return found + [f"a thread ended: {failure!r}" for failure in self.threads.broken]

    def close(self) -> None:
        """End everything, so that nothing of it is left."""
        for host in (*self.clients, *self.brokers, *self.nameservers):
            host.kill()


def log_into_history() -> None:
    """Events of servers become lines of the history."""
    structlog.configure(
        processors=[_note],
        wrapper_class=structlog.make_filtering_bound_logger(20),
        cache_logger_on_first_use=False,
    )


def _note(_logger: Any, level: str, event: Any) -> Any:
    threads = edges.threads
    if threads is not None:
        name = event.pop("event")
        facts = " ".join(f"{key}={value}" for key, value in event.items() if key != "exc_info")
        who = threads.process().name if threads.current or threads.world.current else "nobody"
        mark = "" if level == "info" else f"[{level}] "
        threads.world.history.append((threads.world.now, who, f"{mark}{name} {facts[:FACTS_MAX]}"))
    raise structlog.DropEvent
