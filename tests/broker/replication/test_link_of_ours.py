"""Pairs of ours that have to find out first where their logs go on, and who they are."""

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_broker.broker import Life
from aerobee_broker.lives.role import Role
from aerobee_broker.replication import giving_server, greeting
from aerobee_proto.ha import encode_report
from aerobee_proto.ha_hello import Hello, encode_message
from aerobee_store.replicas.epochs import Epoch
from aerobee_store.terms.cuts import START_OVER
from broker.replication.pairs import (
    SMALL,
    caught_up,
    elected,
    eventually,
    ha_port,
    life,
    log_files,
    master_side,
    meet,
    pair,
    running_slave,
    slave_side,
)
from system.running import Talker, running_broker, send_request, talking

CREDENTIALS = '{"accessKey":"inner","secretKey":"a secret of the brokers"}'


async def put(client: Talker, count: int, text: bytes = b"message") -> None:
    for number in range(count):
        await client.put("T", text + b" %d " % number * 100, queue_id=0)


def events(logs: list[Any], name: str) -> list[Any]:
    return [line for line in logs if line["event"] == name]


async def test_an_old_master_is_cut_back_and_follows_the_new_one(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    async with elected(one, 1, 1) as old, talking(old) as client:
        async with running_slave(two, 2, life=life(1, 2), **SMALL) as slave:
            meet(slave, old)
            await put(client, 50)
            await caught_up(old, slave)
            common = slave.parts.store.end_offset
        await put(client, 30, b"nobody was told that it is stored")
    async with elected(two, 2, 2) as new, talking(new) as client:
        await put(client, 5, b"the new master's")
        with capture_logs() as logs:
            async with running_slave(one, 1, life=life(2, 1), **SMALL) as slave:
                meet(slave, new)
                async with asyncio.timeout(20):
                    assert await slave.cut == common
                assert not slave.parts.replication.is_linked
            async with running_slave(one, 1, life=life(2, 1, cut_to=common), **SMALL) as slave:
                meet(slave, new)
                await put(client, 5, b"later")
                await caught_up(new, slave)
                assert slave.parts.store.epochs.entries == (Epoch(1, 0), Epoch(2, common))
                assert slave.parts.store.reading.readable_range("T", 0) == (0, 60)
                slave.parts.store.check()
    assert log_files(one) == log_files(two)
    (cut,) = events(logs, "store.log_cut")
    assert (cut["physical_offset"], cut["message_count"]) == (common, 30)
    assert [line["physical_offset"] for line in events(logs, "replication.log_diverged")] == [common]


async def test_a_slave_that_needs_what_is_deleted_begins_anew_and_says_so(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    async with elected(one, 1, 1) as master, talking(master) as client:
        async with running_slave(two, 2, life=life(1, 2), **SMALL) as slave:
            meet(slave, master)
            await put(client, 10)
            await caught_up(master, slave)
        await put(client, 200)
    first = one / "commitlog" / f"{0:020d}"
    first.unlink()
    async with elected(one, 2, 1) as master, talking(master) as client:
        assert master.parts.store.min_physical_offset == 65_536
        with capture_logs() as logs:
            async with running_slave(two, 2, life=life(2, 2), **SMALL) as slave:
                meet(slave, master)
                async with asyncio.timeout(20):
                    assert await slave.cut == START_OVER
            async with running_slave(two, 2, life=life(2, 2, cut_to=START_OVER), **SMALL) as slave:
                meet(slave, master)
                await caught_up(master, slave)
                await put(client, 3)
                await caught_up(master, slave)
                assert slave.parts.store.min_physical_offset == 65_536
                assert slave.parts.store.reading.max_offset("T", 0) == 213
                slave.parts.store.check()
    assert log_files(one) == log_files(two)
    (cut,) = events(logs, "store.log_cut")
    assert (cut["message_count"], cut["physical_offset"], "size" in cut) == (10, START_OVER, False)


async def without_the_first_file(one: Path, two: Path) -> None:
    """A master and a slave that no election has made, and the master deletes what the slave would need next."""
    async with running_broker(one, **SMALL) as master, talking(master) as client:
        async with running_slave(two, **SMALL) as slave:
            meet(slave, master)
            await put(client, 10)
            await caught_up(master, slave)
        await put(client, 200)
    (one / "commitlog" / f"{0:020d}").unlink()


async def is_too_old(one: Path, two: Path) -> None:
    """The slave is refused, and keeps what it has."""
    async with running_broker(one, **SMALL) as master:
        with capture_logs() as logs:
            async with running_slave(two, **SMALL) as slave:
                meet(slave, master)
                await eventually(lambda: bool(events(logs, "replication.master_lost")))
                assert not slave.cut.done()
        assert events(logs, "replication.master_lost")[0]["kind"] == "too_old"


async def test_so_does_a_slave_without_epochs_that_has_nothing_but_its_master_s(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    await without_the_first_file(one, two)
    async with running_broker(one, **SMALL) as master:
        async with running_slave(two, **SMALL) as slave:
            meet(slave, master)
            async with asyncio.timeout(20):
                assert await slave.cut == START_OVER
        async with running_slave(two, life=Life(Role(False, 0, 1), cut_to=START_OVER), **SMALL) as slave:
            meet(slave, master)
            await caught_up(master, slave)
            assert slave.parts.store.reading.max_offset("T", 0) == 210
    assert log_files(one) == log_files(two)


async def test_a_slave_without_epochs_that_was_a_master_since_does_not_begin_anew(tmp_path: Path) -> None:
    """What it has may be nowhere else."""
    one, two = tmp_path / "one", tmp_path / "two"
    await without_the_first_file(one, two)
    async with running_broker(two, **SMALL) as promoted, talking(promoted) as client:
        await put(client, 3)
    for file in two.glob("epochFileCheckpoint*"):  # as RocketMQ's brokers, which know no epochs
        file.unlink()
    await is_too_old(one, two)


@pytest.mark.parametrize("other", ["another master", "a master that RocketMQ has run"])
async def test_nor_does_one_of_which_nobody_knows_what_it_is_a_copy_of(tmp_path: Path, other: str) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    await without_the_first_file(one, two)
    if other == "another master":
        (one / "storeIdentity").unlink()
    else:
        offsets = two / "config" / "consumerOffset.json"
        offsets.write_text(offsets.read_text().replace("copyOfMaster", "nobody's"))
    await is_too_old(one, two)


async def test_the_master_knows_who_its_slave_is(tmp_path: Path) -> None:
    async with pair(tmp_path, broker_id=3) as (master, slave):
        await eventually(lambda: bool(master_side(master).replicas.connected))
        (replica,) = master_side(master).replicas.connected
        assert replica.member == slave.life.role.member
        assert slave_side(slave).is_linked


async def test_a_master_of_an_older_epoch_is_not_followed(tmp_path: Path) -> None:
    async with elected(tmp_path / "one", 1, 1) as old, talking(old) as client:
        await put(client, 3)
        with capture_logs() as logs:
            async with running_slave(tmp_path / "two", 2, life=life(4, 2), **SMALL) as slave:
                meet(slave, old)
                await eventually(lambda: bool(events(logs, "replication.master_lost")))
                assert slave.parts.store.end_offset == 0
    assert events(logs, "replication.master_lost")[0]["kind"] == "replaced"
    assert events(logs, "replication.slave_cut_off")[0]["kind"] == "replaced"


# --- credentials ---------------------------------------------------------------------------------------------


async def test_brokers_with_the_same_credentials_are_a_pair(tmp_path: Path) -> None:
    shared: dict[str, Any] = {"inner_client_authentication_credentials": CREDENTIALS}
    async with pair(tmp_path, **shared) as (master, slave), talking(master) as client:
        await client.put("T")
        await caught_up(master, slave)


@pytest.mark.parametrize("of_slave", ["", CREDENTIALS.replace("secret of", "guess at")])
async def test_a_slave_that_does_not_know_the_secret_gets_nothing(tmp_path: Path, of_slave: str) -> None:
    async with (
        running_broker(tmp_path / "master", inner_client_authentication_credentials=CREDENTIALS) as master,
        talking(master) as client,
    ):
        await client.put("T")
        with capture_logs() as logs:
            async with running_slave(
                tmp_path / "slave", inner_client_authentication_credentials=of_slave
            ) as slave:
                meet(slave, master)
                await eventually(lambda: bool(events(logs, "replication.master_lost")))
                assert slave.parts.store.end_offset == 0
        assert events(logs, "replication.master_lost")[0]["kind"] == "credentials"
        assert not master_side(master).replicas.connected


@pytest.mark.parametrize("report", [0, 1 << 20])
async def test_a_fake_slave_gets_no_byte_and_its_acknowledgement_releases_nothing(
    tmp_path: Path, report: int
) -> None:
    settings: dict[str, Any] = {
        "broker_role": "SYNC_MASTER",
        "in_sync_replicas": 2,
        "slave_timeout": 300,
        "inner_client_authentication_credentials": CREDENTIALS,
    }
    async with running_broker(tmp_path / "master", **settings) as master, talking(master) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", ha_port(master))
        writer.write(encode_report(report))
        answered = await client.exchange(send_request("T", opaque=77))
        assert answered.code == 12
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        assert not master_side(master).replicas.connected


async def test_reports_before_the_proof_are_no_reports(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"inner_client_authentication_credentials": CREDENTIALS}
    async with running_broker(tmp_path / "master", **settings) as master, talking(master) as client:
        await client.put("T")
        me = master.parts.identity
        hello = Hello(1, me.cluster_name, me.broker_name, 1, "", 0, 1 << 20, b"x" * 32)
        reader, writer = await asyncio.open_connection("127.0.0.1", ha_port(master))
        writer.write(encode_message(hello) + encode_report(1000) * 20)
        said = await reader.read()
        assert b"challenge" in said
        assert b"facts" not in said
        assert not master_side(master).replicas.connected
        writer.close()


# --- bounds --------------------------------------------------------------------------------------------------


async def test_a_handshake_that_does_not_go_on_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greeting, "GREETING_S", 0.1)
    async with running_broker(tmp_path / "master") as master:
        me = master.parts.identity
        reader, writer = await asyncio.open_connection("127.0.0.1", ha_port(master))
        hello = Hello(1, me.cluster_name, me.broker_name, 1, "", 0, 1 << 20, b"x" * 32)
        writer.write(encode_message(hello))
        async with asyncio.timeout(20):
            assert b"challenge" in await reader.read()
        writer.close()


async def test_a_limit_of_the_link_holds_for_ours(tmp_path: Path) -> None:
    limited: dict[str, Any] = {"ha_flow_control_enable": True, "max_ha_transfer_byte_in_second": 100_000}
    async with running_broker(tmp_path / "master", **limited) as master, talking(master) as client:
        await put(client, 60)
        async with running_slave(tmp_path / "slave") as slave:
            meet(slave, master)
            await eventually(lambda: slave.parts.replication.is_linked)
            loop = asyncio.get_running_loop()
            begun, had = loop.time(), slave.parts.store.end_offset
            await caught_up(master, slave)
            took_s, size = loop.time() - begun, slave.parts.store.end_offset - had
            # A piece may be ahead of what the time allows.
            assert size - 65_536 <= took_s * 100_000
            assert took_s > 0.2


async def test_a_copy_that_lost_its_epochs_is_still_found_by_its_bytes(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    async with elected(one, 3, 1) as master, talking(master) as client:
        async with running_slave(two, 2, life=life(3, 2), **SMALL) as slave:
            meet(slave, master)
            await put(client, 20)
            await caught_up(master, slave)
        for path in two.glob("epochFileCheckpoint*"):
            path.unlink()
        await put(client, 20)
        async with running_slave(two, 2, life=life(3, 2), **SMALL) as slave:
            meet(slave, master)
            await caught_up(master, slave)
            assert slave.parts.store.epochs.last_epoch == 3
    assert log_files(one) == log_files(two)


async def test_old_parts_of_the_log_are_brought_into_memory_before_they_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new slave copies all there is, and nobody else waits for the disk because of it."""
    monkeypatch.setattr(giving_server, "HOT_SIZE", 100_000)
    monkeypatch.setattr(giving_server, "BRING_SIZE", 40_000)
    monkeypatch.setattr(giving_server, "TURN_SIZE", 10_000)
    async with running_broker(tmp_path / "one", **SMALL) as master, talking(master) as client:
        await put(client, 300)
        store = master.parts.store
        brought: list[int] = []
        bring = store.comparison.bring

        def noted(offset: int, size: int) -> None:
            assert threading.current_thread() is not threading.main_thread()
            brought.append(offset)
            bring(offset, size)

        monkeypatch.setattr(store.comparison, "bring", noted)
        end = store.end_offset
        async with running_slave(tmp_path / "two", **SMALL) as slave:
            meet(slave, master)
            await put(client, 20)
            await caught_up(master, slave)
    assert brought == sorted(brought)
    assert brought[0] == 0
    assert end - 150_000 < brought[-1] < end
    assert len(brought) >= (end - 100_000) // 40_000
    assert log_files(tmp_path / "one") == log_files(tmp_path / "two")
