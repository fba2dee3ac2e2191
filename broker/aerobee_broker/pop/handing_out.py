"""Handing out: what was found for a group becomes the group's, and is told as it is to be acknowledged.

Touches  the check-points and the topic of their records; the order tables; the group's offsets.

What is handed out is invisible to the group until the invisible time is over. Nobody waits for the disk: messages
whose check-point a crash takes back were not moved past either, and are handed out again.

Invariants
- A check-point is in the log before its messages leave.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from aerobee_broker.catalog.consumer_offsets import ConsumerOffsets
from aerobee_broker.pop.checkpoints import CheckPoint, Key
from aerobee_broker.pop.extra_info import ORDERED, extra_info
from aerobee_broker.pop.ledger import Ledger
from aerobee_broker.pop.orderly import OrderTable
from aerobee_broker.pop.values import Found, Popped, PopQuery, QueuePart
from aerobee_broker.settings.config import LiveConfig
from aerobee_proto import properties
from aerobee_proto.records import decode_records, encode_record

__all__ = ["HandingOut", "ReadMeter"]

CHECKSUMS: Final = (properties.RECORD_CHECKSUM, properties.CRC32)


class ReadMeter(Protocol):
    """Who counts what groups read."""

    def got(self, key: tuple[str, str], count: int, size: int) -> None:
        """A group was given `count` messages, `size` bytes of records."""

    def missed(self) -> None:
        """A group was given nothing."""


class HandingOut:
    """Hands out what a `QueueReader` found. All calls from the event loop."""

    def __init__(
        self,
        ledger: Ledger,
        orders: OrderTable,
        *,
        live: LiveConfig,
        clock: Callable[[], int],
        offsets: ConsumerOffsets,
        meter: ReadMeter,
    ) -> None:
        self._ledger = ledger
        self._orders = orders
        self._live = live
        self._clock = clock
        self._offsets = offsets
        self._meter = meter
        # Whether check-points are being written now: what that wakes finds the group where it was before.
        self.is_noting = False

    @property
    def outstanding(self) -> int:
        """Check-points of messages that are neither acknowledged nor back."""
        return len(self._ledger.table)

    @property
    def is_full(self) -> bool:
        """Whether nothing more is handed out until some of it is acknowledged, or its time is over."""
        return self.outstanding >= self._live.value.pop_ck_max_buffer_size

    def hand_out(self, query: PopQuery, popped: Popped) -> Found:
        """Note what was found, move the group past it, and make it ready to leave.

        RequestError: it could not be noted, so nothing is handed out.
        """
        # First the note, then everything else: until it is in the log, the messages are nobody's.
        pop_time = self._clock()
        if query.in_order:
            revive_queue = ORDERED
            self._note_ordered(query, popped.parts, pop_time)
        else:
            revive_queue = self._ledger.log.take_queue()
            pop_time = self._note(query, popped.parts, pop_time, revive_queue)
        self.count(query.place.group, popped.parts)

        # Messages of the topic leave as they are stored; those that came back have to be written again.
        found = Found(popped.parts, [], pop_time, query.invisible_ms, revive_queue, popped.rest)
        for part in popped.parts:
            if part.queue.topic == query.place.topic:
                found.records += part.result.body
            else:
                found.records += self._as_of_topic(query.place.topic, found, part)
        return found

    def count(self, group: str, parts: Sequence[QueuePart]) -> None:
        """Tell the meter what a group was given, or shown."""
        meter = self._meter
        for part in parts:
            meter.got((group, part.queue.topic), part.result.count, part.result.size)
        if not parts:
            meter.missed()

    def _note(self, query: PopQuery, parts: Sequence[QueuePart], pop_time: int, revive_queue: int) -> int:
        """Append a check-point for each queue; the time of the pop, which no other check-point has."""
        ledger = self._ledger

        # Acknowledgements name a check-point by its queue, its start and the time: two of them must not be the same,
        # as they would be when a reset sends the group back within one ms. All parts of one pop have one time.
        while any(Key(*part.queue, part.start_offset, pop_time) in ledger.table for part in parts):
            pop_time += 1
        points = [
            CheckPoint(
                Key(*part.queue, part.start_offset, pop_time),
                part.offsets,
                invisible_ms=query.invisible_ms,
                revive_queue=revive_queue,
                revive_offset=0,
            )
            for part in parts
        ]

        # One append for all queues. It shows the new records to readers, so it may wake pops of this very group.
        self.is_noting = True
        try:
            places = ledger.log.append([ledger.log.check_point(point, pop_time) for point in points])
        finally:
            self.is_noting = False

        # Only now the group moves on: when the append is refused, another pop finds the same messages.
        for point, place, part in zip(points, places, parts, strict=True):
            point.revive_offset = place
            ledger.table.add(point)
            ledger.move(part.queue, part.result.next_offset)
        return pop_time

    def _note_ordered(self, query: PopQuery, parts: Sequence[QueuePart], pop_time: int) -> None:
        """Block the queues until everything is acknowledged. The group stays in front of what it was handed."""
        for part in parts:
            part.counts = self._orders.popped(
                part.queue,
                part.offsets,
                pop_time=pop_time,
                invisible_ms=query.invisible_ms,
                attempt_id=query.attempt_id,
            )
            self._offsets.commit(*part.queue, part.start_offset)

    def _as_of_topic(self, topic: str, found: Found, part: QueuePart) -> list[bytes]:
        """Messages of a retry topic as clients want them: under the topic's own name, with what to acknowledge."""
        info = found.named(part, self._live.value.broker_name)
        made: list[bytes] = []
        for record in decode_records(b"".join(part.result.body), check_crc=False):
            mapping = {name: value for name, value in record.property_map.items() if name not in CHECKSUMS}
            mapping[properties.POP_CK] = extra_info(info, record.queue_offset)
            made.append(
                encode_record(
                    topic=topic,
                    queue_id=record.queue_id,
                    queue_offset=record.queue_offset,
                    physical_offset=record.physical_offset,
                    born_timestamp=record.born_timestamp,
                    born_host=record.born_host,
                    store_timestamp=record.store_timestamp,
                    store_host=record.store_host,
                    body=record.body,
                    properties="".join(f"{name}\x01{value}\x02" for name, value in mapping.items()),
                    flag=record.flag,
                    sys_flag=record.sys_flag,
                    reconsume_times=record.reconsume_times,
                    prepared_transaction_offset=record.prepared_transaction_offset,
                )
            )
        return made
