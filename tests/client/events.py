"""What the client logs, as a list that a test can look at."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aerobee_service.logs.event_log import LOGGER_NAME, RESERVED

__all__ = ["captured_events"]


class _Recorder(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        facts = {name: fact for name, fact in vars(record).items() if name not in RESERVED}
        name = getattr(record, "event", record.getMessage())
        self.events.append(
            {"event": name, "log_level": record.levelname.lower(), "logger": record.name} | facts
        )


@contextmanager
def captured_events() -> Iterator[list[dict[str, Any]]]:
    """Events of every level while the block runs."""
    logger, recorder = logging.getLogger(LOGGER_NAME), _Recorder()
    level = logger.level
    logger.addHandler(recorder)
    logger.setLevel(logging.DEBUG)
    try:
        yield recorder.events
    finally:
        logger.setLevel(level)
        logger.removeHandler(recorder)
