"""POP on connections in memory: what is handed out, what comes back, who waits, and what a broker refuses."""

import base64
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from aerobee_broker.broker import Broker
from aerobee_broker.metrics.metric_families import families, take_snapshot
from aerobee_broker.pop.popping import Popping
from aerobee_broker.pop.queue_reader import QueueReader
from aerobee_proto import properties
from aerobee_proto.bodies import SubscriptionGroupConfig, TopicConfig
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import Command
from aerobee_proto.records import decode_records
from broker.in_memory import broker_in_memory, popping_in_memory
from broker.support import Clock, calls_in_turns
from system.popping import Popper, extra_infos

SECOND = 1000
MINUTE = 60 * SECOND


@pytest.fixture
async def clock() -> Clock:
    return Clock()


@pytest.fixture
async def broker(clock: Clock) -> AsyncIterator[Broker]:
    async with broker_in_memory(clock=clock, pop_from_retry_probability=0) as broker:
        yield broker


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Popper]:
    async with popping_in_memory(broker) as client:
        yield client


def bodies(answer: Command) -> list[bytes]:
    return [record.body for record in decode_records(answer.body)] if answer.code == 0 else []


async def sweep(broker: Broker) -> None:
    """What the broker does ten times a second."""
    broker.parts.pop.sweep()
    await broker.parts.pop.ledger.settle()


async def settled(broker: Broker) -> None:
    await broker.parts.pop.ledger.settle()
    broker.parts.pop.ledger.table.check()


def with_topic(broker: Broker, topic: str = "T", queues: int = 1, **settings: Any) -> None:
    broker.parts.topics.update(
        [TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, **settings)]
    )


def with_group(broker: Broker, **settings: Any) -> None:
    broker.parts.groups.update([SubscriptionGroupConfig(group_name="test-group", **settings)])


# --- handing out --------------------------------------------------------------------------------------------------


async def test_a_pop_hands_out_each_message_once(broker: Broker, client: Popper) -> None:
    for body in (b"a", b"b", b"c"):
        await client.put("T", body)
    first = await client.pop("T", maxMsgNums=2)
    assert bodies(first) == [b"a", b"b"]
    assert first.ext["startOffsetInfo"] == "0 0 0"
    assert first.ext["msgOffsetInfo"] == "0 0 0,1"
    assert first.ext["restNum"] == "1"
    assert first.ext["invisibleTime"] == str(MINUTE)
    assert bodies(await client.pop("T")) == [b"c"]
    assert (await client.pop("T")).code == ResponseCode.POLLING_TIMEOUT


async def test_a_pop_of_all_queues_reads_them_all(broker: Broker, client: Popper) -> None:
    with_topic(broker, queues=4)
    for queue_id in range(4):
        await client.put("T", b"%d" % queue_id, queue_id=queue_id)
    answer = await client.pop("T", queueId=-1)
    assert sorted(bodies(answer)) == [b"0", b"1", b"2", b"3"]
    assert sorted(answer.ext["startOffsetInfo"].split(";")) == ["0 0 0", "0 1 0", "0 2 0", "0 3 0"]


async def test_a_filter_passes_over_other_tags_for_good(broker: Broker, client: Popper) -> None:
    for tag in ("A", "B", "A"):
        await client.put("T", tag.encode(), properties=f"TAGS\x01{tag}\x02")
    answer = await client.pop("T", exp="A", expType="TAG")
    assert bodies(answer) == [b"A", b"A"]
    assert answer.ext["msgOffsetInfo"] == "0 0 0,2"
    await client.ack_all(answer)
    await settled(broker)
    assert broker.parts.offsets.get("test-group", "T", 0) == 3


async def test_a_filter_by_properties(clock: Clock) -> None:
    settings: dict[str, Any] = {"enable_property_filter": True, "pop_from_retry_probability": 0}
    async with broker_in_memory(clock=clock, **settings) as broker, popping_in_memory(broker) as client:
        expected: dict[str, Any] = {"exp": "size > 5", "expType": "SQL92"}
        for size in range(4, 8):
            await client.put("T", b"%d" % size, properties=f"size\x01{size}\x02")
        answer = await client.pop("T", **expected)
        assert bodies(answer) == [b"6", b"7"]
        clock.now_ms += MINUTE
        await sweep(broker)
        assert bodies(await client.pop("T", **expected)) == [b"6", b"7"]
        refused = await client.pop("T", exp="size >", expType="SQL92")
        assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        waiting = client.send_pop("T", pollTime=10_000, bornTime=clock(), **expected)
        await client.ask(RequestCode.POLLING_INFO, client.fields("T"))
        async with popping_in_memory(broker) as other:
            for size in (1, 9):
                await other.put("T", b"%d" % size, properties=f"size\x01{size}\x02")
        assert bodies(await client.answer_to(waiting)) == [b"9"]


