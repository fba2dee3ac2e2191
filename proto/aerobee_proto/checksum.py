"""Checksums that lie inside a stored record, as its last properties.

Touches  the bytes of one record.
Ours     "__CRC32C" U+0001 | 16 hex digits of physical_offset | 8 hex digits of CRC-32C | U+0002: 34 bytes, always
         last in the property string, before "__CRC32#" where that is on too. The CRC covers every byte of the
         record before the property, so all of it but the two checksum properties.
Official "__CRC32#" U+0001 | ten decimal digits, least significant first | U+0002: 20 bytes, the very last of the
         record; CRC-32 (lowest 31 bits) of all bytes before it.

Invariants
- Both have a fixed length, so a record's size is known before its offsets and store time are.
- Ours carries the physical offset: official brokers copy properties into new records, and a copy at another
  offset is stale, not damage. Absent is never damage.
"""

from struct import Struct
from typing import Final, Literal
from zlib import crc32

from aerobee_proto.properties import CRC32, RECORD_CHECKSUM, remove_property

__all__ = [
    "PROPERTY_CRC_SIZE",
    "RECORD_CHECKSUM_ENTRY",
    "RECORD_CHECKSUM_SIZE",
    "ChecksumState",
    "check_property_crc",
    "check_record_checksum",
    "property_crc_entry",
    "property_crc_placeholder",
    "record_checksum_entry",
    "record_checksum_placeholder",
    "remove_checksums",
    "seal_property_crc",
    "seal_record",
]

Buffer = bytes | bytearray | memoryview
ChecksumState = Literal["absent", "stale", "ok", "bad"]

RECORD_CHECKSUM_ENTRY: Final = RECORD_CHECKSUM.encode() + b"\x01"
RECORD_CHECKSUM_FORM: Final = RECORD_CHECKSUM_ENTRY + b"%016X%08X\x02"  # of physical offset and CRC-32C
RECORD_CHECKSUM_SIZE: Final = 34
PROPERTY_CRC_ENTRY: Final = CRC32.encode() + b"\x01"
PROPERTY_CRC_SIZE: Final = 20
_PHYSICAL_OFFSET: Final = Struct(">Q")
_PHYSICAL_OFFSET_AT: Final = 28
_CRC_MASK: Final = 0x7FFFFFFF


def crc32c(data: Buffer) -> int:  # noqa: F811  # meant: see below
    """CRC-32C. At the first call the library's own function takes this place: its import reads package metadata, a
    tenth of what it takes to import the client."""
    global crc32c
    from crc32c import crc32c

    return crc32c(data)


def record_checksum_entry(physical_offset: int, crc: int) -> bytes:
    """The 34 bytes of the whole-record checksum property."""
    return RECORD_CHECKSUM_FORM % (physical_offset, crc)


def record_checksum_placeholder() -> bytes:
    """The property before it is sealed: right name and length, zeros as value."""
    return record_checksum_entry(0, 0)


def property_crc_entry(crc: int) -> bytes:
    """The 20 bytes of the official checksum property."""
    return b"%b%b\x02" % (PROPERTY_CRC_ENTRY, (b"%010d" % crc)[::-1])


def property_crc_placeholder() -> bytes:
    """The official property before it is sealed."""
    return property_crc_entry(0)


def seal_record(record: bytearray | memoryview, reserved: int = 0) -> None:
    """Fill in the whole-record checksum of a record that is final but for its checksums.

    The placeholder must lie at its place; `reserved` is the number of bytes behind it (PROPERTY_CRC_SIZE when
    the official property follows, else 0).
    """
    at = len(record) - reserved - RECORD_CHECKSUM_SIZE
    assert bytes(record[at : at + len(RECORD_CHECKSUM_ENTRY)]) == RECORD_CHECKSUM_ENTRY, (
        "no room for the checksum"
    )
    (physical_offset,) = _PHYSICAL_OFFSET.unpack_from(record, _PHYSICAL_OFFSET_AT)
    with memoryview(record) as view:
        crc = crc32c(view[:at])
    record[at : at + RECORD_CHECKSUM_SIZE] = record_checksum_entry(physical_offset, crc)


def seal_property_crc(record: bytearray | memoryview) -> None:
    """Fill in the official checksum, whose placeholder must be the last 20 bytes of a final record."""
    at = len(record) - PROPERTY_CRC_SIZE
    assert bytes(record[at : at + len(PROPERTY_CRC_ENTRY)]) == PROPERTY_CRC_ENTRY, "no room for the checksum"
    with memoryview(record) as view:
        crc = crc32(view[:at]) & _CRC_MASK
    record[at:] = property_crc_entry(crc)


def check_record_checksum(record: Buffer) -> ChecksumState:
    """How one whole record and its whole-record checksum agree.

    "absent": it has none in its place; "stale": it was copied from a record at another physical offset and says
    nothing about this one; "ok"; "bad": the record is damaged. The record's lengths must have been checked
    before (records.scan_header).
    """
    tail = bytes(record[-RECORD_CHECKSUM_SIZE - PROPERTY_CRC_SIZE :])
    at = len(record) - RECORD_CHECKSUM_SIZE
    entry = tail[PROPERTY_CRC_SIZE:]
    if not entry.startswith(RECORD_CHECKSUM_ENTRY):
        at -= PROPERTY_CRC_SIZE
        entry = tail[:RECORD_CHECKSUM_SIZE]
        followed = tail.startswith(PROPERTY_CRC_ENTRY, RECORD_CHECKSUM_SIZE)
        if not (followed and entry.startswith(RECORD_CHECKSUM_ENTRY)):
            return "absent"
    if at < _PHYSICAL_OFFSET_AT + 8:
        return "absent"
    (physical_offset,) = _PHYSICAL_OFFSET.unpack_from(record, _PHYSICAL_OFFSET_AT)
    if entry[9:25] != b"%016X" % physical_offset:
        return "stale"
    with memoryview(record) as view:
        crc = crc32c(view[:at])
    return "ok" if entry[25:] == b"%08X\x02" % crc else "bad"


def check_property_crc(record: Buffer) -> bool:
    """Whether one whole record ends with the official checksum and matches it; absent is False."""
    at = len(record) - PROPERTY_CRC_SIZE
    if at < 0:
        return False
    with memoryview(record) as view:
        return bytes(view[at:]) == property_crc_entry(crc32(view[:at]) & _CRC_MASK)


def remove_checksums(properties: bytes) -> bytes:
    """Raw property bytes without checksum properties: those that a client sent or an older record carried."""
    if b"__CRC32" not in properties:
        return properties
    without = remove_property(properties, RECORD_CHECKSUM.encode())
    return remove_property(without, CRC32.encode())
