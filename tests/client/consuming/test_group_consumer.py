"""One member of a group and a broker that does what the test wants."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aerobee import (
    BrokerRefused,
    Client,
    ClientClosed,
    DamagedRecord,
    DeadLetter,
    GroupConsumer,
    GroupMessage,
    InvalidMessage,
    MessageQueue,
    NoRoute,
    RetryLater,
)
from aerobee_proto import javajson
from aerobee_proto.bodies import ConsumerRunningInfo, HeartbeatData, ResetOffsetBody, UnlockBatchBody
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.javajson import MessageQueue as QueueKey
from aerobee_proto.properties import decode_properties
from aerobee_proto.records import decode_record
from aerobee_remoting.exchange.handlers import Response
from client.fakes import FakeBroker, FakeCluster, fake_cluster, hang_up, new_master, silence
from client.inside import session_of

CODE = RequestCode
Q0, Q1 = MessageQueue("T", "b-a", 0), MessageQueue("T", "b-a", 1)


@asynccontextmanager
async def member(
    topics: Any = "T", *, queues: int = 2, **settings: Any
) -> AsyncIterator[tuple[FakeCluster, Client, GroupConsumer[bytes]]]:
    """A cluster, a client, and its member of group g."""
    async with (
        fake_cluster(queues=queues) as cluster,
        Client(cluster.nameserver.addr) as mq,
        mq.consumer("g", topics, **settings) as consumer,
    ):
        yield cluster, mq, consumer


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # what is waited for happens in other tasks, a few turns later
            await asyncio.sleep(0)


async def take(consumer: GroupConsumer[bytes], count: int) -> list[GroupMessage[bytes]]:
    found = []
    async with asyncio.timeout(10):
        async for message in consumer:
            await message.ack()
            found.append(message)
            if len(found) == count:
                break
    return found


def offsets(broker: FakeBroker) -> dict[int, int]:
    return {
        queue_id: at
        for (group, topic, queue_id), at in broker.offsets.items()
        if (group, topic) == ("g", "T")
    }


# --- sharing out


async def test_a_member_takes_its_share_and_more_when_others_leave() -> None:
    async with fake_cluster(queues=4) as cluster, Client(cluster.nameserver.addr) as mq:
        cluster.broker.members = ["~ sorts last"]
        async with mq.consumer("g", "T") as consumer:
            assert [queue.queue_id for queue in consumer.queues] == [0, 1]
            cluster.broker.members = []
            cluster.broker.notify_client(CODE.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"})
            await until(lambda: len(consumer.queues) == 4)
            cluster.broker.members = ["! sorts first"]
            cluster.broker.notify_client(CODE.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"})
            await until(lambda: [queue.queue_id for queue in consumer.queues] == [2, 3])


async def test_what_is_done_is_committed_before_queues_change_hands() -> None:
    async with member(queues=1, commit_s=1000, rebalance_s=1000) as (cluster, _, consumer):
        cluster.broker.append("T", 0, b"x")
        await take(consumer, 1)
        before = len(cluster.broker.requests)
        cluster.broker.notify_client(CODE.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"})
        await cluster.broker.wait_asked(CODE.GET_CONSUMER_LIST_BY_GROUP, 2)
        codes = [code for code, _, _ in cluster.broker.requests[before:]]
    assert codes.index(CODE.UPDATE_CONSUMER_OFFSET) < codes.index(CODE.GET_CONSUMER_LIST_BY_GROUP)


async def test_members_are_asked_for_again_when_nobody_says_who_they_are() -> None:
    refusal = Response(ResponseCode.SYSTEM_ERROR, "no consumer for this group")
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        cluster.broker.script(CODE.GET_CONSUMER_LIST_BY_GROUP, refusal, refusal)
        async with mq.consumer("g", "T", rebalance_s=0.01) as consumer:
            assert consumer.queues == ()
            await until(lambda: len(consumer.queues) == 2)


async def test_the_heartbeat_comes_first_and_tells_everything() -> None:
    async with member({"T": "a || b"}, start="latest", orderly=False) as (cluster, _, _consumer):
        codes = [code for code, _, _ in cluster.broker.requests if code < 1000]
        assert codes[0] == CODE.HEART_BEAT
        beat = next(body for code, _, body in cluster.broker.requests if code == CODE.HEART_BEAT)
        (group,) = HeartbeatData.from_bytes(beat).consumer_data_set
        assert (group.group_name, group.consume_type, group.message_model, group.consume_from_where) == (
            "g", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET",
        )  # fmt: skip
        assert {one.topic: one.sub_string for one in group.subscription_data_set} == {
            "T": "a || b",
            "%RETRY%g": "*",
        }


async def test_a_topic_that_does_not_exist_is_an_error_unless_it_may_come_later() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        with pytest.raises(NoRoute, match="no route for topic 'U'"):
            await mq.consumer("g", "U").__aenter__()
        async with mq.consumer("g", "U", wait_for_topics=True, rebalance_s=0.01) as consumer:
            assert consumer.queues == ()
            cluster.nameserver.add_topic("U", cluster.broker)
            await until(lambda: len(consumer.queues) == 2)


async def test_one_client_is_one_member() -> None:
    async with member() as (_, mq, _consumer):
        with pytest.raises(InvalidMessage, match="a second member needs a Client of its own"):
            mq.consumer("g", "T")
    for wrong in ({"start": 17}, {"model": "broadcasting", "orderly": True}, {"nonsense": 1}):
        async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
            with pytest.raises(InvalidMessage):
                mq.consumer("g", "T", **wrong)


# --- offsets


async def test_offsets_are_committed_up_to_the_first_message_that_is_not_done() -> None:
    async with member(queues=1, auto_ack=False, commit_s=0.01) as (cluster, _, consumer):
        for number in range(4):
            cluster.broker.append("T", 0, b"%d" % number)
        held = []
        async for message in consumer:
            held.append(message)
            if len(held) == 4:
                break
        for number in (0, 2, 3):
            await held[number].ack()
        await until(lambda: offsets(cluster.broker) == {0: 1})
        await held[1].ack()
        await until(lambda: offsets(cluster.broker) == {0: 4})


async def test_closing_commits_and_leaves() -> None:
    async with member() as (cluster, mq, consumer):
        cluster.broker.append("T", 1, b"x")
        await take(consumer, 1)
        await consumer.close()
        assert offsets(cluster.broker) == {1: 1}
        (goodbye,) = await cluster.broker.wait_asked(CODE.UNREGISTER_CLIENT)
        assert (goodbye["consumerGroup"], goodbye["clientID"]) == ("g", mq.client_id)
        with pytest.raises(ClientClosed):
            aiter(consumer)


async def test_a_moved_offset_is_followed_and_committed() -> None:
    moved = Response(
        ResponseCode.PULL_OFFSET_MOVED,
        ext={"nextBeginOffset": "2", "minOffset": "2", "maxOffset": "4", "suggestWhichBrokerId": "0"},
    )
    async with fake_cluster(queues=1) as cluster, Client(cluster.nameserver.addr) as mq:
        for number in range(4):
            cluster.broker.append("T", 0, b"%d" % number)
        cluster.broker.script(CODE.PULL_MESSAGE, moved)
        async with mq.consumer("g", "T") as consumer:
            assert [message.body for message in await take(consumer, 2)] == [b"2", b"3"]
        assert {"commitOffset": "2"}.items() <= cluster.broker.asked(CODE.UPDATE_CONSUMER_OFFSET)[0].items()


async def test_an_operator_moves_the_offsets_and_what_was_in_hand_counts_no_more() -> None:
    async with member(queues=1, auto_ack=False) as (cluster, _, consumer):
        for number in range(3):
            cluster.broker.append("T", 0, b"%d" % number)
        messages = aiter(consumer)
        old = await anext(messages)
        table = ResetOffsetBody(offset_table={QueueKey("T", "b-a", 0): 1, QueueKey("T", "b-a", 9): 5})
        cluster.broker.notify_client(
            CODE.RESET_CONSUMER_CLIENT_OFFSET, {"topic": "T", "group": "g"}, table.to_bytes()
        )
        await until(lambda: offsets(cluster.broker) == {0: 1})
        await old.ack()
        assert consumer.positions == {Q0: 1}
        assert (await anext(messages)).body == b"1"
        status = await cluster.broker.ask_client(
            CODE.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": "T", "group": "g"}
        )
        assert javajson.loads(status.body)["messageQueueTable"] == {QueueKey("T", "b-a", 0): 1}


async def test_a_damaged_record_is_raised_behind_those_before_it_until_somebody_seeks() -> None:
    async with fake_cluster(queues=1) as cluster, Client(cluster.nameserver.addr) as mq:
        for number in range(3):
            cluster.broker.append("T", 0, b"body %d" % number)
        record = bytearray(cluster.broker.queues["T", 0][1])
        record[record.index(b"body 1")] ^= 1
        cluster.broker.queues["T", 0][1] = bytes(record)
        async with mq.consumer("g", "T") as consumer:
            assert [message.body for message in await take(consumer, 1)] == [b"body 0"]
            for _ in range(2):
                with pytest.raises(DamagedRecord, match="offset 1"):
                    await take(consumer, 1)
            await consumer.seek(2, Q0)
            assert [message.body for message in await take(consumer, 1)] == [b"body 2"]


# --- flow control and pulls


async def test_pulls_pause_while_a_queue_holds_enough() -> None:
    async with fake_cluster(queues=1) as cluster, Client(cluster.nameserver.addr) as mq:
        for number in range(64):
            cluster.broker.append("T", 0, b"%d" % number)
        async with mq.consumer("g", "T", auto_ack=False, queue_count_max=10, pull_count=8) as consumer:
            owned = consumer.member.owned[Q0]
            await until(lambda: owned.count == 16)
            pulls = len(cluster.broker.asked(CODE.PULL_MESSAGE))
            await take(consumer, 6)
            assert len(cluster.broker.asked(CODE.PULL_MESSAGE)) == pulls, "ten are left, which is enough"
            await take(consumer, 1)
            await cluster.broker.wait_asked(CODE.PULL_MESSAGE, pulls + 1)


async def test_a_refused_pull_is_tried_again_but_not_with_a_filter_that_cannot_be_read() -> None:
    async with fake_cluster(queues=1) as cluster, Client(cluster.nameserver.addr) as mq:
        cluster.broker.append("T", 0, b"x")
        cluster.broker.script(
            CODE.PULL_MESSAGE,
            Response(ResponseCode.NO_PERMISSION, "not yet"),
            Response(ResponseCode.SYSTEM_BUSY),
        )
        async with mq.consumer("g", "T", retry_s=0.001) as consumer:
            await take(consumer, 1)
        cluster.broker.always(CODE.PULL_MESSAGE, Response(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "what?"))
        async with mq.consumer("g", "T") as consumer:
            with pytest.raises(BrokerRefused, match=r"what\?"):
                await take(consumer, 1)


# --- retries


async def test_a_message_is_sent_back_to_its_broker() -> None:
    async with member(queues=1, max_reconsume_times=3) as (cluster, _, consumer):
        _, first_id = cluster.broker.append("T", 0, b"later", "UNIQ_KEY\x01u1\x02")
        _, second_id = cluster.broker.append(
            "T", 0, b"dead", "UNIQ_KEY\x01u2\x02ORIGIN_MESSAGE_ID\x01first\x02"
        )
        messages = aiter(consumer)
        await (await anext(messages)).retry_later(60)
        await (await anext(messages)).dead_letter()
        later, dead = cluster.broker.asked(CODE.CONSUMER_SEND_MSG_BACK)
    assert (later["delayLevel"], later["originMsgId"], later["originTopic"]) == ("5", first_id, "T")
    assert (later["group"], later["maxReconsumeTimes"], later["offset"]) == ("g", "3", "0")
    assert (dead["delayLevel"], dead["originMsgId"]) == ("-1", "first")
    assert second_id != first_id
    assert offsets(cluster.broker) == {0: 2}


async def test_a_message_that_cannot_be_sent_back_is_published() -> None:
    async with member(queues=1) as (cluster, _, consumer):
        cluster.nameserver.add_topic("%RETRY%g", cluster.broker, queues=1)
        cluster.broker.append("T", 0, b"later", "UNIQ_KEY\x01u1\x02TAGS\x01a\x02DELAY\x013\x02", flag=7)
        cluster.broker.script(CODE.CONSUMER_SEND_MSG_BACK, Response(ResponseCode.SYSTEM_ERROR, "not found"))
        async with asyncio.timeout(10):
            await (await anext(aiter(consumer))).retry_later()
        (header,) = cluster.broker.asked(CODE.SEND_MESSAGE_V2)
        (record,) = [decode_record(one) for one in cluster.broker.queues["%RETRY%g", 0]]
    assert (header["b"], header["j"], header["l"], header["h"]) == ("%RETRY%g", "1", "16", "7")
    properties = decode_properties(record.properties)
    assert (properties["RETRY_TOPIC"], properties["DELAY"], properties["TAGS"]) == ("T", "3", "a")
    assert record.body == b"later"
    assert offsets(cluster.broker) == {0: 1}


async def test_a_retry_topic_that_no_nameserver_knows_yet_is_published_to_by_its_first_queue() -> None:
    """The template has more queues than a retry topic that its broker makes: a message that was sent back right after
    the group's first heartbeat was refused (no such queue), and came again after a pause, in this process alone."""
    async with member(queues=1) as (cluster, _, consumer):
        cluster.nameserver.add_topic("TBW102", cluster.broker, queues=8, perm=7)
        cluster.broker.append("T", 0, b"later")
        cluster.broker.script(CODE.CONSUMER_SEND_MSG_BACK, Response(ResponseCode.SYSTEM_ERROR, "not found"))
        async with asyncio.timeout(10):
            await (await anext(aiter(consumer))).retry_later()
        (header,) = cluster.broker.asked(CODE.SEND_MESSAGE_V2)
    assert (header["b"], header["e"]) == ("%RETRY%g", "0")


