"""Pulls of either engine get the same: the same requests of the same store, the same answers, offsets and counters.

Both brokers of a comparison run whole, in memory, with one clock. Readers ask the same again and again, as only what
was asked before reaches the engine, and odd things in between.
"""

import asyncio
import json
import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from struct import Struct
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from aerobee_access.signature import sign
from aerobee_broker.broker import Broker
from aerobee_broker.messages import visibility
from aerobee_proto.bodies import TopicConfig
from aerobee_proto.codes import PullFlag, RequestCode
from aerobee_proto.frames import Command, FrameDecoder, decode_command, encode_command
from aerobee_proto.javahash import tag_hash
from aerobee_proto.records import decode_records, encode_record
from aerobee_remoting.exchange.connection import Connection
from aerobee_store.log.commit_log import OldRecords
from aerobee_store.terms.config import StoreConfig
from broker.in_memory import broker_in_memory, talking_in_memory
from broker.remoting_api.test_native_sends import Transport, count_taken
from broker.support import Clock, handled, held_back
from engines import made_engine, make_engines_fail, need_engine
from send_frames import framed, mutated
from store.inside import log_of
from store.memory_io import MemoryIo
from system.running import send_request, text_of

PULL, LITE = RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE
USUAL = PullFlag.COMMIT_OFFSET | PullFlag.SUSPEND | PullFlag.SUBSCRIPTION
WORDS = Struct(">ii")
GROUP = "group"


@pytest.fixture(autouse=True)
def native() -> None:
    need_engine("native")


# --- what is done -------------------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Send:
    """A message, by whatever sends."""

    queue_id: int = 0
    tag: str = ""
    size: int = 100
    topic: str = "T"


@dataclass(slots=True, frozen=True)
class Reset:
    """An operator sends the group somewhere."""

    queue_id: int
    offset: int


@dataclass(slots=True, frozen=True)
class Pull:
    """A pull, before it is bytes."""

    queue_id: int = 0
    offset: str = "0"
    commit_offset: str = "0"
    count: str = "32"
    flags: int = USUAL
    expression: str | None = "*"
    kind: str | None = "TAG"
    topic: str = "T"
    group: str = GROUP
    code: int = PULL
    codec: int = 0
    flag: int = 0
    style: str = "java"
    body: bytes = b""
    damage: tuple[int, int] | None = None
    user: tuple[str, str] | None = None  # access key and secret, where it is signed
    freshness: str | None = None


Change = Callable[[Broker, Connection], None]
"""Something else that happens; by the connection that pulls, or by none."""
Step = Send | Reset | Pull | Change
ODD_NUMBERS = ["-1", "01", "+1", "", " 1", "9" * 18, "9" * 19, "-0", "x", "1.0", "4294967296"]
EXPRESSIONS = ["*"] * 6 + ["TagA", "TagA || TagB", "TagC", "Größe", "", " || ", None]


@st.composite
def pulls(draw: st.DrawFn) -> Pull:
    style = draw(
        st.sampled_from(["java"] * 8 + ["shuffled", "go", "spaced", "bare", "twice", "more", "null"])
    )
    kind = draw(st.integers(0, 19))
    odd: dict[str, Any] = {}
    if kind == 0:
        name = draw(st.sampled_from(["offset", "commit_offset", "count"]))
        odd[name] = draw(st.sampled_from(ODD_NUMBERS))
    elif kind == 1:
        odd["topic"] = draw(st.sampled_from(["Unknown", "WriteOnly", "", "t\\"]))
    elif kind == 2:
        odd["group"] = draw(st.sampled_from(["other", "CID_x", "", "no group!"]))
    elif kind == 3:
        odd["flag"] = draw(st.sampled_from([1, 2, 4]))
    elif kind == 4:
        odd["kind"], odd["expression"] = draw(
            st.sampled_from([("SQL92", "a > 1"), ("SQL92", "TAGS = 'TagA'"), ("XYZ", "*"), (None, "TagA")])
        )
    elif kind == 5:
        odd["damage"] = (draw(st.integers(0, 2**20)), draw(st.integers(0, 255)))
    elif kind == 6:
        odd["body"] = b"x"
    elif kind == 7:
        odd["flags"] = draw(st.integers(0, 31))
    elif kind == 8:
        odd["queue_id"] = draw(st.sampled_from([-1, 2, 7]))
    made: dict[str, Any] = {
        "queue_id": draw(st.integers(0, 1)),
        "offset": str(draw(st.sampled_from([0, 0, 0, *range(-1, 30)]))),
        "commit_offset": str(draw(st.integers(-1, 40))),
        "count": draw(st.sampled_from(["32", "32", "32", "1", "5", "1000"])),
        "expression": draw(st.sampled_from(EXPRESSIONS)),
        "flags": draw(st.sampled_from([USUAL, USUAL, PullFlag.SUBSCRIPTION, PullFlag.COMMIT_OFFSET])),
        "code": draw(st.sampled_from([PULL, PULL, PULL, LITE])),
        "codec": draw(st.sampled_from([0, 0, 1, 2])),
        "style": style,
    }
    return Pull(**made | odd)


