"""One broker under faults: which hosts and settings there are, what goes wrong, and what has to hold in the end.

Other scenarios are this one with other brokers, faults and checks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from aerobee_broker.native.engine import find_engine
from aerobee_proto.codes import RequestCode
from aerobee_remoting.ends.client import RemotingClient, RemotingClientConfig
from plain_remoting import topic_fields
from simulation.cluster import BrokerHost, Cluster, Host, Target
from simulation.faults import Faults
from simulation.ledger import Broken, Ledger, Queue
from simulation.work import (
    BOUND,
    DELAYED,
    GROUPED,
    MEMBERS,
    PLAIN,
    POPPED,
    POPPERS,
    QUEUES,
    TRANSACTED,
    Work,
    ask_until_answered,
    read_queue,
)
from simulation.world import World

__all__ = ["ENGINES", "HEALED_WITHIN_S", "SIZES", "Simulation", "engine_of", "settings_of", "size_of"]

ENGINES: Final = ("python", "native")  # for sends

COMES_BACK_S: Final = 8.0  # what was popped and not acknowledged, several times over
FOLLOWED: Final = (PLAIN, BOUND, DELAYED, TRANSACTED)  # by a reader who sees all that is to come
STEP_S: Final = 0.01  # between two looks whether a scenario is where it waits to be
HEALED_WITHIN_S: Final = 60.0  # from the end of the last fault until everything works
BRIEF_SHARE: Final = 0.95  # of the seeds
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


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is of a scenario. What it draws is drawn from these."""

    lasts_s: tuple[float, ...]  # the time in which faults begin
    faults: tuple[int, ...]
    fault_share: float  # of the time that a fault lasts at most
    pauses_s: tuple[float, ...]  # between two sends of a client
    clients: tuple[int, ...]  # of a kind
    restarts_s: tuple[float, ...]  # before a program that has ended is started again
    poll_s: float  # of readers at a broker that holds no pulls
    settles: bool  # things go on for some seconds when nothing is missing: what comes too late would be seen


# Most of what goes wrong does so in a moment: for the time of one whole seed there are several brief ones.
SIZES: Final = {
    "whole": Size(
        (2.0, 4.0, 8.0), (1, 2, 4, 7), 1.0, (0.08, 0.2, 0.5), (1, 2), (0.05, 0.3, 1.0, 3.0), 0.2, settles=True
    ),
    "brief": Size((0.3, 0.8, 1.5), (1, 2, 3), 0.3, (0.08, 0.15), (1,), (0.05, 0.3, 1.0), 0.5, settles=False),
}


