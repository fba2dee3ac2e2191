"""The client of etcd, against etcd itself."""

import asyncio
import contextlib
import itertools
import socket
import ssl
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import aiohttp
import pytest
import trustme

from aerobee_broker.election.etcd import Etcd
from aerobee_broker.election.register import (
    ABSENT,
    NO_LEASE,
    Change,
    ChangesLost,
    Entry,
    LeaseGone,
    Put,
    RegisterRefused,
    RegisterUnreachable,
)
from etcd import EtcdServer
from programs import free_port

pytestmark = pytest.mark.slow
_prefixes = itertools.count()


@pytest.fixture
def prefix() -> str:
    return f"/test-{next(_prefixes)}/"


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    """One that accepts and never says a word, as a stopped process does."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


async def ask(server: EtcdServer, path: str, body: object) -> None:
    """What only operators ask of etcd."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://{server.address}/v3/{path}", json=body) as answer,
    ):
        assert answer.status == 200, await answer.text()


async def write(register: Etcd, key: str, value: bytes, lease: int = NO_LEASE) -> int:
    revision = await register.swap({}, {key: Put(value, lease)})
    assert revision is not None
    return revision


# --- keys ---------------------------------------------------------------------------------------------------------


async def test_what_is_written_is_read_with_its_revision(register: Etcd, prefix: str) -> None:
    values = {f"{prefix}ä/{number}": bytes(range(number)) for number in (0, 1, 255)}
    revision = await register.swap({}, {key: Put(value) for key, value in values.items()})
    assert revision is not None
    view = await register.read(prefix)
    assert view == (revision, {key: Entry(value, revision, NO_LEASE) for key, value in values.items()})


async def test_only_keys_with_the_prefix_are_read(register: Etcd, prefix: str) -> None:
    below, beside = prefix[:-1] + ".", prefix[:-1] + "0"
    for key in (below, beside, prefix + "a"):
        await write(register, key, b"1")
    assert list((await register.read(prefix)).entries) == [prefix + "a"]


async def test_a_swap_is_done_only_while_its_conditions_hold(register: Etcd, prefix: str) -> None:
    key, other = prefix + "key", prefix + "other"
    first = await register.swap({key: ABSENT}, {key: Put(b"1")})
    assert first is not None
    assert await register.swap({key: ABSENT}, {key: Put(b"2")}) is None
    assert await register.swap({key: first - 1}, {}, [key]) is None
    assert await register.swap({key: first, other: first}, {key: Put(b"2")}) is None
    assert (await register.read(prefix)).entries == {key: Entry(b"1", first, NO_LEASE)}
    second = await register.swap({key: first, other: ABSENT}, {other: Put(b"2")}, [key])
    assert second is not None
    assert (await register.read(prefix)).entries == {other: Entry(b"2", second, NO_LEASE)}


# --- leases -------------------------------------------------------------------------------------------------------


async def test_keys_go_with_their_lease(register: Etcd, prefix: str) -> None:
    lease = await register.grant(60)
    await write(register, prefix + "a", b"1", lease)
    assert (await register.read(prefix)).entries[prefix + "a"].lease == lease
    await register.revoke(lease)
    assert (await register.read(prefix)).entries == {}
    await register.revoke(lease)  # nothing is wrong with it


async def test_a_lease_lapses_when_it_is_not_kept(register: Etcd, prefix: str) -> None:
    lease = await register.grant(0.9)
    assert await register.keep_alive(lease) == 1
    revision = await write(register, prefix + "a", b"1", lease)
    async with asyncio.timeout(20), contextlib.aclosing(watched(register, prefix, revision)) as changes:
        assert await anext(changes) == [Change(prefix + "a", None)]
    with pytest.raises(LeaseGone):
        await register.keep_alive(lease)
    with pytest.raises(LeaseGone):
        await write(register, prefix + "a", b"1", lease)


# --- changes ------------------------------------------------------------------------------------------------------


async def watched(register: Etcd, prefix: str, after_revision: int) -> AsyncGenerator[list[Change], None]:
    async with contextlib.aclosing(register.watch(prefix, after_revision)) as changes:
        async for change in changes:
            yield change


async def test_a_watch_tells_each_change_once_and_in_order(register: Etcd, prefix: str) -> None:
    a, b = prefix + "a", prefix + "b"
    before = await write(register, a, b"0")
    first = await register.swap({}, {a: Put(b"1"), b: Put(b"2")})
    assert first is not None
    async with asyncio.timeout(20), contextlib.aclosing(watched(register, prefix, before)) as changes:
        told = await anext(changes)
        assert sorted(told) == [Change(a, Entry(b"1", first, 0)), Change(b, Entry(b"2", first, 0))]
        await write(register, prefix[:-1], b"not of this prefix")
        second = await register.swap({}, {}, [a])
        assert await anext(changes) == [Change(a, None)]
        assert second is not None