async def test_a_long_row_of_filtered_messages_is_passed_in_steps(broker: Broker, client: Popper) -> None:
    """One pop looks at so many entries; one that waits goes on from there by itself."""
    with_topic(broker)
    writer = broker.parts.writer
    for _ in range(3):
        await writer.put([writer.new("T", 0, b"x", {"TAGS": "other"}) for _ in range(5000)])
    await client.put("T", b"y", properties="TAGS\x01mine\x02")
    answer = await client.pop("T", exp="mine", expType="TAG", pollTime=30_000, bornTime=broker.parts.clock())
    assert bodies(answer) == [b"y"]


async def test_two_groups_get_the_same_messages(client: Popper) -> None:
    await client.put("T", b"a")
    assert bodies(await client.pop("T")) == [b"a"]
    assert bodies(await client.pop("T", consumerGroup="other")) == [b"a"]


async def test_a_new_group_starts_where_it_asked_to() -> None:
    async with (
        broker_in_memory(init_pop_offset_by_check_msg_in_mem=False) as broker,
        popping_in_memory(broker) as client,
    ):
        for body in (b"a", b"b", b"c"):
            await client.put("T", body)
        assert bodies(await client.pop("T", initMode=1)) == [b"c"]
        assert bodies(await client.pop("T", initMode=0, consumerGroup="other")) == [b"a", b"b", b"c"]


async def test_a_new_group_of_a_young_queue_starts_at_its_first_message(client: Popper) -> None:
    await client.put("T", b"a")
    await client.put("T", b"b")
    assert bodies(await client.pop("T", initMode=1)) == [b"a", b"b"]


async def test_peeking_changes_nothing(client: Popper) -> None:
    await client.put("T", b"a")
    for _ in range(2):
        peeked = await client.ask(RequestCode.PEEK_MESSAGE, client.fields("T", maxMsgNums=32))
        assert (bodies(peeked), peeked.ext["restNum"]) == ([b"a"], "0")
    assert bodies(await client.pop("T")) == [b"a"]
    peeked = await client.ask(RequestCode.PEEK_MESSAGE, client.fields("T", maxMsgNums=32))
    assert peeked.code == ResponseCode.PULL_NOT_FOUND


# --- acknowledging ------------------------------------------------------------------------------------------------


async def test_what_is_acknowledged_does_not_come_back(broker: Broker, clock: Clock, client: Popper) -> None:
    await client.put("T", b"a")
    answer = await client.pop("T")
    assert (await client.ack_all(answer)) == [0]
    clock.now_ms += 2 * MINUTE
    await sweep(broker)
    assert (await client.pop("T")).code == ResponseCode.POLLING_TIMEOUT
    assert len(broker.parts.pop.ledger.table) == 0


async def test_what_is_not_acknowledged_comes_back_under_its_own_topic(
    broker: Broker, clock: Clock, client: Popper
) -> None:
    for body in (b"a", b"b", b"c"):
        await client.put("T", body, properties="KEYS\x01k\x02TAGS\x01A\x02")
    answer = await client.pop("T", exp="A", expType="TAG")
    popped_ms = answer.ext["popTime"]
    infos = extra_infos(answer, "T")
    assert (await client.ack("T", infos[1])).code == 0
    clock.now_ms += MINUTE - 1
    await sweep(broker)
    assert (await client.pop("T")).code == ResponseCode.POLLING_TIMEOUT
    clock.now_ms += 1
    await sweep(broker)
    again = await client.pop("T", exp="A", expType="TAG")
    records = decode_records(again.body)
    assert [(r.topic, r.body, r.reconsume_times) for r in records] == [("T", b"a", 1), ("T", b"c", 1)]
    assert {r.property_map[properties.FIRST_POP_TIME] for r in records} == {popped_ms}
    assert [r.property_map[properties.POP_CK].split()[4:] for r in records] == [
        ["1", "test-a", "0", "0"],
        ["1", "test-a", "0", "1"],
    ]
    assert again.ext["startOffsetInfo"] == "1 0 0"
    assert (await client.ack_all(again)) == [0, 0]
    clock.now_ms += 2 * MINUTE
    await sweep(broker)
    assert (await client.pop("T")).code == ResponseCode.POLLING_TIMEOUT


