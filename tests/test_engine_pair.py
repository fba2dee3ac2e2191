"""Both engines for sends come to the same, and the check of that finds whatever only one of them does.

Each planted change is one that a hand could make in one engine and forget in the other: in the Python packer, or in
what the native engine gives back. The first send to each queue is Python's in either broker, the others are not.
"""

import importlib
import logging
import random
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import structlog

from aerobee_broker.members.clients import born_host
from aerobee_broker.messages import publish
from aerobee_broker.messages.publish import Publisher
from aerobee_broker.messages.stored_properties import StoredProperties
from aerobee_broker.native.engine import INTERFACE, MODULE
from aerobee_broker.remoting_api.send import SendProcessor
from aerobee_proto.bodies import TopicConfig
from aerobee_proto.checksum import property_crc_entry
from aerobee_proto.frames import FrameDecoder
from aerobee_proto.records import HEAD_V4
from aerobee_store.index import index
from aerobee_store.queues.consume_queue import ENTRY
from aerobee_store.writing import appender
from engine_pair import (
    Difference,
    End,
    EnginePair,
    Step,
    engine_pair,
    later,
    synced,
    topic_changed,
    topic_deleted,
    with_settings,
)
from engines import need_engine
from send_frames import bases, batch_of, frame_of, frames, mutated, usual


@pytest.fixture(autouse=True)
def native() -> None:
    need_engine("native")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Each refused send has a line in a log, and each frame that ends a connection: for very many it is much work."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    structlog.configure(**before)


@pytest.fixture
def pair() -> Iterator[EnginePair]:
    with engine_pair() as made:
        yield made


# --- what is compared ---------------------------------------------------------------------------------------------


def sends() -> list[Step]:
    """Three reads: the queues' first messages, then usual ones in all codecs, then batches."""
    specs = [usual(number, flag="5", reconsumeTimes="1") for number in range(24)]
    for number, spec in enumerate(specs):
        spec.fields["properties"] += f"\x02KEYS\x01key{number} more\x02Own\x01value"
        if number % 5 == 4:
            spec.fields["properties"] = spec.fields["properties"].replace("WAIT\x01true", "WAIT\x01false")
    batches = [batch_of(number) for number in range(3)]
    first = frames([usual(number) for number in range(4)])
    # A run of one code is what the engine takes in one call.
    by_code = [frame_of(spec, 100 + at) for at, spec in enumerate(specs[::2] + specs[1::2])]
    return [*first, b"".join(by_code[:12]), b"".join(by_code[12:]), synced, b"".join(frames(batches))]


TAKEN = 24 + 3


@pytest.mark.parametrize("waits", [False, True])
def test_usual_sends_come_to_the_same(pair: EnginePair, waits: bool) -> None:
    for _ in range(3):
        assert pair.run(sends(), waits=waits) >= TAKEN
        assert pair.run(sends(), waits=waits, peer=("2001:db8::7", 4567)) >= TAKEN


def test_batches_of_one_read_are_stored_in_its_order(pair: EnginePair) -> None:
    """Python stored those of topics with queues of batches before the others: the native engine, which leaves them to
    it, had stored others by then."""
    key = "UNIQ_KEY\x010A0B\x02"
    topics = ["Topic-A", "Batches"]
    specs = [batch_of(number, topic=topic, properties=key) for number, topic in enumerate(topics * 4)]
    for waits in (False, True):
        pair.run([*frames(specs), b"".join(frames(specs))], waits=waits)
    python, _ = pair.ends
    assert [python.parts.store.reading.max_offset(topic, 1) for topic in topics] == [4 * 2 * 2 * 3] * 2


def test_changes_of_topics_and_settings_come_to_the_same(pair: EnginePair) -> None:
    closed = TopicConfig(topic_name="Topic-A", read_queue_nums=4, write_queue_nums=4, perm=4)
    fewer = TopicConfig(topic_name="Topic-A", read_queue_nums=2, write_queue_nums=2)
    changes: list[Step] = [
        later(5),
        topic_changed(closed),
        topic_changed(fewer),
        topic_deleted("Topic-A", is_saved=False),
        topic_changed(fewer),
        topic_deleted("Topic-A", is_saved=True),
        with_settings(traceOn="false"),
        with_settings(regionId='a"b'),
        with_settings(regionId="region"),
        with_settings(brokerPermission="4"),
        with_settings(brokerPermission="6"),
    ]
    for waits in (False, True):
        for change in changes:
            pair.run([*sends(), change, *sends()], waits=waits)
    pair.renew()
    pair.run([*sends(), *changes, *sends(), later(1000), *sends()])


