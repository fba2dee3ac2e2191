"""The broker as a program: settings, logs, signals.

    python -m aerobee_broker [-c FILE] [--set key=value ...]

Touches  the process: event loop, signals, log configuration, systemd's notification socket.

Exit codes  0 orderly stop, 1 could not start or failed, 2 wrong settings, 66 somebody took a file of the store away,
            74 the disk failed; after the last two a person has to look.
"""

import argparse
import asyncio
import errno
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import structlog

from aerobee_broker.broker import Broker, Life
from aerobee_broker.election.starting import ElectionUnavailable, election_of
from aerobee_broker.lives.fixed_role import FixedRole
from aerobee_broker.lives.role import Role, RoleSource, settings_of
from aerobee_broker.process.crash_notes import explain_crashes
from aerobee_broker.process.descriptors import raise_open_files_limit
from aerobee_broker.process.exit_codes import EXIT_DISK_FAILED, EXIT_FAILED, EXIT_FILE_GONE, EXIT_USAGE
from aerobee_broker.process.store_folder import foreign_folder
from aerobee_broker.process.threads import started_executor
from aerobee_broker.settings.config import BrokerConfig
from aerobee_broker.workers.layout import refused_layout
from aerobee_broker.workers.link import WorkerLink
from aerobee_broker.workers.service import run_workers
from aerobee_proto.errors import AerobeeError
from aerobee_service.logs.logs import configure_logging, finish_logs
from aerobee_service.program.serving import run_server, stop_event
from aerobee_service.program.start_failures import explain
from aerobee_service.program.systemd import ServiceNotifier, StartSigns
from aerobee_service.settings.settings import SettingsError, load_settings
from aerobee_store.faults import failpoints

__all__ = [
    "ENVIRON_PREFIX",
    "EXIT_DISK_FAILED",
    "EXIT_FILE_GONE",
    "load_config",
    "main",
    "run",
    "serve",
    "start",
    "stray_store",
]

log = structlog.get_logger()

ENVIRON_PREFIX: Final = "AEROBEE_BROKER_"
# For tests of crashes; what it may say is told in failpoints.
FAILPOINTS_VARIABLE: Final = "AEROBEE_FAILPOINTS"
# A start that meets one of these has the same disk to blame as a failed sync.
DISK_ERRORS: Final = frozenset({errno.EIO, errno.EROFS, errno.ENXIO, errno.ENODEV, errno.ESTALE})
STOP_AFTER_FAILURE_S: Final = 0.7  # a broker that cannot write is gone within a second
LAST_LINES_S: Final = 0.2  # and so are its last lines, whether somebody reads them or not
OF_ONE_WORKER: Final = (
    "this broker is one of several workers of a service: its role is that of the settings file that all of them have "
    "in common; change brokerRole there and start the service again"
)
WORKERS: Final = 4  # threads for work that must not hold up the event loop, besides those of the store


def load_config(
    file: Path | None, overrides: Mapping[str, str], *, ready: Callable[[BrokerConfig], None] | None = None
) -> BrokerConfig:
    """Settings from the file, the environment and `--set`, in rising order. Raises SettingsError.

    `ready` is called with them before anything about them is logged.
    """
    return load_settings(
        BrokerConfig, file=file, environ_prefix=ENVIRON_PREFIX, overrides=overrides, ready=ready
    )


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
        return start(parsed.config, {key: value for key, _, value in pairs})
    except SettingsError as refused:
        print(f"aerobee broker: {refused}", file=sys.stderr)
        return EXIT_USAGE


def start(file: Path | None, overrides: Mapping[str, str]) -> int:
    """Read the settings, then run until a signal. Returns the exit code. Raises SettingsError.

    Logs are set up before the first line: what there is to say about the settings comes in the form of all others.
    """
    link = _link_of_process()
    config = load_config(file, overrides, ready=lambda config: _set_up_logs(config, link))
    if config.workers == 1:
        return run(config, file, link, overrides)
    if (stray := stray_store(config)) is not None:
        print(f"aerobee broker: {stray}", file=sys.stderr)
        return EXIT_USAGE
    return run_workers(config, file, overrides)


def _link_of_process() -> WorkerLink | None:
    """What joins this process to a supervisor of workers. Ends it where the environment cannot mean that."""
    try:
        return WorkerLink.of_process()
    except ValueError as wrong:
        print(f"aerobee broker: {wrong}", file=sys.stderr)
        raise SystemExit(EXIT_USAGE) from wrong


def _set_up_logs(config: BrokerConfig, link: WorkerLink | None) -> None:
    if link is None:
        configure_logging()
    else:
        configure_logging(facts={"worker": config.broker_name})