async def test_a_watch_that_comes_too_late_says_so(
    register: Etcd, prefix: str, etcd_server: EtcdServer
) -> None:
    first = await write(register, prefix + "a", b"0")
    last = await write(register, prefix + "a", b"1")
    await ask(etcd_server, "kv/compaction", {"revision": str(last)})
    async with asyncio.timeout(20):
        with pytest.raises(ChangesLost):
            await anext(watched(register, prefix, first - 1))


async def test_a_watch_misses_nothing_while_etcd_is_away(tmp_path: Path, prefix: str) -> None:
    server = EtcdServer(tmp_path / "etcd")
    register, other = (Etcd([server.address], timeout_s=5) for _ in range(2))
    try:
        before = await write(other, prefix + "a", b"0")
        async with asyncio.timeout(60), contextlib.aclosing(watched(register, prefix, before)) as changes:
            first = await write(other, prefix + "a", b"1")
            assert await anext(changes) == [Change(prefix + "a", Entry(b"1", first, 0))]
            await asyncio.to_thread(server.kill)
            with pytest.raises(RegisterUnreachable):
                await other.read(prefix)
            await asyncio.to_thread(server.start)
            second = await write(other, prefix + "a", b"2")
            assert await anext(changes) == [Change(prefix + "a", Entry(b"2", second, 0))]
    finally:
        await register.close()
        await other.close()
        server.kill()


# --- members that are away ----------------------------------------------------------------------------------------


async def test_a_member_that_is_down_or_silent_is_left_for_the_next(
    etcd_server: EtcdServer, prefix: str
) -> None:
    with silent_server() as silent:
        for away in (f"127.0.0.1:{free_port()}", silent):
            register = Etcd([away, etcd_server.address], timeout_s=3)
            try:
                await register.read(prefix)
                assert register.reached == etcd_server.address
                await write(register, prefix + "a", b"1")
            finally:
                await register.close()


async def test_a_swap_is_not_sent_twice_when_the_first_may_have_been_done(
    etcd_server: EtcdServer, prefix: str
) -> None:
    with silent_server() as silent:
        register = Etcd([silent, etcd_server.address], timeout_s=3)
        try:
            with pytest.raises(RegisterUnreachable, match=silent):
                await register.swap({}, {prefix + "a": Put(b"1")})
            assert (await register.read(prefix)).entries == {}
        finally:
            await register.close()


async def test_no_call_takes_longer_than_its_time(prefix: str) -> None:
    with silent_server() as silent:
        register = Etcd([silent], timeout_s=0.1)
        try:
            for call in (
                register.read(prefix),
                register.grant(1),
                register.keep_alive(1),
                register.revoke(1),
                register.swap({}, {}),
            ):
                async with asyncio.timeout(10):
                    with pytest.raises(RegisterUnreachable):
                        await call
        finally:
            await register.close()


@pytest.mark.parametrize("body", [b"hello", b'"\xff"', b"[" * 9_999])
async def test_what_is_no_etcd_is_said_to_be_none(prefix: str, body: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(body), body)
        )
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        register = Etcd([f"{host}:{port}"], timeout_s=5)
        try:
            with pytest.raises(RegisterUnreachable, match="not etcd's"):
                await register.read(prefix)
        finally:
            await register.close()


# --- who may ------------------------------------------------------------------------------------------------------


async def test_a_user_signs_in_and_again_when_its_token_is_old(tmp_path: Path, prefix: str) -> None:
    server = EtcdServer(tmp_path / "etcd", "--auth-token=simple")
    root = Etcd([server.address], timeout_s=5, user="root", password="right")
    wrong = Etcd([server.address], timeout_s=5, user="root", password="wrong")
    nobody = Etcd([server.address], timeout_s=5)
    try:
        for path, body in (
            ("auth/user/add", {"name": "root", "password": "right"}),
            ("auth/role/add", {"name": "root"}),
            ("auth/user/grant", {"user": "root", "role": "root"}),
            ("auth/enable", {}),
        ):
            await ask(server, path, body)
        await write(root, prefix + "a", b"1")
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)  # it knows no token of before
        assert list((await root.read(prefix)).entries) == [prefix + "a"]
        for refused in (wrong, nobody):
            with pytest.raises(RegisterRefused):
                await refused.read(prefix)
    finally:
        for register in (root, wrong, nobody):
            await register.close()
        server.kill()


async def test_it_speaks_tls_and_checks_whom_it_speaks_to(tmp_path: Path, prefix: str) -> None:
    ca = trustme.CA()
    shown = ca.issue_cert("127.0.0.1")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_bytes(b"".join(pem.bytes() for pem in shown.cert_chain_pems))
    key.write_bytes(shown.private_key_pem.bytes())
    server = EtcdServer(tmp_path / "etcd", f"--cert-file={cert}", f"--key-file={key}", scheme="https")
    trusting = ssl.create_default_context()
    ca.configure_trust(trusting)
    register = Etcd([server.address], timeout_s=5, tls=lambda: trusting)
    stranger = Etcd([server.address], timeout_s=5, tls=ssl.create_default_context)
    try:
        await write(register, prefix + "a", b"1")
        with pytest.raises(RegisterUnreachable, match="certificate"):
            await stranger.read(prefix)
    finally:
        await register.close()
        await stranger.close()
        server.kill()
