"""The native engine does what the Python one does: the same reads give the same files, counters and answers.

Both brokers of a comparison run whole, in memory, with one clock and the same keys. What they are sent is usual for the
most part, as only that reaches the engine, and odd in every way that its reader of headers could take for usual.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aerobee_access.audit import AuditLog
from aerobee_broker.broker import Broker
from aerobee_broker.remoting_api.native_sends import with_code
from aerobee_proto.batch import BatchEntry, encode_batch
from aerobee_proto.bodies import TopicConfig
from aerobee_proto.frames import Command, FrameDecoder, decode_command, encode_command
from aerobee_remoting.exchange import connection as connection_module
from aerobee_remoting.exchange.connection import Connection
from broker.in_memory import broker_in_memory
from broker.support import Clock, handled, held_back
from engines import need_engine
from quiet_transport import QuietTransport
from send_frames import BATCH, V1, V2, Spec, fields_of, frame_of, frames, joined, usual
from store.memory_io import MemoryIo


@pytest.fixture(autouse=True)
def native() -> None:
    need_engine("native")


# --- requests -----------------------------------------------------------------------------------------------------

TOPICS = ["Topic-A"] * 8 + ["Topic-B"] * 3 + ["Multi", "New-1", "New-2", "Batches", "ReadOnly"]
ODD_TOPICS = [
    "",
    "no topic!",
    "%RETRY%group",
    "SCHEDULE_TOPIC_XXXX",
    "Größe",
    "T" * 200,
    "Topic-a",
    "Topic-A ",
    "t\\",
]
QUEUES = ["0"] * 6 + ["1", "2", "3"]
ODD_NUMBERS = [
    "",
    "-1",
    "-0",
    "+1",
    "01",
    " 1",
    "1 ",
    "1.0",
    "1e0",
    "4",
    "2147483647",
    "2147483648",
    "x",
    "null",
]
ODD_NUMBERS += ["9" * 18, "9" * 19, "-9223372036854775808", "true", "１", "0x1", "1_0"]
ODD_BOOLS = ["1", "0", "True", "FALSE", "", "yes", "null"]
VALUES = [
    "TagA",
    "k1 k2",
    " k",
    "k  ",
    "Grüße 消息 😀",
    "a\x01b",
    "false",
    "true",
    "1",
    "x" * 300,
    "\u2028",
    'a/b"c\\',
]
NAMES = ["TAGS", "KEYS", "WAIT", "Own", "own2", "Größe", "x" * 40]
ODD_NAMES = [
    "MSG_REGION",
    "TRACE_ON",
    "CLUSTER",
    "POP_CK",
    "__CRC32C",
    "__CRC32#",
    "DELAY",
    "TIMER_DELAY_SEC",
]
ODD_NAMES += ["TIMER_DELIVER_MS", "TRAN_MSG", "INNER_NUM", "", "UNIQ_KEY", "TAGS", "TIMER_DELAY_MS", "PGROUP"]
ODD_KEYS = ["", "a-b", 'quo"te', "中文", "k" * 1200, "0" * 32, " "]
SEPARATORS = ["\x01", "\x02", "\x02\x02", "a\x02", "\x01\x02", "no separator", "name\x01", "n\x01v\x02\x02"]
ODD_BODIES = [b"", b"\xff" * 5000, b"x" * 16_000, b"{}", b"\0"]


@st.composite
def property_texts(draw: st.DrawFn) -> str:
    """Properties, usual ones for the most part."""
    kind = draw(st.integers(0, 19))
    pairs = [("UNIQ_KEY", f"7F000001{draw(st.integers(0, 2**64)):024X}"), ("WAIT", "true")]
    if kind == 19:
        return draw(st.sampled_from(SEPARATORS)) + joined(pairs) + draw(st.sampled_from(["", *SEPARATORS]))
    if kind == 18:
        pairs[0] = ("UNIQ_KEY", draw(st.sampled_from(ODD_KEYS)))
    if kind == 17:
        del pairs[0]
    if kind == 16:
        pairs.append(
            (draw(st.sampled_from(ODD_NAMES)), draw(st.sampled_from(["", "1", "true", "-1", "0", "3"])))
        )
    if kind == 15:
        pairs += [(f"n{number}", "v") for number in range(draw(st.integers(20, 30)))]
    if kind >= 8:
        for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4)):
            pairs.append((name, draw(st.sampled_from(VALUES))))
    if kind >= 12:
        pairs = draw(st.permutations(pairs))
    text = joined(pairs)
    return text[:-1] if draw(st.booleans()) else text


@st.composite
def requests(draw: st.DrawFn) -> Spec:
    spec = Spec(
        code=draw(st.sampled_from([V2] * 8 + [V1] * 3 + [BATCH])),
        codec=draw(st.sampled_from([0] * 6 + [1] * 4 + [2] * 3)),
        flag=draw(st.sampled_from([0] * 12 + [2, 2, 1, 4, -1])),
        body=draw(st.one_of(st.binary(min_size=1, max_size=200), st.sampled_from([b"x" * 700, *ODD_BODIES]))),
        style=draw(
            st.sampled_from(["java"] * 10 + ["shuffled", "go", "spaced", "bare", "twice", "more", "null"])
        ),
    )
    spec.fields = fields_of(
        topic=draw(st.sampled_from(TOPICS)),
        queue=draw(st.sampled_from(QUEUES)),
        properties=draw(property_texts()),
    )
    odd = draw(st.integers(0, 29))
    if odd == 0:
        spec.fields["topic"] = draw(st.sampled_from(ODD_TOPICS))
    elif odd <= 3:
        names = ["queueId", "sysFlag", "bornTimestamp", "flag", "reconsumeTimes", "maxReconsumeTimes"]
        name = draw(st.sampled_from([*names, "defaultTopicQueueNums"]))
        spec.fields[name] = draw(st.sampled_from(ODD_NUMBERS))
    elif odd == 4:
        spec.fields[draw(st.sampled_from(["unitMode", "batch"]))] = draw(st.sampled_from(ODD_BOOLS))
    elif odd == 5:
        del spec.fields[draw(st.sampled_from(sorted(spec.fields)))]
    elif odd == 6:
        spec.fields["sysFlag"] = str(draw(st.integers(0, 0x3FF)))
    elif odd == 7:
        spec.damage = (draw(st.integers(0, 2**20)), draw(st.integers(0, 255)))
    elif odd == 8:
        spec.code = draw(st.sampled_from([11, 34, 999, 105, 324]))
    elif odd == 9:
        spec.fields["n"] = spec.fields["bname"] = "broker-a"
    if spec.code == BATCH:
        texts = draw(st.lists(property_texts(), min_size=1, max_size=4))
        entries = [BatchEntry(draw(st.integers(-3, 3)), b"of a batch", text) for text in texts]
        spec.body = encode_batch(entries) + draw(st.sampled_from([b""] * 6 + [b"\0\0\0"]))
        spec.fields["properties"] = draw(
            st.sampled_from(
                [
                    "",
                    "",
                    "WAIT\x01true\x02",
                    "WAIT\x01false",
                    "Own\x01v\x02",
                    spec.fields.get("properties", ""),
                ]
            )
        )
    return spec


# --- comparing ----------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """All that can be seen of a broker that was sent something."""

    files: dict[str, bytes]
    answers: list[bytes]
    in_order: list[int]  # opaques of those that were stored and waited for the disk
    counters: dict[str, object]
    native: int  # requests that the engine took
    is_broken: bool  # whether the connection was closed, and what had no answer then has none
    audit: list[tuple[object, ...]]


Step = Callable[[Broker], None]
"""What is done to a broker between two reads, or before the first."""


class Transport(QuietTransport):
    def __init__(self) -> None:
        super().__init__(("10.1.2.3", 4567))
        self.written = bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True


async def outcome(engine: str, reads: Sequence[bytes | Step], more: dict[str, Any]) -> Outcome:
    io = MemoryIo()
    seeds = random.Random(1)
    audit: list[tuple[object, ...]] = []
    with (
        patch("aerobee_broker.assembly.secrets", SimpleNamespace(randbits=lambda bits: 7)),
        patch("aerobee_broker.messages.intake.random", seeds),
        patch("aerobee_access.freshness.secrets", SimpleNamespace(token_hex=lambda size: "07" * size)),
        patch.object(AuditLog, "write", lambda _, word, **facts: audit.append((word, *facts.values()))),
    ):
        async with broker_in_memory(
            io=io,
            clock=Clock(),
            send_engine=engine,
            mapped_file_size_commit_log=16_384,
            max_message_size=8_000,
            **more,
        ) as broker:
            assert broker.parts.observed.engine() == engine
            broker.parts.topics.update(
                [
                    TopicConfig(topic_name="Topic-A", read_queue_nums=4, write_queue_nums=4),
                    TopicConfig(topic_name="Topic-B", read_queue_nums=2, write_queue_nums=2),
                    TopicConfig(topic_name="Multi", topic_filter_type="MULTI_TAG"),
                    TopicConfig(topic_name="ReadOnly", perm=4),
                ]
            )
            transport = Transport()
            connection = Connection(broker.handlers)
            connection.connection_made(transport)
            native = count_taken(broker)
            for number, read in enumerate(reads):
                if callable(read):
                    read(broker)
                    continue
                connection.data_received(read)
                # What comes while topics and queues are made is Python's, so nothing comes then.
                await handled(connection)
                if number % 3 == 2:
                    await asyncio.sleep(0)
            for _ in range(10_000):  # until all is answered, and the timers of the broker have indexed it
                waits = connection.reading_paused or held_back(connection)
                is_busy = connection.in_flight or (waits and not transport.closing)
                if not is_busy and not broker.parts.store.keys.backlog:
                    break
                await asyncio.sleep(0.001)
            connection.flush()
            counters = _counters(broker)
        files = {str(path): io.read_bytes(path) or b"" for path in io.paths() if _is_stored(path)}
    frames = FrameDecoder().feed(bytes(transport.written))
    commands = [decode_command(frame) for frame in frames]
    stored = [command.opaque for command in commands if command.code == 0 and command.is_response]
    answers = sorted(encode_command(command) for command in commands)
    return Outcome(files, answers, stored, counters, native(), transport.closing, audit)


def count_taken(broker: Broker) -> Callable[[], int]:
    front = broker.handlers.front
    if front is None:
        return lambda: 0
    taken = 0

    class Counting:
        def serves_all(self, data: bytes, at: int) -> bool:
            assert front is not None
            return front.serves_all(data, at)

        def take(self, channel: Any, data: bytes, *part: Any) -> Any:
            nonlocal taken
            assert front is not None
            found = front.take(channel, data, *part)
            taken += 0 if found is None else found.request_count
            return found

    broker.handlers.front = Counting()
    return lambda: taken


def _is_stored(path: Path) -> bool:
    return any(folder in path.parts for folder in ("commitlog", "consumequeue", "batchconsumequeue", "index"))


def _counters(broker: Broker) -> dict[str, object]:
    stats = broker.parts.stats
    return {
        "topics": {name: (one.count, one.size, one.in_batches) for name, one in sorted(stats.topics.items())},
        "put": (stats.put_count.value, stats.put_count.times, stats.put_bytes.value, stats.put_failed),
        "requests": {
            code: (entry.requests, entry.refused) for code, entry in broker.handlers.by_code.items()
        },
    }


def _lacking(found: Outcome, other: Outcome) -> dict[int, int]:
    """Opaques and codes of what only the other has answered."""
    answers = FrameDecoder().feed(b"".join((Counter(other.answers) - Counter(found.answers)).elements()))
    return {answer.opaque: answer.code for answer in map(decode_command, answers)}


def compare(reads: Sequence[bytes | Step], **more: Any) -> Outcome:
    """The outcome with the native engine, which is that with Python's."""
    python = asyncio.run(outcome("python", reads, more))
    native = asyncio.run(outcome("native", reads, more))
    assert native.files.keys() == python.files.keys()
    for path, data in python.files.items():
        assert native.files[path] == data, path
    assert native.counters == python.counters
    assert native.is_broken == python.is_broken
    if native.is_broken:
        # The disk was in time for some answers, with one of them for more: each is a success that the other lacks.
        of_python, of_native = _lacking(native, python), _lacking(python, native)
        assert {*of_python.values(), *of_native.values()} <= {0}
        assert of_python.keys().isdisjoint(of_native)
    else:
        assert native.answers == python.answers
    assert native.audit == python.audit
    return native


