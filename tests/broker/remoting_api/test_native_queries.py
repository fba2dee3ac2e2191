"""Queries by key of either engine get the same: the same requests of the same store, the same answers and counters.

Both brokers of a comparison run whole, in memory, with one clock that moves between the messages.
"""

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from struct import Struct
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from aerobee_broker.broker import Broker
from aerobee_broker.native.engine import ANSWERS_SIZE
from aerobee_broker.remoting_api.native_queries import QUERIES_MAX, NativeQueries
from aerobee_proto.codes import RequestCode
from aerobee_proto.frames import Command, Frame, FrameDecoder, decode_command, encode_command
from aerobee_proto.headers import QueryMessageHeader
from aerobee_proto.javahash import index_key_hash
from aerobee_proto.records import decode_records
from aerobee_proto.requests import RequestDecoder
from aerobee_remoting.exchange.connection import Connection
from aerobee_store.disk.page_cache import NotInMemory
from aerobee_store.index.index_file import ENTRY, ENTRY_SIZE, HEADER_SIZE, SLOT
from aerobee_store.reading.residency import IndexNearby
from broker.in_memory import broker_in_memory
from broker.remoting_api.test_native_sends import Transport, count_taken
from broker.support import START_MS, Clock, handled, held_back
from engines import made_engine, make_engines_fail, need_engine
from send_frames import framed, mutated
from store.memory_io import MemoryIo
from system.running import send_request, text_of

WORDS = Struct(">ii")
FOREVER = "9223372036854775807"


@pytest.fixture(autouse=True)
def native() -> None:
    need_engine("native")


@dataclass(slots=True, frozen=True)
class Send:
    """A message, and how long after the one before."""

    keys: str = "a"
    unique_key: str = "U"
    topic: str = "T"
    size: int = 10
    after_ms: int = 0


@dataclass(slots=True, frozen=True)
class Query:
    """A query, before it is bytes."""

    key: str = "a"
    topic: str = "T"
    count: str = "32"
    begin: str = "0"
    end: str = FOREVER
    unique: str | None = None
    codec: int = 0
    flag: int = 0
    style: str = "java"
    body: bytes = b""
    damage: tuple[int, int] | None = None


Step = Send | Query
# Java's hash of "Aa" is that of "BB".
KEYS = ["a", "b", "Aa", "BB", "ключ", "AaBB", "BBAa"]
ODD_KEYS = ["", "a b", " ", "x", "\ufffd", "\\", "k" * 900, "k" * 1100, "TagA"]
NUMBERS = ["0", "1", "2", "64", "65", "2147483647", "2147483648", "-1", "01", "", "x", "1.0"]
TIMES = [
    *(str(START_MS + 700 * at) for at in range(-1, 12)),
    "0",
    FOREVER,
    "-9223372036854775808",
    "9" * 19,
    "-1",
    "x",
]
SENDS = st.builds(
    Send,
    st.lists(st.sampled_from(KEYS), max_size=3).map(" ".join),
    st.sampled_from(["U", "a", "U1", "U2"]),
    st.sampled_from(["T", "T", "Größe"]),
    st.sampled_from([10, 10, 3000]),
    st.sampled_from([0, 1, 700]),
)


@st.composite
def queries(draw: st.DrawFn) -> Query:
    asked = Query(
        key=draw(st.sampled_from([*KEYS, "U1", "U2"])),
        topic=draw(st.sampled_from(["T", "T", "T", "Größe"])),
        codec=draw(st.sampled_from([0, 0, 1, 2])),
        unique=draw(st.sampled_from([None, None, "true", "false"])),
        style=draw(st.sampled_from(["java"] * 6 + ["go", "spaced", "bare", "twice", "more"])),
    )
    odd: dict[str, st.SearchStrategy[Any]] = {
        "key": st.sampled_from(ODD_KEYS),
        "topic": st.sampled_from(["", "Nowhere", "t\\"]),
        "count": st.sampled_from(NUMBERS),
        "begin": st.sampled_from(TIMES),
        "end": st.sampled_from(TIMES),
        "unique": st.sampled_from(["True", "1", "", "yes"]),
        "flag": st.sampled_from([1, 2, 4]),
        "body": st.just(b"x"),
        "damage": st.tuples(st.integers(0, 2**20), st.integers(0, 255)),
    }
    for name in draw(st.lists(st.sampled_from(sorted(odd)), max_size=2, unique=True)):
        asked = replace(asked, **{name: draw(odd[name])})
    return asked


