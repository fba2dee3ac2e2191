"""The master of a set of three is killed: all that waits, or was answered just before, is at the next one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import Command
from aerobee_proto.records import decode_records
from plain_remoting import wait_until
from system.elected import NAME, WAIT_S, Trio, started
from system.popping import Popper, extra_infos, popping
from system.running import Talker, text_of
from system.transacting import COMMIT, end, send_half

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LEVEL_3 = text_of({"DELAY": "3"})  # 10 s
INVISIBLE_MS = 12_000


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    with started(tmp_path) as trio:
        yield trio


def port(trio: Trio, member: int) -> int:
    return int(trio.address(member).rpartition(":")[2])


async def there(happened: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(wait_until, happened, what, WAIT_S)


async def lock(client: Talker, topic: str, client_id: str) -> list[object]:
    """Queues of this topic that this member of the group got."""
    queue = {"topic": topic, "brokerName": NAME, "queueId": 0}
    body = {"consumerGroup": "orders", "clientId": client_id, "mqSet": [queue]}
    answer = await client.ask(RequestCode.LOCK_BATCH_MQ, body=json.dumps(body).encode())
    assert answer.code == 0, answer.remark
    return list(json.loads(answer.body)["lockOKMQSet"])


async def offset_of(client: Talker, group: str, topic: str) -> str:
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0"}
    return (await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)).ext["offset"]


async def bodies(client: Talker, topic: str) -> list[bytes]:
    return [record.body for record in await client.records(topic, queueId=0)]


async def settled(ask: Callable[[], Awaitable[Command]]) -> Command:
    """The answer of a new master, when it does not ask any more to be asked again."""
    async with asyncio.timeout(WAIT_S):
        while (answer := await ask()).code == ResponseCode.SERVICE_NOT_AVAILABLE:  # noqa: ASYNC110  # between tries
            await asyncio.sleep(0.05)
    return answer


async def popped(client: Popper) -> list[bytes]:
    answer = await settled(lambda: client.pop("Popped", invisibleTime=INVISIBLE_MS))
    if answer.code != ResponseCode.SUCCESS:
        return []
    assert set(await client.ack_all(answer, "Popped")) == {0}
    return [record.body for record in decode_records(answer.body)]


async def test_what_waits_and_what_was_answered_last_is_at_the_next_master(trio: Trio) -> None:
    master = await asyncio.to_thread(trio.wait_master, slaves=2)
    async with popping(port(trio, master)) as client:
        for topic in ("Plain", "Waits", "Half", "Popped"):
            assert (await client.make_topic(topic)).code == 0
        for body in (b"0", b"1", b"2"):
            assert (await client.put("Plain", body, queue_id=0)).code == 0
            assert (await client.put("Popped", body, queue_id=0)).code == 0
        timer = text_of({"TIMER_DELAY_MS": "10000"})
        assert (await client.put("Waits", b"level", queue_id=0, properties=LEVEL_3)).code == 0
        assert (await client.put("Waits", b"timer", queue_id=0, properties=timer)).code == 0
        half = await send_half(client, "Half", b"half", key="K")
        assert await lock(client, "Plain", "one")
        taken = await client.pop("Popped", maxMsgNums=2, invisibleTime=INVISIBLE_MS)
        names = extra_infos(taken, "Popped", broker_name=NAME)
        assert (await client.ack("Popped", names[0])).code == 0
        # The last moment.
        commit = {"consumerGroup": "orders", "topic": "Plain", "queueId": "0", "commitOffset": "2"}
        assert (await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0
        group = json.dumps({"groupName": "last", "retryMaxTimes": 7}).encode()
        answer = await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)
        assert answer.code == 0, answer.remark
        assert (await client.make_topic("Last", queues=5)).code == 0
        trio.members[master].kill()
    new = await asyncio.to_thread(trio.wait_master, master, slaves=1)
    async with popping(port(trio, new)) as client:
        topic = json.loads((await client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "Last"})).body)
        assert topic["writeQueueNums"] == 5
        settings = await client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "last"})
        assert json.loads(settings.body)["retryMaxTimes"] == 7
        assert await offset_of(client, "orders", "Plain") == "2"
        # Locks are asked for anew, and nobody has one beside another.
        assert await lock(client, "Plain", "two")
        assert await lock(client, "Plain", "one") == []
        # What is popped stays invisible; what was not is handed out.
        assert await popped(client) == [b"2"]
        assert (await settled(lambda: end(client, half, COMMIT))).code == 0
        assert await bodies(client, "Half") == [b"half"]
        assert await bodies(client, "Waits") == []

        async def come() -> None:
            seen: list[bytes] = []
            while len(seen) < 1 or len(await bodies(client, "Waits")) < 2:
                seen += await popped(client)
                await asyncio.sleep(0.1)
            assert seen == [b"1"]

        await asyncio.wait_for(come(), WAIT_S)
        assert sorted(await bodies(client, "Waits")) == [b"level", b"timer"]
        assert await popped(client) == []
