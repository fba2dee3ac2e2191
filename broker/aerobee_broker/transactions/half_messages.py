"""Half messages: what is stored while a transaction is open, and the marks that say that it has ended.

Touches  nothing.

A half message lies in RMQ_SYS_TRANS_HALF_TOPIC, queue 0, with its own topic and queue in REAL_TOPIC and REAL_QID;
the transaction bits of its sysFlag are cleared there. Its producer group is in PGROUP. A copy made by a check has
TRANSACTION_CHECK_TIMES, how often its producers were asked, and in TRAN_PREPARED_QUEUE_OFFSET the queue offset of
the message that the producer was told: by it copies are known as one transaction.

Marks    records of RMQ_SYS_TRANS_OP_HALF_TOPIC, queue 0, with the tag "d"; the body is half queue offsets in
         decimal, a comma behind each: "12,15,". Those transactions have ended, one way or the other.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from aerobee_broker.messages.placement import moved
from aerobee_proto import names
from aerobee_proto import properties as p
from aerobee_proto.codes import ResponseCode, SysFlag
from aerobee_proto.errors import RecordError, RequestError
from aerobee_proto.records import StoredRecord, decode_record
from aerobee_store.terms.messages import NewMessage

__all__ = ["MARK_TAG", "HalfMessage", "encode_marks", "half_in", "half_of", "read_half", "read_marks"]

MARK_TAG: Final = "d"
NUMBER_DIGITS_MAX: Final = 19  # of a signed 64-bit number


@dataclass(slots=True, frozen=True)
class HalfMessage:
    """A stored half message, or a copy of one."""

    record: StoredRecord
    producer_group: str
    real_topic: str
    real_queue_id: int
    first_offset: int  # in the half queue: of the message whose copy this is, or its own
    checks: int  # how often producers were asked already

    @property
    def offset(self) -> int:
        """In the half queue."""
        return self.record.queue_offset

    def immunity_ms(self, default_ms: int) -> tuple[int, bool]:
        """The age before which nobody is asked, and whether the producer chose it; never under `default_ms`."""
        chosen = self.record.property_map.get(p.CHECK_IMMUNITY_TIME_IN_SECONDS)
        if chosen is None:
            return default_ms, False
        return max(default_ms, (_number(chosen) or 0) * 1000), True

    def copy_properties(self, *, checks: int) -> dict[str, str]:
        """Properties of a copy whose producers have been asked `checks` times."""
        own = dict(self.record.property_map)
        own[p.TRAN_PREPARED_QUEUE_OFFSET] = str(self.first_offset)
        if checks:
            own[p.TRANSACTION_CHECK_TIMES] = str(checks)
        return own

    def final_properties(self) -> dict[str, str]:
        """Properties of the message once it is committed or given up."""
        own = dict(self.record.property_map)
        own.pop(p.TRAN_PREPARED_QUEUE_OFFSET, None)
        return own


def half_of(message: NewMessage, mapping: Mapping[str, str]) -> NewMessage | None:
    """The half message to store for a message that opens a transaction; None when it opens none.

    RequestError MESSAGE_ILLEGAL for one that only its sysFlag calls half or rolled back, as nobody could ever see
    it, and for one without a producer group, as nobody could end it.
    """
    kind = message.sys_flag & SysFlag.TRANSACTION_MASK
    marked = mapping.get(p.TRANSACTION_PREPARED, "").lower() == "true"
    if marked and kind != SysFlag.TRANSACTION_COMMIT and not _is_retried(message, mapping):
        if p.PRODUCER_GROUP not in mapping:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"transaction message to topic {message.topic} names no producer group (property"
                f" {p.PRODUCER_GROUP}), so nobody could end it",
            )
        unique_key = mapping.get(p.UNIQ_KEY)
        own = {**mapping, p.REAL_TOPIC: message.topic, p.REAL_QUEUE_ID: str(message.queue_id)}
        if unique_key:
            own[p.TRANSACTION_ID] = unique_key
        for name in (p.TRANSACTION_CHECK_TIMES, p.TRAN_PREPARED_QUEUE_OFFSET):
            own.pop(name, None)  # ours to set
        return moved(message, names.HALF_TOPIC, 0, own, sys_flag=message.sys_flag & ~SysFlag.TRANSACTION_MASK)
    if kind in (SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK):
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"message to topic {message.topic}: its sysFlag says that it belongs to a transaction,"
            f" but it opens none (property {p.TRANSACTION_PREPARED}), so nobody could ever see it",
        )
    return None


def _is_retried(message: NewMessage, mapping: Mapping[str, str]) -> bool:
    """Old clients send a message again for their group with all its properties, those of its transaction too."""
    return message.reconsume_times > 0 and (_number(mapping.get(p.DELAY, "")) or 0) > 0


def read_half(data: bytes | memoryview) -> HalfMessage | None:
    """The half message in a stored record; None when it is something else."""
    try:
        record = decode_record(data)
    except RecordError:
        return None
    return half_in(record, names.HALF_TOPIC)


def half_in(record: StoredRecord, topic: str) -> HalfMessage | None:
    """The half message that a record of `topic` holds; None when it holds none."""
    own = record.property_map
    real_queue_id = _number(own.get(p.REAL_QUEUE_ID, ""))
    real_topic, group = own.get(p.REAL_TOPIC), own.get(p.PRODUCER_GROUP)
    if record.topic != topic or real_topic is None or real_queue_id is None or group is None:
        return None
    try:
        names.check_topic(real_topic, internal=True)
    except RequestError:
        return None
    first = _number(own.get(p.TRAN_PREPARED_QUEUE_OFFSET, ""))
    return HalfMessage(
        record,
        group,
        real_topic,
        real_queue_id,
        record.queue_offset if first is None or first > record.queue_offset else first,
        _number(own.get(p.TRANSACTION_CHECK_TIMES, "")) or 0,
    )


def encode_marks(groups: Iterable[Iterable[int]], size_max: int) -> Iterator[tuple[bytes, list[int]]]:
    """Bodies of mark records of about `size_max` bytes, each with its offsets; a group is never torn apart."""
    body, offsets = "", list[int]()
    for group in groups:
        piece = list(group)
        text = "".join([f"{offset}," for offset in piece])
        if body and len(body) + len(text) > size_max:
            yield body.encode(), offsets
            body, offsets = "", []
        body += text
        offsets += piece
    if body:
        yield body.encode(), offsets


def read_marks(record: StoredRecord) -> list[int]:
    """The half queue offsets that a mark record names; what is no number is left out."""
    if record.tags != MARK_TAG:
        return []
    numbers = [_number(text) for text in bytes(record.body).decode("ascii", "replace").split(",")]
    return [number for number in numbers if number is not None]


def _number(text: str) -> int | None:
    """A number that is not negative, as brokers write it; None for anything else."""
    if text.isascii() and text.isdecimal() and len(text) <= NUMBER_DIGITS_MAX:
        return int(text)
    return None
