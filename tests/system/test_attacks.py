"""Every attack of tests/attacks.py against a server in this process: it lives, and others are answered during it.

What it does to their times, and to memory, is measured by bench/attack.py; the longest turns by test_worst_requests.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aerobee_nameserver.config import load_config
from aerobee_nameserver.server import NameServer
from attacks import ATTACKS, TOPIC, Attack, route, send
from system.running import running_broker

pytestmark = pytest.mark.spread

REQUESTS = 3  # of each connection; enough for what is kept from one to the next
CONNECTIONS_MAX = 20
BYTES_MAX = 24 << 20  # of all of them


@contextlib.asynccontextmanager
async def attacked(one: Attack, folder: Path) -> AsyncIterator[tuple[int, bytes]]:
    """The port of the server that is attacked, and what another client asks of it."""
    if one.target == "broker":
        async with running_broker(folder / "store", mapped_file_size_commit_log=64 << 20) as broker:
            yield broker.port, send(7)
        return
    config = load_config(overrides={"listenPort": "0", "bindAddress": "127.0.0.1"}, environ={})
    server = NameServer(config, keep_kv=False)
    await server.start()
    try:
        yield server.port, route(7)
    finally:
        await server.close()


async def is_answered(port: int, question: bytes) -> None:
    """Another client, on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(30):
            for _ in range(3):
                writer.write(question)
                size = int.from_bytes(await reader.readexactly(4), "big")
                answer = await reader.readexactly(size)
                assert b'"opaque":7' in answer
    finally:
        writer.transport.abort()


async def hostile(port: int, one: Attack, number: int, has_sent: asyncio.Event) -> None:
    """One connection of the attack; it stays until it is cancelled."""
    frames = [one.make(number * 100 + asked) for asked in range(1 if one.how == "hold" else REQUESTS)]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(b"".join(frames))
            await asyncio.sleep(0)
            has_sent.set()
            if one.how != "unread":
                while await reader.read(1 << 18):
                    pass
            await asyncio.Event().wait()
    finally:
        has_sent.set()
        writer.transport.abort()


@pytest.mark.parametrize("one", [one for one in ATTACKS if one.target != "metrics"], ids=lambda one: one.name)
async def test_others_are_answered_during_an_attack(tmp_path: Path, one: Attack) -> None:
    count = min(one.connections, CONNECTIONS_MAX, max(1, BYTES_MAX // (len(one.make(1)) + 1)))
    async with attacked(one, tmp_path) as (port, question):
        sent = [asyncio.Event() for _ in range(count)]
        peers = [
            asyncio.create_task(hostile(port, one, number, sent[number]), name=f"hostile {number}")
            for number in range(count)
        ]
        try:
            await asyncio.gather(*(one_sent.wait() for one_sent in sent))
            await is_answered(port, question)
        finally:
            for peer in peers:
                peer.cancel()
            await asyncio.gather(*peers, return_exceptions=True)
        await is_answered(port, question)  # and when it is over


def test_each_attack_has_a_name_of_its_own_and_makes_bytes() -> None:
    assert len({one.name for one in ATTACKS}) == len(ATTACKS) >= 31
    assert TOPIC
    for one in ATTACKS:
        assert isinstance(one.make(1), bytes)
