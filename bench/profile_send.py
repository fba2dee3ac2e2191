"""What one send costs the broker: processor time per message, without sockets and without waiting.

    .venv/bin/python bench/profile_send.py [--engine auto] [--batch 64] [--group 1] [--size 128] [--rounds 12]
                                           [--topics 1] [--queues 4] [--signed [aerobee|official]] [--profile]

Frames as the official Java client writes them go into a real connection, handler table and store; only the
transport is a stand-in. `batch` is how many sends one read holds, `group` how many messages a send holds: more than one
travel as SEND_BATCH_MESSAGE. The least of the rounds is the figure to compare: a busy machine makes rounds slower,
never faster. With several topics each send goes to another one, and files are made before the first round that counts.
`--signed` turns access control on, and signs every send as a user with a policy for its topic, as clients of Aerobee do
or as official ones: compare with the same command without it, which says what access control costs a message.
`--profile` prints where the time goes instead.
"""

import argparse
import asyncio
import cProfile
import gc
import pstats
import resource
import struct
import tempfile
import time
from typing import Any, cast

import structlog
import uvloop

from aerobee_access.freshness import Signing
from aerobee_access.policies import PolicyType, entry_of
from aerobee_access.signature import sign
from aerobee_broker.broker import Broker
from aerobee_broker.main import load_config
from aerobee_proto.batch import BatchEntry, encode_batch
from aerobee_proto.frames import FrameDecoder, decode_command, encode_command
from aerobee_remoting.ends.client import Header, Sign
from aerobee_remoting.exchange.connection import Connection
from aerobee_service.program.interpreter import COLLECT_AFTER
from aerobee_service.program.interpreter_build import interpreter_build

PER_ROUND = 12_800  # messages
WORDS = struct.Struct(">ii")
USER = ("bench", "a secret of the benchmark")


class Sink:
    """A transport that counts."""

    def __init__(self) -> None:
        self.written = 0

    def write(self, data: bytes) -> None:
        self.written += len(data)

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        return ("127.0.0.1", 50_000) if name == "peername" else None

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, **_: int) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def abort(self) -> None:
        raise AssertionError("the broker hung up")


def as_official_clients(_: int, header: Header, body: bytes) -> dict[str, str]:
    """The fields of a request with a signature alone."""
    assert isinstance(header, dict)
    return sign(header, body, *USER)


def signed(read: bytes, signs: Sign) -> bytes:
    """The same sends, each with a signature."""
    commands = [decode_command(frame) for frame in FrameDecoder().feed(read)]
    for command in commands:
        command.ext_fields = signs(command.code, command.ext, command.body)
    return b"".join(map(encode_command, commands))


def send_frame(number: int, body: bytes, topics: int, queues: int, group: int = 1) -> bytes:
    """SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE as JSON, field order as the Java client has it."""
    topic = "Bench" if topics == 1 else f"Bench-{number % topics}"
    queue_id = number // topics % queues
    properties = f"UNIQ_KEY\\u00017F000001{number:024X}\\u0002WAIT\\u0001true\\u0002TAGS\\u0001TagA"
    code, is_batch = 310, "false"
    if group > 1:
        code, is_batch, properties = 320, "true", ""
        body = encode_batch(
            BatchEntry(
                0, body, f"UNIQ_KEY\x017F000001{number:016X}{place:08X}\x02WAIT\x01true\x02TAGS\x01TagA"
            )
            for place in range(group)
        )
    header = (
        f'{{"code":{code},"extFields":{{"a":"bench","b":"{topic}","c":"TBW102","d":"{queues}","e":"{queue_id}","f":"0",'
        f'"g":"1763700000000","h":"0","i":"{properties}","j":"0","k":"false","m":"{is_batch}","n":"broker-a"}},'
        f'"flag":0,"language":"JAVA","opaque":{number},"serializeTypeCurrentRPC":"JSON","version":475}}'
    ).encode()
    return WORDS.pack(4 + len(header) + len(body), len(header)) + header + body


