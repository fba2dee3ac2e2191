"""News of tables: at the slave within a moment, and answered when it is there."""

import asyncio
import errno
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.broker import Broker
from aerobee_broker.catalog.consumer_offsets import ConsumerOffsets
from aerobee_broker.replication import metadata, news
from aerobee_broker.replication.news import TableNews, Taken
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.frames import Command
from aerobee_remoting.ends.client import RemotingClient
from broker.replication.pairs import caught_up, eventually, pair, slave_side
from broker.support import START_MS, Clock
from system.running import Talker, talking

SYNC: dict[str, Any] = {"broker_role": "SYNC_MASTER", "in_sync_replicas": 2}
NEVER_S = 3600.0


@pytest.fixture
def one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first round nothing is read unless the master tells of it."""
    monkeypatch.setattr(metadata, "SYNC_S", NEVER_S)


async def create(client: Talker, topic: str, code: int = 0) -> None:
    fields = {"topic": topic, "readQueueNums": "3", "writeQueueNums": "3", "perm": "6"}
    fields |= {"topicFilterType": "SINGLE_TAG", "defaultTopic": "TBW102", "order": "false"}
    assert (await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)).code == code


async def followed(master: Broker, slave: Broker) -> None:
    """Wait until the slave has read everything, and waits for news."""
    replication: Any = master.parts.replication
    await eventually(lambda: slave_side(slave).metadata.synced_at > 0)
    await eventually(lambda: replication.news.has_all(1))


def commit_of(queue_id: int, offset: int) -> dict[str, str]:
    queue = {"consumerGroup": "test-group", "topic": "T", "queueId": str(queue_id)}
    return {**queue, "commitOffset": str(offset)}


@pytest.mark.usefixtures("one_round")
async def test_offsets_are_at_the_slave_within_a_moment(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, slave), talking(master) as client:
        await followed(master, slave)
        await client.put("T", b"one", queue_id=0)
        await client.pull("T", 0, queueId=0)
        for offset in (1, 0, 1):  # a group may go back
            fields = commit_of(0, offset)
            assert (await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0
            await eventually(lambda offset=offset: slave.parts.offsets.get("test-group", "T", 0) == offset)  # type: ignore[misc]
        delete = {"groupName": "test-group", "cleanOffset": "true"}
        assert (await client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, delete)).code == 0
        await eventually(lambda: slave.parts.offsets.get("test-group", "T", 0) is None)


@pytest.mark.usefixtures("one_round")
async def test_what_is_answered_is_in_the_files_of_the_slave(tmp_path: Path) -> None:
    """Topics, groups and request modes, where sends wait for the slave, too."""
    folder = tmp_path / "slave" / "config"

    def in_file(name: str, *path: str) -> bool:
        content = json.loads((folder / name).read_bytes())
        for one in path:
            content = content.get(one, {})
        return bool(content)

    async with pair(tmp_path, of_master=SYNC) as (master, slave), talking(master) as client:
        await followed(master, slave)
        await create(client, "T")
        assert in_file("topics.json", "topicConfigTable", "T")
        group = json.dumps({"groupName": "G", "consumeEnable": True}).encode()
        answer = await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group)
        assert answer.code == 0
        assert in_file("subscriptionGroup.json", "subscriptionGroupTable", "G")
        mode = json.dumps({"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 1}).encode()
        assert (await client.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, mode)).code == 0
        assert in_file("messageRequestMode.json", "messageRequestModeMap", "T", "G")
        assert (await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
        assert not in_file("topics.json", "topicConfigTable", "T")


async def test_a_change_that_the_slave_does_not_take_is_not_answered_with_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news, "TAKEN_S", 0.05)
    async with pair(tmp_path, of_master=SYNC) as (master, slave), talking(master) as client:
        await followed(master, slave)
        await slave_side(slave).metadata.close()
        await create(client, "T", ResponseCode.FLUSH_SLAVE_TIMEOUT)
        assert "T" in master.parts.topics
        await slave.close()
        await eventually(lambda: not master.parts.replication.status().in_sync_slave_nums)
        await create(client, "U")  # nobody is in sync: as for RocketMQ's


# --- without a slave --------------------------------------------------------------------------------------------


class Scene:
    """The master's end alone."""

    def __init__(self) -> None:
        self.number = 1
        self.offsets = ConsumerOffsets(Clock(START_MS))
        self.keepers: set[int] | None = set()
        self.is_master = True
        self.stores: dict[int, str] = {}
        self.moved = asyncio.Event()
        self.news = TableNews(
            lambda: self.number,
            self.offsets,
            lambda: 700,
            moved=self.moved,
            keepers=lambda: self.keepers,
            may_answer=lambda: self.is_master,
            store_of=lambda member: self.stores.get(member, ""),
        )

    async def taken(self, member: int = 1) -> Taken:
        return (await self.news.next(member, Taken("", -1, -1), 0)).taken