def test_what_is_found_only_after_other_runs_says_so(pair: EnginePair) -> None:
    pair.run(sends())
    python, _ = pair.ends
    python.parts.stats.put_failed += 1
    with pytest.raises(Difference, match=r"^after other runs, not with new brokers: refused: 1 in Python, 0"):
        pair.run(sends())
    assert pair.run(sends()) >= TAKEN, "both are new"


# --- planted in the Python packer ---------------------------------------------------------------------------------

Change = tuple[Any, str, Any]  # owner, name there, what takes its place
HEAD = (
    "size", "magic", "body crc", "queue", "flag", "queue offset", "physical offset", "sys flag", "born", "born host",
    "stored", "store host", "reconsumed", "prepared", "body size",
)  # fmt: skip


def _in_head(name: str, change: Callable[[Any], Any]) -> list[Change]:
    at = HEAD.index(name)
    pack = HEAD_V4.pack

    def changed(*values: Any) -> bytes:
        return pack(*values[:at], change(values[at]), *values[at + 1 :])

    return [(appender, "HEAD_V4", SimpleNamespace(pack=changed))]


def _in_properties(change: Callable[[bytes, bytes], bytes]) -> list[Change]:
    """`change` is given what the sender has said, and what is added."""
    prepare = StoredProperties.prepare

    def changed(self: StoredProperties, text: str) -> tuple[bytes, dict[str, str]]:
        raw, mapping = prepare(self, text)
        return change(raw.removesuffix(self.suffix), self.suffix), mapping

    return [(StoredProperties, "prepare", changed)]


def _turned(text: bytes) -> bytes:
    return b"".join([piece + b"\x02" for piece in reversed(text.split(b"\x02")[:-1])])


def _in_entry(change: Callable[[int, int, int], tuple[int, int, int]]) -> list[Change]:
    entry = ENTRY
    changed = SimpleNamespace(
        pack=lambda *values: entry.pack(*change(*values)), unpack_from=entry.unpack_from
    )
    return [(appender, "ENTRY", changed)]


def _in_keys(change: Callable[[Any], Any]) -> list[Change]:
    name = "_keys_of_records"
    hashed = getattr(index, name)
    return [(index, name, lambda records: change(hashed(records)))]


def _in_answers(change: Callable[[bytes], bytes]) -> list[Change]:
    name = "_encode"
    encode = getattr(SendProcessor, name)
    return [(SendProcessor, name, lambda self, replies, code: change(encode(self, replies, code)))]


def _answers_turned() -> list[Change]:
    name = "_encode"
    encode = getattr(SendProcessor, name)
    return [(SendProcessor, name, lambda self, replies, code: encode(self, replies[::-1], code))]


def _one_byte_uncounted() -> list[Change]:
    name = "_append"
    append = getattr(Publisher, name)

    def changed(self: Publisher, published: Any, made: Any, counters: Any) -> None:
        append(self, published, made, counters)
        counters[0].size -= 1

    return [(Publisher, name, changed)]


def _mapped(address: str) -> bytes:
    """An IPv4 address in the form of an IPv6 one."""
    return bytes(10) + b"\xff\xff" + born_host(address)


def _doubled(keys: index.HashedKeys) -> index.HashedKeys:
    return index.joined_keys([keys, keys])


