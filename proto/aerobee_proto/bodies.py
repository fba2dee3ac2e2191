"""The JSON bodies of requests and answers, as typed values.

Touches  nothing.
Fields   snake_case here, RocketMQ's names on the wire. to_bytes() writes fastjson's form (javajson.dumps),
         to_standard() strictly valid JSON; from_bytes() reads both, ignores unknown members, takes null as absent.
Numbers  Java's int and long: what does not fit is FormatError. Timestamps are milliseconds since the epoch.

Invariants
- T.from_bytes(value.to_bytes()) == value for every body.
- Any bytes raise FormatError or give a value with every field of its declared type.
"""

import re
import zlib
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from functools import cache
from struct import Struct as Packing
from typing import Annotated, Any, Final, Self, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from aerobee_proto import javajson
from aerobee_proto.errors import FormatError
from aerobee_proto.javahash import java_hash
from aerobee_proto.javajson import MessageQueue
from aerobee_proto.steps import CallSteps, finished, finished_here

__all__ = [
    "LOOSE_SIZE_MAX",
    "REFERENCES_MAX",
    "AllDelayOffsets",
    "AllGroups",
    "AllTopics",
    "BrokerConsumeStats",
    "BrokerData",
    "BrokerMemberGroup",
    "BrokerMembers",
    "BrokerStatsData",
    "BrokerStatsItem",
    "CheckClientConfigBody",
    "ClientConnection",
    "ClusterInfo",
    "ConsumeMessageDirectlyResult",
    "ConsumeQueueData",
    "ConsumeStats",
    "ConsumeStatus",
    "ConsumeTimeSpan",
    "ConsumeTimeSpanBody",
    "ConsumerConnection",
    "ConsumerData",
    "ConsumerIdList",
    "ConsumerRunningInfo",
    "ConsumerStatusBody",
    "CorrectionOffsets",
    "DataVersion",
    "GroupConfigList",
    "GroupForbidden",
    "GroupList",
    "HaClientInfo",
    "HaConnectionInfo",
    "HaStatus",
    "HeartbeatData",
    "JsonBody",
    "KVTable",
    "LockBatchBody",
    "LockedQueues",
    "MessageQueue",
    "OffsetWrapper",
    "PopProcessQueueInfo",
    "ProcessQueueInfo",
    "ProducerConnection",
    "ProducerData",
    "ProducerInfo",
    "ProducerTableInfo",
    "QueryConsumeQueueBody",
    "QueueData",
    "QueueOffset",
    "RegisterBrokerBody",
    "RegistrationReader",
    "ResetOffsetBody",
    "ResetOffsetListBody",
    "SubscriptionBody",
    "SubscriptionData",
    "SubscriptionGroupConfig",
    "TopicConfig",
    "TopicConfigList",
    "TopicConfigWrapper",
    "TopicList",
    "TopicOffset",
    "TopicRouteData",
    "TopicStatsTable",
    "UnlockBatchBody",
    "convert",
    "decoded_size",
]

Int = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Long = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]

T = TypeVar("T")
S = TypeVar("S", bound=Struct)

TAG: Final = "TAG"
SQL92: Final = "SQL92"
SUBSCRIBE_ALL: Final = "*"
# Bounds of a registration: the compressed form inflated, and its pieces.
_REGISTER_SIZE_MAX: Final = 64 * 1024 * 1024  # bytes once inflated
_REGISTER_RATIO_MAX: Final = 100  # inflated to sent; ten thousand topics of numbered names come to 30
_REGISTER_RATIO_FREE: Final = 64 * 1024  # bytes that may be inflated whatever the ratio
_TOPIC_SIZE_MAX: Final = 64 * 1024  # bytes of one topic's text, or entry
_TOPIC_TOLERANT_SIZE_MAX: Final = 2048  # bytes of near-JSON of one topic: up to 2 us each
_TOPICS_MAX: Final = 250_000  # topics in one registration
_OUTLINE_LISTS_MAX: Final = 16_384  # "[" in a plain registration: filter servers have one, topics none
_OUTLINE_OBJECTS_MAX: Final = 2 * _TOPICS_MAX + 16  # "{": of a topic, and of its attributes
_OUTLINE_COMMAS_MAX: Final = 16 * _TOPICS_MAX
_OUTLINE_MAX: Final = {
    b"[": ("lists", _OUTLINE_LISTS_MAX),
    b"{": ("objects", _OUTLINE_OBJECTS_MAX),
    b",": ("commas", _OUTLINE_COMMAS_MAX),
}
_SERVERS_SIZE_MAX: Final = 64 * 1024  # bytes of the list of filter servers
# Bytes of the mapping of one static topic, and of a plain body that may have some.
_MAPPING_SIZE_MAX: Final = 24 * 1024
# Bytes of near-JSON in one registration: a second, so in a thread.
REGISTER_TOLERANT_SIZE_MAX: Final = 1024 * 1024
OBJECTS_MAX: Final = 16_384  # in a stranger's body: each is up to 3 us for whoever reads it and looks at it
VALUES_MAX: Final = 10 * OBJECTS_MAX  # commas: nothing that is kept has more members than that in its objects
# Bytes of a stranger's body that is not just as declared: nulls, references; and how many of the latter it may hold,
# each up to 3 us for whoever follows it.
LOOSE_SIZE_MAX: Final = 128 * 1024
REFERENCES_MAX: Final = 2048
# Bytes in memory of what a stranger's body becomes, at the most: of each object, of each value, of each byte of text.
OBJECT_SIZE: Final = 640
VALUE_SIZE: Final = 96
TEXT_SIZE: Final = 5  # one character beyond the others makes all of its text as wide
# Bytes that are looked at in one call: it holds all threads. 16 KiB take 40 us where they are full of what is counted.
_PART_SIZE: Final = 16 * 1024
_ENTRIES_A_STEP: Final = 128  # that are read in one step; one takes 1 us
_VERSION_SIZE_MAX: Final = 1024  # bytes of the data version
_LENGTH: Final = Packing(">i")


