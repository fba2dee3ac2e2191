"""Typed bodies: captured ones, the forms that differ between peers, round trips, damaged bytes."""

import gc
import gzip
import json
import random
import tracemalloc
import zlib
from base64 import b64decode
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress
from itertools import islice
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee_proto import bodies, javajson
from aerobee_proto.bodies import (
    LOOSE_SIZE_MAX,
    REFERENCES_MAX,
    REGISTER_TOLERANT_SIZE_MAX,
    AllDelayOffsets,
    AllGroups,
    BrokerConsumeStats,
    BrokerData,
    BrokerMemberGroup,
    BrokerMembers,
    BrokerStatsData,
    CheckClientConfigBody,
    ClusterInfo,
    ConsumerConnection,
    ConsumerData,
    ConsumerIdList,
    ConsumerRunningInfo,
    ConsumerStatusBody,
    ConsumeStats,
    ConsumeTimeSpan,
    ConsumeTimeSpanBody,
    CorrectionOffsets,
    DataVersion,
    GroupList,
    HeartbeatData,
    JsonBody,
    KVTable,
    LockBatchBody,
    LockedQueues,
    MessageQueue,
    OffsetWrapper,
    ProducerData,
    QueryConsumeQueueBody,
    QueueData,
    RegisterBrokerBody,
    RegistrationReader,
    ResetOffsetBody,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigWrapper,
    TopicList,
    TopicOffset,
    TopicRouteData,
    TopicStatsTable,
    UnlockBatchBody,
    convert,
)
from aerobee_proto.errors import FormatError
from proto.strategies import I32, I64, TEXT_CHARACTERS
from proto.tables import GOLDEN, golden_table
from turns import TURN_MAX, turn_of

QUEUE = MessageQueue("T1", "b-a", 0)


# Two answers that nobody of ours reads; captured ones show that the form is understood.


class TopicConfigAndMapping(TopicConfig):
    """One topic with its static mapping, if any (351)."""

    mapping_detail: dict[str, Any] | None = None


