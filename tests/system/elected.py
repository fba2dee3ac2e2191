"""A set of three brokers that elects its master, with its nameserver and etcd, all of them processes; and senders whose
ledger says what the set owes.

Touches  store folders with small files, processes, local TCP ports.

Ledger  Every message has a number, and is sent until one send of it was answered with success. What was answered has to
        be found at its place ever after, and no place is given out twice.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

from aerobee import Client, Message, Producer
from aerobee_proto.bodies import ClusterInfo
from etcd import EtcdServer
from ours import start_broker, start_nameserver
from plain_remoting import call, wait_until
from programs import Program, Server, free_port
from system.networks import Network

__all__ = [
    "CLUSTER",
    "NAME",
    "TOPIC",
    "Pulse",
    "Senders",
    "Trio",
    "go_on",
    "sending",
    "started",
    "stop_process",
    "stored",
]

NAME: Final = "orders"
CLUSTER: Final = "DefaultCluster"
LOCAL: Final = "127.0.0.1"
TOPIC: Final = "T"
RUNTIME_INFO, CLUSTER_INFO, HA_STATUS = 28, 106, 907
SENDERS: Final = 8
WAIT_S: Final = 60.0
PAUSE_S: Final = 0.001


class Trio:
    """The set. Members are 1, 2, 3."""

    def __init__(
        self,
        folder: Path,
        stack: ExitStack,
        network: Network | None = None,
        *,
        nameservers: int = 1,
        **settings: object,
    ) -> None:
        """In a `network` each member is in its own namespace, and etcd and the nameservers are at the hub.

        `settings` are those of the members, by RocketMQ's names, instead of those here."""
        self._settings = settings
        self._stack = stack
        self._folder = folder
        self.network = network
        hub, etcd = (network.hub, network.etcd) if network is not None else (LOCAL, LOCAL)
        self.etcd = EtcdServer(folder / "etcd", host=etcd)
        stack.callback(lambda: self.etcd.kill())
        self.nameservers = [stack.enter_context(start_nameserver(host=hub)) for _ in range(nameservers)]
        self.nameserver = self.nameservers[0].address  # that is asked here
        self.nameserver_addrs = ";".join(one.address for one in self.nameservers)
        self._ports = {member: free_port(-2, 1) for member in (1, 2, 3)}
        self.members: dict[int, Server] = {}
        for member in self._ports:
            self.start(member)

    def start(self, member: int) -> None:
        """Start a member, at its own port with its own store."""
        config = {
            "brokerId": member,
            "brokerIP1": self._host(member),
            "brokerIP2": self._host(member),
            "totalReplicas": 3,
            "minInSyncReplicas": 2,
            "slaveReadEnable": "true",
            "flushDiskType": "ASYNC_FLUSH",
            "mappedFileSizeCommitLog": 4 << 20,
            "electionEndpoints": self.etcd.address,
            "electionLeaseMillis": 3000,
            **self._settings,
        }
        self.members[member] = server = start_broker(
            self._folder / str(member),
            ";".join(one.address for one in self.nameservers if one.running),
            name=NAME,
            port=self._ports[member],
            config=config,
            netns=self.network.space(member) if self.network is not None else "",
        )
        self._stack.callback(lambda: server.running and server.kill())

    def address(self, member: int) -> str:
        return f"{self._host(member)}:{self._ports[member]}"

    def _host(self, member: int) -> str:
        return LOCAL if self.network is None else self.network.address(member)

    @property
    def registered(self) -> dict[int, str]:
        """Address by number, as clients learn them."""
        table = ClusterInfo.from_stranger(call(self.nameserver, CLUSTER_INFO)[1]).broker_addr_table
        return dict(table[NAME].broker_addrs) if NAME in table else {}

    @property
    def master(self) -> int:
        """The member that clients take for the master; 0: none."""
        address = self.registered.get(0)
        return next((member for member in self._ports if self.address(member) == address), 0)

    def in_sync(self, member: int) -> int:
        """How many slaves of this master are in sync, by what it says; -1: it says nothing, or is none."""
        try:
            status = json.loads(call(self.address(member), HA_STATUS)[1])
        except (OSError, ValueError):
            return -1
        return int(status["inSyncSlaveNums"]) if status.get("master") else -1

    def log_end(self, member: int) -> int:
        """Physical offset at which the log of a member ends."""
        return int(json.loads(call(self.address(member), RUNTIME_INFO)[1])["table"]["commitLogMaxOffset"])

    def wait_master(self, *others: int, slaves: int = 0) -> int:
        """Return the master, once there is one that is none of these and has so many slaves in sync."""

        def there() -> bool:
            master = self.master
            return master not in (0, *others) and self.in_sync(master) >= slaves

        wait_until(there, f"a master beside {others} with {slaves} slaves in sync", WAIT_S)
        return self.master

    def wait_in_sync(self, member: int, slaves: int) -> None:
        """Return when this master has so many slaves in sync, no more and no fewer."""
        wait_until(lambda: self.in_sync(member) == slaves, f"{slaves} slaves in sync", WAIT_S)

    def epochs(self, member: int) -> list[int]:
        """Of the masterships of this member, as it said when it took the seat."""
        lines = [line for line in self.members[member].output.splitlines() if "election.master_known" in line]
        return [fact["epoch"] for fact in map(json.loads, lines) if fact["is_own"]]


