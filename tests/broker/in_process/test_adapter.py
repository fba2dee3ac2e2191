"""A broker without sockets, over a store in memory: what a program in its process asks, and what it is told."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.broker import Broker
from aerobee_broker.in_process.adapter import InProcess
from aerobee_broker.in_process.caller import LocalCaller
from aerobee_broker.in_process.values import Message, Sent
from aerobee_broker.messages.values import ReadKind
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.names import TOOLS_GROUP, GroupQueue
from aerobee_proto.requests import AnyIncoming
from aerobee_remoting.exchange.gate import Gate, Row
from aerobee_remoting.exchange.needs import GET, PUB, SUB, UPDATE, Action, Kind, Need
from aerobee_remoting.peers.errors import RemotingError
from aerobee_remoting.peers.peer import Peer as PeerOfAny
from aerobee_store.faults.errors import StorePoisoned
from broker.support import START_MS, Clock, Peer, small_config
from store.memory_io import MemoryIo

ROOT = Path("/nowhere/store")
QUEUE = GroupQueue(TOOLS_GROUP, "T", 0)


@asynccontextmanager
async def running(io: MemoryIo, gate: Gate | None = None, **settings: Any) -> AsyncIterator[Broker]:
    config = small_config(ROOT, **settings)
    broker = Broker(config, io=io, clock=Clock(), gate=gate, listens=False)
    try:
        await broker.start()
        yield broker
    finally:
        await broker.close()


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with running(MemoryIo()) as broker:
        yield broker


@pytest.fixture
def program(broker: Broker) -> InProcess:
    return broker.in_process("a test")


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110  # the broker sets no event for it
            await asyncio.sleep(0.001)


async def refusal(program: InProcess, message: Message) -> tuple[int, str]:
    with pytest.raises(RequestError) as refused:
        await program.send(message)
    return refused.value.code, refused.value.remark


# --- the broker ---------------------------------------------------------------------------------------------------


async def test_no_port_is_taken_and_no_file_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[object] = []
    monkeypatch.setattr(socket.socket, "bind", lambda _, address: taken.append(address))
    settings: dict[str, Any] = {"namesrv_addr": "127.0.0.1:9", "metrics_prom_exporter_port": 5557}
    async with running(MemoryIo(), metrics_exporter_type="PROM", **settings) as broker:
        await broker.in_process("a test").send(Message("T", b"one"))
        assert (broker.port, broker.address) == (0, "127.0.0.2:0")
        assert broker.parts.registrar.states == []  # no nameserver is told of it
    assert taken == []
    assert not os.path.lexists(ROOT)  # noqa: ASYNC240


async def test_nobody_misses_files_that_are_in_memory(broker: Broker, program: InProcess) -> None:
    """The watch over the files looked for those of queues on the disk, and ended the broker."""
    await program.send_all([Message("T", b"x", queue_id=queue_id) for queue_id in range(4)])
    await asyncio.to_thread(broker.parts.store.watch.look)
    assert not broker.store_has_failed
    await program.send(Message("T", b"y"))


async def test_the_next_start_finds_what_was_sent_and_committed() -> None:
    io = MemoryIo()
    async with running(io) as broker:
        program = broker.in_process("a test")
        await program.send_all([Message("T", b"%d" % number, queue_id=0) for number in range(3)])
        program.commit(QUEUE, 2)
    async with running(io) as broker:
        program = broker.in_process("a test")
        assert [one.body for one in (await program.read(QUEUE, 0)).messages] == [b"0", b"1", b"2"]
        assert program.committed(QUEUE) == 2


# --- sending ------------------------------------------------------------------------------------------------------


async def test_a_message_lies_where_its_send_says(program: InProcess) -> None:
    properties = {"TAGS": "paid", "KEYS": "order-17", "colour": "red"}
    first = await program.send(Message("T", b"zero", queue_id=3))
    sent = await program.send(Message("T", b"one", queue_id=3, properties=properties, flag=5))
    assert (sent.queue_id, sent.queue_offset, first.queue_offset) == (3, 1, 0)
    record = program.at(sent.physical_offset)
    assert (record.topic, record.queue_id, record.queue_offset, record.flag) == ("T", 3, 1, 5)
    assert (record.body, record.born_timestamp) == (b"one", START_MS)
    assert record.born_host == ("127.0.0.1", 0)
    assert properties.items() <= record.property_map.items()
    assert record.property_map["UNIQ_KEY"] == sent.unique_key


async def test_any_queue_of_the_topic_is_taken_where_none_is_named(program: InProcess) -> None:
    sent = await program.send_all([Message("T", b"x")] * 100)
    queues = {one.queue_id for one in sent if isinstance(one, Sent)}
    assert queues == set(range(4))


async def test_a_refused_message_disturbs_no_other(program: InProcess) -> None:
    outcomes = await program.send_all(
        [
            Message("T", b"one", queue_id=0),
            Message("T", b"two", queue_id=99),
            Message("T", b"three", properties={"a": "b\x01c"}),
            Message("no topic", b"four"),
            Message("T", b"five", queue_id=0),
        ]
    )
    codes = [one.code if isinstance(one, RequestError) else None for one in outcomes]
    wrong = ResponseCode.INVALID_PARAMETER
    assert codes == [None, wrong, ResponseCode.MESSAGE_ILLEGAL, wrong, None]
    assert [one.body for one in (await program.read(QUEUE, 0)).messages] == [b"one", b"five"]
    assert (await refusal(program, Message("T", b"")))[0] == ResponseCode.SYSTEM_ERROR  # without a body


async def test_very_many_messages_let_others_in_between(program: InProcess) -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(other())
    outcomes = await program.send_all([Message("T", b"%d" % n, queue_id=0) for n in range(2500)])
    running.cancel()
    offsets = [one.queue_offset for one in outcomes if isinstance(one, Sent)]
    assert offsets == list(range(2500))
    assert turns >= 2


async def test_a_send_returns_when_the_disk_has_it() -> None:
    async with running(MemoryIo(), flush_disk_type="SYNC_FLUSH") as broker:
        store = broker.parts.store
        sent = await broker.in_process("a test").send(Message("T", b"one"))
        assert store.flushed_offset > sent.physical_offset


async def test_a_disk_that_fails_keeps_no_promise() -> None:
    io = MemoryIo()
    async with running(io, flush_disk_type="SYNC_FLUSH") as broker:
        program = broker.in_process("a test")
        await program.send(Message("T", b"one"))
        io.fail_sync(1)
        with pytest.raises(StorePoisoned):
            await program.send(Message("T", b"two"))
        await broker.failed


# --- reading ------------------------------------------------------------------------------------------------------


async def test_reads_go_on_where_the_last_one_ended(program: InProcess) -> None:
    await program.send_all([Message("T", b"%d" % number, queue_id=0) for number in range(5)])
    first = await program.read(QUEUE, 0, count=3)
    assert (first.kind, [one.body for one in first.messages]) == (ReadKind.FOUND, [b"0", b"1", b"2"])
    second = await program.read(QUEUE, first.next_offset, count=3)
    assert [one.body for one in second.messages] == [b"3", b"4"]
    assert (second.min_offset, second.max_offset, second.next_offset) == (0, 5, 5)
    assert (await program.read(QUEUE, 5)).kind is ReadKind.NOTHING_YET
    beyond = await program.read(QUEUE, 9)
    assert (beyond.kind, beyond.messages, beyond.next_offset) == (ReadKind.MOVED, [], 5)


async def test_a_read_chooses_by_tag(program: InProcess) -> None:
    for tag in ("paid", "sent", "paid"):
        await program.send(Message("T", tag.encode(), queue_id=0, properties={"TAGS": tag}))
    read = await program.read(QUEUE, 0, expression="lost || paid")
    assert [(one.queue_offset, one.body) for one in read.messages] == [(0, b"paid"), (2, b"paid")]


async def test_a_read_waits_for_a_message(broker: Broker, program: InProcess) -> None:
    await program.send(Message("T", b"zero", queue_id=0))
    waiting = asyncio.create_task(program.read(QUEUE, 1, wait_s=60))
    await until(lambda: bool(broker.parts.pulls.waiting))
    await program.send(Message("T", b"one", queue_id=0))
    read = await asyncio.wait_for(waiting, 10)
    assert [one.body for one in read.messages] == [b"one"]


async def test_a_read_whose_time_is_over_ends_without_messages(broker: Broker, program: InProcess) -> None:
    await program.send(Message("T", b"zero", queue_id=0))
    clock = broker.parts.clock
    assert isinstance(clock, Clock)
    waiting = asyncio.create_task(program.read(QUEUE, 1, wait_s=60))
    await until(lambda: bool(broker.parts.pulls.waiting))
    clock.now_ms += 60_000
    read = await asyncio.wait_for(waiting, 10)
    assert (read.kind, read.messages, read.next_offset) == (ReadKind.NOTHING_YET, [], 1)


async def test_nothing_is_left_of_a_read_that_is_cancelled(broker: Broker, program: InProcess) -> None:
    await program.send(Message("T", b"zero", queue_id=0))
    waiting = asyncio.create_task(program.read(QUEUE, 1, wait_s=60))
    await until(lambda: bool(broker.parts.pulls.waiting))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not broker.parts.pulls.waiting
    assert broker.parts.memory.kinds["held pulls"] == 0


async def test_the_end_of_the_broker_ends_what_waits_and_refuses_what_comes() -> None:
    async with running(MemoryIo()) as broker:
        program = broker.in_process("a test")
        await program.send(Message("T", b"zero", queue_id=0))
        waiting = asyncio.create_task(program.read(QUEUE, 1, wait_s=60))
        await until(lambda: bool(broker.parts.pulls.waiting))
    with pytest.raises(RequestError, match="closed"):
        await waiting
    assert await refusal(program, Message("T", b"one")) == (
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "the broker in this process is closed",
    )


# --- offsets, look-ups, topics ------------------------------------------------------------------------------------


async def test_offsets_of_a_group(program: InProcess) -> None:
    await program.send(Message("T", b"zero", queue_id=0))
    assert program.committed(QUEUE) == 0  # it would begin there
    assert program.committed(QUEUE._replace(queue_id=2)) is None  # it is empty
    program.commit(QUEUE, 1)
    assert program.committed(QUEUE) == 1
    assert program.committed(QUEUE._replace(topic="unknown")) is None
    with pytest.raises(RequestError) as refused:
        program.commit(QUEUE._replace(topic="unknown"), 1)
    assert refused.value.code == ResponseCode.TOPIC_NOT_EXIST


async def test_messages_are_found_by_key_by_their_own_and_by_time(broker: Broker, program: InProcess) -> None:
    clock = broker.parts.clock
    assert isinstance(clock, Clock)
    sent = []
    for number in range(3):
        keys = {"KEYS": "even" if number % 2 == 0 else "odd"}
        sent.append(await program.send(Message("T", b"%d" % number, queue_id=0, properties=keys)))
        clock.now_ms += 1000
    await until(lambda: not broker.parts.store.keys.backlog)  # keys follow by themselves
    assert [one.body for one in await program.by_key("T", "even")] == [b"0", b"2"]
    assert [one.body for one in await program.by_key("T", "even", count=1)] == [b"2"]
    assert [one.body for one in await program.by_key("T", "even", end_ms=START_MS + 999)] == [b"0"]
    assert [one.body for one in await program.by_key("T", sent[1].unique_key, is_unique=True)] == [b"1"]
    assert await program.by_key("T", "none") == []
    assert program.by_time("T", 0, START_MS + 1) == 1
    assert program.by_time("T", 0, START_MS + 1999, upper=True) == 1
    assert program.ends("T", 0) == (0, 3)
    with pytest.raises(RequestError, match="can not find message"):
        program.at(sent[0].physical_offset + 1)


async def test_topics(program: InProcess) -> None:
    with pytest.raises(RequestError):
        program.topic("T")
    await program.send(Message("T", b"zero"))
    assert program.topic("T").write_queue_nums == 4
    assert {"T", "TBW102"} <= set(program.topics())


# --- the gate -----------------------------------------------------------------------------------------------------


class Seen(Gate):
    """A gate that notes who asks for what, and refuses what is to be refused."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, list[Need]]] = []
        self.refused: set[str] = set()  # names of topics

    def admit(self, caller: PeerOfAny, row: Row, request: AnyIncoming) -> None:
        assert isinstance(request.header, row.header)
        self._judge(caller, row, list(row.needed(request)))

    def admit_found(self, caller: PeerOfAny, row: Row, request: AnyIncoming, needs: Sequence[Need]) -> None:
        self._judge(caller, row, list(needs))

    def _judge(self, caller: PeerOfAny, row: Row, needs: list[Need]) -> None:
        assert isinstance(caller, LocalCaller)
        self.seen.append((caller.name, row.code, needs))
        for need in needs:
            if need.name in self.refused:
                raise RequestError(ResponseCode.NO_PERMISSION, f"{caller.name} may not use {need.name}")


