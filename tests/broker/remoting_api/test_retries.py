"""Messages that come back: sent back by consumers (36), and sent to retry topics by clients themselves."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from aerobee_broker.broker import Broker
from aerobee_broker.messages.retry_topics import reconsume_limit
from aerobee_broker.remoting_api.client_versions import reconsume_limit_asked, reconsume_limit_of
from aerobee_proto.bodies import MessageQueue, SubscriptionGroupConfig
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import Command
from aerobee_proto.headers import SendHeader, SendMessageV2Header
from aerobee_proto.message_ids import decode_offset_message_id
from aerobee_proto.records import StoredRecord, decode_record
from aerobee_proto.requests import Envelope, Incoming
from broker.in_memory import broker_in_memory, talking_in_memory
from system.running import Talker, send_request, text_of

GROUP = "g1"
RETRY, DLQ, SCHEDULE = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}", "SCHEDULE_TOPIC_XXXX"


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with broker_in_memory() as broker:
        yield broker


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Talker]:
    async with talking_in_memory(broker) as client:
        yield client


def offset_of(answer: Command) -> int:
    assert answer.code == 0, answer.remark
    return decode_offset_message_id(answer.ext["msgId"]).physical_offset


async def send_back(client: Talker, offset: int, **fields: object) -> Command:
    ext = {"offset": offset, "group": GROUP, "delayLevel": 0, "originTopic": "T", **fields}
    return await client.ask(
        RequestCode.CONSUMER_SEND_MSG_BACK, {name: str(value) for name, value in ext.items()}
    )


def stored(broker: Broker, topic: str, queue_id: int) -> list[StoredRecord]:
    """All records of a queue, whoever may read it."""
    store = broker.parts.store
    entries = store.reading.queue_entries(topic, queue_id, 0, 1000)
    raws = [store.reading.message_at(entry.physical_offset) for entry in entries]
    return [decode_record(raw) for raw in raws if raw is not None]


# --- 36 -----------------------------------------------------------------------------------------------------------


async def test_a_message_comes_back_after_a_delay_that_grows(broker: Broker, client: Talker) -> None:
    sent = await client.put("T", b"body", properties=text_of({"TAGS": "TagA", "UNIQ_KEY": "u1"}))
    assert (await send_back(client, offset_of(sent))).code == 0
    (waiting,) = stored(broker, SCHEDULE, 2)
    properties = waiting.property_map
    assert waiting.body == b"body"
    assert waiting.reconsume_times == 1
    assert {
        name: properties[name] for name in ("TAGS", "UNIQ_KEY", "RETRY_TOPIC", "REAL_TOPIC", "DELAY")
    } == {
        "TAGS": "TagA",
        "UNIQ_KEY": "u1",
        "RETRY_TOPIC": "T",
        "REAL_TOPIC": RETRY,
        "DELAY": "3",
    }
    assert properties["ORIGIN_MESSAGE_ID"] == sent.ext["msgId"]
    retry_topic = broker.parts.topics.require(RETRY)
    assert (retry_topic.write_queue_nums, retry_topic.perm) == (1, 6)
    assert broker.parts.stats.groups[GROUP, "T"].send_back_count.value == 1

    assert (await send_back(client, waiting.physical_offset)).code == 0
    (again,) = stored(broker, SCHEDULE, 3)
    assert again.reconsume_times == 2
    assert again.property_map["RETRY_TOPIC"] == "T"
    assert again.property_map["ORIGIN_MESSAGE_ID"] == sent.ext["msgId"]


async def test_the_consumer_may_name_the_level(broker: Broker, client: Talker) -> None:
    offset = offset_of(await client.put("T"))
    assert (await send_back(client, offset, delayLevel=7)).code == 0
    assert len(stored(broker, SCHEDULE, 6)) == 1


async def test_a_negative_level_makes_a_dead_letter_at_once(broker: Broker, client: Talker) -> None:
    offset = offset_of(await client.put("T", b"dead"))
    assert (await send_back(client, offset, delayLevel=-1)).code == 0
    (letter,) = stored(broker, DLQ, 0)
    assert letter.body == b"dead"
    assert (letter.property_map["DELAY"], letter.property_map["RETRY_TOPIC"]) == ("0", "T")
    dlq = broker.parts.topics.require(DLQ)
    assert (dlq.write_queue_nums, dlq.read_queue_nums, dlq.perm) == (1, 1, 6)


async def test_at_the_limit_a_message_becomes_a_dead_letter(broker: Broker, client: Talker) -> None:
    offset = offset_of(await client.put("T", reconsumeTimes="2"))
    assert (await send_back(client, offset, maxReconsumeTimes=3)).code == 0
    assert stored(broker, DLQ, 0) == []
    assert (await send_back(client, offset, maxReconsumeTimes=2)).code == 0
    assert len(stored(broker, DLQ, 0)) == 1


def test_old_clients_do_not_choose_the_limit() -> None:
    group = SubscriptionGroupConfig(group_name=GROUP, retry_max_times=5)
    assert reconsume_limit(group, reconsume_limit_asked(9, 120)) == 5
    assert reconsume_limit(group, reconsume_limit_asked(9, 121)) == 9
    assert reconsume_limit(group, reconsume_limit_asked(None, 479)) == 5


async def test_a_group_without_retry_queues_gets_nothing_back(broker: Broker, client: Talker) -> None:
    broker.parts.groups.update([SubscriptionGroupConfig(group_name=GROUP, retry_queue_nums=0)])
    offset = offset_of(await client.put("T"))
    assert (await send_back(client, offset)).code == 0
    assert RETRY not in broker.parts.topics
    assert stored(broker, SCHEDULE, 2) == []


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group": "no group!"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"offset": 10**9}, ResponseCode.SYSTEM_ERROR),
        ({"offset": -1}, ResponseCode.SYSTEM_ERROR),
        ({"offset": 17}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_what_cannot_come_back(
    broker: Broker, client: Talker, fields: dict[str, object], code: ResponseCode
) -> None:
    offset = offset_of(await client.put("T"))
    answer = await send_back(client, **({"offset": offset} | fields))  # type: ignore[arg-type]
    assert answer.code == code
    assert answer.remark


async def test_a_broker_that_takes_no_messages_takes_none_back(broker: Broker, client: Talker) -> None:
    offset = offset_of(await client.put("T"))
    live = broker.parts.live
    live.value = live.value.model_copy(update={"broker_permission": 4})
    assert (await send_back(client, offset)).code == ResponseCode.NO_PERMISSION


async def test_a_retry_topic_that_may_not_be_written_takes_nothing_back(
    broker: Broker, client: Talker
) -> None:
    offset = offset_of(await client.put("T"))
    assert (await send_back(client, offset)).code == 0
    parts = broker.parts
    topic = parts.topics.require(RETRY)
    topic.perm = 4
    assert (await send_back(client, offset)).code == ResponseCode.NO_PERMISSION


# --- sends to retry topics ----------------------------------------------------------------------------------------


async def test_a_send_to_a_retry_topic_waits_for_its_delay(broker: Broker, client: Talker) -> None:
    properties = text_of({"DELAY": "4", "RETRY_TOPIC": "T"})
    answer = await client.put(RETRY, properties=properties, reconsumeTimes="1", maxReconsumeTimes="16")
    assert (answer.code, answer.ext["queueId"]) == (0, "0")
    (waiting,) = stored(broker, SCHEDULE, 3)
    assert waiting.property_map["REAL_TOPIC"] == RETRY
    assert waiting.reconsume_times == 1
    assert GROUP in broker.parts.groups


async def test_a_send_to_a_retry_topic_over_the_limit_is_a_dead_letter(
    broker: Broker, client: Talker
) -> None:
    at_limit: dict[str, Any] = {"reconsumeTimes": "2", "maxReconsumeTimes": "2"}
    assert (await client.put(RETRY, properties=text_of({"DELAY": "3"}), **at_limit)).code == 0
    assert DLQ not in broker.parts.topics
    over: dict[str, Any] = {"reconsumeTimes": "3", "maxReconsumeTimes": "2"}
    for body in (b"one", b"two"):
        answer = await client.put(RETRY, body, properties=text_of({"DELAY": "3", "TAGS": "t"}), **over)
        assert (answer.code, answer.ext["queueId"]) == (0, "0")
    letters = stored(broker, DLQ, 0)
    assert [(letter.body, letter.property_map["DELAY"]) for letter in letters] == [
        (b"one", "-1"),
        (b"two", "-1"),
    ]
    assert letters[0].property_map["TAGS"] == "t"


async def test_what_a_group_consumes_in_order_is_a_dead_letter_at_once(
    broker: Broker, client: Talker
) -> None:
    parts = broker.parts
    queue = MessageQueue("T", "test-a", 0)
    parts.locks.lock(GROUP, "client", [queue], parts.clock())
    assert (await client.put(RETRY, properties=text_of({"DELAY": "3"}))).code == 0
    assert len(stored(broker, DLQ, 0)) == 1
    parts.locks.unlock(GROUP, "client", [queue])
    assert (await client.put(RETRY)).code == 0
    assert len(stored(broker, RETRY, 0)) == 1


async def test_a_retry_topic_of_no_group_is_refused(broker: Broker, client: Talker) -> None:
    live = broker.parts.live
    live.value = live.value.model_copy(update={"auto_create_subscription_group": False})
    refused = await client.put("%RETRY%nobody")
    assert refused.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert "%RETRY%nobody" not in broker.parts.topics


async def test_a_retry_topic_has_no_other_queues_than_its_own(client: Talker) -> None:
    assert (await client.put(RETRY, queue_id=0)).code == 0
    assert (await client.put(RETRY, queue_id=9)).code == ResponseCode.INVALID_PARAMETER


async def test_old_clients_do_not_choose_the_limit_of_what_they_send(broker: Broker, client: Talker) -> None:
    """Also when a newer one's send stands in the same read."""
    broker.parts.groups.update([SubscriptionGroupConfig(group_name=GROUP, retry_max_times=5)])
    sends = []
    for opaque, version in enumerate((120, 121), 1):
        send = send_request(RETRY, reconsumeTimes="3", maxReconsumeTimes="2")
        send.version, send.opaque = version, opaque
        sends.append(send)
    client.send(*sends)
    answers = await client.answers(2)
    assert [answers[1].code, answers[2].code] == [0, 0]
    assert [len(stored(broker, RETRY, 0)), len(stored(broker, DLQ, 0))] == [1, 1]
    assert (
        decode_offset_message_id(answers[2].ext["msgId"]).physical_offset
        == stored(broker, DLQ, 0)[0].physical_offset
    )


@pytest.mark.parametrize("version", [120, 121])
def test_what_an_old_client_sent_stays_as_it_came(version: int) -> None:
    """The header of a request that was let in was changed behind the gate."""
    header = SendMessageV2Header(
        producer_group="P",
        topic=RETRY,
        queue_id=0,
        sys_flag=0,
        born_timestamp=0,
        flag=0,
        max_reconsume_times=2,
    )
    envelope = Envelope[SendHeader](ext=header, version=version)
    item = Incoming[SendHeader](envelope, (0, b"{}", b""), header, b"")
    assert reconsume_limit_of(item) == (None if version == 120 else 2)
    assert (item.header.max_reconsume_times, header.max_reconsume_times) == (2, 2)
