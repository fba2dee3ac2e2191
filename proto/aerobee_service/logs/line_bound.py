"""How many lines of a log one event may take, and how long they are: what a peer does a million times is told some
times, and counted; what it sends a million letters of is cut.

A processor of structlog and a filter of the logging module. Touches nothing; the clock is passed in.

An event that comes more than LINES_A_SECOND_MAX times within a second is left out for the rest of it. The next line of
any event in a later second has `lines_left_out`, how many of which. What the store says of its files is never left out:
no peer can make it say more, and each line names another place.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final

import structlog
from structlog.typing import EventDict, WrappedLogger

__all__ = ["FACT_CHARS_MAX", "LINES_A_SECOND_MAX", "LineBound", "cut_facts"]

LINES_A_SECOND_MAX: Final = 100
FACT_CHARS_MAX: Final = 4096  # of a text in a line
_UNBOUND: Final = "store."


def cut_facts(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """As a processor of structlog: no text is longer than FACT_CHARS_MAX; of one that was, it says how long it is."""
    for name, fact in event.items():
        if isinstance(fact, str) and len(fact) > FACT_CHARS_MAX:
            event[name] = f"{fact[:FACT_CHARS_MAX]}… ({len(fact)} characters)"
    return event


class LineBound:
    """Counts the lines of each event. For any thread."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        # Of this second.
        self._second = 0
        self._seen: Counter[str] = Counter()
        # Of seconds that are over.
        self._untold: Counter[str] = Counter()

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        """As a processor of structlog: DropEvent for a line that is too many."""
        name = str(event["event"])
        if name.startswith(_UNBOUND):
            return event
        with self._lock:
            if not self._has_room(name):
                raise structlog.DropEvent
            if self._untold:
                event["lines_left_out"] = dict(self._untold)
                self._untold.clear()
        return event

    def filter(self, record: logging.LogRecord) -> bool:
        """As a filter of the logging module: whether to write the line. Lines count for their logger."""
        with self._lock:
            return self._has_room(record.name)

    def _has_room(self, name: str) -> bool:
        second = int(self._clock_s())
        if second != self._second:
            self._second = second
            for seen, count in self._seen.items():
                if count > LINES_A_SECOND_MAX:
                    self._untold[seen] += count - LINES_A_SECOND_MAX
            self._seen.clear()
        self._seen[name] += 1
        return self._seen[name] <= LINES_A_SECOND_MAX