async def test_a_message_that_comes_back_too_often_is_a_dead_letter(
    broker: Broker, clock: Clock, client: Popper
) -> None:
    with_group(broker, retry_max_times=2)
    await client.put("T", b"a")
    seen = []
    for _ in range(4):
        answer = await client.pop("T")
        seen += [record.reconsume_times for record in decode_records(answer.body)] if answer.code == 0 else []
        clock.now_ms += MINUTE
        await sweep(broker)
    assert seen == [0, 1, 2]
    (dead,) = await client.records("%DLQ%test-group", consumerGroup="other")
    assert (dead.body, dead.reconsume_times) == (b"a", 3)
    assert dead.property_map[properties.RETRY_TOPIC] == "T"
    assert (broker.parts.pop.reviver.revived, broker.parts.pop.reviver.dead) == (2, 1)


async def test_batches_acknowledge_by_bits(broker: Broker, clock: Clock, client: Popper) -> None:
    for i in range(10):
        await client.put("T", b"%d" % i)
    answer = await client.pop("T")
    assert (await client.ack_bits("T", answer, 0b11_1111_0110)).code == 0
    clock.now_ms += MINUTE
    await sweep(broker)
    assert bodies(await client.pop("T")) == [b"0", b"3"]


async def test_a_batch_with_something_wrong_counts_as_far_as_it_is_right(
    broker: Broker, clock: Clock, client: Popper
) -> None:
    await client.put("T", b"a")
    await client.put("T", b"b")
    answer = await client.pop("T")
    bits = base64.b64encode(b"\x01").decode()
    ack = {"c": "test-group", "t": "T", "q": 0, "so": 0, "r": "0", "it": MINUTE, "b": bits}
    right = {**ack, "pt": int(answer.ext["popTime"]), "rq": int(answer.ext["reviveQid"])}
    wrong = {**ack, "pt": 1, "rq": 77}
    body = json.dumps({"acks": [right, wrong], "brokerName": "test-a"}).encode()
    refused = await client.ask(RequestCode.BATCH_ACK_MESSAGE, body=body)
    assert refused.code == ResponseCode.INVALID_PARAMETER
    clock.now_ms += MINUTE
    await sweep(broker)
    assert bodies(await client.pop("T")) == [b"b"]


async def test_late_acknowledgements_are_thanked_for_and_change_nothing(
    broker: Broker, clock: Clock, client: Popper
) -> None:
    await client.put("T", b"a")
    answer = await client.pop("T")
    clock.now_ms += MINUTE
    await sweep(broker)
    assert (await client.ack_all(answer)) == [0]
    assert bodies(await client.pop("T")) == [b"a"]


async def test_acknowledgements_in_one_read_share_a_record(broker: Broker, client: Popper) -> None:
    for i in range(8):
        await client.put("T", b"%d" % i)
    answer = await client.pop("T")
    revive_queue = int(answer.ext["reviveQid"])
    before = broker.parts.store.reading.next_offset("rmq_sys_REVIVE_LOG_TestCluster", revive_queue)
    assert (await client.ack_all(answer)) == [0] * 8
    assert (
        broker.parts.store.reading.next_offset("rmq_sys_REVIVE_LOG_TestCluster", revive_queue) == before + 1
    )


async def test_more_time_counts_from_the_request(broker: Broker, clock: Clock, client: Popper) -> None:
    await client.put("T", b"a")
    (info,) = extra_infos(await client.pop("T"), "T")
    clock.now_ms += MINUTE - 1
    answer = await client.change("T", info, 5 * MINUTE)
    assert (answer.code, answer.ext["invisibleTime"], answer.ext["popTime"]) == (
        0,
        str(5 * MINUTE),
        str(clock.now_ms),
    )
    clock.now_ms += 5 * MINUTE - 1
    await sweep(broker)
    assert (await client.pop("T")).code == ResponseCode.POLLING_TIMEOUT
    clock.now_ms += 1
    await sweep(broker)
    assert bodies(await client.pop("T")) == [b"a"]


