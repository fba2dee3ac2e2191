"""Reads that would wait for the disk wait beside the event loop: nobody else does, and nothing else changes.

The disk is one in memory that answers when the test lets it (`SlowIo`).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_broker.broker import Broker
from aerobee_broker.metrics.metric_families import snapshot_steps
from aerobee_broker.reading import cold_reads
from aerobee_broker.reading.cold_reads import WAITING_SIZE, ColdReads, ColdReadsLimits
from aerobee_proto.bodies import SubscriptionGroupConfig
from aerobee_proto.codes import PullFlag, RequestCode, ResponseCode
from aerobee_proto.errors import LimitReached
from aerobee_proto.records import decode_records
from aerobee_remoting.peers.peer_memory import PeerMemory
from aerobee_service.clock import epoch_ms
from aerobee_service.turns.slices import in_slices
from aerobee_store.disk.page_cache import NotInMemory, Stretch
from aerobee_store.store import MessageStore
from broker.in_memory import broker_in_memory, talking_in_memory
from broker.support import Clock
from store.memory_io import PAGE_SIZE
from store.slow_disk import SlowIo
from system.running import Talker

LOG = Path("/store/commitlog/00000000000000000000")
BODY = bytes(3000)
SECOND = "where the second message lies"


async def until(holds: Callable[[], bool]) -> None:
    """Turns of the event loop until something holds, which threads may bring about."""
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - threads bring it about
            await asyncio.sleep(0)


@pytest.fixture
def disk() -> SlowIo:
    return SlowIo()


@asynccontextmanager
async def cold_broker(
    disk: SlowIo, messages: int = 8, *, slots: int = 500, **settings: Any
) -> AsyncIterator[Broker]:
    """A broker that was started again: nothing of what it has stored is in memory, and the disk does not answer. Files
    of its index have so many slots."""
    async with (
        broker_in_memory(io=disk, max_hash_slot_num=slots) as broker,
        talking_in_memory(broker) as client,
    ):
        await client.make_topic("T")
        for number in range(messages):
            await client.put(
                "T", b"%d" % number + BODY, properties=f"KEYS\x01k{number}\x02UNIQ_KEY\x01u{number}\x02"
            )
        await client.make_topic("Other")
        await client.put("Other", b"hot")
    try:
        async with broker_in_memory(io=disk, max_hash_slot_num=slots, **settings) as broker:
            disk.go_cold()
            disk.hang()
            yield broker
            disk.answer()
    finally:
        disk.answer()


async def serves_others(broker: Broker) -> None:
    """Sends, and pulls of what is in memory, are answered."""
    async with talking_in_memory(broker) as other:
        assert (await other.put("New", b"fresh")).code == ResponseCode.SUCCESS
        assert (await other.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).code == ResponseCode.SUCCESS


# --- each kind of request -------------------------------------------------------------------------------------------


async def test_a_pull_waits_and_everybody_else_is_served(disk: SlowIo) -> None:
    async with cold_broker(disk) as broker, talking_in_memory(broker) as client:
        pull = asyncio.create_task(client.pull("T"))
        await until(lambda: len(broker.parts.cold) == 1)
        await serves_others(broker)
        assert not pull.done()
        disk.answer()
        answer = await pull
        assert answer.code == ResponseCode.SUCCESS
        assert answer.ext["nextBeginOffset"] == "8"
        await until(lambda: len(broker.parts.cold) == 0)
        asked = [
            path.name for path, _, _ in disk.asked if path.parent.name != "index"
        ]  # where the send's key goes
        assert asked == [LOG.name, LOG.name], "of the queue, then of the log"


KINDS = {
    "pop": (
        RequestCode.POP_MESSAGE,
        {
            "consumerGroup": "G",
            "topic": "T",
            "queueId": "0",
            "maxMsgNums": "8",
            "invisibleTime": "60000",
            "pollTime": "0",
            "bornTime": "0",
            "initMode": "0",
        },
    ),
    "peek": (
        RequestCode.PEEK_MESSAGE,
        {"consumerGroup": "G", "topic": "T", "queueId": "0", "maxMsgNums": "8"},
    ),
    "by position": (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": SECOND}),
    "by key": (
        RequestCode.QUERY_MESSAGE,
        {"topic": "T", "key": "k3", "maxNum": "8", "beginTimestamp": "0", "endTimestamp": str(1 << 62)},
    ),
    "by time": (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"topic": "T", "queueId": "0", "timestamp": "1"}),
    "first time": (RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": "T", "queueId": "0"}),
    "entries": (RequestCode.QUERY_CONSUME_QUEUE, {"topic": "T", "queueId": "0", "index": "0", "count": "8"}),
    "where to begin": (
        RequestCode.QUERY_CONSUMER_OFFSET,
        {"topic": "T", "queueId": "0", "consumerGroup": "G"},
    ),
    "topic statistics": (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}),
    "time span": (RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T", "group": "G"}),
    "group statistics": (RequestCode.GET_CONSUME_STATS, {"topic": "T", "consumerGroup": "Far"}),
    "all statistics": (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
    "reset by time": (
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        {"topic": "T", "group": "G", "timestamp": "1", "isForce": "true"},
    ),
    "given back": (
        RequestCode.CONSUMER_SEND_MSG_BACK,
        {"offset": SECOND, "group": "G", "delayLevel": "1", "originTopic": "T"},
    ),
}


async def test_a_query_by_key_waits_once_for_the_index(disk: SlowIo) -> None:
    """It waited for each slot and entry by itself; a thread follows these from one to the next."""
    async with cold_broker(disk, slots=50_000) as broker, talking_in_memory(broker) as client:
        disk.answer()
        before = broker.parts.cold.count
        answer = await client.ask(*KINDS["by key"])
        assert [bytes(record.body[:1]) for record in decode_records(answer.body)] == [b"3"]
        assert broker.parts.cold.count - before == 3, "and for the size of the message, and for all of it"
        assert [length for path, _, length in disk.asked if path.parent.name == "index"] == [4, 20]


def make_groups(broker: Broker) -> None:
    """One that begins, and one that has read the half."""
    broker.parts.groups.update([SubscriptionGroupConfig(group_name=name) for name in ("G", "Far")])
    broker.parts.offsets.commit("Far", "T", 0, 4)


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_request_waits_by_itself(disk: SlowIo, kind: str) -> None:
    code, ext = KINDS[kind]
    async with cold_broker(disk) as broker, talking_in_memory(broker) as client:
        entry = broker.parts.store.reading.queue_entry("T", 0, 1)
        assert entry is not None
        ext = {name: str(entry.physical_offset) if value is SECOND else value for name, value in ext.items()}
        make_groups(broker)
        asked = asyncio.create_task(client.ask(code, ext))
        await until(lambda: len(broker.parts.cold) == 1)
        await serves_others(broker)
        assert not asked.done()
        disk.answer()
        answer = await asked
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        if kind in ("pop", "peek", "by key", "by position"):
            found = [one.body[:1] for one in decode_records(answer.body)]
            assert found == {"by key": [b"3"], "by position": [b"1"]}.get(kind, [b"%d" % n for n in range(8)])
        await until(lambda: len(broker.parts.cold) == 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_request_is_told_that_the_disk_refuses(disk: SlowIo, kind: str) -> None:
    code, ext = KINDS[kind]
    async with cold_broker(disk) as broker, talking_in_memory(broker) as client:
        entry = broker.parts.store.reading.queue_entry("T", 0, 1)
        assert entry is not None
        ext = {name: str(entry.physical_offset) if value is SECOND else value for name, value in ext.items()}
        make_groups(broker)
        for path in disk.paths():
            disk.fail(path, 0)
            if path.parent.name == "index":
                for page in range(disk.size(path) // PAGE_SIZE + 1):
                    disk.fail(path, page)
        disk.answer()
        answer = await client.ask(code, ext)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "Input/output error" in (answer.remark or "")
        await serves_others(broker)


async def test_a_scrape_waits_by_itself_and_does_without_what_the_disk_refuses(disk: SlowIo) -> None:
    async with cold_broker(disk) as broker:
        make_groups(broker)
        for is_refused in (False, True):
            scrape = asyncio.create_task(in_slices(snapshot_steps(broker.parts.observed)))
            await until(lambda: len(broker.parts.cold) == 1)
            await serves_others(broker)
            assert not scrape.done()
            disk.answer()
            ((labels, lag, _, age_ms),) = [one for one in (await scrape).lags if one[0][1] == "Far"]
            assert (labels[0], lag, age_ms > 0) == ("T", 4, not is_refused)
            disk.hang()
            disk.go_cold()
            broker.parts.store.residency.forget()
            for path in disk.paths():
                disk.fail(path, 0)


async def test_a_pop_takes_what_is_in_memory_first(disk: SlowIo) -> None:
    async with cold_broker(disk) as broker, talking_in_memory(broker) as client:
        broker.parts.groups.update([SubscriptionGroupConfig(group_name="G")])
        await client.make_topic("T", 2)
        await client.put("T", b"warm", queue_id=1)
        code, ext = KINDS["pop"]
        popped = await client.ask(code, ext | {"queueId": "-1"})
        assert [one.body for one in decode_records(popped.body)] == [b"warm"]
        disk.answer()
        popped = await client.ask(code, ext | {"queueId": "-1"})
        assert len(list(decode_records(popped.body))) == 8


async def test_a_pop_that_waits_is_served_when_its_messages_are_there(disk: SlowIo) -> None:
    """A group that is sent back while it waits finds messages that nobody has in memory."""
    async with cold_broker(disk) as broker, talking_in_memory(broker) as client:
        broker.parts.groups.update([SubscriptionGroupConfig(group_name="G")])
        broker.parts.offsets.commit("G", "T", 0, 8)
        code, ext = KINDS["pop"]
        waiting = asyncio.create_task(
            client.ask(code, ext | {"pollTime": "60000", "bornTime": str(epoch_ms())})
        )
        await until(lambda: len(broker.parts.pop.pops.held) == 1)
        broker.parts.resets.assign("G", "T", 0, 5)
        await until(lambda: len(broker.parts.cold) == 1)
        await serves_others(broker)
        disk.answer()
        assert [one.body[:1] for one in decode_records((await waiting).body)] == [b"5", b"6", b"7"]


async def test_a_pull_behind_another_one_of_the_same_client_is_not_held_up(disk: SlowIo) -> None:
    async with cold_broker(disk) as broker, talking_in_memory(broker) as client:
        cold = client.pull_request("T")
        cold.opaque = 7
        client.send(cold)
        await until(lambda: len(broker.parts.cold) == 1)
        assert (await client.put("New", b"fresh")).code == ResponseCode.SUCCESS
        disk.answer()
        assert (await client.answer_to(7)).code == ResponseCode.SUCCESS


async def test_a_pull_that_finds_the_end_after_all_is_held(disk: SlowIo) -> None:
    async with cold_broker(disk, messages=1) as broker, talking_in_memory(broker) as client:
        flags = PullFlag.SUBSCRIPTION | PullFlag.SUSPEND
        pull = asyncio.create_task(client.pull("T", subscription="tag", sysFlag=flags))
        await until(lambda: len(broker.parts.cold) == 1)
        disk.answer()
        answer = await pull
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY  # the message that is there has no such tag


# --- what goes wrong ------------------------------------------------------------------------------------------------


async def test_what_lies_before_a_page_that_cannot_be_read_is_served_and_then_the_error_is_told(
    disk: SlowIo,
) -> None:
    async with cold_broker(disk) as broker, talking_in_memory(broker) as client:
        disk.fail(LOG, 3)
        disk.answer()
        first = await client.pull("T")
        assert (first.code, first.ext["nextBeginOffset"]) == (ResponseCode.SUCCESS, "3")
        refused = await client.pull("T", 3)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "Input/output error" in (refused.remark or "")
        assert broker.parts.cold.failed_count == 1
        assert (await client.pull("T", 6)).ext["nextBeginOffset"] == "8"
        await serves_others(broker)


async def test_a_client_that_goes_away_is_waited_for_by_nobody(disk: SlowIo) -> None:
    async with cold_broker(disk, cold_read_threads=1) as broker:
        async with talking_in_memory(broker) as client:
            for number in range(20):
                pull = client.pull_request("T")
                pull.opaque = number
                client.send(pull)
            await until(lambda: len(broker.parts.cold) == 20)
        await until(lambda: len(broker.parts.cold) == 1)  # the one that a thread reads for
        disk.answer()
        await until(lambda: len(broker.parts.cold) == 0)
        assert broker.memory.kinds[cold_reads.KIND] == 0


async def test_a_topic_that_is_deleted_meanwhile_is_no_failure(disk: SlowIo) -> None:
    async with (
        cold_broker(disk) as broker,
        talking_in_memory(broker) as client,
        talking_in_memory(broker) as admin,
    ):
        pull = asyncio.create_task(client.pull("T"))
        await until(lambda: len(broker.parts.cold) == 1)
        deleted = await admin.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        assert deleted.code == ResponseCode.SUCCESS
        disk.answer()
        assert (await pull).code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED)


async def test_the_broker_stops_while_the_disk_does_not_answer(disk: SlowIo) -> None:
    async with cold_broker(disk) as broker, talking_in_memory(broker) as client:
        client.send(client.pull_request("T"))
        await until(lambda: len(broker.parts.cold) == 1)
        await broker.close()
        assert len(broker.parts.cold) == 0
        assert broker.memory.kinds[cold_reads.KIND] == 0


async def test_more_than_may_wait_are_told_to_come_later(disk: SlowIo) -> None:
    async with (
        cold_broker(disk, max_cold_reads=3, max_cold_reads_per_connection=2) as broker,
        talking_in_memory(broker) as client,
        talking_in_memory(broker) as other,
    ):
        for number, who in enumerate((client, client, other)):
            pull = who.pull_request("T")
            pull.opaque = number
            who.send(pull)
        await until(lambda: len(broker.parts.cold) == 3)
        refused = await client.pull("T")
        assert (refused.code, "maxColdReads" in (refused.remark or "")) == (ResponseCode.SYSTEM_BUSY, True)
        disk.answer()
        assert {answer.code for answer in (await client.answers(2)).values()} == {ResponseCode.SUCCESS}
        assert (await other.answer_to(2)).code == ResponseCode.SUCCESS


async def test_with_no_threads_the_loop_reads_as_it_is(disk: SlowIo) -> None:
    async with cold_broker(disk, cold_read_threads=0) as broker, talking_in_memory(broker) as client:
        assert (await client.pull("T")).ext["nextBeginOffset"] == "8"
        assert disk.asked == []


async def test_a_thousand_cold_readers_take_turns_and_all_are_served(disk: SlowIo) -> None:
    async with (
        cold_broker(disk) as broker,
        talking_in_memory(broker) as greedy,
        talking_in_memory(broker) as modest,
    ):
        for number in range(1000):
            pull = greedy.pull_request("T", number % 8)
            pull.opaque = number
            greedy.send(pull)
        await until(lambda: len(broker.parts.cold) == 1000)
        one = asyncio.create_task(modest.pull("T", 7))
        await until(lambda: len(broker.parts.cold) == 1001)
        asked = len(disk.asked)
        await serves_others(broker)
        disk.answer()
        assert (await one).code == ResponseCode.SUCCESS
        assert len(disk.asked) - asked < 100  # it did not come behind the thousand
        assert {answer.code for answer in (await greedy.answers(1000)).values()} == {ResponseCode.SUCCESS}


# --- the parts of it ------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Someone:
    """On whose behalf is read."""

    is_closed: bool = False


NEEDED = NotInMemory([Stretch(LOG, 0, 1)])


@pytest.fixture
async def make(store: MessageStore) -> AsyncIterator[Callable[..., ColdReads]]:
    made: list[tuple[ColdReads, SlowIo]] = []

    def one(disk: SlowIo, memory: PeerMemory | None = None, **limits: int) -> ColdReads:
        usual = {"threads": 2, "waiting_max": 9, "owner_max": 9} | limits
        cold = ColdReads(store, disk, ColdReadsLimits(**usual), memory=memory or PeerMemory())
        cold.start()
        made.append((cold, disk))
        return cold

    yield one
    for cold, disk in made:
        disk.answer()
        await cold.close()


async def test_half_of_the_threads_read_for_one_owner_and_owners_take_turns(
    make: Callable[..., ColdReads], disk: SlowIo
) -> None:
    cold, first, second = make(disk), Someone(), Someone()
    disk.hang()
    came: list[str] = []
    for name, owner in [("a1", first), ("a2", first), ("a3", first), ("b1", second), ("b2", second)]:
        needed = NotInMemory([Stretch(Path(name), 0, 1)])
        cold.wait(needed, owner, partial(came.append, name), lambda failed: came.append(str(failed)))
    await until(lambda: len(disk.asked) == 2)
    assert {str(path) for path, _, _ in disk.asked} == {"a1", "b1"}
    disk.answer()
    await until(lambda: len(came) == 5)


async def test_of_those_whose_messages_come_at_once_each_has_a_turn_of_its_own(
    make: Callable[..., ColdReads], disk: SlowIo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four readers were served behind each other, and a send that came meanwhile waited for all four."""
    cold, loop, came = make(disk), asyncio.get_running_loop(), list[str]()
    results: list[Callable[[], object]] = []
    held_back = SimpleNamespace(
        call_soon=loop.call_soon,
        call_soon_threadsafe=lambda call, *arguments: results.append(partial(call, *arguments)),
        time=loop.time,
    )
    monkeypatch.setattr(cold, "_loop", held_back)
    for name in ("first", "second"):
        cold.wait(NEEDED, Someone(), partial(came.append, name), lambda failed: None)
    await until(lambda: len(results) == 2)
    for result in results:
        result()
    assert len(came) == 1
    await asyncio.sleep(0)
    assert sorted(came) == ["first", "second"]
    await until(lambda: len(cold) == 0)


