"""The stored record: one message as it lies in the commit log and as pull, query and view answers carry it.

Touches  bytes it is given, nothing else.
Record   big-endian; hosts are 4 bytes of IPv4 or 16 of IPv6, then the port as i32 (sysFlag says which).

    size i32 | magic i32 | body_crc i32 | queue_id i32 | flag i32 | queue_offset i64 | physical_offset i64
    0          4           8              12             16         20                 28
    sys_flag i32 | born_timestamp i64 | born_host 8/20 | store_timestamp i64 | store_host 8/20
    36             40                   48               56 with an IPv4 born_host
    reconsume_times i32 | prepared_transaction_offset i64 | body_length i32 | body
    topic_length i8 (version 2: i16) | topic | properties_length i16 | properties

Blank    remaining i32 | magic 0xCBD43194: closes a commit log file, the bytes behind it mean nothing.

Invariants
- The lengths inside a record add up to its size exactly; nothing is read past the buffer.
- body_crc is CRC-32 of the stored body, lowest 31 bits; checksum properties are in checksum.py.
- Malformed UTF-8 in topic or properties is replaced, never an error: the bytes are sound as bytes.
"""

from collections.abc import Iterator
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from struct import Struct
from struct import error as StructError
from typing import Final
from zlib import crc32

import msgspec
from msgspec.structs import astuple

from aerobee_proto.checksum import (
    PROPERTY_CRC_SIZE,
    RECORD_CHECKSUM_ENTRY,
    RECORD_CHECKSUM_SIZE,
    check_record_checksum,
    property_crc_placeholder,
    record_checksum_entry,
    record_checksum_placeholder,
    seal_property_crc,
    seal_record,
)
from aerobee_proto.errors import RecordError
from aerobee_proto.native_records import NativeRecords
from aerobee_proto.properties import (
    KEYS,
    KEYS_NAME,
    PROPERTIES_SIZE_MAX,
    TAGS,
    TAGS_NAME,
    UNIQ_KEY,
    UNIQ_KEY_NAME,
    decode_properties,
    find_property,
    split_keys,
)

__all__ = [
    "BLANK_MAGIC",
    "BLANK_SIZE",
    "BODY_CRC_MASK",
    "HEAD_BY_HOSTS",
    "HEAD_V4",
    "MAGIC_V1",
    "MAGIC_V2",
    "RECORD_OVERHEAD_V4",
    "RECORD_SIZE_MIN",
    "TOPIC_LENGTH_V1_MAX",
    "Buffer",
    "RecordHeader",
    "StoredRecord",
    "body_crc",
    "decode_host",
    "decode_record",
    "decode_records",
    "encode_host",
    "encode_record",
    "iterate_records",
    "scan_header",
]

Buffer = bytes | bytearray | memoryview

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
BLANK_MAGIC: Final = 0xCBD43194
BLANK_SIZE: Final = 8
BODY_CRC_MASK: Final = 0x7FFFFFFF

# Everything before the body. HEAD_BY_HOSTS is indexed by (sys_flag >> 4) & 3: bit 0 IPv6 born_host, bit 1
# IPv6 store_host. Fields: size, magic, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag,
# born_timestamp, born_host, store_timestamp, store_host, reconsume_times, prepared_transaction_offset,
# body_length.
HEAD_V4: Final = Struct(">iIIiiqqiq8sq8siqi")
HEAD_BY_HOSTS: Final = (
    HEAD_V4,
    Struct(">iIIiiqqiq20sq8siqi"),
    Struct(">iIIiiqqiq8sq20siqi"),
    Struct(">iIIiiqqiq20sq20siqi"),
)
HOSTS_V6_MASK: Final = 0x30
SIZE_AND_MAGIC: Final = Struct(">iI")
SHORT: Final = Struct(">h")

