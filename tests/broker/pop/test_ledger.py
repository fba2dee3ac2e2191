"""POP over restarts: what a stop keeps, what a crash keeps, what other brokers left behind."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_broker.broker import Broker
from aerobee_broker.pop import ledger as ledger_module
from aerobee_broker.pop.checkpoints import Key
from aerobee_broker.pop.revive_log import parse_record
from aerobee_broker.pop.service import PopService
from aerobee_proto.bodies import TopicConfig
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import FormatError
from aerobee_proto.frames import Command
from aerobee_proto.names import REVIVE_GROUP, GroupQueue
from aerobee_proto.records import decode_record, decode_records, encode_record
from broker.support import START_MS, Clock
from system.popping import Popper, extra_infos, popping
from system.running import running_broker

MINUTE = 60_000
REVIVE_TOPIC = "rmq_sys_REVIVE_LOG_TestCluster"
GROUP, TOPIC = "test-group", "T"


@pytest.fixture
async def clock() -> Clock:
    return Clock()


@asynccontextmanager
async def serving(folder: Path, clock: Clock, **settings: Any) -> AsyncIterator[tuple[Broker, Popper]]:
    given: dict[str, Any] = {"pop_from_retry_probability": 0, **settings}
    async with running_broker(folder, clock=clock, **given) as broker, popping(broker) as client:
        yield broker, client


def pop_of(broker: Broker) -> PopService:
    return broker.parts.pop


async def sweep(broker: Broker) -> None:
    pop_of(broker).sweep()
    await pop_of(broker).ledger.settle()
    pop_of(broker).ledger.table.check()


async def crashed(broker: Broker, target: Path) -> Path:
    """The folder as a power cut would leave it now: everything that was promised, and the mark of the run."""
    await broker.parts.promises.settled()
    root, half_written = broker.parts.config.store_path_root_dir, shutil.ignore_patterns("*.tmp")
    await asyncio.to_thread(shutil.copytree, root, target, ignore=half_written)
    assert (target / "abort").exists()
    return target


def bodies(answer: Command) -> list[bytes]:
    return [record.body for record in decode_records(answer.body)] if answer.code == 0 else []


async def fill(client: Popper, count: int, topic: str = TOPIC) -> None:
    for i in range(count):
        await client.put(topic, b"%d" % i)


# --- stops and crashes


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "crashed"])
async def test_a_restart_keeps_what_is_outstanding(tmp_path: Path, clock: Clock, crash: bool) -> None:
    folder = tmp_path / "one"
    async with serving(folder, clock) as (broker, client):
        await fill(client, 5)
        answer = await client.pop(TOPIC, maxMsgNums=4)
        names = extra_infos(answer, TOPIC)
        assert (await client.ack(TOPIC, names[0])).code == 0
        assert (await client.change(TOPIC, names[1], 2 * MINUTE)).code == 0
        if crash:
            folder = await crashed(broker, tmp_path / "two")
    async with serving(folder, clock) as (broker, client):
        table = pop_of(broker).ledger.table
        assert (len(table), table.unacknowledged) == (2, 3)
        assert bodies(await client.pop(TOPIC)) == [b"4"]
        assert (await client.ack(TOPIC, names[2])).code == 0
        clock.now_ms += MINUTE
        await sweep(broker)
        again = await client.pop(TOPIC, maxMsgNums=32)
        assert sorted(bodies(again)) == [b"3", b"4"]
        clock.now_ms += MINUTE
        await sweep(broker)
        assert b"1" in bodies(await client.pop(TOPIC))


async def test_what_is_acknowledged_stays_so_although_no_offset_was_saved(
    tmp_path: Path, clock: Clock
) -> None:
    async with serving(tmp_path / "one", clock) as (broker, client):
        await fill(client, 3)
        await client.ack_all(await client.pop(TOPIC))
        folder = await crashed(broker, tmp_path / "two")
        assert not (folder / "config" / "consumerOffset.json").exists()
    async with serving(folder, clock) as (broker, client):
        assert broker.parts.offsets.get(GROUP, TOPIC, 0) == 3
        clock.now_ms += 2 * MINUTE
        await sweep(broker)
        assert (await client.pop(TOPIC)).code == ResponseCode.POLLING_TIMEOUT


async def test_a_group_whose_settings_were_not_written_yet_is_owed_its_messages(
    tmp_path: Path, clock: Clock
) -> None:
    async with serving(tmp_path / "one", clock) as (broker, client):
        await fill(client, 2)
        answer = await client.pop(TOPIC)
        assert (await client.ack(TOPIC, extra_infos(answer, TOPIC)[0])).code == 0
        folder = await crashed(broker, tmp_path / "two")
    for path in (folder / "config").glob("subscriptionGroup.json*"):
        path.unlink()
    async with serving(folder, clock) as (broker, client):
        assert (await client.pop(TOPIC)).code == ResponseCode.POLLING_TIMEOUT
        clock.now_ms += MINUTE
        await sweep(broker)
        assert bodies(await client.pop(TOPIC)) == [b"1"]


async def test_what_went_back_to_the_group_goes_back_once(tmp_path: Path, clock: Clock) -> None:
    async with serving(tmp_path / "one", clock) as (broker, client):
        await fill(client, 2)
        await client.pop(TOPIC)
        clock.now_ms += MINUTE
        await sweep(broker)
        folder = await crashed(broker, tmp_path / "two")
    async with serving(folder, clock) as (broker, client):
        await sweep(broker)
        answer = await client.pop(TOPIC)
        assert bodies(answer) == [b"0", b"1"]
        await client.ack_all(answer)
        assert (await client.pop(TOPIC)).code == ResponseCode.POLLING_TIMEOUT


async def test_offsets_are_saved_when_their_check_points_are_on_disk(tmp_path: Path, clock: Clock) -> None:
    async with serving(tmp_path, clock) as (broker, client):
        await fill(client, 2)
        before = broker.parts.offsets.get(GROUP, TOPIC, 0)
        assert before is None
        ledger = pop_of(broker).ledger
        answer = await client.pop(TOPIC)
        assert ledger.position(GroupQueue(GROUP, TOPIC, 0)) == 2
        await sweep(broker)
        assert broker.parts.offsets.get(GROUP, TOPIC, 0) == 2
        queue_id = int(answer.ext["reviveQid"])
        assert broker.parts.offsets.get(REVIVE_GROUP, REVIVE_TOPIC, queue_id) is None
        await client.ack_all(answer)
        await sweep(broker)
        assert broker.parts.offsets.get(REVIVE_GROUP, REVIVE_TOPIC, queue_id) == 1


async def test_in_order_what_is_acknowledged_outlives_a_crash(tmp_path: Path, clock: Clock) -> None:
    async with serving(tmp_path / "one", clock) as (broker, client):
        await fill(client, 3)
        answer = await client.pop(TOPIC, order="true", maxMsgNums=2)
        assert (await client.ack(TOPIC, extra_infos(answer, TOPIC)[0])).code == 0
        folder = await crashed(broker, tmp_path / "two")
    async with serving(folder, clock) as (_, client):
        assert bodies(await client.pop(TOPIC, order="true")) == [b"1", b"2"]


async def test_in_order_a_stop_keeps_the_block(tmp_path: Path, clock: Clock) -> None:
    async with serving(tmp_path, clock) as (_, client):
        await fill(client, 2)
        await client.pop(TOPIC, order="true", maxMsgNums=1)
    async with serving(tmp_path, clock) as (_, client):
        assert (await client.pop(TOPIC, order="true")).code == ResponseCode.POLLING_TIMEOUT
        clock.now_ms += MINUTE
        assert bodies(await client.pop(TOPIC, order="true")) == [b"0", b"1"]


@pytest.mark.parametrize("target", [1, 3])
async def test_a_reset_outlives_a_crash_although_check_points_say_otherwise(
    tmp_path: Path, clock: Clock, target: int
) -> None:
    async with serving(tmp_path / "one", clock) as (broker, client):
        await fill(client, 3)
        await client.ack_all(await client.pop(TOPIC, maxMsgNums=2))
        broker.parts.resets.assign(GROUP, TOPIC, 0, target)
        folder = await crashed(broker, tmp_path / "two")
    async with serving(folder, clock) as (broker, client):
        assert broker.parts.offsets.get(GROUP, TOPIC, 0) == target
        assert bodies(await client.pop(TOPIC)) == [b"%d" % i for i in range(target, 3)]


async def test_a_topic_that_was_made_again_is_read_from_its_beginning(tmp_path: Path, clock: Clock) -> None:
    """Check-points of the deleted topic are still in the log; the new one's messages are all younger."""
    async with serving(tmp_path / "one", clock) as (broker, client):
        await fill(client, 3)
        await client.ack_all(await client.pop(TOPIC))
        clock.now_ms += 1
        broker.parts.offsets.remove_topic(TOPIC)
        broker.parts.topics.delete(TOPIC)
        broker.parts.store.topics.delete(TOPIC)
        await fill(client, 5)
        folder = await crashed(broker, tmp_path / "two")
    async with serving(folder, clock) as (_, client):
        assert len(bodies(await client.pop(TOPIC))) == 5