def decoded_size(data: bytes) -> int:
    """Bytes in memory of what a stranger's body is read into, at the most: maybe a hundred times what came."""
    objects = min(_count(data, b"{", OBJECTS_MAX), OBJECTS_MAX)
    values = min(_count(data, b",", VALUES_MAX), VALUES_MAX)
    return OBJECT_SIZE * objects + VALUE_SIZE * values + TEXT_SIZE * len(data)


def _counting(data: bytes, word: bytes, count_max: int) -> Generator[None, None, int]:
    """How often the word is in it, in steps; where it is more often than `count_max`, as far as that was found out."""
    count = 0
    for start in range(0, len(data), _PART_SIZE):
        count += data.count(word, start, start + _PART_SIZE + len(word) - 1)
        if count > count_max:
            break
        yield
    return count


def _count(data: bytes, character: bytes, count_max: int) -> int:
    return finished(_counting(data, character, count_max))


def convert(value: Any, target: type[T]) -> T:
    """A decoded JSON value as `target`: numbers may stand as text, null counts as absent. FormatError otherwise."""
    try:
        return msgspec.convert(_prepared(value), target, strict=False, str_keys=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise FormatError(f"not a {_name_of(target)}: {error}") from error


def _name_of(target: Any) -> str:
    return getattr(target, "__name__", str(target))


def _prepared(value: Any) -> Any:
    """`value` without null members, and with message queues for keys that hold one as text."""
    if isinstance(value, Mapping):
        return {_prepared_key(key): _prepared(member) for key, member in value.items() if member is not None}
    if isinstance(value, list):
        return [_prepared(member) for member in value]
    return value


_QUEUE_MEMBER: Final = re.compile("topic|brokerName|queueId")


def _prepared_key(key: Any) -> Any:
    if not (isinstance(key, str) and key.startswith("{") and _QUEUE_MEMBER.search(key)):
        return key
    try:
        return javajson.message_queue_of(key)
    except FormatError:
        return key  # a text after all, or msgspec says what is wrong with it


@cache
def _decoder_of(cls: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(cls, strict=False)


class JsonBody(Struct, rename="camel", kw_only=True):
    """Base of all JSON bodies."""

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, size_max: int = javajson.SIZE_MAX) -> Self:
        """Read a body; FormatError when it is broken, over `size_max` bytes or of another form."""
        decoder: msgspec.json.Decoder[Self] = _decoder_of(cls)
        try:
            if len(data) <= size_max:
                return decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # raw keys, nulls, text keys that hold queues, or broken: the tolerant way tells
        return convert(javajson.loads(data, size_max), cls)

    @classmethod
    def from_stranger(cls, data: bytes) -> Self:
        """As from_bytes, for what anybody may have sent: the work is in proportion to the size, and small for a body
        that is not standard JSON in just this form (LOOSE_SIZE_MAX, REFERENCES_MAX, javajson.TOLERANT_SIZE_MAX).
        """
        return cls._from_counted(data, finished(cls._counted(data)))

    @classmethod
    def _from_counted(cls, data: bytes, references: int) -> Self:
        """A stranger's body that has no more of anything than is read, and so many references."""
        decoder: msgspec.json.Decoder[Self] = _decoder_of(cls)
        reason = "it holds references"
        if not references:
            try:
                return decoder.decode(data)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                reason = str(error)
        if len(data) > LOOSE_SIZE_MAX:
            raise FormatError(
                f"not a {cls.__name__}: {reason}; a body of more than {LOOSE_SIZE_MAX} bytes must be standard JSON, "
                "without null and references"
            )
        return convert(javajson.loads(data, tolerant_size_max=javajson.TOLERANT_SIZE_MAX), cls)

    @classmethod
    def reading(cls, data: bytes) -> Generator[None, None, Self]:
        """As from_stranger, in steps: forms that may be large say how. All others are read in one."""
        yield
        return cls.from_stranger(data)

    @classmethod
    def _reading_parts(cls, data: bytes, parts: Generator[None, None, Self]) -> Generator[None, None, Self]:
        """What `parts` reads of standard JSON. Other texts are read as by from_stranger: it says what is wrong, or is
        tolerant."""
        references = yield from cls._counted(data)
        yield
        if not references:
            with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return (yield from parts)
        return cls._from_counted(data, references)

    @classmethod
    def _counted(cls, data: bytes) -> Generator[None, None, int]:
        """How many references a stranger's body has. FormatError when it has more of anything than is read."""
        objects = yield from _counting(data, b"{", OBJECTS_MAX)
        if objects > OBJECTS_MAX:
            raise FormatError(
                f"not a {cls.__name__}: {objects} or more objects, at most {OBJECTS_MAX} are read at once; "
                "send it in parts"
            )
        values = yield from _counting(data, b",", VALUES_MAX)
        if values > VALUES_MAX:
            raise FormatError(
                f"not a {cls.__name__}: {values} or more commas, at most {VALUES_MAX} are read at once; "
                "send it in parts"
            )
        references = yield from _counting(data, b"$ref", REFERENCES_MAX)
        if references > REFERENCES_MAX:
            raise FormatError(
                f"not a {cls.__name__}: {references} references, at most {REFERENCES_MAX} are followed at once; "
                "write the values out"
            )
        return references

    def to_bytes(self) -> bytes:
        """The body as fastjson writes it."""
        return javajson.dumps(self)

    def to_standard(self) -> bytes:
        """The body as strictly valid JSON, in ASCII."""
        return javajson.dumps_standard(self)


# --- common value objects -----------------------------------------------------------------------------------


class DataVersion(JsonBody):
    """Version of a table that brokers replicate; equal only if all three are equal."""

    counter: Long = 0
    state_version: Long = 0
    timestamp: Long = 0

    def next(self, now_ms: int) -> "DataVersion":
        """The version after one more change, made at `now_ms`."""
        return DataVersion(counter=self.counter + 1, state_version=self.state_version, timestamp=now_ms)


class TopicConfig(JsonBody):
    """A topic on one broker."""

    topic_name: str = ""
    read_queue_nums: Int = 16
    write_queue_nums: Int = 16
    perm: Int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)


