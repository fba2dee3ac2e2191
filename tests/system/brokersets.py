"""A nameserver, a master and its slave in this process, for programs that find them as they always do.

Touches  local ports, two store folders.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from aerobee_broker.broker import Broker
from aerobee_nameserver.config import NameserverConfig
from aerobee_nameserver.server import NameServer
from broker.replication.pairs import eventually, running_slave
from system.running import running_broker

__all__ = ["BrokerSet", "a_set"]

WAITS: dict[str, Any] = {"broker_role": "SYNC_MASTER", "in_sync_replicas": 2, "min_in_sync_replicas": 2}


class BrokerSet:
    """`master` acknowledges what `slave` has. After `lose_master` the slave takes its place (`promote`), or the master
    comes back (`start_master`)."""

    def __init__(self, folder: Path, nameserver: str, stack: AsyncExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._masters_life = AsyncExitStack()
        self._settings: dict[str, Any] = {"namesrv_addr": nameserver, "slave_read_enable": True}
        self.nameserver = nameserver

    async def start(self) -> None:
        self._stack.push_async_callback(self._masters_life.aclose)
        await self.start_master()
        self.slave = await self._stack.enter_async_context(
            running_slave(self._folder / "slave", **self._settings)
        )
        await self.together()

    async def start_master(self) -> None:
        """The master, on another port each time."""
        self.master = await self._masters_life.enter_async_context(
            running_broker(self._folder / "master", **self._settings, **WAITS)
        )
        await self.master.parts.registrar.first_round()

    async def together(self) -> None:
        """Wait until the slave follows, and a nameserver knows it."""
        await eventually(lambda: self.master.parts.replication.status().in_sync_slave_nums == 1)
        await self.slave.parts.registrar.first_round()

    async def lose_master(self) -> None:
        """Its connections are cut, with what was about to be answered."""
        await self.master.parts.server.close()
        await self._masters_life.aclose()

    async def promote(self) -> Broker:
        """The slave is stopped, and started as the master, on another port."""
        await self.slave.close()
        return await self._stack.enter_async_context(running_broker(self._folder / "slave", **self._settings))


@asynccontextmanager
async def a_set(folder: Path) -> AsyncIterator[BrokerSet]:
    async with AsyncExitStack() as stack:
        nameserver = NameServer(NameserverConfig(listen_port=0, bind_address="127.0.0.1"), keep_kv=False)
        port = await nameserver.start()
        stack.push_async_callback(nameserver.close)
        made = BrokerSet(folder, f"127.0.0.1:{port}", stack)
        await made.start()
        yield made
