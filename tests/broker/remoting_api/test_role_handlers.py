"""Roles as operators change them: what is refused, the fence, and the wait for a level slave."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from aerobee_broker.broker import Broker, Life
from aerobee_broker.lives.role import Role
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import Command
from broker.replication.pairs import caught_up, eventually, pair, running_slave
from system.running import Talker, broker_config, running_broker, talking, text_of

SLAVE = {"brokerRole": "SLAVE", "brokerId": "1"}
COMMIT = {"consumerGroup": "test-group", "topic": "T", "queueId": "0", "commitOffset": "1"}


class Wishes:
    """Takes every wish."""

    refusal = ""

    def __init__(self) -> None:
        self.taken: list[dict[str, str]] = []

    async def change(
        self, settings: Mapping[str, str], master_addr: str, master_ha_addr: str, *, is_forced: bool = False
    ) -> str:
        self.taken.append(dict(settings) | {"master": master_addr, "ha": master_ha_addr})
        return "a note"


async def fence(client: Talker, millis: int) -> Command:
    return await client.ask(RequestCode.FENCE_WRITES, {"millis": str(millis)})


async def change(client: Talker, **fields: str) -> Command:
    return await client.ask(RequestCode.CHANGE_ROLE, fields)


async def test_behind_the_fence_nothing_is_written_and_clients_come_again(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talking(broker) as client:
        assert (await client.put("T", b"before")).code == 0
        fenced = await fence(client, 60_000)
        end = broker.parts.store.end_offset
        assert (fenced.code, fenced.ext["endOffset"]) == (0, str(end))
        assert fenced.ext["brokerAddr"] == broker.address
        for refused in (
            await client.put("T", b"behind it"),
            await client.put("T", b"later", properties=text_of({"DELAY": "1"})),
            await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, COMMIT),
            await client.make_topic("New"),
        ):
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert refused.remark is not None
            assert "is handing over" in refused.remark
        assert broker.parts.store.end_offset == end
        assert (await client.records("T"))[0].body == b"before"
        assert (await fence(client, 0)).code == 0
        assert (await client.put("T", b"after")).code == 0
        assert (await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, COMMIT)).code == 0


async def test_the_fence_falls_by_itself(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talking(broker) as client:
        assert (await fence(client, 50)).code == 0
        await eventually(lambda: not broker.parts.fence.is_up)
        assert (await client.put("T", b"after")).code == 0
        assert (await fence(client, 60_001)).code == ResponseCode.INVALID_PARAMETER


async def test_a_slave_is_level_when_it_has_the_log_and_the_tables_of_now(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, slave), talking(master) as at_master, talking(slave) as at_slave:
        for number in range(20):
            assert (await at_master.put("T", b"%d" % number, queue_id=0)).code == 0
        assert len(await at_master.records("T", queueId=0)) == 20  # by a group
        commit = COMMIT | {"commitOffset": "7"}
        assert (await at_master.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0
        end = (await fence(at_master, 60_000)).ext["endOffset"]
        level = await at_slave.ask(RequestCode.AWAIT_LEVEL, {"endOffset": end, "millis": "20000"})
        assert (level.code, level.ext["endOffset"]) == (0, end)
        assert slave.parts.offsets.get("test-group", "T", 0) == 7
        far = {"endOffset": str(int(end) + 1), "millis": "30"}
        late = await at_slave.ask(RequestCode.AWAIT_LEVEL, far)
        assert late.code == ResponseCode.SYSTEM_ERROR
        assert late.remark == f"after 30 ms this slave is at {end} of {int(end) + 1}"
        for client, code, fields in (
            (at_master, RequestCode.AWAIT_LEVEL, far),
            (at_slave, RequestCode.FENCE_WRITES, {"millis": "1"}),
        ):
            assert (await client.ask(code, fields)).code == ResponseCode.ILLEGAL_OPERATION


async def test_without_a_nameserver_the_tables_are_not_read_and_it_says_so(tmp_path: Path) -> None:
    async with running_slave(tmp_path) as slave, talking(slave) as client:
        answer = await client.ask(RequestCode.AWAIT_LEVEL, {"endOffset": "0", "millis": "20000"})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark is not None
        assert "no nameserver has told it" in answer.remark


async def started(root: Path, wishes: Wishes | None, **settings: object) -> Broker:
    config = broker_config(root, **settings)
    broker = Broker(config, life=Life(Role(not config.is_slave, member=config.broker_id), wishes))
    await broker.start()
    return broker


async def test_a_wish_for_another_role_goes_where_it_belongs(tmp_path: Path) -> None:
    wishes = Wishes()
    broker = await started(tmp_path, wishes)
    try:
        async with talking(broker) as client:
            done = await change(client, **SLAVE, masterAddr="m:1", masterHaAddr="m:2")
            assert (done.code, done.ext["note"]) == (0, "a note")
            assert wishes.taken == [SLAVE | {"master": "m:1", "ha": "m:2"}]
            assert (await change(client, brokerRole="MASTER")).remark == "it is ASYNC_MASTER already"
            assert (await change(client, brokerRole="SYNC_MASTER", inSyncReplicas="2")).code == 0
            assert wishes.taken[1] == {
                "brokerRole": "SYNC_MASTER",
                "inSyncReplicas": "2",
                "minInSyncReplicas": "1",
                "master": "",
                "ha": "",
            }
            assert (await change(client, brokerRole="KING")).code == ResponseCode.INVALID_PARAMETER
            assert len(wishes.taken) == 2
    finally:
        await broker.close()


async def test_a_broker_of_another_program_has_one_role(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talking(broker) as client:
        assert (await change(client, **SLAVE)).code == ResponseCode.NO_PERMISSION


async def test_a_slave_whose_master_is_there_becomes_none_but_by_force(tmp_path: Path) -> None:
    wishes = Wishes()
    async with running_broker(tmp_path / "master") as master:
        settings = {
            "broker_role": "SLAVE",
            "broker_id": 1,
            "ha_master_address": master.parts.identity.ha_addr,
        }
        slave = await started(tmp_path / "slave", wishes, **settings)
        try:
            async with talking(slave) as client, talking(master) as at_master:
                assert (await at_master.put("T", b"one")).code == 0
                await caught_up(master, slave)
                refused = await change(client, brokerRole="MASTER")
                assert refused.code == ResponseCode.ILLEGAL_OPERATION
                assert wishes.taken == []
                assert (await change(client, brokerRole="MASTER", force="true")).code == 0
                assert wishes.taken == [{"brokerRole": "ASYNC_MASTER", "master": "", "ha": ""}]
                moved = await change(client, brokerRole="SLAVE", brokerId="4", masterHaAddr="other:1")
                assert moved.code == 0
                assert wishes.taken[1]["haMasterAddress"] == "other:1"
        finally:
            await slave.close()


@pytest.mark.parametrize("code", [31990, 31991, 31992])
async def test_a_field_that_is_missing_is_named(tmp_path: Path, code: int) -> None:
    async with running_broker(tmp_path) as broker, talking(broker) as client:
        answer = await client.ask(code)
        assert answer.code != 0
        assert answer.remark