class AllConsumerOffsets(JsonBody):
    """All consumer offsets of a broker (43): `topic@group` -> queue id -> queue offset."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    group_topic_map: dict[str, Any] = msgspec.field(default_factory=dict)
    offset_table: dict[str, dict[bodies.Int, bodies.Long]] = msgspec.field(default_factory=dict)


ALL_BODIES: list[type[JsonBody]] = sorted(
    (
        cls
        for cls in vars(bodies).values()
        if isinstance(cls, type) and issubclass(cls, JsonBody) and cls is not JsonBody
    ),
    key=lambda cls: cls.__name__,
)

REQUESTS: dict[int, type[JsonBody]] = {
    34: HeartbeatData,
    41: LockBatchBody,
    42: UnlockBatchBody,
    46: CheckClientConfigBody,
    103: RegisterBrokerBody,
    200: SubscriptionGroupConfig,
}
ANSWERS: dict[int, type[JsonBody]] = {
    21: TopicConfigWrapper,
    28: KVTable,
    38: ConsumerIdList,
    41: LockedQueues,
    43: AllConsumerOffsets,
    45: AllDelayOffsets,
    103: KVTable,
    105: TopicRouteData,
    106: ClusterInfo,
    201: AllGroups,
    202: TopicStatsTable,
    206: TopicList,
    208: ConsumeStats,
    222: ResetOffsetBody,
    300: GroupList,
    315: BrokerStatsData,
    317: BrokerConsumeStats,
    321: QueryConsumeQueueBody,
    351: TopicConfigAndMapping,
}

# --- captured and documented forms ----------------------------------------------------------------------------

SAMPLES: list[tuple[type[JsonBody], str]] = [
    (
        HeartbeatData,
        '{"clientID":"10.1.1.1@77#123","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
        '"consumeType":"CONSUME_PASSIVELY","groupName":"g1","messageModel":"CLUSTERING","subscriptionDataSet":['
        '{"classFilterMode":false,"codeSet":[2598919],"expressionType":"TAG","subString":"TagA",'
        '"subVersion":1700000000000,"tagsSet":["TagA"],"topic":"T1"}],"unitMode":false}],"heartbeatFingerprint":0,'
        '"producerDataSet":[{"groupName":"pg"}],"withoutSub":false}',
    ),
    (
        TopicRouteData,
        '{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.7:10911"},"brokerName":"b-a","cluster":"c1",'
        '"enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"b-a","perm":6,'
        '"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}',
    ),
    (
        ClusterInfo,
        '{"brokerAddrTable":{"b-a":{"brokerAddrs":{0:"10.0.0.7:10911",1:"10.0.0.8:10911"},"brokerName":"b-a",'
        '"cluster":"c1","enableActingMaster":false}},"clusterAddrTable":{"c1":["b-a"]}}',
    ),
    (
        BrokerMemberGroup,
        '{"brokerMemberGroup":{"brokerAddrs":{0:"10.0.0.7:10911"},"brokerName":"b-a","cluster":"c1"}}',
    ),
    (
        AllConsumerOffsets,
        '{"dataVersion":{"counter":7,"stateVersion":0,"timestamp":1700000000000},"groupTopicMap":{},'
        '"offsetTable":{"T1@g1":{0:12,1:9}}}',
    ),
    (
        AllDelayOffsets,
        '{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":1},"offsetTable":{3:18,4:2}}',
    ),
    (CorrectionOffsets, '{"correctionOffsets":{0:100,1:98}}'),
    (
        TopicStatsTable,
        '{"offsetTable":{{"brokerName":"b-a","queueId":0,"topic":"T1"}:{"lastUpdateTimestamp":1700000000000,'
        '"maxOffset":40,"minOffset":0}},"topicPutTps":0.0}',
    ),
    (
        ConsumeStats,
        '{"consumeTps":0.0,"offsetTable":{{"brokerName":"b-a","queueId":0,"topic":"T1"}:{"brokerOffset":40,'
        '"consumerOffset":38,"lastTimestamp":1700000000000,"pullOffset":40}}}',
    ),
    (ResetOffsetBody, '{"offsetTable":{{"brokerName":"b-a","queueId":0,"topic":"T1"}:25}}'),
    (
        ConsumerStatusBody,
        '{"consumerTable":{"10.1.1.1@77#1":{{"brokerName":"b-a","queueId":0,"topic":"T1"}:25}},'
        '"messageQueueTable":{}}',
    ),
    (
        TopicConfig,
        '{"attributes":{},"order":false,"perm":6,"readQueueNums":8,"topicFilterType":"SINGLE_TAG","topicName":"T1",'
        '"topicSysFlag":0,"writeQueueNums":8}',
    ),
    (
        SubscriptionGroupConfig,
        '{"attributes":{},"brokerId":0,"consumeBroadcastEnable":false,"consumeEnable":true,'
        '"consumeFromMinEnable":false,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,'
        '"groupName":"Gdadmin_group","groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,'
        '"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,'
        '"whichBrokerWhenConsumeSlowly":1}',
    ),
    (
        LockBatchBody,
        '{"clientId":"10.11.12.13@Gd28","consumerGroup":"Gdcg_ord","mqSet":[{"brokerName":"golden-a","queueId":1,'
        '"topic":"GdOrd"}],"onlyThisBroker":false}',
    ),
    (LockedQueues, '{"lockOKMQSet":[{"brokerName":"golden-a","queueId":1,"topic":"GdOrd"}]}'),
    (KVTable, '{"table":{"GdAdmin2":"golden-a:2"}}'),
    (TopicList, '{"brokerAddr":"10.0.0.7:10911","topicList":["T1","T2"]}'),
    (
        BrokerConsumeStats,
        '{"brokerAddr":"127.0.0.2:12911","consumeStatsList":[{"SELF_TEST_C_GROUP":[]},{"Gdcg_tag":[{'
        '"consumeTps":0.0,"offsetTable":{{"brokerName":"golden-a","queueId":0,"topic":"GdTag"}:{"brokerOffset":9,'
        '"consumerOffset":9,"lastTimestamp":1795254877856,"pullOffset":0}}}]}],"totalDiff":0,'
        '"totalInflightDiff":0}',
    ),
    (
        QueryConsumeQueueBody,
        '{"maxQueueIndex":9,"minQueueIndex":0,"queueData":[{"eval":false,"physicOffset":0,"physicSize":267,'
        '"tagsCode":2598919}]}',
    ),
    (
        ConsumeTimeSpanBody,
        '{"consumeTimeSpanSet":[{"consumeTimeStamp":3,"delayTime":1,"maxTimeStamp":4,"messageQueue":{"brokerName":"b-a",'
        '"queueId":0,"topic":"T1"},"minTimeStamp":2}]}',
    ),
    (
        ConsumerRunningInfo,
        '{"mqPopTable":{},"mqTable":{{"brokerName":"b-a","queueId":0,"topic":"T1"}:{"cachedMsgCount":1,'
        '"cachedMsgMaxOffset":2,"cachedMsgMinOffset":3,"cachedMsgSizeInMiB":4,"commitOffset":5,"droped":false,'
        '"lastConsumeTimestamp":6,"lastLockTimestamp":7,"lastPullTimestamp":8,"locked":true,"transactionMsgCount":9,'
        '"transactionMsgMaxOffset":10,"transactionMsgMinOffset":11,"tryUnlockTimes":12}},"properties":{"PROP_CONSUME_TYPE":'
        '"CONSUME_PASSIVELY"},"statusTable":{"T1":{"consumeFailedMsgs":0,"consumeFailedTPS":0.0,"consumeOKTPS":1.5,'
        '"consumeRT":2.0,"pullRT":0.5,"pullTPS":1.5}},"subscriptionSet":[],"userConsumerInfo":{}}',
    ),
]


@pytest.mark.parametrize(("cls", "text"), SAMPLES, ids=[cls.__name__ for cls, _ in SAMPLES])
def test_documented_forms_are_read_and_written_byte_for_byte(cls: type[JsonBody], text: str) -> None:
    body = cls.from_bytes(text.encode())
    assert body.to_bytes() == text.encode()
    standard = body.to_standard()
    assert cls.from_bytes(standard) == body
    json.loads(standard)


def captured_json() -> Any:
    for path in sorted((GOLDEN / "wire").glob("*/*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                if row.get("body_kind") == "json":
                    body = b64decode(row["frame_b64"])[-row["body_len"] :]
                    yield row.get("request_code"), row["header"].get("code"), body


def test_captured_bodies_are_read_and_written_again() -> None:
    """Same bytes in another order: official maps are unordered, ours are sorted."""
    seen: Counter[type[JsonBody]] = Counter()
    for request_code, code, body in captured_json():
        cls = REQUESTS.get(code) if request_code is None else ANSWERS.get(request_code)
        if cls is None:
            assert (request_code, code) in {(None, 400), (400, 0), (None, 401), (402, 0), (61, 0), (907, 0)}
            continue
        value = cls.from_bytes(body)
        written = value.to_standard() if request_code == 105 else value.to_bytes()
        assert sorted(written) == sorted(body), (cls, body)
        assert cls.from_bytes(written) == value
        seen[cls] += 1
    assert seen.keys() == {*REQUESTS.values(), *ANSWERS.values()}


# --- what peers do differently ---------------------------------------------------------------------------------


def test_go_writes_code_sets_as_text() -> None:
    data = SubscriptionData.from_bytes(b'{"codeSet":["2598919","-5"],"tagsSet":["TagA"],"topic":"T1"}')
    assert data.code_set == {2598919, -5}


@pytest.mark.parametrize(
    "key",
    [
        '{"brokerName":"b-a","queueId":0,"topic":"T1"}',
        '"{\\"brokerName\\":\\"b-a\\",\\"queueId\\":0,\\"topic\\":\\"T1\\"}"',
        "{topic:'T1',queueId:'0',brokerName:'b-a'}",
    ],
    ids=["raw", "quoted", "loose"],
)
def test_queue_keys_are_read_in_every_form(key: str) -> None:
    body = ResetOffsetBody.from_bytes(f'{{"offsetTable":{{{key}:25}}}}'.encode())
    assert body.offset_table == {QUEUE: 25}


@pytest.mark.parametrize("key", ["0", '"0"', "'0'"])
def test_number_keys_are_read_in_every_form(key: str) -> None:
    body = BrokerData.from_bytes(f'{{"brokerAddrs":{{{key}:"a:1"}},"brokerName":"b"}}'.encode())
    assert body.broker_addrs == {0: "a:1"}


def test_null_counts_as_absent_and_unknown_members_are_ignored() -> None:
    body = TopicConfig.from_bytes(
        b'{"topicName":"T1","attributes":null,"perm":null,"fromTheFuture":[1,{"a":null}]}'
    )
    assert body == TopicConfig(topic_name="T1")


def test_the_standard_form_of_a_route_is_json_and_the_raw_form_is_not() -> None:
    route = TopicRouteData(
        broker_datas=[BrokerData(broker_addrs={0: "a:1", 10: "b:2", 2: "c:3"}, broker_name="主")]
    )
    assert json.loads(route.to_standard())["brokerDatas"][0]["brokerAddrs"] == {
        "0": "a:1",
        "2": "c:3",
        "10": "b:2",
    }
    assert b'"brokerAddrs":{0:"a:1",2:"c:3",10:"b:2"}' in route.to_bytes()
    assert route.to_standard().isascii()
    assert b"orderTopicConf" not in route.to_bytes()


@pytest.mark.parametrize(
    ("cls", "text"),
    [
        (TopicConfig, b'{"perm":"six"}'),
        (TopicConfig, b'{"perm":2147483648}'),
        (TopicConfig, b'{"attributes":[]}'),
        (TopicConfig, b"[]"),
        (TopicConfig, b""),
        (TopicConfig, b"{"),
        (DataVersion, b'{"counter":9223372036854775808}'),
        (TopicStatsTable, b'{"offsetTable":{"T1":{}}}'),
        (ResetOffsetBody, b'{"offsetTable":{{"topic":"T1"}:"x"}}'),
        (HeartbeatData, b'{"consumerDataSet":[{"subscriptionDataSet":[5]}]}'),
        (KVTable, b"[" * 100_000),
        (SubscriptionGroupConfig, b'{"groupRetryPolicy":' + b"[" * 5000),
    ],
)
def test_bodies_of_another_form_are_refused(cls: type[JsonBody], text: bytes) -> None:
    with pytest.raises(FormatError):
        cls.from_bytes(text)


def test_malformed_utf_8_is_replaced() -> None:
    assert TopicList.from_bytes(b'{"topicList":["T\x80"]}').topic_list == ["T\ufffd"]


def test_size_is_bounded() -> None:
    with pytest.raises(FormatError, match="at most"):
        TopicList.from_bytes(b" " * (javajson.SIZE_MAX + 1))
    with pytest.raises(FormatError, match="2 bytes; at most 1 "):
        TopicList.from_bytes(b"{}", size_max=1)


def test_text_keys_may_open_with_a_brace() -> None:
    """They were taken for queues as soon as another part of the body was not standard JSON."""
    assert KVTable.from_bytes(b"{table:{'{a':'b'}}").table == {"{a": "b"}


def test_convert_takes_decoded_json() -> None:
    assert convert({"counter": "7", "timestamp": None}, DataVersion) == DataVersion(counter=7)
    assert convert({"T1": "5"}, dict[str, int]) == {"T1": 5}
    with pytest.raises(FormatError, match="DataVersion"):
        convert([], DataVersion)


# --- every body ------------------------------------------------------------------------------------------------


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a field's declared type."""
    if isinstance(kind, msgspec.inspect.IntType):
        return I32 if kind.le == (1 << 31) - 1 else I64
    if isinstance(kind, msgspec.inspect.StrType):
        return st.text(TEXT_CHARACTERS, max_size=8)
    if isinstance(kind, msgspec.inspect.BoolType):
        return st.booleans()
    if isinstance(kind, msgspec.inspect.FloatType):
        return st.floats(allow_nan=False, allow_infinity=False)
    if isinstance(kind, msgspec.inspect.NoneType):
        return st.none()
    if isinstance(kind, msgspec.inspect.AnyType):
        return st.sampled_from([1, "x", True, [1], {"a": "b"}])
    if isinstance(kind, msgspec.inspect.UnionType):
        return st.one_of([values_of(part) for part in kind.types])
    if isinstance(kind, msgspec.inspect.ListType):
        return st.lists(values_of(kind.item_type), max_size=2)
    if isinstance(kind, msgspec.inspect.SetType):
        return st.sets(values_of(kind.item_type), max_size=2)
    if isinstance(kind, msgspec.inspect.FrozenSetType):
        return st.frozensets(values_of(kind.item_type), max_size=2)
    if isinstance(kind, msgspec.inspect.DictType):
        # A text key that opens with a brace is read as a queue: topics and groups have no braces.
        keys = values_of(kind.key_type).filter(lambda key: not (isinstance(key, str) and key.startswith("{")))
        return st.dictionaries(
            keys, values_of(kind.value_type).filter(lambda value: value is not None), max_size=2
        )
    assert isinstance(kind, msgspec.inspect.StructType), kind
    return st.builds(kind.cls, **{part.name: values_of(part.type) for part in kind.fields})


