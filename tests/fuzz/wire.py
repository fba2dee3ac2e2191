"""Targets for what comes over a connection: frames, headers, bodies, records, and what texts in them say."""

import json
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from ipaddress import ip_address
from typing import Any, Final

from aerobee_access import admin, plain_admin
from aerobee_access.signature import fields_of
from aerobee_broker.catalog.attributes import TOPIC_ATTRIBUTES, alter, parse_alterations
from aerobee_broker.members.filters import Filters
from aerobee_broker.messages.recall_handles import read_recall_handle
from aerobee_broker.pop import orderly, request_modes
from aerobee_broker.pop.extra_info import parse_extra_info
from aerobee_broker.remoting_api import acks, assignment
from aerobee_nameserver import handlers
from aerobee_proto import bodies, headers
from aerobee_proto.batch import decode_batch, encode_batch
from aerobee_proto.compression import compress_body, decompress_body
from aerobee_proto.errors import FormatError, FrameError, RecordError, RequestError
from aerobee_proto.frames import (
    CODEC_ROCKETMQ,
    Command,
    FrameDecoder,
    decode_command,
    decode_outline,
    encode_command,
    encode_frame,
)
from aerobee_proto.ha import (
    Confirmed,
    ReportDecoder,
    TransferDecoder,
    encode_confirmed,
    encode_report,
    encode_transfer_head,
)
from aerobee_proto.headers import RequestHeader, ext_of
from aerobee_proto.inner_batch import unwrapped
from aerobee_proto.javajson import dumps, dumps_standard, loads
from aerobee_proto.message_ids import decode_offset_message_id, decode_unique_key, encode_offset_message_id
from aerobee_proto.names import check_group, check_topic, is_internal_topic, is_system_topic, retry_topic
from aerobee_proto.properties import decode_properties, encode_properties, find_property, remove_property
from aerobee_proto.proxy_protocol import HEADER_SIZE_MAX, ProxyHeaderDecoder, ProxyHeaderError
from aerobee_proto.records import decode_record, decode_records, iterate_records, scan_header
from aerobee_proto.requests import Envelope, RequestDecoder
from aerobee_proto.sql92.expression import compile_sql
from aerobee_proto.sql92.tokens import SqlError
from aerobee_proto.sql92.values import SqlValueError
from fuzz.store_files import records_of_image
from fuzz.target import Target

__all__ = ["BODIES", "HEADERS", "TARGETS"]

INFLATED_MAX: Final = 1 << 16
CODECS_MAX: Final = 128  # that can be written


# Modules that define headers and JSON bodies of requests, answers and files.
MODULES: Final = (bodies, headers, admin, plain_admin, orderly, request_modes, acks, assignment, handlers)


def _kinds_of(base: type) -> list[Any]:
    """Every class below it that the modules define, in an order that does not change."""
    found = {
        one
        for module in MODULES
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, base) and one is not base
    }
    return sorted(found, key=lambda one: (one.__name__, one.__module__))


HEADERS: Final = _kinds_of(RequestHeader)
BODIES: Final = _kinds_of(bodies.JsonBody)


# --- frames and headers -----------------------------------------------------------------------------------------------


def frames(data: bytes) -> None:
    """A stream cut anywhere gives the same frames, and the same end; a frame is written as it came."""
    if len(data) < 3:
        return
    stream = data[2:]
    whole, pieces = FrameDecoder(), FrameDecoder()
    expected = whole.feed(stream)
    found = []
    with suppress(FrameError):
        for piece in _cut(data[0], data[1], stream):
            found += pieces.feed(piece)
    assert found == expected
    assert (whole.error is None) is (pieces.error is None)
    if all(codec < CODECS_MAX for codec, _, _ in expected):
        assert stream.startswith(b"".join([encode_frame(*frame) for frame in expected]))


def _cut(first: int, second: int, stream: bytes) -> list[bytes]:
    """Byte by byte for 0; else in three pieces."""
    if not first:
        return [stream[at : at + 1] for at in range(len(stream))]
    low, high = sorted((first % len(stream), second % len(stream)))
    return [stream[:low], stream[low:high], stream[high:]]


def _proxy_header(pieces: list[bytes]) -> tuple[object, int]:
    """What a header says, or the refusal; and how many bytes were taken."""
    decoder, taken = ProxyHeaderDecoder(), 0
    try:
        for piece in pieces:
            taken += decoder.feed(piece)
            if decoder.is_whole:
                return decoder.source, taken
    except ProxyHeaderError:
        return ProxyHeaderError, 0
    return "more", taken