SENDS = st.builds(
    Send, st.integers(0, 1), st.sampled_from(["", "TagA", "TagB"]), st.sampled_from([1, 100, 100, 3000])
)
STEPS = st.one_of(pulls(), pulls(), pulls(), SENDS, st.builds(Reset, st.integers(0, 1), st.integers(0, 9)))


def frame_of(pull: Pull, opaque: int) -> bytes:
    """The request as bytes, in its style."""
    fields: dict[str, Any] = {
        "consumerGroup": pull.group,
        "topic": pull.topic,
        "queueId": str(pull.queue_id),
        "queueOffset": pull.offset,
        "maxMsgNums": pull.count,
        "sysFlag": str(int(pull.flags)),
        "commitOffset": pull.commit_offset,
        "suspendTimeoutMillis": "15000",
        "subVersion": "7",
    }
    if pull.expression is not None:
        fields["subscription"] = pull.expression
    if pull.kind is not None:
        fields["expressionType"] = pull.kind
    if pull.user is not None:
        fields = sign(fields, pull.body, *pull.user, freshness=pull.freshness)
    if pull.codec == 0:
        header = _json_header(pull, fields, opaque)
    else:
        whole = Command(pull.code, opaque=opaque, flag=pull.flag, ext_fields=fields, codec=pull.codec)
        if pull.style == "go":
            whole.remark = "remark"
        header = encode_command(whole)[8:]
    return framed(pull.codec, header, pull.body, pull.damage)


def _json_header(pull: Pull, fields: dict[str, Any], opaque: int) -> bytes:
    style, ext = pull.style, dict(fields)
    if style == "bare":
        ext = {
            name: int(text) if text.isascii() and text.isdigit() else text for name, text in fields.items()
        }
    if style == "null":
        ext["maxMsgBytes"] = None
    if style == "more":
        ext["Signature"] = "abc"
    if style == "shuffled":
        ext = dict(sorted(ext.items(), reverse=True))
    whole: dict[str, Any] = {"code": pull.code, "extFields": ext, "flag": pull.flag, "language": "JAVA"}
    whole |= {"opaque": opaque, "serializeTypeCurrentRPC": "JSON", "version": 475}
    if style == "go":
        whole = {"code": pull.code, "language": "GO", "version": 317, "opaque": opaque, "flag": pull.flag}
        whole |= {"remark": "", "extFields": ext}
    text = json.dumps(whole, ensure_ascii=False, separators=None if style == "spaced" else (",", ":"))
    if style == "twice":
        text = text[:-1] + ',"extFields":' + json.dumps(fields | {"queueOffset": "1"}) + "}"
    return text.encode()


# --- comparing ----------------------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Outcome:
    """All that can be seen of a broker that was asked something."""

    written: bytes
    counters: dict[str, object]
    native: int  # pulls that the engine answered


async def outcome(
    engine: str, steps: Sequence[Step], cuts: Sequence[int] | None, more: dict[str, Any]
) -> Outcome:
    async with broker_in_memory(
        clock=Clock(),
        send_engine=engine,
        mapped_file_size_commit_log=16_384,
        max_message_size=8_000,
        flush_disk_type="ASYNC_FLUSH",
        **more,
    ) as broker:
        assert broker.parts.observed.engine() == engine
        broker.parts.topics.update(
            [
                TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2),
                TopicConfig(topic_name="WriteOnly", perm=2),
            ]
        )
        transport = Transport()
        connection = Connection(broker.handlers)
        connection.connection_made(transport)
        sender = Connection(broker.handlers)
        sender.connection_made(Transport())
        connection.data_received(heartbeat())
        native = count_taken(broker)
        for run in _runs(steps, are_joined=cuts is not None):
            if isinstance(run, bytes):
                for read in cut(run, cuts or ()):
                    connection.data_received(read)
                await asyncio.sleep(0)
            elif isinstance(run, Send):
                sender.data_received(encode_command(_message(run)))
                await handled(sender)
                await asyncio.sleep(0)
            elif isinstance(run, Reset):
                broker.parts.offsets.assign_reset(GROUP, "T", run.queue_id, run.offset)
            else:
                run(broker, connection)
        for _ in range(1000):
            if not (connection.in_flight or held_back(connection)):
                break
            await asyncio.sleep(0.001)
        return Outcome(bytes(transport.written), _counters(broker), native())


