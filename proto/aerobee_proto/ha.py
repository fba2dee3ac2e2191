"""The link over which a master gives the bytes of its log to a slave: RocketMQ's, outside of any frame.

    slave -> master    REPORT     physical_offset i64             8 bytes: where the slave's log ends
    master -> slave    TRANSFER   physical_offset i64 | size i32 | `size` bytes of the log that lie there
                                  size 0: nothing new, the offset is that of the next byte
    master -> slave    CONFIRMED  physical_offset i64 | -1 i32    readers may see what lies below; between two of ours
                                  alone, which have agreed on it in their handshake (ha_hello)

The first report says where the master is to begin. All numbers are big-endian.

Invariants
- Any bytes give reports and transfers or one FormatError; after it the link has lost its boundaries.
- Nothing is allocated from a size that the peer announced: what comes lies in one room of ROOM_SIZE.
"""

import struct
from typing import Final, NamedTuple

from aerobee_proto.errors import FormatError

__all__ = [
    "OFFSET_MAX",
    "REPORT_SIZE",
    "ROOM_SIZE",
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
ROOM_SIZE: Final = 1 << 19  # bytes; what is read at once, at most, and what waits for more
_PART_SIZE: Final = 1 << 16  # bytes of a transfer that are worth to be given before the rest of it is there
_CONFIRMED: Final = -1  # in the place of a size


class Transfer(NamedTuple):
    """Bytes of the master's log, and where they lie; none: the master has nothing new."""

    offset: int
    data: bytes | memoryview


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
    """Cuts what a master sends into transfers. One that is long may be given as several.

    What comes is put into `room`, of which it is told by `came`: a new slave gets a whole log, and to have each read in
    memory of its own, and each transfer once more, costs more than all that is done with it.
    """

    __slots__ = ("_begin", "_end", "_left", "_offset", "_says_confirmed", "_size_max", "_view")

    def __init__(
        self,
        size_max: int = TRANSFER_SIZE_MAX,
        *,
        says_confirmed: bool = False,
        room_size: int = ROOM_SIZE,
    ) -> None:
        """`says_confirmed`: the master has agreed to say what its readers see. `room_size` is more than a head and the
        smaller of `size_max` and _PART_SIZE take."""
        self._size_max = size_max
        self._says_confirmed = says_confirmed
        self._view = memoryview(bytearray(room_size))
        # What lies there and was not given; never more than a head and _PART_SIZE, once `came` has returned.
        self._begin = self._end = 0
        # Of the transfer of which the head has been read: bytes that are to come, and where the next one lies.
        self._left = self._offset = 0

    def room(self) -> memoryview:
        """Where the next bytes are to be put. What `came` gave is no longer there."""
        begin, size = self._begin, self._end - self._begin
        if begin:
            self._view[:size] = self._view[begin : self._end]
            self._begin, self._end = 0, size
        return self._view[size:]

    def came(self, count: int) -> list[Transfer | Confirmed]:
        """So many bytes have been put into `room`: what became complete, in order, to be used before `room` is asked
        for again. FormatError for what no master says."""
        view, at = self._view, self._begin
        end = self._end = self._end + count
        found: list[Transfer | Confirmed] = []
        while True:
            if left := self._left:
                size = min(left, end - at)
                if size < left and size < _PART_SIZE:
                    break
                found.append(Transfer(self._offset, view[at : at + size]))
                at += size
                self._offset += size
                self._left = left - size
            elif end - at >= TRANSFER_HEAD_SIZE:
                offset, size = _HEAD.unpack_from(view, at)
                at += TRANSFER_HEAD_SIZE
                if size == _CONFIRMED and self._says_confirmed and offset >= 0:
                    found.append(Confirmed(offset))
                elif offset < 0 or not 0 <= size <= self._size_max or offset + size > OFFSET_MAX:
                    raise FormatError(f"a master gives {size} bytes at offset {offset}")
                elif size:
                    self._offset, self._left = offset, size
                else:
                    found.append(Transfer(offset, b""))
            else:
                break
        self._begin = at
        return found

    def feed(self, data: bytes) -> list[Transfer | Confirmed]:
        """As `came`, of bytes that lie elsewhere; what it gives stays."""
        found: list[Transfer | Confirmed] = []
        rest = memoryview(data)
        while rest:
            room = self.room()
            count = min(len(rest), len(room))
            room[:count] = rest[:count]
            rest = rest[count:]
            found += [
                said if isinstance(said, Confirmed) else Transfer(said.offset, bytes(said.data))
                for said in self.came(count)
            ]
        return found
