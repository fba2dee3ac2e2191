"""Queues that are popped in order: blocking, counting, and the official file."""

import json

import pytest

from aerobee_broker.pop.orderly import OrderTable
from aerobee_broker.settings.config_files import decode_config, encode_config
from aerobee_proto.errors import FormatError
from aerobee_proto.names import GroupQueue
from broker.support import Clock

QUEUE = GroupQueue("g", "T", 1)
# As RocketMQ 5.3.3 writes it: keys in fastjson's order, numbers as keys without quotes.
OFFICIAL = (
    b'{"table":{"T@g":{1:{"a":"one","cm":2,"i":60000,"l":1700000000500,"o":[10,1,3],'
    b'"oc":{10:2},"ot":{13:1700000090000},"popTime":1700000000000}}}}'
)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def orders(clock: Clock) -> OrderTable:
    return OrderTable(clock)


def pop(
    orders: OrderTable, offsets: list[int], *, pop_time: int = 1_700_000_000_000, attempt: str | None = None
) -> dict[int, int]:
    return orders.popped(QUEUE, offsets, pop_time=pop_time, invisible_ms=1000, attempt_id=attempt)


def test_a_queue_opens_with_the_last_acknowledgement_or_by_time(orders: OrderTable, clock: Clock) -> None:
    assert not orders.is_blocked(QUEUE, None)
    assert pop(orders, [5, 6]) == {}
    assert orders.is_blocked(QUEUE, None)
    assert orders.ack(QUEUE, 6, clock()) == 5
    assert orders.ack(QUEUE, 5, clock()) == 7
    assert not orders.is_blocked(QUEUE, None)
    pop(orders, [7], pop_time=clock())
    clock.now_ms += 999
    assert (orders.is_blocked(QUEUE, None), orders.released(clock())) == (True, [])
    clock.now_ms += 1
    assert (orders.is_blocked(QUEUE, None), orders.released(clock())) == (False, [QUEUE])
    assert orders.released(clock()) == []


def test_messages_that_come_again_are_counted(orders: OrderTable) -> None:
    pop(orders, [5, 6])
    assert pop(orders, [5, 6, 7], pop_time=2) == {5: 1, 6: 1}
    assert pop(orders, [6, 7], pop_time=3) == {6: 2, 7: 1}


def test_the_same_attempt_is_the_same_pop(orders: OrderTable) -> None:
    pop(orders, [5, 6])
    assert pop(orders, [5, 6], attempt="one") == {5: 1, 6: 1}
    assert not orders.is_blocked(QUEUE, "one")
    assert orders.is_blocked(QUEUE, "two")
    assert pop(orders, [5, 6], attempt="one") == {5: 1, 6: 1}


def test_acknowledgements_of_another_pop_change_nothing(orders: OrderTable, clock: Clock) -> None:
    assert orders.ack(QUEUE, 5, 1) == 6  # nothing is known, as after a crash: go on behind it
    pop(orders, [5])
    assert orders.ack(QUEUE, 5, 1) is None
    with pytest.raises(LookupError):
        orders.ack(QUEUE, 9, clock())


def test_changed_times_hold(orders: OrderTable, clock: Clock) -> None:
    pop(orders, [5, 6])
    orders.change_visibility(QUEUE, 6, clock(), clock() + 5000)
    orders.change_visibility(QUEUE, 5, clock() + 1, 0)  # of another pop
    clock.now_ms += 4999
    assert orders.is_blocked(QUEUE, None)
    clock.now_ms += 1
    assert orders.released(clock()) == [QUEUE]


def test_watching_many_pops_keeps_little(orders: OrderTable, clock: Clock) -> None:
    for offset in range(1000):
        pop(orders, [offset], pop_time=clock() + offset)
    assert orders.release_count < 100
    clock.now_ms += 3000
    assert orders.released(clock()) == [QUEUE]


def test_what_is_gone_is_forgotten(orders: OrderTable, clock: Clock) -> None:
    pop(orders, [5])
    orders.tidy(lambda *_: True)
    assert len(orders) == 1
    orders.tidy(lambda queue: queue != QUEUE)
    assert len(orders) == 0
    pop(orders, [5])
    clock.now_ms += 86_400_001
    orders.tidy(lambda *_: True)
    assert len(orders) == 0


def test_the_official_file_is_read_and_written(orders: OrderTable, clock: Clock) -> None:
    orders.take(orders.parse(decode_config(OFFICIAL)))
    written = decode_config(encode_config(orders.to_json()))
    assert written == json.loads(
        OFFICIAL.replace(b"{1:", b'{"1":').replace(b"{10:", b'{"10":').replace(b"{13:", b'{"13":')
    )
    clock.now_ms += 60_000
    assert orders.is_blocked(QUEUE, None)  # until the changed time of 13
    assert not orders.is_blocked(QUEUE, "one")
    assert orders.ack(QUEUE, 13, 1_700_000_000_000) == 10


@pytest.mark.parametrize(
    "text",
    [b"{}", b'{"table":{"T":{}}}', b'{"table":{"T@g":{1:{"o":5}}}}', b'{"table":{"T@g":{"x":{"o":[1]}}}}'],
)
def test_other_files_are_refused(orders: OrderTable, text: bytes) -> None:
    with pytest.raises(FormatError):
        orders.parse(decode_config(text))