def _runs(steps: Sequence[Step], *, are_joined: bool) -> list[Send | Reset | Change | bytes]:
    """The steps, pulls as bytes; those that follow each other as one stream, if they are to be joined."""
    runs: list[Send | Reset | Change | bytes] = []
    for number, step in enumerate(steps):
        if not isinstance(step, Pull):
            runs.append(step)
        elif are_joined and runs and isinstance(runs[-1], bytes):
            runs[-1] += frame_of(step, number)
        else:
            runs.append(frame_of(step, number))
    return runs


def _message(send: Send) -> Command:
    properties = {"UNIQ_KEY": "0A" * 16} | ({"TAGS": send.tag} if send.tag else {})
    return send_request(send.topic, b"x" * send.size, queue_id=send.queue_id, properties=text_of(properties))


def heartbeat(tag: str = "TagA", version: int = 9, topic: str = "T", model: str = "CLUSTERING") -> bytes:
    """Registers the group, with a subscription for pulls that bring none."""
    subscription = {"topic": topic, "subString": tag, "subVersion": version, "tagsSet": [tag], "codeSet": []}
    subscription["codeSet"] = [tag_hash(tag)]
    consumer = {
        "groupName": GROUP,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": model,
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [subscription],
    }
    body = {"clientID": "me", "consumerDataSet": [consumer], "producerDataSet": []}
    return encode_command(Command(RequestCode.HEART_BEAT, body=json.dumps(body).encode()))


def _counters(broker: Broker) -> dict[str, object]:
    stats, offsets = broker.parts.stats, broker.parts.offsets
    counted = {
        pair: [(one.value, one.times) for one in (found.get_count, found.get_bytes)]
        for pair, found in sorted(stats.groups.items())
    }
    in_all = (stats.get_count, stats.get_bytes, stats.pulls_found, stats.pulls_missed)
    return {
        "groups": counted,
        "all": [(one.value, one.times) for one in in_all],
        "requests": {
            code: (entry.requests, entry.refused) for code, entry in broker.handlers.by_code.items()
        },
        "held": len(broker.parts.pulls.held),
        "committed": [offsets.get(GROUP, "T", queue_id) for queue_id in range(2)],
        "pulled": [offsets.pulled(GROUP, "T", queue_id) for queue_id in range(2)],
        "revision": offsets.revision,
        "known": [name for name in (GROUP, "other", "CID_x", "newcomers") if name in broker.parts.groups],
    }


def compare(steps: Sequence[Step], cuts: Sequence[int] | None = None, **more: Any) -> Outcome:
    """The outcome with the native engine, which is that with Python's. `cuts` are the ends of reads; None: each pull is
    one."""
    python = asyncio.run(outcome("python", steps, cuts, more))
    native = asyncio.run(outcome("native", steps, cuts, more))
    assert native.written == python.written
    assert native.counters == python.counters
    assert python.native == 0
    return native


def cut(stream: bytes, places: Sequence[int]) -> list[bytes]:
    """The stream in reads that end at these places."""
    ends = sorted({place % (len(stream) + 1) for place in places} | {0, len(stream)})
    return [stream[begin:end] for begin, end in pairwise(ends)]


# --- tests --------------------------------------------------------------------------------------------------------

STORED: list[Step] = [Send(at % 2, ("", "TagA", "TagB")[at % 3], 50 + 37 * at) for at in range(24)]


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEPS, min_size=1, max_size=40), st.lists(st.integers(0, 2**20), max_size=4))
def test_either_engine_comes_to_the_same(steps: list[Step], cuts: list[int]) -> None:
    compare([*STORED, *steps, *steps], cuts)


def answers_of(found: Outcome) -> list[Command]:
    """Those to pulls."""
    commands = [decode_command(frame) for frame in FrameDecoder().feed(found.written)]
    return [command for command in commands if command.is_response][1:]  # behind that to the heartbeat


