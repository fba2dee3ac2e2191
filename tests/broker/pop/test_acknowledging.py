"""Acknowledging as a use case: values in, values out, over a store in memory, with nobody connected."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from aerobee_broker.pop.acknowledging import Changed
from aerobee_broker.pop.checkpoints import Key
from aerobee_broker.pop.extra_info import ORDERED, PopInfo
from aerobee_broker.pop.service import PopStatistics
from aerobee_broker.pop.values import Found
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.names import GroupQueue
from aerobee_store.faults.errors import StoreFull
from aerobee_store.store import MessageStore
from broker.messages.ground import G, T
from broker.pop.ground import MINUTE, PLACE, PopGround, Someone, bodies_of
from broker.support import Clock


@pytest.fixture
async def pop(store: MessageStore, clock: Clock) -> PopGround:
    return PopGround(store, clock)


@dataclass
class Waiter:
    """Waits for acknowledgements to be durable."""

    logged: list[RequestError | None] = field(default_factory=list)
    is_told: asyncio.Event = field(default_factory=asyncio.Event)

    def settled(self, refused: RequestError | None) -> None:
        self.logged.append(refused)
        self.is_told.set()

    async def wait(self, pop: PopGround) -> None:
        """Until it is told; it must not be told at once."""
        pop.acks.when_durable(self.settled)
        assert self.logged == []
        await self.is_told.wait()


async def acked(pop: PopGround, found: Found, *offsets: int) -> None:
    """Acknowledge messages, and wait until that is durable."""
    for offset in offsets:
        pop.acks.ack(PLACE, offset, pop.named(found))
    waiter = Waiter()
    await waiter.wait(pop)
    assert waiter.logged == [None]


def code_of(error: pytest.ExceptionInfo[RequestError]) -> int:
    return error.value.code


async def test_what_is_acknowledged_does_not_come_back(pop: PopGround) -> None:
    pop.put(b"a", b"b", b"c")
    await acked(pop, pop.found(), 0, 2)
    assert pop.service.statistics() == PopStatistics(
        held_pops=0,
        pop_check_points=1,
        pop_unacknowledged=1,
        pop_acknowledged=2,
        pop_revived=0,
        pop_dead_letters=0,
    )
    pop.pass_time(MINUTE)
    assert bodies_of(pop.pop()) == [b"b"]


async def test_acknowledgements_of_one_turn_share_a_record(pop: PopGround) -> None:
    pop.put(b"a", b"b", b"c")
    found = pop.found()
    before = pop.store.reading.max_offset(pop.ledger.log.topic, found.revive_queue)
    await acked(pop, found, 0, 1, 2)
    assert pop.store.reading.max_offset(pop.ledger.log.topic, found.revive_queue) == before + 1


async def test_what_changes_nothing_is_not_written(pop: PopGround) -> None:
    pop.put(b"a")
    found = pop.found()
    await acked(pop, found, 0)
    end = pop.store.end_offset
    await acked(pop, found, 0)
    assert pop.store.end_offset == end


async def test_who_waits_is_told_that_it_will_never_be_durable(pop: PopGround) -> None:
    pop.put(b"a")
    pop.acks.ack(PLACE, 0, pop.named(pop.found()))
    pop.failure = StoreFull(Path("/store"), 1)
    waiter = Waiter()
    await waiter.wait(pop)
    (logged,) = waiter.logged
    assert logged is not None
    assert (logged.code, logged.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, str(pop.failure))


async def test_an_end_does_not_wait_for_slaves_that_are_gone(pop: PopGround) -> None:
    """A master that was replaced while an acknowledgement waited for its slaves never became a slave: its life did not
    end. Found by a simulation."""
    pop.put(b"a")
    pop.acks.ack(PLACE, 0, pop.named(pop.found()))
    pop.is_never_durable = True
    waiter = Waiter()
    pop.acks.when_durable(waiter.settled)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await pop.acks.close()
    (logged,) = waiter.logged
    assert logged is not None
    assert logged.code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_who_waits_is_told_that_it_could_not_be_written(
    pop: PopGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    pop.put(b"a")
    found = pop.found()
    refusal = RequestError(ResponseCode.SYSTEM_BUSY, "made so")

    def refuse(_: object) -> None:
        raise refusal

    with monkeypatch.context() as patched:
        patched.setattr(pop.ledger.log, "append", refuse)
        pop.acks.ack(PLACE, 0, pop.named(found))
        waiter = Waiter()
        await waiter.wait(pop)
    assert waiter.logged == [refusal]
    await acked(pop, found, 0)  # it can be said again
    assert len(pop.ledger.table) == 0


async def test_many_are_acknowledged_at_once_as_far_as_they_are_there(pop: PopGround) -> None:
    pop.put(b"a", b"b", b"c")
    found = pop.found()
    key = Key(*PLACE, 0, found.pop_time)
    pop.acks.ack_many(key, [-1, 0, 1, 77], revive_queue=found.revive_queue, invisible_ms=found.invisible_ms)
    await asyncio.sleep(0)
    pop.pass_time(MINUTE)
    assert bodies_of(pop.pop()) == [b"c"]


async def test_of_a_queue_that_is_not_there_the_offsets_are_not_looked_at(pop: PopGround) -> None:
    looked_at = []

    def offsets() -> Iterator[int]:
        looked_at.append(0)
        yield 0

    for topic in ("No", T):
        pop.put(b"a")
        pop.acks.ack_many(Key(G, topic, 0, 0, 1), offsets(), revive_queue=0, invisible_ms=1)
        assert len(looked_at) == (topic == T)


@pytest.mark.parametrize(
    ("queue", "offset", "code"),
    [
        (GroupQueue(G, "No", 0), 0, ResponseCode.TOPIC_NOT_EXIST),
        (GroupQueue(G, T, 99), 0, ResponseCode.MESSAGE_ILLEGAL),
        (PLACE, 9, ResponseCode.NO_MESSAGE),
        (PLACE, -1, ResponseCode.NO_MESSAGE),
    ],
)
async def test_what_is_not_there_cannot_be_acknowledged(
    pop: PopGround, queue: GroupQueue, offset: int, code: int
) -> None:
    pop.put(b"a")
    popped = pop.named(pop.found())
    with pytest.raises(RequestError) as refused:
        pop.acks.ack(queue, offset, popped)
    assert code_of(refused) == code
    with pytest.raises(RequestError) as refused:
        await pop.acks.change(queue, offset, popped, invisible_ms=1)
    assert code_of(refused) == code


async def test_a_pop_that_no_broker_like_this_made_is_refused(pop: PopGround) -> None:
    pop.put(b"a")
    with pytest.raises(RequestError) as refused:
        pop.acks.ack(PLACE, 0, PopInfo(5, 1, MINUTE, 77, "0", "b", 0))
    assert code_of(refused) == ResponseCode.INVALID_PARAMETER


# --- more time ----------------------------------------------------------------------------------------------------


async def test_more_time_counts_from_now_and_under_a_new_name(pop: PopGround, clock: Clock) -> None:
    pop.put(b"a", b"b")
    found = pop.found()
    pop.pass_time(MINUTE - 1)
    changed = await pop.acks.change(PLACE, 0, pop.named(found), invisible_ms=5 * MINUTE)
    assert changed == Changed(clock(), 5 * MINUTE, found.revive_queue)
    pop.pass_time(1)
    assert bodies_of(pop.pop()) == [b"b"]
    renewed = pop.named(found)._replace(start_offset=0, pop_time=changed.pop_time)
    pop.acks.ack(PLACE, 0, renewed._replace(invisible_ms=changed.invisible_ms))
    await asyncio.sleep(0)
    pop.pass_time(5 * MINUTE)
    assert bodies_of(pop.pop()) == [b"b"]  # which came back once more; the other one did not


async def test_what_is_acknowledged_gets_no_more_time(pop: PopGround) -> None:
    pop.put(b"a")
    found = pop.found()
    await acked(pop, found, 0)
    with pytest.raises(RequestError) as refused:
        await pop.acks.change(PLACE, 0, pop.named(found), invisible_ms=MINUTE)
    assert code_of(refused) == ResponseCode.NO_MESSAGE


@pytest.mark.parametrize("invisible_ms", [-1, 259_200_001])
async def test_a_time_that_cannot_be_is_refused(pop: PopGround, invisible_ms: int) -> None:
    pop.put(b"a")
    with pytest.raises(RequestError) as refused:
        await pop.acks.change(PLACE, 0, pop.named(pop.found()), invisible_ms=invisible_ms)
    assert code_of(refused) == ResponseCode.INVALID_PARAMETER


# --- in order -----------------------------------------------------------------------------------------------------


async def test_in_order_the_group_moves_on_with_its_acknowledgements(pop: PopGround) -> None:
    pop.put(b"a", b"b", b"c")
    found = pop.found(in_order=True, count=2)
    who = Someone()
    pop.pop(who, in_order=True, wait_ms=MINUTE)
    await acked(pop, found, 0)
    assert (pop.offsets.get(G, T, 0), who.answers) == (1, [])
    await acked(pop, found, 1)
    assert pop.offsets.get(G, T, 0) == 2
    assert [bodies_of(one) for one in who.answers] == [[b"c"]]


async def test_in_order_only_what_the_last_pop_handed_out_can_be_acknowledged(pop: PopGround) -> None:
    pop.put(b"a", b"b")
    found = pop.found(in_order=True, count=1)
    with pytest.raises(RequestError) as refused:
        pop.acks.ack(PLACE, 1, pop.named(found))
    assert code_of(refused) == ResponseCode.MESSAGE_ILLEGAL


async def test_in_order_who_knows_nothing_of_the_pop_passes_over_nothing(pop: PopGround) -> None:
    """An acknowledgement behind a crash moved the group past what was not acknowledged before it."""
    pop.put(b"a", b"b", b"c")
    found = pop.found(in_order=True, count=3)
    await acked(pop, found, 0)
    pop.orders.clear(PLACE)
    await acked(pop, found, 2)
    assert pop.offsets.get(G, T, 0) == 1
    await acked(pop, found, 1)
    assert pop.offsets.get(G, T, 0) == 2


async def test_in_order_more_time_blocks_longer(pop: PopGround, clock: Clock) -> None:
    pop.put(b"a")
    found = pop.found(in_order=True)
    clock.now_ms += MINUTE - 1
    changed = await pop.acks.change(PLACE, 0, pop.named(found), invisible_ms=MINUTE)
    assert changed == Changed(found.pop_time, 2 * MINUTE - 1, ORDERED)
    who = Someone()
    pop.pop(who, in_order=True, wait_ms=2 * MINUTE)
    pop.pass_time(MINUTE - 1)
    assert who.answers == []
    pop.pass_time(1)
    assert [bodies_of(one) for one in who.answers] == [[b"a"]]
