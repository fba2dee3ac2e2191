"""An official push consumer that is far behind: our master sends it to our slave, which sends it back at the end.

The brokers are in this process, with a mebibyte of memory: who is more than 40 % of that behind reads at the slave.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import official
from aerobee import Client
from broker.replication.pairs import eventually
from system.brokersets import a_set
from system.slave_readers import COUNT, fill, small_memory

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(120)]


async def test_it_reads_at_the_slave_and_waits_at_the_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_memory(monkeypatch)
    async with a_set(tmp_path) as brokers, Client(brokers.nameserver) as mq, mq.producer() as producer:
        await fill(brokers, mq)
        at_master, at_slave = (one.parts.offsets.pulled for one in (brokers.master, brokers.slave))
        judging = asyncio.create_task(
            asyncio.to_thread(
                official.judge,
                "push",
                namesrv=brokers.nameserver,
                topic="T",
                group="judges",
                expect=COUNT + 1,
                seconds=60,
            )
        )
        await eventually(lambda: at_master("judges", "T", 0) == COUNT or judging.done(), within_s=60)
        assert at_slave("judges", "T", 0) in range(200, COUNT)
        await producer.send("T", b"held for it", keys="last", tags="A")
        report = await judging
        assert (report["complete"], report["distinct"]) == (True, COUNT + 1)


async def test_it_reads_at_the_slave_alone_when_the_master_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that nobody knew before, too: its offsets reach the next master, which is the old one here."""
    small_memory(monkeypatch)
    async with a_set(tmp_path) as brokers, Client(brokers.nameserver) as mq:
        await fill(brokers, mq)
        await brokers.lose_master()
        report = await asyncio.to_thread(
            official.judge,
            "push",
            namesrv=brokers.nameserver,
            topic="T",
            group="late",
            expect=COUNT,
            seconds=60,
        )
        assert (report["complete"], report["distinct"]) == (True, COUNT)
        await eventually(lambda: brokers.slave.parts.offsets.get("late", "T", 0) == COUNT)
        await brokers.start_master()
        await eventually(lambda: brokers.master.parts.offsets.get("late", "T", 0) == COUNT, within_s=60)