def topic(*actions: Action) -> Need:
    return Need(Kind.TOPIC, "T", actions)


def group(*actions: Action) -> Need:
    return Need(Kind.GROUP, TOOLS_GROUP, actions)


async def test_every_call_asks_the_gate_for_what_a_client_would_need() -> None:
    gate = Seen()
    async with running(MemoryIo(), gate) as broker:
        program = broker.in_process("a test")
        sent = await program.send(Message("T", b"one", queue_id=0))
        await program.read(QUEUE, 0)
        program.committed(QUEUE)
        program.commit(QUEUE, 1)
        program.at(sent.physical_offset)
        await program.by_key("T", "key")
        program.by_time("T", 0, 0)
        program.ends("T", 0)
        program.topic("T")
        program.topics()
    code = RequestCode
    assert {name for name, _, _ in gate.seen} == {"a test"}
    assert [(number, needs) for _, number, needs in gate.seen] == [
        (code.SEND_MESSAGE, [topic(PUB)]),
        (code.PULL_MESSAGE, [topic(SUB), group(SUB)]),
        (code.QUERY_CONSUMER_OFFSET, [topic(SUB, GET), group(SUB, GET)]),
        (code.UPDATE_CONSUMER_OFFSET, [topic(SUB, UPDATE), group(SUB, UPDATE)]),
        (code.VIEW_MESSAGE_BY_ID, []),
        (code.VIEW_MESSAGE_BY_ID, [topic(GET)]),  # what the place turned out to hold
        (code.QUERY_MESSAGE, [topic(SUB, GET)]),
        (code.SEARCH_OFFSET_BY_TIMESTAMP, [topic(GET)]),
        (code.GET_MIN_OFFSET, [topic(GET)]),
        (code.GET_MAX_OFFSET, [topic(GET)]),
        (code.GET_TOPIC_CONFIG, [topic(GET)]),
        (code.GET_ALL_TOPIC_CONFIG, [Need(Kind.CLUSTER, "", (GET,))]),
    ]