async def test_a_changed_message_is_acknowledged_by_its_new_name(
    broker: Broker, clock: Clock, client: Popper
) -> None:
    await client.put("T", b"a")
    (info,) = extra_infos(await client.pop("T"), "T")
    changed = (await client.change("T", info, 0)).ext
    fields = info.split()
    renewed = [fields[7], changed["popTime"], changed["invisibleTime"], changed["reviveQid"], *fields[4:]]
    assert (await client.ack("T", " ".join(renewed))).code == 0
    await sweep(broker)
    assert (await client.pop("T")).code == ResponseCode.POLLING_TIMEOUT
    assert (await client.change("T", info, MINUTE)).code == ResponseCode.NO_MESSAGE


# --- waiting ------------------------------------------------------------------------------------------------------


async def test_a_pop_waits_for_a_message(broker: Broker, client: Popper) -> None:
    with_topic(broker)
    waiting = client.send_pop("T", pollTime=10_000, bornTime=broker.parts.clock())
    async with popping_in_memory(broker) as other:
        info = await other.ask(RequestCode.POLLING_INFO, other.fields("T"))
        assert info.ext["pollingNum"] == "1"
        await other.put("T", b"x")
    assert bodies(await client.answer_to(waiting)) == [b"x"]


@pytest.mark.parametrize("queue_id", [0, -1])
async def test_one_of_those_that_wait_gets_the_message(broker: Broker, client: Popper, queue_id: int) -> None:
    with_topic(broker)
    now = broker.parts.clock()
    first = client.send_pop("T", pollTime=10_000, bornTime=now, queueId=queue_id)
    second = client.send_pop("T", pollTime=10_000, bornTime=now, queueId=queue_id)
    third = client.send_pop("T", pollTime=10_000, bornTime=now, queueId=queue_id, consumerGroup="other")
    await client.ask(RequestCode.POLLING_INFO, client.fields("T"))
    async with popping_in_memory(broker) as other:
        await other.put("T", b"x")
        got = await client.answers(2)
        assert {opaque: bodies(answer) for opaque, answer in got.items()} == {first: [b"x"], third: [b"x"]}
        await other.put("T", b"y")
    assert bodies(await client.answer_to(second)) == [b"y"]


async def test_a_pop_waits_for_what_comes_back(broker: Broker, clock: Clock, client: Popper) -> None:
    await client.put("T", b"x")
    assert bodies(await client.pop("T", invisibleTime=5 * SECOND)) == [b"x"]
    waiting = client.send_pop("T", pollTime=30_000, bornTime=clock())
    await client.ask(RequestCode.POLLING_INFO, client.fields("T"))
    clock.now_ms += 5 * SECOND
    await sweep(broker)
    assert bodies(await client.answer_to(waiting)) == [b"x"]


async def test_waiting_ends_by_time(broker: Broker, clock: Clock, client: Popper) -> None:
    with_topic(broker)
    waiting = client.send_pop("T", pollTime=10_000, bornTime=clock())
    notice = client.send_request(
        RequestCode.NOTIFICATION, client.fields("T", pollTime=10_000, bornTime=clock())
    )
    await client.ask(RequestCode.POLLING_INFO, client.fields("T"))
    clock.now_ms += 10_000
    await sweep(broker)
    got = await client.answers(2)
    assert got[waiting].code == ResponseCode.POLLING_TIMEOUT
    assert {"popTime", "invisibleTime", "reviveQid", "restNum"} <= set(got[waiting].ext)
    assert got[notice].ext == {"hasMsg": "false", "pollingFull": "false"}


async def test_waiting_ends_with_the_connection(broker: Broker, clock: Clock) -> None:
    with_topic(broker)
    async with popping_in_memory(broker) as client:
        client.send_pop("T", pollTime=10_000, bornTime=clock())
        await client.ask(RequestCode.POLLING_INFO, client.fields("T"))
        assert len(broker.parts.pop.pops.held) == 1
        client.writer.close()
        assert await client.is_closed_by_the_server()
    async with popping_in_memory(broker) as other:
        await other.put("T", b"x")
        assert bodies(await other.pop("T")) == [b"x"]
    assert len(broker.parts.pop.pops.held) == 0