RECORD_OVERHEAD_V4: Final = HEAD_V4.size + 3  # version 1, IPv4: everything but body, topic, properties
RECORD_SIZE_MIN: Final = RECORD_OVERHEAD_V4
TOPIC_LENGTH_V1_MAX: Final = 127  # bytes; the length is a signed byte
TOPIC_LENGTH_MAX: Final = 32767
_HOSTS_REMEMBERED_MAX: Final = 4096
_TOPICS_REMEMBERED_MAX: Final = 4096
_BORN_HOST_V6: Final = 0x10
_STORE_HOST_V6: Final = 0x20
_PORT: Final = Struct(">i")
_U64_MASK: Final = (1 << 64) - 1


def body_crc(body: Buffer) -> int:
    """CRC-32 of a stored body, lowest 31 bits; 0 for an empty one."""
    return crc32(body) & BODY_CRC_MASK


@lru_cache(maxsize=_HOSTS_REMEMBERED_MAX)
def encode_host(host: str, port: int) -> bytes:
    """An address as records carry it: 8 bytes for IPv4, 20 for IPv6; RecordError when it is neither."""
    try:
        if ":" in host:
            return IPv6Address(host.partition("%")[0]).packed + _PORT.pack(port)
        return IPv4Address(host).packed + _PORT.pack(port)
    except (AddressValueError, StructError) as error:
        raise RecordError(f"{host!r} port {port} is not an IP address and port") from error


@lru_cache(maxsize=_HOSTS_REMEMBERED_MAX)
def decode_host(packed: bytes) -> tuple[str, int]:
    """Address text and port of 8 or 20 packed bytes; RecordError for any other length."""
    port: int = int.from_bytes(packed[-4:], "big", signed=True)
    if len(packed) == 8:
        return "%d.%d.%d.%d" % tuple(packed[:4]), port  # noqa: UP031  four bytes, no names to interpolate
    if len(packed) == 20:
        return str(IPv6Address(packed[:16])), port
    raise RecordError(f"a packed address has 8 or 20 bytes, not {len(packed)}")


@lru_cache(maxsize=_TOPICS_REMEMBERED_MAX)
def _topic_text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


