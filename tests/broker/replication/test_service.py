"""A master and its slave, over real sockets and files."""

import asyncio
import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest
import trustme
from structlog.testing import capture_logs

from aerobee_broker.broker import Broker
from aerobee_broker.remoting_api.slave_gate import SLAVE_REFUSES
from aerobee_broker.replication import following, giving_server, metadata
from aerobee_proto.bodies import HaStatus
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.message_ids import decode_offset_message_id
from aerobee_service.tls import live_context
from broker.replication.pairs import (
    FAST,
    caught_up,
    eventually,
    ha_port,
    log_files,
    meet,
    pair,
    running_slave,
    slave_side,
)
from system.popping import extra_infos, popping
from system.running import Talker, running_broker, send_request, talking
from system.secured import dialling, write_files


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_a_slave_has_the_same_log_and_serves_it(tmp_path: Path, flush: str) -> None:
    settings: dict[str, Any] = {"mapped_file_size_commit_log": 65_536, "flush_disk_type": flush}
    async with (
        pair(tmp_path, **settings) as (master, slave),
        talking(master) as at_master,
        talking(slave) as at_slave,
    ):
        for number in range(150):
            assert (await at_master.put("T", b"%d " % number * 200)).code == 0
        await caught_up(master, slave)
        assert master.parts.store.end_offset > 65_536
        await eventually(lambda: "T" in slave.parts.topics)
        theirs = [record for queue in range(4) for record in await at_master.records("T", queueId=queue)]
        ours = [record for queue in range(4) for record in await at_slave.records("T", queueId=queue)]
        assert ours == theirs
        assert len(ours) == 150
    assert log_files(tmp_path / "slave") == log_files(tmp_path / "master")


async def put_over_tls(master: Broker, authority: trustme.CA) -> None:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", master.port, ssl=dialling(authority, "client")
    )
    try:
        client = Talker(reader, writer)
        for number in range(50):
            assert (await client.put("T", b"%d " % number * 200)).code == 0
    finally:
        writer.transport.abort()


async def test_over_tls_a_slave_has_the_same_log(tmp_path: Path) -> None:
    authority = trustme.CA()
    async with pair(tmp_path, **write_files(authority, tmp_path)) as (master, slave):
        await put_over_tls(master, authority)
        await caught_up(master, slave)
        await eventually(lambda: "T" in slave.parts.topics)  # asked for at the other port
    assert log_files(tmp_path / "slave") == log_files(tmp_path / "master") != {}


@pytest.mark.parametrize("whose", ["none", "another authority's"])
async def test_a_master_that_speaks_tls_alone_gives_nothing_to_others(tmp_path: Path, whose: str) -> None:
    authority = trustme.CA()
    files = write_files(authority, tmp_path)
    (tmp_path / "other").mkdir()
    other = {} if whose == "none" else write_files(trustme.CA(), tmp_path / "other")
    async with running_broker(tmp_path / "master", **(FAST | files)) as master:
        await put_over_tls(master, authority)
        with capture_logs() as logs:
            async with running_slave(tmp_path / "slave", **other) as slave:
                meet(slave, master)
                await eventually(lambda: any(line["event"] == "replication.master_lost" for line in logs))
                assert not slave.parts.replication.is_linked
                assert slave.parts.store.end_offset == 0
                assert master.parts.replication.status().in_sync_slave_nums == 0


