"""A nameserver and a broker in one event loop, on 127.0.0.1: what `aerobee dev` and the pytest plug-in start. Or a
master and its slave, for failovers.

Touches  the running event loop, local ports, the store folder that it is given. Besides `daemons.py` and `local_set.py`
the only module here that knows nameserver and broker. Needs nothing of the terminal.

Invariants
- The nameserver knows the broker when `start` returns.
- When a pair has started its slave follows; from then on a send is acknowledged when both have the message.
- After `close` no task, thread or file of either is left open; also after a `start` that failed.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from aerobee_broker.broker import Broker
from aerobee_broker.in_process.adapter import InProcess
from aerobee_broker.main import load_config as load_broker_config
from aerobee_broker.process.descriptors import raise_open_files_limit
from aerobee_nameserver.config import load_config as load_nameserver_config
from aerobee_nameserver.server import NameServer
from aerobee_service.program.descriptor_table import widen_descriptor_table

__all__ = ["HOST", "LocalCluster", "LocalPair"]

HOST: Final = "127.0.0.1"
MASTER: Final = {
    "brokerRole": "SYNC_MASTER",
    "inSyncReplicas": "2",
    "minInSyncReplicas": "2",
    "slaveReadEnable": "true",
}
SLAVE: Final = {"brokerRole": "SLAVE", "brokerId": "1", "slaveReadEnable": "true"}
LOOK_S: Final = 0.01  # between two looks whether the slave follows
FOLLOWED_TIMEOUT_S: Final = 30.0


class LocalCluster:
    """One nameserver that keeps nothing on disk, one broker that registers there. `start` once, `close` once."""

    def __init__(self, folder: Path, settings: Mapping[str, str], *, nameserver_port: int = 0) -> None:
        """`settings` are the broker's, under RocketMQ's names; they win over what is set here. Without them
        all ports are free ones, and metrics are not served. Needs a running event loop."""
        self._folder = folder
        self._settings = settings
        self._nameserver = NameServer(
            load_nameserver_config(
                None,
                {
                    "bindAddress": HOST,
                    "listenPort": str(nameserver_port),
                    "kvConfigPath": str(folder / "kvConfig.json"),  # never made; the default one needs a home
                },
            ),
            keep_kv=False,
        )
        self._broker: Broker | None = None
        self.failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    @property
    def nameserver(self) -> str:
        """`host:port` for clients; there after `start`."""
        return f"{HOST}:{self._nameserver.port}"

    @property
    def broker(self) -> str:
        """`host:port` of the broker as it is registered; there after `start`."""
        assert self._broker is not None
        return self._broker.address

    @property
    def broker_name(self) -> str:
        """The name under which the broker is registered; there after `start`."""
        assert self._broker is not None
        return self._broker.parts.identity.broker_name

    def in_process(self, name: str) -> InProcess:
        """The broker for a caller of this name in its own event loop, between `start` and `close`."""
        assert self._broker is not None
        return self._broker.in_process(name)

    async def start(self) -> None:
        """Serve. SettingsError for wrong settings, OSError for a taken port, StoreError for a bad store."""
        raise_open_files_limit()
        widen_descriptor_table()
        await self._nameserver.start()
        self._broker = self.make_broker(self._folder, self._settings)
        await self._broker.start()
        await self._broker.parts.registrar.first_round()

    def make_broker(self, folder: Path, settings: Mapping[str, str]) -> Broker:
        """A broker of this cluster that is not started yet."""
        defaults = {
            "bindAddress": HOST,
            "brokerIP1": HOST,
            "listenPort": "0",
            "metricsPromExporterPort": "0",
            "namesrvAddr": self.nameserver,
            "storePathRootDir": str(folder),
        }
        broker = Broker(load_broker_config(None, {**defaults, **settings}))
        broker.failed.add_done_callback(self._broker_failed)
        return broker

    def _broker_failed(self, failed: "asyncio.Future[Exception]") -> None:
        if not failed.cancelled() and not self.failed.done():
            self.failed.set_result(failed.result())

    async def close(self) -> None:
        """Stop in order: the broker unregisters, answers what it has taken and closes its store."""
        try:
            if self._broker is not None:
                await self._broker.close()
        finally:
            await self._nameserver.close()


class LocalPair(LocalCluster):
    """A nameserver, a master and its slave. `start` once, `fail_over` at most once, `close` once."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        """As LocalCluster; `settings` are of both brokers, but for their roles."""
        super().__init__(folder / "master", {**settings, **MASTER})
        self._slave_folder = folder / "slave"
        self._common = settings
        self._slave: Broker | None = None

    async def start(self) -> None:
        """As LocalCluster. TimeoutError when the slave does not come to follow."""
        await super().start()
        self._slave = self.make_broker(self._slave_folder, {**self._common, **SLAVE})
        await self._slave.start()
        await self._slave.parts.registrar.first_round()
        assert self._broker is not None
        replication = self._broker.parts.replication
        async with asyncio.timeout(FOLLOWED_TIMEOUT_S):
            while not replication.status().in_sync_slave_nums:  # noqa: ASYNC110  # said by another task, much later
                await asyncio.sleep(LOOK_S)

    async def fail_over(self) -> None:
        """The master hangs up on everybody and goes; the slave takes its place, at another port. RuntimeError:
        there is none."""
        slave, self._slave = self._slave, None
        if slave is None or self._broker is None:
            raise RuntimeError("the pair has no slave that could take the master's place")
        await self._broker.parts.server.close()
        await self._broker.close()
        await slave.close()
        self._broker = self.make_broker(self._slave_folder, self._common)
        await self._broker.start()
        await self._broker.parts.registrar.first_round()

    async def close(self) -> None:
        """Stop in order."""
        try:
            if self._slave is not None:
                await self._slave.close()
        finally:
            await super().close()