async def test_what_has_changed_is_told_alone_and_gathered() -> None:
    scene = Scene()
    taken = await scene.taken()
    scene.offsets.commit("g", "T", 0, 5)
    waiting = asyncio.create_task(scene.news.next(1, taken, 60))
    await asyncio.sleep(0)
    scene.offsets.commit("g", "T", 1, 6)
    scene.offsets.commit("h", "T", 0, 1)
    first = await waiting
    assert first.changes == {"T@g": {0: 5, 1: 6}, "T@h": {0: 1}}
    assert (first.end_offset, first.taken.tables) == (700, taken.tables)
    scene.offsets.remove_group("h")
    assert (await scene.news.next(1, first.taken, 60)).changes == {"T@h": {}}


async def test_other_tables_are_told_at_once_and_who_knows_nothing_reads_all() -> None:
    scene = Scene()
    taken = await scene.taken()
    waiting = asyncio.create_task(scene.news.next(1, taken, 60))
    await asyncio.sleep(0)
    scene.number = 2
    scene.moved.set()
    told = await waiting
    assert (told.taken.tables, told.changes) == (2, {})
    assert (await scene.news.next(1, told.taken._replace(life="another"), 60)).changes is None


async def test_too_many_changes_are_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(news, "CHANGES_MAX", 3)
    scene = Scene()
    taken = await scene.taken()
    for number in range(4):
        scene.offsets.commit(f"g{number}", "T", 0, 5)
    told = await scene.news.next(1, taken, 0)
    assert told.changes is None
    assert (await scene.news.next(1, told.taken, 0)).changes == {}


async def test_nothing_is_answered_by_who_is_no_master_any_more() -> None:
    scene = Scene()
    scene.keepers = {1, 2}
    await scene.taken(2)
    waiting = asyncio.create_task(scene.news.taken())
    await scene.news.next(1, await scene.taken(1), 0)
    assert not waiting.done()
    scene.is_master = False
    await scene.news.next(2, await scene.taken(2), 0)
    with pytest.raises(RequestError) as refused:
        await waiting
    assert refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE


@pytest.mark.parametrize("keepers", [{1, 2}, None])
async def test_who_has_not_asked_yet_has_nothing(
    keepers: set[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master that was new answered changes with success that no slave had: none had asked it yet."""
    monkeypatch.setattr(news, "LOOK_S", 0.01)
    scene = Scene()
    scene.keepers = keepers
    await scene.news.next(1, await scene.taken(1), 0)
    waiting = asyncio.create_task(scene.news.taken())
    await asyncio.sleep(0.03)
    assert not waiting.done()
    scene.keepers = {1, 2}
    await scene.news.next(2, await scene.taken(2), 0)
    await waiting
    monkeypatch.setattr(news, "TAKEN_S", 0.02)
    scene.keepers = {1, 3}
    with pytest.raises(RequestError, match="the members in sync 3: it is lost"):
        await scene.news.taken()


async def test_a_member_that_is_here_with_another_store_has_nothing_yet() -> None:
    """It counted as one that has all tables until it asked: in sync with them, it could become the master without."""
    scene = Scene()
    scene.stores[1] = "first"
    taken = await scene.taken()
    await scene.news.next(1, taken, 0)
    assert scene.news.tables_of(1) == (1, 1)
    del scene.stores[1]  # it is away, and may come back
    assert scene.news.has_all(1)
    scene.stores[1] = "second"
    assert scene.news.tables_of(1) == (-1, 1)
    assert not scene.news.has_all(1)
    await scene.news.next(1, taken, 0)
    assert scene.news.tables_of(1) == (1, 1)
    assert scene.news.has_all(1)


async def test_what_a_stranger_says_does_not_count() -> None:
    """Numbers that there have not been yet, and more members than a set has."""
    scene = Scene()
    scene.keepers = {1}
    taken = await scene.taken()
    for ahead in (taken._replace(tables=9), taken._replace(offsets=9)):
        await scene.news.next(1, ahead, 0)
        assert not scene.news.has_all(1)
    for member in range(2, 200):
        await scene.news.next(member, taken, 0)
    await scene.news.next(1, taken, 0)
    assert scene.news.has_all(1)
    await scene.news.next(200, taken, 0)
    assert scene.news.has_all(1)


async def test_who_waits_is_answered_at_the_end() -> None:
    scene = Scene()
    taken = await scene.taken()
    waiting = asyncio.create_task(scene.news.next(1, taken, 60))
    await asyncio.sleep(0)
    scene.news.close()
    assert (await waiting).taken == taken


async def test_one_request_of_each_member_waits_and_so_many_members_as_a_set_may_have() -> None:
    scene = Scene()
    taken = await scene.taken()
    first = asyncio.create_task(scene.news.next(1, taken, 60))
    await asyncio.sleep(0)
    second = asyncio.create_task(scene.news.next(1, taken, 60))
    assert (await first).taken == taken
    others = [
        asyncio.create_task(scene.news.next(member, taken, 60)) for member in range(2, 2 + news.MEMBERS_MAX)
    ]
    await asyncio.sleep(0)
    with pytest.raises(RequestError, match="64 members are waiting"):
        await others.pop()
    assert not second.done()
    scene.news.close()
    assert {one.taken for one in await asyncio.gather(second, *others)} == {taken}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often each request code was asked for, by any client here."""
    codes: Counter[int] = Counter()
    request = RemotingClient.request

    async def counted(self: RemotingClient, addr: str, code: int, *words: Any, **named: Any) -> Command:
        codes[code] += 1
        return await request(self, addr, code, *words, **named)

    monkeypatch.setattr(RemotingClient, "request", counted)
    return codes


async def rounds(asked: Counter[int], count: int) -> None:
    """Wait until so many more have been done."""
    end = asked[RequestCode.GET_ALL_DELAY_OFFSET] + count + 1
    await eventually(lambda: asked[RequestCode.GET_ALL_DELAY_OFFSET] >= end)


async def test_rounds_do_not_read_what_the_slave_is_known_to_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: Counter[int]
) -> None:
    monkeypatch.setattr(metadata, "SYNC_S", 0.02)
    async with pair(tmp_path) as (master, slave), talking(master) as client:
        await followed(master, slave)
        await rounds(asked, 2)
        tables = (RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        before = [asked[code] for code in tables]
        await rounds(asked, 5)
        assert [asked[code] for code in tables] == before
        await create(client, "New")
        await eventually(lambda: "New" in slave.parts.topics)
        assert all(asked[code] > count for code, count in zip(tables, before, strict=True))


async def test_now_and_then_a_round_reads_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: Counter[int]
) -> None:
    monkeypatch.setattr(metadata, "SYNC_S", 0.02)
    monkeypatch.setattr(metadata, "WHOLE_S", 0.0)
    async with pair(tmp_path) as (master, slave):
        await followed(master, slave)
        before = asked[RequestCode.GET_ALL_TOPIC_CONFIG]
        await rounds(asked, 3)
        assert asked[RequestCode.GET_ALL_TOPIC_CONFIG] >= before + 3


async def test_what_the_disk_refused_is_tried_again_by_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables are known, and what follows from them is not done."""
    monkeypatch.setattr(metadata, "SYNC_S", 0.02)
    async with pair(tmp_path) as (master, slave), talking(master) as client:
        await followed(master, slave)
        await create(client, "T")
        await client.put("T", b"one")
        await caught_up(master, slave)
        await eventually(lambda: "T" in slave.parts.topics)
        store, refused = slave.parts.store, []
        follow = store.topics.follow_deletion

        def full(topic: str, end: int) -> bool:
            refused.append(topic)
            if len(refused) < 3:
                raise OSError(errno.ENOSPC, "No space left on device")
            return follow(topic, end)

        monkeypatch.setattr(store.topics, "follow_deletion", full)
        assert (await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
        await eventually(lambda: len(refused) >= 3)
        await eventually(lambda: not (tmp_path / "slave" / "consumequeue" / "T").exists())
