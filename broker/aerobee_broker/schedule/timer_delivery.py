"""Delivery of timer messages: each at its own time.

Touches  the store: reads the timer topic, appends to the real topics; the timer files through `TimerFiles`.

A message of rmq_sys_wheel_timer gets a unit in the timer log when it is readable. When a slot of the log begins, its
units are read into a heap that orders them to the millisecond; each is delivered when it is due. Only the positions
of units are kept in memory for later slots: 8 bytes a message.

Too far away   A message that is due more than `timerRollWindowSlot` slots from now goes back into the timer topic
               when half the way, or a window, is over: so its record is not deleted by age.
Recall         A message with TIMER_DEL_UNIQKEY in the slot of another takes that one out.
Crash          The checkpoint is written each second while something happens. What was delivered after it is found
               by the index and not delivered twice; without the index it is (at least once). The same holds for
               what was put back into the timer topic.
Copies         A slave has the timer topic, and no timer log of what waited before it became master: it reads the topic
               anew from where its master has said that something waits (all of it when that is not known), and what
               was done by then is found by the index.
Wall clock     Set forward, deliveries come sooner by as much; set back, later. They are never before their time.

Invariants
- Nothing is delivered before its time.
- The checkpoint speaks of deliveries that are on disk only.
"""

import asyncio
import heapq
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from aerobee_broker.messages.message_writer import MessageWriter
from aerobee_broker.messages.refusals import NO_LOG_FILE, has_no_log_file
from aerobee_broker.messages.stored_properties import whole_number
from aerobee_broker.schedule.delay_rules import due_ms
from aerobee_broker.schedule.scheduled_messages import ScheduledMessages, wait_for_due
from aerobee_broker.schedule.timer_counts import TimerCounts
from aerobee_broker.schedule.wakeups import Wakeups
from aerobee_broker.settings.config import LiveConfig
from aerobee_broker.settings.config_files import ConfigFiles
from aerobee_broker.stats import SAMPLE_S
from aerobee_proto import properties
from aerobee_proto.javahash import java_hash
from aerobee_proto.names import TIMER_TOPIC
from aerobee_proto.records import StoredRecord
from aerobee_service.turns.tasks import look_at
from aerobee_store.disk.page_cache import NotInMemory
from aerobee_store.faults.errors import StoreError, StoreFull
from aerobee_store.store import MessageStore
from aerobee_store.terms.messages import NewMessage, PutStatus
from aerobee_store.timer.timer_files import (
    MAGIC_DEFAULT,
    MAGIC_DELETE,
    MAGIC_ROLL,
    CheckpointKept,
    Snapshot,
    TimerFiles,
    TimerUnit,
)

__all__ = ["TimerDelivery", "recall_key"]

log = structlog.get_logger()

BATCH_COUNT: Final = 32  # messages of one turn: about 1 ms of the loop
BATCH_BYTES: Final = 4 << 20
RETRY_MS: Final = 1000  # while the store takes nothing
CHECKPOINT_S: Final = 1.0
POSITION_BITS: Final = 50  # of a heap entry: the rest is the time


def recall_key(topic: str, unique_key: str) -> str:
    """What TIMER_DEL_UNIQKEY says to take this message out."""
    return f"{topic}+{unique_key}"


class _OpenSlot:
    """A slot whose messages are being delivered."""

    __slots__ = ("left", "recalled")

    def __init__(self) -> None:
        self.left: set[int] = set()  # positions of units that are in the heap
        self.recalled: set[str] = set()


