"""Compressed bodies: official streams, round trips, bombs, cuts, missing libraries."""

import sys
import zlib
from contextlib import suppress

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from aerobee_proto.compression import CompressionKind, CompressionUnavailable, compress_body, decompress_body
from aerobee_proto.errors import FormatError
from proto.tables import golden_table, unbase64

KINDS: list[CompressionKind] = ["zlib", "lz4", "zstd"]
FLAGS = {"zlib": 0x301, "lz4": 0x101, "zstd": 0x201}


def test_official_streams_inflate() -> None:
    rows = golden_table("compression")
    assert {row["type"] for row in rows} == {"LZ4", "ZSTD", "ZLIB"}
    for row in rows:
        plain = unbase64(row["plainB64"])
        assert (
            decompress_body(unbase64(row["compressedB64"]), row["sysFlagBits"] | 1, max(len(plain), 1))
            == plain
        )


def test_zlib_without_type_bits_is_what_older_clients_send() -> None:
    assert decompress_body(zlib.compress(b"old"), 0x1, 3) == b"old"


@given(st.binary(max_size=2000), st.sampled_from(KINDS), st.integers(1, 9))
def test_compress_then_decompress_is_identity(body: bytes, kind: CompressionKind, level: int) -> None:
    packed, sys_flag = compress_body(body, kind, level)
    assert sys_flag == FLAGS[kind]
    assert decompress_body(packed, sys_flag | 0x1C, len(body)) == body


@given(st.binary(max_size=50), st.integers(0, 0x7FF).map(lambda flag: flag & ~1))
def test_a_body_that_is_not_compressed_stays(body: bytes, sys_flag: int) -> None:
    assert decompress_body(body, sys_flag, 0) is body


@pytest.mark.parametrize("kind", KINDS)
def test_a_bomb_is_refused_at_the_limit(kind: CompressionKind) -> None:
    packed, sys_flag = compress_body(bytes(5_000_000), kind)
    assert len(packed) < 50_000
    with pytest.raises(FormatError, match="4999999 bytes"):
        decompress_body(packed, sys_flag, 4_999_999)
    assert len(decompress_body(packed, sys_flag, 5_000_000)) == 5_000_000


def test_a_zstd_bomb_that_does_not_tell_its_size_is_refused() -> None:
    stream = zstandard.ZstdCompressor().compressobj()
    packed = stream.compress(bytes(5_000_000)) + stream.flush()
    with pytest.raises(FormatError, match="4999999 bytes"):
        decompress_body(packed, 0x201, 4_999_999)
    assert decompress_body(packed, 0x201, 5_000_000) == bytes(5_000_000)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_body_is_refused(kind: CompressionKind) -> None:
    packed, sys_flag = compress_body(b"some body " * 50, kind)
    for cut in range(len(packed)):
        with pytest.raises(FormatError):
            decompress_body(packed[:cut], sys_flag, 1000)


@given(st.binary(max_size=300), st.sampled_from(KINDS), st.data())
def test_damaged_bodies_raise_only_format_errors(
    body: bytes, kind: CompressionKind, data: st.DataObject
) -> None:
    packed, sys_flag = compress_body(body, kind)
    damaged = bytearray(packed)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    with suppress(FormatError):
        assert len(decompress_body(bytes(damaged), sys_flag, 1000)) <= 1000


@given(st.binary(max_size=100), st.integers(0, 0x7FF).map(lambda flag: flag | 1))
def test_any_bytes_raise_only_format_errors(body: bytes, sys_flag: int) -> None:
    with suppress(FormatError):
        assert len(decompress_body(body, sys_flag, 100)) <= 100


def test_unknown_kinds_are_named() -> None:
    with pytest.raises(FormatError, match="unknown kind of compression, 4"):
        decompress_body(b"", 0x401, 1)


@pytest.mark.parametrize(("kind", "module"), [("lz4", "lz4.frame"), ("zstd", "zstandard")])
def test_a_missing_library_is_named(
    kind: CompressionKind, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(CompressionUnavailable, match=r"aerobee\[compression\]"):
        compress_body(b"body", kind)
    with pytest.raises(CompressionUnavailable, match=r"aerobee\[compression\]"):
        decompress_body(b"body", FLAGS[kind], 10)
