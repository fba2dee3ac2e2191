"""Consumer groups: who is told of which change, what a group subscribes to, bounds, random histories."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_broker.members.clients import Member
from aerobee_broker.members.consumers import Changes, ConsumerTable
from aerobee_proto.bodies import ConsumerData, SubscriptionData
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.javahash import java_hash
from aerobee_remoting.exchange.connection import Connection
from aerobee_remoting.peers.peer import Peer
from aerobee_service.turns.slices import at_once


def make_table(members: int = 100, per_connection: int = 100, topics: int = 10) -> ConsumerTable:
    return ConsumerTable(
        members_max=members, members_per_connection_max=per_connection, topics_per_group_max=topics
    )


def member(client_id: str, connection: Connection, now_ms: int = 0) -> Member:
    return Member(client_id, connection, "JAVA", 479, now_ms)


def group(*topics: str, name: str = "g", model: str = "CLUSTERING", version: int = 1) -> ConsumerData:
    subscriptions = [SubscriptionData(topic=topic, sub_version=version) for topic in topics]
    return ConsumerData(group_name=name, message_model=model, subscription_data_set=subscriptions)


def logged(changes: Changes) -> list[Peer]:
    return [connection for _, connection in changes.notify]


@pytest.fixture
async def a() -> Connection:
    return Connection()


@pytest.fixture
async def b() -> Connection:
    return Connection()


class TestWhoIsTold:
    def test_the_first_member_is_told_of_itself(self, a: Connection) -> None:
        assert logged(make_table().register(member("a", a), group("T"), notify=True)) == [a]

    def test_a_newcomer_is_told_with_the_others(self, a: Connection, b: Connection) -> None:
        table = make_table()
        table.register(member("a", a), group("T"), notify=True)
        assert logged(table.register(member("b", b), group("T"), notify=True)) == [a, b]

    def test_the_same_heartbeat_again_tells_nobody(self, a: Connection) -> None:
        table = make_table()
        table.register(member("a", a), group("T"), notify=True)
        again = table.register(member("a", a, 5), group("T"), notify=True)
        assert (again.changed, again.notify) == (False, [])

    @pytest.mark.parametrize(
        ("beat", "is_new"),
        [
            (group("T"), False),
            (group("T", version=0), False),
            (group("T", version=2), True),
            (group("T", "U"), True),
            (group(), True),
            (group("T", model="BROADCASTING"), True),
            (group("T", name="h"), True),
        ],
    )
    def test_what_members_want_has_changed_with_a_heartbeat_that_says_so(
        self, beat: ConsumerData, is_new: bool, a: Connection, b: Connection
    ) -> None:
        """Whoever keeps what a group wants looks again then, and not with each heartbeat of each member."""
        table = make_table()
        table.register(member("a", a), group("T"), notify=True)
        before = table.changes
        for client_id, connection in (("a", a), ("b", b), ("a", a)):
            table.register(member(client_id, connection), beat, notify=True)
        assert table.changes == before + is_new
        table.unregister("g", "b", notify=True)
        assert table.changes == before + is_new
        table.unregister("g", "a", notify=True)
        assert table.changes == before + is_new + 1

    @pytest.mark.parametrize("topics", [("T", "U"), ("U",), ()])
    def test_other_topics_tell_everybody(self, topics: tuple[str, ...], a: Connection) -> None:
        table = make_table()
        table.register(member("a", a), group("T"), notify=True)
        assert logged(table.register(member("a", a), group(*topics), notify=True)) == [a]

    def test_a_newer_subscription_of_the_same_topic_tells_nobody(self, a: Connection) -> None:
        table = make_table()
        table.register(member("a", a), group("T"), notify=True)
        assert not table.register(member("a", a), group("T", version=2), notify=True).notify
        found = table.subscription("g", "T")
        assert found is not None
        assert found.version == 2

    def test_an_older_subscription_is_not_taken(self, a: Connection) -> None:
        table = make_table()
        table.register(member("a", a), group("T", version=2), notify=True)
        table.register(member("a", a), group("T", version=1), notify=True)
        found = table.subscription("g", "T")
        assert found is not None
        assert found.version == 2

    def test_broadcasting_and_switched_off_groups_are_left_alone(self, a: Connection) -> None:
        table = make_table()
        broadcasting = table.register(member("a", a), group("T", model="BROADCASTING"), notify=True)
        assert broadcasting.changed
        assert not broadcasting.notify
        assert not table.register(member("a", a), group("T", name="h"), notify=False).notify

    def test_those_who_stay_hear_of_those_who_leave(self, a: Connection, b: Connection) -> None:
        table = make_table()
        table.register(member("a", a), group("T"), notify=True)
        table.register(member("b", b), group("T"), notify=True)
        assert logged(table.unregister("g", "a", notify=True)) == [b]
        assert table.unregister("g", "a", notify=True) == Changes()
        assert logged(table.connection_lost(b, notifies=lambda _: True)) == []
        assert table.get("g") is None


class TestReconnects:
    def test_a_newer_connection_takes_the_seat(self, a: Connection, b: Connection) -> None:
        table = make_table()
        table.register(member("a", a), group("T"), notify=True)
        assert not table.register(member("a", b, 7), group("T"), notify=True).changed
        assert not table.connection_lost(a, notifies=lambda _: True).changed
        assert table.client_ids("g") == ["a"]
        table.check()
        assert table.connection_lost(b, notifies=lambda _: True).changed
        assert not table.has_members(b)

    def test_silent_members_expire_one_by_one(self, a: Connection, b: Connection) -> None:
        table = make_table()
        table.register(member("a", a, 0), group("T"), notify=True)
        table.register(member("b", b, 50), group("T"), notify=True)
        gone = table.expire(50, notifies=lambda _: True)
        assert (gone.close, logged(gone)) == ([a], [b])
        assert table.client_ids("g") == ["b"]


class TestShortHeartbeats:
    def test_a_known_fingerprint_keeps_the_subscriptions(self, a: Connection) -> None:
        table = make_table()
        table.register(member("a", a), group("T"), notify=True, fingerprint=77)
        short = table.register(
            member("a", a), group(), notify=True, without_subscriptions=True, fingerprint=77
        )
        assert (short.known, short.changed) == (True, False)
        assert table.subscription("g", "T") is not None

    @pytest.mark.parametrize("fingerprint", [76, 0])
    def test_another_fingerprint_asks_for_a_full_one(self, fingerprint: int, a: Connection) -> None:
        table = make_table()
        table.register(member("a", a), group("T"), notify=True, fingerprint=77)
        short = table.register(
            member("a", a), group(), notify=True, without_subscriptions=True, fingerprint=fingerprint
        )
        assert not short.known

    def test_an_unknown_client_is_seated_and_asked_for_a_full_one(self, a: Connection) -> None:
        table = make_table()
        short = table.register(
            member("a", a), group(), notify=True, without_subscriptions=True, fingerprint=77
        )
        assert (short.known, logged(short)) == (False, [a])


class TestConflicts:
    def test_members_that_disagree_are_reported_once(self, a: Connection, b: Connection) -> None:
        table = make_table()
        table.register(member("a", a), group("T"), notify=True)
        conflict = table.register(member("b", b), group("U"), notify=True).conflict
        assert conflict is not None
        assert (conflict.client_id, conflict.other_client_id, conflict.topics) == ("b", "a", ("T", "U"))
        assert table.register(member("a", a), group("T"), notify=True).conflict is None
        table.register(member("b", b), group("T"), notify=True)
        assert table.register(member("b", b), group("U"), notify=True).conflict is not None


@pytest.mark.parametrize(
    ("data", "hashes"),
    [
        (SubscriptionData(topic="T"), None),
        (SubscriptionData(topic="T", sub_string=""), None),
        (SubscriptionData.of_tags("T", "TagA||TagB"), {java_hash("TagA"), java_hash("TagB")}),
        (SubscriptionData(topic="T", sub_string="a > 1", expression_type="SQL92"), None),
        (SubscriptionData(topic="T", sub_string="X", class_filter_mode=True), None),
        (SubscriptionData(topic="T", sub_string="odd"), set()),
    ],
)
def test_what_the_filter_works_with(data: SubscriptionData, hashes: set[int] | None, a: Connection) -> None:
    table = make_table()
    table.register(member("a", a), ConsumerData(group_name="g", subscription_data_set=[data]), notify=True)
    found = table.subscription("g", "T")
    assert found is not None
    assert found.tag_filter.tag_hashes == hashes


@pytest.mark.parametrize(
    ("table", "code"),
    [
        (make_table(members=0), ResponseCode.SYSTEM_BUSY),
        (make_table(per_connection=0), ResponseCode.SYSTEM_BUSY),
        (make_table(topics=0), ResponseCode.INVALID_PARAMETER),
    ],
)
def test_a_bound_refuses_and_changes_nothing(table: ConsumerTable, code: ResponseCode, a: Connection) -> None:
    with pytest.raises(RequestError, match="max") as refused:
        table.register(member("a", a), group("T"), notify=True)
    assert refused.value.code == code
    assert table.get("g") is None
    table.check()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["register", "leave", "lose", "expire"]),
        st.sampled_from("xyz"),
        st.sampled_from("gh"),
        st.integers(0, 2),
        st.integers(0, 60),
    ),
    max_size=40,
)


@given(STEPS)
async def test_any_history_agrees_with_a_plain_dict(steps: list[tuple[str, str, str, int, int]]) -> None:
    table, now = make_table(), 0
    connections = [Connection() for _ in range(3)]
    model: dict[tuple[str, str], tuple[Connection, int]] = {}
    for what, client, name, number, pause in steps:
        now += pause
        connection = connections[number]
        if what == "register":
            table.register(member(client, connection, now), group("T", name=name), notify=True)
            model[name, client] = (connection, now)
        elif what == "leave":
            table.unregister(name, client, notify=True)
            model.pop((name, client), None)
        elif what == "lose":
            table.connection_lost(connection, notifies=lambda _: True)
            model = {key: seat for key, seat in model.items() if seat[0] is not connection}
        else:
            table.expire(now - 50, notifies=lambda _: True)
            model = {key: seat for key, seat in model.items() if seat[1] >= now - 50}
        table.check()
        for each in "gh":
            assert table.client_ids(each) == sorted(c for g, c in model if g == each)


def test_a_connection_of_many_members_is_told_once(a: Connection, b: Connection) -> None:
    """When a connection of 1,000 members of one group was lost, those who stayed were told 1,000 times each."""
    table = make_table()
    for number in range(20):
        table.register(member(f"a{number}", a), group("T"), notify=True)
        table.register(member(f"b{number}", b), group("T"), notify=True)
    assert logged(table.register(member("c", a), group("T"), notify=True)) == [a, b]
    assert logged(table.connection_lost(a, notifies=lambda _: True)) == [b]
    table.check()
    assert len(table.client_ids("g")) == 20


def test_members_that_subscribe_alike_have_one_key(a: Connection, b: Connection) -> None:
    """Each kept a set of its own of all that it subscribes to: 2 MB for 10,000 topics, and nobody counted them."""
    table = make_table(topics=100)
    topics = [f"T{number}" for number in range(100)]
    for number, connection in enumerate((a, b, a)):
        table.register(member(f"c{number}", connection), group(*topics), notify=True)
        table.register(member("c0", connection), group(*topics), notify=True)  # and on another connection
    found = table.get("g")
    assert found is not None
    assert len({id(one.subscribed) for one in found.members.values()}) == 1
    table.check()


def test_the_ids_of_a_group_are_sorted_once(a: Connection) -> None:
    table = make_table()
    for name in "cab":
        table.register(member(name, a), group("T"), notify=True)
    first = at_once(table.sorted_ids("g"))
    assert (first, at_once(table.sorted_ids("g")) is first) == (["a", "b", "c"], True)
    table.unregister("g", "b", notify=True)
    assert at_once(table.sorted_ids("g")) == ["a", "c"]


def test_who_is_heard_of_while_others_expire_stays(a: Connection, b: Connection) -> None:
    table = make_table()
    for name, connection in (("a", a), ("b", b)):
        table.register(member(name, connection), group("T"), notify=True)
    steps = table.expiry(50, notifies=lambda _: True)
    next(steps)
    table.register(member("b", b, 60), group("T"), notify=True)
    assert at_once(steps).close == [a]
    assert table.client_ids("g") == ["b"]


def test_a_large_heartbeat_is_taken_in_steps_and_seen_after_the_last(a: Connection, b: Connection) -> None:
    """10,000 subscriptions were taken in one step of 43 ms."""
    table = make_table(topics=10_000)
    topics = [f"T{number}" for number in range(10_000)]
    steps = table.registering(member("a", a), group(*topics), notify=True)
    assert len([next(steps) for _ in range(200)]) == 200
    assert table.get("g") is None
    table.register(member("b", b), group("T0", "T1", version=7), notify=True)  # others come meanwhile
    changes = at_once(steps)
    assert (changes.changed, logged(changes)) == (True, [b, a])
    assert changes.conflict is not None
    assert changes.conflict.topics == tuple(sorted(topics[2:102]))
    found = table.get("g")
    assert found is not None
    assert {topic: one.version for topic, one in found.subscriptions.items()} == {
        **dict.fromkeys(topics, 1), "T0": 7, "T1": 7,
    }  # fmt: skip
    table.check()
    assert len(table.connection_lost(a, notifies=lambda _: True).left) == 10_000
    assert len(table.connection_lost(b, notifies=lambda _: True).left) >= 10_000
    table.check()


def test_a_bound_that_others_reach_meanwhile_refuses_a_large_heartbeat(a: Connection, b: Connection) -> None:
    table = make_table(members=1)
    steps = table.registering(member("a", a), group("T"), notify=True)
    next(steps)
    table.register(member("b", b), group("T"), notify=True)
    with pytest.raises(RequestError, match="are registered already"):
        at_once(steps)
    assert table.client_ids("g") == ["b"]
    table.check()


def test_of_the_same_topic_twice_the_newer_one_counts(a: Connection) -> None:
    table = make_table()
    twice = [SubscriptionData(topic="T", sub_string=text, sub_version=version)
             for text, version in (("x", 3), ("y", 5), ("z", 4))]  # fmt: skip
    table.register(member("a", a), ConsumerData(group_name="g", subscription_data_set=twice), notify=True)
    found = table.subscription("g", "T")
    assert found is not None
    assert (found.version, found.data.sub_string) == (5, "y")
    found.compiled_version = 5
    table.register(member("a", a), group("T", version=9), notify=True)
    after = table.subscription("g", "T")
    assert after is not None
    assert (after.version, after.compiled_version) == (9, 5)
    table.check()
