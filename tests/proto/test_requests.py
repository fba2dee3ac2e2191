"""Typed requests: one answer in every codec, and refusals that say which field is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import FrameError, RequestError
from aerobee_proto.frames import (
    CODEC_JSON,
    CODEC_MSGPACK,
    CODEC_ROCKETMQ,
    Command,
    Frame,
    FrameDecoder,
    encode_command,
)
from aerobee_proto.headers import (
    I64,
    PullMessageHeader,
    QueryMessageHeader,
    SendMessageHeader,
    SendMessageV2Header,
    UnregisterClientHeader,
    ext_of,
)
from aerobee_proto.requests import RequestDecoder, code_keys, request_code_key

CODECS = [CODEC_JSON, CODEC_ROCKETMQ, CODEC_MSGPACK]
SEND = {"a": "pg", "b": "Topic", "e": "3", "f": "0", "g": "1700000000000", "h": "-1", "i": "k\x01v\x02"}


def frame_of(command: Command) -> Frame:
    (frame,) = FrameDecoder().feed(encode_command(command))
    return frame


def send_frame(codec: int, **changes: str | None) -> Frame:
    fields = {key: value for key, value in (SEND | changes).items() if value is not None}
    return frame_of(Command(310, opaque=5, ext_fields=fields, codec=codec, body=b"hi"))


@pytest.mark.parametrize("codec", CODECS)
def test_a_header_reads_the_same_in_every_codec(codec: int) -> None:
    envelope = RequestDecoder(SendMessageV2Header).decode(send_frame(codec))
    assert (envelope.code, envelope.opaque) == (310, 5)
    assert envelope.ext == SendMessageV2Header(
        producer_group="pg",
        topic="Topic",
        queue_id=3,
        sys_flag=0,
        born_timestamp=1700000000000,
        flag=-1,
        properties="k\x01v\x02",
    )


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"e": "x"}, "e"),
        ({"e": None}, "e"),
        ({"e": "2147483648"}, "e"),
        ({"g": "9223372036854775808"}, "g"),
        ({"m": "perhaps"}, "m"),
    ],
    ids=["not a number", "missing", "over 32 bits", "over 64 bits", "not a boolean"],
)
def test_a_wrong_field_is_refused_by_name_and_the_stream_lives(
    codec: int, changes: dict[str, str | None], field: str
) -> None:
    with pytest.raises(RequestError) as refused:
        RequestDecoder(SendMessageV2Header).decode(send_frame(codec, **changes))
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert field in refused.value.remark


@pytest.mark.parametrize("codec", CODECS)
def test_a_header_of_nonsense_breaks_the_stream(codec: int) -> None:
    with pytest.raises(FrameError):
        RequestDecoder(SendMessageV2Header).decode((codec, b"\xc1nonsense", b""))


def test_unknown_fields_are_ignored_and_native_types_taken() -> None:
    text = (
        b'{"code":11,"extFields":{"consumerGroup":"g","topic":"T","queueId":0,"queueOffset":"5","maxMsgNums":32,'
        b'"sysFlag":"2","commitOffset":0,"suspendTimeoutMillis":"15000","unheard":"of"},"opaque":1}'
    )
    envelope = RequestDecoder(PullMessageHeader).decode((CODEC_JSON, text, b""))
    assert envelope.ext is not None
    assert (envelope.ext.queue_id, envelope.ext.queue_offset, envelope.ext.max_msg_nums) == (0, 5, 32)


def test_a_request_without_fields_gets_the_defaults_of_a_header_that_has_them() -> None:
    frame = frame_of(Command(int(RequestCode.GET_BROKER_CONFIG)))
    assert RequestDecoder(None).decode(frame).ext is not None
    with pytest.raises(RequestError, match="topic"):
        RequestDecoder(QueryMessageHeader).decode(frame)


@given(st.integers(0, 2**31 - 1))
def test_the_code_is_found_without_reading_the_header(code: int) -> None:
    keys = dict(code_keys(code))
    for codec in (CODEC_JSON, CODEC_MSGPACK):
        frame = frame_of(Command(code, codec=codec, ext_fields={"a": "b"}))
        assert request_code_key(codec, frame[1]) == keys[codec]
    if code < 0x8000:
        frame = frame_of(Command(code, codec=CODEC_ROCKETMQ))
        assert request_code_key(CODEC_ROCKETMQ, frame[1]) == keys[CODEC_ROCKETMQ]


@given(st.binary(max_size=20), st.sampled_from(CODECS))
def test_looking_for_a_code_never_fails(header: bytes, codec: int) -> None:
    request_code_key(codec, header)


def test_headers_go_back_to_the_wire_under_their_official_names() -> None:
    assert ext_of(UnregisterClientHeader(client_id="c", consumer_group="g")) == {
        "clientID": "c",
        "consumerGroup": "g",
    }
    query = QueryMessageHeader(
        topic="T", key="k", max_num=32, begin_timestamp=0, end_timestamp=2**63 - 1, unique_key_query=True
    )
    assert ext_of(query)["_UNIQUE_KEY_QUERY"] == "true"
    assert ext_of(query)["endTimestamp"] == str(2**63 - 1)


def test_long_and_short_send_headers_have_the_same_fields() -> None:
    assert SendMessageHeader.__struct_fields__ == SendMessageV2Header.__struct_fields__
    letters = SendMessageV2Header.__struct_encode_fields__
    assert letters == tuple("abcdefghijk" + "ml" + "n")
    assert I64 is not None