def size_of(world: World) -> str:
    """The name of a seed's size, drawn."""
    return "brief" if world.chance("size").random() < BRIEF_SHARE else "whole"


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
        "flush_interval_consume_queue": chance.choice((200, 1000)),
        "message_delay_level": "1s 2s",
        "transaction_check_interval": 1000,
        "transaction_time_out": 1500,
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

    target: Target  # whom plain clients ask
    faults: Faults
    # Kinds of faults that make a whole together; some of the seeds have no others.
    themes: Mapping[str, Sequence[str]] = {}
    # Kinds that come once, beside those, in so much of the seeds.
    beside: Mapping[str, float] = {}

    def __init__(self, seed: int, kinds: list[str] | None, engine: str | None, size: str | None) -> None:
        """`kinds` of faults, the engine for sends and the size, where they are not drawn."""
        self._kinds = kinds
        self.cluster = Cluster(seed)
        self.world = self.cluster.world
        self._engine = engine or engine_of(self.world)
        self.chance = self.world.chance("scenario")
        self.size = SIZES[size or size_of(self.world)]
        self.ledger = Ledger(self.world)
        self.work = Work(self.cluster, self.ledger)

    # --- what a scenario is made of ---------------------------------------------------------------------------

    def make_brokers(self, settings: dict[str, Any]) -> None:
        """Set `target` and `faults`, and start what is to be there."""
        self.faults = Faults(self.cluster, self.ledger, self.world.chance("faults"))
        self.target = broker = self.cluster.add_broker(**settings)
        self.faults.supervise(broker, broker.start)

    @property
    def master(self) -> BrokerHost:
        """The broker that takes messages in the end."""
        return self.cluster.brokers[0]

    def plan_faults(self) -> None:
        """Draw what goes wrong, once everything works."""
        chance = self.chance
        lasts_s = chance.choice(self.size.lasts_s)
        table = self.faults.table
        theme = chance.choice([None, *self.themes])
        often = sorted({*table} - {*self.beside})
        kinds = chance.sample(often, chance.choice((1, 2, 4, len(often))))
        if self._kinds is not None or theme is not None:
            wanted = self._kinds if self._kinds is not None else self.themes[theme or ""]
            kinds = [kind for kind in wanted if kind in table]
        if any(kind in SLOWING for kind in kinds):
            self.ledger.commits_kept_s = 30.0
        self.faults.plan(kinds, chance.choice(self.size.faults), self.world.now + lasts_s)
        self.faults_end = self.world.now + lasts_s
        rare = self.world.chance("faults beside")
        for kind, share in self.beside.items():
            if rare.random() < share and self._kinds is None:
                self.faults.plan([kind], 1, self.faults_end)

    def start_clients(self) -> None:
        """Those that go on until the end."""
        work, target, chance = self.work, self.target, self.chance
        work.pause_s, work.poll_s = chance.choice(self.size.pauses_s), self.size.poll_s
        for number in range(chance.choice(self.size.clients)):
            work.start_plain_sender(target, number)
        work.start_producer(0)
        work.start_plain_reader(target, topics=(PLAIN, BOUND) if self.size.settles else FOLLOWED)
        work.start_popper(target)
        for number in range(chance.choice(self.size.clients)):
            work.start_member(number)

    def check_brokers(self) -> None:
        """What has to hold when everything has been read. Nobody sends any more."""

    # --- the run ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Broken, AssertionError or another error when something is not as it has to be."""
        chance, cluster, world = self.chance, self.cluster, self.world
        starts: list[Host] = []
        for _ in range(chance.choice((1, 1, 2))):
            starts.append(cluster.add_nameserver())
        world.note("-", f"sends are taken by the {self._engine} engine")
        self.make_brokers({**settings_of(chance), "send_engine": self._engine})
        self.faults.share, self.faults.restarts_s = self.size.fault_share, self.size.restarts_s
        for host in starts:
            self.faults.supervise(host, lambda host=host: cluster.start_nameserver(host))  # type: ignore[misc]
        self.until(self.serves, 10.0, "the first start")
        self.as_client("topics", self._make_topics)
        self.start_clients()
        self.plan_faults()
        self.let_happen(lambda: world.now >= self.faults_end and not self.faults.under_way)
        world.note("-", "no faults any more")
        self._heal()

    def serves(self) -> bool:
        """Whether everything is there that takes messages."""
        return all(host.is_serving for host in self.cluster.brokers)

    async def _make_topics(self, remote: RemotingClient) -> None:
        for topic, queues in QUEUES.items():
            fields = topic_fields(topic, queues)
            await ask_until_answered(
                remote, self.target.broker_addr, RequestCode.UPDATE_AND_CREATE_TOPIC, fields
            )

    # --- the end ----------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """Everything works again within a time, and then nothing is missing."""
        began = self.world.now
        self.until(self.serves, HEALED_WITHIN_S, "all brokers serve again")
        acknowledged = self.ledger.acknowledged
        self.until(
            lambda: self.ledger.acknowledged > acknowledged + 3, HEALED_WITHIN_S, "messages are taken again"
        )
        self.work.is_sending = False
        self.until(lambda: not self.work.busy, 30.0, "every send has an outcome")
        # Delayed messages, transactions that are asked about, what was popped and not acknowledged.
        settled = self.world.now + (8.0 if "clock" in self.faults.made else 4.0)
        self.let_happen(lambda: not self.size.settles or self.world.now >= settled)
        self.let_happen(lambda: self.world.now >= settled + COMES_BACK_S or not self._missing())
        self.work.is_closing = True
        left = HEALED_WITHIN_S - (self.world.now - began)
        self.until(
            lambda: not any(host.is_up for host in self.cluster.clients), max(left, 30.0), "clients end"
        )
        logs, begins = self.read_all(self.master)
        self.ledger.check(logs, begins)
        self.ledger.check_handled(MEMBERS, GROUPED)
        self.ledger.check_handled(POPPERS, POPPED)
        self.check_brokers()
        for host in self.cluster.brokers:
            serving, loop = host.serving, host.loop
            assert serving is not None
            assert loop is not None
            loop.inside(serving.parts.store.check)
        unhandled = self.cluster.unhandled()
        if unhandled:
            raise Broken(f"nobody has handled {unhandled[0]}")
        self.cluster.is_closing = True
        for host in self.cluster.brokers:
            host.stop()
        self.until(lambda: not any(host.is_up for host in self.cluster.brokers), 20.0, "an orderly stop")

    def _missing(self) -> bool:
        """Whether a group has yet to get what was acknowledged: it may have been handed out and come back; and without
        a time to settle, what is to come later."""
        if not self.size.settles and self.ledger.to_come():
            return True
        return any(self.ledger.missing(*one) for one in ((MEMBERS, GROUPED), (POPPERS, POPPED)))

    def read_all(self, broker: BrokerHost) -> tuple[dict[Queue, list[tuple[int, bytes]]], dict[Queue, int]]:
        """What clients find in all queues of a broker, and where these begin."""
        logs: dict[Queue, list[tuple[int, bytes]]] = {}
        begins: dict[Queue, int] = {}

        serving = broker.serving
        assert serving is not None
        # A topic that was made anew by a send, as a new master had not heard of it, has more queues than before.
        known = [(topic, serving.parts.topics.get(topic), queues) for topic, queues in QUEUES.items()]
        counts = {
            topic: queues if made is None else max(queues, made.write_queue_nums)
            for topic, made, queues in known
        }

        async def read(remote: RemotingClient) -> None:
            for topic, count in counts.items():
                for queue_id in range(count):
                    key = (broker.broker_name, topic, queue_id)
                    begins[key], logs[key] = await read_queue(remote, broker.broker_addr, topic, queue_id)

        self.as_client("checker", read)
        return logs, begins

    # --- time -------------------------------------------------------------------------------------------------

    def let_happen(self, until: Callable[[], bool]) -> None:
        """Until that holds."""
        self.world.run_on(until, STEP_S)

    def until(self, holds: Callable[[], bool], within_s: float, what: str | Callable[[], str]) -> None:
        """Let things happen until it holds; Broken when it takes longer."""
        end = self.world.now + within_s
        self.world.run_on(lambda: holds() or self.world.now > end, STEP_S)
        if not holds():
            why = "".join(f": {host.refused}" for host in self.cluster.brokers if host.refused)
            unhandled = "".join(f"; {text}" for text in self.cluster.unhandled()[:1])
            said = what if isinstance(what, str) else what()
            raise Broken(f"not within {within_s:g} s: {said}{why}{unhandled}")

    def as_client(self, name: str, main: Callable[[RemotingClient], Any]) -> None:
        """Run a program of plain requests to its end."""
        failures: list[BaseException] = []

        async def whole() -> None:
            remote = RemotingClient(config=RemotingClientConfig(codec="json"))
            try:
                await main(remote)
            except Exception as failed:
                failures.append(failed)
            await remote.close()

        host = self.cluster.start_client(name, whole)
        self.world.run_on(lambda: not host.is_up, STEP_S)
        self.cluster.clients.remove(host)
        if failures:
            raise failures[0]
