"""The server programs, started from the command line. With `local_cluster.py` and `local_set.py` the
only module here that knows nameserver and broker.

Touches  the process, through the `run` of the two rooms.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

from cyclopts import Parameter

from aerobee_console.terminal.failures import USAGE, Failure
from aerobee_console.terminal.numbers import WORKERS
from aerobee_console.terminal.several import several

if TYPE_CHECKING:
    from aerobee_broker.settings.config import BrokerConfig as BrokerConfig
    from aerobee_console.folder.store import StoreSettings

__all__ = [
    "Settings",
    "SettingsFile",
    "broker",
    "broker_defaults",
    "broker_settings",
    "configure_logs",
    "nameserver",
    "parse_settings",
    "store_settings",
    "worker_settings",
]

SettingsFile = Annotated[Path | None, Parameter(name=["--config", "-c"], help="Properties or TOML file.")]
Settings = Annotated[
    tuple[str, ...],
    several("--set", "One setting, key=value, under RocketMQ's name."),
]


def nameserver(
    *,
    listen: Annotated[str | None, Parameter(help="HOST:PORT to listen on (0.0.0.0:9876).")] = None,
    config: SettingsFile = None,
    settings: Settings = (),
) -> int:
    """Run a nameserver until SIGTERM or SIGINT. It is ready with the event `nameserver.ready`."""
    overrides = parse_settings(settings)
    if listen is not None:
        host, colon, port = listen.rpartition(":")
        if not colon or not host or not port.isdecimal():
            raise Failure(f"--listen {listen}: write HOST:PORT, for example 127.0.0.1:9876", USAGE)
        overrides |= {"bindAddress": host.strip("[]"), "listenPort": port}
    from aerobee_nameserver.main import start

    return start(config, overrides)


def broker(
    *,
    config: SettingsFile = None,
    workers: Annotated[
        int | None,
        Parameter(
            validator=WORKERS,
            help="Brokers to run as one service, one for each processor; each has a store of its own.",
        ),
    ] = None,
    settings: Settings = (),
) -> int:
    """Run a broker until SIGTERM or SIGINT. It is ready with the event `broker.ready`."""
    overrides = parse_settings(settings)
    if workers is not None:
        overrides["workers"] = str(workers)
    from aerobee_broker.main import start

    return start(config, overrides)


def parse_settings(pairs: Iterable[str]) -> dict[str, str]:
    """`key=value` texts as a mapping, the last of a repeated key."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise Failure(f"--set {pair}: write key=value, for example --set listenPort=10911", USAGE)
        found[key.strip()] = value
    return found


def broker_settings(file: Path | None, overrides: dict[str, str]) -> "BrokerConfig":
    """A broker's settings from file, environment and overrides. Raises SettingsError with every problem.

    What else there is to say about them goes to standard error: standard output is the command's.
    """
    from aerobee_broker.main import load_config

    return load_config(file, overrides, ready=lambda _: configure_logs(sys.stderr))


def worker_settings(config: "BrokerConfig") -> "list[BrokerConfig]":
    """The settings of each broker that these start: their own, or those of each worker. Raises SettingsError."""
    if config.workers == 1:
        return [config]
    from aerobee_broker.workers.layout import plan_workers

    return [plan.config for plan in plan_workers(config)]


def broker_defaults() -> "BrokerConfig":
    """A broker's settings when nobody sets any."""
    from aerobee_broker.settings.config import BrokerConfig

    return BrokerConfig(store_path_root_dir=Path("/"))  # the default one needs a home folder


def store_settings(file: Path | None, overrides: dict[str, str]) -> "StoreSettings":
    """What a broker with these settings would give its store. Raises SettingsError with every problem."""
    from aerobee_broker.settings.config import to_store_config

    return to_store_config(broker_settings(file, overrides))


def configure_logs(stream: TextIO, *, by_thread: bool = False) -> None:
    """Events of the servers' rooms go to `stream`; a server must not wait for its reader."""
    from aerobee_service.logs.logs import configure_logging

    configure_logging(stream=stream, by_thread=by_thread)
