"""The server side over real sockets: what it answers, what it closes, what it lives through."""

import asyncio
import base64
import json
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from structlog.testing import capture_logs

from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.frames import CODEC_JSON, CODEC_MSGPACK, CODEC_ROCKETMQ, Command, encode_command
from aerobee_proto.headers import RouteHeader
from aerobee_remoting.ends import server as server_module
from aerobee_remoting.ends.client import RemotingClient, RemotingClientConfig
from aerobee_remoting.ends.server import RemotingServer, ServerConfig, TlsMode
from aerobee_remoting.exchange.connection import RUNNING_SIZE_MAX, Connection
from aerobee_remoting.exchange.handlers import Channel, HandlerTable, Request, Response
from aerobee_remoting.exchange.limits import ConnectionLimits
from aerobee_remoting.exchange.needs import Open
from aerobee_remoting.peers.errors import ConnectFailed, ConnectionLost
from aerobee_service.program import accepting
from aerobee_service.turns.turns import Account, Turns
from circles import circles
from remoting.ends.test_first_bytes import until
from remoting.pair import RawPeer, raw_peer, serving


def welcoming(server: RemotingServer) -> dict[str, int]:
    """Connections that have not said anything yet, by their host."""
    return server.welcoming


def per_host(server: RemotingServer) -> dict[str, int]:
    """Connections that have, by their host."""
    return server.per_host


GOLDEN = Path(__file__).parent.parent.parent / "golden" / "wire"
HALF = "half a frame then silence"
ECHO, FAIL, REFUSE, SLOW, BATCH, SILENT = 105, 501, 502, 503, 504, 505


def table(gate: asyncio.Event | None = None) -> HandlerTable:
    handlers, opened = HandlerTable(), gate or asyncio.Event()

    def echo(request: Request[Any]) -> Response:
        return Response(ext={"topic": request.header.topic}, body=request.body)

    def fail(_: Request[Any]) -> Response:
        raise ZeroDivisionError("by design")

    def refuse(_: Request[Any]) -> Response:
        raise RequestError(ResponseCode.NO_PERMISSION, "not you")

    async def slow(_: Request[Any]) -> Response:
        await asyncio.wait_for(opened.wait(), 10)
        return Response(body=b"late")

    def batch(connection: Channel, items: Any) -> None:
        sizes = ",".join(str(len(item.body)) for item in items)
        for item in items:
            connection.respond(item.codec, item.envelope.opaque, Response(ext={"sizes": sizes}))

    handlers.register(ECHO, echo, needs=Open("a test"), header=RouteHeader, body_size_max=1000)
    handlers.register(FAIL, fail, needs=Open("a test"))
    handlers.register(REFUSE, refuse, needs=Open("a test"))
    handlers.register(SLOW, slow, needs=Open("a test"))
    handlers.register_batch(BATCH, batch, needs=Open("a test"), header=RouteHeader, body_size_max=1000)
    handlers.register(SILENT, lambda _: None, needs=Open("a test"))
    return handlers


def echo(opaque: int = 1, **changes: Any) -> Command:
    fields: dict[str, Any] = {"code": ECHO, "opaque": opaque, "ext_fields": {"topic": "T"}}
    return Command(**(fields | changes))


@pytest.mark.parametrize("codec", [CODEC_JSON, CODEC_ROCKETMQ, CODEC_MSGPACK])
async def test_an_answer_comes_in_the_codec_of_its_request(codec: int) -> None:
    async with serving(table()) as (_, port), raw_peer(port) as peer:
        peer.send(echo(77, codec=codec, body=b"hello"))
        answer = await peer.receive()
        assert (answer.code, answer.opaque, answer.codec, answer.body) == (0, 77, codec, b"hello")
        assert answer.is_response
        assert answer.ext["topic"] == "T"


