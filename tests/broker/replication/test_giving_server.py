"""The port for slaves while many come that are none."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from structlog.testing import capture_logs

from aerobee_broker.replication import giving_server
from aerobee_proto.ha import encode_report
from broker.replication.pairs import eventually, ha_port, master_side, meet, running_slave
from system.running import running_broker, talking
from system.secured import write_files

CROWD = 8


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giving_server, "CONNECTIONS_MAX", CROWD)


@asynccontextmanager
async def crowd(port: int, count: int, said: bytes = b"") -> AsyncIterator[list[asyncio.StreamReader]]:
    """Connections that say no more than this."""
    async with AsyncExitStack() as stack:
        readers = []
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            writer.write(said)
            readers.append(reader)
        yield readers


def is_cut_off(reader: asyncio.StreamReader) -> bool:
    return reader.at_eof() or reader.exception() is not None


@pytest.mark.parametrize("with_tls", [False, True], ids=["plain", "tls"])
async def test_who_says_nothing_keeps_no_slave_out(tmp_path: Path, with_tls: bool) -> None:
    files: dict[str, Any] = write_files(trustme.CA(), tmp_path) if with_tls else {}
    async with (
        running_broker(tmp_path / "master", **files) as master,
        crowd(ha_port(master), 3 * CROWD),
        running_slave(tmp_path / "slave", **files) as slave,
    ):
        meet(slave, master)
        replicas = master_side(master).replicas
        await eventually(lambda: bool(replicas.connected))
        (replica,) = replicas.connected
        async with crowd(ha_port(master), 3 * CROWD) as more:
            await eventually(lambda: sum(map(is_cut_off, more)) > 2 * CROWD)
            assert list(replicas.connected) == [replica]
            assert slave.parts.replication.is_linked


async def test_the_oldest_of_a_crowd_goes_first(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path) as master,
        crowd(ha_port(master), CROWD) as first,
        crowd(ha_port(master), 2) as last,
    ):
        await eventually(lambda: sum(map(is_cut_off, [*first, *last])) == 2)
        assert list(map(is_cut_off, [*first, *last])) == [True] * 2 + [False] * CROWD


async def test_replicas_stay_and_others_are_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as master, talking(master) as client:
        await client.put("T")
        replicas, report = master_side(master).replicas, encode_report(master.parts.store.end_offset)
        async with crowd(ha_port(master), CROWD, report) as first:
            await eventually(lambda: len(replicas.connected) == CROWD)
            with capture_logs() as logs:
                async with crowd(ha_port(master), 1) as (late,):
                    await eventually(lambda: is_cut_off(late))
            said = [line["event"] for line in logs if line["event"].startswith("replication.")]
            assert said == ["replication.slave_refused"]
            assert not any(map(is_cut_off, first))
            assert len(replicas.connected) == CROWD


async def test_what_comes_soon_after_a_gift_is_given_later_where_no_send_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(giving_server, "PAUSE_S", 1_000.0)
    async with running_broker(tmp_path) as master, talking(master) as client:
        await client.put("T")
        store, replicas = master.parts.store, master_side(master).replicas
        async with crowd(ha_port(master), 1, encode_report(store.end_offset)):
            await eventually(lambda: len(replicas.connected) == 1)
            (replica,) = replicas.connected
            await client.put("T")
            await eventually(lambda: replica.link.next_offset == store.end_offset)
            given = store.end_offset
            for _ in range(3):
                await client.put("T")
            assert store.end_offset > replica.link.next_offset == given


async def test_all_is_given_at_once_where_sends_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giving_server, "PAUSE_S", 1_000.0)
    settings: dict[str, Any] = {
        "brokerRole": "SYNC_MASTER",
        "inSyncReplicas": 2,
        "totalReplicas": 2,
        "slaveTimeout": 1,
    }
    async with running_broker(tmp_path, **settings) as master, talking(master) as client:
        store, replicas = master.parts.store, master_side(master).replicas
        async with crowd(ha_port(master), 1, encode_report(0)):
            await eventually(lambda: len(replicas.connected) == 1)
            (replica,) = replicas.connected
            for _ in range(3):
                before = store.end_offset
                with contextlib.suppress(Exception):  # no slave has it in time
                    await client.put("T")
                assert store.end_offset > before
                await eventually(lambda: replica.link.next_offset == store.end_offset)