async def test_the_link_shows_a_renewed_certificate_and_trusts_renewed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had those of the start for as long as the master ran."""
    monkeypatch.setattr(live_context, "LOOK_S", 0.01)
    authority, renewed = trustme.CA(), trustme.CA()

    async def is_served(whose: trustme.CA) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=dialling(whose, "client"))
        except OSError:
            return False
        writer.transport.abort()
        return True

    files = write_files(authority, tmp_path)
    async with running_broker(tmp_path / "master", **(FAST | files)) as master:
        port = ha_port(master)
        assert await is_served(authority)
        assert not await is_served(renewed)
        write_files(renewed, tmp_path)
        async with asyncio.timeout(20):
            while not await is_served(renewed):
                pass
        assert not await is_served(authority)
        await put_over_tls(master, renewed)
        async with running_slave(tmp_path / "slave", **files) as slave:
            meet(slave, master)
            await caught_up(master, slave)
    assert log_files(tmp_path / "slave") == log_files(tmp_path / "master") != {}


async def test_who_is_silent_in_the_handshake_of_the_link_is_hung_up_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(giving_server, "HANDSHAKE_S", 0.05)
    files = write_files(trustme.CA(), tmp_path)
    async with running_broker(tmp_path / "master", **(FAST | files)) as master:
        with capture_logs() as logs:
            reader, writer = await asyncio.open_connection("127.0.0.1", ha_port(master))
            async with asyncio.timeout(20):
                assert await reader.read() == b""
            writer.close()
            await eventually(lambda: any(line["event"] == "replication.handshake_failed" for line in logs))
        _, last = await asyncio.open_connection("127.0.0.1", ha_port(master))
    last.close()  # it was silent when the master stopped, which did not wait for it


async def test_both_say_how_they_stand(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, slave), talking(master) as at_master, talking(slave) as at_slave:
        await at_master.put("T")
        await caught_up(master, slave)
        end = master.parts.store.end_offset
        await eventually(lambda: master.parts.replication.status().ha_connection_info[0].diff == 0)
        of_master = HaStatus.from_stranger((await at_master.ask(RequestCode.GET_BROKER_HA_STATUS)).body)
        assert (of_master.master, of_master.in_sync_slave_nums) == (True, 1)
        assert of_master.master_commit_log_max_offset == end
        (seen,) = of_master.ha_connection_info
        assert (seen.slave_ack_offset, seen.transfer_from_where, seen.in_sync) == (end, end, True)
        of_slave = HaStatus.from_stranger((await at_slave.ask(RequestCode.GET_BROKER_HA_STATUS)).body)
        assert (of_slave.master, of_slave.ha_connection_info) == (False, [])
        assert of_slave.ha_client_runtime_info.master_addr == master.parts.identity.ha_addr
        assert of_slave.ha_client_runtime_info.max_offset == end


async def test_an_empty_slave_gets_all_that_the_master_has(tmp_path: Path) -> None:
    small: dict[str, Any] = {"mapped_file_size_commit_log": 65_536}
    async with running_broker(tmp_path / "master", **small) as master, talking(master) as client:
        for number in range(200):
            await client.put("T", b"%d " % number * 200, queue_id=0)
        async with running_slave(tmp_path / "slave", **small) as slave:
            meet(slave, master)
            await caught_up(master, slave)
            assert slave.parts.store.reading.readable_range("T", 0) == (0, 200)
        assert log_files(tmp_path / "slave") == log_files(tmp_path / "master")


async def test_a_slave_goes_on_where_it_was(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "master") as master, talking(master) as client:
        for round_ in range(3):
            async with running_slave(tmp_path / "slave") as slave:
                meet(slave, master)
                await eventually(lambda slave=slave: slave.parts.replication.is_linked)  # type: ignore[misc]
                for number in range(20):
                    await client.put("T", b"round %d, %d" % (round_, number))
                await caught_up(master, slave)
            for number in range(20):
                await client.put("T", b"alone %d, %d" % (round_, number))
        async with running_slave(tmp_path / "slave") as slave:
            meet(slave, master)
            await caught_up(master, slave)
    assert log_files(tmp_path / "slave") == log_files(tmp_path / "master")


async def test_of_a_master_with_a_damaged_log_a_slave_begins_with_a_copy(tmp_path: Path) -> None:
    """It takes nothing over that cannot be proven, and says what to do; what it does then works."""
    master_root, copy_root = tmp_path / "master", tmp_path / "copy"
    async with running_broker(master_root) as master, talking(master) as client:
        for number in range(20):
            await client.put("T", b"message %d" % number)
        damaged_at = master.parts.store.end_offset // 2
    (log,) = (path for path in (master_root / "commitlog").iterdir() if path.read_bytes().strip(b"\0"))
    with log.open("r+b") as file:
        file.seek(damaged_at)
        file.write(bytes(100))
    shutil.copytree(master_root, copy_root, ignore=shutil.ignore_patterns("storeIdentity*"))
    async with running_broker(master_root) as master, talking(master) as client:
        with capture_logs() as logs:
            async with running_slave(tmp_path / "empty") as slave:
                meet(slave, master)
                await eventually(lambda: any(line["event"] == "replication.master_lost" for line in logs))
        (lost, *_) = [line for line in logs if line["event"] == "replication.master_lost"]
        assert lost["kind"] == "rubbish"
        assert "copy of the stopped master's store folder" in lost["way_out"]
        async with running_slave(copy_root) as slave:
            meet(slave, master)
            for number in range(20):
                await client.put("T", b"behind the damage %d" % number)
            await caught_up(master, slave)
    assert log_files(copy_root) == log_files(master_root)


async def test_a_slave_waits_for_its_master_and_finds_it_again(tmp_path: Path) -> None:
    async with running_slave(tmp_path / "slave") as slave:
        for round_ in range(2):
            async with running_broker(tmp_path / "master") as master, talking(master) as client:
                meet(slave, master)
                await client.put("T", b"%d" % round_)
                await caught_up(master, slave)
            await eventually(lambda: not slave.parts.replication.is_linked)
    assert log_files(tmp_path / "slave") == log_files(tmp_path / "master")


async def test_a_slave_takes_nothing(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, slave), talking(master) as at_master, talking(slave) as at_slave:
        await at_master.put("T")
        await caught_up(master, slave)
        end = slave.parts.store.end_offset
        assert (await at_slave.put("T")).code == ResponseCode.SYSTEM_BUSY
        assert (await at_slave.make_topic("New")).code == ResponseCode.NO_PERMISSION
        assert (await at_slave.ask(RequestCode.LOCK_BATCH_MQ, body=b"{}")).code == ResponseCode.SYSTEM_ERROR
        assert slave.parts.store.end_offset == end


async def test_a_new_topic_is_known_as_soon_as_it_has_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers at the slave were told for three seconds that there was no such topic."""
    monkeypatch.setattr(metadata, "SYNC_S", 3600)
    async with pair(tmp_path) as (master, slave), talking(master) as client:
        for topic in ("One", "Two"):
            assert (await client.put(topic)).code == 0
            await eventually(lambda topic=topic: topic in slave.parts.topics)  # type: ignore[misc]