@pytest.mark.parametrize("cls", ALL_BODIES, ids=[cls.__name__ for cls in ALL_BODIES])
def test_write_then_read_is_identity(cls: type[JsonBody]) -> None:
    @settings(max_examples=15)
    @given(values_of(msgspec.inspect.type_info(cls)))
    def check(body: JsonBody) -> None:
        assert cls.from_bytes(body.to_bytes()) == body
        assert cls.from_bytes(body.to_standard()) == body

    check()


@pytest.mark.parametrize("cls", ALL_BODIES, ids=[cls.__name__ for cls in ALL_BODIES])
def test_an_empty_object_gives_the_defaults(cls: type[JsonBody]) -> None:
    assert cls.from_bytes(b"{}") == cls()


@given(st.sampled_from(SAMPLES), st.data())
@settings(max_examples=300)
def test_mutated_bodies_raise_only_format_errors(
    sample: tuple[type[JsonBody], str], data: st.DataObject
) -> None:
    cls, text = sample
    raw = bytearray(text.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(FormatError):
        cls.from_bytes(raw).to_bytes()


@given(st.sampled_from(ALL_BODIES), st.binary(max_size=60))
def test_any_bytes_raise_only_format_errors(cls: type[JsonBody], raw: bytes) -> None:
    with suppress(FormatError):
        cls.from_bytes(raw)


# --- registration ----------------------------------------------------------------------------------------------

REGISTRATION = RegisterBrokerBody(
    filter_server_list=["10.0.0.9:1"],
    topic_config_serialize_wrapper=TopicConfigWrapper(
        data_version=DataVersion(counter=3, timestamp=1700000000000),
        topic_config_table={
            "T1": TopicConfig(topic_name="T1", read_queue_nums=4, write_queue_nums=2, perm=4),
            "T2": TopicConfig(
                topic_name="T2", attributes={"message.type": "FIFO"}, topic_filter_type="MULTI_TAG"
            ),
        },
        topic_queue_mapping_info_map={"T3": {"topic": "T3", "currIdMap": {"0": 0}}},
    ),
)


def test_compressed_registration_round_trips() -> None:
    assert (
        RegisterBrokerBody.from_compressed(REGISTRATION.to_compressed(with_mapping=True), with_mapping=True)
        == REGISTRATION
    )
    short = RegisterBrokerBody.from_compressed(
        REGISTRATION.to_compressed(with_mapping=False), with_mapping=True
    )
    assert short.topic_config_serialize_wrapper.topic_queue_mapping_info_map == {}


def test_compressed_registration_byte_for_byte() -> None:
    version = b'{"counter":3,"stateVersion":0,"timestamp":1700000000000}'
    topics = [b"T1 4 2 4 SINGLE_TAG {}", b'T2 16 16 6 MULTI_TAG {"message.type":"FIFO"}']
    mapping = b'{"currIdMap":{"0":0},"topic":"T3"}'
    parts = [version, None, *topics, b'["10.0.0.9:1"]', None, mapping]
    counts = iter([2, 1])
    expected = b"".join(
        next(counts).to_bytes(4, "big") if part is None else len(part).to_bytes(4, "big") + part
        for part in parts
    )
    assert zlib.decompress(REGISTRATION.to_compressed(with_mapping=True)) == expected


def test_topic_texts_without_attributes_are_read() -> None:
    raw = b"\0\0\0\2{}\0\0\0\1\0\0\0\x16T9 16 8 6 SINGLE_TAG  \0\0\0\2[]"
    body = RegisterBrokerBody.from_compressed(zlib.compress(raw), with_mapping=False)
    topic = TopicConfig(topic_name="T9", read_queue_nums=16, write_queue_nums=8)
    assert body.topic_config_serialize_wrapper.topic_config_table == {"T9": topic}


def test_old_registrations_are_the_topics_alone() -> None:
    wrapper = REGISTRATION.topic_config_serialize_wrapper
    assert RegisterBrokerBody.from_wrapper_bytes(wrapper.to_bytes()).topic_config_serialize_wrapper == wrapper


@given(st.data(), st.booleans())
def test_damaged_compressed_registrations_raise_only_format_errors(data: st.DataObject, packed: bool) -> None:
    whole = REGISTRATION.to_compressed(with_mapping=True)
    raw = bytearray(whole if packed else zlib.decompress(whole))
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))]
    with suppress(FormatError):
        RegisterBrokerBody.from_compressed(bytes(raw) if packed else zlib.compress(raw), with_mapping=True)


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (b"", "ends at byte 0"),
        (b"\0\0\0\x09{}", "claims 9 bytes"),
        (b"\0\0\0\2{}\x7f\0\0\0", "claims 2130706432 topics"),
        (b"\0\0\0\2{}\xff\xff\xff\xff", "claims -1 topics"),
        (b"\0\0\0\2{}\0\0\0\1\0\0\0\1T", "1 of its 5 parts"),
    ],
)
def test_what_is_wrong_with_a_registration_is_named(raw: bytes, fault: str) -> None:
    with pytest.raises(FormatError, match=fault):
        RegisterBrokerBody.from_compressed(zlib.compress(raw), with_mapping=True)


