"""A broker's handlers without sockets: connections and files in memory, a clock to turn."""

import asyncio
import gzip
import json
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from aerobee_access.control import AccessControl
from aerobee_broker.assembly import Ground, Parts, Tables, assemble
from aerobee_broker.settings.config import BrokerConfig, LiveConfig, to_store_config
from aerobee_broker.settings.identity import identity_of
from aerobee_broker.transactions.transactions import Transactions
from aerobee_proto.codes import RequestCode
from aerobee_proto.frames import FLAG_RESPONSE, Command, FrameDecoder, decode_command, encode_command
from aerobee_proto.javahash import tag_hash
from aerobee_remoting.ends.server import RemotingServer
from aerobee_remoting.exchange.connection import Connection
from aerobee_remoting.exchange.handlers import HandlerTable
from aerobee_remoting.peers.peer_memory import PeerMemory
from aerobee_service.tls.ends import ProgramTls
from aerobee_store.disk.io import DiskIo, StoreIo
from aerobee_store.disk.reserve import Reserve
from aerobee_store.store import MessageStore
from aerobee_store.terms.messages import NewMessage
from store import golden_cases

__all__ = [
    "GOLDEN",
    "START_MS",
    "Clock",
    "Peer",
    "calls_in_turns",
    "held_back",
    "make_test_parts",
    "notifications",
    "official_exchanges",
    "put",
    "small_config",
    "unpack_store",
]

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
START_MS = 1_700_000_000_000
HOST = bytes((127, 0, 0, 1)) + (10911).to_bytes(4, "big")


def held_back(connection: Connection) -> int:
    """Bytes of requests that wait for their turn, or are worked on: whole ones, as a part of one may be left."""
    decoder = connection.decoder
    return connection.buffered_size - (0 if decoder.has_more else decoder.pending_size)


async def handled(connection: Connection) -> None:
    """When nothing keeps what comes next from being handled at once, as sends do that make a topic or a queue."""
    while held_back(connection) and not connection.transport.is_closing():  # noqa: ASYNC110
        await asyncio.sleep(0)


class Clock:
    """Epoch milliseconds that move when told to."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


class _MemoryTransport(asyncio.Transport):
    """Keeps what is written; closing it tells the connection at once."""

    def __init__(self, peer: tuple[str, int]) -> None:
        super().__init__({"peername": peer, "sockname": ("127.0.0.1", 10911)})
        self.written = asyncio.Queue[bytes]()
        self.connection: Connection | None = None
        self._closing = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.put_nowait(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            assert self.connection is not None
            self.connection.connection_lost(None)

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return


class Peer:
    """A client at the other end of a connection in memory."""

    def __init__(self, table: HandlerTable, *, port: int = 50_000, **callbacks: Any) -> None:
        self._transport = _MemoryTransport(("10.1.1.1", port))
        self.handlers = table
        self.connection = Connection(table, **callbacks)
        self._transport.connection = self.connection
        self.connection.connection_made(self._transport)
        self._decoder = FrameDecoder()
        self._read: list[Command] = []
        self._opaque = 0

    async def ask(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", *, version: int = 479
    ) -> Command:
        """Send a request and wait for its answer; requests that come meanwhile stay for `next_request`."""
        self._opaque += 1
        command = Command(code, opaque=self._opaque, version=version, ext_fields=ext, body=body)
        return await self.ask_raw(encode_command(command), self._opaque)

    async def ask_raw(self, frame: bytes, opaque: int) -> Command:
        """Send bytes and wait for the answer with that opaque."""
        self.connection.data_received(frame)
        passed: list[Command] = []
        async with asyncio.timeout(10):
            while True:
                command = await self._next()
                if command.is_response and command.opaque == opaque:
                    self._read = passed + self._read
                    return command
                passed.append(command)

    async def next_request(self) -> Command:
        """The next request that the broker sent to this client."""
        async with asyncio.timeout(10):
            return await self._next()

    def reply(self, request: Command, code: int = 0, *, body: bytes = b"", remark: str | None = None) -> None:
        """Answer a request of the broker's."""
        command = Command(code, opaque=request.opaque, flag=FLAG_RESPONSE, remark=remark, body=body)
        self.connection.data_received(encode_command(command))

    def pending_requests(self) -> list[Command]:
        """Requests that the broker has sent so far."""
        self._drain()
        taken, self._read = self._read, []
        return taken

    async def _next(self) -> Command:
        self._drain()
        while not self._read:
            self._feed(await self._transport.written.get())
        return self._read.pop(0)

    def _drain(self) -> None:
        # What was written in this turn of the loop but not handed to the transport yet counts too.
        self.connection.flush()
        while not self._transport.written.empty():
            self._feed(self._transport.written.get_nowait())

    def _feed(self, data: bytes) -> None:
        self._read += [decode_command(frame) for frame in self._decoder.feed(data)]

    def close(self) -> None:
        """Hang up."""
        self._transport.close()


