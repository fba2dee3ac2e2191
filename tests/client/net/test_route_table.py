import asyncio

import pytest

from aerobee import Client, NoNameserver, NoRoute
from aerobee.net.route_table import RouteTable
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_remoting.exchange.handlers import Response
from client.fakes import FakeNameserver, fake_cluster, hang_up
from client.inside import session_of

ROUTE, TOPICS = RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER


def table(mq: Client) -> RouteTable:
    return session_of(mq).routes


async def test_a_route_is_asked_once_and_kept() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        routes = table(mq)
        found = await asyncio.gather(*(routes.for_publish("T") for _ in range(10)))
        assert len({id(route) for route in found}) == 1
        await routes.for_subscribe("T")
        assert len(cluster.nameserver.asked(ROUTE)) == 1


async def test_no_route_says_who_was_asked_what_is_near_and_what_to_do() -> None:
    async with fake_cluster() as cluster, fake_cluster() as other:
        cluster.nameserver.add_topic("orders", cluster.broker)
        async with Client([cluster.nameserver.addr, other.nameserver.addr]) as mq:
            with pytest.raises(NoRoute) as caught:
                await table(mq).for_publish("oders")
            error = caught.value
            assert error.topic == "oders"
            assert {answer.addr for answer in error.answers} == {
                cluster.nameserver.addr,
                other.nameserver.addr,
            }
            assert error.creates_topics is False
            text = str(error)
            assert "does not know the topic" in text
            assert "aerobee topic create oders" in text
            assert "no broker here creates topics on the first send" in text
            if error.near_names:  # of whichever nameserver was asked first
                assert "similar topics: orders" in text


async def test_near_names_come_from_the_nameserver() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        cluster.nameserver.add_topic("orders", cluster.broker)
        with pytest.raises(NoRoute, match="similar topics: orders"):
            await table(mq).for_subscribe("oders")
        cluster.nameserver.script(TOPICS, Response(ResponseCode.SYSTEM_ERROR, "disable"))
        with pytest.raises(NoRoute) as caught:
            await table(mq).for_subscribe("oders")
        assert caught.value.near_names == ()


async def test_when_nobody_answers_the_advice_is_about_nameservers() -> None:
    async with Client("127.0.0.1:1") as mq:
        with pytest.raises(NoRoute, match="check that a nameserver runs") as caught:
            await table(mq).for_publish("T")
        assert "127.0.0.1:1: cannot connect" in str(caught.value)
        with pytest.raises(NoNameserver, match="list topics: no nameserver answered"):
            await mq.admin.topics()


async def test_a_nameserver_that_knows_wins_over_one_that_does_not() -> None:
    async with fake_cluster() as cluster:
        new = FakeNameserver()
        await new.start()
        try:
            async with Client([new.addr, cluster.nameserver.addr]) as mq:
                assert (await table(mq).for_publish("T")).publish
        finally:
            await new.close()


async def test_the_next_nameserver_is_asked_when_one_is_gone() -> None:
    async with fake_cluster() as cluster, Client(["127.0.0.1:1", cluster.nameserver.addr]) as mq:
        for _ in range(3):
            assert await mq.admin.topics() == ["T"]


async def test_an_unknown_topic_is_sent_to_by_the_template_and_then_gets_its_own_route() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        cluster.nameserver.add_topic("TBW102", cluster.broker, queues=8, perm=7)
        async with mq.producer() as producer:
            queues = await producer.queues("new")
            assert len(queues) == 4
            cluster.nameserver.add_topic("new", cluster.broker, queues=6)  # what the broker does on the send
            await producer.send("new", b"x")
            await cluster.nameserver.wait_asked(ROUTE, 3)
            await table(mq).refresh("new")
            assert len(await producer.queues("new")) == 6
        assert cluster.broker.bodies("new") == [b"x"]


async def test_a_topic_that_is_away_with_all_brokers_for_a_moment_is_waited_for() -> None:
    """A set changed its master: for a moment nobody of it was registered, and a send failed at once."""
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        cluster.nameserver.add_topic("TBW102", cluster.broker, queues=8, perm=7)
        async with mq.producer() as producer:
            await producer.send("new", b"0")  # by the template, with which the route is known
            cluster.nameserver.routes.clear()
            cluster.nameserver.add_topic("other", cluster.broker)
            await table(mq).refresh("new")
            with pytest.raises(NoRoute) as unknown:
                await table(mq).for_publish("never seen")
            assert not table(mq).may_come_back(unknown.value)
            gone = NoRoute("new", unknown.value.answers)
            assert gone.is_final
            assert table(mq).may_come_back(gone)


async def test_a_reader_of_a_topic_that_only_the_template_offers_hears_that_it_does_not_exist() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        cluster.nameserver.add_topic("TBW102", cluster.broker, queues=8, perm=7)
        asked = []
        for _ in range(2):  # the second one waited for what nobody had sent
            before = len(cluster.nameserver.asked(ROUTE))
            with pytest.raises(NoRoute, match="creates unknown topics on the first send"):
                await table(mq).for_subscribe("new")
            asked.append(len(cluster.nameserver.asked(ROUTE)) - before)
        assert asked == [2, 2]  # once for the topic, once for the template


async def test_a_reader_of_a_topic_that_was_just_sent_to_waits_until_the_nameserver_has_heard_of_it() -> None:
    """The first lines of the README failed when the broker's registration came a moment behind its answer."""
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        cluster.nameserver.add_topic("TBW102", cluster.broker, queues=8, perm=7)
        routes = table(mq)
        assert (await routes.for_publish("new")).from_template
        asked = len(cluster.nameserver.asked(ROUTE))
        reading = asyncio.create_task(routes.for_subscribe("new"))
        await cluster.nameserver.wait_asked(ROUTE, asked + 2)  # once more for the topic, and for the template
        cluster.nameserver.add_topic("new", cluster.broker, queues=6)
        assert len((await reading).subscribe) == 6


async def test_silent_nameservers_do_not_take_a_known_route_away() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        routes = table(mq)
        known = await routes.for_publish("T")
        cluster.nameserver.always(ROUTE, hang_up)
        assert await routes.refresh("T") is known
        cluster.nameserver.always(ROUTE, Response(ResponseCode.TOPIC_NOT_EXIST, "?"))
        assert await routes.refresh("T") is known


async def test_listeners_hear_of_changes_only() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        routes = table(mq)
        received: list[int] = []
        routes.listeners.append(lambda route: received.append(len(route.publish)))
        await routes.for_publish("T")
        await routes.refresh_all()
        cluster.nameserver.add_topic("T", cluster.broker, queues=5)
        await routes.refresh_all()
        assert received == [2, 5]


async def test_addresses_of_masters_and_of_all() -> None:
    async with fake_cluster(2) as cluster, Client(cluster.nameserver.addr) as mq:
        cluster.nameserver.routes["T"].broker_datas[0].broker_addrs[1] = "127.0.0.1:9"
        routes = table(mq)
        await routes.for_publish("T")
        masters = {broker.addr for broker in cluster.brokers}
        assert routes.masters() == masters
        assert routes.all_addrs() == masters | {"127.0.0.1:9"}
        assert routes.broker_name_of(cluster.brokers[1].addr) == "b-b"
        assert routes.broker_name_of("1.2.3.4:5") is None
