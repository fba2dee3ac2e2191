import asyncio

import pytest

from aerobee import (
    BrokerRefused,
    Client,
    InvalidMessage,
    Message,
    NoReply,
    Producer,
    SendFailed,
    TransactionUnresolved,
)
from aerobee_proto.codes import RequestCode, ResponseCode, SysFlag
from aerobee_proto.properties import decode_properties
from aerobee_proto.records import decode_record
from aerobee_remoting.exchange.handlers import Response
from client.events import captured_events
from client.fakes import FakeBroker, fake_cluster, hang_up, new_master

CODE = RequestCode
END = CODE.END_TRANSACTION


def half(broker: FakeBroker, at: int = 0) -> dict[str, str]:
    """Header and properties of a half message."""
    header = broker.asked(CODE.SEND_MESSAGE_V2)[at]
    return header | decode_properties(header["i"])


async def test_a_commit_names_the_place_of_the_half_message() -> None:
    async with (
        fake_cluster(queues=1) as cluster,
        Client(cluster.nameserver.addr) as mq,
        mq.producer("shop") as producer,
    ):
        cluster.broker.append("T", 0, b"before")
        async with producer.transaction("T", b"x", keys=["a", "b"], check_after_s=30) as tx:
            assert cluster.broker.asked(END) == []
        (end,) = cluster.broker.asked(END)
        sent = half(cluster.broker)
        assert (sent["TRAN_MSG"], sent["PGROUP"], sent["KEYS"], sent["CHECK_IMMUNITY_TIME_IN_SECONDS"]) == (
            "true", "shop", "a b", "30",
        )  # fmt: skip
        assert int(sent["f"]) & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_PREPARED
        record = decode_record(cluster.broker.queues["T", 0][1])
        assert (end["tranStateTableOffset"], end["commitLogOffset"]) == ("1", str(record.physical_offset))
        assert (end["commitOrRollback"], end["producerGroup"], end["bname"]) == ("8", "shop", "b-a")
        assert end["msgId"] == end["transactionId"] == tx.transaction_id == record.unique_key
        codes = [code for code, _, _ in cluster.broker.requests]
        assert codes.index(CODE.HEART_BEAT) < codes.index(CODE.SEND_MESSAGE_V2), "it may be asked back"


async def test_an_error_and_a_rollback_roll_back() -> None:
    async with (
        fake_cluster() as cluster,
        Client(cluster.nameserver.addr) as mq,
        mq.producer("shop") as producer,
    ):
        with pytest.raises(KeyError):
            async with producer.transaction("T", b"x"):
                raise KeyError
        async with producer.transaction("T", b"y") as tx:
            tx.rollback()
        assert [end["commitOrRollback"] for end in cluster.broker.asked(END)] == ["12", "12"]


async def test_a_commit_that_nobody_confirms_is_an_error_and_a_lost_rollback_is_not() -> None:
    refusal = Response(ResponseCode.SYSTEM_ERROR, "no such half message")
    async with (
        fake_cluster() as cluster,
        Client(cluster.nameserver.addr) as mq,
        mq.producer("shop") as producer,
    ):
        cluster.broker.always(END, refusal)
        with pytest.raises(TransactionUnresolved, match="will ask a producer of the group") as caught:
            async with producer.transaction("T", b"x"):
                pass
        assert "no such half message" in str(caught.value)
        with captured_events() as logs:
            async with producer.transaction("T", b"y") as tx:
                tx.rollback()
        assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == [
            "client.rollback_lost"
        ]


async def test_a_commit_is_tried_while_its_broker_cannot_just_now() -> None:
    """Three tries within 300 ms were all; a broker that restarted left the transaction to its check-back."""
    async with (
        fake_cluster() as cluster,
        Client(cluster.nameserver.addr) as mq,
        mq.producer("shop") as producer,
    ):
        busy = Response(ResponseCode.SERVICE_NOT_AVAILABLE, "ending")
        cluster.broker.script(END, hang_up, busy, hang_up, busy)
        async with producer.transaction("T", b"x"):
            pass
        assert [end["commitOrRollback"] for end in cluster.broker.asked(END)] == ["8"] * 5


