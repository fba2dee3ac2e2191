"""Reading as a use case: values in, values out, over a store in memory, with nobody connected."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.members.consumers import ConsumerTable
from aerobee_broker.members.filters import Filters
from aerobee_broker.messages.read import Reading
from aerobee_broker.messages.refusals import Forbidden, ForbiddenBy
from aerobee_broker.messages.values import Failed, Moved, Outcome, Query, Read, ReadKind, Skipped
from aerobee_broker.stats import BrokerStats
from aerobee_proto.bodies import SubscriptionGroupConfig, TopicConfig
from aerobee_proto.codes import Perm, ResponseCode
from aerobee_proto.errors import LimitReached, RequestError
from aerobee_proto.records import decode_records
from aerobee_store.faults.errors import CorruptStore
from aerobee_store.store import MessageStore
from broker.messages.ground import G, Ground, T
from broker.support import Clock


@dataclass(eq=False)
class Someone:
    """Asks, and keeps what it is answered later."""

    peer: str = "10.0.0.1:5000"
    is_closed: bool = False
    is_congested: bool = False
    was_overtaken: bool = False
    answers: list[Outcome] = field(default_factory=list)

    def take(self, outcome: Outcome) -> None:
        self.answers.append(outcome)


class Table(Ground):
    """A broker's parts as far as reading needs them."""

    def __init__(self, store: MessageStore, clock: Clock, **settings: Any) -> None:
        super().__init__(store, clock, **settings)
        self.stats = BrokerStats("c", clock())
        self.reading = Reading(
            live=self.live,
            clock=clock,
            cold=self.cold,
            catalog=self.catalog,
            consumers=ConsumerTable(members_max=9, members_per_connection_max=9, topics_per_group_max=9),
            filters=Filters(),
            stats=self.stats,
        )

    def ask(self, who: Someone, offset: int = 0, **fields: Any) -> Outcome | None:
        usual: dict[str, Any] = {"group": G, "topic": T, "queue_id": 0, "count": 32, "has_filter": True}
        query = Query(offset=offset, **(usual | fields))
        return self.reading.read(query, who, Someone.take, who)

    def put(self, *bodies: bytes) -> None:
        """Store messages, and tell those that wait."""
        self.reading.arrived(self.store_all(*bodies))


@pytest.fixture
async def table(store: MessageStore, clock: Clock) -> Table:
    return Table(store, clock)


def bodies_of(outcome: Outcome | None) -> list[bytes]:
    assert isinstance(outcome, Read)
    assert outcome.kind is ReadKind.FOUND
    return [one.body for one in decode_records(b"".join(outcome.result.body))]


async def test_what_is_there_is_given_noted_and_counted(table: Table) -> None:
    table.put(b"1", b"2", b"3")
    assert bodies_of(table.ask(Someone(), 1)) == [b"2", b"3"]
    assert table.offsets.pulled(G, T, 0) == 3
    assert table.stats.groups[G, T].get_count.value == 2


@pytest.mark.parametrize(
    ("offset", "kind"),
    [
        pytest.param(2, ReadKind.NOTHING_YET, id="at the end"),
        pytest.param(9, ReadKind.MOVED, id="beyond the end"),
    ],
)
async def test_nothing_there_has_a_reason(table: Table, offset: int, kind: ReadKind) -> None:
    table.put(b"1", b"2")
    outcome = table.ask(Someone(), offset)
    assert isinstance(outcome, Read)
    assert (outcome.kind, outcome.result.next_offset) == (kind, 2)


async def test_who_may_wait_is_answered_when_something_comes(table: Table) -> None:
    who = Someone()
    assert table.ask(who, 0, wait_ms=1000) is None
    assert (who.answers, bool(table.reading.waiting)) == ([], True)
    table.put(b"1")
    assert [bodies_of(one) for one in who.answers] == [[b"1"]]
    assert not table.reading.waiting


async def test_who_waits_is_answered_when_the_time_is_over(table: Table, clock: Clock) -> None:
    who = Someone()
    table.ask(who, 0, wait_ms=1000)
    clock.now_ms += 999
    table.reading.expire()
    assert who.answers == []
    clock.now_ms += 1
    table.reading.expire()
    assert [one.kind for one in who.answers if isinstance(one, Read)] == [ReadKind.NOTHING_YET]


