"""Delivery of messages with a delay level: each level in order, each message when it is due.

Touches  the store: reads the queues of the schedule topic, appends to the real topics.

Queue level - 1 of SCHEDULE_TOPIC_XXXX holds the messages of a level; the tag field of an entry is when the message is
due. All of a level wait equally long, so its queue is in order of that time, and one offset tells how far it is.

Woken by messages that come and by the time at which the next one is due; nobody polls. Many that are due are
delivered in batches, and other work of the event loop goes between.

Wall clock   Times are compared with the wall clock, so a clock that is set forward delivers sooner by as much. When
             it is set back, or the table of levels was changed, what waits then waits for one whole delay of its
             level at most.
Crash        Offsets are written every `flushDelayOffsetInterval`. What was delivered after that is found again by
             the index and not delivered twice; without the index it is (at least once).

Invariants
- Nothing is delivered before its time, and nothing is passed over but what ScheduledMessages says nobody may get.
- A level's offset moves past a message only when its delivery is in the log.
"""

import asyncio
import heapq
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from aerobee_broker.messages.message_writer import MessageWriter
from aerobee_broker.messages.refusals import NO_LOG_FILE, has_no_log_file
from aerobee_broker.schedule.delay_offsets import DelayOffsets
from aerobee_broker.schedule.scheduled_messages import ScheduledMessages, wait_for_due
from aerobee_broker.schedule.wakeups import Wakeups
from aerobee_broker.settings.config import LiveConfig, delay_levels
from aerobee_broker.settings.config_files import ConfigFiles
from aerobee_proto.names import SCHEDULE_TOPIC
from aerobee_store.disk.page_cache import NotInMemory
from aerobee_store.faults.errors import StoreError
from aerobee_store.store import MessageStore
from aerobee_store.terms.messages import NewMessage, PutStatus

__all__ = ["ScheduleDelivery"]

log = structlog.get_logger()

BATCH_COUNT: Final = 32  # messages delivered in one go: about 1 ms of the loop
BATCH_BYTES: Final = 4 << 20
RETRY_MS: Final = 1000  # while the store takes nothing
CLOCK_SLACK_MS: Final = 500  # a step back by more than this is one


def monotonic_ms() -> float:
    """A clock that nobody sets."""
    return time.monotonic() * 1000


class _Level:
    """Where one level stands."""

    __slots__ = ("delay_ms", "due_ms", "number", "offset", "old_due_ms", "old_end")

    def __init__(self, number: int, delay_ms: int, offset: int) -> None:
        self.number = number
        self.delay_ms = delay_ms
        self.offset = offset  # of the next message
        self.due_ms: int | None = None  # when that one is due; None: there is none
        # Messages below old_end came before the clock or the table changed: due at old_due_ms at the latest.
        self.old_end = 0
        self.old_due_ms = 0

    def due_of(self, offset: int, tag: int) -> int:
        return min(tag, self.old_due_ms) if offset < self.old_end else tag


