"""Frames and headers: every cut, both directions, the official tables, and bytes that mean nothing."""

import base64
import gzip
import json
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee_proto import frames
from aerobee_proto.errors import FrameError
from aerobee_proto.frames import (
    CODEC_JSON,
    CODEC_MSGPACK,
    CODEC_ROCKETMQ,
    FRAME_SIZE_MAX,
    Command,
    FrameDecoder,
    decode_command,
    encode_command,
    encode_frame,
    language_name,
)
from proto.strategies import I16, I32, TEXT

GOLDEN = Path(__file__).parent.parent / "golden"
CODECS = {"JSON": CODEC_JSON, "ROCKETMQ": CODEC_ROCKETMQ}

PULL = Command(11, opaque=7, ext_fields={"topic": "T1", "queueId": "3"})
ACK = Command(0, opaque=7, flag=1, remark="FOUND", body=b"x" * 300)

CUTS: dict[str, Callable[[bytes], list[bytes]]] = {
    "whole": lambda b: [b],
    "byte by byte": lambda b: [b[i : i + 1] for i in range(len(b))],
    "in the length words": lambda b: [b[:3], b[3:6], b[6:]],
    "across the frames": lambda b: [b[:100], b[100:]],
}


def one_frame(data: bytes) -> tuple[int, bytes, bytes]:
    (frame,) = FrameDecoder().feed(data)
    return frame


def facts(command: Command) -> tuple[object, ...]:
    return (
        command.code,
        command.opaque,
        command.flag,
        command.version,
        command.language,
        command.remark,
        command.ext_fields,
        command.body,
    )


@pytest.mark.parametrize("codec", [CODEC_JSON, CODEC_ROCKETMQ, CODEC_MSGPACK])
@pytest.mark.parametrize("cut", CUTS.values(), ids=list(CUTS))
def test_any_cut_gives_the_same_frames(cut: Callable[[bytes], list[bytes]], codec: int) -> None:
    PULL.codec = ACK.codec = codec
    decoder = FrameDecoder()
    got = []
    for piece in cut(encode_command(PULL) + encode_command(ACK)):
        got += [facts(decode_command(frame)) for frame in decoder.feed(piece)]
    assert [facts(PULL), facts(ACK)] == got
    assert decoder.pending_size == 0


@given(
    st.binary(min_size=1, max_size=2000),
    st.lists(st.integers(0, 2000), max_size=8),
    st.sampled_from([30, 300, frames.LARGE]),
)
def test_random_cuts_never_change_what_comes_out(body: bytes, places: list[int], large: int) -> None:
    data = b"".join(encode_frame(CODEC_JSON, b'{"code":1}', body[:n]) for n in range(0, len(body), 97))
    borders = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    decoder = FrameDecoder()
    with mock.patch.object(frames, "LARGE", large):
        got = [f for a, b in pairwise(borders) for f in decoder.feed(data[a:b])]
    assert got == FrameDecoder().feed(data)
    assert decoder.pending_size == 0


@given(
    st.binary(min_size=1, max_size=2000),
    st.lists(st.integers(0, 2000), max_size=8),
    st.sampled_from([30, 300, frames.LARGE]),
    st.integers(1, 5),
)
def test_so_many_frames_at_a_time_are_the_same_in_all(
    body: bytes, places: list[int], large: int, count_max: int
) -> None:
    data = b"".join(encode_frame(CODEC_JSON, b'{"code":1}', body[:n]) for n in range(0, len(body), 97))
    borders = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    decoder, got = FrameDecoder(), []
    with mock.patch.object(frames, "LARGE", large):
        for begin, end in pairwise(borders):
            some = decoder.feed(data[begin:end], count_max=count_max)
            while decoder.has_more:
                assert len(some) == count_max
                got += some
                some = decoder.feed(b"", count_max=count_max)
            got += some
            assert len(some) <= count_max
    assert got == FrameDecoder().feed(data)
    assert decoder.pending_size == 0