async def test_a_message_that_can_go_nowhere_is_handed_out_again() -> None:
    async with member(queues=1, resend_s=0.01) as (cluster, _, consumer):
        cluster.broker.append("T", 0, b"x")
        refusal = Response(ResponseCode.SYSTEM_ERROR, "no")
        cluster.broker.script(CODE.CONSUMER_SEND_MSG_BACK, refusal)
        cluster.nameserver.routes.pop("TBW102", None)
        messages = aiter(consumer)
        message = await anext(messages)
        await message.retry_later()
        assert consumer.positions[Q0] == 0
        again = await asyncio.wait_for(anext(messages), 10)
        assert (again.body, again.reconsume_times) == (b"x", 1)


async def test_what_a_handler_raises_decides() -> None:
    def handler(message: GroupMessage[bytes]) -> None:
        if message.body == b"later":
            raise RetryLater(delay_level=4)
        if message.body == b"dead":
            raise DeadLetter("hopeless")
        if message.body == b"broken":
            raise ValueError

    async with member(queues=1) as (cluster, _, consumer):
        working = asyncio.create_task(consumer.run(handler, concurrency=1))
        for body in (b"fine", b"later", b"dead", b"broken"):
            cluster.broker.append("T", 0, body)
        sent_back = await cluster.broker.wait_asked(CODE.CONSUMER_SEND_MSG_BACK, 3)
        await until(lambda: consumer.positions[Q0] == 4)
        with pytest.raises(InvalidMessage, match="on its way already"):
            await consumer.run(handler)
        await consumer.close()
        await working
    assert [one["delayLevel"] for one in sent_back] == ["4", "-1", "0"]


