"""Members that join and leave under load, two brokers: nothing is lost, and orderly groups keep the order."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from aerobee import Client, GroupMessage, RetryLater
from client_scenarios import PATIENCE_S, fresh, until
from system.test_client import cluster

LANES, ROUNDS = 16, 150


class Watcher:
    """What the members have seen, all together."""

    def __init__(self, rng: random.Random) -> None:
        self.seen: Counter[str] = Counter()
        self.gaps: list[str] = []
        self._last: dict[str, int] = {}
        self._rng = rng

    async def __call__(self, message: GroupMessage[bytes]) -> None:
        if not message.reconsume_times and self._rng.random() < 0.01:
            raise RetryLater(1)
        lane, number = message.text().split(":")
        await asyncio.sleep(0)
        if int(number) > self._last.get(lane, -1) + 1:
            self.gaps.append(message.text())
        self._last[lane] = max(self._last.get(lane, -1), int(number))
        self.seen[message.text()] += 1


async def join_and_leave(
    nameservers: tuple[str, ...],
    topic: str,
    watcher: Watcher,
    orderly: bool,
    rng: random.Random,
    end: asyncio.Event,
) -> int:
    """One member after the other, until the end; how many there were."""
    members = 0
    while not end.is_set():
        members += 1
        async with (
            Client(nameservers) as mq,
            mq.consumer("restless", topic, orderly=orderly, suspend_s=0.01) as consumer,
        ):
            working = asyncio.create_task(consumer.run(watcher.__call__, concurrency=8))
            try:
                async with asyncio.timeout(0.2 + rng.random() / 2):
                    await end.wait()
            except TimeoutError:
                pass
            await consumer.close()
            await working
    return members


@pytest.mark.slow
@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_members_come_and_go_and_nothing_is_lost(tmp_path: Path, orderly: bool) -> None:
    rng = random.Random(17)
    watcher, end = Watcher(rng), asyncio.Event()
    async with cluster(tmp_path, 2) as running:
        mq = running.mq
        topic = await fresh(mq, "Restless")
        members = [
            asyncio.create_task(
                join_and_leave(mq.config.nameservers, topic, watcher, orderly, random.Random(seed), end)
            )
            for seed in range(4)
        ]
        async with mq.producer() as producer:
            for number in range(ROUNDS):
                await asyncio.gather(
                    *(
                        producer.send(topic, f"{lane}:{number}", sharding_key=str(lane))
                        for lane in range(LANES)
                    )
                )
                await asyncio.sleep(0.01)
        await until(lambda: len(watcher.seen) == LANES * ROUNDS)
        # Who was seen with a message may have lost its queue before it could say so; then the next one has it again.
        async with asyncio.timeout(PATIENCE_S):
            while (await mq.admin.group_progress("restless")).lag:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        end.set()
        joined = sum(await asyncio.gather(*members))
        assert (await mq.admin.group_progress("restless")).lag == 0
    assert joined > 8
    if orderly:
        assert watcher.gaps == []
        assert sum(watcher.seen.values()) == LANES * ROUNDS, (
            "each once: queues are handed over when they are done"
        )
