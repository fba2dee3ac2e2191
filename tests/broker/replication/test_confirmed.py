"""Readers of a slave see what its master has confirmed, and nothing else."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.broker import Broker
from aerobee_broker.replication import hello
from aerobee_broker.replication.confirmed import ConfirmedByMaster
from aerobee_broker.replication.service import SlaveSide
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.ha import OFFSET_MAX
from broker.replication.pairs import FAST, caught_up, eventually, ha_port, meet, running_slave
from system.running import Talker, running_broker, talking, text_of

# Two slaves have to have a message, so with one of them it is stored and nowhere confirmed.
OF_MASTER: dict[str, Any] = {"broker_role": "SYNC_MASTER", "in_sync_replicas": 3, "slave_timeout": 200}
FOR_A_WHILE: dict[str, Any] = {"sysFlag": 6, "suspendTimeoutMillis": 15_000}


def test_more_is_seen_when_the_master_says_so() -> None:
    moved: list[int] = []
    confirmed = ConfirmedByMaster(lambda: moved.append(confirmed.offset))
    confirmed.link_began(says_confirmed=True)
    assert (confirmed.offset, moved) == (0, [])
    for said in (100, 100, 50, 200):
        confirmed.said(said)
    assert moved == [100, 200]
    confirmed.link_began(says_confirmed=True)
    assert (confirmed.offset, moved) == (200, [100, 200])
    confirmed.link_began(says_confirmed=False)
    assert moved == [100, 200, OFFSET_MAX]
    confirmed.link_began(says_confirmed=True)
    assert (confirmed.offset, len(moved)) == (200, 3)


async def has_all(master: Broker, slave: Broker) -> None:
    """Wait until the slave has the master's log and its topics, whatever readers see of it."""
    end = master.parts.store.end_offset
    await eventually(lambda: slave.parts.store.end_offset == end and "T" in slave.parts.topics)


async def bodies(client: Talker) -> list[bytes]:
    return [record.body for record in await client.records("T", queueId=0)]


async def max_offset(client: Talker) -> str:
    answer = await client.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    return answer.ext["offset"]


async def found_by_key(client: Talker, key: str) -> bool:
    fields = {"topic": "T", "key": key, "maxNum": "8", "beginTimestamp": "0", "endTimestamp": str(1 << 60)}
    answer = await client.ask(RequestCode.QUERY_MESSAGE, fields)
    return answer.code == ResponseCode.SUCCESS


async def test_a_slave_shows_nothing_before_all_that_have_to_have_it_do(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path / "master", **(FAST | OF_MASTER)) as master,
        running_slave(tmp_path / "one", 1) as one,
        talking(master) as at_master,
        talking(one) as at_slave,
    ):
        meet(one, master)
        async with running_slave(tmp_path / "two", 2) as two:
            meet(two, master)
            await eventually(lambda: len(master.parts.replication.status().ha_connection_info) == 2)
            await at_master.put("T", b"shown", queue_id=0)
            await caught_up(master, one, two)
        late = await at_master.put("T", b"late", queue_id=0, properties=text_of({"KEYS": "late"}))
        assert late.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        await has_all(master, one)
        place = str(one.parts.store.confirmed_offset)
        for client in (at_master, at_slave):
            assert await bodies(client) == [b"shown"]
            assert await max_offset(client) == "1"
            assert not await found_by_key(client, "late")
            seen = await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": place})
            assert seen.code != ResponseCode.SUCCESS
        async with running_slave(tmp_path / "two", 2) as two:
            meet(two, master)
            await caught_up(master, one)
            for client in (at_master, at_slave):
                assert await bodies(client) == [b"shown", b"late"]
                assert await max_offset(client) == "2"
                assert await found_by_key(client, "late")
                seen = await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": place})
                assert seen.code == ResponseCode.SUCCESS


async def test_a_held_pull_at_a_slave_is_woken_when_the_message_is_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        running_broker(tmp_path / "master", **(FAST | OF_MASTER)) as master,
        running_slave(tmp_path / "one", 1) as one,
        talking(master) as at_master,
    ):
        meet(one, master)
        assert (await at_master.put("T", queue_id=0)).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        await has_all(master, one)
        async with talking(one) as reader:
            # While a slave has its master it holds nobody: the end of a queue is the master's business.
            monkeypatch.setattr(SlaveSide, "is_linked", property(lambda self: False))
            pull = asyncio.create_task(reader.pull("T", 0, queueId=0, **FOR_A_WHILE))
            await eventually(lambda: len(one.parts.pulls.held) == 1)
            await at_master.put("T", queue_id=0)
            await has_all(master, one)
            assert not pull.done()
            async with running_slave(tmp_path / "two", 2) as two:
                meet(two, master)
                assert (await pull).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("how", ["closed", "cut off"])
async def test_a_slave_without_its_master_goes_on_showing_what_it_knows_to_be_confirmed(
    tmp_path: Path, how: str
) -> None:
    one = tmp_path / "one"
    async with (
        running_broker(tmp_path / "master", **(FAST | OF_MASTER)) as master,
        running_slave(one, 1) as slave,
        talking(master) as at_master,
    ):
        meet(slave, master)
        async with running_slave(tmp_path / "two", 2) as two:
            meet(two, master)
            await eventually(lambda: len(master.parts.replication.status().ha_connection_info) == 2)
            await at_master.put("T", b"shown", queue_id=0)
            await caught_up(master, slave, two)
        await at_master.put("T", b"late", queue_id=0)
        await has_all(master, slave)
        end = slave.parts.store.end_offset
        if how == "cut off":
            await master.close()
            await eventually(lambda: not slave.parts.replication.is_linked)
            async with talking(slave) as client:
                assert await bodies(client) == [b"shown"]
    for _ in range(2):
        async with running_slave(one, 1) as slave, talking(slave) as client:
            assert slave.parts.store.end_offset == end
            assert await bodies(client) == [b"shown"]
    # As the next master it has all that is in its log.
    async with running_broker(one, ha_send_heartbeat_interval=200) as new, talking(new) as client:
        assert await bodies(client) == [b"shown", b"late"]


@pytest.mark.parametrize("peer", ["a link of RocketMQ", "an older one of ours"])
async def test_a_slave_that_hears_nothing_of_it_shows_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, peer: str
) -> None:
    async with running_broker(tmp_path / "master", **(FAST | OF_MASTER)) as master:
        if peer == "an older one of ours":
            monkeypatch.setattr(hello, "VERSION", 1)
            settings = {}
        else:
            settings = {"ha_master_address": f"127.0.0.1:{ha_port(master)}"}
        async with running_slave(tmp_path / "one", 1, **settings) as slave, talking(master) as client:
            if not settings:
                meet(slave, master)
            await eventually(lambda: slave.parts.replication.is_linked)
            assert (await client.put("T", queue_id=0)).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
            await caught_up(master, slave)
            assert master.parts.store.confirmed_offset == 0