def frame_of(query: Query, opaque: int) -> bytes:
    """The request as bytes, in its style."""
    fields = {"topic": query.topic, "key": query.key, "maxNum": query.count}
    fields |= {"beginTimestamp": query.begin, "endTimestamp": query.end}
    if query.unique is not None:
        fields["_UNIQUE_KEY_QUERY"] = query.unique
    if query.style == "more":
        fields["bname"] = "broker-a"
    if query.codec == 0:
        header = _json_header(query, fields, opaque)
    else:
        whole = Command(
            RequestCode.QUERY_MESSAGE, opaque=opaque, flag=query.flag, ext_fields=fields, codec=query.codec
        )
        if query.style == "go":
            whole.remark = "remark"
        header = encode_command(whole)[8:]
    return framed(query.codec, header, query.body, query.damage)


def _json_header(query: Query, fields: dict[str, str], opaque: int) -> bytes:
    ext: dict[str, Any] = dict(fields)
    if query.style == "bare":
        ext = {
            name: int(text) if text.isascii() and text.isdigit() else text for name, text in fields.items()
        }
    whole: dict[str, Any] = {"code": 12, "extFields": ext, "flag": query.flag, "language": "JAVA"}
    whole |= {"opaque": opaque, "serializeTypeCurrentRPC": "JSON", "version": 475}
    if query.style == "go":
        whole = {"code": 12, "language": "GO", "version": 317, "opaque": opaque, "flag": query.flag}
        whole |= {"remark": "", "extFields": ext}
    text = json.dumps(whole, ensure_ascii=False, separators=None if query.style == "spaced" else (",", ":"))
    if query.style == "twice":
        text = text[:-1] + ',"extFields":' + json.dumps(fields | {"key": "b"}) + "}"
    return text.encode()


@dataclass(slots=True, frozen=True)
class Outcome:
    """All that can be seen of a broker that was asked something."""

    written: bytes
    requests: dict[int, tuple[int, int]]
    native: int  # queries that the engine answered

    @property
    def answers(self) -> list[Command]:
        return [decode_command(frame) for frame in FrameDecoder().feed(self.written)]

    @property
    def in_any_order(self) -> list[Frame]:
        """The answers. Those to queries of one read come in turns of the event loop, which are limited by time."""
        return sorted(FrameDecoder().feed(self.written))


async def outcome(engine: str, steps: Sequence[Step], *, are_joined: bool, more: dict[str, Any]) -> Outcome:
    clock = Clock()
    async with broker_in_memory(
        clock=clock, send_engine=engine, flush_disk_type="ASYNC_FLUSH", **more
    ) as broker:
        transport = Transport()
        connection, sender = Connection(broker.handlers), Connection(broker.handlers)
        connection.connection_made(transport)
        sender.connection_made(Transport())
        taken = 0
        stream = b""
        count = count_taken(broker)
        for number, step in enumerate([*steps, Send()]):
            if isinstance(step, Query):
                stream += frame_of(step, number)
                if are_joined:
                    continue
            if stream:
                before = count()
                connection.data_received(stream)
                taken += count() - before
                stream = b""
                await _answered(connection)
            if isinstance(step, Send):
                clock.now_ms += step.after_ms
                names = {"KEYS": step.keys, "UNIQ_KEY": step.unique_key}
                properties = text_of({name: text for name, text in names.items() if text})
                sender.data_received(
                    encode_command(send_request(step.topic, b"x" * step.size, properties=properties))
                )
                await _answered(sender)
        return Outcome(bytes(transport.written), _requests(broker), taken)


async def _answered(connection: Connection) -> None:
    """However many turns it takes: requests of one connection wait for each other, and turns end by time. A part of a
    frame may be left."""
    for _ in range(100_000):
        await asyncio.sleep(0)
        if not (connection.in_flight or held_back(connection)):
            return


