"""Pulls on connections in memory: every check, every status, and which pulls wait for what."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aerobee_broker.broker import Broker
from aerobee_broker.messages.read import HOLD_MS_MAX, Reading
from aerobee_proto.batch import BatchEntry, encode_batch
from aerobee_proto.bodies import SubscriptionGroupConfig, TopicConfig
from aerobee_proto.codes import PullFlag, RequestCode, ResponseCode
from aerobee_proto.frames import FLAG_ONEWAY, Command
from aerobee_proto.javahash import tag_hash
from aerobee_proto.records import decode_records
from broker.in_memory import broker_in_memory, talking_in_memory
from broker.support import Clock, calls_in_turns
from system.running import Talker, send_request, text_of

FIELDS = {
    "suggestWhichBrokerId",
    "groupSysFlag",
    "nextBeginOffset",
    "maxOffset",
    "minOffset",
    "topicSysFlag",
}
SUBSCRIPTION, SUSPEND, COMMIT = PullFlag.SUBSCRIPTION, PullFlag.SUSPEND, PullFlag.COMMIT_OFFSET
WAITING = SUBSCRIPTION | SUSPEND
MINUTE = 60_000


@pytest.fixture
async def clock() -> Clock:
    return Clock()


@pytest.fixture
async def broker(clock: Clock) -> AsyncIterator[Broker]:
    async with broker_in_memory(clock=clock) as broker:
        yield broker


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Talker]:
    async with talking_in_memory(broker) as client:
        yield client


def with_topic(broker: Broker, **settings: Any) -> None:
    broker.parts.topics.update([TopicConfig(topic_name="T", **settings)])


def with_group(broker: Broker, **settings: Any) -> None:
    broker.parts.groups.update([SubscriptionGroupConfig(group_name="test-group", **settings)])


async def subscribe(client: Talker, *, topic: str = "T", model: str = "CLUSTERING", **fields: object) -> None:
    """Register the client in the group by a heartbeat, with one subscription to everything."""
    subscription = {
        "topic": topic,
        "subString": "*",
        "subVersion": 100,
        "tagsSet": [],
        "codeSet": [],
        **fields,
    }
    body = {
        "clientID": "me",
        "consumerDataSet": [
            {
                "groupName": "test-group",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": model,
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [subscription],
            }
        ],
        "producerDataSet": [],
    }
    answer = await client.ask(RequestCode.HEART_BEAT, body=json_of(body))
    assert answer.code == 0, answer.remark


def json_of(value: object) -> bytes:
    return json.dumps(value).encode()


def next_offset(answer: Command) -> int:
    return int(answer.ext["nextBeginOffset"])


# --- checks, in their order ---------------------------------------------------------------------------------------


async def test_a_broker_without_the_read_bit_gives_nothing() -> None:
    async with broker_in_memory(broker_permission=2) as broker, talking_in_memory(broker) as client:
        answer = await client.pull("T")
        assert (answer.code, answer.ext["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "1")
        assert "test-a" in (answer.remark or "")


async def test_lite_pulls_can_be_turned_off() -> None:
    async with (
        broker_in_memory(lite_pull_message_enable=False) as broker,
        talking_in_memory(broker) as client,
    ):
        await client.put("T")
        lite = await client.pull("T", code=RequestCode.LITE_PULL_MESSAGE)
        assert lite.code == ResponseCode.NO_PERMISSION
        assert "litePullMessageEnable" in (lite.remark or "")
        assert (await client.pull("T")).code == 0


async def test_lite_pulls_are_served_like_others(client: Talker) -> None:
    await client.put("T", b"x")
    answer = await client.pull("T", code=RequestCode.LITE_PULL_MESSAGE, sysFlag=SUBSCRIPTION | 16)
    assert [one.body for one in decode_records(answer.body)] == [b"x"]


async def test_unknown_groups_are_made_where_that_is_allowed() -> None:
    for allowed, code in ((True, 0), (False, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)):
        async with (
            broker_in_memory(auto_create_subscription_group=allowed) as broker,
            talking_in_memory(broker) as client,
        ):
            await client.put("T")
            answer = await client.pull("T", consumerGroup="newcomers")
            assert answer.code == code
            assert ("newcomers" in broker.parts.groups) is allowed


@pytest.mark.parametrize("group", ["", "a/b", "../x", "g" * 256, "grüppe", "a b"])
async def test_illegal_group_names_are_not_made(broker: Broker, client: Talker, group: str) -> None:
    await client.put("T")
    answer = await client.pull("T", consumerGroup=group)
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert group not in broker.parts.groups


async def test_a_group_that_may_not_consume_gets_nothing(broker: Broker, client: Talker) -> None:
    await client.put("T")
    with_group(broker, consume_enable=False)
    answer = await client.pull("T")
    assert (answer.code, answer.ext["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "2")


async def test_an_unknown_topic_is_told_and_not_made(broker: Broker, client: Talker) -> None:
    answer = await client.pull("Nowhere")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "Nowhere" in (answer.remark or "")
    assert "Nowhere" not in broker.parts.topics


async def test_a_topic_without_the_read_bit_gives_nothing(broker: Broker, client: Talker) -> None:
    with_topic(broker, perm=2)
    answer = await client.pull("T")
    assert (answer.code, answer.ext["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "3")


@pytest.mark.parametrize(
    "wrong",
    [
        {"queueId": -1},
        {"queueId": 4},
        {"queueId": 2**31 - 1},
        {"maxMsgNums": 0},
        {"maxMsgNums": -1},
    ],
    ids=str,
)
async def test_numbers_out_of_range_are_told(client: Talker, wrong: dict[str, int]) -> None:
    await client.put("T")
    answer = await client.pull("T", **wrong)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert str(next(iter(wrong.values()))) in (answer.remark or "")


async def test_only_read_queues_are_read(broker: Broker, client: Talker) -> None:
    with_topic(broker, read_queue_nums=1, write_queue_nums=4)
    assert (await client.put("T", queue_id=1)).code == 0
    assert (await client.pull("T", queueId=1)).code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize("expression", ["||", " || ", "|| ||", "x" * 16_385])
async def test_expressions_that_name_no_tag_are_told(client: Talker, expression: str) -> None:
    await client.put("T")
    answer = await client.pull("T", subscription=expression)
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert len(answer.remark or "") < 300


async def test_a_pull_without_a_subscription_of_its_own_needs_a_heartbeat(client: Talker) -> None:
    await client.put("T")
    answer = await client.pull("T", sysFlag=0)
    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert "heartbeat" in (answer.remark or "")


async def test_a_group_that_may_not_broadcast_gets_nothing(broker: Broker, client: Talker) -> None:
    await client.put("T")
    with_group(broker, consume_broadcast_enable=False)
    await subscribe(client, model="BROADCASTING")
    answer = await client.pull("T", sysFlag=0)
    assert (answer.code, answer.ext["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "4")


async def test_a_topic_that_is_forbidden_to_a_group_gives_nothing(broker: Broker, client: Talker) -> None:
    await client.put("T")
    await subscribe(client)
    broker.parts.groups.set_forbidden("test-group", "T", forbidden=True)
    answer = await client.pull("T", sysFlag=0)
    assert (answer.code, answer.ext["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "5")
    broker.parts.groups.set_forbidden("test-group", "T", forbidden=False)
    assert (await client.pull("T", sysFlag=0)).code == 0


async def test_a_topic_that_the_group_did_not_subscribe_to_is_told(client: Talker) -> None:
    await client.put("T")
    await subscribe(client, topic="Other")
    assert (await client.pull("T", sysFlag=0)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST


@pytest.mark.parametrize(
    ("version", "code"), [(99, 0), (100, 0), (101, ResponseCode.SUBSCRIPTION_NOT_LATEST)]
)
async def test_a_subscription_older_than_the_pull_s_is_told(client: Talker, version: int, code: int) -> None:
    await client.put("T")
    await subscribe(client, subVersion=100)
    assert (await client.pull("T", sysFlag=0, subVersion=version)).code == code


async def test_the_registered_subscription_filters(client: Talker) -> None:
    for tag in ("TagA", "TagB"):
        await client.put("T", tag.encode(), properties=text_of({"TAGS": tag}))
    await subscribe(client, subString="TagB", tagsSet=["TagB"], codeSet=[tag_hash("TagB")])
    answer = await client.pull("T", sysFlag=0)
    assert [one.body for one in decode_records(answer.body)] == [b"TagB"]


@pytest.mark.parametrize("kind", ["SQL92", "CLASS", "tag"])
async def test_other_filters_than_tags_are_off_by_default(client: Talker, kind: str) -> None:
    await client.put("T")
    answer = await client.pull("T", expressionType=kind, subscription="a > 1")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert kind in (answer.remark or "")
    assert "enablePropertyFilter" in (answer.remark or "")


@pytest.mark.parametrize("kind", ["TAG", "", None])
async def test_no_filter_type_means_tags(client: Talker, kind: str | None) -> None:
    await client.put("T")
    assert (await client.pull("T", expressionType=kind)).code == 0


async def test_a_reset_by_the_server_is_told_once(broker: Broker, client: Talker) -> None:
    for _ in range(5):
        await client.put("T")
    broker.parts.resets.assign("test-group", "T", 0, 2)
    logged = await client.pull("T", 5, sysFlag=SUBSCRIPTION | COMMIT, commitOffset=5)
    assert logged.code == ResponseCode.PULL_OFFSET_MOVED
    assert (next_offset(logged), logged.ext["minOffset"], logged.ext["maxOffset"]) == (2, "0", "5")
    assert logged.remark == "OFFSET_RESET"
    assert broker.parts.offsets.get("test-group", "T", 0) == 2
    assert len(decode_records((await client.pull("T", 2)).body)) == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"queueOffset": None},
        {"queueOffset": "1x"},
        {"queueOffset": 2**63},
        {"consumerGroup": None},
        {"queueId": "0.5"},
    ],
    ids=str,
)
async def test_missing_and_wrong_fields_are_told(client: Talker, fields: dict[str, Any]) -> None:
    await client.put("T")
    refused = await client.exchange(Talker.pull_request("T", **fields))
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert next(iter(fields)) in (refused.remark or "")


# --- what the queue says ------------------------------------------------------------------------------------------

STATUSES = {
    "found": (0, {}, 0, "FOUND", 3),
    "found from the middle": (2, {}, 0, "FOUND", 3),
    "found up to a number": (0, {"maxMsgNums": 2}, 0, "FOUND", 2),
    "at the end": (3, {}, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 3),
    "beyond the end": (4, {}, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 3),
    "far beyond the end": (2**62, {}, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 3),
    "before the beginning": (-1, {}, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
    "no such tag": (
        0,
        {"subscription": "TagX"},
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        "NO_MATCHED_MESSAGE",
        3,
    ),
    "an empty queue": (0, {"queueId": 1}, ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", 0),
    "an offset of an empty queue": (
        7,
        {"queueId": 1},
        ResponseCode.PULL_OFFSET_MOVED,
        "NO_MESSAGE_IN_QUEUE",
        0,
    ),
    "all numbers at their largest": (
        0,
        {"maxMsgNums": 2**31 - 1, "maxMsgBytes": 2**31 - 1, "suspendTimeoutMillis": 2**63 - 1},
        0,
        "FOUND",
        3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("codec", [0, 1, 2], ids=["json", "rocketmq", "msgpack"])
@pytest.mark.parametrize(("offset", "fields", "code", "status", "following"), STATUSES.values(), ids=STATUSES)
async def test_a_status_has_its_code_and_its_next_offset(
    client: Talker, codec: int, offset: int, fields: dict[str, Any], code: int, status: str, following: int
) -> None:
    for _ in range(3):
        await client.put("T", properties=text_of({"TAGS": "TagA"}))
    answer = await client.pull("T", offset, codec=codec, **fields)
    assert (answer.code, answer.remark, answer.codec) == (code, status, codec)
    assert next_offset(answer) == following
    assert answer.ext.keys() == FIELDS
    end = "0" if fields.get("queueId") else "3"
    assert (answer.ext["minOffset"], answer.ext["maxOffset"]) == ("0", end)
    assert answer.ext["suggestWhichBrokerId"] == "0"
    assert bool(answer.body) is (code == 0)


async def test_records_leave_as_they_are_stored(client: Talker) -> None:
    answers = [await client.put("T", b"%d" % i) for i in range(3)]
    answer = await client.pull("T")
    records = decode_records(answer.body)
    assert [one.offset_message_id for one in records] == [one.ext["msgId"] for one in answers]
    stored = b""
    for one in records:
        view = await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(one.physical_offset)})
        stored += view.body
    assert stored == answer.body


async def test_a_long_stretch_without_a_match_is_passed_step_by_step(client: Talker) -> None:
    client.send(
        *[send_request("T", b"x", opaque=i, properties=text_of({"TAGS": "TagA"})) for i in range(1000)],
        send_request("T", b"hit", opaque=1000, properties=text_of({"TAGS": "TagB"})),
    )
    await client.answers(1001)
    answers = [await client.pull("T", subscription="TagB")]
    while answers[-1].code == ResponseCode.PULL_RETRY_IMMEDIATELY:
        answers.append(await client.pull("T", next_offset(answers[-1]), subscription="TagB"))
    # 800 entries are looked at in one go, and never beyond the end of a queue file (here 1000 entries).
    assert [next_offset(answer) for answer in answers] == [800, 1000, 1001]
    assert [one.body for one in decode_records(answers[-1].body)] == [b"hit"]


async def test_one_message_is_given_however_large() -> None:
    async with (
        broker_in_memory(mapped_file_size_commit_log=4 << 20) as broker,
        talking_in_memory(broker) as client,
    ):
        for _ in range(2):
            await client.put("T", bytes(1 << 20))
        answer = await client.pull("T")
        assert [len(one.body) for one in decode_records(answer.body)] == [1 << 20]
        assert next_offset(answer) == 1


@pytest.mark.parametrize(
    ("commit_flag", "offset", "kept"),
    [(COMMIT, 1, 1), (0, 1, None), (COMMIT, 0, 0), (COMMIT, -1, None)],
)
async def test_a_pull_may_carry_the_group_s_offset(
    broker: Broker, client: Talker, commit_flag: int, offset: int, kept: int | None
) -> None:
    await client.put("T")
    await client.pull("T", sysFlag=SUBSCRIPTION | commit_flag, commitOffset=offset)
    assert broker.parts.offsets.get("test-group", "T", 0) == kept


async def test_oneway_pulls_are_not_answered(client: Talker) -> None:
    await client.put("T")
    silent = Talker.pull_request("T")
    silent.flag = FLAG_ONEWAY
    silent.opaque = 5
    client.send(silent)
    assert (await client.pull("T")).code == 0


async def test_far_readers_are_sent_to_a_slave_only_when_that_is_wanted() -> None:
    for requested, broker_id in ((False, "0"), (True, "7")):
        async with (
            broker_in_memory(slave_read_enable=requested) as broker,
            talking_in_memory(broker) as client,
        ):
            await client.put("T")
            with_group(broker, broker_id=7)
            assert (await client.pull("T")).ext["suggestWhichBrokerId"] == broker_id


# --- waiting ------------------------------------------------------------------------------------------------------


async def held(client: Talker, broker: Broker, topic: str = "T", offset: int = 0, **fields: Any) -> int:
    """Send a pull that has to wait; its opaque. Returns when the broker holds it."""
    before = len(pulls_of(broker))
    client.opaque += 1
    request = Talker.pull_request(topic, offset, **({"sysFlag": WAITING} | fields))
    request.opaque = opaque = client.opaque
    client.send(request)
    # A request that is answered after it on the same connection: by then the pull has been handled.
    await client.ask(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"})
    assert len(pulls_of(broker)) == before + 1
    return opaque


def pulls_of(broker: Broker) -> Any:
    return broker.parts.pulls.held


@pytest.mark.parametrize("codec", [0, 1, 2], ids=["json", "rocketmq", "msgpack"])
async def test_a_waiting_pull_gets_the_next_message(broker: Broker, client: Talker, codec: int) -> None:
    await client.put("T", b"first")
    waiting = await held(client, broker, offset=1, codec=codec)
    async with talking_in_memory(broker) as producer:
        await producer.put("T", b"second")
        answer = await client.answer_to(waiting)
    assert (answer.code, answer.codec, next_offset(answer)) == (0, codec, 2)
    assert [one.body for one in decode_records(answer.body)] == [b"second"]
    assert len(pulls_of(broker)) == 0


@pytest.mark.parametrize("mode", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_the_message_that_wakes_may_come_over_the_same_connection(mode: str) -> None:
    async with broker_in_memory(flush_disk_type=mode) as broker, talking_in_memory(broker) as client:
        await client.put("T")
        waiting = await held(client, broker, offset=1)
        client.send(send_request("T", b"mine", opaque=5))
        answers = await client.answers(2)
        assert answers[5].code == 0
        assert [one.body for one in decode_records(answers[waiting].body)] == [b"mine"]


async def test_a_batch_wakes_with_all_its_messages(broker: Broker, client: Talker) -> None:
    await client.put("T")
    waiting = await held(client, broker, offset=1)
    batch = send_request("T", encode_batch(BatchEntry(0, b"%d" % i, "") for i in range(5)), batch="true")
    batch.code = RequestCode.SEND_BATCH_MESSAGE  # sends of their own may be handled in several turns
    client.send(batch)
    answers = await client.answers(2)
    assert [one.body for one in decode_records(answers[waiting].body)] == [b"0", b"1", b"2", b"3", b"4"]


async def test_every_group_that_waits_is_answered(broker: Broker, client: Talker) -> None:
    await client.put("T")
    waiting = [await held(client, broker, offset=1, consumerGroup=f"group-{i}") for i in range(20)]
    client.send(send_request("T", b"all", opaque=5))
    answers = await client.answers(21)
    assert {answers[opaque].code for opaque in waiting} == {0}


def runs_in_turns(broker: Broker, monkeypatch: pytest.MonkeyPatch, count_max: int) -> list[int]:
    """How many held pulls are run again in each turn of the event loop from here on, at most so many."""
    monkeypatch.setattr(broker.parts.pulls.woken, "count_max", count_max)
    return calls_in_turns(monkeypatch, Reading, "_run_again")


async def test_very_many_that_wait_are_answered_in_several_turns(
    broker: Broker, client: Talker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message ran thousands of held pulls again in one turn of the event loop."""
    await client.put("T")
    waiting = [await held(client, broker, offset=1, consumerGroup=f"group-{i}") for i in range(20)]
    in_turns = runs_in_turns(broker, monkeypatch, 4)
    client.send(send_request("T", b"all", opaque=5))
    answers = await client.answers(21)
    assert {answers[opaque].code for opaque in waiting} == {0}
    assert (max(in_turns), sum(in_turns)) == (4, 20)