def small_config(root: Path, **settings: Any) -> BrokerConfig:
    """A broker with small files, whose sends need no disk."""
    defaults: dict[str, Any] = {
        "store_path_root_dir": root,
        "mapped_file_size_commit_log": 1 << 20,
        "mapped_file_size_consume_queue": 2000,
        "max_hash_slot_num": 500,
        "max_index_num": 2000,
        "broker_cluster_name": "GoldenCluster",
        "broker_name": "golden-a",
        "broker_ip1": "127.0.0.2",
        "flush_disk_type": "ASYNC_FLUSH",
    }
    return BrokerConfig(**(defaults | settings))


def make_test_parts(root: Path, clock: Clock, *, io: StoreIo | None = None, **settings: Any) -> Parts:
    """The parts of a broker below `root`, none of them running, over an open store; the caller closes `store`."""
    config = small_config(root, **settings)
    io = io or DiskIo()
    store = MessageStore(replace(to_store_config(config), sync_flush=False), io=io, clock=clock)
    store.open()
    ground = Ground(
        live=LiveConfig(config, now_ms=clock()),
        clock=clock,
        io=io,
        reserve=Reserve(root / "reserve", io),
        worker=ThreadPoolExecutor(1),
        memory=PeerMemory(config.max_peer_memory_bytes, config.max_peer_memory_bytes_per_connection),
        identity=identity_of(config, 12911),
        address="127.0.0.1",
        tls=ProgramTls(config),
        access=AccessControl(config, cluster_name=config.broker_cluster_name, folder=root / "access"),
    )
    tables = Tables(ground)
    tables.load(store)
    return assemble(ground, store, tables, RemotingServer(HandlerTable()), on_task_failure=_task_failed)


def _task_failed(name: str, failed: Exception) -> None:
    raise AssertionError(f"{name} has failed") from failed


def put(parts: Parts, topic: str, *, queue_id: int = 0, tag: str = "TagA", body: bytes = b"hi") -> int:
    """Store one message, readable at once; its queue offset."""
    message = NewMessage(
        topic=topic,
        queue_id=queue_id,
        flag=0,
        sys_flag=0,
        born_timestamp=parts.clock(),
        born_host=HOST,
        store_host=HOST,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=body,
        properties=f"TAGS\x01{tag}\x02".encode(),
        tag_hash=tag_hash(tag),
        keys=None,
        unique_key=None,
    )
    (appended,) = parts.store.append([message])
    parts.store.confirm(parts.store.end_offset)
    return appended.queue_offset


def forget_marks(transactions: Transactions) -> None:
    """As if the broker had been killed before it wrote which transactions have ended."""
    transactions.marks.clear()
    transactions.table = type(transactions.table)()


def unpack_store(case: str, folder: Path) -> Path:
    """A store folder of the official broker, unpacked."""
    return golden_cases.unpack(case, folder)


def official_exchanges(scenario: str, code: int) -> list[tuple[Command, bytes, Command]]:
    """(request, its frame, the official broker's answer) of one request code in a captured scenario."""
    requests: dict[tuple[int, int], tuple[Command, bytes]] = {}
    found = []
    for line in _lines(scenario):
        frame = b64decode(line["frame_b64"])
        command = decode_command(FrameDecoder().feed(frame)[0])
        key = (cast("int", line["conn"]), command.opaque)
        if line["dir"] == "c2s" and not command.is_response:
            requests[key] = (command, frame)
        elif line["dir"] == "s2c" and command.is_response and key in requests:
            request, raw = requests[key]
            if request.code == code:
                found.append((request, raw, command))
    return found


def _lines(scenario: str) -> Iterator[dict[str, Any]]:
    with gzip.open(GOLDEN / "wire" / "JSON" / f"{scenario}.jsonl.gz", "rt") as lines:
        for text in lines:
            line = json.loads(text)
            if line.get("link") == "client-broker" and "frame_b64" in line:
                yield line


def notifications(peer: Peer) -> list[str]:
    """Groups of which the broker has told this client that they changed."""
    commands = peer.pending_requests()
    assert {command.code for command in commands} <= {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED}
    return [(command.ext_fields or {})["consumerGroup"] for command in commands]


def calls_in_turns(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[int]:
    """How often a method of a class is called in each turn of the event loop from here on."""
    counts = [0]
    run, method = asyncio.Handle._run, getattr(owner, name)

    def turn(handle: asyncio.Handle) -> None:
        counts.append(0)
        run(handle)

    def counted(*arguments: Any) -> Any:
        counts[-1] += 1
        return method(*arguments)

    monkeypatch.setattr(owner, name, counted)
    monkeypatch.setattr(asyncio.Handle, "_run", turn)
    return counts