def cut(stream: bytes, places: Sequence[int]) -> list[bytes]:
    """The stream in reads that end at these places."""
    ends = sorted({place % (len(stream) + 1) for place in places} | {0, len(stream)})
    return [stream[begin:end] for begin, end in pairwise(ends)]


# --- tests --------------------------------------------------------------------------------------------------------

FLUSH = st.sampled_from(["ASYNC_FLUSH", "SYNC_FLUSH"])


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(requests(), min_size=1, max_size=40), st.lists(st.integers(0, 2**20), max_size=6), FLUSH)
def test_either_engine_comes_to_the_same(specs: list[Spec], places: list[int], flush: str) -> None:
    stream = b"".join([frame_of(spec, number) for number, spec in enumerate(specs)])
    compare(cut(stream, places), flush_disk_type=flush)


def test_usual_sends_are_the_engine_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of both codes, in all codecs, over the ends of files: but for the first to each queue, which makes it ready, what
    came meanwhile, and what needs a new file."""
    # A machine that stalls ends turns, and what is left of their reads is handled in Python: 146 were taken then.
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    reads = [b"".join(frames([usual(2 * at + number % 2) for at in range(5)])) for number in range(60)]
    assert compare(reads).native > 150


def test_what_a_turn_leaves_is_the_engine_s_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read when the turn was over, or longer than a slice, was handled in Python."""
    monkeypatch.setattr(connection_module, "TURN_S", 1e-5)
    reads = [
        frame_of(usual(0, queueId="0"), 0),
        b"".join(frames([usual(at, queueId="0") for at in range(400)])),
    ]
    assert 380 < compare(reads).native <= 400  # but for the first ones of files


