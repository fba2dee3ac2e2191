"""The dialling side: time-outs, loss, reconnects, codecs learned, requests from the server."""

import asyncio
import gc
from collections.abc import Mapping

import pytest

from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import CODEC_JSON, CODEC_MSGPACK, CODEC_ROCKETMQ
from aerobee_remoting.ends.client import Header, RemotingClient, RemotingClientConfig, Sign, split_addr
from aerobee_remoting.exchange.connection import Connection
from aerobee_remoting.exchange.handlers import AnyRequest, Channel, HandlerTable, Response
from aerobee_remoting.exchange.limits import ConnectionLimits
from aerobee_remoting.exchange.needs import Open
from aerobee_remoting.peers.errors import ConnectFailed, ConnectionLost, RequestTimeout, TooManyRequests
from remoting.pair import serving

JSON_ONLY = RemotingClientConfig(codec="json")


def table(codecs: list[int] | None = None) -> HandlerTable:
    handlers = HandlerTable()

    def echo(request: AnyRequest) -> Response:
        if codecs is not None:
            codecs.append(request.codec)
        return Response(body=request.body)

    def hang_up(request: AnyRequest) -> None:
        request.connection.abort()

    handlers.register(1, echo, needs=Open("a test"), body_size_max=1 << 20)
    handlers.register(2, lambda _: None, needs=Open("a test"))
    handlers.register(3, hang_up, needs=Open("a test"))
    return handlers


async def test_a_request_without_an_answer_times_out_and_the_connection_stays() -> None:
    async with serving(table()) as (_, port):
        client = RemotingClient(config=JSON_ONLY)
        addr = f"127.0.0.1:{port}"
        await client.connect(addr)  # which may take longer than this time-out, and is another failure then
        with pytest.raises(RequestTimeout) as late:
            await client.request(addr, 2, timeout=0.01)
        assert (late.value.addr, late.value.code) == (addr, 2)
        connection = client.connected(addr)
        assert (await client.request(addr, 1, body=b"x")).body == b"x"
        assert client.connected(addr) is connection
        await client.close()


async def test_a_lost_connection_fails_what_waits_and_is_made_again() -> None:
    async with serving(table()) as (_, port):
        addr = f"127.0.0.1:{port}"
        lost: list[str] = []
        client = RemotingClient(config=JSON_ONLY, on_disconnect=lambda a, _: lost.append(a))
        with pytest.raises(ConnectionLost):
            await client.request(addr, 3)
        assert lost == [addr]
        assert (await client.request(addr, 1, body=b"again")).body == b"again"
        await client.close()


async def test_a_dial_that_fails_after_everybody_gave_up_is_not_printed_by_asyncio() -> None:
    """A nameserver's address was replaced while it was dialled, in vain: "Task exception was never retrieved"."""
    printed: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: printed.append(context))
    begun = asyncio.Event()

    class Refusing(RemotingClient):
        async def _dial(self, addr: str) -> Connection:
            begun.set()
            await asyncio.sleep(0)
            raise ConnectFailed(addr, "nobody listens")

    client = Refusing(config=JSON_ONLY)
    asking = asyncio.create_task(client.request("127.0.0.1:1", 1))
    await begun.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    async with asyncio.timeout(10):
        while client.dialling:  # noqa: ASYNC110  # no event for it
            await asyncio.sleep(0)
    del asking
    gc.collect()
    assert printed == []
    await client.close()


async def test_concurrent_requests_share_one_dial() -> None:
    async with serving(table()) as (server, port):
        client = RemotingClient(config=JSON_ONLY)
        answers = await asyncio.gather(
            *(client.request(f"127.0.0.1:{port}", 1, body=b"%d" % i) for i in range(50))
        )
        assert [a.body for a in answers] == [b"%d" % i for i in range(50)]
        assert len(server.connections) == 1
        await client.close()


async def test_nobody_listening_is_a_connect_failure_with_the_address() -> None:
    async with serving(table()) as (_, port):
        pass
    client = RemotingClient()
    with pytest.raises(ConnectFailed, match=f"127.0.0.1:{port}"):
        await client.request(f"127.0.0.1:{port}", 1)
    with pytest.raises(ConnectFailed, match="host:port"):
        await client.request("nonsense", 1)
    await client.close()
    with pytest.raises(ConnectFailed, match="closed"):
        await client.request(f"127.0.0.1:{port}", 1)


