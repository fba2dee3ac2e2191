"""What is fuzzed: one function for each kind of bytes that come from a peer, a disk or a person.

Each takes any bytes. It returns for bytes that are read and for bytes that are refused in the declared way; whatever
else is raised is a finding, and so is a value that does not survive being written and read again.
"""

import json
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import structlog

from aerobee_broker.catalog.attributes import TOPIC_ATTRIBUTES, alter, parse_alterations
from aerobee_broker.messages.recall_handles import read_recall_handle
from aerobee_broker.pop.extra_info import parse_extra_info
from aerobee_broker.settings.config import BrokerConfig
from aerobee_broker.settings.config_files import decode_config, encode_config
from aerobee_nameserver.config import NameserverConfig
from aerobee_proto import bodies, headers
from aerobee_proto.batch import decode_batch, encode_batch
from aerobee_proto.compression import decompress_body
from aerobee_proto.errors import FormatError, FrameError, RecordError, RequestError
from aerobee_proto.frames import (
    Command,
    FrameDecoder,
    decode_command,
    decode_outline,
    encode_command,
)
from aerobee_proto.headers import RequestHeader, ext_of
from aerobee_proto.inner_batch import unwrapped
from aerobee_proto.javajson import dumps, loads
from aerobee_proto.message_ids import decode_offset_message_id, decode_unique_key, encode_offset_message_id
from aerobee_proto.names import check_group, check_topic, is_internal_topic, is_system_topic, retry_topic
from aerobee_proto.properties import decode_properties, encode_properties, find_property, remove_property
from aerobee_proto.proxy_protocol import HEADER_SIZE_MAX, ProxyHeaderDecoder, ProxyHeaderError
from aerobee_proto.records import decode_record, decode_records, scan_header
from aerobee_proto.requests import RequestDecoder
from aerobee_proto.sql92.expression import compile_sql
from aerobee_proto.sql92.tokens import SqlError
from aerobee_proto.sql92.values import SqlValueError
from aerobee_service.settings.settings import SettingsError, SettingsModel, apply_changes, read_properties
from aerobee_service.tls.validity import validity_of
from aerobee_store.faults.errors import StoreError
from aerobee_store.timer import timer_files as timer_files_module
from aerobee_store.timer.timer_files import MAGIC_DEFAULT, TimerFiles, TimerUnit, Verified
from fuzz.engines import engine_seeds, send_engines
from store.bit_rot import Image
from store.crash_disk import CrashIo, Disk
from store.workload import HOST, message

__all__ = ["TARGETS", "Target", "seeds_of"]

Target = Callable[[bytes], None]
HEADERS: Final = sorted(
    (one for one in vars(headers).values() if isinstance(one, type) and issubclass(one, RequestHeader)),
    key=lambda one: one.__name__,
)
BODIES: Final = sorted(
    (one for one in vars(bodies).values() if isinstance(one, type) and issubclass(one, bodies.JsonBody)),
    key=lambda one: one.__name__,
)
INFLATED_MAX: Final = 1 << 20
TIMER_ROOT: Final = Path("/timers")
TIMER_MS: Final = 1_700_000_000_000
TIMER_SLOTS: Final = 128


def frames(data: bytes) -> None:
    """A stream cut anywhere gives the same frames, and the same end."""
    if not data:
        return
    cut, stream = data[0], data[1:]
    whole, pieces = FrameDecoder(), FrameDecoder()
    expected = whole.feed(stream)
    found = []
    step = cut % 23 + 1
    with suppress(FrameError):
        for at in range(0, len(stream), step):
            found += pieces.feed(stream[at : at + step])
    assert found == expected
    assert (whole.error is None) is (pieces.error is None)


def _proxy_header(stream: bytes, step: int) -> tuple[object, int]:
    """What a header says, or the refusal; and how many bytes were taken."""
    decoder, taken = ProxyHeaderDecoder(), 0
    try:
        for at in range(0, len(stream), step):
            taken += decoder.feed(stream[at : at + step])
            if decoder.is_whole:
                return decoder.source, taken
    except ProxyHeaderError:
        return ProxyHeaderError, 0
    return "more", taken


