"""`aerobee dev`: a nameserver and a broker in one process, or a set that elects its master, to try things out.

Touches  the process: event loop, signals, logs (standard error), local ports, one folder.

Everything listens on 127.0.0.1. A port that is taken is replaced by a free one, with a line that says so. Without
`--store` the messages live in a temporary folder that goes away with the process.
"""

import asyncio
import contextlib
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from aerobee_console.servers.daemons import Settings, configure_logs, parse_settings
from aerobee_console.terminal.failures import FAULT, OK, USAGE, Failure
from aerobee_console.terminal.numbers import PORT, REPLICAS
from aerobee_console.terminal.program_name import program_name
from aerobee_console.terminal.tables import Column, Pair, print_table
from aerobee_service.program.ports import is_free, owner_of
from aerobee_service.program.stop_signals import call_on_stop_signals

if TYPE_CHECKING:
    from aerobee_console.servers.local_set import LocalSet

__all__ = ["dev"]

NAMESERVER_PORT: Final = 9876
BROKER_PORT: Final = 10911
METRICS_PORT: Final = 5557
HOST: Final = "127.0.0.1"
# Files of a store that is thrown away: small, because they are allocated in full when they are made.
SMALL_FILES: Final = {
    "mappedFileSizeCommitLog": str(64 << 20),
    "maxHashSlotNum": "100000",
    "maxIndexNum": "400000",
}
# What a broker leaves off unless told, and what a first try is about.
EVERYTHING_ON: Final = {
    "enablePropertyFilter": "true",  # SQL92
    "recallMessageEnable": "true",
    "traceTopicEnable": "true",
}
SIZED_FOLDERS: Final = {
    "mappedFileSizeCommitLog": "commitlog/*",
    "mappedFileSizeConsumeQueue": "consumequeue/*/*/*",
    "mapperFileSizeBatchConsumeQueue": "batchconsumequeue/*/*/*",
}


def dev(
    *,
    store: Annotated[
        Path | None, Parameter(help="Folder to keep messages in; without it a temporary one.")
    ] = None,
    port: Annotated[
        int | None,
        Parameter(
            help="Port of the nameserver; without it 9876, or a free one where that is taken.",
            validator=PORT,
        ),
    ] = None,
    replicas: Annotated[
        int,
        Parameter(
            help="So many brokers, each a process, as one set that elects its master: it needs etcd.",
            validator=REPLICAS,
        ),
    ] = 1,
    settings: Settings = (),
) -> int:
    """Run a nameserver and a broker in one process on 127.0.0.1 until Ctrl-C.

    Prints the addresses and the next command to type. SQL92 filters, recall of delayed messages and the trace topic
    are on. --set changes settings of the broker.
    """
    overrides = EVERYTHING_ON | parse_settings(settings)
    configure_logs(sys.stderr, by_thread=True)  # standard output is for the addresses
    import uvloop

    with _folder(store) as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if replicas > 1:
            return runner.run(_serve_set(folder, SMALL_FILES | overrides, port, replicas))
        sizes = _sizes_of(folder) if store is not None else SMALL_FILES
        return runner.run(_serve(folder, sizes | overrides, port, temporary=store is None))


async def _serve(folder: Path, overrides: dict[str, str], port: int | None, *, temporary: bool) -> int:
    stop = asyncio.Event()
    call_on_stop_signals(stop.set)
    if port is None:  # one that was asked for is taken or refused, not replaced
        port = _port("nameserver", NAMESERVER_PORT)
    broker_settings = {
        "listenPort": str(BROKER_PORT),
        "metricsPromExporterPort": str(METRICS_PORT),
        **overrides,
    }
    for key, what in (("listenPort", "broker"), ("metricsPromExporterPort", "metrics page")):
        if key not in overrides:
            broker_settings[key] = str(_port(what, int(broker_settings[key])))
    from aerobee_console.servers.local_cluster import LocalCluster

    cluster = LocalCluster(folder, broker_settings, nameserver_port=port)
    cluster.failed.add_done_callback(lambda _: stop.set())
    try:
        await cluster.start()
        where = "temporary, goes away with this process" if temporary else "kept"
        _greet(cluster.nameserver, cluster.broker, broker_settings["metricsPromExporterPort"], folder, where)
        await stop.wait()
    finally:
        await cluster.close()
    return FAULT if cluster.failed.done() else OK