IN_PYTHON: dict[str, Callable[[], list[Change]]] = {
    "a bit of the system's flag": lambda: _in_head("sys flag", lambda value: value ^ 1),
    "a bit of the application's flag": lambda: _in_head("flag", lambda value: value ^ 4),
    "the time of storing taken twice": lambda: _in_head("stored", lambda value: value + 1),
    "the time of birth in seconds": lambda: _in_head("born", lambda value: value // 1000 * 1000),
    "a queue offset by one": lambda: _in_head("queue offset", lambda value: value + 1),
    "a physical offset in the file": lambda: _in_head("physical offset", lambda value: value + 1),
    "how often it came back forgotten": lambda: _in_head("reconsumed", lambda value: 0),
    "a transaction's place that is not zero": lambda: _in_head("prepared", lambda value: -1),
    "the checksum of a body with its highest bit": lambda: [(appender, "_CRC_MASK", 0xFFFFFFFF)],
    "another checksum of records": lambda: [(appender, "crc32c", zlib.crc32)],
    "another form of the checksum": lambda: [
        (appender, "RECORD_CHECKSUM_FORM", b"__CRC32C\x01%016x%08x\x02")
    ],
    "another form of the host of birth": lambda: [(publish, "born_host", _mapped)],
    "the host of the broker in its place": lambda: [
        (publish, "born_host", lambda address: b"\x7f\0\0\1\0\0\x2a\x9f")
    ],
    "another order of the sender's properties": lambda: _in_properties(
        lambda own, added: _turned(own) + added
    ),
    "another order of the broker's properties": lambda: _in_properties(
        lambda own, added: own + _turned(added)
    ),
    "the broker's properties in front": lambda: _in_properties(lambda own, added: added + own),
    "no separator behind the sender's": lambda: _in_properties(lambda own, added: own[:-1] + added),
    "no separator at the end": lambda: _in_properties(lambda own, added: own + added[:-1]),
    "another hash of the tag": lambda: [(publish, "tag_hash", lambda tag: zlib.crc32((tag or "").encode()))],
    "a queue entry one byte short": lambda: _in_entry(lambda place, size, tag: (place, size - 1, tag)),
    "a queue entry without its tag": lambda: _in_entry(lambda place, size, tag: (place, size, 0)),
    "keys hashed otherwise": lambda: _in_keys(lambda keys: keys._replace(hashes=keys.hashes + 1)),
    "keys indexed twice": lambda: _in_keys(_doubled),
    "an answer with another word": lambda: _in_answers(lambda raw: raw.replace(b"TRACE_ON", b"TRACE_NO")),
    "an id in small letters": lambda: _in_answers(lambda raw: raw.replace(b"7F00", b"7f00")),
    "answers in another order": _answers_turned,
    "a byte of a topic that is not counted": _one_byte_uncounted,
}


@pytest.mark.parametrize("name", IN_PYTHON)
def test_a_change_of_the_python_engine_alone_is_found(pair: EnginePair, name: str) -> None:
    """With one that answers when the disk has it: only there answers have to keep their order."""
    with ExitStack() as changes:
        for owner, attribute, replacement in IN_PYTHON[name]():
            changes.enter_context(patch.object(owner, attribute, replacement))
        with pytest.raises(Difference):
            pair.run(sends(), waits=True)


@pytest.mark.parametrize("name", ["digits turned", "another sum"])
def test_a_change_of_rocketmq_s_checksum_in_the_python_engine_alone_is_found(name: str) -> None:
    entry = property_crc_entry
    changed = {
        "digits turned": lambda crc: b"__CRC32#\x01%010d\x02" % crc,
        "another sum": lambda crc: entry(crc ^ 1),
    }[name]
    with engine_pair(enabled_append_prop_crc=True) as made:
        assert made.run(sends()) >= TAKEN
        with patch.object(appender, "property_crc_entry", changed), pytest.raises(Difference):
            made.run(sends())


# --- planted in what the native engine gives back -----------------------------------------------------------------

# The fields of `aerobee_broker.native.engine.TakenSends`, in order.
TAKEN_FIELDS = (
    "size", "requests", "messages", "records", "touched", "counted", "hashes", "places", "waiting", "at once",
    "version", "code",
)  # fmt: skip
NATIVE_CHANGES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a request fewer": ("requests", lambda value: value - 1),
    "a message fewer": ("messages", lambda value: value - 1),
    "a bit of a record": ("records", lambda raw: raw[:40] + bytes([raw[40] ^ 1]) + raw[41:]),
    "a queue offset by one": ("touched", lambda rows: [(queue, first + 1, raw) for queue, first, raw in rows]),
    "a queue entry missing": ("touched", lambda rows: [(queue, first, raw[:-20]) for queue, first, raw in rows]),
    "a tag of one more": (
        "touched",
        lambda rows: [(queue, first, raw[:-1] + bytes([raw[-1] ^ 1])) for queue, first, raw in rows],
    ),
    "a queue left out": ("touched", lambda rows: rows[1:]),
    "a topic left out": ("counted", lambda rows: []),
    "a byte more": ("counted", lambda rows: [(one, count, times, size + 1) for one, count, times, size in rows]),
    "a key's hash": ("hashes", lambda raw: bytes([raw[0] ^ 1]) + raw[1:]),
    "a key's place": ("places", lambda raw: raw[8:] + raw[:8]),
    "no keys": ("hashes", lambda raw: b""),
    "an answer's byte": ("waiting", lambda pair: (pair[0].replace(b"TRACE_ON", b"TRACE_NO"), pair[1])),
    "an answer lost": ("waiting", lambda pair: (b"".join(_framed(pair[0])[1:]), pair[1])),
    "answers in another order": ("waiting", lambda pair: (b"".join(_framed(pair[0])[::-1]), pair[1])),
    "answers that are awaited for ever": ("waiting", lambda pair: (pair[0], pair[1] + 1)),
    "an answer that waits for the disk": ("at once", lambda pair: (b"", 0)),
    "another version of the client": ("version", lambda value: value + 1),
}  # fmt: skip