@pytest.mark.parametrize("codec", [0, 1, 2])
@pytest.mark.parametrize("code", [PULL, LITE])
@pytest.mark.parametrize("expression", ["*", "TagA", "TagB || TagA", None])
def test_usual_pulls_are_the_engine_s(codec: int, code: int, expression: str | None) -> None:
    """But for the first, which asks whether the queue is in memory, of all that differ in nothing but offsets."""
    flags = USUAL if expression is not None else USUAL & ~PullFlag.SUBSCRIPTION
    asked = [
        Pull(
            offset=str(at), commit_offset=str(at), codec=codec, code=code, expression=expression, flags=flags
        )
        for at in (0, 2, 5, 9, 0)
    ]
    found = compare([*STORED, *asked])
    assert {answer.code for answer in answers_of(found)} == {0}
    assert found.native >= len(asked) - 2, "one more may ask again, when a second is over"


def test_pulls_of_one_read_are_taken_together() -> None:
    asked = [Pull(offset=str(at % 10), queue_id=at % 2) for at in range(20)]
    assert compare([*STORED, *asked[:2], STORED[0], *asked], ()).native >= 18


def test_pulls_over_the_end_of_a_file_and_those_that_find_nothing_go_on_in_python() -> None:
    stored = [Send(size=3000, tag="TagA") for _ in range(12)]
    texts = ("*", "TagA", "TagB")
    asked = [Pull(offset=str(at), expression=text, count="2") for at in range(13) for text in texts]
    found = compare([*stored, *asked])
    assert 10 < found.native < len(asked) - 8


def _beat(**what: Any) -> Change:
    return lambda _, connection: connection.data_received(heartbeat(**what))


def _gone(_: Broker, connection: Connection) -> None:
    fields = {"clientID": "me", "consumerGroup": GROUP}
    connection.data_received(encode_command(Command(RequestCode.UNREGISTER_CLIENT, ext_fields=fields)))


def _no_broadcasts(broker: Broker, _: Connection) -> None:
    config = broker.parts.groups.require(GROUP)
    broker.parts.groups.update([msgspec.structs.replace(config, consume_broadcast_enable=False)])


def _forbidden(broker: Broker, _: Connection) -> None:
    broker.parts.groups.set_forbidden(GROUP, "T", forbidden=True)


@pytest.mark.parametrize(
    ("changes", "found", "native"),
    [
        ([], [3, 3], 4),
        ([_beat()], [3, 3], 4),
        ([_beat(tag="TagB", version=8)], [3, 3], 4),  # what is older counts for nothing
        ([_beat(tag="TagB", version=10)], [1, 1], 4),
        ([_beat(model="BROADCASTING")], [3, 3], 4),
        ([_no_broadcasts], [3, 3], 4),
        ([_no_broadcasts, _beat(model="BROADCASTING")], [None, None], 2),
        ([_forbidden], [None, None], 2),
        ([_beat(topic="Other")], [None, None], 2),
        ([_gone], [None, None], 2),
        ([_gone, _beat(tag="TagB", version=7)], [1, 1], 4),
    ],
)
def test_who_brings_no_filter_has_that_of_the_group_as_it_is_now(
    changes: list[Change], found: list[int | None], native: int
) -> None:
    """It is found once, and again when what members want has changed: so pull consumers of RocketMQ's clients."""
    stored = [Send(tag=tag) for tag in ("TagA", "TagB", "TagA", "TagA")]
    asked = [Pull(expression=None, flags=0)] * 2
    outcome = compare([*stored, *asked, *changes, *asked])
    counts = [
        None if answer.code else len(list(decode_records(answer.body or b"")))
        for answer in answers_of(outcome)
    ]
    counts = [count for count in counts if count != 0]  # heartbeats
    assert counts[:2] == [3, 3]
    assert counts[-2:] == found
    assert outcome.native - compare(stored).native == native


def test_a_pending_reset_reaches_the_next_pull() -> None:
    asked: list[Step] = [Pull(offset="1"), Pull(offset="2"), Reset(0, 7), Pull(offset="3"), Pull(offset="7")]
    found = compare([*STORED, *asked])
    assert [answer.remark for answer in answers_of(found)] == ["FOUND", "FOUND", "OFFSET_RESET", "FOUND"]


@pytest.mark.parametrize(
    "more",
    [
        {"slave_read_enable": True},
        {"max_transfer_bytes_on_message_in_memory": 1000},
        {"max_transfer_count_on_message_in_memory": 3},
        {"broker_permission": 2},
        {"lite_pull_message_enable": False},
        {"auto_create_subscription_group": False},
        {"max_filter_message_size": 100},
    ],
    ids=lambda more: next(iter(more)),
)
def test_settings_mean_the_same_to_both(more: dict[str, Any]) -> None:
    asked = [
        Pull(offset=str(at), code=code, expression=expression)
        for at in (0, 3, 4)
        for code in (PULL, LITE)
        for expression in ("*", "TagA")
    ]
    compare([*STORED, *asked, Pull(group="newcomers"), Pull(group="newcomers")], **more)


