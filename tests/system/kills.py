"""A broker process under load that is killed again and again, and the ledger that says what it owes.

Touches  a store folder with small files, broker processes, local TCP ports.

Ledger   Every message has a number, which its body begins with, and is sent once. What was acknowledged, and what
         a reader has seen, has to be found at the same place after every restart; nothing may be found twice.
Load     One connection with single sends, pipelined; one with batches; one that makes topics and commits offsets.
Endings  SIGKILL after a number of acknowledgements or milliseconds; SIGKILL by the process itself at a failpoint
         while it runs, starts or stops.
"""

import asyncio
import itertools
import json
import random
import signal
import sys
import zlib
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from aerobee_broker.settings.config import BrokerConfig, to_store_config
from aerobee_proto.batch import BatchEntry, encode_batch
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import Command
from aerobee_proto.records import StoredRecord, decode_records
from aerobee_store.disk.io import DiskIo
from aerobee_store.faults.failpoints import FAILPOINTS
from aerobee_store.offline.inspection import Inspection
from aerobee_store.offline.verify import verify as look_at
from aerobee_store.store import MessageStore
from nursery import forking
from programs import Program, ProgramError
from system.running import Talker, send_request, talking, text_of

__all__ = [
    "BATCH_TOPIC",
    "CONNECTION_LOST",
    "BrokerProcess",
    "Ending",
    "Ledger",
    "Settings",
    "batches",
    "check_closed_store",
    "endings",
    "find_by_key",
    "make_load_topics",
    "run_cycle",
    "send_one",
    "singles",
    "start",
    "verify",
]

# Small enough that one cycle of load fills several files of every kind.
SETTINGS: Final[dict[str, object]] = {
    "listenPort": 0,
    "bindAddress": "127.0.0.1",
    "brokerIP1": "127.0.0.1",
    "mappedFileSizeCommitLog": 64 * 1024,
    "mappedFileSizeConsumeQueue": 4000,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
    "flushIntervalCommitLog": 5,
    "flushIntervalConsumeQueue": 10,
    "flushConsumerOffsetInterval": 10,
    "metricsExporterType": "DISABLE",
    # However full this machine's disk is: nothing is deleted, nothing refused.
    "diskSpaceWarningLevelRatio": 100,
    "diskSpaceCleanForciblyRatio": 100,
    "diskMaxUsedSpaceRatio": 100,
    "fileReservedTime": 10_000,
    "maxTransferBytesOnMessageInMemory": 1 << 20,
    "maxTransferCountOnMessageInMemory": 1000,
    "maxTransferBytesOnMessageInDisk": 1 << 20,
    "maxTransferCountOnMessageInDisk": 1000,
}
QUEUES: Final = {"Single-A": 4, "Single-B": 1, "Batch-C": 2}
SINGLE_TOPICS: Final = ("Single-A", "Single-B")
BATCH_TOPIC: Final = "Batch-C"
GROUP: Final = "kill-readers"
WINDOW, BATCHES_WINDOW, BATCH_SIZE = 48, 3, 12
TOPICS_PER_CYCLE: Final = 2
SAME_KEY: Final = 20  # neighbours that share a key
# A failpoint that was not passed then will not be: a quick machine sends so many before a file was prepared thrice.
ACKS_MAX: Final = 10_000
PATIENCE_S: Final = 5.0
TIMEOUT_S: Final = 60.0

STOPPING: Final = frozenset({"store.closing", "store.settled", "store.abort_removed"})
AFTER_A_CLEAN_STOP: Final = frozenset({"store.abort_written"})
# Passed by every send; the others a few times a second.
FREQUENT: Final = frozenset(
    {
        "commit_log.after_sync",
        "commit_log.after_write",
        "commit_log.before_sync",
        "commit_log.before_write",
        "consume_queue.after_write",
        "consume_queue.before_write",
        "store.after_confirm",
        "store.before_confirm",
    }
)
CONNECTION_LOST: Final = (EOFError, ConnectionError)

Settings = Mapping[str, object]