async def test_a_broadcasting_group_repeats_nothing(tmp_path: Path) -> None:
    async with member(queues=1, model="broadcasting", offsets_folder=tmp_path) as (cluster, _, consumer):
        cluster.broker.append("T", 0, b"x")
        async with asyncio.timeout(10):
            await (await anext(aiter(consumer))).retry_later()
        assert consumer.positions == {Q0: 1}
        assert cluster.broker.asked(CODE.CONSUMER_SEND_MSG_BACK) == []
        assert cluster.broker.asked(CODE.GET_CONSUMER_LIST_BY_GROUP) == []
    assert offsets(cluster.broker) == {}


# --- order


async def test_a_queue_that_another_member_has_locked_is_left_alone() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        cluster.broker.locked_by_others = {1}
        async with mq.consumer("g", "T", orderly=True, rebalance_s=0.01) as consumer:
            assert set(consumer.queues) == {Q0}
            cluster.broker.locked_by_others = set()
            await until(lambda: set(consumer.queues) == {Q0, Q1})


@pytest.mark.parametrize("valid_s", [0.03, 30.0], ids=["it is over", "another has it"])
async def test_a_lock_that_is_lost_ends_the_work_on_its_queue(valid_s: float) -> None:
    async with member(queues=1, orderly=True, lock_s=0.01, lock_valid_s=valid_s) as (cluster, _, consumer):
        cluster.broker.locked_by_others = {0}
        cluster.broker.append("T", 0, b"x")
        await until(lambda: consumer.queues == ())
        assert consumer.take() is None
        assert offsets(cluster.broker) == {}
        cluster.broker.locked_by_others = set()
        assert [message.body for message in await take(consumer, 1)] == [b"x"]


