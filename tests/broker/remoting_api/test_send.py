"""Sends on connections in memory: what is refused and with which code, what is stored, what the answers say."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aerobee_broker.broker import Broker
from aerobee_broker.messages.publish import TURN_MAKES_MAX
from aerobee_broker.messages.publish_batches import BATCH_COUNT_MAX, TURN_COUNT_MAX
from aerobee_proto.batch import ENTRIES_A_STEP, BatchEntry, encode_batch
from aerobee_proto.bodies import TopicConfig
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import Command, encode_command
from aerobee_proto.message_ids import decode_offset_message_id
from aerobee_proto.properties import decode_properties
from aerobee_proto.records import StoredRecord, decode_record
from aerobee_remoting.exchange import connection as connection_module
from aerobee_remoting.exchange.connection import Connection
from aerobee_service.turns.pace import Pace
from broker.in_memory import broker_in_memory, talking_in_memory
from broker.support import Peer
from store.memory_io import MemoryIo
from system.faulty_disk import FaultyDisk
from system.running import Talker, running_broker, send_request, talking, text_of
from turns import TURN_MAX, Turns

BODY_MAX = 4 * 1024 * 1024
PROPERTIES_MAX = 32_767
ANSWER_FIELDS = {"msgId", "queueId", "queueOffset", "transactionId", "MSG_REGION", "TRACE_ON"}
CODECS = pytest.mark.parametrize("codec", [0, 1, 2], ids=["json", "rocketmq", "msgpack"])
V2, V1 = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_MESSAGE


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with broker_in_memory() as broker:
        yield broker


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Talker]:
    async with talking_in_memory(broker) as client:
        yield client


async def record_of(client: Talker, answer: Command) -> StoredRecord:
    """The record that an answer's message id leads to."""
    found = decode_offset_message_id(answer.ext["msgId"])
    viewed = await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(found.physical_offset)})
    assert viewed.code == 0, viewed.remark
    record = decode_record(viewed.body)
    assert record.offset_message_id == answer.ext["msgId"]
    return record


def a_send(topic: str) -> SimpleNamespace:
    """What a publisher looks at, to know what is to be made for it."""
    return SimpleNamespace(header=SimpleNamespace(topic=topic, queue_id=0, sys_flag=0, properties=""))