async def test_a_notification_tells_of_messages_and_takes_none(
    broker: Broker, clock: Clock, client: Popper
) -> None:
    with_topic(broker)
    fields = client.fields("T", pollTime=10_000, bornTime=clock())
    notice = client.send_request(RequestCode.NOTIFICATION, fields)
    await client.ask(RequestCode.POLLING_INFO, client.fields("T"))
    async with popping_in_memory(broker) as other:
        await other.put("T", b"x")
    assert (await client.answer_to(notice)).ext["hasMsg"] == "true"
    assert (await client.ask(RequestCode.NOTIFICATION, fields)).ext["hasMsg"] == "true"
    assert bodies(await client.pop("T")) == [b"x"]


async def test_no_more_wait_than_there_is_room_for() -> None:
    async with broker_in_memory(pop_polling_size=1) as broker, popping_in_memory(broker) as client:
        with_topic(broker)
        client.send_pop("T", pollTime=10_000)
        assert (await client.pop("T", pollTime=10_000)).code == ResponseCode.POLLING_FULL
        notice = await client.ask(RequestCode.NOTIFICATION, client.fields("T", pollTime=10_000))
        assert notice.ext == {"hasMsg": "false", "pollingFull": "true"}


# --- in order -----------------------------------------------------------------------------------------------------


async def test_in_order_a_queue_is_blocked_until_all_is_acknowledged(broker: Broker, client: Popper) -> None:
    for i in range(3):
        await client.put("T", b"%d" % i)
    answer = await client.pop("T", order="true", maxMsgNums=2)
    assert (bodies(answer), answer.ext["reviveQid"]) == ([b"0", b"1"], "999")
    assert answer.ext["orderCountInfo"] == "0 0 0"
    first, second = extra_infos(answer, "T")
    waiting = client.send_pop("T", order="true", pollTime=10_000, bornTime=broker.parts.clock())
    assert (await client.ack("T", first)).code == 0
    assert broker.parts.offsets.get("test-group", "T", 0) == 1
    assert (await client.ask(RequestCode.POLLING_INFO, client.fields("T"))).ext["pollingNum"] == "1"
    async with popping_in_memory(broker) as other:
        assert (await other.ack("T", second)).code == 0
    assert bodies(await client.answer_to(waiting)) == [b"2"]


async def test_in_order_what_is_not_acknowledged_comes_again_in_its_place(
    broker: Broker, clock: Clock, client: Popper
) -> None:
    for i in range(3):
        await client.put("T", b"%d" % i)
    first = await client.pop("T", order="true", maxMsgNums=2)
    assert (await client.ack("T", extra_infos(first, "T")[0])).code == 0
    waiting = client.send_pop("T", order="true", pollTime=100_000, bornTime=clock())
    await client.ask(RequestCode.POLLING_INFO, client.fields("T"))
    clock.now_ms += MINUTE
    await sweep(broker)
    again = await client.answer_to(waiting)
    assert bodies(again) == [b"1", b"2"]
    assert again.ext["orderCountInfo"] == "0 qo0%1 1;0 0 0"


async def test_in_order_the_same_attempt_gets_the_same_messages(client: Popper) -> None:
    for i in range(2):
        await client.put("T", b"%d" % i)
    first = await client.pop("T", order="true", attemptId="one")
    same = await client.pop("T", order="true", attemptId="one")
    assert bodies(first) == bodies(same) == [b"0", b"1"]
    assert (await client.pop("T", order="true", attemptId="two")).code == ResponseCode.POLLING_TIMEOUT


async def test_in_order_more_time_blocks_longer(broker: Broker, clock: Clock, client: Popper) -> None:
    await client.put("T", b"0")
    answer = await client.pop("T", order="true")
    (info,) = extra_infos(answer, "T")
    clock.now_ms += MINUTE - 1
    changed = await client.change("T", info, MINUTE)
    assert changed.ext == {
        "popTime": answer.ext["popTime"],
        "invisibleTime": str(2 * MINUTE - 1),
        "reviveQid": "999",
    }
    clock.now_ms += MINUTE - 1
    assert (await client.pop("T", order="true")).code == ResponseCode.POLLING_TIMEOUT
    clock.now_ms += 1
    assert bodies(await client.pop("T", order="true")) == [b"0"]