async def test_memory_that_does_not_keep_what_is_brought_ends_in_a_plain_read(
    make: Callable[..., ColdReads], disk: SlowIo, store: MessageStore
) -> None:
    cold = make(disk)
    tries = []

    def again() -> None:
        tries.append(store.residency.is_off)
        if not store.residency.is_off:
            raise NEEDED

    cold.wait(NEEDED, Someone(), again, lambda failed: pytest.fail(str(failed)))
    await until(lambda: len(cold) == 0)
    assert tries == [False] * (cold_reads.TRIES_MAX - 1) + [True]
    assert not store.residency.is_off


async def test_what_waits_is_on_the_account_of_its_owner(
    make: Callable[..., ColdReads], disk: SlowIo
) -> None:
    memory, owner = PeerMemory(peer_max=WAITING_SIZE), Someone()
    cold = make(disk, memory)
    disk.hang()
    gone: list[str] = []
    cold.wait(NEEDED, owner, lambda: None, lambda failed: None, gone=lambda: gone.append("gone"))
    with pytest.raises(LimitReached):
        cold.wait(NEEDED, owner, lambda: None, lambda failed: None)
    assert memory.of(owner) == WAITING_SIZE
    owner.is_closed = True
    disk.answer()
    await until(lambda: len(cold) == 0)
    assert (memory.of(owner), gone) == (0, ["gone"])