class QueueData(JsonBody):
    """How many queues of a topic one broker has."""

    broker_name: str = ""
    perm: Int = 0
    read_queue_nums: Int = 0
    topic_sys_flag: Int = 0
    write_queue_nums: Int = 0


class BrokerData(JsonBody):
    """Addresses of one broker name: broker id (0 is the master) to `host:port`."""

    broker_addrs: dict[Long, str] = field(default_factory=dict)
    broker_name: str = ""
    cluster: str | None = None
    enable_acting_master: bool = False
    zone_name: str | None = None


class TopicRouteData(JsonBody):
    """Where a topic lives (105). to_bytes for clients older than 4.9.4 and Go, to_standard for the others."""

    broker_datas: list[BrokerData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = field(default_factory=list)
    topic_queue_mapping_by_broker: dict[str, Any] | None = None


class ClusterInfo(JsonBody):
    """All brokers (106)."""

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)


class BrokerMembers(JsonBody):
    """Members of one broker name."""

    broker_addrs: dict[Long, str] = field(default_factory=dict)
    broker_name: str = ""
    cluster: str | None = None


class BrokerMemberGroup(JsonBody):
    """Answer to 901."""

    broker_member_group: BrokerMembers | None = None


class KVTable(JsonBody):
    """A table of texts: runtime information (28), key-value configuration (219)."""

    table: dict[str, str] = field(default_factory=dict)


class TopicList(JsonBody):
    """Topic names (206, 224, 304, 305, 311-313, 343)."""

    broker_addr: str | None = None
    topic_list: list[str] = field(default_factory=list)


class GroupList(JsonBody):
    """Group names (300)."""

    group_list: list[str] = field(default_factory=list)


# --- subscriptions, heartbeats, connections ------------------------------------------------------------------


class SubscriptionData(JsonBody, gc=False):
    """What a group wants of one topic. The sets are empty for `*` and for SQL92; sub_version is a timestamp.

    There may be thousands in one heartbeat: nothing of it can be in a circle, and empty sets are one object.
    """

    class_filter_mode: bool = False
    code_set: frozenset[Int] = frozenset()
    expression_type: str = TAG
    sub_string: str = SUBSCRIBE_ALL
    sub_version: Long = 0
    tags_set: frozenset[str] = frozenset()
    topic: str = ""

    @classmethod
    def of_tags(cls, topic: str, expression: str | None, sub_version: int = 0) -> Self:
        """A subscription by tags: `*`, empty or None for all, else tags separated by `||`.

        Raises FormatError when the expression holds separators only.
        """
        if not expression or expression == SUBSCRIBE_ALL:
            return cls(topic=topic, sub_version=sub_version)
        if not any(expression.split("||")):
            raise FormatError(f"tag expression {expression[:64]!r} names no tag")
        tags = frozenset(tag for piece in expression.split("||") if (tag := _java_trim(piece)))
        return cls(
            topic=topic,
            sub_string=expression,
            sub_version=sub_version,
            tags_set=tags,
            code_set=frozenset(map(java_hash, tags)),
        )


def _java_trim(text: str) -> str:
    """`text` without leading and trailing characters up to U+0020, as Java's trim."""
    return text.strip("".join(map(chr, range(33))))


class ConsumerData(JsonBody):
    """One consumer group of a client."""

    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    consume_type: str = "CONSUME_PASSIVELY"
    group_name: str = ""
    message_model: str = "CLUSTERING"
    subscription_data_set: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False


class ProducerData(JsonBody):
    """One producer group of a client."""

    group_name: str = ""


class HeartbeatData(JsonBody):
    """What a client tells every broker regularly (34)."""

    client_id: str = field(default="", name="clientID")
    consumer_data_set: list[ConsumerData] = field(default_factory=list)
    heartbeat_fingerprint: Int = 0
    producer_data_set: list[ProducerData] = field(default_factory=list)
    without_sub: bool = False

    @classmethod
    def reading(cls, data: bytes) -> Generator[None, None, Self]:
        """As from_stranger, in steps of a fraction of a millisecond each but for one look at the whole, which takes
        some 2 ms a MiB: for a client with thousands of subscriptions.
        """
        return cls._reading_parts(data, cls._parts(data))

    @classmethod
    def _parts(cls, data: bytes) -> Generator[None, None, Self]:
        outline = _decoder_of(_HeartbeatOutline).decode(data)
        yield
        consumers = yield from _read_consumers(outline.consumer_data_set)
        producers = yield from _read_each(outline.producer_data_set, ProducerData)
        return cls(
            client_id=outline.client_id,
            consumer_data_set=consumers,
            heartbeat_fingerprint=outline.heartbeat_fingerprint,
            producer_data_set=producers,
            without_sub=outline.without_sub,
        )


class _HeartbeatOutline(Struct, rename="camel"):
    """A HeartbeatData whose lists are still text."""

    client_id: str = field(default="", name="clientID")
    consumer_data_set: msgspec.Raw = msgspec.Raw(b"[]")
    heartbeat_fingerprint: Int = 0
    producer_data_set: msgspec.Raw = msgspec.Raw(b"[]")
    without_sub: bool = False


class _ConsumerOutline(Struct, rename="camel"):
    """A ConsumerData whose subscriptions are still text."""

    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    consume_type: str = "CONSUME_PASSIVELY"
    group_name: str = ""
    message_model: str = "CLUSTERING"
    subscription_data_set: msgspec.Raw = msgspec.Raw(b"[]")
    unit_mode: bool = False