async def test_refusals_and_failures_are_answers_and_the_connection_lives() -> None:
    async with serving(table()) as (_, port), raw_peer(port) as peer:
        cases = [
            (Command(FAIL, opaque=1), ResponseCode.SYSTEM_ERROR, "by design"),
            (Command(REFUSE, opaque=2), ResponseCode.NO_PERMISSION, "not you"),
            (
                Command(9999, opaque=3),
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                " request type 9999 not supported",
            ),
            (Command(-5, opaque=4), ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "-5"),
            (Command(ECHO, opaque=5), ResponseCode.SYSTEM_ERROR, "topic"),
            (echo(6, body=bytes(1001)), ResponseCode.MESSAGE_ILLEGAL, "at most 1000"),
            # A handler that does not say how large a body it reads gets none.
            (
                Command(FAIL, opaque=8, body=b"x"),
                ResponseCode.MESSAGE_ILLEGAL,
                "takes no body, this one has 1",
            ),
        ]
        for command, code, text in cases:
            peer.send(command)
            answer = await peer.receive()
            assert (answer.code, answer.opaque) == (code, command.opaque)
            assert text in (answer.remark or "")
        peer.send(echo(7))
        assert (await peer.receive()).code == 0


async def test_oneway_requests_stray_answers_and_empty_headers_get_no_answer() -> None:
    async with serving(table()) as (_, port), raw_peer(port) as peer:
        peer.send(
            echo(1, flag=2),
            Command(FAIL, opaque=2, flag=2),
            Command(9999, opaque=3, flag=2),
            Command(0, opaque=4, flag=1),
            Command(ECHO, opaque=5, flag=1),
            Command(0, opaque=6),
            echo(7),
        )
        assert (await peer.receive()).opaque == 7


async def test_consecutive_requests_of_a_batch_handler_come_together_and_order_is_kept() -> None:
    async with serving(table()) as (_, port), raw_peer(port) as peer:
        batch = {"code": BATCH, "ext_fields": {"topic": "T"}}
        peer.send(
            Command(**batch, opaque=1, body=b"a"),  # type: ignore[arg-type]
            Command(**batch, opaque=2, body=b"bb"),  # type: ignore[arg-type]
            echo(3),
            Command(**batch, opaque=4, body=b"cccc"),  # type: ignore[arg-type]
        )
        answers = [await peer.receive() for _ in range(4)]
        assert [a.opaque for a in answers] == [1, 2, 3, 4]
        assert [a.ext.get("sizes") for a in answers] == ["1,2", "1,2", None, "4"]


async def test_a_failing_batch_handler_answers_each_request() -> None:
    handlers = HandlerTable()

    def broken(_: Channel, __: Any) -> None:
        raise KeyError("lost")

    handlers.register_batch(BATCH, broken, needs=Open("a test"), header=RouteHeader)
    async with serving(handlers) as (_, port), raw_peer(port) as peer:
        for opaque in (1, 2):
            peer.send(Command(BATCH, opaque=opaque, ext_fields={"topic": "T"}))
            answer = await peer.receive()
            assert (answer.code, answer.opaque) == (ResponseCode.SYSTEM_ERROR, opaque)


