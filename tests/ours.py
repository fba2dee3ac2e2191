"""Our own nameserver and broker as subprocesses: what the `aerobee` command runs as users start it.

Tests start them as forks of a process that has done the imports (nursery.py). `forked=False` runs the command itself,
for measurements; so does AEROBEE_COMMAND.

Touches  subprocesses, and the folders that callers pass in.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path

from nursery import NETNS_VARIABLE, forking
from plain_remoting import wait_route
from programs import ProgramError, Server, free_port

__all__ = ["DEV_READY", "command", "start_broker", "start_dev", "start_nameserver"]

START_TIMEOUT_S = 30.0
DEV_READY = "Ctrl-C stops both"
OWN_PORTS = {"listenPort": 0, "metricsPromExporterPort": 0}


def command() -> list[str]:
    """The words that run `aerobee`: those of AEROBEE_COMMAND, else of the environment that runs this."""
    if other := os.environ.get("AEROBEE_COMMAND"):
        return shlex.split(other)
    script = Path(sys.executable).parent / "aerobee"
    if not script.exists():
        raise ProgramError(
            f"{script} does not exist: install the project into this environment (./dev setup)"
        )
    return [str(script)]


def start_nameserver(*, port: int | None = None, forked: bool = True, host: str = "127.0.0.1") -> Server:
    """Start our nameserver and wait until it serves.

    Its key-value settings are in a folder of its own that goes away with the returned value: those in the home folder
    would be met by the next test, and by the next run.
    """
    address = f"{host}:{port or free_port()}"
    folder = tempfile.mkdtemp(prefix="aerobee-nameserver-")
    words = ["nameserver", "--listen", address, "--set", f"kvConfigPath={folder}/kvConfig.json"]
    started = _start("our nameserver", words, address, r"nameserver\.ready", forked=forked)
    weakref.finalize(started, shutil.rmtree, folder, ignore_errors=True)
    return started


def start_broker(
    folder: Path,
    nameservers: str,
    *,
    name: str = "broker-a",
    port: int | None = None,
    config: Mapping[str, object] | None = None,
    forked: bool = True,
    netns: str = "",
) -> Server:
    """Start our broker, registered at `nameservers` ("host:port;host:port"), and wait until it serves and is known.

    The store is `folder`/store. `config` adds to or overrides settings, by RocketMQ's names. `netns` names the network
    namespace that it is in.
    """
    port = port or free_port(-2, 1)
    settings: dict[str, object] = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": name,
        "brokerIP1": "127.0.0.1",
        "listenPort": port,
        "namesrvAddr": nameservers,
        "storePathRootDir": folder / "store",
        "mappedFileSizeCommitLog": 64 << 20,
        "metricsPromExporterPort": 0,
        **(config or {}),
    }
    words = ["broker", *_set(settings)]
    address = f"{settings['brokerIP1']}:{port}"
    broker = _start("our broker", words, address, r"broker\.ready", forked=forked, netns=netns)
    try:
        for nameserver in nameservers.split(";"):
            wait_route(nameserver, "TBW102", name)
    except BaseException:
        broker.kill()
        raise
    return broker


def start_dev(
    *words: str, port: int | None = None, settings: Mapping[str, object] = OWN_PORTS, cwd: Path | None = None
) -> Server:
    """Start `aerobee dev` with these words, and wait until its nameserver, on a port of its own, and broker serve.

    What is served is what it has by itself; unless `settings` say other things, only ports differ.
    """
    port = port or free_port()
    command_words = [*command(), "dev", *words, "--port", str(port), *_set(settings)]
    return Server("dev", command_words, f"127.0.0.1:{port}", DEV_READY, cwd=cwd)


def _set(settings: Mapping[str, object]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def _start(name: str, words: list[str], address: str, ready: str, *, forked: bool, netns: str = "") -> Server:
    if forked and "AEROBEE_COMMAND" not in os.environ:
        env = {NETNS_VARIABLE: netns} if netns else {}
        spawn = forking("aerobee")
        return Server(name, words, address, ready, timeout_s=START_TIMEOUT_S, env=env, spawn=spawn)
    within = ["ip", "netns", "exec", netns] if netns else []
    return Server(name, [*within, *command(), *words], address, ready, timeout_s=START_TIMEOUT_S)
