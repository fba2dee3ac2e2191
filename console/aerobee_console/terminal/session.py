"""What commands that talk to a cluster have in common: the options that say where it is, and the event loop.

Touches  the event loop, the environment, standard error (the client's warnings).
"""

import asyncio
import os
import ssl
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Parameter

from aerobee_console.terminal.failures import USAGE, Failure
from aerobee_console.terminal.numbers import SECONDS
from aerobee_console.terminal.tables import OutputFormat
from aerobee_service.program.interrupts import interrupts_as_ever

if TYPE_CHECKING:
    from aerobee import Client, ClientConfig

__all__ = ["Connect", "Output", "client_config", "run", "run_async"]

T = TypeVar("T")


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
        Path | None, Parameter(help="Trust the certificates of this PEM file. Implies --tls.")
    ] = None


Output = Annotated[
    OutputFormat, Parameter(name=["--output", "-o"], help="table for people, json for programs.")
]


def client_config(connect: Connect) -> "ClientConfig":
    """The client's settings for these options. Raises InvalidMessage for an address that cannot be one."""
    from aerobee import ClientConfig
    from aerobee.terms.config import parse_addrs

    tls: ssl.SSLContext | bool | None = connect.tls or None
    if connect.tls_ca is not None:
        tls = _trusting(connect.tls_ca)
    return ClientConfig(
        nameservers=parse_addrs(connect.nameserver), request_timeout_s=connect.timeout, tls=tls
    )


def _trusting(authority: Path) -> ssl.SSLContext:
    """A context that trusts the certificates of a file; Failure names the option and the file."""
    try:
        return ssl.create_default_context(cafile=authority)
    except ssl.SSLError as wrong:
        raise Failure(f"--tls-ca {authority}: no certificates in PEM form in it", USAGE) from wrong
    except OSError as wrong:
        raise Failure(f"--tls-ca {authority}: {wrong.strerror or wrong}", USAGE) from wrong


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