BROKEN_STREAMS = {
    "length 0": b"\0\0\0\0",
    "negative length": b"\xff\xff\xff\xffxxxx",
    "length 2^31-1": b"\x7f\xff\xff\xffxxxx",
    "header longer than the frame": b"\x00\x00\x00\x0f\x00\x00\x08^",
    "unknown codec": b'\x00\x00\x00\x1a\x07\x00\x00\x16{"code":28,"opaque":1}',
    "not JSON": b"\x00\x00\x00\x0f\x00\x00\x00\x0bhello world",
    "http": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("data", BROKEN_STREAMS.values(), ids=list(BROKEN_STREAMS))
async def test_a_broken_stream_is_closed_after_its_good_frames_and_others_notice_nothing(data: bytes) -> None:
    async with serving(table()) as (_, port), raw_peer(port) as good, raw_peer(port) as bad:
        bad.writer.write(encode_command(echo(1)) + data)
        assert (await bad.receive()).opaque == 1
        assert await bad.is_closed_by_the_server()
        good.send(echo(2))
        assert (await good.receive()).opaque == 2


async def test_a_frame_that_is_broken_inside_is_told_once() -> None:
    """The reader of requests and the reader of bytes both told it."""
    header = b"{" * 30
    data = (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
    with capture_logs() as logs:
        async with serving(table()) as (server, port), raw_peer(port) as peer:
            peer.writer.write(data)
            assert await peer.is_closed_by_the_server()
            assert server.broken_off == {"frame": 1}
    assert [one["event"] for one in logs].count("remoting.frame_refused") == 1


def captured_nonsense() -> list[Any]:
    """Requests to the official nameserver that broke its stream, and whether it closed the connection."""
    cases = []
    for codec in ("JSON", "ROCKETMQ"):
        for case in json.loads((GOLDEN / f"malformed-{codec}.json").read_text()):
            # Codec 2 is our msgpack; a half frame may still become whole, so the clock closes that one.
            if case["closed"] and not case["answers"] and case["name"] not in ("codec type 2", HALF):
                cases.append(pytest.param(base64.b64decode(case["send_b64"]), id=f"{codec}-{case['name']}"))
    return cases


@pytest.mark.parametrize("data", captured_nonsense())
async def test_what_closes_an_official_connection_closes_ours(data: bytes) -> None:
    async with serving(table()) as (_, port), raw_peer(port) as peer:
        peer.writer.write(data)
        assert await peer.is_closed_by_the_server()


def test_of_several_refusals_the_last_counts_and_each_is_taken_back_by_itself() -> None:
    """In whichever order they go: a code is served again when the last of them has gone."""
    handlers = HandlerTable()
    handlers.register(REFUSE, lambda _: Response(), needs=Open("a test"))
    served = handlers.by_code[REFUSE]
    one = handlers.refuse({REFUSE}, RequestError(1, "one"))
    first = handlers.by_code[REFUSE]
    other = handlers.refuse({REFUSE, REFUSE + 1}, RequestError(2, "other"))
    assert handlers.by_code[REFUSE] not in (served, first)
    one()
    assert handlers.by_code[REFUSE] is not served
    other()
    assert handlers.by_code[REFUSE] is served


async def test_what_was_refused_for_a_while_is_counted_with_the_rest() -> None:
    """A counter of requests never goes back, whoever answers them."""
    handlers = table()
    counted = []

    def count() -> None:
        counted.append({code: number for code, _, number, _ in handlers.counts()}[ECHO])

    async with serving(handlers) as (_, port), raw_peer(port) as peer:
        for number in range(6):
            if number == 2:
                serve_again = handlers.refuse({ECHO}, RequestError(1, "not now"))
            if number == 4:
                serve_again()
            peer.send(echo(number))
            await peer.receive()
            count()
        count()
    assert counted == [1, 2, 3, 4, 5, 6, 6]


async def test_a_second_handler_for_a_code_is_refused() -> None:
    handlers = table()
    with pytest.raises(ValueError, match="105"):
        handlers.register(ECHO, lambda _: None, needs=Open("a test"))


async def test_reading_stops_at_the_in_flight_bound_and_goes_on_after_answers() -> None:
    config = ServerConfig(limits=ConnectionLimits(in_flight_max=3))
    gate = asyncio.Event()
    async with serving(table(gate), config) as (server, port), raw_peer(port) as peer:
        for opaque in range(3):
            peer.send(Command(SLOW, opaque=opaque))
        await connected(server, lambda c: c.in_flight == 3)
        peer.send(echo(50))
        gate.set()
        answers = {(await peer.receive()).opaque for _ in range(4)}
        assert answers == {0, 1, 2, 50}


async def test_reading_stops_at_the_bytes_that_are_worked_on_and_goes_on_after_answers() -> None:
    """Requests of 120 KiB that waited for a lock were 600 MiB in memory, for one connection."""
    gate, handlers = asyncio.Event(), HandlerTable()

    async def waits(request: Request[Any]) -> Response:
        await gate.wait()
        return Response()

    handlers.register(SLOW, waits, needs=Open("a test"), header=RouteHeader)
    async with serving(handlers) as (server, port), raw_peer(port) as peer:
        for opaque in range(200):
            peer.send(Command(SLOW, opaque=opaque, ext_fields={"topic": "x" * 200_000}))
        (connection,) = await connected(
            server, lambda c: c.reading_paused and c.buffered_size >= RUNNING_SIZE_MAX
        )
        assert connection.buffered_size < RUNNING_SIZE_MAX + (2 << 20)
        assert connection.in_flight < 50
        gate.set()
        assert {(await peer.receive()).opaque for _ in range(200)} == set(range(200))
        assert connection.in_flight == 0
        assert connection.buffered_size == 0


async def connected(server: RemotingServer, ready: Any) -> list[Connection]:
    """Turn the loop until every connection is `ready`; only the sockets' other ends could tell by an event."""
    for _ in range(1_000_000):
        if server.connections and all(ready(c) for c in server.connections):
            return list(server.connections)
        await asyncio.sleep(0)
    raise AssertionError("the connections never became ready")


async def test_a_peer_that_never_reads_stops_being_read_and_is_dropped() -> None:
    limits = ConnectionLimits(write_high=65536, write_low=1024, write_stalled_s=30)
    handlers = HandlerTable()
    handlers.register(7, lambda _: Response(body=bytes(1_000_000)), needs=Open("a test"))
    async with serving(handlers, ServerConfig(limits=limits)) as (server, port), raw_peer(port) as peer:
        for opaque in range(200):
            peer.send(Command(7, opaque=opaque))
        (connection,) = await connected(server, lambda c: c.is_congested)
        now = asyncio.get_running_loop().time()
        assert connection.sweep(now + 29) is None
        assert "did not read" in (connection.sweep(now + 31) or "")
        await asyncio.wait_for(connection.closed, 10)


UNSENT = 8_000_000  # more than the buffers of both kernels take, less than makes the peer a stalled one


@pytest.mark.parametrize("ended_by", ["silence", "nonsense", "the owner"])
async def test_a_closing_connection_whose_peer_takes_nothing_ends_and_is_told_once(ended_by: str) -> None:
    """With less unsent than `write_high` it was closed but never ended: a log line a second for ever."""
    limits = ConnectionLimits(write_high=2 * UNSENT, write_low=1000, idle_s=100, write_stalled_s=0.2)
    with capture_logs() as logs:
        async with serving(table(), ServerConfig(limits=limits)) as (server, port), raw_peer(port) as peer:
            connection = (await connected(server, lambda _: True))[0]
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            connection.write_now(b"x" * UNSENT)
            assert connection.transport.get_write_buffer_size() > 0
            assert connection.blocked_since is None
            now = asyncio.get_running_loop().time()
            if ended_by == "silence":
                server.sweep(now + 101)
            elif ended_by == "nonsense":
                peer.writer.write(b"\xff" * 100)
                async with asyncio.timeout(10):
                    while not connection.is_closed:  # noqa: ASYNC110  # no event for it
                        await asyncio.sleep(0)
            else:
                connection.close("no heartbeat")
            for second in range(102, 112):
                server.sweep(now + second)
            async with asyncio.timeout(10):
                await connection.closed
            assert not server.connections
    logged = [one["event"] for one in logs if one["log_level"] != "debug"]
    assert (
        logged
        == {
            "silence": ["remoting.connection_dropped"],
            "nonsense": ["remoting.frame_refused"],
            "the owner": [],
        }[ended_by]
    )


async def test_silence_and_half_frames_are_closed_by_the_clock() -> None:
    async with serving(table()) as (server, port), raw_peer(port) as peer:
        peer.send(echo(1))
        await peer.receive()
        (connection,) = server.connections
        now = asyncio.get_running_loop().time()
        assert connection.sweep(now + 119) is None
        peer.writer.write(encode_command(echo(2))[:9])
        await connected(server, lambda c: c.decoder.pending_size == 9)
        assert "did not arrive whole" in (connection.sweep(now + 61) or "")
        assert await peer.is_closed_by_the_server()
    async with serving(table()) as (server, port), raw_peer(port) as peer:
        (connection,) = await connected(server, lambda _: True)
        assert "silent" in (connection.sweep(asyncio.get_running_loop().time() + 121) or "")


async def test_connections_over_the_bound_are_refused_and_counted() -> None:
    config = ServerConfig(connections_max=1)
    async with serving(table(), config) as (server, port), raw_peer(port) as first:
        first.send(echo(1))
        await first.receive()
        async with raw_peer(port) as second:
            assert await second.is_closed_by_the_server()
        assert server.refused_connections == 1
        first.send(echo(2))
        assert (await first.receive()).opaque == 2


async def test_a_taken_port_is_named() -> None:
    async with serving(table()) as (_, port):
        with pytest.raises(OSError, match=f"127.0.0.1:{port}"):
            await RemotingServer(HandlerTable()).start("127.0.0.1", port)


async def test_a_quiet_server_reads_nothing_more_and_still_answers_what_it_read() -> None:
    """A stop under load that went on reading had always something left to finish."""
    called, go_on = asyncio.Event(), asyncio.Event()
    seen: list[int] = []

    async def slow(request: Request[Any]) -> Response:
        seen.append(request.opaque)
        called.set()
        await go_on.wait()
        return Response()

    handlers = HandlerTable()
    handlers.register(900, slow, needs=Open("a test"))
    async with serving(handlers) as (server, port), raw_peer(port) as peer:
        peer.send(Command(900, opaque=1))
        await called.wait()
        server.quiesce()
        peer.send(Command(900, opaque=2))
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        go_on.set()
        assert (await peer.receive()).opaque == 1
        await server.close()
        assert await peer.is_closed_by_the_server()
    assert seen == [1]


async def test_a_peer_that_goes_leaves_no_circle_of_what_it_asked() -> None:
    """Each of its requests stayed in memory, with its cancelled task, until somebody searched for garbage."""
    locked, handlers = asyncio.Lock(), HandlerTable()

    async def waits(_: Request[Any]) -> Response:
        async with locked:
            return Response()

    handlers.register(SLOW, waits, needs=Open("a test"))
    async with serving(handlers) as (server, port), raw_peer(port) as peer:
        await locked.acquire()
        with circles() as found:
            for opaque in range(10):
                peer.send(Command(SLOW, opaque=opaque))
            (connection,) = await connected(server, lambda c: c.in_flight == 10)
            peer.writer.close()
            await asyncio.wait_for(connection.closed, 10)
            await asyncio.sleep(0)  # the tasks end
            del connection
    assert found == {}


async def test_close_ends_connections_and_running_requests() -> None:
    server = RemotingServer(table())
    port = await server.start("127.0.0.1", 0)
    client = RemotingClient(config=RemotingClientConfig(codec="json"))
    waiting = asyncio.create_task(client.request(f"127.0.0.1:{port}", SLOW))
    await connected(server, lambda c: c.in_flight == 1)
    await server.close()
    with pytest.raises(ConnectionLost):
        await waiting
    await client.close()


# --- TLS --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    return context


def client_config(authority: trustme.CA | None) -> RemotingClientConfig:
    if authority is None:
        return RemotingClientConfig(codec="json")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    return RemotingClientConfig(codec="json", tls=context)


@pytest.mark.parametrize(
    ("mode", "encrypted", "served"),
    [
        (TlsMode.DISABLED, False, True),
        (TlsMode.DISABLED, True, False),
        (TlsMode.PERMISSIVE, False, True),
        (TlsMode.PERMISSIVE, True, True),
        (TlsMode.ENFORCING, False, False),
        (TlsMode.ENFORCING, True, True),
    ],
)
async def test_tls_is_told_from_plain_by_the_first_byte(
    authority: trustme.CA, mode: TlsMode, encrypted: bool, served: bool
) -> None:
    tls = None if mode is TlsMode.DISABLED else server_context(authority)
    async with serving(table(), ServerConfig(tls_mode=mode, tls=tls)) as (server, port):
        client = RemotingClient(config=client_config(authority if encrypted else None))
        try:
            request = client.request(f"127.0.0.1:{port}", ECHO, {"topic": "T"}, b"x" * 900)
            if served:
                assert (await request).body == b"x" * 900
                assert [one.common.watch for one in server.connections] == [
                    server.watch
                ]  # it had none by TLS
            else:
                with pytest.raises((ConnectFailed, ConnectionLost)):
                    await request
        finally:
            await client.close()


async def open_many(port: int, count: int, host: str) -> list[Any]:
    opened = [await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0)) for _ in range(count)]
    return [RawPeer(reader, writer) for reader, writer in opened]