def test_behind_an_unusual_send_the_engine_goes_on() -> None:
    """Delayed messages among others: all that was read behind the first of them was handled in Python."""
    specs = [usual(at, queueId="0") for at in range(60)]
    for spec in specs[10::10]:
        spec.fields["properties"] = "DELAY\x013\x02" + spec.fields["properties"]
    reads = [frame_of(usual(0, queueId="0"), 0), b"".join(frames(specs))]
    assert 50 <= compare(reads).native <= 55  # but for the first ones of files


@pytest.mark.parametrize("codec", [0, 1, 2])
@pytest.mark.parametrize("version", [V1, V2])
def test_each_codec_and_code_is_read_natively(codec: int, version: int) -> None:
    def one(number: int, **changes: Any) -> Spec:
        made = usual(number, queueId="0", **changes)
        made.codec, made.code = codec, version
        return made

    reads = frames([one(number) for number in range(4)])
    assert compare(reads).native == len(reads) - 1, "the first makes the queue ready"
    more = {"maxReconsumeTimes": "16", "bname": "broker-a"}
    reads = frames([one(number, **more) for number in range(4)])
    assert compare(reads).native == len(reads) - 1


@pytest.mark.parametrize("cut_at", range(0, 300, 13))
def test_a_read_may_end_anywhere(cut_at: int) -> None:
    stream = b"".join(frames([usual(2), usual(2), usual(8)]))
    first, rest = frames([usual(2)])[0], stream
    assert compare([first, rest[:cut_at], rest[cut_at:]]).native >= 2