async def test_what_the_gate_refuses_is_not_done() -> None:
    gate = Seen()
    async with running(MemoryIo(), gate) as broker:
        program = broker.in_process("a test")
        sent = await program.send(Message("T", b"one", queue_id=0))
        gate.refused = {"T"}
        outcomes = await program.send_all([Message("T", b"two", queue_id=0), Message("U", b"three")])
        assert isinstance(outcomes[0], RequestError)
        assert (outcomes[0].code, outcomes[0].remark) == (
            ResponseCode.NO_PERMISSION,
            "a test may not use T",
        )
        assert isinstance(outcomes[1], Sent)
        with pytest.raises(RequestError, match="may not use T"):
            await program.read(QUEUE, 0)
        with pytest.raises(RequestError, match="may not use T"):
            program.commit(QUEUE, 1)
        with pytest.raises(RequestError, match="may not use T"):
            program.at(sent.physical_offset)
        gate.refused = set()
        assert program.ends("T", 0) == (0, 1)
        assert program.committed(QUEUE) == 0


async def test_such_a_caller_takes_no_requests(program: InProcess) -> None:
    seen: list[PeerOfAny] = []

    class Noting(Seen):
        def admit(self, caller: PeerOfAny, row: Row, request: AnyIncoming) -> None:
            seen.append(caller)

    async with running(MemoryIo(), Noting()) as broker:
        broker.in_process("a test").topics()
    (caller,) = seen
    with pytest.raises(RemotingError, match="takes no requests"):
        caller.send_oneway(40)
    with pytest.raises(RemotingError, match="takes no requests"):
        await caller.request(40)


# --- beside remoting ----------------------------------------------------------------------------------------------


async def test_both_adapters_show_the_same_broker(broker: Broker, program: InProcess) -> None:
    """A message that came by remoting is read here, one of ours by remoting, byte for byte as it is stored."""
    peer = Peer(broker.handlers)
    send = {
        "producerGroup": "p",
        "topic": "T",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1",
        "flag": "0",
    }
    assert (await peer.ask(RequestCode.SEND_MESSAGE, send, b"from afar")).code == 0
    sent = await program.send(Message("T", b"from here", queue_id=0))
    assert [one.body for one in (await program.read(QUEUE, 0)).messages] == [b"from afar", b"from here"]
    answer = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(sent.physical_offset)})
    assert answer.body == broker.parts.store.reading.message_at(sent.physical_offset)
    peer.close()