class Place(NamedTuple):
    """Where a message was stored: offsets in its queue and in the log."""

    queue_offset: int
    physical_offset: int


class Sent(NamedTuple):
    topic: str
    queue_id: int
    key: str
    body: bytes


@dataclass(slots=True)
class Ledger:
    """All that was sent to one store, and what the broker has promised about it."""

    seed: int
    rng: random.Random
    sent: list[Sent] = field(default_factory=list)
    owed: dict[int, Place] = field(default_factory=dict)  # acknowledged, or seen by a reader
    acknowledged: set[int] = field(default_factory=set)
    made_topics: dict[str, int] = field(default_factory=dict)  # to their number of queues
    consumable: int = 0  # one past the last message of Single-B that was acknowledged
    commits: set[int] = field(default_factory=set)  # consumer offsets that were sent
    commit_on_disk: int = 0
    verified: int = 0  # times everything owed was found
    # Of the cycle that runs.
    pausing: bool = False  # send nothing new
    sent_before: int = 0
    answered: int = 0
    refused: list[Command] = field(default_factory=list)
    refusing: set[Talker] = field(default_factory=set)  # connections on which that was
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def of(cls, seed: int) -> "Ledger":
        return cls(seed, random.Random(seed))

    def new(self, topic: str, queue_id: int) -> int:
        """Number of a new message; its body is its number, random bytes and their checksum."""
        number = len(self.sent)
        size = (
            self.rng.choice((0, 20, 100, 300, 300, 300, 4000))
            if number % 50 == 0
            else self.rng.randrange(300)
        )
        content = b"%010d|" % number + self.rng.randbytes(size)
        body = content + b"|%08x" % zlib.crc32(content)
        self.sent.append(Sent(topic, queue_id, f"key-{number // SAME_KEY}", body))
        return number

    def acknowledge(self, number: int, place: Place) -> None:
        self.answered += 1
        assert self.owed.get(number, place) == place
        self.acknowledged.add(number)
        if self.sent[number].topic == "Single-B":
            self.consumable = max(self.consumable, place.queue_offset + 1)
        self.owed[number] = place
        self.changed.set()

    @property
    def waiting_count(self) -> int:
        """Messages of this cycle that have no answer yet."""
        return len(self.sent) - self.sent_before - self.answered

    async def silence(self) -> None:
        """Send nothing new and wait for the answers that are due."""
        self.pausing = True
        while self.waiting_count:
            self.changed.clear()
            await self.changed.wait()

    def refuse(self, talker: Talker, answer: Command, count: int) -> None:
        self.answered += count
        self.refused.append(answer)
        self.refusing.add(talker)
        self.changed.set()

    def begin_cycle(self) -> None:
        self.sent_before, self.answered, self.pausing = len(self.sent), 0, False
        self.refused.clear()
        self.refusing.clear()

    async def acknowledgements(self, count: int) -> None:
        """Wait for `count` more."""
        until = len(self.acknowledged) + count
        while len(self.acknowledged) < until:
            self.changed.clear()
            await self.changed.wait()


# --- the process --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class BrokerProcess:
    """A broker that serves."""

    program: Program
    port: int

    async def ended(self) -> int:
        """Its exit code, once it is gone."""
        code = await asyncio.to_thread(self.program.process.wait, TIMEOUT_S)
        self.program.kill()  # it is gone: this closes the pipe
        return code

    def events(self) -> list[dict[str, Any]]:
        """What it has logged."""
        return [json.loads(line) for line in self.program.output.splitlines() if line.startswith("{")]