def test_a_registration_bomb_is_refused() -> None:
    with pytest.raises(FormatError, match="larger than"):
        RegisterBrokerBody.from_compressed(zlib.compress(bytes(65 * 1024 * 1024), 1), with_mapping=True)
    with pytest.raises(FormatError, match="broken"):
        RegisterBrokerBody.from_compressed(b"not zlib", with_mapping=True)


def filled(before: bytes, piece: bytes, after: bytes, size: int) -> bytes:
    return before + piece * ((size - len(before) - len(after)) // len(piece)) + after


def noise(size: int, seed: int = 0) -> bytes:
    """Letters that do not compress to nothing."""
    return random.Random(seed).randbytes(size // 2).hex().encode()


def pieces(*given: bytes | int) -> bytes:
    """An inflated registration: numbers are counts, bytes are pieces with their length."""
    return b"".join(
        part.to_bytes(4, "big") if isinstance(part, int) else len(part).to_bytes(4, "big") + part
        for part in given
    )


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (pieces(b"{" + b" " * 2_000_000 + b"}"), "larger than .* once inflated"),
        (pieces(b"{" + b" " * 2_000 + b"}", 0, b"[]"), "has 2002 bytes, at most 1024"),
        (pieces(b"{}", 0, filled(b"['a',", b"'',", b"]", 20_000)), "not standard JSON"),
        (pieces(b"{}", 1, b"T 8 8 6 SINGLE_TAG {'a':'b'}", b"[]"), "not standard JSON"),
        (pieces(b"{}", 1, b"T" + noise(70_000) + b" 8 8 6 SINGLE_TAG {}", b"[]"), "at most 65536"),
        (pieces(b"{}", 0, b"[]", 1, filled(b"{'a':[", b"{},", b"]}", 40_000)), "at most 24576"),
        (
            pieces(b"{}", 0, b"[]", 50, *[b"{a" + noise(24_000, seed) + b":1}" for seed in range(50)]),
            "mappings take more",
        ),
    ],
)
def test_no_piece_of_a_compressed_registration_is_read_beyond_its_bound(raw: bytes, fault: str) -> None:
    """10 KB that were sent became 10 MiB of near-JSON, and seconds of the nameserver's time."""
    with pytest.raises(FormatError, match=fault):
        RegisterBrokerBody.from_compressed(zlib.compress(raw), with_mapping=True)


