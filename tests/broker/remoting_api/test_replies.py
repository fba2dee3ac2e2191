"""Request-reply: who gets the reply, what is stored of it, what the replier is told."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aerobee_broker.broker import Broker
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import FLAG_RESPONSE, Command
from aerobee_proto.properties import decode_properties
from broker.in_memory import broker_in_memory, talking_in_memory
from system.running import Talker, send_request, text_of
from system.transacting import join_group

REPLY_TOPIC = "TestCluster_REPLY_TOPIC"
CLIENT = "10.0.0.1@1"
LONG_NAMES = pytest.mark.parametrize("long_names", [True, False], ids=["324", "325"])


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with broker_in_memory() as broker:
        yield broker


@pytest.fixture
async def requester(broker: Broker) -> AsyncIterator[Talker]:
    async with talking_in_memory(broker) as talker:
        await join_group(talker, client_id=CLIENT)
        yield talker


@pytest.fixture
async def replier(broker: Broker) -> AsyncIterator[Talker]:
    async with talking_in_memory(broker) as talker:
        yield talker


def reply_of(
    body: bytes = b"pong", *, to: str | None = CLIENT, long_names: bool = False, **fields: Any
) -> Command:
    properties = {"CORRELATION_ID": "c-1", "MSG_TYPE": "reply", "UNIQ_KEY": "K1"}
    if to is not None:
        properties["REPLY_TO_CLIENT"] = to
    topic = fields.pop("topic", REPLY_TOPIC)
    command = send_request(topic, body, properties=text_of(properties), long_names=long_names, **fields)
    command.code = RequestCode.SEND_REPLY_MESSAGE if long_names else RequestCode.SEND_REPLY_MESSAGE_V2
    return command


async def take_push(requester: Talker, *, code: int = 0) -> Command:
    """The push as the producer gets it; it answers with `code`."""
    push = await requester.receive()
    assert push.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    assert not push.is_oneway
    requester.send(Command(code, opaque=push.opaque, flag=FLAG_RESPONSE, remark="no" if code else None))
    return push


async def replied(
    requester: Talker, replier: Talker, command: Command, *, code: int = 0
) -> tuple[Command, Command]:
    push, answer = await asyncio.gather(take_push(requester, code=code), replier.exchange(command))
    return push, answer


@LONG_NAMES
async def test_a_reply_reaches_the_producer_that_waits(
    broker: Broker, requester: Talker, replier: Talker, long_names: bool
) -> None:
    push, answer = await replied(
        requester, replier, reply_of(long_names=long_names, sysFlag="1", flag="7", bornTimestamp="5")
    )
    assert (push.body, push.ext["topic"], push.ext["sysFlag"], push.ext["flag"]) == (
        b"pong",
        REPLY_TOPIC,
        "1",
        "7",
    )
    assert (push.ext["bornTimestamp"], push.ext["queueId"], push.ext["reconsumeTimes"]) == ("5", "0", "0")
    host, port = replier.writer.get_extra_info("sockname")[:2]
    assert push.ext["bornHost"] == f"{host}:{port}"
    assert push.ext["storeHost"] == broker.address
    own = decode_properties(push.ext["properties"])
    assert (own["CORRELATION_ID"], own["REPLY_TO_CLIENT"]) == ("c-1", CLIENT)
    assert own["PUSH_REPLY_TIME"] == push.ext["storeTimestamp"]
    assert answer.code == 0
    assert {"msgId", "queueId", "queueOffset", "MSG_REGION", "TRACE_ON"} == answer.ext.keys()


async def test_a_reply_is_stored_too(requester: Talker, replier: Talker) -> None:
    _, answer = await replied(requester, replier, reply_of(sysFlag="1"))
    (record,) = await replier.records(REPLY_TOPIC)
    assert (record.body, record.sys_flag) == (b"pong", 1)
    assert record.property_map["CORRELATION_ID"] == "c-1"
    assert (answer.ext["msgId"], answer.ext["queueOffset"]) == (record.offset_message_id, "0")


async def test_replies_need_not_be_stored() -> None:
    async with (
        broker_in_memory(store_reply_message_enable=False) as broker,
        talking_in_memory(broker) as requester,
        talking_in_memory(broker) as replier,
    ):
        await join_group(requester, client_id=CLIENT)
        _, answer = await replied(requester, replier, reply_of())
        assert (answer.code, answer.ext["msgId"], answer.ext["queueOffset"]) == (0, "0", "0")
        assert await replier.records(REPLY_TOPIC) == []


@pytest.mark.parametrize(("to", "words"), [(None, "REPLY_TO_CLIENT"), ("nobody@1", "nobody@1> not found")])
async def test_a_reply_for_nobody_is_answered_so_and_stored(
    replier: Talker, to: str | None, words: str
) -> None:
    answer = await replier.exchange(reply_of(to=to))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert words in (answer.remark or "")
    assert len(await replier.records(REPLY_TOPIC)) == 1


async def test_a_reply_that_the_producer_refuses_is_answered_so(requester: Talker, replier: Talker) -> None:
    _, answer = await replied(requester, replier, reply_of(), code=1)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "code 1" in (answer.remark or "")


async def test_a_producer_that_leaves_before_it_answers(requester: Talker, replier: Talker) -> None:
    async def leave() -> None:
        assert (await requester.receive()).code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        requester.writer.transport.abort()

    _, answer = await asyncio.gather(leave(), replier.exchange(reply_of()))
    assert answer.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (reply_of(b""), ResponseCode.SYSTEM_ERROR),
        (reply_of(bytes((4 << 20) + 1)), ResponseCode.MESSAGE_ILLEGAL),
        (reply_of(queueId="1"), ResponseCode.INVALID_PARAMETER),
        (reply_of(topic="a/b"), ResponseCode.INVALID_PARAMETER),
        (reply_of(topic="RMQ_SYS_TRANS_HALF_TOPIC"), ResponseCode.NO_PERMISSION),
        (reply_of(topic="Unknown", defaultTopic="Nowhere"), ResponseCode.TOPIC_NOT_EXIST),
    ],
    ids=[
        "no body",
        "a body over 4 MiB",
        "a queue too many",
        "a bad name",
        "the broker's topic",
        "an unknown topic",
    ],
)
async def test_bad_replies_are_refused(
    requester: Talker, replier: Talker, command: Command, code: int
) -> None:
    assert (await replier.exchange(command)).code == code
    assert await replier.records(REPLY_TOPIC) == []
    push, answer = await replied(requester, replier, reply_of())
    assert (push.body, answer.code) == (b"pong", 0)
