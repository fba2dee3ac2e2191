"""What readers at slaves need: a machine with little memory, and a topic that does not fit into it.

Touches  nothing by itself.
"""

import asyncio
from dataclasses import replace

import pytest

from aerobee import Client
from aerobee_broker import broker
from aerobee_broker.replication import following, metadata
from aerobee_broker.settings.config import BrokerConfig, to_store_config
from aerobee_store.terms.config import StoreConfig
from broker.replication.pairs import caught_up, eventually
from system.brokersets import BrokerSet

__all__ = ["COUNT", "fill", "small_memory"]

COUNT = 300  # messages
BODY = b"x" * 4096


def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers take the machine to have a mebibyte, and slaves follow without pauses."""

    def with_a_mebibyte(config: BrokerConfig) -> StoreConfig:
        return replace(to_store_config(config), memory_size=1 << 20)

    monkeypatch.setattr(broker, "to_store_config", with_a_mebibyte)
    monkeypatch.setattr(metadata, "SYNC_S", 0.05)
    monkeypatch.setattr(following, "RETRY_FIRST_S", 0.01)


async def fill(brokers: BrokerSet, mq: Client) -> None:
    """COUNT messages of queue 0 of T at both."""
    await mq.admin.create_topic("T", queues=1)
    async with mq.producer() as producer:
        await asyncio.gather(
            *(producer.send("T", BODY, keys=f"k{number}", tags="A") for number in range(COUNT))
        )
    await caught_up(brokers.master, brokers.slave)
    await eventually(lambda: "T" in brokers.slave.parts.topics)
    await mq.queues("T")