def test_many_topics_are_registered_compressed() -> None:
    table = {f"T{number:06}": TopicConfig(topic_name=f"T{number:06}") for number in range(10_000)}
    body = RegisterBrokerBody(topic_config_serialize_wrapper=TopicConfigWrapper(topic_config_table=table))
    read = RegisterBrokerBody.from_compressed(body.to_compressed(with_mapping=True), with_mapping=True)
    assert read == body


def test_a_large_registration_is_read_topic_by_topic() -> None:
    table = {
        f"T{number:06}": TopicConfig(
            topic_name=f"T{number:06}",
            perm=number % 7,
            attributes={"+message.type": "FIFO", "q": '"\\ \u4e3b'} if number % 2 else {},
        )
        for number in range(1_000)
    }
    version = DataVersion(counter=5, timestamp=7)
    body = RegisterBrokerBody(
        filter_server_list=["10.0.0.9:1"],
        topic_config_serialize_wrapper=TopicConfigWrapper(data_version=version, topic_config_table=table),
    )
    assert RegisterBrokerBody.from_stranger(body.to_bytes()) == body
    assert RegisterBrokerBody.from_stranger(body.to_standard()) == body
    blanks = json.dumps(json.loads(body.to_standard()), indent=1).encode()
    assert RegisterBrokerBody.from_stranger(blanks) == body
    raw_keys = body.to_bytes().replace(
        b'"topicQueueMappingInfoMap":{', b'"topicQueueMappingInfoMap":{"T":{"a":{0:1}}'
    )
    assert (
        RegisterBrokerBody.from_stranger(raw_keys).topic_config_serialize_wrapper.topic_config_table == table
    )


TABLE_FAULTS = {
    b'"T":{"perm":6}}': "",
    b"}": "",
    b'"T":{"perm":null}}': "",
    b'"T":{"perm":"x"}}': "not a TopicConfig",
    b'"T":{"attributes":{"a":"}"}}}': "not JSON",
    b'"T":{"attributes":{"a":{"b":"c"}}}}': "cannot be read at byte",
    b'"T":5}': "cannot be read at byte",
    b'"T\\u0041":{}}': "",
}


