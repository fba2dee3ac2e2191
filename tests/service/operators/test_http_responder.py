"""The small HTTP server against well-behaved and hostile peers."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trustme
import uvloop

from aerobee_service.operators import http_responder
from aerobee_service.operators.http_responder import (
    HEAD_SIZE_MAX,
    PER_HOST_MAX,
    PROBES,
    Guard,
    HttpResponder,
    Page,
    Standing,
    Visitor,
)


async def hello() -> Page:
    return Page(b"hello\n")


async def slow() -> Page:
    await asyncio.sleep(0.1)
    return Page(b"at last\n")


async def broken() -> Page:
    raise RuntimeError("no page today")


@pytest.fixture
async def port() -> AsyncIterator[int]:
    responder = HttpResponder({"/": hello, "/broken": broken, "/slow": slow})
    yield await responder.start("127.0.0.1", 0)
    await responder.close()


async def talk(port: int, sent: bytes, *, end: bool = False) -> bytes:
    """Send bytes and read until the server hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        if end:
            writer.write_eof()
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def status(answer: bytes) -> int:
    return int(answer.split(b" ")[1]) if answer else 0


ASKED = {
    "a page": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 200),
    "a page of HTTP/1.0": (b"GET / HTTP/1.0\r\n\r\n", 200),
    "a query is ignored": (b"GET /?a=b HTTP/1.1\r\n\r\n", 200),
    "an unknown path": (b"GET /nope HTTP/1.1\r\n\r\n", 404),
    "a path out of here": (b"GET /../../etc/passwd HTTP/1.1\r\n\r\n", 404),
    "another method": (b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 405),
    "a page that fails": (b"GET /broken HTTP/1.1\r\n\r\n", 500),
    "no HTTP at all": (b"\x00\x00\x00\x80garbage\r\n\r\n", 400),
    "too few words": (b"GET\r\n\r\n", 400),
    "bytes beyond ASCII": (b"GET /\xff\xfe HTTP/1.1\r\n\r\n", 404),
}


@pytest.mark.parametrize(("sent", "code"), ASKED.values(), ids=ASKED)
async def test_answers(sent: bytes, code: int, port: int) -> None:
    assert status(await talk(port, sent)) == code
    assert status(await talk(port, b"GET / HTTP/1.1\r\n\r\n")) == 200


async def test_head_has_the_length_and_no_body(port: int) -> None:
    head, _, body = (await talk(port, b"HEAD / HTTP/1.1\r\n\r\n")).partition(b"\r\n\r\n")
    assert b"Content-Length: 6" in head
    assert body == b""
    _, _, body = (await talk(port, b"GET / HTTP/1.1\r\n\r\n")).partition(b"\r\n\r\n")
    assert body == b"hello\n"


async def test_a_request_cut_short_is_answered(port: int) -> None:
    assert status(await talk(port, b"GET / HT", end=True)) == 400


async def test_an_endless_head_is_cut(port: int) -> None:
    answer = await talk(port, b"GET / HTTP/1.1\r\nX: " + b"x" * (3 * HEAD_SIZE_MAX))
    assert status(answer) in (431, 0)  # 0: the reset overtook the answer
    assert status(await talk(port, b"GET / HTTP/1.1\r\n\r\n")) == 200


async def test_a_silent_peer_is_sent_away(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_responder, "HEAD_TIMEOUT_S", 0.01)
    assert status(await talk(port, b"GET /")) == 408


async def silent(port: int, count: int, host: str = "127.0.0.1") -> list[tuple[asyncio.StreamReader, Any]]:
    return [await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0)) for _ in range(count)]


async def test_silent_connections_shut_nobody_out_and_the_oldest_go_first(port: int) -> None:
    """32 silent connections made every probe a 503, so an orchestrator restarted a healthy broker."""
    idle = await silent(port, PER_HOST_MAX + 3)
    async with asyncio.timeout(10):
        assert [await reader.read() for reader, _ in idle[:3]] == [b""] * 3  # sent away
    for _ in range(5):
        assert status(await talk(port, b"GET / HTTP/1.1\r\n\r\n")) == 200
    idle[-1][1].write(b"GET / HTTP/1.1\r\n\r\n")  # the youngest of them is still heard
    async with asyncio.timeout(10):
        assert status(await idle[-1][0].read()) == 200
    for _, writer in idle:
        writer.transport.abort()


async def test_a_crowd_from_many_hosts_is_bounded_and_a_probe_is_answered(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_responder, "PER_HOST_MAX", 4)
    monkeypatch.setattr(http_responder, "CONNECTIONS_MAX", 8)
    idle = [one for host in range(2, 8) for one in await silent(port, 4, f"127.0.0.{host}")]
    async with asyncio.timeout(10):
        assert [await reader.read() for reader, _ in idle[:16]] == [b""] * 16
    assert status(await talk(port, b"GET / HTTP/1.1\r\n\r\n")) == 200
    for _, writer in idle:
        writer.transport.abort()


