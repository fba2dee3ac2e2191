"""Where the log events of servers under test go: to the logging module, not to the terminal.

pytest shows what the logging module got only when a test fails, and `caplog` finds it. The tested program keeps
structlog's configuration for itself: what it sets, before or after, is neither seen nor changed here.

Touches  the name `log` in the servers' modules, while at least one server runs.
"""

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any, Final

import structlog
from structlog.typing import EventDict, WrappedLogger

__all__ = ["LOGGER_NAME", "quiet"]

LOGGER_NAME: Final = "aerobee.server"
SERVER_PACKAGES: Final = ("aerobee_broker.", "aerobee_store.", "aerobee_nameserver.", "aerobee_remoting.")

_lock = threading.Lock()
_running = 0
_before: dict[str, Any] = {}  # module name -> its own logger


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Servers' events go to the logger `aerobee.server` meanwhile."""
    global _running
    with _lock:
        _running += 1
        if _running == 1:
            _redirect()
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if _running == 0:
                _restore()


def _redirect() -> None:
    logger = structlog.wrap_logger(
        logging.getLogger(LOGGER_NAME),
        processors=[structlog.processors.format_exc_info, _as_record],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=False,
    )
    for name, module in list(sys.modules.items()):
        # Only structlog's loggers have `bind`; the others are of the logging module already.
        if name.startswith(SERVER_PACKAGES) and hasattr(vars(module).get("log"), "bind"):
            _before[name] = vars(module)["log"]
            vars(module)["log"] = logger


def _restore() -> None:
    for name, logger in _before.items():
        vars(sys.modules[name])["log"] = logger
    _before.clear()


def _as_record(_logger: WrappedLogger, _method: str, event: EventDict) -> tuple[tuple[str], dict[str, Any]]:
    """One line: the event, then its facts."""
    name = event.pop("event")
    facts = " ".join(f"{key}={value!r}" for key, value in event.items())
    return (f"{name} {facts}".rstrip().replace("%", "%%"),), {}
