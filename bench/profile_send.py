"""What one send costs the broker: processor time per message, without sockets and without waiting.

    .venv/bin/python bench/profile_send.py [--batch 64] [--rounds 12] [--topics 1] [--queues 4] [--profile]

Frames as the official Java client writes them go into a real connection, handler table and store; only the
transport is a stand-in. `batch` is how many sends one read holds. The least of the rounds is the figure to compare:
a busy machine makes rounds slower, never faster. With several topics each send goes to another one, and files are made
before the first round that counts. `--profile` prints where the time goes instead.
"""

import argparse
import asyncio
import cProfile
import gc
import pstats
import resource
import struct
import tempfile
from typing import Any, cast

import structlog
import uvloop

from aerobee_broker.broker import Broker
from aerobee_broker.main import load_config
from aerobee_remoting.exchange.connection import Connection
from aerobee_service.program.interpreter import COLLECT_AFTER
from aerobee_service.program.interpreter_build import interpreter_build

PER_ROUND = 12_800  # messages
WORDS = struct.Struct(">ii")


class Sink:
    """A transport that counts."""

    def __init__(self) -> None:
        self.written = 0

    def write(self, data: bytes) -> None:
        self.written += len(data)

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, _: str) -> tuple[str, int]:
        return ("127.0.0.1", 50_000)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, **_: int) -> None:
        pass


def send_frame(number: int, body: bytes, topics: int, queues: int) -> bytes:
    """SEND_MESSAGE_V2 as JSON, field order as the Java client has it."""
    topic = "Bench" if topics == 1 else f"Bench-{number % topics}"
    queue_id = number // topics % queues
    properties = f"UNIQ_KEY\\u00017F000001{number:024X}\\u0002WAIT\\u0001true\\u0002TAGS\\u0001TagA"
    header = (
        f'{{"code":310,"extFields":{{"a":"bench","b":"{topic}","c":"TBW102","d":"{queues}","e":"{queue_id}","f":"0",'
        f'"g":"1763700000000","h":"0","i":"{properties}","j":"0","k":"false","m":"false","n":"broker-a"}},'
        f'"flag":0,"language":"JAVA","opaque":{number},"serializeTypeCurrentRPC":"JSON","version":475}}'
    ).encode()
    return WORDS.pack(4 + len(header) + len(body), len(header)) + header + body


def reads(first: int, batch: int, body: bytes, topics: int, queues: int) -> list[bytes]:
    return [
        b"".join(send_frame(number, body, topics, queues) for number in range(start, start + batch))
        for start in range(first, first + PER_ROUND, batch)
    ]


def spent_us() -> tuple[float, float]:
    """User and system time of this thread."""
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_utime * 1e6, usage.ru_stime * 1e6


async def measure(folder: str, batch: int, rounds: int, *, topics: int, queues: int, profile: bool) -> None:
    settings = {
        "storePathRootDir": folder,
        "listenPort": "0",
        "brokerIP1": "127.0.0.1",
        "flushDiskType": "ASYNC_FLUSH",
        "metricsExporterType": "DISABLE",
    }
    broker = Broker(load_config(None, settings))
    await broker.start()
    connection = Connection(broker.handlers)
    connection.connection_made(cast(asyncio.Transport, Sink()))
    body = b"x" * 128
    user: list[float] = []
    system: list[float] = []
    index: list[float] = []
    store = broker.parts.store
    profiler = cProfile.Profile()
    if topics > 1:
        for first in range(0, topics * queues, PER_ROUND):
            for read in reads(first, batch, body, topics, queues):
                connection.data_received(read)
            store.keys.build(PER_ROUND)
            await asyncio.sleep(0)
    for number in range(rounds):
        data = reads(number * PER_ROUND, batch, body, topics, queues)
        before = spent_us()
        if profile:
            profiler.enable()
        for read in data:
            connection.data_received(read)
        profiler.disable()
        after = spent_us()
        user.append((after[0] - before[0]) / PER_ROUND)
        system.append((after[1] - before[1]) / PER_ROUND)
        before = spent_us()
        while store.keys.backlog:
            store.keys.build(2048)
        index.append((spent_us()[0] - before[0]) / PER_ROUND)
        await asyncio.sleep(0)
    await broker.close()
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(20)
        return
    print(interpreter_build().text)
    print(
        f"batch {batch}: user {min(user):.2f} us, system {min(system):.2f} us, index {min(index):.2f} us a message"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Processor time of one send.")
    parser.add_argument("--batch", type=int, default=64, help="sends in one read")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--topics", type=int, default=1, help="topics that sends go to in turn")
    parser.add_argument("--queues", type=int, default=4, help="queues of each topic, at most 8")
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
                given.batch,
                given.rounds,
                topics=given.topics,
                queues=given.queues,
                profile=given.profile,
            )
        )


if __name__ == "__main__":
    main()