def made_in_each_turn(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From now on, for each call of the publisher: queues that it has made."""
    made: list[int] = []
    count, publish = broker.parts.store.topics.queue_count, broker.parts.publisher.publish

    def counting(messages: Any, *more: Any) -> Any:
        before = {one.header.topic: count(one.header.topic) for one in messages}
        published = publish(messages, *more)
        made.append(sum(count(topic) for topic in before) - sum(before.values()))
        return published

    monkeypatch.setattr(broker.parts.publisher, "publish", counting)
    return made


def make_topic(broker: Broker, topic: str, **settings: Any) -> None:
    broker.parts.topics.update([TopicConfig(topic_name=topic, **settings)])


# --- what is stored -----------------------------------------------------------------------------------------------


@CODECS
@pytest.mark.parametrize("long_names", [False, True], ids=["v2", "v1"])
async def test_what_was_sent_is_read_back(client: Talker, codec: int, long_names: bool) -> None:
    sent = {"TAGS": "TagA", "KEYS": "k1 k2", "UNIQ_KEY": "0A" * 16, "Grüße": "消息 😀", "WAIT": "true"}
    answer = await client.put(
        "Topic-A",
        b"\x00body\xff",
        queue_id=2,
        properties=text_of(sent),
        codec=codec,
        long_names=long_names,
        sysFlag="1",
        bornTimestamp="1700000000123",
        flag="-7",
        reconsumeTimes="3",
    )
    assert answer.code == 0, answer.remark
    assert answer.codec == codec
    record = await record_of(client, answer)
    assert (record.topic, record.queue_id, record.body) == ("Topic-A", 2, b"\x00body\xff")
    assert (record.flag, record.sys_flag, record.reconsume_times) == (-7, 1, 3)
    assert record.born_timestamp == 1_700_000_000_123
    assert record.born_host == client.writer.get_extra_info("sockname")[:2]
    assert record.store_host == client.writer.get_extra_info("peername")[:2]
    added = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "TestCluster"}
    properties = dict(record.property_map)
    assert len(properties.pop("__CRC32C")) == 24
    assert properties == sent | added


@CODECS
async def test_an_answer_says_where_the_message_lies(client: Talker, codec: int) -> None:
    first = await client.put("T", properties=text_of({"UNIQ_KEY": "K1"}), queue_id=1, codec=codec)
    second = await client.put("T", queue_id=1, codec=codec)
    assert first.codec == second.codec == codec
    assert first.ext.keys() == second.ext.keys() == ANSWER_FIELDS
    assert first.ext["transactionId"] == "K1"
    assert (first.ext["MSG_REGION"], first.ext["TRACE_ON"]) == ("DefaultRegion", "true")
    assert (first.ext["queueId"], first.ext["queueOffset"]) == ("1", "0")
    assert (second.ext["queueId"], second.ext["queueOffset"]) == ("1", "1")
    assert second.ext["transactionId"] == (await record_of(client, second)).unique_key


@pytest.mark.parametrize("key", ['quo"te', "back\\slash", "中文", "new\nline", "a" * 300, "a" * 1200])
async def test_odd_unique_keys_come_back_unchanged(client: Talker, key: str) -> None:
    answer = await client.put("T", properties=text_of({"UNIQ_KEY": key}))
    assert answer.ext["transactionId"] == key
    assert (await record_of(client, answer)).unique_key == key


async def test_a_message_without_properties_gets_a_unique_key(client: Talker) -> None:
    answers = [await client.put("T") for _ in range(2)]
    keys = [answer.ext["transactionId"] for answer in answers]
    assert len(set(keys)) == 2
    assert all(len(key) == 32 for key in keys)


@pytest.mark.parametrize(
    "properties",
    [
        {"DELAY": "0"},
        {"DELAY": "-1"},
        {"DELAY": "-5"},
        {"TRAN_MSG": "false"},
        {"TRAN_MSG": "false", "DELAY": "0"},
    ],
    ids=str,
)
async def test_what_asks_for_no_delay_and_no_transaction_is_an_ordinary_message(
    client: Talker, properties: dict[str, str]
) -> None:
    """DELAY=-1, which dead letters carry, and TRAN_MSG=false were refused as delayed messages."""
    answer = await client.put("T", properties=text_of(properties))
    assert answer.code == 0, answer.remark
    assert properties.items() <= (await client.records("T"))[0].property_map.items()


async def test_an_ipv6_client_and_an_ipv6_broker_are_stored_as_such(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, bind_address="::1", broker_ip1="::1") as broker,
        talking(broker, "::1") as client,
    ):
        answer = await client.put("T", b"six", sysFlag="1")
        assert len(answer.ext["msgId"]) == 56
        record = await record_of(client, answer)
        assert record.born_host == client.writer.get_extra_info("sockname")[:2]
        assert record.store_host == ("::1", broker.port)
        assert record.sys_flag == 0x31
        assert [one.body for one in await client.records("T")] == [b"six"]


async def test_host_bits_are_the_broker_s_to_set(client: Talker) -> None:
    """A client that claims an IPv6 address would shift every later field of its record."""
    answer = await client.put("T", sysFlag=str(0x30))
    assert (await record_of(client, answer)).sys_flag == 0


async def test_multi_tag_topics_mark_their_messages(broker: Broker, client: Talker) -> None:
    make_topic(broker, "Multi", topic_filter_type="MULTI_TAG")
    assert (await record_of(client, await client.put("Multi"))).sys_flag == 2


async def test_a_negative_queue_id_lets_the_broker_choose(broker: Broker, client: Talker) -> None:
    make_topic(broker, "T", read_queue_nums=8, write_queue_nums=3)
    queues = {(await client.put("T", queue_id=-1)).ext["queueId"] for _ in range(60)}
    assert queues == {"0", "1", "2"}


async def test_queues_up_to_the_larger_count_take_messages(broker: Broker, client: Talker) -> None:
    make_topic(broker, "T", read_queue_nums=2, write_queue_nums=5)
    assert (await client.put("T", queue_id=4)).code == 0
    refused = await client.put("T", queue_id=5)
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert refused.remark == "queue 5 of topic T does not exist: it has the queues 0 to 4"


async def test_bodies_up_to_the_limit_are_stored() -> None:
    async with (
        broker_in_memory(mapped_file_size_commit_log=8 << 20) as broker,
        talking_in_memory(broker) as client,
    ):
        for size in (1, 4096, BODY_MAX):
            answer = await client.put("T", bytes(size))
            assert answer.code == 0, answer.remark
            assert len((await record_of(client, answer)).body) == size


# --- what is refused ----------------------------------------------------------------------------------------------

LONGEST = "x" * 127
REFUSALS: dict[str, tuple[dict[str, Any], ResponseCode, str]] = {
    "an empty topic": ({"topic": ""}, ResponseCode.INVALID_PARAMETER, "topic name is empty"),
    "a slash": ({"topic": "a/b"}, ResponseCode.INVALID_PARAMETER, "'/' at character 2"),
    "a way out of the folder": ({"topic": "../../x"}, ResponseCode.INVALID_PARAMETER, "'.' at character 1"),
    "a NUL": ({"topic": "a\0"}, ResponseCode.INVALID_PARAMETER, "'\\x00'"),
    "a letter of another script": ({"topic": "tорic"}, ResponseCode.INVALID_PARAMETER, "at character 2"),
    "a final line end": ({"topic": "T\n"}, ResponseCode.INVALID_PARAMETER, "at character 2"),
    "a topic of 128 characters": ({"topic": "x" * 128}, ResponseCode.INVALID_PARAMETER, "128 characters"),
    "a template that does not exist": (
        {"topic": "New", "defaultTopic": "Nowhere"},
        ResponseCode.TOPIC_NOT_EXIST,
        "template topic Nowhere does not exist",
    ),
    "a template that lets nothing inherit": (
        {"topic": "New", "defaultTopic": "BenchmarkTest"},
        ResponseCode.TOPIC_NOT_EXIST,
        "lets nothing inherit",
    ),
    "a queue too many": ({"queue_id": 4}, ResponseCode.INVALID_PARAMETER, "it has the queues 0 to 3"),
    "no body": ({"body": b""}, ResponseCode.SYSTEM_ERROR, "has no body"),
    "a body over 4 MiB": ({"body": bytes(BODY_MAX + 1)}, ResponseCode.MESSAGE_ILLEGAL, "maxMessageSize"),
    "properties of 32,768 bytes": (
        {"properties": "A\x01" + "x" * (PROPERTIES_MAX - 2) + "\x02"},
        ResponseCode.MESSAGE_ILLEGAL,
        "properties are too large",
    ),
    "properties that do not leave room for the broker's": (
        {"properties": "A\x01" + "x" * (PROPERTIES_MAX - 103) + "\x02"},
        ResponseCode.MESSAGE_ILLEGAL,
        "properties are too large",
    ),
    "a transaction by flag alone": ({"sysFlag": "4"}, ResponseCode.MESSAGE_ILLEGAL, "TRAN_MSG"),
    "a rolled back one by flag": ({"sysFlag": "12"}, ResponseCode.MESSAGE_ILLEGAL, "TRAN_MSG"),
    "a transaction of nobody": (
        {"properties": text_of({"TRAN_MSG": "true"})},
        ResponseCode.MESSAGE_ILLEGAL,
        "PGROUP",
    ),
    "a delay that is no number": (
        {"properties": text_of({"DELAY": "soon"})},
        ResponseCode.MESSAGE_ILLEGAL,
        "delayed",
    ),
    "a time too far away": (
        {"properties": text_of({"TIMER_DELIVER_MS": "9999999999999"})},
        ResponseCode.MESSAGE_ILLEGAL,
        "timerMaxDelaySec",
    ),
    "a time that is no number": (
        {"properties": text_of({"DELAY": "0", "TIMER_DELAY_SEC": "5 min"})},
        ResponseCode.MESSAGE_ILLEGAL,
        "TIMER_DELAY_SEC",
    ),
    "the topic of waiting timer messages": (
        {"topic": "rmq_sys_wheel_timer"},
        ResponseCode.NO_PERMISSION,
        "kept for the broker",
    ),
    "an inner batch": ({"properties": text_of({"INNER_NUM": "2"})}, ResponseCode.MESSAGE_ILLEGAL, "INNER_NUM"),
}  # fmt: skip


@pytest.mark.parametrize(("how", "code", "words"), REFUSALS.values(), ids=REFUSALS)
async def test_a_refusal_has_its_code_and_says_why(
    broker: Broker, client: Talker, how: dict[str, Any], code: ResponseCode, words: str
) -> None:
    topics = len(broker.parts.topics)
    await client.put("T")
    refused = await client.put(**({"topic": "T"} | how))
    assert refused.code == code
    assert words in (refused.remark or "")
    assert len(refused.remark or "") < 500
    assert (refused.ext["MSG_REGION"], refused.ext["TRACE_ON"]) == ("DefaultRegion", "true")
    assert len(broker.parts.topics) == topics + 1
    assert len(await client.records("T")) == 1
    assert (await client.put("T")).ext["queueOffset"] == "1"


@pytest.mark.parametrize(
    "topic",
    [
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    ],
)
async def test_topics_of_the_broker_itself_take_nothing_from_clients(client: Talker, topic: str) -> None:
    for answer in (await client.put(topic), await client.put_batch(topic, [BatchEntry(0, b"x", "")])):
        assert answer.code == ResponseCode.NO_PERMISSION
        assert topic in (answer.remark or "")


MISSING_OR_WRONG: dict[str, tuple[dict[str, str | None], str]] = {
    "no topic": ({"topic": None}, "`b`"),
    "no queue id": ({"queueId": None}, "`e`"),
    "a queue id that is no number": ({"queueId": "abc"}, "e"),
    "a queue id over 32 bits": ({"queueId": str(2**31)}, "e"),
    "no born time": ({"bornTimestamp": None}, "`g`"),
    "a born time over 64 bits": ({"bornTimestamp": str(2**63)}, "g"),
    "no producer group": ({"producerGroup": None}, "`a`"),
    "a flag that is empty": ({"flag": ""}, "h"),
    "a unit mode that is neither true nor false": ({"unitMode": "maybe"}, "k"),
}


@CODECS
@pytest.mark.parametrize(("fields", "name"), MISSING_OR_WRONG.values(), ids=MISSING_OR_WRONG)
async def test_missing_and_wrong_fields_are_named(
    client: Talker, codec: int, fields: dict[str, str | None], name: str
) -> None:
    command = send_request("T", codec=codec)
    letters = {
        "topic": "b",
        "queueId": "e",
        "bornTimestamp": "g",
        "producerGroup": "a",
        "flag": "h",
        "unitMode": "k",
    }
    ext = command.ext_fields
    assert ext is not None
    for field, value in fields.items():
        if value is None:
            del ext[letters[field]]
        else:
            ext[letters[field]] = value
    refused = await client.exchange(command)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert name in (refused.remark or "")
    assert (await client.put("T", codec=codec)).ext["queueOffset"] == "0"


async def test_a_broker_without_the_write_bit_takes_nothing() -> None:
    async with broker_in_memory(broker_permission=4) as broker, talking_in_memory(broker) as client:
        refused = await client.put("T")
        assert refused.code == ResponseCode.NO_PERMISSION
        assert "brokerPermission" in (refused.remark or "")
        assert broker.parts.topics.get("T") is None


async def test_taking_the_write_bit_away_holds_for_topics_in_use(client: Talker) -> None:
    """A topic that had been sent to was not checked again: an operator could not stop a running producer."""
    assert (await client.put("T")).code == 0
    changed = await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4\n")
    assert changed.code == 0, changed.remark
    assert (await client.put("T")).code == ResponseCode.NO_PERMISSION
    changed = await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=6\n")
    assert (await client.put("T")).code == 0


@pytest.mark.parametrize("region", ["nörd", 'no"rth', "中"])
async def test_an_odd_region_is_told_as_it_is(region: str) -> None:
    async with broker_in_memory(region_id=region) as broker, talking_in_memory(broker) as client:
        for codec in (0, 1):
            answer = await client.put("T", codec=codec)
            assert answer.ext["MSG_REGION"] == region


async def test_region_and_trace_switch_change_in_a_running_broker(client: Talker) -> None:
    """Both settings say that they are hot; sends went on with those of the start."""
    await client.put("T")
    changed = await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"regionId=north\ntraceOn=false\n")
    assert changed.code == 0, changed.remark
    answer = await client.put("T")
    assert (answer.ext["MSG_REGION"], answer.ext["TRACE_ON"]) == ("north", "false")
    properties = (await record_of(client, answer)).property_map
    assert (properties["MSG_REGION"], properties["TRACE_ON"]) == ("north", "false")


@pytest.mark.parametrize("perm", [0, 4, 5])
async def test_a_topic_without_the_write_bit_takes_nothing(broker: Broker, client: Talker, perm: int) -> None:
    await client.put("T")
    make_topic(broker, "T", perm=perm)
    refused = await client.put("T")
    assert refused.code == ResponseCode.NO_PERMISSION
    assert f"its permission is {perm}" in (refused.remark or "")


async def test_fewer_queues_hold_from_the_next_send_on(broker: Broker, client: Talker) -> None:
    assert (await client.put("T", queue_id=3)).code == 0
    make_topic(broker, "T", read_queue_nums=1, write_queue_nums=1)
    assert (await client.put("T", queue_id=3)).code == ResponseCode.INVALID_PARAMETER


async def test_a_deleted_topic_starts_anew(client: Talker) -> None:
    assert (await client.put("T")).ext["queueOffset"] == "0"
    assert (await client.put("T")).ext["queueOffset"] == "1"
    assert (await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
    assert (await client.put("T", b"new")).ext["queueOffset"] == "0"
    assert [record.body for record in await client.records("T")] == [b"new"]


# --- topics made by sends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("requested", "made"), [(4, 4), (1, 1), (8, 8), (100, 8), (0, 1), (-3, 1)])
async def test_a_new_topic_gets_the_queues_that_were_asked_for_up_to_the_template_s(
    broker: Broker, client: Talker, requested: int, made: int
) -> None:
    assert (await client.put("New", defaultTopicQueueNums=str(requested))).code == 0
    topic = broker.parts.topics.require("New")
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (made, made, 6)


async def test_unit_mode_marks_a_new_topic(broker: Broker, client: Talker) -> None:
    assert (await client.put("New", unitMode="true")).code == 0
    assert broker.parts.topics.require("New").topic_sys_flag == 1


async def test_sends_that_make_very_many_topics_go_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read of sends to 200 new topics held everybody else up for 450 ms."""
    async with broker_in_memory() as broker, talking_in_memory(broker) as client:
        publisher = broker.parts.publisher
        counts: list[int] = []
        publish = publisher.publish

        def counting(messages: Any, *more: Any) -> Any:
            counts.append(len(messages))
            return publish(messages, *more)

        monkeypatch.setattr(publisher, "publish", counting)
        sends = [send_request(f"New{number}", b"x", opaque=number) for number in range(100)]
        client.send(*sends)
        answers = await client.answers(100)
        assert {answer.code for answer in answers.values()} == {0}
        assert max(counts) == 1
        assert {f"New{number}" for number in range(100)} <= set(broker.parts.topics.all())
        counts.clear()
        client.send(*sends)  # they are there now
        await client.answers(100)
        assert max(counts) > 1


async def test_a_turn_goes_on_with_what_is_known_until_the_next_topic_has_to_be_made() -> None:
    async with broker_in_memory() as broker, talking_in_memory(broker) as client:
        for topic in ("New0", "New1"):
            await client.put(topic)
        topics = ["New0"] * 20 + ["Newer0"] * 3 + ["New1"] * 20 + ["Newer1", "Newer0", "Newer2"]
        sends: list[Any] = [a_send(topic) for topic in topics]
        publisher: Any = broker.parts.publisher
        assert publisher.is_long(sends)
        assert [len(run) for run in publisher.runs(sends)] == [43, 1, 1, 1]
        made = iter(publisher.runs(sends))
        assert len(next(made)) == 43
        await client.put("Newer0")  # by the first run
        assert [len(run) for run in made] == [2, 1]


@pytest.mark.parametrize("together", [4, 1024])
@pytest.mark.parametrize("topic_count", [1, 4, 30])
async def test_sends_that_make_very_many_queues_go_in_turns(
    monkeypatch: pytest.MonkeyPatch, topic_count: int, together: int
) -> None:
    """However many of a read are handled together, and however few queues their topics have."""
    monkeypatch.setattr(connection_module, "BATCH_FIRST", together)
    async with broker_in_memory() as broker, talking_in_memory(broker) as client:
        for number in range(topic_count):
            await client.put(f"Wide{number}")
        files = made_in_each_turn(broker, monkeypatch)
        more = [(f"Wide{number}", queue_id) for queue_id in range(1, 4) for number in range(topic_count)]
        client.send(*[send_request(topic, b"x", queue_id=at, opaque=n) for n, (topic, at) in enumerate(more)])
        assert {answer.code for answer in (await client.answers(len(more))).values()} == {0}
        assert sum(files) == len(more)
        assert max(files) == 1


async def test_a_single_send_that_makes_its_queue_is_paced_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else as many connections as there may be make as many queues at once."""
    worked: list[float] = []

    def counting(_: Pace, took_s: float, now: float) -> float:
        worked.append(took_s)
        return 0.0

    monkeypatch.setattr(Pace, "worked", counting)
    async with broker_in_memory() as broker, talking_in_memory(broker) as client:
        for number in range(3):
            assert (await client.put("New", queue_id=number)).code == 0
        for number in range(3):
            assert (await client.put("New", queue_id=number)).code == 0
        # Waits in another queue, whose first message this is: that of its topic is not made for it.
        for _ in range(3):
            assert (await client.put("New", queue_id=3, properties=text_of({"DELAY": "8"}))).code == 0
        assert len(worked) == 3
        assert not broker.parts.store.topics.has_queue("New", 3)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_what_it_took_to_show_a_new_queue_counts_for_who_makes_the_next(
    monkeypatch: pytest.MonkeyPatch, flush: str
) -> None:
    """Its file is made then: with synchronous flush behind the sync, when the send is long over."""
    worked: list[float] = []

    def counting(_: Pace, took_s: float, now: float) -> float:
        worked.append(took_s)
        return 0.0

    monkeypatch.setattr(Pace, "worked", counting)
    async with broker_in_memory(flush_disk_type=flush) as broker, talking_in_memory(broker) as client:
        confirm = broker.parts.store.confirm

        def slow(offset: int, **how: Any) -> Any:
            end = time.perf_counter() + 0.002
            while time.perf_counter() < end:
                pass
            return confirm(offset, **how)

        monkeypatch.setattr(broker.parts.store, "confirm", slow)
        for number in range(6):
            assert (await client.put("New", queue_id=number % 4)).code == 0
        assert len(worked) == 4
        assert sum(worked) >= 3 * 0.002


async def test_sends_to_any_queue_go_in_turns_until_all_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_in_memory() as broker, talking_in_memory(broker) as client:
        await client.put("New")
        await client.put("New")
        counts = made_in_each_turn(broker, monkeypatch)
        for _ in range(2):
            client.send(*[send_request("New", b"x", queue_id=-1, opaque=at) for at in range(200)])
            assert {answer.code for answer in (await client.answers(200)).values()} == {0}
        assert (sum(counts), max(counts)) == (3, 1)
        assert len(counts) < 300, "together when they are there"


async def test_the_first_send_to_a_topic_is_stored_before_anything_that_comes_later(broker: Broker) -> None:
    """Who pops from the topic on another connection a moment later was told that it does not exist."""
    peer = Peer(broker.handlers)
    peer.connection.data_received(encode_command(send_request("New")))
    assert broker.parts.store.topics.has_queue("New", 0)


async def test_messages_that_wait_in_another_queue_go_together_but_not_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their queue may be made all the same, if their time is over."""
    async with broker_in_memory() as broker, talking_in_memory(broker) as client:
        make_topic(broker, "Wide", read_queue_nums=40, write_queue_nums=40)
        await client.put("Wide")
        files = made_in_each_turn(broker, monkeypatch)
        over = text_of({"TIMER_DELIVER_MS": "1"})
        client.send(
            *[send_request("Wide", b"x", queue_id=at, properties=over, opaque=at) for at in range(1, 40)]
        )
        assert {answer.code for answer in (await client.answers(39)).values()} == {0}
        assert sum(files) == 39
        assert max(files) <= TURN_MAKES_MAX


async def test_batches_that_make_very_many_topics_go_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where those before them took so little that a hundred are handled together."""
    monkeypatch.setattr(connection_module, "BATCH_FIRST", 1024)
    async with broker_in_memory() as broker, talking_in_memory(broker) as client:
        batches = broker.parts.batches
        counts: list[int] = [0]
        publish = batches.publish

        def counting(plans: Any, *more: Any) -> Any:
            counts.append(len(plans))
            return publish(plans, *more)

        monkeypatch.setattr(batches, "publish", counting)
        sends = [send_request(f"New{at}", GOOD, opaque=at, batch="true") for at in range(100)]
        for command in sends:
            command.code = RequestCode.SEND_BATCH_MESSAGE
        client.send(*sends)
        assert {answer.code for answer in (await client.answers(100)).values()} == {0}
        assert max(counts) <= 1
        assert {f"New{at}" for at in range(100)} <= set(broker.parts.topics.all())


async def test_without_auto_creation_only_retry_topics_are_made() -> None:
    async with (
        broker_in_memory(auto_create_topic_enable=False) as broker,
        talking_in_memory(broker) as client,
    ):
        refused = await client.put("New")
        assert refused.code == ResponseCode.TOPIC_NOT_EXIST
        assert "autoCreateTopicEnable" in (refused.remark or "")
        assert (await client.put("%RETRY%some-group")).code == 0
        retry = broker.parts.topics.require("%RETRY%some-group")
        assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm) == (1, 1, 6)


async def test_a_flood_of_new_topics_ends_at_the_bound() -> None:
    async with broker_in_memory(max_topics_auto_created=3) as broker, talking_in_memory(broker) as client:
        codes = [(await client.put(f"T{i}")).code for i in range(5)]
        assert codes == [0, 0, 0, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.TOPIC_NOT_EXIST]
        assert (await client.put("T0")).code == 0


async def test_topics_that_differ_only_in_case_are_two(client: Talker) -> None:
    await client.put("Case", b"upper")
    await client.put("case", b"lower")
    assert [one.body for one in await client.records("Case")] == [b"upper"]
    assert [one.body for one in await client.records("case")] == [b"lower"]


# --- many at once -------------------------------------------------------------------------------------------------


async def test_sends_of_one_read_keep_their_order(client: Talker) -> None:
    client.send(*[send_request("T", b"%d" % i, opaque=i, queue_id=i % 2) for i in range(200)])
    answers = await client.answers(200)
    offsets = [int(answers[i].ext["queueOffset"]) for i in range(200)]
    assert offsets == [i // 2 for i in range(200)]
    assert [one.body for one in await client.records("T")] == [b"%d" % i for i in range(0, 200, 2)]
    assert [one.body for one in await client.records("T", queueId=1)] == [b"%d" % i for i in range(1, 200, 2)]


async def test_refusals_among_them_disturb_nobody(client: Talker) -> None:
    def request(i: int) -> Command:
        if i % 5 == 1:
            return send_request("no/such", b"x", opaque=i)
        if i % 5 == 3:
            return send_request("T", b"", opaque=i)
        return send_request("T", b"%d" % i, opaque=i, long_names=i % 2 == 0, codec=i % 3)

    client.send(*[request(i) for i in range(100)])
    answers = await client.answers(100)
    expected = {1: ResponseCode.INVALID_PARAMETER, 3: ResponseCode.SYSTEM_ERROR}
    assert {i: answers[i].code for i in range(100)} == {i: expected.get(i % 5, 0) for i in range(100)}
    good = [i for i in range(100) if i % 5 not in expected]
    assert [answers[i].codec for i in good] == [i % 3 for i in good]
    records = {one.offset_message_id: one.body for one in await client.records("T")}
    assert [records[answers[i].ext["msgId"]] for i in good] == [b"%d" % i for i in good]


async def test_a_wrong_header_among_them_disturbs_nobody(client: Talker) -> None:
    wrong = send_request("T", opaque=2)
    wrong.ext_fields = {"b": "T"}
    client.send(send_request("T", b"1", opaque=1), wrong, send_request("T", b"3", opaque=3))
    answers = await client.answers(3)
    assert [answers[i].code for i in (1, 2, 3)] == [0, 1, 0]
    assert [one.body for one in await client.records("T")] == [b"1", b"3"]


async def test_an_opaque_that_is_used_twice_is_answered_twice(client: Talker) -> None:
    client.send(send_request("T", opaque=7), send_request("T", opaque=7))
    first, second = await client.receive(), await client.receive()
    assert [first.opaque, second.opaque] == [7, 7]
    assert {first.ext["queueOffset"], second.ext["queueOffset"]} == {"0", "1"}


async def test_oneway_sends_are_stored_and_not_answered(client: Talker) -> None:
    client.send(
        send_request("T", b"1", opaque=1, oneway=True),
        send_request("bad/name", b"2", opaque=2, oneway=True),
        send_request("T", b"3", opaque=3),
        send_request("T", b"4", opaque=4, oneway=True),
        send_request("T", b"5", opaque=5),
    )
    answers = await client.answers(2)
    assert answers.keys() == {3, 5}
    assert [one.body for one in await client.records("T")] == [b"1", b"3", b"4", b"5"]


async def test_a_message_that_does_not_wait_is_stored_like_the_others(client: Talker) -> None:
    answer = await client.put("T", b"hasty", properties=text_of({"UNIQ_KEY": "K", "WAIT": "false"}))
    assert answer.code == 0
    waiting = await client.put("T", b"patient")
    assert waiting.ext["queueOffset"] == "1"
    records = await client.records("T")
    assert [one.body for one in records] == [b"hasty", b"patient"]
    assert records[0].property_map["WAIT"] == "false"


async def test_who_does_not_wait_does_not_take_the_promise_from_the_others_of_the_same_read(
    tmp_path: Path,
) -> None:
    """One message with WAIT=false let all sends of its read be answered before they were on the disk."""
    io = FaultyDisk()
    async with running_broker(tmp_path, io=io) as broker, talking(broker) as client:
        await client.put("T")
        io.may_sync.clear()
        without_wait = text_of({"UNIQ_KEY": "K", "WAIT": "false"})
        client.send(
            send_request("T", b"waits", opaque=1),
            send_request("T", b"hasty", opaque=2, properties=without_wait),
            send_request("T", b"waits", opaque=3),
        )
        assert (await client.receive()).opaque == 2
        assert broker.parts.store.flushed_offset < broker.parts.store.end_offset
        io.may_sync.set()
        assert (await client.answers(2)).keys() == {1, 3}


async def test_a_batch_waits_unless_it_says_otherwise_itself(
    tmp_path: Path,
) -> None:
    io = FaultyDisk()
    async with running_broker(tmp_path, io=io) as broker, talking(broker) as client:
        await client.put("T")
        io.may_sync.clear()
        without_wait = text_of({"WAIT": "false"})
        of_messages = send_request("T", encode_batch(entries(b"a", WAIT="false")), opaque=1, batch="true")
        of_all = send_request(
            "T", encode_batch(entries(b"b")), opaque=2, batch="true", properties=without_wait
        )
        for command in (of_messages, of_all):
            command.code = RequestCode.SEND_BATCH_MESSAGE
        client.send(of_messages, of_all)
        assert (await client.receive()).opaque == 2
        io.may_sync.set()
        assert (await client.receive()).opaque == 1
        waits = [record.property_map["WAIT"] for record in await client.records("T", 1)]
        assert waits == ["false", "false"]


async def test_a_topic_whose_queues_are_of_another_kind_takes_no_messages(
    broker: Broker, client: Talker
) -> None:
    """It came with the settings of a RocketMQ broker; messages were stored in plain queues, on which that one stops."""
    make_topic(broker, "Rocks", attributes={"queue.type": "RocksDBCQ"})
    make_topic(broker, "Plain", attributes={"queue.type": "SimpleCQ"})
    make_topic(broker, "Compacted", attributes={"cleanup.policy": "COMPACTION"})
    for topic, why in (
        ("Rocks", "queue.type=RocksDBCQ, which is not served"),
        ("Compacted", "cleanup.policy=COMPACTION, which is not served: the newest messages of its keys"),
    ):
        for refused in (await client.put(topic), await client.put_batch(topic, entries(b"a"))):
            assert refused.code == ResponseCode.MESSAGE_ILLEGAL
            assert why in (refused.remark or "")
    assert (await client.put("Plain")).code == 0


# --- batches ------------------------------------------------------------------------------------------------------


def entries(*bodies: bytes, **properties: str) -> list[BatchEntry]:
    return [
        BatchEntry(i, body, text_of({"UNIQ_KEY": f"K{i}", "N": str(i), **properties}))
        for i, body in enumerate(bodies)
    ]


@CODECS
async def test_a_batch_becomes_one_message_after_the_other(client: Talker, codec: int) -> None:
    await client.put("T", b"before")
    answer = await client.put_batch("T", entries(b"a", b"bb", b"ccc"), codec=codec)
    assert answer.code == 0, answer.remark
    assert answer.codec == codec
    assert answer.ext["queueOffset"] == "1"
    assert answer.ext["transactionId"] == "K0,K1,K2"
    _, *records = await client.records("T")
    assert [(one.body, one.flag, one.queue_offset) for one in records] == [
        (b"a", 0, 1),
        (b"bb", 1, 2),
        (b"ccc", 2, 3),
    ]
    assert [one.offset_message_id for one in records] == answer.ext["msgId"].split(",")
    assert [one.property_map["N"] for one in records] == ["0", "1", "2"]


async def test_properties_of_the_whole_batch_reach_every_message_and_their_own_win(client: Talker) -> None:
    batch = [
        BatchEntry(0, b"a", "UNIQ_KEY\x01K0\x02N\x01own"),
        BatchEntry(0, b"b", "UNIQ_KEY\x01K1\x02"),
        BatchEntry(0, b"c", ""),
    ]
    answer = await client.put_batch("T", batch, properties=text_of({"N": "common", "TAGS": "TagA"}))
    assert answer.code == 0
    records = await client.records("T", subscription="TagA")
    assert [(one.property_map["N"], one.tags) for one in records] == [
        ("own", "TagA"),
        ("common", "TagA"),
        ("common", "TagA"),
    ]
    assert [one.unique_key for one in records][:2] == ["K0", "K1"]
    assert records[2].unique_key


GOOD = encode_batch(entries(b"good", b"too"))
BROKEN = {
    "cut in an entry": GOOD[:-1],
    "a stray byte": GOOD + b"\0",
    "a size of 0": b"\0\0\0\0" + GOOD[4:],
    "a negative size": b"\xff" * 4 + GOOD[4:],
    "a body length that lies": GOOD[:16] + b"\0\0\xff\xff" + GOOD[20:],
    "a negative body length": GOOD[:16] + b"\xff" * 4 + GOOD[20:],
    "not a batch": b"hello, I am a message",
    "a broken second entry": GOOD[: len(GOOD) // 2 + 1] + b"\x7f" + GOOD[len(GOOD) // 2 + 2 :],
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
async def test_of_a_broken_batch_nothing_is_stored(client: Talker, body: bytes) -> None:
    await client.put("T", b"first")
    refused = await client.put_batch("T", body)
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert "batch" in (refused.remark or "")
    assert [one.body for one in await client.records("T")] == [b"first"]
    assert (await client.put("T")).ext["queueOffset"] == "1"


REFUSED_BATCHES: dict[str, tuple[list[BatchEntry], ResponseCode]] = {
    "properties too long in one": (
        [*entries(b"a"), BatchEntry(0, b"b", "A\x01" + "x" * (PROPERTIES_MAX - 10))],
        ResponseCode.MESSAGE_ILLEGAL,
    ),
    "a delay in one": ([*entries(b"a"), *entries(b"b", DELAY="3")], ResponseCode.MESSAGE_ILLEGAL),
    "a transaction in one": (
        [*entries(b"a"), *entries(b"b", TRAN_MSG="true")],
        ResponseCode.MESSAGE_ILLEGAL,
    ),
    "an inner batch in one": ([*entries(b"a"), *entries(b"b", INNER_NUM="9")], ResponseCode.MESSAGE_ILLEGAL),
}


@pytest.mark.parametrize(("batch", "code"), REFUSED_BATCHES.values(), ids=REFUSED_BATCHES)
async def test_a_batch_is_stored_whole_or_not_at_all(
    client: Talker, batch: list[BatchEntry], code: ResponseCode
) -> None:
    refused = await client.put_batch("T", batch)
    assert refused.code == code
    assert (refused.ext["MSG_REGION"], refused.ext["TRACE_ON"]) == ("DefaultRegion", "true")
    assert await client.records("T") == []
    assert (await client.put("T")).ext["queueOffset"] == "0"


@pytest.mark.parametrize(
    ("topic", "body", "code"),
    [
        ("%RETRY%group", GOOD, ResponseCode.MESSAGE_ILLEGAL),
        ("a/b", GOOD, ResponseCode.INVALID_PARAMETER),
        ("T", b"", ResponseCode.SYSTEM_ERROR),
        ("T", bytes(BODY_MAX + 1), ResponseCode.MESSAGE_ILLEGAL),
    ],
    ids=["a retry topic", "a bad name", "no body", "a body over 4 MiB"],
)
async def test_batches_are_checked_like_messages(
    client: Talker, topic: str, body: bytes, code: ResponseCode
) -> None:
    assert (await client.put_batch(topic, body)).code == code


async def test_batches_of_one_read_and_messages_between_them_keep_their_order(client: Talker) -> None:
    def batch(opaque: int, *bodies: bytes) -> Command:
        command = send_request("T", encode_batch(entries(*bodies)), opaque=opaque, batch="true")
        command.code = RequestCode.SEND_BATCH_MESSAGE
        return command

    client.send(batch(1, b"a", b"b"), send_request("T", b"c", opaque=2), batch(3, b"d"), batch(4, b"e", b"f"))
    answers = await client.answers(4)
    assert [answers[i].ext["queueOffset"] for i in (1, 2, 3, 4)] == ["0", "2", "3", "4"]
    assert [one.body for one in await client.records("T")] == [b"a", b"b", b"c", b"d", b"e", b"f"]


async def test_many_files_of_the_log_are_filled_and_read() -> None:
    io = MemoryIo()
    async with (
        broker_in_memory(io=io, mapped_file_size_commit_log=16_384) as broker,
        talking_in_memory(broker) as client,
    ):
        bodies = [bytes([i]) * 3000 for i in range(60)]
        client.send(*[send_request("T", body, opaque=i) for i, body in enumerate(bodies)])
        answers = await client.answers(60)
        assert {answer.code for answer in answers.values()} == {0}
        assert [one.body for one in await client.records("T")] == bodies
        assert len([path for path in io.paths() if path.parent.name == "commitlog"]) >= 12
        too_large = await client.put("T", bytes(17_000))
        assert too_large.code == ResponseCode.MESSAGE_ILLEGAL


async def test_async_flush_answers_and_serves_at_once() -> None:
    async with broker_in_memory(flush_disk_type="ASYNC_FLUSH") as broker, talking_in_memory(broker) as client:
        assert (await client.put("T", b"quick")).code == 0
        assert [one.body for one in await client.records("T")] == [b"quick"]


def test_the_properties_of_the_record_hold_nothing_of_the_wire() -> None:
    """The helper of this module makes what official clients make."""
    command = send_request("T", properties=text_of({"A": "b"}))
    assert decode_properties(command.ext["i"]) == {"A": "b"}
    assert (command.ext["a"], command.ext["b"], command.ext["m"]) == ("test-producers", "T", "false")
    assert "l" not in command.ext
    assert command.code == V2
    assert send_request("T", long_names=True).code == V1


# --- batches of very many messages ----------------------------------------------------------------------------------


async def test_a_batch_of_very_many_messages_is_stored_in_turns_and_keeps_the_order_of_its_peer(
    broker: Broker, client: Talker
) -> None:
    count = 3 * TURN_COUNT_MAX + 7
    many = [BatchEntry(0, b"%d" % number, f"UNIQ_KEY\x01K{number}\x02") for number in range(count)]
    large = send_request("T", encode_batch(many), opaque=1, batch="true")
    large.code = RequestCode.SEND_BATCH_MESSAGE
    client.send(send_request("T", b"before", opaque=0), large, send_request("T", b"after", opaque=2))
    answers = {answer.opaque: answer for answer in [await client.receive() for _ in range(3)]}
    assert [answers[opaque].ext["queueOffset"] for opaque in range(3)] == ["0", "1", str(count + 1)]
    assert len(answers[1].ext["msgId"].split(",")) == count
    assert broker.parts.store.reading.max_offset("T", 0) == count + 2


async def test_batches_of_few_and_of_many_messages_in_one_read_stay_in_order(client: Talker) -> None:
    """A batch that is long to read is read in turns, and those behind it wait for it."""
    await client.put("T", b"first")
    few, many = [BatchEntry(0, b"x", "")], [BatchEntry(0, b"y", "")] * (3 * ENTRIES_A_STEP)
    commands = []
    for opaque, body in enumerate((few, many, few, many[:-1], few)):
        command = send_request("T", encode_batch(body), opaque=opaque, batch="true")
        command.code = RequestCode.SEND_BATCH_MESSAGE
        commands.append(command)
    commands[2].body = commands[2].body[:-1]  # and one of them is refused
    client.send(*commands)
    answers = {answer.opaque: answer for answer in [await client.receive() for _ in commands]}
    assert [answers[number].code for number in range(5)] == [0, 0, ResponseCode.MESSAGE_ILLEGAL, 0, 0]
    offsets = [1, 2, 2 + 3 * ENTRIES_A_STEP, 1 + 6 * ENTRIES_A_STEP]
    assert [int(answers[number].ext["queueOffset"]) for number in (0, 1, 3, 4)] == offsets


async def test_a_batch_of_too_many_messages_is_refused_for_that_before_the_work(client: Talker) -> None:
    """180,000 messages of one byte took 1.5 s of the event loop, and were then refused for the size of one of them."""
    answer = await client.put_batch("T", encode_batch([BatchEntry(0, b"x", "")]) * 180_000)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark == "batch to topic T: it holds more than 16384 messages: send it in parts"


async def test_a_batch_that_is_too_large_with_its_unique_keys_is_refused_as_a_whole(client: Talker) -> None:
    """It was told of one of its messages, of one byte, that it is too large."""
    answer = await client.put_batch("T", [BatchEntry(0, b"x", "")] * BATCH_COUNT_MAX)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "the 16384 messages of a batch to topic T are too large together" in (answer.remark or "")


async def test_a_batch_whose_records_are_too_large_together_is_refused_with_their_size() -> None:
    async with broker_in_memory(max_message_size=100_000) as broker, talking_in_memory(broker) as client:
        answer = await client.put_batch("T", [BatchEntry(0, b"x", "")] * 1_500)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "the 1500 messages of a batch to topic T take" in (answer.remark or "")
        assert "at most 165536 are allowed" in (answer.remark or "")


@pytest.mark.parametrize("count", [TURN_COUNT_MAX, 6_000, 16_000, 180_000])
async def test_no_batch_holds_the_event_loop(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three batches of 182,360 messages let others wait for 6 s."""
    command = send_request("T", encode_batch([BatchEntry(0, b"x", "")]) * count, opaque=1, batch="true")
    command.code = RequestCode.SEND_BATCH_MESSAGE
    answered = asyncio.Event()
    write_out = Connection._write_out

    def written(connection: Connection) -> None:
        write_out(connection)
        answered.set()

    monkeypatch.setattr(Connection, "_write_out", written)
    longest = float("inf")
    async with (
        broker_in_memory(mapped_file_size_commit_log=16 << 20) as broker,
        talking_in_memory(broker) as client,
    ):
        await client.put("T")
        for _ in range(8):  # a busy machine and the collector make a turn longer, never shorter
            answered.clear()
            turns = Turns()
            gc.collect()
            client.send(command)
            with turns.watched():
                await answered.wait()  # to read it is the client's work, in the same loop here
            assert (await client.answer_to(1)).code == (
                0 if count <= BATCH_COUNT_MAX else ResponseCode.MESSAGE_ILLEGAL
            )
            longest = min(longest, turns.longest)
            if longest < TURN_MAX:
                break
        assert longest < TURN_MAX


async def test_a_large_batch_is_checked_anew_when_its_topic_has_changed_meanwhile(
    broker: Broker, client: Talker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.put("T", b"x")
    config = broker.parts.config
    another_turn = Connection.another_turn

    async def close_for_sends(connection: Connection) -> None:
        if broker.parts.config is config:
            broker.parts.live.replace({"brokerPermission": "4"}, origin="test", now_ms=0)
        await another_turn(connection)

    monkeypatch.setattr(Connection, "another_turn", close_for_sends)
    answer = await client.put_batch("T", [BatchEntry(0, b"x", "")] * (TURN_COUNT_MAX + 1))
    assert answer.code == ResponseCode.NO_PERMISSION
    assert broker.parts.store.reading.max_offset("T", 0) == 1
