"""Handshakes beside ends that say more than they are asked."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.broker import Life
from aerobee_broker.lives.role import Role
from aerobee_broker.replication import following, giving_server, greeting
from aerobee_proto.ha import Transfer, TransferDecoder, encode_report, encode_transfer_head
from aerobee_proto.ha_hello import (
    Challenge,
    Compare,
    Facts,
    Hello,
    HelloDecoder,
    Join,
    Joined,
    Message,
    Proof,
    encode_message,
)
from aerobee_store.replicas.epochs import EpochFile
from broker.replication.pairs import eventually, ha_port, running_slave
from system.running import running_broker, talking

FLOOD_SIZE = 24 << 20  # bytes; several times what the buffers of two sockets hold
READ_SIZE_MAX = 256 << 10  # bytes that a transport reads at once
NONCE = b"x" * 32


class Conversation:
    """An end of a link by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.decoder = HelloDecoder()

    def say(self, *messages: Message) -> None:
        self.writer.write(b"".join(map(encode_message, messages)))

    async def hear(self) -> Message:
        async with asyncio.timeout(20):
            while (message := self.decoder.next()) is None:
                data = await self.reader.read(65_536)
                assert data, "the other end hung up"
                self.decoder.feed(data)
        return message


class Held:
    """What a thread does, and does not get done with, until it is let go on."""

    def __init__(self, work: Any) -> None:
        self._work = work
        self.begun, self._go_on = threading.Event(), threading.Event()

    def __call__(self, *given: Any) -> Any:
        self.begun.set()
        assert self._go_on.wait(20)
        return self._work(*given)

    def go_on(self) -> None:
        self._go_on.set()


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes waited in a handshake, after each read."""
    sizes: list[int] = []

    class Watched(greeting.Greeting[Any]):
        def received(self, data: bytes) -> None:
            super().received(data)
            sizes.append(len(self._decoder.rest))

    monkeypatch.setattr(giving_server, "Greeting", Watched)
    monkeypatch.setattr(following, "Greeting", Watched)
    return sizes


async def is_held_back(writer: asyncio.StreamWriter, sizes: list[int]) -> None:
    """Return when nothing more of a flood is read, or all of it was."""
    await eventually(lambda: bool(sizes) and sizes[-1] > greeting.REST_SIZE_MAX)
    reads = -1
    while reads != len(sizes):
        reads = len(sizes)
        await asyncio.sleep(0.05)
    assert writer.transport.get_write_buffer_size() > FLOOD_SIZE // 4
    assert max(sizes) <= greeting.REST_SIZE_MAX + READ_SIZE_MAX


async def test_a_master_reads_no_more_than_it_can_hear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: list[int]
) -> None:
    async with running_broker(tmp_path) as master, talking(master) as client:
        await client.put("T")
        store, me = master.parts.store, master.parts.identity
        held = Held(store.comparison.digests)
        monkeypatch.setattr(store.comparison, "digests", held)
        slave = Conversation(*await asyncio.open_connection("127.0.0.1", ha_port(master)))
        slave.say(Hello(1, me.cluster_name, me.broker_name, 1, "", 0, 1 << 20, NONCE))
        assert isinstance(await slave.hear(), Challenge)
        slave.say(Proof(), Compare([(0, 100)]))
        assert isinstance(await slave.hear(), Facts)
        await eventually(held.begun.is_set)
        slave.say(Join(0, 0, b""))
        slave.writer.write(encode_report(0) * (FLOOD_SIZE // 8))
        await is_held_back(slave.writer, waiting)

        held.go_on()
        said = [type(await slave.hear()).__name__ for _ in range(2)]
        assert said == ["Digests", "Joined"]
        transfers, got, rest = TransferDecoder(says_confirmed=True), 0, bytes(slave.decoder.rest)
        async with asyncio.timeout(20):
            while got < store.end_offset:
                got += sum(len(one.data) for one in transfers.feed(rest) if isinstance(one, Transfer))
                rest = b"" if got >= store.end_offset else await slave.reader.read(65_536)
            await slave.writer.drain()  # and all that it said was read
        slave.writer.transport.abort()


async def test_a_slave_reads_no_more_than_it_can_hear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: list[int]
) -> None:
    held = Held(EpochFile.follow)
    monkeypatch.setattr(EpochFile, "follow", lambda file, epochs: held(file, epochs))
    flooding: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        master = Conversation(reader, writer)
        hello = await master.hear()
        assert isinstance(hello, Hello)
        master.say(Challenge(1, 1, 1, hello.file_size, NONCE))
        assert isinstance(await master.hear(), Proof)
        master.say(Facts(0, 0, []))
        assert isinstance(await master.hear(), Join)
        master.say(Joined(1, [(1, 0)]))
        writer.write(encode_transfer_head(0, 0) * (FLOOD_SIZE // 12))
        flooding.set_result(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, running_slave(tmp_path, 2, life=Life(Role(False, 1, 2))) as slave:
        slave.parts.replication.master_found(f"127.0.0.1:{port}", "127.0.0.1:1")
        async with asyncio.timeout(20):
            writer = await flooding
        await eventually(held.begun.is_set)
        await is_held_back(writer, waiting)
        assert not slave.parts.replication.is_linked

        unread = writer.transport.get_write_buffer_size()
        held.go_on()
        await eventually(lambda: slave.parts.replication.is_linked)
        await eventually(lambda: writer.transport.get_write_buffer_size() < unread)
        writer.transport.abort()
