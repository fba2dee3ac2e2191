"""Everything that official clients were recorded saying to an official broker, said to ours: the answers agree.

Compared are response codes, the names of the header fields and whether there is a body. Where we answer otherwise on
purpose, one table says how and why.
"""

import gzip
import json
from base64 import b64decode
from collections.abc import Iterator
from contextlib import AsyncExitStack
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from aerobee_broker.broker import Broker
from aerobee_proto.bodies import TopicConfig
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import Command, FrameDecoder, decode_command
from broker.support import GOLDEN, Clock, unpack_store
from engines import BOTH_ENGINES
from system.running import Talker, running_broker, talking

pytestmark = BOTH_ENGINES

WIRE = GOLDEN / "wire"
CODECS = ["JSON", "ROCKETMQ"]
NOW_MS = 1_795_300_000_000
SETTINGS: dict[str, Any] = {
    "broker_cluster_name": "GoldenCluster",
    "broker_name": "golden-a",
    "default_topic_queue_nums": 2,
    "mapped_file_size_consume_queue": 2000,
    "flush_disk_type": "ASYNC_FLUSH",  # the official default: answers come in the order of the requests
    "enable_property_filter": True,
}


class Answer(NamedTuple):
    """What is compared of an answer."""

    code: int
    fields: frozenset[str]
    has_body: bool


NOT_SUPPORTED = [Answer(3, frozenset(), False)]
REFUSED_PUT = frozenset({"MSG_REGION", "TRACE_ON"})

# Case -> (what we answer, why it is not what the official broker answers)
DIFFERENCES: dict[str, tuple[list[Answer], str]] = {
    "request code 0": ([], "code 0 is what an empty header reads as, and that is not answered"),
    "send v2 empty body": (
        [Answer(1, REFUSED_PUT, False)],
        "the official one fails with a null pointer before it gets to the fields",
    ),
    "batch with an empty body": ([Answer(1, REFUSED_PUT, False)], "as above"),
    "batch with a broken body": (
        [Answer(13, REFUSED_PUT, False)],
        "MESSAGE_ILLEGAL: with SYSTEM_ERROR a client would try the same bytes on every broker",
    ),
    "pull bad sql": ([Answer(23, frozenset(), False)], "a filter that does not compile lets everything through there"),
    "pull maxMsgNums 0": ([Answer(29, frozenset(), False)], "who asks for nothing is told, not given one message"),
    "send to a read-only topic": (
        [Answer(16, REFUSED_PUT, False)],
        "the permission of a topic holds for everybody, not only for those who look at routes",
    ),
    "update broker config bad": (
        [Answer(16, frozenset(), False)],
        "a key that does not exist is named; the official broker says that it has changed it",
    ),
    "broker config": (
        [Answer(0, frozenset({"version", "hotKeys"}), True)],
        "which keys count at once is told besides, for those who ask before they change one",
    ),
    "all delay offset": ([Answer(1, frozenset(), False)], "a fresh broker without delayed messages has no such file"),
}  # fmt: skip
NOT_REPLAYED = {
    # Ended there with the capture; here it may take a minute for the rest to come (ConnectionLimits.frame_s).
    "half a frame then silence",
    # The capture holds the beginning only; tests/broker/remoting_api/test_send.py sends one whole.
    "send v2 body over 4 MiB",
}
# No answer came within the time that the capture allowed: "may rarely be a slow one", as its README says.
SLOW_THERE = {("ROCKETMQ", "JSON: code as a string")}


def answer_of(command: Command) -> Answer:
    return Answer(command.code, frozenset(command.ext), bool(command.body))


def command_of(frame: bytes) -> Command:
    return decode_command(FrameDecoder().feed(frame)[0])


# --- odd and broken requests --------------------------------------------------------------------------------------


def malformed(codec: str) -> Iterator[dict[str, Any]]:
    for case in json.loads((WIRE / f"malformed-{codec}.json").read_bytes()):
        if case["to"] == "broker" and case["name"] not in NOT_REPLAYED:
            yield case


def official_answers(case: dict[str, Any]) -> list[Answer]:
    """The recorded responses, without the broker's own requests."""
    commands = [command_of(b64decode(answer["frame_b64"])) for answer in case["answers"]]
    return [answer_of(command) for command in commands if command.is_response]


async def say(client: Talker, data: bytes, count: float) -> tuple[list[Answer], bool]:
    """Send bytes: the answers before the connection ends or, after `count`, an ordinary request is answered."""
    client.writer.write(data)
    found: list[Answer] = []
    probe = None
    while True:
        if probe is None and len(found) >= count:
            client.opaque += 1
            probe = client.opaque
            client.send(
                Command(RequestCode.GET_MAX_OFFSET, opaque=probe, ext_fields={"topic": "x", "queueId": "0"})
            )
        try:
            command = await client.receive()
        except (EOFError, ConnectionError):
            return found, True
        if command.is_response and command.opaque == probe:
            return found, False
        if command.is_response:
            found.append(answer_of(command))