async def test_who_is_gone_is_not_answered(table: Table) -> None:
    who = Someone()
    table.ask(who, 0, wait_ms=1000)
    who.is_closed = True
    table.put(b"1")
    assert (who.answers, len(table.reading.held)) == ([], 0)


async def test_who_takes_its_answers_slowly_gets_no_messages(table: Table) -> None:
    who = Someone()
    table.ask(who, 0, wait_ms=1000)
    who.is_congested = True
    table.put(b"1")
    (outcome,) = who.answers
    assert isinstance(outcome, Skipped)
    assert outcome.offset == 0


async def test_what_fails_later_is_told(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    who = Someone()
    table.ask(who, 0, wait_ms=1000)
    broken = CorruptStore(Path("/store/x"), 0, "made so")

    def fail(*_: object) -> None:
        raise broken

    monkeypatch.setattr(table.store.asking, "get_message", fail)
    table.put(b"1")
    (outcome,) = who.answers
    assert isinstance(outcome, Failed)
    assert outcome.error is broken


@pytest.mark.parametrize(("overtaken", "left"), [(False, 3), (True, 5)])
async def test_an_offset_comes_with_a_query_unless_a_later_one_came_before(
    table: Table, overtaken: bool, left: int
) -> None:
    table.offsets.commit(G, T, 0, 5)
    table.ask(Someone(was_overtaken=overtaken), commit_offset=3)
    assert table.offsets.get(G, T, 0) == left


async def test_a_reset_is_told_at_the_next_query_and_to_those_that_wait(table: Table) -> None:
    table.put(b"1", b"2")
    waiting = Someone()
    table.ask(waiting, 2, wait_ms=1000)
    table.offsets.assign_reset(G, T, 0, 1)
    table.reading.group_reset(G, T, 0)
    table.offsets.assign_reset(G, T, 0, 0)
    for outcome, offset in ((waiting.answers[0], 1), (table.ask(Someone(), 2), 0)):
        assert isinstance(outcome, Moved)
        assert (outcome.offset, outcome.min_offset, outcome.max_offset) == (offset, 0, 2)


@pytest.mark.parametrize("by", [ForbiddenBy.BROKER, ForbiddenBy.GROUP, ForbiddenBy.TOPIC])
async def test_who_may_not_read_learns_who_forbids(
    store: MessageStore, clock: Clock, by: ForbiddenBy
) -> None:
    table = Table(store, clock, broker_permission=Perm.WRITE if by is ForbiddenBy.BROKER else 6)
    table.groups.update([SubscriptionGroupConfig(group_name=G, consume_enable=by is not ForbiddenBy.GROUP)])
    table.topics.update([TopicConfig(topic_name=T, perm=Perm.WRITE if by is ForbiddenBy.TOPIC else 6)])
    with pytest.raises(Forbidden) as refused:
        table.ask(Someone())
    assert (refused.value.by, refused.value.code) == (by, ResponseCode.NO_PERMISSION)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "No"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queue_id": 99}, ResponseCode.INVALID_PARAMETER),
        ({"count": 0}, ResponseCode.INVALID_PARAMETER),
        ({"has_filter": False}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
        ({"expression": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"is_lite": True}, ResponseCode.NO_PERMISSION),
    ],
)
async def test_what_cannot_be_read_is_refused(
    store: MessageStore, clock: Clock, fields: dict[str, Any], code: int
) -> None:
    table = Table(store, clock, lite_pull_message_enable=False)
    with pytest.raises(RequestError) as refused:
        table.ask(Someone(), **fields)
    assert refused.value.code == code


async def test_only_so_many_wait(store: MessageStore, clock: Clock) -> None:
    table = Table(store, clock, max_held_pulls=2, max_held_pulls_per_connection=1)
    first, second = Someone(), Someone()
    for who, limit in (
        (first, None),
        (first, "maxHeldPullsPerConnection"),
        (second, None),
        (Someone(), "maxHeldPulls"),
    ):
        if limit is None:
            assert table.ask(who, wait_ms=1000) is None
        else:
            with pytest.raises(LimitReached) as refused:
                table.ask(who, wait_ms=1000)
            assert refused.value.limit == limit
