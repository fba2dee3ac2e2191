"""Aerobee's Python client: send, read, query and administer, on asyncio.

    import aerobee

    async with aerobee.Client("127.0.0.1:9876") as mq:
        async with mq.producer() as producer:
            result = await producer.send("orders", b"17", keys="o-17", tags="new")
        async for message in mq.reader("orders", start="-1h", end="now"):
            print(message.queue_offset, message.body)
        async with mq.consumer("billing", {"orders": "new || paid"}) as consumer:
            async for message in consumer:
                print(message.text())

`aerobee.sync` has the same names for programs without an event loop.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aerobee.admin import Admin, BrokerNode, GroupProgress, QueueOffsets, QueueProgress, TopicDescription
    from aerobee.client import Client
    from aerobee.codecs import Codec, CodecError, JsonCodec, MsgpackCodec, PydanticCodec, TextCodec
    from aerobee.config import ClientConfig, ConsumerConfig, Credentials, FetchConfig, ProducerConfig
    from aerobee.errors import (
        AlreadyExists,
        Attempt,
        BrokerRefused,
        BrokerUnreachable,
        BufferFull,
        ClientClosed,
        ClientError,
        DamagedRecord,
        HidesMessages,
        InvalidMessage,
        NameserverAnswer,
        NoBroker,
        NoNameserver,
        NoQueue,
        NoReply,
        NoRoute,
        NotFound,
        NotPermitted,
        RequestTimeout,
        SendFailed,
    )
    from aerobee.filters import Filter, SqlFilter, TagFilter
    from aerobee.group_admin import MemberNotFound, TopicLag
    from aerobee.group_consumer import GroupConsumer
    from aerobee.group_message import DeadLetter, GroupMessage, RetryLater
    from aerobee.message import Message, MessageBatch, OutgoingMessage, SendResult, SendStatus
    from aerobee.producer import Producer
    from aerobee.pull_consumer import PullConsumer
    from aerobee.reader import Reader
    from aerobee.routes import MessageQueue
    from aerobee.statistics import (
        ClientStatistics,
        ConsumerStatistics,
        ProducerStatistics,
        ReaderStatistics,
    )
    from aerobee.transactions import Transaction, TransactionUnresolved

__all__ = [
    "Admin",
    "AlreadyExists",
    "Attempt",
    "BrokerNode",
    "BrokerRefused",
    "BrokerUnreachable",
    "BufferFull",
    "Client",
    "ClientClosed",
    "ClientConfig",
    "ClientError",
    "ClientStatistics",
    "Codec",
    "CodecError",
    "ConsumerConfig",
    "ConsumerStatistics",
    "Credentials",
    "DamagedRecord",
    "DeadLetter",
    "FetchConfig",
    "Filter",
    "GroupConsumer",
    "GroupMessage",
    "GroupProgress",
    "HidesMessages",
    "InvalidMessage",
    "JsonCodec",
    "MemberNotFound",
    "Message",
    "MessageBatch",
    "MessageQueue",
    "MsgpackCodec",
    "NameserverAnswer",
    "NoBroker",
    "NoNameserver",
    "NoQueue",
    "NoReply",
    "NoRoute",
    "NotFound",
    "NotPermitted",
    "OutgoingMessage",
    "Producer",
    "ProducerConfig",
    "ProducerStatistics",
    "PullConsumer",
    "PydanticCodec",
    "QueueOffsets",
    "QueueProgress",
    "Reader",
    "ReaderStatistics",
    "RequestTimeout",
    "RetryLater",
    "SendFailed",
    "SendResult",
    "SendStatus",
    "SqlFilter",
    "TagFilter",
    "TextCodec",
    "TopicDescription",
    "TopicLag",
    "Transaction",
    "TransactionUnresolved",
]

# Names are imported when they are asked for: a program that only sends does not load what consumers are made of.
_HOMES = {
    "aerobee.admin": (
        "Admin",
        "BrokerNode",
        "GroupProgress",
        "QueueOffsets",
        "QueueProgress",
        "TopicDescription",
    ),
    "aerobee.client": ("Client",),
    "aerobee.codecs": ("Codec", "CodecError", "JsonCodec", "MsgpackCodec", "PydanticCodec", "TextCodec"),
    "aerobee.config": ("ClientConfig", "ConsumerConfig", "Credentials", "FetchConfig", "ProducerConfig"),
    "aerobee.errors": (
        "AlreadyExists",
        "Attempt",
        "BrokerRefused",
        "BrokerUnreachable",
        "BufferFull",
        "ClientClosed",
        "ClientError",
        "DamagedRecord",
        "HidesMessages",
        "InvalidMessage",
        "NameserverAnswer",
        "NoBroker",
        "NoNameserver",
        "NoReply",
        "NoQueue",
        "NoRoute",
        "NotFound",
        "NotPermitted",
        "RequestTimeout",
        "SendFailed",
    ),
    "aerobee.filters": ("Filter", "SqlFilter", "TagFilter"),
    "aerobee.group_admin": ("MemberNotFound", "TopicLag"),
    "aerobee.group_consumer": ("GroupConsumer",),
    "aerobee.group_message": ("DeadLetter", "GroupMessage", "RetryLater"),
    "aerobee.message": ("Message", "MessageBatch", "OutgoingMessage", "SendResult", "SendStatus"),
    "aerobee.producer": ("Producer",),
    "aerobee.pull_consumer": ("PullConsumer",),
    "aerobee.reader": ("Reader",),
    "aerobee.routes": ("MessageQueue",),
    "aerobee.statistics": (
        "ClientStatistics",
        "ConsumerStatistics",
        "ProducerStatistics",
        "ReaderStatistics",
    ),
    "aerobee.transactions": ("Transaction", "TransactionUnresolved"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # or every name would pass the type checker

    def __getattr__(name: str) -> Any:
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
        return found


def __dir__() -> list[str]:
    return sorted(__all__)
