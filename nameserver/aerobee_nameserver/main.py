"""The nameserver as a program: settings, logs, signals.

    python -m aerobee_nameserver [--listen HOST:PORT] [-c FILE] [--set key=value ...]

Touches  the process: event loop, signals, log configuration, systemd's notification socket.

Exit codes  0 orderly stop, 1 could not start or failed, 2 wrong settings or arguments.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import structlog

from aerobee_nameserver.config import NameserverConfig, load_config
from aerobee_nameserver.metrics import MetricsServer
from aerobee_nameserver.server import NameServer
from aerobee_proto.errors import AerobeeError
from aerobee_service.logs.logs import configure_logging
from aerobee_service.program.serving import run_server, stop_event
from aerobee_service.program.start_failures import explain
from aerobee_service.program.systemd import ServiceNotifier
from aerobee_service.settings.settings import SettingsError

__all__ = ["main", "run", "start"]

log = structlog.get_logger()


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, then run until a signal. Returns the exit code."""
    parsed = _parser().parse_args(arguments)
    try:
        return start(parsed.config, _overrides(parsed.set, parsed.listen))
    except (SettingsError, ValueError) as wrong:
        print(f"aerobee nameserver: {wrong}", file=sys.stderr)
        return 2


def start(file: Path | None, overrides: Mapping[str, str]) -> int:
    """Read the settings, then run until a signal. Returns the exit code. Raises SettingsError.

    Logs are set up before the first line: what there is to say about the settings comes in the form of all others.
    """
    return run(load_config(file, overrides, ready=_configure_logs))


def _configure_logs(config: NameserverConfig) -> None:
    json = {"auto": "auto", "console": False, "json": True}[config.log_format]
    configure_logging(config.log_level, "auto" if json == "auto" else bool(json))


def run(config: NameserverConfig) -> int:
    """Serve until a signal. Returns the exit code."""
    _configure_logs(config)
    return run_server(partial(serve, config))


async def serve(config: NameserverConfig, notifier: ServiceNotifier) -> int:
    """Start, tell systemd, wait for a signal, stop. Returns the exit code."""
    stop = stop_event()
    started = await _started(config)
    if started is None:
        return 1
    server, metrics = started
    try:
        await notifier.serving(f"listening on {server.address}", stop)
    finally:
        await metrics.close()
        await server.close()
    return 0


async def _started(config: NameserverConfig) -> tuple[NameServer, MetricsServer] | None:
    """A nameserver that serves, with its metrics, or None after one line that says why not."""
    server: NameServer | None = None
    metrics: MetricsServer | None = None
    try:
        server = NameServer(config)
        metrics = MetricsServer(server)
        if config.metrics_prom_exporter_port:
            await metrics.start()  # first: clients are not to come and be sent away again
        await server.start()
    except (AerobeeError, OSError) as failed:
        reason, way_out = explain(failed)
        log.error("nameserver.start_failed", reason=reason, way_out=way_out)  # noqa: TRY400  # they say it all
        if metrics is not None:
            await metrics.close()
        if server is not None:
            await server.close()
        return None
    return server, metrics


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="aerobee nameserver", description="Run a nameserver.")
    parser.add_argument("--listen", metavar="HOST:PORT", help="address to listen on (0.0.0.0:9876)")
    parser.add_argument("-c", "--config", type=Path, metavar="FILE", help="properties or TOML file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting under RocketMQ's name"
    )
    return parser


def _overrides(pairs: Sequence[str], listen: str | None) -> dict[str, str]:
    """`--set` pairs and `--listen` as settings. ValueError names what is not of the form."""
    overrides: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"--set {pair}: write key=value")
        overrides[key] = value
    if listen is not None:
        host, colon, port = listen.rpartition(":")
        if not colon or not host:
            raise ValueError(f"--listen {listen}: write HOST:PORT, for instance 127.0.0.1:9876")
        overrides |= {"bindAddress": host.strip("[]"), "listenPort": port}
    return overrides
