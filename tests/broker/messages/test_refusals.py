"""The same fault is refused alike by every request that can have it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from aerobee_broker.broker import Broker
from aerobee_proto import names
from aerobee_proto.batch import BatchEntry, encode_batch
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import Command
from broker.in_memory import broker_in_memory, talking_in_memory
from system.running import Talker, send_request, text_of

REVIVE_TOPIC = "rmq_sys_REVIVE_LOG_TestCluster"
# What the broker would take for a note of its own.
FORGED = text_of({"TIMER_OUT_MS": "1", "REAL_TOPIC": "T", "REAL_QID": "0", "UNIQ_KEY": "K", "TAGS": "ack"})


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with broker_in_memory(recall_message_enable=True) as broker:
        yield broker


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Talker]:
    async with talking_in_memory(broker) as client:
        yield client


def sends(topic: str, **fields: Any) -> dict[str, Command]:
    """Every request that stores what a client sent, in a topic that the client names."""
    batch = encode_batch([BatchEntry(0, b"b", FORGED)])
    made = {
        "send": send_request(topic, properties=FORGED, long_names=True, **fields),
        "send, short names": send_request(topic, properties=FORGED, **fields),
        "batch": send_request(topic, batch, batch="true", **fields),
        "reply": send_request(topic, properties=FORGED, long_names=True, **fields),
        "reply, short names": send_request(topic, properties=FORGED, **fields),
    }
    made["batch"].code = RequestCode.SEND_BATCH_MESSAGE
    made["reply"].code = RequestCode.SEND_REPLY_MESSAGE
    made["reply, short names"].code = RequestCode.SEND_REPLY_MESSAGE_V2
    return made


def recall_of(topic: str) -> Command:
    return Command(RequestCode.RECALL_MESSAGE, ext_fields={"topic": topic, "recallHandle": "x"})


@pytest.mark.parametrize("topic", sorted(names.KEPT_TOPICS | {REVIVE_TOPIC}))
async def test_what_a_broker_notes_for_itself_nobody_can_send(
    broker: Broker, client: Talker, topic: str
) -> None:
    """There were two lists of them: a reply went into the timer's, with a due time and a topic of its sender's."""
    for name, command in (sends(topic) | {"recall": recall_of(topic)}).items():
        answer = await client.exchange(command)
        assert (name, answer.code) == (name, ResponseCode.NO_PERMISSION)
        assert "is kept for the broker itself" in (answer.remark or "")
    assert all(broker.parts.store.reading.max_offset(topic, queue_id) == 0 for queue_id in range(8))


async def test_a_topic_of_a_group_that_is_not_there_is_not_made() -> None:
    """A reply made a retry topic for a group that nobody has."""
    async with (
        broker_in_memory(auto_create_subscription_group=False) as broker,
        talking_in_memory(broker) as client,
    ):
        for name, command in sends("%RETRY%nobody").items():
            answer = await client.exchange(command)
            refused = (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ResponseCode.MESSAGE_ILLEGAL)
            assert answer.code in refused, name
        assert "%RETRY%nobody" not in broker.parts.topics


async def test_a_broker_without_the_right_to_write_says_so_alike() -> None:
    async with broker_in_memory(broker_permission=4) as broker, talking_in_memory(broker) as client:
        answers = [await client.exchange(command) for command in sends("T").values()]
        assert {answer.code for answer in answers} == {ResponseCode.NO_PERMISSION}
        assert len({answer.remark for answer in answers}) == 1


async def test_a_queue_that_is_not_there_is_refused_in_the_same_words(client: Talker) -> None:
    await client.put("T")
    requests = sends("T", queue_id=9)
    group = {"consumerGroup": "test-group", "topic": "T", "queueId": "9"}
    pull = client.pull_request("T", queueId=9)
    await client.pull("T")
    requests["pull"] = pull
    commit = {**group, "commitOffset": "0"}
    requests["commit"] = Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=commit)
    reset = {"topic": "T", "group": "test-group", "queueId": "9", "timestamp": "0"}
    requests["reset"] = Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext_fields=reset)
    poll = {
        **group,
        "maxMsgNums": "1",
        "invisibleTime": "1000",
        "pollTime": "0",
        "bornTime": "0",
        "initMode": "0",
    }
    requests["pop"] = Command(RequestCode.POP_MESSAGE, ext_fields=poll)
    for name, command in requests.items():
        answer = await client.exchange(command)
        assert (name, answer.remark) == (name, "queue 9 of topic T does not exist: it has the queues 0 to 3")


@pytest.mark.parametrize("here", [True, False], ids=["in the broker", "in the clients"])
async def test_resets_refuse_as_all_others_do(here: bool) -> None:
    """They had texts of their own, which said neither how to go on nor the same as other requests."""
    async with (
        broker_in_memory(use_server_side_reset_offset=here) as broker,
        talking_in_memory(broker) as client,
    ):
        await client.put("T")

        async def refusal(code: int, **fields: str) -> tuple[int, str]:
            answer = await client.ask(code, fields)
            return answer.code, answer.remark or ""

        reset = {"timestamp": "0", "isForce": "true"}
        of_topic = await refusal(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, topic="No", group="g", **reset)
        commit = {"queueId": "0", "commitOffset": "0"}
        await client.pull("T")
        as_others = await refusal(
            RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="test-group", topic="No", **commit
        )
        assert of_topic == as_others
        if here:
            of_group = await refusal(
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, topic="T", group="no", **reset
            )
            assert of_group == await refusal(
                RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="no", topic="T", **commit
            )