def _read_consumers(texts: msgspec.Raw) -> Generator[None, None, list[ConsumerData]]:
    """What stands in a list of them."""
    read: list[ConsumerData] = []
    for outline in (yield from _read_each(texts, _ConsumerOutline)):
        subscriptions = yield from _read_each(outline.subscription_data_set, SubscriptionData)
        consumer = ConsumerData(
            consume_from_where=outline.consume_from_where,
            consume_type=outline.consume_type,
            group_name=outline.group_name,
            message_model=outline.message_model,
            subscription_data_set=subscriptions,
            unit_mode=outline.unit_mode,
        )
        read.append(consumer)
        yield
    return read


def _read_each(texts: msgspec.Raw, form: type[S]) -> Generator[None, None, list[S]]:
    """What stands in a list."""
    read: list[S] = []
    decode = _decoder_of(form).decode
    for text in _decoder_of(list[msgspec.Raw]).decode(texts):
        read.append(decode(text))
        if len(read) % _ENTRIES_A_STEP == 0:
            yield
    return read


class ClientConnection(JsonBody):
    """One connected client."""

    client_addr: str = ""
    client_id: str = ""
    language: str = "JAVA"
    version: Int = 0


class ConsumerConnection(JsonBody):
    """Who consumes in a group, and what (203)."""

    connection_set: list[ClientConnection] = field(default_factory=list)
    consume_from_where: str | None = None
    consume_type: str | None = None
    message_model: str | None = None
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)


class ProducerConnection(JsonBody):
    """Who produces in a group (204)."""

    connection_set: list[ClientConnection] = field(default_factory=list)


class ProducerInfo(JsonBody):
    """One connected producer."""

    client_id: str = ""
    language: str = "JAVA"
    last_update_timestamp: Long = 0
    remote_ip: str = field(default="", name="remoteIP")
    version: Int = 0


class ProducerTableInfo(JsonBody):
    """All producers by group (328)."""

    data: dict[str, list[ProducerInfo]] = field(default_factory=dict)


class ConsumerIdList(JsonBody):
    """Client ids of a group (38)."""

    consumer_id_list: list[str] = field(default_factory=list)


class CheckClientConfigBody(JsonBody):
    """A subscription to be checked before it is used (46)."""

    client_id: str = ""
    group: str = ""
    namespace: str | None = None
    subscription_data: SubscriptionData | None = None


class SubscriptionBody(JsonBody):
    """One subscription of a group (345)."""

    group: str = ""
    subscription_data: SubscriptionData | None = None
    topic: str = ""


def _default_retry_policy() -> dict[str, Any]:
    return {"type": "CUSTOMIZED"}


class SubscriptionGroupConfig(JsonBody):
    """A consumer group on one broker."""

    attributes: dict[str, str] = field(default_factory=dict)
    broker_id: Long = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_message_orderly: bool = False
    consume_timeout_minute: Int = 15
    group_name: str = ""
    group_retry_policy: dict[str, Any] = field(default_factory=_default_retry_policy)
    group_sys_flag: Int = 0
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: Int = 16
    retry_queue_nums: Int = 1
    subscription_data_set: list[dict[str, Any]] | None = None
    which_broker_when_consume_slowly: Long = 1


class GroupConfigList(JsonBody):
    """Several groups at once (225)."""

    group_config_list: list[SubscriptionGroupConfig] = field(default_factory=list)


class AllGroups(JsonBody):
    """All groups of a broker (201)."""

    data_version: DataVersion = field(default_factory=DataVersion)
    forbidden_table: dict[str, dict[str, Int]] = field(default_factory=dict)
    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)


class GroupForbidden(JsonBody):
    """Whether a group may read a topic (353)."""

    group: str = ""
    readable: bool = True
    topic: str = ""


# --- topics and registration ---------------------------------------------------------------------------------


class TopicConfigList(JsonBody):
    """Several topics at once (18)."""

    topic_config_list: list[TopicConfig] = field(default_factory=list)


class TopicConfigWrapper(JsonBody):
    """All topics of a broker (21; inside 103)."""

    data_version: DataVersion = field(default_factory=DataVersion)
    mapping_data_version: DataVersion = field(default_factory=DataVersion)
    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    topic_queue_mapping_detail_map: dict[str, Any] = field(default_factory=dict)
    topic_queue_mapping_info_map: dict[str, Any] = field(default_factory=dict)


class AllTopics(TopicConfigWrapper):
    """What 21 answers here: `deleted_topics` are those that were deleted, each with the log's end at that time.
    RocketMQ has no such field, and passes over it."""

    deleted_topics: dict[str, Long] = field(default_factory=dict)


