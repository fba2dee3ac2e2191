"""The real broker in this process, and clients of plain sockets that say exactly what a test wants said.

Touches  a store folder with small files, local TCP ports. Registers nowhere; serves no metrics.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from aerobee_broker.broker import Broker, Life
from aerobee_broker.settings.config import BrokerConfig
from aerobee_proto.batch import BatchEntry, encode_batch
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import FLAG_ONEWAY, Command
from aerobee_proto.records import StoredRecord, decode_records
from aerobee_remoting.exchange.gate import Gate
from aerobee_service.clock import epoch_ms
from aerobee_store.disk.io import StoreIo
from engines import chosen_engine
from plain_remoting import topic_fields
from remoting.pair import RawPeer

__all__ = ["Talker", "broker_config", "running_broker", "send_request", "talking", "text_of"]

Clock = Callable[[], int]

# What a pull answers when there is nothing where it looks.
NONE_HERE = frozenset(
    {ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED}
)


def broker_config(root: Path, **settings: Any) -> BrokerConfig:
    """Small files, a free port of 127.0.0.1, a known name."""
    defaults: dict[str, Any] = {
        "store_path_root_dir": root,
        "mapped_file_size_commit_log": 1 << 20,
        "mapped_file_size_consume_queue": 20_000,
        "max_hash_slot_num": 500,
        "max_index_num": 2000,
        "broker_cluster_name": "TestCluster",
        "broker_name": "test-a",
        "broker_ip1": "127.0.0.1",
        "bind_address": "127.0.0.1",
        "listen_port": 0,
        "metrics_exporter_type": "DISABLE",
        "send_engine": chosen_engine(),
    }
    return BrokerConfig(**(defaults | settings))


@asynccontextmanager
async def running_broker(
    root: Path,
    *,
    io: StoreIo | None = None,
    clock: Clock = epoch_ms,
    gate: Gate | None = None,
    life: Life | None = None,
    **settings: Any,
) -> AsyncIterator[Broker]:
    """A broker that serves; stopped in order afterwards.

    While it runs this process syncs nothing: no test of it cuts the power, and a busy disk takes its time.
    """
    broker = Broker(broker_config(root, **settings), io=io, clock=clock, gate=gate, life=life)
    with patch.multiple(os, fsync=_no_sync, fdatasync=_no_sync):
        try:
            await broker.start()
            yield broker
        finally:
            await broker.close()


def _no_sync(_: int) -> None:
    return


def text_of(properties: dict[str, str]) -> str:
    """A property string, whatever the names and values hold."""
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


def send_request(
    topic: str,
    body: bytes = b"hello",
    *,
    opaque: int = 1,
    queue_id: int = 0,
    properties: str = "",
    codec: int = 0,
    long_names: bool = False,
    oneway: bool = False,
    **fields: str | None,
) -> Command:
    """A send as official clients write it; `fields` by their long names add or replace, None leaves one out."""
    ext: dict[str, str | None] = {
        "producerGroup": "test-producers",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": str(queue_id),
        "sysFlag": "0",
        "bornTimestamp": "1700000000123",
        "flag": "0",
        "properties": properties,
        "reconsumeTimes": "0",
        "unitMode": "false",
        "maxReconsumeTimes": None,
        "batch": "false",
        **fields,
    }
    letters = dict(zip(ext, "abcdefghijklmnopqrstuvwxyz", strict=False))
    named = {name if long_names else letters[name]: value for name, value in ext.items() if value is not None}
    code = RequestCode.SEND_MESSAGE if long_names else RequestCode.SEND_MESSAGE_V2
    flag = FLAG_ONEWAY if oneway else 0
    return Command(code, opaque=opaque, flag=flag, ext_fields=named, body=body, codec=codec)


class Talker(RawPeer):
    """A client by hand: any request, any order, any bytes."""

    opaque = 1000

    async def ask(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", *, codec: int = 0
    ) -> Command:
        """One request and its answer. Requests of the broker that come first are passed over."""
        return await self.exchange(Command(code, ext_fields=ext, body=body, codec=codec))

    async def exchange(self, command: Command) -> Command:
        """As `ask`, for a command made elsewhere; it gets an opaque of its own."""
        self.opaque += 1
        command.opaque = self.opaque
        self.send(command)
        return await self.answer_to(self.opaque)

    async def answer_to(self, opaque: int) -> Command:
        """The answer with that opaque; everything else that comes first is passed over."""
        while True:
            answer = await self.receive()
            if answer.is_response and answer.opaque == opaque:
                return answer

    async def answers(self, count: int) -> dict[int, Command]:
        """The next `count` answers by their opaque."""
        received = [await self.receive() for _ in range(count)]
        return {answer.opaque: answer for answer in received}

    async def make_topic(self, topic: str, queues: int = 1, **changes: str) -> Command:
        """The answer to an admin's request to make or change a topic; see `topic_fields`."""
        return await self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(topic, queues, **changes))

    async def put(self, topic: str, body: bytes = b"hello", **how: Any) -> Command:
        """Send one message; see `send_request`."""
        return await self.exchange(send_request(topic, body, **how))

    async def put_batch(
        self, topic: str, entries: Iterable[BatchEntry] | bytes, *, codec: int = 0, **how: Any
    ) -> Command:
        """Send one batch; `entries` may be raw bytes."""
        body = entries if isinstance(entries, bytes) else encode_batch(entries)
        command = send_request(topic, body, codec=codec, batch="true", **how)
        command.code = RequestCode.SEND_BATCH_MESSAGE
        return await self.exchange(command)

    async def pull(self, topic: str, offset: int = 0, **fields: Any) -> Command:
        """One pull of everything with a subscription of its own; `fields` by their wire names."""
        return await self.exchange(self.pull_request(topic, offset, **fields))

    @staticmethod
    def pull_request(
        topic: str, offset: int = 0, *, code: int = 11, codec: int = 0, **fields: object
    ) -> Command:
        """The request of `pull`; a field that is None is left out."""
        ext = {
            "consumerGroup": "test-group",
            "topic": topic,
            "queueId": 0,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 15_000,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
            **fields,
        }
        named = {name: str(value) for name, value in ext.items() if value is not None}
        return Command(code, ext_fields=named, codec=codec)

    async def records(self, topic: str, offset: int = 0, **fields: Any) -> list[StoredRecord]:
        """Every message of a queue from `offset` on; AssertionError when the broker refuses to look."""
        found: list[StoredRecord] = []
        while True:
            answer = await self.pull(topic, offset, **fields)
            if answer.code != ResponseCode.SUCCESS:
                assert answer.code in NONE_HERE, f"{answer.code}: {answer.remark}"
                return found
            found += decode_records(answer.body)
            offset = int(answer.ext["nextBeginOffset"])


@asynccontextmanager
async def talking(broker: Broker | int, host: str = "127.0.0.1") -> AsyncIterator[Talker]:
    """A connection to the broker (or port), cut off afterwards."""
    port = broker if isinstance(broker, int) else broker.port
    reader, writer = await asyncio.open_connection(host, port)
    try:
        yield Talker(reader, writer)
    finally:
        writer.transport.abort()
