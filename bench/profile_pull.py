"""What one pull costs the broker: processor time, without sockets and without waiting. The twin of `profile_send.py`.

    .venv/bin/python bench/profile_pull.py [--engine auto] [--count 32] [--queues 1] [--size 128] [--rounds 40]
                                           [--tags] [--held] [--profile]

Each pull finds `count` messages in one of the queues: with several, their records do not lie side by side.
With `--tags` the reader wants one of two tags, which all of them have. With `--held` each one is held first, and woken
by a send, which is counted with it: that is for one queue.
"""

import argparse
import asyncio
import cProfile
import gc
import pstats
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

import structlog
import uvloop

from aerobee_broker.broker import Broker
from aerobee_broker.main import load_config
from aerobee_proto.codes import PullFlag
from aerobee_remoting.exchange.connection import Connection
from aerobee_service.program.interpreter import COLLECT_AFTER
from aerobee_service.program.interpreter_build import interpreter_build

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.profile_send import WORDS, Sink, send_frame, spent_us

PER_ROUND = 1_000  # pulls
MESSAGES = 4_096  # in the queue


def pull_frame(number: int, offset: int, count: int, queue_id: int = 0, tags: str = "*") -> bytes:
    """PULL_MESSAGE as JSON, as the Java client's push consumer sends it."""
    flags = PullFlag.SUBSCRIPTION | PullFlag.SUSPEND | PullFlag.COMMIT_OFFSET
    header = (
        f'{{"code":11,"extFields":{{"consumerGroup":"bench","topic":"Bench","queueId":"{queue_id}",'
        f'"queueOffset":"{offset}","maxMsgNums":"{count}","sysFlag":"{flags}","commitOffset":"{offset}","suspendTimeoutMillis":"15000",'
        f'"subscription":"{tags}","subVersion":"1763700000000","expressionType":"TAG"}},'
        f'"flag":0,"language":"JAVA","opaque":{number},"serializeTypeCurrentRPC":"JSON","version":475}}'
    ).encode()
    return WORDS.pack(4 + len(header), len(header)) + header


def rounds_of(number: int, count: int, queues: int, size: int, *, tags: bool, held: bool) -> list[bytes]:
    """The reads of one round."""
    if not held:
        offsets = [i * count % (MESSAGES // queues - count) for i in range(PER_ROUND)]
        wanted = "TagA || TagB" if tags else "*"
        return [pull_frame(i, offset, count, i % queues, wanted) for i, offset in enumerate(offsets)]
    found = []
    for i in range(PER_ROUND):
        end = MESSAGES + number * PER_ROUND + i
        found += [pull_frame(i, end, count), send_frame(end, bytes(size), 1, 1)]
    return found


async def measure(
    folder: str,
    count: int,
    rounds: int,
    *,
    engine: str,
    queues: int,
    size: int,
    tags: bool,
    held: bool,
    profile: bool,
) -> None:
    settings = {
        "storePathRootDir": folder,
        "listenPort": "0",
        "brokerIP1": "127.0.0.1",
        "flushDiskType": "ASYNC_FLUSH",
        "sendEngine": engine,
        "metricsExporterType": "DISABLE",
    }
    broker = Broker(load_config(None, settings))
    await broker.start()
    connection = Connection(broker.handlers)
    sink = Sink()
    connection.connection_made(cast("asyncio.Transport", sink))
    for i in range(MESSAGES):
        connection.data_received(send_frame(i, bytes(size), 1, queues))
    while broker.parts.stats.put_count.value < MESSAGES:  # noqa: ASYNC110  # queues are made in later turns
        await asyncio.sleep(0)
    profiler = cProfile.Profile()
    user: list[float] = []
    for number in range(rounds):
        reads = rounds_of(number, count, queues, size, tags=tags, held=held)
        written, before = sink.written, spent_us()
        if profile:
            profiler.enable()
        for read in reads:
            connection.data_received(read)
        profiler.disable()
        user.append((spent_us()[0] - before[0]) / PER_ROUND)
        assert sink.written - written > PER_ROUND * (1 if held else count) * size, (
            "not everything was answered"
        )
        await asyncio.sleep(0)
    engine = broker.parts.observed.engine()
    await broker.close()
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(20)
        return
    print(interpreter_build().text)
    print(f"engine {engine}, {count} messages{', held' if held else ''}: user {min(user):.2f} us a pull")


def main() -> None:
    parser = argparse.ArgumentParser(description="Processor time of one pull.")
    parser.add_argument("--count", type=int, default=32, help="messages that a pull finds")
    parser.add_argument("--engine", choices=("auto", "native", "python"), default="auto", help="sendEngine")
    parser.add_argument(
        "--queues", type=int, default=1, help="queues that the messages go to in turn, at most 8"
    )
    parser.add_argument("--size", type=int, default=128, help="bytes of a body")
    parser.add_argument("--tags", action="store_true", help="with a filter by tags")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--held", action="store_true", help="pulls that wait, each for one message")
    parser.add_argument("--profile", action="store_true")
    given: Any = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    gc.set_threshold(*COLLECT_AFTER)
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(
            measure(
                folder,
                given.count,
                given.rounds,
                engine=given.engine,
                queues=given.queues,
                size=given.size,
                tags=given.tags,
                held=given.held,
                profile=given.profile,
            )
        )


if __name__ == "__main__":
    main()
