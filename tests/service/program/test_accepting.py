"""Taking connections: while descriptors are used up nobody is accepted, and nobody is turned away."""

import asyncio
import errno
import socket
import ssl
from typing import Any

import pytest

from aerobee_service.program.accepting import accepting, handed_over, has_hung_up


@pytest.fixture
def listener() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        opened.setblocking(False)
        yield opened


async def test_who_dials_while_descriptors_are_used_up_is_accepted_later(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, failures = asyncio.get_running_loop(), [OSError(errno.EMFILE, "Too many open files")] * 3
    accept, told = loop.sock_accept, list[OSError]()

    async def scarce(of: socket.socket) -> Any:
        if failures:
            raise failures.pop()
        return await accept(of)

    monkeypatch.setattr(loop, "sock_accept", scarce)
    with socket.create_connection(listener.getsockname()) as dialled:
        async with asyncio.timeout(30):
            async for accepted, address in accepting(listener, told.append, pause_s=0):
                assert address == dialled.getsockname()
                accepted.close()
                break
    assert [failed.errno for failed in told] == [errno.EMFILE] * 3


async def test_it_goes_on_for_ever_and_ends_with_its_task(listener: socket.socket) -> None:
    seen, failures = list[socket.socket](), list[OSError]()
    third = asyncio.Event()

    async def accept_all() -> None:
        async for accepted, _ in accepting(listener, failures.append):
            seen.append(accepted)
            if len(seen) == 3:
                third.set()

    accepts = asyncio.create_task(accept_all())
    dialled = [socket.create_connection(listener.getsockname()) for _ in range(3)]
    async with asyncio.timeout(30):
        await third.wait()
        accepts.cancel()
        with pytest.raises(asyncio.CancelledError):
            await accepts
    assert failures == []
    for one in (*dialled, *seen):
        one.close()


def test_who_has_hung_up_is_known_behind_bytes_that_nobody_has_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"a hello")
        assert not has_hung_up(ours)
        theirs.close()
        assert has_hung_up(ours)
        assert ours.recv(100) == b"a hello"


async def test_one_tls_handshake_begins_in_a_turn_of_the_loop_whatever_the_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is a millisecond that cannot be cut. Who hung up while it waited has none."""
    loop = asyncio.get_running_loop()
    turn, begun = 0, list[int]()

    def count() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(count)

    async def begin(*_: Any, **__: Any) -> tuple[None, None]:
        begun.append(turn)
        return None, None

    monkeypatch.setattr(loop, "connect_accepted_socket", begin)
    loop.call_soon(count)
    pairs = [socket.socketpair() for _ in range(9)]
    pairs[4][0].close()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ends = await asyncio.gather(
        *[handed_over(ours, asyncio.Protocol, tls, 1.0) for _, ours in pairs], return_exceptions=True
    )
    assert [isinstance(end, ConnectionResetError) for end in ends] == [number == 4 for number in range(9)]
    assert len(set(begun)) == len(begun) == 8
    for theirs, ours in pairs:
        theirs.close()
        ours.close()
