"""The records of the revive topic, `rmq_sys_REVIVE_LOG_<cluster>`: what was handed out, what was acknowledged.

Touches  the store, through the writer it is given.

    tag     body (JSON)
    ck      so first offset looked at, d distances of the messages from it, n their number, bm acknowledged ones as
            bits, pt pop time, it invisible ms, t topic, c group, q queue id, bn broker, ro 0, rp times written again
    ack     ao offset, so, pt, t, c, q, bn of its ck
    bAck    aol offsets, the rest as in ack

`TIMER_DELIVER_MS` says when RocketMQ's revive service would read the record: a second before the messages become
visible again for a ck, then for an ack. RocketMQ keeps the records in its timer until that moment; here they are
written to their queue at once, so that what was answered is on disk, and the time is kept in memory.

A ck without messages (n 0) says where a group stands in a queue: `so` is the next offset. RocketMQ takes it for a
check-point that is done. `mv` is ours: "to" when the group was sent there, "on" when it came there by itself.

Invariants
- An ack lies behind its ck in the same queue, except where the ck comes out of another broker's timer.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated, Final

import msgspec

from aerobee_broker.messages.message_writer import MessageWriter
from aerobee_broker.messages.refusals import store_refusal
from aerobee_broker.pop.checkpoints import COUNT_MAX, CheckPoint, Key
from aerobee_proto import names, properties
from aerobee_proto.errors import FormatError
from aerobee_proto.javahash import tag_hash
from aerobee_proto.records import StoredRecord
from aerobee_store.faults.errors import StoreError
from aerobee_store.terms.messages import NewMessage, PutStatus

__all__ = [
    "TIMER_SLACK_MS",
    "Acks",
    "Position",
    "ReviveLog",
    "parse_record",
    "revive_topic",
]

CHECK_POINT, ACK, BATCH_ACK = "ck", "ack", "bAck"
TAG_HASHES: Final = {tag: tag_hash(tag) for tag in (CHECK_POINT, ACK, BATCH_ACK)}
CHECK_POINT_EARLIER_MS: Final = 1000
# A ck that came out of a timer is followed by its acks, which the timer holds a second longer, give or take one.
TIMER_SLACK_MS: Final = 3000
BITS_SIGN: Final = 1 << 31
BITS_MASK: Final = (1 << 32) - 1

Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _CheckPointBody(msgspec.Struct, gc=False, omit_defaults=True):
    so: Number
    pt: Number
    it: Number
    n: int
    q: int
    t: str
    c: str
    bm: int = 0
    bn: str | None = None
    d: Annotated[list[Number], msgspec.Meta(max_length=COUNT_MAX)] | None = None
    rp: str | None = None
    mv: str | None = None


class _AckBody(msgspec.Struct, gc=False, omit_defaults=True):
    so: Number
    pt: Number
    t: str
    c: str
    q: int
    ao: Number = -1
    bn: str | None = None
    aol: Annotated[list[Number], msgspec.Meta(max_length=4096)] | None = None


class Acks(msgspec.Struct, frozen=True):
    """An ack or bAck: `deliver_ms` is when its messages would have come back."""

    key: Key
    offsets: list[int]
    deliver_ms: int


class Position(msgspec.Struct, frozen=True):
    """A ck without messages: the group goes on at `offset`, and was sent there if `is_forced`."""

    group: str
    topic: str
    queue_id: int
    offset: int
    is_forced: bool


_decode_check_point = msgspec.json.Decoder(_CheckPointBody).decode
_decode_ack = msgspec.json.Decoder(_AckBody).decode
_encode = msgspec.json.Encoder().encode


def revive_topic(cluster_name: str) -> str:
    """The revive topic of a cluster."""
    return names.REVIVE_TOPIC_PREFIX + cluster_name


def parse_record(record: StoredRecord) -> CheckPoint | Acks | Position | None:
    """What a record of the revive topic says; None for a tag that means nothing. FormatError: broken."""
    try:
        if record.tags == CHECK_POINT:
            return _check_point(record)
        if record.tags in (ACK, BATCH_ACK):
            body = _decode_ack(record.body)
            offsets = [body.ao] if body.aol is None else body.aol
            deliver_ms = int(record.property_map.get(properties.TIMER_DELIVER_MS, "0"))
            return Acks(Key(body.c, body.t, body.q, body.so, body.pt), offsets, deliver_ms)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise FormatError(
            f"record {record.queue_offset} of revive queue {record.queue_id}: {error}"
        ) from error
    return None


def _check_point(record: StoredRecord) -> CheckPoint | Position:
    body = _decode_check_point(record.body)
    if body.n <= 0:
        return Position(body.c, body.t, body.q, body.so, is_forced=body.mv == "to")
    distances = body.d or range(min(body.n, COUNT_MAX))
    if any(b <= a for a, b in pairwise(distances)):
        raise ValueError("the distances of its messages do not rise")
    return CheckPoint(
        Key(body.c, body.t, body.q, body.so, body.pt),
        [body.so + distance for distance in distances],
        invisible_ms=body.it,
        revive_queue=record.queue_id,
        revive_offset=record.queue_offset,
        bits=body.bm & BITS_MASK,
        moves=int(body.rp or 0),
        came_late=properties.TIMER_OUT_MS in record.property_map,
    )


class ReviveLog:
    """Makes and appends the records. Nothing is durable before the writer says so."""

    def __init__(
        self,
        writer: MessageWriter,
        topic: str,
        *,
        queue_count: int,
        broker_name: str,
        on_append: Callable[[int, int], None],
    ) -> None:
        """`on_append(queue, offset)` is told of each record and its offset there."""
        self._writer = writer
        self._broker_name = broker_name
        self._next_queue = 0
        # Fixed for life.
        self.topic = topic
        self.queue_count = queue_count
        self._on_append = on_append

    def take_queue(self) -> int:
        """The revive queue for the next pop, in turn."""
        self._next_queue = (self._next_queue + 1) % self.queue_count
        return self._next_queue

    # --- making -----------------------------------------------------------------------------------------------

    def check_point(self, point: CheckPoint, now_ms: int, *, moved: bool = False) -> NewMessage:
        """The record of a check-point; `moved`: it has one already, which this one replaces."""
        key = point.key
        bits = point.bits - (BITS_MASK + 1) if point.bits & BITS_SIGN else point.bits
        body = _CheckPointBody(
            so=key.start_offset,
            pt=key.pop_time,
            it=point.invisible_ms,
            n=len(point.offsets),
            q=key.queue_id,
            t=key.topic,
            c=key.group,
            bm=bits,
            bn=self._broker_name,
            d=[offset - key.start_offset for offset in point.offsets],
            rp=str(point.moves + 1) if moved else None,
        )
        deliver_ms = key.pop_time + point.invisible_ms - CHECK_POINT_EARLIER_MS
        return self._message(CHECK_POINT, point.revive_queue, _encode(body), deliver_ms, now_ms)

    def acks(
        self, key: Key, offsets: Sequence[int], *, revive_queue: int, deliver_ms: int, now_ms: int
    ) -> NewMessage:
        """The record of one or more acknowledgements of a check-point."""
        many = len(offsets) > 1
        body = _AckBody(
            so=key.start_offset,
            pt=key.pop_time,
            t=key.topic,
            c=key.group,
            q=key.queue_id,
            ao=-1 if many else offsets[0],
            bn=self._broker_name,
            aol=list(offsets) if many else None,
        )
        return self._message(BATCH_ACK if many else ACK, revive_queue, _encode(body), deliver_ms, now_ms)

    def position(self, position: Position, now_ms: int) -> NewMessage:
        """The record of where a group stands in a queue."""
        body = _CheckPointBody(
            so=position.offset,
            pt=now_ms,
            it=0,
            n=0,
            q=position.queue_id,
            t=position.topic,
            c=position.group,
            bn=self._broker_name,
            mv="to" if position.is_forced else "on",
        )
        deliver_ms = now_ms - CHECK_POINT_EARLIER_MS
        return self._message(CHECK_POINT, self.take_queue(), _encode(body), deliver_ms, now_ms)

    def _message(self, tag: str, queue_id: int, body: bytes, deliver_ms: int, now_ms: int) -> NewMessage:
        host = self._writer.host
        return NewMessage(
            self.topic,
            queue_id,
            0,
            0,
            now_ms,
            host,
            host,
            0,
            0,
            body,
            f"{properties.TAGS}\x01{tag}\x02{properties.TIMER_DELIVER_MS}\x01{deliver_ms}\x02".encode(),
            TAG_HASHES[tag],
            None,
            None,
        )

    # --- writing ----------------------------------------------------------------------------------------------

    def append(self, messages: Sequence[NewMessage]) -> list[int]:
        """Append records, and other messages with them; their offsets in their queues.

        RequestError SERVICE_NOT_AVAILABLE: the store takes nothing now. A message that it refuses has offset -1.
        """
        try:
            done = self._writer.append(messages)
        except StoreError as refused:
            raise store_refusal(refused, what="the store takes no messages: ") from refused
        offsets = []
        for message, place in zip(messages, done, strict=True):
            if place.status is PutStatus.PUT_OK and message.topic == self.topic:
                self._on_append(message.queue_id, place.queue_offset)
            offsets.append(place.queue_offset if place.status is PutStatus.PUT_OK else -1)
        return offsets