async def test_a_new_master_is_asked_for_locks_and_told_offsets_at_once() -> None:
    async with member(queues=1, orderly=True, commit_s=0.01) as (cluster, mq, consumer):
        cluster.broker.append("T", 0, b"x")
        await take(consumer, 1)
        await until(lambda: offsets(cluster.broker) == {0: 1})
        async with new_master(cluster, queues=1) as master:
            await session_of(mq).routes.refresh("T")
            await master.wait_asked(CODE.LOCK_BATCH_MQ)
            await until(lambda: offsets(master) == {0: 1})
            assert consumer.queues == (Q0,)
            await consumer.close()


async def test_locks_are_asked_for_again_soon_where_no_broker_answers() -> None:
    settings: dict[str, Any] = {"queues": 1, "orderly": True, "lock_s": 0.01, "suspend_s": 0.01}
    async with member(**settings) as (cluster, _, consumer), new_master(cluster, queues=1) as master:
        cluster.broker.always(CODE.LOCK_BATCH_MQ, hang_up)
        await master.wait_asked(CODE.LOCK_BATCH_MQ)
        assert consumer.queues == (Q0,)
        await consumer.close()


async def test_an_orderly_queue_is_handed_over_when_the_message_in_hand_is_done() -> None:
    release, entered = asyncio.Event(), asyncio.Event()

    async def handler(message: GroupMessage[bytes]) -> None:
        entered.set()
        await release.wait()

    async with member(queues=1, orderly=True) as (cluster, _, consumer):
        working = asyncio.create_task(consumer.run(handler))
        cluster.broker.append("T", 0, b"x")
        cluster.broker.append("T", 0, b"y")
        await entered.wait()
        cluster.broker.members = ["! sorts first"]
        cluster.broker.notify_client(CODE.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"})
        await until(lambda: consumer.queues == ())
        assert cluster.broker.asked(CODE.UNLOCK_BATCH_MQ) == []
        release.set()
        await cluster.broker.wait_asked(CODE.UNLOCK_BATCH_MQ)
        assert offsets(cluster.broker) == {0: 1}
        await consumer.close()
        await working


async def test_a_lock_whose_answer_came_too_late_is_given_back_too() -> None:
    """A member that closed while it took a queue left it locked: nobody could work on it for a minute."""
    async with fake_cluster(queues=1) as cluster, Client(cluster.nameserver.addr) as mq:
        cluster.broker.members = ["! sorts first"]
        async with mq.consumer("g", "T", orderly=True) as consumer:
            held = cluster.broker.hold(CODE.LOCK_BATCH_MQ)
            cluster.broker.members = []
            cluster.broker.notify_client(CODE.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"})
            await held.wait_for(1)
            await consumer.close()
        bodies = [body for code, _, body in cluster.broker.requests if code == CODE.UNLOCK_BATCH_MQ]
    assert [UnlockBatchBody.from_bytes(body).mq_set for body in bodies] == [[QueueKey("T", "b-a", 0)]]


async def test_a_message_that_rests_does_not_keep_a_queue_from_being_given_back() -> None:
    """A member that closed while it handed over a queue whose message rested left it locked for a minute."""
    async with member(queues=1, orderly=True, suspend_s=1000, close_timeout_s=5) as (cluster, _, consumer):
        cluster.broker.append("T", 0, b"x")
        async with asyncio.timeout(10):
            await (await anext(aiter(consumer))).retry_later()
        cluster.broker.members = ["! sorts first"]
        cluster.broker.notify_client(CODE.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"})
        await until(lambda: consumer.queues == ())
        async with asyncio.timeout(1):
            await consumer.close()
        await cluster.broker.wait_asked(CODE.UNLOCK_BATCH_MQ)
        assert offsets(cluster.broker) == {}, "it was never done"


async def test_a_queue_that_comes_back_waits_until_it_was_given_back() -> None:
    release, entered = asyncio.Event(), asyncio.Event()
    seen: list[bytes] = []

    async def handler(message: GroupMessage[bytes]) -> None:
        entered.set()
        await release.wait()
        seen.append(message.body)

    async with member(queues=1, orderly=True, rebalance_s=0.01) as (cluster, _, consumer):
        working = asyncio.create_task(consumer.run(handler))
        cluster.broker.append("T", 0, b"x")
        cluster.broker.append("T", 0, b"y")
        await entered.wait()
        cluster.broker.members = ["! sorts first"]
        await until(lambda: consumer.queues == ())
        cluster.broker.members = []
        asked = len(cluster.broker.asked(CODE.GET_CONSUMER_LIST_BY_GROUP))
        await cluster.broker.wait_asked(CODE.GET_CONSUMER_LIST_BY_GROUP, asked + 2)
        assert consumer.queues == (), "its message is still in the handler"
        release.set()
        await until(lambda: len(seen) == 2)
        await consumer.close()
        await working
    assert seen == [b"x", b"y"]
    assert offsets(cluster.broker) == {0: 2}


# --- ending


async def test_closing_waits_for_handlers_and_ends_those_that_take_too_long() -> None:
    begun: list[bytes] = []
    release = asyncio.Event()

    async def handler(message: GroupMessage[bytes]) -> None:
        begun.append(message.body)
        if message.body == b"slow":
            await release.wait()
        elif message.body == b"endless":
            await asyncio.Event().wait()

    async with member(queues=2, close_timeout_s=2) as (cluster, _, consumer):
        working = asyncio.create_task(consumer.run(handler))
        cluster.broker.append("T", 0, b"slow")
        cluster.broker.append("T", 1, b"endless")
        await until(lambda: len(begun) == 2)
        asyncio.get_running_loop().call_later(0.01, release.set)
        await consumer.close()
        with pytest.raises(asyncio.CancelledError):
            await working
    assert offsets(cluster.broker) == {0: 1}


@pytest.mark.alone
async def test_a_silent_broker_does_not_keep_a_member_from_closing() -> None:
    async with member(queues=1, close_timeout_s=0.1) as (cluster, _, consumer):
        cluster.broker.append("T", 0, b"x")
        await take(consumer, 1)
        cluster.broker.always(CODE.UPDATE_CONSUMER_OFFSET, silence)
        started = time.monotonic()
        await consumer.close()
        assert time.monotonic() - started < 2


# --- operators


async def test_running_info_shows_queues_and_stacks() -> None:
    async with member(queues=1, auto_ack=False) as (cluster, mq, consumer):
        cluster.broker.append("T", 0, b"x")
        await anext(aiter(consumer))
        header = {"consumerGroup": "g", "clientId": mq.client_id, "jstackEnable": "true"}
        answer = await cluster.broker.ask_client(CODE.GET_CONSUMER_RUNNING_INFO, header)
        info = ConsumerRunningInfo.from_bytes(answer.body)
        queue = info.mq_table[QueueKey("T", "b-a", 0)]
        assert (queue.cached_msg_count, queue.commit_offset, queue.droped) == (1, 0, False)
        assert queue.last_consume_timestamp > queue.last_pull_timestamp - 60_000 > 0
        assert info.jstack is not None
        assert "test_running_info_shows_queues_and_stacks" in info.jstack
        unknown = await cluster.broker.ask_client(
            CODE.GET_CONSUMER_RUNNING_INFO, header | {"consumerGroup": "h"}
        )
        assert (unknown.code, "no consumer of group 'h'" in str(unknown.remark)) == (1, True)


async def test_a_message_is_tried_only_by_a_handler() -> None:
    async with member(queues=1) as (cluster, _, consumer):
        cluster.broker.append("T", 0, b"x")
        record = cluster.broker.queues["T", 0][0]
        header = {"consumerGroup": "g", "brokerName": "b-a"}

        async def ask() -> dict[str, Any]:
            answer = await cluster.broker.ask_client(CODE.CONSUME_MESSAGE_DIRECTLY, header, record)
            found: dict[str, Any] = javajson.loads(answer.body)
            return found

        result = await ask()
        assert result["consumeResult"] == "CR_THROW_EXCEPTION"
        assert "has no handler" in result["remark"]
        verdicts = iter([None, RetryLater(), DeadLetter("no")])

        async def handler(message: GroupMessage[bytes]) -> None:
            verdict = next(verdicts, None)
            if verdict is not None:
                raise verdict

        working = asyncio.create_task(consumer.run(handler))
        await until(lambda: consumer.positions[Q0] == 1)
        assert [(await ask())["consumeResult"] for _ in range(3)] == ["CR_LATER", "CR_ROLLBACK", "CR_SUCCESS"]
        assert cluster.broker.asked(CODE.CONSUMER_SEND_MSG_BACK) == []
        await consumer.close()
        await working


async def test_a_topic_that_does_not_exist_names_the_setting_that_waits_for_it() -> None:
    """The worker died, and nothing said that it could have waited."""
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        with pytest.raises(NoRoute, match="wait_for_topics=True"):
            await mq.consumer("g", "Later").__aenter__()


async def test_a_cancelled_run_leaves_nothing_to_complain_about() -> None:
    """asyncio printed "_GatheringFuture exception was never retrieved" and a traceback."""
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        async with mq.consumer("g", "T") as consumer:
            started = asyncio.Event()

            async def handler(_: object) -> None:
                started.set()

            running = asyncio.create_task(consumer.run(handler))
            cluster.broker.append("T", 0, b"x")
            await started.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            del running
        gc.collect()
    assert complaints == []