async def test_what_a_slave_may_not_do_it_refuses_with_the_official_codes(tmp_path: Path) -> None:
    async with running_slave(tmp_path, slave_read_enable=False) as slave, talking(slave) as client:
        answered = {code: (await client.ask(code)).code for code in SLAVE_REFUSES}
        assert answered == {code: expected for code, (expected, _) in SLAVE_REFUSES.items()}
        assert (await client.pull("T")).code == ResponseCode.SYSTEM_BUSY


async def test_a_slave_without_its_master_serves_as_one_and_waits_with_its_readers(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, slave), talking(slave) as client:
        async with talking(master) as at_master:
            await at_master.put("T", b"one", queue_id=0)
            await caught_up(master, slave)
            await eventually(lambda: "T" in slave.parts.topics)
        # While the master is there, the end of the queue is its business, also for who asks to be held.
        answer = await client.pull("T", 1, queueId=0, sysFlag=6, suspendTimeoutMillis=10_000)
        assert (answer.code, answer.ext["suggestWhichBrokerId"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "0")
        assert answer.ext["nextBeginOffset"] == "1"
        await master.close()
        await eventually(lambda: not slave.parts.replication.is_linked)
        for offset in (1, 7):  # the master may have had more, or have it still
            answer = await client.pull("T", offset, queueId=0, sysFlag=6, suspendTimeoutMillis=50)
            assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, str(offset))
        (record,) = await client.records("T", queueId=0)
        assert record.body == b"one"


