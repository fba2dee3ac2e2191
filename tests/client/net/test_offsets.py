"""Commits: the first of a group goes to a broker alone."""

import asyncio

import pytest

from aerobee import BrokerRefused, Client, MessageQueue, NoBroker
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_remoting.exchange.handlers import Response
from client.fakes import fake_cluster
from client.inside import session_of

COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET


@pytest.mark.parametrize("oneway", [False, True], ids=["commit", "oneway"])
async def test_the_first_commit_is_answered_before_others_leave(oneway: bool) -> None:
    async with fake_cluster(queues=4) as cluster, Client(cluster.nameserver.addr) as mq:
        offsets = session_of(mq).offsets
        commit = offsets.commit_oneway if oneway else offsets.commit
        queues = [MessageQueue("T", cluster.broker.name, number) for number in range(4)]
        hold = cluster.broker.hold(COMMIT)
        commits = [asyncio.create_task(commit("g", queue, 7)) for queue in queues]
        await hold.wait_for(1)
        assert len(cluster.broker.asked(COMMIT)) == 1
        cluster.broker.always(COMMIT, None)
        hold.let_go()
        await asyncio.gather(*commits)
        assert [await offsets.committed("g", queue) for queue in queues] == [7] * 4
        # From now on they leave together.
        hold = cluster.broker.hold(COMMIT)
        commits = [asyncio.create_task(commit("g", queue, 8)) for queue in queues]
        await hold.wait_for(4)
        cluster.broker.always(COMMIT, None)
        hold.let_go()
        await asyncio.gather(*commits)


async def test_after_a_refusal_the_next_is_the_first() -> None:
    async with fake_cluster(queues=2) as cluster, Client(cluster.nameserver.addr) as mq:
        offsets = session_of(mq).offsets
        one, two = (MessageQueue("T", cluster.broker.name, number) for number in range(2))
        cluster.broker.script(COMMIT, Response(ResponseCode.SYSTEM_ERROR, "not now"))
        results = await asyncio.gather(
            offsets.commit("g", one, 7), offsets.commit("g", two, 7), return_exceptions=True
        )
        assert [type(result) for result in results] == [BrokerRefused, type(None)]
        await offsets.commit("g", one, 8)
        assert await offsets.committed("g", one) == 8


async def test_while_a_set_has_no_master_another_member_is_asked() -> None:
    async with fake_cluster(queues=1) as cluster, Client(cluster.nameserver.addr) as mq:
        (broker_data,) = cluster.nameserver.routes["T"].broker_datas
        broker_data.broker_addrs = {1: cluster.broker.addr}
        queue = MessageQueue("T", cluster.broker.name, 0)
        await session_of(mq).offsets.commit("g", queue, 7)
        assert await session_of(mq).offsets.committed("g", queue) == 7
        broker_data.broker_addrs = {}
        await session_of(mq).routes.refresh("T")
        with pytest.raises(NoBroker, match="member of broker b-a"):
            await session_of(mq).offsets.committed("g", queue)
