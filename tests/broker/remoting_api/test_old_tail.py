"""A master by election whose log ends with what other members may not have: who sees it when, and what waits for it.

Members 1, 2 and 3 of a set; 1 was master of epoch 1, 2 is that of epoch 2.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from aerobee_broker.broker import Broker, Life
from aerobee_broker.lives.role import Role, settings_of
from aerobee_broker.lives.seating import ElectionStatistics, Served, SetStanding
from aerobee_proto.codes import RequestCode, ResponseCode
from broker.replication.pairs import FAST, eventually
from broker.support import START_MS, Clock
from system.running import Talker, broker_config, send_request, talking, text_of
from system.transacting import COMMIT, Half, end, end_request, send_half

GROUP = "test-group"
SEEN, TAIL = [b"0", b"1"], [b"delayed", b"tail", b"half"]
SEEN_COUNT = len(SEEN)
ASKED = {
    "consumerGroup": GROUP,
    "producerGroup": GROUP,
    "topic": "T",
    "queueId": "0",
    "offset": "0",
    "maxMsgNums": "1",
    "invisibleTime": "10000",
    "pollTime": "0",
    "bornTime": "0",
    "initMode": "0",
    "extraInfo": "",
    "recallHandle": "",
}


class Seat:
    """An election that says of a master whom it waits for."""

    def __init__(self, *waited_for: int) -> None:
        self.waited_for = frozenset(waited_for)
        self.served: Served | None = None
        self.store = ""
        self.is_held = True

    def holds(self, epoch: int) -> bool:
        return self.is_held

    def standing(self) -> SetStanding | None:
        return None

    def is_shared(self, addr: str) -> bool:
        return False

    def statistics(self) -> ElectionStatistics:
        return ElectionStatistics(1, 2, 1500, 1)

    def began(self, served: Served) -> None:
        self.served = served
        self.waits_for(*self.waited_for)

    def waits_for(self, *members: int) -> None:
        assert self.served is not None
        replicas = self.served.replicas
        if replicas is not None and replicas.wait_for(frozenset(members), frozenset(members)):
            self.served.advanced()

    def heard_of(self, epoch: int) -> None:
        """Nobody knows of a newer one."""

    def missed(self, epoch: int, *, is_gone: bool) -> None:
        """It is there."""

    def left(self) -> None:
        """Nothing to do."""

    def ended(self) -> None:
        """Nothing to do."""


@asynccontextmanager
async def life(folder: Path, role: Role, seat: Seat, clock: Clock) -> AsyncIterator[Broker]:
    settings = {"slave_read_enable": True, "total_replicas": 3, "election_endpoints": "e:1", **FAST}
    config = settings_of(broker_config(folder / str(role.member), broker_id=role.member, **settings), role)
    seat.store = f"store-{role.member}"
    broker = Broker(config, clock=clock, life=Life(role, seating=seat))
    try:
        await broker.start()
        yield broker
    finally:
        await broker.close()


@asynccontextmanager
async def follower(folder: Path, member: int, master: Broker, clock: Clock) -> AsyncIterator[Broker]:
    me = master.parts.identity
    role = Role(False, me.epoch, member, me.broker_addr, me.ha_addr)
    async with life(folder, role, Seat(), clock) as slave:
        await eventually(lambda: slave.parts.replication.is_linked)
        yield slave


class Tail:
    """What member 2 has of the master before it."""

    half: Half


@pytest.fixture
def clock() -> Clock:
    return Clock(START_MS)


@pytest.fixture
async def tail(tmp_path: Path, clock: Clock) -> Tail:
    """Readers have seen two messages; a transaction is open, and a message waits for its time. Member 2 has a plain one
    besides, that of the transaction, and the one that was delivered when its time had come, and has not heard that they
    are confirmed. A group has committed behind the plain one."""
    made, seat = Tail(), Seat(2)
    async with (
        life(tmp_path, Role(True, 1, 1), seat, clock) as master,
        follower(tmp_path, 2, master, clock) as slave,
        talking(master) as client,
    ):
        for body in (b"0", b"1"):
            assert (await client.put("T", body, queue_id=0)).code == 0
        made.half = await send_half(client, "T", b"half", key="K")
        delay = text_of({"DELAY": "1", "UNIQ_KEY": "D"})
        assert (await client.put("T", b"delayed", queue_id=0, properties=delay)).code == 0
        shown = master.parts.store.end_offset
        await eventually(lambda: slave.parts.store.confirmed_offset == shown)
        await eventually(lambda: "T" in slave.parts.topics)
        seat.waits_for(2, 3)  # nothing is confirmed from here on
        next_offset = partial(slave.parts.store.reading.next_offset, "T", 0)
        clock.now_ms += 5_000
        master.parts.wakeups.level_came.set()
        await eventually(lambda: next_offset() == SEEN_COUNT + 1)
        client.send(send_request("T", b"tail", properties=text_of({"KEYS": "x"})))
        await eventually(lambda: next_offset() == SEEN_COUNT + 2)
        client.send(end_request(made.half, COMMIT))
        await eventually(lambda: next_offset() == SEEN_COUNT + 3)
        slave.parts.offsets.commit(GROUP, "T", 0, SEEN_COUNT + 2)
        assert slave.parts.store.reading.max_offset("T", 0) == SEEN_COUNT
    return made


async def offset_of(client: Talker, code: RequestCode) -> int:
    answer = await client.ask(code, {"topic": "T", "queueId": "0", "consumerGroup": GROUP})
    assert answer.code == 0, answer.remark
    return int(answer.ext["offset"])


async def bodies(client: Talker) -> list[bytes]:
    return [record.body for record in await client.records("T", queueId=0, suspendTimeoutMillis=0, sysFlag=4)]


async def test_readers_see_the_tail_when_every_member_in_sync_has_it(
    tmp_path: Path, tail: Tail, clock: Clock
) -> None:
    """Whoever has read on behind it waits there, and is not sent back."""
    async with life(tmp_path, Role(True, 2, 2), Seat(3), clock) as master, talking(master) as client:
        assert await bodies(client) == SEEN
        assert await offset_of(client, RequestCode.GET_MAX_OFFSET) == SEEN_COUNT
        assert await offset_of(client, RequestCode.QUERY_CONSUMER_OFFSET) == SEEN_COUNT + 2
        query = {"topic": "T", "key": "x", "maxNum": "9", "beginTimestamp": "0", "endTimestamp": str(2**60)}
        assert (await client.ask(RequestCode.QUERY_MESSAGE, query)).code == ResponseCode.QUERY_NOT_FOUND
        pull = client.pull_request("T", SEEN_COUNT + 2, suspendTimeoutMillis=60_000, sysFlag=6)
        pull.opaque = 7
        client.send(pull)
        await eventually(lambda: len(master.parts.pulls.held) == 1)
        async with talking(master) as sender:
            sender.send(send_request("T", b"new", opaque=9))
            await eventually(lambda: master.parts.store.reading.next_offset("T", 0) == SEEN_COUNT + 4)
            assert await bodies(client) == SEEN
            async with follower(tmp_path, 3, master, clock):
                assert (await sender.answer_to(9)).code == 0
                found = await client.answer_to(7)
                assert (found.code, found.ext["nextBeginOffset"]) == (0, str(SEEN_COUNT + 4))
                assert await bodies(client) == [*SEEN, *TAIL, b"new"]
                assert (await client.ask(RequestCode.QUERY_MESSAGE, query)).code == 0


async def test_what_is_read_of_queues_waits_for_the_tail(tmp_path: Path, tail: Tail, clock: Clock) -> None:
    """Transactions, POP, delayed messages: who asks for them before is refused; what the tail has is not done again."""
    with capture_logs() as logs:
        async with life(tmp_path, Role(True, 2, 2), Seat(3), clock) as master, talking(master) as client:
            reading = master.parts.store.reading
            master.parts.wakeups.level_came.set()
            asked = RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE, RequestCode.RECALL_MESSAGE
            codes = [(await client.ask(code, ASKED)).code for code in asked]
            codes.append((await end(client, tail.half, COMMIT)).code)
            opened = text_of({"TRAN_MSG": "true", "PGROUP": "g", "UNIQ_KEY": "L"})
            codes.append((await client.put("T", b"later", properties=opened, sysFlag="4")).code)
            assert codes == [ResponseCode.SERVICE_NOT_AVAILABLE] * 5
            assert reading.next_offset("T", 0) == SEEN_COUNT + len(TAIL)
            async with follower(tmp_path, 3, master, clock):
                await eventually(lambda: not master.parts.transactions.is_unknown)
                assert (await end(client, tail.half, COMMIT)).code == 0
                assert (await client.put("T", b"new", queue_id=0)).code == 0
                await eventually(lambda: reading.max_offset("T", 0) == SEEN_COUNT + len(TAIL) + 1)
                assert await bodies(client) == [*SEEN, *TAIL, b"new"]
                assert (await client.ask(RequestCode.POP_MESSAGE, ASKED)).code == 0
    said = [line for line in logs if line["event"] == "replication.tail_confirmed"]
    assert len(said) == 1
    assert said[0]["size"] > 0


async def test_a_member_that_leaves_is_not_waited_for(tmp_path: Path, tail: Tail, clock: Clock) -> None:
    seat = Seat(3)
    async with life(tmp_path, Role(True, 2, 2), seat, clock) as master, talking(master) as client:
        assert await bodies(client) == SEEN
        seat.waits_for()
        await eventually(lambda: not master.parts.transactions.is_unknown)
        assert await bodies(client) == [*SEEN, *TAIL]


async def test_a_master_that_ends_before_leaves_the_tail_as_it_was(
    tmp_path: Path, tail: Tail, clock: Clock
) -> None:
    """Stopped, it is not there for readers of the next life either, whichever role that has."""
    async with life(tmp_path, Role(True, 2, 2), Seat(3), clock) as master:
        end_offset = master.parts.store.end_offset
    async with life(tmp_path, Role(False, 2, 2), Seat(), clock) as slave, talking(slave) as client:
        assert slave.parts.store.end_offset == end_offset
        assert await bodies(client) == SEEN
    async with life(tmp_path, Role(True, 3, 2), Seat(), clock) as master, talking(master) as client:
        await asyncio.sleep(0)
        assert await bodies(client) == [*SEEN, *TAIL]


async def test_before_the_election_has_said_whom_to_wait_for_nothing_is_confirmed(
    tmp_path: Path, tail: Tail, clock: Clock
) -> None:
    class Silent(Seat):
        def began(self, served: Served) -> None:
            self.served = served

    async with (
        life(tmp_path, Role(True, 2, 2), Silent(), clock) as master,
        follower(tmp_path, 3, master, clock) as slave,
        talking(master) as client,
    ):
        await eventually(lambda: slave.parts.store.end_offset == master.parts.store.end_offset)
        assert await bodies(client) == SEEN


async def test_who_has_lost_the_seat_acknowledges_nothing(tmp_path: Path) -> None:
    """It is asked at each answer, not when a life begins."""
    seat = Seat()
    async with life(tmp_path, Role(True, 1, 1), seat, Clock(START_MS)) as broker, talking(broker) as client:
        assert (await client.put("T")).code == ResponseCode.SUCCESS
        seat.is_held = False
        assert (await client.put("T")).code == ResponseCode.SERVICE_NOT_AVAILABLE
