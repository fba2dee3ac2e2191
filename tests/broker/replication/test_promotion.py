"""A slave that becomes the master: what waited at the old one is there, and is done once.

Its tables are some seconds older than its log then: `behind` leaves them as they are while the log goes on.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.broker import Broker
from aerobee_proto.batch import BatchEntry
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import Command
from aerobee_proto.records import decode_records
from broker.replication.pairs import (
    SMALL,
    caught_up,
    elected,
    eventually,
    life,
    meet,
    pair,
    running_slave,
    slave_side,
)
from broker.support import START_MS, Clock
from system.popping import extra_infos, popping
from system.running import Talker, running_broker, talking, text_of
from system.transacting import COMMIT, ROLLBACK, end, join_group, next_question, send_half

LEVEL_1 = text_of({"DELAY": "1"})
MINUTE = 60_000


@pytest.fixture
def clock() -> Clock:
    return Clock(START_MS)


async def behind(slave: Broker, topic: str = "T") -> None:
    """From now on its tables stay as they are; they have this topic."""
    await eventually(lambda: topic in slave.parts.topics)
    await slave_side(slave).metadata.close()


def wake(broker: Broker) -> None:
    """The clock was turned: let what waits look at it."""
    broker.parts.wakeups.level_came.set()
    broker.parts.wakeups.timer_came.set()


def bodies_of(answer: Command) -> list[bytes]:
    return [record.body for record in decode_records(answer.body)] if answer.code == 0 else []


async def test_delayed_and_half_messages_of_the_old_master_are_delivered_once(tmp_path: Path) -> None:
    """Levels wait for their time, timer messages for theirs, halves for their end; what the old master has delivered
    already is not delivered again."""
    levels: dict[str, Any] = {"message_delay_level": "1s 2s"}
    async with pair(tmp_path, **levels) as (master, slave), talking(master) as client:
        assert (await client.put("T", b"plain", queue_id=0)).code == 0
        assert (await client.put("T", b"early", queue_id=0, properties=LEVEL_1)).code == 0
        await eventually(lambda: master.parts.store.reading.max_offset("T", 0) == 2)
        assert (await client.put("T", b"level", queue_id=0, properties=text_of({"DELAY": "2"}))).code == 0
        timer = text_of({"TIMER_DELAY_MS": "1500"})
        assert (await client.put("T", b"timer", queue_id=0, properties=timer)).code == 0
        half = await send_half(client, "T", b"half", key="K")
        await caught_up(master, slave)
        await eventually(lambda: "T" in slave.parts.topics)
    async with running_broker(tmp_path / "slave", **levels) as promoted, talking(promoted) as client:
        await end(client, half, COMMIT)
        await eventually(lambda: promoted.parts.store.reading.max_offset("T", 0) >= 5)
        bodies = [record.body for record in await client.records("T", queueId=0)]
        assert sorted(bodies) == sorted([b"plain", b"early", b"level", b"timer", b"half"])
        assert (await client.put("T", b"new", queue_id=0)).code == 0


async def test_groups_go_on_where_they_were(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, slave), talking(master) as client:
        for number in range(4):
            await client.put("T", b"%d" % number, queue_id=0)
        await client.pull("T", 0, queueId=0)
        commit = {"consumerGroup": "test-group", "topic": "T", "queueId": "0", "commitOffset": "3"}
        assert (await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0
        await eventually(lambda: slave.parts.offsets.get("test-group", "T", 0) == 3)
        await caught_up(master, slave)
    async with running_broker(tmp_path / "slave") as promoted, talking(promoted) as client:
        answer = await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, commit)
        assert (answer.code, answer.ext["offset"]) == (ResponseCode.SUCCESS, "3")
        (record,) = await client.records("T", 3, queueId=0)
        assert record.body == b"3"


async def test_what_the_old_master_delivered_after_its_tables_were_read_is_not_delivered_again(
    tmp_path: Path, clock: Clock
) -> None:
    """Levels and timers, those too that were written anew on their way, and messages that were recalled."""
    settings: dict[str, Any] = {"clock": clock, "message_delay_level": "1s 90s", "timer_roll_window_slot": 60}
    delays = [{"DELAY": "1"}, {"DELAY": "2"}, {"TIMER_DELAY_MS": "2500"}, {"TIMER_DELAY_SEC": "80"}]
    delivered = [b"0", b"2"]
    async with pair(tmp_path, **settings) as (master, slave), talking(master) as client:
        reading = master.parts.store.reading
        for number, delay in enumerate(delays):
            assert (await client.put("T", b"%d" % number, queue_id=0, properties=text_of(delay))).code == 0
        await behind(slave)
        clock.now_ms += 5_000
        wake(master)
        await eventually(lambda: reading.max_offset("T", 0) == len(delivered))
        clock.now_ms += 60_000
        wake(master)
        await eventually(lambda: reading.max_offset("rmq_sys_wheel_timer", 0) == 3)  # written anew once
        await caught_up(master, slave)
    async with running_broker(tmp_path / "slave", **settings) as promoted, talking(promoted) as client:
        reading = promoted.parts.store.reading
        wake(promoted)
        timers = promoted.parts.timers
        assert timers is not None
        await eventually(lambda: timers.offset_behind == 0)
        assert [record.body for record in await client.records("T", queueId=0)] == delivered
        clock.now_ms += 60_000
        wake(promoted)
        await eventually(lambda: reading.max_offset("T", 0) >= 4)
        await eventually(lambda: timers.waiting_count == 0)
        bodies = [record.body for record in await client.records("T", queueId=0)]
        assert (bodies[:2], sorted(bodies[2:])) == (delivered, [b"1", b"3"])


async def test_timer_messages_are_read_from_the_first_that_waits(tmp_path: Path, clock: Clock) -> None:
    """Not all of the topic, as far as the log is the one of which the master has said so."""
    settings: dict[str, Any] = {"clock": clock, **SMALL}

    async def promoted_units() -> int:
        async with running_broker(tmp_path / "slave", **settings) as promoted, talking(promoted) as client:
            timers = promoted.parts.timers
            assert timers is not None
            await eventually(lambda: timers.offset_behind == 0)
            assert [record.body for record in await client.records("T", queueId=0)] == [b"0", b"1", b"2"]
            return timers.files.log_end // 52

    async with pair(tmp_path, **settings) as (master, slave), talking(master) as client:
        for number, delay_ms in enumerate((2_000, 3_000, 4_000, 500_000)):
            delay = text_of({"TIMER_DELAY_MS": str(delay_ms)})
            assert (await client.put("T", b"%d" % number, queue_id=0, properties=delay)).code == 0
        clock.now_ms += 60_000
        wake(master)
        timers = master.parts.timers
        assert timers is not None
        await eventually(lambda: timers.waiting_count == 1)
        fourth = timers.done_below()
        await eventually(lambda: slave.parts.waiting_mark.to_json()["physicalOffset"] == fourth)
        await caught_up(master, slave)
    assert await promoted_units() == 1


async def test_what_was_popped_at_the_old_master_stays_invisible_and_comes_back(
    tmp_path: Path, clock: Clock
) -> None:
    """The offsets of a slave are older than the check-points in its log: it handed out again what others had."""
    async with pair(tmp_path, clock=clock) as (master, slave), popping(master) as client:
        for number in range(8):
            await client.put("T", b"%d" % number, queue_id=0)
        assert bodies_of(await client.pop("T", maxMsgNums=1)) == [b"0"]
        await eventually(lambda: slave.parts.offsets.get("test-group", "T", 0) == 1)
        await behind(slave)
        popped = await client.pop("T", maxMsgNums=4)
        names = extra_infos(popped, "T")
        assert bodies_of(popped) == [b"1", b"2", b"3", b"4"]
        assert (await client.ack("T", names[1])).code == 0
        await caught_up(master, slave)
    async with running_broker(tmp_path / "slave", clock=clock) as promoted, popping(promoted) as client:
        assert (await client.ack("T", names[3])).code == 0  # popped there, acknowledged here
        assert bodies_of(await client.pop("T", maxMsgNums=8)) == [b"5", b"6", b"7"]
        clock.now_ms += MINUTE
        retry = "%RETRY%test-group_T"
        await eventually(lambda: promoted.parts.store.reading.max_offset(retry, 0) == 6)
        again = await client.records(retry, queueId=0)
        assert sorted(record.body for record in again) == [b"0", b"1", b"3", b"5", b"6", b"7"]


async def test_a_group_that_pops_in_order_goes_on_in_order(tmp_path: Path, clock: Clock) -> None:
    async with pair(tmp_path, clock=clock) as (master, slave), popping(master) as client:
        for number in range(4):
            await client.put("T", b"%d" % number, queue_id=0)
        await behind(slave)
        names = extra_infos(await client.pop("T", maxMsgNums=3, order="true"), "T")
        assert (await client.ack("T", names[0])).code == 0
        await caught_up(master, slave)
    async with running_broker(tmp_path / "slave", clock=clock) as promoted, popping(promoted) as client:
        assert (await client.ack("T", names[2])).code == 0  # what came before it is not done
        assert bodies_of(await client.pop("T", order="true")) == [b"1", b"2", b"3"]


async def test_transactions_are_asked_about_and_ended_once(tmp_path: Path, clock: Clock) -> None:
    """Also those of which the old master did not write down any more that they had ended."""
    settings: dict[str, Any] = {
        "clock": clock,
        "transaction_time_out": 6000,
        "transaction_check_interval": 50,
    }
    async with pair(tmp_path, **settings) as (master, slave), talking(master) as client:
        halves = [await send_half(client, "T", b"half %d" % number, key=f"K{number}") for number in range(3)]
        await end(client, halves[0], COMMIT)
        await caught_up(master, slave)
        await behind(slave)
        await slave.close()  # before the master's orderly end writes the marks
    async with running_broker(tmp_path / "slave", **settings) as promoted, talking(promoted) as client:
        await join_group(client)
        clock.now_ms += MINUTE
        for _ in range(2):  # what the old master had stored is found, and not asked about
            half, _, record = await next_question(client)
            await end(client, half, ROLLBACK if record.body == b"half 2" else COMMIT, check=True)
        assert promoted.parts.transactions.open_count == 0
        assert sorted(record.body for record in await client.records("T", queueId=0)) == [
            b"half 0",
            b"half 1",
        ]


async def test_a_transaction_of_a_topic_of_the_last_moment_is_committed(tmp_path: Path) -> None:
    """Nothing of the topic was stored but the half message, so nobody knew of it."""
    async with pair(tmp_path) as (master, slave), talking(master) as client:
        await client.put("T", queue_id=0)
        await behind(slave)
        half = await send_half(client, "Late", b"half", key="K", queue_id="2")
        await caught_up(master, slave)
    async with running_broker(tmp_path / "slave") as promoted, talking(promoted) as client:
        assert "Late" not in promoted.parts.topics
        assert (await end(client, half, COMMIT)).code == 0
        assert [record.body for record in await client.records("Late", queueId=2)] == [b"half"]


async def lock(client: Talker, client_id: str) -> list[object]:
    """Queues that the client has now."""
    queue = {"brokerName": "test-a", "topic": "T", "queueId": 0}
    body = {"consumerGroup": "test-group", "clientId": client_id, "mqSet": [queue]}
    answer = await client.ask(RequestCode.LOCK_BATCH_MQ, body=json.dumps(body).encode())
    assert answer.code == 0
    return list(json.loads(answer.body)["lockOKMQSet"])


async def test_queues_are_locked_anew_at_the_new_master(tmp_path: Path) -> None:
    """A lock is of its master: at the new one whoever comes first has the queue, and nobody beside it."""
    async with pair(tmp_path) as (master, slave), talking(master) as client:
        await client.put("T", queue_id=0)
        assert await lock(client, "one")
        await caught_up(master, slave)
    async with running_broker(tmp_path / "slave") as promoted, talking(promoted) as client:
        assert await lock(client, "two")
        assert await lock(client, "one") == []
        assert await lock(client, "two")


async def test_no_offset_is_given_twice_and_all_keys_are_found(tmp_path: Path) -> None:
    """A topic of the last moment is there, too, with its queues."""
    async with pair(tmp_path) as (master, slave), talking(master) as client:
        await client.put("T", b"0", queue_id=0, properties=text_of({"KEYS": "K", "UNIQ_KEY": "U0"}))
        await behind(slave)
        assert (await client.make_topic("Late", queues=3)).code == 0
        await client.put("Late", b"late", queue_id=2, properties=text_of({"KEYS": "L"}))
        await client.put("T", b"1", queue_id=0, properties=text_of({"KEYS": "K", "UNIQ_KEY": "U1"}))
        await caught_up(master, slave)
        assert "Late" not in slave.parts.topics
    async with running_broker(tmp_path / "slave") as promoted, talking(promoted) as client:
        offsets = [
            int((await client.put("T", queue_id=0, properties=text_of({"KEYS": "K"}))).ext["queueOffset"]),
            int((await client.put("Late", queue_id=2)).ext["queueOffset"]),
        ]
        assert offsets == [2, 1]
        assert [record.queue_offset for record in await client.records("T", queueId=0)] == [0, 1, 2]
        for topic, key, count in (("T", "K", 3), ("Late", "L", 1)):
            ask = {
                "topic": topic,
                "key": key,
                "maxNum": "32",
                "beginTimestamp": "0",
                "endTimestamp": f"{1 << 62}",
            }
            assert len(decode_records((await client.ask(RequestCode.QUERY_MESSAGE, ask)).body)) == count


async def test_a_topic_that_was_made_again_has_its_new_messages_alone(tmp_path: Path) -> None:
    """A slave kept the queues of a deleted topic: its messages came back with the next start, and those of a topic of
    the same name were passed over, as their numbers had been given."""
    async with pair(tmp_path) as (master, slave), talking(master) as client:
        for topic in ("Again", "Late", "Gone"):
            for number in range(3):
                await client.put(topic, b"old %d" % number, queue_id=number % 2)
        await caught_up(master, slave)
        await eventually(lambda: "Gone" in slave.parts.topics)
        for topic in ("Gone", "Again"):
            assert (await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})).code == 0
            if topic == "Gone":
                await eventually(lambda: "Gone" not in slave.parts.store.topics.names())
            await client.put("T", b"between", queue_id=0)
            await client.put("Late", b"between", queue_id=3)
        await client.put("Again", b"new 3", queue_id=3)
        await client.put("Again", b"new 0", queue_id=0)
        await caught_up(master, slave)
        await eventually(lambda: slave.parts.store.reading.max_offset("Again", 1) == 0)
        await client.put("Again", b"new 1", queue_id=0)
        await caught_up(master, slave)
        assert slave.parts.store.topics.deletions == master.parts.store.topics.deletions
    for _ in range(2):
        async with running_broker(tmp_path / "slave") as promoted, talking(promoted) as client:
            assert "Gone" not in promoted.parts.topics
            found = [
                [record.body for record in await client.records("Again", queueId=one)] for one in range(4)
            ]
            assert found == [[b"new 0", b"new 1"], [], [], [b"new 3"]]
            assert len(await client.records("Late", queueId=3)) == 2


@pytest.mark.parametrize("known", ["before", "late"])
async def test_a_topic_of_batches_is_one_at_the_slave(tmp_path: Path, known: str) -> None:
    """It got plain queues there, and did not start again with them."""
    async with (
        running_broker(tmp_path / "master", ha_send_heartbeat_interval=200) as master,
        talking(master) as client,
    ):
        assert (await client.make_topic("B", attributes="+queue.type=BatchCQ")).code == 0
        await client.put("B")
        await batch(client)
        async with running_slave(tmp_path / "slave") as slave:
            if known == "late":  # its records come before anything is known of it
                side = slave_side(slave)
                side.follower.master_found(master.parts.identity.ha_addr)
                await caught_up(master, slave)
                assert not slave.parts.store.topics.is_batch("B")
            meet(slave, master)
            await eventually(lambda: slave.parts.store.topics.is_batch("B"))
            await batch(client)
            await caught_up(master, slave)
            await eventually(lambda: slave.parts.store.reading.max_offset("B", 0) == 7)
    async with running_broker(tmp_path / "slave") as promoted, talking(promoted) as client:
        await batch(client)
        records = await client.records("B")
        assert [record.queue_offset for record in records] == [0, 1, 4, 7]


async def batch(client: Talker) -> None:
    """Three messages as one record."""
    entries = [BatchEntry(at, b"m%d" % at, text_of({"UNIQ_KEY": f"K{at}"})) for at in range(3)]
    assert (await client.put_batch("B", entries, properties=text_of({"UNIQ_KEY": "ALL"}))).code == 0


async def test_what_was_delivered_behind_the_cut_is_delivered_again(tmp_path: Path, clock: Clock) -> None:
    """The files of an old master say that messages were delivered, the log that it has now does not: the one that
    replaced it went before it could deliver them."""
    one, two = tmp_path / "one", tmp_path / "two"
    at_two = Clock(START_MS)
    settings: dict[str, Any] = {"message_delay_level": "1s 5s", **SMALL}
    async with elected(one, 1, 1, clock=clock, **settings) as old, talking(old) as client:
        async with running_slave(two, 2, life=life(1, 2), clock=at_two, **settings) as slave:
            meet(slave, old)
            assert (await client.put("T", b"plain", queue_id=0)).code == 0
            for delay in ({"DELAY": "2"}, {"TIMER_DELAY_MS": "5000"}):
                assert (await client.put("T", b"late", queue_id=0, properties=text_of(delay))).code == 0
            await caught_up(old, slave)
            await eventually(lambda: "T" in slave.parts.topics)
            common = slave.parts.store.end_offset
        clock.now_ms += 10_000
        wake(old)
        await eventually(lambda: old.parts.store.reading.max_offset("T", 0) == 3)
        timers = old.parts.timers
        assert timers is not None
        await eventually(lambda: timers.waiting_count == 0)
    async with elected(two, 2, 2, clock=at_two, **settings) as new, talking(new) as client:
        assert (await client.put("T", b"new", queue_id=0)).code == 0
        cut = life(2, 1, cut_to=common)
        async with running_slave(one, 1, life=cut, clock=clock, **settings) as slave:
            meet(slave, new)
            await caught_up(new, slave)
            await eventually(lambda: slave_side(slave).metadata.synced_at > 0)
    async with elected(one, 3, 1, clock=clock, **settings) as again, talking(again) as client:
        wake(again)
        await eventually(lambda: again.parts.store.reading.max_offset("T", 0) == 4)
        bodies = [record.body for record in await client.records("T", queueId=0)]
        assert bodies == [b"plain", b"new", b"late", b"late"]