async def test_a_reply_is_tried_while_its_broker_is_away() -> None:
    reply_code = CODE.SEND_REPLY_MESSAGE_V2
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        asked = "CORRELATION_ID\x01c\x02REPLY_TO_CLIENT\x01me\x02CLUSTER\x01c\x02TTL\x0130000\x02"
        cluster.broker.append("T", 0, b"?", asked)
        not_here = Response(ResponseCode.SYSTEM_ERROR, "the asker is not here")
        cluster.broker.script(reply_code, hang_up, not_here)
        async with mq.consumer("g", "T") as consumer:
            message = await anext(aiter(consumer))
            await message.reply(b"!")
            assert len(cluster.broker.asked(reply_code)) == 3
            cluster.broker.script(reply_code, not_here)
            with pytest.raises(BrokerRefused, match="not here"):
                await message.reply(b"!")


async def test_a_half_message_without_its_full_guarantee_is_rolled_back() -> None:
    late = Response(
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ext={"msgId": "7F00000100002A9F00000000000003E8", "queueId": "0", "queueOffset": "3"},
    )
    async with (
        fake_cluster() as cluster,
        Client(cluster.nameserver.addr) as mq,
        mq.producer("shop") as producer,
    ):
        cluster.broker.script(CODE.SEND_MESSAGE_V2, late)
        with pytest.raises(SendFailed, match="FLUSH_DISK_TIMEOUT"):
            await producer.transaction("T", b"x").__aenter__()
        (end,) = cluster.broker.asked(END)
    assert (end["commitOrRollback"], end["commitLogOffset"]) == ("12", "1000")


async def test_a_transaction_needs_a_group_of_its_own() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq, mq.producer() as producer:
        with pytest.raises(InvalidMessage, match="a producer group of its own"):
            producer.transaction("T", b"x")
        with pytest.raises(InvalidMessage, match="a producer group of its own"):
            mq.producer(check=lambda _: True)


CHECKS: dict[str, tuple[object, list[str]]] = {
    "committed": (True, ["8"]),
    "rolled back": (False, ["12"]),
    "not known": (None, []),
    "raised": (ValueError("no idea"), []),
}


@pytest.mark.parametrize(("verdict", "ends"), CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "function"])
async def test_a_check_back_is_answered_with_its_own_offsets(
    verdict: object, ends: list[str], plain: bool
) -> None:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def look_up(message: Message) -> bool | None:
        loop.call_soon_threadsafe(asked.set)
        assert (message.body, message.topic) == (b"x", "T")
        if isinstance(verdict, Exception):
            raise verdict
        assert verdict is None or isinstance(verdict, bool)
        return verdict

    async def look_up_later(message: Message) -> bool | None:
        return look_up(message)

    check = look_up if plain else look_up_later
    async with fake_cluster(queues=1) as cluster, Client(cluster.nameserver.addr) as mq:
        async with mq.producer("shop", check=check) as producer:
            await producer.send("T", b"first")
            await cluster.broker.wait_asked(CODE.HEART_BEAT)
            cluster.broker.append("T", 0, b"x", "UNIQ_KEY\x01u1\x02PGROUP\x01shop\x02TRAN_MSG\x01true\x02")
            header = {
                "topic": "RMQ_SYS_TRANS_HALF_TOPIC",
                "tranStateTableOffset": "41",
                "commitLogOffset": "4242",
                "msgId": "u1",
                "transactionId": "u1",
                "bname": "b-a",
            }
            cluster.broker.notify_client(
                CODE.CHECK_TRANSACTION_STATE, header, cluster.broker.queues["T", 0][1]
            )
            await asked.wait()
            if ends:
                await cluster.broker.wait_asked(END)
        found = cluster.broker.asked(END)
    assert [end["commitOrRollback"] for end in found] == ends
    for end in found:
        assert (end["tranStateTableOffset"], end["commitLogOffset"]) == ("41", "4242")
        assert (end["fromTransactionCheck"], end["producerGroup"], end["msgId"]) == ("true", "shop", "u1")


# --- delivery times, requests