def proxy_header(data: bytes) -> None:
    """A header cut anywhere says the same, of an address that is one, and nothing behind it is taken."""
    if len(data) < 3:
        return
    stream = data[2:]
    said, taken = _proxy_header([stream])
    assert _proxy_header(_cut(data[0], data[1], stream)) == (said, taken)
    assert taken <= min(len(stream), HEADER_SIZE_MAX)
    if isinstance(said, tuple):
        address, port = said
        assert str(ip_address(address)) == address
        assert 0 <= port < 65_536
        assert _proxy_header([stream[:taken] + b"behind"]) == (said, taken)


def _command(codec: int, data: bytes) -> None:
    frame = (codec, data, b"body")
    with suppress(FormatError):
        decode_outline(frame)
    try:
        command = decode_command(frame)
    except FormatError:
        return
    outline = decode_outline(frame)
    assert (outline.code, outline.opaque, outline.flag) == (command.code, command.opaque, command.flag)
    # Who signs is asked for the fields that the server then works on.
    signed = fields_of(frame)
    if codec != CODEC_ROCKETMQ:
        assert signed == command.ext_fields
    with suppress(FormatError):  # what cannot be written, such as half of a surrogate pair, is refused
        (written,) = FrameDecoder().feed(encode_command(command))
        again = decode_command(written)
        assert (again.code, again.opaque, again.flag) == (command.code, command.opaque, command.flag)
        assert again.ext == command.ext


def header_json(data: bytes) -> None:
    """A header in JSON."""
    _command(0, data)


def header_rocketmq(data: bytes) -> None:
    """A header in RocketMQ's own form."""
    _command(1, data)


def header_msgpack(data: bytes) -> None:
    """A header in msgpack."""
    _command(2, data)


@cache
def _decoder(number: int) -> RequestDecoder[Any]:
    return RequestDecoder(HEADERS[number])


def typed_headers(data: bytes) -> None:
    """The header of every request, in every codec, as servers read it, and by its fields as text."""
    if len(data) < 2:
        return
    decoder = _decoder(data[0] % len(HEADERS))
    frame = (data[1] % 3, data[2:], b"")
    by_text = _by_text(decoder, frame)
    try:
        envelope = decoder.decode(frame)
    except (FormatError, RequestError):
        assert by_text is None
        return
    if envelope.ext is not None:
        ext_of(envelope.ext)
    if by_text is not None:
        assert envelope.ext == by_text.ext or envelope.ext != envelope.ext
        assert (envelope.code, envelope.opaque) == (by_text.code, by_text.opaque)


def _by_text(decoder: RequestDecoder[Any], frame: tuple[int, bytes, bytes]) -> Envelope[Any] | None:
    try:
        return decoder.convert(decode_command(frame))
    except (FormatError, RequestError):
        return None


def ha_link(data: bytes) -> None:
    """Reports and transfers of a replication link, cut anywhere."""
    if len(data) < 3:
        return
    stream = data[2:]
    for make in (
        ReportDecoder,
        lambda: TransferDecoder(64, room_size=100),
        lambda: TransferDecoder(64, says_confirmed=True, room_size=100),
    ):
        whole, pieces = make(), make()
        try:
            expected = whole.feed(stream)
        except FormatError:
            with suppress(FormatError):
                for piece in _cut(data[0], data[1], stream):
                    pieces.feed(piece)
            continue
        found: Any = []
        try:
            found = [pieces.feed(piece) for piece in _cut(data[0], data[1], stream)]
        except FormatError:
            # An older report that nobody needs any more is looked at when it comes alone.
            assert isinstance(whole, ReportDecoder)
            continue
        if isinstance(expected, list):
            assert [one for some in found for one in some] == expected
            assert stream.startswith(
                b"".join(
                    [
                        encode_confirmed(one.offset)
                        if isinstance(one, Confirmed)
                        else encode_transfer_head(one.offset, len(one.data)) + one.data
                        for one in expected
                    ]
                )
            )
        else:
            assert [one for one in found if one is not None][-1:] == ([] if expected is None else [expected])
            assert expected is None or encode_report(expected) in stream


# --- bodies -----------------------------------------------------------------------------------------------------------


def request_bodies(data: bytes) -> None:
    """Every JSON body, as servers read it of strangers; what was read is written and read again alike."""
    if not data:
        return
    form = BODIES[data[0] % len(BODIES)]
    try:
        read = form.from_stranger(data[1:])
    except FormatError:
        return
    if b"$ref" not in data:  # servers follow references of strangers in their own way
        trusted = form.from_bytes(data[1:])
        assert trusted == read or read != read  # NaN is not itself
    with suppress(FormatError):
        assert form.from_bytes(read.to_bytes()) == read or read != read
    with suppress(FormatError):
        assert form.from_bytes(read.to_standard()) == read or read != read


