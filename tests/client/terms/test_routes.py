import pytest

from aerobee.errors import BadAnswer
from aerobee.terms.routes import (
    MessageQueue,
    master_addrs,
    near_names,
    plan_route,
    plan_template_route,
    pull_addr,
)
from aerobee_proto.bodies import BrokerData, QueueData, TopicRouteData


def broker(name: str, *ids: int) -> BrokerData:
    addrs = {broker_id: f"{name}-{broker_id}:10911" for broker_id in ids}
    return BrokerData(broker_name=name, broker_addrs=addrs)


def queues(name: str, *, read: int = 2, write: int = 2, perm: int = 6) -> QueueData:
    return QueueData(broker_name=name, read_queue_nums=read, write_queue_nums=write, perm=perm)


def named(found: tuple[MessageQueue, ...]) -> list[str]:
    return [f"{queue.broker_name}{queue.queue_id}" for queue in found]


TABLE: dict[str, tuple[TopicRouteData, list[str], list[str]]] = {
    "two brokers, in order of name": (
        TopicRouteData(broker_datas=[broker("b", 0), broker("a", 0)], queue_datas=[queues("b"), queues("a")]),
        ["a0", "a1", "b0", "b1"],
        ["a0", "a1", "b0", "b1"],
    ),
    "fewer queues to write": (
        TopicRouteData(broker_datas=[broker("a", 0)], queue_datas=[queues("a", read=3, write=1)]),
        ["a0"],
        ["a0", "a1", "a2"],
    ),
    "read only": (
        TopicRouteData(broker_datas=[broker("a", 0)], queue_datas=[queues("a", perm=4)]),
        [],
        ["a0", "a1"],
    ),
    "write only": (
        TopicRouteData(broker_datas=[broker("a", 0)], queue_datas=[queues("a", perm=2)]),
        ["a0", "a1"],
        [],
    ),
    "no master": (
        TopicRouteData(broker_datas=[broker("a", 1)], queue_datas=[queues("a")]),
        [],
        ["a0", "a1"],
    ),
    "broker not named": (TopicRouteData(queue_datas=[queues("a")]), [], ["a0", "a1"]),
    "ordered topic": (
        TopicRouteData(
            broker_datas=[broker("a", 0)],
            queue_datas=[queues("a", read=4)],
            order_topic_conf="b:1;a:2;broken;c:x",
        ),
        ["b0", "a0", "a1"],
        ["a0", "a1", "a2", "a3"],
    ),
    "empty": (TopicRouteData(), [], []),
}


@pytest.mark.parametrize(("data", "publish", "subscribe"), TABLE.values(), ids=TABLE)
def test_queues_follow_the_route(data: TopicRouteData, publish: list[str], subscribe: list[str]) -> None:
    route = plan_route("T", data)
    assert (named(route.publish), named(route.subscribe)) == (publish, subscribe)
    assert all(queue.topic == "T" for queue in route.publish + route.subscribe)


@pytest.mark.parametrize(
    "data",
    [
        TopicRouteData(queue_datas=[queues("a", read=2**31 - 1)]),
        TopicRouteData(broker_datas=[broker("a", 0)], queue_datas=[queues("a", write=2**31 - 1)]),
        TopicRouteData(queue_datas=[queues("a", read=600_000), queues("b", read=600_000)]),
        TopicRouteData(order_topic_conf="a:2000000000"),
        TopicRouteData(order_topic_conf="a:" + "9" * 5000),
        TopicRouteData(order_topic_conf="a:600000;b:600000"),
    ],
    ids=["read", "write", "together", "ordered", "a long number", "ordered together"],
)
def test_a_route_that_no_topic_can_have_is_refused(data: TopicRouteData) -> None:
    """A nameserver that says two thousand million queues took all memory of its clients."""
    for plan in (plan_route, plan_template_route):
        with pytest.raises(BadAnswer, match="a topic has at most"):
            plan("T", data)


def test_the_template_gives_at_most_four_queues_a_broker_and_nothing_to_read() -> None:
    data = TopicRouteData(
        broker_datas=[broker("a", 0), broker("b", 0)],
        queue_datas=[queues("a", write=8, perm=7), queues("b", write=2, perm=7)],
    )
    route = plan_template_route("new", data)
    assert named(route.publish) == ["a0", "a1", "a2", "a3", "b0", "b1"]
    assert route.subscribe == ()
    assert route.from_template
    assert {queue.topic for queue in route.publish} == {"new"}


@pytest.mark.parametrize(
    ("ids", "suggested", "expected"),
    [((0, 1, 2), 0, 0), ((0, 1, 2), 1, 1), ((0, 2), 1, 2), ((0,), 1, 0), ((3,), 0, 3), ((), 0, None)],
)
def test_pulls_go_to_the_suggested_broker_or_the_next_or_any(
    ids: tuple[int, ...], suggested: int, expected: int | None
) -> None:
    addrs = {broker_id: f"addr-{broker_id}" for broker_id in ids}
    assert pull_addr(addrs, suggested) == (None if expected is None else f"addr-{expected}")


def test_master_addresses_leave_slaves_out() -> None:
    data = TopicRouteData(broker_datas=[broker("a", 0, 1), broker("b", 1)])
    assert master_addrs([plan_route("T", data)]) == {"a-0:10911"}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("order", ["orders"]), ("ODERS", ["orders"]), ("payment", ["Payments", "payments_v2"]), ("zzz", [])],
)
def test_near_names_find_what_was_meant(typed: str, meant: list[str]) -> None:
    assert near_names(typed, ["orders", "Payments", "payments_v2", "audit"]) == meant


def test_queues_sort_by_topic_broker_and_id_and_read_well() -> None:
    shuffled = [MessageQueue("b", "a", 0), MessageQueue("a", "b", 1), MessageQueue("a", "b", 0)]
    assert [str(queue) for queue in sorted(shuffled)] == ["a/b/0", "a/b/1", "b/a/0"]