async def learned(client: RemotingClient, addr: str) -> None:
    """Wait until the connection's codec question has been answered."""
    await client.connect(addr)
    while tasks := client.tasks:
        await asyncio.gather(*tasks)


async def test_msgpack_is_used_with_a_server_that_shows_that_it_knows_it() -> None:
    codecs: list[int] = []
    async with serving(table(codecs)) as (_, port):
        client = RemotingClient()
        addr = f"127.0.0.1:{port}"
        await client.request(addr, 1)
        await learned(client, addr)
        await client.request(addr, 1, {"a": "b"})
        assert codecs == [CODEC_JSON, CODEC_MSGPACK]
        await client.close()


async def test_a_server_that_does_not_know_the_question_gets_json_and_no_request_is_lost() -> None:
    codecs: list[int] = []
    handlers = table(codecs)
    handlers.register(
        int(RequestCode.GET_CODECS),
        lambda _: Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, " request type 31999 not supported"),
        needs=Open("a test"),
    )
    async with serving(handlers) as (_, port):
        client = RemotingClient()
        addr = f"127.0.0.1:{port}"
        await learned(client, addr)
        assert (await client.request(addr, 1, body=b"kept")).body == b"kept"
        assert codecs == [CODEC_JSON]
        await client.close()


async def test_codes_over_16_bits_leave_as_json_where_the_binary_codec_is_chosen() -> None:
    seen: list[int] = []
    handlers = table(seen)
    handlers.register(200050, lambda r: Response(ext={"codec": str(r.codec)}), needs=Open("a test"))
    async with serving(handlers) as (_, port):
        client = RemotingClient(config=RemotingClientConfig(codec="rocketmq"))
        addr = f"127.0.0.1:{port}"
        assert (await client.request(addr, 200050)).ext == {"codec": str(CODEC_JSON)}
        await client.request(addr, 1)
        assert seen == [CODEC_ROCKETMQ]
        await client.close()


async def test_the_bound_on_waiting_requests_refuses_before_sending() -> None:
    config = RemotingClientConfig(codec="json", limits=ConnectionLimits(waiting_max=2))
    async with serving(table()) as (_, port):
        client = RemotingClient(config=config)
        connection = await client.connect(f"127.0.0.1:{port}")
        waiting = [connection.send_request(2) for _ in range(2)]
        with pytest.raises(TooManyRequests):
            connection.send_request(2)
        await client.close()
        assert all(isinstance(f.exception(), ConnectionLost) for f in waiting)


async def test_a_server_asks_its_client_and_both_directions_may_use_one_number() -> None:
    server_side = table()

    async def ask_back(request: AnyRequest) -> Response:
        answer = await request.connection.request(40, {"group": "g"})
        return Response(body=answer.body)

    server_side.register(5, ask_back, needs=Open("a test"))
    client_side = HandlerTable()
    client_side.register(40, lambda r: Response(body=r.ext["group"].encode()), needs=Open("a test"))
    async with serving(server_side) as (_, port):
        client = RemotingClient(client_side, JSON_ONLY)
        assert (await client.request(f"127.0.0.1:{port}", 5)).body == b"g"
        await client.close()


async def test_oneway_requests_arrive() -> None:
    arrived = asyncio.Event()
    handlers = table()

    def note(request: AnyRequest) -> None:
        assert request.oneway
        arrived.set()

    handlers.register(9, note, needs=Open("a test"))
    async with serving(handlers) as (_, port):
        client = RemotingClient(config=JSON_ONLY)
        await client.oneway(f"127.0.0.1:{port}", 9)
        await asyncio.wait_for(arrived.wait(), 10)
        await client.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:9876", ("localhost", 9876)),
        (" 10.0.0.1:1 ", ("10.0.0.1", 1)),
        ("[::1]:9876", ("::1", 9876)),
    ],
)
def test_addresses_are_split(text: str, expected: tuple[str, int]) -> None:
    assert split_addr(text) == expected