async def test_timed_messages_travel_alone_and_are_taken_back_by_their_handle() -> None:
    handle = "djEgVCBiLWEgMTcwMDAwMDAwMDAwMSAwQTBC"  # v1 T b-a 1700000000001 0A0B
    async with (
        fake_cluster(queues=1) as cluster,
        Client(cluster.nameserver.addr) as mq,
        mq.producer() as producer,
    ):
        stored = {"msgId": "7F00000100002A9F00000000000003E8", "queueId": "0", "queueOffset": "3"}
        cluster.broker.script(CODE.SEND_MESSAGE_V2, Response(ext=stored | {"recallHandle": handle}))
        first, second = await asyncio.gather(
            producer.send("T", b"x", deliver_after=60), producer.send("T", b"y", deliver_at=1_777_636_800_000)
        )
        assert cluster.broker.asked(CODE.SEND_BATCH_MESSAGE) == []
        assert half(cluster.broker, 0)["TIMER_DELAY_MS"] == "60000"
        assert half(cluster.broker, 1)["TIMER_DELIVER_MS"] == "1777636800000"
        assert (first.recall_handle, second.recall_handle) == (handle, None)
        assert await producer.cancel(first) == "taken back"
        (asked,) = cluster.broker.asked(CODE.RECALL_MESSAGE)
        assert (asked["recallHandle"], asked["topic"]) == (handle, "T")
        with pytest.raises(InvalidMessage, match="no delivery time"):
            await producer.cancel(second)
        cluster.broker.always(CODE.RECALL_MESSAGE, Response(ResponseCode.NO_PERMISSION, "recall is off"))
        with pytest.raises(BrokerRefused, match="recall is off"):
            await producer.cancel(handle)


async def request(producer: Producer, broker: FakeBroker, **reply: str) -> Message:
    """One request, to which the broker pushes a reply."""
    asking = asyncio.create_task(producer.request("T", b"hello", timeout_s=5))
    await broker.wait_asked(CODE.SEND_MESSAGE_V2)
    sent = half(broker)
    properties = f"CORRELATION_ID\x01{sent['CORRELATION_ID']}\x02MSG_TYPE\x01reply\x02"
    header = {
        "topic": "c_REPLY_TOPIC",
        "properties": properties,
        "sysFlag": "0",
        "bornHost": "/10.0.0.9:7",
    } | reply
    answer = await broker.ask_client(CODE.PUSH_REPLY_MESSAGE_TO_CLIENT, header, b"HELLO")
    assert answer.code == 0
    return await asking


async def test_a_pushed_reply_ends_the_request() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq, mq.producer() as producer:
        reply = await request(producer, cluster.broker)
        assert (reply.body, reply.topic, reply.born_host) == (b"HELLO", "c_REPLY_TOPIC", ("10.0.0.9", 7))
        sent = half(cluster.broker)
        assert (sent["REPLY_TO_CLIENT"], sent["TTL"]) == (mq.client_id, "5000")
        stray = {"properties": "CORRELATION_ID\x01unknown\x02"}
        answer = await cluster.broker.ask_client(CODE.PUSH_REPLY_MESSAGE_TO_CLIENT, stray, b"late")
        assert answer.code == 0, "as the official client answers"


async def test_no_reply_is_an_error_and_nothing_stays_behind() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq, mq.producer() as producer:
        with pytest.raises(NoReply, match=r"no reply within 0\.02 s"):
            await producer.request("T", b"hello", timeout_s=0.02)
        assert len(producer.parts.replies) == 0


async def test_a_message_that_is_no_request_cannot_be_replied_to() -> None:
    async with (
        fake_cluster(queues=1) as cluster,
        Client(cluster.nameserver.addr) as mq,
        mq.consumer("g", "T") as consumer,
    ):
        cluster.broker.append("T", 0, b"x")
        logged = "CLUSTER\x01c\x02CORRELATION_ID\x01c1\x02REPLY_TO_CLIENT\x01me\x02TTL\x013000\x02"
        cluster.broker.append("T", 0, b"y", logged)
        messages = aiter(consumer)
        with pytest.raises(InvalidMessage, match="is no request"):
            await (await anext(messages)).reply(b"z")
        await (await anext(messages)).reply("z", properties={"a": "b"})
        (asked,) = cluster.broker.asked(CODE.SEND_REPLY_MESSAGE_V2)
        properties = decode_properties(asked["i"])
        assert (asked["b"], properties["CORRELATION_ID"], properties["REPLY_TO_CLIENT"]) == (
            "c_REPLY_TOPIC", "c1", "me",
        )  # fmt: skip
        assert (properties["MSG_TYPE"], properties["TTL"], properties["a"]) == ("reply", "3000", "b")


async def test_a_commit_goes_to_the_new_master_when_its_broker_is_a_slave_by_now() -> None:
    async with (
        fake_cluster() as cluster,
        Client(cluster.nameserver.addr) as mq,
        mq.producer("shop") as producer,
        new_master(cluster) as master,
    ):
        cluster.nameserver.add_topic("T", cluster.broker)
        async with producer.transaction("T", b"x"):
            cluster.broker.always(END, Response(ResponseCode.SLAVE_NOT_AVAILABLE, "this broker is a slave"))
            cluster.nameserver.add_topic("T", master)
        assert [end["commitOrRollback"] for end in master.asked(END)] == ["8"]