async def start(
    store: Path,
    settings: Settings,
    *,
    failpoints: str = "",
    prefix: Sequence[str] = (),
    timeout_s: float | None = None,
) -> BrokerProcess:
    """Start the broker on `store` and wait until it serves; `prefix` are the words of a tracer.

    ProgramError when it ends before; `returncode` is in its second argument.
    """
    given = {"storePathRootDir": store, **SETTINGS, **settings}
    words = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    environ = {"AEROBEE_FAILPOINTS": failpoints}
    if prefix:
        program = Program(
            "the broker", [*prefix, sys.executable, "-m", "aerobee_broker", *words], env=environ
        )
    else:
        program = Program("the broker", words, env=environ, spawn=forking("aerobee_broker"))
    try:
        line = await asyncio.to_thread(program.wait_line, r'"broker\.ready"', timeout_s or TIMEOUT_S)
    except ProgramError as failed:
        raise ProgramError(str(failed), program.kill()) from failed
    except BaseException:
        program.kill()
        raise
    return BrokerProcess(program, int(json.loads(line)["address"].rpartition(":")[2]))


# --- load ---------------------------------------------------------------------------------------------------------


async def singles(talker: Talker, ledger: Ledger) -> None:
    """Single sends, WINDOW of them under way, until the connection is gone."""
    waiting: dict[int, int] = {}
    with suppress(*CONNECTION_LOST):
        while True:
            commands = []
            while len(waiting) < WINDOW and not ledger.pausing:
                topic = ledger.rng.choice(SINGLE_TOPICS)
                number = ledger.new(topic, ledger.rng.randrange(QUEUES[topic]))
                waiting[number] = number
                commands.append(_single(ledger.sent[number], number))
            talker.send(*commands)
            for _ in range(min(WINDOW // 2, len(waiting)) or 1):
                answer = await talker.receive()
                _take(talker, ledger, answer, [waiting.pop(answer.opaque)])


async def send_one(talker: Talker, ledger: Ledger) -> Command:
    """Send a message and take its answer."""
    number = ledger.new("Single-A", 0)
    answer = await talker.exchange(_single(ledger.sent[number], number))
    if answer.code == 0:
        _take(talker, ledger, answer, [number])
    return answer


def _single(message: Sent, opaque: int) -> Command:
    properties = text_of({"KEYS": message.key, "TAGS": "TagA", "UNIQ_KEY": f"{opaque:032X}"})
    return send_request(
        message.topic, message.body, opaque=opaque, queue_id=message.queue_id, properties=properties
    )


def _take(talker: Talker, ledger: Ledger, answer: Command, numbers: list[int]) -> None:
    if answer.code != 0:
        ledger.refuse(talker, answer, len(numbers))
        return
    assert talker not in ledger.refusing, f"seed {ledger.seed}: acknowledged on a connection after a refusal"
    first = int(answer.ext["queueOffset"])
    ids = answer.ext["msgId"].split(",")
    for at, (number, message_id) in enumerate(zip(numbers, ids, strict=True)):
        ledger.acknowledge(number, Place(first + at, int(message_id[-16:], 16)))


async def batches(talker: Talker, ledger: Ledger) -> None:
    """Batches, BATCHES_WINDOW of them under way, until the connection is gone."""
    waiting: dict[int, list[int]] = {}
    with suppress(*CONNECTION_LOST):
        while True:
            while len(waiting) < BATCHES_WINDOW and not ledger.pausing:
                queue_id = ledger.rng.randrange(QUEUES[BATCH_TOPIC])
                numbers = [ledger.new(BATCH_TOPIC, queue_id) for _ in range(BATCH_SIZE)]
                waiting[numbers[0]] = numbers
                talker.send(_batch([ledger.sent[number] for number in numbers], numbers[0]))
            answer = await talker.receive()
            _take(talker, ledger, answer, waiting.pop(answer.opaque))


def _batch(messages: list[Sent], opaque: int) -> Command:
    entries = [
        BatchEntry(
            0, one.body, text_of({"KEYS": one.key, "TAGS": "TagB", "UNIQ_KEY": f"{opaque:024X}{at:08X}"})
        )
        for at, one in enumerate(messages)
    ]
    command = send_request(
        BATCH_TOPIC, encode_batch(entries), opaque=opaque, queue_id=messages[0].queue_id, batch="true"
    )
    command.code = RequestCode.SEND_BATCH_MESSAGE
    return command


async def administration(talker: Talker, ledger: Ledger, store: Path) -> None:
    """Make a topic, commit consumer offsets and see that they reach the disk, until the connection is gone."""
    with suppress(*CONNECTION_LOST):
        for _ in range(TOPICS_PER_CYCLE):
            name, queues = f"Made-{len(ledger.made_topics)}", ledger.rng.randint(1, 9)
            await make_topic(talker, name, queues)
            ledger.made_topics[name] = queues
            await _commit_and_see(talker, ledger, store)
        while True:
            await _commit_and_see(talker, ledger, store)


async def make_load_topics(talker: Talker) -> None:
    """The topics that load is sent to."""
    for topic, queues in QUEUES.items():
        await make_topic(talker, topic, queues)


async def make_topic(talker: Talker, name: str, queues: int) -> None:
    answer = await talker.make_topic(name, queues)
    assert answer.code == 0, answer


async def _commit_and_see(talker: Talker, ledger: Ledger, store: Path) -> None:
    """Commit what may have been consumed, again and again, until a newer offset is in the file."""
    while True:
        ledger.commits.add(ledger.consumable)
        place = {"consumerGroup": GROUP, "topic": "Single-B", "queueId": "0"}
        fields = place | {"commitOffset": str(ledger.consumable)}
        answer = await talker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        assert answer.code == 0, answer
        if _see_offset(ledger, store):
            return


def _see_offset(ledger: Ledger, store: Path) -> bool:
    """Note the offset that is in the file; whether it is a new one."""
    before, ledger.commit_on_disk = ledger.commit_on_disk, _offset_on_disk(store)
    assert ledger.commit_on_disk >= before, "a consumer offset went back on disk"
    return ledger.commit_on_disk > before


def _offset_on_disk(store: Path) -> int:
    try:
        content = (store / "config" / "consumerOffset.json").read_bytes()
    except FileNotFoundError:
        return 0
    table = json.loads(content)["offsetTable"]
    return int(table.get(f"Single-B@{GROUP}", {}).get("0", 0))


# --- what has to be there -----------------------------------------------------------------------------------------


async def verify(talker: Talker, ledger: Ledger, owed: dict[int, Place] | None = None) -> None:
    """Everything owed (now, unless it is given) is there, at its place, byte for byte; nothing twice, no holes."""
    owed = dict(ledger.owed) if owed is None else owed
    made, commit = dict(ledger.made_topics), ledger.commit_on_disk
    found: dict[int, Place] = {}
    for topic, queues in QUEUES.items():
        for queue_id in range(queues):
            await _read_queue(talker, ledger, topic, queue_id, found)
    lost = [
        (number, place, found.get(number)) for number, place in owed.items() if found.get(number) != place
    ]
    assert not lost, f"seed {ledger.seed}: {len(lost)} of {len(owed)} are not where they were: {lost[:5]}"
    for number, place in found.items():
        assert ledger.owed.setdefault(number, place) == place
    for topic, queues in made.items():
        answer = await talker.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": topic})
        assert json.loads(answer.body)["readQueueNums"] == queues, f"seed {ledger.seed}: {topic}: {answer}"
    if commit:
        fields = {"consumerGroup": GROUP, "topic": "Single-B", "queueId": "0"}
        answer = await talker.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
        assert answer.code == 0, answer
        offset = int(answer.ext["offset"])
        assert offset >= commit, f"seed {ledger.seed}: offset {offset}, {commit} was on disk"
        assert offset in ledger.commits
    ledger.verified += 1


async def _read_queue(
    talker: Talker, ledger: Ledger, topic: str, queue_id: int, found: dict[int, Place]
) -> None:
    """Every message that the queue has now."""
    place = {"topic": topic, "queueId": str(queue_id)}
    until = int((await talker.ask(RequestCode.GET_MAX_OFFSET, place)).ext["offset"])
    offset, previous_end = 0, -1
    while offset < until:
        answer = await talker.pull(topic, offset, queueId=queue_id, maxMsgNums=1000)
        assert answer.code == 0, f"seed {ledger.seed}: {topic}/{queue_id} at {offset} of {until}: {answer}"
        for record in decode_records(answer.body):
            assert record.queue_offset == offset, (
                f"seed {ledger.seed}: {topic}/{queue_id} has {record.queue_offset} at {offset} of {until}"
            )
            assert record.physical_offset > previous_end
            offset, previous_end = offset + 1, record.physical_offset
            number = _number(ledger, record)
            assert number not in found, f"seed {ledger.seed}: message {number} is there twice"
            found[number] = Place(record.queue_offset, record.physical_offset)


def _number(ledger: Ledger, record: StoredRecord) -> int:
    """The message that a record is, with all that it must be."""
    number = int(record.body[:10])
    sent = ledger.sent[number]
    assert record.body == sent.body, f"seed {ledger.seed}: message {number} has other bytes"
    assert (record.topic, record.queue_id, record.keys) == (sent.topic, sent.queue_id, (sent.key,))
    return number


async def find_by_key(talker: Talker, ledger: Ledger) -> int:
    """Every message owed is found by its key; how many keys. AssertionError tells also whether it is found when it is
    asked for again, which says who has lost it: the index, or the one that looked."""
    expected: dict[tuple[str, str], set[int]] = {}
    for number in ledger.owed:
        expected.setdefault((ledger.sent[number].topic, ledger.sent[number].key), set()).add(number)
    for (topic, key), numbers in expected.items():
        found = await _numbers_of(talker, ledger, topic, key)
        if found != numbers:
            again = [await _numbers_of(talker, ledger, topic, key) for _ in range(3)]
            missing, more = sorted(numbers - found), sorted(found - numbers)
            raise AssertionError(
                f"seed {ledger.seed}: {topic} {key}: {missing} are missing, {more} are too much;"
                f" asked again: {[sorted(numbers ^ one) for one in again]};"
                f" places: {[ledger.owed[number] for number in missing]}"
            )
    return len(expected)


async def _numbers_of(talker: Talker, ledger: Ledger, topic: str, key: str) -> set[int]:
    """The messages that are found by a key."""
    fields = {
        "topic": topic,
        "key": key,
        "maxNum": "64",
        "beginTimestamp": "0",
        "endTimestamp": str(2**62),
    }
    answer = await talker.ask(RequestCode.QUERY_MESSAGE, fields)
    assert answer.code in (0, ResponseCode.QUERY_NOT_FOUND), f"seed {ledger.seed}: {topic} {key}: {answer}"
    return {_number(ledger, record) for record in decode_records(answer.body)}


def check_closed_store(store: Path, settings: Settings) -> None:
    """Open the folder of a stopped broker and compare everything with everything, and again from outside."""
    given: dict[str, Any] = {"storePathRootDir": store, **SETTINGS, **settings}
    config = BrokerConfig(**given)
    opened = MessageStore(to_store_config(config), io=DiskIo(), clock=lambda: 2**41)
    opened.open()
    try:
        opened.check()
    finally:
        opened.close()
    found = look_at(Inspection(store), lambda _: None)
    assert (found.findings, found.notes) == ([], []), found.verdict()


# --- endings ------------------------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Ending:
    """How a cycle ends: after so many acknowledgements or ms, or by the process itself at a failpoint.

    `quiet`: with nothing under way, so that the last record of the log is one that was acknowledged.
    """

    acks: int = 0
    quiet: bool = False
    timer_ms: int = 0
    failpoint: str = ""
    passes: int = 1

    @property
    def armed(self) -> str:
        return f"{self.failpoint}=kill@{self.passes}" if self.failpoint else ""


def endings(seed: int, count: int, first: int) -> Iterator[Ending]:
    """`count` endings; three of five are at failpoints, taken in turn from number `first` on."""
    rng = random.Random(seed)
    # A cut happens where a slave is told to cut its log back, which nobody does here.
    passed = sorted(name for name in FAILPOINTS if not name.startswith("cutting."))
    names = itertools.islice(itertools.cycle(passed), first, None)
    for number in range(count):
        kind = number % 5
        if kind == 0:
            yield Ending(acks=rng.randint(1, 2500), quiet=rng.random() < 0.5)
        elif kind == 1:
            yield Ending(timer_ms=rng.randint(1, 400))
        else:
            name = next(names)
            once = name.startswith(("recovery.", "store.")) and name not in FREQUENT
            yield Ending(failpoint=name, passes=rng.randint(1, 30 if name in FREQUENT else 1 if once else 3))


async def run_cycle(store: Path, ledger: Ledger, ending: Ending, settings: Settings) -> bool:
    """Start, check what is owed while load runs, end. Whether it ended in the way that was asked for."""
    if ending.failpoint in AFTER_A_CLEAN_STOP:
        broker = await start(store, settings)
        broker.program.process.terminate()
        assert await broker.ended() == 0
    try:
        broker = await start(store, settings, failpoints=ending.armed)
    except ProgramError as failed:
        if ending.failpoint and failed.args[1] == -signal.SIGKILL:
            return True
        raise
    try:
        return await _run(broker, store, ledger, ending)
    finally:
        broker.program.kill()


async def _run(broker: BrokerProcess, store: Path, ledger: Ledger, ending: Ending) -> bool:
    ledger.begin_cycle()
    complaints = [line for line in broker.events() if line["level"] == "error"]
    assert not complaints, f"seed {ledger.seed}: a kill is no damage: {complaints}"
    gone = asyncio.create_task(broker.ended())
    async with AsyncExitStack() as stack:
        try:
            connections = [await stack.enter_async_context(talking(broker.port)) for _ in range(4)]
        except ConnectionError:
            assert ending.failpoint, broker.program.output
            assert await gone == -signal.SIGKILL
            return True
        reader, one, other, admin = connections
        if not ledger.sent:
            await make_load_topics(reader)
            group = await reader.ask(
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
                body=json.dumps({"groupName": GROUP}).encode(),
            )
            assert group.code == 0, group
        await _unless_gone(verify(reader, ledger))
        load = asyncio.gather(
            singles(one, ledger), batches(other, ledger), administration(admin, ledger, store)
        )
        came_by_itself = await _end(broker, store, ledger, ending, gone)
        await load
    return came_by_itself


async def _unless_gone(work: Coroutine[Any, Any, None]) -> None:
    with suppress(*CONNECTION_LOST):
        await work


async def _end(
    broker: BrokerProcess, store: Path, ledger: Ledger, ending: Ending, gone: asyncio.Task[int]
) -> bool:
    """Wait for the moment, then for the end of the process. False: a failpoint was not passed."""
    enough = asyncio.create_task(_moment(ledger, ending))
    await asyncio.wait({enough, gone}, return_when=asyncio.FIRST_COMPLETED, timeout=TIMEOUT_S)
    enough.cancel()
    if not gone.done() and ending.failpoint in STOPPING:
        broker.program.process.terminate()
        await asyncio.wait({gone}, timeout=TIMEOUT_S)
    in_time = gone.done() or not ending.failpoint
    if not gone.done():
        broker.program.process.kill()
    code = await gone
    _see_offset(ledger, store)
    assert code == -signal.SIGKILL, f"seed {ledger.seed}, {ending}: exit code {code}\n{broker.program.output}"
    if ending.failpoint not in STOPPING:
        assert not ledger.refused, (
            f"seed {ledger.seed}, {ending}: {ledger.refused[0]}\n{broker.program.output}"
        )
    return in_time


async def _passed(seconds: float) -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, over.set)
    await over.wait()


async def _moment(ledger: Ledger, ending: Ending) -> None:
    if ending.timer_ms:
        await _passed(ending.timer_ms / 1000)
    elif ending.failpoint in STOPPING:
        await ledger.acknowledgements(200)
    else:
        await ledger.acknowledgements(ending.acks or ACKS_MAX)
        if not ending.acks:
            await _passed(PATIENCE_S)
    if ending.quiet:
        await ledger.silence()
