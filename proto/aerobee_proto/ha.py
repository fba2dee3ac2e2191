"""The link over which a master gives the bytes of its log to a slave: RocketMQ's, outside of any frame.

    slave -> master    REPORT     physical_offset i64             8 bytes: where the slave's log ends
    master -> slave    TRANSFER   physical_offset i64 | size i32 | `size` bytes of the log that lie there
                                  size 0: nothing new, the offset is that of the next byte
    master -> slave    CONFIRMED  physical_offset i64 | -1 i32    readers may see what lies below; between two of ours
                                  alone, which have agreed on it in their handshake (ha_hello)

The first report says where the master is to begin. All numbers are big-endian.

Invariants
- Any bytes give reports and transfers or one FormatError; after it the link has lost its boundaries.
- Nothing is allocated from a size that the peer announced.
"""

import struct
from typing import Final, NamedTuple

from aerobee_proto.errors import FormatError

__all__ = [
    "OFFSET_MAX",
    "REPORT_SIZE",
    "TRANSFER_HEAD_SIZE",
    "TRANSFER_SIZE_MAX",
    "Confirmed",
    "ReportDecoder",
    "Transfer",
    "TransferDecoder",
    "encode_confirmed",
    "encode_report",
    "encode_transfer_head",
]

_REPORT: Final = struct.Struct(">q")
_HEAD: Final = struct.Struct(">qi")
REPORT_SIZE: Final = _REPORT.size
TRANSFER_HEAD_SIZE: Final = _HEAD.size
TRANSFER_SIZE_MAX: Final = 4 << 20  # bytes; a slave of RocketMQ has a buffer of 4 MiB, with the head in it
OFFSET_MAX: Final = 2**63 - 1
_CONFIRMED: Final = -1  # in the place of a size


class Transfer(NamedTuple):
    """Bytes of the master's log, and where they lie; none: the master has nothing new."""

    offset: int
    data: bytes


class Confirmed(NamedTuple):
    """Readers of the master see what lies below this physical offset."""

    offset: int


def encode_report(offset: int) -> bytes:
    """What a slave says of its log's end."""
    return _REPORT.pack(offset)


def encode_transfer_head(offset: int, size: int) -> bytes:
    """What stands before `size` bytes of the log."""
    return _HEAD.pack(offset, size)


def encode_confirmed(offset: int) -> bytes:
    """What a master says of what its readers see."""
    return _HEAD.pack(offset, _CONFIRMED)


class ReportDecoder:
    """Finds a slave's newest report in what it sends, however that is cut."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> int | None:
        """The last complete report; older ones say less. None when none is complete. FormatError for no offset."""
        whole = self._rest + data
        end = len(whole) - len(whole) % REPORT_SIZE
        self._rest = whole[end:]
        if not end:
            return None
        (offset,) = _REPORT.unpack_from(whole, end - REPORT_SIZE)
        if offset < 0:
            raise FormatError(f"a slave reports offset {offset}")
        return int(offset)


class TransferDecoder:
    """Cuts what a master sends into transfers."""

    __slots__ = ("_rest", "_says_confirmed", "_size_max")

    def __init__(self, size_max: int = TRANSFER_SIZE_MAX, *, says_confirmed: bool = False) -> None:
        """`says_confirmed`: the master has agreed to say what its readers see."""
        self._size_max = size_max
        self._says_confirmed = says_confirmed
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Transfer | Confirmed]:
        """What became complete, in order. FormatError for what no master says."""
        rest, at = self._rest, 0
        rest += data
        found: list[Transfer | Confirmed] = []
        while len(rest) - at >= TRANSFER_HEAD_SIZE:
            offset, size = _HEAD.unpack_from(rest, at)
            if size == _CONFIRMED and self._says_confirmed and offset >= 0:
                at += TRANSFER_HEAD_SIZE
                found.append(Confirmed(offset))
                continue
            if offset < 0 or not 0 <= size <= self._size_max or offset + size > OFFSET_MAX:
                raise FormatError(f"a master gives {size} bytes at offset {offset}")
            begin = at + TRANSFER_HEAD_SIZE
            if len(rest) - begin < size:
                break
            at = begin + size
            found.append(Transfer(offset, bytes(memoryview(rest)[begin:at])))
        del rest[:at]
        return found