@pytest.mark.parametrize("entry", TABLE_FAULTS)
def test_what_is_wrong_with_one_topic_of_many_is_told(entry: bytes) -> None:
    table = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{' + b'"A":{},' * 10_000 + entry + b"}}"
    if TABLE_FAULTS[entry]:
        with pytest.raises(FormatError, match=TABLE_FAULTS[entry]):
            RegisterBrokerBody.from_stranger(table)
    elif entry != b"}":
        read = RegisterBrokerBody.from_stranger(table).topic_config_serialize_wrapper.topic_config_table
        assert read.keys() - {"T", "TA"} == {"A"}


# --- what a stranger sends ---------------------------------------------------------------------------------------


LOOSE = [  # standard JSON, but not as declared
    (b'{"clientID":null,"a":[', b"{},", b"0]}"),
    (b'{"clientID":null,"a":[', b'{"{topic:}":1},', b"0]}"),
    (b'{"clientID":null,"a":{', rb'"{\"topic\":\"T\",\"queueId\":1}":1,', b'"b":0}}'),
    (b'{"clientID":null,"a":[0],"b":[', b'{"$ref":"$.a"},', b"0]}"),
    (b'{"clientID":null,"a":{', b'"b":[[[[[]]]]],', b'"b":0}}'),
]
TOLERATED = [  # near-JSON
    (b"{'clientID':'x','a':[", b"{},", b"]}"),
    (b"{'clientID':'x','a':[", b"0,", b"]}"),
    (b"{'clientID':'x','a':[", b"1.,", b"]}"),
    (b"{'clientID':'x','a':[", b"'\\ud800',", b"]}"),
    (b"{'clientID':'x','a':{", b"{queueId:1}:1,", b"}}"),
    (b"{'clientID':'x','a':[", b"{'{topic:1}':1},", b"]}"),
    (b"{'clientID':'x','a':[0],'b':[", b"{$ref:'$.a'},", b"]}"),
    (b"{'clientID':'x','a':[", b"[" * 60 + b"]" * 60 + b",", b"]}"),
    (b"{'clientID':'x','a':[", b"0/**/,", b"]}"),
]


@pytest.mark.parametrize(
    ("pieces", "size"),
    [
        *((pieces, LOOSE_SIZE_MAX) for pieces in LOOSE),
        *((pieces, javajson.TOLERANT_SIZE_MAX) for pieces in TOLERATED),
        *((pieces, 4 << 20) for pieces in LOOSE + TOLERATED),
    ],
)
def test_no_body_of_a_stranger_takes_longer_than_a_turn_may(
    pieces: tuple[bytes, bytes, bytes], size: int
) -> None:
    """4 MiB of near-JSON took 4 s, 600 KB with references 3 s and 900 MB, in the event loop."""
    body = filled(*pieces, size)

    def read() -> None:
        with suppress(FormatError):
            HeartbeatData.from_stranger(body)

    assert turn_of(read) < TURN_MAX


def test_references_in_a_body_of_a_stranger_are_followed_and_bounded() -> None:
    """A list of 20,000 subscriptions that was named 60 times held a broker for 7 s and took 892 MB."""
    one = {"groupName": "a", "subscriptionDataSet": [{"topic": "T", "subString": "*"}]}
    heartbeat: dict[str, Any] = {
        "clientID": "x",
        "consumerDataSet": [
            one,
            {"groupName": "b", "subscriptionDataSet": {"$ref": "$.consumerDataSet[0].subscriptionDataSet"}},
        ],
    }
    read = HeartbeatData.from_stranger(json.dumps(heartbeat).encode())
    assert [data.subscription_data_set[0].topic for data in read.consumer_data_set] == ["T", "T"]
    one["subscriptionDataSet"] = [{"topic": str(number)} for number in range(3_000)]
    heartbeat["consumerDataSet"] += heartbeat["consumerDataSet"][1:] * 60
    with pytest.raises(FormatError, match="references of the text stand for more than"):
        HeartbeatData.from_stranger(json.dumps(heartbeat).encode())


def test_a_body_of_very_many_references_is_refused_before_it_is_read() -> None:
    """10,000 of them held the event loop for 30 ms, and beside a busy neighbour for more than a turn may."""
    for count, refused in ((REFERENCES_MAX, False), (REFERENCES_MAX + 1, True)):
        references = ",".join(['{"$ref":"$.a"}'] * count)
        body = b'{"clientID":"x","a":[0],"b":[%s]}' % references.encode()
        with pytest.raises(FormatError, match="2049 references, at most 2048") if refused else nullcontext():
            HeartbeatData.from_stranger(body)


def test_a_body_of_very_many_small_objects_is_refused_before_it_is_read() -> None:
    """4 MiB of standard JSON with 300,000 subscriptions held the event loop for 0.9 s."""
    body = filled(b'{"clientID":"x","producerDataSet":[', b'{"groupName":"g"},', b"{}]}", 4 << 20)
    with pytest.raises(FormatError, match=r"objects, at most 16384 are read at once; send it in parts"):
        HeartbeatData.from_stranger(body)
    body = b'{"clientID":"x","producerDataSet":[' + b'{"groupName":"g"},' * 10_000 + b"{}]}"
    assert len(HeartbeatData.from_stranger(body).producer_data_set) == 10_001


def steps_of(data: bytes) -> tuple[int, HeartbeatData]:
    """A heartbeat that is read in steps, and how many they were."""
    steps, count = HeartbeatData.reading(data), 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return count, end.value
        count += 1


def test_a_heartbeat_of_many_subscriptions_is_read_in_steps() -> None:
    """10,000 subscriptions were one step of 20 ms."""
    wanted = [SubscriptionData.of_tags(f"T{number}", "a || b", number) for number in range(10_000)]
    consumers = [
        ConsumerData(group_name="g", subscription_data_set=wanted, unit_mode=True),
        ConsumerData(group_name="h", consume_from_where="f", consume_type="c", message_model="m"),
    ]
    heartbeat = HeartbeatData(
        client_id="x",
        consumer_data_set=consumers,
        producer_data_set=[ProducerData(group_name="p")],
        heartbeat_fingerprint=7,
        without_sub=True,
    )
    for data in (heartbeat.to_bytes(), heartbeat.to_standard()):
        count, read = steps_of(data)
        assert read == heartbeat
        assert count >= 10_000 / 256


def test_a_list_of_many_locks_is_read_in_steps() -> None:
    """9,000 queues were one step of 4 ms."""
    queues = [MessageQueue(f"T{number}", "b", number) for number in range(9_000)]
    for form in (LockBatchBody, UnlockBatchBody):
        body = form(client_id="c", consumer_group="g", mq_set=queues, only_this_broker=True)
        for data in (body.to_bytes(), body.to_standard()):
            steps = form.reading(data)
            count, read = 0, None
            while read is None:
                try:
                    next(steps)
                except StopIteration as end:
                    read = end.value
                count += 1
            assert read == body
            assert type(read) is form
            assert count >= 9_000 / 256


HEARTBEAT = b"""{"clientID":"x","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"T","tagsSet":["a"],
"codeSet":[5,"6"]}, {"topic":"U"}]},{}],"producerDataSet":[{"groupName":"p"}],"heartbeatFingerprint":"5"}"""


@given(st.data())
@settings(max_examples=300)
def test_a_heartbeat_is_read_in_steps_as_at_once(data: st.DataObject) -> None:
    """Damaged ones, too, are read alike, or refused alike."""

    def outcome(read: Callable[[], HeartbeatData]) -> HeartbeatData | str:
        try:
            return read()
        except FormatError as refused:
            return str(refused)

    raw = bytearray(HEARTBEAT)
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from(
                [b"", b"{", b"}", b"[", b"]", b",", b"'", b"null", b"1", b'{"$ref":"$.clientID"}']
            )
        )
    body = bytes(raw)
    assert outcome(lambda: steps_of(body)[1]) == outcome(lambda: HeartbeatData.from_stranger(body))