class ScheduleDelivery:
    """Delivers all levels. All calls from the event loop."""

    def __init__(
        self,
        scheduled: ScheduledMessages,
        *,
        live: LiveConfig,
        clock: Callable[[], int],
        store: MessageStore,
        writer: MessageWriter,
        delay_offsets: DelayOffsets,
        wakeups: Wakeups,
        monotonic: Callable[[], float] = monotonic_ms,
    ) -> None:
        """`monotonic` gives milliseconds since some moment."""
        self._live = live
        self._clock = clock
        self._store = store
        self._writer = writer
        self._delay_offsets = delay_offsets
        self._wakeups = wakeups
        self._scheduled = scheduled
        self._monotonic = monotonic
        self._levels: dict[int, _Level] = {}
        # (due, level); an entry that is not the level's due_ms is stale.
        self._heap: list[tuple[int, int]] = []
        self._refused_logged_ms = 0
        # Deliveries up to this time may have been made by a run that could not write its offsets any more.
        self._doubtful_ms = 0
        self._skew_ms = 0.0  # wall clock minus the other

    # --- where levels stand -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Take up where the last run ended. Before `run`, after recovery and the loading of the offsets."""
        self._doubtful_ms = self._store.newest_timestamp
        now_ms = self._clock()
        self._skew_ms = now_ms - self._monotonic()
        for number, delay_ms in enumerate(delay_levels(self._live.value.message_delay_level), 1):
            level = _Level(number, delay_ms, self._delay_offsets.get(number))
            self._levels[number] = level
            low, high = self._range(level)
            if level.offset > high:
                log.warning(
                    "broker.delay_offset_corrected",
                    level=number,
                    logical_offset=level.offset,
                    max_offset=high,
                )
                level.offset = high
            level.offset = max(level.offset, low)
        for queue_id in self._store.topics.queue_ids(SCHEDULE_TOPIC):
            if queue_id + 1 not in self._levels:
                self._begin_orphan(queue_id + 1)
        self._restart_clock(now_ms)

    def _begin_orphan(self, number: int) -> None:
        """A level that the table does not have any more: what waits there still gets delivered."""
        level = _Level(number, max(one.delay_ms for one in self._levels.values()), 0)
        low, high = self._range(level)
        level.offset = min(max(self._delay_offsets.get(number), low), high)
        if level.offset < high:
            log.warning("broker.delay_level_removed", level=number, message_count=high - level.offset)
            self._levels[number] = level

    def _range(self, level: _Level) -> tuple[int, int]:
        return self._store.reading.readable_range(SCHEDULE_TOPIC, level.number - 1) or (0, 0)

    def _restart_clock(self, now_ms: int) -> None:
        """What waits now waits for one whole delay of its level at most."""
        self._skew_ms = now_ms - self._monotonic()
        for level in self._levels.values():
            level.old_end = self._store.reading.next_offset(SCHEDULE_TOPIC, level.number - 1)
            level.old_due_ms = now_ms + level.delay_ms
            self._look(level)

    def _look(self, level: _Level) -> None:
        """Find out when the level's next message is due."""
        low, high = self._range(level)
        if level.offset < low:
            log.warning("broker.delayed_cleaned", level=level.number, message_count=low - level.offset)
            level.offset = low
        store, queue_id = self._store, level.number - 1
        while level.offset < high:
            entry = store.reading.queue_entry(SCHEDULE_TOPIC, queue_id, level.offset)
            if entry is not None:
                self._wake_at(level, level.due_of(level.offset, entry.tag_hash))
                return
            level.offset += 1
        level.due_ms = None
        if (
            store.reading.next_offset(SCHEDULE_TOPIC, queue_id) > high
        ):  # its queue entry waits for room on the disk
            self._wake_at(level, self._clock() + RETRY_MS)

    def _wake_at(self, level: _Level, due_ms: int) -> None:
        if level.due_ms != due_ms:
            level.due_ms = due_ms
            heapq.heappush(self._heap, (due_ms, level.number))

    @property
    def waiting_count(self) -> int:
        """Messages that wait in all levels."""
        return sum(max(0, self._range(level)[1] - level.offset) for level in self._levels.values())

    # --- running ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Deliver until cancelled. StorePoisoned when the disk has failed."""
        while True:
            due_ms = self._heap[0][0] if self._heap else None
            await wait_for_due(due_ms, self._wakeups.level_came, self._clock)
            if self._wakeups.level_came.is_set():
                self._wakeups.level_came.clear()
                await self._writer.durable()
                self.take_up_fresh()
            await self.deliver_due()

    def take_up_fresh(self) -> None:
        """See what came to levels; what is not readable yet is told by the next wake-up or found by a retry."""
        while self._wakeups.levels:
            self._look(self._levels[self._wakeups.levels.pop()])

    async def deliver_due(self) -> None:
        """Deliver everything that is due now."""
        self._notice_clock_step()
        while self._heap and self._heap[0][0] <= self._clock():
            due_ms, number = heapq.heappop(self._heap)
            level = self._levels[number]
            if level.due_ms == due_ms:
                level.due_ms = None
                await self._scheduled.cold.present(partial(self._deliver, level))
                await asyncio.sleep(0)

    def _notice_clock_step(self) -> None:
        now_ms = self._clock()
        skew_ms = now_ms - self._monotonic()
        if skew_ms < self._skew_ms - CLOCK_SLACK_MS:
            log.warning("broker.clock_set_back", step_ms=round(self._skew_ms - skew_ms))
            self._restart_clock(now_ms)
        self._skew_ms = skew_ms

    def _deliver(self, level: _Level) -> None:
        """Deliver one batch of a level and find out what comes next. NotInMemory: nothing was done yet."""
        offsets, messages, end = self._due_batch(level)
        try:
            done = self._writer.append(messages) if messages else []
        except StoreError as refused:
            self._log_refused(str(refused))
            self._wake_at(level, self._clock() + RETRY_MS)
            return
        for offset, message, one in zip(offsets, messages, done, strict=True):
            if has_no_log_file(one):
                self._log_refused(NO_LOG_FILE)
                self._moved(level, offset)
                self._wake_at(level, self._clock() + RETRY_MS)
                return
            if one.status is PutStatus.PUT_OK:
                self._scheduled.delivered(message, one.size)
            else:
                scheduled_at = message.prepared_transaction_offset
                log.error("broker.delayed_lost", physical_offset=scheduled_at, reason=one.status.name)
        self._moved(level, end)
        self._look(level)

    def _due_batch(self, level: _Level) -> tuple[list[int], list[NewMessage], int]:
        """Queue offsets and deliveries of what is due, and the offset behind it; one batch at most."""
        store, now_ms = self._store, self._clock()
        offsets: list[int] = []
        messages: list[NewMessage] = []
        size = 0
        high = min(self._range(level)[1], level.offset + BATCH_COUNT)
        for offset in range(level.offset, high):
            try:
                entry = store.asking.queue_entry(SCHEDULE_TOPIC, level.number - 1, offset)
                if entry is None:
                    continue
                if level.due_of(offset, entry.tag_hash) > now_ms or size > BATCH_BYTES:
                    return offsets, messages, offset
                message = self._delivery(entry.physical_offset, entry.tag_hash)
            except NotInMemory:
                if not messages:
                    raise
                return offsets, messages, offset
            if message is not None:
                offsets.append(offset)
                messages.append(message)
                size += entry.size
        return offsets, messages, high

    def _delivery(self, physical_offset: int, due_ms: int) -> NewMessage | None:
        record = self._scheduled.read(SCHEDULE_TOPIC, physical_offset)
        if record is None or (due_ms <= self._doubtful_ms and self._scheduled.was_delivered(record)):
            return None
        return self._scheduled.delivery(record)

    def _moved(self, level: _Level, offset: int) -> None:
        store, offsets = self._store, self._delay_offsets
        if offset != level.offset:
            level.offset = offset
            offsets.moved(level.number, offset, store.end_offset)
        offsets.settle(store.flushed_offset)

    def _log_refused(self, reason: str) -> None:
        now_ms = self._clock()
        if now_ms - self._refused_logged_ms >= 60 * RETRY_MS or now_ms < self._refused_logged_ms:
            self._refused_logged_ms = now_ms
            log.warning("broker.delivery_refused", reason=reason, message_count=self.waiting_count)

    # --- offsets on disk --------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Bring what is delivered and durable into the table of offsets."""
        self._delay_offsets.settle(self._store.flushed_offset)

    async def run_saving(self, files: ConfigFiles) -> None:
        """Write the offsets every `flushDelayOffsetInterval`, until cancelled."""
        while True:
            await self._live.pause(lambda config: config.flush_delay_offset_interval)
            self.settle()
            try:
                await files.save(self._delay_offsets)
            except OSError as failed:
                name = self._delay_offsets.file_name
                log.error("broker.config_not_saved", path=name, reason=str(failed))  # noqa: TRY400  # the disk
