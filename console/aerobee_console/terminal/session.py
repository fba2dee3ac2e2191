"""What commands that talk to a cluster have in common: the options that say where it is, and the event loop.

Touches  the event loop, the environment, standard error (the client's warnings).
"""

import asyncio
import os
import ssl
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from cyclopts import Parameter

from aerobee_console.terminal.failures import USAGE, Failure
from aerobee_console.terminal.numbers import SECONDS
from aerobee_console.terminal.tables import OutputFormat
from aerobee_service.program.interrupts import interrupts_as_ever

if TYPE_CHECKING:
    from aerobee import Client, ClientConfig, Credentials

__all__ = ["Connect", "Output", "client_config", "run", "run_async"]

T = TypeVar("T")

# Read where it is there, and where the environment names nobody who signs.
CREDENTIALS_FILE: Final = "~/.config/aerobee/credentials"


@Parameter(name="*")
@dataclass(slots=True, frozen=True, kw_only=True)
class Connect:
    """Options of every command that talks to a cluster."""

    nameserver: Annotated[
        str,
        Parameter(
            name=["--nameserver", "-n"],
            env_var=["AEROBEE_NAMESERVERS", "NAMESRV_ADDR"],
            help="Nameservers, host:port;host:port.",
        ),
    ] = "127.0.0.1:9876"
    timeout: Annotated[float, Parameter(validator=SECONDS, help="Seconds to wait for one answer.")] = 3.0
    tls: Annotated[
        bool, Parameter(negative=(), show_default=False, env_var="AEROBEE_TLS", help="Speak TLS.")
    ] = False
    tls_ca: Annotated[
        Path | None,
        Parameter(env_var="AEROBEE_TLS_CA", help="Trust the authorities of this PEM file. Implies --tls."),
    ] = None
    tls_cert: Annotated[
        Path | None,
        Parameter(env_var="AEROBEE_TLS_CERT", help="Show this certificate (PEM). Implies --tls."),
    ] = None
    tls_key: Annotated[
        Path | None, Parameter(env_var="AEROBEE_TLS_KEY", help="The key of that certificate (PEM).")
    ] = None


Output = Annotated[
    OutputFormat, Parameter(name=["--output", "-o"], help="table for people, json for programs.")
]


def client_config(connect: Connect) -> "ClientConfig":
    """The client's settings for these options. Raises InvalidMessage for an address that cannot be one."""
    from aerobee import ClientConfig
    from aerobee.terms.config import parse_addrs

    tls: ssl.SSLContext | bool | None = connect.tls or None
    files = (connect.tls_ca, connect.tls_cert, connect.tls_key)
    if any(files):
        tls = _of_files(files)
    return ClientConfig(
        nameservers=parse_addrs(connect.nameserver),
        request_timeout_s=connect.timeout,
        tls=tls,
        credentials=_credentials(),
    )


def _credentials() -> "Credentials | None":
    """Of the environment, or of the file that the command line looks for by itself. Raises InvalidMessage."""
    from aerobee.terms.credentials import credentials_of_environment, credentials_of_file

    found = credentials_of_environment(os.environ)
    if found is None and (path := Path(CREDENTIALS_FILE).expanduser()).exists():
        found = credentials_of_file(path)
    return found


def _of_files(files: Sequence[Path | None]) -> ssl.SSLContext:
    """A context of authority, certificate and key; Failure names the option and the file."""
    from aerobee.errors import InvalidMessage
    from aerobee.terms.tls_files import context_of_files

    try:
        return context_of_files(*(None if file is None else str(file) for file in files))
    except InvalidMessage as wrong:
        option = "--tls-ca" if files[0] and str(wrong).startswith(str(files[0])) else "--tls-cert"
        raise Failure(f"{option} {wrong}", USAGE) from wrong


def run(connect: Connect | None, work: Callable[["Client"], Coroutine[Any, Any, T]]) -> T:
    """Open a client, do `work` with it, close it; the result of `work`.

    Ctrl-C cancels the work and is raised as KeyboardInterrupt when the client is closed.
    """
    from aerobee import Client

    config = client_config(connect or Connect())

    async def with_client() -> T:
        async with Client(config=config) as client:
            return await work(client)

    return run_async(with_client())


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Do `work` in an event loop of its own."""
    import uvloop

    _configure_logs()
    interrupts_as_ever()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def _configure_logs() -> None:
    """What the client has to say while it copes goes to standard error, one line each."""
    import logging

    import structlog

    level = logging.DEBUG if os.environ.get("AEROBEE_DEBUG") else logging.WARNING
    leveled = structlog.processors.add_log_level
    shown = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty() and "NO_COLOR" not in os.environ)
    structlog.configure(
        processors=[leveled, shown],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.ExtraAdder(), leveled],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, shown],
    )

    debug = level == logging.DEBUG

    class StandardError(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if not debug and str(record.msg).startswith("remoting."):
                return  # the error of the command tells it
            sys.stderr.write(self.format(record) + "\n")

    handler = StandardError()
    handler.setFormatter(formatter)
    client = logging.getLogger("aerobee")
    client.handlers[:] = [handler]
    client.setLevel(level)