async def test_check_points_that_keep_a_long_row_are_written_again(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "ROW_MAX", 10)
    async with serving(tmp_path / "one", clock) as (broker, client):
        await fill(client, 200)
        kept = await client.pop(TOPIC, maxMsgNums=3, invisibleTime=60 * MINUTE)
        names = extra_infos(kept, TOPIC)
        await client.ack(TOPIC, names[1])
        for _ in range(100):
            await client.ack_all(await client.pop(TOPIC, maxMsgNums=1))
        await sweep(broker)
        point = pop_of(broker).ledger.table.get(Key(GROUP, TOPIC, 0, 0, START_MS))
        assert point is not None
        assert point.moves >= 1
        queue_id = point.revive_queue
        end = broker.parts.store.reading.next_offset(REVIVE_TOPIC, queue_id)
        done = broker.parts.offsets.get(REVIVE_GROUP, REVIVE_TOPIC, queue_id)
        assert done is not None
        assert end - done < 20
        await client.ack(TOPIC, names[0])
        await asyncio.gather(broker.parts.files.save())
        folder = await crashed(broker, tmp_path / "two")
    async with serving(folder, clock) as (broker, client):
        clock.now_ms += 60 * MINUTE
        await sweep(broker)
        assert broker.parts.offsets.get(GROUP, TOPIC, 0) == 103
        assert bodies(await client.pop(TOPIC, queueId=-1, maxMsgNums=32))[-1:] != []
        again = await client.pop("%RETRY%test-group_T", consumerGroup="other")
        assert bodies(again) == [b"2"]