async def test_silent_connections_of_one_host_leave_room_for_others_with_tls(authority: trustme.CA) -> None:
    """Before the first byte only the sum was bounded: one host's silent connections shut everybody out."""
    config = ServerConfig(
        tls_mode=TlsMode.PERMISSIVE,
        tls=server_context(authority),
        connections_max=12,
        connections_per_host_max=6,
    )
    with capture_logs() as logs:
        async with serving(table(), config) as (server, port):
            silent = await open_many(port, 10, "127.0.0.2")
            assert all([await peer.is_closed_by_the_server() for peer in silent[6:]])
            async with raw_peer(port) as other:
                other.send(echo(5))
                assert (await other.receive()).opaque == 5
                assert (len(server.connections), welcoming(server)) == (1, {"127.0.0.2": 6})
            silent[0].send(echo(6))  # who speaks at last is the same one as before, not one more
            assert (await silent[0].receive()).opaque == 6
            assert (welcoming(server), per_host(server)["127.0.0.2"]) == ({"127.0.0.2": 5}, 1)
            for peer in silent:
                peer.writer.transport.abort()
            async with asyncio.timeout(10):
                while welcoming(server) or server.connections:  # noqa: ASYNC110  # no event for it
                    await asyncio.sleep(0)
            assert not per_host(server)
    refused = [one for one in logs if one["event"] == "remoting.connection_refused"]
    assert [(one["from_this_host"], one["per_host_max"]) for one in refused] == [(6, 6)]


