"""A master and its slave in this process, and the two ends of a link over logs in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aerobee_broker.broker import Broker, Life
from aerobee_broker.lives.role import Role
from aerobee_broker.replication.service import MasterSide, SlaveSide
from system.running import running_broker

__all__ = [
    "FAST",
    "SMALL",
    "caught_up",
    "elected",
    "eventually",
    "ha_port",
    "life",
    "log_files",
    "meet",
    "pair",
    "running_slave",
    "slave_side",
]

FAST = {"ha_send_heartbeat_interval": 200}
SMALL: dict[str, Any] = {"mapped_file_size_commit_log": 65_536}


async def eventually(happened: Callable[[], bool], what: str = "", *, within_s: float = 20) -> None:
    """Wait until it is so; asked at every turn of the loop, and after a while less often."""
    async with asyncio.timeout(within_s):
        for turn in range(1_000_000):
            if happened():
                return
            await asyncio.sleep(0 if turn < 100 else 0.005)
    raise AssertionError(what)


def slave_side(broker: Broker) -> SlaveSide:
    side = broker.parts.replication
    assert isinstance(side, SlaveSide)
    return side


def master_side(broker: Broker) -> MasterSide:
    side = broker.parts.replication
    assert isinstance(side, MasterSide)
    return side


def ha_port(master: Broker) -> int:
    return int(master.parts.identity.ha_addr.rpartition(":")[2])


def meet(slave: Broker, master: Broker) -> None:
    """As a nameserver would tell it."""
    me = master.parts.identity
    slave.parts.replication.master_found(me.ha_addr, me.broker_addr)


@asynccontextmanager
async def running_slave(root: Path, broker_id: int = 1, **settings: Any) -> AsyncIterator[Broker]:
    settings = FAST | {"slave_read_enable": True} | settings
    async with running_broker(root, broker_role="SLAVE", broker_id=broker_id, **settings) as slave:
        yield slave


@asynccontextmanager
async def pair(
    tmp_path: Path, *, of_master: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[tuple[Broker, Broker]]:
    """A master and a slave that has met it."""
    settings = FAST | {"slave_read_enable": True} | settings
    async with (
        running_broker(tmp_path / "master", **(settings | (of_master or {}))) as master,
        running_slave(tmp_path / "slave", **settings) as slave,
    ):
        meet(slave, master)
        await eventually(lambda: slave.parts.replication.is_linked)
        yield master, slave


def life(epoch: int, member: int, *, is_master: bool = False, cut_to: int | None = None) -> Life:
    """Of a member of a set with an election."""
    return Life(Role(is_master, epoch, member), cut_to=cut_to)


@asynccontextmanager
async def elected(root: Path, epoch: int, member: int, **settings: Any) -> AsyncIterator[Broker]:
    """A master of this epoch."""
    async with running_broker(root, life=life(epoch, member, is_master=True), **(SMALL | settings)) as master:
        store = master.parts.store
        if store.epochs.last_epoch < epoch:
            store.epochs.append(epoch, store.end_offset)
        yield master


async def caught_up(master: Broker, *slaves: Broker) -> None:
    """Wait until the slaves have all of the master's log, safe and visible."""
    end = master.parts.store.end_offset
    await eventually(lambda: all(slave.parts.store.confirmed_offset >= end for slave in slaves))


def log_files(root: Path) -> dict[str, bytes]:
    """The files of a log by name, without those of zeros alone, which are made ahead."""
    found = {path.name: path.read_bytes() for path in sorted((root / "commitlog").iterdir())}
    return {name: content for name, content in found.items() if content.strip(b"\0")}