@contextmanager
def started(
    folder: Path, network: Network | None = None, *, nameservers: int = 1, **settings: object
) -> Iterator[Trio]:
    with ExitStack() as stack:
        yield Trio(folder, stack, network, nameservers=nameservers, **settings)


class Pulse:
    """How long nothing was answered with success, at the longest."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget what was."""
        self.count, self._last, self._longest_s = 0, time.monotonic(), 0.0

    def beat(self) -> None:
        """A send was answered."""
        now = time.monotonic()
        self.count, self._last, self._longest_s = self.count + 1, now, max(self._longest_s, now - self._last)

    @property
    def silent_s(self) -> float:
        return max(self._longest_s, time.monotonic() - self._last)


class Senders:
    """Some that send one message after the other."""

    def __init__(self, producer: Producer, pace_s: float = 0.0) -> None:
        """`pace_s` is the pause of each between two messages."""
        self.pulse = Pulse()
        self._pace_s = pace_s
        self._producer = producer
        self._numbers = iter(range(1 << 30))
        # What was answered: by queue and queue offset.
        self.ledger: dict[tuple[int, int], bytes] = {}
        self.twice: list[tuple[int, int]] = []
        self.failed: list[Exception] = []
        self.answered_at = 0.0  # the last time
        self._end, self._reached = 0, asyncio.Event()

    async def run(self) -> None:
        while True:
            body = b"%08d" % next(self._numbers)
            while not await self._send(body):  # noqa: ASYNC110  # a pause between tries
                await asyncio.sleep(PAUSE_S)
            if self._pace_s:
                await asyncio.sleep(self._pace_s)

    async def _send(self, body: bytes) -> bool:
        try:
            result = await self._producer.send(TOPIC, body)
        except Exception as failed:  # whatever it is: it is sent again
            self.failed.append(failed)
            return False
        place = (result.queue.queue_id, result.queue_offset)
        if place in self.ledger:
            self.twice.append(place)
        self.ledger[place] = body
        self.answered_at = time.monotonic()
        self.pulse.beat()
        if len(self.ledger) >= self._end:
            self._reached.set()
        return True

    async def more(self, count: int) -> None:
        """Until so many more were answered with success."""
        self._end, self._reached = len(self.ledger) + count, asyncio.Event()
        async with asyncio.timeout(WAIT_S):
            await self._reached.wait()


@asynccontextmanager
async def sending(trio: Trio) -> AsyncIterator[Senders]:
    """Senders, until the block ends; then everything that they were told is looked for."""
    async with Client(trio.nameserver_addrs) as mq, mq.producer("test-producers") as producer:
        senders = Senders(producer)
        tasks = [asyncio.create_task(senders.run()) for _ in range(SENDERS)]
        try:
            await senders.more(100)
            yield senders
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    assert senders.twice == [], "no place is given out twice"
    found = await stored(trio, TOPIC)
    lost = {place: body for place, body in senders.ledger.items() if found.get(place) != body}
    assert lost == {}, f"{len(lost)} of {len(senders.ledger)} are not where they were said to be"


async def stored(
    trio: Trio, topic: str, of: Callable[[Message], bytes] = lambda message: message.body
) -> dict[tuple[int, int], bytes]:
    """Everything of a topic that the set has, by queue and queue offset; `of` is what is looked at of a message."""
    async with Client(trio.nameserver) as mq:
        return {
            (message.queue_id, message.queue_offset): of(message)
            async for message in mq.reader(topic, end="now")
        }


def stop_process(program: Program) -> None:
    """It stands still, and knows nothing of it."""
    program.process.send_signal(signal.SIGSTOP)


def go_on(program: Program) -> None:
    program.process.send_signal(signal.SIGCONT)
