"""What operators see of the messages that wait for their time.

Touches  the store, reading.
"""

from dataclasses import dataclass

from aerobee_broker.schedule.delay_offsets import DelayOffsets
from aerobee_broker.schedule.timer_counts import TimerCounts
from aerobee_broker.schedule.timer_delivery import TimerDelivery
from aerobee_proto.names import SCHEDULE_TOPIC
from aerobee_store.store import MessageStore

__all__ = ["LevelStatistics", "ScheduleFigures", "TimerStatistics"]


@dataclass(frozen=True, slots=True)
class LevelStatistics:
    """Messages of one delay level since there has been the store: those that were delivered, and all of them."""

    level: int
    delivered: int
    stored: int


@dataclass(frozen=True, slots=True)
class TimerStatistics:
    """How far the timers are behind, how many messages wait that are due, and how many come and go a second."""

    late_ms: int
    offset_behind: int
    waiting: int
    enqueued_per_second: float
    dequeued_per_second: float


class ScheduleFigures:
    """Figures of delay levels and timers, as they are when they are asked for."""

    def __init__(
        self,
        store: MessageStore,
        delay_offsets: DelayOffsets,
        timer_counts: TimerCounts,
        timers: TimerDelivery | None,
    ) -> None:
        """`timers` is None when timer messages are turned off."""
        self._store = store
        self._delay_offsets = delay_offsets
        self._timer_counts = timer_counts
        self._timers = timers

    def levels(self) -> list[LevelStatistics]:
        """One for each delay level of which something was delivered."""
        offsets, reading = self._delay_offsets, self._store.reading
        return [
            LevelStatistics(level, offsets.get(level), reading.max_offset(SCHEDULE_TOPIC, level - 1))
            for level in offsets.levels
        ]

    def timers(self) -> TimerStatistics:
        """Without timer messages nothing is late."""
        timers, counts = self._timers, self._timer_counts
        return TimerStatistics(
            late_ms=timers.late_ms if timers else 0,
            offset_behind=timers.offset_behind if timers else 0,
            waiting=timers.waiting_count if timers else 0,
            enqueued_per_second=float(counts.enqueued.last_seconds(10)),
            dequeued_per_second=float(counts.dequeued.last_seconds(10)),
        )

    def waiting(self) -> list[tuple[str, int]]:
        """Topics that timer messages wait for, and how many."""
        return self._timer_counts.waiting()