async def test_in_order_only_the_last_pop_can_be_acknowledged(client: Popper) -> None:
    await client.put("T", b"0")
    await client.put("T", b"1")
    (info,) = extra_infos(await client.pop("T", order="true", maxMsgNums=1), "T")
    other = info.rsplit(" ", 1)[0] + " 1"
    assert (await client.ack("T", other)).code == ResponseCode.MESSAGE_ILLEGAL
    batch = await client.pop("T", order="true", maxMsgNums=1)
    assert batch.code == ResponseCode.POLLING_TIMEOUT


async def test_an_init_mode_that_is_none_begins_as_from_the_end(clock: Clock) -> None:
    """-1 began at the first message; in the original everything but 0 is the last one (or all of a young queue)."""
    for young, expected in ((True, [b"0", b"1", b"2"]), (False, [b"2"])):
        settings: dict[str, Any] = {"init_pop_offset_by_check_msg_in_mem": young}
        running = broker_in_memory(clock=clock, **settings)
        async with running as broker, popping_in_memory(broker) as client:
            for i in range(3):
                await client.put("T", b"%d" % i)
            assert bodies(await client.pop("T", initMode=-1)) == expected
            assert bodies(await client.pop("T", initMode=0, consumerGroup="other")) == [b"0", b"1", b"2"]


# --- resets -------------------------------------------------------------------------------------------------------


async def test_a_group_that_is_sent_back_pops_from_there(broker: Broker, client: Popper) -> None:
    for i in range(3):
        await client.put("T", b"%d" % i)
    await client.ack_all(await client.pop("T"))
    broker.parts.resets.assign("test-group", "T", 0, 1)
    assert bodies(await client.pop("T")) == [b"1", b"2"]


# --- looking in ---------------------------------------------------------------------------------------------------


async def test_what_is_outstanding_is_told(broker: Broker, clock: Clock, client: Popper) -> None:
    for i in range(3):
        await client.put("T", b"%d" % i)
    answer = await client.pop("T")
    client.send_pop("T", pollTime=10_000, bornTime=clock())
    await client.ack("T", extra_infos(answer, "T")[0])
    await settled(broker)
    facts = broker.parts.figures()
    logged = {name: facts[name] for name in facts if "pop" in name}
    assert logged == {
        "held_pops": 1,
        "pop_check_points": 1,
        "pop_unacknowledged": 2,
        "pop_acknowledged": 1,
        "pop_revived": 0,
        "pop_dead_letters": 0,
    }
    found = {
        family.name: family.rows
        for family in families(take_snapshot(replace(broker.parts.observed, facts=lambda: facts)))
    }
    assert found["aerobee_broker_pop_unacknowledged"] == [((), 2.0)]
    in_flight = {labels[:2]: value for labels, value in found["rocketmq_consumer_inflight_messages"]}
    assert in_flight[("T", "test-group")] == 2


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"maxMsgNums": 33}, ResponseCode.INVALID_PARAMETER),
        ({"maxMsgNums": 0}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": 1}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"consumerGroup": "no/group"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"exp": " || ", "expType": "TAG"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"exp": "a > 1", "expType": "SQL92"}, ResponseCode.SYSTEM_ERROR),
        ({"invisibleTime": -1}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": 4 * 24 * 60 * MINUTE}, ResponseCode.INVALID_PARAMETER),
        ({"consumerGroup": "g" * 250}, ResponseCode.INVALID_PARAMETER),
        ({"bornTime": 1, "pollTime": 1}, ResponseCode.POLLING_TIMEOUT),
    ],
)
async def test_bad_pops_are_refused(
    broker: Broker, client: Popper, fields: dict[str, Any], code: int
) -> None:
    with_topic(broker)
    assert (await client.pop("T", **fields)).code == code


async def test_groups_and_topics_that_may_not_be_read_are_refused(broker: Broker, client: Popper) -> None:
    with_topic(broker, perm=2)
    assert (await client.pop("T")).code == ResponseCode.NO_PERMISSION
    with_topic(broker, "U")
    with_group(broker, consume_enable=False)
    assert (await client.pop("U")).code == ResponseCode.NO_PERMISSION