# --- what an earlier run has written ------------------------------------------------------------------------------

# Where a record has what no body's checksum covers, and a byte of its body.
DAMAGE = {"size": 3, "magic": 5, "queue id": 15, "queue offset": 27, "place": 35, "body": 90}


async def outcome_again(engine: str, steps: Sequence[Step], damage: dict[int, int], **more: Any) -> Outcome:
    """Of pulls behind a start: of messages that this has not proven, but for the last, which comes then. `damage`: a
    bit that is changed at a place of the record of each of these numbers in queue 0."""
    disk = MemoryIo()
    shape: dict[str, Any] = {
        "io": disk,
        "clock": Clock(),
        "send_engine": engine,
        "mapped_file_size_commit_log": 16_384,
        "max_message_size": 8_000,
        "flush_disk_type": "ASYNC_FLUSH",
    }
    async with broker_in_memory(**shape | more) as broker:
        broker.parts.topics.update([TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)])
        sender = Connection(broker.handlers)
        sender.connection_made(Transport())
        for number in range(60):
            sender.data_received(
                encode_command(_message(Send(number % 2, ("", "TagA")[number % 3 > 0], 500)))
            )
            await handled(sender)
            await asyncio.sleep(0)
        reading = broker.parts.store.reading
        while reading.max_offset("T", 0) < 30:  # noqa: ASYNC110 - what nobody waits for is shown a moment later
            await asyncio.sleep(0)
        places = [reading.queue_entry("T", 0, number) for number in range(30)]
    for number, at in damage.items():
        entry = places[number]
        assert entry is not None
        file, position = divmod(entry.physical_offset + at, 16_384)
        disk.flip(Path(f"/store/commitlog/{file * 16_384:020d}"), position)
    async with broker_in_memory(**shape) as broker:
        assert places[-1] is not None
        assert places[-1].physical_offset < log_of(broker.parts.store).proven_from
        sender = Connection(broker.handlers)
        sender.connection_made(Transport())
        sender.data_received(encode_command(_message(Send(0, "TagA"))))
        await handled(sender)
        transport, count = Transport(), count_taken(broker)
        connection = Connection(broker.handlers)
        connection.connection_made(transport)
        for number, step in enumerate(steps):
            assert isinstance(step, Pull)
            connection.data_received(frame_of(step, number))
            await handled(connection)
            await asyncio.sleep(0)
        return Outcome(bytes(transport.written), _counters(broker), count())


def compare_again(steps: Sequence[Step], damage: dict[int, int] | None = None, **more: Any) -> Outcome:
    python = asyncio.run(outcome_again("python", steps, damage or {}, **more))
    native = asyncio.run(outcome_again("native", steps, damage or {}, **more))
    assert native.written == python.written
    assert native.counters == python.counters
    return native


OLD_PULLS: list[Step] = [
    Pull(offset=str(at), expression=text, codec=codec, count="3")
    for codec in (0, 1, 2)
    for text in ("*", "TagA")
    for at in (0, 1, 5, 6, 11, 21, 29)
]


@pytest.mark.parametrize("has_crc", [True, False])
def test_messages_of_an_earlier_run_are_gathered_when_they_are_proven(has_crc: bool) -> None:
    """By Python each record took as long as all of them take now, for everything that was stored before a start."""
    found = compare_again(OLD_PULLS, enabled_append_prop_crc=has_crc)
    assert [decode_command(frame).code for frame in FrameDecoder().feed(found.written)] == [0] * len(
        OLD_PULLS
    )
    assert found.native > len(OLD_PULLS) / 2, "but those over the end of a file, and each first one"


@pytest.mark.parametrize("at", DAMAGE.values(), ids=DAMAGE)
def test_a_message_of_an_earlier_run_that_is_not_what_it_was_is_left_to_python(at: int) -> None:
    found = compare_again(OLD_PULLS, {6: at})
    numbers = [
        one.queue_offset
        for frame in FrameDecoder().feed(found.written)
        for one in decode_records(decode_command(frame).body)
    ]
    assert 5 in numbers
    assert 7 in numbers
    assert 6 not in numbers


def record_of(number: int, **changes: Any) -> bytes:
    usual: dict[str, Any] = {
        "topic": "T",
        "queue_id": 3,
        "queue_offset": number,
        "born_timestamp": 1_700_000_000_000,
        "born_host": ("10.1.2.3", 4567),
        "store_timestamp": 1_700_000_000_001,
        "store_host": ("10.1.2.3", 4567),
        "body": b"body",
        "checksum": True,
    }
    return encode_record(**usual | changes)