def test_what_was_not_asked_for_is_held_and_more_may_come_behind_it() -> None:
    one = encode_frame(CODEC_JSON, b'{"code":1}')
    decoder = FrameDecoder()
    assert len(decoder.feed(one * 5, count_max=2)) == 2
    assert (decoder.has_more, decoder.pending_size) == (True, 3 * len(one))
    assert len(decoder.feed(one + one[:7], count_max=2)) == 2
    assert len(decoder.feed(b"", lambda data: (len(one), 2))) == 1, "the front took one"
    assert (decoder.has_more, decoder.pending_size) == (False, 7)
    assert decoder.feed(one[7:]) == [(CODEC_JSON, b'{"code":1}', b"")]
    assert len(decoder.feed(one * 2 + bytes(4), count_max=1)) == 1
    assert len(decoder.feed(b"")) == 1, "no error before what is no frame is looked at"
    assert isinstance(decoder.error, FrameError)
    assert not decoder.has_more


def test_a_large_frame_is_whole_with_its_last_byte_and_what_follows_comes_behind_it() -> None:
    """Nothing of the rest is shown to a front, which would be served before it."""
    header, body = b'{"code":1}' + b" " * 3000, bytes(range(256)) * 5000
    data = encode_frame(CODEC_ROCKETMQ, header, body)
    decoder, shown = FrameDecoder(), []

    def front(data: bytes) -> tuple[int, int]:
        shown.append(len(data))
        return 0, 100

    for begin in range(0, len(data) - 1, 65_536):
        assert decoder.feed(data[begin : min(begin + 65_536, len(data) - 1)], front) == []
    assert decoder.pending_size == len(data) - 1
    assert decoder.feed(data[-1:] + data[:20], front) == [(CODEC_ROCKETMQ, header, body)]
    assert (decoder.pending_size, shown) == (20, [65_536])
    assert decoder.feed(data[20:] + b"\0\0\0\0", front) == [(CODEC_ROCKETMQ, header, body)]
    assert decoder.error is not None


def test_a_frame_of_exactly_the_limit_passes_and_one_byte_more_breaks() -> None:
    room = FRAME_SIZE_MAX - 8 - len(b"{}")
    frame = encode_frame(CODEC_JSON, b"{}", bytes(room))
    assert len(frame) == FRAME_SIZE_MAX
    assert one_frame(frame)[2] == bytes(room)
    decoder = FrameDecoder()
    assert decoder.feed(encode_frame(CODEC_JSON, b"{}", bytes(room + 1))[:8]) == []
    assert decoder.error is not None
    assert "over the limit" in str(decoder.error)


BROKEN = {
    "length 0": struct.pack(">ii", 0, 0),
    "length 3": struct.pack(">i", 3) + b"abc",
    "negative length": struct.pack(">i", -1),
    "length 2^31-1": struct.pack(">i", 2**31 - 1),
    "header longer than the frame": struct.pack(">ii", 15, 2000) + b"x" * 11,
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=list(BROKEN))
def test_broken_lengths_stop_the_stream_after_the_whole_frames_before_them(data: bytes) -> None:
    decoder = FrameDecoder()
    frames = decoder.feed(encode_command(PULL) + data)
    assert len(frames) == 1
    assert isinstance(decoder.error, FrameError)
    with pytest.raises(FrameError):
        decoder.feed(encode_command(PULL))


def test_an_announced_length_allocates_nothing() -> None:
    decoder = FrameDecoder()
    decoder.feed(struct.pack(">ii", FRAME_SIZE_MAX - 4, 10) + b"{")
    assert decoder.pending_size == 9


def test_feeding_a_large_frame_in_small_pieces_is_linear() -> None:
    """Joining what is there on every piece would make a slow sender expensive."""
    decoder = FrameDecoder()
    data = encode_frame(CODEC_JSON, b'{"code":1}', bytes(4_000_000))
    frames = [frame for at in range(0, len(data), 1000) for frame in decoder.feed(data[at : at + 1000])]
    assert len(frames) == 1
    assert len(frames[0][2]) == 4_000_000