@pytest.mark.parametrize("codec", CODECS)
async def test_odd_and_broken_requests_get_the_official_answers(tmp_path: Path, codec: str) -> None:
    wrong: dict[str, object] = {}
    seen = set()
    async with running_broker(tmp_path, **SETTINGS) as broker:
        topic = TopicConfig(topic_name="GdBasic", read_queue_nums=2, write_queue_nums=2)
        broker.parts.topics.update([topic])
        for case in malformed(codec):
            name = case["name"]
            expected = official_answers(case)
            if name in DIFFERENCES:
                different, _ = DIFFERENCES[name]
                assert different != expected, f"{name} is no difference any more"
                expected = different
                seen.add(name)
            async with talking(broker) as client:
                count = 1 if (codec, name) in SLOW_THERE else len(expected)
                found, closed = await say(
                    client, b64decode(case["send_b64"]), inf if case["closed"] else count
                )
            if (codec, name) in SLOW_THERE:
                assert [answer.code for answer in found] == [0]
                continue
            if found != expected or closed is not case["closed"]:
                wrong[name] = {"official": (expected, case["closed"]), "ours": (found, closed)}
        broker.parts.store.check()
    assert wrong == {}
    assert seen == DIFFERENCES.keys()


# --- whole sessions -----------------------------------------------------------------------------------------------

# The binary `query` asks for ids and positions of another run than the one that left its store.
SESSIONS = [
    (codec, name)
    for codec in CODECS
    for name in ("producer", "pull", "query", "push", "litepull", "sql-filter")
    if (codec, name) != ("ROCKETMQ", "query")
]


class Line(NamedTuple):
    connection: int
    command: Command
    frame: bytes
    from_client: bool


def session(codec: str, name: str) -> Iterator[Line]:
    """The frames between clients and the broker, in the order in which they were seen."""
    with gzip.open(WIRE / codec / f"{name}.jsonl.gz", "rt") as lines:
        for text in lines:
            line = json.loads(text)
            if line.get("link") == "client-broker" and "frame_b64" in line:
                frame = b64decode(line["frame_b64"])
                yield Line(line["conn"], command_of(frame), frame, line["dir"] == "c2s")


class Replay:
    """Plays the clients of a session against our broker."""

    def __init__(self, broker: Broker, clock: Clock, stack: AsyncExitStack) -> None:
        self._broker = broker
        self._clock = clock
        self._stack = stack
        self._clients: dict[int, Talker] = {}
        self._requests: dict[tuple[int, int], Command] = {}
        self._early: dict[tuple[int, int], Command] = {}  # answers that came before they were asked for
        self.compared = 0
        self.wrong: list[object] = []

    async def play(self, line: Line) -> None:
        if line.connection not in self._clients:
            self._clients[line.connection] = await self._stack.enter_async_context(talking(self._broker))
        client = self._clients[line.connection]
        if line.from_client and not line.command.is_response:
            self._requests[line.connection, line.command.opaque] = line.command
            client.writer.write(line.frame)
        elif not line.from_client and line.command.is_response:
            await self._compare(client, line)

    async def _compare(self, client: Talker, line: Line) -> None:
        request = self._requests[line.connection, line.command.opaque]
        if line.command.code == ResponseCode.PULL_NOT_FOUND:
            self._clock.now_ms += 60_000  # it waited in vain
        ours = await self._answer(client, line)
        self.compared += 1
        expected = answer_of(line.command)
        if answer_of(ours) != expected:
            self.wrong.append(
                (RequestCode(request.code).name, expected, answer_of(ours), request.ext, ours.remark)
            )

    async def _answer(self, client: Talker, line: Line) -> Command:
        key = (line.connection, line.command.opaque)
        while key not in self._early:
            command = await client.receive()
            if command.is_response:
                self._early[line.connection, command.opaque] = command
        return self._early.pop(key)


@pytest.mark.parametrize(("codec", "name"), SESSIONS)
async def test_a_session_gets_the_official_answers(tmp_path: Path, codec: str, name: str) -> None:
    """On the official broker's own store, except for `producer`, which was recorded on a fresh one."""
    root = (
        tmp_path / "store"
        if name == "producer"
        else unpack_store(f"broker-traffic-{codec.lower()}", tmp_path)
    )
    for path in (root / "config").glob("consumerOffset.json*"):
        path.unlink()  # written at the end of the recordings
    clock = Clock(NOW_MS)
    async with running_broker(root, clock=clock, **SETTINGS) as broker, AsyncExitStack() as stack:
        replay = Replay(broker, clock, stack)
        for line in session(codec, name):
            await replay.play(line)
        assert replay.wrong == []
        assert replay.compared > 8