def proxy_header(data: bytes) -> None:
    """A header cut anywhere says the same, of an address that is one, and nothing behind it is taken."""
    if not data:
        return
    cut, stream = data[0], data[1:]
    said, taken = _proxy_header(stream, max(1, len(stream)))
    assert _proxy_header(stream, cut % 23 + 1) == (said, taken)
    assert taken <= min(len(stream), HEADER_SIZE_MAX)
    if isinstance(said, tuple):
        address, port = said
        assert str(ip_address(address)) == address
        assert 0 <= port < 65_536
        assert _proxy_header(stream[:taken] + b"behind", 1) == (said, taken)


def _command(codec: int, data: bytes) -> None:
    with suppress(FormatError):
        decode_outline((codec, data, b""))
    try:
        command = decode_command((codec, data, b"body"))
    except FormatError:
        return
    with suppress(FormatError):  # what cannot be written, such as half of a surrogate pair, is refused
        (frame,) = FrameDecoder().feed(encode_command(command))
        again = decode_command(frame)
        assert (again.code, again.opaque, again.flag) == (command.code, command.opaque, command.flag)
        assert again.ext == command.ext


def header_json(data: bytes) -> None:
    _command(0, data)


def header_rocketmq(data: bytes) -> None:
    _command(1, data)


def header_msgpack(data: bytes) -> None:
    _command(2, data)


@cache
def _decoder(number: int) -> RequestDecoder[Any]:
    return RequestDecoder(HEADERS[number])


def typed_headers(data: bytes) -> None:
    """The header of every request, in every codec, as servers read it."""
    if len(data) < 2:
        return
    decoder = _decoder(data[0] % len(HEADERS))
    try:
        envelope = decoder.decode((data[1] % 3, data[2:], b""))
    except (FormatError, RequestError):
        return
    if envelope.ext is not None:
        ext_of(envelope.ext)


def request_bodies(data: bytes) -> None:
    """Every JSON body, as servers read it of strangers; what was read is written and read again alike."""
    if not data:
        return
    form = BODIES[data[0] % len(BODIES)]
    try:
        read = form.from_stranger(data[1:])
    except FormatError:
        return
    with suppress(FormatError):
        assert form.from_bytes(read.to_bytes()) == read or read != read  # NaN is not itself


def registrations(data: bytes) -> None:
    """Compressed, plain, and of old brokers."""
    form = bodies.RegisterBrokerBody
    with suppress(FormatError):
        form.from_compressed(zlib.compress(data, 1), with_mapping=True)
    with suppress(FormatError):
        form.from_compressed(data, with_mapping=False)
    with suppress(FormatError):
        form.from_stranger(data)
    with suppress(FormatError):
        form.from_wrapper_bytes(data)


def java_json(data: bytes) -> None:
    """The tolerant reader; what it reads it reads again, as it was written."""
    try:
        read = loads(data, 1 << 16)
    except FormatError:
        return
    with suppress(FormatError):
        loads(dumps(read))


def records(data: bytes) -> None:
    """Records as they come in the answer of a pull, and as they lie in a log."""
    with suppress(RecordError):
        for record in decode_records(data):
            assert 0 < record.size <= len(data)
            with suppress(RecordError):
                unwrapped(record)
            with suppress(FormatError):
                decompress_body(record.body, record.sys_flag, INFLATED_MAX)
    with suppress(RecordError):
        decode_record(data, check_crc=False)
    with suppress(RecordError):
        found = scan_header(data, 0)
        assert found.size > 0


def batches(data: bytes) -> None:
    try:
        entries = decode_batch(data, 1000)
    except FormatError:
        return
    assert decode_batch(encode_batch(entries)) == entries


def compression(data: bytes) -> None:
    """Bodies that inflate, never past the bound."""
    if not data:
        return
    with suppress(FormatError):
        assert len(decompress_body(data[1:], 1 | (data[0] % 8) << 8, INFLATED_MAX)) <= max(
            INFLATED_MAX, len(data)
        )