def _requests(broker: Broker) -> dict[int, tuple[int, int]]:
    return {code: (entry.requests, entry.refused) for code, entry in broker.handlers.by_code.items()}


def compare(steps: Sequence[Step], *, are_joined: bool = False, **more: Any) -> Outcome:
    """The outcome with the native engine, which is that with Python's."""
    python = asyncio.run(outcome("python", steps, are_joined=are_joined, more=more))
    native = asyncio.run(outcome("native", steps, are_joined=are_joined, more=more))
    if are_joined:
        assert native.in_any_order == python.in_any_order
    else:
        assert native.written == python.written
    assert native.requests == python.requests
    assert python.native == 0
    return native


STORED: list[Step] = [
    Send(
        keys=f"{KEYS[at % 5]} b",
        unique_key=f"U{at}",
        topic=("T", "Größe")[at % 3 == 2],
        after_ms=at % 3 * 700,
    )
    for at in range(12)
]


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.one_of(queries(), queries(), SENDS), min_size=1, max_size=30), st.booleans())
def test_either_engine_comes_to_the_same(steps: list[Step], are_joined: bool) -> None:
    compare([*STORED, *steps, *steps], are_joined=are_joined)


def test_usual_queries_are_the_engine_s() -> None:
    """But for the first, which indexes what waits, and asks whether it is in memory."""
    asked = [
        Query(key, codec=codec, unique=unique, style=style)
        for key in ("a", "b", "U1", "Aa")
        for codec in (0, 1, 2)
        for unique in (None, "true", "false")
        for style in ("java", "more")
    ]
    found = compare([*STORED, *asked])
    assert {answer.code for answer in found.answers} == {0}
    assert found.native >= len(asked) - 4, "slots and entries are asked for, and again when a second is over"


def test_queries_wait_for_the_keys_of_what_was_sent() -> None:
    joined = compare([*STORED, *[Query("b")] * 100], are_joined=True)
    assert len(joined.answers) == 100
    assert joined.native < 100
    assert compare([*STORED, Query("b"), Query("b"), Query("b")]).native == 2


def test_the_newest_are_given_up_to_the_number_asked_for() -> None:
    counts = {"1": 1, "5": 5, "64": 64, "65": 64, "2147483647": 64}
    asked = [Query(), *[Query(count=count) for count in counts]]
    found = compare([*[Send(size=at) for at in range(1, 101)], *asked])
    for answer, count in zip(found.answers[1:], counts.values(), strict=True):
        assert [len(one.body) for one in decode_records(answer.body)] == list(range(101 - count, 101))
    assert found.native == len(counts)


def test_messages_of_several_files_of_the_log_are_the_engine_s() -> None:
    """The same key was sent in each of them: as of a store that has grown for some time."""
    files: dict[str, Any] = {"mapped_file_size_commit_log": 16_384}
    sent = [Send(size=5_000 + at) for at in range(30)]
    found = compare([*sent, *[Query(count="32")] * 3, Query(count="2")], **files)
    sizes = [[len(one.body) for one in decode_records(answer.body)] for answer in found.answers]
    assert sizes == [list(range(5_000, 5_030))] * 3 + [[5_028, 5_029]]
    assert found.native == 3


async def asked_again(engine: str, damage: int | None) -> tuple[list[list[int]], int]:
    """Sizes of the messages that queries find behind a start, and how many of these the engine has answered."""
    disk = MemoryIo()
    shape: dict[str, Any] = {"io": disk, "send_engine": engine, "flush_disk_type": "ASYNC_FLUSH"}
    async with broker_in_memory(**shape) as broker:
        sender = Connection(broker.handlers)
        sender.connection_made(Transport())
        for number in range(20):
            properties = text_of({"KEYS": "a", "UNIQ_KEY": f"U{number}"})
            sender.data_received(
                encode_command(send_request("T", b"x" * (100 + number), properties=properties))
            )
            await _answered(sender)
    log = Path(f"/store/commitlog/{0:020d}")
    if damage is not None:
        disk.flip(log, (disk.read_bytes(log) or b"").index(b"x" * (100 + damage)))
    async with broker_in_memory(**shape) as broker:
        transport, count = Transport(), count_taken(broker)
        connection = Connection(broker.handlers)
        connection.connection_made(transport)
        for number, query in enumerate(
            [Query("a"), Query("a"), Query("U3"), Query("U4"), Query("a", count="2")]
        ):
            connection.data_received(frame_of(query, number))
            await _answered(connection)
        commands = [decode_command(frame) for frame in FrameDecoder().feed(bytes(transport.written))]
        return [[len(one.body) for one in decode_records(command.body)] for command in commands], count()


