"""Popping as a use case: values in, values out, over a store in memory, with nobody connected."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.messages.values import Failed
from aerobee_broker.pop.extra_info import ORDERED, parse_extra_info
from aerobee_broker.pop.values import ALL_QUEUES, Found, Nothing, Notice, Outcome, Peeked
from aerobee_proto import properties
from aerobee_proto.bodies import SubscriptionGroupConfig, TopicConfig
from aerobee_proto.codes import Perm, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.names import GroupQueue
from aerobee_store.faults.errors import CorruptStore
from aerobee_store.store import MessageStore
from broker.messages.ground import G, T
from broker.pop.ground import MINUTE, PLACE, PopGround, Someone, bodies_of, records_of
from broker.support import Clock
from store.workload import message

RETRY = f"%RETRY%{G}_{T}"


@pytest.fixture
async def pop(store: MessageStore, clock: Clock) -> PopGround:
    return PopGround(store, clock)


def reason_of(outcome: Outcome | None) -> tuple[str, bool]:
    assert isinstance(outcome, Nothing)
    return outcome.reason, outcome.is_full


# --- handing out --------------------------------------------------------------------------------------------------


async def test_what_is_handed_out_is_the_groups_alone_and_counted(pop: PopGround, clock: Clock) -> None:
    pop.put(b"a", b"b", b"c")
    found = pop.found(count=2)
    assert (bodies_of(found), found.rest, found.pop_time) == ([b"a", b"b"], 1, clock())
    ((queue, start, offsets),) = [(part.queue, part.start_offset, part.offsets) for part in found.parts]
    assert (queue, start, list(offsets)) == (PLACE, 0, [0, 1])
    assert pop.ledger.position(PLACE) == 2
    assert pop.stats.groups[G, T].get_count.value == 2
    assert bodies_of(pop.pop()) == [b"c"]
    assert reason_of(pop.pop()) == ("NO_MESSAGE_IN_QUEUE", False)


async def test_a_pop_of_all_queues_begins_at_a_random_one(pop: PopGround) -> None:
    pop.topics.update([TopicConfig(topic_name=T, read_queue_nums=3, write_queue_nums=3)])
    pop.store.append([message(T, queue_id, b"%d" % queue_id) for queue_id in range(3)])
    pop.store.confirm(pop.store.end_offset)
    pop.random = [2, 99]  # the queue; and no retry topics first
    assert bodies_of(pop.pop(place=GroupQueue(G, T, ALL_QUEUES))) == [b"2", b"0", b"1"]


async def test_what_is_not_wanted_is_passed_over_for_good(pop: PopGround) -> None:
    pop.put(b"other", tag="A")
    pop.put(b"mine", tag="B")
    found = pop.found(expression="B")
    assert (bodies_of(found), list(found.parts[0].offsets)) == ([b"mine"], [1])
    assert pop.ledger.position(PLACE) == 2


async def test_two_pops_of_the_same_messages_in_one_ms_have_different_names(pop: PopGround) -> None:
    pop.put(b"a")
    first = pop.found()
    pop.offsets.assign_reset(G, T, 0, 0)
    again = pop.found()
    assert (bodies_of(again), again.pop_time) == ([b"a"], first.pop_time + 1)


@pytest.mark.parametrize(("young", "expected"), [(True, [b"a", b"b"]), (False, [b"b"])])
async def test_a_new_group_begins_at_the_last_message_unless_the_queue_is_young(
    store: MessageStore, clock: Clock, young: bool, expected: list[bytes]
) -> None:
    pop = PopGround(store, clock, init_pop_offset_by_check_msg_in_mem=young)
    pop.put(b"a", b"b")
    assert bodies_of(pop.pop(from_first=False)) == expected


async def test_what_comes_back_does_so_under_the_topics_name_and_says_how_to_acknowledge_it(
    pop: PopGround,
) -> None:
    pop.put(b"a")
    first = pop.found()
    pop.pass_time(MINUTE)
    found = pop.found()
    (record,) = records_of(found)
    assert (record.topic, record.reconsume_times, found.parts[0].queue.topic) == (T, 1, RETRY)
    assert record.property_map[properties.FIRST_POP_TIME] == str(first.pop_time)
    info = parse_extra_info(record.property_map[properties.POP_CK])
    assert info == pop.named(found)
    assert (info.mark, info.pop_time) == ("1", found.pop_time)


@pytest.mark.parametrize(("number", "expected"), [(19, [b"old", b"new"]), (20, [b"new", b"old"])])
async def test_in_one_of_five_pops_what_came_back_goes_first(
    store: MessageStore, clock: Clock, number: int, expected: list[bytes]
) -> None:
    pop = PopGround(store, clock, pop_from_retry_probability=20)
    pop.put(b"old")
    pop.found()
    pop.pass_time(MINUTE)
    pop.put(b"new")
    pop.random = [number]
    assert bodies_of(pop.pop()) == expected


async def test_peeking_hands_out_nothing(pop: PopGround) -> None:
    pop.put(b"a", b"b")
    for _ in range(2):
        peeked = pop.popping.peek(PLACE, 1)
        assert isinstance(peeked, Peeked)
        assert (peeked.count, peeked.rest) == (1, 1)
    assert len(pop.ledger.table) == 0
    assert bodies_of(pop.pop()) == [b"a", b"b"]


# --- in order -----------------------------------------------------------------------------------------------------


async def test_in_order_nothing_more_is_handed_out_while_something_is_invisible(
    pop: PopGround, clock: Clock
) -> None:
    pop.put(b"a", b"b")
    found = pop.found(in_order=True, count=1)
    assert (bodies_of(found), found.revive_queue, found.parts[0].counts) == ([b"a"], ORDERED, {})
    assert pop.offsets.get(G, T, 0) == 0
    assert reason_of(pop.pop(in_order=True)) == ("NO_MESSAGE_IN_QUEUE", False)
    clock.now_ms += MINUTE
    again = pop.found(in_order=True)
    assert (bodies_of(again), again.parts[0].counts) == ([b"a", b"b"], {0: 1})


async def test_in_order_the_same_attempt_is_handed_the_same(pop: PopGround) -> None:
    pop.put(b"a")
    assert bodies_of(pop.pop(in_order=True, attempt_id="1")) == [b"a"]
    assert bodies_of(pop.pop(in_order=True, attempt_id="1")) == [b"a"]
    assert isinstance(pop.pop(in_order=True, attempt_id="2"), Nothing)


# --- waiting ------------------------------------------------------------------------------------------------------


async def test_who_waits_is_handed_what_comes(pop: PopGround) -> None:
    first, second = Someone(), Someone()
    assert pop.pop(first, wait_ms=1000) is None
    assert pop.pop(second, wait_ms=1000) is None
    assert (pop.popping.waiting_at(PLACE), first.answers) == (2, [])
    pop.put(b"a")
    assert ([bodies_of(one) for one in first.answers], second.answers) == ([[b"a"]], [])
    assert pop.popping.waiting


async def test_who_waits_for_other_messages_is_left_alone(pop: PopGround) -> None:
    who = Someone()
    pop.pop(who, wait_ms=1000, expression="A")
    pop.put(b"b", tag="B")
    assert (who.answers, pop.ledger.position(PLACE)) == ([], 0)
    pop.put(b"a", tag="A")
    assert [bodies_of(one) for one in who.answers] == [[b"a"]]


async def test_who_waits_is_told_when_the_time_is_over(pop: PopGround, clock: Clock) -> None:
    who = Someone()
    pop.pop(who, wait_ms=1000, born_ms=clock() - 200)
    pop.notice(who, wait_ms=1000)
    pop.pass_time(799)
    assert who.answers == []
    pop.pass_time(1)
    assert [reason_of(one) for one in who.answers] == [("NO_MESSAGE_IN_QUEUE", False)]
    pop.pass_time(200)
    assert who.answers[1:] == [Notice(has_messages=False)]
    assert not pop.popping.waiting


async def test_who_is_gone_is_handed_nothing(pop: PopGround) -> None:
    who = Someone()
    pop.pop(who, wait_ms=1000)
    who.is_closed = True
    pop.put(b"a")
    pop.pass_time(1000)
    assert (who.answers, len(pop.popping.held)) == ([], 0)
    assert bodies_of(pop.pop()) == [b"a"]


async def test_a_notice_takes_nothing(pop: PopGround) -> None:
    who = Someone()
    assert pop.notice(who) == Notice(has_messages=False)
    assert pop.notice(who, wait_ms=1000) is None
    pop.put(b"a")
    assert who.answers == [Notice(has_messages=True)]
    assert pop.notice(who) == Notice(has_messages=True)
    assert bodies_of(pop.pop()) == [b"a"]


async def test_who_waits_is_handed_what_comes_back(pop: PopGround) -> None:
    pop.put(b"a")
    pop.found()
    who = Someone()
    pop.pop(who, wait_ms=2 * MINUTE)
    pop.pass_time(MINUTE)
    assert [bodies_of(one) for one in who.answers] == [[b"a"]]


async def test_a_group_that_is_sent_back_is_served_at_once(pop: PopGround) -> None:
    pop.put(b"a")
    pop.found()
    who = Someone()
    pop.pop(who, wait_ms=1000)
    pop.offsets.commit(G, T, 0, 0)
    pop.service.was_reset(G, T, 0)
    assert [bodies_of(one) for one in who.answers] == [[b"a"]]


async def test_a_long_row_of_others_messages_is_passed_in_steps(pop: PopGround) -> None:
    """Entries in one look, and looks in one pop, are bounded; who waits goes on by itself."""
    pop.put(*[b"x"] * 600, tag="A")
    pop.put(b"y", tag="B")
    who = Someone()
    assert pop.pop(who, wait_ms=MINUTE, expression="B") is None
    assert pop.ledger.position(PLACE) == 256  # 16 looks at 16 entries, the size of this store's files
    pop.pass_time(100)
    assert (pop.ledger.position(PLACE), who.answers) == (512, [])
    pop.pass_time(100)
    assert [bodies_of(one) for one in who.answers] == [[b"y"]]


async def test_who_waits_is_told_what_failed_or_is_refused_by_now(
    pop: PopGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Someone(), Someone()
    pop.pop(first, wait_ms=1000)
    pop.pop(second, wait_ms=1000)
    broken = CorruptStore(Path("/store/x"), 0, "made so")

    def fail(*_: object) -> None:
        raise broken

    with monkeypatch.context() as patched:
        patched.setattr(pop.store.asking, "get_message", fail)
        pop.groups.update([SubscriptionGroupConfig(group_name=G)])
        pop.put(b"a")
    assert [one.error for one in first.answers if isinstance(one, Failed)] == [broken]
    assert [one.error for one in second.answers if isinstance(one, Failed)] == [broken]
    third = Someone()
    assert bodies_of(pop.pop()) == [b"a"]
    pop.pop(third, wait_ms=1000)
    pop.groups.update([SubscriptionGroupConfig(group_name=G, consume_enable=False)])
    pop.put(b"b")
    (outcome,) = third.answers
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, RequestError)
    assert outcome.error.code == ResponseCode.NO_PERMISSION


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"place": GroupQueue(G, "No", 0)}, ResponseCode.TOPIC_NOT_EXIST),
        ({"place": GroupQueue(G, T, 99)}, ResponseCode.INVALID_PARAMETER),
        ({"place": GroupQueue("no/group", T, 0)}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"place": GroupQueue("g" * 250, T, 0)}, ResponseCode.INVALID_PARAMETER),
        ({"count": 0}, ResponseCode.INVALID_PARAMETER),
        ({"count": 33}, ResponseCode.INVALID_PARAMETER),
        ({"invisible_ms": -1}, ResponseCode.INVALID_PARAMETER),
        ({"attempt_id": "x" * 513}, ResponseCode.INVALID_PARAMETER),
        ({"expression": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    ],
)
async def test_what_cannot_be_popped_is_refused(pop: PopGround, fields: dict[str, Any], code: int) -> None:
    with pytest.raises(RequestError) as refused:
        pop.pop(**fields)
    assert refused.value.code == code


@pytest.mark.parametrize("by", ["broker", "topic", "group"])
async def test_who_may_not_read_may_not_pop(store: MessageStore, clock: Clock, by: str) -> None:
    pop = PopGround(store, clock, broker_permission=Perm.WRITE if by == "broker" else 6)
    pop.topics.update([TopicConfig(topic_name=T, perm=Perm.WRITE if by == "topic" else 6)])
    pop.groups.update([SubscriptionGroupConfig(group_name=G, consume_enable=by != "group")])
    for ask in (pop.pop, lambda: pop.popping.peek(PLACE, 1), lambda: pop.notice(Someone())):
        with pytest.raises(RequestError) as refused:
            ask()
        assert refused.value.code == ResponseCode.NO_PERMISSION


async def test_who_asked_too_long_ago_is_handed_nothing(pop: PopGround, clock: Clock) -> None:
    pop.put(b"a")
    assert reason_of(pop.pop(born_ms=clock() - 1501, wait_ms=1000)) == ("the request came too late", False)
    assert bodies_of(pop.pop(born_ms=clock() - 1500, wait_ms=1000)) == [b"a"]


async def test_no_more_is_handed_out_than_may_be_out(store: MessageStore, clock: Clock) -> None:
    pop = PopGround(store, clock, pop_ck_max_buffer_size=1)
    pop.put(b"a", b"b")
    found = pop.found(count=1)
    assert reason_of(pop.pop()) == ("1 check-points are outstanding (popCkMaxBufferSize)", True)
    pop.acks.ack(PLACE, 0, pop.named(found))
    await asyncio.sleep(0)
    assert bodies_of(pop.pop()) == [b"b"]


async def test_only_so_many_wait(store: MessageStore, clock: Clock) -> None:
    pop = PopGround(store, clock, pop_polling_size=1)
    assert pop.pop(Someone(), wait_ms=1000) is None
    assert reason_of(pop.pop(Someone(), wait_ms=1000)) == ("too many pops are held", True)
    assert pop.notice(Someone(), wait_ms=1000) == Notice(has_messages=False, is_full=True)


async def test_what_cannot_be_noted_is_not_handed_out(
    pop: PopGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    pop.put(b"a")
    refusal = RequestError(ResponseCode.SYSTEM_BUSY, "made so")

    def refuse(_: object) -> None:
        raise refusal

    with monkeypatch.context() as patched:
        patched.setattr(pop.ledger.log, "append", refuse)
        with pytest.raises(RequestError, match="made so"):
            pop.pop()
    assert (pop.ledger.position(PLACE), len(pop.ledger.table)) == (0, 0)
    assert isinstance(pop.pop(), Found)