async def test_what_is_committed_at_the_slave_reaches_the_master_forwards_only(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, slave), talking(master) as at_master, talking(slave) as at_slave:
        for number in range(6):
            await at_master.put("T", b"%d" % number, queue_id=number % 2)
        await at_master.pull("T", 0, queueId=0)
        commit = {"consumerGroup": "test-group", "topic": "T"}

        async def committed(client: Talker, queue_id: int, offset: int) -> None:
            fields = {**commit, "queueId": str(queue_id), "commitOffset": str(offset)}
            assert (await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0

        await committed(at_master, 0, 1)
        await committed(at_master, 1, 3)
        await eventually(lambda: slave.parts.offsets.get("test-group", "T", 1) == 3)
        # A round that read the groups before this one was made may have read the offsets behind it.
        await eventually(lambda: slave.parts.groups.get("test-group") is not None)
        await committed(at_slave, 0, 2)
        await committed(at_slave, 1, 2)
        await eventually(lambda: master.parts.offsets.get("test-group", "T", 0) == 2)
        await eventually(lambda: slave.parts.offsets.get("test-group", "T", 1) == 3)
        assert master.parts.offsets.get("test-group", "T", 1) == 3
        # A group that goes back at the master goes back at the slave.
        await committed(at_master, 0, 0)
        await eventually(lambda: slave.parts.offsets.get("test-group", "T", 0) == 0)


async def test_a_group_that_only_a_slave_knows_has_its_progress_at_the_master(tmp_path: Path) -> None:
    """It read at the slave while the master stood still: the master knew no such group, and refused its offsets."""
    async with pair(tmp_path) as (master, slave), talking(master) as at_master, talking(slave) as at_slave:
        await at_master.put("T", b"0", queue_id=0)
        await caught_up(master, slave)
        await eventually(lambda: slave.parts.topics.get("T") is not None)
        asked = {"consumerGroup": "new", "topic": "T", "queueId": "0", "commitOffset": "1"}
        await at_slave.pull("T", 0, consumerGroup="new", queueId=0)
        assert (await at_slave.ask(RequestCode.UPDATE_CONSUMER_OFFSET, asked)).code == 0
        assert master.parts.groups.get("new") is None
        await eventually(lambda: master.parts.offsets.get("new", "T", 0) == 1)
        await eventually(lambda: slave.parts.groups.to_json() == master.parts.groups.to_json())


async def test_a_send_waits_for_the_slave_and_is_seen_when_it_has_it(tmp_path: Path) -> None:
    of_master: dict[str, Any] = {"broker_role": "SYNC_MASTER", "in_sync_replicas": 2, "slave_timeout": 300}
    async with running_broker(tmp_path / "master", **of_master) as master, talking(master) as client:
        assert (await client.put("T", queue_id=0)).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert await client.records("T", queueId=0) == []
        async with running_slave(tmp_path / "slave") as slave:
            meet(slave, master)
            await caught_up(master, slave)
            assert (await client.put("T", queue_id=0)).code == ResponseCode.SUCCESS
            assert len(await client.records("T", queueId=0)) == 2


@pytest.mark.parametrize("ends_by", ["time", "shutdown"])
async def test_whatever_waits_for_a_slave_that_is_gone_is_answered(tmp_path: Path, ends_by: str) -> None:
    """It is stored here, and that is what the code says: RocketMQ's of a send."""
    timeout_ms = 200 if ends_by == "time" else 3_600_000
    of_master = {"broker_role": "SYNC_MASTER", "in_sync_replicas": 2, "slave_timeout": timeout_ms}
    async with pair(tmp_path, of_master=of_master) as (master, slave), popping(master) as client:
        for body in (b"0", b"1"):
            sent = await client.put("T", body, queue_id=0)
        names = extra_infos(await client.pop("T"), "T")
        promises = master.parts.promises
        await promises.settled()
        await slave.close()
        await eventually(lambda: not master.parts.replication.status().in_sync_slave_nums)
        offset = decode_offset_message_id(sent.ext["msgId"]).physical_offset
        back = {"offset": f"{offset}", "group": "test-group", "delayLevel": "3", "originTopic": "T"}
        again = {"consumerGroup": "test-group", "topic": "T", "queueId": "0", "offset": "0"}
        again |= {"extraInfo": names[0], "invisibleTime": "90000"}
        asked = [
            client.send_ack("T", names[1]),
            client.send_request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, again),
            client.send_request(RequestCode.CONSUMER_SEND_MSG_BACK, back),
        ]
        client.send(send_request("T", b"2", opaque=1))
        end = master.parts.store.end_offset
        await eventually(lambda: promises.waiting_count == 1 and master.parts.store.end_offset > end)
        if ends_by == "shutdown":
            await asyncio.sleep(0)  # all four were read together
            await master.close()
        answers = await client.answers(len(asked) + 1)
        codes = [answers[opaque].code for opaque in (1, *asked)]
        assert codes == [ResponseCode.FLUSH_SLAVE_TIMEOUT] * 4


