"""Our client while the master of its set goes away and a slave takes its place, at another address.

Nameserver and brokers are in this process. The master hangs up on everybody in the middle of what it does; what it has
acknowledged is at its slave, as it waits for that (`inSyncReplicas=2`).
"""

import asyncio
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from aerobee import Client, GroupMessage, Message
from aerobee_broker.replication import following, metadata
from broker.replication.pairs import caught_up, eventually
from system.brokersets import a_set


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "SYNC_S", 0.05)
    monkeypatch.setattr(following, "RETRY_FIRST_S", 0.01)


async def bodies(mq: Client, topic: str) -> list[str]:
    return [message.text() async for message in mq.reader(topic, end="now")]


class Sends:
    """One message after the other, by several at once, until `stop`; `answered` are those that are acknowledged."""

    def __init__(self, mq: Client, topic: str, keys: int) -> None:
        self.answered: list[str] = []
        self._stopping = False
        self._tasks = [asyncio.create_task(self._send(mq, topic, key)) for key in range(keys)]

    async def _send(self, mq: Client, topic: str, key: int) -> None:
        async with mq.producer(send_timeout_s=30) as producer:
            number = 0
            while not self._stopping:
                text = f"{key}-{number:05d}"
                await producer.send(topic, text, sharding_key=f"k{key}" if key % 2 else None)
                self.answered.append(text)
                number += 1

    async def more(self, count: int) -> None:
        """Return when so many more than now are acknowledged; raises what a send raised."""
        wanted = len(self.answered) + count
        await eventually(lambda: len(self.answered) >= wanted or any(task.done() for task in self._tasks))

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)


async def test_sends_go_on_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    async with a_set(tmp_path) as brokers, Client(brokers.nameserver) as mq:
        await mq.admin.create_topic("T", queues=4)
        await eventually(lambda: "T" in brokers.slave.parts.topics)
        sends = Sends(mq, "T", keys=8)
        await sends.more(200)
        await brokers.lose_master()
        promoted = await brokers.promote()
        await sends.more(200)
        await sends.stop()
        stored = Counter(await bodies(mq, "T"))
        assert set(sends.answered) <= set(stored)
        places = [
            (record.record.queue_id, record.record.queue_offset) async for record in mq.reader("T", end="now")
        ]
        assert len(places) == len(set(places))
        assert promoted.parts.store.reading.max_offset("T", 0) > 0


@pytest.mark.parametrize("orderly", [False, True])
async def test_consumers_go_on_and_keep_the_order_of_a_queue(tmp_path: Path, orderly: bool) -> None:
    async with a_set(tmp_path) as brokers, Client(brokers.nameserver) as mq:
        await mq.admin.create_topic("T", queues=2)
        seen: dict[str, list[str]] = defaultdict(list)

        async def handle(message: GroupMessage[bytes]) -> None:
            seen[message.text().partition("-")[0]].append(message.text())

        async with mq.consumer("readers", "T", orderly=orderly) as consumer:
            working = asyncio.create_task(consumer.run(handle))
            sends = Sends(mq, "T", keys=3)
            await sends.more(60)
            await eventually(lambda: sum(map(len, seen.values())) >= 60)
            await caught_up(brokers.master, brokers.slave)
            await brokers.lose_master()
            await brokers.promote()
            await sends.more(60)
            await sends.stop()
            await eventually(
                lambda: {text for texts in seen.values() for text in texts} >= set(sends.answered)
            )
            await consumer.close()
            await working
        bound = list(dict.fromkeys(seen["1"]))  # of one key, so of one queue
        assert not orderly or bound == sorted(bound)


async def test_transactions_that_are_open_then_are_ended_or_asked_about(tmp_path: Path) -> None:
    asked: list[str] = []

    def check(message: Message) -> bool:
        asked.append(message.text())
        return True

    async with a_set(tmp_path) as brokers, Client(brokers.nameserver) as mq:
        await mq.admin.create_topic("T", queues=1)
        async with mq.producer(group="shop", check=check, send_timeout_s=30) as producer:
            async with producer.transaction("T", "ended after it"):
                await eventually(lambda: "T" in brokers.slave.parts.topics)
                await caught_up(brokers.master, brokers.slave)
                await brokers.lose_master()
                promoted = await brokers.promote()
            assert await bodies(mq, "T") == ["ended after it"]
            async with producer.transaction("T", "begun after it"):
                pass
            assert await bodies(mq, "T") == ["ended after it", "begun after it"]
            await eventually(lambda: promoted.parts.producers.next_reader("shop") is not None)