async def test_peers_that_came_with_a_request_do_not_make_room_for_silent_ones(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_responder, "PER_HOST_MAX", 2)
    asking, idle = await asyncio.gather(talk(port, b"GET /slow HTTP/1.1\r\n\r\n"), silent(port, 3))
    assert status(asking) == 200
    for _, writer in idle:
        writer.transport.abort()


async def test_closing_ends_what_is_running() -> None:
    entered = asyncio.Event()

    async def endless() -> Page:
        entered.set()
        await asyncio.Event().wait()
        return Page(b"")

    responder = HttpResponder({"/": endless})
    port = await responder.start("127.0.0.1", 0)
    asking = asyncio.create_task(talk(port, b"GET / HTTP/1.1\r\n\r\n"))
    await entered.wait()
    await responder.close()
    assert await asking == b""


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_hello_that_is_there_before_the_server_looks_is_heard(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """A busy server looks late; with uvloop the hello was read, and lost, before the port had turned to TLS."""
    authority = trustme.CA()
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(served)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    async def scrape() -> bytes:
        responder = HttpResponder({"/": hello}, lambda: served)
        port = await responder.start("127.0.0.1", 0)
        came, goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        end = trusting.wrap_bio(came, goes, server_hostname="127.0.0.1")

        async def until_done(work: Callable[[], Any]) -> Any:
            while True:
                with contextlib.suppress(ssl.SSLWantReadError):
                    done = work()
                    await running.sock_sendall(peer, goes.read())
                    return done
                peer.sendall(goes.read())  # no turn of the loop between the connection and the hello
                peer.setblocking(False)
                came.write(await running.sock_recv(peer, 65536))

        running = asyncio.get_running_loop()
        with socket.create_connection(("127.0.0.1", port)) as peer:
            async with asyncio.timeout(10):
                await until_done(end.do_handshake)
                await until_done(lambda: end.write(b"GET / HTTP/1.0\r\n\r\n"))
                page: bytes = await until_done(end.read)
        await responder.close()
        return page

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(scrape()).startswith(b"HTTP/1.1 200")


class Doorkeeper(Guard):
    """Knows who says `friend`, and does not believe anybody else who says something."""

    def __init__(self) -> None:
        self.refused: list[tuple[str, str]] = []

    async def standing(self, visitor: Visitor) -> Standing:
        if not visitor.authorization:
            return Standing.STRANGER
        return Standing.KNOWN if visitor.authorization == "friend" else Standing.REFUSED

    async def refuse(self, visitor: Visitor, path: str) -> None:
        assert visitor.peer.startswith(f"{visitor.host}:")
        self.refused.append((visitor.authorization, path))


async def secret_health() -> Page:
    return Page(b"the disk of /var/lib/store is full\n", 503)


GUARDED = {
    "a page": ("GET /metrics", "", 401),
    "a page that is not there": ("GET /nope", "", 401),
    "a probe": ("GET /livez", "", 200),
    "a probe of what is not well": ("GET /readyz", "", 503),
    "a probe with a query": ("HEAD /readyz?verbose", "", 503),
    "a probe that fails": ("GET /startupz", "", 500),
    "another method": ("POST /readyz", "", 401),
    "a page, with something wrong": ("GET /metrics", "Authorization: foe\r\n", 401),
    "a probe, with something wrong": ("GET /livez", "Authorization: foe\r\n", 401),
    "something right and wrong": ("GET /metrics", "Authorization: friend\r\nauthorization: foe\r\n", 401),
}


@pytest.mark.parametrize(("asked", "fields", "code"), GUARDED.values(), ids=GUARDED)
async def test_a_stranger_learns_whether_the_program_lives_and_nothing_else(
    asked: str, fields: str, code: int
) -> None:
    guard = Doorkeeper()
    pages = {"/metrics": hello, "/livez": hello, "/readyz": secret_health, "/startupz": broken}
    responder = HttpResponder(pages, guard=guard)
    port = await responder.start("127.0.0.1", 0)
    try:
        answer = await talk(port, f"{asked} HTTP/1.1\r\nHost: x\r\n{fields}\r\n".encode())
        friend = await talk(port, b"GET /readyz HTTP/1.1\r\nAUTHORIZATION:  friend \r\n\r\n")
    finally:
        await responder.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert status(answer) == code
    assert body in (b"", b"ok\n", b"failing\n", b"this needs credentials\n")
    assert (b"\r\nWWW-Authenticate: Bearer" in head) is (code == 401)
    refused = asked.partition(" ")[2] if code == 401 else None
    assert [path for _, path in guard.refused] == ([refused] if refused else [])
    assert friend.endswith(b"the disk of /var/lib/store is full\n")
    assert set(pages) - PROBES == {"/metrics"}