def test_a_large_body_that_is_not_as_declared_is_refused_with_the_reason() -> None:
    body = filled(b'{"clientID":null,"a":[', b"0,", b"0]}", LOOSE_SIZE_MAX + 100)
    with pytest.raises(
        FormatError, match=r"not a HeartbeatData: Expected `str`, got `null`.* must be standard"
    ):
        HeartbeatData.from_stranger(body)


# --- subscriptions and small values ------------------------------------------------------------------------------


def test_official_table_of_subscriptions() -> None:
    rows = golden_table("subscriptionData")
    assert len(rows) == 15
    for row in rows:
        if "error" in row:
            with pytest.raises(FormatError, match="names no tag"):
                SubscriptionData.of_tags("T1", row["expression"])
            continue
        data = SubscriptionData.of_tags("T1", row["expression"], 7)
        assert data.sub_string == row["subString"]
        assert data.tags_set == set(row["tagsSet"])
        assert data.code_set == set(row["codeSet"])
        assert (data.expression_type, data.sub_version, data.topic) == (row["expressionType"], 7, "T1")


def test_the_next_version_counts_on() -> None:
    version = DataVersion(counter=7, state_version=2, timestamp=1)
    assert version.next(99) == DataVersion(counter=8, state_version=2, timestamp=99)


def test_group_defaults_are_the_official_ones() -> None:
    config = SubscriptionGroupConfig(group_name="g1")
    assert config.consume_enable
    assert config.consume_broadcast_enable
    assert (config.retry_queue_nums, config.retry_max_times, config.which_broker_when_consume_slowly) == (
        1,
        16,
        1,
    )
    assert b'"groupRetryPolicy":{"type":"CUSTOMIZED"}' in config.to_bytes()
    assert b"subscriptionDataSet" not in config.to_bytes()


def test_tables_of_queues_can_be_built_and_read_back() -> None:
    stats = TopicStatsTable(offset_table={QUEUE: TopicOffset(max_offset=40)}, topic_put_tps=1.5)
    assert TopicStatsTable.from_bytes(stats.to_bytes()).offset_table[QUEUE].max_offset == 40
    consumed = ConsumeStats(offset_table={QUEUE: OffsetWrapper(broker_offset=4)})
    assert ConsumeStats.from_bytes(consumed.to_standard()).offset_table[QUEUE].broker_offset == 4
    span = ConsumeTimeSpanBody(consume_time_span_set=[ConsumeTimeSpan(message_queue=QUEUE)])
    assert ConsumeTimeSpanBody.from_bytes(span.to_bytes()).consume_time_span_set[0].message_queue == QUEUE
    group = BrokerMemberGroup(broker_member_group=BrokerMembers(broker_addrs={0: "a:1"}))
    assert BrokerMemberGroup.from_bytes(group.to_bytes()) == group
    assert QueueData.from_bytes(QueueData(broker_name="b", perm=6).to_bytes()).perm == 6
    assert (
        ConsumerConnection.from_bytes(b'{"connectionSet":[{"clientId":"c","version":479}]}')
        .connection_set[0]
        .version
        == 479
    )


# Made when they are asked for: together they are 120 MB.
OUTLINES: dict[str, Callable[[], bytes]] = {
    "objects": lambda: b'{"a":[' + b"{}," * 5_500_000 + b"{}]}",
    "numbers": lambda: in_table(b"[" + b"1," * 8_000_000 + b"1]"),
    "lists": lambda: in_table(b"[" + (b"[" * 60 + b"]" * 60 + b",") * 135_000 + b"1]"),
    "keys": lambda: b"{" + b'"":0,' * 3_300_000 + b'"":0}',
    "tables": lambda: b"{" + b'"topicConfigSerializeWrapper":{},' * 480_000 + b'"a":0}',
    "blanks": lambda: b" " * (16 << 20),
    "escapes": lambda: b'{"a":"' + b"\\u0041" * 2_700_000 + b'"}',
    "topics": lambda: in_table(
        b"{" + b",".join(b'"t%d":{"attributes":{},"perm":6}' % n for n in range(240_000)) + b"}"
    ),
}


def in_table(topics: bytes) -> bytes:
    return b'{"topicConfigSerializeWrapper":{"topicConfigTable":' + topics + b"}}"


def large_registration(table: bytes) -> bytes:
    return (
        b'{"filterServerList":["s:1"], "topicConfigSerializeWrapper" :{"dataVersion":{"counter":9},%s}}'
        % table
    )


LARGE_TABLE = b",".join(b'"t%d":{"attributes":{},"perm":6}' % n for n in range(40_000))