def registrations(data: bytes) -> None:
    """Compressed, plain, and of old brokers."""
    if not data:
        return
    form, raw = bodies.RegisterBrokerBody, data[1:]
    with suppress(FormatError):
        match data[0] % 4:
            case 0:
                read = form.from_compressed(zlib.compress(raw, 1), with_mapping=bool(data[0] & 4))
                with suppress(FormatError):
                    again = form.from_compressed(read.to_compressed(with_mapping=True), with_mapping=True)
                    assert again == read
            case 1:
                form.from_compressed(raw, with_mapping=False)
            case 2:
                form.from_stranger(raw)
            case _:
                form.from_wrapper_bytes(raw)


def java_json(data: bytes) -> None:
    """The tolerant reader; what it reads it reads again, as it was written."""
    try:
        read = loads(data, 1 << 16)
    except FormatError:
        return
    with suppress(FormatError):
        loads(dumps(read))
    with suppress(FormatError):
        json.loads(dumps_standard(read))


def records(data: bytes) -> None:
    """Records as they come in the answer of a pull, and as they lie in a log; one after the other or all at once."""
    found = []
    broken = False
    try:
        for record in iterate_records(data):
            found.append(record)
            assert 0 < record.size <= len(data)
            with suppress(RecordError):
                unwrapped(record)
            with suppress(FormatError):
                decompress_body(record.body, record.sys_flag, INFLATED_MAX)
    except RecordError:
        broken = True
    try:
        assert decode_records(data) == found
        assert not broken
    except RecordError:
        assert broken
    with suppress(RecordError):
        alone = decode_record(data, check_crc=False)
        header = scan_header(data, 0)
        assert (header.size, header.topic, header.queue_offset) == (
            alone.size,
            alone.topic,
            alone.queue_offset,
        )
    with suppress(RecordError):
        assert scan_header(data, 0).size > 0


def batches(data: bytes) -> None:
    """Bodies of batches."""
    try:
        entries = decode_batch(data, 1000)
    except FormatError:
        return
    assert decode_batch(encode_batch(entries)) == entries


def compression(data: bytes) -> None:
    """Bodies that inflate, never past the bound; what was deflated inflates."""
    if not data:
        return
    kind, body = data[0] % 12, data[1:]
    if kind >= 8:
        packed, flag = compress_body(body, ("zlib", "lz4", "zstd", "zlib")[kind - 8], 1)
        assert decompress_body(packed, flag, len(body)) == body
        return
    with suppress(FormatError):
        assert len(decompress_body(body, 1 | kind << 8, INFLATED_MAX)) <= max(INFLATED_MAX, len(body))


# --- texts ------------------------------------------------------------------------------------------------------------


def properties(data: bytes) -> None:
    """Properties of a message, as a table and by name."""
    text = data.decode("utf-8", "replace")
    read = decode_properties(text)
    with suppress(FormatError):  # a value with the separator of names in it is read, and not written
        assert decode_properties(encode_properties(read)) == read
    packed = text.encode()
    for name, value in list(read.items())[:8]:
        assert find_property(packed, name.encode()) == value.encode()
        assert find_property(remove_property(packed, name.encode()), name.encode()) is None


def names(data: bytes) -> None:
    """What a name may be: one that is taken is a file's name and nothing else. Ids and handles, too."""
    try:
        text = data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    for check in (check_topic, check_group):
        try:
            check(text)
        except (FormatError, RequestError):
            continue
        assert text
        assert "/" not in text
        assert "\0" not in text
        assert text not in (".", "..")
        assert text.isascii()
    is_system_topic(text)
    is_internal_topic(text)
    retry_topic(text)
    with suppress(FormatError):
        found = decode_offset_message_id(text)
        again = encode_offset_message_id(found.host, found.port, found.physical_offset)
        assert decode_offset_message_id(again) == found
    with suppress(FormatError):
        decode_unique_key(text)
    with suppress(RequestError):
        parse_extra_info(text)
    read_recall_handle(text)
    with suppress(RequestError):
        alter({}, parse_alterations(text), creating=True, known=TOPIC_ATTRIBUTES)


VALUES: Final[tuple[dict[str, str], ...]] = (
    {},
    {"a": "1", "b": "1.5", "c": "x", "d": "true"},
    {"a": "-9223372036854775808", "b": "1e309", "c": "", "d": "NaN"},
)
PACKED: Final = tuple(encode_properties(values).encode() for values in VALUES)


