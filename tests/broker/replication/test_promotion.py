"""A slave that becomes the master: what waited at the old one is there, and is done once."""

from pathlib import Path
from typing import Any

from aerobee_proto.codes import RequestCode, ResponseCode
from broker.replication.pairs import caught_up, eventually, pair
from system.running import running_broker, talking, text_of
from system.transacting import COMMIT, end, send_half

LEVEL_1 = text_of({"DELAY": "1"})


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
