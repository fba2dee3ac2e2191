"""Readers that are far behind are served by the slave, as long as they are; without the master all are.

The memory of the machine is a mebibyte here: who is more than 40 % of that behind is sent to the slave, which sends
whoever is less than 30 % behind back.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee import Client, GroupConsumer
from broker.replication.pairs import eventually
from system.brokersets import a_set
from system.slave_readers import COUNT, fill, small_memory


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_memory(monkeypatch)


async def taken(consumer: GroupConsumer[bytes], enough: Callable[[int], bool]) -> int:
    """Take and acknowledge messages until there are enough; how many."""
    count = 0
    async with asyncio.timeout(20):
        async for message in consumer:
            await message.ack()
            count += 1
            if enough(count):
                return count
    raise AssertionError(count)


SETTINGS: dict[str, Any] = {"commit_s": 0.05, "pull_count": 8, "queue_count_max": 8, "rebalance_s": 0.1}


async def test_who_is_far_behind_reads_at_the_slave_and_ends_at_the_master(tmp_path: Path) -> None:
    async with a_set(tmp_path) as brokers, Client(brokers.nameserver) as mq:
        await fill(brokers, mq)
        at_master, at_slave = (one.parts.offsets.pulled for one in (brokers.master, brokers.slave))
        async with mq.consumer("readers", "T", **SETTINGS) as consumer, mq.producer() as producer:
            await taken(consumer, lambda count: count == COUNT)
            assert at_slave("readers", "T", 0) in range(200, COUNT)  # 30 % of a mebibyte are 75 messages
            assert at_master("readers", "T", 0) == COUNT
            await producer.send("T", b"held for it")  # the pull that waits is the master's
            await taken(consumer, bool)
            assert at_master("readers", "T", 0) == COUNT + 1


async def test_without_the_master_a_group_goes_on_and_the_master_learns_of_it(tmp_path: Path) -> None:
    async with a_set(tmp_path) as brokers, Client(brokers.nameserver, route_poll_s=0.1) as mq:
        await fill(brokers, mq)
        async with mq.consumer("readers", "T", **SETTINGS) as consumer:
            await taken(consumer, lambda count: count == 20)
            await brokers.lose_master()
            rest = COUNT - 20
            await taken(consumer, lambda count: count == rest)
            await eventually(lambda: brokers.slave.parts.offsets.get("readers", "T", 0) == COUNT)
        await brokers.start_master()
        await brokers.together()
        await eventually(lambda: brokers.master.parts.offsets.get("readers", "T", 0) == COUNT)
        async with mq.consumer("readers", "T", **SETTINGS) as consumer, mq.producer() as producer:
            await producer.send("T", b"after it")
            assert await taken(consumer, bool) == 1
