"""Producers while their broker is restarted: nothing fails, nothing is lost, the order of a key holds.

The broker is a process of its own, stopped in order or killed, and started again on its port and store.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal

import pytest

from aerobee import Client, GroupMessage, Message, OutgoingMessage, Producer
from aerobee.sync import Client as SyncClient
from ours import start_broker, start_nameserver
from programs import Server, free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

How = Literal["stopped", "killed"]
SENDS_A_SECOND: Final = 1000
KEYS: Final = 20
SETTINGS: Final = {"transactionTimeOut": 60_000, "flushDiskType": "ASYNC_FLUSH"}


class Cluster:
    """A nameserver and one broker that can be restarted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port(-2, 1)
        self.nameserver = start_nameserver()
        try:
            self._broker = self._start()
        except BaseException:
            self.nameserver.kill()
            raise

    def _start(self) -> Server:
        return start_broker(self._folder, self.nameserver.address, port=self._port, config=SETTINGS)

    async def restart(self, how: How) -> None:
        """The broker goes, and is back when this returns."""
        await asyncio.to_thread(self._broker.stop if how == "stopped" else self._broker.kill)
        self._broker = await asyncio.to_thread(self._start)

    def close(self) -> None:
        self._broker.kill()
        self.nameserver.kill()


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Cluster]:
    cluster = await asyncio.to_thread(Cluster, folder)
    try:
        yield cluster
    finally:
        await asyncio.to_thread(cluster.close)


async def bodies(mq: Client, topic: str) -> list[Message]:
    return [message async for message in mq.reader(topic, end="now")]


class Load:
    """Sends at a rate until it is told to stop; keeps what each send came to."""

    def __init__(self, send: Callable[[int], Coroutine[Any, Any, object]], rate: int) -> None:
        self._send = send
        self._rate = rate
        self._stopping = False
        self._sends: list[asyncio.Task[object]] = []
        self._done = 0
        self._changed = asyncio.Condition()
        self._task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        """As many sends as are due by the clock, however late this task is woken."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not self._stopping:
            due = int((loop.time() - began) * self._rate)
            for number in range(len(self._sends), due):
                self._sends.append(asyncio.create_task(self._one(number)))
            tick = loop.create_future()
            loop.call_later(0.005, tick.set_result, None)
            await tick

    async def _one(self, number: int) -> object:
        result = await self._send(number)
        async with self._changed:
            self._done += 1
            self._changed.notify_all()
        return result

    async def until_done(self, more: int) -> None:
        """Wait until so many more sends than now have been answered."""
        async with self._changed:
            expected = self._done + more
            await self._changed.wait_for(lambda: self._done >= expected)

    async def stop(self) -> list[object]:
        """The results of all; an exception where a send failed."""
        self._stopping = True
        await self._task
        return await asyncio.gather(*self._sends, return_exceptions=True)


def failures(results: list[object]) -> list[str]:
    return [str(result) for result in results if isinstance(result, BaseException)]


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_a_restart_fails_no_send_loses_none_and_keeps_the_order_of_keys(
    tmp_path: Path, how: How
) -> None:
    """Three tries in a few milliseconds, and 905 of the sends of 13 seconds had failed."""
    async with running(tmp_path) as cluster, Client(cluster.nameserver.address) as mq:
        await mq.admin.create_topic("Ridden", queues=4)
        async with mq.producer(send_timeout_s=30) as producer:

            async def send(number: int) -> None:
                key = f"k{number % KEYS}"
                sharding_key = key if number % KEYS % 2 else None  # half of the messages are free
                await producer.send("Ridden", f"{key}-{number:06d}", sharding_key=sharding_key)

            load = Load(send, SENDS_A_SECOND)
            await load.until_done(SENDS_A_SECOND)
            await cluster.restart(how)
            await load.until_done(SENDS_A_SECOND)
            results = await load.stop()
        assert failures(results) == []
        stored = await bodies(mq, "Ridden")
    assert {message.text() for message in stored} == {
        f"k{number % KEYS}-{number:06d}" for number in range(len(results))
    }
    seen: dict[str, list[str]] = defaultdict(list)
    for message in stored:
        key = message.properties.get("__SHARDINGKEY")
        # A try that got no answer may have been stored.
        if key is not None and message.text() not in seen[key]:
            seen[key].append(message.text())
    assert len(seen) == KEYS // 2
    assert all(texts == sorted(texts) for texts in seen.values())


async def test_every_way_to_send_rides_through_a_restart(tmp_path: Path) -> None:
    """Batches, transactions, requests with replies, one-way messages and the client without an event loop."""
    async with running(tmp_path) as cluster, Client(cluster.nameserver.address) as mq:
        for topic in ("Batched", "Transacted", "Asked", "Oneway", "Blocking", "Bulk"):
            await mq.admin.create_topic(topic, queues=2)
        async with (
            mq.producer("riders", check=lambda _: None) as producer,
            mq.consumer("repliers", "Asked", retry_max_s=0.2) as replier,
        ):
            bulk = mq.bulk_sender()

            async def reply(message: GroupMessage[bytes]) -> None:
                await message.reply(message.body)

            async def batch(number: int) -> None:
                await producer.send_batch(
                    "Batched", [OutgoingMessage(f"{number}-{part}") for part in range(3)]
                )

            async def transact(number: int) -> None:
                async with producer.transaction("Transacted", f"{number}"):
                    pass

            async def ask(number: int) -> None:
                answer = await producer.request("Asked", f"{number}", timeout_s=60)
                assert answer.text() == f"{number}"

            async def oneway(number: int) -> None:
                await producer.send_oneway("Oneway", f"{number}")

            async def send_bulk(number: int) -> None:
                await bulk.send("Bulk", [bulk.entry(f"{number}".encode())])

            with SyncClient(cluster.nameserver.address) as blocking, blocking.producer() as sync_producer:

                async def send_blocking(number: int) -> None:
                    await asyncio.to_thread(sync_producer.send, "Blocking", f"{number}")

                replying = asyncio.create_task(replier.run(reply))
                ways = (batch, transact, ask, oneway, send_bulk, send_blocking)
                loads = {way.__name__: Load(way, 10) for way in ways}
                await asyncio.gather(*(load.until_done(5) for load in loads.values()))
                await cluster.restart("stopped")
                await asyncio.gather(*(load.until_done(5) for load in loads.values()))
                results = {name: await load.stop() for name, load in loads.items()}
            await replier.close()
            await replying
        assert {name: failures(found) for name, found in results.items() if failures(found)} == {}
        for topic, way in (
            ("Transacted", transact),
            ("Asked", ask),
            ("Blocking", send_blocking),
            ("Bulk", send_bulk),
        ):
            stored = Counter(message.text() for message in await bodies(mq, topic))
            assert set(stored) == {str(number) for number in range(len(results[way.__name__]))}, topic
        batched = {message.text() for message in await bodies(mq, "Batched")}
        assert batched == {f"{number}-{part}" for number in range(len(results["batch"])) for part in range(3)}


async def test_a_producer_that_has_to_give_up_says_when_and_how_often_it_tried(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, Client(cluster.nameserver.address) as mq:
        async with mq.producer(send_timeout_s=1.0) as producer:
            await producer.send("Gone", b"before")
            await asyncio.to_thread(cluster.close)
            with pytest.raises(Exception, match=r"time was over after 1\.\d s and \d+ attempts") as caught:
                await producer.send("Gone", b"after")
        text = str(caught.value)
        assert text.count("broker broker-a at 127.0.0.1:") == 1
        assert "Connection refused" in text
        assert isinstance(producer, Producer)