# --- what others left


def record_of(broker: Broker, tag: str, body: dict[str, object], deliver_ms: int, *, timer: bool) -> Any:
    """A record of the revive topic as RocketMQ's timer delivers it."""
    mapping = {"TAGS": tag, "TIMER_DELIVER_MS": str(deliver_ms)}
    if timer:
        mapping |= {"TIMER_OUT_MS": str(deliver_ms), "REAL_TOPIC": REVIVE_TOPIC, "REAL_QID": "3"}
    return broker.parts.writer.new(REVIVE_TOPIC, 3, json.dumps(body).encode(), mapping)


def names_of(pop_time: int, **fields: object) -> dict[str, object]:
    return {"so": 0, "pt": pop_time, "t": TOPIC, "c": GROUP, "q": 0, "bn": "test-a", **fields}


async def test_check_points_out_of_another_brokers_timer(tmp_path: Path, clock: Clock) -> None:
    """Its acknowledgements come a second behind it, and one came from a client before both."""
    async with serving(tmp_path, clock) as (broker, client):
        await fill(client, 3)
        broker.parts.groups.require(GROUP)
        broker.parts.offsets.commit(GROUP, TOPIC, 0, 3)
        pop_time, due_ms = clock() - MINUTE // 2, clock() + MINUTE // 2
        name = f"0 {pop_time} {MINUTE} 3 0 test-a 0 1"
        assert (await client.ack(TOPIC, name)).code == 0
        clock.now_ms = due_ms - 1000
        point = names_of(pop_time, it=MINUTE, n=3, bm=0, d=[0, 1, 2], ro=0, reviveTime=due_ms, cId=GROUP)
        await broker.parts.writer.put([record_of(broker, "ck", point, due_ms - 1000, timer=True)])
        await sweep(broker)
        assert pop_of(broker).ledger.table.unacknowledged == 2
        clock.now_ms = due_ms + 999
        await sweep(broker)
        assert (await client.pop(TOPIC)).code == ResponseCode.POLLING_TIMEOUT
        ack = names_of(pop_time, ao=0)
        await broker.parts.writer.put([record_of(broker, "ack", ack, due_ms, timer=True)])
        clock.now_ms = due_ms + 3000
        await sweep(broker)
        assert bodies(await client.pop(TOPIC)) == [b"2"]


async def test_records_that_say_nothing_are_passed_over(tmp_path: Path, clock: Clock) -> None:
    async with serving(tmp_path, clock) as (broker, client):
        await fill(client, 1)
        broken = [
            record_of(broker, "ck", {"so": "x"}, 0, timer=False),
            record_of(broker, "bAck", names_of(1, aol=5), 0, timer=False),
            record_of(broker, "other", {}, 0, timer=False),
        ]
        await broker.parts.writer.put(broken)
        await client.pop(TOPIC)
        await sweep(broker)
        clock.now_ms += MINUTE
        await sweep(broker)
        assert bodies(await client.pop(TOPIC)) == [b"0"]