def sql92(data: bytes) -> None:
    """Expressions of strangers, and what they say of messages."""
    try:
        expression = compile_sql(data.decode("utf-8", "replace"))
    except SqlError:
        return
    assert expression.cost > 0
    for values in VALUES:
        try:
            said = expression.evaluate(values)
        except SqlValueError:
            assert not expression.matches(values)
            continue
        assert said in (True, False, None)
        assert expression.matches(values) is (said is True)


def filters(data: bytes) -> None:
    """What consumers subscribe to, as a broker keeps it: by tags, and by SQL92 over packed properties."""
    if not data:
        return
    text = data[1:].decode("utf-8", "replace")
    made = Filters()
    try:
        found = made.sql(text) if data[0] & 1 else made.tags(text)
    except RequestError:
        return
    assert found.size > 0
    if found.selector is None:
        return
    assert found.selector.scan_max > 0
    expression = compile_sql(text)
    for packed in PACKED:
        assert found.selector.matches(packed) is expression.matches(decode_properties(packed.decode()))


# --- what reaches far into them ---------------------------------------------------------------------------------------


def _of_command(codec: int) -> Iterator[bytes]:
    for ext in (
        {},
        {"topic": "T", "queueId": "0"},
        {"a": "group", "b": "T", "i": "KEYS\x01k\x02", "e": "-1"},
    ):
        command = Command(310, opaque=7, ext_fields=ext, remark="said", codec=codec)
        (frame,) = FrameDecoder().feed(encode_command(command))
        yield frame[1]


def _json_headers() -> Iterator[bytes]:
    yield from _of_command(0)
    yield b'{"code":10,"extFields":' + b"[" * 3000
    yield b'{"code":10,"extFields":{"a":"1","a":"2","b":null,"c":1e400,"d":' + b"9" * 5000 + b"}}"


def _frames() -> Iterator[bytes]:
    packed = [encode_command(Command(code, body=b"x" * code)) for code in (10, 34, 60)]
    for piece in (*packed, b"".join(packed), packed[0] + packed[1][:20]):
        yield b"\x05\x50" + piece
        yield b"\x00\x00" + piece
    for foreign in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00", b"PRI * HTTP/2.0", b"SSH-2.0-x"):
        yield b"\x03\x09" + foreign


def _proxy_headers() -> Iterator[bytes]:
    sign = bytes.fromhex("0d0a0d0a000d0a515549540a")
    yield b"\x02\x09PROXY TCP4 10.0.0.1 10.0.0.2 56324 443\r\nbehind"
    yield b"\x05\x20PROXY TCP6 fd00::1 ::ffff:1.2.3.4 1 65535\r\n"
    yield b"\x00\x00PROXY UNKNOWN whatever\r\n"
    for command, kind, block in (
        (0x21, 0x11, bytes(range(12)) + b"\x04\0\1x"),
        (0x21, 0x21, bytes(36)),
        (0x20, 0, b""),
        (0x21, 0x31, bytes(216)),
    ):
        yield b"\x03\x11" + sign + struct.pack(">BBH", command, kind, len(block)) + block + b"behind"


def _typed() -> Iterator[bytes]:
    for number in range(0, len(HEADERS), 5):
        for codec in range(3):
            for header in _of_command(codec):
                yield bytes([number, codec]) + header


def _ha() -> Iterator[bytes]:
    yield b"\x03\x09" + encode_report(0) + encode_report(1 << 40)
    yield b"\x00\x00" + encode_transfer_head(7, 5) + b"bytes" + encode_transfer_head(12, 0)
    yield b"\x03\x0d" + encode_transfer_head((1 << 63) - 1, 0) + encode_transfer_head(-1, 1)


def _bodies() -> Iterator[bytes]:
    for number, form in enumerate(BODIES):
        with suppress(TypeError):
            yield bytes([number]) + form().to_bytes()
    yield (
        bytes([BODIES.index(bodies.HeartbeatData)])
        + json.dumps(
            {
                "clientID": "c",
                "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "t"}]}],
            }
        ).encode()
    )
    table = BODIES.index(bodies.TopicStatsTable)
    yield bytes([table]) + b'{"offsetTable":{{"topic":"t","brokerName":"b","queueId":0}:{"minOffset":1}}}'
    yield b'\x00{\'a\':[{"$ref":"$.a"},null,1.5e3,-0]}'
    for number in range(0, len(BODIES), 7):
        yield bytes([number]) + b'{"x":' + b"[" * 3000


