"""The broker as a whole: start, what survives a restart, who may have the store, disks that fail or fill up."""

import asyncio
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_broker.broker import Broker, sync_pause_s
from aerobee_proto.bodies import SubscriptionGroupConfig, TopicConfig
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.message_ids import decode_offset_message_id
from aerobee_service.giving_way import Sparing
from aerobee_store.faults.errors import CorruptStore, StoreLocked
from broker.replication.pairs import eventually
from broker.support import Clock
from system.faulty_disk import FaultyDisk
from system.running import Talker, broker_config, running_broker, send_request, talking, text_of


def event(logs: list[Any], name: str) -> dict[str, Any]:
    """The one log event of that name."""
    (found,) = [entry for entry in logs if entry["event"] == name]
    return dict(found)


# --- start and stop -----------------------------------------------------------------------------------------------


async def test_ready_is_told_once_everything_is(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with running_broker(tmp_path) as broker, talking(broker) as client:
            ready = event(logs, "broker.ready")
            assert (await client.put("T")).code == 0
    assert ready["address"] == broker.address == f"127.0.0.1:{broker.port}"
    assert ready["broker_name"] == "test-a"
    assert ready["cluster"] == "TestCluster"
    assert ready["flush"] == "SYNC_FLUSH"
    assert ready["store"] == str(tmp_path)
    assert ready["topics"] == 13
    assert 0 <= ready["took_ms"] < 10_000
    stopped = event(logs, "broker.stopped")
    assert stopped["failed"] is False
    names = [entry["event"] for entry in logs]
    assert names.index("store.recovered") < names.index("broker.ready") < names.index("store.closed")


async def test_a_running_broker_has_an_abort_file_and_a_stopped_one_has_none(tmp_path: Path) -> None:
    async with running_broker(tmp_path):
        assert (tmp_path / "abort").exists()
    assert not (tmp_path / "abort").exists()


async def test_a_stopped_broker_takes_no_connections(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talking(broker) as client:
        await client.put("T")
        await broker.close()
        assert await client.is_closed_by_the_server()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", broker.port)


async def test_sends_that_wait_for_the_disk_are_answered_before_the_stop(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talking(broker) as client:
        await client.put("T")
        client.send(*[send_request("T", b"%d" % i, opaque=i) for i in range(500)])
        await client.receive()
        await broker.close()
        acknowledged = 2
        while True:
            try:
                answer = await client.receive()
            except (EOFError, ConnectionError):
                break
            assert answer.code == 0
            acknowledged += 1
    async with running_broker(tmp_path) as broker, talking(broker) as client:
        assert len(await client.records("T")) >= acknowledged


async def test_messages_offsets_topics_and_groups_survive_a_restart(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talking(broker) as client:
        for i in range(10):
            await client.put("T", b"%d" % i, queue_id=i % 2, properties=text_of({"KEYS": f"k{i}"}))
        before = (await client.pull("T", sysFlag=5, commitOffset=3)).body
        broker.parts.topics.update([TopicConfig(topic_name="Wide", write_queue_nums=9, perm=2)])
        broker.parts.groups.update([SubscriptionGroupConfig(group_name="calm", consume_enable=False)])
    async with running_broker(tmp_path) as broker, talking(broker) as client:
        assert (await client.pull("T")).body == before
        wide, calm = broker.parts.topics.require("Wide"), broker.parts.groups.require("calm")
        assert (wide.write_queue_nums, wide.perm, calm.consume_enable) == (9, 2, False)
        assert broker.parts.topics.require("T").write_queue_nums == 4
        stored = {"consumerGroup": "test-group", "topic": "T", "queueId": "0"}
        assert (await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, stored)).ext["offset"] == "3"
        answer = await client.put("T", b"next")
        assert answer.ext["queueOffset"] == "5"
        fields = {"topic": "T", "key": "k7", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": str(2**62)}
        assert b"7" in (await client.ask(RequestCode.QUERY_MESSAGE, fields)).body


async def test_topics_whose_settings_were_lost_are_found_by_their_queues(tmp_path: Path) -> None:
    """A crash may come between a topic's first message and the write of its settings."""
    async with running_broker(tmp_path) as broker, talking(broker) as client:
        await client.put("T", b"kept", queue_id=2)
    for path in (tmp_path / "config").glob("topics.json*"):
        path.unlink()
    async with running_broker(tmp_path, auto_create_topic_enable=False) as broker, talking(broker) as client:
        assert [one.body for one in await client.records("T", queueId=2)] == [b"kept"]


async def test_starting_and_stopping_many_times_loses_nothing(tmp_path: Path) -> None:
    for i in range(8):
        async with (
            running_broker(tmp_path, mapped_file_size_commit_log=16_384) as broker,
            talking(broker) as client,
        ):
            assert (await client.put("T", b"%d" % i * 2000)).ext["queueOffset"] == str(i)
            assert [one.body for one in await client.records("T")] == [b"%d" % j * 2000 for j in range(i + 1)]
            broker.parts.store.check()


async def test_closing_twice_and_without_a_start_is_harmless(tmp_path: Path) -> None:
    broker = Broker(broker_config(tmp_path / "a"))
    await broker.close()
    async with running_broker(tmp_path / "b") as other:
        await other.close()


# --- who may have it ----------------------------------------------------------------------------------------------


async def test_a_second_broker_on_the_store_is_refused_and_the_first_unharmed(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as first, talking(first) as client:
        await client.put("T", b"before")
        second = Broker(broker_config(tmp_path))
        with pytest.raises(StoreLocked, match="another running broker"):
            await second.start()
        await second.close()
        assert (tmp_path / "abort").exists()
        assert (await client.put("T", b"after")).code == 0
        assert [one.body for one in await client.records("T")] == [b"before", b"after"]
        third = Broker(broker_config(tmp_path))
        with pytest.raises(StoreLocked):
            await third.start()
        await third.close()
    async with running_broker(tmp_path) as again, talking(again) as client:
        assert len(await client.records("T")) == 2


async def test_a_taken_port_is_named_and_the_store_left_in_order(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        broker = Broker(broker_config(tmp_path, listen_port=port))
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            await broker.start()
        await broker.close()
    assert not (tmp_path / "abort").exists()
    async with running_broker(tmp_path) as broker, talking(broker) as client:
        assert (await client.put("T")).code == 0


async def test_an_address_of_another_machine_is_named(tmp_path: Path) -> None:
    broker = Broker(broker_config(tmp_path, bind_address="192.0.2.1"))
    with pytest.raises(OSError, match=r"cannot listen on 192\.0\.2\.1"):
        await broker.start()
    await broker.close()


async def test_foreign_files_in_the_store_are_left_alone(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talking(broker) as client:
        await client.put("T", b"mine", properties=text_of({"KEYS": "k"}))
    foreign = [
        "readme.txt",
        "lost+found/inode",
        "consumequeue/.DS_Store",
        "consumequeue/T/notes",
        "consumequeue/not a topic/x/00000000000000000000",
        "index/notes.txt",
        "config/mine.json",
        "config/topics.json.swp",
    ]
    for name in foreign:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"this is {name}")
    for _ in range(2):
        async with running_broker(tmp_path) as broker, talking(broker) as client:
            assert (await client.records("T"))[0].body == b"mine"
            assert (await client.put("T")).code == 0
            broker.parts.store.check()
    assert [name for name in foreign if (tmp_path / name).read_text() != f"this is {name}"] == []


@pytest.mark.parametrize(
    "name", ["commitlog/notes.txt", "commitlog/0000000000000000000x", "consumequeue/T/0/notes"]
)
async def test_foreign_files_among_data_files_are_named(tmp_path: Path, name: str) -> None:
    """They may be what is left of an operator's repair: nothing is guessed, nothing is touched."""
    async with running_broker(tmp_path) as broker, talking(broker) as client:
        await client.put("T", b"mine")
    (tmp_path / name).write_text("what is this?")
    broker = Broker(broker_config(tmp_path))
    with pytest.raises(
        CorruptStore, match=f"{name}: foreign file in a data folder; move it out of the store"
    ):
        await broker.start()
    await broker.close()
    (tmp_path / name).unlink()
    async with running_broker(tmp_path) as broker, talking(broker) as client:
        assert [one.body for one in await client.records("T")] == [b"mine"]


# --- disks that fail ----------------------------------------------------------------------------------------------


async def test_a_failed_sync_refuses_what_waits_and_is_final(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with capture_logs() as logs:
        async with running_broker(tmp_path, io=disk) as broker, talking(broker) as client:
            await client.put("T", b"safe")
            disk.sync_error = OSError(5, "Input/output error")
            disk.may_sync.clear()
            client.send(*[send_request("T", b"lost", opaque=i) for i in range(10)])
            await eventually(lambda: broker.parts.promises.waiting_count == 10)
            disk.may_sync.set()
            answers = await client.answers(10)
            assert {answer.code for answer in answers.values()} == {ResponseCode.SERVICE_NOT_AVAILABLE}
            async with asyncio.timeout(5):
                failed = await asyncio.shield(broker.failed)
            assert failed is disk.sync_error
            disk.sync_error = None
            later = await client.put("T", b"later")
            assert later.code == ResponseCode.SERVICE_NOT_AVAILABLE
            without_wait = await client.put(
                "T", b"later", properties=text_of({"WAIT": "false", "UNIQ_KEY": "K"})
            )
            assert without_wait.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert [one.body for one in await client.records("T")] == [b"safe"]
    assert (tmp_path / "abort").exists()
    logged = event(logs, "store.disk_failed")
    assert logged["what"] == "commit log"
    assert logged["reason"] == "[Errno 5] Input/output error"
    assert event(logs, "broker.sends_abandoned")["waiting_count"] == 10
    assert event(logs, "broker.failed")["log_level"] == "warning"
    assert [entry for entry in logs if entry["log_level"] == "error"] == [logged]
    async with running_broker(tmp_path) as broker, talking(broker) as client:
        assert (await client.records("T"))[0].body == b"safe"


async def test_a_sync_that_fails_in_the_background_ends_the_broker_too(tmp_path: Path) -> None:
    disk = FaultyDisk()
    settings: dict[str, Any] = {"flush_disk_type": "ASYNC_FLUSH", "flush_interval_commit_log": 1}
    async with running_broker(tmp_path, io=disk, **settings) as broker, talking(broker) as client:
        await client.put("T")
        disk.sync_error = OSError(5, "Input/output error")
        await client.put("T")
        async with asyncio.timeout(5):
            assert await asyncio.shield(broker.failed) is disk.sync_error
    assert (tmp_path / "abort").exists()


@pytest.mark.parametrize("work", ["keys.build", "confirm"])
async def test_a_fault_in_work_of_the_loop_ends_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    """Index work is done by a timer, dispatch behind a sync: neither has a task that could be watched."""

    def fault(*_: object, **__: object) -> None:
        raise ValueError("a fault of ours")

    with capture_logs() as logs:
        async with running_broker(tmp_path) as broker, talking(broker) as client:
            part, _, method = work.rpartition(".")
            store = broker.parts.store
            monkeypatch.setattr(getattr(store, part) if part else store, method, fault)
            assert (await client.put("T", KEYS="k")).code == ResponseCode.SUCCESS
            async with asyncio.timeout(5):
                assert isinstance(await asyncio.shield(broker.failed), ValueError)
            monkeypatch.undo()
    assert event(logs, "broker.task_failed")["task"] in {"index", "confirm"}
    async with running_broker(tmp_path) as broker, talking(broker) as client:
        assert [record.body for record in await client.records("T")] == [b"hello"]


async def test_a_sync_of_the_queues_that_fails_ends_the_broker_too(tmp_path: Path) -> None:
    disk = FaultyDisk()
    settings: dict[str, Any] = {"flush_interval_consume_queue": 1, "flush_interval_commit_log": 60_000}
    with capture_logs() as logs:
        async with (
            running_broker(tmp_path, io=disk, flush_disk_type="ASYNC_FLUSH", **settings) as broker,
            talking(broker) as client,
        ):
            disk.sync_error = OSError(5, "Input/output error")
            await client.put("T")
            async with asyncio.timeout(5):
                assert await asyncio.shield(broker.failed) is disk.sync_error
            assert (await client.put("T")).code == ResponseCode.SERVICE_NOT_AVAILABLE
    logged = event(logs, "store.disk_failed")
    # Whichever the next round of upkeep comes to first.
    assert logged["what"] in {"consume queue", "checkpoint"}
    assert [entry for entry in logs if entry["log_level"] == "error"] == [logged]
    assert (tmp_path / "abort").exists()


async def test_a_round_of_syncs_that_rests_does_so_no_more_when_the_broker_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who stops it waits for the round."""
    began, ended = threading.Event(), threading.Event()

    class Restful(Sparing):
        def __call__(self) -> None:
            began.set()
            while not self.is_hurried:
                super().__call__()
            ended.set()

    monkeypatch.setattr("aerobee_broker.broker.Sparing", Restful)
    async with running_broker(tmp_path, flush_interval_consume_queue=1) as broker:
        async with talking(broker) as client:
            await client.put("T")
        assert await asyncio.to_thread(began.wait, 10.0)
        assert not ended.is_set()
    assert ended.is_set()


@pytest.mark.parametrize(
    ("took_s", "file_count", "pause_s"),
    [(0.002, 8, 0.02), (0.3, 8_000, 16.0), (4.0, 8_000, 40.0), (12.0, 8_000, 60.0), (1.0, 100_000, 60.0)],
    ids=["few queues", "many at once", "many one by one", "a slow disk", "very many"],
)
def test_rounds_of_syncs_are_as_rare_as_they_are_dear(took_s: float, file_count: int, pause_s: float) -> None:
    assert sync_pause_s(took_s, file_count) == pytest.approx(pause_s)


async def fill(client: Talker, bodies: list[bytes]) -> list[int]:
    """Send each body; the answers' codes."""
    return [(await client.put("T", body)).code for body in bodies]


async def test_a_full_disk_refuses_sends_serves_reads_and_ends_by_itself(tmp_path: Path) -> None:
    disk, clock = FaultyDisk(), Clock()
    settings: dict[str, Any] = {
        "mapped_file_size_commit_log": 16_384,
        "flush_interval_consume_queue": 3_600_000,  # nothing is allocated ahead
    }
    with capture_logs() as logs:
        async with (
            running_broker(tmp_path, io=disk, clock=clock, **settings) as broker,
            talking(broker) as client,
        ):
            assert await fill(client, [b"a" * 4000]) == [0]
            disk.is_full = True
            codes = await fill(client, [b"b" * 4000] * 6)
            full = ResponseCode.SERVICE_NOT_AVAILABLE
            assert codes == [0, 0, full, full, full, full]
            refused = await client.put("T", b"c" * 4000)
            assert "no room for" in (refused.remark or "")
            assert len(await client.records("T")) == 3
            facts = {"topic": "T", "queueId": "0"}
            assert (await client.ask(RequestCode.GET_MAX_OFFSET, facts)).ext["offset"] == "3"

            disk.is_full = False
            assert await fill(client, [b"d" * 4000]) == [full]  # room is looked for once a second
            clock.now_ms += 1000
            assert await fill(client, [b"e" * 4000] * 2) == [0, 0]
            bodies = [one.body[:1] for one in await client.records("T")]
            assert bodies == [b"a", b"b", b"b", b"e", b"e"]
            assert not broker.failed.done()
    assert not (tmp_path / "abort").exists()
    met = [entry for entry in logs if entry["event"] == "store.disk_full_met"]
    assert len(met) == 1
    assert met[0]["wanted_bytes"] == 16_384


async def test_a_read_of_sends_that_the_disk_cannot_hold_is_answered_one_by_one(tmp_path: Path) -> None:
    disk = FaultyDisk()
    settings: dict[str, Any] = {
        "mapped_file_size_commit_log": 16_384,
        "flush_interval_consume_queue": 3_600_000,
    }
    async with running_broker(tmp_path, io=disk, **settings) as broker, talking(broker) as client:
        await client.put("T", b"a" * 4000)
        disk.is_full = True
        client.send(*[send_request("T", b"%d" % i * 4000, opaque=i) for i in range(6)])
        answers = await client.answers(6)
        stored = [i for i in range(6) if answers[i].code == 0]
        assert stored == [0, 1]
        assert {answers[i].code for i in range(2, 6)} <= {
            ResponseCode.SYSTEM_ERROR,
            ResponseCode.SERVICE_NOT_AVAILABLE,
        }
        assert [one.body[:1] for one in await client.records("T")] == [b"a", b"0", b"1"]
        broker.parts.store.check()


async def test_a_queue_that_cannot_grow_holds_sends_back_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries that found no room were tried again by the next sync only; sends were refused, so there was none."""
    monkeypatch.setattr("aerobee_broker.messages.visibility.DISPATCH_RETRY_S", 0.001)
    disk, clock = FaultyDisk(), Clock()
    settings: dict[str, Any] = {
        "mapped_file_size_consume_queue": 200,  # ten messages
        "flush_interval_consume_queue": 3_600_000,
    }
    async with (
        running_broker(tmp_path, io=disk, clock=clock, **settings) as broker,
        talking(broker) as client,
    ):
        await fill(client, [b"%d" % i for i in range(10)])
        disk.is_full = True
        codes = await fill(client, [b"%d" % i for i in range(10, 14)])
        assert codes[0] == 0
        assert codes[-1] == ResponseCode.SERVICE_NOT_AVAILABLE
        assert len(await client.records("T")) == 10
        disk.is_full = False
        clock.now_ms += 1000
        async with asyncio.timeout(10):
            while (await client.put("T", b"again")).code != 0:
                clock.now_ms += 1000
        acknowledged = 10 + codes.count(0) + 1
        bodies = [one.body for one in await client.records("T")]
        assert len(bodies) == acknowledged
        assert bodies[:11] == [b"%d" % i for i in range(11)]
        broker.parts.store.check()


async def test_settings_that_cannot_be_saved_are_told_and_do_not_stop_the_stop(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with capture_logs() as logs:
        async with running_broker(tmp_path, io=disk) as broker, talking(broker) as client:
            await client.put("T", b"kept")
            await client.pull("T", sysFlag=5, commitOffset=1)
            disk.is_full = True
    assert any(entry["event"].startswith("broker.config_") for entry in logs if entry["log_level"] != "info")
    async with running_broker(tmp_path) as broker, talking(broker) as client:
        assert [one.body for one in await client.records("T")] == [b"kept"]


async def test_an_advertised_name_is_registered_as_it_is_and_stored_as_its_address(tmp_path: Path) -> None:
    """A broker with brokerIP1 as a host name, as containers have it, did not start."""
    async with running_broker(tmp_path, broker_ip1="localhost") as broker:
        assert broker.address == f"localhost:{broker.port}"
        async with talking(broker.port) as talker:
            answer = await talker.put("Topic")
            place = decode_offset_message_id(answer.ext["msgId"])
    assert (place.host, place.port) == ("127.0.0.1", broker.port)


async def test_an_advertised_name_that_nobody_knows_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"brokerIP1=nowhere\.invalid"):
        async with running_broker(tmp_path, broker_ip1="nowhere.invalid"):
            pytest.fail("a broker whose ids nobody can follow must not serve")
