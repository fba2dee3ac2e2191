"""PROXY headers: what they say, however they are cut, and what is none."""

import struct
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_proto.frames import FrameDecoder
from aerobee_proto.proxy_protocol import (
    HEADER_SIZE_MAX,
    V1_SIZE_MAX,
    V2_SIGN,
    ProxyHeaderDecoder,
    ProxyHeaderError,
    Source,
    is_proxy_header,
)

Address = IPv4Address | IPv6Address
PORTS = st.integers(0, 65_535)
ADDRESSES: st.SearchStrategy[tuple[Address, Address]] = st.one_of(
    st.tuples(st.ip_addresses(v=4), st.ip_addresses(v=4)),
    st.tuples(st.ip_addresses(v=6), st.ip_addresses(v=6)),
)


def text_header(source: Address, target: Address, source_port: int, port: int) -> bytes:
    return f"PROXY TCP{source.version} {source} {target} {source_port} {port}\r\n".encode()


def binary_header(command: int, kind: int, block: bytes) -> bytes:
    return V2_SIGN + struct.pack(">BBH", 0x20 | command, kind, len(block)) + block


def addresses_block(source: Address, target: Address, source_port: int, port: int) -> bytes:
    return source.packed + target.packed + struct.pack(">HH", source_port, port)


def read(stream: bytes, cuts: list[int]) -> tuple[Source | None, bytes]:
    """What the header says, and what is behind it, of a stream that comes in pieces."""
    decoder, behind = ProxyHeaderDecoder(), b""
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        piece = stream[begin:end]
        behind += piece if decoder.is_whole else piece[decoder.feed(piece) :]
    assert decoder.is_whole
    assert decoder.size + len(behind) == len(stream)
    return decoder.source, behind


def shown(address: Address) -> str:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


@given(
    st.lists(st.integers(0, 300), max_size=6),
    ADDRESSES,
    PORTS,
    PORTS,
    st.binary(max_size=40),
    st.binary(max_size=60),
)
def test_a_header_of_either_version_says_the_source_however_it_is_cut(
    places: list[int],
    addresses: tuple[Address, Address],
    source_port: int,
    port: int,
    skipped: bytes,
    behind: bytes,
) -> None:
    block = addresses_block(*addresses, source_port, port) + skipped
    for header in (
        text_header(*addresses, source_port, port),
        binary_header(1, 0x11 if addresses[0].version == 4 else 0x21, block),
    ):
        stream = header + behind
        said = (shown(addresses[0]), source_port), behind
        assert read(stream, sorted(min(place, len(stream)) for place in places)) == said
        assert read(stream, list(range(1, len(stream)))) == said
        assert is_proxy_header(header)


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY UNKNOWN\r\n",
        b"PROXY UNKNOWN ffff:ffff 1.2.3.4 whatever 7\r\n",
        binary_header(0, 0x11, addresses_block(IPv4Address("1.2.3.4"), IPv4Address("1.2.3.5"), 1, 2)),
        binary_header(0, 0xFF, b""),
        binary_header(1, 0x00, b"\x04\x00\x03abc"),
        binary_header(1, 0x31, bytes(216)),
        binary_header(1, 0x12, bytes(12)),
    ],
)
def test_what_the_proxy_says_of_nobody_else_is_its_own(header: bytes) -> None:
    assert read(header + b"x", list(range(1, len(header) + 1))) == (None, b"x")


FOUR = addresses_block(IPv4Address("1.2.3.4"), IPv4Address("1.2.3.5"), 1, 2)
BROKEN = {
    "a frame": b"\x00\x00\x00\x10\x00\x00\x00\x08{}",
    "a hello of TLS": b"\x16\x03\x01\x02\x00\x01",
    "an HTTP request": b"GET / HTTP/1.1\r\n\r\n",
    "nearly the sign": b"PROXi TCP4 1.2.3.4 1.2.3.5 1 2\r\n",
    "nearly the other sign": V2_SIGN[:11] + b"\x0b!\x11\x00\x0c" + FOUR,
    "a line without CR": b"PROXY TCP4 1.2.3.4 1.2.3.5 1 2\n",
    "two blanks": b"PROXY TCP4  1.2.3.4 1.2.3.5 1 2\r\n",
    "a fifth word": b"PROXY TCP4 1.2.3.4 1.2.3.5 1 2 3\r\n",
    "zeros in front": b"PROXY TCP4 01.2.3.4 1.2.3.5 1 2\r\n",
    "the other kind of address": b"PROXY TCP6 1.2.3.4 1.2.3.5 1 2\r\n",
    "a broken target": b"PROXY TCP4 1.2.3.4 1.2.3.500 1 2\r\n",
    "a scope": b"PROXY TCP6 fe80::1%eth0 fe80::2 1 2\r\n",
    "a port beyond": b"PROXY TCP4 1.2.3.4 1.2.3.5 1 65536\r\n",
    "digits beyond ASCII": "PROXY TCP4 1.2.3.4 1.2.3.5 1 \u0662\r\n".encode(),
    "a family nobody knows": b"PROXY UDP4 1.2.3.4 1.2.3.5 1 2\r\n",
    "UNKNOWN and more letters": b"PROXY UNKNOWNS\r\n",
    "no end": b"PROXY UNKNOWN " + b"x" * V1_SIZE_MAX,
    "version 1 in binary": V2_SIGN + b"\x11\x11\x00\x0c" + FOUR,
    "a third command": binary_header(2, 0x11, FOUR),
    "a kind nobody knows": binary_header(1, 0x41, FOUR),
    "addresses cut short": binary_header(1, 0x11, FOUR[:-1]),
    "addresses of the other kind": binary_header(1, 0x21, FOUR),
    "more than is taken": binary_header(1, 0x11, bytes(HEADER_SIZE_MAX)),
}


@pytest.mark.parametrize("stream", BROKEN.values(), ids=BROKEN)
def test_what_is_no_header_is_refused_at_once_and_byte_by_byte(stream: bytes) -> None:
    with pytest.raises(ProxyHeaderError):
        ProxyHeaderDecoder().feed(stream)
    with pytest.raises(ProxyHeaderError):
        read(stream, list(range(1, len(stream))))


def test_the_largest_header_that_is_taken() -> None:
    header = binary_header(1, 0x11, FOUR + bytes(HEADER_SIZE_MAX - 16 - len(FOUR)))
    assert len(header) == HEADER_SIZE_MAX
    assert read(header + b"behind", []) == (("1.2.3.4", 1), b"behind")


@pytest.mark.parametrize(
    "header", [text_header, lambda *facts: binary_header(1, 0x11, addresses_block(*facts))]
)
def test_among_frames_a_header_is_named_and_refused(header: object) -> None:
    assert callable(header)
    decoder = FrameDecoder()
    assert decoder.feed(header(IPv4Address("1.2.3.4"), IPv4Address("1.2.3.5"), 1, 2)) == []
    assert isinstance(decoder.error, ProxyHeaderError)
    assert "proxyProtocolFrom" in str(decoder.error)
