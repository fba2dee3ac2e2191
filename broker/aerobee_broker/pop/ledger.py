"""What POP owes, kept in step with the disk: check-points, where each group stands, what may be forgotten.

Touches  the store and the offsets.

Where a group stands is known here at once, and goes into `consumerOffset.json` only after the record of the
check-point is on disk: a crash may hand messages out again, but never passes over one. The other way round, a
crash may leave that file behind, and a slave's is behind its log; then the check-points that the revive topic has say
how far the groups were.

How far the revive topic is done with stands in the same file (group CID_RMQ_SYS_REVIVE_GROUP: the last record that
nobody needs, as RocketMQ counts). Both are moved in the same turn, so one file never holds half of a step.

Invariants
- Every record of the revive topic at or behind the offset in the file is read at the start.
- Check-points that would keep a long row of records alive are written again at its end (`tidy`): the start stays
  short, whatever the longest invisible time is.
"""

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

import structlog

from aerobee_broker.catalog.catalog import Catalog
from aerobee_broker.messages.message_writer import MessageWriter
from aerobee_broker.pop.checkpoints import CheckPoint, CheckPointTable, Key
from aerobee_broker.pop.revive_log import (
    TIMER_SLACK_MS,
    Acks,
    Position,
    ReviveLog,
    parse_record,
    revive_topic,
)
from aerobee_broker.settings.identity import BrokerIdentity
from aerobee_proto import names
from aerobee_proto.errors import FormatError, RequestError
from aerobee_proto.names import GroupQueue
from aerobee_proto.records import StoredRecord, decode_records
from aerobee_store.reading.get_message import GetStatus
from aerobee_store.store import MessageStore

__all__ = ["Ledger"]

log = structlog.get_logger()

# Records of a revive queue that may lie before its end while outstanding check-points need them.
ROW_MAX: Final = 2048
MOVES_PER_STEP: Final = 64
READ_COUNT: Final = 1000
READ_SIZE: Final = 4 << 20
EARLY_WAIT_MS: Final = 4000  # an early ack is kept so long beyond its time
SKIPPING: Final = frozenset(
    {
        GetStatus.OFFSET_FOUND_NULL,
        GetStatus.MESSAGE_WAS_REMOVING,
        GetStatus.NO_MATCHED_MESSAGE,
        GetStatus.OFFSET_TOO_SMALL,
    }
)