def reads(
    first: int, batch: int, body: bytes, topics: int, queues: int, group: int = 1, count: int = PER_ROUND
) -> list[bytes]:
    """So many messages, as sends of `group` in reads of `batch` sends."""
    return [
        b"".join([send_frame(number, body, topics, queues, group) for number in range(start, start + batch)])
        for start in range(first, first + count // group, batch)
    ]


def spent_us() -> tuple[float, float]:
    """User and system time of this thread."""
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_utime * 1e6, usage.ru_stime * 1e6


async def measure(
    folder: str,
    batch: int,
    rounds: int,
    *,
    group: int,
    size: int,
    topics: int,
    queues: int,
    engine: str,
    signed_as: str | None,
    profile: bool,
) -> None:
    is_signed = signed_as is not None
    settings = {
        "storePathRootDir": f"{folder}/store",
        "authenticationEnabled": str(is_signed).lower(),
        "authorizationEnabled": str(is_signed).lower(),
        "accessAuditPath": "off",
        "listenPort": "0",
        "brokerIP1": "127.0.0.1",
        "flushDiskType": "ASYNC_FLUSH",
        "sendEngine": engine,
        "metricsExporterType": "DISABLE",
    }
    broker = Broker(load_config(None, settings))
    await broker.start()
    if is_signed:
        broker.access.table.create_user(*USER)
        pub = entry_of("Topic:Bench*", ["Pub"], None, "Allow")
        broker.access.table.write_acl(USER[0], [(PolicyType.CUSTOM, [pub])])
    connection = Connection(broker.handlers)
    connection.connection_made(cast("asyncio.Transport", Sink()))
    signs: Sign = as_official_clients
    if signed_as == "aerobee":
        signs = Signing(*USER)(broker.handlers.gate.greeting(connection))
    body = b"x" * size
    sends: list[float] = []
    index: list[float] = []
    store = broker.parts.store
    profiler = cProfile.Profile()
    if topics > 1:
        expected = 0
        for first in range(0, topics * queues, PER_ROUND):
            for read in reads(first, batch, body, topics, queues):
                connection.data_received(signed(read, signs) if is_signed else read)
                expected += batch
                while broker.parts.stats.put_count.value < expected:  # noqa: ASYNC110  # a topic is made in a later turn
                    await asyncio.sleep(0)
            store.keys.build(PER_ROUND)
    for number in range(rounds):
        data = reads(number * PER_ROUND, batch, body, topics, queues, group)
        if is_signed:
            data = [signed(read, signs) for read in data]
        due = broker.parts.stats.put_count.value + PER_ROUND
        before = time.thread_time_ns()
        if profile:
            profiler.enable()
        for read in data:
            connection.data_received(read)
        while broker.parts.stats.put_count.value < due:  # noqa: ASYNC110  # a read that was interrupted goes on later
            await asyncio.sleep(0)
        profiler.disable()
        sends.append((time.thread_time_ns() - before) / 1000 / PER_ROUND)
        before = time.thread_time_ns()
        while store.keys.backlog:
            store.keys.build(2048)
        index.append((time.thread_time_ns() - before) / 1000 / PER_ROUND)
        await asyncio.sleep(0)
    stored = broker.parts.stats.put_count.value
    assert stored >= rounds * PER_ROUND, f"{stored} messages were stored"
    engine = broker.parts.observed.engine()
    await broker.close()
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(20)
        return
    print(interpreter_build().text)
    figures = {"sends": sends, "index": index}
    told = ", ".join([f"{name} {min(values):.2f} us" for name, values in figures.items()])
    print(f"engine {engine}, batch {batch} x {group}: {told} a message")


def main() -> None:
    parser = argparse.ArgumentParser(description="Processor time of one send.")
    parser.add_argument("--batch", type=int, default=64, help="sends in one read")
    parser.add_argument("--group", type=int, default=1, help="messages in one send")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--topics", type=int, default=1, help="topics that sends go to in turn")
    parser.add_argument("--queues", type=int, default=4, help="queues of each topic, at most 8")
    parser.add_argument("--size", type=int, default=128, help="bytes of a body")
    parser.add_argument("--engine", choices=("auto", "native", "python"), default="auto", help="sendEngine")
    parser.add_argument(
        "--signed",
        nargs="?",
        choices=("aerobee", "official"),
        const="aerobee",
        help="with access control, each send signed as these clients do",
    )
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
                group=given.group,
                size=given.size,
                topics=given.topics,
                queues=given.queues,
                engine=given.engine,
                signed_as=given.signed,
                profile=given.profile,
            )
        )


if __name__ == "__main__":
    main()
