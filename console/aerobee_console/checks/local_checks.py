"""Checks of this machine: a broker's settings, its ports, its store folder, the disk.

Touches  the settings file, the store folder (reading), local ports (bound and closed again).
"""

import contextlib
import ipaddress
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aerobee_console.checks.checkup import Checkup
from aerobee_console.servers.daemons import broker_defaults, broker_settings, worker_settings
from aerobee_console.terminal.failures import Failure
from aerobee_service.program.interpreter_build import interpreter_build
from aerobee_service.program.ports import is_free, owner_of
from aerobee_service.program.start_failures import permission_refused, user_name

if TYPE_CHECKING:
    from aerobee_console.servers.daemons import BrokerConfig

__all__ = ["check_interpreter", "check_settings", "check_store", "is_container_address", "is_loopback"]

MIB: Final = 1 << 20
# The networks that Docker takes for containers unless told otherwise.
CONTAINER_NETWORKS: Final = tuple(ipaddress.ip_network(f"172.{number}.0.0/16") for number in range(17, 32))


def check_interpreter(checkup: Checkup) -> None:
    """Say which Python runs this, and how to get a faster one; servers on this machine are likely to use it too."""
    build = interpreter_build()
    if build.is_slow:
        checkup.note("interpreter", build.text, build.remedy)
    else:
        checkup.ok("interpreter", build.text)


def check_settings(checkup: Checkup, file: Path) -> "BrokerConfig | None":
    """Check a broker's settings file and what it names on this machine; returns the settings if they are right."""
    try:
        config = broker_settings(file, {})
        brokers = worker_settings(config)
    except Exception as wrong:
        if type(wrong).__name__ != "SettingsError":
            raise
        checkup.fault("settings", str(wrong), f"correct {file}; docs/configuration.md has every key")
        return None
    checkup.ok("settings", f"{file} is right")
    for one in brokers:
        _check_listening(checkup, one)
    _check_advertised(checkup, config)
    if not config.namesrv_addr:
        checkup.fault(
            "registration",
            "namesrvAddr is empty: the broker registers nowhere and no client finds it",
            f"write namesrvAddr=host:9876 into {file}",
        )
    return config


def _check_listening(checkup: Checkup, config: "BrokerConfig") -> None:
    ports = {"listenPort": (config.bind_address, config.listen_port)}
    if config.metrics_exporter_type == "PROM" and config.metrics_prom_exporter_port:
        host = config.metrics_prom_exporter_host or config.bind_address
        ports["metricsPromExporterPort"] = (host, config.metrics_prom_exporter_port)
    for key, (host, port) in ports.items():
        if is_free(host, port):
            checkup.ok("port", f"{key} {port} is free")
            continue
        owner = owner_of(port)
        by = f" by {owner}" if owner else ""
        fix = f"if that is not this broker, running: stop it, or write another {key}"
        report = checkup.note if owner and "aerobee" in owner else checkup.fault
        report("port", f"{key} {port} is taken{by}", fix)


def _check_advertised(checkup: Checkup, config: "BrokerConfig") -> None:
    address = config.broker_ip1
    if not address:
        return
    if is_loopback(address):
        checkup.note(
            "advertised address",
            f"brokerIP1 is {address}: only programs on this machine reach it",
            "set brokerIP1 to an address that clients reach, or leave it out",
        )
    elif not _is_ours(address):
        checkup.note(
            "advertised address",
            f"brokerIP1 {address} is no address of this machine",
            "right behind a port forwarding; otherwise clients go astray: correct it or leave it out",
        )
    else:
        checkup.ok("advertised address", f"brokerIP1 {address} is an address of this machine")


def is_loopback(host: str) -> bool:
    """Whether an address names the machine that looks it up."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def is_container_address(host: str) -> bool:
    """Whether an address looks like a container's own on its host."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return any(address in network for network in CONTAINER_NETWORKS)


def _is_ours(host: str) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


def check_store(checkup: Checkup, folder: Path, settings: "BrokerConfig | None" = None) -> None:
    """Check a store folder: permissions, who has it, how it was left, room on the disk.

    `settings`: the broker's, if they are known; else the defaults count.
    """
    existing = folder
    while not os.path.exists(existing) and existing != existing.parent:  # noqa: PTH110  # Path.exists may raise
        existing = existing.parent
    if not os.access(existing, os.R_OK | os.W_OK | os.X_OK):
        checkup.fault("store folder", *permission_refused(folder))
    elif existing != folder:
        checkup.ok("store folder", f"{folder} is not there yet; it can be made in {existing}")
    else:
        _check_content(checkup, folder)
    _check_disk(checkup, existing, settings or broker_defaults())


