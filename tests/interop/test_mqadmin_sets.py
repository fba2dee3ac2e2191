"""What mqadmin shows of a set of ours with a slave."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

import official
from aerobee import Client
from system.brokersets import a_set

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(120)]


async def test_it_shows_both_and_how_far_the_slave_is(tmp_path: Path) -> None:
    async with a_set(tmp_path) as brokers, Client(brokers.nameserver) as mq:
        await mq.admin.create_topic("T", queues=1)
        async with mq.producer() as producer:
            await producer.send("T", b"x")  # answered when the slave has it
        master, slave = brokers.master, brokers.slave
        end = master.parts.store.end_offset

        async def told(*words: str) -> str:
            return await asyncio.to_thread(official.mqadmin, brokers.nameserver, *words)

        cluster, at_master, at_slave, status = await asyncio.gather(
            told("clusterList"),
            told("haStatus", "-b", master.address),
            told("haStatus", "-b", slave.address),
            told("brokerStatus", "-b", slave.address),
        )
    for number, broker in enumerate((master, slave)):
        assert re.search(rf"test-a +{number} +{broker.address} ", cluster), cluster
    assert re.search(
        rf"#MasterAddr\t{master.address}\n#MasterCommitLogMaxOffset\t{end}\n#SlaveNum\t1\n", at_master
    )
    assert "#InSyncSlaveNum\t1\n" in at_master
    assert re.search(rf"127\.0\.0\.1:\d+ +{end} +0 .* OK +{end}", at_master), at_master
    assert f"#MasterAddr\t{master.parts.identity.ha_addr}\n#CommitLogMaxOffset\t{end}\n" in at_slave
    assert re.search(r"brokerActive +: false", status), status
