"""Aerobee's Python client: send, read, query and administer, on asyncio.

    import aerobee

    async with aerobee.Client("127.0.0.1:9876") as mq:
        async with mq.producer() as producer:
            result = await producer.send("orders", b"17", keys="o-17", tags="new")
        async for message in mq.reader("orders", start="-1h", end="now"):
            print(message.queue_offset, message.body)

`aerobee.sync` has the same names for programs without an event loop.
"""

from aerobee.admin import Admin, BrokerNode, GroupProgress, QueueOffsets, QueueProgress, TopicDescription
from aerobee.client import Client
from aerobee.config import ClientConfig, FetchConfig, ProducerConfig
from aerobee.errors import (
    Attempt,
    BrokerRefused,
    BrokerUnreachable,
    BufferFull,
    ClientClosed,
    ClientError,
    DamagedRecord,
    InvalidMessage,
    NameserverAnswer,
    NoBroker,
    NoNameserver,
    NoRoute,
    RequestTimeout,
    SendFailed,
)
from aerobee.message import Message, MessageBatch, OutgoingMessage, SendResult, SendStatus
from aerobee.producer import Producer
from aerobee.pull_consumer import PullConsumer
from aerobee.reader import Reader
from aerobee.routes import MessageQueue

__all__ = [
    "Admin",
    "Attempt",
    "BrokerNode",
    "BrokerRefused",
    "BrokerUnreachable",
    "BufferFull",
    "Client",
    "ClientClosed",
    "ClientConfig",
    "ClientError",
    "DamagedRecord",
    "FetchConfig",
    "GroupProgress",
    "InvalidMessage",
    "Message",
    "MessageBatch",
    "MessageQueue",
    "NameserverAnswer",
    "NoBroker",
    "NoNameserver",
    "NoRoute",
    "OutgoingMessage",
    "Producer",
    "ProducerConfig",
    "PullConsumer",
    "QueueOffsets",
    "QueueProgress",
    "Reader",
    "RequestTimeout",
    "SendFailed",
    "SendResult",
    "SendStatus",
    "TopicDescription",
]
