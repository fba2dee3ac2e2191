"""Routes: from a nameserver's answer to the queues one can publish to and read from. Pure functions.

Rules (the official clients' own)
- A topic with an order configuration (`broker:count;broker:count`) publishes to exactly those queues.
- Else queue data in order of broker name; those that may be written and whose broker has a master (id 0)
  give queues 0 .. write_queue_nums - 1.
- Reading: every queue data that may be read gives 0 .. read_queue_nums - 1.
- Sends go to id 0. Pulls go to the id last suggested for the queue, else the next id, else any.
- A route has at most ROUTE_QUEUES_MAX queues: what says more is no route that a broker could have.
- An unknown topic may be sent to through the template topic TBW102: min(4, its queues) of each broker.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, NamedTuple

from aerobee.errors import BadAnswer
from aerobee_proto.bodies import TopicRouteData
from aerobee_proto.codes import Perm

__all__ = [
    "MASTER_ID",
    "MessageQueue",
    "Route",
    "master_addrs",
    "near_names",
    "plan_route",
    "plan_template_route",
    "pull_addr",
]

MASTER_ID: Final = 0
TEMPLATE_QUEUES_MAX: Final = 4
NEAR_NAMES_MAX: Final = 3
ROUTE_QUEUES_MAX: Final = 1 << 20  # to publish to, and to read from
COUNT_CHARS_MAX: Final = 10


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker; sorts by topic, broker, queue id."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker_name}/{self.queue_id}"


@dataclass(slots=True, frozen=True)
class Route:
    """Where a topic lives, as the client uses it.

    `brokers` maps broker name to its addresses by broker id (0 is the master). `from_template` marks a route
    that was made from the template topic: the topic itself does not exist yet. `may_write` and `may_read` tell
    whether its permission allows that anywhere, be a broker there or not.
    """

    topic: str
    publish: tuple[MessageQueue, ...]
    subscribe: tuple[MessageQueue, ...]
    brokers: Mapping[str, Mapping[int, str]]
    from_template: bool = False
    may_write: bool = True
    may_read: bool = True


def plan_route(topic: str, data: TopicRouteData) -> Route:
    """Turn a nameserver's answer into a route. BadAnswer when it has more queues than any topic can."""
    _check_size(topic, data)
    brokers = {broker.broker_name: dict(broker.broker_addrs) for broker in data.broker_datas}
    if data.order_topic_conf:
        publish = tuple(_ordered_queues(topic, data.order_topic_conf))
    else:
        publish = tuple(_publish_queues(topic, data, brokers))
    return Route(
        topic,
        publish,
        tuple(_subscribe_queues(topic, data)),
        brokers,
        may_write=any(queues.perm & Perm.WRITE for queues in data.queue_datas),
        may_read=any(queues.perm & Perm.READ for queues in data.queue_datas),
    )


def plan_template_route(topic: str, data: TopicRouteData) -> Route:
    """The route for a first send to `topic`, from the route of the template topic."""
    template = plan_route(topic, data)
    publish = tuple(queue for queue in template.publish if queue.queue_id < TEMPLATE_QUEUES_MAX)
    return Route(topic, publish, (), template.brokers, from_template=True)


def pull_addr(addrs: Mapping[int, str], suggested_id: int) -> str | None:
    """The address to pull from: the suggested broker id, else the next id, else any; None without brokers."""
    for broker_id in (suggested_id, suggested_id + 1):
        if broker_id in addrs:
            return addrs[broker_id]
    return next(iter(addrs.values()), None)


def master_addrs(routes: Iterable[Route]) -> set[str]:
    """Every master address that the routes name."""
    return {addrs[MASTER_ID] for route in routes for addrs in route.brokers.values() if MASTER_ID in addrs}


def near_names(name: str, known: Sequence[str]) -> list[str]:
    """Existing names that someone who typed `name` may have meant, best first."""
    by_folded: dict[str, str] = {}
    for candidate in known:
        by_folded.setdefault(candidate.casefold(), candidate)
    matches = get_close_matches(name.casefold(), list(by_folded), n=NEAR_NAMES_MAX, cutoff=0.6)
    return [by_folded[match] for match in matches]


def _check_size(topic: str, data: TopicRouteData) -> None:
    ordered = sum([count for _, count in _order(data.order_topic_conf or "")])
    for count in (
        ordered,
        sum([max(one.read_queue_nums, 0) for one in data.queue_datas]),
        sum([max(one.write_queue_nums, 0) for one in data.queue_datas]),
    ):
        if count > ROUTE_QUEUES_MAX:
            reason = f"it names {count} queues, and a topic has at most {ROUTE_QUEUES_MAX}"
            raise BadAnswer(f"look up the route of topic {topic!r}", "", reason)


def _order(order_conf: str) -> Iterator[tuple[str, int]]:
    """Names of brokers, and how many queues of theirs are published to; what is no number counts for nothing."""
    for part in order_conf.split(";"):
        broker_name, colon, count = part.rpartition(":")
        if colon and count.isascii() and count.isdecimal():
            yield broker_name, int(count) if len(count) <= COUNT_CHARS_MAX else ROUTE_QUEUES_MAX + 1


def _ordered_queues(topic: str, order_conf: str) -> Iterable[MessageQueue]:
    for broker_name, count in _order(order_conf):
        for queue_id in range(count):
            yield MessageQueue(topic, broker_name, queue_id)


def _publish_queues(
    topic: str, data: TopicRouteData, brokers: Mapping[str, Mapping[int, str]]
) -> Iterable[MessageQueue]:
    for queues in sorted(data.queue_datas, key=lambda queues: queues.broker_name):
        if queues.perm & Perm.WRITE and MASTER_ID in brokers.get(queues.broker_name, {}):
            for queue_id in range(queues.write_queue_nums):
                yield MessageQueue(topic, queues.broker_name, queue_id)


def _subscribe_queues(topic: str, data: TopicRouteData) -> Iterable[MessageQueue]:
    for queues in sorted(data.queue_datas, key=lambda queues: queues.broker_name):
        if queues.perm & Perm.READ:
            for queue_id in range(queues.read_queue_nums):
                yield MessageQueue(topic, queues.broker_name, queue_id)
