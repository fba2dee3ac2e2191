"""Filters: what the client refuses by itself, what it says to brokers, and what comes back."""

import pytest

from aerobee import BrokerRefused, Client, InvalidMessage, SqlFilter, TagFilter
from aerobee.messages.subscriptions import parse_topics
from aerobee_proto.bodies import CheckClientConfigBody, HeartbeatData
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_remoting.exchange.handlers import Response
from client.fakes import FakeBroker, fake_cluster

CHECK, PULL = RequestCode.CHECK_CLIENT_CONFIG, RequestCode.PULL_MESSAGE


def checks(broker: FakeBroker) -> list[CheckClientConfigBody]:
    return [CheckClientConfigBody.from_bytes(body) for code, _, body in broker.requests if code == CHECK]


# --- the values -----------------------------------------------------------------------------------------------


def test_tags_in_every_spelling_are_one_filter() -> None:
    assert TagFilter("new||paid ") == TagFilter(["new", "paid"])
    assert TagFilter(["new", "paid"]).text == "new || paid"
    assert TagFilter() == TagFilter("*") == TagFilter([])
    assert len({TagFilter("a"), TagFilter(("a",)), SqlFilter("a = 1"), SqlFilter("a = 1")}) == 2
    with pytest.raises(InvalidMessage, match="cannot be one of several"):
        TagFilter("a || *")


def test_an_expression_can_be_tried_out() -> None:
    expected = SqlFilter("price > 3 AND TAGS = 'new'")
    assert expected.matches({"price": "4", "TAGS": "new"})
    assert not expected.matches({"price": "4"})
    assert not expected.matches({"price": "cheap", "TAGS": "new"})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("price > > 3", "character 9"),
        ("", "the expression ends"),
        ("name LIKE 'x%'", "brokers would ignore \"LIKE 'x%'\""),
        ("a = 1; DROP TABLE x", "begins with no word"),
    ],
)
def test_a_wrong_expression_is_refused_before_anybody_is_asked(text: str, reason: str) -> None:
    with pytest.raises(InvalidMessage, match="SQL92 filter") as refused:
        SqlFilter(text)
    assert reason in str(refused.value)


def test_groups_take_filters_too() -> None:
    found = parse_topics({"T": SqlFilter("a > 1"), "U": TagFilter("x"), "V": None}, 17, None)
    data = {topic: one.data for topic, one in found.items()}
    assert (data["T"].expression_type, data["T"].sub_string, data["T"].code_set) == (
        "SQL92",
        "a > 1",
        frozenset(),
    )
    assert (data["U"].expression_type, data["U"].tags_set) == ("TAG", frozenset({"x"}))
    assert (data["V"].sub_string, data["V"].sub_version) == ("*", 17)


# --- what brokers hear ----------------------------------------------------------------------------------------


async def test_brokers_check_an_expression_before_it_is_used() -> None:
    async with fake_cluster(broker_count=2) as cluster, Client(cluster.nameserver.addr) as mq:
        for broker in cluster.brokers:
            broker.serve(CHECK, lambda _: Response())
        async with mq.pull_consumer("g", "T", filter=SqlFilter("price > 3")) as consumer:
            for broker in cluster.brokers:
                (check,) = checks(broker)
                assert (check.client_id, check.group) == (mq.client_id, "g")
                subscription = check.subscription_data
                assert subscription is not None
                assert (subscription.expression_type, subscription.sub_string) == ("SQL92", "price > 3")
                fields = (await broker.wait_asked(PULL))[0]
                assert (fields["expressionType"], fields["subscription"]) == ("SQL92", "price > 3")
            assert consumer.filter == SqlFilter("price > 3")
        beats = [body for code, _, body in broker.requests if code == RequestCode.HEART_BEAT]
        (group,) = HeartbeatData.from_bytes(beats[0]).consumer_data_set
        assert [one.expression_type for one in group.subscription_data_set] == ["SQL92"]


async def test_a_broker_that_does_not_serve_sql_is_told_at_once() -> None:
    """Its refusal of the pull has the code of a broker that is starting, for which readers wait."""
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        refusal = Response(ResponseCode.SYSTEM_ERROR, "enablePropertyFilter is off")
        cluster.broker.serve(CHECK, lambda _: refusal)
        with pytest.raises(
            BrokerRefused, match=r"check the filter 'a > 1' of topic 'T'.*enablePropertyFilter"
        ):
            await mq.reader("T", filter=SqlFilter("a > 1")).next_batch()
        assert not cluster.broker.asked(PULL)


async def test_tags_are_not_checked_and_may_come_as_a_filter() -> None:
    async with fake_cluster(queues=1) as cluster, Client(cluster.nameserver.addr) as mq:
        for tag in ("a", "b"):
            cluster.broker.append("T", 0, tag.encode(), f"TAGS\x01{tag}\x02")
        reader = mq.reader("T", end="now", filter=TagFilter("b"))
        assert [message.body async for message in reader] == [b"b"]
        assert not checks(cluster.broker)


async def test_tags_and_a_filter_are_one_too_many() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        for make in (
            lambda: mq.reader("T", tags="a", filter=TagFilter("a")),
            lambda: mq.pull_consumer("g", "T", tags="a", filter=SqlFilter("a > 1")),
        ):
            with pytest.raises(InvalidMessage, match="not both"):
                make()
