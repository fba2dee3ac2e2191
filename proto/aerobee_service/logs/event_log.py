"""Events for the standard `logging` module: what libraries have to say belongs to the program that uses them.

    log = event_logger("aerobee.producer")
    log.warning("client.sends_held_up", addr="10.0.0.1:10911", failed_count=17)

The line is `client.sends_held_up addr=10.0.0.1:10911 failed_count=17`; the name of the event and the facts are also
attributes of the record (`event`, `addr`, `failed_count`), where formatters for JSON and structlog's `ExtraAdder` find
them. Nothing is printed unless the program has set up logging: the logger `aerobee` has a NullHandler.

Servers log with structlog; `aerobee_service.logs.logs` gives events of this kind the shape of theirs.
"""

import logging
from typing import Any, Final, Protocol

__all__ = ["LOGGER_NAME", "EventLog", "EventLogger", "event_logger"]

LOGGER_NAME: Final = "aerobee"
# What records have already: a fact of such a name gets an underscore at its end.
RESERVED: Final = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "event"})

logging.getLogger(LOGGER_NAME).addHandler(logging.NullHandler())


class EventLog(Protocol):
    """What both kinds of loggers are asked to do: this one, and structlog's."""

    def debug(self, event: str, **facts: Any) -> Any: ...
    def info(self, event: str, **facts: Any) -> Any: ...
    def warning(self, event: str, **facts: Any) -> Any: ...
    def error(self, event: str, **facts: Any) -> Any: ...
    def exception(self, event: str, *, exc_info: bool | BaseException = True, **facts: Any) -> Any: ...


class EventLogger:
    """Events of one logger of the standard module."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, **facts: Any) -> None:
        if self._logger.isEnabledFor(logging.DEBUG):
            self._emit(logging.DEBUG, event, facts)

    def info(self, event: str, **facts: Any) -> None:
        if self._logger.isEnabledFor(logging.INFO):
            self._emit(logging.INFO, event, facts)

    def warning(self, event: str, **facts: Any) -> None:
        self._emit(logging.WARNING, event, facts)

    def error(self, event: str, **facts: Any) -> None:
        self._emit(logging.ERROR, event, facts)

    def exception(self, event: str, *, exc_info: bool | BaseException = True, **facts: Any) -> None:
        """An error with the traceback of `exc_info`, or of the exception that is being handled."""
        self._emit(logging.ERROR, event, facts, exc_info)

    def _emit(
        self, level: int, event: str, facts: dict[str, Any], exc_info: bool | BaseException = False
    ) -> None:
        extra = {f"{name}_" if name in RESERVED else name: fact for name, fact in facts.items()}
        text = " ".join([event, *(f"{name}={_shown(fact)}" for name, fact in facts.items())])
        self._logger.log(level, text, exc_info=exc_info, extra={"event": event, **extra}, stacklevel=3)


def _shown(fact: Any) -> str:
    """A fact as one word: quoted where it would not be one."""
    text = str(fact)
    return text if text.isprintable() and text and not set(text) & set(" ='\"") else repr(text)


def event_logger(name: str) -> EventLogger:
    """A logger of events, `aerobee` or one below it."""
    assert name.partition(".")[0] == LOGGER_NAME
    return EventLogger(name)
