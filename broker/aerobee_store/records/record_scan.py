"""Reading a region of the commit log record by record, trusting nothing.

Touches  buffers it is given. Layout of a record: aerobee_proto.records.

What is checked, in this order: lengths before anything is read, magic, the stored physical offset against
the place, the parts' lengths against the whole, the body's CRC, the whole-record checksum where there is one.
A record that passes is one that an append put at this very place.
"""

from collections.abc import Iterator
from operator import itemgetter
from typing import Final, NamedTuple

from aerobee_proto.checksum import RECORD_CHECKSUM_ENTRY, check_property_crc, check_record_checksum
from aerobee_proto.codes import SysFlag
from aerobee_proto.errors import RecordError
from aerobee_proto.records import MAGIC_V1, MAGIC_V2, RecordHeader, scan_header
from aerobee_store.disk.io import is_zero

__all__ = [
    "BLANK",
    "PREPARED",
    "ROLLBACK",
    "TRANSACTION",
    "Blank",
    "RecordFault",
    "ScannedRecord",
    "record_places",
    "scan_record",
]

_MAGIC_BYTES = (MAGIC_V1.to_bytes(4, "big"), MAGIC_V2.to_bytes(4, "big"))
# Bits of the sys flag, and what they say of a message that is sent in a transaction.
TRANSACTION: Final = SysFlag.TRANSACTION_MASK
PREPARED: Final = SysFlag.TRANSACTION_PREPARED
ROLLBACK: Final = SysFlag.TRANSACTION_ROLLBACK


class ScannedRecord(NamedTuple):
    """What recovery and dispatch need of one good record. Times in ms since the epoch."""

    physical_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp: int
    properties: bytes

    @property
    def is_queued(self) -> bool:
        """Whether its queue has an entry for it: half messages and their rollbacks have none."""
        return self.sys_flag & TRANSACTION not in (PREPARED, ROLLBACK)


class RecordFault(NamedTuple):
    """Why the bytes at a place are not a record."""

    reason: str


class Blank:
    """The record that closes a file."""


BLANK = Blank()


def scan_record(
    view: memoryview,
    position: int,
    physical_offset: int,
    *,
    property_crc: bool = False,
    sealed: bool = False,
    proven: bool = False,
    room: int | None = None,
) -> ScannedRecord | RecordFault | Blank:
    """The record at `position` of a file's `view`, whose physical offset must be `physical_offset`.

    With `property_crc` a `__CRC32#` property must be there and match, as official brokers demand when they
    verify it; without, one that is there is not looked at, as official brokers copy it stale. With `sealed`
    the whole-record checksum must be there: without, one that is missing may be torn off or never was.
    `proven` leaves the checksums out, for a region that was read with them a moment ago. `room`: bytes from there to
    the end of the file; without it the view ends with the file.
    """
    try:
        header = scan_header(view, position)
    except RecordError as error:
        return RecordFault(str(error))
    if header.is_blank:
        room = len(view) - position if room is None else room
        return BLANK if header.size == room else RecordFault(f"blank of {header.size} where {room} are left")
    if header.physical_offset != physical_offset:
        return RecordFault(f"stored physical offset is {header.physical_offset}")
    if header.store_timestamp <= 0 or header.queue_id < 0 or header.queue_offset < 0:
        return RecordFault("store time, queue id or queue offset is out of range")
    properties = header.properties
    fault = None if proven else _checksum_fault(header, properties, property_crc, sealed)
    if fault is not None:
        return RecordFault(fault)
    return ScannedRecord(
        physical_offset,
        header.size,
        header.topic,
        header.queue_id,
        header.queue_offset,
        header.sys_flag,
        header.store_timestamp,
        properties,
    )


def _checksum_fault(header: RecordHeader, properties: bytes, property_crc: bool, sealed: bool) -> str | None:
    if not header.body_is_intact():
        return "body CRC does not match"
    if property_crc and not check_property_crc(header.record):
        return "property CRC is missing or does not match"
    if sealed or RECORD_CHECKSUM_ENTRY in properties:
        state = check_record_checksum(header.record)
        if state == "bad" or (sealed and state != "ok"):
            return f"whole-record checksum is {state}"
    return None


def record_places(view: memoryview, begin: int, end: int) -> Iterator[int]:
    """Positions at which a record may begin, by its magic, which lies in [begin, end) of `view`."""
    if is_zero(view[begin:end]):
        return  # untouched space behind the log
    window = bytes(view[begin:end])
    # Each magic is looked for again only behind a place where it was found: one that is nowhere costs one look through
    # the window, not one for each record.
    ahead = {magic: place for magic in _MAGIC_BYTES if (place := window.find(magic)) >= 0}
    while ahead:
        magic, found = min(ahead.items(), key=itemgetter(1))
        if begin + found >= 4:
            yield begin + found - 4
        ahead[magic] = window.find(magic, found + 1)
        if ahead[magic] < 0:
            del ahead[magic]
