"""Acknowledging: what a group is done with, and more time for what it is not.

Touches  the check-points and the topic of their records; the order tables; the group's offsets.

Success means that the acknowledgement is as durable as a send: the message does not come back. All acknowledgements
that arrive in one turn of the event loop share one append and one wait for the disk, and those of the same
check-point share a record.

    acknowledgement of                                             outcome
    a message that is waited for                                   success, when it is durable
    one acknowledged before, or given back to the group already    success
    an offset outside the queue                                    NO_MESSAGE
    a queue read in order, not of its last pop                     MESSAGE_ILLEGAL

Invariants
- Nothing is written for acknowledgements that change nothing.
- Whoever asked by `when_durable` is told once: all that was noted before is durable, or why it is not.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from aerobee_broker.catalog.consumer_offsets import ConsumerOffsets
from aerobee_broker.catalog.topics import TopicTable
from aerobee_broker.messages.message_writer import MessageWriter
from aerobee_broker.messages.promises import NotYetSafe
from aerobee_broker.messages.refusals import check_queue, store_refusal
from aerobee_broker.pop.checkpoints import CheckPoint, Key
from aerobee_broker.pop.checks import INVISIBLE_MS_MAX, check_invisible
from aerobee_broker.pop.extra_info import ORDERED, PopInfo
from aerobee_broker.pop.ledger import Ledger
from aerobee_broker.pop.orderly import OrderTable
from aerobee_broker.pop.revive_log import Position
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.names import GroupQueue
from aerobee_store.faults.errors import StoreError
from aerobee_store.store import MessageStore
from aerobee_store.terms.messages import NewMessage

__all__ = ["Acknowledging", "Changed"]

CLOSE_TIMEOUT_S: Final = 0.05

Settled = Callable[[RequestError | None], None]
"""Told None when everything is durable, and otherwise why it is not."""


class Changed(NamedTuple):
    """How a message is called from now on: what its next acknowledgement has to say."""

    pop_time: int
    invisible_ms: int
    revive_queue: int


class _Pending:
    """Acknowledgements of one check-point that wait to be written."""

    __slots__ = ("deliver_ms", "offsets", "revive_queue")

    def __init__(self, revive_queue: int, deliver_ms: int) -> None:
        self.revive_queue = revive_queue
        self.deliver_ms = deliver_ms
        self.offsets: list[int] = []


class Acknowledging:
    """Takes acknowledgements and changes of time. All calls from the event loop."""

    def __init__(
        self,
        ledger: Ledger,
        orders: OrderTable,
        *,
        clock: Callable[[], int],
        store: MessageStore,
        topics: TopicTable,
        offsets: ConsumerOffsets,
        writer: MessageWriter,
        on_release: Callable[[GroupQueue], None],
    ) -> None:
        """`on_release` is told of queues that may be popped again, in order."""
        self._clock = clock
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._writer = writer
        self._on_release = on_release
        self._ledger = ledger
        self._orders = orders
        self._pending: dict[Key, _Pending] = {}
        self._positions: dict[GroupQueue, int] = {}
        self._waiting: list[Settled] = []
        self._is_scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.acknowledged = 0

    # --- acknowledging ----------------------------------------------------------------------------------------

    def ack(self, queue: GroupQueue, offset: int, popped: PopInfo) -> None:
        """The group is done with a message of this pop. Durable soon: see `when_durable`.

        RequestError: there is no such queue, the offset is not in it, or no pop of this broker was like that.
        """
        self._check_message(queue, offset, last_allowed=1)
        if popped.revive_queue == ORDERED:
            self._ack_ordered(queue, offset, popped.pop_time)
        else:
            key = Key(*queue, popped.start_offset, popped.pop_time)
            self._take(key, [offset], popped.revive_queue, popped.invisible_ms)
        self._write_soon()

    def ack_many(self, popped: Key, offsets: Iterable[int], *, revive_queue: int, invisible_ms: int) -> None:
        """The group is done with messages of one pop of a queue; those outside the queue are passed over.

        RequestError as for `ack`, but for a queue that is not there: nothing is done then, and `offsets` is not looked
        at. What was noted before the error counts.
        """
        queue = popped.queue
        found = self._store.reading.readable_range(queue.topic, queue.queue_id)
        if found is None:
            return
        low, high = found
        inside = [offset for offset in offsets if low <= offset <= high]
        if inside:
            self._write_soon()
        if revive_queue == ORDERED:
            for offset in inside:
                self._ack_ordered(queue, offset, popped.pop_time)
        elif inside:
            self._take(popped, inside, revive_queue, invisible_ms)

    def _take(self, key: Key, offsets: list[int], revive_queue: int, invisible_ms: int) -> None:
        """Note what has to be written for acknowledgements."""
        table = self._ledger.table
        point = table.get(key)
        deliver_ms = key.pop_time + invisible_ms
        if point is not None:
            offsets = table.news(point, offsets)
            revive_queue, deliver_ms = point.revive_queue, key.pop_time + point.invisible_ms
        elif not self._may_be_early(key, revive_queue, invisible_ms):
            return  # it is done with, or the messages went back to the group
        if not offsets:
            return
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = _Pending(revive_queue, deliver_ms)
        pending.offsets += offsets

    def _may_be_early(self, key: Key, revive_queue: int, invisible_ms: int) -> bool:
        """Whether an unknown check-point may still come out of another broker's timer.

        RequestError: there cannot be one like that, or there is no room for more acknowledgements of such.
        """
        if not (0 <= revive_queue < self._ledger.log.queue_count and 0 <= invisible_ms <= INVISIBLE_MS_MAX):
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"no check-point of this broker has revive queue {revive_queue} and {invisible_ms} ms",
            )
        ended = key.pop_time + invisible_ms <= self._clock()
        if ended or key.pop_time >= self._ledger.started_ms:
            return False
        if not self._ledger.table.may_remember(key):
            raise RequestError(ResponseCode.SYSTEM_BUSY, "too many acknowledgements of unknown check-points")
        return True

    def _ack_ordered(self, queue: GroupQueue, offset: int, pop_time: int) -> None:
        """Acknowledge a message of a queue that is read in order. RequestError: it is not of the last pop."""
        stored = self._offsets.get(*queue)
        if stored is not None and offset < stored:
            return
        if offset != (stored or 0) and queue not in self._orders:
            return  # as after a crash: nobody knows what else its pop handed out, so it all comes again
        try:
            following = self._orders.ack(queue, offset, pop_time)
        except LookupError as error:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL, f"queue {queue.queue_id} of {queue.topic}: {error}"
            ) from error
        if following is None:
            return
        if following != stored and self._offsets.commit(*queue, following):
            self._positions[queue] = following
        if not self._orders.is_blocked(queue, None):
            self._on_release(queue)

    # --- writing ----------------------------------------------------------------------------------------------

    def when_durable(self, settled: Settled) -> None:
        """Tell `settled` when everything that is noted now is durable, or cannot be; never within this call."""
        self._write_soon()
        self._waiting.append(settled)

    def _write_soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        """Append what was noted in this turn, and tell those who wait once it is durable."""
        self._is_scheduled = False
        waiting, self._waiting = self._waiting, []
        pending, self._pending = self._pending, {}
        positions, self._positions = self._positions, {}
        try:
            if pending or positions:
                self._append(pending, positions)
        except RequestError as refused:
            _log_refused(waiting, refused)
            return
        if not waiting:
            return
        task = asyncio.create_task(self._settle(waiting), name="acknowledgements")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _append(self, pending: dict[Key, _Pending], positions: dict[GroupQueue, int]) -> None:
        ledger, now_ms = self._ledger, self._clock()

        # One record for each check-point, however many were acknowledged in it, and one for each queue read in order.
        messages = [
            ledger.log.acks(
                key, one.offsets, revive_queue=one.revive_queue, deliver_ms=one.deliver_ms, now_ms=now_ms
            )
            for key, one in pending.items()
        ]
        messages += [
            ledger.log.position(Position(*queue, offset, is_forced=False), now_ms)
            for queue, offset in positions.items()
        ]
        places = ledger.log.append(messages)

        # In the table only now: what could not be appended may be acknowledged again. `places` has the positions, too,
        # behind those of the check-points. A check-point that is not in the table may come out of a timer later.
        for (key, one), place in zip(pending.items(), places, strict=False):
            if ledger.table.ack(key, one.offsets) is None:
                ledger.remember(key, one.offsets, one.revive_queue, place, one.deliver_ms)
            self.acknowledged += len(one.offsets)

    async def _settle(self, waiting: list[Settled]) -> None:
        try:
            await self._writer.durable(in_time=True)
        except StoreError as failed:
            _log_refused(waiting, store_refusal(failed))
        except asyncio.CancelledError:
            _log_refused(waiting, RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is stopping"))
            raise
        else:
            _log_refused(waiting, None)

    async def close(self) -> None:
        """Tell all who wait. What is not durable by now will not be: slaves that it waits for are disconnected."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_TIMEOUT_S)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- more time --------------------------------------------------------------------------------------------

    async def change(self, queue: GroupQueue, offset: int, popped: PopInfo, *, invisible_ms: int) -> Changed:
        """Let a message be visible again so many ms from now; as durable as a send when this returns.

        RequestError as for `ack`, for a message that is not the group's any more, and when it is stored but not durable
        in time; StoreError: it will never be durable.
        """
        self._check_message(queue, offset, last_allowed=0)
        check_invisible(invisible_ms)
        if popped.revive_queue == ORDERED:
            return self._change_ordered(queue, offset, popped.pop_time, invisible_ms)
        pop_time = self._replace(queue, offset, popped, invisible_ms)
        try:
            await self._writer.durable(in_time=True)
        except NotYetSafe as late:
            raise store_refusal(late) from late
        return Changed(pop_time, invisible_ms, popped.revive_queue)

    def _change_ordered(self, queue: GroupQueue, offset: int, pop_time: int, invisible_ms: int) -> Changed:
        visible_ms = self._clock() + invisible_ms
        self._orders.change_visibility(queue, offset, pop_time, visible_ms)
        if not self._orders.is_blocked(queue, None):
            self._on_release(queue)
        return Changed(pop_time, visible_ms - pop_time, ORDERED)

    def _replace(self, queue: GroupQueue, offset: int, popped: PopInfo, invisible_ms: int) -> int:
        """A check-point of its own for the message, and an acknowledgement in its old one; the new pop time."""
        ledger, table, now_ms = self._ledger, self._ledger.table, self._clock()

        # Is it the group's still? What its check-point says goes before what the caller says.
        old = Key(*queue, popped.start_offset, popped.pop_time)
        point = table.get(old)
        revive_queue, deliver_ms = popped.revive_queue, popped.pop_time + popped.invisible_ms
        if point is not None:
            revive_queue = point.revive_queue
            owed = bool(table.news(point, [offset]))
        else:
            owed = self._may_be_early(old, revive_queue, popped.invisible_ms)
        if not owed:
            raise RequestError(
                ResponseCode.NO_MESSAGE,
                f"message {offset} of queue {queue.queue_id} of topic {queue.topic}"
                " is acknowledged, or its time is over",
            )

        # A key that no other check-point has: two changes within one ms are told apart by their pop times.
        new = Key(*queue, offset, now_ms)
        while new in table or new == old:
            new = new._replace(pop_time=new.pop_time + 1)
        made = CheckPoint(
            new,
            [offset],
            invisible_ms=invisible_ms,
            revive_queue=revive_queue,
            revive_offset=0,
        )

        # The new one before the end of the old one, in one append: a crash in between may have both, never neither.
        messages: list[NewMessage] = [
            ledger.log.check_point(made, now_ms),
            ledger.log.acks(old, [offset], revive_queue=revive_queue, deliver_ms=deliver_ms, now_ms=now_ms),
        ]
        made.revive_offset, place = ledger.log.append(messages)
        table.add(made)
        if table.ack(old, [offset]) is None:
            ledger.remember(old, [offset], revive_queue, place, deliver_ms)
        return new.pop_time

    def _check_message(self, queue: GroupQueue, offset: int, *, last_allowed: int) -> None:
        """RequestError unless the topic has the queue and this offset lies in it."""
        _, topic, queue_id = queue
        settings = self._topics.require(topic)
        check_queue(topic, queue_id, settings.read_queue_nums, code=ResponseCode.MESSAGE_ILLEGAL)
        low, high = (
            self._store.reading.min_offset(topic, queue_id),
            self._store.reading.max_offset(topic, queue_id),
        )
        if not low <= offset < high + last_allowed:
            raise RequestError(
                ResponseCode.NO_MESSAGE,
                f"offset {offset} is not in queue {queue_id} of topic {topic}, which has {low} to {high - 1}",
            )


def _log_refused(waiting: list[Settled], refused: RequestError | None) -> None:
    for settled in waiting:
        settled(refused)
