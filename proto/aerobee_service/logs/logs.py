"""Logs: one line an event, for people on a terminal, as JSON for everything else.

Event names are an interface (`room.what_happened`, facts as keys), so the shape of a line is set here, once,
for every program. Lines of libraries that use the standard `logging` module (asyncio's complaints above all)
come out in the same shape.

Touches  structlog's and logging's global configuration, and the stream it is given. Called by a program's
main and nowhere else.
"""

import logging
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from aerobee_service.logs.event_log import LOGGER_NAME
from aerobee_service.logs.line_bound import LineBound

__all__ = ["LEVELS", "configure_logging", "stray_errors_logged"]

log = structlog.get_logger()


_add_extra: Final = structlog.stdlib.ExtraAdder()
LEVELS: Final = ("debug", "info", "warning", "error")


def configure_logging(
    level: str = "info",
    json: bool | Literal["auto"] = "auto",
    *,
    stream: TextIO | None = None,
    facts: Mapping[str, str] | None = None,
) -> None:
    """Send events of `level` and above to `stream` (standard output unless given), each with these `facts`.

    `json="auto"` writes for people when the stream is a terminal, and JSON lines otherwise. A JSON line has
    `timestamp` (UTC, ISO 8601), `level`, `event`, then the facts. Raises ValueError for an unknown level.
    """
    if level.lower() not in LEVELS:
        raise ValueError(f"log level {level!r} is none of {', '.join(LEVELS)}")
    number = logging.getLevelNamesMapping()[level.upper()]
    out = sys.stdout if stream is None else stream
    as_json = not out.isatty() if json == "auto" else json
    bound = LineBound(time.monotonic)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if facts:
        shared.append(lambda _logger, _method, event: {**facts, **event})
    rendering: list[Processor] = [structlog.dev.ConsoleRenderer(colors=out.isatty())]
    if as_json:
        rendering = [structlog.processors.format_exc_info, _head_first, _to_json]
    structlog.configure(
        processors=[bound, *shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=True,
    )
    _adopt_standard_logging(number, out, bound, shared, rendering)


def _head_first(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Timestamp, level and event lead each line, so that a narrow terminal still shows what matters."""
    head = {key: event.pop(key) for key in ("timestamp", "level", "event") if key in event}
    return head | dict(event)


@contextmanager
def stray_errors_logged() -> Iterator[None]:
    """Errors that nobody can catch (of a thread, of a destructor) are one event each, not lines of text.

    For a program's main; what was there before is put back at the end.
    """

    def log_ignored(stray: "sys.UnraisableHookArgs") -> None:
        _log_stray("process.error_ignored", stray.exc_value, stray.err_msg or repr(stray.object))

    def log_thread(stray: threading.ExceptHookArgs) -> None:
        _log_stray(
            "process.thread_failed", stray.exc_value, stray.thread.name if stray.thread is not None else ""
        )

    before: tuple[Any, Any] = (sys.unraisablehook, threading.excepthook)
    sys.unraisablehook, threading.excepthook = log_ignored, log_thread
    try:
        yield
    finally:
        sys.unraisablehook, threading.excepthook = before


def _log_stray(event: str, error: BaseException | None, where: str) -> None:
    log.error(event, where=where, reason=f"{type(error).__name__}: {error}")


def _to_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()


def _adopted(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """A record of the logging module as an event: one of ours (`event_log.py`) has its name and facts."""
    if event["_record"].name.partition(".")[0] == LOGGER_NAME and hasattr(event["_record"], "event"):
        return _add_extra(logger, method, event)
    return structlog.stdlib.add_logger_name(logger, method, event)


def _adopt_standard_logging(
    number: int, out: TextIO, bound: LineBound, shared: list[Processor], rendering: list[Processor]
) -> None:
    """Give records of the logging module the same form; whatever handlers were there are replaced."""
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[_adopted, *shared],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    handler.addFilter(bound.filter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
