import asyncio

import pytest

from aerobee import Client, ClientClosed, ClientConfig, TagFilter
from aerobee.messages.heartbeat import heartbeat_body, pull_group
from aerobee.session.session import Session
from aerobee_proto.bodies import HeartbeatData
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.javahash import java_hash
from aerobee_remoting.exchange.handlers import Response
from client.fakes import FakeBroker, fake_cluster
from client.inside import session_of

BEAT, GOODBYE = RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT


def session(mq: Client) -> Session:
    return session_of(mq)


def beats(broker: FakeBroker) -> list[HeartbeatData]:
    return [HeartbeatData.from_bytes(body) for code, _, body in broker.requests if code == BEAT]


def test_the_heartbeat_names_groups_topics_and_tag_hashes() -> None:
    body = heartbeat_body(
        "me", ["p2", "p1"], [pull_group("g", {"T": TagFilter("TagA || TagB"), "U": TagFilter()}, 17)]
    )
    data = HeartbeatData.from_bytes(body)
    assert data.client_id == "me"
    assert [one.group_name for one in data.producer_data_set] == ["CLIENT_INNER_PRODUCER", "p1", "p2"]
    (group,) = data.consumer_data_set
    tagged, everything = group.subscription_data_set
    assert tagged.code_set == {java_hash("TagA"), java_hash("TagB")} == {2598919, 2598920}
    assert (tagged.sub_version, everything.sub_string, everything.code_set) == (17, "*", frozenset())
    assert b" " not in body.replace(b"TagA || TagB", b""), "official clients split compact text"


async def test_a_broker_hears_of_a_producer_once_its_route_is_known() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        async with mq.producer("shop") as producer:
            await producer.send("T", b"x")
            await cluster.broker.wait_asked(BEAT)
            assert {one.group_name for one in beats(cluster.broker)[0].producer_data_set} >= {"shop"}
        (goodbye,) = await cluster.broker.wait_asked(GOODBYE)
        assert (goodbye["producerGroup"], goodbye["clientID"]) == ("shop", mq.client_id)


async def test_a_broker_that_lost_its_connection_is_greeted_again_at_once() -> None:
    """A request whose broker restarted waited for its reply until the next heartbeat: nothing else led back there."""
    async with (
        fake_cluster() as cluster,
        Client(cluster.nameserver.addr) as mq,
        mq.producer("shop") as producer,
    ):
        await producer.send("T", b"x")
        await cluster.broker.wait_asked(BEAT)
        for connection in list(cluster.broker.server.connections):
            connection.abort("the test wants it")
        await cluster.broker.wait_asked(BEAT, 2)
        assert session(mq).reconnect_count == 1


async def test_heartbeats_are_repeated_and_routes_asked_again() -> None:
    config = ClientConfig(heartbeat_s=0.01, route_poll_s=0.01)
    async with (
        fake_cluster() as cluster,
        Client(cluster.nameserver.addr, config=config) as mq,
        mq.producer() as producer,
    ):
        await producer.send("T", b"x")
        await cluster.broker.wait_asked(BEAT, 4)
        await cluster.nameserver.wait_asked(RequestCode.GET_ROUTEINFO_BY_TOPIC, 4)


async def test_a_refused_heartbeat_disturbs_nobody() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq, mq.producer() as producer:
        cluster.broker.always(BEAT, Response(ResponseCode.SYSTEM_ERROR, "no"))
        await producer.send("T", b"x")
        await session(mq).beat()
        await producer.send("T", b"y")


async def test_consumers_tell_slaves_too_and_producers_only_masters() -> None:
    async with fake_cluster() as cluster, fake_cluster() as other:
        slave = other.broker
        cluster.nameserver.routes["T"].broker_datas[0].broker_addrs[1] = slave.addr
        async with Client(cluster.nameserver.addr) as mq, mq.producer() as producer:
            await producer.send("T", b"x")
            await session(mq).beat()
            assert not beats(slave)
            async with mq.pull_consumer("g", "T"):
                assert beats(slave)


async def test_two_members_of_a_group_say_goodbye_once() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        first, second = mq.producer("shop"), mq.producer("shop")
        async with second:
            async with first:
                await first.send("T", b"x")
                await cluster.broker.wait_asked(BEAT)
            await second.send("T", b"y")
            assert not cluster.broker.asked(GOODBYE)
        assert len(await cluster.broker.wait_asked(GOODBYE)) == 1


async def test_closing_the_client_flushes_its_producers() -> None:
    async with fake_cluster() as cluster:
        mq = Client(cluster.nameserver.addr)
        async with mq:
            producer = mq.producer(linger_s=3600.0)
            await producer.__aenter__()
            future = producer.send_nowait("T", b"x")
        assert (await future).queue_offset == 0


async def test_a_client_is_opened_once_by_its_block() -> None:
    mq = Client("127.0.0.1:1")
    with pytest.raises(ClientClosed, match="client is closed"):
        mq.producer()
    async with mq:
        with pytest.raises(ClientClosed):
            await mq.__aenter__()
    with pytest.raises(ClientClosed):
        mq.reader("T")
    with pytest.raises(ClientClosed):
        await mq.__aenter__()
    await mq.close()


async def test_a_closed_client_leaves_no_task_behind() -> None:
    before = asyncio.all_tasks()
    async with fake_cluster() as cluster:
        async with Client(cluster.nameserver.addr) as mq, mq.producer() as producer:
            await producer.send("T", b"x")
            reader = mq.reader("T")
            await reader.next_batch()
        left = {task.get_name() for task in asyncio.all_tasks() - before}
        assert not {name for name in left if not name.startswith("request from")}


async def test_the_answer_of_a_broker_that_makes_a_topic_is_waited_for() -> None:
    """Another one of the template had told nameservers of the topic meanwhile: the connection was given up, the send
    repeated there, and the message stored twice."""
    async with (
        fake_cluster(2) as cluster,
        Client(cluster.nameserver.addr) as mq,
        mq.producer() as producer,
    ):
        cluster.nameserver.add_topic("TBW102", *cluster.brokers, queues=8, perm=7)
        first, second = cluster.brokers
        holds = {broker: broker.hold(RequestCode.SEND_MESSAGE_V2) for broker in cluster.brokers}
        sending = asyncio.create_task(producer.send("New", b"y"))
        arriving = {asyncio.create_task(hold.wait_for(1)): broker for broker, hold in holds.items()}
        done, waiting = await asyncio.wait(arriving, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        asked = arriving[done.pop()]
        cluster.nameserver.add_topic("New", second if asked is first else first)
        await session(mq).routes.refresh_all()
        holds[asked].let_go()
        assert (await sending).queue.broker_name == asked.name
        assert [len(broker.bodies("New")) for broker in cluster.brokers].count(1) == 1
