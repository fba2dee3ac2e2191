"""Every attack of tests/attacks.py against a server in this process: it lives, and serves others during it; no callback
of its loop takes longer than a turn may; what it keeps is no more than is counted, and does not stay as garbage.

What it does to the times of others is measured by bench/attack.py; the longest turns of each code by
test_worst_requests.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from aerobee_nameserver.config import load_config
from aerobee_nameserver.server import NameServer
from aerobee_remoting.peers.peer_memory import PeerMemory
from aerobee_service.program.interpreter import own_memory
from attacks import ATTACKS, SECRET, TOPIC, USER, Attack, Target, route, send, signed_send
from circles import circles
from limits import PEER_SHARE, memory_max
from programs import free_port
from service.tls.certificates import write_pair
from system.running import running_broker
from turns import TURN_MAX, Turns

pytestmark = pytest.mark.spread

LONG = bool(os.environ.get("AEROBEE_LONG"))
REQUESTS = 40 if LONG else 3  # of each connection; enough for what is kept from one to the next
CONNECTIONS_MAX = 100 if LONG else 20
BYTES_MAX = (400 if LONG else 24) << 20  # of all of them
TRIES = 3  # of what took long: a busy machine makes work look longer than it is
# What a request in hand takes, beside what is counted: its pieces, the whole, the parts, what it is read into.
IN_HAND = 96 << 20
ATTACKER = Path(__file__).resolve().parent.parent / "attacker.py"


@dataclass(slots=True, frozen=True)
class Attacked:
    """A server that is attacked."""

    port: int  # that is attacked
    asked_at: int  # where another client asks
    question: bytes  # what it asks
    expected: bytes  # in each answer
    memory: PeerMemory


def settings_of(target: Target, folder: Path) -> dict[str, Any]:
    """Of a broker that is attacked there."""
    settings: dict[str, Any] = {"mapped_file_size_commit_log": 64 << 20}
    if target == "access":
        root = json.dumps({"username": USER, "password": SECRET})
        settings |= {"authentication_enabled": True, "init_authentication_user": root}
    elif target == "tls":
        folder.mkdir(exist_ok=True)
        certificate, key = write_pair(trustme.CA(), folder, "127.0.0.1")
        settings |= {
            "tls_server_mode": "permissive",
            "tls_server_cert_path": certificate,
            "tls_server_key_path": key,
        }
    elif target == "metrics":
        settings |= {"metrics_exporter_type": "PROM", "metrics_prom_exporter_port": free_port()}
    return settings


@contextlib.asynccontextmanager
async def attacked(one: Attack, folder: Path) -> AsyncIterator[Attacked]:
    if one.target != "nameserver":
        settings = settings_of(one.target, folder)
        async with running_broker(folder / "store", **settings) as broker:
            ports = {
                "replicas": int(broker.parts.identity.ha_addr.rpartition(":")[2]),
                "metrics": settings.get("metrics_prom_exporter_port"),
            }
            port = ports.get(one.target) or broker.port
            make = signed_send if one.target == "access" else send
            yield Attacked(port, broker.port, make(7), b'"code":0,', broker.parts.memory)
        return
    config = load_config(overrides={"listenPort": "0", "bindAddress": "127.0.0.1"}, environ={})
    server = NameServer(config, keep_kv=False)
    await server.start()
    try:
        yield Attacked(server.port, server.port, route(7), b'"code":17,', server.memory)
    finally:
        await server.close()


class Attacker:
    """The process of the hostile peers, for all tests of this module."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(ATTACKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    async def attack(self, one: Attack, port: int, connections: int) -> None:
        """Until all is sent, and answered where it asks for answers; the connections stay."""
        await asyncio.to_thread(self._order, f"{port} {connections} {REQUESTS} {one.name}")

    async def leave(self) -> None:
        """Hang up."""
        await asyncio.to_thread(self._order, "")

    def _order(self, line: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def attacker() -> Iterator[Attacker]:
    started = Attacker()
    yield started
    started.close()


class Most:
    """The most memory that this process has of its own, and the most that is counted, looked at by a thread."""

    def __init__(self, memory: PeerMemory) -> None:
        self._memory = memory
        self._before = own_memory()
        self._over = threading.Event()
        self.grown = 0
        self.counted = 0

    def __enter__(self) -> "Most":
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.005):
            self.grown = max(self.grown, own_memory() - self._before)
            self.counted = max(self.counted, self._memory.total)


async def is_answered(server: Attacked) -> None:
    """Another client, on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.asked_at)
    try:
        async with asyncio.timeout(30):
            for _ in range(3):
                writer.write(server.question)
                size = int.from_bytes(await reader.readexactly(4), "big")
                answer = await reader.readexactly(size)
                assert b'"opaque":7' in answer
                assert server.expected in answer
    finally:
        writer.transport.abort()


async def outcome(one: Attack, folder: Path, attacker: Attacker) -> float:
    """Attack a server; the longest turn of its loop, in units of `turns.reference`."""
    connections = min(one.connections, CONNECTIONS_MAX, max(1, BYTES_MAX // (len(one.make(1)) + 1)))
    turns = Turns()
    async with attacked(one, folder) as server:
        await is_answered(server)
        with circles() as left, turns.watched(), Most(server.memory) as most:
            attacking = asyncio.create_task(attacker.attack(one, server.port, connections))
            try:
                await is_answered(server)
                await attacking
                await is_answered(server)
            finally:
                await asyncio.gather(attacking, return_exceptions=True)
                await attacker.leave()
        await is_answered(server)  # and when it is over
    assert left == {}
    assert most.grown <= IN_HAND + PEER_SHARE * most.counted
    assert most.grown <= memory_max("nameserver" if one.target == "nameserver" else "broker")
    return turns.longest


@pytest.mark.parametrize("one", ATTACKS, ids=lambda one: one.name)
async def test_an_attack_is_borne(tmp_path: Path, one: Attack, attacker: Attacker) -> None:
    longest = float("inf")
    for number in range(TRIES):
        longest = min(longest, await outcome(one, tmp_path / str(number), attacker))
        if longest <= TURN_MAX:
            break
    assert longest <= TURN_MAX


def test_each_attack_has_a_name_of_its_own_and_makes_bytes() -> None:
    assert len({one.name for one in ATTACKS}) == len(ATTACKS) >= 31
    assert TOPIC
    for one in ATTACKS:
        assert isinstance(one.make(1), bytes)
