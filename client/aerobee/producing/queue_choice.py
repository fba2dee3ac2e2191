"""Which queue the next message goes to. Pure decisions: time comes in, a queue goes out.

Both choosers rotate over the queues; `avoid` names brokers that have just failed for this message. They are
left out as long as another broker is there.

LowestLatency adds what recent answers taught:
- every answer has a class by its time (LATENCY_LIMITS_MS); brokers of the best class share the traffic evenly;
- a slow answer or an error puts its broker into back-off (BACK_OFF_S) for that class;
- all in back-off: brokers that were at least reachable, then any.

Invariants
- choose() returns an element of the list given to it.
- With equal brokers both choosers give the same sequence.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

from aerobee.terms.routes import MessageQueue

__all__ = ["BACK_OFF_S", "LATENCY_LIMITS_MS", "LowestLatency", "QueueChooser", "RoundRobin"]

# RocketMQ's fault table: an answer slower than LATENCY_LIMITS_MS[i] keeps its broker out for BACK_OFF_S[i].
LATENCY_LIMITS_MS: Final = (50, 100, 550, 1800, 3000, 5000, 15000)
BACK_OFF_S: Final = (0.0, 0.0, 2.0, 5.0, 6.0, 10.0, 30.0)
ERROR_COUNTS_AS_MS: Final = 10_000
# A measurement older than this says nothing; the broker is tried again as if it were new.
MEASUREMENT_AGE_MAX_S: Final = 30.0


class QueueChooser(Protocol):
    """What the producer asks for a queue and tells about answers."""

    def choose(self, queues: Sequence[MessageQueue], avoid: Collection[str], now: float) -> MessageQueue:
        """Pick one of `queues` (not empty), if possible of a broker not named in `avoid`."""

    def record(self, broker_name: str, took_ms: float, now: float) -> None:
        """An answer came from the broker."""

    def record_error(self, broker_name: str, now: float, *, reachable: bool) -> None:
        """A try at the broker failed; `reachable` tells whether it answered at all."""


class RoundRobin:
    """Rotate over all queues; each topic has its own position."""

    def __init__(self, start: int = 0) -> None:
        self._start = start
        self._positions: dict[str, int] = {}

    def choose(self, queues: Sequence[MessageQueue], avoid: Collection[str], now: float) -> MessageQueue:
        return self._next(queues, lambda broker_name: broker_name not in avoid) or self._any(queues)

    def record(self, broker_name: str, took_ms: float, now: float) -> None:
        pass

    def record_error(self, broker_name: str, now: float, *, reachable: bool) -> None:
        pass

    def _next(self, queues: Sequence[MessageQueue], allowed: Callable[[str], bool]) -> MessageQueue | None:
        topic, count = queues[0].topic, len(queues)
        position = self._positions.get(topic, self._start)
        for step in range(count):
            queue = queues[(position + step) % count]
            if allowed(queue.broker_name):
                self._positions[topic] = position + step + 1
                return queue
        return None

    def _any(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        queue = self._next(queues, lambda _: True)
        assert queue is not None
        return queue


class _Health:
    """What is known about one broker."""

    __slots__ = ("back_off_until", "latency_class", "measured_at", "reachable")

    def __init__(
        self, latency_class: int, measured_at: float, back_off_until: float, reachable: bool
    ) -> None:
        self.latency_class = latency_class
        self.measured_at = measured_at
        self.back_off_until = back_off_until
        self.reachable = reachable


class LowestLatency(RoundRobin):
    """Rotate over the queues of the brokers that answer fastest and are not in back-off."""

    def __init__(self, start: int = 0) -> None:
        super().__init__(start)
        self._health: dict[str, _Health] = {}

    def choose(self, queues: Sequence[MessageQueue], avoid: Collection[str], now: float) -> MessageQueue:
        brokers = {queue.broker_name for queue in queues}
        candidates = (brokers - set(avoid)) or brokers
        allowed = self._best(self.available(candidates, now), now)
        return self._next(queues, allowed.__contains__) or self._any(queues)

    def record(self, broker_name: str, took_ms: float, now: float) -> None:
        self._note(broker_name, took_ms, now, reachable=True)

    def record_error(self, broker_name: str, now: float, *, reachable: bool) -> None:
        self._note(broker_name, ERROR_COUNTS_AS_MS, now, reachable=reachable)

    def _note(self, broker_name: str, took_ms: float, now: float, *, reachable: bool) -> None:
        latency_class = bisect_right(LATENCY_LIMITS_MS, took_ms)
        back_off = BACK_OFF_S[latency_class - 1] if latency_class else 0.0
        self._health[broker_name] = _Health(latency_class, now, now + back_off, reachable)

    def available(self, brokers: set[str], now: float) -> set[str]:
        """Brokers out of back-off; failing that the reachable ones; failing that all."""
        health = self._health
        ready = {name for name in brokers if name not in health or now >= health[name].back_off_until}
        return ready or {name for name in brokers if health[name].reachable} or brokers

    def _best(self, brokers: set[str], now: float) -> set[str]:
        classes = {name: self._class_of(name, now) for name in brokers}
        best = min(classes.values())
        return {name for name, latency_class in classes.items() if latency_class == best}

    def _class_of(self, broker_name: str, now: float) -> int:
        health = self._health.get(broker_name)
        if health is None or now - health.measured_at > MEASUREMENT_AGE_MAX_S:
            return 0
        return health.latency_class
