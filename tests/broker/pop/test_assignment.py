"""Which queues are whose, as a use case: values in, values out, with nobody connected and no file."""

from typing import Any

import pytest

from aerobee_broker.members.clients import Member
from aerobee_broker.members.consumers import ConsumerTable
from aerobee_broker.pop.assignment import (
    Assigned,
    Assignment,
    AssignmentQuery,
    averagely,
    by_circle,
    for_pop,
)
from aerobee_broker.pop.request_modes import POP, PULL, RequestMode, RequestModes
from aerobee_proto.bodies import ConsumerData
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.names import BrokerQueue
from aerobee_remoting.exchange.connection import Connection
from aerobee_store.store import MessageStore
from broker.messages.ground import G, Ground, T
from broker.support import Clock

QUEUES = [
    BrokerQueue(T, broker, queue_id) for broker, count in (("a", 3), ("b", 2)) for queue_id in range(count)
]
MEMBERS = ["x", "y", "z"]

# --- shares


@pytest.mark.parametrize("strategy", [averagely, by_circle])
def test_every_queue_goes_to_one_member(strategy: Any) -> None:
    for count in range(1, 8):
        shares = [strategy(QUEUES, count, index) for index in range(count)]
        assert sorted(queue for share in shares for queue in share) == QUEUES
        sizes = [len(share) for share in shares]
        assert max(sizes) - min(sizes) <= 1


def test_shares_are_those_of_official_clients() -> None:
    assert averagely(QUEUES, 3, 0) == QUEUES[:2]
    assert averagely(QUEUES, 3, 2) == QUEUES[4:]
    assert by_circle(QUEUES, 3, 1) == [QUEUES[1], QUEUES[4]]


def test_popping_members_get_all_queues_of_a_broker_at_once() -> None:
    assert for_pop(averagely, QUEUES, 3, 1, 0) == [("T", "a", -1), ("T", "b", -1)]
    assert for_pop(averagely, QUEUES, 3, 1, 2) == [("T", "a", -1), ("T", "b", -1)]


def test_popping_members_share_with_those_behind_them() -> None:
    assert for_pop(averagely, QUEUES, 3, 2, 1) == [QUEUES[4], *QUEUES[:2]]
    assert for_pop(averagely, QUEUES, 7, 6, 1) == [QUEUES[1]]
    assert for_pop(averagely, QUEUES, 3, None, 1) == []


# --- the use case


class Table(Ground):
    """A broker's parts as far as assignment needs them, with members of group G."""

    def __init__(self, store: MessageStore, clock: Clock, *members: str, **settings: Any) -> None:
        super().__init__(store, clock, **settings)
        self.consumers = ConsumerTable(members_max=9, members_per_connection_max=9, topics_per_group_max=9)
        for name in members:
            data = ConsumerData(group_name=G, message_model="CLUSTERING", subscription_data_set=[])
            self.consumers.register(Member(name, Connection(), "JAVA", 479, 0), data, notify=False)
        self.known = QUEUES
        self.failure: OSError | None = None
        self.saved = 0
        self.assignment = Assignment(
            queues_of=self.queues_of,
            live=self.live,
            topics=self.topics,
            groups=self.groups,
            consumers=self.consumers,
            request_modes=RequestModes(on_dirty=lambda: None),
            save=self.save,
        )

    async def queues_of(self, topic: str) -> list[BrokerQueue]:
        return [queue._replace(topic=topic) for queue in self.known]

    async def save(self) -> None:
        if self.failure is not None:
            raise self.failure
        self.saved += 1

    async def ask(self, topic: str = T, client_id: str = "x", **fields: Any) -> Assigned | None:
        query = AssignmentQuery(G, topic, client_id, "AVG")._replace(**fields)
        return await self.assignment.assigned(query)


async def test_members_share_the_queues(store: MessageStore, clock: Clock) -> None:
    table = Table(store, clock, *MEMBERS)
    shares = [await table.ask(client_id=name) for name in MEMBERS]
    assert shares == [Assigned(QUEUES[i:j], PULL) for i, j in ((0, 2), (2, 4), (4, 5))]
    assert await table.ask(is_broadcasting=True) == Assigned(QUEUES, PULL)


@pytest.mark.parametrize("lacking", ["members", "strategy", "queues"])
async def test_who_cannot_be_told_keeps_what_it_has(store: MessageStore, clock: Clock, lacking: str) -> None:
    table = Table(store, clock, *([] if lacking == "members" else MEMBERS))
    if lacking == "queues":
        table.known = []
    assert await table.ask(strategy_name="OTHER" if lacking == "strategy" else "AVG") is None


async def test_a_broker_that_does_not_balance_gives_everybody_all(store: MessageStore, clock: Clock) -> None:
    table = Table(store, clock, server_load_balancer_enable=False)
    assert await table.ask() == Assigned(QUEUES, PULL)


async def test_a_mode_holds_from_then_on_and_is_saved(store: MessageStore, clock: Clock) -> None:
    table = Table(store, clock, *MEMBERS)
    await table.assignment.set_mode(RequestMode(consumer_group=G, topic=T, mode=POP, pop_share_queue_num=1))
    assert await table.ask(client_id="z") == Assigned([QUEUES[4], *QUEUES[:2]], POP)
    assert table.saved == 1


async def test_retry_topics_are_pulled_whatever_the_others_are(store: MessageStore, clock: Clock) -> None:
    table = Table(store, clock, "x", default_message_request_mode=POP)
    assert [found.mode for topic in (T, f"%RETRY%{G}") if (found := await table.ask(topic))] == [POP, PULL]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": f"%RETRY%{G}"}, ResponseCode.NO_PERMISSION),
        ({"topic": "No"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"consumer_group": "no/group"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"mode": "PUSH"}, ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_modes_that_cannot_be_are_refused(
    store: MessageStore, clock: Clock, fields: dict[str, Any], code: int
) -> None:
    table = Table(store, clock)
    with pytest.raises(RequestError) as refused:
        await table.assignment.set_mode(RequestMode(**({"consumer_group": G, "topic": T} | fields)))
    assert (refused.value.code, table.saved) == (code, 0)


async def test_a_mode_that_cannot_be_saved_is_in_effect_all_the_same(
    store: MessageStore, clock: Clock
) -> None:
    table = Table(store, clock, "x")
    table.failure = OSError("disk is full")
    with pytest.raises(RequestError, match="in effect but could not be written"):
        await table.assignment.set_mode(RequestMode(consumer_group=G, topic=T, mode=POP))
    assert (await table.ask() or Assigned([], "")).mode == POP