def _check_content(checkup: Checkup, folder: Path) -> None:
    from aerobee_console.folder.store import inspect

    if not any(folder.iterdir()):
        checkup.ok("store folder", f"{folder} is empty and can be written")
        return
    try:
        store = inspect(folder)
    except Failure as none:
        checkup.fault("store folder", str(none), "name the right folder in storePathRootDir, or an empty one")
        return
    except OSError as refused:
        checkup.fault("store folder", str(refused), f"chown -R {user_name()} {folder}")
        return
    for finding in store.findings:
        checkup.fault("store folder", str(finding), finding.advice)
    _check_held_files(checkup, folder, store.owner_pid)
    if store.owner_pid is not None:
        fix = "a second broker on this folder refuses to start; stop the first, or use another folder"
        checkup.note("store folder", f"{folder} is in use by process {store.owner_pid}", fix)
    elif store.was_aborted:
        fix = "nothing to do: the next start recovers it. `aerobee store verify` says what it will find"
        checkup.note("store folder", f"{folder} was not closed in order", fix)
    elif not store.findings:
        checkup.ok("store folder", f"{folder} was closed in order and can be written")


def _check_held_files(checkup: Checkup, folder: Path, owner_pid: int | None) -> None:
    """Files that the running broker writes to, and that are not in the folder any more."""
    pid = owner_pid if owner_pid is not None else _pid_in(folder / "abort")
    held = _deleted_files(pid, folder.resolve()) if pid is not None else []
    if held:
        others = f" and {len(held) - 1} more" if len(held) > 1 else ""
        checkup.fault(
            "store files",
            f"process {pid} writes to {held[0]}{others}, which somebody deleted: nobody will find what is in there",
            "stop sending to that broker, let its consumers read what it still has, then restart it on a sound folder",
        )
    elif owner_pid is None and pid is not None and _has_open(pid, folder.resolve()):
        checkup.fault(
            "store files",
            f"process {pid} uses {folder}, and its lock file is gone: other brokers may start there",
            "restart that broker",
        )


def _pid_in(path: Path) -> int | None:
    try:
        text, *_ = path.read_text().split() or [""]
    except (OSError, ValueError):
        return None
    return int(text) if text.isascii() and text.isdecimal() else None


def _open_names(pid: int, folder: Path) -> list[str]:
    """What the process has open below the folder, as far as this user may see it."""
    names = []
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                names.append(str(link.readlink()))
    except OSError:
        return []
    return sorted(name for name in names if name.startswith(f"{folder}/"))


def _deleted_files(pid: int, folder: Path) -> list[str]:
    mark = " (deleted)"
    names = sorted({name.removesuffix(mark) for name in _open_names(pid, folder) if name.endswith(mark)})
    # `lock` holds nothing, and our broker puts it back.
    return [name for name in names if Path(name) != folder / "lock"]


def _has_open(pid: int, folder: Path) -> bool:
    return bool(_open_names(pid, folder))


def _check_disk(checkup: Checkup, folder: Path, settings: "BrokerConfig") -> None:
    from aerobee_console.folder.store import disk_use

    disk = disk_use(folder)
    if not disk.total:  # no disk: /proc, for one
        checkup.fault("disk", f"{folder} is on no disk", "name a folder on one")
        return
    used = disk.used_percent
    text = f"{disk.free // MIB} MiB free, {used} % used, at {folder}"
    limit, file_size = settings.disk_space_warning_level_ratio, settings.mapped_file_size_commit_log
    fix = "free space or use a larger disk; fileReservedTime says how long messages are kept"
    if used > limit:
        why = f"above {limit} % a broker refuses messages (diskSpaceWarningLevelRatio)"
        checkup.fault("disk", f"{text}: {why}", fix)
    elif disk.free < file_size:
        why = f"no room for one more log file of {file_size // MIB} MiB (mappedFileSizeCommitLog)"
        checkup.fault("disk", f"{text}: {why}", fix)
    elif used > settings.disk_space_clean_forcibly_ratio and settings.clean_file_forcibly_enable:
        checkup.note("disk", f"{text}: old messages go before their time (diskSpaceCleanForciblyRatio)", fix)
    else:
        checkup.ok("disk", text)