async def test_in_how_many_queues_they_wait_makes_no_difference(
    broker: Broker, client: Talker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound was one for each queue: with a message for each in one read, all their pulls were run at once."""
    await client.put("T")
    waiting = [
        await held(client, broker, offset=int(i % 4 == 0), queueId=str(i % 4), consumerGroup=f"group-{i}")
        for i in range(20)
    ]
    in_turns = runs_in_turns(broker, monkeypatch, 4)
    client.send(*[send_request("T", b"all", opaque=900_000 + i, queue_id=i) for i in range(4)])
    answers = await client.answers(24)
    assert {answers[opaque].code for opaque in waiting} == {0}
    assert (max(in_turns), sum(in_turns)) == (4, 20)


async def test_only_tags_that_are_wanted_wake(broker: Broker, client: Talker) -> None:
    await client.put("T", properties=text_of({"TAGS": "TagA"}))
    waiting = await held(client, broker, offset=1, subscription="TagB || TagC")
    for tag in ("TagA", "TagX"):
        await client.put("T", properties=text_of({"TAGS": tag}))
    await client.put("T")
    assert len(pulls_of(broker)) == 1
    client.send(send_request("T", b"hit", opaque=5, properties=text_of({"TAGS": "TagC"})))
    answers = await client.answers(2)
    assert [one.body for one in decode_records(answers[waiting].body)] == [b"hit"]
    assert next_offset(answers[waiting]) == 5


async def test_other_queues_do_not_wake(broker: Broker, client: Talker) -> None:
    await client.put("T")
    await held(client, broker, offset=1)
    await client.put("T", queue_id=1)
    await client.put("U")
    assert len(pulls_of(broker)) == 1


async def test_a_queue_without_messages_can_be_waited_for(broker: Broker, client: Talker) -> None:
    with_topic(broker, read_queue_nums=4, write_queue_nums=4)
    waiting = await held(client, broker, queueId=3)
    client.send(send_request("T", b"first", opaque=5, queue_id=3))
    answers = await client.answers(2)
    assert [one.body for one in decode_records(answers[waiting].body)] == [b"first"]


async def test_when_its_time_is_over_a_pull_is_told_that_there_is_nothing(
    broker: Broker, client: Talker, clock: Clock
) -> None:
    await client.put("T")
    waiting = await held(client, broker, offset=1, suspendTimeoutMillis=MINUTE)
    clock.now_ms += MINUTE - 1
    broker.parts.pulls.expire()
    assert len(pulls_of(broker)) == 1
    clock.now_ms += 1
    answer = await client.answer_to(waiting)
    assert (answer.code, answer.remark, next_offset(answer)) == (
        ResponseCode.PULL_NOT_FOUND,
        "OFFSET_OVERFLOW_ONE",
        1,
    )


async def test_when_its_time_is_over_a_pull_learns_how_far_nothing_matched(
    broker: Broker, client: Talker, clock: Clock
) -> None:
    await client.put("T")
    waiting = await held(client, broker, offset=1, subscription="TagB")
    await client.put("T")
    clock.now_ms += MINUTE
    answer = await client.answer_to(waiting)
    assert (answer.code, next_offset(answer)) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 2)


async def test_no_pull_waits_longer_than_two_minutes(broker: Broker, client: Talker, clock: Clock) -> None:
    await client.put("T")
    waiting = await held(client, broker, offset=1, suspendTimeoutMillis=2**63 - 1)
    clock.now_ms += HOLD_MS_MAX
    assert (await client.answer_to(waiting)).code == ResponseCode.PULL_NOT_FOUND


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"sysFlag": SUBSCRIPTION}, "it did not ask to wait"),
        ({"suspendTimeoutMillis": 0}, "no time to wait"),
        ({"suspendTimeoutMillis": -5}, "negative time to wait"),
        ({"queueOffset": 9}, "it asked for what cannot come next"),
    ],
)
async def test_not_every_pull_waits(
    broker: Broker, client: Talker, fields: dict[str, int], reason: str
) -> None:
    await client.put("T")
    answer = await client.pull("T", 1, **({"sysFlag": WAITING} | fields))
    expected = ResponseCode.PULL_OFFSET_MOVED if "queueOffset" in fields else ResponseCode.PULL_NOT_FOUND
    assert answer.code == expected, reason
    assert len(pulls_of(broker)) == 0


async def test_without_long_polling_pulls_wait_for_a_moment_only() -> None:
    clock = Clock()
    settings: dict[str, Any] = {"long_polling_enable": False, "short_polling_time_mills": 70}
    async with broker_in_memory(clock=clock, **settings) as broker, talking_in_memory(broker) as client:
        await client.put("T")
        waiting = await held(client, broker, offset=1, suspendTimeoutMillis=MINUTE)
        clock.now_ms += 70
        assert (await client.answer_to(waiting)).code == ResponseCode.PULL_NOT_FOUND


async def test_more_pulls_than_may_be_held_are_told_to_come_later() -> None:
    async with broker_in_memory(max_held_pulls=2) as broker, talking_in_memory(broker) as client:
        await client.put("T")
        for _ in range(2):
            await held(client, broker, offset=1)
        refused = await client.pull("T", 1, sysFlag=WAITING)
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert "maxHeldPulls" in (refused.remark or "")
        client.send(send_request("T", opaque=5))
        assert {answer.code for answer in (await client.answers(3)).values()} == {0}


async def test_the_offset_is_committed_once_and_not_when_woken(broker: Broker, client: Talker) -> None:
    await client.put("T")
    waiting = await held(client, broker, offset=1, sysFlag=WAITING | COMMIT, commitOffset=1)
    offsets = broker.parts.offsets
    assert offsets.get("test-group", "T", 0) == 1
    offsets.commit("test-group", "T", 0, 77)
    client.send(send_request("T", opaque=5))
    assert (await client.answers(2))[waiting].code == 0
    assert offsets.get("test-group", "T", 0) == 77


async def test_a_lost_connection_s_pulls_are_dropped(broker: Broker, client: Talker) -> None:
    await client.put("T")
    async with talking_in_memory(broker) as leaving:
        await held(leaving, broker, offset=1)
        await held(leaving, broker, offset=1)
    await until_dropped(broker, client)
    assert (await client.put("T")).code == 0


async def until_dropped(broker: Broker, client: Talker) -> None:
    """Talk until the broker has noticed that the other connection is gone: a turn of its loop each time."""
    while len(pulls_of(broker)):
        await client.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})


async def test_pulls_that_wait_when_the_broker_stops_end_with_their_connection() -> None:
    async with broker_in_memory() as broker, talking_in_memory(broker) as client:
        await client.put("T")
        await held(client, broker, offset=1)
        await broker.close()
        assert await client.is_closed_by_the_server()
