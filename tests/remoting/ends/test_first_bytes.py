"""Connections that proxies pass on, over real sockets: the address of their header, and who is not believed."""

import asyncio
import ssl
import struct
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import trustme
import uvloop
from structlog.testing import capture_logs

from aerobee_proto.frames import Command, encode_command
from aerobee_remoting.ends import server as server_module
from aerobee_remoting.ends.server import RemotingServer, ServerConfig, TlsMode
from aerobee_remoting.exchange.handlers import HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import Open
from aerobee_remoting.peers.networks import Networks
from remoting.pair import RawPeer, raw_peer, serving

WHO = 505
SIGN = bytes.fromhex("0d0a0d0a000d0a515549540a")
PROXIES = Networks("127.0.0.1")
TEXT = b"PROXY TCP4 203.0.113.7 10.0.0.2 50123 10911\r\n"
PORTS = struct.pack(">HH", 50123, 10911)
BINARY = SIGN + struct.pack(">BBH", 0x21, 0x11, 20) + bytes([203, 0, 113, 7, 10, 0, 0, 2]) + PORTS + bytes(8)
SIXTH = SIGN + struct.pack(">BBH", 0x21, 0x21, 36) + bytes.fromhex("20010db8" + "00" * 11 + "07") * 2 + PORTS
LOCAL = SIGN + struct.pack(">BBH", 0x20, 0, 0)
THEIRS = "203.0.113.7:50123"
HEADERS = {
    "text": (TEXT, THEIRS),
    "binary with more that is skipped": (BINARY, THEIRS),
    "IPv6": (SIXTH, "[2001:db8::7]:50123"),
    "of the proxy itself": (LOCAL, ""),
    "of nobody": (b"PROXY UNKNOWN\r\n", ""),
}
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def table() -> HandlerTable:
    handlers = HandlerTable()

    def who(request: Request[Any]) -> Response:
        peer = request.connection
        return Response(ext={"peer": peer.peer, "host": peer.peer_host})

    handlers.register(WHO, who, needs=Open("a test"))
    return handlers


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def contexts(authority: trustme.CA) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    serves, dials = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.issue_cert("127.0.0.1").configure_cert(serves)
    authority.configure_trust(dials)
    return serves, dials


def behind_proxies(**settings: Any) -> AbstractAsyncContextManager[tuple[RemotingServer, int]]:
    return serving(table(), ServerConfig(proxies=PROXIES, **settings))


async def who_i_am(peer: RawPeer) -> str:
    peer.send(Command(WHO, opaque=7))
    answer = await peer.receive()
    return answer.ext["peer"]