async def _serve_set(folder: Path, settings: dict[str, str], port: int | None, count: int) -> int:
    stop = asyncio.Event()
    call_on_stop_signals(stop.set)
    if port is None:
        port = _port("nameserver", NAMESERVER_PORT)
    from aerobee_console.servers.local_set import LocalSet

    brokers = LocalSet(folder, settings, count, nameserver_port=port)
    try:
        await brokers.start()
        _greet_set(brokers, folder)
        await stop.wait()
    finally:
        await brokers.close()
    return OK


def _greet_set(brokers: "LocalSet", folder: Path) -> None:
    program = program_name()
    option = "" if brokers.nameserver == f"{HOST}:{NAMESERVER_PORT}" else f" -n {brokers.nameserver}"
    members = brokers.members
    rows = [
        Pair("nameserver", brokers.nameserver),
        *(
            Pair("master" if number == 0 else f"slave {number}", f"{addr} (process {brokers.pid_at(addr)})")
            for number, addr in members.items()
        ),
        Pair("stores", str(folder)),
    ]
    print_table("Aerobee is ready", [Column("name", ""), Column("value", "address")], rows)
    sys.stdout.write(
        "\nNext, in a second terminal:\n\n"
        f"    {program} send greetings 'hello'{option}\n"
        f"    {program} cluster replicas{option}\n\n"
        "Kill the master's process, and see who takes its place. Ctrl-C stops all of them.\n"
    )
    sys.stdout.flush()


def _port(what: str, port: int) -> int:
    """`port`, or 0 (any free one) when somebody has it, with a line that says who."""
    if is_free(HOST, port):
        return port
    owner = owner_of(port)
    by = f" by {owner}" if owner else ""
    sys.stderr.write(f"port {port} is taken{by}; the {what} takes another one\n")
    return _any_free_port()


def _any_free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _folder(store: Path | None) -> Iterator[Path]:
    if store is not None:
        kept = store.expanduser().absolute()
        check_folder(kept)
        yield kept
        return
    with tempfile.TemporaryDirectory(prefix="aerobee-dev-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def check_folder(folder: Path) -> None:
    """Failure for a folder of somebody else's: a store would lie among its files."""
    try:
        names = {path.name for path in folder.iterdir()} - {"lost+found"}
    except FileNotFoundError:
        return
    if names and not names & {"commitlog", "config", "broker-1"}:
        shown = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
        raise Failure(
            f"{folder} is not empty and is no store ({shown}): name an empty folder, or a new one", USAGE
        )


def _sizes_of(folder: Path) -> dict[str, str]:
    """File sizes that a store has been made with, so that any store opens; nothing for a new one."""
    found: dict[str, str] = {}
    for key, pattern in SIZED_FOLDERS.items():
        file = next((path for path in folder.glob(pattern) if path.name.isdecimal()), None)
        if file is not None:
            found[key] = str(file.stat().st_size)
    return found


def _greet(nameserver: str, broker: str, metrics_port: str, folder: Path, where: str) -> None:
    program = program_name()
    option = "" if nameserver == f"{HOST}:{NAMESERVER_PORT}" else f" -n {nameserver}"
    rows = [
        Pair("nameserver", nameserver),
        Pair("broker", broker),
        Pair("store", f"{folder} ({where})"),
    ]
    if metrics_port != "0":
        rows.insert(2, Pair("metrics, health", f"http://{HOST}:{metrics_port}/metrics /health"))
    print_table("Aerobee is ready", [Column("name", ""), Column("value", "address")], rows)
    sys.stdout.write(
        "\nNext, in a second terminal:\n\n"
        f"    {program} send greetings 'hello'{option}\n"
        f"    {program} tail greetings --last 5{option}\n\n"
        "Ctrl-C stops both.\n"
    )
    sys.stdout.flush()