@pytest.mark.parametrize(
    ("what", "is_right"),
    [
        ({}, True),
        ({"checksum": False}, True),
        ({"topic": "U"}, False),
        ({"queue_id": 4}, False),
        ({"queue_offset": 8}, False),
        ({"store_timestamp": 0}, False),
    ],
)
@pytest.mark.parametrize("tags", [None, array("i", [0]).tobytes()])
def test_old_records_are_those_that_their_entries_say(
    what: dict[str, Any], is_right: bool, tags: bytes | None
) -> None:
    log, entries, never = b"", b"", 1 << 62
    for number in range(5, 9):
        place = 1000 + len(log)
        one = record_of(number, physical_offset=place, **(what if number == 7 else {}))
        entries += ENTRY.pack(place, len(one), 0)
        log += one
    file = memoryview(log), 1000, 1000 + len(log)
    engine = made_engine()
    for trust in ((never, never), (0, never), (1000, 1000)):
        old = b"T", 3, 5, trust
        assert (gathered(engine, entries, log, tags=tags, old=old) is not None) is is_right
        assert engine.are_sound(memoryview(entries), file, old) is is_right
    sealed = b"T", 3, 5, (never, 0)
    has_checksums = is_right and what.get("checksum", True)
    assert (gathered(engine, entries, log, tags=tags, old=sealed) is not None) is has_checksums
    assert engine.are_sound(memoryview(entries), file, sealed) is has_checksums


def test_an_old_record_is_proven_where_it_has_to_be_and_nowhere_else() -> None:
    log = record_of(5, physical_offset=1000).replace(b"body", b"bodX")
    entries, file = memoryview(ENTRY.pack(1000, len(log), 0)), (memoryview(log), 1000, 1000 + len(log))
    engine = made_engine()
    assert engine.are_sound(entries, file, (b"T", 3, 5, (1000, 0)))
    assert not engine.are_sound(entries, file, (b"T", 3, 5, (1001, 0)))
    assert not engine.are_sound(entries[:19], file, (b"T", 3, 5, (1000, 0))), "no whole entry"
    assert not engine.are_sound(memoryview(b""), file, (b"T", 3, 5, (1000, 0)))
    with pytest.raises(BufferError):
        engine.are_sound(entries, (memoryview(log[:-1]), *file[1:]), (b"T", 3, 5, (1000, 0)))


@pytest.mark.parametrize("sends_to_slaves", [False, True])
def test_what_lies_far_behind_the_end_is_gathered_where_nobody_is_sent_to_a_slave(
    sends_to_slaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StoreConfig, "in_memory_distance", property(lambda config: 0))
    asked = [Pull(expression=text) for text in ("*", "TagA", "*", "TagA")]
    stored = [Send(tag="TagA") for _ in range(40)]
    found = compare([*stored, *asked], slave_read_enable=sends_to_slaves)
    fields = [answer.ext_fields or {} for answer in answers_of(found)]
    assert {one["nextBeginOffset"] for one in fields} == {"32"}
    assert {one["suggestWhichBrokerId"] for one in fields} == {"1" if sends_to_slaves else "0"}
    sends = compare(stored).native
    assert found.native - sends == (0 if sends_to_slaves else len(asked))