@pytest.mark.parametrize("text", ["", "host", ":9876", "host:", "host:0", "host:65536", "host:x", "host:１"])
def test_bad_addresses_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        split_addr(text)


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(ValueError, match="auto, json, rocketmq"):
        RemotingClient(config=RemotingClientConfig(codec="xml"))


# --- who signs --------------------------------------------------------------------------------------------------------


def signer(greeting: Mapping[str, str]) -> Sign:
    """A signature that names what the server said first, and the code."""

    def sign(code: int, header: Header, _: bytes) -> dict[str, str]:
        assert isinstance(header, dict)
        return {**header, "signed": f"{code} {sorted(greeting)}"}

    return sign


async def test_a_signer_hears_first_what_the_server_says_of_each_connection() -> None:
    seen: list[tuple[int, str]] = []
    handlers = table()
    arrived = asyncio.Event()

    def note(request: AnyRequest) -> Response:
        seen.append((request.codec, request.ext.get("signed", "")))
        if request.oneway:
            arrived.set()
        return Response()

    handlers.register(7, note, needs=Open("a test"))
    async with serving(handlers) as (_, port):
        client = RemotingClient(signer=signer)
        addr = f"127.0.0.1:{port}"
        client.oneway_if_connected(addr, 7, {})  # nobody is connected
        await client.request(addr, 7, {})
        client.oneway_if_connected(addr, 7, {})
        await arrived.wait()
        arrived.clear()
        await client.oneway(addr, 7, {})
        await arrived.wait()
        assert seen == [(CODEC_MSGPACK, "7 ['codecs']")] * 3
        await client.close()


async def test_a_signer_is_told_nothing_by_a_server_that_does_not_know_the_question() -> None:
    handlers = table()
    handlers.register(
        int(RequestCode.GET_CODECS),
        lambda _: Response(ResponseCode.NO_PERMISSION, "who are you", ext={"challenge": "x"}),
        needs=Open("a test"),
    )
    handlers.register(7, lambda request: Response(body=request.ext["signed"].encode()), needs=Open("a test"))
    async with serving(handlers) as (_, port):
        client = RemotingClient(signer=signer)
        assert (await client.request(f"127.0.0.1:{port}", 7, {})).body == b"7 []"
        await client.close()


async def left(connections: list[Channel]) -> None:
    """Wait until the other side has closed these; a test that waits for ever fails."""
    async with asyncio.timeout(10):
        for connection in connections:
            assert isinstance(connection, Connection)
            await connection.closed


async def test_who_signs_does_not_use_a_connection_whose_server_says_nothing() -> None:
    connections: list[Channel] = []

    def say_nothing(request: AnyRequest) -> None:
        connections.append(request.connection)

    silent, rude = table(), table()
    silent.register(int(RequestCode.GET_CODECS), say_nothing, needs=Open("a test"))
    rude.register(
        int(RequestCode.GET_CODECS), lambda request: request.connection.abort(), needs=Open("a test")
    )
    # Long enough to be connected on a busy machine.
    for handlers, limit_s, reason in (
        (silent, 1.0, "no answer within 1 s"),
        (rude, 30.0, "closed by the peer"),
    ):
        async with serving(handlers) as (_, port):
            client = RemotingClient(config=RemotingClientConfig(connect_timeout_s=limit_s), signer=signer)
            with pytest.raises(ConnectFailed, match=reason):
                await client.request(f"127.0.0.1:{port}", 1, {}, timeout=30)
            await left(connections)
            await client.close()
    assert len(connections) == 1


async def test_a_client_that_is_closed_while_it_waits_for_the_first_answer_leaves_nothing_open() -> None:
    connections: list[Channel] = []
    asked = asyncio.Event()

    def say_nothing(request: AnyRequest) -> None:
        connections.append(request.connection)
        asked.set()

    handlers = table()
    handlers.register(int(RequestCode.GET_CODECS), say_nothing, needs=Open("a test"))
    async with serving(handlers) as (_, port):
        client = RemotingClient(signer=signer)
        request = asyncio.create_task(client.request(f"127.0.0.1:{port}", 1, {}))
        await asked.wait()
        await client.close()
        with pytest.raises((ConnectFailed, asyncio.CancelledError)):
            await request
        await left(connections)