async def test_too_few_copies_refuse_a_send_before_it_is_stored(tmp_path: Path) -> None:
    of_master = {"broker_role": "SYNC_MASTER", "in_sync_replicas": 2, "min_in_sync_replicas": 2}
    async with pair(tmp_path, of_master=of_master) as (master, slave), talking(master) as client:
        await eventually(lambda: master.parts.replication.status().in_sync_slave_nums == 1)
        assert (await client.put("T", queue_id=0)).code == ResponseCode.SUCCESS
        end = master.parts.store.end_offset
        await slave.close()
        await eventually(lambda: master.parts.replication.status().in_sync_slave_nums == 0)
        answer = await client.put("T", queue_id=0)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "in-sync replicas not enough" in (answer.remark or "")
        assert master.parts.store.end_offset == end


async def test_a_slave_that_is_ahead_of_its_master_does_not_follow(tmp_path: Path) -> None:
    """The master came back with an older store: RocketMQ's pair grows apart without a word."""
    async with pair(tmp_path) as (master, slave), talking(master) as client:
        await client.put("T")
        await caught_up(master, slave)
    with capture_logs() as logs:
        async with running_broker(tmp_path / "other") as shorter, running_slave(tmp_path / "slave") as slave:
            meet(slave, shorter)
            await eventually(lambda: any(line["event"] == "replication.master_lost" for line in logs))
            assert not slave.parts.replication.is_linked
    lost = next(line for line in logs if line["event"] == "replication.master_lost")
    assert (lost["kind"], lost["log_level"]) == ("stranger", "error")
    assert lost["way_out"]


async def test_whoever_connects_and_says_nothing_sensible_disturbs_nobody(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, slave), talking(master) as client:
        for said in (b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", (1 << 60).to_bytes(8, "big"), b"\0"):
            reader, writer = await asyncio.open_connection("127.0.0.1", ha_port(master))
            writer.write(said)
            if len(said) > 1:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
            writer.close()
        await client.put("T")
        await caught_up(master, slave)
        assert len(master.parts.replication.status().ha_connection_info) == 1


async def test_a_master_counts_as_gone_when_its_host_refuses_and_it_was_followed(tmp_path: Path) -> None:
    """A port where nobody has ever been followed says nothing: the master may be about to open it."""
    settings: dict[str, Any] = FAST
    async with (
        running_broker(tmp_path / "master", **settings) as master,
        running_slave(tmp_path / "slave") as slave,
        running_slave(tmp_path / "new") as new,
    ):
        missed: list[bool] = []
        never: list[bool] = []
        follower, other = slave_side(slave).follower, slave_side(new).follower
        follower.meeting = follower.meeting._replace(missed=missed.append)
        other.meeting = other.meeting._replace(missed=never.append)
        meet(slave, master)
        await eventually(lambda: follower.is_linked)
        assert missed == []
        addr = follower.ha_addr
        await master.close()
        await eventually(lambda: missed == [True])
        other.master_found(addr)
        await eventually(lambda: other.failures > following.GONE_AFTER)
        assert (missed, never) == ([True], [])
