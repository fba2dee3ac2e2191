"""The PROXY protocol: what a proxy says ahead of the bytes that it passes on, of whom they come from.

Touches  nothing.

    version 1   "PROXY TCP4 " source " " destination " " source port " " destination port "\\r\\n", TCP6 likewise, or
                "PROXY UNKNOWN" and anything "\\r\\n"; at most 107 bytes
    version 2   0d0a0d0a000d0a515549540a | u8 version 2, command | u8 family, transport | u16 size | so many bytes:
                source, destination (4 bytes each for IPv4, 16 for IPv6) | their ports u16, u16 | more that is skipped

A connection of the proxy's own (LOCAL), and one of which it tells nothing that fits (UNKNOWN, UDP, a path of Unix), has
no source: it comes from the proxy.

Invariants
- A byte behind the header is never taken: it belongs to the connection.
- The source is an address as sockets show it: without zeros in front, IPv4 never in the clothes of IPv6.
"""

import re
import struct
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from aerobee_proto.errors import FrameError

__all__ = [
    "HEADER_SIZE_MAX",
    "UNNAMED",
    "ProxyHeaderDecoder",
    "ProxyHeaderError",
    "Source",
    "is_proxy_header",
]

Source = tuple[str, int]  # address and port

V1_SIGN: Final = b"PROXY "
V2_SIGN: Final = bytes.fromhex("0d0a0d0a000d0a515549540a")
V1_SIZE_MAX: Final = 107
HEADER_SIZE_MAX: Final = (
    4096  # what is skipped included: a certificate's subject, a name of the network, checksums
)
_V2_FIXED: Final = struct.Struct(">12sBBH")
_V1: Final = re.compile(
    r"PROXY (TCP[46]) ([0-9a-fA-F:.]+) ([0-9a-fA-F:.]+) (0|[1-9]\d{0,4}) (0|[1-9]\d{0,4})\r\n", re.ASCII
)
UNNAMED: Final = (
    "a PROXY protocol header; they are believed once, and only from the addresses of proxyProtocolFrom"
)
LOCAL, PROXY = 0, 1
TCP4, TCP6 = 0x11, 0x21
_V2_ADDRESSES: Final = {TCP4: struct.Struct(">4s4sHH"), TCP6: struct.Struct(">16s16sHH")}
_V2_OTHERS: Final = frozenset({0x00, 0x12, 0x22, 0x31, 0x32})  # not told, UDP, Unix


class ProxyHeaderError(FrameError):
    """No header where one has to be, a broken one, or one from somebody who is not believed."""


def is_proxy_header(data: bytes) -> bool:
    """Whether bytes begin with a header, as far as four of them tell: no frame and no TLS hello begins so."""
    return data.startswith((V1_SIGN[:4], V2_SIGN[:4]))


class ProxyHeaderDecoder:
    """Cuts the header off the front of a stream, whatever the cut of the input. Once `is_whole`, nothing is fed any
    more; after ProxyHeaderError the connection must be closed."""

    __slots__ = ("_data", "is_whole", "source")

    def __init__(self) -> None:
        self._data = b""  # of the header
        self.is_whole = False
        self.source: Source | None = (
            None  # when it is whole; None: the connection comes from the proxy itself
        )

    @property
    def size(self) -> int:
        """Bytes of the header that were taken."""
        return len(self._data)

    def feed(self, data: bytes) -> int:
        """The next bytes of the stream; how many of them are the header's. ProxyHeaderError."""
        before, data = len(self._data), self._data + data
        size = _size_of(data)
        if size is None or size > len(data):
            self._data = data
            return len(data) - before
        self._data = data[:size]
        self.source = _v1_source(self._data) if data.startswith(V1_SIGN) else _v2_source(self._data)
        self.is_whole = True
        return size - before


def _size_of(data: bytes) -> int | None:
    """Bytes of the header that begins here; None: more is needed to tell, and all of this is the header's."""
    if V2_SIGN.startswith(data[: len(V2_SIGN)]):
        if len(data) < _V2_FIXED.size:
            return None
        size = int(_V2_FIXED.size + _V2_FIXED.unpack_from(data)[3])
        if size > HEADER_SIZE_MAX:
            raise ProxyHeaderError(f"PROXY header of {size} bytes, at most {HEADER_SIZE_MAX} are taken")
        return size
    if not V1_SIGN.startswith(data[: len(V1_SIGN)]):
        raise ProxyHeaderError("no PROXY header, which each connection from this address has to begin with")
    end = data.find(b"\n", 0, V1_SIZE_MAX)
    if end >= 0:
        return end + 1
    if len(data) >= V1_SIZE_MAX:
        raise ProxyHeaderError(f"PROXY header of text without an end within {V1_SIZE_MAX} bytes")
    return None


def _v1_source(header: bytes) -> Source | None:
    text = header.decode("latin-1")
    if re.match(r"PROXY UNKNOWN[ \r]", text) and text.endswith("\r\n"):
        return None
    parts = _V1.fullmatch(text)
    if parts is None:
        raise ProxyHeaderError(f"PROXY header {text[:V1_SIZE_MAX]!r} is not of the form that is agreed")
    family, source, destination, *ports = parts.groups()
    try:
        kind = IPv4Address if family == "TCP4" else IPv6Address
        kind(destination)
        found = kind(source)
    except ValueError as wrong:
        raise ProxyHeaderError(f"PROXY header: {wrong}") from None
    source_port, destination_port = map(int, ports)
    if max(source_port, destination_port) > 65_535:
        raise ProxyHeaderError(f"PROXY header: no port is {max(source_port, destination_port)}")
    return _shown(found), source_port


def _v2_source(header: bytes) -> Source | None:
    _, first, kind, size = _V2_FIXED.unpack_from(header)
    version, command = first >> 4, first & 15
    if version != 2 or command not in (LOCAL, PROXY):
        raise ProxyHeaderError(f"PROXY header of version {version} with command {command}")
    if command == LOCAL or kind in _V2_OTHERS:
        return None
    form = _V2_ADDRESSES.get(kind)
    if form is None:
        raise ProxyHeaderError(f"PROXY header of the unknown family {kind:#04x}")
    if size < form.size:
        raise ProxyHeaderError(f"PROXY header whose addresses have {size} bytes in place of {form.size}")
    source, _, source_port, _ = form.unpack_from(header, _V2_FIXED.size)
    return _shown(IPv4Address(source) if kind == TCP4 else IPv6Address(source)), source_port


def _shown(address: IPv4Address | IPv6Address) -> str:
    inner = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(inner or address)
