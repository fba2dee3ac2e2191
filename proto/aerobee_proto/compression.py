"""Compressed message bodies.

Touches  bytes it is given. zlib is always there; lz4 and zstandard are imported at first use and come with the extra
         `aerobee[compression]`.
Kinds    sys_flag bit 0 says that a body is compressed, bits 8-10 how: 0 or 3 a zlib stream, 1 an LZ4 frame,
         2 a zstd frame. Clients compress, brokers store and hand out what they got.

Invariants
- decompress_body(*compress_body(body, kind), len(body)) == body.
- Never more than the given number of bytes comes out, nor is much more than that allocated on the way.
"""

import zlib
from typing import Final, Literal

from aerobee_proto.codes import SysFlag
from aerobee_proto.errors import AerobeeError, FormatError

__all__ = ["CompressionKind", "CompressionUnavailable", "compress_body", "decompress_body"]

CompressionKind = Literal["zlib", "lz4", "zstd"]
_LEVEL: Final = 5


class CompressionUnavailable(AerobeeError):
    """The library for a kind of compression is not installed."""

    def __init__(self, kind: str, library: str) -> None:
        super().__init__(kind, library)
        self.kind = kind
        self.library = library

    def __str__(self) -> str:
        return f"{self.kind} bodies need the library {self.library}: pip install 'aerobee[compression]'"


def compress_body(body: bytes, kind: CompressionKind = "zlib", level: int = _LEVEL) -> tuple[bytes, int]:
    """The compressed body and the sys_flag bits that tell how; `level` is the codec's own.

    Raises CompressionUnavailable when the library of that kind is missing.
    """
    if kind == "lz4":
        return _lz4_compress(body, level), SysFlag.COMPRESSED | SysFlag.COMPRESSION_LZ4
    if kind == "zstd":
        return _zstd_compress(body, level), SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZSTD
    return zlib.compress(body, level), SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB


def decompress_body(body: bytes, sys_flag: int, size_max: int) -> bytes:
    """The body as it was sent: unchanged unless sys_flag says that it is compressed.

    Raises FormatError when it is damaged, cut, of an unknown kind or larger than `size_max` bytes once
    inflated, CompressionUnavailable when the library is missing.
    """
    if not sys_flag & SysFlag.COMPRESSED:
        return body
    kind = sys_flag & SysFlag.COMPRESSION_MASK
    if kind in (0, SysFlag.COMPRESSION_ZLIB):
        return _zlib_decompress(body, size_max)
    if kind == SysFlag.COMPRESSION_LZ4:
        return _lz4_decompress(body, size_max)
    if kind == SysFlag.COMPRESSION_ZSTD:
        return _zstd_decompress(body, size_max)
    raise FormatError(f"sysFlag {sys_flag:#x} names an unknown kind of compression, {kind >> 8}")


def _checked(kind: str, out: bytes, size_max: int, is_whole: bool) -> bytes:
    if len(out) > size_max:
        raise FormatError(f"the {kind} body is larger than {size_max} bytes once inflated")
    if not is_whole:
        raise FormatError(f"the {kind} body is cut: it ends after {len(out)} bytes of content")
    return out


def _zlib_decompress(body: bytes, size_max: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        out = inflater.decompress(body, size_max + 1)
    except zlib.error as error:
        raise FormatError(f"the zlib body is damaged: {error}") from error
    return _checked("zlib", out, size_max, inflater.eof)


def _lz4_compress(body: bytes, level: int) -> bytes:
    try:
        import lz4.frame  # type: ignore[import-untyped]
    except ImportError as error:
        raise CompressionUnavailable("lz4", "lz4") from error
    out: bytes = lz4.frame.compress(body, compression_level=level)
    return out


def _lz4_decompress(body: bytes, size_max: int) -> bytes:
    try:
        import lz4.frame
    except ImportError as error:
        raise CompressionUnavailable("lz4", "lz4") from error
    inflater = lz4.frame.LZ4FrameDecompressor()
    try:
        out: bytes = inflater.decompress(body, max_length=size_max + 1)
    except (RuntimeError, EOFError) as error:
        raise FormatError(f"the lz4 body is damaged: {error}") from error
    return _checked("lz4", out, size_max, inflater.eof)


def _zstd_compress(body: bytes, level: int) -> bytes:
    try:
        import zstandard
    except ImportError as error:
        raise CompressionUnavailable("zstd", "zstandard") from error
    return zstandard.ZstdCompressor(level=level).compress(body)


def _zstd_decompress(body: bytes, size_max: int) -> bytes:
    try:
        import zstandard
    except ImportError as error:
        raise CompressionUnavailable("zstd", "zstandard") from error
    try:
        # A frame that tells its size is allocated at that size, whatever the limit: look first.
        declared = zstandard.get_frame_parameters(body).content_size
        if declared != zstandard.CONTENTSIZE_UNKNOWN and declared > size_max:
            raise FormatError(f"the zstd body is larger than {size_max} bytes once inflated: {declared}")
        out = zstandard.ZstdDecompressor().decompress(
            body, max_output_size=max(size_max, 1), allow_extra_data=True
        )
    except zstandard.ZstdError as error:
        raise FormatError(f"the zstd body is damaged, cut or over {size_max} bytes: {error}") from error
    return _checked("zstd", out, size_max, is_whole=True)