@given(st.binary(max_size=400))
def test_any_bytes_raise_only_frame_errors(data: bytes) -> None:
    decoder = FrameDecoder()
    for frame in decoder.feed(data):
        try:
            decode_command(frame)
        except FrameError:
            continue


@settings(max_examples=300)
@given(st.sampled_from([CODEC_JSON, CODEC_ROCKETMQ, CODEC_MSGPACK]), st.data())
def test_mutated_headers_raise_only_frame_errors(codec: int, data: st.DataObject) -> None:
    command = Command(310, opaque=9, ext_fields={"a": "g", "b": "T", "e": "1"}, remark="r", codec=codec)
    _, header, body = one_frame(encode_command(command))
    at = data.draw(st.integers(0, len(header) - 1))
    mutated = header[:at] + data.draw(st.binary(max_size=5)) + header[at + data.draw(st.integers(0, 3)) :]
    try:
        decode_command((codec, mutated, body))
    except FrameError:
        return


@given(
    code=I16,
    opaque=I32,
    flag=st.integers(0, 3),
    version=st.integers(0, 32767),
    remark=st.none() | TEXT.filter(bool),
    fields=st.dictionaries(TEXT.filter(bool), TEXT.filter(bool), min_size=1, max_size=5),
    body=st.binary(max_size=50),
    codec=st.sampled_from([CODEC_JSON, CODEC_ROCKETMQ, CODEC_MSGPACK]),
)
def test_encode_then_decode_is_identity(
    code: int,
    opaque: int,
    flag: int,
    version: int,
    remark: str | None,
    fields: dict[str, str],
    body: bytes,
    codec: int,
) -> None:
    command = Command(
        code,
        opaque=opaque,
        flag=flag,
        version=version,
        remark=remark,
        ext_fields=fields,
        body=body,
        codec=codec,
    )
    assert facts(decode_command(one_frame(encode_command(command)))) == facts(command)


def test_the_binary_codec_cuts_codes_to_16_bits_as_the_official_one_does() -> None:
    frame = one_frame(encode_command(Command(200050, codec=CODEC_ROCKETMQ)))
    assert decode_command(frame).code == 3442


def test_the_specified_samples() -> None:
    command = Command(105, opaque=7, language="JAVA", ext_fields={"topic": "T1"})
    sample = encode_command(command)
    assert sample[:8].hex() == "000000800000007c"
    assert sample[8:] == (
        b'{"code":105,"extFields":{"topic":"T1"},"flag":0,"language":"JAVA","opaque":7,'
        b'"serializeTypeCurrentRPC":"JSON","version":479}'
    )
    command.codec = CODEC_ROCKETMQ
    assert encode_command(command).hex() == (
        "000000260100002200690001df0000000700000000000000000000000d0005746f706963000000025431"
    )


def golden_commands() -> Iterator[Any]:
    for name in ("commands.json", "commands-with-headers.json"):
        for case in json.loads((GOLDEN / "codec" / name).read_text()):
            for codec in CODECS:
                if codec in case:
                    yield pytest.param(case, codec, id=f"{name[:-5]}-{case['n']}-{codec}")


@pytest.mark.parametrize(("case", "codec"), list(golden_commands()))
def test_official_frames_decode_and_encode_equal(case: dict[str, Any], codec: str) -> None:
    frame = base64.b64decode(case[codec]["frameB64"])
    command = decode_command(one_frame(frame))
    expected = case[codec]["decoded"]
    named = ("code", "language", "version", "opaque", "flag", "remark")
    assert {name: getattr(command, name) for name in named} == {name: expected[name] for name in named}
    fields = expected["extFields"]
    # The official binary decoder reads an empty text as null; we keep it, so that a frame encodes back.
    official = fields if codec == "JSON" or fields is None else {k: v or "" for k, v in fields.items()}
    assert command.ext_fields == official
    assert base64.b64encode(command.body).decode() == (expected["bodyB64"] or "")
    assert encode_command(command) == frame