async def test_work_of_a_task_is_done_when_all_of_it_is_there(
    make: Callable[..., ColdReads], disk: SlowIo
) -> None:
    cold = make(disk)
    missing = [NEEDED, NotInMemory([Stretch(LOG, 9, 1)])]

    def work() -> str:
        if missing:
            raise missing.pop()
        return "done"

    assert await cold.present(work) == "done"
    with pytest.raises(ZeroDivisionError):
        await cold.present(lambda: [1 // 0])
    missing = [NEEDED, NotInMemory([Stretch(LOG, 9, 1)])]
    assert await in_slices(cold.in_steps(work)) == "done"
    with pytest.raises(ZeroDivisionError):
        await in_slices(cold.in_steps(lambda: [1 // 0]))


async def test_work_in_slices_ends_when_its_owner_goes_away(
    make: Callable[..., ColdReads], disk: SlowIo
) -> None:
    cold, owner = make(disk), Someone()
    disk.hang()

    def work() -> None:
        raise NEEDED

    waiting = asyncio.create_task(in_slices(cold.in_steps(work, owner)))
    await until(lambda: len(cold) == 1)
    owner.is_closed = True
    disk.answer()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(cold) == 0


async def test_a_disk_that_does_not_answer_is_named_once(
    make: Callable[..., ColdReads], disk: SlowIo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_reads, "STUCK_S", 0.0)
    monkeypatch.setattr(cold_reads, "BELIEVED_S", 0.0)
    cold = make(disk)
    disk.hang()
    cold.wait(NEEDED, Someone(), lambda: None, lambda failed: None)
    with capture_logs() as logs:
        task = asyncio.create_task(cold.run())
        await until(lambda: bool(logs))
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
    assert [(entry["event"], entry["path"], entry["waiting"]) for entry in logs] == [
        ("broker.cold_reads_stuck", str(LOG), 1)
    ]


async def test_reading_ahead_comes_behind_those_who_wait(
    make: Callable[..., ColdReads], disk: SlowIo, store: MessageStore
) -> None:
    cold = make(disk, threads=1)
    disk.hang()
    came: list[str] = []
    cold.wait(NEEDED, Someone(), lambda: came.append("1"), lambda failed: None)
    store.residency.ahead(NotInMemory([Stretch(LOG, 100, 1)]))
    cold.wait(NEEDED, Someone(), lambda: came.append("2"), lambda failed: None)
    disk.answer()
    await until(lambda: bool(disk.ahead))
    assert (came, disk.ahead) == (["1", "2"], [(LOG, 100, 1)])


# --- what the broker does by itself ---------------------------------------------------------------------------------


@dataclass
class OwnWork:
    """Stored in the first run, done in the second: how it is asked for, and how it is seen that it is done."""

    prepare: Callable[[Talker, Broker], Awaitable[object]]
    is_done: Callable[[Broker], bool]
    settings: dict[str, Any] = field(default_factory=dict)


def stored(broker: Broker, topic: str) -> int:
    return broker.parts.store.reading.max_offset(topic, 0)


async def send_delayed(client: Talker, _: Broker) -> None:
    await client.put("Due", b"late", properties="DELAY\x011\x02")


async def send_timed(client: Talker, broker: Broker) -> None:
    due_ms = broker.parts.clock() + 2000
    await client.put("Due", b"late", properties=f"TIMER_DELIVER_MS\x01{due_ms}\x02")


async def pop_and_leave(client: Talker, broker: Broker) -> None:
    broker.parts.groups.update([SubscriptionGroupConfig(group_name="G")])
    await client.put("T", b"popped")
    code, ext = KINDS["pop"]
    assert (await client.ask(code, ext | {"invisibleTime": "10000"})).code == ResponseCode.SUCCESS


OWN_WORK = {
    "a delay level": OwnWork(send_delayed, lambda broker: stored(broker, "Due") == 1),
    "a timer": OwnWork(send_timed, lambda broker: stored(broker, "Due") == 1, {"timer_wheel_enable": True}),
    "messages that come back": OwnWork(pop_and_leave, lambda broker: broker.parts.pop.reviver.revived == 1),
}


@pytest.mark.parametrize("kind", OWN_WORK)
async def test_own_work_waits_beside_the_loop(disk: SlowIo, kind: str) -> None:
    work, clock = OWN_WORK[kind], Clock()
    settings = {"message_delay_level": "10s"} | work.settings
    async with (
        broker_in_memory(io=disk, clock=clock, **settings) as broker,
        talking_in_memory(broker) as client,
    ):
        await client.make_topic("T")
        await client.make_topic("Due")
        await work.prepare(client, broker)
    try:
        async with broker_in_memory(io=disk, clock=clock, **settings) as broker:
            disk.go_cold()
            disk.hang()
            clock.now_ms += 60_000
            await until(lambda: len(broker.parts.cold) == 1)
            await serves_others(broker)
            assert not work.is_done(broker)
            disk.answer()
            await until(lambda: work.is_done(broker))
    finally:
        disk.answer()


async def test_half_messages_are_judged_when_they_are_in_memory(disk: SlowIo) -> None:
    clock = Clock()
    async with broker_in_memory(io=disk, clock=clock) as broker, talking_in_memory(broker) as client:
        await client.make_topic("T")
        half = {"properties": "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01u\x02"}
        assert (await client.put("T", b"half", **half)).code == ResponseCode.SUCCESS
    try:
        async with broker_in_memory(io=disk, clock=clock) as broker:
            disk.go_cold()
            disk.hang()
            clock.now_ms += 60_000
            checking = asyncio.create_task(broker.parts.checks.run_round())
            await until(lambda: len(broker.parts.cold) == 1)
            await serves_others(broker)
            disk.answer()
            assert (await checking).offline == 1
    finally:
        disk.answer()
