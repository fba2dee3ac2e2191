"""Logs: one line an event, for people on a terminal, as JSON for everything else.

Event names are an interface (`room.what_happened`, facts as keys), so the shape of a line is set here, once,
for every program. Lines of libraries that use the standard `logging` module (asyncio's complaints above all)
come out in the same shape.

What a server says is written by a thread of its own (`LogWriter`): a reader that hangs holds nobody up. What a command
says is written at once, in order with what it prints.

Touches  structlog's and logging's global configuration, and the stream it is given. Called by a program's
main and nowhere else.
"""

import atexit
import logging
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from aerobee_service.logs.event_log import LOGGER_NAME
from aerobee_service.logs.line_bound import LineBound, cut_facts
from aerobee_service.logs.log_writer import LogWriter

__all__ = ["LEVELS", "configure_logging", "finish_logs", "stray_errors_logged"]

log = structlog.get_logger()


_add_extra: Final = structlog.stdlib.ExtraAdder()
LEVELS: Final = ("debug", "info", "warning", "error")
AT_EXIT_S: Final = 1.0  # a program that ends waits so long for the reader of its log
_writers: Final[list[LogWriter]] = []  # of this process, one for each descriptor


def configure_logging(
    level: str = "info",
    json: bool | Literal["auto"] = "auto",
    *,
    stream: TextIO | None = None,
    by_thread: bool | None = None,
    facts: Mapping[str, str] | None = None,
) -> None:
    """Send events of `level` and above to `stream` (standard output unless given), each with these `facts`.

    `json="auto"` writes for people when the stream is a terminal, and JSON lines otherwise. A JSON line has
    `timestamp` (UTC, ISO 8601), `level`, `event`, then the facts. `by_thread`: nobody waits for the reader of the
    stream, as it is unless a stream is given. Raises ValueError for an unknown level.
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
        cut_facts,
    ]
    if facts:
        shared.append(lambda _logger, _method, event: {**facts, **event})
    rendering: list[Processor] = [structlog.dev.ConsoleRenderer(colors=out.isatty())]
    if as_json:
        rendering = [structlog.processors.format_exc_info, _head_first, _to_json]
    sink: TextIO | LogWriter = out
    if stream is None if by_thread is None else by_thread:
        sink = _writer_of(out, [*shared, *rendering]) or out
    structlog.configure(
        processors=[bound, *shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *_: _Lines(sink),
        cache_logger_on_first_use=True,
    )
    _adopt_standard_logging(number, sink, bound, shared, rendering)


def finish_logs(within_s: float = AT_EXIT_S) -> bool:
    """Wait until the lines of this process are written, so long at most; whether they are. Done at its orderly end."""
    until = time.monotonic() + within_s
    done = [writer.drain(max(0.0, until - time.monotonic())) for writer in _writers]
    return all(done)


def _writer_of(out: TextIO, processors: list[Processor]) -> LogWriter | None:
    """The one of this stream's descriptor; None for a stream that has none."""

    rendered = structlog.wrap_logger(
        structlog.ReturnLogger(),
        processors,
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )

    def left_out_line(count: int) -> str:
        log = rendered.new()
        return f"{log.warning('process.log_lines_left_out', count=count, reason='the log was not read')}\n"

    try:
        descriptor = out.fileno()
        out.flush()
    except (OSError, ValueError):
        return None
    for writer in _writers:
        if writer.descriptor == descriptor:
            writer.left_out_line = left_out_line
            return writer
    if not _writers:
        atexit.register(finish_logs)
    _writers.append(LogWriter(descriptor, left_out_line, encoding=out.encoding or "utf-8"))
    return _writers[-1]


class _Lines:
    """What structlog hands its lines to. Its own loggers hold a lock meanwhile, which a destructor that logs while a
    line is written would wait for for ever."""

    def __init__(self, sink: TextIO | LogWriter) -> None:
        self._sink = sink

    def msg(self, line: str) -> None:
        self._sink.write(f"{line}\n")
        self._sink.flush()

    log = debug = info = warn = warning = error = critical = exception = fatal = msg


def _head_first(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Timestamp, level and event lead each line, so that a narrow terminal still shows what matters."""
    head = {key: event.pop(key) for key in ("timestamp", "level", "event") if key in event}
    return head | dict(event)


@contextmanager
def stray_errors_logged() -> Iterator[None]:
    """Errors that nobody can catch (of a thread, of a destructor), and warnings, are one event each, not lines of text
    on standard error, whose reader may hang.

    For a program's main; what was there before is put back at the end.
    """

    def log_ignored(stray: "sys.UnraisableHookArgs") -> None:
        _log_stray("process.error_ignored", stray.exc_value, stray.err_msg or repr(stray.object))

    def log_thread(stray: threading.ExceptHookArgs) -> None:
        _log_stray(
            "process.thread_failed", stray.exc_value, stray.thread.name if stray.thread is not None else ""
        )

    def log_warning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        log.warning("process.warned", where=f"{filename}:{lineno}", reason=f"{category.__name__}: {message}")

    before: tuple[Any, ...] = (sys.unraisablehook, threading.excepthook, warnings.showwarning)
    sys.unraisablehook, threading.excepthook, warnings.showwarning = log_ignored, log_thread, log_warning
    try:
        yield
    finally:
        sys.unraisablehook, threading.excepthook, warnings.showwarning = before


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
    number: int,
    sink: TextIO | LogWriter,
    bound: LineBound,
    shared: list[Processor],
    rendering: list[Processor],
) -> None:
    """Give records of the logging module the same form; whatever handlers were there are replaced."""
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[_adopted, *shared],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
    )
    handler = logging.StreamHandler(sink)
    handler.setFormatter(formatter)
    handler.addFilter(bound.filter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