def own_address(peer: RawPeer) -> str:
    host, port = peer.writer.get_extra_info("sockname")
    return f"{host}:{port}"


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize(("header", "address"), HEADERS.values(), ids=HEADERS)
def test_the_address_of_the_header_counts(
    header: bytes, address: str, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """Cut at any byte: each piece in a packet of its own, the last one with the first request behind it."""

    async def ask() -> None:
        async with behind_proxies() as (server, port):
            for cut in range(len(header)):
                async with raw_peer(port) as peer:
                    peer.writer.write(header[:cut])
                    await peer.writer.drain()
                    if cut % 7 == 0:
                        await until(lambda: server.welcoming.total() == 1)
                    peer.writer.write(header[cut:])
                    assert await who_i_am(peer) == (address or own_address(peer))

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(ask())


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110  # no event for it
            await asyncio.sleep(0)


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("mode", [TlsMode.PERMISSIVE, TlsMode.ENFORCING])
def test_the_header_comes_before_the_hello_of_tls(
    authority: trustme.CA, mode: TlsMode, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    serves, dials = contexts(authority)

    async def ask() -> None:
        async with behind_proxies(tls_mode=mode, tls=serves) as (server, port):
            for header in (TEXT, BINARY):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(header)
                await writer.start_tls(dials, server_hostname="127.0.0.1")
                assert await who_i_am(RawPeer(reader, writer)) == THEIRS
                writer.close()
            await until(lambda: not server.connections)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(ask())


async def test_plain_is_taken_behind_a_header_only_where_it_is_without(authority: trustme.CA) -> None:
    serves, _ = contexts(authority)
    async with behind_proxies(tls_mode=TlsMode.PERMISSIVE, tls=serves) as (_, port), raw_peer(port) as peer:
        peer.writer.write(TEXT)
        assert await who_i_am(peer) == THEIRS
    async with (
        behind_proxies(tls_mode=TlsMode.ENFORCING, tls=serves) as (server, port),
        raw_peer(port) as peer,
    ):
        peer.writer.write(TEXT + encode_command(Command(WHO)))
        assert await peer.is_closed_by_the_server()
        assert server.broken_off == {"plain": 1}


@pytest.mark.parametrize("header", [TEXT, BINARY, LOCAL])
@pytest.mark.parametrize("named", ["", "10.0.0.1"])
@pytest.mark.parametrize("mode", TlsMode)
async def test_a_header_of_an_address_that_is_not_named_closes_the_connection(
    authority: trustme.CA, header: bytes, named: str, mode: TlsMode
) -> None:
    """The official servers believe it: there any client says where it comes from."""
    serves, _ = contexts(authority)
    config = ServerConfig(
        proxies=Networks(named), tls_mode=mode, tls=None if mode is TlsMode.DISABLED else serves
    )
    with capture_logs() as logs:
        async with serving(table(), config) as (server, port), raw_peer(port) as peer:
            peer.writer.write(header + encode_command(Command(WHO)))
            assert await peer.is_closed_by_the_server()
            assert server.broken_off == {"proxy_header": 1}
            (told,) = [one for one in logs if one["event"] == "remoting.proxy_header_refused"]
            assert told["peer"] == own_address(peer)
            assert "proxyProtocolFrom" in told["reason"]


async def test_others_are_served_without_a_header_where_proxies_are_named() -> None:
    async with (
        serving(table(), ServerConfig(proxies=Networks("10.0.0.1"))) as (_, port),
        raw_peer(port) as peer,
    ):
        assert await who_i_am(peer) == own_address(peer)


@pytest.mark.parametrize(
    "sent",
    [
        encode_command(Command(WHO)),
        b"\x16\x03\x01\x00\x05hello",
        TEXT[:-2] + b" 1\r\n",
        TEXT + TEXT,
        BINARY + TEXT,
    ],
    ids=["a frame", "TLS", "a broken one", "two", "two of different versions"],
)
async def test_a_named_address_has_to_send_one_header(sent: bytes) -> None:
    with capture_logs() as logs:
        async with behind_proxies() as (server, port), raw_peer(port) as peer:
            peer.writer.write(sent)
            assert await peer.is_closed_by_the_server()
            await until(lambda: not server.welcoming and not server.connections)
            assert server.broken_off == {"proxy_header": 1}
    assert [one["event"] for one in logs if one["log_level"] == "warning"] == [
        "remoting.proxy_header_refused"
    ]


async def test_a_header_has_a_time_and_one_that_ends_early_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with behind_proxies() as (server, port):
        async with raw_peer(port) as peer:
            peer.writer.write(BINARY[:17])
            peer.writer.write_eof()
            assert await peer.is_closed_by_the_server()
        assert server.broken_off == {"proxy_header": 1}
        async with raw_peer(port) as peer:  # as probes of proxies do
            peer.writer.write_eof()
            assert await peer.is_closed_by_the_server()
        assert server.broken_off == {"proxy_header": 1}
        monkeypatch.setattr(server_module, "FIRST_BYTE_S", 0.05)
        for said in (b"", b"PROXY TCP4 "):
            async with raw_peer(port) as peer:
                peer.writer.write(said)
                assert await peer.is_closed_by_the_server()
        assert server.broken_off == {"proxy_header": 3}
        assert not server.welcoming


async def test_bounds_of_a_host_are_those_of_the_address_in_the_header() -> None:
    """A proxy has all connections; its own number must not shut anybody out, and one client must not have them all."""
    async with behind_proxies(connections_per_host_max=2, connections_max=6) as (server, port):
        opened = []
        for number, is_served in ((7, True), (7, True), (7, False), (8, True), (8, True), (9, True)):
            peer = RawPeer(*await asyncio.open_connection("127.0.0.1", port))
            peer.writer.write(b"PROXY TCP4 203.0.113.%d 10.0.0.2 50123 10911\r\n" % number)
            if is_served:
                assert await who_i_am(peer) == f"203.0.113.{number}:50123"
            else:
                assert await peer.is_closed_by_the_server()
            opened.append(peer)
        assert server.per_host == {"203.0.113.7": 2, "203.0.113.8": 2, "203.0.113.9": 1}
        sixth = RawPeer(*await asyncio.open_connection("127.0.0.1", port))
        await until(lambda: server.welcoming.total() == 1)
        async with raw_peer(port) as peer:  # whose it is need not be known
            assert await peer.is_closed_by_the_server()
        for one in (*opened, sixth):
            one.writer.transport.abort()
        await until(lambda: not server.connections and not server.welcoming)
        assert not server.per_host
