"""Batches that are one record: what they hold, message by message.

A topic with queues of batches (`queue.type=BatchCQ`) keeps a client's batch as one record: its body is the body of the
send (see batch), its flags say that whoever reads it has to unwrap it, and its message i has the number base + i.

Touches  records it is given, nothing else.
"""

from collections.abc import Sequence
from typing import Final
from zlib import crc32

from msgspec.structs import replace

from aerobee_proto.batch import decode_batch
from aerobee_proto.codes import SysFlag
from aerobee_proto.errors import FormatError, RecordError
from aerobee_proto.properties import INNER_NUM
from aerobee_proto.records import StoredRecord

__all__ = ["COUNT_MAX", "declared_count", "is_wrapped", "unwrapped", "unwrapped_from"]

_WRAPPED: Final = SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP
_CRC_MASK: Final = 0x7FFFFFFF
COUNT_MAX: Final = 0x7FFF  # messages in one record


def declared_count(said: bytes) -> int | None:
    """How many messages INNER_NUM, a record's property, says that it holds; None when no record can hold that."""
    if not said.isdigit() or len(said) > len(str(COUNT_MAX)):
        return None
    count = int(said)
    return count if 0 < count <= COUNT_MAX else None


def is_wrapped(record: StoredRecord) -> bool:
    """Whether the record is a batch that is to be unwrapped."""
    return record.sys_flag & _WRAPPED == _WRAPPED


def unwrapped(record: StoredRecord) -> list[StoredRecord]:
    """The messages of the record: itself, when it is none to be unwrapped. RecordError when its body is no batch,
    or one of another count than the record has numbers: some would have the numbers of the records behind it.

    They have the place, the times, the hosts and the flags of the record, and flag, body and properties of their own;
    `size` stays that of the whole record.
    """
    if not is_wrapped(record):
        return [record]
    try:
        entries = decode_batch(record.body)
    except FormatError as broken:
        raise RecordError(f"the batch in the record at {record.physical_offset}: {broken}") from broken
    said = record.property_map.get(INNER_NUM, "1")
    if declared_count(said.encode()) != len(entries):
        raise RecordError(
            f"the batch in the record at {record.physical_offset} says that it holds {said[:40]} messages,"
            f" and holds {len(entries)}"
        )
    return [
        replace(
            record,
            flag=entry.flag,
            queue_offset=record.queue_offset + at,
            body=entry.body,
            body_crc=crc32(entry.body) & _CRC_MASK,
            properties=entry.properties,
            _property_map=None,
        )
        for at, entry in enumerate(entries)
    ]


def unwrapped_from(records: Sequence[StoredRecord], offset: int) -> list[StoredRecord]:
    """All messages of these records, without those of a batch that lie below the queue offset `offset`: who reads from
    within a batch gets the whole of it. RecordError as unwrapped()."""
    for record in records:
        if record.sys_flag & _WRAPPED == _WRAPPED:  # written out: a call for each message of each pull
            break
    else:
        return list(records)
    found: list[StoredRecord] = []
    for record in records:
        if is_wrapped(record):
            found += [message for message in unwrapped(record) if message.queue_offset >= offset]
        else:
            found.append(record)
    return found