class TimerDelivery:
    """Delivers timer messages. All calls from the event loop."""

    def __init__(
        self,
        scheduled: ScheduledMessages,
        files: TimerFiles,
        *,
        live: LiveConfig,
        clock: Callable[[], int],
        store: MessageStore,
        writer: MessageWriter,
        timer_counts: TimerCounts,
        wakeups: Wakeups,
    ) -> None:
        """`files` are the store's, recovered with it."""
        config = live.value
        self._clock = clock
        self._store = store
        self._writer = writer
        self._wakeups = wakeups
        self._scheduled = scheduled
        self._files = files
        self._counts = timer_counts
        self._precision_ms = config.timer_precision_ms
        self._window_ms = config.timer_roll_window_slot * config.timer_precision_ms
        self._heap: list[int] = []  # due << POSITION_BITS | position
        self._open: dict[int, _OpenSlot] = {}
        self._retry_at_ms = 0
        self._refused_logged_ms = 0
        self.doubtful_ms = 0
        self._rebuilt_until = 0  # messages below had a unit in a log that was lost
        self._old_end = 0  # messages of the timer topic below were there before this run
        self._counted_until = 0  # messages below were counted by the units that they had then
        self._dirty = False
        self._snapshot: Snapshot | None = None  # waits for the disk
        self._writing: asyncio.Future[None] | None = None  # of a checkpoint

    # --- where it stands --------------------------------------------------------------------------------------

    def begin(self, topics: Iterable[str], *, done_below: int = 0) -> None:
        """Take up where the last run ended; `topics` are those that messages may wait for. Nothing waits that lies
        below the physical offset `done_below`."""
        files = self._files
        files.queue_offset = max(files.queue_offset, self._first_from(done_below))
        self.doubtful_ms = self._store.newest_timestamp
        self._rebuilt_until = files.lost_queue_offset
        low, high = self._range()
        if files.queue_offset > high:
            log.warning("broker.timer_offset_corrected", logical_offset=files.queue_offset, max_offset=high)
        files.queue_offset = min(max(files.queue_offset, low), high)
        self._old_end, self._counted_until = high, files.queue_offset
        self._counts.recount(files.topic_hashes(), topics)
        self._wakeups.timer_came.set()

    def _first_from(self, physical_offset: int) -> int:
        """Queue offset of the first message of the timer topic that lies there or behind."""
        low, high = self._range()
        if not physical_offset:
            return low
        while low < high:
            middle = (low + high) // 2
            entry = self._store.reading.queue_entry(TIMER_TOPIC, 0, middle)
            if entry is not None and entry.physical_offset >= physical_offset:
                high = middle
            else:
                low = middle + 1
        return low

    def done_below(self) -> int:
        """The physical offset below which no message waits for its time: what is due there is delivered, in the log as
        it is now."""
        begin = self._files.first_waiting()
        # What has no unit yet lies behind the last message that has one.
        read = self._store.reading.queue_entry(TIMER_TOPIC, 0, self._files.queue_offset - 1)
        unread = 0 if read is None else read.physical_offset + read.size
        return unread if begin is None else min(begin, unread)

    def _range(self) -> tuple[int, int]:
        return self._store.reading.readable_range(TIMER_TOPIC, 0) or (0, 0)

    @property
    def files(self) -> TimerFiles:
        return self._files

    @property
    def waiting_count(self) -> int:
        """Messages that have a unit and are not delivered; those of the slot that runs count until it is over."""
        return self._files.count

    @property
    def offset_behind(self) -> int:
        """Messages of the timer topic that have no unit yet."""
        return max(0, self._range()[1] - self._files.queue_offset)

    @property
    def late_ms(self) -> int:
        """How long the oldest message that is not delivered has been due; 0 when none is."""
        due = self._heap[0] >> POSITION_BITS if self._heap else self._files.next_slot()
        return 0 if due is None else max(0, self._clock() - due)

    # --- running ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Deliver until cancelled. StorePoisoned when the disk has failed."""
        while True:
            await wait_for_due(self._wake_ms(), self._wakeups.timer_came, self._clock)
            if self._wakeups.timer_came.is_set():
                self._wakeups.timer_came.clear()
                await self._writer.durable()
            await self.work()

    async def work(self) -> None:
        """Everything that can be done now."""
        present = self._scheduled.cold.present
        while self._clock() >= self._retry_at_ms and await present(self._enqueue_batch):  # noqa: ASYNC110  # others too
            await asyncio.sleep(0)
        self._open_slots()
        while self._clock() >= self._retry_at_ms and await present(self._deliver_batch):  # noqa: ASYNC110  # others too
            await asyncio.sleep(0)
        self._finish_slots()

    def _wake_ms(self) -> int | None:
        """When there is something to do, unless messages come: slots begin and end, messages are due."""
        times = [self._heap[0] >> POSITION_BITS] if self._heap else []
        if self._open:
            times.append(min(self._open) + self._precision_ms)
        following = self._files.next_slot()
        if following is not None:
            times.append(following)
        if self._store.reading.next_offset(TIMER_TOPIC, 0) > self._files.queue_offset:
            times.append(self._clock() + RETRY_MS)  # its queue entry waits for room on the disk
        return max(min(times), self._retry_at_ms) if times else None

    # --- from the topic to the log ----------------------------------------------------------------------------

    def _enqueue_batch(self) -> bool:
        """Give units to messages that came; False when there are none left, or no room. NotInMemory: it goes on from
        where it is."""
        low, high = self._range()
        files = self._files
        if files.queue_offset < low:
            log.warning("broker.delayed_cleaned", topic=TIMER_TOPIC, message_count=low - files.queue_offset)
            files.queue_offset = low
        start = files.queue_offset
        for offset in range(start, min(high, start + BATCH_COUNT)):
            entry = self._store.asking.queue_entry(TIMER_TOPIC, 0, offset)
            record = self._scheduled.read(TIMER_TOPIC, entry.physical_offset) if entry is not None else None
            if record is not None:
                try:
                    self._enqueue(record, offset)
                except StoreError as refused:
                    self._hold(str(refused))
                    return False
            files.queue_offset = offset + 1
            self._dirty = True
        return files.queue_offset < high

    def _enqueue(self, record: StoredRecord, offset: int) -> None:
        mapping = record.property_map
        out_ms = whole_number(mapping.get(properties.TIMER_OUT_MS, ""))
        if out_ms is None or out_ms < 0:
            log.error("broker.delayed_lost", physical_offset=record.physical_offset, reason="it has no time")
            return
        due = self._due_of(record, out_ms)
        slot = self._files.slot_of(due - 1)
        topic = mapping.get(properties.REAL_TOPIC, "")
        if slot < self._files.read_ms:
            if offset >= self._rebuilt_until:
                self._counts.add(topic, 1, self._clock())
                self._deliver_now(record)
            return
        now_ms = self._clock()
        deletes = properties.TIMER_DEL_UNIQKEY in mapping
        if offset >= self._old_end or self._scheduled.rolled_copy(record) is None:
            magic, at_ms = self._place(due)
            magic |= MAGIC_DELETE if deletes else 0
            place = (record.physical_offset, record.size, java_hash(topic))
            unit = TimerUnit(-1, magic, now_ms, at_ms, *place)
            position = self._files.add(unit)
            slot = self._files.slot_of(at_ms)
            if slot in self._open:
                self._take_in(slot, position, unit)
        if properties.TIMER_ROLL_TIMES not in mapping:  # else it counts already
            self._counts.add(topic, -1 if deletes else 1, now_ms)
        self._counts.enqueued.add(1)

    def _due_of(self, record: StoredRecord, out_ms: int) -> int:
        """When the message is due: exact when its properties tell, never over a step behind TIMER_OUT_MS."""
        latest = out_ms + self._precision_ms
        try:
            due = due_ms(record.property_map, record.store_timestamp)
        except ValueError:
            return latest
        return due if out_ms < due <= latest else latest

    def _place(self, due: int) -> tuple[int, int]:
        """Magic and time of the unit for a message: its own, or of a stop on its way."""
        now_slot = self._files.slot_of(self._clock())
        far_ms = self._files.slot_of(due - 1) - now_slot
        if far_ms < self._window_ms:
            return MAGIC_DEFAULT, due - 1
        half = far_ms - self._window_ms < self._window_ms // 3  # leaves time enough for the next stop
        stop_ms = self._window_ms // 2 if half else self._window_ms
        return MAGIC_DEFAULT | MAGIC_ROLL, now_slot + self._files.slot_of(stop_ms)

    def _deliver_now(self, record: StoredRecord) -> None:
        """A message whose slot was over when it became readable."""
        if properties.TIMER_DEL_UNIQKEY in record.property_map or self._repeats(record):
            return
        message = self._delivery(record, self._clock())
        if message is not None:
            (done,) = self._writer.append([message])
            self._delivered(message, done.status, done.size)

    # --- from the log to the heap -----------------------------------------------------------------------------

    def _open_slots(self) -> None:
        """Take the units of slots that have begun into the heap."""
        while (slot := self._files.next_slot()) is not None and slot <= self._clock():
            self._files.take_slot()
            self._open[slot] = _OpenSlot()
            for position in list(self._files.positions(slot)):
                unit = self._files.unit(position)
                if unit is not None:
                    self._take_in(slot, position, unit)

    def _take_in(self, slot: int, position: int, unit: TimerUnit) -> None:
        opened = self._open[slot]
        if unit.deletes and not unit.rolls:
            record = self._scheduled.read(TIMER_TOPIC, unit.physical_offset, asks=False)
            key = record.property_map.get(properties.TIMER_DEL_UNIQKEY) if record is not None else None
            if key is not None:
                opened.recalled.add(key)
            return
        due = unit.at_ms + 1 if unit.exact or unit.rolls else slot + self._precision_ms
        opened.left.add(position)
        heapq.heappush(self._heap, due << POSITION_BITS | position)

    # --- from the heap to the topics --------------------------------------------------------------------------

    def _deliver_batch(self) -> bool:
        """Deliver what is due; False when nothing is left that is, or the store takes nothing. NotInMemory: nothing was
        done yet."""
        entries, messages = self._due_batch()
        if not entries:
            return False
        sent = [
            (entry, message) for entry, message in zip(entries, messages, strict=True) if message is not None
        ]
        try:
            done = self._writer.append([message for _, message in sent]) if sent else []
        except StoreError as refused:
            self._put_back(entries, str(refused))
            return False
        back = set()
        for (entry, message), one in zip(sent, done, strict=True):
            if has_no_log_file(one):
                back.add(entry)
            else:
                self._delivered(message, one.status, one.size)
        if back:
            self._put_back(back, NO_LOG_FILE)
        for entry in entries:
            if entry not in back:
                self._settle(entry)
        self._dirty = True
        return not back

    def _due_batch(self) -> tuple[list[int], list[NewMessage | None]]:
        """Heap entries that are due, and what is to be stored for each."""
        now_ms = self._clock()
        entries: list[int] = []
        messages: list[NewMessage | None] = []
        size = 0
        while self._heap and self._heap[0] >> POSITION_BITS <= now_ms and len(entries) < BATCH_COUNT:
            entry = self._heap[0]
            try:
                message = self._message_of(entry)
            except NotInMemory:
                if not entries:
                    raise
                break
            heapq.heappop(self._heap)
            entries.append(entry)
            messages.append(message)
            size += len(message.body) if message is not None else 0
            if size > BATCH_BYTES:
                break
        return entries, messages

    def _message_of(self, entry: int) -> NewMessage | None:
        unit = self._files.unit(entry & (1 << POSITION_BITS) - 1)
        record = self._scheduled.read(TIMER_TOPIC, unit.physical_offset) if unit is not None else None
        if unit is None or record is None:
            return None
        is_doubtful = entry >> POSITION_BITS <= self.doubtful_ms
        if unit.rolls:
            return self._rolled(record, is_doubtful=is_doubtful)
        recalled = self._open[self._files.slot_of(unit.at_ms)].recalled
        topic = record.property_map.get(properties.REAL_TOPIC, "")
        if recalled and recall_key(topic, record.unique_key or "") in recalled:
            return None
        if is_doubtful and self._scheduled.was_delivered(record):
            self._counts.add(topic, -1, self._clock())
            return None
        return self._delivery(record, unit.write_ms)

    def _repeats(self, record: StoredRecord) -> bool:
        due = self._due_of(record, whole_number(record.property_map.get(properties.TIMER_OUT_MS, "")) or 0)
        return due <= self.doubtful_ms and self._scheduled.was_delivered(record)

    def _delivery(self, record: StoredRecord, enqueued_ms: int) -> NewMessage | None:
        return self._scheduled.delivery(
            record,
            {
                properties.TIMER_ENQUEUE_MS: str(enqueued_ms),
                properties.TIMER_DEQUEUE_MS: str(self._clock()),
            },
        )

    def _rolled(self, record: StoredRecord, *, is_doubtful: bool) -> NewMessage | None:
        """The message for the timer topic again; None when it is there already."""
        copy = self._scheduled.rolled_copy(record) if is_doubtful else None
        if copy is not None:
            if copy.queue_offset < self._counted_until:
                self._counts.add(record.property_map.get(properties.REAL_TOPIC, ""), -1, self._clock())
            return None
        mapping = dict(record.property_map)
        times = whole_number(mapping.get(properties.TIMER_ROLL_TIMES, "")) or 0
        mapping[properties.TIMER_ROLL_TIMES] = str(times + 1)
        self._wakeups.timer_came.set()
        return self._writer.copy(record, TIMER_TOPIC, 0, mapping)

    def _delivered(self, message: NewMessage, status: PutStatus, size: int) -> None:
        self._counts.dequeued.add(1)
        if message.topic != TIMER_TOPIC:
            self._counts.add(message.topic, -1, self._clock())
        if status is PutStatus.PUT_OK:
            self._scheduled.delivered(message, size)
        else:
            log.error("broker.delayed_lost", topic=message.topic, reason=status.name)

    def _settle(self, entry: int) -> None:
        position = entry & (1 << POSITION_BITS) - 1
        unit = self._files.unit(position)
        if unit is not None:
            self._open[self._files.slot_of(unit.at_ms)].left.discard(position)

    def _put_back(self, entries: Iterable[int], reason: str) -> None:
        for entry in entries:
            heapq.heappush(self._heap, entry)
        self._hold(reason)

    def _hold(self, reason: str) -> None:
        now_ms = self._clock()
        self._retry_at_ms = now_ms + RETRY_MS
        if now_ms - self._refused_logged_ms >= 60 * RETRY_MS or now_ms < self._refused_logged_ms:
            self._refused_logged_ms = now_ms
            log.warning("broker.delivery_refused", reason=reason, message_count=self.waiting_count)

    def _finish_slots(self) -> None:
        """Slots that are over and empty are done, in order."""
        for slot in sorted(self._open):
            if self._open[slot].left or slot + self._precision_ms > self._clock():
                return
            del self._open[slot]
            self._files.finish(slot)
            self._dirty = True

    # --- the disk ---------------------------------------------------------------------------------------------

    async def run_saving(self, config_files: ConfigFiles) -> None:
        """Write the checkpoint each second in which something happened, and counts now and then, until cancelled."""
        seconds = 0
        while True:
            await asyncio.sleep(CHECKPOINT_S)
            await self.save()
            seconds += 1
            if seconds % SAMPLE_S == 0:
                self._counts.sample(seconds // SAMPLE_S, self._clock())
                try:
                    await config_files.save(self._counts)
                except OSError as failed:
                    log.warning("broker.config_not_saved", path=self._counts.file_name, reason=str(failed))

    async def save(self) -> None:
        """Write a checkpoint of the last state that is on disk; one that cannot be written is tried again. OSError is
        final: it is of the timer files."""
        if self._snapshot is None and self._dirty:
            self._dirty = False
            self._snapshot = self._files.snapshot(self._store.end_offset)
        snapshot = self._snapshot
        if snapshot is None or self._store.flushed_offset < snapshot.message_end:
            return
        self._snapshot = None
        write = asyncio.to_thread(self._files.sync, snapshot, self._clock())
        self._writing = asyncio.ensure_future(write)
        self._writing.add_done_callback(look_at)  # it may fail after a stop has ended the wait for it
        try:
            await asyncio.shield(self._writing)
        except (CheckpointKept, StoreFull) as kept:
            self._dirty = True
            log.warning("broker.timer_checkpoint_waits", reason=str(kept))

    async def close(self) -> None:
        """The orderly end, when everything is on disk: what of open slots is delivered is told to the next run."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
        try:
            for slot, opened in self._open.items():
                self._files.start_anew(slot, self._left_of(slot, opened))
            if self._end_at_last_read() or self._dirty or self._open or self._snapshot is not None:
                self._files.sync(self._files.snapshot(0), self._clock())
        except (CheckpointKept, StoreFull) as kept:
            log.warning("broker.timer_checkpoint_waits", reason=str(kept))

    def _end_at_last_read(self) -> bool:
        """Let the log end with a unit of the message that was read last, if it does not; whether one was added.

        RocketMQ reads the timer topic on from behind the message of the last unit, whatever the checkpoint says: what
        came after an earlier one would be taken in again, and delivered twice.
        """
        files = self._files
        entry = self._store.reading.queue_entry(TIMER_TOPIC, 0, files.queue_offset - 1)
        record = self._scheduled.read(TIMER_TOPIC, entry.physical_offset) if entry is not None else None
        newest = files.newest_unit()
        if record is None or newest is None or newest.physical_offset == record.physical_offset:
            return False
        # In a slot that is over and asking for nothing, so that nobody takes it up.
        at_ms, magic = max(files.read_ms - 1, 0), MAGIC_DEFAULT | MAGIC_DELETE
        topic_hash = java_hash(record.property_map.get(properties.REAL_TOPIC, ""))
        files.add(TimerUnit(-1, magic, at_ms, at_ms, record.physical_offset, record.size, topic_hash))
        return True

    def _left_of(self, slot: int, opened: _OpenSlot) -> list[int]:
        """Positions of a slot's units that still mean something: what waits, and recalls."""
        left = []
        for position in self._files.positions(slot):
            unit = self._files.unit(position)
            if position in opened.left or (unit is not None and unit.deletes and not unit.rolls):
                left.append(position)
        return left