def test_one_way_sends_and_those_that_do_not_wait_are_the_engine_s() -> None:
    silent = usual(4)
    silent.flag = 2
    text = silent.fields["properties"].replace("WAIT\x01true", "WAIT\x01false")
    specs = [usual(4), usual(4), silent, usual(4, properties=text), usual(4)]
    for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        found = compare([frames(specs)[0], b"".join(frames(specs)[1:])], flush_disk_type=flush)
        assert found.native == len(specs) - 1
        assert sorted(found.in_order) == [0, 1, 3, 4]


@pytest.mark.parametrize("codec", [0, 1, 2])
@pytest.mark.parametrize(
    "common", ["", "WAIT\x01true\x02", "WAIT\x01false", "UNIQ_KEY\x010B0B\x02Own\x01v\x02"]
)
def test_batches_are_the_engine_s(codec: int, common: str) -> None:
    def one(number: int) -> Spec:
        texts = [joined([("UNIQ_KEY", f"{number:08X}{place:08X}"), ("KEYS", "a b")]) for place in range(3)]
        body = encode_batch([BatchEntry(place, b"x" * place, text) for place, text in enumerate(texts)])
        fields = fields_of(topic="Topic-A", queue="0", properties=common) | {"batch": "true"}
        return Spec(code=BATCH, codec=codec, fields=fields, body=body)

    made = frames([one(number) for number in range(40)])
    reads = [b"".join(made[at : at + 4]) for at in range(0, len(made), 4)]
    assert compare(reads).native > 30
    assert compare(reads, flush_disk_type="SYNC_FLUSH").native > 30


def test_answers_of_usual_sends_come_in_the_order_of_the_sends() -> None:
    specs = [usual(number) for number in range(40)]
    specs[17].fields["topic"] = "no topic!"
    found = compare([b"".join(frames(specs))], flush_disk_type="SYNC_FLUSH")
    assert found.in_order == [number for number in range(40) if number != 17]


@pytest.mark.parametrize(
    "settings_",
    [
        {"message_index_enable": False},
        {"enabled_append_prop_crc": True},
        {"region_id": 'a"b\\c\x01'},
        {"region_id": "Zürich-東"},
    ],
)
def test_each_form_of_the_record_is_made_by_both(settings_: dict[str, Any]) -> None:
    reads = frames([usual(6 * number) for number in range(30)])
    assert compare(reads, **settings_).native > 20


@pytest.mark.parametrize("codec", [0, 1, 2])
def test_answers_are_made_again_with_another_code(codec: int) -> None:
    ext = {"queueId": "3", "transactionId": "0A" * 16, "queueOffset": "17"}
    answers = [Command(0, opaque=opaque, flag=1, ext_fields=ext, codec=codec) for opaque in (0, 5, 2**31 - 1)]
    refused = [
        Command(10, opaque=opaque, flag=1, ext_fields=ext, codec=codec) for opaque in (0, 5, 2**31 - 1)
    ]
    made = with_code(b"".join(map(encode_command, answers)), 10)
    assert made == b"".join(map(encode_command, refused))