def test_a_record_is_read_or_refused_whole() -> None:
    def record(tag: str, body: bytes) -> Any:
        raw = encode_record(
            topic=REVIVE_TOPIC,
            queue_id=1,
            queue_offset=7,
            physical_offset=0,
            born_timestamp=0,
            born_host=("127.0.0.1", 1),
            store_timestamp=0,
            store_host=("127.0.0.1", 1),
            body=body,
            properties=f"TAGS\x01{tag}\x02",
        )
        return decode_record(raw)

    assert parse_record(record("none", b"{")) is None
    for tag in ("ck", "ack", "bAck"):
        for body in (b"", b"{", b"[]", b"{}", b'{"so":1e99,"pt":1,"t":"T","c":"g","q":0}'):
            with pytest.raises(FormatError):
                parse_record(record(tag, body))
    falling = json.dumps(names_of(1, it=1, n=2, d=[1, 0])).encode()
    with pytest.raises(FormatError, match="rise"):
        parse_record(record("ck", falling))
    too_many = json.dumps(names_of(1, it=1, n=33, d=list(range(33)))).encode()
    with pytest.raises(FormatError):
        parse_record(record("ck", too_many))


async def test_messages_of_deleted_topics_and_groups_do_not_come_back(tmp_path: Path, clock: Clock) -> None:
    async with serving(tmp_path, clock) as (broker, client):
        broker.parts.topics.update([TopicConfig(topic_name="U")])
        await fill(client, 1)
        await fill(client, 1, "U")
        await client.pop(TOPIC)
        await client.pop("U")
        broker.parts.topics.delete("U")
        broker.parts.groups.delete(GROUP)
        clock.now_ms += MINUTE
        await sweep(broker)
        assert len(pop_of(broker).ledger.table) == 0
        assert [name for name in broker.parts.topics.all() if name.startswith("%RETRY%")] == []


async def test_what_cannot_be_written_goes_back_later(tmp_path: Path, clock: Clock) -> None:
    async with serving(tmp_path, clock) as (broker, client):
        await fill(client, 1)
        (name,) = extra_infos(await client.pop(TOPIC), TOPIC)
        broker.parts.store.refuse_sends("no room")
        assert (await client.ack(TOPIC, name)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        clock.now_ms += MINUTE
        await sweep(broker)
        assert pop_of(broker).ledger.table.unacknowledged == 1
        broker.parts.store.refuse_sends(None)
        await sweep(broker)
        assert pop_of(broker).ledger.table.unacknowledged == 1
        clock.now_ms += 1000
        await sweep(broker)
        assert bodies(await client.pop(TOPIC)) == [b"0"]


async def test_what_cannot_be_written_is_told_once_a_minute(tmp_path: Path, clock: Clock) -> None:
    """There was a line for each check-point and second, while a full disk is a matter of hours."""
    async with serving(tmp_path, clock) as (broker, client):
        for _ in range(3):
            await fill(client, 1)
            assert bodies(await client.pop(TOPIC)) == [b"0"]
        broker.parts.store.refuse_sends("no room")
        clock.now_ms += MINUTE
        reviver = pop_of(broker).reviver
        with capture_logs() as logs:
            for _ in range(61):
                reviver.step()
                clock.now_ms += 1000
        logged = [entry for entry in logs if entry["event"] == "broker.pop_revive_delayed"]
        assert [entry["times"] for entry in logged] == [1, 180]
        assert "no room" in logged[0]["reason"]
        broker.parts.store.refuse_sends(None)


async def test_a_pop_that_cannot_be_written_hands_out_nothing(tmp_path: Path, clock: Clock) -> None:
    async with serving(tmp_path, clock) as (broker, client):
        await fill(client, 1)
        broker.parts.store.refuse_sends("no room")
        assert (await client.pop(TOPIC)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        broker.parts.store.refuse_sends(None)
        assert bodies(await client.pop(TOPIC)) == [b"0"]


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_waking_within_an_append_hands_out_each_message_once(
    tmp_path: Path, clock: Clock, flush: str
) -> None:
    """With ASYNC_FLUSH an append wakes those that wait before it returns."""
    async with serving(tmp_path, clock, flush_disk_type=flush) as (broker, client):
        broker.parts.topics.update([TopicConfig(topic_name=TOPIC, read_queue_nums=1, write_queue_nums=1)])
        async with popping(broker) as sender:
            waiting = [
                client.send_pop(TOPIC, pollTime=60_000, bornTime=clock(), maxMsgNums=1) for _ in range(8)
            ]
            await client.ask(RequestCode.POLLING_INFO, client.fields(TOPIC))
            for i in range(8):
                await sender.put(TOPIC, b"%d" % i)
        answers = await client.answers(8)
        assert sorted(bodies(answers[opaque])[0] for opaque in waiting) == [b"%d" % i for i in range(8)]
        clock.now_ms += MINUTE
        again = [client.send_pop(TOPIC, pollTime=60_000, bornTime=clock(), maxMsgNums=1) for _ in range(8)]
        client.send_request(RequestCode.POLLING_INFO, client.fields(TOPIC))
        await sweep(broker)
        answers = await client.answers(9)
        assert sorted(bodies(answers[opaque])[0] for opaque in again) == [b"%d" % i for i in range(8)]
        await sweep(broker)
        pop_of(broker).ledger.table.check()
