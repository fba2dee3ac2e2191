"""Another master for a set of ours, by the command line: processes, a nameserver, and clients that send and read on."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aerobee import Client, Producer
from aerobee_proto.bodies import ClusterInfo
from console.support import Result, program
from ours import start_broker, start_nameserver
from plain_remoting import call, wait_until
from programs import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

NAME = "broker-a"
CLUSTER_INFO, HA_STATUS = 106, 907


@dataclass
class Pair:
    nameserver: str
    first: Server
    second: Server


def registered(nameserver: str) -> dict[int, str]:
    """Address by number, of the members of the set."""
    table = ClusterInfo.from_stranger(call(nameserver, CLUSTER_INFO)[1]).broker_addr_table
    return dict(table[NAME].broker_addrs) if NAME in table else {}


def is_linked(addr: str) -> bool:
    return bool(call(addr, HA_STATUS)[0]["extFields"].get("linked") == "true")


@contextmanager
def started(folder: Path, **settings: object) -> Iterator[Pair]:
    """A master and a slave that follows it; `settings` are both brokers'."""
    with contextlib.ExitStack() as stack:
        nameserver = stack.enter_context(start_nameserver()).address
        config = {"slaveReadEnable": "true", "brokerIP2": "127.0.0.1", **settings}
        first = stack.enter_context(start_broker(folder / "1", nameserver, name=NAME, config=config))
        of_slave = config | {"brokerRole": "SLAVE", "brokerId": 1}
        second = stack.enter_context(start_broker(folder / "2", nameserver, name=NAME, config=of_slave))
        wait_until(lambda: is_linked(second.address), "the slave follows")
        yield Pair(nameserver, first, second)


def wait_changed(pair: Pair, master: Server, slave: Server) -> None:
    """Until they are registered with these roles, and the slave follows."""
    members = {0: master.address, 1: slave.address}
    wait_until(
        lambda: registered(pair.nameserver) == members and is_linked(slave.address),
        f"{master.address} is the master of {slave.address}",
    )


def cluster(pair: Pair, *words: str) -> Result:
    return program("cluster", *words, "-n", pair.nameserver)


class Sending:
    """Sends one message after the other, and remembers each."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.bodies: list[bytes] = []
        self.failed: list[Exception] = []
        self._end, self._reached = 0, asyncio.Event()

    async def run(self) -> None:
        number = 0
        while True:
            body = b"%06d" % number
            try:
                await self._producer.send("T", body)
            except Exception as failed:
                self.failed.append(failed)
            else:
                self.bodies.append(body)
                if len(self.bodies) >= self._end:
                    self._reached.set()
            number += 1

    async def more(self, count: int) -> None:
        """Until so many more have been sent."""
        self._end, self._reached = len(self.bodies) + count, asyncio.Event()
        async with asyncio.timeout(30):
            await self._reached.wait()


@asynccontextmanager
async def sending(nameserver: str) -> AsyncIterator[Sending]:
    async with Client(nameserver) as mq, mq.producer("test-producers") as producer:
        one = Sending(producer)
        task = asyncio.create_task(one.run())
        try:
            await one.more(50)
            yield one
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def stored(nameserver: str) -> list[bytes]:
    async with Client(nameserver) as mq:
        return sorted([message.body async for message in mq.reader("T", end="now")])


@pytest.mark.parametrize(
    "of_both", [{}, {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2}], ids=["alone", "two copies"]
)
async def test_master_and_slave_change_places_while_clients_send(
    tmp_path: Path, of_both: dict[str, Any]
) -> None:
    """No send fails, nothing is lost or twice, and back again."""
    with started(tmp_path, **of_both) as pair:
        async with sending(pair.nameserver) as one:
            for master, slave in ((pair.second, pair.first), (pair.first, pair.second)):
                moved = await asyncio.to_thread(cluster, pair, "switch", NAME, "-o", "json")
                assert moved.code == 0, moved.err
                said = moved.json
                assert said["master_addr"] == master.address
                await asyncio.to_thread(wait_changed, pair, master, slave)
                await one.more(50)
        assert one.failed == []
        found = await stored(pair.nameserver)
        assert len(found) == len(set(found)), "nothing is there twice"
        assert set(one.bodies) <= set(found), "nothing is lost"


async def test_a_slave_is_promoted_when_its_master_is_gone_and_the_old_one_follows(tmp_path: Path) -> None:
    """Refused while the master is there; its file keeps the role of a broker that has one."""
    with started(tmp_path) as pair:
        async with sending(pair.nameserver) as one:
            refused = await asyncio.to_thread(cluster, pair, "promote", pair.second.address)
            assert refused.code == 4
            assert "is registered as the master" in refused.err
            assert "aerobee cluster switch broker-a" in refused.err
            await asyncio.to_thread(pair.first.stop)  # in order: the slave has everything
            promoted = await asyncio.to_thread(cluster, pair, "promote", pair.second.address)
            assert promoted.code == 0, promoted.err
            assert "the old master must not come back as one" in promoted.out
            assert "no settings file" in promoted.out
            await one.more(50)
        assert one.failed == []
        port = int(pair.first.address.rpartition(":")[2])
        again = start_broker(tmp_path / "1", pair.nameserver, name=NAME, port=port)
        with again:
            # Two masters now: the one that registered last is the one that is known.
            refused = await asyncio.to_thread(cluster, pair, "follow", again.address)
            assert refused.code == 4
            assert "no other master of broker-a is registered" in refused.err
            back = await asyncio.to_thread(
                cluster, pair, "follow", again.address, "--master", pair.second.address
            )
            assert back.code == 0, back.err
            await asyncio.to_thread(wait_changed, pair, pair.second, again)
            shown = await asyncio.to_thread(cluster, pair, "replicas", NAME, "-o", "json")
            rows = [(row["addr"], row["role"], row["lag_bytes"]) for row in shown.json["replicas"]]
            assert rows == [(pair.second.address, "async master", None), (again.address, "slave", 0)]
