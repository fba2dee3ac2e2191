"""No request leaves anything behind that only a search for garbage would find: served, refused, or cut off."""

import asyncio
import struct
from collections.abc import Iterator
from pathlib import Path

from aerobee_nameserver.config import load_config
from aerobee_nameserver.server import NameServer
from aerobee_remoting.exchange.handlers import Entry, HandlerTable
from circles import circles
from system.running import running_broker
from system.walking import Sender
from system.worst_requests import Worst, ordinary_header

MANY = struct.pack(">IIIiI", 23, 0, 0, 0, 1) + b"x" + struct.pack(">H", 0)  # of a batch


def requests(entry: Entry) -> Iterator[Worst]:
    """Such that handlers, and those before them, get as far as they can, and then refuse it."""
    header = ordinary_header(entry, {})
    for body in (
        b"",
        b"{}",
        b"[",
        b'{"a":',
        b"\xff" * 64,
        b"{" * 5000,
        b"k=v\n",
        MANY * 20_000,
        b"[" + b"{}," * 20_000,
    ):
        yield Worst("with a body", header, body[: entry.body_size_max + 1])
    for fields in (b"{}", b'{"topic":7}', b"[]"):
        yield Worst("with other fields", b'{"code":%d,"opaque":7,"extFields":%b}' % (entry.code, fields), b"")
    yield Worst("cut off", header[:-1], b"")


async def ask_all(port: int, table: HandlerTable) -> None:
    sender = Sender(port)
    try:
        for entry in sorted(table.by_code.values(), key=lambda entry: entry.body_size_max):
            for worst in requests(entry):
                await asyncio.to_thread(sender.ask, entry.code, worst)
    finally:
        sender.close()


async def test_no_request_to_a_broker_leaves_a_circle(tmp_path: Path) -> None:
    """A batch of too many messages left all of them, and each failed request that had a task its bytes: a peer could
    fill the memory with them, 200 MiB a second, until a search that comes once a minute."""
    async with running_broker(tmp_path) as broker:
        with circles() as found:
            await ask_all(broker.port, broker.handlers)
    assert found == {}


async def test_no_request_to_a_nameserver_leaves_a_circle() -> None:
    config = load_config(overrides={"listenPort": "0", "bindAddress": "127.0.0.1"}, environ={})
    server = NameServer(config, keep_kv=False)
    await server.start()
    try:
        with circles() as found:
            await ask_all(server.port, server.handlers)
    finally:
        await server.close()
    assert found == {}