@pytest.mark.parametrize(
    "form", [b'"topicConfigTable":{%s}', b'"a":[{}], "topicConfigTable" : { %s } ,"b":{"c":1}']
)
def test_the_topics_of_a_large_registration_are_cut_out_before_the_rest_is_read(form: bytes) -> None:
    """The outline of 60,000 topics was one call of 10 ms, which no other thread could interrupt."""
    whole = large_registration(form % LARGE_TABLE)
    reader = RegistrationReader.plain(whole)
    topics = dict(reader.topics())
    assert list(topics) == [f"t{number}" for number in range(40_000)]
    assert topics["t5"].perm == 6
    assert (reader.data_version.counter, reader.filter_servers) == (9, ["s:1"])
    found: list[tuple[str, TopicConfig]] = []
    with pytest.raises(FormatError, match="must be standard JSON"):
        found.extend(RegistrationReader.plain(whole[:-1]).topics())
    assert len(found) == 40_000  # the fault is behind them


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b'{"topicConfigTable":{%s}}' % LARGE_TABLE, "not where it belongs"),
        (b'{"topicConfigTable":{%s}' % LARGE_TABLE, "must be standard JSON"),
        (in_table(b"{%s}" % LARGE_TABLE) + b"}", "must be standard JSON"),
        (in_table(b"{%s,}" % LARGE_TABLE), "cannot be read at byte"),
        (in_table(b"{%s" % LARGE_TABLE), "must be standard JSON"),
        (b'{"a":"%s"}' % LARGE_TABLE.replace(b'"', b"") * 2, "must be standard JSON"),
        (
            in_table(b"{%s,%s}" % (LARGE_TABLE, b'"n":{"attributes":{"a":\'%s\'}}' % (b"x" * 2048))),
            "not a topic",
        ),
    ],
)
def test_what_is_wrong_with_a_large_registration_is_told(body: bytes, fault: str) -> None:
    with pytest.raises(FormatError, match=fault):
        RegisterBrokerBody.from_stranger(body)


def test_a_topic_in_near_json_may_be_short() -> None:
    body = in_table(b'{%s,"n":{perm:2}}' % LARGE_TABLE)
    assert len(body) > REGISTER_TOLERANT_SIZE_MAX
    assert dict(RegistrationReader.plain(body).topics())["n"].perm == 2


def test_a_large_registration_may_have_no_topics_or_two_tables() -> None:
    blank = b" " * (2 << 20)
    for table in (b"{}", b"{%s}" % blank):
        assert dict(RegistrationReader.plain(in_table(table) + blank).topics()) == {}
    twice = b'{"a":{"topicConfigTable":{}},' + in_table(b"{%s}" % LARGE_TABLE)[1:]
    assert len(dict(RegistrationReader.plain(twice).topics())) == 40_000


@pytest.mark.parametrize("make", OUTLINES.values(), ids=OUTLINES)
def test_the_outline_of_a_registration_holds_no_thread_long(
    make: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one call that holds the interpreter, in a thread or not: lists in lists took 85 ms of it. What is counted
    before is counted piece by piece."""
    body = make()
    assert len(body) <= 16 << 20
    try:
        RegistrationReader.plain(body)
    except FormatError:
        return
    monkeypatch.setattr("aerobee_proto.bodies._checking_outline", lambda _: iter(()))
    assert turn_of(lambda: RegistrationReader.plain(body)) < TURN_MAX


def test_a_registration_is_read_topic_by_topic() -> None:
    stranger = OUTLINES["topics"]()
    body = RegisterBrokerBody.from_stranger(stranger)
    assert len(body.topic_config_serialize_wrapper.topic_config_table) == 240_000
    reader = RegistrationReader.plain(stranger)
    assert next(iter(reader.topics()))[0] == "t0"
    few = dict(islice(body.topic_config_serialize_wrapper.topic_config_table.items(), 100))
    body.topic_config_serialize_wrapper.topic_config_table = {
        name: TopicConfig(topic_name=name) for name in few
    }
    reader = RegistrationReader.compressed(body.to_compressed(with_mapping=True), with_mapping=True)
    assert [name for name, _ in islice(reader.topics(), 2)] == ["t0", "t1"]


@pytest.mark.parametrize("is_standard", [True, False])
@pytest.mark.parametrize("size", [1_000, 15_000, 20_000, 24_000])
def test_static_mappings_of_a_small_registration_are_read(size: int, is_standard: bool) -> None:
    """Up to 24 KiB, also where that is more than is read of other near-JSON."""
    mapping = {"topic": "T3", "currIdMap": {"0": 0}, "x": "y" * (size - 600)}
    wrapper = REGISTRATION.topic_config_serialize_wrapper
    body = msgspec.structs.replace(
        REGISTRATION,
        topic_config_serialize_wrapper=msgspec.structs.replace(
            wrapper, topic_queue_mapping_info_map={"T3": mapping}
        ),
    ).to_bytes()
    assert size - 600 < len(body) < size + 600
    reader = RegistrationReader.plain(
        body if is_standard else body.replace(b'"currIdMap":{"0"', b'"currIdMap":{0')
    )
    assert [name for name, _ in reader.topics()] == ["T1", "T2"]
    assert reader.mappings["T3"]["x"] == mapping["x"]


# Bodies of which little on the wire is much in memory.
HEAVY = {
    "empty groups": b'{"consumerDataSet":[%b]}' % b",".join([b"{}"] * 16_000),
    "empty subscriptions": b'{"consumerDataSet":[{"subscriptionDataSet":[%b]}]}'
    % b",".join([b"{}"] * 16_000),
    "short tags": b'{"consumerDataSet":[{"subscriptionDataSet":[{"tagsSet":[%b]}]}]}'
    % b",".join(b'"%x"' % number for number in range(150_000)),
    "producers": b'{"producerDataSet":[%b]}' % b",".join(b'{"groupName":"g%d"}' % i for i in range(16_000)),
    "wide text": ('{"clientID":"' + "x" * 1_000_000 + "\U0001f600" + '"}').encode(),
    "numbers": b'{"consumerDataSet":[{"subscriptionDataSet":[{"codeSet":[%b]}]}]}'
    % b",".join(b"%d" % number for number in range(1000, 150_000)),
}


@pytest.mark.parametrize("data", HEAVY.values(), ids=HEAVY)
def test_no_body_takes_more_memory_than_it_is_counted_with(data: bytes) -> None:
    """A heartbeat of 48 KiB is 8 MiB when it has been read, and was counted with its bytes."""
    bodies.HeartbeatData.from_stranger(b"{}")
    gc.collect()
    tracemalloc.start()
    try:
        read = bodies.HeartbeatData.from_stranger(data)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert read
    assert size <= bodies.decoded_size(data) <= 40 * size
