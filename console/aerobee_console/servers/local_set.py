"""A nameserver in this event loop, and a set of brokers that elects its master, each a process, with an etcd of their
own: what `aerobee dev --replicas N` starts.

Touches  the running event loop, processes, local ports, the folder that it is given: `etcd`, `etcd.log` and `broker-1`
         and so on in it.

Invariants
- Every member is registered, one of them as master, and all are in sync, when `start` returns.
- After `close` no process of it is left; also after a `start` that failed.
"""

import asyncio
import contextlib
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from aerobee import Client
from aerobee.admin.set_admin import SetAdmin
from aerobee.terms.routes import MASTER_ID
from aerobee_console.servers.local_cluster import HOST
from aerobee_console.terminal.failures import USAGE, Failure
from aerobee_nameserver.config import load_config as load_nameserver_config
from aerobee_nameserver.server import NameServer

__all__ = ["LocalSet"]

BROKER_NAME: Final = "broker-a"
START_S: Final = 60.0
STOP_S: Final = 10.0
LOOK_S: Final = 0.1


class LocalSet:
    """`start` once, `close` once. Between them a process may end: that is what it is for."""

    def __init__(
        self, folder: Path, settings: Mapping[str, str], count: int, *, nameserver_port: int = 0
    ) -> None:
        """`settings` are all brokers', under RocketMQ's names. Needs a running event loop."""
        self._folder = folder
        self._settings = settings
        self._count = count
        self._nameserver = NameServer(
            load_nameserver_config(
                None,
                {
                    "bindAddress": HOST,
                    "listenPort": str(nameserver_port),
                    "kvConfigPath": str(folder / "kvConfig.json"),
                },
            ),
            keep_kv=False,
        )
        self._etcd: asyncio.subprocess.Process | None = None
        self._brokers: dict[int, asyncio.subprocess.Process] = {}
        self._addrs: dict[int, str] = {}

    @property
    def nameserver(self) -> str:
        """`host:port` for clients; there after `start`."""
        return f"{HOST}:{self._nameserver.port}"

    @property
    def members(self) -> dict[int, str]:
        """`host:port` of those that are registered, by number: 0 is the master."""
        group = self._nameserver.routes.groups.get(BROKER_NAME)
        return {} if group is None else dict(group.addrs())

    def pid_at(self, addr: str) -> int | None:
        """The process of the broker that answers there."""
        found = [process.pid for member, process in self._brokers.items() if self._addrs[member] == addr]
        return found[0] if found else None

    async def start(self) -> None:
        """Serve. Failure: etcd or aiohttp is not there, or not everybody has come in time."""
        etcd = shutil.which("etcd")
        if etcd is None:
            raise Failure(
                "--replicas needs etcd, which elects the master (Debian: apt install etcd-server)", USAGE
            )
        await self._nameserver.start()
        client, peer = (f"http://{HOST}:{_free_port()}" for _ in range(2))
        self._etcd = await _run(
            etcd,
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--log-level=error",
            output=self._folder / "etcd.log",
        )
        for member in range(1, self._count + 1):
            await self._start_broker(member, client.removeprefix("http://"))
        try:
            async with asyncio.timeout(START_S):
                async with Client(self.nameserver) as mq:
                    while not await self._is_complete(mq.admin.sets):
                        self._check()
                        await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise Failure(f"after {START_S:.0f} s only {self.members} of the set are registered") from None

    async def _is_complete(self, sets: SetAdmin) -> bool:
        """Whether every member is registered, and in sync: any of them may be master next."""
        if len(self.members) < self._count or 0 not in self.members:
            return False
        masters = [node for node in await sets.nodes(BROKER_NAME) if node.broker_id == MASTER_ID]
        states = [await sets.state(node) for node in masters]
        return any(len(state.in_sync or ()) == self._count for state in states)

    async def _start_broker(self, member: int, endpoint: str) -> None:
        folder = self._folder / f"broker-{member}"
        settings = {
            "brokerName": BROKER_NAME,
            "brokerId": str(member),
            "bindAddress": HOST,
            "brokerIP1": HOST,
            "listenPort": str(_free_port()),
            "haListenPort": str(_free_port()),
            "metricsPromExporterPort": "0",
            "namesrvAddr": self.nameserver,
            "storePathRootDir": str(folder),
            "electionEndpoints": endpoint,
            "totalReplicas": str(self._count),
            "minInSyncReplicas": "2" if self._count > 2 else "1",
            "slaveReadEnable": "true",
            **self._settings,
        }
        self._addrs[member] = f"{HOST}:{settings['listenPort']}"
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        self._brokers[member] = await _run(sys.executable, "-m", "aerobee_broker", *words)

    def _check(self) -> None:
        """Failure when a process has ended before all were there."""
        ended = [name for name, process in self._processes() if process.returncode is not None]
        if ended:
            raise Failure(f"{ended[0]} has ended; it says why above")

    def _processes(self) -> list[tuple[str, asyncio.subprocess.Process]]:
        etcd = [("etcd", self._etcd)] if self._etcd is not None else []
        return [*((f"broker {member}", process) for member, process in self._brokers.items()), *etcd]

    async def close(self) -> None:
        """Stop all: slaves and master together, then etcd."""
        try:
            await asyncio.gather(*map(_stop, self._brokers.values()))
            if self._etcd is not None:
                await _stop(self._etcd)
        finally:
            await self._nameserver.close()


async def _run(*command: str, output: Path | None = None) -> asyncio.subprocess.Process:
    """A process of its own session, so that Ctrl-C reaches this one alone; it ends when this one is killed. Without
    `output` it writes where this one writes its log."""
    tool = shutil.which("setpriv")
    words = [tool, "--pdeathsig", "KILL", "--", *command] if tool else list(command)
    with contextlib.ExitStack() as stack:
        into = sys.stderr if output is None else stack.enter_context(output.open("ab"))
        return await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.DEVNULL, stdout=into, stderr=into, start_new_session=True
        )


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
