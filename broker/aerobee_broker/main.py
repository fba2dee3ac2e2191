"""The broker as a program: settings, logs, signals.

    python -m aerobee_broker [-c FILE] [--set key=value ...]

Touches  the process: event loop, signals, log configuration, systemd's notification socket.

Exit codes  0 orderly stop, 1 could not start or failed (a failed sync of the disk above all), 2 wrong settings.
"""

import argparse
import asyncio
import gc
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog
import uvloop

from aerobee_broker.broker import Broker
from aerobee_broker.config import BrokerConfig
from aerobee_proto.errors import AerobeeError
from aerobee_remoting.logs import configure_logging
from aerobee_remoting.settings import SettingsError, load_settings
from aerobee_remoting.systemd import ServiceNotifier

__all__ = ["ENVIRON_PREFIX", "load_config", "main", "run", "serve"]

log = structlog.get_logger()

ENVIRON_PREFIX: Final = "AEROBEE_BROKER_"
STOP_AFTER_FAILURE_S: Final = 0.7  # a broker that cannot write is gone within a second
SWITCH_INTERVAL_S: Final = 0.001  # the flusher thread gets its turn within this, instead of 5 ms


def load_config(file: Path | None, overrides: Mapping[str, str]) -> BrokerConfig:
    """Settings from the file, the environment and `--set`, in rising order. Raises SettingsError."""
    return load_settings(BrokerConfig, file=file, environ_prefix=ENVIRON_PREFIX, overrides=overrides)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, then run until a signal. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="aerobee-broker", description="An Aerobee broker.")
    parser.add_argument("-c", "--config", type=Path, help="broker.conf (properties) or a TOML file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="one setting")
    parsed = parser.parse_args(arguments)
    pairs = [text.partition("=") for text in parsed.set]
    wrong = [key for key, equals, _ in pairs if not equals]
    if wrong:
        parser.error(f"--set {wrong[0]}: KEY=VALUE is wanted, for example --set listenPort=10911")
    try:
        config = load_config(parsed.config, {key: value for key, _, value in pairs})
    except SettingsError as refused:
        print(f"aerobee broker: {refused}", file=sys.stderr)
        return 2
    return run(config, parsed.config)


def run(config: BrokerConfig, settings_file: Path | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code."""
    configure_logging()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # Messages are not in cycles: collecting them early costs 4 % of the send rate and finds nothing.
    gc.set_threshold(50_000, 50, 50)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(config, ServiceNotifier.of_process(), settings_file))


async def serve(config: BrokerConfig, notifier: ServiceNotifier, settings_file: Path | None = None) -> int:
    """Start, tell systemd, wait for a signal or a failure, stop. Returns the exit code."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    broker = Broker(config, settings_file=settings_file)
    broker.failed.add_done_callback(lambda _: stop.set())
    try:
        await broker.start()
    except (AerobeeError, OSError, ValueError) as failed:
        log.error("broker.start_failed", reason=str(failed))  # noqa: TRY400  # the text says it all
        await broker.close()
        return 1
    notifier.ready(f"serving on {broker.address}")
    watchdog = asyncio.create_task(_stay_alive(notifier), name="watchdog")
    try:
        await stop.wait()
    finally:
        notifier.stopping("stopping")
        watchdog.cancel()
        await asyncio.gather(watchdog, return_exceptions=True)
    return await _stop(broker)


async def _stop(broker: Broker) -> int:
    if not broker.failed.done():
        await broker.close()
        return 0
    try:
        async with asyncio.timeout(STOP_AFTER_FAILURE_S):
            await broker.close()
    except TimeoutError:
        log.error("broker.stop_cut_short", after_s=STOP_AFTER_FAILURE_S)  # noqa: TRY400
    return 1


async def _stay_alive(notifier: ServiceNotifier) -> None:
    """Signs of life for systemd's watchdog; ends at once when nobody watches."""
    interval_s = notifier.watchdog_interval_s
    while interval_s is not None:
        notifier.alive()
        await asyncio.sleep(interval_s)
