"""How many timer messages wait, by topic, and the file `config/timermetrics`.

Touches  nothing by itself; `config_files` writes the table.

    {"dataVersion": {...}, "timingCount": {"topic": {"count": 3, "timeStamp": 1700000000000}}}

Counted anew at each start, from the hashes of topics in the timer log: the file is for RocketMQ and for operators.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from aerobee_broker.stats import Counter
from aerobee_proto.bodies import DataVersion
from aerobee_proto.javahash import java_hash
from aerobee_service.turns.made_maps import MadeMap

__all__ = ["TimerCounts"]


class TimerCounts:
    """Topic -> messages that wait. All calls from the event loop. Bounded by the number of topics."""

    file_name = "timermetrics"

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._counts: dict[str, tuple[int, int]] = {}  # topic -> (count, last change in ms)
        self.version = DataVersion(timestamp=clock())
        self.revision = 0
        self.enqueued = Counter()
        self.dequeued = Counter()

    def add(self, topic: str, count: int, now_ms: int) -> None:
        """`count` more messages of the topic wait."""
        left = max(0, self._counts.get(topic, (0, 0))[0] + count)
        self._counts[topic] = (left, now_ms)
        self.revision += 1

    def forget(self, topic: str) -> None:
        """The topic was deleted."""
        if self._counts.pop(topic, None) is not None:
            self.revision += 1

    def recount(self, hashes: Mapping[int, int], topics: Iterable[str]) -> None:
        """Begin anew: `hashes` say how many messages wait for topics of each Java hash."""
        now_ms = self._clock()
        found = ((topic, hashes.get(java_hash(topic), 0)) for topic in topics) if hashes else ()
        self._counts = {topic: (count, now_ms) for topic, count in found if count > 0}

    def sample(self, number: int, now_ms: int) -> None:
        """Note where the counters stand, for their rates."""
        self.enqueued.sample(number, now_ms)
        self.dequeued.sample(number, now_ms)

    def waiting(self) -> list[tuple[str, int]]:
        """Topics that messages wait for, and how many."""
        return [(topic, count) for topic, (count, _) in self._counts.items() if count]

    def to_json(self) -> dict[str, Any]:
        """The content of `timermetrics`, which is also the answer to GET_TIMER_METRICS."""
        version = msgspec.structs.replace(self.version, counter=self.version.counter + self.revision)
        return {
            "dataVersion": msgspec.to_builtins(version),
            "timingCount": MadeMap(dict(self._counts), _written),
        }

    def parse(self, content: Mapping[str, object]) -> None:
        """Counts are made anew; whatever the file says is safe to lose."""

    def take(self, parsed: None) -> None:
        """See `parse`."""


def _written(counted: tuple[int, int]) -> dict[str, int]:
    count, changed_ms = counted
    return {"count": count, "timeStamp": changed_ms}
