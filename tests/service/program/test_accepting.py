"""Taking connections: while descriptors are used up nobody is accepted, and nobody is turned away."""

import asyncio
import errno
import socket
from typing import Any

import pytest

from aerobee_service.program.accepting import accepting, has_hung_up


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
