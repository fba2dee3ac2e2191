"""One seed: which hosts and settings there are, what goes wrong, and what has to hold in the end."""

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from aerobee_broker.native.engine import find_engine
from aerobee_proto.codes import RequestCode
from aerobee_remoting.ends.client import RemotingClient, RemotingClientConfig
from plain_remoting import topic_fields
from simulation.cluster import BrokerHost, Cluster
from simulation.edges import edges
from simulation.faults import FAULTS, Faults
from simulation.ledger import Broken, Ledger
from simulation.work import GROUPED, MEMBERS, POPPED, POPPERS, QUEUES, Work, ask_until_answered, read_queue
from simulation.world import Stuck, World

__all__ = ["ENGINES", "Outcome", "engine_of", "simulate"]

ENGINES: Final = ("python", "native")  # for sends

HEALED_WITHIN_S: Final = 60.0  # from the end of the last fault until everything works
# Faults that keep a broker from writing its tables when it is time to.
SLOWING: Final = frozenset(
    {
        "full disk",
        "slow syncs",
        "failing syncs",
        "failing syncs and power later",
        "slow process",
        "suspend",
        "clock",
    }
)


@dataclass(slots=True)
class Outcome:
    """What came of one seed."""

    seed: int
    failure: str | None = None
    simulated_s: float = 0.0
    digest: str = ""
    messages: int = 0
    acknowledged: int = 0
    faults: list[str] = field(default_factory=list)
    history: list[tuple[float, str, str]] = field(default_factory=list)


def settings_of(chance: Random) -> dict[str, Any]:
    """Small files, so that all of them roll; short intervals, so that much happens."""
    return {
        "mapped_file_size_commit_log": chance.choice((1 << 15, 1 << 16, 1 << 18)),
        "mapped_file_size_consume_queue": chance.choice((400, 4000)),
        "max_hash_slot_num": 50,
        "max_index_num": chance.choice((40, 400)),
        "max_message_size": 8192,
        "mapped_file_size_timer_log": 52 * chance.choice((80, 400)),
        "flush_consumer_offset_interval": 1000,
        "flush_delay_offset_interval": 500,
        "flush_interval_consume_queue": chance.choice((100, 1000)),
        "message_delay_level": "1s 2s",
        "transaction_check_interval": 2000,
        "transaction_time_out": 3000,
        "disk_space_warning_level_ratio": 100,
        "disk_space_clean_forcibly_ratio": 100,
        "disk_max_used_space_ratio": 100,
    }


def engine_of(world: World) -> str:
    """The native engine for half of the seeds, where it is there."""
    drawn = world.chance("engine").choice(ENGINES)
    return drawn if find_engine("auto") is not None else "python"


