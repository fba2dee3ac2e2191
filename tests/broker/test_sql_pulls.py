"""Pulls that select by SQL92, on connections in memory: which messages they get, which wake them, what is refused."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import patch

import pytest

from aerobee_broker.broker import Broker
from aerobee_broker.messages.held_pulls import HeldPulls
from aerobee_proto.bodies import TopicConfig
from aerobee_proto.codes import PullFlag, RequestCode, ResponseCode
from aerobee_proto.frames import Command
from aerobee_proto.records import decode_records
from aerobee_store.reading.stored_messages import StoredMessages
from broker.in_memory import broker_in_memory, talking_in_memory
from broker.support import Clock, calls_in_turns
from system.running import Talker, send_request, text_of

WAITING = PullFlag.SUBSCRIPTION | PullFlag.SUSPEND
MINUTE = 60_000


@pytest.fixture
async def clock() -> Clock:
    return Clock()


@pytest.fixture
async def broker(clock: Clock) -> AsyncIterator[Broker]:
    async with broker_in_memory(clock=clock, enable_property_filter=True) as broker:
        broker.parts.topics.update([TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4)])
        yield broker


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Talker]:
    async with talking_in_memory(broker) as client:
        yield client


async def put(client: Talker, *prices: int) -> None:
    for price in prices:
        await client.put("T", b"%d" % price, properties=text_of({"price": str(price), "TAGS": "TagA"}))


async def pull(client: Talker, expression: str, offset: int = 0, **fields: Any) -> Command:
    return await client.pull("T", offset, subscription=expression, expressionType="SQL92", **fields)


async def held(client: Talker, broker: Broker, expression: str, offset: int, **fields: Any) -> int:
    """Send a pull that has to wait; its opaque. Returns when the broker holds it."""
    client.opaque += 1
    opaque = client.opaque
    asked = {"sysFlag": WAITING, "expressionType": "SQL92", "subscription": expression, **fields}
    request = Talker.pull_request("T", offset, **asked)
    request.opaque = opaque
    before = waiting(broker)
    client.send(request)
    await client.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    assert waiting(broker) == before + 1
    return opaque


def waiting(broker: Broker) -> int:
    return len(broker.parts.pulls.held)


async def subscribe(client: Talker, expression: str, version: int = 100) -> None:
    subscription = {
        "topic": "T",
        "subString": expression,
        "subVersion": version,
        "tagsSet": [],
        "codeSet": [],
        "expressionType": "SQL92",
    }
    consumer = {
        "groupName": "test-group",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [subscription],
    }
    body = {"clientID": "me", "consumerDataSet": [consumer], "producerDataSet": []}
    answer = await client.ask(RequestCode.HEART_BEAT, body=json.dumps(body).encode())
    assert answer.code == 0, answer.remark


def bodies(answer: Command) -> list[bytes]:
    return [one.body for one in decode_records(answer.body)]


def next_offset(answer: Command) -> int:
    return int(answer.ext["nextBeginOffset"])


# --- what they get ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
async def test_only_matching_messages_are_served(client: Talker, code: int) -> None:
    await put(client, 1, 5, 2, 7, 3)
    answer = await pull(client, "price > 3 AND TAGS = 'TagA'", code=code)
    assert (answer.code, bodies(answer), next_offset(answer)) == (0, [b"5", b"7"], 5)


async def test_without_a_match_the_reader_moves_on(client: Talker) -> None:
    await put(client, 1, 2, 3)
    answer = await pull(client, "price > 3", sysFlag=WAITING)
    assert (answer.code, answer.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
    assert next_offset(answer) == 3


async def test_messages_that_cannot_be_compared_do_not_match(client: Talker) -> None:
    await client.put("T", b"text", properties=text_of({"price": "cheap"}))
    await client.put("T", b"none")
    await put(client, 9)
    assert bodies(await pull(client, "price > 3")) == [b"9"]
    assert bodies(await pull(client, "price IS NULL")) == [b"none"]


async def test_an_expression_that_does_not_compile_is_refused(client: Talker) -> None:
    await put(client, 1)
    answer = await pull(client, "price > > 3")
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "character 9" in (answer.remark or "")


async def test_types_that_nobody_knows_are_refused(client: Talker) -> None:
    answer = await client.pull("T", subscription="price > 3", expressionType="CLASS")
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_sql_is_turned_on_while_the_broker_runs() -> None:
    async with broker_in_memory() as broker, talking_in_memory(broker) as client:
        await put(client, 5)
        refused = await pull(client, "price > 3")
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "enablePropertyFilter" in (refused.remark or "")
        changed = await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"enablePropertyFilter=true\n")
        assert changed.code == 0, changed.remark
        assert bodies(await pull(client, "price > 3")) == [b"5"]


# --- subscriptions by heartbeat -----------------------------------------------------------------------------------


async def test_the_registered_expression_selects(client: Talker) -> None:
    await put(client, 1, 5)
    await subscribe(client, "price > 3")
    assert bodies(await client.pull("T", sysFlag=0, subVersion=100)) == [b"5"]
    await subscribe(client, "price < 3", 101)
    assert bodies(await client.pull("T", sysFlag=0, subVersion=101)) == [b"1"]


async def test_a_registered_expression_that_does_not_compile_is_told_at_the_pull(client: Talker) -> None:
    await put(client, 1)
    await subscribe(client, "price >")
    answer = await client.pull("T", sysFlag=0, subVersion=100)
    assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert "price >" in (answer.remark or "")


async def test_a_broken_expression_after_a_good_one_is_told_apart(client: Talker) -> None:
    await put(client, 5)
    await subscribe(client, "price > 3")
    assert bodies(await client.pull("T", sysFlag=0, subVersion=100)) == [b"5"]
    await subscribe(client, "price >", 101)
    answer = await client.pull("T", sysFlag=0, subVersion=101)
    assert answer.code == ResponseCode.FILTER_DATA_NOT_LATEST
    await subscribe(client, "price > 4", 102)
    assert bodies(await client.pull("T", sysFlag=0, subVersion=102)) == [b"5"]


async def test_a_registered_expression_needs_sql_turned_on() -> None:
    async with broker_in_memory() as broker, talking_in_memory(broker) as client:
        await put(client, 1)
        await subscribe(client, "price > 3")
        assert (await client.pull("T", sysFlag=0)).code == ResponseCode.SYSTEM_ERROR


# --- waiting ------------------------------------------------------------------------------------------------------


async def test_only_matching_messages_wake(broker: Broker, client: Talker) -> None:
    await put(client, 1)
    opaque = await held(client, broker, "price > 3", 1)
    await put(client, 2, 3, 1)
    assert waiting(broker) == 1
    client.send(send_request("T", b"hit", opaque=5, properties=text_of({"price": "4"})))
    answer = (await client.answers(2))[opaque]
    assert (answer.code, bodies(answer), next_offset(answer)) == (0, [b"hit"], 5)


async def test_a_registered_expression_waits_too(broker: Broker, client: Talker) -> None:
    await subscribe(client, "price > 3")
    opaque = await held(client, broker, "", 0, sysFlag=PullFlag.SUSPEND, subVersion=100)
    await put(client, 2)
    assert waiting(broker) == 1
    client.send(send_request("T", b"hit", opaque=5, properties=text_of({"price": "4"})))
    assert bodies((await client.answers(2))[opaque]) == [b"hit"]


async def test_a_waiting_pull_looks_at_each_message_once(broker: Broker, client: Talker) -> None:
    await put(client, 1)
    await held(client, broker, "price > 3", 1)
    asked: list[int] = []
    read = StoredMessages.get_message

    def counting(self: StoredMessages, *expected: Any) -> Any:
        asked.append(expected[3])
        return read(self, *expected)

    with patch.object(StoredMessages, "get_message", counting):
        await put(client, 1, 2, 3)
    assert asked == [1, 2, 3]


async def test_nothing_is_read_for_a_pull_that_waits_for_tags(broker: Broker, client: Talker) -> None:
    await put(client, 1)
    await held(client, broker, "TagB", 1, expressionType="TAG")
    with patch.object(StoredMessages, "get_message") as read:
        await put(client, 1, 2, 3)
    assert not read.called
    assert waiting(broker) == 1


async def test_when_its_time_is_over_a_pull_learns_how_far_nothing_matched(
    broker: Broker, client: Talker, clock: Clock
) -> None:
    await put(client, 1)
    opaque = await held(client, broker, "price > 3", 1, suspendTimeoutMillis=MINUTE)
    await put(client, 2, 3)
    assert waiting(broker) == 1
    clock.now_ms += MINUTE
    answer = await client.answer_to(opaque)
    assert (answer.code, next_offset(answer)) == (ResponseCode.PULL_NOT_FOUND, 3)


async def test_more_than_one_look_takes_in_wakes(broker: Broker, client: Talker) -> None:
    """A long expression bounds the look: the client goes on from where it ended."""
    await put(client, 0)
    expression = " OR ".join(f"price={price}" for price in range(1_000, 1_500))
    opaque = await held(client, broker, expression, 1)
    client.send(*[send_request("T", b"x", opaque=i, properties=text_of({"price": "7"})) for i in range(200)])
    answers = await client.answers(201)
    assert answers[opaque].code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert 1 < next_offset(answers[opaque]) < 201


async def test_very_many_filters_look_at_a_message_in_several_turns(
    broker: Broker, client: Talker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message was shown to every filter that waits for its queue in one turn of the event loop."""
    monkeypatch.setattr(broker.parts.pulls.probing, "count_max", 4)
    await put(client, 1)
    opaques = [await held(client, broker, f"price > {limit}", 1) for limit in range(20)]
    in_turns = calls_in_turns(monkeypatch, HeldPulls, "probe")
    client.send(send_request("T", b"10", opaque=999_999, properties=text_of({"price": "10"})))
    answers = await client.answers(11)
    assert {answers[opaque].code for opaque in opaques[:10]} == {ResponseCode.SUCCESS}
    assert waiting(broker) == 10
    async with asyncio.timeout(10):
        while sum(in_turns) < 20:  # noqa: ASYNC110  # the last turns may come after the answers
            await asyncio.sleep(0)
    assert (max(in_turns), sum(in_turns)) == (4, 20)