class RegisterBrokerBody(JsonBody):
    """What a broker tells the nameserver (103): plain JSON, or the compressed form below.

    Compressed: a zlib stream of: i32 length and JSON of data_version | i32 topic count | per topic i32 length and
    text `name read write perm filterType {attributes}` | i32 length and JSON array of filter servers | from
    version 413 on: i32 count of static mappings | per mapping i32 length and JSON.
    """

    filter_server_list: list[str] = field(default_factory=list)
    topic_config_serialize_wrapper: TopicConfigWrapper = field(default_factory=TopicConfigWrapper)

    @classmethod
    def from_wrapper_bytes(cls, data: bytes) -> Self:
        """The body of brokers older than version 37: the topics alone."""
        if len(data) > REGISTER_TOLERANT_SIZE_MAX:
            raise FormatError(
                f"{len(data)} bytes of a broker this old; at most {REGISTER_TOLERANT_SIZE_MAX} are read"
            )
        return cls(topic_config_serialize_wrapper=TopicConfigWrapper.from_bytes(data))

    @classmethod
    def from_stranger(cls, data: bytes) -> Self:
        """As of every body. A large one is read topic by topic, so that no single step takes long. Static mappings are
        left out then. Near-JSON may have REGISTER_TOLERANT_SIZE_MAX bytes.
        """
        return cls._whole(RegistrationReader.plain(data))

    @classmethod
    def from_compressed(cls, data: bytes, *, with_mapping: bool) -> Self:
        """Read the compressed form; FormatError when it is broken or beyond its bounds once inflated."""
        return cls._whole(RegistrationReader.compressed(data, with_mapping=with_mapping))

    @classmethod
    def _whole(cls, reader: "RegistrationReader") -> Self:
        topics = dict(reader.topics())
        wrapper = TopicConfigWrapper(
            data_version=reader.data_version,
            topic_config_table=topics,
            topic_queue_mapping_info_map=reader.mappings,
        )
        return cls(filter_server_list=reader.filter_servers, topic_config_serialize_wrapper=wrapper)

    def to_compressed(self, *, with_mapping: bool) -> bytes:
        """The compressed form. It does not carry topic_sys_flag and order of a topic."""
        wrapper = self.topic_config_serialize_wrapper
        topics = [_topic_to_text(topic).encode() for topic in wrapper.topic_config_table.values()]
        pieces = [_piece(wrapper.data_version.to_bytes()), _LENGTH.pack(len(topics)), *map(_piece, topics)]
        pieces.append(_piece(javajson.dumps(self.filter_server_list)))
        if with_mapping:
            infos = list(wrapper.topic_queue_mapping_info_map.values())
            pieces.append(_LENGTH.pack(len(infos)))
            pieces += [_piece(javajson.dumps(info)) for info in infos]
        return zlib.compress(b"".join(pieces))