class StoredRecord(msgspec.Struct, eq=False, gc=False, repr_omit_defaults=True):
    """One stored message. `body` is as stored, possibly compressed (sys_flag says so).

    Timestamps are milliseconds since the epoch, `size` is in bytes, `version` is 1 or 2.
    """

    # A struct: one is made for each message that somebody reads, 0.4 us sooner than a dataclass would be.

    topic: str
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: tuple[str, int]
    store_timestamp: int
    store_host: tuple[str, int]
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    properties: str
    size: int
    body_crc: int
    version: int
    # Not to be given: `property_map` makes it.
    _property_map: dict[str, str] | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StoredRecord):
            return NotImplemented
        return astuple(self)[:-1] == astuple(other)[:-1]  # parsed or not

    @property
    def property_map(self) -> dict[str, str]:
        """The properties as a dict, parsed at the first call; the record keeps it, do not change it."""
        found = self._property_map
        if found is None:
            found = self._property_map = decode_properties(self.properties)
        return found

    @property
    def tags(self) -> str | None:
        """The TAGS value, None without one."""
        return self.property_map.get(TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The single lookup keys, empty without any."""
        return tuple(split_keys(self.property_map.get(KEYS, "")))

    @property
    def unique_key(self) -> str | None:
        """The client's id of the message, None without one."""
        return self.property_map.get(UNIQ_KEY)

    @property
    def offset_message_id(self) -> str:
        """Upper-case hex of store host and physical offset: where to find this record."""
        raw = encode_host(*self.store_host) + self.physical_offset.to_bytes(8, "big", signed=True)
        return raw.hex().upper()


def encode_record(
    *,
    topic: str | bytes,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    born_timestamp: int,
    born_host: tuple[str, int],
    store_timestamp: int,
    store_host: tuple[str, int],
    body: bytes,
    properties: str | bytes = b"",
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    checksum: bool = False,
    property_crc: bool = False,
) -> bytes:
    """One whole record; `checksum` and `property_crc` append the properties of checksum.py, sealed.

    The IPv6 bits of sys_flag follow from the hosts. A topic over 127 bytes makes a version 2 record. Checksum
    properties that `properties` already holds are kept: take them out first (checksum.remove_checksums).
    Raises RecordError for a topic or properties over 32767 bytes and for numbers that do not fit.
    """
    topic_raw = topic.encode("utf-8", "replace") if isinstance(topic, str) else topic
    raw = properties.encode("utf-8", "replace") if isinstance(properties, str) else properties
    raw = _with_checksum_room(raw, checksum=checksum, property_crc=property_crc)
    _check_lengths(topic_raw, raw)
    born = encode_host(*born_host)
    store = encode_host(*store_host)
    sys_flag &= ~HOSTS_V6_MASK
    sys_flag |= (_BORN_HOST_V6 if len(born) == 20 else 0) | (_STORE_HOST_V6 if len(store) == 20 else 0)
    head = HEAD_BY_HOSTS[(sys_flag >> 4) & 3]
    long_topic = len(topic_raw) > TOPIC_LENGTH_V1_MAX
    size = head.size + len(body) + (4 if long_topic else 3) + len(topic_raw) + len(raw)
    try:
        packed = head.pack(
            size,
            MAGIC_V2 if long_topic else MAGIC_V1,
            body_crc(body),
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag,
            born_timestamp,
            born,
            store_timestamp,
            store,
            reconsume_times,
            prepared_transaction_offset,
            len(body),
        )
    except StructError as error:
        raise RecordError(f"a field of the record does not fit its width: {error}") from error
    topic_length = SHORT.pack(len(topic_raw)) if long_topic else len(topic_raw).to_bytes(1, "big")
    record = bytearray(b"".join((packed, body, topic_length, topic_raw, SHORT.pack(len(raw)), raw)))
    if checksum:
        seal_record(record, reserved=PROPERTY_CRC_SIZE if property_crc else 0)
    if property_crc:
        seal_property_crc(record)
    return bytes(record)


def _with_checksum_room(raw: bytes, *, checksum: bool, property_crc: bool) -> bytes:
    if not (checksum or property_crc):
        return raw
    separator = b"\x02" if raw and not raw.endswith(b"\x02") else b""
    record_room = record_checksum_placeholder() if checksum else b""
    crc_room = property_crc_placeholder() if property_crc else b""
    return b"".join((raw, separator, record_room, crc_room))


def _check_lengths(topic: bytes, properties: bytes) -> None:
    if len(topic) > TOPIC_LENGTH_MAX:
        raise RecordError(f"topic has {len(topic)} bytes; at most {TOPIC_LENGTH_MAX} fit a record")
    if len(properties) > PROPERTIES_SIZE_MAX:
        raise RecordError(
            f"properties have {len(properties)} bytes; at most {PROPERTIES_SIZE_MAX} fit a record"
        )


# Head fields as HEAD_V4 lists them.
_Head = tuple[int, int, int, int, int, int, int, int, int, bytes, int, bytes, int, int, int]
# Head, then the positions of the body, the topic, the topic's end, the properties, the record's end.
_Layout = tuple[_Head, int, int, int, int, int]


def _layout(buffer: Buffer, position: int, limit: int) -> _Layout:
    """Head fields and the positions of the variable parts; RecordError unless all lengths agree."""
    if position < 0 or limit - position < RECORD_SIZE_MIN:
        raise RecordError(f"{limit - position} bytes at {position} are too few for a record")
    head = HEAD_V4.unpack_from(buffer, position)
    size, magic, sys_flag = head[0], head[1], head[7]
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        raise RecordError(f"magic {magic:#010x} at {position} does not open a record")
    if size < RECORD_SIZE_MIN or size > limit - position:
        raise RecordError(f"record at {position} claims {size} bytes; {limit - position} are there")
    body_at = position + 88
    if sys_flag & HOSTS_V6_MASK:
        form = HEAD_BY_HOSTS[(sys_flag >> 4) & 3]
        if size < form.size + 3:
            raise RecordError(f"record at {position} claims {size} bytes, too few for its IPv6 hosts")
        head = form.unpack_from(buffer, position)
        body_at = position + form.size
    end = position + size
    topic_length_at = body_at + head[14]
    # Room for both length fields, so that neither is read past the record.
    if head[14] < 0 or topic_length_at + (3 if magic == MAGIC_V1 else 4) > end:
        raise RecordError(f"body length {head[14]} at {position} does not fit a record of {size} bytes")
    if magic == MAGIC_V1:
        topic_length = buffer[topic_length_at]
        topic_at = topic_length_at + 1
        if topic_length > TOPIC_LENGTH_V1_MAX:
            raise RecordError(f"topic length {topic_length - 256} of the record at {position} is negative")
    else:
        (topic_length,) = SHORT.unpack_from(buffer, topic_length_at)
        topic_at = topic_length_at + 2
    topic_end = topic_at + topic_length
    if topic_length < 0 or topic_end + 2 > end:
        raise RecordError(f"topic length {topic_length} at {position} does not fit a record of {size} bytes")
    (properties_length,) = SHORT.unpack_from(buffer, topic_end)
    if properties_length < 0 or topic_end + 2 + properties_length != end:
        raise RecordError(
            f"the parts of the record at {position} do not add up to its {size} bytes"
            f" (properties length {properties_length})"
        )
    return head, body_at, topic_at, topic_end, topic_end + 2, end


def _checked_record(buffer: Buffer, position: int, limit: int, check_crc: bool) -> StoredRecord:
    head, body_at, topic_at, topic_end, properties_at, end = _layout(buffer, position, limit)
    (size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag) = head[:8]
    (born_timestamp, born_host, store_timestamp, store_host, reconsume_times, prepared, body_length) = head[
        8:
    ]
    body = bytes(buffer[body_at : body_at + body_length])
    properties = bytes(buffer[properties_at:end])
    if check_crc:
        if crc32(body) & BODY_CRC_MASK != crc:
            raise RecordError(
                f"body of the record at {position} (physical offset {physical_offset}) fails its CRC"
            )
        if RECORD_CHECKSUM_ENTRY in properties:
            _verify_checksum(buffer, position, end, properties, physical_offset)
    return StoredRecord(
        _topic_text(bytes(buffer[topic_at:topic_end])),
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp,
        decode_host(born_host),
        store_timestamp,
        decode_host(store_host),
        reconsume_times,
        prepared,
        body,
        properties.decode("utf-8", "replace"),
        size,
        crc,
        1 if magic == MAGIC_V1 else 2,
    )


def crc32c(data: Buffer) -> int:  # noqa: F811  # meant: see below
    """CRC-32C. At the first call the library's own function takes this place: its import reads package metadata, a
    tenth of what it takes to import the client."""
    global crc32c
    from crc32c import crc32c

    return crc32c(data)


def _verify_checksum(
    buffer: Buffer, position: int, end: int, properties: bytes, physical_offset: int
) -> None:
    """Raise RecordError when the whole-record checksum says that the record is damaged.

    The sound record with nothing behind its checksum is tried first, with one comparison: 0.55 us instead of
    1.25 us for check_record_checksum (timeit, 330-byte record), on every record that a consumer gets.
    """
    at = end - RECORD_CHECKSUM_SIZE
    expected = record_checksum_entry(physical_offset & _U64_MASK, crc32c(buffer[position:at]))
    if properties.endswith(expected):
        return
    if check_record_checksum(buffer[position:end]) == "bad":
        raise RecordError(f"record at {position} (physical offset {physical_offset}) fails its checksum")


def decode_record(buffer: Buffer, position: int = 0, *, check_crc: bool = True) -> StoredRecord:
    """The record that starts at `position`; bytes after it are not looked at.

    Raises RecordError when no whole record is there, when its lengths disagree, and, with check_crc, when its
    body CRC or its whole-record checksum does not match. A checksum that was copied from another record
    (other physical offset) is ignored.
    """
    return _checked_record(buffer, position, len(buffer), check_crc)


def iterate_records(buffer: Buffer, *, check_crc: bool = True) -> Iterator[StoredRecord]:
    """The records that fill `buffer` without gaps; RecordError where the next one is broken."""
    position, limit = 0, len(buffer)
    while position < limit:
        record = _checked_record(buffer, position, limit, check_crc)
        yield record
        position += record.size


native: Final = NativeRecords()


def decode_records(body: Buffer, *, check_crc: bool = True) -> list[StoredRecord]:
    """All records of a pull, query or view answer; RecordError when any of them is broken.

    About 3.0 us a record, 1.7 us with check_crc off (timeit, 32 records of 128 body bytes, CPython 3.11); with the
    native engine an eighth of that. What the engine finds unusual or broken is read here, so both say the same.
    """
    data = bytes(body)  # slices of bytes are cheaper than views
    found = native.decoded(data, StoredRecord, decode_host, _topic_text, check_crc)
    return list(iterate_records(data, check_crc=check_crc)) if found is None else found


class RecordHeader:
    """What a scan of the log needs of one record, the rest on demand.

    Valid while the buffer that it was read from is. For a blank only `size` and `magic` say something.
    """

    __slots__ = (
        "_buffer",
        "_properties_at",
        "_topic_at",
        "_topic_end",
        "body_at",
        "body_crc",
        "body_length",
        "end",
        "magic",
        "physical_offset",
        "position",
        "prepared_transaction_offset",
        "queue_id",
        "queue_offset",
        "size",
        "store_timestamp",
        "sys_flag",
    )

    def __init__(self, buffer: Buffer, position: int, layout: _Layout) -> None:
        head, self.body_at, self._topic_at, self._topic_end, self._properties_at, self.end = layout
        self._buffer = buffer
        self.position = position
        self.size = head[0]
        self.magic = head[1]
        self.body_crc = head[2]
        self.queue_id = head[3]
        self.queue_offset = head[5]
        self.physical_offset = head[6]
        self.sys_flag = head[7]
        self.store_timestamp = head[10]
        self.prepared_transaction_offset = head[13]
        self.body_length = head[14]

    @property
    def is_blank(self) -> bool:
        """Whether this closes a file; `size` is then what remains of the file."""
        return self.magic == BLANK_MAGIC

    @property
    def topic(self) -> str:
        """The topic's text."""
        return _topic_text(bytes(self._buffer[self._topic_at : self._topic_end]))

    @property
    def properties(self) -> bytes:
        """The raw property bytes, copied."""
        return bytes(self._buffer[self._properties_at : self.end])

    @property
    def tags(self) -> str | None:
        """The TAGS value, None without one."""
        return self._text_property(TAGS_NAME)

    @property
    def keys(self) -> str | None:
        """The raw KEYS value (blank-separated), None without one."""
        return self._text_property(KEYS_NAME)

    @property
    def unique_key(self) -> str | None:
        """The client's id of the message, None without one."""
        return self._text_property(UNIQ_KEY_NAME)

    @property
    def record(self) -> Buffer:
        """The whole record: a slice of the buffer, so a view where the buffer is one."""
        return self._buffer[self.position : self.end]

    def body_is_intact(self) -> bool:
        """Whether the stored body matches its CRC."""
        body = self._buffer[self.body_at : self.body_at + self.body_length]
        return crc32(body) & BODY_CRC_MASK == self.body_crc

    def _text_property(self, name: bytes) -> str | None:
        value = find_property(self.properties, name)
        return None if value is None else value.decode("utf-8", "replace")


def scan_header(buffer: Buffer, position: int) -> RecordHeader:
    """Header of the record or blank at `position`, without body CRC, checksum or text.

    All lengths are checked, so that `position + size` is where the next one starts and every property can be
    read. Raises RecordError for anything else, zero bytes included.
    """
    limit = len(buffer)
    if 0 <= position <= limit - BLANK_SIZE:
        size, magic = SIZE_AND_MAGIC.unpack_from(buffer, position)
        if magic == BLANK_MAGIC:
            return _blank_header(buffer, position, size)
    return RecordHeader(buffer, position, _layout(buffer, position, limit))


def _blank_header(buffer: Buffer, position: int, size: int) -> RecordHeader:
    if size < BLANK_SIZE:
        raise RecordError(f"blank record at {position} claims {size} bytes")
    head = (size, BLANK_MAGIC, 0, 0, 0, 0, 0, 0, 0, b"", 0, b"", 0, 0, 0)
    return RecordHeader(buffer, position, (head, position, position, position, position, position))