def _framed(raw: bytes) -> list[bytes]:
    """The frames in these bytes."""
    found = []
    while raw:
        end = 4 + int.from_bytes(raw[:4], "big")
        found.append(raw[:end])
        raw = raw[end:]
    return found


class _Changed:
    """The native engine with a change in what it gives back."""

    def __init__(self, engine: Any, field: str, change: Callable[[Any], Any]) -> None:
        self._engine = engine
        self._at = TAKEN_FIELDS.index(field)
        self._change = change

    def take(self, *arguments: Any) -> Any:
        found = self._engine.take(*arguments)
        if found is None or found[1] < 2:
            return found
        return (*found[: self._at], self._change(found[self._at]), *found[self._at + 1 :])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


@pytest.mark.parametrize("name", NATIVE_CHANGES)
def test_a_change_of_the_native_engine_alone_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    real = importlib.import_module(MODULE).Engine
    field, change = NATIVE_CHANGES[name]
    made = SimpleNamespace(INTERFACE=INTERFACE, Engine=lambda **form: _Changed(real(**form), field, change))
    monkeypatch.setitem(sys.modules, MODULE, made)
    # One that cannot be taken at all fails in the broker itself.
    with engine_pair() as pair, pytest.raises(AssertionError):
        pair.run(sends(), waits=True)


# --- any bytes ----------------------------------------------------------------------------------------------------

RUN = 500  # frames
PART = 500_000


def compared(pair: EnginePair, count: int, seed: int) -> int:
    """Send so many frames that were changed to both; how many the native engine has taken."""
    rng, base, taken, done = random.Random(seed), bases(), 0, 0
    while done < count:
        steps: list[Step] = list(base[:4])
        for _ in range(min(RUN, count - done)):
            # One a read for the most part: behind a frame that is unusual the native engine takes none.
            frame = b"".join([mutated(rng, base), *rng.choices(base, k=rng.choice((0, 0, 0, 1, 3)))])
            steps += [frame, End.reconnect]
            done += 1
            decoder = FrameDecoder()
            decoder.feed(frame)
            if decoder.error is not None or decoder.pending_size:
                break  # no more is read of this connection, or its next frame would be a part of this one
            if not rng.randrange(50):
                steps.append(synced)
        taken += pair.run(steps, waits=bool(rng.getrandbits(1)))
    return taken


def test_changed_frames_come_to_the_same(pair: EnginePair) -> None:
    count = 6000
    assert count // 10 < compared(pair, count, 1) < count * 2


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.spread
@pytest.mark.parametrize("part", range(10_000_000 // PART), ids="part{}".format)
def test_ten_million_changed_frames_come_to_the_same(pair: EnginePair, part: int) -> None:
    """In parts, each of which can be run alone: `-k part7`."""
    assert compared(pair, PART, 1000 + part) > PART // 10