class _Noting(Transport):
    """Notes for each write how many requests of a code the front had been counted for."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.code = 0
        self.counted: list[int] = []
        self._by_code = broker.handlers.by_code

    def write(self, data: bytes | bytearray | memoryview) -> None:
        super().write(data)
        self.counted.append(self._by_code[self.code].by_front)


async def test_the_last_answer_of_a_read_leaves_before_it_is_noted_what_was_asked() -> None:
    """Who has one request under way waits for its answer; those of several leave in one write all the same."""
    async with (
        broker_in_memory(send_engine="native", flush_disk_type="ASYNC_FLUSH") as broker,
        talking_in_memory(broker) as client,
    ):
        properties = text_of({"KEYS": "key", "UNIQ_KEY": "U"})
        for _ in range(2):
            await client.put("T", b"x", properties=properties)
        fields = {
            "topic": "T",
            "key": "key",
            "maxNum": "64",
            "beginTimestamp": "0",
            "endTimestamp": str(2**62),
        }
        asked = {
            "pull": client.pull_request("T", 0, subscription="*", expressionType="TAG"),
            "query": Command(RequestCode.QUERY_MESSAGE, ext_fields=fields),
            "send": send_request("T", b"x", properties=properties),
        }
        await client.exchange(asked["query"])  # the keys are indexed then
        transport = _Noting(broker)
        connection = Connection(broker.handlers)
        connection.connection_made(transport)
        for command in asked.values():
            transport.code = command.code
            transport.counted.clear()
            before = broker.handlers.by_code[command.code].by_front
            frame = encode_command(command)
            for read in (frame, frame, frame * 3):
                transport.written.clear()
                connection.data_received(read)
                answers = FrameDecoder().feed(bytes(transport.written))
                assert [decode_command(one).code for one in answers] == [0] * (len(read) // len(frame))
            assert transport.counted == [before, before + 1, before + 2]
            assert broker.handlers.by_code[command.code].by_front == before + 5
        connection.connection_lost(None)


async def test_whoever_looks_finds_all_that_was_sent_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody waits for messages, many reads of sends are shown together: not to those who ask meanwhile."""
    monkeypatch.setattr(visibility, "TOGETHER_S", 600.0)
    async with (
        broker_in_memory(send_engine="native", flush_disk_type="ASYNC_FLUSH") as broker,
        talking_in_memory(broker) as sender,
        talking_in_memory(broker) as client,
    ):
        store, count, number = broker.parts.store, count_taken(broker), 0

        async def sent() -> int:
            nonlocal number
            number += 1
            await sender.put("T", b"x", properties=text_of({"KEYS": "key", "UNIQ_KEY": f"U{number}"}))
            return number

        def pull(offset: int) -> Command:
            return client.pull_request("T", offset, subscription="*", expressionType="TAG")

        while not count():
            await sent()
        await client.exchange(pull(0))
        for _ in range(3):
            wanted = await sent()
            assert store.reading.max_offset("T", 0) < wanted, "it waits"
            assert (await client.exchange(pull(wanted - 2))).ext["nextBeginOffset"] == str(wanted)
            wanted = await sent()
            asked = Command(RequestCode.GET_MAX_OFFSET, ext_fields={"topic": "T", "queueId": "0"})
            assert (await client.exchange(asked)).ext["offset"] == str(wanted)
            fields = {"topic": "T", "key": "key", "maxNum": "64", "beginTimestamp": "0"}
            asked = Command(RequestCode.QUERY_MESSAGE, ext_fields=fields | {"endTimestamp": str(2**62)})
            for _ in range(2):
                wanted = await sent()
                assert len(decode_records((await client.exchange(asked)).body)) == wanted