# What the official decoder takes and we do not: we read standard JSON and numbers as text, no more.
LENIENT = {
    '{"code":1.9}', '{"code":null}', '{"code":1,"remark":5}', "{'code':1}", "{code:1}", '{"code":1,}',
    '/* c */{"code":1}', '{"code":+5}', '{"code":01}', '{"code":true}',
}  # fmt: skip
# Spelling that we do not guess: the field counts as absent.
RESPELT = {'{"CODE":5}': 0, '{"Code":5,"ext_fields":{"a":"b"}}': 0}


@pytest.mark.parametrize(
    "case",
    json.loads((GOLDEN / "codec" / "json-header-decode.json").read_text()),
    ids=lambda case: str(case["headerText"]),
)
def test_odd_json_headers(case: dict[str, Any]) -> None:
    text, expected = case["headerText"], case["decoded"]
    frame = one_frame(base64.b64decode(case["frameB64"]))
    if "error" in expected or text in LENIENT:
        with pytest.raises(FrameError):
            decode_command(frame)
        return
    command = decode_command(frame)
    assert command.code == RESPELT.get(text, expected["code"])
    assert command.remark == expected["remark"]
    if text not in RESPELT and expected["extFields"] is not None:
        assert command.ext == {
            key: value for key, value in expected["extFields"].items() if value is not None
        }


def captured_frames() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted((GOLDEN / "wire").glob("*/*.jsonl.gz")):
        with gzip.open(path, "rt") as lines:
            for line in lines:
                entry = json.loads(line)
                if "header" in entry:
                    yield path.name, entry


def test_every_captured_frame_decodes_to_what_the_recorder_saw_and_encodes_back() -> None:
    count = 0
    for name, entry in captured_frames():
        raw = base64.b64decode(entry["frame_b64"])
        command = decode_command(one_frame(raw))
        header = entry["header"]
        assert (command.code, command.opaque, command.flag) == (
            header["code"],
            header["opaque"],
            header["flag"],
        ), name
        assert command.ext == (header.get("extFields") or {}), name
        assert command.remark == (header.get("remark") or command.remark), name
        count += 1
        if encode_command(command) != raw:
            # Signed requests write their fields twice in the binary codec; the last ones count.
            assert command.codec == CODEC_ROCKETMQ
            assert "Signature" in command.ext, name
    assert count > 3000


def test_language_names_cover_both_codecs() -> None:
    assert language_name(9) == language_name("GO") == "GO"
    assert language_name(99) == language_name("COBOL") == language_name(None) == "OTHER"


@pytest.mark.parametrize(
    ("sent", "name"),
    [
        (bytes.fromhex("16030105c2010005be0303"), "a TLS hello"),
        (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", "an HTTP request"),
        (b"OPTIONS * HTTP/1.1\r\n\r\n", "an HTTP request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "an HTTP/2 or gRPC preface"),
        (b"HTTP/1.1 400 Bad Request\r\n", "an HTTP answer"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "an SSH greeting"),
    ],
)
@pytest.mark.parametrize("first", [4, 7, 100])
def test_other_protocols_are_named(sent: bytes, name: str, first: int) -> None:
    """A TLS hello was "frame of 369295622 bytes is over the limit"."""
    decoder = FrameDecoder()
    assert decoder.feed(sent[:first]) == []
    assert str(decoder.error).startswith(f"{name}, not a frame")


def test_unknown_codecs_are_refused_both_ways() -> None:
    with pytest.raises(FrameError, match="codec 7"):
        decode_command((7, b"{}", b""))
    with pytest.raises(FrameError, match="codec 7"):
        encode_command(Command(1, codec=7))


def test_a_frame_that_comes_in_tiny_pieces_takes_no_more_memory_than_its_bytes() -> None:
    """Each piece of three bytes took 44: a frame that drips cost fifteen times what was counted for it."""
    decoder = FrameDecoder(1 << 24, 1 << 20)
    decoder.feed(struct.pack(">II", 1 << 23, 100))
    tracemalloc.start()
    try:
        for number in range(50_000):
            decoder.feed(bytes((number & 255, 7, 9)))
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert decoder.pending_size == 8 + 150_000
    assert size < 2 * decoder.pending_size