class Ledger:
    """The table of check-points, and the positions of groups. All calls from the event loop."""

    def __init__(
        self,
        *,
        clock: Callable[[], int],
        identity: BrokerIdentity,
        store: MessageStore,
        catalog: Catalog,
        writer: MessageWriter,
    ) -> None:
        self._clock = clock
        self._store = store
        self._topics = catalog.topics
        self._groups = catalog.groups
        self._offsets = catalog.offsets
        self._writer = writer
        topic = revive_topic(identity.cluster_name)
        found = catalog.topics.get(topic)
        self.log = ReviveLog(
            writer,
            topic,
            queue_count=found.write_queue_nums if found is not None else 1,
            broker_name=identity.broker_name,
            on_append=self._appended,
        )
        self.table = CheckPointTable()
        # Check-points from here on are of this run: one that is not in the table is done with.
        self.started_ms = clock()
        self._positions: dict[GroupQueue, tuple[int, int]] = {}  # next offset, the log's end it stands on
        self._seen = [0] * self.log.queue_count  # records below are in the table
        self._own: list[deque[int]] = [deque() for _ in self._seen]  # written here, at or above _seen
        self._done = [-1] * self.log.queue_count
        # What the next settle writes down, once the log's end at its taking is on disk.
        self._pending: tuple[list[int], int] | None = None
        # Queues with check-points since the start, or before it in the log.
        self._popped: set[GroupQueue] = set()

    # --- start ------------------------------------------------------------------------------------------------

    def load(self, *, crashed: bool) -> int:
        """Read what the revive topic still says; how many records those were.

        `crashed`: `consumerOffset.json` may be behind the revive topic, so positions are taken from there. So it is
        for who was a slave before, too.
        """
        records: list[tuple[int, CheckPoint | Position, int]] = []
        count = 0

        # Every record that somebody may still need, queue by queue: acknowledgements may come before their check-point
        # here, as a timer holds check-points back; the table keeps them until it comes.
        for queue_id in range(self.log.queue_count):
            done = self._offsets.get(names.REVIVE_GROUP, self.log.topic, queue_id)
            self._done[queue_id] = -1 if done is None else done
            start = 0 if done is None else done + 1
            end = self._store.reading.max_offset(self.log.topic, queue_id)
            self._seen[queue_id] = start = min(start, end)
            for record in self._read(queue_id, start, end):
                count += 1
                said = self._take(record)
                if isinstance(said, CheckPoint | Position):
                    records.append((record.physical_offset, said, record.store_timestamp))
            self._seen[queue_id] = end

        # The queues of the revive topic were written in turn, so only the place in the log says which record is newer.
        if crashed:
            records.sort(key=lambda entry: entry[0])
            self._restore_positions(records)
        return count

    def _read(self, queue_id: int, start: int, end: int) -> Iterator[StoredRecord]:
        """The readable records of a revive queue."""
        store, topic = self._store, self.log.topic
        at = start
        while at < end:
            result = store.reading.get_message(
                names.REVIVE_GROUP, topic, queue_id, at, READ_COUNT, READ_SIZE, None
            )
            if result.status is GetStatus.FOUND:
                for record in decode_records(b"".join(result.body), check_crc=False):
                    if record.queue_offset < end:
                        yield record
            elif result.status not in SKIPPING:
                break
            if result.next_offset <= at:
                break
            at = result.next_offset

    def _take(self, record: StoredRecord) -> CheckPoint | Acks | Position | None:
        """Put into the table what a record says."""
        try:
            said = parse_record(record)
        except FormatError as error:
            log.warning("broker.pop_record_skipped", queue_id=record.queue_id, reason=str(error))
            return None
        now_ms = self._clock()
        if isinstance(said, CheckPoint):
            if said.came_late:
                said.due_ms = max(said.due_ms, now_ms) + TIMER_SLACK_MS
            self.table.add(said)
            self._popped.add(said.queue)
        elif isinstance(said, Acks) and self.table.ack(said.key, said.offsets) is None:
            self.remember(said.key, said.offsets, record.queue_id, record.queue_offset, said.deliver_ms)
        return said

    def remember(
        self, key: Key, offsets: list[int], revive_queue: int, revive_offset: int, deliver_ms: int
    ) -> None:
        """Keep acknowledgements whose check-point may still come out of a timer."""
        expires_ms = deliver_ms + EARLY_WAIT_MS
        if expires_ms > self._clock():
            self.table.remember(
                key, offsets, revive_queue=revive_queue, revive_offset=revive_offset, expires_ms=expires_ms
            )

    def _restore_positions(self, records: list[tuple[int, CheckPoint | Position, int]]) -> None:
        """Move each group to where the records, in the order of the log, say that it was."""
        positions: dict[GroupQueue, int] = {}
        offsets = self._offsets

        # The settings of a group may not have been written yet, but messages are owed to it.
        for group in {
            said.key.group if isinstance(said, CheckPoint) else said.group for _, said, _ in records
        }:
            self._groups.find(group)

        # Oldest first. A group moves on only, unless it was sent back; a check-point that was written again moves
        # nobody, as it says where the group was when its messages were handed out.
        for _, said, stored_ms in records:
            if isinstance(said, CheckPoint):
                if said.moves or not said.offsets:
                    continue
                queue, offset, forced = said.queue, said.offsets[-1] + 1, False
            else:
                queue, offset = GroupQueue(said.group, said.topic, said.queue_id), said.offset
                forced = said.is_forced
            known = positions.get(queue)
            if known is None:
                known = offsets.get(*queue)
            ahead = known is None or offset > known
            if forced or (ahead and self._was_there(queue.topic, queue.queue_id, offset - 1, stored_ms)):
                positions[queue] = offset

        # Into the queue as it is now: its first messages may be gone, or its last ones with the crash.
        for (group, topic, queue_id), offset in positions.items():
            readable = self._store.reading.readable_range(topic, queue_id)
            if readable is not None and group in self._groups:  # made by use, or made again above
                offsets.commit(group, topic, queue_id, min(max(offset, readable[0]), readable[1]))
        if positions:
            log.info("broker.pop_positions_restored", queues=len(positions))

    def _was_there(self, topic: str, queue_id: int, offset: int, popped_ms: int) -> bool:
        """Whether the message that is at `offset` now was there at `popped_ms`; False too when none is there.

        A topic that was deleted and made again has other messages at the same offsets, all of them younger.
        """
        stored_ms = self._store.reading.store_time(topic, queue_id, offset)
        return 0 <= stored_ms <= popped_ms

    # --- positions --------------------------------------------------------------------------------------------

    def position(self, queue: GroupQueue) -> int | None:
        """Where the group goes on in a queue; None when it never read there."""
        pending = self._positions.get(queue)
        if pending is not None:
            return pending[0]
        return self._offsets.get(*queue)

    def move(self, queue: GroupQueue, offset: int) -> None:
        """The group goes on at `offset`, because of what is in the log now."""
        self._positions[queue] = (offset, self._store.end_offset)
        self._popped.add(queue)

    def take_reset(self, queue: GroupQueue) -> int | None:
        """Where a pending reset sends the group; None when there is none."""
        target = self._offsets.take_reset(*queue)
        if target is not None:
            self._positions.pop(queue, None)
            self._offsets.commit(*queue, target)
        return target

    def was_reset(self, queue: GroupQueue, offset: int) -> None:
        """A group was sent to an offset: say so behind its check-points, which say otherwise."""
        if queue not in self._popped:
            return
        self._positions.pop(queue, None)
        try:
            self.write_position(Position(*queue, offset, is_forced=True))
        except RequestError as refused:
            log.warning(
                "broker.pop_reset_not_logged",
                queue=(queue.topic, queue.group, queue.queue_id),
                reason=refused.remark,
            )

    def write_position(self, position: Position) -> None:
        """Append where a group stands. RequestError: the store takes nothing."""
        self.log.append([self.log.position(position, self._clock())])

    # --- following the log ------------------------------------------------------------------------------------

    def _appended(self, queue_id: int, offset: int) -> None:
        own = self._own[queue_id]
        if own and offset < own[-1]:  # an append within an append: what it stored woke somebody
            insort(own, offset)
        else:
            own.append(offset)

    def follow(self) -> None:
        """Take in what others wrote to the revive topic: a timer that delivers, another handler."""
        for queue_id in range(self.log.queue_count):
            end = self._store.reading.max_offset(self.log.topic, queue_id)
            seen, own = self._seen[queue_id], self._own[queue_id]

            # What was written here is in the table already and is passed over by its offset alone. The rows of others'
            # records between are read: they are rare, but a table that lacks one would never bring its messages back.
            while seen < end:
                if own and own[0] == seen:
                    own.popleft()
                    seen += 1
                    continue
                stop = min(end, own[0]) if own else end
                assert stop > seen, "what was written here was passed over"
                for record in self._read(queue_id, seen, stop):
                    self._take(record)
                seen = stop
            self._seen[queue_id] = seen

    # --- keeping it short -------------------------------------------------------------------------------------

    def tidy(self) -> int:
        """Write some check-points again that keep too many records alive; how many."""
        # The row has a record of each outstanding check-point at least. With a bound below that, each one that is
        # written again would make the next one too old.
        row_max = max(ROW_MAX, 2 * len(self.table))
        moved: list[CheckPoint] = []
        for queue_id, seen in enumerate(self._seen):
            point = self.table.first(queue_id)
            while point is not None and seen - point.revive_offset > row_max and len(moved) < MOVES_PER_STEP:
                (offset,) = self.log.append([self.log.check_point(point, self._clock(), moved=True)])
                if offset < 0:
                    break
                self.table.move(point, offset)
                moved.append(point)
                point = self.table.first(queue_id)
        return len(moved)

    async def settle(self) -> None:
        """Write down positions and what is done, once it stands on what is on disk. StoreError: it never will."""
        store = self._store
        if self.take_stock() or store.end_offset > store.flushed_offset:
            await self._writer.durable()
            self.settle_flushed()

    def take_stock(self) -> bool:
        """Note what the next `settle_flushed` may write down; whether that is anything new."""
        # One stock at a time: while the disk takes long, the next one waits, and then says more at once.
        if self._pending is None:
            done = [self.table.first_needed(q, seen) - 1 for q, seen in enumerate(self._seen)]
            if done == self._done and not self._positions:
                return False
            self._pending = (done, self._store.end_offset)
        return True

    def settle_flushed(self) -> None:
        """Write down what stands on what is on disk."""
        flushed = self._store.flushed_offset
        offsets = self._offsets

        # Positions, each as soon as its own check-point is on disk. A group or topic that was deleted meanwhile must
        # not get an offset again.
        for queue, (offset, end) in list(self._positions.items()):
            if end <= flushed:
                if queue.topic in self._topics and queue.group in self._groups:
                    offsets.commit(*queue, offset)
                del self._positions[queue]

        # How far the revive topic is done with, once all that was in the log when stock was taken is on disk: a record
        # is done with because of others, which may lie anywhere before that end.
        if self._pending is not None and self._pending[1] <= flushed:
            self._done = self._pending[0]
            self._pending = None
            for queue_id, offset in enumerate(self._done):
                if offset >= 0 and offsets.get(names.REVIVE_GROUP, self.log.topic, queue_id) != offset:
                    offsets.commit(names.REVIVE_GROUP, self.log.topic, queue_id, offset)