async def test_bad_acknowledgements_are_refused(broker: Broker, client: Popper) -> None:
    await client.put("T", b"a")
    (info,) = extra_infos(await client.pop("T"), "T")
    assert (await client.ack("T", "not a name", offset=0)).code == ResponseCode.INVALID_PARAMETER
    assert (await client.ack("T", info, queueId=7)).code == ResponseCode.MESSAGE_ILLEGAL
    assert (await client.ack("T", info, offset=9)).code == ResponseCode.NO_MESSAGE
    assert (await client.ack("U", info)).code == ResponseCode.TOPIC_NOT_EXIST
    far = info.split()
    far[3], far[0] = "77", "5"
    assert (await client.ack("T", " ".join(far))).code == ResponseCode.INVALID_PARAMETER
    for body in (b"", b'{"acks":[]}', json.dumps({"acks": [{"b": "*"}] * 5000}).encode()):
        refused = await client.ask(RequestCode.BATCH_ACK_MESSAGE, body=body)
        assert refused.code in (ResponseCode.NO_MESSAGE, ResponseCode.INVALID_PARAMETER)
    assert (await client.change("T", info, -1)).code == ResponseCode.INVALID_PARAMETER


async def test_a_group_may_have_only_so_many_messages_of_a_queue() -> None:
    settings: dict[str, Any] = {"enable_pop_message_threshold": True, "pop_inflight_message_threshold": 1}
    async with broker_in_memory(**settings) as broker, popping_in_memory(broker) as client:
        for i in range(3):
            await client.put("T", b"%d" % i)
        answer = await client.pop("T", maxMsgNums=2)
        assert len(bodies(answer)) == 2
        full = await client.pop("T")
        assert (full.code, full.ext["restNum"]) == (ResponseCode.POLLING_TIMEOUT, "1")
        await client.ack_all(answer)
        assert bodies(await client.pop("T")) == [b"2"]


async def test_outstanding_check_points_are_bounded() -> None:
    async with broker_in_memory(pop_ck_max_buffer_size=1) as broker, popping_in_memory(broker) as client:
        await client.put("T", b"a")
        await client.put("T", b"b")
        answer = await client.pop("T", maxMsgNums=1)
        assert (await client.pop("T")).code == ResponseCode.POLLING_FULL
        await client.ack_all(answer)
        assert bodies(await client.pop("T")) == [b"b"]


async def test_the_newer_names_of_retry_topics(clock: Clock) -> None:
    settings: dict[str, Any] = {"enable_retry_topic_v2": True, "pop_from_retry_probability": 100}
    async with broker_in_memory(clock=clock, **settings) as broker, popping_in_memory(broker) as client:
        await client.put("T", b"a")
        await client.pop("T")
        clock.now_ms += MINUTE
        await sweep(broker)
        assert "%RETRY%test-group+T" in broker.parts.topics
        again = await client.pop("T")
        (record,) = decode_records(again.body)
        assert (record.topic, record.property_map[properties.POP_CK].split()[4]) == ("T", "2")
        assert (await client.ack_all(again)) == [0]


async def groups_that_wait(broker: Broker, client: Popper, clock: Clock, count: int) -> list[int]:
    with_topic(broker)
    opaques = [
        client.send_pop("T", pollTime=10_000, bornTime=clock(), consumerGroup=f"group-{number}")
        for number in range(count)
    ]
    await client.ask(RequestCode.POLLING_INFO, client.fields("T"))
    return opaques


async def test_very_many_groups_that_wait_are_served_in_several_turns(
    broker: Broker, client: Popper, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message was handed to every group that waits for it in one turn of the event loop."""
    monkeypatch.setattr(broker.parts.pop.pops.serving, "count_max", 4)
    waiting = await groups_that_wait(broker, client, clock, 20)
    counts = calls_in_turns(monkeypatch, Popping, "_serve")
    async with popping_in_memory(broker) as other:
        await other.put("T", b"for all")
    answers = await client.answers(20)
    assert [bodies(answers[opaque]) for opaque in waiting] == [[b"for all"]] * 20
    assert max(counts) == 4


async def test_very_many_whose_time_is_over_are_answered_in_several_turns(
    broker: Broker, client: Popper, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker.parts.pop.pops.ending, "count_max", 4)
    waiting = await groups_that_wait(broker, client, clock, 20)
    counts = calls_in_turns(monkeypatch, QueueReader, "pop")
    clock.now_ms += 10_001
    await sweep(broker)
    answers = await client.answers(20)
    assert {answers[opaque].code for opaque in waiting} == {ResponseCode.POLLING_TIMEOUT}
    assert max(counts) == 4
