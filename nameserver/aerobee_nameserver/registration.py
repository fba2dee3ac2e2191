"""Registration bodies: from what a broker sent to a checked `Registration`, or a refusal that says what is wrong.

Touches  bytes only.

What is checked: the checksum, names (they travel on to every client and to other brokers' folders), addresses,
numbers of queues, sizes. A registration is taken as a whole or refused as a whole.
"""

import zlib
from collections.abc import Callable, Generator
from typing import Final

from aerobee_nameserver.route_table import Registration, TopicQueues
from aerobee_proto.bodies import DataVersion, QueueData, RegistrationReader, TopicConfig
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import FormatError, RequestError
from aerobee_proto.headers import RegisterBrokerHeader
from aerobee_proto.steps import CallSteps, finished_here

__all__ = [
    "AT_ONCE_SIZE_MAX",
    "DEFAULT_TIMEOUT_MS",
    "VERSION_REGISTER_BODY",
    "checked_queues",
    "checked_topic",
    "read_registration",
    "reading_registration",
]

VERSION_REGISTER_BODY: Final = 37  # brokers below send the topic table without the envelope
VERSION_MAPPING: Final = 413  # from here on a compressed body ends with a section for static topics
# Bytes of a body that is read in a turn of the event loop; larger: in slices, or a thread.
AT_ONCE_SIZE_MAX: Final = 16 * 1024
CHECKSUM_STEP: Final = 64 * 1024  # bytes
DEFAULT_TIMEOUT_MS: Final = 120_000
TIMEOUT_MS_MAX: Final = 86_400_000
NAME_CHARS_MAX: Final = 255
QUEUE_COUNT_MAX: Final = 65_536
PERM_MAX: Final = 0xF
# Names become folder names and parts of file names at brokers.
FORBIDDEN_CHARS: Final = frozenset('/\\:*?"<>') | frozenset(map(chr, [*range(32), 127]))


def read_registration(header: RegisterBrokerHeader, body: bytes, version: int) -> Registration:
    """Decode and check a REGISTER_BROKER request of a broker with this version.

    Raises RequestError: SYSTEM_ERROR when the checksum or the body is broken, INVALID_PARAMETER when a value is
    out of bounds.
    """
    return finished_here(reading_registration(header, body, version))


def reading_registration(
    header: RegisterBrokerHeader,
    body: bytes,
    version: int,
    let_go: Callable[[list[object]], None] = list.clear,
) -> CallSteps[Registration]:
    """As read_registration, in steps of a fraction of a millisecond; what takes longer is given as a call. `let_go` is
    given what was read of a body that is refused."""
    topics: dict[str, TopicQueues] = {}
    try:
        yield from _checking_sum(header.body_crc32, body)
        reader = yield from _reader(header, body, version)
        for name, config in reader.topics():
            topics[checked_topic(name)] = checked_queues(name, config)
            yield None  # after each: one in near-JSON may take milliseconds
        return Registration(
            cluster=_checked_name("clusterName", header.cluster_name),
            broker_name=_checked_name("brokerName", header.broker_name),
            broker_id=_checked_id(header.broker_id),
            broker_addr=_checked_addr("brokerAddr", header.broker_addr),
            ha_server_addr=header.ha_server_addr or "",
            data_version=reader.data_version,
            topics=topics,
            acting_master=header.enable_acting_master,
            timeout_ms=_checked_timeout(header.heartbeat_timeout_millis),
            filter_servers=tuple(reader.filter_servers),
        )
    except BaseException as failed:
        # The frames of the error hold the table: many topics would go in one call.
        left = [*topics, *topics.values()]
        topics.clear()
        let_go(left)
        if isinstance(failed, FormatError):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"register broker failed: the body of {header.broker_name} ({header.broker_addr}) cannot be "
                f"read: {failed}",
            ) from failed
        raise


def _checking_sum(expected: int | None, body: bytes) -> Generator[None, None, None]:
    if not expected:
        return
    crc = 0
    for start in range(0, len(body), CHECKSUM_STEP):
        crc = zlib.crc32(memoryview(body)[start : start + CHECKSUM_STEP], crc)
        yield
    if crc & 0x7FFFFFFF != expected:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "crc32 not match")


def _reader(header: RegisterBrokerHeader, body: bytes, version: int) -> CallSteps[RegistrationReader]:
    if not body:
        return RegistrationReader(DataVersion())
    if version < VERSION_REGISTER_BODY:
        read = yield lambda: RegistrationReader.old(body)
        assert read is not None
        old = read()
        assert isinstance(old, RegistrationReader)
        return old
    if header.compressed:
        return RegistrationReader.compressed(body, with_mapping=version >= VERSION_MAPPING)
    return (yield from RegistrationReader.reading_plain(body))


def checked_topic(topic: str) -> str:
    """The topic name, when clients and brokers can live with it. Raises RequestError."""
    return _checked_name("topic", topic)


def checked_queues(topic: str, shares: TopicConfig | QueueData) -> TopicQueues:
    """Queue counts and permission within bounds: clients loop over the counts. Raises RequestError."""
    for what, count in (
        ("readQueueNums", shares.read_queue_nums),
        ("writeQueueNums", shares.write_queue_nums),
    ):
        if not 0 <= count <= QUEUE_COUNT_MAX:
            raise _invalid(f"{what} of topic {_shown(topic)} is {count}, 0 to {QUEUE_COUNT_MAX} are allowed")
    if not 0 <= shares.perm <= PERM_MAX:
        raise _invalid(f"perm of topic {_shown(topic)} is {shares.perm}, 0 to {PERM_MAX} are allowed")
    return TopicQueues(shares.read_queue_nums, shares.write_queue_nums, shares.perm, shares.topic_sys_flag)


def _checked_name(what: str, name: str) -> str:
    if not name or name.isspace() or name in (".", ".."):
        raise _invalid(f"{what} {_shown(name)} is not a name")
    if len(name) > NAME_CHARS_MAX:
        raise _invalid(f"{what} has {len(name)} characters, {NAME_CHARS_MAX} are allowed: {_shown(name)}")
    if not FORBIDDEN_CHARS.isdisjoint(name):
        bad = next(char for char in name if char in FORBIDDEN_CHARS)
        raise _invalid(f"{what} {_shown(name)} contains {bad!r}, which is not allowed in names")
    return name


def _checked_addr(what: str, addr: str) -> str:
    """An address that somebody can dial: host:port. Raises RequestError."""
    host, _, port = addr.rpartition(":")
    good = host and len(addr) <= NAME_CHARS_MAX and port.isascii() and port.isdigit() and len(port) <= 5
    if not good or not 0 < int(port) <= 65535 or any(char.isspace() or char in '"\\,;' for char in host):
        raise _invalid(f"{what} {_shown(addr)} is not host:port")
    return addr


def _checked_id(broker_id: int) -> int:
    if broker_id < 0:
        raise _invalid(f"brokerId is {broker_id}, 0 (the master) or more is allowed")
    return broker_id


def _checked_timeout(timeout_ms: int | None) -> int:
    if timeout_ms is None:
        return DEFAULT_TIMEOUT_MS
    if not 0 < timeout_ms <= TIMEOUT_MS_MAX:
        raise _invalid(f"heartbeatTimeoutMillis is {timeout_ms}, 1 to {TIMEOUT_MS_MAX} are allowed")
    return timeout_ms


def _invalid(remark: str) -> RequestError:
    return RequestError(ResponseCode.INVALID_PARAMETER, remark)


def _shown(text: str) -> str:
    """A peer's text for a remark: quoted, escaped, short."""
    return repr(text if len(text) <= 64 else text[:64] + "…")