def properties(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    read = decode_properties(text)
    with suppress(FormatError):  # a value with the separator of names in it is read, and not written
        assert decode_properties(encode_properties(read)) == read
    for name, value in read.items():
        packed = text.encode()
        assert find_property(packed, name.encode()) == value.encode()
        assert find_property(remove_property(packed, name.encode()), name.encode()) is None


def names(data: bytes) -> None:
    """What a name may be: one that is taken is a file's name and nothing else."""
    text = data.decode("utf-8", "surrogatepass") if _is_text(data) else data.decode("latin-1")
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
        assert (
            decode_offset_message_id(encode_offset_message_id(found.host, found.port, found.physical_offset))
            == found
        )
    with suppress(FormatError):
        decode_unique_key(text)
    with suppress(RequestError):
        parse_extra_info(text)
    read_recall_handle(text)
    with suppress(RequestError):
        alter({}, parse_alterations(text), creating=True, known=TOPIC_ATTRIBUTES)


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


VALUES: Final[tuple[dict[str, str], ...]] = (
    {},
    {"a": "1", "b": "1.5", "c": "x", "d": "true"},
    {"a": "-9223372036854775808", "b": "1e309", "c": "", "d": "NaN"},
)


def sql92(data: bytes) -> None:
    """Expressions of strangers, and what they say of messages."""
    try:
        expression = compile_sql(data.decode("utf-8", "replace"))
    except SqlError:
        return
    assert expression.cost > 0
    for values in VALUES:
        with suppress(SqlValueError):
            assert expression.evaluate(values) in (True, False, None)


@cache
def _models() -> tuple[SettingsModel, ...]:
    return BrokerConfig(), NameserverConfig()


def configuration(data: bytes) -> None:
    """Settings as an operator or an admin's request writes them, and the tables under config/."""
    text = data.decode("utf-8", "replace")
    with suppress(ValueError):
        changes = read_properties(text)
        for model in _models():
            with suppress(SettingsError):
                apply_changes(model, changes, origin="a peer")
    with suppress(ValueError):
        content = decode_config(data)
        with suppress(FormatError):
            assert decode_config(encode_config(content)).keys() == content.keys()
    with suppress(ValueError):
        validity_of(text)


@cache
def _image() -> Image:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    return Image(15)  # with two index files, three of the log, deleted topics


def _files_of(kinds: tuple[str, ...]) -> list[str]:
    found = _image().kinds()
    return sorted(name for kind in kinds for name in found.get(kind, ()))


def _store(data: bytes, kinds: tuple[str, ...]) -> None:
    """A start, and reading all, on a store one of whose files has other bytes."""
    image, names_ = _image(), _files_of(kinds)
    if not data or not names_:
        return
    name = names_[data[0] % len(names_)]
    try:
        store, _, _ = image.opened({**image.files, name: _patched(image.files[name], data)})
    except StoreError:
        return
    _read_all(store)


def _patched(raw: bytes, data: bytes) -> bytes:
    """The file with patches of (place, length, bytes) in it; the first byte has said which file."""
    file = bytearray(raw)
    at = 1
    while at + 3 <= len(data):
        place, size = struct.unpack_from(">HB", data, at)
        piece = data[at + 3 : at + 3 + size]
        place %= len(file)
        file[place : place + len(piece)] = piece
        at += 3 + size
    return bytes(file)


def _read_all(store: Any) -> None:
    for topic in store.topics.names():
        for queue_id in store.topics.queue_ids(topic):
            with suppress(StoreError):
                offset, end = (
                    store.reading.min_offset(topic, queue_id),
                    store.reading.max_offset(topic, queue_id),
                )
                while offset < end:
                    found = store.reading.get_message("g", topic, queue_id, offset, 32, 1 << 20, None)
                    assert found.next_offset > offset
                    offset = found.next_offset
    with suppress(StoreError):
        store.keys.query("Orders", "k", 32, 0, 1 << 60)
    with suppress(StoreError):
        store.append([message(host=HOST)])
    with suppress(StoreError):
        store.check()


def log_files(data: bytes) -> None:
    _store(data, ("commitlog",))


def queue_files(data: bytes) -> None:
    _store(data, ("consumequeue", "batchconsumequeue"))


def index_files(data: bytes) -> None:
    _store(data, ("index",))


def timer_files(data: bytes) -> None:
    """The timer log, its checkpoint, and a wheel that is smaller than in life."""
    files = _timer_image()
    if not data:
        return
    name = sorted(files)[data[0] % len(files)]
    timers = _timers(CrashIo(Disk.holding({**files, name: _patched(files[name], data)})))
    with patch.object(timer_files_module, "SLOT_COUNT", TIMER_SLOTS):
        _read_timers(timers)


def _read_timers(timers: TimerFiles) -> None:
    try:
        timers.load()
        timers.recover(lambda place, size: Verified(place // 100, TIMER_MS) if size == 100 else None)
        for _ in range(1000):
            if (slot := timers.next_slot()) is None:
                break
            timers.take_slot()
            for position in timers.positions(slot):
                timers.unit(position)
        timers.newest_unit()
        timers.topic_hashes()
    except StoreError:
        return


def _timers(io: CrashIo) -> TimerFiles:
    return TimerFiles(TIMER_ROOT, io, precision_ms=1000, log_file_size=4096)


@cache
def _timer_image() -> dict[str, bytes]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    io = CrashIo(Disk())
    timers = _timers(io)
    with patch.object(timer_files_module, "SLOT_COUNT", TIMER_SLOTS):
        timers.load()
        timers.recover(lambda place, size: None)
        for number in range(100):
            at_ms = TIMER_MS + number % 7 * 1000
            timers.add(TimerUnit(-1, MAGIC_DEFAULT, TIMER_MS, at_ms, number * 100, 100, 77, exact=True))
            timers.queue_offset = number + 1
        timers.sync(timers.snapshot(0), TIMER_MS)
    return {name: raw for name, raw in io.disk.files().items() if raw}


def small_files(data: bytes) -> None:
    """The checkpoint, and whatever else lies beside the rows of files."""
    rows = {"commitlog", "consumequeue", "batchconsumequeue", "index", "lock"}
    _store(data, tuple(sorted(set(_image().kinds()) - rows)))


TARGETS: Final[dict[str, Target]] = {
    one.__name__: one
    for one in (
        frames, proxy_header, header_json, header_rocketmq, header_msgpack, typed_headers, request_bodies,
        registrations, java_json, records, batches, compression, properties, names, sql92, configuration, log_files,
        queue_files, index_files, timer_files, small_files, send_engines,
    )
}  # fmt: skip


# --- what reaches far into them ---------------------------------------------------------------------------------------


def seeds_of(name: str) -> Iterator[bytes]:
    """Bytes that the target reads, or nearly."""
    yield from SEEDS.get(name, _patches)()


def _of_command(codec: int) -> Iterator[bytes]:
    for ext in (
        {},
        {"topic": "T", "queueId": "0"},
        {"a": "group", "b": "T", "i": "KEYS\x01k\x02", "e": "-1"},
    ):
        command = Command(310, opaque=7, ext_fields=ext, remark="said", codec=codec)
        (frame,) = FrameDecoder().feed(encode_command(command))
        yield frame[1]


def _frames() -> Iterator[bytes]:
    packed = [encode_command(Command(code, body=b"x" * code)) for code in (10, 34, 310)]
    for piece in (*packed, b"".join(packed), packed[0] + packed[1][:20]):
        yield b"\x05" + piece


def _proxy_headers() -> Iterator[bytes]:
    sign = bytes.fromhex("0d0a0d0a000d0a515549540a")
    yield b"\x02PROXY TCP4 10.0.0.1 10.0.0.2 56324 443\r\nbehind"
    yield b"\x05PROXY TCP6 fd00::1 ::ffff:1.2.3.4 1 65535\r\n"
    yield b"\x00PROXY UNKNOWN whatever\r\n"
    for command, kind, block in (
        (0x21, 0x11, bytes(range(12)) + b"\x04\0\1x"),
        (0x21, 0x21, bytes(36)),
        (0x20, 0, b""),
        (0x21, 0x31, bytes(216)),
    ):
        yield b"\x03" + sign + struct.pack(">BBH", command, kind, len(block)) + block + b"behind"


def _typed() -> Iterator[bytes]:
    for number in range(0, len(HEADERS), 5):
        for codec in range(3):
            for header in _of_command(codec):
                yield bytes([number, codec]) + header


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
    yield b'\x00{\'a\':[{"$ref":"$.a"},null,1.5e3,-0]}'


def _registrations() -> Iterator[bytes]:
    topic = bodies.TopicConfig(topic_name="T")
    wrapper = bodies.TopicConfigWrapper(topic_config_table={"T": topic})
    body = bodies.RegisterBrokerBody(topic_config_serialize_wrapper=wrapper)
    yield body.to_bytes()
    yield wrapper.to_bytes()
    yield body.to_compressed(with_mapping=True)
    yield zlib.decompress(body.to_compressed(with_mapping=True))


def _records() -> Iterator[bytes]:
    for name in _files_of(("commitlog",)):
        raw, at = _image().files[name], 0
        for _ in range(8):
            size = int.from_bytes(raw[at : at + 4], "big")
            if not 0 < size < 2000:
                break
            yield raw[at : at + size]
            at += size


def _batches() -> Iterator[bytes]:
    one = struct.pack(">IIIiI", 24, 0, 0, 0, 2) + b"ab" + struct.pack(">H", 0)
    yield one
    yield one * 3


def _compression() -> Iterator[bytes]:
    for kind in range(4):
        yield bytes([kind]) + zlib.compress(b"hello " * 20)


def _properties() -> Iterator[bytes]:
    yield b"KEYS\x01a b\x02TAGS\x01t\x02"
    yield b"\x01\x02a\x01\x02\x01b\x02a\x01c"


def _names() -> Iterator[bytes]:
    for text in (
        "%RETRY%group", "a|b-c_d", "../etc", "0A0000010000277F0000000000000010", "7F00000100002A9F00000000075BCD15",
        "0 1763700000000 60000 0 0 broker-a 1", "v1 T b 1763700000000 m", "+message.type=FIFO,-queue.type", "é\ud800",
        "C0A8010A00001F9018B4AAC2000000010001",
    ):  # fmt: skip
        yield text.encode("utf-8", "surrogatepass")


def _sql92() -> Iterator[bytes]:
    for text in (
        "a = 1 AND b > 1.5 OR NOT c = 'x'", "a BETWEEN 1 AND 5", "c IN ('x', 'y') AND d IS NOT NULL", "TRUE",
        "a = -1e5", "c CONTAINS 'x' AND c NOT STARTSWITH 'y'", "((a + 1))",
        "d = TRUE -- rest", "a <> 0x1F", "'it''s' = c",
    ):  # fmt: skip
        yield text.encode()


def _configuration() -> Iterator[bytes]:
    yield b"brokerName=a\nlistenPort = 10911\n# said\ndeleteWhen=04\\\n;05\nfileReservedTime=\\u0034\n"
    yield b'{"dataVersion":{"counter":1},"topicConfigTable":{"T":{"perm":6,"1":null}}}'
    yield b"{1:{'a':[1,2.5e3,true,null]},}"


def _patches() -> Iterator[bytes]:
    for number in range(4):
        yield bytes([number]) + struct.pack(">HB", number * 40, 8) + b"\xff" * 8
        yield bytes([number]) + struct.pack(">HB", 0, 200) + bytes(200)


SEEDS: Final[dict[str, Callable[[], Iterator[bytes]]]] = {
    "frames": _frames,
    "proxy_header": _proxy_headers,
    "header_json": lambda: _of_command(0),
    "header_rocketmq": lambda: _of_command(1),
    "header_msgpack": lambda: _of_command(2),
    "typed_headers": _typed,
    "request_bodies": _bodies,
    "registrations": _registrations,
    "java_json": _configuration,
    "records": _records,
    "batches": _batches,
    "compression": _compression,
    "properties": _properties,
    "names": _names,
    "sql92": _sql92,
    "configuration": _configuration,
    "send_engines": engine_seeds,
}