def run(
    config: BrokerConfig,
    settings_file: Path | None = None,
    link: WorkerLink | None = None,
    overrides: Mapping[str, str] | None = None,
) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP, a worker also until its supervisor ends. Returns the exit code.

    Workers have a settings file in common, so none of them writes it. `overrides` are the settings of the command line.
    """
    _set_up_logs(config, link)
    misplaced = stray_store(config) or refused_layout(config) or foreign_folder(config.store_path_root_dir)
    if misplaced is not None:
        print(f"aerobee broker: {misplaced}", file=sys.stderr)
        return EXIT_USAGE
    try:
        armed = failpoints.arm_from_text(os.environ.get(FAILPOINTS_VARIABLE, ""))
    except ValueError as refused:
        print(f"aerobee broker: {FAILPOINTS_VARIABLE}: {refused}", file=sys.stderr)
        return EXIT_USAGE
    if armed:
        log.warning("broker.failpoints_armed", names=armed)
    raise_open_files_limit()
    explain_crashes(config.store_path_root_dir)
    return run_server(
        lambda notifier: serve(config, notifier, settings_file if link is None else None, link, overrides),
        executor=lambda: started_executor(WORKERS, "worker"),
    )


def stray_store(config: BrokerConfig) -> str | None:
    """What to do about a store in a folder that is named `~`, here; None when there is none.

    Earlier versions did not replace the ~ of the default: their messages would seem lost.
    """
    stray = Path("~/store").absolute()
    if "store_path_root_dir" in config.model_fields_set or not os.path.isdir(stray / "commitlog"):  # noqa: PTH112
        return None
    return (
        f"{stray} holds a store, in a folder whose name is ~: earlier versions made it instead of "
        f"{config.store_path_root_dir}. Either move it: mv '{stray}' {config.store_path_root_dir} , "
        f"or go on with it where it is: --set storePathRootDir='{stray}'"
    )


async def serve(
    config: BrokerConfig,
    notifier: ServiceNotifier,
    settings_file: Path | None = None,
    link: WorkerLink | None = None,
    overrides: Mapping[str, str] | None = None,
) -> int:
    """One life after the other, each with the role asked for, until a signal or a failure. Returns the exit code.

    systemd is told of the first start and of the end; between two lives the service stays as it is.
    """
    stop = stop_event()
    if link is not None:
        link.watch(stop.set)
    fixed = FixedRole(
        config,
        settings_file,
        refusal="" if link is None else OF_ONE_WORKER,
        read_again=lambda: load_config(settings_file, overrides or {}),
    )
    try:
        election = election_of(config) if config.election_endpoints else None
    except (AerobeeError, OSError) as failed:
        reason, way_out = explain(failed)
        log.error("broker.start_failed", reason=reason, way_out=way_out)  # noqa: TRY400  # they say it all
        return EXIT_USAGE if isinstance(failed, ElectionUnavailable) else EXIT_FAILED
    roles: RoleSource = election or fixed
    signs = asyncio.Event()  # the end of the service, as the watchdog sees it
    watchdog: asyncio.Task[None] | None = None
    role, port = await roles.first(), 0
    cut_to: int | None = None
    try:
        while True:
            broker = Broker(
                settings_of(config, role),
                settings_file=settings_file,
                on_recovery=StartSigns(notifier),
                life=Life(role, election or fixed, port, link, election, cut_to),
            )
            broker.failed.add_done_callback(lambda _: stop.set())
            if (code := await _start(broker)) is not None:
                return code
            if watchdog is None:
                serving = notifier.serving(f"serving on {broker.address}", signs)
                watchdog = asyncio.create_task(serving, name="service manager")
            following = await _next_role(roles, role, stop, broker.cut)
            if following is None:
                signs.set()
                return await _stop(broker)
            config, port = broker.settings, broker.port
            cut_to = broker.cut.result() if following == role and broker.cut.done() else None
            if cut_to is None:
                log.info("broker.role_changing", **_facts_of(role), next_role=_facts_of(following)["role"])
            if (code := await _end_life(broker)) is not None:
                return code
            role = following
    finally:
        if election is not None:
            await election.close()
        signs.set()
        if watchdog is not None:
            await watchdog


def _facts_of(role: Role) -> dict[str, object]:
    return {"role": "master" if role.is_master else "slave", "member": role.member, "epoch": role.epoch}


async def _start(broker: Broker) -> int | None:
    """The exit code of one that could not start."""
    try:
        await broker.start()
    except (AerobeeError, OSError, ValueError) as failed:
        if not broker.store_has_failed:  # the store has told that already
            reason, way_out = explain(failed)
            log.error("broker.start_failed", reason=reason, way_out=way_out)  # noqa: TRY400  # they say it all
        await broker.close()
        by_disk = not broker.store_has_failed and getattr(failed, "errno", None) in DISK_ERRORS
        return EXIT_DISK_FAILED if by_disk else _exit_code(broker)
    return None


async def _next_role(
    roles: RoleSource, role: Role, stop: asyncio.Event, cut: asyncio.Future[int]
) -> Role | None:
    """The role of the next life, the same where that has to begin with a log that is cut back; None when this is the
    last one."""
    following = asyncio.create_task(roles.next(role), name="next role")
    stopped = asyncio.create_task(stop.wait(), name="stop")
    try:
        ends: set[asyncio.Future[Any]] = {following, stopped, cut}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            return None
        return following.result() if following.done() else role
    finally:
        for task in (following, stopped):
            task.cancel()
        await asyncio.gather(following, stopped, return_exceptions=True)


async def _end_life(broker: Broker) -> int | None:
    """End a life because of another role; the exit code when it is the last one, as the broker has failed."""
    code = await _stop(broker, briefly=True)
    return code if broker.failed.done() else None


async def _stop(broker: Broker, *, briefly: bool = False) -> int:
    # A disk that fails during an orderly stop bounds the rest of it too.
    closing = asyncio.create_task(broker.close(briefly=briefly), name="close")
    ends: set[asyncio.Future[Any]] = {closing, broker.failed}
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if broker.failed.done():
        await asyncio.wait({closing}, timeout=STOP_AFTER_FAILURE_S)
    code = _exit_code(broker) if broker.failed.done() else 0
    if not closing.done():
        log.error("broker.stop_cut_short", after_s=STOP_AFTER_FAILURE_S)
        _end_now(code)
    await closing
    return code


def _exit_code(broker: Broker) -> int:
    """Of a broker that has failed."""
    if not broker.store_has_failed:
        return EXIT_FAILED
    return EXIT_FILE_GONE if broker.file_is_gone else EXIT_DISK_FAILED


def _end_now(code: int) -> NoReturn:
    """Without waiting for threads: one of them may be inside a sync that never returns."""
    finish_logs(LAST_LINES_S)
    os._exit(code)