def _registrations() -> Iterator[bytes]:
    topic = bodies.TopicConfig(topic_name="T")
    wrapper = bodies.TopicConfigWrapper(topic_config_table={"T": topic})
    body = bodies.RegisterBrokerBody(topic_config_serialize_wrapper=wrapper)
    yield b"\x00" + zlib.decompress(body.to_compressed(with_mapping=False))
    yield b"\x04" + zlib.decompress(body.to_compressed(with_mapping=True))
    yield b"\x01" + body.to_compressed(with_mapping=False)
    yield b"\x02" + body.to_bytes()
    yield b"\x03" + wrapper.to_bytes()


def _java_json() -> Iterator[bytes]:
    yield b'{"dataVersion":{"counter":1},"topicConfigTable":{"T":{"perm":6,"1":null}}}'
    yield b"{1:{'a':[1,2.5e3,true,null]},}"
    yield b'{"a":{"b":[1,{"$ref":"$.a.b"}]},{"topic":"t","brokerName":"b","queueId":1}:2}'
    yield b"[" * 3000
    yield b"9" * 5000


def _records() -> Iterator[bytes]:
    yield from records_of_image()
    yield b"".join(records_of_image()[:3])


def _batches() -> Iterator[bytes]:
    one = struct.pack(">IIIiI", 24, 0, 0, 0, 2) + b"ab" + struct.pack(">H", 0)
    yield one
    yield one * 3


def _compression() -> Iterator[bytes]:
    text = b"hello " * 20
    for kind, name in enumerate(("zlib", "lz4", "zstd")):
        yield bytes([kind]) + compress_body(text, name)[0]  # type: ignore[arg-type]  # one of the three
        yield bytes([8 + kind]) + text
    yield b"\x03" + zlib.compress(b"")


def _properties() -> Iterator[bytes]:
    yield b"KEYS\x01a b\x02TAGS\x01t\x02"
    yield b"\x01\x02a\x01\x02\x01b\x02a\x01c"


def _names() -> Iterator[bytes]:
    for text in (
        "%RETRY%group", "a|b-c_d", "../etc", "0A0000010000277F0000000000000010", "7F00000100002A9F00000000075BCD15",
        "0 1763700000000 60000 0 0 broker-a 1", "djEgVCBiIDE3NjM3MDAwMDAwMDAgbQ", "+message.type=FIFO,-queue.type",
        "é\ud800", "C0A8010A00001F9018B4AAC2000000010001", "9" * 5000 + " 1 1 1 0 b 1", "A" * 5000,
    ):  # fmt: skip
        yield text.encode("utf-8", "surrogatepass")


def _sql92() -> Iterator[bytes]:
    for text in (
        "a = 1 AND b > 1.5 OR NOT c = 'x'", "a BETWEEN 1 AND 5", "c IN ('x', 'y') AND d IS NOT NULL", "TRUE",
        "a = -1e5", "c CONTAINS 'x' AND c NOT STARTSWITH 'y'", "((a + 1))", "a BETWEEN b AND 3",
        "d = TRUE -- rest", "a <> 0x1F", "'it''s' = c", "a = " + "9" * 5000, "(" * 3000, "NOT " * 1000 + "a IS NULL",
    ):  # fmt: skip
        yield text.encode()


def _filters() -> Iterator[bytes]:
    for text in _sql92():
        yield b"\x01" + text
    for text in (b"*", b"a || b", b"", b"||", b" a"):
        yield b"\x00" + text


TARGETS: Final[dict[str, Target]] = {
    "frames": Target(frames, _frames, 120_000),
    "proxy_header": Target(proxy_header, _proxy_headers, 120_000),
    "header_json": Target(header_json, _json_headers, 290_000),
    "header_rocketmq": Target(header_rocketmq, lambda: _of_command(1), 200_000),
    "header_msgpack": Target(header_msgpack, lambda: _of_command(2), 250_000),
    "typed_headers": Target(typed_headers, _typed, 180_000),
    "ha_link": Target(ha_link, _ha, 120_000, 128),
    "request_bodies": Target(request_bodies, _bodies, 60_000),
    "registrations": Target(registrations, _registrations, 60_000),
    "java_json": Target(java_json, _java_json, 50_000),
    "records": Target(records, _records, 80_000),
    "batches": Target(batches, _batches, 250_000),
    "compression": Target(compression, _compression, 200_000),
    "properties": Target(properties, _properties, 90_000, 128),
    "names": Target(names, _names, 90_000, 128),
    "sql92": Target(sql92, _sql92, 30_000, 128),
    "filters": Target(filters, _filters, 30_000, 128),
}
