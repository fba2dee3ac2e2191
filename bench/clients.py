"""Our Python producer and consumer at full speed: what the official Java benchmark classes do, by our client.

python bench/clients.py send|nowait NAMESERVER TOPIC SECONDS      prints {"perSecond": ..., "failed": ...}
python bench/clients.py reader NAMESERVER TOPIC COUNT

send     64 tasks, each awaits its send before the next, as 64 threads of the Java producer do
nowait   at most 1024 unanswered sends, as the asynchronous Java producer here
reader   reads COUNT messages after the first tenth
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import uvloop

from aerobee import Client
from aerobee.errors import ClientError
from aerobee.producing.producer import Producer

TASKS = 64
WINDOW = 1024
BODY = b"x" * 128
WARM_S = 1.0


class Counter:
    """Answered and failed sends."""

    def __init__(self) -> None:
        self.sent = 0
        self.failed = 0


async def produce(nameserver: str, topic: str, seconds: float, mode: str) -> dict[str, Any]:
    """Send until the time is over; rates of the part after the warm-up."""
    counter = Counter()
    work = {"send": awaiting, "nowait": windowed}[mode]
    async with Client(nameserver) as client, client.producer() as producer:
        tasks = [asyncio.create_task(work(producer, topic, counter)) for _ in range(TASKS)]
        await asyncio.sleep(WARM_S)
        before, begin = counter.sent, time.perf_counter()
        await asyncio.sleep(seconds)
        rate = (counter.sent - before) / (time.perf_counter() - begin)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return {"perSecond": rate, "failed": counter.failed}


async def awaiting(producer: Producer, topic: str, counter: Counter) -> None:
    """One of many tasks that wait for each answer."""
    while True:
        try:
            await producer.send(topic, BODY)
            counter.sent += 1
        except ClientError:
            counter.failed += 1


async def windowed(producer: Producer, topic: str, counter: Counter) -> None:
    """One of many tasks that keep their share of the window in flight."""
    while True:
        futures = [producer.send_nowait(topic, BODY) for _ in range(WINDOW // TASKS)]
        results = await asyncio.gather(*futures, return_exceptions=True)
        failed = sum(isinstance(result, BaseException) for result in results)
        counter.failed += failed
        counter.sent += len(results) - failed


async def consume(nameserver: str, topic: str, count: int) -> dict[str, Any]:
    """Read messages one by one from the start; the rate after the first tenth."""
    seen = size = 0
    begin = time.perf_counter()
    async with Client(nameserver) as client, client.reader(topic, end="now") as reader:
        async for message in reader:
            seen += 1
            size += len(message.body)
            if seen == count // 10:
                begin = time.perf_counter()
            if seen == count + count // 10:
                break
        took_s = time.perf_counter() - begin
    return {"perSecond": (seen - count // 10) / took_s, "failed": 0, "bytes": size}


async def main(command: str, nameserver: str, topic: str, amount: str) -> dict[str, Any]:
    if command == "reader":
        return await consume(nameserver, topic, int(amount))
    return await produce(nameserver, topic, float(amount), command)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(main(*sys.argv[1:]))))