@pytest.mark.parametrize("said", [b"", b"\x16"], ids=["nothing", "the beginning of a TLS hello"])
async def test_the_first_byte_and_the_handshake_have_a_time(
    authority: trustme.CA, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server_module.FIRST_BYTE_S == 10
    monkeypatch.setattr(server_module, "FIRST_BYTE_S", 0.05)
    config = ServerConfig(tls_mode=TlsMode.PERMISSIVE, tls=server_context(authority))
    async with serving(table(), config) as (server, port), raw_peer(port) as peer:
        peer.writer.write(said)
        assert await peer.is_closed_by_the_server()
        assert not welcoming(server)


async def test_one_tls_handshake_begins_in_a_turn_and_none_for_who_is_gone(
    authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handshakes of connections that come and go held everybody else up for ten milliseconds."""
    config = ServerConfig(tls_mode=TlsMode.ENFORCING, tls=server_context(authority))
    begun: list[socket.socket] = []
    hand_over = accepting.handed_over

    async def handing(accepted: socket.socket, *more: Any) -> Any:
        begun.append(accepted)
        return await hand_over(accepted, *more)

    monkeypatch.setattr(server_module, "handed_over", handing)
    with capture_logs() as logs:
        async with serving(table(), config) as (server, port):
            waiting: list[asyncio.Future[None]] = []

            def pause(_: Turns, __: Account) -> asyncio.Future[None]:
                waiting.append(asyncio.get_running_loop().create_future())
                return waiting[-1]

            monkeypatch.setattr(Turns, "pause", pause)
            peers = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
            for peer in peers:
                peer.sendall(b"\x16\x03\x01")
            await until(lambda: len(waiting) == 3)
            assert not begun
            peers[0].close()
            for one in waiting:
                one.set_result(None)
            await until(lambda: len(begun) == 3)
            await until(lambda: server.broken_off["handshake"] == 1)
            for peer in peers[1:]:
                peer.close()
    assert any("hung up while it waited" in str(line.get("reason")) for line in logs)


async def test_a_mode_with_tls_and_no_certificate_does_not_start() -> None:
    with pytest.raises(ValueError, match="certificate"):
        RemotingServer(HandlerTable(), config=ServerConfig(tls_mode=TlsMode.PERMISSIVE))


async def test_servers_tell_their_codecs() -> None:
    async with serving(HandlerTable()) as (_, port), raw_peer(port) as peer:
        peer.send(Command(int(RequestCode.GET_CODECS), opaque=1))
        assert (await peer.receive()).ext == {"codecs": "0,1,2"}