class Simulation:
    """One run of one seed."""

    def __init__(self, seed: int, kinds: list[str] | None, engine: str | None) -> None:
        """`kinds` of faults and the engine for sends, where they are not drawn."""
        self._kinds = kinds
        self.cluster = Cluster(seed)
        self.world = self.cluster.world
        self._engine = engine or engine_of(self.world)
        chance = self.world.chance("scenario")
        self.ledger = Ledger(self.world)
        self.work = Work(self.cluster, self.ledger)
        self.faults = Faults(self.cluster, self.ledger, self.world.chance("faults"))
        self._chance = chance
        self.broker: BrokerHost = None  # type: ignore[assignment]  # set by `begin`

    def run(self) -> None:
        """Broken, AssertionError or another error when something is not as it has to be."""
        chance, cluster, world = self._chance, self.cluster, self.world
        for _ in range(chance.choice((1, 1, 2))):
            host = cluster.add_nameserver()
            self.faults.supervise(host, lambda host=host: cluster.start_nameserver(host))  # type: ignore[misc]
        world.note("-", f"sends are taken by the {self._engine} engine")
        broker = self.broker = cluster.add_broker(**settings_of(chance), send_engine=self._engine)
        self.faults.supervise(broker, broker.start)
        self._until(lambda: broker.is_serving, 10.0, "the first start")
        self._as_client("topics", self._make_topics)
        self.work.pause_s = chance.choice((0.05, 0.15, 0.5))
        self._start_clients(chance)
        lasts_s = chance.choice((4.0, 8.0, 15.0))
        kinds = chance.sample(sorted(FAULTS), chance.choice((1, 2, 4, len(FAULTS))))
        kinds = kinds if self._kinds is None else self._kinds
        if any(kind in SLOWING for kind in kinds):
            self.ledger.commits_kept_s = 30.0
        self.faults.plan(kinds, chance.choice((1, 2, 4, 7)), world.now + lasts_s)
        end = world.now + lasts_s
        self._let_happen(lambda: world.now >= end and not self.faults.under_way)
        world.note("-", "no faults any more")
        self._heal()

    def _start_clients(self, chance: Random) -> None:
        work, broker = self.work, self.broker
        for number in range(chance.choice((1, 2))):
            work.start_plain_sender(broker, number)
        work.start_producer(0)
        work.start_plain_reader(broker)
        work.start_popper(broker)
        for number in range(chance.choice((1, 2))):
            work.start_member(number)

    async def _make_topics(self, remote: RemotingClient) -> None:
        for topic, queues in QUEUES.items():
            fields = topic_fields(topic, queues)
            await ask_until_answered(
                remote, self.broker.broker_addr, RequestCode.UPDATE_AND_CREATE_TOPIC, fields
            )

    # --- the end ----------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """Everything works again within a time, and then nothing is missing."""
        began = self.world.now
        self._until(lambda: self.broker.is_serving, HEALED_WITHIN_S, "the broker serves again")
        acknowledged = self.ledger.acknowledged
        self._until(
            lambda: self.ledger.acknowledged > acknowledged + 3, HEALED_WITHIN_S, "messages are taken again"
        )
        self.work.is_sending = False
        self._until(lambda: not self.work.busy, 30.0, "every send has an outcome")
        # Delayed messages, transactions that are asked about, what was popped and not acknowledged.
        settled = self.world.now + (12.0 if "clock" in self.faults.made else 8.0)
        self._let_happen(lambda: self.world.now >= settled)
        self.work.is_closing = True
        left = HEALED_WITHIN_S - (self.world.now - began)
        self._until(
            lambda: not any(host.is_up for host in self.cluster.clients), max(left, 30.0), "clients end"
        )
        logs: dict[tuple[str, str, int], list[tuple[int, bytes]]] = {}
        begins: dict[tuple[str, str, int], int] = {}

        async def read_all(remote: RemotingClient) -> None:
            for topic, queues in QUEUES.items():
                for queue_id in range(queues):
                    key = (self.broker.name, topic, queue_id)
                    begins[key], logs[key] = await read_queue(
                        remote, self.broker.broker_addr, topic, queue_id
                    )

        self._as_client("checker", read_all)
        self.ledger.check(logs, begins)
        self.ledger.check_handled(MEMBERS, GROUPED)
        self.ledger.check_handled(POPPERS, POPPED)
        serving = self.broker.serving
        assert serving is not None
        process = self.broker.process
        assert process is not None
        loop = self.broker.loop
        assert loop is not None
        loop.inside(serving.parts.store.check)
        unhandled = self.cluster.unhandled()
        if unhandled:
            raise Broken(f"nobody has handled {unhandled[0]}")
        self.cluster.is_closing = True
        self.broker.stop()
        self._until(lambda: not self.broker.is_up, 20.0, "an orderly stop")

    # --- time -------------------------------------------------------------------------------------------------

    def _let_happen(self, until: Callable[[], bool]) -> None:
        self.world.run(until)

    def _until(self, holds: Callable[[], bool], within_s: float, what: str) -> None:
        """Let things happen until it holds; Broken when it takes longer."""
        end = self.world.now + within_s
        self.world.run(lambda: holds() or self.world.now > end)
        if not holds():
            why = f": {self.broker.refused}" if self.broker and self.broker.refused else ""
            unhandled = "".join(f"; {text}" for text in self.cluster.unhandled()[:1])
            raise Broken(f"not within {within_s:g} s: {what}{why}{unhandled}")

    def _as_client(self, name: str, main: Callable[[RemotingClient], Any]) -> None:
        failures: list[BaseException] = []

        async def whole() -> None:
            remote = RemotingClient(config=RemotingClientConfig(codec="json"))
            try:
                await main(remote)
            except Exception as failed:
                failures.append(failed)
            await remote.close()

        host = self.cluster.start_client(name, whole)
        self.world.run(lambda: not host.is_up)
        self.cluster.clients.remove(host)
        if failures:
            raise failures[0]


def simulate(seed: int, kinds: list[str] | None = None, engine: str | None = None) -> Outcome:
    """Run one seed; `kinds` of faults and the engine for sends, where they are not drawn."""
    gc.disable()
    outcome = Outcome(seed)
    simulation = Simulation(seed, kinds, engine)
    world = simulation.world
    with edges.use(simulation.cluster.threads, simulation.cluster.network):
        try:
            simulation.run()
        except Stuck as stuck:
            outcome.failure = f"Stuck: {stuck}"
        except Exception as failed:
            outcome.failure = f"{type(failed).__name__}: {failed}"
        if outcome.failure is not None:
            world.note("-", outcome.failure)
        simulation.cluster.is_closing = True
        simulation.cluster.close()
        outcome.simulated_s, outcome.digest = world.now, world.digest
        outcome.messages = len(simulation.ledger.sent)
        outcome.acknowledged = simulation.ledger.acknowledged
        outcome.faults = simulation.faults.made
        outcome.history = world.history
        for loop in simulation.cluster.loops:
            loop.tasks.clear()
        del simulation, world
        gc.collect()
    return outcome
