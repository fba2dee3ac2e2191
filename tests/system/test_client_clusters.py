"""Groups with more than one broker, and with one that goes away and comes back."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from aerobee import Client, GroupMessage
from aerobee_nameserver.config import NameserverConfig
from aerobee_nameserver.server import NameServer
from client_scenarios import SCENARIOS, fresh, own, until
from programs import free_port
from system.running import running_broker
from system.test_client import cluster


@pytest.mark.parametrize(
    "name",
    [
        "what_fails_comes_again_and_what_is_hopeless_becomes_a_dead_letter",
        "a_request_gets_its_reply",
        "transactions_are_seen_when_they_are_committed",
        "filters_choose_by_tag_and_by_expression",
    ],
)
async def test_with_two_brokers(tmp_path: Path, name: str) -> None:
    settings = {
        "enable_property_filter": True,
        "transaction_time_out": 1000,
        "transaction_check_interval": 500,
    }
    async with cluster(tmp_path / "store", 2, **settings) as running:
        await SCENARIOS[name](running.mq, tmp_path)


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_a_group_goes_on_when_its_broker_comes_back(tmp_path: Path, orderly: bool) -> None:
    seen: Counter[bytes] = Counter()

    async def handler(message: GroupMessage[bytes]) -> None:
        seen[message.body] += 1

    nameserver = NameServer(NameserverConfig(listen_port=0, bind_address="127.0.0.1"), keep_kv=False)
    addr = f"127.0.0.1:{await nameserver.start()}"
    settings: dict[str, Any] = {"namesrv_addr": addr, "listen_port": free_port(-2, 1)}
    try:
        async with Client(addr) as mq:
            async with running_broker(tmp_path, **settings) as broker:
                while not await mq.admin.brokers():
                    pass  # each question is a round trip
                topic = await fresh(mq, "Restarted")
                consumer = mq.consumer("restarted", topic, orderly=orderly, retry_max_s=0.1, lock_s=0.2)
                await consumer.__aenter__()
                working = asyncio.create_task(consumer.run(handler))
                await send(mq, topic, 0, 50)
                await until(lambda: len(seen) == 50)
                await consumer.commit()
            assert broker is not None
            async with running_broker(tmp_path, **settings):
                await send(mq, topic, 50, 100)
                await until(lambda: len(seen) == 100)
                await until(lambda: len(own(consumer, topic)) == 4)
                await consumer.close()
                await working
    finally:
        await nameserver.close()
    assert set(seen.values()) == {1}, "everything was committed before the broker went"


async def send(mq: Client, topic: str, first: int, last: int) -> None:
    async with mq.producer(send_timeout_s=20, attempts_max=100) as producer:
        await asyncio.gather(*(producer.send(topic, b"%d" % number) for number in range(first, last)))
