from datetime import UTC, datetime

import pytest

from aerobee import CodecError, DamagedRecord, JsonCodec, Message, MessageQueue
from aerobee_proto.codes import SysFlag
from aerobee_proto.compression import compress_body
from aerobee_proto.properties import encode_properties
from aerobee_proto.records import decode_record, encode_record


def received(
    body: bytes = b"hi",
    properties: dict[str, str] | None = None,
    *,
    topic: str = "T",
    sys_flag: int = 0,
    size_max: int = 1000,
) -> Message:
    raw = encode_record(
        topic=topic,
        queue_id=3,
        queue_offset=5,
        physical_offset=1000,
        born_timestamp=1_700_000_000_000,
        born_host=("127.0.0.1", 50000),
        store_timestamp=1_700_000_000_001,
        store_host=("127.0.0.1", 10911),
        body=body,
        properties=encode_properties(properties or {}),
        flag=9,
        sys_flag=sys_flag,
        reconsume_times=2,
    )
    return Message(decode_record(raw), "b-a", size_max)


def test_a_message_shows_what_was_stored() -> None:
    message = received(b"hi", {"TAGS": "TagA", "KEYS": "a b", "shop": "x"})
    assert (message.topic, message.body, message.text()) == ("T", b"hi", "hi")
    assert message.queue == MessageQueue("T", "b-a", 3)
    assert (message.queue_id, message.queue_offset, message.flag, message.reconsume_times) == (3, 5, 9, 2)
    assert (message.tags, message.keys, message.properties["shop"]) == ("TagA", ("a", "b"), "x")
    assert message.born_host == ("127.0.0.1", 50000)
    assert (message.born_timestamp_ms, message.store_timestamp_ms) == (1_700_000_000_000, 1_700_000_000_001)
    assert message.born_time == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert message.store_time > message.born_time
    assert message.offset_message_id == "7F00000100002A9F00000000000003E8"


def test_the_id_is_the_senders_and_else_the_place() -> None:
    assert received(properties={"UNIQ_KEY": "U1"}).message_id == "U1"
    bare = received()
    assert bare.message_id == bare.offset_message_id
    assert (bare.tags, bare.keys) == (None, ())


def test_a_redelivered_message_shows_its_first_topic() -> None:
    again = received(topic="%RETRY%g", properties={"RETRY_TOPIC": "orders"})
    assert again.topic == "orders"
    assert again.queue.topic == "%RETRY%g"
    assert received(topic="%RETRY%g").topic == "%RETRY%g"
    assert received(topic="T", properties={"RETRY_TOPIC": "orders"}).topic == "T"


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_a_compressed_body_is_inflated_once(kind: str) -> None:
    packed, flags = compress_body(b"x" * 500, kind)  # type: ignore[arg-type]  # one of the three kinds
    message = received(packed, sys_flag=flags)
    assert message.body == b"x" * 500
    assert message.body is message.body


def test_a_damaged_or_too_large_body_names_its_place() -> None:
    packed, flags = compress_body(b"x" * 500)
    for message in (
        received(packed, sys_flag=flags, size_max=499),
        received(b"rubbish", sys_flag=SysFlag.COMPRESSED),
        received(packed[:-3], sys_flag=flags),
    ):
        with pytest.raises(DamagedRecord, match="broker b-a, queue 3, offset 5") as caught:
            _ = message.body
        assert caught.value.queue_offset == 5


def test_repr_is_short_and_useful() -> None:
    assert (
        repr(received(properties={"UNIQ_KEY": "U1"}))
        == "<Message U1 topic='T' queue=b-a/3 offset=5 body=2 bytes>"
    )


def test_a_codec_reads_the_body() -> None:
    assert received(b'{"a":1}').decode(JsonCodec(dict[str, int])) == {"a": 1}
    with pytest.raises(CodecError):
        received(b"no JSON").decode(JsonCodec(int))