@pytest.mark.parametrize("what", ["pull", "learn_pull", "gather"])
async def test_after_a_fault_pulls_are_answered_in_python(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_engines_fail(monkeypatch, what)
    async with (
        broker_in_memory(send_engine="native", flush_disk_type="ASYNC_FLUSH") as broker,
        talking_in_memory(broker) as client,
    ):
        await client.put("T", b"x")
        with capture_logs() as logs:
            answers = [await client.pull("T") for _ in range(3)]
        assert [answer.remark for answer in answers] == ["FOUND"] * 3
        assert [entry["event"] for entry in logs].count("broker.engine_failed") == 1
        assert (broker.parts.observed.engine(), broker.handlers.front) == ("python", None)


# --- the engine alone ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [0, 1, 2])
def test_what_was_learned_is_found_for_other_numbers_and_for_nothing_else(codec: int) -> None:
    engine = made_engine()
    first = frame_of(Pull(codec=codec), 1)
    assert engine.pull(first, 0) == (None, len(first), 0, 0, 1, None, None)
    engine.learn_pull("what")
    other = frame_of(Pull(codec=codec, offset="123", commit_offset="-1"), 77)
    assert engine.pull(b"before" + other + b"behind", 6) == ("what", 6 + len(other), 123, -1, 77, None, None)
    for change in (
        {"queue_id": 1},
        {"count": "33"},
        {"flags": 0},
        {"group": "g"},
        {"code": LITE},
        {"flag": 2},
    ):
        found = engine.pull(frame_of(Pull(codec=codec, **change), 1), 0)
        assert found is not None, change
        assert found[0] is None, change
    assert engine.pull(frame_of(Pull(codec=codec, body=b"x"), 1), 0) is None
    assert engine.pull(first[:-1], 0) is None
    assert engine.pull(first, len(first) + 1) is None
    assert engine.pull(first, 2**63) is None


def test_those_who_asked_last_are_remembered() -> None:
    engine = made_engine()
    for number in range(10_000):
        for queue_id in (0, number + 1):  # the first one asks again and again
            _, *found = engine.pull(frame_of(Pull(queue_id=queue_id), 1), 0)
            assert found[1:] == [0, 0, 1, None, None]
            if queue_id == number + 1 or number == 0:
                engine.learn_pull(queue_id)
    known = [engine.pull(frame_of(Pull(queue_id=at), 1), 0)[0] for at in (0, 1, 10_000)]
    assert known == [0, None, 10_000]


def test_changed_pulls_are_no_others() -> None:
    """Whatever is changed in a request, it is read as Python reads it or left to it."""
    engine, rng = made_engine(), random.Random(3)
    base = [frame_of(Pull(codec=codec, style=style), 1) for codec in (0, 1, 2) for style in ("java", "go")]
    base += [
        frame_of(Pull(codec=codec, user=("u", "secret"), freshness="aerobee1:1:-:1:11;"), 1)
        for codec in (0, 1, 2)
    ]
    for frame in base:
        if engine.pull(frame, 0) is not None:
            engine.learn_pull(decode_command(FrameDecoder().feed(frame)[0]).ext)
    taken = 0
    for _ in range(20_000):
        frame = mutated(rng, base)
        found = engine.pull(frame, 0)
        if found is None or found[0] is None:
            continue
        taken += 1
        read = decode_command(FrameDecoder().feed(frame[: found[1]])[0])
        changing = {"queueOffset": str(found[2]), "commitOffset": str(found[3])}
        for name, text in zip(("Signature", "AccessFreshness"), found[5:], strict=True):
            assert (text is None) is (name not in read.ext)
            changing |= {} if text is None else {name: text.decode()}
        assert (read.ext, read.opaque) == (found[0] | changing, found[4])
    assert taken > 100


ENTRY = Struct(">qiq")
RECORD_HEAD = Struct(">iI4xi4xqq")


def record(place: int, size: int, magic: int = 0xDAA320A7) -> bytes:
    return RECORD_HEAD.pack(size, magic, 0, 0, place).ljust(size, b"r")


def gathered(
    engine: Any,
    entries: bytes,
    log: bytes,
    *,
    tags: bytes | None = None,
    limit: int | None = None,
    old: OldRecords | None = None,
) -> Any:
    nearby = (
        memoryview(entries),
        memoryview(log),
        1000,
        1000 + len(log) if limit is None else limit,
        32,
        10_000,
        0,
        99,
        old,
    )
    return engine.gather(nearby, tags, 5, 0, (0, 1))


@pytest.mark.parametrize("gap", [0, 30, 20_000])
@pytest.mark.parametrize("tags", [None, array("i", [-7, 3, 9]).tobytes()])
def test_records_are_gathered_wherever_they_lie(gap: int, tags: bytes | None) -> None:
    log, entries, records = b"", b"", []
    for number in range(10):
        place = 1000 + len(log)
        records.append(record(place, 100 + number))
        log += records[-1] + b"\0" * gap
        entries += ENTRY.pack(place, 100 + number, (-7, 3, 9)[number % 3])
    answer, count, size, following = gathered(made_engine(), entries, log, tags=tags)
    assert (count, size, following) == (10, sum(map(len, records)), 15)
    assert decode_command(FrameDecoder().feed(answer)[0]).body == b"".join(records)


@pytest.mark.parametrize(
    "entry",
    [
        (999, 100, 3),
        (1000, 0, 3),
        (1000, -1, 3),
        (1000, 35, 3),
        (1000, 101, 3),
        (2**63 - 1, 100, 3),
        (-(2**63), 100, 3),
        (1000, 2**31 - 1, 3),
        (1001, 99, 3),
    ],
)
def test_an_entry_that_leads_to_no_record_is_left_to_python(entry: tuple[int, int, int]) -> None:
    engine, log, tags = made_engine(), record(1000, 100), array("i", [3]).tobytes()
    assert gathered(engine, ENTRY.pack(1000, 100, 3), log, tags=tags) is not None
    assert gathered(engine, ENTRY.pack(*entry), log, tags=tags) is None
    assert gathered(engine, ENTRY.pack(1000, 100, 3), record(1000, 100, magic=1), tags=tags) is None


def test_what_is_no_file_is_refused() -> None:
    engine, log = made_engine(), record(1000, 100)
    with pytest.raises(ValueError, match="file of the log"):
        gathered(engine, ENTRY.pack(1000, 100, 3), log, limit=999)
    with pytest.raises(BufferError):
        gathered(engine, ENTRY.pack(1000, 100, 3), log[:50], limit=1100)