@pytest.mark.parametrize("damage", [None, 3])
def test_messages_of_an_earlier_run_are_proven_by_the_engine(damage: int | None) -> None:
    """Before, each query for what was stored before a start was Python's."""
    found, taken = asyncio.run(asked_again("native", damage))
    assert (found, 0) == asyncio.run(asked_again("python", damage))
    sizes = [100 + number for number in range(20) if number != damage]
    assert found == [sizes, sizes, [103] if damage is None else [], [104], [118, 119]]
    assert taken == (5 if damage is None else 0), "damage is for Python, and the rest then"


def test_more_records_than_one_answer_should_have_are_left_to_python() -> None:
    found = compare([*[Send(size=100_000)] * 15, Query("a"), Query("a"), Query("a", count="1")])
    assert found.native == 0
    assert len(decode_records(found.answers[-1].body)) == 1


def test_of_one_read_no_more_is_answered_at_once_than_of_pulls() -> None:
    """Each answer may have 1 MiB: 32 of those held the event loop for tens of milliseconds."""
    answer, written = bytes(ANSWERS_SIZE // 3 + 1), list[bytes]()
    native = SimpleNamespace(query=lambda data, at, index: (at + 10, 475, 32, False, [0]), answer_query=None)
    keys = SimpleNamespace(nearby=list, answer_nearby=lambda *_: answer)
    front = NativeQueries(cast("Any", None), cast("Any", native), cast("Any", None), cast("Any", keys))
    channel = cast("Any", SimpleNamespace(write=written.append))
    taken = front.take(channel, bytes(10 * QUERIES_MAX), 0, QUERIES_MAX)
    assert taken is not None
    assert (taken.size, taken.request_count, written) == (30, 3, [answer] * 3)


def test_records_that_are_not_known_are_asked_for_together() -> None:
    """Each by itself, 64 records of 16 KiB were copied 64 times, up to the first that was not known."""
    places, tried = list(range(0, 64 << 20, 1 << 20)), list[Any]()
    native = SimpleNamespace(
        query=lambda data, at, index: (at + 10, 475, 64, False, places),
        answer_query=None,
        lacking=lambda: (-1, places[len(tried) % 64], 8),
    )
    keys = SimpleNamespace(
        nearby=list,
        answer_nearby=lambda *what: tried.append(what),
        asks_records=lambda asked: asked == places,
        asks=lambda lacking: lacking[0] >= 0,
    )
    front = NativeQueries(cast("Any", None), cast("Any", native), cast("Any", None), cast("Any", keys))
    assert front.take(cast("Any", None), bytes(10), 0, 1) is None
    assert len(tried) == 2


async def test_what_is_not_in_memory_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Native queries believe what was asked a moment ago, and nothing else."""
    async with broker_in_memory(send_engine="native", flush_disk_type="ASYNC_FLUSH") as broker:
        connection = Connection(broker.handlers)
        connection.connection_made(Transport())
        for step in STORED:
            assert isinstance(step, Send)
            properties = text_of({"KEYS": step.keys, "UNIQ_KEY": step.unique_key})
            connection.data_received(encode_command(send_request(step.topic, properties=properties)))
            await handled(connection)
            await asyncio.sleep(0)
        keys, residency = broker.parts.store.keys, broker.parts.store.residency
        while keys.backlog:
            keys.build(100)
        residency.begin(lambda stretches: None)
        count = count_taken(broker)
        asked: list[str] = []
        ways = {name: getattr(residency, name) for name in ("holds_index", "has_records")}

        def asks(name: str, answer: Callable[..., bool]) -> None:
            def noted(*what: Any) -> bool:
                asked.append(name)
                return answer(*what)

            monkeypatch.setattr(residency, name, noted)

        for name, real in ways.items():
            asks(name, real)
        for number in range(2):  # what was not known is asked for, once
            connection.data_received(frame_of(Query(), number))
            assert count() == number + 1
            assert asked == ["holds_index", "has_records"]  # slot and entry lie in one block
        residency.forget()
        connection.data_received(frame_of(Query(), 3))
        assert count() == 3
        assert len(asked) == 4
        for name, real in ways.items():  # one of the two is not there
            asks(name, lambda *_: False)
            residency.forget()
            connection.data_received(frame_of(Query(), 4))
            assert count() == 3
            if name == "holds_index":
                with pytest.raises(NotInMemory):
                    raise next(keys.query_steps("T", "a", 1, 0, 2**62)) or AssertionError
            asks(name, real)
        # It is there, and what lies around it is not: that is asked once, and the engine cannot tell.
        residency.forget()
        asks("holds_index", lambda *_: True)
        asked.clear()
        native = broker.parts.observed
        connection.data_received(frame_of(Query(), 5))
        assert count() == 3
        assert native.engine() == "native"


@pytest.mark.parametrize("what", ["query", "answer_query"])
async def test_after_a_fault_queries_are_answered_in_python(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_engines_fail(monkeypatch, what)
    async with broker_in_memory(send_engine="native", flush_disk_type="ASYNC_FLUSH") as broker:
        transport = Transport()
        connection = Connection(broker.handlers)
        connection.connection_made(transport)
        send = send_request("T", properties=text_of({"KEYS": "a", "UNIQ_KEY": "U"}))
        connection.data_received(encode_command(send))
        await _answered(connection)
        with capture_logs() as logs:
            for opaque in (2, 3, 4):
                connection.data_received(frame_of(Query(), opaque))
                await _answered(connection)
        answers = [decode_command(frame) for frame in FrameDecoder().feed(bytes(transport.written))]
        assert [answer.code for answer in answers] == [0] * 4
        assert [one["event"] for one in logs].count("broker.engine_failed") == 1
        assert broker.parts.observed.engine() == "python"


def test_changed_queries_are_no_others() -> None:
    """Whatever is changed in a request, it is read as Python reads it or left to it: with the index that finds all."""
    engine, rng = made_engine(), random.Random(3)
    base = [
        frame_of(Query(codec=codec, style=style, unique=unique), 1)
        for codec in (0, 1, 2)
        for style in ("java", "go")
        for unique in (None, "true")
    ]
    decoder = RequestDecoder(QueryMessageHeader)
    taken = 0
    for _ in range(10_000):
        frame = mutated(rng, base)
        texts = [b"T#a", b"T#b", b"U#a"]
        found = engine.query(frame, 0, [index_of(texts)])
        if found is None:
            continue
        taken += 1
        end, version, count, is_unique, places = found
        read = decoder.decode(FrameDecoder().feed(frame[:end])[0])
        header = read.ext
        assert header is not None
        assert (read.code, read.flag, read.version) == (12, 0, version)
        assert (header.max_num, header.unique_key_query) == (count, is_unique)
        assert places == [texts.index(f"{header.topic}#{header.key}".encode())]
    assert taken > 100


def index_of(texts: Sequence[bytes]) -> IndexNearby:
    """A file of the index in which the place of each text is its number."""
    slots = 16
    view = bytearray(HEADER_SIZE + SLOT.size * slots + ENTRY_SIZE * (len(texts) + 1))
    for number, text in enumerate(texts, 1):
        key_hash = index_key_hash(text.decode())
        slot_at = HEADER_SIZE + SLOT.size * (key_hash % slots)
        (previous,) = SLOT.unpack_from(view, slot_at)
        SLOT.pack_into(view, slot_at, number)
        entry_at = HEADER_SIZE + SLOT.size * slots + ENTRY_SIZE * number
        ENTRY.pack_into(view, entry_at, key_hash, number - 1, 0, previous)
    return memoryview(view), slots, len(texts) + 1, 1, 2, None
