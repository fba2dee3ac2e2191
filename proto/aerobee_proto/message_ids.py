"""The two ids of a message: where it lies (offset id) and who sent it when (unique key).

Touches  nothing; clocks come in as callables.
Offset id    upper-case hex of store host ip (4 or 16 bytes) | port i32 | physical_offset i64: 32 or 56 digits.
Unique key   upper-case hex of ip (4 or 16) | low 16 bits of pid | salt i32 | ms since the month began i32 |
             counter i16: 32 or 56 digits. The official client's salt is its class loader's hash.

Invariants
- One factory gives no key twice unless it makes more than 65,536 keys in one millisecond.
- The month is the one of UTC unless a factory or a reader is told another offset.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count, islice
from struct import Struct
from typing import Final

from aerobee_proto.errors import FormatError
from aerobee_proto.records import decode_host, encode_host

__all__ = [
    "OffsetMessageId",
    "UniqueKey",
    "UniqueKeyFactory",
    "decode_offset_message_id",
    "decode_unique_key",
    "encode_offset_message_id",
]

_I64: Final = Struct(">q")
_UNIQUE_TAIL: Final = Struct(">HIIH")  # pid, salt, ms since the month began, counter
_ID_LENGTHS: Final = (32, 56)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)


@dataclass(slots=True, frozen=True)
class OffsetMessageId:
    """Where a record lies: the broker's address and the position in its commit log."""

    host: str
    port: int
    physical_offset: int


@dataclass(slots=True, frozen=True)
class UniqueKey:
    """The parts of a client's unique key; `month_ms` are milliseconds since the sender's month began."""

    ip: str
    pid: int
    salt: int
    month_ms: int
    counter: int


def encode_offset_message_id(host: str, port: int, physical_offset: int) -> str:
    """The offset id of the record at `physical_offset`; RecordError when host is not an IP address."""
    return (encode_host(host, port) + _I64.pack(physical_offset)).hex().upper()


def decode_offset_message_id(message_id: str) -> OffsetMessageId:
    """The parts of an offset id, upper or lower case; FormatError for anything else."""
    raw = _unhex(message_id, "an offset message id")
    host, port = decode_host(raw[:-8])
    return OffsetMessageId(host, port, _I64.unpack(raw[-8:])[0])


def decode_unique_key(key: str) -> UniqueKey:
    """The parts of a unique key; FormatError when it is not of the standard form (users may set their own)."""
    raw = _unhex(key, "a unique key")
    pid, salt, month_ms, counter = _UNIQUE_TAIL.unpack(raw[-_UNIQUE_TAIL.size :])
    ip, _ = decode_host(raw[: -_UNIQUE_TAIL.size] + bytes(4))
    return UniqueKey(ip, pid, salt, month_ms, counter)


def _unhex(text: str, what: str) -> bytes:
    if len(text) in _ID_LENGTHS and text.isalnum():
        try:
            return bytes.fromhex(text)
        except ValueError:
            pass
    raise FormatError(f"{text[:64]!r} is not {what}: 32 or 56 hexadecimal digits are expected")


def _month_around(now_ms: int, utc_offset_s: int) -> tuple[int, int]:
    """Start of the month that now_ms lies in and of the next one, in ms since the epoch."""
    try:
        local = _EPOCH + now_ms * _MS + timedelta(seconds=utc_offset_s)
        start = local.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        following = (start + timedelta(days=32)).replace(day=1)
    except OverflowError as error:
        raise FormatError(f"{now_ms} ms since the epoch is not a time in the calendar") from error
    shift = utc_offset_s * 1000
    return (start - _EPOCH) // _MS - shift, (following - _EPOCH) // _MS - shift


class UniqueKeyFactory:
    """Makes unique keys for one process. Not for several threads at once.

    `clock_ms` gives milliseconds since the epoch. `salt` (32 bits) tells apart processes with the same address
    and pid, such as containers: draw it at random.
    """

    __slots__ = ("_clock_ms", "_counter", "_month_end", "_month_start", "_prefix", "_utc_offset_s")

    def __init__(
        self, ip: str, pid: int, salt: int, clock_ms: Callable[[], int], utc_offset_s: int = 0
    ) -> None:
        address = encode_host(ip, 0)[:-4]
        self._prefix = f"{address.hex().upper()}{pid & 0xFFFF:04X}{salt & 0xFFFFFFFF:08X}"
        self._clock_ms = clock_ms
        self._counter = count(1)
        self._utc_offset_s = utc_offset_s
        self._month_start, self._month_end = _month_around(clock_ms(), utc_offset_s)

    def next_keys(self, count: int) -> list[str]:
        """Several keys with one look at the clock; 65,536 of one millisecond are different."""
        head = self._time_part()
        return [f"{head}{number & 0xFFFF:04X}" for number in islice(self._counter, count)]

    def _time_part(self) -> str:
        """All of a key but its number."""
        now_ms = self._clock_ms()
        if not self._month_start <= now_ms < self._month_end:
            self._month_start, self._month_end = _month_around(now_ms, self._utc_offset_s)
        return f"{self._prefix}{now_ms - self._month_start:08X}"

    def next_key(self) -> str:
        """The next key: 32 characters with an IPv4 address, 56 with IPv6."""
        return f"{self._time_part()}{next(self._counter) & 0xFFFF:04X}"