class RegistrationReader:
    """Reads a registration topic by topic, so that no single step takes long and little is in memory at a time. For
    what is large and compressed a thread is the place.

    `data_version`, `filter_servers` and `mappings` are there when `topics()` has been walked to its end.
    """

    def __init__(self, data_version: DataVersion) -> None:
        self.data_version = data_version
        self.filter_servers: list[str] = []
        self.mappings: dict[str, Any] = {}
        self._topics: Iterator[tuple[str, TopicConfig]] = iter(())

    def topics(self) -> Iterator[tuple[str, TopicConfig]]:
        """Names and topics; FormatError where the body is broken. To be walked once."""
        return self._topics

    @classmethod
    def old(cls, data: bytes) -> Self:
        """The body of brokers older than version 37."""
        return cls._of(RegisterBrokerBody.from_wrapper_bytes(data))

    @classmethod
    def _of(cls, body: RegisterBrokerBody) -> Self:
        wrapper = body.topic_config_serialize_wrapper
        reader = cls(wrapper.data_version)
        reader.filter_servers = body.filter_server_list
        reader.mappings = wrapper.topic_queue_mapping_info_map
        reader._topics = iter(wrapper.topic_config_table.items())
        return reader

    @classmethod
    def plain(cls, data: bytes) -> Self:
        """Plain JSON. Of large bodies static mappings are left out, and REGISTER_TOLERANT_SIZE_MAX bytes of
        near-JSON are read.
        """
        return finished_here(cls.reading_plain(data))

    @classmethod
    def reading_plain(cls, data: bytes) -> CallSteps[Self]:
        """As plain(), in steps, of what is done before any topic."""
        if len(data) <= javajson.TOLERANT_SIZE_MAX:
            return cls._of(super(RegisterBrokerBody, RegisterBrokerBody).from_stranger(data))
        if len(data) <= _MAPPING_SIZE_MAX and b"$ref" not in data:
            with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return cls._of(_decoder_of(RegisterBrokerBody).decode(data))
        yield from _checking_outline(data)
        reader = cls(DataVersion())
        if len(data) > REGISTER_TOLERANT_SIZE_MAX:
            table = yield from _table_of_topics(data)
            if table is not None:
                reader._topics = reader._around(data, table)
                return reader
        try:
            wrapper = reader._outlined(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if len(data) > REGISTER_TOLERANT_SIZE_MAX:
                raise _not_standard(error) from error
            read = yield lambda: convert(javajson.loads(data), RegisterBrokerBody)
            assert read is not None
            body = read()
            assert isinstance(body, RegisterBrokerBody)
            return cls._of(body)
        reader._topics = _walked(bytes(wrapper.topic_config_table))
        return reader

    def _outlined(self, data: bytes) -> "_SlicedWrapper":
        """Read all but the topics. One call, which holds all threads."""
        body = _decoder_of(_SlicedBody).decode(data)
        servers = bytes(body.filter_server_list)
        if len(servers) > _SERVERS_SIZE_MAX:
            raise FormatError(f"the filter servers have {len(servers)} bytes, at most {_SERVERS_SIZE_MAX}")
        wrapper: _SlicedWrapper = body.topic_config_serialize_wrapper
        self.data_version = wrapper.data_version
        self.filter_servers = convert(_strict(servers), list[str])
        return wrapper

    def _around(self, data: bytes, table: int) -> Iterator[tuple[str, TopicConfig]]:
        """The topics of the table that begins there, and then what stands around it."""
        end = yield from _sliced_topics(data, table)
        try:
            wrapper = self._outlined(b"".join((data[:table], _CUT_OUT, data[end:])))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _not_standard(error) from error
        if bytes(wrapper.topic_config_table) != _CUT_OUT:
            raise FormatError(
                "the table of topics is not where it belongs, in the topicConfigSerializeWrapper"
            )

    @classmethod
    def compressed(cls, data: bytes, *, with_mapping: bool) -> Self:
        """The compressed form; FormatError when it is broken or beyond its bounds once inflated."""
        pieces = _PieceReader(_inflate(data))
        reader = cls(DataVersion.from_stranger(pieces.piece(_VERSION_SIZE_MAX)))
        reader._topics = reader._walk(pieces, with_mapping=with_mapping)
        return reader

    def _walk(self, pieces: "_PieceReader", *, with_mapping: bool) -> Iterator[tuple[str, TopicConfig]]:
        for _ in range(pieces.count("topics", _TOPICS_MAX)):
            topic = _topic_from_text(pieces.piece(_TOPIC_SIZE_MAX).decode("utf-8", "replace"))
            yield topic.topic_name, topic
        self.filter_servers = convert(_strict(pieces.piece(_SERVERS_SIZE_MAX) or b"[]"), list[str])
        if not with_mapping or pieces.is_done:
            return
        tolerated = REGISTER_TOLERANT_SIZE_MAX
        for _ in range(pieces.count("mappings", _TOPICS_MAX)):
            piece = pieces.piece(_MAPPING_SIZE_MAX)
            tolerated -= len(piece) + _LENGTH.size
            if tolerated < 0:
                raise FormatError(f"the mappings take more than {REGISTER_TOLERANT_SIZE_MAX} bytes")
            info = convert(javajson.loads(piece), dict[str, Any])
            self.mappings[str(info.get("topic", ""))] = info


def _checking_outline(data: bytes) -> Generator[None, None, None]:
    """What makes one pass over 16 MiB long is refused before: it holds all threads."""
    counts = dict.fromkeys(_OUTLINE_MAX, 0)
    for start in range(0, len(data), _PART_SIZE):
        for mark, (what, count_max) in _OUTLINE_MAX.items():
            counts[mark] += data.count(mark, start, start + _PART_SIZE)
            if counts[mark] > count_max:
                raise FormatError(
                    f"the registration has {counts[mark]} or more {what}, at most {count_max} are allowed"
                )
        yield
    if len((yield from _places(data, b'"topicConfigSerializeWrapper"'))) > 1:
        raise FormatError("the registration has two or more tables of topics, at most 1 is allowed")


def _places(data: bytes, mark: bytes) -> Generator[None, None, list[int]]:
    """Where this stands in it: nowhere, at one place, or at two places or more, of which these are the first two."""
    found: list[int] = []
    for start in range(0, len(data), _PART_SIZE):
        end = start + _PART_SIZE + len(mark) - 1
        at = data.find(mark, start, end)
        while at >= 0:
            found.append(at)
            if len(found) == 2:
                return found
            at = data.find(mark, at + 1, end)
        yield
    return found


class _SlicedWrapper(Struct, rename="camel"):
    """A TopicConfigWrapper whose table is still text."""

    data_version: DataVersion = field(default_factory=DataVersion)
    topic_config_table: msgspec.Raw = msgspec.Raw(b"{}")


class _SlicedBody(Struct, rename="camel"):
    """A RegisterBrokerBody whose tables are still text."""

    filter_server_list: msgspec.Raw = msgspec.Raw(b"[]")
    topic_config_serialize_wrapper: _SlicedWrapper = field(default_factory=_SlicedWrapper)


# `"name":{...}` and the comma or brace behind it; one level of objects inside, for the attributes.
_TOPIC_ENTRY: Final = re.compile(
    rb'\s*+"((?:[^"\\]|\\.){0,1024}+)"\s*+:\s*+'
    rb"(\{[^{}]{0,16384}+(?:\{[^{}]{0,16384}+\}[^{}]{0,1024}+){0,16}+\})\s*+([,}])",
    re.DOTALL,
)


# Where the table begins. Text within a string has no quote that is not escaped.
_TABLE_NAME: Final = b'"topicConfigTable"'
_TABLE_OPENING: Final = re.compile(rb'"topicConfigTable"\s*+:\s*+(?=\{)')
_TABLE_EMPTY: Final = re.compile(rb"\{\s*+\}")
_CUT_OUT: Final = b"{ }"  # stands for a table that was read already


def _table_of_topics(data: bytes) -> Generator[None, None, int | None]:
    """Where the one table of topics begins; None: there is none, or that cannot be told by looking."""
    places = yield from _places(data, _TABLE_NAME)
    opening = _TABLE_OPENING.match(data, places[0]) if len(places) == 1 else None
    return None if opening is None else opening.end()


def _walked(table: bytes) -> Iterator[tuple[str, TopicConfig]]:
    """The topics of a table that is all of this text."""
    end = yield from _sliced_topics(table, 0)
    if table[end:].strip():
        raise FormatError(f"the table of topics goes on at byte {end}")


def _sliced_topics(data: bytes, table: int) -> Generator[tuple[str, TopicConfig], None, int]:
    """The topics of a table that is standard JSON and begins there, one by one; where it ends."""
    decoder = _decoder_of(TopicConfig)
    at, closing, count, tolerated = table + 1, b",", 0, REGISTER_TOLERANT_SIZE_MAX
    empty = _TABLE_EMPTY.match(data, table)
    if empty is not None:
        return empty.end()
    while closing == b",":
        entry = _TOPIC_ENTRY.match(data, at)
        if entry is None:
            raise FormatError(f"the table of topics cannot be read at byte {at}, near {data[at : at + 40]!r}")
        name, text, closing = entry.groups()
        count += 1
        if count > _TOPICS_MAX:
            raise FormatError(f"the registration has more than {_TOPICS_MAX} topics")
        try:
            topic = decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            tolerated -= len(text)
            if tolerated < 0 or len(text) > _TOPIC_TOLERANT_SIZE_MAX:
                raise FormatError(f"not a topic: {error}") from error
            topic = convert(javajson.loads(text), TopicConfig)
        yield str(_strict(b'"' + name + b'"')) if b"\\" in name else name.decode("utf-8", "replace"), topic
        at = entry.end()
    return at


def _not_standard(error: Exception) -> FormatError:
    return FormatError(
        f"not a RegisterBrokerBody: {error}; a body of more than {REGISTER_TOLERANT_SIZE_MAX} bytes "
        "must be standard JSON, without null"
    )


def _piece(raw: bytes) -> bytes:
    return _LENGTH.pack(len(raw)) + raw


def _inflate(data: bytes) -> bytes:
    size_max = min(_REGISTER_SIZE_MAX, max(_REGISTER_RATIO_FREE, _REGISTER_RATIO_MAX * len(data)))
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(data, size_max)
    except zlib.error as error:
        raise FormatError(f"the compressed registration is broken: {error}") from error
    if inflater.unconsumed_tail:
        raise FormatError(
            f"the registration of {len(data)} bytes is larger than {size_max} bytes once inflated"
        )
    return raw


def _strict(raw: bytes) -> Any:
    """The value of standard JSON."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"not standard JSON: {error}") from error


class _PieceReader:
    """Reads the length-prefixed pieces of an inflated registration."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    @property
    def is_done(self) -> bool:
        return self._at == len(self._raw)

    def _number(self) -> int:
        if len(self._raw) - self._at < 4:
            raise FormatError(f"the registration ends at byte {len(self._raw)} where a length should be")
        (value,) = _LENGTH.unpack_from(self._raw, self._at)
        self._at += 4
        return int(value)

    def piece(self, size_max: int) -> bytes:
        length = self._number()
        if not 0 <= length <= len(self._raw) - self._at:
            raise FormatError(f"a piece of the registration claims {length} bytes at {self._at}")
        if length > size_max:
            raise FormatError(
                f"a piece of the registration at {self._at} has {length} bytes, at most {size_max} are allowed"
            )
        piece = self._raw[self._at : self._at + length]
        self._at += length
        return piece

    def count(self, what: str, count_max: int) -> int:
        # Each counted piece takes at least its length field.
        count = self._number()
        if not 0 <= count <= (len(self._raw) - self._at) // 4:
            raise FormatError(f"the registration claims {count} {what}")
        if count > count_max:
            raise FormatError(f"the registration has {count} {what}, at most {count_max} are allowed")
        return count


def _topic_from_text(text: str) -> TopicConfig:
    parts = text.split(" ", 5)
    if len(parts) < 5:
        raise FormatError(f"topic {text[:64]!r} has {len(parts)} of its 5 parts")
    fields: dict[str, Any] = {
        "topicName": parts[0],
        "readQueueNums": parts[1],
        "writeQueueNums": parts[2],
        "perm": parts[3],
        "topicFilterType": parts[4],
    }
    if len(parts) == 6 and parts[5].strip():
        fields["attributes"] = _strict(parts[5].encode())
    return convert(fields, TopicConfig)


def _topic_to_text(topic: TopicConfig) -> str:
    numbers = f"{topic.read_queue_nums} {topic.write_queue_nums} {topic.perm}"
    attributes = javajson.dumps(topic.attributes).decode()
    return f"{topic.topic_name} {numbers} {topic.topic_filter_type} {attributes}"


# --- offsets, statistics, locks -------------------------------------------------------------------------------


class TopicOffset(JsonBody, gc=False):
    """State of one queue: offsets are queue offsets, max_offset is the next one to be written."""

    last_update_timestamp: Long = 0
    max_offset: Long = 0
    min_offset: Long = 0


class TopicStatsTable(JsonBody):
    """State of every queue of a topic (202)."""

    offset_table: dict[MessageQueue, TopicOffset] = field(default_factory=dict)
    topic_put_tps: float = 0.0


class OffsetWrapper(JsonBody, gc=False):
    """How far a group is in one queue."""

    broker_offset: Long = 0
    consumer_offset: Long = 0
    last_timestamp: Long = 0
    pull_offset: Long = 0


class ConsumeStats(JsonBody):
    """How far a group is everywhere (208)."""

    consume_tps: float = 0.0
    offset_table: dict[MessageQueue, OffsetWrapper] = field(default_factory=dict)


class BrokerConsumeStats(JsonBody):
    """How far every group of a broker is (317)."""

    broker_addr: str | None = None
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = field(default_factory=list)
    total_diff: Long = 0
    total_inflight_diff: Long = 0


class ResetOffsetBody(JsonBody):
    """Queue offset by queue (220 request, 222 answer)."""

    offset_table: dict[MessageQueue, Long] = field(default_factory=dict)


class QueueOffset(JsonBody, gc=False):
    """One queue's queue offset, as an entry of a list."""

    broker_name: str = ""
    offset: Long = 0
    queue_id: Int = 0
    topic: str = ""


class ResetOffsetListBody(JsonBody):
    """ResetOffsetBody for clients written in C++, which read no objects as keys (220)."""

    offset_table: list[QueueOffset] = field(default_factory=list)


class ConsumerStatusBody(JsonBody):
    """Queue offset by queue (221), and that by client id (223)."""

    consumer_table: dict[str, dict[MessageQueue, Long]] | None = None
    message_queue_table: dict[MessageQueue, Long] = field(default_factory=dict)


class CorrectionOffsets(JsonBody):
    """Queue offset by queue id (308)."""

    correction_offsets: dict[Int, Long] = field(default_factory=dict)


class AllDelayOffsets(JsonBody):
    """How far each delay level is (45): level -> queue offset."""

    data_version: DataVersion = field(default_factory=DataVersion)
    offset_table: dict[Int, Long] = field(default_factory=dict)


class ConsumeTimeSpan(JsonBody, gc=False):
    """Store times at the ends of one queue and at the consumer's place; delay_time in milliseconds."""

    consume_time_stamp: Long = 0
    delay_time: Long = 0
    max_time_stamp: Long = 0
    message_queue: MessageQueue | None = None
    min_time_stamp: Long = 0


class ConsumeTimeSpanBody(JsonBody):
    """Answer to 303."""

    consume_time_span_set: list[ConsumeTimeSpan] = field(default_factory=list)


class LockBatchBody(JsonBody):
    """Queues that a client wants for itself (41)."""

    client_id: str = ""
    consumer_group: str = ""
    mq_set: list[MessageQueue] = field(default_factory=list)
    only_this_broker: bool = False

    @classmethod
    def reading(cls, data: bytes) -> Generator[None, None, Self]:
        """As from_stranger, in steps of a fraction of a millisecond each but for one look at the whole, which takes
        some 2 ms a MiB: for a client that has thousands of queues.
        """
        return cls._reading_parts(data, cls._parts(data))

    @classmethod
    def _parts(cls, data: bytes) -> Generator[None, None, Self]:
        outline = _decoder_of(_LockBatchOutline).decode(data)
        yield
        queues = yield from _read_each(outline.mq_set, MessageQueue)
        return cls(
            client_id=outline.client_id,
            consumer_group=outline.consumer_group,
            mq_set=queues,
            only_this_broker=outline.only_this_broker,
        )


class _LockBatchOutline(Struct, rename="camel"):
    """A LockBatchBody whose queues are still text."""

    client_id: str = ""
    consumer_group: str = ""
    mq_set: msgspec.Raw = msgspec.Raw(b"[]")
    only_this_broker: bool = False


class UnlockBatchBody(LockBatchBody):
    """Queues that a client gives back (42)."""


class LockedQueues(JsonBody):
    """Queues that the client holds now (answer to 41)."""

    locked: list[MessageQueue] = field(default_factory=list, name="lockOKMQSet")


class ConsumeQueueData(JsonBody):
    """One entry of a consume queue; physic_offset and physic_size in bytes, tags_code the stored hash."""

    bit_map: str | None = None
    eval: bool = False
    extend_data_json: str | None = None
    msg: str | None = None
    physic_offset: Long = 0
    physic_size: Int = 0
    tags_code: Long = 0


class QueryConsumeQueueBody(JsonBody):
    """Entries of a consume queue (321); the indexes are queue offsets."""

    filter_data: str | None = None
    max_queue_index: Long = 0
    min_queue_index: Long = 0
    queue_data: list[ConsumeQueueData] = field(default_factory=list)
    subscription_data: SubscriptionData | None = None


class HaConnectionInfo(JsonBody):
    """One replica as its master sees it; offsets in bytes of the commit log."""

    addr: str = ""
    diff: Long = 0
    in_sync: bool = False
    slave_ack_offset: Long = 0
    transfer_from_where: Long = 0
    transferred_byte_in_second: Long = 0


class HaClientInfo(JsonBody):
    """A replica's own view of its connection to the master; all zero on a master."""

    activated: bool = False
    last_read_timestamp: Long = 0
    last_write_timestamp: Long = 0
    master_addr: str | None = None
    master_flush_offset: Long = 0
    max_offset: Long = 0
    transferred_byte_in_second: Long = 0


class HaStatus(JsonBody):
    """State of replication (907)."""

    ha_client_runtime_info: HaClientInfo = field(default_factory=HaClientInfo)
    ha_connection_info: list[HaConnectionInfo] = field(default_factory=list)
    in_sync_slave_nums: Int = 0
    master: bool = True
    master_commit_log_max_offset: Long = 0


class BrokerStatsItem(JsonBody):
    """One statistic over one span of time."""

    avgpt: float = 0.0
    sum: Long = 0
    tps: float = 0.0


class BrokerStatsData(JsonBody):
    """One statistic over a day, an hour, a minute (315)."""

    stats_day: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    stats_hour: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    stats_minute: BrokerStatsItem = field(default_factory=BrokerStatsItem)


# --- what a consumer tells of itself --------------------------------------------------------------------------


class ProcessQueueInfo(JsonBody):
    """The local state of one assigned queue; times in ms since the epoch, `droped` is the wire's spelling."""

    cached_msg_count: Int = 0
    cached_msg_max_offset: Long = 0
    cached_msg_min_offset: Long = 0
    cached_msg_size_in_mi_b: Int = field(default=0, name="cachedMsgSizeInMiB")
    commit_offset: Long = 0
    droped: bool = False
    last_consume_timestamp: Long = 0
    last_lock_timestamp: Long = 0
    last_pull_timestamp: Long = 0
    locked: bool = False
    transaction_msg_count: Int = 0
    transaction_msg_max_offset: Long = 0
    transaction_msg_min_offset: Long = 0
    try_unlock_times: Long = 0


class PopProcessQueueInfo(JsonBody):
    """The local state of one queue read by POP."""

    droped: bool = False
    last_pop_timestamp: Long = 0
    wait_ack_count: Int = 0


class ConsumeStatus(JsonBody):
    """Rates of one topic: messages per second, mean times in milliseconds."""

    consume_failed_msgs: Long = 0
    consume_failed_tps: float = field(default=0.0, name="consumeFailedTPS")
    consume_ok_tps: float = field(default=0.0, name="consumeOKTPS")
    consume_rt: float = field(default=0.0, name="consumeRT")
    pull_rt: float = field(default=0.0, name="pullRT")
    pull_tps: float = field(default=0.0, name="pullTPS")


class ConsumerRunningInfo(JsonBody):
    """What a consumer tells of itself (307)."""

    jstack: str | None = None
    mq_pop_table: dict[MessageQueue, PopProcessQueueInfo] = field(default_factory=dict)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict)
    subscription_set: list[SubscriptionData] = field(default_factory=list)
    user_consumer_info: dict[str, str] = field(default_factory=dict)


class ConsumeMessageDirectlyResult(JsonBody):
    """How a consumer took one message that it was handed for a trial (309)."""

    auto_commit: bool = True
    consume_result: str | None = None
    order: bool = False
    remark: str | None = None
    spent_time_mills: Long = 0
