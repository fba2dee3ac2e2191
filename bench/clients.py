"""Our Python producer and consumer at full speed: what the official Java benchmark classes do, by our client.

python bench/clients.py send|nowait|batch|bulk NAMESERVER TOPIC SECONDS [--profile]
python bench/clients.py reader NAMESERVER TOPIC COUNT [--profile]

send     64 tasks, each awaits its send before the next, as 64 threads of the Java producer do
nowait   at most 1024 unanswered sends, as the asynchronous Java producer here
batch    8 tasks that send lists of 64 bodies by `send_batch`, and have a result for each message
bulk     the same by a bulk sender, with one result for each list
reader   reads COUNT messages after the first tenth

Prints {"perSecond": ..., "failed": ..., "cpuUs": ...}, the last being processor time of this program a message; with
--profile where that goes instead.
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import pstats
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from aerobee import Client
from aerobee.errors import ClientError
from aerobee.producing.bulk import BulkSender
from aerobee.producing.producer import Producer

TASKS = 64
WINDOW = 1024
LISTS = 8
LIST = 64
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
    async with Client(nameserver) as client, client.producer() as producer:
        works: dict[str, tuple[int, Callable[[], Coroutine[Any, Any, None]]]] = {
            "send": (TASKS, lambda: awaiting(producer, topic, counter)),
            "nowait": (TASKS, lambda: windowed(producer, topic, counter)),
            "batch": (LISTS, lambda: listed(producer, topic, counter)),
            "bulk": (LISTS, lambda: ready_made(client.bulk_sender("bench"), topic, counter)),
        }
        count, work = works[mode]
        tasks = [asyncio.create_task(work()) for _ in range(count)]
        await asyncio.sleep(WARM_S)
        before, begin, cpu = counter.sent, time.perf_counter(), time.process_time()
        await asyncio.sleep(seconds)
        sent, took_s, cpu_s = (
            counter.sent - before,
            time.perf_counter() - begin,
            time.process_time() - cpu,
        )
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return {"perSecond": sent / took_s, "failed": counter.failed, "cpuUs": 1e6 * cpu_s / max(sent, 1)}


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


async def listed(producer: Producer, topic: str, counter: Counter) -> None:
    """One of some tasks that send lists."""
    while True:
        try:
            stored = await producer.send_batch(topic, [BODY] * LIST)
            counter.sent += len(stored)
        except ClientError:
            counter.failed += LIST


async def ready_made(sender: BulkSender, topic: str, counter: Counter) -> None:
    """One of some tasks that send lists of which only the whole has a result."""
    while True:
        try:
            stored = await sender.send(topic, [sender.entry(BODY) for _ in range(LIST)])
            counter.sent += stored.message_count
        except ClientError:
            counter.failed += LIST


async def consume(nameserver: str, topic: str, count: int) -> dict[str, Any]:
    """Read messages one by one from the start; the rate after the first tenth."""
    seen = size = 0
    begin, cpu = time.perf_counter(), time.process_time()
    async with Client(nameserver) as client, client.reader(topic, end="now") as reader:
        async for message in reader:
            seen += 1
            size += len(message.body)
            if seen == count // 10:
                begin, cpu = time.perf_counter(), time.process_time()
            if seen == count + count // 10:
                break
        took_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    counted = seen - count // 10
    return {"perSecond": counted / took_s, "failed": 0, "bytes": size, "cpuUs": 1e6 * cpu_s / counted}


async def main(command: str, nameserver: str, topic: str, amount: str) -> dict[str, Any]:
    if command == "reader":
        return await consume(nameserver, topic, int(amount))
    return await produce(nameserver, topic, float(amount), command)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--profile"]
    profiler = cProfile.Profile()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if len(words) < len(sys.argv) - 1:
            profiler.enable()
        found = runner.run(main(*words))
        profiler.disable()
    if profiler.getstats():
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
    else:
        print(json.dumps(found))
